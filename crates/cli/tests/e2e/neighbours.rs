//! Goal: Incus, Docker and Proxmox VE find what they ask for. Method: the command lines of their
//! drivers, in the order in which they come, and what they take the answers apart for (Incus 6.x,
//! internal/server/storage/drivers/driver_zfs*.go; moby's daemon/graphdriver/zfs and
//! mistifyio/go-zfs; pve-storage's ZFSPoolPlugin.pm). Other programs' own tests are run by
//! `scripts/neighbours`.

use std::fs::{File, read_dir, write};

use crate::harness::{MILLPOND, Server, can_mount, run, text_of, zdb_is_clean};

/// A server with a pool on a file.
fn pool(words: &str) -> Option<Server> {
    if !can_mount() {
        return None;
    }
    let server = Server::start();
    let disk = &server.disks(1, 1 << 30)[0];
    server.ok(&format!("zpool create {words} tank {disk}"));
    Some(server)
}

/// What a command prints, by lines.
fn lines(server: &Server, words: &str) -> Vec<String> {
    server.ok(words).lines().map(str::to_owned).collect()
}

/// A command that is refused, and what it says last: programs look at the end.
fn refused(server: &Server, words: &str, last: &str) {
    let said = server.fails(words);
    assert!(said.trim_end().ends_with(last), "{words}: {said}");
}

/// A stream from one command to another.
fn pipe(server: &Server, from: &str, to: &str) {
    let script = format!(
        "exec 2>&1; export MILLPOND_STATE={}; {{ {MILLPOND} {from} || echo cut off >&2; }} | \
         {MILLPOND} {to}",
        server.state().display()
    );
    let said = run("sh", &["-c", &script]);
    assert!(!said.contains("cut off"), "{from}: {said}");
}

/// Leaves the pool; nothing is wrong with it.
fn leave(mut server: Server) {
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}

/// Names below a dataset as Incus asks for them (`getDatasets`).
fn below(server: &Server, dataset: &str, types: &str) -> Vec<String> {
    let words = format!("zfs get -H -r -o name -t {types} name {dataset}");
    let found = lines(server, &words).into_iter();
    let found = found.filter(|line| line != dataset);
    found.map(|line| line.replacen(dataset, "", 1)).collect()
}

fn property(server: &Server, key: &str, dataset: &str) -> String {
    let words = format!("zfs get -H -p -o value {key} {dataset}");
    server.ok(&words).trim().to_owned()
}

