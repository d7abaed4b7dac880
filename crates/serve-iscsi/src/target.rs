//! Targets: names, logical units, who may log in, and the sessions that have.
//!
//! Locks: a [`TargetSet`] has one for its sessions and one for its targets; a target has one for
//! its options and one for its units. They are taken in this order, before any unit's own, that of
//! a nexus's counters and that of the memory budget, and none is held across an await.

use crate::budget::{Budget, Share};
use crate::error::TargetError;
use crate::login::{
    Authentication, ChapCredentials, Directory, LoginStatus, PORTAL_GROUP_TAG, SessionKind,
};
use crate::lun::LogicalUnit;
use crate::scsi::{
    self, Command, CopyStop, Designator, Done, InitiatorPort, NexusId, Outcome, Sense, Unit,
    UnitState, decode_lun, standard_without_unit,
};
use crate::server::Joining;
use crate::text::ISCSI_NAME_BYTES_MAX;
use crate::traffic::{ByPortal, ClientTraffic, UnitTraffic};
use access::{Traffic, TrafficCounts};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Highest logical unit number that a target takes (flat space addressing, SAM-5 4.7.4).
pub const LUN_MAX: u16 = 16383;

/// What may be set for a target besides its units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetOptions {
    /// Human-readable name (`TargetAlias`), at most 255 bytes.
    pub alias: Option<String>,
    /// How initiators prove who they are.
    pub authentication: Authentication,
    /// Initiator names that may log in; a `*` at the end matches any rest. Empty: all may.
    pub allowed_initiators: Vec<String>,
    /// Refuse all writes, whatever the units say.
    pub is_read_only: bool,
}

impl TargetOptions {
    /// Whether an initiator that has proven this is let in.
    fn admits(&self, initiator: &str, proven: Option<&ChapCredentials>) -> bool {
        let wanted = self.authentication.initiator();
        may_log_in(&self.allowed_initiators, initiator)
            && wanted.is_none_or(|wanted| proven == Some(wanted))
    }
}

/// A target: a name and its logical units.
#[derive(Clone)]
pub struct Target {
    /// iSCSI qualified name (`iqn.`, `eui.` or `naa.`).
    pub iqn: String,
    /// Units by logical unit number.
    pub luns: BTreeMap<u16, Arc<dyn LogicalUnit>>,
    /// The rest.
    pub options: TargetOptions,
}

/// A session, for people to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The target; `None` for a discovery session.
    pub iqn: Option<String>,
    /// The initiator's name.
    pub initiator: String,
    /// Where it comes from.
    pub peer: std::net::SocketAddr,
    /// Target session identifying handle.
    pub tsih: u16,
}

/// What may be had of a server at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory for what all sessions together have under way, in bytes (64 MiB at least): data of
    /// commands, and about 2 MiB for each session.
    pub memory_bytes: u64,
    /// Sessions at the same time.
    pub sessions: usize,
    /// Connections of a session, where an initiator asks for several.
    pub connections_of_session: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: MEMORY_BYTES_DEFAULT,
            sessions: SESSIONS_MAX,
            connections_of_session: CONNECTIONS_OF_SESSION_MAX,
        }
    }
}

/// How long sessions may take to log out by themselves when their target goes away.
pub(crate) const LOGOUT_GRACE: Duration = Duration::from_secs(3);
/// Most sessions at the same time where nothing else is said.
const SESSIONS_MAX: usize = 4096;
/// Most connections of a session where nothing else is said.
const CONNECTIONS_OF_SESSION_MAX: u16 = 8;
/// Memory of all sessions together where nothing else is said, in bytes.
const MEMORY_BYTES_DEFAULT: u64 = 256 << 20;
/// The least that works: the longest commands need 16 MiB, and a quarter is kept for them.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
const _: () = assert!(scsi::TRANSFER_BYTES_MAX as u64 <= MEMORY_BYTES_MIN / 4);
/// Memory of all discovery sessions together, in bytes.
const DISCOVERY_MEMORY_BYTES: u64 = 128 << 20;

/// What a session's connection is asked to do by others.
#[derive(Debug)]
pub(crate) enum Control {
    /// Take a connection in, or refuse it.
    Join(Box<Joining>),
    /// Abort commands on a unit (all if `None`), and answer when they have ended.
    Abort {
        lun: Option<u16>,
        done: oneshot::Sender<()>,
    },
    /// Ask the initiator to log out within some seconds.
    RequestLogout { seconds: u16 },
    /// End the connection once what runs has ended.
    Close,
}

