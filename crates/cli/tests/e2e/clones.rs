//! Goal: clones, promotion, bookmarks, holds and their like do what they do in OpenZFS, and count
//! the same. Method: the commands and what they say; the pool's history; zdb; and a pool that goes
//! to the real OpenZFS, whose figures must be ours, and back.

use std::fs::{create_dir, read, read_dir, remove_dir, rename, write};
use std::path::PathBuf;

use crate::harness::{Peer, Server, can_mount, run, text_of, zdb_is_clean};

/// What counts space, as `zfs get` shows it.
const FIGURES: &str = "used,referenced,usedbydataset,usedbychildren,usedbysnapshots,\
                       usedbyrefreservation,written,logicalused,logicalreferenced,compressratio,\
                       refcompressratio,origin,clones,userrefs,defer_destroy,createtxg,guid";

struct Bed {
    server: Server,
    disks: Vec<String>,
}

impl Bed {
    fn new() -> Option<Self> {
        Self::on(|_, disks| disks.to_vec())
    }

    /// On the devices that `devices` gives for the files of a server.
    fn on(devices: impl Fn(&mut Server, &[String]) -> Vec<String>) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let mut server = Server::start();
        let disks = server.disks(1, 512 << 20);
        let device = devices(&mut server, &disks).remove(0);
        let at = server.text("mnt");
        server.ok(&format!("zpool create -O mountpoint={at} tank {device}"));
        Some(Bed { server, disks })
    }

    fn ok(&self, words: &str) -> String {
        self.server.ok(words)
    }

    /// A command that is refused with these words.
    fn refused(&self, words: &str, told: &str) {
        let said = self.server.fails(words);
        assert!(said.contains(told), "{words}: {said}");
    }

    fn at(&self, path: &str) -> PathBuf {
        self.server.path("mnt").join(path)
    }

    /// Writes a file that does not compress.
    fn fill(&self, path: &str, seed: u64, bytes: usize) {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let words = std::iter::repeat_with(next).take(bytes / 8);
        let content: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        write(self.at(path), content).expect("a file");
    }

    fn names(&self, kinds: &str) -> String {
        self.ok(&format!("zfs list -H -o name -t {kinds} -r tank"))
    }

    fn export_clean(&self) {
        self.ok("zpool export tank");
        zdb_is_clean(&self.server.path("disks"), "tank");
    }
}

