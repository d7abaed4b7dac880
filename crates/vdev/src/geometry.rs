//! How a block lies on a top-level vdev: allocated sizes, and the columns of RAID-Z.
//!
//! # RAID-Z columns (`vdev_raidz_map_alloc`, module/zfs/vdev_raidz.c)
//!
//! A vdev of `w` children counts its sectors row by row: sector `b` is row `b / w` of child `b % w`.
//! A block of `s` data sectors at sector `b` takes its columns from child `b % w` on, first the `p`
//! parity columns, then the data columns, each of `⌊s / (w-p)⌋` sectors, one more for the first
//! ones if that does not come out even. Every column's sectors follow each other on its child.
//! Allocations are multiples of `p + 1` sectors (so that no free run is too short for anything);
//! the sectors that this leaves over (*skip sectors*) follow the last column used.
//!
//! With single parity, the first two columns swap places in every other MiB (bit 20 of the offset).

use std::ops::Range;

/// How a top-level vdev spreads a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Geometry {
    ashift: u32,
    layout: Layout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Layout {
    /// Every child holds the whole block (or there is but one device).
    Plain,
    /// Columns with parity.
    Raidz { width: u32, parity: u32 },
    /// Stripes of data and parity columns, always whole.
    Draid { data: u32, parity: u32 },
}

/// One column of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Which child.
    pub child: usize,
    /// Offset on the child in bytes (without its labels).
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
}

/// The columns of a block: parity first, then data in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// How many of them are parity.
    pub parity: usize,
    /// The columns.
    pub columns: Vec<Column>,
    /// Places of the skip sectors: on RAID-Z anything may be there, on dRAID zeros must be.
    pub skips: Vec<Column>,
    /// Where in the block each data column's bytes are.
    pub data_at: Vec<usize>,
}

/// The swap of single parity's first two columns.
pub(super) fn swap_first_two(columns: &mut [Column]) {
    if let [first, second, ..] = columns {
        std::mem::swap(&mut first.child, &mut second.child);
        std::mem::swap(&mut first.offset, &mut second.offset);
    }
}

/// The bytes of metaslab `index` on a vdev whose metaslabs have `2^shift` bytes. On dRAID
/// (`stripe_bytes` is not zero) only whole stripes in there can be allocated (`vdev_draid_metaslab_init`,
/// module/zfs/vdev_draid.c); offsets in its space map count from the first of them.
pub fn metaslab_span(index: u64, shift: u32, stripe_bytes: u64) -> Range<u64> {
    let (start, length) = (index << shift, 1u64 << shift);
    if stripe_bytes == 0 {
        return start..start.saturating_add(length);
    }
    let first = start.div_ceil(stripe_bytes).saturating_mul(stripe_bytes);
    let rest = length.saturating_sub(first - start);
    first..first.saturating_add(rest / stripe_bytes * stripe_bytes)
}

impl Geometry {
    /// A disk, file or mirror.
    pub fn plain(ashift: u32) -> Self {
        Geometry {
            ashift,
            layout: Layout::Plain,
        }
    }

    /// RAID-Z of `width` children, `parity` of them for parity. `None` when that cannot be.
    pub fn raidz(ashift: u32, width: usize, parity: u64) -> Option<Self> {
        let fits = (1..=3).contains(&parity) && (width as u64) > parity && width <= 255;
        fits.then_some(Geometry {
            ashift,
            layout: Layout::Raidz {
                width: width as u32,
                parity: parity as u32,
            },
        })
    }

    /// dRAID whose stripes have so many data and parity columns.
    pub(super) fn draid(ashift: u32, data: u64, parity: u64) -> Self {
        Geometry {
            ashift,
            layout: Layout::Draid {
                data: data as u32,
                parity: parity as u32,
            },
        }
    }

    /// log2 of the sector size.
    pub fn ashift(&self) -> u32 {
        self.ashift
    }

    /// The sector size in bytes.
    pub fn sector_bytes(&self) -> u64 {
        1 << self.ashift
    }

    /// The least that is allocated of, data only: a sector, on dRAID one per data column (`vdev_get_min_alloc`,
    /// module/zfs/vdev.c; `vdev_draid_min_alloc`).
    pub fn alloc_unit_bytes(&self) -> u64 {
        match self.layout {
            Layout::Draid { data, .. } => u64::from(data) << self.ashift,
            _ => self.sector_bytes(),
        }
    }

    /// Parity columns; zero for other vdevs.
    pub fn parity(&self) -> u64 {
        match self.layout {
            Layout::Plain => 0,
            Layout::Raidz { parity, .. } | Layout::Draid { parity, .. } => parity.into(),
        }
    }

