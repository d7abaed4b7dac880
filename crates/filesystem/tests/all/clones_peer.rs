//! Goal: the real OpenZFS takes a pool back whose cloned blocks we freed in part, frees and clones
//! more, and so do we: 2.3 with tables of its kind, 2.4 with numbers in them
//! (`block_cloning_endian`).
//! Method: a golden pool goes from us to the peer and back; hashes on both sides, scrub, zdb.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::tree::{hash, walk};
use crate::common::*;
use bytes::Bytes;
use device::World;
use filesystem::FileKind;
use pool::{FeatureState, Pool};

const DATASETS: [&str; 3] = ["a", "b", "c"];

const SCRIPT: &str = r"
set -e
echo 1 > /sys/module/zfs/parameters/zfs_bclone_enabled
[ $ZDB = 0 ] || zdb -e -p /dev/disk/peer -bcc cloned_blocks
zpool import -d /dev/disk/peer cloned_blocks
zpool scrub -w cloned_blocks
zpool status cloned_blocks
zpool get -Hp -o value bcloneused,bclonesaved cloned_blocks | sed 's/^/BEFORE /'
hash() { sha256sum < $1 | cut -d' ' -f1; }
hashes() {
  cd /cloned_blocks; find a b c -type f | while read f; do echo $1 $(hash $f) $f; done; cd /
}
hashes HASH1
rm /cloned_blocks/a/r1 || true
cp --reflink=always /cloned_blocks/a/t /cloned_blocks/a/more
cp --sparse=never /cloned_blocks/a/t /cloned_blocks/b/more
zpool sync cloned_blocks
rm /cloned_blocks/a/t
printf changed | dd of=/cloned_blocks/b/more bs=1 seek=200000 conv=notrunc 2>/dev/null
zpool sync cloned_blocks
sleep 2
zpool sync cloned_blocks
hashes HASH2
zpool get -Hp -o value bcloneused,bclonesaved cloned_blocks | sed 's/^/AFTER /'
zpool export cloned_blocks
[ $ZDB = 0 ] || zdb -e -p /dev/disk/peer -bcc cloned_blocks
echo PEER-DONE
";
/// What zdb says of a pool without leaks.
const NO_LEAKS: &str = "No leaks (block sum matches space maps exactly)";

/// A pool that is taken to OpenZFS and back.
struct Case {
    pool: &'static str,
    golden: PathBuf,
    peer: Peer,
    /// Its snapshots at the end, and other datasets with cloned blocks.
    snapshots: &'static [&'static str],
    more: &'static [&'static str],
    /// The zdb of this machine knows too few features: the peer's looks.
    zdb_there: bool,
}

impl Case {
    fn zdb_is_clean(&self, dir: &Path) {
        if !self.zdb_there {
            zdb_is_clean(dir, self.pool);
        }
    }

    fn run(&self, dir: &Path, script: &str) -> String {
        let disks = ["d0", "d1"].map(|name| {
            let image = dir.join(format!("{name}.img"));
            format!("{},{name}", image.display())
        });
        let script = script.replace("cloned_blocks", self.pool);
        let script = format!("ZDB={}\n{script}", u8::from(self.zdb_there));
        self.peer.run(&disks, &script).replace('\r', "")
    }
}

async fn hashes(world: &World, pool: &Pool) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for name in DATASETS {
        let filesystem = open(world, pool, &format!("{}/{name}", pool.name())).await;
        for (path, at) in walk(&filesystem).await {
            if at.kind == FileKind::Regular {
                let hash = hash(&filesystem, at.ino, at.size_bytes).await;
                out.insert(format!("{name}{}", String::from_utf8_lossy(&path)), hash);
            }
        }
        filesystem.close().await.expect("close");
    }
    out
}

/// Lines `label hash path` of what the machine said.
fn told(text: &str, label: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.strip_prefix(label)?.trim().split_once(' '))
        .map(|(hash, path)| (path.to_owned(), hash.to_owned()))
        .collect()
}

fn numbers(pool: &Pool) -> Vec<String> {
    ["bcloneused", "bclonesaved"]
        .into_iter()
        .map(|name| pool.properties().get(name).expect("a property").value)
        .collect()
}

fn told_numbers(text: &str, label: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix(label))
        .map(|value| value.trim().to_owned())
        .collect()
}

