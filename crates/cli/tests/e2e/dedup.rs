//! Goal: what is deduplicated here is right for OpenZFS, and the other way round: files, tables,
//! counts of references. Method: pools with each kind of dedup table and an encrypted dataset; many
//! files with the same data go to the machine with the real OpenZFS, which scrubs, compares, adds
//! and removes, and come back to be compared and emptied; zdb after every turn. `MILLPOND_LONG=1`:
//! three rounds.

use std::path::Path;

use crate::golden::unpack_into;
use crate::harness::{
    Peer, Server, can_mount, is_long, need, run, text_of, zdb_finds_no_leaks, zdb_is_clean,
};
use crate::keys::with_input;

/// Writes and removes files of which many hold the same; `cp` must not clone.
const WORK: &str = r#"
work() { # directory, round
  cd "$1"; mkdir -p "r$2"
  head -c 350000 /dev/urandom >"r$2/base"
  yes "round $2 compresses" | head -c 200000 >"r$2/text" || true
  for i in 1 2 3 4; do
    cp --reflink=never "r$2/base" "r$2/base$i"; cp --reflink=never "r$2/text" "r$2/text$i"
  done
  head -c 150000 "r$2/base" >"r$2/part"
  head -c 100000 /dev/urandom | dd of="r$2/base2" bs=4k seek=7 conv=notrunc status=none
  for old in r*; do
    [ "$old" = "r$2" ] && continue
    rm -f "$old/base1" "$old/text3"; cp --reflink=never "$old/base" "$old/again$2"
    truncate -s 123456 "$old/base4"
  done
  sync -f .
}
sums() { (cd "$1"; find . -type f -print0 | sort -z | xargs -0 -r sha256sum); }
"#;

const POOLS: [&str; 3] = ["fast", "old", "encrypted"];
const DATASETS: [&str; 5] = ["fast", "fast/verified", "old", "old/copies", SECRET];
/// Of a golden pool.
const SECRET: &str = "encrypted/dedup";

struct Bed {
    server: Server,
    disks: Vec<String>,
    passphrase: String,
}

impl Bed {
    fn at(&self, dataset: &str) -> String {
        self.server.text(&format!("mnt/{dataset}"))
    }

    fn shell(&self, line: &str) -> String {
        run("bash", &["-euc", &format!("{WORK}\n{line}")])
    }

    fn work(&self, round: u32) {
        for dataset in DATASETS {
            self.shell(&format!("work {} {round}", self.at(dataset)));
        }
    }

    fn sums(&self) -> String {
        DATASETS
            .map(|dataset| {
                format!(
                    "{dataset}\n{}",
                    self.shell(&format!("sums {}", self.at(dataset)))
                )
            })
            .concat()
    }

    fn import(&mut self) {
        let from = self.server.attach_to_import(&self.disks);
        let root = self.server.text("mnt");
        for pool in POOLS {
            self.server
                .ok(&format!("zpool import -R {root} {from} {pool}"));
        }
        let words = format!("zfs load-key {SECRET}");
        let typed = format!("{}\n", self.passphrase);
        let output = with_input(&self.server, &words, typed.as_bytes());
        assert!(output.status.success(), "{}", text_of(&output));
        self.server.ok(&format!("zfs mount {SECRET}"));
    }

    fn export(&mut self) {
        for pool in POOLS {
            self.server.ok(&format!("zpool export {pool}"));
        }
        self.server.detach();
        for pool in POOLS {
            zdb_finds_no_leaks(&self.server.path("disks"), pool);
        }
    }

    fn property(&self, pool: &str, name: &str) -> String {
        let value = self
            .server
            .ok(&format!("zpool get -Hp -o value {name} {pool}"));
        value.trim().to_owned()
    }
}

