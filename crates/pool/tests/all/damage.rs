//! Goal: what a pool can do without keeps it from nothing. Of each object of the MOS in turn no
//! copy can be read any more: the pool is imported for writing, all else is right and goes on, or
//! (of what no pool can do without) the import says what is damaged.
//! Method: a small pool with a little of everything is made once, on a simulated disk; each case
//! loads it, destroys all blocks of one object of the MOS, as wrong checksums or as sectors that
//! cannot be read (by turns, or with `MILLPOND_LONG` both), and writes to the pool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dataset::{GrantChange, Grantee, PropertyChange};
use device::sim::SimWorld;
use device::{BoxFuture, Tasks};
use format::{BlockPointer, Bookmark, ObjectId, ObjectType, ObjsetId, Txg, names};
use object::{Met, Traverse, Traversed, Visitor, Zap, traverse};
use parking_lot::Mutex;
use pool::{ImportSpec, LeafSpec, Pool, PoolError, ScanSpec, VdevClass, VdevLayout, VdevSpec};
use tokio::time::timeout;
use zio::{Pipeline, ReadContext, ZioError};

use crate::common::*;

pub const DISKS: [&str; 3] = ["disk0", "spare0", "cache0"];
const DISK_BYTES: u64 = 128 << 20;
const LABELS_BYTES: u64 = 4 << 20;
const PAGE_BYTES: usize = 4096;

/// Disks, as pages that are not zero.
pub type Image = Vec<(&'static str, Vec<(u64, Vec<u8>)>)>;

pub fn save(sim: &SimWorld) -> Image {
    let pages = |name: &'static str| {
        let disk = sim.disk(name).expect("a disk");
        let all = (0..DISK_BYTES / PAGE_BYTES as u64).map(|page| page * PAGE_BYTES as u64);
        let pages = all.map(|at| (at, disk.peek(at, PAGE_BYTES)));
        let zero = [0; PAGE_BYTES];
        (name, pages.filter(|(_, page)| page[..] != zero).collect())
    };
    DISKS.into_iter().map(pages).collect()
}

pub fn load(image: &Image) -> SimWorld {
    load_in(SimWorld::new(5), image)
}

/// Makes its disks in another world: a seed that made the image makes the same guids again.
pub fn load_in(sim: SimWorld, image: &Image) -> SimWorld {
    for (name, pages) in image {
        let disk = sim.add_disk(name, DISK_BYTES);
        for (at, page) in pages {
            disk.poke(*at, page);
        }
    }
    sim
}

pub async fn try_import(sim: &SimWorld, read_only: bool) -> Result<Arc<Pool>, PoolError> {
    let spec = ScanSpec {
        paths: sim.disk_names(),
        ..ScanSpec::default()
    };
    let found = pool::scan(&sim.world(), &spec)
        .await
        .expect("scan")
        .remove(0);
    let mut spec = ImportSpec::new(found, host());
    spec.read_only = read_only;
    Pool::import(&sim.world(), spec).await
}

/// Exports the pool, imports it, and exports it again after a sync.
///
/// # Errors
/// What did not work, in words.
pub async fn leave_and_return(sim: &SimWorld, pool: &Pool) -> Result<(), String> {
    let exported = timeout(PATIENCE, pool.export(false)).await;
    exported
        .map_err(|_| "the export hangs".to_owned())?
        .map_err(|error| format!("export: {error}"))?;
    let pool = try_import(sim, false)
        .await
        .map_err(|error| format!("import: {error}"))?;
    pool.sync()
        .await
        .map_err(|error| format!("sync: {error}"))?;
    pool.export(false)
        .await
        .map_err(|error| format!("export again: {error}"))?;
    Ok(())
}

/// What is in the pool, by dataset.
pub type Contents = BTreeMap<&'static str, Vec<ObjectId>>;

