//! Two reports side by side.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::{KIND, Measured, Report};
use crate::{BenchError, Test};

/// A load in both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchCompared")]
pub struct Compared {
    /// Which.
    #[serde(flatten)]
    pub test: Test,
    /// Operations a second in the first.
    pub before: f64,
    /// And in the second.
    pub after: f64,
    /// The second's by the first's.
    pub ratio: f64,
    /// Whether the difference is more than both figures are unsure by; `None` where that is not
    /// known of one.
    pub is_sure: Option<bool>,
    /// The mean time of an access in the first, in milliseconds.
    pub before_ms: f64,
    /// And in the second.
    pub after_ms: f64,
}

/// Both reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchComparison")]
pub struct Comparison {
    /// Target of the first.
    pub before: String,
    /// And the second.
    pub after: String,
    /// Loads that both have, in the first's order.
    pub tests: Vec<Compared>,
    /// Loads that one of them has alone.
    pub alone: Vec<String>,
    /// The most streams of both, where both looked for them.
    pub streams: Option<(u32, u32)>,
}

/// Reads a report.
///
/// # Errors
/// [`BenchError::NotAReport`].
pub fn read(path: &str, text: &str) -> Result<Report, BenchError> {
    let wrong = |why: String| BenchError::NotAReport {
        path: path.to_owned(),
        why,
    };
    let report: Report = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    match report.kind == KIND {
        true => Ok(report),
        false => Err(wrong(format!("it is of '{}'", report.kind))),
    }
}

/// Puts them side by side.
pub fn compare(before: &Report, after: &Report) -> Comparison {
    let of = |report: &Report, test: &Test| -> Option<Measured> {
        report.tests.iter().find(|one| one.test == *test).cloned()
    };
    let mut tests = Vec::new();
    let mut alone = Vec::new();
    for one in &before.tests {
        match of(after, &one.test) {
            Some(other) => tests.push(compared(one, &other)),
            None => alone.push(one.test.to_string()),
        }
    }
    let only = after
        .tests
        .iter()
        .filter(|one| of(before, &one.test).is_none());
    alone.extend(only.map(|one| one.test.to_string()));
    let streams = before.streams.as_ref().zip(after.streams.as_ref());
    Comparison {
        before: before.target.clone(),
        after: after.target.clone(),
        tests,
        alone,
        streams: streams.map(|(before, after)| (before.most, after.most)),
    }
}

fn compared(before: &Measured, after: &Measured) -> Compared {
    // The error of a difference, where those of both are independent.
    let error = before.iops_error.zip(after.iops_error);
    let error = error.map(|(before, after)| before.hypot(after));
    Compared {
        test: before.test.clone(),
        before: before.iops,
        after: after.iops,
        ratio: after.iops / before.iops.max(f64::MIN_POSITIVE),
        is_sure: error.map(|error| (after.iops - before.iops).abs() > error),
        before_ms: before.mean_ms(),
        after_ms: after.mean_ms(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn the_same_loads_are_put_side_by_side() {
        let before = report();
        let mut after = report();
        after.tests[1].iops *= 1.5;
        after.tests[0].test.depth = 32;
        let told = compare(&before, &after);
        assert_eq!(told.tests.len(), 1);
        assert!((told.tests[0].ratio - 1.5).abs() < 1e-9);
        assert_eq!(told.tests[0].is_sure, Some(true));
        assert_eq!(
            told.alone,
            [
                "max throughput, all reads, 64 deep",
                "max throughput, all reads, 32 deep"
            ]
        );
    }

    #[test]
    fn a_difference_within_the_errors_is_not_sure() {
        let before = report();
        let mut after = report();
        // 300 each: 424 together.
        after.tests[1].iops += 400.0;
        assert_eq!(compare(&before, &after).tests[1].is_sure, Some(false));
        after.tests[1].iops_error = None;
        assert_eq!(compare(&before, &after).tests[1].is_sure, None);
    }

    #[test]
    fn what_is_no_report_is_said() {
        let text = serde_json::to_string(&report()).unwrap();
        assert!(read("a.json", &text).is_ok());
        let other = text.replace("\"millpond bench\"", "\"another\"");
        let error = read("a.json", &other).unwrap_err().to_string();
        assert!(
            error.contains("'a.json'") && error.contains("'another'"),
            "{error}"
        );
        assert!(read("a.json", "[]").is_err());
    }
}
