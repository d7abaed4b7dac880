//! Goal: a directory whose number of links on disk is as high as can be refuses more with an error, and everything else
//! in it works. Method: the number is changed in the object's bonus, below the filesystem.

use crate::common::*;
use device::World;
use filesystem::{FsError, RenameMode};
use format::ObjectId;
use zio::Tx;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_with_too_many_links_takes_no_more() {
    let world = World::system(2);
    let image = Image::new(128);
    let pool = create(&world, &image, &[]).await;
    let fs = open(&world, &pool, "tank").await;
    let (root, mode) = (fs.root(), 0o755);
    let full = fs
        .make_directory(root, b"full", mode, ROOT)
        .await
        .expect("mkdir")
        .ino;
    for number in 0..37 {
        let name = format!("d{number}");
        fs.make_directory(full, name.as_bytes(), mode, ROOT)
            .await
            .expect("mkdir");
    }
    for name in ["f0", "f1", "f2", "f3"] {
        fs.create(full, name.as_bytes(), 0o644, ROOT)
            .await
            .expect("create");
    }
    fs.make_directory(root, b"other", mode, ROOT)
        .await
        .expect("mkdir");
    fs.create(root, b"file", 0o644, ROOT).await.expect("create");
    fs.close().await.expect("close");
    drop(fs);
    pool.sync().await.expect("sync");

    let dataset = pool.dsl().open_dataset("tank").await.expect("open");
    let object = dataset
        .objset()
        .hold(ObjectId::new(full))
        .await
        .expect("hold");
    let mut bonus = object.bonus().to_vec();
    let places: Vec<usize> = (0..bonus.len() / 8)
        .map(|word| word * 8)
        .filter(|at| bonus[*at..at + 8] == 39u64.to_le_bytes())
        .collect();
    assert_eq!(places.len(), 1, "one attribute is the number of links");
    bonus[places[0]..places[0] + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let tx: Tx = dataset
        .assign(dataset::DirtyEstimate::metadata())
        .await
        .expect("a transaction");
    object.set_bonus(&tx, bonus).expect("set");
    drop((tx, object, dataset));
    pool.sync().await.expect("sync");

    let fs = open(&world, &pool, "tank").await;
    let refused =
        |error: FsError| assert!(matches!(error, FsError::TooManyLinks { .. }), "{error}");
    refused(
        fs.make_directory(full, b"more", mode, ROOT)
            .await
            .unwrap_err(),
    );
    let rename = async |from: u64, name: &str, to: u64, new: &str, mode: RenameMode| {
        fs.rename(from, name.as_bytes(), to, new.as_bytes(), mode)
            .await
    };
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    refused(
        rename(root, "other", full, "more", replace)
            .await
            .unwrap_err(),
    );
    refused(
        rename(root, "other", full, "f0", exchange)
            .await
            .unwrap_err(),
    );
    refused(
        rename(full, "f0", root, "other", exchange)
            .await
            .unwrap_err(),
    );
    // Where none is added all is well.
    rename(root, "other", full, "d0", exchange)
        .await
        .expect("a directory for another");
    rename(root, "file", full, "f0", replace)
        .await
        .expect("a file");
    rename(full, "d1", full, "d2", replace)
        .await
        .expect("within");
    fs.create(full, b"f9", 0o644, ROOT).await.expect("create");
    fs.remove_directory(full, b"d3").await.expect("rmdir");
    rename(full, "d4", root, "d4", replace).await.expect("out");
    fs.lookup(root, b"d4").await.expect("there");
    fs.close().await.expect("close");
    drop(fs);
    pool.export(false).await.expect("export");
}
