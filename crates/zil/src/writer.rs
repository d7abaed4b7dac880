//! Writing: batches into blocks, the chain's beginning and end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use device::BoxFuture;
use format::{BlockPointer, Txg, ZilSequence};
use futures::future::{Either, select};
use futures::stream::StreamExt;
use zio::pipeline::{FailMode, LogPlaces};
use zio::{Tx, ZioError};

use crate::blocks::{Bursts, Packer, Records, block_bytes};
use crate::log::{Inherited, LogBlock, Shared};
use crate::pending::{Batch, Entry};

/// Blocks of a batch that are written at the same time.
const WRITES_IN_FLIGHT: usize = 32;

/// What only the writer knows of the chain.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Number of the last record.
    sequence: u64,
    bursts: Bursts,
    /// The chain cannot be continued, or records did not get into it: it is given up before
    /// anything else is acknowledged.
    broken: bool,
}

/// Blocks that were allocated for a batch, and must be durable before the txg ends, or freed in it:
/// no chain leads to those behind a block that is not.
struct InFlight<'a> {
    shared: &'a Shared,
    txg: Txg,
    /// All of them are durable.
    done: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        {
            let mut chain = self.shared.chain.lock();
            if !self.done {
                // All records of the chain are of this txg or older, which makes them durable.
                chain.destroy_in(self.txg);
            }
            if let Some(count) = chain.in_flight.get_mut(&self.txg) {
                *count -= 1;
                if *count == 0 {
                    chain.in_flight.remove(&self.txg);
                }
            }
        }
        self.shared.landed.notify_waiters();
    }
}

/// Lets others start a writer when this one ends in a way that it should not (a panic, the end of
/// the runtime).
struct AtWork<'a> {
    shared: &'a Shared,
    done: bool,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let barrier = self.shared.txgs.open_txg();
        let tickets = {
            let mut pending = self.shared.pending.lock();
            pending.writing = false;
            pending.barrier = barrier;
            std::mem::take(&mut pending.tickets)
        };
        // Those who wait hear that there will be no answer: without the lock, since that wakes
        // them, and what wakes them may end them, if the runtime has ended.
        drop(tickets);
    }
}

impl Shared {
    /// Starts the task that writes batches until nobody waits. `pending.writing` was just set; its
    /// lock must not be held. The task begins here, so that the first write is on its way before
    /// another thread is woken.
    pub(crate) fn start_writer(self: &Arc<Self>) {
        let shared = self.clone();
        let task = async move {
            let mut at_work = AtWork {
                shared: &shared,
                done: false,
            };
            loop {
                let batch = {
                    let mut pending = shared.pending.lock();
                    if pending.tickets.is_empty() {
                        pending.writing = false;
                        at_work.done = true;
                        return;
                    }
                    pending.take()
                };
                shared.write_batch(batch).await;
            }
        };
        let tasks = self.objset.pipeline().tasks();
        let mut task: BoxFuture<'static, ()> = Box::pin(tasks.own("intent log", task));
        // The waker does nothing: whoever the task goes to polls again, with one of its own.
        let mut context = Context::from_waker(Waker::noop());
        if task.as_mut().poll(&mut context).is_pending() {
            self.world.spawn.spawn_near(task);
        }
    }

    /// Makes a batch durable and answers.
    async fn write_batch(&self, mut batch: Batch) {
        let mut writer = self.writer.lock().await;
        let tickets = std::mem::take(&mut batch.tickets);
        let barrier = self.pending.lock().barrier;
        let suspect = writer.broken || barrier > self.txgs.synced_txg();
        // Until it is known better, also when this task ends here.
        writer.broken = true;
        let result = if suspect {
            self.give_up(&mut writer).await
        } else {
            match self.log(&mut writer, batch).await {
                Ok(()) => Ok(()),
                Err(error) => {
                    let dataset = self.owner.name();
                    tracing::debug!(dataset, %error, "the intent log could not be written");
                    // The txg that is open now has everything of the batch.
                    self.give_up(&mut writer).await
                }
            }
        };
        if result.is_ok() {
            writer.broken = false;
        } else {
            self.pending.lock().barrier = self.txgs.open_txg();
        }
        for ticket in tickets {
            // Whoever gave up waiting does not need the answer.
            let _ = ticket.send(result.clone());
        }
    }

