//! Beginning and stopping the removal of a vdev that has data, and what it would cost.
//!
//! Beginning: nothing is allocated from the vdev any more; intent logs are given back, since their
//! blocks are written long after they were allocated; then one transaction group says that the vdev
//! is being removed (`vdev_remove_initiate_sync`). A crash before that leaves nothing. From the
//! first step to the end of the removal the allocator is held off the vdev ([`Allocator::hold`]),
//! whatever anybody says to it who looks at the states of devices; a group that comes when the one
//! who asked has given up ([`Offer`]) begins nothing.
//!
//! [`Allocator::hold`]: zio::alloc::Allocator::hold

use std::sync::Arc;

use dataset::{DatasetError, SyncTask};
use device::BoxFuture;
use format::names::config::{NONALLOCATING, REMOVING};
use format::{IndirectMappingEntry, RemovingPhys, VdevId};
use object::SyncContext;
use parking_lot::Mutex;
use spa::PoolError;
use spa::features::ZPOOL_CHECKPOINT;
use space::SpaceSync;
use vdev::{AllocClass, IndirectMap, Vdev, evacuation};
use zio::Tx;
use zio::alloc::{TopSpace, settled, slop_bytes};

use super::{
    BIRTHS_OBJECT, CONCURRENT_TXGS, Checked, DEVICE_REMOVAL, ENTRIES_MAX, ENTRY_BYTES_MAX,
    Evacuation, MAPPING_OBJECT, Running, SCAN_SCANNING, is_plain, missing, store, top_zap,
};
use crate::newtops::Emptied;

/// Rounds of giving logs back: of those that are open when a vdev is to get nothing any more, and
/// of those that got something until then.
const ROUNDS: u32 = 2;

/// What `zpool` says where vdevs do not go together (`zpool_vdev_remove`,
/// lib/libzfs/libzfs_pool.c).
const BAD_CONFIG: &str =
    "invalid config; all top-level vdevs must have the same sector size and not be raidz.";
const BUSY: &str = "Pool busy; removal may already be in progress";

impl Evacuation {
    /// Begins to remove a top-level vdev that is no log: returns when the pool on disk says so. The
    /// caller holds `admin`, has made sure that there is no checkpoint, and says afterwards where
    /// blocks may go, whatever came of it.
    pub(crate) async fn begin(self: &Arc<Self>, top: &Arc<Vdev>) -> Result<(), PoolError> {
        let (spa, vdev) = (&self.spa, top.vdev_id());
        self.check(top)?;
        let _emptied = Emptied::begin(&self.new_tops, spa.pipeline.allocator(), vec![vdev]);
        for _ in 0..ROUNDS {
            spa.unless_suspended(spa.dsl.logs().close_all()).await?;
            spa.unless_suspended(spa.txgs.sync()).await?;
        }
        // Things may have changed meanwhile.
        self.check(top)?;
        let is_pending = |space: &TopSpace| space.vdev == vdev && space.pending_bytes > 0;
        if spa.pipeline.allocator().top_spaces().iter().any(is_pending) {
            return Err(refusal(top, BUSY));
        }
        // Goes before the other one does.
        let offered = Offered(Arc::new(Mutex::new(Offer::Stands)));
        let task = BeginTask {
            evacuation: self.clone(),
            vdev,
            offer: offered.0.clone(),
        };
        spa.run_task(task).await?;
        match *offered.0.lock() {
            Offer::Refused(why) => Err(refusal(top, why)),
            _ => Ok(()),
        }
    }

    /// Has the removal that is under way stopped, and waits until it is. The caller holds `admin`,
    /// so that it does not finish meanwhile.
    pub(crate) async fn stop(&self) -> Result<(), PoolError> {
        let is_asked = self.state.lock().running.as_mut().is_some_and(|running| {
            running.is_to_stop = running.ended_in.is_none();
            running.is_to_stop
        });
        if !is_asked {
            let pool = self.spa.identity.name();
            return Err(PoolError::NoRemoval { pool });
        }
        let stopped = async {
            let is_to_come = |running: Running| running.is_to_stop && running.ended_in.is_none();
            while self.running().is_some_and(is_to_come) {
                self.spa.txgs.sync().await?;
            }
            Ok::<_, PoolError>(())
        };
        self.spa.unless_suspended(stopped).await
    }

