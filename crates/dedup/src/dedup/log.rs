//! Logs of changes to a dedup table that another release left (module/zfs/ddt_log.c): flushed into
//! the ZAPs, whole, when the pool is imported.
//!
//! Of a table's two logs one is being flushed, by ascending key: its head says up to which key that
//! has come. The other one is newer: an entry that is in both is as that one says. Within a log the
//! last record of a key holds. An entry that is in a log is not counted in the statistics, and its
//! space is not freed yet, even if it has no reference left.
//!
//! A step takes the entries with the smallest keys of the log that is being flushed, as many as may
//! be in memory, stores those that the newer log does not have, and moves the mark; at the end of
//! the log it is emptied and the two change places. So a crash between steps, or the real OpenZFS,
//! finds logs as it leaves them itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::{Checksum, DdtKey, DdtLogHeader, DdtLogRecord, DdtPhys, Endian, ObjectId, Txg};
use object::{Object, ObjectError, ObjectSet, SyncContext, Zap};
use spa::PoolError;
use zio::pipeline::{DedupName, LiveEntry};
use zio::{Pipeline, Tx};

use super::Dedup;

/// Entries that are flushed in one txg: in the first, and at most. It doubles; so short logs, too,
/// take more than one step.
const STEP_FIRST: usize = 128;
const STEP_MAX: usize = 20_000;
/// Bits of a head's word: version, and flags (`DDL_FLAG_*`) above it.
const HEAD_VERSION: u64 = 1;
const FLUSHING: u64 = 1 << 8;
const HAS_CHECKPOINT: u64 = 2 << 8;

type Words = [u64; 5];

/// One log.
#[derive(Clone)]
struct Log {
    object: Object,
    head: DdtLogHeader,
}

/// The logs of a table: none or two.
#[derive(Clone, Default)]
pub(super) struct Logs(Vec<Log>);

impl Logs {
    /// Opens those that there are.
    pub(super) async fn load(
        mos: &Arc<ObjectSet>,
        directory: &Zap,
        checksum: Checksum,
    ) -> Result<Self, PoolError> {
        let mut logs = Vec::new();
        for number in 0..2 {
            let name = format!("DDT-log-{checksum}-{number}");
            let Some(id) = directory.lookup_u64(name).await? else {
                continue;
            };
            let object = mos.hold(ObjectId::new(id)).await?;
            let head = DdtLogHeader::decode(&object.bonus(), Endian::Little)?;
            if head.info & 0xff != HEAD_VERSION {
                return Err(damaged(
                    object.id(),
                    format!("version {} is unknown", head.info & 0xff),
                ));
            }
            logs.push(Log { object, head });
        }
        Ok(Logs(logs))
    }

    pub(super) fn are_empty(&self) -> bool {
        self.0.iter().all(|log| log.head.length_bytes == 0)
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.0.iter().map(|log| log.object.info().used_bytes).sum()
    }

    /// Frees their objects.
    pub(super) async fn destroy(&self, mos: &Arc<ObjectSet>, tx: &Tx) -> Result<(), PoolError> {
        for log in &self.0 {
            mos.free(tx, log.object.id()).await?;
        }
        Ok(())
    }
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
    fn is_flushing(&self) -> bool {
        self.head.info & FLUSHING != 0
    }

    fn set_head(&mut self, tx: &Tx, head: DdtLogHeader) -> Result<(), PoolError> {
        self.object.set_bonus(tx, head.encode().to_vec())?;
        self.head = head;
        Ok(())
    }

    /// Empties it, keeping whether it is the one being flushed.
    async fn truncate(&mut self, tx: &Tx) -> Result<(), PoolError> {
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
    fn flushed(&self) -> Option<Words> {
        (self.head.info & HAS_CHECKPOINT != 0).then_some(*self.head.checkpoint.words())
    }

    /// Shows every record, in order.
    async fn each(&self, visit: &mut (dyn FnMut(DdtKey, DdtPhys) + Send)) -> Result<(), PoolError> {
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
            while let Some((record, length)) = DdtLogRecord::decode(rest, Endian::Little)? {
                rest = rest.get(length.max(8)..).unwrap_or_default();
                visit(record.key, record.value);
            }
            offset += block_bytes;
        }
        Ok(())
    }
}

