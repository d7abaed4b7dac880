//! A turn of a removal: what is copied, where to, and how it gets into the mapping.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use format::{Dva, IndirectMappingEntry, Txg, VdevId};
use futures::future::join_all;
use spa::{Pass, PoolError};
use vdev::{AllocClass, Copied, RangeSet, evacuation};
use zio::ZioError;
use zio::alloc::{Request, Settled, settled};

use super::{ENTRY_BYTES_MAX, Ended, Evacuation, missing};

/// Bytes of one copy.
const COPY_BYTES: u64 = 1 << 20;
/// Copies that are under way, and their bytes.
const COPIES_MAX: usize = 256;
const COPIES_BYTES_MAX: u64 = 16 << 20;
/// Entries that a batch of copies makes, at most: each copy is one, or some where free space is in
/// small pieces.
const BATCH_ENTRIES_MAX: u64 = COPIES_BYTES_MAX >> format::SECTOR_SHIFT;

impl Evacuation {
    /// Copies until the turn is over.
    pub(super) async fn copy(&self, pass: &Pass<'_>, vdev: VdevId) -> Result<Ended, PoolError> {
        let (spa, txg) = (&self.spa, pass.ctx.txg);
        let top = spa.tree.top(vdev).ok_or_else(|| missing(vdev))?;
        let class = top.top().map_or(AllocClass::Normal, |about| about.class);
        let shift = top.metaslab_shift();
        let is_over = self.scans.scan.turn_is_over(&self.scans, txg);
        let end = spa.pipeline.dvas().with_removal(|map| map.end_bytes());
        // Up to there nothing was in use behind what was copied, and nothing is allocated.
        let passed = self.running().map_or(0, |running| running.passed_bytes);
        let mut at = end.unwrap_or(0).max(passed);
        let mut left = self.limits.turn_bytes.load(Ordering::Relaxed);
        let mut has_copied = false;
        loop {
            if left == 0 {
                return Ok(Ended::More);
            }
            let metaslab = at >> shift;
            let allocator = spa.pipeline.allocator();
            let mut ranges = match settled::remaining(allocator, txg, vdev, metaslab).await {
                Settled::Ranges(ranges) => ranges,
                Settled::Unknown => {
                    return Ok(Ended::Failed(
                        "a record of free space cannot be read".into(),
                    ));
                }
                // What this group copied may turn out to be lost when it is flushed.
                Settled::End if has_copied => return Ok(Ended::More),
                Settled::End => return Ok(Ended::Whole),
            };
            ranges.remove(0, at);
            for batch in batches(&ranges, left.min(COPIES_BYTES_MAX)) {
                if is_over() || left == 0 {
                    return Ok(Ended::More);
                }
                if let Some(ended) = self.copy_batch(pass, (vdev, class), &batch).await? {
                    return Ok(ended);
                }
                has_copied = true;
                let bytes: u64 = batch.iter().map(|piece| piece.end - piece.start).sum();
                left = left.saturating_sub(bytes);
            }
            settled::unload(allocator, vdev, metaslab);
            at = (metaslab + 1) << shift;
            self.change_running(|running| running.passed_bytes = at);
            if is_over() {
                self.note_moved();
                return Ok(Ended::More);
            }
        }
    }

