//! A small pool on simulated disks with one dataset and its log: what a sync loop, an uberblock and
//! space maps do is done here in the simplest way that keeps their promises. Survives power cuts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use device::sim::{Latency, PowerCut, SimOp, SimWorld};
use device::{BoxFuture, Device, World};
use format::{
    BLOCK_POINTER_BYTES, BlockPointer, DnodePhys, Endian, NvList, NvValue, ObjectId, ObjectType,
    ObjsetKind, ObjsetPhys, Txg, VdevId,
};
use object::{BlockAccounting, NewObject, ObjectSet, ObjsetOptions, SyncContext};
use parking_lot::Mutex;
use vdev::{IgnoreErrors, OpenOptions, RangeSet, VdevTree};
use zio::alloc::{Allocator, MetaslabSource};
use zio::pipeline::FailMode;
use zio::txg::Work;
use zio::{Cache, Pipeline, PipelineOptions, ReadContext, Tx, TxgLimits, TxgManager, ZioError};

use crate::{LogOwner, LogSettings, SyncMode, Zil, claim};

const METASLAB_SHIFT: u32 = 23;
const UBERBLOCK_BYTES: usize = 512;
const UBERBLOCKS: &str = "uberblocks";
const DATASET: u64 = 77;

/// Runs a test in a simulated world: one thread, paused time.
pub fn simulate<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// Allocated ranges, by vdev.
type Map = BTreeMap<VdevId, RangeSet>;

/// The space maps, as of every txg: they outlive the machine.
#[derive(Default)]
pub struct SpaceMaps {
    pub current: Mutex<Map>,
    synced: Mutex<BTreeMap<Txg, Map>>,
}

impl SpaceMaps {
    pub fn allocated_bytes(&self) -> u64 {
        self.current.lock().values().map(RangeSet::space).sum()
    }
}

impl MetaslabSource for SpaceMaps {
    fn load(&self, vdev: VdevId, metaslab: u64) -> BoxFuture<'_, Result<RangeSet, ZioError>> {
        Box::pin(async move {
            let length = 1 << METASLAB_SHIFT;
            let start = metaslab * length;
            let mut free = RangeSet::from_iter([(start, length)]);
            if let Some(map) = self.current.lock().get(&vdev) {
                for range in map.intersection(start, length) {
                    free.remove(range.start, range.end - range.start);
                }
            }
            Ok(free)
        })
    }
}

struct Accounting<'a> {
    pipeline: &'a Arc<Pipeline>,
    txg: Txg,
}

impl BlockAccounting for Accounting<'_> {
    fn born(&self, _block: &BlockPointer) {}
    fn dead(&self, block: &BlockPointer) {
        self.pipeline.free(self.txg, block);
    }
}

/// What the disks are put together to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Single,
    Mirror,
    Raidz,
    /// A disk and a log device.
    WithLog,
}

/// What survives power cuts.
#[derive(Clone)]
pub struct Machine {
    pub sim: SimWorld,
    pub maps: Arc<SpaceMaps>,
    pub layout: Layout,
    /// The txg before the first of a new pool.
    pub before: Txg,
}

impl Machine {
    pub fn new(seed: u64, layout: Layout) -> Self {
        let sim = SimWorld::new(seed);
        for name in ["disk0", "disk1", "disk2"] {
            sim.add_disk(name, 64 << 20).set_latency(Latency::NONE);
        }
        sim.add_disk(UBERBLOCKS, 1 << 20).set_latency(Latency::NONE);
        Machine {
            sim,
            maps: Arc::default(),
            layout,
            before: Txg::new(4),
        }
    }

    /// Has the disks that the pool is on write through their caches where a write is to be durable,
    /// so that nothing else is durable by it.
    pub fn set_durable_writes(&self, durable: bool) {
        for name in ["disk0", "disk1", "disk2"] {
            let disk = self.sim.disk(name).expect("there");
            disk.set_durable_writes(durable);
        }
    }

