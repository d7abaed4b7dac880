//! A pool's state, as `zpool status` and `zpool list` show it.

use std::collections::BTreeMap;
use std::sync::Arc;

use dedup::DedupStatus;
use format::{Guid, Txg, VdevId};
use scan::{ErrorScrubStatus, ExpansionStatus, ScanStatus};
use spa::{Spa, vdevprops};
use trim::ActivityStatus;
use vdev::{AllocClass, Vdev, VdevAux, VdevKind, VdevState as State};
use zio::alloc::TopSpace;

use crate::VdevClass;
use crate::checkpoint::CheckpointStatus;
use crate::core::Core;
use crate::layout::usable_bytes;
use crate::removed::RemovalStatus;
use crate::second;
use crate::vdevstatus::{PoolHealth, SmallSectors, VdevState, VdevStatus};

/// A pool's state.
#[derive(Debug, Clone)]
pub struct PoolStatus {
    /// Name.
    pub name: String,
    /// Identity.
    pub guid: Guid,
    /// Health.
    pub health: PoolHealth,
    /// Why it is suspended.
    pub suspended_why: Option<String>,
    /// Whether it was imported read-only.
    pub read_only: bool,
    /// Last transaction group on disk.
    pub synced_txg: Txg,
    /// The vdevs; the root's children are the top-level vdevs of all classes.
    pub root: VdevStatus,
    /// Spares.
    pub spares: Vec<VdevStatus>,
    /// Second-level cache devices.
    pub caches: Vec<VdevStatus>,
    /// The last scrub or resilver, when there was one.
    pub scan: Option<ScanStatus>,
    /// The last scrub of the error log, when there was one since.
    pub error_scrub: Option<ErrorScrubStatus>,
    /// The checkpoint, or what is left of one.
    pub checkpoint: Option<CheckpointStatus>,
    /// The RAID-Z expansion that is under way, else the last one.
    pub expansion: Option<ExpansionStatus>,
    /// The removal of a vdev that is under way, else the last one.
    pub removal: Option<RemovalStatus>,
    /// Dedup tables.
    pub dedup: DedupStatus,
    /// Number of blocks with permanent errors in the error log.
    pub data_errors: u64,
    /// Version of the pool's format; 5000 has feature flags.
    pub version: u64,
    /// Errata number stored in the configuration.
    pub errata: u64,
}

/// Adds to the leaves of a top-level vdev how far initializing and trimming are.
fn add_activities(top: &mut VdevStatus, core: &Core) {
    fn add(vdev: &mut VdevStatus, statuses: &BTreeMap<Guid, [ActivityStatus; 2]>) {
        if let Some([initialize, trim]) = statuses.get(&vdev.guid) {
            vdev.initialize = *initialize;
            vdev.trim = *trim;
        }
        for child in &mut vdev.children {
            add(child, statuses);
        }
    }
    if let Some(vdev) = core.tree.find(top.guid) {
        add(top, &core.passes.activities.statuses(core, &vdev));
    }
}

/// Adds what was set on a vdev and on those below it.
fn add_properties(status: &mut VdevStatus, spa: &Spa) {
    if let Some(vdev) = spa.tree.find(status.guid) {
        status.properties = vdevprops::of_vdev(spa, &vdev);
    }
    for child in &mut status.children {
        add_properties(child, spa);
    }
}

/// Health of a pool, as `zpool list` shows it.
pub(crate) fn health(core: &Core) -> PoolHealth {
    if core.suspended().is_some() {
        return PoolHealth::Suspended;
    }
    match root_state(core) {
        VdevState::Online => PoolHealth::Online,
        VdevState::Degraded => PoolHealth::Degraded,
        _ => PoolHealth::Faulted,
    }
}

/// State of the root: unusable when a top-level vdev other than a log is, degraded when one is not
/// whole (`vdev_root_state_change`).
fn root_state(core: &Core) -> VdevState {
    let mut worst = VdevState::Online;
    for top in core.tree.tops() {
        let (state, _) = top.state();
        let state = map_state(state);
        let is_log = top.top().is_some_and(|top| top.class == AllocClass::Log);
        let counted = match state {
            VdevState::Online => VdevState::Online,
            VdevState::Degraded => VdevState::Degraded,
            _ if is_log => VdevState::Degraded,
            _ => VdevState::CantOpen,
        };
        worst = worst.min(counted);
    }
    worst
}

pub(crate) fn map_state(state: State) -> VdevState {
    match state {
        State::Closed => VdevState::Closed,
        State::Offline => VdevState::Offline,
        State::Removed => VdevState::Removed,
        State::CantOpen => VdevState::CantOpen,
        State::Faulted => VdevState::Faulted,
        State::Degraded => VdevState::Degraded,
        State::Healthy => VdevState::Online,
    }
}

