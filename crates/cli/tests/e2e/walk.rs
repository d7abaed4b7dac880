//! Goal: what OpenZFS wrote looks through our mounts as it looked through those of OpenZFS, in
//! every field, snapshots below `.zfs/snapshot` and volumes as files included. Method: golden pools
//! (shared/golden/README.md), imported read-only below an altroot and walked with the ordinary
//! system calls; every path of every tree in the manifest is compared: type, mode, owner, links,
//! number, times, space, content, target, device, extended attributes. To add a pool, add its name
//! below.
//!
//! Two fields cannot come through FUSE. Times of birth need the request `FUSE_STATX`, so they are
//! compared where the mount tells them. The number of a snapshot's root in a manifest is that of
//! the directory which OpenZFS mounted it at, made up at that moment. And all snapshots are one
//! device here, so the numbers of their files have something more in the upper 16 bits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom as Sparse;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::golden::Golden;
use crate::harness::can_mount;

/// Longer files have no hash in the manifests.
const HASHED_BYTES_MAX: u64 = 1 << 30;
/// Differences shown before a test gives up.
const SHOWN_MAX: usize = 40;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A name, target or path, which is in hex where it is not UTF-8.
fn bytes_of(entry: &Value, plain: &str) -> Option<Vec<u8>> {
    match entry[format!("{plain}_hex")].as_str() {
        Some(text) => {
            let pair = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
            Some((0..text.len()).step_by(2).map(pair).collect())
        }
        None => entry[plain].as_str().map(|text| text.as_bytes().to_vec()),
    }
}

fn kind_word(found: &Metadata) -> &'static str {
    let kind = found.file_type();
    match () {
        () if kind.is_dir() => "dir",
        () if kind.is_symlink() => "symlink",
        () if kind.is_fifo() => "fifo",
        () if kind.is_socket() => "socket",
        () if kind.is_char_device() => "char",
        () if kind.is_block_device() => "block",
        () => "file",
    }
}

fn hash(file: &mut File) -> String {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).expect("read") {
            0 => return hex(&hasher.finalize()),
            count => hasher.update(&buffer[..count]),
        }
    }
}

/// The hash of a file that is read only where `lseek` says that there is data, and that is zero
/// elsewhere; and whether it had holes at all.
fn hash_by_extents(file: &mut File, size: u64) -> (String, bool) {
    let mut hasher = Sha256::new();
    let zeroes = vec![0; 1 << 20];
    let (mut at, mut holes) = (0, false);
    while at < size {
        let data = match rustix::fs::seek(&*file, Sparse::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => size,
            Err(error) => panic!("SEEK_DATA: {error}"),
        };
        assert!(data >= at, "SEEK_DATA went back from {at} to {data}");
        holes |= data > at;
        while at < data {
            let part = (data - at).min(zeroes.len() as u64);
            hasher.update(&zeroes[..part as usize]);
            at += part;
        }
        if at < size {
            let hole = rustix::fs::seek(&*file, Sparse::Hole(at)).expect("SEEK_HOLE");
            assert!(hole > at && hole <= size, "SEEK_HOLE at {at}: {hole}");
            let mut buffer = vec![0; (hole - at) as usize];
            file.seek(SeekFrom::Start(at)).expect("seek");
            file.read_exact(&mut buffer).expect("read");
            hasher.update(&buffer);
            at = hole;
        }
    }
    (hex(&hasher.finalize()), holes)
}

fn xattrs_of(path: &Path) -> BTreeMap<String, String> {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut names).expect("names of attributes");
    let mut value = vec![0; 1 << 17];
    names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let length = rustix::fs::lgetxattr(path, name, &mut value).expect("an attribute");
            (
                String::from_utf8_lossy(name).into_owned(),
                hex(&value[..length]),
            )
        })
        .collect()
}

