//! The planner's figures for the same loads.

use plan::full::{Load, Path, Rates};
use plan::{Bus, Disks, Layout, PlanError};
use serde::{Deserialize, Serialize};

use crate::Test;
use crate::report::Report;
use crate::streams::Wanted;

/// The pool that is measured, as the planner knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// Its disks.
    pub disks: Disks,
    /// Its layout.
    pub layout: Layout,
    /// Controllers and buses of the disks.
    pub buses: Vec<Bus>,
    /// Bytes a second that the network carries.
    pub network_rate: Option<u64>,
    /// Bytes of a block as it is stored: smaller accesses cost as much as one of these.
    pub record_bytes: Option<u64>,
    /// log2 of a sector's size.
    pub ashift: u32,
}

/// From so many random accesses of a hundred on, a load counts as random: between two places far
/// apart, one that goes on does not cost much.
const RANDOM_PERCENT: u8 = 50;

impl Against {
    /// Says what cannot be.
    ///
    /// # Errors
    /// The layout cannot be, or not of so many disks.
    pub fn check(&self) -> Result<(), PlanError> {
        self.layout.check()?;
        let (needed, count) = (self.layout.disks(), self.disks.count);
        match needed > count {
            true => Err(PlanError::TooFewDisks {
                layout: self.layout.to_string(),
                needed,
                count,
            }),
            false => Ok(()),
        }
    }

    fn rates(&self, load: &Load) -> Rates {
        let path = Path {
            buses: &self.buses,
            network_rate: self.network_rate,
        };
        Rates::of(self.layout, &self.disks, self.ashift, load, path)
    }

    /// Operations a second; `None` of loads that the planner does not know: streams that read and
    /// write.
    pub fn iops(&self, test: &Test) -> Option<f64> {
        let load = Load {
            block_bytes: test.block_bytes.max(self.record_bytes.unwrap_or(0)),
            depth: u64::from(test.all_depth()),
            read_share: f64::from(test.reads_percent) / 100.0,
            streams: 0,
            stream_rate: 0,
        };
        let is_random = test.random_percent >= RANDOM_PERCENT;
        let reads = u32::from(test.reads_percent);
        self.rates(&load)
            .operations(is_random, reads, test.block_bytes)
    }

    /// Multiples of the streams that go without a gap.
    pub fn streams(&self, wanted: &Wanted) -> Option<u32> {
        let each = wanted.recordings + wanted.playbacks;
        let load = Load {
            block_bytes: wanted.block_bytes.max(self.record_bytes.unwrap_or(0)),
            depth: 1,
            read_share: f64::from(wanted.playbacks) / f64::from(each.max(1)),
            streams: u64::from(each),
            stream_rate: wanted.rate,
        };
        let most = self.rates(&load).streams_max? / u64::from(each.max(1));
        u32::try_from(most).ok()
    }

    /// Puts the planner's figures beside the measured ones.
    pub fn add_to(&self, report: &mut Report) {
        for measured in &mut report.tests {
            measured.planned_iops = self.iops(&measured.test);
        }
        if let Some(streams) = &mut report.streams {
            streams.planned = self.streams(&streams.wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    fn against(disks: &str, layout: &str) -> Against {
        Against {
            disks: disks.parse().unwrap(),
            layout: layout.parse().unwrap(),
            buses: Vec::new(),
            network_rate: None,
            record_bytes: None,
            ashift: 12,
        }
    }

    #[test]
    fn a_disk_alone_does_what_one_disk_does() {
        let one = against("1x500GB:90seeks:72MB/s", "stripe:1");
        let tests = Profile::Iometer.tests(&[1]);
        let of = |name: &str| {
            let test = tests.iter().find(|test| test.name == name).unwrap();
            one.iops(test).unwrap()
        };
        let reads = of("random reads of 4K");
        assert!((80.0..100.0).contains(&reads), "{reads}");
        let stream = of("sequential reads of 32K") * 32_768.0;
        assert!((60e6..73e6).contains(&stream), "{stream}");
    }

    #[test]
    fn small_accesses_cost_a_record() {
        let pool = against("6x500GB:90seeks:72MB/s", "raidz2:1x6");
        let of_records = Against {
            record_bytes: Some(131_072),
            ..pool.clone()
        };
        let reads = &Profile::Iometer.tests(&[9])[2];
        assert_eq!(reads.name, "random reads of 4K");
        assert!(of_records.iops(reads).unwrap() < pool.iops(reads).unwrap());
    }

    #[test]
    fn loads_that_the_planner_does_not_know_have_no_figure() {
        let pool = against("4x500GB", "mirror:2x2");
        let vmware = Profile::Vmware.tests(&[]);
        let told: Vec<bool> = vmware
            .iter()
            .map(|test| pool.iops(test).is_some())
            .collect();
        // Half of the third one writes, all in sequence.
        assert_eq!(told, [true, true, false, true]);
    }

    #[test]
    fn layouts_need_their_disks() {
        assert!(against("4x500GB", "mirror:2x2").check().is_ok());
        let error = against("4x500GB", "raidz2:1x6").check().unwrap_err();
        assert!(error.to_string().contains("needs 6 disks"), "{error}");
    }

    #[test]
    fn streams_are_counted_in_pairs() {
        let wanted = Wanted {
            rate: 1_250_000,
            block_bytes: 1 << 18,
            buffer_seconds: 2.0,
            recordings: 1,
            playbacks: 1,
        };
        let pool = against("4x500GB:90seeks:72MB/s", "mirror:2x2");
        let pairs = pool.streams(&wanted).unwrap();
        assert!((1..200).contains(&pairs), "{pairs}");
    }
}
