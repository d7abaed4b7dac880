//! A cache device as a ring: copies of blocks, written one behind the other, and after so many of
//! them a log block that names them (layouts: `format`'s module of that name).
//!
//! The *hand* is where the next write goes. Before it writes, what lies ahead is *evicted*: first
//! the index takes nothing there for true any more, then the header says so durably, then it is
//! overwritten. So neither a reader nor a start after a crash is led to a block that is gone. After
//! a crash the device holds what the log blocks name that the header leads to: what was written
//! behind the last one is lost, less than a log block's worth. A device that is closed in an
//! orderly way loses nothing: its last log block is filled up with blocks that it names already,
//! since OpenZFS takes full ones only, and a block that is named twice for one that it knows.
//!
//! **Trimming** ([`Trim`]), where it is asked for and the device can: what was evicted is trimmed
//! once the header says durably that it is gone, and before anything is written there; the writer
//! waits for that, as a trim that ends late would take what was written meanwhile. A ring that was
//! never full, and was not trimmed yet, is trimmed from the hand to its end: nothing is there. What
//! a trim leaves behind is undefined, so after a crash the log must not lead there: the header
//! leads to no log block of which anything was evicted. A trim that fails is no error.
//!
//! A write that fails ends the device: who owns the ring takes it out.
//!
//! Source: module/zfs/arc.c (`l2arc_add_vdev`, `l2arc_evict`, `l2arc_write_size`,
//! `l2arc_log_blk_commit`, `l2arc_rebuild`, `l2arc_log_blkptr_valid`), module/zfs/vdev_trim.c
//! (`vdev_trim_l2arc_thread`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use codec::checksum::{compute, label_verifier, seal, verify_embedded};
use codec::compress::{ZstdLevel, compress, decompress};
use device::{Device, DeviceError};
use format::{
    Checksum, Compression, Endian, Guid, L2DeviceHeader, L2Entry, L2LogBlock, L2LogPointer,
    LABEL_BYTES, LABEL_END_BYTES, LABEL_START_BYTES,
};

use crate::index::{Found, Hashed, Index};

const SECTOR_SHIFT: u32 = 9;
/// Devices that end before this keep nothing over a restart (`l2arc_rebuild_blocks_min_l2size`).
const PERSISTENT_BYTES_MIN: u64 = 1 << 30;
/// A log block has an entry for each so many bytes of the device at most: so that the blocks which
/// it names fit there, as large as they may be.
const ENTRY_SHIFT: u32 = 24;
/// So much more than what is written now is evicted, so that not every write writes the header.
const AHEAD_BYTES: u64 = 32 << 20;
/// The same, as a part of a small device.
const AHEAD_PART: u64 = 32;
/// Where what was evicted is trimmed, so much more is evicted at least.
const TRIM_AHEAD_BYTES_MIN: u64 = 64 << 20;
/// What is trimmed by one command, at most: between two of them, reads have their turn.
const TRIM_COMMAND_BYTES: u64 = 32 << 20;
/// A device that was trimmed as a whole (`VDEV_TRIM_COMPLETE`, include/sys/fs/zfs.h). Where OpenZFS
/// trims ahead, it takes no other device's log for true.
const TRIM_COMPLETE: u64 = 4;

/// Where things are on a cache device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    header_bytes: u64,
    start: u64,
    end: u64,
    sector_bytes: u64,
}

impl Geometry {
    /// Of a device of so many bytes, with sectors of `1 << ashift`; `None` if it is too small.
    pub fn of(size_bytes: u64, ashift: u32) -> Option<Self> {
        let sector_bytes = 1u64 << ashift.clamp(SECTOR_SHIFT, 16);
        let header_bytes = sector_bytes.max(L2DeviceHeader::BYTES as u64);
        let end = (size_bytes & !(LABEL_BYTES - 1)).checked_sub(LABEL_END_BYTES)?;
        let start = LABEL_START_BYTES + header_bytes;
        let is_large = end > start + 4 * L2LogBlock::BYTES as u64;
        is_large.then_some(Self {
            header_bytes,
            start,
            end,
            sector_bytes,
        })
    }

    /// Bytes of the ring.
    pub fn length_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Entries in each log block; 0 where nothing is kept over a restart.
    fn log_entries(&self) -> u64 {
        if self.end < PERSISTENT_BYTES_MIN {
            return 0;
        }
        (self.length_bytes() >> ENTRY_SHIFT).min(L2LogBlock::ENTRIES_MAX as u64)
    }

