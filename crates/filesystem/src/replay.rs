//! Doing again what the intent log of a crash says (module/zfs/zfs_replay.c).
//!
//! Each record goes through the same code as the operation did; that it was replayed is noted in
//! the same transaction, by the log, when the operation would log it. So records are replayed once,
//! however often replaying itself is cut off. Records are data from disk: nothing in them is
//! trusted.
//!
//! A replay asks what damage asks, and nothing else: whether there is such a directory, such a
//! name, such an object. Permissions, flags, quotas, projects, and what properties say of names
//! were asked when it was done, and the answer may be another one by now: records of names keep
//! their order, but what gave the permission may belong to another object, be in no record, or come
//! later. So the code of the operations passes these by ([`Filesystem::is_kept_by`] and its
//! neighbours).
//!
//! What is not there after a crash is not logged ([`Filesystem::outlives_crash`]). Extended
//! attributes of a file without a name may still be in logs of others, and of older releases; they
//! are passed over.

use std::sync::Arc;

use bytes::Bytes;
use dataset::DirtyEstimate;
use device::BoxFuture;
use format::{BLOCK_POINTER_BYTES, BlockPointer, Bookmark, Endian, LogKind, ObjectId, log_object};
use zil::{LogRecord, ReplayError, ReplayRecord, ReplayTarget};
use zio::ReadContext;

use crate::acl::Acl;
use crate::attributes::parse_extended;
use crate::create::{Make, Replayed};
use crate::data::{FILE_BYTES_MAX, Place, is_of_xattr};
use crate::error::{FsError, Result};
use crate::filesystem::Filesystem;
use crate::log::mask;
use crate::share::Blocks;
use crate::types::{Caller, FileKind, RenameMode, SetAttributes, SetTime, Time};
use crate::znode::{Znode, attr, pflags};

/// Blocks that one record may clone.
const CLONED_BLOCKS_MAX: u64 = 1 << 20;

/// Replays records into a filesystem.
pub(crate) struct Replayer {
    filesystem: Arc<Filesystem>,
}

/// A record's words and names, read one after another.
struct Reader {
    body: Bytes,
    endian: Endian,
    offset: usize,
}

fn cut_short() -> FsError {
    FsError::Corrupt {
        ino: 0,
        what: "a record of the intent log is cut short",
    }
}

/// Where a range of a file ends.
fn end_of(offset: u64, length: u64) -> Result<u64> {
    let end = offset.checked_add(length);
    end.filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or_else(cut_short)
}

impl Reader {
    fn word(&mut self) -> Result<u64> {
        let raw = *self
            .body
            .get(self.offset..)
            .and_then(|rest| rest.first_chunk::<8>())
            .ok_or_else(cut_short)?;
        self.offset += 8;
        Ok(match self.endian {
            Endian::Little => u64::from_le_bytes(raw),
            Endian::Big => u64::from_be_bytes(raw),
        })
    }

    fn words<const N: usize>(&mut self) -> Result<[u64; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.word()?;
        }
        Ok(words)
    }

    /// A name, up to its zero byte.
    fn name(&mut self) -> Result<Bytes> {
        let rest = self.body.get(self.offset..).ok_or_else(cut_short)?;
        let length = rest
            .iter()
            .position(|byte| *byte == 0)
            .ok_or_else(cut_short)?;
        let name = self.body.slice(self.offset..self.offset + length);
        self.offset += length + 1;
        Ok(name)
    }

    fn take(&mut self, length: u64) -> Result<Bytes> {
        let end = usize::try_from(length)
            .ok()
            .and_then(|length| self.offset.checked_add(length))
            .filter(|end| *end <= self.body.len())
            .ok_or_else(cut_short)?;
        let taken = self.body.slice(self.offset..end);
        self.offset = end;
        Ok(taken)
    }

    /// Strings that follow, each with its zero byte, but for empty ones.
    fn strings(&self) -> usize {
        let rest = self.rest();
        let strings = rest.split(|byte| *byte == 0);
        strings.filter(|string| !string.is_empty()).count()
    }

    fn rest(&self) -> Bytes {
        self.body.slice(self.offset.min(self.body.len())..)
    }
}

/// Object number and dnode slots of a record's `lr_foid`.
fn object_and_slots(foid: u64) -> (u64, u8) {
    (
        foid & ((1 << 48) - 1),
        ((foid >> 56) as u8).saturating_add(1),
    )
}

