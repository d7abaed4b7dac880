//! Goal: the model of a hard disk has the published figures of the disks it stands for, and does
//! what such disks do. Method: loads like fio's on the model alone; analytic expectations where the
//! published figures are of the mechanics.

use super::*;
use crate::sim::model::{Access, Load, Machine, Measured, Model, measure};

const SIZE: u64 = 500_107_862_016;

fn disk(spec: &HddSpec) -> Machine {
    Machine::new(&Model::Hdd(spec.clone()), SIZE)
}

fn random(op: SimOp, depth: u32, count: u64) -> Load {
    Load {
        op,
        access: Access::Random,
        block_bytes: 4096,
        depth,
        range_bytes: 0..SIZE,
        count,
        seed: 7,
    }
}

fn sequential(op: SimOp, block_bytes: u64, depth: u32, from_byte: u64) -> Load {
    Load {
        op,
        access: Access::Sequential,
        block_bytes,
        depth,
        range_bytes: from_byte..from_byte + (200 << 20),
        count: (200 << 20) / block_bytes,
        seed: 7,
    }
}

#[track_caller]
fn within(measured: f64, published: f64, tolerance: f64, of: &str) {
    println!("{of}: {measured:.1}, published {published:.1}");
    let off = measured / published - 1.0;
    assert!(
        off.abs() <= tolerance,
        "{of}: {measured:.1} is {:.0} % off the published {published:.1}",
        off * 100.0
    );
}

/// The seek curve has the shortest, average and longest seek of the specification, over all pairs
/// of cylinders as makers count.
#[test]
fn seeks_take_what_the_maker_says() {
    let spec = &HddSpec::WD_RE3_500GB;
    let curve = SeekCurve::new(spec);
    let steps = 10_000;
    let mean_ns = (0..steps)
        .map(|step| {
            let part = (f64::from(step) + 0.5) / f64::from(steps);
            curve.seek_ns(part) as f64 * 2.0 * (1.0 - part) / f64::from(steps)
        })
        .sum::<f64>();
    within(mean_ns / 1e6, 8.9, 0.01, "average seek, ms");
    within(
        curve.seek_ns(1e-5) as f64 / 1e6,
        2.0,
        0.03,
        "next cylinder, ms",
    );
    within(
        curve.seek_ns(1.0) as f64 / 1e6,
        21.0,
        0.01,
        "full stroke, ms",
    );
    // Short ones by the root, long ones by the line, and never shorter for a longer way.
    let times: Vec<u64> = (1..=1000)
        .map(|step| curve.seek_ns(f64::from(step) / 1000.0))
        .collect();
    assert!(times.is_sorted());
    let rise = |from: usize, to: usize| times[to] - times[from];
    assert!(rise(0, 50) > 2 * rise(50, 100) - rise(50, 100) / 2);
    assert!(rise(700, 800).abs_diff(rise(800, 900)) < 10);
}

/// Published: the sustained rate of the outermost tracks; the innermost have about half of it.
#[test]
fn streams_have_the_published_rate_outside_and_less_inside() {
    for op in [SimOp::Read, SimOp::Write] {
        for (block_bytes, depth) in [(64 << 10, 1), (1 << 20, 1), (128 << 10, 32)] {
            let rate = |from_byte: u64| {
                let load = sequential(op, block_bytes, depth, from_byte);
                let mut disk = disk(&HddSpec::WD_RE3_500GB);
                measure(&mut disk, 0, &load).bytes_per_second / 1e6
            };
            let of = format!("{op:?} of {block_bytes} bytes, {depth} deep, MB/s");
            within(rate(0), 113.0, 0.05, &of);
            within(rate(SIZE - (201 << 20)), 56.0, 0.05, &of);
            let middle = rate(SIZE / 2);
            assert!(
                middle < 100.0 && middle > 75.0,
                "{of} in the middle: {middle}"
            );
        }
    }
}

/// One random read after the other: seek, half a revolution and the disk's processor. Measured on
/// disks of this class: 70 to 90 a second.
#[test]
fn random_reads_one_at_a_time_take_seek_and_half_a_revolution() {
    let seen = measure(
        &mut disk(&HddSpec::WD_RE3_500GB),
        0,
        &random(SimOp::Read, 1, 4000),
    );
    within(
        seen.mean_ns / 1e6,
        8.9 + 4.17 + 0.1,
        0.05,
        "access time, ms",
    );
    assert!((70.0..90.0).contains(&seen.iops), "{seen:?}");
}

fn depths(spec: &HddSpec, op: SimOp) -> Vec<Measured> {
    let measured = |depth| measure(&mut disk(spec), 0, &random(op, depth, 6000));
    [1, 2, 4, 8, 16, 32].map(measured).to_vec()
}

/// With a queue the disk serves what is near: each doubling of the depth brings more, and 32 deep
/// it is about two and a half times as fast as one at a time.
#[test]
fn the_queue_makes_random_reads_faster() {
    let seen = depths(&HddSpec::WD_RE3_500GB, SimOp::Read);
    let rates: Vec<f64> = seen.iter().map(|seen| seen.iops).collect();
    println!("{rates:.0?}");
    assert!(
        rates
            .windows(2)
            .skip(1)
            .all(|pair| pair[1] > pair[0] * 1.05)
    );
    let gain = rates[5] / rates[0];
    assert!((2.0..3.0).contains(&gain), "{gain}");
    // Nobody is forgotten.
    assert!(seen[5].max_ns < 2_000_000_000, "{:?}", seen[5]);

    let without = HddSpec {
        queue_depth: 1,
        ..HddSpec::WD_RE3_500GB
    };
    let seen = depths(&without, SimOp::Read);
    assert!(seen[5].iops < seen[0].iops * 1.1);
}

