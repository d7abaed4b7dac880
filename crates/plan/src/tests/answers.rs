//! Answers as a whole.

use super::{layout, story_disks};
use crate::choose::{Purpose, Reason, layouts};
use crate::look::{Vdev, look_at};
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
    question.disks[0].rate = 0;
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
