//! Destroying what interrupted receives left.

use std::sync::Arc;

use device::BoxFuture;
use format::ObjectId;
use object::{SyncContext, Zap};

use crate::DatasetError;
use crate::destroy::Destroyer;
use crate::dsl::DslPool;
use crate::obstacle::ReceiveObstacle;
use crate::resume::CLONE_NAME;
use crate::task::{SpaceCheck, SyncTask};

impl Destroyer<'_> {
    /// Destroys what a receive left that nobody goes on with.
    pub(crate) async fn destroy_rest(&self, object: ObjectId) -> Result<(), DatasetError> {
        let dsl = self.dsl.clone();
        let task = AbortTask { dsl, object };
        self.dsl.tasks().run(Arc::new(task)).await
    }

    /// Destroys the rest of an interrupted receive into `name`, if that is all there is below it
    /// (`zfs_ioc_destroy`, module/zfs/zfs_ioctl.c). Whether it did.
    pub(super) async fn destroy_rest_below(&self, name: &str) -> Result<bool, DatasetError> {
        let object = {
            let _config = self.dsl.config.read().await;
            let directories = self.dsl.directories();
            let dir = directories.resolve(name).await?.dir();
            let children = dir.state().phys.child_directories;
            if Zap::hold(self.dsl.mos(), children).await?.count().await? != 1 {
                return Ok(false);
            }
            let Some(hidden) = directories.child_dir(&dir, CLONE_NAME).await? else {
                return Ok(false);
            };
            let rest = directories.head(&hidden).await?;
            if rest.hold_count() > 0 {
                return Ok(false);
            }
            rest.object
        };
        self.destroy_rest(object).await?;
        Ok(true)
    }
}

struct AbortTask {
    dsl: Arc<DslPool>,
    object: ObjectId,
}

impl SyncTask for AbortTask {
    fn name(&self) -> &'static str {
        "give up receiving"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::ExtraReserved
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let dataset = self.dsl.directories().dataset(self.object).await?;
            if !dataset.is_inconsistent() {
                return Err(DatasetError::Receive {
                    name: self.dsl.directories().full_name(&dataset).await?,
                    obstacle: ReceiveObstacle::NothingToResume,
                });
            }
            self.dsl.destroyer().check_destroy_head(&dataset).await
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let dataset = self.dsl.directories().dataset(self.object).await?;
            self.dsl.destroyer().destroy_head_now(ctx, &dataset).await
        })
    }
}
