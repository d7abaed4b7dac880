//! What runs again and again by itself: replications ([`crate::replicate`]) and schedules
//! ([`crate::schedules`]). What they do is their own business; that they are kept, run when they
//! are due, rest, and go is done here.
//!
//! Each kind has a file in the state directory with all of them and with what their last runs came
//! to ([`TableFile`]). A run is on record there as begun before it does anything, so that one which
//! the server's end cut off goes on with the next start. What is there and is not understood stays,
//! nothing of that kind runs then, and whoever asks is told so.
//!
//! Locks: `entries` is short, and never held across an await.

pub(crate) mod rule;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::{Failure, FailureKind, ScheduleWhen, Settings, ZfsDestroy};
use chrono::Local;
use parking_lot::{Mutex, MutexGuard};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use host::State;
use host::table_file::{FileProblem, NotKept, TableFile};
use rule::Rhythm;
use service::jobs::{Jobs, Work};
use serving::Serving;

/// How long nobody looks at the clock at most: it may jump.
const LOOK_S: u64 = 30;
/// How long runs may take to end when the server leaves.
const LAST_RUNS: Duration = Duration::from_secs(20);

pub(crate) fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A kind of what runs again and again; what is kept of each.
pub(crate) trait Recurs: Clone + Serialize + DeserializeOwned + Send + 'static {
    /// Its file in the state directory.
    const FILE: &'static str;
    /// What one is called, for people, and several.
    const WORD: &'static str;
    const WORDS: &'static str;
    /// The command that lists them.
    const LISTED_BY: &'static str;

    /// How often it runs by itself; none where it runs only on request.
    fn when(&self) -> Option<ScheduleWhen>;
}

/// What is kept of each, whatever it does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Course {
    pub(crate) name: String,
    pub(crate) is_paused: bool,
    /// From when on its times count.
    pub(crate) created_s: u64,
    /// When its last run began, and ended.
    pub(crate) begun_s: u64,
    pub(crate) ended_s: u64,
    /// Runs that failed one after the other, up to now.
    pub(crate) failures: u32,
    /// A run has begun and not come to an end.
    pub(crate) is_running: bool,
    /// When the last run that worked ended.
    #[serde(default)]
    pub(crate) success_s: Option<u64>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Well,
    Failed,
    /// Somebody stopped it.
    Canceled {
        /// It is to go on: the server ends, or it rests.
        goes_on: bool,
    },
}

impl Course {
    /// One that begins now.
    pub(crate) fn new(name: &str, now_s: u64) -> Self {
        Self {
            name: name.to_owned(),
            created_s: now_s,
            ..Self::default()
        }
    }

    /// When it runs next by itself, which may be over already: then it is due.
    pub(crate) fn next_s(&self, when: Option<ScheduleWhen>, now_s: u64) -> Option<u64> {
        if self.is_paused {
            return None;
        }
        if self.is_running {
            return Some(now_s);
        }
        let rhythm = Rhythm {
            when: when?,
            first_s: self.created_s,
            begun_s: self.begun_s,
            ended_s: self.ended_s,
            failures: self.failures,
        };
        Some(rhythm.next_s(now_s, &Local))
    }

    /// After a clock that was ahead was set right, time counts from when that is noticed: from a
    /// moment to come nothing would ever be due.
    fn not_after(&mut self, now_s: u64) {
        self.created_s = self.created_s.min(now_s);
        self.begun_s = self.begun_s.min(now_s);
        self.ended_s = self.ended_s.min(now_s);
        self.success_s = self.success_s.map(|success_s| success_s.min(now_s));
    }

    fn begins(&mut self, now_s: u64) {
        self.is_running = true;
        self.begun_s = now_s;
    }

    fn ends(&mut self, ended: Ended, now_s: u64) {
        self.is_running = matches!(ended, Ended::Canceled { goes_on: true });
        self.ended_s = now_s;
        match ended {
            Ended::Well => {
                self.failures = 0;
                self.success_s = Some(now_s);
            }
            Ended::Failed => self.failures = self.failures.saturating_add(1),
            Ended::Canceled { .. } => self.failures = 0,
        }
    }
}

/// What is kept of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept<K> {
    #[serde(flatten)]
    pub(crate) course: Course,
    #[serde(flatten)]
    pub(crate) own: K,
}

impl<K: Recurs> Kept<K> {
    /// When it runs next by itself.
    pub(crate) fn next_s(&self, now_s: u64) -> Option<u64> {
        self.course.next_s(self.own.when(), now_s)
    }
}

