//! The filesystem as a whole: opening, files by number, transactions, closing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use dataset::{Dataset, DatasetSettings, DirtyEstimate};
use device::{BoxFuture, World};
use format::{OBJSET_FLAG_PROJECT_QUOTA, ObjectId, ObjectType, ObjsetKind};
use object::{ObjectInfo, ObjectSet, Sa, SaAttribute, Zap};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use zil::{LogRecord, SyncMode, Zil};
use zio::Tx;

use crate::error::{FsError, Result};
use crate::names::NameRules;
use crate::node::{Locked, Node, NodeTable};
use crate::quota::Quotas;
use crate::types::{Attributes, FileKind, FsStatistics, MountChoices, Time};
use crate::unlinked::Reaps;
use crate::znode::{
    self, Attribute, TABLE, ZPL_VERSION, ZPL_VERSION_FUID, ZPL_VERSION_SA, Znode, attr, pflags,
};

/// A filesystem, open.
pub struct Filesystem {
    pub(crate) me: Weak<Filesystem>,
    /// The hold on the dataset; gone when closed.
    hold: RwLock<Option<Dataset>>,
    settings: watch::Receiver<DatasetSettings>,
    /// What a mount does otherwise.
    mount_choices: RwLock<MountChoices>,
    log: Option<Arc<Zil>>,
    pub(crate) objset: Arc<ObjectSet>,
    pub(crate) world: World,
    pub(crate) sa: Arc<Sa>,
    pub(crate) version: u64,
    pub(crate) rules: NameRules,
    pub(crate) root: u64,
    pub(crate) master: Zap,
    pub(crate) unlinked: Option<Zap>,
    pub(crate) quotas: Quotas,
    pub(crate) nodes: NodeTable,
    pub(crate) renames: tokio::sync::Mutex<()>,
    pub(crate) unlinked_lock: tokio::sync::Mutex<()>,
    pub(crate) reaps: Mutex<Reaps>,
    /// Held by who frees one of them.
    pub(crate) reaping: tokio::sync::Mutex<()>,
    /// Held shared by every operation, exclusively to close.
    gate: tokio::sync::RwLock<()>,
    is_closing: AtomicBool,
    is_closed: AtomicBool,
    /// Everything is counted that can be.
    pub(crate) counts_all: AtomicBool,
    /// Somebody counts what was there before.
    pub(crate) is_counting: AtomicBool,
    /// The log of a crash is being replayed: object numbers and times come from it.
    pub(crate) is_replaying: AtomicBool,
}

/// Keeps the filesystem from being closed during an operation.
pub(crate) type Entered<'a> = tokio::sync::RwLockReadGuard<'a, ()>;

impl Filesystem {
    /// Opens a dataset's filesystem. After a crash the log is replayed, and files that were
    /// unlinked but open are freed in the background. Properties are followed as they change. The
    /// dataset is held until [`Filesystem::close`].
    ///
    /// # Errors
    /// [`FsError::CannotOpen`] where the dataset is no filesystem or is of a newer version, and
    /// errors of reading.
    pub async fn open(dataset: Dataset, world: World) -> Result<Arc<Self>> {
        let log = dataset.log().cloned();
        let settings = dataset.watch_settings();
        Self::open_boxed(dataset, world, settings, log).await
    }

