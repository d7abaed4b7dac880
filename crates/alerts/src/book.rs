//! Which alerts stand, and what is to be told of them.

use std::path::Path;

use api::{Alert, AlertDisk, AlertFact, AlertRule, AlertSettings, DiskState, Guid, StandingAlert};
use device::private::{self, FileError};
use serde::{Deserialize, Serialize};

use crate::found::is_cause;
use crate::{Message, Reason, words};

/// For how long something has to be no more before that is told, in seconds: a device that comes
/// and goes is one alert, not a hundred.
const RECOVERED_AFTER_S: u64 = 120;

/// For how long a pool may be away before its alerts are forgotten, in seconds: longer than a
/// restart of the server takes, after which nobody wants to hear of them again.
const FORGOTTEN_AFTER_S: u64 = 3600;

const HOUR_S: u64 = 3600;

/// Disks that are known by what they were on at most.
const DISKS_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Standing {
    #[serde(flatten)]
    stands: StandingAlert,
    /// Since when it was not found any more, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gone_s: Option<u64>,
    /// It is known to be so no more, and will be told to be over if that stays so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_over: bool,
}

/// A disk that a pool had something on when it was seen last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    device: Guid,
    disk: AlertDisk,
}

/// The alerts that stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    standing: Vec<Standing>,
    /// When the last report was sent, or the first day of all; in seconds since 1970.
    #[serde(default)]
    report_s: u64,
    /// Disks of pools: which one it was is asked for when it is gone.
    #[serde(default)]
    disks: Vec<Seen>,
}

/// What is there to be looked at: of what is not, nobody knows whether it is well again.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Pools that are imported or could not be.
    pub pools: Vec<Guid>,
    /// Disks, by what they are known by.
    pub disks: Vec<String>,
}

impl Known {
    fn has(&self, alert: &Alert) -> bool {
        match &alert.disk {
            Some(disk) => self.disks.contains(&disk.id),
            // What the server itself does is always known.
            None if alert.pool_guid == Guid(0) => true,
            None => self.pools.contains(&alert.pool_guid),
        }
    }
}

/// What makes two alerts the same one: of the same pool, rule, and device, disk, schedule,
/// replication or file.
fn key(alert: &Alert) -> (Guid, AlertRule, Option<Guid>, Option<&str>) {
    let name = match (&alert.fact, &alert.disk) {
        (AlertFact::Schedule { name, .. } | AlertFact::ReplicationLate { name, .. }, _) => {
            Some(name.as_str())
        }
        (AlertFact::StateFile { path, .. }, _) => Some(path.as_str()),
        (_, Some(disk)) => Some(&*disk.id),
        (_, None) => None,
    };
    (alert.pool_guid, alert.rule, alert.device_guid, name)
}

