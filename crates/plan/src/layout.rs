//! How disks become vdevs, and how blocks lie on them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::PlanError;

/// Children that a vdev has at most (`VDEV_RAIDZ_MAXCHILDREN`, `VDEV_DRAID_MAX_CHILDREN`).
const CHILDREN_MAX: u64 = 255;
/// Distributed spares at most (`VDEV_DRAID_MAX_SPARES`).
const SPARES_MAX: u64 = 100;
/// Vdevs at most: more than any pool has.
const VDEVS_MAX: u64 = 10_000;

/// A pool's vdevs, all alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// Disks without redundancy.
    Stripe {
        /// How many, each a vdev.
        disks: u64,
    },
    /// Mirrors.
    Mirror {
        /// How many mirrors.
        vdevs: u64,
        /// Disks of each.
        ways: u64,
    },
    /// RAID-Z.
    Raidz {
        /// Disks' worth of parity: 1 to 3.
        parity: u64,
        /// How many vdevs.
        vdevs: u64,
        /// Disks of each.
        disks: u64,
    },
    /// dRAID.
    Draid {
        /// Disks' worth of parity of a group: 1 to 3.
        parity: u64,
        /// Data disks of a group.
        data: u64,
        /// How many vdevs.
        vdevs: u64,
        /// Disks of each.
        children: u64,
        /// Distributed spares of each.
        spares: u64,
    },
}

impl Layout {
    /// Whether a pool can be made so.
    ///
    /// # Errors
    /// [`PlanError::BadLayout`].
    pub fn check(self) -> Result<(), PlanError> {
        let bad = |why: &str| {
            Err(PlanError::BadLayout {
                layout: self.to_string(),
                why: why.to_owned(),
            })
        };
        if !(1..=VDEVS_MAX).contains(&self.vdevs()) {
            return bad("a pool has 1 to 10,000 vdevs");
        }
        if self.disks_of_vdev() > CHILDREN_MAX {
            return bad("a vdev has at most 255 disks");
        }
        if !matches!(self, Layout::Stripe { .. } | Layout::Mirror { .. })
            && !(1..=3).contains(&self.parity())
        {
            return bad("parity is 1, 2 or 3");
        }
        match self {
            Layout::Stripe { .. } => {}
            Layout::Mirror { ways, .. } if ways < 2 => {
                return bad("a mirror has at least 2 disks");
            }
            Layout::Mirror { .. } => {}
            Layout::Raidz { parity, disks, .. } if disks <= parity => {
                return bad("a raidz vdev has more disks than parity");
            }
            Layout::Raidz { .. } => {}
            Layout::Draid {
                parity,
                data,
                children,
                spares,
                ..
            } => {
                if data == 0 {
                    return bad("a group of draid has at least 1 data disk");
                }
                if spares > SPARES_MAX {
                    return bad("a draid vdev has at most 100 distributed spares");
                }
                if spares.saturating_add(parity).saturating_add(data) > children {
                    return bad("its data, parity and spares need more children than it has");
                }
            }
        }
        Ok(())
    }

    /// Top-level vdevs.
    pub fn vdevs(self) -> u64 {
        match self {
            Layout::Stripe { disks } => disks,
            Layout::Mirror { vdevs, .. }
            | Layout::Raidz { vdevs, .. }
            | Layout::Draid { vdevs, .. } => vdevs,
        }
    }

    /// Disks of each.
    pub fn disks_of_vdev(self) -> u64 {
        match self {
            Layout::Stripe { .. } => 1,
            Layout::Mirror { ways, .. } => ways,
            Layout::Raidz { disks, .. } => disks,
            Layout::Draid { children, .. } => children,
        }
    }

    /// Disks in all.
    pub fn disks(self) -> u64 {
        self.vdevs().saturating_mul(self.disks_of_vdev())
    }

    /// How many disks' worth of parity a block has; of mirrors and single disks none.
    pub fn parity(self) -> u64 {
        match self {
            Layout::Stripe { .. } | Layout::Mirror { .. } => 0,
            Layout::Raidz { parity, .. } | Layout::Draid { parity, .. } => parity,
        }
    }

    /// How many disks of one vdev may fail, whichever, and nothing is lost.
    pub fn may_fail(self) -> u64 {
        match self {
            Layout::Stripe { .. } => 0,
            Layout::Mirror { ways, .. } => ways - 1,
            Layout::Raidz { parity, .. } | Layout::Draid { parity, .. } => parity,
        }
    }

