//! Properties of vdevs that can be set: which there are, how values are written as text, where they
//! are stored.
//!
//! They are entries of the vdev's ZAP in the MOS, beside what the pool itself keeps there: of the
//! root vdev's (pools with feature `vdev_zaps_v2`), else the top-level vdev's, else the leaf's.
//! Numbers and switches are one 64-bit integer, the comment and properties of users are text with
//! its closing zero byte; an entry that is not there has its default. What is neither a device nor
//! on top (a mirror below `replacing`) has no ZAP, so nothing can be set on it.
//!
//! The limits of the [diagnosis](crate::diagnosis) (`checksum_n` to `slow_io_t`) hold for the
//! devices below a vdev that have none of their own ([`limits`]). `failfast` is kept for the system
//! that the pool may go to: here is no block layer to ask. Holes and vdevs whose device is gone
//! keep theirs.
//!
//! Values are in [`props::PropValues::vdevs`], under the lock of the pool's properties, by
//! object number: a pool's guid may change. It changes in syncing context only; who sets holds the
//! pool's `admin` lock, so that the vdev is not removed meanwhile.
//!
//! Source: module/zfs/vdev.c (`vdev_prop_get`, `vdev_prop_set`, `vdev_props_set_sync`),
//! module/zcommon/zpool_prop.c (`vdev_prop_init`), lib/libzfs/libzfs_pool.c
//! (`zpool_valid_proplist`), vdevprops(7).

use std::collections::BTreeMap;
use std::sync::Arc;

use dataset::{DatasetError, SpaceCheck, SyncTask};
use device::BoxFuture;
use format::{Guid, ObjectId};
use object::{ObjectSet, SyncContext, Zap, ZapValue};
use vdev::{Vdev, VdevTree};
use zio::Tx;

use crate::diagnosis::{ErrorKind, Limit};
use crate::props::{self, NAME_BYTES_MAX, OFF_ON, Stored, TEXT_BYTES_MAX, VALUE_BYTES_MAX};
use crate::{PoolError, Spa, config, directory, features};

/// What is stored for one vdev, by name.
pub type VdevProps = BTreeMap<String, Stored>;

/// What kind of value a property has, and its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Text without a default.
    Text,
    /// One of these words, stored as its index.
    Word(&'static [&'static str], u64),
    /// A number; [`u64::MAX`] is none, the default.
    Limit,
}

/// `failfast` of releases after 2.3 can be left to the vdev above as well.
const FAILFAST: &[&str] = &["off", "on", "inherit"];

/// What can be set, in the order of `vdev_prop_t` (include/sys/fs/zfs.h).
const TABLE: &[(&str, Kind)] = &[
    ("comment", Kind::Text),
    ("allocating", Kind::Word(OFF_ON, 1)),
    ("failfast", Kind::Word(FAILFAST, 1)),
    ("checksum_n", Kind::Limit),
    ("checksum_t", Kind::Limit),
    ("io_n", Kind::Limit),
    ("io_t", Kind::Limit),
    ("slow_io_n", Kind::Limit),
    ("slow_io_t", Kind::Limit),
    ("autosit", Kind::Word(OFF_ON, 0)),
    ("slow_io_events", Kind::Word(OFF_ON, 1)),
];

/// What is computed.
const READ_ONLY: &[&str] = &[
    "name",
    "capacity",
    "state",
    "guid",
    "asize",
    "psize",
    "ashift",
    "size",
    "free",
    "allocated",
    "expandsize",
    "fragmentation",
    "bootsize",
    "parity",
    "devid",
    "physpath",
    "encpath",
    "fru",
    "parent",
    "children",
    "numchildren",
    "read_errors",
    "write_errors",
    "checksum_errors",
    "initialize_errors",
    "trim_errors",
    "slow_ios",
    "null_ops",
    "read_ops",
    "write_ops",
    "free_ops",
    "claim_ops",
    "trim_ops",
    "null_bytes",
    "read_bytes",
    "write_bytes",
    "free_bytes",
    "claim_bytes",
    "trim_bytes",
    "removing",
    "raidz_expanding",
    "sit_out",
    "trim_support",
];

