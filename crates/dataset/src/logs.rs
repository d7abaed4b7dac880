//! Intent logs of datasets that are not open: freeing one with its dataset, claiming all after a
//! crash.

use std::collections::HashSet;
use std::sync::Arc;

use format::{
    BlockPointer, LogBody, LogRecords, ObjsetPhys, ZilHeader, ZilSequence, decode_log_block,
};
use object::SyncContext;
use pool::{CacheUse, ReadContext, Tx};

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::features::guid;
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

    /// At import, after a crash: marks the intent logs' blocks as allocated (`zil_claim`), before
    /// anything is allocated. Call in the first syncing txg, before [`DslPool::sync_pass`].
    ///
    /// # Errors
    /// Of reading datasets; a log that ends early is no error.
    pub async fn claim_logs(self: &Arc<Self>, ctx: &SyncContext) -> Result<(), DatasetError> {
        let _config = self.config.write().await;
        for head in self.heads().await? {
            let phys = head.phys();
            if phys.block.is_hole() || head.state().features.contains_key(guid::ENCRYPTION) {
                continue;
            }
            let context = ReadContext::new(pool::Bookmark {
                objset: head.object.get().into(),
                level: -1,
                ..pool::Bookmark::default()
            });
            let data = self.env().pipeline.read(&phys.block, &context).await?;
            let mut header = ObjsetPhys::decode(&data, phys.block.endian())?.zil_header;
            if header.log.is_hole() || !header.claim_txg.is_zero() {
                continue;
            }
            self.claim_log(ctx, &mut header).await;
            let objset = self.open_objset(&head).await?;
            objset.set_zil_header(&Tx::syncing(ctx.txg), header);
            self.attach_without_log(&head, objset).await?;
            self.sync_dataset_now(ctx, &head).await?;
            *head.open.lock() = None;
        }
        Ok(())
    }

    /// Claims one log's blocks, and notes in its head how far it goes.
    async fn claim_log(&self, ctx: &SyncContext, header: &mut ZilHeader) {
        let pipeline = &self.env().pipeline;
        let context = ReadContext {
            cache: CacheUse::NoFill,
            speculative: true,
            ..ReadContext::default()
        };
        let mut claimed: HashSet<[u64; 2]> = HashSet::new();
        let mut is_new = |block: &BlockPointer| {
            block
                .dva(0)
                .is_some_and(|dva| claimed.insert(dva.to_words()))
        };
        let (mut blocks, mut records_seen) = (0u64, 0u64);
        let mut block = header.log;
        'chain: while !block.is_hole() {
            let place = ZilSequence::from_checksum(block.checksum());
            // What was born before this import is in the space maps already.
            if block.birth() >= ctx.txg
                && is_new(&block)
                && let Err(error) = pipeline.claim(ctx.txg, &block).await
            {
                tracing::warn!(%error, "a block of an intent log cannot be claimed; the log ends there");
                break;
            }
            header.claim_block_sequence = place.sequence;
            blocks += 1;
            let Ok(data) = pipeline.read(&block, &context).await else {
                break;
            };
            let Ok((link, records)) = decode_log_block(&data, block.checksum_kind()) else {
                break;
            };
            if ZilSequence::from_checksum(link.next.checksum()) != place.next() {
                break;
            }
            for record in LogRecords::new(records, link.eck.endian) {
                let Ok(record) = record else { break 'chain };
                if let LogBody::Write(write) = &record.body
                    && write.data.is_none()
                    && write.block.birth() >= ctx.txg
                {
                    // A block that was never written must not be claimed.
                    if pipeline.read(&write.block, &context).await.is_err() {
                        break 'chain;
                    }
                    if is_new(&write.block)
                        && let Err(error) = pipeline.claim(ctx.txg, &write.block).await
                    {
                        tracing::warn!(%error, "a block that an intent log refers to cannot be claimed");
                        break 'chain;
                    }
                }
                header.claim_record_sequence = record.sequence;
                records_seen += 1;
            }
            block = link.next;
        }
        header.claim_txg = ctx.txg;
        if records_seen > 0 || blocks > 1 {
            header.flags |= ZilHeader::REPLAY_NEEDED;
        }
        header.flags |= ZilHeader::CLAIM_RECORD_SEQUENCE_VALID;
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
