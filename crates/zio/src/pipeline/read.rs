//! Reading blocks.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use codec::compress::decompress;
use format::{BlockPointer, Compression, EmbeddedKind, Pointer};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::check::BlockCheck;
use super::crypt::{CRYPT_ON_TASK_BYTES, Unlock, check_opened, open_stored};
use super::suspend::{self, name_of};
use super::{CacheUse, Pipeline, ReadContext, ScrubOutcome, zeros};
use crate::cache::CacheKey;
use crate::error::ZioError;
use vdev::{ErrorReport, IoContext, Priority, ReadFailure};

/// Blocks that decompress to more than this are left to a CPU worker when the algorithm is fast.
const FAST_ON_WORKER_BYTES: usize = 256 << 10;
/// The same, for slow algorithms.
const SLOW_ON_WORKER_BYTES: usize = 32 << 10;

/// Reads under way, so that readers of the same block share one.
#[derive(Default)]
pub(super) struct Flights([Mutex<HashMap<CacheKey, Arc<Flight>>>; 16]);

struct Flight {
    speculative: bool,
    result: OnceLock<Result<Bytes, ZioError>>,
    landed: Notify,
}

/// Removes a flight from the list however it ends.
struct Landing<'a> {
    flights: &'a Flights,
    key: CacheKey,
    flight: Arc<Flight>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.flights.shard(self.key).lock().remove(&self.key);
        self.flight.landed.notify_waiters();
    }
}

impl Flights {
    fn shard(&self, key: CacheKey) -> &Mutex<HashMap<CacheKey, Arc<Flight>>> {
        &self.0[key.spread() % self.0.len()]
    }

    /// Joins the flight for this block, or starts it.
    fn board(&self, key: CacheKey, speculative: bool) -> Result<Landing<'_>, Arc<Flight>> {
        let mut shard = self.shard(key).lock();
        if let Some(flight) = shard.get(&key) {
            return Err(flight.clone());
        }
        let flight = Arc::new(Flight {
            speculative,
            result: OnceLock::new(),
            landed: Notify::new(),
        });
        shard.insert(key, flight.clone());
        Ok(Landing {
            flights: self,
            key,
            flight,
        })
    }
}

impl Pipeline {
    /// The block's data: `lsize_bytes` of it, verified and decompressed; zeros for holes.
    ///
    /// # Errors
    /// [`ZioError::Checksum`], [`ZioError::Unreadable`], [`ZioError::Corrupt`],
    /// [`ZioError::BadPointer`]; of encrypted datasets [`ZioError::KeyNotLoaded`],
    /// [`ZioError::Authentication`].
    pub async fn read(&self, bp: &BlockPointer, context: &ReadContext) -> Result<Bytes, ZioError> {
        loop {
            match self.read_shared(bp, context).await {
                Err(error) => self.wait_for_devices(bp, context, error).await?,
                done => return done,
            }
        }
    }

    /// Whether a failed read of this block waits for devices that may bring it back: see [`Pipeline::syncing`].
    fn waits_for(&self, bp: &BlockPointer, device_failed: bool) -> bool {
        !self.read_only && suspend::is_syncing() && (device_failed || self.tree.may_come_back(bp))
    }

    /// Suspends the pool until it is cleared, after a failed read of the sync loop that is to be tried again then.
    /// Not below here: who else shares the read is told of the failure at once.
    pub(super) async fn wait_for_devices(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
        error: ZioError,
    ) -> Result<(), ZioError> {
        let (ZioError::Checksum { device_failed, .. } | ZioError::Unreadable { device_failed, .. }) =
            error
        else {
            return Err(error);
        };
        if context.speculative || !self.waits_for(bp, device_failed) {
            return Err(error);
        }
        let reason = format!("devices that {} needs do not work", name_of(bp));
        tracing::warn!(%error, "the txg cannot be written without this block");
        self.suspend_and_wait(ZioError::Suspended { reason }).await
    }

    async fn read_shared(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        let Some(key) = CacheKey::of(bp) else {
            return self.read_without_place(bp);
        };
        if context.cache == CacheUse::Bypass || Self::is_read_locked(bp, context) {
            return self.read_logical(bp, context).await;
        }
        loop {
            if let Some(data) = self.cache.get(key) {
                return Ok(data);
            }
            match self.flights.board(key, context.speculative) {
                Ok(landing) => {
                    let result = self.read_logical(bp, context).await;
                    if let (Ok(data), CacheUse::Normal) = (&result, context.cache) {
                        self.cache.insert(key, data.clone());
                    }
                    let _ = landing.flight.result.set(result.clone());
                    return result;
                }
                Err(flight) => {
                    let mut landed = pin!(flight.landed.notified());
                    landed.as_mut().enable();
                    if flight.result.get().is_none() && self.flights.is_under_way(key, &flight) {
                        landed.await;
                    }
                    match flight.result.get() {
                        Some(Ok(data)) => return Ok(data.clone()),
                        // Somebody who expected a failure did not try everything.
                        Some(Err(error)) if !flight.speculative || context.speculative => {
                            return Err(error.clone());
                        }
                        // Or whoever read it went away.
                        _ => {}
                    }
                }
            }
        }
    }