/// Makes the pool.
pub async fn make() -> (Image, Contents) {
    let sim = SimWorld::new(5);
    let leaf = |name: &str| {
        sim.add_disk(name, DISK_BYTES);
        VdevLayout::Leaf(LeafSpec {
            path: name.to_owned(),
            is_file: false,
        })
    };
    let mut vdevs = vec![normal(leaf(DISKS[0]))];
    for (name, class) in [(DISKS[1], VdevClass::Spare), (DISKS[2], VdevClass::Cache)] {
        vdevs.push(VdevSpec {
            layout: leaf(name),
            class,
        });
    }
    let mut spec = spec("tank", vdevs);
    // Without embedded blocks everything has a place that can be damaged.
    for (name, value) in [
        ("comment", "a pool"),
        ("org.example:a", "b"),
        ("feature@embedded_data", "disabled"),
    ] {
        spec.properties.push((name.into(), value.into()));
    }
    let world = sim.world();
    let pool = Pool::create(&world, spec).await.expect("create");
    pool.log_history("zpool create tank", None)
        .await
        .expect("history");
    let dsl = pool.dsl().clone();
    let mut contents = Contents::new();
    let datasets = dsl.datasets();
    for name in ["tank/a", "tank/dedup", "tank/gone"] {
        let init = Arc::new(BareFilesystem);
        datasets.create(name, &[], init).await.expect("created");
    }
    let set = |name: &'static str, property: &'static str, value: &'static str| {
        let dsl = dsl.clone();
        async move {
            let change = (property.to_owned(), PropertyChange::Set(value.to_owned()));
            let set = dsl.properties().set(name, &[change]).await;
            set.expect("set");
        }
    };
    set("tank/dedup", "dedup", "on").await;
    set("tank/a", "org.example:c", "d").await;
    set("tank/a", "compression", "off").await;
    let write = async |name: &str, count: usize| {
        let dataset = dsl.open_dataset(name).await.expect("open");
        let objects = write_objects(&dataset, count, 2).await;
        drop(dataset);
        pool.sync().await.expect("sync");
        objects
    };
    contents.insert("tank", write("tank", 2).await);
    let first = write("tank/a", 3).await;
    let snapshots = dsl.snapshots();
    snapshots.take(&["tank/a@1".into()], &[]).await.expect("@1");
    let both = [first.clone(), write("tank/a", 2).await].concat();
    snapshots.take(&["tank/a@2".into()], &[]).await.expect("@2");
    {
        let dataset = dsl.open_dataset("tank/a").await.expect("open");
        free_objects(&dataset, &both[..2]).await;
        drop(dataset);
        pool.sync().await.expect("sync");
    }
    contents.insert("tank/a", both[2..].to_vec());
    datasets
        .clone_snapshot("tank/a@1", "tank/clone", &[])
        .await
        .expect("cloned");
    contents.insert(
        "tank/clone",
        [first.clone(), write("tank/clone", 1).await].concat(),
    );
    contents.insert("tank/a@1", first);
    contents.insert("tank/a@2", both);
    contents.insert("tank/dedup", write("tank/dedup", 3).await);
    write("tank/gone", 2).await;
    dsl.destroyer()
        .destroy("tank/gone")
        .await
        .expect("destroyed");
    let held = ["tank/a@2".to_owned()];
    dsl.holds().hold(&held, "keep").await.expect("held");
    dsl.bookmarks()
        .create(&[("tank/a#1".to_owned(), "tank/a@1".to_owned())])
        .await
        .expect("a bookmark");
    let grant = GrantChange {
        grantee: Grantee::User(1000),
        local: true,
        descendent: true,
        permissions: Some(vec!["snapshot".into()]),
    };
    dsl.delegation()
        .change("tank/a", &[grant], false)
        .await
        .expect("granted");
    let vdev = pool.status().root.children[0].guid;
    pool.properties()
        .set_of_vdev(vdev, "comment", "a disk")
        .await
        .expect("set");
    pool.export(false).await.expect("export");
    (save(&sim), contents)
}

/// Collects where the blocks of each object of the MOS are.
struct Blocks {
    pipeline: Arc<Pipeline>,
    found: Mutex<BTreeMap<ObjectId, Vec<BlockPointer>>>,
}