#[test]
fn incus_has_images_instances_and_volumes() {
    let Some(server) = pool("-m none -O compression=on") else {
        return;
    };
    let ok = |words: &str| server.ok(words);
    ok("zpool set autotrim=on tank");
    assert_eq!(below(&server, "tank", "all"), Vec::<String>::new());
    ok(
        "zfs set relatime=on mountpoint=legacy setuid=on exec=on devices=on acltype=posixacl \
         xattr=sa tank",
    );
    // What is there is told beside what is not.
    let asked = "zfs get -H -p -o name,property,value name,mountpoint,acltype tank tank/images";
    let words: Vec<&str> = asked.split(' ').collect();
    let output = server.command(&words);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    assert_eq!(
        told,
        "tank\tname\ttank\ntank\tmountpoint\tlegacy\ntank\tacltype\tposix\n"
    );
    ok("zfs create -o mountpoint=legacy tank/deleted");
    for kind in ["images", "containers", "virtual-machines", "custom"] {
        let more = match kind {
            "virtual-machines" => "-o volmode=none",
            _ => "",
        };
        for top in ["tank", "tank/deleted"] {
            ok(&format!(
                "zfs create -o mountpoint=legacy {more} {top}/{kind}"
            ));
        }
    }
    // An image, and an instance of it.
    ok("zfs create -o mountpoint=legacy -o canmount=noauto tank/images/i");
    ok("zfs set quota=10737418240 tank/images/i");
    ok("zfs set recordsize=65536 tank/images/i");
    ok("zfs set quota=none tank/images/i");
    ok("zfs snapshot -r tank/images/i@readonly");
    ok("zfs clone tank/images/i@readonly tank/containers/c1");
    ok("zfs set mountpoint=legacy canmount=noauto tank/containers/c1");
    ok("zfs set refquota=104857600 tank/containers/c1");
    ok("zfs set refreservation=none tank/containers/c1");
    let origin = property(&server, "origin", "tank/containers/c1");
    assert_eq!(origin, "tank/images/i@readonly");
    let exists = ok("zfs get -H -o name name tank/containers/c1");
    assert_eq!(exists.trim(), "tank/containers/c1");
    server.fails("zfs get -H -o name name tank/containers/none");
    for name in ["s0", "s1"] {
        ok(&format!(
            "zfs snapshot -r tank/containers/c1@snapshot-{name}"
        ));
    }
    ok("zfs rename tank/containers/c1@snapshot-s1 tank/containers/c1@snapshot-s2");
    let snapshots = ["@snapshot-s0", "@snapshot-s2"];
    assert_eq!(below(&server, "tank/containers/c1", "snapshot"), snapshots);
    let guids = "zfs get -H -p -r -o name,value -t snapshot guid tank/containers/c1";
    for line in lines(&server, guids) {
        let (name, guid) = line.split_once('\t').expect("two fields");
        assert!(name.starts_with("tank/containers/c1@snapshot-s"), "{line}");
        assert!(guid.parse::<u64>().is_ok(), "{line}");
    }
    // Copies: with snapshots, of a state, and as a clone.
    ok("zfs snapshot -r tank/containers/c1@copy-1");
    pipe(
        &server,
        "zfs send -R -w tank/containers/c1@copy-1",
        "zfs receive -x mountpoint tank/containers/c2",
    );
    ok("zfs destroy -r tank/containers/c2@copy-1");
    ok("zfs set mountpoint=legacy canmount=noauto tank/containers/c2");
    ok("zfs destroy -r -d tank/containers/c1@copy-1");
    assert_eq!(below(&server, "tank/containers/c2", "snapshot"), snapshots);
    ok("zfs snapshot -r tank/containers/c1@copy-2");
    pipe(
        &server,
        "zfs send tank/containers/c1@copy-2",
        "zfs receive -x mountpoint tank/containers/c3",
    );
    ok("zfs clone tank/containers/c1@copy-2 tank/containers/c4");
    let clones = "zfs get -H -p -r -o value clones tank/containers/c1@copy-2";
    assert_eq!(lines(&server, clones), ["tank/containers/c4"]);
    // What has clones cannot go, and is put aside until they are gone.
    server.fails("zfs destroy -r tank/containers/c1");
    ok("zfs rename tank/containers/c1 tank/deleted/containers/u1");
    let origin = property(&server, "origin", "tank/containers/c4");
    assert_eq!(origin, "tank/deleted/containers/u1@copy-2");
    ok("zfs destroy -r tank/containers/c4");
    let clones = lines(
        &server,
        "zfs get -H -p -r -o value clones tank/deleted/containers/u1",
    );
    assert!(clones.iter().all(|line| matches!(&line[..], "" | "-")));
    ok("zfs destroy -r tank/deleted/containers/u1");
    // To another server, and once more what is new.
    let to = "zfs receive -x mountpoint -F -u tank/containers/m1";
    pipe(&server, "zfs send -c -L tank/containers/c2@snapshot-s0", to);
    let from = "zfs send -c -L -i tank/containers/c2@snapshot-s0 tank/containers/c2@snapshot-s2";
    pipe(&server, from, to);
    assert_eq!(below(&server, "tank/containers/m1", "snapshot"), snapshots);
    let at = property(&server, "mountpoint", "tank/containers/m1");
    assert_eq!(at, "legacy");
    ok("zfs rollback tank/containers/m1@snapshot-s2");
    let asked = "zfs get -H -p -o property,value available,used tank";
    for (line, key) in lines(&server, asked).iter().zip(["available", "used"]) {
        let (property, value) = line.split_once('\t').expect("two fields");
        assert!(property == key && value.parse::<u64>().is_ok(), "{line}");
    }

    incus_has_volumes(&server);

    // Longer, and elsewhere.
    let disks = server.path("disks");
    let disk = read_dir(&disks).expect("disks").next().expect("a disk");
    let disk = disk.expect("a disk").path();
    let size: u64 = ok("zpool list -Hp -o size tank")
        .trim()
        .parse()
        .expect("it");
    let file = File::options().write(true).open(&disk).expect("a disk");
    file.set_len(2 << 30).expect("longer");
    ok(&format!("zpool online -e tank {}", disk.display()));
    let longer: u64 = ok("zpool list -Hp -o size tank")
        .trim()
        .parse()
        .expect("it");
    assert!(longer > size, "{longer}");
    ok("zpool export tank");
    ok(&format!("zpool import -f -d {} tank", disks.display()));
    ok("zfs load-key -r tank");
    for name in ["c2", "c3", "m1"] {
        ok(&format!("zfs destroy -r tank/containers/{name}"));
    }
    leave(server);
}

