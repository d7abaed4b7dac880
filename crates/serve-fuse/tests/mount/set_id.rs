//! Set-id bits, flags that protect files, and access times: what each change leaves, as on ext4.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::XattrFlags;
use serve_fuse::MountOptions;

use crate::{Rig, can_mount, outside, pattern, unmount};

/// Runs a script in a directory as a user who is in no other group; what it printed, or how it
/// failed.
pub fn as_user(place: &Path, uid: u32, script: &str) -> Result<String, String> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(place);
    if uid != 0 {
        command.uid(uid).gid(uid);
    }
    let output = command.output().expect("sh");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The same, by a user who is of other groups besides.
pub fn as_member(place: &Path, uid: u32, groups: &str, script: &str) -> Result<String, String> {
    let script = format!(
        "setpriv --reuid {uid} --regid {uid} --groups {groups} sh -c '{}'",
        script.replace('\'', "'\\''")
    );
    as_user(place, 0, &script)
}

/// What of a file's set-id bits each change leaves, as ext4 does.
fn set_id_bits_go(place: &Path) {
    const TO_HOLE: &str = "fallocate -p -l 4096 s";
    let copy = "dd if=/dev/zero bs=4096 count=1 of=s conv=notrunc status=none";
    for (mode, uid, change, left) in [
        (0o6755, 0, "chown 1001:1001 s", 0o755),
        (0o6755, 0, "chown 0:0 s", 0o755),
        (0o2644, 0, "chgrp 1001 s", 0o2644),
        (0o2644, 0, "chown 1001 s", 0o2644),
        (0o4644, 0, "chown 1001 s", 0o644),
        // No owner is named.
        (
            0o6755,
            0,
            "python3 -c 'import os; os.chown(\"s\", -1, -1)'",
            0o755,
        ),
        (0o6757, 1001, ": > s", 0o757),
        (0o6757, 1001, "truncate -s 5 s", 0o757),
        (0o6757, 1001, "truncate -s 50000 s", 0o757),
        (0o6757, 1001, "fallocate -l 100000 s", 0o757),
        (0o6757, 1001, TO_HOLE, 0o757),
        (0o6757, 1001, copy, 0o757),
        (0o4646, 1001, copy, 0o646),
        (0o2646, 1001, "truncate -s 5 s", 0o646),
        (0o6757, 1000, TO_HOLE, 0o757),
        (0o6757, 1000, "chgrp 1000 s", 0o757),
        // Root's changes of content, and what changes neither owner nor content.
        (0o6755, 0, ": > s", 0o6755),
        (0o6755, 0, "truncate -s 5 s", 0o6755),
        (0o6755, 0, "fallocate -l 100000 s", 0o6755),
        (0o6755, 0, TO_HOLE, 0o6755),
        (0o6755, 0, copy, 0o6755),
        (
            0o6755,
            0,
            "touch s; touch -d @7 s; ln s t; mv t s; rm -f t",
            0o6755,
        ),
    ] {
        let file = place.join("s");
        let _ = fs::remove_file(&file);
        fs::write(&file, pattern(1, 20_000)).unwrap();
        std::os::unix::fs::chown(&file, Some(1000), Some(1000)).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        as_user(place, uid, change).expect(change);
        let found = fs::metadata(&file).unwrap().mode() & 0o7777;
        assert_eq!(found, left, "{mode:o} after '{change}' by {uid}: {found:o}");
    }
    // Where the group may not execute, its members' changes leave the bit, whichever of their
    // groups it is.
    for (mode, groups, change, left) in [
        (0o2666, "1003,1000", "truncate -s 5 s", 0o2666),
        (0o2666, "1003,1000", copy, 0o2666),
        (0o2666, "1003,1000", TO_HOLE, 0o2666),
        (0o6666, "1000", copy, 0o2666),
        (0o2676, "1003,1000", copy, 0o676),
        (0o2666, "1003", "truncate -s 5 s", 0o666),
        (0o2666, "1003", copy, 0o666),
        (0o2666, "1003", TO_HOLE, 0o666),
    ] {
        let file = place.join("s");
        fs::write(&file, pattern(1, 20_000)).unwrap();
        std::os::unix::fs::chown(&file, Some(1002), Some(1000)).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        as_member(place, 1001, groups, change).expect(change);
        let found = fs::metadata(&file).unwrap().mode() & 0o7777;
        assert_eq!(
            found, left,
            "{mode:o} after '{change}' by {groups}: {found:o}"
        );
    }
    // Directories keep theirs.
    fs::create_dir(place.join("d")).unwrap();
    fs::set_permissions(place.join("d"), PermissionsExt::from_mode(0o6755)).unwrap();
    as_user(place, 0, "chown 1001:1001 d").expect("chown");
    let directory = fs::metadata(place.join("d")).unwrap();
    assert_eq!(directory.mode() & 0o7777, 0o6755);
}

