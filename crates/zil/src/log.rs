//! An open log: what is recorded, commits, the chain's state, and its part in a sync.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use device::World;
use format::{BlockPointer, LogKind, ObjectId, Txg, ZilHeader};
use object::{ObjectSet, SyncContext};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use zio::{Tx, TxgManager};

use crate::ZilError;
use crate::pending::{Entry, EntryBody, OBJECT_BYTES_MAX, Pending};
use crate::record::{LogContent, LogRecord};
use crate::walk::free_chain;
use crate::writer::Writer;

/// How synchronous a dataset's writes are (property `sync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SyncMode {
    /// What is asked to be synchronous is.
    #[default]
    Standard,
    /// Everything is.
    Always,
    /// Nothing is.
    Disabled,
}

/// Properties that a log goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogSettings {
    /// `sync`.
    pub sync: SyncMode,
    /// `logbias=throughput`: log devices are left to others.
    pub throughput: bool,
}

/// The dataset that a log belongs to, as far as the log knows it. Nothing here may wait.
pub trait LogOwner: Send + Sync {
    /// The dataset's full name now, for messages.
    fn name(&self) -> String;
    /// Whether a log may take so many bytes more among the data.
    fn has_room(&self, bytes: u64) -> bool;
    /// Its properties now.
    fn settings(&self) -> LogSettings;
    /// Its log cannot be replayed, for this reason, and is kept.
    fn not_replayed(&self, _reason: &ZilError) {}
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
pub enum ChainChange {
    /// There is one now: feature `zilsaxattr` becomes active for the dataset.
    Created,
    /// There is none any more.
    Destroyed,
}

/// A block of the chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogBlock {
    pub pointer: BlockPointer,
    /// Txg in which it was allocated.
    pub allocated: Txg,
    /// Highest txg of its records.
    pub records: Txg,
    /// Whether the device has it; not if its write is under way or never began.
    pub written: bool,
}

/// What was on disk when the dataset was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inherited {
    /// No log.
    Nothing,
    /// A claimed log without records, or with replayed ones: to be freed.
    Stale,
    /// A claimed log that waits to be replayed.
    Unreplayed,
    /// A log that was not claimed: import passed it over, as the dataset could not be read then. It
    /// is not touched, but to let go of it.
    Unclaimed,
}

/// The chain, as the sync loop and the writer share it.
#[derive(Debug)]
pub(crate) struct ChainState {
    /// Oldest first. The last one is the next to be written.
    pub blocks: VecDeque<LogBlock>,
    pub inherited: Inherited,
    /// The txg in which the root was written with which the dataset was opened. Later blocks of a
    /// log that was not claimed may be somebody else's.
    pub opened_at: Txg,
    /// The sync of this txg frees all of it.
    pub destroy: Option<Txg>,
    /// Writes under way that a txg's sync has to wait for.
    pub in_flight: BTreeMap<Txg, usize>,
    /// How far replay is, by the txg that may say so.
    pub replayed: BTreeMap<Txg, u64>,
    /// Not picked up yet.
    pub change: Option<ChainChange>,
}

/// What is being replayed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Replaying {
    No,
    /// A change of names: noted with its transaction.
    Named(u64),
    /// Anything else: noted when it is done.
    Repeatable,
}

impl ChainState {
    /// Has the sync of `txg` free all of it, unless an earlier one does.
    pub fn destroy_in(&mut self, txg: Txg) {
        self.destroy = Some(self.destroy.map_or(txg, |earlier| earlier.min(txg)));
    }
}

pub(crate) struct Shared {
    pub owner: Box<dyn LogOwner>,
    pub world: World,
    pub objset: Arc<ObjectSet>,
    pub txgs: Arc<TxgManager>,
    pub pending: Mutex<Pending>,
    pub chain: Mutex<ChainState>,
    /// Some write of `in_flight` has ended.
    pub landed: Notify,
    pub writer: tokio::sync::Mutex<Writer>,
    pub replaying: Mutex<Replaying>,
    pub stats: Mutex<LogStats>,
    /// Newest txg with changes that were not recorded, as `sync=disabled`.
    pub unrecorded: AtomicU64,
    /// What was on disk when the dataset was opened must be replayed before anything else changes
    /// the dataset.
    pub is_awaited: AtomicBool,
    /// Records that cannot be replayed are left out.
    pub leaves_out: AtomicBool,
}

