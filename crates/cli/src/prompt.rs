//! Secrets from the terminal or from standard input.

use std::io::{BufRead, IsTerminal, Read, Write};

use anyhow::{Context, bail};
use api::Secret;
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

/// Asks for a secret that there is; or reads it, where standard input is no terminal.
pub fn once(question: &str) -> anyhow::Result<Secret> {
    let stdin = std::io::stdin();
    let secret = match stdin.is_terminal() {
        true => hidden(question)?,
        false => line(&mut stdin.lock())?,
    };
    let text = std::str::from_utf8(&secret).context("the secret is not text")?;
    Ok(Secret(text.to_owned()))
}

/// Asks for a secret that somebody chooses, twice so that a slip is noticed; or reads it, where
/// standard input is no terminal.
pub fn chosen(question: &str) -> anyhow::Result<Secret> {
    let stdin = std::io::stdin();
    let secret = if stdin.is_terminal() {
        let secret = hidden(question)?;
        if hidden("Once more:")? != secret {
            bail!("the two are not the same; nothing was changed");
        }
        secret
    } else {
        line(&mut stdin.lock())?
    };
    let text = std::str::from_utf8(&secret).context("the secret is not text")?;
    Ok(Secret(text.to_owned()))
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
