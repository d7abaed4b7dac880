//! Tests of vdevs.
