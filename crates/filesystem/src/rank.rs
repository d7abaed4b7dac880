//! The order in which nodes are locked (module `locking` tells why it is this one).

use dataset::lock_order::Lock;

/// Kinds of nodes in the order in which they are locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Directory,
    File,
    XattrDirectory,
    XattrFile,
}

/// A node's place in the order of locks: rank, then object number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub(crate) Rank, pub(crate) u64);

impl Place {
    /// As debug builds check it.
    pub(crate) fn as_lock(self) -> Lock {
        Lock::Node(self.0 as u8, self.1)
    }
}
