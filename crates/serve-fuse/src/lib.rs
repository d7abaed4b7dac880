//! Filesystems and volumes mounted through FUSE.
