use super::*;

const HOUR_S: u64 = 3600;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Chore {
    when: Option<ScheduleWhen>,
}

impl Recurs for Chore {
    const FILE: &'static str = "chores.json";
    const WORD: &'static str = "chore";
    const WORDS: &'static str = "chores";
    const LISTED_BY: &'static str = "millpond chore";

    fn when(&self) -> Option<ScheduleWhen> {
        self.when
    }
}

fn every(seconds: u64) -> Chore {
    Chore {
        when: Some(ScheduleWhen::Interval { seconds }),
    }
}

fn kept() -> Kept<Chore> {
    Kept {
        course: Course {
            begun_s: 1000,
            ended_s: 1010,
            ..Course::new("a", 1000)
        },
        own: every(900),
    }
}

fn state() -> (tempfile::TempDir, Arc<State>) {
    let directory = tempfile::tempdir().unwrap();
    let state = Arc::new(State::open(directory.path()).unwrap());
    (directory, state)
}

#[test]
fn they_outlive_the_server_and_what_is_not_understood_stays() {
    let (directory, state) = state();
    let again = || {
        let table = Table::<Chore>::load(&state);
        let entries = table.lock();
        let kept = entries.values().map(|entry| entry.kept.clone());
        kept.collect::<Vec<_>>()
    };
    let table = Table::<Chore>::load(&state);
    table
        .put(&mut table.lock(), kept(), "cannot keep it")
        .unwrap();
    assert_eq!(again(), [kept()]);
    let other = Kept {
        own: every(60),
        ..kept()
    };
    table
        .put(&mut table.lock(), other.clone(), "cannot keep it")
        .unwrap();
    assert_eq!(again(), [other]);
    assert!(table.known().is_ok() && table.problem().is_none());
    let path = directory.path().join(Chore::FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    let half = &text[..text.len() / 2];
    std::fs::write(&path, half).unwrap();
    let table = Table::<Chore>::load(&state);
    let refused = table
        .put(&mut table.lock(), kept(), "cannot keep it")
        .unwrap_err();
    assert!(refused.message.contains("stays"), "{refused}");
    // Nobody is told of what would be gone with the next start, or that there is nothing.
    assert!(table.lock().is_empty());
    let told = table.known().map(|_| ()).unwrap_err();
    assert!(told.message.contains("chores.json"), "{told}");
    assert!(table.problem().is_some_and(|problem| !problem.is_read));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), half);
}

/// Goal: once a clock that was ahead is set right, runs are as far apart as ever.
#[test]
fn a_clock_that_was_ahead_holds_nothing_up() {
    let (_directory, state) = state();
    for failures in [0, 3] {
        let table = Table::<Chore>::load(&state);
        let mut ahead = kept();
        (ahead.course.begun_s, ahead.course.ended_s) = (9_000_000, 9_000_010);
        ahead.course.failures = failures;
        table.lock().insert("a".into(), Entry::new(ahead));
        assert_eq!(table.due(1500).0, [""; 0]);
        let (due, _) = (1501..=1500 + 900)
            .map(|now_s| table.due(now_s))
            .find(|(due, _)| !due.is_empty())
            .expect("it is due");
        assert_eq!(due, ["a"]);
    }
}

#[test]
fn what_is_being_removed_is_left_alone() {
    let mut entry = Entry::new(kept());
    assert!(entry.check_stays().is_ok());
    entry.is_removed = true;
    let refused = entry.check_stays().unwrap_err();
    assert_eq!(refused.kind, FailureKind::Busy);
}

#[test]
fn what_was_cut_off_is_due_and_what_rests_is_not() {
    assert_eq!(kept().next_s(1500), Some(1900));
    let mut cut_off = kept();
    cut_off.course.ends(Ended::Canceled { goes_on: true }, 1400);
    assert_eq!(cut_off.next_s(1500), Some(1500));
    cut_off.course.is_paused = true;
    assert_eq!(cut_off.next_s(1500), None);
    let mut stopped = kept();
    stopped
        .course
        .ends(Ended::Canceled { goes_on: false }, 1400);
    assert_eq!(stopped.next_s(1500), Some(1900));
    let mut asked_for = kept();
    asked_for.own.when = None;
    asked_for.course.failures = 3;
    assert_eq!(asked_for.next_s(1_000_000), None);
}

