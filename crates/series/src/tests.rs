//! Goal: what was counted is told the same by every ring, through restarts and crashes, and never
//! takes more space than it may. Method: samples of known amounts in a directory, whose files are
//! then damaged.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use crate::file::size_bytes;
use crate::{BUCKETS, Column, Key, Sample, Shape, Span, Store};

static SHAPES: [Shape; 2] = [
    Shape {
        name: "disk",
        columns: &[Column::Amount, Column::Amount, Column::Level],
        histograms: 2,
        rank: 1,
        limit_bytes: u64::MAX,
    },
    Shape {
        name: "client",
        columns: &[Column::Amount, Column::Amount],
        histograms: 0,
        rank: 2,
        limit_bytes: 20_000_000,
    },
];
const LIMIT_BYTES: u64 = 49_000_000;
/// A moment at which a period of each ring begins.
const START_S: u64 = 1_750_000_000 / 43_200 * 43_200;

fn open(directory: &Path) -> Store {
    let (store, opened) = Store::open(directory, &SHAPES, LIMIT_BYTES);
    assert!(opened.errors.is_empty(), "{:?}", opened.errors);
    store
}

fn key(shape: &'static str, name: &str) -> Key {
    Key {
        shape,
        names: vec!["tank".into(), name.into()],
    }
}

fn disk(name: &str, bytes: f64) -> (Key, String, Sample) {
    let mut histogram = [0; BUCKETS];
    histogram[5] = 3;
    let sample = Sample {
        covered_ms: 10_000,
        columns: vec![bytes, 1.0, 4.0],
        peaks: vec![None, None, Some(9.0)],
        histograms: vec![histogram, [0; BUCKETS]],
    };
    (key("disk", name), format!("/dev/{name}"), sample)
}

fn client(name: &str) -> (Key, String, Sample) {
    let sample = Sample {
        covered_ms: 10_000,
        columns: vec![1.0, 2.0],
        peaks: Vec::new(),
        histograms: Vec::new(),
    };
    (key("client", name), String::new(), sample)
}

fn take(store: &Store, time_s: u64, samples: &[(Key, String, Sample)]) -> usize {
    let taken = store.take(time_s, samples);
    assert!(taken.errors.is_empty(), "{:?}", taken.errors);
    taken.left_out
}

/// What a ring tells of the first column.
fn total(store: &Store, key: &Key, span: Span, now_s: u64) -> f64 {
    let points = store.read(key, span, now_s).expect("a series");
    points.iter().map(|point| point.figures[0].value).sum()
}

/// What all files of a directory have, as the filesystem tells it.
fn bytes_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum()
}

#[test]
fn every_ring_tells_the_same_also_of_what_is_not_over() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    let key = key("disk", "a");
    let mut sum = 0.0;
    for round in 0..=355u64 {
        let now_s = START_S + 10 * round + 3;
        let bytes = (round % 17) as f64 * 1e6;
        sum += bytes;
        assert_eq!(take(&store, now_s, &[disk("a", bytes)]), 0);
        // A restart changes nothing, wherever it comes.
        if round % 100 == 57 {
            assert!(store.flush().errors.is_empty());
            store = open(directory.path());
        }
        for span in Span::ALL {
            let told = total(&store, &key, span, now_s);
            assert!((told - sum).abs() <= sum * 1e-6, "{span:?}: {told} {sum}");
        }
    }
    let now_s = START_S + 3600;
    let points = store.read(&key, Span::Month, now_s).unwrap();
    assert_eq!(points.len(), 1);
    let [bytes, _, level] = points[0].figures[..] else {
        panic!("three columns");
    };
    assert_eq!((bytes.most, level.value, level.most), (1.6e6, 4.0, 9.0));
    let counted = points[0].histograms[0][5];
    assert!(counted.abs_diff(356 * 3) * 100 < 6 * 356 * 3, "{counted}");
    assert!(points[0].histograms[1].iter().all(|count| *count == 0));
    let label = &store.list()[0].label;
    assert_eq!((label.as_str(), store.list().len()), ("/dev/a", 1));
}

