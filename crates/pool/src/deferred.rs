//! What other releases leave to do: frees that they put off, a checksum salt that they did not
//! make.

use std::sync::Arc;

use dedup::Dedup;
use format::ObjectId;
use object::{Bpobj, Zap, ZapValue};
use parking_lot::Mutex;
use spa::{Participant, Pass, Turn, directory};

/// Frees that are done in one step.
const STEP: u64 = 100_000;

/// The frees that an earlier transaction group put off, of a release without log space maps
/// (`sync_bplist`; `spa_sync_deferred_frees`, module/zfs/spa.c).
pub(crate) struct DeferredFrees {
    object: Mutex<ObjectId>,
    dedup: Arc<Dedup>,
}

impl DeferredFrees {
    /// Those that a MOS object lists, zero without. They wait for logs of dedup tables.
    pub(crate) fn new(object: ObjectId, dedup: &Arc<Dedup>) -> Self {
        DeferredFrees {
            object: Mutex::new(object),
            dedup: dedup.clone(),
        }
    }

    /// The MOS object that lists them; zero without.
    pub(crate) fn set(&self, object: ObjectId) {
        *self.object.lock() = object;
    }
}

impl Participant for DeferredFrees {
    fn late<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            let (spa, id) = (pass.spa, *self.object.lock());
            if id.is_zero() || self.dedup.has_logs() {
                return Ok(());
            }
            let list = Bpobj::open(spa.dsl.mos(), id).await?;
            if list.is_empty().await? {
                return Ok(());
            }
            loop {
                let drained = list
                    .drain(pass.tx, STEP, &mut |block| {
                        spa.pipeline.free(pass.ctx.txg, block);
                        Ok(())
                    })
                    .await;
                if let Some(error) = drained.failed {
                    return Err(error.into());
                }
                if drained.taken < STEP {
                    return Ok(());
                }
            }
        })
    }
}

/// The salt of checksums, which goes into the MOS once (`spa_sync_upgrades`, module/zfs/spa.c).
#[derive(Default)]
pub(crate) struct Salt {
    missing: Mutex<Option<[u8; 32]>>,
}

impl Salt {
    /// It is not in the MOS yet.
    pub(crate) fn set_missing(&self, salt: [u8; 32]) {
        *self.missing.lock() = Some(salt);
    }
}

impl Participant for Salt {
    fn late<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            let missing = self.missing.lock().take();
            if let Some(salt) = missing {
                let directory = Zap::hold(pass.spa.dsl.mos(), ObjectId::POOL_DIRECTORY).await?;
                let value = ZapValue::from_bytes(salt.to_vec());
                directory
                    .add(pass.tx, directory::CHECKSUM_SALT, value)
                    .await?;
            }
            Ok(())
        })
    }
}
