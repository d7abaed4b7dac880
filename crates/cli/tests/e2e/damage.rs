//! Goal: what happens to files and block devices behind a pool's back is noticed and mended.
//! Method: a pool of each layout, some of it on loop devices; its devices are overwritten,
//! truncated, removed, exchanged, or restored from an old copy, exported or in use; all files are
//! compared, the pool is scrubbed or the device replaced, a second scrub has nothing to do, zdb
//! finds everything right.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::{Peer, Server, can_mount, need, run, zdb_is_clean};

const DISK_BYTES: u64 = 160 << 20;
/// Labels and boot block in front (VDEV_LABEL_START_SIZE), labels behind (VDEV_LABEL_END_SIZE).
const FRONT_BYTES: u64 = 4 << 20;
const BEHIND_BYTES: u64 = 512 << 10;

/// What happens to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// Noise in many places, all but the labels.
    Overwritten,
    /// The second half is gone.
    Truncated,
    Removed,
    /// It is called as another one is, and the other way round.
    Exchanged,
    /// It is as it was before the last files came.
    Restored,
    /// Noise everywhere but in the labels, while the pool is in use.
    OverwrittenInUse,
    /// Empty, while the pool is in use.
    TruncatedInUse,
}

const ALL: [Damage; 7] = [
    Damage::Overwritten,
    Damage::Truncated,
    Damage::Removed,
    Damage::Exchanged,
    Damage::Restored,
    Damage::OverwrittenInUse,
    Damage::TruncatedInUse,
];

/// Writes noise over one in `of` pieces of 64 KiB.
fn overwrite(path: &str, of: u64) {
    const PIECE: u64 = 64 << 10;
    let mut noise = vec![0; PIECE as usize];
    let source = File::open("/dev/urandom").expect("noise");
    std::io::Read::read_exact(&mut &source, &mut noise).expect("noise");
    let file = File::options().write(true).open(path).expect("a device");
    let end = DISK_BYTES - BEHIND_BYTES - PIECE;
    let mut at = FRONT_BYTES;
    let mut step = u64::from(noise[0]);
    while at < end {
        if step.is_multiple_of(of) {
            file.write_all_at(&noise, at).expect("written over");
        }
        step += 1;
        at += PIECE;
    }
}

/// New files in the pool, whose sums are kept beside it.
fn write_files(at: &str, first: u32) {
    let script = format!(
        "cd '{at}' && for i in $(seq {first} $(({first} + 19))); do \
         head -c $((i % 20 * 20011 + 700)) /dev/urandom > f$i; done && \
         head -c 6000000 /dev/urandom > big{first} && sync -f . && sha256sum f* big* > '{at}.sum'"
    );
    run("sh", &["-c", &script]);
}

fn compare(at: &str) {
    run(
        "sh",
        &[
            "-c",
            &format!("cd '{at}' && sha256sum --quiet -c '{at}.sum'"),
        ],
    );
}

/// The guid of the device whose labels are in this file.
fn label_guid(path: &str) -> String {
    let text = run("zdb", &["-l", path]);
    let line = text.lines().find(|line| line.starts_with("    guid:"));
    let guid = line.and_then(|line| line.split_whitespace().nth(1));
    guid.expect("a label").to_owned()
}

/// Scrubs until nothing is left to repair.
fn heal(server: &Server, pool: &str, what: &str) {
    server.ok(&format!("zpool scrub -w {pool}"));
    server.ok(&format!("zpool wait -t resilver,replace,scrub {pool}"));
    let first = server.ok(&format!("zpool status {pool}"));
    assert!(first.contains("No known data errors"), "{what}: {first}");
    server.ok(&format!("zpool scrub -w {pool}"));
    let second = server.ok(&format!("zpool status {pool}"));
    assert!(
        second.contains("scrub repaired 0B") && second.contains("No known data errors"),
        "{what}: {first}\n{second}"
    );
    server.ok(&format!("zpool clear {pool}"));
    let health = server.ok(&format!("zpool list -Ho health {pool}"));
    assert_eq!(health.trim(), "ONLINE", "{what}");
}

/// A pool, and the files behind it.
struct Damaged {
    server: Server,
    pool: &'static str,
    disks: Vec<String>,
    on_loops: bool,
    at: String,
}

impl Damaged {
    /// Devices for these files, as `zpool` is to call them.
    fn devices(&mut self, files: &[String]) -> Vec<String> {
        match self.on_loops {
            true => self.server.attach(files),
            false => files.to_vec(),
        }
    }

    fn export(&mut self) {
        self.server.ok(&format!("zpool export {}", self.pool));
        self.server.detach();
    }

    fn import(&mut self) {
        let from = match self.on_loops {
            true => self.server.attach_to_import(&self.disks),
            false => format!("-d {}", self.server.text("disks")),
        };
        self.server
            .ok(&format!("zpool import {from} {}", self.pool));
    }

