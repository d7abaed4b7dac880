//! The parts of an open pool, put together: shared by its handle and its sync loop.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use dedup::{QUOTA_AUTO, SharedBlocks};
use device::Tasks;
use format::Guid;
use parking_lot::Mutex;
use scan::Scans;
use spa::events::SpareDevices;
use spa::props::Stored;
use spa::{Participant, Spa};
use trim::Passes;

use crate::PoolError;
use crate::auxiliary::Auxiliary;
use crate::checkpoint::Checkpoint;
use crate::claims::LogClaims;
use crate::condensing::Condensing;
use crate::deferred::{DeferredFrees, Salt};
use crate::evacuation::Evacuation;
use crate::gone::Replacements;
use crate::newtops::NewTops;

/// An open pool. It is its ground ([`Spa`]) and the parts that stand on it, which do not see it.
pub(crate) struct Core {
    /// The ground that all parts stand on.
    pub(crate) spa: Arc<Spa>,
    /// Scrub, resilver, rebuilds.
    pub(crate) scans: Arc<Scans>,
    /// Tables of blocks that are shared: dedup, clones.
    pub(crate) shared_blocks: SharedBlocks,
    /// Heartbeats of multi-host protection.
    pub(crate) heart: crate::heart::Heart,
    /// Passes over free space: autotrim, trimming, initializing.
    pub(crate) passes: Arc<Passes>,
    /// Spares and second-level cache devices, as the MOS lists them.
    pub(crate) auxiliary: Mutex<Auxiliary>,
    /// The pool's checkpoint.
    pub(crate) checkpoint: Checkpoint,
    /// Logs that the first transaction group claims.
    pub(crate) claims: LogClaims,
    /// The salt of checksums, until the MOS has it.
    pub(crate) salt: Salt,
    /// Frees that another release put off.
    pub(crate) deferred_frees: DeferredFrees,
    /// Top-level vdevs that are being added.
    pub(crate) new_tops: Arc<NewTops>,
    /// The removal of a vdev, under way or the last one.
    pub(crate) evacuation: Arc<Evacuation>,
    /// Mappings of removed vdevs that are made smaller.
    pub(crate) condensing: Arc<Condensing>,
    /// Devices that have been replaced.
    pub(crate) replacements: Replacements,
    /// Devices that spares are to stand in for.
    pub(crate) spares: Arc<crate::standby::Spares>,
    /// Devices in whose places there is something that cannot replace them.
    pub(crate) returned: Mutex<BTreeSet<Guid>>,
    /// The sync loop.
    pub(crate) looping: Tasks,
}

impl Deref for Core {
    type Target = Spa;

    fn deref(&self) -> &Spa {
        &self.spa
    }
}

impl Core {
    /// Those who take part in writing a transaction group, in the order of turns.
    pub(crate) fn participants(&self) -> [&dyn Participant; 16] {
        [
            &self.claims,
            &*self.history,
            &self.salt,
            // What it finds out goes into error and dirty time logs. Rebuilds come before this
            // txg's changes of space are recorded.
            &*self.scans,
            // Frees settle in what follows.
            &self.deferred_frees,
            &*self.errors,
            &self.shared_blocks,
            &self.checkpoint,
            &self.passes.autotrim,
            // Goes on with a removal and with condensing, and ends replacements, which frees dirty
            // times.
            self,
            // With devices, their ZAPs go.
            &self.passes.activities,
            &self.dirty_times,
            // Whatever allocates or frees does so before.
            &*self.space,
            &*self.new_tops,
            // Tells what the others did to the vdevs.
            &self.identity,
            &self.txg_times,
        ]
    }

    /// Tells the dedup tables what property `dedup_table_quota` says.
    pub(crate) fn apply_dedup_quota(&self) {
        let stored = self.props.get("dedup_table_quota");
        self.shared_blocks.dedup.set_quota(match stored {
            Some(Stored::Number(bytes)) => bytes,
            _ => QUOTA_AUTO,
        });
    }

    /// Lets go of everything; the sync loop has ended.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.scans.closed();
        self.evacuation.closed();
        self.shared_blocks.forecast.closed();
        self.pipeline.second_level().abandon();
        self.auxiliary.lock().release();
        self.dsl.tasks().close();
        // Of a pool that is given up, some may wait for devices that never answer.
        self.pipeline.tasks().cancel();
        self.space.close();
        self.tree.close();
        // Others may have the memory at once, whoever still has a handle on this pool.
        self.pipeline.cache().clear();
    }

    /// Waits until the sync loop has ended.
    pub(crate) async fn wait_ended(&self) {
        self.looping.wait().await;
    }

    /// Refuses what a pool cannot do that is closed.
    pub(crate) fn check_open(&self) -> Result<(), PoolError> {
        if self.state.lock().closed {
            return Err(PoolError::Closed {
                pool: self.identity.name(),
            });
        }
        Ok(())
    }

    /// Refuses also what a pool cannot do that is open read-only.
    pub(crate) fn check_writeable(&self) -> Result<(), PoolError> {
        self.check_open()?;
        if self.read_only {
            return Err(PoolError::ReadOnly {
                pool: self.identity.name(),
            });
        }
        Ok(())
    }
}

impl SpareDevices for Core {
    fn listed(&self) -> (Vec<String>, Vec<u64>) {
        let auxiliary = self.auxiliary.lock();
        let spares = auxiliary.spares.statuses.iter();
        let known = |(path, guid): (Option<String>, Guid)| Some((path?, guid.get()));
        spares
            .map(|spare| (spare.path.clone(), spare.guid))
            .filter_map(known)
            .unzip()
    }

    fn want(&self, device: Guid) {
        self.spares.want(device);
    }
}

impl Drop for Core {
    /// Also for a pool that nobody closed: the task that lets spares stand in ends.
    fn drop(&mut self) {
        self.spares.end();
    }
}
