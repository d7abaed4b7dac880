//! Goal: a power cut loses nothing that was synchronous, whoever wrote the intent log and whoever
//! replays it: we ours, the real OpenZFS ours, we OpenZFS's.
//! Method: an image is copied while its pool is open, after synchronous operations, and imported;
//! the tree is compared with the model of what was done (or with what OpenZFS's machine showed
//! before its power was cut), then zdb judges the pool.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::model::Run;
use crate::common::tree::{bytes_of, hash, hex, kind_word, walk};
use crate::common::*;
use device::World;
use filesystem::{FileKind, Filesystem};
use oracles::PeerOptions;
use pool::{CreateSpec, FeatureChoice, Pool};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A path's entries of a tree.
fn by_path(tree: &Value) -> BTreeMap<Vec<u8>, &Value> {
    tree.as_array()
        .into_iter()
        .flatten()
        .map(|entry| (bytes_of(entry, "path", "path_hex").expect("a path"), entry))
        .collect()
}

async fn check_tree(filesystem: &Filesystem, name: &str, after: &Value, at_cut: &Value) {
    let found = walk(filesystem).await;
    let (after, at_cut) = (by_path(after), by_path(at_cut));
    for (path, entry) in &after {
        let shown = format!("{name}: {}", String::from_utf8_lossy(path));
        let at = found
            .get(path)
            .unwrap_or_else(|| panic!("{shown} is missing"));
        let cut = at_cut.get(path);
        // Times of what is replayed are those of the replay, and space is as it is stored.
        let check = |field: &str, value: Value| {
            let wanted = [&entry[field], cut.map_or(&Value::Null, |cut| &cut[field])];
            assert!(
                wanted.contains(&&value),
                "{shown}: {field} is {value}, not {wanted:?}"
            );
        };
        check("type", kind_word(at.kind).into());
        check("mode", format!("{:04o}", at.mode).into());
        check("uid", at.uid.into());
        check("gid", at.gid.into());
        check("size", at.size_bytes.into());
        check("nlink", at.nlink.into());
        check("ino", at.ino.into());
        if at.kind == FileKind::Regular {
            check(
                "sha256",
                hash(filesystem, at.ino, at.size_bytes).await.into(),
            );
        }
        if at.kind == FileKind::Symlink {
            let target = filesystem.read_link(at.ino).await.expect("target");
            check("target", String::from_utf8_lossy(&target).into());
        }
        if at.kind.is_device() {
            check("rdev", vec![at.rdev.0, at.rdev.1].into());
        }
        let mut xattrs = serde_json::Map::new();
        for name in filesystem.xattrs().names(at.ino).await.expect("attributes") {
            let value = filesystem
                .xattrs()
                .get(at.ino, &name)
                .await
                .expect("attribute");
            xattrs.insert(
                String::from_utf8_lossy(&name).into_owned(),
                hex(&value).into(),
            );
        }
        let same = |wanted: &Value| {
            let wanted = wanted["xattrs"].as_object();
            xattrs.len() == wanted.map_or(0, serde_json::Map::len)
                && xattrs
                    .iter()
                    .all(|(name, value)| wanted.is_some_and(|w| w[name] == *value))
        };
        assert!(
            same(entry) || cut.is_some_and(|cut| same(cut)),
            "{shown}: attributes {xattrs:?}"
        );
    }
    let more: Vec<_> = found
        .keys()
        .filter(|path| !after.contains_key(*path))
        .collect();
    assert!(more.is_empty(), "{name}: {more:?} should not be there");
}