    fn config(&self) -> NvList {
        let leaf = |name: &str, guid: u64| {
            let mut leaf = NvList::new();
            leaf.set("type", "disk");
            leaf.set("guid", guid);
            leaf.set("path", name);
            leaf
        };
        let leaves = || {
            NvValue::ListArray(vec![
                leaf("disk0", 20),
                leaf("disk1", 21),
                leaf("disk2", 22),
            ])
        };
        let mut tops = Vec::new();
        match self.layout {
            Layout::Single => tops.push(leaf("disk0", 20)),
            Layout::Mirror | Layout::Raidz => {
                let mut top = NvList::new();
                top.set("guid", 10u64);
                top.set("children", leaves());
                if self.layout == Layout::Raidz {
                    top.set("type", "raidz");
                    top.set("nparity", 1u64);
                } else {
                    top.set("type", "mirror");
                }
                tops.push(top);
            }
            Layout::WithLog => {
                tops.push(leaf("disk0", 20));
                let mut log = leaf("disk1", 21);
                log.set("is_log", 1u64);
                tops.push(log);
            }
        }
        let count = tops.len() as u64;
        for (id, top) in tops.iter_mut().enumerate() {
            top.set("id", id as u64);
            top.set("metaslab_array", 1 + id as u64);
            top.set("metaslab_shift", u64::from(METASLAB_SHIFT));
            top.set("ashift", 9u64);
            let disks = if self.layout == Layout::Raidz { 3 } else { 1 };
            top.set(
                "asize",
                disks * (((64 << 20) - (5 << 20)) >> METASLAB_SHIFT << METASLAB_SHIFT),
            );
        }
        assert!(count > 0);
        let mut root = NvList::new();
        root.set("type", "root");
        root.set("id", 0u64);
        root.set("guid", 1u64);
        root.set("children", NvValue::ListArray(tops));
        root
    }

    pub async fn pipeline(&self) -> Arc<Pipeline> {
        let world = self.sim.world();
        let options = OpenOptions {
            create: true,
            ..OpenOptions::default()
        };
        let tree = VdevTree::open(world.clone(), &self.config(), options)
            .await
            .expect("the tree opens");
        let allocator = Arc::new(Allocator::new());
        allocator.set_source(self.maps.clone());
        for top in tree.tops() {
            allocator.add_top(vdev::TopSpec::of(&top).expect("it can be allocated from"));
        }
        Pipeline::new(
            world,
            tree,
            allocator,
            Arc::new(Cache::new(16 << 20)),
            PipelineOptions::default(),
            Arc::new(IgnoreErrors),
        )
    }

    /// A new pool.
    pub async fn create(&self) -> Bed {
        let pipeline = self.pipeline().await;
        let txgs = txgs(&self.sim.world(), self.before);
        let tx = txgs.assign(0).await.expect("a txg");
        let set = ObjectSet::create(
            pipeline.clone(),
            self.sim.world(),
            ObjsetKind::Other,
            options(),
            &tx,
        );
        drop(tx);
        let bed = Bed::assemble(self.clone(), pipeline, txgs, set).await;
        bed.txgs.sync().await.expect("the first txg");
        bed
    }

    /// After a power cut: what the last uberblock says, with the log claimed.
    pub async fn recover(&self) -> Bed {
        self.recover_with(true).await
    }

    /// The same; where the log is not claimed, an import passed it over.
    pub async fn recover_with(&self, claims: bool) -> Bed {
        self.sim.power_on();
        let device = uberblocks(&self.sim.world()).await;
        let mut best = None;
        for slot in 0..2 {
            let data = device
                .read(slot * UBERBLOCK_BYTES as u64, UBERBLOCK_BYTES)
                .await
                .expect("readable");
            let txg = u64::from_le_bytes(*data.first_chunk().expect("long enough"));
            if txg > best.as_ref().map_or(0, |(best, _)| *best) {
                let root = data[8..8 + BLOCK_POINTER_BYTES]
                    .try_into()
                    .expect("as long");
                best = Some((txg, BlockPointer::decode(root, Endian::Little)));
            }
        }
        drop(device);
        let (txg, root) = best.expect("an uberblock");
        let txg = Txg::new(txg);
        *self.maps.current.lock() = self.maps.synced.lock()[&txg].clone();
        let pipeline = self.pipeline().await;
        let txgs = txgs(&self.sim.world(), txg);
        let set = ObjectSet::open(pipeline.clone(), self.sim.world(), root, options())
            .await
            .expect("the object set opens");
        let bed = Bed::bare(self.clone(), pipeline, txgs, set);
        let txg = bed.txgs.quiesce().await;
        let mut header = bed.set.zil_header();
        let before = header;
        if claims {
            let claimed = claim(&bed.pipeline, txg, txg, txg, &mut header).await;
            claimed.expect("claims");
        }
        if header != before {
            bed.set.set_zil_header(&Tx::syncing(txg), header);
        }
        bed.sync_txg(txg).await.expect("the first txg");
        bed.start()
    }
}

