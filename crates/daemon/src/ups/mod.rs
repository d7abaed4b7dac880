//! What follows of the state of a UPS, which NUT's `upsd` tells ([`nut`]).
//!
//! It is asked every few seconds. While it runs on its battery, people are told. When the battery
//! is nearly empty, or the machine that looks after the UPS says that power goes off (`FSD`), every
//! pool is exported as at the end of the server: nothing that was written is lost when the power
//! fails then, and nothing has to be replayed. The server itself goes on, and imports them again
//! once there has been power for a while; or the next start does.
//!
//! One that ran on its battery and does not answer any more counts as nearly empty after a moment,
//! as with NUT's own `upsmon` (`is_ups_critical` and `DEADTIME`, clients/upsmon.c): the network may
//! be what failed first.
//!
//! What cannot be exported is tried again with every answer, and people are told that all is when
//! it is.
//!
//! [`Watch`] decides, from readings and times that it is given alone.
//!
//! Locks: `watch` and `left` are short, and never held together.

mod nut;

use std::sync::{Arc, Weak};
use std::time::Duration;

use api::{
    Alert, AlertFact, AlertRule, AlertSeverity, Guid, UpsCondition, UpsReport, UpsStatusReply,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::service::Service;
pub use nut::UpsAddress;
use nut::{Client, NutError, Reading};
use service::pools::OpenPool;

/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Readings one after the other that say that the battery is nearly empty, before that is believed:
/// some say so for a moment when they switch.
const LOW_COUNT: u32 = 2;
/// How long one that ran on its battery may be silent.
const DEAD_AFTER: Duration = Duration::from_secs(15);
/// How long another one may be silent before that is told.
const SILENT_AFTER: Duration = Duration::from_secs(120);
/// How long there has to be power before pools come back.
const BACK_AFTER: Duration = Duration::from_secs(60);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Export all pools.
    Rest,
    /// Import them again.
    Return,
}

/// What is known of the UPS. Times are since the server started.
#[derive(Debug, Default)]
struct Watch {
    reading: Option<Reading>,
    /// When it told that.
    heard_at: Duration,
    /// Why it tells nothing.
    problem: Option<String>,
    /// How many of the last readings said that the battery is nearly empty.
    low_count: u32,
    /// Since when there is power.
    power_since: Option<Duration>,
    is_resting: bool,
}

impl Watch {
    /// Takes in what it told, or why it did not; what is to be done.
    fn hear(&mut self, now: Duration, told: Result<Reading, String>) -> Option<Act> {
        match told {
            Ok(reading) => {
                let is_low = reading.is("OB") && reading.is("LB") && !reading.is("CAL");
                self.low_count = match is_low {
                    true => self.low_count.saturating_add(1),
                    false => 0,
                };
                let has_power =
                    reading.is("OL") && !["OB", "LB", "FSD"].iter().any(|word| reading.is(word));
                self.power_since = match has_power {
                    true => Some(self.power_since.unwrap_or(now)),
                    false => None,
                };
                self.reading = Some(reading);
                self.heard_at = now;
                self.problem = None;
            }
            Err(problem) => {
                self.power_since = None;
                self.problem = Some(problem);
            }
        }
        let act = match self.is_resting {
            false if self.is_critical(now) => Act::Rest,
            true if self.has_power_for_long(now) => Act::Return,
            _ => return None,
        };
        self.is_resting = act == Act::Rest;
        Some(act)
    }

    fn silent(&self, now: Duration) -> Option<Duration> {
        self.problem.as_ref()?;
        Some(now.saturating_sub(self.heard_at))
    }

    fn is_critical(&self, now: Duration) -> bool {
        let Some(reading) = &self.reading else {
            return false;
        };
        let is_dead = self.silent(now).is_some_and(|silent| silent >= DEAD_AFTER);
        reading.is("FSD") || self.low_count >= LOW_COUNT || reading.is("OB") && is_dead
    }

    fn has_power_for_long(&self, now: Duration) -> bool {
        let since = self.power_since;
        since.is_some_and(|since| now.saturating_sub(since) >= BACK_AFTER)
    }

    fn condition(&self, now: Duration) -> UpsCondition {
        let is_silent = self
            .silent(now)
            .is_some_and(|silent| silent >= SILENT_AFTER);
        match &self.reading {
            _ if self.is_resting || self.is_critical(now) => UpsCondition::LowBattery,
            None if is_silent => UpsCondition::NoAnswer,
            None => UpsCondition::Unknown,
            Some(reading) if reading.is("OB") => UpsCondition::OnBattery,
            Some(_) if is_silent => UpsCondition::NoAnswer,
            Some(reading) if reading.is("RB") => UpsCondition::ReplaceBattery,
            Some(_) => UpsCondition::Online,
        }
    }
}

/// The UPS of a server, if it has one.
pub(crate) struct Ups {
    address: Option<UpsAddress>,
    started: Instant,
    watch: Mutex<Watch>,
    /// What could not be exported, while pools are to be; none before that was tried.
    left: Mutex<Option<Vec<Arc<OpenPool>>>>,
    /// How it is, and whether pools are exported, to whoever waits for another state.
    changed: watch::Sender<(UpsCondition, bool)>,
}

impl Ups {
    pub(crate) fn new(address: Option<UpsAddress>) -> Self {
        Self {
            address,
            started: Instant::now(),
            watch: Mutex::default(),
            left: Mutex::default(),
            changed: watch::Sender::new((UpsCondition::Unknown, false)),
        }
    }

