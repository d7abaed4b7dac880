//! Pools on simulated disks, for this crate's tests.

use std::sync::Arc;

use device::sim::{Latency, SimWorld};
use format::{Guid, NvList, NvValue, Txg};
use parking_lot::Mutex;

use crate::alloc::{AllFree, Allocator};
use crate::cache::Cache;
use crate::pipeline::{ErrorReport, ErrorSink, Pipeline, PipelineOptions};
use crate::vdev::{OpenOptions, VdevTree};

pub(crate) const DISK_BYTES: u64 = 64 << 20;

/// Keeps what was reported.
#[derive(Default)]
pub(crate) struct Reports(pub(crate) Mutex<Vec<ErrorReport>>);

impl Reports {
    pub(crate) fn checksum(&self) -> usize {
        let is = |report: &&ErrorReport| matches!(report, ErrorReport::Checksum { .. });
        self.0.lock().iter().filter(is).count()
    }

    pub(crate) fn data(&self) -> usize {
        let is = |report: &&ErrorReport| matches!(report, ErrorReport::Data { .. });
        self.0.lock().iter().filter(is).count()
    }
}

impl ErrorSink for Reports {
    fn report(&self, report: ErrorReport) {
        self.0.lock().push(report);
    }
}

/// Runs a test in a simulated world: one thread, paused time.
pub(crate) fn simulate<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
        .block_on(future)
}

pub(crate) fn leaf(sim: &SimWorld, name: &str, guid: u64) -> NvList {
    if sim.disk(name).is_none() {
        sim.add_disk(name, DISK_BYTES).set_latency(Latency::NONE);
    }
    let mut out = NvList::new();
    out.set("type", "disk");
    out.set("guid", guid);
    out.set("path", name);
    out
}

/// A vdev of `kind` over disks called `prefix0`, `prefix1`...
pub(crate) fn group(
    sim: &SimWorld,
    kind: &str,
    parity: u64,
    prefix: &str,
    width: u64,
    guid: u64,
) -> NvList {
    let children: Vec<NvList> = (0..width)
        .map(|index| leaf(sim, &format!("{prefix}{index}"), guid + 1 + index))
        .collect();
    let mut out = NvList::new();
    out.set("type", kind);
    out.set("guid", guid);
    if parity > 0 {
        out.set("nparity", parity);
    }
    out.set("children", NvValue::ListArray(children));
    out
}

pub(crate) fn root(tops: Vec<NvList>, ashift: u64) -> NvList {
    let tops: Vec<NvList> = tops
        .into_iter()
        .enumerate()
        .map(|(id, mut top)| {
            top.set("id", id as u64);
            top.set("ashift", ashift);
            top
        })
        .collect();
    let mut out = NvList::new();
    out.set("type", "root");
    out.set("id", 0u64);
    out.set("guid", 1u64);
    out.set("children", NvValue::ListArray(tops));
    out
}

/// Pool-level pairs of a label.
pub(crate) fn pool_config(txg: u64) -> NvList {
    let mut out = NvList::new();
    out.set("version", 5000u64);
    out.set("name", "tank");
    out.set("state", 0u64);
    out.set("txg", txg);
    out.set("pool_guid", 1u64);
    out
}

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
            if let Some(spec) = tree.top_spec(&top) {
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
        let config = self.pipeline.tree().to_config(crate::vdev::Scope::Mos);
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

/// Bytes that do not compress, by seed.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
