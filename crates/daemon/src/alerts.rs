//! Alerts: looks at pools and disks whenever something happened and once a minute, and has told
//! what is new ([`alerts::Book`], [`alerts::Outbox`]).
//!
//! Two tasks: one looks, the other one sends, so that a mail server that does not answer keeps
//! nobody from noticing. A server that is killed between the two has the message on disk.
//!
//! A file that could not be read at the start, or is not understood, is left alone. That is an
//! alert itself, beside those that are found; what would be written to it is kept in memory.
//! Without the settings nobody can be told by mail, and they cannot be changed.
//!
//! Lock: `state`, short; files are written under it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ::alerts::{Book, Kept, Known, Message, Outbox, Problem, SettingsError, name_of, words};
use api::{
    Alert, AlertFact, AlertListReply, AlertRule, AlertSettings, AlertSettingsReply,
    AlertSettingsSet, AlertSeverity, AlertTestReply, DiskState, Empty, Event, EventAlert,
    EventKind, EventPool, Failure, FailureKind, PoolStatusReport, ScanFunction, StatePart,
    UpsCondition,
};
use chrono::{Datelike, Days, Local, NaiveTime};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::service::Service;
use host::table_file::FileProblem;
use service::events::Wanted;
use service::reports;

/// How often pools are looked at when nothing happens.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long after something happened they are looked at: one fault makes many events.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);
/// At what time of a Monday the report is sent.
const REPORT_HOUR: u32 = 8;
/// The file of alerts that stand.
const BOOK: &str = "alerts-book.json";

struct State {
    kept: Kept,
    book: Book,
    outbox: Outbox,
    /// Why the settings are not known, where they are not.
    unknown: Option<String>,
    /// Files that could not be read.
    unread: Vec<FileProblem>,
}

impl State {
    fn load(directory: &Path) -> Self {
        let mut unread = Vec::new();
        let mut failed = |error: ::alerts::FileError| {
            tracing::error!("{error}; until a start can read it nothing is written there");
            let why = error.to_string();
            unread.push(FileProblem::unread(error.path(), &why));
            why
        };
        let kept = Kept::load(directory).map_err(&mut failed);
        let unknown = kept.as_ref().err().cloned();
        let book = Book::load(&directory.join(BOOK)).map_err(&mut failed);
        let outbox = Outbox::load(&directory.join("alerts-outbox.json")).map_err(&mut failed);
        Self {
            kept: kept.unwrap_or_else(|_| Kept::none(directory)),
            book: book.unwrap_or_default(),
            outbox: outbox.unwrap_or_else(|_| Outbox::in_memory()),
            unknown,
            unread,
        }
    }

    /// The settings, if they are known.
    fn known(&mut self) -> Result<&mut Kept, Failure> {
        match &self.unknown {
            None => Ok(&mut self.kept),
            Some(why) => Err(Failure::new(
                FailureKind::Io,
                format!("nobody knows who is told of alerts: {why}"),
            )),
        }
    }
}

/// The alerts of a server.
pub(crate) struct Alerts {
    directory: PathBuf,
    host: String,
    state: Mutex<State>,
    /// Something waits in the outbox.
    waiting: Notify,
}

fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The last Monday morning, in seconds since 1970.
fn monday_s() -> u64 {
    let now = Local::now();
    let days = u64::from(now.weekday().num_days_from_monday());
    let at = NaiveTime::from_hms_opt(REPORT_HOUR, 0, 0).unwrap_or_default();
    let of_week = |back: u64| {
        let day = now.date_naive().checked_sub_days(Days::new(back))?;
        let time = day.and_time(at).and_local_timezone(Local).earliest()?;
        (time <= now).then(|| time.timestamp().cast_unsigned())
    };
    of_week(days).or_else(|| of_week(days + 7)).unwrap_or(0)
}

