//! Logs of changes to a dedup table: two objects of records, and what they hold in memory
//! (module/zfs/ddt_log.c).
//!
//! One of the two is *active*: what a txg changes in the table is appended to it, in blocks of its
//! own. The other one is being *flushed* into the ZAPs, by ascending key (`flush`): its head says
//! up to which key that has come. When it is empty the two change places.
//!
//! An entry is as the active log has it, else as the other one, else as its ZAP. Within a log the
//! last record of a key holds. A record also says in which ZAP its entry is, if it is in one. An
//! entry that is in a log is not counted in the statistics of the ZAPs. Where it has no reference
//! left, we have freed its block already, and the record is without a place; OpenZFS keeps the
//! block until it flushes the entry, and may take it into use again before. Both are understood.
//!
//! # In memory
//!
//! Both logs are, sorted by key, each entry once: an entry that changes moves to the active log
//! (the record in the other one is left on disk, where the newer one hides it). Logs that other
//! software left, or we where there was more memory, may be too long for that: these are flushed in
//! steps that read them again.
//!
//! Locks: all of it belongs to its table, and is changed by the sync loop alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use format::{
    Checksum, DdtClass, DdtKey, DdtLogHeader, DdtLogRecord, DdtPhys, DdtStat, Endian, ObjectId,
    ObjectType, Txg,
};
use object::{NewObject, Object, ObjectError, ObjectSet, Zap, store_with_dedup_tables};
use spa::PoolError;
use zio::alloc::Allocator;
use zio::{SharedCache, Tx};

use crate::status::{BUCKETS, entry_stat, references_of};

/// What an entry takes in memory, roughly.
pub(super) const ENTRY_BYTES: u64 = 200;
/// What logs may take of the cache's limit, in which they count: one part in so many.
const MEMORY_PART: u64 = 4;
/// Entries that may be in logs in any case.
const ENTRIES_MAX_LEAST: usize = 200;
/// Size of a log's blocks in bytes (`ddt_log_create_one`).
const BLOCK_BYTES: u32 = 128 << 10;
/// Bits of a head's word: version, and flags (`DDL_FLAG_*`) above it.
const HEAD_VERSION: u64 = 1;
const FLUSHING: u64 = 1 << 8;
const HAS_CHECKPOINT: u64 = 2 << 8;
/// Kind of storage and class in the record of an entry that is in no ZAP (`DDT_TYPES`,
/// `DDT_CLASSES`).
const NO_STORAGE: u8 = 1;
const NO_CLASS: u8 = 3;

pub(super) type Words = [u64; 5];

/// How far logs of dedup tables grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Changes are logged. Else they go into the tables at once, and an import flushes logs whole.
    pub is_written: bool,
    /// Entries in the logs of all tables when a txg is on disk, at most; `None`: what a quarter
    /// of the cache's limit holds, in equal parts for all pools of the cache.
    pub entries_max: Option<usize>,
    /// Entries that are flushed in a txg at least, if there are so many
    /// (`zfs_dedup_log_flush_entries_min`).
    pub flushed_least: usize,
    /// Entries that are flushed at most in a txg that changes nothing else in the table.
    pub flushed_at_rest: usize,
    /// Txgs after which logs change places (`zfs_dedup_log_txg_max`).
    pub active_txgs: u64,
}

impl Default for LogLimits {
    fn default() -> Self {
        LogLimits {
            is_written: true,
            entries_max: None,
            flushed_least: 200,
            flushed_at_rest: 20_000,
            active_txgs: 8,
        }
    }
}

impl LogLimits {
    /// Entries that may be in the logs of all tables when a txg is on disk.
    pub(super) fn entries_max(&self, cache: &SharedCache) -> usize {
        let room_bytes = cache.limit_bytes() / MEMORY_PART / cache.pools().max(1) as u64;
        let room = usize::try_from(room_bytes / ENTRY_BYTES).unwrap_or(usize::MAX);
        let most = room.clamp(ENTRIES_MAX_LEAST, usize::MAX / 4);
        self.entries_max.unwrap_or(most)
    }
}

/// An entry that is in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Logged {
    /// In which ZAP it is, as it was before.
    pub(super) class: Option<DdtClass>,
    /// What it is to be.
    pub(super) value: DdtPhys,
}

