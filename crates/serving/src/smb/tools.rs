//! Samba's programs: where they are, and how they are run.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::conf::MODULE_NAMES;
use host::supervisor;

/// How long one of them may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where they are looked for beside `$PATH`, which ordinary users have without the last.
const DIRECTORIES: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/samba/sbin"];
/// Names another directory instead, for a Samba of one's own.
const OF_ENVIRONMENT: &str = "MILLPOND_SAMBA";

/// Samba, as it is installed here.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// The server.
    pub(super) smbd: PathBuf,
    /// The configuration that all are run with.
    pub(super) conf: PathBuf,
}

impl Tools {
    /// Looks for them.
    ///
    /// # Errors
    /// What is missing, and what to install.
    pub(super) async fn find(conf: &Path) -> Result<Self, String> {
        let missing = |what: &str| {
            format!(
                "{what} is not installed; install Samba (Debian's packages samba and \
                 samba-vfs-modules)"
            )
        };
        let smbd = which("smbd").ok_or_else(|| missing("Samba"))?;
        for program in ["smbcontrol", "smbpasswd", "pdbedit", "smbstatus"] {
            which(program).ok_or_else(|| missing(&format!("Samba's {program}")))?;
        }
        let tools = Self {
            smbd,
            conf: conf.to_owned(),
        };
        let mut command = Command::new(&tools.smbd);
        command.arg("-b");
        let built = output(command, None).await;
        let built =
            built.map_err(|error| format!("{} does not run: {error}", tools.smbd.display()))?;
        let modules = built.lines().find_map(|line| {
            let directory = line.trim().strip_prefix("MODULESDIR:")?;
            Some(PathBuf::from(directory.trim()).join("vfs"))
        });
        if let Some(modules) = modules {
            for name in MODULE_NAMES {
                let is_built_in = built.contains(&format!("vfs_{name}_init"));
                if !is_built_in && !modules.join(format!("{name}.so")).exists() {
                    return Err(missing(&format!("Samba's module {name}")));
                }
            }
        }
        Ok(tools)
    }

    /// Runs one of them with our configuration, and gives what it prints. `input` is what it reads.
    ///
    /// # Errors
    /// What it says, where it fails.
    pub(super) async fn run(
        &self,
        program: &str,
        words: &[&str],
        input: Option<&str>,
    ) -> Result<String, String> {
        let path = which(program).ok_or_else(|| format!("Samba's {program} is gone"))?;
        let mut command = Command::new(path);
        // smbpasswd has a letter of its own for it.
        let letter = if program == "smbpasswd" { "-c" } else { "-s" };
        command.arg(letter).arg(&self.conf).args(words);
        output(command, input).await
    }
}

async fn output(mut command: Command, input: Option<&str>) -> Result<String, String> {
    supervisor::keep_from(&mut command);
    let stdin = if input.is_some() {
        Stdio::piped()
    } else {
        Stdio::null()
    };
    command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let work = async {
        let mut child = command.spawn()?;
        if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
            pipe.write_all(input.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    let done = tokio::time::timeout(PATIENCE, work)
        .await
        .map_err(timed_out);
    let output = done
        .and_then(|done| done)
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    // What matters comes last, and some of them say it on the one, some on the other.
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned() + &text;
    let last = complaint.lines().rev().find(|line| !line.trim().is_empty());
    Err(last.unwrap_or("it failed without a word").trim().to_owned())
}

/// Finds a program of Samba's.
fn which(program: &str) -> Option<PathBuf> {
    let set = std::env::var_os(OF_ENVIRONMENT).filter(|value| !value.is_empty());
    if let Some(directory) = set {
        return Some(Path::new(&directory).join(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let listed: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let beside = DIRECTORIES.iter().map(PathBuf::from);
    let mut all = listed.into_iter().chain(beside);
    all.find_map(|directory| Some(directory.join(program)).filter(|path| path.is_file()))
}
