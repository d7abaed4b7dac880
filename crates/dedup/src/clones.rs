//! Tables of cloned blocks (feature `block_cloning`): how often each is referenced beyond the first
//! time.
//!
//! A top-level vdev that has cloned blocks has a table, two objects of the MOS: an array of 16-bit
//! counts, one per range of the vdev ([`BrtVdevPhys`] is its bonus; the object directory names it),
//! and a ZAP from a block's offset to its references beyond the first. A block that leaves the ZAP
//! has one reference left: its next free frees its space. The feature's refcount is the number of
//! tables.
//!
//! An entry is eight bytes in the order of the host, or, while `block_cloning_endian` is active, a
//! number of eight bytes, which every host reads alike. That feature goes active with the first
//! table of a pool that has it enabled, and counts the tables as well: all of a pool are of one
//! kind.
//!
//! The sync loop applies what a txg did ([`zio::Clones`]) after it has written the datasets, in
//! every pass, so that the changes of the tables and the frees of space are in the same txg as the
//! pointers. Only the counts are in memory (2 bytes per 16 MiB); entries are read as they are
//! needed.
//!
//! A block that is freed while its entry cannot be read stays allocated for ever: to free what
//! another file refers to would lose that, and the pool must not stop for it.
//!
//! Locks: `tables`, for a map operation; only the sync loop changes it.
//!
//! Source: module/zfs/brt.c (`brt_load`, `brt_pending_apply`, `brt_entry_decref`, `brt_sync`,
//! `brt_has_endian_fixed`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use dataset::Features;
use format::{BlockPointer, BrtVdevPhys, Endian, ObjectId, ObjectType, VdevId};
use futures::StreamExt;
use object::{NewObject, ObjectSet, SyncContext, Zap, ZapOptions, ZapValue};
use parking_lot::Mutex;
use spa::features::{BLOCK_CLONING, BLOCK_CLONING_ENDIAN};
use spa::{Pass, PoolError, directory};
use vdev::VdevTree;
use zio::pipeline::waits_for_devices;
use zio::{CloneKey, Pipeline, Tx};

use crate::CloneStatus;
use crate::prefetch::read_whole;

/// Entries that are looked up at the same time.
const LOOKUPS_IN_FLIGHT: usize = 64;
/// log2 of the block size of a table's ZAP and of its indirect blocks (`brt_zap_default_bs`,
/// `brt_zap_default_ibs`).
const ZAP_BLOCK_SHIFT: u8 = 12;
/// Counts in a block of the array.
const COUNTS_PER_BLOCK: usize = BrtVdevPhys::BLOCK_BYTES as usize / 2;
/// Ranges of one vdev that are believed, at most: those of 16 EiB in 2^40 would not fit in memory.
const RANGES_MAX: u64 = 1 << 30;

/// A vdev's table.
#[derive(Debug, Clone)]
struct Table {
    array: ObjectId,
    phys: BrtVdevPhys,
}

/// All tables of a pool.
#[derive(Debug)]
pub struct CloneTables {
    /// Name of the pool, for errors.
    pool: String,
    tables: Mutex<BTreeMap<VdevId, Table>>,
}

/// What a txg did to one block.
#[derive(Debug)]
struct Change {
    block: BlockPointer,
    added: u64,
    freed: Vec<BlockPointer>,
    /// References in the table before.
    stored: u64,
}

/// What a table is changed with.
pub(crate) struct CloneSync<'a> {
    pub(crate) ctx: &'a SyncContext,
    pub(crate) tx: &'a Tx,
    pub(crate) mos: &'a Arc<ObjectSet>,
    pub(crate) features: &'a Features,
    pub(crate) pipeline: &'a Pipeline,
}

fn damaged(pool: &str, vdev: VdevId, why: impl Into<String>) -> PoolError {
    PoolError::Damaged {
        pool: pool.to_owned(),
        what: format!("the table of cloned blocks of vdev {vdev}"),
        why: why.into(),
    }
}

