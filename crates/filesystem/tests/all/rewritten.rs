//! Goal: what 2.4 rewrote in place of what it was (`physical_rewrite`) is a block like any other.
//! Method: a golden pool of 2.4.

use crate::common::*;
use device::World;
use filesystem::{FsError, QuotaKind};

const POOL: &str = "rewritten";

/// A clone is as old as the clone, not as the rewriting: else its space would be told to belong to
/// a snapshot that never had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_of_a_rewritten_block_is_born_when_it_is_made() {
    let image = Image::empty();
    let dir = unpack(&oracles::golden_of_2_4(), POOL, image.path());
    let world = World::system(2);
    let pool = import(&world, &dir, false).await;
    let name = format!("{POOL}/w");
    let filesystem = open(&world, &pool, &name).await;
    let from = filesystem.lookup(filesystem.root(), b"physical").await;
    let from = from.expect("a directory").ino;
    let from = filesystem.lookup(from, b"t300001").await.expect("a file");
    let root = filesystem.root();
    let to = filesystem.create(root, b"clone", 0o644, ROOT).await;
    let to = to.expect("created").ino;
    let length = from.size_bytes;
    let copied = filesystem.copy_range(from.ino, 0, to, 0, length, ROOT);
    assert_eq!(copied.await.expect("cloned"), length);
    pool.sync().await.expect("sync");
    filesystem.close().await.expect("close");
    let dataset = pool.dsl().open_dataset(&name).await.expect("a dataset");
    let set = dataset.objset();
    let pointers = async |ino: u64| {
        let object = set.hold(ino.into()).await.expect("an object");
        let found = object.shareable_blocks(0, 3, format::Txg::new(u64::MAX));
        found.await.expect("read").expect("on disk")
    };
    let (old, new) = (pointers(from.ino).await, pointers(to).await);
    assert_eq!(old.len(), new.len());
    for (old, new) in old.iter().zip(&new) {
        assert!(old.is_rewritten() && old.birth() < new.birth());
        assert_eq!(old.dva(0), new.dva(0));
        assert!(!new.is_rewritten());
        assert_eq!(new.physical_birth(), old.physical_birth());
    }
    drop(dataset);
    pool.export(false).await.expect("export");
}

/// Who has no quota has the default one, which a remount finds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_quotas_are_for_those_without_one() {
    let image = Image::empty();
    let dir = unpack(&oracles::golden_of_2_4(), POOL, image.path());
    let world = World::system(2);
    let pool = import(&world, &dir, false).await;
    let name = format!("{POOL}/q");
    let filesystem = open(&world, &pool, &name).await;
    let root = filesystem.root();
    let kind = QuotaKind::User;
    assert_eq!(filesystem.quotas().default(kind, false), 5 << 20);
    // Alice has three objects of a hundred that are everybody's.
    filesystem
        .create(root, b"more", 0o644, ALICE)
        .await
        .expect("room");
    let set = filesystem.quotas().set_default(kind, true, 3);
    set.await.expect("set");
    let refused = filesystem.create(root, b"other", 0o644, ALICE).await;
    assert!(
        matches!(refused, Err(FsError::QuotaExceeded)),
        "{refused:?}"
    );
    // Her own goes first.
    filesystem
        .quotas()
        .set(kind, 1000, true, 50)
        .await
        .expect("set");
    filesystem
        .create(root, b"own", 0o644, ALICE)
        .await
        .expect("room");
    filesystem
        .quotas()
        .set(kind, 1000, true, 0)
        .await
        .expect("set");
    filesystem.close().await.expect("close");

    let filesystem = open(&world, &pool, &name).await;
    let refused = filesystem.create(root, b"other", 0o644, ALICE).await;
    assert!(
        matches!(refused, Err(FsError::QuotaExceeded)),
        "{refused:?}"
    );
    let set = filesystem.quotas().set_default(kind, true, 0);
    set.await.expect("removed");
    filesystem
        .create(root, b"other", 0o644, ALICE)
        .await
        .expect("room");
    filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
}
