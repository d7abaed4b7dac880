//! `millpond up`: the one-command start, the clean stop, and finding everything again.

use crate::harness::{MILLPOND, Server, can_mount, text_of, zdb_is_clean};

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

    server.stop();
    assert!(!file.exists(), "the filesystem is still mounted");
    zdb_is_clean(&server.state().join("disks"), "pond");
    server.launch(&words);
    server.wait_until("the filesystem is back", || file.exists());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "world");
    let mut head = [0; 10];
    std::fs::File::open(&volume)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head))
        .unwrap();
    assert_eq!(&head, b"block zero");
    server.stop();
}

/// Goal: while a server is busy importing, a command waits for it, longer than it would for one that fails to start.
/// Method: the test holds the lock in its place.
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
