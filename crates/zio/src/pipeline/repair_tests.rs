//! Tests of repairs that somebody must wait for, and of space maps that can be read again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use device::BoxFuture;
use device::sim::{Latency, SimDisk, SimOp, SimWorld};
use format::{BlockPointer, LABEL_START_BYTES, ObjectType, Txg, VdevId};
use tokio::time::timeout;
use vdev::RangeSet;
use vdev::testing::noise;

use crate::ZioError;
use crate::alloc::{AllFree, MetaslabSource};
use crate::pipeline::{CacheUse, ReadContext, WritePolicy};
use crate::testing::{DISK_BYTES, TestPool, group, leaf, simulate};

const TXG: Txg = Txg::new(5);

fn policy() -> WritePolicy {
    WritePolicy {
        cache: false,
        ..WritePolicy::data(ObjectType::PLAIN_FILE_CONTENTS)
    }
}

fn direct() -> ReadContext {
    ReadContext {
        cache: CacheUse::Bypass,
        ..ReadContext::default()
    }
}

/// A pool with a block of which a disk that is read from has a wrong part.
struct Case {
    kind: &'static str,
    pool: TestPool,
    block: BlockPointer,
    disk: SimDisk,
    at: u64,
    right: Vec<u8>,
}

impl Case {
    async fn make(kind: &'static str, data: &[u8]) -> Case {
        let sim = SimWorld::new(5);
        let tops = match kind {
            "copies" => vec![leaf(&sim, "disk0", 10), leaf(&sim, "disk1", 20)],
            kind => vec![group(&sim, kind, 1, "disk", 3, 10)],
        };
        let names = sim.disk_names();
        let pool = TestPool::create(sim, tops, 12).await;
        let policy = WritePolicy {
            copies: if kind == "copies" { 2 } else { 1 },
            ..policy()
        };
        let written = pool.pipeline.write(TXG, data.to_vec().into(), &policy);
        let block = written.await.expect("written");
        let reads = |name: &String| pool.disk(name).counts().get(SimOp::Read);
        let before: Vec<u64> = names.iter().map(reads).collect();
        pool.pipeline.read(&block, &direct()).await.expect("read");
        let mut read = names.iter().zip(before);
        let name = read.find(|(name, before)| reads(name) > *before);
        let disk = pool.disk(name.expect("a disk was read").0);
        let mut places = (0..DISK_BYTES - 2 * LABEL_START_BYTES).step_by(4096);
        let at = places.find(|at| {
            disk.peek(at + LABEL_START_BYTES, 4096)
                .iter()
                .any(|b| *b != 0)
        });
        let at = at.expect("a part of the block") + LABEL_START_BYTES;
        let right = disk.peek(at, 4096);
        disk.corrupt(at, 4096);
        assert!(disk.peek(at, 4096) != right);
        Case {
            kind,
            pool,
            block,
            disk,
            at,
            right,
        }
    }

    fn is_right(&self) -> bool {
        self.disk.peek(self.at, 4096) == self.right
    }

    async fn read(&self) -> Bytes {
        let context = direct();
        let read = self.pool.pipeline.read(&self.block, &context);
        read.await.expect("read")
    }
}

/// Repairs in a mirror, with parity, and from another copy.
const KINDS: [&str; 3] = ["mirror", "raidz", "copies"];

/// Goal: a repair that a reader began before it went away is done before the end of the txg, after
/// which the place may belong to another block.
#[test]
fn a_repair_of_a_reader_that_is_gone_is_waited_for() {
    simulate(async {
        let data = noise(16384, 1);
        for kind in KINDS {
            let case = Case::make(kind, &data).await;
            case.disk.set_latency(Latency {
                write: Duration::from_secs(20),
                ..Latency::NONE
            });
            let read = timeout(Duration::from_secs(1), case.read()).await;
            assert!(read.is_err() && !case.is_right(), "{kind}");
            case.pool.pipeline.end_txg(TXG).await;
            assert!(case.is_right(), "{kind}");
        }
    });
}

/// Goal: a reader that began before a txg ended repairs nothing after it: its block may be another
/// one by then.
#[test]
fn a_late_reader_repairs_nothing() {
    simulate(async {
        let data = noise(16384, 1);
        for kind in KINDS {
            let case = Case::make(kind, &data).await;
            case.disk.set_latency(Latency {
                read: Duration::from_secs(2),
                ..Latency::NONE
            });
            let end = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                case.pool.pipeline.end_txg(TXG).await;
            };
            let (read, ()) = tokio::join!(case.read(), end);
            assert!(read == data && !case.is_right(), "{}", case.kind);
            assert!(
                case.read().await == data && case.is_right(),
                "{}",
                case.kind
            );
        }
    });
}

/// Space maps that fail to be read so many times.
struct Failing {
    left: AtomicU64,
    then: AllFree,
}

impl MetaslabSource for Failing {
    fn load(&self, vdev: VdevId, metaslab: u64) -> BoxFuture<'_, Result<RangeSet, ZioError>> {
        let fails = |left: u64| left.checked_sub(1);
        let failed = (self.left).fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails);
        match failed {
            Ok(_) => Box::pin(async move {
                Err(ZioError::MetaslabLoad {
                    vdev,
                    metaslab,
                    cause: "a read failed".to_owned(),
                })
            }),
            Err(_) => self.then.load(vdev, metaslab),
        }
    }
}

/// Goal: when all that is left is in metaslabs that were set aside, these are tried again before
/// the pool waits for somebody.
#[test]
fn metaslabs_that_were_set_aside_are_tried_again_before_the_pool_waits() {
    simulate(async {
        let sim = SimWorld::new(5);
        let config = leaf(&sim, "single", 10);
        let pool = TestPool::create(sim, vec![config], 12).await;
        let spec = vdev::TopSpec::of(&pool.pipeline.tree().tops()[0]);
        let spec = spec.expect("space");
        pool.pipeline.allocator().set_source(Arc::new(Failing {
            left: AtomicU64::new(spec.metaslab_count),
            then: AllFree {
                metaslab_shift: spec.metaslab_shift,
            },
        }));
        let policy = policy();
        let written = pool.pipeline.write(TXG, noise(8192, 1).into(), &policy);
        let written = timeout(Duration::from_secs(60), written).await;
        written.expect("nothing to wait for").expect("written");
        assert!(pool.pipeline.suspension().error().is_none());
    });
}