/// Entries of vdevs' ZAPs that look like properties of users and are the pool's own
/// (`VDEV_TOP_ZAP_*`, `VDEV_LEAF_ZAP_*`, include/sys/vdev_impl.h, vdev_rebuild.h, vdev_raidz.h).
const INTERNAL: &[&str] = &[
    directory::ALLOCATION_BIAS,
    directory::MS_UNFLUSHED_PHYS_TXGS,
    directory::CHECKPOINT_SPACE_MAP,
    directory::OBSOLETE_SPACE_MAP,
    "com.delphix:obsolete_counts_are_precise",
    "org.openzfs:vdev_rebuild",
    directory::RAIDZ_EXPAND_STATE,
    directory::RAIDZ_EXPAND_START,
    directory::RAIDZ_EXPAND_END,
    directory::RAIDZ_EXPAND_COPIED,
    directory::INITIALIZE[0],
    directory::INITIALIZE[1],
    directory::INITIALIZE[2],
    directory::TRIM[0],
    directory::TRIM[1],
    directory::TRIM[2],
    directory::INITIALIZE_VALUE,
    directory::TRIM_RATE,
    directory::TRIM_PARTIAL,
    directory::TRIM_SECURE,
];

fn kind_of(name: &str) -> Option<Kind> {
    let row = TABLE.iter().find(|(known, _)| *known == name);
    row.map(|(_, kind)| *kind)
}

/// The object number of a vdev's ZAP.
fn zap_of(vdev: &Vdev) -> Option<ObjectId> {
    let of = |pair| vdev.config_u64(pair).filter(|id| *id != 0);
    of(config::TOP_ZAP)
        .or_else(|| of(config::LEAF_ZAP))
        .map(ObjectId::new)
}

fn zap_of_root(tree: &VdevTree) -> Option<ObjectId> {
    let id = tree.root_config_u64(config::ROOT_ZAP);
    id.filter(|id| *id != 0).map(ObjectId::new)
}

/// Reads what is stored for all vdevs. What cannot be read is left out: no pool is refused for it.
pub async fn load(mos: &Arc<ObjectSet>, tree: &VdevTree) -> BTreeMap<ObjectId, VdevProps> {
    fn walk(vdev: &Vdev, zaps: &mut Vec<ObjectId>) {
        zaps.extend(zap_of(vdev));
        vdev.children().iter().for_each(|child| walk(child, zaps));
    }
    let mut zaps: Vec<ObjectId> = zap_of_root(tree).into_iter().collect();
    tree.tops().iter().for_each(|top| walk(top, &mut zaps));
    let mut out = BTreeMap::new();
    for id in zaps {
        let mut stored = VdevProps::new();
        let entries = async { Zap::hold(mos, id).await?.all().await };
        let entries = match entries.await {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(zap = %id, %error, "properties of a vdev cannot be read");
                continue;
            }
        };
        for entry in entries {
            let name = entry.name_str().into_owned();
            let value = match (entry.value.as_u64(), entry.value.as_str(), kind_of(&name)) {
                (Some(number), _, Some(Kind::Word(..) | Kind::Limit)) => Stored::Number(number),
                (_, Some(text), Some(Kind::Text)) => Stored::Text(text.to_owned()),
                (_, Some(text), None) if props::is_user(&name) => Stored::Text(text.to_owned()),
                _ => continue,
            };
            stored.insert(name, value);
        }
        if !stored.is_empty() {
            out.insert(id, stored);
        }
    }
    out
}

/// What differs from the defaults, as text: native properties in their order, then those of users.
fn texts(stored: &VdevProps) -> Vec<(String, String)> {
    let native = TABLE.iter().filter_map(|(name, kind)| {
        let text = match (stored.get(*name)?, kind) {
            (Stored::Text(text), Kind::Text) => text.clone(),
            (Stored::Number(number), Kind::Word(words, default)) if number != default => {
                let word = usize::try_from(*number)
                    .ok()
                    .and_then(|index| words.get(index));
                word.map_or_else(|| number.to_string(), |word| (*word).to_owned())
            }
            (Stored::Number(number), Kind::Limit) if *number != u64::MAX => number.to_string(),
            _ => return None,
        };
        Some(((*name).to_owned(), text))
    });
    let of_users = stored.iter().filter_map(|(name, value)| match value {
        Stored::Text(text) if kind_of(name).is_none() => Some((name.clone(), text.clone())),
        _ => None,
    });
    native.chain(of_users).collect()
}

fn stored_at(spa: &Spa, zap: Option<ObjectId>) -> Vec<(String, String)> {
    let values = spa.props.lock();
    let stored = zap.and_then(|zap| values.vdevs.get(&zap));
    stored.map(texts).unwrap_or_default()
}

/// Of the root vdev.
pub fn of_root(spa: &Spa) -> Vec<(String, String)> {
    stored_at(spa, zap_of_root(&spa.tree))
}

/// Of a vdev.
pub fn of_vdev(spa: &Spa, vdev: &Vdev) -> Vec<(String, String)> {
    stored_at(spa, zap_of(vdev))
}

/// How many errors within how many seconds are too many, as far as somebody said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// So many errors.
    pub count: Option<u64>,
    /// Within so many seconds.
    pub within_s: Option<u64>,
}

