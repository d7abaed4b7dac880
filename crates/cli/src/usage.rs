//! Command lines that make no sense: they end with a status of their own.

/// [`anyhow::bail!`] for what is wrong with a command line.
macro_rules! bail_usage {
    ($($text:tt)*) => { anyhow::bail!($crate::usage::Usage(format!($($text)*))) };
}

/// The exit status of a command line that makes no sense, as `usage` of OpenZFS's commands and clap
/// have it.
pub const WRONG_USAGE: u8 = 2;

/// What is wrong with a command line.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
