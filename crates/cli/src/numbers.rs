//! Numbers as `zpool` and `zfs` print them.
//!
//! Behaviour: `zfs_nicenum_format` (lib/libzutil/zutil_nicenum.c): at most five characters, powers
//! of 1024.

const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// A count of bytes in at most five characters: `0B`, `512B`, `1.50K`, `24K`, `9.20G`.
pub fn nice_bytes(bytes: u64) -> String {
    nice(bytes, "B")
}

/// A plain count in at most five characters: `0`, `512`, `1.50K`.
pub fn nice_count(count: u64) -> String {
    nice(count, "")
}

/// Reads a size: `65536`, `64K`, `1.5G`, with or without a `B` behind the unit
/// (`zfs_nicestrtonum`, lib/libzfs/libzfs_util.c).
pub fn parse_size(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.to_ascii_uppercase();
    let shift = match unit.as_str() {
        "" | "B" => 0,
        _ => {
            let letter = unit.strip_suffix('B').unwrap_or(&unit);
            let letter = letter.strip_suffix('I').unwrap_or(letter);
            let index = ["K", "M", "G", "T", "P", "E"];
            10 * (1 + index.iter().position(|known| *known == letter)?)
        }
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let value = number.parse::<f64>().ok()? * (1u64 << shift) as f64;
    (value < u64::MAX as f64).then_some(value as u64)
}

fn nice(number: u64, unit_below_1024: &str) -> String {
    let mut index = 0;
    while index + 1 < UNITS.len() && number >> (10 * (index + 1)) != 0 {
        index += 1;
    }
    if index == 0 {
        return format!("{number}{unit_below_1024}");
    }
    let unit = UNITS[index];
    let divisor = 1u64 << (10 * index);
    if number.is_multiple_of(divisor) {
        return format!("{}{unit}", number / divisor);
    }
    let value = number as f64 / divisor as f64;
    (0..=2)
        .rev()
        .map(|digits| format!("{value:.digits$}{unit}"))
        .find(|text| text.len() <= 5)
        .unwrap_or_else(|| format!("{value:.0}{unit}"))
}

/// A time in at most five characters, never rounded up: `-` for none, `512ns`, `65us`, `17s`.
pub fn nice_time(ns: u64) -> String {
    match ns {
        0 => "-".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}ms", ns / 1_000_000),
        _ => format!("{}s", ns / 1_000_000_000),
    }
}

/// Seconds since the epoch in the local zone, `Fri Nov 20 23:07 2026`.
pub fn local_minute(seconds: u64) -> String {
    local(seconds, "%a %b %e %k:%M %Y")
}

/// Seconds since the epoch in the local zone, `Fri Nov 20 23:07:12 2026`, as `ctime` has it.
pub fn local_second(seconds: u64) -> String {
    local(seconds, "%a %b %e %H:%M:%S %Y")
}

/// A duration, `00:01:30` or `2 days 00:01:30`.
pub fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let clock = format!("{:02}:{:02}:{:02}", hours % 24, minutes % 60, seconds % 60);
    match days {
        0 => clock,
        days => format!("{days} days {clock}"),
    }
}

/// Nanoseconds since the epoch in the local zone, `Nov 20 2026 23:07:12.123456789`, as `zpool
/// events` has it.
pub fn local_event(time_ns: u64) -> String {
    let second = local(time_ns / 1_000_000_000, "%b %e %Y %H:%M:%S");
    format!("{second}.{:09}", time_ns % 1_000_000_000)
}

/// Seconds since the epoch in the local zone, `2026-11-20.23:07:12`, as `zpool history` has it.
pub fn local_history(seconds: u64) -> String {
    local(seconds, "%Y-%m-%d.%H:%M:%S")
}

/// Seconds since the epoch in the local zone, as `ctime` has it: `Fri Nov 20 23:07:12 2026`.
pub fn local_ctime(seconds: u64) -> String {
    local(seconds, "%a %b %e %H:%M:%S %Y")
}

/// A duration as `zpool status` has it: `00:12:03`, `2 days 01:00:00`.
pub fn clock(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let time = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    match days {
        0 => time,
        days => format!("{days} days {time}"),
    }
}

fn local(seconds: u64, format: &str) -> String {
    use chrono::TimeZone;
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| chrono::Local.timestamp_opt(seconds, 0).single())
        .map_or_else(
            || seconds.to_string(),
            |time| time.format(format).to_string(),
        )
}

/// Names of this host's users, from `/etc/passwd` (passwd(5)).
pub struct Users(Vec<(u64, String)>);

impl Users {
    /// Reads them; none where they cannot be read.
    pub fn load() -> Self {
        let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            Some((fields.nth(1)?.parse().ok()?, name))
        };
        Self(text.lines().filter_map(user).collect())
    }

    /// The name of a user.
    pub fn name(&self, id: u64) -> Option<&str> {
        let mut users = self.0.iter();
        users
            .find(|(user, _)| *user == id)
            .map(|(_, name)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("65536"), Some(65536));
        assert_eq!(parse_size("64K"), Some(65536));
        assert_eq!(parse_size("1.5g"), Some(3 << 29));
        assert_eq!(parse_size("2MiB"), Some(2 << 20));
        for bad in ["", "K", "1X", "-1", "1..2", "99999999999E"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_print_as_openzfs_prints_them() {
        for (bytes, text) in [
            (0, "0B"),
            (512, "512B"),
            (1024, "1K"),
            (1536, "1.50K"),
            (24 << 10, "24K"),
            (98_765, "96.5K"),
            (1_022_976, "999K"),
            (9_878_424_780, "9.20G"),
            (1 << 40, "1T"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(nice_bytes(bytes), text, "{bytes}");
        }
        assert_eq!(nice_count(1023), "1023");
    }

    #[test]
    fn times_print_as_openzfs_prints_them() {
        for (ns, text) in [
            (0, "-"),
            (999, "999ns"),
            (1023, "1us"),
            (999_999, "999us"),
            (268_435_455, "268ms"),
            ((1 << 37) - 1, "137s"),
        ] {
            assert_eq!(nice_time(ns), text, "{ns}");
        }
    }
}
