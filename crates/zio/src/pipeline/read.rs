//! Reading blocks: cache, its second level, copies, decryption, decompression.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use codec::compress::decompress;
use device::{BoxFuture, Tasks, World};
use format::{BlockPointer, Compression, EmbeddedKind, Pointer};
use l2arc::SecondLevel;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use vdev::Priority;

use super::copies::{Copies, io_context};
use super::gang_read::GangReader;
use super::inject::opening_fault;
use super::keys::{CRYPT_ON_TASK_BYTES, Keys, Unlock, check_opened, is_read_locked, open_stored};
use super::{CacheUse, ReadContext};
use crate::cache::{Cache, CacheKey};
use crate::error::{ZioError, name_of};

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

/// What is read ahead is counted in such units; smaller blocks count as one.
pub(super) const PREFETCH_UNIT_BYTES: u64 = 16 << 10;

/// Reads blocks by their pointers.
pub struct Reader {
    pub(super) world: World,
    pub(super) tasks: Tasks,
    pub(super) cache: Arc<Cache>,
    pub(super) second: Arc<SecondLevel>,
    pub(super) keys: Arc<Keys>,
    pub(super) copies: Arc<Copies>,
    pub(super) gangs: Arc<GangReader>,
    pub(super) flights: Flights,
    /// A permit for each [`PREFETCH_UNIT_BYTES`].
    pub(super) prefetches: Arc<Semaphore>,
}

impl Reader {
    /// The block if it is in memory; never waits. Holes and embedded blocks are not served here.
    pub fn read_cached(&self, bp: &BlockPointer) -> Option<Bytes> {
        CacheKey::of(bp).and_then(|key| self.cache.get(key))
    }

    /// The block's data: `lsize_bytes` of it, verified and decompressed; zeros for holes.
    ///
    /// # Errors
    /// [`ZioError::Checksum`], [`ZioError::Unreadable`], [`ZioError::Corrupt`],
    /// [`ZioError::BadPointer`]; of encrypted datasets [`ZioError::KeyNotLoaded`],
    /// [`ZioError::Authentication`].
    pub async fn read(&self, bp: &BlockPointer, context: &ReadContext) -> Result<Bytes, ZioError> {
        loop {
            match self.read_shared(bp, context).await {
                Err(error) => self.copies.wait_for_devices(bp, context, error).await?,
                done => return done,
            }
        }
    }

    async fn read_shared(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        let Some(key) = CacheKey::of(bp) else {
            return self.read_without_place(bp);
        };
        if context.cache == CacheUse::Bypass || is_read_locked(bp, context) {
            return self.read_device(bp, context).await;
        }
        loop {
            if let Some(data) = self.cache.get(key) {
                return Ok(data);
            }
            match self.flights.board(key, context.speculative) {
                Ok(landing) => {
                    let result = self.read_device(bp, context).await;
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
        let units = (bp.lsize_bytes().div_ceil(PREFETCH_UNIT_BYTES)).max(1) as u32;
        let Ok(place) = self.prefetches.clone().try_acquire_many_owned(units) else {
            return;
        };
        let (reader, bp) = (self.clone(), *bp);
        let context = ReadContext {
            priority: Priority::Async,
            speculative: true,
            ..*context
        };
        self.tasks.spawn("read ahead", async move {
            // Whoever needs it will hear of errors.
            let _ = reader.read(&bp, &context).await;
            drop(place);
        });
    }

    /// The stored bytes (`psize_bytes` of them): verified, but as compressed or encrypted as they
    /// are. Not through the cache.
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
                validate(bp)?;
                loop {
                    match self.read_stored(bp, context).await {
                        Err(error) => self.copies.wait_for_devices(bp, context, error).await?,
                        done => return done,
                    }
                }
            }
        }
    }

    /// Holes and embedded blocks.
    fn read_without_place(&self, bp: &BlockPointer) -> Result<Bytes, ZioError> {
        validate(bp)?;
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
            Pointer::Embedded(_) => Err(ZioError::Redacted {
                block: format!("a block of {}", bp.object_type()),
            }),
            _ => Ok(zeros(bp.lsize_bytes() as usize)),
        }
    }

    /// As [`Self::read_logical`], in a box: all that reads waits for it, and would else be a future
    /// too deep for the compiler. A device takes far longer than the allocation.
    fn read_device<'a>(
        &'a self,
        bp: &'a BlockPointer,
        context: &'a ReadContext,
    ) -> BoxFuture<'a, Result<Bytes, ZioError>> {
        Box::pin(self.read_logical(bp, context))
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
        validate(bp)?;
        let unlock = self.keys.unlock(bp, context)?;
        let stored = self.read_nearest(bp, context).await?;
        let mut result = self.open(bp, unlock, stored).await;
        let faults = vdev::injector(&self.copies.tree);
        let mut is_damaged = matches!(result, Err(ZioError::Authentication { .. }));
        if faults.is_on()
            && result.is_ok()
            && let Some(error) = opening_fault(faults, bp, context)
        {
            result = Err(error);
            is_damaged = true;
        }
        if is_damaged && !context.speculative {
            self.copies.report_damage(bp, context.bookmark);
        }
        result
    }

    /// The pointers in a gang block's header, without holes. They make up the block's length.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_gang_header(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Vec<BlockPointer>, ZioError> {
        Ok(self.gangs.header(bp, context).await?.members)
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
            return self.gangs.read(bp, context).await;
        }
        let io = io_context(bp, context);
        let psize = bp.psize_bytes() as usize;
        Ok(self.copies.read(bp, psize, &io).await?.0)
    }
}

pub(super) fn validate(bp: &BlockPointer) -> Result<(), ZioError> {
    bp.validate().map_err(|error| ZioError::BadPointer {
        block: name_of(bp),
        what: error.to_string(),
    })
}

/// Zeros, shared as far as possible.
pub(super) fn zeros(length: usize) -> Bytes {
    static ZEROS: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();
    let shared = ZEROS.get_or_init(|| Bytes::from(vec![0; 1 << 20]));
    if length <= shared.len() {
        shared.slice(..length)
    } else {
        Bytes::from(vec![0; length])
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
