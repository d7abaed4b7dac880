//! What other software has on a device.
//!
//! Whoever is about to overwrite a device asks first. There are hundreds of formats, so the answer
//! is libblkid's, by the program `blkid` (package util-linux): in a process of its own, a parser in
//! C that a hostile disk leads astray takes no pool with it. One that does not come back, since its
//! disk does not answer, is left alone after a while, and no second one is sent after it.
//!
//! Source: blkid(8), "-p, --probe" and "EXIT STATUS".

use std::collections::BTreeSet;
use std::io;
use std::process::{Command, Output};
use std::time::Duration;

use parking_lot::Mutex;

use crate::{DeviceError, Foreign, output_within};

/// Where the program is looked for; `sbin` is not in every user's path.
const PROGRAMS: [&str; 3] = ["blkid", "/usr/sbin/blkid", "/sbin/blkid"];
/// Exit status where nothing that is known is on the device.
const NOTHING: i32 = 2;
/// Exit status where there is more than one thing.
const AMBIVALENT: i32 = 8;
/// How long it may take: a disk that has to be woken takes some seconds, and one that tries its
/// worst to read a sector half a minute.
const PATIENCE: Duration = Duration::from_secs(40);

/// Devices that the program has not come back from.
static HUNG: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// One that it has not come back from, until it does.
struct Hung(String);

impl Hung {
    fn note(path: &str) -> Self {
        HUNG.lock().insert(path.to_owned());
        Self(path.to_owned())
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        HUNG.lock().remove(&self.0);
    }
}

/// What is on the device, if anything.
///
/// # Errors
/// [`DeviceError::Unexamined`] when that cannot be found out.
pub(super) fn probe(path: &str) -> Result<Option<Foreign>, DeviceError> {
    let unexamined = |why: String| DeviceError::Unexamined {
        path: path.to_owned(),
        why,
    };
    let no_answer = || unexamined("it does not answer; look at its cables and power".into());
    if HUNG.lock().contains(path) {
        return Err(no_answer());
    }
    let output = run(path, PATIENCE).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => no_answer(),
        io::ErrorKind::NotFound => {
            unexamined("the program blkid (package util-linux) is missing".into())
        }
        _ => unexamined(format!("blkid cannot be run: {error}")),
    })?;
    match output.status.code() {
        Some(0) => Ok(parse(&String::from_utf8_lossy(&output.stdout))),
        Some(NOTHING) => Ok(None),
        Some(AMBIVALENT) => Ok(Some(Foreign::Several)),
        _ => Err(unexamined(format!(
            "blkid failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

fn run(path: &str, patience: Duration) -> io::Result<Output> {
    let mut missing = None;
    for program in PROGRAMS {
        let mut command = Command::new(program);
        command
            .args(["-p", "-o", "export", "--", path])
            .env("LC_ALL", "C");
        match output_within(&mut command, patience, || Hung::note(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing = Some(error),
            other => return other,
        }
    }
    Err(missing.expect("there is a program to look for"))
}

/// `blkid -o export`: a line `NAME=value` each.
fn parse(text: &str) -> Option<Foreign> {
    let value = |wanted: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| value.to_owned())
    };
    let (zfs, other) = match value("TYPE") {
        Some(name) if name == "zfs_member" => (Some(Foreign::Zfs), None),
        name => (None, name),
    };
    match (other, value("USAGE").as_deref(), value("PTTYPE")) {
        (Some(name), Some("raid"), _) => Some(Foreign::Member(name)),
        (Some(name), Some("crypto"), _) => Some(Foreign::Encrypted(name)),
        (Some(name), Some("filesystem"), _) => Some(Foreign::Filesystem(name)),
        (Some(name), _, _) => Some(Foreign::Other(name)),
        (None, _, Some(table)) => Some(Foreign::PartitionTable(table)),
        (None, _, None) => zfs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: who asks about a device that does not answer is told so, and asks no second program.
    /// Method: one that is noted as such, as after a program that was given up.
    #[test]
    fn a_device_that_does_not_answer_is_asked_once() {
        let hung = Hung::note("/dev/none-of-the-tests");
        let error = probe("/dev/none-of-the-tests").unwrap_err();
        assert!(error.to_string().contains("does not answer"), "{error}");
        drop(hung);
        assert!(!HUNG.lock().contains("/dev/none-of-the-tests"));
    }

    #[test]
    fn answers_of_blkid_are_understood() {
        let filesystem = "DEVNAME=/dev/x\nUUID=1\nTYPE=ext4\nUSAGE=filesystem\n";
        assert_eq!(parse(filesystem), Some(Foreign::Filesystem("ext4".into())));
        let table = "DEVNAME=/dev/x\nPTUUID=1\nPTTYPE=gpt\n";
        assert_eq!(parse(table), Some(Foreign::PartitionTable("gpt".into())));
        let volume = "TYPE=LVM2_member\nUSAGE=raid\n";
        assert_eq!(parse(volume), Some(Foreign::Member("LVM2_member".into())));
        let luks = "TYPE=crypto_LUKS\nUSAGE=crypto\n";
        assert_eq!(parse(luks), Some(Foreign::Encrypted("crypto_LUKS".into())));
        let swap = "TYPE=swap\nUSAGE=other\n";
        assert_eq!(parse(swap), Some(Foreign::Other("swap".into())));
        let pool = "TYPE=zfs_member\nUSAGE=filesystem\nLABEL=tank\n";
        assert_eq!(parse(pool), Some(Foreign::Zfs));
        // A partition of which only the table's entry is known.
        assert_eq!(parse("PART_ENTRY_SCHEME=gpt\nPART_ENTRY_NUMBER=1\n"), None);
    }
}
