//! Commands of a story, and how they end.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{MILLPOND, text_of};

/// Most lines that a story remembers.
const LINES_MAX: usize = 60;

/// What no command may say.
const BAD_WORDS: [&str; 5] = ["suspended", "is a bug", "no server", "internal", "panic"];

/// An operation that did not work.
pub enum Stop {
    /// It was refused, and nothing has changed.
    Refused(String),
    /// It failed.
    Failed(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Failed(error.to_string())
    }
}

impl Stop {
    pub fn text(self) -> String {
        match self {
            Stop::Refused(why) | Stop::Failed(why) => why,
        }
    }
}

pub type Result<T, E = Stop> = std::result::Result<T, E>;

/// Who gives commands to a server, and remembers the last ones for whoever reads of a failure.
pub struct Shell {
    state: PathBuf,
    pub story: Vec<String>,
    /// Operations that were refused.
    pub refused: u64,
}

impl Shell {
    /// For the server with this state directory.
    pub fn new(state: PathBuf) -> Self {
        let (story, refused) = (Vec::new(), 0);
        Self {
            state,
            story,
            refused,
        }
    }

    pub fn tell(&mut self, words: String) {
        self.story.push(words);
        if self.story.len() > LINES_MAX {
            self.story.remove(0);
        }
    }

    fn output(&self, mut command: Command, input: &[u8]) -> Output {
        let command = command
            .env("MILLPOND_STATE", &self.state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("millpond runs");
        // One that refuses before it reads has closed its end.
        let _ = child.stdin.take().expect("piped").write_all(input);
        child.wait_with_output().expect("its end")
    }

    /// Runs `millpond`; what it says, or why it refused.
    pub fn ok(&mut self, words: &str) -> Result<String> {
        self.given(words, &[])
    }

    /// The same with something to read.
    pub fn given(&mut self, words: &str, input: &[u8]) -> Result<String> {
        self.tell(words.to_owned());
        let mut command = Command::new(MILLPOND);
        command.args(words.split_whitespace());
        let output = self.output(command, input);
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(Stop::Refused(format!("{words}: {}", text_of(&output)))),
        }
    }

    /// `zfs send` into `zfs receive`, both with these words.
    pub fn pipe(&mut self, send: &str, receive: &str) -> Result<()> {
        self.tell(format!("{send} | {receive}"));
        let words = format!("'{MILLPOND}' zfs {send} | '{MILLPOND}' zfs {receive}");
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-c", &words]);
        let output = self.output(shell, &[]);
        match output.status.success() {
            true => Ok(()),
            false => Err(Stop::Refused(text_of(&output))),
        }
    }

    /// Whether an operation that stopped may be followed by others: a refusal that says nothing
    /// bad. Otherwise the error is a failure, unless the server has been killed (`None`).
    pub fn goes_on(&mut self, stop: Stop, is_killed: &AtomicBool) -> Result<Option<()>, String> {
        if !is_killed.load(Ordering::SeqCst) {
            // The kill may have come between the error and the look at it.
            std::thread::sleep(Duration::from_millis(match stop {
                Stop::Refused(_) => 20,
                Stop::Failed(_) => 500,
            }));
        }
        if is_killed.load(Ordering::SeqCst) {
            return Ok(None);
        }
        match stop {
            Stop::Failed(why) => Err(why),
            Stop::Refused(why) => {
                self.refused += 1;
                self.tell(format!("  refused: {why}"));
                match BAD_WORDS.iter().any(|bad| why.contains(bad)) {
                    true => Err(why),
                    false => Ok(Some(())),
                }
            }
        }
    }
}
