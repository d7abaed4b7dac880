//! Packages: what `zfs send` writes before several streams, or before one with properties
//! (`send_iterate_fs`, lib/libzfs/libzfs_sendrecv.c). It is the payload of a BEGIN of its own.
//!
//! The list names what it is made for (`fromsnap`, `tosnap`, `not_recursive`), and under `fss` each
//! filesystem by its GUID: name, properties, the GUIDs of its snapshots and of the one that its own
//! first snapshot follows.

use format::{NvList, NvValue};

/// A filesystem or volume of a package.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PackageDataset {
    /// Its GUID where it was sent.
    pub guid: u64,
    /// Its full name there.
    pub name: String,
    /// Properties, as numbers or text; of one that was received, what it was received with.
    pub properties: Vec<(String, NvValue)>,
    /// Whether properties are sent at all; there may be none all the same (`props`).
    pub has_properties: bool,
    /// GUIDs of its snapshots by name, as far as they are sent or the receiver must have them.
    pub snapshots: Vec<(String, u64)>,
    /// Properties of snapshots, by name.
    pub snapshot_properties: Vec<(String, Vec<(String, NvValue)>)>,
    /// Tags of holds on snapshots, by name.
    pub holds: Vec<(String, Vec<String>)>,
    /// GUID of the snapshot that it is a clone of.
    pub origin: Option<u64>,
    /// GUID of the snapshot of its parent that the parent's difference begins with.
    pub parent_from: u64,
    /// Its key is its own.
    pub is_encryption_root: bool,
}

/// What a package says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Package {
    /// Name of the snapshot that differences begin with.
    pub from: Option<String>,
    /// Name of the snapshot that is sent.
    pub to: Option<String>,
    /// Datasets below are not sent.
    pub is_not_recursive: bool,
    /// Encrypted datasets are sent raw.
    pub is_raw: bool,
    /// The datasets.
    pub datasets: Vec<PackageDataset>,
}

fn pairs(list: Option<&NvList>) -> Vec<(String, NvValue)> {
    let list = list.into_iter().flat_map(NvList::iter);
    list.map(|(name, value)| (name.to_owned(), value.clone()))
        .collect()
}

fn lists<T>(list: Option<&NvList>, each: impl Fn(&NvList) -> T) -> Vec<(String, T)> {
    let list = list.into_iter().flat_map(NvList::iter);
    list.filter_map(|(name, value)| match value {
        NvValue::List(list) => Some((name.to_owned(), each(list))),
        _ => None,
    })
    .collect()
}

impl Package {
    /// From the list in a stream; what is missing or of another type is left out.
    pub fn decode(list: &NvList) -> Self {
        let mut datasets = Vec::new();
        for (key, value) in list.list("fss").into_iter().flat_map(NvList::iter) {
            let NvValue::List(one) = value else { continue };
            let digits = key.strip_prefix("0x").unwrap_or(key);
            let snapshots = one.list("snaps").into_iter().flat_map(NvList::iter);
            datasets.push(PackageDataset {
                guid: u64::from_str_radix(digits, 16).unwrap_or(0),
                name: one.string("name").unwrap_or_default().to_owned(),
                properties: pairs(one.list("props")),
                has_properties: one.list("props").is_some(),
                snapshots: snapshots
                    .filter_map(|(name, value)| match value {
                        NvValue::UInt64(guid) => Some((name.to_owned(), *guid)),
                        _ => None,
                    })
                    .collect(),
                snapshot_properties: lists(one.list("snapprops"), |list| pairs(Some(list))),
                holds: lists(one.list("snapholds"), |list| {
                    list.iter().map(|(tag, _)| tag.to_owned()).collect()
                }),
                origin: one.u64("origin").filter(|origin| *origin != 0),
                parent_from: one.u64("parentfromsnap").unwrap_or(0),
                is_encryption_root: one.contains("is_encroot"),
            });
        }
        Package {
            from: list.string("fromsnap").map(str::to_owned),
            to: list.string("tosnap").map(str::to_owned),
            // One without a list of datasets is of one (`-I` alone).
            is_not_recursive: list.contains("not_recursive") || !list.contains("fss"),
            is_raw: list.contains("raw"),
            datasets,
        }
    }

    /// As a list.
    pub fn encode(&self) -> NvList {
        let list_of = |pairs: &[(String, NvValue)]| {
            let mut list = NvList::new();
            for (name, value) in pairs {
                list.push(name.as_str(), value.clone());
            }
            list
        };
        let mut all = NvList::new();
        for dataset in &self.datasets {
            let mut one = NvList::new();
            one.set("name", dataset.name.as_str());
            one.set("parentfromsnap", dataset.parent_from);
            if let Some(origin) = dataset.origin {
                one.set("origin", origin);
            }
            if dataset.has_properties {
                one.set("props", list_of(&dataset.properties));
            }
            if dataset.is_encryption_root {
                one.push("is_encroot", NvValue::Boolean);
            }
            let mut snapshots = NvList::new();
            for (name, guid) in &dataset.snapshots {
                snapshots.push(name.as_str(), *guid);
            }
            one.set("snaps", snapshots);
            let mut properties = NvList::new();
            for (name, pairs) in &dataset.snapshot_properties {
                properties.push(name.as_str(), list_of(pairs));
            }
            one.set("snapprops", properties);
            if !dataset.holds.is_empty() {
                let mut holds = NvList::new();
                for (name, tags) in &dataset.holds {
                    let mut list = NvList::new();
                    for tag in tags {
                        list.push(tag.as_str(), 0u64);
                    }
                    holds.push(name.as_str(), list);
                }
                one.set("snapholds", holds);
            }
            all.push(format!("0x{:x}", dataset.guid), one);
        }
        let mut list = NvList::new();
        if let Some(from) = &self.from {
            list.set("fromsnap", from.as_str());
        }
        if let Some(to) = &self.to {
            list.set("tosnap", to.as_str());
        }
        if self.is_not_recursive {
            list.push("not_recursive", NvValue::Boolean);
        }
        if self.is_raw {
            list.push("raw", NvValue::Boolean);
        }
        list.set("fss", all);
        list
    }

