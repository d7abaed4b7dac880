//! Mounts where others than root may write: no link of theirs leads elsewhere, and none is lost.
//! Method: what user `nobody` could do is done on the host, and where the kernel has mounted.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::{Command, Stdio};

use crate::harness::{MILLPOND, Server, can_mount, run, text_of};
use crate::properties::value;
use crate::users::{as_nobody, can_be_others, program};

/// Number of user and group `nobody`.
const NOBODY: u32 = 65534;

fn tank() -> Server {
    let server = Server::start();
    let disk = &server.disks(1, 256 << 20)[0];
    let mount = server.text("mnt");
    server.ok(&format!("zpool create -m {mount} tank {disk}"));
    server
}

/// Goal: who may write in a directory above a mount point has nothing mounted, made or changed at
/// another place of the host.
#[test]
fn links_of_users_lead_no_mount_elsewhere() {
    if !can_mount() {
        return;
    }
    let server = tank();
    let secret = server.path("secret");
    fs::create_dir(&secret).expect("a directory");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).expect("a mode");
    server.ok("zfs create tank/home");
    let home = server.path("mnt/home");
    chown(&home, Some(NOBODY), Some(NOBODY)).expect("an owner");
    // A link in the place of the mount point, one above it, and one where a directory is to be
    // made.
    for (link, dataset) in [("at", "tank/home/at"), ("above", "tank/home/above/below")] {
        symlink(&secret, home.join(link)).expect("a link");
        if link == "above" {
            server.ok("zfs create -o canmount=off tank/home/above");
        }
        let refused = server.fails(&format!("zfs create {dataset}"));
        assert!(
            refused.contains("is a symbolic link that others"),
            "{refused}"
        );
        assert_eq!(value(&server, "mounted", dataset), "no");
    }
    let metadata = secret.metadata().expect("it is there");
    assert_eq!(metadata.mode() & 0o7777, 0o700);
    assert_eq!(fs::read_dir(&secret).expect("it is read").count(), 0);
    assert!(server.fails("zfs mount -a").contains("is a symbolic link"));
    // A directory in its place is one to mount at.
    fs::remove_file(home.join("at")).expect("it goes");
    server.ok("zfs mount tank/home/at");
    assert_eq!(value(&server, "mounted", "tank/home/at"), "yes");
    server.ok("zfs destroy tank/home/at");
    assert!(!home.join("at").exists(), "its directory goes with it");
    server.ok("zpool destroy tank");
}

/// Goal: a mount whose directory was renamed with one above it is the dataset's as before: told,
/// unmounted and destroyed where it is.
#[test]
fn mounts_that_moved_with_a_directory_are_found() {
    if !can_mount() {
        return;
    }
    let server = tank();
    fs::create_dir_all(server.path("host/above")).expect("a directory");
    let place = server.text("host/above/place");
    let (before, after) = (server.path("host/above"), server.path("host/after"));
    let moved = server.path("host/after/place");
    let is_mounted = |name: &str| value(&server, "mounted", name) == "yes";
    let go = || fs::rename(&before, &after).expect("it is renamed");
    let back = || {
        fs::remove_dir_all(&after).expect("it goes");
        fs::create_dir_all(&before).expect("a directory");
    };
    let make = |more: &str| {
        server.ok(&format!(
            "zfs create -o mountpoint={place} {more} tank/moved"
        ));
        fs::write(server.path("host/above/place/file"), "x").expect("a file");
        go();
        assert!(moved.join("file").exists());
        assert!(is_mounted("tank/moved"));
    };
    make("");
    let told = server.ok("zfs mount");
    assert!(told.contains(&moved.display().to_string()), "{told}");
    let refused = server.fails("zfs mount tank/moved");
    assert!(refused.contains("already mounted"), "{refused}");
    server.ok("zfs set readonly=on tank/moved");
    assert!(fs::write(moved.join("late"), "x").is_err());
    server.ok("zfs set readonly=off tank/moved");
    server.ok("zfs unmount tank/moved");
    assert!(!is_mounted("tank/moved") && !moved.join("file").exists());
    server.ok("zfs destroy tank/moved");
    for words in [
        "zfs unmount -f tank/moved",
        "zfs destroy -r tank/moved",
        "zpool export -f tank",
    ] {
        back();
        make("");
        // Another one came to its old place.
        fs::create_dir_all(&place).expect("a directory");
        run("mount", &["-t", "tmpfs", "other", &place]);
        server.ok(words);
        assert!(!moved.join("file").exists(), "{words}");
        run("umount", &[&place]);
        fs::remove_dir_all(&before).expect("it goes");
        if words.starts_with("zfs unmount") {
            server.ok("zfs destroy tank/moved");
        }
    }
}

