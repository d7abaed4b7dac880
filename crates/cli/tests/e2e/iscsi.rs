//! A volume over the network: Linux's own initiator in the peer machine uses it for real.

use std::process::Command;

use crate::harness::{
    MILLPOND, Peer, PeerOptions, Server, can_mount, finds, need, run, text_of, zdb_is_clean,
};

/// Whether libiscsi gets in to a target's first LUN with `USER%SECRET@`, or without.
pub fn may_log_in(who: &str, portal: &str, iqn: &str) -> bool {
    let url = format!("iscsi://{who}{portal}/{iqn}/0");
    let output = Command::new("iscsi-inq")
        .arg(&url)
        .output()
        .expect("iscsi-inq runs");
    assert_eq!(
        output.status.success(),
        text_of(&output).contains("MILLPOND"),
        "{url}"
    );
    output.status.success()
}

/// Runs `millpond` with a secret at its standard input.
fn set_secret(server: &Server, words: &str, secret: &str) -> std::process::Output {
    use std::io::Write;
    let mut child = Command::new(MILLPOND)
        .args(["iscsi", "secret", "set"])
        .args(words.split(' '))
        .env("MILLPOND_STATE", server.state())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("millpond runs");
    let mut stdin = child.stdin.take().expect("its input");
    writeln!(stdin, "{secret}").expect("it reads");
    drop(stdin);
    child.wait_with_output().expect("its end")
}

/// The name of the target that is shared of a volume.
fn iqn_of(server: &Server, volume: &str) -> String {
    let info = server.ok("info");
    let mut lines = info.lines().filter_map(|line| line.strip_prefix("iscsi: "));
    let line = lines.find(|line| line.contains(&format!("({volume})")));
    let line = line.unwrap_or_else(|| panic!("{volume} is not shared:\n{info}"));
    line.split(' ').next().expect("a name").to_owned()
}

