//! Intervals and rules of retention, as command lines have them.

use api::Keep;

/// Which snapshots stay; all of them where there is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule(pub Option<Keep>);

/// Seconds of `15m` and the like.
pub fn interval(text: &str) -> Result<u64, String> {
    let wrong = || "write a number and s, m, h, d or w: 15m, 1h, 1d".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (digits, unit) = text.split_at(at);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        "w" => 7 * 24 * 3600,
        _ => return Err(wrong()),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    let total = count.checked_mul(seconds).filter(|total| *total > 0);
    total.ok_or_else(wrong)
}

/// A rule: `hourly=24,daily=7,weekly=4,monthly=12`, parts of that, or `all`.
pub fn rule(text: &str) -> Result<Rule, String> {
    if text == "all" {
        return Ok(Rule(None));
    }
    let wrong = || "write hourly=24,daily=7,weekly=4,monthly=12, parts of it, or 'all'".to_owned();
    let mut keep = Keep::default();
    let mut seen = Vec::new();
    for part in text.split(',') {
        let (period, count) = part.split_once('=').ok_or_else(wrong)?;
        let count: u32 = count.parse().map_err(|_| wrong())?;
        if seen.contains(&period) {
            return Err(wrong());
        }
        seen.push(period);
        match period {
            "hourly" => keep.hourly = count,
            "daily" => keep.daily = count,
            "weekly" => keep.weekly = count,
            "monthly" => keep.monthly = count,
            _ => return Err(wrong()),
        }
    }
    Ok(Rule(Some(keep)))
}

/// A rule as it is typed, without the parts that keep nothing.
pub fn shown_rule(keep: Option<&Keep>) -> String {
    let Some(keep) = keep else {
        return "all".to_owned();
    };
    let parts = [
        ("hourly", keep.hourly),
        ("daily", keep.daily),
        ("weekly", keep.weekly),
        ("monthly", keep.monthly),
    ];
    let some = parts.iter().filter(|(_, count)| *count > 0);
    let some: Vec<String> = some
        .map(|(period, count)| format!("{period}={count}"))
        .collect();
    match some.is_empty() {
        true => "hourly=0".to_owned(),
        false => some.join(","),
    }
}

/// An interval as it is typed.
pub fn every(seconds: u64) -> String {
    let units = [
        (7 * 24 * 3600, "w"),
        (24 * 3600, "d"),
        (3600, "h"),
        (60, "m"),
    ];
    let unit = units.iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
    match unit {
        Some((unit, letter)) => format!("{}{letter}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_rules_are_read() {
        for (text, seconds) in [("15m", 900), ("1h", 3600), ("2d", 172_800), ("90s", 90)] {
            assert_eq!(interval(text), Ok(seconds));
        }
        assert_eq!(every(900), "15m");
        assert_eq!(every(90), "90s");
        for wrong in ["", "15", "m", "0h", "1y", "-1h", "99999999999999999999d"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
        let keep = Keep {
            hourly: 2,
            monthly: 12,
            ..Keep::default()
        };
        assert_eq!(rule("hourly=2,monthly=12"), Ok(Rule(Some(keep))));
        assert_eq!(rule("all"), Ok(Rule(None)));
        for wrong in ["", "hourly", "hourly=x", "yearly=1", "daily=1,daily=2"] {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
        for text in ["all", "hourly=2,monthly=12", "hourly=0"] {
            let Rule(keep) = rule(text).unwrap();
            assert_eq!(shown_rule(keep.as_ref()), text);
        }
    }
}
