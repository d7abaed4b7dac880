//! Counting what was there before the pool could count it, after `zpool upgrade` (objects of users
//! and groups, and what projects use), and all of what was received raw, without its key
//! (`dmu_objset_id_quota_upgrade`, module/zfs/dmu_objset.c).
//!
//! Every object is written again as it is, and counted by that. Each carries a mark that it was, so
//! after a crash the next to open the filesystem begins anew, and counts none twice. That it is
//! complete is said by the object set's flags, which are set last. It begins when a filesystem is
//! opened to be changed, or with the first change after the upgrade.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dataset::DirtyEstimate;
use format::{
    OBJSET_FLAG_PROJECT_QUOTA, OBJSET_FLAG_USER_ACCOUNTING, OBJSET_FLAG_USER_OBJECT_ACCOUNTING,
    ObjectId,
};

use crate::error::{FsError, Result};
use crate::filesystem::Filesystem;

const ALL: u64 =
    OBJSET_FLAG_USER_ACCOUNTING | OBJSET_FLAG_USER_OBJECT_ACCOUNTING | OBJSET_FLAG_PROJECT_QUOTA;

impl Filesystem {
    /// Begins in the background, if there is something to do that nobody does.
    pub(crate) fn count_in_background(&self) {
        if self.counts_all.load(Ordering::Relaxed) || self.is_counting.load(Ordering::Relaxed) {
            return;
        }
        // Only the log changes anything until it is replayed.
        if self.replaying() {
            return;
        }
        if self.objset.flags() & ALL == ALL {
            self.counts_all.store(true, Ordering::Relaxed);
            return;
        }
        let Ok(dataset) = self.dataset() else { return };
        if dataset.begin_to_count() == 0 || self.is_counting.swap(true, Ordering::AcqRel) {
            return;
        }
        self.spawn(|me| async move {
            match me.count_all().await {
                Ok(()) => me.is_counting.store(false, Ordering::Release),
                Err(FsError::Closed) => {}
                // It is tried again when the filesystem is opened again.
                Err(error) => tracing::warn!(%error, "not all objects could be counted"),
            }
        });
    }

    /// Counts every object that is not yet; returns when that is on disk.
    ///
    /// # Errors
    /// [`FsError::ReadOnly`], errors of reading, and where space for it is missing.
    pub async fn count_owners(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        self.is_counting.store(true, Ordering::Release);
        let outcome = self.count_all().await;
        self.is_counting.store(false, Ordering::Release);
        outcome
    }

    async fn count_all(&self) -> Result<()> {
        let missing = self.dataset()?.begin_to_count();
        if missing == 0 {
            return Ok(());
        }
        let mut at = None;
        while let Some(id) = self.objset.next_object(at).await? {
            at = Some(id);
            if self.is_closing() {
                return Err(FsError::Closed);
            }
            self.count_one(id).await?;
        }
        let tx = self.assign(DirtyEstimate::metadata()).await?;
        self.objset.set_flags(&tx, self.objset.flags() | missing);
        drop(tx);
        // Without a hold: nobody shall find the dataset busy for that.
        let dsl = Arc::clone(self.dataset()?.dsl());
        Ok(dsl.sync().await?)
    }

    async fn count_one(&self, id: ObjectId) -> Result<()> {
        let _entered = self.enter().await?;
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
