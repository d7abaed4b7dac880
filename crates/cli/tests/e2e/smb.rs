//! Filesystems shared by SMB: Samba's server as our child, with Samba's client, and Linux's own in
//! the peer machine.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::harness::{
    MILLPOND, Peer, PeerOptions, Server, can_mount, finds, is_long, need, run, text_of,
};

/// Users of every Debian system, with the numbers that they have there.
const USER: &str = "games";
const OTHER: &str = "backup";

pub fn has_samba() -> bool {
    can_mount()
        && need("smbd (samba)", finds("smbd"))
        && need("smbclient", finds("smbclient"))
        && need(
            "Samba's module fruit (samba-vfs-modules)",
            run("smbd", &["-b"])
                .lines()
                .filter_map(|line| line.trim().strip_prefix("MODULESDIR: "))
                .any(|directory| Path::new(directory).join("vfs/fruit.so").exists()),
        )
}

/// Runs commands of smbclient's at a port as somebody: `USER%PASSWORD`, or nobody.
pub fn smbclient(port: u16, share: &str, who: Option<&str>, commands: &str) -> Output {
    let mut client = Command::new("smbclient");
    client
        .args(["-s", "/dev/null", "-p", &port.to_string()])
        .args(["-t", "60", "-m", "SMB3"])
        .arg(format!("//127.0.0.1/{share}"));
    match who {
        Some(who) => client.args(["-U", who]),
        None => client.arg("-N"),
    };
    client
        .args(["-c", commands])
        .stdin(Stdio::null())
        .output()
        .expect("smbclient runs")
}

/// A server that shares by SMB at a port of its own.
struct Smb {
    server: Server,
    port: u16,
}

impl Smb {
    /// With pool `tank`, which has a filesystem `home` that both users may write to.
    fn start() -> Self {
        let mut smb = Self::prepare();
        smb.launch();
        let disks = smb.server.disks(1, 1 << 30);
        let mountpoint = smb.server.text("tank");
        smb.server
            .ok(&format!("zpool create -m {mountpoint} tank {}", disks[0]));
        smb.server.ok("zfs create tank/home");
        smb.open_to_all("tank/home");
        smb
    }

    fn prepare() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let server = Server::prepare();
        // Users pass through it to what is mounted there.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        fs::set_permissions(server.directory.path(), mode).expect("a mode");
        Self { server, port }
    }

    fn launch(&mut self) {
        self.launch_at("127.0.0.1");
    }

    fn launch_at(&mut self, host: &str) {
        let address = format!("--smb={host}:{}", self.port);
        self.server.launch(&["daemon", &address]);
    }

    /// Where a dataset is mounted.
    fn at(&self, dataset: &str) -> std::path::PathBuf {
        self.server.path(dataset)
    }

    /// Lets all users of the system write to a filesystem.
    fn open_to_all(&self, dataset: &str) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        fs::set_permissions(self.at(dataset), mode).expect("a mode");
    }

    /// Runs `millpond user` with a password at its standard input.
    fn user(&self, words: &str, password: &str) -> Output {
        let mut child = Command::new(MILLPOND)
            .arg("user")
            .args(words.split(' '))
            .env("MILLPOND_STATE", self.server.state())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("millpond runs");
        let mut stdin = child.stdin.take().expect("its input");
        writeln!(stdin, "{password}").expect("it reads");
        drop(stdin);
        child.wait_with_output().expect("its end")
    }

    /// Makes a user, whose password is `NAME's password`.
    fn add_user(&self, name: &str) {
        let added = self.user(&format!("add {name}"), &format!("{name}'s password"));
        assert!(added.status.success(), "{}", text_of(&added));
    }

    /// Runs commands of smbclient's as somebody: `USER%PASSWORD`, or nobody.
    fn client(&self, share: &str, who: Option<&str>, commands: &str) -> Output {
        smbclient(self.port, share, who, commands)
    }

    /// The same as a user, and it has to work.
    fn as_user(&self, share: &str, user: &str, commands: &str) -> String {
        let who = format!("{user}%{user}'s password");
        let output = self.client(share, Some(&who), commands);
        let text = text_of(&output);
        assert!(
            output.status.success() && !text.contains("NT_STATUS"),
            "{share} as {user}: {commands}\n{text}\nthe server's log:\n{}\nSamba's log:\n{}",
            self.server.log(),
            self.samba_log()
        );
        text
    }

    /// The same, and it has to be refused.
    fn refused(&self, share: &str, who: Option<&str>, commands: &str) -> String {
        let output = self.client(share, who, commands);
        let text = text_of(&output);
        assert!(text.contains("NT_STATUS"), "{share} {who:?}: {text}");
        text
    }

    fn samba_log(&self) -> String {
        fs::read_to_string(self.server.state().join("smb/log/smbd.log")).unwrap_or_default()
    }

    /// The number of Samba's server, if it runs.
    fn smbd(&self) -> Option<String> {
        let path = self.server.state().join("smb/run/smbd.pid");
        let pid = fs::read_to_string(path).ok()?.trim().to_owned();
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let is_it = String::from_utf8_lossy(&words).contains("smbd");
        is_it.then_some(pid)
    }

    /// Processes of Samba's that have anything to do with this server.
    fn processes(&self) -> usize {
        let conf = self.server.state().join("smb/smb.conf");
        let conf = conf.to_string_lossy().into_owned();
        let all = fs::read_dir("/proc").expect("processes").flatten();
        let words = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        words
            .filter(|words| {
                let words = String::from_utf8_lossy(words);
                words.contains(&conf) && words.contains("smbd")
            })
            .count()
    }
}

