//! Which object sets a scan of a pool in use visits, and in which order (`dsl_scan_visit`,
//! `dsl_scan_visitds`, module/zfs/dsl_scan.c).
//!
//! First the MOS, then the empty snapshot that every dataset descends from, and after each dataset
//! those that come after it: the next snapshot, or the live dataset, and the clones. Of each only
//! what was born after the one that it comes from is entered. So every block is met once, and what
//! happens to datasets meanwhile changes no more than the [`Position`].

use std::sync::Arc;

use bytes::Bytes;
use device::{BoxFuture, Tasks};
use format::{
    BlockPointer, Bookmark, DslDatasetPhys, Endian, ObjectId, ObjectType, ObjsetId, ObjsetPhys,
    ScanPhys, Txg, ZilHeader,
};
use object::{Met, ObjectError, ObjectSet, Traverse, Traversed, Visitor, Zap, traverse};
use spa::PoolError;
use vdev::ScanRead;
use zio::pipeline::waits_for_devices;
use zio::{Pipeline, ZioError};

use super::again::Place;
use super::blocks::{Blocks, Wanted, add};
use super::position::{DESTROYED, Position};

/// Says when to stop for now.
pub(super) type IsOver = Arc<dyn Fn() -> bool + Send + Sync>;

/// Walks one object set.
pub(super) struct Walk {
    pub(super) blocks: Arc<Blocks>,
    pub(super) wanted: Wanted,
    pub(super) is_over: IsOver,
}

impl Visitor for Walk {
    fn ends_before(&self, _bookmark: &Bookmark) -> bool {
        (self.is_over)()
    }

    fn meet(&self, met: &Met<'_>) -> bool {
        self.blocks.meet(met, &self.wanted)
    }

    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        self.blocks.clone().read(pointer, bookmark, self.wanted)
    }

    fn entered(&self, met: &Met<'_>, result: Result<(), &ZioError>) {
        self.blocks.entered(met, result, &self.wanted);
    }

    fn damaged(&self, bookmark: &Bookmark, why: &str) {
        self.blocks.damaged(bookmark, why);
    }
}

/// Meets the blocks of an object set's intent log: those that were claimed and not replayed yet, or
/// of a log that was never claimed those from before `first_txg` (`dsl_scan_zil`).
pub(super) async fn visit_log(
    blocks: &Arc<Blocks>,
    tasks: &Tasks,
    objset: ObjsetId,
    root: &BlockPointer,
    first_txg: Txg,
    wanted: &Wanted,
) {
    if root.is_hole() {
        return;
    }
    let bookmark = Bookmark::new(objset, ObjectId::ZERO, Bookmark::ROOT_LEVEL, 0);
    let unwanted = Wanted {
        read: ScanRead::No,
        ..*wanted
    };
    let (own, pointer) = (blocks.clone(), *root);
    // In a task of its own: what fails here must not stop the sync loop.
    let (send, receive) = futures::channel::oneshot::channel();
    tasks.spawn("scan", async move {
        let header = read_header(own, pointer, bookmark, unwanted).await;
        let _ = send.send(header);
    });
    let Ok(Some(header)) = receive.await else {
        return;
    };
    let pipeline: &Pipeline = &blocks.pipeline;
    let mut visit = |pointer: BlockPointer, bookmark: Bookmark| {
        blocks.meet_log(&pointer, bookmark, wanted);
    };
    zil::visit_log(pipeline, objset, first_txg, &header, &mut visit).await;
}

async fn read_header(
    blocks: Arc<Blocks>,
    root: BlockPointer,
    bookmark: Bookmark,
    wanted: Wanted,
) -> Option<ZilHeader> {
    // Who walks the object set tells when its block is damaged.
    let data = blocks.read(root, bookmark, wanted).await.ok()?;
    let objset = ObjsetPhys::decode(&data, root.endian()).ok()?;
    Some(objset.zil_header)
}

/// A visit of a pool in use, in syncing context.
pub(super) struct Visit<'a> {
    pub(super) blocks: &'a Arc<Blocks>,
    pub(super) mos: &'a Arc<ObjectSet>,
    pub(super) mos_root: BlockPointer,
    /// The empty snapshot.
    pub(super) origin: ObjectId,
    pub(super) tasks: &'a Tasks,
    pub(super) is_over: IsOver,
}

