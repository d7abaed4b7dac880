//! All series of a store.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::file::{self, Head, SeriesError};
use crate::point::{Point, Sample, Shape};
use crate::ring::Span;

/// How the names of files end.
const ENDING: &str = "series";
/// Points of a series that wait to be written: more are there only while writing fails.
const PENDING_MAX: usize = 400;

/// What a series is known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Name of its shape.
    pub shape: &'static str,
    /// Whose figures they are.
    pub names: Vec<String>,
}

/// A series that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// What it is known by.
    pub key: Key,
    /// What people call it, where its key is for programs.
    pub label: String,
    /// When it was seen last, in seconds since 1970.
    pub seen_s: u64,
}

/// What was found when a store was opened.
#[derive(Debug, Default)]
pub struct Opened {
    /// Files that were not understood, and are gone.
    pub removed: Vec<PathBuf>,
    /// What the system refused.
    pub errors: Vec<SeriesError>,
}

/// What became of samples.
#[derive(Debug, Default)]
pub struct Taken {
    /// Series for which there was no room.
    pub left_out: usize,
    /// What the system refused. Points wait, so nothing is lost if it works soon.
    pub errors: Vec<SeriesError>,
}

/// One series.
#[derive(Debug)]
struct Series {
    shape: &'static Shape,
    key: Key,
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    label: String,
    /// Points that are not in the file yet. What is there for the same period does not count.
    pending: Vec<(Span, Point)>,
    /// The finest period of the last sample.
    last: Option<u32>,
    /// When it was seen, in seconds since 1970.
    seen_s: u64,
    /// Whether it came from a file, and was given nothing yet.
    is_old: bool,
}

impl Series {
    fn size_bytes(&self) -> u64 {
        file::size_bytes(self.shape)
    }

    /// The points of a ring from one period to another one, both included, by time.
    fn points(&self, span: Span, from: u32, to: u32) -> Vec<Point> {
        // In this order: what is written meanwhile is seen in one place or in both.
        let state = self.state.lock();
        let is_wanted =
            |of: &Span, point: &Point| *of == span && (from..=to).contains(&point.period);
        let pending = state.pending.iter();
        let pending = pending.filter(|(of, point)| is_wanted(of, point));
        let pending: Vec<Point> = pending.map(|(_, point)| point.clone()).collect();
        drop(state);
        // A file that cannot be read says nothing; that it cannot be written is told.
        let stored = file::read(&self.path, self.shape, span, (from, to)).unwrap_or_default();
        let all = stored.into_iter().chain(pending);
        let by_period: BTreeMap<u32, Point> = all.map(|point| (point.period, point)).collect();
        by_period.into_values().collect()
    }

    /// The point of a coarser ring, made of the finer one's.
    fn consolidated(&self, span: Span, period: u32) -> Option<Point> {
        let (finer, first, count) = span.parts(period)?;
        let parts = self.points(finer, first, first.saturating_add(count - 1));
        Point::merged(self.shape, period, &parts)
    }

    /// What is known so far of a period that is not over: of all that is finer.
    fn unfinished(&self, span: Span, period: u32) -> Option<Point> {
        let (finer, first, count) = span.parts(period)?;
        let mut parts = self.points(finer, first, first.saturating_add(count - 1));
        let last = self.state.lock().last?;
        let open = finer.period_at(Span::Hour.start_s(last));
        let is_there = parts.iter().any(|part| part.period == open);
        if (first..first.saturating_add(count)).contains(&open) && !is_there {
            parts.extend(self.unfinished(finer, open));
        }
        Point::merged(self.shape, period, &parts)
    }

    fn add(&self, span: Span, point: Point) {
        let mut state = self.state.lock();
        let is_same = |(of, other): &(Span, Point)| *of == span && other.period == point.period;
        state.pending.retain(|one| !is_same(one));
        state.pending.push((span, point));
        let too_many = state.pending.len().saturating_sub(PENDING_MAX);
        state.pending.drain(..too_many);
    }