/// Goal: over some months, with a clock that the test has, in which the server is away for days,
/// runs come at their times, once for all that were missed, and more often only while they fail.
#[test]
fn months_go_by() {
    let (_directory, state) = state();
    let table = Table::<Chore>::load(&state);
    let start_s = 1_704_067_200;
    let whens = [
        ("daily", ScheduleWhen::Day { hour: 2, minute: 0 }),
        ("hourly", ScheduleWhen::Hour { minute: 30 }),
    ];
    for (name, when) in whens {
        let kept = Kept {
            course: Course::new(name, start_s),
            own: Chore { when: Some(when) },
        };
        table.put(&mut table.lock(), kept, "cannot").unwrap();
    }
    let mut runs: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let away = 40 * 24 * HOUR_S..44 * 24 * HOUR_S;
    let bad = 70 * 24 * HOUR_S..71 * 24 * HOUR_S;
    for passed_s in (0..100 * 24 * HOUR_S).step_by(60) {
        if away.contains(&passed_s) {
            continue;
        }
        let now_s = start_s + passed_s;
        for name in table.due(now_s).0 {
            let mut entries = table.lock();
            let course = &mut entries.get_mut(&name).unwrap().kept.course;
            course.begins(now_s);
            course.ends(
                match bad.contains(&passed_s) && name == "daily" {
                    true => Ended::Failed,
                    false => Ended::Well,
                },
                now_s,
            );
            runs.entry(name).or_default().push(passed_s);
        }
    }
    let within = |name: &str, days: std::ops::Range<u64>| {
        let all = runs[name].iter();
        let inside = all.filter(|at| days.contains(&(**at / (24 * HOUR_S))));
        inside.count()
    };
    assert_eq!((within("daily", 0..40), within("hourly", 0..40)), (40, 960));
    // At once when the server is back, and then as ever.
    for name in ["daily", "hourly"] {
        let mut back = runs[name].iter().filter(|at| **at >= away.start);
        assert_eq!(back.next(), Some(&away.end), "{name}");
    }
    assert!((96..=97).contains(&within("hourly", 44..48)));
    assert!((4..=5).contains(&within("daily", 44..48)));
    // One that fails is tried again, ever more rarely; the other does not care.
    let tries = within("daily", 70..71);
    assert!((6..20).contains(&tries), "{tries}");
    assert_eq!(within("hourly", 70..71), 24);
    assert_eq!(within("daily", 80..100), 20);
    assert_eq!(table.lock()["daily"].kept.course.failures, 0);
}

#[test]
fn whoever_stops_or_removes_one_waits_for_its_end() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_directory, state) = state();
        let table = Arc::new(Table::<Chore>::load(&state));
        let jobs = Jobs::new(Arc::default());
        table.put(&mut table.lock(), kept(), "cannot").unwrap();
        let begin = || {
            table.begin("a", |_| {
                Arc::new(jobs.begin(api::JobKind::Replicate, None, None, true))
            })
        };
        let begun = begin().unwrap();
        assert_eq!(begin().err().unwrap().kind, FailureKind::Busy);
        let running = Arc::clone(&table);
        let run = tokio::spawn(async move {
            while !begun.work.is_canceled() {
                tokio::task::yield_now().await;
            }
            let stopped = Failure::new(FailureKind::Canceled, "stopped");
            running.end(&begun, Some(&stopped), false, |_| {});
            begun.over();
        });
        table.pause(&jobs, "a", true, |_| {}).await.unwrap();
        run.await.unwrap();
        assert_eq!(table.due(u64::MAX / 2).0, [""; 0]);
        table.pause(&jobs, "a", false, |_| {}).await.unwrap();
        // It goes on where it was.
        assert_eq!(table.due(now_s()).0, ["a"]);
        table.remove(&jobs, "a", |_| Ok(())).await.unwrap();
        let gone = table.remove(&jobs, "a", |_| Ok(())).await.unwrap_err();
        assert_eq!(gone.kind, FailureKind::NotFound);
        assert_eq!(begin().err().unwrap().kind, FailureKind::NotFound);
    });
}
