//! The list of pools for the next start: in memory, and in `pools.json`.
//!
//! On it are pools that are here, and pools that are away: those of the last run that could not be
//! imported, and those that were exported only because the server leaves or the power fails. A
//! pool that a person exported or destroyed is on it no more; so leaving as such takes no pool off
//! the list, whatever other commands have it written meanwhile.
//!
//! Whoever changes which pools are here, or how the list names them, has it written then
//! ([`PoolList::write`]). One lock is held from looking at what is here until the new file is in
//! its place, so that of several that write the last one has seen what all of them did. A crash
//! leaves the list before or after; a change that is not on it was not answered yet.
//!
//! A file that is not understood is never written ([`TableFile`]): then no pool is imported at the
//! start, and people are told.
//!
//! Locks: `writing` is held while the file is written, and comes before the others; `kept` is
//! short, and comes before the table of pools.

use api::Failure;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use host::State;
use host::table_file::{FileProblem, NotKept, TableFile};

/// A pool to import at the next start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedPool {
    /// Name when it was last open.
    pub name: String,
    /// Identity.
    pub guid: u64,
    /// The identity that it was just being given (`zpool reguid`): it has the one or the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_guid: Option<u64>,
    /// Where its devices were.
    pub devices: Vec<String>,
    /// Whether it was imported read-only.
    #[serde(default)]
    pub read_only: bool,
}

impl CachedPool {
    /// Whether a pool of this identity is it.
    pub fn is(&self, guid: u64) -> bool {
        self.guid == guid || self.next_guid == Some(guid)
    }
}

/// A pool that is here.
pub struct Here {
    /// Identity.
    pub guid: u64,
    /// What the list says of it, if it is to be on it.
    pub cached: Option<CachedPool>,
}

/// A pool on the list that is not here.
struct Away {
    cached: CachedPool,
    /// Why it could not be imported, once that was tried.
    why: Option<String>,
}

impl Away {
    fn new(cached: CachedPool) -> Self {
        Self { cached, why: None }
    }

    fn told(&self) -> String {
        let name = &self.cached.name;
        let why = self.why.as_deref().unwrap_or("it was not tried yet");
        format!(
            "pool '{name}' could not be imported: {why}\n\
             The next start tries again, unless 'zpool export {name}' ends that."
        )
    }
}

#[derive(Default)]
struct Kept {
    away: Vec<Away>,
    /// What the file has, or was last to have.
    listed: Vec<CachedPool>,
}

/// The list. See the module's header for the locks.
pub struct PoolList {
    file: TableFile,
    writing: Mutex<()>,
    kept: Mutex<Kept>,
}

impl PoolList {
    /// Reads what the last run left; all of it is away.
    pub fn load(state: &State) -> Self {
        let path = state.directory().join("pools.json");
        let (listed, file): (Vec<CachedPool>, _) = TableFile::load(path, "pools of the last run");
        Self {
            file,
            writing: Mutex::default(),
            kept: Mutex::new(Kept {
                away: listed.iter().cloned().map(Away::new).collect(),
                listed,
            }),
        }
    }

    /// Writes it anew. `here` looks at which pools are here, and calls nothing of this list.
    ///
    /// # Errors
    /// When the file was not understood at the start, or cannot be written.
    pub fn write(&self, here: impl FnOnce() -> Vec<Here>) -> Result<(), NotKept> {
        let _alone = self.writing.lock();
        let listed = {
            let mut kept = self.kept.lock();
            let here = here();
            let is_here = |away: &Away| here.iter().any(|here| away.cached.is(here.guid));
            kept.away.retain(|away| !is_here(away));
            let mut listed: Vec<CachedPool> =
                here.into_iter().filter_map(|here| here.cached).collect();
            listed.extend(kept.away.iter().map(|away| away.cached.clone()));
            kept.listed.clone_from(&listed);
            listed
        };
        self.file.write(&listed)
    }

    /// A pool goes because the server leaves or the power fails: it stays on the list, if it is on
    /// it. `take` takes it out of what is here, and nobody looks in between.
    pub fn leave(&self, guid: u64, take: impl FnOnce()) {
        let mut kept = self.kept.lock();
        take();
        let Kept { away, listed } = &mut *kept;
        let is_known = away.iter().any(|away| away.cached.is(guid));
        let cached = listed.iter().find(|cached| cached.is(guid));
        away.extend(cached.filter(|_| !is_known).cloned().map(Away::new));
    }

