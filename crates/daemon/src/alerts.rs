//! Alerts: looks at pools and disks whenever something happened and once a minute, and has told
//! what is new ([`alerts::Book`], [`alerts::Outbox`]).
//!
//! Two tasks: one looks, the other one sends, so that a mail server that does not answer keeps
//! nobody from noticing. A server that is killed between the two has the message on disk. Files
//! that cannot be read are left alone: then there are no alerts, and the log says why.
//!
//! Lock: `state`, short; files are written under it.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::alerts::{Book, Kept, Known, Message, Outbox, Problem, SettingsError, name_of};
use api::{
    Alert, AlertFact, AlertListReply, AlertRule, AlertSettings, AlertSettingsReply,
    AlertSettingsSet, AlertSeverity, AlertTestReply, DiskState, Empty, Event, EventKind, EventPool,
    Failure, FailureKind, PoolStatusReport, ScanFunction, UpsCondition,
};
use chrono::{Datelike, Days, Local, NaiveTime};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::events::Wanted;
use crate::reports;
use crate::service::Service;

/// How often pools are looked at when nothing happens.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long after something happened they are looked at: one fault makes many events.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);
/// At what time of a Monday the report is sent.
const REPORT_HOUR: u32 = 8;

struct State {
    kept: Kept,
    book: Book,
    outbox: Outbox,
}

/// The alerts of a server.
pub(crate) struct Alerts {
    directory: PathBuf,
    host: String,
    /// Why there are none, where files are not understood.
    state: Mutex<Result<State, String>>,
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
        let read = || {
            Ok::<_, ::alerts::FileError>(State {
                kept: Kept::load(&directory)?,
                book: Book::load(&directory.join("alerts-book.json"))?,
                outbox: Outbox::load(&directory.join("alerts-outbox.json"))?,
            })
        };
        let state = read().map_err(|error| error.to_string());
        if let Err(error) = &state {
            tracing::error!(error, "there are no alerts");
        }
        Arc::new(Self {
            state: Mutex::new(state),
            directory,
            host: host.to_owned(),
            waiting: Notify::new(),
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T, Failure> {
        match &mut *self.state.lock() {
            Ok(state) => Ok(work(state)),
            Err(problem) => Err(Failure::new(
                FailureKind::Io,
                format!("there are no alerts: {problem}"),
            )),
        }
    }

    /// Whether people were told that this replication is late.
    fn knows_late(&self, replication: &str) -> bool {
        let known = self.with(|state| state.book.is_late(replication));
        known.unwrap_or_default()
    }

    /// The settings, or those of who has none.
    pub(crate) fn current(&self) -> AlertSettings {
        let settings = self.with(|state| state.kept.settings().clone());
        settings.unwrap_or_default()
    }

    /// Takes in how pools and disks are, what else stands, and what happened.
    fn take_in(
        &self,
        pools: &[PoolStatusReport],
        disks: &[DiskState],
        others: &[Alert],
        happened: &[Alert],
    ) {
        let now_s = now_s();
        let taken = self.with(|state| {
            let State { kept, book, outbox } = state;
            let settings = kept.settings();
            let before = book.clone();
            let is_told = |alert: &&Alert| !settings.off.contains(&alert.rule);
            let found = pools
                .iter()
                .flat_map(|pool| ::alerts::found_in(pool, settings, |alert| before.stands(alert)))
                .chain(disks.iter().flat_map(|disk| {
                    ::alerts::found_in_disk(disk, settings, |alert| before.stands(alert))
                }))
                .chain(others.iter().filter(is_told).cloned())
                .collect();
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
            if book.is_report_due(settings, monday_s(), now_s) {
                let standing = book.list();
                messages.push(::alerts::words::report(&self.host, pools, &standing, now_s));
            }
            // Told before it is known to be told: after a crash in between it is told again.
            let stored = outbox.add(&kept.channels(), &messages);
            let stored = stored.and_then(|()| match *book == before {
                true => Ok(()),
                false => book.save(&self.directory.join("alerts-book.json")),
            });
            if let Err(error) = stored {
                tracing::error!(%error, "alerts cannot be stored");
            }
            for message in &messages {
                tracing::info!(subject = message.subject, "an alert");
            }
            !messages.is_empty()
        });
        if taken.is_ok_and(|is_new| is_new) {
            self.waiting.notify_one();
        }
    }

    /// Sends what is due; when the next one is.
    async fn send_due(&self) -> Option<u64> {
        loop {
            let due = self.with(|state| (state.kept.clone(), state.outbox.due(now_s())));
            let (kept, due) = due.ok()?;
            if due.is_empty() {
                return self.with(|state| state.outbox.next_s()).ok()?;
            }
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
                let settled = self.with(|state| state.outbox.settle(id, outcome, now_s()));
                if let Ok(Err(error)) = settled {
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
    let mut reader = service.events.reader(None, Wanted::All);
    let mut power = service.ups.changes();
    drop(service);
    let started_s = now_s();
    let mut happened = Vec::new();
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
        others.extend(crate::schedules::failing(&service));
        others.extend(crate::replicate::late(&service, started_s, |name| {
            service.alerts.knows_late(name)
        }));
        others.extend(service.web.certificate_alert());
        let disks = crate::drives::states(&service).await;
        let happened_now = std::mem::take(&mut happened);
        service
            .alerts
            .take_in(&pools, &disks, &others, &happened_now);
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
            if event.kind.job().is_some() {
                continue;
            }
            until = until.min(tokio::time::Instant::now() + SETTLES_WITHIN);
            let Some(service) = weak.upgrade() else {
                return;
            };
            happened.extend(happened_in(&service, &event));
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
    let absent = service.pools.not_imported().into_iter();
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

fn broken(error: &tokio::task::JoinError) -> Problem {
    Problem {
        text: error.to_string(),
        is_refusal: false,
    }
}

fn reports_of(service: &Service) -> Vec<PoolStatusReport> {
    let pools = service.pools.all().into_iter();
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
    let open = service.pools.get(&name).ok()?;
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

/// `millpond alerts`.
pub(crate) fn list(service: &Service, may_change: bool) -> Result<AlertListReply, Failure> {
    let mut reply = service.alerts.with(|state| AlertListReply {
        alerts: state.book.list(),
        waiting: state.outbox.list(),
    })?;
    for one in reply.alerts.iter_mut().filter(|_| !may_change) {
        // What the other side said is not for everybody.
        if let AlertFact::ReplicationLate { why, .. } = &mut one.alert.fact {
            *why = None;
        }
    }
    Ok(reply)
}

/// The settings.
pub(crate) fn settings(service: &Service) -> Result<AlertSettingsReply, Failure> {
    service.alerts.with(|state| state.kept.told())
}

/// `millpond alerts set`.
pub(crate) fn set_settings(service: &Service, call: AlertSettingsSet) -> Result<Empty, Failure> {
    let changed = service.alerts.with(|state| {
        state.kept.change(call)?;
        state.outbox.keep(&state.kept.channels())?;
        Ok(())
    })?;
    service.alerts.waiting.notify_one();
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
pub(crate) async fn test(service: &Service) -> Result<AlertTestReply, Failure> {
    let kept = service.alerts.with(|state| state.kept.clone())?;
    let message: Message = ::alerts::send::test_message(&service.alerts.host, now_s());
    let mut reply = AlertTestReply::default();
    for channel in kept.channels() {
        let (kept, message) = (kept.clone(), message.clone());
        let (host, to) = (service.alerts.host.clone(), channel.clone());
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
