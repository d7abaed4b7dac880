//! The DSL: directories, datasets, snapshots, properties, keys and space accounting.
//!
//! | Module | ZFS's words | What it is |
//! |---|---|---|
//! | [`DslPool`] | `dsl_pool` | what all parts share, over the MOS of a pool |
//! | [`Directories`] | `dsl_dir`, `dsl_dataset` | names and numbers; what is in memory |
//! | [`Datasets`] | `dsl_dataset`, `dmu_objset` | making filesystems, volumes and clones |
//! | [`Dataset`] | `dsl_dataset`, `dmu_objset` | one open dataset |
//! | [`Snapshots`] | `dsl_dataset` | taking, renaming, rolling back, promoting |
//! | [`Receives`] | `dmu_recv` | making a snapshot of what a stream brings |
//! | [`Sends`] | `dmu_send` | snapshots that are to be sent |
//! | [`Destroyer`] | `dsl_destroy`, `dsl_scan` | destroying, and freeing in the background |
//! | [`Properties`] | `dsl_prop` | properties of datasets: looking, setting |
//! | [`Keys`] | `dsl_crypt` | keys of encrypted datasets: making, changing, loading |
//! | [`Holds`] | `dsl_userhold` | user holds |
//! | [`Bookmarks`] | `dsl_bookmark` | bookmarks |
//! | [`Delegation`] | `dsl_deleg` | what users other than root may do |
//! | [`Logs`] | ZIL | intent logs of all datasets: claiming, closing |
//! | [`Damage`] | `spa_errlog` | which datasets have a damaged block |
//! | [`Tasks`] | `dsl_synctask` | changes of the pool's own state, queued and run |
//! | [`ProgramPool`] | `zcp` | looking and changing several times within one sync task |
//! | [`Syncer`] | `dsl_pool_sync` | writing a transaction group |
//! | [`props`] | `dsl_prop`, `zfs_prop` | properties: table, values, inheritance |
//! | [`features`] | `zfeature` | feature flags and their refcounts |
//!
//! A part is a view of the pool with the code of one capability. Deadlists, space and limits are
//! parts for this crate only.
//!
//! # Layers
//! 1. `state` is what is in memory of directories, datasets and each part. It knows no pool.
//! 2. `dsl` ([`DslPool`]) holds that state together, with the MOS and the lock of the namespace.
//! 3. Parts that all others stand on: names and numbers (`directories`), properties as they are
//!    stored (`stored`), `space` and `limits`, deadlists and livelists, loaded keys (`crypto`),
//!    `bookmark`, sync tasks (`tasks`), reading in a check (`readable`), `opening` and `write` of a
//!    dataset's object set. Each part adds the function that gives it to [`DslPool`].
//! 4. Operations: `create`, `snapshot`, `destroy`, `rename`, `promote`, `rollback`, `receive`,
//!    `redact`, `set`, `holds`, `upgrade`, ... Nothing below uses them, and a part may have its
//!    operations in several modules (`bookmark_create`, `bookmark_destroy`).
//! 5. `sync` writes a transaction group, and `pool` makes and opens a pool's datasets.
//!
//! # Locks
//! The namespace (`DslPool::config`, async) comes first: held shared to look at names, properties
//! and chains of snapshots, alone by sync tasks and while keys change. Then a dataset's `opening`
//! and `deadlist` (async), then the parts' own locks and those of `state`, which are short: a
//! dataset's before its directory's, a child's before its parent's, the queue of changed structures
//! last. Nobody who holds the namespace waits for a transaction group.
//!
//! Everything in the MOS changes in syncing context only, by the sync loop's task.

#![forbid(unsafe_code)]

mod account;
mod bookmark;
mod bookmark_create;
mod bookmark_destroy;
mod change;
mod change_key;
mod check;
mod create;
mod credentials;
mod crypto;
mod damage;
mod dataset;
mod deadlists;
mod delegation;
mod destroy;
mod directories;
mod dsl;
mod error;
pub mod features;
mod holds;
mod info;
mod limits;
mod listing;
mod livelist;
pub mod lock_order;
mod logs;
mod lookup;
mod markers;
pub mod name;
mod new_key;
mod obstacle;
mod opening;
mod pool;
mod program;
mod promote;
pub mod props;
pub mod range_lock;
mod raw;
mod readable;
mod receive;
mod redact;
mod rejoin;
mod remaps;
mod rename;
mod resume;
mod rollback;
mod root;
mod sending;
mod set;
mod settings;
mod snapshot;
mod space;
mod state;
mod stored;
mod sync;
mod task;
mod tasks;
mod token;
mod unbound;
mod upgrade;
mod version;
mod write;

pub use bookmark::{BookmarkInfo, Bookmarks};
pub use bookmark_create::NewBookmark;
pub use change_key::KeyChange;
pub use check::{
    PBKDF2_ITERATIONS_MIN, check_new_properties, check_root_properties, check_root_space,
    check_setting,
};
pub use create::{CreateParams, ObjsetInit};
pub use credentials::Credentials;
pub use crypto::{KeyFormat, KeyInfo, Keys};
pub use damage::{Damage, DamagedIn, block_of};
pub use dataset::Dataset;
pub use delegation::{Delegation, Grant, GrantChange, Grantee, Grants, permission_name};
pub use destroy::Destroyer;
pub use directories::Directories;
pub use dsl::{DslEnvironment, DslPool};
pub use error::DatasetError;
pub use features::Features;
pub use holds::Holds;
pub use info::{DatasetInfo, DatasetKind, DirtyEstimate, ListOptions, Lost, PropertyChange};
pub use logs::{LogClaim, Logs};
pub use new_key::{
    NewKey, PBKDF2_ITERATIONS, RootKey, check_root_encryption, encryption_properties,
};
pub use obstacle::{ReceiveObstacle, RedactObstacle};
pub use opening::Datasets;
pub use program::{Program, ProgramPool};
pub use props::{PropertySetting, PropertySource, PropertyValue};
pub use raw::KeyRoot;
pub use receive::{Corrective, Finisher, ReceiveTarget, Receiving, Redaction};
pub use redact::{RedactionList, are_same_snapshots};
pub use resume::Receives;
pub use sending::{Redactions, SendFrom, SendSource, Sends};
pub use snapshot::Snapshots;
pub use state::{DatasetSettings, ResumePoint};
pub use stored::Properties;
pub use task::{DslHooks, HistoryEvent, NoHooks, SpaceCheck, SyncTask};
pub use tasks::Tasks;
pub use token::ResumeToken;
pub use unbound::{Limited, with_limits};
pub use version::OLDEST_WRITTEN;
pub use write::Syncer;