    fn aligned(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.sector_bytes)
    }

    /// The position, in sectors, of a place that is written in this round.
    fn position(&self, round: u64, offset_bytes: u64) -> u64 {
        (round * self.length_bytes() + (offset_bytes - self.start)) >> SECTOR_SHIFT
    }

    /// Where a position is, in bytes.
    fn offset_bytes(&self, position: u64) -> u64 {
        self.start + (position << SECTOR_SHIFT) % self.length_bytes()
    }
}

/// Which device of which pool.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The pool.
    pub pool: Guid,
    /// The device.
    pub device: Guid,
}

/// What readers need of a ring.
pub(crate) struct Ring {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) geometry: Geometry,
    pub(crate) identity: Identity,
    /// Its number in the index.
    pub(crate) number: u8,
    pub(crate) index: Arc<Index>,
}

impl Ring {
    /// What is stored there; `None` if it was overwritten meanwhile.
    pub(crate) async fn read(
        &self,
        key: Hashed,
        found: Found,
        length_bytes: usize,
    ) -> Result<Option<Bytes>, DeviceError> {
        let offset_bytes = self.geometry.offset_bytes(found.position);
        let stored_bytes = (found.sectors as usize) << SECTOR_SHIFT;
        if stored_bytes < length_bytes || offset_bytes + stored_bytes as u64 > self.geometry.end {
            return Ok(None);
        }
        let data = self.device.read(offset_bytes, stored_bytes).await;
        // The truth changes before anything is overwritten.
        if self.index.find(key) != Some(found) {
            return Ok(None);
        }
        Ok(Some(data?.slice(..length_bytes)))
    }
}

/// A block on its way to a device.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    /// What a log block says of it, but for the place on the device.
    pub(crate) entry: L2Entry,
    /// As it is stored in the pool, `entry.stored_bytes` of it.
    pub(crate) stored: Bytes,
}

/// How a device is to be trimmed.
#[derive(Clone, Copy)]
pub(crate) struct Trim<'a> {
    /// How much more is evicted and trimmed than is needed, in hundredths of that, but at least
    /// [`TRIM_AHEAD_BYTES_MIN`]; 0: nothing is trimmed.
    pub(crate) ahead_percent: u32,
    /// The time, in seconds of Unix time.
    pub(crate) now_s: u64,
    /// Asked before each command: what is left out is not trimmed, that is all.
    pub(crate) goes_on: &'a (dyn Fn() -> bool + Sync),
}

impl Trim<'_> {
    /// Nothing is trimmed.
    const NONE: Trim<'static> = Trim {
        ahead_percent: 0,
        now_s: 0,
        goes_on: &|| false,
    };
}

/// What became of trims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Commands that the device carried out.
    pub commands: u64,
    /// Bytes that it was told of with them.
    pub bytes: u64,
    /// Commands that failed.
    pub errors: u64,
}

/// What a rebuild found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Log blocks that were read.
    pub log_blocks: u64,
    /// Blocks that they name and that are there.
    pub blocks: u64,
    /// The same in bytes, as stored.
    pub stored_bytes: u64,
}

/// A log block that is there, for the figures of the header.
#[derive(Debug)]
struct Log {
    /// Where the first block that it names is.
    position: u64,
    stored_bytes: u64,
}

/// Writes a ring; nobody else does.
pub(crate) struct Writer {
    pub(crate) ring: Arc<Ring>,
    hand: u64,
    evicted: u64,
    first_round: bool,
    round: u64,
    open: L2LogBlock,
    /// The position of the first block that the open log block names.
    open_position: u64,
    payload_bytes: u64,
    newest: [L2LogPointer; 2],
    logs: VecDeque<Log>,
    truth: u64,
    /// When the device was trimmed as a whole, and how far (`vdev_trim_state_t`).
    trimmed_s: u64,
    trim_state: u64,
    trimmed: Trimmed,
}

impl Writer {
    /// A ring that holds nothing.
    pub(crate) fn new(ring: Arc<Ring>) -> Self {
        let start = ring.geometry.start;
        let mut writer = Self {
            ring,
            hand: start,
            evicted: start,
            first_round: true,
            round: 1,
            open: L2LogBlock::default(),
            open_position: 0,
            payload_bytes: 0,
            newest: [L2LogPointer::default(); 2],
            logs: VecDeque::new(),
            truth: 0,
            trimmed_s: 0,
            trim_state: 0,
            trimmed: Trimmed::default(),
        };
        writer.set_truth();
        writer
    }