#[test]
fn old_points_leave_the_fine_rings_and_stay_in_the_coarse_ones() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let key = key("disk", "a");
    // A sample each hour for two years.
    let hours = 2 * 366 * 24u64;
    for hour in 0..hours {
        take(&store, START_S + 3600 * hour + 5, &[disk("a", 1.0)]);
    }
    let now_s = START_S + 3600 * (hours - 1) + 6;
    let counts = Span::ALL.map(|span| total(&store, &key, span, now_s));
    assert_eq!(counts, [1.0, 24.0, 7.0 * 24.0, 31.0 * 24.0, 366.0 * 24.0]);
    let of_year = store.read(&key, Span::Year, now_s).unwrap();
    assert_eq!(of_year.len(), Span::Year.points() as usize);
    let starts: Vec<u64> = of_year.iter().map(|p| p.start_s(Span::Year)).collect();
    assert!(starts.windows(2).all(|two| two[1] - two[0] == 43_200));
    assert_eq!(bytes_in(directory.path()), size_bytes(&SHAPES[0]));
    assert!(
        store
            .read(
                &super::Key {
                    shape: "disk",
                    names: vec![]
                },
                Span::Day,
                0
            )
            .is_none()
    );
}

#[test]
fn a_year_of_many_disks_and_clients_takes_no_more_than_it_may() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let fits = |shape: &Shape, bytes: u64| (bytes / size_bytes(shape)) as usize;
    let disks = 60;
    // Each half day some clients come that nobody has seen before, and all of the others are gone.
    for half_day in 0..2 * 366u64 {
        let now_s = START_S + 43_200 * half_day + 1;
        let mut samples: Vec<_> = (0..disks).map(|n| disk(&format!("d{n}"), 1.0)).collect();
        samples.extend((0..7).map(|n| client(&format!("c{half_day}-{n}"))));
        assert_eq!(take(&store, now_s, &samples), 0);
        if half_day % 61 == 0 {
            assert!(bytes_in(directory.path()) <= LIMIT_BYTES);
        }
    }
    let now_s = START_S + 43_200 * (2 * 366 - 1) + 2;
    let of_clients = fits(&SHAPES[1], SHAPES[1].limit_bytes);
    let known = store.list();
    let clients = known.iter().filter(|known| known.key.shape == "client");
    // Those that were seen last are there.
    assert_eq!(clients.clone().count(), of_clients);
    let oldest = clients.map(|client| client.seen_s).min().unwrap();
    assert!(oldest >= now_s - 43_200 * (of_clients as u64 / 7 + 1));
    for n in 0..disks {
        let key = key("disk", &format!("d{n}"));
        assert_eq!(total(&store, &key, Span::Year, now_s), 2.0 * 366.0);
    }
    let total = bytes_in(directory.path());
    assert!(total <= LIMIT_BYTES && total == store.size_bytes());

    // More disks push out clients that are alive, and then nothing that is.
    let most = fits(&SHAPES[0], LIMIT_BYTES);
    let mut samples: Vec<_> = (0..most + 5).map(|n| disk(&format!("d{n}"), 1.0)).collect();
    let alive = known.iter().filter(|known| known.key.shape == "client");
    let names: Vec<_> = alive.map(|known| known.key.names[1].clone()).collect();
    samples.extend(names.iter().map(|name| client(name)));
    let left_out = take(&store, now_s + 10, &samples);
    assert_eq!(left_out, 5);
    let known = store.list();
    let of_disks = known.iter().filter(|known| known.key.shape == "disk");
    assert_eq!(of_disks.count(), most);
    assert!(bytes_in(directory.path()) <= LIMIT_BYTES);
    // Those that are gone make room.
    samples.truncate(most);
    samples.push(disk("late", 1.0));
    assert_eq!(take(&store, now_s + 20, &samples), 1);
    assert_eq!(take(&store, now_s + 30, &samples[1..]), 0);
    let gone = store.read(&key("disk", "d0"), Span::Hour, now_s + 30);
    assert!(gone.is_none() && store.size_bytes() <= LIMIT_BYTES);
}

#[test]
fn a_crash_costs_two_minutes_at_most() {
    let (directory, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(directory.path());
    let key = key("disk", "a");
    for round in 0..400u64 {
        take(&store, START_S + 10 * round, &[disk("a", 1.0)]);
    }
    for entry in fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), after.path().join(entry.file_name())).unwrap();
    }
    let store = open(after.path());
    let lost = 400.0 - total(&store, &key, Span::Day, START_S + 4000);
    assert!((0.0..12.0).contains(&lost), "{lost}");
    // It goes on, and what is lost stays lost.
    take(&store, START_S + 4000, &[disk("a", 1.0)]);
    let wanted = 401.0 - lost;
    assert_eq!(total(&store, &key, Span::Year, START_S + 4000), wanted);
}