/// Goal: what is mounted inside is found by the filesystem that it lies in, whatever the paths of
/// both are by now: a restore in its place is refused, and it outlives what the kernel is told.
#[test]
fn what_is_mounted_inside_of_a_moved_mount_stays() {
    if !can_mount() {
        return;
    }
    let server = tank();
    fs::create_dir_all(server.path("host/above")).expect("a directory");
    let place = server.text("host/above/place");
    server.ok(&format!("zfs create -o mountpoint={place} tank/moved"));
    let inner = server.path("host/above/place/dir");
    fs::create_dir_all(&inner).expect("a directory");
    server.ok("zfs snapshot tank/moved@1");
    run(
        "mount",
        &["-t", "tmpfs", "inner", inner.to_str().expect("text")],
    );
    fs::rename(server.path("host/above"), server.path("host/after")).expect("it is renamed");
    let inner = server.path("host/after/place/dir");
    fs::write(inner.join("file"), "x").expect("a file");
    let refused = server.fails("zfs unmount tank/moved");
    assert!(
        refused.contains("inner is mounted inside of it"),
        "{refused}"
    );
    server.ok("zfs rollback tank/moved@1");
    assert!(inner.join("file").exists(), "a rollback takes it away");
    run("umount", &[inner.to_str().expect("text")]);
    server.ok("zpool destroy tank");
}

