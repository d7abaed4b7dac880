//! How snapshots and bookmarks of a replication are called. Times are seconds since 1970.

use crate::timetable::rule::{is_name, moment, of_moment};

/// What names of snapshots begin with.
const PREFIX: &str = "millpond-";
/// The moment in them.
const MOMENT: &str = "%Y%m%dT%H%M%SZ";
/// How long a moment is.
const MOMENT_CHARS: usize = "20260131T235959Z".len();
/// How long the word is that tells a replication from those of other servers by the same name.
const ID_CHARS: usize = 8;

fn is_tag(tag: &str) -> bool {
    let name = match tag.rsplit_once('-') {
        Some((name, id)) if id.len() == ID_CHARS => name,
        _ => tag,
    };
    is_name(tag) || is_name(name)
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
    format!("{PREFIX}{replication}-{}", moment(MOMENT, at_s))
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
    of_moment(MOMENT, rest)
}

/// The moment for the next snapshot's name: behind those that are there, but where they are of a
/// clock that was further ahead than `slack_s` seconds.
pub(super) fn next_moment(taken: impl Iterator<Item = u64>, now_s: u64, slack_s: u64) -> u64 {
    let behind = taken.filter(|at_s| (now_s..now_s + slack_s).contains(at_s));
    behind.max().map_or(now_s, |newest_s| newest_s + 1)
}

/// The snapshot that a bookmark of some replication is of, by its GUID.
pub(crate) fn guid_of_bookmark(bookmark: &str) -> Option<u64> {
    let (tag, guid) = bookmark.strip_prefix(PREFIX)?.rsplit_once('-')?;
    (is_tag(tag) && is_own_bookmark(tag, bookmark)).then(|| u64::from_str_radix(guid, 16).ok())?
}

/// Whether some replication took a snapshot.
pub(super) fn is_taken_by_any(snapshot: &str) -> bool {
    let Some(rest) = snapshot.strip_prefix(PREFIX) else {
        return false;
    };
    let at = rest.len().checked_sub(MOMENT_CHARS);
    let split = at.and_then(|at| rest.split_at_checked(at));
    split.is_some_and(|(name, moment)| {
        name.strip_suffix('-').is_some_and(is_tag) && of_moment(MOMENT, moment).is_some()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::timetable::rule::NAME_MAX;

    const YEAR_S: u64 = 366 * 24 * 3600;

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
        assert!(!is_taken_by_any("millpond-20240229T235959Z"));
        let bookmark = bookmark_name("home", 7);
        assert!(is_own_bookmark("home", &bookmark));
        assert!(!is_own_bookmark("hom", &bookmark));
        assert!(!is_own_bookmark("home", "millpond-home-20240229T235959Z"));
        assert_eq!(guid_of_bookmark(&bookmark), Some(7));
        let with_id = bookmark_name(&tag("home", &new_id(1)), u64::MAX);
        assert_eq!(guid_of_bookmark(&with_id), Some(u64::MAX));
        for other in [
            "millpond-home-7",
            "mine",
            "millpond-home-20240229T235959Z",
            &name,
        ] {
            assert_eq!(guid_of_bookmark(other), None, "{other}");
        }
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

    #[test]
    fn moments_go_on_behind_each_other() {
        let next = |taken: &[u64]| next_moment(taken.iter().copied(), 1000, 20);
        assert_eq!(next(&[]), 1000);
        assert_eq!(next(&[10, 999]), 1000);
        assert_eq!(next(&[10, 1001]), 1002);
        assert_eq!(next(&[1000]), 1001);
        // A clock was ahead by an hour.
        assert_eq!(next(&[999, 4600]), 1000);
    }

    proptest! {
        /// Names in the order of the alphabet are names in the order of time.
        #[test]
        fn names_are_in_order(one in 0..100 * YEAR_S, other in 0..100 * YEAR_S) {
            let name = |at_s| snapshot_name("a", at_s);
            prop_assert_eq!(one.cmp(&other), name(one).cmp(&name(other)));
        }
    }
}
