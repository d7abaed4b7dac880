//! Every layout through its whole life: a real tree copied in, changed, snapshotted, rolled back,
//! the pool filled and emptied; then zdb, then the real OpenZFS, then back here. All pools visit
//! OpenZFS together, as starting its machine takes long; with `MILLPOND_LONG=1` they are big, and
//! one after the other.

use std::path::{Path, PathBuf};

use crate::harness::{Peer, PeerOptions, Server, can_mount, is_long, need, run, zdb_is_clean};

/// Name of the pool (those of layouts are reserved), its vdevs, ashift, and options of `zpool
/// create`.
const LAYOUTS: [(&str, &str, u32, &str); 6] = [
    ("alone", "D", 9, ""),
    ("stripe", "D D", 12, "-O compression=zstd"),
    ("twins", "mirror D D", 12, "-O checksum=sha256"),
    ("parity1", "raidz1 D D D", 9, "-O recordsize=16K"),
    ("parity2", "raidz2 D D D D D", 12, "-O compression=gzip"),
    (
        "parity3",
        "raidz3 D D D D D D",
        13,
        "-O recordsize=1M -O compression=off",
    ),
];

/// What is copied: a part of the system (some hundred files); in the long run `MILLPOND_TREE`, or
/// all of `/usr` (over a gigabyte, over 50,000 files).
fn source() -> String {
    if is_long() {
        std::env::var("MILLPOND_TREE").unwrap_or_else(|_| "/usr".to_owned())
    } else {
        "/usr/include/linux".to_owned()
    }
}

fn same_tree(left: &Path, right: &Path) {
    run(
        "diff",
        &[
            "-r",
            "--no-dereference",
            &left.to_string_lossy(),
            &right.to_string_lossy(),
        ],
    );
}

fn sums(root: &Path) -> String {
    let script = format!(
        "cd '{}' && find . -path ./from-peer -prune -o -type f -print0 | LC_ALL=C sort -z | xargs \
         -0 -r sha256sum",
        root.display()
    );
    run("sh", &["-c", &script])
}

/// How many disks of a layout hold data, as far as space goes.
fn data_disks(words: &str) -> u64 {
    let disks = words.split(' ').filter(|word| *word == "D").count() as u64;
    match words.split(' ').next() {
        Some("mirror") => 1,
        Some(raidz) if raidz.starts_with("raidz") => disks - u64::from(raidz.as_bytes()[5] - b'0'),
        _ => disks,
    }
}

/// A pool that has lived here.
struct Pool {
    name: &'static str,
    directory: PathBuf,
    disks: Vec<String>,
    mountpoint: PathBuf,
    /// Sums of all its files.
    sums: String,
}

