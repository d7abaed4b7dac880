//! Why scripts fail.

/// Why a script did not run to its end, or what it returned could not be given back. What it
/// changed before stays changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgramError {
    /// The limits are none that a script may have (`EINVAL`).
    Limits,
    /// The script has an error (`ECHRNG`, or `EINVAL` of its syntax): Lua's words, with a trace.
    Script(String),
    /// It ran so many instructions, too many (`ETIME`).
    TimedOut {
        /// Lua's words, with a trace.
        text: String,
        /// How many.
        instructions: u64,
    },
    /// It was left alone, since one of its instructions did not end (`ETIME`).
    Stalled,
    /// Nobody waits for it any more, or the pool is left (`EINTR`).
    Cancelled(String),
    /// It took too much memory (`ENOSPC`).
    Memory,
    /// What it returned is more than the memory that it may take (`ENOMEM`).
    TooLarge,
}

/// The longest text of an error, in bytes: a script can make one of all its memory.
const TEXT_MAX_BYTES: usize = 16 << 10;

impl ProgramError {
    /// The same with a text that is not long.
    pub(crate) fn shortened(mut self) -> ProgramError {
        if let ProgramError::Script(text)
        | ProgramError::Cancelled(text)
        | ProgramError::TimedOut { text, .. } = &mut self
        {
            text.truncate(text.floor_char_boundary(TEXT_MAX_BYTES));
        }
        self
    }
}

impl std::fmt::Display for ProgramError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProgramError::Limits => to.write_str("Invalid instruction or memory limit."),
            ProgramError::Script(text) | ProgramError::Cancelled(text) => to.write_str(text),
            ProgramError::TimedOut { text, instructions } => {
                write!(to, "{text}\n{instructions} Lua instructions")
            }
            ProgramError::Stalled => {
                to.write_str("Channel program timed out.\nOne of its instructions did not end.")
            }
            ProgramError::Memory => to.write_str("Memory limit exhausted."),
            ProgramError::TooLarge => to.write_str("Return value too large."),
        }
    }
}

impl std::error::Error for ProgramError {}
