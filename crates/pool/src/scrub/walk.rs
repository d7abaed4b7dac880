//! Finding every block of a pool, each once.
//!
//! The MOS is walked whole: each of its dnodes' trees, and behind each dnode whose bonus is a dataset
//! the dataset's object set, where only what was born after the previous snapshot is entered: what is older was
//! found there (`traverse_pool`, module/zfs/dmu_traverse.c; `dsl_scan_visitds`, module/zfs/dsl_scan.c).
//! So clones, snapshots, datasets that are being destroyed and hidden ones need no rules of their own.
//!
//! Blocks that lead to others (object sets, indirect blocks, blocks of dnodes) are verified here, as they must be read
//! anyway. The others are put into batches for [`super::issue`].
//!
//! Several tasks share a stack of blocks to enter; the newest is entered first, so that
//! the stack stays as small as depth times fan-out. A task waits while a full batch finds no taker:
//! that bounds memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::{
    BlockPointer, Bookmark, DNODE_SLOT_BYTES, DnodePhys, DslDatasetPhys, Endian, ObjectId,
    ObjectType, ObjsetId, ObjsetPhys, Txg,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use zil::visit_log;

use super::{Found, Run};

/// Blocks in a batch. About 160 bytes each; up to three batches exist at a time.
const BATCH_BLOCKS: usize = 128 << 10;
/// Tasks that walk.
pub(super) const WALKERS: usize = 8;

/// Level of an object set's root.
const ROOT_LEVEL: i64 = Bookmark::ROOT_LEVEL;

/// What is common to the blocks of an object set.
#[derive(Debug, Clone, Copy)]
struct Place {
    objset: ObjsetId,
    /// What was born until then belongs to an older snapshot.
    after: Txg,
    /// Whether its intent log counts (snapshots have none).
    has_log: bool,
}

/// A block that leads to others.
#[derive(Debug, Clone, Copy)]
enum Lead {
    /// The root of an object set.
    Root,
    /// The same, where a snapshot has it: only the intent log is new.
    LogOnly,
    /// An indirect block of the meta-dnode's tree, or a block of dnodes.
    Dnodes,
    /// An indirect block.
    Indirect,
}

struct Item {
    bp: BlockPointer,
    place: Place,
    object: ObjectId,
    level: i64,
    block: u64,
    lead: Lead,
}

impl Item {
    fn bookmark(&self) -> Bookmark {
        Bookmark {
            objset: self.place.objset,
            object: self.object,
            level: self.level,
            block_id: self.block,
        }
    }
}

#[derive(Default)]
struct Stack {
    items: Vec<Item>,
    /// Tasks that may yet add some.
    busy: usize,
}

/// A walk through a pool.
pub(super) struct Walk {
    run: Arc<Run>,
    stack: Mutex<Stack>,
    /// There is something on the stack, or nothing will come any more.
    changed: Notify,
    batch: Mutex<Vec<Found>>,
    batches: mpsc::Sender<Vec<Found>>,
}

impl Walk {
    /// From the MOS's root.
    pub(super) fn new(
        run: Arc<Run>,
        root: BlockPointer,
        batches: mpsc::Sender<Vec<Found>>,
    ) -> Arc<Self> {
        let walk = Walk {
            run,
            stack: Mutex::default(),
            changed: Notify::new(),
            batch: Mutex::default(),
            batches,
        };
        let place = Place {
            objset: ObjsetId::ZERO,
            after: Txg::ZERO,
            has_log: false,
        };
        walk.enter(root, place, ObjectId::ZERO, ROOT_LEVEL, 0, Lead::Root);
        Arc::new(walk)
    }

    /// One of the tasks that walk; ends when there is nothing more, or the scrub was stopped.
    pub(super) async fn work(&self) {
        while let Some(item) = self.next().await {
            let mut blocks = Vec::new();
            if self.run.go_on().await {
                self.lead(item, &mut blocks).await;
            }
            for found in blocks {
                if !self.put(found).await {
                    break;
                }
            }
            let mut stack = self.stack.lock();
            stack.busy -= 1;
            if stack.busy == 0 && stack.items.is_empty() {
                self.changed.notify_waiters();
            }
        }
    }

