//! A pool of one device in memory with one object set, and a ledger of its blocks.

mod memory;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use device::World;
use format::{BlockPointer, DnodePhys, ObjectId, ObjsetKind, ObjsetPhys, Txg};
use memory::pipeline;
use object::{BlockAccounting, ObjectSet, ObjsetOptions, SyncContext};
use parking_lot::Mutex;
use zio::{Pipeline, ReadContext, Tx, TxgLimits, TxgManager};

/// Every block that should be there: born and not dead.
#[derive(Default)]
pub struct Ledger {
    live: Mutex<HashMap<[u64; 2], BlockPointer>>,
    dead: Mutex<Vec<BlockPointer>>,
}

fn key(block: &BlockPointer) -> Option<[u64; 2]> {
    (!block.is_embedded()).then(|| [block.words()[0], block.words()[1]])
}

impl BlockAccounting for Ledger {
    fn born(&self, block: &BlockPointer) {
        assert!(!block.is_hole(), "a hole is never born");
        if let Some(key) = key(block) {
            let before = self.live.lock().insert(key, *block);
            assert!(before.is_none(), "{block} was born where {before:?} lives");
        }
    }

    fn dead(&self, block: &BlockPointer) {
        assert!(!block.is_hole(), "a hole cannot die");
        if let Some(key) = key(block) {
            let before = self.live.lock().remove(&key);
            assert!(before.is_some(), "{block} died without living");
            self.dead.lock().push(*block);
        }
    }
}

impl Ledger {
    fn take_dead(&self) -> Vec<BlockPointer> {
        std::mem::take(&mut self.dead.lock())
    }

    /// Checks that exactly the blocks reachable from `root` live.
    pub async fn check(&self, pipeline: &Pipeline, root: &BlockPointer) -> Reached {
        let reached = reach(pipeline, root).await;
        let live = self.live.lock();
        for block in reached.blocks.values() {
            let key = key(block).expect("embedded blocks are not collected");
            assert!(
                live.contains_key(&key),
                "{block} is reachable but was never born"
            );
        }
        assert_eq!(
            live.len(),
            reached.blocks.len(),
            "blocks that live but cannot be reached"
        );
        reached
    }
}

/// What can be reached from an object set's root.
#[derive(Default)]
pub struct Reached {
    pub blocks: HashMap<[u64; 2], BlockPointer>,
    pub dnodes: BTreeMap<u64, DnodePhys>,
    pub phys: Option<ObjsetPhys>,
}

impl Reached {
    fn add(&mut self, block: &BlockPointer) {
        if let Some(key) = key(block) {
            let before = self.blocks.insert(key, *block);
            assert!(before.is_none(), "{block} is referenced twice");
        }
    }
}

async fn read(pipeline: &Pipeline, block: &BlockPointer) -> bytes::Bytes {
    pipeline
        .read(block, &ReadContext::default())
        .await
        .unwrap_or_else(|error| panic!("{block}: {error}"))
}

/// Walks everything under `root`, and checks fill counts, levels and the space used by each object.
pub async fn reach(pipeline: &Pipeline, root: &BlockPointer) -> Reached {
    let mut out = Reached::default();
    out.add(root);
    let data = read(pipeline, root).await;
    let phys = ObjsetPhys::decode(&data, root.endian()).expect("an objset");
    let mut leaves = Vec::new();
    let fill = walk(pipeline, &phys.meta_dnode, &mut out, Some(&mut leaves)).await;
    assert_eq!(root.fill(), fill, "fill count of the root");
    let mut dnodes = Vec::new();
    for (number, block) in leaves {
        let data = read(pipeline, &block).await;
        let mut at = 0;
        while at < data.len() {
            let dnode = DnodePhys::decode(&data[at..], block.endian()).expect("a dnode");
            let slots = dnode.slots();
            if !dnode.is_free() {
                dnodes.push((number * 32 + at as u64 / 512, dnode));
            }
            at += slots * 512;
        }
    }
    assert_eq!(fill, dnodes.len() as u64, "dnodes and fill count");
    if let Some(used) = phys.user_group_used.as_deref() {
        for dnode in used.iter().chain(phys.project_used.as_deref()) {
            if !dnode.is_free() {
                walk(pipeline, dnode, &mut out, None).await;
            }
        }
    }
    for (id, dnode) in dnodes {
        walk(pipeline, &dnode, &mut out, None).await;
        out.dnodes.insert(id, dnode);
    }
    out.phys = Some(phys);
    out
}

