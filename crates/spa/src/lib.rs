//! An open pool as its parts see it, and their turns in a transaction group.
//!
//! A pool is many parts that know little of each other: space maps, dedup tables, scrubs, devices
//! that come and go. Each of them works on the same ground: the world, the vdev tree, the pipeline,
//! the transaction groups, the datasets, the configuration, properties, the history, the log of
//! damaged blocks, events. That ground is [`Spa`]. It knows none of the parts. A part that writes
//! with each transaction group is a [`Participant`]: the sync loop (crate `pool`) calls it in its
//! turn and gives it the ground, and nothing of the other parts.
//!
//! Also here is the vocabulary that all parts share: [`PoolError`], the names on disk
//! ([`directory`], [`config`], [`features`]), and what a person asks devices to become
//! ([`VdevSpec`]).
//!
//! | Module | In OpenZFS |
//! |---|---|
//! | [`Spa`] | include/sys/spa_impl.h: `spa_t`, as far as more than one part needs it |
//! | [`Participant`] | the calls in spa.c: `spa_sync_iterate_to_convergence` |
//! | [`config`], [`identity`] | spa_config.c; vdev_label.c: `vdev_config_sync` |
//! | [`features`] | zfeature.c |
//! | [`props`], [`bootfs`] | spa.c: `spa_prop_get`, `spa_sync_props` |
//! | [`vdevprops`] | vdev.c: `vdev_prop_get`, `vdev_prop_set`, `vdev_props_set_sync` |
//! | [`history`] | spa_history.c |
//! | [`errors`], [`errlog`] | spa_errlog.c |
//! | [`events`] | zfs_fm.c; spa.c: `spa_event_notify` |
//! | `diagnosis` | cmd/zed/agents: zfs_diagnosis.c, fmd_serd.c, zfs_retire.c |
//! | [`dtl`] | vdev.c: `vdev_dtl_sync`, `vdev_dtl_load` |
//! | [`TxgTimeLog`] | spa.c: `spa_sync_time_logger`, `spa_load_txg_log_time` |

#![forbid(unsafe_code)]

pub mod bootfs;
pub mod config;
mod diagnosis;
pub mod directory;
pub mod dtl;
pub mod errlog;
mod error;
pub mod errors;
pub mod events;
pub mod features;
pub mod history;
pub mod identity;
mod participant;
pub mod props;
mod spa;
mod spaceturn;
mod txgtimes;
pub mod vdevprops;
mod vdevspec;

pub use error::{DeviceUse, PoolError, damaged, lost};
pub use events::{EventSink, PoolEvent};
pub use features::{FeatureState, FeatureStatus, SupportedFeature};
pub use history::{HistoryRecord, HistoryWhat};
pub use participant::{Participant, Pass, Turn};
pub use props::{PoolProperty, PropertySource};
pub use spa::{Spa, State, unless_suspended};
pub use txgtimes::TxgTimeLog;
pub use vdevspec::{HostIdentity, LeafSpec, Rewound, VdevClass, VdevLayout, VdevSpec};
