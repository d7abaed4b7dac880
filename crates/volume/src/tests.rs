//! Tests of volumes on real pools.
