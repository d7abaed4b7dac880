//! Intent logs: their blocks and what their records refer to, against the space maps; and the MACs of encrypted ones.

use format::{BLOCK_POINTER_BYTES, BlockPointer, Endian, ZilHeader, ZilSequence, decode_log_block};
use zio::ReadContext;

use crate::verify::Walk;

/// Types of the records that refer to blocks (`TX_WRITE`, `TX_CLONE_RANGE`; include/sys/zil.h).
const WRITE: u64 = 9;
const CLONE_RANGE: u64 = 24;
/// Bytes before what depends on the type (`lr_t`).
const HEADER_BYTES: usize = 32;
/// Where a write has its pointer (`lr_blkptr`).
const WRITE_POINTER: usize = 64;
/// Where cloned blocks are counted and listed (`lr_nbps`, `lr_bps`).
const CLONE_COUNT: usize = 64;
const CLONE_POINTERS: usize = 72;

impl Walk<'_> {
    /// Follows an intent log as far as it was written. Once it is claimed, its blocks are in the space maps. Before, they
    /// may be or not: those of later transaction groups are not.
    pub(crate) async fn log_chain(&mut self, header: &ZilHeader, what: &str) {
        let is_claimed = !header.claim_txg.is_zero();
        let mut next = header.log;
        let mut sequence = 0;
        while !next.is_hole() {
            let place = ZilSequence::from_checksum(next.checksum());
            if place.sequence <= sequence
                || is_claimed && place.sequence > header.claim_block_sequence
            {
                return;
            }
            sequence = place.sequence;
            self.report.log_blocks += 1;
            if self.claim(&next, is_claimed).await.is_err() {
                return;
            }
            let context = ReadContext {
                speculative: true,
                ..Self::context()
            };
            // As stored: of encrypted datasets all that leads on is in the clear.
            let Ok(stored) = self.pool.reader().read_raw(&next, &context).await else {
                return;
            };
            if next.uses_crypt() && self.pool.keys().get(place.objset).is_some() {
                self.report.macs += 1;
                if let Err(error) = self.pool.log_blocks().open(&next, stored.clone()) {
                    self.problem(format!("{what}: its log: {error}"));
                }
            }
            let Ok((link, records)) = decode_log_block(&stored, next.checksum_kind()) else {
                return;
            };
            self.log_data(records, link.eck.endian).await;
            next = link.next;
        }
    }

    /// What records refer to: blocks with the data of big synchronous writes, and cloned ones.
    async fn log_data(&mut self, records: &[u8], endian: Endian) {
        for (written, cloned) in log_pointers(records, endian) {
            // Once it is claimed, a log has references of its own.
            for block in &cloned {
                self.clones.refer_perhaps(block);
            }
            if let Some(block) = written
                && !block.is_hole()
                && !block.is_embedded()
            {
                let _ = self.claim(&block, false).await;
            }
        }
    }
}

/// Pointers of the records of a block: of written data, and cloned ones. Of encrypted datasets all else in a record may be
/// encrypted, so it is not looked at.
fn log_pointers(
    mut records: &[u8],
    endian: Endian,
) -> Vec<(Option<BlockPointer>, Vec<BlockPointer>)> {
    let mut out = Vec::new();
    let word = |bytes: &[u8], at: usize| {
        let raw = bytes.get(at..)?.first_chunk::<8>()?;
        Some(endian.u64(*raw))
    };
    while let (Some(kind), Some(length)) = (word(records, 0), word(records, 8)) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length < HEADER_BYTES || length > records.len() {
            break;
        }
        let (record, rest) = records.split_at(length);
        records = rest;
        if kind == WRITE {
            let raw = record.get(WRITE_POINTER..WRITE_POINTER + BLOCK_POINTER_BYTES);
            let pointer = raw.and_then(|raw| BlockPointer::decode_slice(raw, endian).ok());
            out.push((pointer, Vec::new()));
        } else if kind == CLONE_RANGE {
            let count = word(record, CLONE_COUNT).unwrap_or(0);
            let listed = record.get(CLONE_POINTERS..).unwrap_or_default();
            let blocks = BlockPointer::decode_all(listed, endian).take(count as usize);
            out.push((None, blocks.collect()));
        }
    }
    out
}
