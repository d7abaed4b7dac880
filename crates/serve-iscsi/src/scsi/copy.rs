//! Copies within and between logical units, on this side (SPC-5 sections 5.18, 6.6, 6.7, 6.21 to
//! 6.28): EXTENDED COPY with list identifiers of one byte (LID1) and of four (LID4), and RECEIVE
//! COPY RESULTS.
//!
//! Units are named by their designators of page 83h, and copied are ranges of blocks (segment
//! descriptor 02h). An initiator may copy between all units that it could log in to with what it
//! has proven, and whose reservations let it. Blocks of volumes of one pool are cloned, others are
//! read and written. A command is answered when all is copied, also where it asks for an answer
//! before that (IMMED).
//!
//! Before each piece a copy looks whether it may go on: reservations may have changed, the unit
//! that it writes may have been reset, its command may have been aborted. It looks and writes
//! under the `atomic` lock of the unit that it writes, so whoever took a right away and has had
//! that lock for writing since ([`Unit::fence`]) knows that no piece is written any more.

use super::execute::Stop;
use super::inquiry::{self, Shape};
use super::sense::Sense;
use super::state::NexusId;
use super::unit::Unit;
use super::{CHUNK_BYTES_MAX, Outcome};
use crate::lun::LunError;
use bytes::BytesMut;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most units of one command (CSCD descriptors).
pub(crate) const UNITS_MAX: u16 = 16;
/// Most segments of one command.
pub(crate) const SEGMENTS_MAX: u16 = 64;
/// Most bytes of one segment, which may be cloned at once: nobody who aborts the command waits
/// long.
pub(crate) const SEGMENT_BYTES_MAX: u32 = 64 << 20;
/// Longest list of descriptors, in bytes.
pub(crate) const DESCRIPTORS_BYTES_MAX: u32 =
    UNITS_MAX as u32 * UNIT_BYTES as u32 + SEGMENTS_MAX as u32 * SEGMENT_BYTES as u32;
/// Longest parameter list that is taken, in bytes.
pub(super) const LIST_BYTES_MAX: u32 = 64 << 10;
/// Copies of a unit whose results are kept.
const RESULTS_MAX: usize = 64;

/// Descriptor types: a unit by its designator, blocks to blocks.
pub(crate) const DESCRIPTOR_TYPES: [u8; 2] = [SEGMENT_BLOCKS, UNIT_BY_DESIGNATOR];
const UNIT_BY_DESIGNATOR: u8 = 0xe4;
const UNIT_BYTES: usize = 32;
const SEGMENT_BLOCKS: u8 = 0x02;
const SEGMENT_BYTES: usize = 28;
/// Names the unit that the command was sent to, without a descriptor.
pub(crate) const THIS_UNIT: u16 = 0xffff;

/// Finds a unit that the initiator may copy from or to.
pub(crate) type FindUnit<'a> = dyn Fn(&Designator) -> Option<Arc<Unit>> + Send + Sync + 'a;

/// Tells a copy that its command has been aborted.
#[derive(Debug, Clone, Default)]
pub(crate) struct CopyStop(Arc<AtomicBool>);

impl CopyStop {
    pub(crate) fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A unit's name in page 83h: type and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Designator {
    kind: u8,
    value: Vec<u8>,
}

impl Designator {
    /// Whether it is a unit's.
    pub(super) fn names(&self, shape: &Shape) -> bool {
        match self.kind {
            inquiry::DESIGNATOR_NAA => self.value == inquiry::naa(shape),
            inquiry::DESIGNATOR_T10 => self.value == inquiry::t10(shape),
            _ => false,
        }
    }
}

/// A unit as a list names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedUnit {
    designator: Designator,
    /// 0 where it is not said.
    block_bytes: u32,
}

/// Blocks to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    source: u16,
    destination: u16,
    /// In blocks of the source, or of the destination.
    count: u16,
    counts_destination: bool,
    source_lba: u64,
    destination_lba: u64,
}

/// A parameter list of EXTENDED COPY.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    list_id: u32,
    keeps_result: bool,
    units: Vec<NamedUnit>,
    segments: Vec<Segment>,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