async fn check(golden: &Path, name: &str) {
    let manifest = std::fs::read(golden.join(format!("{name}.json"))).expect("manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let image = Image::empty();
    let dir = unpack(golden, name, image.path());
    let world = World::system(2);
    let pool = import(&world, &dir, false).await;
    load_keys(&pool, &manifest).await;
    let mut checked = 0;
    for (dataset, after) in manifest["trees"].as_object().expect("trees") {
        // Snapshots have no log.
        if dataset.contains('@') {
            continue;
        }
        let filesystem = open(&world, &pool, dataset).await;
        check_tree(
            &filesystem,
            dataset,
            after,
            &manifest["trees_at_cut"][dataset],
        )
        .await;
        // The filesystem goes on.
        let root = filesystem.root();
        let made = filesystem
            .create(root, b"after the replay", 0o644, ROOT)
            .await
            .expect("create");
        let text = bytes::Bytes::from_static(b"on");
        filesystem
            .write(made.ino, 0, text, true, ROOT)
            .await
            .expect("write");
        filesystem.close().await.expect("close");
        let filesystem = open(&world, &pool, dataset).await;
        let again = filesystem
            .lookup(root, b"after the replay")
            .await
            .expect("lookup");
        assert_eq!(again.size_bytes, 2);
        filesystem
            .unlink(root, b"after the replay")
            .await
            .expect("unlink");
        filesystem.close().await.expect("close");
        checked += 1;
    }
    assert!(checked >= 6, "{checked}");
    pool.export(false).await.expect("export");
    let pool_name = manifest["pool"].as_str().expect("pool");
    zdb_is_clean(&dir, pool_name);
}

/// Every operation synchronous, then the power fails: what was done is there after the import.
async fn cut_and_import(seed: u64, steps: usize, properties: &[(&str, &str)]) {
    let image = Image::new(512);
    let world = World::system(2);
    let mut all = vec![("sync", "always")];
    all.extend_from_slice(properties);
    let pool = create(&world, &image, &all).await;
    let filesystem = open(&world, &pool, "tank").await;
    let mut run = Run::new(seed, filesystem, 300_000).await;
    for step in 1..=steps {
        run.step().await;
        if step == steps / 3 || step == steps * 2 / 3 {
            pool.sync().await.expect("sync");
        }
    }
    let after = cut(&image);
    let live = std::sync::Arc::clone(&run.filesystem);
    let pool_after = import_after_cut(&world, after.path()).await;
    run.filesystem = open(&world, &pool_after, "tank").await;
    run.compare().await;
    // It goes on, and the log with it.
    for _ in 0..50 {
        run.step().await;
    }
    run.compare().await;
    run.filesystem.close().await.expect("close");
    pool_after.export(false).await.expect("export");
    zdb_is_clean(after.path(), "tank");
    live.close().await.expect("close");
    pool.export(false).await.expect("export");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_loses_nothing_synchronous() {
    cut_and_import(31, 300, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_in_directories_and_small_blocks() {
    cut_and_import(32, 300, &[("xattr", "dir"), ("recordsize", "8K")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn big_dnodes_are_claimed_as_they_were() {
    cut_and_import(33, 300, &[("dnodesize", "2k"), ("logbias", "throughput")]).await;
}

/// Before version 27 a snapshot must not have the head of a log in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_of_old_pools_hold_no_log() {
    let image = Image::new(512);
    let world = World::system(2);
    let spec = CreateSpec {
        properties: vec![("version".to_owned(), "26".to_owned())],
        ..spec_with(&image, FeatureChoice::All, &[("sync", "always")])
    };
    let pool = Pool::create(&world, spec).await.expect("create");
    let filesystem = open(&world, &pool, "tank").await;
    let root = filesystem.root();
    let made = filesystem.create(root, b"file", 0o644, ROOT).await;
    let ino = made.expect("made").ino;
    filesystem.sync_file(ino).await.expect("durable");
    let names = ["tank@now".to_owned()];
    pool.dsl()
        .snapshots()
        .take(&names, &[])
        .await
        .expect("taken");
    let snapshot = pool.dsl().open_dataset("tank@now").await.expect("opens");
    assert!(snapshot.objset().zil_header().log.is_hole());
    drop(snapshot);
    filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// The real OpenZFS replays our log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openzfs_replays_what_we_logged() {
    let Some(peer) = Peer::find() else { return };
    let image = Image::new(512);
    let world = World::system(2);
    let pool = create(&world, &image, &[("sync", "always")]).await;
    let filesystem = open(&world, &pool, "tank").await;
    let mut run = Run::new(41, filesystem, 300_000).await;
    for step in 1..=250 {
        run.step().await;
        if step == 80 {
            pool.sync().await.expect("sync");
        }
    }
    let after = cut(&image);
    let script = r#"
zpool import -f -d /dev/disk/peer tank || exit 3
cd /tank
find . | while read -r path; do
  stat -c 'AT %a %u %g %s %h %i %n' "$path"
  [ -f "$path" ] && [ ! -L "$path" ] && echo "SUM $(sha256sum < "$path" | cut -d' ' -f1) $path"
done
cd /
zpool scrub -w tank
zpool status -v tank
zpool export tank
"#;
    let text = run_in_peer(&peer, &after.path().join("d0.img"), script);
    assert!(text.contains("errors: No known data errors"), "{text}");
    let mut wanted = std::collections::BTreeSet::new();
    let mut left = vec![(".".to_owned(), 0)];
    while let Some((path, id)) = left.pop() {
        let file = &run.model.files[id];
        let (size, links) = (run.model.size(id), run.model.links(id));
        wanted.insert(format!(
            "AT {:o} {} {} {size} {links} {} {path}",
            file.mode, file.uid, file.gid, file.ino
        ));
        if file.kind == Some(FileKind::Regular) {
            let sum = hex(&Sha256::digest(&file.data));
            wanted.insert(format!("SUM {sum} {path}"));
        }
        for (name, child) in &file.entries {
            left.push((format!("{path}/{}", String::from_utf8_lossy(name)), *child));
        }
    }
    let found: std::collections::BTreeSet<_> = text
        .lines()
        .map(|line| line.trim_end_matches('\r').to_owned())
        .filter(|line| line.starts_with("AT ") || line.starts_with("SUM "))
        .collect();
    let missing: Vec<_> = wanted.difference(&found).collect();
    let strange: Vec<_> = found.difference(&wanted).collect();
    assert!(
        missing.is_empty() && strange.is_empty(),
        "not {missing:#?}\nbut {strange:#?}"
    );
    run.filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");

    // And back again: with attributes, which the script did not look at.
    let pool = import(&world, after.path(), false).await;
    run.filesystem = open(&world, &pool, "tank").await;
    run.compare().await;
    run.filesystem.close().await.expect("close");
    pool.export(false).await.expect("export");
    zdb_is_clean(after.path(), "tank");
}

/// We replay the log of the real OpenZFS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn we_replay_what_openzfs_logged() {
    let Some(peer) = Peer::find() else { return };
    let image = Image::new(512);
    let script = r#"
echo 3600 > /sys/module/zfs/parameters/zfs_txg_timeout 2>/dev/null
zpool create -O atime=off -O sync=always -O compression=lz4 tank /dev/disk/peer/d0 || exit 3
zfs create -o logbias=throughput tank/thru
zfs create -o xattr=dir -o recordsize=8k tank/xdir
zfs create -o sync=standard tank/std
zpool sync tank
for m in /tank /tank/thru /tank/xdir; do
  mkdir $m/d $m/d/e; echo first > $m/d/one; dd if=/dev/urandom of=$m/big bs=100k count=7 2>/dev/null
  ln $m/d/one $m/d/e/two; ln -s ../somewhere/else $m/link; mkfifo $m/fifo; mknod $m/node c 5 1
  echo x > $m/gone; rm $m/gone; mkdir $m/gonedir; rmdir $m/gonedir
  mv $m/d/e $m/moved; echo more >> $m/d/one; truncate -s 300000 $m/big; truncate -s 400001 $m/big
  chmod 6711 $m/big; chown 1000:1001 $m/d; touch -d @1000000000 $m/d/one
  dd if=/dev/urandom of=$m/big bs=5000 seek=23 count=1 conv=notrunc 2>/dev/null
done
echo s > /tank/std/unsynced
dd if=/dev/urandom of=/tank/std/synced bs=1000 count=50 conv=fsync 2>/dev/null
cd /; find tank | while read -r path; do
  stat -c 'AT %a %u %g %s %h %i %n' "$path"
  [ -f "$path" ] && [ ! -L "$path" ] && echo "SUM $(sha256sum < "$path" | cut -d' ' -f1) $path"
done
echo POWERCUT
sleep 30
"#;
    let disk = format!("{},d0", image.path().join("d0.img").display());
    let text = peer.run_with(&[disk], PeerOptions::default().loses_power(), script);
    let lines: Vec<_> = text
        .lines()
        .map(|line| line.trim_end_matches('\r'))
        .collect();
    assert!(lines.iter().any(|line| line.starts_with("AT ")), "{text}");
    let world = World::system(2);
    let pool = import_after_cut(&world, image.path()).await;
    let mut found = BTreeMap::new();
    for name in ["tank", "tank/thru", "tank/xdir", "tank/std"] {
        let filesystem = open(&world, &pool, name).await;
        for (path, at) in walk(&filesystem).await {
            let path = String::from_utf8_lossy(&path).into_owned();
            let full = if path == "/" {
                name.to_owned()
            } else {
                format!("{name}{path}")
            };
            let sum = match at.kind {
                FileKind::Regular => Some(hash(&filesystem, at.ino, at.size_bytes).await),
                _ => None,
            };
            // A mountpoint is found as the root of what is mounted on it.
            found.insert(full, (at, sum));
        }
        filesystem.close().await.expect("close");
    }
    let mut checked = 0;
    for line in lines {
        if let Some(sum) = line.strip_prefix("SUM ") {
            let (sum, path) = sum.split_once(' ').expect("a sum and a path");
            let real = found.get(path).and_then(|(_, sum)| sum.as_deref());
            assert!(
                real == Some(sum) || path == "tank/std/unsynced",
                "{path}: content"
            );
            checked += 1;
        } else if let Some(rest) = line.strip_prefix("AT ") {
            let fields: Vec<_> = rest.splitn(7, ' ').collect();
            let path = fields[6];
            if path == "tank/std/unsynced" || path == "tank/std" {
                continue;
            }
            let Some((at, _)) = found.get(path) else {
                panic!("{path} is missing")
            };
            let real = format!(
                "{:o} {} {} {} {} {}",
                at.mode, at.uid, at.gid, at.size_bytes, at.nlink, at.ino
            );
            assert_eq!(real, fields[..6].join(" "), "{path}");
            checked += 1;
        }
    }
    assert!(checked > 35, "{checked}");
    pool.export(false).await.expect("export");
    zdb_is_clean(image.path(), "tank");
}

/// The encrypted dataset too, with its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zil_dirty() {
    if let Some(golden) = golden() {
        check(&golden, "zil_dirty").await;
    }
}

/// Bytes from one place of an image that may have an uberblock to the next, and their range in each
/// of the four labels.
const UBERBLOCK_STEP: usize = 1024;
const UBERBLOCKS: std::ops::Range<u64> = 128 << 10..256 << 10;

/// Shows every uberblock of an image to `visit`, with its txg; those for which it says so are
/// erased.
fn erase_uberblocks(image: &Image, mut visit: impl FnMut(u64) -> bool) {
    use std::os::unix::fs::FileExt;
    let path = image.path().join("d0.img");
    let file = std::fs::File::options().read(true).write(true).open(path);
    let file = file.expect("the image");
    let length = file.metadata().expect("its size").len();
    for label in [0, 256 << 10, length - (512 << 10), length - (256 << 10)] {
        for at in UBERBLOCKS.step_by(UBERBLOCK_STEP) {
            let mut place = [0; UBERBLOCK_STEP];
            let at = label + at;
            file.read_exact_at(&mut place, at).expect("an uberblock");
            let word =
                |at: usize| u64::from_le_bytes(place[at..at + 8].try_into().expect("8 bytes"));
            if word(0) == 0x00ba_b10c && visit(word(16)) {
                file.write_all_at(&[0; UBERBLOCK_STEP], at).expect("erased");
            }
        }
    }
}

/// Goal: a log is replayed that gives an object number again which the last txg still has in use:
/// named, with the removal in the log, or without a name in the delete queue. Method: what a power
/// cut leaves when it comes after the dataset of a txg is written and before its uberblock is; here
/// the uberblock is taken away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_is_given_again_before_the_txg_that_freed_it_is_over() {
    for is_queued in [false, true] {
        let (image, world) = (Image::new(256), World::system(2));
        let pool = create(&world, &image, &[]).await;
        let live = open(&world, &pool, "tank").await;
        let make = async |name: &str| {
            let made = live.create(live.root(), name.as_bytes(), 0o644, ROOT).await;
            made.expect("create").ino
        };
        let old = make("old").await;
        let text = bytes::Bytes::from_static(b"old");
        live.write(old, 0, text, false, ROOT).await.expect("write");
        live.sync_file(old).await.expect("fsync");
        if is_queued {
            live.retain(old, 1);
            live.unlink(live.root(), b"old").await.expect("unlink");
        }
        pool.sync().await.expect("sync");
        let mut last = 0;
        erase_uberblocks(&image, |txg| {
            last = last.max(txg);
            false
        });
        if is_queued {
            live.release(old, 1);
        } else {
            live.unlink(live.root(), b"old").await.expect("unlink");
        }
        live.sync_file(live.root()).await.expect("fsync");
        // It is freed in the background.
        while live.attributes(old).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        pool.sync().await.expect("sync");
        let mut names = Vec::new();
        while names.last().is_none_or(|(_, ino)| *ino != old) {
            assert!(names.len() < 1000, "the number is not given again");
            let name = format!("new{}", names.len());
            let ino = make(&name).await;
            names.push((name, ino));
        }
        live.sync_file(old).await.expect("fsync");
        let after = cut(&image);
        erase_uberblocks(&after, |txg| txg > last);
        let pool_after = import_after_cut(&world, after.path()).await;
        let replayed = open(&world, &pool_after, "tank").await;
        for (name, ino) in names {
            let found = replayed.lookup(replayed.root(), name.as_bytes()).await;
            assert_eq!(found.expect("it is there").ino, ino, "{is_queued}");
        }
        let gone = replayed.lookup(replayed.root(), b"old").await;
        assert!(gone.is_err(), "{is_queued}");
        replayed.close().await.expect("close");
        drop(replayed);
        pool_after.export(false).await.expect("export");
        zdb_is_clean(after.path(), "tank");
        live.close().await.expect("close");
        drop(live);
        pool.export(false).await.expect("export");
    }
}
