//! What is wrong with a question.

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A word that is not understood.
    #[error("'{word}' is not understood: {wanted}")]
    Word {
        /// As given.
        word: String,
        /// What it should have been.
        wanted: &'static str,
    },
    /// No disks were given.
    #[error("no disks were given; say how many and how big, such as 16x500GB")]
    NoDisks,
    /// A layout needs more disks than there are.
    #[error(
        "{layout} needs {needed} disks, and {count} are left for data; \
         give more disks, fewer spares or a smaller layout"
    )]
    TooFewDisks {
        /// The layout.
        layout: String,
        /// Disks that it needs.
        needed: u64,
        /// Disks that there are, without spares.
        count: u64,
    },
    /// A layout that cannot be.
    #[error("{layout} cannot be: {why}")]
    BadLayout {
        /// The layout.
        layout: String,
        /// Why not.
        why: String,
    },
    /// Disks on which the layout has no space.
    #[error("disks of {size_bytes} bytes are too small for {layout}; take bigger ones")]
    TooSmall {
        /// The layout.
        layout: String,
        /// Bytes of a disk.
        size_bytes: u64,
    },
    /// A figure outside its bounds.
    #[error("{what} is {value}, and should be {wanted}")]
    OutOfRange {
        /// Which figure.
        what: &'static str,
        /// As given.
        value: String,
        /// Its bounds.
        wanted: &'static str,
    },
}

impl PlanError {
    pub(crate) fn word(word: &str, wanted: &'static str) -> Self {
        PlanError::Word {
            word: word.to_owned(),
            wanted,
        }
    }
}