impl Book {
    /// Reads it; an empty one where there is none.
    ///
    /// # Errors
    /// When there is one that cannot be read, or is not understood.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Ok(private::read_json(path, "alerts")?.unwrap_or_default())
    }

    /// Writes it.
    ///
    /// # Errors
    /// Of the system.
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        private::write_json(path, self).map_err(FileError::write(path))
    }

    /// Whether an alert of that kind stands that is as bad, or worse.
    pub fn stands(&self, alert: &Alert) -> bool {
        let mut same = self.standing.iter().map(|one| &one.stands.alert);
        same.any(|one| key(one) == key(alert) && one.severity >= alert.severity)
    }

    /// Whether the alert that says that this replication is late stands.
    pub fn is_late(&self, replication: &str) -> bool {
        let mut all = self.standing.iter().map(|one| &one.stands.alert.fact);
        all.any(
            |fact| matches!(fact, AlertFact::ReplicationLate { name, .. } if name == replication),
        )
    }

    /// Forgets what stood of pools that somebody destroyed.
    pub fn forget_pools(&mut self, destroyed: &[api::Guid]) {
        self.standing
            .retain(|one| !destroyed.contains(&one.stands.alert.pool_guid));
    }

    /// Notes which disks pools are on.
    pub fn see(&mut self, disks: &[DiskState]) {
        for disk in disks.iter().filter(|disk| disk.size_bytes > 0) {
            for member in &disk.members {
                let seen = Seen {
                    device: member.guid,
                    disk: AlertDisk {
                        id: disk.id.clone(),
                        path: disk.path.clone(),
                        model: disk.model.clone(),
                        serial: disk.serial.clone(),
                        bay: disk.bay.clone(),
                    },
                };
                match self.disks.iter_mut().find(|one| one.device == member.guid) {
                    Some(one) => *one = seen,
                    None => self.disks.push(seen),
                }
            }
        }
        let many = self.disks.len().saturating_sub(DISKS_MAX);
        self.disks.drain(..many);
    }

    /// Says of alerts about devices which disks they are about.
    pub fn name_disks(&self, found: &mut [Alert]) {
        for alert in found {
            let (AlertFact::Device { disk, .. } | AlertFact::DeviceErrors { disk, .. }) =
                &mut alert.fact
            else {
                continue;
            };
            let seen = self
                .disks
                .iter()
                .find(|one| Some(one.device) == alert.device_guid);
            *disk = seen.map(|one| one.disk.clone());
        }
    }

    /// What began to stand since `before`, or got worse, and what is over: not what is told in
    /// other words, switched off, or of a pool that is not there.
    pub fn changes(&self, before: &Self) -> (Vec<Alert>, Vec<Alert>) {
        let stood = |alert: &Alert| {
            let mut all = before.standing.iter().filter(|one| !one.is_over);
            all.find(|one| key(&one.stands.alert) == key(alert))
                .map(|one| one.stands.alert.severity)
        };
        let (mut raised, mut over) = (Vec::new(), Vec::new());
        for one in &self.standing {
            let alert = &one.stands.alert;
            match stood(alert) {
                Some(_) if one.is_over => over.push(alert.clone()),
                None if one.is_over => {}
                Some(severity) if severity >= alert.severity => {}
                _ => raised.push(alert.clone()),
            }
        }
        (raised, over)
    }

    /// What stands, the worst first, then the oldest; what is over is not there, though it is
    /// told a while later.
    pub fn list(&self) -> Vec<StandingAlert> {
        let standing = self.standing.iter().filter(|one| !one.is_over);
        let mut all: Vec<StandingAlert> = standing.map(|one| one.stands.clone()).collect();
        all.sort_by_key(|one| (std::cmp::Reverse(one.alert.severity), one.since_s));
        all
    }

    /// Takes in what was found in what is `known`; what is to be told.
    pub fn update(
        &mut self,
        host: &str,
        known: &Known,
        found: Vec<Alert>,
        settings: &AlertSettings,
        now_s: u64,
    ) -> Vec<Message> {
        // From a moment to come nothing would ever be over, nor old: the clock was ahead.
        for one in &mut self.standing {
            one.stands.since_s = one.stands.since_s.min(now_s);
            one.stands.told_s = one.stands.told_s.min(now_s);
            one.gone_s = one.gone_s.map(|gone_s| gone_s.min(now_s));
        }
        let mut messages = Vec::new();
        let mut tell = |reason, alert: &Alert, since_s| {
            messages.push(words::of_alert(host, reason, alert, since_s, now_s));
        };
        self.standing.retain_mut(|one| {
            let alert = &one.stands.alert;
            if settings.off.contains(&alert.rule) {
                return false;
            }
            // It is told which device is the reason, now.
            let is_explained = found
                .iter()
                .any(|found| is_cause(found) && found.pool_guid == alert.pool_guid);
            let is_found = found.iter().any(|found| key(found) == key(alert));
            if alert.fact == AlertFact::Degraded && is_explained && !is_found {
                return false;
            }
            // Nobody knows how much redundancy a pool has that stands still.
            let hides = |found: &Alert| {
                let is_health = alert.rule == AlertRule::PoolHealth;
                let stands_still = found.rule == AlertRule::PoolSuspended;
                is_health && stands_still && found.pool_guid == alert.pool_guid
            };
            if is_found || found.iter().any(hides) {
                one.gone_s = None;
                one.is_over = false;
                return true;
            }
            let gone_s = *one.gone_s.get_or_insert(now_s);
            let away_s = now_s.saturating_sub(gone_s);
            // What is over stays so, also when its pool goes away.
            let was_over = one.is_over;
            one.is_over |= known.has(alert);
            if !one.is_over {
                return away_s < FORGOTTEN_AFTER_S;
            }
            // It is there for one look at least, for those who are told of changes.
            if away_s < RECOVERED_AFTER_S || !was_over {
                return true;
            }
            // Errors are counted since the import, or since somebody cleared them: that there are
            // none says nothing of the device.
            if alert.rule != AlertRule::DeviceErrors {
                tell(Reason::Recovered, alert, one.stands.since_s);
            }
            false
        });
        for alert in found {
            let same = |one: &&mut Standing| key(&one.stands.alert) == key(&alert);
            let Some(one) = self.standing.iter_mut().find(same) else {
                tell(Reason::Raised, &alert, now_s);
                self.standing.push(Standing {
                    stands: StandingAlert {
                        alert,
                        since_s: now_s,
                        told_s: now_s,
                        says: String::new(),
                    },
                    gone_s: None,
                    is_over: false,
                });
                continue;
            };
            let is_worse = alert.severity > one.stands.alert.severity;
            let told_s_ago = now_s.saturating_sub(one.stands.told_s);
            let is_old = settings.remind_hours > 0
                && told_s_ago >= settings.remind_hours.saturating_mul(HOUR_S);
            if is_worse || is_old {
                let reason = match is_worse {
                    true => Reason::Raised,
                    false => Reason::Reminder,
                };
                tell(reason, &alert, one.stands.since_s);
                one.stands.told_s = now_s;
            }
            one.stands.alert = alert;
        }
        messages
    }

    /// What is to be told of something that happened.
    pub fn notice(
        host: &str,
        alert: &Alert,
        settings: &AlertSettings,
        now_s: u64,
    ) -> Option<Message> {
        let is_told = !settings.off.contains(&alert.rule);
        is_told.then(|| words::of_alert(host, Reason::Notice, alert, now_s, now_s))
    }

    /// Whether a report is due: one for each Monday since the last, at eight, of which
    /// `monday_s` is the last one. The first comes with the next Monday.
    pub fn is_report_due(&mut self, settings: &AlertSettings, monday_s: u64, now_s: u64) -> bool {
        if self.report_s == 0 || self.report_s > now_s {
            self.report_s = now_s;
        }
        if self.report_s >= monday_s {
            return false;
        }
        self.report_s = now_s;
        !settings.off.contains(&AlertRule::Report)
    }
}