/// A write is complete in the cache, until that is full; then random writes come at the rate at
/// which the arm writes them, which chooses among what is cached.
#[test]
fn the_write_cache_answers_at_once_until_it_is_full() {
    let mut cached = disk(&HddSpec::WD_RE3_500GB);
    let few = measure(&mut cached, 0, &random(SimOp::Write, 1, 50));
    assert!(few.max_ns < 1_000_000, "{few:?}");
    let many = measure(&mut cached, few.end_ns, &random(SimOp::Write, 1, 5000));
    assert!((120.0..300.0).contains(&many.iops), "{many:?}");

    let uncached = HddSpec {
        write_cache_bytes: 0,
        ..HddSpec::WD_RE3_500GB
    };
    let each = measure(&mut disk(&uncached), 0, &random(SimOp::Write, 1, 2000));
    within(
        each.mean_ns / 1e6,
        10.9 + 4.17 + 0.1,
        0.05,
        "write access, ms",
    );
}

/// A flush is complete when what was written before it is on the platter, not before, and does not
/// wait for what comes after it.
#[test]
fn a_flush_waits_for_the_write_cache() {
    let mut hdd = Hdd::new(&HddSpec::WD_RE3_500GB, SIZE);
    let mut decided = Vec::new();
    let write = |number: u64| Command {
        op: SimOp::Write,
        offset_bytes: number * 17_000_000_000,
        length_bytes: 4096,
    };
    let flush = Command {
        op: SimOp::Flush,
        offset_bytes: 0,
        length_bytes: 0,
    };
    assert!(hdd.submit(0, 100, &flush).is_some(), "nothing to wait for");
    for number in 0..10 {
        assert!(hdd.submit(1_000, number, &write(number)).is_some());
    }
    assert_eq!(hdd.submit(2_000_000, 101, &flush), None);
    let mut now_ns = 2_000_000;
    let mut later = 10;
    while decided.is_empty() {
        now_ns = now_ns.max(hdd.next_ns().expect("it has work"));
        hdd.advance(now_ns, &mut decided);
        // A stream of writes after it.
        later += 1;
        let in_range = write(later % 29);
        hdd.submit(now_ns, 1000 + later, &in_range);
        assert!(now_ns < 10_000_000_000, "the flush starves");
    }
    assert_eq!(decided[0].number, 101);
    // Ten places all over the disk.
    assert!(decided[0].done_ns > 50_000_000, "{decided:?}");
}

/// The disk reads on: what follows a read is in the cache soon after.
#[test]
fn the_next_piece_of_a_stream_is_in_the_cache() {
    let mut hdd = Hdd::new(&HddSpec::WD_RE3_500GB, SIZE);
    let read = |offset_bytes: u64| Command {
        op: SimOp::Read,
        offset_bytes,
        length_bytes: 16384,
    };
    let mut decided = Vec::new();
    assert_eq!(hdd.submit(0, 0, &read(250 << 30)), None);
    hdd.advance(hdd.next_ns().unwrap(), &mut decided);
    let first_ns = decided[0].done_ns;
    assert!(first_ns > 2_000_000);
    let later_ns = first_ns + 20_000_000;
    for piece in 1..30 {
        let next = read((250 << 30) + piece * 16384);
        let done_ns = hdd.submit(later_ns, piece, &next).expect("in the cache");
        assert!(done_ns - later_ns < 3_000_000, "piece {piece}");
    }
    // What was written over is not read from there.
    let over = Command {
        op: SimOp::Write,
        ..read((250 << 30) + 16384)
    };
    hdd.submit(later_ns, 40, &over);
    assert_eq!(
        hdd.submit(later_ns + 1, 41, &read((250 << 30) + 3 * 16384)),
        None
    );
}

/// Scaled 1:16 in sizes and rates, a load takes as long as before.
#[test]
fn a_scaled_disk_is_the_same_disk_slower() {
    let model = Model::Hdd(HddSpec::WD_RE3_500GB);
    let mut small = Machine::new(&model.scaled(16), SIZE / 16);
    let load = Load {
        range_bytes: 0..SIZE / 16,
        ..random(SimOp::Read, 8, 4000)
    };
    let scaled = measure(&mut small, 0, &load);
    let whole = measure(
        &mut Machine::new(&model, SIZE),
        0,
        &random(SimOp::Read, 8, 4000),
    );
    within(scaled.iops * 16.0, whole.iops, 0.03, "random reads/s");
}

/// Places are where the rates say, and reading on from track to track never waits.
#[test]
fn geometry_holds_the_disk() {
    for (spec, size) in [
        (HddSpec::WD_RE3_500GB, SIZE),
        (HddSpec::WD_RE3_1TB, 2 * SIZE),
        (HddSpec::WD_RE3_500GB, 1 << 20),
        (HddSpec::WD_RE3_500GB, 64 << 20),
    ] {
        let geometry = Geometry::new(&spec, size);
        let mut last = geometry.place(0);
        assert_eq!((last.cylinder, last.track, last.in_track), (0, 0, 0));
        for step in 1..=2000 {
            let place = geometry.place((u128::from(size) * step / 2000) as u64);
            assert!(place.track >= last.track && place.track_bytes <= last.track_bytes);
            last = place;
        }
        let over = last.cylinder as f64 / geometry.cylinders() as f64;
        assert!(over < 1.02 || size < 1 << 30, "{over} of the cylinders");
    }
}
