//! Switches the lights of bays: by itself where a pool's device failed, and when asked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::{
    DiskLightsTest, DiskLightsTestReply, DiskLocate, Empty, Failure, FailureKind, Guid, LightTested,
};
use drives::{Book, Disk, Failed, FileError, Lamp, Lamps, Light};

use crate::Parts;
use crate::overview::{Leaf, disks_of, leaves, place_of, resolve};
use crate::{BOOK, Drives, now_s};

/// How long lights may take, and who waits for them. Longer than a test of them.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longest test, in seconds.
const TEST_S_MAX: u64 = 60;
/// How much longer a test is on record than it takes, in seconds: whoever finds it later ends it.
const TEST_SLACK_S: u64 = 30;

/// What there is to know of pools for lights.
struct Pools {
    leaves: Vec<Leaf>,
    imported: Vec<Guid>,
    /// Those that were there when the server last ran, and could not be imported.
    away: Vec<Guid>,
}

impl Pools {
    fn of(parts: &Parts) -> Self {
        let away = parts.pools.not_imported().into_iter();
        let (leaves, imported) = leaves(parts);
        Self {
            leaves,
            imported,
            away: away.map(|(_, guid, _)| Guid(guid)).collect(),
        }
    }
}

fn io(message: String) -> Failure {
    Failure::new(FailureKind::Io, message)
}

impl Drives {
    /// Runs `work` on a thread that has the lights to itself, with the book and what is to be lit.
    async fn with_lights<T: Send + 'static>(
        self: &Arc<Self>,
        pools: Pools,
        work: impl FnOnce(&mut Turn<'_>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let none = || {
            let message = "the lights do not answer; look at the enclosure, or wait until a test \
                           of them is done";
            io(message.to_owned())
        };
        let turn = tokio::time::timeout(PATIENCE, Arc::clone(&self.work).lock_owned());
        let turn = turn.await.map_err(|_| none())?;
        let drives = Arc::clone(self);
        let run = move || {
            let _turn = turn;
            let book = drives.book.lock().clone();
            let mut book = book.map_err(|why| io(format!("lights are not switched: {why}")))?;
            let lamps = drives.lamps();
            let disks = drives.sysfs.disks();
            let before = book.clone();
            let failed = drives.look_at(&mut book, &pools, &disks, &lamps);
            let mut turn = Turn {
                drives: &drives,
                book,
                lamps,
                disks,
                failed,
                away: pools.away,
            };
            if turn.book != before {
                turn.store();
            }
            Ok(work(&mut turn))
        };
        let done = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(run)).await;
        match done {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => Err(io(error.to_string())),
            Err(_) => Err(none()),
        }
    }

    /// Notes where devices are, and says which bays have one that failed.
    fn look_at(
        &self,
        book: &mut Book,
        pools: &Pools,
        disks: &[Disk],
        lamps: &Lamps,
    ) -> Vec<Failed> {
        let now_s = now_s();
        let mut failed: Vec<Failed> = Vec::new();
        let devices: BTreeSet<Guid> = pools.leaves.iter().map(|leaf| leaf.member.guid).collect();
        for leaf in &pools.leaves {
            let names = disks_of(self, &leaf.member.path);
            let at_path = disks
                .iter()
                .find(|disk| names.contains(&disk.name) && disk.is_hardware);
            if leaf.works() {
                if let Some(disk) = at_path {
                    book.remember(leaf.member.guid, place_of(leaf, disk, lamps, now_s));
                }
                continue;
            }
            if !leaf.has_failed() {
                continue;
            }
            // What failed is the disk that was there when it worked, wherever that is now.
            let lamp = match book.place_of(leaf.member.guid) {
                Some(place) => match disks.iter().find(|disk| disk.id() == place.id) {
                    Some(disk) => lamps.of(disk),
                    None => place.lamp.clone(),
                },
                None => at_path.and_then(|disk| lamps.of(disk)),
            };
            failed.extend(lamp.map(|lamp| Failed {
                lamp,
                pool: leaf.pool,
            }));
        }
        book.forget(&pools.imported, &devices, now_s);
        failed
    }
}

/// Who has the lights to themselves.
struct Turn<'a> {
    drives: &'a Drives,
    book: Book,
    lamps: Lamps,
    disks: Vec<Disk>,
    failed: Vec<Failed>,
    away: Vec<Guid>,
}

