//! The datasets of a pool as a whole: making and opening them
//! (`dsl_pool_create`, `dsl_pool_open`, module/zfs/dsl_pool.c).
//!
//! # What a crash leaves
//! Nothing of a txg is visible before its uberblock: a crash leaves the txg before, whole.

use std::sync::Arc;

use device::BoxFuture;
use format::{BlockPointer, ObjectId, ObjectType, ObjsetKind, names};
use object::{ObjectSet, ObjsetOptions, SyncContext, Zap, ZapOptions};
use zio::Tx;

use crate::DatasetError;
use crate::create::CreateParams;
use crate::dsl::{DslEnvironment, DslPool};
use crate::features::{Features, guid};
use crate::settings::mos_properties;
use crate::version::{DEADLISTS, FEATURES, PoolVersion};

/// Objects of the MOS kept in memory although nobody uses them, which a dataset has six of. What
/// they take is the cache's, and is given back where that is short.
const MOS_OBJECT_CACHE: usize = 128 << 10;

impl DslPool {
    /// Makes the MOS of a new pool, its feature flags, where its version has them, and its first
    /// datasets, in syncing context (`dsl_pool_create`, module/zfs/dsl_pool.c). `ctx.txg` must be
    /// [`Txg::INITIAL`] or later.
    ///
    /// # Errors
    /// Of writing, and of properties or features that are not valid.
    pub fn create<'a>(
        env: DslEnvironment,
        ctx: &'a SyncContext,
        params: CreateParams,
    ) -> BoxFuture<'a, Result<Arc<Self>, DatasetError>> {
        Box::pin(async move {
            let tx = Tx::syncing(ctx.txg);
            let is_enabled = |guid: &str| params.features.iter().any(|enabled| enabled == guid);
            let options = ObjsetOptions {
                properties: mos_properties(is_enabled(guid::LZ4_COMPRESS)),
                hole_birth: is_enabled(guid::HOLE_BIRTH),
                embedded_data: is_enabled(guid::EMBEDDED_DATA),
                lz4_metadata: is_enabled(guid::LZ4_COMPRESS),
                read_only: false,
                encrypted: false,
                without_key: false,
                raw: false,
                accounts: PoolVersion::new(env.spa_version).has_accounts(),
                block_bytes_max: format::MAX_BLOCK_BYTES as u32,
                object_cache_limit: MOS_OBJECT_CACHE,
                dataset: ObjectId::ZERO,
            };
            let mos = ObjectSet::create(
                env.pipeline.clone(),
                env.world.clone(),
                ObjsetKind::Meta,
                options,
                &tx,
            );
            let mut directory_options = ZapOptions::new(ObjectType::OBJECT_DIRECTORY);
            directory_options.claim = Some(ObjectId::POOL_DIRECTORY);
            let directory = Zap::create(&mos, &tx, directory_options).await?;
            let (has_flags, has_free_list) =
                (env.spa_version >= FEATURES, env.spa_version >= DEADLISTS);
            let features = match has_flags {
                true => Features::create(&mos, &directory, &tx).await?,
                false => Features::open(&mos).await?,
            };
            let dsl = Arc::new(DslPool::assemble(env, mos, directory, features));

            let directories = dsl.directories();
            let root = dsl.datasets().create_dir(ctx, None, "").await?;
            let object = root.object.get();
            dsl.directory
                .add_u64(&tx, names::pool::ROOT_DATASET, object)
                .await?;
            directories.set_root(root.clone());
            let mos_dir = dsl
                .datasets()
                .create_dir(ctx, Some(&root), names::hidden_directory::MOS)
                .await?;
            dsl.syncer().set_mos_dir(mos_dir);
            if has_free_list {
                dsl.destroyer().create(ctx, &root).await?;
            }
            dsl.datasets().create_origin(ctx).await?;
            // The lists of a new pool are its own, so that the feature is active with the first
            // dataset that a user makes.
            let (last, first): (Vec<_>, Vec<_>) =
                (params.features.iter()).partition(|guid| *guid == guid::EMPTY_BPOBJ);
            for guid in first {
                dsl.features().enable(ctx, guid).await?;
            }
            dsl.datasets().create_root_dataset(ctx, &params).await?;
            for guid in last {
                dsl.features().enable_unrecorded(ctx, guid).await?;
            }
            dsl.syncer().flush_structures(ctx).await?;
            Ok(dsl)
        })
    }

    /// Opens the datasets of an existing pool.
    ///
    /// # Errors
    /// Of reading, and when the MOS is damaged.
    pub async fn open(env: DslEnvironment, root: BlockPointer) -> Result<Arc<Self>, DatasetError> {
        let mut options = ObjsetOptions {
            properties: mos_properties(true),
            hole_birth: true,
            embedded_data: true,
            lz4_metadata: true,
            read_only: env.read_only,
            encrypted: false,
            without_key: false,
            raw: false,
            accounts: PoolVersion::new(env.spa_version).has_accounts(),
            block_bytes_max: format::MAX_BLOCK_BYTES as u32,
            object_cache_limit: MOS_OBJECT_CACHE,
            dataset: ObjectId::ZERO,
        };
        let open =
            |options| ObjectSet::open(env.pipeline.clone(), env.world.clone(), root, options);
        let mut mos = open(options.clone()).await?;
        let mut features = Features::open(&mos).await?;
        // Only the features say how the MOS is to be written; most pools have them all.
        let lz4 = features.is_active(guid::LZ4_COMPRESS);
        let wanted = (
            features.is_active(guid::HOLE_BIRTH),
            features.is_active(guid::EMBEDDED_DATA),
            lz4,
        );
        if wanted != (true, true, true) {
            options.properties = mos_properties(lz4);
            (
                options.hole_birth,
                options.embedded_data,
                options.lz4_metadata,
            ) = wanted;
            mos = open(options).await?;
            features = Features::open(&mos).await?;
        }
        let directory = Zap::hold(&mos, ObjectId::POOL_DIRECTORY).await?;
        let dsl = Arc::new(DslPool::assemble(env, mos, directory, features));
        dsl.load().await?;
        Ok(dsl)
    }

    async fn load(self: &Arc<Self>) -> Result<(), DatasetError> {
        let root = self.directory.lookup_u64(names::pool::ROOT_DATASET).await?;
        let root = root.ok_or_else(|| {
            DatasetError::corrupt(
                ObjectId::POOL_DIRECTORY,
                "the object directory names no root dataset",
            )
        })?;
        let directories = self.directories();
        directories.load(root.into()).await?;
        let mos_dir = directories.child_dir(directories.root_dir(), names::hidden_directory::MOS);
        if let Some(dir) = mos_dir.await? {
            self.syncer().set_mos_dir(dir);
        }
        self.destroyer().load().await?;
        self.lists.load().await?;
        self.holds().note_interrupted();
        Ok(())
    }
}
