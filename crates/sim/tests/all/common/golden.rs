//! Golden pools with encryption roots.

use std::path::{Path, PathBuf};
use std::process::Command;
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

fn load(name: &str, parents: &[&str]) -> Option<Golden> {
    let golden = std::env::var_os("MILLPOND_GOLDEN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden"),
        PathBuf::from,
    );
    if !golden.exists() {
        let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!is_ci, "MILLPOND_GOLDEN or ../shared/golden is needed");
        eprintln!("left out: neither MILLPOND_GOLDEN nor ../shared/golden is there");
        return None;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let status = Command::new("tar")
        .args(["--zstd", "-xSf"])
        .arg(golden.join(format!("{name}.tar.zst")))
        .arg("-C")
        .arg(dir.path())
        .status()
        .expect("tar");
    assert!(status.success(), "unpacking {name}");
    let manifest = std::fs::read(golden.join(format!("{name}.json"))).expect("a manifest");
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
