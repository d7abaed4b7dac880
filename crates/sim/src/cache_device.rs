//! A cache device of the pool that is tortured.

use device::sim::{Fault, FaultEffect, SimDisk, SimOp, SimWorld};
use pool::{AddSpec, CacheDeviceOptions, Pool, VdevClass, VdevLayout, VdevSpec};

use crate::layout::leaf;
use crate::verify::Failure;

/// The name of its disk.
pub(crate) const NAME: &str = "ssd";

/// Gives the pool one.
pub(crate) async fn add(sim: &SimWorld, pool: &Pool, mib: u64) -> Result<(), Failure> {
    sim.add_disk(NAME, mib << 20);
    let cache = VdevSpec {
        layout: VdevLayout::Leaf(leaf(NAME.to_owned())),
        class: VdevClass::Cache,
    };
    let spec = AddSpec {
        vdevs: vec![cache],
        ashift: None,
        force: false,
        allow_ashift_mismatch: false,
    };
    Ok(pool.add(&spec).await?)
}

/// Has it trimmed. The disk carries trims out at once and for good; a fifth of them fail.
pub(crate) fn trim(pool: &Pool, disk: &SimDisk) {
    let options = CacheDeviceOptions {
        rounds_a_day_percent: None,
        trim_ahead_percent: 100,
    };
    pool::set_cache_devices(pool, options);
    disk.set_eager_discards(true);
    disk.inject(Fault::new(SimOp::Discard, FaultEffect::Error).chance(200));
}
