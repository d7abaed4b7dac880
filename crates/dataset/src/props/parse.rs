//! Values of properties: from what a person types to what is stored, and back to what is shown.

use super::{Kinds, Property, PropertyValue, ValueKind};
use crate::DatasetError;

/// Longest text value, its ending zero included (`ZAP_MAXVALUELEN`, include/sys/zap.h).
const TEXT_VALUE_MAX_BYTES: usize = 8192;
/// Longest name of a property, its ending zero included (`ZAP_MAXNAMELEN`).
const NAME_MAX_BYTES: usize = 256;
/// Largest record or volume block (`SPA_MAXBLOCKSIZE`).
const BLOCK_MAX_BYTES: u64 = 16 << 20;
/// Longest component of a mount point (`mountpoint_namecheck`).
const MOUNTPOINT_COMPONENT_MAX_BYTES: usize = 256;

/// Whether `name` is that of a user property: lower-case letters, digits and `-_.:+`, with at least
/// one colon (`zfs_prop_user`, module/zcommon/zfs_prop.c).
pub fn is_user_property(name: &str) -> bool {
    name.contains(':')
        && name.len() < NAME_MAX_BYTES
        && name
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_.:+".contains(&c))
}

/// Whether a text can be the value of a property: a ZAP has no room for more, and text on disk ends
/// at its first zero byte.
pub(crate) fn fits_a_value(text: &str) -> bool {
    text.len() < TEXT_VALUE_MAX_BYTES && !text.contains('\0')
}

/// A size as people write it: `10`, `1.5G`, `64KiB` (`zfs_nicestrtonum`, lib/libzfs/libzfs_util.c).
/// The error is the reason, in OpenZFS's words.
pub fn parse_size(text: &str) -> Result<u64, String> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(format!("bad numeric value '{text}'"));
    }
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let too_large = || "numeric value is too large".to_owned();
    let (whole, rest) = text.split_at(digits);
    if let Some(fraction) = rest.strip_prefix('.') {
        let end = fraction
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(fraction.len());
        let number: f64 = format!("0{whole}.{}0", &fraction[..end])
            .parse()
            .map_err(|_| format!("bad numeric value '{text}'"))?;
        let scaled = number * 2f64.powi(suffix_shift(&fraction[end..])? as i32);
        if scaled >= u64::MAX as f64 {
            return Err(too_large());
        }
        Ok(scaled as u64)
    } else {
        let number: u64 = whole.parse().map_err(|_| too_large())?;
        let shift = suffix_shift(rest)?;
        number
            .checked_mul(1u64.checked_shl(shift).ok_or_else(too_large)?)
            .ok_or_else(too_large)
    }
}

fn suffix_shift(suffix: &str) -> Result<u32, String> {
    let bad = || format!("invalid numeric suffix '{suffix}'");
    let lower = suffix.to_ascii_lowercase();
    let Some(letter) = lower.chars().next() else {
        return Ok(0);
    };
    let power = "bkmgtpez".find(letter).ok_or_else(bad)? as u32;
    match &lower[1..] {
        "" => Ok(power * 10),
        "b" | "ib" if power > 0 => Ok(power * 10),
        _ => Err(bad()),
    }
}

/// A size as `zfs list` shows it: at most five characters, powers of 1024
/// (`zfs_nicenum_format` with `ZFS_NICENUM_1024`, lib/libzutil/zutil_nicenum.c).
pub fn format_size(bytes: u64) -> String {
    const UNITS: &[&str] = &["B", "K", "M", "G", "T", "P", "E"];
    let mut index = 0;
    let mut scaled = bytes;
    while scaled >= 1024 && index < UNITS.len() - 1 {
        scaled /= 1024;
        index += 1;
    }
    let unit = UNITS[index];
    let divisor = 1u64 << (10 * index as u32);
    if index == 0 || bytes.is_multiple_of(divisor) {
        return format!("{scaled}{unit}");
    }
    let exact = bytes as f64 / divisor as f64;
    // The first precision whose result fits in five characters.
    for digits in [2usize, 1, 0] {
        let text = format!("{exact:.digits$}{unit}");
        if text.len() <= 5 {
            return text;
        }
    }
    format!("{exact:.0}{unit}")
}

