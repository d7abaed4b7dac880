//! What can go wrong with streams.

use dataset::DatasetError;
use format::FormatError;
use object::ObjectError;

/// Why a stream could not be read, received or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// It ends before its end.
    #[error("incomplete stream; send it again, or resume it if it was received with -s")]
    CutShort,
    /// It holds something else than was sent.
    #[error("invalid stream (checksum mismatch); send it again")]
    Checksum,
    /// It is no stream.
    #[error("invalid stream (bad magic number); give a stream that 'zfs send' made")]
    NoStream,
    /// A record that cannot be, or not there.
    #[error("invalid stream ({what}); send it again")]
    BadRecord {
        /// What is wrong with it.
        what: String,
    },
    /// Records that are not received.
    #[error("{what} is not supported; {advice}")]
    Unsupported {
        /// What.
        what: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// It does not go on where the receive was interrupted.
    #[error("the stream does not resume the interrupted receive; make it with the token of now")]
    WrongPlace,
    /// What was to be sent is damaged.
    #[error("{what}; scrub the pool, and send what is whole")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// Damaged blocks that a corrective receive did not put right.
    #[error(
        "corrective receive was not able to reconstruct the data needed for healing ({blocks} \
         blocks; the first: {first}); send the snapshot of a pool where it is whole, with -c or -w"
    )]
    NotHealed {
        /// How many.
        blocks: u64,
        /// The first of them, and why.
        first: String,
    },
    /// Somebody asked to stop.
    #[error("interrupted; begin again")]
    Interrupted,
    /// Reading or writing the stream failed.
    #[error("the stream could not be read or written: {0}; see to the other end of the pipe")]
    Io(#[source] std::io::Error),
    /// A record could not be decoded.
    #[error("invalid stream ({0})")]
    Format(#[from] FormatError),
    /// The target.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Objects of the target.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The pool.
    #[error(transparent)]
    Zio(#[from] zio::ZioError),
}

impl StreamError {
    pub(crate) fn bad(what: impl Into<String>) -> Self {
        Self::BadRecord { what: what.into() }
    }

    /// Whether the stream itself ended or was damaged, so that sending the rest may help.
    pub fn is_of_stream(&self) -> bool {
        matches!(
            self,
            Self::CutShort
                | Self::Checksum
                | Self::NoStream
                | Self::BadRecord { .. }
                | Self::Interrupted
                | Self::Io(_)
                | Self::Format(_)
        )
    }
}

impl From<std::io::Error> for StreamError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Self::CutShort,
            _ => Self::Io(error),
        }
    }
}
