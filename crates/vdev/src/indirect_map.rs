//! The mapping of a removed vdev: where its blocks are now, and the txgs in which they were copied
//! there (module/zfs/vdev_indirect_mapping.c, vdev_indirect_births.c). While a vdev is being
//! removed its mapping grows, from the vdev's begin to its end. Later it is *condensed*: entries of
//! which nothing is in use any more are left out.

use format::{IndirectBirthEntry, IndirectMappingEntry, Txg, VdevId};

use crate::copies::CopyPlace;
use crate::error::{VdevError, bad};
use crate::range_set::RangeSet;

/// Where the blocks of a removed vdev are.
#[derive(Debug, Default)]
pub struct IndirectMap {
    /// Sorted, not overlapping.
    entries: Vec<IndirectMappingEntry>,
    /// Rising in both.
    births: Vec<IndirectBirthEntry>,
}

impl IndirectMap {
    /// The map of these entries, and of the txgs in which they were copied.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] when they are out of order or empty.
    pub fn new(
        entries: Vec<IndirectMappingEntry>,
        births: Vec<IndirectBirthEntry>,
    ) -> Result<Self, VdevError> {
        let empty = entries
            .iter()
            .any(|entry| entry.destination.asize_bytes() == 0);
        let apart = entries.windows(2).all(|pair| {
            let size = pair[0].destination.asize_bytes();
            pair[0].source_offset_bytes.checked_add(size) <= Some(pair[1].source_offset_bytes)
        });
        let rising = births
            .windows(2)
            .all(|pair| pair[0].offset_bytes < pair[1].offset_bytes);
        if empty || !apart || !rising {
            return Err(bad("the mapping of a removed vdev is out of order"));
        }
        Ok(IndirectMap { entries, births })
    }

    /// Takes in what was copied in `txg`, behind all that was copied before.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] when the entries are not in order behind the others: then nothing
    /// has changed.
    pub fn extend(&mut self, entries: &[IndirectMappingEntry], txg: Txg) -> Result<(), VdevError> {
        let mut end = self.end_bytes();
        for entry in entries {
            let length = entry.destination.asize_bytes();
            if length == 0 || entry.source_offset_bytes < end {
                return Err(bad("what was copied is not behind what was copied before"));
            }
            end = entry.source_offset_bytes.saturating_add(length);
        }
        if entries.is_empty() {
            return Ok(());
        }
        self.entries.extend_from_slice(entries);
        match self.births.last_mut() {
            Some(last) if last.physical_birth == txg => last.offset_bytes = end,
            _ => self.births.push(IndirectBirthEntry {
                offset_bytes: end,
                physical_birth: txg,
            }),
        }
        Ok(())
    }

    /// The entries, sorted.
    pub fn entries(&self) -> &[IndirectMappingEntry] {
        &self.entries
    }