/// Turns what a person typed (or an API gave) for a native property into what is stored, with the
/// checks that OpenZFS makes on it (`zprop_parse_value` and `zfs_valid_proplist`, lib/libzfs).
///
/// # Errors
///
/// [`DatasetError::InvalidProperty`], with OpenZFS's reason.
pub fn parse_value(
    property: &Property,
    kinds: Kinds,
    typed: &str,
) -> Result<PropertyValue, DatasetError> {
    let name = property.name;
    match property.kind {
        ValueKind::Text => {
            if !fits_a_value(typed) {
                return Err(property.invalid(format!("'{name}' is too long")));
            }
            check_text(property, typed)?;
            Ok(PropertyValue::Text(typed.to_owned()))
        }
        ValueKind::Index(table) => table
            .iter()
            .find(|(word, _)| *word == typed)
            .map(|(_, number)| PropertyValue::Number(*number))
            .ok_or_else(|| {
                property.invalid(format!("'{name}' must be one of '{}'", property.values))
            }),
        ValueKind::Number => {
            let number = match typed {
                "none" if name == "filesystem_limit" || name == "snapshot_limit" => u64::MAX,
                "none" => 0,
                "auto" if name == "refreservation" && kinds.meets(Kinds::VOLUME) => u64::MAX,
                "auto" if name == "refreservation" => {
                    return Err(property.invalid(format!("'{name}=auto' only allowed on volumes")));
                }
                "auto" => {
                    return Err(property.invalid(format!("'auto' is invalid value for '{name}'")));
                }
                other => parse_size(other).map_err(|reason| property.invalid(reason))?,
            };
            if number == 0 && typed != "none" && matches!(name, "quota" | "refquota") {
                return Err(property.invalid("use 'none' to disable quota/refquota"));
            }
            check_number(property, number)?;
            Ok(PropertyValue::Number(number))
        }
    }
}

fn check_number(property: &Property, number: u64) -> Result<(), DatasetError> {
    let name = property.name;
    match name {
        "recordsize" | "volblocksize"
            if !(512..=BLOCK_MAX_BYTES).contains(&number) || !number.is_power_of_two() =>
        {
            Err(property.invalid(format!("'{name}' must be power of 2 from 512B to 16M")))
        }
        "special_small_blocks"
            if number != 0
                && (!(512..=BLOCK_MAX_BYTES).contains(&number) || !number.is_power_of_two()) =>
        {
            Err(property.invalid(format!(
                "invalid '{name}={number}' property: must be zero or a power of 2 from 512B to 16M"
            )))
        }
        "volsize" if number == 0 => Err(property.invalid(format!("'{name}' cannot be zero"))),
        _ => Ok(()),
    }
}

fn check_text(property: &Property, text: &str) -> Result<(), DatasetError> {
    let name = property.name;
    match name {
        "mountpoint" if text == "none" || text == "legacy" => Ok(()),
        "mountpoint" if !text.starts_with('/') => Err(property.invalid(format!(
            "'{name}' must be an absolute path, 'none', or 'legacy'"
        ))),
        "mountpoint"
            if text
                .split('/')
                .any(|part| part.len() >= MOUNTPOINT_COMPONENT_MAX_BYTES) =>
        {
            Err(property.invalid(format!("component of '{name}' is too long")))
        }
        "mlslabel" if text != "none" => Err(property.invalid("mlslabels are unsupported")),
        // Which datasets have one is checked where they are known.
        // As `zfs_prop_valid_keylocation` (module/zcommon/zfs_prop.c).
        "keylocation" if text == "none" || text == "prompt" => Ok(()),
        "keylocation"
            if !["file:///", "https://", "http://"]
                .iter()
                .any(|begin| text.starts_with(begin)) =>
        {
            Err(property.invalid(format!(
                "invalid keylocation\n'{name}' must be 'none', 'prompt', file:///PATH or \
                 https://URL"
            )))
        }
        _ => Ok(()),
    }
}

/// A value as `zfs get` shows it; `exact` is its option `-p`.
///
/// Times (`creation`, `snapshots_changed`) are shown in seconds: how to write a date is up to
/// whoever knows the reader's time zone.
pub fn show_value(property: Option<&Property>, value: &PropertyValue, exact: bool) -> String {
    let number = match value {
        PropertyValue::Text(text) => return text.clone(),
        PropertyValue::Number(number) => *number,
    };
    let Some(property) = property else {
        return number.to_string();
    };
    if let ValueKind::Index(_) = property.kind {
        return property
            .word(number)
            .map_or_else(|| number.to_string(), str::to_owned);
    }
    match property.name {
        "compressratio" | "refcompressratio" => {
            let text = format!("{}.{:02}", number / 100, number % 100);
            if exact { text } else { text + "x" }
        }
        "guid" | "createtxg" | "objsetid" | "creation" | "snapshots_changed" | "pbkdf2iters"
        | "userrefs" | "numclones" | "ivsetguid" | "keyguid" | "inconsistent" | "redacted"
        | "useraccounting" | "pbkdf2salt" => number.to_string(),
        "filesystem_limit" | "snapshot_limit" | "filesystem_count" | "snapshot_count"
            if number == u64::MAX =>
        {
            "none".to_owned()
        }
        "filesystem_limit" | "snapshot_limit" | "filesystem_count" | "snapshot_count" => {
            number.to_string()
        }
        "quota" | "refquota" | "reservation" | "refreservation" if number == 0 && !exact => {
            "none".to_owned()
        }
        _ if exact => number.to_string(),
        _ => format_size(number),
    }
}
