//! What has happened, over restarts of the server: our own events, in `history.jsonl` of the state
//! directory, for its owner alone.
//!
//! Of each job its end alone is there, which says when it began; of scrubs and resilvers what they
//! tell of themselves. How far a job is passes by. Long ones are cut, and the oldest go where all
//! together are many bytes. Lines are appended without a sync: where the host breaks down, the last
//! ones may be lost. One that is not understood is passed over. A file that cannot be read is left
//! as it is, and nothing is added to it.
//!
//! Lock: `state`, short; the file is written under it.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::{Event, EventHistory, EventHistoryReply, EventKind, HistoryEvent, JobKind};
use parking_lot::Mutex;

use service::events::{Events, Wanted};

/// Events that are kept.
const KEPT_MAX: usize = 2000;
/// Bytes of their lines.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Bytes of the file that are read, its last ones; one that is longer is written anew.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Lines until it is tried again to write the file anew, where that failed.
const TRIED_AGAIN: usize = 100;
/// Names that are kept of an event.
const NAMES_MAX: usize = 16;
/// Bytes that are kept of what is said of a failure, or an alert.
const SAYS_BYTES_MAX: usize = 1 << 10;
/// Events that are given at once.
const GIVEN_MAX: usize = 400;
/// The file, in the state directory.
const FILE: &str = "history.jsonl";
/// How often it is looked whether the server has gone.
const LOOKS: Duration = Duration::from_secs(60);

#[derive(Default)]
struct State {
    /// Each with the length of its line.
    kept: VecDeque<(HistoryEvent, usize)>,
    /// Bytes of the lines of those.
    kept_bytes: usize,
    /// Lines of the file, as far as it was read.
    lines: usize,
    file_bytes: u64,
    /// How many lines it had when it could not be written anew; 0 where that did not fail.
    tried_lines: usize,
    /// The last line of the file may be cut off.
    is_cut: bool,
    /// The file is there and cannot be read, so that it is not written either.
    is_unread: bool,
}

impl State {
    fn keep(&mut self, event: HistoryEvent, bytes: usize) {
        self.kept.push_back((event, bytes));
        self.kept_bytes += bytes;
        // The last one stays, for its number.
        while self.kept.len() > KEPT_MAX || self.kept.len() > 1 && self.kept_bytes > KEPT_BYTES_MAX
        {
            let Some((_, bytes)) = self.kept.pop_front() else {
                return;
            };
            self.kept_bytes -= bytes;
        }
    }
}

/// What has happened.
pub(crate) struct History {
    path: PathBuf,
    state: Mutex<State>,
}

/// Whether an event is kept.
fn is_kept(kind: &EventKind) -> bool {
    match kind {
        EventKind::Opened | EventKind::Lagged { .. } | EventKind::Zfs(_) => false,
        EventKind::JobStarted { .. } | EventKind::JobProgress { .. } => false,
        EventKind::JobFinished { job } => !matches!(job.kind, JobKind::Scrub | JobKind::Resilver),
        _ => true,
    }
}

fn line(event: &HistoryEvent) -> io::Result<String> {
    Ok(serde_json::to_string(event)? + "\n")
}

/// Cuts what may be long.
fn shorten(kind: &mut EventKind) {
    let cut = |text: &mut String| text.truncate(text.floor_char_boundary(SAYS_BYTES_MAX));
    match kind {
        EventKind::DatasetsCreated { names } | EventKind::DatasetsDestroyed { names } => {
            names.truncate(NAMES_MAX);
        }
        EventKind::JobFinished { job } => {
            if let Some(failure) = &mut job.failure {
                cut(&mut failure.message);
            }
        }
        EventKind::AlertRaised(alert) | EventKind::AlertOver(alert) => cut(&mut alert.says),
        _ => {}
    }
}

/// The last lines of a file, and its bytes in all.
fn read_last(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let from = bytes.saturating_sub(FILE_BYTES_MAX);
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    if from > 0 {
        // What it begins with is a part of a line.
        let part = text.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        text.drain(..part);
    }
    Ok((text, bytes))
}

