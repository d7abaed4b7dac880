//! Goal: `zpool checkpoint` keeps the pool's state while programs write, also synchronously; going
//! back gives it again, and discarding leaves nothing of it. OpenZFS agrees: zdb on both states,
//! and the real one goes on from either. Method: a mounted pool; zdb after each turn; the machine
//! with the real OpenZFS discards and rewinds ours.

use std::path::Path;

use crate::harness::{Peer, Server, ZDB, can_mount, run, text_of, zdb_is_clean};

/// A pool with a file and a checkpoint, and changes after it. A program writes synchronously all
/// the while.
struct Bed {
    server: Server,
    disks: Vec<String>,
    before: String,
    after: String,
}

fn shell(line: &str) -> String {
    run("bash", &["-euc", line])
}

fn sums(mountpoint: &str) -> String {
    shell(&format!(
        "cd {mountpoint}; find . -name 'f*' -type f | sort | xargs -r sha256sum"
    ))
}

impl Bed {
    fn new() -> Self {
        let mut server = Server::start();
        let disks = server.disks(2, 256 << 20);
        let devices = server.attach(&disks);
        let at = server.text("mnt");
        server.ok(&format!(
            "zpool create -m {at} -O compression=lz4 tank mirror {}",
            devices.join(" ")
        ));
        server.ok("zfs create tank/gone");
        let fill = |what: &str| {
            shell(&format!(
                "cd {at}; for i in 1 2 3 4; do head -c 900000 /dev/urandom >{what}$i; done; head \
                 -c 50000 /dev/urandom >gone/f{what}"
            ))
        };
        fill("f");
        let mut writer = std::process::Command::new("bash")
            .arg("-c")
            .arg(
                "while dd if=/dev/urandom of=log bs=3000 count=1 oflag=sync,append conv=notrunc \
                 2>/dev/null; do :; done",
            )
            .current_dir(&at)
            .spawn()
            .expect("a writer");
        std::thread::sleep(std::time::Duration::from_millis(400));
        let before = sums(&at);
        server.ok("zpool checkpoint tank");
        std::thread::sleep(std::time::Duration::from_millis(200));
        shell(&format!(
            "cd {at}; rm f1; printf changed | dd of=f2 bs=1 seek=200000 conv=notrunc status=none; \
             mv f3 f5; sync -f ."
        ));
        writer.kill().expect("kill");
        writer.wait().expect("wait");
        server.ok("zfs destroy tank/gone");
        fill_again(&at);
        // FUSE passes no `syncfs` on.
        server.ok("zpool sync tank");
        let after = sums(&at);
        Bed {
            server,
            disks,
            before,
            after,
        }
    }

    fn directory(&self) -> &Path {
        Path::new(&self.disks[0]).parent().expect("a directory")
    }

    fn import(&mut self, options: &str) {
        let from = self.server.attach_to_import(&self.disks);
        self.server
            .ok(&format!("zpool import {options} {from}tank"));
    }

    fn sums(&self) -> String {
        sums(&self.server.text("mnt"))
    }

    /// Leaves the pool to zdb.
    fn export(&mut self) {
        self.server.ok("zpool export tank");
        self.server.detach();
        zdb_is_clean(self.directory(), "tank");
    }
}

fn fill_again(at: &str) {
    shell(&format!(
        "cd {at}; for i in 6 7; do head -c 700000 /dev/urandom >f$i; done; sync -f ."
    ));
}

