//! Changes go into logs, and from there into the ZAPs (`ddt_sync_table_log`, `ddt_sync_flush_log`;
//! module/zfs/ddt.c).
//!
//! # How much
//!
//! In the first pass of each txg a part of what waits is flushed: [`TXGS`] txgs would flush all of
//! it, so a log is as long as some tens of txgs make it, but it takes no more memory than it may,
//! except for entries that cannot be flushed, and for what an import found: what is too much is
//! flushed in any case, which then takes its time and throttles who writes. A txg that changes
//! nothing in a table flushes as much as it can in [`TIME`]: so a table at rest has empty logs
//! soon. The logs change places when the one that is being flushed is empty and the other one is
//! long, old, or at rest.
//!
//! # Order
//!
//! By ascending key, which is the order of the ZAPs' leaves: their keys are hashes. Leaves of the
//! next entries are read side by side before the first of them is changed, as many as an eighth of
//! the cache holds.
//!
//! # Damage
//!
//! An entry whose leaf cannot be read stays in the logs: it goes into the active one again, and is
//! tried again with the others. At rest, nothing is done for such entries alone. A disk may take
//! seconds to say that it cannot read: once [`TIME`] has passed since the first of them, what is
//! left of the batch goes the same way untried. Nor does a filter say any more what is not in the
//! table (`known`): new keys that belong to such a leaf are looked for, which fails, and do not
//! come into the logs, so that what waits there for damaged leaves does not grow with new data.
//!
//! # Crash
//!
//! The ZAPs, the log's head with the last key that was flushed, and the space of blocks change in
//! the same txg. A crash leaves them as of the txg before, and what was flushed is flushed again.
//!
//! # Logs that are too long
//!
//! Those that another release left may hold more than fits in memory, as may our own where there
//! was more of it. Until they are flushed, which the import waits for, nothing is looked up. A step
//! takes the entries with the smallest keys of the log that is being flushed ([`STEP_FIRST`] of
//! them, then twice as many each time, up to [`STEP_MAX`]), stores those that the newer log does
//! not have, and moves the mark; at the end of the log it is emptied and the two change places. So
//! a crash between steps, or the real OpenZFS, finds logs as it leaves them itself. Entries whose
//! leaf cannot be read go into the newer log again. When both logs were flushed, those are all that
//! is left, and are kept in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use format::{Checksum, DdtClass, DdtKey};
use futures::StreamExt;
use object::{SyncContext, Zap};
use spa::PoolError;
use zio::Tx;
use zio::pipeline::{DedupName, LiveEntry, may_fail, waits_for_devices};

use super::log::{Logged, Logs, Words, position_flushing, swap};
use super::store::{BLOCK_SHIFT, let_go, note_change};
use super::{Dedup, sizes};
use crate::filter::Known;
use crate::status::references_of;

/// Txgs in which all that waits would be flushed (`zfs_dedup_log_flush_txgs`).
const TXGS: usize = 100;
/// How long flushing goes on in a txg once it has done the least
/// (`zfs_dedup_log_flush_min_time_ms`).
const TIME: Duration = Duration::from_secs(1);
/// What leaves that are read side by side may take of the cache: one part in so many. More of them
/// would push each other out before they are changed.
const LEAVES_PART: u64 = 8;
/// How many those are, whatever the cache is.
const LEAVES: RangeInclusive<u64> = 8..=256;
/// Entries that are flushed side by side where no leaf has to be read.
const BATCH: usize = 256;
/// Entries of a log too long for memory that are flushed in one txg: in the first, and at most. It
/// doubles; so shorter logs, too, take more than one step.
const STEP_FIRST: usize = 128;
const STEP_MAX: usize = 20_000;

impl Dedup {
    fn with_logs<T>(&self, code: u8, work: impl FnOnce(&mut Logs) -> T) -> Option<T> {
        let mut tables = self.tables.write();
        tables.get_mut(&code).map(|table| work(&mut table.logs))
    }

