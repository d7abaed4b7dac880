//! What the planner knows of a pool that is there: its layout and its disks, as far as they are
//! alike and the host knows what they are.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use api::{VdevClass, VdevReport};
use bench::against::Against;
use bench::log_device::{Facts, Medium};
use plan::{DiskKind, Disks, Layout};

use crate::look::{layout_of, size_of};

/// The pool whose root this is, with blocks of `block_bytes`. None where it has vdevs of several
/// layouts, or disks of several kinds, or of which the host does not know what they are: files, and
/// what another system makes up. The kernel is asked about devices.
pub(super) fn against(root: &VdevReport, block_bytes: u64) -> Option<Against> {
    let data = || {
        let tops = root.children.iter();
        tops.filter(|top| top.class == VdevClass::Normal)
    };
    let first = data().next()?;
    let layout = layout_of(first)?;
    if !data().all(|top| layout_of(top) == Some(layout)) {
        return None;
    }
    let mut leaves = Vec::new();
    data().for_each(|top| add_leaves(top, &mut leaves));
    let kind = kind_of(leaves.first()?)?;
    if !leaves.iter().all(|path| kind_of(path) == Some(kind)) {
        return None;
    }
    let members = data().flat_map(|top| match top.children.as_slice() {
        [] => std::slice::from_ref(top),
        below => below,
    });
    let layout = several(layout, data().count() as u64);
    let against = Against {
        disks: Disks::usual(layout.disks(), members.filter_map(size_of).min()?, kind),
        layout,
        buses: Vec::new(),
        network_rate: None,
        record_bytes: Some(block_bytes),
        ashift: u32::from(first.ashift),
    };
    against.check().is_ok().then_some(against)
}

/// So many vdevs instead of one.
fn several(layout: Layout, count: u64) -> Layout {
    match layout {
        Layout::Stripe { .. } => Layout::Stripe { disks: count },
        Layout::Mirror { ways, .. } => Layout::Mirror { vdevs: count, ways },
        Layout::Raidz { parity, disks, .. } => Layout::Raidz {
            parity,
            vdevs: count,
            disks,
        },
        Layout::Draid {
            parity,
            data,
            children,
            spares,
            ..
        } => Layout::Draid {
            parity,
            data,
            vdevs: count,
            children,
            spares,
        },
    }
}

fn add_leaves(vdev: &VdevReport, out: &mut Vec<String>) {
    match vdev.children.as_slice() {
        [] => out.extend(vdev.path.clone()),
        below => below.iter().for_each(|below| add_leaves(below, out)),
    }
}

/// What the disk at a path is made of.
fn kind_of(path: &str) -> Option<DiskKind> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let number = metadata.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let facts = Facts::read(Path::new("/sys"), major, minor)?;
    match facts.medium {
        Medium::Virtual => None,
        Medium::Hdd => Some(DiskKind::Hdd),
        Medium::Ssd if facts.name.starts_with("nvme") => Some(DiskKind::Nvme),
        Medium::Ssd => Some(DiskKind::Ssd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_files_is_nothing_that_the_planner_knows() {
        let leaf = VdevReport {
            class: VdevClass::Normal,
            kind: api::VdevKind::File,
            path: Some("/nonexistent/file".into()),
            physical_bytes: 1 << 30,
            ..VdevReport::default()
        };
        let root = VdevReport {
            children: vec![leaf],
            ..VdevReport::default()
        };
        assert_eq!(against(&root, 1 << 17), None);
        assert_eq!(against(&VdevReport::default(), 1 << 17), None);
    }

    #[test]
    fn vdevs_that_are_alike_are_a_layout() {
        let two = Layout::Mirror { vdevs: 1, ways: 2 };
        assert_eq!(several(two, 7).to_string(), "mirror:7x2");
        assert_eq!(
            several(Layout::Stripe { disks: 1 }, 3).to_string(),
            "stripe:3"
        );
        let raidz: Layout = "raidz2:1x6".parse().expect("a layout");
        assert_eq!(several(raidz, 2).to_string(), "raidz2:2x6");
    }
}
