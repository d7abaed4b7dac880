//! Rates: the tables of issue 45, and what must hold of every layout.

use device::sim::SimOp;
use device::sim::model::{Access, HddSpec, Load as DiskLoad, Machine, Model as DiskModel, measure};

use super::{layout, story_disks, within};
use crate::full::{Limit, Load, Path, Rates, closed_network, two_stages};
use crate::hardware::through;
use crate::simple::Simple;
use crate::{Bus, DiskKind, Disks};

/// One client that has eight records of 128 KiB under way.
const CLIENT: Load = Load {
    block_bytes: 128 << 10,
    depth: 8,
    read_share: 1.0,
    streams: 0,
    stream_rate: 0,
};
const NOTHING: Path<'static> = Path {
    buses: &[],
    network_rate: None,
};

fn buses(words: &[&str]) -> Vec<Bus> {
    let parse = |word: &&str| word.parse().expect("a bus");
    words.iter().map(parse).collect()
}

/// The table of issue 45 that everybody computes by hand: `12y 4y 12z 4z`, and what fits on disks
/// of 500 GB. No figure is rounded.
#[test]
fn the_simple_model_is_the_published_table() {
    for (word, of_disk, data_bytes) in [
        ("mirror:4x3", [12.0, 4.0, 12.0, 4.0], 2_000_000_000_000),
        ("raidz2:2x6", [2.0, 2.0, 8.0, 8.0], 4_000_000_000_000),
        ("raidz:3x5", [3.0, 3.0, 12.0, 12.0], 6_000_000_000_000),
        ("raidz:5x3", [5.0, 5.0, 10.0, 10.0], 5_000_000_000_000),
        ("mirror:7x2", [14.0, 7.0, 14.0, 7.0], 3_500_000_000_000),
    ] {
        let simple = Simple::of(layout(word), 500_000_000_000);
        let seen = [
            simple.iops_read,
            simple.iops_write,
            simple.rate_read,
            simple.rate_write,
        ];
        assert_eq!(seen, of_disk, "{word}");
        assert_eq!(simple.data_bytes, data_bytes, "{word}");
    }
}

/// What was measured on those disks, behind two PCI-X buses: random reads, reading and writing in
/// multiples of one disk. Each is explained within 15 %.
#[test]
fn the_full_model_explains_what_was_measured() {
    let buses = buses(&["pcix133:8", "pcix100:8"]);
    let path = Path {
        buses: &buses,
        network_rate: None,
    };
    let disks = story_disks();
    for (word, measured) in [
        ("raidz2:2x6", [2.3, 7.2, 5.3]),
        ("raidz:3x5", [3.3, 8.8, 5.2]),
        ("raidz:5x3", [3.8, 10.2, 4.8]),
    ] {
        // Disks of that time have sectors of 512 bytes.
        let rates = Rates::of(layout(word), &disks, 9, &CLIENT, path);
        within(
            rates.read_iops / 90.0,
            measured[0],
            0.15,
            &format!("{word}, y"),
        );
        within(
            rates.read_rate / 72e6,
            measured[1],
            0.15,
            &format!("{word}, z read"),
        );
        within(
            rates.write_rate / 72e6,
            measured[2],
            0.15,
            &format!("{word}, z written"),
        );
    }
}

/// The causes are those that the story has: with few vdevs the disks' seeks, with many the client's
/// queue; parity over the bus when writing.
#[test]
fn each_rate_has_its_cause() {
    let buses = buses(&["pcix133:8", "pcix100:8"]);
    let path = Path {
        buses: &buses,
        network_rate: None,
    };
    let of = |word| Rates::of(layout(word), &story_disks(), 9, &CLIENT, path).limited_by;
    assert_eq!(of("raidz2:2x6").read_iops, Limit::Seeks);
    assert_eq!(of("raidz:5x3").read_iops, Limit::Queue);
    assert_eq!(of("raidz2:2x6").read_rate, Limit::Disks);
    assert_eq!(of("raidz:3x5").read_rate, Limit::Bus("pcix100".into()));
    assert_eq!(of("raidz2:2x6").write_rate, Limit::Bus("pcix100".into()));
    // Without the second copy the bus would do.
    assert_eq!(of("mirror:6x2").write_rate, Limit::Parity("pcix100".into()));
}

/// Later there was one bus, and no layout read more than 520 MB/s through it.
#[test]
fn one_bus_caps_reads() {
    let buses = buses(&["pcix133"]);
    let path = Path {
        buses: &buses,
        network_rate: None,
    };
    for word in ["raidz:3x5", "raidz:5x3"] {
        let rates = Rates::of(layout(word), &story_disks(), 9, &CLIENT, path);
        within(rates.read_rate, 520e6, 0.10, word);
        assert_eq!(rates.limited_by.read_rate, Limit::Bus("pcix133".into()));
    }
}

