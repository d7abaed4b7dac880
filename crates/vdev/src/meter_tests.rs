//! What is counted of a leaf's I/O, on simulated disks with known latencies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::sim::{Fault, FaultEffect, Latency, SimOp, SimWorld};
use format::{Guid, VdevId};
use futures::future::join_all;

use super::meter::{IoClass, IoStats};
use super::*;
use crate::report::{Priority, ScanRead};
use crate::testing::{TestTree, group, leaf, noise, simulate};

/// Every operation takes 6 ms: bucket 22, as timers are exact to a millisecond.
const SLOW: Latency = Latency {
    read: Duration::from_millis(6),
    write: Duration::from_millis(6),
    ..Latency::NONE
};
const ONE: usize = 22;
/// Twice that.
const TWO: usize = 23;

async fn single() -> (TestTree, Arc<Leaf>) {
    let sim = SimWorld::new(3);
    let config = leaf(&sim, "single", 10);
    let pool = TestTree::create(sim, vec![config], 12).await;
    pool.disk("single").set_latency(SLOW);
    let vdev = pool.tree.find(Guid::new(10)).expect("a vdev");
    let leaf = vdev.leaf().expect("a leaf").clone();
    (pool, leaf)
}

fn idle(stats: &IoStats) -> bool {
    stats.pending == [0; IO_CLASSES] && stats.active == [0; IO_CLASSES]
}

/// Goal: those that find no place wait, and the time is told apart from the device's.
#[test]
fn reads_wait_for_places_and_then_for_the_device() {
    simulate(async {
        let (_pool, leaf) = single().await;
        let before = leaf.io_stats();
        assert!(idle(&before));
        let context = IoContext::default();
        let reads = join_all((0..100).map(|index| leaf.read(index * 4096, 4096, &context)));
        let watch = async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            leaf.io_stats()
        };
        let (results, during) = futures::future::join(reads, watch).await;
        assert!(results.iter().all(Result::is_ok));
        let class = IoClass::SyncRead as usize;
        assert_eq!((during.active[class], during.pending[class]), (64, 36));
        let after = leaf.io_stats();
        assert!(idle(&after));
        assert_eq!(after.individual[class][12], 100);
        assert_eq!(after.disk[0][ONE], 100);
        assert_eq!((after.queued[class][0], after.queued[class][ONE]), (64, 36));
        assert_eq!((after.total[0][ONE], after.total[0][TWO]), (64, 36));
        // Nothing else moved.
        assert_eq!(after.total[1], before.total[1]);
        assert_eq!(after.aggregated, before.aggregated);
    });
}

/// Goal: what is put together counts once by its size, and each request by its time.
#[test]
fn queued_writes_count_as_operations_and_as_requests() {
    simulate(async {
        let (pool, leaf) = single().await;
        let before = leaf.io_stats();
        let operations = pool.sim.counts().writes;
        let tree = &pool.tree;
        let context = IoContext {
            priority: Priority::Async,
            ..IoContext::default()
        };
        const COUNT: u64 = 2048;
        let writes = join_all((0..COUNT).map(|index| {
            let data = Bytes::from(noise(4096, index));
            tree.write_block(VdevId::new(0), index * 4096, data, &context)
        }));
        let watch = async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            leaf.io_stats()
        };
        let (results, during) = futures::future::join(writes, watch).await;
        assert!(results.iter().all(Result::is_ok));
        let class = IoClass::AsyncWrite as usize;
        assert!(during.active[class] >= 2 && during.pending[class] > 0);
        let after = leaf.io_stats();
        assert!(idle(&after));
        let operations = pool.sim.counts().writes - operations;
        let sum = |histogram: &[u64]| histogram.iter().sum::<u64>();
        let made = sum(&after.individual[class]) + sum(&after.aggregated[class]);
        assert_eq!(made, operations);
        assert!(sum(&after.aggregated[class][13..]) > 0);
        assert_eq!(sum(&after.disk[1]) - sum(&before.disk[1]), operations);
        assert_eq!(sum(&after.total[1]) - sum(&before.total[1]), COUNT);
        assert_eq!(sum(&after.queued[class]), COUNT);
        // The first did not wait, and the last waited for others.
        assert!(after.queued[class][0] > 0 && sum(&after.queued[class][ONE..]) > 0);
        assert_eq!(after.individual[0], before.individual[0]);
    });
}

