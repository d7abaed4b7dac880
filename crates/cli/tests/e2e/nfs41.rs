//! Filesystems by NFS version 4.1 and 4.2: Linux's own client in the peer machine uses them.

use std::path::Path;

use crate::harness::{Peer, Server, can_mount, finds, need, run, zdb_is_clean};
use crate::nfs::{GUEST_PROGRAMS, copy_perl, traffic};

/// A server with a pool whose filesystem is shared with the guest; where the pool is mounted.
fn shared() -> (Server, String) {
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
    (server, at)
}

/// Goal: by version 4 Linux's client finds on a share what a filesystem of its own would be to it,
/// its shares within, and snapshots; a server that is killed in the middle of a copy loses nothing
/// that it has acknowledged, nor who has what open and locked; mounts of either version exclude
/// each other by locks.
#[test]
fn linux_uses_version_4_through_a_kill_and_locks_files() {
    if !can_mount() || !need("perl", finds("/usr/bin/perl")) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let is_free = std::net::TcpListener::bind("127.0.0.1:111").is_ok();
    if !need("port 111 of loopback (no rpcbind)", is_free) {
        return;
    }
    let (mut server, at) = shared();
    let (input, out) = (server.path("in"), server.path("out"));
    copy_perl(&input);
    let port = server.nfs_port;
    let script = format!(
        r#"set -e
{GUEST_PROGRAMS}
/peer/perl /tmp/monitor >/tmp/monitor.log 2>&1 &
monitor=$!
opts=proto=tcp,port={port}
v3=vers=3,mountport={port},mountproto=tcp,$opts
mkdir -p /m /n /peer/out
chmod 755 /
lock() {{ /peer/perl /tmp/lock "$@"; }}
mount -t nfs -o vers=4.0,$opts 10.0.2.2:{at}/fs /m 2>/dev/null && exit 1
mount -t nfs -o vers=4.1,$opts 10.0.2.2:{at}/fs /m
grep -q 'vers=4.1' /proc/mounts
# A machine that stopped dead begins anew.
find /m -mindepth 1 -maxdepth 1 ! -name .zfs ! -name below -exec rm -rf {{}} +
sums() {{ (cd $1 && find . -type f -print0 | sort -z | xargs -0 sha256sum); }}
# A tree, there and back, while the server is killed, and a file that is locked all the time.
echo held > /m/held
lock /m/held w try 0 10 'touch /tmp/held; while [ ! -e /tmp/copied ]; do sleep 0.2; done; echo more >> /m/held' &
holder=$!
while [ ! -e /tmp/held ]; do sleep 0.1; done
mkdir /m/copy
for n in 1 2 3; do cp -a /lib/modules /m/copy/$n; done
sync /m/copy
sums /lib/modules > /tmp/sums
mount -t nfs -o vers=4.2,nosharecache,$opts 10.0.2.2:{at}/fs /n
if lock /n/held w try 5 1 true; then exit 1; fi
touch /tmp/copied
wait $holder
lock /n/held w try 5 1 true
[ "$(tr '\n' ' ' < /n/held)" = 'held more ' ]
umount /n; umount /m; mount -t nfs -o vers=4.1,$opts 10.0.2.2:{at}/fs /m
for n in 1 2 3; do sums /m/copy/$n | cmp - /tmp/sums; done
diff -r /lib/modules /m/copy/2
cp /tmp/sums /peer/out/sums
# Names, modes, times, links, sparse ends.
cd /m
echo one > a; ln a b; ln -s a c; mv a d; [ "$(cat b)" = one ]; [ "$(readlink c)" = a ]
[ "$(stat -c %h b)" = 2 ]; rm d; [ "$(stat -c %h b)" = 1 ]
chmod 4751 b; [ "$(stat -c %a b)" = 4751 ]; chown 1000:1001 b; [ "$(stat -c %u:%g b)" = 1000:1001 ]
touch -d @1000000000 b; [ "$(stat -c %Y b)" = 1000000000 ]
truncate -s 5000000 b; [ "$(stat -c %s b)" = 5000000 ]; [ "$(head -c 3 b)" = one ]
mkfifo pipe; mknod null c 1 3; echo x > null; [ "$(stat -c %t:%T null)" = 1:3 ]
exec 5> open; rm open; echo still >&5; exec 5>&-
(set -C; echo no > b) 2>/dev/null && exit 1
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
# The share within is there by itself; what is on the way to shares cannot be changed.
touch below/inside; [ "$(stat -c %d below)" != "$(stat -c %d .)" ]
cd /
gone() {{ for at in $(grep -o ' /m[^ ]* ' /proc/mounts | sort -r); do umount $at; done; }}
gone
mount -t nfs -o vers=4.1,$opts 10.0.2.2:/ /m
[ -e /m{at}/fs/below/inside ]; mkdir /m/no 2>/dev/null && exit 1
gone
# Mounts of both versions.
mount -t nfs -o vers=4.1,nosharecache,$opts 10.0.2.2:{at}/fs /m
mount -t nfs -o $v3 10.0.2.2:{at}/fs /n
echo data > /m/locked
lock /m/locked w try 0 10 "/peer/perl /tmp/lock /n/locked w try 10 10 true"
if lock /m/locked w try 0 10 "/peer/perl /tmp/lock /n/locked r try 9 1 true"; then exit 1; fi
if lock /n/locked w try 0 10 "/peer/perl /tmp/lock /m/locked r try 9 1 true"; then exit 1; fi
lock /m/locked r try 0 10 "/peer/perl /tmp/lock /n/locked r try 0 10 true"
# Who waits gets it when it comes free.
lock /m/locked w try 0 0 'touch /tmp/has; sleep 2; echo first >> /m/locked' &
locker=$!
while [ ! -e /tmp/has ]; do sleep 0.1; done
lock /n/locked w wait 0 0 'echo second >> /n/locked'
wait $locker
[ "$(tail -n 2 /n/locked | tr '\n' ' ')" = 'first second ' ]
umount /m; umount /n
kill $monitor
"#
    );
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let (input, out) = (input.to_string_lossy(), out.to_string_lossy());
            peer.run(&[], &["-n", "-i", &input, "-o", &out], &script)
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
