//! `zpool scrub -e`: a scrub of those blocks only that the pool's error log names.
//!
//! It goes through the first of the two logs ([`spa::errlog`]) and reads every copy of each block
//! in every dataset that has it. What is good by now, or is repaired by that, is forgotten when it
//! ends whole: as with a scrub of everything, the second log, of what is still lost, takes the
//! place of the first. What cannot be looked for (its dataset's key is not loaded, or what leads to
//! it is damaged too) stays known. One that is stopped forgets nothing, nor does one that meets an
//! entry which cannot be read: it ends there.
//!
//! It works in the first pass of transaction groups, as a scan does, and for the same reason
//! ([`crate::scan`]): what is read then is not overwritten before it has been repaired. Its place
//! is a cursor in the log, stored with each group, so that it goes on after an export or a crash,
//! here or in OpenZFS. A scan or a sequential rebuild that begins ends it.
//!
//! Lock: `state`, for a few instructions.
//!
//! Source: module/zfs/dsl_scan.c (`dsl_errorscrub_*`, `read_by_block_level`).

use std::sync::Arc;

use bytes::Bytes;
use dataset::{DatasetError, SyncTask};
use device::BoxFuture;
use format::{Bookmark, ErrorBookmark, ErrorScrubPhys, ObjectId, Txg};
use object::{SyncContext, Zap, ZapCursor, ZapValue};
use parking_lot::Mutex;
use spa::events::Sysevent;
use spa::{Pass, PoolError, directory, errlog, features};
use tokio::sync::watch;
use vdev::{Priority, ScanRead};
use zio::{CacheUse, ReadContext, Tx};

use crate::rebuild::as_task_error;
use crate::{ScanState, Scans};

/// `POOL_SCAN_ERRORSCRUB` (include/sys/fs/zfs.h).
const FUNCTION: u64 = 3;
/// States (`dsl_scan_state_t`, the same file).
const FINISHED: u64 = 2;
const CANCELED: u64 = 3;
const SCRUBBING: u64 = 4;
/// Words of [`ErrorScrubPhys`].
const WORDS: usize = ErrorScrubPhys::BYTES / 8;
/// Blocks of one transaction group (`zfs_scrub_error_blocks_per_txg`).
const BLOCKS_PER_TXG: u64 = 4096;
/// Txgs after an import in which it does not go on.
const TXGS_AFTER_IMPORT: u64 = 2;

/// The last scrub of the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorScrubStatus {
    /// How far it is.
    pub state: ScanState,
    /// When it began, in seconds since 1970.
    pub start_time_s: u64,
    /// When it ended; zero while it runs.
    pub end_time_s: u64,
    /// Since when it is paused; zero when it is not.
    pub pause_time_s: u64,
    /// Blocks that were read.
    pub examined: u64,
    /// Blocks that are left.
    pub to_examine: u64,
    /// Blocks that are still lost.
    pub errors: u64,
}

#[derive(Debug, Default)]
struct State {
    phys: ErrorScrubPhys,
    is_dirty: bool,
    /// How far it is in the entry at the cursor, by its name. Not stored: after an import, that
    /// entry is read from its beginning.
    within: Option<(Bytes, ZapCursor)>,
    pause_s: u64,
    first_txg: Option<Txg>,
}

impl State {
    fn is_running(&self) -> bool {
        self.phys.function == FUNCTION && self.phys.state == SCRUBBING
    }
}

/// A pool's scrub of its error log.
#[derive(Debug, Default)]
pub struct ErrorScrub {
    state: Mutex<State>,
    /// Whether it runs, and whether it is paused.
    active: watch::Sender<(bool, bool)>,
}

/// What can be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorScrubCommand {
    Start,
    Resume,
    Pause,
    Stop,
}

fn now_s(scans: &Scans) -> u64 {
    scans.spa.world.clock.wall_ns() / 1_000_000_000
}