/// Makes a directory with files of many sizes and names.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("Größe/with spaces/deeper")).expect("directories");
    fs::create_dir_all(root.join("empty")).expect("a directory");
    for (name, length) in [
        ("nothing", 0),
        ("one", 1),
        ("Größe/ä b.txt", 4097),
        ("Größe/with spaces/#;'=.bin", 131_073),
        ("Größe/with spaces/deeper/big", 5 << 20),
    ] {
        let bytes: Vec<u8> = (0..length).map(|at: u32| (at * 31 / 7) as u8).collect();
        fs::write(root.join(name), bytes).expect("a file");
    }
}

/// Goal: users of the system with passwords of their own read and write what is shared, as
/// themselves; who is not meant to gets in nowhere.
#[test]
fn users_read_and_write_what_is_shared_with_them() {
    if !has_samba() {
        return;
    }
    let smb = Smb::start();
    let server = &smb.server;
    server.ok("zfs set sharesmb=on tank/home");
    let unknown = smb.user("add nobody-of-this-name", "secret");
    assert!(
        !unknown.status.success() && text_of(&unknown).contains("useradd"),
        "{}",
        text_of(&unknown)
    );
    for (words, why) in [
        ("add root", "root does not log in"),
        ("passwd games", "user add games"),
        ("remove games", "user add games"),
    ] {
        let refused = smb.user(words, "secret");
        assert!(
            !refused.status.success() && text_of(&refused).contains(why),
            "{words}: {}",
            text_of(&refused)
        );
    }
    smb.add_user(USER);
    smb.add_user(OTHER);
    let again = smb.user(&format!("add {USER}"), "secret");
    assert!(
        text_of(&again).contains("user passwd"),
        "{}",
        text_of(&again)
    );
    let listed = server.ok("user list");
    assert!(listed.contains(USER) && listed.contains(OTHER), "{listed}");
    let info = server.ok("info");
    let expected = format!(
        "smb: tank_home at 127.0.0.1:{} (tank/home), all users",
        smb.port
    );
    assert!(info.contains(&expected), "{info}");
    // Passwords are nobody's but root's to read.
    let private = server.state().join("smb/private");
    for path in [private.clone(), private.join("passdb.tdb")] {
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).expect("it is there"));
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }

    let (here, back) = (server.path("here"), server.path("back"));
    make_tree(&here);
    fs::create_dir(&back).expect("a directory");
    let put = format!("recurse; prompt; lcd {}; mput *", here.display());
    smb.as_user("tank_home", USER, &put);
    run(
        "diff",
        &["-r", &server.text("here"), &server.text("tank/home")],
    );
    let get = format!("recurse; prompt; lcd {}; mget *", back.display());
    smb.as_user("tank_home", USER, &get);
    run("diff", &["-r", &server.text("here"), &server.text("back")]);
    let made = fs::metadata(smb.at("tank/home/one")).expect("a file");
    let owner = std::os::unix::fs::MetadataExt::uid(&made);
    assert_eq!(owner.to_string(), run("id", &["-u", USER]).trim());
    // Others read it, as with any Samba: our server's umask is not the files'.
    let mode = std::os::unix::fs::MetadataExt::mode(&made);
    assert_eq!(mode & 0o644, 0o644, "{mode:o}");

    for who in [
        Some("games%wrong".to_owned()),
        Some("nobody-of-this-name%secret".to_owned()),
        Some("root%secret".to_owned()),
        None,
    ] {
        smb.refused("tank_home", who.as_deref(), "ls");
    }
    let password = smb.user(&format!("passwd {USER}"), "another one, with spaces");
    assert!(password.status.success(), "{}", text_of(&password));
    smb.refused("tank_home", Some("games%games's password"), "ls");
    let now = Some("games%another one, with spaces");
    assert!(smb.client("tank_home", now, "ls").status.success());

    // Reading only, for some, with encryption, not listed, by another name.
    server.ok(&format!(
        "zfs set sharesmb=ro,name=Archive,hide,encrypt,user={OTHER} tank/home"
    ));
    smb.as_user("archive", OTHER, "ls");
    smb.refused("archive", Some("backup%backup's password"), "mkdir no");
    assert!(!smb.at("tank/home/no").exists());
    smb.refused("archive", now, "ls");
    smb.refused("tank_home", now, "ls");
    let listing = Command::new("smbclient")
        .args([
            "-s",
            "/dev/null",
            "-p",
            &smb.port.to_string(),
            "-L",
            "127.0.0.1",
        ])
        .args(["-g", "-U", "backup%backup's password"])
        .output()
        .expect("smbclient runs");
    let listing = text_of(&listing);
    assert!(
        listing.contains("IPC$") && !listing.contains("Archive"),
        "{listing}"
    );

    // Everybody, where that is said.
    server.ok("zfs set sharesmb=guest tank/home");
    assert!(smb.client("tank_home", None, "ls").status.success());
    let wrong = smb.refused("tank_home", Some("backup%wrong"), "ls");
    assert!(wrong.contains("LOGON_FAILURE"), "{wrong}");

    server.ok(&format!("user remove {OTHER}"));
    server.ok("zfs set sharesmb=on tank/home");
    smb.refused("tank_home", Some("backup%backup's password"), "ls");
    let listed = server.ok("user list");
    assert!(!listed.contains(OTHER), "{listed}");
}

