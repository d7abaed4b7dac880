//! Answers as a whole.

use super::{layout, story_disks};
use crate::choose::{Purpose, Reason, layouts};
use crate::look::{Vdev, look_at, look_at_cache, look_at_volume};
use crate::{Answer, DiskKind, Disks, Layout, Model, Note, PlanError, Question, answer};

fn story(model: Model) -> Question {
    Question {
        disks: vec![story_disks()],
        spares: 1,
        model,
        ashift: 9,
        ..Question::default()
    }
}

fn planned(question: &Question) -> Answer {
    answer(question).expect("an answer")
}

/// What JSON has is what the API promises, by these names.
#[test]
fn json_has_the_promised_names() {
    let mut question = story(Model::Simple);
    question.layouts = vec![layout("raidz:3x5")];
    question.disks[0].price = 60.0;
    let json = serde_json::to_value(planned(&question)).expect("JSON");
    let one = &json["layouts"][0];
    assert_eq!(one["layout"], "raidz:3x5");
    for name in [
        "usable_bytes",
        "loss_per_year",
        "read_iops",
        "write_iops",
        "read_rate",
        "write_rate",
        "scrub_seconds",
        "rebuild_seconds",
    ] {
        assert!(
            one[name].as_f64().is_some_and(|value| value > 0.0),
            "{name}"
        );
    }
    assert_eq!(one["limited_by"]["read_iops"], "seeks");
    assert_eq!(one["cost"]["total"], 960.0);
    assert_eq!(one["simple"]["iops_read"], 3.0);
    assert_eq!(one["simple"]["rate_write"], 12.0);
    assert_eq!(one["read_iops"], 270.0);
    let back: Answer = serde_json::from_value(json).expect("an answer");
    assert_eq!(back.layouts[0].layout, layout("raidz:3x5"));
    // A question needs no more than the disks.
    let text = r#"{"disks": [{"count": 4, "size_bytes": 4000000000000, "kind": "hdd",
        "accesses_per_second": 80, "rate": 180000000, "price": 0}], "layouts": ["mirror:2x2"]}"#;
    let question: Question = serde_json::from_str(text).expect("a question");
    assert_eq!(planned(&question).layouts.len(), 1);
}

/// All sensible layouts of sixteen disks, one of them a spare, with those of the story among them.
#[test]
fn every_sensible_layout_is_looked_at() {
    let all = planned(&story(Model::Full)).layouts;
    let has = |word: &str| all.iter().any(|planned| planned.layout == layout(word));
    for word in [
        "raidz:3x5",
        "raidz:5x3",
        "mirror:7x2",
        "mirror:5x3",
        "raidz2:1x15",
        "raidz3:1x15",
    ] {
        assert!(has(word), "{word} of {all:?}");
    }
    assert!(
        all.iter()
            .any(|planned| matches!(planned.layout, Layout::Draid { .. }))
    );
    for one in &all {
        assert_eq!(one.layout.disks() + one.spares, 16, "{}", one.layout);
        assert!(
            one.spares >= 1 && one.layout.may_fail() > 0,
            "{}",
            one.layout
        );
    }
    assert_eq!(layouts(1), [layout("stripe:1")]);
    assert_eq!(layouts(2), [layout("mirror:1x2")]);
    assert_eq!(layouts(0), []);
    assert!(
        layouts(100_000)
            .iter()
            .all(|layout| layout.disks() <= 100_000)
    );
}

/// What is recommended fits what the pool is for: mirrors for virtual machines, more space for
/// backups; never what loses data easily, unless there is nothing else.
#[test]
fn recommendations_fit_the_purpose() {
    let mut question = story(Model::Full);
    question.purposes = Purpose::ALL.to_vec();
    let answer = planned(&question);
    let of = |purpose| {
        let mut all = answer.recommended.iter();
        let one = all
            .find(|one| one.purpose == purpose)
            .expect("one for each");
        assert_eq!(one.reason, Reason::Best);
        let mut layouts = answer.layouts.iter();
        layouts
            .find(|planned| planned.layout == one.layout)
            .expect("one of them")
    };
    assert!(matches!(of(Purpose::Vm).layout, Layout::Mirror { .. }));
    assert!(of(Purpose::Backup).usable_bytes > of(Purpose::Vm).usable_bytes);
    for purpose in Purpose::ALL {
        assert!(of(purpose).loss_per_year <= 1e-3);
    }
    question.layouts = vec![layout("stripe:4"), layout("stripe:2")];
    question.purposes = vec![Purpose::Backup];
    let answer = planned(&question);
    assert_eq!(answer.recommended[0].reason, Reason::Safest);
    assert_eq!(answer.recommended[0].layout, layout("stripe:2"));
}

