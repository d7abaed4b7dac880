//! Pool configurations: the nvlists in labels, in the MOS, and in pool caches.
//!
//! Names of pairs are those of include/sys/fs/zfs.h (`ZPOOL_CONFIG_*`).

use std::collections::BTreeMap;

use format::{Guid, NvList, NvValue, VdevId};

/// `POOL_STATE_ACTIVE`.
pub const STATE_ACTIVE: u64 = 0;
/// `POOL_STATE_EXPORTED`.
pub const STATE_EXPORTED: u64 = 1;
/// `POOL_STATE_DESTROYED`.
pub const STATE_DESTROYED: u64 = 2;
/// `POOL_STATE_SPARE`.
pub const STATE_SPARE: u64 = 3;
/// `POOL_STATE_L2CACHE`.
pub const STATE_L2CACHE: u64 = 4;
/// Top-level vdevs that are believed, at most.
pub const TOPS_MAX: u64 = 1 << 16;

/// A vdev's children; none for a leaf.
pub fn children(vdev: &NvList) -> &[NvList] {
    vdev.lists("children").unwrap_or(&[])
}

/// Whether the vdev is a device.
pub fn is_leaf(vdev: &NvList) -> bool {
    matches!(vdev.string("type"), Some("disk" | "file"))
}

/// Calls `visit` with the vdev and all below it.
pub fn for_each_mut(vdev: &mut NvList, visit: &mut dyn FnMut(&mut NvList)) {
    visit(vdev);
    if let Some(NvValue::ListArray(children)) = vdev.get_mut("children") {
        for child in children {
            for_each_mut(child, visit);
        }
    }
}

/// Calls `visit` with the vdev and all below it.
pub fn for_each(vdev: &NvList, visit: &mut dyn FnMut(&NvList)) {
    visit(vdev);
    for child in children(vdev) {
        for_each(child, visit);
    }
}

/// Gives every device the path where it was found today.
pub fn fix_paths(vdev: &mut NvList, paths: &BTreeMap<Guid, String>) {
    for_each_mut(vdev, &mut |vdev| {
        if is_leaf(vdev)
            && let Some(path) = vdev
                .u64("guid")
                .and_then(|guid| paths.get(&Guid::new(guid)))
        {
            vdev.set("path", path.as_str());
            // These would lead to where the device was on another system.
            vdev.remove("devid");
            vdev.remove("phys_path");
        }
    });
}

/// Names the devices that were not found.
pub fn missing_leaves(vdev: &NvList, paths: &BTreeMap<Guid, String>, missing: &mut Vec<String>) {
    if vdev.string("type") == Some("missing") {
        missing.push(format!("top-level vdev {}", vdev.u64("id").unwrap_or(0)));
    }
    for_each(vdev, &mut |vdev| {
        if is_leaf(vdev) {
            let guid = vdev.u64("guid").unwrap_or(0);
            if !paths.contains_key(&Guid::new(guid)) {
                missing.push(
                    vdev.string("path")
                        .map_or_else(|| guid.to_string(), str::to_owned),
                );
            }
        }
    });
}

/// How many devices a vdev can still lose, plus one; zero if it cannot work.
pub fn redundancy_left(vdev: &NvList, paths: &BTreeMap<Guid, String>) -> u64 {
    let working = || {
        children(vdev)
            .iter()
            .filter(|child| redundancy_left(child, paths) > 0)
            .count() as u64
    };
    match vdev.string("type") {
        Some("disk" | "file") => u64::from(
            vdev.u64("guid")
                .is_some_and(|guid| paths.contains_key(&Guid::new(guid))),
        ),
        // What a dRAID spare has is on the other devices of its vdev.
        Some("hole" | "indirect" | "dspare") => 1,
        Some("mirror" | "replacing" | "spare") => working(),
        Some("raidz" | "draid") => {
            let lost = children(vdev).len() as u64 - working();
            (vdev.u64("nparity").unwrap_or(1) + 1).saturating_sub(lost)
        }
        _ => 0,
    }
}

