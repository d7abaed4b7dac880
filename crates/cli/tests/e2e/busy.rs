//! Filesystems that are in use while something is done to them.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::harness::{can_mount, run};
use crate::properties::{done, tank};

/// Whoever asks for a filesystem that is open somewhere gets that one: a second would free what the
/// first still has open, and write over what it has changed.
#[test]
fn a_filesystem_is_open_once_whoever_asks() {
    if !can_mount() {
        return;
    }
    let server = tank();
    server.ok("zfs create tank/a");
    let (place, path) = (server.text("mnt/a"), server.path("mnt/a/gone"));
    let content = vec![0x5a; 1 << 20];
    fs::write(&path, &content).unwrap();
    server.ok("zpool sync tank");
    let mut how = fs::File::options();
    // Past the kernel's memory of it.
    how.read(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
    let open = how.open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // Nowhere mounted, and in use all the same.
    run("umount", &["-l", &place]);
    server.ok("zfs userspace tank/a");
    let columns: Vec<String> = (0..50).map(|id| format!("userused@{id}")).collect();
    server.ok(&format!("zfs list -H -o {} tank/a", columns.join(",")));
    server.ok("zfs set userquota@4321=1G tank/a");
    let said = server.ok("zfs userspace -H -o name,quota -n tank/a");
    assert!(said.contains("4321\t1G"), "{said}");
    let mut room = vec![0; content.len() + 4096];
    let at = room.as_ptr().align_offset(4096);
    open.read_exact_at(&mut room[at..at + content.len()], 0)
        .unwrap();
    assert!(room[at..at + content.len()] == content[..]);
    drop(open);
    done(&server);
}
