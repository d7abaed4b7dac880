//! Users without rights: they see what root's server has, change nothing, read nothing of its
//! files, and are told what is wanted where there is no server. Method: commands as user `nobody`.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::harness::{MILLPOND, Server, can_mount, finds, need, run, text_of};

/// Number of user and group `nobody`.
const NOBODY: &str = "65534";

pub fn can_be_others() -> bool {
    can_mount() && need("setpriv of util-linux", finds("setpriv"))
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("something").mode() & 0o7777
}

/// A copy of the binary where everybody can run it, in a directory that everybody can pass.
pub fn program(server: &Server) -> PathBuf {
    set_mode(server.directory.path(), 0o711);
    let copy = server.path("millpond");
    std::fs::copy(MILLPOND, &copy).expect("a copy");
    set_mode(&copy, 0o755);
    copy
}

/// Runs `millpond` as nobody.
pub fn as_nobody(server: &Server, program: &Path, words: &str) -> Output {
    Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
        .arg(program)
        .args(words.split_whitespace())
        .env("MILLPOND_STATE", server.state())
        .env("HOME", "/nonexistent")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .expect("setpriv runs")
}

/// Goal: what looks works for every user, what changes is refused, in OpenZFS's words, and does
/// nothing.
#[test]
fn every_user_looks_and_none_but_root_changes() {
    if !can_be_others() {
        return;
    }
    let server = Server::start();
    let program = program(&server);
    let disks = server.disks(3, 256 << 20);
    let mount = server.text("mnt");
    server.ok(&format!(
        "zpool create -m {mount} tank {} {}",
        disks[0], disks[1]
    ));
    server.ok("zfs create tank/a");
    server.ok("zfs create -s -V 16M tank/volume");
    server.ok("zfs snapshot tank/a@1");
    server.ok("zfs set userquota@nobody=10M tank/a");
    let seen = || {
        let pools = server.ok("zpool get -Hp all tank");
        let stable = |line: &&str| {
            !["free", "allocated", "guid"]
                .iter()
                .any(|w| line.contains(w))
        };
        let pools: Vec<&str> = pools.lines().filter(stable).collect();
        let datasets = server.ok("zfs list -H -t all -o name,type,compression,mounted");
        format!("{}\n{datasets}", pools.join("\n"))
    };
    let before = seen();

    for (words, shown) in [
        ("zpool list", "tank"),
        ("zpool list -v tank", "tank"),
        ("zpool get all tank", "feature@"),
        ("zpool status", "state: ONLINE"),
        ("zpool status -v tank", "No known data errors"),
        ("zpool iostat -v", "tank"),
        ("zpool wait tank", ""),
        ("zpool sync tank", ""),
        ("zpool upgrade", "feature flags"),
        ("zfs list -t all", "tank/a@1"),
        ("zfs get all tank/a tank/volume tank/a@1", "compression"),
        ("zfs mount", "tank/a"),
        ("zfs holds tank/a@1", ""),
        ("info", "tank"),
    ] {
        let output = as_nobody(&server, &program, words);
        let text = text_of(&output);
        assert!(
            output.status.success() && text.contains(shown),
            "{words}: {text}"
        );
    }
    // What others use is root's to know.
    let own = as_nobody(
        &server,
        &program,
        "zfs get -Hp -o value userquota@65534 tank/a",
    );
    assert_eq!(text_of(&own).trim(), "10485760");
    let of_root = as_nobody(&server, &program, "zfs get -Hp -o value userused@0 tank/a");
    assert_eq!(text_of(&of_root).trim(), "-");
    assert_ne!(
        server.ok("zfs get -Hp -o value userused@0 tank/a").trim(),
        "-"
    );

    let create = format!("zpool create new {}", disks[2]);
    let add = format!("zpool add tank log {}", disks[2]);
    let labelclear = format!("zpool labelclear -f {}", disks[2]);
    for (words, told) in [
        (create.as_str(), "cannot create 'new'"),
        (&add, "cannot add to 'tank'"),
        (&labelclear, "failed to clear label"),
        ("zpool remove tank nothing", "cannot remove"),
        ("zpool reguid tank", "cannot reguid 'tank'"),
        ("zpool destroy tank", "cannot destroy 'tank'"),
        ("zpool export tank", "cannot export 'tank'"),
        ("zpool export -a", "cannot export"),
        ("zpool import", "cannot discover pools"),
        ("zpool import -a", "cannot discover pools"),
        ("zpool import tank", "cannot import 'tank'"),
        (
            "zpool set comment=mine tank",
            "cannot set property for 'tank'",
        ),
        ("zpool checkpoint tank", "cannot checkpoint 'tank'"),
        ("zpool clear tank", "cannot clear errors for tank"),
        ("zpool scrub tank", "cannot scrub 'tank'"),
        ("zpool history tank", "cannot get history for 'tank'"),
        ("zfs create tank/b", "cannot create 'tank/b'"),
        ("zfs destroy tank/a@1", "cannot destroy 'tank/a@1'"),
        ("zfs destroy -r tank/a", "cannot destroy 'tank/a'"),
        (
            "zfs set compression=off tank/a",
            "cannot set property for 'tank/a'",
        ),
        (
            "zfs inherit compression tank/a",
            "cannot inherit compression for 'tank/a'",
        ),
        ("zfs snapshot tank/a@2", "cannot create snapshot 'tank/a@2'"),
        ("zfs rollback tank/a@1", "cannot rollback to 'tank/a@1'"),
        ("zfs rename tank/a tank/c", "cannot rename 'tank/a'"),
        ("zfs mount -a", "cannot mount"),
        ("zfs unmount tank/a", "cannot unmount 'tank/a'"),
        ("zfs unmount -a", "cannot unmount"),
        ("zfs userspace tank/a", "cannot get used/quota for tank/a"),
        ("zfs load-key tank/a", "keys"),
        ("down", "cannot stop the server"),
    ] {
        let output = as_nobody(&server, &program, words);
        let text = text_of(&output);
        let begins = ["zpool reguid", "zfs set", "zfs userspace"];
        let status = match begins.iter().any(|begin| words.starts_with(begin)) {
            // What libzfs hands on as it is (-1).
            true => 255,
            false => 1,
        };
        assert_eq!(output.status.code(), Some(status), "{words}: {text}");
        assert!(
            text.contains(told) && text.contains("permission denied"),
            "{words}: {text}"
        );
    }
    assert_eq!(seen(), before);

    // A pool that could be upgraded: root's to do, everybody's to know.
    server.ok(&format!("zpool create -d -m none old {}", disks[2]));
    let listed = as_nobody(&server, &program, "zpool upgrade");
    assert!(text_of(&listed).contains("old"), "{}", text_of(&listed));
    let refused = as_nobody(&server, &program, "zpool upgrade old");
    let told = text_of(&refused).contains("cannot upgrade 'old': permission denied");
    assert!(!refused.status.success() && told, "{}", text_of(&refused));
    assert_eq!(
        server
            .ok("zpool get -H -o value feature@lz4_compress old")
            .trim(),
        "disabled"
    );
}

