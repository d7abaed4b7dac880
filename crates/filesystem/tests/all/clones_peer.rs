//! Goal: the real OpenZFS takes a pool back whose cloned blocks we freed in part, frees and clones
//! more, and so do we. Method: a golden pool goes from us to the machine in shared/peer and back;
//! hashes on both sides, scrub, zdb.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::tree::{hash, walk};
use crate::common::*;
use bytes::Bytes;
use device::World;
use filesystem::FileKind;
use pool::{FeatureState, Pool};

const DATASETS: [&str; 3] = ["a", "b", "c"];
const POOL: &str = "cloned_blocks";

const SCRIPT: &str = r"
set -e
echo 1 > /sys/module/zfs/parameters/zfs_bclone_enabled
zpool import -d /dev/disk/peer cloned_blocks
zpool scrub -w cloned_blocks
zpool status cloned_blocks
zpool get -Hp -o value bcloneused,bclonesaved cloned_blocks | sed 's/^/BEFORE /'
hashes() { cd /cloned_blocks; find a b c -type f | while read f; do echo $1 $(sha256sum < $f | cut -d' ' -f1) $f; done; cd /; }
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
echo PEER-DONE
";

fn run(peer: &Peer, dir: &Path) -> String {
    let disks = ["d0", "d1"].map(|name| {
        let image = dir.join(format!("{name}.img"));
        format!("{},{name}", image.display())
    });
    peer.run(&disks, &[], SCRIPT).replace('\r', "")
}

async fn hashes(world: &World, pool: &Pool) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for name in DATASETS {
        let filesystem = open(world, pool, &format!("{POOL}/{name}")).await;
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
        .map(|name| pool.prop(name).expect("a property").value)
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
    let filesystem = open(world, pool, &format!("{POOL}/{dataset}")).await;
    let root = filesystem.root();
    let at = filesystem.lookup(root, name).await.expect("lookup");
    if delete {
        filesystem.unlink(root, name).await.expect("unlink");
        // Else it is freed some time, in the background.
        filesystem.free_unlinked(at.ino).await;
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
    let image = Image::empty();
    let dir = unpack(&golden, POOL, image.path());
    let world = World::system(2);
    let pool = import(&world, &dir, false).await;
    change(&world, &pool, "a", b"r3", true).await;
    change(&world, &pool, "a", b"t_again", false).await;
    change(&world, &pool, "c", b"t", true).await;
    pool.sync().await.expect("sync");
    let ours = hashes(&world, &pool).await;
    pool.export(false).await.expect("export");
    drop(pool);
    zdb_is_clean(&dir, POOL);
    let pool = import(&world, &dir, true).await;
    let before = numbers(&pool);
    pool.export(false).await.expect("close");
    drop(pool);

    let text = run(&peer, &dir);
    assert!(text.contains("PEER-DONE"), "{text}");
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
    zdb_is_clean(&dir, POOL);

    // The last ones.
    let pool = import(&world, &dir, false).await;
    for dataset in DATASETS {
        let name = format!("{POOL}/{dataset}");
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
    zdb_is_clean(&dir, POOL);
    let pool = import(&world, &dir, true).await;
    assert_eq!(numbers(&pool), ["0", "0"]);
    let features = pool.features();
    let cloning = features.iter().find(|found| found.name == "block_cloning");
    assert_eq!(cloning.expect("it").state, FeatureState::Enabled);
    pool.export(false).await.expect("close");
}
