//! What commands do.
//!
//! [`Unit::execute_now`] carries out what needs no waiting, a cached read among it;
//! [`Unit::execute`] the rest.

use super::cdb::{Blocks, ByteCheck, Command};
use super::copy::{CopyStop, FindUnit};
use super::opcodes::{self, TABLE};
use super::sense::{Sense, status};
use super::state::NexusId;
use super::unit::Unit;
use super::{CHUNK_BYTES_MAX, Outcome, UNMAP_DESCRIPTORS_MAX, mode, reservation};
use crate::lun::LunError;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// Most descriptors in one GET LBA STATUS answer.
const LBA_STATUS_DESCRIPTORS_MAX: u32 = 256;

/// What a command may do to others besides its outcome.
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    /// Nexuses whose commands on this unit are to be aborted (PREEMPT AND ABORT).
    pub(crate) abort: Vec<NexusId>,
}

impl From<Outcome> for Done {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            abort: Vec::new(),
        }
    }
}

impl Unit {
    /// Carries a command out if that needs no waiting. `data` is what the initiator sent.
    pub(crate) fn execute_now(
        &self,
        nexus: NexusId,
        command: &Command,
        data: &[u8],
    ) -> Option<Outcome> {
        let outcome = match *command {
            Command::Read { blocks, .. } => {
                let length_bytes = self.length_bytes(blocks);
                if length_bytes == 0 {
                    return Some(Outcome::good());
                }
                let offset_bytes = self.offset_bytes(blocks.lba);
                let data = self.storage().try_read(offset_bytes, length_bytes)?;
                self.read_outcome(data, length_bytes)
            }
            Command::TestUnitReady | Command::PreventAllow => Outcome::good(),
            Command::RequestSense {
                is_descriptor,
                allocation,
            } => {
                let (bytes, length) = self.request_sense(nexus).encode(is_descriptor);
                Outcome::parameters(bytes[..length].to_vec(), allocation)
            }
            Command::Inquiry { page, allocation } => match self.inquiry(page) {
                Some(data) => Outcome::parameters(data, allocation),
                None => self.check(Sense::cdb_field(2)),
            },
            Command::ReadCapacity10 => Outcome::parameters(self.capacity10(), 8),
            Command::ReadCapacity16 { allocation } => {
                Outcome::parameters(self.capacity16(), allocation)
            }
            Command::ModeSense {
                is_long,
                no_block_descriptor,
                long_lba,
                control,
                page,
                subpage,
                allocation,
            } => {
                let query = mode::Query {
                    is_long,
                    no_block_descriptor,
                    long_lba,
                    control,
                    page,
                    subpage,
                };
                match self.mode_sense(query) {
                    Ok(data) => Outcome::parameters(data, allocation),
                    Err(sense) => self.check(sense),
                }
            }
            // What is only in the cache has to be made stable.
            Command::ModeSelect { is_long, .. } if self.ends_write_cache(data, is_long) => {
                return None;
            }
            Command::ModeSelect { is_long, .. } => match self.mode_select(nexus, data, is_long) {
                Ok(()) => Outcome::good(),
                Err(sense) => self.check(sense),
            },
            Command::Reserve if self.reserve(nexus) => Outcome::good(),
            Command::Reserve => Outcome::status(status::RESERVATION_CONFLICT),
            Command::Release => {
                self.release(nexus);
                Outcome::good()
            }
            Command::PersistentReserveIn { action, allocation } => {
                Outcome::parameters(self.persistent_reserve_in(action), allocation)
            }
            // May have to wait for storage, or for what others write.
            Command::PersistentReserveOut { action, .. }
                if self.keeps_reservations() || reservation::aborts(action) =>
            {
                return None;
            }
            Command::PersistentReserveOut {
                action,
                scope_and_type,
                ..
            } => match self.persistent_reserve_out(nexus, action, scope_and_type, data) {
                Ok(()) => Outcome::good(),
                Err(outcome) => outcome,
            },
            Command::ReportTargetPortGroups {
                is_extended,
                allocation,
            } => Outcome::parameters(target_port_groups(is_extended), allocation),
            Command::ReportSupportedOpcodes {
                with_timeouts,
                options,
                opcode,
                service_action,
                allocation,
            } => match supported_opcodes(with_timeouts, options, opcode, service_action) {
                Ok(data) => Outcome::parameters(data, allocation),
                Err(sense) => self.check(sense),
            },
            Command::ReportSupportedTaskManagement {
                is_extended,
                allocation,
            } => {
                // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LUN RESET, TARGET RESET; no more.
                let mut data = vec![0xda, 0, 0, 0];
                if is_extended {
                    data[3] = 12;
                    data.resize(16, 0);
                }
                Outcome::parameters(data, allocation)
            }
            Command::ReceiveCopyResults {
                action,
                list_id,
                allocation,
            } => match self.copy_results(nexus, action, list_id) {
                Ok(data) => Outcome::parameters(data, allocation),
                Err(sense) => self.check(sense),
            },
            // No defects; the format asked for is the format given.
            Command::ReadDefectData10 { format, allocation } => {
                Outcome::parameters(vec![0, format, 0, 0], allocation)
            }
            Command::ReadDefectData12 { format, allocation } => {
                Outcome::parameters(vec![0, format, 0, 0, 0, 0, 0, 0], allocation)
            }
            Command::Prefetch { blocks } => {
                let block_bytes = u64::from(self.block_bytes());
                let length_bytes = match blocks.count {
                    0 => (self.block_count() - blocks.lba) * block_bytes,
                    count => u64::from(count) * block_bytes,
                };
                self.storage()
                    .prefetch(self.offset_bytes(blocks.lba), length_bytes);
                Outcome::good()
            }
            // REPORT LUNS is the target's to answer.
            Command::ReportLuns { .. } => self.check(Sense::INVALID_FIELD_IN_CDB),
            Command::StartStopUnit { start: true } => Outcome::good(),
            Command::GetLbaStatus { .. }
            | Command::ExtendedCopy { .. }
            | Command::Write { .. }
            | Command::WriteVerify { .. }
            | Command::Verify { .. }
            | Command::CompareAndWrite { .. }
            | Command::OrWrite { .. }
            | Command::WriteSame { .. }
            | Command::Unmap { .. }
            | Command::SynchronizeCache { .. }
            | Command::StartStopUnit { start: false } => return None,
        };
        Some(outcome)
    }