/// What must be known before is said: parity for good, blocks too small, no redundancy.
#[test]
fn what_cannot_be_undone_is_said_before() {
    let question = Question {
        disks: vec![
            Disks::usual(6, 4_000_000_000_000, DiskKind::Hdd),
            Disks::usual(2, 400_000_000_000, DiskKind::Ssd),
        ],
        layouts: vec![layout("raidz2:1x6"), layout("stripe:6")],
        purposes: vec![Purpose::Vm],
        load: Some(crate::full::Load {
            block_bytes: 4096,
            ..Purpose::Vm.usual_load()
        }),
        network_rate: Some(125_000_000),
        ..Question::default()
    };
    let answer = planned(&question);
    let said: Vec<String> = answer.notes.iter().map(Note::sentence).collect();
    let has = |part: &str| {
        assert!(
            said.iter().any(|sentence| sentence.contains(part)),
            "{part}: {said:#?}"
        );
    };
    has("its parity is 2 for good");
    has("33 % of the raw space holds data");
    has("no redundancy");
    has("log devices");
    has("2.00 GB");
    has("2.0 % fail in a year");
    for sentence in &said {
        assert!(sentence.ends_with('.'), "{sentence}");
    }
    let json = serde_json::to_value(&answer.notes).expect("JSON");
    assert_eq!(json[0]["note"], "recommended");
}

/// What is odd about new vdevs is said, and nothing of those that are alike.
#[test]
fn odd_vdevs_are_told_of() {
    let vdev = |word, disks_bytes: &[u64]| Vdev {
        layout: layout(word),
        disks_bytes: disks_bytes.to_vec(),
        sector_bytes: 4096,
    };
    let tera = 1_000_000_000_000;
    let alike = vdev("raidz:1x3", &[tera; 3]);
    let pool = [alike];
    assert_eq!(look_at(&pool, &pool, 12), []);
    assert_eq!(look_at(&[], &pool, 9), []);
    assert_eq!(
        look_at(&pool, &[], 9),
        [Note::SmallSectors {
            configured_bytes: 512,
            native_bytes: 4096
        }]
    );
    let odd = vdev("raidz:1x3", &[tera, 2 * tera, tera]);
    assert_eq!(
        look_at(&[odd], &pool, 12),
        [Note::UnequalDisks {
            layout: layout("raidz:1x3"),
            unused_bytes: tera
        }]
    );
    let single = vdev("stripe:1", &[tera]);
    assert_eq!(
        look_at(&[single], &pool, 12),
        [
            Note::WeakestVdev {
                layout: layout("stripe:1"),
                may_fail: 0
            },
            Note::UnequalVdevs {
                smallest_bytes: tera,
                biggest_bytes: 2 * tera
            }
        ]
    );
    let said = Note::SmallSectors {
        configured_bytes: 512,
        native_bytes: 4096,
    };
    let said = said.sentence();
    assert!(
        said.starts_with("block size: 512B configured, 4096B native."),
        "{said}"
    );
    assert!(said.ends_with("give ashift=12."), "{said}");
}

/// Questions that have no answer are refused with a sentence that says what to do.
#[test]
fn bad_questions_are_refused() {
    assert_eq!(answer(&Question::default()), Err(PlanError::NoDisks));
    let mut question = story(Model::Full);
    question.layouts = vec![layout("raidz:4x4")];
    let error = answer(&question).expect_err("too few disks");
    assert_eq!(
        error.to_string(),
        "raidz:4x4 needs 16 disks, and 15 are left for data; give more disks, fewer spares or a \
         smaller layout"
    );
    question.layouts = vec![];
    question.spares = 16;
    assert!(matches!(
        answer(&question),
        Err(PlanError::TooFewDisks { .. })
    ));
    question.spares = 0;
    question.ashift = 60;
    assert!(matches!(
        answer(&question),
        Err(PlanError::OutOfRange { .. })
    ));
    question.ashift = 12;
    question.disks[0].rate = 1;
    assert!(matches!(
        answer(&question),
        Err(PlanError::OutOfRange { .. })
    ));
}

/// No question that is not refused has an answer with figures that are none.
#[test]
fn figures_are_numbers() {
    for (count, size_bytes) in [(1, 64 << 20), (3, 64 << 20), (40, 1 << 30), (90, 20 << 40)] {
        for kind in [DiskKind::Hdd, DiskKind::Ssd, DiskKind::Nvme] {
            let question = Question {
                disks: vec![Disks::usual(count, size_bytes, kind)],
                purposes: Purpose::ALL.to_vec(),
                ..Question::default()
            };
            for one in planned(&question).layouts {
                for figure in [
                    one.read_iops,
                    one.write_iops,
                    one.read_rate,
                    one.write_rate,
                    one.scrub_seconds,
                    one.loss_per_year,
                ] {
                    assert!(figure.is_finite() && figure >= 0.0, "{one:?}");
                }
                assert!((0.0..=1.0).contains(&one.loss_per_year));
                assert!(one.risk.damage_per_year >= one.loss_per_year, "{one:?}");
            }
        }
    }
}

