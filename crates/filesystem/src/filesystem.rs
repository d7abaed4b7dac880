//! The filesystem as a whole: its parts, attributes, users of files, syncing, closing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dataset::Dataset;
use format::ObjectId;
use object::Zap;

use crate::attributes::{Owner, give_entries, set_locked};
use crate::counting::Counting;
use crate::error::Result;
use crate::files::Files;
use crate::opening::Opening;
use crate::quota::Quotas;
use crate::types::{Attributes, Caller, FsStatistics, MountChoices, SetAttributes};
use crate::unlinked::Unlinked;
use crate::xattr::Xattrs;
use crate::znode::pflags;

/// A filesystem, open.
pub struct Filesystem {
    pub(crate) opening: Arc<Opening>,
    pub(crate) files: Arc<Files>,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) unlinked: Arc<Unlinked>,
    pub(crate) xattrs: Xattrs,
    /// The master node, which names all else.
    pub(crate) master: Zap,
    /// Held while files move from one directory to another.
    pub(crate) renames: tokio::sync::Mutex<()>,
    /// What it does by itself has begun ([`crate::begin_upkeep`]).
    pub(crate) is_kept_up: AtomicBool,
}

impl Filesystem {
    /// What users, groups and projects use and may use.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Extended attributes.
    pub fn xattrs(&self) -> &Xattrs {
        &self.xattrs
    }

    /// Files without a name.
    pub fn unlinked(&self) -> &Unlinked {
        &self.unlinked
    }

    /// Counting of what was there before the pool could count it.
    pub fn counting(&self) -> &Counting {
        &self.files.counting
    }

    /// The dataset: another hold on it.
    ///
    /// # Errors
    /// [`FsError::Closed`](crate::FsError::Closed) after [`Filesystem::close`].
    pub fn dataset(&self) -> Result<Dataset> {
        self.opening.dataset()
    }

    /// Object number of the root directory.
    pub fn root(&self) -> u64 {
        self.files.root
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.opening.is_read_only()
    }

    /// Whether two names are the same only if all their bytes are: neither case nor form of
    /// characters is ignored.
    pub fn compares_names_exactly(&self) -> bool {
        self.files.rules.is_plain()
    }

    /// Whether POSIX access control lists are kept (`acltype=posix`).
    pub fn has_posix_acls(&self) -> bool {
        self.opening.has_posix_acls()
    }

    /// Has it do otherwise than its properties say, from now on, as options of a mount do.
    pub fn choose_for_mount(&self, choices: MountChoices) {
        self.opening.choose_for_mount(choices);
    }

    /// The choices of [`Self::choose_for_mount`] that hold now.
    pub fn mount_choices(&self) -> MountChoices {
        self.opening.mount_choices()
    }

    /// Whether new files have a project, and what projects use is counted.
    pub fn has_projects(&self) -> bool {
        self.files.has_projects()
    }

    /// All about an object.
    pub async fn attributes(&self, ino: u64) -> Result<Attributes> {
        let _entered = self.opening.enter().await?;
        let node = self.files.node(ino).await?;
        Ok(self.files.attributes_of(&node))
    }

    /// Like [`Filesystem::attributes`] if the file is in memory: never waits.
    pub fn try_attributes(&self, ino: u64) -> Option<Attributes> {
        let _entered = self.opening.try_enter()?;
        let node = self.files.nodes.get(ino)?;
        Some(self.files.attributes_of(&node))
    }

    /// Changes attributes, in one transaction; a new size comes first, in as many as it takes.
    pub async fn set_attributes(
        &self,
        ino: u64,
        set: &SetAttributes,
        caller: Caller,
    ) -> Result<Attributes> {
        let _entered = self.opening.enter_to_change().await?;
        let node = self.files.node(ino).await?;
        let owner = Owner {
            uid: set.uid.map(u64::from),
            gid: set.gid.map(u64::from),
            project: set.project,
        };
        let gives = set.uid.is_some() || set.gid.is_some();
        if gives || set.size_bytes.is_some() || set.without_set_id {
            self.xattrs.drop_capability(&node).await?;
        }
        // Extended attributes in files of their own are whose the file is.
        let xattrs = match owner.is_none() || node.znode().xattr == 0 {
            true => None,
            false => Some(node.xattrs.write().await),
        };
        {
            let _range = match set.size_bytes {
                Some(_) => Some(node.ranges.lock(0, u64::MAX, true).await),
                None => None,
            };
            let node = node.lock().await?;
            set_locked(&self.files, &self.quotas, &node, set, caller).await?;
        }
        if !owner.is_none()
            && let Some(directory) = self.xattrs.xattr_directory(&node).await?
        {
            give_entries(&self.files, &directory, owner).await?;
        }
        drop(xattrs);
        if set.mode.is_some() {
            self.xattrs.posix_acl_follows_mode(&node).await?;
        }
        self.files.finish(ino).await?;
        Ok(self.files.attributes_of(&node))
    }

