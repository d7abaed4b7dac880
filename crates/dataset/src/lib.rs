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
mod bookmark;
mod create;
mod crypto;
mod damage;
mod dataset;
mod deadlist;
mod destroy;
mod directories;
mod dsl;
mod error;
pub mod features;
mod holds;
mod info;
mod limits;
mod logs;
mod lookup;
mod markers;
pub mod name;
mod promote;
pub mod props;
pub mod range_lock;
mod remaps;
mod rename;
mod rollback;
mod set;
mod settings;
mod snapshot;
mod space;
mod state;
mod stored;
mod sync;
mod task;
mod tasks;

pub use bookmark::{BookmarkInfo, Bookmarks};
pub use create::Datasets;
pub use crypto::{KeyFormat, KeyInfo, Keys};
pub use damage::{Damage, DamagedIn};
pub use dataset::{Dataset, DatasetSettings};
pub use destroy::Destroyer;
pub use directories::Directories;
pub use dsl::{CreateParams, DslEnvironment, DslPool, ObjsetInit};
pub use error::DatasetError;
pub use features::Features;
pub use holds::Holds;
pub use info::{DatasetInfo, DatasetKind, DirtyEstimate, ListOptions, PropertyChange};
pub use logs::{LogClaim, Logs};
pub use props::{PropertySetting, PropertySource, PropertyValue};
pub use snapshot::Snapshots;
pub use stored::{Properties, check_new_properties, check_root_properties, check_root_space};
pub use sync::Syncer;
pub use task::{DslHooks, HistoryEvent, NoHooks, SpaceCheck, SyncTask};
pub use tasks::Tasks;