impl ErrorScrub {
    /// As the MOS's directory has it, at the import. What is no such state counts as none.
    pub fn load(value: Option<&ZapValue>) -> Self {
        let words = value.map(ZapValue::to_u64s).unwrap_or_default();
        let phys = words.get(..WORDS).map(ErrorScrubPhys::from_words);
        let state = State {
            phys: phys.and_then(Result::ok).unwrap_or_default(),
            ..State::default()
        };
        let out = Self {
            state: Mutex::new(state),
            ..Self::default()
        };
        out.tell();
        out
    }

    /// Goes on with what was loaded; the pool is open.
    pub fn start(&self, scans: &Scans) {
        let (is_running, is_paused) = self.is_running();
        if is_running && !scans.spa.read_only {
            scans.spa.errors.begin_scrub();
        }
        if is_paused {
            self.state.lock().pause_s = now_s(scans);
        }
    }

    fn tell(&self) {
        let now = {
            let state = self.state.lock();
            (state.is_running(), state.phys.paused != 0)
        };
        self.active.send_if_modified(|active| {
            let is_new = *active != now;
            *active = now;
            is_new
        });
    }

    /// Whether it is under way, and whether it is paused.
    pub fn is_running(&self) -> (bool, bool) {
        let state = self.state.lock();
        (state.is_running(), state.phys.paused != 0)
    }

    /// Waits until it is not under way; a paused one is not.
    pub async fn wait(&self, paused: bool) {
        let mut active = self.active.subscribe();
        let ended = active.wait_for(|(runs, pauses)| !*runs || *pauses && !paused);
        // The sender is in this very value.
        let _ = ended.await;
    }

    /// The pool is closed, or only read: nobody waits any more.
    pub fn closed(&self) {
        self.active.send_replace((false, false));
    }

