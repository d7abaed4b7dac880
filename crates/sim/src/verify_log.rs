//! Intent logs: their blocks and what their records refer to, against the space maps; and the MACs
//! of encrypted ones.

use format::{
    BlockPointer, Endian, LogCloneBody, LogHeader, LogKind, LogWriteBody, ZilHeader, ZilSequence,
    decode_log_block,
};
use zio::ReadContext;

use crate::verify::Walk;

impl Walk<'_> {
    /// Follows an intent log as far as it was written. Once it is claimed, its blocks are in the
    /// space maps. Before, they may be or not: those of later transaction groups are not.
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

/// Pointers of the records of a block: of written data, and cloned ones. Of encrypted datasets all
/// else in a record may be encrypted, so it is not looked at.
fn log_pointers(
    mut records: &[u8],
    endian: Endian,
) -> Vec<(Option<BlockPointer>, Vec<BlockPointer>)> {
    let mut out = Vec::new();
    while let Ok(header) = LogHeader::decode(records, endian) {
        let (record, rest) = records.split_at(header.length_bytes);
        let body = &record[LogHeader::BYTES..];
        records = rest;
        match header.kind {
            LogKind::Write => {
                let pointer = LogWriteBody::pointer(body, endian);
                out.push((pointer.map(|(pointer, _)| pointer), Vec::new()));
            }
            LogKind::CloneRange => {
                out.push((None, LogCloneBody::pointers(body, endian).collect()));
            }
            _ => {}
        }
    }
    out
}
