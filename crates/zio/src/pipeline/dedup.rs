//! Deduplicated blocks while a txg is written (`zio_ddt_free`, module/zfs/zio.c; `ddt_lookup` and
//! the `ddt_phys_*` functions, module/zfs/ddt.c).
//!
//! Blocks with the D bit are shared: an entry of a dedup table counts their references. The tables
//! are objects of the MOS, above this crate; [`DedupTables`] is how they are asked. What a txg
//! changes is kept here as *live entries*, one per block that the txg writes or frees, until the
//! sync loop stores them and forgets them at the end of the pass: memory depends on what a txg
//! does, not on the size of a table.
//!
//! How a block is **written** by way of its entry is told in `dedup_write`.
//!
//! A **free** is queued by [`super::Frees::free`] and settled when the pass's datasets are written:
//! the reference is dropped. The sync loop frees the space when the entry has no reference left. A
//! pointer that no longer fits its entry belongs to a block whose entry was pruned: it is freed
//! like any other.
//!
//! A crash loses live entries together with the txg that they belong to.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use device::BoxFuture;
use format::{
    BlockPointer, Checksum, DdtClass, DdtKey, DdtPhys, DdtPlace, Endian, ObjectType,
    RegularPointer, Txg,
};
use futures::StreamExt;
use parking_lot::{Mutex, RwLock};

use crate::error::{LEAKED, ZioError};

/// Frees whose entries are looked up at the same time.
const LOOKUPS_IN_FLIGHT: usize = 64;

/// How a block is deduplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DedupPolicy {
    /// Compare the data with the block that is there; always done where the checksum is too weak to
    /// rely on.
    pub verify: bool,
}

/// What names an entry: the table's checksum and the key in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DedupName {
    /// Whose table.
    pub checksum: Checksum,
    /// The entry's key.
    pub key: DdtKey,
}

impl DedupName {
    /// The name of a block's entry; `None` for blocks that no table can have.
    pub fn of(bp: &BlockPointer) -> Option<Self> {
        let checksum = bp.checksum_kind();
        if !checksum.has_dedup_table() {
            return None;
        }
        let key = DdtKey::new(
            bp.checksum(),
            bp.lsize_bytes(),
            bp.psize_bytes(),
            bp.compression(),
            bp.uses_crypt(),
        );
        key.ok().map(|key| DedupName { checksum, key })
    }

    /// For sorting: a table's entries in the order in which its ZAPs have them.
    pub fn order(&self) -> (u8, [u64; 5]) {
        (self.checksum.code(), *self.key.words())
    }
}

/// An entry as a table has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    /// In which of the table's ZAPs; `None` when it is in the table's log and in no ZAP yet.
    pub class: Option<DdtClass>,
    /// Its value.
    pub value: DdtPhys,
}

/// An entry that is changed in this txg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveEntry {
    /// What the table has; `None` when it is new.
    pub stored: Option<StoredEntry>,
    /// What it is to be.
    pub value: DdtPhys,
}

/// The dedup tables of a pool.
pub trait DedupTables: Send + Sync {
    /// Reads an entry. Called while a txg is written. Where `trust_filter`, a filter in memory may
    /// say that there is none; not where a block would be freed, or be lost, by that.
    fn lookup<'a>(
        &'a self,
        name: &'a DedupName,
        trust_filter: bool,
    ) -> BoxFuture<'a, Result<Option<StoredEntry>, ZioError>>;

    /// Whether new entries of this checksum's table are flat; `None` when it may not grow
    /// (`ddt_over_quota`).
    fn new_entries_are_flat(&self, checksum: Checksum) -> Option<bool>;

    /// Whether entries of this table may have been removed while their blocks live (`zpool
    /// ddtprune`).
    fn may_be_pruned(&self, checksum: Checksum) -> bool;
}

pub(super) type Slot = Arc<tokio::sync::Mutex<Option<LiveEntry>>>;

/// References that a txg drops.
#[derive(Default)]
struct Frees {
    blocks: Vec<BlockPointer>,
    /// In the order of the tables, all of them.
    is_sorted: bool,
}

impl Frees {
    fn push(&mut self, block: BlockPointer) {
        self.blocks.push(block);
        self.is_sorted = false;
    }