fn incus_has_volumes(server: &Server) {
    let ok = |words: &str| server.ok(words);
    ok(
        "zfs create -s -V 10485760 -o volmode=none -o primarycache=metadata \
         -o secondarycache=metadata -o sync=disabled -o volblocksize=16384 \
         tank/virtual-machines/v1.block",
    );
    ok("zfs create -o mountpoint=legacy -o canmount=noauto tank/virtual-machines/v1");
    ok("zfs set volsize=20971520 tank/virtual-machines/v1.block");
    let size = property(server, "volsize", "tank/virtual-machines/v1.block");
    assert_eq!(size, "20971520");
    for mode in ["dev", "none"] {
        ok(&format!(
            "zfs set volmode={mode} tank/virtual-machines/v1.block"
        ));
        let told = property(server, "volmode", "tank/virtual-machines/v1.block");
        assert_eq!(told, mode);
    }
    ok("zfs create -s -V 10485760 -o volmode=none -o incus:content_type=block tank/custom/d1");
    let asked = "zfs list -H -o name,type,incus:content_type -r -t filesystem,volume tank";
    let found = lines(server, asked);
    for line in [
        "tank/custom/d1\tvolume\tblock",
        "tank/virtual-machines/v1.block\tvolume\t-",
        "tank/images/i\tfilesystem\t-",
    ] {
        assert!(found.iter().any(|found| found == line), "{line}: {found:?}");
    }
    ok("zfs snapshot -r tank/virtual-machines/v1.block@snapshot-s0");
    ok(
        "zfs clone -o volmode=none tank/virtual-machines/v1.block@snapshot-s0 \
         tank/virtual-machines/v2.block",
    );
    pipe(
        server,
        "zfs send -c -L tank/virtual-machines/v1.block@snapshot-s0",
        "zfs receive -F -u tank/virtual-machines/v3.block",
    );
    for is_visible in ["visible", "hidden"] {
        ok(&format!(
            "zfs set snapdev={is_visible} tank/virtual-machines/v1.block"
        ));
    }
    ok("zfs rename tank/virtual-machines/v1.block tank/virtual-machines/v9.block");
    ok("zfs rollback tank/virtual-machines/v9.block@snapshot-s0");
    for name in ["v2.block", "v3.block", "v9.block", "v1"] {
        ok(&format!("zfs destroy -r tank/virtual-machines/{name}"));
    }
}

#[test]
fn docker_stacks_layers() {
    /// `dsPropListOptions` of go-zfs.
    const PROPERTIES: &str = "name,origin,used,available,mountpoint,compression,type,volsize,quota,\
                              referenced,written,logicalused,usedbydataset";
    let Some(server) = pool("-m none") else {
        return;
    };
    let ok = |words: &str| server.ok(words);
    let at = server.text("docker");
    ok(&format!("zfs create -o mountpoint={at} tank/docker"));
    let of = |name: &str| {
        let found = lines(&server, &format!("zfs list -Hp -o {PROPERTIES} {name}"));
        let found = found[0].split('\t');
        found.map(str::to_owned).collect::<Vec<_>>()
    };
    // Numbers, or the dash of what there is not.
    let told = of("tank/docker");
    assert_eq!(told.len(), 13, "{told:?}");
    for (index, is_there) in [(2, true), (3, true), (7, false), (8, true), (10, true)] {
        assert_eq!(told[index].parse::<u64>().is_ok(), is_there, "{told:?}");
    }
    assert_eq!((&told[1][..], &told[6][..]), ("-", "filesystem"));
    let list = format!("zfs list -rHp -t filesystem -o {PROPERTIES} tank/docker");
    assert_eq!(lines(&server, &list).len(), 1);
    let told = lines(
        &server,
        "zpool get -Hp name,health,allocated,size,free,readonly,dedupratio,fragmentation,freeing,\
         leaked tank",
    );
    assert_eq!(told.len(), 10);
    for line in &told {
        let fields: Vec<&str> = line.split('\t').collect();
        assert!(fields.len() == 4 && fields[0] == "tank", "{line}");
    }
    assert_eq!(told[1], "tank\thealth\tONLINE\t-");

    // Layers: each a clone of the one below, whose snapshot goes with the last of them.
    ok("zfs create -o mountpoint=legacy tank/docker/l0");
    refused(
        &server,
        "zfs create -o mountpoint=legacy tank/docker/l0",
        "dataset already exists",
    );
    let mut mounts = Vec::new();
    for layer in 0..4 {
        if layer > 0 {
            let below = layer - 1;
            ok(&format!("zfs snapshot tank/docker/l{below}@{below}99"));
            ok(&format!(
                "zfs clone -p -o mountpoint=legacy tank/docker/l{below}@{below}99 \
                 tank/docker/l{layer}"
            ));
            ok(&format!("zfs destroy -d tank/docker/l{below}@{below}99"));
            let told = of(&format!("tank/docker/l{layer}"));
            assert_eq!(told[1], format!("tank/docker/l{below}@{below}99"));
            assert_eq!(told[4], "legacy");
        }
        let place = server.path(&format!("layer{layer}"));
        std::fs::create_dir(&place).expect("a directory");
        // There is no kernel's zfs to mount by; the command takes its place.
        let place = place.display();
        ok(&format!("zfs set mountpoint={place} tank/docker/l{layer}"));
        write(format!("{place}/file{layer}"), "x").expect("a file");
        let names = read_dir(place.to_string()).expect("a directory").count();
        assert_eq!(names, layer + 1);
        mounts.push(format!("tank/docker/l{layer}"));
    }
    ok("zfs set quota=10G tank/docker/l3");
    assert_eq!(of("tank/docker/l3")[8], "10737418240");
    assert_eq!(lines(&server, &list).len(), 5);
    server.fails("zfs destroy -r tank/docker/l0");
    for layer in mounts.iter().rev() {
        ok(&format!("zfs destroy -r {layer}"));
    }
    let all = lines(&server, "zfs list -H -o name -t all -r tank/docker");
    assert_eq!(all, ["tank/docker"]);
    let gone = "dataset does not exist";
    refused(&server, "zfs destroy -r tank/docker/l0", gone);
    // A build that was broken off: all of it goes.
    ok("zfs create -o mountpoint=legacy tank/docker/b");
    ok("zfs snapshot tank/docker/b@1");
    ok("zfs clone -p -o mountpoint=legacy tank/docker/b@1 tank/docker/c");
    ok("zfs destroy -R tank/docker/b");
    refused(&server, "zfs list -Hp -o name tank/docker/c", gone);
    leave(server);
}

