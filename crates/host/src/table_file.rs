//! Tables that the server keeps in files of the state directory: the list of pools, replications,
//! schedules.
//!
//! A file is replaced whole ([`device::private`]), so a crash leaves the old table or the new one.
//! What could not be read at the start, or is not understood (damage, a file of a later release),
//! is somebody's all the same: it stays untouched, the part whose table it is does nothing, and
//! people are told ([`TableFile::problem`]) until a start can read it.
//!
//! A table has one writer at a time: who calls sees to that. `unwritten` is short.

use std::path::{Path, PathBuf};

use api::{Alert, AlertFact, AlertRule, AlertSeverity, StatePart};
use device::private::{self, FileError};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is wrong with a file of the state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// The file.
    pub path: PathBuf,
    /// In a sentence that says what to do.
    pub why: String,
    /// It was read, and could not be written later; otherwise its part does nothing.
    pub is_read: bool,
}

impl FileProblem {
    /// One that could not be read at the start.
    pub fn unread(path: &Path, why: &str) -> Self {
        Self {
            path: path.to_owned(),
            why: why.to_owned(),
            is_read: false,
        }
    }

    /// What people are told of it.
    pub fn alert(self, part: StatePart) -> Alert {
        Alert {
            rule: AlertRule::State,
            severity: AlertSeverity::Critical,
            pool: String::new(),
            pool_guid: api::Guid(0),
            device_guid: None,
            disk: None,
            fact: AlertFact::StateFile {
                part,
                path: self.path.to_string_lossy().into_owned(),
                why: self.why,
                is_read: self.is_read,
            },
        }
    }
}

/// Why a table was not kept.
#[derive(Debug, thiserror::Error)]
pub enum NotKept {
    /// It could not be read at the start.
    #[error("what is there could not be read as the server started, and stays: {0}")]
    Unread(String),
    /// The system did not let it be written.
    #[error(transparent)]
    Unwritten(#[from] FileError),
}

/// A table's file.
#[derive(Debug)]
pub struct TableFile {
    path: PathBuf,
    unread: Option<String>,
    /// Why it could not be written when that was last tried.
    unwritten: Mutex<Option<String>>,
}

impl TableFile {
    /// Reads a table; an empty one where there is no file, or none that is understood. `what` is
    /// what is in it, for people, in the plural.
    pub fn load<T: DeserializeOwned + Default>(path: PathBuf, what: &'static str) -> (T, Self) {
        let (table, unread) = match private::read_json(&path, what) {
            Ok(table) => (table.unwrap_or_default(), None),
            Err(error) => {
                tracing::error!("{error}; until a start can read it nothing is written there");
                (T::default(), Some(error.to_string()))
            }
        };
        let file = Self {
            path,
            unread,
            unwritten: Mutex::default(),
        };
        (table, file)
    }

    /// Replaces the table.
    ///
    /// # Errors
    /// [`NotKept::Unread`], and nothing is touched; [`NotKept::Unwritten`], and the old one is
    /// there.
    pub fn write<T: Serialize + ?Sized>(&self, table: &T) -> Result<(), NotKept> {
        if let Some(why) = &self.unread {
            return Err(NotKept::Unread(why.clone()));
        }
        let written = private::write_json(&self.path, table).map_err(FileError::write(&self.path));
        *self.unwritten.lock() = written.as_ref().err().map(ToString::to_string);
        Ok(written?)
    }

    /// Why nothing of it was read at the start.
    pub fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    /// What is wrong with it now.
    pub fn problem(&self) -> Option<FileProblem> {
        if let Some(why) = &self.unread {
            return Some(FileProblem::unread(&self.path, why));
        }
        let why = self.unwritten.lock().clone()?;
        Some(FileProblem {
            path: self.path.clone(),
            why,
            is_read: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(path: &Path) -> (Vec<u32>, TableFile) {
        TableFile::load(path.to_owned(), "numbers")
    }

    #[test]
    fn what_is_not_understood_stays_and_is_told_until_a_start_can_read_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("table.json");
        let (found, file) = table(&path);
        assert!(found.is_empty() && file.problem().is_none());
        file.write(&[1, 2]).expect("written");
        assert_eq!(table(&path).0, [1, 2]);
        // Damage, an empty file, and a later release's.
        for text in ["[1,", "", r#"{"version": 2, "numbers": [1]}"#] {
            std::fs::write(&path, text).expect("a file");
            let (found, file) = table(&path);
            assert!(found.is_empty());
            for _ in 0..2 {
                let refused = file.write(&[3]).expect_err("it is not understood");
                assert!(refused.to_string().contains("stays"), "{refused}");
            }
            let problem = file.problem().expect("it is told");
            assert!(!problem.is_read && problem.path == path, "{problem:?}");
            assert_eq!(std::fs::read_to_string(&path).expect("it"), text);
            assert_eq!(directory.path().read_dir().expect("it").count(), 1);
        }
        std::fs::write(&path, "[4]").expect("a file");
        let (found, file) = table(&path);
        assert!(found == [4] && file.problem().is_none());
    }

    #[test]
    fn what_cannot_be_read_is_not_written_over_when_it_could_be() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("table.json");
        std::fs::create_dir(&path).expect("something that is no file");
        let (_, file) = table(&path);
        std::fs::remove_dir(&path).expect("removed");
        std::fs::write(&path, "[1]").expect("a file");
        file.write(&[2]).expect_err("it was not read");
        assert_eq!(table(&path).0, [1]);
    }

    #[test]
    fn that_it_could_not_be_written_is_told_until_it_can_be() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("table.json");
        let (_, file) = table(&path);
        let in_the_way = directory.path().join("table.json.new");
        std::fs::create_dir(&in_the_way).expect("made");
        file.write(&[1]).expect_err("in the way");
        assert!(file.problem().is_some_and(|problem| problem.is_read));
        std::fs::remove_dir(&in_the_way).expect("removed");
        file.write(&[1]).expect("written");
        assert_eq!(file.problem(), None);
    }
}
