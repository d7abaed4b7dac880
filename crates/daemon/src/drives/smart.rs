//! Asks disks how they are.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::drives::{Answer, Disk, History, Smartctl};
use api::{DiskTest, Empty, Failure, FailureKind, SmartState};
use futures::{StreamExt, stream};

use super::overview::resolve;
use super::{Drives, now_s};
use crate::service::Service;

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
                // One that sleeps is not as warm as it was.
                if let Some(report) = &mut told.report {
                    report.temperature_c = None;
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
pub(crate) async fn test(service: &Service, call: DiskTest) -> Result<Empty, Failure> {
    let doing = format!("cannot test '{}'", call.disk);
    let row = resolve(service, &call.disk).await?;
    let Some(disk) = row.disk else {
        let message = format!("{doing}: it is not there");
        return Err(Failure::new(FailureKind::NotFound, message));
    };
    let hangs = service.drives.hangs(&disk.name);
    let (device, kind) = (device(&disk.name), call.kind);
    let begin = move || Smartctl::find().test(&device, kind, hangs);
    let begun = tokio::task::spawn_blocking(begin).await;
    let begun = begun.unwrap_or_else(|error| Err(error.to_string()));
    begun.map_err(|why| Failure::new(FailureKind::Io, format!("{doing}: {why}")))?;
    ask(Arc::clone(&service.drives), disk).await;
    Ok(Empty {})
}
