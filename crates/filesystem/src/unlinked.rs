//! Files without a name: the delete queue.
//!
//! A file that loses its last name is put into the queue (an entry named by its number in
//! hexadecimal, `zfs_unlinked_add`) in the same transaction, and freed when nobody has it open any
//! more (`zfs_rmnode`, module/os/linux/zfs/zfs_dir.c): first its content, in parts, then object and
//! queue entry in one transaction. After a crash at any point the queue still has it, and opening
//! the filesystem goes on; so closing need not wait for the rest of it. A directory of extended
//! attributes goes the same way after its owner.
//!
//! # Who frees
//! Files are often removed one after the other, and freeing one takes about as long as removing its
//! name. So that the second does not wait for the first, numbers are listed, and one task frees
//! what has gathered in a millisecond ([`Reaps`]): it is woken once for many, on another CPU. Small
//! files, whose dnodes lead to all of their blocks, are freed [some together](FREED_TOGETHER_MAX):
//! nothing of them has to be read, and they join one transaction. A crash leaves all of these in
//! the queue, or none. Long files get a task each.
//!
//! # The queue
//! Nobody locks it but the ZAP itself, for each of its operations: an entry is changed by who has
//! locked its file, and whoever changes the queue has joined a txg, so that no two changes under
//! way are of different txgs.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dataset::DirtyEstimate;
use object::{Zap, ZapCursor, free_object};
use parking_lot::Mutex;
use zio::Tx;

use crate::error::{FsError, Result};
use crate::files::Files;
use crate::locking::lock_after;
use crate::node::{Locked, Node};
use crate::rank::Rank;
use crate::stored_acl::external_list;
use crate::types::FileKind;
use crate::znode::{Znode, attr, parse_dirent, pflags};

/// Entries of the queue looked at together.
const DRAIN_BATCH: usize = 64;
/// How long unlinked files gather before they are freed.
const GATHER: Duration = Duration::from_millis(1);
/// A file of more bytes is not kept for others: freeing it may take many transactions.
const GATHERED_BYTES_MAX: u64 = 64 << 20;
/// Small files that are freed in one transaction.
const FREED_TOGETHER_MAX: usize = 32;

/// Unlinked files that are about to be freed.
#[derive(Debug, Default)]
struct Reaps {
    listed: VecDeque<u64>,
    /// A task will come for what is listed.
    is_awaited: bool,
}

/// Files without a name.
pub struct Unlinked {
    me: Weak<Self>,
    files: Arc<Files>,
    /// The delete queue.
    queue: Option<Zap>,
    reaps: Mutex<Reaps>,
    /// Held by who frees one of them.
    reaping: tokio::sync::Mutex<()>,
}