impl Visitor for Blocks {
    fn meet(&self, met: &Met<'_>) -> bool {
        if met.bookmark.level != Bookmark::ROOT_LEVEL {
            let mut found = self.found.lock();
            let blocks = found.entry(met.bookmark.object).or_default();
            blocks.push(*met.pointer);
        }
        true
    }

    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        _bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        Box::pin(async move { self.pipeline.read(&pointer, &ReadContext::default()).await })
    }
}

/// Datasets whose root blocks are destroyed too.
const ROOTS: [&str; 3] = ["tank", "tank/a", "tank/clone"];

/// An object of the MOS, or the root of a dataset.
pub struct Victim {
    pub id: ObjectId,
    pub kind: ObjectType,
    pub blocks: Vec<BlockPointer>,
    pub name: String,
}

pub async fn victims(image: &Image, roots: &[&str]) -> Vec<Victim> {
    let sim = load(image);
    let pool = try_import(&sim, true).await.expect("import");
    let visitor = Arc::new(Blocks {
        pipeline: pool.pipeline().clone(),
        found: Mutex::default(),
    });
    let what = Traverse {
        root: pool.dsl().root_bp(),
        objset: ObjsetId::new(0),
        after: Txg::ZERO,
        from: None,
    };
    let tasks = Tasks::new(&sim.world(), |_| ());
    assert_eq!(traverse(&what, &tasks, &visitor).await, Traversed::Whole);
    let mos = pool.dsl().mos();
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await.expect("it");
    let mut named = BTreeMap::new();
    for entry in directory.all().await.expect("entries") {
        if let Some(id) = entry.value.as_u64() {
            named.insert(ObjectId::new(id), entry.name_str().into_owned());
        }
    }
    let found = std::mem::take(&mut *visitor.found.lock());
    for id in found.keys().filter(|id| **id != ObjectId::META_DNODE) {
        // Of clones, whose directories have entries.
        if mos.hold(*id).await.expect("hold").info().object_type == ObjectType::DSL_DIR
            && let Ok(zap) = Zap::hold(mos, *id).await
            && let Ok(Some(list)) = zap.lookup_u64(names::directory::LIVELIST).await
        {
            named.insert(ObjectId::new(list), "livelist".to_owned());
        }
    }
    let mut out = Vec::new();
    for (id, blocks) in found {
        let (kind, name) = match id == ObjectId::META_DNODE {
            true => (ObjectType::DNODE, "dnodes".to_owned()),
            false => {
                let info = mos.hold(id).await.expect("hold").info();
                let name = named.remove(&id).unwrap_or_default();
                (info.object_type, name)
            }
        };
        out.push(Victim {
            id,
            kind,
            blocks,
            name,
        });
    }
    for name in roots.iter().copied() {
        let dataset = pool.dsl().open_dataset(name).await.expect("open");
        out.push(Victim {
            id: ObjectId::ZERO,
            kind: ObjectType::OBJSET,
            blocks: vec![dataset.objset().root()],
            name: name.to_owned(),
        });
    }
    pool.export(false).await.expect("export");
    out
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Corrupt,
    Unreadable,
}

pub fn destroy(sim: &SimWorld, victim: &Victim, how: How) {
    let disk = sim.disk(DISKS[0]).expect("the disk");
    for dva in victim.blocks.iter().flat_map(BlockPointer::dvas) {
        let at = LABELS_BYTES + dva.offset_bytes();
        match how {
            How::Corrupt => disk.corrupt(at, 512),
            How::Unreadable => disk.make_unreadable(at, dva.asize_bytes()),
        }
    }
}

/// Whether the whole pool goes on without it.
fn is_dispensable(victim: &Victim) -> bool {
    matches!(
        victim.name.as_str(),
        "feature_descriptions"
            | "feature_enabled_txg"
            | "history"
            | "spares"
            | "l2cache"
            | "pool_props"
            | "com.delphix:vdev_zap_map"
            | "livelist"
    )
}

