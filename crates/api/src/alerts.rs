//! Alerts: what somebody should know who does not look, and how they are told.
//!
//! An alert is standing: it is there while what it is about is so. Who is told, by mail or by a web
//! hook, are the settings. The words for it are the reader's business.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Access, Call, Empty, Guid, Role, ScheduleTask, Secret, SelfTestKind, UpsCondition, VdevAux,
    VdevState,
};

/// What an alert is about. Each can be switched off by its name.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum AlertRule {
    /// A pool stopped after an I/O failure.
    PoolSuspended,
    /// A pool works with less redundancy than it has, or cannot work.
    PoolHealth,
    /// Blocks of a pool are lost.
    DataErrors,
    /// A device is not used, or not there.
    DeviceState,
    /// A device had errors.
    DeviceErrors,
    /// A pool is nearly full.
    Space,
    /// A disk says that it is failing.
    DiskHealth,
    /// A disk has got more bad sectors.
    DiskSectors,
    /// A disk is too warm.
    DiskTemperature,
    /// A disk is nearly worn out.
    DiskWear,
    /// A disk found something wrong as it tested itself.
    DiskTest,
    /// A scrub is done.
    Scrub,
    /// A resilver is done.
    Resilver,
    /// A schedule cannot do what it is to do.
    Schedule,
    /// What a replication sends comes later than it should.
    Replication,
    /// The certificate of the console ends soon, has ended, or cannot be got.
    Certificate,
    /// The UPS runs on its battery, or something is wrong with it.
    Ups,
    /// A file of the server's own state is not understood, or cannot be written.
    State,
    /// How everything is, once a week.
    Report,
}

impl AlertRule {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::PoolSuspended,
        Self::PoolHealth,
        Self::DataErrors,
        Self::DeviceState,
        Self::DeviceErrors,
        Self::Space,
        Self::DiskHealth,
        Self::DiskSectors,
        Self::DiskTemperature,
        Self::DiskWear,
        Self::DiskTest,
        Self::Scrub,
        Self::Resilver,
        Self::Schedule,
        Self::Replication,
        Self::Certificate,
        Self::Ups,
        Self::State,
        Self::Report,
    ];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::PoolSuspended => "pool-suspended",
            Self::PoolHealth => "pool-health",
            Self::DataErrors => "data-errors",
            Self::DeviceState => "device-state",
            Self::DeviceErrors => "device-errors",
            Self::Space => "space",
            Self::DiskHealth => "disk-health",
            Self::DiskSectors => "disk-sectors",
            Self::DiskTemperature => "disk-temperature",
            Self::DiskWear => "disk-wear",
            Self::DiskTest => "disk-test",
            Self::Scrub => "scrub",
            Self::Resilver => "resilver",
            Self::Schedule => "schedule",
            Self::Replication => "replication",
            Self::Certificate => "certificate",
            Self::Ups => "ups",
            Self::State => "state",
            Self::Report => "report",
        }
    }
}

/// How bad it is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum AlertSeverity {
    /// Good to know.
    Info,
    /// Something is to be done.
    Warning,
    /// Data, or the use of it, is in danger or gone.
    Critical,
}

/// What a file of the state directory is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StatePart {
    /// Which pools the next start imports.
    Pools,
    /// Replications.
    Replications,
    /// Schedules.
    Schedules,
    /// Alerts: who is told, what stands, what waits.
    Alerts,
    /// Secrets of iSCSI.
    IscsiSecrets,
    /// Users, and keys of the API.
    Users,
    /// How the certificate of the console is got.
    Certificate,
    /// Lights of disks.
    Lights,
    /// People and groups of shares.
    People,
}

