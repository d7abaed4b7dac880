//! When a replication runs, how its snapshots are called, and which of them stay. Nothing here
//! looks at a clock or a pool.
//!
//! Times are seconds since 1970. Hours, days, weeks and months are those of UTC, so that neither
//! time zones nor summer time change what is kept.

use std::collections::BTreeSet;

use api::Keep;
use chrono::{DateTime, Datelike, NaiveDateTime};

/// What names of snapshots begin with.
const PREFIX: &str = "millpond-";
/// The moment in them.
const MOMENT: &str = "%Y%m%dT%H%M%SZ";
/// How long a moment is.
const MOMENT_CHARS: usize = "20260131T235959Z".len();
/// Longest name of a replication, in bytes.
pub(super) const NAME_MAX: usize = 64;
/// How long a run that failed is waited with at first; twice as long after each that fails next.
const RETRY_S: u64 = 60;
/// How long the word is that tells a replication from those of other servers by the same name.
const ID_CHARS: usize = 8;
const HOUR_S: u64 = 3600;
const DAY_S: u64 = 24 * HOUR_S;

/// Whether a replication can be called so.
pub(super) fn is_name(name: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(is_usual)
}

fn is_tag(tag: &str) -> bool {
    let name = match tag.rsplit_once('-') {
        Some((name, id)) if id.len() == ID_CHARS => name,
        _ => tag,
    };
    is_name(tag) || is_name(name)
}

/// What a replication is called that was given no name.
pub(super) fn name_of(source: &str) -> String {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let usual = source.chars().map(|c| if is_usual(c) { c } else { '-' });
    usual.take(NAME_MAX).collect()
}

/// A word for a new replication.
pub(super) fn new_id(random: u64) -> String {
    format!("{:08x}", random & 0xffff_ffff)
}

/// What the names of a replication's snapshots and bookmarks say of it. Names alone are not enough:
/// replications of two servers may have the same one, and one may send into what the other sends.
/// Without an ID it is the name; those were made so once.
pub(super) fn tag(name: &str, id: &str) -> String {
    match id.is_empty() {
        true => name.to_owned(),
        false => format!("{name}-{id}"),
    }
}

/// The ID of an earlier replication of that name whose bookmark this is. Bookmarks are never sent,
/// so it was one of the pool's own server.
pub(super) fn id_of_bookmark(name: &str, bookmark: &str) -> Option<String> {
    let (id, _) = bookmark
        .strip_prefix(&bookmark_prefix(name))?
        .split_once('-')?;
    let is_id = id.len() == ID_CHARS && u32::from_str_radix(id, 16).is_ok();
    (is_id && is_own_bookmark(&tag(name, id), bookmark)).then(|| id.to_owned())
}

/// The name of a snapshot, after the `@`, that a replication takes at a moment. `replication` is
/// its tag, here and below.
pub(super) fn snapshot_name(replication: &str, at_s: u64) -> String {
    format!("{PREFIX}{replication}-{}", moment(at_s))
}

/// The name of the bookmark of what was sent last, a snapshot with that GUID.
pub(super) fn bookmark_name(replication: &str, guid: u64) -> String {
    format!("{PREFIX}{replication}-{guid:016x}")
}

/// Whether a bookmark is one of a replication's.
pub(super) fn is_own_bookmark(replication: &str, name: &str) -> bool {
    let guid = name.strip_prefix(&bookmark_prefix(replication));
    guid.is_some_and(|guid| guid.len() == 16 && u64::from_str_radix(guid, 16).is_ok())
}

fn bookmark_prefix(replication: &str) -> String {
    format!("{PREFIX}{replication}-")
}

/// When a replication took a snapshot; nothing where that is none of its own.
pub(super) fn taken_at(replication: &str, snapshot: &str) -> Option<u64> {
    let rest = snapshot.strip_prefix(&bookmark_prefix(replication))?;
    of_moment(rest)
}

/// Whether some replication took a snapshot.
pub(super) fn is_taken_by_any(snapshot: &str) -> bool {
    let Some(rest) = snapshot.strip_prefix(PREFIX) else {
        return false;
    };
    let at = rest.len().checked_sub(MOMENT_CHARS);
    let split = at.and_then(|at| rest.split_at_checked(at));
    split.is_some_and(|(name, moment)| {
        name.strip_suffix('-').is_some_and(is_tag) && of_moment(moment).is_some()
    })
}

