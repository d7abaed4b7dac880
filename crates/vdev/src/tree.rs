//! All vdevs of a pool: opening them, and I/O by (vdev, offset).

pub(crate) mod opening;
mod reopening;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use device::World;
use format::{BlockPointer, DVAS_PER_POINTER, Dva, Guid, NvList, Txg, Uberblock, VdevId};
use futures::future::{Either, join_all, select};
use parking_lot::{Mutex, RwLock};

use super::common::Common;
use super::config::{Builder, Scope};
use super::kind::VdevKind;
use super::leaf::Leaf;
use super::node::Vdev;
use super::state::{VdevAux, VdevState};
use crate::deadman;
use crate::error::{VdevError, bad};
use crate::io::{IoContext, LeafError, ReadFailure, Verify, WriteFailure};
use crate::patience::{PATIENCE, Patience};
use crate::repairs::{RepairEpoch, RepairsHeld};
use crate::report::ErrorSink;
use crate::top_spec::AllocClass;
use crate::top_spec::TopSpec;
use crate::topology::{TopologyError, link_spares};

/// Smallest sector size that a pool can have, as log2 (`ASHIFT_MIN`).
pub const ASHIFT_MIN: u32 = 9;
/// Largest sector size that a pool can have, as log2 (`ASHIFT_MAX`).
pub const ASHIFT_MAX: u32 = 16;

/// How to open a tree.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Open the devices for reading only.
    pub read_only: bool,
    /// What is opened for reading nobody else gets for writing meanwhile
    /// ([`Device::keep_writers_out`]).
    pub keep_writers_out: bool,
    /// Where devices are, by their leaf's guid; instead of the paths in the configuration.
    pub paths: BTreeMap<Guid, String>,
    /// The pool's guid, when labels must belong to it.
    pub pool_guid: Option<Guid>,
    /// New devices: they have no labels yet, and their sizes are still to be determined.
    pub create: bool,
}

/// What sizes of stored blocks are rounded up to (`spa_min_alloc` and `spa_gcd_alloc`,
/// `zio_roundup_alloc_size`; module/zfs/zio.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocUnits {
    /// The least that any vdev allocates, in bytes.
    pub min_bytes: u64,
    /// What all sizes above are multiples of, in bytes.
    pub step_bytes: u64,
}

impl AllocUnits {
    /// The size that so many bytes are stored with.
    pub fn round_up(&self, bytes: usize) -> usize {
        if bytes as u64 <= self.min_bytes {
            self.min_bytes as usize
        } else {
            bytes.next_multiple_of(self.step_bytes as usize)
        }
    }
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

struct Tops {
    /// By index; ids have no gaps (removed vdevs are holes).
    list: Vec<Arc<Vdev>>,
}

/// The vdevs of a pool.
pub struct VdevTree {
    world: World,
    guid: AtomicU64,
    options: OpenOptions,
    /// Where devices are, as [`OpenOptions::paths`] said, until other devices take their places.
    paths: Mutex<BTreeMap<Guid, String>>,
    /// The pool's guid, when labels must belong to it.
    pool_guid: Mutex<Option<Guid>>,
    /// The root's own pairs.
    config: Mutex<NvList>,
    tops: RwLock<Tops>,
    pub(super) common: Arc<Common>,
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
        let common = Arc::new(Common::default());
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
            pool_guid: Mutex::new(options.pool_guid),
            paths: Mutex::new(options.paths.clone()),
            world,
            options,
            config: Mutex::new(own),
            tops: RwLock::new(Tops { list: list.clone() }),
            common,
        };
        tree.open_tops(&list).await?;
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

    /// Lets no write, flush or discard go to a device any more, or again. Callers take turns.
    pub fn set_halted(&self, halted: bool) {
        self.common.halt.set(halted);
    }

    /// Whether devices get nothing now.
    pub fn is_halted(&self) -> bool {
        self.common.halt.is_halted()
    }

    /// The root's guid: the pool's.
    pub fn guid(&self) -> Guid {
        Guid::new(self.guid.load(Ordering::Relaxed))
    }

    /// Gives the pool another guid (`spa_change_guid`): in syncing context, in a txg that writes
    /// all labels.
    pub fn set_guid(&self, guid: Guid) {
        self.guid.store(guid.get(), Ordering::Relaxed);
        if let Some(expected) = &mut *self.pool_guid.lock() {
            *expected = guid;
        }
        self.set_root_config("guid", guid.get());
    }

    /// From now on devices must be labelled as the pool's: those of a new one were another's when
    /// they were opened.
    pub fn expect_own_labels(&self) {
        *self.pool_guid.lock() = Some(self.guid());
    }

