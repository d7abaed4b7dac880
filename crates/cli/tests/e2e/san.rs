//! A volume on the network as a SAN has it: several portals and paths, reservations that outlive
//! the server, copies by cloning, long blocks, counters; and a server that is killed.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{MILLPOND, Peer, PeerOptions, Server, can_mount, text_of, zdb_is_clean};
use crate::initiator::{FORCE_UNIT_ACCESS, Initiator, READ, WRITE, blocks};

fn iqn(volume: &str) -> String {
    format!("iqn.2026-11.io.millpond:tank:{volume}")
}

/// A server with a pool `tank`, and volumes in it that are shared with these words.
fn server_with(volumes: &[(&str, &str)]) -> Server {
    let server = Server::start();
    let disks = server.disks(1, 1 << 30);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    for (name, words) in volumes {
        server.ok(&format!(
            "zfs create -s -V 64M -o millpond:iscsi={words} tank/{name}"
        ));
    }
    server
}

fn log_in(server: &Server, volume: &str, isid: u8) -> Initiator {
    let portal = format!("127.0.0.1:{}", server.iscsi_port);
    Initiator::log_in(&portal, &iqn(volume), isid).expect("a login")
}

/// Goal: registrations and a reservation that were made with APTPL hold after the server was killed
/// and after the pool was exported and imported; those without do not.
#[test]
fn reservations_outlive_the_server_and_move_with_the_pool() {
    if !can_mount() {
        return;
    }
    let mut server = server_with(&[("vol", "on"), ("other", "on")]);
    let register = |initiator: &mut Initiator, key: u8, persists: bool| {
        let mut list = [0; 24];
        list[15] = key;
        list[20] = u8::from(persists);
        initiator.does(&[0x5f, 0x06, 0, 0, 0, 0, 0, 0, 24, 0], 0, &list);
    };
    let keys = |initiator: &mut Initiator| -> Vec<u8> {
        let data = initiator.does(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 200, 0], 200, &[]);
        data[8..].chunks(8).map(|key| key[7]).collect()
    };
    let mut one = log_in(&server, "vol", 1);
    let capabilities = one.does(&[0x5e, 2, 0, 0, 0, 0, 0, 0, 8, 0], 8, &[]);
    assert_eq!(capabilities[2] & 0x01, 0x01, "PTPL_C");
    register(&mut one, 7, true);
    // Exclusive access.
    let mut list = [0; 24];
    list[7] = 7;
    one.does(&[0x5f, 0x01, 0x03, 0, 0, 0, 0, 0, 24, 0], 0, &list);
    register(&mut log_in(&server, "other", 1), 5, false);
    let property = server.ok("zfs get -H -o value millpond:iscsi.reservations tank/vol");
    assert!(property.contains("iqn.2025-01.test:raw,h"), "{property}");

    let holds = |server: &Server| {
        let mut one = log_in(server, "vol", 1);
        let mut two = log_in(server, "vol", 2);
        assert_eq!(keys(&mut two), [7]);
        const CONFLICT: u8 = 0x18;
        let write = two.command(&blocks(WRITE, 0, 0, 1), 0, &[1; 512]);
        assert_eq!(write.expect("an answer").status, CONFLICT);
        one.does(&blocks(WRITE, 0, 0, 1), 0, &[2; 512]);
        assert!(keys(&mut log_in(server, "other", 1)).is_empty());
    };
    drop(one);
    server.kill();
    server.launch(&["daemon"]);
    holds(&server);
    // Under another name, which is another target's; and back.
    server.ok("zfs rename tank/vol tank/moved");
    assert_eq!(keys(&mut log_in(&server, "moved", 2)), [7]);
    server.ok("zfs rename tank/moved tank/vol");
    server.ok("zpool export tank");
    let search = server.text("disks");
    server.ok(&format!("zpool import -d {search} tank"));
    holds(&server);
    // The last registration decides, and what was kept goes.
    let mut one = log_in(&server, "vol", 1);
    register(&mut one, 8, false);
    let property = server.ok("zfs get -H -o value millpond:iscsi.reservations tank/vol");
    assert_eq!(property.trim(), "-");
    drop(one);
    server.kill();
    server.launch(&["daemon"]);
    assert!(keys(&mut log_in(&server, "vol", 1)).is_empty());
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: whoever was fenced off stays so, also without APTPL, and a mode page stays as it was set,
/// whatever is done to the share of a volume that its server keeps: other words, in place where the
/// target is the same; no share and a share again; another target; an export that is refused;
/// another name and the old one. Who looks at none of that is not disturbed.
#[test]
fn what_initiators_set_belongs_to_the_volume() {
    if !can_mount() {
        return;
    }
    let mut server = server_with(&[("vol", "on")]);
    let mut one = log_in(&server, "vol", 1);
    let mut list = [0; 24];
    list[15] = 7;
    one.does(&[0x5f, 0x06, 0, 0, 0, 0, 0, 0, 24, 0], 0, &list);
    list[7] = 7;
    one.does(&[0x5f, 0x01, 0x01, 0, 0, 0, 0, 0, 24, 0], 0, &list);
    // The write cache, off.
    const CACHING: [u8; 6] = [0x1a, 0x08, 0x08, 0, 255, 0];
    let mut pages = one.does(&CACHING, 255, &[]);
    pages[0] = 0;
    pages[2] = 0;
    pages[6] &= !0x04;
    one.does(&[0x15, 0x10, 0, 0, pages.len() as u8, 0], 0, &pages);

    let holds = |server: &Server, iqn: &str| {
        let portal = format!("127.0.0.1:{}", server.iscsi_port);
        let mut two = Initiator::log_in(&portal, iqn, 2).expect("a login");
        const CONFLICT: u8 = 0x18;
        let write = two.command(&blocks(WRITE, 0, 0, 1), 0, &[1; 512]);
        assert_eq!(write.expect("an answer").status, CONFLICT);
        let mut one = Initiator::log_in(&portal, iqn, 3).expect("a login");
        let keys = one.does(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 200, 0], 200, &[]);
        assert_eq!(keys[8..], [0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(one.does(&CACHING, 255, &[])[6] & 0x04, 0);
    };
    let vol = iqn("vol");
    holds(&server, &vol);
    server.ok("zfs set millpond:iscsi=on,initiator=iqn.2025-01.* tank/vol");
    one.does(&blocks(WRITE, 0, 0, 1), 0, &[2; 512]);
    holds(&server, &vol);
    // Mode parameters have a bit for that, so it is told.
    server.ok("zfs set millpond:iscsi=ro,initiator=iqn.2025-01.* tank/vol");
    let told = one.command(&[0; 6], 0, &[]).expect("an answer");
    assert_eq!((told.status, told.data[2 + 2] & 0x0f), (0x02, 0x06));
    assert_eq!(told.data[2 + 12..2 + 14], [0x2a, 0x01]);
    let refused = one.command(&blocks(WRITE, 0, 0, 1), 0, &[2; 512]);
    assert_eq!(refused.expect("an answer").data[2 + 2] & 0x0f, 0x07);
    server.ok("zfs set millpond:iscsi=on tank/vol");
    assert_eq!(one.command(&[0; 6], 0, &[]).expect("an answer").status, 2);
    one.does(&blocks(WRITE, 0, 0, 1), 0, &[2; 512]);
    server.ok("zfs set millpond:iscsi=off tank/vol");
    server.ok("zfs set millpond:iscsi=on tank/vol");
    holds(&server, &vol);
    server.ok("zfs set millpond:iscsi=iqn=iqn.2025-01.test:named tank/vol");
    holds(&server, "iqn.2025-01.test:named");
    server.ok("zfs set millpond:iscsi=on tank/vol");
    holds(&server, &vol);
    let directory = server.text("mounted");
    server.ok(&format!("zfs create -o mountpoint={directory} tank/fs"));
    let file = std::fs::File::create(format!("{directory}/file")).expect("a file");
    server.fails("zpool export tank");
    holds(&server, &vol);
    drop(file);
    server.ok("zfs rename tank/vol tank/moved");
    holds(&server, &iqn("moved"));
    server.ok("zfs rename tank/moved tank/vol");
    holds(&server, &vol);
    // Another volume that gets its name is another one.
    server.ok("zfs destroy tank/vol");
    server.ok("zfs create -s -V 64M -o millpond:iscsi=on tank/vol");
    log_in(&server, "vol", 2).does(&blocks(WRITE, 0, 0, 1), 0, &[3; 512]);
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: what `zpool split` leaves in two pools are two disks to initiators, also after a restart.
/// A volume that they know from an earlier release, which told its guid alone, is what it was; its
/// copy is not.
#[test]
fn halves_of_a_split_pool_are_two_disks() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let disks = server.disks(2, 1 << 30);
    server.ok(&format!(
        "zpool create -m none tank mirror {} {}",
        disks[0], disks[1]
    ));
    server.ok("zfs create -s -V 64M -o millpond:iscsi=on tank/a");
    let designator = |server: &Server, pool: &str, volume: &str| -> Vec<u8> {
        let portal = format!("127.0.0.1:{}", server.iscsi_port);
        let iqn = format!("iqn.2026-11.io.millpond:{pool}:{volume}");
        let mut initiator = Initiator::log_in(&portal, &iqn, 1).expect("a login");
        let page = initiator.does(&[0x12, 1, 0x83, 0, 255, 0], 255, &[]);
        page[8..24].to_vec()
    };
    let before = designator(&server, "tank", "a");
    server.ok("zpool split tank half");
    let search = server.text("disks");
    server.ok(&format!("zpool import -d {search} half"));
    let copy = designator(&server, "half", "a");
    assert_ne!(copy, before);
    server.kill();
    server.launch(&["daemon"]);
    assert_eq!(designator(&server, "tank", "a"), before);
    assert_eq!(designator(&server, "half", "a"), copy);
    // As if an earlier release had shared it.
    let refused = server.fails("zpool set millpond:identities= tank");
    assert!(refused.contains("GUID:TXG"), "{refused}");
    let pool = server.ok("zpool get -Hp -o value guid tank");
    let until = server.ok("zfs get -Hp -o value createtxg tank/a");
    server.ok(&format!(
        "zpool set millpond:identities={}:{} tank",
        pool.trim(),
        until.trim()
    ));
    server.kill();
    server.launch(&["daemon"]);
    let guid = server.ok("zfs get -Hp -o value guid tank/a");
    let guid: u64 = guid.trim().parse().expect("a guid");
    let known = [&b"\x60MILLPND"[..], &guid.to_be_bytes()].concat();
    assert_eq!(designator(&server, "tank", "a"), known);
    assert_eq!(designator(&server, "half", "a"), copy);
    server.ok("zfs create -s -V 64M -o millpond:iscsi=on tank/new");
    assert_eq!(designator(&server, "tank", "new")[4] & 0x80, 0x80);
    // A copy that initiators would take for it is not shared.
    let property = server.ok("zpool get -H -o value millpond:identities tank");
    let (_, until) = property.trim().split_once(':').expect("two numbers");
    let pool = server.ok("zpool get -Hp -o value guid half");
    server.ok(&format!(
        "zpool set millpond:identities={}:{until} half",
        pool.trim()
    ));
    server.ok("zfs set millpond:iscsi=off half/a");
    let refused = server.fails("zfs set millpond:iscsi=on half/a");
    assert!(refused.contains("millpond:identities=none"), "{refused}");
    server.ok("zpool set millpond:identities=none half");
    server.ok("zfs set millpond:iscsi=on half/a");
    assert_eq!(designator(&server, "half", "a"), copy);
    server.stop();
}

/// Goal: a replica whose properties came along takes no name of what it is a copy of, whichever
/// pool comes first at a start, nor while the other one is away; it is told which it is.
#[test]
fn a_replica_takes_no_target_of_the_live_volume() {
    if !can_mount() {
        return;
    }
    const NAME: &str = "iqn.2025-01.test:vol";
    let mut server = Server::start();
    let disks = server.disks(2, 1 << 30);
    // By name the backup comes first.
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    server.ok(&format!("zpool create -m none archive {}", disks[1]));
    server.ok(&format!(
        "zfs create -s -V 64M -o millpond:iscsi=iqn={NAME} tank/vol"
    ));
    let portal = format!("127.0.0.1:{}", server.iscsi_port);
    let write = blocks(WRITE, FORCE_UNIT_ACCESS, 0, 1);
    let mut initiator = Initiator::log_in(&portal, NAME, 1).expect("a login");
    initiator.does(&write, 0, &[1; 512]);
    server.ok("zfs snapshot tank/vol@one");
    let piped = |words: &str| {
        let script = format!("{MILLPOND} zfs send -p tank/vol@one | {MILLPOND} {words}");
        let run = Command::new("sh")
            .args(["-c", &script])
            .env("MILLPOND_STATE", server.state())
            .output();
        text_of(&run.expect("a shell"))
    };
    let said = piped("zfs receive -F archive/vol");
    assert!(said.contains("'tank/vol'"), "{said}");
    let is_ours = || {
        let mut initiator = Initiator::log_in(&portal, NAME, 1).expect("a login");
        initiator.does(&blocks(READ, 0, 0, 1), 512, &[]) == [2; 512]
    };
    initiator.does(&write, 0, &[2; 512]);
    drop(initiator);
    server.kill();
    server.launch(&["daemon"]);
    assert!(is_ours());
    // Its pool is away.
    server.kill();
    let away = format!("{}.away", disks[0]);
    std::fs::rename(&disks[0], &away).expect("renamed");
    server.launch(&["daemon"]);
    let told = server.ok("info");
    assert!(told.contains("'tank/vol'"), "{told}");
    server.kill();
    std::fs::rename(&away, &disks[0]).expect("renamed");
    server.launch(&["daemon"]);
    assert!(is_ours());
    // Nobody asks for it any more.
    server.ok("zfs set millpond:iscsi=off tank/vol");
    server.ok(&format!("zfs set millpond:iscsi=iqn={NAME} archive/vol"));
    assert!(!is_ours());
    server.stop();
}

/// What is stored in a volume's first 4 MiB: random enough that blocks are not compressed into
/// their pointers.
fn pattern() -> Vec<u8> {
    let mut word = 0x9e37_79b9u32;
    std::iter::repeat_with(|| {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        word as u8
    })
    .take(4 << 20)
    .collect()
}

fn write_pattern(initiator: &mut Initiator, pattern: &[u8]) {
    for (piece, data) in (0..).zip(pattern.chunks(128 << 10)) {
        initiator.does(&blocks(WRITE, 0, piece * 256, 256), 0, data);
    }
}

/// A volume as EXTENDED COPY names it: by the first designator of its page 83h.
fn name_of(server: &Server, volume: &str) -> [u8; 32] {
    let page = log_in(server, volume, 9).does(&[0x12, 1, 0x83, 0, 255, 0], 255, &[]);
    let mut descriptor = [0; 32];
    descriptor[0] = 0xe4;
    descriptor[4..6].copy_from_slice(&page[4..6]);
    descriptor[7] = page[7];
    descriptor[8..24].copy_from_slice(&page[8..24]);
    descriptor
}

/// Copies the first blocks of volume `a` to another one, from a block of that on.
fn copy(server: &Server, initiator: &mut Initiator, to: &str, count: u16, lba: u64) {
    let mut list = vec![0; 16];
    list[3] = 64;
    list[11] = 28;
    list.extend_from_slice(&name_of(server, "a"));
    list.extend_from_slice(&name_of(server, to));
    let mut segment = [0; 28];
    segment[0] = 0x02;
    segment[3] = 24;
    segment[7] = 1;
    segment[10..12].copy_from_slice(&count.to_be_bytes());
    segment[20..28].copy_from_slice(&lba.to_be_bytes());
    list.extend_from_slice(&segment);
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[13] = list.len() as u8;
    initiator.does(&cdb, 0, &list);
}

/// Goal: what was cloned between volumes, and is in the intent log only, is there when OpenZFS
/// imports the pool of a server that was killed; it finds nothing to complain of, and neither do we
/// after it.
#[test]
fn openzfs_takes_clones_between_volumes_from_the_log() {
    if !can_mount() {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::start();
    let files = server.disks(1, 1 << 30);
    let device = server.attach(&files).remove(0);
    server.ok(&format!("zpool create -m none tank {device}"));
    server.ok("zfs create -s -V 64M -o millpond:iscsi=on tank/a");
    server.ok("zfs create -s -V 48M -o millpond:iscsi=on tank/b");
    let pattern = pattern();
    let mut a = log_in(&server, "a", 1);
    write_pattern(&mut a, &pattern);
    server.ok("zpool sync tank");
    copy(&server, &mut a, "b", 8192, 4096);
    // SYNCHRONIZE CACHE (10) of the copy: its record is in the log when it is answered.
    log_in(&server, "b", 1).does(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]);
    server.kill();
    server.detach();
    let disk = format!("{},d0", files[0]);
    let out = server.path("out");
    peer.run_with(
        &[disk],
        PeerOptions::default().output(&out),
        "set -e\nmkdir -p /peer/out\n\
         zpool import -f -d /dev/disk/peer tank\n\
         for i in $(seq 50); do b=$(grep -lx 98304 /sys/block/zd*/size) && break; sleep 0.2; done\n\
         b=$(basename $(dirname $b))\n\
         [ -b /dev/$b ] || mknod /dev/$b b $(tr : ' ' < /sys/block/$b/dev)\n\
         dd if=/dev/$b of=/peer/out/b bs=1M skip=2 count=4 status=none\n\
         zpool scrub -w tank\nzpool status tank\n\
         zpool status tank | grep -q 'No known data errors'\n\
         zpool get -Hp -o value bcloneused tank > /peer/out/cloned\nzpool export tank\n",
    );
    let read = std::fs::read(out.join("b")).expect("what it read");
    assert!(read == pattern);
    let cloned = std::fs::read_to_string(out.join("cloned")).expect("a number");
    assert!(
        cloned.trim().parse::<u64>().expect("a number") >= 4 << 20,
        "{cloned}"
    );
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: EXTENDED COPY between volumes of a pool clones blocks, also those that are copied over
/// later; between others it copies; volumes with blocks of 4096 bytes are read and written as such.
#[test]
fn copies_between_volumes_of_a_pool_are_clones() {
    if !can_mount() {
        return;
    }
    let mut server = server_with(&[("a", "on"), ("b", "on"), ("long", "on,blocksize=4096")]);
    let number = |name: &str| -> u64 {
        let text = server.ok(&format!("zpool get -Hp -o value {name} tank"));
        text.trim().parse().expect("a number")
    };
    let mut a = log_in(&server, "a", 1);
    let mut pattern = pattern();
    write_pattern(&mut a, &pattern);
    server.ok("zpool sync tank");
    assert_eq!(number("bcloneused"), 0);
    copy(&server, &mut a, "b", 8192, 4096);
    server.ok("zpool sync tank");
    assert!(number("bcloneused") >= 4 << 20, "{}", number("bcloneused"));
    let read = |initiator: &mut Initiator, first: u32, step: u32| {
        let mut all = Vec::new();
        for piece in 0..32 {
            let read = blocks(READ, 0, first + piece * step, step as u16);
            all.extend(initiator.does(&read, 128 << 10, &[]));
        }
        all
    };
    let mut b = log_in(&server, "b", 1);
    assert!(read(&mut b, 4096, 256) == pattern);
    // What is written to either side is that side's alone.
    a.does(&blocks(WRITE, 0, 0, 256), 0, &vec![1; 128 << 10]);
    b.does(&blocks(WRITE, 0, 8192, 256), 0, &vec![2; 128 << 10]);
    server.ok("zpool sync tank");
    let mut expected = pattern.clone();
    expected[2 << 20..][..128 << 10].fill(2);
    assert!(read(&mut b, 4096, 256) == expected);
    // Blocks of another size are counted as what they are.
    let mut long = log_in(&server, "long", 1);
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
    let capacity = long.does(&cdb, 32, &[]);
    assert_eq!(capacity[7..12], [0xff, 0, 0, 0x10, 0]);
    copy(&server, &mut a, "long", 8192, 1024);
    pattern[..128 << 10].fill(1);
    assert!(read(&mut long, 1024, 32) == pattern);

    let shares = server.ok("shares -p -H");
    // Those of one who is called so: a share by its target's name, a client by its own.
    let row = |volume: &str, name: &str| -> Vec<String> {
        let mut rows = shares
            .lines()
            .map(|line| line.split('\t').map(str::to_owned));
        let row = rows.find_map(|row| {
            let row: Vec<String> = row.collect();
            (row[0] == format!("tank/{volume}") && row[2] == name).then_some(row)
        });
        row.unwrap_or_else(|| panic!("no {volume} in {shares}"))
    };
    let of_a = row("a", "iqn.2025-01.test:raw");
    assert_eq!(of_a[1], "iscsi", "{shares}");
    // 32 pieces and one more; copies move nothing by the network.
    assert_eq!(of_a[5..7], ["0", "0"], "{shares}");
    assert_eq!(of_a[8], "33", "{shares}");
    assert_eq!(of_a[9], (33 * (128 << 10)).to_string(), "{shares}");
    let of_b = row("b", &iqn("b"));
    assert_eq!(
        (of_b[3].as_str(), of_b[5].as_str()),
        ("1 connected", "64"),
        "{shares}"
    );
    drop((a, b, long));
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}

/// Goal: what was acknowledged as stable is there after the server was killed in the middle of it.
/// Method: four initiators write to slots of their own; each slot holds the last that was
/// acknowledged, or the one that was under way.
#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    const SLOTS: u32 = 64;
    const SLOT_BLOCKS: u16 = 16;
    if !can_mount() {
        return;
    }
    let mut server = server_with(&[("vol", "on")]);
    let content = |writer: u32, number: u32| -> Vec<u8> {
        let word = (u64::from(writer) << 32 | u64::from(number)).to_be_bytes();
        word.repeat(usize::from(SLOT_BLOCKS) * 64)
    };
    let lba = |writer: u32, slot: u32| (writer * SLOTS + slot) * u32::from(SLOT_BLOCKS);
    let mut acknowledged = [[0u32; SLOTS as usize]; 4];
    for round in 0..3 {
        let now: Vec<Arc<Mutex<Vec<u32>>>> = (0..4)
            .map(|writer| Arc::new(Mutex::new(acknowledged[writer].to_vec())))
            .collect();
        let writers: Vec<_> = (0..4u32)
            .map(|writer| {
                let mut initiator = log_in(&server, "vol", writer as u8 + 1);
                let now = now[writer as usize].clone();
                let first = 1 + round * 1_000_000;
                std::thread::spawn(move || {
                    for number in first.. {
                        let slot = number % SLOTS;
                        let write =
                            blocks(WRITE, FORCE_UNIT_ACCESS, lba(writer, slot), SLOT_BLOCKS);
                        match initiator.command(&write, 0, &content(writer, number)) {
                            Ok(answer) if answer.status == 0 => {
                                now.lock().unwrap()[slot as usize] = number;
                            }
                            // The one that was under way.
                            _ => return number,
                        }
                    }
                    unreachable!("the server is killed before that")
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(1500 + 400 * u64::from(round)));
        server.kill();
        let under_way: Vec<u32> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        server.launch(&["daemon"]);
        let mut initiator = log_in(&server, "vol", 9);
        let mut count = 0;
        for writer in 0..4u32 {
            let known = now[writer as usize].lock().unwrap().clone();
            for slot in 0..SLOTS {
                let read = blocks(READ, 0, lba(writer, slot), SLOT_BLOCKS);
                let found = initiator.does(&read, u32::from(SLOT_BLOCKS) * 512, &[]);
                let last = known[slot as usize];
                let next = under_way[writer as usize];
                let is_next = next % SLOTS == slot && found == content(writer, next);
                let is_last = match last {
                    0 => found.iter().all(|byte| *byte == 0),
                    last => found == content(writer, last),
                };
                assert!(is_last || is_next, "writer {writer}, slot {slot}, {last}");
                acknowledged[writer as usize][slot as usize] = if is_last { last } else { next };
                count += u32::from(last > round * 1_000_000);
            }
        }
        assert!(count > 20, "only {count} slots were written");
    }
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}

/// A portal in front of another one, which can be cut.
struct Cable {
    port: u16,
    is_cut: Arc<AtomicBool>,
    lines: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cable {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let cable = Self {
            port: listener.local_addr().expect("its address").port(),
            is_cut: Arc::default(),
            lines: Arc::default(),
        };
        let (is_cut, lines) = (cable.is_cut.clone(), cable.lines.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let far = TcpStream::connect(("127.0.0.1", port)).expect("the server");
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        // Whichever end goes away.
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
                lines.lock().unwrap().extend([near, far]);
            }
        });
        cable
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for line in self.lines.lock().unwrap().drain(..) {
            let _ = line.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Goal: Linux sees one disk by two portals, takes another one at every request, and goes on where
/// one is cut in the middle of writing. Method: dm-multipath with round-robin, set up by hand: the
/// peer has no path checkers.
#[test]
fn linux_goes_on_by_the_other_path_when_one_is_cut() {
    if !can_mount() {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let mut server = Server::prepare();
    let second = TcpListener::bind("127.0.0.1:0").expect("a port");
    let second_port = second.local_addr().expect("its address").port();
    drop(second);
    server.launch(&["daemon", &format!("--iscsi=127.0.0.1:{second_port}")]);
    let disks = server.disks(1, 1 << 30);
    server.ok(&format!("zpool create -m none tank {}", disks[0]));
    server.ok("zfs create -s -V 128M -o millpond:iscsi=on tank/vol");
    let info = server.ok("info");
    assert!(
        info.contains(&format!(
            "127.0.0.1:{second_port} and 127.0.0.1:{}",
            server.iscsi_port
        )),
        "{info}"
    );
    let cable = Cable::to(second_port);
    let control = TcpListener::bind("127.0.0.1:0").expect("a port");
    let control_port = control.local_addr().expect("its address").port();
    let (first_port, cable_port) = (server.iscsi_port, cable.port);
    std::thread::spawn(move || {
        // The script asks for it.
        let (mut asked, _) = control.accept().expect("a connection");
        let _ = asked.read(&mut [0; 8]);
        cable.cut();
    });
    let iqn = iqn("vol");
    let out = server.path("out");
    let script = format!(
        "set -e\nmkdir -p /peer/out\n\
         for m in dm-multipath dm-round-robin; do modprobe $m || true; done\n\
         for p in {first_port} {cable_port}; do\n\
         n=\"iscsiadm -m node -T {iqn} -p 10.0.2.2:$p\"\n\
         $n --op new >/dev/null\n\
         $n --op update -n node.session.timeo.replacement_timeout -v 3\n\
         $n --op update -n node.conn[0].timeo.noop_out_interval -v 2\n\
         $n --op update -n node.conn[0].timeo.noop_out_timeout -v 2\n\
         $n --login\ndone\n\
         for i in $(seq 100); do [ -b /dev/sda ] && [ -b /dev/sdb ] && break; sleep 0.2; done\n\
         cd /sys/block\ncat sda/device/wwid sdb/device/wwid > /peer/out/names\n\
         sg_inq /dev/sda > /peer/out/inq\n\
         echo \"0 $(cat sda/size) multipath 1 queue_if_no_path 0 1 1 round-robin 0 2 1 \
         $(cat sda/dev) 1 $(cat sdb/dev) 1\" | dmsetup create --noudevsync mp\n\
         dmsetup mknodes mp\n\
         mkfs.ext4 -q /dev/mapper/mp\nmkdir -p /m\nmount /dev/mapper/mp /m\n\
         dd if=/dev/zero of=/m/first bs=64k count=64 conv=fsync status=none\n\
         cat sda/stat > /peer/out/stat\ncat sdb/stat >> /peer/out/stat\n\
         dmsetup status mp > /peer/out/before\n\
         ( for i in $(seq 40); do\n\
         dd if=/dev/urandom of=/m/f$i bs=64k count=8 conv=fsync status=none; done; \
         echo done > /m/ok ) &\n\
         w=$!\nsleep 3\n\
         (echo cut > /dev/tcp/10.0.2.2/{control_port}) || true\n\
         wait $w\ncat /m/ok\n\
         (cd /m && sha256sum f* ) > /peer/out/sums\n\
         dmsetup status mp > /peer/out/after\n\
         umount /m\nmount /dev/mapper/mp /m\n\
         (cd /m && sha256sum -c /peer/out/sums >/dev/null)\numount /m\n\
         e2fsck -f -n /dev/mapper/mp\n"
    );
    peer.run_with(&[], PeerOptions::default().network().output(&out), &script);
    let seen = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    assert!(seen("inq").contains("TPGS=1"), "{}", seen("inq"));
    let names = seen("names");
    let names: Vec<&str> = names.lines().collect();
    assert!(names.len() == 2 && names[0] == names[1], "{names:?}");
    // Both took their turn at writing: the fifth number of each.
    for line in seen("stat").lines() {
        let writes = line.split_whitespace().nth(4).expect("a number");
        assert_ne!(writes, "0", "{line}");
    }
    let paths = |name: &str, state: &str| {
        let status = seen(name);
        let mut words = status
            .split_whitespace()
            .skip_while(|word| !word.contains(':'));
        let mut count = 0;
        while let (Some(_), Some(now), Some(_)) = (words.next(), words.next(), words.next()) {
            count += usize::from(now == state);
        }
        count
    };
    assert_eq!(paths("before", "A"), 2, "{}", seen("before"));
    assert_eq!(
        (paths("after", "A"), paths("after", "F")),
        (1, 1),
        "{}",
        seen("after")
    );
    assert_eq!(seen("sums").lines().count(), 41, "{}", seen("sums"));
    server.stop();
    zdb_is_clean(&server.path("disks"), "tank");
}