impl Alerts {
    /// Reads the files of the state directory.
    pub(crate) fn load(directory: PathBuf, host: &str) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::load(&directory)),
            directory,
            host: host.to_owned(),
            waiting: Notify::new(),
        })
    }

    /// Whether people were told that this replication is late.
    fn knows_late(&self, replication: &str) -> bool {
        self.state.lock().book.is_late(replication)
    }

    /// The settings, or those of who has none.
    pub(crate) fn current(&self) -> AlertSettings {
        self.state.lock().kept.settings().clone()
    }

    /// Takes in how pools and disks are, what else stands, and what happened; what to tell of it
    /// those who look. `console` is where the console is.
    fn take_in(
        &self,
        pools: &[PoolStatusReport],
        disks: &[DiskState],
        others: &[Alert],
        happened: &[Alert],
        destroyed: &[api::Guid],
        console: Option<&str>,
    ) -> Vec<EventKind> {
        let now_s = now_s();
        let (is_new, changed) = {
            let State {
                kept,
                book,
                outbox,
                unread,
                ..
            } = &mut *self.state.lock();
            let settings = kept.settings();
            let before = book.clone();
            book.forget_pools(destroyed);
            book.see(disks);
            let is_told = |alert: &&Alert| !settings.off.contains(&alert.rule);
            let mut found: Vec<Alert> = pools
                .iter()
                .flat_map(|pool| ::alerts::found_in(pool, settings, |alert| before.stands(alert)))
                .chain(disks.iter().flat_map(|disk| {
                    ::alerts::found_in_disk(disk, settings, |alert| before.stands(alert))
                }))
                .chain(others.iter().filter(is_told).cloned())
                .collect();
            book.name_disks(&mut found);
            let guids = pools.iter().map(|pool| pool.guid);
            let known = Known {
                pools: guids
                    .chain(others.iter().map(|alert| alert.pool_guid))
                    .collect(),
                // Of one that has not told yet nobody knows whether it is well again.
                disks: disks
                    .iter()
                    .filter(|disk| disk.smart.is_some())
                    .map(|disk| disk.id.clone())
                    .collect(),
            };
            let mut messages = book.update(&self.host, &known, found, settings, now_s);
            let notices = happened.iter();
            messages.extend(
                notices.filter_map(|alert| Book::notice(&self.host, alert, settings, now_s)),
            );
            for message in &mut messages {
                if let (Some(console), Some(alert)) = (console, &message.alert) {
                    message.text += &format!("{console}{}\n", words::page(alert));
                }
            }
            if book.is_report_due(settings, monday_s(), now_s) {
                let standing = book.list();
                messages.push(words::report(&self.host, pools, &standing, now_s));
            }
            // Told before it is known to be told: after a crash in between it is told again.
            let stored = outbox.add(&kept.channels(), &messages);
            // While a file of alerts is not understood nobody may have been told of what is new: a
            // start that can read them all finds it new again.
            let stored = stored.and_then(|()| match *book == before || !unread.is_empty() {
                true => Ok(()),
                false => book.save(&self.directory.join(BOOK)),
            });
            if let Err(error) = stored {
                tracing::error!(%error, "alerts cannot be stored");
            }
            for message in &messages {
                tracing::info!(subject = message.subject, "an alert");
            }
            (!messages.is_empty(), book.changes(&before))
        };
        if is_new {
            self.waiting.notify_one();
        }
        let (raised, over) = changed;
        let raised = raised.iter().map(|one| EventKind::AlertRaised(told(one)));
        let over = over.iter().map(|one| EventKind::AlertOver(told(one)));
        over.chain(raised).collect()
    }

    /// Sends what is due; when the next one is.
    async fn send_due(&self) -> Option<u64> {
        loop {
            let (kept, due) = {
                let state = self.state.lock();
                // What waits keeps until it is known whom it is for.
                if state.unknown.is_some() {
                    return None;
                }
                let due = state.outbox.due(now_s());
                if due.is_empty() {
                    return state.outbox.next_s();
                }
                (state.kept.clone(), due)
            };
            for entry in due {
                let (id, host, kept) = (entry.id, self.host.clone(), kept.clone());
                let sending = tokio::task::spawn_blocking(move || {
                    ::alerts::send::send(&kept, &host, &entry.channel, &entry.message)
                });
                let outcome = sending.await.unwrap_or_else(|error| Err(broken(&error)));
                if let Err(problem) = &outcome {
                    let problem = &problem.text;
                    tracing::warn!(problem, "an alert could not be sent; it is tried again");
                }
                let settled = self.state.lock().outbox.settle(id, outcome, now_s());
                if let Err(error) = settled {
                    tracing::error!(%error, "alerts cannot be stored");
                }
            }
        }
    }
}

/// Begins to look and to send, until the service goes away.
pub(crate) fn begin(service: &Arc<Service>) {
    tokio::spawn(send_all(Arc::downgrade(&service.alerts)));
    tokio::spawn(look(Arc::downgrade(service)));
}