/// Goal: what `zfs allow` gives of mounting, receiving, keys and shares is what a user may do, and
/// no more: at directories of theirs, without the rights of set-id bits and device files.
#[test]
fn permissions_let_users_mount_receive_share_and_load_keys() {
    if !can_be_others() {
        return;
    }
    let server = tank();
    let program = program(&server);
    let may = |words: &str| {
        let output = as_nobody(&server, &program, words);
        assert!(output.status.success(), "{words}: {}", text_of(&output));
    };
    let may_not = |words: &str| {
        let output = as_nobody(&server, &program, words);
        let text = text_of(&output);
        let denied = text.contains("permission denied");
        assert!(!output.status.success() && denied, "{words}: {text}");
    };
    let is_mounted = |name: &str| value(&server, "mounted", name) == "yes";
    server.ok("zfs create tank/home");
    server.ok("zfs create -u tank/home/own");
    let place = server.path("mnt/home/own");
    fs::create_dir(&place).expect("a directory");
    chown(&place, Some(NOBODY), Some(NOBODY)).expect("an owner");
    may_not("zfs mount tank/home/own");
    server.ok("zfs allow nobody mount tank/home");
    may("zfs mount -o suid,dev tank/home/own");
    let table = fs::read_to_string("/proc/self/mounts").expect("what is mounted");
    let line = table.lines().find(|line| line.contains("/mnt/home/own "));
    let line = line.unwrap_or_else(|| panic!("it is not in\n{table}"));
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
    may_not("zfs unmount -f tank/home/own");
    may_not("zfs unmount tank");
    may_not("zfs mount -a");
    may("zfs unmount tank/home/own");
    assert!(!is_mounted("tank/home/own"));
    // Somebody else's directory, none, and a link to one of their own.
    chown(&place, Some(0), Some(0)).expect("an owner");
    may_not("zfs mount tank/home/own");
    fs::remove_dir(&place).expect("it goes");
    let gone = as_nobody(&server, &program, "zfs mount tank/home/own");
    assert!(
        !gone.status.success() && !place.exists(),
        "{}",
        text_of(&gone)
    );
    let theirs = server.path("theirs");
    fs::create_dir(&theirs).expect("a directory");
    chown(&theirs, Some(NOBODY), Some(NOBODY)).expect("an owner");
    symlink(&theirs, &place).expect("a link");
    let linked = as_nobody(&server, &program, "zfs mount tank/home/own");
    assert!(
        text_of(&linked).contains("symbolic link"),
        "{}",
        text_of(&linked)
    );
    fs::remove_file(&place).expect("it goes");
    assert!(!is_mounted("tank/home/own"));
    server.ok("zfs mount tank/home/own");

    // A stream sets nothing that mounts or shares, and makes what the user may make.
    server.ok("zfs set sharenfs=rw=127.0.0.1 tank/home/own");
    server.ok("zfs set own:words=kept tank/home/own");
    server.ok("zfs snapshot tank/home/own@1");
    let stream = server.path("stream");
    let sent = fs::File::create(&stream).expect("a file");
    let mut send = Command::new(MILLPOND);
    send.args(["zfs", "send", "-p", "tank/home/own@1"]);
    send.env("MILLPOND_STATE", server.state()).stdout(sent);
    assert!(send.status().expect("it sends").success());
    let receive = |words: &str| {
        let mut receive = Command::new("setpriv");
        let nobody = NOBODY.to_string();
        receive.args(["--reuid", &*nobody, "--regid", &*nobody, "--clear-groups"]);
        receive.arg(&program).args(words.split(' '));
        receive
            .env("MILLPOND_STATE", server.state())
            .current_dir("/");
        receive.stdin(Stdio::from(fs::File::open(&stream).expect("the stream")));
        let output = receive.output().expect("it receives");
        (output.status.success(), text_of(&output))
    };
    let (works, said) = receive("zfs receive tank/home/copy");
    assert!(!works && said.contains("permission denied"), "{said}");
    server.ok("zfs allow nobody receive:append,create tank/home");
    let (works, said) = receive("zfs receive -F tank/home/copy");
    assert!(!works && said.contains("permission denied"), "{said}");
    let (works, said) = receive("zfs receive tank/copy");
    assert!(!works && said.contains("permission denied"), "{said}");
    let (works, said) = receive("zfs receive tank/home/copy");
    assert!(works, "{said}");
    for (name, expected) in [
        ("sharenfs", "off"),
        ("own:words", "kept"),
        ("mounted", "no"),
    ] {
        assert_eq!(value(&server, name, "tank/home/copy"), expected, "{name}");
    }

    // Shares go as the properties say, which are root's.
    may_not("zfs unshare tank/home/own");
    server.ok("zfs allow nobody share tank/home/own");
    may("zfs unshare tank/home/own");
    may("zfs share tank/home/own");
    may_not("zfs share -a");
    may_not("zfs set sharenfs=off tank/home/own");

    // Keys: to load, and to change.
    let (key, other) = (server.path("key"), server.path("other-key"));
    for (path, digit) in [(&key, "1"), (&other, "2")] {
        fs::write(path, digit.repeat(64)).expect("a key");
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("a mode");
    }
    let at = |path: &std::path::Path| format!("keylocation=file://{}", path.display());
    let options = "-o encryption=on -o keyformat=hex -o mountpoint=none";
    server.ok(&format!(
        "zfs create {options} -o {} tank/home/secret",
        at(&key)
    ));
    let change = format!("zfs change-key -o {} tank/home/secret", at(&other));
    may_not("zfs unload-key tank/home/secret");
    server.ok("zfs allow nobody load-key tank/home/secret");
    may("zfs unload-key tank/home/secret");
    assert_eq!(
        value(&server, "keystatus", "tank/home/secret"),
        "unavailable"
    );
    may("zfs load-key tank/home/secret");
    assert_eq!(value(&server, "keystatus", "tank/home/secret"), "available");
    may_not(&change);
    server.ok("zfs allow nobody change-key tank/home/secret");
    may(&change);
    let told = value(&server, "keylocation", "tank/home/secret");
    assert!(told.ends_with("other-key"), "{told}");

    // Raw streams: of anything, or of what is encrypted alone.
    server.ok("zfs snapshot tank/home/secret@s");
    let (secret, own) = (
        "zfs send -w tank/home/secret@s",
        "zfs send -w tank/home/own@1",
    );
    may_not(secret);
    server.ok("zfs allow nobody send:encrypted tank/home");
    may(secret);
    may_not("zfs send tank/home/secret@s");
    may_not(own);
    server.ok("zfs unallow nobody send:encrypted tank/home");
    may_not(secret);
    server.ok("zfs allow nobody send:raw tank/home");
    may(secret);
    may(own);
    may_not("zfs send tank/home/own@1");

    // By force a user destroys no more than without it.
    server.ok("zfs allow nobody destroy tank/home/own");
    let used = fs::File::open(&place).expect("a directory");
    let busy = as_nobody(&server, &program, "zfs destroy -rf tank/home/own");
    assert!(!busy.status.success() && is_mounted("tank/home/own"));
    drop(used);
    may("zfs destroy -rf tank/home/own");
    // What is no permission is none.
    let refused = server.fails("zfs allow nobody rewrite tank/home");
    assert!(
        refused.contains("invalid permission 'rewrite'"),
        "{refused}"
    );
    server.ok("zpool destroy tank");
}