/// What `chattr +i` and `+a` protect, as on ext4.
fn flags_protect(place: &Path) {
    let list =
        "0200000001000600ffffffff0200040001000000040004 00ffffffff10000400ffffffff20000400ffffffff";
    let list = list.replace(' ', "");
    let acl = format!("setfattr -n system.posix_acl_access -v 0x{list}");
    let set = "touch FILE; chmod 644 FILE; setfattr -n user.old -v x FILE";
    for flag in ["i", "a"] {
        let file = format!("flag-{flag}");
        let run = |script: &str| as_user(place, 0, &script.replace("FILE", &file));
        run(set).expect("a file");
        run(&format!("chattr +{flag} FILE")).expect("chattr");
        for refused in [
            "chmod 600 FILE",
            "chown 1000 FILE",
            "touch -d @7 FILE",
            "touch -a FILE",
            "truncate -s 9 FILE",
            "setfattr -n user.new -v x FILE",
            "setfattr -x user.old FILE",
            // The mode stays what it is.
            &format!("{acl} FILE"),
            "setfattr -x system.posix_acl_access FILE",
        ] {
            let error = run(refused).expect_err(refused);
            assert!(
                error.contains("not permitted"),
                "+{flag}: {refused}: {error}"
            );
        }
        let used = run("touch FILE && echo more >> FILE");
        assert_eq!(used.is_ok(), flag == "a", "+{flag}: {used:?}");
        run(&format!("chattr -{flag} FILE")).expect("chattr");
        run(&format!("chmod 600 FILE; {acl} FILE")).expect("chmod");
    }
    as_user(place, 0, "mkdir dir; chattr +a dir").expect("a directory");
    let default = format!("setfattr -n system.posix_acl_default -v 0x{list} dir");
    as_user(place, 0, &default).expect_err("a default list");
    as_user(place, 0, "touch dir/new; chattr -a dir").expect("a directory grows");
    as_user(place, 0, &default).expect("a default list");
    for name in ["user.", "trusted.", "security."] {
        let set = rustix::fs::setxattr(place.join("dir"), name, b"x", XattrFlags::empty());
        assert_eq!(set, Err(rustix::io::Errno::INVAL), "{name}");
    }
}

/// What a mount finds that was just made: nothing is in the kernel's memory yet.
fn access_times_move(place: &Path) {
    let atime = |name: &str| {
        // Attributes are good for a second.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        fs::symlink_metadata(place.join(name)).unwrap().atime()
    };
    let read = |flags: rustix::fs::OFlags| {
        let flags = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(place.join("old"));
        let mut text = String::new();
        flags.unwrap().read_to_string(&mut text).expect("read");
        assert_eq!(text, "old\n");
    };
    assert_eq!((atime("old"), atime("link")), (7, 7));
    read(rustix::fs::OFlags::NOATIME | rustix::fs::OFlags::DIRECT);
    assert_eq!(atime("old"), 7);
    read(rustix::fs::OFlags::empty());
    assert!(atime("old") > 7);
    assert_eq!(fs::read_link(place.join("link")).unwrap(), Path::new("old"));
    assert!(atime("link") > 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn set_id_bits_flags_and_access_times() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[("acltype", "posix")]).await;
    fs::set_permissions(rig.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let filesystem = rig.filesystem("tank").await;
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let root = rig.mountpoint();
    outside(move || {
        set_id_bits_go(&root);
        flags_protect(&root);
        let old = "echo old > old; ln -s old link; touch -h -d @7 old link";
        as_user(&root, 0, old).expect("files");
    })
    .await;
    unmount(&mount).await;
    drop(mount);
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let root = rig.mountpoint();
    outside(move || access_times_move(&root)).await;
    unmount(&mount).await;
    filesystem.close().await.expect("close");
    rig.export().await;
}