    /// The dataset of a snapshot, and the snapshot's name.
    pub fn find(&self, snapshot_guid: u64) -> Option<(&PackageDataset, &str)> {
        self.datasets.iter().find_map(|dataset| {
            let mut snapshots = dataset.snapshots.iter();
            let found = snapshots.find(|(_, guid)| *guid == snapshot_guid)?;
            Some((dataset, found.0.as_str()))
        })
    }
}

/// How the name of what is received follows from the name it had where it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Naming {
    /// The target is its name; what is below it comes below the target.
    #[default]
    Exact,
    /// All but the pool's name comes below the target (`-d`).
    WithoutPool,
    /// The last component comes below the target (`-e`).
    LastOnly,
}

/// The name that a snapshot gets (`zfs_receive_one`, lib/libzfs/libzfs_sendrecv.c). `top` is the
/// filesystem that was sent, `sent` the snapshot, both by their names there.
///
/// `None` where the target is a snapshot and must not be, and where the snapshot is not of what was
/// sent: no stream gets to what is beside the target, whatever names it says.
pub fn received_name(target: &str, naming: Naming, top: &str, sent: &str) -> Option<String> {
    let is_snapshot = target.contains('@');
    let rest = match naming {
        Naming::LastOnly | Naming::WithoutPool if is_snapshot => return None,
        Naming::LastOnly => {
            let below = sent.strip_prefix(top)?;
            if !(below.is_empty() || below.starts_with(['/', '@'])) {
                return None;
            }
            let last = top.rsplit('/').next().unwrap_or(top);
            format!("/{last}{below}")
        }
        Naming::WithoutPool => {
            let at = sent.find('/').or_else(|| sent.find('@'))?;
            sent[at..].to_owned()
        }
        Naming::Exact if is_snapshot => match sent.strip_prefix(top)?.starts_with('@') {
            true => String::new(),
            false => return None,
        },
        Naming::Exact => sent.strip_prefix(top)?.to_owned(),
    };
    let is_within = rest.is_empty() || rest.starts_with(['/', '@']);
    is_within.then(|| format!("{target}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_come_back() {
        let package = Package {
            from: Some("a".into()),
            to: Some("b".into()),
            is_not_recursive: true,
            is_raw: true,
            datasets: vec![PackageDataset {
                guid: 0xabc,
                name: "tank/fs".into(),
                properties: vec![("recordsize".into(), NvValue::UInt64(1 << 20))],
                has_properties: true,
                snapshots: vec![("a".into(), 1), ("b".into(), 2)],
                snapshot_properties: vec![(
                    "b".into(),
                    vec![("x:y".into(), NvValue::String("z".into()))],
                )],
                holds: vec![("b".into(), vec!["keep".into()])],
                origin: Some(9),
                parent_from: 5,
                is_encryption_root: true,
            }],
        };
        assert_eq!(Package::decode(&package.encode()), package);
        assert_eq!(package.find(2).map(|(_, name)| name), Some("b"));
        assert!(package.find(3).is_none());
    }

    #[test]
    fn names_follow_from_where_it_was_sent() {
        let name = |target, naming| received_name(target, naming, "p/a/b", "p/a/b/c@s");
        assert_eq!(name("t/x", Naming::Exact).as_deref(), Some("t/x/c@s"));
        assert_eq!(
            name("t/x", Naming::WithoutPool).as_deref(),
            Some("t/x/a/b/c@s")
        );
        assert_eq!(name("t/x", Naming::LastOnly).as_deref(), Some("t/x/b/c@s"));
        assert_eq!(name("t/x@y", Naming::Exact), None);
        let name = |target, naming| received_name(target, naming, "p", "p@s");
        assert_eq!(name("t/x@y", Naming::Exact).as_deref(), Some("t/x@y"));
        assert_eq!(name("t", Naming::LastOnly).as_deref(), Some("t/p@s"));
        assert_eq!(name("t", Naming::WithoutPool).as_deref(), Some("t@s"));
    }

    /// What comes of a name that says another dataset than the one that was sent.
    #[test]
    fn nothing_gets_beside_the_target() {
        for (top, sent) in [
            ("p", "p-prod@s"),
            ("p/a", "p/ab@s"),
            ("p/a", "q/a@s"),
            ("p/a", "p/abc/d@s"),
        ] {
            for naming in [Naming::Exact, Naming::LastOnly] {
                assert_eq!(received_name("t/x", naming, top, sent), None, "{sent}");
            }
        }
        let name = received_name("t/x", Naming::WithoutPool, "p", "p-prod@s");
        assert_eq!(name.as_deref(), Some("t/x@s"));
    }
}