    /// Makes a batch durable, through the log if that can be.
    async fn log(&self, writer: &mut Writer, mut batch: Batch) -> Result<(), ZioError> {
        if let Some(txg) = batch.wait {
            self.stats.lock().txg_waits += 1;
            self.wait_durable(txg).await?;
        }
        batch.forget(self.txgs.synced_txg());
        if batch.entries.is_empty() {
            return Ok(());
        }
        let (inherited, is_empty) = {
            let chain = self.chain.lock();
            (chain.inherited, chain.blocks.is_empty())
        };
        match inherited {
            Inherited::Nothing if is_empty => {
                self.create(&batch).await?;
                batch.forget(self.txgs.synced_txg());
                if batch.entries.is_empty() {
                    return Ok(());
                }
            }
            Inherited::Nothing => {}
            Inherited::Stale => return self.give_up(writer).await,
            Inherited::Unreplayed | Inherited::Unclaimed => {
                self.stats.lock().txg_waits += 1;
                return self.wait_durable(self.txgs.open_txg()).await;
            }
        }
        if self.chain.lock().blocks.is_empty() {
            // There was no room for one.
            return self.wait_durable(self.txgs.open_txg()).await;
        }
        self.append(writer, &batch).await
    }

    /// Begins a chain: allocates its first block and waits until the head on disk has it.
    /// Where there is no room for a block, just waits.
    async fn create(&self, batch: &Batch) -> Result<(), ZioError> {
        let bytes: u64 = batch.entries.iter().map(Entry::bytes).sum();
        let tx = self.txgs.assign(0).await?;
        let txg = tx.txg();
        let mut guids = [0; 2];
        for guid in &mut guids {
            while *guid == 0 {
                *guid = self.world.random.next_u64();
            }
        }
        let place = ZilSequence {
            guids,
            objset: self.objset.options().dataset.get().into(),
            sequence: 1,
        };
        let size = block_bytes(bytes);
        match self.allocate(&tx, size).await {
            Ok(mut pointer) => {
                pointer.set_checksum(place.checksum());
                self.chain.lock().blocks.push_back(LogBlock {
                    pointer,
                    allocated: txg,
                    records: Txg::ZERO,
                    written: false,
                });
                self.objset.dirty_root(&tx);
            }
            Err(ZioError::NoSpace { .. }) => self.stats.lock().txg_waits += 1,
            Err(error) => return Err(error),
        }
        drop(tx);
        self.wait_durable(txg).await
    }

    /// Allocates a block.
    async fn allocate(&self, tx: &Tx, size_bytes: u64) -> Result<BlockPointer, ZioError> {
        let pipeline = self.objset.pipeline();
        // `logbias=throughput` leaves log devices to others.
        let throughput = self.owner.settings().throughput;
        let taken_bytes = pipeline.allocator().worst_deflated_bytes(size_bytes);
        let places = LogPlaces {
            on_log_devices: !throughput,
            among_data: self.owner.has_room(taken_bytes),
        };
        let options = self.objset.options();
        let encrypted = options.encrypted.then(|| options.dataset.get().into());
        pipeline
            .log_blocks()
            .allocate(tx.txg(), size_bytes, encrypted, places)
            .await
    }

    /// Writes a batch into the chain.
    async fn append(&self, writer: &mut Writer, batch: &Batch) -> Result<(), ZioError> {
        let first = {
            let chain = self.chain.lock();
            let last = chain.blocks.back();
            *last.expect("a chain has its next block")
        };
        let mut packer = Packer::new(first.pointer.psize_bytes(), writer.sequence);
        if !batch.entries.iter().all(|entry| packer.add(entry)) {
            tracing::warn!(
                dataset = self.owner.name(),
                "a record is too long for the intent log; waiting for the transaction group"
            );
            self.stats.lock().txg_waits += 1;
            return self.wait_durable(self.txgs.open_txg()).await;
        }
        let (blocks, sequence) = packer.finish();
        writer.sequence = sequence;
        let count = blocks.len();
        let bytes: u64 = blocks.iter().map(|block| block.len() as u64).sum();
        writer.bursts.note(bytes);

        let (pointers, mut in_flight) = self
            .extend(&first.pointer, &blocks, writer.bursts.next_block_bytes())
            .await?;
        let mut writes = Vec::with_capacity(count);
        for (index, block) in blocks.into_iter().enumerate() {
            let (pointer, next) = (pointers[index], &pointers[index + 1]);
            writes.push((pointer, block.into_block(next, pointer.checksum())?));
        }
        let pipeline = self.objset.pipeline();
        // One block, which most batches are, is durable when it is written. What its records tell
        // of is in it, or on disk already (blocks that were cloned), and all blocks before it are
        // durable, or the chain would have been given up: nothing else has to be flushed for it.
        let durable = count == 1;
        let has_failed = AtomicBool::new(false);
        let has_failed = &has_failed;
        let results: Vec<Result<(), ZioError>> = futures::stream::iter(writes)
            .map(|(pointer, block)| async move {
                // The chain ends before it in any case.
                if has_failed.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let written = pipeline.log_blocks().write(&pointer, block, durable).await;
                has_failed.fetch_or(written.is_err(), Ordering::Relaxed);
                written
            })
            .buffer_unordered(WRITES_IN_FLIGHT)
            .collect()
            .await;
        // Those under way have ended: their places are free for others after a failure.
        results.into_iter().collect::<Result<(), ZioError>>()?;
        if !durable {
            pipeline.log_blocks().flush(&pointers[..count]).await?;
        }
        {
            let mut chain = self.chain.lock();
            for block in chain.blocks.iter_mut().rev().skip(1).take(count) {
                block.written = true;
            }
        }
        in_flight.done = true;
        drop(in_flight);
        let mut stats = self.stats.lock();
        stats.batches += 1;
        stats.blocks += count as u64;
        stats.bytes += bytes;
        Ok(())
    }

