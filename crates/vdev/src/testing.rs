//! Trees on simulated disks, for the tests of this crate and of those above it.

use std::sync::Arc;

use bytes::Bytes;
use device::sim::{Latency, SimDisk, SimWorld};
use format::{
    BlockPointer, Endian, Guid, LABEL_START_BYTES, NvList, NvValue, ReflowScratchState, Txg,
    Uberblock, VdevId,
};
use parking_lot::Mutex;

use crate::report::{ErrorReport, ErrorSink};
use crate::{IoContext, OpenOptions, RangeSet, Scope, VdevError, VdevTree};

/// Size of each simulated disk in bytes.
pub const DISK_BYTES: u64 = 64 << 20;
/// The first top-level vdev.
pub const TOP: VdevId = VdevId::ZERO;
/// Size of the block of [`with_replacement`] in bytes.
pub const BLOCK: usize = 8192;

/// Keeps what was reported.
#[derive(Default)]
pub struct Reports(
    /// In the order of their coming.
    pub Mutex<Vec<ErrorReport>>,
);

impl Reports {
    /// Number of checksum errors.
    pub fn checksum(&self) -> usize {
        let is = |report: &&ErrorReport| matches!(report, ErrorReport::Checksum { .. });
        self.0.lock().iter().filter(is).count()
    }

    /// Number of lost blocks.
    pub fn data(&self) -> usize {
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
pub fn simulate<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// The configuration of a leaf on a disk of that name, which is made.
pub fn leaf(sim: &SimWorld, name: &str, guid: u64) -> NvList {
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
pub fn group(
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

/// The configuration of a whole tree over `tops`.
pub fn root(tops: Vec<NvList>, ashift: u64) -> NvList {
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
pub fn pool_config(txg: u64) -> NvList {
    let mut out = NvList::new();
    out.set("version", 5000u64);
    out.set("name", "tank");
    out.set("state", 0u64);
    out.set("txg", txg);
    out.set("pool_guid", 1u64);
    out
}

/// An uberblock of this transaction group, of no state.
pub fn uberblock(txg: u64) -> Uberblock {
    Uberblock {
        endian: Endian::Little,
        version: 5000,
        txg: Txg::new(txg),
        guid_sum: Guid::new(0),
        timestamp_seconds: txg,
        root: BlockPointer::HOLE,
        software_version: 5000,
        multihost: None,
        checkpoint_txg: Txg::ZERO,
        reflow_offset_bytes: 0,
        reflow_state: ReflowScratchState::NotInUse,
    }
}

/// A tree with its disks.
#[derive(Clone)]
pub struct TestTree {
    /// The world that it lives in.
    pub sim: SimWorld,
    /// The tree.
    pub tree: Arc<VdevTree>,
    /// What its leaves reported.
    pub reports: Arc<Reports>,
}

impl TestTree {
    /// A new, labelled tree.
    pub async fn create(sim: SimWorld, tops: Vec<NvList>, ashift: u64) -> TestTree {
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
        TestTree::over(sim, tree)
    }

    /// With a tree that is open.
    pub fn over(sim: SimWorld, tree: Arc<VdevTree>) -> TestTree {
        let reports = Arc::new(Reports::default());
        tree.set_error_sink(reports.clone());
        TestTree { sim, tree, reports }
    }

    /// Closes the tree and opens it again from its configuration.
    pub async fn reopen(&self) -> Arc<VdevTree> {
        let config = self.tree.to_config(Scope::Mos);
        self.tree.close();
        let options = OpenOptions {
            pool_guid: Some(Guid::new(1)),
            ..OpenOptions::default()
        };
        VdevTree::open(self.sim.world(), &config, options)
            .await
            .expect("opens")
    }

    /// Flushes as the pipeline does: a failure halts the tree.
    ///
    /// # Errors
    /// Those of [`VdevTree::flush`].
    pub async fn flush(&self) -> Result<(), VdevError> {
        let flushed = self.tree.flush().await;
        flushed.inspect_err(|_| self.tree.halt().set(true))
    }

    /// Does for the tree what `zpool clear` does.
    ///
    /// # Errors
    /// Those of [`VdevTree::reopen`].
    pub async fn clear(&self) -> Result<(), VdevError> {
        self.tree.tops().iter().for_each(|top| top.clear_errors());
        self.tree.reopen(self.tree.halt().is_halted()).await?;
        self.tree.halt().set(false);
        Ok(())
    }

    /// A disk by name.
    pub fn disk(&self, name: &str) -> SimDisk {
        self.sim.disk(name).expect("a disk")
    }
}

/// Bytes that do not compress, by seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
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

/// A mirror and two vdevs that were removed, one after the other.
pub async fn removed(sim: &SimWorld) -> Arc<VdevTree> {
    let mut tops = vec![group(sim, "mirror", 0, "m", 2, 10)];
    for guid in [20u64, 21] {
        let mut gone = NvList::new();
        gone.set("type", "indirect").set("guid", guid);
        gone.set("asize", 1u64 << 24);
        tops.push(gone);
    }
    let options = OpenOptions {
        create: true,
        ..OpenOptions::default()
    };
    VdevTree::open(sim.world(), &root(tops, 9), options)
        .await
        .expect("opens")
}

/// A mapping of `length` bytes at `source` of a removed vdev.
pub fn entry(source: u64, vdev: u32, offset: u64, length: u64) -> format::IndirectMappingEntry {
    format::IndirectMappingEntry {
        source_offset_bytes: source,
        destination: format::Dva::new(format::VdevId::new(vdev), offset, length, false)
            .expect("a place"),
    }
}

/// All was moved in one txg.
pub fn births() -> Vec<format::IndirectBirthEntry> {
    vec![format::IndirectBirthEntry {
        offset_bytes: 1 << 24,
        physical_birth: Txg::new(50),
    }]
}

/// A vdev of `kind` over two disks and one that is being replaced: r1 lacks the block `data`, and
/// has something else in its place. The block is of group 10, at the begin of the first vdev.
pub async fn with_replacement(kind: &str, parity: u64, data: &[u8]) -> TestTree {
    let sim = SimWorld::new(1);
    let mut config = group(&sim, kind, parity, "d", 2, 10);
    let below = group(&sim, "replacing", 0, "r", 2, 20);
    if let Some(NvValue::ListArray(children)) = config.get_mut("children") {
        children.push(below);
    }
    let test = TestTree::create(sim, vec![config], 12).await;
    let context = IoContext {
        birth: Txg::new(10),
        ..IoContext::default()
    };
    let written = Bytes::from(data.to_vec());
    let written = test.tree.write_block(TOP, 0, written, &context).await;
    written.expect("disks without faults take a block");
    test.disk("r1").poke(LABEL_START_BYTES, &noise(BLOCK, 99));
    let leaves = test.tree.leaves();
    let leaf = leaves[3].leaf().expect("a leaf");
    leaf.dirty_times()
        .set_missing(RangeSet::from_iter([(10, 1)]));
    test
}