/// A session as the registry knows it.
#[derive(Debug)]
struct SessionEntry {
    info: SessionInfo,
    port: InitiatorPort,
    nexus: Option<Arc<Nexus>>,
    control: mpsc::UnboundedSender<Control>,
    /// Closed when the session has ended.
    alive: watch::Receiver<()>,
}

/// What a connection holds for its session; dropping it ends the session.
#[derive(Debug)]
pub(crate) struct Registration {
    set: Arc<Inner>,
    tsih: u16,
    pub(crate) nexus: Option<Arc<Nexus>>,
    _alive: watch::Sender<()>,
}

impl Registration {
    pub(crate) fn tsih(&self) -> u16 {
        self.tsih
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut sessions = self.set.sessions.lock();
        if let Some(nexus) = &self.nexus {
            // Whoever looks finds it among those that there are or among the ended ones.
            for (lun, unit) in nexus.target.units.read().iter() {
                let traffic = nexus.traffic.lock().get(lun).cloned();
                if let Some(traffic) = traffic {
                    unit.ended_traffic.add(&nexus.port.name, &traffic.counts());
                }
            }
        }
        sessions.remove(&self.tsih);
        drop(sessions);
        if let Some(nexus) = &self.nexus {
            for unit in nexus.target.units.read().values() {
                unit.detach(nexus.id);
            }
        }
    }
}

/// A target at run time.
pub(crate) struct TargetEntry {
    iqn: String,
    options: RwLock<TargetOptions>,
    is_read_only: Arc<AtomicBool>,
    units: RwLock<BTreeMap<u16, Arc<Unit>>>,
    is_removed: AtomicBool,
}

impl std::fmt::Debug for TargetEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetEntry")
            .field("iqn", &self.iqn)
            .finish_non_exhaustive()
    }
}

/// A session's view of its target (an I_T nexus).
#[derive(Debug)]
pub(crate) struct Nexus {
    id: NexusId,
    target: Arc<TargetEntry>,
    port: InitiatorPort,
    /// What the initiator has shown that it knows.
    proven: Option<ChapCredentials>,
    set: Weak<Inner>,
    /// By unit.
    traffic: Mutex<BTreeMap<u16, Arc<Traffic>>>,
}

impl Nexus {
    pub(crate) fn iqn(&self) -> &str {
        &self.target.iqn
    }

    /// The unit with this number.
    pub(crate) fn unit(&self, lun: u16) -> Option<Arc<Unit>> {
        self.target.units.read().get(&lun).cloned()
    }

    /// Lets a command in, or says how it ends: what no unit is needed for is answered here.
    pub(crate) fn admit(
        &self,
        lun: [u8; 8],
        cdb: &[u8; 16],
    ) -> Result<(Arc<Unit>, Command), Outcome> {
        let Some(unit) = decode_lun(lun).and_then(|lun| self.unit(lun)) else {
            return Err(self.without_unit(cdb));
        };
        let command = unit.admit(self.id, cdb)?;
        if let Command::ReportLuns { select, allocation } = command {
            return Err(self.report_luns(select, allocation));
        }
        Ok((unit, command))
    }

    /// A command to a number that has no unit (SAM-5 section 5.11; SPC-5 section 6.7.2).
    fn without_unit(&self, cdb: &[u8; 16]) -> Outcome {
        match Command::decode(cdb) {
            Ok(Command::ReportLuns { select, allocation }) => self.report_luns(select, allocation),
            Ok(Command::Inquiry {
                page: None,
                allocation,
            }) => Outcome::parameters(standard_without_unit(), allocation),
            Ok(Command::RequestSense {
                is_descriptor,
                allocation,
            }) => {
                let (bytes, length) = Sense::LUN_NOT_SUPPORTED.encode(is_descriptor);
                Outcome::parameters(bytes[..length].to_vec(), allocation)
            }
            _ => Sense::LUN_NOT_SUPPORTED.into(),
        }
    }