    /// Whether the ring was not filled once yet.
    pub(crate) fn is_first_round(&self) -> bool {
        self.first_round
    }

    /// Bytes of the ring that hold something.
    pub(crate) fn used_bytes(&self) -> u64 {
        let geometry = &self.ring.geometry;
        let now = geometry.position(self.round, self.hand);
        let from = if self.first_round {
            geometry.position(self.round, geometry.start)
        } else {
            self.truth
        };
        now.saturating_sub(from) << SECTOR_SHIFT
    }

    /// What became of trims.
    pub(crate) fn trimmed(&self) -> Trimmed {
        self.trimmed
    }

    /// Evicts what is before the eviction's hand: nothing leads there any more.
    fn set_truth(&mut self) {
        let geometry = &self.ring.geometry;
        let from = if self.first_round {
            0
        } else {
            geometry.position(self.round - 1, self.evicted)
        };
        self.truth = self.truth.max(from);
        self.ring.index.set_truth(self.ring.number, self.truth);
        self.forget_evicted_logs();
    }

    /// Log blocks of which something was evicted lead nowhere: neither may the header lead to them.
    /// Where a round is but a few large blocks long, a place before the newest one's end would seem
    /// to be of this round, and is of the last one.
    fn forget_evicted_logs(&mut self) {
        while self
            .logs
            .front()
            .is_some_and(|log| log.position < self.truth)
        {
            self.logs.pop_front();
        }
        if self.logs.is_empty() {
            self.newest = [L2LogPointer::default(); 2];
        }
        if self.open_position < self.truth {
            self.open.entries.clear();
            self.payload_bytes = 0;
        }
    }

    /// Bytes that these blocks take at most, with log blocks.
    fn needed_bytes(&self, blocks: &[Outgoing]) -> u64 {
        let geometry = &self.ring.geometry;
        let sizes = blocks.iter().map(|block| block.stored.len() as u64);
        let blocks_bytes: u64 = sizes.map(|bytes| geometry.aligned(bytes)).sum();
        let entries = geometry.log_entries();
        let named = (self.open.entries.len() + blocks.len()) as u64;
        let log_blocks = named.checked_div(entries).unwrap_or(0);
        blocks_bytes + log_blocks * geometry.aligned(L2LogBlock::BYTES as u64)
    }

    /// How much may be written in one go, in bytes, log blocks included.
    pub(crate) fn batch_bytes_max(&self) -> u64 {
        self.ring.geometry.length_bytes() / 4
    }

    /// Writes blocks, and names them in the index. Returns the bytes that were written.
    ///
    /// # Errors
    /// Those of the device: it is of no use any more.
    pub(crate) async fn write(
        &mut self,
        blocks: Vec<Outgoing>,
        trim: Trim<'_>,
    ) -> Result<u64, DeviceError> {
        let needed_bytes = self.needed_bytes(&blocks);
        if needed_bytes == 0 || needed_bytes > self.batch_bytes_max() {
            return Ok(0);
        }
        self.make_room(needed_bytes, trim).await?;
        let geometry = self.ring.geometry;
        let first = self.hand;
        let mut parts = Vec::with_capacity(2 * blocks.len());
        let mut named = Vec::with_capacity(blocks.len());
        let mut is_logged = false;
        for block in blocks {
            let bytes = geometry.aligned(block.stored.len() as u64);
            let entry = L2Entry {
                offset_bytes: self.hand,
                ..block.entry
            };
            let found = Found {
                device: self.ring.number,
                position: geometry.position(self.round, self.hand),
                sectors: (block.stored.len() as u64).div_ceil(1 << SECTOR_SHIFT) as u32,
            };
            named.push((Hashed::of(entry.dva, entry.birth), found));
            pad(&mut parts, block.stored, bytes);
            self.hand += bytes;
            if self.name(entry, bytes) {
                parts.push(self.log_block());
                is_logged = true;
            }
        }
        let written_bytes = self.hand - first;
        self.ring.device.write_vectored(first, parts).await?;
        for (key, found) in named {
            // What finds no room in the index is on the device for nobody.
            self.ring.index.insert(key, found, true);
        }
        if is_logged {
            // What the header leads to must be there.
            self.ring.device.flush().await?;
            self.write_header().await?;
        }
        Ok(written_bytes)
    }