    /// Puts changed entries of one table, sorted, into its active log. Blocks to which nothing
    /// refers any more are freed.
    pub(super) async fn log_changes(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
        changes: Vec<(DedupName, LiveEntry)>,
    ) -> Result<(), PoolError> {
        let code = checksum.code();
        self.make_logs(ctx, tx, checksum).await?;
        let length_before = self.with_logs(code, |logs| logs.len()).unwrap_or_default();
        let mut entries = Vec::with_capacity(changes.len());
        for (name, LiveEntry { stored, mut value }) in changes {
            let_go(ctx, &name, &mut value);
            note_change(ctx, &mut value);
            let words = *name.key.words();
            let before = self.with_logs(code, |logs| logs.get(&words).map(|logged| logged.class));
            let class = match (before.flatten(), stored) {
                (Some(class), _) => class,
                (None, Some(stored)) => self.uncount(&name, &stored),
                // It came and went: nothing on disk knows of it.
                (None, None) if references_of(&value) == 0 => continue,
                (None, None) => None,
            };
            entries.push((words, Logged { class, value }));
        }
        self.append(tx, code, entries).await?;
        // A txg may free more than memory can hold.
        let tables = {
            let tables = self.tables.read();
            tables.values().filter(|table| table.is_logged).count()
        };
        let most = (self.log_entries_max() * 2 / tables.max(1)).max(length_before);
        self.flush_down_to(ctx, tx, checksum, most).await
    }

    /// Appends entries to the active log of a table.
    async fn append(
        &self,
        tx: &Tx,
        code: u8,
        entries: Vec<(Words, Logged)>,
    ) -> Result<(), PoolError> {
        self.touch(code);
        let active = self.with_logs(code, |logs| logs.active()).flatten();
        let Some(mut active) = active.filter(|_| !entries.is_empty()) else {
            return Ok(());
        };
        let records = entries.iter();
        let records = records.map(|(words, logged)| logged.record(DdtKey::from_words(*words)));
        let records: Vec<_> = records.collect();
        active.append(tx, &records).await?;
        self.with_logs(code, |logs| {
            logs.replace([active]);
            for (words, logged) in entries {
                logs.put(words, logged, &self.allocator);
            }
        });
        Ok(())
    }

    /// The logs of a table, made when they are not there; and so is the table.
    async fn make_logs(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
    ) -> Result<(), PoolError> {
        let own = self.make_table(ctx, tx, checksum).await?;
        let code = checksum.code();
        let exist = self.with_logs(code, |logs| logs.exist()) == Some(true);
        if let (false, Some(own)) = (exist, own) {
            let directory = Zap::hold(&self.mos, own).await?;
            let made = Logs::create(&self.mos, tx, &directory, checksum).await?;
            self.with_logs(code, |logs| *logs = made);
        }
        Ok(())
    }

    /// Flushes a part of the logs, in the first pass of a txg; `changed` are the tables of which it
    /// changes something. Says whether anything was done.
    pub(super) async fn flush(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        changed: &BTreeSet<u8>,
    ) -> Result<bool, PoolError> {
        if self.has_logs() {
            // What is in memory is not what is in the logs.
            return Ok(false);
        }
        let waiting: Vec<(u8, usize)> = {
            let tables = self.tables.read();
            let lengths = tables
                .iter()
                .map(|(code, table)| (*code, table.logs.waiting()));
            lengths.filter(|(_, waiting)| *waiting > 0).collect()
        };
        let limits = *self.limits.read();
        for (code, entries) in &waiting {
            let checksum = Checksum::from_code(*code);
            let is_at_rest = !changed.contains(code);
            if is_at_rest {
                self.swap_logs(ctx, tx, checksum, true).await?;
            }
            let most = match is_at_rest {
                true => limits.flushed_at_rest,
                false => (entries / TXGS).max(limits.flushed_least) * 5 / 4,
            };
            let until = ctx.world.clock.monotonic_ns() + TIME.as_nanos() as u64;
            self.flush_some(ctx, tx, checksum, most, until).await?;
            let most = self.log_entries_max() / waiting.len();
            let (length, added) = self.with_logs(*code, Logs::take_added).unwrap_or_default();
            // They may have much less room than before, as another pool came.
            let over = length.saturating_sub(most);
            let over = over.min((2 * added).max(limits.flushed_least));
            self.flush_down_to(ctx, tx, checksum, length - over).await?;
            self.swap_logs(ctx, tx, checksum, false).await?;
        }
        Ok(!waiting.is_empty())
    }

