//! How a disk was.

use std::path::{Path, PathBuf};

use api::{DiskSample, DiskTested, SelfTest, SmartReport};
use device::private::{self, FileError};
use serde::{Deserialize, Serialize};

/// What files have.
const WHAT: &str = "figures of disks";
/// How far apart samples are at least, in seconds.
const APART_S: u64 = 3600;

/// How many are kept: 30 days of them.
const SAMPLES_MAX: usize = 720;

/// How many tests are kept: a short one each week and a long one each month, for three years.
const TESTS_MAX: usize = 200;

/// For how long the file of a disk is kept that is not there any more, in seconds.
const KEPT_S: u64 = 400 * 24 * 3600;

/// Longest name of a file that is made of a disk's.
const NAME_MAX: usize = 80;

/// Sectors that are bad in one way or another, where the disk counts any.
pub fn bad_sectors(report: &SmartReport) -> Option<u64> {
    let counts = [
        report.reallocated_sectors,
        report.pending_sectors,
        report.uncorrectable_sectors,
    ];
    counts
        .into_iter()
        .flatten()
        .reduce(|sum, count| sum.saturating_add(count))
}

/// Whether a test is under way, by its row of the log: smartmontools calls it "Self-test routine in
/// progress" (ATA) or "Self test in progress ..." (SCSI).
fn is_under_way(test: &SelfTest) -> bool {
    test.passed.is_none() && test.result.to_ascii_lowercase().contains("in progress")
}

/// Whether a disk tests itself.
pub fn is_testing(report: &SmartReport) -> bool {
    report.test_remaining_percent.is_some() || report.tests.first().is_some_and(is_under_way)
}

/// What is before the part of a log, the newest first, that was there earlier. A disk forgets its
/// oldest ones.
fn new_in<'a>(before: &[SelfTest], log: &'a [SelfTest]) -> &'a [SelfTest] {
    let is_rest = |count: &usize| before.starts_with(&log[*count..]);
    let count = (0..=log.len()).find(is_rest).unwrap_or(log.len());
    &log[..count]
}

/// How one disk was: at most one sample an hour, for 30 days of being on; and what its tests came
/// to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// What the disk is known by: names of files are made of it, but it is more than one may hold.
    id: String,
    samples: Vec<DiskSample>,
    /// What the disk's own log of tests had last, the newest first; none before it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log: Option<Vec<SelfTest>>,
    /// Tests that ended since, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tests: Vec<DiskTested>,
}

impl History {
    /// The directory where they are.
    pub fn directory(state: &Path) -> PathBuf {
        state.join("smart")
    }

    fn path(directory: &Path, id: &str) -> PathBuf {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let name = id.chars().take(NAME_MAX);
        let name: String = name.map(|c| if is_plain(c) { c } else { '_' }).collect();
        directory.join(format!("{name}.json"))
    }

    /// Reads that of a disk; an empty one where there is none, or one of another disk.
    ///
    /// # Errors
    /// When there is one that cannot be read, or is not understood.
    pub fn load(directory: &Path, id: &str) -> Result<Self, FileError> {
        let found: Option<Self> = private::read_json(&Self::path(directory, id), WHAT)?;
        let found = found.unwrap_or_default();
        if found.id == id {
            return Ok(found);
        }
        Ok(Self {
            id: id.to_owned(),
            ..Self::default()
        })
    }

    /// Writes it.
    ///
    /// # Errors
    /// Of the system.
    pub fn save(&self, directory: &Path) -> Result<(), FileError> {
        let path = Self::path(directory, &self.id);
        let made = private::make_directory(directory);
        let written = made.and_then(|()| private::write_json(&path, self));
        written.map_err(FileError::write(&path))
    }

    /// The samples, the oldest first.
    pub fn samples(&self) -> &[DiskSample] {
        &self.samples
    }

    /// The tests that ended while somebody looked, the oldest first.
    pub fn tests(&self) -> &[DiskTested] {
        &self.tests
    }

    /// Takes in what a disk has told; whether there is something new to be kept.
    pub fn add(&mut self, report: &SmartReport) -> bool {
        let has_new_tests = self.add_tests(report);
        self.add_sample(report) || has_new_tests
    }

    /// Takes in the disk's log of tests. What is there when it is first seen is of nobody knows
    /// when, and stays in the disk alone.
    fn add_tests(&mut self, report: &SmartReport) -> bool {
        let all = report.tests.iter().filter(|test| !is_under_way(test));
        let log: Vec<SelfTest> = all.cloned().collect();
        if self.log.as_ref() == Some(&log) {
            return false;
        }
        if let Some(before) = &self.log {
            let new = new_in(before, &log).iter().rev();
            self.tests.extend(new.map(|test| DiskTested {
                time_s: report.time_s,
                test: test.clone(),
            }));
            let too_many = self.tests.len().saturating_sub(TESTS_MAX);
            self.tests.drain(..too_many);
        }
        self.log = Some(log);
        true
    }

    /// Takes in how a disk is, unless the last sample is younger than an hour; whether it was.
    fn add_sample(&mut self, report: &SmartReport) -> bool {
        let last = self.samples.last();
        // A clock that was put back does not stop it.
        let is_soon = last.is_some_and(|last| {
            (last.time_s..last.time_s.saturating_add(APART_S)).contains(&report.time_s)
        });
        if is_soon {
            return false;
        }
        self.samples.push(DiskSample {
            time_s: report.time_s,
            temperature_c: report.temperature_c,
            bad_sectors: bad_sectors(report),
            wear_percent: report.wear_percent,
        });
        let too_many = self.samples.len().saturating_sub(SAMPLES_MAX);
        self.samples.drain(..too_many);
        true
    }

