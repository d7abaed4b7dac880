//! Opening a dataset's filesystem: its parts are found by the master node and put together, then
//! the log of a crash is replayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dataset::{Dataset, DatasetSettings};
use device::{BoxFuture, World};
use format::{ObjectId, ObjsetKind};
use object::{Sa, Zap};
use tokio::sync::watch;
use zil::Zil;

use crate::changes::Outlet;
use crate::counting::Counting;
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::filesystem::Filesystem;
use crate::names::NameRules;
use crate::node::NodeTable;
use crate::opening::Opening;
use crate::quota::Quotas;
use crate::replay::replay_log;
use crate::unlinked::Unlinked;
use crate::xattr::Xattrs;
use crate::znode::{TABLE, ZPL_VERSION, ZPL_VERSION_SA};

impl Filesystem {
    /// Opens a dataset's filesystem. After a crash the log is replayed, and files that were
    /// unlinked but open are freed in the background. Properties are followed as they change. The
    /// dataset is held until [`Filesystem::close`].
    ///
    /// # Errors
    /// [`FsError::CannotOpen`] where the dataset is no filesystem or is of a newer version, and
    /// errors of reading.
    pub async fn open(dataset: Dataset, world: World) -> Result<Arc<Self>> {
        let filesystem = open_quietly(dataset, world).await?;
        begin_upkeep(&filesystem);
        Ok(filesystem)
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
        open_boxed(dataset, world, settings, None).await
    }
}

/// Opens a dataset's filesystem as [`Filesystem::open`] does, but changes nothing by itself until
/// [`begin_upkeep`], other than by what a crash left in the log. So a mount to read from keeps what
/// was received as it is, for the next stream. And whoever used another state of it can retain
/// files before, that were unlinked but open.
///
/// # Errors
/// As [`Filesystem::open`].
pub async fn open_quietly(dataset: Dataset, world: World) -> Result<Arc<Filesystem>> {
    let log = dataset.log().cloned();
    let settings = dataset.watch_settings();
    open_boxed(dataset, world, settings, log).await
}

/// Begins, once, what a filesystem that is used to change it does by itself: counts what was there
/// before its pool could count it, or what was received raw, and frees files that were unlinked but
/// open. Nothing where `readonly` is on (`zfsvfs_setup`, module/os/linux/zfs/zfs_vfsops.c; the
/// accounting of what was received waits for a writable mount there as well,
/// `dmu_objset_own` in module/zfs/dmu_objset.c).
pub fn begin_upkeep(filesystem: &Filesystem) {
    if filesystem.is_read_only() || filesystem.is_kept_up.swap(true, Ordering::AcqRel) {
        return;
    }
    if let Ok(dataset) = filesystem.dataset() {
        dataset.begin_to_count();
    }
    filesystem.files.counting.begin();
    filesystem.unlinked.free_left();
}

/// Whether [`begin_upkeep`] has begun it.
pub fn is_kept_up(filesystem: &Filesystem) -> bool {
    filesystem.is_kept_up.load(Ordering::Acquire)
}

/// In a box: what waits for it would else be a future too deep for the compiler, and each crate
/// that opens a filesystem would compile all of it again.
fn open_boxed(
    dataset: Dataset,
    world: World,
    settings: watch::Receiver<DatasetSettings>,
    log: Option<Arc<Zil>>,
) -> BoxFuture<'static, Result<Arc<Filesystem>>> {
    Box::pin(open_with(dataset, world, settings, log))
}

async fn open_with(
    dataset: Dataset,
    world: World,
    settings: watch::Receiver<DatasetSettings>,
    log: Option<Arc<Zil>>,
) -> Result<Arc<Filesystem>> {
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
    let queue = match number("DELETE_QUEUE").await? {
        Some(id) => Some(Zap::hold(&objset, ObjectId::new(id)).await?),
        None => None,
    };
    let nodes = NodeTable::new(objset.pipeline().cache().charge());
    let opening = Arc::new(Opening::new(dataset, settings, world));
    let files = Arc::new(Files {
        opening: Arc::clone(&opening),
        counting: Counting::new(&opening, &objset),
        log,
        objset,
        sa,
        version,
        rules,
        root,
        nodes,
        outlet: Outlet::default(),
    });
    let unlinked = Unlinked::new(&files, queue);
    let quotas = Arc::new(Quotas::load(&files, &master).await?);
    let filesystem = Arc::new(Filesystem {
        xattrs: Xattrs::new(&files, &quotas, &unlinked),
        opening,
        files,
        quotas,
        unlinked,
        master,
        renames: tokio::sync::Mutex::default(),
        is_kept_up: AtomicBool::new(false),
    });
    filesystem.files.node(root).await?.entries()?;
    replay_log(&filesystem).await?;
    Ok(filesystem)
}
