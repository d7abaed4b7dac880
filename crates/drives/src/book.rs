//! Which lights are to be on and which are, and where each device of a pool was last.
//!
//! Only what is on by us is ever switched off: an enclosure has opinions of its own. What is to be
//! on is stored before it is switched on, and forgotten after it is off, so a crash at any point
//! leaves nothing on that the next start does not know of.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use api::Guid;
use device::private::{self, FileError};
use serde::{Deserialize, Serialize};

use crate::lights::{Lamp, Lamps, Light};

/// For how long a device's place is remembered after it was last seen, in seconds.
const REMEMBERED_S: u64 = 400 * 24 * 3600;

/// What was known of the disk of a pool's device when it last worked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remembered {
    /// What the disk is known by.
    pub id: String,
    /// Path of the device.
    pub path: String,
    /// What it said that it was.
    pub model: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// The enclosure that it was in.
    pub enclosure: Option<String>,
    /// Where in it.
    pub bay: Option<String>,
    /// The lights there.
    pub lamp: Option<Lamp>,
    /// The pool.
    pub pool: Guid,
    /// When, in seconds since 1970, give or take a day.
    pub seen_s: u64,
}

/// Why a light is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
enum Why {
    /// A device of this pool failed.
    Failed { pool: Guid },
    /// Somebody wants to find it, until then.
    Wanted { until_s: Option<u64> },
    /// All are tested, until then at the latest.
    Tested { until_s: u64 },
    /// It is not: it has to be switched off still.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lit {
    lamp: Lamp,
    light: Light,
    #[serde(flatten)]
    why: Why,
    /// Whether it has been switched on for that.
    #[serde(default)]
    is_done: bool,
}

impl Lit {
    fn new(lamp: &Lamp, light: Light, why: Why) -> Self {
        Self {
            lamp: lamp.clone(),
            light,
            why,
            is_done: false,
        }
    }

    fn what(&self) -> (Lamp, Light) {
        (self.lamp.clone(), self.light)
    }
}

/// A bay whose disk failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its lights.
    pub lamp: Lamp,
    /// The pool that lacks it.
    pub pool: Guid,
}

/// The book.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Book {
    /// By the GUID of a pool's device.
    places: BTreeMap<String, Remembered>,
    lit: Vec<Lit>,
}

