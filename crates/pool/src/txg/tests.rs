//! Tests of transaction groups.
