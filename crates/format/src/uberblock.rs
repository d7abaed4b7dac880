//! Uberblocks (`struct uberblock`, include/sys/uberblock_impl.h): the root of a pool at one txg.
//!
//! # Layout (byte order of the writer, which the magic tells)
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 8 | magic |
//! | 8 | 8 | version of the pool; 5000 has feature flags |
//! | 16 | 8 | txg |
//! | 24 | 8 | sum of all vdevs' guids |
//! | 32 | 8 | time of the sync, seconds since 1970 |
//! | 40 | 128 | pointer to the MOS's object set |
//! | 168 | 8 | version of the software that wrote it |
//! | 176 | 8 | multihost magic |
//! | 184 | 8 | multihost delay in nanoseconds; zero is off |
//! | 192 | 8 | multihost: bits 0 to 2 say what is valid, 8..32 interval in ms, 32..48 sequence, 48..64 fail intervals |
//! | 200 | 8 | txg of the checkpoint, when this is one |
//! | 208 | 8 | Raid-Z expansion: bits 0..55 offset in sectors, 55..64 state of the scratch area |
//! | slot − 40 | 40 | [`crate::Eck`] |
//!
//! A crash leaves the ring as it was but for one slot, whose checksum then fails: the newest slot
//! whose checksum holds is the pool's state.

use crate::blkptr::{BlockPointer, SECTOR_SHIFT, read_pointer};
use crate::bytes::{Endian, Put, Reader, bits, exact, with_bits};
use crate::error::{Result, bad, does_not_fit};
use crate::ids::{Guid, Txg};
use crate::label::Eck;

const UBERBLOCK: &str = "uberblock_t";

/// State of the scratch area while a Raid-Z vdev is expanded (`raidz_reflow_scratch_state_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReflowScratchState {
    /// Not in use.
    NotInUse,
    /// It holds data that must be copied back.
    Valid,
    /// Its data was copied back and synced.
    InvalidSynced,
    /// The same, at import.
    InvalidSyncedOnImport,
    /// Its data was copied back, and the reflow goes on.
    InvalidSyncedReflow,
    /// A code that this release does not know.
    Unknown(u16),
}

impl ReflowScratchState {
    /// From the stored code (nine bits).
    pub const fn from_code(code: u16) -> Self {
        match code {
            0 => Self::NotInUse,
            1 => Self::Valid,
            2 => Self::InvalidSynced,
            3 => Self::InvalidSyncedOnImport,
            4 => Self::InvalidSyncedReflow,
            other => Self::Unknown(other),
        }
    }

    /// The stored code.
    pub const fn code(self) -> u16 {
        match self {
            Self::NotInUse => 0,
            Self::Valid => 1,
            Self::InvalidSynced => 2,
            Self::InvalidSyncedOnImport => 3,
            Self::InvalidSyncedReflow => 4,
            Self::Unknown(code) => code,
        }
    }
}

/// What multihost says in an uberblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Multihost {
    /// Nanoseconds since the last heartbeat; zero when multihost is off.
    pub delay_ns: u64,
    /// Interval between heartbeats in milliseconds.
    pub interval_ms: Option<u32>,
    /// Number of the heartbeat within its second.
    pub sequence: Option<u16>,
    /// Intervals without a heartbeat after which the pool suspends.
    pub fail_intervals: Option<u16>,
}

impl Multihost {
    const MAGIC: u64 = 0xa11c_ea11;

    fn decode(delay_ns: u64, config: u64) -> Self {
        let part = |valid: u64, low: u32, count: u32| {
            (config & valid != 0).then(|| bits(config, low, count))
        };
        Self {
            delay_ns,
            interval_ms: part(1, 8, 24).map(|value| value as u32),
            sequence: part(2, 32, 16).map(|value| value as u16),
            fail_intervals: part(4, 48, 16).map(|value| value as u16),
        }
    }

    fn config(&self) -> u64 {
        let mut config = 0;
        if let Some(interval) = self.interval_ms {
            config = with_bits(config, 8, 24, interval.into()) | 1;
        }
        if let Some(sequence) = self.sequence {
            config = with_bits(config, 32, 16, sequence.into()) | 2;
        }
        if let Some(intervals) = self.fail_intervals {
            config = with_bits(config, 48, 16, intervals.into()) | 4;
        }
        config
    }
}

