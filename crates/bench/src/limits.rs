//! The most that may be asked for: the same by the command, the API and the console
//! (`console/src/lib/bench.ts`). A measurement makes others slower, and it ends.

use crate::Profile;

/// Longest time of a load, in seconds.
pub const SECONDS_MAX: u64 = 3600;
/// Longest time of a number of streams, in seconds. Up to two thousand of them have a line in a log
/// for each access, and all of these are read at the end: some hundred MB at the usual rate.
pub const STREAM_SECONDS_MAX: u64 = 600;
/// Longest time within which a load has to be steady, in seconds.
pub const WARM_UP_SECONDS_MAX: u64 = 3600;
/// Longest time of a warm-up in all, in seconds: two days.
pub const TOTAL_SECONDS_MAX: u64 = 48 * 3600;
/// Most accesses under way.
pub const DEPTH_MAX: u32 = 1024;
/// Most depths of a load.
pub const DEPTHS_MAX: usize = 16;
/// Most bytes a second of a stream.
pub const STREAM_RATE_MAX: u64 = 1 << 40;

/// What is asked for; `None` where it is to be as usual.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The loads.
    pub profile: Profile,
    /// Accesses under way.
    pub depths: &'a [u32],
    /// Seconds of each load.
    pub seconds: Option<u64>,
    /// Seconds within which it has to be steady.
    pub warm_up_seconds: Option<u64>,
    /// Seconds of a warm-up in all.
    pub total_seconds: Option<u64>,
    /// Bytes a second of a stream.
    pub stream_rate: Option<u64>,
}

impl Asked<'_> {
    /// Whether it may be.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_in =
            |value: Option<u64>, most: u64| value.is_none_or(|value| (1..=most).contains(&value));
        let is_depth = |depth: &u32| (1..=DEPTH_MAX).contains(depth);
        if !self.depths.iter().all(is_depth) || self.depths.len() > DEPTHS_MAX {
            return Err("depths are 1 to 1,024, and 16 of them at most");
        }
        if !is_in(self.seconds, SECONDS_MAX) {
            return Err("a load is measured for 1 to 3,600 seconds");
        }
        if self.profile == Profile::Streams && !is_in(self.seconds, STREAM_SECONDS_MAX) {
            return Err("a number of streams is tried for 1 to 600 seconds");
        }
        if self.warm_up_seconds > Some(WARM_UP_SECONDS_MAX) {
            return Err("a load has to be steady within 3,600 seconds at most");
        }
        if !is_in(self.total_seconds, TOTAL_SECONDS_MAX) {
            return Err("a warm-up takes 1 to 172,800 seconds, which are 48 hours");
        }
        if !is_in(self.stream_rate, STREAM_RATE_MAX) {
            return Err("a stream has a rate, 1 TiB a second at most");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Asked<'_> = Asked {
        profile: Profile::Iometer,
        depths: &[],
        seconds: None,
        warm_up_seconds: None,
        total_seconds: None,
        stream_rate: None,
    };

    fn seconds(profile: Profile, seconds: u64) -> bool {
        let seconds = Some(seconds);
        let asked = Asked {
            profile,
            seconds,
            ..USUAL
        };
        asked.check().is_ok()
    }

    #[test]
    fn what_is_asked_for_has_bounds() {
        assert_eq!(USUAL.check(), Ok(()));
        let most = Asked {
            depths: &[DEPTH_MAX; DEPTHS_MAX],
            seconds: Some(SECONDS_MAX),
            warm_up_seconds: Some(WARM_UP_SECONDS_MAX),
            total_seconds: Some(TOTAL_SECONDS_MAX),
            stream_rate: Some(STREAM_RATE_MAX),
            ..USUAL
        };
        assert_eq!(most.check(), Ok(()));
        for wrong in [
            Asked {
                depths: &[1, 0],
                ..USUAL
            },
            Asked {
                depths: &[1; DEPTHS_MAX + 1],
                ..USUAL
            },
            Asked {
                warm_up_seconds: Some(WARM_UP_SECONDS_MAX + 1),
                ..USUAL
            },
            Asked {
                total_seconds: Some(TOTAL_SECONDS_MAX + 1),
                ..USUAL
            },
            Asked {
                total_seconds: Some(0),
                ..USUAL
            },
            Asked {
                stream_rate: Some(0),
                ..USUAL
            },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        assert!(!seconds(Profile::Iometer, 0) && seconds(Profile::Iometer, 3600));
        assert!(!seconds(Profile::Iometer, 3601));
        assert!(!seconds(Profile::Streams, 601) && seconds(Profile::Streams, 600));
    }
}