/// Name of a vdev's table in the object directory.
fn name_of(vdev: VdevId) -> String {
    format!("{}{vdev}", directory::BRT_VDEV_PREFIX)
}

impl CloneTables {
    /// Settles what was cloned and freed so far in this transaction group. Returns whether what
    /// cloning saves changed.
    pub(crate) async fn settle(&self, pass: &Pass<'_>) -> Result<bool, PoolError> {
        let spa = pass.spa;
        let sync = CloneSync {
            ctx: pass.ctx,
            tx: pass.tx,
            mos: spa.dsl.mos(),
            features: spa.dsl.features(),
            pipeline: &spa.pipeline,
        };
        let before = self.status().saved_bytes;
        self.sync(&sync).await?;
        Ok(self.status().saved_bytes != before)
    }

    /// Those of a pool that has none.
    pub fn none(pool: &str) -> Self {
        CloneTables {
            pool: pool.to_owned(),
            tables: Mutex::default(),
        }
    }

    /// Reads the heads and counts of all tables, at import.
    pub async fn load(
        pool: &str,
        mos: &Arc<ObjectSet>,
        tree: &VdevTree,
        pipeline: &Pipeline,
    ) -> Result<Self, PoolError> {
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        let mut tables = BTreeMap::new();
        for top in tree.tops() {
            let Ok(vdev) = u32::try_from(top.id()).map(VdevId::new) else {
                continue;
            };
            let Some(array) = directory.lookup_u64(name_of(vdev)).await? else {
                continue;
            };
            let array = mos.hold(ObjectId::new(array)).await?;
            let phys = BrtVdevPhys::decode(&array.bonus(), Endian::Little)?;
            if phys.size > RANGES_MAX || phys.range_bytes == 0 {
                return Err(damaged(
                    pool,
                    vdev,
                    format!("{} ranges of {} bytes", phys.size, phys.range_bytes),
                ));
            }
            let stored = array.read_bytes(0, phys.size as usize * 2).await?;
            let counts = stored
                .as_chunks::<2>()
                .0
                .iter()
                .map(|count| u16::from_le_bytes(*count))
                .collect();
            pipeline.clones().load(vdev, phys.range_bytes, counts);
            let array = array.id();
            tables.insert(vdev, Table { array, phys });
        }
        Ok(CloneTables {
            pool: pool.to_owned(),
            tables: Mutex::new(tables),
        })
    }

    /// Whether a host of the other byte order made a table: its counts of references are in that
    /// order too, and nothing says so (the feature `block_cloning_endian` was made for that).
    pub fn is_foreign(&self) -> bool {
        let tables = self.tables.lock();
        tables.values().any(|table| table.phys.byte_order != 0)
    }

    /// Reads all tables into the cache; how many bytes that were.
    ///
    /// # Errors
    /// Of reading.
    pub async fn prefetch(&self, mos: &Arc<ObjectSet>) -> Result<u64, PoolError> {
        let objects: Vec<ObjectId> = {
            let tables = self.tables.lock();
            tables.values().map(|table| table.phys.entries).collect()
        };
        read_whole(mos, &objects).await
    }

    /// Sums over all tables.
    pub fn status(&self) -> CloneStatus {
        let mut out = CloneStatus::default();
        for table in self.tables.lock().values() {
            out.used_bytes = out.used_bytes.saturating_add(table.phys.used_bytes);
            out.saved_bytes = out.saved_bytes.saturating_add(table.phys.saved_bytes);
        }
        out
    }