    /// REPORT LUNS (SPC-5 section 6.33): all units; there are no well-known ones.
    fn report_luns(&self, select: u8, allocation: u32) -> Outcome {
        match select {
            0x00 | 0x02 => {
                let units = self.target.units.read();
                Outcome::parameters(scsi::report_luns(units.keys().copied()), allocation)
            }
            0x01 => Outcome::parameters(scsi::report_luns(std::iter::empty()), allocation),
            _ => Sense::cdb_field(2).into(),
        }
    }

    /// Carries a command out if that needs no waiting.
    pub(crate) fn execute_now(
        &self,
        unit: &Unit,
        command: &Command,
        data: &[u8],
    ) -> Option<Outcome> {
        unit.execute_now(self.id, command, data)
    }

    /// Carries out what needs waiting.
    pub(crate) async fn execute(
        self: Arc<Self>,
        unit: Arc<Unit>,
        command: Command,
        data: Bytes,
        stop: CopyStop,
    ) -> Done {
        let find = |designator: &Designator| self.find_unit(designator);
        unit.execute(self.id, &find, command, data, &stop).await
    }

    /// A unit that the initiator may copy from and to: one of a target that it could log in to with
    /// what it has proven.
    fn find_unit(&self, designator: &Designator) -> Option<Arc<Unit>> {
        let set = self.set.upgrade()?;
        let targets = set.targets.read();
        let mut admitting = targets.values().filter(|target| {
            let options = target.options.read();
            options.admits(&self.port.name, self.proven.as_ref())
        });
        admitting.find_map(|target| {
            let units = target.units.read();
            let mut units = units.values();
            units.find(|unit| unit.is_named(designator)).cloned()
        })
    }

    /// Counters of what this nexus does to a unit.
    pub(crate) fn traffic(&self, lun: u16) -> Arc<Traffic> {
        Arc::clone(self.traffic.lock().entry(lun).or_default())
    }

    /// The unit of a number, or all.
    pub(crate) fn units_of(&self, lun: Option<u16>) -> Vec<Arc<Unit>> {
        let units = self.target.units.read();
        let chosen = units
            .iter()
            .filter(|(number, _)| lun.is_none_or(|lun| lun == **number));
        chosen.map(|(_, unit)| unit.clone()).collect()
    }

    /// LOGICAL UNIT RESET (all units if `None`); returns the nexuses whose commands must end too.
    pub(crate) fn reset(&self, lun: Option<u16>) -> Vec<NexusId> {
        self.for_others(lun, |unit| unit.reset())
    }

    /// CLEAR TASK SET; returns the nexuses whose commands must end too.
    pub(crate) fn clear_task_set(&self, lun: Option<u16>) -> Vec<NexusId> {
        self.for_others(lun, |unit| {
            unit.establish(Some(self.id), Sense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
        })
    }

    fn for_others(&self, lun: Option<u16>, act: impl Fn(&Unit)) -> Vec<NexusId> {
        let mut others = Vec::new();
        for unit in self.units_of(lun) {
            act(&unit);
            others.extend(unit.other_nexuses(self.id));
        }
        others.sort_unstable();
        others.dedup();
        others
    }
}

struct Inner {
    targets: RwLock<BTreeMap<String, Arc<TargetEntry>>>,
    /// Memory of all sessions on targets.
    memory: Arc<Budget>,
    /// Memory of all discovery sessions, which anybody can have.
    discovery_memory: Arc<Budget>,
    sessions: Mutex<BTreeMap<u16, SessionEntry>>,
    next_nexus: AtomicU64,
    next_tsih: AtomicU64,
    limits: Limits,
    /// Where servers listen.
    portals: RwLock<Vec<SocketAddr>>,
    by_portal: ByPortal,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

/// All targets of a server, and the sessions on them; shared by servers and whoever configures.
#[derive(Debug)]
pub struct TargetSet {
    inner: Arc<Inner>,
}

impl Default for TargetSet {
    fn default() -> Self {
        Self::new()
    }
}

impl TargetSet {
    /// An empty set, with limits as they come.
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// An empty set with these limits.
    pub fn with_limits(limits: Limits) -> Self {
        let memory_bytes = limits.memory_bytes.max(MEMORY_BYTES_MIN);
        Self {
            inner: Arc::new(Inner {
                targets: RwLock::default(),
                memory: Arc::new(Budget::new(memory_bytes)),
                discovery_memory: Arc::new(Budget::new(DISCOVERY_MEMORY_BYTES)),
                sessions: Mutex::default(),
                next_nexus: AtomicU64::new(0),
                next_tsih: AtomicU64::new(0),
                limits,
                portals: RwLock::default(),
                by_portal: ByPortal::default(),
            }),
        }
    }