#[test]
fn a_clone_is_made_promoted_and_destroyed() {
    let Some(bed) = Bed::new() else { return };
    bed.ok("zfs create -o compression=off tank/a");
    bed.fill("a/f", 1, 1 << 20);
    bed.ok("zfs snapshot tank/a@1");
    bed.fill("a/g", 2, 1 << 20);
    bed.ok("zfs snapshot tank/a@2");

    for (words, told) in [
        (
            "zfs clone tank/a@none tank/c",
            "cannot open 'tank/a@none': dataset does not exist",
        ),
        (
            "zfs clone tank/a@1 tank/a",
            "cannot create 'tank/a': dataset already exists",
        ),
        (
            "zfs clone tank/a@1 tank/x/c",
            "cannot create 'tank/x/c': parent does not exist",
        ),
        (
            "zfs clone tank/a@1 tank/c@s",
            "snapshot delimiter '@' is not expected here",
        ),
        (
            "zfs clone tank/a tank/c",
            "cannot open 'tank/a': missing '@' delimiter in snapshot name",
        ),
        (
            "zfs promote tank/a",
            "cannot promote 'tank/a': not a cloned filesystem",
        ),
        (
            "zfs promote tank/a@1",
            "cannot open 'tank/a@1': snapshot delimiter '@' is not expected here",
        ),
        (
            "zfs promote tank/none",
            "cannot open 'tank/none': dataset does not exist",
        ),
    ] {
        bed.refused(words, told);
    }
    bed.ok("zfs clone -o compression=lz4 -o a:b=c tank/a@1 tank/c");
    assert_eq!(read(bed.at("c/f")).unwrap(), read(bed.at("a/f")).unwrap());
    assert!(!bed.at("c/g").exists());
    let shown = bed.ok("zfs get -H -o value origin,compression,a:b tank/c");
    assert_eq!(shown, "tank/a@1\nlz4\nc\n");
    bed.ok("zfs clone -p tank/a@1 tank/c");
    bed.ok("zfs clone -pu tank/a@2 tank/x/y/z");
    assert!(bed.at("x/y").exists() && !bed.at("x/y/z/f").exists());
    bed.refused("zfs destroy tank/a@1", "snapshot has dependent clones");

    bed.fill("c/h", 3, 1 << 20);
    bed.ok("zfs snapshot tank/c@2");
    // Both have a snapshot @2 only after the clone of @2 is promoted.
    bed.ok("zfs bookmark tank/a@1 tank/a#one");
    bed.ok("zfs bookmark tank/c@2 tank/c#one");
    bed.refused(
        "zfs promote tank/c",
        "conflicting snapshot 'one' from parent 'tank/a@1'",
    );
    bed.ok("zfs destroy tank/c#one");
    bed.ok("zfs promote tank/c");
    assert_eq!(
        bed.names("snapshot,bookmark"),
        "tank/a@2\ntank/c@1\ntank/c@2\ntank/c#one\n"
    );
    assert_eq!(bed.ok("zfs get -H -o value origin tank/a"), "tank/c@1\n");
    assert_eq!(read(bed.at("c/.zfs/snapshot/1/f")).unwrap().len(), 1 << 20);
    bed.ok("zfs promote tank/x/y/z");
    assert_eq!(
        bed.ok("zfs get -H -o value origin tank/a"),
        "tank/x/y/z@2\n"
    );
    let history = bed.ok("zpool history -i tank");
    for line in [
        "zfs clone -o compression=lz4 -o a:b=c tank/a@1 tank/c",
        "clone tank/c (",
        "origin=tank/a@1 (",
        "promote tank/c (",
        "bookmark tank/a (",
        "name=one creation_txg=",
        "ioctl create",
        "ioctl clone",
        "ioctl bookmark",
        "ioctl destroy_bookmarks",
    ] {
        assert!(history.contains(line), "{line} is not in\n{history}");
    }
    bed.refused("zfs destroy tank/c", "filesystem has children");
    bed.ok("zfs destroy -R tank/c");
    assert_eq!(bed.names("filesystem,snapshot"), "tank\ntank/x\ntank/x/y\n");
    bed.export_clean();
}

/// Goal: what can be destroyed in no order is refused before anything is destroyed, and a dry run
/// says so. Method: a clone, and what it was made of moved below it.
#[test]
fn a_clone_above_its_origin_is_not_destroyed_in_part() {
    let Some(bed) = Bed::new() else { return };
    bed.ok("zfs create tank/a");
    bed.fill("a/f", 1, 1 << 16);
    bed.ok("zfs snapshot tank/a@1");
    bed.ok("zfs snapshot tank/a@2");
    bed.ok("zfs clone tank/a@2 tank/c");
    bed.ok("zfs create tank/c/other");
    bed.ok("zfs rename tank/a tank/c/a");
    let all = bed.names("filesystem,snapshot");
    for words in [
        "zfs rollback -R tank/c/a@1",
        "zfs destroy -nR tank/c/a@2",
        "zfs destroy -R tank/c/a@2",
        "zfs destroy -nr tank/c",
        "zfs destroy -r tank/c",
        "zfs destroy -R tank/c",
    ] {
        bed.refused(words, "'tank/c' is a clone of 'tank/c/a@2'");
        assert_eq!(bed.names("filesystem,snapshot"), all, "{words}");
    }
    assert!(bed.at("c/a/f").exists());
    bed.ok("zfs promote tank/c");
    bed.ok("zfs destroy -R tank/c");
    assert_eq!(bed.names("filesystem,snapshot"), "tank\n");
    bed.export_clean();
}