/// What a disk gains by a queue, in the disk model of crate `device`: seeks, rotation, and a choice
/// of the nearest.
#[test]
fn the_gain_of_a_queue_is_the_disk_models() {
    let size = 500_107_862_016;
    let reads = |depth| {
        let mut disk = Machine::new(&DiskModel::Hdd(HddSpec::WD_RE3_500GB), size);
        let load = DiskLoad {
            op: SimOp::Read,
            access: Access::Random,
            block_bytes: 4096,
            depth,
            range_bytes: 0..size,
            count: 4000,
            seed: 11,
        };
        measure(&mut disk, 0, &load).iops
    };
    let one = reads(1);
    for depth in [2, 4, 8, 16, 32] {
        let gain = DiskKind::Hdd.gain(f64::from(depth));
        within(gain, reads(depth) / one, 0.15, &format!("{depth} deep"));
    }
}

/// Without a queue and beside nothing else, a layout does what its parts do: one disk its accesses
/// and its rate.
#[test]
fn one_disk_does_what_one_disk_does() {
    let load = Load {
        block_bytes: 4096,
        depth: 1,
        ..CLIENT
    };
    let disks = story_disks();
    let rates = Rates::of(layout("stripe:1"), &disks, 12, &load, NOTHING);
    within(rates.read_iops, 90.0, 0.01, "random reads of one disk");
    within(rates.read_rate, 72e6, 0.001, "its rate");
    within(rates.write_rate, 72e6, 0.001, "its rate of writing");
}

/// Small blocks on RAID-Z are on few disks, so that a vdev reads several of them at a time.
#[test]
fn small_blocks_leave_disks_free_for_others() {
    let deep = Load {
        depth: 32,
        ..CLIENT
    };
    let of = |block_bytes| {
        let load = Load {
            block_bytes,
            ..deep
        };
        Rates::of(layout("raidz2:1x10"), &story_disks(), 12, &load, NOTHING).read_iops
    };
    assert!(
        of(4096) > 3.0 * of(128 << 10),
        "{} {}",
        of(4096),
        of(128 << 10)
    );
}

/// Disks are spread over buses evenly, as far as there is room: what the fullest carries for each
/// of its disks is what all get.
#[test]
fn disks_are_spread_over_buses() {
    let each = |words: &[&str], count| {
        let buses = buses(words);
        let (rate, bus) = through(&buses, count, |bus| bus.read_rate).expect("a rate");
        (rate.round() as u64, bus)
    };
    // The odd disk is on the last bus.
    assert_eq!(each(&["100MB", "100MB"], 3), (150_000_000, 1));
    // Two on the small one, eight on the other.
    assert_eq!(each(&["100MB:2", "100MB"], 10), (125_000_000, 1));
    // More than there is room for.
    assert_eq!(each(&["100MB:2", "100MB:4"], 12), (171_428_571, 1));
    assert_eq!(each(&["100MB"], 100_000), (100_000_000, 0));
    assert_eq!(each(&["100MB", "1MB"], 1), (1_000_000, 1));
    assert!(through(&[], 5, |bus| bus.read_rate).is_none());
}

/// The table in docs/plan.md is what the models say: its rows are made here as they stand there.
#[test]
fn the_documents_table_is_the_models() {
    let document = include_str!("../../../../docs/plan.md");
    let buses = buses(&["pcix133:8", "pcix100:8"]);
    let path = Path {
        buses: &buses,
        network_rate: None,
    };
    let word_of = |limit: &Limit| match limit {
        Limit::Seeks => "seeks",
        Limit::Disks => "disks",
        Limit::Queue => "queue",
        Limit::Bus(_) => "bus",
        Limit::Parity(_) => "parity over the bus",
        Limit::Network => "network",
    };
    for (word, measured) in [
        ("mirror:4x3", ""),
        ("raidz2:2x6", "2.3y 7.2z 5.3z "),
        ("raidz:3x5", "3.3y 8.8z 5.2z "),
        ("raidz:5x3", "3.8y 10.2z 4.8z "),
        ("mirror:7x2", ""),
    ] {
        let simple = Simple::of(layout(word), 500_000_000_000);
        let full = Rates::of(layout(word), &story_disks(), 9, &CLIENT, path);
        let limits = &full.limited_by;
        let row = format!(
            "| `{word}` | {}y {}y {}z {}z | {:.1} TB | {measured}| {:.1}y {:.1}y {:.1}z {:.1}z | \
             {}, {}, {}, {} |",
            simple.iops_read,
            simple.iops_write,
            simple.rate_read,
            simple.rate_write,
            simple.data_bytes as f64 / 1e12,
            full.read_iops / 90.0,
            full.write_iops / 90.0,
            full.read_rate / 72e6,
            full.write_rate / 72e6,
            word_of(&limits.read_iops),
            word_of(&limits.write_iops),
            word_of(&limits.read_rate),
            word_of(&limits.write_rate),
        );
        assert!(document.contains(&row), "{row}");
    }
}

