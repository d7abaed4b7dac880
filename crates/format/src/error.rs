//! The one error type of this crate.

use thiserror::Error;

/// Why bytes could not be decoded, or values could not be encoded.
///
/// Every variant names the on-disk structure by its OpenZFS name, so that a message can be
/// followed into the format's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Fewer bytes than the structure needs.
    #[error(
        "{structure} needs {needed_bytes} bytes but only {found_bytes} are there; \
         the block is cut short or damaged, so read another copy of it or scrub the pool"
    )]
    TooShort {
        /// OpenZFS's name of the structure.
        structure: &'static str,
        /// Bytes that the structure needs.
        needed_bytes: u64,
        /// Bytes that were given.
        found_bytes: u64,
    },
    /// A field holds a value that the format does not allow.
    #[error(
        "{structure}.{field} is {found:#x} but must be {expected}; \
         the block is damaged or of a newer format, so read another copy of it or scrub the pool"
    )]
    BadField {
        /// OpenZFS's name of the structure.
        structure: &'static str,
        /// The field.
        field: &'static str,
        /// The value found.
        found: u64,
        /// What the format allows, in words.
        expected: &'static str,
    },
    /// Text that must be UTF-8 (or must end in a zero byte) is not so.
    #[error(
        "{structure}.{field} is not valid text; \
         the block is damaged, so read another copy of it or scrub the pool"
    )]
    BadText {
        /// OpenZFS's name of the structure.
        structure: &'static str,
        /// The field.
        field: &'static str,
    },
    /// Nesting or chaining goes further than any real structure does.
    #[error(
        "{structure} is nested or chained more than {limit} deep; \
         the block is damaged, so read another copy of it or scrub the pool"
    )]
    TooDeep {
        /// OpenZFS's name of the structure.
        structure: &'static str,
        /// The limit.
        limit: u64,
    },
    /// What is decoded would take more memory than it may.
    #[error("{structure} takes more memory than there is for it; give it in smaller parts")]
    NoRoom {
        /// OpenZFS's name of the structure.
        structure: &'static str,
    },
    /// A value does not fit the field that it should be stored in.
    #[error(
        "{structure}.{field} cannot hold {value:#x} ({expected}); \
         this is a limit of the on-disk format, so use a smaller value"
    )]
    DoesNotFit {
        /// OpenZFS's name of the structure.
        structure: &'static str,
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
        /// What the field can hold, in words.
        expected: &'static str,
    },
    /// A value was asked for that is not there.
    #[error(
        "{structure} has no {name:?} of the type {expected}; \
         the configuration is damaged or of a newer format, so read another copy of it"
    )]
    Missing {
        /// OpenZFS's name of the structure.
        structure: &'static str,
        /// Name of the value.
        name: String,
        /// The type that was asked for.
        expected: &'static str,
    },
}

/// Short for a result with a [`FormatError`].
pub type Result<T> = std::result::Result<T, FormatError>;

pub(crate) fn bad(
    structure: &'static str,
    field: &'static str,
    found: u64,
    expected: &'static str,
) -> FormatError {
    FormatError::BadField {
        structure,
        field,
        found,
        expected,
    }
}

pub(crate) fn does_not_fit(
    structure: &'static str,
    field: &'static str,
    value: u64,
    expected: &'static str,
) -> FormatError {
    FormatError::DoesNotFit {
        structure,
        field,
        value,
        expected,
    }
}