    /// Takes in a sample; whether a period of a coarser ring is over. One caller at a time.
    fn take(&self, time_s: u64, label: &str, sample: &Sample) -> Result<bool, SeriesError> {
        let period = Span::Hour.period_at(time_s);
        let (last, is_old, is_renamed) = {
            let mut state = self.state.lock();
            let is_renamed = state.label != label;
            state.label = label.to_owned();
            state.seen_s = time_s;
            let is_old = std::mem::replace(&mut state.is_old, false);
            (state.last.replace(period), is_old, is_renamed)
        };
        if is_old {
            self.make_up(last);
        }
        let mut point = Point::of_sample(self.shape, period, sample);
        if last == Some(period) {
            let mut both = self.points(Span::Hour, period, period);
            both.push(point.clone());
            point = Point::merged(self.shape, period, &both).unwrap_or(point);
        }
        let mut is_over = false;
        if let Some(last) = last {
            for span in &Span::ALL[1..] {
                let before = span.period_at(Span::Hour.start_s(last));
                if before != span.period_at(Span::Hour.start_s(period)) {
                    is_over = true;
                    if let Some(whole) = self.consolidated(*span, before) {
                        self.add(*span, whole);
                    }
                }
            }
        }
        self.add(Span::Hour, point);
        match is_renamed {
            true => self.write_page(label).map(|()| is_over),
            false => Ok(is_over),
        }
    }

    /// Makes coarser points that a crash kept from being written, though what they are made of was.
    fn make_up(&self, last: Option<u32>) {
        let Some(last) = last else { return };
        for span in &Span::ALL[1..] {
            let open = span.period_at(Span::Hour.start_s(last));
            let Some(before) = open.checked_sub(1) else {
                continue;
            };
            if self.points(*span, before, before).is_empty()
                && let Some(whole) = self.consolidated(*span, before)
            {
                self.add(*span, whole);
            }
        }
    }

    fn write_page(&self, label: &str) -> Result<(), SeriesError> {
        let head = Head {
            shape: self.shape.name.to_owned(),
            key: self.key.names.clone(),
            label: label.to_owned(),
        };
        let Some(page) = file::page(self.shape, &head) else {
            return Ok(());
        };
        file::write_page(&self.path, &page).map_err(SeriesError::new(&self.path))
    }

    /// Writes what waits. One caller at a time.
    fn write(&self) -> Result<(), SeriesError> {
        let pending = self.state.lock().pending.clone();
        if pending.is_empty() {
            return Ok(());
        }
        let written = file::write(&self.path, self.shape, &pending);
        written.map_err(SeriesError::new(&self.path))?;
        self.state.lock().pending.clear();
        Ok(())
    }
}

/// Series, in a directory of their own.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    shapes: &'static [Shape],
    limit_bytes: u64,
    series: RwLock<BTreeMap<Key, Arc<Series>>>,
    /// Held while samples are taken in; the number of the next file.
    work: Mutex<u64>,
}

