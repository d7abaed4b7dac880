//! Goal: what `zpool` and `zfs` print of pools that OpenZFS made is what OpenZFS printed of them.
//! Method: golden pools (shared/golden/README.md) imported read-only without mounts, against their
//! manifests. What a read-only import of OpenZFS does not know is not compared: it loads no space
//! maps and so tells that nothing is allocated.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{MILLPOND, Server, text_of};

/// A golden pool's images, unpacked, with a server of their own.
pub struct Golden {
    pub server: Server,
    pub manifest: Value,
    pub pool: String,
    pub directory: String,
}

/// Unpacks the images of the pool called `name` below `directory`; answers its manifest and where
/// they are.
pub fn unpack_into(directory: &Path, name: &str) -> Option<(Value, PathBuf)> {
    Some(unpack_from(&oracles::golden()?, directory, name))
}

/// The same of a golden pool that lies in `golden`.
pub fn unpack_from(golden: &Path, directory: &Path, name: &str) -> (Value, PathBuf) {
    let manifest = oracles::manifest(golden, name);
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    std::fs::create_dir_all(directory).expect("a directory");
    let images = oracles::unpack(golden, name, directory);
    (manifest, images)
}

impl Golden {
    /// The pool called `name`; nothing where there are no golden pools.
    pub fn unpack(name: &str) -> Option<Self> {
        oracles::golden()?;
        let server = Server::start();
        let (manifest, _) = unpack_into(server.directory.path(), name)?;
        Some(Self {
            pool: manifest["pool"].as_str().expect("a pool").to_owned(),
            directory: server.text(name),
            server,
            manifest,
        })
    }

    /// A property of a dataset, exactly.
    pub fn value(&self, dataset: &str, property: &str) -> String {
        let words = format!("zfs get -Hp -o value {property} {dataset}");
        self.server.ok(&words).trim_end().to_owned()
    }

    /// Imports it read-only, without mounts.
    pub fn import(&self) {
        let words = format!(
            "zpool import -o readonly=on -N -d {} {}",
            self.directory, self.pool
        );
        self.server.ok(&words);
    }

