//! Pools on simulated disks, for this crate's tests.

use std::sync::Arc;

use device::sim::SimWorld;
use format::{Guid, NvList, Txg};
pub(crate) use vdev::testing::{DISK_BYTES, Reports, group, leaf, noise, simulate};
use vdev::testing::{pool_config, root};
use vdev::{OpenOptions, VdevTree};

use crate::alloc::{AllFree, Allocator};
use crate::cache::Cache;
use crate::pipeline::{Pipeline, PipelineOptions};

pub(crate) struct TestPool {
    pub(crate) sim: SimWorld,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) reports: Arc<Reports>,
}

impl TestPool {
    /// A new, labelled pool whose space is all free.
    pub(crate) async fn create(sim: SimWorld, tops: Vec<NvList>, ashift: u64) -> TestPool {
        let config = root(tops, ashift);
        let options = OpenOptions {
            create: true,
            ..OpenOptions::default()
        };
        let tree = VdevTree::open(sim.world(), &config, options)
            .await
            .expect("opens");
        tree.init_labels(&tree.tops(), &pool_config(0), Txg::INITIAL)
            .await
            .expect("labelled");
        TestPool::over(sim, tree)
    }

    pub(crate) fn over(sim: SimWorld, tree: Arc<VdevTree>) -> TestPool {
        let allocator = Allocator::new();
        let mut shift = 0;
        for top in tree.tops() {
            // Removed vdevs have no space.
            if let Some(spec) = vdev::TopSpec::of(&top) {
                shift = spec.metaslab_shift;
                allocator.add_top(spec);
            }
        }
        allocator.set_source(Arc::new(AllFree {
            metaslab_shift: shift,
        }));
        let reports = Arc::new(Reports::default());
        let pipeline = Pipeline::new(
            sim.world(),
            tree,
            Arc::new(allocator),
            Arc::new(Cache::new(16 << 20)),
            PipelineOptions::default(),
            reports.clone(),
        );
        TestPool {
            sim,
            pipeline,
            reports,
        }
    }

    /// Opens the pool again from its labels' point of view, read from the same configuration.
    pub(crate) async fn reopen(&self) -> Arc<VdevTree> {
        let config = self.pipeline.tree().to_config(vdev::Scope::Mos);
        self.pipeline.tree().close();
        let options = OpenOptions {
            pool_guid: Some(Guid::new(1)),
            ..OpenOptions::default()
        };
        VdevTree::open(self.sim.world(), &config, options)
            .await
            .expect("opens")
    }

    pub(crate) fn disk(&self, name: &str) -> device::sim::SimDisk {
        self.sim.disk(name).expect("a disk")
    }
}
