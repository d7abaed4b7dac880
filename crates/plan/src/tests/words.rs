//! Words: what people write is understood, and printed as it was written.

use super::layout;
use crate::amount::{parse_bytes, parse_rate, show_block, show_bytes, show_chance, show_seconds};
use crate::choose::layouts;
use crate::{Bus, DiskKind, Disks, Layout};

#[test]
fn sizes_and_rates() {
    for (word, bytes) in [
        ("500GB", 500_000_000_000),
        ("1.5TB", 1_500_000_000_000),
        ("128K", 131_072),
        ("4G", 4 << 30),
        ("4GiB", 4 << 30),
        ("4096", 4096),
        ("512B", 512),
    ] {
        assert_eq!(parse_bytes(word).ok(), Some(bytes), "{word}");
    }
    for (word, rate) in [
        ("72MB/s", 72_000_000),
        ("1Gbit/s", 125_000_000),
        ("1Gbit", 125_000_000),
        ("520MB", 520_000_000),
    ] {
        assert_eq!(parse_rate(word).ok(), Some(rate), "{word}");
    }
    for word in [
        "",
        "GB",
        "5XB",
        "-1",
        "1e9",
        "5GBs",
        "99999999EB",
        "1.2.3G",
        "5Q",
        "£5",
    ] {
        assert!(parse_bytes(word).is_err(), "{word}");
    }
    assert_eq!(show_bytes(6_000_000_000_000), "6.00 TB");
    assert_eq!(show_bytes(999_999), "1.00 MB");
    assert_eq!(show_bytes(512), "512 B");
    assert_eq!(show_block(131_072), "128K");
    assert_eq!(show_seconds(7200.0), "2.0 h");
    assert_eq!(show_chance(0.00024), "1 in 4,200");
    assert_eq!(show_chance(0.031), "3.1 %");
    assert_eq!(show_chance(0.0), "less than 1 in a billion");
}

#[test]
fn layouts_are_printed_as_they_are_written() {
    for word in [
        "stripe:5",
        "mirror:7x2",
        "raidz:3x5",
        "raidz2:2x6",
        "raidz3:1x19",
        "draid2:4d:11c:1s",
        "draid1:8d:2x24c:0s",
    ] {
        assert_eq!(layout(word).to_string(), word);
    }
    for (word, same) in [
        ("mirror:2", "mirror:1x2"),
        ("raidz1:3x5", "raidz:3x5"),
        ("raidz2:6", "raidz2:1x6"),
        ("draid:11c", "draid1:8d:11c:0s"),
        ("draid2:1s:11c:4d", "draid2:4d:11c:1s"),
    ] {
        assert_eq!(layout(word).to_string(), same);
    }
    for word in [
        "mirror",
        "mirror:",
        "mirror:1x1",
        "mirror:0x2",
        "raidz4:5",
        "raidz2:2x2",
        "raidz:x",
        "raidz:5x",
        "draid2:4d:5c:1s",
        "draid:4d",
        "draid2:0d:11c",
        "stripe:0",
        "mirror:3x256",
        "raidz:99999x3",
        "mirror:18446744073709551615x2",
        "tape:3",
    ] {
        assert!(word.parse::<Layout>().is_err(), "{word}");
    }
    for all in (1..200).map(layouts) {
        assert!(!all.is_empty());
        for one in all {
            assert_eq!(layout(&one.to_string()), one);
        }
    }
}

#[test]
fn disks_and_buses() {
    let disks: Disks = "16x500GB:hdd:90seeks:72MB/s:price=55"
        .parse()
        .expect("disks");
    assert_eq!(disks.count, 16);
    assert_eq!(disks.size_bytes, 500_000_000_000);
    assert_eq!((disks.accesses_per_second, disks.rate), (90.0, 72_000_000));
    assert_eq!(disks.price, 55.0);
    let ssd: Disks = "2x400GB:ssd".parse().expect("disks");
    assert_eq!(ssd.kind, DiskKind::Ssd);
    assert_eq!("4TB".parse::<Disks>().expect("a disk").count, 1);
    for word in [
        "",
        "x",
        "0x4TB",
        "4x",
        "4x1MB",
        "4x4TB:tape",
        "4x4TB:-1seeks",
        "4x4TB:price=x",
    ] {
        assert!(word.parse::<Disks>().is_err(), "{word}");
    }
    // 64 bits at 133 1/3 MHz, of which 49 % get through.
    let bus: Bus = "pcix133:8".parse().expect("a bus");
    assert_eq!((bus.read_rate, bus.disks), (1_066_666_666 * 49 / 100, 8));
    let bus: Bus = "520MB/350MB".parse().expect("a bus");
    assert_eq!((bus.read_rate, bus.write_rate), (520_000_000, 350_000_000));
    assert!("pcie3x8".parse::<Bus>().expect("a bus").read_rate > 6_000_000_000);
    let sas = |word: &str| word.parse::<Bus>().expect("a bus").read_rate;
    assert_eq!(sas("sas2x4"), 2_160_000_000);
    assert_eq!(sas("sas3x1"), sas("sas3x8") / 8);
    for word in [
        "", "isa", "sas2", "sas9x4", "sas2x0", "pcie9x4", "pcie3x0", "0MB", "520MB:x",
    ] {
        assert!(word.parse::<Bus>().is_err(), "{word}");
    }
}
