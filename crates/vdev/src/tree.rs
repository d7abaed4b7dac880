//! All vdevs of a pool: opening them, and I/O by (vdev, offset).

pub(crate) mod opening;
mod reopening;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use device::World;
use format::{Guid, NvList, Uberblock, VdevId};
use futures::future::join_all;
use parking_lot::Mutex;

use self::opening::{OpenOptions, Opening};
use super::common::{Common, Halt};
use super::config::{Builder, Scope};
use super::kind::VdevKind;
use super::leaf::Leaf;
use super::node::Vdev;
use super::state::{VdevAux, VdevState};
use crate::deadman;
use crate::error::{VdevError, bad};
use crate::evacuation;
use crate::indirect_map::IndirectMap;
use crate::inject::Injector;
use crate::io::{IoContext, LeafError, ReadFailure, Verify, WriteFailure};
use crate::patience::Patience;
use crate::repairs::{RepairEpoch, RepairsHeld};
use crate::report::ErrorSink;
use crate::topology::{Topology, TopologyError, link_spares};

/// What a removed vdev keeps of its configuration (`vdev_top_transfer`, module/zfs/vdev.c).
const INDIRECT_PAIRS: [&str; 10] = [
    "metaslab_shift",
    "ashift",
    "asize",
    "is_log",
    "alloc_bias",
    "com.delphix:indirect_object",
    "com.delphix:indirect_births",
    "com.delphix:prev_indirect_vdev",
    "create_txg",
    "com.delphix:vdev_zap_top",
];

/// The vdevs of a pool.
pub struct VdevTree {
    world: World,
    guid: AtomicU64,
    /// The root's own pairs.
    config: Mutex<NvList>,
    pub(super) topology: Topology,
    pub(super) opening: Opening,
    pub(super) common: Arc<Common>,
}

/// Which part of each device's time what is read as part of a scan has, in percent: also where
/// nobody else has I/O there. Unless one is said, it is half where somebody has, else all.
pub fn set_scan_share(tree: &VdevTree, percent: Option<u8>) {
    let percent = percent.map_or(0, |percent| percent.clamp(1, 100));
    tree.common.scan_share.store(percent, Ordering::Relaxed);
}

/// What was said by [`set_scan_share`].
pub fn scan_share(tree: &VdevTree) -> Option<u8> {
    let percent = tree.common.scan_share.load(Ordering::Relaxed);
    (percent != 0).then_some(percent)
}

/// The labels are those of the state that the tree was opened at: no device goes any more by a guid
/// that it had in a newer one ([`OpenOptions::successors`]).
pub fn forget_successors(tree: &VdevTree) {
    tree.opening.forget_successors();
}

/// What devices and blocks of the tree are made to do wrong.
pub fn injector(tree: &VdevTree) -> &Arc<Injector> {
    &tree.common.faults
}

impl VdevTree {
    /// Builds the tree of `config` (type root, as in the MOS's configuration) and opens its
    /// devices. Devices that cannot be opened, or are others than they should be, are left out:
    /// look at [`Vdev::state`] of the top-level vdevs for what that means.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] and [`VdevError::Format`] when the configuration cannot be right;
    /// [`VdevError::Device`] when another process has one of `options.paths`.
    pub async fn open(
        world: World,
        config: &NvList,
        options: OpenOptions,
    ) -> Result<Arc<VdevTree>, VdevError> {
        if config.require_string("type")? != "root" {
            return Err(bad("the vdev tree does not start with a root"));
        }
        let common = Arc::new(Common::new(world.clock.clone()));
        let subject = deadman::Subject::default();
        let looking =
            deadman::look_each_second(world.clone(), Arc::downgrade(&common), subject.clone());
        world.spawn.spawn(Box::pin(looking));
        let mut builder = Builder {
            world: &world,
            common: &common,
            count: 0,
        };
        let mut list = Vec::new();
        for (index, child) in config
            .lists("children")
            .unwrap_or_default()
            .iter()
            .enumerate()
        {
            list.push(builder.vdev(child, index, 1)?);
        }
        let mut own = NvList::with_flags(config.flags());
        for (name, value) in config.iter().filter(|(name, _)| *name != "children") {
            own.push(name, value.clone());
        }
        list.iter().for_each(link_spares);
        let tree = VdevTree {
            guid: AtomicU64::new(config.u64("guid").unwrap_or(0)),
            opening: Opening::new(&world, &common, options),
            world,
            config: Mutex::new(own),
            topology: Topology::new(list.clone()),
            common,
        };
        tree.opening.open_tops(&list).await?;
        let tree = Arc::new(tree);
        let _ = subject.set(Arc::downgrade(&tree));
        Ok(tree)
    }