const fn map_class(class: AllocClass) -> VdevClass {
    match class {
        AllocClass::Normal => VdevClass::Normal,
        AllocClass::Log => VdevClass::Log,
        AllocClass::Special => VdevClass::Special,
        AllocClass::Dedup => VdevClass::Dedup,
    }
}

pub(crate) fn vdev_status(
    vdev: &Arc<Vdev>,
    class: VdevClass,
    spaces: &BTreeMap<VdevId, TopSpace>,
) -> VdevStatus {
    vdev_status_below(vdev, class, spaces, false, vdev.ashift())
}

/// Whether a device has bigger sectors than its top-level vdev is written in, which are of
/// 2^`ashift` bytes (`print_status_config`, cmd/zpool/zpool_main.c).
fn small_sectors(vdev: &Vdev, ashift: u32) -> Option<SmallSectors> {
    // A vdev that could not be opened may have none.
    if !(vdev::ASHIFT_MIN..=vdev::ASHIFT_MAX).contains(&ashift) {
        return None;
    }
    let native_bytes = vdev.leaf()?.device()?.sector_bytes();
    let configured_bytes = 1u32 << ashift;
    (configured_bytes < native_bytes).then_some(SmallSectors {
        configured_bytes,
        native_bytes,
    })
}

/// Whether a device lacks writes that others of its top-level vdev have. Of one that is not usable
/// the state says enough.
fn is_stale(vdev: &Vdev) -> bool {
    !vdev.own_missing().is_empty() && vdev.top().is_none() && vdev.state().0.is_usable()
}

/// `full` says that the top-level vdev gets no new blocks; its sectors are of 2^`ashift` bytes.
fn vdev_status_below(
    vdev: &Arc<Vdev>,
    class: VdevClass,
    spaces: &BTreeMap<VdevId, TopSpace>,
    full: bool,
    ashift: u32,
) -> VdevStatus {
    let is_set = |name| vdev.config_u64(name).is_some_and(|value| value != 0);
    let full = full || is_set("non_allocating");
    let (state, aux) = vdev.state();
    let counters = vdev.counters();
    let device = vdev.leaf().and_then(|leaf| leaf.device());
    let space = vdev.top().and_then(|top| spaces.get(&top.id));
    let parity = vdev.kind().parity() as u8;
    VdevStatus {
        name: vdev.display_name(),
        kind: vdev.kind().name().to_owned(),
        parity,
        path: vdev.path(),
        guid: vdev.guid(),
        class,
        state: map_state(state),
        aux,
        used_by: None,
        is_removing: is_set("removing"),
        is_non_allocating: full,
        is_stale: is_stale(vdev),
        is_out: vdev.leaf().is_some_and(|leaf| leaf.is_out()),
        is_deferred: scan::is_deferred(vdev),
        scan_repaired_bytes: 0,
        rebuild: None,
        read_errors: counters.read_errors,
        write_errors: counters.write_errors,
        checksum_errors: counters.checksum_errors,
        is_expanding: vdev.is_expanding(),
        slow_ios: vdev.leaf().map_or(0, |leaf| leaf.slow_ios()),
        initialize: ActivityStatus::default(),
        trim: ActivityStatus::default(),
        can_trim: vdev.leaf().is_none_or(|leaf| leaf.supports_discard()),
        read_ops: counters.read_ops,
        read_bytes: counters.read_bytes,
        write_ops: counters.write_ops,
        write_bytes: counters.write_bytes,
        trim_ops: counters.trim_ops,
        trim_bytes: counters.trim_bytes,
        trim_errors: counters.trim_errors,
        size_bytes: space.map_or(0, |space| space.size_bytes),
        expandable_bytes: 0,
        physical_bytes: vdev::sizes::physical_bytes(vdev).unwrap_or(0),
        asize_bytes: match vdev.top() {
            Some(_) => vdev.asize_bytes(),
            None => vdev::sizes::physical_bytes(vdev).map_or(0, usable_bytes),
        },
        allocated_bytes: space.map_or(0, |space| space.allocated_bytes),
        fragmentation_percent: space
            .and_then(|space| space.fragmentation_percent)
            .map(|percent| percent.min(100) as u8),
        ashift: match vdev.top() {
            Some(_) => vdev.ashift() as u8,
            None => device.map_or(0, |device| device.sector_bytes().trailing_zeros() as u8),
        },
        small_sectors: small_sectors(vdev, ashift),
        properties: Vec::new(),
        children: vdev
            .children()
            .iter()
            .map(|child| vdev_status_below(child, class, spaces, full, ashift))
            .collect(),
    }
}