fn moment(at_s: u64) -> String {
    let at = i64::try_from(at_s).ok();
    let at = at.and_then(|at| DateTime::from_timestamp(at, 0));
    at.unwrap_or_default().format(MOMENT).to_string()
}

fn of_moment(text: &str) -> Option<u64> {
    if text.len() != MOMENT_CHARS {
        return None;
    }
    let at = NaiveDateTime::parse_from_str(text, MOMENT).ok()?;
    let at_s = u64::try_from(at.and_utc().timestamp()).ok()?;
    // One way of writing it alone.
    (moment(at_s) == text).then_some(at_s)
}

/// What a replication runs by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Schedule {
    /// Seconds between two runs; at least one.
    pub(super) every_s: u64,
    /// When the first one was.
    pub(super) first_s: u64,
    /// When the last one began.
    pub(super) begun_s: u64,
    /// When it ended.
    pub(super) ended_s: u64,
    /// How many have failed, one after the other, up to now.
    pub(super) failures: u32,
}

impl Schedule {
    /// When it runs next, which may be over already: then it is due. What was missed while the
    /// server was away, or as the clock jumped forward, is made up for by one run. After a jump
    /// back the next one is no further than usual.
    pub(super) fn next_s(&self, now_s: u64) -> u64 {
        let every_s = self.every_s.max(1);
        let usual = slot_after(self.first_s, every_s, self.begun_s.min(now_s));
        if self.failures == 0 {
            return usual;
        }
        let doublings = (self.failures - 1).min(32);
        let pause_s = RETRY_S.saturating_mul(1 << doublings).min(every_s);
        let again = self.ended_s.min(now_s).saturating_add(pause_s);
        usual.min(again)
    }
}

/// The first moment after `at_s` that is a whole number of times `every_s` away from `first_s`.
fn slot_after(first_s: u64, every_s: u64, at_s: u64) -> u64 {
    let since = (i128::from(at_s) - i128::from(first_s)).rem_euclid(i128::from(every_s));
    let since = u64::try_from(since).unwrap_or(0);
    at_s.saturating_add(every_s - since)
}

/// Which of the snapshots that were taken at these moments stay: the newest of each of the last
/// hours, days, weeks and months that have one, as many as the rule says, and the newest of all.
/// Periods without a snapshot do not count, so that what is old does not go while nothing new
/// comes.
pub(super) fn kept(taken: &BTreeSet<u64>, keep: &Keep) -> BTreeSet<u64> {
    let mut out = BTreeSet::new();
    out.extend(taken.last());
    let mut add = |count: u32, period: fn(u64) -> u64| {
        let mut last = None;
        let mut left = count;
        for at_s in taken.iter().rev() {
            let own = period(*at_s);
            if last == Some(own) {
                continue;
            }
            if left == 0 {
                return;
            }
            left -= 1;
            last = Some(own);
            out.insert(*at_s);
        }
    };
    add(keep.hourly, |at_s| at_s / HOUR_S);
    add(keep.daily, |at_s| at_s / DAY_S);
    // The first of January 1970 was a Thursday.
    add(keep.weekly, |at_s| (at_s / DAY_S + 3) / 7);
    add(keep.monthly, month);
    out
}