/// What a configuration says about a pool, besides its vdevs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolPairs {
    /// Version of the pool's format; 5000 has feature flags.
    pub version: u64,
    /// Name.
    pub name: String,
    /// `POOL_STATE_*`.
    pub state: u64,
    /// Transaction group in which the configuration is written.
    pub txg: u64,
    /// Identity.
    pub guid: u64,
    /// Number of what is known to be wrong with it.
    pub errata: u64,
    /// Property `comment`.
    pub comment: Option<String>,
    /// Property `compatibility`.
    pub compatibility: Option<String>,
    /// Of the host that has it open; zero without.
    pub hostid: u64,
    /// The name of that host.
    pub hostname: String,
    /// Ids of removed top-level vdevs.
    pub holes: Vec<u64>,
    /// Features without which the MOS cannot be read.
    pub label_features: Vec<String>,
    /// The pool that this one was split off; zero without.
    pub split_guid: u64,
    /// Devices that are being split off, by top-level vdev; zero for none.
    pub splitting: Vec<u64>,
}

impl PoolPairs {
    fn head(&self) -> NvList {
        let mut list = NvList::new();
        list.set("version", self.version)
            .set("name", self.name.as_str())
            .set("state", self.state)
            .set("txg", self.txg)
            .set("pool_guid", self.guid)
            .set("errata", self.errata);
        if let Some(comment) = &self.comment {
            list.set("comment", comment.as_str());
        }
        if let Some(compatibility) = &self.compatibility {
            list.set("compatibility", compatibility.as_str());
        }
        if self.hostid != 0 {
            list.set("hostid", self.hostid);
        }
        list.set("hostname", self.hostname.as_str());
        if self.split_guid != 0 {
            list.set("split_guid", self.split_guid);
        }
        list
    }

    fn tail(&self, list: &mut NvList) {
        if !self.holes.is_empty() {
            list.set("hole_array", NvValue::UInt64Array(self.holes.clone()));
        }
    }

    fn features(&self) -> NvValue {
        let mut features = NvList::new();
        for feature in &self.label_features {
            features.set(feature, NvValue::Boolean);
        }
        NvValue::List(features)
    }

    /// The configuration kept in the MOS, with the vdevs below `root`.
    pub fn mos_config(&self, root: &NvList) -> NvList {
        let mut root = root.clone();
        // Known from the vdevs' ZAPs.
        for_each_mut(&mut root, &mut |vdev| {
            vdev.remove("alloc_bias");
        });
        let mut list = self.head();
        list.set("com.delphix:has_per_vdev_zaps", NvValue::Boolean);
        let mut split = NvList::new();
        if self.split_guid != 0 {
            split.set("split_guid", self.split_guid);
        }
        if !self.splitting.is_empty() {
            split.set("guid_list", NvValue::UInt64Array(self.splitting.clone()));
        }
        if self.split_guid != 0 || !self.splitting.is_empty() {
            list.set("splitcfg", NvValue::List(split));
        }
        list.set("vdev_children", children(&root).len() as u64);
        self.tail(&mut list);
        list.set("vdev_tree", NvValue::List(root));
        list.set("features_for_read", self.features());
        list
    }

    /// The part of a label's configuration that is the same on all devices.
    pub fn label_config(&self) -> NvList {
        let mut list = self.head();
        self.tail(&mut list);
        list.set("features_for_read", self.features());
        list
    }
}

/// Pair of the root vdev's ZAP.
pub const ROOT_ZAP: &str = "com.klarasystems:vdev_zap_root";
pub use space::names::TOP_ZAP;
pub use vdev::{REBUILD_TXG, RESILVER_TXG};
/// Pair of a leaf's ZAP.
pub const LEAF_ZAP: &str = "com.delphix:vdev_zap_leaf";

/// A ZAP that some vdev should have and has not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingZap {
    /// The vdev.
    pub guid: u64,
    /// Its type.
    pub kind: String,
    /// Name of the pair for the ZAP's object number.
    pub pair: &'static str,
    /// The top-level vdev, for [`TOP_ZAP`].
    pub top: Option<VdevId>,
    /// What goes into the ZAP of a top-level vdev that is not for ordinary data.
    pub allocation_bias: Option<String>,
}