    /// An empty set with the limits as they come, but for memory.
    pub fn with_memory_bytes(memory_bytes: u64) -> Self {
        Self::with_limits(Limits {
            memory_bytes,
            ..Limits::default()
        })
    }

    /// Bytes that sessions have under way, and have at most.
    pub fn memory_bytes(&self) -> (u64, u64) {
        let budgets = [&self.inner.memory, &self.inner.discovery_memory];
        let used = budgets.map(|budget| budget.used_bytes());
        let limits = budgets.map(|budget| budget.limit_bytes());
        (used.iter().sum(), limits.iter().sum())
    }

    /// A server listens here.
    pub(crate) fn add_portal(&self, address: SocketAddr) {
        self.inner.portals.write().push(address);
    }

    /// It does not any more.
    pub(crate) fn remove_portal(&self, address: SocketAddr) {
        self.inner
            .portals
            .write()
            .retain(|portal| *portal != address);
    }

    /// The portals to be named to who came in by `local`: that one first. One that listens on every
    /// address is named by the address that the initiator knows; loopback ones are named to who is
    /// there already.
    pub(crate) fn portals_for(&self, local: SocketAddr) -> Vec<SocketAddr> {
        let canonical = |ip: IpAddr| ip.to_canonical();
        let own = SocketAddr::new(canonical(local.ip()), local.port());
        let mut named = vec![own];
        for portal in self.inner.portals.read().iter() {
            let ip = canonical(portal.ip());
            // The wildcard of IPv6 takes IPv4 as well.
            let ip = match ip {
                IpAddr::V4(any) if any.is_unspecified() && own.is_ipv6() => continue,
                ip if ip.is_unspecified() => own.ip(),
                ip => ip,
            };
            let portal = SocketAddr::new(ip, portal.port());
            if (!ip.is_loopback() || own.ip().is_loopback()) && !named.contains(&portal) {
                named.push(portal);
            }
        }
        named
    }

    /// Counters of what comes in by an address of this host.
    pub(crate) fn count_of(&self, local: SocketAddr) -> Arc<Traffic> {
        self.inner.by_portal.of(local)
    }

    /// What has been done by each portal since the server began, by the address that initiators
    /// used.
    pub fn traffic_by_portal(&self) -> BTreeMap<SocketAddr, TrafficCounts> {
        self.inner.by_portal.counts()
    }

    /// What clients have done, by unit.
    pub fn traffic(&self) -> Vec<UnitTraffic> {
        let sessions = self.inner.sessions.lock();
        let targets = self.inner.targets.read();
        let mut all = Vec::new();
        for target in targets.values() {
            for (lun, unit) in target.units.read().iter() {
                let ended = &unit.ended_traffic;
                let mut traffic = UnitTraffic::new(target.iqn.clone(), *lun, ended);
                let nexuses = sessions.values().filter_map(|session| {
                    let nexus = session.nexus.as_ref()?;
                    Arc::ptr_eq(&nexus.target, target).then_some((session, nexus))
                });
                for (session, nexus) in nexuses {
                    traffic.add(ClientTraffic {
                        initiator: session.info.initiator.clone(),
                        peer: session.info.peer,
                        tsih: session.info.tsih,
                        counts: nexus.traffic(*lun).counts(),
                    });
                }
                all.push(traffic);
            }
        }
        all
    }

    /// Adds a target; initiators can log in from now on. Names are compared without regard to
    /// case (RFC 7143 section 4.2.7.2 wants them in lower case).
    pub fn add(&self, target: Target) -> Result<(), TargetError> {
        self.add_known(target, BTreeMap::new())
    }

