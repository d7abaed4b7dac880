//! `zpool ddtprune`: entries with one reference are removed, so that a table gets smaller; their
//! blocks stay, and are not shared any more (`ddt_prune_unique_entries`, module/zfs/ddt.c).
//!
//! Tables are walked while the pool is in use, entry by entry in the order of their hashes; for a
//! percentage twice, as the ages of all have to be known first. What is chosen is removed by the
//! sync loop, a batch in each txg, if it is still as it was seen: an entry that changed since, or
//! is in a log, is in use. A block whose entry is gone is freed as any other when its pointer is
//! freed ([`zio::pipeline::DedupTables::may_be_pruned`]), so tables of old, of which that was never
//! true, are left alone.
//!
//! # Crash
//! A txg removes its batch or none of it; in either case tables and pointers agree.

use std::sync::atomic::Ordering;

use format::{Checksum, DdtClass, DdtKey, DdtPhys};
use object::{Zap, ZapCursor};
use spa::PoolError;
use zio::pipeline::{DedupName, StoredEntry, may_fail, waits_for_devices};
use zio::{Tx, TxgManager};

use super::{Dedup, decode_value};
use crate::age::{Ages, Oldest, PruneBy};
use crate::filter::Known;

/// Entries that are read at a time: a leaf of a ZAP or two, which nobody can change meanwhile.
const READ_STEP: usize = 200;
/// Entries that are removed in one txg, at most.
const REMOVE_STEP: usize = 20_000;

/// A part of a table: its entries, and where the next part begins.
type Part = (Vec<(DedupName, DdtPhys)>, ZapCursor);

impl Dedup {
    /// Removes entries with one reference from all tables that may be pruned; `now_seconds` since
    /// 1970. How many these were, when they are on disk. Being dropped ends it.
    ///
    /// # Errors
    /// Of reading, and of the transaction groups.
    pub async fn prune(
        &self,
        txgs: &TxgManager,
        now_seconds: u64,
        by: PruneBy,
    ) -> Result<u64, PoolError> {
        // Two at the same time would choose the same entries.
        let _alone = self.is_pruning.lock().await;
        let mut oldest = match by {
            PruneBy::Age { seconds } => Oldest::before(now_seconds.saturating_sub(seconds)),
            PruneBy::Percent(percent) => {
                let mut ages = Ages::default();
                for (checksum, zap) in self.unique_zaps() {
                    let mut cursor = ZapCursor::START;
                    while let Some((entries, next)) = part(checksum, &zap, cursor).await? {
                        let times = entries.iter().filter_map(|(_, value)| changed_at(value));
                        times.for_each(|time| ages.add(time));
                        cursor = next;
                    }
                }
                ages.oldest(percent)
            }
        };
        self.pruned.store(0, Ordering::Relaxed);
        for (checksum, zap) in self.unique_zaps() {
            let mut cursor = ZapCursor::START;
            while let Some((entries, next)) = part(checksum, &zap, cursor).await? {
                cursor = next;
                let old = entries.into_iter().filter(|(_, value)| {
                    let time = changed_at(value);
                    time.is_some_and(|time| oldest.takes(time))
                });
                let chosen = {
                    let mut chosen = self.chosen.lock();
                    chosen.extend(old);
                    chosen.len()
                };
                if chosen + READ_STEP > REMOVE_STEP {
                    txgs.sync().await?;
                }
            }
        }
        txgs.sync().await?;
        Ok(self.pruned.load(Ordering::Relaxed))
    }

    /// ZAPs of entries with one reference, of tables that may be pruned.
    fn unique_zaps(&self) -> Vec<(Checksum, Zap)> {
        let tables = self.tables.read();
        let flat = tables.iter().filter(|(_, table)| table.flat);
        let zaps = flat.filter_map(|(code, table)| {
            let zap = table.zaps[DdtClass::Unique.index()].clone()?;
            Some((Checksum::from_code(*code), zap))
        });
        zaps.collect()
    }

    /// Removes what was chosen, in syncing context, when the changes of the txg are put down. Says
    /// whether anything was removed.
    pub(super) async fn prune_chosen(&self, tx: &Tx) -> Result<bool, PoolError> {
        let chosen = std::mem::take(&mut *self.chosen.lock());
        let mut count = 0;
        for (name, value) in chosen {
            let code = name.checksum.code();
            let is_in_log = {
                let tables = self.tables.read();
                let table = tables.get(&code);
                table.is_some_and(|table| table.logs.get(name.key.words()).is_some())
            };
            let Some(zap) = self.zap(code, DdtClass::Unique).filter(|_| !is_in_log) else {
                continue;
            };
            // What cannot be read need not be removed.
            let found = may_fail(zap.lookup_u64_key(name.key.words())).await;
            let Ok(Some(found)) = found else {
                continue;
            };
            if decode_value(zap.id(), &found.data, true).is_ok_and(|found| found == value) {
                let removing = zap.remove_u64_key(tx, name.key.words());
                match waits_for_devices(removing).await.map_err(PoolError::from) {
                    Err(error) if error.is_damage() => {
                        tracing::warn!(%error, "a dedup table is damaged: an entry is not pruned");
                        self.set_known(code, Known::Never);
                        continue;
                    }
                    removed => removed?,
                }
                let class = Some(DdtClass::Unique);
                self.uncount(&name, &StoredEntry { class, value });
                count += 1;
            }
        }
        self.pruned.fetch_add(count, Ordering::Relaxed);
        Ok(count > 0)
    }
}

/// When an entry that may be pruned was changed, in seconds since 1970.
fn changed_at(value: &DdtPhys) -> Option<u64> {
    match value {
        DdtPhys::Flat {
            place,
            class_start_seconds,
        } if place.references <= 1 => Some(*class_start_seconds),
        _ => None,
    }
}

/// A part of a table; `None` at its end, also when it was destroyed meanwhile, and where a damaged
/// entry leads nowhere else.
async fn part(checksum: Checksum, zap: &Zap, cursor: ZapCursor) -> Result<Option<Part>, PoolError> {
    let entries = match zap.entries(cursor, READ_STEP).await {
        Err(error) if error.is_not_found() => return Ok(None),
        entries => entries?,
    };
    let Some(last) = entries.last() else {
        return Ok(None);
    };
    let next = last.next;
    if next == cursor {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(entries.len());
    for entry in entries {
        let Ok(words) = <[u64; 5]>::try_from(entry.key_words()) else {
            continue;
        };
        let key = DdtKey::from_words(words);
        let value = decode_value(zap.id(), &entry.value.data, true)?;
        out.push((DedupName { checksum, key }, value));
    }
    Ok(Some((out, next)))
}
