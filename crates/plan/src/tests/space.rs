//! Space: the engine's arithmetic beside ours.

use proptest::prelude::*;

use super::layout;
use crate::capacity::{Capacity, bytes_in_metaslabs, disk_asize, metaslab_shift, slop_bytes};
use crate::layout::Footprint;
use crate::sizes::{cache_memory, dedup_size, log_size, special_size, volume_cost};
use crate::{Layout, PlanError};

/// Some layout that can be made.
fn any_layout() -> impl Strategy<Value = Layout> {
    let vdevs = 1..12u64;
    let mirror = (vdevs.clone(), 2..6u64).prop_map(|(vdevs, ways)| Layout::Mirror { vdevs, ways });
    let raidz =
        (1..=3u64, vdevs.clone(), 1..20u64).prop_map(|(parity, vdevs, data)| Layout::Raidz {
            parity,
            vdevs,
            disks: parity + data,
        });
    let draid = (1..=3u64, vdevs, 1..12u64, 0..4u64, 0..40u64).prop_map(
        |(parity, vdevs, data, spares, more)| Layout::Draid {
            parity,
            data,
            vdevs,
            children: (parity + data + spares + more).max(2),
            spares,
        },
    );
    prop_oneof![
        (1..12u64).prop_map(|disks| Layout::Stripe { disks }),
        mirror,
        raidz,
        draid
    ]
}

/// The engine's geometry of one vdev.
fn geometry(layout: Layout, ashift: u32) -> Option<vdev::Geometry> {
    match layout {
        Layout::Stripe { .. } | Layout::Mirror { .. } => Some(vdev::Geometry::plain(ashift)),
        Layout::Raidz { parity, disks, .. } => {
            vdev::Geometry::raidz(ashift, disks as usize, parity)
        }
        Layout::Draid { .. } => None,
    }
}

proptest! {
    /// A block takes what the engine allocates for it.
    #[test]
    fn a_block_takes_what_the_engine_allocates(
        layout in any_layout(), ashift in 9..=14u32, sectors in 1..4096u64,
    ) {
        let bytes = sectors * 512;
        let footprint = Footprint::of(layout, ashift, bytes);
        if let Some(geometry) = geometry(layout, ashift) {
            prop_assert_eq!(footprint.allocated_bytes, geometry.asize(bytes));
            let whole = bytes.next_multiple_of(1 << ashift) as usize;
            if let Some(columns) = geometry.columns(0, whole) {
                prop_assert_eq!(footprint.write_disks, columns.columns.len() as u64);
                let longest = columns.columns.iter().map(|column| column.length).max();
                prop_assert_eq!(Some(footprint.bytes_of_disk as usize), longest);
            }
        }
    }

    /// The disk that has data of most blocks has it of as many as where the engine puts them.
    #[test]
    fn the_busiest_disk_is_the_engines(
        parity in 1..=3u64, more in 1..12u64, sectors in 1..300u64,
    ) {
        let disks = parity + more;
        let layout = Layout::Raidz { parity, vdevs: 1, disks };
        let geometry = vdev::Geometry::raidz(9, disks as usize, parity).expect("a geometry");
        let mut blocks_of = vec![0u64; disks as usize];
        let mut blocks = 0;
        // Every place at which an allocation may begin, in two MiB from each of which single parity
        // swaps once.
        for step in 0..disks {
            for mebibyte in [0, 1] {
                let unit = (parity + 1) << 9;
                let from = (mebibyte << 20) / (disks * unit) * disks * unit + disks * unit;
                let columns = geometry.columns(from + step * unit, (sectors << 9) as usize);
                let columns = columns.expect("columns");
                blocks += 1;
                for column in &columns.columns[columns.parity..] {
                    blocks_of[column.child] += 1;
                }
            }
        }
        let busiest = blocks_of.into_iter().max().unwrap_or(0) as f64 / f64::from(blocks);
        let share = Footprint::of(layout, 9, sectors << 9).busiest_share;
        prop_assert!((share - busiest).abs() < 1e-9, "{} {}", share, busiest);
    }

    /// Metaslabs and what is kept back are the engine's.
    #[test]
    fn metaslabs_and_slop_are_the_engines(bytes in 1u64 << 25..1 << 60) {
        prop_assert_eq!(metaslab_shift(bytes), vdev::metaslab_shift(bytes));
        prop_assert_eq!(slop_bytes(bytes), zio::alloc::slop_bytes(bytes));
    }

    /// The usable bytes of a vdev are what the engine makes of its parts.
    #[test]
    fn usable_bytes_are_the_engines(
        layout in any_layout(), mebibytes in 64..4_000_000u64, ashift in 9..=13u32,
    ) {
        let disk_bytes = (mebibytes << 20) + 12345;
        let capacity = match Capacity::of(layout, disk_bytes, ashift) {
            Ok(capacity) => capacity,
            Err(PlanError::TooSmall { .. }) => return Ok(()),
            Err(error) => panic!("{layout}: {error}"),
        };
        let of_disk = disk_asize(disk_bytes);
        let asize = match layout {
            Layout::Stripe { .. } | Layout::Mirror { .. } => of_disk,
            Layout::Raidz { disks, .. } => of_disk * disks,
            Layout::Draid { parity, data, children, spares, .. } => {
                match vdev::Draid::new(parity, data, spares, children) {
                    Some(draid) => draid.asize(of_disk),
                    None => return Err(TestCaseError::fail(format!("{layout} is refused"))),
                }
            }
        };
        let asize = asize >> ashift << ashift;
        let shift = vdev::metaslab_shift(asize);
        prop_assert_eq!(capacity.metaslabs, asize >> shift);
        if let Some(geometry) = geometry(layout, ashift) {
            let raw = capacity.metaslabs << shift;
            let deflated = zio::alloc::deflate(raw, geometry.deflate_ratio()) * layout.vdevs();
            let usable = deflated - zio::alloc::slop_bytes(deflated);
            prop_assert_eq!(capacity.usable_bytes, usable);
            prop_assert_eq!(capacity.raw_bytes, raw * layout.vdevs());
        }
    }

    /// On dRAID a metaslab has whole stripes.
    #[test]
    fn metaslabs_of_draid_have_whole_stripes(
        count in 1..64u64, shift in 24..30u32, width in 2..60u64, ashift in 9..=13u32,
    ) {
        let stripe_bytes = width << ashift;
        let engine = |index| {
            let span = vdev::metaslab_span(index, shift, stripe_bytes);
            span.end - span.start
        };
        let sum: u64 = (0..count).map(engine).sum();
        prop_assert_eq!(bytes_in_metaslabs(count, shift, stripe_bytes), sum);
    }
}