fn time_of(seconds: u64, nanoseconds: u64) -> Time {
    Time {
        seconds: seconds as i64,
        nanoseconds: (nanoseconds % 1_000_000_000) as u32,
    }
}

/// Whether an id has a domain, by its number in a table (`FUID_INDEX`).
fn has_domain(id: u64) -> bool {
    id >> 32 != 0
}

/// Ids with a domain are numbered per record, where OpenZFS writes them, with the domains' names
/// (`zfs_replay_fuid_domain`); nothing on Linux does.
fn plain_ids(uid: u64, gid: u64) -> Result<()> {
    if has_domain(uid) || has_domain(gid) {
        return Err(FsError::Unsupported {
            what: "a log record with ids of another domain",
        });
    }
    Ok(())
}

impl Replayer {
    pub(crate) fn new(filesystem: &Arc<Filesystem>) -> Self {
        Self {
            filesystem: Arc::clone(filesystem),
        }
    }

    async fn replay_record(&self, record: ReplayRecord) -> Result<()> {
        let mut reader = Reader {
            body: record.body.clone(),
            endian: record.endian,
            offset: 0,
        };
        let filesystem = &self.filesystem;
        match record.kind {
            LogKind::Create
            | LogKind::Mkdir
            | LogKind::MkXattr
            | LogKind::Symlink
            | LogKind::CreateAttr
            | LogKind::MkdirAttr
            | LogKind::CreateAcl
            | LogKind::CreateAclAttr
            | LogKind::MkdirAcl
            | LogKind::MkdirAclAttr => self.create(record.kind, &mut reader).await,
            LogKind::Remove | LogKind::Rmdir => {
                let parent = reader.word()?;
                let name = reader.name()?;
                if record.kind == LogKind::Remove {
                    filesystem.unlink(parent, &name).await
                } else {
                    filesystem.remove_directory(parent, &name).await
                }
            }
            LogKind::Link => {
                let [parent, ino] = reader.words()?;
                let name = reader.name()?;
                filesystem.link(ino, parent, &name).await.map(|_| ())
            }
            LogKind::Rename | LogKind::RenameExchange => {
                let [parent, new_parent] = reader.words()?;
                let (name, new_name) = (reader.name()?, reader.name()?);
                let mode = if record.kind == LogKind::Rename {
                    RenameMode::Replace
                } else {
                    RenameMode::Exchange
                };
                filesystem
                    .rename(parent, &name, new_parent, &new_name, mode)
                    .await
            }
            LogKind::RenameWhiteout => self.rename_whiteout(&mut reader).await,
            LogKind::Write => self.write(&record, &mut reader).await,
            LogKind::Write2 => self.write2(&mut reader).await,
            LogKind::Truncate => {
                let [ino, offset, length] = reader.words()?;
                let _entered = filesystem.enter_to_change().await?;
                let node = filesystem.node(ino).await?;
                filesystem.free_space(&node, offset, length).await
            }
            LogKind::SetAttr => self.set_attributes(&mut reader).await,
            LogKind::SetSaXattr => {
                let [ino, length] = reader.words()?;
                let name = reader.name()?;
                let value = reader.take(length)?;
                let value = (length != 0).then_some(&value[..]);
                let _entered = filesystem.enter_to_change().await?;
                let node = filesystem.node(ino).await?;
                let _lock = node.xattrs.write().await;
                if filesystem.put_sa_xattr(&node, &name, value, false).await? {
                    return Ok(());
                }
                // Where another system had it in the dnode, and we cannot.
                match value {
                    Some(value) => filesystem.put_xattr_file(&node, &name, value).await,
                    None => filesystem.drop_xattr(&node, &name).await.map(|_| ()),
                }
            }
            LogKind::Acl | LogKind::AclV0 => self.set_acl(record.kind, &mut reader).await,
            LogKind::CloneRange => self.clone_range(&mut reader).await,
            _ => Err(FsError::Unsupported {
                what: "a log record of a newer kind",
            }),
        }
    }

