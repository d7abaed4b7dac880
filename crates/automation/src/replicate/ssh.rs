//! Another host: its `zfs` command, run by `ssh`. It may be OpenZFS's or Millpond's.
//!
//! Words are quoted for the shell there, whatever is in them. `ssh` is asked to ask nobody
//! (`BatchMode`); keys, ports and the like are its own configuration's business, of the user who
//! runs the server.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use answers::zfs_list;
use api::{Failure, FailureKind};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;

use super::plan::TargetSet;

/// Most that is read of what a command complains about, in bytes.
const COMPLAINT_BYTES_MAX: u64 = 16 << 10;
/// Longest list of datasets that is taken, in bytes.
const LIST_BYTES_MAX: u64 = 256 << 20;
/// Snapshots that are destroyed by one command: a command line is not endless.
const DESTROYED_AT_ONCE: usize = 50;
/// How long a command may take that neither reads nor writes a stream.
const COMMAND_MAX: Duration = Duration::from_secs(600);
/// How long a command that has been told all may take to leave.
const LAST_WORDS: Duration = Duration::from_secs(600);
/// With what `ssh` ends that could not reach the host, or lost it.
const SSH_FAILED: i32 = 255;

/// A host, and how `zfs` is called there.
#[derive(Debug, Clone)]
pub(super) struct Ssh {
    host: String,
    command: Vec<String>,
}

/// A command that reads a stream.
pub(super) struct Receiving {
    child: Child,
    complaint: JoinHandle<String>,
    doing: String,
}

/// Whether `ssh` may be given this as a host: nothing that it could take for an option.
pub(super) fn is_host(host: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "@._-:%[]".contains(c);
    let (user, name) = host.split_once('@').unwrap_or(("", ""));
    !user.is_empty()
        && !name.is_empty()
        && !host.starts_with('-')
        && !name.starts_with('-')
        && host.chars().all(is_usual)
}

/// A word as any POSIX shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@,=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

impl Ssh {
    pub(super) fn new(host: &str, command: &str) -> Self {
        let words = command.split_whitespace();
        Self {
            host: host.to_owned(),
            command: words.map(str::to_owned).collect(),
        }
    }

    fn remote(&self, words: &[&str]) -> String {
        let own = self.command.iter().map(String::as_str);
        let all: Vec<String> = own.chain(words.iter().copied()).map(quoted).collect();
        all.join(" ")
    }

    fn spawn(&self, words: &[&str], input: Stdio) -> Result<Child, Failure> {
        let spawned = Command::new("ssh")
            .args([
                "-o",
                "BatchMode=yes",
                "-o",
                "ServerAliveInterval=15",
                "-T",
                "--",
            ])
            .arg(&self.host)
            .arg(self.remote(words))
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        spawned.map_err(|error| {
            let message = format!("ssh cannot be run: {error}; install OpenSSH's client");
            Failure::new(FailureKind::Other, message)
        })
    }

    /// Runs a command; gives what it printed, or what it complained about. It ends when nobody
    /// waits for it any more, and after a while.
    async fn run(&self, words: &[&str]) -> Result<Result<String, String>, Failure> {
        let ended = tokio::time::timeout(COMMAND_MAX, self.run_to_its_end(words)).await;
        ended.unwrap_or_else(|_| {
            let what = words.first().unwrap_or(&"");
            let message = format!("ssh to {}: 'zfs {what}' does not end", self.host);
            Err(Failure::new(FailureKind::Io, message))
        })
    }

    async fn run_to_its_end(&self, words: &[&str]) -> Result<Result<String, String>, Failure> {
        let mut child = self.spawn(words, Stdio::null())?;
        let complaint = tokio::spawn(text(child.stderr.take(), COMPLAINT_BYTES_MAX));
        let output = text(child.stdout.take(), LIST_BYTES_MAX).await;
        let status = child.wait().await.map_err(|error| self.lost(&error))?;
        let complaint = complaint.await.unwrap_or_default();
        if status.code() == Some(SSH_FAILED) {
            let message = format!("ssh to {}: {}", self.host, complaint.trim());
            return Err(Failure::new(FailureKind::Io, message));
        }
        Ok(match status.success() {
            true => Ok(output),
            false if complaint.trim().is_empty() => Err(format!("it ended with {status}")),
            false => Err(complaint.trim().to_owned()),
        })
    }

    fn lost(&self, error: &std::io::Error) -> Failure {
        let message = format!("ssh to {} was lost: {error}", self.host);
        Failure::new(FailureKind::Io, message)
    }

    fn failed(&self, doing: &str, complaint: &str) -> Failure {
        let message = format!("{}: {doing}: {complaint}", self.host);
        Failure::new(FailureKind::Other, message)
    }

    /// What is at and below a dataset, or at it alone.
    pub(super) async fn list(
        &self,
        dataset: &str,
        is_recursive: bool,
    ) -> Result<BTreeMap<String, TargetSet>, Failure> {
        let depth: &[&str] = match is_recursive {
            true => &["-r"],
            false => &["-d", "1"],
        };
        let kinds = "filesystem,volume,snapshot";
        let mut words = vec!["list", "-Hp", "-t", kinds, "-o", zfs_list::COLUMNS];
        words.extend_from_slice(depth);
        words.push(dataset);
        match self.run(&words).await? {
            Ok(text) => {
                let mut found = zfs_list::parse(&text).ok_or_else(|| {
                    let complaint = "its list of datasets was not understood";
                    self.failed("zfs list", complaint)
                })?;
                if !is_recursive {
                    found.retain(|name, _| name == dataset);
                }
                Ok(found)
            }
            Err(complaint) if is_missing(&complaint) => Ok(BTreeMap::new()),
            Err(complaint) => Err(self.failed("zfs list", &complaint)),
        }
    }

