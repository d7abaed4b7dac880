//! A filesystem's hold on its dataset: what its properties and its mount say, who is inside, and
//! whether it closes.
//!
//! An operation enters before it does anything else, and [`Opening::shut`] waits until all have
//! left. So nothing is under way when the dataset is let go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dataset::{Dataset, DatasetSettings, DirtyEstimate};
use device::World;
use parking_lot::RwLock;
use tokio::sync::watch;
use zio::Tx;

use crate::error::{FsError, Result};
use crate::types::{MountChoices, Time, Via};

/// What `O_DIRECT` is aligned to.
const PAGE_BYTES: u64 = 4096;
/// Values of the property `direct` (`zfs_direct_t`, include/sys/fs/zfs.h).
const DIRECT_DISABLED: u64 = 0;
const DIRECT_ALWAYS: u64 = 2;

/// The dataset while the filesystem is open, and the gate of its operations.
pub(crate) struct Opening {
    /// The hold on the dataset; gone when closed.
    hold: RwLock<Option<Arc<Dataset>>>,
    settings: watch::Receiver<DatasetSettings>,
    /// What a mount does otherwise.
    mount_choices: RwLock<MountChoices>,
    pub(crate) world: World,
    /// Held shared by every operation, exclusively to close.
    gate: tokio::sync::RwLock<()>,
    is_closing: AtomicBool,
    is_closed: AtomicBool,
    /// The log of a crash is being replayed: object numbers and times come from it.
    is_replaying: AtomicBool,
}

/// Keeps the filesystem from being closed during an operation.
pub(crate) type Entered<'a> = tokio::sync::RwLockReadGuard<'a, ()>;

impl Opening {
    pub(crate) fn new(
        dataset: Dataset,
        settings: watch::Receiver<DatasetSettings>,
        world: World,
    ) -> Self {
        Self {
            hold: RwLock::new(Some(Arc::new(dataset))),
            settings,
            mount_choices: RwLock::default(),
            world,
            gate: tokio::sync::RwLock::default(),
            is_closing: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_replaying: AtomicBool::new(false),
        }
    }

    /// The dataset: another hold on it.
    ///
    /// # Errors
    /// [`FsError::Closed`] when it was let go.
    pub(crate) fn dataset(&self) -> Result<Dataset> {
        self.held().map(|held| Dataset::clone(&held))
    }

    /// The hold itself: what every operation takes is not counted by the dataset.
    fn held(&self) -> Result<Arc<Dataset>> {
        self.hold.read().clone().ok_or(FsError::Closed)
    }

    /// Joins the open txg.
    ///
    /// # Errors
    /// [`FsError::Closed`]; as [`Dataset::assign`].
    pub(crate) async fn assign(&self, estimate: DirtyEstimate) -> Result<Tx> {
        Ok(self.held()?.assign(estimate).await?)
    }

    /// Whether changes are refused.
    pub(crate) fn is_read_only(&self) -> bool {
        self.settings().read_only
    }

    /// Whether POSIX access control lists are kept (`acltype=posix`).
    pub(crate) fn has_posix_acls(&self) -> bool {
        self.settings().acltype == 1
    }

    /// What its properties and its mount say.
    pub(crate) fn settings(&self) -> DatasetSettings {
        let mut settings = *self.settings.borrow();
        let chosen = *self.mount_choices.read();
        settings.atime = chosen.atime.unwrap_or(settings.atime);
        settings.relatime = chosen.relatime.unwrap_or(settings.relatime);
        settings.xattr = chosen.xattr.unwrap_or(settings.xattr);
        settings
    }

    /// Has it do otherwise than its properties say, from now on, as options of a mount do.
    pub(crate) fn choose_for_mount(&self, choices: MountChoices) {
        *self.mount_choices.write() = choices;
    }

    /// What [`Self::choose_for_mount`] chose last.
    pub(crate) fn mount_choices(&self) -> MountChoices {
        *self.mount_choices.read()
    }

    /// Whether a request leaves the cache out (property `direct`): only one of whole pages does.
    /// Others pass the cache, as OpenZFS 2.4 has them do unless `zfs_dio_strict` is set; 2.3
    /// refuses them (`zfs_setup_direct`, module/zfs/zfs_vnops.c). Where the caller keeps its buffer
    /// nobody knows here.
    pub(crate) fn leaves_cache_out(&self, via: Via, offset_bytes: u64, length_bytes: u64) -> bool {
        let is_whole = offset_bytes.is_multiple_of(PAGE_BYTES)
            && length_bytes.is_multiple_of(PAGE_BYTES)
            && length_bytes > 0;
        is_whole
            && match self.settings.borrow().direct {
                DIRECT_DISABLED => false,
                DIRECT_ALWAYS => true,
                _ => via == Via::Direct,
            }
    }

    pub(crate) fn name_bytes_max(&self) -> usize {
        if self.settings().longname {
            crate::names::LONG_NAME_BYTES_MAX
        } else {
            crate::names::NAME_BYTES_MAX
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_ns(self.world.clock.wall_ns())
    }

    /// Begins an operation.
    pub(crate) async fn enter(&self) -> Result<Entered<'_>> {
        let entered = self.gate.read().await;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(FsError::Closed);
        }
        Ok(entered)
    }

    /// Begins an operation that changes something.
    pub(crate) async fn enter_to_change(&self) -> Result<Entered<'_>> {
        if self.is_read_only() && !self.replaying() {
            return Err(FsError::ReadOnly);
        }
        self.enter().await
    }

    /// Like [`Self::enter`], without waiting.
    pub(crate) fn try_enter(&self) -> Option<Entered<'_>> {
        let entered = self.gate.try_read().ok()?;
        (!self.is_closed.load(Ordering::Acquire)).then_some(entered)
    }

    /// Has operations that take long end after their next part.
    pub(crate) fn begin_to_close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    /// Lets nobody in any more, when all have left; whether it was shut before.
    pub(crate) async fn shut(&self) -> bool {
        let _all_out = self.gate.write().await;
        self.is_closed.swap(true, Ordering::AcqRel)
    }

    /// Lets go of the dataset.
    pub(crate) fn let_go(&self) {
        self.hold.write().take();
    }

    /// Whether the filesystem is being closed, which waits for what is under way.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Asked between the parts of what can take minutes: who closes the filesystem does not wait
    /// for the rest.
    pub(crate) fn check_not_closing(&self) -> Result<()> {
        if self.is_closing() {
            return Err(FsError::Closed);
        }
        Ok(())
    }

    /// Whether the filesystem is shut.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether the log is being replayed.
    pub(crate) fn replaying(&self) -> bool {
        self.is_replaying.load(Ordering::Acquire)
    }

    /// Says whether the log is being replayed from now on.
    pub(crate) fn set_replaying(&self, is_replaying: bool) {
        self.is_replaying.store(is_replaying, Ordering::Release);
    }
}