/// Goal: secrets can be set, are asked for, can be changed and removed while targets run; a share
/// whose secret is not there is refused, or after an import not shared, and both say what to do.
#[test]
fn secrets_decide_who_logs_in() {
    if !can_mount() || !need("iscsi-inq", finds("iscsi-inq")) {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 512 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    let portal = format!("127.0.0.1:{}", server.iscsi_port);
    let refused = server.fails("zfs create -s -V 16M -o millpond:iscsi=on,chap=web tank/vol");
    assert!(
        refused.contains("millpond iscsi secret set web"),
        "{refused}"
    );
    server.ok("zfs create -s -V 16M tank/vol");
    let short = set_secret(&server, "web", "elevenchars");
    assert!(!short.status.success() && text_of(&short).contains("12 to 64"));
    let set = set_secret(&server, "web --user alice", "alicesecret12");
    assert!(
        set.status.success() && text_of(&set).is_empty(),
        "{}",
        text_of(&set)
    );
    let long = set_secret(&server, "server", "longer-than-windows-takes");
    assert!(long.status.success() && text_of(&long).contains("Windows"));
    for wrong in [
        "on,chap=web,mutual=web",
        "on,mutual=server",
        "on,chap=web,mutual=none",
        "chap",
    ] {
        server.fails(&format!("zfs set millpond:iscsi={wrong} tank/vol"));
    }
    server.ok("zfs set millpond:iscsi=on,chap=web,mutual=server tank/vol");
    let iqn = iqn_of(&server, "tank/vol");
    let listed = server.ok("iscsi secret list");
    assert!(
        listed.contains("alice") && listed.contains("tank/vol"),
        "{listed}"
    );
    assert!(!listed.contains("alicesecret12"), "{listed}");
    assert!(may_log_in("alice%alicesecret12@", &portal, &iqn));
    assert!(!may_log_in("web%alicesecret12@", &portal, &iqn));
    assert!(!may_log_in("", &portal, &iqn));
    // A secret proves one side only, on all shares.
    server.ok("zfs create -s -V 16M tank/other");
    server.fails("zfs set millpond:iscsi=on,chap=server tank/other");
    server.ok("zfs set millpond:iscsi=off tank/other");

    set_secret(&server, "web", "alicesecret34");
    assert!(!may_log_in("alice%alicesecret12@", &portal, &iqn));
    assert!(may_log_in("alice%alicesecret34@", &portal, &iqn));

    let used = server.fails("iscsi secret remove web");
    assert!(used.contains("tank/vol") && used.contains("-f"), "{used}");
    server.ok("iscsi secret remove -f web");
    assert!(!may_log_in("alice%alicesecret34@", &portal, &iqn));
    let info = server.ok("info");
    assert!(
        !info.contains(&iqn) && info.contains("not shared"),
        "{info}"
    );

    // A pool that comes from elsewhere brings the names of its secrets, not the secrets.
    server.ok("zpool export tank");
    let search = server.text("disks");
    let imported = server.command(&["zpool", "import", "-d", &search, "tank"]);
    let text = text_of(&imported);
    assert!(text.contains("there is no secret 'web'"), "{text}");
    let info = server.ok("info");
    assert!(info.contains("millpond iscsi secret set web"), "{info}");
    set_secret(&server, "web --user alice", "alicesecret56");
    assert!(may_log_in("alice%alicesecret56@", &portal, &iqn));
}

/// Goal: what others can reach is not shared with everybody, unless the server is told to.
#[test]
fn on_the_network_a_share_needs_a_secret() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    server.iscsi_host = "0.0.0.0";
    server.launch(&["daemon"]);
    let disks = server.disks(1, 512 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    let refused = server.fails("zfs create -s -V 16M -o millpond:iscsi=on tank/vol");
    assert!(
        refused.contains("--insecure") && refused.contains("chap="),
        "{refused}"
    );
    server.ok("iscsi secret set web --generate");
    server.ok("zfs create -s -V 16M -o millpond:iscsi=on,chap=web tank/vol");
    iqn_of(&server, "tank/vol");
    server.stop();
    server.launch(&["daemon", "--insecure"]);
    server.ok("zfs set millpond:iscsi=on tank/vol");
    iqn_of(&server, "tank/vol");
    server.stop();
    // What was shared so is not any more without that word, and it is said why.
    server.launch(&["daemon"]);
    let info = server.ok("info");
    assert!(
        !info.contains("iscsi: iqn") && info.contains("--insecure"),
        "{info}"
    );
    server.stop();
}

#[test]
fn linux_logs_in_makes_a_filesystem_and_finds_it_after_a_restart() {
    if !can_mount() {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    let disks = server.disks(2, 1 << 30);
    server.ok(&format!(
        "zpool create -m none tank mirror {}",
        disks.join(" ")
    ));
    let secret = server.ok("iscsi secret set linux --generate");
    set_secret(&server, "server", "serverssecret");
    server.ok("zfs create -s -V 256M -o millpond:iscsi=on,chap=linux,mutual=server tank/vol");
    let iqn = iqn_of(&server, "tank/vol");
    let port = server.iscsi_port;
    let node = format!("iscsiadm -m node -T {iqn} -p 10.0.2.2:{port}");
    let auth = "-n node.session.auth";
    let login = format!(
        "{node} --op new >/dev/null\nif {node} --login; then exit 1; fi\n\
         {node} --op update {auth}.authmethod -v CHAP {auth}.username -v linux \
         {auth}.password -v {} {auth}.username_in -v server {auth}.password_in -v serverssecret\n\
         {node} --login\n\
         for i in $(seq 100); do d=$(ls /dev/sd? 2>/dev/null | head -n 1); [ -n \"$d\" ] && break; \
         sleep 0.2; done\n[ -b \"$d\" ]\n",
        secret.trim()
    );
    let out = server.path("out");
    let first = format!(
        "set -e\n{login}mkfs.ext4 -q $d\nmkdir -p /m /peer/out\nmount $d /m\n\
         cp -a /lib /m/copy\nsync\n\
         (cd /m/copy && find . -type f -print0 | sort -z | xargs -0 sha256sum) \
         > /peer/out/sums\n\
         (cd /lib && find . -type f -print0 | sort -z | xargs -0 sha256sum) \
         | cmp - /peer/out/sums\n\
         umount /m\n{node} --logout\n"
    );
    peer.run_with(&[], PeerOptions::default().network().output(&out), &first);
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
    server.launch(&["daemon"]);
    let again = server.path("again");
    let second = format!(
        "set -e\n{login}mkdir -p /m /peer/out\ne2fsck -f -n $d\nmount $d /m\n\
         (cd /m/copy && find . -type f -print0 | sort -z | xargs -0 sha256sum) \
         > /peer/out/sums\numount /m\n\
         {node} --logout\n"
    );
    peer.run_with(
        &[],
        PeerOptions::default().network().output(&again),
        &second,
    );
    let sums = std::fs::read_to_string(out.join("sums")).expect("sums of the first time");
    assert!(sums.lines().count() > 3, "{sums}");
    assert_eq!(
        sums,
        std::fs::read_to_string(again.join("sums")).expect("sums of the second time")
    );
}

/// The address of a target's first LUN, as libiscsi takes it.
fn first_lun(server: &Server, target: &str) -> String {
    let portal = format!("iscsi://127.0.0.1:{}", server.iscsi_port);
    let listed = run("iscsi-ls", &["-s", &portal]);
    let iqn = listed
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("Target:"))
        .find(|iqn| iqn.ends_with(target))
        .unwrap_or_else(|| panic!("no target {target} in {listed}"));
    format!("{portal}/{iqn}/0")
}

#[test]
fn libiscsi_finds_the_target_conforming() {
    if !can_mount() || !need("iscsi-test-cu", finds("iscsi-test-cu")) {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 512 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    server.ok("zfs create -s -V 64M -o millpond:iscsi=on tank/vol");
    let url = first_lun(&server, "tank:vol");
    for family in [
        "ALL.Read16",
        "ALL.Write16",
        "ALL.Unmap",
        "ALL.WriteSame16",
        "ALL.Inquiry",
        "ALL.ReadCapacity16",
    ] {
        let text = run("iscsi-test-cu", &["--dataloss", "--test", family, &url]);
        assert!(
            text.contains("Run Summary") && !text.contains("FAILED"),
            "{family}:\n{text}"
        );
    }
}

#[test]
fn qemu_copies_an_image_to_the_volume() {
    let module = format!(
        "/usr/lib/{}-linux-gnu/qemu/block-iscsi.so",
        std::env::consts::ARCH
    );
    if !can_mount()
        || !need(
            "qemu's iSCSI (qemu-block-extra)",
            std::path::Path::new(&module).exists(),
        )
    {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 512 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    server.ok("zfs create -s -V 96M -o millpond:iscsi=on tank/vol");
    let url = first_lun(&server, "tank:vol");
    let image = server.path("image");
    let image = image.to_string_lossy();
    run(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={image}"),
            "bs=1M",
            "count=96",
        ],
    );
    run(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", &image, &url],
    );
    run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &image, &url],
    );
    let text = run(
        "qemu-io",
        &[
            "-f",
            "raw",
            "-c",
            "discard 0 32M",
            "-c",
            "write -z 32M 32M",
            "-c",
            "flush",
            "-c",
            "read -P 0 0 64M",
            &url,
        ],
    );
    assert!(
        text.contains("read 67108864/67108864") && !text.contains("failed"),
        "{text}"
    );
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// An initiator that does one command after the other in one session: `qemu-io`.
struct Initiator {
    child: std::process::Child,
    answers: std::io::BufReader<std::process::ChildStdout>,
}

impl Initiator {
    fn log_in(url: &str) -> Self {
        let mut child = Command::new("qemu-io")
            .args(["-f", "raw", url])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("qemu-io runs");
        let answers = std::io::BufReader::new(child.stdout.take().expect("its output"));
        Self { child, answers }
    }

    /// Has it do a command, whose answer begins with what was `done`.
    fn does(&mut self, command: &str, done: &str) {
        use std::io::{BufRead, Write};
        let input = self.child.stdin.as_mut().expect("its input");
        writeln!(input, "{command}").expect("it reads");
        input.flush().expect("it reads");
        let mut line = String::new();
        while !line.contains(done) {
            line.clear();
            let length = self.answers.read_line(&mut line).expect("it answers");
            assert!(length > 0, "{command}: it ended");
            assert!(!line.contains("failed"), "{command}: {line}");
        }
    }
}

/// Goal: a volume that has a session and an open file is rolled back under both, as in OpenZFS
/// (`zvol_suspend`); its session and file go on with what the snapshot has.
#[test]
fn a_volume_in_use_is_rolled_back() {
    use std::os::unix::fs::FileExt;
    let module = format!(
        "/usr/lib/{}-linux-gnu/qemu/block-iscsi.so",
        std::env::consts::ARCH
    );
    let has_module = std::path::Path::new(&module).exists();
    if !can_mount() || !need("qemu's iSCSI (qemu-block-extra)", has_module) {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 512 << 20);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    server.ok("zfs create -s -V 16M -o millpond:iscsi=on tank/vol");
    let mut initiator = Initiator::log_in(&first_lun(&server, "tank:vol"));
    initiator.does("write -P 1 0 1M", "wrote 1048576/1048576");
    initiator.does("write -P 5 8M 64k", "wrote 65536/65536");
    server.ok("zfs snapshot tank/vol@a");
    server.ok("zfs set snapdev=visible tank/vol");
    initiator.does("write -P 2 0 1M", "wrote 1048576/1048576");
    server.ok("zfs snapshot tank/vol@b");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(server.state().join("zvol/tank/vol"))
        .expect("open the volume");
    let holds = |offset: u64, byte: u8| {
        let mut read = vec![0; 1 << 20];
        file.read_exact_at(&mut read, offset).expect("read");
        assert!(read.iter().all(|there| *there == byte), "{offset}: {byte}");
    };
    holds(0, 2);
    file.write_all_at(&[3; 1 << 20], 1 << 20).expect("write");
    file.sync_all().expect("flush");
    holds(1 << 20, 3);

    server.ok("zfs rollback -r tank/vol@a");
    holds(0, 1);
    holds(1 << 20, 0);
    initiator.does("read -P 1 0 1M", "read 1048576/1048576");
    initiator.does("read -P 0 1M 1M", "read 1048576/1048576");
    initiator.does("read -P 5 8M 64k", "read 65536/65536");
    let names = server.state().join("zvol/tank");
    assert!(names.join("vol@a").exists() && !names.join("vol@b").exists());
    // Both write on; the kernel has read nothing ahead there.
    initiator.does("write -P 6 12M 1M", "wrote 1048576/1048576");
    // Where the initiator knows that something is: of what GET LBA STATUS once told it to be
    // unallocated, qemu gives zeros without asking again.
    file.write_all_at(&[7; 1 << 20], 0).expect("write");
    file.sync_all().expect("flush");
    holds(12 << 20, 6);
    initiator.does("read -P 7 0 1M", "read 1048576/1048576");

    let busy = server.fails("zpool export tank");
    assert!(busy.contains("busy"), "{busy}");
    initiator.does("read -P 7 0 1M", "read 1048576/1048576");
    drop(file);
    drop(initiator.child.stdin.take());
    initiator.child.wait().expect("it ends");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}