    /// Begins to receive; what is written to what this gives is the stream.
    pub(super) fn receive(
        &self,
        dataset: &str,
        options: &[String],
    ) -> Result<(Receiving, ChildStdin), Failure> {
        let mut words = vec!["receive", "-s", "-u"];
        words.extend(options.iter().map(String::as_str));
        words.push(dataset);
        let mut child = self.spawn(&words, Stdio::piped())?;
        let input = child.stdin.take();
        let complaint = tokio::spawn(text(child.stderr.take(), COMPLAINT_BYTES_MAX));
        let receiving = Receiving {
            child,
            complaint,
            doing: format!("{}: zfs receive", self.host),
        };
        let input = input.ok_or_else(|| self.failed("zfs receive", "it has no input"))?;
        Ok((receiving, input))
    }

    /// Gives up what an interrupted receive left.
    pub(super) async fn abort(&self, dataset: &str) -> Result<(), Failure> {
        let done = self.run(&["receive", "-A", dataset]).await?;
        let doing = format!("zfs receive -A {dataset}");
        done.map(drop)
            .map_err(|complaint| self.failed(&doing, &complaint))
    }

    /// Destroys snapshots of a dataset; gives those that could not be, and why.
    pub(super) async fn destroy(
        &self,
        dataset: &str,
        names: &[String],
    ) -> Result<Vec<(String, String)>, Failure> {
        let mut left = Vec::new();
        for some in names.chunks(DESTROYED_AT_ONCE) {
            let target = format!("{dataset}@{}", some.join(","));
            if self.run(&["destroy", &target]).await?.is_ok() {
                continue;
            }
            // One that is in the way keeps the others.
            for name in some {
                let target = format!("{dataset}@{name}");
                if let Err(complaint) = self.run(&["destroy", &target]).await? {
                    left.push((target, complaint));
                }
            }
        }
        Ok(left)
    }
}

impl Receiving {
    /// Waits for the end, after the stream's.
    pub(super) async fn end(mut self) -> Result<(), Failure> {
        let ended = tokio::time::timeout(LAST_WORDS, self.child.wait()).await;
        let mut kind = FailureKind::Other;
        let complaint = match ended {
            Ok(Ok(status)) if status.success() => return Ok(()),
            Ok(Ok(status)) => {
                if status.code() == Some(SSH_FAILED) {
                    kind = FailureKind::Io;
                }
                let said = self.complaint.await.unwrap_or_default();
                if lacks_room(&said) {
                    kind = FailureKind::NoSpace;
                }
                match said.trim() {
                    "" => format!("it ended with {status}"),
                    said => said.to_owned(),
                }
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not end".to_owned(),
        };
        let message = format!("{}: {complaint}", self.doing);
        Err(Failure::new(kind, message))
    }
}

/// Whether `zfs list` complains that there is no such dataset, in OpenZFS's words or Millpond's.
fn is_missing(complaint: &str) -> bool {
    complaint.contains("cannot open") && complaint.contains("does not exist")
}

/// Whether `zfs receive` complains of a full pool or a quota, in OpenZFS's words (`EZFS_NOSPC`,
/// lib/libzfs/libzfs_util.c) or Millpond's.
fn lacks_room(complaint: &str) -> bool {
    complaint.contains("out of space") || complaint.contains("the quota is exceeded")
}

/// What is read, up to so many bytes; the rest is read and forgotten.
async fn text(input: Option<impl AsyncRead + Unpin>, bytes_max: u64) -> String {
    let Some(mut input) = input else {
        return String::new();
    };
    let mut bytes = Vec::new();
    // What cannot be read ends it as well.
    let _ = (&mut input).take(bytes_max).read_to_end(&mut bytes).await;
    let _ = tokio::io::copy(&mut input, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_are_never_taken_for_options() {
        for good in ["root@backup", "a.b@192.0.2.1", "me@[2001:db8::1%eth0]"] {
            assert!(is_host(good), "{good}");
        }
        for bad in [
            "backup",
            "@backup",
            "root@",
            "-oProxyCommand=x@h",
            "a@-h",
            "a b@h",
            "a@h;rm",
            "a@$h",
        ] {
            assert!(!is_host(bad), "{bad}");
        }
    }

    #[test]
    fn a_full_target_is_understood() {
        for full in [
            "cannot receive new filesystem stream: out of space",
            "cannot receive incremental stream: destination backup/a space quota exceeded.\n: out \
             of space",
            "cannot receive incremental stream: 'a/b': the quota is exceeded; free some space or",
        ] {
            assert!(lacks_room(full), "{full}");
        }
        assert!(!lacks_room("cannot receive: dataset is busy"));
    }

    proptest! {
        /// A shell gives back what was quoted, word by word.
        #[test]
        fn shells_read_what_was_written(words in prop::collection::vec("[^\0]{0,12}", 1..5)) {
            let ssh = Ssh::new("a@b", "printf %s\\0");
            let given: Vec<&str> = words.iter().map(String::as_str).collect();
            let output = std::process::Command::new("sh")
                .args(["-c", &ssh.remote(&given)])
                .output()
                .unwrap();
            let mut wanted = words.join("\0");
            wanted.push('\0');
            prop_assert_eq!(String::from_utf8_lossy(&output.stdout), wanted);
        }
    }
}
