//! Reports that are kept in the state directory: a list, and a file for each.

use std::path::{Path, PathBuf};

use api::{BenchGetReply, BenchKept, BenchListReply, BenchWanted, Empty, Failure, FailureKind};
use bench::Report;
use bench::compare::{Comparison, compare};
use device::private;
use host::table_file::TableFile;
use parking_lot::Mutex;

/// Reports that are kept; the oldest goes when there is one more.
const KEPT_MAX: usize = 64;

/// The reports.
pub(super) struct Kept {
    directory: PathBuf,
    /// The oldest first.
    list: Mutex<Vec<BenchKept>>,
    file: TableFile,
}

impl Kept {
    /// Reads the list of a directory, which need not be there.
    pub(super) fn load(directory: &Path) -> Self {
        let path = directory.join("reports.json");
        let (list, file) = TableFile::load::<Vec<BenchKept>>(path, "reports of measurements");
        Self {
            directory: directory.to_owned(),
            list: Mutex::new(list),
            file,
        }
    }

    /// Where a report is.
    fn path(&self, id: u64) -> PathBuf {
        self.directory.join(format!("report-{id}.json"))
    }

    /// Whether a report could be kept now.
    ///
    /// # Errors
    /// The list cannot be written, or was not read.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let list = self.list.lock();
        self.file.write(&*list).map_err(|error| {
            let message = format!("no report could be kept, so nothing is measured: {error}");
            Failure::new(FailureKind::Io, message)
        })
    }

    /// Keeps a report; its number.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn keep(&self, wanted: BenchWanted, report: Report) -> Result<u64, Failure> {
        let unkept = |why: String| {
            let message = format!("the report of the measurement is not kept: {why}");
            Failure::new(FailureKind::Io, message)
        };
        let mut list = self.list.lock();
        let id = list.last().map_or(0, |last| last.id) + 1;
        let one = summary(id, &wanted, &report);
        let whole = BenchGetReply { wanted, report };
        // The file first: what is on the list is there.
        let written = private::write_json(&self.path(id), &whole);
        written.map_err(|error| unkept(error.to_string()))?;
        let mut next = list.clone();
        next.push(one);
        let old: Vec<BenchKept> = next.drain(..next.len().saturating_sub(KEPT_MAX)).collect();
        let noted = self.file.write(&next);
        noted.map_err(|error| unkept(error.to_string()))?;
        *list = next;
        for one in old {
            self.remove_file(one.id);
        }
        Ok(id)
    }

    fn remove_file(&self, id: u64) {
        let path = self.path(id);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(%error, "{} stays", path.display());
        }
    }

    /// All of them.
    pub(super) fn list(&self) -> BenchListReply {
        BenchListReply {
            reports: self.list.lock().iter().rev().cloned().collect(),
            most: KEPT_MAX as u64,
        }
    }

    /// One of them.
    ///
    /// # Errors
    /// There is none of this number, or it cannot be read.
    pub(super) fn get(&self, id: u64) -> Result<BenchGetReply, Failure> {
        let list = self.list.lock();
        if !list.iter().any(|one| one.id == id) {
            return Err(no_such(id));
        }
        let found = private::read_json(&self.path(id), "figures of a report");
        let found = found.map_err(|error| Failure::new(FailureKind::Io, error.to_string()))?;
        found.ok_or_else(|| no_such(id))
    }

    /// Forgets one of them.
    ///
    /// # Errors
    /// There is none of this number, or the list cannot be written.
    pub(super) fn remove(&self, id: u64) -> Result<Empty, Failure> {
        let mut list = self.list.lock();
        let mut next = list.clone();
        next.retain(|one| one.id != id);
        if next.len() == list.len() {
            return Err(no_such(id));
        }
        self.file.write(&next).map_err(|error| {
            let message = format!("cannot forget report {id}: {error}");
            Failure::new(FailureKind::Io, message)
        })?;
        *list = next;
        self.remove_file(id);
        Ok(Empty {})
    }

    /// Two of them side by side.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(super) fn compare(&self, before: u64, after: u64) -> Result<Comparison, Failure> {
        let (before, after) = (self.get(before)?, self.get(after)?);
        Ok(compare(&before.report, &after.report))
    }
}

