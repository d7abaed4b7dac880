//! System calls that may lead into what this process serves itself.
//!
//! A thread that asks a FUSE filesystem waits, whatever happens, until the server has answered or
//! let go of `/dev/fuse`. When that thread is one of the server's own and the server is killed, it
//! keeps the process's descriptors open, so `/dev/fuse` with them, and waits for ever: the process
//! cannot die, its sockets and locks stay, and with them everyone who waits for them. A thread with
//! descriptors of its own keeps nothing: the others' death ends the connection, and the
//! connection's end wakes it.
//!
//! Source: exit_files (kernel/exit.c) and request_wait_answer (fs/fuse/dev.c) of Linux; unshare(2),
//! `CLONE_FILES`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::channel;

use nix::sched::CloneFlags;
use rustix::fs::{Mode, OFlags};

/// The last of standard input, output and error, which stay.
const LAST_STANDARD: RawFd = 2;

/// Runs `work` on a thread of its own that holds none of the process's descriptors but standard
/// input, output and error, and waits for it. `work` may open and use what it likes, but nothing
/// that was opened elsewhere; so it must not wake a task either, for which the runtime writes to a
/// descriptor.
///
/// # Panics
/// When `work` does.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let run = move || {
        if let Err(error) = let_go() {
            // It is done all the same: only who is killed meanwhile is worse off.
            tracing::debug!(%error, "a thread keeps the server's descriptors");
        }
        work()
    };
    let run_and_wait = move || {
        let thread = std::thread::Builder::new().name("aside".to_owned());
        thread.spawn(run).map(std::thread::JoinHandle::join)
    };
    // Whoever waits for a thread can be killed, and has the descriptors to wake the runtime.
    match tokio::task::spawn_blocking(run_and_wait).await {
        Ok(Ok(Ok(outcome))) => outcome,
        Ok(Ok(Err(panic))) => std::panic::resume_unwind(panic),
        Ok(Err(error)) => panic!("no thread could be made: {error}"),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// Runs `work` as [`aside`] does, and takes over what it found, besides what it tells: a descriptor
/// that only stands for a place (`O_PATH`, open(2)). It is taken from the thread's own by its name
/// in `/proc` (proc_pid_fd(5)), which asks no filesystem anything, and neither does letting go of
/// it: the process may hold it and be killed.
///
/// # Errors
/// Those of `work`, and that of the taking over.
///
/// # Panics
/// When `work` does.
pub async fn find_aside<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<(OwnedFd, T)> + Send + 'static,
) -> io::Result<(OwnedFd, T)> {
    let (tell, told) = channel();
    let (taken, until_taken) = channel::<()>();
    let find = move || -> io::Result<T> {
        let (found, told_of_it) = work()?;
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let name = format!("/proc/self/task/{thread}/fd/{}", found.as_raw_fd());
        if tell.send(name).is_ok() {
            // Its end is what is waited for.
            let _ = until_taken.recv();
        }
        Ok(told_of_it)
    };
    let take = move || -> Option<io::Result<OwnedFd>> {
        // Nothing comes where nothing was found.
        let name = told.recv().ok()?;
        let place = rustix::fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        drop(taken);
        Some(place.map_err(io::Error::from))
    };
    let (found, place) = tokio::join!(aside(find), tokio::task::spawn_blocking(take));
    let told_of_it = found?;
    match place {
        Ok(Some(place)) => Ok((place?, told_of_it)),
        Ok(None) => Err(io::ErrorKind::NotFound.into()),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// Gives the thread a table of descriptors of its own, and closes what is in it.
fn let_go() -> io::Result<()> {
    // With a thousand mounts there are thousands, which are quicker not copied than closed.
    if device::leave_descriptors().is_ok() {
        return Ok(());
    }
    nix::sched::unshare(CloneFlags::CLONE_FILES)?;
    let listed: Vec<RawFd> = std::fs::read_dir("/proc/thread-self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > LAST_STANDARD)
        .collect();
    for number in listed {
        // The one that listed them is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    /// Goal: what was found aside is this process's, though the thread is gone that found it.
    #[tokio::test]
    async fn what_is_found_aside_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "here").expect("written");
        let number = std::fs::metadata(&path).expect("there").ino();
        let open = |path: PathBuf| -> io::Result<(OwnedFd, u32)> {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            Ok((rustix::fs::open(path, flags, Mode::empty())?, 7))
        };
        let there = path.clone();
        let found = find_aside(move || open(there)).await;
        let (found, told) = found.expect("found");
        assert_eq!(told, 7);
        std::fs::remove_file(&path).expect("removed");
        let found = File::from(found).metadata().expect("held");
        assert_eq!((found.ino(), found.len()), (number, 4));
        let missing = find_aside(move || open(path)).await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
