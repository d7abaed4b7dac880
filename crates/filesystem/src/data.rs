//! Content of files: reading, writing, truncating, holes.
//!
//! A file has one block as long as it fits into `recordsize`; the block grows in steps of 512
//! bytes. A bigger file has blocks of one size, a power of two, fixed from then on (`zfs_write`,
//! module/zfs/zfs_vnops.c; `zfs_grow_blocksize`, `zfs_extend`, `zfs_trunc`, `zfs_free_range`,
//! module/os/linux/zfs/zfs_znode_os.c).
//!
//! A write of many blocks is split into transactions of [`WRITE_BYTES_MAX`]; a crash may leave the
//! first ones. Readers see each write whole or not at all: both lock ranges.

use bytes::Bytes;
use dataset::DirtyEstimate;
use format::{LogSetAttributes, ObjectId};
use object::ObjectError;
use zil::LogRecord;
use zio::Tx;

use crate::attributes::without_set_id;
use crate::create::acl_to_store;
use crate::error::{FsError, Result};
use crate::filesystem::Filesystem;
use crate::log;
use crate::namespace::touched;
use crate::node::{Locked, Node};
use crate::types::{Allocate, Caller, FileKind, SeekTo, SetAttributes};
use crate::znode::{Attribute, Znode, attr, pflags};

/// Most bytes written in one transaction.
pub(crate) const WRITE_BYTES_MAX: u64 = 4 << 20;
/// Largest file (`MAXOFFSET_T`).
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;
const DAY_SECONDS: i64 = 24 * 60 * 60;

/// Where a write goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    At(u64),
    End,
}

/// The content's attributes that a change of content changes.
const CONTENT_ATTRIBUTES: [object::SaAttribute; 4] =
    [attr::SIZE, attr::MTIME, attr::CTIME, attr::FLAGS];

/// The block size for a file that is to hold `end` bytes (`zfs_write`): only files of one block
/// can change theirs.
pub(crate) fn grown_block_bytes(block: u64, size: u64, end: u64, record_bytes: u64) -> u64 {
    if size > block {
        return block;
    }
    let limit = if block > record_bytes && !block.is_power_of_two() {
        block.next_power_of_two()
    } else {
        record_bytes
    };
    let wanted = end.div_ceil(512).saturating_mul(512);
    limit.min(wanted).max(block)
}

/// Gives a file of one block a bigger one, if that is possible: a file that had more blocks keeps
/// their size, at least until those are freed on disk (`zfs_grow_blocksize`).
pub(crate) async fn grow_block(node: &Node, tx: &Tx, block_bytes: u64) -> Result<()> {
    match node.object.set_block_size(tx, block_bytes as u32, 0).await {
        Err(ObjectError::BlockSizeFixed { .. }) => Ok(()),
        done => Ok(done?),
    }
}

/// Whether the object holds an extended attribute. What is logged of it goes into the log with the
/// next commit of any object: who syncs a file means its attributes too.
pub(crate) fn is_of_xattr(znode: &Znode) -> bool {
    znode.flags & pflags::XATTR != 0
}