impl Book {
    /// Reads it; an empty one where there is none.
    ///
    /// # Errors
    /// When there is one that cannot be read, or is not understood.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Ok(private::read_json(path, "places and lights of disks")?.unwrap_or_default())
    }

    /// Writes it.
    ///
    /// # Errors
    /// Of the system.
    pub fn save(&self, path: &Path) -> Result<(), FileError> {
        private::write_json(path, self).map_err(FileError::write(path))
    }

    /// Remembers where a device of a pool is that works.
    pub fn remember(&mut self, device: Guid, place: Remembered) {
        const DAY_S: u64 = 24 * 3600;
        let key = device.to_string();
        if let Some(before) = self.places.get(&key) {
            let is_same = Remembered {
                seen_s: place.seen_s,
                ..before.clone()
            } == place;
            if is_same && place.seen_s.abs_diff(before.seen_s) < DAY_S {
                return;
            }
        }
        self.places.insert(key, place);
    }

    /// Where a device of a pool was when it last worked.
    pub fn place_of(&self, device: Guid) -> Option<&Remembered> {
        self.places.get(&device.to_string())
    }

    /// Forgets devices that their pools, which are imported, do not have any more, and those that
    /// nobody has seen for a year.
    pub fn forget(&mut self, imported: &[Guid], devices: &BTreeSet<Guid>, now_s: u64) {
        self.places.retain(|device, place| {
            let is_there = device
                .parse::<Guid>()
                .is_ok_and(|device| devices.contains(&device));
            let is_old = place.seen_s.saturating_add(REMEMBERED_S) < now_s;
            is_there || !imported.contains(&place.pool) && !is_old
        });
    }

    /// Whether a light is on by us.
    pub fn is_lit(&self, lamp: &Lamp, light: Light) -> bool {
        let mut lit = self.lit.iter();
        lit.any(|lit| lit.lamp == *lamp && lit.light == light && lit.why != Why::Nothing)
    }

    /// Notes that somebody wants to find a bay, or does not any more.
    pub fn locate(&mut self, lamp: &Lamp, on: bool, until_s: Option<u64>) {
        let is_that = |lit: &Lit| {
            lit.lamp == *lamp
                && lit.light == Light::Locate
                && matches!(lit.why, Why::Wanted { .. } | Why::Nothing)
        };
        let was_lit = self.lit.iter().any(is_that);
        self.lit.retain(|lit| !is_that(lit));
        let why = match on {
            true => Why::Wanted { until_s },
            false => Why::Nothing,
        };
        if on || was_lit {
            self.lit.push(Lit::new(lamp, Light::Locate, why));
        }
    }

    /// Notes that these lights are tested, until then at the latest.
    pub fn begin_test(&mut self, lights: &[(Lamp, Light)], until_s: u64) {
        let lights = lights.iter();
        self.lit
            .extend(lights.map(|(lamp, light)| Lit::new(lamp, *light, Why::Tested { until_s })));
    }

    /// Notes that nothing is tested any more.
    pub fn end_test(&mut self) {
        for lit in &mut self.lit {
            if matches!(lit.why, Why::Tested { .. }) {
                lit.why = Why::Nothing;
            }
        }
    }

    /// When a light has to go off by itself next, in seconds since 1970.
    pub fn next_s(&self) -> Option<u64> {
        let times = self.lit.iter().filter_map(|lit| match lit.why {
            Why::Wanted { until_s } => until_s,
            Why::Tested { until_s } => Some(until_s),
            Why::Failed { .. } | Why::Nothing => None,
        });
        times.min()
    }

    /// Switches what has to be switched, so that these bays are lit, and those that somebody wants
    /// to find. What pools are about that are `away` stays as it is. `store` is given the book
    /// before anything goes on, and after something has gone off. Blocks. What went wrong.
    ///
    /// # Errors
    /// Of `store`; then nothing more is switched.
    pub fn carry_out(
        &mut self,
        lamps: &Lamps,
        failed: &[Failed],
        away: &[Guid],
        now_s: u64,
        store: &mut dyn FnMut(&Self) -> Result<(), FileError>,
    ) -> Result<Vec<String>, FileError> {
        let before = self.lit.clone();
        let were_lit: BTreeSet<(Lamp, Light)> = before.iter().map(Lit::what).collect();
        self.lit.retain(|lit| match lit.why {
            Why::Failed { pool } => {
                let is_that = |bay: &Failed| bay.lamp == lit.lamp && bay.pool == pool;
                away.contains(&pool) || failed.iter().any(is_that)
            }
            Why::Wanted { until_s } => until_s.is_none_or(|until_s| now_s < until_s),
            Why::Tested { until_s } => now_s < until_s,
            Why::Nothing => false,
        });
        for Failed { lamp, pool } in failed {
            let why = Why::Failed { pool: *pool };
            let mut lit = self.lit.iter();
            if !lit.any(|lit| lit.lamp == *lamp && lit.light == Light::Fault && lit.why == why) {
                self.lit.push(Lit::new(lamp, Light::Fault, why));
            }
        }
        let wanted: BTreeSet<(Lamp, Light)> = self.lit.iter().map(Lit::what).collect();
        let leaving = were_lit.difference(&wanted);
        self.lit
            .extend(leaving.map(|(lamp, light)| Lit::new(lamp, *light, Why::Nothing)));
        if self.lit != before || self.lit.iter().any(|lit| !lit.is_done) {
            store(self)?;
        }
        let mut problems = Vec::new();
        let mut has_changed = false;
        let is_wanted = |lamp: &Lamp, light| wanted.contains(&(lamp.clone(), light));
        for (lamp, light) in &wanted {
            // One that somebody else put out, or that lost its power, goes on again.
            let is_that = |lit: &&mut Lit| lit.lamp == *lamp && lit.light == *light;
            let is_on = match lamps.is_on(lamp, *light) {
                Ok(Some(is_on)) => is_on,
                _ => {
                    let mut lit = self.lit.iter_mut().filter(is_that);
                    lit.all(|lit| lit.is_done)
                }
            };
            if !is_on {
                let other = is_wanted(lamp, other(*light));
                if let Err(error) = lamps.switch(lamp, *light, true, other) {
                    problems.push(format!("{}: cannot be lit: {error}", lamp.place()));
                    continue;
                }
            }
            for lit in self.lit.iter_mut().filter(is_that) {
                has_changed |= !lit.is_done;
                lit.is_done = true;
            }
        }
        self.lit.retain(|lit| {
            if lit.why != Why::Nothing {
                return true;
            }
            let other = is_wanted(&lit.lamp, other(lit.light));
            match lamps.switch(&lit.lamp, lit.light, false, other) {
                Ok(()) => {}
                // With the enclosure, or the disk, the light is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let place = lit.lamp.place();
                    problems.push(format!("{place}: its light cannot be put out: {error}"));
                    return true;
                }
            }
            has_changed = true;
            false
        });
        if has_changed {
            store(self)?;
        }
        Ok(problems)
    }
}

