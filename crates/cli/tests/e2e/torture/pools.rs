//! Pools of all layouts with random subsets of features, under administration and the kill of their
//! server.
//!
//! Each operation is durable when it returns (files by fsync), so after a kill all but the one that
//! was under way is as the model has it. Datasets and snapshots are known by their GUIDs, since
//! renames and promotions move names. Oracles: the content of every file of every filesystem and
//! snapshot, a scrub that finds nothing, zdb.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sim::rng::Rng;

use crate::harness::{MILLPOND, Server, text_of, zdb_is_clean};

/// Rounds of a story: each ends with a kill.
const ROUNDS: u64 = 4;

/// Most filesystems, and most snapshots of each.
const FILESYSTEMS_MAX: usize = 8;
const SNAPSHOTS_MAX: usize = 20;

/// Features that pools may lack, with those that then go as well (`zpool-features(7)`). Not
/// `spacemap_histogram`: zdb takes every log space map for one that has a histogram.
const FEATURES: [(&str, &[&str]); 13] = [
    ("async_destroy", &[]),
    ("lz4_compress", &[]),
    ("empty_bpobj", &[]),
    ("enabled_txg", &["hole_birth"]),
    ("hole_birth", &[]),
    ("spacemap_v2", &["log_spacemap"]),
    ("log_spacemap", &[]),
    ("embedded_data", &[]),
    ("large_blocks", &[]),
    ("livelist", &[]),
    ("block_cloning", &[]),
    ("fast_dedup", &[]),
    ("large_dnode", &[]),
];

/// Files of a filesystem or snapshot: the seed of each one's content.
type Files = BTreeMap<String, u64>;

/// Content that a seed stands for.
fn content(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let length = match rng.below(3) {
        0 => rng.below(400),
        1 => rng.below(20_000),
        _ => rng.below(300_000),
    };
    rng.content(length as usize)
}

/// What may have happened to the operation that was under way at the kill.
#[derive(Debug, Default)]
struct Doubt {
    words: String,
    /// A dataset whose files may already be these.
    files: Option<(u64, Files)>,
    /// Datasets may have come.
    comes: bool,
    /// Datasets may have gone.
    goes: bool,
}

struct Worker {
    rng: Rng,
    state: PathBuf,
    mountpoint: PathBuf,
    /// Filesystems and snapshots, by GUID.
    known: HashMap<u64, Files>,
    doubt: Doubt,
    /// Number for the next name.
    next: u64,
    story: Vec<String>,
    done: u64,
}

/// A dataset that is listed.
#[derive(Debug, Clone)]
struct Listed {
    name: String,
    guid: u64,
}

impl Listed {
    fn is_snapshot(&self) -> bool {
        self.name.contains('@')
    }

    /// Where its files are.
    fn path(&self, mountpoint: &Path) -> PathBuf {
        let (filesystem, snapshot) = match self.name.split_once('@') {
            Some((filesystem, snapshot)) => (filesystem, Some(snapshot)),
            None => (self.name.as_str(), None),
        };
        let below = filesystem.strip_prefix("tank/").unwrap_or("");
        let path = mountpoint.join(below);
        match snapshot {
            Some(snapshot) => path.join(".zfs/snapshot").join(snapshot),
            None => path,
        }
    }
}

/// An operation that did not work.
enum Stop {
    /// It was refused, and nothing has changed.
    Refused(String),
    /// It failed.
    Failed(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Failed(error.to_string())
    }
}

type Result<T, E = Stop> = std::result::Result<T, E>;

impl Worker {
    fn command(&self, words: &str) -> Output {
        let mut command = Command::new(MILLPOND);
        command.args(words.split_whitespace());
        self.output(command)
    }

    fn output(&self, mut command: Command) -> Output {
        let command = command
            .env("MILLPOND_STATE", &self.state)
            .stdin(Stdio::null());
        command.output().expect("millpond runs")
    }

