//! A dataset that is open: a filesystem or a volume.

use std::sync::Arc;

use dataset::Dataset;
use device::World;
use filesystem::{Changes, Filesystem};
use format::ObjsetKind;
use volume::Volume;

use crate::error::Result;

/// A filesystem or a volume, open.
#[derive(Clone)]
pub(crate) enum Opened {
    Filesystem(Arc<Filesystem>),
    Volume(Arc<Volume>),
}

/// What a dataset is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// To be served: after a crash its log is replayed first.
    Serve,
    /// To be looked at as it is on disk: nothing is written, and a log is left as it is.
    Look,
}

impl Opened {
    /// Opens it; what changes in a filesystem is told by `changes`.
    pub(crate) async fn open(
        dataset: Dataset,
        manner: Manner,
        world: &World,
        changes: &Arc<Changes>,
    ) -> Result<Self> {
        let world = world.clone();
        let opened = match (dataset.objset_kind(), manner) {
            (ObjsetKind::Volume, _) => Self::Volume(Volume::open(dataset, world).await?),
            (_, Manner::Serve) => Self::Filesystem(filesystem::open_quietly(dataset, world).await?),
            (_, Manner::Look) => Self::Filesystem(Filesystem::open_to_look(dataset, world).await?),
        };
        if let Self::Filesystem(filesystem) = &opened {
            changes.attach(filesystem);
        }
        Ok(opened)
    }

    pub(crate) async fn close(&self) -> Result<()> {
        match self {
            Self::Filesystem(filesystem) => filesystem.close().await?,
            Self::Volume(volume) => volume.close().await?,
        }
        Ok(())
    }

    /// Whoever had files open in the state `before` has said so of those that are in this one.
    pub(crate) fn is_taken_over(&self, before: &Self) {
        if let (Self::Filesystem(now), Self::Filesystem(before)) = (self, before)
            && filesystem::is_kept_up(before)
        {
            filesystem::begin_upkeep(now);
        }
    }

    /// Has it do what `before`, whose place it takes, was told to do otherwise than its properties
    /// say.
    pub(crate) fn take_after(&self, before: &Self) {
        if let (Self::Filesystem(now), Self::Filesystem(before)) = (self, before) {
            now.choose_for_mount(before.mount_choices());
        }
    }
}

/// What can be leased: [`Filesystem`] and [`Volume`].
pub trait Served: Sized + sealed::Sealed {
    /// What it is called.
    #[doc(hidden)]
    const KIND: &'static str;
    /// Whether those who use it go on by themselves where another state takes its place.
    #[doc(hidden)]
    const GOES_ALONG: bool;
}

impl Served for Filesystem {
    const KIND: &'static str = "filesystem";
    const GOES_ALONG: bool = false;
}

impl Served for Volume {
    const KIND: &'static str = "volume";
    const GOES_ALONG: bool = true;
}

pub(crate) mod sealed {
    use super::*;

    pub trait Sealed: Send + Sync + 'static {
        #[allow(private_interfaces)]
        fn of(opened: &Opened) -> Option<Arc<Self>>;
    }

    impl Sealed for Filesystem {
        #[allow(private_interfaces)]
        fn of(opened: &Opened) -> Option<Arc<Self>> {
            match opened {
                Opened::Filesystem(filesystem) => Some(Arc::clone(filesystem)),
                Opened::Volume(_) => None,
            }
        }
    }

    impl Sealed for Volume {
        #[allow(private_interfaces)]
        fn of(opened: &Opened) -> Option<Arc<Self>> {
            match opened {
                Opened::Volume(volume) => Some(Arc::clone(volume)),
                Opened::Filesystem(_) => None,
            }
        }
    }
}