fn other(light: Light) -> Light {
    match light {
        Light::Fault => Light::Locate,
        Light::Locate => Light::Fault,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::tree::Tree;

    const POOL: Guid = Guid(7);

    /// Three bays, and a book on disk.
    struct Rig {
        tree: Tree,
        lamps: Lamps,
        path: PathBuf,
        book: Book,
    }

    impl Rig {
        fn new() -> Self {
            let tree = Tree::new();
            for slot in ["1", "2", "3"] {
                tree.slot("6:0:24:0", slot);
            }
            Self {
                lamps: Lamps::of_tree(tree.sysfs(), None),
                path: tree.path("lights.json"),
                tree,
                book: Book::default(),
            }
        }

        fn carry_out(&mut self, failed: &[&str], away: &[Guid], now_s: u64) -> Vec<String> {
            let failed: Vec<Failed> = failed
                .iter()
                .map(|slot| Failed {
                    lamp: lamp(slot),
                    pool: POOL,
                })
                .collect();
            let path = self.path.clone();
            let store = &mut |book: &Book| book.save(&path);
            let done = self
                .book
                .carry_out(&self.lamps, &failed, away, now_s, store);
            done.expect("stored")
        }

        /// What is on disk after a crash.
        fn restart(&mut self) {
            self.book = Book::load(&self.path).expect("a book");
        }

        fn is(&self, slot: &str, light: &str) -> String {
            self.tree
                .read(&format!("class/enclosure/6:0:24:0/{slot}/{light}"))
        }
    }

    fn lamp(slot: &str) -> Lamp {
        Lamp::Enclosure {
            enclosure: "6:0:24:0".into(),
            component: slot.into(),
        }
    }

    #[test]
    fn a_failed_disk_is_lit_until_it_is_replaced() {
        let mut rig = Rig::new();
        assert!(rig.carry_out(&["2"], &[], 1000).is_empty());
        assert_eq!([rig.is("1", "fault"), rig.is("2", "fault")], ["0", "1"]);
        assert!(rig.book.is_lit(&lamp("2"), Light::Fault));
        // Somebody else puts it out, or its power was off.
        rig.tree.write("class/enclosure/6:0:24:0/2/fault", "0\n");
        rig.carry_out(&["2"], &[], 1060);
        assert_eq!(rig.is("2", "fault"), "1");
        rig.restart();
        // Nothing has changed, so nothing is written.
        std::fs::remove_file(&rig.path).expect("removed");
        rig.carry_out(&["2"], &[], 1090);
        assert!(!rig.path.exists());
        rig.carry_out(&["2", "3"], &[], 1120);
        assert_eq!(rig.is("3", "fault"), "1");
        rig.restart();
        rig.carry_out(&["3"], &[], 1180);
        assert_eq!([rig.is("2", "fault"), rig.is("3", "fault")], ["0", "1"]);
        rig.carry_out(&[], &[], 1240);
        assert_eq!(rig.is("3", "fault"), "0");
        rig.restart();
        assert!(rig.book.lit.is_empty());
    }

    #[test]
    fn lights_of_pools_that_are_away_stay_as_they_are() {
        let mut rig = Rig::new();
        rig.carry_out(&["1"], &[], 1000);
        rig.restart();
        rig.carry_out(&[], &[POOL], 1060);
        assert_eq!(rig.is("1", "fault"), "1");
        rig.carry_out(&[], &[], 1120);
        assert_eq!(rig.is("1", "fault"), "0");
    }

    #[test]
    fn what_others_lit_is_left_alone() {
        let mut rig = Rig::new();
        rig.tree.write("class/enclosure/6:0:24:0/1/fault", "1\n");
        rig.book.locate(&lamp("1"), false, None);
        rig.carry_out(&[], &[], 1000);
        assert_eq!(rig.is("1", "fault"), "1");
    }

    #[test]
    fn a_bay_is_shown_for_a_time_or_until_it_is_found() {
        let mut rig = Rig::new();
        rig.book.locate(&lamp("1"), true, Some(2000));
        rig.book.locate(&lamp("2"), true, None);
        rig.carry_out(&[], &[], 1000);
        assert_eq!([rig.is("1", "locate"), rig.is("2", "locate")], ["1", "1"]);
        assert_eq!(rig.book.next_s(), Some(2000));
        rig.restart();
        rig.carry_out(&[], &[], 2000);
        assert_eq!([rig.is("1", "locate"), rig.is("2", "locate")], ["0", "1"]);
        // Asked for again before it is over.
        rig.book.locate(&lamp("2"), true, Some(3000));
        rig.carry_out(&[], &[], 2500);
        assert_eq!(rig.is("2", "locate"), "1");
        rig.book.locate(&lamp("2"), false, None);
        rig.carry_out(&[], &[], 2600);
        assert_eq!(rig.is("2", "locate"), "0");
        assert!(rig.book.lit.is_empty());
    }

    #[test]
    fn a_test_that_a_crash_ended_leaves_nothing_on() {
        let mut rig = Rig::new();
        rig.carry_out(&["1"], &[], 1000);
        let lights: Vec<_> = ["1", "2"]
            .iter()
            .flat_map(|slot| Light::ALL.map(|light| (lamp(slot), light)))
            .collect();
        rig.book.begin_test(&lights, 1010);
        rig.carry_out(&["1"], &[], 1000);
        assert_eq!([rig.is("2", "fault"), rig.is("2", "locate")], ["1", "1"]);
        rig.restart();
        rig.carry_out(&["1"], &[], 1010);
        assert_eq!([rig.is("2", "fault"), rig.is("2", "locate")], ["0", "0"]);
        assert_eq!([rig.is("1", "fault"), rig.is("1", "locate")], ["1", "0"]);
    }

    #[test]
    fn a_light_that_cannot_be_put_out_is_tried_again() {
        let mut rig = Rig::new();
        rig.carry_out(&["1"], &[], 1000);
        // Nothing can be written to a directory, and it is not missing either.
        let file = rig.tree.path("class/enclosure/6:0:24:0/1/fault");
        let is_root_proof = || {
            std::fs::remove_file(&file).expect("removed");
            std::os::unix::fs::symlink("/proc/version", &file).expect("linked");
        };
        is_root_proof();
        let problems = rig.carry_out(&[], &[], 1060);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(!rig.book.is_lit(&lamp("1"), Light::Fault));
        std::fs::remove_file(&file).expect("removed");
        rig.tree.write("class/enclosure/6:0:24:0/1/fault", "1\n");
        rig.restart();
        assert!(rig.carry_out(&[], &[], 1120).is_empty());
        assert_eq!(rig.is("1", "fault"), "0");
        // An enclosure that is gone has no lights to put out.
        rig.carry_out(&["2"], &[], 1180);
        std::fs::remove_dir_all(rig.tree.path("class/enclosure/6:0:24:0")).expect("removed");
        assert!(rig.carry_out(&[], &[], 1240).is_empty());
        assert!(rig.book.lit.is_empty());
    }

    /// Nobody can see what `ledctl` has done: it is noted.
    #[test]
    fn what_ledctl_did_is_done_once() {
        use std::os::unix::fs::PermissionsExt;

        let mut rig = Rig::new();
        let program = rig.tree.path("ledctl");
        let script = "#!/bin/sh\necho \"$2\" >> \"$0.words\"\n";
        std::fs::write(&program, script).expect("written");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, all).expect("allowed");
        rig.lamps = Lamps::of_tree(rig.tree.sysfs(), Some(program));
        let lamp = Lamp::Ledctl {
            device: "/dev/null".into(),
        };
        rig.book.locate(&lamp, true, None);
        for now_s in [1000, 1060] {
            rig.carry_out(&[], &[], now_s);
            rig.restart();
        }
        rig.book.locate(&lamp, false, None);
        for now_s in [1120, 1180] {
            rig.carry_out(&[], &[], now_s);
            rig.restart();
        }
        assert_eq!(
            rig.tree.read("ledctl.words"),
            "locate=/dev/null\nnormal=/dev/null"
        );
    }

    #[test]
    fn nothing_is_switched_that_could_not_be_noted() {
        let mut rig = Rig::new();
        let failed = [Failed {
            lamp: lamp("1"),
            pool: POOL,
        }];
        let store = &mut |book: &Book| book.save(Path::new("/proc/none/lights.json"));
        let done = rig.book.carry_out(&rig.lamps, &failed, &[], 1000, store);
        assert!(done.is_err());
        assert_eq!(rig.is("1", "fault"), "0");
    }

    #[test]
    fn places_are_kept_while_somebody_may_ask() {
        let place = |seen_s, bay: &str| Remembered {
            id: "A".into(),
            bay: Some(bay.into()),
            pool: POOL,
            seen_s,
            ..Remembered::default()
        };
        let mut book = Book::default();
        book.remember(Guid(1), place(1000, "1"));
        book.remember(Guid(1), place(1060, "1"));
        assert_eq!(book.place_of(Guid(1)), Some(&place(1000, "1")));
        book.remember(Guid(1), place(1060, "2"));
        assert_eq!(book.place_of(Guid(1)), Some(&place(1060, "2")));
        book.forget(&[POOL], &BTreeSet::from([Guid(1)]), u64::MAX);
        // Exported, or not imported yet.
        book.forget(&[], &BTreeSet::new(), 2000);
        assert!(book.place_of(Guid(1)).is_some());
        book.forget(&[POOL], &BTreeSet::new(), 2000);
        assert!(book.place_of(Guid(1)).is_none());
    }
}