impl Visit<'_> {
    /// Goes on from `at`; whether everything was met.
    ///
    /// No txg is held up by a bad sector in what says where to go: the walk of the MOS has told of
    /// it, and a dataset that cannot be found is passed over.
    pub(super) async fn go_on(&self, at: &mut Position) -> Result<bool, PoolError> {
        waits_for_devices(self.visit_all(at)).await
    }

    async fn visit_all(&self, at: &mut Position) -> Result<bool, PoolError> {
        let bookmark = at.phys.bookmark;
        if bookmark.objset.is_zero() {
            at.phys.current_min_txg = at.phys.min_txg;
            at.phys.current_max_txg = at.phys.max_txg;
            let root = self.mos_root;
            if let Traversed::Until(place) = self.walk(at, ObjsetId::ZERO, root).await {
                at.phys.bookmark = place;
                return Ok(false);
            }
            at.phys.bookmark = Bookmark::default();
            self.visit_dataset(at, self.origin).await?;
        } else if bookmark.objset != DESTROYED {
            let dataset = ObjectId::new(bookmark.objset.get());
            if !self.visit_dataset(at, dataset).await? {
                return Ok(false);
            }
        }
        at.phys.bookmark = Bookmark::new(DESTROYED, ObjectId::ZERO, 0, 0);
        while let Some((dataset, txg)) = at.queue.pop_first() {
            let dataset = ObjectId::new(dataset);
            let Some(phys) = self.dataset(dataset).await? else {
                continue;
            };
            let since = match txg {
                0 => phys.previous_snapshot_txg,
                txg => Txg::new(txg),
            };
            at.phys.current_min_txg = at.phys.min_txg.max(since);
            at.phys.current_max_txg = match phys.is_snapshot() {
                true => at.phys.max_txg.min(phys.creation_txg),
                false => at.phys.max_txg,
            };
            at.phys.bookmark = Bookmark::default();
            if !self.visit_dataset(at, dataset).await? {
                return Ok(false);
            }
            at.phys.bookmark = Bookmark::new(DESTROYED, ObjectId::ZERO, 0, 0);
        }
        Ok(true)
    }

    fn wanted(&self, phys: &ScanPhys) -> Wanted {
        Wanted {
            read: match phys.function {
                ScanPhys::FUNCTION_RESILVER => ScanRead::Resilver,
                _ => ScanRead::Scrub,
            },
            after: phys.min_txg,
            before: phys.max_txg,
            until: phys.current_max_txg,
            is_again: false,
        }
    }

    async fn walk(&self, at: &Position, objset: ObjsetId, root: BlockPointer) -> Traversed {
        let what = Traverse {
            root,
            objset,
            after: at.phys.current_min_txg,
            from: (at.phys.bookmark.objset == objset).then_some(at.phys.bookmark),
        };
        self.traverse(&what, self.wanted(&at.phys)).await
    }

    async fn traverse(&self, what: &Traverse, wanted: Wanted) -> Traversed {
        let walk = Arc::new(Walk {
            blocks: self.blocks.clone(),
            wanted,
            is_over: self.is_over.clone(),
        });
        traverse(what, self.tasks, &walk).await
    }

    /// Visits a dataset again; what is left of that.
    pub(super) async fn again(
        &self,
        place: Place,
        phys: &ScanPhys,
    ) -> Result<Option<Place>, PoolError> {
        let found = waits_for_devices(self.dataset(place.dataset)).await?;
        let Some(dataset) = found else {
            return Ok(None);
        };
        let what = Traverse {
            root: dataset.block,
            objset: ObjsetId::new(place.dataset.get()),
            after: place.since.max(phys.min_txg),
            from: place.bookmark,
        };
        let wanted = Wanted {
            until: phys.max_txg,
            is_again: true,
            ..self.wanted(phys)
        };
        let traversed = self.traverse(&what, wanted).await;
        Ok(match traversed {
            Traversed::Until(bookmark) => Some(Place {
                bookmark: Some(bookmark),
                ..place
            }),
            _ => None,
        })
    }

    /// What the MOS says of a dataset; `None` when there is no such dataset, or it cannot be read.
    async fn dataset(&self, dataset: ObjectId) -> Result<Option<DslDatasetPhys>, PoolError> {
        let error = match self.mos.hold(dataset).await {
            Ok(object) => match DslDatasetPhys::decode(&object.bonus(), Endian::Little) {
                Ok(phys) => return Ok(Some(phys)),
                Err(error) => PoolError::from(error),
            },
            Err(ObjectError::NoSuchObject { .. }) => {
                tracing::warn!(%dataset, "a scan was to visit a dataset that is not there");
                return Ok(None);
            }
            Err(error) => error.into(),
        };
        self.not_found(dataset, error)?;
        Ok(None)
    }

    /// Notes that what a dataset leads to is not met, because the MOS cannot be read there: devices
    /// go on lacking all that they lack.
    fn not_found(&self, dataset: ObjectId, error: PoolError) -> Result<(), PoolError> {
        if error.is_suspended() {
            return Err(error);
        }
        let place = Bookmark::new(ObjsetId::ZERO, dataset, 0, 0);
        self.blocks.damaged(&place, &error.to_string());
        Ok(())
    }

    /// Visits a dataset, and queues those that come after it; false when it is not done.
    async fn visit_dataset(&self, at: &mut Position, dataset: ObjectId) -> Result<bool, PoolError> {
        // What follows was born later, and need not be visited either.
        if at.phys.current_min_txg >= at.phys.max_txg {
            return Ok(true);
        }
        let Some(phys) = self.dataset(dataset).await? else {
            return Ok(true);
        };
        let objset = ObjsetId::new(dataset.get());
        let is_begun = at.phys.bookmark.objset == objset;
        if !phys.is_snapshot() && !is_begun {
            let wanted = self.wanted(&at.phys);
            let root = &phys.block;
            // Only logs that were claimed: others are of this very time.
            visit_log(self.blocks, self.tasks, objset, root, Txg::ZERO, &wanted).await;
        }
        if let Traversed::Until(place) = self.walk(at, objset, phys.block).await {
            at.phys.bookmark = place;
            return Ok(false);
        }
        add(&self.blocks.numbers.datasets, 1);
        if at.phys.flags & ScanPhys::FLAG_VISIT_AGAIN != 0 {
            at.phys.flags &= !ScanPhys::FLAG_VISIT_AGAIN;
            let from = at.phys.current_max_txg.get();
            at.queue.insert(dataset.get(), from);
            return Ok(true);
        }
        let born = phys.creation_txg.get();
        if !phys.next_snapshot.is_zero() {
            at.queue.insert(phys.next_snapshot.get(), born);
        }
        for clone in self.clones(dataset, &phys).await? {
            at.queue.insert(clone.get(), born);
        }
        Ok(true)
    }

    /// The first dataset of each clone of a snapshot.
    ///
    /// The list of a pool that was upgraded long ago may lack some (`dsl_scan_visitds`): then, and
    /// when it cannot be read, all datasets are asked which one they come after, so that none is
    /// taken for scanned that was not.
    async fn clones(
        &self,
        snapshot: ObjectId,
        phys: &DslDatasetPhys,
    ) -> Result<Vec<ObjectId>, PoolError> {
        if phys.children <= 1 {
            return Ok(Vec::new());
        }
        let listed = self.listed_clones(phys).await;
        if let Some(listed) = listed.filter(|listed| listed.len() as u64 == phys.children - 1) {
            return Ok(listed);
        }
        let mut clones = Vec::new();
        let mut after = None;
        loop {
            let id = match self.mos.next_object(after).await {
                Ok(Some(id)) => id,
                Ok(None) => break,
                Err(error) => {
                    self.not_found(snapshot, error.into())?;
                    break;
                }
            };
            after = Some(id);
            let object = match self.mos.hold(id).await {
                Ok(object) => object,
                Err(ObjectError::NoSuchObject { .. }) => continue,
                // It may be a clone.
                Err(error) => {
                    self.not_found(id, error.into())?;
                    continue;
                }
            };
            if object.info().bonus_type != ObjectType::DSL_DATASET {
                continue;
            }
            let comes_after = DslDatasetPhys::decode(&object.bonus(), Endian::Little)
                .is_ok_and(|other| other.previous_snapshot == snapshot);
            if comes_after && id != phys.next_snapshot {
                clones.push(id);
            }
        }
        Ok(clones)
    }

    /// What a snapshot's list of clones says, if it has one that can be read.
    async fn listed_clones(&self, phys: &DslDatasetPhys) -> Option<Vec<ObjectId>> {
        if phys.next_clones.is_zero() {
            return None;
        }
        let list = Zap::hold(self.mos, phys.next_clones).await.ok()?;
        let entries = list.all().await.ok()?;
        let clones = entries.iter().filter_map(|entry| entry.value.as_u64());
        Some(clones.map(ObjectId::new).collect())
    }
}
