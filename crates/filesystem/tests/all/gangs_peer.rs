//! Goal: OpenZFS 2.4 takes pools back of whose gang blocks with long headers we freed some, nested
//! ones among them.
//! Method: golden pools go from us to the peer: zdb finds every block and no leak, a scrub repairs
//! nothing, and what it writes and frees then is right for us.

use std::path::Path;

use crate::common::tree::{hash, walk};
use crate::common::*;
use bytes::Bytes;
use device::World;
use filesystem::FileKind;

/// Two pools in one start of the machine, with their numbers of disks.
const POOLS: [(&str, u32); 2] = [("gang_wide", 1), ("gang_wide_raidz", 3)];

const SCRIPT: &str = r"
set -e
echo 20000 > /sys/module/zfs/parameters/metaslab_force_ganging
echo 100 > /sys/module/zfs/parameters/metaslab_force_ganging_pct
for p in gang_wide gang_wide_raidz; do
  zdb -e -p /dev/disk/peer -bcc $p
  zpool import -d /dev/disk/peer $p
  zpool scrub -w $p
  zpool status $p
  seq 1 100000 > /$p/big/new
  cp /$p/big/new /tmp/$p.new
  rm /$p/big/r
  zpool sync $p
  echo HASH $p $(sha256sum < /$p/big/new | cut -d' ' -f1)
  zpool export $p
  zdb -e -p /dev/disk/peer -bcc $p
done
echo PEER-DONE
";

async fn change(world: &World, dir: &Path, name: &str) {
    let pool = import(world, dir, false).await;
    let filesystem = open(world, &pool, &format!("{name}/big")).await;
    let root = filesystem.root();
    // A part of what is nested, and a whole file of the root filesystem.
    let file = filesystem.lookup(root, b"t").await.expect("a file").ino;
    let data = Bytes::from(vec![0x5a; 5000]);
    let written = filesystem.write(file, 140_000, data, false, ROOT).await;
    written.expect("written");
    filesystem.close().await.expect("close");
    let filesystem = open(world, &pool, name).await;
    let top = filesystem.lookup(filesystem.root(), b"a").await;
    let top = top.expect("a directory").ino;
    let file = filesystem.lookup(top, b"t1m").await.expect("a file").ino;
    filesystem.unlink(top, b"t1m").await.expect("unlinked");
    filesystem.unlinked().free(file).await;
    filesystem.close().await.expect("close");
    pool.sync().await.expect("sync");
    pool.export(false).await.expect("export");
}

async fn hash_of(world: &World, dir: &Path, name: &str, file: &str) -> String {
    let pool = import(world, dir, false).await;
    let filesystem = open(world, &pool, &format!("{name}/big")).await;
    let mut found = String::new();
    for (path, at) in walk(&filesystem).await {
        if at.kind == FileKind::Regular {
            let hash = hash(&filesystem, at.ino, at.size_bytes).await;
            if path == format!("/{file}").as_bytes() {
                found = hash;
            }
        }
    }
    filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_2_4_takes_pools_with_long_gang_headers_back() {
    let Some(peer) = Peer::find_2_4() else { return };
    let world = World::system(2);
    let image = Image::empty();
    let mut disks = Vec::new();
    for (name, count) in POOLS {
        let dir = unpack(&oracles::golden_of_2_4(), name, image.path());
        change(&world, &dir, name).await;
        let path = |disk| dir.join(format!("d{disk}.img")).display().to_string();
        disks.extend((0..count).map(|disk| format!("{},{name}{disk}", path(disk))));
    }
    let text = peer.run(&disks, SCRIPT).replace('\r', "");
    assert!(text.contains("PEER-DONE"), "{text}");
    assert_eq!(text.matches("No leaks").count(), 4, "{text}");
    assert_eq!(text.matches("scrub repaired 0B").count(), 2, "{text}");
    for (name, _) in POOLS {
        let hash = hash_of(&world, &image.path().join(name), name, "new").await;
        assert!(!hash.is_empty());
        assert!(text.contains(&format!("HASH {name} {hash}")), "{text}");
    }
}