#[cfg(test)]
mod tests {
    use api::AlertSeverity;

    use super::*;

    const POOL: Guid = Guid(7);

    fn alert(rule: AlertRule, severity: AlertSeverity) -> Alert {
        Alert {
            rule,
            severity,
            pool: "tank".into(),
            pool_guid: POOL,
            disk: None,
            device_guid: None,
            fact: AlertFact::Degraded,
        }
    }

    struct Rig {
        book: Book,
        settings: AlertSettings,
    }

    impl Rig {
        fn new() -> Self {
            Self {
                book: Book::default(),
                settings: AlertSettings::default(),
            }
        }

        /// Reasons of what is told at that time.
        fn at(&mut self, now_s: u64, pools: &[Guid], found: &[Alert]) -> Vec<Reason> {
            let known = Known {
                pools: pools.to_vec(),
                disks: vec!["Z1".into()],
            };
            let told = self
                .book
                .update("host", &known, found.to_vec(), &self.settings, now_s);
            told.into_iter().map(|message| message.reason).collect()
        }
    }

    #[test]
    fn each_is_told_once_then_reminded_of_and_that_it_is_over() {
        let degraded = [alert(AlertRule::PoolHealth, AlertSeverity::Warning)];
        let mut rig = Rig::new();
        assert_eq!(rig.at(1000, &[POOL], &degraded), [Reason::Raised]);
        assert_eq!(rig.at(1001, &[POOL], &degraded), []);
        assert_eq!(
            rig.at(1000 + 24 * 3600, &[POOL], &degraded),
            [Reason::Reminder]
        );
        assert_eq!(rig.at(1001 + 24 * 3600, &[POOL], &degraded), []);
        // Gone for a moment is not over.
        assert_eq!(rig.at(100_000, &[POOL], &[]), []);
        assert_eq!(rig.at(100_060, &[POOL], &degraded), []);
        assert_eq!(rig.at(100_100, &[POOL], &[]), []);
        assert_eq!(rig.at(100_219, &[POOL], &[]), []);
        assert_eq!(rig.at(100_220, &[POOL], &[]), [Reason::Recovered]);
        assert_eq!(rig.at(100_221, &[POOL], &[]), []);
        assert!(rig.book.list().is_empty());
    }