    /// Up to `limit` of them, from the end of the tables' order. Those of a leaf come together, so
    /// that it is read once. However many pieces are taken, they are sorted once.
    fn take(&mut self, limit: usize) -> Vec<BlockPointer> {
        if !self.is_sorted {
            self.blocks.sort_unstable_by_key(BlockPointer::checksum);
            self.is_sorted = true;
        }
        let rest = self.blocks.len().saturating_sub(limit);
        self.blocks.split_off(rest)
    }
}

/// The live entries, and the references that are to be dropped.
#[derive(Default)]
pub struct Dedup {
    tables: RwLock<Option<Weak<dyn DedupTables>>>,
    live: Mutex<HashMap<DedupName, Slot>>,
    /// References to drop.
    frees: Mutex<BTreeMap<Txg, Frees>>,
}

/// Damage that reading again does not mend: a reference is rather leaked than the pool stopped.
pub(super) fn is_damage(error: &ZioError) -> bool {
    matches!(
        error,
        ZioError::Checksum { .. }
            | ZioError::Corrupt { .. }
            | ZioError::Vdev(vdev::VdevError::Format(_))
            | ZioError::BadPointer { .. }
    )
}

/// The pointer by which a place of an entry is freed or read: without D bit (`ddt_bp_create`). Of
/// an encrypted block it lacks what decrypts it.
///
/// # Errors
/// When the place makes no sense.
pub fn pointer_of_place(name: &DedupName, place: &DdtPlace) -> Result<BlockPointer, ZioError> {
    let key = &name.key;
    let encrypted = key.is_encrypted();
    Ok(BlockPointer::regular(&RegularPointer {
        dvas: [0, 1, 2].map(|index| place.dva(index, encrypted)),
        lsize_bytes: key.lsize_bytes(),
        psize_bytes: key.psize_bytes(),
        compression: key.compression(),
        checksum_kind: name.checksum,
        object_type: ObjectType::DEDUP,
        level: 0,
        dedup: false,
        uses_crypt: encrypted,
        rewritten: false,
        endian: Endian::Little,
        fill: 1,
        logical_birth: place.physical_birth,
        physical_birth: place.physical_birth,
        checksum: key.checksum(),
        crypt: None,
    })?)
}

/// The place of an entry that a pointer leads to.
fn place_of<'a>(entry: &'a mut LiveEntry, bp: &BlockPointer) -> Option<&'a mut DdtPlace> {
    entry.value.places_mut().iter_mut().find(|place| {
        place.is_used()
            && place.words[0] == [bp.words()[0], bp.words()[1]]
            && place.physical_birth == bp.physical_birth()
    })
}

impl Dedup {
    pub(super) fn tables(&self) -> Option<Arc<dyn DedupTables>> {
        self.tables.read().as_ref()?.upgrade()
    }

    pub(super) fn slot(&self, name: &DedupName) -> Slot {
        self.live.lock().entry(*name).or_default().clone()
    }

    /// Queues the free of a block that may be shared; false when there are no tables at all.
    pub(super) fn queue_free(&self, txg: Txg, bp: &BlockPointer) -> bool {
        if !bp.is_dedup() || self.tables.read().is_none() {
            return false;
        }
        self.frees.lock().entry(txg).or_default().push(*bp);
        true
    }

    /// Tells where the dedup tables are. Without, blocks with the D bit are freed like others.
    pub fn set_tables(&self, tables: &Arc<dyn DedupTables>) {
        *self.tables.write() = Some(Arc::downgrade(tables));
    }

    /// Bytes that live entries and queued frees take in memory, roughly.
    pub fn memory_bytes(&self) -> u64 {
        let entry_bytes = size_of::<(DedupName, Slot)>() + size_of::<LiveEntry>();
        let entries_bytes = self.live.lock().len() * entry_bytes;
        let frees = self.frees.lock();
        let frees: usize = frees.values().map(|frees| frees.blocks.len()).sum();
        (entries_bytes + frees * size_of::<BlockPointer>()) as u64
    }

    /// Whether this pass left something to settle: then there must be another one.
    pub fn has_work(&self, txg: Txg) -> bool {
        self.has_frees(txg) || !self.live.lock().is_empty()
    }

    /// Whether frees of shared blocks wait to be settled in this txg.
    pub fn has_frees(&self, txg: Txg) -> bool {
        self.frees.lock().contains_key(&txg)
    }