fn no_such(id: u64) -> Failure {
    let message = format!("there is no report {id} of a measurement; list them");
    Failure::new(FailureKind::NotFound, message)
}

fn summary(id: u64, wanted: &BenchWanted, report: &Report) -> BenchKept {
    let most = |of: fn(&bench::report::Measured) -> f64| {
        let all = report.tests.iter().map(of);
        all.reduce(f64::max)
    };
    BenchKept {
        id,
        began_s: report.began,
        dataset: wanted.dataset.clone(),
        profile: wanted.profile,
        is_volume: wanted.is_volume,
        size_bytes: report.area.size_bytes,
        iops_max: most(|one| one.iops),
        rate_max: most(|one| one.rate),
        streams: report.streams.as_ref().map(|streams| streams.most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::job::Times;
    use bench::{Area, Place, Profile};

    fn wanted() -> BenchWanted {
        BenchWanted {
            dataset: "tank".into(),
            profile: Profile::Sio,
            is_volume: false,
            block_bytes: None,
            compression: None,
            size_bytes: None,
            depths: Vec::new(),
            seconds: None,
            warm_up_seconds: None,
            total_seconds: None,
            stream_rate: None,
        }
    }

    fn report(began: u64) -> Report {
        Report {
            kind: bench::report::KIND.into(),
            fio: "fio-3.33".into(),
            began,
            target: "tank".into(),
            profile: Profile::Sio,
            area: Area {
                place: Place::File {
                    path: "/data".into(),
                    is_direct: true,
                },
                size_bytes: 1 << 30,
                is_read_only: false,
            },
            times: Times {
                seconds: 90,
                warm_up_seconds: 60,
            },
            notes: Vec::new(),
            tests: Vec::new(),
            streams: None,
            warm_up: None,
            jobs: Vec::new(),
        }
    }

    /// Goal: reports are there after a restart, and no more than there may be. Method: one more
    /// than that is kept; the first is gone, with its file.
    #[test]
    fn as_many_reports_are_kept_as_may_be() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = Kept::load(directory.path());
        for at in 0..=KEPT_MAX as u64 {
            let id = kept.keep(wanted(), report(at)).expect("kept");
            assert_eq!(id, at + 1);
        }
        let again = Kept::load(directory.path());
        let told = again.list().reports;
        assert_eq!(told.len(), KEPT_MAX);
        assert_eq!((told[0].id, told[0].began_s), (65, 64));
        assert_eq!(again.get(2).expect("kept").report, report(1));
        assert_eq!(again.get(1).unwrap_err().kind, FailureKind::NotFound);
        assert!(!again.path(1).exists());
    }

    /// Goal: that no report can be kept is known before there is one. Method: a list that was not
    /// understood, which nothing replaces.
    #[test]
    fn a_list_that_cannot_be_written_is_found_out_before() {
        let directory = tempfile::tempdir().expect("a directory");
        Kept::load(directory.path()).check().expect("a new list");
        std::fs::write(directory.path().join("reports.json"), "{").expect("written");
        let told = Kept::load(directory.path()).check().unwrap_err();
        assert!(told.message.contains("nothing is measured"), "{told}");
        let kept = std::fs::read(directory.path().join("reports.json"));
        assert_eq!(kept.expect("read"), b"{");
    }

    /// Goal: what is forgotten is gone from the list and from disk, and its number is not used
    /// again while there are later ones.
    #[test]
    fn a_report_is_forgotten_with_its_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let kept = Kept::load(directory.path());
        kept.keep(wanted(), report(1)).expect("kept");
        kept.keep(wanted(), report(2)).expect("kept");
        kept.remove(1).expect("forgotten");
        assert_eq!(kept.remove(1).unwrap_err().kind, FailureKind::NotFound);
        assert!(!kept.path(1).exists() && kept.path(2).exists());
        assert_eq!(kept.keep(wanted(), report(3)).expect("kept"), 3);
        let told = kept.compare(2, 3).expect("both");
        assert_eq!((told.before.as_str(), told.tests.len()), ("tank", 0));
        assert!(kept.compare(1, 3).is_err());
    }
}