/// Every path below a directory, `/` for itself, but not what other filesystems hold that are
/// mounted there.
fn paths_below(root: &Path) -> BTreeSet<Vec<u8>> {
    let device = root.symlink_metadata().expect("the root").dev();
    let mut found = BTreeSet::from([b"/".to_vec()]);
    let mut left = vec![(root.to_owned(), Vec::new())];
    while let Some((directory, path)) = left.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory") {
            let entry = entry.expect("an entry");
            let mut below = path.clone();
            below.push(b'/');
            below.extend_from_slice(entry.file_name().as_bytes());
            let metadata = entry.path().symlink_metadata().expect("attributes");
            if metadata.is_dir() && metadata.dev() == device && below != b"/.zfs" {
                left.push((entry.path(), below.clone()));
            }
            found.insert(below);
        }
    }
    found
}

/// Compares a mounted snapshot, which was received, with a manifest's tree. How much space files
/// take is up to the compressor.
pub fn compare_received(name: &str, root: &Path, tree: &[Value]) {
    let mut walk = Walk {
        golden: None,
        wrong: Vec::new(),
        files: 0,
        sparse: 0,
    };
    walk.tree(name, root, tree);
    assert!(walk.wrong.is_empty(), "{}", walk.wrong.join("\n"));
    assert!(walk.files > 0);
}

struct Walk<'a> {
    /// Where the pool is golden itself.
    golden: Option<&'a Golden>,
    wrong: Vec<String>,
    files: usize,
    sparse: usize,
}

