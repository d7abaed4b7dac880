//! Labels of pools that OpenZFS made: every configuration and every uberblock decodes, encodes to
//! the same bytes, and says what the pool's manifest says.
//!
//! The pools are looked for in `MILLPOND_GOLDEN` or `../shared/golden` beside the workspace, as
//! `NAME.tar.zst` with `NAME.json`, or unpacked as `NAME/*.img`. Without them the test says so
//! and passes, but under `CI=true` it fails.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use format::{
    Eck, Feature, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET, LABEL_COUNT, NvEncoding, NvList,
    Uberblock, VdevId, label_offset, names, uberblock_shift, uberblock_slot_offset,
    uberblock_slots,
};

/// The images of a pool: those that are there, or unpacked into `scratch`.
fn images(golden: &Path, pool: &str, scratch: &Path) -> Vec<PathBuf> {
    let unpacked = golden.join(pool);
    oracles::images(&match unpacked.is_dir() {
        true => unpacked,
        false => oracles::unpack(golden, pool, scratch),
    })
}

fn read(file: &File, at: u64, length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    file.read_exact_at(&mut out, at)
        .expect("an image can be read");
    out
}

struct Found {
    configs: usize,
    uberblocks: usize,
    pool_guids: BTreeSet<u64>,
}

/// Reads the labels of an image. A label may be blank (a spare that never was used), but what has
/// the magic of a checksum must decode.
fn check_labels(path: &Path, found: &mut Found) {
    let file = File::open(path).expect("an image");
    let size = file.metadata().expect("its size").len();
    for label in 0..LABEL_COUNT {
        let at = label_offset(size, label).expect("room for labels");
        let bytes = read(&file, at + LABEL_CONFIG_OFFSET, LABEL_CONFIG_BYTES);
        if Eck::decode_tail(&bytes).is_err() {
            continue;
        }
        let name = format!("{} label {label}", path.display());
        let (config, length) =
            NvList::decode_prefix(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let again = config.encode(NvEncoding::Xdr).expect("it encodes");
        assert!(again == bytes[..length], "{name}: encodes to other bytes");
        let native = config
            .encode(NvEncoding::Native)
            .expect("it encodes natively");
        assert_eq!(
            NvList::decode(&native).expect("and decodes"),
            config,
            "{name}"
        );
        found.configs += 1;
        // Spares and cache devices say only what they are.
        let Some(tree) = config.list(names::config::VDEV_TREE) else {
            continue;
        };
        found.pool_guids.insert(
            config
                .require_u64(names::config::POOL_GUID)
                .expect("a guid"),
        );
        if let Some(features) = config.list(names::config::FEATURES_FOR_READ) {
            for (guid, _) in features.iter() {
                let feature = Feature::from_guid(guid).expect("a known feature");
                assert!(feature.info().in_label, "{name}: {guid}");
            }
        }
        let ashift = tree.require_u64(names::config::ASHIFT).expect("an ashift") as u32;
        let mut in_label = 0;
        for slot in 0..uberblock_slots(ashift) {
            let length = 1usize << uberblock_shift(ashift);
            let bytes = read(&file, at + uberblock_slot_offset(ashift, slot), length);
            let Ok(uberblock) = Uberblock::decode(&bytes) else {
                continue;
            };
            // A vdev that is added gets an uberblock of txg 0 without a checksum, never to be used.
            if Eck::decode_tail(&bytes).is_err() {
                assert!(uberblock.txg.is_zero(), "{name} slot {slot}: no checksum");
                continue;
            }
            let again = uberblock.encode();
            assert!(
                again == bytes[..again.len()],
                "{name} slot {slot}: encodes to other bytes"
            );
            assert!(
                bytes[again.len()..length - Eck::BYTES]
                    .iter()
                    .all(|byte| *byte == 0)
            );
            uberblock
                .root
                .validate()
                .unwrap_or_else(|error| panic!("{name} {slot}: {error}"));
            assert!(
                uberblock
                    .root
                    .dvas()
                    .all(|dva| dva.vdev() < VdevId::new(16)),
                "{name}"
            );
            in_label += 1;
        }
        found.uberblocks += in_label;
    }
}

#[test]
fn labels_of_all_golden_pools_decode() {
    let Some(golden) = oracles::golden() else {
        return;
    };
    let mut pools = BTreeSet::new();
    for entry in std::fs::read_dir(&golden).expect("the golden directory") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if let Some(pool) = name.strip_suffix(".tar.zst") {
            pools.insert(pool.to_owned());
        } else if path.is_dir()
            && std::fs::read_dir(&path)
                .expect("a directory")
                .flatten()
                .any(|file| file.path().extension().is_some_and(|e| e == "img"))
        {
            pools.insert(name.to_owned());
        }
    }
    assert!(!pools.is_empty(), "no pools in {}", golden.display());
    for pool in pools {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut found = Found {
            configs: 0,
            uberblocks: 0,
            pool_guids: BTreeSet::new(),
        };
        for image in images(&golden, &pool, scratch.path()) {
            check_labels(&image, &mut found);
        }
        assert!(
            found.configs >= 4,
            "{pool}: {} configurations",
            found.configs
        );
        assert!(
            found.uberblocks >= 4,
            "{pool}: {} uberblocks",
            found.uberblocks
        );
        let manifest = golden.join(format!("{pool}.json"));
        if let Ok(text) = std::fs::read_to_string(manifest) {
            let manifest: serde_json::Value = serde_json::from_str(&text).expect("a manifest");
            let guid = &manifest["pool_guid"];
            let guid = guid
                .as_str()
                .map_or_else(|| guid.to_string(), str::to_owned);
            assert!(
                found
                    .pool_guids
                    .iter()
                    .any(|found| found.to_string() == guid),
                "{pool}: {guid} is not among {:?}",
                found.pool_guids
            );
        }
    }
}