    /// Runs a command with the clock of the golden pools' maker, and with paths as they were there.
    pub fn text(&self, words: &str) -> String {
        let output = Command::new(MILLPOND)
            .args(words.split_whitespace())
            .env("MILLPOND_STATE", self.server.state())
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .output()
            .expect("millpond runs");
        assert!(output.status.success(), "{words}:\n{}", text_of(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    fn recorded(&self, field: &str) -> String {
        let text = self.manifest[field].as_str().unwrap_or_default();
        text.trim_end().to_owned()
    }

    /// Names of leaves are the paths they are found at: `disk/peer/d0` there, files here.
    fn words_of(&self, text: &str) -> Vec<Vec<String>> {
        let prefix = format!("{}/", self.directory);
        text.trim_end()
            .lines()
            .map(|line| {
                line.replace(&prefix, "disk/peer/")
                    .replace(".img", "")
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect()
            })
            .collect()
    }

    /// `zpool status` without what cannot be the same.
    fn status_of(&self, text: &str) -> Vec<Vec<String>> {
        let mut lines = self.words_of(text);
        lines.retain(|line| {
            // An expansion that is under way: how fast depends on the time, and how much is
            // allocated a read-only import of OpenZFS does not know. What a scrub says has tests of
            // its own.
            let first = line.first().map(String::as_str);
            // The same goes for a removal.
            first != Some("scan:") && !line.contains(&"copied".into())
                || matches!(first, Some("expand:" | "remove:"))
        });
        lines
    }

    fn check(&self) {
        let pool = &self.pool;
        self.import();
        assert_eq!(
            self.status_of(&self.text(&format!("zpool status -v {pool}"))),
            self.status_of(&self.recorded("status")),
            "zpool status"
        );
        assert_eq!(
            self.status_of(&self.text(&format!("zpool status -gLv -d {pool}"))),
            self.status_of(&self.recorded("status_guids")),
            "zpool status -gLv -d"
        );
        // Name, size, ..., health; not what is allocated, free, fragmented and full.
        let columns = |text: &str| -> Vec<Vec<String>> {
            self.words_of(text)
                .into_iter()
                .map(|row| {
                    let kept = row
                        .iter()
                        .enumerate()
                        .filter(|(index, _)| ![2, 3, 6, 7].contains(index));
                    kept.map(|(_, word)| word.clone()).collect()
                })
                .collect()
        };
        assert_eq!(
            columns(&self.text(&format!("zpool list -vHp {pool}"))),
            columns(&self.recorded("listv")),
            "zpool list -vHp"
        );
        assert_eq!(
            self.text(&format!("zpool history {pool}")).trim_end(),
            self.recorded("history"),
            "zpool history"
        );
        let mut wrong = Vec::new();
        let shown = self.text(&format!("zpool get -Hp -o property,value all {pool}"));
        let shown: Vec<(&str, &str)> = shown.lines().filter_map(|l| l.split_once('\t')).collect();
        for (name, value) in self.manifest["pool_props"].as_object().expect("properties") {
            let skipped = [
                "allocated",
                "free",
                "capacity",
                "fragmentation",
                "load_guid",
            ];
            if skipped.contains(&name.as_str()) {
                continue;
            }
            let ours = shown.iter().find(|(found, _)| found == name);
            if ours.map(|(_, value)| *value) != value.as_str() {
                wrong.push(format!("{pool} {name}: {ours:?}, not {value}"));
            }
        }
        let shown = self.text(&format!(
            "zfs get -rHp -t all -o name,property,value all {pool}"
        ));
        let shown: std::collections::HashMap<(&str, &str), &str> = shown
            .lines()
            .filter_map(|line| {
                let mut fields = line.splitn(3, '\t');
                Some(((fields.next()?, fields.next()?), fields.next()?))
            })
            .collect();
        for dataset in self.manifest["datasets"].as_array().expect("datasets") {
            let name = dataset["name"].as_str().expect("a name");
            for (property, value) in dataset["props"].as_object().expect("properties") {
                let ours = shown.get(&(name, property.as_str())).copied();
                // What is available depends on what is allocated as well.
                if property != "available" && ours != value.as_str() {
                    wrong.push(format!("{name} {property}: {ours:?}, not {value}"));
                }
            }
            self.check_owners(dataset, &mut wrong);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Who uses what of a dataset, and who holds it.
    fn check_owners(&self, dataset: &Value, wrong: &mut Vec<String>) {
        let name = dataset["name"].as_str().expect("a name");
        if let Some(rows) = dataset["space"].as_array() {
            let mut ours = String::new();
            for command in ["userspace", "groupspace", "projectspace"] {
                let fields = "type,name,used,quota,objused,objquota";
                let of_projects = command == "projectspace";
                if of_projects && self.manifest["features"]["project_quota"] != "active" {
                    continue;
                }
                let numeric = if of_projects { "" } else { "-n" };
                ours += &self.text(&format!("zfs {command} -Hp {numeric} -o {fields} {name}"));
            }
            let ours: Vec<Vec<&str>> = ours.lines().map(|row| row.split('\t').collect()).collect();
            let theirs: Vec<Vec<&str>> = rows
                .iter()
                .map(|row| {
                    let cells = row.as_array().expect("cells").iter();
                    cells.map(|cell| cell.as_str().expect("text")).collect()
                })
                .collect();
            let of = |rows: &[Vec<&str>], kind: &str| -> Vec<Vec<String>> {
                let mut rows: Vec<Vec<String>> = rows
                    .iter()
                    .filter(|row| row[0] == kind)
                    .map(|row| row.iter().map(|cell| (*cell).to_owned()).collect())
                    .collect();
                rows.sort();
                rows
            };
            // Some manifests were made without projects.
            let all = self.manifest["datasets"].as_array().into_iter().flatten();
            let has_projects = all
                .filter_map(|dataset| dataset["space"].as_array())
                .flatten()
                .any(|row| row[0] == "Project");
            let kinds = ["POSIX User", "POSIX Group", "Project"];
            for kind in kinds.into_iter().take(if has_projects { 3 } else { 2 }) {
                let (ours, theirs) = (of(&ours, kind), of(&theirs, kind));
                if ours != theirs {
                    wrong.push(format!("{name} {kind}: {ours:?}, not {theirs:?}"));
                }
            }
        }
        if let Some(tags) = dataset["holds"].as_array() {
            let text = self.text(&format!("zfs holds -H {name}"));
            let mut ours: Vec<&str> = text
                .lines()
                .filter_map(|row| row.split('\t').nth(1))
                .collect();
            let mut theirs: Vec<&str> = tags.iter().filter_map(Value::as_str).collect();
            ours.sort_unstable();
            theirs.sort_unstable();
            if ours != theirs {
                wrong.push(format!("{name} holds: {ours:?}, not {theirs:?}"));
            }
        }
    }
}

#[test]
fn dedup_tables_are_shown_as_zdb_shows_them() {
    for name in ["dedup_fast", "dedup_legacy"] {
        let Some(golden) = Golden::unpack(name) else {
            return;
        };
        golden.import();
        let shown = golden.text(&format!("zpool status -D {name}"));
        let recorded = golden.recorded("zdb-DD");
        // From the head of the histogram to its total.
        let table = |text: &str| -> Vec<String> {
            let from = text.lines().skip_while(|line| !line.starts_with("bucket"));
            let rows = from.take_while(|line| !line.is_empty());
            rows.map(|line| line.trim_end().to_owned()).collect()
        };
        assert_eq!(table(&shown), table(&recorded));
        assert!(shown.contains("dedup: DDT entries 188, size "), "{shown}");
    }
}

macro_rules! golden_pools {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            if let Some(golden) = Golden::unpack(stringify!($name)) {
                golden.check();
            }
        }
    )*};
}

golden_pools!(
    plain mirror3 stripe_of_mirrors raidz1_3 raidz2_multi raidz3_8 nofeat v28 v15_fs3 stale
    big_dirs damaged special gang_raidz checkpoint cloned_blocks dedup_fast dedup_legacy
    raidz_expanded raidz_expanding gang logs_cache removed removing draid draid_spare
);

#[test]
fn import_lists_what_is_there_and_what_is_missing() {
    let Some(golden) = Golden::unpack("mirror3") else {
        return;
    };
    let list = format!("zpool import -d {}", golden.directory);
    let text = golden.server.ok(&list);
    let id = golden.manifest["pool_props"]["guid"]
        .as_str()
        .expect("guid");
    let expected = format!(
        "  pool: g_mirror3\n    id: {id}\n state: ONLINE\naction: The pool can be imported using \
         its name or numeric identifier.\nconfig:\n\n"
    );
    assert!(text.starts_with(&expected), "{text}");
    std::fs::remove_file(format!("{}/d1.img", golden.directory)).expect("d1 is there");
    let text = golden.server.ok(&list);
    for part in [
        " state: DEGRADED\nstatus: One or more devices are missing from the system.\n",
        "action: The pool can be imported despite missing or damaged devices.  The\n\tfault \
         tolerance of the pool may be compromised if imported.\n",
        "   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q\n",
        "  UNAVAIL  cannot open\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    // By number, with another name.
    golden.server.ok(&format!(
        "zpool import -o readonly=on -N -d {} {id} other",
        golden.directory
    ));
    let text = golden.server.ok("zpool list -H -o name,health");
    assert_eq!(text.trim(), "other\tDEGRADED");
}

/// Goal: a pool that lacks too much is listed with what it lacks. Method: what OpenZFS says where a
/// vdev misses more devices than it has parity, and where nothing of a vdev is there
/// (`show_import`, `print_import_config`; cmd/zpool/zpool_main.c).
#[test]
fn a_pool_that_cannot_be_imported_is_listed_with_why() {
    for (name, gone, config, status, see, footer) in [
        (
            "raidz1_3",
            &["d0.img", "d2.img"][..],
            "g_raidz1_3  UNAVAIL  insufficient replicas\n  raidz1-0        UNAVAIL  insufficient \
             replicas\n    disk/peer/d0  UNAVAIL  cannot open\n    disk/peer/d1  ONLINE\n    \
             disk/peer/d2  UNAVAIL  cannot open\n",
            "One or more devices are missing from the system.",
            "ZFS-8000-3C",
            "",
        ),
        (
            "stripe_of_mirrors",
            &["d2.img", "d3.img"][..],
            "stripe_of_mirrors  UNAVAIL  missing device\n  mirror-0  ONLINE\n    disk/peer/d0  \
             ONLINE\n    disk/peer/d1  ONLINE\n",
            "One or more devices are missing from the system.",
            "ZFS-8000-6X",
            "\n\tAdditional devices are known to be part of this pool, though their\n\texact \
             configuration cannot be determined.\n",
        ),
    ] {
        let Some(golden) = Golden::unpack(name) else {
            return;
        };
        for image in gone {
            let path = Path::new(&golden.directory).join(image);
            std::fs::remove_file(path).expect("it is there");
        }
        let text = golden
            .server
            .ok(&format!("zpool import -d {}", golden.directory));
        for part in [
            format!(" state: UNAVAIL\nstatus: {status}\n"),
            "action: The pool cannot be imported. Attach the missing\n\tdevices and try again.\n"
                .to_owned(),
            format!("   see: https://openzfs.github.io/openzfs-docs/msg/{see}\n"),
        ] {
            assert!(text.contains(&part), "{part:?} is not in\n{text}");
        }
        let (_, rest) = text.split_once("config:\n\n").expect("a configuration");
        assert!(
            golden.words_of(rest).starts_with(&golden.words_of(config)),
            "{text}"
        );
        assert!(rest.ends_with(footer), "{text}");
        let words = format!("zpool import -N -d {} {}", golden.directory, golden.pool);
        golden.server.fails(&words);
    }
}

/// Goal: without its log a pool is listed as OpenZFS lists it, and what `-m` would lose is told
/// besides. Method: what OpenZFS 2.3.2 printed of these images without the logs; only that it says
/// "corrupted data" (and nothing of the devices themselves) of disks that are not there, where we
/// say what it says of files.
#[test]
fn a_missing_log_is_listed_with_what_to_do() {
    let found = "  disk/peer/d0    ONLINE\n";
    let mirror = "  mirror-0        ONLINE\n    disk/peer/d0  ONLINE\n    disk/peer/d1  ONLINE\n";
    for (name, data, cache, lost) in [
        (
            "logs_cache",
            mirror,
            "cache\n  disk/peer/c0\n",
            "may be lost in:\n\tlogs_cache/a\n\tlogs_cache/b\n",
        ),
        (
            "zil_dirty_slog",
            found,
            "",
            "may be lost in:\n\tzil_dirty_slog/always\n",
        ),
    ] {
        let Some(golden) = Golden::unpack(name) else {
            return;
        };
        let away = golden.server.directory.path().join("away");
        std::fs::create_dir_all(&away).expect("a directory");
        for log in ["l0.img", "l1.img"] {
            let path = Path::new(&golden.directory).join(log);
            std::fs::rename(path, away.join(log)).expect("the log goes");
        }
        let list = format!("zpool import -d {}", golden.directory);
        let text = golden.server.ok(&list);
        let id = golden.manifest["pool_props"]["guid"]
            .as_str()
            .expect("guid");
        let (head, rest) = text.split_once("config:\n\n").expect("a configuration");
        let action = "action: The pool can be imported despite missing or damaged devices.  The\n\
                      \tfault tolerance of the pool may be compromised if imported.\n";
        assert!(
            head.starts_with(&format!(
                "  pool: {name}\n    id: {id}\n state: DEGRADED\nstatus: "
            )) && head.contains(action),
            "{text}"
        );
        let (config, footer) = rest.split_once("\n\n").expect("a footer");
        let expected = format!(
            "{name}  DEGRADED\n{data}{cache}logs\n  mirror-1        UNAVAIL  insufficient \
             replicas\n    disk/peer/l0  UNAVAIL  cannot open\n    disk/peer/l1  UNAVAIL  cannot \
             open\n"
        );
        assert_eq!(
            golden.words_of(config),
            golden.words_of(&expected),
            "{text}"
        );
        assert!(
            footer.contains("use '-m'") && footer.contains(lost),
            "{text}"
        );
        // It is as it says.
        let words = format!("zpool import -f -N -d {} {name}", golden.directory);
        let error = golden.server.fails(&words);
        assert!(
            error.contains("use '-m' to import the pool anyway"),
            "{error}"
        );
        for log in ["l0.img", "l1.img"] {
            let path = Path::new(&golden.directory).join(log);
            std::fs::rename(away.join(log), path).expect("the log is back");
        }
        let text = golden.server.ok(&list);
        assert!(text.contains("mirror-1") && !text.contains("-m'"), "{text}");
    }
}

/// Goal: latencies, sizes and depths come from the pool's devices. Method: what an import read.
#[test]
fn iostat_tells_of_latencies_and_sizes() {
    let Some(golden) = Golden::unpack("logs_cache") else {
        return;
    };
    golden.import();
    let server = &golden.server;
    let sum = |text: &str, column: usize| -> u64 {
        let rows = text.lines().filter_map(|line| line.split('\t').nth(column));
        rows.map(|count| count.parse::<u64>().expect("a count"))
            .sum()
    };
    // Blocks are read synchronously or ahead, one by one; nothing is written to a pool that is
    // read-only.
    let sizes = server.ok("zpool iostat -rHp logs_cache");
    let read = sum(&sizes, 1) + sum(&sizes, 5);
    assert!(read > 0 && sum(&sizes, 3) + sum(&sizes, 7) == 0, "{sizes}");
    let times = server.ok("zpool iostat -wHp logs_cache");
    let (total, disk) = (sum(&times, 1), sum(&times, 3));
    assert!(total >= read && disk == total, "{sizes}{times}");
    assert_eq!(sum(&times, 2), 0, "{times}");
    let line = server.ok("zpool iostat -lqHp logs_cache mirror-0");
    let fields: Vec<&str> = line.trim_end().split('\t').collect();
    assert_eq!(
        (fields.len(), fields[0]),
        (1 + 6 + 11 + 14, "mirror-0"),
        "{line}"
    );
    assert!(fields[7].parse::<u64>().expect("a time") > 0, "{line}");
    assert_eq!(fields[8], "-", "{line}");
    // Logs hold no data.
    let line = server.ok("zpool iostat -Hp logs_cache");
    let fields: Vec<&str> = line.split('\t').collect();
    let listed = server.ok("zpool list -Hp -o allocated,free logs_cache");
    assert_eq!(fields[1..3].join("\t"), listed.trim_end(), "{line}");
    let error = server.fails("zpool iostat logs_cache nosuch");
    assert!(error.contains("\tnosuch (unknown)"), "{error}");
    let error = server.fails("zpool iostat -r -l");
    assert!(error.contains("[-r|-w] isn't allowed with"), "{error}");
}

#[test]
fn what_is_missing_is_named_and_everything_else_is_there() {
    let Some(golden) = Golden::unpack("degraded") else {
        return;
    };
    golden.import();
    let text = golden.text("zpool status -v degraded");
    for part in [
        " state: DEGRADED\nstatus: One or more devices could not be opened.  Sufficient replicas \
         exist for\n",
        "action: Attach the missing device and online it using 'zpool online'.\n",
        "   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q\n",
        "  UNAVAIL      0     0     0  was /dev/disk/peer/d1\n",
        "  UNAVAIL      0     0     0  was /dev/disk/peer/d3\n",
        "errors: No known data errors\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    // Without their paths, devices are numbers.
    let named = text
        .lines()
        .filter(|line| line.contains("UNAVAIL"))
        .all(|line| {
            let name = line.split_whitespace().next();
            name.is_some_and(|name| name.parse::<u64>().is_ok())
        });
    assert!(named, "{text}");
}

/// The manifest's status is of before the damage.
#[test]
fn damage_is_counted_on_the_device_that_has_it() {
    let Some(golden) = Golden::unpack("damaged_raidz") else {
        return;
    };
    golden.import();
    let text = golden.text("zpool status damaged_raidz");
    let counted = |word: &str| {
        let line = text.lines().find(|line| line.contains(word));
        let words: Vec<&str> = line.expect("a line").split_whitespace().collect();
        words[2..5].join(" ")
    };
    for device in ["d0.img", "d1.img", "d3.img"] {
        assert_eq!(counted(device), "0 0 0", "{text}");
    }
    let wrong = counted("d2.img");
    assert!(wrong.starts_with("0 0 ") && wrong != "0 0 0", "{text}");
    for part in [
        "state: ONLINE\nstatus: One or more devices has experienced an unrecoverable error.",
        "msg/ZFS-8000-9P\n",
        "errors: No known data errors\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_cache_that_is_missing_is_named_and_no_harm() {
    let Some(golden) = Golden::unpack("logs_cache") else {
        return;
    };
    std::fs::remove_file(format!("{}/c0.img", golden.directory)).expect("c0 is there");
    golden.import();
    let text = golden.text("zpool status logs_cache");
    for part in [
        " state: ONLINE\nstatus: One or more devices could not be opened.",
        "\tcache\n",
        "  UNAVAIL      0     0     0  was /dev/disk/peer/c0\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// What OpenZFS began to remove goes once the pool is imported.
#[test]
fn a_removal_goes_on_when_its_pool_is_imported() {
    let Some(golden) = Golden::unpack("removing") else {
        return;
    };
    let (server, directory) = (&golden.server, &golden.directory);
    let text = server.ok(&format!("zpool import -d {directory}"));
    assert!(text.contains("state: ONLINE"), "{text}");
    server.ok(&format!("zpool import -N -d {directory} removing"));
    server.ok("zpool wait -t remove removing");
    let text = server.ok("zpool status removing");
    assert!(text.contains("remove: Removal of vdev 1 copied"), "{text}");
    assert!(!text.contains("mirror-1"), "{text}");
    server.ok("zpool export removing");
}

#[test]
fn a_pool_goes_back_to_its_checkpoint() {
    let Some(golden) = Golden::unpack("checkpoint") else {
        return;
    };
    let directory = &golden.directory;
    for options in ["-o readonly=on ", ""] {
        golden.server.ok(&format!(
            "zpool import {options}-N -d {directory} checkpoint"
        ));
        let names = golden.server.ok("zfs list -H -o name");
        assert!(names.contains("checkpoint/new") && !names.contains("will_go"));
        golden.server.ok("zpool export checkpoint");
        golden.server.ok(&format!(
            "zpool import {options}-N --rewind-to-checkpoint -d {directory} checkpoint"
        ));
        let names = golden.server.ok("zfs list -H -o name");
        assert!(names.contains("will_go") && !names.contains("checkpoint/new"));
        golden.server.ok("zpool export checkpoint");
    }
    golden
        .server
        .ok(&format!("zpool import -N -d {directory} checkpoint"));
    let names = golden.server.ok("zfs list -H -o name");
    assert!(names.contains("will_go") && !names.contains("checkpoint/new"));
    golden.server.ok("zpool export checkpoint");
}

#[test]
fn labels_are_those_that_zdb_shows_and_garbage_is_told_as_such() {
    let Some(golden) = Golden::unpack("plain") else {
        return;
    };
    let disk = format!("{}/d0.img", golden.directory);
    let text = golden.server.ok(&format!("labels {disk}"));
    assert!(text.contains("    name: 'plain'\n"), "{text}");
    assert!(text.contains("labels = 0 1 2 3"), "{text}");
    let shown = golden.server.ok(&format!("labels -j {disk}"));
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(
        shown["configs"][0]["config"]["pool_guid"]
            .as_u64()
            .map(|guid| guid.to_string())
            .as_deref(),
        golden.manifest["pool_props"]["guid"].as_str()
    );
    let ring = shown["uberblocks"].as_array().expect("uberblocks");
    assert!(ring.len() > 100 && ring.iter().all(|slot| slot["checksum_ok"] == true));
    // The first label's configuration and the first slot of its ring are damaged.
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options()
        .write(true)
        .open(&disk)
        .expect("the disk");
    file.write_all_at(&[0x5a; 64], (16 << 10) + 100)
        .expect("write");
    file.write_all_at(&[0x5a; 8], (128 << 10) + 500)
        .expect("write");
    let text = golden.server.ok(&format!("labels {disk}"));
    assert!(text.contains("LABEL 0\n------------------------------------\n    not valid"));
    assert!(text.contains("Uberblock[0] (checksum is wrong)"), "{text}");
    let garbage = golden.server.text("garbage");
    let bytes: Vec<u8> = (0..2u32 << 20)
        .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
        .collect();
    std::fs::write(&garbage, bytes).expect("a file");
    let error = golden.server.fails(&format!("labels {garbage}"));
    assert!(error.contains("no valid label"), "{error}");
}
