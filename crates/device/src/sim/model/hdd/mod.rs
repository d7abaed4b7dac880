//! A hard disk: arm, platters, caches and command queue.
//!
//! The arm does one thing at a time. When it is free the disk chooses, among the first
//! [`HddSpec::queue_depth`] reads that wait and what its write cache holds, what it reaches
//! soonest: seek and rotation together, where the angle follows from virtual time alone. With
//! nothing to do it reads on after the last read, so that the next piece of a stream is in the
//! cache already or comes at the platter's rate.
//!
//! A write is complete when it is in the write cache, if there is room, and is written later. The
//! disk prefers reads until the cache is half full or a flush waits for it. A flush is complete
//! when all that was in the cache before it is on the platters.
//!
//! What it leaves out: remapped sectors, recalibration, and firmware that learns. Small steps
//! (choosing among 32) cost about a microsecond of real time.

mod geometry;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use super::{Command, Decided, SimOp, transfer_ns};
use geometry::{Geometry, Place, SeekCurve};

/// A read that has waited this many revolutions is next, whatever else is nearer.
const PATIENCE_REVOLUTIONS: u64 = 120;
/// How much later than computed a sector may pass the head and still be caught: less than any real
/// wait, more than what rounding makes.
const ROUNDING_NS: u64 = 2_000;
/// Ranges that the read cache holds at most.
const SEGMENTS_MAX: usize = 64;
/// Writes that lie side by side become one piece of the write cache up to this size.
const MERGED_BYTES_MAX: u64 = 1 << 20;

/// What a hard disk is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HddSpec {
    /// One revolution.
    pub revolution_ns: u64,
    /// Surfaces.
    pub heads: u32,
    /// Sustained rate on the outermost tracks, where the disk begins.
    pub outer_bytes_per_second: u64,
    /// The same on the innermost.
    pub inner_bytes_per_second: u64,
    /// A seek to the next cylinder.
    pub track_seek_ns: u64,
    /// A seek between two random cylinders, on average, for a read.
    pub average_seek_ns: u64,
    /// A seek over all cylinders.
    pub full_seek_ns: u64,
    /// How much longer the arm settles before a write.
    pub write_settle_ns: u64,
    /// From one track to the next while reading on.
    pub track_switch_ns: u64,
    /// What the disk's processor takes for each command.
    pub command_ns: u64,
    /// Rate of the interface.
    pub link_bytes_per_second: u64,
    /// Cache for reads.
    pub read_cache_bytes: u64,
    /// How far it reads on after a read.
    pub read_ahead_bytes: u64,
    /// Cache for writes; 0: a write is complete when it is on the platter.
    pub write_cache_bytes: u64,
    /// Pieces that the write cache holds at most.
    pub write_cache_pieces: u32,
    /// Commands among which the disk chooses.
    pub queue_depth: u32,
}

impl HddSpec {
    /// Western Digital RE3, 500 GB (WD5002ABYS), 7,200/min, SATA 3 Gbit/s.
    ///
    /// | Published | | Source |
    /// |---|---|---|
    /// | average latency | 4.20 ms | WD's data sheet 2879-701281 |
    /// | sustained rate, outer tracks | 113 MB/s | the same |
    /// | cache | 16 MB | the same |
    /// | average read seek | 8.9 ms | WD's drive specifications of the family |
    /// | average write seek | 10.9 ms | the same |
    /// | track to track, full stroke | 2.0 ms, 21.0 ms | the same |
    ///
    /// WD's sheets are quoted from memory: no stored copy was at hand when this was written. No
    /// figure of WD's gives the rate of inner tracks; half of the outer one is what reviews of the
    /// time measured on all 3.5-inch disks. The owner of the server that issue 44 tells of measured
    /// 90 seeks a second and 72 MB/s on each of its disks. Heads, track switch, the split of the
    /// cache, read-ahead and the time of a command are assumptions.
    pub const WD_RE3_500GB: HddSpec = HddSpec {
        revolution_ns: 8_333_333,
        heads: 4,
        outer_bytes_per_second: 113_000_000,
        inner_bytes_per_second: 56_000_000,
        track_seek_ns: 2_000_000,
        average_seek_ns: 8_900_000,
        full_seek_ns: 21_000_000,
        write_settle_ns: 2_000_000,
        track_switch_ns: 800_000,
        command_ns: 100_000,
        link_bytes_per_second: 270_000_000,
        read_cache_bytes: 10 << 20,
        read_ahead_bytes: 512 << 10,
        write_cache_bytes: 6 << 20,
        write_cache_pieces: 64,
        queue_depth: 32,
    };