/// Goal: permissions let a user do what they say, where they say, and nothing else; they are told
/// as OpenZFS tells them, and stored as it stores them. Method: each kind of grantee and scope, and
/// the requests that need them, as user nobody; zdb.
#[test]
fn permissions_let_users_do_what_they_say() {
    if !can_be_others() {
        return;
    }
    let server = Server::start();
    let program = program(&server);
    let disks = server.disks(1, 256 << 20);
    let mount = server.text("mnt");
    server.ok(&format!("zpool create -m {mount} tank {}", disks[0]));
    for name in ["a", "a/b", "o"] {
        server.ok(&format!("zfs create tank/{name}"));
    }
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
    may_not("zfs snapshot tank/a@1");
    server.ok("zfs allow -l nobody snapshot tank/a");
    may("zfs snapshot tank/a@1");
    let in_snapdir = |words: &str| {
        let nobody = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
        let words = words.replace("SNAPDIR", &format!("{mount}/a/.zfs/snapshot"));
        let mut command = Command::new("setpriv");
        command.args(nobody).args(words.split(' '));
        command.output().expect("setpriv").status.success()
    };
    assert!(in_snapdir("mkdir SNAPDIR/made"));
    assert!(!in_snapdir("rmdir SNAPDIR/made"));
    server.ok("zfs destroy tank/a@made");
    may_not("zfs snapshot -r tank/a@2");
    may_not("zfs snapshot tank/a/b@1");
    may_not("zfs snapshot -o a:b=c tank/a@2");
    server.ok("zfs allow -d everyone snapshot,userprop,hold,release,mount tank/a");
    may("zfs snapshot tank/a/b@1");
    may("zfs set a:b=c tank/a/b");
    may_not("zfs set a:b=c tank/a");
    may_not("zfs set compression=off tank/a/b");
    may_not("zfs set millpond:iscsi=on tank/a/b");
    may("zfs hold keep tank/a/b@1");
    may_not("zfs hold keep tank/a@1");
    may("zfs release keep tank/a/b@1");
    may_not("zfs destroy tank/a/b@1");

    // A set, of which another one is a part, for a group.
    server.ok("zfs allow -s @more destroy,create,clone tank");
    // Which is another one below, where that says what is in it.
    server.ok("zfs allow -s @more create tank/o");
    server.ok("zfs allow -g 65534 @more,mount tank/o");
    server.ok("zfs snapshot tank/o@1");
    may_not("zfs destroy tank/o@1");
    server.ok("zfs unallow -s @more tank/o");
    may("zfs destroy tank/o@1");
    server.ok("zfs unallow -g 65534 tank/o");
    server.ok("zfs allow -s @all @more,compression,rename,rollback,bookmark,promote tank");
    server.ok("zfs allow -g 65534 @all,mount tank/a");
    server.ok("zfs allow -c canmount,diff tank/a");
    may("zfs set compress=zstd tank/a/b");
    may("zfs bookmark tank/a/b@1 tank/a/b#1");
    may_not("zfs send tank/a/b@1");
    server.ok("zfs allow nobody send tank/a");
    may("zfs send -R tank/a@1");
    may("zfs send -n -v tank/a/b@1");
    may_not("zfs send -R tank@1");
    server.ok("zfs unallow nobody send tank/a");
    may("zfs rollback tank/a/b@1");
    // Nothing is newer, so nothing is destroyed.
    may("zfs rollback -R tank/a/b@1");
    server.ok("zfs snapshot tank/a/b@2");
    may_not("zfs rollback -R tank/a/b@1");
    server.ok("zfs destroy tank/a/b@2");
    may("zfs destroy tank/a/b#1");
    may("zfs create tank/a/new");
    may("zfs set canmount=noauto tank/a/new");
    may_not("zfs set canmount=noauto tank/a/b");
    // What a user makes is theirs, and not mounted: where, root says.
    let shown = server.ok("zfs get -H -o value mounted tank/a/new");
    assert_eq!(shown, "no\n");
    server.ok("zfs mount tank/a/new");
    let owner = std::fs::metadata(format!("{mount}/a/new")).expect("its root");
    assert_eq!((owner.uid(), owner.gid()), (65534, 65534));
    may("zfs clone tank/a/b@1 tank/a/clone");
    may_not("zfs clone tank/a/b@1 tank/o/clone");
    may("zfs promote tank/a/clone");
    may("zfs rename tank/a/clone tank/a/other");
    may_not("zfs rename tank/a/other tank/o/other");
    may_not("zfs destroy -R tank/a/b");
    // Where they mount is to be theirs, too.
    may("zfs unmount tank/a/b");
    may_not("zfs mount tank/a/b");
    may("zfs destroy tank/a/b");
    may("zfs destroy -r tank/a/other");

    // Giving what one has, but not the right to give.
    may_not("zfs allow nobody destroy tank/a");
    server.ok("zfs allow nobody allow tank/a");
    may("zfs allow nobody destroy tank/a");
    may_not("zfs allow nobody allow tank/a");
    may_not("zfs allow nobody send tank/a");
    may_not("zfs unallow everyone tank/a");
    let told = text_of(&as_nobody(&server, &program, "zfs allow tank/a"));
    let expected = "\
---- Permissions on tank/a -------------------------------------------
Create time permissions:
\tcanmount,diff
Local permissions:
\tuser nobody snapshot
Descendent permissions:
\teveryone hold,mount,release,snapshot,userprop
Local+Descendent permissions:
\tuser nobody allow,destroy
\tgroup nogroup @all,mount
---- Permissions on tank ---------------------------------------------
Permission sets:
\t@all @more,bookmark,compression,promote,rename,rollback
\t@more clone,create,destroy
";
    assert_eq!(told, expected);
    may("zfs unallow nobody destroy tank/a");
    server.ok("zfs unallow -r everyone tank/a");
    may_not("zfs set a:b=c tank/a/new");
    server.ok("zpool set delegation=off tank");
    may_not("zfs snapshot tank/a@3");
    server.ok("zpool set delegation=on tank");
    may("zfs snapshot tank/a@3");
    for (words, said) in [
        (
            "zfs allow nobody nothing tank/a",
            "invalid permission 'nothing'",
        ),
        ("zfs allow nobody used tank/a", "invalid permission 'used'"),
        ("zfs allow noone create tank/a", "invalid user/group noone"),
        (
            "zfs allow -s no create tank/a",
            "invalid set name: missing '@' prefix",
        ),
        (
            "zfs allow -ug nobody create tank/a",
            "-u, -g, and -e are mutually exclusive",
        ),
        (
            "zfs allow nobody create tank/none",
            "cannot open 'tank/none'",
        ),
    ] {
        let text = server.fails(words);
        assert!(text.contains(said), "{words}: {text}");
    }
    let history = server.ok("zpool history -i tank");
    for line in [
        "permission update tank/a (",
        "ul$65534 snapshot",
        "S-$@all @more",
        "permission who remove tank/a",
        "permission remove tank/a",
        "zfs allow -c canmount,diff tank/a",
    ] {
        assert!(history.contains(line), "{line} is not in\n{history}");
    }
    // Whose commands they were.
    let long = server.ok("zpool history -l tank");
    let of = |words: &str| {
        let line = long.lines().find(|line| line.contains(words));
        line.unwrap_or_else(|| panic!("{words} is not in\n{long}"))
    };
    assert!(
        of("zfs create tank/a/new").contains("[user 65534"),
        "{long}"
    );
    assert!(of("zfs create tank/a/b").contains("[user 0"), "{long}");
    server.ok("zfs unallow -s @all tank");
    server.ok("zfs unallow -s @more tank");
    server.ok("zpool export tank");
    crate::harness::zdb_finds_no_leaks(&server.path("disks"), "tank");
}

