//! `millpond up`: the one-command start, the clean stop, and finding everything again.

use std::os::unix::fs::PermissionsExt;

use crate::harness::{MILLPOND, Server, can_mount, finds, need, text_of, zdb_is_clean};
use crate::iscsi::may_log_in;

#[test]
fn up_makes_a_pool_stops_cleanly_and_finds_everything_again() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    let words = ["up", "--size", "1G"];
    server.launch(&words);
    server.wait_until("up says what runs", || server.log().contains("stop:"));
    let log = server.log();
    for expected in ["pond", "iscsiadm", "iqn.", "/mnt", "Ctrl-C"] {
        assert!(log.contains(expected), "'{expected}' is not in:\n{log}");
    }
    let file = server.state().join("mnt/hello");
    std::fs::write(&file, "world").unwrap();
    let volume = server.state().join("zvol/pond/volume");
    std::fs::File::options()
        .write(true)
        .open(&volume)
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"block zero"))
        .unwrap();

    // A second server for the same state directory is refused and says why.
    let second = std::process::Command::new(MILLPOND)
        .args(words)
        .env("MILLPOND_STATE", server.state())
        .output()
        .unwrap();
    assert!(
        !second.status.success() && text_of(&second).contains("already runs"),
        "{}",
        text_of(&second)
    );

    let (iqn, secret) = volume_of_up(&server);
    server.stop();
    assert!(!file.exists(), "the filesystem is still mounted");
    zdb_is_clean(&server.state().join("disks"), "pond");
    let before = server.log().len();
    server.launch(&words);
    server.wait_until("up says what runs again", || {
        server.log()[before..].contains("stop:")
    });
    // How to see and to replace the secret is said.
    let again = server.log()[before..].to_owned();
    for expected in [
        "CHAP user pond",
        "iscsi-secrets.json",
        "secret set pond",
        &iqn,
    ] {
        assert!(again.contains(expected), "'{expected}' is not in:\n{again}");
    }
    assert!(!again.contains(&secret), "{again}");
    server.wait_until("the filesystem is back", || file.exists());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "world");
    let mut head = [0; 10];
    std::fs::File::open(&volume)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head))
        .unwrap();
    assert_eq!(&head, b"block zero");
    server.stop();
}

/// The target in the lines to paste, and its secret, which only its owner reads: it is not in what
/// a journal gets, nor is the link that makes the console's first user.
fn volume_of_up(server: &Server) -> (String, String) {
    let log = server.log();
    let rest = log.split("node -T ").nth(1);
    let iqn = rest.and_then(|rest| rest.split_whitespace().next());
    let iqn = iqn.unwrap_or_else(|| panic!("no target in:\n{log}"));
    let kept = std::fs::read(server.state().join("iscsi-secrets.json")).expect("secrets");
    let kept: serde_json::Value = serde_json::from_slice(&kept).expect("JSON");
    let secret = kept["pond"]["secret"].as_str().expect("a secret");
    assert!(!log.contains(secret) && !log.contains("#setup="), "{log}");
    (iqn.to_owned(), secret.to_owned())
}