impl Logged {
    pub(super) fn of_record(record: DdtLogRecord) -> Self {
        let class = DdtClass::ALL.get(usize::from(record.class)).copied();
        Logged {
            class: class.filter(|_| record.storage == 0),
            value: record.value,
        }
    }

    pub(super) fn record(&self, key: DdtKey) -> DdtLogRecord {
        let (storage, class) = match self.class {
            Some(class) => (0, class.index() as u8),
            None => (NO_STORAGE, NO_CLASS),
        };
        DdtLogRecord {
            storage,
            class,
            key,
            value: self.value.clone(),
        }
    }

    /// How many more entries there are with it than are in the ZAPs.
    fn unstored(&self) -> i64 {
        i64::from(references_of(&self.value) > 0) - i64::from(self.class.is_some())
    }
}

/// One log's object.
#[derive(Clone)]
pub(super) struct Log {
    object: Object,
    head: DdtLogHeader,
    /// The table's entries are flat.
    is_flat: bool,
}

fn damaged(object: ObjectId, detail: String) -> PoolError {
    ObjectError::Damaged {
        object,
        structure: "ddt_log_header_t",
        detail,
    }
    .into()
}

impl Log {
    async fn create(mos: &Arc<ObjectSet>, tx: &Tx, flags: u64) -> Result<Self, PoolError> {
        let head = DdtLogHeader {
            info: HEAD_VERSION | flags,
            length_bytes: 0,
            first_txg: tx.txg(),
            checkpoint: DdtKey::default(),
        };
        let new = NewObject::new(ObjectType::OTN_UINT64_METADATA)
            .with_block_bytes(BLOCK_BYTES)
            .with_bonus(ObjectType::OTN_UINT64_METADATA, head.encode().to_vec());
        let object = mos.allocate(tx, new).await?;
        store_with_dedup_tables(&object);
        Ok(Log {
            object,
            head,
            is_flat: true,
        })
    }

    fn is_flushing(&self) -> bool {
        self.head.info & FLUSHING != 0
    }

    /// Whether there are no records on disk, not even ones that were flushed.
    pub(super) fn is_empty(&self) -> bool {
        self.head.length_bytes == 0
    }

    /// Txg since which it is the active one.
    pub(super) fn first_txg(&self) -> Txg {
        self.head.first_txg
    }

    fn set_head(&mut self, tx: &Tx, head: DdtLogHeader) -> Result<(), PoolError> {
        self.object.set_bonus(tx, head.encode().to_vec())?;
        self.head = head;
        Ok(())
    }

    /// Appends records, in blocks of their own: what is there already is not read again.
    pub(super) async fn append(
        &mut self,
        tx: &Tx,
        records: &[DdtLogRecord],
    ) -> Result<(), PoolError> {
        let block_bytes = self.object.info().data_block_bytes as usize;
        let mut bytes = Vec::new();
        for record in records {
            let record = record.encode();
            if record.len() > block_bytes {
                let detail = format!("its blocks have {block_bytes} bytes, less than a record");
                return Err(damaged(self.object.id(), detail));
            }
            let end = bytes.len().next_multiple_of(block_bytes);
            if end - bytes.len() < record.len() {
                // A zero word ends a block. At the start of one, nothing is added.
                bytes.resize(end, 0);
            }
            bytes.extend_from_slice(&record);
        }
        bytes.resize(bytes.len().next_multiple_of(block_bytes), 0);
        // A length that ends within a block, which nobody writes, is that of the whole block.
        let start = self.head.length_bytes.next_multiple_of(block_bytes as u64);
        let head = DdtLogHeader {
            length_bytes: start + bytes.len() as u64,
            ..self.head
        };
        self.object.write(tx, start, bytes.into()).await?;
        self.set_head(tx, head)
    }

    /// Notes up to which key it was flushed.
    pub(super) fn set_checkpoint(&mut self, tx: &Tx, words: Words) -> Result<(), PoolError> {
        let head = DdtLogHeader {
            info: self.head.info | HAS_CHECKPOINT,
            checkpoint: DdtKey::from_words(words),
            ..self.head
        };
        self.set_head(tx, head)
    }