    async fn create(&self, kind: LogKind, reader: &mut Reader) -> Result<()> {
        let [
            parent,
            foid,
            mode,
            uid,
            gid,
            generation,
            seconds,
            nanoseconds,
            rdev,
        ] = reader.words()?;
        let (ino, slots) = object_and_slots(foid);
        let mut acl_words = [0; 5];
        let has_acl = matches!(
            kind,
            LogKind::CreateAcl | LogKind::CreateAclAttr | LogKind::MkdirAcl | LogKind::MkdirAclAttr
        );
        if has_acl {
            acl_words = reader.words()?;
        }
        let mut flags = 0;
        let has_extended = matches!(
            kind,
            LogKind::CreateAttr
                | LogKind::MkdirAttr
                | LogKind::CreateAclAttr
                | LogKind::MkdirAclAttr
        );
        if has_extended {
            let (_, set, _, length) =
                parse_extended(&reader.rest(), reader.endian).ok_or_else(cut_short)?;
            flags = set;
            reader.take(length as u64)?;
        }
        let mut acl = None;
        if has_acl {
            let [count, domains, fuids, acl_bytes, _] = acl_words;
            if domains != 0 || fuids != 0 {
                return Err(FsError::Unsupported {
                    what: "a log record with ids of another domain",
                });
            }
            let list = reader.take(acl_bytes)?;
            reader.take(acl_bytes.wrapping_neg() & 7)?;
            // Entries are `ace_t`, which has the layout of a stored entry of version 0.
            acl = Acl::decode_v0(&list, count);
        }
        // Older releases of this program logged ids as they are stored, without the domains' names.
        let strings = match kind {
            LogKind::MkXattr => 0,
            LogKind::Symlink => 2,
            _ => 1,
        };
        if reader.strings() != strings {
            plain_ids(uid, gid)?;
        }
        let name = reader.name()?;
        let target = if kind == LogKind::Symlink {
            Some(reader.name()?)
        } else {
            None
        };
        let file_kind = FileKind::from_mode(mode as u32).ok_or_else(cut_short)?;
        let replayed = Replayed {
            ino,
            slots,
            generation,
            time: time_of(seconds, nanoseconds),
            uid,
            gid,
        };
        let caller = Caller::new(uid as u32, gid as u32);
        let filesystem = &self.filesystem;
        let _entered = filesystem.enter_to_change().await?;
        let directory = filesystem.node(parent).await?;
        if kind == LogKind::MkXattr {
            let _lock = directory.xattrs.write().await;
            return filesystem
                .make_xattr_directory(&directory, Some(replayed))
                .await
                .map(|_| ());
        }
        directory.entries()?;
        filesystem.check_new_name(parent, &name)?;
        let make = Make {
            rdev,
            target: target.as_deref(),
            replayed: Some(replayed),
            acl,
            flags,
            ..Make::new(file_kind, mode as u32, caller)
        };
        filesystem
            .make_in(&directory, &name, &make)
            .await
            .map(|_| ())
    }

    async fn rename_whiteout(&self, reader: &mut Reader) -> Result<()> {
        let [
            parent,
            new_parent,
            foid,
            mode,
            uid,
            gid,
            generation,
            seconds,
            nanoseconds,
            rdev,
        ] = reader.words()?;
        plain_ids(uid, gid)?;
        let (name, new_name) = (reader.name()?, reader.name()?);
        let (ino, slots) = object_and_slots(foid);
        let filesystem = &self.filesystem;
        filesystem
            .rename(parent, &name, new_parent, &new_name, RenameMode::Replace)
            .await?;
        let _entered = filesystem.enter_to_change().await?;
        let time = time_of(seconds, nanoseconds);
        let make = Make {
            rdev,
            replayed: Some(Replayed {
                ino,
                slots,
                generation,
                time,
                uid,
                gid,
            }),
            ..Make::new(
                FileKind::from_mode(mode as u32).ok_or_else(cut_short)?,
                mode as u32,
                Caller::new(uid as u32, gid as u32),
            )
        };
        let directory = filesystem.node(parent).await?;
        filesystem
            .make_in(&directory, &name, &make)
            .await
            .map(|_| ())
    }

    async fn write(&self, record: &ReplayRecord, reader: &mut Reader) -> Result<()> {
        let [ino, mut offset, length, _block_offset] = reader.words()?;
        reader.take(BLOCK_POINTER_BYTES as u64)?;
        let filesystem = &self.filesystem;
        let _entered = filesystem.enter_to_change().await?;
        let node = filesystem.node(ino).await?;
        let end = end_of(offset, length)?;
        let (data, size) = match &record.data {
            None => (reader.take(length)?, None),
            Some(block) => {
                // A whole block, written where it belongs; the file may end within it.
                if length < block.len() as u64 {
                    offset -= offset % block.len() as u64;
                }
                (block.clone(), Some(node.znode().size.max(end)))
            }
        };
        filesystem
            .write_node(&node, Place::At(offset), data, Caller::ROOT, size)
            .await
            .map(|_| ())
    }