    /// The world it was opened in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Takes over what an uberblock says of the vdevs: how far a RAID-Z expansion has come. Without
    /// that, blocks of a vdev that is being expanded cannot be found: call it before the MOS is
    /// read.
    pub fn set_uberblock(&self, uberblock: &Uberblock) {
        for top in self.tops() {
            if let Some(expansion) = top.kind().expansion() {
                expansion.set_reflow(uberblock);
            }
        }
    }

    /// Who is told of device and checksum errors.
    pub fn set_error_sink(&self, sink: Arc<dyn ErrorSink>) {
        self.common.set_error_sink(sink);
    }

    /// How long devices may keep operations waiting, and how long they do.
    pub fn patience(&self) -> &Patience {
        &self.common.patience
    }

    /// The top-level vdevs, and what is asked of them together.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What keeps writes, flushes and discards from the devices.
    pub fn halt(&self) -> &Halt {
        &self.common.halt
    }

    /// The root's guid: the pool's.
    pub fn guid(&self) -> Guid {
        Guid::new(self.guid.load(Ordering::Relaxed))
    }

    /// Gives the pool another guid (`spa_change_guid`): in syncing context, in a txg that writes
    /// all labels.
    pub fn set_guid(&self, guid: Guid) {
        self.guid.store(guid.get(), Ordering::Relaxed);
        self.opening.change_pool_guid(guid);
        self.set_root_config("guid", guid.get());
    }

    /// From now on devices must be labelled as the pool's: those of a new one were another's when
    /// they were opened.
    pub fn expect_own_labels(&self) {
        self.opening.expect_pool_guid(self.guid());
    }

