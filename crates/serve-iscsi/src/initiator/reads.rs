//! Commands that read: what a unit is, and how fast it answers by a path.

use super::{DATA_BYTES_MAX, Initiator, InitiatorError, Result, TALK, within};
use crate::pdu::{Header, flag, serial_less, target_opcode};
use crate::scsi::{encode_lun, op, status};
use bytes::Bytes;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Bytes of one read of a measurement.
const PIECE_BYTES: u32 = 256 << 10;
/// Reads under way at the same time, as far as the target takes so many.
const DEPTH: usize = 8;
/// Reads go round in so much of the unit: after the first time its memory answers, and what is
/// measured is the path.
const REGION_BYTES: u64 = 16 << 20;
/// So often a command is tried again that ended with a unit attention, which new sessions meet.
const ATTENTIONS_MAX: usize = 8;
/// Data of an answer to a question at most, in bytes.
const ANSWER_BYTES: u32 = 255;
/// Sense key UNIT ATTENTION (SPC-4).
const UNIT_ATTENTION: u8 = 0x06;
/// Designator type NAA (SPC-4 section 7.8.6), and the lengths that it has, in bytes.
const NAA: u8 = 3;
const NAA_LENGTHS: [u8; 2] = [8, 16];

/// What a unit says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitFacts {
    /// Vendor (INQUIRY), without blanks at its ends; what is no visible character of ASCII, which
    /// is all that there may be (SPC-4 section 4.3.1), is `?`.
    pub vendor: String,
    /// Product, likewise.
    pub product: String,
    /// Its name as `naa.600…`, in hexadecimal; empty without one.
    pub naa: String,
    /// Length of a block in bytes.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
}

/// What a measurement gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bytes read.
    pub bytes: u64,
    /// In this time.
    pub time: Duration,
}

impl Rate {
    /// Bytes a second.
    pub fn bytes_per_second(self) -> u64 {
        match self.time.as_secs_f64() {
            seconds if seconds > 0.0 => (self.bytes as f64 / seconds) as u64,
            _ => 0,
        }
    }
}

/// How a command ended: its status, with the sense key where there is one.
struct Ended {
    status: u8,
    key: u8,
}

impl Initiator {
    /// What a unit is.
    ///
    /// # Errors
    /// As all of it; [`InitiatorError::Command`] where there is no such unit, or it cannot be read.
    pub async fn unit(&mut self, lun: u16) -> Result<UnitFacts> {
        within(TALK, self.facts(lun)).await
    }

    async fn facts(&mut self, lun: u16) -> Result<UnitFacts> {
        let inquiry = |page: Option<u8>| {
            let page_bit = u8::from(page.is_some());
            let length = ANSWER_BYTES as u8;
            [op::INQUIRY, page_bit, page.unwrap_or(0), 0, length, 0]
        };
        let standard = self.ask(lun, &inquiry(None)).await?;
        let text = |range: std::ops::Range<usize>| words(standard.get(range).unwrap_or_default());
        // Peripheral qualifier and type: a disk that is there.
        if standard.first().is_none_or(|first| *first != 0) {
            return Err(InitiatorError::Strange("the unit is no disk"));
        }
        let naa = match self.ask(lun, &inquiry(Some(0x83))).await {
            Ok(page) => naa_of(&page),
            Err(InitiatorError::Command { .. }) => None,
            Err(error) => return Err(error),
        };
        // READ CAPACITY (16), SBC-3 section 5.16.
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (op::SERVICE_ACTION_IN_16, 0x10, 32);
        let capacity = self.ask(lun, &cdb).await?;
        let (Some(last), Some(block_bytes)) = (
            capacity
                .first_chunk::<8>()
                .map(|raw| u64::from_be_bytes(*raw)),
            capacity
                .get(8..)
                .and_then(|rest| rest.first_chunk::<4>())
                .map(|raw| u32::from_be_bytes(*raw)),
        ) else {
            return Err(InitiatorError::Strange(
                "it does not say how big the unit is",
            ));
        };
        if !block_bytes.is_power_of_two() || !(512..=65536).contains(&block_bytes) {
            return Err(InitiatorError::Strange(
                "its blocks have a length that none have",
            ));
        }
        Ok(UnitFacts {
            vendor: text(8..16),
            product: text(16..32),
            naa: naa.unwrap_or_default(),
            block_bytes,
            blocks: last.saturating_add(1),
        })
    }

    /// Asks until a unit attention is over; the data that came.
    async fn ask(&mut self, lun: u16, cdb: &[u8]) -> Result<Vec<u8>> {
        for _ in 0..ATTENTIONS_MAX {
            self.command(lun, cdb, ANSWER_BYTES).await?;
            let mut data = Vec::new();
            let ended = loop {
                let frame = self.answer().await?;
                if frame.header.0[0] & 0x3f == target_opcode::DATA_IN {
                    data.extend_from_slice(&frame.data);
                }
                if data.len() > ANSWER_BYTES as usize {
                    return Err(InitiatorError::Strange("more data came than was asked for"));
                }
                if let Some(ended) = ended(&frame.header, &frame.data)? {
                    break ended;
                }
            };
            match (ended.status, ended.key) {
                (status::GOOD, _) => return Ok(data),
                (status::CHECK_CONDITION, UNIT_ATTENTION) => {}
                (status, key) => return Err(InitiatorError::Command { status, key }),
            }
        }
        Err(InitiatorError::Strange("its unit attentions do not end"))
    }

