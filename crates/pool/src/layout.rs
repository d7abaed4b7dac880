//! What a new pool is made of: names, devices and their layout.
//!
//! Checks that need no device, then looks at the devices, then the configuration of the vdevs.
//!
//! Source: module/zfs/spa.c `spa_create`, vdev.c `vdev_metaslab_set_size`, vdev_label.c
//! `vdev_inuse`, module/zcommon/zfs_namecheck.c `pool_namecheck`.

use std::collections::BTreeSet;

use device::{Foreign, Random, World};
use format::{Guid, LABEL_BYTES, LABEL_END_BYTES, LABEL_START_BYTES, NvList, NvValue, Txg};
use spa::config;
use vdev::Draid;

use crate::discover::DeviceLabel;
use crate::{DeviceUse, LeafSpec, PoolError, VdevClass, VdevLayout, VdevSpec};

/// Least size of a device (`SPA_MINDEVSIZE`), in bytes.
pub(crate) const DEVICE_BYTES_MIN: u64 = 64 << 20;
/// Smallest and largest `ashift`.
pub(crate) const ASHIFT_MIN: u8 = 9;
pub(crate) const ASHIFT_MAX: u8 = 16;
/// Children of a mirror or raidz that the layout can address (`VDEV_RAIDZ_MAXCHILDREN`).
const CHILDREN_MAX: usize = 255;
/// Longest pool name, in bytes.
const NAME_BYTES_MAX: usize = 256 - 2 - 2 * "$ORIGIN".len() - 1;

