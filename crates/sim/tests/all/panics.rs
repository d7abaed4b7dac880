//! Goal: a panic in one of a pool's tasks stops that pool, says why, and leaves nobody waiting;
//! other pools go on, and the pool can be given up and imported again. Method: devices that panic
//! in the hands of the task that is meant.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{data, get, open, put};
use bytes::Bytes;
use device::sim::SimWorld;
use device::{BoxFuture, Device, DeviceError, Opener, World};
use parking_lot::Mutex;
use pool::{ImportSpec, Pool, PoolHealth, ScanState, ScrubCommand};
use sim::torture::{Layout, create, find, host, inspect, patiently, simulate};

/// What makes a device panic, once.
#[derive(Debug, Clone, PartialEq)]
enum Trap {
    Read,
    Write(Range<u64>),
    WriteDurable,
    Flush,
}

#[derive(Clone, Default)]
struct Traps(Arc<Mutex<Option<Trap>>>);

impl Traps {
    fn set(&self, trap: Trap) {
        *self.0.lock() = Some(trap);
    }

    fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }

    fn step_on(&self, is_it: impl Fn(&Trap) -> bool) {
        let trap = {
            let mut trap = self.0.lock();
            match trap.as_ref().is_some_and(is_it) {
                true => trap.take(),
                false => None,
            }
        };
        if let Some(trap) = trap {
            panic!("stepped on {trap:?}");
        }
    }
}

#[derive(Clone)]
struct Opens {
    sim: SimWorld,
    traps: Traps,
}

impl Opener for Opens {
    fn open<'a>(
        &'a self,
        path: &'a str,
        read_only: bool,
    ) -> BoxFuture<'a, Result<Arc<dyn Device>, DeviceError>> {
        Box::pin(async move {
            let device = self.sim.open(path, read_only).await?;
            let traps = self.traps.clone();
            Ok(Arc::new(Trapped { device, traps }) as Arc<dyn Device>)
        })
    }
}

struct Trapped {
    device: Arc<dyn Device>,
    traps: Traps,
}

impl std::fmt::Debug for Trapped {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.device.fmt(out)
    }
}

impl Device for Trapped {
    fn path(&self) -> &str {
        self.device.path()
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn sector_bytes(&self) -> u32 {
        self.device.sector_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DeviceError>> {
        Box::pin(async move {
            self.traps.step_on(|trap| *trap == Trap::Read);
            self.device.read(offset, length).await
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.traps
                .step_on(|trap| matches!(trap, Trap::Write(range) if range.contains(&offset)));
            self.device.write(offset, data).await
        })
    }

    fn write_durable(&self, offset: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.traps.step_on(|trap| *trap == Trap::WriteDurable);
            self.device.write_durable(offset, data).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.traps.step_on(|trap| *trap == Trap::Flush);
            self.device.flush().await
        })
    }

    fn discard(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DeviceError>> {
        self.device.discard(offset, length)
    }
}

/// A pool with a file, on devices with traps; and another one.
struct Bed {
    sim: SimWorld,
    traps: Traps,
    pool: Arc<Pool>,
    other_sim: SimWorld,
    other: Arc<Pool>,
}

async fn begin(read_only: bool) -> Bed {
    let sim = SimWorld::new(91);
    let pool = create(&sim, Layout::Mirror(2), 96, false).await.unwrap();
    let fs = open(&sim, &pool).await.unwrap();
    put(&fs, "before", &data(1, 300_000)).await.unwrap();
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
    drop((fs, pool));
    let traps = Traps::default();
    let opener = Opens {
        sim: sim.clone(),
        traps: traps.clone(),
    };
    let world = World {
        opener: Arc::new(opener),
        ..sim.world()
    };
    let mut spec = ImportSpec::new(find(&sim).await.unwrap(), host());
    spec.host.hostid = 1;
    spec.read_only = read_only;
    let pool = Pool::import(&world, spec).await.unwrap();
    let other_sim = SimWorld::new(92);
    let other = create(&other_sim, Layout::Single, 96, false).await.unwrap();
    Bed {
        sim,
        traps,
        pool,
        other_sim,
        other,
    }
}

/// The pool has stopped, because of this task.
async fn stopped(bed: &Bed, task: &str) {
    patiently("the suspension", bed.pool.until_suspended())
        .await
        .unwrap();
    assert!(!bed.traps.is_set());
    let why = bed.pool.suspended().unwrap();
    for part in [task, "stepped on", "zpool export -f"] {
        assert!(why.contains(part), "{why}");
    }
    let status = bed.pool.status();
    assert_eq!(status.health, PoolHealth::Suspended);
    assert_eq!(status.suspended_why, Some(why));
    let clear = patiently("clear", bed.pool.clear(None)).await.unwrap();
    let clear = clear.unwrap_err().to_string();
    assert!(clear.contains("zpool export -f"), "{clear}");
}

/// Who waits for the pool gets an error, the other pool goes on, and the pool is as after a crash.
async fn left(bed: Bed) {
    let Bed { pool, sim, .. } = bed;
    if !pool.is_read_only() {
        let sync = patiently("sync", pool.sync()).await.unwrap();
        assert!(sync.is_err());
        let set = patiently("set", pool.properties().set("comment", "new")).await;
        assert!(set.unwrap().is_err());
        let tasks = pool.dsl().tasks();
        let created = tasks.run(Arc::new(Nothing));
        assert!(patiently("a task", created).await.unwrap().is_err());
    }
    let fs = open(&bed.other_sim, &bed.other).await.unwrap();
    put(&fs, "file", &data(2, 300_000)).await.unwrap();
    patiently("the other's sync", bed.other.sync())
        .await
        .unwrap()
        .unwrap();
    let exported = patiently("export", pool.export(false)).await.unwrap();
    assert_eq!(exported.is_ok(), pool.is_read_only());
    if exported.is_err() {
        patiently("export by force", pool.export(true))
            .await
            .unwrap()
            .unwrap();
    }
    drop(pool);
    let mut spec = ImportSpec::new(find(&sim).await.unwrap(), host());
    spec.host.hostid = 1;
    let world = sim.world();
    let pool = patiently("import", Pool::import(&world, spec)).await;
    let pool = pool.unwrap().unwrap();
    let fs = open(&sim, &pool).await.unwrap();
    assert_eq!(get(&fs, "before").await.unwrap(), data(1, 300_000));
    fs.close().await.unwrap();
    pool.export(false).await.unwrap();
    drop((fs, pool));
    inspect(&sim, "after all", true).await.unwrap();
}

struct Nothing;

impl dataset::SyncTask for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn check<'a>(
        &'a self,
        _: &'a object::SyncContext,
    ) -> BoxFuture<'a, Result<(), dataset::DatasetError>> {
        Box::pin(async { Ok(()) })
    }

    fn apply<'a>(
        &'a self,
        _: &'a object::SyncContext,
    ) -> BoxFuture<'a, Result<(), dataset::DatasetError>> {
        Box::pin(async { Ok(()) })
    }
}