/// Gives what OpenZFS sees, does and sees then.
fn visit(peer: &Peer, bed: &Bed, round: u32) -> (String, String) {
    let script = format!(
        r#"set -euo pipefail
{WORK}
for p in {pools}; do zpool import -d /dev/disk/peer -R /mnt $p 2>&1; done
echo '{key}' | zfs load-key {SECRET}; zfs mount {SECRET}
for p in {pools}; do
  zpool scrub -w $p; zpool status $p | grep -q 'errors: No known data errors'
  zpool status $p | grep -q 'with 0 errors'
done
all() {{ for d in {datasets}; do echo $d; sums /mnt/$d; done; }}
echo BEFORE; all
for d in {datasets}; do (work /mnt/$d {round}); done
for p in {pools}; do zpool sync $p; done
echo AFTER; all
echo END
for p in {pools}; do zpool export $p; done
"#,
        datasets = DATASETS.join(" "),
        pools = POOLS.join(" "),
        key = bed.passphrase,
    );
    let text = peer.run(&bed.disks, &script).replace('\r', "");
    let between = |from: &str, to: &str| {
        let rest = text.split_once(&format!("{from}\n")).expect("a part").1;
        rest.split_once(&format!("{to}\n"))
            .expect("its end")
            .0
            .to_owned()
    };
    (between("BEFORE", "AFTER"), between("AFTER", "END"))
}

#[test]
fn deduplicated_files_go_to_openzfs_and_back() {
    if !can_mount() || !need("loop devices", Path::new("/dev/loop-control").exists()) {
        return;
    }
    let Some(peer) = Peer::find() else { return };
    let server = Server::start();
    let mut disks = server.disks(3, 320 << 20);
    let Some((manifest, directory)) = unpack_into(&server.path("golden"), "encrypted") else {
        return;
    };
    let disk = server.path("disks").join("e0");
    std::fs::copy(directory.join("d0.img"), &disk).expect("a copy");
    disks.push(disk.to_string_lossy().into_owned());
    let keys = manifest["keys"].as_array().expect("keys");
    let key = keys.iter().find(|key| key["dataset"] == SECRET);
    let passphrase = key.expect("its key")["key"].as_str().expect("text");
    let mut bed = Bed {
        passphrase: passphrase.to_owned(),
        server,
        disks,
    };
    let devices = bed.server.attach(&bed.disks);
    let root = bed.server.text("mnt");
    bed.server.ok(&format!(
        "zpool create -R {root} -O dedup=on -O recordsize=32K fast mirror {} {}",
        devices[0], devices[1]
    ));
    bed.server.ok(&format!(
        "zpool create -R {root} -o feature@fast_dedup=disabled -O dedup=on -O recordsize=16K old \
         {}",
        devices[2]
    ));
    bed.server
        .ok("zfs create -o dedup=edonr,verify -o compression=off fast/verified");
    bed.server
        .ok("zfs create -o dedup=skein -o copies=2 old/copies");
    for pool in ["fast", "old"] {
        bed.server.ok(&format!("zpool export {pool}"));
    }
    bed.server.detach();
    bed.import();
    bed.work(0);
    for pool in ["fast", "old"] {
        bed.server.ok(&format!("zpool sync {pool}"));
        let ratio: f64 = bed.property(pool, "dedupratio").parse().expect("a number");
        assert!(ratio > 3.0, "{pool}: {ratio}");
        let size: u64 = bed
            .property(pool, "dedup_table_size")
            .parse()
            .expect("a number");
        assert!(size > 0);
        let listed = bed.server.ok(&format!("zpool list -H -o dedup {pool}"));
        assert_eq!(listed.trim(), format!("{ratio:.2}x"));
        let status = bed.server.ok(&format!("zpool status -D {pool}"));
        assert!(status.contains("dedup: DDT entries "), "{status}");
    }
    assert_eq!(bed.property("fast", "feature@fast_dedup"), "active");
    assert_eq!(bed.property("old", "feature@fast_dedup"), "disabled");
    // What is deduplicated takes no room.
    let (used, free) = (
        bed.property("fast", "allocated"),
        bed.property("fast", "free"),
    );
    assert!(
        used.parse::<u64>().expect("bytes") < 12 << 20,
        "{used} of {free}"
    );
    let mut sums = bed.sums();
    bed.export();
    let rounds = if is_long() { 3 } else { 1 };
    for round in 0..rounds {
        let (before, after) = visit(&peer, &bed, round * 2 + 1);
        assert_eq!(before, sums, "what OpenZFS reads");
        for pool in POOLS {
            zdb_finds_no_leaks(&bed.server.path("disks"), pool);
        }
        bed.import();
        assert_eq!(bed.sums(), after, "what OpenZFS wrote");
        bed.work(round * 2 + 2);
        sums = bed.sums();
        bed.export();
    }
    // Nothing is left of the tables when nothing is left of the files.
    bed.import();
    for dataset in DATASETS {
        bed.shell(&format!(
            "find {} -mindepth 1 -xdev -type f -delete",
            bed.at(dataset)
        ));
    }
    for dataset in DATASETS
        .iter()
        .filter(|name| name.contains('/') && **name != SECRET)
    {
        bed.server.ok(&format!("zfs destroy {dataset}"));
    }
    for pool in ["fast", "old"] {
        bed.server.ok(&format!("zpool sync {pool}"));
        bed.server.ok(&format!("zpool wait -t free {pool}"));
        bed.server.ok(&format!("zpool sync {pool}"));
        assert_eq!(bed.property(pool, "dedupratio"), "1.00");
    }
    assert_eq!(bed.property("fast", "feature@fast_dedup"), "enabled");
    bed.export();
    for pool in POOLS {
        zdb_is_clean(&bed.server.path("disks"), pool);
    }
}

