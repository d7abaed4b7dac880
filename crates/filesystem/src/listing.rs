//! Where who lists a directory is: cookies, and how far he is read ahead of (`list_ahead`).
//!
//! Cookies: 0 is the start, 1 is after `.`, 2 after `..`; then they are the ZAP's cursor and 2
//! (hash, and number among equals), so they stay good while other entries come and go. They fit
//! into 63 bits.

use std::sync::atomic::{AtomicBool, Ordering};

use object::ZapCursor;
use parking_lot::Mutex;

/// The cookie after the last entry.
pub(crate) const END_COOKIE: u64 = i64::MAX as u64;
/// Cookies before the ZAP's.
const FIRST_COOKIE: u64 = 2;

pub(crate) fn to_cookie(cursor: ZapCursor) -> u64 {
    if cursor == ZapCursor::END {
        return END_COOKIE;
    }
    cursor.cookie().saturating_add(FIRST_COOKIE).min(END_COOKIE)
}

pub(crate) fn to_cursor(cookie: u64) -> ZapCursor {
    ZapCursor::from_cookie(cookie.saturating_sub(FIRST_COOKIE))
}

/// Entries that are read ahead at a time.
pub(crate) const ENTRIES_AHEAD: usize = 512;

/// How far who lists a directory is read ahead of.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The directory was listed to its end, and nobody looked for a name since.
    is_for_names: AtomicBool,
    pub(crate) ahead: Mutex<Ahead>,
}

/// How far a listing has got, and what is read ahead of it; by cookies.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    at: u64,
    /// What is before was read ahead.
    until: u64,
    /// Who gets here is read ahead of again.
    more_at: u64,
    /// That is being done.
    is_under_way: bool,
}

impl Listing {
    /// The directory was listed to its end.
    pub(crate) fn is_at_end(&self) {
        self.is_for_names.store(true, Ordering::Relaxed);
    }

    /// Whether who lists it now wants names alone, as far as one can tell.
    pub(crate) fn is_for_names(&self) -> bool {
        self.is_for_names.load(Ordering::Relaxed)
    }

    /// Somebody looks for a name.
    pub(crate) fn is_looked_into(&self) {
        if self.is_for_names.load(Ordering::Relaxed) {
            self.is_for_names.store(false, Ordering::Relaxed);
        }
    }
}

impl Ahead {
    /// From where on to read ahead of who has got to `at`; none where enough was.
    pub(crate) fn begin(&mut self, at: u64) -> Option<u64> {
        if self.is_under_way {
            return None;
        }
        // Else it is another listing, or it overtook what was read ahead.
        let goes_on = self.at < at && at <= self.until;
        if !goes_on {
            (self.until, self.more_at) = (at, at);
        }
        self.at = at;
        if at < self.more_at || self.until == END_COOKIE {
            return None;
        }
        self.is_under_way = true;
        Some(self.until)
    }

    /// That was done for the entries after which these cookies come.
    pub(crate) fn end(&mut self, cookies: &[u64]) {
        self.is_under_way = false;
        self.until = match cookies.last() {
            Some(last) if cookies.len() == ENTRIES_AHEAD => *last,
            _ => END_COOKIE,
        };
        let middle = cookies.get(cookies.len() / 2);
        self.more_at = middle.copied().unwrap_or(END_COOKIE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_read_ahead_of_in_parts() {
        let mut ahead = Ahead::default();
        let (mut at, mut known, mut rounds) = (0, 0, 0);
        let last = 10_000;
        while at < last {
            at = (at + 100).min(last);
            if let Some(from) = ahead.begin(at) {
                assert!(from >= at && from >= known, "{from} is known");
                let cookies = (from + 1..=last).take(ENTRIES_AHEAD);
                let cookies: Vec<u64> = cookies.collect();
                assert_eq!(ahead.begin(at), None, "it is under way");
                ahead.end(&cookies);
                known = cookies.last().copied().unwrap_or(from);
                rounds += 1;
            }
            assert!(known >= at);
        }
        assert!(rounds <= last / ENTRIES_AHEAD as u64 + 1, "{rounds} rounds");
        // Who begins again is read ahead of again.
        assert_eq!(ahead.begin(100), Some(100));
    }
}
