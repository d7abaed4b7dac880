//! Opening a dataset's filesystem: its parts are found by the master node and put together, then
//! the log of a crash is replayed.

use std::sync::Arc;

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
        let filesystem = open_again(dataset, world).await?;
        filesystem.unlinked.free_left();
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

/// Opens a dataset's filesystem as [`Filesystem::open`] does, for those who used another state of
/// it: files that were unlinked but open stay until [`Unlinked::free_left`], so that whoever has
/// one open can retain it before.
///
/// # Errors
/// As [`Filesystem::open`].
pub async fn open_again(dataset: Dataset, world: World) -> Result<Arc<Filesystem>> {
    let log = dataset.log().cloned();
    let settings = dataset.watch_settings();
    open_boxed(dataset, world, settings, log).await
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
    });
    let read_only = filesystem.is_read_only();
    filesystem.files.node(root).await?.entries()?;
    replay_log(&filesystem).await?;
    if !read_only {
        filesystem.dataset()?.begin_to_count();
        filesystem.files.counting.begin();
    }
    Ok(filesystem)
}