/// Goal: `zfs destroy -R` of several snapshots takes a clone whose own snapshot is one of those
/// named.
#[test]
fn a_clone_goes_with_its_snapshots_that_were_named() {
    let Some(bed) = Bed::new() else { return };
    bed.ok("zfs create tank/t");
    bed.ok("zfs snapshot tank/t@a");
    bed.ok("zfs clone tank/t@a tank/t/c");
    bed.ok("zfs snapshot tank/t/c@own");
    bed.ok("zfs snapshot -r tank/t@b");
    bed.ok("zfs destroy -R tank/t@a,b");
    assert_eq!(bed.names("filesystem,snapshot"), "tank\ntank/t\n");
    bed.export_clean();
}

/// Goal: what is held, in use or too big is found before clones are destroyed for it.
#[test]
fn what_is_refused_is_refused_before_clones_go() {
    let Some(bed) = Bed::new() else { return };
    bed.ok("zfs create -o compression=off tank/a");
    bed.fill("a/f", 1, 1 << 20);
    bed.ok("zfs snapshot tank/a@1");
    std::fs::remove_file(bed.at("a/f")).unwrap();
    bed.ok("zfs snapshot tank/a@2");
    bed.ok("zfs clone tank/a@2 tank/c");
    bed.ok("zfs clone tank/a@2 tank/d");
    bed.ok("zfs snapshot tank/c@own");
    bed.ok("zfs snapshot tank/d@own");
    bed.ok("zpool sync");
    let all = bed.names("filesystem,snapshot");
    let refused = |words: &str, told: &str| {
        bed.refused(words, told);
        assert_eq!(bed.names("filesystem,snapshot"), all, "{words}");
    };
    for held in ["tank/a@2", "tank/c@own", "tank/d@own"] {
        bed.ok(&format!("zfs hold keep {held}"));
        let told = format!("cannot destroy snapshot {held}: it's being held.");
        let busy = format!("cannot destroy '{held}': dataset is busy\n");
        refused("zfs rollback -R tank/a@1", &busy);
        refused("zfs destroy -nR tank/a@2", &told);
        refused("zfs destroy -R tank/a@2", &told);
        bed.ok(&format!("zfs release keep {held}"));
    }
    // Either clone comes first in some order.
    for busy in ["c", "d"] {
        let open = std::fs::File::open(bed.at(busy)).unwrap();
        refused("zfs rollback -R tank/a@1", &format!("/{busy}"));
        refused("zfs destroy -R tank/a@2", &format!("/{busy}"));
        drop(open);
    }
    let open = std::fs::File::open(bed.at("a/.zfs/snapshot/2")).unwrap();
    refused("zfs rollback -R tank/a@1", "tank/a@2");
    refused("zfs destroy -R tank/a@2", "tank/a@2");
    drop(open);
    bed.ok("zfs set refquota=512K tank/a");
    refused("zfs rollback -R tank/a@1", "quota");
    bed.ok("zfs set refquota=none tank/a");
    bed.ok("zfs rollback -R tank/a@1");
    assert_eq!(bed.names("filesystem,snapshot"), "tank\ntank/a\ntank/a@1\n");
    assert!(bed.at("a/f").exists());
    bed.export_clean();
}

/// Goal: a dry run names what the real run destroys, and says of the rest what that says.
#[test]
fn a_dry_run_names_what_is_refused() {
    let Some(bed) = Bed::new() else { return };
    for name in ["t", "t/o", "t/p", "t/p/q", "t/p/r", "t/s"] {
        bed.ok(&format!("zfs create tank/{name}"));
    }
    bed.ok("zfs snapshot -r tank/t@1");
    bed.ok("zfs snapshot tank/t/o@2");
    bed.ok("zfs clone tank/t/o@2 tank/c");
    bed.ok("zfs clone tank/t/s@1 tank/t/e");
    bed.ok("zfs snapshot tank/c@own");
    bed.ok("zfs hold keep tank/c@own tank/t/p/r@1");
    let names = || -> Vec<String> {
        let all = bed.names("filesystem,snapshot");
        all.lines().map(str::to_owned).collect()
    };
    let before = names();
    let dry = bed.server.command(&["zfs", "destroy", "-nvR", "tank/t"]);
    assert!(!dry.status.success());
    let dry = text_of(&dry);
    assert_eq!(names(), before);
    let told = |line: &&str| line.starts_with("would destroy ");
    let goes: Vec<&str> = dry.lines().filter(told).map(|line| &line[14..]).collect();
    assert!(
        goes.contains(&"tank/t/p/q") && goes.contains(&"tank/t/e"),
        "{dry}"
    );
    let refused = |said: &str| -> Vec<String> {
        let lines = said.lines().filter(|line| line.contains("cannot destroy"));
        lines.map(str::to_owned).collect()
    };
    let real = bed.server.fails("zfs destroy -R tank/t");
    assert_eq!(refused(&dry), refused(&real));
    let mut left = before;
    left.retain(|name| !goes.contains(&name.as_str()));
    assert_eq!(names(), left);
    assert!(left.iter().any(|name| name == "tank/t/o@2"), "{left:?}");
    bed.ok("zfs release keep tank/c@own");
    bed.ok("zfs release keep tank/t/p/r@1");
    bed.ok("zfs destroy -nR tank/t");
    bed.ok("zfs destroy -R tank/t");
    assert_eq!(names(), ["tank"]);
    bed.export_clean();
}

