//! A pool of one device in memory with datasets, a small sync loop, and a walk over every block
//! that can be reached, to compare with what the accounts say.

#[path = "../../../../object/tests/all/common/memory.rs"]
mod memory;

use std::collections::HashMap;
use std::sync::Arc;

use dataset::{
    CreateParams, DatasetError, DslEnvironment, DslPool, ListOptions, NoHooks, ObjsetInit,
    PropertyChange, PropertyValue, SyncTask,
};
use device::{BoxFuture, World};
use format::{BlockPointer, DnodePhys, ObjectId, ObjectType, ObjsetKind, ObjsetPhys, Txg};
use memory::pipeline;
use object::{NewObject, ObjectSet, SyncContext, Zap, ZapOptions};
use zio::txg::Work;
use zio::{Pipeline, ReadContext, Tx, TxgLimits, TxgManager, ZioError};

/// A filesystem's or volume's objects, as far as the DSL looks at them.
pub struct Init(pub ObjsetKind);

impl ObjsetInit for Init {
    fn kind(&self) -> ObjsetKind {
        self.0
    }
    fn init<'a>(
        &'a self,
        objset: &'a Arc<ObjectSet>,
        properties: &'a [(String, PropertyValue)],
        tx: &'a Tx,
    ) -> BoxFuture<'a, Result<(), Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async move {
            let number = |wanted: &str| {
                properties
                    .iter()
                    .find(|(name, _)| name == wanted)
                    .and_then(|(_, value)| value.number())
            };
            if self.0 == ObjsetKind::Volume {
                let block_bytes = number("volblocksize").unwrap_or(16384) as u32;
                let data = NewObject::new(ObjectType::ZVOL).with_block_bytes(block_bytes);
                objset.claim(tx, ObjectId::new(1), data).await?;
                let mut options = ZapOptions::new(ObjectType::ZVOL_PROP);
                options.claim = Some(ObjectId::new(2));
                let zap = Zap::create(objset, tx, options).await?;
                zap.add_u64(tx, "size", number("volsize").unwrap_or(0))
                    .await?;
            } else {
                let mut options = ZapOptions::new(ObjectType::MASTER_NODE);
                options.claim = Some(ObjectId::new(1));
                let zap = Zap::create(objset, tx, options).await?;
                zap.add_u64(tx, "VERSION", 5).await?;
                zap.add_u64(
                    tx,
                    "casesensitivity",
                    number("casesensitivity").unwrap_or(0),
                )
                .await?;
            }
            Ok(())
        })
    }
    fn own_properties(&self) -> &'static [&'static str] {
        &[
            "version",
            "utf8only",
            "normalization",
            "casesensitivity",
            "volsize",
            "volblocksize",
        ]
    }
}

/// A pool with its sync loop running.
pub struct TestPool {
    pub world: World,
    pub pipeline: Arc<Pipeline>,
    pub txgs: Arc<TxgManager>,
    pub dsl: Arc<DslPool>,
}

fn environment(
    world: &World,
    pipeline: &Arc<Pipeline>,
    txgs: &Arc<TxgManager>,
    read_only: bool,
    spa_version: u64,
) -> DslEnvironment {
    DslEnvironment {
        pool_name: "tank".into(),
        pipeline: pipeline.clone(),
        world: world.clone(),
        txgs: txgs.clone(),
        hooks: Arc::new(NoHooks),
        read_only,
        spa_version,
    }
}

struct UpgradeTask {
    dsl: Arc<DslPool>,
    to: u64,
}

impl SyncTask for UpgradeTask {
    fn name(&self) -> &'static str {
        "upgrade"
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.dsl.check_upgrade(self.to))
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.dsl.upgrade(ctx, self.to))
    }
}

fn limits() -> TxgLimits {
    TxgLimits {
        dirty_max_bytes: 1 << 30,
        timeout: std::time::Duration::from_secs(3600),
        ..TxgLimits::default()
    }
}

/// Every feature that OpenZFS 2.3 knows, in its order.
pub fn all_features() -> Vec<String> {
    format::FEATURES
        .iter()
        .filter(|feature| feature.in_2_3)
        .map(|feature| feature.guid.to_owned())
        .collect()
}

impl TestPool {
    pub async fn new(size_bytes: u64) -> Self {
        Self::with_features(size_bytes, all_features()).await
    }