/// Goal: the volume of `up` is for who knows its secret, which is, for its owner only, in the state
/// directory; the port that port 0 came to is in them too.
/// Method: libiscsi logs in.
#[test]
fn the_volume_of_up_is_for_who_has_its_secret() {
    if !can_mount() || !need("iscsi-inq", finds("iscsi-inq")) {
        return;
    }
    let mut server = Server::prepare();
    // Any port; the one that it has is told.
    server.iscsi_port = 0;
    server.https = Some("--https=127.0.0.1:0");
    server.launch(&["up", "--size", "1G"]);
    server.wait_until("up says what runs", || server.log().contains("stop:"));
    let log = server.log();
    let link = server.state().join("setup-link");
    let told = format!("with the link in {}", link.display());
    assert!(log.contains(&told), "{log}");
    let mode = std::fs::metadata(&link).expect("a link").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&link).expect("a link");
    assert!(server.ok("console").contains(text.trim()), "{text}");
    let (iqn, secret) = volume_of_up(&server);
    let info = server.ok("info");
    let told = |text: &str| -> u16 {
        let port = text.split("127.0.0.1:").nth(1).and_then(|rest| {
            rest.split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        });
        port.unwrap_or_else(|| panic!("no address in:\n{text}"))
    };
    let port = told(&log);
    assert_eq!((port != 0, told(&info)), (true, port), "{log}\n{info}");
    let portal = format!("127.0.0.1:{port}");
    assert!(may_log_in(&format!("pond%{secret}@"), &portal, &iqn));
    assert!(!may_log_in("", &portal, &iqn));
    assert!(!may_log_in("pond%some-other-one@", &portal, &iqn));
    let kept = server.state().join("iscsi-secrets.json");
    assert!(
        std::fs::read_to_string(&kept)
            .expect("secrets")
            .contains(&secret)
    );
    let mode = std::os::unix::fs::MetadataExt::mode(&kept.metadata().expect("secrets"));
    assert_eq!(mode & 0o777, 0o600);
    // A new one takes its place for logins from now on.
    let new = server
        .ok("iscsi secret set pond --generate")
        .trim()
        .to_owned();
    assert!(!may_log_in(&format!("pond%{secret}@"), &portal, &iqn));
    assert!(may_log_in(&format!("pond%{new}@"), &portal, &iqn));
    server.stop();
}

/// Goal: the volume of a default pool from before there were secrets gets one at the next start;
/// one that was opened on purpose stays so.
#[test]
fn a_default_pool_that_was_open_gets_a_secret() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    let words = ["up", "--size", "1G"];
    server.launch(&words);
    server.wait_until("up says what runs", || server.log().contains("stop:"));
    server.ok("zfs set millpond:iscsi=on pond/volume");
    server.ok("iscsi secret remove pond");
    server.stop();
    let next = |server: &mut Server| {
        let before = server.log().len();
        server.launch(&words);
        server.wait_until("up says what runs", || {
            server.log()[before..].contains("stop:")
        });
        let log = server.log()[before..].to_owned();
        server.ok("zfs set millpond:iscsi=on pond/volume");
        server.stop();
        log
    };
    let log = next(&mut server);
    assert!(log.contains("auth.password -v "), "{log}");
    // It has had its secret since.
    let log = next(&mut server);
    assert!(
        !log.contains("auth.password") && log.contains("everybody"),
        "{log}"
    );
}

/// Goal: while a server is busy importing, a command waits for it, longer than it would for one
/// that fails to start. Method: the test holds the lock in its place.
#[test]
fn a_command_waits_for_a_server_that_has_not_answered_yet() {
    let server = Server::prepare();
    std::fs::create_dir_all(server.state()).expect("a state directory");
    let lock = std::fs::File::create(server.state().join("millpond.lock")).expect("a lock");
    lock.lock().expect("nobody else has it");
    let mut command = std::process::Command::new(MILLPOND)
        .args(["zpool", "list", "-H"])
        .env("MILLPOND_STATE", server.state())
        .spawn()
        .expect("millpond runs");
    std::thread::sleep(std::time::Duration::from_secs(7));
    assert!(command.try_wait().expect("its state").is_none());
    drop(lock);
    // That server is gone now: the command starts one.
    assert!(command.wait().expect("its end").success());
    let info = server.ok("info");
    assert!(info.contains("runs as process"), "{info}");
    server.ok("down");
}

