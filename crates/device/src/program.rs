//! Programs that look at devices, and may never come back: one that waits for a disk which does not
//! answer cannot even be killed.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Most that is kept of what a program prints, in bytes.
const OUTPUT_MAX: u64 = 4 << 20;
/// How often it is looked whether a program that has closed its output has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs a program and gives what it printed, unless it takes longer than `limit`. Then it is killed
/// and left to itself: nothing here waits for it. `held` is asked for something then, which is kept
/// until the program is gone: who calls knows by it that there is one already. Blocks.
///
/// # Errors
/// It cannot be run; [`io::ErrorKind::TimedOut`] where it takes too long.
pub fn output_within<T: Send + 'static>(
    command: &mut Command,
    limit: Duration,
    held: impl FnOnce() -> T,
) -> io::Result<Output> {
    let until = Instant::now() + limit;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().map(read_aside);
    let stderr = child.stderr.take().map(read_aside);
    match wait(&mut child, stdout, stderr, until) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let _ = child.kill();
            let held = held();
            let reap = move || {
                let _ = child.wait();
                drop(held);
            };
            // Without a thread it stays a zombie until this process ends.
            let _ = std::thread::Builder::new()
                .name("reaper".to_owned())
                .spawn(reap);
            Err(error)
        }
        other => other,
    }
}

/// Reads all on a thread of its own.
fn read_aside(pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    let read = move || {
        let mut out = Vec::new();
        let mut pipe = pipe;
        let _ = pipe.by_ref().take(OUTPUT_MAX).read_to_end(&mut out);
        // What is more is not kept, but has to be taken.
        let _ = io::copy(&mut pipe, &mut io::sink());
        let _ = sender.send(out);
    };
    // Where there is no thread, nothing comes.
    let _ = std::thread::Builder::new()
        .name("output".to_owned())
        .spawn(read);
    receiver
}

fn wait(
    child: &mut Child,
    stdout: Option<Receiver<Vec<u8>>>,
    stderr: Option<Receiver<Vec<u8>>>,
    until: Instant,
) -> io::Result<Output> {
    let stdout = received(stdout, until)?;
    let stderr = received(stderr, until)?;
    let status: ExitStatus = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(PAUSE);
    };
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

fn received(from: Option<Receiver<Vec<u8>>>, until: Instant) -> io::Result<Vec<u8>> {
    let Some(from) = from else {
        return Ok(Vec::new());
    };
    let left = until.saturating_duration_since(Instant::now());
    match from.recv_timeout(left) {
        Ok(bytes) => Ok(bytes),
        Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
        Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_it_prints_is_given_however_much_that_is() {
        let mut command = shell("head -c 300000 /dev/zero; echo oh >&2; exit 3");
        let output = output_within(&mut command, Duration::from_secs(300), || ()).unwrap();
        assert_eq!(output.stdout.len(), 300_000);
        assert_eq!(output.stderr, b"oh\n");
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn one_that_does_not_end_is_left_and_known_to_be_there() {
        let token = Arc::new(());
        let mut command = Command::new("sleep");
        command.arg("1000");
        let held = || Arc::clone(&token);
        let error = output_within(&mut command, Duration::from_millis(50), held).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // It could be killed, so it goes.
        while Arc::strong_count(&token) > 1 {
            std::thread::sleep(PAUSE);
        }
    }
}
