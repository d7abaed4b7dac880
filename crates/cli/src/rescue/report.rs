//! What a rescue brought out and what is lost: collected while it goes on, printed as text or JSON.

use std::fmt::Write as _;
use std::ops::Range;

use pool::{Salvage, SalvagedDataset};
use serde::Serialize;

/// Lines of one kind that the text shows for a dataset; JSON has all.
const SHOWN_MAX: usize = 100;

/// The outcome of a rescue.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The pool's name.
    pub pool: String,
    /// Its identity.
    pub guid: u64,
    /// Transaction group of the uberblock that was taken.
    pub txg: u64,
    /// When it was written, in seconds since the epoch.
    pub timestamp: u64,
    /// The newest uberblock's transaction group.
    pub newest_txg: Option<u64>,
    /// An older state than the newest was taken because that cannot be read.
    pub is_rewound: bool,
    /// Top-level vdevs that are missing.
    pub missing_vdevs: Vec<String>,
    /// What is lost of the pool's own structures.
    pub pool_problems: Vec<Lost>,
    /// One for each dataset that was chosen.
    pub datasets: Vec<DatasetReport>,
    /// Stopped before the end by a signal.
    pub interrupted: bool,
}

/// Something that is lost or not as it was.
#[derive(Debug, Clone, Serialize)]
pub struct Lost {
    /// Path in the dataset, or what else it is.
    pub what: String,
    /// The path's bytes in hexadecimal, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what_hex: Option<String>,
    /// Number of the object, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<u64>,
    /// Why.
    pub why: String,
}

/// A file of which parts cannot be read.
#[derive(Debug, Clone, Serialize)]
pub struct Damaged {
    /// Path in the dataset.
    pub path: String,
    /// Its bytes in hexadecimal, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// Number of the object.
    pub object: u64,
    /// Size in bytes.
    pub size: u64,
    /// First byte and byte after the last of each range that cannot be read.
    pub ranges: Vec<[u64; 2]>,
    /// Name under which it was saved with zeros in these ranges; none when it was left out.
    pub saved_as: Option<String>,
    /// Why the first range cannot be read.
    pub why: String,
}

/// The outcome for one dataset.
#[derive(Debug, Default, Serialize)]
pub struct DatasetReport {
    /// Full name.
    pub name: String,
    /// `filesystem`, `volume`, or `unknown`.
    pub kind: &'static str,
    /// Whether it is a snapshot.
    pub snapshot: bool,
    /// Transaction group of its state.
    pub txg: u64,
    /// Space that it refers to, in bytes.
    pub referenced: u64,
    /// Why nothing of it can be read.
    pub problem: Option<String>,
    /// What is to be known besides.
    pub notes: Vec<String>,
    /// Whole files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Devices, pipes and sockets.
    pub specials: u64,
    /// Bytes of content that were read.
    pub bytes: u64,
    /// Files that had been copied before.
    pub kept: u64,
    /// Files with unreadable parts.
    pub damaged: Vec<Damaged>,
    /// Files, directories and names that are lost.
    pub lost: Vec<Lost>,
    /// Files whose directory is lost, with the name that they got.
    pub found: Vec<Lost>,
    /// What could not be stored where it was copied to: existing files, owners, attributes.
    pub not_stored: Vec<Lost>,
}

impl DatasetReport {
    /// Nothing done yet.
    pub fn new(dataset: &SalvagedDataset) -> Self {
        let mut notes = Vec::new();
        if dataset.is_name_lost {
            notes.push("its name is lost".to_owned());
        }
        if dataset.has_log {
            notes.push("its intent log is not replayed".to_owned());
        }
        Self {
            name: dataset.name.clone(),
            kind: dataset.kind.map_or("unknown", |kind| kind.name()),
            snapshot: dataset.is_snapshot,
            txg: dataset.txg.get(),
            referenced: dataset.referenced_bytes,
            problem: dataset.problem.clone(),
            notes,
            ..Self::default()
        }
    }

    /// Whether everything of it came out as it was.
    pub fn is_whole(&self) -> bool {
        self.problem.is_none()
            && self.damaged.is_empty()
            && self.lost.is_empty()
            && self.found.is_empty()
    }
}

impl Lost {
    /// About a path or a thing.
    pub fn new(what: &[u8], object: Option<u64>, why: impl ToString) -> Self {
        let (what, what_hex) = readable(what);
        Self {
            what,
            what_hex,
            object,
            why: why.to_string(),
        }
    }
}

impl Damaged {
    /// A file with `ranges` missing.
    pub fn new(path: &[u8], object: u64, size: u64, ranges: &[Range<u64>], why: String) -> Self {
        let (path, path_hex) = readable(path);
        Self {
            path,
            path_hex,
            object,
            size,
            ranges: ranges
                .iter()
                .map(|range| [range.start, range.end])
                .collect(),
            saved_as: None,
            why,
        }
    }
}

