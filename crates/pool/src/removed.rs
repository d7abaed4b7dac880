//! Removed vdevs: loading the mappings that tell where their blocks are now. How a vdev is removed
//! is in module `evacuation`.
//!
//! A mapping is an object of the MOS, which may itself lie on vdevs that were removed after it was
//! made. So the mappings are loaded from the last removal back to the first, along the chain that
//! the configuration tells; whatever has to be read before that is on vdevs that are there.
//!
//! Source: module/zfs/vdev_removal.c (`spa_remove_init`), vdev_indirect.c.

use std::sync::Arc;

use format::{
    Endian, IndirectBirthEntry, IndirectBirthPhys, IndirectMappingEntry, IndirectMappingPhys,
    NvList, ObjectId, RemovingPhys, VdevId,
};
use object::{ObjectSet, Zap};
use spa::{damaged, directory};
use vdev::{IndirectMap, Vdev, VdevTree, reflow};

use crate::PoolError;

/// Pair of a vdev's configuration: the object of its mapping.
pub(crate) const MAPPING_OBJECT: &str = "com.delphix:indirect_object";
/// The same of the txgs in which it was copied.
pub(crate) const BIRTHS_OBJECT: &str = "com.delphix:indirect_births";
/// The same: the vdev that was removed before it.
pub(crate) const PREVIOUS: &str = "com.delphix:prev_indirect_vdev";
/// Entries of one mapping that are believed.
pub(crate) const ENTRIES_MAX: u64 = 1 << 26;
/// Births of one mapping that are believed: there is one per transaction group of a removal.
pub(crate) const BIRTHS_MAX: u64 = 1 << 20;
/// Bytes read at a time; a multiple of every entry's size.
const CHUNK_BYTES: u64 = 24 * 4096;

/// `DSS_SCANNING`, `DSS_FINISHED` and `DSS_CANCELED` (include/sys/fs/zfs.h).
pub(crate) const SCAN_SCANNING: u64 = 1;
pub(crate) const SCAN_FINISHED: u64 = 2;
pub(crate) const SCAN_CANCELED: u64 = 3;

/// How far a removal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalState {
    /// Under way: what has not been copied yet is still read where it was.
    Running,
    /// Done.
    Finished,
    /// Given up.
    Canceled,
}

/// The removal of a top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovalStatus {
    /// How far it is.
    pub state: RemovalState,
    /// Index of the vdev.
    pub vdev: u64,
    /// Its type or path, while it is there.
    pub name: String,
    /// When it began, in seconds since 1970.
    pub start_s: u64,
    /// When it ended; zero while it is under way.
    pub end_s: u64,
    /// All there is to copy.
    pub to_copy_bytes: u64,
    /// What has been copied.
    pub copied_bytes: u64,
    /// Memory that the mappings of all removed vdevs take.
    pub mapping_bytes: u64,
    /// Why nothing is copied at present.
    pub waits_for: Option<String>,
}

/// Whether the pool of this configuration has removed vdevs.
pub(crate) fn is_in(config: &NvList) -> bool {
    config
        .list("vdev_tree")
        .and_then(|tree| tree.lists("children"))
        .is_some_and(|tops| {
            tops.iter()
                .any(|top| top.string("type") == Some("indirect"))
        })
}

/// State of the last removal, if there was one.
pub(crate) async fn status(mos: &Arc<ObjectSet>) -> Result<Option<RemovingPhys>, PoolError> {
    let value = Zap::hold(mos, ObjectId::POOL_DIRECTORY)
        .await?
        .lookup(directory::REMOVING)
        .await?;
    let Some(value) = value else { return Ok(None) };
    let bytes: Vec<u8> = value
        .to_u64s()
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    Ok(Some(RemovingPhys::decode(&bytes, Endian::Little)?))
}

/// Changes of layout that are under way in this pool, which nobody here carries on: it is not
/// written until OpenZFS is done with them. Removals are not among them (module `evacuation`), nor
/// are mappings that are being condensed (module `condensing`).
pub(crate) fn under_way(tree: &VdevTree) -> Vec<String> {
    // One expansion goes on (`expand`), where the uberblock says what can be; it tells of no more.
    tree.tops()
        .iter()
        .filter(|top| top.is_expanding())
        .enumerate()
        .filter(|(index, top)| *index > 0 || reflow::is_damaged(top))
        .map(|(_, top)| format!("raidz_expansion ({} is being expanded)", top.display_name()))
        .collect()
}