    /// Applies what was cloned and freed since the last call, in syncing context: the references
    /// added first, then the frees. Frees the space of blocks whose last reference went.
    ///
    /// # Errors
    /// Of reading and writing the tables.
    pub(crate) async fn sync(&self, sync: &CloneSync<'_>) -> Result<(), PoolError> {
        let changes = sync.pipeline.clones().take(sync.ctx.txg);
        if changes.is_empty() {
            return Ok(());
        }
        let mut by_vdev: BTreeMap<VdevId, BTreeMap<CloneKey, Change>> = BTreeMap::new();
        let blocks = changes.added.into_iter().map(|block| (block, true));
        for (block, is_added) in blocks.chain(changes.freed.into_iter().map(|block| (block, false)))
        {
            let Some(key) = CloneKey::of(&block) else {
                continue;
            };
            // Those that are in a dedup table are counted there (`brt_pending_apply`).
            if is_added && block.is_dedup() && sync.pipeline.dedup().add_reference(&block).await? {
                continue;
            }
            let of_vdev = by_vdev.entry(key.vdev).or_default();
            let change = of_vdev.entry(key).or_insert_with(|| Change {
                block,
                added: 0,
                freed: Vec::new(),
                stored: 0,
            });
            if is_added {
                change.added += 1;
            } else {
                change.freed.push(block);
            }
        }
        for (vdev, changes) in by_vdev {
            self.sync_vdev(sync, vdev, changes).await?;
        }
        Ok(())
    }

    async fn sync_vdev(
        &self,
        sync: &CloneSync<'_>,
        vdev: VdevId,
        mut changes: BTreeMap<CloneKey, Change>,
    ) -> Result<(), PoolError> {
        let clones = sync.pipeline.clones();
        let table = self.tables.lock().get(&vdev).cloned();
        let mut entries = None;
        if let Some(table) = &table {
            let mut held = waits_for_devices(Zap::hold(sync.mos, table.phys.entries)).await;
            if held.is_err() && changes.values().any(|change| change.added > 0) {
                // It has to be counted: for that the pool waits, also for a bad sector.
                held = Zap::hold(sync.mos, table.phys.entries).await;
            }
            match held {
                Ok(held) => {
                    self.look_up(sync, entries.insert(held), &mut changes)
                        .await?
                }
                Err(error) => {
                    let is_unknown = |(key, change): (&CloneKey, &Change)| {
                        change.added > 0 || clones.entries_near(*key) > 0
                    };
                    let unknown = changes.iter().filter(|change| is_unknown(*change));
                    let unknown: Vec<CloneKey> = unknown.map(|(key, _)| *key).collect();
                    let error = PoolError::from(error);
                    for key in unknown {
                        if !self.keep_unknown(&mut changes, key, &error) {
                            return Err(error);
                        }
                    }
                }
            }
        }
        let mut table = table;
        let mut touched = BTreeSet::new();
        let range_bytes = table
            .as_ref()
            .map_or(BrtVdevPhys::RANGE_BYTES, |table| table.phys.range_bytes);
        let ranges = ranges_of(sync.pipeline, vdev, range_bytes);
        for (key, change) in changes {
            let sum = change.stored.saturating_add(change.added);
            let taken = sum.min(change.freed.len() as u64);
            let left = sum - taken;
            // One of a block's pointers had no reference in the table: when it goes last, the block
            // does.
            for block in &change.freed[taken as usize..] {
                sync.pipeline.frees().free_space(sync.ctx.txg, block);
            }
            if left == change.stored {
                continue;
            }
            let entries = match &entries {
                Some(entries) => entries,
                None => {
                    let (made, zap) = create(sync, vdev, ranges).await?;
                    table = Some(made);
                    entries.insert(zap)
                }
            };
            let Some(table) = &mut table else { continue };
            let words = [key.offset_bytes];
            if left == 0 {
                entries.remove_u64_key(sync.tx, &words).await?;
            } else {
                let value = match sync.features.is_active(BLOCK_CLONING_ENDIAN) {
                    true => ZapValue::from_u64(left),
                    false => ZapValue::from_bytes(left.to_le_bytes().to_vec()),
                };
                entries.update_u64_key(sync.tx, &words, value).await?;
            }
            let phys = &mut table.phys;
            let bytes = sync.pipeline.dsize_bytes(&change.block);
            let saved = |references: u64| bytes.saturating_mul(references);
            phys.saved_bytes = phys
                .saved_bytes
                .saturating_add(saved(left))
                .saturating_sub(saved(change.stored));
            if (left == 0) == (change.stored == 0) {
                continue;
            }
            let index = clones.count(key, left > 0, ranges).ok_or_else(|| {
                let why = format!("its count around {} is wrong", key.offset_bytes);
                damaged(&self.pool, vdev, why)
            })?;
            touched.insert(index / COUNTS_PER_BLOCK);
            if left > 0 {
                phys.total_count += 1;
                phys.used_bytes = phys.used_bytes.saturating_add(bytes);
            } else {
                phys.total_count = phys.total_count.saturating_sub(1);
                phys.used_bytes = phys.used_bytes.saturating_sub(bytes);
            }
        }
        let Some(mut table) = table else {
            return Ok(());
        };
        if table.phys.total_count == 0 {
            destroy(sync, vdev, &table).await?;
            self.tables.lock().remove(&vdev);
            return Ok(());
        }
        let array = sync.mos.hold(table.array).await?;
        for block in touched {
            let first = block * COUNTS_PER_BLOCK;
            let mut data = clones.stored_counts(vdev, first..first + COUNTS_PER_BLOCK);
            data.resize(BrtVdevPhys::BLOCK_BYTES as usize, 0);
            let offset_bytes = block as u64 * BrtVdevPhys::BLOCK_BYTES;
            array
                .write(sync.tx, offset_bytes, Bytes::from(data))
                .await?;
        }
        table.phys.size = clones.range_count(vdev) as u64;
        array.set_bonus(sync.tx, table.phys.encode().to_vec())?;
        self.tables.lock().insert(vdev, table);
        Ok(())
    }

