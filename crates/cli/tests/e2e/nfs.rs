//! Filesystems by NFS: libnfs, and Linux's own client in the peer machine, use them for real.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::harness::{
    Peer, PeerOptions, Server, can_mount, finds, need, run, text_of, zdb_is_clean,
};

/// A program of libnfs on a path of a share, with more words before it.
pub fn libnfs(server: &Server, program: &str, words: &[&str], path: &str) -> std::process::Output {
    let port = server.nfs_port;
    let url = format!("nfs://127.0.0.1{path}?version=3&nfsport={port}&mountport={port}");
    let mut command = Command::new(program);
    command.args(words).arg(url);
    command.output().expect("libnfs runs")
}

fn may_list(server: &Server, path: &str) -> bool {
    libnfs(server, "nfs-ls", &[], path).status.success()
}

/// The line of `millpond shares` of all clients of a dataset: operations, reads, bytes, how long
/// one took, writes, bytes, how long one took, failures.
pub fn traffic(server: &Server, dataset: &str) -> Vec<u64> {
    let listed = server.ok("shares -Hp");
    let mut lines = listed
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let of_all = |words: &Vec<&str>| words[0] == dataset && words[3].ends_with("connected");
    let words = lines
        .find(of_all)
        .unwrap_or_else(|| panic!("no {dataset} in {listed}"));
    words[4..]
        .iter()
        .map(|word| word.parse().expect("a number"))
        .collect()
}

