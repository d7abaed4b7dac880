//! The intent log (ZIL): what makes synchronous writes durable before their txg is.
//!
//! # What it is for
//! A txg takes seconds, an fsync must not. So every change is also noted as a record, in memory
//! ([`pending`]); a commit writes the records that matter to it into the dataset's log on disk, a
//! chain of blocks, and returns. After a crash, import *claims* the chain's blocks ([`walk`]), and
//! opening the dataset *replays* the records ([`replay`]). What the txg has made durable itself is dropped from
//! the log without having been read ever.
//!
//! # Layout
//! See [`format`]'s `zil` for blocks and records. The head (`zil_header_t`) is in the object set's
//! root block, and says where the chain starts. Each block has the pointer of the next one, which is
//! allocated before, so that a commit needs one write and a flush; where a pointer leads to something else than
//! the next block, the log ends.
//!
//! # Group commit
//! ```text
//!   commit -> ticket -+                      +-> blocks, in parallel -> flush -> answers
//!   commit -> ticket -+-> writer: one batch -+
//!   commit -> ticket -+   (meanwhile the next batch gathers)
//! ```
//! One batch is written at a time, by a task that lives as long as somebody waits; who commits while
//! it writes is in the next batch together with all others who do. The answer to a ticket comes when every
//! record made before the ticket is durable. Dropping a commit's future changes nothing for the others.
//!
//! # Writes
//! Data goes into the log's blocks (`WR_COPIED`), cut into records as blocks end, whatever its size.
//! There are no indirect writes (`WR_INDIRECT`, `dmu_sync`): they would need blocks that are written
//! before their txg, which the object layer has no way to take over. What they are good for, not writing
//! much data twice, is done otherwise: where more than 16 MiB of an object, or 64 MiB in all, would
//! have to be logged, the commit waits for the txg. Logs of OpenZFS that have indirect writes are replayed.
//!
//! # Room
//! Blocks go to log devices, or among the data. There a log takes one only while everything that is under way finds room beside
//! it, and most of what is kept back for the pool's own writes (`DslPool::has_log_room`); else the commit waits for the txg. What logs hold
//! counts against writers, and a replay may use what deletes may, so that what fitted before a crash fits after it.
//!
//! # The life of a chain
//! Created by the first commit, which waits for its txg anyway (so that the head is on disk before
//! anybody relies on the chain); blocks whose records' txgs are all on disk are freed in the sync of a
//! txg, and the head moves on ([`Zil::sync`]). Given up, by freeing it all in one txg, on close, after a
//! replay, and whenever a block could not be allocated or written: then the commit waits for that
//! txg and a later commit starts a new chain, with new guids. So behind a block that may be bad nothing is ever
//! acknowledged.
//!
//! # Devices that miss a part of it
//! Where a log block should be and is not, the log ends. So a device that missed a block must not be asked alone: a
//! commit counts only when all devices of the block's vdev have it, but for those that the pool's state on disk says lack its
//! txg ([`vdev::VdevTree::tells_of`]). A device that fails is on record with the next txg, for which the commit waits.
//! Import refuses a log whose end only such devices show, or others while one fails to be read.
//!
//! # What a crash leaves
//! * In a batch: nothing of it was acknowledged; the chain may have a prefix of it.
//! * A block is allocated in a txg and linked from the block before, whose write ends before that txg
//!   does (`sync` waits for it), so the blocks that the last txg has as allocated and those reachable are the same; those
//!   allocated later are claimed.
//! * During replay: the head says how far it is, in the txg of the replayed record itself where doing it again
//!   would fail (changes of names), after it where doing it again is harmless.
//!
//! # Locks
//! `pending` and `chain` are for a few instructions each, never both. `writer` is an async lock, held
//! by whoever changes the chain (a batch, close, replay) across its waits, for txgs too. The sync
//! loop takes only the first two, and waits only for device writes that were issued; so nobody who holds
//! `writer` waits for it in a circle. A commit must not be waited for while a `Tx` is held.

mod blocks;
mod pending;
mod replay;
#[cfg(test)]
mod tests;
mod walk;
mod writer;

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use device::{BoxFuture, World};
use format::{BlockPointer, Endian, ObjectId, Txg, ZilHeader};
use object::{ObjectSet, SyncContext};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use zio::{Tx, TxgManager};

use crate::{DatasetError, DatasetSettings, SyncMode};
use pending::{Entry, EntryBody, Pending};
pub use walk::{awaits_replay, visit_log};
pub(crate) use walk::{claim, free_chain, free_until, is_cut_off, is_far_ahead};