    /// Western Digital RE3, 1 TB (WD1002FBYS): as [`Self::WD_RE3_500GB`], with 32 MB of cache and
    /// three platters.
    pub const WD_RE3_1TB: HddSpec = HddSpec {
        heads: 6,
        read_cache_bytes: 20 << 20,
        write_cache_bytes: 12 << 20,
        ..HddSpec::WD_RE3_500GB
    };

    pub(super) fn scaled(&self, factor: u32) -> HddSpec {
        let by = u64::from(factor);
        HddSpec {
            revolution_ns: self.revolution_ns * by,
            outer_bytes_per_second: self.outer_bytes_per_second / by,
            inner_bytes_per_second: self.inner_bytes_per_second / by,
            track_seek_ns: self.track_seek_ns * by,
            average_seek_ns: self.average_seek_ns * by,
            full_seek_ns: self.full_seek_ns * by,
            write_settle_ns: self.write_settle_ns * by,
            track_switch_ns: self.track_switch_ns * by,
            command_ns: self.command_ns * by,
            link_bytes_per_second: self.link_bytes_per_second / by,
            read_cache_bytes: self.read_cache_bytes / by,
            read_ahead_bytes: self.read_ahead_bytes / by,
            write_cache_bytes: self.write_cache_bytes / by,
            ..self.clone()
        }
    }
}

/// A read that waits, or a write that has to reach the platter before it is complete.
#[derive(Debug, Clone)]
struct Waiting {
    number: u64,
    start_byte: u64,
    bytes: u64,
    is_write: bool,
    /// When the disk's processor has looked at it.
    from_ns: u64,
}

/// A piece of the write cache.
#[derive(Debug, Clone)]
struct Dirty {
    end_byte: u64,
    /// Since when it can be written.
    from_ns: u64,
    /// Number of the newest write in it.
    age: u64,
}

/// What the arm is doing, or did last.
#[derive(Debug, Clone)]
enum Doing {
    Nothing,
    /// Writing a piece of the write cache that begins here.
    Drain(u64),
}

/// What is chosen to be done next.
enum Choice {
    Queued(usize),
    Drain(u64),
}

/// Reading on without having been asked.
#[derive(Debug, Clone)]
struct Ahead {
    first_byte: u64,
    /// Where the head was when this began, and when.
    from_byte: u64,
    from_ns: u64,
    end_byte: u64,
}

/// A hard disk at work.
#[derive(Debug, Clone)]
pub struct Hdd {
    spec: HddSpec,
    size_bytes: u64,
    geometry: Geometry,
    curve: SeekCurve,
    /// Where the head is when the arm is free, and when that is.
    head: Place,
    free_ns: u64,
    doing: Doing,
    link_free_ns: u64,
    queue: VecDeque<Waiting>,
    dirty: BTreeMap<u64, Dirty>,
    dirty_bytes: u64,
    next_age: u64,
    /// Writes for which the cache has no room, and flushes with the age that they wait for.
    unadmitted: VecDeque<Waiting>,
    flushes: Vec<(u64, u64)>,
    /// Ranges in the read cache, oldest first.
    segments: VecDeque<(u64, u64)>,
    segment_bytes: u64,
    ahead: Option<Ahead>,
}