    /// The same, of units on which initiators have set `states` before, by their numbers.
    pub fn add_known(
        &self,
        target: Target,
        mut states: BTreeMap<u16, Arc<UnitState>>,
    ) -> Result<(), TargetError> {
        let iqn = target.iqn.to_ascii_lowercase();
        check_name(&iqn)?;
        check_options(&iqn, &target.options)?;
        let is_read_only = Arc::new(AtomicBool::new(target.options.is_read_only));
        let mut units = BTreeMap::new();
        for (lun, storage) in target.luns {
            let state = states.remove(&lun).unwrap_or_default();
            let unit = new_unit(&iqn, lun, storage, state, &is_read_only)?;
            units.insert(lun, Arc::new(unit));
        }
        let mut targets = self.inner.targets.write();
        if targets.contains_key(&iqn) {
            return Err(TargetError::Exists { iqn });
        }
        let entry = TargetEntry {
            iqn: iqn.clone(),
            options: RwLock::new(target.options),
            is_read_only,
            units: RwLock::new(units),
            is_removed: AtomicBool::new(false),
        };
        targets.insert(iqn, Arc::new(entry));
        Ok(())
    }

    fn find(&self, iqn: &str) -> Result<Arc<TargetEntry>, TargetError> {
        let iqn = iqn.to_ascii_lowercase();
        let found = self.inner.targets.read().get(&iqn).cloned();
        found.ok_or(TargetError::NotFound { iqn })
    }

    /// Removes a target: asks its sessions to log out, closes those that do not within a few
    /// seconds, and returns when no request is in flight and no unit of it is held any more. That
    /// takes as long as the storage takes; nobody can log in from the first moment on.
    pub async fn remove(&self, iqn: &str) -> Result<(), TargetError> {
        let entry = self.find(iqn)?;
        entry.is_removed.store(true, Ordering::SeqCst);
        self.inner.targets.write().remove(&entry.iqn);
        let is_of_target = |session: &SessionEntry| session.info.iqn.as_deref() == Some(&entry.iqn);
        self.end_sessions(is_of_target, LOGOUT_GRACE).await;
        let units = std::mem::take(&mut *entry.units.write());
        for unit in units.into_values() {
            until_unheld(unit).await;
        }
        Ok(())
    }

    /// Ends all sessions; used when a server shuts down.
    pub(crate) async fn end_all_sessions(&self) {
        self.end_sessions(|_| true, LOGOUT_GRACE).await;
    }

    async fn end_sessions(&self, is_meant: impl Fn(&SessionEntry) -> bool, grace: Duration) {
        let seconds = grace.as_secs() as u16;
        let mut alive = self.tell(&is_meant, || Control::RequestLogout { seconds });
        if alive.is_empty() {
            return;
        }
        let all_gone = async {
            for session in &mut alive {
                // An error says that the other side is gone: the session has ended.
                while session.changed().await.is_ok() {}
            }
        };
        if tokio::time::timeout(grace, all_gone).await.is_err() {
            for mut session in self.tell(&is_meant, || Control::Close) {
                while session.changed().await.is_ok() {}
            }
        }
    }

    fn tell(
        &self,
        is_meant: &impl Fn(&SessionEntry) -> bool,
        message: impl Fn() -> Control,
    ) -> Vec<watch::Receiver<()>> {
        let sessions = self.inner.sessions.lock();
        let meant = sessions.values().filter(|session| is_meant(session));
        meant
            .map(|session| {
                // If it cannot be told, it is ending already.
                let _ = session.control.send(message());
                session.alive.clone()
            })
            .collect()
    }

    /// Adds a logical unit to a target; sessions get a unit attention (reported LUNs changed).
    pub fn add_lun(
        &self,
        iqn: &str,
        lun: u16,
        unit: Arc<dyn LogicalUnit>,
    ) -> Result<(), TargetError> {
        let entry = self.find(iqn)?;
        let unit = Arc::new(new_unit(
            &entry.iqn,
            lun,
            unit,
            Arc::default(),
            &entry.is_read_only,
        )?);
        let sessions = self.inner.sessions.lock();
        let mut units = entry.units.write();
        if units.contains_key(&lun) {
            let iqn = entry.iqn.clone();
            return Err(TargetError::LunExists { iqn, lun });
        }
        for other in units.values() {
            other.establish(None, Sense::REPORTED_LUNS_CHANGED);
        }
        for session in sessions.values() {
            if let Some(nexus) = &session.nexus
                && session.info.iqn.as_ref() == Some(&entry.iqn)
            {
                unit.attach(nexus.id, session.port.clone(), Sense::REPORTED_LUNS_CHANGED);
            }
        }
        units.insert(lun, unit);
        Ok(())
    }

