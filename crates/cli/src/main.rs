//! The command lines: `millpond`, and by argv[0] `zpool` and `zfs`.

fn main() {}