/// A run that is under way.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) work: Arc<Work>,
    ended: watch::Receiver<bool>,
}

/// One of a kind.
pub(crate) struct Entry<K> {
    pub(crate) kept: Kept<K>,
    pub(crate) running: Option<Running>,
    /// It goes as soon as its run has ended.
    is_removed: bool,
}

impl<K: Recurs> Entry<K> {
    pub(crate) fn new(kept: Kept<K>) -> Self {
        Self {
            kept,
            running: None,
            is_removed: false,
        }
    }

    /// Refuses to do something with one that is going.
    pub(crate) fn check_stays(&self) -> Result<(), Failure> {
        if !self.is_removed {
            return Ok(());
        }
        let message = format!("{} '{}' is being removed", K::WORD, self.kept.course.name);
        Err(Failure::new(FailureKind::Busy, message))
    }
}

/// By name.
pub(crate) type Entries<K> = BTreeMap<String, Entry<K>>;

/// A run that has begun.
pub(crate) struct Begun<K> {
    /// What was known before it.
    pub(crate) kept: Kept<K>,
    pub(crate) work: Arc<Work>,
    end: watch::Sender<bool>,
}

/// All of a kind.
pub(crate) struct Table<K> {
    file: TableFile,
    entries: Mutex<Entries<K>>,
    changed: Notify,
    is_stopping: AtomicBool,
}

