//! Goal: what a cache device gives is what was offered, over restarts and crashes, and nothing that
//! it does is anybody's error. Method: simulated disks; contents that follow from the block.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use codec::checksum::{compute, label_verifier, seal};
use device::World;
use device::sim::{Fault, FaultEffect, PowerCut, SimDisk, SimOp, SimWorld};
use format::{
    Checksum, Compression, Dva, Endian, Guid, L2DeviceHeader, L2Entry, L2LogBlock, L2LogPointer,
    LABEL_START_BYTES, Txg, VdevId,
};

use super::*;

const DISK_BYTES: u64 = 3 << 30;
const BLOCK_BYTES: u64 = 128 << 10;

/// A limit that can be changed.
pub(crate) struct Limit {
    limit_bytes: AtomicU64,
    taken_bytes: AtomicU64,
}

impl Limit {
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes: AtomicU64::new(limit_bytes),
            taken_bytes: AtomicU64::new(0),
        })
    }

    pub(crate) fn set(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }
}

impl Memory for Limit {
    fn left_bytes(&self) -> u64 {
        let limit_bytes = self.limit_bytes.load(Ordering::Relaxed);
        limit_bytes.saturating_sub(self.taken_bytes())
    }

    fn take(&self, bytes: u64) -> u64 {
        let bytes = bytes.min(self.left_bytes());
        self.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }

    fn give_back(&self, bytes: u64) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.taken_bytes() > self.limit_bytes.load(Ordering::Relaxed)
    }
}

struct Rig {
    sim: SimWorld,
    world: World,
    disk: SimDisk,
}

impl Rig {
    fn new(disk_bytes: u64) -> Self {
        let sim = SimWorld::new(1);
        let disk = sim.add_disk("ssd", disk_bytes);
        let world = sim.world();
        Self { sim, world, disk }
    }

    async fn level(&self, options: LevelOptions) -> Arc<SecondLevel> {
        let level = SecondLevel::new(self.world.clone(), options, Limit::new(1 << 28));
        assert!(level.add(self.device(7).await));
        level
    }

    async fn device(&self, guid: u64) -> CacheDevice {
        self.device_at("ssd", guid).await
    }

    async fn device_at(&self, path: &str, guid: u64) -> CacheDevice {
        let device = self.world.opener.open(path, false).await;
        CacheDevice {
            device: device.expect("the disk"),
            identity: Identity {
                pool: Guid::new(1),
                device: Guid::new(guid),
            },
            ashift: 12,
        }
    }
}

fn free() -> LevelOptions {
    LevelOptions {
        rounds_a_day_percent: None,
        ..LevelOptions::default()
    }
}

fn trimming() -> LevelOptions {
    LevelOptions {
        trim_ahead_percent: 100,
        ..free()
    }
}

fn block(number: u64, stored_bytes: u64) -> Block {
    Block {
        dva: Dva::new(VdevId::new(0), number << 20, stored_bytes, false).expect("it fits"),
        birth: Txg::new(100 + number),
        logical_bytes: BLOCK_BYTES,
        stored_bytes,
        compression: Compression::Lz4,
        metadata: false,
        protected: false,
    }
}

fn content(number: u64, stored_bytes: u64) -> Bytes {
    let mut bytes = vec![number as u8; stored_bytes as usize];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Bytes::from(bytes)
}

/// Waits until all that waits is written.
async fn settle(level: &SecondLevel) {
    let mut before = u64::MAX;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = level
            .figures()
            .iter()
            .map(|figures| figures.written_bytes)
            .sum();
        let is_ready = level
            .figures()
            .iter()
            .all(|figures| figures.state != State::Rebuilding);
        if now == before && is_ready {
            return;
        }
        before = now;
    }
}

