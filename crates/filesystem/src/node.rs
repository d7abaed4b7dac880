//! Files in memory, and the table of them.
//!
//! A [`Node`] is one object of the filesystem with its attributes decoded. The table holds one node
//! per object at most, so its locks and its state are the object's.
//!
//! # Locks, in the order in which they are taken
//!
//! 0. a file's lock of extended attributes ([`Node::xattrs`]); the turn of who frees unlinked files
//!    (`Unlinked::reaping`);
//! 1. the filesystem's lock of renames across directories (`Filesystem::renames`);
//! 2. range locks of a file's data ([`Node::ranges`]);
//! 3. [`Node::change`]: held by whoever changes the object, from before it joins a txg until the
//!    transaction is dropped, so that changes of one object reach the txgs in the order in which
//!    they are made. Several are taken parents before children, a file before its directory of
//!    extended attributes, and siblings by object number;
//! 4. the filesystem's lock of its delete queue (`Unlinked::lock`);
//! 5. the transaction (`Dataset::assign`): waits for the open txg, never for a lock above;
//! 6. [`Node::state`] and a shard of the table: never across an await.
//!
//! The intent log is committed (which may wait for a txg) only after all of these are gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use dataset::range_lock::RangeLock;
use object::{Object, Zap};
use parking_lot::{Mutex, RwLock};
use tokio::sync::OwnedMutexGuard;

use crate::error::{FsError, Result};
use crate::znode::Znode;

/// Extended attributes kept in the dnode: names and values in the order of their nvlist.
pub(crate) type SaXattrs = Arc<Vec<(Vec<u8>, Bytes)>>;

/// What is known of a file; newest, that is including changes not yet on disk.
pub(crate) struct State {
    pub(crate) znode: Znode,
    /// The access time here is newer than the stored one.
    pub(crate) atime_dirty: bool,
    /// Extended attributes in the dnode, when they have been read.
    pub(crate) sa_xattrs: Option<SaXattrs>,
}

/// One file in memory.
pub(crate) struct Node {
    pub(crate) ino: u64,
    pub(crate) object: Object,
    /// The entries of a directory.
    pub(crate) zap: Option<Zap>,
    pub(crate) ranges: RangeLock,
    pub(crate) xattrs: tokio::sync::RwLock<()>,
    pub(crate) change: Arc<tokio::sync::Mutex<()>>,
    pub(crate) state: RwLock<State>,
    /// The object was freed: whoever still has this node must not touch it.
    pub(crate) is_gone: AtomicBool,
}

impl Node {
    pub(crate) fn new(ino: u64, object: Object, zap: Option<Zap>, znode: Znode) -> Arc<Self> {
        Arc::new(Self {
            ino,
            object,
            zap,
            ranges: RangeLock::default(),
            xattrs: tokio::sync::RwLock::default(),
            change: Arc::default(),
            state: RwLock::new(State {
                znode,
                atime_dirty: false,
                sa_xattrs: None,
            }),
            is_gone: AtomicBool::new(false),
        })
    }

    /// One that was just made, locked: whoever finds its name waits until this is dropped before he
    /// does anything with it that is logged.
    pub(crate) fn new_locked(ino: u64, object: Object, zap: Option<Zap>, znode: Znode) -> Locked {
        let node = Self::new(ino, object, zap, znode);
        let guard = Arc::clone(&node.change).try_lock_owned();
        Locked {
            _guard: guard.expect("nobody else has a node that was just made"),
            node,
        }
    }

    /// A copy of its attributes.
    pub(crate) fn znode(&self) -> Znode {
        self.state.read().znode
    }

    /// Its entries, if it is a directory.
    pub(crate) fn entries(&self) -> Result<&Zap> {
        self.zap
            .as_ref()
            .ok_or(FsError::NotDirectory { ino: self.ino })
    }

    /// Keeps others from changing it. Fails if it was freed meanwhile, or when its dnode cannot be
    /// written anew.
    pub(crate) async fn lock(self: &Arc<Self>) -> Result<Locked> {
        let guard = Arc::clone(&self.change).lock_owned().await;
        if self.is_gone.load(Ordering::Acquire) {
            return Err(FsError::Stale { ino: self.ino });
        }
        self.object.prepare_dnode().await?;
        Ok(Locked {
            node: Arc::clone(self),
            _guard: guard,
        })
    }
}

/// A node that nobody else changes while this lives.
pub(crate) struct Locked {
    pub(crate) node: Arc<Node>,
    _guard: OwnedMutexGuard<()>,
}

impl std::ops::Deref for Locked {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.node
    }
}

const SHARDS: usize = 64;
/// Nodes that may stay in a shard though nobody uses them.
const IDLE_NODES_MAX: usize = 1024;