    /// A map of some of these entries, with the same births.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn condensed(&self, entries: Vec<IndirectMappingEntry>) -> Result<Self, VdevError> {
        Self::new(entries, self.births.clone())
    }

    /// The first entry that ends behind an offset: where it is among them
    /// (`vdev_indirect_mapping_entry_for_offset_or_next`).
    pub fn first_behind(&self, offset: u64) -> usize {
        self.entries.partition_point(|entry| {
            let length = entry.destination.asize_bytes();
            entry.source_offset_bytes.saturating_add(length) <= offset
        })
    }

    /// Counts a range that is no longer in use: to each entry's count of such bytes comes what it
    /// has of the range (`vdev_indirect_mapping_increment_obsolete_count`).
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] where the entries do not have all of the range, or more of one
    /// would be out of use than there is: then some counts may have changed.
    pub fn count_obsolete(
        &self,
        counts: &mut [u32],
        offset: u64,
        length: u64,
    ) -> Result<(), VdevError> {
        let wrong = || bad("more of a removed vdev is said to be out of use than there is");
        let end = offset.checked_add(length).ok_or_else(wrong)?;
        let first = self.first_behind(offset);
        let mut at = offset;
        let counts = counts.iter_mut().skip(first);
        for (entry, count) in self.entries[first..].iter().zip(counts) {
            if at >= end {
                break;
            }
            let size = entry.destination.asize_bytes();
            let inside = at
                .checked_sub(entry.source_offset_bytes)
                .ok_or_else(wrong)?;
            let part = (size - inside).min(end - at);
            let sum = u64::from(*count) + part;
            if sum > size {
                return Err(wrong());
            }
            *count = u32::try_from(sum).map_err(|_| wrong())?;
            at += part;
        }
        match at >= end {
            true => Ok(()),
            false => Err(wrong()),
        }
    }

    /// Where the last entry ends, as an offset on the removed vdev.
    pub fn end_bytes(&self) -> u64 {
        self.entries.last().map_or(0, |entry| {
            let length = entry.destination.asize_bytes();
            entry.source_offset_bytes.saturating_add(length)
        })
    }

    /// The txgs in which something was copied: the last one, and where it is among them.
    pub fn last_birth(&self) -> Option<(u64, IndirectBirthEntry)> {
        let index = self.births.len().checked_sub(1)?;
        Some((index as u64, self.births[index]))
    }

    /// The txgs in which something was copied.
    pub fn birth_txgs(&self) -> RangeSet {
        let births = self.births.iter();
        births
            .map(|entry| (entry.physical_birth.get(), 1))
            .collect()
    }

    /// Where a range is: vdevs, offsets and lengths in bytes, in order; `None` if parts of it are
    /// nowhere.
    pub fn places(&self, offset: u64, length: u64) -> Option<Vec<(VdevId, u64, u64)>> {
        let pieces = self.pieces(offset, length)?;
        let place = |piece: &Piece| (piece.vdev, piece.offset, piece.length);
        Some(pieces.iter().map(place).collect())
    }

    /// The same with the txgs in which the parts were copied.
    pub fn copies(&self, offset: u64, length: u64) -> Option<Vec<CopyPlace>> {
        let pieces = self.pieces(offset, length)?;
        let place = |piece: &Piece| CopyPlace {
            vdev: piece.vdev,
            offset: piece.offset,
            length: piece.length,
            birth: piece.birth,
        };
        Some(pieces.iter().map(place).collect())
    }

    /// Whether all of a range is somewhere.
    pub fn covers(&self, offset: u64, length: u64) -> bool {
        self.pieces(offset, length).is_some()
    }

    /// How many entries it has, and how many txgs in which something was copied.
    pub fn counts(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.births.len() as u64)
    }

    /// Bytes of memory that it takes (what `zpool status` shows).
    pub fn memory_bytes(&self) -> u64 {
        (self.entries.len() * IndirectMappingEntry::BYTES) as u64
    }

    /// Where a range is: pieces in order; `None` if parts of it are nowhere.
    pub(super) fn pieces(&self, offset: u64, length: u64) -> Option<Vec<Piece>> {
        let end = offset.checked_add(length)?;
        let mut at = offset;
        let mut pieces = Vec::new();
        for entry in &self.entries[self.first_behind(offset)..] {
            if at >= end {
                break;
            }
            let inside = at.checked_sub(entry.source_offset_bytes)?;
            let length = (entry.destination.asize_bytes() - inside).min(end - at);
            pieces.push(Piece {
                vdev: entry.destination.vdev(),
                offset: entry.destination.offset_bytes().checked_add(inside)?,
                length,
                birth: self.birth(at),
            });
            at += length;
        }
        (at >= end).then_some(pieces)
    }

    fn birth(&self, offset: u64) -> Txg {
        let at = self
            .births
            .partition_point(|entry| entry.offset_bytes <= offset);
        self.births
            .get(at)
            .map_or(Txg::ZERO, |entry| entry.physical_birth)
    }
}

/// A part of a range, in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) vdev: VdevId,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) birth: Txg,
}

#[cfg(test)]
mod tests {
    use format::Dva;
    use proptest::prelude::*;

    use super::*;

