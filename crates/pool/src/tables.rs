//! What a pool has besides datasets and space maps, as it is at import: dedup tables, the
//! checkpoint, the state of RAID-Z expansions and removals, and of what leaves were initialized and
//! trimmed. What changes later is kept by those who change it.
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

use format::{
    DdtKey, DdtLogHeader, DdtLogRecord, DdtPhys, DdtStat, Endian, Guid, ObjectId, Uberblock,
};
use object::{ObjectSet, Zap};
use spa::{config, directory};
use vdev::{VdevKind, VdevTree};
use zio::alloc::Allocator;

use crate::PoolError;
use crate::activity::Activities;
use crate::removed::{self, RemovalStatus};

/// Buckets of a dedup histogram: powers of two of references.
const BUCKETS: usize = 64;
/// Bits 8 to 15 of a dedup log's head: it is being flushed, and says up to which key that has come.
const LOG_HAS_CHECKPOINT: u64 = 2 << 8;

/// Dedup tables of a pool, in sum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DedupStatus {
    /// Entries.
    pub entries: u64,
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

/// A RAID-Z expansion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpansionStatus {
    /// The vdev.
    pub vdev: Guid,
    /// Its name with its number: `raidz1-0`.
    pub name: String,
    /// When it began, in seconds since 1970.
    pub start_s: u64,
    /// When it ended; `None` while it is under way.
    pub end_s: Option<u64>,
    /// What has been moved.
    pub copied_bytes: u64,
}

/// All of these.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) dedup: DedupStatus,
    /// The checkpoint's uberblock.
    pub(crate) checkpoint: Option<Uberblock>,
    pub(crate) expansion: Option<ExpansionStatus>,
    pub(crate) removal: Option<RemovalStatus>,
    /// What leaves were initialized and trimmed.
    pub(crate) activities: Activities,
}

fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 100;
    }
    u64::try_from(u128::from(part) * 100 / u128::from(whole)).unwrap_or(u64::MAX)
}

/// Reads all of them.
pub(crate) async fn load(
    pool: &str,
    mos: &Arc<ObjectSet>,
    tree: &VdevTree,
    allocator: &Allocator,
) -> Result<Tables, PoolError> {
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    let mut out = Tables::default();
    load_dedup(mos, &directory, allocator, &mut out).await?;
    load_of_tops(mos, tree, &mut out).await?;
    out.removal = removed::report(mos, tree).await?;
    out.activities = Activities::load(pool, mos, tree).await;
    if let Some(value) = directory.lookup(directory::CHECKPOINT).await? {
        out.checkpoint = Some(decode_checkpoint(&value.to_u64s())?);
    }
    Ok(out)
}

/// A checkpoint's uberblock is stored as 64-bit integers, fewer in pools of older releases.
pub(crate) fn decode_checkpoint(words: &[u64]) -> Result<Uberblock, format::FormatError> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(bytes.len().max(Uberblock::BYTES), 0);
    Uberblock::decode(&bytes)
}

async fn load_dedup(
    mos: &Arc<ObjectSet>,
    directory: &Zap,
    allocator: &Allocator,
    out: &mut Tables,
) -> Result<(), PoolError> {
    let Some(statistics) = directory.lookup_u64(directory::DDT_STATISTICS).await? else {
        return Ok(());
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
    let dedup = &mut out.dedup;
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
        load_logs(mos, &log, allocator, dedup).await?;
    }
    Ok(())
}

/// Adds what the logs of one table hold: entries changed since the table was (`ddt_log_load`,
/// module/zfs/ddt_log.c). An entry counts once, as the log that is not being flushed has it.
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
    let mut entries: BTreeMap<[u64; 5], (DdtKey, DdtPhys)> = BTreeMap::new();
    for (head, object) in heads {
        let block_bytes = u64::from(object.info().data_block_bytes).max(1);
        let flushed = (head.info & LOG_HAS_CHECKPOINT != 0).then_some(*head.checkpoint.words());
        let mut offset = 0;
        while offset < head.length_bytes {
            let block = object.read_bytes(offset, block_bytes as usize).await?;
            if block.is_empty() {
                break;
            }
            let mut rest = &block[..];
            while let Some((record, length)) = DdtLogRecord::decode(rest, Endian::Little)? {
                rest = rest.get(length.max(8)..).unwrap_or_default();
                let words = *record.key.words();
                if flushed.is_none_or(|flushed| words > flushed) {
                    entries.insert(words, (record.key, record.value));
                }
            }
            offset += block_bytes;
        }
    }
    dedup.entries = dedup.entries.saturating_add(entries.len() as u64);
    for (key, value) in entries.values() {
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
            .filter_map(|dva| allocator.deflated_bytes(&dva))
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

/// What top-level vdevs' ZAPs say (`vdev_load`, module/zfs/vdev.c; `vdev_raidz_load` and
/// `spa_raidz_expand_get_stats`, module/zfs/vdev_raidz.c).
async fn load_of_tops(
    mos: &Arc<ObjectSet>,
    tree: &VdevTree,
    out: &mut Tables,
) -> Result<(), PoolError> {
    for top in tree.tops() {
        let id = top.config_u64(config::TOP_ZAP).unwrap_or(0);
        if id == 0 {
            continue;
        }
        let zap = Zap::hold(mos, ObjectId::new(id)).await?;
        let number = async |name: &str| zap.lookup_u64(name).await;
        if !matches!(top.kind(), VdevKind::Raidz(_)) {
            continue;
        }
        const SCANNING: u64 = 1;
        const FINISHED: u64 = 2;
        let state = number(directory::RAIDZ_EXPAND_STATE).await?.unwrap_or(0);
        let end_s = number(directory::RAIDZ_EXPAND_END).await?.unwrap_or(0);
        let newer = out
            .expansion
            .as_ref()
            .is_none_or(|other| other.end_s.is_some_and(|other| end_s > other));
        let under_way = state == SCANNING;
        if under_way || state == FINISHED && newer {
            out.expansion = Some(ExpansionStatus {
                vdev: top.guid(),
                name: top.display_name(),
                start_s: number(directory::RAIDZ_EXPAND_START).await?.unwrap_or(0),
                end_s: (!under_way).then_some(end_s),
                copied_bytes: number(directory::RAIDZ_EXPAND_COPIED).await?.unwrap_or(0),
            });
        }
    }
    Ok(())
}