/// A record for the intent log.
#[derive(Debug, Clone)]
pub struct LogRecord {
    /// Kind (`TX_*`, include/sys/zil.h), with [`LogRecord::CASE_INSENSITIVE`] where asked.
    pub kind: u64,
    /// The object that it is about: what [`Zil::commit`] selects by.
    pub object: ObjectId,
    /// Must be in the log with the next commit of any object (all changes to names are). Otherwise
    /// only commits of its object or of everything write it.
    pub sync: bool,
    /// With `sync`: what is recorded of its object so far goes into the log before it, as a renamed file's data
    /// goes before its name (`zil_itx_assign`).
    pub pulls: bool,
    /// What it says.
    pub body: LogBody,
}

/// What a log record says.
#[derive(Debug, Clone)]
pub enum LogBody {
    /// The record as it is stored, after its common header (`lr_t`, 32 bytes), little-endian.
    Encoded(Bytes),
    /// A write (`TX_WRITE`): the data is taken from the object by [`Zil::record`], so record it after
    /// the object was written, in the same transaction, with the range still locked.
    Write {
        /// First byte.
        offset_bytes: u64,
        /// Length.
        length_bytes: u64,
    },
    /// Something that no record can say: commits that would write it wait for its txg instead.
    Unlogged,
}

impl LogRecord {
    /// Bit of `kind`: names were compared without regard to case (`TX_CI`).
    pub const CASE_INSENSITIVE: u64 = 1 << 63;

    /// A change of names or of anything that must keep its order: in the log with the next commit.
    pub fn named(kind: u64, object: ObjectId, body: impl Into<Bytes>) -> Self {
        LogRecord {
            kind,
            object,
            sync: true,
            pulls: false,
            body: LogBody::Encoded(body.into()),
        }
    }

    /// The same, after all that is recorded of its object so far.
    pub fn pulling(kind: u64, object: ObjectId, body: impl Into<Bytes>) -> Self {
        LogRecord {
            pulls: true,
            ..Self::named(kind, object, body)
        }
    }

    /// A change of an object that cannot be logged.
    pub fn unlogged(object: ObjectId, sync: bool) -> Self {
        LogRecord {
            kind: 0,
            object,
            sync,
            pulls: false,
            body: LogBody::Unlogged,
        }
    }

    /// A change of one object only.
    pub fn of_object(kind: u64, object: ObjectId, sync: bool, body: impl Into<Bytes>) -> Self {
        LogRecord {
            kind,
            object,
            sync,
            pulls: false,
            body: LogBody::Encoded(body.into()),
        }
    }

    /// A write of data.
    pub fn write(object: ObjectId, sync: bool, offset_bytes: u64, length_bytes: u64) -> Self {
        LogRecord {
            kind: blocks::TX_WRITE,
            object,
            sync,
            pulls: false,
            body: LogBody::Write {
                offset_bytes,
                length_bytes,
            },
        }
    }
}

/// A record to be replayed.
#[derive(Debug, Clone)]
pub struct ReplayRecord {
    /// Kind, without [`LogRecord::CASE_INSENSITIVE`].
    pub kind: u64,
    /// Whether names are compared without regard to case.
    pub case_insensitive: bool,
    /// Txg of the change.
    pub txg: Txg,
    /// Number of the record.
    pub sequence: u64,
    /// Byte order of `body`.
    pub endian: Endian,
    /// The record after its common header.
    pub body: Bytes,
    /// The data of a `TX_WRITE` that is elsewhere on disk (`lr_blkptr`).
    pub data: Option<Bytes>,
}

/// Error of a [`ReplayTarget`].
pub type ReplayError = Box<dyn std::error::Error + Send + Sync>;

/// Does again what a log record says: a filesystem or a volume. It works as for a user's request,
/// up to calling [`Zil::record`] in its transaction, which then notes what was replayed instead of
/// logging it.
pub trait ReplayTarget: Send + Sync {
    /// Does what the record says.
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>>;

    /// Frees at once what has no name any more, also what earlier records took the last one from: a record that failed
    /// is done again once that is synced, since it may give the same object numbers again. Nothing where nobody frees
    /// later than he is told to.
    fn settle(&self) -> BoxFuture<'_, Result<(), ReplayError>> {
        Box::pin(async { Ok(()) })
    }
}

