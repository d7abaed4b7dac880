//! Between FUSE's types and ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use device::FileDevice;
use filesystem::{Attributes, Caller, FileKind, FsError, SetTime, Time};
use fuser::{Errno, FileAttr, FileType, INodeNo, Request, TimeOrNow};

/// Our error as FUSE's.
pub(crate) fn errno(error: &FsError) -> Errno {
    Errno::from_i32(error.errno())
}

pub(crate) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Regular => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
    }
}

/// A moment for a reply; what the host cannot say is the epoch.
pub(crate) fn to_system_time(time: Time) -> SystemTime {
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let base = if time.seconds >= 0 {
        UNIX_EPOCH.checked_add(whole)
    } else {
        UNIX_EPOCH.checked_sub(whole)
    };
    base.and_then(|base| base.checked_add(nanoseconds))
        .unwrap_or(UNIX_EPOCH)
}

/// A moment from a request. For moments before the epoch fuser subtracts the nanoseconds that it
/// should add; so it is taken apart the way that it was put together.
pub(crate) fn from_request_time(time: SystemTime) -> Time {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Time {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Time {
                seconds: i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds),
                nanoseconds: before.subsec_nanos(),
            }
        }
    }
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(from_request_time(time)),
    }
}

/// A device number as FUSE has it (`new_encode_dev`, include/linux/kdev_t.h).
pub(crate) fn encode_rdev((major, minor): (u32, u32)) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// And back (`new_decode_dev`).
pub(crate) fn decode_rdev(rdev: u32) -> (u32, u32) {
    ((rdev & 0xfff00) >> 8, rdev & 0xff | (rdev >> 12) & 0xfff00)
}

pub(crate) fn caller(request: &Request, umask: u32) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        umask: umask & 0o777,
        task: request.pid(),
        groups: Some(crate::groups::is_of),
    }
}

/// Attributes for a reply, under a node number of the mount.
pub(crate) fn attributes(node: u64, of: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: of.size_bytes,
        blocks: of.allocated_bytes / 512,
        atime: to_system_time(of.atime),
        mtime: to_system_time(of.mtime),
        ctime: to_system_time(of.ctime),
        crtime: to_system_time(of.crtime),
        kind: kind(of.kind),
        perm: of.mode as u16,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        rdev: encode_rdev(of.rdev),
        blksize: of.block_bytes,
        flags: 0,
    }
}

/// Gives `answer` the pieces of a read as one.
pub(crate) fn joined<T>(pieces: &[Bytes], answer: impl FnOnce(&[u8]) -> T) -> T {
    match pieces {
        [] => answer(&[]),
        [single] => answer(single),
        several => answer(&FileDevice::gathered(several)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_and_leave_nothing_behind() {
        let [long, short] = [vec![1; 5000], vec![2; 3]].map(Bytes::from);
        for _ in 0..2 {
            let both = [long.clone(), short.clone()];
            assert!(joined(&both, |data| data == [&long[..], &short].concat()));
            assert!(joined(&[short.clone(), short.clone()], |data| data == [2; 6]));
            assert!(joined(&both[1..], |data| data == [2; 3]));
            assert!(joined(&[], |data| data.is_empty()));
        }
    }

    #[test]
    fn device_numbers_survive() {
        for rdev in [(0, 0), (8, 1), (259, 77), (4095, 1_048_575)] {
            assert_eq!(decode_rdev(encode_rdev(rdev)), rdev);
        }
    }

    #[test]
    fn moments_before_the_epoch_are_put_right() {
        let time = Time {
            seconds: -5,
            nanoseconds: 250_000_000,
        };
        assert_eq!(
            to_system_time(time),
            UNIX_EPOCH - Duration::from_millis(4750)
        );
        // What fuser makes of (-5, 250000000).
        let given = UNIX_EPOCH - Duration::new(5, 250_000_000);
        assert_eq!(from_request_time(given), time);
        let far = Time {
            seconds: i64::MAX,
            nanoseconds: 0,
        };
        let _ = to_system_time(far);
    }
}