impl History {
    /// Reads the file of the state directory.
    pub(crate) fn load(directory: &Path) -> Arc<Self> {
        let path = directory.join(FILE);
        let mut state = State::default();
        let text = match read_last(&path) {
            Ok((text, bytes)) => {
                state.file_bytes = bytes;
                text
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    state.is_unread = true;
                    tracing::error!(
                        "{} cannot be read ({error}); what happens is not written down until the \
                         server is started again",
                        path.display()
                    );
                }
                Vec::new()
            }
        };
        for line in text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            state.lines += 1;
            if let Ok(event) = serde_json::from_slice(line) {
                state.keep(event, line.len() + 1);
            }
        }
        state.is_cut = text.last().is_some_and(|byte| *byte != b'\n');
        let state = Mutex::new(state);
        Arc::new(Self { path, state })
    }

    /// Keeps an event, if it is one to be kept.
    fn add(&self, mut event: Event) -> io::Result<()> {
        if !is_kept(&event.kind) {
            return Ok(());
        }
        shorten(&mut event.kind);
        let mut state = self.state.lock();
        let number = state.kept.back().map_or(1, |(last, _)| last.number + 1);
        let event = HistoryEvent { number, event };
        let mut text = line(&event)?;
        state.keep(event, text.len());
        if state.is_unread {
            return Ok(());
        }
        if state.is_cut {
            text.insert(0, '\n');
        }
        let appended = self.append(&text);
        // Of one that failed a part may be there.
        state.is_cut = appended.is_err();
        state.lines += 1;
        state.file_bytes += text.len() as u64;
        let is_long = state.lines > 2 * KEPT_MAX || state.file_bytes > FILE_BYTES_MAX;
        let is_due = state.tried_lines == 0 || state.lines >= state.tried_lines + TRIED_AGAIN;
        if !is_long || !is_due {
            return appended;
        }
        match self.write_anew(&state) {
            Ok(bytes) => {
                state.lines = state.kept.len();
                state.file_bytes = bytes;
                state.tried_lines = 0;
                state.is_cut = false;
                Ok(())
            }
            Err(error) => {
                state.tried_lines = state.lines;
                Err(error)
            }
        }
    }

    /// Writes a file of what is kept; its bytes.
    fn write_anew(&self, state: &State) -> io::Result<u64> {
        let all: io::Result<String> = state.kept.iter().map(|(event, _)| line(event)).collect();
        let all = all?;
        device::private::write(&self.path, all.as_bytes())?;
        Ok(all.len() as u64)
    }

    fn append(&self, text: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)?;
        file.write_all(text.as_bytes())
    }
}

/// Begins to write down what happens, until the history goes away.
pub(crate) fn begin(history: &Arc<History>, events: &Arc<Events>) {
    let weak = Arc::downgrade(history);
    // What happened as the server started is there as well.
    let mut reader = events.reader(Some(0), Wanted::Own);
    tokio::spawn(async move {
        while weak.strong_count() > 0 {
            let event = match tokio::time::timeout(LOOKS, reader.next()).await {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(_) => continue,
            };
            let Some(history) = weak.upgrade() else {
                return;
            };
            let added = tokio::task::spawn_blocking(move || history.add(event));
            if let Ok(Err(error)) = added.await {
                tracing::error!(%error, "what happened cannot be written down");
            }
        }
    });
}

