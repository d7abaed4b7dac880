//! Goal: operations on datasets, and streams between two pools, do what a plain model says,
//! whenever the power goes; figures are those that counting gives. Method: seeds; see
//! `sim::datasets`.

use std::collections::{BTreeMap, BTreeSet};

use oracles::Peer;
use sim::datasets::{DatasetPlan, run_datasets, run_datasets_into};
use sim::torture::{POOL, seeds};

use crate::crash::run_seeds;

#[test]
fn datasets_are_what_a_model_says() {
    run_seeds(&seeds(12), |seed| run_datasets(&DatasetPlan::of(seed)));
}

/// The same in pools that lack features which nobody asks for by name.
#[test]
fn datasets_are_what_a_model_says_where_features_are_missing() {
    run_seeds(&seeds(6), |seed| {
        run_datasets(&DatasetPlan {
            lacks_features: true,
            ..DatasetPlan::of(seed)
        })
    });
}

/// Goal: what a channel program changes is there as a whole or not at all, whenever the power goes.
/// Method: a quarter of the operations are programs of up to twelve; zdb, and all figures.
#[test]
fn programs_are_there_as_a_whole_or_not_at_all() {
    run_seeds(&seeds(12), |seed| {
        run_datasets(&DatasetPlan {
            cut_percent: 8,
            zdb: true,
            has_programs: true,
            ..DatasetPlan::of(seed)
        })
    });
}

/// Programs are done, and power goes in the middle of some.
#[test]
fn runs_with_programs_have_everything_in_them() {
    let (mut programs, mut cuts) = (0, 0);
    for seed in 4000..4006 {
        let plan = DatasetPlan {
            steps: 100,
            cut_percent: 10,
            zdb: false,
            has_programs: true,
            ..DatasetPlan::of(seed)
        };
        let outcome = run_datasets(&plan).unwrap();
        programs += outcome.done.get("program").copied().unwrap_or(0);
        cuts += outcome.cuts;
    }
    assert!(programs > 50 && cuts > 5, "{programs} {cuts}");
}

/// Each operation is done and, where it can be, refused; power goes in the middle of some.
#[test]
fn runs_have_everything_in_them() {
    let (mut done, mut refused) = (BTreeMap::new(), BTreeMap::new());
    let (mut cuts, mut figures) = (0, 0);
    for seed in 3000..3012 {
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
        "change key",
        "clone",
        "create",
        "create encrypted",
        "create volume",
        "destroy",
        "destroy bookmarks",
        "destroy snapshots",
        "hold",
        "interrupted receive",
        "promote",
        "receive",
        "receive raw",
        "release",
        "rename",
        "rename snapshot",
        "resume",
        "resume raw",
        "rollback",
        "snapshot",
        "write",
        "write volume",
    ] {
        assert!(done.contains_key(op), "no {op}: {done:?}");
    }
    for op in [
        "change key",
        "destroy",
        "destroy snapshots",
        "receive",
        "receive raw",
        "snapshot",
    ] {
        assert!(refused.contains_key(op), "no refused {op}: {refused:?}");
    }
    assert!(cuts > 5 && figures > 1000, "{cuts} {figures}");
}

/// Goal: the real OpenZFS scrubs what runs leave, and says the same of all datasets. Method: seeds;
/// `zfs get -p` of every figure that we have.
#[test]
fn openzfs_says_the_same_of_datasets() {
    let Some(peer) = Peer::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (mut disks, mut script) = (Vec::new(), "set -e\n".to_owned());
    let mut said = Vec::new();
    for seed in seeds(4) {
        let plan = DatasetPlan {
            zdb: true,
            ..DatasetPlan::of(seed)
        };
        let own = directory.path().join(seed.to_string());
        let figures = run_datasets_into(&plan, &own).unwrap_or_else(|error| panic!("{error}"));
        for (side, figures) in figures.into_iter().enumerate() {
            let number = said.len();
            let images = oracles::images(&own.join(side.to_string()));
            let mut links = String::new();
            for (at, image) in images.iter().enumerate() {
                disks.push(format!("{},p{number}d{at}", image.display()));
                links += &format!("ln -s /dev/disk/peer/p{number}d{at} /tmp/p{number}/\n");
            }
            script += &format!(
                "mkdir /tmp/p{number}\n{links}\
                 zpool import -N -d /tmp/p{number} {POOL}\n\
                 zpool scrub -w {POOL}\nzpool status -v {POOL} | grep errors: \n\
                 zfs get -Hpr -t filesystem,volume,snapshot -o name,property,value \
                 used,referenced,usedbydataset,usedbysnapshots,usedbychildren,\
                 usedbyrefreservation,written,logicalused,logicalreferenced,userrefs {POOL} | \
                 sed 's/^/FIGURE {number} /'\nzpool export {POOL}\n"
            );
            said.push((seed, figures));
        }
    }
    script += "echo PEER-DONE\n";
    let text = peer.run(&disks, &script);
    assert!(text.contains("PEER-DONE"), "{text}");
    let clean = text.matches("errors: No known data errors").count();
    assert_eq!(clean, said.len(), "{text}");
    let mut theirs = vec![BTreeMap::new(); said.len()];
    for line in text.lines() {
        let Some((number, rest)) = line
            .split_once("FIGURE ")
            .and_then(|(_, rest)| rest.split_once(' '))
        else {
            continue;
        };
        let fields: Vec<&str> = rest.trim_end().split('\t').collect();
        let [name, property, value] = fields[..] else {
            panic!("{line}")
        };
        if let (Ok(number), Ok(value)) = (number.parse::<usize>(), value.parse::<u64>()) {
            theirs[number].insert((name.to_owned(), property.to_owned()), value);
        }
    }
    for ((seed, ours), theirs) in said.iter().zip(&theirs) {
        let wrong: Vec<_> = ours
            .iter()
            .filter(|(key, value)| theirs.get(key) != Some(value))
            .map(|(key, value)| (key, value, theirs.get(key)))
            .collect();
        assert!(wrong.is_empty(), "MILLPOND_SEED={seed}: {wrong:#?}");
        let datasets = |figures: &BTreeMap<(String, String), u64>| {
            let names: BTreeSet<String> = figures.keys().map(|(name, _)| name.clone()).collect();
            names
        };
        let mut known = datasets(theirs);
        known.remove(POOL);
        known.retain(|name| !name.starts_with(&format!("{POOL}@")));
        let mut own = datasets(ours);
        own.retain(|name| !name.starts_with(&format!("{POOL}@")));
        assert_eq!(known, own, "MILLPOND_SEED={seed}");
    }
}
