//! Goal: a trial tells what the disks' models can do and what limits the pool, the same each time.
//! Method: small pools of slow disks, of which it is known what they do.

use trial::{Report, Told, Trial, TrialError};

fn tell(text: &str) -> Report {
    let trial = Trial::parse(text).unwrap();
    trial::run(&trial, &mut |_| {}, &|| false).unwrap()
}

/// A trial with these lines beside layout and set, and these steps.
fn text(layout: &str, more: &str, steps: &str) -> String {
    format!(
        r#"
title = "A test"
seed = 7
scale = 16
{more}
[pool]
layout = "{layout}"
disk = "wd-re3-500gb"
spread_percent = 50
memory = "64M"
[set]
kind = "volume"
bytes = "4GB"
block = "16K"
{steps}
"#
    )
}

const LOADS: &str = r#"
[[step]]
do = "load"
name = "random"
access = "random"
reads_percent = 100
block = "16K"
depth = 8
seconds = 60
[[step]]
do = "load"
name = "sequential"
access = "sequential"
reads_percent = 100
block = "64K"
depth = 9
seconds = 20
warm_up_seconds = 2
"#;

#[test]
fn what_limits_is_what_is_slow() {
    let report = tell(&text("mirror:2x2", "", LOADS));
    let [random, _] = report.steps.as_slice() else {
        panic!("two loads: {report:?}");
    };
    // Four disks of some 90 seeks a second, which choose from what waits.
    let iops = random.iops.unwrap();
    assert!((300.0..700.0).contains(&iops), "{iops} reads a second");
    assert_eq!(random.limited_by, "disks", "{random:?}");
    // The planner counts seeks over the whole disk; the set lies on half of it.
    let planned = random.predicted_iops.unwrap();
    assert!(
        (0.75..1.75).contains(&(iops / planned)),
        "{iops}, {planned} planned"
    );
}

#[test]
fn equal_seeds_tell_the_same() {
    let text = text("raidz:1x4", "", LOADS);
    let (once, again) = (tell(&text), tell(&text));
    assert_eq!(once, again);
    let other = tell(&text.replace("seed = 7", "seed = 8"));
    assert_ne!(once, other);
}

#[test]
fn a_disk_fails_and_another_takes_its_place() {
    let steps = r#"
[[step]]
do = "fail"
disk = 1
[[step]]
do = "replace"
disk = 1
[[step]]
do = "scrub"
[[step]]
do = "restart"
[[step]]
do = "load"
name = "writes"
access = "random"
reads_percent = 0
block = "16K"
depth = 4
seconds = 20
every_seconds = 5
"#;
    let report = tell(&text("raidz2:1x6", "", steps));
    let names: Vec<&str> = report.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["resilver of disk 1", "scrub", "writes"]);
    assert!(
        report.steps[..2].iter().all(|step| step.seconds > 1.0),
        "{report:?}"
    );
    assert_eq!(report.steps[2].points.len(), 4);
    let told = Told {
        title: "A test".into(),
        servers: vec![report],
    };
    let told = told.markdown();
    assert!(
        told.contains("| scrub |") && told.contains("```text"),
        "{told}"
    );
}

#[test]
fn it_can_be_stopped() {
    let trial = Trial::parse(&text("mirror:1x2", "", LOADS)).unwrap();
    let stopped = trial::run(&trial, &mut |_| {}, &|| true);
    assert!(matches!(stopped, Err(TrialError::Stopped)), "{stopped:?}");
}
