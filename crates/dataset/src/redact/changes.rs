//! The ranges of blocks of an earlier snapshot that a later one has no more: they were written anew
//! or freed since (`redact_cb`, module/zfs/dmu_redact.c).
//!
//! The changes of the later one are found as for a stream ([`object::Changes`]): blocks and holes
//! that were born after the earlier one, in the order of objects and blocks. An object that is
//! gone, or waits to be freed, has none of its blocks. So has one whose blocks are of another size
//! than they were, and what is beyond the blocks that its tree can have is gone, too.

use std::collections::{BTreeSet, VecDeque};

use format::{Bookmark, DNODES_PER_BLOCK, ObjectId, ObjectType, ObjsetId, ObjsetKind, Txg};
use object::{Change, ChangeLimits, Changes, ChangesError, Geometry, Traverse, Zap};

use super::spans::{Place, Span, push};
use crate::{Dataset, DatasetError};

/// When a batch of changes is full.
const LIMITS: ChangeLimits = ChangeLimits {
    changes: 4096,
    block_bytes: u64::MAX,
};
/// The queue of files that wait to be freed, in a filesystem's master node (`ZFS_UNLINKED_SET`).
const DELETE_QUEUE: &str = "DELETE_QUEUE";

impl From<ChangesError> for DatasetError {
    fn from(error: ChangesError) -> Self {
        match error {
            ChangesError::Zio(error) => Self::Zio(error),
            ChangesError::Damaged { bookmark, why } => Self::corrupt(bookmark.object, why),
        }
    }
}

/// Ranges of blocks that a later snapshot has no more of an earlier one, in order.
pub(super) struct ChangedSpans {
    earlier: Dataset,
    changes: Changes,
    /// Files that wait to be freed.
    deleted: BTreeSet<u64>,
    is_over: bool,
    ready: VecDeque<Span>,
    /// All blocks of this object were told already.
    is_told: Option<u64>,
    /// What is gone behind the other blocks of the object that is told now.
    tail: Option<Span>,
}

impl ChangedSpans {
    /// Of `later`, from the block of dnodes on that this place is in.
    pub(super) async fn new(
        earlier: &Dataset,
        since: Txg,
        later: &Dataset,
        from: Place,
    ) -> Result<Self, DatasetError> {
        let objset = ObjsetId::new(later.object().get());
        let block = from.0 / DNODES_PER_BLOCK;
        let start = Bookmark::new(objset, ObjectId::ZERO, 0, block);
        let what = Traverse {
            root: later.objset().root(),
            objset,
            after: since,
            from: (block > 0).then_some(start),
        };
        let pipeline = later.objset().pipeline().clone();
        let first = block * DNODES_PER_BLOCK;
        Ok(Self {
            earlier: earlier.clone(),
            changes: Changes::new(pipeline, what, first, false, LIMITS),
            deleted: deleted(later).await?,
            is_over: false,
            ready: VecDeque::new(),
            is_told: None,
            tail: None,
        })
    }

    /// The next range.
    pub(super) async fn next(&mut self) -> Result<Option<Span>, DatasetError> {
        while self.ready.is_empty() && !self.is_over {
            let batch = self.changes.next().await?;
            self.is_over = batch.is_last;
            let mut spans = Vec::new();
            for change in batch.changes {
                self.take(change, &mut spans).await?;
            }
            if self.is_over
                && let Some(tail) = self.tail.take()
            {
                push(&mut spans, tail);
            }
            self.ready.extend(spans);
        }
        Ok(self.ready.pop_front())
    }

    async fn take(&mut self, change: Change, spans: &mut Vec<Span>) -> Result<(), DatasetError> {
        match change {
            // Dnodes are looked at one by one, and no spill block is left out of a stream.
            Change::Dnodes { .. } => {}
            Change::Block {
                block: Bookmark::SPILL_BLOCK_ID,
                ..
            } => {}
            Change::Block { object, block, .. } => {
                self.take_blocks(Span::blocks(object, block, block), spans);
            }
            Change::Hole {
                object,
                first,
                blocks,
                ..
            } => {
                let last = first.saturating_add(blocks - 1);
                self.take_blocks(Span::blocks(object, first, last), spans);
            }
            Change::Object { object, .. } if self.deleted.contains(&object) => {
                self.take_gone(Span::objects(object, object), spans);
            }
            Change::Object { object, dnode, .. } => {
                self.put_tail(object, spans);
                self.begin(object, Geometry::of(&dnode), spans).await?;
            }
            Change::Free { first, count } => {
                let last = first.saturating_add(count - 1);
                self.take_gone(Span::objects(first.max(1), last), spans);
            }
        }
        Ok(())
    }

    /// Blocks that were written anew or freed.
    fn take_blocks(&mut self, span: Span, spans: &mut Vec<Span>) {
        if self.is_told != Some(span.first.0) {
            self.put_tail(span.first.0, spans);
            push(spans, span);
        }
    }

    /// Objects that are gone.
    fn take_gone(&mut self, span: Span, spans: &mut Vec<Span>) {
        self.is_told = (span.first.0 == span.last.0).then_some(span.first.0);
        self.put_tail(span.first.0, spans);
        push(spans, span);
    }

    /// Tells what is gone behind the other blocks of the last object, where another one follows.
    fn put_tail(&mut self, object: u64, spans: &mut Vec<Span>) {
        if let Some(tail) = self.tail.take_if(|tail| tail.first.0 != object) {
            push(spans, tail);
        }
    }

    /// An object that the later snapshot has: how it was.
    async fn begin(
        &mut self,
        object: u64,
        geometry: Geometry,
        spans: &mut Vec<Span>,
    ) -> Result<(), DatasetError> {
        let held = self.earlier.objset().hold(ObjectId::new(object)).await;
        let info = match held {
            Ok(held) => held.info(),
            Err(error) if error.is_not_found() => {
                self.is_told = Some(object);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        if info.data_block_bytes != geometry.block_bytes {
            self.is_told = Some(object);
            push(spans, Span::objects(object, object));
            return Ok(());
        }
        self.is_told = None;
        let capacity = geometry.capacity_blocks;
        self.tail =
            (info.max_block_id >= capacity).then(|| Span::blocks(object, capacity, u64::MAX));
        Ok(())
    }
}

/// Files that a filesystem has only until somebody has the time to free them.
async fn deleted(dataset: &Dataset) -> Result<BTreeSet<u64>, DatasetError> {
    let objset = dataset.objset();
    if objset.kind() != ObjsetKind::Filesystem {
        return Ok(BTreeSet::new());
    }
    let master = Zap::hold(objset, ObjectId::MASTER_NODE).await?;
    let Some(queue) = master.lookup_u64(DELETE_QUEUE).await? else {
        return Ok(BTreeSet::new());
    };
    let queue = Zap::hold(objset, ObjectId::new(queue)).await?;
    let entries = queue.all().await?;
    let numbers = entries.iter().filter_map(|entry| entry.value.as_u64());
    Ok(numbers.collect())
}

/// Whether the blocks of objects of a type are left out: only what users store is.
pub(super) fn is_redacted(kind: ObjectType) -> bool {
    !kind.is_metadata()
}