#[test]
fn a_port_in_use_gets_a_clear_message() {
    if !can_mount() {
        return;
    }
    let server = Server::prepare();
    let taken = std::net::TcpListener::bind(("127.0.0.1", server.iscsi_port)).unwrap();
    let output = std::process::Command::new(MILLPOND)
        .args([
            "up",
            "--size",
            "1G",
            &format!("--iscsi=127.0.0.1:{}", server.iscsi_port),
        ])
        .env("MILLPOND_STATE", server.state())
        .output()
        .unwrap();
    let text = text_of(&output);
    assert!(
        !output.status.success() && text.contains("--iscsi"),
        "{text}"
    );
    drop(taken);
}

/// Goal: what `up` was told holds for the server that a command starts later, and is shown; another
/// word stands above it. Method: `millpond start` after a stop, and a command after a crash.
#[test]
fn the_next_server_has_the_options_of_up() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    server.launch(&["up", "--size", "1G", "--smb=off"]);
    let nfs = format!("127.0.0.1:{}", server.nfs_port);
    let is_shown = |info: &str, source: &str| {
        for option in [
            format!("nfs: {nfs}"),
            "smb: off".into(),
            "https: off".into(),
        ] {
            let line = format!("option {option} ({source})");
            assert!(info.contains(&line), "'{line}' is not in:\n{info}");
        }
    };
    is_shown(&server.ok("info"), "command line");
    let holds = |server: &Server| {
        let info = server.ok("info");
        is_shown(&info, "millpond.toml");
        let shared = format!("nfs: {} at {nfs}", server.text("state/mnt"));
        assert!(info.contains(&shared), "{info}");
    };
    server.stop();
    is_shown(&server.ok("info"), "millpond.toml");
    server.ok("start");
    holds(&server);
    server.ok("down");
    server.launch(&["up"]);
    server.kill();
    server.ok("zpool list pond");
    holds(&server);
    server.ok("down");
    // One that is not understood keeps the server from starting.
    let file = server.state().join("millpond.toml");
    let kept = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{kept}nfz = \"off\"\n")).unwrap();
    let refused = server.fails("daemon --https=off");
    assert!(refused.contains("'nfz' is no option"), "{refused}");
}

/// Goal: a default pool that was destroyed, or whose first start was cut off, is made anew; files
/// that may hold something are left alone.
#[test]
fn a_default_pool_that_was_destroyed_is_made_anew() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    let words = ["up", "--size", "1G"];
    server.launch(&words);
    std::fs::write(server.state().join("mnt/hello"), "world").unwrap();
    server.ok("zpool destroy pond");
    server.stop();
    server.launch(&words);
    assert_eq!(server.ok("zpool list -Ho name,health"), "pond\tONLINE\n");
    assert!(!server.state().join("mnt/hello").exists());
    let info = server.ok("info");
    assert!(info.contains("(pond/volume)"), "{info}");
    server.ok("zpool destroy pond");
    server.stop();
    // The first start was cut off behind its second file.
    let disks = server.state().join("disks");
    for index in 0..4 {
        let path = disks.join(format!("disk{index}.img"));
        std::fs::remove_file(&path).unwrap();
        if index < 2 {
            std::fs::File::create(&path)
                .unwrap()
                .set_len(256 << 20)
                .unwrap();
        }
    }
    server.launch(&words);
    assert_eq!(server.ok("zpool list -Ho name,health"), "pond\tONLINE\n");
    server.stop();
    // A disk without which the pool can do.
    std::fs::remove_file(disks.join("disk2.img")).unwrap();
    server.launch(&words);
    assert_eq!(server.ok("zpool list -Ho name,health"), "pond\tDEGRADED\n");
    server.stop();
    // Labels that are gone are no leave to overwrite what may be behind them.
    for index in [0, 1, 3] {
        let path = disks.join(format!("disk{index}.img"));
        std::fs::write(&path, "what is this?").unwrap();
    }
    server.fails("up --size 1G --https=off --smb=off --iscsi=127.0.0.1:0 --nfs=127.0.0.1:0");
    let kept = std::fs::read_to_string(disks.join("disk0.img")).unwrap();
    assert_eq!(kept, "what is this?");
}