impl List {
    /// Reads a list that is not empty.
    pub(super) fn decode(is_long: bool, list: &[u8]) -> Result<Self, Sense> {
        const LENGTH: Sense = Sense::PARAMETER_LIST_LENGTH_ERROR;
        const BAD: Sense = Sense::INVALID_FIELD_IN_PARAMETER_LIST;
        const NO_LIST_ID: u8 = 3;
        let header_bytes = if is_long { 48 } else { 16 };
        let (header, rest) = list.split_at_checked(header_bytes).ok_or(LENGTH)?;
        let usage = (header[1] >> 3) & 3;
        let (list_id, units_bytes, segments_bytes, inline_bytes) = if is_long {
            if header[0] != 1 || be16(header, 2) != 0x20 || header[16] != 0xff {
                return Err(BAD);
            }
            let of_segments = u32::from(be16(header, 44));
            (
                be32(header, 20),
                be16(header, 42),
                of_segments,
                be16(header, 46).into(),
            )
        } else {
            (
                header[0].into(),
                be16(header, 2),
                be32(header, 8),
                be32(header, 12),
            )
        };
        if usage == NO_LIST_ID && list_id != 0 {
            return Err(BAD);
        }
        let descriptors_bytes = u64::from(units_bytes) + u64::from(segments_bytes);
        if descriptors_bytes > DESCRIPTORS_BYTES_MAX.into()
            || descriptors_bytes + u64::from(inline_bytes) > rest.len() as u64
        {
            return Err(LENGTH);
        }
        if inline_bytes > 0 {
            return Err(Sense::INLINE_DATA_LENGTH_EXCEEDED);
        }
        let (of_units, rest) = rest.split_at(usize::from(units_bytes));
        // No more than the list has.
        let of_segments = &rest[..segments_bytes as usize];
        if !of_units.len().is_multiple_of(UNIT_BYTES) {
            return Err(LENGTH);
        }
        if of_units.len() / UNIT_BYTES > UNITS_MAX.into() {
            return Err(Sense::TOO_MANY_TARGET_DESCRIPTORS);
        }
        let units = of_units.chunks_exact(UNIT_BYTES).map(NamedUnit::decode);
        let units = units.collect::<Result<_, _>>()?;
        let mut segments = Vec::new();
        let mut rest = of_segments;
        while !rest.is_empty() {
            if rest[0] != SEGMENT_BLOCKS {
                return Err(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR);
            }
            let (segment, after) = rest.split_at_checked(SEGMENT_BYTES).ok_or(LENGTH)?;
            if usize::from(be16(segment, 2)) != SEGMENT_BYTES - 4 {
                return Err(BAD);
            }
            if segments.len() == usize::from(SEGMENTS_MAX) {
                return Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS);
            }
            segments.push(Segment {
                source: be16(segment, 4),
                destination: be16(segment, 6),
                count: be16(segment, 10),
                counts_destination: segment[1] & 0x02 != 0,
                source_lba: be64(segment, 12),
                destination_lba: be64(segment, 20),
            });
            rest = after;
        }
        Ok(Self {
            list_id,
            keeps_result: usage != NO_LIST_ID,
            units,
            segments,
        })
    }
}

impl NamedUnit {
    fn decode(descriptor: &[u8]) -> Result<Self, Sense> {
        if descriptor[0] != UNIT_BY_DESIGNATOR {
            return Err(Sense::UNSUPPORTED_TARGET_DESCRIPTOR);
        }
        let length = usize::from(descriptor[7]);
        // A disk's, associated with the unit itself, in the 20 bytes that there are.
        if descriptor[1] & 0x1f != 0 || descriptor[5] & 0x30 != 0 || length > 20 {
            return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
        }
        Ok(Self {
            designator: Designator {
                kind: descriptor[5] & 0x0f,
                value: descriptor[8..8 + length].to_vec(),
            },
            block_bytes: be32(descriptor, 28) & 0xff_ffff,
        })
    }
}

/// How a copy stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Runs,
    Ended,
    Failed(Sense),
}

/// A copy whose results may be asked for.
#[derive(Debug)]
struct CopyResult {
    nexus: NexusId,
    is_long: bool,
    list_id: u32,
    status: Status,
    segments: u16,
    bytes: u64,
}