    /// Disks of a vdev that hold the data of a big block: less parity, copies and spares. On dRAID
    /// the average over its groups.
    pub fn data_disks_of_vdev(self) -> f64 {
        match self {
            Layout::Stripe { .. } | Layout::Mirror { .. } => 1.0,
            Layout::Raidz { parity, disks, .. } => (disks - parity) as f64,
            Layout::Draid {
                parity,
                data,
                children,
                spares,
                ..
            } => (children - spares) as f64 * data as f64 / (data + parity) as f64,
        }
    }

    /// Distributed spares, in all.
    pub fn distributed_spares(self) -> u64 {
        match self {
            Layout::Draid { vdevs, spares, .. } => vdevs * spares,
            _ => 0,
        }
    }

    /// Words for `zpool create` for one vdev, before its disks: `raidz2`, `draid2:4d:11c:1s`; of
    /// single disks none.
    pub fn vdev_word(self) -> Option<String> {
        match self {
            Layout::Stripe { .. } => None,
            Layout::Mirror { .. } => Some("mirror".to_owned()),
            Layout::Raidz { parity, .. } => Some(format!("raidz{parity}")),
            Layout::Draid {
                parity,
                data,
                children,
                spares,
                ..
            } => Some(format!("draid{parity}:{data}d:{children}c:{spares}s")),
        }
    }
}

/// `stripe:5`, `mirror:7x2` (seven mirrors of two), `raidz2:2x6`, `draid2:4d:11c:1s`, or with two
/// such vdevs `draid2:4d:2x11c:1s`.
impl fmt::Display for Layout {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Layout::Stripe { disks } => write!(out, "stripe:{disks}"),
            Layout::Mirror { vdevs, ways } => write!(out, "mirror:{vdevs}x{ways}"),
            Layout::Raidz {
                parity,
                vdevs,
                disks,
            } => match parity {
                1 => write!(out, "raidz:{vdevs}x{disks}"),
                parity => write!(out, "raidz{parity}:{vdevs}x{disks}"),
            },
            Layout::Draid {
                parity,
                data,
                vdevs,
                children,
                spares,
            } => {
                write!(out, "draid{parity}:{data}d:")?;
                if vdevs != 1 {
                    write!(out, "{vdevs}x")?;
                }
                write!(out, "{children}c:{spares}s")
            }
        }
    }
}

/// As [`Layout`] is displayed; one vdev needs no `1x`, `raidz1` is `raidz`, `draid` is `draid1`,
/// and a dRAID's parts come in any order, without data disks 8 or what is left, and without
/// spares none, as `zpool create` takes them.
impl FromStr for Layout {
    type Err = PlanError;

    fn from_str(word: &str) -> Result<Self, PlanError> {
        const WANTED: &str =
            "a layout is mirror:7x2, raidz2:2x6, draid2:4d:11c:1s or stripe:5 and the like";
        let bad = || PlanError::word(word, WANTED);
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| bad());
        let (name, rest) = word.split_once(':').ok_or_else(bad)?;
        let parity = |name: &str, prefix| match name.strip_prefix(prefix) {
            Some("" | "1") => Some(1),
            Some("2") => Some(2),
            Some("3") => Some(3),
            _ => None,
        };
        let times = |rest: &str| match rest.split_once('x') {
            Some((vdevs, disks)) => Ok((number(vdevs)?, number(disks)?)),
            None => Ok((1, number(rest)?)),
        };
        let layout = if name == "stripe" {
            Layout::Stripe {
                disks: number(rest)?,
            }
        } else if name == "mirror" {
            let (vdevs, ways) = times(rest)?;
            Layout::Mirror { vdevs, ways }
        } else if let Some(parity) = parity(name, "raidz") {
            let (vdevs, disks) = times(rest)?;
            Layout::Raidz {
                parity,
                vdevs,
                disks,
            }
        } else if let Some(parity) = parity(name, "draid") {
            let (mut data, mut all, mut spares) = (None, None, 0);
            for part in rest.split(':') {
                if let Some(digits) = part.strip_suffix('d') {
                    data = Some(number(digits)?);
                } else if let Some(digits) = part.strip_suffix('c') {
                    all = Some(times(digits)?);
                } else if let Some(digits) = part.strip_suffix('s') {
                    spares = number(digits)?;
                } else {
                    return Err(bad());
                }
            }
            let (vdevs, children) = all.ok_or_else(bad)?;
            let room = children.saturating_sub(spares).saturating_sub(parity);
            Layout::Draid {
                parity,
                data: data.unwrap_or(room.min(8)),
                vdevs,
                children,
                spares,
            }
        } else {
            return Err(bad());
        };
        layout.check()?;
        Ok(layout)
    }
}