/// Offers blocks, slowly enough that all are taken.
async fn fill(level: &SecondLevel, numbers: std::ops::Range<u64>, stored_bytes: u64) {
    for number in numbers {
        let stored = content(number, stored_bytes);
        level.offer(&block(number, stored_bytes), &stored, Worth::Again);
        if number.is_multiple_of(32) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    settle(level).await;
}

/// How many blocks are there, each as it was offered.
async fn count(level: &SecondLevel, numbers: std::ops::Range<u64>, stored_bytes: u64) -> u64 {
    let mut there = 0;
    for number in numbers {
        if let Some(copy) = level.read(&block(number, stored_bytes)).await {
            assert_eq!(copy.stored, content(number, stored_bytes), "block {number}");
            there += 1;
        }
    }
    there
}

#[tokio::test(start_paused = true)]
async fn what_was_offered_is_read_back_and_is_there_after_a_restart() {
    let rig = Rig::new(DISK_BYTES);
    let level = rig.level(free()).await;
    settle(&level).await;
    fill(&level, 0..1000, BLOCK_BYTES).await;
    fill(&level, 1000..2000, 5 << 9).await;
    assert_eq!(count(&level, 0..1000, BLOCK_BYTES).await, 1000);
    assert_eq!(count(&level, 1000..2000, 5 << 9).await, 1000);
    assert_eq!(count(&level, 2000..2100, BLOCK_BYTES).await, 0);
    let figures = level.figures()[0];
    assert_eq!((figures.hits, figures.read_errors), (2000, 0));
    assert_eq!((figures.write_errors, figures.wrong), (0, 0));
    assert_eq!(level.misses(), 100);
    level.close().await;
    assert_eq!(level.index_bytes(), 0);

    let level = rig.level(free()).await;
    settle(&level).await;
    assert_eq!(level.figures()[0].rebuilt.blocks, 2000);
    let log_bytes = level.figures()[0].used_bytes - figures.used_bytes;
    assert!(
        (1..=64 << 10).contains(&log_bytes),
        "{log_bytes} of the last log block"
    );
    assert_eq!(count(&level, 0..1000, BLOCK_BYTES).await, 1000);
    assert_eq!(count(&level, 1000..2000, 5 << 9).await, 1000);
    level.close().await;

    // Another device, or another pool's: it holds nothing.
    let other = SecondLevel::new(rig.world.clone(), free(), Limit::new(1 << 28));
    assert!(other.add(rig.device(8).await));
    settle(&other).await;
    assert_eq!(other.figures()[0].rebuilt, Rebuilt::default());
}

/// Log blocks with right checksums name places that are none: what they say is passed over, and the
/// device is used.
#[tokio::test(start_paused = true)]
async fn a_log_block_may_say_anything() {
    const HEADER_BYTES: usize = 4096;
    let header_at = LABEL_START_BYTES;
    for offset_bytes in [0, 1 << 20, u64::MAX - 511, DISK_BYTES - 512] {
        let rig = Rig::new(DISK_BYTES);
        let level = rig.level(free()).await;
        settle(&level).await;
        fill(&level, 0..10, BLOCK_BYTES).await;
        level.close().await;
        let mut header = L2DeviceHeader::decode(&rig.disk.peek(header_at, 512)).unwrap();
        let entry = L2Entry {
            dva: block(1, BLOCK_BYTES).dva,
            birth: block(1, BLOCK_BYTES).birth,
            offset_bytes,
            logical_bytes: BLOCK_BYTES,
            stored_bytes: BLOCK_BYTES,
            compression: Compression::Off,
            level: 0,
            metadata: false,
            protected: false,
            prefetched: false,
            state: 1,
        };
        let hostile = L2LogBlock {
            previous: L2LogPointer::default(),
            entries: vec![entry],
        };
        let hostile = hostile.encode();
        let at = header.start_bytes + (512 << 20);
        let sum = compute(Checksum::Fletcher4, Endian::Little, &hostile, None).unwrap();
        let newest = header.newest[0];
        let payload = (newest.payload_offset_bytes, newest.payload_bytes);
        let length = L2LogBlock::BYTES as u64;
        header.newest[0] = L2LogPointer::new(at, payload, length, Compression::Off, sum);
        header.newest[1] = L2LogPointer::default();
        let device = rig.device(7).await.device;
        device.write(at, hostile.into()).await.unwrap();
        let mut sealed = header.encode(HEADER_BYTES);
        let verifier = label_verifier(header_at);
        seal(Checksum::Label, Endian::Little, &verifier, &mut sealed).unwrap();
        device.write(header_at, sealed.into()).await.unwrap();
        drop(device);
        let level = rig.level(free()).await;
        settle(&level).await;
        let figures = level.figures()[0];
        assert_eq!(
            (figures.state, figures.rebuilt.log_blocks),
            (State::Online, 1)
        );
        assert_eq!(figures.rebuilt.blocks, 0);
        fill(&level, 0..10, BLOCK_BYTES).await;
        assert_eq!(count(&level, 0..10, BLOCK_BYTES).await, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_ring_that_went_round_holds_the_newest_over_restarts() {
    let rig = Rig::new(1100 << 20);
    let mut first = 0;
    for round in 0..4u64 {
        let level = rig.level(free()).await;
        settle(&level).await;
        if round > 0 {
            // All but what was overwritten.
            let there = count(&level, 0..first, BLOCK_BYTES).await;
            let newest = count(&level, first.saturating_sub(4000)..first, BLOCK_BYTES).await;
            assert!(there > 3000 || round < 2, "{there}");
            assert_eq!(newest, 4000, "round {round}");
        }
        fill(&level, first..first + 5000, BLOCK_BYTES).await;
        first += 5000;
        let figures = level.figures()[0];
        assert_eq!((figures.read_errors, figures.write_errors), (0, 0));
        assert_eq!(figures.wrong, 0);
        assert_eq!(figures.is_filled, first > 8600);
        assert_eq!(count(&level, first - 5000..first, BLOCK_BYTES).await, 5000);
        level.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_loses_only_what_no_log_block_names() {
    for seed in 0..4u64 {
        let rig = Rig::new(1100 << 20);
        let level = rig.level(free()).await;
        settle(&level).await;
        // In the first round, and in later ones.
        let blocks = 700 + seed * 4500;
        fill(&level, 0..blocks, BLOCK_BYTES).await;
        rig.sim
            .cut_power_at(SimOp::Write, 1 + seed % 5, PowerCut::LoseUnflushed);
        for number in blocks..blocks + 300 {
            let stored = content(number, BLOCK_BYTES);
            level.offer(&block(number, BLOCK_BYTES), &stored, Worth::Again);
            if number.is_multiple_of(16) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        rig.sim.crash(PowerCut::LoseUnflushed).await;
        rig.sim.power_on();

        let level = rig.level(free()).await;
        settle(&level).await;
        let there = count(&level, 0..blocks + 300, BLOCK_BYTES).await;
        let kept = (1100u64 << 20) / BLOCK_BYTES - 1200;
        assert!(
            there >= blocks.min(kept) - 200,
            "seed {seed}: {there} of {blocks}"
        );
        // It goes on from there.
        fill(&level, 50_000..50_500, BLOCK_BYTES).await;
        assert_eq!(count(&level, 50_000..50_500, BLOCK_BYTES).await, 500);
        count(&level, 0..blocks + 300, BLOCK_BYTES).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_device_is_written_within_its_budget_of_wear() {
    let rig = Rig::new(1100 << 20);
    let level = rig.level(LevelOptions::default()).await;
    settle(&level).await;
    // It is filled as fast as it goes.
    fill(&level, 0..9000, BLOCK_BYTES).await;
    assert!(level.figures()[0].is_filled);
    let before = level.figures()[0].written_bytes;
    let size = level.figures()[0].size_bytes;
    let mut number = 10_000;
    for _ in 0..24 {
        for _ in 0..500 {
            let stored = content(number, BLOCK_BYTES);
            level.offer(&block(number, BLOCK_BYTES), &stored, Worth::Again);
            // What was never asked for before is not worth it.
            let stored = content(number + 1_000_000, BLOCK_BYTES);
            level.offer(
                &block(number + 1_000_000, BLOCK_BYTES),
                &stored,
                Worth::First,
            );
            number += 1;
            tokio::time::sleep(Duration::from_millis(7200)).await;
        }
    }
    let a_day = level.figures()[0].written_bytes - before;
    assert!(
        a_day <= size + size / 10,
        "{a_day} of {size} bytes in a day"
    );
    assert!(a_day >= size / 10 * 8, "{a_day} of {size} bytes in a day");
    assert_eq!(count(&level, 1_010_000..1_022_000, BLOCK_BYTES).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_device_is_written_no_faster_than_it_may_be() {
    let rig = Rig::new(DISK_BYTES);
    let level = rig.level(free()).await;
    settle(&level).await;
    let rate = 7_000_000;
    level.set_options(LevelOptions {
        rate_max: Some(rate),
        ..free()
    });
    let begun = tokio::time::Instant::now();
    for number in 0..20_000 {
        let stored = content(number, BLOCK_BYTES);
        level.offer(&block(number, BLOCK_BYTES), &stored, Worth::First);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    settle(&level).await;
    let most = rate * begun.elapsed().as_secs();
    let written = level.figures()[0].written_bytes;
    assert!(
        (most / 10 * 9..=most + (2 << 20)).contains(&written),
        "{written} of {most} bytes"
    );
}

#[tokio::test(start_paused = true)]
async fn devices_fill_side_by_side() {
    let rig = Rig::new(DISK_BYTES);
    rig.sim.add_disk("other", DISK_BYTES);
    let level = rig.level(free()).await;
    assert!(level.add(rig.device_at("other", 8).await));
    settle(&level).await;
    // One at a time: no queue is ever longer than the other.
    for number in 0..200 {
        fill(&level, number..number + 1, BLOCK_BYTES).await;
        settle(&level).await;
    }
    let written: Vec<u64> = level
        .figures()
        .iter()
        .map(|one| one.written_bytes)
        .collect();
    assert!(
        written[0].abs_diff(written[1]) <= 2 * BLOCK_BYTES,
        "{written:?}"
    );
}

/// A device hangs, is let go of, and another one comes: what the first one does at last is not
/// taken for the other's.
#[tokio::test(start_paused = true)]
async fn a_write_that_ends_late_is_not_taken_for_another_devices() {
    let rig = Rig::new(DISK_BYTES);
    rig.sim.add_disk("other", DISK_BYTES);
    let level = rig.level(free()).await;
    settle(&level).await;
    fill(&level, 0..100, BLOCK_BYTES).await;
    rig.disk
        .inject(Fault::new(SimOp::Write, FaultEffect::Stall));
    level.offer(
        &block(100, BLOCK_BYTES),
        &content(100, BLOCK_BYTES),
        Worth::Again,
    );
    tokio::time::sleep(Duration::from_millis(1)).await;
    rig.disk.inject(Fault::new(SimOp::Read, FaultEffect::Stall));
    for number in 0..4 {
        assert!(level.read(&block(number, BLOCK_BYTES)).await.is_none());
    }
    assert_eq!(level.figures()[0].state, State::Failed);
    level.remove(Guid::new(7)).await;
    assert!(level.add(rig.device_at("other", 8).await));
    settle(&level).await;
    fill(&level, 200..300, BLOCK_BYTES).await;
    rig.disk.release();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(count(&level, 200..300, BLOCK_BYTES).await, 100);
    assert_eq!(count(&level, 0..101, BLOCK_BYTES).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_fails_lies_or_hangs_is_nobodys_error() {
    for (op, effect) in [
        (SimOp::Read, FaultEffect::Error),
        (SimOp::Write, FaultEffect::Error),
        (SimOp::Read, FaultEffect::Stall),
    ] {
        let rig = Rig::new(DISK_BYTES);
        let level = rig.level(free()).await;
        settle(&level).await;
        fill(&level, 0..200, BLOCK_BYTES).await;
        rig.disk.inject(Fault::new(op, effect));
        fill(&level, 200..300, BLOCK_BYTES).await;
        let there = count(&level, 0..300, BLOCK_BYTES).await;
        assert_eq!(there, 0, "{op:?}");
        assert_eq!(level.figures()[0].state, State::Failed, "{op:?}");
        // It goes away all the same.
        level.remove(Guid::new(7)).await;
        assert!(level.is_empty());
    }
    // Wrong copies: whoever reads tells.
    let rig = Rig::new(DISK_BYTES);
    let level = rig.level(free()).await;
    settle(&level).await;
    fill(&level, 0..200, BLOCK_BYTES).await;
    rig.disk.corrupt_written(0..DISK_BYTES);
    let mut wrong = 0;
    for number in 0..200 {
        if let Some(copy) = level.read(&block(number, BLOCK_BYTES)).await {
            assert_ne!(copy.stored, content(number, BLOCK_BYTES));
            level.was_wrong(&copy);
            wrong += 1;
        }
    }
    assert_eq!(wrong, 32);
    assert_eq!(level.figures()[0].state, State::Failed);
    // Few in a long time are nobody's fault.
    let rig = Rig::new(DISK_BYTES);
    let level = rig.level(free()).await;
    settle(&level).await;
    fill(&level, 0..200, BLOCK_BYTES).await;
    for number in 0..200 {
        let copy = level.read(&block(number, BLOCK_BYTES)).await;
        level.was_wrong(&copy.expect("it is there"));
        tokio::time::sleep(Duration::from_secs(600)).await;
    }
    assert_eq!(level.figures()[0].state, State::Online);
}

/// An empty device is trimmed as a whole, then what is evicted, before it is written, and nothing
/// that is still held.
#[tokio::test(start_paused = true)]
async fn what_is_ahead_is_trimmed_before_it_is_written() {
    let rig = Rig::new(1100 << 20);
    rig.disk.poke(600 << 20, &[1; 4096]);
    let level = rig.level(trimming()).await;
    settle(&level).await;
    assert_eq!(level.figures()[0].trimmed, Trimmed::default());
    fill(&level, 0..100, BLOCK_BYTES).await;
    let figures = level.figures()[0];
    assert_eq!(figures.trimmed.bytes, figures.size_bytes);
    assert_eq!(rig.disk.peek(600 << 20, 4096), [0; 4096]);
    // What it holds stays when it is added again, and it is not trimmed as a whole again.
    level.close().await;
    let header = L2DeviceHeader::decode(&rig.disk.peek(LABEL_START_BYTES, 512)).unwrap();
    assert_eq!(header.trim_state, 4);
    let level = rig.level(trimming()).await;
    settle(&level).await;
    rig.sim.start_log();
    fill(&level, 100..20_000, BLOCK_BYTES).await;
    let mut trimmed = vec![];
    let mut written = 0;
    for op in rig.sim.take_log() {
        let (from, to) = (op.offset_bytes, op.offset_bytes + op.length_bytes);
        match op.op {
            SimOp::Discard => trimmed.push(from..to),
            SimOp::Write if from >= header.start_bytes && !trimmed.is_empty() => {
                let is_within = |range: &std::ops::Range<u64>| from < range.end && range.start < to;
                // Each place once for each time that it was trimmed.
                let lies_in = trimmed.iter().filter(|range| is_within(range)).count();
                assert!(lies_in > 0, "{from}..{to} was not trimmed");
                written += op.length_bytes;
            }
            _ => {}
        }
    }
    assert!(
        trimmed
            .iter()
            .all(|range| range.start >= header.start_bytes)
    );
    assert!(written > 1 << 30, "{written}");
    let figures = level.figures()[0];
    assert_eq!(figures.trimmed.commands, trimmed.len() as u64);
    assert!(figures.trimmed.bytes >= written, "{:?}", figures.trimmed);
    assert!(figures.trimmed.bytes <= written + (300 << 20));
    assert_eq!((figures.wrong, figures.trimmed.errors), (0, 0));
    assert!(count(&level, 12_500..20_000, BLOCK_BYTES).await == 7500);
}

/// Trims are off unless asked for; asked for later, what the device does not hold is trimmed.
#[tokio::test(start_paused = true)]
async fn nothing_is_trimmed_unless_it_is_asked_for() {
    let rig = Rig::new(1100 << 20);
    let level = rig.level(free()).await;
    settle(&level).await;
    fill(&level, 0..100, BLOCK_BYTES).await;
    assert_eq!(rig.sim.counts().discards, 0);
    level.set_options(trimming());
    fill(&level, 100..200, BLOCK_BYTES).await;
    let figures = level.figures()[0];
    let held_bytes = 100 * BLOCK_BYTES;
    let rest_bytes = figures.size_bytes - figures.trimmed.bytes;
    assert!((held_bytes..held_bytes + (1 << 20)).contains(&rest_bytes));
    assert_eq!(count(&level, 0..200, BLOCK_BYTES).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_trim_that_fails_or_is_lost_is_nobodys_error() {
    for effect in [FaultEffect::Error, FaultEffect::Lost] {
        let rig = Rig::new(1100 << 20);
        rig.disk.inject(Fault::new(SimOp::Discard, effect));
        let level = rig.level(trimming()).await;
        settle(&level).await;
        fill(&level, 0..12_000, BLOCK_BYTES).await;
        let figures = level.figures()[0];
        assert_eq!(figures.state, State::Online);
        assert_eq!((figures.read_errors, figures.write_errors), (0, 0));
        let told = (figures.trimmed.errors > 0, figures.trimmed.bytes > 0);
        assert_eq!(
            told,
            (effect == FaultEffect::Error, effect == FaultEffect::Lost)
        );
        assert_eq!(count(&level, 5_000..12_000, BLOCK_BYTES).await, 7000);
        level.close().await;
    }
}

/// Whatever moment the power goes at, what is found again was not trimmed.
#[tokio::test(start_paused = true)]
async fn a_crash_never_leads_to_what_was_trimmed() {
    let ops = [SimOp::Discard, SimOp::Write, SimOp::Flush];
    for seed in 0..6u64 {
        let rig = Rig::new(1100 << 20);
        rig.disk.set_eager_discards(true);
        let level = rig.level(trimming()).await;
        settle(&level).await;
        // The next eviction is not far.
        fill(&level, 0..8700, BLOCK_BYTES).await;
        let (op, how) = match seed % 2 {
            0 => (ops[(seed % 3) as usize], PowerCut::LoseUnflushed),
            _ => (ops[(seed % 3) as usize], PowerCut::Random),
        };
        rig.sim.cut_power_at(op, 1 + seed / 3, how);
        for number in 8700..12_000 {
            let stored = content(number, BLOCK_BYTES);
            level.offer(&block(number, BLOCK_BYTES), &stored, Worth::Again);
            if number.is_multiple_of(16) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        rig.sim.crash(how).await;
        rig.sim.power_on();
        let level = rig.level(trimming()).await;
        settle(&level).await;
        // Each is as it was offered.
        let there = count(&level, 0..12_000, BLOCK_BYTES).await;
        assert!(there > 5000, "seed {seed}: {there}");
        fill(&level, 50_000..50_500, BLOCK_BYTES).await;
        assert_eq!(count(&level, 50_000..50_500, BLOCK_BYTES).await, 500);
        count(&level, 0..12_000, BLOCK_BYTES).await;
        level.close().await;
    }
}

/// The newest log block is of the last round, and lies where this round goes already: it was taken
/// for one of this round, and for true.
#[tokio::test(start_paused = true)]
async fn a_round_of_few_large_blocks_leads_to_nothing_that_is_gone() {
    // 69 fit, and a log block names 68.
    const LARGE_BYTES: u64 = 63 << 18;
    let large = |number| Block {
        logical_bytes: 16 << 20,
        ..block(number << 4, LARGE_BYTES)
    };
    for options in [free(), trimming()] {
        let rig = Rig::new(1100 << 20);
        let level = rig.level(options).await;
        settle(&level).await;
        let offer = async |level: &SecondLevel, numbers: std::ops::Range<u64>| {
            for number in numbers {
                level.offer(&large(number), &content(number, LARGE_BYTES), Worth::Again);
                settle(level).await;
            }
        };
        offer(&level, 0..3).await;
        level.close().await;
        let level = rig.level(options).await;
        settle(&level).await;
        assert_eq!(level.figures()[0].rebuilt.blocks, 3);
        offer(&level, 3..70).await;
        assert!(level.figures()[0].is_filled);
        rig.sim.crash(PowerCut::KeepAll).await;
        rig.sim.power_on();
        let level = rig.level(options).await;
        settle(&level).await;
        for number in 0..70 {
            if let Some(copy) = level.read(&large(number)).await {
                assert_eq!(copy.stored, content(number, LARGE_BYTES), "block {number}");
            }
        }
        assert_eq!(level.figures()[0].rebuilt.blocks, 0);
    }
}
