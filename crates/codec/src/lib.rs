//! Checksums, compression and RAID-Z arithmetic.
