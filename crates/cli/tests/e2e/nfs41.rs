//! Filesystems by NFS version 4.1 and 4.2: Linux's own client in the peer machine uses them.

use std::path::Path;

use crate::harness::{Peer, PeerOptions, Server, can_mount, finds, need, run, zdb_is_clean};
use crate::nfs::{GUEST_PROGRAMS, copy_perl, portmapper, traffic};
use crate::posix::tools;

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
    std::fs::write(Path::new(&at).join("fs/earlier"), "before").expect("a file");
    server.ok("zfs snapshot tank/fs@taken");
    server.ok("zfs create tank/fs/below");
    (server, at)
}

/// Goal: by version 4 Linux's client finds on a share what a filesystem of its own would be to it,
/// its shares within, and snapshots; a server that is killed in the middle of a copy loses nothing
/// that it has acknowledged, nor who has what open and locked; mounts of either version exclude
/// each other by locks.
#[test]
fn linux_uses_version_4_through_a_kill_and_locks_files() {
    let has_tools = need("perl", finds("/usr/bin/perl")) && need("attr", finds("setfattr"));
    if !can_mount() || !has_tools {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let Some(_portmapper) = portmapper() else {
        return;
    };
    let (mut server, at) = shared();
    let (input, out) = (server.path("in"), server.path("out"));
    copy_perl(&input);
    let tools = ["/usr/bin/setfattr", "/usr/bin/getfattr"].map(Path::new);
    copy_programs(&input, &tools);
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
cat > /tmp/hold <<'SH'
touch /tmp/held; while [ ! -e /tmp/copied ]; do sleep 0.2; done; echo more >> /m/held
SH
lock /m/held w try 0 10 'sh /tmp/hold' &
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
# Extended attributes, which version 4.1 has not.
program() {{ name=$1; shift; /peer/ld.so --library-path /peer /peer/$name "$@"; }}
chmod +x /peer/*
echo tagged > /n/tagged; chmod 644 /n/tagged
program setfattr -n user.tag -v 'a value' /n/tagged
program setfattr -n user.gone -v x /n/tagged; program setfattr -x user.gone /n/tagged
program setfattr -n user.dir -v 1 /n/copy
program setfattr -n trusted.no -v x /n/tagged 2>/dev/null && exit 1
program setfattr -n user.tag -v x /m/tagged 2>/dev/null && exit 1
umount /n; mount -t nfs -o vers=4.2,nosharecache,$opts 10.0.2.2:{at}/fs /n
[ "$(program getfattr --only-values -n user.tag /n/tagged)" = 'a value' ]
[ "$(program getfattr /n/tagged | grep -v '^#' | tr '\n' ' ')" = 'user.tag  ' ]
[ "$(program getfattr --only-values -n user.dir /n/copy)" = 1 ]
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
# Snapshots, and blocks that two files share.
[ "$(ls .zfs/snapshot)" = taken ]; [ "$(cat .zfs/snapshot/taken/earlier)" = before ]
touch .zfs/snapshot/taken/no 2>/dev/null && exit 1
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
    let tagged = format!("{at}/fs/tagged");
    let value = run(
        "getfattr",
        &[
            "--absolute-names",
            "--only-values",
            "-n",
            "user.tag",
            &tagged,
        ],
    );
    assert_eq!(value, "a value");
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").expect("a sum and a name");
        let path = format!("{at}/fs/copy/3/{name}");
        let found = run("sha256sum", &[&path]);
        assert!(found.starts_with(sum), "{path}");
    }
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Programs and what they load, for the guest, which starts them with `/peer/ld.so`.
fn copy_programs(into: &Path, programs: &[&Path]) {
    std::fs::create_dir_all(into).expect("a directory");
    for program in programs {
        let name = program.file_name().expect("a name");
        std::fs::copy(program, into.join(name)).expect("a program");
        for line in run("ldd", &[&program.to_string_lossy()]).lines() {
            let path = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(path) = path.map(Path::new) {
                let name = path.file_name().expect("a name").to_string_lossy();
                let name = match name.starts_with("ld-linux") {
                    true => "ld.so".into(),
                    false => name,
                };
                std::fs::copy(path, into.join(&*name)).expect("a library");
            }
        }
    }
    for list in ["passwd", "group"] {
        std::fs::copy(Path::new("/etc").join(list), into.join(list)).expect("users");
    }
}

/// Goal: what pjdfstest and fsx look for is right in a mount of version 4.2, but for two that no
/// mount by NFS of a filesystem like this passes: a file that is open and removed keeps a name
/// (`unlink::open_file_not_freed`), and what a new file takes on disk is known only later
/// (`rename::preserve_metadata::regular`).
#[test]
fn pjdfstest_and_fsx_are_content_with_a_mount_of_version_4() {
    let (pjdfstest, fsx) = (tools().join("pjdfstest"), tools().join("fsx"));
    let are_there = pjdfstest.exists() && fsx.exists();
    if !can_mount() || !need("pjdfstest and fsx (scripts/install test)", are_there) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    let disks = server.disks(1, 1 << 30);
    let at = server.text("tank");
    server.ok(&format!("zpool create -m {at} tank {}", disks[0]));
    server.ok("zfs set sharenfs=rw=127.0.0.1,insecure,no_root_squash tank");
    let input = server.path("in");
    copy_programs(&input, &[&pjdfstest, &fsx]);
    let port = server.nfs_port;
    let script = format!(
        r#"set -e
chmod 755 /
chmod +x /peer/*
grep -E '^(nobody|daemon|bin):' /peer/passwd >> /etc/passwd
grep -E '^(nogroup|daemon|bin):' /peer/group >> /etc/group
program() {{ name=$1; shift; /peer/ld.so --library-path /peer /peer/$name "$@"; }}
mkdir -p /m
mount -t nfs -o vers=4.2,proto=tcp,port={port} 10.0.2.2:{at} /m
# A machine that stopped dead begins anew.
rm -rf /m/*
cat > /tmp/fsx.toml <<'T'
flen = 262144
[opsize]
min = 1
max = 65536
[weights]
close_open = 1
invalidate = 0.3
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 2
punch_hole = 5
sendfile = 3
posix_fadvise = 1
copy_file_range = 5
T
program fsx -f /tmp/fsx.toml -N 600 -S 7 -P /tmp -q -q /m/file > /tmp/fsx 2>&1 \
  || {{ tail -n 40 /tmp/fsx; exit 1; }}
cat > /tmp/pjd.toml <<'T'
[features]
posix_fallocate = {{}}
rename_ctime = {{}}
utime_now = {{}}
utimensat = {{}}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
T
mkdir /m/pjd; chmod 777 /m/pjd
program pjdfstest -c /tmp/pjd.toml -p /m/pjd > /tmp/pjd 2>&1 || true
sed 's/\x1b\[[0-9;]*m//g' /tmp/pjd | grep -aE '^[a-z_]+::.* (ok|FAILED|skipped)$' > /tmp/outcomes
[ "$(grep -c ' ok$' /tmp/outcomes)" -gt 350 ] || {{ tail /tmp/pjd; exit 1; }}
known='^(unlink::open_file_not_freed|rename::preserve_metadata::regular) '
if grep ' FAILED$' /tmp/outcomes | grep -vE "$known"; then exit 1; fi
umount /m
"#
    );
    peer.run_with(&[], PeerOptions::default().network().input(&input), &script);
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}
