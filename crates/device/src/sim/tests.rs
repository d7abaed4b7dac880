//! What simulated disks promise, and that runs repeat.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::*;
use crate::{Device, DeviceError, World};

fn filled(byte: u8, length: usize) -> Bytes {
    Bytes::from(vec![byte; length])
}

async fn open(world: &World, name: &str) -> Arc<dyn Device> {
    world.opener.open(name, false).await.unwrap()
}

/// Runs `future` in a fresh paused runtime.
fn simulate<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

#[tokio::test(start_paused = true)]
async fn flushed_writes_survive_and_others_may_not() {
    for how in [PowerCut::LoseUnflushed, PowerCut::Shuffle, PowerCut::Random] {
        let sim = SimWorld::new(1);
        let disk = sim.add_disk("d", 1 << 20);
        let device = open(&sim.world(), "d").await;
        device.write(0, filled(1, 4096)).await.unwrap();
        assert_eq!(disk.peek_durable(0, 1), [0]);
        device.flush().await.unwrap();
        assert_eq!(disk.peek_durable(0, 4096), filled(1, 4096));
        device.write(8192, filled(2, 4096)).await.unwrap();
        assert_eq!(device.read(8192, 4096).await.unwrap(), filled(2, 4096));
        assert_eq!(disk.unflushed_count(), 1);
        sim.power_cut(how);
        sim.power_on();
        assert_eq!(disk.peek(0, 4096), filled(1, 4096));
        let unflushed = disk.peek(8192, 4096);
        assert!(unflushed.iter().all(|byte| matches!(byte, 0 | 2)));
        if how == PowerCut::LoseUnflushed {
            assert_eq!(unflushed, filled(0, 4096));
        }
    }
}