    async fn command(&mut self, lun: u16, cdb: &[u8], length: u32) -> Result<u32> {
        let tag = self.next_tag();
        let mut header = Header::new(0x01);
        header.0[1] |= flag::READ;
        header.set_lun(encode_lun(lun));
        header.set_initiator_task_tag(tag);
        header.set_u32(20, length);
        header.0[32..32 + cdb.len()].copy_from_slice(cdb);
        self.request(header, Bytes::new()).await?;
        Ok(tag)
    }

    /// Reads for so long, several reads at a time; the same few MiB again and again.
    ///
    /// # Errors
    /// As all of it.
    pub async fn read_for(&mut self, lun: u16, unit: &UnitFacts, time: Duration) -> Result<Rate> {
        within(time + TALK, self.reads_for(lun, unit, time)).await
    }

    async fn reads_for(&mut self, lun: u16, unit: &UnitFacts, time: Duration) -> Result<Rate> {
        let block = u64::from(unit.block_bytes);
        let piece_blocks = (u64::from(PIECE_BYTES) / block).min(unit.blocks);
        let pieces = (REGION_BYTES.min(unit.blocks.saturating_mul(block))
            / (piece_blocks * block).max(1))
        .max(1);
        if piece_blocks == 0 {
            return Err(InitiatorError::Strange("the unit is empty"));
        }
        let mut under_way: HashMap<u32, u64> = HashMap::new();
        let mut rate = Rate::default();
        let mut number = 0;
        let begun = Instant::now();
        loop {
            let is_over = begun.elapsed() >= time;
            while !is_over && under_way.len() < DEPTH && !serial_less(self.max_cmd_sn, self.cmd_sn)
            {
                let mut cdb = [0; 16];
                cdb[0] = op::READ_16;
                let at = number % pieces * piece_blocks;
                cdb[2..10].copy_from_slice(&at.to_be_bytes());
                cdb[10..14].copy_from_slice(&(piece_blocks as u32).to_be_bytes());
                let length = piece_blocks * block;
                let tag = self.command(lun, &cdb, length as u32).await?;
                under_way.insert(tag, length);
                number += 1;
            }
            if under_way.is_empty() {
                if !is_over {
                    return Err(InitiatorError::Strange("it takes no command"));
                }
                rate.time = begun.elapsed();
                return Ok(rate);
            }
            let frame = self.answer().await?;
            let tag = frame.header.initiator_task_tag();
            let Some(missing) = under_way.get_mut(&tag) else {
                return Err(InitiatorError::Strange("it answers what was not asked"));
            };
            if frame.header.0[0] & 0x3f == target_opcode::DATA_IN {
                let length = frame.data.len() as u64;
                debug_assert!(length as usize <= DATA_BYTES_MAX);
                *missing = missing
                    .checked_sub(length)
                    .ok_or(InitiatorError::Strange("more data came than was asked for"))?;
                rate.bytes += length;
            }
            match ended(&frame.header, &frame.data)? {
                None => {}
                Some(end) if end.status == status::GOOD && *missing == 0 => {
                    under_way.remove(&tag);
                }
                Some(end) if end.status == status::GOOD => {
                    return Err(InitiatorError::Strange("less data came than was asked for"));
                }
                Some(Ended { status, key }) => {
                    return Err(InitiatorError::Command { status, key });
                }
            }
        }
    }
}

/// How a command ended, where this PDU says so.
fn ended(header: &Header, data: &[u8]) -> Result<Option<Ended>> {
    match header.0[0] & 0x3f {
        target_opcode::DATA_IN if header.flags() & flag::STATUS == 0 => Ok(None),
        target_opcode::DATA_IN => Ok(Some(Ended {
            status: header.0[3],
            key: 0,
        })),
        target_opcode::SCSI_RESPONSE if header.0[2] != 0 => {
            Err(InitiatorError::Strange("a command was not done"))
        }
        // Sense data of fixed format (SPC-4 section 4.5.3), behind its length; the key of that of
        // descriptor format is in the byte before.
        target_opcode::SCSI_RESPONSE => {
            let at = match data.get(2).map(|code| code & 0x7f) {
                Some(0x72 | 0x73) => 3,
                _ => 4,
            };
            Ok(Some(Ended {
                status: header.0[3],
                key: data.get(at).map_or(0, |byte| byte & 0x0f),
            }))
        }
        _ => Err(InitiatorError::Strange("an answer to something else came")),
    }
}

/// A field of ASCII as it can be shown. Some fill it up with NUL instead of blanks.
pub(super) fn words(field: &[u8]) -> String {
    let shown = |byte: &u8| match byte {
        0 => ' ',
        b' '..=b'~' => char::from(*byte),
        _ => '?',
    };
    let text: String = field.iter().map(shown).collect();
    text.trim().to_owned()
}

/// The unit's own NAA designator in page 83h (SPC-4 section 7.8.6).
pub(super) fn naa_of(page: &[u8]) -> Option<String> {
    let mut rest = page.get(4..)?;
    while let [_, kind, _, length, more @ ..] = rest {
        let value = more.get(..usize::from(*length))?;
        // Association (bits 4 and 5): of the unit.
        if kind & 0x0f == NAA && kind & 0x30 == 0 && NAA_LENGTHS.contains(length) {
            let digits = value.iter().map(|byte| format!("{byte:02x}"));
            return Some(format!("naa.{}", digits.collect::<String>()));
        }
        rest = &more[usize::from(*length)..];
    }
    None
}