    pub async fn with_features(size_bytes: u64, features: Vec<String>) -> Self {
        Self::of_version(size_bytes, features, 5000).await
    }

    pub async fn of_version(size_bytes: u64, features: Vec<String>, version: u64) -> Self {
        let (world, pipeline) = pipeline(size_bytes, 64 << 20).await;
        let txg = Txg::INITIAL;
        let txgs = TxgManager::new(world.clone(), txg, limits());
        let mut ctx = SyncContext {
            txg,
            pass: 1,
            pipeline: pipeline.clone(),
            world: world.clone(),
            txgs: None,
        };
        let params = CreateParams {
            features,
            root_properties: vec![("compression".into(), "off".into())],
            root_init: Arc::new(Init(ObjsetKind::Filesystem)),
            root_key: None,
        };
        let dsl = DslPool::create(
            environment(&world, &pipeline, &txgs, false, version),
            &ctx,
            params,
        )
        .await
        .expect("a pool is created");
        while ctx.pass == 1 || dsl.mos().is_dirty(txg) {
            dsl.syncer().pass(&ctx).await.expect("syncs");
            pipeline.frees().take_changes(txg).await.expect("changes");
            ctx.pass += 1;
        }
        dsl.syncer().done(txg);
        pipeline.sync_done(txg);
        dsl.tasks().answer(txg);
        let pool = TestPool {
            world,
            pipeline,
            txgs,
            dsl,
        };
        pool.start();
        pool
    }

    fn start(&self) {
        tokio::spawn(sync_loop(
            self.world.clone(),
            self.pipeline.clone(),
            self.txgs.clone(),
            self.dsl.clone(),
        ));
    }

    /// Stops, and opens what is on disk anew.
    pub async fn reopen(self) -> Self {
        self.settle().await;
        let synced = self.txgs.synced_txg();
        self.dsl.tasks().close();
        self.txgs.stop(ZioError::Closing);
        let (root, version) = (self.dsl.root_bp(), self.dsl.version());
        let txgs = TxgManager::new(self.world.clone(), synced, limits());
        let dsl = DslPool::open(
            environment(&self.world, &self.pipeline, &txgs, false, version),
            root,
        )
        .await
        .expect("a pool is opened");
        let pool = TestPool {
            world: self.world,
            pipeline: self.pipeline,
            txgs,
            dsl,
        };
        pool.start();
        pool
    }

    pub async fn create(
        &self,
        name: &str,
        properties: &[(&str, &str)],
    ) -> Result<(), DatasetError> {
        let properties: Vec<(String, String)> = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let kind = if properties.iter().any(|(name, _)| name == "volsize") {
            ObjsetKind::Volume
        } else {
            ObjsetKind::Filesystem
        };
        self.dsl
            .datasets()
            .create(name, &properties, Arc::new(Init(kind)))
            .await
    }

    /// Raises the version.
    pub async fn upgrade(&self, to: u64) {
        let dsl = self.dsl.clone();
        let task = Arc::new(UpgradeTask { dsl, to });
        self.dsl.tasks().run(task).await.expect("upgraded");
    }

    pub async fn sync(&self) {
        self.txgs.sync().await.expect("a txg is synced");
    }

    /// Waits until nothing is left to be freed, and freed space can be used again.
    pub async fn settle(&self) {
        for round in 1..1000 {
            self.sync().await;
            let is_idle = self.dsl.destroyer().freeing_bytes() == 0
                && !self.dsl.syncer().has_dirty(self.txgs.open_txg());
            if is_idle && !self.pipeline.allocator().has_deferred() {
                return;
            }
            // What the MOS uses is a number in the MOS, which each txg brings up to date by what
            // the one before wrote (as `dp_mos_used_delta`, module/zfs/dsl_pool.c). Compressed, the
            // new number may take a sector more, and the next one less again, and so on, until
            // something else in the MOS changes.
            if is_idle && round % 30 == 0 {
                let change = PropertyChange::Set(format!("round {round}"));
                let properties = [("test:settle".to_owned(), change)];
                let set = self.dsl.properties().set("tank", &properties).await;
                set.expect("set");
            }
        }
        panic!(
            "the pool does not settle: {} bytes to be freed, deferred {}, dirty {}",
            self.dsl.destroyer().freeing_bytes(),
            self.pipeline.allocator().has_deferred(),
            self.dsl.syncer().has_dirty(self.txgs.open_txg())
        );
    }