async fn send_all(weak: Weak<Alerts>) {
    loop {
        let Some(alerts) = weak.upgrade() else { return };
        let next_s = alerts.send_due().await;
        let pause_s = next_s.map_or(LOOK_EVERY.as_secs(), |next_s| {
            next_s
                .saturating_sub(now_s())
                .clamp(1, LOOK_EVERY.as_secs())
        });
        let pause = Duration::from_secs(pause_s);
        let _ = tokio::time::timeout(pause, alerts.waiting.notified()).await;
    }
}

async fn look(weak: Weak<Service>) {
    let Some(service) = weak.upgrade() else {
        return;
    };
    let mut reader = service.serving.events.reader(None, Wanted::All);
    let mut power = service.ups.changes();
    drop(service);
    let started = Instant::now();
    let (mut happened, mut destroyed) = (Vec::new(), Vec::new());
    let mut power_told = None;
    loop {
        let Some(service) = weak.upgrade() else {
            return;
        };
        let pools = reports_of(&service);
        let mut others = Vec::new();
        // While the power fails none is to be.
        if !service.ups.is_resting() {
            others.extend(absent_from(&service));
        }
        let of_power = service.ups.alert();
        happened.extend(rested_since(power_told.as_ref(), of_power.as_ref()).cloned());
        power_told.clone_from(&of_power);
        others.extend(of_power);
        others.extend(automation::schedules::failing(&service.automation));
        others.extend(automation::replicate::late(
            &service.automation,
            started.elapsed(),
            |name| service.alerts.knows_late(name),
        ));
        others.extend(service.web.certificate_alert());
        others.extend(files_in_trouble(&service));
        let disks = disks::states(&service.disks).await;
        let happened_now = std::mem::take(&mut happened);
        let destroyed_now = std::mem::take(&mut destroyed);
        let alerts = &service.alerts;
        let console = service.web.link().url;
        let news = alerts.take_in(
            &pools,
            &disks,
            &others,
            &happened_now,
            &destroyed_now,
            console.as_deref(),
        );
        for one in news {
            service.serving.events.tell(one);
        }
        drop(service);
        let mut until = tokio::time::Instant::now() + LOOK_EVERY;
        loop {
            let event = tokio::select! {
                event = reader.next() => event,
                Ok(()) = power.changed() => {
                    until = until.min(tokio::time::Instant::now() + SETTLES_WITHIN);
                    continue;
                }
                () = tokio::time::sleep_until(until) => break,
            };
            let Some(event) = event else { return };
            let is_own = matches!(
                event.kind,
                EventKind::AlertRaised(_) | EventKind::AlertOver(_)
            );
            if is_own || event.kind.job().is_some() {
                continue;
            }
            until = until.min(tokio::time::Instant::now() + SETTLES_WITHIN);
            let Some(service) = weak.upgrade() else {
                return;
            };
            happened.extend(happened_in(&service, &event));
            if let EventKind::Zfs(event) = &event.kind {
                destroyed.extend(event.destroyed_pool());
            }
        }
    }
}

/// What is to be told of the UPS because all pools were exported since it was told of before: the
/// alert stands already, and says something else now.
fn rested_since<'a>(before: Option<&Alert>, now: Option<&'a Alert>) -> Option<&'a Alert> {
    let are_exported = |alert: &Alert| match alert.fact {
        AlertFact::Ups {
            condition: UpsCondition::LowBattery,
            are_pools_exported,
            ..
        } => Some(are_pools_exported),
        _ => None,
    };
    let is_news = before.and_then(are_exported) == Some(false);
    now.filter(|now| is_news && are_exported(now) == Some(true))
}

/// Pools of the last run that could not be imported.
fn absent_from(service: &Service) -> Vec<Alert> {
    let absent = service.serving.pools.not_imported().into_iter();
    let alerts = absent.map(|(pool, guid, why)| Alert {
        rule: AlertRule::PoolHealth,
        severity: AlertSeverity::Critical,
        pool,
        pool_guid: api::Guid(guid),
        device_guid: None,
        disk: None,
        fact: AlertFact::NotImported { why },
    });
    alerts.collect()
}

