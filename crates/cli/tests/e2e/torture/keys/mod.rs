//! Encrypted datasets of two pools under administration of their keys, raw streams between them,
//! and the kill of their server.
//!
//! The model knows of each filesystem its files (as fsync acknowledged them) and which user's key
//! opens it. Which encryption root a filesystem has is the pool's to say, as far as the model has
//! no opinion; but all that have one root must have one key. Oracles: after a kill no key is
//! loaded; each root's key opens it and all that has this root, is the only one that is needed, and
//! any other one is refused as a wrong key; every file of every filesystem and snapshot; a scrub
//! that finds nothing, and zdb. While keys are not loaded yet, and logs wait for them, datasets are
//! renamed, sent, rolled back and destroyed.

mod compare;
mod listed;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sim::rng::Rng;

use self::listed::{COLUMNS, Listed, Secret, format, material};
use super::contents::{self, Files};
use super::shell::{Result, Shell, Stop};
use crate::harness::Server;

/// Rounds of a story: each ends with a kill.
const ROUNDS: u64 = 4;

/// Most filesystems, and most snapshots of each.
const FILESYSTEMS_MAX: usize = 12;
const SNAPSHOTS_MAX: usize = 8;

const POOLS: [&str; 2] = ["tank", "back"];

/// What the model knows of a filesystem.
#[derive(Debug, Clone, Default)]
struct Known {
    files: Files,
    /// The key that opens it; none where it is not encrypted.
    secret: Option<Secret>,
}

/// What may have happened to the operation that was under way at the kill.
#[derive(Debug, Default)]
struct Doubt {
    words: String,
    /// A filesystem whose files may already be these, all at once or one by one.
    files: Option<(u64, Files, bool)>,
    /// Datasets may have come; snapshots with these files, filesystems with this key.
    comes: Option<(Files, Option<Secret>)>,
    /// Datasets may have gone.
    goes: bool,
    /// Names and encryption roots may have moved.
    moves: bool,
    /// These filesystems may have this key already.
    secret: Option<(HashSet<u64>, Secret)>,
}

struct Worker {
    rng: Rng,
    shell: Shell,
    /// Where filesystems are mounted, and where files with keys are.
    mounts: PathBuf,
    keys: PathBuf,
    known: HashMap<u64, Known>,
    /// Files of snapshots: sent ones have the GUID of what they are copies of.
    snapshots: HashMap<u64, Files>,
    /// What there was after the last operation.
    listed: Vec<Listed>,
    doubt: Doubt,
    /// Number for the next name or key.
    next: u64,
    done: u64,
}