impl Turn<'_> {
    fn store(&self) {
        let path = self.drives.state.join(BOOK);
        if let Err(error) = self.book.save(&path) {
            tracing::warn!(%error, "where disks are cannot be stored");
        }
        *self.drives.book.lock() = Ok(self.book.clone());
    }

    /// Has the lights be as they should; what went wrong.
    fn carry_out(&mut self) -> Vec<String> {
        let path = self.drives.state.join(BOOK);
        let mut store = |book: &Book| -> Result<(), FileError> {
            book.save(&path)?;
            *self.drives.book.lock() = Ok(book.clone());
            Ok(())
        };
        let (lamps, failed, away) = (&self.lamps, &self.failed, &self.away);
        let done = self
            .book
            .carry_out(lamps, failed, away, now_s(), &mut store);
        done.unwrap_or_else(|error| vec![format!("lights are not switched: {error}")])
    }

    /// Lights all for some seconds.
    fn test(&mut self, seconds: u64) -> Vec<LightTested> {
        let all = self.lamps.all();
        let mut lights = Vec::new();
        for lamp in &all {
            for light in Light::ALL {
                // What is on by somebody else stays so.
                let is_free = match self.lamps.is_on(lamp, light) {
                    Ok(Some(is_on)) => !is_on || self.book.is_lit(lamp, light),
                    Ok(None) => true,
                    Err(_) => false,
                };
                if is_free {
                    lights.push((lamp.clone(), light));
                }
            }
        }
        self.book
            .begin_test(&lights, now_s() + seconds + TEST_SLACK_S);
        let problems = self.carry_out();
        let tested = |lamp: &Lamp| {
            let place = lamp.place();
            let told = problems.iter().find_map(|problem| {
                let rest = problem.strip_prefix(&place)?.strip_prefix(": ")?;
                Some(rest.to_owned())
            });
            let is_dark = |light: &Light| {
                lights.contains(&(lamp.clone(), *light))
                    && matches!(self.lamps.is_on(lamp, *light), Ok(Some(false)))
            };
            let dark = Light::ALL.iter().any(is_dark);
            let dark = dark.then(|| "it does not say that it is lit".to_owned());
            LightTested {
                disk: self.lamps.disk_in(lamp, &self.disks),
                problem: told.or(dark),
                place,
            }
        };
        let bays: Vec<LightTested> = all.iter().map(tested).collect();
        std::thread::sleep(Duration::from_secs(seconds));
        self.book.end_test();
        for problem in self.carry_out() {
            tracing::warn!("{problem}");
        }
        bays
    }
}

/// Has the lights follow what pools have, after `change` to the book; what went wrong.
pub(super) async fn carry_out(
    parts: &Parts,
    change: impl FnOnce(&mut Book) + Send + 'static,
) -> Result<Vec<String>, Failure> {
    let work = move |turn: &mut Turn<'_>| {
        change(&mut turn.book);
        turn.carry_out()
    };
    let pools = Pools::of(parts);
    // Looked at after the pools: none of them had been exported then.
    if parts.drives.is_leaving() {
        return Ok(Vec::new());
    }
    parts.drives.with_lights(pools, work).await
}

/// When a light has to go off by itself next.
pub(super) fn next(parts: &Parts) -> Option<Duration> {
    let book = parts.drives.book.lock();
    let next_s = book.as_ref().ok()?.next_s()?;
    // What cannot be put out is not tried again at once.
    Some(Duration::from_secs(next_s.saturating_sub(now_s()).max(1)))
}

/// `millpond disks locate`.
pub async fn locate(parts: &Parts, call: DiskLocate) -> Result<Empty, Failure> {
    let doing = format!("cannot switch the light of '{}'", call.disk);
    let row = resolve(parts, &call.disk).await?;
    let Some(lamp) = row.lamp else {
        let message = format!(
            "{doing}: there is none that can be switched. It has to be in an enclosure (SES) or at \
             a port of PCI Express (NPEM) that has lights, or the program ledctl has to know it \
             (Debian: apt install ledmon)"
        );
        return Err(Failure::new(FailureKind::Unsupported, message));
    };
    let until_s = call.for_s.map(|for_s| now_s().saturating_add(for_s));
    let place = lamp.place();
    let change = move |book: &mut Book| book.locate(&lamp, call.on, until_s);
    let problems = carry_out(parts, change).await?;
    match problems.iter().find(|problem| problem.starts_with(&place)) {
        Some(problem) => Err(io(format!("{doing}: {problem}"))),
        None => Ok(Empty {}),
    }
}

/// `millpond disks lights-test`.
pub async fn lights_test(
    parts: &Parts,
    call: DiskLightsTest,
) -> Result<DiskLightsTestReply, Failure> {
    if !(1..=TEST_S_MAX).contains(&call.seconds) {
        let message = format!("lights are tested for 1 to {TEST_S_MAX} seconds");
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let seconds = call.seconds;
    let work = move |turn: &mut Turn<'_>| turn.test(seconds);
    let bays = parts.drives.with_lights(Pools::of(parts), work).await?;
    Ok(DiskLightsTestReply { bays })
}