    /// Hands on what is left; after all tasks ended.
    pub(super) async fn finish(&self) {
        let rest = std::mem::take(&mut *self.batch.lock());
        // Nobody there: stopped.
        let _ = self.batches.send(rest).await;
    }

    async fn next(&self) -> Option<Item> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut stack = self.stack.lock();
                if self.run.is_stopped() {
                    stack.items.clear();
                }
                if let Some(item) = stack.items.pop() {
                    stack.busy += 1;
                    return Some(item);
                }
                if stack.busy == 0 {
                    self.changed.notify_waiters();
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Adds a block to the batch, and waits while there are too many; false when nobody takes them any more.
    async fn put(&self, found: Found) -> bool {
        let full = {
            let mut batch = self.batch.lock();
            batch.push(found);
            (batch.len() >= BATCH_BLOCKS).then(|| std::mem::take(&mut *batch))
        };
        match full {
            Some(batch) => self.batches.send(batch).await.is_ok(),
            None => true,
        }
    }

    /// Counts a block and puts it on the stack, unless it belongs to an older snapshot.
    fn enter(
        &self,
        bp: BlockPointer,
        place: Place,
        object: ObjectId,
        level: i64,
        block: u64,
        lead: Lead,
    ) {
        if !self.run.meet(&bp, place.after) || bp.is_embedded() {
            return;
        }
        self.push(Item {
            bp,
            place,
            object,
            level,
            block,
            lead,
        });
    }

    fn push(&self, item: Item) {
        self.stack.lock().items.push(item);
        self.changed.notify_one();
    }

    /// Meets the pointer of a block at `level` of an object's tree.
    fn pointer(
        &self,
        bp: BlockPointer,
        place: Place,
        bookmark: Bookmark,
        dnodes: bool,
        blocks: &mut Vec<Found>,
    ) {
        // A tree is as deep as its dnode says: so no pointer can lead in circles.
        if !bp.is_hole() && bookmark.level != i64::from(bp.level()) && !bp.is_embedded() {
            self.run
                .note_error(bookmark, "a block pointer has the wrong level");
            return;
        }
        if bookmark.level > 0 || dnodes {
            let lead = if dnodes { Lead::Dnodes } else { Lead::Indirect };
            self.enter(
                bp,
                place,
                bookmark.object,
                bookmark.level,
                bookmark.block_id,
                lead,
            );
        } else if self.run.meet(&bp, place.after) && !bp.is_embedded() {
            blocks.push(Found {
                bp,
                bookmark,
                is_log: false,
            });
        }
    }

    async fn lead(&self, item: Item, blocks: &mut Vec<Found>) {
        let bookmark = item.bookmark();
        let data = match item.lead {
            Lead::LogOnly => self.run.read(&item.bp, bookmark).await,
            _ => self.run.verify_and_read(&item.bp, bookmark).await,
        };
        let Some(data) = data else { return };
        let endian = item.bp.endian();
        match item.lead {
            Lead::Root | Lead::LogOnly => match ObjsetPhys::decode(&data, endian) {
                Ok(objset) => {
                    self.log(&objset, item.place, blocks).await;
                    if matches!(item.lead, Lead::Root) {
                        self.objset(&objset, item.place, endian, blocks);
                    }
                }
                Err(error) => self.run.note_error(bookmark, &error.to_string()),
            },
            Lead::Dnodes if item.level == 0 => {
                let per_block = (data.len() / DNODE_SLOT_BYTES) as u64;
                let mut slot = 0;
                while let Some(raw) = data
                    .get(slot * DNODE_SLOT_BYTES..)
                    .filter(|raw| !raw.is_empty())
                {
                    let object = ObjectId::new(
                        item.block
                            .saturating_mul(per_block)
                            .saturating_add(slot as u64),
                    );
                    match DnodePhys::decode(raw, endian) {
                        Ok(dnode) => {
                            slot += dnode.slots();
                            self.dnode(&dnode, item.place, object, false, endian, blocks);
                        }
                        Err(error) => {
                            slot += 1;
                            let bookmark = Bookmark { object, ..bookmark };
                            self.run.note_error(bookmark, &error.to_string());
                        }
                    }
                }
            }
            Lead::Dnodes | Lead::Indirect => {
                let pointers = BlockPointer::decode_all(&data, endian);
                let count = pointers.len() as u64;
                let dnodes = matches!(item.lead, Lead::Dnodes);
                for (index, bp) in pointers.enumerate() {
                    let below = Bookmark {
                        level: item.level - 1,
                        block_id: item
                            .block
                            .saturating_mul(count)
                            .saturating_add(index as u64),
                        ..bookmark
                    };
                    self.pointer(bp, item.place, below, dnodes, blocks);
                }
            }
        }
    }

    async fn log(&self, objset: &ObjsetPhys, place: Place, blocks: &mut Vec<Found>) {
        if !place.has_log {
            return;
        }
        let run = &self.run;
        let mut visit = |bp: BlockPointer, bookmark: Bookmark| {
            if run.meet(&bp, Txg::ZERO) && !bp.is_embedded() {
                blocks.push(Found {
                    bp,
                    bookmark,
                    is_log: true,
                });
            }
        };
        let log = &objset.zil_header;
        visit_log(&run.pipeline, place.objset, run.first_txg, log, &mut visit).await;
    }

    fn objset(&self, objset: &ObjsetPhys, place: Place, endian: Endian, blocks: &mut Vec<Found>) {
        let meta = &objset.meta_dnode;
        self.dnode(meta, place, ObjectId::ZERO, true, endian, blocks);
        let used = objset
            .user_group_used
            .as_deref()
            .map(|[user, group]| [(user, ObjectId::USER_USED), (group, ObjectId::GROUP_USED)]);
        let project = objset
            .project_used
            .as_deref()
            .map(|dnode| (dnode, ObjectId::PROJECT_USED));
        for (dnode, object) in used.into_iter().flatten().chain(project) {
            self.dnode(dnode, place, object, false, endian, blocks);
        }
    }

    fn dnode(
        &self,
        dnode: &DnodePhys,
        place: Place,
        object: ObjectId,
        is_meta: bool,
        endian: Endian,
        blocks: &mut Vec<Found>,
    ) {
        if dnode.is_free() {
            return;
        }
        let bookmark = |level: u8, block: u64| Bookmark {
            objset: place.objset,
            object,
            level: i64::from(level),
            block_id: block,
        };
        for (index, bp) in dnode.pointers.iter().enumerate() {
            let bookmark = bookmark(dnode.levels - 1, index as u64);
            self.pointer(*bp, place, bookmark, is_meta, blocks);
        }
        if let Some(spill) = &dnode.spill {
            let bookmark = bookmark(0, Bookmark::SPILL_BLOCK_ID);
            self.pointer(*spill, place, bookmark, false, blocks);
        }
        if place.objset.is_zero() && !is_meta && dnode.bonus_type == ObjectType::DSL_DATASET {
            match DslDatasetPhys::decode(&dnode.bonus, endian) {
                Ok(phys) => {
                    let place = Place {
                        objset: ObjsetId::new(object.get()),
                        after: phys.previous_snapshot_txg,
                        has_log: !phys.is_snapshot(),
                    };
                    self.run.datasets.fetch_add(1, Ordering::Relaxed);
                    let root = phys.block;
                    if place.has_log && !root.is_hole() && root.birth() <= place.after {
                        self.push(Item {
                            bp: root,
                            place,
                            object: ObjectId::ZERO,
                            level: ROOT_LEVEL,
                            block: 0,
                            lead: Lead::LogOnly,
                        });
                    } else {
                        self.enter(root, place, ObjectId::ZERO, ROOT_LEVEL, 0, Lead::Root);
                    }
                }
                Err(error) => self.run.note_error(bookmark(0, 0), &error.to_string()),
            }
        }
    }
}
