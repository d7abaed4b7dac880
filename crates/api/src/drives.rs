//! Messages about the health of the host's disks, their bays and lights, and their own tests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, Call, Empty, Guid, Role, VdevState};

/// How a disk is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Serial ATA.
    Sata,
    /// Serial attached SCSI, also for SATA disks behind it.
    Sas,
    /// NVMe.
    Nvme,
    /// USB.
    Usb,
    /// A virtual machine's.
    Virtio,
    /// Another way, or none that is known.
    #[default]
    Other,
}

/// How a disk is, in a word.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DiskCondition {
    /// Nobody knows.
    #[default]
    Unknown,
    /// Nothing is wrong.
    Good,
    /// Something is to be watched: wear, heat, bad sectors that become more.
    Warning,
    /// It says itself that it is failing, or a pool does not use it any more.
    Failing,
    /// It is not there.
    Missing,
}

/// What became of asking a disk how it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum SmartState {
    /// It has not been asked yet.
    #[default]
    NotAsked,
    /// It answered.
    Known,
    /// It sleeps, and is not woken for this: what is told was told before.
    Standby,
    /// It has nothing to tell: a virtual disk, or one behind a controller that is in between.
    Unsupported {
        /// What the program says.
        why: String,
    },
    /// It could not be asked.
    Failed {
        /// Why, and what to do.
        why: String,
    },
    /// It does not answer.
    NoAnswer,
}

/// A test that a disk made of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SelfTest {
    /// What kind: `Short offline`.
    pub kind: String,
    /// How it ended, in the disk's words.
    pub result: String,
    /// Whether nothing was found; none where it did not come to an end.
    pub passed: Option<bool>,
    /// The disk's hours of work when it ended.
    pub at_hours: Option<u64>,
}

/// What a disk tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SmartReport {
    /// When it was asked, in seconds since 1970.
    pub time_s: u64,
    /// Whether it says that it is well.
    pub passed: Option<bool>,
    /// How warm it is, in degrees Celsius; none while it sleeps.
    pub temperature_c: Option<i64>,
    /// How warm it may be by its own account, in degrees Celsius.
    pub temperature_limit_c: Option<i64>,
    /// For how long it has been on.
    pub power_on_hours: Option<u64>,
    /// How much of what may be written to it has been, in percent; may be above 100.
    pub wear_percent: Option<u64>,
    /// Sectors that others stand in for.
    pub reallocated_sectors: Option<u64>,
    /// Sectors that could not be read, and wait to be written.
    pub pending_sectors: Option<u64>,
    /// Sectors, or blocks of an NVMe disk, that could not be read for good.
    pub uncorrectable_sectors: Option<u64>,
    /// Transfers that were damaged on the way: cables.
    pub crc_errors: Option<u64>,
    /// The test under way: how much of it is left, in percent.
    pub test_remaining_percent: Option<u64>,
    /// The last tests, the newest first.
    pub tests: Vec<SelfTest>,
    /// Model, where the kernel does not know it.
    pub model: Option<String>,
    /// Serial number, likewise.
    pub serial: Option<String>,
}

/// A pool's device that is on a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskMember {
    /// The pool.
    pub pool: String,
    /// The device's GUID.
    pub guid: Guid,
    /// Its path.
    pub path: String,
    /// What it belongs to: `mirror-0`, or the pool's name where it stands alone.
    pub vdev: String,
    /// How it is.
    pub state: VdevState,
}

/// How a disk's lights are switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LightKind {
    /// By an enclosure's processor (SES).
    Enclosure,
    /// By PCI Express (NPEM).
    Npem,
    /// By the program `ledctl`.
    Ledctl,
}

/// What of a bay's lights this server has switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskLights {
    /// How they are switched.
    pub by: LightKind,
    /// The one that says that the disk is to be replaced.
    pub fault: bool,
    /// The one that says where it is.
    pub locate: bool,
}

/// A disk, and how it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskState {
    /// What it is known by, wherever it is plugged in: its serial number, or else its name.
    pub id: String,
    /// Name that the kernel gave it: `sda`. Of one that is not there, that of its path.
    pub name: String,
    /// The path that stays the same when the host starts anew.
    pub path: String,
    /// What it says that it is.
    pub model: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// Its size in bytes; zero where it is not there.
    pub size_bytes: u64,
    /// Whether it turns.
    pub is_rotational: bool,
    /// How it is attached.
    pub transport: Transport,
    /// The enclosure that it is in.
    pub enclosure: Option<String>,
    /// Where in it: `Slot 03`.
    pub bay: Option<String>,
    /// What pools have on it.
    pub members: Vec<DiskMember>,
    /// How it is.
    pub condition: DiskCondition,
    /// What became of asking it.
    pub smart_state: SmartState,
    /// What it told last.
    pub smart: Option<SmartReport>,
    /// By how many its bad sectors have become more in the last 30 days.
    pub new_bad_sectors: u64,
    /// Its lights; none where there are none that can be switched.
    pub lights: Option<DiskLights>,
}

