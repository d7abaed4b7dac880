//! Counting what was there before the pool could count it, after `zpool upgrade` (objects of users
//! and groups, and what projects use), and all of what was received raw, without its key
//! (`dmu_objset_id_quota_upgrade`, module/zfs/dmu_objset.c).
//!
//! Every object is written again as it is, and counted by that. Each carries a mark that it was, so
//! after a crash the next to open the filesystem begins anew, and counts none twice. That it is
//! complete is said by the object set's flags, which are set last. It begins when a filesystem is
//! opened to be changed, or with the first change after the upgrade.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use dataset::DirtyEstimate;
use format::{
    OBJSET_FLAG_PROJECT_QUOTA, OBJSET_FLAG_USER_ACCOUNTING, OBJSET_FLAG_USER_OBJECT_ACCOUNTING,
    ObjectId,
};
use object::ObjectSet;
use zio::Tx;

use crate::error::{FsError, Result};
use crate::opening::Opening;

const ALL: u64 =
    OBJSET_FLAG_USER_ACCOUNTING | OBJSET_FLAG_USER_OBJECT_ACCOUNTING | OBJSET_FLAG_PROJECT_QUOTA;

/// Who counts, and whether there is anything left to count.
pub struct Counting {
    me: Weak<Self>,
    opening: Arc<Opening>,
    objset: Arc<ObjectSet>,
    /// Everything is counted that can be.
    counts_all: AtomicBool,
    /// Somebody counts what was there before.
    is_counting: AtomicBool,
}

impl Counting {
    pub(crate) fn new(opening: &Arc<Opening>, objset: &Arc<ObjectSet>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            opening: Arc::clone(opening),
            objset: Arc::clone(objset),
            counts_all: AtomicBool::new(false),
            is_counting: AtomicBool::new(false),
        })
    }

    /// Joins the open txg: the first change after an upgrade has what was there before counted.
    pub(crate) async fn assign(&self, estimate: DirtyEstimate) -> Result<Tx> {
        self.begin();
        self.opening.assign(estimate).await
    }

    /// Begins in the background, if there is something to do that nobody does.
    pub(crate) fn begin(&self) {
        if self.counts_all.load(Ordering::Relaxed) || self.is_counting.load(Ordering::Relaxed) {
            return;
        }
        // Only the log changes anything until it is replayed.
        if self.opening.replaying() {
            return;
        }
        if self.objset.flags() & ALL == ALL {
            self.counts_all.store(true, Ordering::Relaxed);
            return;
        }
        let Ok(dataset) = self.opening.dataset() else {
            return;
        };
        if dataset.begin_to_count() == 0 || self.is_counting.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        self.opening.world.spawn.spawn(Box::pin(async move {
            match me.count_all().await {
                Ok(()) => me.is_counting.store(false, Ordering::Release),
                Err(FsError::Closed) => {}
                // It is tried again when the filesystem is opened again.
                Err(error) => tracing::warn!(%error, "not all objects could be counted"),
            }
        }));
    }

    /// Counts every object that is not yet; returns when that is on disk, whoever counted them.
    ///
    /// # Errors
    /// [`FsError::ReadOnly`], errors of reading, and where space for it is missing.
    pub async fn count_owners(&self) -> Result<()> {
        if self.opening.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        self.is_counting.store(true, Ordering::Release);
        let outcome = self.count_all().await;
        self.is_counting.store(false, Ordering::Release);
        outcome
    }

    async fn count_all(&self) -> Result<()> {
        let missing = {
            let _entered = self.opening.enter().await?;
            let dataset = self.opening.dataset()?;
            dataset.begin_to_count()
        };
        if missing == 0 {
            // Others who counted all may have just said so, in a txg that is not on disk.
            return self.wait_for_disk().await;
        }
        let mut at = None;
        while let Some(id) = self.objset.next_object(at).await? {
            at = Some(id);
            if self.opening.is_closing() {
                return Err(FsError::Closed);
            }
            self.count_one(id).await?;
        }
        {
            // The filesystem is not closed meanwhile: a dataset that was let go of may be destroyed
            // or rolled back, and must neither be held nor changed.
            let _entered = self.opening.enter().await?;
            let tx = self.assign(DirtyEstimate::metadata()).await?;
            self.objset.set_flags(&tx, self.objset.flags() | missing);
        }
        self.wait_for_disk().await
    }

    /// Waits until what is counted now is on disk. Without a hold: nobody shall find the dataset
    /// busy for that.
    async fn wait_for_disk(&self) -> Result<()> {
        let dsl = {
            let _entered = self.opening.enter().await?;
            let dataset = self.opening.dataset()?;
            Arc::clone(dataset.dsl())
        };
        Ok(dsl.sync().await?)
    }

    async fn count_one(&self, id: ObjectId) -> Result<()> {
        let _entered = self.opening.enter().await?;
        let object = match self.objset.hold(id).await {
            Err(error) if error.is_not_found() => return Ok(()),
            object => object?,
        };
        let tx = self.assign(DirtyEstimate::metadata()).await?;
        match object.touch(&tx) {
            // It was freed meanwhile.
            Err(error) if error.is_not_found() => Ok(()),
            touched => Ok(touched?),
        }
    }
}
