//! The messages between the command lines (and later the console) and the daemon.
//!
//! One request is one HTTP `POST` of a JSON object to the path that its type names; the answer is
//! the JSON of [`Call::Reply`] with status 200, or a [`Failure`] with a 4xx or 5xx status. Values
//! travel in their parseable form (bytes, seconds, full names); turning them into columns for
//! people is the reader's business. The types hold no engine types, so that a client links
//! nothing of the engine.

#![forbid(unsafe_code)]

mod common;
mod iscsi;
mod server;
mod zfs;
mod zpool;

pub use common::{Access, Call, Failure, FailureKind, Property, PropertyMap, Source};
pub use iscsi::{
    IscsiSecretList, IscsiSecretListReply, IscsiSecretRemove, IscsiSecretReport, IscsiSecretSet,
    IscsiSecretSetReply,
};
pub use server::{Empty, NotShared, ServerInfo, ServerInfoReply, ServerStop, ShareInfo};
pub use zfs::{
    DatasetKind, DatasetReport, HoldReport, KeyDetails, KeyFormat, KeyReport, ProjectChange,
    ProjectReport, Secret, SpaceOwner, SpaceReport, ZfsChanged, ZfsCreate, ZfsCreateReply,
    ZfsDestroy, ZfsDestroyReply, ZfsHolds, ZfsHoldsReply, ZfsInherit, ZfsKeys, ZfsKeysReply,
    ZfsList, ZfsListReply, ZfsLoadKey, ZfsMount, ZfsMountList, ZfsMountListReply, ZfsMounted,
    ZfsProject, ZfsProjectReply, ZfsRename, ZfsRollback, ZfsSet, ZfsSnapshot, ZfsSpace,
    ZfsSpaceReply, ZfsUnloadKey, ZfsUnmount,
};
pub use zpool::{
    ActivityReport, CheckpointReport, DedupReport, DraidWord, ExpansionReport, FoundPoolReport,
    HistoryRecord, IoReport, PoolReport, PoolStatusReport, PoolUpgrade, RemovalReport, ScanReport,
    ScrubAction, VdevName, VdevReport, VdevSpec, ZpoolAdd, ZpoolAddReply, ZpoolCheckpoint,
    ZpoolClear, ZpoolCreate, ZpoolCreateReply, ZpoolDestroy, ZpoolExport, ZpoolHistory,
    ZpoolHistoryReply, ZpoolImport, ZpoolImportReply, ZpoolLabelClear, ZpoolList, ZpoolListReply,
    ZpoolReguid, ZpoolRemove, ZpoolScrub, ZpoolSet, ZpoolStatus, ZpoolStatusReply, ZpoolSync,
    ZpoolUpgrade, ZpoolUpgradeReply, ZpoolWait,
};
