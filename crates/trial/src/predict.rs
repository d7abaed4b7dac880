//! What the planner says about a trial.

use device::sim::SimOp;
use device::sim::model::{Access as ModelAccess, Load as ModelLoad, Machine, measure};
use plan::full::{Load as PlanLoad, Path, Rates};
use plan::{Bus, Disks};

use crate::TrialError;
use crate::server::disk_bytes;
use crate::spec::{Access, Load, Trial};

/// Operations by which a disk's figures are taken from its model.
const SAMPLE: u64 = 400;

/// The planner's disks: figures of one, as its model has them at the trial's scale, told whole.
fn disks(trial: &Trial) -> Result<Disks, TrialError> {
    let known = trial.disk()?;
    let size_bytes = disk_bytes(trial)? * u64::from(trial.scale);
    let measured = |access, block_bytes| {
        let mut machine = Machine::new(&known.model, size_bytes);
        let range_bytes = 0..size_bytes;
        measure(
            &mut machine,
            0,
            &ModelLoad {
                op: SimOp::Read,
                access,
                block_bytes,
                depth: 1,
                range_bytes,
                count: SAMPLE,
                seed: 1,
            },
        )
    };
    let mut disks = Disks::usual(trial.pool.layout.disks(), size_bytes, known.kind());
    disks.accesses_per_second = measured(ModelAccess::Random, 4096).iops;
    disks.rate = measured(ModelAccess::Sequential, 1 << 20).bytes_per_second as u64;
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
            write_rate: bus.rate,
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
    let rates = Rates::of(trial.pool.layout, &disks(trial)?, 12, &asked, path);
    let is_random = load.access == Access::Random;
    Ok(rates.operations(is_random, load.reads_percent, load.block))
}