/// Refuses names that a pool may not have.
pub(crate) fn check_name(name: &str) -> Result<(), PoolError> {
    let bad = |why: &str| {
        Err(PoolError::BadName {
            name: name.to_owned(),
            why: why.to_owned(),
        })
    };
    if name.len() > NAME_BYTES_MAX {
        return bad("name is too long");
    }
    if let Some(wrong) = name
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ')))
    {
        return bad(&format!("invalid character '{wrong}' in pool name"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return bad("name must begin with a letter");
    }
    if ["mirror", "raidz", "draid", "spare"]
        .iter()
        .any(|word| name.starts_with(word))
        || name == "log"
    {
        return bad("name is reserved");
    }
    Ok(())
}

/// Refuses vdevs that make no pool.
pub(crate) fn check_new_pool(vdevs: &[VdevSpec]) -> Result<(), PoolError> {
    if !vdevs.iter().any(|vdev| vdev.class == VdevClass::Normal) {
        return Err(PoolError::BadVdevs {
            why: "at least one toplevel vdev must be specified".into(),
        });
    }
    check_vdevs(vdevs)
}

/// Whether it is a device of its own list, and no part of the vdev tree.
pub(crate) const fn is_auxiliary(class: VdevClass) -> bool {
    matches!(class, VdevClass::Spare | VdevClass::Cache)
}

/// Refuses vdevs that a pool cannot have.
pub(crate) fn check_vdevs(vdevs: &[VdevSpec]) -> Result<(), PoolError> {
    let bad = |why: String| Err(PoolError::BadVdevs { why });
    let mut paths = BTreeSet::new();
    for vdev in vdevs {
        let leaves = vdev.layout.leaves();
        match &vdev.layout {
            VdevLayout::Leaf(_) => {}
            _ if is_auxiliary(vdev.class) => {
                return bad("spares and cache devices are single devices".into());
            }
            VdevLayout::Mirror(_) if leaves.len() < 2 => {
                return bad("mirror requires at least 2 devices".into());
            }
            VdevLayout::Mirror(_) | VdevLayout::Draid { .. } => {}
            VdevLayout::Raidz { .. } if vdev.class == VdevClass::Log => {
                return bad("raidz is not supported for log devices".into());
            }
            VdevLayout::Raidz { parity, .. } => {
                if !(1..=3).contains(parity) {
                    return bad(format!("raidz{parity} does not exist: parity is 1, 2 or 3"));
                }
                if leaves.len() <= usize::from(*parity) {
                    return bad(format!(
                        "raidz{parity} requires at least {} devices",
                        parity + 1
                    ));
                }
            }
        }
        if let VdevLayout::Draid {
            parity,
            data,
            spares,
            leaves,
        } = &vdev.layout
        {
            if vdev.class == VdevClass::Log {
                return bad("draid is not supported for log devices".into());
            }
            if draid(*parity, *data, *spares, leaves.len()).is_none() {
                return bad(format!(
                    "draid{parity} with {data} data devices per group and {spares} spares cannot \
                     be made of {} devices",
                    leaves.len()
                ));
            }
        }
        if leaves.len() > CHILDREN_MAX {
            return bad(format!("a vdev has at most {CHILDREN_MAX} devices"));
        }
        for leaf in leaves {
            if !paths.insert(leaf.path.as_str()) {
                return bad(format!("{} is given twice", leaf.path));
            }
        }
    }
    Ok(())
}

fn draid(parity: u8, data: u8, spares: u8, children: usize) -> Option<Draid> {
    Draid::new(parity.into(), data.into(), spares.into(), children as u64)
}

/// What is known of a device that will be a leaf.
#[derive(Debug, Clone)]
pub(crate) struct LeafFacts {
    pub(crate) spec: LeafSpec,
    pub(crate) size_bytes: u64,
    pub(crate) sector_bytes: u32,
    /// The guid that it is labelled with as a spare.
    pub(crate) spare: Option<Guid>,
}

/// Bytes that a device offers between its labels (`vdev_open`).
pub(crate) const fn usable_bytes(device_bytes: u64) -> u64 {
    (device_bytes - device_bytes % LABEL_BYTES).saturating_sub(LABEL_START_BYTES + LABEL_END_BYTES)
}

fn random_guid(random: &dyn Random) -> u64 {
    loop {
        let guid = random.next_u64();
        if guid != 0 {
            return guid;
        }
    }
}

/// How new vdevs are made.
pub(crate) struct Making<'a> {
    /// log2 of the smallest block; 0 means what the devices want.
    pub(crate) ashift: u8,
    /// The txg in which they become part of the pool.
    pub(crate) create_txg: Txg,
    pub(crate) random: &'a dyn Random,
}

/// The configurations of new top-level vdevs, numbered from `first_id`; `facts` are those of all
/// devices. Spares and cache devices are left out.
pub(crate) fn build_tops(
    first_id: u64,
    vdevs: &[VdevSpec],
    facts: &[LeafFacts],
    making: &Making<'_>,
) -> Result<Vec<NvList>, PoolError> {
    let mut tops = Vec::new();
    for vdev in vdevs.iter().filter(|vdev| !is_auxiliary(vdev.class)) {
        let leaves = facts_of(vdev, facts)?;
        let top = build_top(first_id + tops.len() as u64, vdev, &leaves, making);
        if let VdevLayout::Draid { .. } = vdev.layout
            && top.u64("asize") == Some(0)
        {
            return Err(PoolError::BadVdevs {
                why:
                    "the devices are too small for this draid; each needs 16 MiB for every row of \
                      a group, and 36.5 MiB besides"
                        .into(),
            });
        }
        tops.push(top);
    }
    Ok(tops)
}

/// The configurations of new spares or cache devices (`vdev_config_generate` with
/// `VDEV_CONFIG_L2CACHE`), as their list in the MOS has them.
pub(crate) fn build_auxiliary(
    class: VdevClass,
    vdevs: &[VdevSpec],
    facts: &[LeafFacts],
    making: &Making<'_>,
) -> Result<Vec<NvList>, PoolError> {
    let mut out = Vec::new();
    for vdev in vdevs.iter().filter(|vdev| vdev.class == class) {
        let leaves = facts_of(vdev, facts)?;
        let mut list = leaf_config(0, &leaves[0], making.random);
        list.remove("id");
        if class == VdevClass::Spare {
            list.set("is_spare", 1u64);
        }
        list.set("ashift", u64::from(ashift_of(&leaves, making.ashift)))
            .set("create_txg", making.create_txg.get());
        out.push(list);
    }
    Ok(out)
}

/// The distributed spares of new dRAID vdevs, as the list in the MOS has them
/// (`vdev_draid_spare_create`, module/zfs/vdev_draid.c).
pub(crate) fn build_draid_spares(tops: &[NvList], making: &Making<'_>) -> Vec<NvList> {
    let mut out = Vec::new();
    for top in tops
        .iter()
        .filter(|top| top.string("type") == Some("draid"))
    {
        let number = |name| top.u64(name).unwrap_or(0);
        for spare in 0..number("draid_nspares") {
            let path = format!("draid{}-{}-{spare}", number("nparity"), number("id"));
            let mut list = NvList::new();
            list.set("type", "dspare")
                .set("guid", random_guid(making.random))
                .set("path", path.as_str())
                .set("whole_disk", 1u64)
                .set("is_spare", 1u64)
                .set("ashift", number("ashift"))
                .set("create_txg", making.create_txg.get())
                .set("top_guid", number("guid"))
                .set("spareid", spare);
            out.push(list);
        }
    }
    out
}

fn facts_of(vdev: &VdevSpec, facts: &[LeafFacts]) -> Result<Vec<LeafFacts>, PoolError> {
    let of = |spec: &LeafSpec| {
        let leaf = facts.iter().find(|leaf| leaf.spec.path == spec.path);
        leaf.cloned().ok_or_else(|| PoolError::BadVdevs {
            why: format!("{} was not opened", spec.path),
        })
    };
    vdev.layout.leaves().iter().map(of).collect()
}

/// The configuration of a new pool's vdevs: a root over the top-level vdevs.
pub(crate) fn build_root(
    pool_guid: Guid,
    vdevs: &[VdevSpec],
    facts: &[LeafFacts],
    making: &Making<'_>,
) -> Result<NvList, PoolError> {
    let tops = build_tops(0, vdevs, facts, making)?;
    let mut root = NvList::new();
    root.set("type", "root")
        .set("id", 0u64)
        .set("guid", pool_guid.get());
    root.set("create_txg", Txg::INITIAL.get());
    root.set("children", NvValue::ListArray(tops));
    Ok(root)
}

fn leaf_config(id: u64, leaf: &LeafFacts, random: &dyn Random) -> NvList {
    let mut list = NvList::new();
    list.set("type", if leaf.spec.is_file { "file" } else { "disk" })
        .set("id", id)
        .set("guid", random_guid(random))
        .set("path", leaf.spec.path.as_str());
    if !leaf.spec.is_file {
        list.set("whole_disk", 0u64);
    }
    list
}

/// The ashift asked for, else the largest that a device wants.
fn ashift_of(leaves: &[LeafFacts], asked: u8) -> u8 {
    if asked != 0 {
        return asked;
    }
    let wanted = leaves
        .iter()
        // A file's blocks are cached by the system below: it has no sectors of its own.
        .map(|leaf| {
            if leaf.spec.is_file {
                512
            } else {
                leaf.sector_bytes
            }
        })
        .max()
        .unwrap_or(512);
    (wanted.max(512).next_power_of_two().ilog2() as u8).clamp(ASHIFT_MIN, ASHIFT_MAX)
}

fn build_top(id: u64, vdev: &VdevSpec, leaves: &[LeafFacts], making: &Making<'_>) -> NvList {
    let Making {
        create_txg, random, ..
    } = *making;
    let ashift = ashift_of(leaves, making.ashift);
    let smallest = leaves
        .iter()
        .map(|leaf| usable_bytes(leaf.size_bytes))
        .min()
        .unwrap_or(0);
    let asize = match &vdev.layout {
        VdevLayout::Raidz { leaves, .. } => smallest * leaves.len() as u64,
        VdevLayout::Draid {
            parity,
            data,
            spares,
            leaves,
        } => draid(*parity, *data, *spares, leaves.len()).map_or(0, |draid| draid.asize(smallest)),
        _ => smallest,
    };
    let asize = asize >> ashift << ashift;
    let mut list = match &vdev.layout {
        VdevLayout::Leaf(_) => leaf_config(id, &leaves[0], random),
        VdevLayout::Mirror(_) => {
            let mut list = NvList::new();
            list.set("type", "mirror")
                .set("id", id)
                .set("guid", random_guid(random));
            list
        }
        VdevLayout::Raidz { parity, .. } => {
            let mut list = NvList::new();
            list.set("type", "raidz")
                .set("id", id)
                .set("guid", random_guid(random));
            list.set("nparity", u64::from(*parity));
            list
        }
        VdevLayout::Draid {
            parity,
            data,
            spares,
            leaves,
        } => {
            let groups =
                draid(*parity, *data, *spares, leaves.len()).map_or(0, |draid| draid.groups());
            let mut list = NvList::new();
            list.set("type", "draid")
                .set("id", id)
                .set("guid", random_guid(random));
            list.set("nparity", u64::from(*parity))
                .set("draid_ndata", u64::from(*data))
                .set("draid_nspares", u64::from(*spares))
                .set("draid_ngroups", groups);
            list
        }
    };
    list.set("metaslab_array", 0u64)
        .set("metaslab_shift", u64::from(vdev::metaslab_shift(asize)))
        .set("ashift", u64::from(ashift))
        .set("asize", asize)
        .set("is_log", u64::from(vdev.class == VdevClass::Log))
        .set("create_txg", create_txg.get());
    match vdev.class {
        // Kept in the vdev's ZAP; here for those who build the tree.
        VdevClass::Special => list.set("alloc_bias", "special"),
        VdevClass::Dedup => list.set("alloc_bias", "dedup"),
        _ => &mut list,
    };
    if !matches!(vdev.layout, VdevLayout::Leaf(_)) {
        let children = leaves
            .iter()
            .enumerate()
            .map(|(id, leaf)| {
                let mut child = leaf_config(id as u64, leaf, random);
                child.set("create_txg", create_txg.get());
                child
            })
            .collect();
        list.set("children", NvValue::ListArray(children));
    }
    list
}

/// Why a device must not be overwritten, by its label (`zpool_in_use`, lib/libzfs/libzfs_import.c).
pub(crate) fn in_use(label: &NvList) -> Option<DeviceUse> {
    let state = label.u64("state")?;
    let pool = label.string("name").unwrap_or("?").to_owned();
    match state {
        config::STATE_ACTIVE if label.u64("txg").unwrap_or(0) != 0 => {
            Some(DeviceUse::ActivePool { pool })
        }
        config::STATE_EXPORTED => Some(DeviceUse::ExportedPool { pool }),
        // Spares and cache devices are in use while their pool is imported, which is the caller's
        // to know.
        _ => None,
    }
}

/// The least size of a vdev's devices, in bytes. A dRAID of the least devices would have less space
/// than OpenZFS wants of any vdev (`vdev_open`).
fn least_bytes(layout: &VdevLayout) -> u64 {
    const STEP_BYTES: u64 = 16 << 20;
    let VdevLayout::Draid {
        parity,
        data,
        spares,
        leaves,
    } = layout
    else {
        return DEVICE_BYTES_MIN;
    };
    let Some(draid) = draid(*parity, *data, *spares, leaves.len()) else {
        return DEVICE_BYTES_MIN;
    };
    let mut size_bytes = DEVICE_BYTES_MIN;
    while draid.asize(usable_bytes(size_bytes)) < usable_bytes(DEVICE_BYTES_MIN) {
        size_bytes += STEP_BYTES;
    }
    size_bytes
}

/// What a device is used for, by its label, and else by what other software has there.
async fn used_for(
    world: &World,
    path: &str,
    label: Option<&DeviceLabel>,
) -> Result<Option<DeviceUse>, PoolError> {
    if let Some(device_use) = label.and_then(|label| in_use(&label.config)) {
        return Ok(Some(device_use));
    }
    // Of pools, labels tell.
    let foreign = world.opener.foreign(path).await?;
    let foreign = foreign.filter(|foreign| *foreign != Foreign::Zfs);
    Ok(foreign.map(|foreign| DeviceUse::Other {
        what: foreign.to_string(),
    }))
}

/// Refuses a device that nobody has named if a pool has, or had, anything there: a label of any
/// kind, also of a pool that was destroyed, of a spare or of a cache device, or a state whose label
/// is lost. What an attempt of `pool` to take it has left counts as nothing: all labels have txg 0
/// then, and there is no uberblock.
pub(crate) async fn check_untouched(
    world: &World,
    path: &str,
    pool: Guid,
) -> Result<(), PoolError> {
    let device = vdev::open_patiently(world, path, true).await?;
    let labels = vdev::read_labels(&*device).await?;
    let is_attempt = |label: &NvList| {
        label.u64("pool_guid") == Some(pool.get())
            && label.u64("state") == Some(config::STATE_ACTIVE)
            && label.u64("txg") == Some(0)
            // Zero where a device was removed or detached.
            && label.u64("create_txg").is_some_and(|txg| txg != 0)
    };
    let (mut is_labelled, mut is_touched) = (false, false);
    for label in &labels.labels {
        is_touched |= !label.uberblocks.is_empty();
        if let Some(label) = &label.config {
            is_labelled = true;
            is_touched |= !is_attempt(label);
        }
    }
    if !is_labelled && !is_touched {
        is_touched = world.opener.foreign(path).await? == Some(Foreign::Zfs);
    }
    match is_touched {
        true => Err(PoolError::DeviceInUse {
            path: path.to_owned(),
            device_use: DeviceUse::Other {
                what: Foreign::Zfs.to_string(),
            },
        }),
        false => Ok(()),
    }
}

/// What the disk or file at `path` is used for, so that nothing is lost by giving it to a pool;
/// `None` where a pool would take it as it is. Whether it is a spare or cache device of an imported
/// pool, or mounted, is the caller's to know.
///
/// # Errors
/// It cannot be opened, or what is on it cannot be found out.
pub async fn device_use(world: &World, path: &str) -> Result<Option<DeviceUse>, PoolError> {
    let device = vdev::open_patiently(world, path, true).await?;
    let label = crate::discover::read_label(&device, path).await;
    used_for(world, path, label.as_ref()).await
}

/// How big a device is that a vdev may be made of, and the biggest sector that it has, physically;
/// both in bytes. A file has no sectors of its own, and counts as having the smallest.
///
/// # Errors
/// It cannot be opened.
pub async fn device_sizes(world: &World, leaf: &LeafSpec) -> Result<(u64, u64), PoolError> {
    let device = vdev::open_patiently(world, &leaf.path, true).await?;
    let sector_bytes = match leaf.is_file {
        true => 1 << ASHIFT_MIN,
        false => u64::from(device.sector_bytes()),
    };
    Ok((device.size_bytes(), sector_bytes))
}

/// Opens and examines the devices of new vdevs: pools on them are spared, and what other software
/// has there (`check_device`, cmd/zpool/os/linux/zpool_vdev_os.c); with `force`, nothing is.
pub(crate) async fn examine(
    world: &World,
    vdevs: &[VdevSpec],
    force: bool,
) -> Result<Vec<LeafFacts>, PoolError> {
    let mut facts = Vec::new();
    let leaves: Vec<(&LeafSpec, u64)> = vdevs
        .iter()
        .flat_map(|vdev| {
            let needed_bytes = least_bytes(&vdev.layout);
            let leaves = vdev.layout.leaves().iter();
            leaves.map(move |leaf| (leaf, needed_bytes))
        })
        .collect();
    for (leaf, needed_bytes) in leaves {
        let device = vdev::open_patiently(world, &leaf.path, true).await?;
        let size_bytes = device.size_bytes();
        if size_bytes < needed_bytes {
            return Err(PoolError::TooSmall {
                path: leaf.path.clone(),
                size_bytes,
                needed_bytes,
            });
        }
        let label = crate::discover::read_label(&device, &leaf.path).await;
        if !force && let Some(device_use) = used_for(world, &leaf.path, label.as_ref()).await? {
            return Err(PoolError::DeviceInUse {
                path: leaf.path.clone(),
                device_use,
            });
        }
        facts.push(LeafFacts {
            spec: leaf.clone(),
            size_bytes,
            sector_bytes: device.sector_bytes(),
            spare: label
                .filter(|label| label.config.u64("state") == Some(config::STATE_SPARE))
                .and_then(|label| label.config.u64("guid").map(Guid::new)),
        });
    }
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(std::sync::atomic::AtomicU64);

    impl Random for Counter {
        fn fill(&self, out: &mut [u8]) {
            let next = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            for (byte, value) in out.iter_mut().zip(next.to_le_bytes().iter().cycle()) {
                *byte = *value;
            }
        }
    }

    fn leaf(path: &str) -> LeafSpec {
        LeafSpec {
            path: path.into(),
            is_file: true,
        }
    }

    fn normal(layout: VdevLayout) -> VdevSpec {
        VdevSpec {
            layout,
            class: VdevClass::Normal,
        }
    }

    #[test]
    fn names_are_checked_as_openzfs_does() {
        for good in ["tank", "a", "Tank-1_2.3:4 5", "logs"] {
            check_name(good).unwrap();
        }
        for bad in [
            "",
            "1tank",
            "mirror",
            "raidz7",
            "sparetime",
            "log",
            "a/b",
            "a@b",
            "ü",
            &"x".repeat(300),
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn vdevs_that_make_no_pool_are_refused() {
        let one = |path| normal(VdevLayout::Leaf(leaf(path)));
        check_new_pool(&[one("/a"), one("/b")]).unwrap();
        let extra = |class| VdevSpec {
            layout: VdevLayout::Leaf(leaf(&format!("/{class:?}"))),
            class,
        };
        let all = [
            VdevClass::Log,
            VdevClass::Special,
            VdevClass::Dedup,
            VdevClass::Spare,
            VdevClass::Cache,
        ];
        let with_all: Vec<_> = [one("/a")].into_iter().chain(all.map(extra)).collect();
        check_new_pool(&with_all).unwrap();
        check_vdevs(&[extra(VdevClass::Cache)]).unwrap();
        for bad in [
            vec![],
            vec![one("/a"), one("/a")],
            vec![normal(VdevLayout::Mirror(vec![leaf("/a")]))],
            vec![normal(VdevLayout::Raidz {
                parity: 2,
                leaves: vec![leaf("/a"), leaf("/b")],
            })],
            vec![normal(VdevLayout::Raidz {
                parity: 4,
                leaves: (0..9).map(|i| leaf(&i.to_string())).collect(),
            })],
            vec![VdevSpec {
                layout: VdevLayout::Leaf(leaf("/a")),
                class: VdevClass::Log,
            }],
            vec![
                one("/a"),
                VdevSpec {
                    layout: VdevLayout::Mirror(vec![leaf("/b"), leaf("/c")]),
                    class: VdevClass::Spare,
                },
            ],
        ] {
            assert!(check_new_pool(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sizes_are_those_of_openzfs() {
        // From labels of pools that OpenZFS 2.3.2 made on 64 MiB and 128 MiB disks.
        assert_eq!(usable_bytes(64 << 20), 62_390_272);
        let random = Counter(1.into());
        let making = Making {
            ashift: 0,
            create_txg: Txg::INITIAL,
            random: &random,
        };
        let facts = |vdev: &VdevSpec, size_bytes: u64| -> Vec<LeafFacts> {
            let of = |spec: &LeafSpec| LeafFacts {
                spec: spec.clone(),
                size_bytes,
                sector_bytes: 4096,
                spare: None,
            };
            vdev.layout.leaves().iter().map(of).collect()
        };
        let raidz = normal(VdevLayout::Raidz {
            parity: 1,
            leaves: vec![leaf("/a"), leaf("/b"), leaf("/c")],
        });
        let found = facts(&raidz, 64 << 20);
        let root = build_root(Guid::new(9), &[raidz], &found, &making).unwrap();
        let top = &config::children(&root)[0];
        assert_eq!(top.u64("asize"), Some(187_170_816));
        assert_eq!(top.u64("metaslab_shift"), Some(24));
        assert_eq!(top.u64("ashift"), Some(9));
        assert_eq!(config::children(top).len(), 3);

        let single = normal(VdevLayout::Leaf(LeafSpec {
            path: "/dev/x".into(),
            is_file: false,
        }));
        let found = facts(&single, 128 << 20);
        let root = build_root(Guid::new(9), &[single], &found, &making).unwrap();
        let top = &config::children(&root)[0];
        assert_eq!(top.u64("asize"), Some(129_499_136));
        assert_eq!(top.u64("metaslab_shift"), Some(24));
        assert_eq!(top.u64("ashift"), Some(12));
        assert_eq!(top.u64("whole_disk"), Some(0));
    }

    /// zdb calls a dRAID of five devices of 64 MiB too small.
    #[test]
    fn draid_needs_bigger_devices() {
        let draid = |spares, count: usize| VdevLayout::Draid {
            parity: 1,
            data: 2,
            spares,
            leaves: (0..count).map(|at| leaf(&format!("/{at}"))).collect(),
        };
        assert_eq!(least_bytes(&draid(1, 5)), 80 << 20);
        assert_eq!(least_bytes(&draid(0, 12)), 64 << 20);
        assert_eq!(least_bytes(&VdevLayout::Leaf(leaf("/a"))), 64 << 20);
    }

    #[test]
    fn labels_tell_who_uses_a_device() {
        let label = |state: u64, txg: u64| {
            let mut list = NvList::new();
            list.set("state", state).set("txg", txg).set("name", "tank");
            list
        };
        let pool = || "tank".to_owned();
        let active = DeviceUse::ActivePool { pool: pool() };
        assert_eq!(in_use(&label(0, 7)), Some(active));
        let exported = DeviceUse::ExportedPool { pool: pool() };
        assert_eq!(in_use(&label(1, 7)), Some(exported));
        assert_eq!(in_use(&label(2, 7)), None);
        assert_eq!(in_use(&label(0, 0)), None);
        assert_eq!(in_use(&label(3, 0)), None);
    }
}
