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

use std::os::fd::RawFd;

use nix::sched::CloneFlags;

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

/// Gives the thread a table of descriptors of its own, and closes what is in it.
fn let_go() -> std::io::Result<()> {
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
