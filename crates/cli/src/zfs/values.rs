//! Dataset properties as people read them: which are sizes, ratios, times (zfs_prop.c, and
//! `zfs_prop_get` in lib/libzfs/libzfs_dataset.c for the conversions).

use dataset::props::ValueKind;

use crate::numbers;

/// How a property's parseable value turns into text for people.
enum Kind {
    /// Bytes.
    Size,
    /// Bytes; 0 means `none`.
    SizeOrNone,
    /// A count.
    Count,
    /// A count; the largest number means `none`, and 0 where it is a quota.
    CountOrNone,
    /// `1.00` becomes `1.00x`.
    Ratio,
    /// Seconds since the epoch.
    Time,
    /// A number shown as it is.
    Number,
    /// Text shown as it is.
    Text,
}

fn kind(property: &str) -> Kind {
    match property {
        "used"
        | "available"
        | "referenced"
        | "usedbysnapshots"
        | "usedbydataset"
        | "usedbychildren"
        | "usedbyrefreservation"
        | "logicalused"
        | "logicalreferenced"
        | "written"
        | "volsize"
        | "recordsize"
        | "volblocksize"
        | "special_small_blocks" => Kind::Size,
        "quota" | "refquota" | "reservation" | "refreservation" => Kind::SizeOrNone,
        "filesystem_limit" | "snapshot_limit" | "filesystem_count" | "snapshot_count" => {
            Kind::CountOrNone
        }
        "compressratio" | "refcompressratio" => Kind::Ratio,
        "creation" | "snapshots_changed" => Kind::Time,
        "guid" | "createtxg" | "objsetid" | "copies" | "version" | "userrefs" => Kind::Number,
        name if is_default_quota(name) && name.contains("obj") => Kind::Count,
        name if is_default_quota(name) => Kind::Size,
        name if name.contains("objused@") => Kind::Count,
        name if name.contains("objquota@") => Kind::CountOrNone,
        name if name.contains("used@") || is_written_since(name) => Kind::Size,
        name if name.contains("quota@") => Kind::SizeOrNone,
        _ => Kind::Text,
    }
}

/// Whether a property is the quota of users, groups or projects that have none of their own.
pub fn is_default_quota(property: &str) -> bool {
    let inner = property.strip_prefix("default");
    let inner = inner.and_then(|name| name.strip_suffix("quota"));
    let kind = inner.map(|kind| kind.strip_suffix("obj").unwrap_or(kind));
    matches!(kind, Some("user" | "group" | "project"))
}

/// Whether it is `written@SNAPSHOT` or `written#BOOKMARK`.
fn is_written_since(property: &str) -> bool {
    let rest = property.strip_prefix("written");
    rest.is_some_and(|rest| rest.starts_with(['@', '#']))
}

/// Whether the column stands at the right in `zfs list`.
pub fn is_number(property: &str) -> bool {
    match dataset::props::find(property) {
        Some(native) => native.right_aligned,
        None => !matches!(kind(property), Kind::Text | Kind::Time),
    }
}

/// Whether there is a property of this name: native, of users, or of what an owner uses and may
/// use.
pub fn is_known(property: &str) -> bool {
    const OWNERS: [&str; 12] = [
        "userused@",
        "userquota@",
        "userobjused@",
        "userobjquota@",
        "groupused@",
        "groupquota@",
        "groupobjused@",
        "groupobjquota@",
        "projectused@",
        "projectquota@",
        "projectobjused@",
        "projectobjquota@",
    ];
    property == "name"
        || property.contains(':')
        || is_default_quota(property)
        || is_written_since(property)
        || OWNERS.iter().any(|prefix| property.starts_with(prefix))
        || dataset::props::find(property).is_some()
}

/// A value for people, or exact with `parseable`.
pub fn shown(property: &str, value: &str, parseable: bool) -> String {
    // One of users that is set to nothing is nothing.
    if value.is_empty() && !property.contains(':') {
        return "-".into();
    }
    if parseable {
        return value.into();
    }
    let number = value.parse::<u64>();
    match (kind(property), number) {
        (Kind::Size, Ok(0)) if property == "special_small_blocks" || is_default_quota(property) => {
            "0".into()
        }
        (Kind::Size, Ok(bytes)) => numbers::nice_bytes(bytes),
        (Kind::SizeOrNone, Ok(0)) => "none".into(),
        (Kind::SizeOrNone, Ok(bytes)) => numbers::nice_bytes(bytes),
        (Kind::CountOrNone, Ok(u64::MAX)) => "none".into(),
        (Kind::CountOrNone, Ok(0)) if property.contains('@') => "none".into(),
        (Kind::CountOrNone | Kind::Count, Ok(count)) => numbers::nice_count(count),
        (Kind::Ratio, _) => format!("{value}x"),
        (Kind::Time, Ok(seconds)) => numbers::local_minute(seconds),
        _ => value.into(),
    }
}

/// The narrowest widths of `zfs get`'s columns of properties and of values, by what is asked for:
/// as wide as names, headings and the words that a property takes, whether they are shown or not
/// (`zprop_print_headers`, lib/libzfs/libzfs_util.c; `zprop_width`, module/zcommon/zprop_common.c).
pub fn least_widths<'a>(asked: impl Iterator<Item = &'a str>) -> (usize, usize) {
    let (mut names, mut values) = (0, 0);
    for name in asked {
        names = names.max(name.len());
        let width = match dataset::props::find(name) {
            None => name.len(),
            Some(native) => match native.kind {
                ValueKind::Number => native.column.len().max(5),
                ValueKind::Text => native.column.len(),
                ValueKind::Index(table) => {
                    let words = table.iter().map(|(word, _)| word.len());
                    words.max().unwrap_or(0).max(native.column.len())
                }
            },
        };
        values = values.max(width);
    }
    (names, values)
}

/// The heading of a column.
pub fn heading(property: &str) -> String {
    match dataset::props::find(property) {
        Some(native) => native.column.to_owned(),
        None => property.to_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As OpenZFS's `zfs get compression,used` has it: a column of values as wide as the longest
    /// word that compression takes.
    #[test]
    fn columns_are_as_wide_as_what_could_be_in_them() {
        let widths = |names: &[&str]| least_widths(names.iter().copied());
        assert_eq!(widths(&["used"]), (4, 5));
        assert_eq!(
            widths(&["compression", "used"]),
            (11, "zstd-fast-1000".len())
        );
        assert_eq!(widths(&["my:property"]), (11, 11));
    }
}
