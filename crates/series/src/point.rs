//! What was in one period.
//!
//! A point in a file, little-endian: the number of its period (u32), the checksum of all the rest
//! (u32, CRC-32C), the milliseconds that it is of (u32), then for each column its value and its
//! highest value (f32 each), then for each histogram [`BUCKETS`] counts. A count is a byte: five
//! bits of exponent and three of mantissa, so it is known within 6 percent, up to 16 billion. That
//! is less than what a bucket says of the times in it.

use crate::ring::Span;

/// Buckets of a histogram. What they are of is its owner's business.
pub const BUCKETS: usize = 24;

/// Bytes of a point before its columns.
const HEAD_BYTES: usize = 12;
/// Largest count that a byte can tell.
const COUNT_MAX: u64 = 15 << 30;

/// How the values of a column become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Something that is counted: they are added. Its highest value is of a second.
    Amount,
    /// Something that stands at a level: the mean over time.
    Level,
}

/// Which figures the series of a kind have.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What it is called in files.
    pub name: &'static str,
    /// The columns.
    pub columns: &'static [Column],
    /// How many histograms.
    pub histograms: usize,
    /// How much it matters: series of a lower number may push out others that are alive.
    pub rank: u8,
    /// Most bytes that all series of the kind may take.
    pub limit_bytes: u64,
}

impl Shape {
    /// Bytes of a point.
    pub(crate) const fn point_bytes(&self) -> usize {
        HEAD_BYTES + 8 * self.columns.len() + BUCKETS * self.histograms
    }
}

/// Counts by bucket.
pub type Histogram = [u64; BUCKETS];

/// What has been since the last sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// How long that is, in milliseconds.
    pub covered_ms: u32,
    /// For each column what was counted, or the level.
    pub columns: Vec<f64>,
    /// Of levels, the highest since the last sample where that is known.
    pub peaks: Vec<Option<f64>>,
    /// The histograms.
    pub histograms: Vec<Histogram>,
}

/// One value of a point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// What was counted in all; of levels the mean.
    pub value: f64,
    /// The highest: of amounts the rate per second of the sample with the highest one.
    pub most: f64,
}

/// What was in one period.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub(crate) period: u32,
    /// Of how many milliseconds of its period something is known.
    pub covered_ms: u32,
    /// By column.
    pub figures: Vec<Figure>,
    /// The histograms.
    pub histograms: Vec<Histogram>,
}

/// A count as a byte, rounded to the nearest.
fn packed(count: u64) -> u8 {
    let count = count.min(COUNT_MAX);
    if count < 16 {
        return count as u8;
    }
    // The mantissa has its leading one implied: (8 + m) << (e - 1), as for floating point numbers.
    let shift = count.ilog2() - 3;
    let mut mantissa = (count + (1 << (shift - 1))) >> shift;
    let mut exponent = shift + 1;
    if mantissa == 16 {
        (mantissa, exponent) = (8, exponent + 1);
    }
    let byte = (u64::from(exponent) << 3) + (mantissa - 8);
    u8::try_from(byte).unwrap_or(u8::MAX)
}

fn unpacked(byte: u8) -> u64 {
    let (exponent, mantissa) = (byte >> 3, u64::from(byte & 7));
    match exponent {
        0 => mantissa,
        exponent => (8 + mantissa) << (exponent - 1),
    }
}

impl Point {
    /// The point of a sample.
    pub(crate) fn of_sample(shape: &Shape, period: u32, sample: &Sample) -> Self {
        let seconds = (f64::from(sample.covered_ms) / 1000.0).max(0.001);
        let columns = shape.columns.iter().enumerate();
        let figures = columns.map(|(index, column)| {
            let value = sample.columns.get(index).copied().unwrap_or(0.0);
            let peak = sample.peaks.get(index).copied().flatten();
            let most = match column {
                Column::Amount => value / seconds,
                Column::Level => peak.map_or(value, |peak| peak.max(value)),
            };
            Figure { value, most }
        });
        let mut histograms = sample.histograms.clone();
        histograms.resize(shape.histograms, [0; BUCKETS]);
        Self {
            period,
            covered_ms: sample.covered_ms,
            figures: figures.collect(),
            histograms,
        }
    }

    /// One point of several.
    pub(crate) fn merged(shape: &Shape, period: u32, points: &[Self]) -> Option<Self> {
        let (first, rest) = points.split_first()?;
        let mut out = Self {
            period,
            ..first.clone()
        };
        for point in rest {
            let (own, other) = (f64::from(out.covered_ms), f64::from(point.covered_ms));
            let columns = shape.columns.iter();
            let figures = out.figures.iter_mut().zip(&point.figures);
            for ((figure, more), column) in figures.zip(columns) {
                figure.most = figure.most.max(more.most);
                figure.value = match column {
                    Column::Amount => figure.value + more.value,
                    Column::Level if own + other > 0.0 => {
                        (figure.value * own + more.value * other) / (own + other)
                    }
                    Column::Level => more.value,
                };
            }
            for (sums, more) in out.histograms.iter_mut().zip(&point.histograms) {
                for (sum, count) in sums.iter_mut().zip(more) {
                    *sum = sum.saturating_add(*count);
                }
            }
            out.covered_ms = out.covered_ms.saturating_add(point.covered_ms);
        }
        Some(out)
    }

    /// What was in all of these periods; none where there are none.
    pub fn all(shape: &Shape, points: &[Self]) -> Option<Self> {
        let first = points.first()?.period;
        Self::merged(shape, first, points)
    }

    /// When its period begins, in seconds since 1970.
    pub fn start_s(&self, span: Span) -> u64 {
        span.start_s(self.period)
    }

    /// Seconds of which something is known.
    pub fn covered_s(&self) -> f64 {
        f64::from(self.covered_ms) / 1000.0
    }

