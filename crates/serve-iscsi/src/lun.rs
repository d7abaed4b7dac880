//! The border to the storage below: what a logical unit must be able to do, and how it fails.
//!
//! A [`LogicalUnit`] is a flat run of bytes with an identity. It knows nothing of SCSI: block
//! addresses, sense data, reservations and unit attentions live in `scsi`, and one
//! exhaustive match there turns a [`LunError`] into sense data.

use access::Lease;
use bytes::Bytes;
use futures::future::BoxFuture;
use volume::Volume;

/// Who a logical unit says it is (INQUIRY standard data, VPD pages 80h and 83h).
///
/// All of it must stay the same for the life of the volume, over renames and restarts:
/// multipath software and `/dev/disk/by-id` names hang on `serial` and `naa`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunIdentity {
    /// T10 vendor identification, at most 8 ASCII characters (longer is cut).
    pub vendor: String,
    /// Product identification, at most 16 ASCII characters (longer is cut).
    pub product: String,
    /// Product revision level, at most 4 ASCII characters (longer is cut).
    pub revision: String,
    /// Unit serial number, at most 64 ASCII characters (longer is cut).
    pub serial: String,
    /// NAA IEEE Registered Extended designator (16 bytes, first nibble is set to 6h when sent).
    /// Any 16 bytes that are unique in the world and stable will do.
    pub naa: [u8; 16],
}

impl LunIdentity {
    /// Identity with Millpond's vendor and product strings, for a volume with this serial number
    /// and these 16 unique bytes.
    pub fn new(serial: impl Into<String>, naa: [u8; 16]) -> Self {
        Self {
            vendor: "MILLPOND".into(),
            product: "VOLUME".into(),
            revision: "0001".into(),
            serial: serial.into(),
            naa,
        }
    }
}

/// A run of bytes that are all backed by storage, or all not (GET LBA STATUS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// How long the run is from the offset that was asked about, in bytes; never 0.
    pub length_bytes: u64,
    /// Whether the run is backed by storage; a run that is not reads as zeroes.
    pub is_mapped: bool,
}

/// Why a logical unit could not do what it was asked.
///
/// The initiator sees sense data only (see `scsi::error`); the text is for
/// the log of the server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LunError {
    /// The range reaches beyond the end of the unit.
    #[error(
        "range of {length_bytes} bytes at {offset_bytes} is beyond the end of the volume; check \
         that the initiator saw the volume's present size"
    )]
    OutOfRange {
        /// Start of the range in bytes.
        offset_bytes: u64,
        /// Length of the range in bytes.
        length_bytes: u64,
    },
    /// The unit does not take writes.
    #[error("the volume is read-only; export it writable if writes are meant")]
    ReadOnly,
    /// There is no room for the write.
    #[error(
        "no space left for a write of {length_bytes} bytes at {offset_bytes}; free space in the \
         pool, or grow it"
    )]
    NoSpace {
        /// Start of the write in bytes.
        offset_bytes: u64,
        /// Length of the write in bytes.
        length_bytes: u64,
    },
    /// Stored data is damaged beyond repair.
    #[error(
        "data at {offset_bytes} is damaged beyond repair; see `zpool status -v` for the pool's \
         errors"
    )]
    UnrecoveredRead {
        /// First byte that could not be read, in bytes from the start of the unit.
        offset_bytes: u64,
    },
    /// A write did not reach stable storage.
    #[error("a write at {offset_bytes} failed; see `zpool status` for the device that failed")]
    WriteFailed {
        /// First byte that could not be written, in bytes from the start of the unit.
        offset_bytes: u64,
    },
    /// The pool is suspended: nothing can be read or written until it is cleared.
    #[error("the pool is suspended; bring its devices back and run `zpool clear`")]
    Suspended,
    /// The unit is not ready yet, and will be without anybody's help (importing, rolling back).
    #[error("the volume is becoming ready; try again in a moment")]
    BecomingReady,
    /// The volume is gone (destroyed, exported).
    #[error("the volume is gone; remove its target from the initiator")]
    Gone,
    /// The unit is short of a resource now (memory, queue places).
    #[error("the volume is busy; the initiator will try again")]
    Busy,
    /// The unit cannot do this at all.
    #[error("the volume does not support {operation}")]
    Unsupported {
        /// What was asked for.
        operation: &'static str,
    },
    /// A fault of our own.
    #[error("internal failure: {reason}; please report it with the server's log")]
    Internal {
        /// What went wrong.
        reason: String,
    },
}

