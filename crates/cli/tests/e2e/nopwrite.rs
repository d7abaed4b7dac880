//! Goal: overwriting a block with what it holds writes nothing, where OpenZFS writes nothing
//! either, and snapshots go on sharing it. Method: each condition by itself, seen in `written`; and
//! `zfs rewrite`, which writes all the same; zdb.

use std::fs::{OpenOptions, read};
use std::io::Write;

use crate::harness::{Server, can_mount, zdb_is_clean};

/// What compresses a little, in blocks that differ.
fn content(salt: u8) -> Vec<u8> {
    let mut state = u64::from(salt) | 0x1_0000;
    let mut bytes = Vec::with_capacity(2 << 20);
    while bytes.len() < 2 << 20 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        bytes.extend_from_slice(&state.to_le_bytes()[2..]);
        bytes.extend_from_slice(&[salt; 4]);
    }
    bytes.truncate(2 << 20);
    bytes
}

#[test]
fn what_is_there_is_not_written_again() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disk = &server.disks(1, 512 << 20)[0];
    let top = server.path("mnt");
    server.ok(&format!("zpool create -m {} tank {disk}", top.display()));
    let over = |name: &str, bytes: &[u8]| {
        let path = top.join(name).join("f");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(path);
        file.unwrap().write_all(bytes).unwrap();
        server.ok("zpool sync");
    };
    let written = |name: &str| -> u64 {
        let value = server.ok(&format!("zfs get -Hp -o value written {name}"));
        value.trim().parse().unwrap()
    };
    let same = content(1);
    // What was set before the file was, what is set before it is overwritten, and whether that
    // writes it.
    let cases = [
        ("sha256", "checksum=sha256 compression=lz4", "", false),
        ("sha512", "checksum=sha512 compression=zstd", "", false),
        ("skein", "checksum=skein compression=gzip-1", "", false),
        ("edonr", "checksum=edonr compression=zle", "", false),
        ("blake3", "checksum=blake3 compression=on", "", false),
        ("weak", "checksum=fletcher4 compression=lz4", "", true),
        ("plain", "checksum=sha256 compression=off", "", true),
        ("dedup", "dedup=sha256 compression=lz4", "", true),
        (
            "copies",
            "checksum=sha256 compression=lz4",
            "copies=2",
            true,
        ),
        (
            "recompress",
            "checksum=sha256 compression=lz4",
            "compression=zstd",
            true,
        ),
        (
            "rechecksum",
            "checksum=sha256 compression=lz4",
            "checksum=sha512",
            true,
        ),
    ];
    for (name, before, after, is_written) in cases {
        let name = format!("tank/{name}");
        let options: String = before.split(' ').map(|one| format!("-o {one} ")).collect();
        server.ok(&format!("zfs create {options} {name}"));
        let at = name.trim_start_matches("tank/");
        over(at, &same);
        server.ok(&format!("zfs snapshot {name}@1"));
        if !after.is_empty() {
            server.ok(&format!("zfs set {after} {name}"));
        }
        over(at, &same);
        let bytes = written(&name);
        // Of a file with a new change time: its dnode and what leads there. Shared by dedup, the
        // blocks are new ones, which take their place in the count.
        assert_eq!(bytes > 256 << 10, is_written, "{name}: {bytes}");
        assert_eq!(read(top.join(at).join("f")).unwrap(), same, "{name}");
    }
    // One block that differs is written alone.
    let mut other = same.clone();
    other[700_000] ^= 1;
    over("sha256", &other);
    let one = written("tank/sha256");
    assert!((64 << 10..400 << 10).contains(&one), "{one}");
    over("sha256", &same);
    // A clone shares what it is overwritten with; written again, it does not.
    let options = "-o checksum=sha256 -o compression=lz4";
    server.ok(&format!("zfs clone {options} tank/sha256@1 tank/clone"));
    over("clone", &same);
    assert!(written("tank/clone") < 256 << 10);
    let path = top.join("clone/f");
    server.ok(&format!("zfs rewrite {}", path.display()));
    server.ok("zpool sync");
    assert!(written("tank/clone") > 1 << 20);
    assert_eq!(read(&path).unwrap(), same);
    assert_eq!(read(top.join("sha256/.zfs/snapshot/1/f")).unwrap(), same);
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
