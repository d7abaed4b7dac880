//! Vdev trees from configurations, and back (`vdev_alloc`, `vdev_config_generate`;
//! module/zfs/vdev.c and vdev_label.c).
//!
//! Pairs that we do not know are kept as they are and written back.

use std::sync::{Arc, OnceLock};

use device::World;
use format::{Guid, NvList, VdevId};
use parking_lot::Mutex;

use super::common::Common;
use super::draid::Draid;
use super::expansion::Expansion;
use super::kind::{
    DraidSpareVdev, DraidVdev, IndirectVdev, LeafType, LeafVdev, MirrorRole, MirrorVdev, OtherVdev,
    RaidzVdev, VdevKind,
};
use super::leaf::Leaf;
use super::node::{Top, Vdev};
use super::state::{Counters, VdevAux, VdevState};
use crate::error::{VdevError, bad};
use crate::metaslab::METASLABS_MAX;
use crate::top_spec::AllocClass;

/// Vdevs in one pool, at any level; more is damage.
const VDEVS_MAX: usize = 1 << 16;
/// Children of a RAID-Z vdev (`VDEV_RAIDZ_MAXCHILDREN` is 255).
const RAIDZ_CHILDREN_MAX: usize = 255;
/// Levels of a tree: root, mirror or raidz, spare, replacing, leaf, and some to spare.
const DEPTH_MAX: usize = 8;

/// Where a configuration is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The MOS's config object and the pool cache: everything.
    Mos,
    /// A label: without what is only of use with the MOS (zap objects, allocation bias).
    Label,
}

/// Pairs that are not written into labels.
const MOS_ONLY: [&str; 5] = [
    "com.delphix:vdev_zap_leaf",
    "com.delphix:vdev_zap_top",
    "com.klarasystems:vdev_zap_root",
    "com.datto:resilver_defer",
    "alloc_bias",
];
/// Statistics and progress that belong into no stored configuration.
const NEVER: [&str; 6] = [
    "vdev_stats",
    "vdev_stats_ex",
    "scan_stats",
    "removal_stats",
    "checkpoint_stats",
    "raidz_expand_stats",
];

pub(super) struct Builder<'a> {
    pub(super) world: &'a World,
    pub(super) common: &'a Arc<Common>,
    pub(super) count: usize,
}

impl Builder<'_> {
    /// The vdev that `config` describes; `top_index` is its index when it is a top-level vdev.
    pub(super) fn vdev(
        &mut self,
        config: &NvList,
        index: usize,
        depth: usize,
    ) -> Result<Arc<Vdev>, VdevError> {
        self.count += 1;
        if self.count > VDEVS_MAX || depth > DEPTH_MAX {
            return Err(bad("the vdev tree is too big or too deep"));
        }
        let guid = Guid::new(config.u64("guid").unwrap_or(0));
        let id = config.u64("id").unwrap_or(index as u64);
        let counters = Arc::new(Counters::default());
        let kind = self.kind(config, guid, &counters, depth)?;
        let top = (depth == 1)
            .then(|| Arc::new(Top::new(VdevId::new(index as u32), class(config), config)));
        if top
            .as_ref()
            .is_some_and(|top| top.metaslab_count() > METASLABS_MAX)
        {
            return Err(bad(format!(
                "vdev {guid} has more than {METASLABS_MAX} metaslabs"
            )));
        }
        let mut own = NvList::with_flags(config.flags());
        for (name, value) in config.iter() {
            if name != "children" && !NEVER.contains(&name) {
                own.push(name, value.clone());
            }
        }
        Ok(Arc::new(Vdev {
            guid,
            id,
            kind,
            top,
            config: Arc::new(Mutex::new(own)),
            world: self.world.clone(),
            repairs: self.common.repairs.clone(),
            counters,
        }))
    }

    fn kind(
        &mut self,
        config: &NvList,
        guid: Guid,
        counters: &Arc<Counters>,
        depth: usize,
    ) -> Result<VdevKind, VdevError> {
        let name = config.require_string("type")?;
        Ok(match name {
            "disk" => self.leaf(config, guid, LeafType::Disk, counters),
            "file" => self.leaf(config, guid, LeafType::File, counters),
            "mirror" => self.mirror(config, guid, MirrorRole::Mirror, depth)?,
            "replacing" => self.mirror(config, guid, MirrorRole::Replacing, depth)?,
            "spare" => self.mirror(config, guid, MirrorRole::Spare, depth)?,
            "raidz" => self.raidz(config, guid, depth)?,
            "draid" => {
                let children = self.children(config, depth)?;
                VdevKind::Draid(DraidVdev {
                    layout: Draid::from_config(config, children.len())?,
                    children,
                })
            }
            "dspare" => VdevKind::DraidSpare(DraidSpareVdev {
                top_guid: Guid::new(config.u64("top_guid").unwrap_or(0)),
                spare: config.u64("spareid").unwrap_or(u64::MAX),
                top: OnceLock::new(),
                missing: Arc::default(),
                recorded: Arc::default(),
            }),
            "hole" => VdevKind::Hole,
            "indirect" => VdevKind::Indirect(IndirectVdev::default()),
            "missing" => VdevKind::Missing,
            other => VdevKind::Other(OtherVdev {
                name: other.to_owned(),
                children: self.children(config, depth)?,
            }),
        })
    }

    fn children(&mut self, config: &NvList, depth: usize) -> Result<Vec<Arc<Vdev>>, VdevError> {
        config
            .lists("children")
            .unwrap_or_default()
            .iter()
            .enumerate()
            .map(|(index, child)| self.vdev(child, index, depth + 1))
            .collect()
    }

    fn leaf(
        &self,
        config: &NvList,
        guid: Guid,
        leaf_type: LeafType,
        counters: &Arc<Counters>,
    ) -> VdevKind {
        let leaf = Leaf::new(
            guid,
            self.world.clone(),
            self.common.clone(),
            counters.clone(),
        );
        let flag = |name| config.u64(name).is_some_and(|value| value != 0);
        // What the administrator said outlives the import, and that a device is degraded. That it
        // was faulted for its errors does not: it may be well again, and what it missed is known
        // (`vdev_alloc`, module/zfs/vdev.c). What was removed is so while nothing is in its place.
        if flag("offline") {
            leaf.set_state(VdevState::Offline, VdevAux::None);
        } else if flag("faulted") && config.string("aux_state") == Some("external") {
            leaf.set_state(VdevState::Faulted, VdevAux::External);
        } else if flag("removed") {
            leaf.set_state(VdevState::Removed, VdevAux::None);
        } else if flag("degraded") {
            leaf.set_state(VdevState::Degraded, VdevAux::ErrorsExceeded);
        }
        VdevKind::Leaf(LeafVdev {
            leaf_type,
            leaf: Arc::new(leaf),
            recorded: Arc::default(),
        })
    }

    fn mirror(
        &mut self,
        config: &NvList,
        guid: Guid,
        role: MirrorRole,
        depth: usize,
    ) -> Result<VdevKind, VdevError> {
        let children = self.children(config, depth)?;
        let kind = VdevKind::Mirror(MirrorVdev { role, children });
        if kind.children().is_empty() {
            return Err(bad(format!("{} vdev {guid} has no children", kind.name())));
        }
        Ok(kind)
    }

    fn raidz(&mut self, config: &NvList, guid: Guid, depth: usize) -> Result<VdevKind, VdevError> {
        // Before version 3 there was no pair for it: single parity.
        let parity = match config.u64("nparity").unwrap_or(1) {
            parity @ 1..=3 => parity,
            other => return Err(bad(format!("a raidz vdev with {other} parity columns"))),
        };
        let children = self.children(config, depth)?;
        if children.len() as u64 <= parity || children.len() > RAIDZ_CHILDREN_MAX {
            return Err(bad(format!(
                "raidz{parity} vdev {guid} has {} children",
                children.len()
            )));
        }
        Ok(VdevKind::Raidz(RaidzVdev {
            parity,
            expansion: Expansion::from_config(config, children.len(), parity)?.map(Arc::new),
            children,
        }))
    }
}

