//! Intent logs of datasets that are not open: freeing one with its dataset, claiming all after a
//! crash.

use std::sync::Arc;

use format::{BlockPointer, LogBody, LogRecords, ZilHeader, ZilSequence, decode_log_block};
use object::SyncContext;
use pool::{CacheUse, ReadContext};

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::state::Ds;

impl DslPool {
    /// Frees the blocks of a closed dataset's log (`zil_destroy_sync`, module/zfs/zil.c): those of the
    /// chain, and data blocks that records refer to and that were claimed.
    pub(crate) async fn free_log(&self, ctx: &SyncContext, header: &ZilHeader) {
        let pipeline = &self.env().pipeline;
        let is_claimed = !header.claim_txg.is_zero();
        let mut block = header.log;
        while !block.is_hole() {
            let place = ZilSequence::from_checksum(block.checksum());
            if is_claimed && place.sequence > header.claim_block_sequence {
                break;
            }
            pipeline.free(ctx.txg, &block);
            let context = ReadContext {
                cache: CacheUse::NoFill,
                speculative: true,
                ..ReadContext::default()
            };
            let Ok(data) = pipeline.read(&block, &context).await else {
                break;
            };
            let Ok((link, records)) = decode_log_block(&data, block.checksum_kind()) else {
                break;
            };
            for record in LogRecords::new(records, link.eck.endian).map_while(Result::ok) {
                if let LogBody::Write(write) = record.body
                    && write.data.is_none()
                    && is_claimed
                    && write.block.birth() >= header.claim_txg
                {
                    pipeline.free(ctx.txg, &write.block);
                }
            }
            block = if ZilSequence::from_checksum(link.next.checksum()) == place.next() {
                link.next
            } else {
                BlockPointer::HOLE
            };
        }
    }

    /// Every head dataset of the pool.
    pub(crate) async fn heads(&self) -> Result<Vec<Arc<Ds>>, DatasetError> {
        let mut pending = vec![self.root_dir().clone()];
        let mut heads = Vec::new();
        while let Some(dir) = pending.pop() {
            heads.push(self.head(&dir).await?);
            pending.extend(self.children(&dir).await?);
        }
        Ok(heads)
    }
}
