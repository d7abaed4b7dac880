//! Goal: `millpond plan` tells what its users, and programs, look for, without a server, and so
//! does the API; what cannot be changed is said when pools and volumes are made. Method: the
//! published table of five layouts, the names in the JSON, and commands whose vdevs or blocks are
//! odd.

use std::process::{Command, Output};

use serde_json::json as value;

use crate::harness::{MILLPOND, Server, text_of};

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

/// The API answers as the command does, and tells its notes as sentences.
#[test]
fn the_api_answers_as_the_command_does() {
    let server = Server::start();
    let question = value!({
        "question": {
            "disks": [{"count": 16, "size_bytes": 500_000_000_000_u64, "kind": "hdd"}],
            "spares": 1,
            "layouts": ["raidz2:2x6", "mirror:7x2"],
        },
    });
    let told = server.ask("/v1/plan/ask", &question);
    let words = "--disks 16x500GB --spares 1 --layout raidz2:2x6 --layout mirror:7x2";
    assert_eq!(told["answer"], json(words));
    let notes = told["answer"]["notes"].as_array().expect("notes");
    let sentences = told["sentences"].as_array().expect("sentences");
    assert!(
        !notes.is_empty() && notes.len() == sentences.len(),
        "{told}"
    );
    let wrong = value!({"question": {"disks": question["question"]["disks"],
                                     "layouts": ["raidz2:9x6"]}});
    let refused = server.ask("/v1/plan/ask", &wrong);
    assert_eq!(refused["kind"], "invalid", "{refused}");
    // By the network alone: nothing was in intent logs yet.
    let log = value!({"pool": "tank", "network_rate": 125_000_000});
    let told = server.ask("/v1/plan/log", &log);
    assert_eq!(told["size"]["bytes"], 2_000_000_000, "{told}");
    assert!(told["seen_bytes"].is_null(), "{told}");
    let said = server.ok("plan log tank --network 1Gbit");
    assert!(said.contains("bigger than 2.00 GB"), "{said}");
    let refused = server.fails("plan log tank");
    assert!(refused.contains("--network"), "{refused}");
}

/// Warnings go to standard error, and nothing is refused for them.
#[test]
fn odd_vdevs_and_small_blocks_are_told_when_they_are_made() {
    let server = Server::start();
    let disks = server.disks(6, 128 << 20);
    let bigger = server.text("bigger");
    let file = std::fs::File::create(&bigger).expect("a file");
    file.set_len(256 << 20).expect("a sparse file");
    let run = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        let output = server.command(&words);
        assert!(output.status.success(), "{words:?}: {}", text_of(&output));
        let told = String::from_utf8(output.stdout).expect("text");
        (told, String::from_utf8(output.stderr).expect("text"))
    };
    // Vdevs that are alike are nothing to speak of.
    let raidz = format!("raidz2 {}", disks[..5].join(" "));
    let create = format!("-o ashift=12 -O mountpoint=none tank {raidz}");
    let (_, said) = run(&format!("zpool create -n {create}"));
    assert_eq!(said, "");
    let (_, said) = run(&format!("zpool create {create}"));
    assert_eq!(said, "");
    // A dry run tells the same as the command, beside what the pool has.
    let (told, said) = run(&format!("zpool add -n -f tank {bigger}"));
    assert!(told.contains("would update 'tank'"), "{told}");
    assert!(
        said.contains("warning: The pool is as safe as its weakest vdev, stripe:1"),
        "{said}"
    );
    let (told, again) = run(&format!("zpool add -f tank {bigger}"));
    assert_eq!((told.as_str(), again), ("", said));
    // Half of a volume's blocks on raidz2 are parity and padding, and more.
    let (told, said) = run("zfs create -n -s -V 64M -b 4K tank/small");
    assert_eq!(told, "");
    assert!(
        said.contains("warning: On raidz2:1x5") && said.contains("blocks of 4K"),
        "{said}"
    );
    let (_, said) = run("zfs create -n -s -V 64M -b 64K tank/big");
    assert_eq!(said, "");
    // There is nothing in it yet.
    let (told, _) = run("plan dedup tank");
    assert!(told.ends_with("dedup = 1.00\n"), "{told}");
    let refused = server.fails("plan dedup tank --sample 5");
    assert!(refused.contains("a sample has 100"), "{refused}");
    let job = server.ask("/v1/jobs/list", &value!({"pool": "tank"}));
    let jobs = job["jobs"].as_array().expect("jobs").iter();
    let mut ended = jobs.filter(|job| job["kind"] == "dedup-forecast");
    assert!(
        ended.any(|job| job["state"] == "finished" && job["can_cancel"] == true),
        "{job}"
    );
}
