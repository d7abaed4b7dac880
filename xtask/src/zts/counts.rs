//! How many tests pass, and how many do not and why.

use std::fmt;

use super::list::{Expected, Selected};

/// Tests, by how they end or are expected to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub pass: usize,
    pub deviates: usize,
    pub waits: usize,
    pub harness: usize,
    /// They should pass and do not.
    pub wrong: usize,
}

impl Counts {
    /// Counts a test that ended.
    pub fn ended(&mut self, expected: &Expected, passed: bool) {
        match expected {
            _ if passed => self.pass += 1,
            Expected::Pass => self.wrong += 1,
            Expected::Deviates(_) => self.deviates += 1,
            Expected::Waits(_) | Expected::Any => self.waits += 1,
            Expected::Harness(_) => self.harness += 1,
        }
    }

    /// Adds what a group's tests are expected to do.
    fn expected(mut self, group: &Selected) -> Self {
        for test in &group.tests {
            self.ended(&test.expected, test.expected == Expected::Pass);
        }
        self
    }

    /// How many tests say something of us.
    fn applicable(self) -> usize {
        self.pass + self.deviates + self.waits + self.wrong
    }

    /// The share of these that pass, in tenths of a percent.
    fn permille(self) -> usize {
        (self.pass * 1000)
            .checked_div(self.applicable())
            .unwrap_or(1000)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permille = self.permille();
        write!(
            out,
            "{} pass, {} deviate, {} wait, {} fail, {} cannot apply: {}.{} % of {} pass",
            self.pass,
            self.deviates,
            self.waits,
            self.wrong,
            self.harness,
            permille / 10,
            permille % 10,
            self.applicable(),
        )
    }
}

/// What a list expects, group by group, and in the whole.
pub fn table(list: &[Selected]) -> String {
    let row = |name: &str, pass: &str, deviates: &str, waits: &str, harness: &str| {
        format!("{name:<34}{pass:>6}{deviates:>10}{waits:>7}{harness:>9}\n")
    };
    let counted = |name: &str, counts: Counts| {
        let [pass, deviates, waits, harness] =
            [counts.pass, counts.deviates, counts.waits, counts.harness].map(|n| n.to_string());
        row(name, &pass, &deviates, &waits, &harness)
    };
    let mut out = row("group", "pass", "deviates", "waits", "harness");
    let mut sum = Counts::default();
    for group in list {
        out.push_str(&counted(&group.name, Counts::default().expected(group)));
        sum = sum.expected(group);
    }
    out.push_str(&counted("all", sum));
    out.push_str(&format!("{sum}\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zts::list::Test;

    #[test]
    fn tests_are_counted_by_how_they_end() {
        let why = || "so".to_owned();
        let test = |expected| Test {
            name: "t".into(),
            expected,
        };
        let group = Selected {
            name: "g/h".into(),
            tests: vec![
                test(Expected::Pass),
                test(Expected::Pass),
                test(Expected::Deviates(why())),
                test(Expected::Waits(why())),
                test(Expected::Harness(why())),
            ],
        };
        let text = table(std::slice::from_ref(&group));
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["g/h", "2", "1", "1", "1"]);
        assert_eq!(lines[2], ["all", "2", "1", "1", "1"]);
        let last = text.lines().last().unwrap();
        assert!(last.ends_with("50.0 % of 4 pass"), "{last}");

        let mut counts = Counts::default();
        counts.ended(&Expected::Pass, false);
        counts.ended(&Expected::Waits(why()), true);
        assert_eq!((counts.wrong, counts.pass, counts.waits), (1, 1, 0));
        assert_eq!(Counts::default().permille(), 1000);
    }
}
