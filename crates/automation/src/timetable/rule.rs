//! When something runs that runs again and again, and which of its snapshots stay. Nothing here
//! looks at a clock or a pool.
//!
//! Times are seconds since 1970. What is kept goes by hours, days, weeks and months of UTC, so that
//! neither time zones nor summer time change it. Times of day at which something runs are those of
//! the place where the server is.

use std::collections::BTreeSet;

use api::{Keep, ScheduleWhen};
use chrono::{DateTime, Datelike, Days, NaiveDate, NaiveDateTime, Offset, TimeDelta, TimeZone};

/// Longest name of what runs, in bytes.
pub(crate) const NAME_MAX: usize = 64;
/// How long a run that failed is waited with at first; twice as long after each that fails next.
const RETRY_S: u64 = 60;
/// How long it is waited with at most, where it runs at times of day.
const RETRY_MAX_S: u64 = 6 * HOUR_S;
const HOUR_S: u64 = 3600;
const DAY_S: u64 = 24 * HOUR_S;
/// A time of day of any month is found within so many days.
const LOOK_AHEAD_DAYS: u64 = 63;

/// Whether what runs can be called so.
pub(crate) fn is_name(name: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(is_usual)
}

/// What is called after this that was given no name.
pub(crate) fn name_of(source: &str) -> String {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let usual = source.chars().map(|c| if is_usual(c) { c } else { '-' });
    usual.take(NAME_MAX).collect()
}

/// A moment, of UTC, in a form that gives those of `strftime`.
pub(crate) fn moment(form: &str, at_s: u64) -> String {
    let at = i64::try_from(at_s).ok();
    let at = at.and_then(|at| DateTime::from_timestamp(at, 0));
    at.unwrap_or_default().format(form).to_string()
}

/// The moment that a text of that form tells; none where it is written in another way.
pub(crate) fn of_moment(form: &str, text: &str) -> Option<u64> {
    let at = NaiveDateTime::parse_from_str(text, form).ok()?;
    let at_s = u64::try_from(at.and_utc().timestamp()).ok()?;
    // One way of writing it alone.
    (moment(form, at_s) == text).then_some(at_s)
}

/// What something runs by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rhythm {
    /// How often.
    pub(crate) when: ScheduleWhen,
    /// From when on this holds.
    pub(crate) first_s: u64,
    /// When the last run began.
    pub(crate) begun_s: u64,
    /// When it ended.
    pub(crate) ended_s: u64,
    /// How many have failed, one after the other, up to now.
    pub(crate) failures: u32,
}

impl Rhythm {
    /// When it runs next, which may be over already: then it is due. What was missed while the
    /// server was away, or as the clock jumped forward, is made up for by one run. After a jump
    /// back the next one is no further than usual.
    pub(crate) fn next_s(&self, now_s: u64, zone: &impl TimeZone) -> u64 {
        // What was before it was made was not missed.
        let after_s = self.begun_s.max(self.first_s).min(now_s);
        let (usual, most_s) = match self.when {
            ScheduleWhen::Interval { seconds } => {
                let every_s = seconds.max(1);
                (slot_after(self.first_s, every_s, after_s), every_s)
            }
            when => (time_after(when, after_s, zone), RETRY_MAX_S),
        };
        if self.failures == 0 {
            return usual;
        }
        let doublings = (self.failures - 1).min(32);
        let pause_s = RETRY_S.saturating_mul(1 << doublings).min(most_s);
        let again = self.ended_s.min(now_s).saturating_add(pause_s);
        usual.min(again)
    }
}

