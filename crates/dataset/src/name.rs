//! Names of datasets: `pool[/component]...[@snapshot]` (module/zcommon/zfs_namecheck.c).

use crate::DatasetError;

/// Longest full name, its ending zero included (`ZFS_MAX_DATASET_NAME_LEN`).
pub const NAME_MAX_BYTES: usize = 256;
/// Deepest nesting of filesystems (`zfs_max_dataset_nesting`).
pub const NESTING_MAX: usize = 50;

/// Splits `fs@snap` into filesystem and snapshot name.
pub fn split_snapshot(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((head, snapshot)) => (head, Some(snapshot)),
        None => (name, None),
    }
}

/// Splits `a/b/c` into `a/b` and `c`; a pool's name has no parent.
pub fn split_parent(name: &str) -> (Option<&str>, &str) {
    match name.rsplit_once('/') {
        Some((parent, last)) => (Some(parent), last),
        None => (None, name),
    }
}

/// Checks a full name of a dataset or snapshot that is to be created.
///
/// # Errors
///
/// [`DatasetError::InvalidName`].
pub fn check_name(name: &str) -> Result<(), DatasetError> {
    match name_fault(name) {
        None => Ok(()),
        Some(reason) => Err(DatasetError::InvalidName {
            name: name.to_owned(),
            reason,
        }),
    }
}

/// Checks a full name of a bookmark, `POOL/DATASET#NAME` (`bookmark_namecheck`).
///
/// # Errors
///
/// [`DatasetError::InvalidName`].
pub fn check_bookmark_name(name: &str) -> Result<(), DatasetError> {
    let as_snapshot = match name.split_once('#') {
        Some((head, short)) if !head.contains('@') && !short.contains('#') => {
            format!("{head}@{short}")
        }
        _ => {
            return Err(DatasetError::InvalidName {
                name: name.to_owned(),
                reason: "a bookmark's name has one '#' delimiter".into(),
            });
        }
    };
    match name_fault(&as_snapshot) {
        None => Ok(()),
        Some(reason) => Err(DatasetError::InvalidName {
            name: name.to_owned(),
            reason,
        }),
    }
}

fn name_fault(name: &str) -> Option<String> {
    if name.len() >= NAME_MAX_BYTES {
        return Some("name is too long".into());
    }
    if name.starts_with('/') {
        return Some("leading slash in name".into());
    }
    if name.ends_with('/') {
        return Some("trailing slash in name".into());
    }
    if let Some(bad) = name
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || "-_.: /@".contains(*c)))
    {
        return Some(if bad == '#' {
            "bookmark delimiter '#' is not expected here".into()
        } else {
            format!("invalid character '{bad}' in name")
        });
    }
    if name.matches('@').count() > 1 {
        return Some("multiple '@' and/or '#' delimiters in name".into());
    }
    let (head, snapshot) = split_snapshot(name);
    if snapshot.is_some_and(|snapshot| snapshot.contains('/')) {
        return Some("trailing slash in name".into());
    }
    if snapshot == Some("") || head.split('/').any(str::is_empty) {
        return Some("empty component or misplaced '@' or '#' delimiter in name".into());
    }
    if head.split('/').any(|part| part == ".") {
        return Some("self reference, '.' is found in name".into());
    }
    if head.split('/').any(|part| part == "..") {
        return Some("parent reference, '..' is found in name".into());
    }
    if head.matches('/').count() >= NESTING_MAX {
        return Some("too many levels of nesting".into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_as_openzfs_does() {
        for good in ["tank", "tank/a", "tank/a b/c:d@snap.1-x_y", "t/..."] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for (bad, word) in [
            ("/tank", "leading"),
            ("tank/", "trailing"),
            ("tank//a", "empty"),
            ("tank@", "empty"),
            ("tank@a@b", "multiple"),
            ("tank@a/b", "trailing"),
            ("tank/$a", "'$'"),
            ("tank/a%b", "'%'"),
            ("tank/.", "self"),
            ("tank/../x", "parent"),
            ("tank/a#b", "'#'"),
            ("", "empty"),
        ] {
            let error = check_name(bad).expect_err(bad).to_string();
            assert!(error.contains(word), "{bad}: {error}");
        }
        let long = format!("t/{}", "x".repeat(254));
        assert!(check_name(&long).is_err());
        assert!(check_name(&long[..255]).is_ok());
        let deep = vec!["a"; 51].join("/");
        assert!(check_name(&deep).is_err());
        assert!(check_name(&deep[2..]).is_ok());
    }
}
