//! The program `smartctl` (package smartmontools): asks a disk how it is, and has it test itself.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use api::{SelfTestKind, SmartReport};
use device::output_within;

use crate::smart;

/// Where it is looked for beside `$PATH`, which ordinary users have without the last.
const DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// How long a disk may take. One that tries its worst to read a sector answers after half a minute.
const PATIENCE: Duration = Duration::from_secs(40);

/// What became of asking a disk how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It told.
    Report(Box<SmartReport>),
    /// It sleeps, and was not woken.
    Standby,
    /// It has nothing to tell.
    Unsupported {
        /// What smartctl says.
        why: String,
    },
    /// It could not be asked.
    Failed {
        /// Why.
        why: String,
    },
    /// It did not answer in time. The program was left alone.
    NoAnswer,
}

/// The program, where it is installed.
#[derive(Clone, Debug)]
pub struct Smartctl {
    program: Option<PathBuf>,
    patience: Duration,
}

/// Finds a program; the variable names another one.
pub(crate) fn find(program: &str, variable: &str) -> Option<PathBuf> {
    let set = std::env::var_os(variable).filter(|value| !value.is_empty());
    if let Some(path) = set {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let listed: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let beside = DIRECTORIES.iter().map(PathBuf::from);
    let mut all = listed.into_iter().chain(beside);
    all.find_map(|directory| Some(directory.join(program)).filter(|path| path.is_file()))
}

impl Smartctl {
    /// Looks for it: the one that `MILLPOND_SMARTCTL` names, or the installed one.
    pub fn find() -> Self {
        Self {
            program: find("smartctl", "MILLPOND_SMARTCTL"),
            patience: PATIENCE,
        }
    }

    /// Why there is none, and what to do; none where there is one.
    pub fn problem(&self) -> Option<String> {
        let missing = "the program smartctl is not installed, so disks are not asked how they are; \
                       install smartmontools (Debian: apt install smartmontools)";
        self.program.is_none().then(|| missing.to_owned())
    }

    fn run<T: Send + 'static>(
        &self,
        words: &[&str],
        device: &Path,
        held: impl FnOnce() -> T,
    ) -> io::Result<Vec<u8>> {
        let program = self.program.as_ref();
        let program = program.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut command = Command::new(program);
        command.arg("--json=c").args(words).arg(device);
        command.env("LC_ALL", "C").env_remove("NOTIFY_SOCKET");
        Ok(output_within(&mut command, self.patience, held)?.stdout)
    }

    /// Asks a disk how it is, unless it sleeps. `held` gives what is kept while the program hangs.
    /// Blocks.
    pub fn ask<T: Send + 'static>(
        &self,
        device: &Path,
        time_s: u64,
        held: impl FnOnce() -> T,
    ) -> Answer {
        match self.run(&["-n", "standby", "-x"], device, held) {
            Ok(printed) => smart::understand(&printed, time_s),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Answer::NoAnswer,
            Err(error) => Answer::Failed {
                why: self.problem().unwrap_or_else(|| self.cannot_run(&error)),
            },
        }
    }

    fn cannot_run(&self, error: &io::Error) -> String {
        let program = self.program.as_deref().unwrap_or(Path::new("smartctl"));
        format!("{} cannot be run: {error}", program.display())
    }

    /// Has a disk begin to test itself. Blocks.
    ///
    /// # Errors
    /// Why it does not.
    pub fn test<T: Send + 'static>(
        &self,
        device: &Path,
        kind: SelfTestKind,
        held: impl FnOnce() -> T,
    ) -> Result<(), String> {
        let kind = match kind {
            SelfTestKind::Short => "short",
            SelfTestKind::Long => "long",
        };
        let printed = match self.run(&["-t", kind], device, held) {
            Ok(printed) => printed,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Err("it does not answer; look at its cables and power".to_owned());
            }
            Err(error) => return Err(self.problem().unwrap_or_else(|| self.cannot_run(&error))),
        };
        smart::refusal(&printed).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;

    /// A program of ours instead, which has a directory.
    fn program(script: &str) -> (tempfile::TempDir, Smartctl) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("smartctl");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, all).expect("allowed");
        let found = Smartctl {
            program: Some(path),
            patience: Duration::from_secs(300),
        };
        (directory, found)
    }

    #[test]
    fn it_is_asked_without_waking_the_disk() {
        let script = r#"cd "$(dirname "$0")"; echo "$@" > words
            echo '{"smartctl":{"exit_status":0},"smart_status":{"passed":true}}'; exit 4"#;
        let (directory, smartctl) = program(script);
        let answer = smartctl.ask(Path::new("/dev/sdx"), 5, || ());
        let Answer::Report(report) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!((report.time_s, report.passed), (5, Some(true)));
        let words = std::fs::read_to_string(directory.path().join("words")).expect("its words");
        assert_eq!(words, "--json=c -n standby -x /dev/sdx\n");
    }

    #[test]
    fn one_that_hangs_is_left_and_known_of() {
        let (_directory, mut smartctl) = program("exec sleep 1000");
        smartctl.patience = Duration::from_millis(50);
        let token = Arc::new(());
        let answer = smartctl.ask(Path::new("/dev/sdx"), 5, || Arc::clone(&token));
        assert_eq!(answer, Answer::NoAnswer);
    }

    #[test]
    fn without_it_people_are_told_what_to_install() {
        let smartctl = Smartctl {
            program: None,
            patience: PATIENCE,
        };
        let Answer::Failed { why } = smartctl.ask(Path::new("/dev/sdx"), 5, || ()) else {
            panic!("it was asked");
        };
        assert!(why.contains("apt install smartmontools"), "{why}");
        assert_eq!(smartctl.problem(), Some(why));
    }

    #[test]
    fn a_test_begins_or_people_are_told_why_not() {
        let (_directory, smartctl) = program(
            r#"case "$*" in
                "--json=c -t short /dev/sdx") echo '{"smartctl":{"exit_status":0}}';;
                *) echo '{"smartctl":{"exit_status":4,"messages":[{"string":"90% remaining"}]}}';;
            esac"#,
        );
        let test = |kind| smartctl.test(Path::new("/dev/sdx"), kind, || ());
        assert_eq!(test(SelfTestKind::Short), Ok(()));
        assert_eq!(test(SelfTestKind::Long), Err("90% remaining".to_owned()));
    }
}