/// The first time after `at_s` that is such a time of day there.
fn time_after(when: ScheduleWhen, at_s: u64, zone: &impl TimeZone) -> u64 {
    let at = i64::try_from(at_s).ok();
    let at = at.and_then(|at| DateTime::from_timestamp(at, 0));
    let local = at.unwrap_or_default().with_timezone(zone);
    let (hour, minute) = match when {
        ScheduleWhen::Interval { seconds } => return at_s.saturating_add(seconds.max(1)),
        ScheduleWhen::Hour { minute } => {
            let ahead_s = i64::from(local.offset().fix().local_minus_utc());
            let first = i128::from(minute) * 60 - i128::from(ahead_s);
            let since = (i128::from(at_s) - first).rem_euclid(i128::from(HOUR_S));
            return at_s.saturating_add(HOUR_S - u64::try_from(since).unwrap_or(0));
        }
        ScheduleWhen::Day { hour, minute }
        | ScheduleWhen::Week { hour, minute, .. }
        | ScheduleWhen::Month { hour, minute, .. } => (hour, minute),
    };
    let is_day = |date: NaiveDate| match when {
        ScheduleWhen::Week { day, .. } => {
            date.weekday().num_days_from_monday() == day.days_from_monday()
        }
        ScheduleWhen::Month { day, .. } => {
            // The last day stands in for those that a month has not.
            let is_last = date
                .succ_opt()
                .is_none_or(|next| next.month() != date.month());
            date.day() == u32::from(day) || is_last && date.day() < u32::from(day)
        }
        _ => true,
    };
    let days = (0..LOOK_AHEAD_DAYS).filter_map(|ahead| {
        let date = local.date_naive().checked_add_days(Days::new(ahead))?;
        is_day(date).then_some(date)
    });
    let times = days.filter_map(|date| {
        let time = date.and_hms_opt(hour.into(), minute.into(), 0)?;
        // Clocks that are put forward leave an hour out.
        let there = zone.from_local_datetime(&time).earliest();
        let there = there.or_else(|| {
            zone.from_local_datetime(&(time + TimeDelta::hours(1)))
                .earliest()
        });
        u64::try_from(there?.timestamp()).ok()
    });
    let mut later = times.filter(|time_s| *time_s > at_s);
    later.next().unwrap_or_else(|| at_s.saturating_add(DAY_S))
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
pub(crate) fn kept(taken: &BTreeSet<u64>, keep: &Keep) -> BTreeSet<u64> {
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

/// Those of them that go as soon as there is one of `coming_s`, but for the newest: what may go
/// before that one is taken, where there is no room for it. However often nothing comes of it and
/// other moments are tried, as many stay as the rule says, less one of a class at most. By a clock
/// that was ahead the newest is of a moment to come: nothing counts as taken before it.
pub(crate) fn goes_before(taken: &BTreeSet<u64>, keep: &Keep, coming_s: u64) -> BTreeSet<u64> {
    let newest_s = taken.last().copied().unwrap_or(0);
    let mut with_it = taken.clone();
    with_it.insert(coming_s.max(newest_s));
    let mut stays = kept(&with_it, keep);
    stays.insert(newest_s);
    taken.difference(&stays).copied().collect()
}

fn month(at_s: u64) -> u64 {
    let at = i64::try_from(at_s).ok();
    let at = at.and_then(|at| DateTime::from_timestamp(at, 0));
    let date = at.unwrap_or_default();
    u64::try_from(date.year()).unwrap_or(0) * 12 + u64::from(date.month0())
}

#[cfg(test)]
mod tests {
    use api::Weekday;
    use chrono::{FixedOffset, Utc};
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
    fn names_are_words() {
        let odd = "tank/a b:c/ü".to_owned();
        assert!(is_name(&name_of(&odd)), "{}", name_of(&odd));
        assert!(!is_name("a/b") && !is_name("") && !is_name(&"x".repeat(NAME_MAX + 1)));
    }

    fn after(when: ScheduleWhen, at: &str, zone: &impl TimeZone) -> String {
        let form = "%Y-%m-%d %H:%M";
        let at_s = of_moment(form, at).unwrap();
        moment(form, time_after(when, at_s, zone))
    }

    #[test]
    fn times_of_day_come_when_they_are_said_to() {
        use ScheduleWhen::{Day, Hour, Month, Week};
        let at_two = |day| Month {
            day,
            hour: 2,
            minute: 0,
        };
        let sunday = Week {
            day: Weekday::Sunday,
            hour: 3,
            minute: 30,
        };
        for (when, at, wanted) in [
            (Hour { minute: 15 }, "2024-01-01 10:14", "2024-01-01 10:15"),
            (Hour { minute: 15 }, "2024-01-01 10:15", "2024-01-01 11:15"),
            (Hour { minute: 0 }, "2024-12-31 23:59", "2025-01-01 00:00"),
            (
                Day { hour: 2, minute: 5 },
                "2024-02-28 02:05",
                "2024-02-29 02:05",
            ),
            (
                Day { hour: 2, minute: 5 },
                "2024-02-28 02:04",
                "2024-02-28 02:05",
            ),
            (sunday, "2024-01-01 00:00", "2024-01-07 03:30"),
            (sunday, "2024-01-07 03:30", "2024-01-14 03:30"),
            (at_two(1), "2024-01-01 02:00", "2024-02-01 02:00"),
            (at_two(1), "2024-12-05 02:00", "2025-01-01 02:00"),
            // The last day stands in.
            (at_two(31), "2024-01-31 02:00", "2024-02-29 02:00"),
            (at_two(31), "2024-02-29 02:00", "2024-03-31 02:00"),
            (at_two(30), "2023-01-30 02:00", "2023-02-28 02:00"),
        ] {
            assert_eq!(after(when, at, &Utc), wanted, "{when:?} after {at}");
        }
        // Half past four in India is eleven in Greenwich.
        let india = FixedOffset::east_opt(5 * 3600 + 1800).unwrap();
        let day = Day {
            hour: 4,
            minute: 30,
        };
        assert_eq!(after(day, "2024-01-01 12:00", &india), "2024-01-01 23:00");
        let hour = Hour { minute: 0 };
        assert_eq!(after(hour, "2024-01-01 12:00", &india), "2024-01-01 12:30");
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

        /// What goes to make room is what would go anyway, the newest never is, and trying again
        /// and again takes no more than one of each class.
        #[test]
        fn making_room_takes_what_would_go_anyway(
            taken in prop::collection::btree_set(0..2 * YEAR_S, 1..200),
            counts in prop::array::uniform4(0..30u32),
            tries in prop::collection::btree_set(0..4 * YEAR_S, 1..20),
        ) {
            let keep = rule(counts[0], counts[1], counts[2], counts[3]);
            let mut left = taken.clone();
            for coming_s in &tries {
                let gone = goes_before(&left, &keep, *coming_s);
                let mut with_it = left.clone();
                with_it.insert(*coming_s);
                prop_assert!(gone.is_disjoint(&kept(&with_it, &keep)));
                left = left.difference(&gone).copied().collect();
                prop_assert!(goes_before(&left, &keep, *coming_s).is_empty());
                prop_assert_eq!(left.last(), taken.last());
            }
            // As one less in each class would keep.
            let less = rule(
                counts[0].saturating_sub(1),
                counts[1].saturating_sub(1),
                counts[2].saturating_sub(1),
                counts[3].saturating_sub(1),
            );
            prop_assert!(kept(&taken, &less).is_subset(&left));
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
            const FORM: &str = "%Y-%m-%d-%H%M%S";
            prop_assert_eq!(of_moment(FORM, &moment(FORM, at_s)), Some(at_s));
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
            let schedule = Rhythm {
                when: ScheduleWhen::Interval { seconds: every_s },
                first_s,
                begun_s,
                ended_s: begun_s + long_s,
                failures,
            };
            let next = schedule.next_s(now_s, &Utc);
            // Whatever the clock did.
            prop_assert!(next <= now_s + every_s);
            if begun_s <= now_s && failures == 0 {
                prop_assert!(next > begun_s);
                // What is due once it has begun is not due again.
                let begun = Rhythm { begun_s: now_s, ..schedule };
                prop_assert!(begun.next_s(now_s, &Utc) > now_s);
                prop_assert_eq!(next.abs_diff(first_s) % every_s, 0);
            }
            if failures > 0 && schedule.ended_s <= now_s {
                let patient = Rhythm { failures: failures + 1, ..schedule };
                prop_assert!(patient.next_s(now_s, &Utc) >= next);
                prop_assert!(next > schedule.begun_s.min(schedule.ended_s));
            }
        }

        /// However long the server was away, it makes up for that by one run.
        #[test]
        fn missed_runs_are_one_run(every_s in 1..DAY_S, away_s in 0..YEAR_S) {
            let when = ScheduleWhen::Interval { seconds: every_s };
            let schedule = Rhythm { when, first_s: MONDAY_S, begun_s: MONDAY_S,
                ended_s: MONDAY_S, failures: 0 };
            let now_s = MONDAY_S + away_s;
            let is_due = schedule.next_s(now_s, &Utc) <= now_s;
            prop_assert_eq!(is_due, away_s >= every_s);
            let begun = Rhythm { begun_s: now_s, ended_s: now_s, ..schedule };
            prop_assert!(begun.next_s(now_s, &Utc) > now_s);
        }

        /// The same at times of day, and nothing is due before it was made.
        #[test]
        fn missed_times_of_day_are_one_run(
            kind in 0..5u8, day in 1..32u8, hour in 0..24u8, minute in 0..60u8,
            first_s in MONDAY_S..MONDAY_S + YEAR_S, away_s in 0..YEAR_S,
        ) {
            let when = match kind {
                0 => ScheduleWhen::Hour { minute },
                1 => ScheduleWhen::Day { hour, minute },
                2 => ScheduleWhen::Week { day: Weekday::ALL[usize::from(day % 7)], hour, minute },
                3 => ScheduleWhen::Month { day, hour, minute },
                _ => ScheduleWhen::Interval { seconds: u64::from(day) * DAY_S },
            };
            let new = Rhythm { when, first_s, begun_s: 0, ended_s: 0, failures: 0 };
            let next = new.next_s(first_s, &Utc);
            prop_assert!(next > first_s && next <= first_s + 32 * DAY_S);
            prop_assert_eq!(new.next_s(first_s + away_s, &Utc), next);
            let now_s = next + away_s;
            let begun = Rhythm { begun_s: now_s, ended_s: now_s, ..new };
            prop_assert!(begun.next_s(now_s, &Utc) > now_s);
            // The clock was set back.
            prop_assert!(begun.next_s(first_s, &Utc) <= first_s + 32 * DAY_S);
            let failed = Rhythm { failures: 3, ..begun };
            prop_assert!(failed.next_s(now_s, &Utc) <= now_s + 4 * RETRY_S);
        }
    }
}