    /// Starts reading into the cache, in the background; bounded: does nothing when there is too
    /// much of it already.
    pub fn prefetch(self: &Arc<Self>, bp: &BlockPointer, context: &ReadContext) {
        let Some(key) = CacheKey::of(bp) else { return };
        if self.cache.contains(key) {
            return;
        }
        let Ok(place) = self.prefetches.clone().try_acquire_owned() else {
            return;
        };
        let (pipeline, bp) = (self.clone(), *bp);
        let context = ReadContext {
            priority: Priority::Async,
            speculative: true,
            ..*context
        };
        self.tasks.spawn("read ahead", async move {
            // Whoever needs it will hear of errors.
            let _ = pipeline.read(&bp, &context).await;
            drop(place);
        });
    }

    /// The stored bytes (`psize_bytes` of them): verified, but as compressed or encrypted as they are.
    /// Not through the cache.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_raw(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        match bp.decoded() {
            Pointer::Hole(_) => Ok(zeros(0)),
            Pointer::Embedded(embedded) => Ok(Bytes::copy_from_slice(embedded.payload())),
            Pointer::Regular(_) => {
                self.validate(bp)?;
                loop {
                    match self.read_stored(bp, context).await {
                        Err(error) => self.wait_for_devices(bp, context, error).await?,
                        done => return done,
                    }
                }
            }
        }
    }

    pub(super) fn validate(&self, bp: &BlockPointer) -> Result<(), ZioError> {
        bp.validate().map_err(|error| ZioError::BadPointer {
            block: name_of(bp),
            what: error.to_string(),
        })
    }

    /// Holes and embedded blocks.
    fn read_without_place(&self, bp: &BlockPointer) -> Result<Bytes, ZioError> {
        self.validate(bp)?;
        match bp.decoded() {
            Pointer::Embedded(embedded) if embedded.kind == EmbeddedKind::Data => decompress(
                embedded.compression,
                embedded.payload(),
                embedded.lsize_bytes as usize,
            )
            .map(Bytes::from)
            .map_err(|error| ZioError::Corrupt {
                block: "an embedded block".to_owned(),
                what: error.to_string(),
            }),
            Pointer::Embedded(_) => Err(ZioError::Unsupported {
                block: "a redacted block".to_owned(),
                what: "reading what was redacted".to_owned(),
            }),
            _ => Ok(zeros(bp.lsize_bytes() as usize)),
        }
    }

    async fn read_logical(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        let data = self.read_verified(bp, context).await?;
        #[cfg(feature = "hostile")]
        let data = crate::hostile::apply(bp, data);
        Ok(data)
    }

    async fn read_verified(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        self.validate(bp)?;
        let unlock = self.unlock(bp, context)?;
        let stored = self.read_stored(bp, context).await?;
        let result = self.open(bp, unlock, stored).await;
        if matches!(result, Err(ZioError::Authentication { .. }))
            && !context.speculative
            && let Some(dva) = bp.dva(0)
        {
            self.errors.report(ErrorReport::Data {
                bookmark: context.bookmark,
                vdev: dva.vdev(),
                offset_bytes: dva.offset_bytes(),
                birth: bp.physical_birth(),
            });
        }
        result
    }

    /// Decompresses (and before, decrypts or authenticates) what is stored of a block.
    pub(super) async fn open(
        &self,
        bp: &BlockPointer,
        unlock: Unlock,
        stored: Bytes,
    ) -> Result<Bytes, ZioError> {
        let opening = Opening { bp: *bp, unlock };
        if opening.is_heavy() {
            self.world.compute(move || opening.run(stored)).await
        } else {
            opening.run(stored)
        }
    }

    /// The stored bytes of a block with a place.
    pub(super) async fn read_stored(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        if bp.is_gang() {
            return self.read_gang(bp, context).await;
        }
        let io = io_context(bp, context);
        let psize = bp.psize_bytes() as usize;
        Ok(self.read_copies(bp, psize, &io).await?.0)
    }

    /// Reads `length` bytes at the block's places (of a gang block: its header) until one is right;
    /// all of them for a scrub. Bad copies are written anew.
    pub(super) async fn read_copies(
        &self,
        bp: &BlockPointer,
        length: usize,
        io: &IoContext,
    ) -> Result<(Bytes, ScrubOutcome), ZioError> {
        let mut result = self.try_copies(bp, length, io).await;
        if let Err(failure) = &result
            && failure.device
        {
            // Once more, as for every I/O (`zio_vdev_io_assess`, module/zfs/zio.c).
            tracing::debug!(cause = failure.cause, block = %bp, "a read failed; it is tried again");
            result = self.try_copies(bp, length, io).await;
        }
        let failure = match result {
            Ok(read) => return Ok(read),
            Err(failure) => failure,
        };
        // What is tried again is not damaged yet.
        if !io.speculative
            && !self.waits_for(bp, failure.device)
            && let Some(dva) = bp.dva(0)
        {
            self.errors.report(ErrorReport::Data {
                bookmark: io.bookmark,
                vdev: dva.vdev(),
                offset_bytes: dva.offset_bytes(),
                birth: bp.physical_birth(),
            });
        }
        let block = name_of(bp);
        Err(if failure.checksum {
            ZioError::Checksum {
                block,
                device_failed: failure.device,
            }
        } else {
            ZioError::Unreadable {
                block,
                cause: failure.cause,
                device_failed: failure.device,
            }
        })
    }

    async fn try_copies(
        &self,
        bp: &BlockPointer,
        length: usize,
        io: &IoContext,
    ) -> Result<(Bytes, ScrubOutcome), ReadFailure> {
        let check = BlockCheck::new(bp, &self.world, self.salt());
        let mut places: Vec<_> = bp.dvas().collect();
        // Copies on vdevs that are not there come last.
        places.sort_by_key(|dva| {
            let top = self.tree.top(dva.vdev());
            !top.is_some_and(|top| top.is_readable())
        });
        let mut outcome = ScrubOutcome::default();
        let mut good: Option<Bytes> = None;
        let mut wrong = Vec::new();
        let mut failure: Option<ReadFailure> = None;
        for dva in places {
            outcome.copies += 1;
            let result = self
                .tree
                .read_block(dva.vdev(), dva.offset_bytes(), length, io, &check)
                .await;
            match result {
                Ok(data) => {
                    good.get_or_insert(data);
                    if !io.scrub {
                        break;
                    }
                }
                Err(error) => {
                    outcome.bad_copies += 1;
                    if error.checksum {
                        wrong.push(dva);
                    }
                    let before = failure.take();
                    let or = |is: fn(&ReadFailure) -> bool| {
                        is(&error) || before.as_ref().is_some_and(is)
                    };
                    failure = Some(ReadFailure {
                        checksum: or(|failure| failure.checksum),
                        device: or(|failure| failure.device),
                        cause: error.cause.clone(),
                    });
                }
            }
        }
        let Some(good) = good else {
            return Err(failure.unwrap_or(ReadFailure {
                checksum: false,
                device: false,
                cause: "it has no place".to_owned(),
            }));
        };
        if !self.read_only && !io.speculative {
            let repair = IoContext {
                priority: Priority::Sync,
                ..*io
            };
            for dva in wrong {
                let result = self
                    .tree
                    .write_block(dva.vdev(), dva.offset_bytes(), good.clone(), &repair)
                    .await;
                if let Err(error) = result {
                    tracing::warn!(cause = error.cause, %dva, "a bad copy could not be repaired");
                }
            }
        }
        Ok((good, outcome))
    }
}

