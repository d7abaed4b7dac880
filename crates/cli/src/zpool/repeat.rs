//! `-T` and `INTERVAL [COUNT]` of `zpool list`, `zpool status` and others (`get_interval_count`,
//! `get_timestamp_arg`, cmd/zpool/zpool_main.c).

use std::time::Duration;

use clap::Args;

/// How to print the time before each report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timestamp {
    /// Seconds since the epoch.
    Seconds,
    /// As date(1) has it.
    Date,
}

/// Options of commands that report again and again.
#[derive(Debug, Args)]
pub struct Repeat {
    /// Print the time: u for seconds since the epoch, d as date(1) does
    #[arg(short = 'T', value_name = "d|u", value_parser = timestamp)]
    timestamp: Option<Timestamp>,
}

fn timestamp(word: &str) -> Result<Timestamp, String> {
    match word {
        "u" => Ok(Timestamp::Seconds),
        "d" => Ok(Timestamp::Date),
        // Nothing is said of others but how the command is used.
        _ => Err(String::new()),
    }
}

/// Takes `INTERVAL [COUNT]` off the end of the words: none without an interval, 0 for no end. What
/// is a name is neither.
pub fn take_interval(
    words: &mut Vec<String>,
    is_name: &dyn Fn(&str) -> bool,
) -> anyhow::Result<Option<(Duration, u64)>> {
    // Names of pools begin with a letter.
    let number = |word: Option<&String>| {
        word.filter(|word| word.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
            .filter(|word| !is_name(word))
            .and_then(|word| word.parse::<f64>().ok())
    };
    let Some(last) = number(words.last()) else {
        return Ok(None);
    };
    words.pop();
    let (seconds, count) = match number(words.last()) {
        Some(seconds) => {
            words.pop();
            if last < 1.0 {
                bail_usage!("interval cannot be zero\nthe count is 1 at least");
            }
            (seconds, last as u64)
        }
        None => (last, 0),
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(interval) if !interval.is_zero() => Ok(Some((interval, count))),
        _ => bail_usage!("interval cannot be zero"),
    }
}

impl Repeat {
    /// The time now as `-T` asks for it; nothing without.
    pub fn time(&self) -> Option<String> {
        let now = chrono::Local::now();
        self.timestamp.map(|kind| match kind {
            Timestamp::Seconds => now.timestamp().to_string(),
            Timestamp::Date => now.format("%a %b %e %H:%M:%S %Y").to_string(),
        })
    }

    /// Runs `report` with the names and the text of the time (none without `-T`), once, or as often
    /// as the words at the end say.
    pub fn run(
        &self,
        names: Vec<String>,
        report: impl FnMut(&[String], Option<String>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.run_more(names, 0, &|_| false, report)
    }

    /// The same; with an interval, `more` times more often than the words say. A word that
    /// `is_name` takes for one is no number.
    pub fn run_more(
        &self,
        mut names: Vec<String>,
        more: u64,
        is_name: &dyn Fn(&str) -> bool,
        mut report: impl FnMut(&[String], Option<String>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let interval = take_interval(&mut names, is_name)?
            .map(|(interval, count)| (interval, if count == 0 { 0 } else { count + more }));
        let mut round = 0;
        loop {
            report(&names, self.time())?;
            round += 1;
            match interval {
                Some((interval, count)) if count == 0 || round < count => {
                    std::thread::sleep(interval);
                }
                _ => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_the_end_are_interval_and_count() {
        let take = |words: &[&str]| {
            let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let is_name = |word: &str| word == "4711";
            take_interval(&mut words, &is_name).map(|interval| (words.len(), interval))
        };
        assert_eq!(take(&["tank"]).unwrap(), (1, None));
        let second = Duration::from_secs(1);
        assert_eq!(take(&["tank", "1"]).unwrap(), (1, Some((second, 0))));
        assert_eq!(take(&["1", "5"]).unwrap(), (0, Some((second, 5))));
        let half = Duration::from_millis(500);
        assert_eq!(take(&["a", "b", ".5", "2"]).unwrap(), (2, Some((half, 2))));
        assert_eq!(take(&["4711"]).unwrap(), (1, None));
        assert_eq!(take(&["4711", "1"]).unwrap(), (1, Some((second, 0))));
        assert!(take(&["tank", "0"]).is_err());
        assert!(take(&["1", "0"]).is_err());
    }
}
