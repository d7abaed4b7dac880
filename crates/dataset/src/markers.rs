//! Markers of features on datasets, and objects that become ZAPs: what several parts change of the
//! objects of directories and datasets, in syncing context.

use std::sync::Arc;

use format::{ObjectId, ObjectType};
use object::{SyncContext, Zap};
use zio::Tx;

use crate::DatasetError;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::state::{Dir, Ds};

impl DslPool {
    /// Adds a marker of a feature to a dataset (`dsl_dataset_activate_feature`).
    pub(crate) async fn activate_feature(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        feature: &str,
        value: object::ZapValue,
    ) -> Result<(), DatasetError> {
        if !self.features().is_enabled(feature) {
            // Old pools write without the marker what needs none.
            tracing::debug!(feature, "used although it is not enabled");
            return Ok(());
        }
        self.features().increment(ctx, feature).await?;
        let zap = self.zapify_dataset(ctx, dataset).await?;
        zap.add(&Tx::syncing(ctx.txg), feature, value.clone())
            .await?;
        dataset.state().features.insert(feature.to_owned(), value);
        Ok(())
    }

    /// Removes a marker of a feature (`dsl_dataset_deactivate_feature`).
    pub(crate) async fn deactivate_feature(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
        feature: &str,
    ) -> Result<(), DatasetError> {
        let zap = Zap::hold(self.mos(), dataset.object).await?;
        zap.remove(&Tx::syncing(ctx.txg), feature).await?;
        self.features().decrement(ctx, feature).await?;
        dataset.state().features.remove(feature);
        Ok(())
    }

    /// Makes a dataset's object a ZAP too (`dmu_object_zapify`).
    pub(crate) async fn zapify_dataset(
        &self,
        ctx: &SyncContext,
        dataset: &Arc<Ds>,
    ) -> Result<Zap, DatasetError> {
        if dataset.state().is_zapified {
            return Ok(Zap::hold(self.mos(), dataset.object).await?);
        }
        let zap = self
            .zapify(ctx, dataset.object, ObjectType::DSL_DATASET)
            .await?;
        dataset.state().is_zapified = true;
        Ok(zap)
    }

    /// Makes a directory's object a ZAP too.
    pub(crate) async fn zapify_dir(
        &self,
        ctx: &SyncContext,
        dir: &Arc<Dir>,
    ) -> Result<Zap, DatasetError> {
        if dir.state().is_zapified {
            return Ok(Zap::hold(self.mos(), dir.object).await?);
        }
        let zap = self.zapify(ctx, dir.object, ObjectType::DSL_DIR).await?;
        dir.state().is_zapified = true;
        Ok(zap)
    }

    async fn zapify(
        &self,
        ctx: &SyncContext,
        object: ObjectId,
        old_type: ObjectType,
    ) -> Result<Zap, DatasetError> {
        let zap = Zap::zapify(self.mos(), &Tx::syncing(ctx.txg), object, old_type).await?;
        self.features()
            .increment(ctx, guid::EXTENSIBLE_DATASET)
            .await?;
        Ok(zap)
    }

    /// Frees an object that may have been made a ZAP (`dmu_object_free_zapified`).
    pub(crate) async fn free_zapified(
        &self,
        ctx: &SyncContext,
        object: ObjectId,
        is_zapified: bool,
    ) -> Result<(), DatasetError> {
        if is_zapified {
            self.features()
                .decrement(ctx, guid::EXTENSIBLE_DATASET)
                .await?;
        }
        self.mos().free(&Tx::syncing(ctx.txg), object).await?;
        Ok(())
    }
}
