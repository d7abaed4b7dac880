//! Pools as a whole: create, find, import, sync, export, destroy.
//!
//! OpenZFS calls this layer the SPA (module/zfs/spa.c). The parts of a pool are crates below, which
//! do not see each other: the ground that they share (`spa`), scrubs and resilvers (`scan`),
//! tables of shared blocks (`dedup`), passes over free space (`trim`). This crate opens a pool,
//! puts its parts together (`core`), and has the task that writes transaction groups to disk one
//! after the other (`sync`). Devices that come and go are here too, as they concern several parts.
//!
//! Modules are layers. The state of a part (`checkpoint`, `newtops`, `gone`, `standby`, `heart`)
//! does not know the whole. `core` has them all. Commands (`topology`, `vdevs`, `spares`, `split`,
//! `reopen`) and [`Pool`] stand above.
//!
//! | Module | In OpenZFS |
//! |---|---|
//! | [`Pool`], `create`, `layout`, `open` | spa.c: `spa_create`, `spa_load`, `spa_export_common` |
//! | `rewind`, [`probe`] | spa.c: `spa_load_best`, `spa_ld_checkpoint_rewind`, `spa_tryimport` |
//! | `sync` | spa.c: `spa_sync`; vdev_label.c: `vdev_config_sync` |
//! | `removed`, [`Evacuation`] | vdev_removal.c: `spa_remove_init`; the rest of it |
//! | [`Condensing`] | vdev_indirect.c: `spa_condense_indirect_*` |
//! | `auxiliary` | spa.c: `spa_load_spares`, `spa_load_l2cache`, `spa_sync_aux_dev` |
//! | [`AddSpec`] and `vdevs` | spa.c: `spa_vdev_add`, `spa_change_guid`; vdev_removal.c: `spa_vdev_remove_log` |
//! | [`AttachSpec`] and `topology` | spa.c: `spa_vdev_attach`, `spa_vdev_detach`, `spa_vdev_resilver_done` |
//! | `expand` | spa.c: `spa_vdev_attach`, to RAID-Z |
//! | [`SplitSpec`] and `split` | spa.c: `spa_vdev_split_mirror` |
//! | `spares`, `standby` | cmd/zed/agents: zfs_retire.c |
//! | `multihost`, `heart` | mmp.c |
//! | `checkpoint` | spa_checkpoint.c |
//! | [`Salvage`] | (ours) opening what is left of a damaged pool |
//! | [`ScanSpec`] and `discover` | libzutil's zutil_import.c |

#![forbid(unsafe_code)]

mod auxiliary;
mod by_hand;
mod caches;
mod change;
mod checkpoint;
mod claims;
mod condensing;
mod core;
mod create;
mod deadman;
mod deferred;
mod discover;
mod evacuation;
mod expand;
mod forecast;
mod gone;
mod heart;
mod hooks;
mod host;
mod inject;
mod labelroom;
mod layout;
mod memory;
mod multihost;
mod newtops;
mod open;
mod pool;
mod probe;
mod removal;
mod removed;
mod reopen;
mod returning;
mod rewind;
mod salvage;
mod second;
mod spares;
mod spec;
mod split;
mod standby;
mod status;
mod sync;
mod tables;
mod topology;
mod vdevs;
mod vdevstatus;

pub use ::scan::{
    ErrorScrubStatus, ExpansionStatus, RebuildState, RebuildStatus, ScanCost, ScanCosts,
    ScanFunction, ScanState, ScanStatus, ScrubCommand, ScrubNumbers,
};
pub use by_hand::leave_spares_to_people;
pub use caches::{
    CacheDeviceOptions, prefetch_tables, prune_dedup, set_cache_devices, set_dedup_log_limits,
};
pub use checkpoint::CheckpointStatus;
pub use condensing::{CondenseLimits, Condensing};
pub use create::check_create;
pub use dedup::{CloneStatus, DedupStatus, Forecasted, Forecasting, LogLimits, PruneBy};
pub use discover::{FoundPool, FoundState, ScanSpec, found_in_cache, scan};
pub use evacuation::Evacuation;
pub use forecast::forecast_dedup;
pub use host::set_host;
pub use inject::{empty_cache, freeze, hold_work, injector, is_frozen, leaf_named, set_device_bad};
pub use layout::{device_sizes, device_use};
pub use memory::add_memory;
pub use pool::{Pool, PoolNumbers, Properties, Scans, end_freeze, missing_data};
pub use probe::{Probe, Unusable, probe};
pub use removal::{condensing, removal, removal_memory, stop_removal};
pub use removed::{RemovalState, RemovalStatus};
pub use salvage::{Problem, Salvage, SalvageSpec, SalvagedDataset};
pub use spa::features::{
    SupportedFeature, is_default_feature, is_left_out_of_upgrades, supported_features,
};
pub use spa::{
    DeviceUse, EventSink, FeatureState, FeatureStatus, HistoryRecord, HistoryWhat, HostIdentity,
    LeafSpec, PoolError, PoolEvent, PoolProperty, PropertySource, Rewound, VdevClass, VdevLayout,
    VdevSpec,
};
pub use spec::{CreateSpec, FeatureChoice, ImportSpec, MissingLogs, Rewind};
pub use split::SplitSpec;
pub use status::PoolStatus;
pub use topology::{AttachSpec, OfflineSpec, Onlined};
pub use trim::{
    ActivityCommand, ActivityKind, ActivityObstacle, ActivityOutcome, ActivitySpec, ActivityState,
    ActivityStatus, LeafActivity,
};
pub use vdev::{
    DeadmanLimits, FAULT_LANES_MAX, FaultError, FaultIo, FaultKind, Injected, Injector, IoStats,
    TopologyError, VdevAux,
};
pub use vdevs::{AddSpec, clear_label, label_guid};
pub use vdevstatus::{PoolHealth, SmallSectors, VdevState, VdevStatus};

/// Decodes bytes as values that the MOS holds and `format` has no codec of: for fuzzers.
#[doc(hidden)]
pub fn decode_for_fuzzing(data: &[u8]) {
    spa::history::decode_for_fuzzing(data);
    dedup::decode_for_fuzzing(data);
}