    /// Adds a block to the open log block; whether that is full then.
    fn name(&mut self, entry: L2Entry, bytes: u64) -> bool {
        let entries = self.ring.geometry.log_entries();
        if entries == 0 {
            return false;
        }
        if self.open.entries.is_empty() {
            let geometry = &self.ring.geometry;
            self.open_position = geometry.position(self.round, entry.offset_bytes);
        }
        self.open.entries.push(entry);
        self.payload_bytes += bytes;
        self.open.entries.len() as u64 >= entries
    }

    /// Ends the open log block: what goes to the hand.
    fn log_block(&mut self) -> Bytes {
        let geometry = self.ring.geometry;
        let payload_start = self
            .open
            .entries
            .first()
            .map_or(self.hand, |entry| entry.offset_bytes);
        self.open.previous = self.newest[1];
        let plain = std::mem::take(&mut self.open).encode();
        let most = plain.len() - geometry.sector_bytes as usize;
        let compressed = compress(Compression::Lz4, ZstdLevel::DEFAULT, &plain, most);
        let (compression, mut stored) = match compressed {
            Ok(Some(stored)) => (Compression::Lz4, stored),
            _ => (Compression::Off, plain),
        };
        stored.resize(geometry.aligned(stored.len() as u64) as usize, 0);
        let checksum = compute(Checksum::Fletcher4, Endian::Little, &stored, None);
        let payload = (payload_start, std::mem::take(&mut self.payload_bytes));
        let pointer = L2LogPointer::new(
            self.hand,
            payload,
            stored.len() as u64,
            compression,
            checksum.unwrap_or_default(),
        );
        self.logs.push_back(Log {
            position: self.open_position,
            stored_bytes: stored.len() as u64,
        });
        self.newest = [pointer, self.newest[0]];
        self.hand += stored.len() as u64;
        Bytes::from(stored)
    }

    /// Evicts what lies where the next `needed_bytes` go, and trims it.
    async fn make_room(&mut self, needed_bytes: u64, trim: Trim<'_>) -> Result<(), DeviceError> {
        let geometry = self.ring.geometry;
        let is_trimming = trim.ahead_percent > 0 && self.ring.device.supports_discard();
        if is_trimming && self.first_round && self.trim_state != TRIM_COMPLETE {
            self.trim_rest(trim).await?;
        }
        // Two ranges: to the end of the last round, and in this one.
        let mut gone = [0..0, 0..0];
        if self.hand + needed_bytes > geometry.end {
            if !self.first_round {
                gone[0] = self.evicted..geometry.end;
            }
            self.hand = geometry.start;
            self.evicted = geometry.start;
            self.first_round = false;
            self.round += 1;
        }
        if self.first_round || self.hand + needed_bytes <= self.evicted {
            return Ok(());
        }
        let from = self.evicted;
        let mut bytes = needed_bytes + AHEAD_BYTES.min(geometry.length_bytes() / AHEAD_PART);
        if is_trimming {
            let ahead_bytes = u128::from(bytes) * u128::from(trim.ahead_percent) / 100;
            let ahead_bytes = u64::try_from(ahead_bytes).unwrap_or(u64::MAX);
            let most_bytes = needed_bytes.max(geometry.length_bytes() / 4);
            bytes = bytes.saturating_add(ahead_bytes.max(TRIM_AHEAD_BYTES_MIN));
            bytes = bytes.min(most_bytes);
        }
        self.evicted = (self.hand + bytes).min(geometry.end);
        gone[1] = from..self.evicted;
        self.set_truth();
        self.write_header().await?;
        self.ring.device.flush().await?;
        if is_trimming {
            for range in gone {
                self.trim(range, trim).await;
            }
        }
        Ok(())
    }

    /// Trims a ring that was never full from the hand on, where it holds nothing. The header leads
    /// to nothing there, whatever header there was before.
    async fn trim_rest(&mut self, trim: Trim<'_>) -> Result<(), DeviceError> {
        self.write_header().await?;
        self.ring.device.flush().await?;
        if !self.trim(self.hand..self.ring.geometry.end, trim).await {
            return Ok(());
        }
        // It is not tried again if it failed: so does OpenZFS.
        self.trim_state = TRIM_COMPLETE;
        self.trimmed_s = trim.now_s;
        self.write_header().await
    }

