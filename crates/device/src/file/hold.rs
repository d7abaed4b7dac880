//! Devices that are kept from others without being used: spares and cache devices.
//!
//! A pool's spare is read and written by nobody for years; unless it is held, the next `mkfs` takes
//! it. Block devices are opened `O_EXCL`, files locked. Several pools may have the same spare, so
//! within the process a device is held once for all who hold it.
//!
//! When one of these pools is to use it, the device is *lent*: it is held by nobody, so that it can
//! be opened for writing, until somebody asks again to hold it. Who opened it keeps others off
//! meanwhile.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{FileType, FlockOperation, OFlags};

use super::{OpenError, aside, lock_now, open_retrying};

/// Whether it is a block device, then what identifies it.
type Identity = (bool, u64, u64);

/// The open file that keeps others off; nothing while the device is lent. Locked while it is
/// opened, which takes as long as the device does.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Option<OwnedFd>>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(file) = self.0.get_mut().take() {
            aside::close(file);
        }
    }
}

/// What this process holds; locked for an instant, never while a device is waited for.
static HELD: Mutex<BTreeMap<Identity, Weak<Held>>> = Mutex::new(BTreeMap::new());

fn identity(path: &str) -> Result<(Identity, OFlags), OpenError> {
    let stat = rustix::fs::stat(path)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => ((true, stat.st_rdev, 0), OFlags::EXCL),
        _ => ((false, stat.st_dev, stat.st_ino), OFlags::empty()),
    })
}

/// Keeps everybody else off the device until what is returned is dropped, or the device is lent.
pub(super) fn hold(path: &str) -> Result<Arc<Held>, OpenError> {
    let (identity, exclusive) = identity(path)?;
    let held = {
        let mut all = HELD.lock();
        all.retain(|_, held| held.strong_count() > 0);
        all.get(&identity)
            .and_then(Weak::upgrade)
            .unwrap_or_else(|| {
                let new = Arc::new(Held::default());
                all.insert(identity, Arc::downgrade(&new));
                new
            })
    };
    let mut file = held.0.lock();
    if file.is_none() {
        let access = OFlags::RDONLY | OFlags::CLOEXEC | exclusive;
        let opened = open_retrying(path, access, true)?;
        lock_now(&opened, FlockOperation::NonBlockingLockExclusive)?;
        *file = Some(opened);
    }
    drop(file);
    Ok(held)
}

/// Lets this process open a device that it holds; without effect on others.
pub(super) fn lend(path: &str) {
    let Ok((identity, _)) = identity(path) else {
        return;
    };
    let known = HELD.lock().get(&identity).and_then(Weak::upgrade);
    if let Some(known) = known {
        known.0.lock().take();
    }
}