    /// What is to be imported: the pools that are away, by name. It is tried from now on.
    pub fn expect(&self) -> Vec<CachedPool> {
        let mut kept = self.kept.lock();
        let away = kept.away.iter_mut().map(|away| {
            away.why = None;
            away.cached.clone()
        });
        let mut away: Vec<CachedPool> = away.collect();
        away.sort_by(|one, other| one.name.cmp(&other.name));
        away
    }

    /// Keeps why a pool could not be imported; returns what to tell of it.
    pub fn could_not_be_imported(&self, guid: u64, why: &Failure) -> Vec<String> {
        let mut kept = self.kept.lock();
        let listed = kept.away.iter_mut().filter(|away| away.cached.guid == guid);
        let told = listed.map(|away| {
            away.why = Some(why.to_string());
            away.told()
        });
        told.collect()
    }

    /// Name and GUID of pools that could not be imported, and why in one line.
    pub fn not_imported(&self) -> Vec<(String, u64, String)> {
        let kept = self.kept.lock();
        let known = kept.away.iter().filter_map(|away| {
            let why = away.why.as_ref()?.lines().next().unwrap_or_default();
            Some((away.cached.name.clone(), away.cached.guid, why.to_owned()))
        });
        known.collect()
    }

    /// Why pools are not here that one would expect; only of that name where there is one.
    pub fn told(&self, name: Option<&str>) -> Vec<String> {
        let kept = self.kept.lock();
        let failed = kept
            .away
            .iter()
            .filter(|away| away.why.is_some() && name.is_none_or(|name| away.cached.name == name));
        let of_list = self.file.unread().map(|why| {
            format!("no pool of the last run is imported, as nobody knows which there were: {why}")
        });
        of_list.into_iter().chain(failed.map(Away::told)).collect()
    }

    /// Whether pools are waited for, or nobody knows which.
    pub fn is_waited_for(&self) -> bool {
        self.file.unread().is_some() || !self.kept.lock().away.is_empty()
    }

    /// Whether a pool that is not here is waited for, or nobody knows whether it is.
    pub fn awaits(&self, guid: u64) -> bool {
        let is_away = |away: &Away| away.cached.is(guid);
        self.file.unread().is_some() || self.kept.lock().away.iter().any(is_away)
    }

    /// Takes pools off the list that are not here; tells whether there were any.
    pub fn forget(&self, which: impl Fn(&CachedPool) -> bool) -> bool {
        let mut kept = self.kept.lock();
        let before = kept.away.len();
        kept.away.retain(|away| !which(&away.cached));
        kept.away.len() < before
    }

    /// What is wrong with its file.
    pub fn problem(&self) -> Option<FileProblem> {
        self.file.problem()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc;
    use std::time::Duration;

    use api::FailureKind;

    use super::*;

    fn pool(name: &str, guid: u64) -> CachedPool {
        CachedPool {
            name: name.into(),
            guid,
            next_guid: None,
            devices: vec![format!("/d/{name}")],
            read_only: false,
        }
    }

    /// A list, and which pools are here.
    struct World {
        _directory: tempfile::TempDir,
        state: State,
        here: Mutex<BTreeSet<u64>>,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let state = State::open(directory.path()).expect("its state");
            Self {
                _directory: directory,
                state,
                here: Mutex::default(),
            }
        }

        fn look(&self) -> Vec<Here> {
            let here = self.here.lock();
            let here = here.iter().map(|guid| Here {
                guid: *guid,
                cached: (*guid < 100).then(|| pool(&format!("p{guid}"), *guid)),
            });
            here.collect()
        }

        fn import(&self, list: &PoolList, guid: u64) {
            self.here.lock().insert(guid);
            list.write(|| self.look()).expect("written");
        }

        /// What a start would import.
        fn next(&self) -> Vec<u64> {
            let list = PoolList::load(&self.state);
            let mut guids: Vec<u64> = list.expect().iter().map(|cached| cached.guid).collect();
            guids.sort_unstable();
            guids
        }
    }