    /// After a clock that was ahead was set right, times count from when that is noticed.
    #[test]
    fn the_clock_may_have_been_ahead() {
        let degraded = [alert(AlertRule::PoolHealth, AlertSeverity::Warning)];
        let (now_s, day_s) = (1_000_000, 24 * 3600);
        let mut rig = Rig::new();
        let ahead_s = now_s + 1000 * day_s;
        assert_eq!(rig.at(ahead_s, &[POOL], &degraded), [Reason::Raised]);
        assert_eq!(rig.at(now_s, &[POOL], &degraded), []);
        assert_eq!(
            rig.at(now_s + day_s, &[POOL], &degraded),
            [Reason::Reminder]
        );
        assert_eq!(rig.at(ahead_s, &[POOL], &[]), []);
        assert_eq!(rig.at(now_s, &[POOL], &[]), []);
        assert_eq!(rig.at(now_s + 120, &[POOL], &[]), [Reason::Recovered]);

        let settings = AlertSettings::default();
        let mut book = Book::default();
        assert!(!book.is_report_due(&settings, ahead_s - 1, ahead_s));
        assert!(!book.is_report_due(&settings, now_s - 1, now_s));
        assert!(book.is_report_due(&settings, now_s + 1, now_s + 2));
    }

    #[test]
    fn what_gets_worse_is_told_again_and_what_gets_better_is_not() {
        let warning = [alert(AlertRule::Space, AlertSeverity::Warning)];
        let critical = [alert(AlertRule::Space, AlertSeverity::Critical)];
        let mut rig = Rig::new();
        assert_eq!(rig.at(1000, &[POOL], &warning), [Reason::Raised]);
        assert!(!rig.book.stands(&critical[0]));
        assert_eq!(rig.at(1001, &[POOL], &critical), [Reason::Raised]);
        assert!(rig.book.stands(&critical[0]) && rig.book.stands(&warning[0]));
        assert_eq!(rig.at(1002, &[POOL], &warning), []);
        assert_eq!(rig.at(1003, &[POOL], &critical), [Reason::Raised]);
    }

