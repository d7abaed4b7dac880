//! The passes of a pool put together.

use std::sync::Arc;

use spa::Spa;

use crate::{Activities, Autotrim, Gate};

/// A pool's passes over free space. The two kinds have turns of their own in a transaction group.
pub struct Passes {
    /// The pool.
    pub spa: Arc<Spa>,
    /// Keeps them away from devices that leave.
    pub gate: Gate,
    /// Property `autotrim`.
    pub autotrim: Autotrim,
    /// What leaves are initialized and trimmed.
    pub activities: Activities,
}

impl Passes {
    /// Starts what goes on by itself; the pool is open for writing.
    pub fn start(self: &Arc<Self>) {
        self.start_trim();
        Activities::start(self);
    }
}
