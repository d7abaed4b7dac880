//! Where bytes are on a hard disk, and how long the arm takes to them.

use super::HddSpec;

/// Zones of a disk: within one all tracks hold the same number of bytes. Real disks have 15 to 30.
const ZONES: u64 = 24;

/// Cylinders that have equally long tracks.
#[derive(Debug, Clone)]
struct Zone {
    first_byte: u64,
    first_cylinder: u64,
    track_bytes: u64,
}

/// A place on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) cylinder: u64,
    /// Number of the track on the whole disk.
    pub(super) track: u64,
    /// Bytes of the track before it.
    pub(super) in_track: u64,
    pub(super) track_bytes: u64,
}

/// The disk's geometry: made so that it has the rates of its specification at both ends, and
/// holds its size.
#[derive(Debug, Clone)]
pub(super) struct Geometry {
    zones: Vec<Zone>,
    heads: u64,
    cylinders: u64,
    revolution_ns: u64,
    track_switch_ns: u64,
}

impl Geometry {
    pub(super) fn new(spec: &HddSpec, size_bytes: u64) -> Self {
        // A sustained rate includes the switch from track to track.
        let track_ns = spec.revolution_ns + spec.track_switch_ns;
        let track_bytes = |rate: u64| {
            let bytes = u128::from(rate) * u128::from(track_ns) / 1_000_000_000;
            (bytes as u64 / 512 * 512).max(512)
        };
        let rate = |zone: u64, zones: u64| {
            let fall = spec.outer_bytes_per_second - spec.inner_bytes_per_second;
            spec.outer_bytes_per_second - fall * zone / (zones - 1).max(1)
        };
        let heads = u64::from(spec.heads.max(1));
        let middle = track_bytes(rate(1, 3)) * heads;
        let cylinders = size_bytes.div_ceil(middle).max(1);
        let count = ZONES.min(cylinders);
        let mut zones = Vec::new();
        let mut first_byte = 0;
        for zone in 0..count {
            let first_cylinder = cylinders * zone / count;
            let track_bytes = track_bytes(rate(zone, count));
            zones.push(Zone {
                first_byte,
                first_cylinder,
                track_bytes,
            });
            let in_zone = cylinders * (zone + 1) / count - first_cylinder;
            first_byte += in_zone * heads * track_bytes;
        }
        Geometry {
            zones,
            heads,
            cylinders,
            revolution_ns: spec.revolution_ns,
            track_switch_ns: spec.track_switch_ns,
        }
    }

    pub(super) fn cylinders(&self) -> u64 {
        self.cylinders
    }

    /// Where a byte is. Rounding may put the last few bytes on cylinders past the last one.
    pub(super) fn place(&self, byte: u64) -> Place {
        let index = self.zones.partition_point(|zone| zone.first_byte <= byte);
        let zone = &self.zones[index - 1];
        let within = byte - zone.first_byte;
        let track = zone.first_cylinder * self.heads + within / zone.track_bytes;
        Place {
            cylinder: track / self.heads,
            track,
            in_track: within % zone.track_bytes,
            track_bytes: zone.track_bytes,
        }
    }

    /// The angle at which a place begins, as the time that the disk turns until there. Each track
    /// begins later than the one before by the time of a switch, so that reading on from one to the
    /// next waits for nothing.
    pub(super) fn angle_ns(&self, place: &Place) -> u64 {
        let skew_ns = place.track * self.track_switch_ns % self.revolution_ns;
        (self.turn_ns(place.in_track, place.track_bytes) + skew_ns) % self.revolution_ns
    }

    fn turn_ns(&self, bytes: u64, track_bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.revolution_ns) / u128::from(track_bytes)) as u64
    }

    /// Time from the first to the last byte of a range when it is read without a stop.
    pub(super) fn pass_ns(&self, from_byte: u64, bytes: u64) -> u64 {
        let (start, end) = (self.place(from_byte), self.place(from_byte + bytes));
        let switches = end.track - start.track;
        let whole_ns = switches * (self.revolution_ns + self.track_switch_ns);
        let to_ns = self.turn_ns(end.in_track, end.track_bytes);
        (whole_ns + to_ns).saturating_sub(self.turn_ns(start.in_track, start.track_bytes))
    }

    /// The byte that a head reaches which reads on from a byte for so long: what is in the track
    /// there, at its rate.
    pub(super) fn byte_after(&self, from_byte: u64, time_ns: u64) -> u64 {
        let start = self.place(from_byte);
        let track_ns = self.revolution_ns + self.track_switch_ns;
        let bytes = u128::from(time_ns) * u128::from(start.track_bytes) / u128::from(track_ns);
        from_byte + bytes as u64
    }
}

/// How long a seek takes, by its length as a part of the stroke: the square root of it while the
/// arm gains speed all the way to the middle, then linear (Ruemmler and Wilkes, "An introduction to
/// disk drive modeling", IEEE Computer 27(3), 1994).
#[derive(Debug, Clone)]
pub(super) struct SeekCurve {
    shortest_ns: f64,
    /// Of the square root.
    steep_ns: f64,
    /// Where it becomes linear.
    knee: f64,
    at_knee_ns: f64,
    longest_ns: f64,
}

impl SeekCurve {
    /// The curve that has the specification's shortest, average and longest seek. The average is
    /// that over all pairs of cylinders, as makers give it.
    pub(super) fn new(spec: &HddSpec) -> Self {
        let knee = 0.3_f64;
        let (shortest, longest) = (spec.track_seek_ns as f64, spec.full_seek_ns as f64);
        // Distances x between two of all cylinders have the density 2(1-x). The integrals over it
        // of 1, of the square root until the knee, and of the line's two ends after it.
        let below = 2.0 * knee - knee * knee;
        let root = 4.0 / 3.0 * knee.powf(1.5) - 4.0 / 5.0 * knee.powf(2.5);
        let above = 1.0 - below;
        let rise = (1.0 - knee) * (1.0 - knee) / 3.0;
        // mean = below*shortest + root*steep + above*at_knee + rise*(longest - at_knee)
        let fixed = below * shortest + (above - rise) * shortest + rise * longest;
        let factor = root + (above - rise) * knee.sqrt();
        let steep_ns = ((spec.average_seek_ns as f64 - fixed) / factor).max(0.0);
        SeekCurve {
            shortest_ns: shortest,
            steep_ns,
            knee,
            at_knee_ns: shortest + steep_ns * knee.sqrt(),
            longest_ns: longest,
        }
    }

    /// For a distance of `part` of the stroke, more than 0.
    pub(super) fn seek_ns(&self, part: f64) -> u64 {
        let time_ns = if part < self.knee {
            self.shortest_ns + self.steep_ns * part.sqrt()
        } else {
            let rise = (self.longest_ns - self.at_knee_ns) / (1.0 - self.knee);
            self.at_knee_ns + rise * (part - self.knee)
        };
        time_ns as u64
    }
}
