//! Which disks are not to be trusted, and which may still fail.

use std::collections::{BTreeMap, VecDeque};

use device::sim::{PowerCut, SimDisk, SimWorld};
use format::Txg;
use pool::{Pool, ScanFunction, ScanState, VdevState, VdevStatus};

use super::plan::Plan;
use crate::rng::Rng;
use crate::verify::Failure;

/// What is remembered of what happened.
const STORY_MAX: usize = 400;

/// What is wrong with a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It is away, and comes back.
    Gone,
    /// It is away for good.
    Dead,
    /// It fails, lies or is slow.
    Faulty,
    /// A person took it out of use.
    Offline,
}

/// How far a disk can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It has everything.
    Whole,
    /// It does not work, or not well.
    Failed(Trouble),
    /// Nothing is wrong with it any more, but it may not have everything: until the pool says that
    /// it has, in a txg that is on disk.
    Mending {
        /// The txg that was on disk when the pool first said so.
        said_at: Option<Txg>,
    },
}

/// A disk that was a part of the pool at some time.
#[derive(Debug)]
struct Entry {
    condition: Condition,
    /// It may have wrong blocks, which only a scrub finds that begins after this many seconds.
    suspect_s: Option<u64>,
    /// Such a scrub has ended; it counts once that is on disk.
    is_scrubbed: bool,
    /// Its errors were cleared since it was mended; else it may be faulted for them later.
    is_cleared: bool,
    /// How often it was mended.
    mended: u64,
    /// It is one of the pool's spares.
    is_spare: bool,
}

/// The disks of a run.
pub struct Disks {
    sim: SimWorld,
    plan: Plan,
    entries: BTreeMap<String, Entry>,
    /// The vdevs, when they were last looked at.
    tops: Vec<VdevStatus>,
    /// New disks have numbers.
    names: u64,
    story: VecDeque<String>,
    counts: BTreeMap<&'static str, u64>,
    /// Somebody is changing the tree: what is known of it may not be so.
    pub is_changing: bool,
}

/// The disks below a vdev.
pub fn leaves(vdev: &VdevStatus) -> Vec<&VdevStatus> {
    match vdev.children.is_empty() {
        true => vec![vdev],
        false => vdev.children.iter().flat_map(leaves).collect(),
    }
}

/// Whether it is a disk; distributed spares are room on others.
fn is_disk(leaf: &&VdevStatus) -> bool {
    leaf.kind != "dspare"
}

/// The disks below a vdev that are there for longer: one that was replaced may go at any time.
fn lasting(vdev: &VdevStatus) -> Vec<&VdevStatus> {
    let all = leaves(vdev);
    match (vdev.kind.as_str(), all.last()) {
        ("replacing", Some(newest)) if !newest.is_stale => vec![*newest],
        _ => all,
    }
}

/// Whether a disk below a vdev lacks something.
pub fn is_any_stale(vdev: &VdevStatus) -> bool {
    leaves(vdev).iter().any(|leaf| leaf.is_stale)
}

/// How many children of a top-level vdev may be without a whole disk.
fn parity(top: &VdevStatus) -> usize {
    match top.kind.as_str() {
        "mirror" => top.children.len() - 1,
        "raidz" | "draid" => top.parity.into(),
        _ => 0,
    }
}

fn path(leaf: &VdevStatus) -> String {
    leaf.path.clone().unwrap_or_default()
}

impl Disks {
    /// The disks of a new pool: all whole.
    pub fn new(sim: &SimWorld, plan: &Plan, pool: &Pool) -> Self {
        let mut disks = Disks {
            sim: sim.clone(),
            plan: *plan,
            entries: BTreeMap::new(),
            tops: pool.status().root.children,
            names: 0,
            story: VecDeque::new(),
            counts: BTreeMap::new(),
            is_changing: false,
        };
        for name in sim.disk_names() {
            disks.enter(&name, Condition::Whole);
        }
        disks
    }

    fn enter(&mut self, name: &str, condition: Condition) {
        self.entries.insert(
            name.to_owned(),
            Entry {
                condition,
                suspect_s: None,
                is_scrubbed: false,
                is_cleared: true,
                mended: 0,
                is_spare: false,
            },
        );
    }

