//! Goal: `zpool events` tells what happened as OpenZFS's does. Method: pools of files, commands,
//! and what they are told to have done; the same commands to the real OpenZFS.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{MILLPOND, Peer, Server, can_mount};

/// How long the reader of events may take to get one.
const PATIENCE: Duration = Duration::from_secs(120);

/// The blocks of `zpool events -v`, each with its class and its pairs.
fn blocks(text: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut blocks: Vec<(String, Vec<(String, String)>)> = Vec::new();
    for line in text.lines() {
        if let Some((name, value)) = line.trim_start().split_once(" = ") {
            if let (Some((_, pairs)), true) = (blocks.last_mut(), line.starts_with(' ')) {
                pairs.push((name.to_owned(), value.to_owned()));
            }
        } else if let Some(class) = line.split_whitespace().last()
            && class.contains(".fs.zfs.")
        {
            blocks.push((class.to_owned(), Vec::new()));
        }
    }
    blocks
}

/// Goal: kept events are listed, in the forms that there are, go on with `-f`, and go with `-c`.
/// Method: two pools, and one reader from before them.
#[test]
fn events_are_listed_followed_and_cleared() {
    let server = Server::start();
    let disks = server.disks(2, 128 << 20);
    let followed = server.path("followed");
    let mut reader = Command::new(MILLPOND)
        .args(["zpool", "events", "-Hf", "tank"])
        .env("MILLPOND_STATE", server.state())
        .stdin(Stdio::null())
        .stdout(File::create(&followed).expect("a file"))
        .spawn()
        .expect("millpond runs");
    for (name, disk) in [("tank", &disks[0]), ("other", &disks[1])] {
        server.ok(&format!(
            "zpool create -O mountpoint=none -O canmount=off {name} {disk}"
        ));
    }
    server.ok("zpool export tank");

    let told = server.ok("zpool events");
    let mut lines = told.lines();
    assert_eq!(lines.next(), Some("TIME                           CLASS"));
    let line = lines.next().expect("an event");
    let (time, class) = line.split_at(31);
    assert!(class.starts_with("sysevent.fs.zfs."), "{line}");
    let second = time.trim().rsplit_once('.').expect("a fraction").1;
    assert!(second.len() == 9 && time.ends_with(' '), "{line}");
    let scripted = server.ok("zpool events -H");
    assert_eq!(scripted.lines().count() + 1, told.lines().count());
    assert!(scripted.lines().all(|line| line.split('\t').count() == 2));

    let verbose = blocks(&server.ok("zpool events -v tank"));
    let is_of_tank =
        |pairs: &[(String, String)]| pairs.contains(&("pool".into(), "\"tank\"".into()));
    assert!(verbose.iter().all(|(_, pairs)| is_of_tank(pairs)));
    let find = |class: &str| {
        let found = verbose.iter().find(|(own, _)| own.ends_with(class));
        &found.unwrap_or_else(|| panic!("{class}: {verbose:?}")).1
    };
    let eids = |pairs: &[(String, String)]| pairs.last().expect("pairs").clone();
    let created = eids(find("pool_create"));
    assert_eq!(created.0, "eid");
    let state = ("pool_state".to_owned(), "0x1".to_owned());
    assert!(find("pool_export").contains(&state));
    let name = ("history_internal_name".to_owned(), "\"create\"".to_owned());
    assert!(find("history_event").contains(&name));

    // The reader has them all, of its pool.
    let begin = Instant::now();
    let wanted = server.ok("zpool events -H tank");
    while std::fs::read_to_string(&followed).expect("text") != wanted {
        assert!(begin.elapsed() < PATIENCE, "{wanted}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let count = told.lines().count() - 1;
    assert_eq!(
        server.ok("zpool events -c"),
        format!("cleared {count} events\n")
    );
    assert_eq!(server.ok("zpool events -H"), "");
    server.ok("zpool set comment=x other");
    let after = blocks(&server.ok("zpool events -v"));
    let eid = &after[0].1.last().expect("pairs").1;
    assert_eq!(eid, &format!("{:#x}", count + 1), "numbers go on");
    reader.kill().expect("the reader runs");
    reader.wait().expect("it ends");

    let refused = server.fails("zpool events -vc");
    assert!(
        refused.contains("invalid options combined with -c"),
        "{refused}"
    );
    let refused = server.fails("zpool events 1/2");
    assert!(refused.contains("invalid pool name '1/2'"), "{refused}");
    server.ok("zpool export other");
}

/// Goal: a disk that lies is shown as one with too many errors, and told of, until it is cleared.
/// Method: half a mirror overwritten with noise, and files read.
#[test]
fn a_disk_with_too_many_errors_is_shown() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(2, 128 << 20);
    let (mount, directory) = (server.text("mount"), server.text("disks"));
    server.ok(&format!(
        "zpool create -O compression=off -m {mount} tank mirror {} {}",
        disks[0], disks[1]
    ));
    let file = Path::new(&mount).join("file");
    let content: Vec<u8> = (0..4u64 << 20).flat_map(u64::to_le_bytes).collect();
    std::fs::write(&file, &content).expect("write");
    server.ok("zpool export tank");
    let noise = vec![0xa5; 100 << 20];
    let disk = File::options().write(true).open(&disks[0]).expect("open");
    disk.write_all_at(&noise, 8 << 20).expect("write");
    server.ok(&format!("zpool import -d {directory} tank"));
    assert!(std::fs::read(&file).expect("read") == content);
    let begin = Instant::now();
    let status = loop {
        let status = server.ok("zpool status tank");
        if status.contains("too many errors") {
            break status;
        }
        assert!(begin.elapsed() < PATIENCE, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let line = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.contains(name));
        line.unwrap_or_default().to_owned()
    };
    let bad = line(&status, &disks[0]);
    assert!(
        bad.contains("DEGRADED") && bad.ends_with("too many errors"),
        "{status}"
    );
    assert!(line(&status, &disks[1]).contains("ONLINE"), "{status}");
    assert!(
        status.contains("has experienced an unrecoverable error"),
        "{status}"
    );
    let told = blocks(&server.ok("zpool events -v tank"));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let of_disk = pair("vdev_path", &format!("\"{}\"", disks[0]));
    let wrong = told.iter().filter(|(class, pairs)| {
        class == "ereport.fs.zfs.checksum"
            && pairs.contains(&of_disk)
            && pairs.contains(&pair("zio_err", "0x34"))
    });
    assert!(wrong.count() >= 10, "{told:?}");
    let marked = pair("vdev_state", "\"DEGRADED\" (0x6)");
    let marked = told.iter().find(|(_, pairs)| pairs.contains(&marked));
    assert_eq!(marked.expect("a change").0, "resource.fs.zfs.statechange");

    server.ok("zpool clear tank");
    let status = server.ok("zpool status tank");
    assert!(line(&status, &disks[0]).contains("ONLINE"), "{status}");
    let last = server.ok("zpool events -H tank");
    assert!(last.contains("sysevent.fs.zfs.vdev_clear"), "{last}");
    server.ok("zpool export tank");
}

/// What is the same wherever it happens: of the first event of each class its pairs, without what
/// tells of places and times.
fn shape(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut shapes = BTreeMap::new();
    for (class, pairs) in blocks(text) {
        let pairs = pairs.into_iter().map(|(name, value)| match name.as_str() {
            "pool_guid" | "vdev_guid" | "vdev_path" | "time" | "eid" => name,
            name if name.starts_with("history_") => name.to_owned(),
            name => format!("{name} = {value}"),
        });
        let pairs = pairs.collect();
        shapes.entry(class).or_insert(pairs);
    }
    shapes
}

/// Goal: events have the classes, pairs and values that OpenZFS gives them. Method: the same
/// commands here and there.
#[test]
fn openzfs_tells_the_same_of_a_pool() {
    let Some(peer) = Peer::find() else { return };
    let server = Server::start();
    let disks = server.disks(4, 128 << 20);
    let directory = server.text("disks");
    let commands = |disks: &[String], directory: &str| {
        [
            format!(
                "zpool create -O mountpoint=none -O canmount=off tank mirror {} {}",
                disks[0], disks[1]
            ),
            format!("zpool add -f tank log {}", disks[2]),
            format!("zpool remove tank {}", disks[2]),
            format!("zpool add -f tank spare {}", disks[3]),
            format!("zpool remove tank {}", disks[3]),
            "zpool reguid tank".to_owned(),
            "zpool export tank".to_owned(),
            format!("zpool import -d {directory} tank"),
            "zpool destroy tank".to_owned(),
        ]
    };
    let theirs: Vec<String> = (0..4)
        .map(|disk| format!("/dev/disk/peer/d{disk}"))
        .collect();
    let mut script = "zpool events -c > /dev/null\n".to_owned();
    script.push_str(&commands(&theirs, "/dev/disk/peer").join("\n"));
    script.push_str("\nzpool events -v");
    let theirs = shape(&peer.run(&disks, &script));
    for command in commands(&disks, &directory) {
        server.ok(&command);
    }
    let ours = shape(&server.ok("zpool events -v"));
    for (class, pairs) in &theirs {
        // We keep no file that cannot be written.
        if class != "ereport.fs.zfs.config_cache_write" {
            assert_eq!(ours.get(class), Some(pairs), "{class}");
        }
    }
    let known = |class: &&String| !theirs.contains_key(*class);
    let more: Vec<&String> = ours.keys().filter(known).collect();
    assert!(more.is_empty(), "{more:?}");
}
