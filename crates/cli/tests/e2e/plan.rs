//! Goal: `millpond plan` tells what its users, and programs, look for, without a server. Method:
//! the published table of five layouts, and the names in the JSON.

use std::process::{Command, Output};

use crate::harness::MILLPOND;

fn plan(words: &str) -> Output {
    let mut command = Command::new(MILLPOND);
    command.arg("plan").args(words.split(' '));
    command.output().expect("millpond runs")
}

fn json(words: &str) -> serde_json::Value {
    let output = plan(&format!("{words} --json"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Published by somebody who compared arrays of 500 GB disks by hand: random reads and writes in
/// multiples of a disk's, reading and writing rates in multiples of a disk's, and terabytes.
#[test]
fn the_simple_model_is_the_table_that_people_made_by_hand() {
    for (layout, multiples, terabytes) in [
        ("mirror:4x3", [12.0, 4.0, 12.0, 4.0], 2.0),
        ("raidz2:2x6", [2.0, 2.0, 8.0, 8.0], 4.0),
        ("raidz:3x5", [3.0, 3.0, 12.0, 12.0], 6.0),
        ("raidz:5x3", [5.0, 5.0, 10.0, 10.0], 5.0),
        ("mirror:7x2", [14.0, 7.0, 14.0, 7.0], 3.5),
    ] {
        let words = format!("--disks 16x500GB --spares 1 --model simple --layout {layout}");
        let told = json(&words);
        let planned = &told["layouts"][0];
        assert_eq!(planned["layout"], layout);
        let names = ["iops_read", "iops_write", "rate_read", "rate_write"];
        let simple = names.map(|name| planned["simple"][name].as_f64().expect("a figure"));
        assert_eq!(simple, multiples, "{layout}");
        assert_eq!(planned["simple"]["data_bytes"], (terabytes * 1e12) as u64);
    }
}

#[test]
fn programs_find_the_figures_by_their_names() {
    let told = json("--disks 16x500GB:price=55 --disks 2x400GB:ssd --spares 1 --use vm");
    let layouts = told["layouts"].as_array().expect("layouts");
    assert!(layouts.len() > 5, "every sensible layout: {layouts:?}");
    for planned in layouts {
        for name in [
            "usable_bytes",
            "loss_per_year",
            "read_iops",
            "write_iops",
            "read_rate",
            "write_rate",
            "scrub_seconds",
        ] {
            assert!(planned[name].is_number(), "{name}: {planned}");
        }
        assert!(planned["limited_by"].is_object() && planned["cost"].is_object());
        // Nothing is rebuilt where there is no redundancy.
        assert!(planned.get("rebuild_seconds").is_some(), "{planned}");
    }
    assert!(!told["recommended"].as_array().expect("a list").is_empty());
}

#[test]
fn what_cannot_be_is_said() {
    for (words, says) in [
        ("--disks 3x500GB --layout raidz2:1x6", "6"),
        ("--disks many", "such as 500GB"),
        ("--disks 4x500GB --layout raid5:4", "mirror:7x2"),
        ("--disks 4x1MB", "64 MiB"),
    ] {
        let output = plan(words);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words}");
        assert!(told.contains(says), "{words}: {told}");
    }
}