    /// Copies some ranges; nothing when all of them were copied.
    async fn copy_batch(
        &self,
        pass: &Pass<'_>,
        (vdev, class): (VdevId, AllocClass),
        batch: &[Range<u64>],
    ) -> Result<Option<Ended>, PoolError> {
        let (spa, txg) = (&self.spa, pass.ctx.txg);
        if self.is_mapping_full(txg) {
            let why = "its mapping would be bigger than one that can be imported";
            return Ok(Some(Ended::Failed(why.to_owned())));
        }
        spa.pipeline.dvas().begin_copies();
        let mut planned: Vec<(u64, Dva)> = Vec::new();
        let mut is_full = false;
        for piece in batch {
            let mut start = piece.start;
            while start < piece.end && !is_full {
                match self.place(txg, class, piece.end - start).await {
                    Some(place) => {
                        planned.push((start, place));
                        start += place.asize_bytes();
                    }
                    None => is_full = true,
                }
            }
        }
        let copies = planned.iter().map(|(start, place)| {
            let to = (place.vdev(), place.offset_bytes());
            let from = (vdev, *start);
            evacuation::copy_out(&spa.tree, from, to, place.asize_bytes(), txg)
        });
        let copied = join_all(copies).await;
        let is_whole = |copied: &&_| matches!(copied, Ok(Copied::Whole));
        let good = copied.iter().take_while(is_whole).count();
        let put = self.append(pass, &planned[..good]).await?;
        for (_, place) in &planned[put..] {
            spa.pipeline.allocator().unallocate(txg, place);
        }
        if put > 0 {
            self.note_moved();
        }
        if put < good {
            // Some of it was healed meanwhile.
            return Ok(Some(Ended::More));
        }
        let is_readable = spa
            .tree
            .top(vdev)
            .is_some_and(|top| top.state().0.is_usable());
        Ok(match copied.into_iter().nth(good) {
            None | Some(Ok(Copied::Whole)) => is_full.then(|| match good {
                0 => Ended::Failed("the other devices have no room".to_owned()),
                _ => Ended::More,
            }),
            Some(Ok(Copied::Halted)) => Some(Ended::More),
            Some(Ok(Copied::Unwritten { cause })) => {
                tracing::warn!(
                    cause,
                    "a copy of a vdev that is being removed was not written"
                );
                Some(Ended::More)
            }
            Some(Ok(Copied::Differs)) => {
                let why = "its devices do not hold the same; scrub the pool, or detach one";
                Some(Ended::Failed(why.to_owned()))
            }
            // Its device may come back.
            Some(Ok(Copied::Unread { .. }) | Err(_)) if !is_readable => Some(Ended::More),
            Some(Ok(Copied::Unread { cause })) => Some(Ended::Failed(cause)),
            Some(Err(_)) if !evacuation::takes_copies(&spa.tree, vdev) => Some(Ended::More),
            Some(Err(error)) => Some(Ended::Failed(error.to_string())),
        })
    }

    /// A place for a copy, of `wanted_bytes` or less.
    async fn place(&self, txg: Txg, class: AllocClass, wanted_bytes: u64) -> Option<Dva> {
        let allocator = self.spa.pipeline.allocator();
        let mut length = wanted_bytes;
        loop {
            let request = Request {
                txg,
                psize_bytes: length,
                copies: 1,
                class,
                fallback: true,
                gang: false,
            };
            match allocator.allocate(&request).await {
                Ok([Some(place), ..]) if place.asize_bytes() == length => return Some(place),
                // Sectors of another size: copies would not fit.
                Ok([place, ..]) => {
                    if let Some(place) = place {
                        allocator.unallocate(txg, &place);
                    }
                    return None;
                }
                Err(_) => {
                    let half = (length / 2).next_multiple_of(self.sector_bytes());
                    if half >= length {
                        return None;
                    }
                    length = half;
                }
            }
        }
    }

    /// Whether what one more batch adds could be more than an import believes. Batches are small.
    fn is_mapping_full(&self, txg: Txg) -> bool {
        let known = self.spa.pipeline.dvas().with_removal(|map| {
            let last = map.last_birth().map(|(_, birth)| birth.physical_birth);
            (map.counts(), last == Some(txg))
        });
        let Some(((entries, births), is_counted)) = known else {
            return false;
        };
        let most = |limit: &AtomicU64| limit.load(Ordering::Relaxed);
        entries + BATCH_ENTRIES_MAX > most(&self.limits.entries)
            || births + u64::from(!is_counted) > most(&self.limits.births)
    }

    /// What was copied, as entries of a mapping.
    fn entries_of(&self, copied: &[(u64, Dva)]) -> Result<Vec<IndirectMappingEntry>, PoolError> {
        let mut entries: Vec<IndirectMappingEntry> = Vec::new();
        for (start, place) in copied {
            match entries.last_mut() {
                Some(last) if self.is_behind(last, *start, place) => {
                    let to = last.destination;
                    let length = to.asize_bytes() + place.asize_bytes();
                    last.destination = Dva::new(to.vdev(), to.offset_bytes(), length, false)?;
                }
                _ => entries.push(IndirectMappingEntry {
                    source_offset_bytes: *start,
                    destination: *place,
                }),
            }
        }
        Ok(entries)
    }