/// How a disk was at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskSample {
    /// When, in seconds since 1970.
    pub time_s: u64,
    /// How warm it was, in degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<i64>,
    /// Sectors that are reallocated, pending or uncorrectable, together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad_sectors: Option<u64>,
    /// Wear in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear_percent: Option<u64>,
}

/// A test of itself that came to an end while somebody looked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskTested {
    /// When it was first seen to have ended, in seconds since 1970.
    pub time_s: u64,
    /// What it was, and what it came to.
    #[serde(flatten)]
    pub test: SelfTest,
}

/// Asks how the host's disks are. What is told is known already: no disk is asked for it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskOverview {}

/// The host's disks, and how they are.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct DiskOverviewReply {
    /// By name, those of pools that are not there last.
    pub disks: Vec<DiskState>,
    /// Why disks are not asked how they are, and what to do.
    pub problem: Option<String>,
}

impl Call for DiskOverview {
    const PATH: &'static str = "/v1/disks/overview";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = DiskOverviewReply;
}

/// Asks how one disk is and was.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskShow {
    /// Its name, path, serial number, bay, or the GUID of a pool's device on it.
    pub disk: String,
    /// Ask the disk anew first. Without the right to change something, that is left out.
    #[serde(default)]
    pub fresh: bool,
}

/// One disk, and how it was.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct DiskShowReply {
    /// How it is.
    pub disk: DiskState,
    /// How it was: at most one an hour, for 30 days, the oldest first.
    pub history: Vec<DiskSample>,
    /// Tests of itself, from when the server first saw the disk on, the oldest first: more than
    /// the disk itself remembers.
    pub tests: Vec<DiskTested>,
}

impl Call for DiskShow {
    const PATH: &'static str = "/v1/disks/show";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = DiskShowReply;
}

/// Switches the light on that says where a disk is, or off.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskLocate {
    /// The disk, as in `DiskShow`; one that is not there any more is found by its last bay.
    pub disk: String,
    /// Whether it is to be on.
    pub on: bool,
    /// For how long, in seconds; until it is switched off where not given.
    #[serde(default)]
    pub for_s: Option<u64>,
}

impl Call for DiskLocate {
    const PATH: &'static str = "/v1/disks/locate";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot switch the light of '{}'", call.disk));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// Tells whether the bay of a disk has power, or switches it: a disk without is gone until it has
/// power again. Who switches it off takes the device out of its pool first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskPower {
    /// The disk, as in `DiskShow`; one that is not there any more is found by its last bay.
    pub disk: String,
    /// Whether it is to be on; only tells without.
    #[serde(default)]
    pub on: Option<bool>,
}

/// Whether a bay has power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskPowerReply {
    /// None where it has no switch.
    pub is_on: Option<bool>,
}

impl Call for DiskPower {
    const PATH: &'static str = "/v1/disks/power";
    const ACCESS: Access<Self> =
        Access::Change(|call| format!("cannot switch the power of '{}'", call.disk));
    type Reply = DiskPowerReply;

    fn changes(&self) -> bool {
        self.on.is_some()
    }
}

/// How thoroughly a disk tests itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SelfTestKind {
    /// In some minutes.
    #[default]
    Short,
    /// All of it, in hours.
    Long,
}

impl SelfTestKind {
    /// The kind of a test that a disk tells of in words of smartmontools: `Short offline`,
    /// `Background long`, `Extended`. None where it is another one.
    pub fn of(words: &str) -> Option<Self> {
        let words = words.to_ascii_lowercase();
        let has = |word: &str| words.contains(word);
        match (has("short"), has("long") || has("extended")) {
            (true, _) => Some(Self::Short),
            (false, true) => Some(Self::Long),
            (false, false) => None,
        }
    }
}

/// Has a disk test itself. It can be used meanwhile.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskTest {
    /// The disk, as in `DiskShow`.
    pub disk: String,
    /// How thoroughly.
    pub kind: SelfTestKind,
}

impl Call for DiskTest {
    const PATH: &'static str = "/v1/disks/test";
    const ACCESS: Access<Self> = Access::Change(|call| format!("cannot test '{}'", call.disk));
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = Empty;
}

/// Switches all lights on for some seconds, so that somebody can see which do not work.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskLightsTest {
    /// For how long, in seconds: 1 to 60.
    pub seconds: u64,
}

/// A bay, and whether its lights took what they were told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LightTested {
    /// Where it is: enclosure and slot, or the device.
    pub place: String,
    /// The disk in it.
    pub disk: Option<String>,
    /// What went wrong.
    pub problem: Option<String>,
}

/// How the lights are.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct DiskLightsTestReply {
    /// Every bay.
    pub bays: Vec<LightTested>,
}

impl Call for DiskLightsTest {
    const PATH: &'static str = "/v1/disks/lights-test";
    const ACCESS: Access<Self> = Access::Change(|_| "cannot test the lights".to_owned());
    const ROLE: Option<Role> = Some(Role::Operator);
    type Reply = DiskLightsTestReply;
}