/// What a log has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Commits that had to wait for something.
    pub commits: u64,
    /// Batches written to the log.
    pub batches: u64,
    /// Blocks written to the log.
    pub blocks: u64,
    /// Bytes of records in them.
    pub bytes: u64,
    /// Batches that waited for a txg instead.
    pub txg_waits: u64,
}

/// What happened to a log's chain in the sync of a txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainChange {
    /// There is one now: feature `zilsaxattr` becomes active for the dataset.
    Created,
    /// There is none any more.
    Destroyed,
}

/// A block of the chain.
#[derive(Debug, Clone, Copy)]
struct LogBlock {
    pointer: BlockPointer,
    /// Txg in which it was allocated.
    allocated: Txg,
    /// Highest txg of its records.
    records: Txg,
    /// Whether the device has it; not if its write is under way or never began.
    written: bool,
}

/// What was on disk when the dataset was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inherited {
    /// No log.
    Nothing,
    /// A claimed log without records, or with replayed ones: to be freed.
    Stale,
    /// A claimed log that waits to be replayed.
    Unreplayed,
    /// A log that was not claimed: import has not come to it. It is not touched.
    Unclaimed,
}

/// The chain, as the sync loop and the writer share it.
#[derive(Debug)]
struct ChainState {
    /// Oldest first. The last one is the next to be written.
    blocks: VecDeque<LogBlock>,
    inherited: Inherited,
    /// The sync of this txg frees all of it.
    destroy: Option<Txg>,
    /// Writes under way that a txg's sync has to wait for.
    in_flight: BTreeMap<Txg, usize>,
    /// How far replay is, by the txg that may say so.
    replayed: BTreeMap<Txg, u64>,
    /// Not picked up yet.
    change: Option<ChainChange>,
}

/// What is being replayed.
#[derive(Debug, Clone, Copy)]
enum Replaying {
    No,
    /// A change of names: noted with its transaction.
    Named(u64),
    /// Anything else: noted when it is done.
    Repeatable,
}

impl ChainState {
    /// Has the sync of `txg` free all of it, unless an earlier one does.
    fn destroy_in(&mut self, txg: Txg) {
        self.destroy = Some(self.destroy.map_or(txg, |earlier| earlier.min(txg)));
    }
}

struct Shared {
    name: Box<dyn Fn() -> String + Send + Sync>,
    /// Whether so many bytes more may be taken among the data.
    has_room: Box<dyn Fn(u64) -> bool + Send + Sync>,
    world: World,
    objset: Arc<ObjectSet>,
    txgs: Arc<TxgManager>,
    settings: watch::Receiver<DatasetSettings>,
    pending: Mutex<Pending>,
    chain: Mutex<ChainState>,
    /// Some write of `in_flight` has ended.
    landed: Notify,
    writer: tokio::sync::Mutex<writer::Writer>,
    replaying: Mutex<Replaying>,
    stats: Mutex<LogStats>,
    /// Newest txg with changes that were not recorded, as `sync=disabled`.
    unrecorded: AtomicU64,
}

/// The intent log of one open dataset.
pub struct Zil {
    shared: Arc<Shared>,
}

impl Zil {
    /// The log of an object set that was just opened for writing. `name` is asked for messages, `has_room` before
    /// a number of bytes is taken for it among the data.
    pub(crate) fn open(
        name: Box<dyn Fn() -> String + Send + Sync>,
        has_room: Box<dyn Fn(u64) -> bool + Send + Sync>,
        objset: Arc<ObjectSet>,
        txgs: Arc<TxgManager>,
        settings: watch::Receiver<DatasetSettings>,
    ) -> Arc<Self> {
        let header = objset.zil_header();
        let inherited = if header.log.is_hole() {
            Inherited::Nothing
        } else if header.claim_txg.is_zero() {
            tracing::warn!(
                dataset = name(),
                "its intent log was not claimed at import; synchronous writes wait for transaction groups"
            );
            Inherited::Unclaimed
        } else if header.flags & ZilHeader::REPLAY_NEEDED != 0 {
            Inherited::Unreplayed
        } else {
            Inherited::Stale
        };
        Arc::new(Zil {
            shared: Arc::new(Shared {
                name,
                has_room,
                world: objset.world().clone(),
                objset,
                txgs,
                settings,
                pending: Mutex::default(),
                chain: Mutex::new(ChainState {
                    blocks: VecDeque::new(),
                    inherited,
                    destroy: None,
                    in_flight: BTreeMap::new(),
                    replayed: BTreeMap::new(),
                    change: None,
                }),
                landed: Notify::new(),
                writer: tokio::sync::Mutex::default(),
                replaying: Mutex::new(Replaying::No),
                stats: Mutex::default(),
                unrecorded: AtomicU64::new(0),
            }),
        })
    }

