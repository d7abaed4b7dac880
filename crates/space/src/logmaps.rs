//! Which log space maps exist, which metaslabs still need them, and how many to flush.
//!
//! With the feature `log_spacemap` the changes of one transaction group to all metaslabs go into
//! one log space map. A metaslab is *flushed* when its own space map catches up; a log is obsolete
//! once every metaslab was flushed in a later transaction group. This module is the bookkeeping
//! alone, without I/O; [`Space`](crate::Space) does what it decides.
//!
//! Invariants: every metaslab that ever changed has an entry; its `txg` is that of an existing log;
//! a log older than all entries is obsolete. A metaslab's own space map holds exactly the changes
//! of transaction groups *before* its `txg`.
//!
//! Source: module/zfs/spa_log_spacemap.c (the flushing algorithm is described in its head; here it
//! runs over the logs themselves, which are at most [`LOGS_MAX`], and not over a summary of them).

use std::collections::{BTreeMap, BTreeSet};

use format::{ObjectId, Txg, VdevId};

/// A metaslab: top-level vdev and index.
pub type MetaslabId = (VdevId, u64);

/// Log blocks allowed per dirty metaslab (`zfs_unflushed_log_block_pct`, 400 %).
const BLOCKS_PER_METASLAB: u64 = 4;
/// Log blocks always allowed (`zfs_unflushed_log_block_min`).
const BLOCKS_MIN: u64 = 1000;
/// Log blocks never exceeded (`zfs_unflushed_log_block_max`).
const BLOCKS_MAX: u64 = 1 << 17;
/// Logs never exceeded (`zfs_unflushed_log_txg_max`).
const LOGS_MAX: i64 = 1000;
/// Logs that the estimate of incoming blocks looks back at (`zfs_max_log_walking`).
const LOGS_WALKED: usize = 5;

/// One log space map.
#[derive(Debug, Clone, Copy)]
struct Log {
    object: ObjectId,
    /// Blocks of its space map; zero while it is written.
    blocks: u64,
    /// Metaslabs whose `txg` is this log's.
    metaslabs: u64,
    /// Those of them that have changes since.
    dirty: u64,
}

/// When a metaslab was flushed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flushed {
    /// Its own space map holds all changes before this.
    pub(crate) txg: Txg,
    /// Whether it changed since.
    pub(crate) dirty: bool,
}

/// The book of logs.
#[derive(Debug, Default)]
pub(crate) struct LogBook {
    logs: BTreeMap<Txg, Log>,
    metaslabs: BTreeMap<MetaslabId, Flushed>,
    order: BTreeSet<(Txg, MetaslabId)>,
}

impl LogBook {
    /// Notes that the log of `txg` exists.
    pub(crate) fn add_log(&mut self, txg: Txg, object: ObjectId, blocks: u64) {
        self.logs.insert(
            txg,
            Log {
                object,
                blocks,
                metaslabs: 0,
                dirty: 0,
            },
        );
        for flushed in self.metaslabs.values().filter(|flushed| flushed.txg == txg) {
            let log = self.logs.get_mut(&txg).expect("just inserted");
            log.metaslabs += 1;
            log.dirty += u64::from(flushed.dirty);
        }
    }

    /// Number of logs.
    pub(crate) fn log_count(&self) -> usize {
        self.logs.len()
    }

    /// Sets the number of blocks of a log once it is written.
    pub(crate) fn set_blocks(&mut self, txg: Txg, blocks: u64) {
        if let Some(log) = self.logs.get_mut(&txg) {
            log.blocks = blocks;
        }
    }

    /// When `metaslab` was flushed last; `None` if it never changed since the feature is active.
    pub(crate) fn flushed(&self, metaslab: MetaslabId) -> Option<Flushed> {
        self.metaslabs.get(&metaslab).copied()
    }

    /// Notes that `metaslab` is flushed as of `txg`, and whether it changes in `txg` itself.
    pub(crate) fn set_flushed(&mut self, metaslab: MetaslabId, txg: Txg, dirty: bool) {
        if let Some(old) = self.metaslabs.insert(metaslab, Flushed { txg, dirty }) {
            self.order.remove(&(old.txg, metaslab));
            if let Some(log) = self.logs.get_mut(&old.txg) {
                log.metaslabs -= 1;
                log.dirty -= u64::from(old.dirty);
            }
        }
        self.order.insert((txg, metaslab));
        if let Some(log) = self.logs.get_mut(&txg) {
            log.metaslabs += 1;
            log.dirty += u64::from(dirty);
        }
    }

    /// Notes that `metaslab` has changes that its own space map lacks.
    pub(crate) fn set_dirty(&mut self, metaslab: MetaslabId) {
        if let Some(flushed) = self.metaslabs.get_mut(&metaslab)
            && !flushed.dirty
        {
            flushed.dirty = true;
            if let Some(log) = self.logs.get_mut(&flushed.txg) {
                log.dirty += 1;
            }
        }
    }

    /// The metaslab flushed longest ago, if that was before `txg`.
    pub(crate) fn oldest_before(&self, txg: Txg) -> Option<(MetaslabId, Flushed)> {
        let (flushed_txg, metaslab) = self.order.first().copied()?;
        (flushed_txg < txg).then(|| (metaslab, self.metaslabs[&metaslab]))
    }