    /// The last one, if there was one since the last scan.
    pub fn status(&self) -> Option<ErrorScrubStatus> {
        let state = self.state.lock();
        let phys = &state.phys;
        if phys.function != FUNCTION {
            return None;
        }
        let (scan_state, pause_time_s) = match phys.state {
            SCRUBBING if phys.paused != 0 => (ScanState::Scanning, state.pause_s),
            SCRUBBING => (ScanState::Scanning, 0),
            FINISHED => (ScanState::Finished, 0),
            CANCELED => (ScanState::Canceled, 0),
            _ => return None,
        };
        Some(ErrorScrubStatus {
            state: scan_state,
            start_time_s: phys.start_time_seconds,
            end_time_s: phys.end_time_seconds,
            pause_time_s,
            examined: phys.examined,
            to_examine: phys.to_examine,
            errors: phys.errors,
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let out = {
            let mut state = self.state.lock();
            state.is_dirty = true;
            change(&mut state)
        };
        self.tell();
        out
    }

    /// A scan or rebuild begins, in syncing context: it ends, and is forgotten.
    pub async fn give_way(&self, scans: &Scans, tx: &Tx) -> Result<(), PoolError> {
        if self.is_running().0 {
            self.end(scans, tx, false).await?;
            scans.spa.events.tell(Sysevent::ErrorscrubAbort);
        }
        let is_known = self.state.lock().phys != ErrorScrubPhys::default();
        if is_known {
            self.change(|state| state.phys = ErrorScrubPhys::default());
        }
        Ok(())
    }

    async fn begin(&self, scans: &Scans, tx: &Tx) -> Result<(), PoolError> {
        let (start_s, to_examine) = (now_s(scans), scans.spa.errors.count());
        scans.spa.errors.begin_scrub();
        self.change(|state| {
            state.phys = ErrorScrubPhys {
                function: FUNCTION,
                state: SCRUBBING,
                start_time_seconds: start_s,
                to_examine,
                ..ErrorScrubPhys::default()
            };
            state.within = None;
            state.pause_s = 0;
        });
        scans.spa.identity.mark_dirty();
        scans.spa.events.tell(Sysevent::ErrorscrubStart);
        let text = format!("func={FUNCTION} mintxg=0 maxtxg={}", tx.txg());
        scans
            .spa
            .history
            .internal(tx, "error scrub setup", text)
            .await;
        Ok(())
    }

    async fn end(&self, scans: &Scans, tx: &Tx, is_whole: bool) -> Result<(), PoolError> {
        let event = match is_whole {
            true => "error scrub done",
            false => "error scrub canceled",
        };
        let text = format!("errors={}", scans.spa.errors.count());
        scans.spa.history.internal(tx, event, text).await;
        scans.spa.errors.end_scrub(is_whole);
        let end_s = now_s(scans);
        self.change(|state| {
            state.phys.state = if is_whole { FINISHED } else { CANCELED };
            state.phys.end_time_seconds = end_s;
            state.phys.paused = 0;
        });
        if is_whole {
            scans.spa.events.tell(Sysevent::ErrorscrubFinish);
        }
        Ok(())
    }

    /// The turn in the first pass of a transaction group.
    pub(crate) async fn turn(&self, scans: &Scans, pass: &Pass<'_>) -> Result<(), PoolError> {
        let txg = pass.ctx.txg;
        let is_at_work = {
            let mut state = self.state.lock();
            let first = *state.first_txg.get_or_insert(txg);
            let is_early = txg.get() < first.get().saturating_add(TXGS_AFTER_IMPORT);
            state.is_running() && state.phys.paused == 0 && !is_early
        };
        if is_at_work && !scans.scan.rests() && scans.spa.suspended().is_none() {
            match self.work(scans, txg).await {
                Ok(false) => {}
                Ok(true) => self.end(scans, pass.tx, true).await?,
                Err(error) => {
                    // Nothing is forgotten of a log that cannot be read.
                    tracing::warn!(%error, "the pool's log of damaged blocks cannot be scrubbed");
                    self.end(scans, pass.tx, false).await?;
                }
            }
        }
        self.store(scans, pass.tx).await
    }

    /// Reads blocks until the turn is over; whether that were all.
    async fn work(&self, scans: &Scans, txg: Txg) -> Result<bool, PoolError> {
        let heads = scans.spa.dsl.features().is_enabled(features::HEAD_ERRLOG);
        let logs = scans.spa.errors.logs();
        if logs.last.is_zero() {
            return Ok(true);
        }
        let is_over = scans.scan.turn_is_over(scans, txg);
        let mos = scans.spa.dsl.mos();
        let mut count = 0;
        loop {
            let cursor = ZapCursor::from_cookie(self.state.lock().phys.cursor);
            let zap = Zap::hold(mos, logs.last).await?;
            let Some(entry) = zap.entries(cursor, 1).await?.into_iter().next() else {
                return Ok(true);
            };
            loop {
                let from = self.place_within(&entry.name);
                let part = errlog::read_part(mos, &entry, heads, from).await?;
                if part.is_empty() {
                    break;
                }
                for ((head, block), next) in part {
                    let Some(read) = self.read(scans, heads, head, &block).await else {
                        // The pool was suspended: this block comes again.
                        return Ok(false);
                    };
                    count += read;
                    self.state.lock().within = Some((entry.name.clone(), next));
                    if count >= BLOCKS_PER_TXG || is_over() {
                        return Ok(false);
                    }
                }
            }
            self.change(|state| {
                state.phys.cursor = entry.next.cookie();
                state.within = None;
            });
            // Entries that are empty take time as well.
            if is_over() {
                return Ok(false);
            }
        }
    }

    /// Where to go on in an entry of the log.
    fn place_within(&self, name: &Bytes) -> ZapCursor {
        match &self.state.lock().within {
            Some((at, place)) if at == name => *place,
            _ => ZapCursor::START,
        }
    }

    /// Reads a block wherever it is; how often that was. `None` when the pool was suspended.
    async fn read(
        &self,
        scans: &Scans,
        heads: bool,
        head: ObjectId,
        block: &ErrorBookmark,
    ) -> Option<u64> {
        let (mut count, mut is_unknown) = (0, false);
        for bookmark in scans.spa.places_of(heads, head, block).await {
            let found = scans.spa.pointer_of(&bookmark).await;
            let Ok(Some(pointer)) = found else {
                is_unknown |= found.is_err();
                continue;
            };
            let context = ReadContext {
                // What cannot be decrypted is verified by its checksum.
                without_key: true,
                priority: Priority::Scrub,
                cache: CacheUse::Bypass,
                speculative: bookmark.level == Bookmark::ZIL_LEVEL,
                ..ReadContext::new(bookmark)
            };
            let reader = scans.spa.pipeline.reader();
            let read = reader.scan(&pointer, &context, ScanRead::Scrub).await;
            if scans.spa.suspended().is_some() {
                return None;
            }
            if read.is_err() {
                scans.spa.errors.add(bookmark, pointer.physical_birth());
            }
            count += 1;
            self.change(|state| {
                state.phys.examined += 1;
                state.phys.to_examine = state.phys.to_examine.saturating_sub(1);
                state.phys.errors += u64::from(read.is_err());
            });
        }
        if is_unknown {
            scans
                .spa
                .errors
                .add(errlog::to_bookmark(head, block), block.birth);
        }
        Some(count)
    }

    async fn store(&self, scans: &Scans, tx: &Tx) -> Result<(), PoolError> {
        let phys = {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.is_dirty) {
                return Ok(());
            }
            state.phys
        };
        let directory = Zap::hold(scans.spa.dsl.mos(), ObjectId::POOL_DIRECTORY).await?;
        let value = ZapValue::from_u64s(&phys.to_words());
        directory.update(tx, directory::ERROR_SCRUB, value).await?;
        Ok(())
    }
}

impl ErrorScrub {
    /// Whether it needs a transaction group although nobody asked for one.
    pub(crate) fn has_work(&self, scans: &Scans) -> bool {
        if scans.spa.read_only {
            return false;
        }
        let state = self.state.lock();
        let is_at_work = state.is_running() && state.phys.paused == 0;
        state.is_dirty || is_at_work && !scans.scan.rests()
    }