/// Goal: `zpool prefetch` has tables in memory after an import. Method: a table of thousands of
/// entries, of the kind that is written with each transaction group.
#[test]
fn tables_are_in_memory_when_they_were_prefetched() {
    if !can_mount() {
        return;
    }
    let server = Server::start();
    let disks = server.disks(1, 1 << 30);
    let mount = server.text("mnt");
    server.ok(&format!(
        "zpool create -o feature@fast_dedup=disabled -O dedup=on -O recordsize=4K -m {mount} \
         tank {}",
        disks[0]
    ));
    let script = format!("head -c 20M /dev/urandom >{mount}/f; cp {mount}/f {mount}/g");
    run("bash", &["-euc", &script]);
    server.ok("zpool sync tank");
    server.ok("zpool export tank");
    server.ok(&format!("zpool import -d {} tank", server.text("disks")));
    let in_memory = |kind: &str| {
        let told = server.ok("cache tank --json");
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let kinds = told["pools"][0]["kinds"].as_array().expect("kinds");
        let found = kinds
            .iter()
            .find(|one| one["kind"] == kind)
            .expect("the kind");
        found["size_bytes"].as_u64().expect("bytes")
    };
    let before = in_memory("dedup-table");
    server.ok("zpool prefetch -t ddt tank");
    let after = in_memory("dedup-table");
    // 5,120 entries take more than 100 bytes each.
    assert!(after >= before + 500_000, "{before} before, {after} after");
    server.ok("zpool prefetch -t brt tank");
    server.ok("zpool prefetch tank");
    assert!(
        server
            .fails("zpool prefetch -t other tank")
            .contains("ddt or brt")
    );
    assert!(server.fails("zpool prefetch none").contains("none"));
    for words in ["-p 100 tank", "-d 1 tank"] {
        let refused = server.fails(&format!("zpool ddtprune {words}"));
        assert!(refused.contains("OpenZFS"), "{refused}");
    }
    let status = server.ok("zpool status -D tank");
    assert!(status.contains("dedup: DDT entries 5120,"), "{status}");
    for words in ["tank", "-d 1 -p 1 tank", "-p 101 tank", "-d 0 tank", "-p 1"] {
        server.fails(&format!("zpool ddtprune {words}"));
    }
    assert!(server.fails("zpool ddtprune -p 1 none").contains("none"));
    server.ok("zpool destroy tank");
}
