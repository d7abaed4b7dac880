//! Space's turns in a transaction group: after everything that allocates or frees.

use format::Txg;
use space::Space;

use crate::Spa;
use crate::participant::{Participant, Pass, Turn};

impl Participant for Space {
    fn has_work(&self, _spa: &Spa) -> bool {
        self.is_flushing_all()
    }

    fn pass<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            let (spa, sync, dirty) = (pass.spa, pass.space(), pass.is_dirty());
            if dirty && self.sync_arrays(&sync).await? {
                for (vdev, array) in self.arrays() {
                    if let Some(top) = spa.tree.top(vdev)
                        && let Some(numbers) = top.top()
                    {
                        numbers.set_metaslabs(array.get(), top.metaslab_shift());
                    }
                }
                spa.identity.mark_dirty();
            }
            let flush_all = pass.is_first() && self.take_flush_all();
            Ok(self.sync_pass(&sync, dirty, flush_all).await?)
        })
    }

    fn done(&self, _spa: &Spa, _txg: Txg, _wrote: bool) {
        self.sync_done();
    }
}