    /// Puts what was copied into the mapping: returns how many ranges. Those behind one that was
    /// healed since it was read are to be copied again.
    async fn append(&self, pass: &Pass<'_>, copied: &[(u64, Dva)]) -> Result<usize, PoolError> {
        let (spa, txg) = (&self.spa, pass.ctx.txg);
        let extended = spa.pipeline.dvas().with_copies(|map, healed| {
            let is_as_read =
                |(start, place): &&(u64, Dva)| !healed.overlaps(*start, place.asize_bytes());
            let copied = &copied[..copied.iter().take_while(is_as_read).count()];
            let entries = self.entries_of(copied)?;
            map.extend(&entries, txg).map_err(ZioError::from)?;
            Ok::<_, PoolError>((copied, entries, map.last_birth()))
        });
        let Some((copied, entries, Some(birth))) = extended.transpose()? else {
            return Ok(0);
        };
        let Some(mut running) = self.running().filter(|_| !entries.is_empty()) else {
            return Ok(0);
        };
        let mos = spa.dsl.mos();
        running
            .objects
            .append(pass.tx, mos, &entries, birth)
            .await?;
        let bytes: u64 = copied.iter().map(|(_, place)| place.asize_bytes()).sum();
        let mut state = self.state.lock();
        state.is_dirty = true;
        if let Some(phys) = &mut state.phys {
            phys.copied_bytes = phys.copied_bytes.saturating_add(bytes);
        }
        if let Some(known) = &mut state.running {
            known.objects = running.objects;
        }
        Ok(copied.len())
    }

    /// Whether a copy goes on where an entry ends, in the vdev and where it was copied to. An entry
    /// lies in one metaslab, so that what is freed of it does.
    fn is_behind(&self, last: &IndirectMappingEntry, start: u64, place: &Dva) -> bool {
        let to = last.destination;
        let length = to.asize_bytes();
        let shift = self
            .spa
            .tree
            .top(to.vdev())
            .map_or(0, |top| top.metaslab_shift());
        to.vdev() == place.vdev()
            && last.source_offset_bytes + length == start
            && to.offset_bytes() + length == place.offset_bytes()
            && to.offset_bytes() >> shift == place.offset_bytes() >> shift
            && length + place.asize_bytes() <= ENTRY_BYTES_MAX
    }
}

/// Ranges in pieces, and those that are copied at a time: of `bytes_max`, in whole sectors and not
/// zero.
fn batches(ranges: &RangeSet, bytes_max: u64) -> Vec<Vec<Range<u64>>> {
    let most = COPY_BYTES.min(bytes_max);
    let pieces = ranges.ranges().flat_map(|range| {
        let starts = range.clone().step_by(most as usize);
        starts.map(move |start| start..range.end.min(start + most))
    });
    let mut out: Vec<Vec<Range<u64>>> = Vec::new();
    let mut bytes = 0;
    for piece in pieces {
        let length = piece.end - piece.start;
        match out.last_mut() {
            Some(last) if last.len() < COPIES_MAX && bytes + length <= bytes_max => {
                bytes += length;
                last.push(piece);
            }
            _ => {
                bytes = length;
                out.push(vec![piece]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_bounded_and_lose_nothing() {
        let mut ranges = RangeSet::new();
        for at in 0..1000 {
            ranges.add(at * 4096, 512);
        }
        ranges.add(1 << 30, (40 << 20) + 512);
        let batches = batches(&ranges, COPIES_BYTES_MAX);
        let all: RangeSet = (batches.iter().flatten())
            .map(|piece| (piece.start, piece.end - piece.start))
            .collect();
        assert_eq!(all, ranges);
        for batch in &batches {
            let bytes: u64 = batch.iter().map(|piece| piece.end - piece.start).sum();
            assert!(batch.len() <= COPIES_MAX && bytes <= COPIES_BYTES_MAX);
            assert!(batch.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
        let count: usize = batches.iter().map(Vec::len).sum();
        assert_eq!(count, 1000 + 41);
    }
}
