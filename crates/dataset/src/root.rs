//! Root blocks of object sets, as they are stored.

use std::sync::Arc;

use bytes::Bytes;
use format::{Endian, ObjsetPhys};
use zio::ReadContext;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::state::Ds;

impl DslPool {
    /// A dataset's root block, which is in the clear also when it is encrypted. Its MACs are not
    /// checked: they do not cover the log's head.
    pub(crate) async fn root_block(
        &self,
        dataset: &Arc<Ds>,
    ) -> Result<(Bytes, Endian), DatasetError> {
        let block = dataset.phys().block;
        let context = ReadContext {
            without_key: true,
            ..ReadContext::new(format::Bookmark {
                objset: dataset.object.get().into(),
                level: -1,
                ..format::Bookmark::default()
            })
        };
        let data = self.env().pipeline.read(&block, &context).await?;
        Ok((data, block.endian()))
    }

    /// The same, decoded.
    pub(crate) async fn root_of(&self, dataset: &Arc<Ds>) -> Result<ObjsetPhys, DatasetError> {
        let (data, endian) = self.root_block(dataset).await?;
        Ok(ObjsetPhys::decode(&data, endian)?)
    }

    /// Whether a head was changed since one of its snapshots (`dsl_dataset_modified_since_snap`).
    /// That its log was is none.
    pub(crate) async fn is_modified_since(
        &self,
        head: &Arc<Ds>,
        snapshot: &Arc<Ds>,
    ) -> Result<bool, DatasetError> {
        let (now, then) = (head.phys().block, snapshot.phys());
        if now.is_hole() || now.birth() <= then.creation_txg {
            return Ok(false);
        }
        let (now, then) = (self.root_of(head), self.root_of(snapshot));
        Ok(now.await?.meta_dnode != then.await?.meta_dnode)
    }
}
