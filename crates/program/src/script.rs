//! A script with its limits.

use crate::error::ProgramError;

/// Instructions that a script may run where nothing is said (`ZCP_DEFAULT_INSTRLIMIT`).
pub const INSTRUCTIONS: u64 = 10_000_000;
/// The most that may be asked for (`ZCP_MAX_INSTRLIMIT`).
pub const INSTRUCTIONS_MAX: u64 = 100_000_000;
/// Bytes that a script may take where nothing is said (`ZCP_DEFAULT_MEMLIMIT`).
pub const MEMORY_BYTES: u64 = 10 << 20;
/// The most that may be asked for (`ZCP_MAX_MEMLIMIT`).
pub const MEMORY_BYTES_MAX: u64 = 100 << 20;
/// The longest script, in bytes: what a whole script's memory may be.
const SCRIPT_BYTES_MAX: usize = MEMORY_BYTES_MAX as usize;

/// A script, and what it may take.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its text.
    pub script: Vec<u8>,
    /// What it finds in `(...)["argv"]`.
    pub arguments: Vec<String>,
    /// Instructions of Lua that it may run.
    pub instructions_max: u64,
    /// Bytes that it may take.
    pub memory_bytes_max: u64,
    /// It may look and try, and change nothing.
    pub is_read_only: bool,
}

impl Program {
    /// Whether the limits are ones that a script may have (`zcp_eval`).
    ///
    /// # Errors
    /// [`ProgramError::Limits`].
    pub fn check(&self) -> Result<(), ProgramError> {
        let instructions = 1..=INSTRUCTIONS_MAX;
        let memory = 1..=MEMORY_BYTES_MAX;
        let fits = instructions.contains(&self.instructions_max)
            && memory.contains(&self.memory_bytes_max)
            && self.script.len() <= SCRIPT_BYTES_MAX;
        match fits {
            true => Ok(()),
            false => Err(ProgramError::Limits),
        }
    }
}