/// Goal: what is in the state directory is its user's, and what is meant for all is not.
#[test]
fn files_are_their_owners_and_mounts_are_for_all() {
    if !can_be_others() {
        return;
    }
    let mut server = Server::prepare();
    let program = program(&server);
    // As earlier releases left it.
    let state = server.state();
    std::fs::create_dir_all(state.join("disks")).expect("a state directory");
    for (path, old) in [("", 0o755), ("disks", 0o755)] {
        set_mode(&state.join(path), old);
    }
    for file in ["daemon.log", "pools.json"] {
        std::fs::write(
            state.join(file),
            if file == "pools.json" { "[]" } else { "" },
        )
        .expect("a file");
        set_mode(&state.join(file), 0o644);
    }
    server.launch(&["up", "--size", "1G"]);
    server.wait_until("up says what runs", || server.log().contains("stop:"));
    assert_eq!(mode(&state), 0o711);
    assert_eq!(mode(&state.join("disks")), 0o700);
    assert_eq!(mode(&state.join("millpond.sock")), 0o666);
    let mut files: Vec<PathBuf> = ["daemon.log", "pools.json", "millpond.lock"]
        .map(|name| state.join(name))
        .into();
    files.extend((0..4).map(|disk| state.join(format!("disks/disk{disk}.img"))));
    for file in &files {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }

    // Through mounts it is the maker's umask that counts.
    let shell = |line: &str| run("sh", &["-euc", line]);
    let mount = state.join("mnt");
    let at = mount.display();
    assert_eq!(mode(&mount), 0o755);
    shell(&format!(
        "umask 022; echo hello >{at}/file; mkdir {at}/directory; umask 0; echo >{at}/open; mkdir \
         {at}/wide"
    ));
    for (name, expected) in [
        ("file", 0o644),
        ("directory", 0o755),
        ("open", 0o666),
        ("wide", 0o777),
    ] {
        assert_eq!(mode(&mount.join(name)), expected, "{name}");
    }
    let deep = server.path("above/deep");
    server.ok(&format!(
        "zfs create -o mountpoint={} pond/deep",
        deep.display()
    ));
    server.ok("zfs unmount pond/deep");
    assert_eq!((mode(&deep), mode(&server.path("above"))), (0o755, 0o755));

    // Others reach what is for them by its name, and list nothing.
    let others = |words: &[&str]| {
        let nobody = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
        Command::new("setpriv")
            .args(nobody)
            .args(words)
            .output()
            .expect("setpriv")
    };
    let file = mount.join("file").display().to_string();
    assert_eq!(text_of(&others(&["cat", &file])), "hello\n");
    let listed = others(&["ls", &state.display().to_string()]);
    assert!(!listed.status.success(), "{}", text_of(&listed));
    for file in &files {
        let read = others(&["head", "-c1", &file.display().to_string()]);
        assert!(!read.status.success(), "{}", file.display());
    }
    let volume = others(&[
        "head",
        "-c1",
        &state.join("zvol/pond/volume").display().to_string(),
    ]);
    assert!(!volume.status.success(), "{}", text_of(&volume));
    let seen = as_nobody(&server, &program, "zfs list -H -o name pond/volume");
    assert_eq!(text_of(&seen).trim(), "pond/volume");
    server.stop();
}

