//! Sizes and rates as people write them.

use crate::PlanError;

const WANTED: &str = "a size such as 500GB, 1.5TB (as disks are sold) or 128K, 4G, 4GiB (as zpool \
                      counts)";

/// Bytes of a size: `500GB`, `1.5TB` and the like in powers of 1,000, as disks are sold; `128K`,
/// `4G`, `4GiB` in powers of 1,024, as `zpool` and `zfs` count; a plain number is bytes.
///
/// # Errors
/// [`PlanError::Word`] for anything else, and for what 2^63 bytes do not hold.
pub fn parse_bytes(word: &str) -> Result<u64, PlanError> {
    let bad = || PlanError::word(word, WANTED);
    let digits = word
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let unit = unit.to_ascii_uppercase();
    let power = |letter: char| "KMGTPE".find(letter).map(|at| at as i32 + 1);
    let mut letters = unit.chars();
    let factor = match (letters.next(), letters.as_str()) {
        (None, _) | (Some('B'), "") => 1.0,
        (Some(letter), "B") => 1000f64.powi(power(letter).ok_or_else(bad)?),
        (Some(letter), "" | "IB") => 1024f64.powi(power(letter).ok_or_else(bad)?),
        _ => return Err(bad()),
    };
    let bytes = number.parse::<f64>().map_err(|_| bad())? * factor;
    if !(0.0..9.3e18).contains(&bytes) {
        return Err(bad());
    }
    // Whole numbers below 2^53 are exact; none of a disk's size needs more.
    Ok(bytes.round() as u64)
}

/// Bytes a second: a size, as [`parse_bytes`] reads it, or bits such as `1Gbit`, `450kbit`; with
/// or without `/s`.
///
/// # Errors
/// [`PlanError::Word`].
pub fn parse_rate(word: &str) -> Result<u64, PlanError> {
    let plain = word.strip_suffix("/s").unwrap_or(word);
    match plain.strip_suffix("bit") {
        Some(bits) => Ok(parse_bytes(&format!("{bits}B"))?.div_ceil(8)),
        None => parse_bytes(plain),
    }
}

/// A size in the unit of powers of 1,000 that fits it, with three digits: `6.00 TB`.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A size in powers of 1,024 as `zfs` writes block sizes: `128K`, `4K`, `1M`, or bytes.
pub fn show_block(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        bytes => format!("{bytes}B"),
    }
}

/// A time in the unit that fits it: `42 s`, `12 min`, `3.4 h`, `5.1 days`.
pub fn show_seconds(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.0} s"),
        seconds if seconds < 100.0 * 60.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 72.0 * 3600.0 => format!("{:.1} h", seconds / 3600.0),
        seconds => format!("{:.1} days", seconds / 86400.0),
    }
}

/// A chance as people read it: `1 in 4,200`, `3.1 %`, or `less than 1 in a billion`.
pub fn show_chance(chance: f64) -> String {
    match chance {
        chance if chance < 1e-9 => "less than 1 in a billion".to_owned(),
        chance if chance < 0.01 => {
            // Two digits say all that such an estimate knows.
            let times = 1.0 / chance;
            let step = 10f64.powi((times.log10().floor() as i32 - 1).max(0));
            format!("1 in {}", group_digits((times / step).round() * step))
        }
        chance => format!("{:.1} %", chance * 100.0),
    }
}

fn group_digits(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
