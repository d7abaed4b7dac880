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
//! next entries are read side by side, as many as a quarter of the cache holds or more, and an
//! entry is stored as soon as its leaf is there, while the others are read: so those of which
//! leaves are being read are stored in any order, but none is left behind. Reads hold no lock of
//! the ZAP. The first leaves of all are read before the txg comes to it (`ahead`).
//!
//! # Damage
//!
//! An entry whose leaf cannot be read stays in the logs: it goes into the active one again, and is
//! tried again with the others. At rest, nothing is done for such entries alone. A disk may take
//! seconds to say that it cannot read. All entries of a leaf that are in work hear that at once,
//! and once [`TIME`] has passed since the first of them, the others in work go the same way
//! untried; these go on waiting as long as others are stored. Nor does a filter say any more what
//! is not in the table (`known`): new keys that belong to such a leaf are looked for, which fails,
//! and do not come into the logs, so that what waits there for damaged leaves does not grow with
//! new data.
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
//! them, then twice as many each time, up to [`STEP_MAX`], but no more than belong to so many
//! leaves as are a quarter of the cache), stores those that the newer log does not have, and moves
//! the mark; at the end of the log it is emptied and the two change places. So a crash between
//! steps, or the real OpenZFS, finds logs as it leaves them itself. Entries whose leaf cannot be
//! read go into the newer log again; once [`STEP_PATIENCE`] has passed since the first of them, so
//! does what is left of the step. When both logs were flushed, those are all that is left, and are
//! kept in memory, where they are tried again. If that has no room for them, they are flushed once
//! more, each of them tried.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use format::{Checksum, DdtClass, DdtKey};
use futures::StreamExt;
use futures::future::{Either, join_all, select};
use futures::stream::FuturesUnordered;
use object::{ObjectError, SyncContext, Zap};
use spa::PoolError;
use zio::pipeline::{DedupName, LiveEntry, waits_for_devices};
use zio::{SharedCache, Tx};

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
/// What leaves that are read side by side may take, as a part of the cache: one part in so many.
/// The same of those that one txg changes, of a table that memory cannot hold: an entry may change
/// one in each of two ZAPs.
const LEAVES_PART: u64 = 4;
/// How many those are, whatever the cache is: fewer would leave disks idle. They are changed as
/// soon as they are read, and need not be kept.
const LEAVES: RangeInclusive<usize> = 64..=256;
/// Entries for each of those leaves that are in work at a time, at most.
const NEIGHBOURS_MAX: usize = 8;
/// Entries of a log too long for memory that are flushed in one txg: in the first, and at most. It
/// doubles; so shorter logs, too, take more than one step.
const STEP_FIRST: usize = 128;
const STEP_MAX: usize = 20_000;
/// How long others of a step are tried after the first that cannot be stored.
const STEP_PATIENCE: Duration = Duration::from_secs(30);
/// Times that logs which are too long for memory change places until each was flushed.
const TURNS: usize = 2;

/// Where entries that are to be stored come from.
pub(super) enum Source {
    /// The log that is being flushed: so many.
    Log(usize),
    /// A step of logs that are too long for memory.
    Step(BTreeMap<Words, Logged>),
}

/// How many entries may be in work at a time.
#[derive(Default)]
pub(super) struct Window {
    /// So many leaves are a part of the cache that it can do without.
    pub(super) leaves: usize,
    /// Entries of each of them, about.
    pub(super) of_a_leaf: usize,
    /// Leaves are read before; not where memory has all of them anyway.
    pub(super) is_read: bool,
}

/// How far it goes.
#[derive(Clone, Copy)]
struct Bounds {
    /// Entries that are stored in any case, ...
    least: usize,
    /// ... and until when others are.
    until_ns: u64,
    /// How long others are tried after the first that cannot be stored.
    patience_ns: u64,
}

/// What became of entries.
#[derive(Default)]
struct Stored {
    /// How many were taken.
    count: usize,
    /// The largest of their keys.
    last: Option<Words>,
    /// Those of them that could not be stored, or were not tried.
    stuck: Vec<(Words, Logged)>,
    /// How many were not tried.
    untried: usize,
}

/// A key whose leaf was read, or cannot be.
type Read = (Words, Result<(), PoolError>);