impl Worker {
    fn list(&mut self) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for pool in POOLS {
            let words = format!("zfs list -Hp -r -t filesystem,snapshot -o {COLUMNS} {pool}");
            let text = self.shell.ok(&words)?;
            self.shell.story.pop();
            listed.extend(text.lines().filter_map(Listed::parse));
        }
        // Roots of pools are there to have others below them.
        listed.retain(|one| !POOLS.contains(&one.name.as_str()));
        Ok(listed)
    }

    fn filesystems(&self, filter: impl Fn(&Listed) -> bool) -> Vec<Listed> {
        let all = self.listed.iter().filter(|one| !one.is_snapshot());
        all.filter(|one| filter(one)).cloned().collect()
    }

    fn filesystem(&self, name: &str) -> Option<Listed> {
        self.listed.iter().find(|one| one.name == name).cloned()
    }

    fn pick(&mut self, filter: impl Fn(&Listed) -> bool) -> Option<Listed> {
        let all = self.filesystems(filter);
        self.rng.pick(&all)
    }

    fn pick_snapshot(&mut self) -> Option<Listed> {
        let all = self.listed.iter().filter(|one| one.is_snapshot());
        let all: Vec<_> = all.cloned().collect();
        self.rng.pick(&all)
    }

    fn of_root(&self, root: &str) -> Vec<Listed> {
        self.filesystems(|one| one.root.as_deref() == Some(root))
    }

    fn secret_of(&self, one: &Listed) -> Option<Secret> {
        self.known.get(&one.guid).and_then(|known| known.secret)
    }

    /// Filesystems whose blocks have the same key as this one: its clones and what it is one of.
    fn family(&self, name: &str) -> HashSet<u64> {
        let all = self.filesystems(|_| true);
        let mut names = BTreeSet::from([name.to_owned()]);
        loop {
            let before = names.len();
            for one in &all {
                let origin = one.origin.as_ref().and_then(|at| at.split('@').next());
                if let Some(origin) = origin
                    && (names.contains(origin) || names.contains(&one.name))
                {
                    names.insert(origin.to_owned());
                    names.insert(one.name.clone());
                }
            }
            if names.len() == before {
                break;
            }
        }
        let ours = all.iter().filter(|one| names.contains(&one.name));
        ours.map(|one| one.guid).collect()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Where a new filesystem is mounted: each has a place of its own, not below another one.
    fn place(&mut self) -> String {
        let number = self.number();
        self.mounts.join(format!("m{number}")).display().to_string()
    }

    /// A name that is free, below a pool or a filesystem; and what that is.
    fn new_name(&mut self, pool: Option<&str>) -> (String, Option<Listed>) {
        let is_here = |one: &Listed| {
            pool.is_none_or(|pool| one.pool() == pool) && one.name.matches('/').count() < 4
        };
        let number = self.number();
        match self.pick(is_here) {
            Some(above) if self.rng.percent(60) => {
                (format!("{}/f{number}", above.name), Some(above))
            }
            _ => {
                let pool = pool.unwrap_or_else(|| self.rng.pick(&POOLS).unwrap_or("tank"));
                (format!("{pool}/f{number}"), None)
            }
        }
    }

    /// A new key: its number, the words that give it, and what is to be typed in.
    fn new_secret(&mut self) -> (Secret, String, Vec<u8>) {
        let secret = self.number();
        let file = self.keys.join(format!("k{secret}"));
        fs::write(&file, material(secret)).expect("a file with a key");
        let mut words = format!("-o keyformat={}", format(secret));
        if format(secret) == "passphrase" {
            words.push_str(" -o pbkdf2iters=100000");
        }
        match self.rng.percent(50) {
            true => {
                words.push_str(&format!(" -o keylocation=file://{}", file.display()));
                (secret, words, Vec::new())
            }
            false => (secret, words + " -o keylocation=prompt", material(secret)),
        }
    }

    fn begin(&mut self, words: &str) -> &mut Doubt {
        self.doubt = Doubt {
            words: words.to_owned(),
            ..Doubt::default()
        };
        &mut self.doubt
    }

    /// Looks at what there is after an operation; what has gone is forgotten.
    fn look(&mut self) -> Result<()> {
        self.listed = self.list()?;
        let there: HashSet<u64> = self.listed.iter().map(|one| one.guid).collect();
        self.known.retain(|guid, _| there.contains(guid));
        self.snapshots.retain(|guid, _| there.contains(guid));
        for one in &self.listed {
            let is_known = match one.is_snapshot() {
                true => self.snapshots.contains_key(&one.guid),
                false => self.known.contains_key(&one.guid),
            };
            if !is_known {
                return Err(Stop::Failed(format!("{} came from nowhere", one.name)));
            }
        }
        self.one_key_for_each_root().map_err(Stop::Failed)
    }

    /// Notes what has come by name.
    fn note(&mut self, name: &str, known: Known) -> Result<()> {
        let guid = self
            .shell
            .ok(&format!("zfs get -Hp -o value guid {name}"))?;
        let guid = guid.trim().parse();
        let guid = guid.map_err(|_| Stop::Failed(format!("the GUID of {name}")))?;
        match name.contains('@') {
            true => drop(self.snapshots.insert(guid, known.files)),
            false => drop(self.known.insert(guid, known)),
        }
        Ok(())
    }

    fn one_key_for_each_root(&self) -> Result<(), String> {
        let mut roots: BTreeMap<&str, (Secret, &str)> = BTreeMap::new();
        for one in self.listed.iter().filter(|one| !one.is_snapshot()) {
            match (&one.root, self.secret_of(one)) {
                (None, None) => {}
                (Some(root), Some(secret)) => {
                    let (other, name) = roots.entry(root).or_insert((secret, &one.name));
                    if *other != secret {
                        return Err(format!(
                            "{} is opened by key {secret}, {name} by key {other}, and both have \
                             the encryption root {root}",
                            one.name
                        ));
                    }
                }
                (root, secret) => {
                    let name = &one.name;
                    return Err(format!("{name}: encryption root {root:?}, key {secret:?}"));
                }
            }
        }
        Ok(())
    }

    /// Demands that a filesystem has this encryption root.
    fn has_root(&self, name: &str, root: Option<&str>) -> Result<()> {
        let found = self.filesystem(name);
        let found = found.ok_or_else(|| Stop::Failed(format!("{name} is not there")))?;
        match found.root.as_deref() == root {
            true => Ok(()),
            false => Err(Stop::Failed(format!(
                "{name} has the encryption root {:?}, not {root:?}",
                found.root
            ))),
        }
    }

    /// Works until an operation fails; the error is a failure unless the server is dead.
    fn work(&mut self, is_killed: &AtomicBool, most: u64) -> Result<(), String> {
        for _ in 0..most {
            if is_killed.load(Ordering::SeqCst) {
                break;
            }
            let before = self.listed.clone();
            let is_locked = most != u64::MAX;
            let mut result = match is_locked {
                true => self.locked_operation(),
                false => self.operation(),
            };
            if let Err(Stop::Refused(why)) = result {
                match self.shell.goes_on(Stop::Refused(why), is_killed) {
                    Ok(Some(())) => {}
                    Ok(None) => return Ok(()),
                    Err(why) => return Err(format!("{}: {why}", self.doubt.words)),
                }
                result = self.unchanged(&before);
            }
            if let Err(stop) = result {
                match self.shell.goes_on(stop, is_killed) {
                    Ok(Some(())) => {}
                    Ok(None) => return Ok(()),
                    Err(why) => return Err(format!("{}: {why}", self.doubt.words)),
                }
            }
            self.done += 1;
            self.doubt = Doubt::default();
        }
        Ok(())
    }

    /// What was refused has changed no dataset.
    fn unchanged(&mut self, before: &[Listed]) -> Result<()> {
        self.look()?;
        let core = |all: &[Listed]| -> Vec<_> {
            let all = all.iter();
            all.map(|one| {
                (
                    one.name.clone(),
                    one.guid,
                    one.root.clone(),
                    one.format.clone(),
                )
            })
            .collect()
        };
        let (before, after) = (core(before), core(&self.listed));
        match before == after {
            true => Ok(()),
            false => Err(Stop::Failed(format!(
                "it was refused, and has changed {:?}",
                difference(&before, &after)
            ))),
        }
    }

    fn operation(&mut self) -> Result<()> {
        match self.rng.below(100) {
            0..24 => self.write(),
            24..28 => self.remove(),
            28..38 => self.create(),
            38..48 => self.snapshot(),
            48..52 => self.clone_one(),
            52..55 => self.promote(),
            55..58 => self.rename(),
            58..61 => self.rollback(),
            61..68 => self.change_key(),
            68..72 => self.inherit_key(),
            72..76 => self.unload(),
            76..82 => self.load(),
            82..87 => self.send(),
            87..94 => self.send_difference(),
            94..97 => self.destroy(),
            97..99 => self.destroy_snapshot(),
            _ => self.scrub(),
        }
    }

    /// One of those that are done while keys are not loaded, and logs wait for them.
    fn locked_operation(&mut self) -> Result<()> {
        match self.rng.below(10) {
            0 => self.clone_one(),
            1 => self.promote(),
            2 => self.rename(),
            3 => self.rollback(),
            4 => self.send(),
            5 | 6 => self.send_difference(),
            7 => self.destroy_snapshot(),
            8 => self.destroy(),
            _ => self.load_wrongly(),
        }
    }

    fn write(&mut self) -> Result<()> {
        let Some(one) = self.pick(|one| one.is_mounted) else {
            return self.create();
        };
        let (name, seed) = (format!("f{}", self.rng.below(8)), self.rng.next_u64());
        self.change(&one, &name, Some(seed))
    }

    fn remove(&mut self) -> Result<()> {
        let Some(one) = self.pick(|one| one.is_mounted) else {
            return Ok(());
        };
        let files: Vec<_> = self.known[&one.guid].files.keys().cloned().collect();
        match self.rng.pick(&files) {
            Some(name) => self.change(&one, &name, None),
            None => Ok(()),
        }
    }

    fn change(&mut self, one: &Listed, name: &str, seed: Option<u64>) -> Result<()> {
        let mut files = self.known[&one.guid].files.clone();
        match seed {
            Some(seed) => files.insert(name.to_owned(), seed),
            None => files.remove(name),
        };
        let words = format!("{name} of {} becomes {seed:?}", one.name);
        self.begin(&words).files = Some((one.guid, files.clone(), false));
        self.shell.tell(words);
        let path = one.mountpoint.join(name);
        match seed {
            Some(seed) => contents::write(&path, seed)?,
            None => contents::remove(&path)?,
        }
        self.known.entry(one.guid).or_default().files = files;
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        if self.filesystems(|_| true).len() >= FILESYSTEMS_MAX {
            return Ok(());
        }
        let ((name, above), place) = (self.new_name(None), self.place());
        let above = above.filter(|above| above.root.is_some());
        let (mut secret, mut root) = (None, None);
        let mut words = format!("zfs create -o mountpoint={place}");
        let mut input = Vec::new();
        match (above, self.rng.below(10)) {
            (Some(above), 0..6) => {
                secret = self.secret_of(&above);
                root = above.root;
            }
            (_, 0..8) => {
                let suites = ["on", "aes-128-ccm", "aes-192-gcm", "aes-256-ccm"];
                let suite = self.rng.pick(&suites).unwrap_or("on");
                let (new, how, typed) = self.new_secret();
                words.push_str(&format!(" -o encryption={suite} {how}"));
                (secret, root, input) = (Some(new), Some(name.clone()), typed);
            }
            _ => words.push_str(" -o encryption=off"),
        }
        words.push_str(&format!(" {name}"));
        self.begin(&words).comes = Some((Files::new(), secret));
        self.shell.given(&words, &input)?;
        let files = Files::new();
        self.note(&name, Known { files, secret })?;
        self.look()?;
        self.has_root(&name, root.as_deref())
    }

    fn snapshot(&mut self) -> Result<()> {
        // What is not mounted may have a log that waits for its key.
        let Some(one) = self.pick(|one| one.is_mounted) else {
            return Ok(());
        };
        let prefix = format!("{}@", one.name);
        let count = self
            .listed
            .iter()
            .filter(|one| one.name.starts_with(&prefix));
        if count.count() >= SNAPSHOTS_MAX {
            return Ok(());
        }
        let name = format!("{prefix}s{}", self.number());
        let known = self.known[&one.guid].clone();
        let words = format!("zfs snapshot {name}");
        self.begin(&words).comes = Some((known.files.clone(), known.secret));
        self.shell.ok(&words)?;
        self.note(&name, known)?;
        self.look()
    }

    fn clone_one(&mut self) -> Result<()> {
        let Some(snapshot) = self.pick_snapshot() else {
            return Ok(());
        };
        let Some(origin) = self.filesystem(snapshot.parts().0) else {
            return Ok(());
        };
        let (name, _) = self.new_name(Some(snapshot.pool()));
        let words = format!(
            "zfs clone -u -o mountpoint={} {} {name}",
            self.place(),
            snapshot.name
        );
        let files = self.snapshots[&snapshot.guid].clone();
        let secret = self.secret_of(&origin);
        self.begin(&words).comes = Some((files.clone(), secret));
        self.shell.ok(&words)?;
        self.note(&name, Known { files, secret })?;
        self.look()?;
        self.has_root(&name, origin.root.as_deref())?;
        match origin.is_open() {
            true => self.mount(&name),
            false => Ok(()),
        }
    }

    fn mount(&mut self, name: &str) -> Result<()> {
        self.shell.ok(&format!("zfs mount {name}"))?;
        self.look()
    }

    fn promote(&mut self) -> Result<()> {
        let Some(one) = self.pick(|one| one.origin.is_some()) else {
            return Ok(());
        };
        let words = format!("zfs promote {}", one.name);
        self.begin(&words).moves = true;
        self.shell.ok(&words)?;
        self.look()
    }

    fn rename(&mut self) -> Result<()> {
        let Some(one) = self.pick(|_| true) else {
            return Ok(());
        };
        let (name, _) = self.new_name(Some(one.pool()));
        let words = format!("zfs rename {} {name}", one.name);
        self.begin(&words).moves = true;
        self.shell.ok(&words)?;
        self.look()
    }

    fn rollback(&mut self) -> Result<()> {
        let Some(snapshot) = self.pick_snapshot() else {
            return Ok(());
        };
        let Some(one) = self.filesystem(snapshot.parts().0) else {
            return Ok(());
        };
        let files = self.snapshots[&snapshot.guid].clone();
        let words = format!("zfs rollback -r {}", snapshot.name);
        let doubt = self.begin(&words);
        doubt.files = Some((one.guid, files.clone(), true));
        doubt.goes = true;
        self.shell.ok(&words)?;
        self.known.entry(one.guid).or_default().files = files;
        self.look()
    }

    /// Gives an encryption root another key, or makes a dataset one.
    fn change_key(&mut self) -> Result<()> {
        let Some(one) = self.pick(|one| one.root.is_some() && one.is_loaded) else {
            return Ok(());
        };
        let (secret, how, typed) = self.new_secret();
        let words = format!("zfs change-key {how} {}", one.name);
        let all = self.of_root(one.root.as_deref().unwrap_or_default());
        let all = all.iter().map(|one| one.guid).collect();
        let doubt = self.begin(&words);
        doubt.secret = Some((all, secret));
        doubt.moves = true;
        self.shell.given(&words, &typed)?;
        self.has_now(&one.name, secret)?;
        self.has_root(&one.name, Some(&one.name))
    }

    /// Has an encryption root's datasets inherit from above.
    fn inherit_key(&mut self) -> Result<()> {
        let Some(one) = self.pick(|one| one.is_root() && one.origin.is_none()) else {
            return Ok(());
        };
        let above = one.name.rsplit_once('/').map_or("", |(above, _)| above);
        let Some(above) = self.filesystem(above) else {
            return Ok(());
        };
        let (Some(secret), Some(root)) = (self.secret_of(&above), above.root) else {
            return Ok(());
        };
        let words = format!("zfs change-key -i {}", one.name);
        let all = self.of_root(&one.name);
        let all = all.iter().map(|one| one.guid).collect();
        let doubt = self.begin(&words);
        doubt.secret = Some((all, secret));
        doubt.moves = true;
        self.shell.ok(&words)?;
        self.has_now(&root, secret)?;
        self.has_root(&one.name, Some(&root))
    }

    /// All that have this encryption root now have this key now.
    fn has_now(&mut self, root: &str, secret: Secret) -> Result<()> {
        self.listed = self.list()?;
        for one in self.of_root(root) {
            self.known.entry(one.guid).or_default().secret = Some(secret);
        }
        self.look()
    }

    fn unload(&mut self) -> Result<()> {
        let Some(root) = self.pick(|one| one.is_root() && one.is_loaded) else {
            return Ok(());
        };
        self.begin("unload");
        for one in self.of_root(&root.name) {
            if one.is_mounted {
                self.shell.ok(&format!("zfs unmount {}", one.name))?;
            }
        }
        self.shell.ok(&format!("zfs unload-key {}", root.name))?;
        self.look()?;
        self.is_loaded(&root.name, false)
    }

    /// All that have an encryption root have a key, or none.
    fn is_loaded(&self, root: &str, is_loaded: bool) -> Result<()> {
        let all = self.of_root(root).into_iter();
        let wrong = all.filter(|one| one.is_loaded != is_loaded);
        let wrong: Vec<_> = wrong.map(|one| one.name).collect();
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(Stop::Failed(format!(
                "the key of {root} is loaded: {is_loaded}, but not so for {wrong:?}"
            ))),
        }
    }

    fn load(&mut self) -> Result<()> {
        if self.rng.percent(30) {
            return self.load_wrongly();
        }
        let Some(root) = self.pick(|one| one.is_root() && !one.is_loaded) else {
            return Ok(());
        };
        let Some(secret) = self.secret_of(&root) else {
            return Ok(());
        };
        // Those below that a raw stream parted from it may come back.
        self.begin("load").moves = true;
        self.opens(&root, secret)?;
        self.look()?;
        self.is_loaded(&root.name, true)?;
        for one in self.of_root(&root.name) {
            if !one.is_mounted {
                self.mount(&one.name)?;
            }
        }
        Ok(())
    }

    /// Loads a key, from where the root has it if it has it.
    fn opens(&mut self, root: &Listed, secret: Secret) -> Result<()> {
        let file = self.keys.join(format!("k{secret}")).display().to_string();
        let result = match root.location == format!("file://{file}") {
            true => self.shell.ok(&format!("zfs load-key {}", root.name)),
            false => {
                let words = format!("zfs load-key -L prompt {}", root.name);
                self.shell.given(&words, &material(secret))
            }
        };
        result.map(drop).map_err(|stop| {
            let why = stop.text();
            Stop::Failed(format!(
                "{} is not opened by key {secret}: {why}",
                root.name
            ))
        })
    }

    /// Whether a key is that of a root; loads nothing.
    fn would_open(&mut self, root: &Listed, secret: Secret) -> Result<bool> {
        if root.format != format(secret) {
            return Ok(false);
        }
        let words = format!("zfs load-key -n -L prompt {}", root.name);
        match self.shell.given(&words, &material(secret)) {
            Ok(_) => Ok(true),
            Err(Stop::Refused(why)) if why.contains("Incorrect key provided") => Ok(false),
            Err(stop) => Err(stop),
        }
    }

    /// A key of another one is refused as that.
    fn load_wrongly(&mut self) -> Result<()> {
        self.begin("load a wrong key");
        match self.pick(|one| one.is_root()) {
            Some(root) => self.refuses(&root),
            None => Ok(()),
        }
    }

    fn refuses(&mut self, root: &Listed) -> Result<()> {
        let Some(secret) = self.secret_of(root) else {
            return Ok(());
        };
        // One that some dataset has, or had, or will have.
        let places = self.next / 3 + 2;
        let wrong = secret % 3 + 3 * self.rng.below(places);
        if wrong == secret {
            return Ok(());
        }
        match self.would_open(root, wrong)? {
            false => Ok(()),
            true => Err(Stop::Failed(format!(
                "{} is opened by key {wrong}, and should be by {secret}",
                root.name
            ))),
        }
    }

    /// Sends a snapshot to a new filesystem, raw or as what it says.
    fn send(&mut self) -> Result<()> {
        let Some(snapshot) = self.pick_snapshot() else {
            return Ok(());
        };
        let Some(source) = self.filesystem(snapshot.parts().0) else {
            return Ok(());
        };
        if self.filesystems(|_| true).len() >= FILESYSTEMS_MAX {
            return Ok(());
        }
        let (name, above) = self.new_name(None);
        let is_raw = self.rng.percent(75);
        let (secret, root) = match is_raw && source.root.is_some() {
            true => (self.secret_of(&source), Some(name.clone())),
            // A stream that is not raw has no properties, so it inherits.
            false => {
                let secret = above.as_ref().and_then(|above| self.secret_of(above));
                (secret, above.and_then(|above| above.root))
            }
        };
        let files = self.snapshots[&snapshot.guid].clone();
        let send = format!("send {} {}", if is_raw { "-w" } else { "" }, snapshot.name);
        let receive = format!("receive -u -o mountpoint={} {name}", self.place());
        self.begin(&format!("{send} | {receive}")).comes = Some((files.clone(), secret));
        self.shell.pipe(&send, &receive)?;
        self.note(&name, Known { files, secret })?;
        self.look()?;
        self.has_root(&name, root.as_deref())?;
        let copy = self.filesystem(&name);
        match copy.is_some_and(|copy| copy.is_open()) {
            true => self.mount(&name),
            false => Ok(()),
        }
    }

    /// Sends a difference onto what has the same snapshot.
    fn send_difference(&mut self) -> Result<()> {
        let mut pairs = Vec::new();
        for (at, from) in self.listed.iter().enumerate() {
            let (source, Some(_)) = from.parts() else {
                continue;
            };
            let same = self.listed.iter().filter(|one| one.guid == from.guid);
            for copy in same.filter(|one| one.name != from.name && one.is_snapshot()) {
                let later = self.listed[at + 1..].iter();
                let later = later.take_while(|one| one.parts().0 == source && one.is_snapshot());
                pairs.extend(later.map(|to| (from.clone(), to.clone(), copy.clone())));
            }
        }
        let Some((from, to, copy)) = self.rng.pick(&pairs) else {
            return self.send();
        };
        let (source, target) = (from.parts().0, copy.parts().0);
        let (Some(source), Some(target)) = (self.filesystem(source), self.filesystem(target))
        else {
            return Ok(());
        };
        let is_raw = self.rng.percent(75);
        let flag = if is_raw { "-w" } else { "" };
        let send = format!("send {flag} -i {} {}", from.name, to.name);
        let receive = format!("receive -F {}", target.name);
        let files = self.snapshots[&to.guid].clone();
        let theirs = self.secret_of(&source).filter(|_| is_raw);
        let family = self.family(&target.name);
        let ours = self.secret_of(&target);
        let doubt = self.begin(&format!("{send} | {receive}"));
        doubt.files = Some((target.guid, files.clone(), true));
        doubt.comes = Some((files.clone(), None));
        (doubt.goes, doubt.moves) = (true, true);
        doubt.secret = theirs.map(|secret| (family.clone(), secret));
        self.shell.pipe(&send, &receive)?;
        self.known.entry(target.guid).or_default().files = files;
        // What a sender's key became comes along, unless the key was changed here since.
        self.listed = self.list()?;
        if let (Some(theirs), Some(ours)) = (theirs, ours)
            && theirs != ours
            && let Some(root) = self.filesystem(&target.name).and_then(|one| one.root)
            && let Some(root) = self.filesystem(&root)
            && self.would_open(&root, theirs)?
        {
            for guid in family {
                self.known.entry(guid).or_default().secret = Some(theirs);
            }
        }
        self.look()
    }

    fn destroy(&mut self) -> Result<()> {
        let Some(one) = self.pick(|_| true) else {
            return Ok(());
        };
        let flag = self.rng.pick(&["", "-r"]).unwrap_or("");
        let words = format!("zfs destroy {flag} {}", one.name);
        self.begin(&words).goes = true;
        self.shell.ok(&words)?;
        self.look()
    }

    fn destroy_snapshot(&mut self) -> Result<()> {
        let Some(one) = self.pick_snapshot() else {
            return Ok(());
        };
        let words = format!("zfs destroy {}", one.name);
        self.begin(&words).goes = true;
        self.shell.ok(&words)?;
        self.look()
    }

    fn scrub(&mut self) -> Result<()> {
        let pool = self.rng.pick(&POOLS).unwrap_or("tank");
        self.shell.ok(&format!("zpool scrub {pool}")).map(drop)
    }
}