/// Goal: scrubs and discards are told apart, what fails is not measured, and leaves add up.
#[test]
fn classes_are_told_apart_and_failures_left_out() {
    simulate(async {
        let sim = SimWorld::new(3);
        let tops = vec![group(&sim, "mirror", 0, "m", 2, 10)];
        let pool = TestTree::create(sim, tops, 12).await;
        let tree = &pool.tree;
        let find = |guid| tree.find(Guid::new(guid)).expect("a vdev");
        let (top, first) = (find(10), find(11));
        let leaf = first.leaf().expect("a leaf");
        let labels = IoClass::SyncWrite as usize;
        assert!(first.io_stats().individual[labels].iter().sum::<u64>() > 0);
        let scrub = IoContext {
            priority: Priority::Scrub,
            scan: ScanRead::Scrub,
            ..IoContext::default()
        };
        leaf.read(0, 16384, &scrub).await.expect("read");
        let ahead = IoContext {
            priority: Priority::Async,
            ..IoContext::default()
        };
        leaf.read(0, 512, &ahead).await.expect("read");
        leaf.discard(0, 32 << 20).await.expect("discarded");
        let repair = IoContext {
            priority: Priority::Sync,
            ..scrub
        };
        let data = Bytes::from(noise(8192, 1));
        leaf.write(0, data, &repair).await.expect("written");
        let stats = first.io_stats();
        assert_eq!(stats.individual[IoClass::Scrub as usize][14], 1);
        assert_eq!(stats.individual[IoClass::AsyncRead as usize][9], 1);
        assert_eq!(stats.individual[IoClass::AsyncWrite as usize][13], 1);
        // Larger than any bucket.
        let trims = IoClass::Trim as usize;
        assert_eq!(stats.individual[trims][SIZE_BUCKETS - 1], 1);
        assert_eq!(stats.queued[trims], [0; LATENCY_BUCKETS]);

        // What may be put together with others is tried alone when it fails.
        pool.disk("m0")
            .inject(Fault::new(SimOp::Read, FaultEffect::Error).times(2));
        let failed = leaf.read(0, 512, &ahead).await;
        assert!(failed.is_err());
        let again = first.io_stats();
        assert!(idle(&again));
        assert_eq!(again.individual[IoClass::AsyncRead as usize][9], 1);
        assert_eq!(again.disk[0], stats.disk[0]);

        let mut sum = again;
        sum.add(&find(12).io_stats());
        assert_eq!(top.io_stats(), sum);
    });
}

/// Goal: what takes a device longer than 30 seconds is told, until the errors are cleared.
#[test]
fn slow_operations_are_counted() {
    simulate(async {
        let (pool, leaf) = single().await;
        let context = IoContext::default();
        leaf.read(0, 4096, &context).await.expect("read");
        assert_eq!(leaf.slow_ios(), 0);
        pool.disk("single").set_latency(Latency {
            read: Duration::from_millis(29_000),
            write: Duration::from_millis(31_000),
            ..Latency::NONE
        });
        leaf.read(0, 4096, &context).await.expect("read");
        assert_eq!(leaf.slow_ios(), 0);
        for priority in [Priority::Sync, Priority::Async] {
            let context = IoContext {
                priority,
                ..IoContext::default()
            };
            let data = Bytes::from(noise(4096, 1));
            leaf.write(0, data, &context).await.expect("written");
        }
        assert_eq!(leaf.slow_ios(), 2);
        let vdev = pool.tree.find(Guid::new(10)).expect("a vdev");
        vdev.clear_errors();
        assert_eq!(leaf.slow_ios(), 0);
    });
}