/// Does `work` while others read, whose keys come to `ready` when they have done.
async fn beside<T>(
    work: impl Future<Output = T>,
    running: &mut FuturesUnordered<impl Future<Output = Read>>,
    ready: &mut VecDeque<Read>,
) -> T {
    let mut work = pin!(work);
    while !running.is_empty() {
        match select(work.as_mut(), running.next()).await {
            Either::Left((done, _)) => return done,
            Either::Right((read, _)) => ready.extend(read),
        }
    }
    work.await
}

/// How many leaves are the part of the cache that they may take.
fn leaves_max(cache: &SharedCache) -> usize {
    let leaves = (cache.limit_bytes() / LEAVES_PART) >> BLOCK_SHIFT;
    usize::try_from(leaves).unwrap_or(usize::MAX)
}

/// The first of some keys, ascending, that with those before it belongs to more than `most` of so
/// many leaves.
pub(super) fn beyond<'a>(
    keys: impl IntoIterator<Item = &'a Words>,
    leaves: u64,
    most: usize,
) -> Option<Words> {
    let (mut count, mut before) = (0, None);
    for words in keys {
        let leaf = (u128::from(leaves) * u128::from(words[0])) >> u64::BITS;
        if before.replace(leaf) != Some(leaf) {
            count += 1;
        }
        if count > most {
            return Some(*words);
        }
    }
    None
}

