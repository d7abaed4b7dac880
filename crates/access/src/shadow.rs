//! Names of previous versions (MS-SMB2 section 2.2.32.2, "@GMT tokens"): when a snapshot was made,
//! in UTC, to the second.

use std::collections::BTreeMap;

use chrono::DateTime;

/// What snapshots, with the seconds since the epoch when they were made, are called as previous
/// versions: that, and their own names, oldest first. Of several of one second, one has the name:
/// that which is last by its own.
pub(crate) fn names(snapshots: Vec<(String, u64)>) -> Vec<(String, String)> {
    let mut by_second = BTreeMap::new();
    for (name, seconds) in snapshots {
        let chosen = by_second.entry(seconds).or_insert_with(String::new);
        if *chosen <= name {
            *chosen = name;
        }
    }
    let named = by_second.into_iter();
    named
        .filter_map(|(seconds, name)| {
            let time = DateTime::from_timestamp(i64::try_from(seconds).ok()?, 0)?;
            Some((time.format("@GMT-%Y.%m.%d-%H.%M.%S").to_string(), name))
        })
        .collect()
}

/// Which of the snapshots has this name as a previous version.
pub(crate) fn find(name: &str, snapshots: Vec<(String, u64)>) -> Option<String> {
    if !name.starts_with("@GMT-") {
        return None;
    }
    let mut names = names(snapshots).into_iter();
    names.find_map(|(shown, dataset)| (shown == name).then_some(dataset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_named_after_the_second_that_they_were_made_in() {
        let snapshots = || {
            [
                ("late", 1_767_323_045),
                ("daily", 0),
                ("hourly", 0),
                ("far", u64::MAX),
            ]
            .map(|(name, seconds)| (name.to_owned(), seconds))
            .to_vec()
        };
        let expected = [
            ("@GMT-1970.01.01-00.00.00", "hourly"),
            ("@GMT-2026.01.02-03.04.05", "late"),
        ];
        let expected = expected.map(|(shown, name)| (shown.to_owned(), name.to_owned()));
        assert_eq!(names(snapshots()), expected);
        for (shown, name) in expected {
            assert_eq!(find(&shown, snapshots()), Some(name));
        }
        for other in ["@GMT-2026.01.02-03.04.06", "late", "@GMT-", ""] {
            assert_eq!(find(other, snapshots()), None);
        }
    }
}