impl Walk<'_> {
    fn differs(&mut self, what: String) {
        self.wrong.push(what);
        assert!(self.wrong.len() < SHOWN_MAX, "{}", self.wrong.join("\n"));
    }

    /// Compares a mounted tree with the manifest's.
    fn tree(&mut self, name: &str, root: &Path, tree: &[Value]) {
        let mut missing = paths_below(root);
        for entry in tree {
            let path = bytes_of(entry, "path").expect("a path");
            missing.remove(&path);
            // What OpenZFS makes up here are times of looking at it.
            if path.starts_with(b"/.zfs/") {
                continue;
            }
            let below = path.strip_prefix(b"/").expect("from the root");
            let mut full = root.to_owned();
            if !below.is_empty() {
                full.push(std::ffi::OsString::from_vec(below.to_vec()));
            }
            self.entry(name, &path, &full, entry);
        }
        for path in missing {
            self.differs(format!(
                "{name}: {} should not be there",
                String::from_utf8_lossy(&path)
            ));
        }
    }

    fn entry(&mut self, name: &str, path: &[u8], full: &Path, entry: &Value) {
        let shown = format!("{name}: {}", String::from_utf8_lossy(path));
        let found = match full.symlink_metadata() {
            Ok(found) => found,
            Err(error) => return self.differs(format!("{shown}: {error}")),
        };
        self.files += 1;
        let kind = kind_word(&found);
        if entry["type"] != kind {
            self.differs(format!("{shown}: a {kind}, not {}", entry["type"]));
        }
        let mode = format!("{:04o}", found.mode() & 0o7777);
        if entry["mode"] != *mode {
            self.differs(format!("{shown}: mode {mode}, not {}", entry["mode"]));
        }
        let ns = |seconds: i64, nanoseconds: i64| {
            i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
        };
        let born = found.created().ok().map(|born| {
            let epoch = std::time::UNIX_EPOCH;
            match born.duration_since(epoch) {
                Ok(after) => after.as_nanos() as i128,
                Err(before) => -(before.duration().as_nanos() as i128),
            }
        });
        let is_control = path == b"/.zfs";
        let number_mask = if name.contains('@') {
            (1 << 48) - 1
        } else {
            u64::MAX
        };
        let numbers = [
            ("uid", Some(i128::from(found.uid()))),
            ("gid", Some(i128::from(found.gid()))),
            ("size", Some(i128::from(found.size()))),
            ("nlink", Some(i128::from(found.nlink()))),
            ("ino", Some(i128::from(found.ino() & number_mask))),
            ("mtime", Some(ns(found.mtime(), found.mtime_nsec()))),
            ("atime", Some(ns(found.atime(), found.atime_nsec()))),
            ("ctime", Some(ns(found.ctime(), found.ctime_nsec()))),
            ("crtime", born),
            ("blocks512", Some(i128::from(found.blocks()))),
        ];
        for (field, value) in numbers {
            let is_snapshots_root = field == "ino" && path == b"/" && name.contains('@');
            let is_of_compressor = field == "blocks512" && self.golden.is_none();
            if is_snapshots_root || is_control && field.ends_with("time") || is_of_compressor {
                continue;
            }
            if let (Some(mut wanted), Some(value)) = (entry[field].as_i64().map(i128::from), value)
            {
                // Moments before 1970 were read from text like "-3.5" by the manifest's maker,
                // which is half a second after 3 seconds before.
                if wanted < 0 && field.ends_with("time") {
                    wanted -= 2 * (wanted % 1_000_000_000);
                }
                if value != wanted {
                    self.differs(format!("{shown}: {field} {value}, not {wanted}"));
                }
            }
        }
        if let Some(rdev) = entry["rdev"].as_array() {
            let device = found.rdev();
            let ours = [rustix::fs::major(device), rustix::fs::minor(device)];
            if rdev[0] != ours[0] || rdev[1] != ours[1] {
                self.differs(format!("{shown}: device {ours:?}, not {rdev:?}"));
            }
        }
        if let Some(target) = bytes_of(entry, "target") {
            let ours = std::fs::read_link(full).expect("a target");
            if ours.as_os_str().as_bytes() != target {
                self.differs(format!("{shown}: target {}", ours.display()));
            }
        }
        if kind == "file"
            && let Some(wanted) = entry["sha256"].as_str()
        {
            self.content(&shown, full, &found, wanted);
        }
        let wanted: BTreeMap<String, String> = entry["xattrs"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), value.as_str().expect("hex").to_owned()))
            .collect();
        let ours = xattrs_of(full);
        if ours != wanted {
            self.differs(format!("{shown}: attributes {ours:?}, not {wanted:?}"));
        }
    }

    fn content(&mut self, shown: &str, full: &Path, found: &Metadata, wanted: &str) {
        assert!(found.size() <= HASHED_BYTES_MAX);
        let mut file = match File::open(full) {
            Ok(file) => file,
            Err(error) => return self.differs(format!("{shown}: {error}")),
        };
        if hash(&mut file) != wanted {
            self.differs(format!("{shown}: content"));
        }
        if found.blocks() * 512 < found.size() {
            let (hash, holes) = hash_by_extents(&mut file, found.size());
            self.sparse += usize::from(holes);
            if hash != wanted {
                self.differs(format!("{shown}: content by SEEK_DATA and SEEK_HOLE"));
            }
        }
    }

    /// The manifest's list of volumes that a read-only import sees.
    fn volumes(&mut self) {
        let Some(golden) = self.golden else { return };
        let manifest = &golden.manifest;
        let volumes = match manifest["zvols_without_replay"].as_array() {
            Some(volumes) => volumes,
            None => match manifest["zvols"].as_array() {
                Some(volumes) => volumes,
                None => return,
            },
        };
        for volume in volumes {
            let name = volume["name"].as_str().expect("a name");
            let file = golden.server.state().join("zvol").join(name);
            let head = name.split('@').next().expect("a name");
            let snapdev = golden.value(head, "snapdev");
            if name.contains('@') && snapdev == "hidden" {
                assert!(!file.exists(), "{name} is hidden");
                continue;
            }
            let Ok(mut open) = File::open(&file) else {
                self.differs(format!("{}: cannot be opened", file.display()));
                continue;
            };
            let size = open.metadata().expect("attributes").size();
            if volume["volsize"] != size {
                self.differs(format!("{name}: {size} bytes, not {}", volume["volsize"]));
            }
            if volume["sha256"] != *hash(&mut open) {
                self.differs(format!("{name}: content"));
            }
            let error = File::options()
                .write(true)
                .open(&file)
                .expect_err("read-only");
            let kind = error.kind();
            assert_eq!(kind, std::io::ErrorKind::ReadOnlyFilesystem, "{name}");
        }
    }
}