    /// Empties it, keeping whether it is the one being flushed.
    pub(super) async fn truncate(&mut self, tx: &Tx) -> Result<(), PoolError> {
        self.object.free_range(tx, 0, u64::MAX).await?;
        let head = DdtLogHeader {
            info: self.head.info & !HAS_CHECKPOINT,
            length_bytes: 0,
            checkpoint: DdtKey::default(),
            ..self.head
        };
        self.set_head(tx, head)
    }

    /// Key up to which it was flushed.
    pub(super) fn flushed(&self) -> Option<Words> {
        (self.head.info & HAS_CHECKPOINT != 0).then_some(*self.head.checkpoint.words())
    }

    /// Shows every record that is not flushed, in order.
    pub(super) async fn each(
        &self,
        visit: &mut (dyn FnMut(DdtLogRecord) + Send),
    ) -> Result<(), PoolError> {
        let flushed = self.flushed();
        let block_bytes = u64::from(self.object.info().data_block_bytes).max(1);
        let mut offset = 0;
        while offset < self.head.length_bytes {
            let block = self.object.read_bytes(offset, block_bytes as usize).await?;
            if (block.len() as u64) < block_bytes {
                return Err(damaged(
                    self.object.id(),
                    format!("it ends at byte {offset} of {}", self.head.length_bytes),
                ));
            }
            let mut rest = &block[..];
            // Who writes a block has records for it. Without this, a log would take as long as its
            // head says.
            if DdtLogRecord::decode(rest, Endian::Little)?.is_none() {
                let detail = format!("there is no record at byte {offset}");
                return Err(damaged(self.object.id(), detail));
            }
            while let Some((record, length)) = DdtLogRecord::decode(rest, Endian::Little)? {
                rest = rest.get(length.max(8)..).unwrap_or_default();
                if matches!(record.value, DdtPhys::Flat { .. }) != self.is_flat {
                    // In the table's ZAPs it would be read as something else.
                    let detail = format!("an entry at byte {offset} is not of the table's form");
                    return Err(damaged(self.object.id(), detail));
                }
                if flushed.is_none_or(|flushed| *record.key.words() > flushed) {
                    visit(record);
                }
            }
            offset += block_bytes;
        }
        Ok(())
    }
}

/// Puts two logs in each other's place; the one that was being flushed is empty (`ddt_log_swap`).
pub(super) fn swap(logs: &mut [Log], txg: Txg, tx: &Tx) -> Result<(), PoolError> {
    for log in logs {
        let head = if log.is_flushing() {
            DdtLogHeader {
                info: log.head.info & !(FLUSHING | HAS_CHECKPOINT),
                first_txg: txg,
                checkpoint: DdtKey::default(),
                ..log.head
            }
        } else {
            DdtLogHeader {
                info: log.head.info | FLUSHING,
                ..log.head
            }
        };
        log.set_head(tx, head)?;
    }
    Ok(())
}

/// The logs of a table: none or two.
#[derive(Default)]
pub(super) struct Logs {
    logs: Vec<Log>,
    active: BTreeMap<Words, Logged>,
    flushing: BTreeMap<Words, Logged>,
    /// Their entries by references.
    histogram: Vec<DdtStat>,
    unstored: i64,
    /// Entries that came back to the active log since the logs changed places, as their leaves are
    /// damaged.
    stuck: usize,
    /// Entries that changed since this was last asked for.
    added: usize,
    /// How often the logs have changed places, or were to, since they were found too long for
    /// memory.
    turns: usize,
}

impl Logs {
    /// Those of these objects, without their entries.
    pub(super) fn of_objects(logs: Vec<Log>) -> Self {
        Logs {
            logs,
            ..Logs::default()
        }
    }

    /// The error of what is wrong with them.
    pub(super) fn damaged(&self, detail: String) -> PoolError {
        let object = self.logs.first().map(|log| log.object.id());
        damaged(object.unwrap_or(ObjectId::ZERO), detail)
    }

    /// Counts one more turn of logs that are too long for memory; how many that were.
    pub(super) fn turn(&mut self) -> usize {
        self.turns += 1;
        self.turns
    }

    /// How many turns there were.
    pub(super) fn turns(&self) -> usize {
        self.turns
    }