    /// Compares every account with what can be reached.
    pub async fn check(&self) {
        self.settle().await;
        let mut all: HashMap<[u64; 2], BlockPointer> = HashMap::new();
        let mos = reach(&self.pipeline, &self.dsl.root_bp()).await;
        all.extend(mos.clone());
        let options = ListOptions {
            snapshots: true,
            ..ListOptions::default()
        };
        let list = self
            .dsl
            .directories()
            .list("tank", &options)
            .await
            .expect("a list");
        let mut reached: HashMap<String, HashMap<[u64; 2], BlockPointer>> = HashMap::new();
        for info in &list {
            let dataset = self
                .dsl
                .open_dataset(&info.name)
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", info.name));
            let blocks = reach(&self.pipeline, &dataset.objset().root()).await;
            let used = self.dsize(blocks.values());
            assert_eq!(info.referenced_bytes, used, "referenced of {}", info.name);
            let logical: u64 = blocks.values().map(uncompressed).sum();
            let told = self.number(&info.name, "logicalreferenced").await;
            // Embedded blocks have no place and are not among those reached: they only add.
            assert!(
                told >= logical,
                "logicalreferenced of {}: {told} {logical}",
                info.name
            );
            for (key, block) in &blocks {
                assert!(
                    !mos.contains_key(key),
                    "{block} is in the MOS and in {}",
                    info.name
                );
            }
            all.extend(blocks.clone());
            reached.insert(info.name.clone(), blocks);
        }
        let origin_txg_of = |head: &str| {
            let info = list.iter().find(|info| info.name == head).expect("a head");
            info.origin.as_ref().map_or(Txg::ZERO, |origin| {
                list.iter()
                    .find(|other| other.name == *origin)
                    .unwrap_or_else(|| panic!("origin {origin}"))
                    .createtxg
            })
        };
        // Snapshots: what no other of their directory has. Clones do not count.
        for info in &list {
            let Some((head, _)) = info.name.split_once('@') else {
                continue;
            };
            let origin_txg = origin_txg_of(head);
            let only = reached[&info.name].iter().filter(|(key, block)| {
                block.birth() > origin_txg
                    && reached.iter().all(|(other, blocks)| {
                        *other == info.name
                            || other.split('@').next() != Some(head)
                            || !blocks.contains_key(*key)
                    })
            });
            let unique = self.dsize(only.map(|(_, block)| block));
            assert_eq!(info.used_bytes, unique, "unique of {}", info.name);
        }
        // Directories: what was born in them.
        for info in &list {
            if info.name.contains('@') {
                continue;
            }
            let origin_txg = origin_txg_of(&info.name);
            let head = &reached[&info.name];
            let own = self.dsize(head.values().filter(|block| block.birth() > origin_txg));
            let by_dataset = self.number(&info.name, "usedbydataset").await;
            assert_eq!(by_dataset, own, "usedbydataset of {}", info.name);
            let prefix = format!("{}@", info.name);
            let mut only_snapshots: HashMap<[u64; 2], BlockPointer> = HashMap::new();
            for (name, blocks) in &reached {
                if name.starts_with(&prefix) {
                    only_snapshots.extend(
                        blocks
                            .iter()
                            .filter(|(key, block)| {
                                block.birth() > origin_txg && !head.contains_key(*key)
                            })
                            .map(|(key, block)| (*key, *block)),
                    );
                }
            }
            let by_snapshots = self.number(&info.name, "usedbysnapshots").await;
            assert_eq!(
                by_snapshots,
                self.dsize(only_snapshots.values()),
                "usedbysnapshots of {}",
                info.name
            );
            let children: u64 = list
                .iter()
                .filter(|other| {
                    other.name.rsplit_once('/').map(|(parent, _)| parent) == Some(&info.name)
                        && !other.name.contains('@')
                })
                .map(|other| other.used_bytes)
                .sum();
            let by_children = self.number(&info.name, "usedbychildren").await;
            if info.name != "tank" {
                // The root has hidden children, and reservations count more than is used.
                assert!(by_children >= children, "usedbychildren of {}", info.name);
            }
            let reserved = self.number(&info.name, "usedbyrefreservation").await;
            assert_eq!(
                info.used_bytes,
                by_dataset + by_snapshots + by_children + reserved,
                "used of {}",
                info.name
            );
        }
        // Nothing leaks, nothing is used that is free.
        let asize: u64 = all
            .values()
            .flat_map(|block| block.dvas())
            .map(|dva| dva.asize_bytes())
            .sum();
        assert_eq!(
            self.pipeline.space().allocated_bytes,
            asize,
            "allocated and reachable"
        );
    }