    /// Its bytes in a file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.period.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.covered_ms.to_le_bytes());
        for figure in &self.figures {
            out.extend((figure.value as f32).to_le_bytes());
            out.extend((figure.most as f32).to_le_bytes());
        }
        for histogram in &self.histograms {
            out.extend(histogram.iter().map(|count| packed(*count)));
        }
        let sum = checksum(&out);
        out[4..8].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The point of these bytes; none where there is none, or one that was written half.
    pub(crate) fn decode(shape: &Shape, bytes: &[u8]) -> Option<Self> {
        if bytes.len() != shape.point_bytes() {
            return None;
        }
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        if word(4)? != checksum(bytes) {
            return None;
        }
        let number = |at: usize| {
            let value = f64::from(f32::from_bits(word(at)?));
            value.is_finite().then_some(value)
        };
        let figures = (0..shape.columns.len()).map(|index| {
            let at = HEAD_BYTES + 8 * index;
            Some(Figure {
                value: number(at)?,
                most: number(at + 4)?,
            })
        });
        let figures = figures.collect::<Option<Vec<_>>>()?;
        let after = &bytes[HEAD_BYTES + 8 * shape.columns.len()..];
        let histograms = after.chunks_exact(BUCKETS).map(|counts| {
            let mut histogram = [0; BUCKETS];
            for (count, byte) in histogram.iter_mut().zip(counts) {
                *count = unpacked(*byte);
            }
            histogram
        });
        Some(Self {
            period: word(0)?,
            covered_ms: word(8)?,
            figures,
            histograms: histograms.collect(),
        })
    }
}

/// The checksum of a point, without the field that has it.
fn checksum(bytes: &[u8]) -> u32 {
    let (period, rest) = (bytes.get(..4), bytes.get(8..));
    let sum = crc32c::crc32c(period.unwrap_or_default());
    crc32c::crc32c_append(sum, rest.unwrap_or_default())
}

/// Where a share of what a histogram counts lies below: the bucket, and how far in it. None of an
/// empty one.
pub fn quantile(histogram: &Histogram, share: f64) -> Option<f64> {
    let total: u64 = histogram.iter().sum();
    if total == 0 {
        return None;
    }
    let wanted = share.clamp(0.0, 1.0) * total as f64;
    let mut below = 0.0;
    for (bucket, count) in histogram.iter().enumerate() {
        let count = *count as f64;
        if count > 0.0 && below + count >= wanted {
            return Some(bucket as f64 + ((wanted - below) / count).clamp(0.0, 1.0));
        }
        below += count;
    }
    Some(BUCKETS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        name: "test",
        columns: &[Column::Amount, Column::Level],
        histograms: 1,
        rank: 0,
        limit_bytes: u64::MAX,
    };

    fn sample(covered_ms: u32, amount: f64, level: f64, peak: Option<f64>) -> Sample {
        let mut histogram = [0; BUCKETS];
        histogram[3] = 10;
        Sample {
            covered_ms,
            columns: vec![amount, level],
            peaks: vec![None, peak],
            histograms: vec![histogram],
        }
    }

    #[test]
    fn counts_are_known_within_six_percent() {
        let mut count = 0u64;
        while count < 2 * COUNT_MAX {
            let shown = unpacked(packed(count));
            let wanted = count.min(COUNT_MAX);
            assert!(shown.abs_diff(wanted) * 16 <= wanted, "{count}: {shown}");
            count += 1 + count / 97;
        }
        assert!((0..16).all(|count| unpacked(packed(count)) == count));
        assert!((0..=u8::MAX).all(|byte| packed(unpacked(byte)) == byte));
    }

    #[test]
    fn amounts_are_added_and_levels_are_means() {
        let one = Point::of_sample(&SHAPE, 5, &sample(10_000, 1000.0, 4.0, None));
        let other = Point::of_sample(&SHAPE, 6, &sample(30_000, 600.0, 8.0, Some(20.0)));
        assert_eq!(one.figures[0].most, 100.0);
        let both = Point::merged(&SHAPE, 1, &[one, other]).unwrap();
        assert_eq!((both.period, both.covered_ms), (1, 40_000));
        let [amount, level] = both.figures[..] else {
            panic!("two columns");
        };
        assert_eq!((amount.value, amount.most), (1600.0, 100.0));
        assert_eq!((level.value, level.most), (7.0, 20.0));
        assert_eq!(both.histograms[0][3], 20);
        assert!(Point::merged(&SHAPE, 1, &[]).is_none());
    }

    #[test]
    fn a_point_that_was_written_half_is_none() {
        let point = Point::of_sample(&SHAPE, 7, &sample(10_000, 5.0, 1.0, None));
        let bytes = point.encode();
        assert_eq!(bytes.len(), SHAPE.point_bytes());
        assert_eq!(Point::decode(&SHAPE, &bytes), Some(point));
        for at in 0..bytes.len() {
            let mut half = bytes.clone();
            half[at] ^= 0x10;
            assert_eq!(Point::decode(&SHAPE, &half), None, "byte {at}");
        }
        assert_eq!(Point::decode(&SHAPE, &bytes[1..]), None);
        let nothing = vec![0; SHAPE.point_bytes()];
        assert_eq!(Point::decode(&SHAPE, &nothing), None);
    }

    #[test]
    fn quantiles_lie_where_the_counts_are() {
        let mut histogram = [0; BUCKETS];
        assert_eq!(quantile(&histogram, 0.5), None);
        (histogram[4], histogram[10]) = (90, 10);
        assert_eq!(quantile(&histogram, 0.45), Some(4.5));
        assert_eq!(quantile(&histogram, 0.95), Some(10.5));
        assert_eq!(quantile(&histogram, 1.0), Some(11.0));
    }
}