/// Files of the state directory that are not understood, or cannot be written.
fn files_in_trouble(service: &Service) -> Vec<Alert> {
    let of_alerts = service.alerts.state.lock().unread.clone();
    let parts = [
        (StatePart::Pools, service.serving.pools.list_problem()),
        (
            StatePart::Replications,
            service.automation.replications_problem(),
        ),
        (StatePart::Schedules, service.automation.schedules_problem()),
        (
            StatePart::IscsiSecrets,
            service.serving.volumes.secrets.problem(),
        ),
        (StatePart::People, service.serving.people.problem()),
        (StatePart::Users, service.web.people_problem()),
        (StatePart::Certificate, service.web.certificate_problem()),
        (StatePart::Lights, service.disks.drives.book_problem()),
    ];
    let parts = parts.into_iter();
    parts
        .filter_map(|(part, problem)| Some(problem?.alert(part)))
        .chain(
            of_alerts
                .into_iter()
                .map(|one| one.alert(StatePart::Alerts)),
        )
        .collect()
}

fn broken(error: &tokio::task::JoinError) -> Problem {
    Problem {
        text: error.to_string(),
        is_refusal: false,
    }
}

fn reports_of(service: &Service) -> Vec<PoolStatusReport> {
    let pools = service.serving.pools.all().into_iter();
    pools.map(|open| reports::pool_status(&open.pool)).collect()
}

/// What is to be told of an event.
fn happened_in(service: &Service, event: &Event) -> Option<Alert> {
    let (rule, pool) = match &event.kind {
        EventKind::ScrubFinished(pool) => (AlertRule::Scrub, pool),
        EventKind::ResilverFinished(pool) => (AlertRule::Resilver, pool),
        _ => return None,
    };
    let EventPool { pool: name, guid } = pool.clone();
    let open = service.serving.pools.get(&name).ok()?;
    let scan = reports::pool_status(&open.pool).scan?;
    let is_that = match rule {
        AlertRule::Scrub => scan.function == ScanFunction::Scrub,
        _ => scan.function == ScanFunction::Resilver,
    };
    is_that.then(|| Alert {
        rule,
        severity: match (scan.errors, scan.repaired_bytes) {
            (0, 0) => AlertSeverity::Info,
            (0, _) if rule == AlertRule::Resilver => AlertSeverity::Info,
            (0, _) => AlertSeverity::Warning,
            _ => AlertSeverity::Critical,
        },
        pool: name,
        pool_guid: guid,
        disk: None,
        device_guid: None,
        fact: AlertFact::Scan {
            examined_bytes: scan.examined_bytes,
            repaired_bytes: scan.repaired_bytes,
            errors: scan.errors,
            took_s: scan.end_time_s.saturating_sub(scan.start_time_s),
        },
    })
}

/// An alert for who may only look: what the other side of a replication said is not for them.
fn hushed(alert: &mut Alert) {
    if let AlertFact::ReplicationLate { why, .. } = &mut alert.fact {
        *why = None;
    }
}

/// An alert as events tell of it.
fn told(alert: &Alert) -> EventAlert {
    let mut alert = alert.clone();
    hushed(&mut alert);
    EventAlert {
        says: words::sentence(&alert),
        rule: alert.rule,
        severity: alert.severity,
        pool: alert.pool,
    }
}

/// `millpond alerts`.
pub(crate) fn list(alerts: &Alerts, may_change: bool) -> AlertListReply {
    let mut reply = {
        let state = alerts.state.lock();
        AlertListReply {
            alerts: state.book.list(),
            waiting: state.outbox.list(),
        }
    };
    for one in &mut reply.alerts {
        if !may_change {
            hushed(&mut one.alert);
        }
        one.says = words::sentence(&one.alert);
    }
    reply
}

/// The settings.
pub(crate) fn settings(alerts: &Alerts) -> Result<AlertSettingsReply, Failure> {
    Ok(alerts.state.lock().known()?.told())
}

/// `millpond alerts set`.
pub(crate) fn set_settings(alerts: &Alerts, call: AlertSettingsSet) -> Result<Empty, Failure> {
    let changed = {
        let mut state = alerts.state.lock();
        let changed = state.known()?.change(call);
        changed.and_then(|()| {
            let channels = state.kept.channels();
            Ok(state.outbox.keep(&channels)?)
        })
    };
    alerts.waiting.notify_one();
    changed.map(|()| Empty {}).map_err(|error: SettingsError| {
        let kind = match &error {
            SettingsError::Invalid(_) => FailureKind::Invalid,
            SettingsError::File(_) => FailureKind::Io,
        };
        Failure::new(
            kind,
            format!("cannot change the settings of alerts: {error}"),
        )
    })
}

