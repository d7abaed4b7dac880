//! The simulated world: disks with volatile caches, faults, power cuts, virtual time.
