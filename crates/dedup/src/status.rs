//! How much dedup and cloning save, and reading that of tables when a pool is imported.
//!
//! # Dedup tables (`ddt_load`, module/zfs/ddt.c)
//!
//! A table is a ZAP per checksum and class, `DDT-sha256-zap-unique`, in the object directory, or
//! (feature `fast_dedup`) in a directory of its own, `DDT-sha256`, that the object directory names;
//! then there may be two logs of changes not yet in it as well. Sums of each ZAP's entries by
//! references are in `DDT-statistics`. Old pools have dedup tables without any feature flag saying
//! so.

use std::collections::BTreeMap;
use std::sync::Arc;

use format::{DdtKey, DdtLogHeader, DdtLogRecord, DdtPhys, DdtStat, Endian, ObjectId};
use object::{ObjectSet, Zap};
use spa::{PoolError, directory};
use zio::alloc::Allocator;

/// Buckets of a dedup histogram: powers of two of references.
pub(crate) const BUCKETS: usize = 64;
/// Bits 8 to 15 of a dedup log's head: it is being flushed, and says up to which key that has come.
const LOG_HAS_CHECKPOINT: u64 = 2 << 8;

/// Entries of logs that are counted, of each table. Who wrote a log may have had more memory.
const LOGGED_MAX: usize = 1 << 19;

/// Dedup tables of a pool, in sum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DedupStatus {
    /// Entries, those in logs as the logs have them.
    pub entries: u64,
    /// Entries in the tables' logs, which wait to be brought into the tables; among them are some
    /// of what is to be removed there.
    pub logged: u64,
    /// Space that the tables take.
    pub table_bytes: u64,
    /// Space that they would take in memory.
    pub core_bytes: u64,
    /// Sums over the blocks of 2^n references and more, below 2^(n+1).
    pub histogram: Vec<DdtStat>,
}

impl DedupStatus {
    /// Sum over all blocks.
    pub fn total(&self) -> DdtStat {
        let mut out = DdtStat::default();
        for stat in &self.histogram {
            out.add(stat);
        }
        out
    }

    /// Hundredths: how much would be needed without dedup, in relation to what is
    /// (`ddt_get_pool_dedup_ratio`).
    pub fn ratio_percent(&self) -> u64 {
        let total = self.total();
        percent(total.referenced_dsize_bytes, total.dsize_bytes)
    }

    /// Space saved.
    pub fn saved_bytes(&self) -> u64 {
        let total = self.total();
        total
            .referenced_dsize_bytes
            .saturating_sub(total.dsize_bytes)
    }
}

/// Cloned blocks of a pool, in sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CloneStatus {
    /// Space of blocks that are in more than one file.
    pub used_bytes: u64,
    /// Space that their copies would take.
    pub saved_bytes: u64,
}

impl CloneStatus {
    /// Hundredths (`brt_get_ratio`).
    pub fn ratio_percent(&self) -> u64 {
        percent(
            self.used_bytes.saturating_add(self.saved_bytes),
            self.used_bytes,
        )
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 100;
    }
    u64::try_from(u128::from(part) * 100 / u128::from(whole)).unwrap_or(u64::MAX)
}

impl DedupStatus {
    /// Reads what all tables and their logs hold.
    ///
    /// # Errors
    /// Of reading, and where something cannot be right.
    pub async fn load(mos: &Arc<ObjectSet>, allocator: &Allocator) -> Result<Self, PoolError> {
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        let mut dedup = Self::default();
        let Some(statistics) = directory.lookup_u64(directory::DDT_STATISTICS).await? else {
            return Ok(dedup);
        };
        let statistics = Zap::hold(mos, ObjectId::new(statistics)).await?;
        let mut tables: Vec<(String, ObjectId)> = Vec::new();
        let mut logs: BTreeMap<String, Vec<ObjectId>> = BTreeMap::new();
        for entry in directory.all().await? {
            let (name, Some(id)) = (entry.name_str().into_owned(), entry.value.as_u64()) else {
                continue;
            };
            let Some(rest) = name.strip_prefix("DDT-") else {
                continue;
            };
            if name == directory::DDT_STATISTICS {
                continue;
            }
            if rest.contains('-') {
                tables.push((name, ObjectId::new(id)));
                continue;
            }
            for inner in Zap::hold(mos, ObjectId::new(id)).await?.all().await? {
                let (inner_name, Some(id)) = (inner.name_str().into_owned(), inner.value.as_u64())
                else {
                    continue;
                };
                if inner_name.starts_with("DDT-log-") {
                    logs.entry(name.clone())
                        .or_default()
                        .push(ObjectId::new(id));
                } else if inner_name.starts_with("DDT-") {
                    tables.push((inner_name, ObjectId::new(id)));
                }
            }
        }
        dedup.histogram = vec![DdtStat::default(); BUCKETS];
        for (name, id) in tables {
            let zap = Zap::hold(mos, id).await?;
            dedup.entries = dedup.entries.saturating_add(zap.count().await?);
            let info = zap.object().info();
            dedup.table_bytes = dedup.table_bytes.saturating_add(info.used_bytes);
            let blocks = info.max_block_id.saturating_add(1);
            let core_bytes = blocks.saturating_mul(info.data_block_bytes.into());
            dedup.core_bytes = dedup.core_bytes.saturating_add(core_bytes);
            if let Some(value) = statistics.lookup(&name).await? {
                let words = value.to_u64s();
                let stats = words.chunks_exact(DdtStat::BYTES / 8);
                for (sum, words) in dedup.histogram.iter_mut().zip(stats) {
                    sum.add(&DdtStat::from_words(words)?);
                }
            }
        }
        for log in logs.into_values() {
            load_logs(mos, &log, allocator, &mut dedup).await?;
        }
        Ok(dedup)
    }
}

