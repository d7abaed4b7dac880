//! The hours of scrubs, and their share of the disks' time.
//!
//! A scrub that a schedule with hours began is paused when they are over, and goes on when they
//! come again. Which scrub that is, and whether it is paused for that, is kept with the schedule:
//! the pool keeps the scrub itself. So the end of the server, or of the import, changes nothing.
//! What people do goes before: one that somebody paused is left alone, and so is one that somebody
//! has go on outside of the hours.
//!
//! The pause is on record before it is made: a crash in between has the scrub go on as if somebody
//! had wanted that, rather than rest for good.
//!
//! Which share of the disks' time a pool's scrubs have is not kept in the pool: it is told to it
//! again and again.
//!
//! Lock: that of the table, for moments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::{
    Failure, FailureKind, ScheduleHours, ScheduleTask, ScheduleWhat, ScrubAction, TimeOfDay,
    ZpoolScrub,
};
use chrono::{Local, Timelike};
use pool::{ScanFunction, ScanState};
use serde::{Deserialize, Serialize};
use service::pools::OpenPool;
use tokio::task::JoinHandle;

use crate::Automation;

/// How often the clock is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// A scrub that a schedule began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnScrub {
    /// When it began, in seconds since 1970: by that it is known again.
    pub(super) begin_s: u64,
    /// It is paused because its hours are over.
    pub(super) rests: bool,
}

/// What is to be done with a schedule's scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Pause,
    Resume,
    /// Somebody has it go on, in its hours.
    Awake,
    /// It is over, or somebody's business.
    Forget,
}

/// Whether it is in these hours now, where the server is.
pub(super) fn are_open(hours: Option<ScheduleHours>) -> bool {
    let now = Local::now();
    // Both are small.
    let part = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    let time = TimeOfDay {
        hour: part(now.hour()),
        minute: part(now.minute()),
    };
    hours.is_none_or(|hours| hours.contains(time))
}

/// The scrub of a pool that is under way: when it began, and whether it is paused.
pub(super) fn under_way(open: &OpenPool) -> Option<(u64, bool)> {
    let scan = open.pool.scans().scrub_status()?;
    let is_scrub = scan.function == ScanFunction::Scrub && scan.state == ScanState::Scanning;
    is_scrub.then_some((scan.start_time_s, scan.pause_time_s != 0))
}

fn step(own: OwnScrub, is_open: bool, scan: Option<(u64, bool)>) -> Step {
    let Some((_, is_paused)) = scan.filter(|(begin_s, _)| *begin_s == own.begin_s) else {
        return Step::Forget;
    };
    match (is_open, own.rests, is_paused) {
        (false, false, false) => Step::Pause,
        (false, true, false) => Step::Forget,
        (true, true, true) => Step::Resume,
        (true, true, false) => Step::Awake,
        (_, false, true) | (false, true, true) | (true, false, false) => Step::Nothing,
    }
}

