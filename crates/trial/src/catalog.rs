//! Disks that are known by name.

use device::sim::Model;
use device::sim::model::{HddSpec, SsdSpec};
use plan::DiskKind;

/// A disk that there is a model of.
#[derive(Debug, Clone)]
pub struct Known {
    /// Its name in a trial's file.
    pub name: &'static str,
    /// What people call it.
    pub title: &'static str,
    /// Its size.
    pub size_bytes: u64,
    /// How it behaves.
    pub model: Model,
}

impl Known {
    /// What kind of disk it is.
    pub fn kind(&self) -> DiskKind {
        match self.model {
            Model::Hdd(_) => DiskKind::Hdd,
            Model::Simple(_) | Model::Ssd(_) => DiskKind::Ssd,
        }
    }
}

/// The disks that are known. Their figures and where these are from: `device::sim::model`.
pub const CATALOG: &[Known] = &[
    Known {
        name: "wd-re3-500gb",
        title: "Western Digital RE3, 500 GB, 7,200/min",
        size_bytes: 500_107_862_016,
        model: Model::Hdd(HddSpec::WD_RE3_500GB),
    },
    Known {
        name: "wd-re3-1tb",
        title: "Western Digital RE3, 1 TB, 7,200/min",
        size_bytes: 1_000_204_886_016,
        model: Model::Hdd(HddSpec::WD_RE3_1TB),
    },
    Known {
        name: "intel-x25-m-160gb",
        title: "Intel X25-M, 160 GB",
        size_bytes: 160_041_885_696,
        model: Model::Ssd(SsdSpec::INTEL_X25_M_160GB),
    },
    Known {
        name: "intel-x25-e-64gb",
        title: "Intel X25-E, 64 GB",
        size_bytes: 64_023_257_088,
        model: Model::Ssd(SsdSpec::INTEL_X25_E_64GB),
    },
];

/// The disk of a name.
pub fn known(name: &str) -> Option<&'static Known> {
    CATALOG.iter().find(|known| known.name == name)
}