/// What the scan or rebuild under way has written to the devices.
fn add_repaired(vdev: &mut VdevStatus, core: &Core, top: VdevId) {
    if vdev.children.is_empty()
        && let Some(found) = core.tree.find(vdev.guid)
    {
        let rebuilt = core.scans.rebuilds.written_on(top, &found);
        vdev.scan_repaired_bytes = core.scans.scan.repaired_on(&found).max(rebuilt);
    }
    for child in &mut vdev.children {
        add_repaired(child, core, top);
    }
}

/// State of the pool and all its vdevs.
pub(crate) fn pool_status(core: &Core) -> PoolStatus {
    let spaces: BTreeMap<VdevId, TopSpace> = core
        .pipeline
        .allocator()
        .top_spaces()
        .into_iter()
        .map(|space| (space.vdev, space))
        .collect();
    let mut children: Vec<VdevStatus> = core
        .tree
        .tops()
        .iter()
        .filter(|top| !matches!(top.kind(), VdevKind::Hole))
        .map(|top| {
            let class = top
                .top()
                .map_or(VdevClass::Normal, |top| map_class(top.class));
            VdevStatus {
                expandable_bytes: vdev::sizes::expandable_bytes(top),
                ..vdev_status(top, class, &spaces)
            }
        })
        .collect();
    for child in &mut children {
        add_activities(child, core);
        add_properties(child, core);
        if let Some(top) = core.tree.find(child.guid) {
            let id = top.vdev_id();
            drop(top);
            child.rebuild = core.scans.rebuilds.status(&core.scans, id);
            add_repaired(child, core, id);
        }
    }
    let sum = |field: fn(&VdevStatus) -> u64| children.iter().map(field).sum();
    // Logs hold no data (`vdev_space_update`, module/zfs/vdev.c).
    let space = |field: fn(&VdevStatus) -> u64| {
        let of_data = children.iter();
        let of_data = of_data.filter(|child| child.class != VdevClass::Log);
        of_data.map(field).sum()
    };
    let name = core.identity.name();
    let root = VdevStatus {
        name: name.clone(),
        kind: "root".to_owned(),
        parity: 0,
        path: None,
        guid: core.guid(),
        class: VdevClass::Normal,
        state: root_state(core),
        aux: VdevAux::None,
        used_by: None,
        is_removing: false,
        is_non_allocating: false,
        is_stale: false,
        is_out: false,
        is_deferred: false,
        scan_repaired_bytes: 0,
        rebuild: None,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        is_expanding: false,
        slow_ios: 0,
        initialize: ActivityStatus::default(),
        trim: ActivityStatus::default(),
        can_trim: true,
        read_ops: sum(|vdev| vdev.read_ops),
        read_bytes: sum(|vdev| vdev.read_bytes),
        write_ops: sum(|vdev| vdev.write_ops),
        write_bytes: sum(|vdev| vdev.write_bytes),
        trim_ops: sum(|vdev| vdev.trim_ops),
        trim_bytes: sum(|vdev| vdev.trim_bytes),
        trim_errors: 0,
        size_bytes: space(|vdev| vdev.size_bytes),
        expandable_bytes: sum(|vdev| vdev.expandable_bytes),
        physical_bytes: 0,
        asize_bytes: 0,
        allocated_bytes: space(|vdev| vdev.allocated_bytes),
        fragmentation_percent: None,
        ashift: 0,
        small_sectors: None,
        properties: vdevprops::of_root(core),
        children,
    };
    let health = health(core);
    let suspended_why = core.suspended();
    let scan = core.scans.scan.status(&core.scans);
    let checkpoint = core.checkpoint_status();
    let caches = second::statuses(core.pipeline.second_level(), &core.auxiliary);
    let auxiliary = core.auxiliary.lock();
    let (version, errata) = {
        let pairs = core.identity.lock();
        (pairs.version, pairs.errata)
    };
    PoolStatus {
        name,
        guid: core.guid(),
        health,
        suspended_why,
        read_only: core.read_only,
        synced_txg: core.txgs.synced_txg(),
        root,
        spares: auxiliary.spares.statuses.clone(),
        caches,
        scan,
        error_scrub: core.scans.error_scrub.status(),
        checkpoint,
        expansion: core.scans.expanding.status(),
        removal: core.evacuation.status(),
        dedup: core.shared_blocks.dedup.status(),
        data_errors: core.errors.count(),
        version,
        errata,
    }
}