    /// Counts what the kernel of a mount is told of the object (its lookups): while it knows it, an
    /// unlinked file keeps its content, and the mount is told of changes
    /// ([`Changes`](crate::Changes)). Requests hold files otherwise ([`Unlinked::hold`]).
    pub fn retain(&self, ino: u64, count: u64) {
        self.files.nodes.retain(ino, count);
    }

    /// Takes back [`Filesystem::retain`]; the last one frees an unlinked file, in the background:
    /// returns whether it looks for that. Nothing is lost if that does not happen any more: the
    /// delete queue has the file.
    pub fn release(&self, ino: u64, count: u64) -> bool {
        let is_unlinked = self.files.nodes.release(ino, count);
        if is_unlinked {
            self.unlinked.spawn_reap(ino);
        }
        is_unlinked
    }

    /// Objects that kernels know, and how often each ([`Filesystem::retain`]).
    pub fn retained(&self) -> Vec<(u64, u64)> {
        self.files.nodes.retained()
    }

    /// Puts all changes of the object on stable storage.
    pub async fn sync_file(&self, ino: u64) -> Result<()> {
        let _entered = self.opening.enter().await?;
        self.files.commit(ino).await
    }

    /// Puts all changes on stable storage.
    pub async fn sync_all(&self) -> Result<()> {
        self.store_access_times().await;
        let _entered = self.opening.enter().await?;
        self.files.commit(0).await
    }

    /// Space and objects (`zfs_statvfs`, module/os/linux/zfs/zfs_vfsops.c).
    pub async fn statistics(&self) -> Result<FsStatistics> {
        const UNIT_BYTES: u64 = 512;
        // The dataset is not held when the filesystem is closed.
        let _entered = self.opening.enter().await?;
        let (referenced_bytes, available_bytes) = self.opening.dataset()?.space();
        let free = available_bytes / UNIT_BYTES;
        let objects_free =
            free.min(ObjectId::LIMIT.saturating_sub(self.files.objset.object_count()));
        let name_bytes_max = self.opening.name_bytes_max();
        Ok(FsStatistics {
            block_bytes: UNIT_BYTES as u32,
            io_bytes: self.opening.settings().record_bytes,
            blocks: (referenced_bytes / UNIT_BYTES).saturating_add(free),
            blocks_free: free,
            files: objects_free.saturating_add(self.files.objset.object_count()),
            files_free: objects_free,
            name_bytes_max: name_bytes_max as u32,
        })
    }

    /// [`Self::statistics`] as a file or directory shows them: where new files are of a project
    /// with quotas, all room is what the project may use (`zfs_statfs_project`,
    /// module/os/linux/zfs/zfs_vfsops.c).
    pub async fn statistics_at(&self, ino: u64) -> Result<FsStatistics> {
        let mut found = self.statistics().await?;
        let attributes = self.attributes(ino).await?;
        let inherits = attributes.flags & pflags::PROJINHERIT != 0;
        let Some(project) = attributes.project.filter(|id| *id != 0 && inherits) else {
            return Ok(found);
        };
        if let Some((quota, used)) = self.quotas.of_project(project, false).await? {
            let unit = u64::from(found.block_bytes);
            found.blocks = quota / unit;
            found.blocks_free = quota.saturating_sub(used) / unit;
        }
        if let Some((quota, used)) = self.quotas.of_project(project, true).await? {
            found.files = quota;
            found.files_free = quota.saturating_sub(used);
        }
        Ok(found)
    }

    /// Takes no more requests, waits for those that are under way (what is done in many parts ends
    /// after the next one), puts everything on stable storage, and lets go of the dataset (also
    /// when that fails).
    pub async fn close(&self) -> Result<()> {
        self.opening.begin_to_close();
        // What is to be stored some time, while operations still work.
        if !self.is_read_only() && !self.is_closed() {
            self.store_access_times().await;
            self.unlinked.free_listed().await;
        }
        if self.opening.shut().await {
            return Ok(());
        }
        let outcome = self.files.commit(0).await;
        self.opening.let_go();
        outcome
    }

    /// Whether [`Filesystem::close`] has shut the filesystem.
    pub fn is_closed(&self) -> bool {
        self.opening.is_closed()
    }
}