/// What there is to know of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum AlertFact {
    /// [`AlertRule::PoolSuspended`].
    Suspended {
        /// What failed.
        why: String,
    },
    /// [`AlertRule::PoolHealth`]: it works, with less redundancy.
    Degraded,
    /// [`AlertRule::PoolHealth`]: it cannot work.
    Faulted,
    /// [`AlertRule::PoolHealth`]: it was there when the server last ran, and could not be imported.
    NotImported {
        /// Why.
        why: String,
    },
    /// [`AlertRule::DataErrors`].
    DataErrors {
        /// Known ones.
        count: u64,
    },
    /// [`AlertRule::DeviceState`].
    Device {
        /// Its path.
        device: String,
        /// How it is.
        state: VdevState,
        /// Why.
        aux: Option<VdevAux>,
        /// It is a log device: what was last acknowledged may be lost with it.
        is_log: bool,
        /// The disk that it is on, as far as it was known while it was there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<AlertDisk>,
        /// How many more devices may fail before data is lost; none where it holds no data that
        /// is nowhere else, or the pool does not work.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        survives: Option<u64>,
    },
    /// [`AlertRule::DeviceErrors`].
    DeviceErrors {
        /// Its path.
        device: String,
        /// Reads that failed.
        read: u64,
        /// Writes that failed.
        write: u64,
        /// Wrong data.
        checksum: u64,
        /// The disk that it is on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<AlertDisk>,
    },
    /// [`AlertRule::Space`].
    Space {
        /// How full it is.
        percent: u64,
        /// From where on that is told.
        limit_percent: u64,
    },
    /// [`AlertRule::Schedule`].
    Schedule {
        /// The schedule.
        name: String,
        /// What it does.
        task: ScheduleTask,
        /// Of what.
        target: String,
        /// Why it could not.
        why: String,
    },
    /// [`AlertRule::Replication`].
    ReplicationLate {
        /// The replication.
        name: String,
        /// What it sends.
        source: String,
        /// How often it is to, in seconds.
        every_s: u64,
        /// When the last run that worked ended, in seconds since 1970; none where none has.
        success_s: Option<u64>,
        /// Whether a run is under way.
        is_running: bool,
        /// Why the last run failed, if it did; not for those who may only look.
        why: Option<String>,
    },
    /// [`AlertRule::Certificate`].
    Certificate {
        /// Its file.
        path: String,
        /// Whose business another one is.
        by: CertificateBy,
        /// When it ends, in seconds since 1970.
        end_s: u64,
        /// Whether it has ended.
        is_over: bool,
        /// Why it was not renewed, where that is the server's business and it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// [`AlertRule::Certificate`]: none can be got by ACME; the one that there is, is good.
    CertificateNotGot {
        /// Names that it is to be for.
        names: Vec<String>,
        /// Why.
        why: String,
    },
    /// [`AlertRule::Ups`].
    Ups {
        /// What it is called, and where it is asked for.
        name: String,
        /// How it is.
        condition: UpsCondition,
        /// How full its battery is, in percent.
        charge_percent: Option<u64>,
        /// For how long that lasts, in seconds.
        runtime_s: Option<u64>,
        /// Whether all pools were exported, until there is power again.
        are_pools_exported: bool,
    },
    /// [`AlertRule::State`].
    StateFile {
        /// What it is about.
        part: StatePart,
        /// The file.
        path: String,
        /// Why.
        why: String,
        /// It was read, and cannot be written; else that part does nothing.
        is_read: bool,
    },
    /// [`AlertRule::DiskHealth`].
    DiskFailing,
    /// [`AlertRule::DiskSectors`].
    DiskSectors {
        /// How many it has now.
        count: u64,
        /// How many more these are than up to 30 days ago.
        new: u64,
    },
    /// [`AlertRule::DiskTemperature`].
    DiskTemperature {
        /// In degrees Celsius.
        celsius: i64,
        /// From where on that is told.
        limit_celsius: i64,
    },
    /// [`AlertRule::DiskWear`].
    DiskWear {
        /// How much of what may be written to it has been.
        percent: u64,
    },
    /// [`AlertRule::DiskTest`]: what the last test of that kind came to.
    DiskTest {
        /// Which.
        kind: SelfTestKind,
        /// What the disk says that it came to.
        result: String,
        /// At how many hours of being on.
        at_hours: Option<u64>,
    },
    /// [`AlertRule::Scrub`] and [`AlertRule::Resilver`]: what a scan came to.
    Scan {
        /// Bytes verified.
        examined_bytes: u64,
        /// Bytes repaired, or given to devices.
        repaired_bytes: u64,
        /// Blocks that are lost.
        errors: u64,
        /// How long it took, in seconds.
        took_s: u64,
    },
}

/// Whose business a certificate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateBy {
    /// The server made and signed it.
    Server,
    /// Somebody gave it.
    Person,
    /// The server gets it by ACME.
    Acme,
}

/// The disk that an alert is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlertDisk {
    /// What it is known by, wherever it is plugged in.
    pub id: String,
    /// Its path.
    pub path: String,
    /// What it says that it is.
    pub model: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// Where it is.
    pub bay: Option<String>,
}

/// Something that somebody should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Alert {
    /// Which rule says so.
    pub rule: AlertRule,
    /// How bad it is.
    pub severity: AlertSeverity,
    /// The pool; of a disk, one that has something on it, or nothing.
    pub pool: String,
    /// Its GUID; zero where it is about a disk, or about what the server does.
    pub pool_guid: Guid,
    /// The disk, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<AlertDisk>,
    /// The device's GUID, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_guid: Option<Guid>,
    /// What there is to know.
    pub fact: AlertFact,
}