    async fn write2(&self, reader: &mut Reader) -> Result<()> {
        let [ino, offset, length] = reader.words()?;
        let filesystem = &self.filesystem;
        let end = end_of(offset, length)?;
        let _entered = filesystem.enter_to_change().await?;
        let node = filesystem.node(ino).await?;
        let _range = node.ranges.lock(0, u64::MAX, true).await;
        let node = node.lock().await?;
        if end > node.znode().size {
            let tx = filesystem.assign(DirtyEstimate::metadata()).await?;
            let changed = Znode {
                size: end,
                ..node.znode()
            };
            filesystem
                .store(&tx, &node, changed, &[attr::SIZE], [])
                .await?;
            filesystem.record(
                &tx,
                LogRecord::write(ObjectId::new(ino), false, offset, length),
            );
        }
        Ok(())
    }

    async fn set_attributes(&self, reader: &mut Reader) -> Result<()> {
        let [ino, which, mode, uid, gid, size] = reader.words()?;
        let [atime_s, atime_ns, mtime_s, mtime_ns] = reader.words()?;
        let mut set = SetAttributes::default();
        if which & (mask::UID | mask::GID) != 0 {
            plain_ids(
                if which & mask::UID != 0 { uid } else { 0 },
                if which & mask::GID != 0 { gid } else { 0 },
            )?;
        }
        set.mode = (which & mask::MODE != 0).then_some(mode as u32 & 0o7777);
        set.uid = (which & mask::UID != 0).then_some(uid as u32);
        set.gid = (which & mask::GID != 0).then_some(gid as u32);
        set.size_bytes = (which & mask::SIZE != 0).then_some(size);
        set.atime = (which & mask::ATIME != 0).then_some(SetTime::At(time_of(atime_s, atime_ns)));
        set.mtime = (which & mask::MTIME != 0).then_some(SetTime::At(time_of(mtime_s, mtime_ns)));
        let filesystem = &self.filesystem;
        if which & mask::XVATTR != 0 {
            let (clear, add, project, _) =
                parse_extended(&reader.rest(), reader.endian).ok_or_else(cut_short)?;
            let flags = filesystem.attributes(ino).await?.flags;
            set.flags = Some(flags & !clear | add);
            set.project = project;
        }
        filesystem
            .set_attributes(ino, &set, Caller::ROOT)
            .await
            .map(|_| ())
    }

    async fn set_acl(&self, kind: LogKind, reader: &mut Reader) -> Result<()> {
        let [ino, count] = reader.words()?;
        let list = if kind == LogKind::Acl {
            let [domains, fuids, bytes, _flags] = reader.words()?;
            if domains != 0 || fuids != 0 {
                return Err(FsError::Unsupported {
                    what: "a log record with ids of another domain",
                });
            }
            reader.take(bytes)?
        } else {
            reader.take(count.checked_mul(12).ok_or_else(cut_short)?)?
        };
        let acl = Acl::decode_v0(&list, count).ok_or_else(cut_short)?;
        let filesystem = &self.filesystem;
        let _entered = filesystem.enter_to_change().await?;
        let node = filesystem.node(ino).await?.lock().await?;
        let tx = filesystem.assign(DirtyEstimate::metadata()).await?;
        let mut changed = crate::namespace::touched(node.znode(), filesystem.now(), true);
        changed.flags &= !(pflags::ACL_TRIVIAL | pflags::INHERIT_ACE | pflags::NO_EXECS_DENIED);
        for (holds, flag) in [
            (acl.is_trivial(), pflags::ACL_TRIVIAL),
            (acl.has_inheritable(), pflags::INHERIT_ACE),
            (acl.execution_is_free(), pflags::NO_EXECS_DENIED),
        ] {
            changed.flags |= if holds { flag } else { 0 };
        }
        changed.mode = changed.mode & !0o777 | acl.mode();
        let more = crate::create::acl_to_store(&changed, &acl, filesystem.version);
        let list = [attr::MODE, attr::FLAGS, attr::CTIME];
        filesystem.store(&tx, &node, changed, &list, more).await?;
        let record = crate::log::attributes_set(ino, mask::MODE, &changed, None);
        filesystem.record(&tx, record);
        Ok(())
    }