/// Loads the mappings of a tree that was built from the MOS's configuration, but for those that it
/// has.
///
/// # Errors
/// When a mapping cannot be read or cannot be right.
pub(crate) async fn load(tree: &VdevTree, mos: &Arc<ObjectSet>) -> Result<(), PoolError> {
    let tops = tree.tops();
    let removed = tops.iter().filter(|top| top.kind().is_indirect()).count();
    if removed == 0 {
        return Ok(());
    }
    let mut next = status(mos)
        .await?
        .map_or(u64::MAX, |removing| removing.previous_indirect_vdev);
    for _ in 0..removed {
        let top = u32::try_from(next)
            .ok()
            .and_then(|id| tree.top(VdevId::new(id)))
            .filter(|top| top.kind().is_indirect())
            .ok_or_else(|| bad(format!("the chain of removals leads to vdev {next}")))?;
        if top.indirect_bytes().is_none() {
            let [mapping, births] = objects_of(&top)?;
            let (_, map) = read(mos, mapping, births).await?;
            tree.topology()
                .set_indirect_map(top.vdev_id(), map)
                .map_err(|error| bad(error.to_string()))?;
        }
        next = top.config_u64(PREVIOUS).unwrap_or(u64::MAX);
    }
    Ok(())
}

fn bad(why: String) -> PoolError {
    damaged("the pool", "the mapping of a removed vdev", why)
}

/// The objects of a vdev's mapping, and of the txgs in which it was copied.
pub(crate) fn objects_of(top: &Vdev) -> Result<[ObjectId; 2], PoolError> {
    let object = |name: &str| match top.config_u64(name).unwrap_or(0) {
        0 => Err(bad(format!("{} has no {name}", top.display_name()))),
        id => Ok(ObjectId::new(id)),
    };
    Ok([object(MAPPING_OBJECT)?, object(BIRTHS_OBJECT)?])
}

/// Reads a mapping, with its head.
pub(crate) async fn read(
    mos: &Arc<ObjectSet>,
    mapping: ObjectId,
    births: ObjectId,
) -> Result<(IndirectMappingPhys, IndirectMap), PoolError> {
    let (head, entries) = read_entries(mos, mapping).await?;
    let births_head = IndirectBirthPhys::decode(&mos.hold(births).await?.bonus(), Endian::Little)?;
    let entry = |bytes: &[u8]| IndirectBirthEntry::decode(bytes, Endian::Little);
    let count = checked(births_head.entries, BIRTHS_MAX)?;
    let births = read_array(mos, births, count, IndirectBirthEntry::BYTES, entry).await?;
    Ok((head, IndirectMap::new(entries, births)?))
}

/// The head of a mapping.
pub(crate) async fn head_of(
    mos: &Arc<ObjectSet>,
    mapping: ObjectId,
) -> Result<IndirectMappingPhys, PoolError> {
    let bonus = mos.hold(mapping).await?.bonus();
    let head = IndirectMappingPhys::decode(&bonus, Endian::Little)?;
    // The word is there with the feature, and is zero where nothing was made.
    let counts = head.counts.filter(|counts| !counts.is_zero());
    Ok(IndirectMappingPhys { counts, ..head })
}

/// Reads a mapping's head and entries.
pub(crate) async fn read_entries(
    mos: &Arc<ObjectSet>,
    mapping: ObjectId,
) -> Result<(IndirectMappingPhys, Vec<IndirectMappingEntry>), PoolError> {
    let head = head_of(mos, mapping).await?;
    let entry = |bytes: &[u8]| IndirectMappingEntry::decode(bytes, Endian::Little);
    let count = checked(head.entries, ENTRIES_MAX)?;
    let entries = read_array(mos, mapping, count, IndirectMappingEntry::BYTES, entry).await?;
    Ok((head, entries))
}

fn checked(count: u64, limit: u64) -> Result<u64, PoolError> {
    if count > limit {
        return Err(bad(format!("it claims to have {count} entries")));
    }
    Ok(count)
}

/// Reads an array of so many entries.
pub(crate) async fn read_array<T>(
    mos: &Arc<ObjectSet>,
    id: ObjectId,
    count: u64,
    entry_bytes: usize,
    decode: impl Fn(&[u8]) -> format::Result<T>,
) -> Result<Vec<T>, PoolError> {
    let total = count * entry_bytes as u64;
    let object = mos.hold(id).await?;
    let mut out = Vec::new();
    let mut at = 0;
    while at < total {
        let length = (total - at).min(CHUNK_BYTES);
        let bytes = object.read_bytes(at, length as usize).await?;
        for entry in bytes.chunks_exact(entry_bytes) {
            out.push(decode(entry)?);
        }
        at += length;
    }
    Ok(out)
}