impl Hdd {
    /// An idle disk, its head at the first byte.
    pub fn new(spec: &HddSpec, size_bytes: u64) -> Self {
        let geometry = Geometry::new(spec, size_bytes);
        let head = geometry.place(0);
        Hdd {
            spec: spec.clone(),
            size_bytes,
            geometry,
            curve: SeekCurve::new(spec),
            head,
            free_ns: 0,
            doing: Doing::Nothing,
            link_free_ns: 0,
            queue: VecDeque::new(),
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
            next_age: 0,
            unadmitted: VecDeque::new(),
            flushes: Vec::new(),
            segments: VecDeque::new(),
            segment_bytes: 0,
            ahead: None,
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Hdd::new(&self.spec, self.size_bytes);
    }

    pub(super) fn submit(&mut self, now_ns: u64, number: u64, command: &Command) -> Option<u64> {
        let (start_byte, bytes) = (command.offset_bytes, command.length_bytes);
        let from_ns = now_ns + self.spec.command_ns;
        let waiting = Waiting {
            number,
            start_byte,
            bytes,
            is_write: command.op == SimOp::Write,
            from_ns,
        };
        match command.op {
            SimOp::Read => {
                if self.is_cached(start_byte, start_byte + bytes) {
                    return Some(self.over_link(from_ns, bytes));
                }
                if let Some(read_ns) = self.read_with_ahead(from_ns, start_byte, bytes) {
                    return Some(self.over_link(read_ns, bytes));
                }
                self.queue.push_back(waiting);
                None
            }
            SimOp::Write if self.spec.write_cache_bytes == 0 => {
                self.forget_read(start_byte, start_byte + bytes);
                self.queue.push_back(waiting);
                None
            }
            SimOp::Write => {
                self.forget_read(start_byte, start_byte + bytes);
                if self.unadmitted.is_empty() && self.has_room(bytes) {
                    return Some(self.admit(&waiting));
                }
                self.unadmitted.push_back(waiting);
                None
            }
            SimOp::Flush if self.dirty.is_empty() && self.unadmitted.is_empty() => Some(from_ns),
            SimOp::Flush => {
                // Writes that wait for room were not complete when this came: not its business.
                self.flushes.push((number, self.next_age));
                None
            }
            // Such disks know no TRIM.
            SimOp::Discard => Some(from_ns),
        }
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        match self.doing {
            Doing::Drain(_) => Some(self.free_ns),
            Doing::Nothing => self.decision_ns(),
        }
    }

    /// When the arm is free and something is there to do.
    fn decision_ns(&self) -> Option<u64> {
        let queued = self.candidates().map(|waiting| waiting.from_ns);
        let first_ns = queued
            .chain(self.dirty.values().map(|piece| piece.from_ns))
            .min();
        first_ns.map(|first_ns| self.free_ns.max(first_ns))
    }

    pub(super) fn advance(&mut self, now_ns: u64, decided: &mut Vec<Decided>) {
        loop {
            if let Doing::Drain(start_byte) = self.doing {
                if self.free_ns > now_ns {
                    return;
                }
                self.doing = Doing::Nothing;
                if let Some(piece) = self.dirty.remove(&start_byte) {
                    self.dirty_bytes -= piece.end_byte - start_byte;
                }
                self.after_drain(decided);
            }
            // However late this is called, it decides as it would have done then.
            let at_ns = match self.decision_ns() {
                Some(at_ns) if at_ns <= now_ns => at_ns,
                _ => return,
            };
            self.stop_ahead(at_ns);
            match self.choose(at_ns) {
                None => return,
                Some(Choice::Queued(index)) => {
                    let Some(waiting) = self.queue.remove(index) else {
                        return;
                    };
                    let (start_byte, bytes) = (waiting.start_byte, waiting.bytes);
                    self.go(at_ns, start_byte, bytes, waiting.is_write);
                    let mut done_ns = self.free_ns;
                    if !waiting.is_write {
                        self.begin_ahead(start_byte, bytes);
                        done_ns += transfer_ns(bytes, self.spec.link_bytes_per_second);
                    }
                    decided.push(Decided {
                        number: waiting.number,
                        done_ns,
                    });
                }
                Some(Choice::Drain(start_byte)) => {
                    let bytes = self.dirty[&start_byte].end_byte - start_byte;
                    self.go(at_ns, start_byte, bytes, true);
                    self.doing = Doing::Drain(start_byte);
                }
            }
        }
    }

    /// The commands among which the disk chooses.
    fn candidates(&self) -> impl Iterator<Item = &Waiting> {
        self.queue.iter().take(self.spec.queue_depth as usize)
    }

    fn choose(&self, at_ns: u64) -> Option<Choice> {
        let patience_ns = PATIENCE_REVOLUTIONS * self.spec.revolution_ns;
        let mut best: Option<(u64, Choice)> = None;
        for (index, waiting) in self.candidates().enumerate() {
            if waiting.from_ns > at_ns {
                continue;
            }
            if waiting.from_ns + patience_ns < at_ns {
                return Some(Choice::Queued(index));
            }
            let cost_ns = self.reach_ns(at_ns, waiting.start_byte, waiting.is_write);
            if best
                .as_ref()
                .is_none_or(|(least_ns, _)| cost_ns < *least_ns)
            {
                best = Some((cost_ns, Choice::Queued(index)));
            }
        }
        let is_urgent = !self.flushes.is_empty()
            || !self.unadmitted.is_empty()
            || self.dirty_bytes > self.spec.write_cache_bytes / 2
            || self.dirty.len() > self.spec.write_cache_pieces as usize / 2;
        if best.is_none() || is_urgent {
            for (start_byte, piece) in &self.dirty {
                if piece.from_ns > at_ns {
                    continue;
                }
                let cost_ns = self.reach_ns(at_ns, *start_byte, true);
                if best
                    .as_ref()
                    .is_none_or(|(least_ns, _)| cost_ns < *least_ns)
                {
                    best = Some((cost_ns, Choice::Drain(*start_byte)));
                }
            }
        }
        best.map(|(_, choice)| choice)
    }

    /// Time until the head is over a byte, and the byte below it.
    fn reach_ns(&self, at_ns: u64, byte: u64, is_write: bool) -> u64 {
        let place = self.geometry.place(byte);
        let distance = place.cylinder.abs_diff(self.head.cylinder);
        let mut seek_ns = if distance > 0 {
            let stroke = (self.geometry.cylinders().max(2) - 1) as f64;
            self.curve.seek_ns((distance as f64 / stroke).min(1.0))
        } else if place.track != self.head.track {
            self.spec.track_switch_ns
        } else {
            0
        };
        if is_write && seek_ns > 0 {
            seek_ns += self.spec.write_settle_ns;
        }
        let revolution_ns = self.spec.revolution_ns;
        let angle_ns = (at_ns + seek_ns) % revolution_ns;
        let wait_ns = (self.geometry.angle_ns(&place) + revolution_ns - angle_ns) % revolution_ns;
        let is_caught = wait_ns + ROUNDING_NS >= revolution_ns;
        seek_ns + if is_caught { 0 } else { wait_ns }
    }

    /// Moves to a range and over it.
    fn go(&mut self, at_ns: u64, start_byte: u64, bytes: u64, is_write: bool) {
        let reach_ns = self.reach_ns(at_ns, start_byte, is_write);
        let pass_ns = self.geometry.pass_ns(start_byte, bytes);
        self.free_ns = at_ns + reach_ns + pass_ns;
        self.head = self.geometry.place(start_byte + bytes);
    }

    /// When so much has gone over the interface from or to the cache, which it does after
    /// `from_ns`.
    fn over_link(&mut self, from_ns: u64, bytes: u64) -> u64 {
        let start_ns = self.link_free_ns.max(from_ns);
        self.link_free_ns = start_ns + transfer_ns(bytes, self.spec.link_bytes_per_second);
        self.link_free_ns
    }

    // The read cache.

    fn is_cached(&self, start_byte: u64, end_byte: u64) -> bool {
        let in_write_cache = (self.dirty.range(..=start_byte).next_back())
            .is_some_and(|(_, piece)| piece.end_byte >= end_byte);
        let within = |&(start, end): &(u64, u64)| start <= start_byte && end_byte <= end;
        in_write_cache || self.segments.iter().any(within)
    }

    /// A write makes what was read of its range worthless.
    fn forget_read(&mut self, start_byte: u64, end_byte: u64) {
        let overlaps = |start: u64, end: u64| start < end_byte && start_byte < end;
        let mut kept_bytes = 0;
        self.segments.retain(|&(start, end)| {
            let is_kept = !overlaps(start, end);
            kept_bytes += if is_kept { end - start } else { 0 };
            is_kept
        });
        self.segment_bytes = kept_bytes;
        if (self.ahead.as_ref()).is_some_and(|ahead| overlaps(ahead.first_byte, ahead.end_byte)) {
            self.ahead = None;
        }
    }

    fn remember_read(&mut self, start_byte: u64, end_byte: u64) {
        if end_byte <= start_byte || self.spec.read_cache_bytes == 0 {
            return;
        }
        self.segments.push_back((start_byte, end_byte));
        self.segment_bytes += end_byte - start_byte;
        while self.segment_bytes > self.spec.read_cache_bytes || self.segments.len() > SEGMENTS_MAX
        {
            match self.segments.pop_front() {
                Some((start, end)) => self.segment_bytes -= end - start,
                None => break,
            }
        }
    }

    /// The arm has read a range; with nothing else to do it goes on from there.
    fn begin_ahead(&mut self, start_byte: u64, bytes: u64) {
        let from_byte = start_byte + bytes;
        let end_byte = (from_byte + self.spec.read_ahead_bytes).min(self.size_bytes);
        self.ahead = Some(Ahead {
            first_byte: start_byte,
            from_byte,
            from_ns: self.free_ns,
            end_byte,
        });
    }

    /// The arm is needed for something else: what was read is kept.
    fn stop_ahead(&mut self, at_ns: u64) {
        let Some(ahead) = self.ahead.take() else {
            return;
        };
        let spent_ns = at_ns.saturating_sub(ahead.from_ns);
        let reached = self.geometry.byte_after(ahead.from_byte, spent_ns);
        let reached = reached.min(ahead.end_byte);
        self.head = self.geometry.place(reached);
        self.remember_read(ahead.first_byte, reached);
    }

    /// When a range is read that the head is about to pass over, or has.
    fn read_with_ahead(&mut self, from_ns: u64, start_byte: u64, bytes: u64) -> Option<u64> {
        let is_idle = self.queue.is_empty() && matches!(self.doing, Doing::Nothing);
        let ahead = self.ahead.as_mut().filter(|_| is_idle)?;
        let end_byte = start_byte + bytes;
        let is_near = ahead.first_byte <= start_byte && start_byte <= ahead.end_byte;
        if !is_near || end_byte > self.size_bytes {
            return None;
        }
        let over = end_byte.saturating_sub(ahead.from_byte);
        let read_ns = ahead.from_ns + self.geometry.pass_ns(ahead.from_byte, over);
        // It may have stopped where it was to.
        let whole = ahead.end_byte - ahead.from_byte;
        let stopped_ns = ahead.from_ns + self.geometry.pass_ns(ahead.from_byte, whole);
        if stopped_ns < from_ns && end_byte > ahead.end_byte {
            return None;
        }
        // A stream is read on for; what lies far behind makes room.
        let limit = (end_byte + self.spec.read_ahead_bytes).min(self.size_bytes);
        ahead.end_byte = ahead.end_byte.max(limit);
        let kept = end_byte.saturating_sub(self.spec.read_cache_bytes / 2);
        ahead.first_byte = ahead.first_byte.max(kept.min(ahead.from_byte));
        // The arm stays until it has passed.
        self.free_ns = self.free_ns.max(read_ns);
        Some(read_ns.max(from_ns))
    }

    // The write cache.

    fn has_room(&self, bytes: u64) -> bool {
        let pieces = self.dirty.len() < self.spec.write_cache_pieces as usize;
        let fits = self.dirty_bytes + bytes <= self.spec.write_cache_bytes;
        self.dirty.is_empty() || (pieces && fits)
    }

    /// Takes a write into the cache. When it is there.
    fn admit(&mut self, write: &Waiting) -> u64 {
        let done_ns = self.over_link(write.from_ns, write.bytes);
        let (start_byte, end_byte) = (write.start_byte, write.start_byte + write.bytes);
        let age = self.next_age;
        self.next_age += 1;
        self.cut_dirty(start_byte, end_byte);
        self.dirty_bytes += write.bytes;
        let before = self.dirty.range_mut(..start_byte).next_back();
        match before {
            Some((&first, piece))
                if piece.end_byte == start_byte
                    && end_byte - first <= MERGED_BYTES_MAX
                    && !matches!(self.doing, Doing::Drain(at) if at == first) =>
            {
                piece.end_byte = end_byte;
                piece.age = age;
            }
            _ => {
                let piece = Dirty {
                    end_byte,
                    from_ns: done_ns,
                    age,
                };
                self.dirty.insert(start_byte, piece);
            }
        }
        done_ns
    }

    /// Takes a range out of the write cache: it is written anew. What is being written stays.
    fn cut_dirty(&mut self, start_byte: u64, end_byte: u64) {
        let overlapping: Vec<u64> = (self.dirty.range(..end_byte).rev())
            .take_while(|(_, piece)| piece.end_byte > start_byte)
            .map(|(start, _)| *start)
            .collect();
        for start in overlapping {
            let Some(piece) = self.dirty.remove(&start) else {
                continue;
            };
            self.dirty_bytes -= piece.end_byte - start;
            if matches!(self.doing, Doing::Drain(at) if at == start) {
                self.doing = Doing::Nothing;
            }
            for (from, to) in [(start, start_byte), (end_byte, piece.end_byte)] {
                if from < to {
                    self.dirty_bytes += to - from;
                    let kept = Dirty {
                        end_byte: to,
                        ..piece.clone()
                    };
                    self.dirty.insert(from, kept);
                }
            }
        }
    }

    /// The write cache has room: writes that wait for it, and flushes, may be complete.
    fn after_drain(&mut self, decided: &mut Vec<Decided>) {
        let at_ns = self.free_ns;
        while (self.unadmitted.front()).is_some_and(|write| self.has_room(write.bytes)) {
            let Some(mut write) = self.unadmitted.pop_front() else {
                break;
            };
            write.from_ns = write.from_ns.max(at_ns);
            decided.push(Decided {
                number: write.number,
                done_ns: self.admit(&write),
            });
        }
        let oldest = self.dirty.values().map(|piece| piece.age).min();
        self.flushes.retain(|&(number, until)| {
            let is_done = oldest.is_none_or(|oldest| oldest >= until);
            if is_done {
                decided.push(Decided {
                    number,
                    done_ns: at_ns,
                });
            }
            !is_done
        });
    }
}
