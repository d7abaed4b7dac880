//! Dirty time logs: which transaction groups a device lacks writes of.
//!
//! The vdev tree notes them in memory; this module keeps them in the MOS, so that a device that
//! comes back later is not trusted with what it missed. Per leaf there is a space map whose
//! "bytes" are txgs and whose allocated ranges are those missed (`DTL_MISSING`); its object number
//! is the pair `DTL` of the leaf's configuration. Written in syncing context, whole, when it
//! changed. A leaf without an object misses nothing. One that cannot be written when a txg syncs
//! misses that txg, whether something was to be written to it or not: so the state on disk tells
//! that it may lack what came later as well, such as blocks of intent logs, which are acknowledged
//! before their txg is on disk. Distributed spares of dRAID that stand in for a device have one
//! too.
//!
//! One that lacks something and comes back while a scan is under way misses the txg that syncs as
//! well, though it may be written to: the scan has left it out so far, and when it ends, takes only
//! devices that lack nothing later to have what it covers ([`DirtyTimes::was_noted`]). So does one
//! that lacks nothing, where a distributed spare does: while it was away, it may not have been
//! given what the spare is to have on it.
//!
//! A flush that fails before the uberblock is written, or a write of the last pass, is recorded in
//! the same txg all the same: another pass is made for it ([`DirtyTimes::is_recorded`]). A crash
//! right after the uberblock would else leave a device that is trusted with what it lost.
//!
//! Before the MOS can be read, nothing of this is known. What the labels show is taken until then:
//! a device whose newest uberblock is older than that of another device of the same top-level
//! vdev missed what lies between, and one that was attached and has not everything yet
//! (`resilver_txg`, `rebuild_txg`) may lack all of it. So may an old one for which others stand in,
//! where there are distributed spares.
//!
//! Source: module/zfs/vdev.c (`vdev_dtl_sync`, `vdev_dtl_load`).

use std::collections::BTreeMap;
use std::sync::Arc;

use dataset::DatasetError;
use format::{Guid, ObjectId, Txg};
use object::{ObjectError, ObjectSet, SpaceMapKind, SpaceMapObject};
use parking_lot::Mutex;
use space::{SpaceSync, free_map, new_map, writeable};
use vdev::{RangeSet, Vdev, VdevTree};

use crate::Spa;
use crate::config::{REBUILD_TXG, RESILVER_TXG};
use crate::participant::{Participant, Pass, Turn};

/// Block size of these space maps (`zfs_vdev_dtl_sm_blksz`), in bytes.
const BLOCK_BYTES: u32 = 4 << 10;
/// The leaf's pair.
const PAIR: &str = "DTL";

/// Until the MOS tells better: devices with an old uberblock lack what came after it.
pub async fn distrust_stale(tree: &VdevTree) {
    let labels = tree.read_all_labels().await;
    let newest = |guid: Guid| {
        labels
            .get(&guid.get())
            .and_then(|labels| labels.best_uberblock(Txg::new(u64::MAX)))
            .map_or(0, |uberblock| uberblock.txg.get())
    };
    for top in tree.tops() {
        let leaves = top.leaves();
        let best = leaves
            .iter()
            .map(|vdev| newest(vdev.guid()))
            .max()
            .unwrap_or(0);
        for vdev in &leaves {
            let is_doubtful = is_new(vdev) && leaves.len() > 1
                || newest(vdev.guid()) < best && has_stand_in(&top, vdev.guid());
            let own = match is_doubtful {
                true => 0,
                false => newest(vdev.guid()),
            };
            if let Some(leaf) = vdev.leaf()
                && own < best
            {
                // A label may tell of any txg.
                let first = own + 1;
                let count = (best - own).min(u64::MAX - first);
                leaf.dirty_times()
                    .set_missing(RangeSet::from_iter([(first, count)]));
            }
        }
        // Of what a distributed spare has no label tells but that it has not everything yet.
        for spare in top.draid_spares().iter().filter(|spare| is_new(spare)) {
            if let Some(own) = spare.kind().draid_spare()
                && best > 0
            {
                own.set_missing(RangeSet::from_iter([(1, best)]));
            }
        }
    }
}

/// Whether a device of a vdev with distributed spares is not alone in its place. What spares got
/// there since it went away it may lack, however old that is.
fn has_stand_in(top: &Arc<Vdev>, device: Guid) -> bool {
    let is_its = |child: &&Arc<Vdev>| child.find(device).is_some();
    let place = top.children().iter().find(is_its);
    place.is_some_and(|place| !place.children().is_empty()) && !top.draid_spares().is_empty()
}

/// Whether a device or distributed spare was attached and has not everything yet.
fn is_new(vdev: &Arc<Vdev>) -> bool {
    let is_set = |pair| vdev.config_u64(pair).is_some_and(|txg| txg != 0);
    is_set(RESILVER_TXG) || is_set(REBUILD_TXG)
}

