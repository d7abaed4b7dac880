//! How many streams go without a gap: a recorder's question.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::job;

/// Most streams of a kind: threads of fio.
pub const COUNT_MAX: u32 = 1024;

/// The streams that are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchStreams")]
pub struct Wanted {
    /// Bytes a second of each stream.
    pub rate: u64,
    /// Bytes of an access.
    pub block_bytes: u64,
    /// Seconds that a player or recorder has in its buffer: what is later than that is a gap.
    pub buffer_seconds: f64,
    /// Recordings for each one that is counted.
    pub recordings: u32,
    /// Playbacks for each one that is counted.
    pub playbacks: u32,
}

/// One number of streams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchStreamsTry")]
pub struct Try {
    /// Multiples of [`Wanted::recordings`] and [`Wanted::playbacks`].
    pub count: u32,
    /// Seconds that the worst recording was behind.
    pub recording_lag_seconds: Option<f64>,
    /// Seconds that the worst playback was behind.
    pub playback_lag_seconds: Option<f64>,
    /// Bytes a second of all of them.
    pub rate: f64,
    /// Whether one was behind by more than its buffer.
    pub has_gap: bool,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BenchStreamsFound")]
pub struct StreamsFound {
    /// The streams that were looked for.
    pub wanted: Wanted,
    /// The most without a gap; 0 where one of each has one.
    pub most: u32,
    /// No number had a gap up to the most that are tried.
    pub is_at_limit: bool,
    /// The planner's figure.
    pub planned: Option<u32>,
    /// All that was tried, in order.
    pub tries: Vec<Try>,
}

/// The search: twice as many until there is a gap, then between the last two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    without: u32,
    with: Option<u32>,
    most: u32,
}

impl Search {
    /// Up to `most`.
    pub fn new(most: u32) -> Self {
        Search {
            without: 0,
            with: None,
            most,
        }
    }

    /// The number to try next; `None` at the end of the search.
    pub fn next(&self) -> Option<u32> {
        match self.with {
            None if self.without >= self.most => None,
            None => Some((self.without * 2).clamp(1, self.most)),
            Some(with) if with - self.without <= 1 => None,
            Some(with) => Some(self.without + (with - self.without) / 2),
        }
    }

    /// Told what came of a number.
    pub fn tried(&mut self, count: u32, has_gap: bool) {
        match has_gap {
            true => self.with = Some(count),
            false => self.without = count,
        }
    }

    /// The most without a gap so far.
    pub fn found(&self) -> u32 {
        self.without
    }
}

impl StreamsFound {
    /// The result, in a sentence or two.
    pub fn sentence(&self) -> String {
        let each = |count: u32| {
            let of = |each: u32, what: &str| match each {
                0 => None,
                each => Some(format!("{} {what}", each * count)),
            };
            let kinds = [
                of(self.wanted.recordings, "recordings"),
                of(self.wanted.playbacks, "playbacks"),
            ];
            kinds
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" and ")
        };
        let rate = plan::amount::show_bytes(self.wanted.rate);
        let mut out = match self.most {
            0 => format!("Not even {} of {rate}/s went without a gap.", each(1)),
            most => format!("{} of {rate}/s went without a gap", each(most)),
        };
        match (self.most, self.is_at_limit) {
            (0, _) => {}
            (_, true) => out.push_str(", and more were not tried (--size)."),
            (_, false) => out.push_str("; more had one."),
        }
        if let Some(planned) = self.planned {
            out.push_str(&format!(" Planned: {}.", each(planned)));
        }
        out
    }
}

impl Wanted {
    /// Their job, for a number.
    pub fn job(&self, count: u32) -> job::Streams {
        job::Streams {
            recordings: self.recordings * count,
            playbacks: self.playbacks * count,
            rate: self.rate,
            block_bytes: self.block_bytes,
        }
    }

    /// As many as the area has room for.
    pub fn count_max(&self, size_bytes: u64) -> u32 {
        let of_a_kind = self.recordings.max(self.playbacks).max(1);
        let blocks = size_bytes / 2 / self.block_bytes / u64::from(of_a_kind);
        blocks.min(u64::from(COUNT_MAX / of_a_kind)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that are tried until all is found where so many go.
    fn told(limit: u32, most: u32) -> (u32, Vec<u32>) {
        let mut search = Search::new(most);
        let mut tried = Vec::new();
        while let Some(count) = search.next() {
            tried.push(count);
            search.tried(count, count > limit);
        }
        (search.found(), tried)
    }

    #[test]
    fn the_most_streams_are_found_in_few_tries() {
        assert_eq!(told(5, 1024), (5, vec![1, 2, 4, 8, 6, 5]));
        assert_eq!(told(0, 1024), (0, vec![1]));
        assert_eq!(told(100, 20), (20, vec![1, 2, 4, 8, 16, 20]));
        for limit in 0..300 {
            let (found, tried) = told(limit, 1024);
            assert_eq!(found, limit);
            assert!(tried.len() <= 18, "{limit}: {tried:?}");
        }
    }

    #[test]
    fn what_was_found_is_a_sentence() {
        let mut found = StreamsFound {
            wanted: Wanted {
                rate: 1_250_000,
                block_bytes: 1 << 18,
                buffer_seconds: 2.0,
                recordings: 1,
                playbacks: 2,
            },
            most: 5,
            is_at_limit: false,
            planned: Some(7),
            tries: Vec::new(),
        };
        let told = "5 recordings and 10 playbacks of 1.25 MB/s went without a gap; more had one. \
                    Planned: 7 recordings and 14 playbacks.";
        assert_eq!(found.sentence(), told);
        (found.most, found.planned) = (0, None);
        found.wanted.recordings = 0;
        assert_eq!(
            found.sentence(),
            "Not even 2 playbacks of 1.25 MB/s went without a gap."
        );
        (found.most, found.is_at_limit) = (3, true);
        assert!(found.sentence().contains("more were not tried"));
    }

    #[test]
    fn an_area_has_room_for_so_many() {
        let wanted = Wanted {
            rate: 1_250_000,
            block_bytes: 1 << 18,
            buffer_seconds: 2.0,
            recordings: 1,
            playbacks: 2,
        };
        assert_eq!(wanted.count_max(64 << 20), 64);
        assert_eq!(wanted.count_max(1 << 40), 512);
        assert_eq!(wanted.count_max(1 << 18), 0);
        assert_eq!(wanted.job(3).playbacks, 6);
    }
}
