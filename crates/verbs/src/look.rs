//! What is worth saying of vdevs and volumes that somebody makes (crate `plan`, module `look`):
//! what cannot be changed later, or costs more than one thinks. Nothing of it refuses anything, and
//! of a vdev with a device that cannot be looked at nothing is said.

use std::collections::BTreeSet;

use api::{VdevClass, VdevKind, VdevReport};
use device::{BoxFuture, World};
use plan::look::{Vdev, look_at, look_at_cache, look_at_volume};
use plan::{Layout, Note};
use pool::{VdevLayout, VdevSpec, device_sizes};

/// Blocks that a cache device may be full of, in bytes: those of databases and virtual machines.
const CACHED_BLOCK_BYTES: u64 = 8 << 10;
/// log2 of sectors than which no device has bigger ones. Vdevs that are not told theirs have those
/// of their devices, and none that are too small.
const ASHIFT_OF_DEVICES: u32 = 16;

/// What is worth saying of new vdevs, before they are made, beside those of the pool that they will
/// be part of (`pool` is its root). `ashift` is what was asked for; zero is what the devices have.
pub(crate) fn at_vdevs<'a>(
    world: &'a World,
    pool: Option<&'a VdevReport>,
    vdevs: &'a [VdevSpec],
    ashift: u32,
) -> BoxFuture<'a, Vec<String>> {
    Box::pin(async move {
        let mut new = Vec::new();
        for spec in vdevs {
            if let Some(vdev) = examined(world, spec).await {
                new.push((spec.class, vdev));
            }
        }
        sentences(&notes(pool, &new, ashift, host::memory_bytes()))
    })
}

/// What is worth saying of a new volume of `volume_bytes` in blocks of `block_bytes`, by the root
/// of its pool.
pub(crate) fn at_volume(pool: &VdevReport, volume_bytes: u64, block_bytes: u64) -> Vec<String> {
    let data = pool.children.iter();
    let data = data.filter(|top| top.class == VdevClass::Normal);
    let vdevs: Vec<(Layout, u32)> = data
        .filter_map(|top| Some((layout_of(top)?, u32::from(top.ashift))))
        .collect();
    sentences(look_at_volume(&vdevs, volume_bytes, block_bytes).as_slice())
}

fn notes(
    pool: Option<&VdevReport>,
    new: &[(pool::VdevClass, Vdev)],
    ashift: u32,
    memory_bytes: u64,
) -> Vec<Note> {
    let ashift = if ashift == 0 {
        ASHIFT_OF_DEVICES
    } else {
        ashift
    };
    let tops: &[VdevReport] = match pool {
        Some(pool) => &pool.children,
        None => &[],
    };
    let of = |class: pool::VdevClass| {
        let all = new.iter().filter(move |(of, _)| *of == class);
        all.map(|(_, vdev)| vdev.clone()).collect::<Vec<Vdev>>()
    };
    let mut notes = Vec::new();
    let data = of(pool::VdevClass::Normal);
    if !data.is_empty() {
        let present: Vec<Vdev> = tops.iter().filter_map(present).collect();
        notes.extend(look_at(&data, &present, ashift));
    }
    for class in [
        pool::VdevClass::Log,
        pool::VdevClass::Special,
        pool::VdevClass::Dedup,
    ] {
        // Each is as big as what it is for.
        for vdev in of(class) {
            notes.extend(look_at(&[vdev], &[], ashift));
        }
    }
    let caches = of(pool::VdevClass::Cache);
    if !caches.is_empty() {
        let present = tops.iter().filter(|top| top.class == VdevClass::Cache);
        let present = present.map(|cache| cache.physical_bytes);
        let new = caches.iter().flat_map(|cache| cache.disks_bytes.clone());
        let bytes = present.chain(new).fold(0, u64::saturating_add);
        notes.extend(look_at_cache(bytes, CACHED_BLOCK_BYTES, memory_bytes));
    }
    notes
}

/// Each sentence once.
fn sentences(notes: &[Note]) -> Vec<String> {
    let mut said = BTreeSet::new();
    let all = notes.iter().map(Note::sentence);
    all.filter(|sentence| said.insert(sentence.clone()))
        .map(|sentence| format!("warning: {sentence}"))
        .collect()
}

/// A vdev as somebody asks for it, where all of its devices can be looked at.
async fn examined(world: &World, spec: &VdevSpec) -> Option<Vdev> {
    let mut vdev = Vdev {
        layout: layout_asked(&spec.layout),
        disks_bytes: Vec::new(),
        sector_bytes: 0,
    };
    for leaf in spec.layout.leaves() {
        let (size_bytes, sector_bytes) = device_sizes(world, leaf).await.ok()?;
        vdev.disks_bytes.push(size_bytes);
        vdev.sector_bytes = vdev.sector_bytes.max(sector_bytes);
    }
    Some(vdev)
}