/// Goal: a disk that writes through its cache keeps such a write and no other, and an older one to
/// the same place never comes back over it; one that does not is flushed. Method: power cuts of
/// all kinds after a plain write, a durable one over a part of it, and a plain one elsewhere.
#[tokio::test(start_paused = true)]
async fn a_durable_write_is_durable_alone() {
    for how in [
        PowerCut::LoseUnflushed,
        PowerCut::KeepAll,
        PowerCut::Shuffle,
    ] {
        for (seed, is_flushed) in (0..40).map(|seed| (seed, seed % 4 == 0)) {
            let sim = SimWorld::new(seed);
            let disk = sim.add_disk("d", 1 << 20);
            disk.set_durable_writes(true);
            let device = open(&sim.world(), "d").await;
            device.write(0, filled(1, 8192)).await.unwrap();
            device.write_durable(4096, filled(2, 4096)).await.unwrap();
            device.write(16384, filled(3, 4096)).await.unwrap();
            assert_eq!(device.read(0, 4096).await.unwrap(), filled(1, 4096));
            assert_eq!(device.read(4096, 4096).await.unwrap(), filled(2, 4096));
            assert_eq!(disk.peek_durable(4096, 4096), filled(2, 4096));
            assert_eq!((disk.unflushed_count(), disk.counts().flushes), (2, 0));
            if is_flushed {
                device.flush().await.unwrap();
                assert_eq!(disk.unflushed_count(), 0);
                assert_eq!(disk.peek_durable(0, 4096), filled(1, 4096));
            }
            sim.power_cut(how);
            sim.power_on();
            assert_eq!(disk.peek(4096, 4096), filled(2, 4096), "{how:?} {seed}");
            if how == PowerCut::LoseUnflushed {
                let kept = filled(u8::from(is_flushed), 4096);
                assert_eq!(disk.peek(0, 4096), kept);
            }
        }
    }
    let sim = SimWorld::new(1);
    let disk = sim.add_disk("d", 1 << 20);
    let device = open(&sim.world(), "d").await;
    device.write(0, filled(1, 4096)).await.unwrap();
    device.write_durable(4096, filled(2, 4096)).await.unwrap();
    assert_eq!((disk.unflushed_count(), disk.counts().flushes), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn over_many_seeds_writes_are_kept_lost_torn_and_reordered() {
    let (mut kept, mut lost, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..200 {
        let sim = SimWorld::new(seed);
        let disk = sim.add_disk("d", 1 << 20);
        let device = open(&sim.world(), "d").await;
        device.write(0, filled(1, 4096)).await.unwrap();
        device.write(8192, filled(2, 4096)).await.unwrap();
        sim.power_cut(PowerCut::Shuffle);
        let whole = |offset, byte| disk.peek(offset, 4096) == filled(byte, 4096);
        let first_kept = whole(0, 1);
        let first_lost = whole(0, 0);
        kept += u32::from(first_kept);
        lost += u32::from(first_lost);
        if !first_kept && !first_lost {
            torn += 1;
            // Only at borders of 512 bytes.
            for piece in disk.peek(0, 4096).chunks(512) {
                assert!(piece.iter().all(|byte| *byte == piece[0]));
            }
        }
        reordered += u32::from(first_lost && whole(8192, 2));
    }
    assert!(kept > 20 && lost > 20 && torn > 20 && reordered > 5);
}

#[tokio::test(start_paused = true)]
async fn a_flush_covers_only_what_was_complete_when_it_was_issued() {
    let sim = SimWorld::new(3);
    let disk = sim.add_disk("d", 1 << 20);
    disk.set_latency(Latency {
        write: Duration::from_millis(10),
        flush: Duration::from_millis(50),
        jitter_permille: 0,
        ..Latency::default()
    });
    let device = open(&sim.world(), "d").await;
    device.write(0, filled(1, 512)).await.unwrap();
    let (flushed, written) = tokio::join!(device.flush(), device.write(512, filled(2, 512)));
    flushed.unwrap();
    written.unwrap();
    sim.power_cut(PowerCut::LoseUnflushed);
    assert_eq!(disk.peek(0, 512), filled(1, 512));
    assert_eq!(disk.peek(512, 512), filled(0, 512));
}

#[tokio::test(start_paused = true)]
async fn the_power_goes_at_the_nth_write_and_old_handles_stay_dead() {
    let sim = SimWorld::new(4);
    let disk = sim.add_disk("d", 1 << 20);
    let world = sim.world();
    let device = open(&world, "d").await;
    sim.cut_power_at(SimOp::Write, 3, PowerCut::LoseUnflushed);
    device.write(0, filled(1, 512)).await.unwrap();
    device.write(0, filled(2, 512)).await.unwrap();
    device.flush().await.unwrap();
    assert!(sim.is_powered());
    assert!(matches!(
        device.write(0, filled(3, 512)).await,
        Err(DeviceError::Gone { .. })
    ));
    sim.power_lost().await;
    assert!(world.opener.open("d", false).await.is_err());
    sim.power_on();
    assert!(matches!(
        device.read(0, 512).await,
        Err(DeviceError::Gone { .. })
    ));
    let again = open(&world, "d").await;
    assert_eq!(again.read(0, 512).await.unwrap(), filled(2, 512));
    assert_eq!(disk.counts().writes, 3);
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_the_power_cut_interrupts_promises_nothing() {
    let sim = SimWorld::new(5);
    let disk = sim.add_disk("d", 1 << 20);
    let device = open(&sim.world(), "d").await;
    sim.cut_power_at(SimOp::Flush, 1, PowerCut::LoseUnflushed);
    device.write(0, filled(1, 512)).await.unwrap();
    assert!(device.flush().await.is_err());
    assert_eq!(disk.peek(0, 512), filled(0, 512));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_write_happens_all_the_same() {
    let sim = SimWorld::new(6);
    let disk = sim.add_disk("d", 1 << 20);
    let device = open(&sim.world(), "d").await;
    let write = device.write(0, filled(1, 512));
    let gave_up = tokio::time::timeout(Duration::from_micros(1), write).await;
    assert!(gave_up.is_err());
    assert_eq!(disk.peek(0, 512), filled(1, 512));
    assert_eq!(disk.peek_durable(0, 512), filled(0, 512));
}

#[tokio::test(start_paused = true)]
async fn faults_do_as_told() {
    let sim = SimWorld::new(7);
    let disk = sim.add_disk("d", 1 << 20);
    let device = open(&sim.world(), "d").await;
    device.write(0, filled(1, 8192)).await.unwrap();
    device.flush().await.unwrap();

    let fault = Fault::new(SimOp::Read, FaultEffect::Error);
    disk.inject(fault.within(4096..4097).after(1).times(2));
    device.read(0, 8192).await.unwrap();
    match device.read(0, 8192).await {
        Err(DeviceError::Io { source, .. }) => assert_eq!(source.raw_os_error(), Some(5)),
        other => panic!("{other:?}"),
    }
    device.read(0, 4096).await.unwrap();
    device.read(4096, 1).await.unwrap_err();
    device.read(4096, 1).await.unwrap();

    disk.inject(Fault::new(SimOp::Read, FaultEffect::Corrupt).times(1));
    let seen = device.read(0, 8192).await.unwrap();
    let differing: u32 = seen.iter().map(|byte| (byte ^ 1).count_ones()).sum();
    assert_eq!(differing, 1);
    assert_eq!(device.read(0, 8192).await.unwrap(), filled(1, 8192));

    disk.inject(Fault::new(SimOp::Read, FaultEffect::Short).times(1));
    match device.read(0, 8192).await {
        Err(DeviceError::Io { source, .. }) => {
            assert_eq!(source.kind(), io::ErrorKind::UnexpectedEof);
        }
        other => panic!("{other:?}"),
    }

    disk.inject(Fault::new(SimOp::Write, FaultEffect::NoSpace).times(1));
    match device.write(0, filled(2, 512)).await {
        Err(DeviceError::Io { source, .. }) => {
            assert_eq!(source.kind(), io::ErrorKind::StorageFull);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(disk.peek(0, 512), filled(1, 512));

    disk.inject(Fault::new(SimOp::Write, FaultEffect::Short).times(1));
    device.write(0, filled(3, 8192)).await.unwrap_err();
    assert_eq!(disk.peek(0, 4096), filled(3, 4096));
    assert_eq!(disk.peek(4096, 4096), filled(1, 4096));

    disk.inject(Fault::new(SimOp::Write, FaultEffect::Lost).times(1));
    device.write(0, filled(4, 512)).await.unwrap();
    assert_eq!(disk.peek(0, 512), filled(3, 512));

    disk.inject(Fault::new(SimOp::Write, FaultEffect::Misdirected(65536)).times(1));
    device.write(0, filled(5, 512)).await.unwrap();
    assert_eq!(disk.peek(0, 512), filled(3, 512));
    assert_eq!(disk.peek(65536, 512), filled(5, 512));

    disk.inject(Fault::new(SimOp::Flush, FaultEffect::Lost).times(1));
    device.flush().await.unwrap();
    assert_ne!(disk.unflushed_count(), 0);
    device.flush().await.unwrap();
    assert_eq!(disk.unflushed_count(), 0);

    let slow = Duration::from_secs(30);
    disk.inject(Fault::new(SimOp::Read, FaultEffect::Delay(slow)).times(1));
    let before = sim.elapsed();
    device.read(0, 1).await.unwrap();
    assert!(sim.elapsed() - before >= slow);

    disk.inject(Fault::new(SimOp::Read, FaultEffect::Vanish));
    assert!(matches!(
        device.read(0, 1).await,
        Err(DeviceError::Gone { .. })
    ));
    assert!(matches!(
        device.write(0, filled(0, 1)).await,
        Err(DeviceError::Gone { .. })
    ));
    disk.clear_faults();
    disk.set_gone(false);
    device.read(0, 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn silent_damage_reaches_the_medium() {
    let sim = SimWorld::new(8);
    let disk = sim.add_disk("d", 1 << 20);
    let device = open(&sim.world(), "d").await;
    device.write(0, filled(1, 8192)).await.unwrap();
    device.flush().await.unwrap();
    disk.flip_bit(100, 7);
    disk.corrupt(4096, 512);
    sim.power_cut(PowerCut::LoseUnflushed);
    let seen = disk.peek(0, 8192);
    assert_eq!(seen[100], 0x81);
    assert_ne!(seen[4096..4608], filled(1, 512));
    assert_eq!(seen[4608..], filled(1, 8192 - 4608));
}

#[tokio::test(start_paused = true)]
async fn opening_follows_the_rules_of_real_devices() {
    let sim = SimWorld::new(9);
    sim.add_disk("d", 4096);
    let world = sim.world();
    assert!(matches!(
        world.opener.open("other", true).await,
        Err(DeviceError::Open { .. })
    ));
    let device = open(&world, "d").await;
    assert!(matches!(
        world.opener.open("d", false).await,
        Err(DeviceError::InUse { .. })
    ));
    let reader = world.opener.open("d", true).await.unwrap();
    assert!(reader.write(0, filled(1, 1)).await.is_err());
    assert!(matches!(
        device.read(4095, 2).await,
        Err(DeviceError::OutOfRange { .. })
    ));
    drop(device);
    open(&world, "d").await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_ends_the_engines_tasks() {
    let sim = SimWorld::new(10);
    let world = sim.world();
    let ticks = Arc::new(Mutex::new(0));
    let (seen, clock) = (ticks.clone(), world.clock.clone());
    world.spawn.spawn(Box::pin(async move {
        loop {
            clock.sleep(Duration::from_secs(1)).await;
            *seen.lock() += 1;
        }
    }));
    world.clock.sleep(Duration::from_millis(10_500)).await;
    assert_eq!(*ticks.lock(), 10);
    sim.crash(PowerCut::Random).await;
    world.clock.sleep(Duration::from_secs(3600)).await;
    assert_eq!(*ticks.lock(), 10);
}

#[tokio::test(start_paused = true)]
async fn images_go_out_and_come_back() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("image");
    let sim = SimWorld::new(11);
    let disk = sim.add_disk("d", (1 << 20) + 1000);
    disk.poke(70_000, b"somewhere");
    disk.poke((1 << 20) + 990, b"at the end");
    disk.save_image(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), (1 << 20) + 1000);
    let copy = sim.add_disk("copy", (1 << 20) + 1000);
    copy.load_image(&path).unwrap();
    let length = (1 << 20) + 1000;
    assert_eq!(copy.peek(0, length), disk.peek(0, length));
}

/// A busy run with everything random; the trace is all that happened.
fn busy_run(seed: u64) -> (Vec<OpRecord>, Vec<u8>, Vec<u64>) {
    simulate(async {
        let sim = SimWorld::new(seed);
        sim.start_log();
        let disks = [sim.add_disk("a", 1 << 18), sim.add_disk("b", 1 << 18)];
        disks[0].inject(Fault::new(SimOp::Write, FaultEffect::Error).chance(50));
        let world = sim.world();
        let devices = [open(&world, "a").await, open(&world, "b").await];
        sim.cut_power_at(SimOp::Write, 150, PowerCut::Random);
        let order = Arc::new(Mutex::new(Vec::new()));
        for task in 0..8u64 {
            let (world, order) = (world.clone(), order.clone());
            let device = devices[(task % 2) as usize].clone();
            sim.world().spawn.spawn(Box::pin(async move {
                loop {
                    let choice = world.random.next_u64();
                    let offset = (choice >> 8) % 500 * 512;
                    let result = match choice % 4 {
                        0 => device.flush().await,
                        1 => device.read(offset, 512).await.map(drop),
                        _ => device.write(offset, filled(choice as u8, 1024)).await,
                    };
                    order.lock().push(task << 32 | world.clock.monotonic_ns());
                    if matches!(result, Err(DeviceError::Gone { .. })) {
                        return;
                    }
                }
            }));
        }
        sim.power_lost().await;
        sim.kill_tasks().await;
        let image = disks
            .iter()
            .flat_map(|disk| disk.peek(0, 1 << 18))
            .collect();
        let order = order.lock().clone();
        (sim.take_log(), image, order)
    })
}

#[test]
fn one_seed_gives_one_run() {
    let first = busy_run(77);
    assert!(first.0.len() > 150);
    assert!(first == busy_run(77));
    assert!(first != busy_run(78));
}

#[tokio::test(start_paused = true)]
async fn bandwidth_is_shared_by_operations_in_flight() {
    let sim = SimWorld::new(12);
    let disk = sim.add_disk("d", 64 << 20);
    disk.set_latency(Latency {
        bytes_per_second: 16 << 20,
        ..Latency::NONE
    });
    let device = open(&sim.world(), "d").await;
    let before = sim.elapsed();
    let writes: Vec<_> = (0..32u64)
        .map(|index| {
            let device = device.clone();
            tokio::spawn(async move { device.write(index << 20, filled(1, 1 << 20)).await })
        })
        .collect();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    let took = sim.elapsed() - before;
    assert!((Duration::from_millis(1990)..Duration::from_millis(2100)).contains(&took));
}

/// A stalled operation is neither done nor answered before the disk is released, whether somebody
/// still waits for it or not; another host's operations go on.
#[tokio::test(start_paused = true)]
async fn a_stalled_disk_answers_when_it_is_released() {
    let sim = SimWorld::new(9);
    let disk = sim.add_disk("d", 1 << 20);
    let other = sim.another_host();
    let (ours, theirs) = (
        open(&sim.world(), "d").await,
        open(&other.world(), "d").await,
    );
    disk.inject(Fault::new(SimOp::Write, FaultEffect::Stall).only_on(&sim));
    let waited = {
        let ours = ours.clone();
        tokio::spawn(async move { ours.write(0, filled(1, 512)).await })
    };
    let given_up = ours.write(4096, filled(2, 512));
    assert!(
        tokio::time::timeout(Duration::from_secs(3600), given_up)
            .await
            .is_err()
    );
    theirs.write(8192, filled(3, 512)).await.unwrap();
    assert!(!waited.is_finished());
    assert_eq!((ours.outstanding(), theirs.outstanding()), (2, 0));
    assert_eq!(
        [0, 4096, 8192].map(|at| disk.peek(at, 1)[0]),
        [0, 0, 3],
        "nothing of what stalls is done"
    );
    disk.release();
    waited.await.unwrap().unwrap();
    assert_eq!([0, 4096].map(|at| disk.peek(at, 1)[0]), [1, 2]);
    assert_eq!(ours.outstanding(), 0);
    ours.write(0, filled(4, 512)).await.unwrap();

    // A power cut ends the wait.
    disk.inject(Fault::new(SimOp::Flush, FaultEffect::Stall));
    let waited = tokio::spawn(async move { ours.flush().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    sim.power_cut(PowerCut::LoseUnflushed);
    assert!(matches!(
        waited.await.unwrap(),
        Err(DeviceError::Gone { .. })
    ));
}

/// Random reads through handles, so many under way at a time; operations a second in virtual time.
async fn random_reads(sim: &SimWorld, name: &str, depth: u64, count: u64) -> f64 {
    let device = open(&sim.world(), name).await;
    let before = sim.elapsed();
    let workers: Vec<_> = (0..depth)
        .map(|worker| {
            let device = device.clone();
            tokio::spawn(async move {
                let mut at = worker;
                for _ in 0..count / depth {
                    at = at
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(worker | 1);
                    let block = (at >> 20) % (device.size_bytes() / 4096);
                    device.read(block * 4096, 4096).await.unwrap();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    count as f64 / (sim.elapsed() - before).as_secs_f64()
}

/// In a world in microseconds a disk of a model is as fast as the model alone; one in which timers
/// count milliseconds is slower by what that rounds.
#[test]
fn a_disk_of_a_model_is_as_fast_as_the_model() {
    use super::model::{Access, HddSpec, Load, Machine, SsdSpec, measure};
    let size = 256 << 20;
    for (model, depth) in [
        (Model::Hdd(HddSpec::WD_RE3_500GB), 1),
        (Model::Hdd(HddSpec::WD_RE3_500GB), 32),
        (Model::Ssd(SsdSpec::INTEL_X25_E_64GB), 1),
        (Model::Ssd(SsdSpec::INTEL_X25_E_64GB), 32),
    ] {
        let load = Load {
            op: SimOp::Read,
            access: Access::Random,
            block_bytes: 4096,
            depth: depth as u32,
            range_bytes: 0..size,
            count: 3200,
            seed: 1,
        };
        // Flash that was never written is not read.
        let fill = Load {
            op: SimOp::Write,
            access: Access::Sequential,
            block_bytes: 1 << 20,
            count: size >> 20,
            ..load.clone()
        };
        let mut machine = Machine::new(&model, size);
        let filled_ns = measure(&mut machine, 0, &fill).end_ns;
        let alone = measure(&mut machine, filled_ns + 10_000_000_000, &load).iops;
        let run = || {
            simulate(async {
                let sim = SimWorld::in_microseconds(1);
                sim.add_disk_of("d", size, &model);
                let device = open(&sim.world(), "d").await;
                let data = filled(1, 1 << 20);
                for piece in 0..fill.count {
                    device.write(piece << 20, data.clone()).await.unwrap();
                }
                device.flush().await.unwrap();
                drop(device);
                random_reads(&sim, "d", depth, load.count).await
            })
        };
        let seen = run();
        println!("{depth} deep: {seen:.0} a second, the model alone {alone:.0}");
        assert!((seen / alone - 1.0).abs() < 0.05, "{seen} and {alone}");
        assert!(run() == seen, "one seed gives one run");
    }
}

/// What waits in the queue of a disk when the power goes fails, and the disk works afterwards.
#[tokio::test(start_paused = true)]
async fn a_power_cut_ends_the_queue_of_a_hard_disk() {
    let sim = SimWorld::in_microseconds(3);
    let model = Model::Hdd(model::HddSpec::WD_RE3_500GB);
    let disk = sim.add_disk_of("d", 1 << 40, &model);
    let world = sim.world();
    let device = open(&world, "d").await;
    let reads: Vec<_> = (0..40u64)
        .map(|index| {
            let device = device.clone();
            tokio::spawn(async move { device.read(index << 34, 4096).await })
        })
        .collect();
    device.write(0, filled(1, 4096)).await.unwrap();
    world.clock.sleep(Duration::from_millis(50)).await;
    sim.power_cut(PowerCut::LoseUnflushed);
    let mut failed = 0;
    for read in reads {
        failed += u32::from(read.await.unwrap().is_err());
    }
    assert!((20..40).contains(&failed), "{failed} failed");
    sim.power_on();
    let device = open(&world, "d").await;
    assert_eq!(device.read(0, 4096).await.unwrap(), filled(0, 4096));
    device.write(0, filled(2, 4096)).await.unwrap();
    device.flush().await.unwrap();
    assert_eq!(disk.peek_durable(0, 4096), filled(2, 4096));
    // A read that nobody waits for any more is done all the same, and others go on.
    let given_up = device.read(500 << 30, 4096);
    let short = Duration::from_millis(1);
    assert!(tokio::time::timeout(short, given_up).await.is_err());
    device.read(900 << 30, 4096).await.unwrap();
    assert_eq!(device.outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_link_delays_what_goes_over_it_each_way_alone() {
    let sim = SimWorld::in_microseconds(4);
    let link = SimLink::new(&sim, &model::LinkSpec::GIGABIT);
    let all = (0..100).map(|_| link.to_client(64 << 10));
    let before = sim.elapsed();
    let there = async {
        link.to_server(48).await;
        sim.elapsed() - before
    };
    let (_, request) = tokio::join!(futures::future::join_all(all), there);
    assert!(request < Duration::from_micros(40), "{request:?}");
    let rate = (100 * (64 << 10)) as f64 / (sim.elapsed() - before).as_secs_f64();
    assert!((rate / 117.6e6 - 1.0).abs() < 0.02, "{rate}");
}
