//! Golden pools on simulated disks.

use std::path::PathBuf;
use std::sync::OnceLock;

use sim::golden::Golden;

/// All cipher suites, own and inherited keys, deduplication, big records; one disk.
pub fn encrypted() -> Option<&'static Golden> {
    static POOL: OnceLock<Option<Golden>> = OnceLock::new();
    let parents = [
        "encrypted",
        "encrypted/aes-128-ccm",
        "encrypted/aes-192-gcm",
        "encrypted/aes-256-ccm",
        "encrypted/dedup",
        "encrypted/enc/child",
        "encrypted/enc/hexkey",
        "encrypted/rawkey",
        "encrypted/zpl",
    ];
    POOL.get_or_init(|| load("encrypted", &parents)).as_ref()
}

/// Logs that OpenZFS left, on a mirror for them; one of the filesystems is encrypted.
pub fn zil_dirty() -> Option<&'static Golden> {
    static POOL: OnceLock<Option<Golden>> = OnceLock::new();
    let parents = [
        "zil_dirty_slog/enc",
        "zil_dirty_slog",
        "zil_dirty_slog/rec1m",
    ];
    POOL.get_or_init(|| load("zil_dirty_slog", &parents))
        .as_ref()
}

/// Files of which some lie on vdevs that were removed.
pub fn removed() -> Option<&'static Golden> {
    static POOL: OnceLock<Option<Golden>> = OnceLock::new();
    POOL.get_or_init(|| load("removed", &["removed"])).as_ref()
}

fn load(name: &str, parents: &[&str]) -> Option<Golden> {
    let golden = oracles::golden()?;
    let dir = tempfile::tempdir().expect("a temporary directory");
    oracles::unpack(&golden, name, dir.path());
    let manifest = oracles::manifest(&golden, name);
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let list = |of: &str| manifest[of].as_array().cloned().unwrap_or_default();
    let text = |of: &serde_json::Value, field: &str| {
        of[field]
            .as_str()
            .expect("a text of the manifest")
            .to_owned()
    };
    let images: Vec<PathBuf> = list("vdevs")
        .iter()
        .map(|vdev| dir.path().join(text(vdev, "file")))
        .collect();
    let keys: Vec<(String, String)> = list("keys")
        .iter()
        .map(|key| (text(key, "dataset"), text(key, "key")))
        .collect();
    Some(Golden::load(&images, &keys, parents).expect("a golden pool"))
}
