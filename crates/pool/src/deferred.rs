//! What other releases leave to do: frees that they put off, a checksum salt that they did not make.

use format::ObjectId;
use object::{Bpobj, Zap, ZapValue};
use parking_lot::Mutex;

use crate::directory;
use crate::participant::{Participant, Pass, Turn};

/// Frees that are done in one step.
const STEP: u64 = 100_000;

/// The frees that an earlier transaction group put off, of a release without log space maps
/// (`sync_bplist`; `spa_sync_deferred_frees`, module/zfs/spa.c).
#[derive(Default)]
pub(crate) struct DeferredFrees {
    object: Mutex<ObjectId>,
}

impl DeferredFrees {
    /// The MOS object that lists them; zero without.
    pub(crate) fn set(&self, object: ObjectId) {
        *self.object.lock() = object;
    }
}

impl Participant for DeferredFrees {
    fn late<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            let (core, id) = (pass.core, *self.object.lock());
            if id.is_zero() || core.dedup.has_logs() {
                return Ok(());
            }
            let list = Bpobj::open(core.dsl.mos(), id).await?;
            if list.is_empty().await? {
                return Ok(());
            }
            loop {
                let drained = list
                    .drain(pass.tx, STEP, &mut |block| {
                        core.pipeline.free(pass.ctx.txg, block);
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
                let directory = Zap::hold(pass.core.dsl.mos(), ObjectId::POOL_DIRECTORY).await?;
                let value = ZapValue::from_bytes(salt.to_vec());
                directory
                    .add(pass.tx, directory::CHECKSUM_SALT, value)
                    .await?;
            }
            Ok(())
        })
    }
}