    /// Blocks shared by cloning. Where they cannot be (the file's blocks are of another size) their
    /// content is read and written anew; the log's own references last until it is freed.
    async fn clone_range(&self, reader: &mut Reader) -> Result<()> {
        let [ino, offset, length, block_bytes, count] = reader.words()?;
        if count > CLONED_BLOCKS_MAX || block_bytes == 0 || block_bytes > 16 << 20 {
            return Err(cut_short());
        }
        end_of(offset, length)?;
        if count > length.div_ceil(block_bytes) {
            return Err(cut_short());
        }
        let filesystem = &self.filesystem;
        let pointers = reader.take(count * BLOCK_POINTER_BYTES as u64)?;
        let endian = reader.endian;
        let _entered = filesystem.enter_to_change().await?;
        let node = filesystem.node(ino).await?;
        let pointers: Vec<_> = BlockPointer::decode_all(&pointers, endian).collect();
        {
            let _range = node.ranges.lock(0, u64::MAX, true).await;
            let locked = node.lock().await?;
            let blocks = Blocks {
                offset_bytes: offset,
                length_bytes: length,
                block_bytes,
                pointers: &pointers,
            };
            if filesystem.replay_shared(&locked, blocks).await? {
                return Ok(());
            }
        }
        let mut done = 0;
        let pipeline = Arc::clone(filesystem.objset.pipeline());
        for pointer in pointers {
            let data = if pointer.is_hole() {
                Bytes::from(vec![0; block_bytes as usize])
            } else {
                let context = ReadContext::new(Bookmark {
                    objset: filesystem.objset.options().dataset.get().into(),
                    object: ObjectId::new(ino),
                    ..Bookmark::default()
                });
                pipeline.read(&pointer, &context).await?
            };
            let part = length.saturating_sub(done).min(data.len() as u64);
            if part == 0 {
                break;
            }
            let place = Place::At(offset.checked_add(done).ok_or_else(cut_short)?);
            let data = data.slice(..part as usize);
            filesystem
                .write_node(&node, place, data, Caller::ROOT, None)
                .await?;
            done += part;
        }
        Ok(())
    }
}

/// Whether extended attributes have records of this kind that begin with a directory's number.
fn is_of_attributes(kind: LogKind) -> bool {
    matches!(
        kind,
        LogKind::MkXattr
            | LogKind::Create
            | LogKind::CreateAcl
            | LogKind::CreateAttr
            | LogKind::CreateAclAttr
            | LogKind::Remove
    )
}

impl Replayer {
    /// Whether a record of names is about the extended attributes of a file that has no name.
    ///
    /// Their directory may be gone as well, since releases that logged such records freed it with
    /// the file. Nothing else makes or removes names in a directory that is not there: records of
    /// names come in the order of the changes, and one that cannot be replayed keeps all that
    /// follow. A directory that is damaged is there.
    async fn is_without_name(&self, kind: LogKind, parent: Option<ObjectId>) -> bool {
        let Some(parent) = parent else { return false };
        let parent = match self.filesystem.node(parent.get()).await {
            Ok(parent) => parent,
            Err(FsError::Stale { .. }) => return is_of_attributes(kind),
            Err(_) => return false,
        };
        let is_of_xattr = is_of_xattr(&parent.znode());
        is_of_xattr && matches!(self.filesystem.outlives_crash(&parent).await, Ok(false))
    }
}

impl ReplayTarget for Replayer {
    fn replay<'a>(
        &'a self,
        record: ReplayRecord,
    ) -> BoxFuture<'a, std::result::Result<(), ReplayError>> {
        Box::pin(async move {
            let kind = record.kind;
            // Changes of a file itself may be logged after its removal.
            let is_of_file = matches!(
                record.kind,
                LogKind::Write
                    | LogKind::Write2
                    | LogKind::Truncate
                    | LogKind::SetAttr
                    | LogKind::SetSaXattr
                    | LogKind::Acl
                    | LogKind::AclV0
                    | LogKind::CloneRange
            );
            let parent = log_object(&record.body, 0, record.endian);
            match self.replay_record(record).await {
                Err(FsError::Stale { .. }) if is_of_file => Ok(()),
                Err(error) if !is_of_file && self.is_without_name(kind, parent).await => {
                    tracing::warn!(%error, "attributes of a file without a name are not replayed");
                    Ok(())
                }
                other => Ok(other?),
            }
        })
    }

    fn settle(&self) -> BoxFuture<'_, std::result::Result<(), ReplayError>> {
        Box::pin(async move { Ok(self.filesystem.drain().await?) })
    }
}