    /// Trims what nothing leads to; whether it was told to go on to the end. Whoever stops waiting
    /// must not write there: the device would still be at work.
    async fn trim(&mut self, range: Range<u64>, trim: Trim<'_>) -> bool {
        let mut at = range.start;
        while at < range.end {
            if !(trim.goes_on)() {
                return false;
            }
            let bytes = (range.end - at).min(TRIM_COMMAND_BYTES);
            match self.ring.device.discard(at, bytes).await {
                Ok(()) => {
                    self.trimmed.commands += 1;
                    self.trimmed.bytes += bytes;
                }
                Err(error) => {
                    tracing::debug!(%error, "a trim of a cache device failed");
                    self.trimmed.errors += 1;
                }
            }
            at += bytes;
        }
        true
    }

    /// Writes the header. What it leads to must be durable; it is itself with the next flush.
    pub(crate) async fn write_header(&self) -> Result<(), DeviceError> {
        let geometry = &self.ring.geometry;
        let header = L2DeviceHeader {
            version: L2DeviceHeader::VERSION,
            pool: self.ring.identity.pool,
            device: self.ring.identity.device,
            log_entries: geometry.log_entries(),
            evicted_bytes: self.evicted,
            first_round: self.first_round,
            start_bytes: geometry.start,
            end_bytes: geometry.end,
            newest: self.newest,
            log_bytes: self.logs.iter().map(|log| log.stored_bytes).sum(),
            log_blocks: self.logs.len() as u64,
            trimmed_s: self.trimmed_s,
            trim_state: self.trim_state,
        };
        let mut bytes = header.encode(geometry.header_bytes as usize);
        let verifier = label_verifier(LABEL_START_BYTES);
        // A header has room for its checksum: 512 bytes at least.
        let sealed = seal(Checksum::Label, Endian::Little, &verifier, &mut bytes);
        debug_assert!(sealed.is_ok(), "{sealed:?}");
        let device = &self.ring.device;
        device.write(LABEL_START_BYTES, Bytes::from(bytes)).await
    }

    /// Ends the open log block, filled up with what it names already, so that nothing is lost.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) async fn close(&mut self) -> Result<(), DeviceError> {
        let entries = self.ring.geometry.log_entries() as usize;
        let log_bytes = self.ring.geometry.aligned(L2LogBlock::BYTES as u64);
        let is_open = !self.open.entries.is_empty();
        if is_open && self.hand + log_bytes <= self.ring.geometry.end {
            self.make_room(log_bytes, Trim::NONE).await?;
        }
        let named = self.open.entries.clone();
        if !named.is_empty() && self.hand + log_bytes <= self.ring.geometry.end {
            let missing = entries.saturating_sub(named.len());
            self.open.entries.extend(named.iter().cycle().take(missing));
            let offset_bytes = self.hand;
            let log = self.log_block();
            self.ring.device.write(offset_bytes, log).await?;
        }
        self.ring.device.flush().await?;
        self.write_header().await?;
        self.ring.device.flush().await
    }
}

/// Data and the zeros behind it.
fn pad(parts: &mut Vec<Bytes>, data: Bytes, bytes: u64) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let missing = bytes as usize - data.len();
    parts.push(data);
    if missing > 0 {
        parts.push(Bytes::from_static(&ZEROS[..missing]));
    }
}

/// Reads a device's header; `None` where there is none of this pool and this device.
async fn read_header(ring: &Ring) -> Result<Option<L2DeviceHeader>, DeviceError> {
    let geometry = &ring.geometry;
    let length = geometry.header_bytes as usize;
    let bytes = ring.device.read(LABEL_START_BYTES, length).await?;
    let verifier = label_verifier(LABEL_START_BYTES);
    if verify_embedded(Checksum::Label, &verifier, &bytes).is_err() {
        return Ok(None);
    }
    let header = L2DeviceHeader::decode(&bytes).ok();
    let within = geometry.start..=geometry.end;
    Ok(header.filter(|header| {
        header.version == L2DeviceHeader::VERSION
            && header.pool == ring.identity.pool
            && header.device == ring.identity.device
            && header.log_entries == geometry.log_entries()
            && header.log_entries > 0
            && header.end_bytes == geometry.end
            && within.contains(&header.evicted_bytes)
    }))
}