/// A disk of 500 GB as makers count it, alone: each step by hand.
#[test]
fn one_disk_step_by_step() {
    let capacity = Capacity::of(layout("stripe:1"), 500_107_862_016, 12).expect("a capacity");
    // 1,907,760 times 256 KiB, less 4.5 MiB; over 200 times 512 MiB, so metaslabs of 4 GiB.
    assert_eq!(disk_asize(500_107_862_016), 1_907_760 * 262_144 - 4_718_592);
    assert_eq!(capacity.metaslab_bytes, 4 << 30);
    assert_eq!(capacity.metaslabs, 116);
    assert_eq!(capacity.raw_bytes, 116 * (4 << 30));
    assert_eq!(capacity.deflate_ratio, 512);
    assert_eq!(capacity.slop_bytes, 116 * (4 << 30) / 32);
    assert_eq!(capacity.usable_bytes, 116 * (4 << 30) / 32 * 31);
}

/// What small blocks take on RAID-Z of six disks with double parity and sectors of 4 KiB: each
/// alone has two sectors of parity, and comes in threes.
#[test]
fn small_blocks_on_raidz_take_what_they_take() {
    let of = |block_bytes| volume_cost(layout("raidz2:1x6"), 12, 1 << 30, block_bytes);
    assert_eq!(of(4 << 10).on_disks_bytes, 3 << 30);
    assert_eq!(of(8 << 10).on_disks_bytes, 3 << 30);
    assert_eq!(of(16 << 10).on_disks_bytes, 3 << 29);
    assert_eq!(of(4 << 10).better_block_bytes, 16 << 10);
    // It counts twice its size against what is available, which is told for 128 KiB: 2/3.
    assert_eq!(of(4 << 10).counted_bytes, (3 << 30) / 512 * 341);
    let mirror = volume_cost(layout("mirror:1x2"), 12, 1 << 30, 4 << 10);
    assert_eq!(mirror.on_disks_bytes, 2 << 30);
    assert_eq!(mirror.counted_bytes, 1 << 30);
    assert_eq!(mirror.better_block_bytes, 4 << 10);
}

/// Sizes of log devices: a gigabit for eight seconds, twice; and what reports saw.
#[test]
fn log_devices_are_small() {
    let by_network = log_size(Some(125_000_000), 8.0, None).expect("a size");
    assert_eq!(by_network.bytes, 2_000_000_000);
    let seen = log_size(Some(125_000_000), 8.0, Some(1_510_000_000)).expect("a size");
    assert_eq!(seen.by_network_bytes, Some(2_000_000_000));
    assert_eq!(seen.bytes, 2_265_000_000);
    assert_eq!(log_size(None, 8.0, None), None);
}

/// What beside the data needs memory and space.
#[test]
fn indexes_and_tables_are_counted_by_blocks() {
    let memory = cache_memory(400_000_000_000, 8 << 10);
    assert_eq!(memory.blocks, 48_828_125);
    assert_eq!(memory.bytes, 24 * 48_828_125);
    let table = dedup_size(1 << 40, 128 << 10, 2.0, 0).expect("a size");
    assert_eq!(table.entries, 1 << 22);
    assert_eq!(table.saved_bytes, 1 << 39);
    assert_eq!(table.reads_of_write, 1.0);
    let held = dedup_size(1 << 40, 128 << 10, 2.0, table.memory_bytes).expect("a size");
    assert_eq!(held.reads_of_write, 0.0);
    assert!(dedup_size(1 << 40, 128 << 10, 0.5, 0).is_err());
    // Two pointers of 128 bytes to each block of 128 KiB: a 512th, and a quarter more.
    let special = special_size(1 << 40, 128 << 10, 0, 0, 0);
    assert_eq!(special.pointers_bytes, 1 << 31);
    assert_eq!(special.bytes, (1 << 31) / 4 * 5);
}

/// Disks on which a layout has no room are refused, and figures that no pool has.
#[test]
fn what_does_not_fit_is_refused() {
    let draid = layout("draid2:4d:11c:1s");
    assert!(matches!(
        Capacity::of(draid, 40 << 20, 12),
        Err(PlanError::TooSmall { .. })
    ));
    let many = Layout::Raidz {
        parity: 1,
        vdevs: 10_000,
        disks: 255,
    };
    assert!(matches!(
        Capacity::of(many, 1 << 60, 12),
        Err(PlanError::BadLayout { .. })
    ));
}