    /// Opens those that there are, without their entries.
    pub(super) async fn load(
        mos: &Arc<ObjectSet>,
        directory: &Zap,
        checksum: Checksum,
        is_flat: bool,
    ) -> Result<Self, PoolError> {
        let mut logs = Vec::new();
        for number in 0..2 {
            let Some(id) = directory.lookup_u64(log_name(checksum, number)).await? else {
                continue;
            };
            let object = mos.hold(ObjectId::new(id)).await?;
            store_with_dedup_tables(&object);
            let head = DdtLogHeader::decode(&object.bonus(), Endian::Little)?;
            if head.info & 0xff != HEAD_VERSION {
                return Err(damaged(
                    object.id(),
                    format!("version {} is unknown", head.info & 0xff),
                ));
            }
            logs.push(Log {
                object,
                head,
                is_flat,
            });
        }
        let flushing = logs.iter().filter(|log| log.is_flushing()).count();
        if let Some(log) = logs.first()
            && (logs.len(), flushing) != (2, 1)
        {
            let detail = format!("of {} logs {flushing} are being flushed", logs.len());
            return Err(damaged(log.object.id(), detail));
        }
        Ok(Logs::of_objects(logs))
    }

    /// Makes both (`ddt_log_create`).
    pub(super) async fn create(
        mos: &Arc<ObjectSet>,
        tx: &Tx,
        directory: &Zap,
        checksum: Checksum,
    ) -> Result<Self, PoolError> {
        let mut logs = Vec::new();
        for (number, flags) in [(0, 0), (1, FLUSHING)] {
            let log = Log::create(mos, tx, flags).await?;
            let id = log.object.id().get();
            directory
                .add_u64(tx, log_name(checksum, number), id)
                .await?;
            logs.push(log);
        }
        Ok(Logs::of_objects(logs))
    }

    /// Reads the entries (`ddt_log_load`); false, and none are kept, when both logs together have
    /// more than `most`.
    pub(super) async fn load_entries(
        &mut self,
        allocator: &Allocator,
        most: usize,
    ) -> Result<bool, PoolError> {
        let (mut active, mut flushing) = (BTreeMap::new(), BTreeMap::new());
        for log in &self.logs {
            let before = active.len() + flushing.len();
            let entries = match log.is_flushing() {
                true => &mut flushing,
                false => &mut active,
            };
            let mut is_too_long = false;
            log.each(&mut |record| {
                is_too_long |= before + entries.len() >= most;
                if !is_too_long {
                    entries.insert(*record.key.words(), Logged::of_record(record));
                }
            })
            .await?;
            if is_too_long {
                return Ok(false);
            }
        }
        flushing.retain(|words, _| !active.contains_key(words));
        for (words, logged) in active.iter().chain(&flushing) {
            self.count(words, logged, allocator, true);
        }
        (self.active, self.flushing) = (active, flushing);
        Ok(true)
    }

    /// Without entries in memory.
    pub(super) fn forget_entries(&mut self) {
        *self = Logs::of_objects(std::mem::take(&mut self.logs));
    }

    fn count(&mut self, words: &Words, logged: &Logged, allocator: &Allocator, is_added: bool) {
        let stat = entry_stat(&DdtKey::from_words(*words), &logged.value, allocator);
        self.histogram.resize(BUCKETS, DdtStat::default());
        let bucket = stat.referenced_blocks.checked_ilog2();
        let bucket = bucket.and_then(|bucket| self.histogram.get_mut(bucket as usize));
        match (bucket, is_added) {
            (Some(bucket), true) => bucket.add(&stat),
            (Some(bucket), false) => bucket.subtract(&stat),
            (None, _) => {}
        }
        match is_added {
            true => self.unstored += logged.unstored(),
            false => self.unstored -= logged.unstored(),
        }
    }

    /// Whether there are records on disk.
    pub(super) fn are_empty(&self) -> bool {
        self.logs.iter().all(Log::is_empty)
    }

    /// Whether there are logs.
    pub(super) fn exist(&self) -> bool {
        !self.logs.is_empty()
    }

    /// Space that they take on disk.
    pub(super) fn used_bytes(&self) -> u64 {
        let used = self.logs.iter().map(|log| log.object.info().used_bytes);
        used.sum()
    }

    /// Entries in memory.
    pub(super) fn len(&self) -> usize {
        self.active.len() + self.flushing.len()
    }

    /// Entries in memory that can be flushed, as far as is known.
    pub(super) fn waiting(&self) -> usize {
        self.len().saturating_sub(self.stuck)
    }