    /// Removes a logical unit; returns when no request to it is in flight any more.
    pub async fn remove_lun(&self, iqn: &str, lun: u16) -> Result<(), TargetError> {
        let entry = self.find(iqn)?;
        let unit = {
            let mut units = entry.units.write();
            let unit = units.remove(&lun);
            for other in units.values() {
                other.establish(None, Sense::REPORTED_LUNS_CHANGED);
            }
            unit
        };
        match unit {
            Some(unit) => {
                until_unheld(unit).await;
                Ok(())
            }
            None => Err(TargetError::LunNotFound {
                iqn: entry.iqn.clone(),
                lun,
            }),
        }
    }

    /// Replaces a target's options; they hold for logins from now on, read-only at once: sessions
    /// get a unit attention where that changes (the WP bit of mode parameters).
    pub fn set_options(&self, iqn: &str, options: TargetOptions) -> Result<(), TargetError> {
        let entry = self.find(iqn)?;
        check_options(&entry.iqn, &options)?;
        let is_read_only = options.is_read_only;
        let was_read_only = entry.is_read_only.swap(is_read_only, Ordering::Relaxed);
        *entry.options.write() = options;
        if was_read_only != is_read_only {
            for unit in entry.units.read().values() {
                unit.establish(None, Sense::MODE_PARAMETERS_CHANGED);
            }
        }
        Ok(())
    }

    /// Does so, and ends the sessions of initiators that would not be let in any more; it returns
    /// when they have ended. All others go on.
    pub async fn change_options(
        &self,
        iqn: &str,
        options: TargetOptions,
    ) -> Result<(), TargetError> {
        self.set_options(iqn, options)?;
        // Who logs in from now on is held against them.
        let is_shut_out = |session: &SessionEntry| {
            session.nexus.as_ref().is_some_and(|nexus| {
                let options = nexus.target.options.read();
                nexus.target.iqn.eq_ignore_ascii_case(iqn)
                    && !options.admits(&nexus.port.name, nexus.proven.as_ref())
            })
        };
        self.end_sessions(is_shut_out, LOGOUT_GRACE).await;
        Ok(())
    }

    /// Memory that sessions have taken, in bytes.
    #[cfg(test)]
    pub(crate) fn memory_used_bytes(&self) -> u64 {
        self.inner.memory.used_bytes()
    }

    /// Names of all targets, in order.
    pub fn names(&self) -> Vec<String> {
        self.inner.targets.read().keys().cloned().collect()
    }

    /// All sessions.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let sessions = self.inner.sessions.lock();
        sessions
            .values()
            .map(|session| session.info.clone())
            .collect()
    }

    /// Names of the targets that an initiator may see (SendTargets): those that it could log in
    /// to with what it has proven.
    pub(crate) fn names_for(
        &self,
        initiator: &str,
        proven: Option<&ChapCredentials>,
    ) -> Vec<String> {
        let targets = self.inner.targets.read();
        let seen = targets
            .values()
            .filter(|target| target.options.read().admits(initiator, proven));
        seen.map(|target| target.iqn.clone()).collect()
    }

    /// Sends a message to the sessions behind these nexuses.
    pub(crate) fn tell_nexuses(&self, nexuses: &[NexusId], mut message: impl FnMut() -> Control) {
        let sessions = self.inner.sessions.lock();
        for session in sessions.values() {
            let nexus = session.nexus.as_ref();
            if nexus.is_some_and(|nexus| nexuses.contains(&nexus.id)) {
                // If it cannot be told, it is ending already, and its commands with it.
                let _ = session.control.send(message());
            }
        }
    }