/// Nothing is faster than its parts: rates stay below bus and network, and grow with disks.
#[test]
fn nothing_is_faster_than_its_way() {
    let buses = buses(&["300MB/200MB"]);
    let path = Path {
        buses: &buses,
        network_rate: Some(117_000_000),
    };
    let narrow = Path {
        network_rate: None,
        ..path
    };
    for word in [
        "mirror:7x2",
        "raidz:3x5",
        "raidz3:1x11",
        "draid2:4d:11c:1s",
        "stripe:9",
    ] {
        let all = layout(word);
        let capped = Rates::of(all, &story_disks(), 12, &CLIENT, narrow);
        assert!(capped.read_rate <= 300e6, "{word}: {capped:?}");
        assert!(
            capped.write_rate * capped.write_amplification <= 200.1e6,
            "{word}"
        );
        let capped = Rates::of(all, &story_disks(), 12, &CLIENT, path);
        assert!(
            capped.read_rate <= 117e6 && capped.write_rate <= 117e6,
            "{word}"
        );
        assert_eq!(capped.limited_by.read_rate, Limit::Network, "{word}");
    }
    let of = |word| Rates::of(layout(word), &story_disks(), 12, &CLIENT, NOTHING);
    assert!(of("mirror:8x2").read_iops > of("mirror:4x2").read_iops);
    assert!(of("raidz:4x4").write_iops > of("raidz:2x4").write_iops);
}

/// Flash has no arm to move: what it does at once comes of its queue.
#[test]
fn flash_works_at_several_reads() {
    let ssd = Disks::usual(2, 400_000_000_000, DiskKind::Ssd);
    let of = |depth| {
        let load = Load {
            block_bytes: 4096,
            depth,
            ..CLIENT
        };
        Rates::of(layout("mirror:1x2"), &ssd, 12, &load, NOTHING).read_iops
    };
    assert!(of(16) > 8.0 * of(1), "{} {}", of(16), of(1));
}

/// Two counters and two customers, by hand: the four ways in which they are there, and what is
/// served in each.
#[test]
fn a_closed_network_is_what_sums_by_hand_give() {
    // Of states (2,0), (1,1), (0,2) with equal rates each is as likely; two of three keep one
    // counter busy.
    within(
        closed_network(2, &[1.0, 1.0]),
        4.0 / 3.0,
        1e-12,
        "equal rates",
    );
    // A counter that serves two at twice the rate never lets anybody wait.
    within(closed_network(2, &[1.0, 2.0]), 2.0, 1e-12, "no waiting");
    within(
        closed_network(1, &[3.0, 5.0, 7.0]),
        7.0,
        1e-12,
        "one counter",
    );
    let many = closed_network(100_000, &[1.0; 64]);
    within(many, 64.0, 0.01, "more counters than customers");
    within(two_stages(1.0, 1.0, 8), 8.0 / 9.0, 1e-9, "two equal stages");
    within(two_stages(5.0, 1.0, 64), 1.0, 1e-9, "one slow stage");
    within(
        two_stages(3.0, 2.0, 2),
        closed_pair(3.0, 2.0),
        1e-9,
        "two pieces",
    );
}

/// Two pieces on their way through two stages: 0, 1 or 2 of them wait at the second.
fn closed_pair(one: f64, other: f64) -> f64 {
    let weights = [1.0, one / other, (one / other) * (one / other)];
    let all: f64 = weights.iter().sum();
    other * (weights[1] + weights[2]) / all
}

/// Streams of a rate: as many as the disks' seeks between pieces leave.
#[test]
fn streams_share_what_the_disks_have() {
    let load = Load {
        streams: 10,
        stream_rate: 1_000_000,
        ..CLIENT
    };
    let of = |load: &Load| {
        Rates::of(layout("raidz2:2x6"), &story_disks(), 12, load, NOTHING).streams_max
    };
    // A MiB at 72 MB/s takes 14.6 ms, the seek before it 11.1 ms: 57 % of 8 × 72 MB/s.
    assert_eq!(of(&load), Some(326));
    assert_eq!(of(&CLIENT), None);
    let network = Path {
        buses: &[],
        network_rate: Some(117_000_000),
    };
    let rates = Rates::of(layout("raidz2:2x6"), &story_disks(), 12, &load, network);
    assert_eq!(rates.streams_max, Some(117));
}
