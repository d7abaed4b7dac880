//! Goal: filesystems made by OpenZFS look here as they look there, to the last nanosecond.
//! Method: golden pools; every path of every tree in the manifest, snapshots included, is compared:
//! kind, mode, owner, size, links, number, times, space, content, target, device, attributes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::big_endian;
use crate::common::tree::{bytes_of, hash, hex, kind_word, walk};
use crate::common::*;
use dataset::ListOptions;
use device::World;
use filesystem::{FileKind, Filesystem, FsError, QuotaKind};
use format::SnapshotBookmark;
use pool::Rewind;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Files of a tree whose paths are looked up from their numbers, at most.
const PATHS_MAX: usize = 100;
/// Files longer than this have no hash in the manifest.
const HASHED_BYTES_MAX: u64 = 1 << 30;

/// What of a manifest's tree is compared.
#[derive(Clone, Copy, PartialEq)]
pub enum Compared {
    All,
    /// All but the space of files: another compressor wrote them.
    AllButSpace,
}

pub async fn check_tree(filesystem: &Filesystem, name: &str, tree: &[Value], what: Compared) {
    let found = walk(filesystem).await;
    let mut expected = 0;
    // A path from its file: takes a search through each directory, so not for all.
    for (path, at) in found.iter().step_by(found.len() / PATHS_MAX + 1) {
        if at.nlink == 1 || at.kind == FileKind::Directory {
            let back = filesystem.path_of(at.ino).await.expect("a path");
            assert_eq!(
                String::from_utf8_lossy(&back),
                String::from_utf8_lossy(path),
                "{name}"
            );
        }
    }
    for entry in tree {
        let path = bytes_of(entry, "path", "path_hex").expect("a path");
        let shown = format!("{name}: {}", String::from_utf8_lossy(&path));
        // With snapdir=visible OpenZFS lists what is served by the mount here.
        if path == b"/.zfs" || path.starts_with(b"/.zfs/") {
            continue;
        }
        let at = found
            .get(&path)
            .unwrap_or_else(|| panic!("{shown} is missing"));
        expected += 1;
        let number = |field: &str| entry[field].as_i64().map(i128::from);
        assert_eq!(entry["type"].as_str(), Some(kind_word(at.kind)), "{shown}");
        let mode = u32::from_str_radix(entry["mode"].as_str().expect("mode"), 8).expect("octal");
        assert_eq!(at.mode, mode, "{shown}: mode");
        let is_file = at.kind == FileKind::Regular;
        for (field, value) in [
            ("uid", i128::from(at.uid)),
            ("gid", i128::from(at.gid)),
            ("size", i128::from(at.size_bytes)),
            ("nlink", i128::from(at.nlink)),
            ("ino", i128::from(at.ino)),
            ("mtime", at.mtime.as_ns()),
            ("atime", at.atime.as_ns()),
            ("ctime", at.ctime.as_ns()),
            ("crtime", at.crtime.as_ns()),
            ("blocks512", i128::from(at.allocated_bytes / 512)),
        ] {
            // The root of a snapshot has a number of `.zfs`'s while it is mounted there.
            let is_mount = field == "ino" && path == b"/" && name.contains('@');
            let is_left_out = is_mount || field == "blocks512" && what == Compared::AllButSpace;
            if let Some(mut wanted) = number(field).filter(|_| !is_left_out) {
                // The manifest has moments before 1970 from text like "-3.5", which its maker wrote
                // for 3 seconds before and half a second after that (made with touch -d
                // 1960-06-15T12:00:00.5Z).
                if wanted < 0 && field.ends_with("time") {
                    wanted -= 2 * (wanted % 1_000_000_000);
                }
                assert_eq!(value, wanted, "{shown}: {field}");
            }
        }
        if let Some(rdev) = entry["rdev"].as_array() {
            let rdev = [rdev[0].as_u64(), rdev[1].as_u64()];
            assert_eq!(
                [Some(u64::from(at.rdev.0)), Some(u64::from(at.rdev.1))],
                rdev,
                "{shown}"
            );
        }
        if let Some(target) = bytes_of(entry, "target", "target_hex") {
            // The manifest has what a program sees of it, which ends with the first zero byte.
            let mut ours = filesystem.read_link(at.ino).await.expect("target").to_vec();
            let end = ours.iter().position(|byte| *byte == 0);
            ours.truncate(end.unwrap_or(ours.len()));
            assert_eq!(ours, target, "{shown}");
        }
        if let Some(wanted) = entry["sha256"].as_str().filter(|_| is_file) {
            assert!(at.size_bytes <= HASHED_BYTES_MAX);
            assert_eq!(
                hash(filesystem, at.ino, at.size_bytes).await,
                wanted,
                "{shown}: content"
            );
        }
        let names = filesystem.xattrs().names(at.ino).await.expect("attributes");
        let mut xattrs = BTreeMap::new();
        for name in names {
            let value = filesystem
                .xattrs()
                .get(at.ino, &name)
                .await
                .expect("attribute");
            xattrs.insert(String::from_utf8_lossy(&name).into_owned(), hex(&value));
        }
        let wanted: BTreeMap<String, String> = entry["xattrs"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), value.as_str().expect("hex").to_owned()))
            .collect();
        assert_eq!(xattrs, wanted, "{shown}: attributes");
    }
    assert_eq!(found.len(), expected, "{name}: paths");
}

