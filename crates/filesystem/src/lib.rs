//! A POSIX filesystem on a dataset.
