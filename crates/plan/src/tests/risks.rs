//! Chances and times.

use super::{layout, story_disks, within};
use crate::capacity::Capacity;
use crate::risk::{Assumptions, Risk};
use crate::scan::Passes;
use crate::{Bus, DiskKind};

const DAY: f64 = 86400.0;

fn assumed() -> Assumptions {
    Assumptions {
        failures_per_year: 0.05,
        replace_seconds: 0.0,
        bits_per_error: 1e15,
        filled: 1.0,
        scrub_interval_seconds: 30.0 * DAY,
    }
}

/// Without redundancy the first failure is the loss; a mirror loses when the second disk fails
/// during the rebuild of the first: two failures a year of one, times the chance of the other.
#[test]
fn chances_are_those_of_the_textbook() {
    let stripe = Risk::of(layout("stripe:4"), 0, None, 0.0, &assumed());
    within(
        stripe.loss_per_year,
        1.0 - (-0.2f64).exp(),
        1e-9,
        "four disks",
    );
    let mirror = Risk::of(layout("mirror:1x2"), 1, Some(DAY), 0.0, &assumed());
    // 2 λ² R, for a year of 365.25 days.
    let expected = 2.0 * 0.05 * 0.05 / 365.25;
    within(mirror.loss_per_year, expected, 0.01, "a mirror");
    let ten = Risk::of(layout("mirror:10x2"), 1, Some(DAY), 0.0, &assumed());
    within(ten.loss_per_year, 10.0 * expected, 0.01, "ten mirrors");
    // RAID-Z2 of six: 6 · 5 · 4 λ³ R².
    let raidz = Risk::of(layout("raidz2:1x6"), 1, Some(DAY), 0.0, &assumed());
    let expected = 120.0 * 0.05f64.powi(3) / 365.25 / 365.25;
    within(raidz.loss_per_year, expected, 0.01, "raidz2");
}

/// Parity, a third copy, a spare and a quick rebuild each make loss less likely, and more vdevs
/// make it more likely.
#[test]
fn what_makes_loss_less_likely() {
    let of = |word, spares, days: f64| {
        let assumed = Assumptions {
            replace_seconds: 5.0 * DAY,
            ..assumed()
        };
        Risk::of(layout(word), spares, Some(days * DAY), 0.0, &assumed).loss_per_year
    };
    assert!(of("raidz2:1x6", 0, 1.0) < of("raidz:1x6", 0, 1.0) / 5.0);
    assert!(of("mirror:2x3", 0, 1.0) < of("mirror:2x2", 0, 1.0) / 5.0);
    assert!(of("raidz:1x6", 1, 1.0) < of("raidz:1x6", 0, 1.0) / 3.0);
    assert!(of("raidz:1x6", 1, 0.5) < of("raidz:1x6", 1, 1.0));
    assert!(of("raidz:3x6", 1, 1.0) > of("raidz:2x6", 1, 1.0));
    // A distributed spare is a spare.
    assert!(of("draid:4d:7c:1s", 0, 1.0) < of("draid:4d:7c:0s", 0, 1.0));
}

/// Big disks: a bit in 10^14 that cannot be read is met while 4 × 4 TB are read for a rebuild.
#[test]
fn unreadable_sectors_cost_blocks_and_not_the_pool() {
    let desktop = Assumptions {
        bits_per_error: 1e14,
        ..assumed()
    };
    let raidz = Risk::of(layout("raidz:1x5"), 1, Some(DAY), 4e12, &desktop);
    // A failure of five in a year, and 1.28 errors expected in what is read then.
    let expected = 1.0 - (-(5.0 * 0.05 * (1.0 - (-1.28f64).exp()))).exp();
    within(raidz.damage_per_year, expected, 0.05, "damage");
    assert!(raidz.loss_per_year < raidz.damage_per_year / 50.0);
    let double = Risk::of(layout("raidz2:1x6"), 1, Some(DAY), 4e12, &desktop);
    assert!(double.damage_per_year < raidz.damage_per_year / 50.0);
}

/// Sets of failed disks, counted by hand: of two of four disks in two mirrors, four of the six sets
/// are in different mirrors.
#[test]
fn which_disks_may_fail_together() {
    let of = |word| Risk::of(layout(word), 0, Some(DAY), 0.0, &assumed());
    let mirrors = of("mirror:2x2");
    assert_eq!(mirrors.may_fail, 1);
    assert_eq!(mirrors.survives.len(), 4);
    within(mirrors.survives[0], 1.0, 1e-12, "one disk");
    within(mirrors.survives[1], 4.0 / 6.0, 1e-12, "two disks");
    assert_eq!(mirrors.survives[2..], [0.0, 0.0]);
    let raidz = of("raidz2:1x6");
    assert_eq!(raidz.survives[..3], [1.0, 1.0, 0.0]);
    // The story's 7 × 2: the second disk is the first one's partner in one of thirteen cases.
    within(of("mirror:7x2").survives[1], 12.0 / 13.0, 1e-9, "7 × 2");
}

/// A scrub reads each disk once; a rebuild writes one; buses make both longer.
#[test]
fn passes_take_as_long_as_disks_and_buses_need() {
    let disks = story_disks();
    let capacity = |word| Capacity::of(layout(word), disks.size_bytes, 12).expect("a capacity");
    let of = |word, buses: &[Bus]| Passes::of(layout(word), &disks, &capacity(word), buses, 0.5);
    // Half of about 500 GB at 72 MB/s.
    let mirror = of("mirror:7x2", &[]);
    within(mirror.scrub_seconds, 250e9 / 72e6, 0.02, "scrub of mirrors");
    within(
        mirror.rebuild_seconds.unwrap_or(0.0),
        250e9 / 72e6,
        0.02,
        "their rebuild",
    );
    let bus: Bus = "360MB".parse().expect("a bus");
    let slow = of("mirror:7x2", &[bus]);
    // 14 disks share 360 MB/s.
    within(
        slow.scrub_seconds,
        250e9 * 14.0 / 360e6,
        0.02,
        "scrub over a bus",
    );
    assert_eq!(of("stripe:3", &[]).rebuild_seconds, None);
    // Ten disks move what four of them had and what is written, of 10/11 of a disk.
    let draid = of("draid2:4d:11c:1s", &[]).rebuild_seconds.unwrap_or(0.0);
    within(
        draid,
        250e9 * (10.0 / 11.0) * 0.5 / 72e6,
        0.03,
        "rebuild of draid",
    );
    let raidz = of("raidz2:1x11", &[]).rebuild_seconds.unwrap_or(0.0);
    assert!(draid < raidz / 2.0);
}

/// The usual assumptions say what they are for.
#[test]
fn flash_fails_less_often() {
    let of = |kind| Assumptions::usual(kind).failures_per_year;
    assert!(of(DiskKind::Ssd) < of(DiskKind::Hdd));
}