/// Where a unit's persistent reservations outlive the process (APTPL).
///
/// What is kept is one line of printable ASCII, of which only this crate knows the meaning; it
/// belongs to the volume and moves with it.
pub trait ReservationStore: Send + Sync + 'static {
    /// What was kept last, if anything is.
    fn load(&self) -> Option<String>;

    /// Keeps this from now on, or nothing; it is on stable storage when this is done. One call at a
    /// time.
    fn store(&self, text: Option<String>) -> BoxFuture<'_, Result<(), LunError>>;
}

/// A logical unit's storage; a volume is one ([`crate::VolumeUnit`]).
///
/// Offsets and lengths given to it are multiples of [`block_bytes`](Self::block_bytes) and lie
/// inside [`capacity_bytes`](Self::capacity_bytes) as it was a moment before. Many calls are in
/// flight at once and may finish in any order; two calls that overlap were sent by an initiator
/// that did not wait for the first, or by two initiators, and may be done in either order.
///
/// Dropping a future is allowed at any time (a command aborted, a connection lost): a write
/// dropped half-way may have happened or not, byte ranges of other writes must be unharmed.
pub trait LogicalUnit: Send + Sync + 'static {
    /// Size in bytes, a multiple of [`block_bytes`](Self::block_bytes). May change at run time:
    /// initiators get a unit attention with the next command.
    fn capacity_bytes(&self) -> u64;

    /// Logical block size: 512 or 4096 bytes. Never changes.
    fn block_bytes(&self) -> u32;

    /// Physical block size in bytes: a power of two, at least
    /// [`block_bytes`](Self::block_bytes); writes of this size need no read-modify-write.
    fn physical_block_bytes(&self) -> u32 {
        self.block_bytes()
    }

    /// Smallest range that [`unmap`](Self::unmap) can give back to the pool, in bytes (a volume's
    /// `volblocksize`).
    fn unmap_granularity_bytes(&self) -> u32 {
        self.physical_block_bytes()
    }

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Who the unit is.
    fn identity(&self) -> LunIdentity;

    /// The fast path of a read: the data if all of it is in memory, found without waiting,
    /// without taking a lock that may be held over I/O; `None` sends the command to
    /// [`read`](Self::read). What is returned has exactly `length_bytes` in all.
    fn try_read(&self, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        let _ = (offset_bytes, length_bytes);
        None
    }

    /// Reads a range: a scatter list, in order, of exactly `length_bytes` in all. The pieces go
    /// to the socket as they are, so pieces of the cache are sent without a copy.
    fn read(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, LunError>>;

    /// Writes a range; when it is done reads see it. With `durable` it must be on stable storage
    /// first (FUA).
    fn write(
        &self,
        offset_bytes: u64,
        data: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>>;

    /// Makes all writes that are done durable.
    fn flush(&self) -> BoxFuture<'_, Result<(), LunError>>;

    /// Gives a range back; all of it reads as zeroes afterwards, also its unaligned ends.
    fn unmap(&self, offset_bytes: u64, length_bytes: u64) -> BoxFuture<'_, Result<(), LunError>>;

    /// Makes a range read as zeroes, allocated or not as the unit pleases.
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), LunError>>;

    /// Starts to bring a range into the cache; does not wait for it. Failure shows when the range
    /// is read.
    fn prefetch(&self, offset_bytes: u64, length_bytes: u64) {
        let _ = (offset_bytes, length_bytes);
    }

    /// Copies a range of another unit into this one without reading it, as far from its start as
    /// that goes at once; answers how many bytes were copied so, 0 where it cannot be done. The two
    /// ranges do not overlap.
    fn clone_range<'a>(
        &'a self,
        source: &'a dyn LogicalUnit,
        source_bytes: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'a, Result<u64, LunError>> {
        let _ = (source, source_bytes, offset_bytes, length_bytes);
        Box::pin(std::future::ready(Ok(0)))
    }

    /// The volume that the unit is, for [`clone_range`](Self::clone_range).
    fn volume(&self) -> Option<&Lease<Volume>> {
        None
    }

    /// Where persistent reservations outlive the process, if anywhere.
    fn reservation_store(&self) -> Option<&dyn ReservationStore> {
        None
    }

    /// The run of equally mapped bytes at `offset_bytes`, no longer than `length_bytes`. The
    /// default says that all is mapped.
    fn extent_at(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'_, Result<Extent, LunError>> {
        let _ = offset_bytes;
        Box::pin(std::future::ready(Ok(Extent {
            length_bytes,
            is_mapped: true,
        })))
    }
}