/// Goal: who cannot start a server is told so, and not of a file that they cannot write.
#[test]
fn without_a_server_a_user_is_told_who_can_start_one() {
    if !can_be_others() {
        return;
    }
    let mut server = Server::start();
    let program = program(&server);
    server.stop();
    for words in ["zpool list", "zfs list", "zpool create new /dev/null"] {
        let output = as_nobody(&server, &program, words);
        let text = text_of(&output);
        assert!(!output.status.success(), "{words}: {text}");
        let state = server.state().display().to_string();
        for expected in [
            "no server runs",
            &state,
            "only root can start one",
            "MILLPOND_STATE",
        ] {
            assert!(
                text.contains(expected),
                "{words}: '{expected}' is not in: {text}"
            );
        }
        assert!(!text.contains("daemon.log"), "{words}: {text}");
    }
    // Of another user than root: theirs alone, and said so.
    std::fs::remove_dir_all(server.state()).expect("removed");
    let other = ["--reuid", "65533", "--regid", "65533", "--clear-groups"];
    std::fs::create_dir(server.state()).expect("a directory");
    chown(server.state(), Some(65533), Some(65533)).expect("given away");
    let started = Command::new("setpriv")
        .args(other)
        .arg(&program)
        .args(["zpool", "list"])
        .env("MILLPOND_STATE", server.state())
        .output()
        .expect("setpriv");
    assert!(started.status.success(), "{}", text_of(&started));
    assert_eq!(mode(&server.state()), 0o700);
    assert_eq!(mode(&server.state().join("millpond.sock")), 0o600);
    let output = as_nobody(&server, &program, "zpool list");
    let denied = text_of(&output).contains("permission denied");
    assert!(!output.status.success() && denied, "{}", text_of(&output));
    // Root may do everything.
    server.ok("zpool list");
    server.ok("down");
}

