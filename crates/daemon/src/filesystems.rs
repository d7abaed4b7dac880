//! Open filesystems of a pool: one [`Filesystem`] per dataset, whoever wants it.
//!
//! Two on one dataset would both replay its log and free what its delete queue lists, and would each
//! keep locks and attributes of their own: what one changed, the other would write over. So whoever
//! needs one asks here: it waits while another opens or closes the filesystem, and shares what is open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use dataset::Dataset;
use device::World;
use filesystem::{Filesystem, FsError};
use format::ObjectId;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The filesystems of a pool that are open, by the objects of their datasets, which stay the same
/// when datasets are renamed.
#[derive(Default)]
pub(crate) struct Filesystems {
    slots: Mutex<HashMap<ObjectId, Weak<Slot>>>,
}

/// The place of one dataset's filesystem.
struct Slot {
    /// Held while it is opened or closed.
    open: tokio::sync::Mutex<Option<Arc<Filesystem>>>,
    /// How many share it.
    users: watch::Sender<usize>,
}

/// A share in an open filesystem. Who is done gives it back; the last one closes the filesystem.
pub(crate) struct Shared {
    slot: Arc<Slot>,
    filesystem: Mutex<Arc<Filesystem>>,
    is_given_back: AtomicBool,
}

impl Filesystems {
    fn slot(&self, dataset: ObjectId) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&dataset).and_then(Weak::upgrade) {
            return slot;
        }
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::new(Slot {
            open: tokio::sync::Mutex::default(),
            users: watch::Sender::new(0),
        });
        slots.insert(dataset, Arc::downgrade(&slot));
        slot
    }

    /// A share in a dataset's filesystem, which is opened if nobody has it open.
    ///
    /// # Errors
    /// As [`Filesystem::open`].
    pub(crate) async fn open(&self, dataset: Dataset, world: &World) -> Result<Shared, FsError> {
        let slot = self.slot(dataset.object());
        let mut open = slot.open.lock().await;
        if let Some(before) = &*open
            && *slot.users.borrow() == 0
        {
            // Its closing was cut short.
            before.close().await?;
            *open = None;
        }
        let filesystem = match &*open {
            Some(filesystem) => Arc::clone(filesystem),
            None => {
                let opened = Filesystem::open(dataset, world.clone()).await?;
                Arc::clone(open.insert(opened))
            }
        };
        slot.users.send_modify(|users| *users += 1);
        drop(open);
        Ok(Shared {
            slot,
            filesystem: Mutex::new(filesystem),
            is_given_back: AtomicBool::new(false),
        })
    }
}

impl Slot {
    /// Closes the filesystem where nobody shares it.
    async fn close_unused(&self) -> Result<(), FsError> {
        let mut open = self.open.lock().await;
        if *self.users.borrow() > 0 {
            return Ok(());
        }
        let Some(filesystem) = &*open else {
            return Ok(());
        };
        // Until it is closed it stays here, also where this is cut short.
        let outcome = filesystem.close().await;
        *open = None;
        outcome
    }
}

impl Shared {
    /// The filesystem.
    pub(crate) fn filesystem(&self) -> Arc<Filesystem> {
        Arc::clone(&self.filesystem.lock())
    }

    /// Closes the filesystem for as long as `work` takes, which may change the dataset, and opens it again with `open`:
    /// what this share is of from then on. Others wait meanwhile. What could not be written keeps `work` from being
    /// done.
    ///
    /// # Errors
    /// What `open` fails with: the filesystem stays closed.
    pub(crate) async fn reopen<T>(
        &self,
        work: impl Future<Output = T>,
        open: impl Future<Output = Result<Arc<Filesystem>, FsError>>,
    ) -> Result<Result<T, FsError>, FsError> {
        // Others have it for short times only, and get no share while the place is held.
        let mut place = self.slot.open.lock().await;
        let mut users = self.slot.users.subscribe();
        let _ = users.wait_for(|users| *users <= 1).await;
        let done = match self.filesystem().close().await {
            Ok(()) => Ok(work.await),
            Err(error) => Err(error),
        };
        let opened = open.await?;
        *self.filesystem.lock() = Arc::clone(&opened);
        *place = Some(opened);
        Ok(done)
    }

    fn leave(&self) -> bool {
        let is_first = !self.is_given_back.swap(true, Ordering::AcqRel);
        if is_first {
            self.slot.users.send_modify(|users| *users -= 1);
        }
        is_first
    }

    /// Gives the share back, and closes the filesystem if it was the last.
    ///
    /// # Errors
    /// As [`Filesystem::close`].
    pub(crate) async fn give_back(&self) -> Result<(), FsError> {
        self.leave();
        self.slot.close_unused().await
    }

    /// [`Self::give_back`] for who is to leave the dataset closed: waits for others, whose shares are
    /// short, and for a closing that is under way.
    ///
    /// # Errors
    /// As [`Filesystem::close`].
    pub(crate) async fn close(&self) -> Result<(), FsError> {
        self.leave();
        let mut users = self.slot.users.subscribe();
        // An error means that the slot is gone, which this has.
        let _ = users.wait_for(|users| *users == 0).await;
        self.slot.close_unused().await
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Whoever had it was cut short.
        if self.leave()
            && *self.slot.users.borrow() == 0
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let slot = Arc::clone(&self.slot);
            runtime.spawn(async move {
                if let Err(error) = slot.close_unused().await {
                    tracing::warn!(%error, "a filesystem that nobody uses could not be closed");
                }
            });
        }
    }
}
