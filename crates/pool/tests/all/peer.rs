//! Goal: the real OpenZFS imports what we wrote, scrubs it clean, writes to it, and we read it
//! back. Method: the machine in shared/peer; images here are disks there, so the vdevs are made as
//! disks (OpenZFS opens vdevs of the type `file` as files only).

use crate::common::*;
use dataset::ListOptions;
use device::World;
use pool::{LeafSpec, Pool, VdevLayout, VdevSpec};

const SCRIPT: &str = r"
set -e
zpool import -d /dev/disk/peer -N tank
zpool scrub -w tank
zpool status tank
zfs create -o mountpoint=/mnt/theirs tank/theirs
zfs mount tank/theirs 2>/dev/null || true
for i in 1 2 3 4 5; do dd if=/dev/urandom of=/mnt/theirs/f$i bs=64k count=20 2>/dev/null; done
rm /mnt/theirs/f2
zfs snapshot tank/theirs@s
sync
zpool export tank
echo PEER-DONE
";

fn disks(images: &Images, count: usize, mib: u64) -> Vec<LeafSpec> {
    let files = images.make(count, mib);
    files
        .into_iter()
        .map(|leaf| LeafSpec {
            is_file: false,
            ..leaf
        })
        .collect()
}

async fn there_and_back(vdevs: Vec<VdevSpec>, images: &Images, peer: &Peer) {
    let world = World::system(2);
    let pool = Pool::create(&world, spec("tank", vdevs))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 20, 4).await;
    pool.sync().await.expect("sync");
    free_objects(&dataset, &objects[..5]).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");

    let text = run_in_peer(peer, images.path(), SCRIPT);
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(text.contains("scrub repaired 0B"), "{text}");
    assert!(text.contains("errors: No known data errors"), "{text}");

    let pool = import(&world, images.path()).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects[5..], 4).await;
    let options = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let names: Vec<String> = pool
        .dsl()
        .directories()
        .list("tank", &options)
        .await
        .expect("list")
        .into_iter()
        .map(|info| info.name)
        .collect();
    assert!(names.contains(&"tank/theirs@s".to_owned()), "{names:?}");
    write_objects(&dataset, 5, 4).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_uses_a_mirror_of_ours() {
    let Some(peer) = Peer::find() else { return };
    let images = Images::new();
    let leaves = disks(&images, 2, 128);
    there_and_back(vec![normal(VdevLayout::Mirror(leaves))], &images, &peer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_uses_a_raidz2_of_ours() {
    let Some(peer) = Peer::find() else { return };
    let images = Images::new();
    let leaves = disks(&images, 5, 96);
    there_and_back(
        vec![normal(VdevLayout::Raidz { parity: 2, leaves })],
        &images,
        &peer,
    )
    .await;
}