#[test]
fn a_clone_of_a_volume_is_served() {
    let Some(bed) = Bed::new() else { return };
    bed.ok("zfs create -V 16M tank/v");
    bed.ok("zfs snapshot tank/v@1");
    bed.ok("zfs clone -o refreservation=auto tank/v@1 tank/w");
    let reserved = |name: &str| bed.ok(&format!("zfs get -Hp -o value refreservation {name}"));
    assert_eq!(reserved("tank/v"), reserved("tank/w"));
    let file = bed.server.state().join("zvol/tank/w");
    assert_eq!(file.metadata().expect("its file").len(), 16 << 20);
    bed.refused(
        "zfs clone -o refreservation=auto tank@0 tank/x",
        "cannot open 'tank@0'",
    );
    bed.ok("zfs promote tank/w");
    bed.ok("zfs destroy tank/v");
    bed.export_clean();
}

#[test]
fn bookmarks_are_made_of_snapshots_and_bookmarks() {
    let Some(bed) = Bed::new() else { return };
    for name in ["a", "a/b", "a/c", "o"] {
        bed.ok(&format!("zfs create -o compression=off tank/{name}"));
    }
    bed.fill("a/f", 1, 1 << 20);
    bed.ok("zfs snapshot -r tank/a@1");
    bed.ok("zfs destroy tank/a/c@1");
    bed.ok("zfs bookmark -r tank/a@1 tank/a#all");
    bed.ok("zfs bookmark tank/a@1 #one");
    bed.ok("zfs bookmark #one tank/a#two");
    assert_eq!(
        bed.names("bookmark"),
        "tank/a#all\ntank/a#one\ntank/a#two\ntank/a/b#all\n"
    );
    bed.ok("zfs clone tank/a@1 tank/k");
    bed.ok("zfs bookmark tank/a@1 tank/k#origin");
    bed.ok("zfs bookmark tank/a#one tank/k#copy");
    for (words, told) in [
        (
            "zfs bookmark tank/a@1 tank/a#one",
            "cannot create bookmark 'tank/a#one': bookmark exists",
        ),
        (
            "zfs bookmark tank/a@1 tank/o#x",
            "source is not an ancestor of the new bookmark's dataset",
        ),
        (
            "zfs bookmark tank/k#copy tank/none#x",
            "dataset does not exist",
        ),
        (
            "zfs bookmark tank/a#no tank/a#x",
            "cannot open 'tank/a#no': no such pool or dataset",
        ),
        (
            "zfs bookmark tank/a@1 other/a#x",
            "bookmark is in a different pool",
        ),
        (
            "zfs bookmark tank/a tank/a#x",
            "invalid source name 'tank/a': must contain a '@' or '#'",
        ),
        (
            "zfs bookmark tank/a@1 tank/a",
            "invalid bookmark name 'tank/a': must contain a '#'",
        ),
        (
            "zfs bookmark @1 #x",
            "must be specified as full dataset paths",
        ),
        (
            "zfs bookmark -r tank/a#one tank/a#x",
            "can only be created from a snapshot source",
        ),
    ] {
        bed.refused(words, told);
    }
    // What the snapshot had and is gone by now counts as written since the bookmark.
    bed.fill("a/f", 2, 1 << 20);
    bed.ok("zpool sync");
    let written = |name: &str| bed.ok(&format!("zfs get -Hp -o value written#{name} tank/a"));
    let since_snapshot = bed.ok("zfs get -Hp -o value written@1 tank/a");
    assert!(since_snapshot.trim().parse::<u64>().unwrap() >= 1 << 20);
    assert_eq!(
        (written("one"), written("two")),
        (since_snapshot.clone(), since_snapshot.clone())
    );
    // In the other order than they were made: snapshot first, then bookmarks.
    bed.ok("zfs destroy -R tank/a@1");
    assert_eq!(written("one"), since_snapshot);
    for name in ["all", "one", "two"] {
        bed.ok(&format!("zfs destroy tank/a#{name}"));
    }
    bed.export_clean();
}