    /// Goal: the end of the server takes no pool off the list. Method: other commands have it
    /// written after each pool that was left, one exports a pool, one was not listed.
    #[test]
    fn a_stop_takes_no_pool_off_the_list_whoever_writes_it_meanwhile() {
        let world = World::new();
        let list = PoolList::load(&world.state);
        for guid in [1, 2, 3, 100] {
            world.import(&list, guid);
        }
        assert_eq!(world.next(), [1, 2, 3]);
        for guid in [1, 100] {
            list.leave(guid, || {
                world.here.lock().remove(&guid);
            });
            list.write(|| world.look()).expect("written");
            assert_eq!(world.next(), [1, 2, 3]);
        }
        // Somebody's export is answered before the server has left.
        world.here.lock().remove(&2);
        assert!(!list.forget(|cached| cached.is(2)), "it was here");
        list.write(|| world.look()).expect("written");
        assert_eq!(world.next(), [1, 3]);
        // And one that was left already is given up.
        assert!(list.forget(|cached| cached.name == "p1"));
        list.leave(3, || {
            world.here.lock().remove(&3);
        });
        list.write(|| world.look()).expect("written");
        assert_eq!(world.next(), [3]);
        // There is power again.
        assert_eq!(list.expect(), [pool("p3", 3)]);
        world.import(&list, 3);
        assert!(list.expect().is_empty());
        assert_eq!(world.next(), [3]);
    }

    /// Goal: of two that write at the same time the last has seen what both did. Method: a second
    /// one comes while the first has looked and not written yet; given time, it may not look.
    #[test]
    fn an_older_list_is_never_written_last() {
        let world = World::new();
        let list = PoolList::load(&world.state);
        world.import(&list, 1);
        world.import(&list, 2);
        let (looks, looked) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = || {
                let here = world.look();
                // The other one exports in the meantime.
                world.here.lock().remove(&2);
                scope.spawn(|| {
                    let second = || {
                        looks.send(()).expect("the first one listens");
                        world.look()
                    };
                    list.write(second).expect("written");
                });
                let early = looked.recv_timeout(Duration::from_millis(200));
                early.expect_err("both look at the same time");
                here
            };
            list.write(first).expect("written");
        });
        assert_eq!(world.next(), [1]);
    }

    #[test]
    fn a_pool_that_was_being_given_another_guid_is_the_same_one() {
        let world = World::new();
        let list = PoolList::load(&world.state);
        let both = CachedPool {
            next_guid: Some(8),
            ..pool("p7", 7)
        };
        let here = || {
            vec![Here {
                guid: 7,
                cached: Some(both.clone()),
            }]
        };
        list.write(here).expect("written");
        let list = PoolList::load(&world.state);
        assert_eq!(list.expect(), [both]);
        world.import(&list, 8);
        assert_eq!(world.next(), [8]);
    }

    #[test]
    fn a_list_that_is_not_understood_imports_nothing_stays_and_is_told() {
        let world = World::new();
        let path = world.state.directory().join("pools.json");
        for text in ["[{", r#"{"pools": []}"#, r#"[{"name": "a", "guid": "x"}]"#] {
            std::fs::write(&path, text).expect("a file");
            let list = PoolList::load(&world.state);
            assert!(list.expect().is_empty());
            world.here.lock().insert(1);
            list.write(|| world.look())
                .expect_err("it is not understood");
            list.leave(1, || {
                world.here.lock().remove(&1);
            });
            list.write(|| world.look())
                .expect_err("it is not understood");
            assert_eq!(std::fs::read_to_string(&path).expect("it"), text);
            let told = list.told(None);
            assert!(
                told.len() == 1 && told[0].contains("pools.json"),
                "{told:?}"
            );
            assert_eq!(list.told(Some("tank")), told);
            assert!(list.problem().is_some_and(|problem| !problem.is_read));
        }
    }

    #[test]
    fn why_a_pool_could_not_be_imported_is_told_until_it_is_here() {
        let world = World::new();
        let list = PoolList::load(&world.state);
        world.import(&list, 1);
        let list = PoolList::load(&world.state);
        assert!(list.told(None).is_empty() && list.not_imported().is_empty());
        let why = Failure::new(FailureKind::NotFound, "its disks are gone\nall of them");
        let told = list.could_not_be_imported(1, &why);
        assert!(told[0].contains("all of them"), "{told:?}");
        assert_eq!(list.told(Some("p1")), told);
        assert!(list.told(Some("p2")).is_empty());
        let short = ("p1".to_owned(), 1, "its disks are gone".to_owned());
        assert_eq!(list.not_imported(), [short]);
        world.import(&list, 1);
        assert!(list.told(None).is_empty() && list.not_imported().is_empty());
    }
}
