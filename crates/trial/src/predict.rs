//! What the planner says about a trial.

use std::ops::Range;

use device::sim::SimOp;
use device::sim::model::{Access as ModelAccess, Load as ModelLoad, Machine, measure};
use plan::full::{Load as PlanLoad, Path, Rates};
use plan::{Bus, Disks};

use crate::TrialError;
use crate::report::{DISKS_LIMITING_PERCENT, Outcome};
use crate::server::{disk_bytes, set_bytes_of_disk};
use crate::spec::{Access, Load, Trial};

/// Operations by which a disk's accesses are taken from its model.
const ACCESSES: u64 = 400;
/// Places of a disk at which its rate is, and bytes that are read at each.
const PLACES: u64 = 8;
const PLACE_BYTES: u64 = 32 << 20;

/// Where of each disk a load has something to do, in bytes of the whole: the pool takes the outer
/// tracks first, so that what is written goes behind the set.
fn range(trial: &Trial, load: &Load) -> Result<Range<u64>, TrialError> {
    let by = u64::from(trial.scale);
    let size_bytes = disk_bytes(trial)? * by;
    let used_bytes = (set_bytes_of_disk(trial) * by).clamp(PLACE_BYTES, size_bytes);
    let free_bytes = size_bytes - used_bytes;
    Ok(match load.reads_percent {
        0 if free_bytes > PLACE_BYTES => used_bytes..used_bytes + free_bytes.min(used_bytes),
        _ => 0..used_bytes,
    })
}

/// The planner's disks: figures of one, as its model has them where the load is, told whole.
fn disks(trial: &Trial, load: &Load) -> Result<Disks, TrialError> {
    let known = trial.disk()?;
    let size_bytes = disk_bytes(trial)? * u64::from(trial.scale);
    let within = range(trial, load)?;
    let measured = |access, block_bytes, range_bytes: Range<u64>, count| {
        let mut machine = Machine::new(&known.model, size_bytes);
        let load = ModelLoad {
            op: SimOp::Read,
            access,
            block_bytes,
            depth: 1,
            range_bytes,
            count,
            seed: 1,
        };
        measure(&mut machine, 0, &load)
    };
    let seconds_of_byte = |place: u64| {
        let begin = within.start + (within.end - within.start - PLACE_BYTES) / PLACES * place;
        let range = begin..begin + PLACE_BYTES;
        let pieces = PLACE_BYTES >> 20;
        1.0 / measured(ModelAccess::Sequential, 1 << 20, range, pieces).bytes_per_second
    };
    let seconds: f64 = (0..PLACES).map(seconds_of_byte).sum();
    let accesses = measured(ModelAccess::Random, 4096, within.clone(), ACCESSES);
    let mut disks = Disks::usual(trial.pool.layout.disks(), size_bytes, known.kind());
    disks.accesses_per_second = accesses.iops;
    disks.rate = (PLACES as f64 / seconds) as u64;
    Ok(disks)
}

/// Operations a second that the planner expects of a load; nothing where memory would answer.
///
/// # Errors
/// The trial's disk is not known.
pub(crate) fn iops(trial: &Trial, load: &Load) -> Result<Option<f64>, TrialError> {
    let is_in_memory = trial.set.bytes <= trial.pool.memory;
    if !trial.pool.cache.is_empty() || (is_in_memory && load.reads_percent > 0) || load.sync {
        return Ok(None);
    }
    let buses: Vec<Bus> = (trial.bus.iter().enumerate())
        .map(|(number, bus)| Bus {
            name: format!("bus{number}"),
            read_rate: bus.rate,
            write_rate: bus.rate_to_disks(),
            disks: bus.disks as u64,
        })
        .collect();
    let path = Path {
        buses: &buses,
        network_rate: (trial.network.as_ref()).map(|network| network.links as u64 * 117_000_000),
    };
    let asked = PlanLoad {
        block_bytes: load.block.max(trial.set.block),
        depth: load.depth as u64,
        read_share: f64::from(load.reads_percent) / 100.0,
        streams: 0,
        stream_rate: 0,
    };
    let rates = Rates::of(trial.pool.layout, &disks(trial, load)?, 12, &asked, path);
    let is_random = load.access == Access::Random;
    Ok(rates.operations(is_random, load.reads_percent, load.block))
}

/// How far a load may be from what the planner expects without a word.
const DIFFERENCE: f64 = 0.15;

/// Why a load did something else than the planner expects; nothing where it is about the same.
pub(crate) fn difference(load: &Load, outcome: &Outcome) -> Option<String> {
    let off = outcome.iops? / outcome.predicted_iops? - 1.0;
    if off.abs() <= DIFFERENCE {
        return None;
    }
    let is_busy = outcome.disks_busy_percent >= DISKS_LIMITING_PERCENT;
    let transfer = outcome.disk_transfer_bytes.unwrap_or_default() / 1024.0;
    let why = match (load.access, load.reads_percent) {
        (Access::Random, 0) if off > 0.0 => {
            "random writes go side by side where free space is in one piece, as here; the plan is \
             of a pool on which it is in pieces"
                .into()
        }
        (Access::Sequential, 100) if off > 0.0 => {
            "reading ahead asks for more at a time than the client does, which the plan counts with"
                .into()
        }
        (Access::Random, 100) if off > 0.0 || is_busy => {
            let than = if off > 0.0 { "more" } else { "less" };
            format!(
                "disks that choose from what waits did {than} than the plan's average over layouts"
            )
        }
        _ if off > 0.0 => "disks did more than the plan counts with".into(),
        _ if is_busy => format!(
            "disks read and wrote {transfer:.0} KiB at a time on average, and waited for the place \
             of each; the plan has streams without an end"
        ),
        (_, 0) => {
            "what is written waits for its transaction group, and disks for what is written".into()
        }
        _ => "disks waited for requests".into(),
    };
    let bus = (outcome.bus_busy_percent)
        .map(|percent| format!(", the fullest bus {percent:.0} %"))
        .unwrap_or_default();
    Some(format!(
        "{:+.0} % against the plan: {why} (disks were busy {:.0} % of the time{bus})",
        off * 100.0,
        outcome.disks_busy_percent
    ))
}