    /// Carries a command out that [`execute_now`](Self::execute_now) did not. `find` finds the
    /// units that the initiator may copy from and to; `stop` ends a copy early.
    pub(crate) async fn execute(
        self: Arc<Self>,
        nexus: NexusId,
        find: &FindUnit<'_>,
        command: Command,
        data: Bytes,
        stop: &CopyStop,
    ) -> Done {
        match command {
            Command::PersistentReserveOut {
                action,
                scope_and_type,
                ..
            } => {
                let kept = self.persistent_reserve_out_kept(nexus, action, scope_and_type, &data);
                match kept.await {
                    Ok(abort) => Done {
                        outcome: Outcome::good(),
                        abort,
                    },
                    Err(outcome) => outcome.into(),
                }
            }
            Command::ModeSelect { is_long, .. } => {
                self.end_write_cache(nexus, &data, is_long).await.into()
            }
            Command::ExtendedCopy { is_long, .. } => {
                let copied = self.extended_copy(nexus, find, is_long, &data, stop);
                copied.await.into()
            }
            _ => self.execute_on_storage(command, data).await.into(),
        }
    }

    /// MODE SELECT that turns the write cache off: what was written before it is answered is on
    /// stable storage then. Where that fails writes are stable from then on nevertheless.
    async fn end_write_cache(&self, nexus: NexusId, list: &[u8], is_long: bool) -> Outcome {
        if let Err(sense) = self.mode_select(nexus, list, is_long) {
            return self.check(sense);
        }
        // Writes that took no notice of it are done.
        self.fence().await;
        match self.storage().flush().await {
            Ok(()) => Outcome::good(),
            Err(error) => self.failure(&error),
        }
    }

    async fn execute_on_storage(&self, command: Command, data: Bytes) -> Outcome {
        match self.try_execute(command, data).await {
            Ok(outcome) => outcome,
            Err(Stop::Failed(error)) => self.failure(&error),
            Err(Stop::Check(sense)) => self.check(sense),
        }
    }

    fn length_bytes(&self, blocks: Blocks) -> usize {
        // At most 2^32 blocks of 2^12 bytes.
        blocks.count as usize * self.block_bytes() as usize
    }

    fn read_outcome(&self, data: Vec<Bytes>, length_bytes: usize) -> Outcome {
        let found: usize = data.iter().map(Bytes::len).sum();
        if found != length_bytes {
            return self.failure(&LunError::Internal {
                reason: format!("a read of {length_bytes} bytes gave {found}"),
            });
        }
        Outcome {
            data,
            ..Outcome::good()
        }
    }