    /// Makes a spare, which has nothing until it stands in.
    pub fn add_spare(&mut self) -> String {
        let name = self.add();
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.is_spare = true;
        }
        name
    }

    /// Whether a disk is one of the pool's spares.
    pub fn is_spare(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.is_spare)
    }

    /// Makes a disk that is as big as the others.
    pub fn add(&mut self) -> String {
        self.names += 1;
        let name = format!("new{}", self.names);
        let disk = self.sim.add_disk(&name, self.plan.disk_mib << 20);
        disk.set_sector_bytes(if self.plan.small_sectors { 512 } else { 4096 });
        self.enter(&name, Condition::Mending { said_at: None });
        name
    }

    /// Seconds of the wall clock.
    fn now_s(&self) -> u64 {
        self.sim.world().clock.wall_ns() / 1_000_000_000
    }

    /// Notes what happened, for people.
    pub fn tell(&mut self, what: impl std::fmt::Display) {
        let line = format!("{:9.3} {what}", self.sim.elapsed().as_secs_f64());
        if std::env::var_os("MILLPOND_STORY").is_some() {
            eprintln!("{line}");
        }
        self.story.push_back(line);
        if self.story.len() > STORY_MAX {
            self.story.pop_front();
        }
    }

    /// Counts something that happened.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// How often what happened.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// What happened, and how the disks are.
    pub fn story(&self) -> String {
        let mut out: Vec<String> = self.story.iter().cloned().collect();
        for (name, entry) in &self.entries {
            out.push(format!("{name}: {entry:?}"));
        }
        for top in &self.tops {
            out.push(shape(top));
        }
        out.join("\n")
    }

    /// The disk.
    pub fn disk(&self, name: &str) -> Option<SimDisk> {
        self.sim.disk(name)
    }

    /// What is known of a disk.
    pub fn condition(&self, name: &str) -> Condition {
        match self.entries.get(name) {
            Some(entry) => entry.condition,
            None => Condition::Failed(Trouble::Dead),
        }
    }

    /// Whether a disk has everything, and nothing wrong.
    fn is_whole(&self, name: &str) -> bool {
        self.entries
            .get(name)
            .is_some_and(|entry| entry.condition == Condition::Whole && entry.suspect_s.is_none())
    }

    /// Those of the pool's disks of which this is true.
    pub fn which(&self, is: impl Fn(Condition) -> bool) -> Vec<String> {
        let leaves = self.tops.iter().flat_map(leaves);
        let names = leaves.filter(is_disk).map(path);
        names.filter(|name| is(self.condition(name))).collect()
    }

    /// The pool's disks that may fail now.
    pub fn victims(&self) -> Vec<String> {
        if self.is_changing {
            // A disk that was just made may fail, whatever becomes of it.
            return Vec::new();
        }
        self.which(|condition| !matches!(condition, Condition::Failed(_)))
            .into_iter()
            .filter(|name| self.may_fail(name))
            .collect()
    }

    /// Whether the pool can do without a disk, besides those that failed already.
    pub fn may_fail(&self, name: &str) -> bool {
        self.may_lack(name, false)
    }

    /// The same of a disk that says that all is well: the one that it replaces is let go.
    pub fn may_lie(&self, name: &str) -> bool {
        self.may_lack(name, true)
    }

    fn may_lack(&self, name: &str, silently: bool) -> bool {
        let is_suspect = |name: &str| {
            let entry = self.entries.get(name);
            entry.is_some_and(|entry| entry.suspect_s.is_some())
        };
        self.tops.iter().all(|top| {
            let lacking = top.children.iter().filter(|child| {
                let mut counted = lasting(child);
                let newest = leaves(child).into_iter().rfind(is_disk).map(path);
                let lies = |newest: &String| is_suspect(newest) || silently && newest == name;
                if newest.as_ref().is_some_and(lies) {
                    counted.retain(|leaf| Some(path(leaf)) == newest);
                }
                // The spare goes when the pool thinks that the device in front of it has all.
                let first = leaves(child).first().map(|leaf| path(leaf));
                let is_lied_to = |name_: &String| is_suspect(name_) || silently && name_ == name;
                if child.kind == "spare" && first.as_ref().is_some_and(is_lied_to) {
                    return true;
                }
                // Below RAID-Z one of them is read, and nobody can tell that it is the wrong one.
                let is_below_parity = top.kind != "mirror" && !child.children.is_empty();
                let mut all = leaves(child).into_iter().map(path);
                if is_below_parity && all.any(|leaf| is_suspect(&leaf) || silently && leaf == name)
                {
                    return true;
                }
                let mut counted = counted.into_iter().map(path);
                !counted.any(|leaf| leaf != name && self.is_whole(&leaf))
            });
            lacking.count() <= parity(top)
        })
    }

    /// The disk to be replaced, of each child of a top-level vdev whose newest disk, spares left
    /// aside, is dead.
    pub fn to_replace(&self) -> Vec<String> {
        let children = self.tops.iter().flat_map(|top| &top.children);
        let newest = children.filter_map(|child| {
            let mut own = leaves(child).into_iter().filter(is_disk).map(path);
            own.rfind(|name| !self.is_spare(name))
        });
        newest
            .filter(|name| self.condition(name) == Condition::Failed(Trouble::Dead))
            .collect()
    }

    /// Whether a disk is taking another one's place.
    pub fn is_replacing(&self) -> bool {
        let mut children = self.tops.iter().flat_map(|top| &top.children);
        children.any(|child| !child.children.is_empty())
    }

    /// Top-level vdevs.
    pub fn tops(&self) -> &[VdevStatus] {
        &self.tops
    }

    /// Something is wrong with a disk from now on.
    pub fn fails(&mut self, name: &str, trouble: Trouble) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.condition = Condition::Failed(trouble);
        }
    }

    /// A disk may have wrong blocks until a scrub that begins later has ended.
    pub fn suspect(&mut self, name: &str) {
        let now_s = self.now_s();
        if let Some(entry) = self.entries.get_mut(name) {
            entry.suspect_s = Some(now_s);
            entry.is_scrubbed = false;
        }
    }

    /// Nothing is wrong with a disk any more; it may lack something.
    pub fn mends(&mut self, name: &str) {
        let now_s = self.now_s();
        if let Some(entry) = self.entries.get_mut(name) {
            entry.condition = Condition::Mending { said_at: None };
            entry.is_cleared = false;
            entry.mended += 1;
            // A scrub that ran meanwhile could not repair it.
            if entry.suspect_s.is_some() {
                entry.suspect_s = Some(now_s);
                entry.is_scrubbed = false;
            }
        }
    }

    /// Whether a scrub is needed.
    pub fn has_suspects(&self) -> bool {
        let leaves = self.tops.iter().flat_map(leaves).map(path);
        let mut entries = leaves.filter_map(|name| self.entries.get(&name));
        entries.any(|entry| entry.suspect_s.is_some() && !entry.is_scrubbed)
    }

    /// Disks that have everything, and count errors; with how often they were mended.
    pub fn to_clear(&self) -> Vec<(String, u64)> {
        let ready = self.entries.iter().filter(|(_, entry)| {
            let has_all = matches!(entry.condition, Condition::Mending { said_at: Some(_) });
            has_all && !entry.is_cleared
        });
        let ready = ready.map(|(name, entry)| (name.clone(), entry.mended));
        ready.collect()
    }

    /// A disk's errors were cleared, which was mended that often then.
    pub fn cleared(&mut self, name: &str, mended: u64) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.is_cleared |= entry.mended == mended;
        }
    }

    /// Whether every disk of the pool has everything.
    pub fn are_whole(&self) -> bool {
        let mut leaves = self.tops.iter().flat_map(leaves).map(path);
        leaves.all(|name| self.is_whole(&name))
    }

    /// The pool's disks that a person took out of use, as it says now.
    pub fn offline(&self, pool: &Pool) -> Vec<String> {
        let tops = pool.status().root.children;
        let leaves = tops.iter().flat_map(leaves);
        let is_offline = |leaf: &&VdevStatus| leaf.state == VdevState::Offline;
        leaves.filter(is_offline).map(path).collect()
    }

    /// Looks at the pool.
    ///
    /// # Errors
    /// When it is suspended, or a scan says that something is lost.
    pub fn observe(&mut self, pool: &Pool) -> Result<(), Failure> {
        let status = pool.status();
        if let Some(why) = status.suspended_why {
            return Err(format!("the pool is suspended: {why}").into());
        }
        self.tops = status.root.children;
        let mut scrubbed_s = None;
        if let Some(scan) = pool.scans().scrub_status() {
            if scan.errors > 0 {
                return Err(format!("a scan says that something is lost: {scan:?}").into());
            }
            let is_done = scan.state == ScanState::Finished;
            if is_done && scan.function == ScanFunction::Scrub {
                scrubbed_s = Some(scan.start_time_s);
            }
        }
        let synced = pool.synced_txg();
        let now_s = self.now_s();
        let leaves: Vec<VdevStatus> = (self.tops.iter().flat_map(leaves)).cloned().collect();
        for (name, entry) in &mut self.entries {
            let is_here = leaves.iter().any(|leaf| path(leaf) == *name);
            if entry.is_spare && !is_here && entry.condition == Condition::Whole {
                entry.condition = Condition::Mending { said_at: None };
            }
        }
        for leaf in leaves.iter().filter(is_disk) {
            let name = path(leaf);
            let Some(entry) = self.entries.get_mut(&name) else {
                return Err(format!("nobody knows disk {name}").into());
            };
            let Condition::Mending { said_at } = &mut entry.condition else {
                continue;
            };
            let works = matches!(leaf.state, VdevState::Online | VdevState::Degraded);
            if !works && entry.suspect_s.is_some() {
                // A scrub does not look at it.
                entry.suspect_s = Some(now_s);
                entry.is_scrubbed = false;
            }
            entry.is_scrubbed |= entry
                .suspect_s
                .is_none_or(|since| scrubbed_s.is_some_and(|scrubbed| scrubbed > since));
            if !works || leaf.is_stale || !entry.is_scrubbed {
                *said_at = None;
                continue;
            }
            let said = *said_at.get_or_insert(synced);
            if synced > said.next() && entry.is_cleared {
                entry.condition = Condition::Whole;
                entry.suspect_s = None;
                entry.is_scrubbed = false;
                self.tell(format_args!("{name} is whole"));
            }
        }
        Ok(())
    }

    /// The machine starts again: disks may have been pulled out or put back meanwhile.
    pub fn power_is_back(&mut self, rng: &mut Rng) {
        self.tell("the power was cut");
        self.count("power cut");
        for name in self.which(|condition| condition != Condition::Whole) {
            let Some(disk) = self.disk(&name) else {
                continue;
            };
            match self.condition(&name) {
                Condition::Mending { .. } => self.mends(&name),
                Condition::Failed(Trouble::Dead) => disk.set_gone(true),
                Condition::Failed(Trouble::Gone | Trouble::Faulty) if rng.percent(50) => {
                    disk.clear_faults();
                    disk.set_gone(false);
                    self.tell(format_args!("{name} works when the power is back"));
                    self.mends(&name);
                }
                _ => {}
            }
        }
        // Imports are refused where the end of a log could not be read, or a device stopped working
        // meanwhile: nothing fails during them.
        for name in self.sim.disk_names() {
            if let Some(disk) = self.disk(&name) {
                disk.make_all_readable();
                disk.clear_faults();
            }
        }
        while rng.percent(30) {
            let mut victims = self.victims();
            // A replacement may have ended since that was looked at.
            let slots = self.tops.iter().flat_map(|top| &top.children);
            for slot in slots.filter(|slot| !slot.children.is_empty()) {
                let below: Vec<String> = leaves(slot).into_iter().map(path).collect();
                victims.retain(|name| !below.contains(name));
            }
            let victim = rng.pick(&victims);
            let Some(name) = victim else { break };
            if let Some(disk) = self.disk(&name) {
                disk.set_gone(true);
            }
            self.tell(format_args!("{name} is gone when the power is back"));
            self.count("gone with the power");
            self.fails(&name, Trouble::Gone);
        }
        // What was being changed happened or did not.
        self.is_changing = false;
    }

    /// Empties the disks that are no part of the pool any more.
    pub fn forget_strangers(&self) {
        let used = self.which(|_| true);
        for name in self.sim.disk_names() {
            if !used.contains(&name) {
                self.sim.add_disk(&name, 1 << 20);
            }
        }
    }

    /// A disk that is away loses what is in its cache.
    pub fn lose_cache(&self, name: &str) {
        if let Some(disk) = self.disk(name) {
            disk.lose_cache(PowerCut::Random);
        }
    }
}

/// A vdev in one line.
pub fn shape(vdev: &VdevStatus) -> String {
    let below: Vec<String> = vdev.children.iter().map(shape).collect();
    let errors = (vdev.read_errors, vdev.write_errors, vdev.checksum_errors);
    match below.is_empty() {
        true => format!(
            "{}[{}{}{}]",
            vdev.name,
            vdev.state.word(),
            if vdev.is_stale { " stale" } else { "" },
            match errors {
                (0, 0, 0) => String::new(),
                errors => format!(" {errors:?}"),
            }
        ),
        false => format!("{}({})", vdev.kind, below.join(" ")),
    }
}
