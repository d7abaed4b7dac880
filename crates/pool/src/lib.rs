//! Vdev tree, I/O pipeline, allocation, cache and transaction groups.