fn check(name: &str) {
    if !can_mount() {
        return;
    }
    let Some(golden) = Golden::unpack(name) else {
        return;
    };
    let root = golden.server.text("root");
    golden.server.ok(&format!(
        "zpool import -o readonly=on -N -R {root} -d {} {}",
        golden.directory, golden.pool
    ));
    let manifest = golden.manifest.clone();
    for key in manifest["keys"].as_array().into_iter().flatten() {
        let text = key["key"].as_str().expect("a key");
        let input = match key["format"].as_str() {
            Some("raw") => crate::keys::bytes(text),
            _ => text.as_bytes().to_vec(),
        };
        let dataset = key["dataset"].as_str().expect("a dataset");
        let command = format!("zfs load-key -L prompt {dataset}");
        let output = crate::keys::with_input(&golden.server, &command, &input);
        assert!(
            output.status.success(),
            "{command}: {}",
            crate::harness::text_of(&output)
        );
    }
    let trees = match &manifest["trees_without_replay"] {
        Value::Null => &manifest["trees"],
        trees => trees,
    };
    let trees = trees.as_object().expect("trees");
    let mut walk = Walk {
        golden: Some(&golden),
        wrong: Vec::new(),
        files: 0,
        sparse: 0,
    };
    // The manifests are of one filesystem at a time: a child that is mounted hides the directory
    // that it is mounted on.
    let mut heads: BTreeMap<&str, Vec<(&str, &[Value])>> = BTreeMap::new();
    for (dataset, tree) in trees {
        // The state at a checkpoint is another import's.
        if !dataset.starts_with("AT_CHECKPOINT:") {
            let head = dataset.split('@').next().expect("a name");
            let tree = tree.as_array().expect("a list");
            heads.entry(head).or_default().push((dataset, tree));
        }
    }
    let mut expected = 0;
    for (head, trees) in heads {
        let mountpoint = golden.value(head, "mountpoint");
        if mountpoint == "legacy" {
            // OpenZFS has it mounted by mount(8).
            let error = golden.server.fails(&format!("zfs mount {head}"));
            assert!(error.contains("legacy"), "{error}");
            continue;
        }
        golden.server.ok(&format!("zfs mount {head}"));
        for (dataset, tree) in trees {
            let mut place = PathBuf::from(&mountpoint);
            if let Some((_, snapshot)) = dataset.split_once('@') {
                place.extend([".zfs", "snapshot", snapshot]);
            }
            let paths = tree.iter().filter_map(|entry| bytes_of(entry, "path"));
            expected += paths.filter(|path| !path.starts_with(b"/.zfs/")).count();
            walk.tree(dataset, &place, tree);
        }
        // Another test's child may have our files open for as long as it has not become its
        // program.
        golden.server.wait_until("it is not in use", || {
            let output = golden.server.command(&["zfs", "unmount", head]);
            output.status.success()
        });
    }
    walk.volumes();
    assert!(walk.wrong.is_empty(), "{}", walk.wrong.join("\n"));
    assert_eq!(walk.files, expected);
    eprintln!("{name}: {} paths, {} with holes", walk.files, walk.sparse);
    golden.server.ok(&format!("zpool export {}", golden.pool));
}

macro_rules! golden_pools {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name));
        }
    )*};
}

golden_pools!(
    plain mirror3 stripe_of_mirrors raidz1_3 raidz1_5 raidz2_6 raidz2_multi raidz3_8 nofeat v28
    v15_fs3 stale big_dirs damaged damaged_raidz special gang gang_raidz checkpoint
    cloned_blocks degraded removed removing draid draid_spare raidz_expanded raidz_expanding
    dedup_fast dedup_legacy logs_cache encrypted zil_dirty zil_dirty_slog
);