/// Goal: `zfs share` and `zfs unshare` do NFS and SMB, both or one of them; what was ended by hand
/// stays so until it is to be shared again; `millpond shares` has both, with who uses them.
#[test]
fn shares_by_both_protocols_end_and_begin_together() {
    if !has_samba() || !need("nfs-ls of libnfs", finds("nfs-ls")) {
        return;
    }
    let smb = Smb::start();
    smb.add_user(USER);
    let server = &smb.server;
    let at = server.text("tank/home");
    let who = format!("{USER}%{USER}'s password");
    // Whether it is there by NFS, and by SMB.
    let there = || {
        let port = server.nfs_port;
        let url = format!("nfs://127.0.0.1{at}?version=3&nfsport={port}&mountport={port}");
        let by_nfs = Command::new("nfs-ls").arg(url).output().expect("it runs");
        let by_smb = smb.client("tank_home", Some(&who), "ls");
        (by_nfs.status.success(), by_smb.status.success())
    };
    let both = (true, true);
    let neither = (false, false);
    server.ok("zfs set sharenfs=rw=127.0.0.1 sharesmb=on tank/home");
    assert_eq!(there(), both);
    server.ok("zfs unshare tank/home");
    assert_eq!(there(), neither);
    let refused = server.fails("zfs unshare tank/home");
    assert!(refused.contains("not currently shared"), "{refused}");
    // Neither other properties nor another name bring it back.
    server.ok("zfs set snapdir=visible tank/home");
    server.ok("zfs rename tank/home tank/other");
    server.ok("zfs rename tank/other tank/home");
    assert_eq!(there(), neither);
    server.ok("zfs share tank/home");
    assert_eq!(there(), both);
    let refused = server.fails("zfs share tank/home");
    assert!(refused.contains("already shared"), "{refused}");

    server.ok("zfs unshare -a smb");
    assert_eq!(there(), (true, false));
    server.ok("zfs share -a nfs");
    assert_eq!(there(), (true, false));
    // It is missing by SMB: so it is not shared already.
    server.ok("zfs share tank/home");
    assert_eq!(there(), both);
    server.ok("zfs unshare -a nfs");
    assert_eq!(there(), (false, true));
    server.ok(&format!("zfs unshare {at}"));
    assert_eq!(there(), neither);
    server.ok("zfs set sharenfs=on tank/home");
    assert_eq!(there(), (true, false));
    server.ok("zfs set sharesmb=ro tank/home");
    assert_eq!(there(), both);
    server.ok("zfs unmount tank/home");
    assert_eq!(there(), neither);
    server.ok("zfs share -a");
    assert_eq!(there(), both);
    server.fails("zfs share -a cifs");

    // A client that stays.
    let mut client = Command::new("smbclient")
        .args(["-s", "/dev/null", "-p", &smb.port.to_string()])
        .args(["-m", "SMB3", "-U", &who, "//127.0.0.1/tank_home"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("smbclient runs");
    server.wait_until("the client is listed", || {
        let listed = server.ok("shares -Hp");
        let has = |start: &str| listed.lines().any(|line| line.starts_with(start));
        has("tank/home\tsmb\ttank_home\t1 connected\t-")
            && has(&format!("tank/home\tsmb\t{USER}\t127.0.0.1\t-"))
            && has(&format!("tank/home\tnfs\t{at}\t0 connected\t"))
            && has("tank/home\tnfs\t-\t127.0.0.1 (gone)\t")
    });
    drop(client.stdin.take());
    client.wait().expect("its end");
    let listed = server.ok("shares -j");
    assert!(listed.contains("\"protocol\": \"smb\""), "{listed}");

    server.ok("zfs set sharenfs=off sharesmb=off tank/home");
    assert_eq!(there(), neither);
    let refused = server.fails("zfs share tank/home");
    assert!(refused.contains("legacy share"), "{refused}");
}

/// Goal: shares come and go with the property, its inheritance, mounts and the pool; clients that
/// are connected keep nobody from unmounting.
#[test]
fn shares_come_and_go_with_mounts_and_the_property() {
    if !has_samba() {
        return;
    }
    let mut smb = Smb::start();
    assert!(smb.smbd().is_none(), "nothing is shared");
    smb.add_user(USER);
    smb.server
        .ok("zfs create -o sharesmb=name=Films tank/films");
    smb.server.ok("zfs create tank/films/new");
    smb.server.ok("zfs set sharesmb=on tank/home");
    for share in ["Films", "Films_new", "tank_home"] {
        smb.as_user(share, USER, "ls");
    }
    let refused = smb.server.fails("zfs set sharesmb=guestok tank");
    assert!(refused.contains("timemachine"), "{refused}");
    // A name that is taken is refused to the second, who says so.
    let clash = smb
        .server
        .command(&["zfs", "set", "sharesmb=name=films", "tank/home"]);
    assert!(
        text_of(&clash).contains("'tank/films'"),
        "{}",
        text_of(&clash)
    );
    smb.server.ok("zfs set sharesmb=on tank/home");

    // A client in the share, which holds a file open.
    let hold = || {
        let mut child = Command::new("smbclient")
            .args(["-s", "/dev/null", "-p", &smb.port.to_string()])
            .args(["-U", "games%games's password", "//127.0.0.1/tank_home"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("smbclient runs");
        // It reads commands until its input ends.
        let stdin = child.stdin.as_mut().expect("its input");
        stdin.write_all(b"open held\n").expect("it reads");
        smb.server.wait_until("the client holds its file", || {
            let used = Command::new("smbstatus")
                .arg("-s")
                .arg(smb.server.state().join("smb/smb.conf"))
                .arg("-S")
                .output()
                .expect("smbstatus runs");
            assert!(child.try_wait().expect("its state").is_none(), "it is gone");
            text_of(&used).contains("tank_home")
        });
        child
    };
    fs::write(smb.at("tank/home/held"), "held").expect("a file");
    let mut client = hold();
    smb.server.ok("zfs unmount tank/home");
    smb.refused("tank_home", Some("games%games's password"), "ls");
    let _ = client.kill();
    let _ = client.wait();
    smb.server.ok("zfs mount tank/home");
    smb.as_user("tank_home", USER, "ls");
    smb.server.ok("zfs rename tank/home tank/house");
    smb.server.ok("zfs set sharesmb=on tank/house");
    smb.as_user("tank_house", USER, "ls");
    smb.server.ok("zfs rename tank/house tank/home");

    // What somebody else unmounts is not shared: the directory that is left there is not ours.
    run("umount", &[&smb.server.text("tank/home")]);
    smb.server.wait_until("it is not shared any more", || {
        let gone = smb.client("tank_home", Some("games%games's password"), "ls");
        text_of(&gone).contains("NT_STATUS") && !smb.server.ok("info").contains("tank_home")
    });
    smb.server.ok("zfs mount tank/home");
    smb.as_user("tank_home", USER, "ls");

    let mut client = hold();
    smb.server.ok("zpool export tank");
    let _ = client.kill();
    let _ = client.wait();
    assert_eq!(smb.processes(), 0, "nothing is shared");
    let disks = smb.server.text("disks");
    smb.server.ok(&format!("zpool import -d {disks} tank"));
    smb.server.wait_until("it is shared again", || {
        let who = Some("games%games's password");
        smb.client("tank_home", who, "ls").status.success()
    });
    smb.server.ok("zfs set sharesmb=off tank/home");
    smb.refused("tank_home", Some("games%games's password"), "ls");
    smb.as_user("Films", USER, "ls");
    smb.server.ok("zfs inherit sharesmb tank/films");
    assert_eq!(smb.processes(), 0, "nothing is shared");
    smb.server.stop();
}

/// Goal: a server of Samba's that dies is started again; it does not outlive ours, however that
/// ends; users and shares are there again afterwards.
#[test]
fn samba_lives_as_long_as_we_do() {
    if !has_samba() {
        return;
    }
    let mut smb = Smb::start();
    smb.add_user(USER);
    smb.server.ok("zfs set sharesmb=on tank/home");
    smb.as_user("tank_home", USER, "ls");
    let first = smb.smbd().expect("it runs");
    run("kill", &["-9", &first]);
    smb.server.wait_until("it is started again", || {
        let now = smb.smbd();
        now.is_some_and(|now| now != first) && smb.server.ok("info").contains("smb: tank_home")
    });
    smb.as_user("tank_home", USER, "ls");

    smb.server.kill_only();
    smb.server
        .wait_until("Samba's server ends", || smb.processes() == 0);
    smb.server.kill();
    smb.launch();
    smb.server.wait_until("it is shared again", || {
        smb.server.ok("info").contains("smb: tank_home")
    });
    smb.as_user("tank_home", USER, "ls");
    smb.server.stop();
    assert_eq!(smb.processes(), 0);
}

/// Goal: snapshots, whatever they are called, are previous versions of files and directories.
#[test]
fn snapshots_are_previous_versions() {
    if !has_samba() {
        return;
    }
    let smb = Smb::start();
    let server = &smb.server;
    smb.add_user(USER);
    server.ok("zfs set sharesmb=on tank/home");
    let file = smb.at("tank/home/diary");
    fs::write(&file, "monday").expect("a file");
    server.ok("zfs snapshot tank/home@some:name_of-mine");
    // The next one is of another second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    fs::write(&file, "tuesday!").expect("a file");
    server.ok("zfs snapshot tank/home@second");
    fs::write(&file, "wednesday").expect("a file");
    let shown = smb.as_user("tank_home", USER, "allinfo diary");
    let versions: Vec<&str> = shown
        .lines()
        .filter(|line| line.starts_with("@GMT-"))
        .collect();
    assert_eq!(versions.len(), 2, "{shown}");
    let got = server.path("got");
    for (version, content) in versions.iter().rev().zip(["monday", "tuesday!"]) {
        let get = format!("get {version}/diary {}", got.display());
        smb.as_user("tank_home", USER, &get);
        assert_eq!(
            fs::read_to_string(&got).expect("a file"),
            content,
            "{version}"
        );
    }
    let listed = smb.as_user("tank_home", USER, &format!("cd {}; ls", versions[0]));
    assert!(listed.contains("diary"), "{listed}");
    let who = "games%games's password";
    let put = format!("put {} {}/new", got.display(), versions[0]);
    smb.refused("tank_home", Some(who), &put);
    // The names are there for all, and nowhere listed.
    let shadow = smb.at("tank/home/.zfs/shadow");
    let names: Vec<_> = fs::read_dir(&shadow).expect("names").flatten().collect();
    assert_eq!(names.len(), 2);
    let seen = fs::read_dir(smb.at("tank/home/.zfs"))
        .expect("names")
        .flatten();
    assert!(seen.into_iter().all(|entry| entry.file_name() != "shadow"));
    // What was looked at can be destroyed.
    server.ok("zfs destroy tank/home@some:name_of-mine");
    let shown = smb.as_user("tank_home", USER, "allinfo diary");
    assert!(
        shown.contains(versions[0]) && !shown.contains(versions[1]),
        "{shown}"
    );
    server.ok("zfs set snapdir=disabled tank/home");
    let shown = smb.as_user("tank_home", USER, "allinfo diary");
    assert!(!shown.contains("@GMT-"), "{shown}");
}

/// Goal: a share for Time Machine is as big as it is said to be.
#[test]
fn backups_of_macs_have_a_limit() {
    if !has_samba() {
        return;
    }
    let smb = Smb::start();
    smb.add_user(USER);
    smb.server
        .ok("zfs set sharesmb=timemachine=100M,user=games tank/home");
    let listed = smb.as_user("tank_home", USER, "ls");
    assert!(listed.contains("102400 blocks of size 1024"), "{listed}");
    smb.server.ok("zfs set sharesmb=timemachine tank/home");
    let listed = smb.as_user("tank_home", USER, "ls");
    assert!(!listed.contains("102400 blocks"), "{listed}");
}

/// Goal: what Samba's own test of servers finds right on another filesystem is right on ours: locks
/// and open files that clients see of each other, streams, times, names, identities of files.
#[test]
fn samba_s_own_tests_pass() {
    if !has_samba() || !need("smbtorture (samba-testsuite)", finds("smbtorture")) {
        return;
    }
    let smb = Smb::start();
    smb.add_user(USER);
    smb.server.ok("zfs set sharesmb=on tank/home");
    let share = "//127.0.0.1/tank_home";
    // Those that wait for time to pass.
    let slow = ["smb2.compound_find", "smb2.timestamps"];
    let quick = [
        "smb2.connect",
        "smb2.read",
        "smb2.lock.valid-request",
        "smb2.lock.contend",
        "smb2.lock.context",
        "smb2.oplock.exclusive1",
        "smb2.oplock.batch1",
        "smb2.oplock.doc",
        "smb2.rename.simple",
        "smb2.winattr",
        "smb2.fileid",
        "smb2.mkdir",
        "smb2.mangle",
        "smb2.tcon",
        "smb2.openattr",
        "smb2.sdread",
        "vfs.streams_xattr",
    ];
    let slow = slow.iter().filter(|_| is_long());
    for family in quick.iter().chain(slow) {
        let output = Command::new("smbtorture")
            .args([share, "-p", &smb.port.to_string()])
            .args(["-U", "games%games's password"])
            .arg(family)
            .stdin(Stdio::null())
            .current_dir(smb.server.directory.path())
            .output()
            .expect("smbtorture runs");
        let text = text_of(&output);
        assert!(
            output.status.success() && text.contains("success: ") && !text.contains("failure: "),
            "{family}:\n{text}\nSamba's log:\n{}",
            smb.samba_log()
        );
    }
}

/// A pair of network interfaces of our own; the one has an address.
struct Link {
    name: String,
    address: String,
}

impl Link {
    fn make(number: u16) -> Self {
        let link = Self {
            name: format!("mps{number}"),
            address: format!("198.18.{}.1", number % 256),
        };
        let peer = format!("{}p", link.name);
        run(
            "ip",
            &[
                "link", "add", &link.name, "type", "veth", "peer", "name", &peer,
            ],
        );
        let with_net = format!("{}/24", link.address);
        run("ip", &["address", "add", &with_net, "dev", &link.name]);
        for end in [&link.name, &peer] {
            run("ip", &["link", "set", end, "up"]);
        }
        link
    }

    /// Asks everybody on the link for records (RFC 1035 section 4.1, by multicast: RFC 6762
    /// section 6.7), and gives what comes back in a moment.
    fn ask(&self, name: &str, kind: u16) -> Vec<u8> {
        let socket = std::net::UdpSocket::bind((self.address.as_str(), 0)).expect("a socket");
        let wait = Some(std::time::Duration::from_millis(500));
        socket.set_read_timeout(wait).expect("a limit");
        // One question.
        let mut query = vec![0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.push(u8::try_from(label.len()).expect("a short label"));
            query.extend(label.as_bytes());
        }
        query.push(0);
        query.extend(kind.to_be_bytes());
        query.extend([0, 1]);
        socket
            .send_to(&query, "224.0.0.251:5353")
            .expect("it is sent");
        let mut answer = vec![0; 9000];
        let length = socket.recv(&mut answer).unwrap_or(0);
        answer.truncate(length);
        answer
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["link", "delete", &self.name])
            .output();
    }
}

/// Goal: a share for Time Machine is announced on the network, as long as it is there.
#[test]
fn macs_hear_of_shares() {
    if !has_samba() || !need("ip (iproute2)", finds("ip")) {
        return;
    }
    if Path::new("/run/avahi-daemon/socket").exists() {
        eprintln!("left out: Avahi runs, and announces what Samba serves");
        return;
    }
    const PTR: u16 = 12;
    const TXT: u16 = 16;
    let mut smb = Smb::prepare();
    let link = Link::make(smb.port);
    smb.launch_at(&link.address);
    let disks = smb.server.disks(1, 512 << 20);
    let mountpoint = smb.server.text("tank");
    smb.server.ok(&format!(
        "zpool create -O sharesmb=timemachine -m {mountpoint} tank {}",
        disks[0]
    ));
    let has = |answer: &[u8], text: &str| {
        answer
            .windows(text.len())
            .any(|bytes| bytes == text.as_bytes())
    };
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .to_uppercase();
    let host = host.split('.').next().unwrap_or_default().to_owned();
    let host = &host[..host.len().min(15)];
    smb.server.wait_until("the share is announced", || {
        let answer = link.ask("_smb._tcp.local", PTR);
        has(&answer, "_smb") && has(&answer, host)
    });
    smb.server
        .wait_until("the share is announced for backups", || {
            has(
                &link.ask("_adisk._tcp.local", PTR),
                "dk0=adVN=tank,adVF=0x82",
            ) || has(
                &link.ask(&format!("{host}._adisk._tcp.local"), TXT),
                "dk0=adVN=tank,adVF=0x82",
            )
        });
    smb.server.ok("zfs set sharesmb=on tank");
    smb.server
        .wait_until("it is announced without backups", || {
            link.ask("_adisk._tcp.local", PTR).is_empty()
                && has(&link.ask("_smb._tcp.local", PTR), host)
        });
    smb.server.ok("zfs set sharesmb=off tank");
    smb.server.wait_until("nothing is announced any more", || {
        link.ask("_smb._tcp.local", PTR).is_empty()
    });
    smb.server.stop();
}

/// Goal: where there is no Samba, or its port is taken, that is said, and all else runs.
#[test]
fn without_samba_all_else_runs() {
    if !can_mount() {
        return;
    }
    let mut smb = Smb::prepare();
    let empty = smb.server.path("empty");
    fs::create_dir(&empty).expect("a directory");
    let samba = empty.to_string_lossy().into_owned();
    smb.server.environment.push(("MILLPOND_SAMBA", samba));
    smb.launch();
    let disks = smb.server.disks(1, 512 << 20);
    let mountpoint = smb.server.text("tank");
    smb.server
        .ok(&format!("zpool create -m {mountpoint} tank {}", disks[0]));
    let set = smb.server.command(&["zfs", "set", "sharesmb=on", "tank"]);
    assert!(
        text_of(&set).contains("samba-vfs-modules"),
        "{}",
        text_of(&set)
    );
    let info = smb.server.ok("info");
    assert!(info.contains("not shared by smb: tank: "), "{info}");
    let added = smb.user("add games", "secret");
    assert!(
        text_of(&added).contains("install Samba"),
        "{}",
        text_of(&added)
    );
    fs::write(smb.at("tank/file"), "there").expect("a file");
    smb.server.ok("zpool export tank");
    smb.server.stop();

    if !has_samba() {
        return;
    }
    smb.server.environment.clear();
    let other = std::net::TcpListener::bind(("127.0.0.1", smb.port)).expect("the port");
    smb.launch();
    smb.server.ok(&format!(
        "zpool import -d {} tank",
        smb.server.text("disks")
    ));
    let taken = format!("cannot listen at 127.0.0.1:{}", smb.port);
    smb.server.wait_until("it says that the port is taken", || {
        smb.server.ok("info").contains(&taken)
    });
    drop(other);
    smb.server.wait_until("it is tried again", || {
        smb.server.ok("info").contains("smb: tank at")
    });
    smb.server.stop();
    smb.server.launch(&["daemon", "--smb=off"]);
    let info = smb.server.ok("info");
    assert!(
        info.contains("not shared by smb: tank: SMB is off"),
        "{info}"
    );
}

/// Goal: Linux's own client copies a tree to a share and back, sees its owner and previous
/// versions.
#[test]
fn linux_mounts_a_share() {
    if !has_samba() {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut smb = Smb::start();
    smb.add_user(USER);
    smb.server.ok("zfs set sharesmb=on tank/home");
    let out = smb.server.path("out");
    let script = format!(
        "set -e\nmkdir -p /m /peer/out\n\
         for m in cmac ccm gcm sha512_generic aesni-intel; do modprobe $m; done\n\
         mount -t cifs //10.0.2.2/tank_home /m -o \
         port={},vers=3.1.1,username=games,password=\"games's password\",uid=0,mfsymlinks\n\
         cp -r /lib /m/copy\nsync\n\
         (cd /m/copy && find . -type f -print0 | sort -z | xargs -0 sha256sum) > /peer/out/sums\n\
         mv /m/copy /m/moved\nrm -r /m/moved/modules || true\n\
         echo text > /m/short; echo more >> /m/short; cat /m/short\n\
         umount /m\n\
         mount -t cifs //10.0.2.2/tank_home /m -o \
         port={0},vers=3.1.1,username=games,password=wrong && exit 1\n\
         exit 0\n",
        smb.port
    );
    peer.run_with(&[], PeerOptions::default().network().output(&out), &script);
    let sums = fs::read_to_string(out.join("sums")).expect("sums");
    assert!(sums.lines().count() > 3, "{sums}");
    let text = fs::read_to_string(smb.at("tank/home/short")).expect("a file");
    assert_eq!(text, "text\nmore\n");
    // What is left of the copy has the sums that the client saw.
    let moved = smb.at("tank/home/moved");
    let check = format!(
        "cd '{}' && grep -v ' ./modules/' '{}' | sha256sum --quiet -c -",
        moved.display(),
        out.join("sums").display()
    );
    run("sh", &["-c", &check]);
    smb.server.stop();
}