    /// Reads the references that the table has of these blocks. Blocks that are freed and whose
    /// entries cannot be read are left out.
    async fn look_up(
        &self,
        sync: &CloneSync<'_>,
        entries: &Zap,
        changes: &mut BTreeMap<CloneKey, Change>,
    ) -> Result<(), PoolError> {
        let wanted: Vec<(CloneKey, bool)> = changes
            .iter()
            .filter(|(key, _)| sync.pipeline.clones().entries_near(**key) > 0)
            .map(|(key, change)| (*key, change.added > 0))
            .collect();
        let are_numbers = sync.features.is_active(BLOCK_CLONING_ENDIAN);
        let found: Vec<_> = futures::stream::iter(wanted)
            .map(|(key, gains)| async move {
                let mut found = waits_for_devices(self.references(entries, key, are_numbers)).await;
                if found.is_err() && gains {
                    // It has to be counted: for that the pool waits, also for a bad sector.
                    found = self.references(entries, key, are_numbers).await;
                }
                (key, found)
            })
            .buffer_unordered(LOOKUPS_IN_FLIGHT)
            .collect()
            .await;
        for (key, references) in found {
            match references {
                Ok(references) => {
                    if let Some(change) = changes.get_mut(&key) {
                        change.stored = references;
                    }
                }
                Err(error) if !self.keep_unknown(changes, key, &error) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The references that the table has of a block beyond the first.
    async fn references(
        &self,
        entries: &Zap,
        key: CloneKey,
        are_numbers: bool,
    ) -> Result<u64, PoolError> {
        let value = entries.lookup_u64_key(&[key.offset_bytes]).await?;
        match value {
            None => Ok(0),
            Some(value) if (value.integer_bytes == 8) != are_numbers => {
                let why = "an entry is not of the kind that the pool's features say";
                Err(damaged(&self.pool, key.vdev, why))
            }
            Some(value) => value
                .data
                .first_chunk()
                .map(|word| u64::from_le_bytes(*word))
                .ok_or_else(|| damaged(&self.pool, key.vdev, "an entry is not eight bytes long")),
        }
    }

    /// Takes a block whose references are not known out of what is to be done: it stays allocated
    /// for ever, as somebody else may have it. `false` where it gained a reference, which has to be
    /// counted.
    fn keep_unknown(
        &self,
        changes: &mut BTreeMap<CloneKey, Change>,
        key: CloneKey,
        error: &PoolError,
    ) -> bool {
        if changes.remove(&key).is_some_and(|change| change.added > 0) {
            return false;
        }
        tracing::error!(
            pool = self.pool, %error, ?key,
            "a block that was freed stays allocated: its references are not known"
        );
        true
    }
}

/// How many ranges a vdev has (`brt_vdev_realloc`): those of all offsets that its blocks may have.
/// A removed vdev's blocks keep theirs; the allocator knows nothing of them.
fn ranges_of(pipeline: &Pipeline, vdev: VdevId, range_bytes: u64) -> usize {
    let size_bytes = pipeline
        .tree()
        .top(vdev)
        .and_then(|top| Some(top.top()?.aligned_asize_bytes()))
        .unwrap_or(0);
    size_bytes.div_ceil(range_bytes) as usize
}

/// Makes a vdev's table (`brt_vdev_create`).
async fn create(
    sync: &CloneSync<'_>,
    vdev: VdevId,
    ranges: usize,
) -> Result<(Table, Zap), PoolError> {
    let mut options = ZapOptions::new(ObjectType::OTN_ZAP_METADATA);
    options.flags = Zap::FLAG_HASH64 | Zap::FLAG_UINT64_KEY;
    options.block_shift = ZAP_BLOCK_SHIFT;
    options.indirect_block_shift = ZAP_BLOCK_SHIFT;
    let entries = Zap::create(sync.mos, sync.tx, options).await?;
    let phys = BrtVdevPhys {
        entries: entries.id(),
        size: ranges as u64,
        byte_order: 0,
        total_count: 0,
        range_bytes: BrtVdevPhys::RANGE_BYTES,
        used_bytes: 0,
        saved_bytes: 0,
    };
    let kind = ObjectType::OTN_UINT64_METADATA;
    let new = NewObject::new(kind)
        .with_block_bytes(BrtVdevPhys::BLOCK_BYTES as u32)
        .with_bonus(kind, phys.encode().to_vec());
    let array = sync.mos.allocate(sync.tx, new).await?.id();
    let directory = Zap::hold(sync.mos, ObjectId::POOL_DIRECTORY).await?;
    directory
        .add_u64(sync.tx, name_of(vdev), array.get())
        .await?;
    // Tables of before the feature was enabled stay as they are, and so do those that join them.
    if sync.features.is_active(BLOCK_CLONING_ENDIAN)
        || sync.features.is_enabled(BLOCK_CLONING_ENDIAN) && !sync.features.is_active(BLOCK_CLONING)
    {
        let features = sync.features;
        features.increment(sync.ctx, BLOCK_CLONING_ENDIAN).await?;
    }
    sync.features.increment(sync.ctx, BLOCK_CLONING).await?;
    let clones = sync.pipeline.clones();
    clones.load(vdev, phys.range_bytes, vec![0; ranges]);
    Ok((Table { array, phys }, entries))
}

/// Removes a table without entries (`brt_vdev_destroy`).
async fn destroy(sync: &CloneSync<'_>, vdev: VdevId, table: &Table) -> Result<(), PoolError> {
    sync.mos.free(sync.tx, table.phys.entries).await?;
    sync.mos.free(sync.tx, table.array).await?;
    let directory = Zap::hold(sync.mos, ObjectId::POOL_DIRECTORY).await?;
    directory.remove(sync.tx, name_of(vdev)).await?;
    sync.pipeline.clones().forget(vdev);
    sync.features.decrement(sync.ctx, BLOCK_CLONING).await?;
    if sync.features.is_active(BLOCK_CLONING_ENDIAN) {
        let features = sync.features;
        features.decrement(sync.ctx, BLOCK_CLONING_ENDIAN).await?;
    }
    Ok(())
}