/// Label of what a manifest tells of the state at the checkpoint.
const AT_CHECKPOINT: &str = "AT_CHECKPOINT:";

struct Golden {
    world: World,
    manifest: Value,
    dir: PathBuf,
    /// Damage was done here, and is not in the manifest.
    is_harmed: bool,
    _image: Image,
}

impl Golden {
    fn unpack(golden: &Path, name: &str) -> Self {
        let manifest = std::fs::read(golden.join(format!("{name}.json"))).expect("manifest");
        let image = Image::empty();
        Self {
            world: World::system(2),
            manifest: serde_json::from_slice(&manifest).expect("JSON"),
            dir: unpack(golden, name, image.path()),
            is_harmed: false,
            _image: image,
        }
    }

    /// The manifest's trees: of the pool's newest state, or of its checkpoint.
    fn trees(&self, at_checkpoint: bool) -> impl Iterator<Item = (&str, &[Value])> {
        // What a read-only import shows of pools whose logs are to be replayed.
        let trees = match &self.manifest["trees_without_replay"] {
            Value::Null => &self.manifest["trees"],
            trees => trees,
        };
        let trees = trees.as_object().expect("trees").iter();
        trees.filter_map(move |(name, tree)| {
            let tree = &tree.as_array().expect("a list")[..];
            match (name.strip_prefix(AT_CHECKPOINT), at_checkpoint) {
                (None, false) => Some((&name[..], tree)),
                (Some(name), true) => Some((name, tree)),
                _ => None,
            }
        })
    }

    /// Compares everything; gives the pool's status after that.
    async fn check(&self, rewind: Rewind) -> pool::PoolStatus {
        let pool = import_at(&self.world, &self.dir, true, rewind).await;
        load_keys(&pool, &self.manifest).await;
        let mut count = 0;
        for (dataset, tree) in self.trees(rewind == Rewind::Checkpoint) {
            count += 1;
            let filesystem = open(&self.world, &pool, dataset).await;
            assert!(filesystem.is_read_only());
            check_tree(&filesystem, dataset, tree, Compared::All).await;
            let refused = filesystem
                .create(filesystem.root(), b"x", 0o644, ROOT)
                .await;
            assert!(matches!(refused, Err(FsError::ReadOnly)), "{dataset}");
            filesystem.close().await.expect("close");
        }
        assert!(count > 0);
        if rewind == Rewind::No {
            let volumes = match &self.manifest["zvols_without_replay"] {
                Value::Null => &self.manifest["zvols"],
                volumes => volumes,
            };
            for volume in volumes.as_array().into_iter().flatten() {
                let dataset = volume["name"].as_str().expect("a name");
                let wanted = volume["sha256"].as_str().expect("a hash");
                let size = volume["volsize"].as_u64().expect("a size");
                assert_eq!(hash_volume(&pool, dataset, size).await, wanted, "{dataset}");
            }
        }
        // Numbers are of after the replay of logs.
        if rewind == Rewind::No && self.manifest["trees_without_replay"].is_null() {
            self.check_holds_bookmarks_and_space(&pool).await;
        }
        if self.manifest["name"] == "plain" {
            check_names(&self.world, &pool).await;
        }
        let status = pool.status();
        pool.export(false).await.expect("close the pool");
        status
    }
}