/// From what is stored to the data.
struct Opening {
    bp: BlockPointer,
    unlock: Unlock,
}

impl Opening {
    /// Whether this is better left to a CPU worker.
    fn is_heavy(&self) -> bool {
        let fast = match self.bp.compression() {
            Compression::Off => true,
            compression => {
                let fast = matches!(
                    compression,
                    Compression::Lz4 | Compression::Lzjb | Compression::Zle
                );
                let limit = if fast {
                    FAST_ON_WORKER_BYTES
                } else {
                    SLOW_ON_WORKER_BYTES
                };
                self.bp.lsize_bytes() as usize <= limit
            }
        };
        let protected = !matches!(self.unlock, Unlock::AsIs);
        !fast || protected && self.bp.psize_bytes() as usize > CRYPT_ON_TASK_BYTES
    }

    fn run(&self, stored: Bytes) -> Result<Bytes, ZioError> {
        let bp = &self.bp;
        let lsize = bp.lsize_bytes() as usize;
        let forged = |_| ZioError::Authentication { block: name_of(bp) };
        let corrupt = |what: String| ZioError::Corrupt {
            block: name_of(bp),
            what,
        };
        let stored = open_stored(&self.unlock, bp, stored).map_err(forged)?;
        let data = match bp.compression() {
            Compression::Off if stored.len() >= lsize => stored.slice(..lsize),
            Compression::Off => {
                return Err(corrupt(format!(
                    "{} bytes are stored of {lsize}",
                    stored.len()
                )));
            }
            compression => decompress(compression, &stored, lsize)
                .map(Bytes::from)
                .map_err(|error| corrupt(error.to_string()))?,
        };
        check_opened(&self.unlock, bp, &data).map_err(forged)?;
        Ok(data)
    }
}

impl Flights {
    fn is_under_way(&self, key: CacheKey, flight: &Arc<Flight>) -> bool {
        self.shard(key)
            .lock()
            .get(&key)
            .is_some_and(|other| Arc::ptr_eq(other, flight))
    }
}

pub(super) fn io_context(bp: &BlockPointer, context: &ReadContext) -> IoContext {
    IoContext {
        bookmark: context.bookmark,
        priority: context.priority,
        birth: bp.physical_birth(),
        speculative: context.speculative,
        ..IoContext::default()
    }
}

/// Puts pieces together.
pub(super) fn concat(pieces: Vec<Bytes>, length: usize) -> Bytes {
    let mut out = BytesMut::with_capacity(length);
    for piece in pieces {
        out.extend_from_slice(&piece);
    }
    out.freeze()
}