    /// Adds a record about a change made in `tx`. The data of a write is taken from the object now.
    pub fn record(&self, tx: &Tx, record: LogRecord) {
        self.record_together(tx, [record]);
    }

    /// Adds several, which no commit tears apart.
    pub fn record_together<const N: usize>(&self, tx: &Tx, records: [LogRecord; N]) {
        let shared = &self.shared;
        let replaying = *shared.replaying.lock();
        match replaying {
            Replaying::No => {}
            Replaying::Named(sequence) => {
                shared.chain.lock().replayed.insert(tx.txg(), sequence);
                shared.objset.dirty_root(tx);
                return;
            }
            Replaying::Repeatable => return,
        }
        if shared.settings.borrow().sync == SyncMode::Disabled {
            shared
                .unrecorded
                .fetch_max(tx.txg().get(), Ordering::Relaxed);
            return;
        }
        let entries = records.map(|record| {
            let body = match record.body {
                LogBody::Encoded(body) => EntryBody::Encoded(body),
                LogBody::Write {
                    length_bytes: 0, ..
                } => return None,
                LogBody::Write {
                    offset_bytes,
                    length_bytes,
                } => match shared.capture(record.object, offset_bytes, length_bytes) {
                    Some(data) => EntryBody::Write {
                        offset_bytes,
                        length_bytes,
                        data,
                    },
                    None => EntryBody::Overflow,
                },
                LogBody::Unlogged => EntryBody::Overflow,
            };
            let entry = Entry {
                kind: record.kind,
                txg: tx.txg(),
                object: record.object,
                body,
            };
            Some((entry, record.sync, record.pulls))
        });
        let mut pending = shared.pending.lock();
        for (entry, sync, pulls) in entries.into_iter().flatten() {
            if pulls {
                pending.select(entry.object);
            }
            pending.add(entry, sync);
        }
    }

    /// Makes the records of `object` (zero: of all) durable, and everything recorded before them
    /// that is not bound to another object. Returns at once with `sync=disabled`. Never call it with a
    /// [`Tx`] held.
    ///
    /// # Errors
    /// [`DatasetError::Pool`] when the pool is closing, or suspended with `failmode=continue`: then it
    /// is not known what is durable. With `failmode=wait` it waits.
    pub async fn commit(&self, object: ObjectId) -> Result<(), DatasetError> {
        let shared = &self.shared;
        if shared.settings.borrow().sync == SyncMode::Disabled || self.is_replaying() {
            return Ok(());
        }
        let unrecorded = Txg::new(shared.unrecorded.load(Ordering::Relaxed));
        if unrecorded > shared.txgs.synced_txg() {
            shared.wait_durable(unrecorded).await?;
        }
        let (answer, starts) = {
            let mut pending = shared.pending.lock();
            pending.select(object);
            let idle = !pending.writing && !pending.has_selected();
            if idle && pending.barrier <= shared.txgs.synced_txg() {
                return Ok(());
            }
            let (ticket, answer) = oneshot::channel();
            pending.tickets.push(ticket);
            let starts = !std::mem::replace(&mut pending.writing, true);
            (answer, starts)
        };
        if starts {
            shared.start_writer();
        }
        shared.stats.lock().commits += 1;
        answer.await.map_err(|_| DatasetError::Closed)??;
        Ok(())
    }

    /// Whether what is changed now is what a log says.
    pub(crate) fn is_replaying(&self) -> bool {
        !matches!(*self.shared.replaying.lock(), Replaying::No)
    }

    /// Whether a log from before a crash waits to be replayed.
    pub fn needs_replay(&self) -> bool {
        self.shared.chain.lock().inherited == Inherited::Unreplayed
    }

