//! Goal: pools of versions before 28 are made, changed, snapshotted, cloned, thinned, scrubbed and
//! raised so that OpenZFS finds nothing wrong. Method: a pool of some versions (with
//! `MILLPOND_LONG=1` of each, and one of each that OpenZFS made), and the golden one of version 15;
//! zdb after each step; all go to the real OpenZFS together, which changes them as well, and back.

use std::path::{Path, PathBuf};

use crate::golden::unpack_into;
use crate::harness::{Peer, Server, can_mount, is_long, need, run, zdb_is_clean};
use crate::legacy::WORK;

/// The oldest, and the last ones without something: space by user, slim logs, deadlists that are
/// maps.
const SOME: [u64; 5] = [11, 14, 22, 25, 27];
const GOLDEN: &str = "v15_fs3";
/// Bytes of a disk.
const DISK_BYTES: u64 = 96 << 20;

/// A pool of an old version.
struct Old {
    version: u64,
    name: String,
    directory: PathBuf,
    disk: String,
    datasets: Vec<String>,
    /// Its vdev is a file, which OpenZFS does not open on a block device.
    is_file: bool,
}

impl Old {
    /// Makes one.
    fn make(server: &mut Server, version: u64) -> Self {
        let name = format!("old{version}");
        let directory = server.path("disks").join(&name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join(&name);
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(DISK_BYTES).expect("a sparse file");
        let disk = path.to_string_lossy().into_owned();
        let device = server.attach(std::slice::from_ref(&disk)).remove(0);
        let root = server.text("mnt");
        server.ok(&format!(
            "zpool create -R {root} -o version={version} {name} {device}"
        ));
        server.ok(&format!("zfs create {name}/fs"));
        Old {
            version,
            datasets: vec![name.clone(), format!("{name}/fs")],
            name,
            directory,
            disk,
            is_file: false,
        }
    }

    /// The one that OpenZFS made, with filesystems of versions 1 to 4.
    fn golden(server: &mut Server) -> Option<Self> {
        let (_, directory) = unpack_into(&server.path("golden"), GOLDEN)?;
        let disk = directory.join("d0.img").to_string_lossy().into_owned();
        let old = Old {
            version: 15,
            name: GOLDEN.to_owned(),
            directory,
            disk,
            datasets: ["", "/fs1", "/fs2", "/fs4", "/gz"]
                .map(|below| format!("{GOLDEN}{below}"))
                .to_vec(),
            is_file: false,
        };
        old.import(server);
        Some(old)
    }

    /// Some that OpenZFS makes, with snapshots and a clone.
    fn theirs(peer: &Peer, server: &mut Server, versions: &[u64]) -> Vec<Self> {
        let mut pools = Vec::new();
        let mut script = format!("set -euo pipefail\n{WORK}\n");
        for version in versions {
            let name = format!("theirs{version}");
            let directory = server.path("disks").join(&name);
            std::fs::create_dir_all(&directory).expect("a directory");
            let path = directory.join(&name);
            let file = std::fs::File::create(&path).expect("a file");
            file.set_len(DISK_BYTES).expect("a sparse file");
            script.push_str(&format!(
                "zpool create -R /mnt -o version={version} {name} /dev/disk/peer/{name}\n\
                 zfs create {name}/fs\n(work /mnt/{name}/fs 40)\nzfs snapshot -r {name}@x\n\
                 (work /mnt/{name}/fs 41)\nzfs clone {name}/fs@x {name}/copy\n\
                 zfs snapshot -r {name}@y\n(work /mnt/{name}/copy 42)\nzpool export {name}\n"
            ));
            pools.push(Old {
                version: *version,
                datasets: ["", "/fs", "/copy"]
                    .map(|below| format!("{name}{below}"))
                    .to_vec(),
                name,
                directory,
                disk: path.to_string_lossy().into_owned(),
                is_file: false,
            });
        }
        let disks: Vec<String> = pools.iter().map(|pool| pool.disk.clone()).collect();
        peer.run(&disks, &script);
        for pool in &pools {
            pool.import(server);
        }
        pools
    }

    /// One that software of its time made: OpenZFS's test suite brings some.
    fn of_suite(server: &mut Server, version: u64) -> Option<Self> {
        let home = std::env::var("HOME").unwrap_or_default();
        let roots = [String::new(), format!("{home}/.cache/millpond/zfs-test")];
        let suite = "usr/share/zfs/zfs-tests/tests/functional/cli_root/zpool_upgrade/blockfiles";
        let packed = roots
            .map(|root| format!("{root}/{suite}/zfs-pool-v{version}.dat.bz2"))
            .into_iter()
            .find(|packed| Path::new(packed).exists());
        if !need("OpenZFS's test suite", packed.is_some()) {
            return None;
        }
        let name = format!("v{version}-pool");
        let directory = server.path("disks").join(&name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let disk = directory.join(&name).to_string_lossy().into_owned();
        let unpack = format!("bunzip2 -c {} >{disk}", packed.unwrap_or_default());
        run("sh", &["-c", &unpack]);
        let old = Old {
            version,
            datasets: vec![name.clone(), format!("{name}/fs")],
            name,
            directory,
            disk,
            is_file: true,
        };
        old.import(server);
        server.ok(&format!("zfs create {}", old.datasets[1]));
        Some(old)
    }

    fn import(&self, server: &mut Server) {
        self.import_with(server, "");
    }

    /// The same with more options.
    fn import_with(&self, server: &mut Server, options: &str) {
        let root = server.text("mnt");
        let from = server.attach_to_import(std::slice::from_ref(&self.disk));
        let name = &self.name;
        server.ok(&format!("zpool import {options}-R {root} {from}{name}"));
    }

    fn work(&self, server: &Server, round: u32) {
        for dataset in &self.datasets {
            let at = server.text(&format!("mnt/{dataset}"));
            run("bash", &["-euc", &format!("{WORK}\nwork {at} {round}")]);
        }
    }

    fn look(&self, server: &Server) -> String {
        let look = |dataset: &String| {
            let at = server.text(&format!("mnt/{dataset}"));
            let seen = run("bash", &["-euc", &format!("{WORK}\nlook {at}")]);
            format!("{dataset}\n{seen}")
        };
        self.datasets.iter().map(look).collect()
    }

    fn scrub(&self, server: &Server) {
        let name = &self.name;
        server.ok(&format!("zpool scrub -w {name}"));
        let status = server.ok(&format!("zpool status {name}"));
        assert!(status.contains("with 0 errors"), "{status}");
        assert!(status.contains("No known data errors"), "{status}");
    }

    /// Snapshots and a clone come and go in all orders.
    fn live(&mut self, server: &Server) {
        let name = self.name.clone();
        let changing = self.datasets[1].clone();
        let clone = format!("{name}/clone");
        self.work(server, 0);
        server.ok(&format!("zfs snapshot -r {name}@a"));
        self.work(server, 1);
        server.ok(&format!("zfs snapshot -r {name}@b"));
        server.ok(&format!("zfs clone {changing}@a {clone}"));
        self.datasets.push(clone.clone());
        self.work(server, 2);
        server.ok(&format!("zfs snapshot -r {name}@c"));
        self.work(server, 3);
        server.ok(&format!("zfs destroy {changing}@b"));
        server.ok(&format!("zfs rollback {clone}@c"));
        server.ok(&format!("zfs promote {clone}"));
        server.ok(&format!("zfs destroy {name}@a"));
        self.scrub(server);
        self.refuses(server);
    }

    /// What came later is refused, and what was there then is there.
    fn refuses(&self, server: &Server) {
        let (name, version) = (&self.name, self.version);
        let told = server.ok(&format!("zpool get -H -o value version {name}"));
        assert_eq!(told.trim(), version.to_string());
        if version < 12 {
            let refused = server.fails(&format!("zfs set x:y=z {name}@b"));
            assert!(refused.contains("version before 12"), "{refused}");
        }
        if version < 15 {
            let refused = server.fails(&format!("zfs set userquota@1000=1G {name}"));
            assert!(refused.contains("version before 4"), "{refused}");
        }
        if version < 18 {
            let refused = server.fails(&format!("zfs hold h {name}@b"));
            assert!(refused.contains("version before 18"), "{refused}");
            // It needs a snapshot that is held, and leaves none behind.
            let snapshots = format!("zfs list -H -t snapshot -o name -r {name}");
            let before = server.ok(&snapshots);
            let refused = server.fails(&format!("zfs diff {name}@b {name}"));
            assert!(refused.contains("version before 18"), "{refused}");
            assert_eq!(server.ok(&snapshots), before);
        } else {
            server.ok(&format!("zfs hold h {name}@b"));
            server.ok(&format!("zfs release h {name}@b"));
        }
        if version < 20 {
            let refused = server.fails(&format!("zfs set compression=zle {name}"));
            assert!(refused.contains("version before 20"), "{refused}");
        }
        if version < 21 {
            let refused = server.fails(&format!("zfs set dedup=on {name}"));
            assert!(refused.contains("version before 21"), "{refused}");
        }
        if version < 24 {
            let refused = server.fails(&format!("zfs create -o version=5 {name}/five"));
            assert!(refused.contains("version 5"), "{refused}");
        }
        let refused = server.fails(&format!("zpool set version=10 {name}"));
        assert!(refused.contains("11 to 28"), "{refused}");
    }

    fn leave(&self, server: &Server) {
        server.ok(&format!("zpool export {}", self.name));
    }

    /// Raised step by step, with something done in each; then nothing of before is left.
    fn rise(&mut self, server: &Server) {
        let name = self.name.clone();
        for (step, to) in (0..).zip([self.version + 1, 26, 28]) {
            let from = server.ok(&format!("zpool get -H -o value version {name}"));
            let said = server.ok(&format!("zpool upgrade -V {to} {name}"));
            let wanted = match from.trim().parse::<u64>().expect("a number") >= to {
                true => "is already formatted using".to_owned(),
                false => format!("from version {} to version {to}.", from.trim()),
            };
            assert!(said.contains(&wanted), "{said}");
            self.work(server, 20 + step);
            server.ok(&format!("zfs snapshot {}@step{step}", self.datasets[1]));
        }
        let said = server.ok(&format!("zpool upgrade {name}"));
        assert!(said.contains("from version 28 to feature flags"), "{said}");
        self.work(server, 99);
        self.scrub(server);
        let all = server.ok(&format!("zfs list -H -r -t snapshot -o name {name}"));
        // What was promoted is the clone's; its origin is a clone now.
        for snapshot in all.lines() {
            server.command(&["zfs", "destroy", "-d", snapshot]);
        }
    }
}

/// Their whole life, up to feature flags.
fn whole_life(server: &mut Server, peer: &Peer, mut pools: Vec<Old>) {
    let mut seen = Vec::new();
    for pool in &mut pools {
        pool.live(server);
        seen.push(pool.look(server));
        pool.leave(server);
    }
    server.detach();
    let script: String = pools
        .iter()
        .map(|pool| {
            let (name, all) = (&pool.name, pool.datasets.join(" "));
            let disk = pool.disk.rsplit('/').next().expect("a name");
            let disk = format!("/dev/disk/peer/{disk}");
            let (first, from, last) = match pool.is_file {
                true => (
                    format!("mkdir /tmp/{name}; cp {disk} /tmp/{name}/disk"),
                    format!("/tmp/{name}"),
                    format!("cp /tmp/{name}/disk {disk}; rm -r /tmp/{name}"),
                ),
                false => (String::new(), "/dev/disk/peer".to_owned(), String::new()),
            };
            format!(
                "{first}\nzpool import -d {from} -R /mnt {name} 2>&1\nzpool scrub -w {name}\n\
                 zpool status {name} | grep -q 'errors: No known data errors'\n\
                 zpool status {name} | grep -q 'with 0 errors'\necho BEFORE {name}\n\
                 for d in {all}; do echo $d; look /mnt/$d; done\n\
                 for d in {all}; do (work /mnt/$d 7); done\n\
                 zfs snapshot -r {name}@theirs; zfs destroy {name}@b\n\
                 for d in {all}; do dd if=/dev/zero of=/mnt/$d/synced bs=4k count=1 conv=fsync; \
                 done 2>/dev/null\nzpool sync {name}\n\
                 echo AFTER {name}\nfor d in {all}; do echo $d; look /mnt/$d; done\n\
                 echo END {name}\nzpool export {name}\n{last}\n"
            )
        })
        .collect();
    for pool in &pools {
        zdb_is_clean(&pool.directory, &pool.name);
    }
    let disks: Vec<String> = pools.iter().map(|pool| pool.disk.clone()).collect();
    let script = format!("set -euo pipefail\n{WORK}\n{script}");
    let text = peer.run(&disks, &script).replace('\r', "");
    let between = |from: &str, to: &str| {
        let rest = text.split_once(&format!("{from}\n")).expect("a part").1;
        let part = rest.split_once(&format!("{to}\n")).expect("its end").0;
        part.to_owned()
    };
    for (pool, seen) in pools.iter_mut().zip(seen) {
        let name = pool.name.clone();
        let (before, after, end) = (
            format!("BEFORE {name}"),
            format!("AFTER {name}"),
            format!("END {name}"),
        );
        let theirs = between(&before, &after);
        assert_eq!(theirs, seen, "what OpenZFS reads of {name}");
        zdb_is_clean(&pool.directory, &name);
        // Logs that OpenZFS left are in no snapshot's way, although nobody has mounted what has
        // them.
        pool.import_with(server, "-N ");
        server.ok(&format!("zfs snapshot -r {name}@unmounted"));
        server.ok("zfs mount -a");
        let wrote = between(&after, &end);
        assert_eq!(pool.look(server), wrote, "what OpenZFS wrote to {name}");
        pool.rise(server);
        pool.leave(server);
        server.detach();
        zdb_is_clean(&pool.directory, &name);
        std::fs::remove_dir_all(&pool.directory).expect("room for others");
    }
}

#[test]
fn pools_of_old_versions_are_written_and_raised() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    let Some(golden) = Old::golden(&mut server) else {
        return;
    };
    let mut pools = vec![golden];
    if is_long() {
        whole_life(&mut server, &peer, pools);
        let of_suite = [11, 13, 14].map(|version| Old::of_suite(&mut server, version));
        let of_suite = of_suite.into_iter().flatten().collect();
        whole_life(&mut server, &peer, of_suite);
        for versions in (11..28).collect::<Vec<u64>>().chunks(4) {
            let theirs = Old::theirs(&peer, &mut server, versions);
            whole_life(&mut server, &peer, theirs);
            let ours = versions
                .iter()
                .map(|version| Old::make(&mut server, *version));
            let ours = ours.collect();
            whole_life(&mut server, &peer, ours);
        }
    } else {
        pools.extend(SOME.map(|version| Old::make(&mut server, version)));
        whole_life(&mut server, &peer, pools);
    }
}