#[test]
fn holds_keep_snapshots() {
    let Some(bed) = Bed::new() else { return };
    bed.ok("zfs create -p tank/a/b");
    bed.ok("zfs snapshot -r tank/a@1");
    bed.ok("zfs snapshot tank/a@2");
    bed.ok("zfs hold keep tank/a@1 tank/a@2");
    bed.ok("zfs hold -r all tank/a@1");
    let held = bed.ok("zfs holds -rH tank/a@1");
    let tags: Vec<(&str, &str)> = held
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, rest)| (name, rest.split('\t').next().unwrap_or("")))
        .collect();
    assert_eq!(
        tags,
        [
            ("tank/a@1", "all"),
            ("tank/a@1", "keep"),
            ("tank/a/b@1", "all")
        ]
    );
    assert_eq!(bed.ok("zfs get -H -o value userrefs tank/a@1"), "2\n");
    let long = "x".repeat(256);
    for (words, told) in [
        (
            "zfs hold keep tank/a@1",
            "cannot hold snapshot 'tank/a@1': tag already exists on this dataset",
        ),
        (
            "zfs hold keep tank/a@no",
            "cannot hold snapshot 'tank/a@no': dataset does not exist",
        ),
        (
            "zfs hold keep tank/no@1",
            "cannot open 'tank/no': dataset does not exist",
        ),
        ("zfs hold keep tank/a", "'tank/a' is not a snapshot"),
        ("zfs hold .keep tank/a@1", "tag may not start with '.'"),
        (&format!("zfs hold {long} tank/a@1"), "tag too long"),
        (
            "zfs release no tank/a@1",
            "cannot release hold from snapshot 'tank/a@1': no such tag on this dataset",
        ),
        ("zfs release keep tank/a@no", "dataset does not exist"),
        ("zfs destroy tank/a@2", "cannot destroy"),
        ("zfs destroy -r tank/a", "cannot destroy"),
    ] {
        bed.refused(words, told);
    }
    bed.ok("zfs destroy -d tank/a@1,2");
    assert_eq!(bed.ok("zfs get -H -o value defer_destroy tank/a@1"), "on\n");
    bed.ok("zfs release keep tank/a@1 tank/a@2");
    assert_eq!(bed.names("snapshot"), "tank/a@1\ntank/a/b@1\n");
    bed.ok("zfs release -r all tank/a@1");
    assert_eq!(bed.names("snapshot"), "tank/a/b@1\n");
    let history = bed.ok("zpool history -i tank");
    for line in [
        "tag=keep temp=0 refs=1",
        "release tank/a@",
        "ioctl hold",
        "ioctl release",
    ] {
        assert!(history.contains(line), "{line} is not in\n{history}");
    }
    bed.export_clean();
}