    /// Whether devices were opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.opening.is_read_only()
    }

    /// Sum of all guids, wrapping: what the uberblock holds.
    pub fn guid_sum(&self) -> Guid {
        let tops = self.tops();
        let sum = tops.iter().fold(self.guid().get(), |sum, top| {
            sum.wrapping_add(top.guid_sum())
        });
        Guid::new(sum)
    }

    /// Number of top-level vdevs, holes included.
    pub fn top_count(&self) -> usize {
        self.topology.count()
    }

    /// The top-level vdevs, holes included.
    pub fn tops(&self) -> Vec<Arc<Vdev>> {
        self.topology.all()
    }

    /// A top-level vdev.
    pub fn top(&self, id: VdevId) -> Option<Arc<Vdev>> {
        self.topology.get(id)
    }

    /// All leaves.
    pub fn leaves(&self) -> Vec<Arc<Vdev>> {
        self.topology.leaves()
    }

    /// The vdev with this guid.
    pub fn find(&self, guid: Guid) -> Option<Arc<Vdev>> {
        self.topology.find(guid)
    }

    /// Opens the devices of new top-level vdevs (`zpool add`), which are no part of the tree yet.
    /// Label them with [`Self::init_labels`] before anything else.
    ///
    /// # Errors
    /// When a device cannot be opened.
    pub async fn prepare_tops(&self, configs: &[NvList]) -> Result<Vec<Arc<Vdev>>, VdevError> {
        let mut builder = Builder {
            world: &self.world,
            common: &self.common,
            count: 0,
        };
        let first = self.top_count();
        let mut added = Vec::new();
        for (index, config) in configs.iter().enumerate() {
            added.push(builder.vdev(config, first + index, 1)?);
        }
        self.opening.of_new_devices().open_tops(&added).await?;
        Ok(added)
    }

    /// A vdev by its configuration, as the next top-level vdev: no part of the tree, and nothing of
    /// it is opened.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`], [`VdevError::Format`].
    pub(crate) fn build(&self, config: &NvList) -> Result<Arc<Vdev>, VdevError> {
        let mut builder = Builder {
            world: &self.world,
            common: &self.common,
            count: 0,
        };
        builder.vdev(config, self.top_count(), 1)
    }

    /// Makes prepared vdevs a part of the tree: in syncing context, in a txg that writes the
    /// configuration, since the uberblock tells of every vdev from then on.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] when others were added since they were prepared.
    pub fn insert_tops(&self, prepared: &[Arc<Vdev>]) -> Result<(), VdevError> {
        self.topology.append(prepared)
    }

    /// Replaces a top-level vdev that holds nothing any more by a hole, so that the numbers of the
    /// others stay (`vdev_remove_make_hole_and_free`). In syncing context, in a txg that writes the
    /// configuration. Returns the vdev, with its devices still open.
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`].
    pub fn replace_with_hole(&self, id: VdevId) -> Result<Arc<Vdev>, VdevError> {
        let index = id.get() as usize;
        let mut config = NvList::new();
        config
            .set("type", "hole")
            .set("id", u64::from(id.get()))
            .set("guid", 0u64);
        for name in [
            "metaslab_array",
            "metaslab_shift",
            "ashift",
            "asize",
            "is_log",
        ] {
            config.set(name, 0u64);
        }
        config.set("is_hole", 1u64);
        let mut builder = Builder {
            world: &self.world,
            common: &self.common,
            count: 0,
        };
        let hole = builder.vdev(&config, index, 1)?;
        let replaced = self.topology.put(&hole);
        replaced.ok_or(VdevError::NoSuchVdev { vdev: id })
    }

    /// Replaces a top-level vdev whose blocks are all on others by one that tells where they are
    /// (`vdev_remove_replace_with_indirect`, module/zfs/vdev_removal.c), with the guid `guid`. In
    /// syncing context, in a txg that writes the configuration. Returns the vdev, with its devices
    /// still open: whoever reads from it goes on.
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`].
    pub fn replace_with_indirect(
        &self,
        id: VdevId,
        guid: Guid,
        map: IndirectMap,
    ) -> Result<Arc<Vdev>, VdevError> {
        let missing = || VdevError::NoSuchVdev { vdev: id };
        let before = self.top(id).ok_or_else(missing)?.to_config(Scope::Mos);
        let mut config = NvList::new();
        config
            .set("type", "indirect")
            .set("id", u64::from(id.get()))
            .set("guid", guid.get())
            .set("whole_disk", 0u64)
            .set("metaslab_array", 0u64);
        for name in INDIRECT_PAIRS {
            if let Some(value) = before.get(name) {
                config.set(name, value.clone());
            }
        }
        let mut builder = Builder {
            world: &self.world,
            common: &self.common,
            count: 0,
        };
        let indirect = builder.vdev(&config, id.get() as usize, 1)?;
        // Before anybody can see it: nothing can be read from one without a map.
        if let VdevKind::Indirect(own) = indirect.kind() {
            *own.map.write() = Some(Arc::new(map));
        }
        self.topology.put(&indirect).ok_or_else(missing)
    }

    /// Takes a device out of use: offline, or as one that failed. The configuration tells so unless
    /// it is `temporary`. Log devices are expendable: give their logs back before.
    ///
    /// # Errors
    /// [`TopologyError::OnlyCopy`] when the pool needs it, [`TopologyError::NoSuchVdev`],
    /// [`TopologyError::NotADevice`].
    pub fn take_out(&self, guid: Guid, fault: bool, temporary: bool) -> Result<(), TopologyError> {
        let top = self.topology.top_of(guid);
        let top = top.ok_or(TopologyError::NoSuchVdev { guid })?;
        let vdev = top.find(guid);
        let vdev = vdev.ok_or(TopologyError::NoSuchVdev { guid })?;
        let named = || vdev.display_name();
        let Some(leaf) = vdev.leaf() else {
            return Err(TopologyError::NotADevice { vdev: named() });
        };
        if !top.is_log() && self.topology.is_required(guid) {
            return Err(TopologyError::OnlyCopy { vdev: named() });
        }
        leaf.set_temporary(temporary);
        match fault {
            true => leaf.set_state(VdevState::Faulted, VdevAux::External),
            false => leaf.set_state(VdevState::Offline, VdevAux::None),
        }
        leaf.set_device(None);
        settle_kept(&top);
        Ok(())
    }

    /// The whole tree's configuration.
    pub fn to_config(&self, scope: Scope) -> NvList {
        let mut out = NvList::new();
        out.set("type", "root");
        out.set("id", 0u64);
        out.set("guid", self.guid().get());
        for (name, value) in self.config.lock().iter() {
            out.set(name, value.clone());
        }
        let children: Vec<NvList> = self.tops().iter().map(|top| top.to_config(scope)).collect();
        out.set("children", children);
        out
    }

    /// A number of the root's configuration.
    pub fn root_config_u64(&self, name: &str) -> Option<u64> {
        self.config.lock().u64(name)
    }

    /// Sets a pair of the root's configuration.
    pub fn set_root_config(&self, name: &str, value: impl Into<format::NvValue>) {
        self.config.lock().set(name, value);
    }

    /// Reads `psize` bytes at `offset` of a top-level vdev, using redundancy until `verify` agrees.
    pub async fn read_block(
        &self,
        id: VdevId,
        offset: u64,
        psize: usize,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        if let Some(top) = self.top(id).filter(|top| top.kind().is_indirect()) {
            return self
                .topology
                .read_indirect(&top, offset, psize, context, verify)
                .await;
        }
        match self.topology.check_range(id, offset, psize as u64) {
            Ok(top) => top.read_block(offset, psize, context, verify).await,
            Err(error) => Err(ReadFailure {
                checksum: false,
                device: false,
                slow: false,
                cause: error.to_string(),
            }),
        }
    }

    /// Writes at `offset` of a top-level vdev.
    pub async fn write_block(
        &self,
        id: VdevId,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        let mark = self.common.halt.mark();
        if let Some(top) = self.top(id).filter(|top| top.kind().is_indirect()) {
            let topology = &self.topology;
            return topology.repair_indirect(&top, offset, data, context).await;
        }
        match self.topology.check_range(id, offset, data.len() as u64) {
            Ok(top) => top.write_block(offset, data, context).await?,
            Err(error) => return Err(WriteFailure::new(error.to_string())),
        }
        // Some of its devices may not have got it, and the others cannot say so.
        if self.common.halt.is_unchanged(mark) {
            Ok(())
        } else {
            Err(WriteFailure {
                halted: true,
                cause: "the pool was suspended meanwhile".to_owned(),
            })
        }
    }

    /// What reads that begin now belong to ([`IoContext::since`]).
    pub fn repair_epoch(&self) -> RepairEpoch {
        self.common.repairs.epoch()
    }

    /// Waits for the repairs of readers under way; before what they repair may be used for
    /// something else.
    pub async fn hold_repairs(&self) -> RepairsHeld {
        self.common.repairs.hold().await
    }

    /// [`Self::write_block`] of a copy that was found wrong, as a task of its own: it is done also
    /// when the caller goes away.
    ///
    /// # Errors
    /// As [`Self::write_block`]; also when the block may have been freed since it was read.
    pub async fn repair_block(
        self: &Arc<Self>,
        id: VdevId,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        let since = context.since.filter(|_| !context.scan.is_scan());
        let Some(turn) = self.common.repairs.begin(since) else {
            let cause = "the block may have been freed since it was read";
            return Err(WriteFailure::new(cause.to_owned()));
        };
        let (tree, context) = (self.clone(), *context);
        let written = async move {
            tree.write_block(id, offset, data.clone(), &context).await?;
            evacuation::heal_copies(&tree, (id, offset), data, &context).await;
            Ok::<_, WriteFailure>(())
        };
        let ended = || Err(WriteFailure::new("the process ends".to_owned()));
        turn.run(&self.world, written).await.unwrap_or_else(ended)
    }

    /// Makes all completed writes durable. A device whose flush fails is faulted. Log vdevs may
    /// fail: what is on them is needed only until its txg is on disk.
    ///
    /// # Errors
    /// [`VdevError::NotDurable`] when that leaves a top-level vdev without enough devices, or it
    /// was already: the writes are kept for [`Self::reopen`].
    pub async fn flush(&self) -> Result<(), VdevError> {
        let (logs, others): (Vec<_>, Vec<_>) =
            self.tops().into_iter().partition(|top| top.is_log());
        let (log, other) = futures::join!(self.flush_tops(&logs), self.flush_tops(&others));
        if let Err(error) = log {
            tracing::warn!(%error, "a log device cannot be flushed; the pool goes on without it");
            for vdev in logs.iter().flat_map(Vdev::leaves) {
                if let Some(leaf) = vdev.leaf().filter(|leaf| !leaf.is_readable()) {
                    leaf.forget_kept();
                }
            }
        }
        other
    }

    /// [`Self::flush`] of some top-level vdevs.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn flush_tops(&self, tops: &[Arc<Vdev>]) -> Result<(), VdevError> {
        let mark = self.common.halt.mark();
        let flushes = tops.iter().map(|top| async move {
            let leaves = top.leaves();
            let leaves = leaves.iter().filter_map(|vdev| vdev.leaf());
            let results = join_all(leaves.map(|leaf| async move {
                if leaf.is_writeable() {
                    return leaf.flush().await;
                }
                // What another flush under way could not make durable is kept only when that is
                // over.
                drop(leaf.stop_writes().await);
                Ok(())
            }))
            .await;
            let failure = results.into_iter().find_map(Result::err);
            (top, failure)
        });
        let flushed = join_all(flushes).await;
        self.common.halt.check_unchanged(mark)?;
        settle_flushed(flushed)
    }

    /// After a write with [`IoContext::durable`] that succeeded: whether the pool has what devices
    /// had taken that are gone by now, as after [`Self::flush_tops`]. Of the others it says
    /// nothing: what they had taken waits for a flush.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn settle_written(&self, id: VdevId) -> Result<(), VdevError> {
        match self.top(id) {
            Some(top) => settle_flushed([(&top, None)]),
            None => Ok(()),
        }
    }

    /// Tells the devices of a top-level vdev that a range holds nothing any more (only where blocks
    /// lie whole on every child).
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`], or what the devices say.
    pub async fn discard(&self, id: VdevId, offset: u64, length: u64) -> Result<(), VdevError> {
        let top = self.topology.usable_top(id)?;
        if matches!(top.kind(), VdevKind::Raidz(_) | VdevKind::Draid(_)) {
            return Ok(());
        }
        for vdev in top.leaves() {
            if let Some(leaf) = vdev.leaf().filter(|leaf| leaf.is_writeable()) {
                leaf.discard(offset, length)
                    .await
                    .map_err(|error| VdevError::VdevUnavailable {
                        vdev: vdev.display_name(),
                        cause: error.to_string(),
                    })?;
            }
        }
        Ok(())
    }

    /// Closes all devices: no I/O reaches them through this tree any more.
    pub fn close(&self) {
        for vdev in self.leaves() {
            if let Some(leaf) = vdev.leaf() {
                leaf.set_state(VdevState::Closed, VdevAux::None);
                leaf.set_device(None);
            }
        }
    }
}

/// Whether a top-level vdev has all its data without the devices that cannot be used now: those
/// that are there may lack some of it themselves (`vdev_dtl_required`, module/zfs/vdev.c).
fn has_all_data(top: &Arc<Vdev>) -> bool {
    top.state().0.is_usable() && !top.lacks_data()
}

/// After flushes of top-level vdevs, each with the failure of one of its devices if there was one.
fn settle_flushed<'a>(
    flushed: impl IntoIterator<Item = (&'a Arc<Vdev>, Option<LeafError>)>,
) -> Result<(), VdevError> {
    for (top, failure) in flushed {
        settle_kept(top);
        // Whoever found out that it is gone need not have been a flush.
        let is_lost = |leaf: &Arc<Leaf>| !leaf.is_readable() && leaf.has_kept();
        let leaves = top.leaves();
        let lost = leaves.iter().any(|vdev| vdev.leaf().is_some_and(is_lost));
        if lost || failure.is_some() && !top.state().0.is_usable() {
            let cause = failure.map_or_else(
                || format!("it is {}", top.state().0),
                |failure| failure.to_string(),
            );
            return Err(VdevError::NotDurable {
                reason: format!("{} could not be flushed ({cause})", top.display_name()),
            });
        }
    }
    Ok(())
}

/// Where the pool goes on without a device, that misses what it took and did not flush.
pub(super) fn settle_kept(top: &Arc<Vdev>) {
    let leaves = top.leaves();
    let gone = leaves
        .iter()
        .filter_map(|vdev| vdev.leaf())
        .filter(|leaf| !leaf.is_readable() && leaf.has_kept());
    for leaf in gone {
        if has_all_data(top) {
            leaf.forget_kept();
        }
    }
}

impl std::fmt::Debug for VdevTree {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("VdevTree")
            .field("guid", &self.guid())
            .field("tops", &self.tops())
            .finish_non_exhaustive()
    }
}