impl Limits {
    /// What holds for errors of that kind (`DEFAULT_CHECKSUM_N` and others,
    /// cmd/zed/agents/zfs_diagnosis.c): slow operations count only where both are set.
    pub fn effective(&self, kind: ErrorKind) -> Option<Limit> {
        const COUNT: u64 = 10;
        const WITHIN_S: u64 = 600;
        let (count, within_s) = match kind {
            ErrorKind::SlowIo => (self.count?, self.within_s?),
            _ => (
                self.count.unwrap_or(COUNT),
                self.within_s.unwrap_or(WITHIN_S),
            ),
        };
        Some(Limit {
            count,
            within_ns: within_s.saturating_mul(1_000_000_000),
        })
    }
}

/// The limits of a device, by the path to it from its top-level vdev: its own, or the next above
/// (`vdev_prop_get_inherited`, module/zfs/zfs_fm.c).
pub fn limits(spa: &Spa, path: &[Arc<Vdev>], kind: ErrorKind) -> Limits {
    let [count, within] = match kind {
        ErrorKind::Io => ["io_n", "io_t"],
        ErrorKind::Checksum => ["checksum_n", "checksum_t"],
        ErrorKind::SlowIo => ["slow_io_n", "slow_io_t"],
    };
    let zaps = path.iter().rev().map(|vdev| zap_of(vdev));
    let zaps: Vec<ObjectId> = zaps.chain([zap_of_root(&spa.tree)]).flatten().collect();
    let values = spa.props.lock();
    let find = |name: &str| {
        zaps.iter()
            .find_map(|zap| match values.vdevs.get(zap)?.get(name)? {
                Stored::Number(number) if *number != u64::MAX => Some(*number),
                _ => None,
            })
    };
    Limits {
        count: find(count),
        within_s: find(within),
    }
}

/// Whether slow operations of a device are told as events (`slow_io_events`, of 2.4). It is the
/// device's own (`zio_done`, module/zfs/zio.c).
pub fn tells_slow_io(spa: &Spa, leaf: &Vdev) -> bool {
    let values = spa.props.lock();
    let stored = zap_of(leaf).and_then(|zap| values.vdevs.get(&zap)?.get("slow_io_events"));
    !matches!(stored, Some(Stored::Number(0)))
}

/// What setting a property means; checked as far as it can be without a look at the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The vdev; the pool's guid means the root vdev.
    vdev: Guid,
    name: String,
    /// What is stored; `None` removes the entry.
    value: Option<Stored>,
}

impl Change {
    /// Checks a name and a value.
    pub fn parse(spa: &Spa, vdev: Guid, name: &str, value: &str) -> Result<Self, PoolError> {
        let found = spa.tree.find(vdev);
        let called = match &found {
            Some(vdev) => vdev.display_name(),
            None if vdev == spa.guid() => "root-0".to_owned(),
            None => {
                return Err(PoolError::NoSuchDevice {
                    device: vdev.to_string(),
                });
            }
        };
        let value = parse_value(name, value).map_err(|why| bad(&called, name, &why))?;
        Ok(Self {
            vdev,
            name: name.to_owned(),
            value,
        })
    }

    /// Finds the ZAP again, as the tree is now.
    fn zap(&self, spa: &Spa) -> Option<ObjectId> {
        match spa.tree.find(self.vdev) {
            Some(vdev) => zap_of(&vdev),
            None if self.vdev == spa.guid() => zap_of_root(&spa.tree),
            None => None,
        }
    }

    fn called(&self, spa: &Spa) -> String {
        let found = spa.tree.find(self.vdev);
        found.map_or_else(|| "root-0".to_owned(), |vdev| vdev.display_name())
    }

    /// Why there is no ZAP.
    fn no_zap(&self, spa: &Spa) -> PoolError {
        let why = match spa.tree.find(self.vdev) {
            Some(vdev) if vdev.top().is_none() && vdev.leaf().is_none() => {
                "only devices, top-level vdevs and root-0 have properties that can be set"
            }
            Some(_) => {
                "the pool keeps nothing for this vdev: it is being removed, or the pool is older \
                 than properties of vdevs"
            }
            None => {
                "the pool has no place for root-0's: it needs 'zpool set \
                 feature@vdev_zaps_v2=enabled' first"
            }
        };
        bad(&self.called(spa), &self.name, why)
    }
}

fn bad(vdev: &str, property: &str, why: &str) -> PoolError {
    PoolError::BadVdevProperty {
        property: property.to_owned(),
        vdev: vdev.to_owned(),
        why: why.to_owned(),
    }
}