/// After everything was read: errors are counted on the device that was damaged (manifest:
/// `damage`) and on no other, and nothing was lost.
fn check_errors(manifest: &Value, status: &pool::PoolStatus) {
    fn walk(vdev: &pool::VdevStatus, damaged: Option<&str>, found: &mut u64) {
        let path = vdev.path.as_deref().unwrap_or("");
        assert_eq!(vdev.read_errors + vdev.write_errors, 0, "{path}");
        if damaged.is_some_and(|image| path.ends_with(image)) {
            *found += vdev.checksum_errors;
        } else {
            assert_eq!(vdev.checksum_errors, 0, "{} {path}", vdev.name);
        }
        for child in &vdev.children {
            walk(child, damaged, found);
        }
    }
    let damaged = manifest["damage"]["image"].as_str();
    let mut found = 0;
    walk(&status.root, damaged, &mut found);
    assert_eq!(found > 0, damaged.is_some(), "checksum errors: {found}");
    assert_eq!(status.data_errors, 0);
}

impl Golden {
    async fn check_holds_bookmarks_and_space(&self, pool: &pool::Pool) {
        let datasets = self.manifest["datasets"].as_array().expect("datasets");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        for dataset in datasets {
            let name = dataset["name"].as_str().expect("a name");
            let listed = |field: &str| {
                let mut all: Vec<String> = dataset[field]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(text)
                    .collect();
                all.sort();
                all
            };
            if let Some((filesystem, _)) = name.split_once('#') {
                let found = pool
                    .dsl()
                    .bookmarks()
                    .list(filesystem)
                    .await
                    .expect("bookmarks");
                let found = found.iter().find(|found| found.name == name);
                let phys = &found.unwrap_or_else(|| panic!("{name} is missing")).phys;
                let counts = phys.flags & SnapshotBookmark::FLAG_HAS_FREED_BEFORE_NEXT != 0;
                let counted = |bytes: u64| counts.then_some(bytes);
                for (property, value) in [
                    ("guid", Some(phys.guid.get())),
                    ("createtxg", Some(phys.creation_txg.get())),
                    ("creation", Some(phys.creation_time_seconds)),
                    ("referenced", counted(phys.referenced_bytes)),
                    ("logicalreferenced", counted(phys.uncompressed_bytes)),
                ] {
                    let value = value.map(|value| value.to_string());
                    let wanted = dataset["props"][property].as_str();
                    assert_eq!(value.as_deref(), wanted, "{name}: {property}");
                }
                continue;
            }
            if name.contains('@') {
                let holds = pool.dsl().holds().list(name).await.expect("holds");
                let tags: Vec<String> = holds.into_iter().map(|(tag, _)| tag).collect();
                assert_eq!(tags, listed("holds"), "{name}: holds");
                continue;
            }
            let mut found: Vec<String> = Vec::new();
            for bookmark in pool.dsl().bookmarks().list(name).await.expect("bookmarks") {
                let short = bookmark.name.rsplit('#').next();
                found.push(short.unwrap_or_default().to_owned());
            }
            found.sort();
            assert_eq!(found, listed("bookmarks"), "{name}: bookmarks");
            self.check_space(pool, name, &dataset["space"]).await;
        }
    }

    /// The rows of `zfs userspace` and the like: kind, id, bytes and their quota, objects and
    /// theirs.
    async fn check_space(&self, pool: &pool::Pool, name: &str, rows: &Value) {
        let rows = rows.as_array().map_or(&[][..], |rows| &rows[..]);
        if rows.is_empty() {
            return;
        }
        let filesystem = open(&self.world, pool, name).await;
        for (word, kind) in [
            ("POSIX User", QuotaKind::User),
            ("POSIX Group", QuotaKind::Group),
            ("Project", QuotaKind::Project),
        ] {
            let found = filesystem.quotas().space_by(kind).await.expect("space");
            let of_kind = || rows.iter().filter(|row| row[0] == word);
            if kind == QuotaKind::Project && of_kind().next().is_none() {
                continue;
            }
            for row in of_kind() {
                let number = |at: usize| row[at].as_str().and_then(|text| text.parse().ok());
                let id: u64 = number(1).expect("an id");
                let ours = found.iter().find(|space| space.id == id);
                let ours = ours.unwrap_or_else(|| panic!("{name}: {word} {id} is missing"));
                for (at, value) in [
                    (2, ours.used_bytes),
                    (3, ours.quota_bytes),
                    (4, ours.used_objects),
                    (5, ours.quota_objects),
                ] {
                    // A dash is nothing, or not known.
                    assert_eq!(value, number(at).unwrap_or(0), "{name}: {word} {id}: {at}");
                }
            }
            assert_eq!(found.len(), of_kind().count(), "{name}: {word}");
        }
        filesystem.close().await.expect("close");
    }
}

async fn check(golden: &Path, name: &str) {
    let golden = Golden::unpack(golden, name);
    let status = golden.check(Rewind::No).await;
    check_errors(&golden.manifest, &status);
}