    /// Bytes of memory that the mapping of a vdev would take if it were removed now, roughly: an
    /// entry for each run of allocated space.
    pub(crate) fn estimated_mapping_bytes(&self, vdev: VdevId) -> u64 {
        let allocator = self.spa.pipeline.allocator();
        let mut runs = 0;
        let mut allocated_bytes = 0;
        for (index, (range, free_bytes)) in allocator.metaslab_spaces(vdev).into_iter().enumerate()
        {
            let length = range.end - range.start;
            allocated_bytes += length.saturating_sub(free_bytes);
            if free_bytes < length {
                // There are about as many allocated runs as free ones.
                let free_runs = allocator.histogram(vdev, index as u64);
                runs += free_runs.map_or(1, |runs| runs.iter().sum::<u64>().max(1));
            }
        }
        (runs + allocated_bytes / ENTRY_BYTES_MAX) * IndirectMappingEntry::BYTES as u64
    }

    /// Whether a vdev can be removed (`spa_vdev_remove_top_check`).
    fn check(&self, top: &Arc<Vdev>) -> Result<(), PoolError> {
        let spa = &self.spa;
        let refuse = |why: &str| Err(refusal(top, why));
        if !spa.dsl.features().is_enabled(DEVICE_REMOVAL) {
            return refuse(
                "operation not supported on this type of pool: feature@device_removal is \
                 disabled; enable it with 'zpool set' or 'zpool upgrade'",
            );
        }
        match self.running() {
            Some(running) if running.vdev == top.vdev_id() => {
                return refuse("removal for this vdev is already in progress.");
            }
            Some(_) => return refuse(BUSY),
            None => {}
        }
        if top_zap(top).is_err() {
            return refuse("it has no ZAP, where the removal would be recorded");
        }
        if !fits_together(top, &spa.tree.tops()) {
            return refuse(BAD_CONFIG);
        }
        let has_all = |vdev: &Arc<Vdev>| {
            vdev.leaf()
                .is_some_and(|leaf| leaf.is_readable() && leaf.dirty_times().missing().is_empty())
        };
        if !top.leaves().iter().any(has_all) {
            return refuse("Pool busy; the device lacks data, wait until it is resilvered");
        }
        if self.scans.is_rebuilding() || self.scans.scan.is_resilvering() {
            return refuse("Pool busy; wait until devices are resilvered");
        }
        if !evacuation::takes_copies(&spa.tree, top.vdev_id()) {
            return refuse(
                "a vdev that would get its data has no device that can be written and lacks \
                 nothing, or a device of its own lacks something; see 'zpool status'",
            );
        }
        if !self.has_room(top.vdev_id()) {
            return refuse("out of space");
        }
        let entry_bytes = IndirectMappingEntry::BYTES as u64;
        if self.estimated_mapping_bytes(top.vdev_id()) / entry_bytes > ENTRIES_MAX / 2 {
            return refuse("its mapping would be bigger than one that can be imported");
        }
        Ok(())
    }

    /// Whether the other vdevs have room for what is on this one, and more to work with: as users
    /// see it the pool holds without the vdev all that is used and reserved, with what is kept
    /// back; and the others have so much free space.
    fn has_room(&self, vdev: VdevId) -> bool {
        let allocator = self.spa.pipeline.allocator();
        let spaces = allocator.top_spaces();
        let own = spaces.iter().find(|space| space.vdev == vdev);
        let needed_bytes = own.map_or(0, |space| space.allocated_bytes - space.deferred_bytes);
        let takes_blocks = |space: &&TopSpace| {
            space.vdev != vdev
                && space.class == AllocClass::Normal
                && self.spa.pipeline.allocator().is_allocatable(space.vdev)
        };
        let (mut size_bytes, mut free_bytes) = (0, 0);
        for space in spaces.iter().filter(takes_blocks) {
            size_bytes += space.size_deflated_bytes;
            let used_bytes = space.allocated_bytes + space.pending_bytes;
            free_bytes += space.size_bytes.saturating_sub(used_bytes);
        }
        let slop_bytes = slop_bytes(size_bytes);
        // What the vdev adds to the pool's size (`spa_update_dspace`, module/zfs/spa_misc.c).
        let own_bytes = own.map_or(0, |space| match space.class {
            AllocClass::Normal if settled::is_withheld(allocator, vdev) => 0,
            AllocClass::Normal => space.size_deflated_bytes,
            _ => space.allocated_deflated_bytes,
        });
        let totals = allocator.totals();
        let left_bytes = totals.usable_deflated_bytes.saturating_sub(own_bytes);
        let spoken_for_bytes = self.spa.dsl.directories().spoken_for_bytes();
        size_bytes > 0
            && needed_bytes.saturating_add(slop_bytes) <= free_bytes
            && spoken_for_bytes.saturating_add(slop_bytes) <= left_bytes
    }
}

fn refusal(top: &Vdev, why: &str) -> PoolError {
    PoolError::CannotRemove {
        device: top.display_name(),
        why: why.to_owned(),
    }
}