/// Has scrubs rest and go on, until the server stops.
pub(super) async fn follow(automation: &Arc<Automation>) {
    let table = &automation.schedules.table;
    // One pool that does not answer is nothing to the others.
    let mut looks: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    while !table.is_stopping() {
        tell_shares(automation);
        looks.retain(|_, look| !look.is_finished());
        let own: Vec<String> = {
            let entries = table.lock();
            let own = entries.iter();
            let own = own.filter(|(_, entry)| entry.kept.own.scrub.is_some());
            own.map(|(name, _)| name.clone()).collect()
        };
        for name in own {
            if looks.contains_key(&name) {
                continue;
            }
            let (automation, of) = (Arc::clone(automation), name.clone());
            let looking = tokio::spawn(async move {
                if let Err(failure) = look(&automation, &of).await {
                    tracing::warn!("schedule '{of}': {failure}");
                }
            });
            looks.insert(name, looking);
        }
        tokio::select! {
            () = automation.schedules.looked.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Tells pools which share their scrubs have: the smallest that a schedule says.
fn tell_shares(automation: &Automation) {
    for open in automation.serving.pools.all() {
        let name = open.pool.name();
        let share = {
            let entries = automation.schedules.table.lock();
            let of_pool = entries.values().map(|entry| &entry.kept.own.what);
            let of_pool = of_pool.filter(|what| what.task == ScheduleTask::Scrub);
            let of_pool = of_pool.filter(|what| what.target == name);
            of_pool.filter_map(|what| what.share).min()
        };
        open.pool.scans().set_share(share);
    }
}

/// Notes which scrub a schedule began, or has go on.
pub(super) fn begun(automation: &Automation, name: &str, pool: &str) {
    let scan = automation.serving.pools.get(pool).ok();
    let scan = scan.and_then(|open| under_way(&open));
    let table = &automation.schedules.table;
    let mut entries = table.lock();
    if let Some(entry) = entries.get_mut(name) {
        entry.kept.own.scrub = scan.map(|(begin_s, _)| OwnScrub {
            begin_s,
            rests: false,
        });
        table.save_or_warn(&entries);
    }
}

/// Notes something of a schedule's scrub, unless something else was noted meanwhile.
fn note(automation: &Automation, name: &str, from: OwnScrub, to: Option<OwnScrub>) -> bool {
    let table = &automation.schedules.table;
    let mut entries = table.lock();
    let entry = entries.get_mut(name);
    let Some(entry) = entry.filter(|entry| entry.kept.own.scrub == Some(from)) else {
        return false;
    };
    entry.kept.own.scrub = to;
    table.save_or_warn(&entries);
    true
}

async fn scrub(automation: &Automation, pool: &str, action: ScrubAction) -> Result<(), Failure> {
    let call = ZpoolScrub {
        names: vec![pool.to_owned()],
        action,
        ..ZpoolScrub::default()
    };
    let done = verbs::scrub::zpool_scrub(&automation.serving.pools, &call);
    done.await.map(drop)
}

/// Does what is to be done with a schedule's scrub.
async fn look(automation: &Automation, name: &str) -> Result<(), Failure> {
    let known = {
        let entries = automation.schedules.table.lock();
        let own = entries.get(name).map(|entry| &entry.kept.own);
        own.and_then(|own| Some((own.what.clone(), own.scrub?)))
    };
    let Some((what, own)) = known else {
        return Ok(());
    };
    // What is away, or stands still, has its scrub all the same.
    let Ok(open) = automation.serving.pools.get(&what.target) else {
        return Ok(());
    };
    if open.pool.suspended().is_some() {
        return Ok(());
    }
    let (awake, resting) = (
        OwnScrub {
            rests: false,
            ..own
        },
        OwnScrub { rests: true, ..own },
    );
    match step(own, are_open(what.hours), under_way(&open)) {
        Step::Nothing => {}
        Step::Forget => {
            note(automation, name, own, None);
        }
        Step::Awake => {
            note(automation, name, own, Some(awake));
        }
        Step::Pause => {
            if note(automation, name, own, Some(resting)) {
                let paused = scrub(automation, &what.target, ScrubAction::Pause).await;
                if paused.is_err() {
                    note(automation, name, resting, Some(own));
                }
                paused?;
                tracing::info!("schedule '{name}': the hours are over; the scrub is paused");
            }
        }
        Step::Resume => {
            scrub(automation, &what.target, ScrubAction::Start).await?;
            note(automation, name, own, Some(awake));
            tracing::info!("schedule '{name}': the scrub goes on");
        }
    }
    Ok(())
}

/// Whether a schedule may be removed, or be one of something else: a scrub of it that rests in a
/// pool that stands still cannot go on, and nothing would have it go on later.
pub(super) fn check_can_go(
    automation: &Automation,
    name: &str,
    next: Option<&ScheduleWhat>,
) -> Result<(), Failure> {
    let known = {
        let entries = automation.schedules.table.lock();
        let own = entries.get(name).map(|entry| &entry.kept.own);
        own.map(|own| (own.what.clone(), own.scrub))
    };
    let Some((what, Some(OwnScrub { rests: true, .. }))) = known else {
        return Ok(());
    };
    if next.is_some_and(|next| next.task == what.task && next.target == what.target) {
        return Ok(());
    }
    match automation.serving.pools.get(&what.target) {
        Ok(open) if open.pool.suspended().is_some() => {
            let message = format!(
                "cannot change schedule '{name}': its scrub rests, and pool '{0}' has stopped \
                 after an I/O failure; 'zpool status {0}' tells",
                what.target
            );
            Err(Failure::new(FailureKind::Busy, message))
        }
        // A pool that is away may never come back.
        _ => Ok(()),
    }
}

/// The schedule of a scrub that rests is no more, or one of something else: it goes on.
pub(super) async fn let_go(automation: &Automation, pool: &str, own: Option<OwnScrub>) {
    let Some(own) = own.filter(|own| own.rests) else {
        return;
    };
    let is_paused = match automation.serving.pools.get(pool) {
        Ok(open) => under_way(&open) == Some((own.begin_s, true)),
        Err(_) => {
            tracing::warn!("the scrub of pool '{pool}', which is not imported, stays paused");
            false
        }
    };
    if !is_paused {
        return;
    }
    if let Err(failure) = scrub(automation, pool, ScrubAction::Start).await {
        tracing::warn!("the scrub of pool '{pool}' stays paused: {failure}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrub_rests_outside_its_hours_and_people_go_before() {
        let own = |rests| OwnScrub { begin_s: 7, rests };
        for (rests, is_open, scan, wanted) in [
            // The hours are over, and come again.
            (false, true, Some((7, false)), Step::Nothing),
            (false, false, Some((7, false)), Step::Pause),
            (true, false, Some((7, true)), Step::Nothing),
            (true, true, Some((7, true)), Step::Resume),
            // Somebody paused it.
            (false, true, Some((7, true)), Step::Nothing),
            (false, false, Some((7, true)), Step::Nothing),
            // Somebody has it go on.
            (true, true, Some((7, false)), Step::Awake),
            (true, false, Some((7, false)), Step::Forget),
            // It is over, or another one.
            (true, true, None, Step::Forget),
            (false, false, None, Step::Forget),
            (true, true, Some((8, true)), Step::Forget),
            (false, false, Some((8, false)), Step::Forget),
        ] {
            assert_eq!(
                step(own(rests), is_open, scan),
                wanted,
                "{rests} {is_open} {scan:?}"
            );
        }
    }
}
