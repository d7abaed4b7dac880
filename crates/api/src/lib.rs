//! The messages between the command lines (and later the console) and the daemon.
//!
//! One request is one HTTP `POST` of a JSON object to the path that its type names; the answer is
//! the JSON of [`Call::Reply`] with status 200, or a [`Failure`] with a 4xx or 5xx status. What
//! takes long can be followed as a [`Job`]; what happens is told as a stream of [`Event`]s
//! (docs/api.md). Values travel in their parseable form (bytes, seconds, full names), states as
//! enums, GUIDs as strings; turning them into words and columns for people is the reader's
//! business. The types hold no engine types, so that a client links nothing of the engine; those of
//! the planner and of measurements are their own, which are no part of the engine.

#![forbid(unsafe_code)]

mod accounts;
mod activity;
mod alerts;
mod buses;
mod cache;
mod certificate;
mod common;
mod condition;
mod disks;
mod drives;
mod events;
mod files;
mod guid;
mod inject;
mod iscsi;
mod jobs;
mod keys;
mod measuring;
mod narrow;
mod nouns;
mod openapi;
mod people;
mod permissions;
mod planning;
mod program;
mod replications;
mod reports;
mod schedules;
mod server;
mod shares;
mod smb;
mod snapshots;
mod status;
mod streams;
mod ups;
mod vdev;
mod zevents;
mod zfs;
mod zpool;