    /// Children that a big block is spread over.
    pub fn children(&self) -> u64 {
        match self.layout {
            Layout::Plain => 1,
            Layout::Raidz { width, .. } => width.into(),
            Layout::Draid { data, parity } => (data + parity).into(),
        }
    }

    /// Bytes allocated for `psize_bytes` of data (`vdev_default_asize`,
    /// `vdev_raidz_psize_to_asize`, `vdev_draid_psize_to_asize`).
    pub fn asize(&self, psize_bytes: u64) -> u64 {
        let sectors = psize_bytes.max(1).div_ceil(self.sector_bytes());
        let sectors = match self.layout {
            Layout::Plain => sectors,
            Layout::Raidz { width, parity } => {
                let (width, parity) = (u64::from(width), u64::from(parity));
                let rows = sectors.div_ceil(width - parity);
                (sectors + parity * rows).next_multiple_of(parity + 1)
            }
            Layout::Draid { data, parity } => {
                sectors.div_ceil(data.into()) * u64::from(data + parity)
            }
        };
        sectors << self.ashift
    }

    /// Most data that `asize_bytes` can hold (`vdev_raidz_asize_to_psize`).
    pub fn psize_max(&self, asize_bytes: u64) -> u64 {
        let sectors = asize_bytes >> self.ashift;
        let sectors = match self.layout {
            Layout::Plain => sectors,
            Layout::Raidz { width, parity } => {
                let (width, parity) = (u64::from(width), u64::from(parity));
                let (rows, rest) = (sectors / width, sectors % width);
                // A row that would hold nothing but parity holds nothing.
                let sectors = if rest <= parity {
                    rows * width
                } else {
                    sectors
                };
                sectors - parity * sectors.div_ceil(width)
            }
            Layout::Draid { data, parity } => sectors / u64::from(data + parity) * u64::from(data),
        };
        sectors << self.ashift
    }

    /// Usable 512ths of raw space, for blocks of 128 KiB (`vdev_set_deflate_ratio`).
    pub fn deflate_ratio(&self) -> u64 {
        (1 << 17) / (self.asize(1 << 17) >> 9)
    }

    /// The bytes of a metaslab (see [`metaslab_span`]).
    pub fn metaslab(&self, index: u64, shift: u32) -> Range<u64> {
        let stripe_bytes = match self.layout {
            Layout::Draid { data, parity } => u64::from(data + parity) << self.ashift,
            _ => 0,
        };
        metaslab_span(index, shift, stripe_bytes)
    }

    /// The columns of `length` bytes (whole sectors) at `offset`; `None` when this is not RAID-Z.
    pub fn columns(&self, offset: u64, length: usize) -> Option<Columns> {
        let Layout::Raidz { width, parity } = self.layout else {
            return None;
        };
        let (width, parity) = (u64::from(width), u64::from(parity));
        let sector = self.sector_bytes();
        debug_assert!((length as u64).is_multiple_of(sector) && length > 0);
        let first = offset >> self.ashift;
        let data = length as u64 >> self.ashift;
        let per_column = data / (width - parity);
        let rest = data % (width - parity);
        // Columns with one sector more.
        let big = if rest == 0 { 0 } else { rest + parity };
        let total = data + parity * (per_column + u64::from(rest != 0));
        let used = if per_column == 0 { big } else { width };
        let touched = if per_column == 0 {
            width.min(big.next_multiple_of(parity + 1))
        } else {
            width
        };
        let mut all: Vec<Column> = (0..touched)
            .map(|index| {
                let at = first % width + index;
                let (child, row) = (at % width, first / width + at / width);
                let sectors = if index >= used {
                    0
                } else {
                    per_column + u64::from(index < big)
                };
                Column {
                    child: child as usize,
                    offset: row << self.ashift,
                    length: (sectors << self.ashift) as usize,
                }
            })
            .collect();
        let mut skip_from = big as usize;
        if parity == 1 && offset & (1 << 20) != 0 {
            swap_first_two(&mut all);
            if skip_from == 0 {
                skip_from = 1;
            }
        }
        let skip_count = (total.next_multiple_of(parity + 1) - total) as usize;
        let skips = (0..skip_count)
            .map(|index| {
                let column = all[(skip_from + index) % all.len()];
                Column {
                    child: column.child,
                    offset: column.offset + column.length as u64,
                    length: sector as usize,
                }
            })
            .collect();
        all.truncate(used as usize);
        let mut end = 0;
        let data_at = all[parity as usize..]
            .iter()
            .map(|column| {
                end += column.length;
                end - column.length
            })
            .collect();
        Some(Columns {
            parity: parity as usize,
            columns: all,
            skips,
            data_at,
        })
    }
}
