//! Goal: blocks that several files share are freed with the last of them, whoever cloned them.
//! Method: a golden pool with files cloned by OpenZFS; files are deleted and overwritten in turns,
//! after each of which zdb judges the pool and what is left is compared by hash.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::common::tree::{hash, walk};
use crate::common::*;
use bytes::Bytes;
use device::World;
use filesystem::{FileKind, Filesystem};
use pool::{FeatureState, Pool};

/// Datasets of the golden pool.
const DATASETS: [&str; 4] = [
    "cloned_blocks",
    "cloned_blocks/a",
    "cloned_blocks/b",
    "cloned_blocks/c",
];

fn number(pool: &Pool, property: &str) -> u64 {
    let value = pool.properties().get(property).expect("a property").value;
    value.parse().expect("a number")
}

fn feature(pool: &Pool) -> FeatureState {
    let features = pool.properties().features();
    let found = features.iter().find(|found| found.name == "block_cloning");
    found.expect("the feature").state
}

/// Hashes of all regular files, by dataset and path.
type Hashes = BTreeMap<(String, Vec<u8>), String>;

async fn hashes(world: &World, pool: &Pool, datasets: &[&str]) -> Hashes {
    let mut out = Hashes::new();
    for name in datasets {
        let filesystem = open(world, pool, name).await;
        for (path, at) in walk(&filesystem).await {
            if at.kind == FileKind::Regular {
                let hash = hash(&filesystem, at.ino, at.size_bytes).await;
                out.insert(((*name).to_owned(), path), hash);
            }
        }
        filesystem.close().await.expect("close");
    }
    out
}

/// The directory and last name of a path.
async fn parent<'p>(filesystem: &Filesystem, path: &'p [u8]) -> (u64, &'p [u8]) {
    let mut at = filesystem.root();
    let mut names = path[1..].split(|byte| *byte == b'/').peekable();
    loop {
        let name = names.next().expect("a name");
        if names.peek().is_none() {
            return (at, name);
        }
        at = filesystem.lookup(at, name).await.expect("a directory").ino;
    }
}

async fn again(world: &World, pool: Arc<Pool>, dir: &Path, name: &str) -> Arc<Pool> {
    pool.export(false).await.expect("export");
    drop(pool);
    zdb_is_clean(dir, name);
    import(world, dir, false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clones_of_openzfs_are_freed_with_the_last_of_them() {
    let Some(golden) = golden() else { return };
    let image = Image::empty();
    let dir = unpack(&golden, "cloned_blocks", image.path());
    let world = World::system(2);
    let mut pool = import(&world, &dir, false).await;
    let (used, saved) = (number(&pool, "bcloneused"), number(&pool, "bclonesaved"));
    assert!(used > 0 && saved > used);
    assert_eq!(feature(&pool), FeatureState::Active);
    let mut left = hashes(&world, &pool, &DATASETS).await;
    let count = left.len();
    assert!(count > 20, "{count} files");

    let mut saved_before = saved;
    for turn in 0..3usize {
        // A third is deleted, of the next one a part is overwritten.
        let paths: Vec<_> = left.keys().cloned().collect();
        for (index, (dataset, path)) in paths.into_iter().enumerate() {
            let filesystem = open(&world, &pool, &dataset).await;
            let (directory, name) = parent(&filesystem, &path).await;
            if index % 3 == turn % 3 {
                let at = filesystem.lookup(directory, name).await.expect("lookup");
                filesystem.unlink(directory, name).await.expect("unlink");
                // Else it is freed some time, in the background.
                filesystem.unlinked().free(at.ino).await;
                left.remove(&(dataset, path));
            } else if index % 3 == (turn + 1) % 3 {
                let at = filesystem.lookup(directory, name).await.expect("lookup");
                // Another name would show the same change.
                if at.nlink > 1 {
                    filesystem.close().await.expect("close");
                    continue;
                }
                let data = Bytes::from(vec![turn as u8 + 1; 3000]);
                let offset = at.size_bytes / 2;
                let done = filesystem.write(at.ino, offset, data, false, ROOT).await;
                done.expect("write");
                let at = filesystem.attributes(at.ino).await.expect("attributes");
                let hash = hash(&filesystem, at.ino, at.size_bytes).await;
                left.insert((dataset, path), hash);
            }
            filesystem.close().await.expect("close");
        }
        pool = again(&world, pool, &dir, "cloned_blocks").await;
        assert_eq!(hashes(&world, &pool, &DATASETS).await, left, "turn {turn}");
        let saved = number(&pool, "bclonesaved");
        assert!(saved < saved_before, "turn {turn}: {saved} bytes are saved");
        saved_before = saved;
    }

    // A dataset at once, in the background, then the rest.
    for dataset in ["cloned_blocks/b", "cloned_blocks/c", "cloned_blocks/a"] {
        pool.dsl()
            .destroyer()
            .destroy(dataset)
            .await
            .expect("destroy");
        left.retain(|(name, _), _| name != dataset);
    }
    for _ in 0..4 {
        pool.sync().await.expect("sync");
    }
    assert_eq!(hashes(&world, &pool, &DATASETS[..1]).await, left);
    let pool = again(&world, pool, &dir, "cloned_blocks").await;
    assert_eq!(number(&pool, "bcloneused"), 0);
    assert_eq!(number(&pool, "bclonesaved"), 0);
    assert_eq!(feature(&pool), FeatureState::Enabled);
    pool.export(false).await.expect("export");
}