    /// Two schedules of a pool that fail are two alerts, whatever each says at that moment.
    #[test]
    fn each_schedule_is_an_alert_of_its_own() {
        let failing = |name: &str, why: &str| Alert {
            fact: AlertFact::Schedule {
                name: name.into(),
                task: api::ScheduleTask::Snapshot,
                target: "tank/a".into(),
                why: why.into(),
            },
            ..alert(AlertRule::Schedule, AlertSeverity::Warning)
        };
        let (a, b) = (failing("a", "no space"), failing("b", "no space"));
        let mut rig = Rig::new();
        assert_eq!(
            rig.at(1000, &[POOL], std::slice::from_ref(&a)),
            [Reason::Raised]
        );
        let both = [failing("a", "another reason"), b];
        assert_eq!(rig.at(1001, &[POOL], &both), [Reason::Raised]);
        assert_eq!(rig.at(1002, &[POOL], &both), []);
        assert_eq!(rig.at(1003, &[POOL], &both[1..]), []);
        assert_eq!(rig.at(1200, &[POOL], &both[1..]), [Reason::Recovered]);
        assert_eq!(rig.book.list().len(), 1);
    }

    /// What the server does is no pool's: it is told once, reminded of, and over when it is.
    #[test]
    fn each_replication_and_the_certificate_are_alerts_of_their_own() {
        let of_server = |rule, fact| Alert {
            pool: String::new(),
            pool_guid: Guid(0),
            fact,
            ..alert(rule, AlertSeverity::Warning)
        };
        let late = |name: &str, is_running| {
            let fact = AlertFact::ReplicationLate {
                name: name.into(),
                source: "tank/a".into(),
                every_s: 3600,
                success_s: Some(5),
                is_running,
                why: None,
            };
            of_server(AlertRule::Replication, fact)
        };
        let ends = |is_over| {
            let fact = AlertFact::Certificate {
                path: "c.pem".into(),
                by: api::CertificateBy::Person,
                why: None,
                end_s: 2000,
                is_over,
            };
            let mut alert = of_server(AlertRule::Certificate, fact);
            if is_over {
                alert.severity = AlertSeverity::Critical;
            }
            alert
        };
        let mut rig = Rig::new();
        let all = [late("a", false), late("b", false), ends(false)];
        assert_eq!(rig.at(1000, &[], &all), [Reason::Raised; 3]);
        assert!(rig.book.is_late("a") && !rig.book.is_late("c"));
        let all = [late("a", true), late("b", false), ends(true)];
        assert_eq!(rig.at(2000, &[], &all), [Reason::Raised], "it is worse");
        assert_eq!(rig.at(2060, &[], &all[1..]), []);
        assert_eq!(rig.at(2180, &[], &all[1..]), [Reason::Recovered]);
        assert!(!rig.book.is_late("a"));
        assert_eq!(
            rig.at(1000 + 24 * 3600, &[], &all[1..2]),
            [Reason::Reminder]
        );
        rig.settings.off.insert(AlertRule::Replication);
        assert_eq!(rig.at(1120 + 24 * 3600, &[], &[]), [Reason::Recovered]);
        assert!(rig.book.list().is_empty());
    }

    #[test]
    fn pools_that_are_away_are_not_recovered() {
        let degraded = [alert(AlertRule::PoolHealth, AlertSeverity::Warning)];
        let mut rig = Rig::new();
        assert_eq!(rig.at(1000, &[POOL], &degraded), [Reason::Raised]);
        // A restart: the pool is not there yet.
        assert_eq!(rig.at(1500, &[], &[]), []);
        assert_eq!(rig.at(2000, &[POOL], &degraded), []);
        // It was exported.
        assert_eq!(rig.at(3000, &[], &[]), []);
        assert_eq!(rig.at(6599, &[], &[]), []);
        assert_eq!(rig.book.list().len(), 1);
        assert_eq!(rig.at(6600, &[], &[]), []);
        assert!(rig.book.list().is_empty());
        assert_eq!(rig.at(7000, &[POOL], &degraded), [Reason::Raised]);
    }