/// What has happened last, as far as it is known.
pub(crate) fn list(history: &History, call: &EventHistory, may_change: bool) -> EventHistoryReply {
    let limit = call.limit.and_then(|limit| usize::try_from(limit).ok());
    let state = history.state.lock();
    let limit = limit.unwrap_or(GIVEN_MAX).min(GIVEN_MAX);
    let events = state.kept.iter().rev().take(limit);
    let events = events.map(|(one, _)| one.clone()).map(|mut one| {
        if !may_change {
            one.event.kind = one.event.kind.for_looking();
        }
        one
    });
    EventHistoryReply {
        events: events.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(number: u64) -> Event {
        let names = vec![format!("tank/{number}")];
        Event {
            sequence: number,
            time_ns: number,
            kind: EventKind::DatasetsCreated { names },
        }
    }

    fn all(history: &History) -> Vec<(u64, u64)> {
        let state = history.state.lock();
        let events = state.kept.iter().rev().map(|(one, _)| one);
        events.map(|one| (one.number, one.event.sequence)).collect()
    }

    /// Goal: what happened is there after a restart, whose events count from 1 again; lines that
    /// are damaged or cut off take nothing with them, and the file does not grow for ever.
    #[test]
    fn what_happened_is_known_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::load(directory.path());
        history.add(created(1)).unwrap();
        history.add(created(2)).unwrap();
        let opened = Event {
            kind: EventKind::Opened,
            ..created(3)
        };
        history.add(opened).unwrap();
        drop(history);
        let path = directory.path().join(FILE);
        let mut text = std::fs::read(&path).unwrap();
        text.extend_from_slice(b"nonsense\n{\"number\": 7");
        std::fs::write(&path, &text).unwrap();
        let history = History::load(directory.path());
        assert_eq!(all(&history), [(2, 2), (1, 1)]);
        history.add(created(1)).unwrap();
        assert_eq!(all(&history), [(3, 1), (2, 2), (1, 1)]);
        for number in 2..5 * KEPT_MAX as u64 {
            history.add(created(number)).unwrap();
        }
        let kept = all(&history);
        assert_eq!(kept.len(), KEPT_MAX);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() <= 2 * KEPT_MAX);
        assert_eq!(all(&History::load(directory.path())), kept);
        for (limit, given) in [(Some(3), 3), (None, GIVEN_MAX), (Some(u64::MAX), GIVEN_MAX)] {
            let events = list(&history, &EventHistory { limit }, true).events;
            let events = events.iter().map(|one| (one.number, one.event.sequence));
            assert_eq!(events.collect::<Vec<_>>(), kept[..given]);
        }
    }

    /// Goal: many long events are no more bytes than few of them, in memory and in the file.
    #[test]
    fn what_is_kept_has_a_bound_in_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::load(directory.path());
        let names = vec!["long/".repeat(50); 20];
        let mut bytes_max = 0;
        for number in 1..=2500 {
            let kind = EventKind::DatasetsDestroyed {
                names: names.clone(),
            };
            let event = Event {
                kind,
                ..created(number)
            };
            history.add(event).unwrap();
            let file = std::fs::metadata(directory.path().join(FILE)).unwrap();
            bytes_max = bytes_max.max(file.len());
        }
        assert!(bytes_max > KEPT_BYTES_MAX as u64 && bytes_max <= FILE_BYTES_MAX + 8192);
        let kept = all(&history);
        assert!(kept.len() < KEPT_MAX && kept[0] == (2500, 2500));
        let state = history.state.lock();
        let sum = state.kept.iter().map(|(_, bytes)| bytes).sum::<usize>();
        assert!(sum == state.kept_bytes && sum <= KEPT_BYTES_MAX);
        let EventKind::DatasetsDestroyed { names } = &state.kept[0].0.event.kind else {
            panic!("another event");
        };
        assert_eq!(names.len(), NAMES_MAX);
        drop(state);
        assert_eq!(all(&History::load(directory.path())), kept);
    }

    /// Goal: a line that could not be written damages none after it, and a file that cannot be
    /// read is not replaced.
    #[test]
    fn what_cannot_be_written_or_read_takes_nothing_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let later = directory.path().join("later");
        let history = History::load(&later);
        assert!(history.add(created(1)).is_err());
        std::fs::create_dir(&later).unwrap();
        history.add(created(2)).unwrap();
        assert_eq!(all(&history), [(2, 2), (1, 1)]);
        assert_eq!(all(&History::load(&later)), [(2, 2)]);

        let unread = directory.path().join(FILE);
        std::fs::create_dir(&unread).unwrap();
        let history = History::load(directory.path());
        history.add(created(1)).unwrap();
        assert_eq!(all(&history), [(1, 1)]);
        assert!(unread.is_dir());
    }
}