/// Copies of a unit, oldest first.
#[derive(Debug, Default)]
pub(super) struct CopyResults {
    results: VecDeque<CopyResult>,
}

impl CopyResults {
    fn find(&mut self, nexus: NexusId, is_long: bool, list_id: u32) -> Option<&mut CopyResult> {
        let mut results = self.results.iter_mut();
        results.find(|result| {
            result.nexus == nexus && result.is_long == is_long && result.list_id == list_id
        })
    }

    /// A copy begins, if none with its number is running.
    fn begin(&mut self, nexus: NexusId, is_long: bool, list_id: u32) -> Result<(), Sense> {
        let started = CopyResult {
            nexus,
            is_long,
            list_id,
            status: Status::Runs,
            segments: 0,
            bytes: 0,
        };
        match self.find(nexus, is_long, list_id) {
            Some(result) if result.status == Status::Runs => {
                return Err(Sense::OPERATION_IN_PROGRESS);
            }
            Some(result) => *result = started,
            None => {
                if self.results.len() == RESULTS_MAX {
                    self.results.pop_front();
                }
                self.results.push_back(started);
            }
        }
        Ok(())
    }

    /// A nexus has gone, and with it what it might ask.
    pub(super) fn forget(&mut self, nexus: NexusId) {
        self.results.retain(|result| result.nexus != nexus);
    }
}

impl Unit {
    /// EXTENDED COPY.
    pub(super) async fn extended_copy(
        self: &Arc<Self>,
        nexus: NexusId,
        find: &FindUnit<'_>,
        is_long: bool,
        list: &[u8],
        stop: &CopyStop,
    ) -> Outcome {
        if list.is_empty() {
            return Outcome::good();
        }
        let list = match List::decode(is_long, list) {
            Ok(list) => list,
            Err(sense) => return self.check(sense),
        };
        if list.keeps_result
            && let Err(sense) = self.copies().begin(nexus, is_long, list.list_id)
        {
            return self.check(sense);
        }
        let copied = self.copy_all(nexus, find, is_long, &list, stop).await;
        let status = copied.map_or_else(Status::Failed, |()| Status::Ended);
        if let Some(result) = self.copies().find(nexus, is_long, list.list_id) {
            result.status = status;
        }
        match status {
            Status::Failed(sense) => self.check(sense),
            Status::Runs | Status::Ended => Outcome::good(),
        }
    }

    /// All segments in their order; the first that fails ends it.
    async fn copy_all(
        self: &Arc<Self>,
        nexus: NexusId,
        find: &FindUnit<'_>,
        is_long: bool,
        list: &List,
        stop: &CopyStop,
    ) -> Result<(), Sense> {
        let port = self
            .port_of(nexus)
            .ok_or(Sense::COPY_TARGET_NOT_REACHABLE)?;
        let mut units = Vec::new();
        for named in &list.units {
            let unit = match named.designator.names(self.shape()) {
                true => Some(Arc::clone(self)),
                false => find(&named.designator),
            };
            let has_other_blocks = |unit: &Arc<Unit>| {
                named.block_bytes != 0 && named.block_bytes != unit.block_bytes()
            };
            if unit.as_ref().is_some_and(has_other_blocks) {
                return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
            }
            units.push(unit.map(CopyUnit::new));
        }
        let this = CopyUnit::new(Arc::clone(self));
        let unit_at = |index: u16| match index {
            THIS_UNIT => Ok(&this),
            // One that no segment is about may be out of reach.
            index => match units.get(usize::from(index)) {
                Some(Some(unit)) => Ok(unit),
                Some(None) => Err(Sense::COPY_TARGET_NOT_REACHABLE),
                None => Err(Sense::UNREACHABLE_COPY_TARGET),
            },
        };
        for segment in &list.segments {
            let source = unit_at(segment.source)?;
            let destination = unit_at(segment.destination)?;
            let may_go_on = || {
                if stop.is_stopped() || destination.was_reset() {
                    return Err(Sense::COPY_TARGET_NOT_REACHABLE);
                }
                source.unit.allows_copy(nexus, &port, false)?;
                destination.unit.allows_copy(nexus, &port, true)
            };
            // Also where there is nothing to copy.
            may_go_on()?;
            let bytes = copy_segment(segment, &source.unit, &destination.unit, &may_go_on).await?;
            if let Some(result) = self.copies().find(nexus, is_long, list.list_id) {
                result.segments += 1;
                result.bytes += bytes;
            }
        }
        Ok(())
    }