/// SHA-256 of a volume's data, which is its object 1.
pub async fn hash_volume(pool: &pool::Pool, name: &str, size_bytes: u64) -> String {
    let dataset = pool.dsl().open_dataset(name).await.expect("open");
    let data = dataset.objset().hold(1.into()).await.expect("the data");
    let mut hash = Sha256::new();
    let mut at = 0;
    while at < size_bytes {
        let length = (size_bytes - at).min(1 << 20) as usize;
        for piece in data.read(at, length).await.expect("read") {
            hash.update(&piece);
        }
        at += length as u64;
    }
    hex(&hash.finalize())
}

/// Without keys there are names and sizes, but no data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_encrypted_is_read_without_its_key() {
    let Some(golden) = golden() else { return };
    let manifest = std::fs::read(golden.join("encrypted.json")).expect("manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let image = Image::empty();
    let dir = unpack(&golden, "encrypted", image.path());
    let world = World::system(2);
    let pool = import(&world, &dir, true).await;
    let mut refused = 0;
    for wanted in manifest["datasets"].as_array().expect("datasets") {
        let name = wanted["name"].as_str().expect("a name");
        for property in ["used", "referenced", "encryption", "volsize"] {
            if let Some(value) = wanted["props"][property].as_str() {
                let found = pool
                    .dsl()
                    .properties()
                    .get(name, property)
                    .await
                    .expect(name);
                let property = dataset::props::find(property);
                let shown = dataset::props::show_value(property, &found.value, true);
                assert_eq!(shown, value, "{name}");
            }
        }
        let opened = pool.dsl().open_dataset(name).await;
        if wanted["props"]["encryption"] == "off" {
            opened.expect(name);
        } else {
            let error = opened.map(|_| ()).expect_err(name);
            let text = error.to_string();
            assert!(text.contains("encryption key not loaded"), "{text}");
            refused += 1;
        }
    }
    assert!(refused > 15, "{refused}");
    pool.export(false).await.expect("close the pool");
}

/// The manifest's notes on lookups in filesystems where case or form does not count, and on
/// special files.
async fn check_names(world: &World, pool: &pool::Pool) {
    let finds = async |dataset: &str, path: &str| {
        let filesystem = open(world, pool, dataset).await;
        let mut ino = filesystem.root();
        for part in path.split('/') {
            match filesystem.lookup(ino, part.as_bytes()).await {
                Ok(found) => ino = found.ino,
                Err(FsError::NotFound { .. }) => return None,
                Err(error) => panic!("{dataset}: {path}: {error}"),
            }
        }
        Some(ino)
    };
    assert_eq!(
        finds("plain/ci", "readme.txt").await,
        finds("plain/ci", "ReadMe.TXT").await
    );
    assert!(finds("plain/ci", "readme.txt").await.is_some());
    assert!(finds("plain/ci", "dirname/ENTRY_7").await.is_some());
    assert!(finds("plain/ci", "äöü").await.is_some());
    assert!(finds("plain/mixed", "readme").await.is_none());
    for (form, compatible) in [("C", false), ("D", false), ("KC", true), ("KD", true)] {
        let dataset = format!("plain/norm_form{form}");
        assert!(finds(&dataset, "u\u{308}mlaut").await.is_some(), "{form}");
        assert!(finds(&dataset, "\u{e9}cole").await.is_some(), "{form}");
        assert_eq!(
            finds(&dataset, "filigature").await.is_some(),
            compatible,
            "{form}"
        );
    }
    assert!(finds("plain/ci_formD", "école").await.is_some());
    // Nine terabytes with 700 bytes in them.
    let filesystem = open(world, pool, "plain/rec/deep").await;
    let file = filesystem
        .lookup(filesystem.root(), b"veryfar")
        .await
        .expect("veryfar");
    let far = 8_999_999_990_000;
    let data = filesystem
        .read(file.ino, far, 700)
        .await
        .expect("read")
        .concat();
    assert_eq!(data.len(), 700);
    assert_eq!(
        hex(&Sha256::digest(&data)),
        "2c8c9aa26e1a46ad14ca623928ed35de1e6ecb09047e3bcddcaaedc4c471a6d1"
    );
    let found = filesystem
        .seek(file.ino, 0, filesystem::SeekTo::Data)
        .await
        .expect("data");
    assert!(found <= far && found > far - (1 << 20), "{found}");
    filesystem.close().await.expect("close");
}

macro_rules! golden_pools {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            if let Some(golden) = golden() {
                check(&golden, stringify!($name)).await;
            }
        }
    )*};
}

