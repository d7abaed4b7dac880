//! That somebody stopped the server of a state directory: no command starts another one by itself
//! then.
//!
//! Without this, whatever asks next (a script that looks after pools, a colleague) would import all
//! pools again, perhaps when their disks are another host's already. `millpond.stopped` in the
//! state directory says so, to everybody. A server writes it as it begins to stop because of
//! `millpond down`, Ctrl-C, or SIGTERM without a service manager that listens for it (which starts
//! the next one on its own terms), and removes it as it starts, both while it has the directory's
//! lock. So one that was killed leaves none, and a command may start the next.
//!
//! The file holds the boot of the machine and counts for that one alone: what was there before a
//! reboot is there again with the first command.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use device::private;
use rustix::fs::{FlockOperation, flock};

/// The file's name.
pub const NAME: &str = "millpond.stopped";
/// The directory's lock.
pub const LOCK: &str = "millpond.lock";
/// Everybody who may ask is told.
const MODE: u32 = 0o644;

/// What tells one boot of the machine from another; nothing where the kernel does not say.
fn boot() -> Vec<u8> {
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Whether the server of this state directory was stopped since the machine booted, and no other
/// one was started since. It may still be on its way out.
pub fn is_stopped(state: &Path) -> bool {
    std::fs::read(state.join(NAME)).is_ok_and(|found| found == boot())
}

/// Notes that no server is to be started where none runs. Does nothing where one runs, or never
/// did.
///
/// # Errors
/// Those of the filesystem.
pub fn stay_stopped(state: &Path) -> io::Result<()> {
    let lock = match File::open(state.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        lock => lock?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => note(state),
        Err(_) => Ok(()),
    }
}

/// Notes that the server is stopped. Who calls has the lock.
pub fn note(state: &Path) -> io::Result<()> {
    let path = state.join(NAME);
    private::write(&path, &boot())?;
    std::fs::set_permissions(&path, Permissions::from_mode(MODE))
}

/// Notes that one runs. Who calls has the lock.
pub fn forget(state: &Path) -> io::Result<()> {
    match std::fs::remove_file(state.join(NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    #[test]
    fn a_stop_holds_until_a_server_starts_or_the_machine_boots() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        // Where no server ever ran nothing is written.
        stay_stopped(path).expect("nothing to do");
        assert_eq!(path.read_dir().expect("it").count(), 0);
        let state = State::open(path).expect("a server");
        assert!(!is_stopped(path));
        // One that runs is not stopped by this.
        stay_stopped(path).expect("nothing to do");
        assert!(!is_stopped(path));
        state.note_stopped();
        assert!(is_stopped(path));
        let mode = path.join(NAME).metadata().expect("it").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        drop(state);
        assert!(is_stopped(path));
        drop(State::open(path).expect("a server"));
        assert!(!is_stopped(path), "one was started since");
        stay_stopped(path).expect("nobody has the lock");
        assert!(is_stopped(path));
        std::fs::write(path.join(NAME), "another boot").expect("written");
        assert!(!is_stopped(path));
    }
}
