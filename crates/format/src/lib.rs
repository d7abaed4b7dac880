//! Every on-disk structure of a ZFS pool as pure encode and decode: no I/O, no clock, no allocation sized by input.