    /// What is over stays so when its pool is exported, and what is away is not over.
    #[test]
    fn what_is_over_does_not_stand_again_when_its_pool_goes_away() {
        let degraded = [alert(AlertRule::PoolHealth, AlertSeverity::Warning)];
        let mut rig = Rig::new();
        assert_eq!(rig.at(1000, &[POOL], &degraded), [Reason::Raised]);
        let before = rig.book.clone();
        assert_eq!(rig.at(1010, &[], &[]), []);
        assert_eq!(rig.book.changes(&before), (vec![], vec![]));
        // It is well when it comes back, after more than what recovering takes.
        assert_eq!(rig.at(2000, &[POOL], &[]), []);
        assert_eq!(rig.book.changes(&before), (vec![], degraded.to_vec()));
        let before = rig.book.clone();
        assert_eq!(rig.at(2060, &[], &[]), [Reason::Recovered]);
        assert_eq!(rig.book.changes(&before), (vec![], vec![]));
        assert_eq!(rig.at(3000, &[POOL], &degraded), [Reason::Raised]);
        assert_eq!(rig.at(3010, &[POOL], &[]), []);
        assert_eq!(rig.at(3020, &[], &[]), []);
        assert!(rig.book.list().is_empty());
    }

    #[test]
    fn disks_are_told_apart_and_are_not_well_when_they_are_away() {
        let of_disk = |id: &str| {
            let mut alert = alert(AlertRule::DiskHealth, AlertSeverity::Critical);
            alert.pool_guid = Guid(0);
            alert.disk = Some(api::AlertDisk {
                id: id.into(),
                path: "/dev/sda".into(),
                model: None,
                serial: None,
                bay: None,
            });
            alert.fact = AlertFact::DiskFailing;
            alert
        };
        let (here, away) = (of_disk("Z1"), of_disk("Z2"));
        let mut rig = Rig::new();
        let both = [here.clone(), away.clone()];
        assert_eq!(rig.at(1000, &[], &both), [Reason::Raised, Reason::Raised]);
        // It moves to another pool.
        let mut moved = here.clone();
        moved.pool = "other".into();
        assert_eq!(rig.at(1001, &[], &[moved, away]), []);
        assert_eq!(rig.at(1002, &[], &[]), []);
        assert_eq!(rig.at(1122, &[], &[]), [Reason::Recovered]);
        assert_eq!(rig.book.list().len(), 1);
        assert_eq!(rig.at(4602, &[], &[]), []);
        assert!(rig.book.list().is_empty());
    }

    #[test]
    fn a_pool_that_stands_still_has_not_recovered() {
        let degraded = [alert(AlertRule::PoolHealth, AlertSeverity::Warning)];
        let suspended = [alert(AlertRule::PoolSuspended, AlertSeverity::Critical)];
        let mut rig = Rig::new();
        assert_eq!(rig.at(1000, &[POOL], &degraded), [Reason::Raised]);
        assert_eq!(rig.at(1001, &[POOL], &suspended), [Reason::Raised]);
        assert_eq!(rig.at(2000, &[POOL], &suspended), []);
        assert_eq!(rig.at(2001, &[POOL], &degraded), []);
        assert_eq!(rig.at(2121, &[POOL], &degraded), [Reason::Recovered]);
        assert_eq!(rig.book.list().len(), 1);
    }

