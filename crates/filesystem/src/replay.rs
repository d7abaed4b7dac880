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
//! later. So the code of the operations passes these by (module `checks`).
//!
//! Changes of a file that is not there after a crash are not logged (`Files::outlives_crash`).
//! Extended attributes of a file without a name may still be in logs of others, and of older
//! releases; they are passed over.

use std::sync::Arc;

use bytes::Bytes;
use dataset::DirtyEstimate;
use device::BoxFuture;
use format::{
    Bookmark, Endian, Log64Time, LogAcl, LogAttributes, LogBody, LogCreate, LogCreateKind, LogKind,
    LogObject, LogRename, LogSetAttributes, LogWhiteout, LogWrite, ObjectId, RenameKind,
    log_object,
};
use zil::{LogRecord, ReplayError, ReplayRecord, ReplayTarget};
use zio::ReadContext;

use crate::acl::Acl;
use crate::attributes::Extended;
use crate::checks::check_new_name;
use crate::content::{FILE_BYTES_MAX, Place, free_space, write_node};
use crate::create::{Make, Replayed, make_in};
use crate::error::{FsError, Result};
use crate::filesystem::Filesystem;
use crate::log;
use crate::share::{Blocks, replay_shared};
use crate::stored_acl::{acl_to_store, external_list};
use crate::types::{Caller, FileKind, RenameMode, SetAttributes, SetTime, Time, Via};
use crate::znode::{Znode, attr, is_of_xattr, pflags, touched};

/// Largest block of a file that a record may speak of.
const BLOCK_BYTES_MAX: u64 = 16 << 20;
/// Length of an entry of a list of access in a record (`ace_t`, `zfs_oldace_t`).
const ACE_BYTES: u64 = 12;

/// Replays the log of a crash, also where `readonly` is on: what it has was promised, and must
/// not come over what is written when the property is off again (`zfsvfs_setup`,
/// module/os/linux/zfs/zfs_vfsops.c).
pub(crate) async fn replay_log(filesystem: &Arc<Filesystem>) -> Result<()> {
    let log = filesystem.files.log.as_ref();
    let Some(log) = log.filter(|log| log.needs_replay()) else {
        return Ok(());
    };
    let dataset = filesystem.dataset()?;
    // What the log changes is counted like the rest.
    dataset.begin_to_count();
    let replayer = Replayer {
        filesystem: Arc::clone(filesystem),
    };
    filesystem.opening.set_replaying(true);
    let outcome = log.replay(&replayer).await;
    filesystem.opening.set_replaying(false);
    let (dataset, records) = (dataset.name(), outcome?);
    tracing::info!(dataset, records, "replayed the intent log");
    Ok(())
}

/// Replays records into a filesystem.
struct Replayer {
    filesystem: Arc<Filesystem>,
}

fn nonsense() -> FsError {
    FsError::Corrupt {
        ino: 0,
        what: "a record of the intent log makes no sense",
    }
}

/// Where a range of a file ends.
fn end_of(offset: u64, length: u64) -> Result<u64> {
    let end = offset.checked_add(length);
    end.filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or_else(nonsense)
}

fn time_of([seconds, nanoseconds]: Log64Time) -> Time {
    Time {
        seconds: seconds as i64,
        nanoseconds: (nanoseconds % 1_000_000_000) as u32,
    }
}

fn slots_of(object: LogObject) -> u8 {
    u8::try_from(object.dnode_slots).unwrap_or(u8::MAX)
}

fn foreign_ids() -> FsError {
    FsError::Unsupported {
        what: "a log record with ids of another domain",
    }
}

/// Ids with a domain, by its number in a table (`FUID_INDEX`), are numbered per record, where
/// OpenZFS writes them, with the domains' names (`zfs_replay_fuid_domain`); nothing on Linux does.
fn plain_ids(uid: u64, gid: u64) -> Result<()> {
    if (uid | gid) >> 32 != 0 {
        return Err(foreign_ids());
    }
    Ok(())
}

/// A list of access. Entries are `ace_t`, which has the layout of a stored entry of version 0.
fn list_of(acl: &LogAcl<'_>, endian: Endian) -> Result<Option<Acl>> {
    if !acl.domains.is_empty() || !acl.fuids.is_empty() {
        return Err(foreign_ids());
    }
    Ok(Acl::decode_v0(acl.entries, acl.count, endian))
}

