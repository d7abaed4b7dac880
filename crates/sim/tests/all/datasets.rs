//! Goal: operations on datasets, and streams between two pools, do what a plain model says,
//! whenever the power goes; figures are those that counting gives. Method: seeds; see
//! `sim::datasets`.

use std::collections::BTreeMap;

use sim::datasets::{DatasetPlan, run_datasets};
use sim::torture::seeds;

use crate::crash::run_seeds;

#[test]
fn datasets_are_what_a_model_says() {
    run_seeds(&seeds(12), |seed| run_datasets(&DatasetPlan::of(seed)));
}

/// Each operation is done and, where it can be, refused; power goes in the middle of some.
#[test]
fn runs_have_everything_in_them() {
    let (mut done, mut refused) = (BTreeMap::new(), BTreeMap::new());
    let (mut cuts, mut figures) = (0, 0);
    for seed in 3000..3006 {
        let plan = DatasetPlan {
            steps: 150,
            cut_percent: 4,
            zdb: false,
            ..DatasetPlan::of(seed)
        };
        let outcome = run_datasets(&plan).unwrap();
        for (op, count) in outcome.done {
            *done.entry(op).or_insert(0) += count;
        }
        for (op, count) in outcome.refused {
            *refused.entry(op).or_insert(0) += count;
        }
        cuts += outcome.cuts;
        figures += outcome.figures;
    }
    eprintln!("{done:?} {refused:?} {cuts} {figures}");
    for op in [
        "abort",
        "bookmark",
        "clone",
        "create",
        "destroy",
        "destroy bookmarks",
        "destroy snapshots",
        "hold",
        "interrupted receive",
        "promote",
        "receive",
        "release",
        "rename",
        "rename snapshot",
        "resume",
        "rollback",
        "snapshot",
        "write",
    ] {
        assert!(done.contains_key(op), "no {op}: {done:?}");
    }
    for op in ["destroy", "destroy snapshots", "receive", "snapshot"] {
        assert!(refused.contains_key(op), "no refused {op}: {refused:?}");
    }
    assert!(cuts > 5 && figures > 1000, "{cuts} {figures}");
}