fn parse_value(name: &str, value: &str) -> Result<Option<Stored>, String> {
    if value.contains('\0') {
        return Err(format!(
            "the value of '{name}' has a zero byte, where text on disk ends; leave that out"
        ));
    }
    match name {
        "path" => {
            return Err(
                "'path' cannot be set: paths are those where devices were found at the import"
                    .to_owned(),
            );
        }
        "allocating" => {
            return Err(
                "'allocating' cannot be set by this release, which does not count what is free \
                 without a vdev; OpenZFS sets it, and a vdev that gets no new blocks there gets \
                 none here"
                    .to_owned(),
            );
        }
        "autosit" | "sit_out" => {
            return Err(format!(
                "'{name}' cannot be set by this release, which reads from slow devices of a RAID-Z \
                 as from others; OpenZFS 2.4 sets it"
            ));
        }
        _ if READ_ONLY.contains(&name) => return Err(format!("'{name}' is readonly")),
        _ if INTERNAL.contains(&name) => {
            return Err(format!("'{name}' is readonly: it is the pool's own"));
        }
        _ => {}
    }
    let number = match kind_of(name) {
        None if !props::is_user(name) => return Err(format!("invalid property: '{name}'")),
        None => {
            if name.len() >= NAME_BYTES_MAX {
                return Err(format!("property name '{name}' is too long"));
            }
            if value.len() >= VALUE_BYTES_MAX {
                return Err(format!("the value of '{name}' is too long"));
            }
            let text = (!value.is_empty()).then(|| value.to_owned());
            return Ok(text.map(Stored::Text));
        }
        Some(Kind::Text) => {
            if value.len() >= TEXT_BYTES_MAX {
                return Err(format!("'{name}' is too long"));
            }
            // An empty comment is stored as one.
            return Ok(Some(Stored::Text(value.to_owned())));
        }
        Some(Kind::Word(..)) => match OFF_ON.iter().position(|word| *word == value) {
            Some(index) => index as u64,
            None => return Err(format!("'{name}' must be one of 'on | off'")),
        },
        Some(Kind::Limit) => match value {
            "none" => u64::MAX,
            "auto" => return Err(format!("'auto' is invalid value for '{name}'")),
            _ => props::parse_size(value).ok_or_else(|| format!("bad numeric value '{value}'"))?,
        },
    };
    Ok(Some(Stored::Number(number)))
}

/// Sets a property; returns once it is on disk.
pub async fn set(spa: &Arc<Spa>, change: Change) -> Result<(), PoolError> {
    let _admin = spa.admin.lock().await;
    spa.check_not_suspended()?;
    if change.zap(spa).is_none()
        && spa.tree.find(change.vdev).is_none()
        && spa.dsl.features().is_enabled(features::VDEV_ZAPS_V2)
    {
        // The feature was enabled after the last change of the configuration: that makes the ZAP.
        spa.identity.mark_dirty();
        spa.unless_suspended(spa.txgs.sync()).await?;
    }
    let zap = change.zap(spa).ok_or_else(|| change.no_zap(spa))?;
    let known = Zap::hold(spa.dsl.mos(), zap).await?;
    let known = known.lookup(&change.name).await?;
    let is_text = !matches!(change.value, Some(Stored::Number(_)));
    if known.is_some_and(|known| (known.integer_bytes == 1) != is_text) {
        let why = format!("'{}' is readonly: it is the pool's own", change.name);
        return Err(bad(&change.called(spa), &change.name, &why));
    }
    let task = SetTask {
        spa: spa.clone(),
        change,
    };
    spa.run_task(task).await
}

struct SetTask {
    spa: Arc<Spa>,
    change: Change,
}

impl SyncTask for SetTask {
    fn name(&self) -> &'static str {
        "set vdev property"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::ExtraReserved
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let Change { vdev, name, value } = &self.change;
            let Some(id) = self.change.zap(&self.spa) else {
                return Ok(());
            };
            let tx = Tx::syncing(ctx.txg);
            let zap = Zap::hold(self.spa.dsl.mos(), id).await?;
            let text = match value {
                Some(Stored::Number(number)) => {
                    zap.update_u64(&tx, name, *number).await?;
                    // As OpenZFS records it: what means "none" as -1.
                    number.cast_signed().to_string()
                }
                Some(Stored::Text(text)) => {
                    zap.update(&tx, name, ZapValue::from_str_z(text)).await?;
                    text.clone()
                }
                None => {
                    if zap.lookup(name).await?.is_some() {
                        zap.remove(&tx, name).await?;
                    }
                    String::new()
                }
            };
            {
                let mut values = self.spa.props.lock();
                let stored = values.vdevs.entry(id).or_default();
                match value {
                    Some(value) => stored.insert(name.clone(), value.clone()),
                    None => stored.remove(name),
                };
            }
            let text = format!("vdev_guid={vdev}: {name}={text}");
            self.spa.history.internal(&tx, "vdev set", text).await;
            Ok(())
        })
    }
}