    /// Registers a session that has passed its login. A session of the same initiator port (name
    /// and ISID) to the same target is closed first and waited for (session reinstatement, RFC
    /// 7143 section 6.3.5), so that nothing the old one began can happen after the new one has
    /// begun. No other session is touched, and none before the target has been asked once more
    /// whether it admits the initiator: its options, or the target itself, may be others than
    /// when the login began. Answers the session's share of the memory, which has `base_bytes`.
    pub(crate) async fn register(
        &self,
        iqn: Option<String>,
        port: InitiatorPort,
        proven: Option<&ChapCredentials>,
        peer: std::net::SocketAddr,
        control: mpsc::UnboundedSender<Control>,
        base_bytes: u64,
    ) -> Result<(Registration, Share), LoginStatus> {
        let (alive, alive_receiver) = watch::channel(());
        loop {
            let mut old = {
                let mut sessions = self.inner.sessions.lock();
                let target = match &iqn {
                    None => None,
                    Some(iqn) => Some(self.admit(iqn, &port.name, proven)?),
                };
                let same = sessions.values().find(|session| {
                    iqn.is_some() && session.info.iqn == iqn && session.port == port
                });
                match same {
                    Some(same) => {
                        let _ = same.control.send(Control::Close);
                        same.alive.clone()
                    }
                    None => {
                        if sessions.len() >= self.inner.limits.sessions {
                            return Err(LoginStatus::OutOfResources);
                        }
                        let memory = match &target {
                            Some(_) => &self.inner.memory,
                            None => &self.inner.discovery_memory,
                        };
                        let share = Share::open(memory, base_bytes);
                        let share = share.ok_or(LoginStatus::OutOfResources)?;
                        let tsih = self.free_tsih(&sessions);
                        let nexus = target.map(|target| self.new_nexus(target, &port, proven));
                        let entry = SessionEntry {
                            info: SessionInfo {
                                iqn: iqn.clone(),
                                initiator: port.name.clone(),
                                peer,
                                tsih,
                            },
                            nexus: nexus.clone(),
                            port,
                            control,
                            alive: alive_receiver,
                        };
                        sessions.insert(tsih, entry);
                        let registration = Registration {
                            set: self.inner.clone(),
                            tsih,
                            nexus,
                            _alive: alive,
                        };
                        return Ok((registration, share));
                    }
                }
            };
            while old.changed().await.is_ok() {}
        }
    }

    /// Hands a connection that has logged in to the session that it joins: one of the same
    /// initiator port and target, for which the same was proven. Gives it back where there is none.
    pub(crate) fn join(
        &self,
        tsih: u16,
        joining: Box<Joining>,
    ) -> Result<(), (LoginStatus, Box<Joining>)> {
        let established = &joining.established;
        let is_same = |entry: &&SessionEntry| {
            let SessionKind::Normal { iqn } = &established.kind else {
                return false;
            };
            let (name, proven) = (&established.initiator, &established.proven);
            let has_proven = entry.nexus.as_ref().map(|nexus| &nexus.proven);
            entry.info.iqn.as_ref() == Some(iqn)
                && (&entry.port.name, &entry.port.isid) == (name, &established.isid)
                && has_proven == Some(proven)
                && self.admit(iqn, name, proven.as_ref()).is_ok()
        };
        let sessions = self.inner.sessions.lock();
        let session = sessions.get(&tsih).filter(is_same);
        let Some(session) = session.filter(|session| !session.control.is_closed()) else {
            return Err((LoginStatus::SessionDoesNotExist, joining));
        };
        // If it ends at this moment, the connection ends with it.
        let _ = session.control.send(Control::Join(joining));
        Ok(())
    }

    fn free_tsih(&self, sessions: &BTreeMap<u16, SessionEntry>) -> u16 {
        loop {
            // There are fewer sessions than handles, so one is free; 0 is none.
            let next = self.inner.next_tsih.fetch_add(1, Ordering::Relaxed) as u16;
            if next != 0 && !sessions.contains_key(&next) {
                return next;
            }
        }
    }

    /// The target of this name, if it lets an initiator in that has proven this.
    fn admit(
        &self,
        iqn: &str,
        initiator: &str,
        proven: Option<&ChapCredentials>,
    ) -> Result<Arc<TargetEntry>, LoginStatus> {
        let target = self.find(iqn).map_err(|_| LoginStatus::NotFound)?;
        if target.is_removed.load(Ordering::SeqCst) {
            return Err(LoginStatus::NotFound);
        }
        if !target.options.read().admits(initiator, proven) {
            return Err(LoginStatus::AuthorizationFailure);
        }
        Ok(target)
    }

    fn new_nexus(
        &self,
        target: Arc<TargetEntry>,
        port: &InitiatorPort,
        proven: Option<&ChapCredentials>,
    ) -> Arc<Nexus> {
        let id = NexusId(self.inner.next_nexus.fetch_add(1, Ordering::Relaxed));
        for unit in target.units.read().values() {
            unit.attach(id, port.clone(), Sense::POWER_ON_OR_RESET);
        }
        Arc::new(Nexus {
            id,
            target,
            port: port.clone(),
            proven: proven.cloned(),
            set: Arc::downgrade(&self.inner),
            traffic: Mutex::default(),
        })
    }
}

impl Directory for TargetSet {
    fn has_chap(&self) -> bool {
        let targets = self.inner.targets.read();
        let mut options = targets.values().map(|target| target.options.read());
        options.any(|options| options.authentication.initiator().is_some())
    }