#[test]
fn proxmox_has_disks_templates_and_replicas() {
    let Some(server) = pool("-m none") else {
        return;
    };
    let ok = |words: &str| server.ok(words);
    let at = server.text("guests");
    ok(&format!("zfs create -o mountpoint={at} tank/data"));
    let list = "zfs list -o name,volsize,origin,type,refquota -t volume,filesystem -d1 -Hp \
                tank/data";
    let values = |properties: &str, dataset: &str| {
        lines(
            &server,
            &format!("zfs get -o value -Hp {properties} {dataset}"),
        )
    };
    for value in values("available,used", "tank/data") {
        assert!(value.parse::<u64>().is_ok(), "{value}");
    }
    assert_eq!(values("mountpoint", "tank/data")[0], at);
    ok("zfs create -s -b 16k -V 10240k tank/data/vm-100-disk-0");
    ok(
        "zfs create -o acltype=posixacl -o xattr=sa -o refquota=10240k \
         tank/data/subvol-200-disk-0",
    );
    assert_eq!(
        lines(&server, list)[1..],
        [
            "tank/data/subvol-200-disk-0\t-\t-\tfilesystem\t10485760",
            "tank/data/vm-100-disk-0\t10485760\t-\tvolume\t-",
        ]
    );
    let size = values("volsize,usedbydataset", "tank/data/vm-100-disk-0");
    assert_eq!(size[0], "10485760");
    assert!(size[1].parse::<u64>().is_ok(), "{size:?}");
    ok("zfs set volsize=20480k tank/data/vm-100-disk-0");
    ok("zfs set refquota=20480k tank/data/subvol-200-disk-0");

    // Snapshots keep the limit, and a rollback is followed by a mount.
    let subvol = "tank/data/subvol-200-disk-0";
    ok(&format!("zfs snapshot {subvol}@one"));
    ok(&format!(
        "zfs set pve-storage:refquota=20971520 {subvol}@one"
    ));
    write(format!("{at}/subvol-200-disk-0/file"), "x").expect("a file");
    ok(&format!("zfs rollback {subvol}@one"));
    let kept = values("pve-storage:refquota", &format!("{subvol}@one"));
    assert_eq!(kept, ["20971520"]);
    ok(&format!("zfs set refquota=20971520 {subvol}"));
    ok(&format!("zfs unmount {subvol}"));
    refused(
        &server,
        &format!("zfs unmount {subvol}"),
        "not currently mounted",
    );
    assert_eq!(values("mounted", subvol), ["no"]);
    ok(&format!("zfs mount {subvol}"));
    assert_eq!(values("mounted", subvol), ["yes"]);
    let names = read_dir(format!("{at}/subvol-200-disk-0")).expect("a directory");
    assert_eq!(names.count(), 0);
    let disk = "tank/data/vm-100-disk-0";
    for name in ["one", "two", "three"] {
        ok(&format!("zfs snapshot {disk}@{name}"));
    }
    let sorted = format!("zfs list -H -r -t snapshot -o name -s creation {disk}");
    let sorted = lines(&server, &sorted);
    assert_eq!(
        sorted,
        ["one", "two", "three"].map(|name| format!("{disk}@{name}"))
    );
    let asked = format!("zfs list -Hp -r -t snapshot -o name,guid,creation {disk}");
    for line in lines(&server, &asked) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert!(fields.len() == 3 && fields[2].parse::<u64>().is_ok());
    }
    server.fails(&format!("zfs rollback {disk}@one"));
    ok(&format!("zfs destroy {disk}@three"));

    // A template, and what is linked to it.
    ok("zfs create -V 1024k tank/data/vm-101-disk-0");
    ok("zfs rename tank/data/vm-101-disk-0 tank/data/base-101-disk-0");
    ok("zfs snapshot tank/data/base-101-disk-0@__base__");
    ok("zfs clone tank/data/base-101-disk-0@__base__ tank/data/vm-102-disk-0");
    ok("zfs rename tank/data/subvol-200-disk-0 tank/data/basevol-200-disk-0");
    ok("zfs snapshot tank/data/basevol-200-disk-0@__base__");
    // Options come last.
    ok(
        "zfs clone tank/data/basevol-200-disk-0@__base__ tank/data/subvol-201-disk-0 \
         -o refquota=20971520",
    );
    let found = lines(&server, list);
    for line in [
        "tank/data/vm-102-disk-0\t1048576\ttank/data/base-101-disk-0@__base__\tvolume\t-",
        "tank/data/subvol-201-disk-0\t-\ttank/data/basevol-200-disk-0@__base__\tfilesystem\t\
         20971520",
    ] {
        assert!(found.iter().any(|found| found == line), "{line}: {found:?}");
    }

    // Replication to another node, and what is new since.
    ok(&format!("zfs get -H name {disk}"));
    server.fails("zfs get -H name tank/data/vm-300-disk-0");
    pipe(
        &server,
        &format!("zfs send -RpvU -- {disk}@one 2>/dev/null"),
        "zfs recv -F -x encryption -- tank/data/vm-300-disk-0",
    );
    pipe(
        &server,
        &format!("zfs send -RpvU -I one -- {disk}@two 2>/dev/null"),
        "zfs recv -F -x encryption -- tank/data/vm-300-disk-0",
    );
    let taken = lines(
        &server,
        "zfs list -H -t snapshot -o name tank/data/vm-300-disk-0",
    );
    assert_eq!(
        taken,
        ["tank/data/vm-300-disk-0@one", "tank/data/vm-300-disk-0@two"]
    );
    ok("zfs rollback -r -- tank/data/vm-300-disk-0@one");
    ok("zfs destroy -r -- tank/data/vm-300-disk-0");

    // What is encrypted arrives in the clear, with its properties.
    let key = server.text("key");
    write(&key, [7; 32]).expect("a key");
    ok(&format!(
        "zfs create -o encryption=on -o keyformat=raw -o keylocation=file://{key} \
         -o refquota=20971520 tank/subvol-400-disk-0"
    ));
    ok("zfs snapshot tank/subvol-400-disk-0@one");
    server.fails("zfs send -Rpv -- tank/subvol-400-disk-0@one");
    pipe(
        &server,
        "zfs send -RpvU -- tank/subvol-400-disk-0@one 2>/dev/null",
        "zfs recv -F -x encryption -- tank/data/subvol-400-disk-0",
    );
    assert_eq!(
        values(
            "encryption,keylocation,refquota",
            "tank/data/subvol-400-disk-0"
        ),
        ["off", "none", "20971520"]
    );

    // What is destroyed twice is gone, and the pool is found as it looks for it.
    ok("zfs destroy -r tank/data/vm-102-disk-0");
    refused(
        &server,
        "zfs destroy -r tank/data/vm-102-disk-0",
        "dataset does not exist",
    );
    assert_eq!(ok("zpool list -o name -H tank"), "tank\n");
    ok("zpool export tank");
    ok(&format!(
        "zpool import -d {} -o cachefile=none tank",
        server.path("disks").display()
    ));
    ok("zfs mount -a");
    assert_eq!(values("mounted", "tank/data/subvol-201-disk-0"), ["yes"]);
    leave(server);
}
