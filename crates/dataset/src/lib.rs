//! The DSL: directories, datasets, snapshots, properties, keys and space accounting.
//!
//! | Module | ZFS's words | What it is |
//! |---|---|---|
//! | [`DslPool`] | `dsl_pool`, `dsl_dir` | all datasets of a pool, over its MOS; sync tasks |
//! | [`Dataset`] | `dsl_dataset`, `dmu_objset` | one open dataset |
//! | [`KeyInfo`] | `dsl_crypt` | keys of encrypted datasets: loading, unloading |
//! | [`props`] | `dsl_prop`, `zfs_prop` | properties: table, values, inheritance |
//! | [`features`] | `zfeature` | feature flags and their refcounts |
//!
//! Everything in the MOS changes in syncing context only, by the sync loop's task.

#![forbid(unsafe_code)]

mod account;
mod background;
mod bookmark;
mod create;
mod crypto;
mod damage;
mod dataset;
mod deadlist;
mod destroy;
mod dsl;
mod error;
pub mod features;
mod holds;
mod info;
mod logs;
mod lookup;
pub mod name;
mod promote;
pub mod props;
pub mod range_lock;
mod remaps;
mod rename;
mod rollback;
mod settings;
mod snapshot;
mod space;
mod state;
mod stored;
mod sync;
mod task;

pub use bookmark::BookmarkInfo;
pub use crypto::{KeyFormat, KeyInfo};
pub use damage::DamagedIn;
pub use dataset::{Dataset, DatasetSettings};
pub use dsl::{CreateParams, DslEnvironment, DslPool, ObjsetInit};
pub use error::DatasetError;
pub use features::Features;
pub use info::{DatasetInfo, DatasetKind, DirtyEstimate, ListOptions, PropertyChange};
pub use logs::LogClaim;
pub use props::{PropertySetting, PropertySource, PropertyValue};
pub use stored::{check_new_properties, check_root_properties, check_root_space};
pub use task::{DslHooks, HistoryEvent, NoHooks, SpaceCheck, SyncTask};