    fn credentials_of(&self, user: &str) -> Vec<ChapCredentials> {
        let targets = self.inner.targets.read();
        let options = targets.values().map(|target| target.options.read());
        let known = options.filter_map(|options| options.authentication.initiator().cloned());
        known.filter(|known| known.user == user).collect()
    }

    fn find_target(
        &self,
        iqn: &str,
        initiator: &str,
    ) -> Result<(Authentication, Option<String>), LoginStatus> {
        let target = self.find(iqn).map_err(|_| LoginStatus::NotFound)?;
        let options = target.options.read();
        if !may_log_in(&options.allowed_initiators, initiator) {
            return Err(LoginStatus::AuthorizationFailure);
        }
        Ok((options.authentication.clone(), options.alias.clone()))
    }

    fn has_session(&self, tsih: u16) -> bool {
        self.inner.sessions.lock().contains_key(&tsih)
    }

    fn connections_max(&self) -> u16 {
        self.inner.limits.connections_of_session.max(1)
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        rand::RngCore::fill_bytes(&mut rand::rng(), bytes);
    }
}

/// Waits until only the caller holds a unit, and lets it go.
async fn until_unheld(unit: Arc<Unit>) {
    while Arc::strong_count(&unit) > 1 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn new_unit(
    iqn: &str,
    lun: u16,
    storage: Arc<dyn LogicalUnit>,
    state: Arc<UnitState>,
    is_read_only: &Arc<AtomicBool>,
) -> Result<Unit, TargetError> {
    if lun > LUN_MAX {
        return Err(TargetError::BadLun {
            iqn: iqn.into(),
            lun,
            problem: "its number is above 16383",
        });
    }
    let tag = PORTAL_GROUP_TAG;
    Unit::new(storage, state, iqn, lun, tag, is_read_only.clone())
}

fn may_log_in(allowed: &[String], initiator: &str) -> bool {
    allowed.is_empty()
        || allowed.iter().any(|name| match name.strip_suffix('*') {
            Some(prefix) => initiator
                .get(..prefix.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(prefix)),
            None => initiator.eq_ignore_ascii_case(name),
        })
}

/// Checks an iSCSI name (RFC 7143 section 4.2.7), already in lower case.
fn check_name(iqn: &str) -> Result<(), TargetError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c) || !c.is_ascii();
    let problem = if iqn.len() > ISCSI_NAME_BYTES_MAX {
        "it is longer than 223 bytes"
    } else if !["iqn.", "eui.", "naa."]
        .iter()
        .any(|kind| iqn.starts_with(kind))
    {
        "it does not begin with iqn., eui. or naa."
    } else if !iqn.chars().all(is_allowed) {
        "it has characters other than letters, digits, '-', '.' and ':'"
    } else if iqn.len() < 6 {
        "it is too short"
    } else {
        return Ok(());
    };
    let iqn = iqn.into();
    Err(TargetError::BadName { iqn, problem })
}

fn check_options(iqn: &str, options: &TargetOptions) -> Result<(), TargetError> {
    let bad = |option, problem| {
        let iqn = iqn.into();
        Err(TargetError::BadOption {
            iqn,
            option,
            problem,
        })
    };
    if let Some(alias) = &options.alias
        && (alias.len() > 255 || alias.contains('\0'))
    {
        return bad("alias", "it is longer than 255 bytes or has a NUL");
    }
    if let Authentication::Chap { initiator, target } = &options.authentication {
        for credentials in std::iter::once(initiator).chain(target) {
            if credentials.user.is_empty() || credentials.secret.is_empty() {
                return bad("chap", "its user or secret is empty");
            }
            if credentials.user.len() > 255 || credentials.user.contains('\0') {
                return bad("chap", "its user is longer than 255 bytes or has a NUL");
            }
        }
        if let Some(target) = target
            && target.secret == initiator.secret
        {
            return bad("chap", "both directions have the same secret");
        }
    }
    Ok(())
}