    /// Writes some files, lets it happen to a device, and demands all files and a sound pool.
    fn survives(&mut self, damage: Damage, round: usize) {
        let first = round as u32 * 40;
        run("sh", &["-c", &format!("rm -f '{}'/*", self.at)]);
        write_files(&self.at, first);
        let index = round % self.disks.len();
        let victim = self.disks[index].clone();
        let other = self.disks[(index + 1) % self.disks.len()].clone();
        let (copy, new) = (format!("{victim}.copy"), format!("{victim}.{round}"));
        let is_in_use = matches!(damage, Damage::OverwrittenInUse | Damage::TruncatedInUse);
        // Devices are called by new names after each import.
        self.export();
        if damage == Damage::Restored {
            std::fs::copy(&victim, &copy).expect("a copy");
            self.import();
            write_files(&self.at, first + 20);
            self.export();
        }
        let file = || File::options().write(true).open(&victim).expect("a file");
        let label_guid = label_guid(&victim);
        if is_in_use {
            self.import();
        }
        match damage {
            Damage::Overwritten => overwrite(&victim, 2),
            Damage::OverwrittenInUse => overwrite(&victim, 1),
            Damage::Truncated => file().set_len(DISK_BYTES / 2).expect("truncated"),
            Damage::TruncatedInUse => file().set_len(0).expect("truncated"),
            Damage::Removed if self.on_loops => {
                // A loop device wants a file: an empty disk stands there now.
                file().set_len(0).expect("truncated");
                file().set_len(DISK_BYTES).expect("its size");
            }
            Damage::Removed => std::fs::remove_file(&victim).expect("removed"),
            Damage::Exchanged => {
                std::fs::rename(&victim, &new).expect("renamed");
                std::fs::rename(&other, &victim).expect("renamed");
                std::fs::rename(&new, &other).expect("renamed");
            }
            Damage::Restored => std::fs::rename(&copy, &victim).expect("restored"),
        }
        if !is_in_use {
            self.import();
        }
        compare(&self.at);
        write_files(&self.at, first + 30);
        compare(&self.at);
        let is_gone = matches!(
            damage,
            Damage::Truncated | Damage::Removed | Damage::TruncatedInUse
        );
        if is_gone {
            File::create(&new)
                .and_then(|file| file.set_len(DISK_BYTES))
                .expect("a new disk");
            let device = self.devices(std::slice::from_ref(&new)).remove(0);
            let command = format!("zpool replace -w {} {label_guid} {device}", self.pool);
            self.server.ok(&command);
            let _ = std::fs::remove_file(&victim);
            self.disks[index] = new;
        }
        let what = format!("{}, {damage:?}", self.pool);
        heal(&self.server, self.pool, &what);
        compare(&self.at);
    }
}

fn damaged_pools_heal(pool: &'static str, words: &str, count: usize, on_loops: bool) {
    if !can_mount() || on_loops && !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let server = Server::start();
    let disks = server.disks(count, DISK_BYTES);
    let at = server.text(pool);
    let mut damaged = Damaged {
        server,
        pool,
        disks: disks.clone(),
        on_loops,
        at: at.clone(),
    };
    let devices = damaged.devices(&disks).join(" ");
    damaged.server.ok(&format!(
        "zpool create -O compression=off -m {at} {pool} {words} {devices}"
    ));
    for (round, damage) in ALL.into_iter().enumerate() {
        damaged.survives(damage, round);
    }
    damaged.export();
    zdb_is_clean(&damaged.server.path("disks"), pool);
    damaged.server.stop();
}

#[test]
fn a_damaged_mirror_heals() {
    damaged_pools_heal("pair", "mirror", 2, false);
}

#[test]
fn a_damaged_raidz_on_loop_devices_heals() {
    damaged_pools_heal("parity", "raidz1", 4, true);
}

#[test]
fn a_damaged_draid_heals() {
    damaged_pools_heal("spread", "draid1:2d", 4, false);
}

/// Goal: what OpenZFS began and left in the middle ends here: a replacement in a raidz, a disk
/// attached to a mirror.
#[test]
fn what_openzfs_began_ends_here() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    let disks = server.disks(7, 96 << 20);
    // The scan stands still there once it has begun.
    let script = "set -e\n\
        cd /dev/disk/peer\n\
        zpool create -O compression=off -m /mnt/p p raidz1 $PWD/d0 $PWD/d1 $PWD/d2\n\
        zpool create -O compression=off -m /mnt/m m $PWD/d3\n\
        for at in /mnt/p /mnt/m; do\n\
        (cd $at; for i in $(seq 40); do head -c $((i * 9000)) /dev/urandom > f$i; done;\n\
        sha256sum f* > sum)\n\
        done\n\
        zpool sync\n\
        echo 1 > /sys/module/zfs/parameters/zfs_scan_suspend_progress\n\
        zpool replace p $PWD/d1 $PWD/d4\n\
        zpool attach m $PWD/d3 $PWD/d5\n\
        zpool sync\n\
        zpool status\n\
        zpool export p\n\
        zpool export m\n";
    let text = peer.run(&disks, script);
    assert!(
        text.contains("replacing-") && text.contains("resilver in progress"),
        "{text}"
    );
    let from = server.attach_to_import(&disks);
    for pool in ["p", "m"] {
        let root = server.text("root");
        server.ok(&format!("zpool import {from} -R {root} {pool}"));
        server.ok(&format!("zpool wait -t resilver,replace {pool}"));
        let at = format!("{root}/mnt/{pool}");
        run(
            "sh",
            &["-c", &format!("cd '{at}' && sha256sum --quiet -c sum")],
        );
        heal(&server, pool, pool);
        let status = server.ok(&format!("zpool status {pool}"));
        assert!(!status.contains("replacing"), "{status}");
        server.ok(&format!("zpool export {pool}"));
    }
    server.detach();
    let text = peer.run(
        &disks,
        "set -e\nfor pool in p m; do zpool import -d /dev/disk/peer $pool\n\
         zpool scrub -w $pool\nzpool status $pool\nzpool export $pool\ndone\n",
    );
    assert_eq!(text.matches("scrub repaired 0B").count(), 2, "{text}");
    assert_eq!(text.matches("No known data errors").count(), 2, "{text}");
    server.stop();
}