/// What is recorded in the MOS.
#[derive(Debug, Default)]
pub struct DirtyTimes {
    recorded: Mutex<BTreeMap<Guid, RangeSet>>,
    /// [`vdev::Leaf::uses`] of leaves when what they miss was written last, or when the scan began.
    uses: Mutex<Uses>,
}

/// How often leaves came into use until some moment.
pub type Uses = BTreeMap<Guid, u64>;

impl Participant for DirtyTimes {
    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            let spa = pass.spa;
            let is_scanning = (pass.is_scanning)();
            if pass.is_dirty()
                && self
                    .sync(&pass.space(), spa.dsl.mos(), &spa.tree, is_scanning)
                    .await?
            {
                spa.identity.mark_dirty();
            }
            Ok(())
        })
    }

    fn done(&self, spa: &Spa, txg: Txg, wrote: bool) {
        if wrote {
            self.synced(&spa.tree, txg);
        }
    }
}

impl DirtyTimes {
    /// Reads the logs of all leaves and tells the vdev tree, from the pool's state of `synced`.
    /// Returns whether all can be read; of others the device lacks everything.
    pub async fn load(&self, mos: &Arc<ObjectSet>, tree: &VdevTree, synced: Txg) -> bool {
        let mut are_known = true;
        for vdev in tree.leaves() {
            let Some(leaf) = vdev.leaf() else { continue };
            let Some(id) = vdev.config_u64(PAIR).filter(|id| *id != 0) else {
                leaf.dirty_times().set_missing(RangeSet::default());
                continue;
            };
            match read(mos, ObjectId::new(id)).await {
                Ok(missing) => {
                    leaf.dirty_times().set_missing(missing.clone());
                    self.recorded.lock().insert(vdev.guid(), missing);
                }
                Err(error) => {
                    are_known = false;
                    leaf.dirty_times()
                        .set_missing(unknown(&vdev, synced, &error));
                }
            }
        }
        for spare in tree.topology().draid_spares() {
            let Some(own) = spare.kind().draid_spare() else {
                continue;
            };
            let Some(id) = spare.config_u64(PAIR).filter(|id| *id != 0) else {
                own.set_missing(RangeSet::default());
                continue;
            };
            match read(mos, ObjectId::new(id)).await {
                Ok(missing) => {
                    own.set_missing(missing.clone());
                    self.recorded.lock().insert(spare.guid(), missing);
                }
                Err(error) => {
                    are_known = false;
                    own.set_missing(unknown(&spare, synced, &error));
                }
            }
        }
        self.note_uses(uses_of(tree.leaves()));
        self.synced(tree, synced);
        are_known
    }

    /// What is recorded is on disk, in the state of `txg`: a crash leaves that.
    pub fn synced(&self, tree: &VdevTree, txg: Txg) {
        let recorded = self.recorded.lock();
        for vdev in tree
            .leaves()
            .into_iter()
            .chain(tree.topology().draid_spares())
        {
            let missing = recorded.get(&vdev.guid()).cloned().unwrap_or_default();
            if let Some(recorded) = vdev.recorded() {
                recorded.set(missing, txg);
            }
        }
    }

    /// Writes the logs that changed. Returns whether the configuration did: a leaf got its object.
    pub async fn sync(
        &self,
        sync: &SpaceSync<'_>,
        mos: &Arc<ObjectSet>,
        tree: &VdevTree,
        is_scanning: bool,
    ) -> Result<bool, DatasetError> {
        let mut config_changed = false;
        // Where nothing can be written the pool stands still, or does without, and nothing is
        // missed.
        for top in tree.tops().into_iter().filter(goes_on) {
            let leaves = top.leaves();
            // Before it is looked at what they miss: one may come back meanwhile.
            let uses = uses_of(leaves.clone());
            let spares_lack = do_spares_lack(&top);
            for vdev in &leaves {
                let Some(leaf) = vdev.leaf() else { continue };
                let is_back = is_scanning && self.is_back(vdev, spares_lack);
                if is_back || !leaf.is_writeable() {
                    leaf.dirty_times().add_missing(sync.tx.txg());
                }
            }
            self.uses.lock().extend(uses);
        }
        for vdev in tree
            .leaves()
            .into_iter()
            .chain(tree.topology().draid_spares())
        {
            let missing = vdev.own_missing();
            let same = match self.recorded.lock().get(&vdev.guid()) {
                Some(recorded) => *recorded == missing,
                None => missing.is_empty(),
            };
            if same {
                continue;
            }
            let known = vdev.config_u64(PAIR).filter(|id| *id != 0);
            let id = match known {
                Some(id) => ObjectId::new(id),
                None => {
                    let id = new_map(sync, mos, BLOCK_BYTES).await?;
                    vdev.set_config(PAIR, id.get());
                    config_changed = true;
                    id
                }
            };
            let map = writeable(sync, open(mos, id).await?);
            map.truncate(sync.tx, BLOCK_BYTES).await?;
            let ranges: Vec<(u64, u64)> = missing.iter().collect();
            map.append(sync.tx, SpaceMapKind::Allocate, None, &ranges)
                .await?;
            self.recorded.lock().insert(vdev.guid(), missing);
        }
        Ok(config_changed)
    }