/// What is in one of two lists alone.
fn difference<T: PartialEq + Clone>(one: &[T], other: &[T]) -> Vec<T> {
    let of_one = one.iter().filter(|item| !other.contains(item));
    let of_other = other.iter().filter(|item| !one.contains(item));
    of_one.chain(of_other).cloned().collect()
}

/// A place for what a story makes beside its pools.
fn directory(server: &Server, name: &str) -> PathBuf {
    let path: &Path = &server.path(name);
    fs::create_dir_all(path).expect("a directory");
    path.to_owned()
}

fn story(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut server = Server::start();
    let disks = server.disks(3, 1 << 30);
    let ashift = 9 + 3 * rng.below(2);
    let create = format!("zpool create -o ashift={ashift} -O mountpoint=none");
    server.ok(&format!("{create} tank mirror {} {}", disks[0], disks[1]));
    server.ok(&format!("{create} back {}", disks[2]));
    let mut worker = Worker {
        rng: rng.clone(),
        shell: Shell::new(server.state()),
        mounts: directory(&server, "mnt"),
        keys: directory(&server, "keys"),
        known: HashMap::new(),
        snapshots: HashMap::new(),
        listed: Vec::new(),
        doubt: Doubt::default(),
        next: 0,
        done: 0,
    };
    for round in 0..ROUNDS {
        let for_ms = 1000 + rng.below(7000);
        let ended = super::work_until_kill(&mut server, for_ms, |is_killed| {
            worker.work(is_killed, u64::MAX)
        });
        super::restart(&mut server, &POOLS);
        if let Err(why) = ended.and_then(|()| worker.compare()) {
            let words = worker.doubt.words;
            super::give_up(
                &mut server,
                &format!("seed {seed}, round {round}: {why}\nunder way: {words}"),
                &worker.shell.story,
            );
        }
        worker.shell.story.clear();
    }
    let (done, refused) = (worker.done, worker.shell.refused);
    eprintln!("{done} operations, {refused} of them refused");
    assert!(done > 30 && done > 2 * refused, "hardly anything was done");
    for pool in POOLS {
        super::is_whole(&mut server, pool);
    }
}

#[test]
fn everything_opens_with_the_key_that_it_should() {
    super::tell(story);
}