fn layout_asked(layout: &VdevLayout) -> Layout {
    let disks = layout.leaves().len() as u64;
    match layout {
        VdevLayout::Leaf(_) => Layout::Stripe { disks: 1 },
        VdevLayout::Mirror(_) => Layout::Mirror {
            vdevs: 1,
            ways: disks,
        },
        VdevLayout::Raidz { parity, .. } => Layout::Raidz {
            parity: u64::from(*parity),
            vdevs: 1,
            disks,
        },
        VdevLayout::Draid {
            parity,
            data,
            spares,
            ..
        } => Layout::Draid {
            parity: u64::from(*parity),
            data: u64::from(*data),
            vdevs: 1,
            children: disks,
            spares: u64::from(*spares),
        },
    }
}

/// The layout of a top-level vdev that a pool has; none of one that holds no data any more.
pub(crate) fn layout_of(top: &VdevReport) -> Option<Layout> {
    let disks = top.children.len() as u64;
    let layout = match top.kind {
        VdevKind::Hole | VdevKind::Indirect | VdevKind::Missing | VdevKind::Other(_) => None,
        VdevKind::Mirror => Some(Layout::Mirror {
            vdevs: 1,
            ways: disks,
        }),
        VdevKind::Raidz => Some(Layout::Raidz {
            parity: u64::from(top.parity),
            vdevs: 1,
            disks,
        }),
        // Its name has all of it, and its number: `draid2:4d:11c:1s-0`.
        VdevKind::Draid => top.name.rsplit_once('-')?.0.parse().ok(),
        // One device, with another one that takes its place.
        _ => Some(Layout::Stripe { disks: 1 }),
    };
    layout.filter(|layout| layout.check().is_ok())
}

/// A vdev that holds a pool's data, by those of its devices that are there.
fn present(top: &VdevReport) -> Option<Vdev> {
    if top.class != VdevClass::Normal {
        return None;
    }
    let layout = layout_of(top)?;
    let members = match layout {
        Layout::Stripe { .. } => std::slice::from_ref(top),
        _ => &top.children,
    };
    let disks_bytes: Vec<u64> = members.iter().filter_map(size_of).collect();
    (!disks_bytes.is_empty()).then_some(Vdev {
        layout,
        disks_bytes,
        sector_bytes: 0,
    })
}