    /// RECEIVE COPY RESULTS.
    pub(super) fn copy_results(
        &self,
        nexus: NexusId,
        action: u8,
        list_id: u32,
    ) -> Result<Vec<u8>, Sense> {
        const OPERATING_PARAMETERS: u8 = 3;
        const STATUS_LID4: u8 = 5;
        if action == OPERATING_PARAMETERS {
            return Ok(operating_parameters(self.block_bytes()));
        }
        let is_long = action == STATUS_LID4;
        let mut copies = self.copies();
        let result = copies.find(nexus, is_long, list_id);
        let result = result.ok_or(Sense::cdb_field(2))?;
        Ok(if is_long {
            status_lid4(result)
        } else {
            status_lid1(result)
        })
    }
}

/// A unit that a copy is from or to.
struct CopyUnit {
    unit: Arc<Unit>,
    /// Its resets when the copy began.
    resets: u64,
}

impl CopyUnit {
    fn new(unit: Arc<Unit>) -> Self {
        let resets = unit.resets();
        Self { unit, resets }
    }

    fn was_reset(&self) -> bool {
        self.unit.resets() != self.resets
    }
}

/// Whether a copy may go on, asked under the `atomic` lock of the unit that it writes.
type MayGoOn<'a> = dyn Fn() -> Result<(), Sense> + Send + Sync + 'a;