fn class(config: &NvList) -> AllocClass {
    if config.u64("is_log").is_some_and(|value| value != 0) {
        return AllocClass::Log;
    }
    match config.string("alloc_bias") {
        Some("log") => AllocClass::Log,
        Some("special") => AllocClass::Special,
        Some("dedup") => AllocClass::Dedup,
        _ => AllocClass::Normal,
    }
}

impl Vdev {
    /// Its configuration, with all that is below it.
    pub fn to_config(&self, scope: Scope) -> NvList {
        let mut out = NvList::new();
        {
            let own = self.config.lock();
            // Where it is in the tree, the tree tells.
            let skipped = |name: &str| {
                ["type", "id", "guid"].contains(&name)
                    || scope == Scope::Label && MOS_ONLY.contains(&name)
            };
            out.set("type", self.kind.name());
            out.set("id", self.id);
            out.set("guid", self.guid.get());
            for (name, value) in own.iter().filter(|(name, _)| !skipped(name)) {
                out.set(name, value.clone());
            }
        }
        if let Some(top) = &self.top
            && !matches!(self.kind, VdevKind::Hole | VdevKind::Missing)
        {
            out.set("metaslab_array", top.metaslab_array());
            out.set("metaslab_shift", u64::from(self.metaslab_shift()));
            out.set("ashift", u64::from(self.ashift()));
            out.set("asize", self.asize_bytes());
            out.set("is_log", u64::from(top.class == AllocClass::Log));
        }
        if let Some(leaf) = self.leaf() {
            // What the administrator or too many errors said outlives the import.
            let (state, aux) = leaf.state();
            for (name, value) in [
                (
                    "offline",
                    state == VdevState::Offline && !leaf.is_temporary(),
                ),
                ("faulted", state == VdevState::Faulted),
                ("degraded", state == VdevState::Degraded),
                ("removed", state == VdevState::Removed),
            ] {
                if value {
                    out.set(name, 1u64);
                } else {
                    out.remove(name);
                }
            }
            match aux {
                _ if leaf.is_temporary() => {
                    out.remove("aux_state");
                    &mut out
                }
                VdevAux::ErrorsExceeded => out.set("aux_state", "err_exceeded"),
                VdevAux::External => out.set("aux_state", "external"),
                _ => {
                    out.remove("aux_state");
                    &mut out
                }
            };
        }
        if !self.children().is_empty() {
            let children: Vec<NvList> = self
                .children()
                .iter()
                .map(|child| child.to_config(scope))
                .collect();
            out.set("children", children);
        }
        out
    }
}
