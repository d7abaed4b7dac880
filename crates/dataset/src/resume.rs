//! How far receives came that were interrupted or are under way: in the ZAP of the dataset that is
//! received into, and as a token.

use std::sync::Arc;

use format::{Guid, ObjectId, names};
use object::{SyncContext, Zap, ZapValue};
use zio::Tx;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::state::{Ds, ResumePoint, slot};
use crate::token::ResumeToken;

/// Name of the clone that a receive into an existing dataset writes to (`recv_clone_name`).
pub(crate) const CLONE_NAME: &str = "%recv";

/// Receiving: [`DslPool::receives`].
#[derive(Clone, Copy)]
pub struct Receives<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Receiving streams.
    pub fn receives(self: &Arc<Self>) -> Receives<'_> {
        Receives { dsl: self }
    }
}

impl Receives<'_> {
    pub(crate) async fn resume_point(&self, object: ObjectId) -> Result<ResumePoint, DatasetError> {
        let zap = Zap::hold(self.dsl.mos(), object).await?;
        let number = async |name: &str| -> Result<u64, DatasetError> {
            Ok(zap.lookup_u64(name).await?.unwrap_or(0))
        };
        Ok(ResumePoint {
            object: number(names::dataset::RESUME_OBJECT).await?,
            offset_bytes: number(names::dataset::RESUME_OFFSET).await?,
            stream_bytes: number(names::dataset::RESUME_BYTES).await?,
        })
    }

    /// The dataset with the rest of a receive that was interrupted and that can be gone on with.
    pub(crate) async fn partial(&self, name: &str) -> Result<Option<Arc<Ds>>, DatasetError> {
        let Some(rest) = self.rest(name).await? else {
            return Ok(None);
        };
        let is_partial = self.has_resume_state(&rest).await?;
        Ok(is_partial.then_some(rest))
    }

    /// The dataset with what a receive has received or left: the hidden clone of `name`, or itself.
    pub(crate) async fn rest(&self, name: &str) -> Result<Option<Arc<Ds>>, DatasetError> {
        let directories = self.dsl.directories();
        let head = directories.resolve(name).await?;
        if head.is_snapshot() {
            return Ok(None);
        }
        let hidden = directories.child_dir(&head.dir(), CLONE_NAME).await?;
        let dataset = match hidden {
            Some(dir) => directories.head(&dir).await?,
            None => head,
        };
        Ok(dataset.is_inconsistent().then_some(dataset))
    }

    pub(crate) async fn has_resume_state(&self, dataset: &Arc<Ds>) -> Result<bool, DatasetError> {
        let is_zapified = dataset.state().is_zapified;
        if !is_zapified {
            return Ok(false);
        }
        let zap = Zap::hold(self.dsl.mos(), dataset.object).await?;
        Ok(zap
            .lookup_u64(names::dataset::RESUME_TOGUID)
            .await?
            .is_some())
    }

    /// Property `receive_resume_token` (`get_receive_resume_token`, module/zfs/dsl_dataset.c).
    pub(crate) async fn token(&self, name: &str) -> Result<Option<String>, DatasetError> {
        let Some(dataset) = self.partial(name).await? else {
            return Ok(None);
        };
        let zap = Zap::hold(self.dsl.mos(), dataset.object).await?;
        use names::dataset as field;
        let number = async |name: &str| -> Result<Option<u64>, DatasetError> {
            Ok(zap.lookup_u64(name).await?)
        };
        let to_name = zap.lookup(field::RESUME_TONAME).await?;
        let to_name = to_name.as_ref().and_then(ZapValue::as_str);
        let redacted = zap.lookup(field::RESUME_REDACT_BOOKMARK_SNAPS).await?;
        let token = ResumeToken {
            from_guid: number(field::RESUME_FROMGUID).await?.map(Guid::new),
            object: number(field::RESUME_OBJECT).await?.unwrap_or(0),
            offset_bytes: number(field::RESUME_OFFSET).await?.unwrap_or(0),
            stream_bytes: number(field::RESUME_BYTES).await?.unwrap_or(0),
            to_guid: Guid::new(number(field::RESUME_TOGUID).await?.unwrap_or(0)),
            to_name: to_name.unwrap_or_default().to_owned(),
            large_blocks: number(field::RESUME_LARGEBLOCK).await?.is_some(),
            embedded: number(field::RESUME_EMBEDOK).await?.is_some(),
            compressed: number(field::RESUME_COMPRESSOK).await?.is_some(),
            raw: number(field::RESUME_RAWOK).await?.is_some(),
            redact_snaps: dataset
                .redacted_with()
                .map(|guids| guids.iter().map(|guid| guid.get()).collect()),
            redacted_with: redacted.map(|value| value.to_u64s()),
        };
        Ok(Some(token.encode()))
    }

    /// Stores how far a receive came with the txg that is written (`dsl_dataset_sync`).
    pub(crate) async fn save(&self, ctx: &SyncContext, head: &Arc<Ds>) -> Result<(), DatasetError> {
        let received = head.state().received[slot(ctx.txg)].take();
        let Some(point) = received else { return Ok(()) };
        let tx = Tx::syncing(ctx.txg);
        let zap = Zap::hold(self.dsl.mos(), head.object).await?;
        for (name, number) in [
            (names::dataset::RESUME_OBJECT, point.object),
            (names::dataset::RESUME_OFFSET, point.offset_bytes),
            (names::dataset::RESUME_BYTES, point.stream_bytes),
        ] {
            zap.update_u64(&tx, name, number).await?;
        }
        Ok(())
    }
}
