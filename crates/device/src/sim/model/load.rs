//! Loads on a disk's model alone, as fio would run them on the disk.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Command, Decided, Machine, SimOp};
use crate::sim::rng::Rng;

/// Where a load's operations go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anywhere in the range, aligned to their size.
    Random,
    /// One after the other, from the range's start; from there again after its end.
    Sequential,
}

/// A load: so many operations of one kind and size, always `depth` of them under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Reads or writes.
    pub op: SimOp,
    /// Where.
    pub access: Access,
    /// Bytes of each operation.
    pub block_bytes: u64,
    /// Operations under way.
    pub depth: u32,
    /// The range of bytes that they are in.
    pub range_bytes: std::ops::Range<u64>,
    /// How many operations.
    pub count: u64,
    /// Decides random places.
    pub seed: u64,
}

/// What a load saw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// When the last operation was complete.
    pub end_ns: u64,
    /// Operations a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Mean time from an operation's start to its end.
    pub mean_ns: f64,
    /// The longest such time.
    pub max_ns: u64,
}

/// Runs a load on a disk from `start_ns` on.
///
/// # Panics
/// When the range does not hold one operation, or the load has none.
pub fn measure(machine: &mut Machine, start_ns: u64, load: &Load) -> Measured {
    let blocks = (load.range_bytes.end - load.range_bytes.start) / load.block_bytes;
    assert!(
        blocks > 0 && load.count > 0 && load.depth > 0,
        "an empty load"
    );
    let mut rng = Rng::new(load.seed);
    let mut under_way = BinaryHeap::new();
    let mut started_ns = std::collections::HashMap::new();
    let mut decided: Vec<Decided> = Vec::new();
    let (mut now_ns, mut issued, mut ended) = (start_ns, 0, 0);
    let (mut sum_ns, mut max_ns) = (0u128, 0);
    while ended < load.count {
        while issued < load.count && issued - ended < u64::from(load.depth) {
            let block = match load.access {
                Access::Random => rng.below(blocks),
                Access::Sequential => issued % blocks,
            };
            let command = Command {
                op: load.op,
                offset_bytes: load.range_bytes.start + block * load.block_bytes,
                length_bytes: load.block_bytes,
            };
            started_ns.insert(issued, now_ns);
            if let Some(done_ns) = machine.submit(now_ns, issued, &command, &mut rng) {
                under_way.push(Reverse((done_ns, issued)));
            }
            issued += 1;
        }
        let done_ns = under_way.peek().map(|Reverse((done_ns, _))| *done_ns);
        // What is decided at the same time comes first: it may be complete then as well.
        match (done_ns, machine.next_ns()) {
            (done_ns, Some(next_ns)) if done_ns.is_none_or(|done_ns| next_ns <= done_ns) => {
                now_ns = now_ns.max(next_ns);
                machine.advance(now_ns, &mut decided);
                for Decided { number, done_ns } in decided.drain(..) {
                    under_way.push(Reverse((done_ns, number)));
                }
            }
            (Some(_), _) => {
                let Some(Reverse((done_ns, number))) = under_way.pop() else {
                    unreachable!("it was looked at above");
                };
                now_ns = now_ns.max(done_ns);
                ended += 1;
                let took_ns = done_ns - started_ns.remove(&number).unwrap_or(done_ns);
                sum_ns += u128::from(took_ns);
                max_ns = max_ns.max(took_ns);
            }
            (None, _) => unreachable!("a disk that has commands decides about one of them"),
        }
    }
    let seconds = (now_ns - start_ns).max(1) as f64 / 1e9;
    Measured {
        end_ns: now_ns,
        iops: load.count as f64 / seconds,
        bytes_per_second: (load.count * load.block_bytes) as f64 / seconds,
        mean_ns: sum_ns as f64 / load.count as f64,
        max_ns,
    }
}
