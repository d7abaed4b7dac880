//! What is not ours on a device is overwritten by force only, and nobody else gets a pool's spares.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

use crate::harness::{Server, finds, need, run};

const DISK_BYTES: u64 = 128 << 20;

/// Makes a file look like another system's disk.
type Make = fn(&str);

/// Writes `bytes` at `offset` of a file.
fn put(path: &str, offset: u64, bytes: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(path).expect("a disk");
    file.seek(SeekFrom::Start(offset)).expect("a place");
    file.write_all(bytes).expect("written");
}

/// The first and last MiB of a file, where labels and signatures are.
fn ends(path: &str) -> Vec<u8> {
    let mut file = File::open(path).expect("a disk");
    let mut out = vec![0; 2 << 20];
    let (first, last) = out.split_at_mut(1 << 20);
    file.read_exact(first).expect("its start");
    file.seek(SeekFrom::End(-(1 << 20))).expect("its end");
    file.read_exact(last).expect("its end");
    out
}

/// A table with one Linux partition (the boot sector of a PC).
fn partition_table(path: &str) {
    let mut sector = [0u8; 512];
    sector[440..444].copy_from_slice(b"disk");
    let entry = &mut sector[446..462];
    entry[4] = 0x83;
    entry[8..12].copy_from_slice(&2048u32.to_le_bytes());
    entry[12..16].copy_from_slice(&4096u32.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    put(path, 0, &sector);
}

/// The header of an encrypted volume.
fn luks(path: &str) {
    let mut header = [0u8; 592];
    header[..6].copy_from_slice(b"LUKS\xba\xbe");
    header[6..8].copy_from_slice(&1u16.to_be_bytes());
    header[168..204].copy_from_slice(b"00000000-0000-4000-8000-000000000001");
    put(path, 0, &header);
}

/// `zpool create` and `zpool add` find what other software has on a device, say what it is, and
/// leave it alone; by force they take the device, and then nothing of it is left to be found.
#[test]
fn what_is_not_zfs_is_overwritten_by_force_only() {
    if !need("mkfs.ext4", finds("mkfs.ext4")) {
        return;
    }
    let server = Server::start();
    let disks = server.disks(5, DISK_BYTES);
    let make: [(&str, Make); 4] = [
        ("a filesystem of type 'ext4'", |path| {
            run("mkfs.ext4", &["-q", "-F", path]);
        }),
        ("data of type 'swap'", |path| {
            run("mkswap", &[path]);
        }),
        ("a partition table of type 'dos'", partition_table),
        ("an encrypted volume of type 'crypto_LUKS'", luks),
    ];
    server.ok(&format!("zpool create -m none home {}", disks[4]));
    for ((what, make), disk) in make.into_iter().zip(&disks) {
        make(disk);
        let before = ends(disk);
        let expected =
            format!("use '-f' to override the following errors:\n{disk} contains {what}");
        for words in [
            format!("zpool create -m none other {disk}"),
            format!("zpool create -m none other spare {disk}"),
            format!("zpool create -n other {disk}"),
            format!("zpool add home {disk}"),
            format!("zpool add home log {disk}"),
            format!("zpool add home cache {disk}"),
        ] {
            // A pool of spares only is wrong for another reason.
            if words.contains("other spare") {
                server.fails(&words);
                continue;
            }
            let refused = server.fails(&words);
            assert!(refused.contains(&expected), "{words}: {refused}");
        }
        assert!(before == ends(disk), "{disk} with {what} was written to");
        server.ok(&format!("zpool create -f -m none other {disk}"));
        server.ok("zpool destroy -f other");
        server.ok(&format!("zpool create -m none other {disk}"));
        server.ok("zpool destroy -f other");
    }
}

/// Opens a block device as `mkfs` does: for itself alone.
fn take(device: &str) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::EXCL.bits() as i32)
        .open(device)
}

/// Spares and cache devices of an imported pool are held, until they are removed or the pool is
/// exported.
#[test]
fn spares_and_cache_devices_are_kept_from_others() {
    if !need(
        "root for loop devices",
        rustix::process::geteuid().is_root(),
    ) {
        return;
    }
    let mut server = Server::start();
    let files = server.disks(4, DISK_BYTES);
    let devices = server.attach(&files);
    let [data, spare, cache, late] = &devices[..] else {
        unreachable!("four devices");
    };
    let is_held = |device: &str| match take(device) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{device}");
            true
        }
    };
    // Whoever looks at new block devices (udev) lets go soon.
    server.wait_until("the devices are free", || {
        devices.iter().all(|device| !is_held(device))
    });
    server.ok(&format!(
        "zpool create -m none tank {data} spare {spare} cache {cache}"
    ));
    assert!(is_held(spare) && is_held(cache));
    server.ok(&format!("zpool add tank spare {late}"));
    assert!(is_held(late));
    server.ok(&format!("zpool remove tank {late}"));
    assert!(!is_held(late));
    server.ok("zpool export tank");
    assert!(!is_held(spare) && !is_held(cache));
    server.ok(&format!(
        "zpool import -d {data} -d {spare} -d {cache} tank"
    ));
    assert!(is_held(spare) && is_held(cache));
    server.ok("zpool destroy tank");
    assert!(!is_held(spare) && !is_held(cache));
}
