//! Users and groups of the host that are made here, by the programs that every distribution has for
//! it (`useradd(8)`, `groupadd(8)`, `gpasswd(1)`, `userdel(8)`, `groupdel(8)` of shadow): they know
//! how `/etc/passwd` and its neighbours are locked and replaced.
//!
//! Such a user has no password, no home and no shell: it is there so that Samba knows the number
//! that somebody's files have.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::supervisor;

/// How long one of them may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is tried where somebody else changes the files, or the user is not gone yet.
const TRIES: usize = 20;
/// How long is waited in between.
const PAUSE: Duration = Duration::from_millis(250);
/// Where the programs are, beside `$PATH`.
const DIRECTORIES: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/bin"];
/// Shells that let nobody in.
const NO_SHELLS: [&str; 3] = ["/usr/sbin/nologin", "/sbin/nologin", "/bin/false"];

/// Makes a group.
///
/// # Errors
/// What its program says.
pub async fn group(name: &str, gid: u32) -> Result<(), String> {
    run("groupadd", &["--gid", &gid.to_string(), name]).await
}

/// Makes a user whose group has the same number and is there.
///
/// # Errors
/// What its program says.
pub async fn user(name: &str, id: u32) -> Result<(), String> {
    let id = id.to_string();
    let shell = NO_SHELLS.into_iter().find(|path| Path::new(path).exists());
    let words = [
        "--uid",
        &id,
        "--gid",
        &id,
        "--no-create-home",
        "--home-dir",
        "/nonexistent",
        "--no-log-init",
        "--comment",
        "Millpond share",
        "--shell",
        shell.unwrap_or("/bin/false"),
        name,
    ];
    run("useradd", &words).await
}

/// Says who is in a group besides those whose first group it is.
///
/// # Errors
/// What its program says.
pub async fn members(group: &str, names: &[&str]) -> Result<(), String> {
    run("gpasswd", &["--members", &names.join(","), group]).await
}

/// Removes a user. What processes of it are about to end is waited for.
///
/// # Errors
/// What its program says.
pub async fn remove_user(name: &str) -> Result<(), String> {
    run("userdel", &[name]).await
}

/// Removes a group.
///
/// # Errors
/// What its program says.
pub async fn remove_group(name: &str) -> Result<(), String> {
    run("groupdel", &[name]).await
}

/// Whether trying again may help: another program has the lock (E_PW_UPDATE, E_GRP_UPDATE), or a
/// process of the user's is still there (E_USER_BUSY).
fn is_passing(code: Option<i32>, said: &str) -> bool {
    match code {
        Some(1 | 10) => said.contains("lock"),
        Some(8) => true,
        _ => false,
    }
}

async fn run(program: &str, words: &[&str]) -> Result<(), String> {
    let path = which(program).ok_or_else(|| {
        format!("{program} is not installed; install it (Debian's package passwd)")
    })?;
    let mut tries = TRIES;
    loop {
        let (code, said) = once(&path, words)
            .await
            .map_err(|error| format!("{program} does not run: {error}"))?;
        if code == Some(0) {
            return Ok(());
        }
        tries -= 1;
        if tries == 0 || !is_passing(code, &said) {
            return Err(match said.is_empty() {
                true => format!("{program} failed without a word"),
                false => said,
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Runs it; how it ended, and the last that it said.
async fn once(path: &Path, words: &[&str]) -> io::Result<(Option<i32>, String)> {
    let mut command = Command::new(path);
    supervisor::keep_from(&mut command);
    command
        .args(words)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = ended.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.unwrap_or_default().trim().to_owned();
    Ok((output.status.code(), last))
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let listed: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let beside = DIRECTORIES.iter().map(PathBuf::from);
    let mut all = listed.into_iter().chain(beside);
    all.find_map(|directory| Some(directory.join(program)).filter(|path| path.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passes_is_tried_again() {
        let locked = "useradd: cannot lock /etc/passwd; try again later.";
        assert!(is_passing(Some(1), locked) && is_passing(Some(10), locked));
        assert!(is_passing(
            Some(8),
            "user ann is currently used by process 7"
        ));
        assert!(!is_passing(Some(9), "useradd: user 'ann' already exists"));
        assert!(!is_passing(Some(1), "useradd: Permission denied."));
        assert!(!is_passing(None, ""));
    }

    #[tokio::test]
    async fn what_is_missing_is_named() {
        let missing = run("no-program-of-this-name", &[]).await.unwrap_err();
        assert!(missing.contains("not installed"), "{missing}");
    }
}