#[derive(Default)]
struct Shard {
    nodes: HashMap<u64, Arc<Node>>,
    /// Users counted by `Filesystem::retain`: what the kernels of mounts know.
    retained: HashMap<u64, u64>,
    /// Users counted by `Unlinked::hold`: requests.
    held: HashMap<u64, u64>,
    /// Counts what left the table, so that a load that overlaps is done again.
    departures: u64,
}

/// All files in memory.
pub(crate) struct NodeTable {
    shards: Vec<Mutex<Shard>>,
}

impl NodeTable {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, ino: u64) -> &Mutex<Shard> {
        &self.shards[(ino % SHARDS as u64) as usize]
    }

    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Node>> {
        self.shard(ino).lock().nodes.get(&ino).cloned()
    }

    /// To be read before an object is loaded, and given to [`Self::insert`].
    pub(crate) fn epoch(&self, ino: u64) -> u64 {
        self.shard(ino).lock().departures
    }

    /// Puts a loaded node into the table, or returns the one that is there. `Err` gives the node's
    /// load back: something left the table meanwhile, so what was loaded may be old.
    pub(crate) fn insert(&self, node: Arc<Node>, epoch: u64) -> std::result::Result<Arc<Node>, ()> {
        let mut shard = self.shard(node.ino).lock();
        if let Some(there) = shard.nodes.get(&node.ino) {
            return Ok(Arc::clone(there));
        }
        if shard.departures != epoch {
            return Err(());
        }
        if shard.nodes.len() >= IDLE_NODES_MAX {
            let before = shard.nodes.len();
            // Nobody else can get hold of one whose only reference is the table's while the shard
            // is locked. One in eight goes, and those with news stay.
            let mut left = before / 8;
            shard.nodes.retain(|_, node| {
                let idle =
                    left > 0 && Arc::strong_count(node) == 1 && !node.state.read().atime_dirty;
                left -= usize::from(idle);
                !idle
            });
            shard.departures += u64::from(shard.nodes.len() != before);
        }
        shard.nodes.insert(node.ino, Arc::clone(&node));
        Ok(node)
    }

    /// Puts a node just created into the table.
    pub(crate) fn insert_new(&self, node: Arc<Node>) {
        let mut shard = self.shard(node.ino).lock();
        shard.departures += 1;
        shard.nodes.insert(node.ino, node);
    }

    /// Takes the node of an object that is being freed out of the table.
    pub(crate) fn remove(&self, node: &Node) {
        node.is_gone.store(true, Ordering::Release);
        let mut shard = self.shard(node.ino).lock();
        shard.departures += 1;
        shard.nodes.remove(&node.ino);
    }

    pub(crate) fn retain(&self, ino: u64, count: u64) {
        if count > 0 {
            *self.shard(ino).lock().retained.entry(ino).or_default() += count;
        }
    }

    /// Whether that was the last user.
    pub(crate) fn release(&self, ino: u64, count: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        take(&mut shard.retained, ino, count) && !shard.held.contains_key(&ino)
    }

    pub(crate) fn hold(&self, ino: u64) {
        *self.shard(ino).lock().held.entry(ino).or_default() += 1;
    }

    /// Whether that was the last user.
    pub(crate) fn let_go(&self, ino: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        take(&mut shard.held, ino, 1) && !shard.retained.contains_key(&ino)
    }

    /// Whether the kernel of a mount knows it.
    pub(crate) fn is_known(&self, ino: u64) -> bool {
        self.shard(ino).lock().retained.contains_key(&ino)
    }

    /// All that kernels know, and how often each.
    pub(crate) fn retained(&self) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(
                shard
                    .lock()
                    .retained
                    .iter()
                    .map(|(ino, users)| (*ino, *users)),
            );
        }
        found
    }

    /// Whether anybody uses it.
    pub(crate) fn is_retained(&self, ino: u64) -> bool {
        let shard = self.shard(ino).lock();
        shard.retained.contains_key(&ino) || shard.held.contains_key(&ino)
    }

    /// Nodes whose access time is to be stored.
    pub(crate) fn with_dirty_atime(&self) -> Vec<Arc<Node>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            found.extend(
                shard
                    .nodes
                    .values()
                    .filter(|node| node.state.read().atime_dirty)
                    .cloned(),
            );
        }
        found
    }
}

/// Takes users back; whether none is left of those that there were.
fn take(users: &mut HashMap<u64, u64>, ino: u64, count: u64) -> bool {
    let Some(left) = users.get_mut(&ino) else {
        return false;
    };
    *left = left.saturating_sub(count);
    if *left > 0 {
        return false;
    }
    users.remove(&ino);
    true
}
