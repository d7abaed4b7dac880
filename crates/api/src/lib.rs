//! The messages between the command lines (and later the console) and the daemon.
//!
//! One request is one HTTP `POST` of a JSON object to the path that its type names; the answer is
//! the JSON of [`Call::Reply`] with status 200, or a [`Failure`] with a 4xx or 5xx status. Values
//! travel in their parseable form (bytes, seconds, full names); turning them into columns for
//! people is the reader's business. The types hold no engine types, so that a client links
//! nothing of the engine.

#![forbid(unsafe_code)]

mod common;
mod condition;
mod guid;
mod iscsi;
mod server;
mod vdev;
mod zfs;
mod zpool;

pub use common::{
    Access, Call, Dependence, DeviceUse, Failure, FailureKind, ImportObstacle, ImportRefusal,
    Property, PropertyMap, Refusal, Settings, Source,
};
pub use condition::{Failmode, FoundCondition, PoolCondition};
pub use guid::Guid;
pub use iscsi::{
    IscsiSecretList, IscsiSecretListReply, IscsiSecretRemove, IscsiSecretReport, IscsiSecretSet,
    IscsiSecretSetReply,
};
pub use server::{Empty, NotShared, Protocol, ServerInfo, ServerInfoReply, ServerStop, ShareInfo};
pub use vdev::{
    ActivityReport, ActivityState, ClassIo, DeviceKind, DeviceSpec, IoClass, IoReport, Latencies,
    Operations, VdevAux, VdevClass, VdevKind, VdevLayout, VdevReport, VdevSpec, VdevState,
};
pub use zfs::{
    DatasetKind, DatasetReport, HoldReport, KeyDetails, KeyFormat, KeyReport, ProjectChange,
    ProjectReport, Secret, SpaceOwner, SpaceReport, Usage, ZfsChanged, ZfsCreate, ZfsCreateReply,
    ZfsDestroy, ZfsDestroyReply, ZfsHolds, ZfsHoldsReply, ZfsInherit, ZfsKeys, ZfsKeysReply,
    ZfsList, ZfsListReply, ZfsLoadKey, ZfsMount, ZfsMountList, ZfsMountListReply, ZfsMounted,
    ZfsProject, ZfsProjectReply, ZfsRename, ZfsRollback, ZfsSet, ZfsSnapshot, ZfsSpace,
    ZfsSpaceReply, ZfsUnloadKey, ZfsUnmount,
};
pub use zpool::{
    Activity, CheckpointReport, DedupBucket, DedupCounts, DedupReport, ExpansionReport,
    FoundPoolReport, HistoryRecord, ImportedPool, PoolHealth, PoolHistory, PoolReport,
    PoolStatusReport, PoolUpgrade, RemovalReport, RemovalState, RewindReport, ScanFunction,
    ScanReport, ScanState, ScrubAction, SupportedFeature, VdevName, ZpoolAdd, ZpoolAddReply,
    ZpoolCheckpoint, ZpoolClear, ZpoolCreate, ZpoolCreateReply, ZpoolDestroy, ZpoolExport,
    ZpoolHistory, ZpoolHistoryReply, ZpoolImport, ZpoolImportReply, ZpoolLabelClear, ZpoolList,
    ZpoolListReply, ZpoolReguid, ZpoolRemove, ZpoolScrub, ZpoolSet, ZpoolStatus, ZpoolStatusReply,
    ZpoolSync, ZpoolUpgrade, ZpoolUpgradeReply, ZpoolWait,
};