/// What became of the pool.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It works; these datasets cannot be opened.
    Works(BTreeSet<&'static str>),
    /// It is not imported for writing.
    Refused(String),
    /// It stopped, or is not as it was.
    Broken(String),
}

async fn use_it(
    sim: &SimWorld,
    contents: &Contents,
    pool: Arc<Pool>,
) -> Result<BTreeSet<&'static str>, String> {
    let mut lost = BTreeSet::new();
    for (name, objects) in contents {
        match pool.dsl().open_dataset(name).await {
            Ok(dataset) => check_objects(&dataset, objects, 2).await,
            Err(_) => {
                lost.insert(*name);
            }
        }
    }
    // What is written now is there after the next import.
    let mut written = BTreeMap::new();
    for name in ["tank", "tank/a", "tank/clone", "tank/dedup"] {
        if let Ok(dataset) = pool.dsl().open_dataset(name).await {
            written.insert(name, write_objects(&dataset, 2, 2).await);
        }
    }
    let said = |what: &'static str| move |error: PoolError| format!("{what}: {error}");
    pool.log_history("zpool anything", None)
        .await
        .map_err(said("history"))?;
    pool.sync().await.map_err(said("sync"))?;
    for (name, value) in [("org.example:a", "c"), ("comment", "another")] {
        let _ = pool.properties().set(name, value).await;
        pool.sync().await.map_err(said("set"))?;
    }
    let exported = pool.export(false).await;
    exported.map_err(said("export"))?;
    let pool = try_import(sim, false).await.map_err(said("import again"))?;
    for (name, objects) in written {
        match pool.dsl().open_dataset(name).await {
            Ok(dataset) => check_objects(&dataset, &objects, 2).await,
            Err(error) => return Err(format!("{name}: {error}")),
        }
    }
    pool.export(false).await.map_err(said("export again"))?;
    Ok(lost)
}

/// Nothing here waits so long, unless it waits for a device.
pub const PATIENCE: Duration = Duration::from_secs(600);

async fn fate(image: &Image, contents: &Contents, victim: &Victim, how: How) -> Fate {
    let sim = load(image);
    destroy(&sim, victim, how);
    let imported = timeout(PATIENCE, try_import(&sim, false)).await;
    match imported {
        Err(_) => Fate::Broken("the import hangs".into()),
        Ok(Err(error)) => Fate::Refused(error.to_string()),
        Ok(Ok(pool)) => match timeout(PATIENCE, use_it(&sim, contents, pool)).await {
            Err(_) => Fate::Broken("it hangs".into()),
            Ok(Err(why)) => Fate::Broken(why),
            Ok(Ok(lost)) => Fate::Works(lost),
        },
    }
}

#[tokio::test(start_paused = true)]
async fn each_object_of_the_mos_in_turn() {
    let (image, contents) = make().await;
    let victims = victims(&image, &ROOTS).await;
    let mut wrong = Vec::new();
    let is_long = std::env::var_os("MILLPOND_LONG").is_some();
    for victim in &victims {
        let both = is_long || is_dispensable(victim);
        let hows = match victim.id.get() % 2 {
            _ if both => &[How::Corrupt, How::Unreadable][..],
            0 => &[How::Corrupt],
            _ => &[How::Unreadable],
        };
        for how in hows.iter().copied() {
            let fate = fate(&image, &contents, victim, how).await;
            let is_right = match &fate {
                Fate::Works(lost) if ROOTS.contains(&victim.name.as_str()) => {
                    lost.iter().eq([&victim.name.as_str()])
                }
                Fate::Works(lost) => lost.is_empty() || !is_dispensable(victim),
                Fate::Refused(why) => {
                    !is_dispensable(victim)
                        && why.starts_with("pool 'tank': ")
                        && why.contains("is damaged")
                }
                Fate::Broken(_) => false,
            };
            let (id, kind, name) = (victim.id, victim.kind, &victim.name);
            println!("{is_right} {id} {kind:?} '{name}' {how:?}: {fate:?}");
            if !is_right {
                wrong.push(format!("{id} {kind:?} '{name}' {how:?}: {fate:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
