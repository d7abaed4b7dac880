//! Faults that are asked for: they come, count as what they look like, hurt nothing that they are
//! not to, and end.

use std::path::Path;

use crate::harness::{Server, can_mount, zdb_is_clean};
use crate::suspend::noise;

/// A server that injects faults, with a mirror of two disks, and the file that is in it.
fn with_mirror() -> (Server, Vec<String>, Vec<u8>) {
    let mut server = Server::prepare();
    server.launch(&["daemon", "--inject"]);
    let disks = server.disks(2, 256 << 20);
    let (at, mirror) = (server.text("t"), disks.join(" "));
    server.ok(&format!("zpool create -m {at} tank mirror {mirror}"));
    let data = noise(1, 4 << 20);
    std::fs::write(server.path("t/file"), &data).expect("a file");
    server.ok("zpool sync tank");
    (server, disks, data)
}

/// A disk's state, and its errors of reading, writing and checksums.
fn row(server: &Server, disk: &str) -> (String, [u64; 3]) {
    let status = server.ok("zpool status -p tank");
    let name = Path::new(disk).file_name().expect("a name");
    let name = name.to_string_lossy();
    let line = status
        .lines()
        .find(|line| {
            line.split_whitespace()
                .next()
                .is_some_and(|word| word.ends_with(&*name))
        })
        .unwrap_or_else(|| panic!("{disk} is not in:\n{status}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let count = |at: usize| words[at].parse().unwrap_or_else(|_| panic!("{line}"));
    (words[1].to_owned(), [count(2), count(3), count(4)])
}

/// What a table of handlers says of matches and of what came of them.
fn counts(server: &Server) -> (u64, u64) {
    let listed = server.ok("zinject");
    let row = listed
        .lines()
        .find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))
        .unwrap_or_else(|| panic!("no row in:\n{listed}"));
    let mut words = row.split_whitespace().rev();
    let mut next = || words.next().and_then(|word| word.parse().ok());
    let injected = next().expect("a number");
    (next().expect("a number"), injected)
}

/// Goal: nothing is injected where the server was not told so, and what is not there is refused.
#[test]
fn without_the_flag_nothing_is_injected() {
    let server = Server::start();
    let disk = server.disks(1, 128 << 20).remove(0);
    let listed = server.ok("zinject");
    assert!(listed.contains("No handlers registered."), "{listed}");
    for words in [
        format!("zinject -d {disk} -e io tank"),
        "zinject -a".to_owned(),
        "zinject -P import -s 1 tank".to_owned(),
    ] {
        let refused = server.fails(&words);
        assert!(refused.contains("--inject"), "{words}: {refused}");
    }
    let refused = server.fails("zinject -p spa_vdev_add tank");
    assert!(refused.contains("is not taken"), "{refused}");
}

