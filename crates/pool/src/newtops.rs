//! Top-level vdevs that get no blocks yet, or none any more.

use format::{Txg, VdevId};
use parking_lot::Mutex;
use spa::{Participant, Spa};
use zio::alloc::{Allocator, settled};

/// Top-level vdevs that blocks can go to once the txg that adds them, makes them bigger, or says
/// that they are back, is on disk. After a crash before that, what is on them would be lost.
#[derive(Default)]
pub(crate) struct NewTops(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// With the txg that tells of them at the latest.
    tops: Vec<(VdevId, Txg)>,
    /// Those that are being emptied, and get nothing meanwhile.
    emptied: Vec<VdevId>,
}

impl NewTops {
    /// The configuration that is written with this txg, at the latest, tells of the vdev.
    pub(crate) fn push(&self, id: VdevId, txg: Txg) {
        self.0.lock().tops.push((id, txg));
    }
}

/// While this is there, vdevs that are to be empty get no blocks, also when their devices come
/// back. Afterwards somebody says where blocks may go (`topology::allow_blocks`).
pub(crate) struct Emptied<'a> {
    new_tops: &'a NewTops,
    allocator: &'a Allocator,
    tops: Vec<VdevId>,
}

impl<'a> Emptied<'a> {
    /// From now on they get nothing.
    pub(crate) fn begin(
        new_tops: &'a NewTops,
        allocator: &'a Allocator,
        tops: Vec<VdevId>,
    ) -> Self {
        new_tops.0.lock().emptied.extend(&tops);
        for id in &tops {
            settled::hold(allocator, *id);
            allocator.set_allocatable(*id, false);
        }
        Emptied {
            new_tops,
            allocator,
            tops,
        }
    }
}

impl Drop for Emptied<'_> {
    fn drop(&mut self) {
        for id in &self.tops {
            settled::release(self.allocator, *id);
        }
        let mut waiting = self.new_tops.0.lock();
        waiting.emptied.retain(|id| !self.tops.contains(id));
    }
}

impl Participant for NewTops {
    fn has_work(&self, _spa: &Spa) -> bool {
        !self.0.lock().tops.is_empty()
    }

    fn done(&self, spa: &Spa, txg: Txg, _wrote: bool) {
        let told: Vec<VdevId> = {
            let mut waiting = self.0.lock();
            let Waiting { tops, emptied } = &mut *waiting;
            tops.extract_if(.., |(_, told_in)| *told_in <= txg)
                .map(|(id, _)| id)
                .filter(|id| !emptied.contains(id))
                .collect()
        };
        let tops = told.into_iter().filter_map(|id| spa.tree.top(id));
        for spec in tops.filter_map(|top| vdev::TopSpec::of(&top)) {
            spa.pipeline.allocator().add_top(spec);
        }
    }
}