/// The ZAPs to make, in the order in which OpenZFS makes them.
pub fn missing_zaps(root: &NvList, with_root: bool) -> Vec<MissingZap> {
    let mut missing = Vec::new();
    let want = |vdev: &NvList, pair, top| MissingZap {
        guid: vdev.u64("guid").unwrap_or(0),
        kind: vdev.string("type").unwrap_or("").to_owned(),
        pair,
        top,
        allocation_bias: if pair == TOP_ZAP {
            vdev.string("alloc_bias")
                .or((vdev.u64("is_log") == Some(1)).then_some("log"))
                .map(str::to_owned)
        } else {
            None
        },
    };
    let none = |vdev: &NvList, pair| vdev.u64(pair).unwrap_or(0) == 0;
    if with_root && none(root, ROOT_ZAP) {
        missing.push(want(root, ROOT_ZAP, None));
    }
    for top in children(root) {
        if matches!(top.string("type"), Some("hole" | "missing")) || top.u64("removing") == Some(1)
        {
            continue;
        }
        if is_leaf(top) && none(top, LEAF_ZAP) {
            missing.push(want(top, LEAF_ZAP, None));
        }
        if none(top, TOP_ZAP) {
            let id = top
                .u64("id")
                .and_then(|id| u32::try_from(id).ok())
                .map(VdevId::new);
            missing.push(want(top, TOP_ZAP, id));
        }
        for child in children(top) {
            for_each(child, &mut |vdev| {
                let has_zap = is_leaf(vdev) || vdev.string("type") == Some("dspare");
                if has_zap && none(vdev, LEAF_ZAP) {
                    missing.push(want(vdev, LEAF_ZAP, None));
                }
            });
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(guid: u64, path: &str) -> NvList {
        let mut list = NvList::new();
        list.set("type", "disk").set("guid", guid).set("path", path);
        list
    }

    fn group(kind: &str, leaves: Vec<NvList>) -> NvList {
        let mut list = NvList::new();
        list.set("type", kind).set("nparity", 1u64);
        list.set("children", NvValue::ListArray(leaves));
        list
    }

    #[test]
    fn redundancy_is_counted_by_layout() {
        let all: BTreeMap<Guid, String> = (1..=3)
            .map(|guid| (Guid::new(guid), format!("/new/{guid}")))
            .collect();
        let one: BTreeMap<Guid, String> =
            all.iter().take(1).map(|(k, v)| (*k, v.clone())).collect();
        let two: BTreeMap<Guid, String> =
            all.iter().take(2).map(|(k, v)| (*k, v.clone())).collect();
        let leaves = || vec![leaf(1, "/a"), leaf(2, "/b"), leaf(3, "/c")];
        let mirror = group("mirror", leaves());
        let raidz = group("raidz", leaves());
        assert_eq!(redundancy_left(&mirror, &all), 3);
        assert_eq!(redundancy_left(&mirror, &one), 1);
        assert_eq!(redundancy_left(&raidz, &all), 2);
        assert_eq!(redundancy_left(&raidz, &two), 1);
        assert_eq!(redundancy_left(&raidz, &one), 0);
        let mut missing = Vec::new();
        missing_leaves(&raidz, &two, &mut missing);
        assert_eq!(missing, vec!["/c".to_owned()]);
    }

    #[test]
    fn paths_are_todays() {
        let paths = BTreeMap::from([(Guid::new(2), "/new/b".to_owned())]);
        let mut mirror = group("mirror", vec![leaf(1, "/a"), leaf(2, "/b")]);
        fix_paths(&mut mirror, &paths);
        let found: Vec<&str> = children(&mirror)
            .iter()
            .filter_map(|leaf| leaf.string("path"))
            .collect();
        assert_eq!(found, ["/a", "/new/b"]);
    }
}