    /// Allocates the blocks behind the chain's last one: one for all records but the first's, and
    /// one more for the next batch. Returns all pointers, with the last one's so far.
    async fn extend(
        &self,
        first: &BlockPointer,
        blocks: &[Records],
        next_bytes: u64,
    ) -> Result<(Vec<BlockPointer>, InFlight<'_>), ZioError> {
        let tx = match self.txgs.try_assign(0) {
            Some(tx) => tx,
            None => self.txgs.assign(0).await?,
        };
        let txg = tx.txg();
        let sizes = blocks[1..].iter().map(Records::block_bytes);
        let mut pointers = vec![*first];
        for size in sizes.chain([next_bytes]) {
            let last = pointers[pointers.len() - 1];
            match self.allocate(&tx, size).await {
                Ok(mut pointer) => {
                    let place = ZilSequence::from_checksum(last.checksum());
                    pointer.set_checksum(place.next().checksum());
                    pointers.push(pointer);
                }
                Err(error) => {
                    for pointer in &pointers[1..] {
                        self.objset.pipeline().free(txg, pointer);
                    }
                    self.objset.dirty_root(&tx);
                    return Err(error);
                }
            }
        }
        {
            let mut chain = self.chain.lock();
            let mut records = blocks.iter().map(|block| block.txg);
            if let (Some(last), Some(txg)) = (chain.blocks.back_mut(), records.next()) {
                last.records = txg;
            }
            for pointer in &pointers[1..] {
                chain.blocks.push_back(LogBlock {
                    pointer: *pointer,
                    allocated: txg,
                    records: records.next().unwrap_or_default(),
                    written: false,
                });
            }
            *chain.in_flight.entry(txg).or_default() += 1;
        }
        self.objset.dirty_root(&tx);
        let in_flight = InFlight {
            shared: self,
            txg,
            done: false,
        };
        Ok((pointers, in_flight))
    }

    /// Gives the chain up: frees it in the txg that is open now, and waits for that. A log that
    /// waits for something else stays.
    async fn give_up(&self, writer: &mut Writer) -> Result<(), ZioError> {
        let inherited = self.chain.lock().inherited;
        self.stats.lock().txg_waits += 1;
        match inherited {
            Inherited::Nothing | Inherited::Stale => self.destroy(writer).await,
            Inherited::Unreplayed | Inherited::Unclaimed => {
                self.wait_durable(self.txgs.open_txg()).await
            }
        }
    }

    async fn destroy(&self, writer: &mut Writer) -> Result<(), ZioError> {
        let tx = self.txgs.assign(0).await?;
        let txg = tx.txg();
        self.chain.lock().destroy_in(txg);
        self.objset.dirty_root(&tx);
        drop(tx);
        self.wait_durable(txg).await?;
        writer.broken = false;
        Ok(())
    }

    /// See [`crate::Zil::close`].
    pub(crate) async fn close(&self) -> Result<(), ZioError> {
        let mut writer = self.writer.lock().await;
        let has_chain = {
            let chain = self.chain.lock();
            !chain.blocks.is_empty() || chain.inherited == Inherited::Stale
        };
        if has_chain {
            self.give_up(&mut writer).await?;
        }
        Ok(())
    }

    /// After a replay: lets go of the log.
    pub(crate) async fn destroy_inherited(&self) -> Result<(), ZioError> {
        let mut writer = self.writer.lock().await;
        self.destroy(&mut writer).await?;
        self.is_awaited.store(false, Ordering::Release);
        Ok(())
    }

    /// Waits until `txg` is on disk. While the pool is suspended with `failmode=continue` that is
    /// an error, with `failmode=wait` it takes as long as it takes.
    pub(crate) async fn wait_durable(&self, txg: Txg) -> Result<(), ZioError> {
        let pipeline = self.objset.pipeline();
        let mut suspension = pipeline.suspension().watch();
        let mut synced = pin!(self.txgs.wait_synced(txg));
        loop {
            suspension.mark_unchanged();
            if let Some(error) = pipeline.suspension().error()
                && pipeline.suspension().fail_mode() == FailMode::Continue
                && self.txgs.synced_txg() < txg
            {
                return Err(error);
            }
            match select(synced.as_mut(), pin!(suspension.changed())).await {
                Either::Left((result, _)) => return result,
                Either::Right((Ok(()), _)) => {}
                Either::Right((Err(_), _)) => return Err(ZioError::Closing),
            }
        }
    }
}