#[test]
fn coarse_points_that_a_crash_kept_from_being_written_are_made_up() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let key = key("disk", "a");
    for round in 0..30u64 {
        take(&store, START_S + 10 * round, &[disk("a", 1.0)]);
    }
    store.flush();
    let path = directory.path().join("0.series");
    let mut bytes = fs::read(&path).unwrap();
    // The ring of a day is lost.
    let point = SHAPES[0].point_bytes();
    let from = 4096 + Span::Day.points_before() as usize * point;
    bytes[from..from + Span::Day.points() as usize * point].fill(0);
    fs::write(&path, bytes).unwrap();
    let store = open(directory.path());
    take(&store, START_S + 300, &[disk("a", 1.0)]);
    let told = total(&store, &key, Span::Day, START_S + 300);
    assert_eq!(told, 31.0 - 12.0);
}

#[test]
fn clocks_that_are_put_back_stop_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let key = key("disk", "a");
    for now_s in [START_S + 9000, START_S + 9001, START_S + 50, START_S + 60] {
        take(&store, now_s, &[disk("a", 1.0)]);
    }
    assert_eq!(total(&store, &key, Span::Hour, START_S + 60), 2.0);
    assert_eq!(total(&store, &key, Span::Day, START_S + 60), 2.0);
    store.flush();
    let store = open(directory.path());
    take(&store, START_S + 70, &[disk("a", 1.0)]);
    assert_eq!(total(&store, &key, Span::Hour, START_S + 70), 3.0);
}

#[test]
fn what_is_no_series_does_not_stay_and_what_is_not_ours_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let store = open(directory.path());
    take(&store, START_S, &[disk("a", 1.0), disk("b", 1.0)]);
    store.flush();
    fs::write(path("7.series"), "nothing of ours").unwrap();
    fs::write(path("notes.txt"), "a person's").unwrap();
    // One that was cut, and two of the same.
    fs::copy(path("0.series"), path("9.series")).unwrap();
    let half = fs::read(path("1.series")).unwrap();
    fs::write(path("1.series"), &half[..half.len() / 2]).unwrap();
    let (store, opened) = Store::open(directory.path(), &SHAPES, LIMIT_BYTES);
    assert_eq!(opened.removed.len(), 3, "{opened:?}");
    assert!(path("notes.txt").exists());
    assert_eq!(store.list().len(), 1);
    // Nor does it take an old file for a new one.
    take(&store, START_S + 10, &[disk("a", 1.0), disk("c", 1.0)]);
    assert!(path("10.series").exists());
    assert_eq!(
        total(&store, &key("disk", "a"), Span::Hour, START_S + 10),
        2.0
    );

    // A directory that cannot be made is told of, and keeps nothing.
    let nowhere = path("notes.txt").join("below");
    let (store, opened) = Store::open(&nowhere, &SHAPES, LIMIT_BYTES);
    assert!(!opened.errors.is_empty());
    assert_eq!(store.take(START_S, &[disk("a", 1.0)]).errors.len(), 1);
    assert!(store.list().is_empty());
    // One with a lower limit lets go of what is too much.
    let (store, _) = Store::open(directory.path(), &SHAPES, size_bytes(&SHAPES[0]));
    assert_eq!(store.list().len(), 1);
}

proptest! {
    /// Whatever a crash or a disk made of the files: the store opens, tells no point that was not
    /// there, and goes on.
    #[test]
    fn damaged_files_are_lived_with(
        damage in prop::collection::vec((0usize..3, any::<u32>(), any::<u8>(), 1usize..3000), 1..6)
    ) {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let names = ["a", "b", "c"];
        let all = || names.map(|name| disk(name, 1.0));
        for round in 0..60u64 {
            take(&store, START_S + 10 * round, &all());
        }
        store.flush();
        for (which, at, byte, length) in damage {
            let path = directory.path().join(format!("{which}.series"));
            let mut bytes = fs::read(&path).unwrap();
            // Most of it where there is something.
            let at = at as usize % 16_384;
            let end = (at + length).min(bytes.len());
            match byte {
                0..32 => bytes.truncate(at),
                _ => bytes[at.min(end)..end].fill(byte),
            }
            fs::write(&path, bytes).unwrap();
        }
        let (store, opened) = Store::open(directory.path(), &SHAPES, LIMIT_BYTES);
        prop_assert!(opened.errors.is_empty());
        prop_assert_eq!(store.take(START_S + 600, &all()).errors.len(), 0);
        for name in names {
            let key = key("disk", name);
            let told = total(&store, &key, Span::Hour, START_S + 600);
            prop_assert!((1.0..=61.0).contains(&told));
        }
    }
}