    /// A scan begins: it reaches the devices that were in use at the moment of `uses`, which was
    /// before it was decided what it reads. Those that come later are not taken to have it.
    pub fn note_uses(&self, uses: Uses) {
        self.uses.lock().extend(uses);
    }

    /// A rebuild of these leaves begins: the same.
    pub fn note_uses_of(&self, leaves: Vec<Arc<Vdev>>) {
        self.uses.lock().extend(uses_of(leaves));
    }

    /// Whether a leaf has not come into use since the scan began, or since it was recorded that it
    /// did.
    pub fn was_noted(&self, vdev: &Vdev) -> bool {
        let uses = vdev.leaf().map(|leaf| leaf.uses());
        self.uses.lock().get(&vdev.guid()).copied() == uses
    }

    /// Whether a leaf came into use since a scan began, and was not given something meanwhile,
    /// perhaps: what it lacks, or what a distributed spare does that is on it.
    fn is_back(&self, vdev: &Vdev, spares_lack: bool) -> bool {
        !self.was_noted(vdev) && (spares_lack || !vdev.own_missing().is_empty())
    }

    /// Whether what devices lack is what was written last.
    pub fn is_recorded(&self, tree: &VdevTree, is_scanning: bool) -> bool {
        let mut tops = tree.tops().into_iter().filter(goes_on);
        let is_any_back = |top: Arc<Vdev>| {
            let spares_lack = do_spares_lack(&top);
            let leaves = top.leaves();
            leaves.iter().any(|vdev| self.is_back(vdev, spares_lack))
        };
        if is_scanning && tops.any(is_any_back) {
            return false;
        }
        let recorded = self.recorded.lock();
        let all = tree
            .leaves()
            .into_iter()
            .chain(tree.topology().draid_spares());
        all.into_iter().all(|vdev| {
            let missing = vdev.own_missing();
            match recorded.get(&vdev.guid()) {
                Some(recorded) => *recorded == missing,
                None => missing.is_empty(),
            }
        })
    }

    /// A leaf has another guid now.
    pub fn renamed(&self, before: Guid, now: Guid) {
        let mut recorded = self.recorded.lock();
        if let Some(missing) = recorded.remove(&before) {
            recorded.insert(now, missing);
        }
    }

    /// Frees the log of a leaf that leaves the pool.
    pub async fn remove(
        &self,
        sync: &SpaceSync<'_>,
        mos: &Arc<ObjectSet>,
        vdev: &Vdev,
    ) -> Result<(), DatasetError> {
        self.recorded.lock().remove(&vdev.guid());
        self.uses.lock().remove(&vdev.guid());
        if let Some(id) = vdev.config_u64(PAIR).filter(|id| *id != 0) {
            let map = open(mos, ObjectId::new(id)).await?;
            free_map(sync, map).await?;
            vdev.remove_config(PAIR);
        }
        Ok(())
    }
}

fn goes_on(top: &Arc<Vdev>) -> bool {
    top.state().0.is_usable()
}

/// Whether a distributed spare below a top-level vdev lacks something.
fn do_spares_lack(top: &Arc<Vdev>) -> bool {
    let spares = top.draid_spares();
    spares.iter().any(|spare| !spare.own_missing().is_empty())
}

/// How often the leaves came into use until now.
pub fn uses_of(leaves: Vec<Arc<Vdev>>) -> Uses {
    let uses = |vdev: Arc<Vdev>| Some((vdev.guid(), vdev.leaf()?.uses()));
    leaves.into_iter().filter_map(uses).collect()
}

/// What a device lacks whose log cannot be read: anything, so all of it is resilvered. The next
/// transaction group writes that into a new log.
fn unknown(vdev: &Vdev, synced: Txg, error: &ObjectError) -> RangeSet {
    let device = vdev.display_name();
    tracing::error!(device, %error, "it is not known what a device lacks; it is resilvered");
    vdev.remove_config(PAIR);
    let mut missing = RangeSet::default();
    let first = Txg::INITIAL.get();
    missing.add(first, synced.next().get().saturating_sub(first));
    missing
}

async fn read(mos: &Arc<ObjectSet>, id: ObjectId) -> Result<RangeSet, ObjectError> {
    let map = open(mos, id).await?;
    let mut missing = RangeSet::default();
    map.for_each(map.length_bytes(), &mut |entry| {
        match entry.kind {
            SpaceMapKind::Allocate => missing.add(entry.offset_bytes, entry.length_bytes),
            SpaceMapKind::Free => missing.remove(entry.offset_bytes, entry.length_bytes),
        };
        Ok(())
    })
    .await?;
    Ok(missing)
}

async fn open(mos: &Arc<ObjectSet>, id: ObjectId) -> Result<SpaceMapObject, ObjectError> {
    SpaceMapObject::open(mos, id, 0, u64::MAX, 0).await
}