#[test]
fn a_checkpoint_is_made_shown_and_discarded() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new();
    let server = &bed.server;
    let status = server.ok("zpool status tank");
    assert!(status.contains("\ncheckpoint: created "), "{status}");
    assert!(status.contains(", consumes "), "{status}");
    let bytes: u64 = server
        .ok("zpool get -Hpo value checkpoint tank")
        .trim()
        .parse()
        .expect("bytes");
    assert!(bytes > 900_000, "{bytes}");
    let listed = server.ok("zpool list -Hpo name,ckpoint tank");
    assert_eq!(listed.trim(), format!("tank\t{bytes}"));
    for (command, says) in [
        (
            "zpool checkpoint tank",
            "cannot checkpoint 'tank': checkpoint exists",
        ),
        ("zpool reguid tank", "checkpoint exists"),
        ("zpool remove tank mirror-0", "checkpoint exists"),
        (
            "zpool checkpoint tank/gone",
            "'zpool checkpoint' doesn't work on datasets",
        ),
    ] {
        let error = server.fails(command);
        assert!(error.contains(says), "{command}: {error}");
    }
    bed.export();
    let directory = bed.directory().display().to_string();
    let text = run(ZDB, &["-e", "-p", &directory, "-k", "-bcc", "tank"]);
    assert!(text.contains("No leaks"), "{text}");
    bed.import("");
    let server = &bed.server;
    assert_eq!(bed.sums(), bed.after);
    server.ok("zpool checkpoint -d -w tank");
    let status = server.ok("zpool status tank");
    assert!(!status.contains("checkpoint:"), "{status}");
    assert_eq!(
        server.ok("zpool get -Hpo value checkpoint tank").trim(),
        "-"
    );
    let error = server.fails("zpool checkpoint -d tank");
    assert!(error.contains("checkpoint does not exist"), "{error}");
    server.ok("zpool wait -t discard tank");
    let history = server.ok("zpool history -i tank");
    assert!(history.contains("checkpointed uberblock txg="), "{history}");
    assert!(history.contains("finished discarding checkpointed state"));
    assert_eq!(bed.sums(), bed.after);
    bed.export();
}

#[test]
fn the_pool_goes_back_while_programs_wrote() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new();
    // As after a crash: the logs of the newest state are there, and not of the checkpoint.
    bed.server.kill();
    bed.server.launch(&["daemon"]);
    if !text_of(&bed.server.command(&["zpool", "list", "-H"])).contains("tank") {
        bed.server.detach();
        bed.import("-f");
    }
    assert_eq!(bed.sums(), bed.after);
    bed.export();
    bed.import("--rewind-to-checkpoint");
    assert_eq!(bed.sums(), bed.before);
    assert_eq!(
        bed.server.ok("zpool get -Hpo value checkpoint tank").trim(),
        "-"
    );
    fill_again(&bed.server.text("mnt"));
    bed.export();
    bed.import("");
    // Again, now with nothing going on.
    let before = bed.sums();
    bed.server.ok("zpool checkpoint tank");
    fill_again(&bed.server.text("mnt"));
    bed.export();
    bed.import("--rewind-to-checkpoint");
    assert_eq!(bed.sums(), before);
    bed.export();
}

/// The real OpenZFS discards our checkpoint, or goes back to it.
#[test]
fn openzfs_takes_our_checkpoint() {
    if !can_mount() {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut bed = Bed::new();
    bed.export();
    let at = bed.server.text("mnt");
    let script = format!(
        r"
set -e
zpool import -f -d /dev/disk/peer tank
zpool status tank | grep '^checkpoint: created'
zpool scrub -w tank
zpool status tank | grep 'errors: No known data errors'
zpool export tank
zpool import --rewind-to-checkpoint -d /dev/disk/peer tank
cd {at}; find . -name 'f*' -type f | sort | xargs -r sha256sum | sed 's/^/SUM /'; cd /
zpool scrub -w tank
zpool status tank | grep 'errors: No known data errors'
zpool checkpoint tank
rm {at}/f2; zpool sync tank
zpool export tank
echo PEER-DONE
"
    );
    let text = peer.run(&bed.disks, &script);
    assert!(text.contains("PEER-DONE"), "{text}");
    let told: String = text
        .lines()
        .filter_map(|line| line.strip_prefix("SUM "))
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    assert_eq!(told, bed.before, "{text}");
    // And we theirs.
    bed.import("-f");
    bed.server.ok("zpool checkpoint -d -w tank");
    bed.export();
}