/// Walks a dnode's tree; returns its fill count.
async fn walk(
    pipeline: &Pipeline,
    dnode: &DnodePhys,
    out: &mut Reached,
    mut leaves: Option<&mut Vec<(u64, BlockPointer)>>,
) -> u64 {
    let shift = u32::from(dnode.indirect_block_shift) - 7;
    let mut stack: Vec<(u8, u64, BlockPointer)> = dnode
        .pointers
        .iter()
        .enumerate()
        .map(|(index, pointer)| (dnode.levels - 1, index as u64, *pointer))
        .collect();
    let mut used = 0;
    let mut fills: HashMap<(u8, u64), u64> = HashMap::new();
    let mut fill = 0;
    while let Some((level, number, pointer)) = stack.pop() {
        if pointer.is_hole() {
            continue;
        }
        assert_eq!(pointer.level(), level, "level of {pointer}");
        assert_eq!(pointer.object_type(), dnode.object_type);
        out.add(&pointer);
        used += pipeline.dsize_bytes(&pointer);
        if level > 0 {
            let data = read(pipeline, &pointer).await;
            assert_eq!(data.len(), 1 << dnode.indirect_block_shift);
            let mut sum = 0;
            for (index, child) in BlockPointer::decode_all(&data, pointer.endian()).enumerate() {
                if !child.is_hole() {
                    sum += child.fill();
                }
                stack.push((level - 1, (number << shift) + index as u64, child));
            }
            assert_eq!(pointer.fill(), sum, "fill count of {pointer}");
            assert!(sum > 0, "an indirect block of holes only");
        } else {
            assert!(number <= dnode.max_block_id, "a block beyond the last one");
            if let Some(leaves) = leaves.as_deref_mut() {
                leaves.push((number, pointer));
            }
        }
        fills.insert((level, number), pointer.fill());
        if level == dnode.levels - 1 {
            fill += pointer.fill();
        }
    }
    if let Some(spill) = dnode.spill.filter(|spill| !spill.is_hole()) {
        out.add(&spill);
        used += pipeline.dsize_bytes(&spill);
    }
    assert_eq!(dnode.used_bytes, used, "dn_used");
    fill
}

/// A pool with one object set, and its transaction groups.
pub struct Bed {
    pub world: World,
    pub pipeline: Arc<Pipeline>,
    pub txgs: Arc<TxgManager>,
    pub set: Arc<ObjectSet>,
    pub ledger: Ledger,
    pub options: ObjsetOptions,
}

impl Bed {
    pub async fn new(kind: ObjsetKind, options: ObjsetOptions) -> Self {
        Self::with_cache(kind, options, 64 << 20).await
    }

    pub async fn with_cache(kind: ObjsetKind, options: ObjsetOptions, cache_bytes: u64) -> Self {
        let (world, pipeline) = pipeline(4 << 30, cache_bytes).await;
        let txgs = TxgManager::new(
            world.clone(),
            Txg::new(4),
            TxgLimits {
                dirty_max_bytes: 4 << 30,
                ..TxgLimits::default()
            },
        );
        let tx = txgs.assign(0).await.expect("a txg");
        let set = ObjectSet::create(pipeline.clone(), world.clone(), kind, options.clone(), &tx);
        drop(tx);
        Bed {
            world,
            pipeline,
            txgs,
            set,
            ledger: Ledger::default(),
            options,
        }
    }

    pub async fn tx(&self) -> Tx {
        self.txgs.assign(0).await.expect("a txg")
    }

    pub fn context(&self, txg: Txg, pass: u32) -> SyncContext {
        SyncContext {
            txg,
            pass,
            pipeline: self.pipeline.clone(),
            world: self.world.clone(),
            txgs: Some(self.txgs.clone()),
        }
    }

    /// Closes the open txg and writes it.
    pub async fn sync(&self) -> BlockPointer {
        let txg = self.txgs.quiesce().await;
        let root = self.sync_pass(txg, 1).await;
        self.finish(txg).await;
        root
    }

    pub async fn sync_pass(&self, txg: Txg, pass: u32) -> BlockPointer {
        let root = self
            .set
            .sync(&self.context(txg, pass), &self.ledger)
            .await
            .expect("syncs");
        for block in self.ledger.take_dead() {
            self.pipeline.free(txg, &block);
        }
        assert!(!self.set.is_dirty(txg), "nothing is left to be written");
        root
    }

    pub async fn finish(&self, txg: Txg) {
        self.pipeline
            .frees()
            .take_changes(txg)
            .await
            .expect("changes");
        self.pipeline.sync_done(txg);
        // As `dataset::Syncer::done` does.
        self.pipeline.cache().charge().settle_again();
        self.txgs.synced(txg);
    }

    /// The object set as on disk, opened anew.
    pub async fn reopen(&self, root: BlockPointer) -> Arc<ObjectSet> {
        let (pipeline, world) = (self.pipeline.clone(), self.world.clone());
        ObjectSet::open(pipeline, world, root, self.options.clone())
            .await
            .expect("opens")
    }

    pub async fn check(&self) -> Reached {
        self.ledger.check(&self.pipeline, &self.set.root()).await
    }
}

/// All object numbers.
pub async fn all_objects(set: &Arc<ObjectSet>) -> Vec<u64> {
    let mut out = Vec::new();
    let mut after = None;
    while let Some(id) = set.next_object(after).await.expect("reads") {
        out.push(id.get());
        after = Some(id);
    }
    out
}

/// A small generator: tests repeat from their seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 32) % below.max(1)
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        // Half of the data compresses.
        let noisy = self.next(2) == 0;
        let fixed = self.next(255) as u8 + 1;
        (0..length)
            .map(|at| {
                if noisy {
                    self.next(256) as u8
                } else {
                    fixed ^ (at / 512) as u8
                }
            })
            .collect()
    }
}

pub fn id(number: u64) -> ObjectId {
    ObjectId::new(number)
}