    fn map(sizes: &[u64]) -> IndirectMap {
        let mut source = 0;
        let mut entries = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            // Every other gap is unmapped.
            source += (index as u64 % 2) * 512;
            let destination = Dva::new(VdevId::new(7), (index as u64) << 30, size * 512, false);
            entries.push(IndirectMappingEntry {
                source_offset_bytes: source,
                destination: destination.expect("a place"),
            });
            source += size * 512;
        }
        let births = vec![
            IndirectBirthEntry {
                offset_bytes: 4096,
                physical_birth: Txg::new(10),
            },
            IndirectBirthEntry {
                offset_bytes: u64::MAX,
                physical_birth: Txg::new(11),
            },
        ];
        IndirectMap::new(entries, births).expect("in order")
    }

    #[test]
    fn births_hold_up_to_their_offset() {
        let map = map(&[100]);
        let births = [0, 4095, 4096, 1 << 40].map(|offset| map.birth(offset).get());
        assert_eq!(births, [10, 10, 11, 11]);
    }

    #[test]
    fn a_mapping_grows_behind_its_end() {
        let place = |offset| Dva::new(VdevId::new(3), offset, 1024, false).expect("a place");
        let entry = |source_offset_bytes| IndirectMappingEntry {
            source_offset_bytes,
            destination: place(source_offset_bytes << 10),
        };
        let mut map = IndirectMap::default();
        assert_eq!((map.end_bytes(), map.last_birth()), (0, None));
        map.extend(&[entry(0), entry(4096)], Txg::new(10))
            .expect("in order");
        map.extend(&[entry(5120)], Txg::new(10))
            .expect("the same txg");
        assert_eq!(map.end_bytes(), 6144);
        map.extend(&[entry(8192)], Txg::new(12)).expect("in order");
        assert!(map.extend(&[entry(9000)], Txg::new(13)).is_err());
        assert!(
            map.extend(&[entry(9728), entry(9728)], Txg::new(13))
                .is_err()
        );
        assert_eq!(map.end_bytes(), 9216);
        let (index, last) = map.last_birth().expect("two");
        assert_eq!((index, last.offset_bytes), (1, 9216));
        let births = [0, 6143, 6144, 9215].map(|offset| map.birth(offset).get());
        assert_eq!(births, [10, 10, 12, 12]);
        assert_eq!(
            map.birth_txgs().iter().collect::<Vec<_>>(),
            [(10, 1), (12, 1)]
        );
        let places = map.places(4608, 1024);
        let here = |offset, length| (VdevId::new(3), offset, length);
        assert_eq!(
            places,
            Some(vec![here((4096 << 10) + 512, 512), here(5120 << 10, 512)])
        );
        assert_eq!(map.places(512, 1024), None);
    }

    /// What is out of use is counted once for each entry, and never more than there is.
    #[test]
    fn what_is_out_of_use_is_counted_by_entry() {
        // At 0, 1536 (behind a gap), 2560 and 4096.
        let map = map(&[2, 2, 2, 1]);
        let sources: Vec<u64> = map
            .entries()
            .iter()
            .map(|at| at.source_offset_bytes)
            .collect();
        assert_eq!(sources, [0, 1536, 2560, 4096]);
        let mut counts = [0; 4];
        map.count_obsolete(&mut counts, 2048, 1024).expect("mapped");
        map.count_obsolete(&mut counts, 0, 1024).expect("mapped");
        assert_eq!(counts, [1024, 512, 512, 0]);
        for (offset, length) in [
            (0, 512),
            (1024, 512),
            (3072, 1024),
            (4096, 1024),
            (512, u64::MAX),
        ] {
            let counted = map.count_obsolete(&mut counts.clone(), offset, length);
            assert!(counted.is_err(), "{offset} {length}");
        }
        let kept = map.entries()[1..].to_vec();
        let condensed = map.condensed(kept).expect("in order");
        assert_eq!(condensed.places(0, 512), None);
        assert_eq!(condensed.places(2048, 1024), map.places(2048, 1024));
        assert_eq!(
            [0, 1535, 1536, 3583, 3584].map(|at| condensed.first_behind(at)),
            [0, 0, 0, 1, 2]
        );
        assert_eq!(condensed.first_behind(1 << 30), 3);
    }

    #[test]
    fn entries_out_of_order_are_refused() {
        let place = Dva::new(VdevId::new(0), 0, 1024, false).expect("a place");
        let entry = |source_offset_bytes| IndirectMappingEntry {
            source_offset_bytes,
            destination: place,
        };
        assert!(IndirectMap::new(vec![entry(0), entry(512)], vec![]).is_err());
        assert!(IndirectMap::new(vec![entry(2048), entry(0)], vec![]).is_err());
        assert!(IndirectMap::new(vec![entry(0), entry(1024)], vec![]).is_ok());
    }

    proptest! {
        /// Pieces cover exactly the range, or the range has an unmapped sector.
        #[test]
        fn pieces_are_those_of_each_sector(
            sizes in proptest::collection::vec(1u64..20, 1..12),
            start in 0u64..200,
            length in 1u64..40,
        ) {
            let map = map(&sizes);
            let one = |sector: u64| map.entries.iter().find_map(|entry| {
                let inside = (sector * 512).checked_sub(entry.source_offset_bytes)?;
                (inside < entry.destination.asize_bytes())
                    .then(|| entry.destination.offset_bytes() + inside)
            });
            let expected: Option<Vec<u64>> = (start..start + length).map(one).collect();
            let found = map.pieces(start * 512, length * 512).map(|pieces| {
                pieces
                    .iter()
                    .flat_map(|piece| (0..piece.length / 512).map(|at| piece.offset + at * 512))
                    .collect::<Vec<u64>>()
            });
            prop_assert_eq!(found, expected);
        }
    }
}