/// `millpond alerts test`.
pub(crate) async fn test(alerts: &Alerts) -> Result<AlertTestReply, Failure> {
    let kept = alerts.state.lock().known()?.clone();
    let message: Message = ::alerts::send::test_message(&alerts.host, now_s());
    let mut reply = AlertTestReply::default();
    for channel in kept.channels() {
        let (kept, message) = (kept.clone(), message.clone());
        let (host, to) = (alerts.host.clone(), channel.clone());
        let sending =
            tokio::task::spawn_blocking(move || ::alerts::send::send(&kept, &host, &to, &message));
        let outcome = sending.await.unwrap_or_else(|error| Err(broken(&error)));
        let problem = outcome.err().map(|problem| problem.text);
        reply.channels.push((name_of(&channel), problem));
    }
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power(condition: UpsCondition, are_pools_exported: bool) -> Alert {
        Alert {
            rule: AlertRule::Ups,
            severity: AlertSeverity::Critical,
            pool: String::new(),
            pool_guid: api::Guid(0),
            disk: None,
            device_guid: None,
            fact: AlertFact::Ups {
                name: "ups@localhost".into(),
                condition,
                charge_percent: None,
                runtime_s: None,
                are_pools_exported,
            },
        }
    }

    /// Goal: alerts go on whatever their files hold, which stay, and say so. Method: each of the
    /// files in turn is damaged; a pool has an alert.
    #[test]
    fn a_file_that_is_not_understood_is_an_alert_and_stays() {
        let lost =
            FileProblem::unread(Path::new("/s/pools.json"), "damaged").alert(StatePart::Pools);
        for (damaged, is_known) in [
            ("alerts.json", false),
            ("alerts-secrets.json", false),
            ("alerts-book.json", true),
            ("alerts-outbox.json", true),
        ] {
            let directory = tempfile::tempdir().expect("a directory");
            let load = || Alerts::load(directory.path().to_owned(), "nas");
            let mut settings = AlertSettings::default();
            settings.webhooks.push("http://127.0.0.1:9/".into());
            let call = AlertSettingsSet {
                settings,
                ..AlertSettingsSet::default()
            };
            let alerts = load();
            alerts
                .state
                .lock()
                .kept
                .change(call.clone())
                .expect("stored");
            let news = alerts.take_in(&[], &[], std::slice::from_ref(&lost), &[], &[], None);
            assert_eq!(news, [EventKind::AlertRaised(told(&lost))]);
            let waiting = alerts.state.lock().outbox.list();
            assert_eq!(waiting.len(), 1, "{damaged}");
            let path = directory.path().join(damaged);
            std::fs::write(&path, "{").expect("a file");

            let alerts = load();
            let unread = alerts.state.lock().unread.clone();
            assert!(unread.len() == 1 && unread[0].path == path, "{unread:?}");
            let own = unread[0].clone().alert(StatePart::Alerts);
            let before: Vec<_> = files(directory.path());
            alerts.take_in(&[], &[], &[lost.clone(), own.clone()], &[], &[], None);
            let mut state = alerts.state.lock();
            let stands: Vec<Alert> = state.book.list().into_iter().map(|one| one.alert).collect();
            assert!(
                stands.contains(&lost) && stands.contains(&own),
                "{stands:?}"
            );
            let refused = state.known().map(|kept| kept.change(call));
            assert_eq!(refused.is_ok(), is_known, "{damaged}");
            assert_eq!(std::fs::read_to_string(&path).expect("it"), "{");
            if !is_known {
                assert_eq!(files(directory.path()), before, "{damaged}");
            }
        }
    }

    /// The files of a directory and what they hold.
    fn files(directory: &Path) -> Vec<(PathBuf, String)> {
        let entries = directory.read_dir().expect("a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut files: Vec<_> = paths
            .map(|path| (path.clone(), std::fs::read_to_string(path).expect("a file")))
            .collect();
        files.sort();
        files
    }

    #[test]
    fn that_all_pools_are_exported_is_told_once_it_is_so() {
        use UpsCondition::{LowBattery, OnBattery};
        let (battery, begun) = (power(OnBattery, false), power(LowBattery, false));
        let done = power(LowBattery, true);
        assert_eq!(rested_since(Some(&begun), Some(&done)), Some(&done));
        // What is told with the alert itself is not told again.
        assert_eq!(rested_since(Some(&battery), Some(&begun)), None);
        assert_eq!(rested_since(Some(&battery), Some(&done)), None);
        assert_eq!(rested_since(None, Some(&done)), None);
        assert_eq!(rested_since(Some(&done), Some(&done)), None);
        assert_eq!(rested_since(Some(&begun), None), None);
    }
}