    /// Drops the references of up to `limit` freed blocks; returns how many there were. Blocks
    /// whose entries were pruned are given to `free`.
    ///
    /// # Errors
    /// Of reading tables, but for damage: then the block's space is lost.
    pub(super) async fn drop_references(
        &self,
        txg: Txg,
        limit: usize,
        free: impl Fn(&BlockPointer),
    ) -> Result<usize, ZioError> {
        let free = &free;
        let taken = {
            let mut frees = self.frees.lock();
            let Some(list) = frees.get_mut(&txg) else {
                return Ok(0);
            };
            let taken = list.take(limit);
            if list.blocks.is_empty() {
                frees.remove(&txg);
            }
            taken
        };
        let count = taken.len();
        let mut running = futures::stream::iter(taken)
            .map(|bp| self.drop_reference(bp, free))
            .buffer_unordered(LOOKUPS_IN_FLIGHT);
        while let Some(done) = running.next().await {
            done?;
        }
        Ok(count)
    }

    async fn drop_reference(
        &self,
        bp: BlockPointer,
        free: &impl Fn(&BlockPointer),
    ) -> Result<(), ZioError> {
        let lost = |why: &dyn std::fmt::Display| {
            tracing::error!(
                %why, block = %bp,
                "a reference to a deduplicated block cannot be dropped; {LEAKED}"
            );
        };
        let (Some(name), Some(tables)) = (DedupName::of(&bp), self.tables()) else {
            lost(&"there is no dedup table of its checksum");
            return Ok(());
        };
        let slot = self.slot(&name);
        let mut entry = slot.lock().await;
        if entry.is_none() {
            match tables.lookup(&name, false).await {
                Ok(stored) => {
                    *entry = stored.map(|stored| LiveEntry {
                        value: stored.value.clone(),
                        stored: Some(stored),
                    });
                }
                Err(error) if is_damage(&error) => {
                    lost(&error);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        let place = entry.as_mut().and_then(|entry| place_of(entry, &bp));
        match place {
            Some(place) if place.references > 0 => place.references -= 1,
            Some(_) => lost(&"the dedup table counts no reference to it"),
            None if tables.may_be_pruned(name.checksum) => {
                let mut plain = bp;
                plain.set_dedup(false);
                free(&plain);
            }
            None => lost(&"it is not in the dedup table"),
        }
        Ok(())
    }

    /// Counts one reference more to a block with the D bit that was cloned, in syncing context
    /// (`ddt_addref`). `false`: the tables do not have it.
    ///
    /// # Errors
    /// Of reading tables, but for damage.
    pub async fn add_reference(&self, bp: &BlockPointer) -> Result<bool, ZioError> {
        let (Some(name), Some(tables), true) = (DedupName::of(bp), self.tables(), bp.is_dedup())
        else {
            return Ok(false);
        };
        let slot = self.slot(&name);
        let mut entry = slot.lock().await;
        if entry.is_none() {
            match tables.lookup(&name, false).await {
                Ok(stored) => {
                    *entry = stored.map(|stored| LiveEntry {
                        value: stored.value.clone(),
                        stored: Some(stored),
                    });
                }
                Err(error) if is_damage(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let place = entry.as_mut().and_then(|entry| place_of(entry, bp));
        match place {
            Some(place) if place.references > 0 => {
                place.references += 1;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// What the txg changed in the tables, sorted by [`DedupName::order`]; the live entries are
    /// forgotten. Call it when nothing is being written or settled.
    pub fn take_changes(&self) -> Vec<(DedupName, LiveEntry)> {
        let live = std::mem::take(&mut *self.live.lock());
        let mut changes: Vec<_> = live
            .into_iter()
            .filter_map(|(name, slot)| {
                let entry = slot
                    .try_lock()
                    .expect("between passes nobody works on an entry")
                    .take()?;
                let is_new =
                    entry.stored.is_none() && !entry.value.places().iter().any(|p| p.is_used());
                let same = entry
                    .stored
                    .as_ref()
                    .is_some_and(|stored| stored.value == entry.value);
                (!is_new && !same).then_some((name, entry))
            })
            .collect();
        changes.sort_unstable_by_key(|(name, _)| name.order());
        changes
    }
}