    async fn try_execute(&self, command: Command, data: Bytes) -> Result<Outcome, Stop> {
        let storage = self.storage();
        match command {
            Command::Read { blocks, .. } => {
                let length_bytes = self.length_bytes(blocks);
                let offset_bytes = self.offset_bytes(blocks.lba);
                let data = storage.read(offset_bytes, length_bytes).await?;
                return Ok(self.read_outcome(data, length_bytes));
            }
            Command::Write {
                blocks,
                force_unit_access,
            } => {
                self.write(blocks.lba, data, force_unit_access).await?;
            }
            Command::WriteVerify { blocks, check } => {
                self.write(blocks.lba, data.clone(), true).await?;
                match check {
                    ByteCheck::Medium => self.verify_medium(blocks).await?,
                    // The data may have been cut.
                    _ => self.compare(blocks.lba, data.len(), &data).await?,
                }
            }
            Command::Verify { blocks, check } => self.verify(blocks, check, &data).await?,
            Command::CompareAndWrite {
                blocks,
                force_unit_access,
            } => {
                if blocks.count > 0 {
                    let length_bytes = self.length_bytes(blocks);
                    let _exclusive = self.atomic.write().await;
                    let durable = force_unit_access || self.is_write_through();
                    let mut data = data;
                    let expected = data.split_to(length_bytes);
                    self.compare(blocks.lba, length_bytes, &expected).await?;
                    let offset_bytes = self.offset_bytes(blocks.lba);
                    storage.write(offset_bytes, data, durable).await?;
                }
            }
            Command::OrWrite {
                blocks,
                force_unit_access,
            } => {
                if blocks.count > 0 {
                    let length_bytes = self.length_bytes(blocks);
                    let offset_bytes = self.offset_bytes(blocks.lba);
                    let _exclusive = self.atomic.write().await;
                    let durable = force_unit_access || self.is_write_through();
                    let present = storage.read(offset_bytes, length_bytes).await?;
                    let mut merged = BytesMut::from(&data[..]);
                    let present = present.iter().flat_map(|piece| piece.iter());
                    for (byte, present) in merged.iter_mut().zip(present) {
                        *byte |= present;
                    }
                    let merged = merged.freeze();
                    storage.write(offset_bytes, merged, durable).await?;
                }
            }
            Command::WriteSame {
                blocks,
                unmap,
                no_data,
            } => {
                let offset_bytes = self.offset_bytes(blocks.lba);
                let length_bytes = self.length_bytes(blocks) as u64;
                let _shared = self.atomic.read().await;
                let durable = self.is_write_through();
                let is_zero = no_data || data.iter().all(|byte| *byte == 0);
                match (is_zero, unmap) {
                    (true, true) => {
                        storage.unmap(offset_bytes, length_bytes).await?;
                        if durable {
                            storage.flush().await?;
                        }
                    }
                    (true, false) => {
                        let write = storage.write_zeroes(offset_bytes, length_bytes, durable);
                        write.await?;
                    }
                    // Unmapped blocks would read as zeroes: these must be written.
                    (false, _) => self.write_pattern(blocks, &data, durable).await?,
                }
            }
            Command::Unmap { .. } => self.unmap(&data).await?,
            Command::SynchronizeCache { .. } | Command::StartStopUnit { start: false } => {
                storage.flush().await?;
            }
            Command::GetLbaStatus { lba, allocation } => {
                return self.lba_status(lba, allocation).await;
            }
            // All others are carried out at once.
            _ => return Err(Stop::Check(Sense::INTERNAL_TARGET_FAILURE)),
        }
        Ok(Outcome::good())
    }

    /// Writes data from a block on. Data that was cut may end inside a block: the rest of that
    /// block stays as it is. It is stable where that is asked for, or there is no write cache.
    async fn write(
        &self,
        lba: u64,
        mut data: Bytes,
        force_unit_access: bool,
    ) -> Result<(), LunError> {
        // Asked under the lock: see `end_write_cache`.
        let is_durable = || force_unit_access || self.is_write_through();
        let offset_bytes = self.offset_bytes(lba);
        let cut_bytes = data.len() % self.block_bytes() as usize;
        let rest = data.split_off(data.len() - cut_bytes);
        let rest_at = offset_bytes + data.len() as u64;
        if !data.is_empty() {
            let _shared = self.atomic.read().await;
            let durable = is_durable();
            self.storage().write(offset_bytes, data, durable).await?;
        }
        if !rest.is_empty() {
            let _exclusive = self.atomic.write().await;
            let block_bytes = self.block_bytes() as usize;
            let present = self.storage().read(rest_at, block_bytes).await?;
            let mut block = BytesMut::with_capacity(block_bytes);
            block.extend_from_slice(&rest);
            let present = present.concat();
            block.extend_from_slice(present.get(rest.len()..).unwrap_or_default());
            let block = block.freeze();
            let durable = is_durable();
            self.storage().write(rest_at, block, durable).await?;
        }
        Ok(())
    }