/// The root of a pool at one txg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uberblock {
    /// Byte order of the one who wrote it: also that of the MOS's head.
    pub endian: Endian,
    /// Version of the pool's format; [`Self::VERSION_FEATURES`] has feature flags.
    pub version: u64,
    /// Txg that it is the result of.
    pub txg: Txg,
    /// Sum of all vdevs' guids, wrapping.
    pub guid_sum: Guid,
    /// When it was written, in seconds since 1970.
    pub timestamp_seconds: u64,
    /// The MOS.
    pub root: BlockPointer,
    /// Highest version that the software knew that wrote it.
    pub software_version: u64,
    /// What multihost says; `None` in uberblocks of old releases.
    pub multihost: Option<Multihost>,
    /// On a checkpoint, the txg that was checkpointed; else zero.
    pub checkpoint_txg: Txg,
    /// How far a Raid-Z expansion has come, in bytes.
    pub reflow_offset_bytes: u64,
    /// State of the expansion's scratch area.
    pub reflow_state: ReflowScratchState,
}

impl Uberblock {
    /// Size in bytes, without the rest of its slot.
    pub const BYTES: usize = 216;
    /// The magic (`UBERBLOCK_MAGIC`).
    pub const MAGIC: u64 = 0x00ba_b10c;
    /// The version of all pools with feature flags (`SPA_VERSION_FEATURES`).
    pub const VERSION_FEATURES: u64 = 5000;
    /// The last version before feature flags (`SPA_VERSION_BEFORE_FEATURES`).
    pub const VERSION_BEFORE_FEATURES: u64 = 28;

    /// Decodes an uberblock; the magic tells the byte order. The checksum of its slot must be
    /// verified by the caller.
    ///
    /// # Errors
    /// [`crate::FormatError`] when the magic is not there, the pool is older than version 1 or
    /// the bytes are too few.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let magic = Reader::new(UBERBLOCK, bytes, Endian::Little).u64()?;
        let endian = match magic {
            Self::MAGIC => Endian::Little,
            other if other.swap_bytes() == Self::MAGIC => Endian::Big,
            other => return Err(bad(UBERBLOCK, "ub_magic", other, "0xbab10c")),
        };
        let mut r = Reader::new(UBERBLOCK, bytes, endian);
        r.skip(8)?;
        let [version, txg, guid_sum, timestamp_seconds] = r.words()?;
        let root = read_pointer(&mut r, endian)?;
        let [
            software_version,
            mmp_magic,
            delay,
            config,
            checkpoint,
            reflow,
        ] = r.words()?;
        let sector = bits(reflow, 0, 55);
        Ok(Self {
            endian,
            version,
            txg: txg.into(),
            guid_sum: guid_sum.into(),
            timestamp_seconds,
            root,
            software_version,
            multihost: (mmp_magic == Multihost::MAGIC).then(|| Multihost::decode(delay, config)),
            checkpoint_txg: checkpoint.into(),
            reflow_offset_bytes: sector << SECTOR_SHIFT,
            reflow_state: ReflowScratchState::from_code(bits(reflow, 55, 9) as u16),
        })
    }

    /// The 216 bytes, little-endian.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_words(&[
            Self::MAGIC,
            self.version,
            self.txg.get(),
            self.guid_sum.get(),
            self.timestamp_seconds,
        ]);
        out.extend_from_slice(&self.root.encode());
        out.put_u64(self.software_version);
        match &self.multihost {
            Some(mmp) => out.put_words(&[Multihost::MAGIC, mmp.delay_ns, mmp.config()]),
            None => out.put_words(&[0; 3]),
        }
        out.put_u64(self.checkpoint_txg.get());
        let state = u64::from(self.reflow_state.code());
        out.put_u64(with_bits(
            self.reflow_offset_bytes >> SECTOR_SHIFT,
            55,
            9,
            state,
        ));
        exact(&out)
    }

    /// A whole slot of the ring, with magic and zero checksum in the tail.
    ///
    /// # Errors
    /// [`crate::FormatError::DoesNotFit`] when the slot is not of 1 to 8 KiB.
    pub fn encode_slot(&self, slot_bytes: usize) -> Result<Vec<u8>> {
        if !(1 << 10..=8 << 10).contains(&slot_bytes) {
            let found = slot_bytes as u64;
            return Err(does_not_fit(UBERBLOCK, "slot", found, "1 to 8 KiB"));
        }
        let mut out = self.encode().to_vec();
        out.put_zeros(slot_bytes - out.len());
        Eck::new([0; 4]).put_tail(&mut out)?;
        Ok(out)
    }

    /// Which of two uberblocks is the pool's state (`vdev_uberblock_compare`,
    /// module/zfs/vdev_label.c): the higher txg, then time, then multihost sequence.
    pub fn recency(&self) -> (Txg, u64, u16) {
        let sequence = self.multihost.and_then(|mmp| mmp.sequence).unwrap_or(0);
        (self.txg, self.timestamp_seconds, sequence)
    }
}
