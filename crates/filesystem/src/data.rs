//! Operations on the content of files: reading, writing, reserving, copying, finding holes.

use std::sync::Arc;

use bytes::Bytes;

use crate::access_times::{accessed, store_access_times};
use crate::attributes::set_locked;
use crate::content::{
    FILE_BYTES_MAX, Place, WRITE_BYTES_MAX, free_space, join, read_node, regular, write_node,
};
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::filesystem::Filesystem;
use crate::node::Node;
use crate::quota::Quotas;
use crate::share::share_range;
use crate::types::{Allocate, Caller, FileKind, SeekTo, SetAttributes, Via};
use crate::znode::without_set_id;

impl Filesystem {
    /// A read without waiting, if all of it is in memory.
    pub fn try_read(&self, ino: u64, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        self.try_read_via(ino, offset_bytes, length_bytes, Via::Cache)
    }

    /// [`Self::try_read`] of who says whether the cache is to be left out: what is there is read
    /// from there in any case, but nothing is read ahead then.
    pub fn try_read_via(
        &self,
        ino: u64,
        offset_bytes: u64,
        length_bytes: usize,
        via: Via,
    ) -> Option<Vec<Bytes>> {
        let _entered = self.opening.try_enter()?;
        let node = self.files.nodes.get(ino)?;
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
        let past_cache = self
            .opening
            .leaves_cache_out(via, offset_bytes, length_bytes as u64);
        let data = match past_cache {
            true => node.object.peek(offset_bytes, length)?,
            false => node.object.try_read(offset_bytes, length)?,
        };
        accessed(&self.opening, &node);
        Some(data)
    }