    /// Forgets the metaslabs of a vdev that was removed.
    pub(crate) fn forget(&mut self, vdev: VdevId) {
        let gone: Vec<MetaslabId> = self
            .metaslabs
            .range((vdev, 0)..=(vdev, u64::MAX))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            if let Some(old) = self.metaslabs.remove(&id) {
                self.order.remove(&(old.txg, id));
                if let Some(log) = self.logs.get_mut(&old.txg) {
                    log.metaslabs -= 1;
                    log.dirty -= u64::from(old.dirty);
                }
            }
        }
    }

    /// Takes the logs that no metaslab needs any more, with their objects.
    pub(crate) fn take_obsolete(&mut self) -> Vec<(Txg, ObjectId)> {
        let Some((oldest, _)) = self.order.first().copied() else {
            return Vec::new();
        };
        let kept = self.logs.split_off(&oldest);
        let obsolete = std::mem::replace(&mut self.logs, kept);
        obsolete
            .into_iter()
            .map(|(txg, log)| (txg, log.object))
            .collect()
    }

    /// Metaslabs whose `txg` has no log: none in a sound pool.
    pub(crate) fn orphan(&self) -> Option<(MetaslabId, Txg)> {
        self.metaslabs
            .iter()
            .find(|(_, flushed)| !self.logs.contains_key(&flushed.txg))
            .map(|(metaslab, flushed)| (*metaslab, flushed.txg))
    }

    fn block_limit(&self) -> u64 {
        let dirty: u64 = self.logs.values().map(|log| log.dirty).sum();
        (dirty * BLOCKS_PER_METASLAB).clamp(BLOCKS_MIN, BLOCKS_MAX)
    }

    /// How many dirty metaslabs to flush in `txg`, so that the logs stay within their limits if
    /// every future transaction group logs as much as the last few did.
    pub(crate) fn to_flush(&self, txg: Txg) -> u64 {
        let recent: Vec<u64> = self
            .logs
            .iter()
            .rev()
            .filter(|(log_txg, _)| **log_txg != txg)
            .take(LOGS_WALKED)
            .map(|(_, log)| log.blocks)
            .collect();
        let incoming = if recent.is_empty() {
            0
        } else {
            recent.iter().sum::<u64>().div_ceil(recent.len() as u64)
        };
        let total: u64 = self.logs.values().map(|log| log.blocks).sum();
        let mut blocks_left = self.block_limit() as i64 - total as i64 - incoming as i64;
        let mut txgs_left = LOGS_MAX - self.logs.len() as i64;
        let mut ahead = 1u64;
        let mut flushes = 0u64;
        let mut per_txg = 1u64;
        for log in self.logs.values() {
            if blocks_left >= 0 && txgs_left >= 0 {
                let skip = if incoming == 0 {
                    txgs_left + 1
                } else {
                    (txgs_left + 1).min(blocks_left / incoming as i64 + 1)
                };
                blocks_left -= skip * incoming as i64;
                txgs_left -= skip;
                ahead += skip as u64;
            }
            blocks_left += log.blocks as i64;
            txgs_left += 1;
            flushes += log.dirty;
            per_txg = per_txg.max(flushes.div_ceil(ahead));
        }
        per_txg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(index: u64) -> MetaslabId {
        (VdevId::new(0), index)
    }

    fn txg(number: u64) -> Txg {
        Txg::new(number)
    }

    #[test]
    fn a_log_lives_until_every_metaslab_was_flushed_after_it() {
        let mut book = LogBook::default();
        book.add_log(txg(10), ObjectId::new(100), 1);
        book.set_flushed(ms(0), txg(10), true);
        book.set_flushed(ms(1), txg(10), true);
        book.add_log(txg(11), ObjectId::new(101), 1);
        book.set_flushed(ms(0), txg(11), false);
        assert!(book.take_obsolete().is_empty());
        book.add_log(txg(12), ObjectId::new(102), 1);
        book.set_flushed(ms(1), txg(12), false);
        assert_eq!(book.take_obsolete(), vec![(txg(10), ObjectId::new(100))]);
        assert_eq!(book.oldest_before(txg(12)).map(|(id, _)| id), Some(ms(0)));
        book.set_flushed(ms(0), txg(12), false);
        assert_eq!(book.take_obsolete(), vec![(txg(11), ObjectId::new(101))]);
        assert_eq!(book.oldest_before(txg(12)), None);
        assert_eq!(book.orphan(), None);
    }

    #[test]
    fn flushing_keeps_the_number_of_logs_bounded() {
        let mut book = LogBook::default();
        for number in 10..5000u64 {
            let now = txg(number);
            book.add_log(now, ObjectId::new(number), 0);
            let mut want = book.to_flush(now);
            while want > 0 {
                let Some((id, flushed)) = book.oldest_before(now) else {
                    break;
                };
                book.set_flushed(id, now, false);
                want -= u64::from(flushed.dirty);
            }
            for index in 0..200 {
                if book.flushed(ms(index)).is_none() {
                    book.set_flushed(ms(index), now, true);
                } else {
                    book.set_dirty(ms(index));
                }
            }
            book.set_blocks(now, 3);
            book.take_obsolete();
            assert!(book.log_count() as i64 <= LOGS_MAX);
        }
        // 200 metaslabs, 3 blocks a txg, 1000 blocks allowed: about 333 logs.
        assert!(
            book.log_count() > 100,
            "flushed more eagerly than needed: {}",
            book.log_count()
        );
        assert!(book.log_count() < 400, "{}", book.log_count());
    }

    #[test]
    fn a_metaslab_whose_log_is_missing_is_noticed() {
        let mut book = LogBook::default();
        book.set_flushed(ms(3), txg(7), true);
        assert_eq!(book.orphan(), Some((ms(3), txg(7))));
        book.add_log(txg(7), ObjectId::new(9), 1);
        assert_eq!(book.orphan(), None);
    }
}