    /// By how many the bad sectors of this report are more than those of the oldest sample.
    pub fn new_bad_sectors(&self, report: &SmartReport) -> u64 {
        let oldest = self.samples.iter().find_map(|sample| sample.bad_sectors);
        match (bad_sectors(report), oldest) {
            (Some(now), Some(then)) => now.saturating_sub(then),
            _ => 0,
        }
    }

    /// Removes files of disks that have not been there for longer than a year.
    pub fn remove_old(directory: &Path, now_s: u64) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(Some(found)) = private::read_json::<Self>(&entry.path(), WHAT) else {
                continue;
            };
            let last_s = found.samples.last().map(|sample| sample.time_s);
            if last_s.is_some_and(|last_s| last_s.saturating_add(KEPT_S) < now_s) {
                // It is tried again at the next start.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(time_s: u64, bad: u64) -> SmartReport {
        SmartReport {
            time_s,
            temperature_c: Some(35),
            reallocated_sectors: Some(bad),
            pending_sectors: Some(0),
            ..SmartReport::default()
        }
    }

    #[test]
    fn samples_are_an_hour_apart_and_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = History::directory(directory.path());
        let mut history = History::load(&directory, "WD-1 2/3").expect("none yet");
        assert!(history.add(&report(1000, 0)));
        assert!(!history.add(&report(4599, 0)));
        assert!(history.add(&report(4600, 0)));
        for hour in 0..2000 {
            history.add(&report(10_000 + hour * APART_S, hour));
        }
        assert_eq!(history.samples().len(), SAMPLES_MAX);
        history.save(&directory).expect("written");
        let again = History::load(&directory, "WD-1 2/3").expect("read");
        assert_eq!(again, history);
        // Another disk whose name makes the same file.
        let other = History::load(&directory, "WD-1_2_3").expect("read");
        assert!(other.samples().is_empty());
        let last_s = history.samples().last().expect("one").time_s;
        History::remove_old(&directory, last_s + KEPT_S);
        assert_eq!(
            History::load(&directory, "WD-1 2/3").expect("read"),
            history
        );
        History::remove_old(&directory, last_s + KEPT_S + 1);
        let gone = History::load(&directory, "WD-1 2/3").expect("read");
        assert!(gone.samples().is_empty());
    }

    fn test_at(hours: u64, passed: Option<bool>, result: &str) -> SelfTest {
        SelfTest {
            kind: "Short offline".into(),
            result: result.into(),
            passed,
            at_hours: Some(hours),
        }
    }

    /// Each test is kept once, when it has ended, however the disk's own log moves.
    #[test]
    fn tests_are_kept_once_they_have_ended() {
        let good = |hours| test_at(hours, Some(true), "Completed without error");
        let asked = |time_s, tests: &[SelfTest]| SmartReport {
            time_s,
            tests: tests.to_vec(),
            ..SmartReport::default()
        };
        let mut history = History::default();
        assert!(history.add(&asked(1000, &[good(5)])));
        assert!(history.tests().is_empty(), "it is of nobody knows when");
        let under_way = test_at(6, None, "Self-test routine in progress");
        let report = asked(1001, &[under_way, good(5)]);
        assert!(is_testing(&report) && !is_testing(&asked(1, &[good(5)])));
        assert!(!history.add(&report), "it has not ended");
        let failed = test_at(6, Some(false), "Completed: read failure");
        let log = [failed.clone(), good(5)];
        assert!(history.add(&asked(1002, &log)));
        assert!(!history.add(&asked(1003, &log)));
        // Two at once, one of them as an earlier one; the oldest one is forgotten.
        let log = [failed.clone(), good(7), failed.clone()];
        assert!(history.add(&asked(1004, &log)));
        let told = history.tests().iter();
        let told: Vec<_> = told.map(|one| (one.time_s, one.test.at_hours)).collect();
        assert_eq!(told, [(1002, Some(6)), (1004, Some(7)), (1004, Some(6))]);
        let text = serde_json::to_string(&history).expect("JSON");
        let again: History = serde_json::from_str(&text).expect("it is read");
        assert_eq!(again, history);
        // A disk whose log was emptied has nothing new.
        assert!(history.add(&asked(1005, &[])));
        assert_eq!(history.tests().len(), 3);
        for hours in 0..300 {
            history.add(&asked(2000 + hours, &[good(hours)]));
        }
        assert_eq!(history.tests().len(), TESTS_MAX);
    }

    /// What earlier servers kept is understood.
    #[test]
    fn those_of_old_are_understood() {
        let text = r#"{"id": "Z1", "samples": [{"time_s": 5, "temperature_c": 30}]}"#;
        let history: History = serde_json::from_str(text).expect("it is read");
        assert_eq!((history.samples().len(), history.log), (1, None));
    }

    #[test]
    fn a_clock_that_was_put_back_does_not_stop_it() {
        let mut history = History::default();
        assert!(history.add(&report(1_000_000, 0)));
        assert!(history.add(&report(5000, 0)));
    }

    #[test]
    fn bad_sectors_are_new_against_the_oldest_sample() {
        let mut history = History::default();
        assert_eq!(history.new_bad_sectors(&report(0, 9)), 0);
        // One that does not count them.
        history.add(&SmartReport::default());
        history.add(&report(10_000, 8));
        history.add(&report(20_000, 10));
        assert_eq!(history.new_bad_sectors(&report(20_001, 12)), 4);
        assert_eq!(history.new_bad_sectors(&report(20_001, 7)), 0);
        assert_eq!(history.new_bad_sectors(&SmartReport::default()), 0);
    }
}