/// Goal: a disk that does not read is counted, its mirror answers, and all is well when the fault
/// is cancelled.
#[test]
fn a_mirror_reads_past_a_disk_that_fails() {
    if !can_mount() {
        return;
    }
    let (mut server, disks, data) = with_mirror();
    // However many errors it has, and whenever, it stays in use.
    server.ok(&format!("zpool set io_n=0 tank {}", disks[0]));
    let said = server.ok(&format!("zinject -d {} -e io -T read tank", disks[0]));
    assert!(
        said.starts_with("Added handler 1 with the following properties:"),
        "{said}"
    );
    assert!(
        said.contains("  pool: tank\n") && said.contains("iotype: read\n"),
        "{said}"
    );
    server.ok("zpool scrub -w tank");
    let (_, [read, _, checksum]) = row(&server, &disks[0]);
    assert!(
        read > 0 && checksum == 0,
        "{}",
        server.ok("zpool status tank")
    );
    let (state, errors) = row(&server, &disks[1]);
    assert_eq!((state.as_str(), errors), ("ONLINE", [0; 3]));
    let (matched, injected) = counts(&server);
    assert!(matched > 0 && matched == injected);
    assert_eq!(server.ok("zinject -c 1"), "removed handler 1\n");
    server.fails("zinject -c 1");
    server.ok("zpool clear tank");
    server.ok("zpool scrub -w tank");
    let status = server.ok("zpool status -v tank");
    assert!(status.contains("errors: No known data errors"), "{status}");
    assert_eq!(
        std::fs::read(server.path("t/file")).expect("the file"),
        data
    );
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: writes that a disk loses are found by a scrub and made good, and only that disk lacks
/// them.
#[test]
fn a_scrub_finds_what_a_disk_lost() {
    if !can_mount() {
        return;
    }
    let (mut server, disks, data) = with_mirror();
    server.ok(&format!("zinject -q -d {} -e noop -T write tank", disks[0]));
    let lost = noise(2, 4 << 20);
    std::fs::write(server.path("t/lost"), &lost).expect("a file");
    server.ok("zpool sync tank");
    assert!(counts(&server).1 > 0);
    assert_eq!(
        server.ok("zinject -c all"),
        "removed all registered handlers\n"
    );
    server.ok("zpool scrub -w tank");
    let (_, [_, _, checksum]) = row(&server, &disks[0]);
    assert!(checksum > 0, "{}", server.ok("zpool status tank"));
    assert_eq!(row(&server, &disks[1]).1, [0; 3]);
    server.ok("zpool clear tank");
    server.ok("zpool scrub -w tank");
    for disk in &disks {
        assert_eq!(
            row(&server, disk).1,
            [0; 3],
            "{}",
            server.ok("zpool status tank")
        );
    }
    assert_eq!(
        std::fs::read(server.path("t/file")).expect("the file"),
        data
    );
    assert_eq!(
        std::fs::read(server.path("t/lost")).expect("the file"),
        lost
    );
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: a file whose blocks fail is told by its name, its reader gets an error, and it is as it
/// was when the fault ends. Method: a fault of input and output, then one of checksums.
#[test]
fn a_file_that_fails_is_named() {
    if !can_mount() {
        return;
    }
    for error in ["io", "checksum"] {
        let (mut server, disks, data) = with_mirror();
        let file = server.text("t/file");
        let said = server.ok(&format!("zinject -t data -e {error} -f 100 {file}"));
        assert!(said.contains(" range: all\n"), "{said}");
        server.ok("zinject -a");
        let read = std::fs::read(&file).expect_err("it cannot be read");
        // EIO.
        assert_eq!(read.raw_os_error(), Some(5));
        assert!(counts(&server).1 > 0);
        server.wait_until("the file is named", || {
            server.ok("zpool status -v tank").contains(&file)
        });
        let told = disks.iter().map(|disk| row(&server, disk).1);
        let told: Vec<[u64; 3]> = told.collect();
        let column = if error == "io" { 0 } else { 2 };
        assert!(told.iter().all(|errors| errors[column] > 0), "{told:?}");
        server.ok("zinject -c all");
        server.ok("zpool clear tank");
        assert_eq!(std::fs::read(&file).expect("the file"), data);
        server.stop();
        zdb_is_clean(&server.path("disks"), "tank");
    }
}

/// Goal: a slow disk is one that a handler counts, imports take as long as was asked for, and a
/// device becomes what it is made to be.
#[test]
fn delays_and_states_are_listed() {
    if !can_mount() {
        return;
    }
    let (mut server, disks, data) = with_mirror();
    server.ok(&format!("zinject -d {} -D 5:2 tank", disks[1]));
    std::fs::write(server.path("t/more"), &data).expect("a file");
    server.ok("zpool sync tank");
    let listed = server.ok("zinject");
    assert!(
        listed.starts_with(" ID  POOL             GUID              DELAY (ms)"),
        "{listed}"
    );
    assert!(counts(&server).1 > 0, "{listed}");
    let busy = server.fails("zpool export tank");
    assert!(busy.contains("'zinject -c all'"), "{busy}");
    server.ok("zinject -c all");
    server.ok(&format!("zinject -d {} -A degrade tank", disks[0]));
    assert_eq!(row(&server, &disks[0]).0, "DEGRADED");
    server.ok(&format!("zinject -d {} -A fault tank", disks[1]));
    assert_eq!(row(&server, &disks[1]).0, "FAULTED");
    server.ok("zpool clear tank");
    assert_eq!(row(&server, &disks[0]).0, "ONLINE");
    server.wait_until_idle();

    let refused = server.fails("zinject -P import -s 1 tank");
    assert!(refused.contains("pool already imported"), "{refused}");
    server.ok("zinject -P export -s 1 tank");
    let begin = std::time::Instant::now();
    server.ok("zpool export tank");
    assert!(begin.elapsed() >= std::time::Duration::from_secs(1));
    let listed = server.ok("zinject");
    assert!(listed.contains("No handlers registered."), "{listed}");
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    assert_eq!(
        std::fs::read(server.path("t/more")).expect("the file"),
        data
    );
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: a frozen pool keeps what is synced in its log alone, and the next import replays that.
#[test]
fn a_frozen_pool_is_left_as_after_a_crash() {
    if !can_mount() {
        return;
    }
    let (mut server, _, data) = with_mirror();
    server.ok("zfs set sync=always tank");
    // The log has its head on disk from now on.
    std::fs::write(server.path("t/early"), &data).expect("a file");
    server.ok("zpool sync tank");
    let state = || server.ok(&format!("labels {}", server.text("disks/d0")));
    server.ok("zpool freeze tank");
    // Once more, it is at once.
    server.ok("zpool freeze tank");
    let before = state();
    let late = noise(3, 1 << 20);
    std::fs::write(server.path("t/late"), &late).expect("a file");
    std::fs::remove_file(server.path("t/file")).expect("it goes");
    server.ok("zfs unmount tank");
    // It waits for a group that never comes, or finds no pool any more.
    let snapshot = server.begin(&["zfs", "snapshot", "tank@never"]);
    server.ok("zpool export tank");
    let snapshot = snapshot.wait_with_output().expect("it ends");
    assert!(!snapshot.status.success());
    assert_eq!(state(), before, "no label and no uberblock was written");
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    assert_eq!(
        std::fs::read(server.path("t/late")).expect("the file"),
        late
    );
    assert!(!server.path("t/file").exists());
    std::fs::write(server.path("t/file"), &data).expect("a file");
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");

    let mut server = Server::start();
    let disk = server.disks(1, 128 << 20).remove(0);
    server.ok(&format!("zpool create -m none tank {disk}"));
    let refused = server.fails("zpool freeze tank");
    assert!(refused.contains("--inject"), "{refused}");
    server.stop();
}

/// Goal: tunables have scans and removals wait, in pools that are imported later too, and go on.
#[test]
fn scans_and_removals_wait_as_tunables_say() {
    let mut server = Server::prepare();
    server.launch(&["daemon", "--inject"]);
    let disks = server.disks(2, 256 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks.join(" ")));
    let refused = server.fails("zinject --tune zfs_txg_timeout=1");
    assert!(refused.contains("no such tunable"), "{refused}");

    server.ok("zinject --tune zfs_scan_suspend_progress=1");
    server.ok("zpool scrub tank");
    let waits = |server: &Server, what: &str| {
        for _ in 0..10 {
            server.ok("zpool sync tank");
        }
        let status = server.ok("zpool status tank");
        assert!(status.contains(what), "{status}");
    };
    waits(&server, "scrub in progress");
    server.ok("zpool export tank");
    let directory = server.text("disks");
    server.ok(&format!("zpool import -d {directory} tank"));
    waits(&server, "scrub in progress");
    server.ok("zinject --tune zfs_scan_suspend_progress=0");
    server.ok("zpool wait -t scrub tank");
    let status = server.ok("zpool status tank");
    assert!(status.contains("scrub repaired"), "{status}");

    server.ok("zinject --tune zfs_removal_suspend_progress=1");
    server.ok(&format!("zpool remove tank {}", disks[1]));
    waits(&server, "Evacuation of");
    server.ok("zpool scrub -w tank");
    waits(&server, "Evacuation of");
    server.ok("zinject --tune zfs_removal_suspend_progress=0");
    server.ok("zpool wait -t remove tank");
    assert!(!server.ok("zpool list -vP tank").contains(&disks[1]));
}
