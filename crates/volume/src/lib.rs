//! A block volume on a dataset.
