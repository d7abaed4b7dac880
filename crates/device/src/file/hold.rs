//! Devices that are kept from others without being used: spares and cache devices.
//!
//! A pool's spare is read and written by nobody for years; unless it is held, the next `mkfs` takes
//! it. Block devices are opened `O_EXCL`, files locked. Several pools may have the same spare, so
//! within the process a device is held once for all who hold it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{FileType, FlockOperation, OFlags};

use super::{OpenError, lock_now, open_retrying};

/// Whether it is a block device, then what identifies it.
type Identity = (bool, u64, u64);

/// What this process holds.
static HELD: Mutex<BTreeMap<Identity, Weak<OwnedFd>>> = Mutex::new(BTreeMap::new());

/// Keeps everybody else off the device until what is returned is dropped.
pub(super) fn hold(path: &str) -> Result<Arc<OwnedFd>, OpenError> {
    let stat = rustix::fs::stat(path)?;
    let (identity, exclusive) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => ((true, stat.st_rdev, 0), OFlags::EXCL),
        _ => ((false, stat.st_dev, stat.st_ino), OFlags::empty()),
    };
    let mut held = HELD.lock();
    held.retain(|_, file| file.strong_count() > 0);
    if let Some(file) = held.get(&identity).and_then(Weak::upgrade) {
        return Ok(file);
    }
    let access = OFlags::RDONLY | OFlags::CLOEXEC | exclusive;
    let file = open_retrying(path, access, true)?;
    lock_now(&file, FlockOperation::NonBlockingLockExclusive)?;
    let file = Arc::new(file);
    held.insert(identity, Arc::downgrade(&file));
    Ok(file)
}