/// Whether all vdevs of the pool are disks and mirrors of them, and those that get data have
/// sectors of one size with the vdev that is to be removed.
fn fits_together(top: &Vdev, tops: &[Arc<Vdev>]) -> bool {
    let class_of = |vdev: &Vdev| vdev.top().map_or(AllocClass::Normal, |about| about.class);
    let is_concrete = |vdev: &&Arc<Vdev>| !vdev.kind().is_hole() && !vdev.kind().is_indirect();
    let own = class_of(top);
    is_plain(top)
        && tops.iter().filter(is_concrete).all(|other| {
            let class = class_of(other);
            let gets_data = class == AllocClass::Normal
                || class == own
                || (own, class) == (AllocClass::Dedup, AllocClass::Special);
            is_plain(other) && (!gets_data || other.ashift() == top.ashift())
        })
}

/// What became of somebody's wish to begin.
enum Offer {
    Stands,
    /// The vdev is being removed.
    Taken,
    /// It cannot be, any more.
    Refused(&'static str),
    /// Nobody waits for it, as in a pool that was suspended: blocks may go to the vdev again.
    Withdrawn,
}

/// Withdraws an offer that stands when nobody waits for it any more.
struct Offered(Arc<Mutex<Offer>>);

impl Drop for Offered {
    fn drop(&mut self) {
        let mut offer = self.0.lock();
        if matches!(*offer, Offer::Stands) {
            *offer = Offer::Withdrawn;
        }
    }
}

struct BeginTask {
    evacuation: Arc<Evacuation>,
    vdev: VdevId,
    offer: Arc<Mutex<Offer>>,
}

impl SyncTask for BeginTask {
    fn name(&self) -> &'static str {
        "begin to remove a vdev"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.begin(ctx))
    }
}

impl BeginTask {
    async fn begin(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let (evacuation, vdev) = (&self.evacuation, self.vdev);
        let spa = &evacuation.spa;
        let top = spa.tree.top(vdev).ok_or_else(|| missing(vdev))?;
        let tx = &Tx::syncing(ctx.txg);
        let (features, mos) = (spa.dsl.features(), spa.dsl.mos());
        let allocator = spa.pipeline.allocator();
        {
            let mut offer = self.offer.lock();
            if !matches!(*offer, Offer::Stands) {
                return Ok(());
            }
            if features.is_active(ZPOOL_CHECKPOINT) {
                *offer = Offer::Refused("the pool has a checkpoint");
                return Ok(());
            }
            if evacuation.is_active() {
                *offer = Offer::Refused(BUSY);
                return Ok(());
            }
            *offer = Offer::Taken;
            // In a row: whoever asks the configuration hears it from now on, and whoever asked
            // before is held off.
            settled::hold(allocator, vdev);
            top.set_config(REMOVING, 1u64);
            top.set_config(NONALLOCATING, 1u64);
            allocator.set_allocatable(vdev, false);
        }
        let sync = SpaceSync {
            ctx,
            tx,
            features,
            pipeline: &spa.pipeline,
        };
        features.increment(ctx, DEVICE_REMOVAL).await?;
        let objects = store::Objects::create(&sync, mos, top_zap(&top)?).await?;
        top.set_config(MAPPING_OBJECT, objects.mapping.get());
        top.set_config(BIRTHS_OBJECT, objects.births.get());
        let previous = evacuation.state.lock().phys;
        let phys = RemovingPhys {
            state: SCAN_SCANNING,
            removing_vdev: u64::from(vdev.get()),
            previous_indirect_vdev: previous.map_or(u64::MAX, |phys| phys.previous_indirect_vdev),
            start_time_seconds: evacuation.now_s(),
            end_time_seconds: 0,
            to_copy_bytes: settled::remaining_bytes(allocator, vdev),
            copied_bytes: 0,
        };
        store::store_state(tx, mos, &phys).await?;
        store::move_directory(tx, mos).await?;
        settled::set_withheld(allocator, vdev, true);
        spa.pipeline
            .dvas()
            .begin_removal(vdev, IndirectMap::default());
        {
            let mut state = evacuation.state.lock();
            state.phys = Some(phys);
            state.has_moved = true;
            state.running = Some(Running {
                vdev,
                objects,
                from_txg: format::Txg::new(ctx.txg.get() + CONCURRENT_TXGS),
                is_counted: false,
                passed_bytes: 0,
                checked: Checked::default(),
                is_to_stop: false,
                ended_in: None,
                is_leaving: false,
            });
        }
        evacuation.active.send_replace(true);
        spa.identity.mark_dirty();
        let pool = spa.identity.lock().disk_name.clone();
        let path = top.path().unwrap_or_else(|| "-".to_owned());
        let text = format!("{pool} vdev {vdev} {path}");
        spa.history.internal(tx, "vdev remove started", text).await;
        Ok(())
    }
}