/// An alert that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StandingAlert {
    /// What it is.
    #[serde(flatten)]
    pub alert: Alert,
    /// Since when, in seconds since 1970.
    pub since_s: u64,
    /// When it was told last.
    pub told_s: u64,
    /// The sentence that mails, the command and the console say of it.
    #[serde(default)]
    pub says: String,
}

/// How a message goes out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delivery {
    /// `mail`, or scheme and host of a web hook: the rest of its address may be a secret.
    pub channel: String,
    /// Its subject.
    pub subject: String,
    /// Since when it waits, in seconds since 1970.
    pub since_s: u64,
    /// How often it was tried.
    pub tries: u32,
    /// When it is tried next, in seconds since 1970.
    pub next_s: u64,
    /// Why it did not work.
    pub problem: Option<String>,
}

/// Asks for the alerts that stand, and for messages that wait.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertList {}

/// What stands, and what waits.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct AlertListReply {
    /// The worst first.
    pub alerts: Vec<StandingAlert>,
    /// Messages that have not gone out yet, the oldest first.
    pub waiting: Vec<Delivery>,
}

impl Call for AlertList {
    const PATH: &'static str = "/v1/alerts/list";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = AlertListReply;
}

/// How a connection to a mail server is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MailTls {
    /// From the beginning at port 465; at others if the server offers it, and always where there is
    /// a password.
    #[default]
    Auto,
    /// From the beginning.
    Tls,
    /// By STARTTLS, always.
    Starttls,
    /// Never.
    None,
}

/// Who is told, and of what. Without an address and a web hook nobody is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AlertSettings {
    /// Host of the mail server.
    pub smtp_host: Option<String>,
    /// Its port; by default 465 with [`MailTls::Tls`], 587 with a user, else 25.
    pub smtp_port: Option<u16>,
    /// How the connection is encrypted.
    pub smtp_tls: MailTls,
    /// User to log in as.
    pub smtp_user: Option<String>,
    /// Sender; by default `millpond@` and the name of the host.
    pub from: Option<String>,
    /// Addresses.
    pub to: Vec<String>,
    /// Web hooks: URLs that messages are sent to as JSON.
    pub webhooks: Vec<String>,
    /// Rules that are switched off.
    pub off: BTreeSet<AlertRule>,
    /// A pool that is that full in percent is worth a warning, and worth a louder one.
    pub space_percent: (u64, u64),
    /// From how many degrees Celsius on a disk is too warm; by default its own limit, or else 60
    /// for one that turns and 70 for another.
    pub disk_temperature_c: Option<i64>,
    /// After how many hours what still stands is told again; zero is never.
    pub remind_hours: u64,
}

impl Default for AlertSettings {
    fn default() -> Self {
        Self {
            smtp_host: None,
            smtp_port: None,
            smtp_tls: MailTls::Auto,
            smtp_user: None,
            from: None,
            to: Vec::new(),
            webhooks: Vec::new(),
            off: BTreeSet::new(),
            space_percent: (80, 90),
            disk_temperature_c: None,
            remind_hours: 24,
        }
    }
}

/// Asks for the settings.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertSettingsGet {}

/// The settings, without what is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlertSettingsReply {
    /// What holds.
    pub settings: AlertSettings,
    /// Whether there is a password for the mail server.
    pub has_password: bool,
    /// Whether there is a key that messages to web hooks are signed with.
    pub has_webhook_key: bool,
}

impl Call for AlertSettingsGet {
    const PATH: &'static str = "/v1/alerts/settings";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot get the settings of alerts".to_owned());
    type Reply = AlertSettingsReply;

    fn changes(&self) -> bool {
        false
    }
}

/// Changes the settings.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertSettingsSet {
    /// All of them.
    pub settings: AlertSettings,
    /// A new password for the mail server; an empty one removes it.
    #[serde(default)]
    pub password: Option<Secret>,
    /// A new key that messages to web hooks are signed with; an empty one removes it.
    #[serde(default)]
    pub webhook_key: Option<Secret>,
}

impl Call for AlertSettingsSet {
    const PATH: &'static str = "/v1/alerts/settings-set";
    const ACCESS: Access<Self> =
        Access::Change(|_| "cannot change the settings of alerts".to_owned());
    type Reply = Empty;
}

/// Sends a message to see whether it arrives: what went wrong is answered.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertTest {}

/// How it went.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct AlertTestReply {
    /// Each channel as in [`Delivery::channel`], and what went wrong there.
    pub channels: Vec<(String, Option<String>)>,
}

impl Call for AlertTest {
    const PATH: &'static str = "/v1/alerts/test";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot send a test alert".to_owned());
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = AlertTestReply;
}