    /// Gives the chain back, so that the dataset has no log on disk; what was recorded is durable
    /// then. It can be used further, and makes a new chain when it has to. A log that waits to be
    /// replayed stays.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub async fn close(&self) -> Result<(), DatasetError> {
        self.shared.close().await?;
        Ok(())
    }

    /// [`Self::close`], without waiting for it.
    pub(crate) fn close_in_background(&self) {
        let shared = self.shared.clone();
        let closing = async move {
            if let Err(error) = shared.close().await {
                tracing::debug!(dataset = (shared.name)(), %error, "the intent log could not be closed");
            }
        };
        let tasks = self.shared.objset.pipeline().tasks();
        let world = &self.shared.world;
        world
            .spawn
            .spawn(Box::pin(tasks.own("intent log", closing)));
    }

    /// What it has done.
    pub fn stats(&self) -> LogStats {
        *self.shared.stats.lock()
    }

    /// Whether it can be let go of: closing would have nothing to do, nobody works on it, and nothing
    /// is recorded.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_closed() && self.shared.pending.lock().is_empty()
    }

    /// Whether it has no chain and nobody works on it.
    pub(crate) fn is_closed(&self) -> bool {
        let quiet = !self.shared.pending.lock().writing;
        let chain = self.shared.chain.lock();
        quiet
            && chain.blocks.is_empty()
            && chain.destroy.is_none()
            && !self.is_replaying()
            && self.shared.writer.try_lock().is_ok()
    }

    /// Forgets the records of txgs up to `txg`, which is on disk (`zil_clean`).
    pub(crate) fn clean(&self, txg: Txg) {
        self.shared.pending.lock().clean(txg);
    }

    /// What the sync of this txg did to the chain; once.
    pub(crate) fn take_change(&self) -> Option<ChainChange> {
        self.shared.chain.lock().change.take()
    }

    /// In syncing context, before the object set is written: frees log blocks that are not needed any
    /// more once this txg is on disk, and brings the head up to date (`zil_sync`).
    pub(crate) async fn sync(&self, ctx: &SyncContext) {
        let shared = &self.shared;
        shared.wait_landed(ctx.txg).await;
        let before = shared.objset.zil_header();
        let mut header = before;
        let mut old_chain = None;
        {
            let mut chain = shared.chain.lock();
            let chain = &mut *chain;
            let later = chain.replayed.split_off(&ctx.txg.next());
            let replayed = std::mem::replace(&mut chain.replayed, later);
            if let Some((_, sequence)) = replayed.last_key_value() {
                header.replay_sequence = header.replay_sequence.max(*sequence);
            }
            if chain.destroy.is_some_and(|txg| txg <= ctx.txg) {
                chain.destroy = None;
                if chain.blocks.is_empty() {
                    old_chain = Some(header);
                }
                for block in chain.blocks.drain(..) {
                    ctx.pipeline.free(ctx.txg, &block.pointer);
                }
                chain.inherited = Inherited::Nothing;
                header = ZilHeader::default();
                chain.change = Some(ChainChange::Destroyed);
            }
            let mut is_mine = false;
            while let [first, _, ..] = chain.blocks.make_contiguous()
                && first.written
                && first.allocated <= ctx.txg
                && first.records <= ctx.txg
            {
                ctx.pipeline.free(ctx.txg, &first.pointer);
                chain.blocks.pop_front();
                is_mine = true;
            }
            if let Some(first) = chain.blocks.front()
                && (is_mine || first.allocated <= ctx.txg)
            {
                if header.log.is_hole() {
                    chain.change = Some(ChainChange::Created);
                }
                header = ZilHeader {
                    log: first.pointer,
                    ..ZilHeader::default()
                };
            }
        }
        if let Some(header) = old_chain {
            free_chain(&ctx.pipeline, ctx.txg, &header).await;
        }
        if header != before {
            shared.objset.set_zil_header(&Tx::syncing(ctx.txg), header);
        }
    }
}

impl Shared {
    /// The data of a write that was just made: whole blocks by reference, parts copied (they would keep all
    /// of their block). `None` when it is not all in memory, or too much.
    fn capture(&self, object: ObjectId, offset: u64, length: u64) -> Option<Vec<Bytes>> {
        if length > pending::OBJECT_BYTES_MAX {
            return None;
        }
        let object = self.objset.try_hold(object)?;
        let block_bytes = object.info().data_block_bytes as usize;
        let mut slices = object.peek(offset, length as usize)?;
        for slice in &mut slices {
            if slice.len() < block_bytes {
                *slice = Bytes::copy_from_slice(slice);
            }
        }
        Some(slices)
    }

    /// Waits until no write is under way that the sync of `txg` needs.
    async fn wait_landed(&self, txg: Txg) {
        loop {
            let mut landed = pin!(self.landed.notified());
            landed.as_mut().enable();
            let waits = self.chain.lock().in_flight.range(..=txg).next().is_some();
            if !waits {
                return;
            }
            landed.await;
        }
    }
}

impl std::fmt::Debug for Zil {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Zil")
            .field("dataset", &(self.shared.name)())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
