//! Secrets from the terminal or from standard input.

use std::io::{BufRead, Read, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// Longest line that is read, in bytes; what is longer is no secret.
const LINE_BYTES_MAX: u64 = 4096;

/// The next line, without its end.
pub fn line(from: &mut dyn BufRead) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::new());
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(line)
}

/// Asks at the terminal, which shows nothing meanwhile.
pub fn hidden(question: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let stdin = std::io::stdin();
    print!("{question}");
    std::io::stdout().flush()?;
    let before = tcgetattr(&stdin)?;
    let mut silent = before.clone();
    silent
        .local_modes
        .remove(LocalModes::ECHO | LocalModes::ECHOE | LocalModes::ECHOK | LocalModes::ECHONL);
    tcsetattr(&stdin, OptionalActions::Flush, &silent)?;
    let result = line(&mut stdin.lock());
    tcsetattr(&stdin, OptionalActions::Flush, &before)?;
    println!();
    result
}