    /// Flushes until the logs of a table have `most` entries.
    async fn flush_down_to(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
        most: usize,
    ) -> Result<(), PoolError> {
        let code = checksum.code();
        let mut length_before = usize::MAX;
        loop {
            let lengths = self.with_logs(code, |logs| (logs.len(), logs.active_len()));
            let (length, active) = lengths.unwrap_or_default();
            if length <= most || length >= length_before {
                return Ok(());
            }
            length_before = length;
            if length == active {
                self.swap_logs(ctx, tx, checksum, true).await?;
            }
            self.flush_some(ctx, tx, checksum, length - most, u64::MAX)
                .await?;
        }
    }

    /// Flushes up to `most` entries of the log whose turn it is; it stops at the time `until` when
    /// it has done the least.
    async fn flush_some(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
        most: usize,
        until_ns: u64,
    ) -> Result<(), PoolError> {
        let code = checksum.code();
        let limits = *self.limits.read();
        let mut last = None;
        let mut count = 0;
        let mut stuck = Vec::new();
        // When no more is tried, since the first was damaged.
        let mut enough_ns = u64::MAX;
        while count < most {
            let (size, reads) = self.batch(code);
            let size = size.min(most - count);
            let batch = self.with_logs(code, |logs| logs.take_first(size, &self.allocator));
            let batch = batch.unwrap_or_default();
            if batch.is_empty() {
                break;
            }
            count += batch.len();
            if let Some(reads) = reads {
                self.read_leaves(checksum, &batch, reads).await;
            }
            for (words, mut logged) in batch {
                last = Some(words);
                if !stuck.is_empty() && ctx.world.clock.monotonic_ns() >= enough_ns {
                    stuck.push((words, logged));
                    continue;
                }
                let name = DedupName {
                    checksum,
                    key: DdtKey::from_words(words),
                };
                let_go(ctx, &name, &mut logged.value);
                let put = self.put(ctx, tx, &name, &mut logged.class, &logged.value);
                match waits_for_devices(put).await {
                    Err(error) if error.is_damage() => {
                        tracing::warn!(%error, "a dedup table is damaged: a change stays in a log");
                        if stuck.is_empty() {
                            let now_ns = ctx.world.clock.monotonic_ns();
                            enough_ns = now_ns + TIME.as_nanos() as u64;
                        }
                        self.set_known(code, Known::Never);
                        stuck.push((words, logged));
                    }
                    put => put?,
                }
            }
            if !stuck.is_empty() && ctx.world.clock.monotonic_ns() >= enough_ns {
                break;
            }
            if count >= limits.flushed_least && ctx.world.clock.monotonic_ns() >= until_ns {
                break;
            }
        }
        if !stuck.is_empty() {
            self.with_logs(code, |logs| logs.note_stuck(stuck.len()));
            self.append(tx, code, stuck).await?;
        }
        let state = self.with_logs(code, |logs| {
            (logs.flushing(), logs.len() == logs.active_len())
        });
        let Some((Some(mut log), is_empty)) = state else {
            return Ok(());
        };
        if is_empty && !log.is_empty() {
            // Also when what was left had changed again, and went over to the other log.
            log.truncate(tx).await?;
        } else if let Some(last) = last.filter(|_| !is_empty) {
            log.set_checkpoint(tx, last)?;
        } else {
            return Ok(());
        }
        self.with_logs(code, |logs| logs.replace([log]));
        self.touch(code);
        tracing::debug!(%checksum, count, "entries of a dedup log flushed");
        Ok(())
    }