golden_pools!(
    plain mirror3 stripe_of_mirrors raidz1_3 raidz1_5 raidz2_6 raidz2_multi raidz3_8 big_dirs v28
    v15_fs3 nofeat removed removing draid draid_spare special logs_cache degraded damaged
    damaged_raidz stale gang gang_raidz raidz_expanded raidz_expanding checkpoint cloned_blocks
    dedup_fast dedup_legacy encrypted zil_dirty zil_dirty_slog
);

macro_rules! golden_pools_of_2_4 {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            check(&oracles::golden_of_2_4(), stringify!($name)).await;
        }
    )*};
}

golden_pools_of_2_4!(rewritten gang_wide gang_wide_raidz);

/// What a checkpoint keeps is there in full, deleted and overwritten files and destroyed datasets
/// included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_is_as_it_was() {
    if let Some(golden) = golden() {
        let golden = Golden::unpack(&golden, "checkpoint");
        golden.check(Rewind::Checkpoint).await;
    }
}

/// Children of widened RAID-Z vdevs that are gone, or that lie.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raidz_that_was_widened_survives_damage() {
    use std::os::unix::fs::FileExt;
    let Some(golden) = golden() else { return };
    for (name, gone, garbled) in [
        ("raidz_expanded", &["d1"][..], &[][..]),
        ("raidz_expanded", &["d3"], &[]),
        ("raidz_expanded", &[], &["d0"]),
        ("raidz_expanded", &[], &["d3"]),
        ("raidz_expanding", &["d0", "d4"], &[]),
        ("raidz_expanding", &["d2"], &["d1"]),
        ("raidz_expanding", &[], &["d3", "d4"]),
    ] {
        let mut golden = Golden::unpack(&golden, name);
        golden.is_harmed = true;
        for disk in gone {
            std::fs::remove_file(golden.dir.join(format!("{disk}.img"))).expect("it was there");
        }
        for disk in garbled {
            let path = golden.dir.join(format!("{disk}.img"));
            let file = std::fs::File::options().write(true).open(path);
            let file = file.expect("an image");
            let mut random = Random(7);
            for offset in (4 << 20..62 << 20).step_by(1 << 20) {
                let noise = random.bytes(1 << 20);
                file.write_all_at(&noise, offset).expect("write");
            }
        }
        golden.check(Rewind::No).await;
    }
}

/// A pool that a big-endian machine wrote. Method: see [`big_endian`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_of_the_other_byte_order_are_read() {
    let Some(golden) = golden() else { return };
    for (name, disks) in [
        ("nofeat", &["d0"][..]),
        ("v28", &["d0", "d1"]),
        ("v15_fs3", &["d0"]),
        ("big_dirs", &["d0"]),
    ] {
        let golden = Golden::unpack(&golden, name);
        let everything = ListOptions {
            snapshots: true,
            ..ListOptions::default()
        };
        let pool = import(&golden.world, &golden.dir, true).await;
        let before = pool
            .dsl()
            .directories()
            .list(&pool.name(), &everything)
            .await;
        let before = before.expect("list");
        let history = pool.history().await.expect("history").len();
        let names: Vec<String> = golden.trees(false).map(|(name, _)| name.into()).collect();
        let layouts = big_endian::layouts(&pool, &names).await;
        let ashift = pool.status().root.children[0].ashift.into();
        pool.export(false).await.expect("close");

        let disks: Vec<PathBuf> = disks
            .iter()
            .map(|disk| golden.dir.join(format!("{disk}.img")))
            .collect();
        let mut rewriter = big_endian::Rewriter::new(&disks, layouts);
        let uberblock = rewriter.rewrite(&golden.world, &disks[0], ashift).await;
        assert_eq!(uberblock.root.endian(), format::Endian::Big);
        assert!(rewriter.metadata > 100 && rewriter.data > 0, "{name}");

        let pool = import(&golden.world, &golden.dir, true).await;
        let after = pool
            .dsl()
            .directories()
            .list(&pool.name(), &everything)
            .await;
        let shown = |list: &[dataset::DatasetInfo]| {
            let line = |info: &dataset::DatasetInfo| {
                (
                    info.name.clone(),
                    info.guid,
                    info.used_bytes,
                    info.referenced_bytes,
                )
            };
            list.iter().map(line).collect::<Vec<_>>()
        };
        assert_eq!(shown(&before), shown(&after.expect("list")), "{name}");
        assert_eq!(pool.history().await.expect("history").len(), history);
        pool.export(false).await.expect("close");
        golden.check(Rewind::No).await;
    }
}
