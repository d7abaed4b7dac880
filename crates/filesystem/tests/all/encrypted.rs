//! Goal: what is written into encrypted datasets is there again, after a power cut too, for us and
//! for OpenZFS, and not in the clear. Method: a golden pool's encrypted dataset gets a child, a
//! clone and snapshots; the child takes random operations, all synchronous; the image is copied
//! while the pool is open. Then the model, zdb and the real OpenZFS judge.

use crate::common::model::Run;
use crate::common::*;
use bytes::Bytes;
use dataset::DatasetError;
use device::World;
use filesystem::{FileKind, ZplInit};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const POOL: &str = "zil_dirty";
const ROOT_NAME: &str = "zil_dirty/enc";
/// What must not be found on the disk.
const SECRET: &[u8] = b"the quick brown fox jumps over an encrypted dog";

fn manifest(golden: &Path) -> Value {
    let manifest = std::fs::read(golden.join("zil_dirty.json")).expect("manifest");
    serde_json::from_slice(&manifest).expect("JSON")
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn image_of(dir: &Path) -> PathBuf {
    dir.join("d0.img")
}

/// The image as a power cut would leave it now.
fn cut(dir: &Path) -> Image {
    let after = Image::empty();
    let copied = std::process::Command::new("cp")
        .arg("--sparse=always")
        .arg(image_of(dir))
        .arg(after.path().join("d0.img"))
        .status();
    assert!(copied.expect("cp").success());
    after
}

async fn file_with(filesystem: &Arc<filesystem::Filesystem>, name: &[u8], content: &[u8]) {
    let made = filesystem
        .create(filesystem.root(), name, 0o644, ROOT)
        .await
        .expect("create");
    let content = Bytes::copy_from_slice(content);
    filesystem
        .write(made.ino, 0, content, true, ROOT)
        .await
        .expect("write");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_datasets_are_written_as_openzfs_reads_them() {
    let Some(golden) = golden() else { return };
    let manifest = manifest(&golden);
    let image = Image::empty();
    let dir = unpack(&golden, POOL, image.path());
    let world = World::system(2);
    let pool = import(&world, &dir, false).await;
    let dsl = Arc::clone(pool.dsl());
    let child = format!("{ROOT_NAME}/child");
    let datasets = dsl.datasets();
    let create = || datasets.create(&child, &[], Arc::new(ZplInit::new()));
    // Without the key there is nothing to inherit.
    let refused = create().await;
    assert!(
        matches!(refused, Err(DatasetError::KeyNotLoaded { .. })),
        "{refused:?}"
    );
    load_keys(&pool, &manifest).await;
    // All logs are replayed here, and none left to OpenZFS: what it replays it must have claimed
    // itself, for it counts cloned blocks when it claims.
    for name in manifest["trees"].as_object().expect("trees").keys() {
        if !name.contains('@') {
            let filesystem = open(&world, &pool, name).await;
            filesystem.close().await.expect("replayed");
        }
    }
    dsl.datasets()
        .create(
            &child,
            &[("sync".into(), "always".into())],
            Arc::new(ZplInit::new()),
        )
        .await
        .expect("create");
    let text = async |property: &str| {
        let value = dsl
            .properties()
            .get(&child, property)
            .await
            .expect(property)
            .value;
        dataset::props::show_value(dataset::props::find(property), &value, true)
    };
    assert_eq!(text("encryptionroot").await, ROOT_NAME);
    assert_eq!(text("keystatus").await, "available");
    assert_eq!(text("keyformat").await, "passphrase");
    let moved = dsl
        .directories()
        .rename(&child, &format!("{POOL}/child"))
        .await;
    assert!(
        matches!(moved, Err(DatasetError::WrongKind { .. })),
        "{moved:?}"
    );

    let filesystem = open(&world, &pool, &child).await;
    let mut run = Run::new(77, filesystem, 200_000).await;
    for step in 1..=150 {
        run.step().await;
        if step == 60 {
            pool.sync().await.expect("sync");
            dsl.snapshots()
                .take(&[format!("{child}@snap")], &[])
                .await
                .expect("snapshot");
        }
    }
    let clone = format!("{ROOT_NAME}/clone");
    dsl.datasets()
        .clone_snapshot(&format!("{child}@snap"), &clone, &[])
        .await
        .expect("clone");
    let of_clone = open(&world, &pool, &clone).await;
    file_with(&of_clone, b"secret", &SECRET.repeat(100)).await;
    of_clone.close().await.expect("close");
    pool.sync().await.expect("sync");

    // The power fails; the log has what was promised.
    let after = cut(&dir);
    let pool_after = import(&world, after.path(), false).await;
    load_keys(&pool_after, &manifest).await;
    let live = std::mem::replace(&mut run.filesystem, open(&world, &pool_after, &child).await);
    run.compare().await;
    for _ in 0..30 {
        run.step().await;
    }
    run.compare().await;
    run.filesystem.close().await.expect("close");
    // A clone and its key go; those who share the key keep it.
    pool_after
        .dsl()
        .destroyer()
        .destroy(&clone)
        .await
        .expect("destroy");
    pool_after
        .dsl()
        .keys()
        .unload(ROOT_NAME)
        .await
        .expect("unload");
    assert!(pool_after.dsl().open_dataset(&child).await.is_err());
    pool_after.export(false).await.expect("export");
    zdb_is_clean(after.path(), POOL);
    live.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(&dir, POOL);

    for image in [image_of(&dir), image_of(after.path())] {
        let bytes = std::fs::read(image).expect("the image");
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET);
        assert!(!found, "the file's content is on the disk in the clear");
    }

    // And the real thing reads it.
    let Some(peer) = Peer::find() else { return };
    let script = r#"
zpool import -f -d /dev/disk/peer zil_dirty || exit 3
printf 'correct horse battery' | zfs load-key zil_dirty/enc || exit 4
zfs mount zil_dirty/enc/child || exit 5
cd /zil_dirty/enc/child || exit 6
find . -type f | while read -r path; do
  echo "SUM $(sha256sum < "$path" | cut -d' ' -f1) $path"
done
cd /
echo from-openzfs > /zil_dirty/enc/child/from-openzfs
zfs create zil_dirty/enc/grand && echo grand > /zil_dirty/enc/grand/file
zpool scrub -w zil_dirty
zpool status -v zil_dirty
zpool export zil_dirty
"#;
    let text = run_in_peer(&peer, &image_of(after.path()), script);
    assert!(text.contains("errors: No known data errors"), "{text}");
    let mut wanted = std::collections::BTreeSet::new();
    let mut left = vec![(".".to_owned(), 0)];
    while let Some((path, id)) = left.pop() {
        let file = &run.model.files[id];
        if file.kind == Some(FileKind::Regular) {
            wanted.insert(format!("SUM {} {path}", digest(&file.data)));
        }
        for (name, child) in &file.entries {
            left.push((format!("{path}/{}", String::from_utf8_lossy(name)), *child));
        }
    }
    let found: std::collections::BTreeSet<_> = text
        .lines()
        .map(|line| line.trim_end_matches('\r').to_owned())
        .filter(|line| line.starts_with("SUM "))
        .collect();
    assert!(wanted.len() > 5, "{wanted:?}");
    assert_eq!(found, wanted);

    // And back again.
    zdb_is_clean(after.path(), POOL);
    let pool = import(&world, after.path(), false).await;
    load_keys(&pool, &manifest).await;
    let filesystem = open(&world, &pool, &format!("{ROOT_NAME}/grand")).await;
    let file = filesystem
        .lookup(filesystem.root(), b"file")
        .await
        .expect("OpenZFS's file");
    let data = filesystem
        .read(file.ino, 0, 10)
        .await
        .expect("read")
        .concat();
    assert_eq!(data, b"grand\n");
    filesystem.close().await.expect("close");
    pool.dsl()
        .destroyer()
        .destroy(&format!("{ROOT_NAME}/grand"))
        .await
        .expect("destroy");
    pool.export(false).await.expect("export");
    zdb_is_clean(after.path(), POOL);
}