/// The intent log of one open dataset.
pub struct Zil {
    pub(crate) shared: Arc<Shared>,
}

impl Zil {
    /// The log of an object set that was just opened for writing.
    pub fn open(
        owner: Box<dyn LogOwner>,
        objset: Arc<ObjectSet>,
        txgs: Arc<TxgManager>,
    ) -> Arc<Self> {
        let header = objset.zil_header();
        let inherited = if header.log.is_hole() {
            Inherited::Nothing
        } else if header.claim_txg.is_zero() {
            tracing::warn!(
                dataset = owner.name(),
                "its intent log was not claimed at import; synchronous writes wait for \
                 transaction groups"
            );
            Inherited::Unclaimed
        } else if header.flags & ZilHeader::REPLAY_NEEDED != 0 {
            Inherited::Unreplayed
        } else {
            Inherited::Stale
        };
        let is_awaited = matches!(inherited, Inherited::Unreplayed | Inherited::Unclaimed);
        Arc::new(Zil {
            shared: Arc::new(Shared {
                owner,
                world: objset.world().clone(),
                objset: objset.clone(),
                txgs,
                pending: Mutex::default(),
                chain: Mutex::new(ChainState {
                    blocks: VecDeque::new(),
                    inherited,
                    opened_at: objset.root().birth(),
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
                is_awaited: AtomicBool::new(is_awaited),
                leaves_out: AtomicBool::new(false),
            }),
        })
    }

    /// Adds a record about a change made in `tx`. The data of a write is taken from the object now.
    pub fn record(&self, tx: &Tx, record: LogRecord) {
        let (sync, pulls) = (record.sync, record.pulls);
        if let Some(entry) = self.entry(tx, record) {
            self.shared.pending.lock().admit(entry, sync, pulls);
        }
    }

    /// Adds records of one change, of which a crash leaves all or none: they are in one block of
    /// the log, where a write may otherwise go on in the next one. A change that is too big for a
    /// block has its commits wait for the txg. All of them go where the first one does.
    pub fn record_together(&self, tx: &Tx, records: impl IntoIterator<Item = LogRecord>) {
        let mut first: Option<(ObjectId, LogKind, bool, bool)> = None;
        let mut entries = Vec::new();
        for record in records {
            let LogRecord {
                object,
                kind,
                sync,
                pulls,
                ..
            } = record;
            first.get_or_insert((object, kind, sync, pulls));
            entries.extend(self.entry(tx, record));
        }
        let Some((object, kind, sync, pulls)) = first.filter(|_| !entries.is_empty()) else {
            return;
        };
        let is_lost = |entry: &Entry| matches!(entry.body, EntryBody::Overflow);
        let body = match entries.iter().any(is_lost) {
            true => EntryBody::Overflow,
            false => EntryBody::Together(entries),
        };
        let entry = Entry {
            kind,
            txg: tx.txg(),
            object,
            body,
        };
        self.shared.pending.lock().admit(entry, sync, pulls);
    }

    /// A record as it waits; nothing where there is nothing to log.
    fn entry(&self, tx: &Tx, record: LogRecord) -> Option<Entry> {
        let shared = &self.shared;
        let replaying = *shared.replaying.lock();
        match replaying {
            Replaying::No => {}
            Replaying::Named(sequence) => {
                shared.chain.lock().replayed.insert(tx.txg(), sequence);
                shared.objset.dirty_root(tx);
                return None;
            }
            Replaying::Repeatable => return None,
        }
        if shared.owner.settings().sync == SyncMode::Disabled {
            shared
                .unrecorded
                .fetch_max(tx.txg().get(), Ordering::Relaxed);
            return None;
        }
        let body = match record.content {
            LogContent::Encoded(body) => EntryBody::Encoded(body),
            LogContent::Write {
                length_bytes: 0, ..
            } => return None,
            LogContent::Write {
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
            LogContent::Unlogged => EntryBody::Overflow,
        };
        Some(Entry {
            kind: record.kind,
            txg: tx.txg(),
            object: record.object,
            body,
        })
    }

    /// Makes the records of `object` (zero: of all) durable, and everything recorded before them
    /// that is not bound to another object. Returns at once with `sync=disabled`. Never call it
    /// with a [`Tx`] held.
    ///
    /// # Errors
    /// [`ZilError::Zio`] when the pool is closing, or suspended with `failmode=continue`: then it
    /// is not known what is durable. With `failmode=wait` it waits.
    pub async fn commit(&self, object: ObjectId) -> Result<(), ZilError> {
        let shared = &self.shared;
        if shared.owner.settings().sync == SyncMode::Disabled || self.is_replaying() {
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
        answer.await.map_err(|_| ZilError::Closed)??;
        Ok(())
    }

    /// Whether what is changed now is what a log says.
    pub fn is_replaying(&self) -> bool {
        !matches!(*self.shared.replaying.lock(), Replaying::No)
    }

    /// Whether a log from before a crash waits to be replayed.
    pub fn needs_replay(&self) -> bool {
        self.shared.chain.lock().inherited == Inherited::Unreplayed
    }

    /// Whether an import passed a log over, so that nothing can be changed and nothing will replay
    /// it: [`Self::discard_unclaimed`].
    pub fn is_unclaimed(&self) -> bool {
        self.shared.chain.lock().inherited == Inherited::Unclaimed
    }

    /// Whether nothing may change the dataset yet: a log from before a crash is not replayed (nor
    /// being replayed), and would come over whatever is written now.
    pub fn forbids_changes(&self) -> bool {
        self.shared.is_awaited.load(Ordering::Acquire) && !self.is_replaying()
    }

    /// Has replay leave out, with a message, records that cannot be replayed, and those that rely
    /// on them: an administrator goes on without what they promised.
    pub fn leave_out_unreplayable(&self) {
        self.shared.leaves_out.store(true, Ordering::Release);
    }

    /// Gives the chain back, so that the dataset has no log on disk; what was recorded is durable
    /// then. It can be used further, and makes a new chain when it has to. A log that waits to be
    /// replayed stays.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub async fn close(&self) -> Result<(), ZilError> {
        self.shared.close().await?;
        Ok(())
    }

    /// [`Self::close`], without waiting for it.
    pub fn close_in_background(&self) {
        let shared = self.shared.clone();
        let closing = async move {
            if let Err(error) = shared.close().await {
                let dataset = shared.owner.name();
                tracing::debug!(dataset, %error, "the intent log could not be closed");
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

    /// Whether it can be let go of: closing would have nothing to do, nobody works on it, and
    /// nothing is recorded.
    pub fn is_idle(&self) -> bool {
        self.is_closed() && self.shared.pending.lock().is_empty()
    }

    /// Whether it has no chain and nobody works on it.
    pub fn is_closed(&self) -> bool {
        let quiet = !self.shared.pending.lock().writing;
        let chain = self.shared.chain.lock();
        quiet
            && chain.blocks.is_empty()
            && chain.destroy.is_none()
            && !self.is_replaying()
            && self.shared.writer.try_lock().is_ok()
    }

    /// Forgets the records of txgs up to `txg`, which is on disk (`zil_clean`).
    pub fn clean(&self, txg: Txg) {
        self.shared.pending.lock().clean(txg);
    }

    /// What the sync of this txg did to the chain; once.
    pub fn take_change(&self) -> Option<ChainChange> {
        self.shared.chain.lock().change.take()
    }

    /// In syncing context, before the object set is written: frees log blocks that are not needed
    /// any more once this txg is on disk, and brings the head up to date (`zil_sync`).
    pub async fn sync(&self, ctx: &SyncContext) {
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
                    // What is open has allocated all of its own log, in txgs up to this one.
                    let allocated = match chain.inherited {
                        Inherited::Unclaimed => chain.opened_at,
                        _ => ctx.txg,
                    };
                    old_chain = Some((header, allocated));
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
        if let Some((header, allocated)) = old_chain {
            free_chain(&ctx.pipeline, ctx.txg, allocated, &header).await;
        }
        if header != before {
            shared.objset.set_zil_header(&Tx::syncing(ctx.txg), header);
        }
    }
}

impl Shared {
    /// The data of a write that was just made: whole blocks by reference, parts copied (they would
    /// keep all of their block). `None` when it is not all in memory, or too much.
    fn capture(&self, object: ObjectId, offset: u64, length: u64) -> Option<Vec<Bytes>> {
        if length > OBJECT_BYTES_MAX {
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
            .field("dataset", &self.shared.owner.name())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
