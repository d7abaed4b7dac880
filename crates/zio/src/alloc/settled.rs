//! What is allocated and stays as it is for a while: what a sequential rebuild may copy. And what
//! may be allocated at all, which a RAID-Z expansion moves.
//!
//! **In the first pass of a txg**, before its changes are recorded, everything that earlier txgs
//! allocated was written, and is written no more but for blocks of intent logs. What is freed from
//! now on can be allocated again when this txg is on disk, at the earliest. Blocks of this and of
//! later txgs may be just being written, and are left out; so is what was freed and waits, which no
//! state has from now on that an import may choose and that says that the range was copied.

use std::pin::pin;

use format::{Txg, VdevId};
use vdev::RangeSet;

use super::Allocator;
use super::metaslab::Loaded;

/// What [`Allocator::settled`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// What is allocated of the metaslab for good, as offsets on the vdev.
    Ranges(RangeSet),
    /// The space map cannot be read: nobody knows.
    Unknown,
    /// The vdev has no such metaslab.
    End,
}

impl Allocator {
    /// What of a metaslab is not free for whoever allocates next: what is allocated in any state
    /// that an import may choose or that is being written, what waits, and what trimming holds.
    /// `None` while its space map is not in memory ([`Self::settled`] loads it).
    pub fn occupied(&self, vdev: VdevId, metaslab: u64) -> Option<RangeSet> {
        let entry = self.entry(vdev)?;
        let top = entry.top.lock();
        top.metaslab(usize::try_from(metaslab).ok()?)?.occupied()
    }

    /// What of a metaslab is allocated, in syncing context of `txg`, in its first pass: until that
    /// txg is on disk, none of it is allocated again.
    pub async fn settled(&self, txg: Txg, vdev: VdevId, metaslab: u64) -> Settled {
        let Some(entry) = self.entry(vdev) else {
            return Settled::End;
        };
        let Ok(index) = usize::try_from(metaslab) else {
            return Settled::End;
        };
        loop {
            let mut loads = pin!(self.loads.notified());
            loads.as_mut().enable();
            let is_to_load = {
                let mut top = entry.top.lock();
                let Some(metaslab) = top.metaslab_mut(index) else {
                    return Settled::End;
                };
                match metaslab.loaded {
                    Loaded::Yes(_) => {
                        let settled = metaslab.settled();
                        return settled.map_or(Settled::Unknown, Settled::Ranges);
                    }
                    Loaded::Broken => return Settled::Unknown,
                    Loaded::Loading => false,
                    Loaded::No => {
                        metaslab.loaded = Loaded::Loading;
                        true
                    }
                }
            };
            match is_to_load {
                true => self.load(txg, &entry, index, false).await,
                false => loads.await,
            }
        }
    }
}