pub use accounts::{
    GroupAdd, GroupAddReply, GroupChange, GroupRemove, GroupReport, PeopleList, PeopleListReply,
    PersonAdd, PersonAddReply, PersonPassword, PersonRemove, PersonReport,
};
pub use activity::{
    ActivityAction, ActivityObstacle, ActivityRefusal, ActivityReply, ZpoolInitialize, ZpoolTrim,
};
pub use alerts::{
    Alert, AlertDisk, AlertFact, AlertList, AlertListReply, AlertRule, AlertSettings,
    AlertSettingsGet, AlertSettingsReply, AlertSettingsSet, AlertSeverity, AlertTest,
    AlertTestReply, CertificateBy, Delivery, MailTls, StandingAlert, StatePart,
};
pub use buses::{
    BusDisk, BusLink, Controller, ControllerKind, HostBuses, HostBusesReply, LinkKind, LinkWidth,
    NetworkPort, PoolBuses, PoolLimit,
};
pub use cache::{
    CacheCounts, CacheDeviceReport, CacheGet, CacheGetReply, CacheKind, CacheKindReport,
    CacheLookups, PoolCacheReport, SecondLevelReport,
};
pub use certificate::{
    ACME_DIRECTORY, AcmeProgress, AcmeSettings, CertificateRenew, CertificateRenewReply,
    CertificateReport, CertificateSet, CertificateStatus, CertificateStatusReply,
};
pub use common::{
    Access, Call, Dependence, DeviceUse, Failure, FailureKind, ImportObstacle, ImportRefusal,
    Property, PropertyMap, Refusal, Settings, Source, TopologyObstacle, for_people,
};
pub use condition::{Failmode, FoundCondition, PoolCondition};
pub use disks::{DiskList, DiskListReply, DiskReport, DiskUse};
pub use drives::{
    DiskCondition, DiskLights, DiskLightsTest, DiskLightsTestReply, DiskLocate, DiskMember,
    DiskOverview, DiskOverviewReply, DiskPower, DiskPowerReply, DiskSample, DiskShow,
    DiskShowReply, DiskState, DiskTest, DiskTested, LightKind, LightTested, SelfTest, SelfTestKind,
    SmartReport, SmartState, Transport,
};
pub use events::{
    EVENTS_PATH, Event, EventAlert, EventHistory, EventHistoryReply, EventKind, EventPool,
    HistoryEvent,
};
pub use files::{
    FILE_DOWNLOAD_PATH, FILE_ENTRIES_MAX, FileAccess, FileAccessReply, FileAccessSet, FileEntry,
    FileFault, FileList, FileListReply, FileReport, FileRestore, FileRestoreReply, FileType,
};
pub use guid::Guid;
pub use inject::{
    InjectAdd, InjectAddReply, InjectCancel, InjectCommand, InjectError, InjectFault, InjectIo,
    InjectList, InjectListReply, InjectRecord, InjectRegion, InjectState, InjectTune, ZpoolFreeze,
};
pub use iscsi::{
    IscsiSecretList, IscsiSecretListReply, IscsiSecretRemove, IscsiSecretReport, IscsiSecretSet,
    IscsiSecretSetReply,
};
pub use jobs::{
    Job, JobCancel, JobGet, JobKind, JobList, JobListReply, JobResult, JobState, Progress, Unit,
};
pub use keys::{
    KeyDetails, KeyFormat, KeyReport, NewKey, ZfsChangeKey, ZfsKeys, ZfsKeysReply, ZfsLoadKey,
    ZfsUnloadKey,
};
pub use measuring::{
    BenchCompare, BenchGet, BenchGetReply, BenchKept, BenchList, BenchListReply, BenchLoads,
    BenchLook, BenchLookReply, BenchProfiles, BenchProfilesReply, BenchProgress,
    BenchProgressReply, BenchQuota, BenchRemove, BenchRun, BenchRunReply, BenchRunning, BenchStep,
    BenchWanted,
};
pub use narrow::{RECEIVED_PROPERTY, ReceiveGuard, is_within};
pub use nouns::{DatasetKind, ReceiveObstacle, Replica, Secret, how_to_resume, may_hold_secrets};
pub use openapi::{METRICS_PATH, OPENAPI_PATH, openapi, required_fields};
pub use people::{
    ApiKeyList, ApiKeyListReply, ApiKeyMake, ApiKeyMakeReply, ApiKeyRemove, ApiKeyReport,
    AuditEntry, AuditList, AuditListReply, AuditVia, CSRF_HEADER, ConsoleLink, ConsoleLinkReply,
    Role, SESSION_COOKIE, SessionInfo, SessionInfoReply, SessionLogin, SessionLogout,
    SessionPassword, SessionReply, SessionSetup, UserAdd, UserChange, UserChangeReply, UserList,
    UserListReply, UserRemove, UserReport,
};
pub use permissions::{
    GrantReport, Grantee, GrantsReport, Needed, ZfsAllow, ZfsAllowList, ZfsAllowListReply,
};
pub use planning::{PlanAsk, PlanAskReply, PlanDedup, PlanDedupReply, PlanLog, PlanLogReply};
pub use program::{ZfsProgram, ZfsProgramReply};
pub use replications::{
    Keep, ReplicationChange, ReplicationCreate, ReplicationList, ReplicationListReply,
    ReplicationNote, ReplicationPause, ReplicationRemove, ReplicationReport, ReplicationResult,
    ReplicationRun, ReplicationRunReply, ReplicationSpec, ReplicationTarget, ReplicationWhat,
};
pub use reports::{
    REPORT_SUBJECTS_MAX, Report, ReportFigure, ReportGet, ReportGetReply, ReportList,
    ReportListReply, ReportSpan, ReportSubject, ReportValues, ReportedSubject,
};
pub use schedules::{
    ScheduleHours, ScheduleLeft, ScheduleList, ScheduleListReply, ScheduleObstacle, SchedulePause,
    ScheduleRemove, ScheduleReport, ScheduleResult, ScheduleRun, ScheduleRunReply, ScheduleSet,
    ScheduleSetReply, ScheduleTask, ScheduleUntested, ScheduleWhat, ScheduleWhen, TimeOfDay,
    Weekday,
};
pub use server::{
    Empty, MemoryUseReport, MemoryUser, NotShared, OptionSource, Protocol, ServerInfo,
    ServerInfoReply, ServerMemory, ServerMemoryReply, ServerOption, ServerStop, ShareInfo,
};
pub use shares::{
    ShareClient, ShareList, ShareListReply, ShareReport, ShareTraffic, ZfsShare, ZfsUnshare,
};
pub use smb::{
    SmbUserAdd, SmbUserList, SmbUserListReply, SmbUserPassword, SmbUserRemove, SmbUserReport,
};
pub use snapshots::{
    DiffFile, DiffKind, DiffReport, ZfsBookmark, ZfsClone, ZfsDiff, ZfsDiffReply, ZfsHold,
    ZfsPromote, ZfsRedact, ZfsRelease, ZfsWait,
};
pub use status::{
    CheckpointReport, DedupBucket, DedupCounts, DedupReport, ErrorScrubReport, ExpansionReport,
    PoolHealth, PoolStatusReport, RemovalReport, RemovalState, ScanCostReport, ScanFunction,
    ScanReport, ScanState, ScrubAction, ZpoolCheckpoint, ZpoolScanCost, ZpoolScanCostReply,
    ZpoolScrub, ZpoolStatus, ZpoolStatusReply,
};
pub use streams::{
    PlannedStream, ReceiveNaming, ReceivedReport, STREAM_JOB_HEADER, STREAM_PROTOCOL, ZfsReceive,
    ZfsReceiveAbort, ZfsReceiveReply, ZfsSend, ZfsSendPlan, ZfsSendPlanReply, ZfsSendReply,
};
pub use ups::{UpsCondition, UpsReport, UpsStatus, UpsStatusReply};
pub use vdev::{
    ActivityReport, ActivityState, ClassIo, DeviceKind, DeviceSpec, IoClass, IoReport, Latencies,
    Operations, RebuildReport, RebuildState, SmallSectors, VdevAux, VdevClass, VdevKind,
    VdevLayout, VdevReport, VdevSpec, VdevState,
};
pub use zevents::{
    Digits, Pair, PairValue, ZfsEvent, ZpoolEvents, ZpoolEventsClear, ZpoolEventsClearReply,
    ZpoolEventsReply,
};
pub use zfs::{
    DatasetReport, HoldReport, NotRewritten, ProjectChange, ProjectReport, SpaceOwner, SpaceReport,
    Usage, ZfsChanged, ZfsCreate, ZfsCreateReply, ZfsDestroy, ZfsDestroyReply, ZfsHolds,
    ZfsHoldsReply, ZfsInherit, ZfsList, ZfsListReply, ZfsMount, ZfsMountList, ZfsMountListReply,
    ZfsMounted, ZfsProject, ZfsProjectReply, ZfsRename, ZfsRewrite, ZfsRewriteReply, ZfsRollback,
    ZfsSet, ZfsSnapshot, ZfsSpace, ZfsSpaceReply, ZfsUnmount,
};
pub use zpool::{
    DdtPruned, FoundPoolReport, HistoryRecord, ImportedPool, PoolHistory, PoolReport, PoolUpgrade,
    Prefetched, RemoveAction, RewindReport, SupportedFeature, VdevName, ZpoolAdd, ZpoolAddReply,
    ZpoolAttach, ZpoolClear, ZpoolCreate, ZpoolCreateReply, ZpoolDdtPrune, ZpoolDdtPruneReply,
    ZpoolDestroy, ZpoolDetach, ZpoolExport, ZpoolHistory, ZpoolHistoryReply, ZpoolImport,
    ZpoolImportReply, ZpoolLabelClear, ZpoolList, ZpoolListReply, ZpoolOffline, ZpoolOnline,
    ZpoolOnlineReply, ZpoolPrefetch, ZpoolPrefetchReply, ZpoolReguid, ZpoolRemove,
    ZpoolRemoveReply, ZpoolReopen, ZpoolResilver, ZpoolSet, ZpoolSplit, ZpoolSplitReply, ZpoolSync,
    ZpoolUpgrade, ZpoolUpgradeReply,
};
