//! Dataset properties as people read them: which are sizes, ratios, times (zfs_prop.c, and
//! `zfs_prop_get` in lib/libzfs/libzfs_dataset.c for the conversions).

use crate::numbers;

/// How a property's parseable value turns into text for people.
enum Kind {
    /// Bytes.
    Size,
    /// Bytes; 0 means `none`.
    SizeOrNone,
    /// A count; the largest number means `none`.
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
        name if name.starts_with("written@")
            || name.starts_with("userused@")
            || name.starts_with("groupused@") =>
        {
            Kind::Size
        }
        name if name.starts_with("userquota@") || name.starts_with("groupquota@") => {
            Kind::SizeOrNone
        }
        _ => Kind::Text,
    }
}

/// Whether the column stands at the right in `zfs list`.
pub fn is_number(property: &str) -> bool {
    !matches!(kind(property), Kind::Text | Kind::Time) || matches!(property, "creation")
}

/// A value for people, or exact with `parseable`.
pub fn shown(property: &str, value: &str, parseable: bool) -> String {
    if value.is_empty() {
        return "-".into();
    }
    if parseable {
        return value.into();
    }
    let number = value.parse::<u64>();
    match (kind(property), number) {
        (Kind::Size, Ok(bytes)) if property == "special_small_blocks" && bytes == 0 => "0".into(),
        (Kind::Size, Ok(bytes)) => numbers::nice_bytes(bytes),
        (Kind::SizeOrNone, Ok(0)) => "none".into(),
        (Kind::SizeOrNone, Ok(bytes)) => numbers::nice_bytes(bytes),
        (Kind::CountOrNone, Ok(u64::MAX)) => "none".into(),
        (Kind::Ratio, _) => format!("{value}x"),
        (Kind::Time, Ok(seconds)) => numbers::local_minute(seconds),
        _ => value.into(),
    }
}

/// Full names of the abbreviations that `-o` and `get` accept (zfs_prop.c, column names).
pub fn full_name(property: &str) -> &str {
    match property {
        "avail" => "available",
        "refer" => "referenced",
        "lrefer" => "logicalreferenced",
        "lused" => "logicalused",
        "ratio" => "compressratio",
        "refratio" => "refcompressratio",
        "recsize" => "recordsize",
        "volblock" => "volblocksize",
        "compress" => "compression",
        "rdonly" => "readonly",
        "reserv" => "reservation",
        "refreserv" => "refreservation",
        "usedds" => "usedbydataset",
        "usedsnap" => "usedbysnapshots",
        "usedchild" => "usedbychildren",
        "usedrefreserv" => "usedbyrefreservation",
        other => other,
    }
}

/// The heading of a column.
pub fn heading(property: &str) -> String {
    match property {
        "available" => "AVAIL".into(),
        "referenced" => "REFER".into(),
        "logicalreferenced" => "LREFER".into(),
        "logicalused" => "LUSED".into(),
        "compressratio" => "RATIO".into(),
        "refcompressratio" => "REFRATIO".into(),
        "recordsize" => "RECSIZE".into(),
        "volblocksize" => "VOLBLOCK".into(),
        "compression" => "COMPRESS".into(),
        "readonly" => "RDONLY".into(),
        "reservation" => "RESERV".into(),
        "refreservation" => "REFRESERV".into(),
        "usedbydataset" => "USEDDS".into(),
        "usedbysnapshots" => "USEDSNAP".into(),
        "usedbychildren" => "USEDCHILD".into(),
        "usedbyrefreservation" => "USEDREFRESERV".into(),
        other => other.to_uppercase(),
    }
}