/// Goal: `mkdir`, `rmdir` and `mv` in `.zfs/snapshot` make, destroy and rename snapshots.
#[test]
fn directories_of_zfs_are_snapshots() {
    let Some(bed) = Bed::new() else { return };
    write(bed.at("f"), "then").unwrap();
    let snapdir = bed.at(".zfs/snapshot");
    let errno = |done: std::io::Result<()>| done.unwrap_err().raw_os_error();
    create_dir(snapdir.join("one")).unwrap();
    write(bed.at("f"), "now").unwrap();
    assert_eq!(read(snapdir.join("one/f")).unwrap(), b"then");
    assert_eq!(bed.names("snapshot"), "tank@one\n");
    assert_eq!(errno(create_dir(snapdir.join("one"))), Some(17));
    assert_eq!(errno(create_dir(snapdir.join("o%e"))), Some(84));
    rename(snapdir.join("one"), snapdir.join("two")).unwrap();
    assert_eq!(bed.names("snapshot"), "tank@two\n");
    assert_eq!(read(snapdir.join("two/f")).unwrap(), b"then");
    assert!(!snapdir.join("one").exists());
    create_dir(snapdir.join("one")).unwrap();
    assert_eq!(read(snapdir.join("one/f")).unwrap(), b"now");
    assert_eq!(
        errno(rename(snapdir.join("one"), snapdir.join("two"))),
        Some(17)
    );
    bed.ok("zfs hold keep tank@two");
    assert_eq!(errno(remove_dir(snapdir.join("two"))), Some(16));
    bed.ok("zfs clone tank@one tank/c");
    assert_eq!(errno(remove_dir(snapdir.join("one"))), Some(17));
    bed.ok("zfs destroy tank/c");
    bed.ok("zfs release keep tank@two");
    remove_dir(snapdir.join("one")).unwrap();
    remove_dir(snapdir.join("two")).unwrap();
    assert_eq!(errno(remove_dir(snapdir.join("two"))), Some(2));
    assert_eq!(read_dir(&snapdir).unwrap().count(), 0);
    assert_eq!(bed.names("snapshot"), "");
    let user = [
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "mkdir",
    ];
    let mut words = user.map(str::to_owned).to_vec();
    words.push(snapdir.join("no").to_string_lossy().into_owned());
    run(
        "chmod",
        &["711", &bed.server.directory.path().to_string_lossy()],
    );
    let output = std::process::Command::new("setpriv")
        .args(words)
        .output()
        .expect("setpriv");
    let said = text_of(&output);
    assert!(
        !output.status.success() && said.contains("not permitted"),
        "{said}"
    );
    bed.export_clean();
}

/// Figures of all datasets, in order.
fn figures(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| line.trim_end().split('\t').collect::<Vec<_>>().join(" "))
        .filter(|line| line.starts_with("tank"))
        // What the pool itself takes changes with every import.
        .filter(|line| {
            let of_all = ["tank used ", "tank usedbychildren", "tank logicalused "];
            !of_all.iter().any(|figure| line.starts_with(figure))
        })
        .collect();
    lines.sort();
    lines
}

