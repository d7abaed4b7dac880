//! Which devices have too many errors: what OpenZFS's fault daemon decides
//! (cmd/zed/agents/zfs_diagnosis.c, fmd_serd.c), as a computation on reports and a clock.
//!
//! A device about which something was reported has a *case*, and in it an engine per kind of
//! error. An engine fires when so many errors of its kind came within so many seconds
//! ([`Limit`]; `fmd_serd_eng_record`); older ones do not count. What then?
//!
//! - Where devices below the same vdev have had errors of the same kind within the time too, it is
//!   the cable, the controller or the host rather than the disk: the case is closed, and nothing is
//!   done (`zfs_other_serd_cases`).
//! - Wrong checksums and slow operations settle the case at once. Those of scrubs and resilvers are
//!   not to be given to it: a pool that is being repaired should not lose more devices.
//! - Failed operations settle it after 15 seconds, as they may be the first sign of a device that
//!   was pulled out ([`Diagnosis::removed`]).
//!
//! A settled case takes no more reports until it is closed, since the device is dealt with: when it
//! is cleared, or works again. A limit of zero errors never fires.

use std::collections::{BTreeMap, VecDeque};

use format::Guid;

/// How long failed operations wait for the news that the device was removed, in nanoseconds
/// (`zfs_remove_timeout`).
const REMOVE_WAIT_NS: u64 = 15_000_000_000;
/// Errors that an engine remembers at most; a limit beyond that never fires.
const REMEMBERED_MAX: u64 = 1 << 20;

/// Kinds of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Reads and writes failed.
    Io,
    /// What was read is wrong.
    Checksum,
    /// Operations take long.
    SlowIo,
}

/// How many errors within which time are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The error of this number is one too many.
    pub count: u64,
    /// Within so many nanoseconds from the first.
    pub within_ns: u64,
}

/// Counts events, and fires when they come too often.
#[derive(Debug, Default)]
struct Engine {
    /// When the last ones came, oldest first.
    times_ns: VecDeque<u64>,
    fired: bool,
    within_ns: u64,
}

impl Engine {
    /// Counts an event; whether the engine fires by it.
    fn record(&mut self, now_ns: u64, limit: Limit) -> bool {
        if self.fired {
            return false;
        }
        self.within_ns = limit.within_ns;
        self.forget_old(now_ns);
        if limit.count == 0 || limit.count > REMEMBERED_MAX {
            return false;
        }
        while self.times_ns.len() as u64 >= limit.count {
            self.times_ns.pop_front();
        }
        self.times_ns.push_back(now_ns);
        self.fired = self.times_ns.len() as u64 >= limit.count;
        self.fired
    }

    fn forget_old(&mut self, now_ns: u64) {
        let oldest_ns = now_ns.saturating_sub(self.within_ns);
        while self.times_ns.front().is_some_and(|time| *time < oldest_ns) {
            self.times_ns.pop_front();
        }
    }

    /// Whether there were events within the time. One that fired counts so long and no longer,
    /// where OpenZFS's counts until its device is cleared: what happened to another disk a year ago
    /// does not excuse this one.
    fn is_active(&self, now_ns: u64) -> bool {
        let oldest_ns = now_ns.saturating_sub(self.within_ns);
        self.times_ns.back().is_some_and(|time| *time >= oldest_ns)
    }
}

/// What is known of a device.
#[derive(Debug)]
struct Case {
    /// The vdev above it.
    parent: Guid,
    engines: [Engine; 3],
    /// When failed operations settle it, unless the device was removed.
    settles_ns: Option<u64>,
    settled: bool,
}

impl Case {
    fn reset(&mut self) {
        self.engines = Default::default();
        self.settles_ns = None;
    }
}

/// The cases of a pool's devices.
#[derive(Debug, Default)]
pub struct Diagnosis {
    cases: BTreeMap<Guid, Case>,
}

impl Diagnosis {
    /// Takes a report of a device below `parent`; whether it has too many errors of that kind by
    /// now, for which something should be done. Of failed operations [`Self::due`] tells later.
    pub fn record(
        &mut self,
        leaf: Guid,
        parent: Guid,
        kind: ErrorKind,
        limit: Limit,
        now_ns: u64,
    ) -> bool {
        let case = self.cases.entry(leaf).or_insert_with(|| Case {
            parent,
            engines: Default::default(),
            settles_ns: None,
            settled: false,
        });
        case.parent = parent;
        if case.settled || !case.engines[kind as usize].record(now_ns, limit) {
            return false;
        }
        if self.is_shared(leaf, now_ns) {
            tracing::warn!(
                %leaf, ?kind,
                "a device has too many errors, and so have others beside it: nothing is done"
            );
            self.cases.remove(&leaf);
            return false;
        }
        let Some(case) = self.cases.get_mut(&leaf) else {
            return false;
        };
        if kind == ErrorKind::Io {
            case.settles_ns = Some(now_ns.saturating_add(REMOVE_WAIT_NS));
            return false;
        }
        case.settled = true;
        case.settles_ns = None;
        true
    }

    /// Whether another device below the same vdev has errors of a kind that this one has.
    fn is_shared(&self, leaf: Guid, now_ns: u64) -> bool {
        let Some(own) = self.cases.get(&leaf) else {
            return false;
        };
        self.cases.iter().any(|(guid, other)| {
            let pairs = own.engines.iter().zip(&other.engines);
            let mut both =
                pairs.map(|(own, other)| (own.is_active(now_ns), other.is_active(now_ns)));
            *guid != leaf && other.parent == own.parent && both.any(|pair| pair == (true, true))
        })
    }