/// Goal: a question over the network needs no figures that are usual, and no question, however
/// strange, ends the server. Method: a question with the least of it beside one with all; then
/// questions with figures at and beyond their bounds.
#[test]
fn what_is_usual_need_not_be_said() {
    let text = r#"{"disks": [{"count": 4, "size_bytes": 4000000000000, "kind": "hdd"}]}"#;
    let least: Question = serde_json::from_str(text).expect("a question");
    let full = Question {
        disks: vec![Disks::usual(4, 4_000_000_000_000, DiskKind::Hdd)],
        ..Question::default()
    };
    assert_eq!(planned(&least), planned(&full));
    let misspelt = r#"{"disks": [], "spare": 1}"#;
    assert!(serde_json::from_str::<Question>(misspelt).is_err());
    let most = u64::MAX;
    let strange = |change: fn(&mut Question)| {
        let mut question = full.clone();
        change(&mut question);
        answer(&question)
    };
    let changes: [fn(&mut Question); 14] = [
        |question| question.spares = u64::MAX,
        |question| question.ashift = u32::MAX,
        |question| question.network_rate = Some(u64::MAX),
        |question| question.memory_bytes = Some(0),
        |question| question.log_seen_bytes = Some(u64::MAX),
        |question| question.disks[0].count = u64::MAX,
        |question| question.disks[0].size_bytes = 1 << 60,
        |question| (question.disks[0].count, question.spares) = (100_000, 99_998),
        |question| question.disks[0].rate = u64::MAX,
        |question| question.disks[0].accesses_per_second = f64::MAX,
        |question| question.disks[0].price = -1.0,
        |question| {
            question
                .disks
                .push(Disks::usual(100_000, 1 << 60, DiskKind::Nvme))
        },
        |question| question.purposes = vec![Purpose::Vm; 5],
        |question| question.purposes = Vec::new(),
    ];
    for change in changes {
        // Figures or a sentence; no panic.
        match strange(change) {
            Ok(told) => assert!(!told.layouts.is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let mut load = Purpose::Stream.usual_load();
    (load.depth, load.streams, load.stream_rate) = (most, most, most);
    let mut question = full.clone();
    question.load = Some(load);
    assert_eq!(planned(&question).layouts[0].streams_max, Some(0));
}

/// More disks than a pool has mirrors: layouts that cannot be are left out, and others are told.
#[test]
fn very_many_disks_have_layouts_too() {
    let all = layouts(100_000);
    assert!(!all.is_empty());
    assert!(all.iter().all(|layout| layout.check().is_ok()), "{all:?}");
}

/// The size of a log device is by what was seen, where that is known.
#[test]
fn a_log_device_is_as_big_as_what_was_seen_asks_for() {
    let question = |log_seen_bytes| Question {
        disks: vec![
            Disks::usual(8, 4_000_000_000_000, DiskKind::Hdd),
            Disks::usual(1, 400_000_000_000, DiskKind::Ssd),
        ],
        purposes: vec![Purpose::Vm],
        network_rate: Some(125_000_000),
        log_seen_bytes,
        ..Question::default()
    };
    let log = |question: &Question| {
        let notes = planned(question).notes.into_iter();
        let mut sizes = notes.filter_map(|note| match note {
            Note::Log { bytes } => Some(bytes),
            _ => None,
        });
        sizes.next()
    };
    assert_eq!(log(&question(None)), Some(2_000_000_000));
    assert_eq!(log(&question(Some(1_510_000_000))), Some(2_265_000_000));
}

/// Goal: small blocks on RAID-Z are told of before a volume is made, on the vdev where they cost
/// most, and never on mirrors. Method: the table of docs/plan.md.
#[test]
fn volumes_of_small_blocks_are_told_what_they_cost() {
    let of = |vdevs: &[(Layout, u32)], block_bytes| look_at_volume(vdevs, 10 << 30, block_bytes);
    let raidz2 = (layout("raidz2:1x6"), 12);
    let mirror = (layout("mirror:1x2"), 12);
    let told = of(&[mirror, raidz2], 4 << 10).expect("a note");
    let Note::SmallVolume {
        layout,
        on_disks_bytes,
        better_block_bytes,
        better_on_disks_bytes,
        ..
    } = &told
    else {
        panic!("{told:?}");
    };
    assert_eq!(*layout, raidz2.0);
    // 12K for each 4K; 24K for each 16K.
    assert_eq!((*on_disks_bytes, *better_block_bytes), (30 << 30, 16 << 10));
    assert_eq!(*better_on_disks_bytes, 15 << 30);
    assert!(
        told.sentence().contains("blocks of 4K"),
        "{}",
        told.sentence()
    );
    assert_eq!(of(&[mirror, raidz2], 16 << 10), None);
    assert_eq!(of(&[mirror], 4 << 10), None);
    // Sectors of 512 bytes: 4K are eight of them.
    assert_eq!(of(&[(raidz2.0, 9)], 4 << 10), None);
}

/// An eighth of the memory is what the index of cache devices may take without a word.
#[test]
fn a_cache_device_without_memory_for_its_index_is_told_of() {
    let gib = 1 << 30;
    assert_eq!(look_at_cache(400 * gib, 8 << 10, 16 * gib), None);
    let told = look_at_cache(400 * gib, 8 << 10, 8 * gib).expect("a note");
    assert!(told.sentence().contains("memory"), "{}", told.sentence());
}
