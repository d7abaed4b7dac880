//! How the disks of simulated pools are put together.

use pool::{LeafSpec, VdevClass, VdevLayout, VdevSpec};

use crate::rng::Rng;

/// A disk.
pub(crate) fn leaf(path: String) -> LeafSpec {
    LeafSpec {
        path,
        is_file: false,
    }
}

/// How disks are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One disk.
    Single,
    /// Two disks, no redundancy.
    Stripe,
    /// A mirror of so many.
    Mirror(usize),
    /// Two mirrors of two.
    Mirrors,
    /// RAID-Z: parity and disks.
    Raidz(u8, usize),
    /// dRAID: parity, data, distributed spares and disks.
    Draid(u8, u8, u8, usize),
    /// A mirror and a disk for the intent log.
    MirrorAndLog,
    /// A mirror and another one for the intent log.
    MirrorAndLogs,
    /// A mirror and another one for metadata and small blocks.
    MirrorAndSpecial,
    /// RAID-Z, a mirror for metadata and small blocks, and one for the intent log.
    Classes,
}

impl Layout {
    /// Those that seeds choose from (more of them would give each seed another meaning).
    pub const ALL: &[Layout] = &[
        Layout::Single,
        Layout::Mirror(2),
        Layout::Raidz(1, 3),
        Layout::Stripe,
        Layout::Raidz(2, 5),
        Layout::MirrorAndLog,
        Layout::Mirrors,
        Layout::Raidz(3, 7),
        Layout::Raidz(1, 4),
        Layout::Mirror(3),
    ];

    /// How many disks may fail.
    pub fn redundancy(self) -> usize {
        match self {
            Layout::Single | Layout::Stripe => 0,
            Layout::Mirror(count) => count - 1,
            Layout::Mirrors
            | Layout::MirrorAndLog
            | Layout::MirrorAndLogs
            | Layout::MirrorAndSpecial
            | Layout::Classes => 1,
            Layout::Raidz(parity, _) | Layout::Draid(parity, ..) => parity.into(),
        }
    }

    /// Disks (by number) that may all fail at the same time.
    pub(crate) fn victims(self, rng: &mut Rng) -> Vec<usize> {
        let disks = match self {
            Layout::Single | Layout::Stripe => 0,
            Layout::Mirror(count) | Layout::Raidz(_, count) | Layout::Draid(_, _, _, count) => {
                count
            }
            Layout::Mirrors | Layout::MirrorAndLogs | Layout::MirrorAndSpecial => 4,
            Layout::MirrorAndLog => 2,
            Layout::Classes => 7,
        };
        let mut all: Vec<usize> = (0..disks).collect();
        let mut out = Vec::new();
        for _ in 0..self.redundancy() {
            out.push(all.remove(rng.below(all.len() as u64) as usize));
        }
        out
    }

    pub(crate) fn vdevs(self, mut disk: impl FnMut() -> LeafSpec) -> Vec<VdevSpec> {
        let mut disks = |count: usize| (0..count).map(|_| disk()).collect::<Vec<_>>();
        let vdev = |layout, class| VdevSpec { layout, class };
        let normal = VdevClass::Normal;
        match self {
            Layout::Single => vec![vdev(VdevLayout::Leaf(disks(1).remove(0)), normal)],
            Layout::Stripe => disks(2)
                .into_iter()
                .map(|leaf| vdev(VdevLayout::Leaf(leaf), normal))
                .collect(),
            Layout::Mirror(count) => vec![vdev(VdevLayout::Mirror(disks(count)), normal)],
            Layout::Mirrors => vec![
                vdev(VdevLayout::Mirror(disks(2)), normal),
                vdev(VdevLayout::Mirror(disks(2)), normal),
            ],
            Layout::Raidz(parity, count) => {
                let leaves = disks(count);
                vec![vdev(VdevLayout::Raidz { parity, leaves }, normal)]
            }
            Layout::Draid(parity, data, spares, count) => {
                let draid = VdevLayout::Draid {
                    parity,
                    data,
                    spares,
                    leaves: disks(count),
                };
                vec![vdev(draid, normal)]
            }
            Layout::MirrorAndLog => vec![
                vdev(VdevLayout::Mirror(disks(2)), normal),
                vdev(VdevLayout::Leaf(disks(1).remove(0)), VdevClass::Log),
            ],
            Layout::MirrorAndLogs => vec![
                vdev(VdevLayout::Mirror(disks(2)), normal),
                vdev(VdevLayout::Mirror(disks(2)), VdevClass::Log),
            ],
            Layout::MirrorAndSpecial => vec![
                vdev(VdevLayout::Mirror(disks(2)), normal),
                vdev(VdevLayout::Mirror(disks(2)), VdevClass::Special),
            ],
            Layout::Classes => {
                let leaves = disks(3);
                vec![
                    vdev(VdevLayout::Raidz { parity: 1, leaves }, normal),
                    vdev(VdevLayout::Mirror(disks(2)), VdevClass::Special),
                    vdev(VdevLayout::Mirror(disks(2)), VdevClass::Log),
                ]
            }
        }
    }
}
