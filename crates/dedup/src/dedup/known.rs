//! Which entries a table has, without reading it: new data is not looked for in vain.
//!
//! A block that is new to a table is in none of its ZAPs. To find that out, a table that is larger
//! than memory would be read for each of them, a leaf from a random place. A filter in memory
//! ([`crate::filter`]) says of nearly all of them that they are not there. It takes less than a
//! hundredth of the table.
//!
//! When a txg changes a table that has none, a filter is begun, and with each such txg a part of
//! the table is read into it, in syncing context: so nothing changes the ZAPs meanwhile. What is
//! put into a ZAP goes into the filter before, from its beginning on. When all ZAPs were read, each
//! of their keys is in the filter, and it may be asked. It hears nothing of what is removed.
//!
//! When as much was added as it has room for, another one is begun. Until that one has all keys,
//! the full one is asked, which is right less often as more is added: so the table is read no
//! faster than keys are added to it, some thousands of entries in one txg of several.
//!
//! That a key is wrongly said to be missing would be the end of a block's count of references. So
//! a ZAP of which any part cannot be read has no filter. Nor has one any longer of which a part is
//! found damaged when it is changed (`flush`). And references are dropped, or added, by what the
//! table itself has (`zio::pipeline::DedupTables::lookup`).
//!
//! # Crash
//! It is in memory only.

use std::time::Duration;

use object::{SyncContext, ZapCursor};
use spa::PoolError;
use zio::pipeline::waits_for_devices;

use super::Dedup;
use crate::filter::{Filter, Known, Learning};

/// Entries of a table that are read at a time.
const READ_STEP: usize = 2_000;
/// While there is a full filter, a table is read when so many of its entries are to be read:
/// leaves are read ahead, in vain if it stops too soon.
const OWED_LEAST: u64 = 4_000;
/// How long a table is read in one txg.
const TIME: Duration = Duration::from_millis(500);
/// Keys for which a filter has room at least.
const KEYS_LEAST: u64 = 16 << 10;
/// What the filters of all tables of all pools may take of the memory for the cache, beside it: one
/// part in so many. While a full one is replaced, up to twice as much.
const MEMORY_PART: u64 = 8;

impl Dedup {
    /// Reads a part of a table into its filter, in syncing context.
    ///
    /// # Errors
    /// Of reading the ZAPs' heads.
    pub(super) async fn learn(&self, ctx: &SyncContext, code: u8) -> Result<(), PoolError> {
        let zaps = {
            let tables = self.tables.read();
            let Some(table) = tables.get(&code) else {
                return Ok(());
            };
            match &table.known {
                Known::Part(learning) if learning.owed() < OWED_LEAST => return Ok(()),
                Known::All(filter) if !filter.is_full() => return Ok(()),
                Known::Never => return Ok(()),
                Known::Nothing | Known::Part(_) | Known::All(_) => table.zaps.clone(),
            }
        };
        if self.learning(code).is_none() {
            let mut count = 0_u64;
            for zap in zaps.iter().flatten() {
                count = count.saturating_add(zap.count().await?);
            }
            let Some(keys) = self.keys_for(count) else {
                return Ok(());
            };
            self.begin_learning(code, keys, count);
            tracing::debug!(code, count, keys, "a dedup table is read into a filter");
        }
        let until = ctx.world.clock.monotonic_ns() + TIME.as_nanos() as u64;
        while let Some((mut at, owed)) = self.learning(code) {
            let Some(zap) = zaps.get(at.0) else {
                if let Some(table) = self.tables.write().get_mut(&code) {
                    table.known.complete();
                }
                tracing::debug!(code, "what a dedup table has is known");
                return Ok(());
            };
            if owed == 0 {
                return Ok(());
            }
            let entries = match zap {
                Some(zap) => waits_for_devices(zap.entries(at.1, READ_STEP)).await,
                None => Ok(Vec::new()),
            };
            let asked = at.1;
            let keys = entries.map(|entries| {
                at = match entries.last() {
                    Some(last) => (at.0, last.next),
                    None => (at.0 + 1, ZapCursor::START),
                };
                let keys = entries
                    .iter()
                    .map(|entry| <[u64; 5]>::try_from(entry.key_words()));
                keys.collect::<Result<Vec<[u64; 5]>, _>>()
            });
            match keys {
                // After a damaged entry it would be read again and again.
                Ok(Ok(keys)) if !keys.is_empty() && at.1 == asked => {
                    self.set_known(code, Known::Never);
                }
                Ok(Ok(keys)) => self.add_known(code, &keys, at),
                Ok(Err(_)) => self.set_known(code, Known::Never),
                Err(error) => {
                    tracing::warn!(%error, "a dedup table cannot be read whole");
                    self.set_known(code, Known::Never);
                }
            }
            if ctx.world.clock.monotonic_ns() >= until {
                return Ok(());
            }
        }
        Ok(())
    }

    /// For how many keys a filter of a table with so many has room; `None` where memory has not.
    fn keys_for(&self, count: u64) -> Option<u64> {
        let tables = self.tables.read().len().max(1) as u64;
        let pools = self.cache.pools().max(1) as u64;
        let room_bytes = self.cache.limit_bytes() / MEMORY_PART / pools / tables;
        let wanted = count.saturating_mul(2).max(KEYS_LEAST);
        let enough = count.saturating_add(count / 8).max(KEYS_LEAST);
        let sizes = [wanted, wanted / 4 * 3, enough];
        let fits = |keys: &u64| *keys >= enough && Filter::bytes_for(*keys) <= room_bytes;
        sizes.into_iter().find(fits)
    }

    /// Where a table is being read into a filter, and how many entries should be.
    fn learning(&self, code: u8) -> Option<((usize, ZapCursor), u64)> {
        let tables = self.tables.read();
        match &tables.get(&code)?.known {
            Known::Part(learning) => Some((learning.at(), learning.owed())),
            Known::Nothing | Known::All(_) | Known::Never => None,
        }
    }

    /// Begins a filter for so many keys of a table that has `count`, beside the full one if there
    /// is one.
    fn begin_learning(&self, code: u8, keys: u64, count: u64) {
        if let Some(table) = self.tables.write().get_mut(&code) {
            let old = match std::mem::take(&mut table.known) {
                Known::All(filter) => Some(filter),
                Known::Nothing | Known::Part(_) | Known::Never => None,
            };
            table.known = Known::Part(Learning::new(keys, count, old));
        }
    }

    /// From now on this is known of a table's ZAPs.
    pub(super) fn set_known(&self, code: u8, known: Known) {
        if let Some(table) = self.tables.write().get_mut(&code) {
            table.known = known;
        }
    }

    /// Adds keys that were read, up to a place.
    fn add_known(&self, code: u8, keys: &[[u64; 5]], to: (usize, ZapCursor)) {
        if let Some(table) = self.tables.write().get_mut(&code)
            && let Known::Part(learning) = &mut table.known
        {
            learning.add_read(keys, to);
        }
    }
}