/// Deletes a file of a dataset's root directory, or overwrites a part of it.
async fn change(world: &World, pool: &Pool, dataset: &str, name: &[u8], delete: bool) {
    let filesystem = open(world, pool, &format!("{}/{dataset}", pool.name())).await;
    let root = filesystem.root();
    let at = filesystem.lookup(root, name).await.expect("lookup");
    if delete {
        filesystem.unlink(root, name).await.expect("unlink");
        // Else it is freed some time, in the background.
        filesystem.unlinked().free(at.ino).await;
    } else {
        let data = Bytes::from(vec![0x5a; 5000]);
        let done = filesystem.write(at.ino, 140_000, data, false, ROOT).await;
        done.expect("write");
    }
    filesystem.close().await.expect("close");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_takes_cloned_blocks_back_and_gives_them_again() {
    let (Some(golden), Some(peer)) = (golden(), Peer::find()) else {
        return;
    };
    let case = Case {
        pool: "cloned_blocks",
        golden,
        peer,
        snapshots: &[],
        more: &[],
        zdb_there: false,
    };
    goes_and_comes_back(&case).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_2_4_takes_cloned_blocks_back_and_gives_them_again() {
    let Some(peer) = Peer::find_2_4() else { return };
    let case = Case {
        pool: "rewritten",
        golden: oracles::golden_of_2_4(),
        peer,
        snapshots: &["rewritten/w@before", "rewritten/w@after"],
        more: &["w"],
        zdb_there: true,
    };
    goes_and_comes_back(&case).await;
}

async fn goes_and_comes_back(case: &Case) {
    let image = Image::empty();
    let dir = unpack(&case.golden, case.pool, image.path());
    let world = World::system(2);
    let pool = import(&world, &dir, false).await;
    change(&world, &pool, "a", b"r3", true).await;
    change(&world, &pool, "a", b"t", false).await;
    change(&world, &pool, "c", b"t", true).await;
    pool.sync().await.expect("sync");
    let ours = hashes(&world, &pool).await;
    pool.export(false).await.expect("export");
    drop(pool);
    case.zdb_is_clean(&dir);
    let pool = import(&world, &dir, true).await;
    let before = numbers(&pool);
    pool.export(false).await.expect("close");
    drop(pool);

    let text = case.run(&dir, SCRIPT);
    assert!(text.contains("PEER-DONE"), "{text}");
    let clean = text.matches(NO_LEAKS).count();
    assert_eq!(clean, 2 * usize::from(case.zdb_there), "{text}");
    assert!(text.contains("scrub repaired 0B"), "{text}");
    assert!(text.contains("errors: No known data errors"), "{text}");
    assert_eq!(told(&text, "HASH1 "), ours);
    assert_eq!(told_numbers(&text, "BEFORE "), before, "{text}");

    let pool = import(&world, &dir, false).await;
    assert_eq!(numbers(&pool), told_numbers(&text, "AFTER "));
    assert_eq!(hashes(&world, &pool).await, told(&text, "HASH2 "));
    change(&world, &pool, "a", b"more", true).await;
    pool.sync().await.expect("sync");
    let mut left = told(&text, "HASH2 ");
    left.remove("a/more");
    assert_eq!(hashes(&world, &pool).await, left);
    pool.export(false).await.expect("export");
    drop(pool);
    case.zdb_is_clean(&dir);

    // The last ones.
    let pool = import(&world, &dir, false).await;
    let snapshots: Vec<String> = case.snapshots.iter().map(|&name| name.into()).collect();
    let destroyer = pool.dsl().destroyer();
    let destroyed = destroyer.destroy_snapshots(&snapshots, false).await;
    destroyed.expect("destroyed");
    for dataset in DATASETS.iter().chain(case.more) {
        let name = format!("{}/{dataset}", case.pool);
        pool.dsl()
            .destroyer()
            .destroy(&name)
            .await
            .expect("destroy");
    }
    for _ in 0..4 {
        pool.sync().await.expect("sync");
    }
    pool.export(false).await.expect("export");
    drop(pool);
    case.zdb_is_clean(&dir);
    let pool = import(&world, &dir, true).await;
    assert_eq!(numbers(&pool), ["0", "0"]);
    let features = pool.properties().features();
    for name in ["block_cloning", "block_cloning_endian"] {
        let cloning = features.iter().find(|found| found.name == name);
        assert_ne!(cloning.expect("it").state, FeatureState::Active, "{name}");
    }
    pool.export(false).await.expect("close");
    drop(pool);
    if case.zdb_there {
        let script = "set -e; zdb -e -p /dev/disk/peer -bcc cloned_blocks; echo PEER-DONE";
        let text = case.run(&dir, script);
        assert!(text.contains(NO_LEAKS), "{text}");
    }
}
