//! Tests of allocation.
