//! The engine of threads: each operation is a blocking system call on a thread of its device's.
//!
//! Used where io_uring is missing or switched off (many containers forbid it), for what a ring
//! cannot do without waiting, and for a write with a flush behind it: the flush blocks in any case,
//! and one thread that does both is woken once.

use std::io::{self, IoSlice};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::lane::Lane;
use super::request::{Action, CALL_BYTES_MAX, Durability, Progress, Request};

/// Carries out `request` on a thread of the device's.
pub(super) fn submit(lane: &Lane, request: Request) {
    lane.run(Box::new(move || run(request)));
}

/// Carries out `request` here, and answers.
fn run(mut request: Request) {
    let result = carry_out(&mut request);
    request.finish(result);
}

fn carry_out(request: &mut Request) -> io::Result<()> {
    loop {
        let result = call(request);
        if let Progress::Finished(result) = request.on_result(result) {
            return result;
        }
    }
}

/// One system call towards the end of `request`.
fn call(request: &mut Request) -> Result<usize, Errno> {
    let Request {
        files,
        direct,
        offset_bytes,
        action,
        ..
    } = request;
    let descriptor = match &files.direct {
        Some(file) if *direct => file,
        _ => &files.buffered,
    };
    let offset = *offset_bytes;
    match action {
        Action::Read { buffer } => {
            let offset = offset + buffer.filled() as u64;
            let target = buffer.unfilled_slice();
            let take = target.len().min(CALL_BYTES_MAX);
            rustix::io::pread(descriptor, &mut target[..take], offset)
        }
        Action::Write {
            parts,
            done,
            durability,
        } => {
            let slices: Vec<IoSlice<'_>> = Request::remaining_parts(parts, *done)
                .map(IoSlice::new)
                .collect();
            let offset = offset + *done as u64;
            match (&slices[..], *durability) {
                ([], _) => Ok(0),
                (several, Durability::AtOnce) => {
                    rustix::io::pwritev2(descriptor, several, offset, ReadWriteFlags::DSYNC)
                }
                ([single], _) => rustix::io::pwrite(descriptor, single, offset),
                (several, _) => rustix::io::pwritev(descriptor, several, offset),
            }
        }
        Action::Flush => rustix::fs::fdatasync(descriptor).map(|()| 0),
        Action::PunchHole { length_bytes } => rustix::fs::fallocate(
            descriptor,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset,
            *length_bytes,
        )
        .map(|()| 0),
        Action::BlockDiscard { length_bytes } => {
            let mut range = [offset, *length_bytes];
            block_discard(descriptor, &mut range).map(|()| 0)
        }
    }
}

/// `BLKDISCARD` of `range` (start and length in bytes).
fn block_discard(descriptor: impl std::os::fd::AsFd, range: &mut [u64; 2]) -> Result<(), Errno> {
    /// `_IO(0x12, 119)` in linux/fs.h.
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two u64 through its pointer argument and keeps nothing.
    unsafe {
        rustix::ioctl::ioctl(
            descriptor,
            rustix::ioctl::Updater::<BLKDISCARD, [u64; 2]>::new(range),
        )
    }
}