/// Text, and the bytes in hexadecimal where they are no text.
fn readable(bytes: &[u8]) -> (String, Option<String>) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let hex = std::str::from_utf8(bytes).is_err().then(|| {
        bytes.iter().fold(String::new(), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
    });
    (text, hex)
}

impl Report {
    /// Of a pool, without datasets. `is_chosen`: an older state was asked for.
    pub fn new(salvage: &Salvage, is_chosen: bool) -> Self {
        let uberblock = salvage.uberblock();
        Self {
            pool: salvage.name().to_owned(),
            guid: salvage.guid().get(),
            txg: uberblock.txg.get(),
            timestamp: uberblock.timestamp_seconds,
            newest_txg: salvage.newest_txg().map(|txg| txg.get()),
            is_rewound: !is_chosen && salvage.newest_txg() != Some(uberblock.txg),
            missing_vdevs: salvage.missing().to_vec(),
            pool_problems: salvage
                .problems()
                .iter()
                .map(|problem| Lost::new(problem.what.as_bytes(), None, &problem.why))
                .collect(),
            datasets: Vec::new(),
            interrupted: false,
        }
    }

    /// Whether everything that was asked for came out as it was last.
    pub fn is_whole(&self) -> bool {
        let is_newest = |dataset: &DatasetReport| dataset.txg == self.txg;
        !self.interrupted
            && !self.is_rewound
            && self
                .datasets
                .iter()
                .all(|dataset| dataset.is_whole() && is_newest(dataset))
    }

    /// Whether all of what can be read was also stored.
    pub fn is_stored(&self) -> bool {
        self.datasets
            .iter()
            .all(|dataset| dataset.not_stored.is_empty())
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "pool {} (guid {}), state of transaction group {}",
            self.pool, self.guid, self.txg
        );
        if let Some(newest) = self.newest_txg.filter(|newest| *newest != self.txg) {
            let _ = writeln!(out, "  the newest state is of transaction group {newest}");
        }
        for vdev in &self.missing_vdevs {
            let _ = writeln!(out, "  missing: {vdev}");
        }
        some(&mut out, "  damaged", &self.pool_problems, lost_line);
        for dataset in &self.datasets {
            dataset.text(&mut out);
            if dataset.problem.is_none() && dataset.txg != self.txg {
                let txg = dataset.txg;
                let _ = writeln!(
                    out,
                    "  its last state is lost; this is its state of transaction group {txg}"
                );
            }
        }
        if self.interrupted {
            out.push_str("stopped before the end; run the same command again to go on\n");
        } else if self.is_whole() {
            out.push_str("everything could be read\n");
        } else {
            out.push_str("not everything could be read; see above\n");
        }
        if !self.is_stored() {
            out.push_str("not everything could be stored; see above\n");
        }
        out
    }
}

fn lost_line(lost: &Lost) -> String {
    match lost.object {
        Some(object) => format!("{} (object {object}): {}", lost.what, lost.why),
        None => format!("{}: {}", lost.what, lost.why),
    }
}

fn some<T>(out: &mut String, word: &str, list: &[T], line: impl Fn(&T) -> String) {
    for item in list.iter().take(SHOWN_MAX) {
        let _ = writeln!(out, "{word}: {}", line(item));
    }
    if list.len() > SHOWN_MAX {
        let more = list.len() - SHOWN_MAX;
        let _ = writeln!(out, "{word}: {more} more; '--json' shows all");
    }
}

impl DatasetReport {
    fn text(&self, out: &mut String) {
        if let Some(problem) = &self.problem {
            let _ = writeln!(out, "{}: LOST: {problem}", self.name);
            return;
        }
        let state = if self.is_whole() { "whole" } else { "DAMAGED" };
        let _ = writeln!(
            out,
            "{}: {state}: {} files, {} directories, {} links, {} others, {} bytes; {} were there \
             already",
            self.name,
            self.files,
            self.directories,
            self.symlinks + self.hard_links,
            self.specials,
            self.bytes,
            self.kept
        );
        for note in &self.notes {
            let _ = writeln!(out, "  note: {note}");
        }
        some(out, "  lost", &self.lost, lost_line);
        some(out, "  damaged file", &self.damaged, |file| {
            let ranges: Vec<String> = file
                .ranges
                .iter()
                .map(|[start, end]| format!("{start}-{end}"))
                .collect();
            let saved = match &file.saved_as {
                Some(name) => format!("saved as {name}"),
                None => "left out".to_owned(),
            };
            format!(
                "{} (object {}): bytes {} of {} ({}), {saved}",
                file.path,
                file.object,
                ranges.join(", "),
                file.size,
                file.why
            )
        });
        some(out, "  without a directory", &self.found, lost_line);
        some(out, "  not stored", &self.not_stored, lost_line);
    }
}