fn txgs(world: &World, synced: Txg) -> Arc<TxgManager> {
    let limits = TxgLimits {
        dirty_max_bytes: 64 << 20,
        ..TxgLimits::default()
    };
    TxgManager::new(world.clone(), synced, limits)
}

fn options() -> ObjsetOptions {
    ObjsetOptions {
        dataset: ObjectId::new(DATASET),
        ..ObjsetOptions::default()
    }
}

async fn uberblocks(world: &World) -> Arc<dyn Device> {
    world.opener.open(UBERBLOCKS, false).await.expect("opens")
}

/// A dataset with room and settings that a test changes.
#[derive(Clone, Default)]
pub struct Owner(Arc<Mutex<LogSettings>>);

impl Owner {
    pub fn set_sync(&self, sync: SyncMode) {
        self.0.lock().sync = sync;
    }
}

impl LogOwner for Owner {
    fn name(&self) -> String {
        "tank/test".to_owned()
    }
    fn has_room(&self, _bytes: u64) -> bool {
        true
    }
    fn settings(&self) -> LogSettings {
        *self.0.lock()
    }
}

/// The pool while the machine runs.
#[derive(Clone)]
pub struct Bed {
    pub machine: Machine,
    pub pipeline: Arc<Pipeline>,
    pub txgs: Arc<TxgManager>,
    pub set: Arc<ObjectSet>,
    pub zil: Arc<Zil>,
    pub owner: Owner,
    /// Milliseconds that pass between the end of a txg and the log's part of its sync.
    pub pause_ms: Arc<AtomicU64>,
    uberblocks: Option<Arc<dyn Device>>,
}

impl Bed {
    fn bare(
        machine: Machine,
        pipeline: Arc<Pipeline>,
        txgs: Arc<TxgManager>,
        set: Arc<ObjectSet>,
    ) -> Self {
        let owner = Owner::default();
        let zil = open_log(&set, &txgs, &owner);
        Bed {
            machine,
            pipeline,
            txgs,
            set,
            zil,
            owner,
            pause_ms: Arc::default(),
            uberblocks: None,
        }
    }

    async fn assemble(
        machine: Machine,
        pipeline: Arc<Pipeline>,
        txgs: Arc<TxgManager>,
        set: Arc<ObjectSet>,
    ) -> Self {
        Bed::bare(machine, pipeline, txgs, set).start()
    }

    /// Starts the sync loop.
    fn start(mut self) -> Self {
        // What was claimed shows only now.
        self.zil = open_log(&self.set, &self.txgs, &self.owner);
        let bed = self.clone();
        self.machine.sim.world().spawn.spawn(Box::pin(async move {
            loop {
                match bed.txgs.wait_for_work().await {
                    Work::Stopped => return,
                    Work::Timeout { assigned: false } => {
                        bed.txgs.skip_timeout();
                        continue;
                    }
                    _ => {}
                }
                let txg = bed.txgs.quiesce().await;
                if let Err(error) = bed.sync_txg(txg).await {
                    bed.txgs.stop(error);
                    return;
                }
            }
        }));
        self
    }