/// Bytes of a device, or of the smallest of those that share a place; none of a missing one.
pub(crate) fn size_of(member: &VdevReport) -> Option<u64> {
    match member.children.as_slice() {
        [] => Some(member.physical_bytes).filter(|bytes| *bytes > 0),
        below => below.iter().filter_map(size_of).min(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::VdevClass as Class;

    const GIB: u64 = 1 << 30;

    fn new(class: Class, layout: &str, sizes_bytes: &[u64]) -> (Class, Vdev) {
        let vdev = Vdev {
            layout: layout.parse().expect("a layout"),
            disks_bytes: sizes_bytes.to_vec(),
            sector_bytes: 4096,
        };
        (class, vdev)
    }

    fn report(kind: VdevKind, class: VdevClass, sizes_bytes: &[u64]) -> VdevReport {
        let leaf = |bytes: &u64| VdevReport {
            physical_bytes: *bytes,
            class,
            ..VdevReport::default()
        };
        let top = VdevReport {
            kind,
            class,
            ashift: 12,
            children: sizes_bytes.iter().map(leaf).collect(),
            ..VdevReport::default()
        };
        match sizes_bytes {
            [bytes] => leaf(bytes),
            _ => top,
        }
    }

    fn pool_of(tops: Vec<VdevReport>) -> VdevReport {
        VdevReport {
            kind: VdevKind::Root,
            children: tops,
            ..VdevReport::default()
        }
    }

    /// Goal: what cannot be undone is said before, and nothing where all is well. Method: new
    /// vdevs of each class with what there is to say of them, and the same without.
    #[test]
    fn new_vdevs_are_looked_at_by_class() {
        let said = |new: &[(Class, Vdev)], ashift| notes(None, new, ashift, 16 * GIB);
        let pair = |class| new(class, "mirror:1x2", &[GIB, GIB]);
        let well = [pair(Class::Normal), pair(Class::Normal), pair(Class::Log)];
        assert_eq!(said(&well, 0), []);
        assert_eq!(said(&well, 12), []);
        let small = |notes: &[Note]| {
            let all = notes.iter();
            all.filter(|note| matches!(note, Note::SmallSectors { .. }))
                .count()
        };
        assert_eq!(small(&said(&well, 9)), 2, "of data and of the log");
        assert_eq!(sentences(&said(&well, 9)).len(), 1, "said once");
        let uneven = [new(Class::Normal, "raidz:1x3", &[GIB, GIB, 2 * GIB])];
        let told = said(&uneven, 0);
        assert!(matches!(told[..], [Note::UnequalDisks { .. }]), "{told:?}");
        // A small log beside big data is as it should be.
        let log = [pair(Class::Normal), new(Class::Log, "stripe:1", &[GIB / 8])];
        assert_eq!(said(&log, 0), []);
        let cache = [new(Class::Cache, "stripe:1", &[1 << 40])];
        let told = said(&cache, 0);
        assert!(matches!(told[..], [Note::CacheMemory { .. }]), "{told:?}");
        assert_eq!(notes(None, &cache, 0, 256 * GIB), []);
    }

    /// Goal: what a pool has already counts. Method: vdevs beside bigger ones, missing devices,
    /// devices that are replaced, and cache devices beside others.
    #[test]
    fn new_vdevs_are_looked_at_beside_those_of_the_pool() {
        let normal = VdevClass::Normal;
        let mut mirror = report(VdevKind::Mirror, normal, &[4 * GIB, 4 * GIB]);
        let pair = [new(Class::Normal, "mirror:1x2", &[GIB, GIB])];
        let told = notes(Some(&pool_of(vec![mirror.clone()])), &pair, 0, 16 * GIB);
        let unequal = Note::UnequalVdevs {
            smallest_bytes: GIB,
            biggest_bytes: 4 * GIB,
        };
        assert_eq!(told, [unequal]);
        // One device is gone, and another one is being replaced by a smaller one.
        mirror.children[0].physical_bytes = 0;
        mirror.children[1] = report(VdevKind::Replacing, normal, &[4 * GIB, GIB]);
        let same = pool_of(vec![mirror, report(VdevKind::Indirect, normal, &[])]);
        assert_eq!(notes(Some(&same), &pair, 0, 16 * GIB), []);
        let raidz = [new(Class::Normal, "raidz2:1x6", &[GIB; 6])];
        let told = notes(Some(&same), &raidz, 0, 16 * GIB);
        assert!(
            told.iter()
                .any(|note| matches!(note, Note::WeakestVdev { may_fail: 1, .. })),
            "{told:?}"
        );
        let cached = pool_of(vec![
            report(VdevKind::Disk, normal, &[GIB]),
            report(VdevKind::Disk, VdevClass::Cache, &[700 * GIB]),
        ]);
        let more = [new(Class::Cache, "stripe:1", &[100 * GIB])];
        assert_eq!(notes(None, &more, 0, 16 * GIB), []);
        let told = notes(Some(&cached), &more, 0, 16 * GIB);
        let [Note::CacheMemory { device_bytes, .. }] = told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(device_bytes, 800 * GIB);
    }

    /// Goal: a volume of small blocks is told what it costs on RAID-Z, by what the pool has.
    #[test]
    fn volumes_are_looked_at_by_the_vdevs_of_their_pool() {
        let mut raidz = report(VdevKind::Raidz, VdevClass::Normal, &[GIB; 6]);
        raidz.parity = 2;
        let mirror = report(VdevKind::Mirror, VdevClass::Normal, &[GIB, GIB]);
        let mut draid = report(VdevKind::Draid, VdevClass::Normal, &[GIB; 11]);
        (draid.parity, draid.name) = (2, "draid2:4d:11c:1s-1".to_owned());
        let said = |tops: &[&VdevReport], block_bytes| {
            let tops = tops.iter().map(|top| (*top).clone()).collect();
            at_volume(&pool_of(tops), GIB, block_bytes)
        };
        assert_eq!(said(&[&mirror], 4096), Vec::<String>::new());
        assert_eq!(said(&[&raidz, &mirror], 16384), Vec::<String>::new());
        let told = said(&[&mirror, &raidz], 4096);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("warning: On raidz2:1x6, a volume of 1.07 GB"),
            "{told:?}"
        );
        // A block of one sector takes a whole stripe there: 24K, more than on raidz.
        let told = said(&[&raidz, &draid], 4096);
        assert!(told[0].contains("draid2:4d:11c:1s"), "{told:?}");
    }
}