impl Replayer {
    async fn replay_body(&self, record: &ReplayRecord, body: LogBody<'_>) -> Result<()> {
        let filesystem = &self.filesystem;
        match body {
            LogBody::Create(create) => self.create(&create, record.endian).await,
            LogBody::Remove {
                directory,
                name,
                is_directory: false,
            } => filesystem.unlink(directory.get(), name).await,
            LogBody::Remove {
                directory, name, ..
            } => filesystem.remove_directory(directory.get(), name).await,
            LogBody::Link {
                directory,
                object,
                name,
            } => filesystem
                .link(object.get(), directory.get(), name)
                .await
                .map(|_| ()),
            LogBody::Rename(rename) => self.rename(&rename).await,
            LogBody::Write(write) => self.write(record, &write).await,
            LogBody::WriteSize(write) => self.write_size(&write).await,
            LogBody::Truncate {
                object,
                offset,
                length,
            } => {
                let _entered = filesystem.opening.enter_to_change().await?;
                let node = filesystem.files.node(object.get()).await?;
                free_space(&filesystem.files, &node, offset, length).await
            }
            LogBody::SetAttributes(set) => self.set_attributes(&set, record.endian).await,
            LogBody::SetXattr {
                object,
                name,
                value,
            } => self.set_xattr(object, name, value).await,
            LogBody::Acl { object, acl } => {
                let list = list_of(&acl, record.endian)?.ok_or_else(nonsense)?;
                self.set_acl(object, &list).await
            }
            LogBody::AclV0 {
                object,
                count,
                entries,
            } => {
                if count > entries.len() as u64 / ACE_BYTES {
                    return Err(nonsense());
                }
                let list = Acl::decode_v0(entries, count, record.endian);
                let list = list.ok_or_else(nonsense)?;
                self.set_acl(object, &list).await
            }
            LogBody::CloneRange {
                object,
                offset,
                length,
                block_bytes,
                blocks,
            } => {
                let blocks = Blocks {
                    offset_bytes: offset,
                    length_bytes: length,
                    block_bytes,
                    pointers: &blocks,
                };
                self.clone_range(object, blocks).await
            }
            LogBody::Commit | LogBody::Unknown { .. } => Err(FsError::Unsupported {
                what: "a log record of a newer kind",
            }),
        }
    }

    async fn create(&self, create: &LogCreate<'_>, endian: Endian) -> Result<()> {
        if !create.domains.is_empty() {
            return Err(foreign_ids());
        }
        let extended = |attributes: &LogAttributes| Extended::of(attributes, endian);
        let flags = create.attributes.as_ref().map_or(0, |it| extended(it).set);
        let list = |acl: &LogAcl<'_>| list_of(acl, endian);
        let acl = create.acl.as_ref().map(list).transpose()?.flatten();
        let mode = create.mode as u32;
        let file_kind = FileKind::from_mode(mode).ok_or_else(nonsense)?;
        let (uid, gid) = (create.uid, create.gid);
        let replayed = Replayed {
            ino: create.object.object.get(),
            slots: slots_of(create.object),
            generation: create.generation,
            time: time_of(create.create_time),
            uid,
            gid,
        };
        let caller = Caller::new(uid as u32, gid as u32);
        let filesystem = &self.filesystem;
        let _entered = filesystem.opening.enter_to_change().await?;
        let parent = create.directory.get();
        let directory = filesystem.files.node(parent).await?;
        if create.kind == LogCreateKind::XattrDirectory {
            let _lock = directory.xattrs.write().await;
            return filesystem
                .xattrs
                .make_xattr_directory(&directory, Some(replayed))
                .await
                .map(|_| ());
        }
        directory.entries()?;
        check_new_name(&filesystem.files, parent, create.name)?;
        let is_link = create.kind == LogCreateKind::Symlink;
        let make = Make {
            rdev: create.rdev,
            target: is_link.then_some(create.target),
            replayed: Some(replayed),
            acl,
            flags,
            ..Make::new(file_kind, mode, caller)
        };
        make_in(
            &filesystem.files,
            &filesystem.quotas,
            &directory,
            create.name,
            &make,
        )
        .await
        .map(|_| ())
    }

    async fn rename(&self, rename: &LogRename<'_>) -> Result<()> {
        let (parent, name) = (rename.source_directory.get(), rename.source);
        let (new_parent, new_name) = (rename.target_directory.get(), rename.target);
        let filesystem = &self.filesystem;
        let mode = match &rename.kind {
            RenameKind::Exchange => RenameMode::Exchange,
            RenameKind::Plain => RenameMode::Replace,
            RenameKind::Whiteout(whiteout) => {
                plain_ids(whiteout.uid, whiteout.gid)?;
                RenameMode::Replace
            }
        };
        filesystem
            .rename(parent, name, new_parent, new_name, mode)
            .await?;
        match &rename.kind {
            RenameKind::Whiteout(whiteout) => self.whiteout(parent, name, whiteout).await,
            RenameKind::Plain | RenameKind::Exchange => Ok(()),
        }
    }

