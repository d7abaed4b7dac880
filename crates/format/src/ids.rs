//! Identifiers that are stored on disk: each its own type, so that none is taken for another.

use std::fmt;

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name($int);

        impl $name {
            /// Zero: for most identifiers "none".
            pub const ZERO: Self = Self(0);

            /// Wraps a raw value.
            pub const fn new(value: $int) -> Self {
                Self(value)
            }

            /// The raw value.
            pub const fn get(self) -> $int {
                self.0
            }

            /// Whether the raw value is zero.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }

        impl From<$name> for $int {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

identifier! {
    /// A transaction group's number. Zero means "never".
    Txg(u64)
}
identifier! {
    /// Random 64-bit identity of a pool, vdev, dataset or snapshot.
    Guid(u64)
}
identifier! {
    /// Number of an object in its object set. Zero is the meta-dnode, and "none" in references.
    ObjectId(u64)
}
identifier! {
    /// Number of a dataset's object in the MOS, as used in bookmarks and error logs. Zero is the
    /// MOS.
    ObjsetId(u64)
}
identifier! {
    /// Index of a top-level vdev in its pool. On disk it has 24 bits.
    VdevId(u32)
}

impl Txg {
    /// First txg of every pool (`TXG_INITIAL`, include/sys/txg.h).
    pub const INITIAL: Self = Self(4);
    /// The txg of blocks that are valid at any time (`TXG_UNKNOWN` is zero).
    pub const UNKNOWN: Self = Self(0);

    /// The txg after this one. Saturates.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl ObjectId {
    /// The meta-dnode: the object that holds all dnodes.
    pub const META_DNODE: Self = Self(0);
    /// The MOS's object directory (`DMU_POOL_DIRECTORY_OBJECT`).
    pub const POOL_DIRECTORY: Self = Self(1);
    /// A volume's data (`ZVOL_OBJ`, include/sys/zvol_impl.h).
    pub const VOLUME_DATA: Self = Self(1);
    /// The ZAP of a volume's properties (`ZVOL_ZAP_OBJ`).
    pub const VOLUME_PROPERTIES: Self = Self(2);
    /// The master node of a filesystem (`MASTER_NODE_OBJ`).
    pub const MASTER_NODE: Self = Self(1);
    /// The special object of space used per user (`DMU_USERUSED_OBJECT`).
    pub const USER_USED: Self = Self(u64::MAX);
    /// The special object of space used per group (`DMU_GROUPUSED_OBJECT`).
    pub const GROUP_USED: Self = Self(u64::MAX - 1);
    /// The special object of space used per project (`DMU_PROJECTUSED_OBJECT`).
    pub const PROJECT_USED: Self = Self(u64::MAX - 2);
    /// Object numbers are below this (`DN_MAX_OBJECT`, 48 bits).
    pub const LIMIT: u64 = 1 << 48;
}