    /// What is over is listed no more at once, and told when it stays so; that a device is the
    /// reason takes the place of the pool's own alert without a word.
    #[test]
    fn one_failure_is_one_alert_and_gone_at_once() {
        let degraded = alert(AlertRule::PoolHealth, AlertSeverity::Warning);
        let mut device = alert(AlertRule::DeviceState, AlertSeverity::Critical);
        device.device_guid = Some(Guid(5));
        device.fact = AlertFact::Device {
            device: "/dev/sda".into(),
            state: api::VdevState::Unavailable,
            aux: None,
            is_log: false,
            disk: None,
            survives: Some(1),
        };
        let member = api::DiskMember {
            pool: "tank".into(),
            guid: Guid(5),
            path: "/dev/sda".into(),
            vdev: "raidz2-0".into(),
            state: api::VdevState::Online,
        };
        let disk = DiskState {
            id: "Z1".into(),
            path: "/dev/sda".into(),
            model: Some("ST4000".into()),
            serial: Some("Z1".into()),
            bay: Some("Slot 03".into()),
            size_bytes: 1,
            members: vec![member],
            ..DiskState::default()
        };
        let mut rig = Rig::new();
        rig.book.see(std::slice::from_ref(&disk));
        let gone = DiskState {
            serial: None,
            size_bytes: 0,
            ..disk
        };
        rig.book.see(&[gone]);
        let mut found = [device];
        rig.book.name_disks(&mut found);
        assert_eq!(
            words::line(&found[0]),
            "device /dev/sda (ST4000, serial Z1, Slot 03) of pool tank cannot be opened; the pool \
             survives the failure of one more device"
        );
        assert_eq!(rig.at(1000, &[POOL], &[degraded]), [Reason::Raised]);
        let before = rig.book.clone();
        assert_eq!(rig.at(1001, &[POOL], &found), [Reason::Raised]);
        assert_eq!(rig.book.list().len(), 1);
        let (raised, over) = rig.book.changes(&before);
        assert_eq!((&raised[..], over.len()), (&found[..], 0));
        let before = rig.book.clone();
        assert_eq!(rig.at(1010, &[POOL], &[]), []);
        assert!(rig.book.list().is_empty());
        let (raised, over) = rig.book.changes(&before);
        assert_eq!((raised.len(), &over[..]), (0, &found[..]));
        // It comes and goes: nobody is mailed.
        assert_eq!(rig.at(1020, &[POOL], &found), []);
        assert_eq!(rig.book.list().len(), 1);
        assert_eq!(rig.at(1030, &[POOL], &[]), []);
        assert_eq!(rig.at(1150, &[POOL], &[]), [Reason::Recovered]);
    }

    #[test]
    fn counters_that_begin_anew_are_no_recovery() {
        let errors = [alert(AlertRule::DeviceErrors, AlertSeverity::Warning)];
        let mut rig = Rig::new();
        assert_eq!(rig.at(1000, &[POOL], &errors), [Reason::Raised]);
        assert_eq!(rig.at(1001, &[POOL], &[]), []);
        assert_eq!(rig.at(1200, &[POOL], &[]), []);
        assert!(rig.book.list().is_empty());
        assert_eq!(rig.at(1300, &[POOL], &errors), [Reason::Raised]);
    }

    #[test]
    fn what_is_switched_off_is_not_told() {
        let degraded = [alert(AlertRule::PoolHealth, AlertSeverity::Warning)];
        let mut rig = Rig::new();
        assert_eq!(rig.at(1000, &[POOL], &degraded), [Reason::Raised]);
        rig.settings.off.insert(AlertRule::PoolHealth);
        assert_eq!(rig.at(1001, &[POOL], &[]), []);
        assert!(rig.book.list().is_empty());
        let scrub = alert(AlertRule::Scrub, AlertSeverity::Info);
        assert!(Book::notice("host", &scrub, &rig.settings, 1).is_some());
        rig.settings.off.insert(AlertRule::Scrub);
        assert!(Book::notice("host", &scrub, &rig.settings, 1).is_none());
    }

    #[test]
    fn a_report_comes_each_monday_and_once_for_those_that_were_missed() {
        let settings = AlertSettings::default();
        let week_s = 7 * 24 * 3600;
        let (mut book, monday_s) = (Book::default(), 1_000_000);
        assert!(!book.is_report_due(&settings, monday_s, monday_s + 50));
        assert!(!book.is_report_due(&settings, monday_s, monday_s + week_s - 1));
        let next_s = monday_s + week_s;
        assert!(book.is_report_due(&settings, next_s, next_s));
        assert!(!book.is_report_due(&settings, next_s, next_s + 60));
        let late_s = next_s + 3 * week_s;
        assert!(book.is_report_due(&settings, late_s, late_s + 5000));
        assert!(!book.is_report_due(&settings, late_s, late_s + 5060));
    }
}