/// Goal: without `MILLPOND_STATE` a user sees the machine's pools, until there are pools of their
/// own. Method: in a namespace of mounts, where the usual state directory is empty.
#[test]
fn a_user_sees_the_pools_of_the_machine_or_their_own() {
    if !can_be_others() || !need("unshare of util-linux", finds("unshare")) {
        return;
    }
    let server = Server::prepare();
    let program = program(&server);
    let disks = server.disks(1, 128 << 20);
    let home = server.path("home");
    std::fs::create_dir(&home).expect("a home");
    chown(&home, Some(65534), Some(65534)).expect("given away");
    let script = format!(
        r#"
# What others have mounted is left to them: held here, it could not be unmounted there. With one
# goes what is mounted below it.
awk '$3 ~ /^fuse/ {{ print $2 }}' /proc/self/mounts |
    while read -r at; do umount -l "$at" 2>/dev/null || true; done
mount -t tmpfs none /var/lib; cd /
unset MILLPOND_STATE XDG_STATE_HOME
millpond={program}; home={home}
user() {{ setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups env HOME=$home "$@"; }}
same() {{ [ "$1" = "$2" ] || {{ echo "'$1' is not '$2'"; exit 1; }}; }}
names() {{ user $millpond zpool list -H -o name | tr '\n' ' '; }}
trap '$millpond down; user $millpond down || true' EXIT
$millpond zpool create -m none tank {disk}
same "$(names)" "tank "
same "$(user $millpond zfs list -H -o name)" tank
! user $millpond zfs set compression=off tank 2>$home.err
grep 'permission denied' $home.err
same "$(ls -A $home)" ""
user truncate -s 128M $home/disk
user $millpond zpool create -m none mine $home/disk
same "$(names)" "mine "
user $millpond zfs set compression=off mine
same "$($millpond zpool list -H -o name)" tank
user $millpond down
! user $millpond zpool list 2>$home.err
grep 'it was stopped' $home.err
same "$($millpond zpool list -H -o name)" tank
user $millpond start
same "$(names)" "mine "
user $millpond zpool export mine
same "$(names)" ""
user $millpond down
same "$(names)" "tank "
"#,
        program = program.display(),
        home = home.display(),
        disk = disks[0],
    );
    run("unshare", &["-m", "bash", "-euc", &script]);
}