    /// So many more entries come back to the active log.
    pub(super) fn note_stuck(&mut self, count: usize) {
        self.stuck += count;
    }

    /// Entries in memory, and how many changed since this was last asked for.
    pub(super) fn take_added(&mut self) -> (usize, usize) {
        (self.len(), std::mem::take(&mut self.added))
    }

    /// Entries that were changed since the logs changed places.
    pub(super) fn active_len(&self) -> usize {
        self.active.len()
    }

    /// How many more entries there are with them than are in the ZAPs.
    pub(super) fn unstored(&self) -> i64 {
        self.unstored
    }

    /// Adds their entries to a histogram.
    pub(super) fn add_to(&self, histogram: &mut [DdtStat]) {
        for (sum, stat) in histogram.iter_mut().zip(&self.histogram) {
            sum.add(stat);
        }
    }

    /// An entry, as the newest of the logs has it.
    pub(super) fn get(&self, words: &Words) -> Option<&Logged> {
        self.active.get(words).or_else(|| self.flushing.get(words))
    }

    /// Puts an entry into the active log, whichever it was in before.
    pub(super) fn put(&mut self, words: Words, logged: Logged, allocator: &Allocator) {
        let before = self.active.remove(&words);
        if let Some(before) = before.or_else(|| self.flushing.remove(&words)) {
            self.count(&words, &before, allocator, false);
        }
        self.count(&words, &logged, allocator, true);
        self.added += 1;
        self.active.insert(words, logged);
    }

    /// Takes the entry with the smallest key out of the log that is being flushed.
    pub(super) fn take_next(&mut self, allocator: &Allocator) -> Option<(Words, Logged)> {
        let (words, logged) = self.flushing.pop_first()?;
        self.count(&words, &logged, allocator, false);
        Some((words, logged))
    }

    /// The entries with the smallest keys in the log that is being flushed.
    pub(super) fn peek(&self, most: usize) -> Vec<(Words, Logged)> {
        let next = self.flushing.iter().take(most);
        next.map(|(words, logged)| (*words, logged.clone()))
            .collect()
    }

    /// The smallest key in the log that is being flushed.
    pub(super) fn first(&self) -> Option<Words> {
        self.flushing.first_key_value().map(|(words, _)| *words)
    }

    /// The active log's object.
    pub(super) fn active(&self) -> Option<Log> {
        self.logs.iter().find(|log| !log.is_flushing()).cloned()
    }

    /// The object of the log that is being flushed.
    pub(super) fn flushing(&self) -> Option<Log> {
        self.logs.iter().find(|log| log.is_flushing()).cloned()
    }

    /// Both objects, to be changed and given to [`Self::replace`].
    pub(super) fn objects(&self) -> Vec<Log> {
        self.logs.clone()
    }

    /// Takes over the heads of objects as they are on disk now.
    pub(super) fn replace(&mut self, changed: impl IntoIterator<Item = Log>) {
        for changed in changed {
            let same = |log: &&mut Log| log.object.id() == changed.object.id();
            if let Some(log) = self.logs.iter_mut().find(same) {
                *log = changed;
            }
        }
    }

    /// What [`swap`] did to the objects, in memory.
    pub(super) fn swapped(&mut self, changed: Vec<Log>) {
        self.replace(changed);
        self.stuck = 0;
        std::mem::swap(&mut self.active, &mut self.flushing);
    }

    /// Frees their objects.
    pub(super) async fn destroy(&self, mos: &Arc<ObjectSet>, tx: &Tx) -> Result<(), PoolError> {
        for log in &self.logs {
            mos.free(tx, log.object.id()).await?;
        }
        Ok(())
    }
}

/// Name of a log in its table's directory (`DMU_POOL_DDT_LOG`).
fn log_name(checksum: Checksum, number: u32) -> String {
    format!("DDT-log-{checksum}-{number}")
}

/// Which log of a table is being flushed, of logs that are not in memory.
pub(super) fn position_flushing(logs: &[Log]) -> Result<usize, PoolError> {
    let id = logs.first().map_or(ObjectId::ZERO, |log| log.object.id());
    let position = logs.iter().position(Log::is_flushing);
    position.ok_or_else(|| damaged(id, "no log of the table is being flushed".into()))
}