impl Serialize for Layout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Layout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        word.parse().map_err(serde::de::Error::custom)
    }
}

/// As it is written: a word.
impl JsonSchema for Layout {
    fn schema_name() -> Cow<'static, str> {
        "PlanLayoutWord".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A layout: mirror:7x2, raidz2:2x6, draid2:4d:11c:1s, stripe:5.",
        })
    }
}

/// What a block of one size takes of a vdev.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Footprint {
    /// Bytes allocated, with parity and padding; on a mirror of one of its disks.
    pub allocated_bytes: u64,
    /// Disks that are read for it.
    pub read_disks: u64,
    /// Disks that are written.
    pub write_disks: u64,
    /// Bytes on the fullest of those disks.
    pub bytes_of_disk: u64,
    /// Part of such blocks, written one after the other, that have data on the disk which has data
    /// of most of them, 0 to 1. Where one of several disks that hold the same is read, of one.
    pub busiest_share: f64,
}

impl Footprint {
    /// Of a block of `block_bytes` as it is stored, in sectors of 2^`ashift` bytes
    /// (`vdev_default_asize`, `vdev_raidz_psize_to_asize`, `vdev_draid_psize_to_asize`; columns
    /// as in `vdev_raidz_map_alloc`).
    pub fn of(layout: Layout, ashift: u32, block_bytes: u64) -> Self {
        let sectors = block_bytes.max(1).div_ceil(1 << ashift);
        match layout {
            Layout::Stripe { .. } | Layout::Mirror { .. } => Footprint {
                allocated_bytes: sectors << ashift,
                read_disks: 1,
                write_disks: layout.disks_of_vdev(),
                bytes_of_disk: sectors << ashift,
                busiest_share: 1.0,
            },
            Layout::Raidz { parity, disks, .. } => {
                let data = disks - parity;
                let rows = sectors.div_ceil(data);
                let all = (sectors + parity * rows).next_multiple_of(parity + 1);
                Footprint {
                    allocated_bytes: all << ashift,
                    read_disks: sectors.min(data),
                    write_disks: sectors.min(data) + parity,
                    bytes_of_disk: rows << ashift,
                    busiest_share: busiest_share(parity, disks, sectors.min(data)),
                }
            }
            Layout::Draid {
                parity,
                data,
                children,
                ..
            } => {
                let rows = sectors.div_ceil(data);
                Footprint {
                    allocated_bytes: (rows * (data + parity)) << ashift,
                    read_disks: sectors.min(data),
                    // What a block does not fill of its stripe is written as zeros.
                    write_disks: data + parity,
                    bytes_of_disk: rows << ashift,
                    // Permutations spread them evenly.
                    busiest_share: sectors.min(data) as f64 / children as f64,
                }
            }
        }
    }
}

/// [`Footprint::busiest_share`] on RAID-Z, of blocks with data on so many disks.
///
/// What is allocated are multiples of `parity + 1` sectors, so within a metaslab a block begins at
/// every disk only if that has no divisor in common with the number of disks. With six disks and
/// double parity it begins at two of them, and whole blocks have data on two disks always, on two
/// every other time and on two never. With single parity the first two columns change places in
/// every other MiB.
fn busiest_share(parity: u64, disks: u64, data: u64) -> f64 {
    let (mut divisor, mut rest) = (disks, parity + 1);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    let mut blocks_of = vec![0u32; disks as usize];
    let mut blocks = 0;
    for first in (0..disks).step_by(divisor as usize) {
        for is_swapped in [false, true] {
            blocks += 1;
            for column in parity..parity + data {
                let column = match column {
                    1 if parity == 1 && is_swapped => 0,
                    column => column,
                };
                blocks_of[((first + column) % disks) as usize] += 1;
            }
        }
    }
    f64::from(blocks_of.into_iter().max().unwrap_or(0)) / f64::from(blocks)
}
