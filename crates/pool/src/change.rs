//! Changes of pool properties, in syncing context (`spa_sync_props`, module/zfs/spa.c).
//!
//! What was said with `zpool set` or `zpool upgrade` was checked by [`spa::props`]; here it goes
//! into the MOS and into what the open pool knows, in one transaction group.

use std::sync::Arc;

use dataset::{DatasetError, SyncTask};
use device::BoxFuture;
use format::{ObjectId, ObjectType};
use object::{SyncContext, Zap, ZapOptions, ZapValue};
use spa::props::{Change, Stored};
use spa::{bootfs, directory, features};
use zio::Tx;

use crate::core::Core;

/// Changes a pool property.
pub(crate) struct ChangeTask {
    pub(crate) core: Arc<Core>,
    pub(crate) change: Change,
}

impl SyncTask for ChangeTask {
    fn name(&self) -> &'static str {
        "set pool property"
    }

    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            match self.change {
                Change::Version(version) => self.core.dsl.check_upgrade(version).await,
                _ => Ok(()),
            }
        })
    }

    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(apply_change(&self.core, &self.change, ctx))
    }
}

/// Applies a change of a pool property. Syncing context only.
pub(crate) async fn apply_change(
    core: &Core,
    change: &Change,
    ctx: &SyncContext,
) -> Result<(), DatasetError> {
    let tx = Tx::syncing(ctx.txg);
    match change {
        Change::Session(..) => {}
        Change::Version(version) => {
            // What follows has to be in one txg: an uberblock of a version without what came with
            // it is no pool.
            core.dsl.upgrade(ctx, *version).await?;
            {
                let mut pairs = core.identity.lock();
                pairs.version = pairs.version.max(*version);
                pairs.dirty = true;
            }
            core.history
                .internal(&tx, "set", format!("version={version}"))
                .await;
        }
        Change::Feature(name) => {
            let guid = features::guid_to_enable(name).expect("checked before it was queued");
            core.dsl.features().enable(ctx, guid).await?;
            if guid == features::HEAD_ERRLOG {
                core.errors.upgrade();
            }
            {
                let mut pairs = core.identity.lock();
                let errata = features::errata(core.dsl.features(), pairs.errata);
                pairs.dirty |= errata != pairs.errata;
                pairs.errata = errata;
            }
            let short = guid.rsplit(':').next().unwrap_or(guid);
            core.history
                .internal(&tx, "set", format!("feature@{short}=enabled"))
                .await;
        }
        Change::Config(name, text) => {
            {
                let mut pairs = core.identity.lock();
                let value = (!text.is_empty()).then(|| text.clone());
                match *name {
                    "comment" => pairs.comment = value,
                    _ => pairs.compatibility = value,
                }
                pairs.dirty = true;
            }
            core.history
                .internal(&tx, "set", format!("{name}={text}"))
                .await;
        }
        Change::Stored(name, stored) => {
            let mos = core.dsl.mos();
            let known = core.props.lock().object;
            let zap = if known.is_zero() {
                let zap = Zap::create(mos, &tx, ZapOptions::new(ObjectType::POOL_PROPS)).await?;
                let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
                directory
                    .update_u64(&tx, directory::POOL_PROPS, zap.id().get())
                    .await?;
                core.props.lock().object = zap.id();
                zap
            } else {
                Zap::hold(mos, known).await?
            };
            let text = match stored {
                Stored::Number(number) => {
                    zap.update_u64(&tx, name, *number).await?;
                    number.to_string()
                }
                Stored::Text(text) if text.is_empty() => {
                    if zap.lookup(name).await?.is_some() {
                        zap.remove(&tx, name).await?;
                    }
                    String::new()
                }
                Stored::Text(text) => {
                    zap.update(&tx, name, ZapValue::from_str_z(text)).await?;
                    text.clone()
                }
            };
            match stored {
                Stored::Number(dataset) if name == bootfs::NAME => {
                    core.bootfs.set(mos, zap.id(), ObjectId::new(*dataset));
                }
                Stored::Text(text) if text.is_empty() => {
                    core.props.lock().stored.remove(name);
                }
                stored => {
                    let mut values = core.props.lock();
                    values.stored.insert(name.clone(), stored.clone());
                }
            }
            core.apply_fail_mode();
            core.apply_dedup_quota();
            core.passes.apply_autotrim();
            core.history
                .internal(&tx, "set", format!("{name}={text}"))
                .await;
        }
    }
    Ok(())
}
