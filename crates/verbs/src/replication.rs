//! Mixed redundancy is refused without `-f`: a pool is only as safe as its weakest vdev.
//!
//! Source: cmd/zpool/zpool_vdev.c (`get_replication`, `check_replication`), whose words these are.

use std::io::{Seek, SeekFrom};
use std::path::Path;

use api::Failure;
use pool::{LeafSpec, VdevClass, VdevLayout, VdevSpec, VdevStatus};

use crate::zpool::in_use;

/// How far sizes of devices in one vdev may differ (`ZPOOL_FUZZ`), in bytes.
const SIZE_FUZZ_BYTES: u64 = 16 << 20;

/// How a top-level vdev survives failures.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Level {
    kind: String,
    parity: u64,
    children: usize,
}

impl Level {
    fn of_spec(vdev: &VdevSpec) -> Self {
        let (kind, parity) = match &vdev.layout {
            VdevLayout::Leaf(leaf) => (kind_of(leaf), 0),
            VdevLayout::Mirror(_) => ("mirror", 0),
            VdevLayout::Raidz { parity, .. } => ("raidz", u64::from(*parity)),
            VdevLayout::Draid { parity, .. } => ("draid", u64::from(*parity)),
        };
        Self {
            kind: kind.to_owned(),
            parity,
            children: vdev.layout.leaves().len(),
        }
    }

    fn of_status(vdev: &VdevStatus) -> Self {
        Self {
            kind: vdev.kind.clone(),
            parity: u64::from(vdev.parity),
            children: vdev.children.len().max(1),
        }
    }

    /// Devices that can fail.
    fn redundancy(&self) -> u64 {
        match self.kind.as_str() {
            "mirror" => self.children as u64 - 1,
            _ => self.parity,
        }
    }

    fn has_parity(&self) -> bool {
        matches!(self.kind.as_str(), "raidz" | "draid")
    }

    fn is_raidz_and_mirror(&self, other: &Self) -> bool {
        self.has_parity() && other.kind == "mirror"
    }
}

fn kind_of(leaf: &LeafSpec) -> &'static str {
    if leaf.is_file { "file" } else { "disk" }
}

/// Refuses new vdevs that differ from each other, or from those of the pool if these agree. What
/// lies in the directory of volumes is a device to whoever types it.
pub fn check(pool: &[VdevStatus], vdevs: &[VdevSpec], volumes: &Path) -> Result<(), Failure> {
    let mut vdevs = vdevs.to_vec();
    let leaves = vdevs.iter_mut().flat_map(|vdev| match &mut vdev.layout {
        VdevLayout::Leaf(leaf) => std::slice::from_mut(leaf),
        VdevLayout::Mirror(leaves)
        | VdevLayout::Raidz { leaves, .. }
        | VdevLayout::Draid { leaves, .. } => leaves,
    });
    for leaf in leaves {
        leaf.is_file &= !Path::new(&leaf.path).starts_with(volumes);
    }
    let mut pool = pool.to_vec();
    for top in &mut pool {
        let path = top.path.as_deref().map(Path::new);
        if top.kind == "file" && path.is_some_and(|path| path.starts_with(volumes)) {
            "disk".clone_into(&mut top.kind);
        }
    }
    check_kinds(&pool, &vdevs)
}

fn check_kinds(pool: &[VdevStatus], vdevs: &[VdevSpec]) -> Result<(), Failure> {
    let counts =
        |class: VdevClass| !matches!(class, VdevClass::Log | VdevClass::Spare | VdevClass::Cache);
    let refuse = |why: String| Err(in_use(why, false));
    let mut current: Option<Level> = None;
    let tops = pool
        .iter()
        .filter(|top| counts(top.class) && !matches!(top.kind.as_str(), "hole" | "indirect"));
    for top in tops {
        let level = Level::of_status(top);
        if current
            .as_ref()
            .is_some_and(|before| difference(before, &level).is_some())
        {
            // It is mixed already.
            return Ok(());
        }
        current = Some(level);
    }
    let mut last: Option<Level> = None;
    for vdev in vdevs.iter().filter(|vdev| counts(vdev.class)) {
        check_members(vdev).or_else(refuse)?;
        let level = Level::of_spec(vdev);
        if let Some(why) = last.as_ref().and_then(|last| difference(last, &level)) {
            return refuse(why);
        }
        last = Some(level);
    }
    if let (Some(current), Some(new)) = (current, last)
        && let Some(why) = difference_from_pool(&current, &new)
    {
        return refuse(why);
    }
    Ok(())
}

/// Devices of one vdev should be alike.
fn check_members(vdev: &VdevSpec) -> Result<(), String> {
    let leaves = vdev.layout.leaves();
    let kind = Level::of_spec(vdev).kind;
    if leaves.iter().any(|leaf| leaf.is_file != leaves[0].is_file) {
        return Err(format!(
            "mismatched replication level: {kind} contains both files and devices"
        ));
    }
    let sizes: Vec<u64> = leaves.iter().filter_map(size_bytes).collect();
    let differ = |pair: &[u64]| pair[0].abs_diff(pair[1]) > SIZE_FUZZ_BYTES;
    if sizes.windows(2).any(differ) {
        return Err(format!("{kind} contains devices of different sizes"));
    }
    Ok(())
}

fn size_bytes(leaf: &LeafSpec) -> Option<u64> {
    let mut file = std::fs::File::open(&leaf.path).ok()?;
    file.seek(SeekFrom::End(0)).ok().filter(|size| *size > 0)
}