impl<K: Recurs> Table<K> {
    /// Those that were kept.
    pub(crate) fn load(state: &State) -> Self {
        let path = state.directory().join(K::FILE);
        let (kept, file): (Vec<Kept<K>>, _) = TableFile::load(path, K::WORDS);
        let entries = kept
            .into_iter()
            .map(|kept| (kept.course.name.clone(), Entry::new(kept)));
        Self {
            file,
            entries: Mutex::new(entries.collect()),
            changed: Notify::new(),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// All of them, for who lists them.
    ///
    /// # Errors
    /// Where nobody knows which there are.
    pub(crate) fn known(&self) -> Result<MutexGuard<'_, Entries<K>>, Failure> {
        match self.file.unread() {
            Some(why) => Err(Failure::new(
                FailureKind::Io,
                format!(
                    "no {} runs, as nobody knows which there are: {why}",
                    K::WORD
                ),
            )),
            None => Ok(self.lock()),
        }
    }

    /// Whether nobody knows which there are.
    pub(crate) fn are_unknown(&self) -> bool {
        self.file.unread().is_some()
    }

    /// What is wrong with their file.
    pub(crate) fn problem(&self) -> Option<FileProblem> {
        self.file.problem()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Entries<K>> {
        self.entries.lock()
    }

    pub(crate) fn unknown(name: &str) -> Failure {
        let message = format!(
            "there is no {} '{name}'; '{}' lists them",
            K::WORD,
            K::LISTED_BY
        );
        Failure::new(FailureKind::NotFound, message)
    }

    /// Keeps all of them as they are now.
    pub(crate) fn save(&self, entries: &Entries<K>) -> Result<(), NotKept> {
        let kept: Vec<&Kept<K>> = entries.values().map(|entry| &entry.kept).collect();
        self.file.write(&kept)
    }

    pub(crate) fn save_or_warn(&self, entries: &Entries<K>) {
        if let Err(error) = self.save(entries) {
            tracing::error!(
                "{} could not be written: {error}; see to the state directory",
                K::FILE
            );
        }
    }

    /// Puts one there, new or in the place of one of that name, and keeps it; else all is as
    /// before.
    pub(crate) fn put(
        &self,
        entries: &mut Entries<K>,
        kept: Kept<K>,
        doing: &str,
    ) -> Result<(), Failure> {
        let name = kept.course.name.clone();
        let before = match entries.get_mut(&name) {
            Some(entry) => Some(std::mem::replace(&mut entry.kept, kept)),
            None => {
                entries.insert(name.clone(), Entry::new(kept));
                None
            }
        };
        let saved = self.save(entries);
        if let Err(error) = saved {
            match before {
                Some(before) => {
                    if let Some(entry) = entries.get_mut(&name) {
                        entry.kept = before;
                    }
                }
                None => {
                    entries.remove(&name);
                }
            }
            let message = format!("{doing}: {} could not be written: {error}", K::FILE);
            return Err(Failure::new(FailureKind::Io, message));
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Stops all runs; they go on with the next start.
    pub(crate) async fn stop(&self, jobs: &Jobs) {
        self.is_stopping.store(true, Ordering::Release);
        self.changed.notify_one();
        let running: Vec<Running> = {
            let entries = self.lock();
            let running = entries.values().filter_map(|entry| entry.running.as_ref());
            running.cloned().collect()
        };
        let all = async {
            for running in &running {
                // It may have ended by itself.
                let _ = jobs.cancel(running.work.id());
            }
            for mut running in running {
                let _ = running.ended.wait_for(|ended| *ended).await;
            }
        };
        if tokio::time::timeout(LAST_RUNS, all).await.is_err() {
            tracing::warn!("a {} is still under way; leaving", K::WORD);
        }
    }

    /// Whether the server leaves.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Those that are due, and when to look again.
    pub(crate) fn due(&self, now_s: u64) -> (Vec<String>, u64) {
        let mut entries = self.lock();
        let (mut due, mut again_s) = (Vec::new(), now_s + LOOK_S);
        let waiting = entries.values_mut().filter(|entry| entry.running.is_none());
        for entry in waiting {
            entry.kept.course.not_after(now_s);
            match entry.kept.next_s(now_s) {
                Some(next_s) if next_s <= now_s => due.push(entry.kept.course.name.clone()),
                Some(next_s) => again_s = again_s.min(next_s),
                None => {}
            }
        }
        (due, again_s)
    }

    /// Begins those that are due, until the server stops.
    pub(crate) async fn follow(&self, begin: impl Fn(&str)) {
        while !self.is_stopping.load(Ordering::Acquire) {
            let now_s = now_s();
            let (due, again_s) = self.due(now_s);
            for name in &due {
                begin(name);
            }
            let pause = Duration::from_secs(again_s.saturating_sub(now_s).max(1));
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Begins a run, with the job that `work` makes of what is known.
    pub(crate) fn begin(
        &self,
        name: &str,
        work: impl FnOnce(&K) -> Arc<Work>,
    ) -> Result<Begun<K>, Failure> {
        let mut entries = self.lock();
        if self.is_stopping.load(Ordering::Acquire) {
            let message = format!("cannot run {} '{name}': the server is stopping", K::WORD);
            return Err(Failure::new(FailureKind::Busy, message));
        }
        let entry = entries.get_mut(name).ok_or_else(|| Self::unknown(name))?;
        entry.check_stays()?;
        if entry.running.is_some() {
            let message = format!("{} '{name}' runs already; wait for its end", K::WORD);
            return Err(Failure::new(FailureKind::Busy, message));
        }
        let kept = entry.kept.clone();
        let work = work(&kept.own);
        let (end, ended) = watch::channel(false);
        entry.kept.course.begins(now_s());
        entry.running = Some(Running {
            work: Arc::clone(&work),
            ended,
        });
        self.save_or_warn(&entries);
        Ok(Begun { kept, work, end })
    }

    /// Notes what a run came to. One that was stopped goes on where `goes_on`, and where it rests
    /// or the server leaves.
    pub(crate) fn end(
        &self,
        begun: &Begun<K>,
        failure: Option<&Failure>,
        goes_on: bool,
        note: impl FnOnce(&mut K),
    ) {
        let name = &begun.kept.course.name;
        if let Some(failure) = failure {
            tracing::warn!("{} '{name}': {failure}", K::WORD);
        }
        {
            let mut entries = self.lock();
            if let Some(entry) = entries.get_mut(name) {
                entry.running = None;
                let is_stopping = self.is_stopping.load(Ordering::Acquire);
                let course = &mut entry.kept.course;
                let ended = match failure.map(|failure| failure.kind) {
                    None => Ended::Well,
                    // What the end of the server cuts off goes on when it comes back; so does what
                    // rests.
                    Some(FailureKind::Canceled) => Ended::Canceled {
                        goes_on: goes_on || is_stopping || course.is_paused,
                    },
                    Some(_) => Ended::Failed,
                };
                course.ends(ended, now_s());
                note(&mut entry.kept.own);
                self.save_or_warn(&entries);
            }
        }
        self.changed.notify_one();
    }

    /// Stops a run, and waits for its end.
    async fn stop_run(&self, jobs: &Jobs, running: Option<Running>) {
        let Some(mut running) = running else { return };
        // It may have ended by itself.
        let _ = jobs.cancel(running.work.id());
        let _ = running.ended.wait_for(|ended| *ended).await;
    }

    /// Forgets one, whose run is stopped. `leave` keeps what it leaves; where that fails it stays,
    /// and rests.
    pub(crate) async fn remove(
        &self,
        jobs: &Jobs,
        name: &str,
        leave: impl FnOnce(&Kept<K>) -> Result<(), NotKept>,
    ) -> Result<(), Failure> {
        let running = {
            let mut entries = self.lock();
            let entry = entries.get_mut(name).ok_or_else(|| Self::unknown(name))?;
            // Nothing begins it anew.
            entry.kept.course.is_paused = true;
            entry.is_removed = true;
            entry.running.clone()
        };
        self.stop_run(jobs, running).await;
        let mut entries = self.lock();
        // Somebody else may have removed it in the meantime, and another one has its name.
        if let Some(entry) = entries.get_mut(name).filter(|entry| entry.is_removed) {
            if let Err(error) = leave(&entry.kept) {
                entry.is_removed = false;
                // Else it would go on after the next start.
                self.save_or_warn(&entries);
                let message = format!(
                    "cannot remove {} '{name}': what it knows of snapshots could not be kept: \
                     {error}; it stays, and is paused",
                    K::WORD
                );
                return Err(Failure::new(FailureKind::Io, message));
            }
            entries.remove(name);
        }
        self.save(&entries).map_err(|error| {
            let message = format!(
                "{} could not be written: {error}; it comes back at the next start",
                K::FILE
            );
            Failure::new(FailureKind::Io, message)
        })
    }

    /// Has one rest, whose run is stopped; or go on. `on` is told with what is known of it.
    pub(crate) async fn pause(
        &self,
        jobs: &Jobs,
        name: &str,
        is_paused: bool,
        on: impl FnOnce(&mut Kept<K>),
    ) -> Result<(), Failure> {
        let running = {
            let mut entries = self.lock();
            let entry = entries.get_mut(name).ok_or_else(|| Self::unknown(name))?;
            entry.check_stays()?;
            entry.kept.course.is_paused = is_paused;
            on(&mut entry.kept);
            let running = entry.running.clone().filter(|_| is_paused);
            self.save_or_warn(&entries);
            running
        };
        self.stop_run(jobs, running).await;
        self.changed.notify_one();
        Ok(())
    }
}

impl<K> Begun<K> {
    /// All is done; whoever waits for its end hears of it.
    pub(crate) fn over(self) {
        self.end.send_replace(true);
    }
}

/// Destroys snapshots of a dataset of this server, by their names after the `@`; gives those that
/// could not be, and why. One that is in the way keeps none of the others.
pub(crate) async fn destroy_snapshots(
    serving: &Serving,
    work: &Work,
    command: &str,
    dataset: &str,
    names: &[String],
) -> Vec<(String, String)> {
    let mut left = Vec::new();
    if names.is_empty() {
        return left;
    }
    let destroy = async |names: &[String]| {
        let call = ZfsDestroy {
            target: format!("{dataset}@{}", names.join(",")),
            command: command.to_owned(),
            ..ZfsDestroy::default()
        };
        verbs::destroy::zfs_destroy(serving, call, work).await
    };
    if destroy(names).await.is_ok() {
        return left;
    }
    for name in names {
        if let Err(failure) = destroy(std::slice::from_ref(name)).await {
            left.push((format!("{dataset}@{name}"), failure.message));
        }
    }
    left
}

/// Takes a snapshot of a dataset, or of all below it too. `names` are tried in their order, until
/// there is one that nobody has taken; gives it.
pub(crate) async fn take_snapshot(
    serving: &Serving,
    command: &str,
    dataset: &str,
    recursive: bool,
    properties: &Settings,
    names: impl Iterator<Item = String>,
) -> Result<String, Failure> {
    for short in names {
        let call = api::ZfsSnapshot {
            names: vec![format!("{dataset}@{short}")],
            recursive,
            properties: properties.clone(),
            command: command.to_owned(),
        };
        match verbs::zfs::zfs_snapshot(serving, call).await {
            Ok(_) => return Ok(short),
            // Another one was taken at the same time.
            Err(failure) if failure.kind == FailureKind::Exists => {}
            Err(failure) => return Err(failure),
        }
    }
    let message =
        format!("cannot take a snapshot of '{dataset}': those of these seconds are there already");
    Err(Failure::new(FailureKind::Exists, message))
}

#[cfg(test)]
mod tests;