fn month(at_s: u64) -> u64 {
    let at = i64::try_from(at_s).ok();
    let at = at.and_then(|at| DateTime::from_timestamp(at, 0));
    let date = at.unwrap_or_default();
    u64::try_from(date.year()).unwrap_or(0) * 12 + u64::from(date.month0())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const YEAR_S: u64 = 366 * DAY_S;
    /// The first of January 2024, a Monday.
    const MONDAY_S: u64 = 1_704_067_200;

    fn rule(hourly: u32, daily: u32, weekly: u32, monthly: u32) -> Keep {
        Keep {
            hourly,
            daily,
            weekly,
            monthly,
        }
    }

    #[test]
    fn names_say_who_took_a_snapshot_and_when() {
        let name = snapshot_name("home", 1_709_251_199);
        assert_eq!(name, "millpond-home-20240229T235959Z");
        assert_eq!(taken_at("home", &name), Some(1_709_251_199));
        assert!(is_taken_by_any(&name));
        for (replication, other) in [
            ("hom", name.as_str()),
            ("home", "millpond-home-20240230T000000Z"),
            ("home", "millpond-home-2024022T0000000Z"),
            ("home", "millpond-home-x-20240229T235959Z"),
            ("home", "zfs-auto-snap_hourly-2024-02-29-2359"),
            ("home", "millpond-home-"),
        ] {
            assert_eq!(taken_at(replication, other), None, "{other}");
        }
        let odd = "tank/a b:c/ü".to_owned();
        assert!(is_name(&name_of(&odd)), "{}", name_of(&odd));
        assert!(!is_name("a/b") && !is_name("") && !is_name(&"x".repeat(NAME_MAX + 1)));
        assert!(!is_taken_by_any("millpond-20240229T235959Z"));
        let bookmark = bookmark_name("home", 7);
        assert!(is_own_bookmark("home", &bookmark));
        assert!(!is_own_bookmark("hom", &bookmark));
        assert!(!is_own_bookmark("home", "millpond-home-20240229T235959Z"));
    }

    /// Goal: replications of two servers that have the same name take nothing of each other's for
    /// their own.
    #[test]
    fn the_same_name_elsewhere_is_another_replication() {
        let (ours, theirs) = (tag("home", &new_id(1)), tag("home", &new_id(u64::MAX)));
        assert_eq!(ours, "home-00000001");
        for other in [theirs.as_str(), "home"] {
            let name = snapshot_name(other, 1_709_251_199);
            assert!(is_taken_by_any(&name), "{name}");
            assert_eq!(taken_at(&ours, &name), None);
            assert_eq!(taken_at(other, &name), Some(1_709_251_199));
            assert_eq!(taken_at(other, &snapshot_name(&ours, 0)), None);
            assert!(!is_own_bookmark(&ours, &bookmark_name(other, 7)));
            assert!(!is_own_bookmark(other, &bookmark_name(&ours, 7)));
        }
        let long = tag(&"x".repeat(NAME_MAX), &new_id(7));
        assert!(is_taken_by_any(&snapshot_name(&long, 0)));
        assert_eq!(tag("home", ""), "home");
        let found = |bookmark: &str| id_of_bookmark("home", bookmark);
        assert_eq!(
            found(&bookmark_name(&theirs, 7)).as_deref(),
            Some("ffffffff")
        );
        for other in ["home", "home-x", "home-x-00000001", "hom"] {
            assert_eq!(found(&bookmark_name(other, 7)), None, "{other}");
        }
    }

    /// Goal: after two years of snapshots, one each quarter of an hour, of which those that the
    /// rule does not keep went at once, there are those that somebody would want.
    #[test]
    fn what_stays_reaches_back_as_far_as_the_rule_says() {
        let keep = rule(24, 7, 4, 12);
        let mut left = BTreeSet::new();
        // The middle of a Wednesday in the end.
        let end = MONDAY_S + 2 * YEAR_S + 2 * DAY_S + DAY_S / 2;
        let mut at_s = MONDAY_S;
        while at_s <= end {
            left.insert(at_s);
            left = kept(&left, &keep);
            at_s += HOUR_S / 4;
        }
        assert!(left.len() <= 24 + 7 + 4 + 12 + 1, "{}", left.len());
        let newest = *left.last().unwrap();
        for ago in 0..24 {
            let hour = newest / HOUR_S - ago;
            let last = left.range(hour * HOUR_S..(hour + 1) * HOUR_S).last();
            let wanted = newest.min((hour + 1) * HOUR_S - HOUR_S / 4);
            assert_eq!(last, Some(&wanted), "{ago} hours ago");
        }
        for ago in 1..7 {
            let day = newest / DAY_S - ago;
            assert!(
                left.contains(&((day + 1) * DAY_S - HOUR_S / 4)),
                "{ago} days ago"
            );
        }
        let months: BTreeSet<u64> = left.iter().map(|at_s| month(*at_s)).collect();
        assert_eq!(months.len(), 12);
        assert_eq!(months.last().unwrap() - months.first().unwrap(), 11);
        let oldest = *left.first().unwrap();
        assert!(newest - oldest > 300 * DAY_S, "eleven months back, about");
    }

    proptest! {
        #[test]
        fn keeping_is_bounded_keeps_the_newest_and_changes_nothing_the_second_time(
            taken in prop::collection::btree_set(0..60 * YEAR_S, 1..200),
            counts in prop::array::uniform4(0..30u32),
        ) {
            let keep = rule(counts[0], counts[1], counts[2], counts[3]);
            let once = kept(&taken, &keep);
            prop_assert!(once.is_subset(&taken));
            prop_assert_eq!(once.last(), taken.last());
            prop_assert!(once.len() <= 1 + counts.iter().sum::<u32>() as usize);
            prop_assert_eq!(&kept(&once, &keep), &once);
            // A rule that keeps more in each class keeps all that this one keeps.
            let more = rule(counts[0] + 1, counts[1] + 2, counts[2], counts[3] + 5);
            prop_assert!(once.is_subset(&kept(&taken, &more)));
        }

        /// As many periods have a snapshot as there are, or as the rule says.
        #[test]
        fn no_period_is_left_out(
            taken in prop::collection::btree_set(MONDAY_S..MONDAY_S + YEAR_S, 1..300),
            count in 1..40u32,
        ) {
            for (keep, period) in [
                (rule(count, 0, 0, 0), (|at_s| at_s / HOUR_S) as fn(u64) -> u64),
                (rule(0, count, 0, 0), |at_s| at_s / DAY_S),
                (rule(0, 0, count, 0), |at_s| (at_s - MONDAY_S) / (7 * DAY_S)),
                (rule(0, 0, 0, count), month),
            ] {
                let all: BTreeSet<u64> = taken.iter().map(|at_s| period(*at_s)).collect();
                let wanted: BTreeSet<u64> =
                    all.iter().rev().take(count as usize).copied().collect();
                let left = kept(&taken, &keep);
                let found: BTreeSet<u64> = left.iter().map(|at_s| period(*at_s)).collect();
                prop_assert_eq!(&found, &wanted);
                prop_assert_eq!(left.len(), found.len());
            }
        }

        #[test]
        fn moments_survive_being_written(at_s in 0..8000 * 31_556_952u64) {
            prop_assert_eq!(of_moment(&moment(at_s)), Some(at_s));
        }

        /// Names in the order of the alphabet are names in the order of time.
        #[test]
        fn names_are_in_order(one in 0..100 * YEAR_S, other in 0..100 * YEAR_S) {
            let name = |at_s| snapshot_name("a", at_s);
            prop_assert_eq!(one.cmp(&other), name(one).cmp(&name(other)));
        }

        #[test]
        fn a_run_is_never_further_than_usual_and_never_at_once_after_one_that_worked(
            every_s in 1..40 * DAY_S,
            first_s in 0..2 * YEAR_S,
            begun_s in 0..4 * YEAR_S,
            long_s in 0..2 * DAY_S,
            now_s in 0..4 * YEAR_S,
            failures in 0..50u32,
        ) {
            let schedule = Schedule {
                every_s,
                first_s,
                begun_s,
                ended_s: begun_s + long_s,
                failures,
            };
            let next = schedule.next_s(now_s);
            // Whatever the clock did.
            prop_assert!(next <= now_s + every_s);
            if begun_s <= now_s && failures == 0 {
                prop_assert!(next > begun_s);
                // What is due once it has begun is not due again.
                let begun = Schedule { begun_s: now_s, ..schedule };
                prop_assert!(begun.next_s(now_s) > now_s);
                prop_assert_eq!(next.abs_diff(first_s) % every_s, 0);
            }
            if failures > 0 && schedule.ended_s <= now_s {
                let patient = Schedule { failures: failures + 1, ..schedule };
                prop_assert!(patient.next_s(now_s) >= next);
                prop_assert!(next > schedule.begun_s.min(schedule.ended_s));
            }
        }

        /// However long the server was away, it makes up for that by one run.
        #[test]
        fn missed_runs_are_one_run(every_s in 1..DAY_S, away_s in 0..YEAR_S) {
            let schedule = Schedule { every_s, first_s: MONDAY_S, begun_s: MONDAY_S,
                ended_s: MONDAY_S, failures: 0 };
            let now_s = MONDAY_S + away_s;
            let is_due = schedule.next_s(now_s) <= now_s;
            prop_assert_eq!(is_due, away_s >= every_s);
            let begun = Schedule { begun_s: now_s, ended_s: now_s, ..schedule };
            prop_assert!(begun.next_s(now_s) > now_s);
        }
    }
}