/// Goal: figures of clones, bookmarks and holds are OpenZFS's to the byte, and it goes on with
/// them, as we do with its.
#[test]
fn openzfs_counts_the_same() {
    let attached = |server: &mut Server, disks: &[String]| server.attach(disks);
    let Some(mut bed) = Bed::on(attached) else {
        return;
    };
    let Some(peer) = Peer::find() else { return };
    for (name, compression) in [("a", "off"), ("a/b", "lz4"), ("o", "zstd")] {
        bed.ok(&format!(
            "zfs create -o compression={compression} tank/{name}"
        ));
        bed.fill(&format!("{name}/f"), 1, 3 << 20);
        write(
            bed.at(&format!("{name}/text")),
            "a line of text\n".repeat(100_000),
        )
        .unwrap();
    }
    bed.ok("zfs create -o checksum=sha256 -o compression=lz4 tank/n");
    bed.fill("n/f", 5, 1 << 20);
    for round in 1..=4 {
        // The same again, which is not written.
        bed.fill("n/f", 5, 1 << 20);
        for name in ["a", "a/b", "o"] {
            bed.fill(&format!("{name}/f{round}"), round, 1 << 20);
            bed.fill(&format!("{name}/f"), round, 700_000 * round as usize);
        }
        bed.ok(&format!("zfs snapshot -r tank@{round}"));
        bed.ok(&format!("zfs bookmark -r tank@{round} tank#b{round}"));
    }
    for (of, name) in [("a@2", "c"), ("a/b@3", "d"), ("o@4", "e")] {
        bed.ok(&format!("zfs clone tank/{of} tank/{name}"));
        bed.fill(&format!("{name}/mine"), 9, 2 << 20);
        bed.fill(&format!("{name}/f"), 10, 1 << 20);
        bed.ok(&format!("zfs snapshot tank/{name}@own"));
        std::fs::remove_file(bed.at(&format!("{name}/f1"))).unwrap();
    }
    bed.fill("n/f", 5, 1 << 20);
    bed.ok("zfs clone tank/c@own tank/cc");
    bed.fill("cc/g", 11, 1 << 20);
    bed.ok("zfs promote tank/c");
    bed.ok("zfs promote tank/cc");
    bed.ok("zfs hold keep tank/a/b@3 tank/o@4");
    bed.ok("zfs destroy -d tank/o@4");
    bed.ok("zfs destroy tank/a/b@2,1");
    bed.ok("zfs destroy tank/o#b2");
    bed.ok("zfs rename tank/e tank/a/e");
    bed.ok("zfs set refreservation=20M tank/d");
    bed.ok("zpool sync");
    let list = format!("zfs get -Hp -o name,property,value {FIGURES} ");
    let bookmarks =
        "zfs list -Hp -t bookmark -r -o name,referenced,logicalreferenced,createtxg tank";
    let since: String = ["a", "a/b", "o", "c", "cc", "d"]
        .iter()
        .zip(["b3", "b3", "b1", "b1", "b2", "b9"])
        .map(|(name, mark)| {
            format!("zfs get -Hp -o name,property,value written#{mark},written@3 tank/{name}\n")
        })
        .collect();
    let ours = |bed: &Bed| {
        let names = bed.names("filesystem,snapshot").replace('\n', " ");
        let mut text = bed.ok(&format!("{list} {names}"));
        text.push_str(&bed.ok(bookmarks));
        for line in since.lines() {
            text.push_str(&bed.ok(line));
        }
        figures(&text)
    };
    let before = ours(&bed);
    bed.ok("zpool export tank");
    bed.server.detach();
    zdb_is_clean(&bed.server.path("disks"), "tank");
    let script = format!(
        "show() {{ echo SHOW; {list} $(zfs list -H -o name -t filesystem,snapshot -r tank); \
         {bookmarks}; {since} echo END; }}\nzpool import -d /dev/disk/peer -N tank 2>&1\nshow\n\
         zpool scrub -w tank; zpool status tank | grep errors:\nzfs promote tank/d\n\
         zfs release keep tank/d@3\nzfs destroy tank/d@3 2>&1\nzfs destroy -R tank/cc@1 2>&1\n\
         zfs bookmark tank/d@4 tank/d#b9; zpool wait -t free tank; zpool sync tank; show\n\
         zpool export tank; echo PEER-DONE\n"
    );
    let text = peer.run(&bed.disks, &script).replace('\r', "");
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(text.contains("errors: No known data errors"), "{text}");
    let shown: Vec<Vec<String>> = text
        .split("SHOW\n")
        .skip(1)
        .map(|part| figures(part.split("END").next().unwrap_or("")))
        .collect();
    let differ = |ours: &[String], theirs: &[String]| -> Vec<String> {
        let only = |sign: &str, these: &[String], those: &[String]| -> Vec<String> {
            let missing = these.iter().filter(|line| !those.contains(line));
            missing.map(|line| format!("{sign}{line}")).collect()
        };
        [only("ours: ", ours, theirs), only("theirs: ", theirs, ours)].concat()
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(differ(&before, &shown[0]), none);
    let from = bed.server.attach_to_import(&bed.disks);
    bed.ok(&format!("zpool import {from} tank"));
    assert_eq!(differ(&ours(&bed), &shown[1]), none);
    // Nothing keeps what OpenZFS made from being destroyed here.
    bed.ok("zfs destroy -R tank/a@4");
    bed.ok("zpool export tank");
    bed.server.detach();
    zdb_is_clean(&bed.server.path("disks"), "tank");
}