/// Makes a pool and does all to it that people do, up to its export.
fn live(
    server: &mut Server,
    (name, words, ashift, extra): (&'static str, &str, u32, &str),
) -> Pool {
    let bytes = if is_long() {
        (9 << 30) / data_disks(words)
    } else {
        96 << 20
    };
    let directory = server.path("disks").join(name);
    std::fs::create_dir_all(&directory).expect("a directory");
    let disks: Vec<String> = (0..words.split(' ').filter(|word| *word == "D").count())
        .map(|index| {
            let path = directory.join(format!("{name}{index}"));
            std::fs::File::create(&path)
                .and_then(|file| file.set_len(bytes))
                .expect("a sparse file");
            path.to_string_lossy().into_owned()
        })
        .collect();
    let devices = server.attach(&disks);
    let mut next = devices.iter();
    let vdevs: Vec<String> = words
        .split(' ')
        .map(|word| {
            if word == "D" {
                next.next().expect("enough disks").clone()
            } else {
                word.to_owned()
            }
        })
        .collect();
    let mountpoint = server.path("mnt").join(name);
    server.ok(&format!(
        "zpool create -o ashift={ashift} {extra} -m {} {name} {}",
        mountpoint.display(),
        vdevs.join(" ")
    ));
    server.ok(&format!("zfs create {name}/tree"));
    let tree = mountpoint.join("tree");
    let inside = tree.join("copy");
    run("cp", &["-a", &source(), &inside.to_string_lossy()]);
    same_tree(Path::new(&source()), &inside);
    server.ok(&format!("zfs snapshot {name}/tree@full"));

    // Change and delete a part, then return to the snapshot.
    let script = format!(
        "cd '{}' && find . -type f | LC_ALL=C sort | awk 'NR%3==0' | tr '\\n' '\\0' | xargs -0 -r \
         rm -f && find . -type f | LC_ALL=C sort | awk 'NR%5==0' | while read -r f; do echo \
         changed >> \"$f\"; done",
        inside.display()
    );
    run("sh", &["-c", &script]);
    server.ok(&format!("zfs snapshot {name}/tree@less"));
    server.ok(&format!("zfs rollback -r {name}/tree@full"));
    same_tree(Path::new(&source()), &inside);

    // The same changes again, to stay.
    run("sh", &["-c", &script]);
    server.ok(&format!("zfs destroy {name}/tree@full"));

    // Fill the pool; it says so, and can be emptied again.
    server.ok(&format!("zfs create -o compression=off {name}/fill"));
    let full = std::process::Command::new("dd")
        .args([
            "if=/dev/urandom",
            &format!("of={}", mountpoint.join("fill/big").display()),
            "bs=1M",
        ])
        .output()
        .expect("dd runs");
    assert!(!full.status.success(), "a full pool takes everything");
    assert!(
        String::from_utf8_lossy(&full.stderr).contains("No space left"),
        "{}",
        String::from_utf8_lossy(&full.stderr)
    );
    std::fs::remove_file(mountpoint.join("fill/big"))
        .expect("a file can be removed from a full pool");
    server.ok(&format!("zfs destroy {name}/fill"));
    std::fs::write(mountpoint.join("after"), "room again").expect("there is room again");
    let sums = sums(&mountpoint);
    server.ok(&format!("zpool export {name}"));
    server.detach();
    zdb_is_clean(&directory, name);
    Pool {
        name,
        directory,
        disks,
        mountpoint,
        sums,
    }
}

/// The real OpenZFS takes them, finds nothing wrong, writes to them, gives them back.
fn visit(server: &mut Server, pools: &[Pool]) {
    let Some(peer) = Peer::find() else { return };
    let out = server.path("out");
    let script: String = pools
        .iter()
        .map(|pool| {
            let name = pool.name;
            format!(
                "zpool import -d /dev/disk/peer -R /mnt {name} 2>&1\nzpool scrub -w {name}\nzpool \
                 status {name}\n\
                 cd \"$(zfs get -H -o value mountpoint {name})\"\n\
                 find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum \
                 > /peer/out/{name}\n\
                 mkdir from-peer && cp -a /bin/busybox from-peer/ && \
                 (cd from-peer && sha256sum busybox > sum) && cd /\nzpool export {name}\n"
            )
        })
        .collect();
    let disks: Vec<String> = pools.iter().flat_map(|pool| pool.disks.clone()).collect();
    let text = peer.run_with(
        &disks,
        PeerOptions::default().output(&out),
        &format!("set -e\nmkdir -p /peer/out\n{script}"),
    );
    for Pool {
        name,
        directory,
        disks,
        mountpoint,
        sums: expected,
    } in pools
    {
        let status = text
            .split(&format!("pool: {name}\n"))
            .nth(1)
            .and_then(|rest| rest.split("pool: ").next())
            .unwrap_or_default();
        assert!(
            status.contains("scrub repaired 0B")
                && status.contains("with 0 errors")
                && status.contains("No known data errors"),
            "{name}: {text}"
        );
        assert_eq!(
            &std::fs::read_to_string(out.join(name)).expect("the peer's sums"),
            expected,
            "{name}: the peer sees other contents"
        );
        let search = server.attach_to_import(disks);
        server.ok(&format!("zpool import {search} {name}"));
        assert_eq!(&sums(mountpoint), expected, "{name}");
        run(
            "sh",
            &[
                "-c",
                &format!(
                    "cd '{}/from-peer' && sha256sum -c sum",
                    mountpoint.display()
                ),
            ],
        );
        server.ok(&format!("zpool export {name}"));
        server.detach();
        zdb_is_clean(directory, name);
    }
}

#[test]
fn every_layout_lives_and_goes_to_openzfs_and_back() {
    if !can_mount()
        || !need("diff of diffutils", Path::new("/usr/bin/diff").exists())
        || !need("loop devices", Path::new("/dev/loop-control").exists())
    {
        return;
    }
    let mut server = Server::start();
    if is_long() {
        for layout in LAYOUTS {
            let pool = live(&mut server, layout);
            visit(&mut server, &[pool]);
            std::fs::remove_dir_all(server.path("disks")).expect("room for the next");
        }
    } else {
        let pools = LAYOUTS.map(|layout| live(&mut server, layout));
        visit(&mut server, &pools);
    }
    server.stop();
}