    /// How many entries of a table are flushed at a time, and how many of its leaves are read side
    /// by side before; `None` where memory has all leaves anyway.
    fn batch(&self, code: u8) -> (usize, Option<usize>) {
        let (leaves, entries) = {
            let tables = self.tables.read();
            let core_bytes = sizes(&tables).1;
            if core_bytes < self.cache.limit_bytes() / 2 {
                return (BATCH, None);
            }
            let entries = tables.get(&code).map_or(0, |table| table.logs.len());
            (core_bytes >> BLOCK_SHIFT, entries)
        };
        let at_a_time = (self.cache.limit_bytes() / LEAVES_PART) >> BLOCK_SHIFT;
        let at_a_time = at_a_time.clamp(*LEAVES.start(), *LEAVES.end()) as usize;
        // Neighbours by key are in one leaf.
        let of_a_leaf = (entries / (leaves as usize).max(1)).max(1);
        (at_a_time * of_a_leaf, Some(at_a_time))
    }

    /// Has the leaves in memory to which these entries belong, `at_a_time` reads side by side.
    async fn read_leaves(&self, checksum: Checksum, batch: &[(Words, Logged)], at_a_time: usize) {
        let code = checksum.code();
        let reads = batch.iter().flat_map(|(words, logged)| {
            let references = references_of(&logged.value);
            let to = (references > 0).then(|| DdtClass::of_references(references));
            let from = logged.class.filter(|from| Some(*from) != to);
            let zaps = [from, to].into_iter().flatten();
            zaps.filter_map(move |class| Some((self.zap(code, class)?, *words)))
        });
        let reads: Vec<(Zap, Words)> = reads.collect();
        let mut running = futures::stream::iter(reads)
            .map(|(zap, words)| async move {
                // Whatever fails here fails again where it matters.
                let _ = may_fail(zap.lookup_u64_key(&words)).await;
            })
            .buffer_unordered(at_a_time);
        while running.next().await.is_some() {}
    }

    /// Has the logs of a table change places, if the one that is being flushed is empty and it is
    /// time for the other one, or `now`.
    async fn swap_logs(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
        now: bool,
    ) -> Result<(), PoolError> {
        let code = checksum.code();
        let state = self.with_logs(code, |logs| {
            let (length, active) = (logs.len(), logs.active_len());
            let first_txg = logs.active().map(|log| log.first_txg());
            (length, active, first_txg, logs.flushing())
        });
        let Some((length, active, Some(first_txg), Some(mut flushing))) = state else {
            return Ok(());
        };
        let is_long = active >= self.log_entries_max() / 2;
        let is_old = ctx.txg.get()
            >= first_txg
                .get()
                .saturating_add(self.limits.read().active_txgs);
        if length > active || active == 0 || !(now || is_long || is_old) {
            return Ok(());
        }
        if !flushing.is_empty() {
            // All that was in it was changed again.
            flushing.truncate(tx).await?;
            self.with_logs(code, |logs| logs.replace([flushing]));
        }
        let mut objects = self
            .with_logs(code, |logs| logs.objects())
            .unwrap_or_default();
        swap(&mut objects, ctx.txg, tx)?;
        self.with_logs(code, |logs| logs.swapped(objects));
        Ok(())
    }
}

impl Dedup {
    /// Flushes a part of logs that are too long for memory, in syncing context; says whether there
    /// is more.
    ///
    /// # Errors
    /// Of reading and writing: the txg cannot be written.
    pub(crate) async fn flush_logs(&self, ctx: &SyncContext, tx: &Tx) -> Result<bool, PoolError> {
        let waiting = {
            let tables = self.tables.read();
            let mut tables = tables.iter();
            let waiting =
                tables.find(|(_, table)| table.logs.len() == 0 && !table.logs.are_empty());
            waiting.map(|(code, _)| *code)
        };
        let Some(code) = waiting else {
            self.has_logs.store(false, Ordering::Release);
            // Nothing may have been in them but what is in the ZAPs as well.
            self.finish(ctx, tx).await?;
            return Ok(false);
        };
        let checksum = Checksum::from_code(code);
        let count = self.flush_log(ctx, tx, checksum).await?;
        self.touch(code);
        self.finish(ctx, tx).await?;
        tracing::debug!(%checksum, count, "entries of a dedup log flushed");
        Ok(true)
    }

