//! Passes over free space: property `autotrim`, `zpool trim` and `zpool initialize`.
//!
//! All of them discard or write over space that the allocator holds for them meanwhile, while the
//! pool is used. Who takes devices away keeps them out by the [`Gate`].
//!
//! | Module | Does | In OpenZFS |
//! |---|---|---|
//! | `autotrim` | discards what came free, as long as the property is on | vdev_trim.c: `vdev_autotrim_thread` |
//! | `activity` | one pass over all free space of a device, stored so that it goes on after an import | vdev_initialize.c; vdev_trim.c: `vdev_trim_thread` |
//! | `gate` | keeps both away from devices that leave | |

#![forbid(unsafe_code)]

mod activity;
mod autotrim;
mod gate;
mod passes;

pub use activity::{
    Activities, ActivityCommand, ActivityKind, ActivityObstacle, ActivityOutcome, ActivitySpec,
    ActivityState, ActivityStatus, LeafActivity, command,
};
pub use autotrim::Autotrim;
pub use gate::Gate;
pub use passes::Passes;