impl Dedup {
    /// Flushes a part of the logs, in syncing context; says whether there is more.
    ///
    /// # Errors
    /// Of reading and writing: the txg cannot be written.
    pub(crate) async fn flush_logs(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        pipeline: &Pipeline,
    ) -> Result<bool, PoolError> {
        let waiting = {
            let tables = self.tables.read();
            tables
                .iter()
                .find(|(_, table)| !table.logs.are_empty())
                .map(|(code, table)| (*code, table.logs.clone()))
        };
        let Some((code, mut logs)) = waiting else {
            self.has_logs.store(false, Ordering::Release);
            // Nothing may have been in them but what is in the ZAPs as well.
            self.finish(ctx, tx).await?;
            return Ok(false);
        };
        let checksum = Checksum::from_code(code);
        let count = self
            .flush_log(ctx, tx, pipeline, checksum, &mut logs)
            .await?;
        if let Some(table) = self.tables.write().get_mut(&code) {
            table.logs = logs;
            table.touched = true;
        }
        self.finish(ctx, tx).await?;
        tracing::debug!(%checksum, count, "entries of a dedup log flushed");
        Ok(true)
    }

    async fn flush_log(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        pipeline: &Pipeline,
        checksum: Checksum,
        logs: &mut Logs,
    ) -> Result<usize, PoolError> {
        let Some(at) = logs.0.iter().position(Log::is_flushing) else {
            let id = logs.0.first().map_or(ObjectId::ZERO, |log| log.object.id());
            return Err(damaged(id, "no log of the table is being flushed".into()));
        };
        if logs.0[at].head.length_bytes == 0 {
            return swap(&mut logs.0, ctx.txg, tx).map(|()| 0);
        }
        let step = self.flush_step.load(Ordering::Relaxed).max(STEP_FIRST);
        self.flush_step
            .store((step * 2).min(STEP_MAX), Ordering::Relaxed);
        let log = &logs.0[at];
        let flushed = log.flushed();
        let mut taken: BTreeMap<Words, DdtPhys> = BTreeMap::new();
        let mut bound: Option<Words> = None;
        log.each(&mut |key, value| {
            let words = *key.words();
            let is_done = flushed.is_some_and(|flushed| words <= flushed);
            if is_done || bound.is_some_and(|bound| words >= bound) {
                return;
            }
            taken.insert(words, value);
            if taken.len() > step
                && let Some((largest, _)) = taken.pop_last()
            {
                bound = Some(largest);
            }
        })
        .await?;
        let last = taken.last_key_value().map(|(words, _)| *words);
        for newer in logs.0.iter().filter(|log| !log.is_flushing()) {
            newer
                .each(&mut |key, _| {
                    taken.remove(key.words());
                })
                .await?;
        }
        let count = taken.len();
        for (words, value) in taken {
            let name = DedupName {
                checksum,
                key: DdtKey::from_words(words),
            };
            let stored = self.find(&name).await?;
            let entry = LiveEntry { stored, value };
            self.store(ctx, tx, pipeline, name, entry, false).await?;
        }
        let log = &mut logs.0[at];
        match last.filter(|_| bound.is_some()) {
            Some(last) => {
                let head = DdtLogHeader {
                    info: log.head.info | HAS_CHECKPOINT,
                    checkpoint: DdtKey::from_words(last),
                    ..log.head
                };
                log.set_head(tx, head)?;
            }
            None => log.truncate(tx).await?,
        }
        Ok(count)
    }
}

/// The log that was being flushed is empty: now it is the other's turn (`ddt_log_swap`).
fn swap(logs: &mut [Log], txg: Txg, tx: &Tx) -> Result<(), PoolError> {
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