    fn ok(&mut self, words: &str) -> Result<String> {
        self.story.push(words.to_owned());
        if self.story.len() > 40 {
            self.story.remove(0);
        }
        let output = self.command(words);
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(Stop::Refused(format!("{words}: {}", text_of(&output)))),
        }
    }

    /// Filesystems below the pool's root, and all snapshots.
    fn list(&mut self) -> Result<Vec<Listed>> {
        let text = self.ok("zfs list -Hp -r -t filesystem,snapshot -o name,guid tank")?;
        let listed = text.lines().filter_map(|line| {
            let (name, guid) = line.split_once('\t')?;
            let guid = guid.parse().ok()?;
            (name != "tank").then(|| Listed {
                name: name.to_owned(),
                guid,
            })
        });
        Ok(listed.collect())
    }

    fn pick(&mut self, snapshot: bool) -> Result<Option<Listed>> {
        let mut all = self.list()?;
        all.retain(|listed| listed.is_snapshot() == snapshot);
        Ok(self.rng.pick(&all))
    }

    fn new_name(&mut self, what: &str) -> String {
        self.next += 1;
        format!("{what}{}", self.next)
    }

    /// Whatever has just come has these files.
    fn note(&mut self, name: &str, files: Files) -> Result<()> {
        let guid = self.ok(&format!("zfs get -Hp -o value guid {name}"))?;
        let guid = guid
            .trim()
            .parse()
            .map_err(|_| Stop::Failed(guid.clone()))?;
        self.known.insert(guid, files);
        Ok(())
    }

    fn files_of(&self, listed: &Listed) -> Files {
        self.known.get(&listed.guid).cloned().unwrap_or_default()
    }

    /// Works until an operation fails; the error is a failure unless the server is dead.
    fn work(&mut self, is_killed: &AtomicBool) -> Result<(), String> {
        while !is_killed.load(Ordering::SeqCst) {
            match self.operation() {
                Ok(()) => {
                    self.done += 1;
                    self.doubt = Doubt::default();
                }
                Err(_) if is_killed.load(Ordering::SeqCst) => return Ok(()),
                Err(Stop::Failed(why)) => {
                    std::thread::sleep(Duration::from_millis(500));
                    if is_killed.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                    return Err(format!("{}: {why}", self.doubt.words));
                }
                Err(Stop::Refused(why)) => {
                    std::thread::sleep(Duration::from_millis(20));
                    if is_killed.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                    self.story.push(format!("  refused: {why}"));
                    for bad in ["suspended", "is a bug", "no server", "internal", "panic"] {
                        if why.contains(bad) {
                            return Err(why);
                        }
                    }
                    self.doubt = Doubt::default();
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, words: &str) -> &mut Doubt {
        self.doubt = Doubt {
            words: words.to_owned(),
            ..Doubt::default()
        };
        &mut self.doubt
    }

    fn operation(&mut self) -> Result<()> {
        match self.rng.below(100) {
            0..40 => self.write(),
            40..48 => self.copy(),
            48..54 => self.remove(),
            54..60 => self.create(),
            60..68 => self.snapshot(),
            68..73 => self.clone_one(),
            73..75 => self.promote(),
            75..77 => self.rename(),
            77..81 => self.rollback(),
            81..85 => self.send(),
            85..92 => self.destroy(),
            92..96 => self.set(),
            _ => self.administer(),
        }
    }

    fn write(&mut self) -> Result<()> {
        let Some(listed) = self.pick(false)? else {
            return self.create();
        };
        let (name, seed) = (format!("f{}", self.rng.below(12)), self.rng.next_u64());
        self.change(&listed, &name, Some(seed), |path| {
            let data = content(seed);
            let file = File::create(path)?;
            file.write_all_at(&data, 0)?;
            file.sync_all()
        })
    }

    /// Copies a file of any filesystem, as `cp` does: by cloning where that can be.
    fn copy(&mut self) -> Result<()> {
        let (Some(from), Some(to)) = (self.pick(false)?, self.pick(false)?) else {
            return Ok(());
        };
        let files: Vec<_> = self.files_of(&from).into_iter().collect();
        let Some((source, seed)) = self.rng.pick(&files) else {
            return Ok(());
        };
        let source = from.path(&self.mountpoint).join(source);
        let name = format!("c{}", self.rng.below(12));
        if source == to.path(&self.mountpoint).join(&name) {
            return Ok(());
        }
        self.change(&to, &name, Some(seed), |path| {
            fs::copy(source, path)?;
            File::open(path)?.sync_all()
        })
    }

    fn remove(&mut self) -> Result<()> {
        let Some(listed) = self.pick(false)? else {
            return Ok(());
        };
        let files: Vec<_> = self.files_of(&listed).into_keys().collect();
        let Some(name) = self.rng.pick(&files) else {
            return Ok(());
        };
        self.change(&listed, &name, None, |path| {
            fs::remove_file(path)?;
            File::open(path.parent().expect("a directory"))?.sync_all()
        })
    }

    /// Changes one file of a filesystem.
    fn change(
        &mut self,
        listed: &Listed,
        name: &str,
        seed: Option<u64>,
        operation: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<()> {
        let mut files = self.files_of(listed);
        match seed {
            Some(seed) => files.insert(name.to_owned(), seed),
            None => files.remove(name),
        };
        self.begin(&format!("{} {name}", listed.name)).files = Some((listed.guid, files.clone()));
        self.story
            .push(format!("{name} of {} becomes {seed:?}", listed.name));
        match operation(&listed.path(&self.mountpoint).join(name)) {
            Ok(()) => {
                self.known.insert(listed.guid, files);
                Ok(())
            }
            Err(error) => Err(Stop::Failed(format!("{} {name}: {error}", listed.name))),
        }
    }

    fn create(&mut self) -> Result<()> {
        if self
            .list()?
            .iter()
            .filter(|listed| !listed.is_snapshot())
            .count()
            >= FILESYSTEMS_MAX
        {
            return Ok(());
        }
        let name = format!("tank/{}", self.new_name("fs"));
        let words = format!(
            "zfs create -o recordsize={} -o compression={} -o checksum={} -o copies={} -o dedup={} \
             {name}",
            self.rng.pick(&["4K", "16K", "128K"]).unwrap_or("4K"),
            self.rng
                .pick(&["off", "lz4", "zle", "gzip-1"])
                .unwrap_or("off"),
            self.rng
                .pick(&["on", "sha256", "fletcher2"])
                .unwrap_or("on"),
            self.rng.pick(&["1", "1", "2", "3"]).unwrap_or("1"),
            self.rng
                .pick(&["off", "off", "on", "verify"])
                .unwrap_or("off"),
        );
        self.begin(&words).comes = true;
        self.ok(&words)?;
        self.note(&name, Files::new())
    }

    fn snapshot(&mut self) -> Result<()> {
        let Some(listed) = self.pick(false)? else {
            return Ok(());
        };
        let prefix = format!("{}@", listed.name);
        let all = self.list()?;
        if all
            .iter()
            .filter(|one| one.name.starts_with(&prefix))
            .count()
            >= SNAPSHOTS_MAX
        {
            return Ok(());
        }
        let name = format!("{prefix}{}", self.new_name("s"));
        let words = format!("zfs snapshot {name}");
        self.begin(&words).comes = true;
        self.ok(&words)?;
        let files = self.files_of(&listed);
        self.note(&name, files)
    }

    fn clone_one(&mut self) -> Result<()> {
        let Some(snapshot) = self.pick(true)? else {
            return Ok(());
        };
        let name = format!("tank/{}", self.new_name("clone"));
        let words = format!("zfs clone {} {name}", snapshot.name);
        self.begin(&words).comes = true;
        self.ok(&words)?;
        let files = self.files_of(&snapshot);
        self.note(&name, files)
    }

    fn promote(&mut self) -> Result<()> {
        let Some(listed) = self.pick(false)? else {
            return Ok(());
        };
        self.ok(&format!("zfs promote {}", listed.name)).map(drop)
    }

    fn rename(&mut self) -> Result<()> {
        let Some(listed) = self.pick(false)? else {
            return Ok(());
        };
        let name = self.new_name("renamed");
        self.ok(&format!("zfs rename {} tank/{name}", listed.name))
            .map(drop)
    }

    fn rollback(&mut self) -> Result<()> {
        let Some(snapshot) = self.pick(true)? else {
            return Ok(());
        };
        let filesystem = snapshot
            .name
            .split('@')
            .next()
            .unwrap_or_default()
            .to_owned();
        let all = self.list()?;
        let Some(listed) = all.iter().find(|listed| listed.name == filesystem) else {
            return Ok(());
        };
        let files = self.files_of(&snapshot);
        let words = format!("zfs rollback -r {}", snapshot.name);
        let doubt = self.begin(&words);
        doubt.files = Some((listed.guid, files.clone()));
        doubt.goes = true;
        self.ok(&words)?;
        self.known.insert(listed.guid, files);
        self.forget()
    }

    /// Sends a snapshot to a new filesystem, and often a later one after it.
    fn send(&mut self) -> Result<()> {
        let Some(first) = self.pick(true)? else {
            return Ok(());
        };
        let prefix = format!("{}@", first.name.split('@').next().unwrap_or_default());
        let all = self.list()?;
        let later = all
            .iter()
            .skip_while(|listed| listed.guid != first.guid)
            .skip(1);
        let later = later
            .take_while(|listed| listed.name.starts_with(&prefix))
            .last()
            .cloned();
        let name = format!("tank/{}", self.new_name("received"));
        let flags = self.rng.pick(&["", "-c", "-L", "-e", "-cLe"]).unwrap_or("");
        self.begin("send").comes = true;
        self.pipe(
            &format!("send {flags} {}", first.name),
            &format!("receive {name}"),
        )?;
        let mut last = first.clone();
        if let Some(later) = later {
            let words = format!("send {flags} -i {} {}", first.name, later.name);
            let guid = self.ok(&format!("zfs get -Hp -o value guid {name}"))?;
            let files = self.files_of(&first);
            self.note(&name, files)?;
            let next = self.files_of(&later);
            if let Ok(guid) = guid.trim().parse() {
                self.doubt.files = Some((guid, next));
            }
            self.pipe(&words, &format!("receive -F {name}"))?;
            last = later;
        }
        let files = self.files_of(&last);
        self.note(&name, files)?;
        for snapshot in [first, last] {
            let files = self.files_of(&snapshot);
            let own = snapshot.name.split('@').nth(1).unwrap_or_default();
            // It has the GUID of its source.
            self.note(&format!("{name}@{own}"), files)?;
        }
        Ok(())
    }

    fn pipe(&mut self, send: &str, receive: &str) -> Result<()> {
        let words = format!("'{MILLPOND}' zfs {send} | '{MILLPOND}' zfs {receive}");
        self.story.push(format!("{send} | {receive}"));
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-c", &words]);
        let output = self.output(shell);
        match output.status.success() {
            true => Ok(()),
            false => Err(Stop::Refused(text_of(&output))),
        }
    }

    fn destroy(&mut self) -> Result<()> {
        let snapshot = self.rng.percent(70);
        let Some(listed) = self.pick(snapshot)? else {
            return Ok(());
        };
        let flag = match snapshot {
            true => self.rng.pick(&["", "", "-d"]).unwrap_or(""),
            false => self.rng.pick(&["", "-r"]).unwrap_or(""),
        };
        let words = format!("zfs destroy {flag} {}", listed.name);
        self.begin(&words).goes = true;
        self.ok(&words)?;
        self.forget()
    }

    /// Forgets datasets that were destroyed.
    fn forget(&mut self) -> Result<()> {
        let listed = self.list()?;
        self.known
            .retain(|guid, _| listed.iter().any(|one| one.guid == *guid));
        Ok(())
    }

    fn set(&mut self) -> Result<()> {
        let Some(listed) = self.pick(false)? else {
            return Ok(());
        };
        let choices = [
            "compression=zstd-3",
            "compression=off",
            "recordsize=8K",
            "dedup=on",
            "dedup=off",
            "copies=2",
            "checksum=sha512",
            "snapdir=visible",
            "sync=always",
            "sync=standard",
            "refquota=2G",
            "quota=none",
            "reservation=10M",
            "reservation=none",
        ];
        let choice = self.rng.pick(&choices).unwrap_or(choices[0]);
        self.ok(&format!("zfs set {choice} {}", listed.name))
            .map(drop)
    }

    fn administer(&mut self) -> Result<()> {
        let choices = [
            "zpool scrub tank",
            "zpool sync tank",
            "zpool checkpoint tank",
            "zpool checkpoint -d tank",
            "zpool trim tank",
            "zpool reguid tank",
            "zpool clear tank",
            "zpool status tank",
            "zpool scrub -s tank",
        ];
        let choice = self.rng.pick(&choices).unwrap_or(choices[0]);
        self.ok(choice).map(drop)
    }

    /// Compares every filesystem and snapshot with what it should hold.
    fn compare(&mut self) -> Result<(), String> {
        let listed = match self.list() {
            Ok(listed) => listed,
            Err(Stop::Refused(why) | Stop::Failed(why)) => return Err(why),
        };
        let mut known = HashMap::new();
        for one in &listed {
            let is_new = !self.known.contains_key(&one.guid);
            let found = match read(&one.path(&self.mountpoint)) {
                // Half received: it is not mounted, and destroyed in a moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_new => continue,
                found => found.map_err(|error| format!("{}: {error}", one.name))?,
            };
            let Some(files) = self.known.get(&one.guid) else {
                if !self.doubt.comes {
                    return Err(format!("{} should not be there", one.name));
                }
                // Half received, or new: what it holds is not known.
                known.insert(one.guid, self.seeds_of(&found, &one.name)?);
                continue;
            };
            let mut choices = vec![files.clone()];
            choices.extend(
                self.doubt
                    .files
                    .iter()
                    .filter(|(guid, _)| *guid == one.guid)
                    .map(|(_, files)| files.clone()),
            );
            let mut why = String::new();
            let fits = choices.into_iter().find(|files| match same(files, &found) {
                Ok(()) => true,
                Err(error) => {
                    why.push_str(&error);
                    false
                }
            });
            // A file that was being written may be anything.
            let files = match fits {
                Some(files) => files,
                None => self.but_for_one(one, files, &found, &why)?,
            };
            known.insert(one.guid, files);
        }
        let gone = self.known.keys().find(|guid| !known.contains_key(guid));
        if let Some(guid) = gone
            && !self.doubt.goes
        {
            return Err(format!("the dataset with GUID {guid} is gone"));
        }
        self.known = known;
        self.doubt = Doubt::default();
        Ok(())
    }

    fn seeds_of(&self, found: &BTreeMap<String, Vec<u8>>, name: &str) -> Result<Files, String> {
        let all: Vec<u64> = self
            .known
            .values()
            .flat_map(|files| files.values().copied())
            .collect();
        let mut out = Files::new();
        for (file, data) in found {
            let seed = all.iter().find(|seed| content(**seed) == *data);
            let seed = seed.ok_or_else(|| format!("{name}: {file} is nobody's"))?;
            out.insert(file.clone(), *seed);
        }
        Ok(out)
    }

    /// What a filesystem holds if all but the file that was being changed is right.
    fn but_for_one(
        &self,
        listed: &Listed,
        files: &Files,
        found: &BTreeMap<String, Vec<u8>>,
        why: &str,
    ) -> Result<Files, String> {
        let changed = match &self.doubt.files {
            Some((guid, next)) if *guid == listed.guid => {
                let differs = |name: &&String| files.get(*name) != next.get(*name);
                let mut names: Vec<String> = files.keys().filter(differs).cloned().collect();
                names.extend(next.keys().filter(differs).cloned());
                names
            }
            _ => Vec::new(),
        };
        let (mut files, mut found) = (files.clone(), found.clone());
        for name in &changed {
            files.remove(name);
            found.remove(name);
        }
        same(&files, &found).map_err(|_| format!("{}: {why}", listed.name))?;
        if self.doubt.goes {
            return Err(format!("{} is between two states: {why}", listed.name));
        }
        let path = listed.path(&self.mountpoint);
        for name in changed {
            match fs::remove_file(path.join(&name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(format!("{} {name}: {error}", listed.name));
                }
                _ => {}
            }
        }
        Ok(files)
    }
}

fn same(files: &Files, found: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    for (name, seed) in files {
        match found.get(name) {
            Some(data) if *data == content(*seed) => {}
            Some(data) => {
                let right = content(*seed);
                return Err(format!(
                    "{name}: {} bytes for {}, or others",
                    data.len(),
                    right.len()
                ));
            }
            None => return Err(format!("{name} is not there")),
        }
    }
    match found.keys().find(|name| !files.contains_key(*name)) {
        Some(name) => Err(format!("{name} should not be there")),
        None => Ok(()),
    }
}

fn read(directory: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() {
            let data = fs::read(entry.path());
            let data = data.map_err(|error| io::Error::other(format!("{name}: {error}")))?;
            out.insert(name, data);
        }
    }
    Ok(out)
}

/// A layout on so many disks.
fn layout(rng: &mut Rng, disks: &[String]) -> String {
    let d = |range: std::ops::Range<usize>| disks[range].join(" ");
    match rng.below(8) {
        0 => d(0..1),
        1 => d(0..3),
        2 => format!("mirror {} mirror {}", d(0..2), d(2..4)),
        3 => format!("raidz1 {}", d(0..3)),
        4 => format!("raidz2 {}", d(0..5)),
        5 => format!("raidz1 {} special mirror {}", d(0..3), d(3..5)),
        6 => format!("draid1:2d:5c:1s {}", d(0..5)),
        _ => format!("{} log {} dedup {}", d(0..2), d(2..3), d(3..4)),
    }
}

/// Features that a pool lacks, with those that then go as well.
pub(super) fn lacking_features(rng: &mut Rng) -> Vec<&'static str> {
    let mut lacking: Vec<&str> = Vec::new();
    for (feature, others) in FEATURES {
        if rng.percent(25) {
            lacking.push(feature);
            lacking.extend(others);
        }
    }
    lacking.sort_unstable();
    lacking.dedup();
    lacking
}

fn story(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut server = Server::start();
    let disks = server.disks(5, 1 << 30);
    let layout = layout(&mut rng, &disks);
    let features: String = lacking_features(&mut rng)
        .iter()
        .map(|feature| format!(" -o feature@{feature}=disabled"))
        .collect();
    let mountpoint = server.path("mnt");
    let ashift = 9 + 3 * rng.below(2);
    let words = format!(
        "zpool create -o ashift={ashift} {features} -O mountpoint={} tank {layout}",
        mountpoint.display()
    );
    eprintln!("{words}");
    server.ok(&words);
    let mut worker = Worker {
        rng: rng.clone(),
        state: server.state(),
        mountpoint,
        known: HashMap::new(),
        doubt: Doubt::default(),
        next: 0,
        story: Vec::new(),
        done: 0,
    };
    for round in 0..ROUNDS {
        let is_killed = AtomicBool::new(false);
        let for_ms = 500 + rng.below(4000);
        let ended = std::thread::scope(|scope| {
            let (worker, is_killed) = (&mut worker, &is_killed);
            let work = scope.spawn(move || worker.work(is_killed));
            std::thread::sleep(Duration::from_millis(for_ms));
            is_killed.store(true, Ordering::SeqCst);
            server.kill_only();
            work.join()
        });
        let ended = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // A command that came a moment after the kill has started a server of its own.
        let _ = server.command(&["down"]);
        server.clear_mounts();
        server.launch(&["daemon"]);
        server.wait_until("the pool is imported again", || {
            server.command(&["zpool", "list", "tank"]).status.success()
        });
        let result = ended.and_then(|()| worker.compare());
        if let Err(why) = result {
            server.kill();
            server.directory.disable_cleanup(true);
            panic!(
                "seed {seed}, round {round}: {why}\nunder way: {}\nwhat is left is in {}\n\
                 the last operations:\n{}",
                worker.doubt.words,
                server.directory.path().display(),
                worker.story.join("\n")
            );
        }
        worker.story.clear();
    }
    assert!(worker.done > 20, "hardly anything was done");
    server.command(&["zpool", "scrub", "-s", "tank"]);
    server.ok("zpool scrub -w tank");
    let status = server.ok("zpool status -v tank");
    assert!(
        status.contains("errors: No known data errors") && !status.contains("DEGRADED"),
        "{status}"
    );
    server.ok("zpool export tank");
    // What zdb complains of is kept.
    server.directory.disable_cleanup(true);
    zdb_is_clean(&server.path("disks"), "tank");
    server.directory.disable_cleanup(false);
}

#[test]
fn every_dataset_is_as_it_was_acknowledged() {
    super::tell(story);
}
