//! Goal: the real OpenZFS goes on with a RAID-Z expansion that we began and that was killed, and we
//! go on with one that it began. Method: images are copied while the pool is open; one trip to the
//! machine in shared/peer ends our expansion and begins another one, a second one looks at what we
//! made of that.

use std::path::Path;
use std::time::Duration;

use crate::common::*;
use device::World;
use pool::{AttachSpec, LeafSpec, Pool, ScanFunction, ScanState, VdevLayout};

const SCRIPT: &str = r"
set -e
most=/sys/module/zfs/parameters/raidz_expand_max_reflow_bytes
zpool import -f -d /dev/disk/peer -N tank
zpool status tank | sed 's/^/BEFORE /'
zpool wait -t raidz_expand tank
zpool wait -t scrub tank
zpool status tank | sed 's/^/AFTER /'
zpool get -H -o value feature@raidz_expansion tank | sed 's/^/AFTER feature /'
echo 20000000 > $most
zpool attach -f tank raidz1-0 /dev/disk/peer/d4
sleep 4
zpool status tank | sed 's/^/LEFT /'
zpool export tank
echo 0 > $most
echo PEER-DONE
";

const LAST: &str = r"
set -e
zpool import -d /dev/disk/peer -N tank
zpool scrub -w tank
zpool status tank | sed 's/^/END /'
zpool history -i tank | grep 'raidz vdev expansion' | sed 's/^/HISTORY /'
zpool export tank
echo PEER-DONE
";

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("images") {
        let path = entry.expect("an image").path();
        let name = path.file_name().expect("a name");
        std::fs::copy(&path, to.join(name)).expect("copied");
    }
}

async fn wait_until_whole(pool: &Pool) {
    while pool.scans().expanded_bytes().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pool.scans().wait_for_scrub(true).await;
    let scan = pool.status().scan.expect("a scan");
    assert_eq!(
        (scan.function, scan.state),
        (ScanFunction::Scrub, ScanState::Finished)
    );
    assert_eq!((scan.errors, scan.repaired_bytes), (0, 0), "{scan:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expansions_go_on_in_openzfs_and_back() {
    let Some(peer) = Peer::find() else { return };
    let images = Images::new();
    let world = World::system(2);
    let mut leaves: Vec<LeafSpec> = images
        .make(5, 256)
        .into_iter()
        .map(|leaf| LeafSpec {
            is_file: false,
            ..leaf
        })
        .collect();
    leaves.pop();
    let new = leaves.pop().expect("four");
    let layout = VdevLayout::Raidz { parity: 1, leaves };
    let pool = Pool::create(&world, spec("tank", vec![normal(layout)]))
        .await
        .expect("create");
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let objects = write_objects(&dataset, 120, 8).await;
    drop(dataset);
    pool.sync().await.expect("sync");
    let attach = AttachSpec {
        device: new,
        ashift: None,
        force: false,
        replace: false,
        sequential: false,
        untouched: false,
    };
    pool.attach("raidz1-0", &attach).await.expect("attach");
    while pool
        .scans()
        .expanded_bytes()
        .is_some_and(|(moved, _)| moved == 0)
    {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    pool.scans().hold(true);
    pool.sync_config().await.expect("sync");
    assert!(pool.scans().expanded_bytes().is_some(), "it is all moved");
    // As a crash leaves it.
    let killed = Images::new();
    copy(images.path(), killed.path());
    zdb_is_clean(killed.path(), "tank");
    pool.export(false).await.expect("export");
    drop(pool);

    let text = run_in_peer(&peer, killed.path(), SCRIPT);
    assert!(text.contains("PEER-DONE"), "{text}");
    let line = |text: &str, mark: &str, word: &str| {
        text.lines()
            .any(|line| line.starts_with(mark) && line.contains(word))
    };
    let in_progress = "expansion of raidz1-0 in progress since";
    assert!(line(&text, "BEFORE", in_progress), "{text}");
    assert!(line(&text, "AFTER", "expanded raidz1-0 copied"), "{text}");
    assert!(line(&text, "AFTER", "scrub repaired 0B"), "{text}");
    assert!(line(&text, "AFTER", "No known data errors"), "{text}");
    assert!(line(&text, "AFTER feature", "active"), "{text}");
    assert!(line(&text, "LEFT", in_progress), "{text}");

    let pool = import(&world, killed.path()).await;
    assert!(pool.scans().expanded_bytes().is_some(), "it is not over");
    wait_until_whole(&pool).await;
    let status = pool.status().expansion.expect("there was one");
    assert!(status.end_s.is_some(), "{status:?}");
    assert_eq!(pool.status().root.children[0].children.len(), 5);
    pool.pipeline().cache().clear();
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    drop(pool);
    zdb_is_clean(killed.path(), "tank");
    let text = run_in_peer(&peer, killed.path(), LAST);
    assert!(text.contains("PEER-DONE"), "{text}");
    assert!(line(&text, "END", "scrub repaired 0B"), "{text}");
    assert!(line(&text, "END", "No known data errors"), "{text}");
    assert!(line(&text, "HISTORY", "completed"), "{text}");

    // The other one, which nobody killed, ends here.
    let pool = import(&world, images.path()).await;
    wait_until_whole(&pool).await;
    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    check_objects(&dataset, &objects, 8).await;
    drop(dataset);
    pool.export(false).await.expect("export");
    zdb_is_clean(images.path(), "tank");
}