/// Adds what the logs of one table hold: entries changed since the table was (`ddt_log_load`,
/// module/zfs/ddt_log.c). An entry counts once, as the log that is not being flushed has it. Of a
/// very long log the rest is not counted: it is when the log is flushed, which an import waits for.
async fn load_logs(
    mos: &Arc<ObjectSet>,
    logs: &[ObjectId],
    allocator: &Allocator,
    dedup: &mut DedupStatus,
) -> Result<(), PoolError> {
    let mut heads = Vec::new();
    for id in logs {
        let object = mos.hold(*id).await?;
        let head = DdtLogHeader::decode(&object.bonus(), Endian::Little)?;
        heads.push((head, object));
    }
    // The one being flushed is the older one.
    heads.sort_by_key(|(head, _)| std::cmp::Reverse(head.info >> 8 & 1));
    let mut entries: BTreeMap<[u64; 5], (DdtKey, DdtPhys, bool)> = BTreeMap::new();
    for (head, object) in heads {
        let block_bytes = u64::from(object.info().data_block_bytes).max(1);
        let flushed = (head.info & LOG_HAS_CHECKPOINT != 0).then_some(*head.checkpoint.words());
        let mut offset = 0;
        while offset < head.length_bytes {
            let block = object.read_bytes(offset, block_bytes as usize).await?;
            let mut rest = &block[..];
            if DdtLogRecord::decode(rest, Endian::Little)?.is_none() {
                // Damaged: who opens the tables for writing says so.
                break;
            }
            while let Some((record, length)) = DdtLogRecord::decode(rest, Endian::Little)? {
                rest = rest.get(length.max(8)..).unwrap_or_default();
                let words = *record.key.words();
                let is_known = entries.len() < LOGGED_MAX || entries.contains_key(&words);
                if is_known && flushed.is_none_or(|flushed| words > flushed) {
                    let is_stored = record.storage == 0;
                    entries.insert(words, (record.key, record.value, is_stored));
                }
            }
            offset += block_bytes;
        }
    }
    dedup.logged = dedup.logged.saturating_add(entries.len() as u64);
    for (key, value, is_stored) in entries.values() {
        let change = i64::from(references_of(value) > 0) - i64::from(*is_stored);
        dedup.entries = dedup.entries.saturating_add_signed(change);
        let sum = entry_stat(key, value, allocator);
        if let Some(bucket) = sum.referenced_blocks.checked_ilog2() {
            dedup.histogram[bucket as usize].add(&sum);
        }
    }
    Ok(())
}

/// What one entry adds to a histogram (`ddt_stat_generate`, module/zfs/ddt_stats.c).
pub(crate) fn entry_stat(key: &DdtKey, value: &DdtPhys, allocator: &Allocator) -> DdtStat {
    let mut sum = DdtStat::default();
    for place in value.places().iter().filter(|place| place.is_used()) {
        let dsize_bytes = place
            .dvas(key.is_encrypted())
            .map(|dva| {
                // Vdevs that were removed were disks and mirrors, which have no parity.
                let known = allocator.deflated_bytes(&dva);
                known.unwrap_or(dva.asize_bytes())
            })
            .fold(0, u64::saturating_add);
        let (lsize_bytes, psize_bytes) = (key.lsize_bytes(), key.psize_bytes());
        let times = |bytes: u64| bytes.saturating_mul(place.references);
        sum.add(&DdtStat {
            blocks: 1,
            lsize_bytes,
            psize_bytes,
            dsize_bytes,
            referenced_blocks: place.references,
            referenced_lsize_bytes: times(lsize_bytes),
            referenced_psize_bytes: times(psize_bytes),
            referenced_dsize_bytes: times(dsize_bytes),
        });
    }
    sum
}

/// References of all blocks of an entry.
pub(crate) fn references_of(value: &DdtPhys) -> u64 {
    let used = value.places().iter().filter(|place| place.is_used());
    used.fold(0, |sum, place| sum.saturating_add(place.references))
}