    async fn write_pattern(
        &self,
        blocks: Blocks,
        pattern: &[u8],
        durable: bool,
    ) -> Result<(), LunError> {
        let total_bytes = self.length_bytes(blocks) as u64;
        let chunk_bytes = total_bytes.min(CHUNK_BYTES_MAX.into());
        let chunk = Bytes::from(pattern.repeat(chunk_bytes as usize / pattern.len()));
        let start = self.offset_bytes(blocks.lba);
        let mut done = 0;
        while done < total_bytes {
            let length = chunk_bytes.min(total_bytes - done);
            let data = chunk.slice(..length as usize);
            self.storage().write(start + done, data, durable).await?;
            done += length;
        }
        Ok(())
    }

    async fn verify(&self, blocks: Blocks, check: ByteCheck, data: &[u8]) -> Result<(), Stop> {
        match check {
            ByteCheck::Medium => self.verify_medium(blocks).await,
            ByteCheck::Each | ByteCheck::One => {
                let length_bytes = self.length_bytes(blocks);
                self.compare(blocks.lba, length_bytes, data).await
            }
        }
    }

    async fn verify_medium(&self, blocks: Blocks) -> Result<(), Stop> {
        let end = self.offset_bytes(blocks.lba + u64::from(blocks.count));
        let mut offset_bytes = self.offset_bytes(blocks.lba);
        while offset_bytes < end {
            let length = (end - offset_bytes).min(CHUNK_BYTES_MAX.into());
            self.storage().read(offset_bytes, length as usize).await?;
            offset_bytes += length;
        }
        Ok(())
    }

    /// Compares `total` bytes with `expected`, repeated as often as it takes.
    async fn compare(&self, lba: u64, total: usize, expected: &[u8]) -> Result<(), Stop> {
        let start = self.offset_bytes(lba);
        let mut at = 0;
        while at < total {
            let length = (total - at).min(CHUNK_BYTES_MAX as usize);
            let found = self.storage().read(start + at as u64, length).await?;
            if found.iter().map(Bytes::len).sum::<usize>() != length {
                let reason = format!("a read of {length} bytes gave another length");
                return Err(LunError::Internal { reason }.into());
            }
            for piece in found {
                let mut piece = &piece[..];
                while !piece.is_empty() {
                    // `expected` is not empty: the admission saw to it that the data is there.
                    let expected = &expected[at % expected.len()..];
                    let length = piece.len().min(expected.len());
                    let (now, rest) = piece.split_at(length);
                    if now != &expected[..length] {
                        let pairs = now.iter().zip(expected);
                        let same = pairs.take_while(|(found, expected)| found == expected);
                        let offset = at + same.count();
                        let sense = Sense::MISCOMPARE_DURING_VERIFY;
                        return Err(Stop::Check(sense.with_information(offset as u64)));
                    }
                    at += length;
                    piece = rest;
                }
            }
        }
        Ok(())
    }

    /// UNMAP with its parameter list (SBC-4 section 5.35).
    async fn unmap(&self, list: &[u8]) -> Result<(), Stop> {
        if list.is_empty() {
            return Ok(());
        }
        let Some((header, descriptors)) = list.split_at_checked(8) else {
            return Err(Stop::Check(Sense::PARAMETER_LIST_LENGTH_ERROR));
        };
        let descriptor_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
        // What does not make a whole descriptor is ignored.
        let count = descriptor_bytes.min(descriptors.len()) / 16;
        if count > UNMAP_DESCRIPTORS_MAX as usize {
            return Err(Stop::Check(Sense::INVALID_FIELD_IN_PARAMETER_LIST));
        }
        let block_count = self.block_count();
        let mut ranges = Vec::with_capacity(count);
        for descriptor in descriptors.chunks_exact(16).take(count) {
            let (lba, blocks) = descriptor.split_at(8);
            let lba = lba
                .iter()
                .fold(0, |lba, byte| (lba << 8) | u64::from(*byte));
            let blocks = blocks[..4]
                .iter()
                .fold(0, |count, byte| (count << 8) | u64::from(*byte));
            if lba.checked_add(blocks).is_none_or(|end| end > block_count) {
                let sense = Sense::LBA_OUT_OF_RANGE.with_information(lba);
                return Err(Stop::Check(sense));
            }
            if blocks > 0 {
                ranges.push((self.offset_bytes(lba), self.offset_bytes(blocks)));
            }
        }
        let _shared = self.atomic.read().await;
        for (offset_bytes, length_bytes) in ranges {
            self.storage().unmap(offset_bytes, length_bytes).await?;
        }
        if self.is_write_through() {
            self.storage().flush().await?;
        }
        Ok(())
    }