impl Filesystem {
    fn regular<'a>(&self, node: &'a Node) -> Result<&'a Node> {
        match node.znode().kind() {
            FileKind::Regular => Ok(node),
            FileKind::Directory => Err(FsError::IsDirectory { ino: node.ino }),
            _ => Err(FsError::Invalid {
                what: "only regular files have content; use another file",
            }),
        }
    }

    /// A read without waiting, if all of it is in memory.
    pub fn try_read(&self, ino: u64, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        let _entered = self.try_enter()?;
        let node = self.nodes.get(ino)?;
        let end = offset_bytes.checked_add(length_bytes as u64)?;
        let _range = node.ranges.try_lock(offset_bytes, end, false)?;
        let znode = node.znode();
        if znode.kind() != FileKind::Regular {
            return None;
        }
        if offset_bytes >= znode.size {
            return Some(Vec::new());
        }
        let length = (znode.size.min(end) - offset_bytes) as usize;
        let data = node.object.try_read(offset_bytes, length)?;
        self.accessed(&node);
        Some(data)
    }

    /// Reads; less than asked for at the end of the file.
    pub async fn read(
        &self,
        ino: u64,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> Result<Vec<Bytes>> {
        let _entered = self.enter().await?;
        let node = self.node(ino).await?;
        self.regular(&node)?;
        let data = self.read_node(&node, offset_bytes, length_bytes).await?;
        self.accessed(&node);
        Ok(data)
    }

    /// Reads as [`Filesystem::read`] does, but the access time stays (`O_NOATIME`).
    pub async fn peek(
        &self,
        ino: u64,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> Result<Vec<Bytes>> {
        let _entered = self.enter().await?;
        let node = self.node(ino).await?;
        self.regular(&node)?;
        self.read_node(&node, offset_bytes, length_bytes).await
    }

    pub(crate) async fn read_node(
        &self,
        node: &Node,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> Result<Vec<Bytes>> {
        let end = offset_bytes.saturating_add(length_bytes as u64);
        let _range = node.ranges.lock(offset_bytes, end, false).await;
        let size = node.znode().size;
        if offset_bytes >= size {
            return Ok(Vec::new());
        }
        let length = (size.min(end) - offset_bytes) as usize;
        Ok(node.object.read(offset_bytes, length).await?)
    }

    /// Moves the access time on, as `atime` and `relatime` say. It is stored with the next change
    /// of the file, or by [`Filesystem::store_access_times`].
    pub(crate) fn accessed(&self, node: &Node) {
        let settings = self.settings();
        if !settings.atime || settings.read_only {
            return;
        }
        let now = self.now();
        {
            let znode = &node.state.read().znode;
            let fresh = znode.atime > znode.mtime
                && znode.atime > znode.ctime
                && now.seconds - znode.atime.seconds < DAY_SECONDS;
            if settings.relatime && fresh {
                return;
            }
        }
        let mut state = node.state.write();
        state.znode.atime = now;
        state.atime_dirty = true;
    }

    /// Stores access times that reads have moved on. What cannot be stored stays for later.
    pub async fn store_access_times(&self) {
        for node in self.nodes.with_dirty_atime() {
            if let Err(error) = self.store_access_time(node.ino).await {
                tracing::debug!(ino = node.ino, %error, "the access time could not be stored");
            }
        }
    }

    /// Stores a file's access time if reads have moved it on (when the file is closed).
    pub async fn store_access_time(&self, ino: u64) -> Result<()> {
        let Some(node) = self.nodes.get(ino) else {
            return Ok(());
        };
        if !node.state.read().atime_dirty {
            return Ok(());
        }
        let _entered = self.enter_to_change().await?;
        let node = node.lock().await?;
        let tx = self.assign(DirtyEstimate::metadata()).await?;
        self.store(&tx, &node, node.znode(), &[attr::ATIME], [])
            .await
    }

    /// Writes all of `data`; with `sync` it is on stable storage when this returns.
    pub async fn write(
        &self,
        ino: u64,
        offset_bytes: u64,
        data: Bytes,
        sync: bool,
        caller: Caller,
    ) -> Result<()> {
        self.write_at(ino, Place::At(offset_bytes), data, sync, caller)
            .await
            .map(|_| ())
    }

    /// Writes at the end of the file; where it went.
    pub async fn append(&self, ino: u64, data: Bytes, sync: bool, caller: Caller) -> Result<u64> {
        self.write_at(ino, Place::End, data, sync, caller).await
    }

    async fn write_at(
        &self,
        ino: u64,
        place: Place,
        data: Bytes,
        sync: bool,
        caller: Caller,
    ) -> Result<u64> {
        let _entered = self.enter_to_change().await?;
        let node = self.node(ino).await?;
        self.regular(&node)?;
        let length = data.len() as u64;
        let offset = self.write_node(&node, place, data, caller, None).await?;
        if sync && length > 0 {
            self.commit(ino).await?;
        } else {
            self.finish(ino).await?;
        }
        Ok(offset)
    }

    /// Writes; `new_size` is the size that the file has afterwards, where that is not what the
    /// write makes it.
    pub(crate) async fn write_node(
        &self,
        node: &std::sync::Arc<Node>,
        place: Place,
        data: Bytes,
        caller: Caller,
        new_size: Option<u64>,
    ) -> Result<u64> {
        // Whether the block size must change shows under the lock only; a file of one block is
        // locked whole.
        let before = node.znode();
        let start = match place {
            Place::At(offset) => offset,
            Place::End => before.size,
        };
        let end = start
            .checked_add(data.len() as u64)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(FsError::FileTooLarge {
                limit_bytes: FILE_BYTES_MAX,
            })?;
        if data.is_empty() {
            return Ok(start);
        }
        let block = u64::from(node.object.info().data_block_bytes);
        let whole = matches!(place, Place::End) || before.size <= block && end > block;
        let (range_start, range_end) = if whole { (0, u64::MAX) } else { (start, end) };
        let _range = node.ranges.lock(range_start, range_end, true).await;
        let start = match place {
            Place::At(offset) => offset,
            Place::End => node.znode().size,
        };
        let node = node.lock().await?;
        if self.is_kept_by(&node, pflags::IMMUTABLE)
            || self.is_kept_by(&node, pflags::APPENDONLY) && start < node.znode().size
        {
            return Err(FsError::NotPermitted {
                ino: node.ino,
                what: "it is immutable or append-only; change that with chattr",
            });
        }
        let total_end = start + data.len() as u64;
        let mut offset = start;
        let mut rest = data;
        while !rest.is_empty() {
            let block = u64::from(node.object.info().data_block_bytes);
            let size = node.znode().size;
            // Whole blocks where it can be, so that they need not be put together.
            let phase = offset % block.max(512);
            let limit = (WRITE_BYTES_MAX - phase % WRITE_BYTES_MAX).max(512);
            let chunk = rest.split_to((rest.len() as u64).min(limit) as usize);
            let chunk_end = offset + chunk.len() as u64;
            self.check_quota(&node.znode()).await?;
            let record_bytes = u64::from(self.settings().record_bytes);
            let wanted = grown_block_bytes(block, size, size.max(total_end), record_bytes);
            let estimate = DirtyEstimate::write(chunk.len() as u64 + 2 * wanted.min(1 << 24))
                .in_blocks_of(wanted.min(1 << 24) as u32);
            self.fetch_edges(&node, offset, chunk_end, block).await?;
            if wanted > block && size > 0 {
                node.object.read(0, size.min(block) as usize).await?;
            }
            node.object
                .prepare_write(offset, chunk.len() as u64)
                .await?;
            let outlives = self.outlives_crash(&node).await?;
            let tx = self.assign(estimate).await?;
            if wanted > block && whole {
                grow_block(&node, &tx, wanted).await?;
            }
            let length = chunk.len() as u64;
            node.object.write(&tx, offset, chunk).await?;
            let size = new_size.unwrap_or_else(|| size.max(chunk_end));
            let changed = self.store_written(&tx, &node, size, caller).await?;
            if outlives {
                let sync = is_of_xattr(&changed);
                let written = LogRecord::write(ObjectId::new(node.ino), sync, offset, length);
                if size < chunk_end {
                    let cut = log::truncated(node.ino, sync, size, 0);
                    self.record_together(&tx, [written, cut]);
                } else {
                    self.record(&tx, written);
                }
            }
            offset = chunk_end;
        }
        Ok(start)
    }

    /// Brings blocks that will be written in part into memory, so that the txg is not held up by
    /// the disk.
    async fn fetch_edges(&self, node: &Node, start: u64, end: u64, block: u64) -> Result<()> {
        let size = node.znode().size;
        let block = block.max(512);
        for edge in [start, end] {
            let first = edge - edge % block;
            if edge % block != 0 && first < size {
                let length = block.min(size - first) as usize;
                node.object.read(first, length).await?;
            }
        }
        Ok(())
    }

    fn content_changed(&self, znode: Znode) -> Znode {
        let now = self.now();
        let archive = self.uses_fuids();
        let mut changed = touched(znode, now, archive);
        changed.mtime = now;
        if archive {
            changed.flags |= pflags::AV_MODIFIED;
        }
        changed
    }

    /// Stores the size and times of a file whose content changed in `tx`; one that somebody who is
    /// not root wrote loses its set-id bits, which is logged.
    pub(crate) async fn store_written(
        &self,
        tx: &Tx,
        node: &Locked,
        size: u64,
        caller: Caller,
    ) -> Result<Znode> {
        let mut changed = self.content_changed(node.znode());
        changed.size = size;
        let mut list = CONTENT_ATTRIBUTES.to_vec();
        let mode = without_set_id(&changed, caller);
        if caller.uid != 0 && mode != changed.mode {
            changed.mode = mode;
            list.push(attr::MODE);
            let record = log::attributes_set(node.ino, LogSetAttributes::MODE, &changed, None);
            self.record(tx, record);
        }
        self.store(tx, node, changed, &list, []).await?;
        Ok(changed)
    }

    pub(crate) async fn check_quota(&self, znode: &Znode) -> Result<()> {
        let project = znode.project.unwrap_or(0);
        self.quotas
            .check_space(self, znode.uid, znode.gid, project)
            .await
    }

    /// Sets the size: cuts, or grows with a hole. The range must be locked whole by the caller;
    /// attributes of size and times are stored, but nothing is logged.
    pub(crate) async fn resize(&self, node: &Locked, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge {
                limit_bytes: FILE_BYTES_MAX,
            });
        }
        let old = node.znode().size;
        let block = u64::from(node.object.info().data_block_bytes);
        if size > old {
            let record_bytes = u64::from(self.settings().record_bytes);
            let wanted = grown_block_bytes(block, old, size, record_bytes);
            if wanted > block && old > 0 {
                node.object.read(0, old.min(block) as usize).await?;
            }
            let tx = self.assign(DirtyEstimate::write(wanted)).await?;
            if wanted > block {
                grow_block(node, &tx, wanted).await?;
            }
            let changed = Znode {
                size,
                ..node.znode()
            };
            return self.store(&tx, node, changed, &[attr::SIZE], []).await;
        }
        if size == old {
            return Ok(());
        }
        // From the end, in parts: at each crash point the file is just not yet as short.
        let mut end = old;
        loop {
            let start = node.object.last_part(size, end).await?;
            self.fetch_edges(node, start, start, block).await?;
            node.object.prepare_free(start, u64::MAX).await?;
            let tx = self.assign(DirtyEstimate::free()).await?;
            node.object.free_range(&tx, start, u64::MAX).await?;
            let mut changed = Znode {
                size: start,
                ..node.znode()
            };
            if start == 0 {
                changed.flags &= !pflags::SPARSE;
            }
            self.store(&tx, node, changed, &[attr::SIZE, attr::FLAGS], [])
                .await?;
            if start == size {
                return Ok(());
            }
            self.check_not_closing()?;
            end = start;
        }
    }

    /// Frees `offset..offset + length` within the file (`zfs_free_range`).
    async fn punch(&self, node: &Locked, offset: u64, length: u64) -> Result<()> {
        let end = offset.saturating_add(length).min(node.znode().size);
        let block = u64::from(node.object.info().data_block_bytes);
        let mut start = offset;
        while start < end {
            self.check_not_closing()?;
            let part_end = node.object.first_part(start, end).await?;
            self.fetch_edges(node, start, part_end, block).await?;
            // To the end of the file means to the end of the object: its last block goes too.
            let to_end = part_end == node.znode().size;
            let length = if to_end { u64::MAX } else { part_end - start };
            node.object.prepare_free(start, length).await?;
            let tx = self.assign(DirtyEstimate::free()).await?;
            node.object.free_range(&tx, start, length).await?;
            self.store(&tx, node, node.znode(), &[attr::SIZE], [])
                .await?;
            start = part_end;
        }
        Ok(())
    }

    /// Frees a range, with times and a log record (`zfs_freesp` with `log`). A length of 0 cuts the
    /// file off at the offset.
    pub(crate) async fn free_space(
        &self,
        node: &std::sync::Arc<Node>,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let _range = node.ranges.lock(0, u64::MAX, true).await;
        let node = node.lock().await?;
        let kept = pflags::IMMUTABLE | pflags::READONLY | pflags::APPENDONLY;
        if self.is_kept_by(&node, kept) {
            return Err(FsError::NotPermitted {
                ino: node.ino,
                what: "it is immutable or append-only; change that with chattr",
            });
        }
        let size = node.znode().size;
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(FsError::FileTooLarge {
                limit_bytes: FILE_BYTES_MAX,
            })?;
        if offset > size {
            self.resize(&node, end).await?;
        } else if length == 0 {
            self.resize(&node, offset).await?;
        } else {
            self.punch(&node, offset, length).await?;
            if end > size {
                self.resize(&node, end).await?;
            }
        }
        let outlives = self.outlives_crash(&node).await?;
        // It is done: for want of space its record must not be refused.
        let tx = self.assign(DirtyEstimate::free()).await?;
        let changed = self.content_changed(node.znode());
        self.store(
            &tx,
            &node,
            changed,
            &[attr::MTIME, attr::CTIME, attr::FLAGS],
            [],
        )
        .await?;
        if outlives {
            let sync = is_of_xattr(&changed);
            self.record(&tx, log::truncated(node.ino, sync, offset, length));
        }
        Ok(())
    }

    /// Reserves, punches or zeroes a range (`zpl_fallocate_common`,
    /// module/os/linux/zfs/zpl_file.c): in a copy-on-write filesystem nothing can be reserved, so
    /// reserving checks that there is room and makes the file longer.
    pub async fn allocate(
        &self,
        ino: u64,
        how: Allocate,
        offset_bytes: u64,
        length_bytes: u64,
        caller: Caller,
    ) -> Result<()> {
        let _entered = self.enter_to_change().await?;
        let node = self.node(ino).await?;
        self.regular(&node)?;
        if length_bytes == 0 {
            return Err(FsError::Invalid {
                what: "a range has at least one byte",
            });
        }
        let end = offset_bytes
            .checked_add(length_bytes)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(FsError::FileTooLarge {
                limit_bytes: FILE_BYTES_MAX,
            })?;
        self.drop_set_id(&node, caller).await?;
        let size = node.znode().size;
        match how {
            Allocate::PunchHole | Allocate::ZeroRange { keep_size: true } => {
                // The size stays: a hole behind the end changes nothing.
                if offset_bytes < size {
                    let length = end.min(size) - offset_bytes;
                    self.free_space(&node, offset_bytes, length).await?;
                }
            }
            Allocate::ZeroRange { keep_size: false } => {
                self.free_space(&node, offset_bytes, length_bytes).await?;
            }
            Allocate::Reserve { keep_size } => {
                // `zfs_statvfs` with 10% to spare (`zfs_fallocate_reserve_percent`).
                let wanted = length_bytes.saturating_add(length_bytes / 10);
                if self.dataset()?.space().1 < wanted {
                    return Err(FsError::NoSpace);
                }
                if !keep_size && end > size {
                    self.free_space(&node, size, end - size).await?;
                }
            }
        }
        self.finish(ino).await
    }

    /// Takes set-id bits away before somebody who is not root changes the content otherwise than by
    /// writing.
    async fn drop_set_id(&self, node: &std::sync::Arc<Node>, caller: Caller) -> Result<()> {
        let znode = node.znode();
        if caller.uid == 0 || without_set_id(&znode, caller) == znode.mode {
            return Ok(());
        }
        let set = SetAttributes {
            without_set_id: true,
            ..SetAttributes::default()
        };
        self.set_locked(&node.lock().await?, &set, caller).await
    }

    /// Copies a range between files; how many bytes were copied (less at the end of the source).
    pub async fn copy_range(
        &self,
        from: u64,
        from_offset_bytes: u64,
        to: u64,
        to_offset_bytes: u64,
        length_bytes: u64,
        caller: Caller,
    ) -> Result<u64> {
        let (from_bytes, to_bytes) = (from_offset_bytes, to_offset_bytes);
        self.copy_range_of(self, from, from_bytes, to, to_bytes, length_bytes, caller)
            .await
    }

    /// [`Self::copy_range`] from a file of `other`, which is this filesystem or a snapshot of it:
    /// blocks of any other are not to be shared.
    pub async fn copy_range_of(
        &self,
        other: &Filesystem,
        from: u64,
        from_offset_bytes: u64,
        to: u64,
        to_offset_bytes: u64,
        length_bytes: u64,
        caller: Caller,
    ) -> Result<u64> {
        let _entered = self.enter_to_change().await?;
        let is_own = std::ptr::eq(self, other);
        let _reading = match is_own {
            true => None,
            false => Some(other.enter().await?),
        };
        let source = other.node(from).await?;
        let target = self.node(to).await?;
        self.regular(&source)?;
        self.regular(&target)?;
        if is_own
            && from == to
            && from_offset_bytes < to_offset_bytes.saturating_add(length_bytes)
            && to_offset_bytes < from_offset_bytes.saturating_add(length_bytes)
        {
            return Err(FsError::Invalid {
                what: "the ranges overlap; copy without overlap",
            });
        }
        let mut done = 0;
        while done < length_bytes {
            let length = (length_bytes - done).min(WRITE_BYTES_MAX) as usize;
            let offset = from_offset_bytes
                .checked_add(done)
                .ok_or(FsError::Invalid {
                    what: "the offset is beyond any file's end",
                })?;
            let shared = match to_offset_bytes.checked_add(done) {
                Some(to) => {
                    self.share_range(&source, offset, &target, to, length_bytes - done, caller)
                        .await?
                }
                None => 0,
            };
            if shared > 0 {
                done += shared;
                continue;
            }
            let data = crate::filesystem::join(self.read_node(&source, offset, length).await?);
            if data.is_empty() {
                break;
            }
            let copied = data.len() as u64;
            let place = Place::At(to_offset_bytes.checked_add(done).ok_or(
                FsError::FileTooLarge {
                    limit_bytes: FILE_BYTES_MAX,
                },
            )?);
            self.write_node(&target, place, data, caller, None).await?;
            done += copied;
        }
        other.accessed(&source);
        self.finish(to).await?;
        Ok(done)
    }

    /// Finds data or holes; the end of the file counts as a hole (`zfs_holey`).
    pub async fn seek(&self, ino: u64, offset_bytes: u64, to: SeekTo) -> Result<u64> {
        let _entered = self.enter().await?;
        let node = self.node(ino).await?;
        self.regular(&node)?;
        let size = node.znode().size;
        let nothing = FsError::NoSuchPlace { offset_bytes };
        if offset_bytes >= size {
            return Err(nothing);
        }
        let _range = node.ranges.lock(0, u64::MAX, false).await;
        match to {
            SeekTo::Data => match node.object.next_data(offset_bytes).await? {
                Some(found) if found < size => Ok(found),
                _ => Err(nothing),
            },
            SeekTo::Hole => Ok(node.object.next_hole(offset_bytes).await?.min(size)),
        }
    }

    /// Changes of mode that a list of access must follow.
    pub(crate) fn mode_to_store(
        &self,
        znode: &mut Znode,
        old: Option<&crate::acl::Acl>,
    ) -> Vec<Attribute> {
        use crate::acl::Acl;
        /// `aclmode` values (`ZFS_ACL_*`): discard 0, groupmask 2, passthrough 3.
        const GROUPMASK: u64 = 2;
        let is_directory = znode.is_directory();
        let mode = znode.mode & 0o7777;
        let settings = self.settings();
        let acl = match old {
            Some(acl) if settings.aclmode != 0 => {
                acl.with_mode(mode, is_directory, true, settings.aclmode == GROUPMASK)
            }
            _ => Acl::trivial(mode, is_directory),
        };
        znode.flags &= !(pflags::ACL_TRIVIAL
            | pflags::INHERIT_ACE
            | pflags::ACL_OBJ_ACE
            | pflags::NO_EXECS_DENIED);
        if acl.is_trivial() {
            znode.flags |= pflags::ACL_TRIVIAL;
        }
        if acl.has_inheritable() {
            znode.flags |= pflags::INHERIT_ACE;
        }
        if acl.execution_is_free() {
            znode.flags |= pflags::NO_EXECS_DENIED;
        }
        acl_to_store(znode, &acl, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::grown_block_bytes;

    #[test]
    fn one_block_grows_until_recordsize_and_then_stays() {
        const K: u64 = 1024;
        assert_eq!(grown_block_bytes(512, 0, 1, 128 * K), 512);
        assert_eq!(grown_block_bytes(512, 0, 513, 128 * K), 1024);
        assert_eq!(grown_block_bytes(512, 512, 100_000, 128 * K), 100_352);
        assert_eq!(grown_block_bytes(512, 100, 10 << 20, 128 * K), 128 * K);
        // Two blocks: never again.
        assert_eq!(
            grown_block_bytes(128 * K, 200 * K, 10 << 20, 1 << 20),
            128 * K
        );
        // recordsize was made smaller: only to the next power of two.
        assert_eq!(
            grown_block_bytes(100_352, 100_000, 10 << 20, 4 * K),
            128 * K
        );
        assert_eq!(
            grown_block_bytes(128 * K, 128 * K, 10 << 20, 4 * K),
            128 * K
        );
        // One full block of recordsize, which then was made bigger.
        assert_eq!(
            grown_block_bytes(128 * K, 128 * K, 300 * K, 1 << 20),
            300 * K
        );
    }
}