    async fn whiteout(&self, parent: u64, name: &[u8], whiteout: &LogWhiteout) -> Result<()> {
        let filesystem = &self.filesystem;
        let _entered = filesystem.opening.enter_to_change().await?;
        let (mode, uid, gid) = (whiteout.mode as u32, whiteout.uid, whiteout.gid);
        let make = Make {
            rdev: whiteout.rdev,
            replayed: Some(Replayed {
                ino: whiteout.object.object.get(),
                slots: slots_of(whiteout.object),
                generation: whiteout.generation,
                time: time_of(whiteout.create_time),
                uid,
                gid,
            }),
            ..Make::new(
                FileKind::from_mode(mode).ok_or_else(nonsense)?,
                mode,
                Caller::new(uid as u32, gid as u32),
            )
        };
        let directory = filesystem.files.node(parent).await?;
        make_in(
            &filesystem.files,
            &filesystem.quotas,
            &directory,
            name,
            &make,
        )
        .await
        .map(|_| ())
    }

    async fn write(&self, record: &ReplayRecord, write: &LogWrite<'_>) -> Result<()> {
        let mut offset = write.offset;
        let filesystem = &self.filesystem;
        let _entered = filesystem.opening.enter_to_change().await?;
        let node = filesystem.files.node(write.object.get()).await?;
        let end = end_of(offset, write.length)?;
        let (data, size) = match (&record.data, write.data) {
            (None, Some(data)) => (record.body.slice_ref(data), None),
            (None, None) => return Err(nonsense()),
            (Some(block), _) => {
                // A whole block, written where it belongs; the file may end within it.
                if write.length < block.len() as u64 {
                    offset -= offset % block.len() as u64;
                }
                (block.clone(), Some(node.znode().size.max(end)))
            }
        };
        write_node(
            &filesystem.files,
            &filesystem.quotas,
            &node,
            Place::At(offset),
            data,
            Via::Cache,
            Caller::ROOT,
            size,
        )
        .await
        .map(|_| ())
    }

    async fn write_size(&self, write: &LogWrite<'_>) -> Result<()> {
        let filesystem = &self.filesystem;
        let end = end_of(write.offset, write.length)?;
        let _entered = filesystem.opening.enter_to_change().await?;
        let node = filesystem.files.node(write.object.get()).await?;
        let _range = node.ranges.lock(0, u64::MAX, true).await;
        let node = node.lock().await?;
        if end > node.znode().size {
            let tx = filesystem.files.assign(DirtyEstimate::metadata()).await?;
            let changed = Znode {
                size: end,
                ..node.znode()
            };
            filesystem
                .files
                .store(&tx, &node, changed, &[attr::SIZE], [])
                .await?;
            filesystem.files.record(
                &tx,
                LogRecord::write(write.object, false, write.offset, write.length),
            );
        }
        Ok(())
    }

    async fn set_attributes(&self, record: &LogSetAttributes<'_>, endian: Endian) -> Result<()> {
        let given = |bit: u64| record.mask & bit != 0;
        let (uid, gid) = (
            given(LogSetAttributes::UID).then_some(record.uid),
            given(LogSetAttributes::GID).then_some(record.gid),
        );
        plain_ids(uid.unwrap_or(0), gid.unwrap_or(0))?;
        let time = |bit, time| given(bit).then(|| SetTime::At(time_of(time)));
        let mut set = SetAttributes {
            mode: given(LogSetAttributes::MODE).then_some(record.mode as u32 & 0o7777),
            uid: uid.map(|uid| uid as u32),
            gid: gid.map(|gid| gid as u32),
            size_bytes: given(LogSetAttributes::SIZE).then_some(record.size),
            atime: time(LogSetAttributes::ATIME, record.access_time),
            mtime: time(LogSetAttributes::MTIME, record.modify_time),
            ..SetAttributes::default()
        };
        let (filesystem, ino) = (&self.filesystem, record.object.get());
        if let Some(attributes) = &record.attributes {
            let extended = Extended::of(attributes, endian);
            let flags = filesystem.attributes(ino).await?.flags;
            set.flags = Some(flags & !extended.clear | extended.set);
            set.project = extended.project;
        }
        filesystem
            .set_attributes(ino, &set, Caller::ROOT)
            .await
            .map(|_| ())
    }