    /// Reads; less than asked for at the end of the file.
    pub fn read(
        &self,
        ino: u64,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> impl Future<Output = Result<Vec<Bytes>>> {
        self.read_via(ino, offset_bytes, length_bytes, Via::Cache, true)
    }

    /// Reads as [`Filesystem::read`] does, but the access time stays (`O_NOATIME`).
    pub fn peek(
        &self,
        ino: u64,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> impl Future<Output = Result<Vec<Bytes>>> {
        self.read_via(ino, offset_bytes, length_bytes, Via::Cache, false)
    }

    /// [`Self::read`] of who says whether the cache is to be left out, and whether the access time
    /// moves.
    pub async fn read_via(
        &self,
        ino: u64,
        offset_bytes: u64,
        length_bytes: usize,
        via: Via,
        moves_time: bool,
    ) -> Result<Vec<Bytes>> {
        let _entered = self.opening.enter().await?;
        let node = self.files.node(ino).await?;
        regular(&node)?;
        let past_cache = self
            .opening
            .leaves_cache_out(via, offset_bytes, length_bytes as u64);
        let data = read_node(&node, offset_bytes, length_bytes, past_cache).await?;
        if moves_time {
            accessed(&self.opening, &node);
        }
        Ok(data)
    }

    /// Stores access times that reads have moved on. What cannot be stored stays for later.
    pub async fn store_access_times(&self) {
        store_access_times(&self.files).await;
    }

    /// Writes all of `data`; with `sync` it is on stable storage when this returns.
    pub fn write(
        &self,
        ino: u64,
        offset_bytes: u64,
        data: Bytes,
        sync: bool,
        caller: Caller,
    ) -> impl Future<Output = Result<()>> {
        self.write_via(ino, offset_bytes, data, Via::Cache, sync, caller)
    }

    /// [`Self::write`] of who says whether the cache is to be left out.
    pub async fn write_via(
        &self,
        ino: u64,
        offset_bytes: u64,
        data: Bytes,
        via: Via,
        sync: bool,
        caller: Caller,
    ) -> Result<()> {
        self.write_at(ino, Place::At(offset_bytes), data, via, sync, caller)
            .await
            .map(|_| ())
    }

    /// Writes at the end of the file; where it went.
    pub async fn append(&self, ino: u64, data: Bytes, sync: bool, caller: Caller) -> Result<u64> {
        self.write_at(ino, Place::End, data, Via::Cache, sync, caller)
            .await
    }

    async fn write_at(
        &self,
        ino: u64,
        place: Place,
        data: Bytes,
        via: Via,
        sync: bool,
        caller: Caller,
    ) -> Result<u64> {
        let _entered = self.opening.enter_to_change().await?;
        let node = self.files.node(ino).await?;
        regular(&node)?;
        let length = data.len() as u64;
        if length > 0 {
            self.xattrs.drop_capability(&node).await?;
        }
        let (files, quotas) = (&self.files, &self.quotas);
        let offset = write_node(files, quotas, &node, place, data, via, caller, None).await?;
        if sync && length > 0 {
            self.files.commit(ino).await?;
        } else {
            self.files.finish(ino).await?;
        }
        Ok(offset)
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
        let _entered = self.opening.enter_to_change().await?;
        let node = self.files.node(ino).await?;
        regular(&node)?;
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
        self.xattrs.drop_capability(&node).await?;
        drop_set_id(&self.files, &self.quotas, &node, caller).await?;
        let size = node.znode().size;
        match how {
            Allocate::PunchHole | Allocate::ZeroRange { keep_size: true } => {
                // The size stays: a hole behind the end changes nothing.
                if offset_bytes < size {
                    let length = end.min(size) - offset_bytes;
                    free_space(&self.files, &node, offset_bytes, length).await?;
                }
            }
            Allocate::ZeroRange { keep_size: false } => {
                free_space(&self.files, &node, offset_bytes, length_bytes).await?;
            }
            Allocate::Reserve { keep_size } => {
                // `zfs_statvfs` with 10% to spare (`zfs_fallocate_reserve_percent`).
                let wanted = length_bytes.saturating_add(length_bytes / 10);
                if self.opening.dataset()?.space().1 < wanted {
                    return Err(FsError::NoSpace);
                }
                if !keep_size && end > size {
                    free_space(&self.files, &node, size, end - size).await?;
                }
            }
        }
        self.files.finish(ino).await
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
        let _entered = self.opening.enter_to_change().await?;
        let is_own = std::ptr::eq(self, other);
        let _reading = match is_own {
            true => None,
            false => Some(other.opening.enter().await?),
        };
        let source = other.files.node(from).await?;
        let target = self.files.node(to).await?;
        regular(&source)?;
        regular(&target)?;
        if is_own
            && from == to
            && from_offset_bytes < to_offset_bytes.saturating_add(length_bytes)
            && to_offset_bytes < from_offset_bytes.saturating_add(length_bytes)
        {
            return Err(FsError::Invalid {
                what: "the ranges overlap; copy without overlap",
            });
        }
        if length_bytes > 0 {
            self.xattrs.drop_capability(&target).await?;
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
                    share_range(
                        &self.files,
                        &self.quotas,
                        &source,
                        offset,
                        &target,
                        to,
                        length_bytes - done,
                        caller,
                    )
                    .await?
                }
                None => 0,
            };
            if shared > 0 {
                done += shared;
                continue;
            }
            let past_cache = other
                .opening
                .leaves_cache_out(Via::Cache, offset, length as u64);
            let data = join(read_node(&source, offset, length, past_cache).await?);
            if data.is_empty() {
                break;
            }
            let copied = data.len() as u64;
            let place = Place::At(to_offset_bytes.checked_add(done).ok_or(
                FsError::FileTooLarge {
                    limit_bytes: FILE_BYTES_MAX,
                },
            )?);
            write_node(
                &self.files,
                &self.quotas,
                &target,
                place,
                data,
                Via::Cache,
                caller,
                None,
            )
            .await?;
            done += copied;
        }
        accessed(&other.opening, &source);
        self.files.finish(to).await?;
        Ok(done)
    }

    /// Finds data or holes; the end of the file counts as a hole (`zfs_holey`).
    pub async fn seek(&self, ino: u64, offset_bytes: u64, to: SeekTo) -> Result<u64> {
        let _entered = self.opening.enter().await?;
        let node = self.files.node(ino).await?;
        regular(&node)?;
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
}

/// Takes set-id bits away before somebody who is not root changes the content otherwise than by
/// writing.
async fn drop_set_id(
    files: &Files,
    quotas: &Quotas,
    node: &Arc<Node>,
    caller: Caller,
) -> Result<()> {
    let znode = node.znode();
    if caller.uid == 0 || without_set_id(&znode, caller) == znode.mode {
        return Ok(());
    }
    let set = SetAttributes {
        without_set_id: true,
        ..SetAttributes::default()
    };
    set_locked(files, quotas, &node.lock().await?, &set, caller).await
}
