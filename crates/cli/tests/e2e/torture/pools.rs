//! Pools of all layouts with random subsets of features, under administration and the kill of their
//! server.
//!
//! Each operation is durable when it returns (files by fsync), so after a kill all but the one that
//! was under way is as the model has it. Datasets and snapshots are known by their GUIDs, since
//! renames and promotions move names. Oracles: the content of every file of every filesystem and
//! snapshot, a scrub that finds nothing, zdb.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sim::rng::Rng;

use super::contents::{self, Files, Found, Next, content, read};
use super::shell::{Result, Shell, Stop};
use crate::harness::Server;

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
    shell: Shell,
    mountpoint: PathBuf,
    /// Filesystems and snapshots, by GUID.
    known: HashMap<u64, Files>,
    doubt: Doubt,
    /// Number for the next name.
    next: u64,
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

impl Worker {
    /// Filesystems below the pool's root, and all snapshots.
    fn list(&mut self) -> Result<Vec<Listed>> {
        let text = self
            .shell
            .ok("zfs list -Hp -r -t filesystem,snapshot -o name,guid tank")?;
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
        let guid = self
            .shell
            .ok(&format!("zfs get -Hp -o value guid {name}"))?;
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
            if let Err(stop) = self.operation() {
                match self.shell.goes_on(stop, is_killed) {
                    Ok(Some(())) => {}
                    Ok(None) => return Ok(()),
                    Err(why) => return Err(format!("{}: {why}", self.doubt.words)),
                }
            } else {
                self.done += 1;
            }
            self.doubt = Doubt::default();
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
            contents::write(path, seed)
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
        self.change(&listed, &name, None, contents::remove)
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
        let words = format!("{name} of {} becomes {seed:?}", listed.name);
        self.shell.tell(words);
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
        self.shell.ok(&words)?;
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
        self.shell.ok(&words)?;
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
        self.shell.ok(&words)?;
        let files = self.files_of(&snapshot);
        self.note(&name, files)
    }

    fn promote(&mut self) -> Result<()> {
        let Some(listed) = self.pick(false)? else {
            return Ok(());
        };
        self.shell
            .ok(&format!("zfs promote {}", listed.name))
            .map(drop)
    }

    fn rename(&mut self) -> Result<()> {
        let Some(listed) = self.pick(false)? else {
            return Ok(());
        };
        let name = self.new_name("renamed");
        self.shell
            .ok(&format!("zfs rename {} tank/{name}", listed.name))
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
        self.shell.ok(&words)?;
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
        self.shell.pipe(
            &format!("send {flags} {}", first.name),
            &format!("receive {name}"),
        )?;
        let mut last = first.clone();
        if let Some(later) = later {
            let words = format!("send {flags} -i {} {}", first.name, later.name);
            let guid = self
                .shell
                .ok(&format!("zfs get -Hp -o value guid {name}"))?;
            let files = self.files_of(&first);
            self.note(&name, files)?;
            let next = self.files_of(&later);
            if let Ok(guid) = guid.trim().parse() {
                self.doubt.files = Some((guid, next));
            }
            self.shell.pipe(&words, &format!("receive -F {name}"))?;
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
        self.shell.ok(&words)?;
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
        self.shell
            .ok(&format!("zfs set {choice} {}", listed.name))
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
        self.shell.ok(choice).map(drop)
    }

    /// Compares every filesystem and snapshot with what it should hold.
    fn compare(&mut self) -> Result<(), String> {
        let listed = self.list().map_err(Stop::text)?;
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
            let next = self.doubt.files.as_ref();
            let next = next.filter(|(guid, _)| *guid == one.guid);
            let next = next.map(|(_, files)| Next {
                files,
                is_at_once: self.doubt.goes,
            });
            let files = contents::settle(&one.path(&self.mountpoint), &found, files, next);
            let files = files.map_err(|why| format!("{}: {why}", one.name))?;
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

    fn seeds_of(&self, found: &Found, name: &str) -> Result<Files, String> {
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
        shell: Shell::new(server.state()),
        mountpoint,
        known: HashMap::new(),
        doubt: Doubt::default(),
        next: 0,
        done: 0,
    };
    for round in 0..ROUNDS {
        let for_ms = 500 + rng.below(4000);
        let ended = super::work_until_kill(&mut server, for_ms, |is_killed| worker.work(is_killed));
        super::restart(&mut server, &["tank"]);
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
    assert!(worker.done > 20, "hardly anything was done");
    super::is_whole(&mut server, "tank");
}

#[test]
fn every_dataset_is_as_it_was_acknowledged() {
    super::tell(story);
}