    /// Whether devices were opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Sum of all guids, wrapping: what the uberblock holds.
    pub fn guid_sum(&self) -> Guid {
        let sum = self
            .tops
            .read()
            .list
            .iter()
            .fold(self.guid().get(), |sum, top| {
                sum.wrapping_add(top.guid_sum())
            });
        Guid::new(sum)
    }

    /// Number of top-level vdevs, holes included.
    pub fn top_count(&self) -> usize {
        self.tops.read().list.len()
    }

    /// The top-level vdevs, holes included.
    pub fn tops(&self) -> Vec<Arc<Vdev>> {
        self.tops.read().list.clone()
    }

    /// A top-level vdev.
    pub fn top(&self, id: VdevId) -> Option<Arc<Vdev>> {
        self.tops.read().list.get(id.get() as usize).cloned()
    }

    /// All leaves.
    pub fn leaves(&self) -> Vec<Arc<Vdev>> {
        self.tops().iter().flat_map(Vdev::leaves).collect()
    }

    /// All dRAID spares that stand in for a device.
    pub fn draid_spares(&self) -> Vec<Arc<Vdev>> {
        self.tops().iter().flat_map(Vdev::draid_spares).collect()
    }

    /// The vdev with this guid.
    pub fn find(&self, guid: Guid) -> Option<Arc<Vdev>> {
        self.tops().iter().find_map(|top| top.find(guid))
    }

    /// Adds new top-level vdevs at once: [`Self::prepare_tops`], [`Self::insert_tops`].
    ///
    /// # Errors
    /// When a device cannot be opened; then nothing is added.
    pub async fn add_tops(&self, configs: &[NvList]) -> Result<Vec<Arc<Vdev>>, VdevError> {
        let added = self.prepare_tops(configs).await?;
        self.insert_tops(&added)?;
        Ok(added)
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
        let fresh = VdevTree {
            world: self.world.clone(),
            guid: AtomicU64::new(self.guid().get()),
            pool_guid: Mutex::new(None),
            paths: Mutex::default(),
            options: OpenOptions {
                create: true,
                ..self.options.clone()
            },
            config: Mutex::new(NvList::new()),
            tops: RwLock::new(Tops { list: Vec::new() }),
            common: self.common.clone(),
        };
        fresh.open_tops(&added).await?;
        Ok(added)
    }

    /// Makes prepared vdevs a part of the tree: in syncing context, in a txg that writes the
    /// configuration, since the uberblock tells of every vdev from then on.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] when others were added since they were prepared.
    pub fn insert_tops(&self, prepared: &[Arc<Vdev>]) -> Result<(), VdevError> {
        let mut tops = self.tops.write();
        let first = tops.list.len();
        let follow =
            |(index, top): (usize, &Arc<Vdev>)| top.vdev_id().get() as usize == first + index;
        if !prepared.iter().enumerate().all(follow) {
            return Err(bad("vdevs were added by somebody else at the same time"));
        }
        tops.list.extend(prepared.iter().cloned());
        Ok(())
    }

    /// Puts a top-level vdev in the place of the one that has its number.
    pub(crate) fn put_top(&self, top: &Arc<Vdev>) {
        let mut tops = self.tops.write();
        if let Some(slot) = tops.list.get_mut(top.vdev_id().get() as usize) {
            *slot = top.clone();
        }
    }

    /// Looks for a device where the configuration says from now on.
    pub(crate) fn forget_path(&self, guid: Guid) {
        self.paths.lock().remove(&guid);
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
        let mut tops = self.tops.write();
        let slot = tops
            .list
            .get_mut(index)
            .ok_or(VdevError::NoSuchVdev { vdev: id })?;
        Ok(std::mem::replace(slot, hole))
    }