/// Finds what a device holds from before, and names it in the index, the newest first. The device
/// is written only afterwards, from where the last log block ends.
///
/// # Errors
/// Those of the device while it reads its header; after that it has what could be read.
pub(crate) async fn rebuild(
    ring: Arc<Ring>,
    mut progress: impl FnMut(Rebuilt),
) -> Result<(Writer, Rebuilt), DeviceError> {
    let mut done = Rebuilt::default();
    let mut writer = Writer::new(ring.clone());
    let Some(header) = read_header(&ring).await? else {
        return Ok((writer, done));
    };
    writer.trimmed_s = header.trimmed_s;
    writer.trim_state = header.trim_state;
    let geometry = ring.geometry;
    let newest = header.newest[0];
    let hand = newest.offset_bytes.saturating_add(newest.stored_bytes());
    if newest.is_none() || !(geometry.start..=geometry.end).contains(&hand) {
        if !header.first_round {
            // What is there is of no use any more.
            writer.trim_state = 0;
        }
        return Ok((writer, done));
    }
    writer.first_round = header.first_round;
    writer.round = 2;
    writer.hand = hand;
    writer.evicted = header.evicted_bytes.max(geometry.start);
    if !header.first_round && writer.evicted < hand {
        // The hand had begun the next round, and no log block of that is there yet.
        writer.round = 3;
        writer.hand = geometry.start;
    }
    writer.set_truth();
    writer.newest = header.newest;
    let truth = writer.truth;
    // The last round that log blocks tell of.
    let written = |offset_bytes: u64| {
        let round = if offset_bytes < hand { 2 } else { 1 };
        let is_there = !header.first_round || offset_bytes < hand;
        let position = geometry.position(round, offset_bytes);
        Some(position).filter(|position| is_there && *position >= truth)
    };
    let mut pointers = header.newest;
    let mut last = u64::MAX;
    while let Some(position) = place_of(&pointers[0], &geometry).and_then(written) {
        // Each is before the one that led to it: else the chain came round. Those that were evicted
        // are not counted any more.
        if position >= last || done.log_blocks >= header.log_blocks {
            break;
        }
        last = position;
        let Some(block) = read_log_block(&ring, &pointers[0]).await else {
            break;
        };
        for entry in block.entries.iter().rev() {
            let fits = (geometry.start..geometry.end).contains(&entry.offset_bytes)
                && entry.stored_bytes <= geometry.end - entry.offset_bytes;
            // Whatever stands there: places outside the ring have no position.
            let position = match fits {
                true => written(entry.offset_bytes),
                false => None,
            };
            let Some(position) = position else {
                continue;
            };
            let found = Found {
                device: ring.number,
                position,
                sectors: (entry.stored_bytes >> SECTOR_SHIFT) as u32,
            };
            let key = Hashed::of(entry.dva, entry.birth);
            // A log block that was filled up names some twice.
            if ring.index.find(key) != Some(found) && ring.index.insert(key, found, false) {
                done.blocks += 1;
                done.stored_bytes += entry.stored_bytes;
            }
        }
        done.log_blocks += 1;
        writer.logs.push_front(Log {
            position,
            stored_bytes: pointers[0].stored_bytes(),
        });
        progress(done);
        pointers = [pointers[1], block.previous];
    }
    Ok((writer, done))
}

/// Where the first block is that a log block names, if the pointer can be true.
fn place_of(pointer: &L2LogPointer, geometry: &Geometry) -> Option<u64> {
    let end = pointer.offset_bytes.checked_add(pointer.stored_bytes())?;
    let is_possible = !pointer.is_none()
        && pointer.stored_bytes() <= L2LogBlock::BYTES as u64
        // It may be behind the log block: at the end of the round before.
        && (geometry.start..geometry.end).contains(&pointer.payload_offset_bytes)
        && pointer.offset_bytes >= geometry.start
        && end <= geometry.end;
    is_possible.then_some(pointer.payload_offset_bytes)
}

async fn read_log_block(ring: &Ring, pointer: &L2LogPointer) -> Option<L2LogBlock> {
    let length = pointer.stored_bytes() as usize;
    let stored = ring.device.read(pointer.offset_bytes, length).await.ok()?;
    // Its own byte order: OpenZFS computes it in that of the machine.
    let sums = [Endian::Little, Endian::Big]
        .map(|endian| compute(Checksum::Fletcher4, endian, &stored, None).unwrap_or_default());
    if !sums.contains(&pointer.checksum) {
        return None;
    }
    match pointer.compression() {
        Compression::Off => L2LogBlock::decode(&stored).ok(),
        compression @ Compression::Lz4 => {
            let plain = decompress(compression, &stored, L2LogBlock::BYTES).ok()?;
            L2LogBlock::decode(&plain).ok()
        }
        _ => None,
    }
}