impl Unlinked {
    pub(crate) fn new(files: &Arc<Files>, queue: Option<Zap>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            files: Arc::clone(files),
            queue,
            reaps: Mutex::default(),
            reaping: tokio::sync::Mutex::default(),
        })
    }

    /// How many files without a name are not freed yet, as they are open or were many.
    ///
    /// # Errors
    /// Of reading.
    pub async fn count(&self) -> Result<u64> {
        match &self.queue {
            Some(queue) => Ok(queue.count().await?),
            None => Ok(0),
        }
    }

    /// Keeps a file's content, and its number from other files, for a request: until it is given
    /// back with [`Self::let_go`].
    pub fn hold(&self, ino: u64) {
        self.files.nodes.hold(ino);
    }

    /// Takes back [`Self::hold`]; the last user of an unlinked file frees it, in the background.
    pub fn let_go(&self, ino: u64) {
        if self.files.nodes.let_go(ino) {
            self.spawn_reap(ino);
        }
    }

    /// Puts a file, which the caller has locked, into the queue.
    pub(crate) async fn enqueue(&self, tx: &Tx, ino: u64) -> Result<()> {
        let Some(queue) = &self.queue else {
            return Err(FsError::Corrupt {
                ino: 1,
                what: "the master node has no DELETE_QUEUE",
            });
        };
        queue.add_int(tx, ino, ino).await?;
        self.files.nodes.note_unlinked(ino);
        Ok(())
    }

    /// Frees an unlinked file in the background, some time soon. While a log is replayed nothing is
    /// freed unless the log needs the number again: what is in the queue is freed after it.
    pub(crate) fn spawn_reap(&self, ino: u64) {
        if self.files.opening.replaying() {
            return;
        }
        let is_long = self
            .files
            .nodes
            .get(ino)
            .is_some_and(|node| node.state.read().znode.size > GATHERED_BYTES_MAX);
        if is_long {
            return self.spawn(|me| async move { me.free(ino).await });
        }
        let is_awaited = {
            let mut reaps = self.reaps.lock();
            reaps.listed.push_back(ino);
            std::mem::replace(&mut reaps.is_awaited, true)
        };
        if !is_awaited {
            self.spawn(|me| async move {
                me.files.opening.world.clock.sleep(GATHER).await;
                me.free_listed().await;
            });
        }
    }

    /// Frees what is listed, until nothing is. Two who do so take turns, so that nothing is under
    /// way when the first returns.
    pub(crate) async fn free_listed(&self) {
        loop {
            let _turn = self.reaping.lock().await;
            let next: Vec<u64> = {
                let mut reaps = self.reaps.lock();
                let count = reaps.listed.len().min(FREED_TOGETHER_MAX);
                reaps.is_awaited = count > 0;
                reaps.listed.drain(..count).collect()
            };
            if next.is_empty() {
                return;
            }
            for ino in self.free_small(next).await {
                self.free(ino).await;
            }
        }
    }

    /// Frees those of some unlinked files that are small and in memory, together. Returns the
    /// others, and those that could not be freed so.
    async fn free_small(&self, mut inos: Vec<u64>) -> Vec<u64> {
        // In the order of locks, and each once.
        inos.sort_unstable();
        inos.dedup();
        let mut left = Vec::new();
        let mut small = Vec::with_capacity(inos.len());
        for ino in inos {
            match self.files.nodes.get(ino) {
                Some(node) if self.is_freed_at_once(&node) => small.push(node),
                _ => left.push(ino),
            }
        }
        match self.free_together(&small).await {
            Ok(others) => left.extend(others),
            // Each by itself may yet be freed, or says why not.
            Err(_) => left.extend(small.iter().map(|node| node.ino)),
        }
        left
    }

    /// Whether an unlinked file can be freed as it is: nobody uses it, its dnode leads to all of
    /// its blocks, and it has nothing in other objects.
    fn is_freed_at_once(&self, node: &Node) -> bool {
        let znode = node.znode();
        let is_alone = node.place().0 == Rank::File && znode.xattr == 0 && !znode.is_old;
        znode.links == 0
            && is_alone
            && node.object.info().levels <= 1
            && !self.files.nodes.is_retained(node.ino)
    }

    /// Frees files of which [`Self::is_freed_at_once`] is true, by rising numbers, in one
    /// transaction. Returns those of which it is not any more, or that are being read or written.
    ///
    /// # Errors
    /// Of joining the txg: then none is freed.
    async fn free_together(&self, small: &[Arc<Node>]) -> Result<Vec<u64>> {
        let Some(queue) = &self.queue else {
            return Ok(Vec::new());
        };
        let _entered = self.files.opening.enter_to_change().await?;
        let mut left = Vec::new();
        // All ranges come before the first node: neither is waited for with the other.
        let mut ranges = Vec::with_capacity(small.len());
        for node in small {
            match node.ranges.try_lock(0, u64::MAX, true) {
                Some(range) => ranges.push((node, range)),
                None => left.push(node.ino),
            }
        }
        let mut locked = Vec::with_capacity(ranges.len());
        for (node, _) in &ranges {
            match node.lock().await {
                Ok(node) if self.is_freed_at_once(&node) => locked.push(node),
                Err(FsError::Stale { .. }) => {}
                _ => left.push(node.ino),
            }
        }
        if locked.is_empty() {
            return Ok(left);
        }
        let estimate = DirtyEstimate::free_small(locked.len() as u64);
        let tx = self.files.assign(estimate).await?;
        for node in &locked {
            match queue.remove_int(&tx, node.ino).await {
                Err(error) if !error.is_not_found() => left.push(node.ino),
                _ => {
                    self.files.nodes.remove(node);
                    free_object(&tx, &node.object)?;
                }
            }
        }
        Ok(left)
    }

    /// Frees an unlinked file, unless somebody uses it. One that cannot be freed stays in the queue
    /// until the filesystem is opened the next time.
    pub async fn free(&self, ino: u64) {
        match self.reap(ino).await {
            Ok(()) | Err(FsError::Closed | FsError::Stale { .. } | FsError::ReadOnly) => {}
            Err(error) => tracing::warn!(ino, %error, "an unlinked file could not be freed"),
        }
    }

    /// Frees, in the background, files that were unlinked but open when the filesystem was closed
    /// the last time, other than those that are retained again (`zfs_unlinked_drain`).
    pub fn free_left(&self) {
        if self.files.opening.is_read_only() {
            return;
        }
        self.spawn(|me| async move {
            if let Err(error) = me.drain().await {
                tracing::warn!(%error, "the delete queue could not be emptied");
            }
        });
    }

    /// Runs `work` as a task of its own.
    fn spawn<F>(&self, work: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(me) = self.me.upgrade() {
            self.files.opening.world.spawn.spawn(Box::pin(work(me)));
        }
    }

    /// Frees everything in the queue that nobody uses.
    pub(crate) async fn drain(&self) -> Result<()> {
        let Some(queue) = &self.queue else {
            return Ok(());
        };
        let mut cursor = ZapCursor::START;
        loop {
            let entries = queue.entries(cursor, DRAIN_BATCH).await?;
            let Some(last) = entries.last() else {
                return Ok(());
            };
            cursor = last.next;
            for entry in entries {
                let Some(ino) = entry.value.as_u64() else {
                    continue;
                };
                if self.files.nodes.note_unlinked(ino) {
                    continue;
                }
                if self.files.opening.is_closing() {
                    return Ok(());
                }
                match self.reap(ino).await {
                    Ok(()) => {}
                    Err(FsError::Closed) => return Ok(()),
                    Err(FsError::Stale { .. }) => self.forget_missing(ino).await?,
                    Err(error) => {
                        tracing::warn!(ino, %error, "an unlinked file could not be freed")
                    }
                }
            }
        }
    }

    /// Takes an entry out of the queue whose object is not there.
    async fn forget_missing(&self, ino: u64) -> Result<()> {
        let _entered = self.files.opening.enter_to_change().await?;
        let Some(queue) = &self.queue else {
            return Ok(());
        };
        let tx = self.files.assign(DirtyEstimate::free()).await?;
        match queue.remove_int(&tx, ino).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Frees one unlinked file, unless somebody uses it.
    async fn reap(&self, ino: u64) -> Result<()> {
        let _entered = self.files.opening.enter_to_change().await?;
        let mut next = Some(ino);
        while let Some(ino) = next {
            next = self.reap_one(ino).await?;
        }
        Ok(())
    }

    /// Frees one unlinked file. Returns its directory of extended attributes, which is unlinked
    /// then.
    async fn reap_one(&self, ino: u64) -> Result<Option<u64>> {
        let Some(queue) = &self.queue else {
            return Ok(None);
        };
        if self.files.nodes.get(ino).is_none() && queue.lookup_int(ino).await?.is_none() {
            return Ok(None);
        }
        let node = self.files.node(ino).await?;
        if node.znode().links != 0 || self.files.nodes.is_retained(ino) {
            return Ok(None);
        }
        let is_xattr_directory = node.zap.is_some() && node.znode().flags & pflags::XATTR != 0;
        if is_xattr_directory {
            self.purge(&node).await?;
        }
        let _range = node.ranges.lock(0, u64::MAX, true).await;
        let node = node.lock().await?;
        if node.znode().kind() == FileKind::Regular {
            self.free_content(&node).await?;
        }
        node.object.prepare_free(0, u64::MAX).await?;
        let acl_object = external_list(&self.files, &node).await?;
        let xattr = node.znode().xattr;
        let xattrs = if xattr == 0 {
            None
        } else {
            match self.files.node(xattr).await {
                // Some releases of OpenZFS left the number of one that was removed
                // (openzfs/zfs#4083), which another file may have by now.
                Ok(other) if !is_xattr_directory_of(&other, ino) => None,
                Ok(xattrs) => Some(lock_after(&node, &xattrs).await?),
                Err(FsError::Stale { .. }) => None,
                Err(error) => return Err(error),
            }
        };
        let is_queued = queue.lookup_int(ino).await?.is_some();
        let tx = self.files.assign(DirtyEstimate::free()).await?;
        if let Some(xattrs) = &xattrs {
            let changed = Znode {
                links: 0,
                ..xattrs.znode()
            };
            self.files
                .store(&tx, xattrs, changed, &[attr::LINKS], [])
                .await?;
            self.enqueue(&tx, xattrs.ino).await?;
        }
        if is_queued {
            queue.remove_int(&tx, ino).await?;
        }
        if let Some(acl) = acl_object {
            free_object(&tx, &acl)?;
        }
        self.files.nodes.remove(&node);
        free_object(&tx, &node.object)?;
        Ok(xattrs.map(|xattrs| xattrs.ino))
    }

    /// Frees a file's content from the end, in parts; what is left, at the start, goes with the
    /// object. What cannot be reached stays, and with it the object: the space is not lost, and
    /// freed when it can be read again.
    async fn free_content(&self, node: &Locked) -> Result<()> {
        let mut end = node.znode().size;
        let mut kept = None;
        loop {
            let start = node.object.last_part(0, end).await?;
            let to_end = if kept.is_none() { u64::MAX } else { end };
            let lost = node.object.unreachable_ranges(start, to_end - start).await;
            if start == 0 && kept.is_none() && lost.is_empty() {
                return Ok(());
            }
            let mut part_end = to_end;
            for (range, error) in lost.into_iter().rev() {
                self.free_content_part(node, range.end, part_end).await?;
                part_end = range.start.max(start);
                kept.get_or_insert(error);
            }
            self.free_content_part(node, start, part_end).await?;
            if start == 0 {
                return kept.map_or(Ok(()), |error| Err(error.into()));
            }
            self.files.opening.check_not_closing()?;
            end = start;
        }
    }

    /// Frees bytes of an unlinked file, or with an end of `u64::MAX` all from the start on.
    async fn free_content_part(&self, node: &Locked, start: u64, end: u64) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let length = if end == u64::MAX { end } else { end - start };
        let tx = self.files.assign(DirtyEstimate::free()).await?;
        node.object.free_range(&tx, start, length).await?;
        // Whoever looks at the file until then sees what is left.
        let mut changed = node.znode();
        if end == u64::MAX {
            changed.size = changed.size.min(start);
        }
        self.files
            .store(&tx, node, changed, &[attr::SIZE], [])
            .await
    }

    /// Unlinks everything in a directory of extended attributes (`zfs_purgedir`).
    async fn purge(&self, directory: &Arc<Node>) -> Result<()> {
        loop {
            let zap = directory.entries()?;
            let entries = zap.entries(ZapCursor::START, DRAIN_BATCH).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                self.files.opening.check_not_closing()?;
                let (ino, _) = parse_dirent(entry.value.as_u64().unwrap_or(0));
                {
                    let directory = directory.lock().await?;
                    let node = match self.files.node(ino).await {
                        Ok(node) => Some(lock_after(&directory, &node).await?),
                        Err(FsError::Stale { .. }) => None,
                        Err(error) => return Err(error),
                    };
                    let tx = self.files.assign(DirtyEstimate::free()).await?;
                    zap.remove(&tx, &entry.name).await?;
                    if let Some(node) = &node {
                        let changed = Znode {
                            links: 0,
                            ..node.znode()
                        };
                        self.files
                            .store(&tx, node, changed, &[attr::LINKS], [])
                            .await?;
                        self.enqueue(&tx, ino).await?;
                    }
                    let size = directory.znode().size.saturating_sub(1);
                    let changed = Znode {
                        size,
                        ..directory.znode()
                    };
                    self.files
                        .store(&tx, &directory, changed, &[attr::SIZE], [])
                        .await?;
                }
                // A file of attributes has no directory of its own, so this does not go deeper.
                Box::pin(self.reap_one(ino)).await?;
            }
        }
    }
}

/// Whether a node is the directory of a file's extended attributes.
fn is_xattr_directory_of(node: &Node, owner: u64) -> bool {
    node.place().0 == Rank::XattrDirectory && node.znode().parent == owner
}
