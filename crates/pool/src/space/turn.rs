//! Space's turns in a transaction group: after everything that allocates or frees.

use std::sync::atomic::Ordering;

use format::Txg;

use super::Space;
use crate::core::Core;
use crate::participant::{Participant, Pass, Turn};

impl Participant for Space {
    fn has_work(&self, _core: &Core) -> bool {
        self.flush_all.load(Ordering::Relaxed)
    }

    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            let (core, sync, dirty) = (pass.core, pass.space(), pass.is_dirty());
            if dirty && self.sync_arrays(&sync).await? {
                for (vdev, array) in self.arrays() {
                    if let Some(top) = core.tree.top(vdev) {
                        top.set_metaslabs(array.get(), top.metaslab_shift());
                    }
                }
                core.identity.mark_dirty();
            }
            let flush_all = pass.is_first() && self.flush_all.swap(false, Ordering::Relaxed);
            Ok(self.sync_pass(&sync, dirty, flush_all).await?)
        })
    }

    fn done(&self, _core: &Core, _txg: Txg, _wrote: bool) {
        self.sync_done();
    }
}