    /// GET LBA STATUS (SBC-4 section 5.6).
    async fn lba_status(&self, lba: u64, allocation: u32) -> Result<Outcome, Stop> {
        let block_count = self.block_count();
        if lba >= block_count {
            let sense = Sense::LBA_OUT_OF_RANGE.with_information(lba);
            return Err(Stop::Check(sense));
        }
        let descriptors_max =
            (allocation.saturating_sub(8) / 16).clamp(1, LBA_STATUS_DESCRIPTORS_MAX);
        let end = self.offset_bytes(block_count);
        let mut at = self.offset_bytes(lba);
        let mut data = vec![0; 8];
        for _ in 0..descriptors_max {
            if at >= end {
                break;
            }
            let extent = self.storage().extent_at(at, end - at).await?;
            let block_bytes = u64::from(self.block_bytes());
            // A descriptor counts up to 2^32-1 blocks; a unit that says less than a block is
            // taken for one mapped block.
            let blocks =
                (extent.length_bytes.min(end - at) / block_bytes).clamp(1, u32::MAX.into());
            let is_mapped = extent.is_mapped || extent.length_bytes < block_bytes;
            data.extend_from_slice(&(at / block_bytes).to_be_bytes());
            data.extend_from_slice(&(blocks as u32).to_be_bytes());
            data.extend_from_slice(&[u8::from(!is_mapped), 0, 0, 0]);
            at += blocks * block_bytes;
        }
        let length = data.len() as u32 - 4;
        data[..4].copy_from_slice(&length.to_be_bytes());
        Ok(Outcome::parameters(data, allocation))
    }
}

/// Why a command stops.
pub(super) enum Stop {
    Failed(LunError),
    Check(Sense),
}

impl From<LunError> for Stop {
    fn from(error: LunError) -> Self {
        Self::Failed(error)
    }
}

/// REPORT TARGET PORT GROUPS: one group, active/optimized, with one port.
fn target_port_groups(is_extended: bool) -> Vec<u8> {
    let mut data = Vec::new();
    if is_extended {
        data.extend_from_slice(&[0, 0, 0, 16, 0x10, 0, 0, 0]);
    } else {
        data.extend_from_slice(&[0, 0, 0, 12]);
    }
    data.extend_from_slice(&[0x00, 0x01, 0, 1, 0, 0, 0, 1]);
    data.extend_from_slice(&[0, 0, 0, 1]);
    data
}

/// REPORT SUPPORTED OPERATION CODES (SPC-5 section 6.36).
fn supported_opcodes(
    with_timeouts: bool,
    options: u8,
    opcode: u8,
    service_action: u16,
) -> Result<Vec<u8>, Sense> {
    const TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let is_known = opcodes::is_known_opcode(opcode);
    let has_actions = opcodes::has_service_actions(opcode);
    let entry = match options {
        0 => {
            let mut data = vec![0; 4];
            for entry in TABLE {
                data.extend_from_slice(&[entry.opcode, 0]);
                data.extend_from_slice(&entry.service_action.unwrap_or(0).to_be_bytes());
                let has_action = u8::from(entry.service_action.is_some());
                let has_timeouts = if with_timeouts { 2 } else { 0 };
                data.extend_from_slice(&[0, has_action | has_timeouts]);
                data.extend_from_slice(&(entry.usage.len() as u16).to_be_bytes());
                if with_timeouts {
                    data.extend_from_slice(&TIMEOUTS);
                }
            }
            let length = data.len() as u32 - 4;
            data[..4].copy_from_slice(&length.to_be_bytes());
            return Ok(data);
        }
        1 if is_known && has_actions => return Err(Sense::cdb_field(2)),
        1 => opcodes::find(opcode, None),
        2 if is_known && !has_actions => return Err(Sense::cdb_field(2)),
        2 => opcodes::find(opcode, Some(service_action)),
        3 if has_actions => opcodes::find(opcode, Some(service_action)),
        3 => opcodes::find(opcode, None).filter(|_| service_action == 0),
        _ => return Err(Sense::cdb_field(2)),
    };
    let Some(entry) = entry else {
        // SUPPORT 001b: not supported.
        return Ok(vec![0, 1, 0, 0]);
    };
    let has_timeouts = if with_timeouts { 0x80 } else { 0 };
    let mut data = vec![0, 3 | has_timeouts, 0, entry.usage.len() as u8];
    data.extend_from_slice(entry.usage);
    if with_timeouts {
        data.extend_from_slice(&TIMEOUTS);
    }
    Ok(data)
}
