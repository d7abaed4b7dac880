//! What is not told: errors that were told a while ago, and more of them than anybody needs
//! (`zfs_ereport_is_duplicate`, `zfs_is_ratelimiting_event`, module/zfs/zfs_fm.c).

use std::collections::{BTreeMap, HashMap};

use format::{Bookmark, Guid};
use vdev::{DeviceIo, Priority};

use crate::diagnosis::ErrorKind;

/// How long an error is remembered since it was last seen, in nanoseconds
/// (`zfs_zevent_retain_expire_secs`): longer than errors count for the diagnosis.
const REMEMBERED_NS: u64 = 900_000_000_000;
/// Errors that are remembered at most (`zfs_zevent_retain_max`).
const REMEMBERED_MAX: usize = 2000;
/// Checksum errors, and slow operations, of a device that are told per second
/// (`zfs_checksum_events_per_second`, `zfs_slow_io_events_per_second`).
const PER_SECOND_MAX: u32 = 20;
const SECOND_NS: u64 = 1_000_000_000;

/// What makes an error the same as another one of that device.
pub(super) struct RecentError {
    pub(super) kind: ErrorKind,
    pub(super) io: DeviceIo,
    pub(super) errno: i32,
}

type Key = (Guid, u8, i32, Priority, u64, u64, Bookmark);

impl RecentError {
    fn key(&self, leaf: Guid) -> Key {
        let io = &self.io;
        (
            leaf,
            self.kind as u8,
            self.errno,
            io.priority,
            io.size_bytes,
            io.offset_bytes,
            io.bookmark,
        )
    }
}

/// Errors that were told lately.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// With their place in `order`.
    known: HashMap<Key, u64>,
    /// When each was seen last, by a number that rises.
    order: BTreeMap<u64, (u64, Key)>,
    count: u64,
}

impl Recent {
    /// Whether an error was seen lately; it is from now on.
    pub(super) fn has(&mut self, leaf: Guid, error: &RecentError, now_ns: u64) -> bool {
        while let Some((&number, &(seen_ns, key))) = self.order.first_key_value() {
            let is_old = now_ns.saturating_sub(seen_ns) > REMEMBERED_NS;
            if !is_old && self.order.len() <= REMEMBERED_MAX {
                break;
            }
            self.order.remove(&number);
            self.known.remove(&key);
        }
        let key = error.key(leaf);
        self.count += 1;
        let before = self.known.insert(key, self.count);
        self.order.insert(self.count, (now_ns, key));
        match before {
            Some(before) => self.order.remove(&before).is_some(),
            None => false,
        }
    }

    /// Forgets those of a device.
    pub(super) fn forget(&mut self, leaf: Guid) {
        self.known.retain(|key, _| key.0 != leaf);
        self.order.retain(|_, (_, key)| key.0 != leaf);
    }
}

/// How many errors were told of late.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Since when, and how many.
    counts: BTreeMap<(Guid, u8), (u64, u32)>,
}

impl Throttle {
    /// Whether one more may be told.
    pub(super) fn lets(&mut self, leaf: Guid, kind: ErrorKind, now_ns: u64) -> bool {
        let entry = self.counts.entry((leaf, kind as u8));
        let (since_ns, count) = entry.or_insert((now_ns, 0));
        if now_ns.saturating_sub(*since_ns) >= SECOND_NS {
            (*since_ns, *count) = (now_ns, 0);
        }
        *count = count.saturating_add(1);
        *count <= PER_SECOND_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdev::Operation;

    fn error(offset_bytes: u64) -> RecentError {
        RecentError {
            kind: ErrorKind::Checksum,
            errno: 52,
            io: DeviceIo {
                operation: Operation::Read,
                offset_bytes,
                size_bytes: 4096,
                bookmark: Bookmark::default(),
                priority: Priority::Sync,
                scrub: false,
                retried: false,
                begun_ns: 0,
                took_ns: 0,
            },
        }
    }

    #[test]
    fn the_same_error_is_told_once_in_a_quarter_of_an_hour() {
        let leaf = Guid::new(1);
        let mut recent = Recent::default();
        let mut has =
            |leaf, offset, now_s: u64| recent.has(leaf, &error(offset), now_s * SECOND_NS);
        assert!(!has(leaf, 0, 0));
        assert!(!has(leaf, 4096, 0), "elsewhere");
        assert!(!has(Guid::new(2), 0, 0), "another device");
        assert!(has(leaf, 0, 800));
        assert!(has(leaf, 0, 1600), "it was seen in between");
        assert!(!has(leaf, 0, 2501));
        recent.forget(leaf);
        assert!(!recent.has(leaf, &error(0), 2502 * SECOND_NS));
    }

    #[test]
    fn a_bounded_number_of_errors_is_remembered() {
        let mut recent = Recent::default();
        for number in 0..10_000 {
            assert!(!recent.has(Guid::new(1), &error(number), number));
        }
        assert!(recent.known.len() <= REMEMBERED_MAX + 1);
        assert_eq!(recent.known.len(), recent.order.len());
        assert!(
            recent.has(Guid::new(1), &error(9_999), 10_000),
            "the last ones"
        );
        assert!(
            !recent.has(Guid::new(1), &error(0), 10_000),
            "not the first"
        );
    }

    #[test]
    fn so_many_are_told_per_second_and_device() {
        let mut throttle = Throttle::default();
        let mut told = |leaf, at_ns: u64| {
            let mut lets = |_: &u32| throttle.lets(Guid::new(leaf), ErrorKind::Checksum, at_ns);
            (0..100).filter(&mut lets).count()
        };
        assert_eq!(told(1, 0), 20);
        assert_eq!(told(2, 0), 20);
        assert_eq!(told(1, SECOND_NS / 2), 0);
        assert_eq!(told(1, SECOND_NS), 20);
    }
}