/// Goal: shares come and go with the property, with what decides where a filesystem is, and with
/// the pool; what is refused is refused by name, and says why.
#[test]
fn shares_come_and_go_with_property_and_pool() {
    if !can_mount() || !need("nfs-ls of libnfs", finds("nfs-ls")) {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(1, 512 << 20);
    let at = server.text("tank");
    server.ok(&format!("zpool create -m {at} tank {}", disks[0]));
    server.ok("zfs create tank/sub");
    let sub = format!("{at}/sub");
    assert!(!may_list(&server, &at));
    for (value, named) in [
        ("sec=krb5", "krb5"),
        ("rw=@trusted", "netgroup"),
        ("crossmnt", "crossmnt"),
        ("rw=10.0.0.0/40", "10.0.0.0/40"),
    ] {
        let refused = server.fails(&format!("zfs set sharenfs={value} tank"));
        assert!(refused.contains(named), "{value}: {refused}");
    }
    server.ok("zfs set sharenfs=rw=127.0.0.1 tank");
    assert!(may_list(&server, &at) && may_list(&server, &sub));
    server.ok("zfs set sharenfs=off tank/sub");
    assert!(!may_list(&server, &sub));
    server.ok("zfs inherit sharenfs tank/sub");
    assert!(may_list(&server, &sub));
    server.ok("zfs set sharenfs=rw=10.1.1.1 tank/sub");
    assert!(!may_list(&server, &sub));
    server.ok("zfs inherit sharenfs tank/sub");

    server.ok("zfs unshare tank/sub");
    assert!(!may_list(&server, &sub));
    server.fails("zfs unshare tank/sub");
    server.ok("zfs share tank/sub");
    assert!(may_list(&server, &sub));
    let twice = server.fails("zfs share tank/sub");
    assert!(twice.contains("already shared"), "{twice}");
    server.ok("zfs unmount tank/sub");
    assert!(!may_list(&server, &sub));
    server.ok("zfs mount tank/sub");
    assert!(may_list(&server, &sub));
    server.ok("zfs rename tank/sub tank/other");
    assert!(may_list(&server, &format!("{at}/other")));
    server.ok("zfs create tank/new");
    assert!(may_list(&server, &format!("{at}/new")));
    server.ok("zfs destroy tank/new");
    server.ok("zfs set canmount=off tank/other");
    assert!(!may_list(&server, &format!("{at}/other")));
    server.ok("zfs unshare -a");
    assert!(!may_list(&server, &at));
    server.ok("zfs share -a");
    assert!(may_list(&server, &at));

    // A file there and back, counted.
    let before = traffic(&server, "tank");
    let file = server.text("file");
    std::fs::write(&file, vec![7; 300_000]).expect("a file");
    server.ok("zfs set sharenfs=rw=127.0.0.1,no_root_squash tank");
    let copied = libnfs(&server, "nfs-cp", &[&file], &format!("{at}/copy"));
    assert!(copied.status.success(), "{}", text_of(&copied));
    let found = libnfs(&server, "nfs-cat", &[], &format!("{at}/copy"));
    assert!(
        found.stdout == vec![7; 300_000],
        "{}",
        String::from_utf8_lossy(&found.stderr)
    );
    assert_eq!(
        std::fs::read(Path::new(&at).join("copy"))
            .expect("the mount")
            .len(),
        300_000
    );
    let after = traffic(&server, "tank");
    assert!(after[0] > before[0]);
    assert_eq!(
        (after[2], after[5]),
        (before[2] + 300_000, before[5] + 300_000)
    );
    assert!(after[3] > 0 && after[6] > 0 && after[7] == before[7]);

    server.stop();
    server.launch(&["daemon"]);
    assert!(may_list(&server, &at));
    server.ok("zpool export tank");
    assert!(!may_list(&server, &at));
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: `up` shares its filesystem with this machine's root, by the line that it prints.
#[test]
fn up_shares_its_filesystem_with_this_machine() {
    if !can_mount() || !need("nfs-cp of libnfs", finds("nfs-cp")) {
        return;
    }
    let mut server = Server::prepare();
    for _ in 0..2 {
        server.launch(&["up", "--size", "1G"]);
        server.wait_until("up says what runs", || server.log().contains("stop:"));
        let log = server.log();
        let port = server.nfs_port;
        let options = format!("vers=3,proto=tcp,port={port},mountport={port},nolock");
        let mount = format!("mount -t nfs -o {options} 127.0.0.1:");
        let path = log
            .split(&mount)
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let path = path.unwrap_or_else(|| panic!("no '{mount}' in:\n{log}"));
        let file = server.text("file");
        std::fs::write(&file, "by NFS").expect("a file");
        let copied = libnfs(&server, "nfs-cp", &[&file], &format!("{path}/copy"));
        assert!(copied.status.success(), "{}", text_of(&copied));
        let copy = server.state().join("mnt/copy");
        assert_eq!(std::fs::read_to_string(&copy).expect("the mount"), "by NFS");
        std::fs::remove_file(copy).expect("removed");
        server.stop();
    }
}

/// Goal: what others can reach names who may, unless the server is told otherwise.
#[test]
fn on_the_network_a_share_names_who_may() {
    if !can_mount() {
        return;
    }
    let mut server = Server::prepare();
    server.nfs_host = "0.0.0.0";
    server.launch(&["daemon"]);
    let disks = server.disks(1, 512 << 20);
    let at = server.text("tank");
    server.ok(&format!("zpool create -m {at} tank {}", disks[0]));
    let refused = server.fails("zfs set sharenfs=on tank");
    assert!(
        refused.contains("--insecure") && refused.contains("rw=@"),
        "{refused}"
    );
    server.ok("zfs set sharenfs=rw=127.0.0.1 tank");
    server.stop();
    server.launch(&["daemon", "--insecure"]);
    server.ok("zfs set sharenfs=on tank");
    assert!(server.ok("info").contains(&format!("nfs: {at}")));
    server.stop();
    // What was shared so is not any more without that word, and it is said why.
    server.launch(&["daemon"]);
    let info = server.ok("info");
    assert!(
        !info.contains("nfs: /") && info.contains("--insecure"),
        "{info}"
    );
    server.stop();
}

/// The portmapper's port, for one test at a time, while this is held; `None` if another program has
/// it.
pub fn portmapper() -> Option<File> {
    let path = std::env::temp_dir().join("millpond-test-portmapper.lock");
    let file = File::create(path).expect("a file");
    file.lock().expect("a lock");
    let is_free = std::net::TcpListener::bind("127.0.0.1:111").is_ok();
    need("port 111 of loopback (no rpcbind)", is_free).then_some(file)
}

/// In the guest: what Linux's lock manager wants of its own machine, a portmapper that takes
/// everything and a status monitor that says yes to everything; and a program that locks a part of
/// a file, runs a command and ends.
pub const GUEST_PROGRAMS: &str = r#"
cat > /tmp/monitor <<'PERL'
my $here = pack('S n C4 x8', 2, 111, 127, 0, 0, 1);
sub answer {
  my ($xid, $type, $rpc, $program, $version, $procedure) = unpack('N6', $_[0]);
  my $body = '';
  $body = pack('N', $procedure == 3 ? 111 : 1) if $program == 100000 && $procedure > 0;
  $body = pack('N2', 0, 1) if $program == 100024 && $procedure > 0;
  return pack('N6', $xid, 1, 0, 0, 0, 0) . $body;
}
if (fork() == 0) {
  socket(S, 2, 2, 17); bind(S, $here) or die "bind: $!";
  while (defined(my $from = recv(S, my $call, 2000, 0))) { send(S, answer($call), 0, $from); }
}
$SIG{CHLD} = 'IGNORE';
socket(L, 2, 1, 6); bind(L, $here) or die "bind: $!"; listen(L, 9);
while (accept(C, L)) {
  if (fork() == 0) {
    while (sysread(C, my $mark, 4) == 4) {
      sysread(C, my $call, unpack('N', $mark) & 0x7fffffff);
      my $answer = answer($call);
      syswrite(C, pack('N', length($answer) | 0x80000000) . $answer);
    }
    exit 0;
  }
  close(C);
}
PERL
printf 'tcp 6 TCP\nudp 17 UDP\n' > /etc/protocols
printf 'udp tpi_clts v inet udp - -\ntcp tpi_cots_ord v inet tcp - -\n' > /etc/netconfig
cat > /tmp/lock <<'PERL'
my ($file, $type, $waits, $start, $length, $command) = @ARGV;
open(F, '+<', $file) or die "open: $!";
my $wanted = pack('s s x4 q q i x4', $type eq 'w' ? 1 : 0, 0, $start, $length, 0);
fcntl(F, $waits eq 'wait' ? 7 : 6, $wanted) or exit 3;
system($command) == 0 or exit 4;
PERL
export PERL_BADLANG=0 LD_LIBRARY_PATH=/peer
chmod +x /peer/perl
"#;

/// Copies perl, which every Debian has, into a directory for the guest, with what it loads.
pub fn copy_perl(into: &Path) {
    std::fs::create_dir_all(into).expect("a directory");
    std::fs::copy("/usr/bin/perl", into.join("perl")).expect("perl");
    for line in run("ldd", &["/usr/bin/perl"]).lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let is_guests = ["libc.so.6", "ld-linux"]
            .iter()
            .any(|own| name.contains(own));
        if let (false, Some(path)) = (is_guests, words.find(|word| word.starts_with('/'))) {
            std::fs::copy(path, into.join(name)).expect("a library");
        }
    }
}

/// Goal: Linux's client finds on a share what a filesystem of its own would be to it, also when the
/// server restarts in the middle of a copy; two mounts exclude each other by locks.
#[test]
fn linux_uses_a_share_through_a_restart_and_locks_files() {
    if !can_mount() || !need("perl", finds("/usr/bin/perl")) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let Some(_portmapper) = portmapper() else {
        return;
    };
    let mut server = Server::prepare();
    server.launch(&["daemon", "--portmapper"]);
    let disks = server.disks(2, 1 << 30);
    let at = server.text("tank");
    server.ok(&format!(
        "zpool create -m {at} tank mirror {}",
        disks.join(" ")
    ));
    server.ok("zfs set sharenfs=rw=127.0.0.1,insecure,no_root_squash tank");
    server.ok("zfs create -o snapdir=visible tank/fs");
    server.ok("zfs create tank/fs/below");
    let (input, out) = (server.path("in"), server.path("out"));
    copy_perl(&input);
    let port = server.nfs_port;
    let script = format!(
        r#"set -e
{GUEST_PROGRAMS}
/peer/perl /tmp/monitor >/tmp/monitor.log 2>&1 &
monitor=$!
opts=vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp
mkdir -p /m /n /peer/out
chmod 755 /
mount -t nfs -o $opts,nolock 10.0.2.2:{at}/fs /m
[ "$(stat -c %F /m/below)" = directory ]; [ -z "$(ls /m/below)" ]
sums() {{ (cd $1 && find . -type f -print0 | sort -z | xargs -0 sha256sum); }}
# A tree, there and back, while the server restarts. A machine that stopped dead begins anew.
find /m -mindepth 1 -maxdepth 1 ! -name .zfs ! -name below -exec rm -rf {{}} +
mkdir /m/copy
for n in 1 2 3; do cp -a /lib/modules /m/copy/$n; done
sums /lib/modules > /tmp/sums
umount /m; mount -t nfs -o $opts,nolock 10.0.2.2:{at}/fs /m
for n in 1 2 3; do sums /m/copy/$n | cmp - /tmp/sums; done
diff -r /lib/modules /m/copy/2
cp /tmp/sums /peer/out/sums
# Names, modes, times, links, sparse ends.
cd /m
echo one > a; ln a b; ln -s a c; mv a d; [ "$(cat b)" = one ]; [ "$(readlink c)" = a ]
[ "$(stat -c %h b)" = 2 ]; rm d; [ "$(stat -c %h b)" = 1 ]
chmod 4751 b; [ "$(stat -c %a b)" = 4751 ]; chown 1000:1001 b; [ "$(stat -c %u:%g b)" = 1000:1001 ]
truncate -s 5000000 b; [ "$(stat -c %s b)" = 5000000 ]; [ "$(head -c 3 b)" = one ]
mkfifo pipe; mknod null c 1 3; echo x > null; [ "$(stat -c %t:%T null)" = 1:3 ]
exec 5> open; rm open; echo still >&5; exec 5>&-
su -s /bin/sh alice -c 'touch /m/no' 2>/dev/null && exit 1
mkdir shared; chmod 1777 shared
su -s /bin/sh alice -c 'echo hers > /m/shared/f; chmod 600 /m/shared/f'
su -s /bin/sh bob -c 'cat /m/shared/f' 2>/dev/null && exit 1
su -s /bin/sh bob -c 'rm -f /m/shared/f' 2>/dev/null && exit 1
[ "$(stat -c %u shared/f)" = 1000 ]
fio --name=verify --filename=/m/big --size=24m --bs=64k --rw=randwrite --verify=crc32c \
  --eta=never --ioengine=psync --end_fsync=1 --output=/tmp/fio || {{ cat /tmp/fio; exit 1; }}
rm big; mkdir many; for n in $(seq 300); do : > many/file$n; done; [ "$(ls many | wc -l)" = 300 ]
rm -r many; [ ! -e many ]
ls -a /m | grep -qx .zfs
cd /
# Two mounts that share nothing of the client's but the machine.
umount /m
mount -t nfs -o $opts,nosharecache 10.0.2.2:{at}/fs /m
mount -t nfs -o $opts,nosharecache 10.0.2.2:{at}/fs /n
echo data > /m/locked
lock() {{ /peer/perl /tmp/lock "$@"; }}
lock /m/locked w try 0 10 "/peer/perl /tmp/lock /n/locked w try 10 10 true"
if lock /m/locked w try 0 10 "/peer/perl /tmp/lock /n/locked r try 9 1 true"; then exit 1; fi
lock /m/locked r try 0 10 "/peer/perl /tmp/lock /n/locked r try 0 10 true"
# Who waits gets it when it comes free.
lock /m/locked w try 0 0 'touch /tmp/has; sleep 2; echo first >> /m/locked' &
locker=$!
while [ ! -e /tmp/has ]; do sleep 0.1; done
lock /n/locked w wait 0 0 'echo second >> /n/locked'
wait $locker
[ "$(tail -n 2 /m/locked | tr '\n' ' ')" = 'first second ' ]
umount /m; umount /n
kill $monitor
"#
    );
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            peer.run_with(
                &[],
                PeerOptions::default().network().input(&input).output(&out),
                &script,
            )
        });
        // Some megabytes are copied, and more are to come.
        server.wait_until("a copy has begun", || {
            running.is_finished() || traffic(&server, "tank/fs")[5] > 4 << 20
        });
        if !running.is_finished() {
            let last = Path::new(&at).join("fs/copy/3");
            assert!(
                !last.exists(),
                "the copy was done before the server could be killed"
            );
            server.kill();
            server.launch(&["daemon", "--portmapper"]);
        }
        running.join().expect("the guest is content");
    });
    let sums = std::fs::read_to_string(out.join("sums")).expect("sums");
    assert!(sums.lines().count() > 30, "{sums}");
    // The mount shows the same.
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").expect("a sum and a name");
        let path = format!("{at}/fs/copy/3/{name}");
        let found = run("sha256sum", &[&path]);
        assert!(found.starts_with(sum), "{path}");
    }
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}