/// Copies what a segment says; answers how many bytes.
async fn copy_segment(
    segment: &Segment,
    source: &Arc<Unit>,
    destination: &Arc<Unit>,
    may_go_on: &MayGoOn<'_>,
) -> Result<u64, Sense> {
    let counted = match segment.counts_destination {
        true => destination,
        false => source,
    };
    let length_bytes = u64::from(segment.count) * u64::from(counted.block_bytes());
    if length_bytes > SEGMENT_BYTES_MAX.into() {
        return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    let is_whole = |unit: &Unit| length_bytes.is_multiple_of(unit.block_bytes().into());
    if !is_whole(source) || !is_whole(destination) {
        return Err(Sense::INEXACT_SEGMENT);
    }
    let start_in = |unit: &Unit, lba: u64| {
        let count = length_bytes / u64::from(unit.block_bytes());
        let end = lba.checked_add(count);
        match end.is_some_and(|end| end <= unit.block_count()) {
            true => Ok(unit.offset_bytes(lba)),
            false => Err(Sense::COPY_RANGE.with_information(lba)),
        }
    };
    let from = start_in(source, segment.source_lba)?;
    let to = start_in(destination, segment.destination_lba)?;
    let copied = copy_range(source, from, destination, to, length_bytes, may_go_on).await;
    copied.map_err(|stop| match stop {
        Stop::Check(sense) => sense,
        Stop::Failed(error) => {
            // For the log; the initiator hears that it was not this command's own doing.
            destination.failure(&error);
            Sense::COPY_THIRD_PARTY_FAILURE
        }
    })?;
    Ok(length_bytes)
}

/// Ranges that overlap are copied as if all had been read before any was written.
async fn copy_range(
    source: &Arc<Unit>,
    from: u64,
    destination: &Arc<Unit>,
    to: u64,
    length_bytes: u64,
    may_go_on: &MayGoOn<'_>,
) -> Result<(), Stop> {
    let is_same = Arc::ptr_eq(source, destination);
    if is_same && from == to {
        return Ok(());
    }
    let overlaps = is_same && from < to + length_bytes && to < from + length_bytes;
    let is_backward = overlaps && to > from;
    let mut durable = false;
    let mut done = 0;
    while done < length_bytes {
        let rest = length_bytes - done;
        let _shared = destination.atomic.read().await;
        may_go_on().map_err(Stop::Check)?;
        durable |= destination.is_write_through();
        if !overlaps {
            let cloned = destination
                .storage()
                .clone_range(source.storage(), from + done, to + done, rest)
                .await?;
            if cloned > 0 {
                done += cloned.min(rest);
                continue;
            }
        }
        let length = rest.min(CHUNK_BYTES_MAX.into());
        let at = match is_backward {
            true => rest - length,
            false => done,
        };
        let pieces = source.storage().read(from + at, length as usize).await?;
        let mut data = BytesMut::with_capacity(length as usize);
        for piece in &pieces {
            data.extend_from_slice(piece);
        }
        if data.len() as u64 != length {
            let reason = format!("a read of {length} bytes gave {}", data.len());
            return Err(LunError::Internal { reason }.into());
        }
        let write = destination.storage().write(to + at, data.freeze(), durable);
        write.await?;
        done += length;
    }
    if durable {
        // What was cloned is not stable by itself.
        destination.storage().flush().await?;
    }
    Ok(())
}

/// OPERATING PARAMETERS (SPC-5 section 6.23).
fn operating_parameters(block_bytes: u32) -> Vec<u8> {
    let mut data = vec![0; 44];
    // SNLID: a list need have no identifier.
    data[4] = 0x01;
    data[8..10].copy_from_slice(&UNITS_MAX.to_be_bytes());
    data[10..12].copy_from_slice(&SEGMENTS_MAX.to_be_bytes());
    data[12..16].copy_from_slice(&DESCRIPTORS_BYTES_MAX.to_be_bytes());
    data[16..20].copy_from_slice(&segment_bytes_max(block_bytes).to_be_bytes());
    data[34..36].copy_from_slice(&(RESULTS_MAX as u16).to_be_bytes());
    data[36] = RESULTS_MAX as u8;
    data[37] = block_bytes.ilog2() as u8;
    data[43] = DESCRIPTOR_TYPES.len() as u8;
    data.extend_from_slice(&DESCRIPTOR_TYPES);
    let length = data.len() as u32 - 4;
    data[..4].copy_from_slice(&length.to_be_bytes());
    data
}

/// Longest segment in bytes: its count of blocks has 16 bits.
pub(super) fn segment_bytes_max(block_bytes: u32) -> u32 {
    SEGMENT_BYTES_MAX.min(u32::from(u16::MAX) * block_bytes)
}

/// Completion status, and the count of bytes with its unit (0: bytes, 1: KiB).
fn status_and_count(result: &CopyResult) -> (u8, u8, u32) {
    let status = match result.status {
        Status::Runs => 0,
        Status::Ended => 1,
        Status::Failed(_) => 2,
    };
    match u32::try_from(result.bytes) {
        Ok(bytes) => (status, 0, bytes),
        Err(_) => (
            status,
            1,
            u32::try_from(result.bytes >> 10).unwrap_or(u32::MAX),
        ),
    }
}

fn status_lid1(result: &CopyResult) -> Vec<u8> {
    let (status, unit, count) = status_and_count(result);
    let mut data = vec![0, 0, 0, 8, status];
    data.extend_from_slice(&result.segments.to_be_bytes());
    data.push(unit);
    data.extend_from_slice(&count.to_be_bytes());
    data
}

/// RECEIVE COPY STATUS (LID4) (SPC-5 section 6.25).
fn status_lid4(result: &CopyResult) -> Vec<u8> {
    let (status, unit, count) = status_and_count(result);
    let mut data = vec![0; 32];
    data[4] = 0x01; // the service action that the copy had
    data[5] = status;
    data[15] = unit;
    data[16..24].copy_from_slice(&u64::from(count).to_be_bytes());
    data[24..26].copy_from_slice(&result.segments.to_be_bytes());
    if let Status::Failed(sense) = result.status {
        let (bytes, length) = sense.encode(true);
        data[12] = 0x02; // CHECK CONDITION
        data[13] = length as u8;
        data[14] = length as u8;
        data.extend_from_slice(&bytes[..length]);
    }
    let length = data.len() as u32 - 4;
    data[..4].copy_from_slice(&length.to_be_bytes());
    data
}

/// Reads a list as an initiator might have sent it: for fuzzers.
pub(crate) fn decode_for_fuzzing(list: &[u8]) {
    for is_long in [false, true] {
        let _ = List::decode(is_long, list);
    }
}
