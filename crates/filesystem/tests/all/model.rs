//! Goal: every operation does what POSIX says, alone and after any other, and all of it is still
//! there after the pool was exported and imported; and zdb finds the pool sound.
//! Method: random operations on a filesystem and on a simple model in memory; results and errors
//! must be the same, and from time to time the whole trees, also after opening again.

use crate::common::model::Run;
use crate::common::*;
use device::World;

async fn run(seed: u64, steps: usize, properties: &[(&str, &str)], max_size: u64) {
    let image = Image::new(512);
    let world = World::system(2);
    let mut pool = create(&world, &image, properties).await;
    let filesystem = open(&world, &pool, "tank").await;
    let mut run = Run::new(seed, filesystem, max_size).await;
    for step in 1..=steps {
        run.step().await;
        if step % 23 == 0 {
            pool.sync().await.expect("sync");
        }
        if step % 250 == 0 {
            run.compare().await;
        }
        if step % 500 == 0 {
            run.filesystem.close().await.expect("close");
            pool.export(false).await.expect("export");
            zdb_is_clean(image.path(), "tank");
            pool = import(&world, image.path(), false).await;
            run.filesystem = open(&world, &pool, "tank").await;
            run.compare().await;
        }
    }
    run.filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

fn seed(default: u64) -> u64 {
    std::env::var("MILLPOND_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_by_default() {
    run(seed(11), 1000, &[], 600_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_blocks_and_attributes_in_directories() {
    run(
        seed(12),
        1000,
        &[("recordsize", "8K"), ("xattr", "dir")],
        300_000,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn big_dnodes_and_no_compression() {
    run(
        seed(13),
        1000,
        &[
            ("compression", "off"),
            ("dnodesize", "auto"),
            ("recordsize", "1M"),
        ],
        3_000_000,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_kind_of_filesystem() {
    run(seed(14), 1000, &[("version", "4")], 400_000).await;
}