    async fn set_xattr(&self, object: ObjectId, name: &[u8], value: &[u8]) -> Result<()> {
        let value = (!value.is_empty()).then_some(value);
        let filesystem = &self.filesystem;
        let _entered = filesystem.opening.enter_to_change().await?;
        let node = filesystem.files.node(object.get()).await?;
        let _lock = node.xattrs.write().await;
        if filesystem
            .xattrs
            .put_sa_xattr(&node, name, value, false)
            .await?
        {
            return Ok(());
        }
        // Where another system had it in the dnode, and we cannot.
        match value {
            Some(value) => filesystem.xattrs.put_xattr_file(&node, name, value).await,
            None => filesystem.xattrs.drop_xattr(&node, name).await.map(|_| ()),
        }
    }

    async fn set_acl(&self, object: ObjectId, acl: &Acl) -> Result<()> {
        let (filesystem, ino) = (&self.filesystem, object.get());
        let _entered = filesystem.opening.enter_to_change().await?;
        let node = filesystem.files.node(ino).await?.lock().await?;
        let external = external_list(&filesystem.files, &node).await?;
        let tx = filesystem.files.assign(DirtyEstimate::metadata()).await?;
        let mut changed = touched(node.znode(), filesystem.opening.now(), true);
        changed.flags &= !(pflags::ACL_TRIVIAL | pflags::INHERIT_ACE | pflags::NO_EXECS_DENIED);
        for (holds, flag) in [
            (acl.is_trivial(), pflags::ACL_TRIVIAL),
            (acl.has_inheritable(), pflags::INHERIT_ACE),
            (acl.execution_is_free(), pflags::NO_EXECS_DENIED),
        ] {
            changed.flags |= if holds { flag } else { 0 };
        }
        changed.mode = changed.mode & !0o777 | acl.mode();
        let more = acl_to_store(&filesystem.files, &tx, &changed, acl, external).await?;
        let list = [attr::MODE, attr::FLAGS, attr::CTIME];
        filesystem
            .files
            .store(&tx, &node, changed, &list, more)
            .await?;
        let record = log::attributes_set(ino, LogSetAttributes::MODE, &changed, None);
        filesystem.files.record(&tx, record);
        Ok(())
    }

    /// Blocks shared by cloning. Where they cannot be (the file's blocks are of another size) their
    /// content is read and written anew; the log's own references last until it is freed.
    async fn clone_range(&self, object: ObjectId, blocks: Blocks<'_>) -> Result<()> {
        let Blocks {
            offset_bytes: offset,
            length_bytes: length,
            block_bytes,
            pointers,
        } = blocks;
        if block_bytes == 0 || block_bytes > BLOCK_BYTES_MAX {
            return Err(nonsense());
        }
        end_of(offset, length)?;
        if pointers.len() as u64 > length.div_ceil(block_bytes) {
            return Err(nonsense());
        }
        let filesystem = &self.filesystem;
        let _entered = filesystem.opening.enter_to_change().await?;
        let node = filesystem.files.node(object.get()).await?;
        {
            let _range = node.ranges.lock(0, u64::MAX, true).await;
            let locked = node.lock().await?;
            if replay_shared(&filesystem.files, &locked, blocks).await? {
                return Ok(());
            }
        }
        let mut done = 0;
        let pipeline = Arc::clone(filesystem.files.objset.pipeline());
        for pointer in pointers {
            let data = if pointer.is_hole() {
                Bytes::from(vec![0; block_bytes as usize])
            } else {
                let context = ReadContext::new(Bookmark {
                    objset: filesystem.files.objset.options().dataset.get().into(),
                    object,
                    ..Bookmark::default()
                });
                pipeline.read(pointer, &context).await?
            };
            let part = length.saturating_sub(done).min(data.len() as u64);
            if part == 0 {
                break;
            }
            let place = Place::At(offset.checked_add(done).ok_or_else(nonsense)?);
            let data = data.slice(..part as usize);
            write_node(
                &filesystem.files,
                &filesystem.quotas,
                &node,
                place,
                data,
                Via::Cache,
                Caller::ROOT,
                None,
            )
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
        let parent = match self.filesystem.files.node(parent.get()).await {
            Ok(parent) => parent,
            Err(FsError::Stale { .. }) => return is_of_attributes(kind),
            Err(_) => return false,
        };
        let is_of_xattr = is_of_xattr(&parent.znode());
        is_of_xattr
            && matches!(
                self.filesystem.files.outlives_crash(&parent).await,
                Ok(false)
            )
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
            let is_of_file = record.kind.is_out_of_order();
            let parent = log_object(&record.body, 0, record.endian);
            let body = record.decoded()?;
            match self.replay_body(&record, body).await {
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
        Box::pin(async move { Ok(self.filesystem.unlinked.drain().await?) })
    }
}