#[test]
fn of_the_sync_loop() {
    simulate(async {
        let bed = begin(false).await;
        let fs = open(&bed.sim, &bed.pool).await.unwrap();
        put(&fs, "after", &data(2, 300_000)).await.unwrap();
        bed.traps.set(Trap::Flush);
        let (pool, dsl) = (bed.pool.clone(), bed.pool.dsl().clone());
        let sync = tokio::spawn(async move { pool.sync().await.is_err() });
        let task = tokio::spawn(async move { dsl.tasks().run(Arc::new(Nothing)).await.is_err() });
        stopped(&bed, "sync loop").await;
        assert!(patiently("sync", sync).await.unwrap().unwrap());
        assert!(patiently("a task", task).await.unwrap().unwrap());
        let more = data(3, 3_000_000);
        let put = patiently("a write", put(&fs, "more", &more)).await.unwrap();
        assert!(put.is_err());
        drop(fs);
        left(bed).await;
    });
}

#[test]
fn of_a_heartbeat() {
    simulate(async {
        let bed = begin(false).await;
        bed.pool.properties().set("multihost", "on").await.unwrap();
        bed.pool.sync().await.unwrap();
        // The last slot of the first label's ring has nothing but heartbeats.
        let slot = (128 << 10) + 31 * 4096;
        bed.traps.set(Trap::Write(slot..slot + 4096));
        stopped(&bed, "heartbeat").await;
        // Not for ever: another host would wait.
        tokio::time::sleep(Duration::from_secs(60)).await;
        left(bed).await;
    });
}

#[test]
fn of_an_intent_log() {
    simulate(async {
        let bed = begin(false).await;
        let fs = open(&bed.sim, &bed.pool).await.unwrap();
        let ino = put(&fs, "synchronous", &data(2, 5000)).await.unwrap();
        fs.sync_file(ino).await.unwrap();
        // The first one waits for a txg; this one is logged.
        fs.write(ino, 0, data(3, 5000), false, crate::common::ROOT)
            .await
            .unwrap();
        bed.traps.set(Trap::WriteDurable);
        let commits = (0..3).map(|_| {
            let fs = fs.clone();
            tokio::spawn(async move { fs.sync_file(ino).await.is_err() })
        });
        for commit in commits.collect::<Vec<_>>() {
            assert!(patiently("a commit", commit).await.unwrap().unwrap());
        }
        stopped(&bed, "intent log").await;
        let commit = patiently("a commit", fs.sync_file(ino)).await.unwrap();
        assert!(commit.is_err());
        drop(fs);
        left(bed).await;
    });
}

#[test]
fn of_a_scrub() {
    simulate(async {
        let bed = begin(true).await;
        bed.traps.set(Trap::Read);
        bed.pool.scans().scrub(ScrubCommand::Start).await.unwrap();
        patiently("the scrub", bed.pool.scans().wait_for_scrub(true))
            .await
            .unwrap();
        stopped(&bed, "traversal").await;
        let scan = bed.pool.status().scan.unwrap();
        assert_eq!(scan.state, ScanState::Canceled);
        left(bed).await;
    });
}
