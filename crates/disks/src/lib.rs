//! The disks of the host and the pools on them: a list of all for who makes a pool, how they are,
//! what they hang on, self-tests, lights and power of bays (crate `drives` speaks to them and knows
//! of no pools).
//!
//! Three tasks do all of it. One asks each disk now and then how it is (module `smart`); one looks
//! at the pools whenever something happened, and once a minute, switches lights (module `lights`)
//! and has a disk take the place of one that failed in its bay (module `replace`); alerts look at
//! what is known. Requests are answered from what is known too, so a disk that hangs keeps nobody
//! waiting: whoever does wait for one is a thread that is left alone, and no second one is sent
//! after it.
//!
//! Locks: `known`, `book` and `hung` are short. `work` is held by the thread that switches lights,
//! for as long as that takes; who waits for it gives up after a while. `tests` is held by who has
//! disks begin to test themselves, so that one test comes after the other.

#![forbid(unsafe_code)]

mod buses;
mod lights;
mod list;
mod overview;
mod planner;
mod power;
mod replace;
mod smart;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use api::{AlertSettings, Failure, SelfTestKind, SmartReport, SmartState};
use drives::{Book, History, Lamps, Sysfs};
use parking_lot::Mutex;

pub use buses::buses;
pub use lights::{lights_test, locate};
pub use list::{Looks, disk_list};
pub use overview::{overview, show, states};
pub use planner::plan_ask;
pub use power::power;
pub use smart::test;

use automation::{Disks, SelfTests};
use device::BoxFuture;
use host::table_file::FileProblem;
use service::events::{Events, Wanted};
use service::pools::Pools;

/// The file of places and lights.
const BOOK: &str = "lights.json";
/// How often lights are looked at when nothing happens.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long after something happened they are looked at: one fault makes many events.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

/// What a disk has told.
#[derive(Default)]
struct Told {
    state: SmartState,
    report: Option<SmartReport>,
    history: History,
}

impl Told {
    /// Whether it tests itself.
    fn is_testing(&self) -> bool {
        let report = self.report.as_ref();
        self.state == SmartState::Known && report.is_some_and(drives::is_testing)
    }
}

/// The disks of a server.
pub struct Drives {
    sysfs: Sysfs,
    state: PathBuf,
    /// By what disks are known by.
    known: Mutex<HashMap<String, Told>>,
    /// Disks, by the kernel's names, that a program hangs at.
    hung: Arc<Mutex<BTreeSet<String>>>,
    /// Why there is none, where its file is not understood: then no light is switched.
    book: Mutex<Result<Book, String>>,
    work: Arc<tokio::sync::Mutex<()>>,
    tests: tokio::sync::Mutex<()>,
    /// Pools are being exported, which says nothing of their disks.
    is_leaving: AtomicBool,
}

fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A program hangs at a disk, as long as this is there.
struct Hangs {
    all: Arc<Mutex<BTreeSet<String>>>,
    name: String,
}

impl Drop for Hangs {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}

impl Drives {
    /// Reads what the state directory has of them.
    pub fn load(state: &Path) -> Arc<Self> {
        let book = Book::load(&state.join(BOOK)).map_err(|error| error.to_string());
        if let Err(error) = &book {
            tracing::error!(error, "lights of disks are not switched");
        }
        Arc::new(Self {
            sysfs: Sysfs::of_host(),
            state: state.to_owned(),
            known: Mutex::default(),
            hung: Arc::default(),
            book: Mutex::new(book),
            work: Arc::default(),
            tests: tokio::sync::Mutex::default(),
            is_leaving: AtomicBool::new(false),
        })
    }

    /// What is wrong with the file of places and lights.
    pub fn book_problem(&self) -> Option<FileProblem> {
        let book = self.book.lock();
        let why = book.as_ref().err()?;
        Some(FileProblem::unread(&self.state.join(BOOK), why))
    }

    /// Where the kernel tells of them.
    pub fn sysfs(&self) -> &Sysfs {
        &self.sysfs
    }

    fn lamps(&self) -> Lamps {
        Lamps::find(self.sysfs.clone())
    }

    fn hangs(&self, name: &str) -> impl FnOnce() -> Hangs + Send + 'static {
        let (all, name) = (Arc::clone(&self.hung), name.to_owned());
        move || {
            all.lock().insert(name.clone());
            Hangs { all, name }
        }
    }

    /// Leaves the lights as they are from now on: the server goes, and comes back.
    pub fn stop(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }
}

/// Disks, and what tells of the pools that they are in.
pub struct Parts {
    /// The imported pools.
    pub pools: Arc<Pools>,
    /// What happens to them.
    pub events: Arc<Events>,
    /// The settings of alerts: what a disk is taken for.
    pub settings: Box<dyn Fn() -> AlertSettings + Send + Sync>,
    /// The disks.
    pub drives: Arc<Drives>,
}

impl Disks for Parts {
    fn begin_tests<'a>(
        &'a self,
        pool: &'a str,
        kind: SelfTestKind,
    ) -> BoxFuture<'a, Result<SelfTests, Failure>> {
        Box::pin(smart::begin_tests(self, pool, kind))
    }

    fn is_testing(&self, pool: &str) -> bool {
        smart::is_testing(self, pool)
    }
}

/// Begins to ask disks and to switch lights, until the server goes away.
pub fn begin(parts: &Arc<Parts>) {
    tokio::spawn(smart::ask_all(Arc::downgrade(&parts.drives)));
    tokio::spawn(watch(Arc::downgrade(parts)));
}

/// Has lights follow what happens to pools.
async fn watch(weak: Weak<Parts>) {
    let Some(parts) = weak.upgrade() else {
        return;
    };
    let mut reader = parts.events.reader(None, Wanted::All);
    drop(parts);
    let again = weak.clone();
    let look: replace::Look = Arc::new(move || -> BoxFuture<'static, Vec<replace::InBay>> {
        let weak = again.clone();
        Box::pin(async move {
            match weak.upgrade() {
                Some(parts) => overview::in_bays(&parts).await,
                None => Vec::new(),
            }
        })
    });
    let mut problems = Vec::new();
    let mut seen = replace::Seen::new();
    loop {
        let Some(parts) = weak.upgrade() else {
            return;
        };
        if parts.drives.is_leaving() {
            return;
        }
        let outcome = lights::carry_out(&parts, |_| {}).await;
        let found = outcome.unwrap_or_else(|failure| vec![failure.message]);
        if found != problems {
            for problem in &found {
                tracing::warn!("{problem}");
            }
            problems = found;
        }
        let disks = overview::in_bays(&parts).await;
        let all = (&parts.pools, &parts.events, &look);
        let is_new = replace::in_bays(all, &disks, &mut seen);
        let most = if is_new { replace::LASTS } else { LOOK_EVERY };
        let pause = lights::next(&parts).map_or(most, |next| next.min(most));
        drop(parts);
        let mut until = tokio::time::Instant::now() + pause;
        while let Ok(event) = tokio::time::timeout_at(until, reader.next()).await {
            let Some(event) = event else { return };
            if event.kind.job().is_none() {
                until = until.min(tokio::time::Instant::now() + SETTLES_WITHIN);
            }
        }
    }
}