    /// Waits for a device, but not for ever.
    ///
    /// # Errors
    /// [`VdevError::Stalled`].
    pub(super) async fn patiently<T>(
        &self,
        vdev: &Vdev,
        work: impl Future<Output = T>,
    ) -> Result<T, VdevError> {
        match select(pin!(work), self.world.clock.sleep(PATIENCE)).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => Err(VdevError::Stalled {
                vdev: vdev.display_name(),
            }),
        }
    }

    /// Takes a device out of use: offline, or as one that failed. The configuration tells so unless
    /// it is `temporary`. Log devices are expendable: give their logs back before.
    ///
    /// # Errors
    /// [`TopologyError::OnlyCopy`] when the pool needs it, [`TopologyError::NoSuchVdev`],
    /// [`TopologyError::NotADevice`].
    pub fn take_out(&self, guid: Guid, fault: bool, temporary: bool) -> Result<(), TopologyError> {
        let top = self.top_of(guid);
        let top = top.ok_or(TopologyError::NoSuchVdev { guid })?;
        let vdev = top.find(guid);
        let vdev = vdev.ok_or(TopologyError::NoSuchVdev { guid })?;
        let named = || vdev.display_name();
        let Some(leaf) = vdev.leaf() else {
            return Err(TopologyError::NotADevice { vdev: named() });
        };
        if !top.is_log() && self.is_required(guid) {
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

    /// What stored sizes are rounded up to, by the vdevs that hold data; sectors of 512 bytes while
    /// there are none.
    pub fn alloc_units(&self) -> AllocUnits {
        let tops = self.tops.read();
        let units = tops
            .list
            .iter()
            .filter(|top| {
                top.asize_bytes() > 0 && top.top().is_some_and(|top| top.class != AllocClass::Log)
            })
            .filter_map(|top| top.geometry())
            .map(|geometry| geometry.alloc_unit_bytes());
        let both = units.fold(None, |both: Option<AllocUnits>, unit| {
            let (min, step) = both.map_or((unit, unit), |both| (both.min_bytes, both.step_bytes));
            Some(AllocUnits {
                min_bytes: min.min(unit),
                step_bytes: common_divisor(step, unit),
            })
        });
        both.unwrap_or(AllocUnits {
            min_bytes: 512,
            step_bytes: 512,
        })
    }

    /// Least allocation of any vdev that holds data: see [`Self::alloc_units`].
    pub fn min_alloc_bytes(&self) -> u64 {
        self.alloc_units().min_bytes
    }

    /// Whether a top-level vdev other than logs cannot be used.
    pub fn lacks_tops(&self) -> bool {
        self.tops.read().list.iter().any(|top| {
            top.top().is_some_and(|top| top.class != AllocClass::Log) && !top.state().0.is_usable()
        })
    }

    /// What the allocator needs to know of a top-level vdev; `None` for holes and the like.
    pub fn top_spec(&self, top: &Vdev) -> Option<TopSpec> {
        let geometry = top.geometry()?;
        let deflate_ratio = top.deflate_ratio()?;
        let about = top.top()?;
        let is_set = |pair| top.config_u64(pair).unwrap_or(0) != 0;
        (top.metaslab_count() > 0).then(|| TopSpec {
            vdev: about.id,
            class: about.class,
            metaslab_shift: top.metaslab_shift(),
            metaslab_count: top.metaslab_count(),
            geometry,
            before: top.geometry_before(),
            deflate_ratio,
            allocatable: !is_set("removing")
                && !is_set("non_allocating")
                && !top.is_expanding()
                && top.state().0.is_usable(),
            is_withheld: is_set("non_allocating"),
        })
    }

    /// Whether a block lies on log vdevs alone that are not there (`zpool import -m`).
    pub fn is_on_lost_log(&self, block: &BlockPointer) -> bool {
        let lost = |dva: &Dva| {
            self.top(dva.vdev()).is_some_and(|top| {
                !top.state().0.is_usable()
                    && top.top().is_some_and(|top| top.class == AllocClass::Log)
            })
        };
        let mut places = (0..DVAS_PER_POINTER).filter_map(|copy| block.dva(copy));
        let mut any = false;
        places.all(|dva| {
            any = true;
            lost(&dva)
        }) && any
    }

    /// Whether a block that cannot be read now may be readable when devices that stopped working
    /// since the pool was opened are back: those that are there may lack it. Devices that were
    /// attached after it was written, and not resilvered since, have nothing to bring back.
    pub fn may_come_back(&self, block: &BlockPointer) -> bool {
        let birth = block.physical_birth();
        is_any_out(self, block, |leaf| !was_attached_after(leaf, birth))
    }

    /// Whether an intent log's block of which no device that works has a right copy was certainly
    /// never acknowledged: all its devices are there, or so many of those that must have it that
    /// they would make up for the others. Those must that are not known to lack its txg
    /// ([`Self::check_recorded`]). Not so when one stopped working since the pool was opened.
    pub fn tells_of(&self, block: &BlockPointer) -> bool {
        let (birth, length) = (block.physical_birth(), block.psize_bytes() as usize);
        let is_there = |vdev: &Arc<Vdev>| vdev.leaf().is_some_and(|leaf| leaf.is_readable());
        let tells = |dva: &Dva| {
            self.top(dva.vdev()).is_some_and(|top| {
                top.leaves().iter().all(is_there)
                    || !top.may_lack_block(dva.offset_bytes(), length, birth)
            })
        };
        !is_any_out(self, block, |_| true) && block.dvas().all(|dva| tells(&dva))
    }

    /// After an intent log's block was written and flushed: whether it is durable, and the pool's
    /// state on disk tells of every device that did not take it. Such a device would else be
    /// trusted after a crash, and could say alone that the block was never written.
    ///
    /// # Errors
    /// [`VdevError::VdevUnavailable`]: some device lacks it, which the next txg will record; or too
    /// many lack it.
    pub fn check_recorded(&self, block: &BlockPointer) -> Result<(), VdevError> {
        let birth = block.physical_birth();
        for top in block.dvas().filter_map(|dva| self.top(dva.vdev())) {
            let mut all = top.leaves().into_iter().chain(top.draid_spares());
            let lacking = match top.lacks_txg(birth) {
                true => Some(top.clone()),
                false => all.find(|vdev| vdev.forgets_missing(birth)),
            };
            if let Some(vdev) = lacking {
                return Err(VdevError::VdevUnavailable {
                    vdev: vdev.display_name(),
                    cause: "it did not take a write, which is not on record yet".to_owned(),
                });
            }
        }
        Ok(())
    }

    fn usable_top(&self, id: VdevId) -> Result<Arc<Vdev>, VdevError> {
        let top = self.top(id).ok_or(VdevError::NoSuchVdev { vdev: id })?;
        match top.kind() {
            VdevKind::Other(_) => Err(VdevError::UnsupportedVdev {
                vdev: top.display_name(),
                kind: top.kind().name().to_owned(),
            }),
            VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect(_) => {
                Err(VdevError::VdevUnavailable {
                    vdev: top.display_name(),
                    cause: format!("it is {}", top.kind().name()),
                })
            }
            _ => Ok(top),
        }
    }

    /// Checks that a block lies on its vdev (`zfs_dva_valid` and friends).
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`], [`VdevError::UnsupportedVdev`], [`VdevError::VdevUnavailable`],
    /// [`VdevError::BadAddress`].
    pub fn check_range(&self, id: VdevId, offset: u64, psize: u64) -> Result<Arc<Vdev>, VdevError> {
        let top = self.usable_top(id)?;
        let geometry = top.geometry().ok_or(VdevError::NoSuchVdev { vdev: id })?;
        let end = offset.checked_add(geometry.asize(psize));
        let aligned = offset.is_multiple_of(geometry.sector_bytes());
        if !aligned || end.is_none_or(|end| end > top.asize_bytes()) {
            return Err(VdevError::BadAddress {
                place: format!("{id}:{offset:#x}"),
                what: format!("{psize} bytes there are not within {}", top.display_name()),
            });
        }
        Ok(top)
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
                .read_indirect(&top, offset, psize, context, verify)
                .await;
        }
        match self.check_range(id, offset, psize as u64) {
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
            return self.repair_indirect(&top, offset, data, context).await;
        }
        match self.check_range(id, offset, data.len() as u64) {
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
        let written = async move { tree.write_block(id, offset, data, &context).await };
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
        self.check_not_halted_since(mark)?;
        settle_flushed(flushed)
    }

    /// # Errors
    /// [`VdevError::NotDurable`] when devices may not have got something since then.
    pub(super) fn check_not_halted_since(&self, mark: u64) -> Result<(), VdevError> {
        if self.common.halt.is_unchanged(mark) {
            return Ok(());
        }
        Err(VdevError::NotDurable {
            reason: "it was suspended before all was written".to_owned(),
        })
    }

    /// After a write with [`IoContext::flush`] that succeeded: whether the pool has what its
    /// devices had taken before, as after [`Self::flush_tops`].
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
        let top = self.usable_top(id)?;
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

/// Whether a device that may have a part of the block stopped working since the pool was opened, of
/// those that count.
fn is_any_out(tree: &VdevTree, block: &BlockPointer, counts: impl Fn(&Leaf) -> bool) -> bool {
    let is_out = |vdev: &Arc<Vdev>| {
        vdev.leaf()
            .is_some_and(|leaf| leaf.is_out() && counts(leaf))
    };
    if block.is_gang() {
        // Its pieces may be anywhere.
        return tree.leaves().iter().any(is_out);
    }
    block
        .dvas()
        .filter_map(|dva| tree.top(dva.vdev()))
        .any(|top| top.leaves().iter().any(is_out))
}

/// Whether a device was attached after `txg`, and no resilver of it has ended: it lacks everything
/// from the pool's first txg on, while one that failed lacks what came since.
fn was_attached_after(leaf: &Leaf, txg: Txg) -> bool {
    let first = Txg::INITIAL;
    let length = txg.get().saturating_add(1).saturating_sub(first.get());
    txg >= first && leaf.missing().contains(first.get(), length)
}