    /// When to ask [`Self::due`] next.
    pub fn next_ns(&self) -> Option<u64> {
        let waiting = self.cases.values();
        waiting.filter_map(|case| case.settles_ns).min()
    }

    /// The devices that failed too many operations, and were not removed meanwhile.
    pub fn due(&mut self, now_ns: u64) -> Vec<Guid> {
        let mut due = Vec::new();
        for (leaf, case) in &mut self.cases {
            if case.settles_ns.is_some_and(|time| time <= now_ns) {
                case.settles_ns = None;
                case.settled = true;
                due.push(*leaf);
            }
        }
        due
    }

    /// A device was removed: that is why it failed.
    pub fn removed(&mut self, leaf: Guid) {
        if let Some(case) = self.cases.get_mut(&leaf) {
            case.reset();
        }
    }

    /// A device was cleared, or works again: it begins anew.
    pub fn close(&mut self, leaf: Guid) {
        self.cases.remove(&leaf);
    }

    /// Forgets the devices that the pool does not have any more.
    pub fn retain(&mut self, is_there: impl Fn(Guid) -> bool) {
        self.cases.retain(|leaf, _| is_there(*leaf));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const TEN: Limit = Limit {
        count: 10,
        within_ns: 600 * S,
    };

    fn leaf(number: u64) -> Guid {
        Guid::new(number)
    }

    /// Records errors of device `number` below vdev 100 at these seconds; which of them settled.
    fn record(
        diagnosis: &mut Diagnosis,
        number: u64,
        kind: ErrorKind,
        limit: Limit,
        seconds: impl IntoIterator<Item = u64>,
    ) -> Vec<u64> {
        let at = seconds.into_iter();
        at.filter(|at| diagnosis.record(leaf(number), leaf(100), kind, limit, at * S))
            .collect()
    }

    /// Goal: it fires by the tenth error within the time, once. Method: errors just close enough,
    /// and just too far apart.
    #[test]
    fn errors_count_within_their_time() {
        let mut diagnosis = Diagnosis::default();
        let close = (0..9).map(|n| n * 60).chain([600]);
        let settled = record(&mut diagnosis, 1, ErrorKind::Checksum, TEN, close);
        assert_eq!(settled, [600]);
        let more = record(&mut diagnosis, 1, ErrorKind::Checksum, TEN, 601..700);
        assert!(more.is_empty(), "a settled case is over: {more:?}");

        let far = (0..100).map(|n| n * 67);
        let settled = record(&mut diagnosis, 2, ErrorKind::Checksum, TEN, far);
        assert!(settled.is_empty(), "older ones count: {settled:?}");
        diagnosis.close(leaf(1));
        diagnosis.close(leaf(2));
        let again = record(&mut diagnosis, 1, ErrorKind::Checksum, TEN, 7000..7020);
        assert_eq!(again, [7009], "a case that was closed begins anew");
    }

    /// Limits are those of the last report, and may be off.
    #[test]
    fn limits_may_change_or_be_off() {
        let mut diagnosis = Diagnosis::default();
        let limit = |count| Limit { count, ..TEN };
        let kind = ErrorKind::SlowIo;
        assert!(record(&mut diagnosis, 1, kind, limit(0), 0..50).is_empty());
        assert!(record(&mut diagnosis, 1, kind, limit(u64::MAX), 50..100).is_empty());
        assert!(record(&mut diagnosis, 1, kind, limit(5), 100..103).is_empty());
        assert_eq!(record(&mut diagnosis, 1, kind, limit(4), 103..104), [103]);
        assert_eq!(record(&mut diagnosis, 2, kind, limit(1), 900..901), [900]);
    }

    /// Goal: failed operations wait for a removal. Method: with one in time, and without.
    #[test]
    fn failed_operations_wait_for_a_removal() {
        let mut diagnosis = Diagnosis::default();
        assert!(record(&mut diagnosis, 1, ErrorKind::Io, TEN, 0..12).is_empty());
        assert_eq!(diagnosis.next_ns(), Some(24 * S), "15 s after the tenth");
        assert!(diagnosis.due(24 * S - 1).is_empty());
        diagnosis.removed(leaf(1));
        assert_eq!(diagnosis.next_ns(), None);
        assert!(diagnosis.due(1000 * S).is_empty());

        assert!(record(&mut diagnosis, 1, ErrorKind::Io, TEN, 30..40).is_empty());
        assert_eq!(diagnosis.due(54 * S), [leaf(1)]);
        assert!(diagnosis.due(55 * S).is_empty(), "once");
    }

    /// Goal: what several devices beside each other have is no fault of one. Method: a single
    /// error of a neighbour, lately or long ago, of the same or another kind or vdev.
    #[test]
    fn errors_of_neighbours_excuse_a_device() {
        let kind = ErrorKind::Checksum;
        let case = |other: Guid, parent: Guid, other_kind, at: u64| {
            let mut diagnosis = Diagnosis::default();
            diagnosis.record(other, parent, other_kind, TEN, at * S);
            record(&mut diagnosis, 1, kind, TEN, 1000..1010)
        };
        let settled = [1009];
        assert!(case(leaf(2), leaf(100), kind, 900).is_empty());
        assert_eq!(case(leaf(2), leaf(100), kind, 100), settled);
        assert_eq!(case(leaf(2), leaf(101), kind, 900), settled);
        assert_eq!(case(leaf(2), leaf(100), ErrorKind::Io, 900), settled);
    }
}