    async fn sync_txg(&self, txg: Txg) -> Result<(), ZioError> {
        let ctx = SyncContext {
            txg,
            pass: 1,
            pipeline: self.pipeline.clone(),
            world: self.machine.sim.world(),
            txgs: Some(self.txgs.clone()),
        };
        let failed = |error: object::ObjectError| ZioError::Suspended {
            reason: error.to_string(),
        };
        if self.set.is_dirty(txg) {
            let pause_ms = self.pause_ms.load(Ordering::Relaxed);
            if pause_ms > 0 {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
            self.zil.sync(&ctx).await;
            let accounting = Accounting {
                pipeline: &self.pipeline,
                txg,
            };
            let root = self.set.sync(&ctx, &accounting).await.map_err(failed)?;
            self.record_space(txg).await?;
            self.pipeline.flush().await?;
            self.write_uberblock(txg, &root).await?;
        }
        self.zil.clean(txg);
        self.pipeline.sync_done(txg);
        self.txgs.synced(txg);
        Ok(())
    }

    async fn record_space(&self, txg: Txg) -> Result<(), ZioError> {
        let changes = self.pipeline.frees().take_changes(txg).await?;
        let maps = &self.machine.maps;
        let mut current = maps.current.lock();
        for change in changes {
            let map = current.entry(change.vdev).or_default();
            for (start, length) in change.allocated.iter() {
                assert!(!map.overlaps(start, length), "allocated twice");
                map.add(start, length);
            }
            for (start, length) in change.freed.iter() {
                assert!(map.contains(start, length), "freed though not allocated");
                map.remove(start, length);
            }
        }
        maps.synced.lock().insert(txg, current.clone());
        Ok(())
    }

    async fn write_uberblock(&self, txg: Txg, root: &BlockPointer) -> Result<(), ZioError> {
        let device = match &self.uberblocks {
            Some(device) => device.clone(),
            None => uberblocks(&self.machine.sim.world()).await,
        };
        let mut data = txg.get().to_le_bytes().to_vec();
        data.extend_from_slice(&root.encode());
        data.resize(UBERBLOCK_BYTES, 0);
        let at = (txg.get() & 1) * UBERBLOCK_BYTES as u64;
        let gone =
            |error: device::DeviceError| ZioError::Vdev(vdev::VdevError::Device(Arc::new(error)));
        device.write(at, data.into()).await.map_err(gone)?;
        device.flush().await.map_err(gone)
    }

    pub async fn tx(&self) -> Tx {
        self.txgs.assign(0).await.expect("a txg")
    }

    /// New objects, on disk.
    pub async fn objects(&self, count: usize, block_bytes: u32) -> Vec<ObjectId> {
        let mut out = Vec::new();
        for _ in 0..count {
            let tx = self.tx().await;
            let new = NewObject::new(ObjectType::UINT64_OTHER).with_block_bytes(block_bytes);
            let object = self.set.allocate(&tx, new).await.expect("allocates");
            out.push(object.id());
        }
        self.txgs.sync().await.expect("syncs");
        out
    }

    pub async fn read(&self, object: ObjectId, offset: u64, length: usize) -> Bytes {
        let object = self.set.hold(object).await.expect("exists");
        object.read_bytes(offset, length).await.expect("reads")
    }

    /// Bytes on disk that can be reached from the object set's root, and are allocated.
    pub async fn reachable_bytes(&self) -> u64 {
        let root = self.set.root();
        let mut sum = asize(&root);
        let data = self.block(&root).await;
        let phys = ObjsetPhys::decode(&data, Endian::Little).expect("an objset");
        let mut dnodes = vec![phys.meta_dnode.clone()];
        while let Some(dnode) = dnodes.pop() {
            let mut pointers = dnode.pointers.clone();
            while let Some(pointer) = pointers.pop() {
                if pointer.is_hole() {
                    continue;
                }
                sum += asize(&pointer);
                if pointer.level() > 0 {
                    let data = self.block(&pointer).await;
                    pointers.extend(BlockPointer::decode_all(&data, Endian::Little));
                } else if pointer.object_type() == ObjectType::DNODE {
                    let data = self.block(&pointer).await;
                    for slot in data.chunks(512) {
                        let dnode = DnodePhys::decode(slot, Endian::Little).expect("a dnode");
                        dnodes.push(dnode);
                    }
                }
            }
        }
        sum
    }

    async fn block(&self, pointer: &BlockPointer) -> Bytes {
        let read = self.pipeline.read(pointer, &ReadContext::default()).await;
        read.expect("readable")
    }

    /// Closes the log and checks that every allocated byte is one that is used.
    pub async fn check_space(&self) {
        self.zil.close().await.expect("closes");
        assert!(self.set.zil_header().log.is_hole());
        assert_eq!(
            self.machine.maps.allocated_bytes(),
            self.reachable_bytes().await,
            "allocated bytes, and those that can be reached"
        );
    }

    pub fn cut_at(&self, op: SimOp, count: u64, how: PowerCut) {
        self.machine.sim.cut_power_at(op, count, how);
    }

    pub fn fail_mode(&self, mode: FailMode) {
        let txgs = self.txgs.clone();
        self.pipeline.suspension().set_fail_mode(mode);
        self.pipeline
            .suspension()
            .set_hook(Arc::new(move |error, mode| txgs.set_suspended(error, mode)));
    }
}

fn asize(pointer: &BlockPointer) -> u64 {
    pointer.dvas().map(|dva| dva.asize_bytes()).sum()
}

pub fn open_log(set: &Arc<ObjectSet>, txgs: &Arc<TxgManager>, owner: &Owner) -> Arc<Zil> {
    Zil::open(Box::new(owner.clone()), set.clone(), txgs.clone())
}