    /// Takes into memory what is in the logs of a table.
    ///
    /// # Errors
    /// Of reading; when memory has no room for it, that the table is damaged.
    async fn keep_stuck(&self, code: u8) -> Result<(), PoolError> {
        let objects = self.with_logs(code, |logs| logs.objects());
        let mut logs = Logs::of_objects(objects.unwrap_or_default());
        let most = self.loaded_entries_max();
        if !logs.load_entries(&self.allocator, most).await? {
            let why = format!("more than {most} entries belong to parts that cannot be read");
            return Err(logs.damaged(why));
        }
        logs.note_stuck(logs.len());
        self.with_logs(code, |to| *to = logs);
        Ok(())
    }

    async fn flush_log(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
    ) -> Result<usize, PoolError> {
        let code = checksum.code();
        let mut logs = self
            .with_logs(code, |logs| logs.objects())
            .unwrap_or_default();
        let at = position_flushing(&logs)?;
        if logs[at].is_empty() {
            let turns = self.with_logs(code, Logs::turn).unwrap_or_default();
            if turns > 1 {
                // Both were flushed: what there is could not be.
                self.keep_stuck(code).await?;
                return Ok(0);
            }
            swap(&mut logs, ctx.txg, tx)?;
            self.with_logs(code, |to| to.replace(logs));
            return Ok(0);
        }
        let step = self.flush_step.load(Ordering::Relaxed).max(STEP_FIRST);
        self.flush_step
            .store((step * 2).min(STEP_MAX), Ordering::Relaxed);
        let mut taken: BTreeMap<Words, Logged> = BTreeMap::new();
        let mut bound: Option<Words> = None;
        logs[at]
            .each(&mut |record| {
                let words = *record.key.words();
                if bound.is_some_and(|bound| words >= bound) {
                    return;
                }
                taken.insert(words, Logged::of_record(record));
                if taken.len() > step
                    && let Some((largest, _)) = taken.pop_last()
                {
                    bound = Some(largest);
                }
            })
            .await?;
        let last = taken.last_key_value().map(|(words, _)| *words);
        for (index, newer) in logs.iter().enumerate() {
            if index == at {
                continue;
            }
            newer
                .each(&mut |record| {
                    taken.remove(record.key.words());
                })
                .await?;
        }
        let count = taken.len();
        let mut stuck = Vec::new();
        for (words, mut logged) in taken {
            let key = DdtKey::from_words(words);
            let name = DedupName { checksum, key };
            let_go(ctx, &name, &mut logged.value);
            let value = &logged.value;
            let mut from = logged.class;
            let store = async {
                // What the ZAP has of it is not in the statistics.
                from = self.find(&name).await?.and_then(|stored| stored.class);
                self.put(ctx, tx, &name, &mut from, value).await
            };
            match waits_for_devices(store).await {
                Err(error) if error.is_damage() => {
                    tracing::warn!(%error, "a dedup table is damaged: a change stays in a log");
                    self.set_known(code, Known::Never);
                    // It may be in no ZAP any more.
                    logged.class = from;
                    stuck.push(logged.record(key));
                }
                stored => stored?,
            }
        }
        if !stuck.is_empty() {
            logs[1 - at].append(tx, &stuck).await?;
        }
        match last.filter(|_| bound.is_some()) {
            Some(last) => logs[at].set_checkpoint(tx, last)?,
            None => logs[at].truncate(tx).await?,
        }
        self.with_logs(code, |to| to.replace(logs));
        Ok(count)
    }
}