    pub async fn number(&self, name: &str, property: &str) -> u64 {
        self.dsl
            .properties()
            .get(name, property)
            .await
            .unwrap_or_else(|error| panic!("{name} {property}: {error}"))
            .value
            .number()
            .expect("a number")
    }

    fn dsize<'a>(&self, blocks: impl Iterator<Item = &'a BlockPointer>) -> u64 {
        blocks.map(|block| self.pipeline.dsize_bytes(block)).sum()
    }
}

fn uncompressed(block: &BlockPointer) -> u64 {
    if block.is_metadata() {
        block.psize_bytes()
    } else {
        block.lsize_bytes()
    }
}

async fn sync_loop(
    world: World,
    pipeline: Arc<Pipeline>,
    txgs: Arc<TxgManager>,
    dsl: Arc<DslPool>,
) {
    loop {
        match txgs.wait_for_work().await {
            Work::Stopped => return,
            Work::Timeout { .. } => {
                txgs.skip_timeout();
                continue;
            }
            Work::Wanted => {}
        }
        let txg = txgs.quiesce().await;
        let mut ctx = SyncContext {
            txg,
            pass: 1,
            pipeline: pipeline.clone(),
            world: world.clone(),
            txgs: Some(txgs.clone()),
        };
        while ctx.pass == 1 || dsl.mos().is_dirty(txg) {
            dsl.syncer().pass(&ctx).await.expect("a pass");
            pipeline.frees().take_changes(txg).await.expect("changes");
            ctx.pass += 1;
            assert!(ctx.pass < 20, "the MOS does not converge");
        }
        dsl.syncer().done(txg);
        pipeline.sync_done(txg);
        dsl.tasks().answer(txg);
        txgs.synced(txg);
    }
}

fn key(block: &BlockPointer) -> Option<[u64; 2]> {
    (!block.is_embedded()).then(|| [block.words()[0], block.words()[1]])
}

/// Every block with a place under an object set's root.
pub async fn reach(pipeline: &Pipeline, root: &BlockPointer) -> HashMap<[u64; 2], BlockPointer> {
    let mut out = HashMap::new();
    let mut add = |block: &BlockPointer| {
        if let Some(key) = key(block) {
            assert!(
                out.insert(key, *block).is_none(),
                "{block} is referenced twice"
            );
        }
    };
    let read = async |block: &BlockPointer| {
        pipeline
            .read(block, &ReadContext::default())
            .await
            .unwrap_or_else(|error| panic!("{block}: {error}"))
    };
    add(root);
    let phys = ObjsetPhys::decode(&read(root).await, root.endian()).expect("an object set");
    let mut dnodes = vec![phys.meta_dnode];
    dnodes.extend(phys.user_group_used.into_iter().flat_map(|used| *used));
    dnodes.extend(phys.project_used.map(|used| *used));
    while let Some(dnode) = dnodes.pop() {
        if dnode.is_free() {
            continue;
        }
        let mut pending = dnode.pointers.clone();
        pending.extend(dnode.spill);
        while let Some(pointer) = pending.pop() {
            if pointer.is_hole() {
                continue;
            }
            add(&pointer);
            if pointer.level() > 0 {
                let data = read(&pointer).await;
                pending.extend(BlockPointer::decode_all(&data, pointer.endian()));
            } else if pointer.object_type() == ObjectType::DNODE {
                let data = read(&pointer).await;
                let mut at = 0;
                while at < data.len() {
                    let dnode = DnodePhys::decode(&data[at..], pointer.endian()).expect("a dnode");
                    at += dnode.slots() * 512;
                    dnodes.push(dnode);
                }
            }
        }
    }
    out
}