    /// Opens the filesystem on a dataset as it is on disk, to look at it: nothing is written, and
    /// an intent log that a crash left stays as it is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_to_look(dataset: Dataset, world: World) -> Result<Arc<Self>> {
        let mut settings = dataset.settings();
        settings.read_only = true;
        // They are never changed.
        let (_, settings) = watch::channel(settings);
        Self::open_boxed(dataset, world, settings, None).await
    }

    /// In a box: what waits for it would else be a future too deep for the compiler, and each crate
    /// that opens a filesystem would compile all of it again.
    fn open_boxed(
        dataset: Dataset,
        world: World,
        settings: watch::Receiver<DatasetSettings>,
        log: Option<Arc<Zil>>,
    ) -> BoxFuture<'static, Result<Arc<Self>>> {
        Box::pin(Self::open_with(dataset, world, settings, log))
    }

    async fn open_with(
        dataset: Dataset,
        world: World,
        settings: watch::Receiver<DatasetSettings>,
        log: Option<Arc<Zil>>,
    ) -> Result<Arc<Self>> {
        let name = dataset.name();
        let cannot = |what: &str| FsError::CannotOpen {
            name: name.clone(),
            what: what.into(),
        };
        let objset = Arc::clone(dataset.objset());
        if objset.kind() != ObjsetKind::Filesystem {
            return Err(cannot("it is not a filesystem; mount filesystems only"));
        }
        let master = Zap::hold(&objset, ObjectId::MASTER_NODE).await?;
        let number = async |key: &str| master.lookup_u64(key).await;
        let version = number("VERSION")
            .await?
            .ok_or_else(|| cannot("its master node has no VERSION; scrub the pool"))?;
        if version == 0 || version > ZPL_VERSION {
            return Err(FsError::CannotOpen {
                name: name.clone(),
                what: format!(
                    "its ZPL version is {version}, and this program knows 1 to {ZPL_VERSION}; use \
                     a newer release"
                ),
            });
        }
        let root = number("ROOT")
            .await?
            .ok_or_else(|| cannot("its master node has no ROOT; scrub the pool"))?;
        let rules = NameRules::new(
            number("normalization").await?.unwrap_or(0),
            number("casesensitivity").await?.unwrap_or(0),
            number("utf8only").await?.unwrap_or(0) != 0,
        );
        let sa_master = if version >= ZPL_VERSION_SA {
            number("SA_ATTRS").await?
        } else {
            None
        };
        let sa = Sa::setup(&objset, ObjectId::new(sa_master.unwrap_or(0)), &TABLE).await?;
        let unlinked = match number("DELETE_QUEUE").await? {
            Some(id) => Some(Zap::hold(&objset, ObjectId::new(id)).await?),
            None => None,
        };
        let quotas = Quotas::load(&objset, &master).await?;
        let read_only = settings.borrow().read_only;
        let filesystem = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            hold: RwLock::new(Some(dataset)),
            settings,
            log,
            objset,
            world,
            sa,
            version,
            rules,
            root,
            master,
            unlinked,
            quotas,
            nodes: NodeTable::new(),
            renames: tokio::sync::Mutex::default(),
            unlinked_lock: tokio::sync::Mutex::default(),
            reaps: Mutex::default(),
            reaping: tokio::sync::Mutex::default(),
            gate: tokio::sync::RwLock::default(),
            mount_choices: RwLock::default(),
            is_closing: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            counts_all: AtomicBool::new(false),
            is_counting: AtomicBool::new(false),
            is_replaying: AtomicBool::new(false),
        });
        filesystem.node(root).await?.entries()?;
        filesystem.replay_log().await?;
        if !read_only {
            filesystem.dataset()?.begin_to_count();
            filesystem.spawn_drain();
            filesystem.count_in_background();
        }
        Ok(filesystem)
    }

    /// Replays the log of a crash, also where `readonly` is on: what it has was promised, and must
    /// not come over what is written when the property is off again (`zfsvfs_setup`,
    /// module/os/linux/zfs/zfs_vfsops.c).
    async fn replay_log(self: &Arc<Self>) -> Result<()> {
        let Some(log) = self.log.as_ref().filter(|log| log.needs_replay()) else {
            return Ok(());
        };
        let dataset = self.dataset()?;
        // What the log changes is counted like the rest.
        dataset.begin_to_count();
        self.is_replaying.store(true, Ordering::Release);
        let outcome = log.replay(&crate::replay::Replayer::new(self)).await;
        self.is_replaying.store(false, Ordering::Release);
        let (dataset, records) = (dataset.name(), outcome?);
        tracing::info!(dataset, records, "replayed the intent log");
        Ok(())
    }

    /// The dataset: another hold on it.
    ///
    /// # Errors
    /// [`FsError::Closed`] after [`Filesystem::close`].
    pub fn dataset(&self) -> Result<Dataset> {
        self.hold.read().clone().ok_or(FsError::Closed)
    }

    /// Object number of the root directory.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.settings().read_only
    }

    /// Whether two names are the same only if all their bytes are: neither case nor form of
    /// characters is ignored.
    pub fn compares_names_exactly(&self) -> bool {
        self.rules.is_plain()
    }

    /// Whether POSIX access control lists are kept (`acltype=posix`).
    pub fn has_posix_acls(&self) -> bool {
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
    pub fn choose_for_mount(&self, choices: MountChoices) {
        *self.mount_choices.write() = choices;
    }

    /// What [`Self::choose_for_mount`] chose last.
    pub fn mount_choices(&self) -> MountChoices {
        *self.mount_choices.read()
    }

    pub(crate) fn uses_fuids(&self) -> bool {
        self.version >= ZPL_VERSION_FUID
    }

    /// Whether new files have a project, and what projects use is counted.
    pub fn has_projects(&self) -> bool {
        self.version >= ZPL_VERSION_SA && self.objset.counted() & OBJSET_FLAG_PROJECT_QUOTA != 0
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

    /// The file with this object number.
    pub(crate) async fn node(&self, ino: u64) -> Result<Arc<Node>> {
        loop {
            if let Some(node) = self.nodes.get(ino) {
                return Ok(node);
            }
            let epoch = self.nodes.epoch(ino);
            let node = self.load(ino).await?;
            if let Ok(node) = self.nodes.insert(node, epoch) {
                return Ok(node);
            }
        }
    }

    async fn load(&self, ino: u64) -> Result<Arc<Node>> {
        if ino == 0 || ino >= ObjectId::LIMIT {
            return Err(FsError::Stale { ino });
        }
        let object = match self.objset.hold(ObjectId::new(ino)).await {
            Err(error) if error.is_not_found() => return Err(FsError::Stale { ino }),
            other => other?,
        };
        let info = object.info();
        let is_file = info.bonus_type == ObjectType::SA
            || info.bonus_type == ObjectType::ZNODE && info.bonus_bytes >= znode::OLD_ZNODE_BYTES;
        if !is_file {
            return Err(FsError::Stale { ino });
        }
        let attributes = self.sa.get_all(&object).await?;
        let znode = Znode::parse(ino, info.bonus_type, &attributes)?;
        let zap = if znode.is_directory() {
            Some(if self.rules.is_plain() {
                Zap::open(object.clone()).await?
            } else {
                Zap::open_with_normalizer(object.clone(), self.normalizer()).await?
            })
        } else {
            None
        };
        Ok(Node::new(ino, object, zap, znode))
    }

    /// The form by which directories hash names.
    pub(crate) fn normalizer(&self) -> object::Normalizer {
        let rules = self.rules;
        Arc::new(move |name: &[u8]| rules.hashed_form(name))
    }

    /// A new directory's ZAP, hashing names by the filesystem's rules.
    pub(crate) fn with_rules(&self, zap: Zap) -> Zap {
        if self.rules.is_plain() {
            zap
        } else {
            zap.with_normalizer(self.normalizer())
        }
    }

    /// Joins the open txg.
    pub(crate) async fn assign(&self, estimate: DirtyEstimate) -> Result<Tx> {
        self.count_in_background();
        Ok(self.dataset()?.assign(estimate).await?)
    }

    /// Stores `znode` as a file's attributes: those in `changed`, and `more`.
    pub(crate) async fn store(
        &self,
        tx: &Tx,
        node: &Locked,
        znode: Znode,
        changed: &[SaAttribute],
        more: impl IntoIterator<Item = Attribute>,
    ) -> Result<()> {
        let more: Vec<Attribute> = more.into_iter().collect();
        let atime_dirty = node.state.read().atime_dirty && !changed.contains(&attr::ATIME);
        let all = changed
            .iter()
            .copied()
            .chain(atime_dirty.then_some(attr::ATIME));
        let fixed = all.clone().map(|id| (id, znode.fixed(id)));
        if !more.is_empty() || !self.sa.try_set(&node.object, tx, fixed)? {
            let mut list: Vec<Attribute> = all.map(|id| znode.get(id)).collect();
            list.extend(more);
            self.sa.set(&node.object, tx, &list).await?;
        }
        let mut state = node.state.write();
        // A read may have moved the access time on meanwhile.
        let atime_moved = !changed.contains(&attr::ATIME) && state.znode.atime != znode.atime;
        let atime = if atime_moved {
            state.znode.atime
        } else {
            znode.atime
        };
        state.znode = Znode { atime, ..znode };
        state.atime_dirty = atime_moved;
        Ok(())
    }

    /// Notes a change in the intent log.
    pub(crate) fn record(&self, tx: &Tx, record: LogRecord) {
        if let Some(log) = &self.log {
            log.record(tx, record);
        }
    }

    /// Logs several changes that no commit may tear apart.
    pub(crate) fn record_together<const N: usize>(&self, tx: &Tx, records: [LogRecord; N]) {
        if let Some(log) = &self.log {
            log.record_together(tx, records);
        }
    }

    /// Puts what was done to a file (0: to any) on stable storage. Call without locks and
    /// transaction. A filesystem that is read-only now was not when the change was made:
    /// `readonly` says so before its own txg, let alone that of the change, is on disk.
    pub(crate) async fn commit(&self, ino: u64) -> Result<()> {
        if self.replaying() {
            return Ok(());
        }
        Ok(self.dataset()?.commit(ObjectId::new(ino)).await?)
    }

    /// Ends an operation that changed something: waits for the log where `sync=always` asks for
    /// it. Call without locks and transaction.
    pub(crate) async fn finish(&self, ino: u64) -> Result<()> {
        if self.settings().sync == SyncMode::Always {
            self.commit(ino).await
        } else {
            Ok(())
        }
    }

    pub(crate) fn attributes_of(&self, node: &Node) -> Attributes {
        // Asked first: what is clean by now is all in what follows.
        let is_dirty = node.object.is_dirty();
        let znode = node.znode();
        let info = node.object.info();
        // A `.zfs` that is listed counts as a subdirectory (`zfs_getattr_fast`).
        let lists_control = node.ino == self.root && self.settings().snapdir == 1;
        let described = describe(
            node.ino,
            &znode,
            &info,
            u64::from(lists_control),
            self.settings().record_bytes,
        );
        Attributes {
            is_dirty,
            ..described
        }
    }

    /// All about an object.
    pub async fn attributes(&self, ino: u64) -> Result<Attributes> {
        let _entered = self.enter().await?;
        let node = self.node(ino).await?;
        Ok(self.attributes_of(&node))
    }

    /// Like [`Filesystem::attributes`] if the file is in memory: never waits.
    pub fn try_attributes(&self, ino: u64) -> Option<Attributes> {
        let _entered = self.try_enter()?;
        let node = self.nodes.get(ino)?;
        Some(self.attributes_of(&node))
    }

    /// Counts one more user of the object (a kernel's lookup, an open file): while there are any,
    /// an unlinked file keeps its content.
    pub fn retain(&self, ino: u64, count: u64) {
        self.nodes.retain(ino, count);
    }

    /// Takes back [`Filesystem::retain`]; the last one frees an unlinked file, in the background:
    /// returns whether it does. Nothing is lost if that does not happen any more: the delete queue
    /// has the file.
    pub fn release(&self, ino: u64, count: u64) -> bool {
        let is_unlinked = self.nodes.release(ino, count)
            && self
                .nodes
                .get(ino)
                .is_some_and(|node| node.state.read().znode.links == 0);
        if is_unlinked {
            self.spawn_reap(ino);
        }
        is_unlinked
    }

    /// Objects that have users, and how many each ([`Filesystem::retain`]).
    pub fn retained(&self) -> Vec<(u64, u64)> {
        self.nodes.retained()
    }

    /// Puts all changes of the object on stable storage.
    pub async fn sync_file(&self, ino: u64) -> Result<()> {
        let _entered = self.enter().await?;
        self.commit(ino).await
    }

    /// Puts all changes on stable storage.
    pub async fn sync_all(&self) -> Result<()> {
        self.store_access_times().await;
        let _entered = self.enter().await?;
        self.commit(0).await
    }

    /// Space and objects (`zfs_statvfs`, module/os/linux/zfs/zfs_vfsops.c).
    pub async fn statistics(&self) -> Result<FsStatistics> {
        const UNIT_BYTES: u64 = 512;
        let (referenced_bytes, available_bytes) = self.dataset()?.space();
        let free = available_bytes / UNIT_BYTES;
        let objects_free = free.min(ObjectId::LIMIT.saturating_sub(self.objset.object_count()));
        let name_bytes_max = self.name_bytes_max();
        Ok(FsStatistics {
            block_bytes: UNIT_BYTES as u32,
            io_bytes: self.settings().record_bytes,
            blocks: (referenced_bytes / UNIT_BYTES).saturating_add(free),
            blocks_free: free,
            files: objects_free.saturating_add(self.objset.object_count()),
            files_free: objects_free,
            name_bytes_max: name_bytes_max as u32,
        })
    }

    pub(crate) fn name_bytes_max(&self) -> usize {
        if self.settings().longname {
            crate::names::LONG_NAME_BYTES_MAX
        } else {
            crate::names::NAME_BYTES_MAX
        }
    }

    /// Takes no more requests, waits for those that are under way (what is done in many parts ends
    /// after the next one), puts everything on stable storage, and lets go of the dataset (also
    /// when that fails).
    pub async fn close(&self) -> Result<()> {
        self.is_closing.store(true, Ordering::Release);
        // What is to be stored some time, while operations still work.
        if !self.is_read_only() && !self.is_closed() {
            self.store_access_times().await;
            self.free_listed().await;
        }
        {
            let _all_out = self.gate.write().await;
            if self.is_closed.swap(true, Ordering::AcqRel) {
                return Ok(());
            }
        }
        let outcome = self.commit(0).await;
        self.hold.write().take();
        outcome
    }

    /// Whether [`Filesystem::close`] was called, which then waits for what is under way.
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

    /// Whether [`Filesystem::close`] has shut the filesystem.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

/// A user or group id as Linux shows it: ids with a domain (SMB's) have no number there.
pub(crate) fn id_of(fuid: u64) -> u32 {
    const NOBODY: u32 = 65534;
    u32::try_from(fuid).unwrap_or(NOBODY)
}

/// The pieces of a read in one.
pub(crate) fn join(pieces: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(pieces) {
        Ok([single]) => single,
        Err(pieces) => Bytes::from(pieces.concat()),
    }
}

/// Bytes of an object's blocks and of its dnode's slots (`dmu_object_size_from_db`,
/// module/zfs/dmu.c). What a disk says is used can be any number.
fn allocated_bytes(used_bytes: u64, slots: u8) -> u64 {
    (used_bytes.saturating_add(256) / 512 + u64::from(slots)).saturating_mul(512)
}

/// A file's attributes as `stat` shows them. `more_links` are shown though not stored;
/// `record_bytes` is the block size of what has none.
pub(crate) fn describe(
    ino: u64,
    znode: &Znode,
    info: &ObjectInfo,
    more_links: u64,
    record_bytes: u32,
) -> Attributes {
    let links = znode.links.saturating_add(more_links);
    let block_bytes = match znode.kind() {
        FileKind::Regular if znode.size > 0 => info.data_block_bytes,
        _ => record_bytes,
    };
    Attributes {
        ino,
        generation: znode.generation,
        kind: znode.kind(),
        mode: znode.mode & 0o7777,
        uid: id_of(znode.uid),
        gid: id_of(znode.gid),
        nlink: u32::try_from(links).unwrap_or(u32::MAX),
        size_bytes: znode.size,
        allocated_bytes: allocated_bytes(info.used_bytes, info.slots),
        block_bytes,
        rdev: znode::decode_rdev(znode.rdev),
        atime: znode.atime,
        mtime: znode.mtime,
        ctime: znode.ctime,
        crtime: znode.crtime,
        flags: znode.flags,
        project: (znode.flags & pflags::PROJID != 0).then(|| znode.project.unwrap_or(0)),
        parent: znode.parent,
        is_dirty: false,
    }
}

#[cfg(test)]
mod tests {
    use super::allocated_bytes;

    #[test]
    fn space_of_a_file_is_no_more_than_can_be_told() {
        assert_eq!(allocated_bytes(1000, 1), 1536);
        for used in [u64::MAX, u64::MAX - 255, u64::MAX - 600] {
            assert_eq!(allocated_bytes(used, 32), u64::MAX);
        }
    }
}
