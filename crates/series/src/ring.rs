//! The rings of a series.

/// A stretch of time, and the ring of points that is kept of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Span {
    /// The last hour, a point for each 10 seconds.
    Hour,
    /// The last day, a point for each 2 minutes.
    Day,
    /// The last 7 days, a point for each 10 minutes.
    Week,
    /// The last 31 days, a point for each hour.
    Month,
    /// The last 366 days, a point for each 12 hours.
    Year,
}

impl Span {
    /// All, the finest first. Steps divide those of the next one, and each reaches back further
    /// than the next one's step.
    pub const ALL: [Self; 5] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Seconds of a point.
    pub const fn step_s(self) -> u64 {
        match self {
            Self::Hour => 10,
            Self::Day => 120,
            Self::Week => 600,
            Self::Month => 3600,
            Self::Year => 12 * 3600,
        }
    }

    /// How many points are kept.
    pub const fn points(self) -> u32 {
        match self {
            Self::Hour => 360,
            Self::Day => 720,
            Self::Week => 7 * 144,
            Self::Month => 31 * 24,
            Self::Year => 366 * 2,
        }
    }

    /// The next finer one.
    pub(crate) const fn finer(self) -> Option<Self> {
        match self {
            Self::Hour => None,
            Self::Day => Some(Self::Hour),
            Self::Week => Some(Self::Day),
            Self::Month => Some(Self::Week),
            Self::Year => Some(Self::Month),
        }
    }

    /// The period that a moment, in seconds since 1970, belongs to.
    pub(crate) fn period_at(self, time_s: u64) -> u32 {
        u32::try_from(time_s / self.step_s()).unwrap_or(u32::MAX)
    }

    /// When a period begins, in seconds since 1970.
    pub(crate) fn start_s(self, period: u32) -> u64 {
        u64::from(period) * self.step_s()
    }

    /// The period of the next finer ring's that a period of this one begins with, and how many
    /// there are.
    pub(crate) fn parts(self, period: u32) -> Option<(Self, u32, u32)> {
        let finer = self.finer()?;
        let count = u32::try_from(self.step_s() / finer.step_s()).ok()?;
        Some((finer, period.saturating_mul(count), count))
    }

    /// Where a period's point is in the ring.
    pub(crate) const fn slot(self, period: u32) -> u32 {
        period % self.points()
    }

    /// Points that are before this ring in a file.
    pub(crate) fn points_before(self) -> u64 {
        let before = Self::ALL.into_iter().take_while(|span| *span != self);
        before.map(|span| u64::from(span.points())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_made_of_each_other() {
        for span in Span::ALL {
            let kept_s = u64::from(span.points()) * span.step_s();
            let Some((finer, first, count)) = span.parts(7) else {
                assert_eq!(kept_s, 3600);
                continue;
            };
            assert_eq!(u64::from(count) * finer.step_s(), span.step_s());
            assert_eq!(finer.start_s(first), span.start_s(7));
            assert!(u64::from(finer.points()) * finer.step_s() > 2 * span.step_s());
        }
        assert_eq!(Span::Hour.points_before(), 0);
        assert_eq!(Span::Year.points_before(), 360 + 720 + 1008 + 744);
        assert_eq!(Span::Month.period_at(3600 * 24 + 5), 24);
    }
}
