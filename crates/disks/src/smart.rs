//! Asks disks how they are.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use api::{DiskTest, Empty, Failure, FailureKind, ScheduleUntested, SelfTestKind, SmartState};
use drives::{Answer, Disk, History, Smartctl};
use futures::{StreamExt, stream};

use crate::Parts;
use crate::overview::{disks_of, disks_with, leaves, resolve};
use crate::{Drives, Told, now_s};
use automation::SelfTests;

/// How often disks are asked.
const ASK_EVERY: Duration = Duration::from_secs(10 * 60);
/// When they are asked first: a start has other things to do.
const ASK_FIRST: Duration = Duration::from_secs(15);
/// So many disks are asked at the same time.
const ASKED: usize = 4;

fn device(name: &str) -> PathBuf {
    PathBuf::from("/dev").join(name)
}

/// Asks all disks again and again, until they go away.
pub(super) async fn ask_all(weak: Weak<Drives>) {
    tokio::time::sleep(ASK_FIRST).await;
    let mut is_first = true;
    loop {
        let Some(drives) = weak.upgrade() else { return };
        let (here, is_begin) = (Arc::clone(&drives), std::mem::take(&mut is_first));
        let look = move || {
            if is_begin {
                History::remove_old(&History::directory(&here.state), now_s());
            }
            let mut disks = here.sysfs.disks();
            disks.retain(|disk| disk.is_hardware);
            disks
        };
        let disks = tokio::task::spawn_blocking(look).await.unwrap_or_default();
        // Without the program there is nothing to be remembered.
        if Smartctl::find().problem().is_none() {
            let all = stream::iter(disks);
            all.for_each_concurrent(ASKED, |disk| ask(Arc::clone(&drives), disk))
                .await;
        }
        drop(drives);
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Asks one disk, unless a program hangs at it.
pub(super) async fn ask(drives: Arc<Drives>, disk: Disk) {
    let asking = move || {
        let now_s = now_s();
        let hangs = drives.hung.lock().contains(&disk.name);
        let answer = match hangs {
            true => Answer::NoAnswer,
            false => {
                let hangs = drives.hangs(&disk.name);
                Smartctl::find().ask(&device(&disk.name), now_s, hangs)
            }
        };
        drives.take_in(&disk.id(), answer);
    };
    // A panic leaves what was known before.
    let _ = tokio::task::spawn_blocking(asking).await;
}

impl Drives {
    /// Takes in what a disk answered. Blocks.
    fn take_in(&self, id: &str, answer: Answer) {
        let directory = History::directory(&self.state);
        let is_new = !self.known.lock().contains_key(id);
        let stored = is_new.then(|| History::load(&directory, id));
        let mut known = self.known.lock();
        let told = known.entry(id.to_owned()).or_default();
        match stored {
            Some(Ok(history)) => told.history = history,
            // It is written anew with the next sample.
            Some(Err(error)) => tracing::warn!(%error, "how a disk was is not known"),
            None => {}
        }
        told.state = match answer {
            Answer::Report(report) => {
                let is_sample = told.history.add(&report);
                told.report = Some(*report);
                let history = is_sample.then(|| told.history.clone());
                told.state = SmartState::Known;
                drop(known);
                if let Some(Err(error)) = history.map(|history| history.save(&directory)) {
                    tracing::warn!(%error, "how a disk is cannot be stored");
                }
                return;
            }
            Answer::Standby => {
                // One that sleeps is not as warm as it was, and does not test itself.
                if let Some(report) = &mut told.report {
                    report.temperature_c = None;
                    report.test_remaining_percent = None;
                }
                SmartState::Standby
            }
            Answer::Unsupported { why } => {
                told.report = None;
                SmartState::Unsupported { why }
            }
            Answer::Failed { why } => SmartState::Failed { why },
            Answer::NoAnswer => SmartState::NoAnswer,
        };
    }
}

/// `millpond disks test`.
pub async fn test(parts: &Parts, call: DiskTest) -> Result<Empty, Failure> {
    let doing = format!("cannot test '{}'", call.disk);
    let row = resolve(parts, &call.disk).await?;
    let Some(disk) = row.disk else {
        let message = format!("{doing}: it is not there");
        return Err(Failure::new(FailureKind::NotFound, message));
    };
    let drives = &parts.drives;
    let Err(why) = begin_test(drives, disk.clone(), call.kind).await else {
        return Ok(Empty {});
    };
    // One that cannot tell how it is, as those of virtual machines, has not failed.
    let id = disk.id();
    ask(Arc::clone(drives), disk).await;
    let kind = match drives.state_of(&id) {
        SmartState::Unsupported { .. } => FailureKind::Unsupported,
        _ => FailureKind::Io,
    };
    Err(Failure::new(kind, format!("{doing}: {why}")))
}

/// Has a disk begin to test itself, and asks it how it is then. One that a program hangs at is left
/// alone.
async fn begin_test(drives: &Arc<Drives>, disk: Disk, kind: SelfTestKind) -> Result<(), String> {
    if drives.hung.lock().contains(&disk.name) {
        return Err("it does not answer; look at its cables and power".to_owned());
    }
    let hangs = drives.hangs(&disk.name);
    let device = device(&disk.name);
    let begin = move || Smartctl::find().test(&device, kind, hangs);
    let begun = tokio::task::spawn_blocking(begin).await;
    begun.unwrap_or_else(|error| Err(error.to_string()))?;
    ask(Arc::clone(drives), disk).await;
    Ok(())
}

/// Has the disks of a pool test themselves; for no pool, all of the host. One that sleeps is woken
/// for it. One that tests itself already is left alone.
///
/// # Errors
/// [`FailureKind::Unsupported`] where `smartctl` is not installed.
pub(super) async fn begin_tests(
    parts: &Parts,
    pool: &str,
    kind: SelfTestKind,
) -> Result<SelfTests, Failure> {
    if let Some(problem) = Smartctl::find().problem() {
        let message = format!("cannot test disks: {problem}");
        return Err(Failure::new(FailureKind::Unsupported, message));
    }
    let drives = &parts.drives;
    let _one_after_the_other = drives.tests.lock().await;
    let all = disks_with(parts, pool).await;
    let each = stream::iter(all).map(|(disk, state)| async move {
        let id = disk.id();
        ask(Arc::clone(drives), disk.clone()).await;
        if drives.is_testing(&id) {
            return Begun::IsTesting;
        }
        if matches!(drives.state_of(&id), SmartState::Unsupported { .. }) {
            return Begun::Unable;
        }
        match begin_test(drives, disk, kind).await {
            Ok(()) => Begun::Yes,
            Err(why) => Begun::No(ScheduleUntested {
                disk: state.path,
                why,
            }),
        }
    });
    let mut each = std::pin::pin!(each.buffered(ASKED));
    let mut tests = SelfTests::default();
    while let Some(begun) = each.next().await {
        match begun {
            Begun::Yes => tests.begun += 1,
            Begun::IsTesting => tests.are_testing += 1,
            Begun::Unable => tests.unable += 1,
            Begun::No(untested) => tests.refused.push(untested),
        }
    }
    Ok(tests)
}

/// What became of having one test itself.
enum Begun {
    Yes,
    IsTesting,
    Unable,
    No(ScheduleUntested),
}

impl Drives {
    /// How asking a disk went last.
    fn state_of(&self, id: &str) -> SmartState {
        let known = self.known.lock();
        known
            .get(id)
            .map_or(SmartState::NotAsked, |told| told.state.clone())
    }

    /// Whether a disk tests itself, as far as it is known.
    fn is_testing(&self, id: &str) -> bool {
        let known = self.known.lock();
        known.get(id).is_some_and(Told::is_testing)
    }
}

/// Whether one of a pool's disks tests itself, as far as it is known; of any for no pool. Nothing
/// is asked.
pub(super) fn is_testing(parts: &Parts, pool: &str) -> bool {
    let drives = &parts.drives;
    if !drives.known.lock().values().any(Told::is_testing) {
        return false;
    }
    let disks = drives.sysfs.disks();
    if pool.is_empty() {
        // One that was pulled meanwhile does not test itself any more.
        return disks.iter().any(|disk| drives.is_testing(&disk.id()));
    }
    let (leaves, _) = leaves(parts);
    let of_pool = leaves.iter().filter(|leaf| leaf.member.pool == pool);
    let mut names = of_pool.flat_map(|leaf| disks_of(drives, &leaf.member.path));
    names.any(|name| {
        let mut disks = disks.iter();
        let disk = disks.find(|disk| disk.name == name);
        disk.is_some_and(|disk| drives.is_testing(&disk.id()))
    })
}