/// Has the leaf of a key in memory.
///
/// # Errors
/// That it cannot be read, if that matters. Whatever else fails here fails again where it does.
async fn read_leaf(zap: Zap, words: Words, matters: bool) -> Result<(), PoolError> {
    match waits_for_devices(zap.read_ahead_u64_key(&words)).await {
        Err(error @ ObjectError::Zio(_)) => {
            let error = PoolError::from(error);
            if matters && error.is_damage() {
                Err(error)
            } else {
                Ok(())
            }
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Dedup {
    pub(super) fn with_logs<T>(&self, code: u8, work: impl FnOnce(&mut Logs) -> T) -> Option<T> {
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
            // All that it changes is in memory until the txg is on disk.
            let window = self.window(*code, &Source::Log(usize::MAX));
            let leaves = leaves_max(&self.cache).max(STEP_FIRST);
            let fits = leaves.saturating_mul(window.of_a_leaf);
            let most = match window.is_read {
                true => most.min(fits.max(limits.flushed_least)),
                false => most,
            };
            let room = self.log_entries_max() / waiting.len();
            let (length, added) = self.with_logs(*code, Logs::take_added).unwrap_or_default();
            // They may have much less room than before, as another pool came.
            let over = length.saturating_sub(room);
            let over = over.min((2 * added).max(limits.flushed_least));
            let until_ns = ctx.world.clock.monotonic_ns() + TIME.as_nanos() as u64;
            // All at a time, so that reads go on from the first entry to the last.
            let bounds = Bounds {
                least: limits.flushed_least.max(over),
                until_ns,
                patience_ns: TIME.as_nanos() as u64,
            };
            self.flush_some(ctx, tx, checksum, most.max(over), bounds)
                .await?;
            self.flush_down_to(ctx, tx, checksum, length - over).await?;
            self.swap_logs(ctx, tx, checksum, false).await?;
        }
        self.stop_reading(None);
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
            let bounds = Bounds {
                least: usize::MAX,
                until_ns: u64::MAX,
                patience_ns: TIME.as_nanos() as u64,
            };
            self.flush_some(ctx, tx, checksum, length - most, bounds)
                .await?;
        }
    }

    /// Flushes up to `most` entries of the log whose turn it is.
    async fn flush_some(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
        most: usize,
        bounds: Bounds,
    ) -> Result<(), PoolError> {
        let code = checksum.code();
        let begun_ns = ctx.world.clock.monotonic_ns();
        let source = Source::Log(most);
        let stored = self.store_all(ctx, tx, checksum, source, bounds).await?;
        let Stored {
            count,
            last,
            stuck,
            untried,
        } = stored;
        if !stuck.is_empty() {
            // Those go on waiting, unless nothing can be stored: it would never end.
            let waiting = if count > stuck.len() { untried } else { 0 };
            self.with_logs(code, |logs| logs.note_stuck(stuck.len() - waiting));
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
        let took_ms = (ctx.world.clock.monotonic_ns() - begun_ns) / 1_000_000;
        tracing::debug!(%checksum, count, took_ms, "entries of a dedup log flushed");
        Ok(())
    }

    /// Stores entries in the ZAPs, in about ascending order. When it returns, all that were taken
    /// from the source are stored or among those that are stuck, and no other has a smaller key.
    async fn store_all(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        checksum: Checksum,
        mut source: Source,
        bounds: Bounds,
    ) -> Result<Stored, PoolError> {
        let code = checksum.code();
        let now_ns = || ctx.world.clock.monotonic_ns();
        let Window {
            leaves,
            of_a_leaf,
            is_read,
        } = self.window(code, &source);
        let window = match is_read {
            true => leaves.max(*LEAVES.start()) * of_a_leaf,
            false => 1,
        };
        let mut stored = Stored::default();
        // Those whose leaves are read, or are there.
        let mut taken: BTreeMap<Words, Logged> = BTreeMap::new();
        let mut running = FuturesUnordered::new();
        let mut ready: VecDeque<Read> = VecDeque::new();
        // When no more is tried, since the first was damaged.
        let mut enough_ns = u64::MAX;
        loop {
            if now_ns() >= enough_ns {
                stored.untried = taken.len();
                stored.stuck.extend(taken);
                if let Source::Step(rest) = source {
                    stored.count += rest.len();
                    stored.stuck.extend(rest);
                }
                return Ok(stored);
            }
            while taken.len() < window {
                if stored.count >= bounds.least && now_ns() >= bounds.until_ns {
                    break;
                }
                let next = match &mut source {
                    Source::Log(most) if stored.count >= *most => None,
                    Source::Log(_) => {
                        let next = self.with_logs(code, |logs| logs.take_next(&self.allocator));
                        next.flatten()
                    }
                    Source::Step(entries) => entries.pop_first(),
                };
                let Some((words, logged)) = next else {
                    break;
                };
                stored.count += 1;
                stored.last = Some(words);
                match is_read {
                    true => running.push(self.read_leaves(code, words, &source, &logged)),
                    false => ready.push_back((words, Ok(()))),
                }
                taken.insert(words, logged);
            }
            let (words, read) = match ready.pop_front() {
                Some(read) => read,
                None => match running.next().await {
                    Some(read) => read,
                    None => return Ok(stored),
                },
            };
            let Some(mut logged) = taken.remove(&words) else {
                continue;
            };
            let name = DedupName {
                checksum,
                key: DdtKey::from_words(words),
            };
            let_go(ctx, &name, &mut logged.value);
            let is_step = matches!(source, Source::Step(_));
            let done = match read {
                Ok(()) => {
                    let storing = self.store_logged(ctx, tx, &name, &mut logged, is_step);
                    beside(waits_for_devices(storing), &mut running, &mut ready).await
                }
                // All that belong to this leaf hear it at once.
                Err(error) => Err(error),
            };
            match done {
                Err(error) if error.is_damage() => {
                    tracing::warn!(%error, "a dedup table is damaged: a change stays in a log");
                    if stored.stuck.is_empty() {
                        enough_ns = now_ns().saturating_add(bounds.patience_ns);
                    }
                    self.set_known(code, Known::Never);
                    stored.stuck.push((words, logged));
                }
                done => done?,
            }
        }
    }

    /// Stores one entry of a log. Of a step's, it is found out in which ZAP it is: that may have
    /// changed since, and what the ZAP has of it is not in the statistics.
    async fn store_logged(
        &self,
        ctx: &SyncContext,
        tx: &Tx,
        name: &DedupName,
        logged: &mut Logged,
        is_step: bool,
    ) -> Result<(), PoolError> {
        if is_step {
            let found = self.find(name, false).await?;
            logged.class = found.and_then(|stored| stored.class);
        }
        self.put(ctx, tx, name, &mut logged.class, &logged.value)
            .await
    }

    /// How many entries may be in work at a time.
    pub(super) fn window(&self, code: u8, source: &Source) -> Window {
        let (leaves, entries) = {
            let tables = self.tables.read();
            let core_bytes = sizes(&tables).1;
            if core_bytes < self.cache.limit_bytes() / 2 && matches!(source, Source::Log(_)) {
                return Window::default();
            }
            let leaves = core_bytes >> BLOCK_SHIFT;
            let (first, last, entries) = match source {
                Source::Log(_) => {
                    let logs = tables.get(&code).map(|table| &table.logs);
                    let first = logs.and_then(|logs| logs.first());
                    let entries = logs.map_or(0, |logs| logs.len() - logs.active_len());
                    (first.map_or(0, |words| words[0]), u64::MAX, entries)
                }
                Source::Step(step) => {
                    let first = step.first_key_value().map_or(0, |(words, _)| words[0]);
                    let last = step.last_key_value().map_or(0, |(words, _)| words[0]);
                    (first, last, step.len())
                }
            };
            // The leaves that have keys between these two.
            let leaves = (u128::from(leaves) * u128::from(last - first)) >> u64::BITS;
            (usize::try_from(leaves).unwrap_or(usize::MAX), entries)
        };
        Window {
            leaves: leaves_max(&self.cache).min(*LEAVES.end()),
            // Neighbours by key are in one leaf.
            of_a_leaf: (entries / leaves.max(1)).clamp(1, NEIGHBOURS_MAX),
            is_read: true,
        }
    }

    /// Has the leaves in memory to which an entry belongs, which waits for devices.
    fn read_leaves(
        &self,
        code: u8,
        words: Words,
        source: &Source,
        logged: &Logged,
    ) -> impl Future<Output = Read> + use<> {
        let is_step = matches!(source, Source::Step(_));
        let zaps = self.zaps_of(code, logged);
        let reads = DdtClass::ALL.into_iter().filter_map(|class| {
            let zap = zaps[class.index()].clone();
            let matters = zap.is_some();
            // It may be in any, if it changed since.
            let other = (is_step && !matters).then(|| self.zap(code, class));
            let zap = zap.or(other.flatten())?;
            Some(read_leaf(zap, words, matters))
        });
        let reads: Vec<_> = reads.collect();
        async move {
            let read: Result<(), PoolError> = join_all(reads).await.into_iter().collect();
            (words, read)
        }
    }

    /// The ZAPs in which an entry is, and is to be, in the places of their classes.
    pub(super) fn zaps_of(&self, code: u8, logged: &Logged) -> [Option<Zap>; 3] {
        let references = references_of(&logged.value);
        let to = (references > 0).then(|| DdtClass::of_references(references));
        DdtClass::ALL.map(|class| {
            let is_its = to == Some(class) || logged.class == Some(class);
            is_its.then(|| self.zap(code, class)).flatten()
        })
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

    /// Takes into memory what is in the logs of a table; false when memory has no room for it.
    ///
    /// # Errors
    /// Of reading.
    async fn keep_stuck(&self, code: u8) -> Result<bool, PoolError> {
        let objects = self.with_logs(code, |logs| logs.objects());
        let mut logs = Logs::of_objects(objects.unwrap_or_default());
        let most = self.loaded_entries_max();
        if !logs.load_entries(&self.allocator, most).await? {
            return Ok(false);
        }
        logs.note_stuck(logs.len());
        self.with_logs(code, |to| *to = logs);
        Ok(true)
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
            // Both were flushed: what there is could not be.
            if turns >= TURNS && self.keep_stuck(code).await? {
                return Ok(0);
            }
            if turns > TURNS {
                let most = self.loaded_entries_max();
                let why = format!("more than {most} entries belong to parts that cannot be read");
                let error = self.with_logs(code, |logs| logs.damaged(why));
                return error.map_or(Ok(0), Err);
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
        // Of a table that is much larger than the log, so many are too much: each has a leaf of its
        // own, and all that change are in memory until the txg is on disk.
        let leaves = sizes(&self.tables.read()).1 >> BLOCK_SHIFT;
        let most = leaves_max(&self.cache).max(STEP_FIRST);
        if let Some(words) = beyond(taken.keys(), leaves, most) {
            drop(taken.split_off(&words));
            bound = Some(words);
        }
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
        let turns = self.with_logs(code, |logs| logs.turns());
        let patience_ns = match turns.unwrap_or_default() >= TURNS {
            true => u64::MAX,
            false => STEP_PATIENCE.as_nanos() as u64,
        };
        let bounds = Bounds {
            least: usize::MAX,
            until_ns: u64::MAX,
            patience_ns,
        };
        let source = Source::Step(taken);
        let stored = self.store_all(ctx, tx, checksum, source, bounds).await?;
        if !stored.stuck.is_empty() {
            let stuck = stored.stuck.iter();
            let records = stuck.map(|(words, logged)| logged.record(DdtKey::from_words(*words)));
            let records: Vec<_> = records.collect();
            logs[1 - at].append(tx, &records).await?;
        }
        match last.filter(|_| bound.is_some()) {
            Some(last) => logs[at].set_checkpoint(tx, last)?,
            None => logs[at].truncate(tx).await?,
        }
        self.with_logs(code, |to| to.replace(logs));
        Ok(stored.count)
    }
}
