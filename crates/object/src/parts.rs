//! Freeing long ranges in parts, so that one txg does not get all of the work.
//!
//! What a part costs goes by the blocks in it, not by its length: a file of exabytes may hold next
//! to nothing. So parts are at most [`FREE_BYTES_MAX`] long from the first to the last block in
//! them, whatever holes are around, and an object that takes little space is freed at once
//! (`get_next_chunk`, module/zfs/dmu.c, counts indirect blocks for that).

use std::ops::Range;

use crate::error::Result;
use crate::object::Object;

/// Most that one part frees of what may hold data, in bytes.
const FREE_BYTES_MAX: u64 = 8 << 30;
/// An object that uses no more space than this, in bytes, is freed in one part. What is not written
/// yet is bounded by the dirty data that a pool may have.
const SMALL_BYTES: u64 = 1 << 30;

impl Object {
    /// Where the last part of `start_bytes..end_bytes` begins, for who frees it from the end.
    ///
    /// # Errors
    /// None of reading: what cannot be reached counts as data.
    pub async fn last_part(&self, start_bytes: u64, end_bytes: u64) -> Result<u64> {
        if self.info().used_bytes <= SMALL_BYTES {
            return Ok(start_bytes);
        }
        last_part(start_bytes..end_bytes, |from| {
            self.next_data_or_unreachable(from)
        })
        .await
    }

    /// Where the first part of `start_bytes..end_bytes` ends, for who frees it from the start.
    ///
    /// # Errors
    /// None of reading: what cannot be reached counts as data.
    pub async fn first_part(&self, start_bytes: u64, end_bytes: u64) -> Result<u64> {
        if self.info().used_bytes <= SMALL_BYTES {
            return Ok(end_bytes);
        }
        first_part(start_bytes..end_bytes, |from| {
            self.next_data_or_unreachable(from)
        })
        .await
    }
}

/// [`Object::last_part`], given where the first data at or behind an offset is.
async fn last_part<F>(range: Range<u64>, next_data: impl Fn(u64) -> F) -> Result<u64>
where
    F: Future<Output = Result<Option<u64>>>,
{
    if range.end.saturating_sub(range.start) <= FREE_BYTES_MAX {
        return Ok(range.start);
    }
    let is_within = |found: Option<u64>| found.is_some_and(|data| data < range.end);
    let last = range.end - FREE_BYTES_MAX;
    if is_within(next_data(last).await?) {
        return Ok(last);
    }
    if !is_within(next_data(range.start).await?) {
        return Ok(range.start);
    }
    // There is data at or behind `low`, and none at or behind `high`.
    let (mut low, mut high) = (range.start, last);
    while high - low > FREE_BYTES_MAX / 2 {
        let middle = low + (high - low) / 2;
        if is_within(next_data(middle).await?) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(high.saturating_sub(FREE_BYTES_MAX).max(range.start))
}

/// [`Object::first_part`], given where the first data at or behind an offset is.
async fn first_part<F>(range: Range<u64>, next_data: impl Fn(u64) -> F) -> Result<u64>
where
    F: Future<Output = Result<Option<u64>>>,
{
    if range.end.saturating_sub(range.start) <= FREE_BYTES_MAX {
        return Ok(range.end);
    }
    let found = next_data(range.start).await?;
    let end = found.map(|data| data.saturating_add(FREE_BYTES_MAX));
    Ok(end.map_or(range.end, |end| end.min(range.end)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::future::ready;

    use futures::executor::block_on;

    use super::*;

    const LIMIT: u64 = i64::MAX as u64;

    /// Frees all of `range` of a file with data at these offsets, from the end or from the start.
    /// Checks each part; returns how many there were.
    fn free(mut data: BTreeSet<u64>, mut range: Range<u64>, from_end: bool) -> usize {
        let outside: BTreeSet<u64> = data
            .iter()
            .filter(|at| !range.contains(at))
            .copied()
            .collect();
        let mut parts = 0;
        while range.start < range.end {
            let part = {
                let next = |from: u64| ready(Ok(data.range(from..).next().copied()));
                let whole = range.clone();
                match from_end {
                    true => block_on(last_part(whole, next)).unwrap()..range.end,
                    false => range.start..block_on(first_part(whole, next)).unwrap(),
                }
            };
            assert!(part.start < part.end && part.start >= range.start && part.end <= range.end);
            let freed: Vec<u64> = data.range(part.clone()).copied().collect();
            if let (Some(first), Some(last)) = (freed.first(), freed.last()) {
                assert!(last - first <= FREE_BYTES_MAX);
            }
            freed.iter().for_each(|at| assert!(data.remove(at)));
            match from_end {
                true => range.end = part.start,
                false => range.start = part.end,
            }
            parts += 1;
        }
        assert_eq!(data, outside);
        parts
    }

    fn free_both_ways(data: &[u64], range: Range<u64>, parts_max: usize) {
        for from_end in [false, true] {
            let parts = free(data.iter().copied().collect(), range.clone(), from_end);
            assert!(parts <= parts_max, "{parts} parts, {data:?}, {range:?}");
        }
    }

    #[test]
    fn holes_cost_nothing() {
        free_both_ways(&[], 0..LIMIT, 1);
        free_both_ways(&[0], 0..LIMIT, 2);
        free_both_ways(&[LIMIT - 1], 0..LIMIT, 2);
        free_both_ways(&[0, 1 << 50, LIMIT - 1], 0..LIMIT, 5);
        free_both_ways(&[5, 1 << 50, 1 << 60], 6..1 << 60, 3);
    }

    #[test]
    fn dense_ranges_are_freed_in_parts() {
        let data: Vec<u64> = (0..1000).map(|index| index << 28).collect();
        free_both_ways(&data, 0..1000 << 28, 33);
        assert!(free(data.iter().copied().collect(), 0..1000 << 28, true) > 30);
        assert!(free(data.iter().copied().collect(), 0..1000 << 28, false) > 30);
        free_both_ways(&data, 12_345..LIMIT, 35);
    }

    #[test]
    fn short_ranges_are_one_part() {
        free_both_ways(&[0, 7 << 30], 0..8 << 30, 1);
        free_both_ways(&[], 5..6, 1);
        free_both_ways(&[1], 5..5, 0);
    }
}