    /// A transaction group is on disk.
    pub(crate) fn done(&self, scans: &Scans) {
        if self.has_work(scans) {
            scans.spa.txgs.go_on();
        }
    }
}

/// A command, as a sync task.
pub struct ErrorScrubTask {
    pub scans: Arc<Scans>,
    pub command: ErrorScrubCommand,
}

impl ErrorScrubTask {
    /// Does nothing when it is too late for it.
    async fn apply_now(&self, ctx: &SyncContext) -> Result<(), PoolError> {
        let (scans, scrub) = (&self.scans, &self.scans.error_scrub);
        let tx = &Tx::syncing(ctx.txg);
        let (is_running, is_paused) = scrub.is_running();
        let now_s = now_s(scans);
        match self.command {
            ErrorScrubCommand::Start if !is_running && !scans.is_scanning() => {
                scrub.begin(scans, tx).await?;
            }
            ErrorScrubCommand::Resume if is_running && is_paused => {
                scrub.change(|state| (state.phys.paused, state.pause_s) = (0, 0));
                scans.spa.events.tell(Sysevent::ErrorscrubResume);
            }
            ErrorScrubCommand::Pause if is_running && !is_paused => {
                scrub.change(|state| (state.phys.paused, state.pause_s) = (1, now_s));
                scans.spa.events.tell(Sysevent::ErrorscrubPaused);
            }
            ErrorScrubCommand::Stop if is_running => {
                scrub.end(scans, tx, false).await?;
                scans.spa.events.tell(Sysevent::ErrorscrubAbort);
            }
            _ => {}
        }
        Ok(())
    }
}

impl SyncTask for ErrorScrubTask {
    fn name(&self) -> &'static str {
        "error scrub"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move { self.apply_now(ctx).await.map_err(as_task_error) })
    }
}
