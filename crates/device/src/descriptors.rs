//! Threads that hold none of the process's descriptors.

use std::io;

/// The first descriptor after standard input, output and error.
const FIRST_OTHER: libc::c_uint = 3;

/// Gives the calling thread a table of descriptors of its own, in which there are standard input,
/// output and error and no others; those of the other threads stay as they are. What was opened
/// before must not be used by this thread: its numbers may come to be others'.
///
/// # Errors
/// Where the kernel has no such call (before Linux 5.9), or a sandbox forbids it; then nothing is
/// changed.
///
/// Source: close_range(2), `CLOSE_RANGE_UNSHARE`.
pub fn leave_descriptors() -> io::Result<()> {
    // SAFETY: it takes no memory. Others' descriptors stay open, as they are closed in this
    // thread's own table.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST_OTHER,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_thread_leaves_them_to_the_others() {
        let file = tempfile::tempfile().expect("a file");
        let place = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
        let see = || std::fs::symlink_metadata(&place).is_ok();
        assert!(see());
        std::thread::scope(|scope| {
            let left = scope.spawn(|| leave_descriptors().is_err() || !see());
            assert!(left.join().expect("the thread ends"));
        });
        assert!(see());
        file.metadata().expect("it is open here");
    }
}