    /// How it is, whenever that changes.
    pub(crate) fn changes(&self) -> watch::Receiver<(UpsCondition, bool)> {
        self.changed.subscribe()
    }

    /// Whether all pools are to be exported until there is power again.
    pub(crate) fn is_resting(&self) -> bool {
        self.watch.lock().is_resting
    }

    fn hear(&self, told: Result<Reading, String>) -> Option<Act> {
        let now = self.started.elapsed();
        let (act, condition) = {
            let mut watch = self.watch.lock();
            (watch.hear(now, told), watch.condition(now))
        };
        if act == Some(Act::Rest) {
            *self.left.lock() = None;
        }
        self.tell(condition);
        act
    }

    fn tell(&self, condition: UpsCondition) {
        let now = (condition, self.are_pools_exported());
        self.changed.send_if_modified(|before| {
            let is_new = *before != now;
            *before = now;
            is_new
        });
    }

    /// Whether all pools were exported, until there is power again.
    fn are_pools_exported(&self) -> bool {
        let is_all = self.left.lock().as_ref().is_some_and(Vec::is_empty);
        is_all && self.is_resting()
    }

    /// Pools that could not be exported.
    pub(crate) fn left_behind(&self) -> Vec<Arc<OpenPool>> {
        self.left.lock().clone().unwrap_or_default()
    }

    /// Pools were exported, but for these.
    pub(crate) fn has_left(&self, pools: Vec<Arc<OpenPool>>) {
        *self.left.lock() = Some(pools);
        let condition = self.watch.lock().condition(self.started.elapsed());
        self.tell(condition);
    }

    /// How it is.
    pub(crate) fn report(&self) -> Option<UpsReport> {
        let name = self.address.as_ref()?.to_string();
        let are_pools_exported = self.are_pools_exported();
        let left = self.left_behind();
        let watch = self.watch.lock();
        let reading = watch.reading.as_ref();
        Some(UpsReport {
            name,
            condition: watch.condition(self.started.elapsed()),
            status: reading
                .map_or_else(Vec::new, |reading| reading.status.iter().cloned().collect()),
            charge_percent: reading.and_then(|reading| reading.charge_percent),
            runtime_s: reading.and_then(|reading| reading.runtime_s),
            problem: watch.problem.clone(),
            are_pools_exported,
            not_exported: left.iter().map(|open| open.pool.name()).collect(),
        })
    }

    /// What is to be told of it, for [`crate::alerts`].
    pub(crate) fn alert(&self) -> Option<Alert> {
        let report = self.report()?;
        let severity = match report.condition {
            UpsCondition::Online | UpsCondition::Unknown => return None,
            UpsCondition::LowBattery => AlertSeverity::Critical,
            UpsCondition::OnBattery | UpsCondition::NoAnswer | UpsCondition::ReplaceBattery => {
                AlertSeverity::Warning
            }
        };
        Some(Alert {
            rule: AlertRule::Ups,
            severity,
            pool: String::new(),
            pool_guid: Guid(0),
            disk: None,
            device_guid: None,
            fact: AlertFact::Ups {
                name: report.name,
                condition: report.condition,
                charge_percent: report.charge_percent,
                runtime_s: report.runtime_s,
                are_pools_exported: report.are_pools_exported,
            },
        })
    }
}

/// Asks once, over the connection that there is, or a new one.
async fn ask(address: &UpsAddress, client: &mut Option<Client>) -> Result<Reading, String> {
    let asked = async {
        let mut connected = match client.take() {
            Some(connected) => connected,
            None => Client::connect(address).await?,
        };
        let reading = connected.ask().await;
        // What was refused was answered whole.
        if matches!(
            reading,
            Ok(_) | Err(NutError::Refused(_) | NutError::Unknown { .. })
        ) {
            *client = Some(connected);
        }
        reading
    };
    asked.await.map_err(|error| error.to_string())
}

/// Asks before any pool is imported; whether none is to be, as the power is about to fail.
pub(crate) async fn is_empty_at_start(ups: &Ups) -> bool {
    let Some(address) = &ups.address else {
        return false;
    };
    let mut client = None;
    for _ in 0..LOW_COUNT {
        let told = ask(address, &mut client).await;
        let is_known = told.is_ok();
        if ups.hear(told) == Some(Act::Rest) {
            ups.has_left(Vec::new());
            return true;
        }
        if !is_known {
            break;
        }
    }
    false
}

/// Follows it until the service goes away.
pub(crate) async fn follow(weak: Weak<Service>) {
    let mut client = None;
    let mut problem = None;
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        let Some(service) = weak.upgrade() else {
            return;
        };
        let Some(address) = &service.ups.address else {
            return;
        };
        let told = ask(address, &mut client).await;
        let failed = told.as_ref().err().cloned();
        if let Some(why) = failed.as_ref().filter(|_| failed != problem) {
            tracing::warn!("the UPS {address} does not tell how it is: {why}");
        }
        problem = failed;
        match service.ups.hear(told) {
            Some(Act::Rest) => service.rest().await,
            Some(Act::Return) => service.come_back().await,
            None if service.ups.is_resting() => service.rest_on().await,
            None => {}
        }
    }
}

/// `millpond ups`.
pub(crate) fn status(ups: &Ups) -> UpsStatusReply {
    UpsStatusReply { ups: ups.report() }
}

#[cfg(test)]
mod tests;