impl Store {
    /// Opens the store of a directory, which is made where there is none. Whatever is in it, there
    /// is a store afterwards: what is not understood is removed.
    pub fn open(directory: &Path, shapes: &'static [Shape], limit_bytes: u64) -> (Self, Opened) {
        let mut opened = Opened::default();
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        opened
            .errors
            .extend(made.err().map(SeriesError::new(directory)));
        let store = Self {
            directory: directory.to_owned(),
            shapes,
            limit_bytes,
            series: RwLock::default(),
            work: Mutex::new(0),
        };
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let number = path
                .file_stem()
                .and_then(|stem| stem.to_str()?.parse().ok());
            let is_own = path.extension().is_some_and(|ending| ending == ENDING);
            let Some(number) = number.filter(|_: &u64| is_own) else {
                continue;
            };
            let mut next = store.work.lock();
            *next = (*next).max(number.saturating_add(1));
            drop(next);
            match file::read_head(&path, shapes) {
                Ok(Some((shape, head))) => store.find(path, shape, head, &mut opened),
                Ok(None) => opened.remove(path),
                Err(source) => opened.errors.push(SeriesError { path, source }),
            }
        }
        while store.size_bytes() > limit_bytes
            && let Some(oldest) = store.oldest()
        {
            opened.errors.extend(store.remove(&oldest).err());
        }
        (store, opened)
    }

    /// Takes in a series that a file is of.
    fn find(&self, path: PathBuf, shape: &'static Shape, head: Head, opened: &mut Opened) {
        let key = Key {
            shape: shape.name,
            names: head.key,
        };
        let points = file::read(&path, shape, Span::Hour, (0, u32::MAX)).unwrap_or_default();
        let last = points.iter().map(|point| point.period).max();
        let series = Arc::new(Series {
            shape,
            key: key.clone(),
            path,
            state: Mutex::new(State {
                label: head.label,
                pending: Vec::new(),
                last,
                seen_s: last.map_or(0, |last| Span::Hour.start_s(last)),
                is_old: true,
            }),
        });
        let mut all = self.series.write();
        let Some(other) = all.get(&key) else {
            all.insert(key, series);
            return;
        };
        // Two of the same: the one that was seen last stays.
        let is_newer = other.state.lock().seen_s < series.state.lock().seen_s;
        match is_newer {
            true => opened.remove(
                all.insert(key, series)
                    .map_or_else(PathBuf::new, |old| old.path.clone()),
            ),
            false => opened.remove(series.path.clone()),
        }
    }

    /// Bytes that all files have.
    pub fn size_bytes(&self) -> u64 {
        self.size_of(|_| true)
    }

    /// Most bytes that they may have.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    fn size_of(&self, is_meant: impl Fn(&Series) -> bool) -> u64 {
        let all = self.series.read();
        let meant = all.values().filter(|series| is_meant(series));
        meant.map(|series| series.size_bytes()).sum()
    }

    /// All series that there are.
    pub fn list(&self) -> Vec<Known> {
        let all = self.series.read();
        let known = all.values().map(|series| {
            let state = series.state.lock();
            Known {
                key: series.key.clone(),
                label: state.label.clone(),
                seen_s: state.seen_s,
            }
        });
        known.collect()
    }

    /// Points of a series from the beginning of a span until `now_s` (seconds since 1970), by time.
    /// The last one is of a period that is not over. None where there is no such series. Blocks.
    pub fn read(&self, key: &Key, span: Span, now_s: u64) -> Option<Vec<Point>> {
        let series = self.series.read().get(key).cloned()?;
        let to = span.period_at(now_s);
        let from = to.saturating_sub(span.points() - 1);
        let mut points = series.points(span, from, to);
        let last = series.state.lock().last;
        let open = last.map(|last| span.period_at(Span::Hour.start_s(last)));
        if let Some(open) = open.filter(|open| (from..=to).contains(open))
            && let Some(point) = series.unfinished(span, open)
        {
            points.retain(|other| other.period != open);
            points.push(point);
        }
        Some(points)
    }

    /// Takes in what was seen at a moment, in seconds since 1970. Points are written when they
    /// complete one of a coarser ring, every two minutes. Blocks.
    pub fn take(&self, time_s: u64, samples: &[(Key, String, Sample)]) -> Taken {
        let mut work = self.work.lock();
        let mut taken = Taken::default();
        // Those that are there first: they are seen now, when room is made for others.
        let mut new = Vec::new();
        for one in samples {
            let series = self.series.read().get(&one.0).cloned();
            match series {
                Some(series) => taken.note(Self::feed(&series, time_s, one)),
                None => new.push(one),
            }
        }
        for one in new {
            match self.admit(&mut work, time_s, &one.0, &one.1) {
                Ok(Some(series)) => taken.note(Self::feed(&series, time_s, one)),
                Ok(None) => taken.left_out += 1,
                Err(error) => taken.errors.push(error),
            }
        }
        taken
    }

    fn feed(
        series: &Series,
        time_s: u64,
        (_, label, sample): &(Key, String, Sample),
    ) -> Result<(), SeriesError> {
        match series.take(time_s, label, sample)? {
            true => series.write(),
            false => Ok(()),
        }
    }

    /// Makes a series, if there is room for it, or room can be made.
    fn admit(
        &self,
        next: &mut u64,
        time_s: u64,
        key: &Key,
        label: &str,
    ) -> Result<Option<Arc<Series>>, SeriesError> {
        let Some(shape) = self.shapes.iter().find(|shape| shape.name == key.shape) else {
            return Ok(None);
        };
        let head = Head {
            shape: shape.name.to_owned(),
            key: key.names.clone(),
            label: label.to_owned(),
        };
        let Some(page) = file::page(shape, &head) else {
            return Ok(None);
        };
        if !self.make_room(time_s, shape)? {
            return Ok(None);
        }
        let path = self.directory.join(format!("{next}.{ENDING}"));
        *next += 1;
        let created = file::create(&path, shape, &page);
        if created.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        created.map_err(SeriesError::new(&path))?;
        let series = Arc::new(Series {
            shape,
            key: key.clone(),
            path,
            state: Mutex::new(State {
                label: label.to_owned(),
                pending: Vec::new(),
                last: None,
                seen_s: time_s,
                is_old: false,
            }),
        });
        let mut all = self.series.write();
        all.insert(key.clone(), Arc::clone(&series));
        Ok(Some(series))
    }

    /// Removes series so that there is room for one of this shape; whether there is. Those that
    /// were not seen now go, what was seen least recently first; then those that are there but
    /// matter less. Nothing goes where that would not suffice.
    fn make_room(&self, time_s: u64, shape: &Shape) -> Result<bool, SeriesError> {
        let bytes = file::size_bytes(shape);
        let is_gone = |series: &Series| series.state.lock().seen_s != time_s;
        let mut own_bytes = self.size_of(|series| series.shape.name == shape.name) + bytes;
        let mut all_bytes = self.size_bytes() + bytes;
        let all = self.series.read();
        let mut left: Vec<&Arc<Series>> = all.values().collect();
        left.retain(|series| is_gone(series) || series.shape.rank > shape.rank);
        left.sort_by_cached_key(|series| {
            let seen_s = series.state.lock().seen_s;
            (
                !is_gone(series),
                seen_s,
                std::cmp::Reverse(series.shape.rank),
            )
        });
        let mut going = Vec::new();
        for series in &left {
            let is_own = series.shape.name == shape.name;
            if own_bytes > shape.limit_bytes && is_own {
                own_bytes -= series.size_bytes();
                all_bytes -= series.size_bytes();
                going.push(series.key.clone());
            }
        }
        for series in left {
            if all_bytes > self.limit_bytes && !going.contains(&series.key) {
                all_bytes -= series.size_bytes();
                going.push(series.key.clone());
            }
        }
        drop(all);
        if own_bytes > shape.limit_bytes || all_bytes > self.limit_bytes {
            return Ok(false);
        }
        going.iter().try_for_each(|key| self.remove(key))?;
        Ok(true)
    }

    /// The series that was seen least recently; of several the one that matters least.
    fn oldest(&self) -> Option<Key> {
        let all = self.series.read();
        let age = |series: &&Arc<Series>| {
            let seen_s = series.state.lock().seen_s;
            (seen_s, std::cmp::Reverse(series.shape.rank))
        };
        let oldest = all.values().min_by_key(age);
        oldest.map(|series| series.key.clone())
    }

    fn remove(&self, key: &Key) -> Result<(), SeriesError> {
        let Some(series) = self.series.write().remove(key) else {
            return Ok(());
        };
        match std::fs::remove_file(&series.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(SeriesError::new(&series.path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Writes all points that wait. Blocks.
    pub fn flush(&self) -> Taken {
        let _work = self.work.lock();
        let all: Vec<Arc<Series>> = self.series.read().values().cloned().collect();
        let mut taken = Taken::default();
        for series in all {
            taken.note(series.write());
        }
        taken
    }
}

impl Opened {
    fn remove(&mut self, path: PathBuf) {
        match std::fs::remove_file(&path) {
            Ok(()) => self.removed.push(path),
            Err(source) => self.errors.push(SeriesError { path, source }),
        }
    }
}

impl Taken {
    fn note(&mut self, outcome: Result<(), SeriesError>) {
        self.errors.extend(outcome.err());
    }
}
