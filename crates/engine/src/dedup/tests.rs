//! Unit tests of dedup tables.
