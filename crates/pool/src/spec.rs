//! What a caller asks for: a pool to create, a pool to import.

use std::sync::Arc;

use dataset::ObjsetInit;
use format::{Guid, Txg};
use zio::{Cache, SharedCache};

use crate::{EventSink, FoundPool, HostIdentity, VdevSpec};

/// Bytes that the cache of a pool has which is the only one in its process, as in tools that work
/// without a server.
const CACHE_BYTES: u64 = 512 << 20;

/// Which features a new pool gets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FeatureChoice {
    /// Every feature that this release supports, as `zpool create` does.
    #[default]
    All,
    /// None but those named in the properties (`zpool create -d`).
    None,
}

/// A pool to create.
#[derive(Clone)]
pub struct CreateSpec {
    /// The pool's name.
    pub name: String,
    /// Its vdevs.
    pub vdevs: Vec<VdevSpec>,
    /// Pool properties (`-o`), including `feature@NAME` and `ashift`.
    pub properties: Vec<(String, String)>,
    /// Which features are enabled.
    pub features: FeatureChoice,
    /// Properties of the root dataset (`-O`).
    pub root_properties: Vec<(String, String)>,
    /// Fills the root dataset's object set.
    pub root_init: Arc<dyn ObjsetInit>,
    /// Prefix of all mount points (`-R`); not stored.
    pub altroot: Option<String>,
    /// Overwrite devices that hold another pool.
    pub force: bool,
    /// Who creates it.
    pub host: HostIdentity,
    /// Who is told what happens to it, as long as it is open.
    pub events: Option<Arc<dyn EventSink>>,
    /// The cache that it has together with other pools; without one it gets its own.
    pub cache: Option<Arc<SharedCache>>,
}

impl CreateSpec {
    /// A part of the cache for the new pool.
    pub(crate) fn cache(&self) -> Cache {
        part_of(self.cache.as_ref())
    }
}

/// A part of a cache for one more pool, or a cache of its own.
fn part_of(shared: Option<&Arc<SharedCache>>) -> Cache {
    match shared {
        Some(shared) => shared.join(),
        None => Cache::new(CACHE_BYTES),
    }
}

/// Which of a pool's past states to import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rewind {
    /// The newest, or none.
    #[default]
    No,
    /// The newest that can be read, at most two transaction groups back: so long, nothing that was
    /// freed is written over (`-F`).
    Recent,
    /// The newest that can be read (`-FX`).
    Extreme,
    /// The newest that can be read of those not newer than this (`-T`).
    To(Txg),
    /// The pool's checkpoint (`--rewind-to-checkpoint`).
    Checkpoint,
}

/// What an import does where devices of the intent log are missing or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingLogs {
    /// It is refused.
    #[default]
    Refused,
    /// It goes on if nothing was logged on them that is not in the pool: nothing is lost without
    /// them.
    AcceptedIfUnused,
    /// It goes on, whatever is lost (`zpool import -m`); logs end where they cannot be read.
    Accepted,
}

/// A pool to import.
#[derive(Clone)]
pub struct ImportSpec {
    /// What [`crate::scan`] found.
    pub found: FoundPool,
    /// Give it this name.
    pub new_name: Option<String>,
    /// `new_name` holds only until the pool is exported (`-t`).
    pub temporary_name: bool,
    /// Never write to it.
    pub read_only: bool,
    /// Import although another host seems to use it.
    pub force: bool,
    /// Import a destroyed pool (`-D`).
    pub destroyed: bool,
    /// Whether to import it without all devices of the intent log.
    pub missing_logs: MissingLogs,
    /// Import it although top-level vdevs that hold data are missing or cannot be opened, which
    /// goes read-only alone: blocks of which all copies are on those cannot be read
    /// (`zfs_max_missing_tvds`, module/zfs/spa.c).
    pub missing_data: bool,
    /// Do not watch whether another host uses the pool: for who only looks at it.
    pub unwatched: bool,
    /// The pool is closed again at once: nobody is kept from importing it meanwhile, as who imports
    /// it to read it does.
    pub only_looked_at: bool,
    /// Which state to import.
    pub rewind: Rewind,
    /// Pool properties to set (`-o`).
    pub properties: Vec<(String, String)>,
    /// Prefix of all mount points (`-R`); not stored.
    pub altroot: Option<String>,
    /// Who imports it.
    pub host: HostIdentity,
    /// Who is told what happens to it, as long as it is open.
    pub events: Option<Arc<dyn EventSink>>,
    /// The cache that it has together with other pools; without one it gets its own.
    pub cache: Option<Arc<SharedCache>>,
    /// Hot spares wait until somebody has them stand in; see [`crate::leave_spares_to_people`].
    pub spares_by_hand: bool,
}

impl ImportSpec {
    /// Imports what was found, for reading and writing, under its own name.
    pub fn new(found: FoundPool, host: HostIdentity) -> Self {
        Self {
            found,
            new_name: None,
            temporary_name: false,
            read_only: false,
            force: false,
            destroyed: false,
            missing_logs: MissingLogs::Refused,
            missing_data: false,
            unwatched: false,
            only_looked_at: false,
            rewind: Rewind::No,
            properties: Vec::new(),
            altroot: None,
            host,
            events: None,
            cache: None,
            spares_by_hand: false,
        }
    }

    /// A part of the cache for what is opened by this.
    pub(crate) fn cache(&self) -> Cache {
        part_of(self.cache.as_ref())
    }

    /// The pool's identity.
    pub fn guid(&self) -> Guid {
        self.found.guid
    }
}
