//! One operation on a file, as the engines (ring or threads) carry it out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::aside;
use super::buffer::AlignedBuffer;

/// Most bytes in one system call; what is longer continues in the next.
pub(super) const CALL_BYTES_MAX: usize = 1 << 30;
/// Most parts in one system call (`UIO_MAXIOV`).
pub(super) const CALL_PARTS_MAX: usize = 1024;

/// The open descriptors of a device.
#[derive(Debug)]
pub(super) struct Descriptors {
    /// Goes through the page cache.
    pub(super) buffered: OwnedFd,
    /// Bypasses it (`O_DIRECT`); absent when not asked for or not supported.
    pub(super) direct: Option<OwnedFd>,
}

/// What makes a write durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// A flush that somebody asks for later.
    Later,
    /// The system, with the write itself (`RWF_DSYNC`): the device is told so where it knows such
    /// writes (FUA), else the system flushes it.
    AtOnce,
    /// A flush behind it, which is a part of the operation.
    ByFlush,
}

/// What to do.
pub(super) enum Action {
    /// Fill `buffer` from `offset`.
    Read { buffer: AlignedBuffer },
    /// Store `parts` at `offset`, skipping the first `done` bytes of them.
    Write {
        parts: Vec<Bytes>,
        done: usize,
        durability: Durability,
    },
    /// `fdatasync`.
    Flush,
    /// Punch a hole (regular file).
    PunchHole { length_bytes: u64 },
    /// `BLKDISCARD` (block device).
    BlockDiscard { length_bytes: u64 },
}

/// An operation in flight. It owns the memory that the kernel reads or fills, and the descriptors.
pub(super) struct Request {
    pub(super) files: Arc<Descriptors>,
    /// Whether to use the descriptor that bypasses the page cache.
    pub(super) direct: bool,
    /// Where the operation starts on the device.
    pub(super) offset_bytes: u64,
    pub(super) action: Action,
    /// Who waits; gone when nobody does any more.
    pub(super) answer: oneshot::Sender<io::Result<Option<AlignedBuffer>>>,
}

/// Whether a request needs another system call.
pub(super) enum Progress {
    More,
    /// Nothing was done: it would have to wait, where it may not.
    Elsewhere,
    Finished(io::Result<()>),
}

impl Request {
    /// The descriptor to use.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.files.direct {
            Some(direct) if self.direct => direct.as_fd(),
            _ => self.files.buffered.as_fd(),
        }
    }

    /// Whether it is a write that is to be durable when the system has done it.
    pub(super) fn is_durable(&self) -> bool {
        matches!(
            self.action,
            Action::Write {
                durability: Durability::AtOnce,
                ..
            }
        )
    }

    /// Takes in what a system call returned: bytes done, or an error.
    pub(super) fn on_result(&mut self, result: Result<usize, Errno>) -> Progress {
        let count = match result {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => return Progress::More,
            Err(Errno::INVAL) if self.direct => {
                // Direct I/O that the filesystem or device refuses for its alignment: the page
                // cache takes anything.
                self.direct = false;
                return Progress::More;
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if self.is_durable() => {
                // An old system, or not quite Linux.
                if let Action::Write { durability, .. } = &mut self.action {
                    *durability = Durability::ByFlush;
                }
                return Progress::More;
            }
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS)
                if matches!(
                    self.action,
                    Action::PunchHole { .. } | Action::BlockDiscard { .. }
                ) =>
            {
                return Progress::Finished(Ok(()));
            }
            Err(error) => return Progress::Finished(Err(error.into())),
        };
        match &mut self.action {
            Action::Read { buffer } => {
                if count == 0 && buffer.unfilled().1 > 0 {
                    return Progress::Finished(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                // SAFETY: the system call that was made for this request stored so many bytes in
                // what it was given: the buffer's unfilled part, from its start.
                unsafe { buffer.assume_filled(count) };
                if buffer.unfilled().1 == 0 {
                    return Progress::Finished(Ok(()));
                }
                // A short read usually ends at an odd place, which direct I/O does not continue
                // from.
                self.direct = false;
                Progress::More
            }
            Action::Write {
                parts,
                done,
                durability,
            } => {
                let length: usize = parts.iter().map(Bytes::len).sum();
                *done += count;
                if *done == length {
                    if *durability == Durability::ByFlush {
                        self.direct = false;
                        self.action = Action::Flush;
                        return Progress::More;
                    }
                    return Progress::Finished(Ok(()));
                }
                if count == 0 {
                    return Progress::Finished(Err(io::ErrorKind::WriteZero.into()));
                }
                self.direct = false;
                Progress::More
            }
            Action::Flush | Action::PunchHole { .. } | Action::BlockDiscard { .. } => {
                Progress::Finished(Ok(()))
            }
        }
    }

    /// Tells whoever waits.
    pub(super) fn finish(self, result: io::Result<()>) {
        let Request {
            files,
            action,
            answer,
            ..
        } = self;
        let result = result.map(|()| match action {
            Action::Read { buffer } => Some(buffer),
            _ => None,
        });
        // First of all: who has the answers to everything may close the device, and open it again.
        // Where the device is closed already, this is the last that has its files, and closing them
        // may wait for it; the thread here may be one that serves others.
        if let Some(files) = Arc::into_inner(files) {
            aside::close_later(files);
        }
        // Nobody may wait any more; the operation happened all the same.
        let _ = answer.send(result);
    }

    /// Tells whoever waits that the engine failed, and leaks the memory, which the kernel may
    /// still use.
    pub(super) fn abandon(self, error: io::Error) {
        let Request {
            files,
            action,
            answer,
            ..
        } = self;
        std::mem::forget((files, action));
        let _ = answer.send(Err(error));
    }

    /// The parts still to be written from `done` on, at most [`CALL_PARTS_MAX`] of them and at
    /// most [`CALL_BYTES_MAX`] bytes.
    pub(super) fn remaining_parts(parts: &[Bytes], done: usize) -> impl Iterator<Item = &[u8]> {
        let mut skip = done;
        let mut room = CALL_BYTES_MAX;
        parts
            .iter()
            .filter_map(move |part| {
                let from = skip.min(part.len());
                skip -= from;
                let take = (part.len() - from).min(room);
                room -= take;
                (take > 0).then(|| &part[from..from + take])
            })
            .take(CALL_PARTS_MAX)
    }
}