fn difference(a: &Level, b: &Level) -> Option<String> {
    let (raidz, mirror) = if b.is_raidz_and_mirror(a) {
        (b, a)
    } else {
        (a, b)
    };
    let what = if raidz.is_raidz_and_mirror(mirror) {
        if raidz.redundancy() == mirror.redundancy() {
            return None;
        }
        format!(
            "{} and mirror vdevs with different redundancy, {} vs. {} ({}-way) are present",
            raidz.kind,
            raidz.redundancy(),
            mirror.redundancy(),
            mirror.children
        )
    } else if a.has_parity() && b.has_parity() {
        // RAID-Z and dRAID go together in any width (`is_raidz_draid`).
        if a.parity == b.parity {
            return None;
        }
        format!(
            "{} and {} vdevs with different redundancy, {} vs. {} are present",
            a.kind, b.kind, a.parity, b.parity
        )
    } else if a.kind != b.kind {
        format!("both {} and {} vdevs are present", a.kind, b.kind)
    } else if a.children != b.children {
        format!(
            "both {}-way and {}-way {} vdevs are present",
            a.children, b.children, b.kind
        )
    } else {
        return None;
    };
    Some(format!("mismatched replication level: {what}"))
}

fn difference_from_pool(pool: &Level, new: &Level) -> Option<String> {
    let (raidz, mirror) = if new.is_raidz_and_mirror(pool) {
        (new, pool)
    } else {
        (pool, new)
    };
    let what = if raidz.is_raidz_and_mirror(mirror) {
        if raidz.redundancy() == mirror.redundancy() {
            return None;
        }
        format!(
            "pool and new vdev with different redundancy, {} and mirror vdevs, {} vs. {} ({}-way)",
            raidz.kind,
            raidz.redundancy(),
            mirror.redundancy(),
            mirror.children
        )
    } else if pool.kind != new.kind {
        format!("pool uses {} and new vdev is {}", pool.kind, new.kind)
    } else if pool.parity != new.parity {
        format!(
            "pool uses {} device parity and new vdev uses {}",
            pool.parity, new.parity
        )
    } else if pool.children != new.children {
        format!(
            "pool uses {}-way {} and new vdev uses {}-way {}",
            pool.children, pool.kind, new.children, new.kind
        )
    } else {
        return None;
    };
    Some(format!("mismatched replication level: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: usize) -> Vec<LeafSpec> {
        (0..count)
            .map(|index| LeafSpec {
                path: format!("/nonexistent/{index}"),
                is_file: true,
            })
            .collect()
    }

    fn vdev(class: VdevClass, parity: Option<u8>, count: usize) -> VdevSpec {
        let layout = match (parity, count) {
            (Some(parity), _) => VdevLayout::Raidz {
                parity,
                leaves: leaves(count),
            },
            (None, 1) => VdevLayout::Leaf(leaves(1).remove(0)),
            (None, _) => VdevLayout::Mirror(leaves(count)),
        };
        VdevSpec { layout, class }
    }

    #[test]
    fn a_volume_is_a_device() {
        let one = |path: &str, is_file| VdevSpec {
            layout: VdevLayout::Leaf(LeafSpec {
                path: path.to_owned(),
                is_file,
            }),
            class: VdevClass::Normal,
        };
        let volumes = Path::new("/zvol/");
        let disk = one("/dev/nonexistent", false);
        let both = |path| check(&[], &[disk.clone(), one(path, true)], volumes);
        both("/zvol/tank/volume").unwrap();
        assert!(both("/zvolume").is_err());
    }

    #[test]
    fn uneven_redundancy_needs_force() {
        let normal = |parity, count| vdev(VdevClass::Normal, parity, count);
        let says = |vdevs: &[VdevSpec]| check_kinds(&[], vdevs).unwrap_err().message;
        check_kinds(&[], &[normal(None, 2), normal(None, 2)]).unwrap();
        check_kinds(&[], &[normal(Some(1), 3), normal(None, 2)]).unwrap();
        check_kinds(&[], &[normal(None, 2), vdev(VdevClass::Log, None, 1)]).unwrap();
        check_kinds(&[], &[normal(Some(1), 3), normal(Some(1), 4)]).unwrap();
        let draid = |parity, count: usize| VdevSpec {
            layout: VdevLayout::Draid {
                parity,
                data: 1,
                spares: 0,
                leaves: leaves(count),
            },
            class: VdevClass::Normal,
        };
        check_kinds(&[], &[draid(1, 3), draid(1, 4), normal(Some(1), 3)]).unwrap();
        assert!(
            says(&[draid(1, 3), normal(Some(2), 3)])
                .ends_with("draid and raidz vdevs with different redundancy, 1 vs. 2 are present")
        );
        assert!(
            says(&[normal(None, 2), normal(None, 3)])
                .ends_with("both 2-way and 3-way mirror vdevs are present")
        );
        assert!(
            says(&[normal(None, 2), normal(None, 1)])
                .ends_with("both mirror and file vdevs are present")
        );
        assert!(
            says(&[normal(Some(2), 5), normal(Some(1), 5)])
                .ends_with("raidz and raidz vdevs with different redundancy, 2 vs. 1 are present")
        );
        assert!(says(&[normal(Some(2), 5), normal(None, 2)]).contains("2 vs. 1 (2-way)"));
        let special = vdev(VdevClass::Special, None, 1);
        let refused = check_kinds(&[], &[normal(None, 2), special]).unwrap_err();
        assert!(
            matches!(
                refused.refusal.as_deref(),
                Some(api::Refusal::Vdevs {
                    can_be_forced: true,
                    ..
                })
            ),
            "{refused:?}"
        );
    }
}
