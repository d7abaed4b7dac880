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
//!    they are made. Several are taken in the order of their [`Place`] (see `locking`);
//! 4. the lock of the master node and what it names (`Quotas::master_lock`);
//! 5. the transaction (`Dataset::assign`): waits for the open txg, never for a lock above;
//! 6. [`Node::state`] and a shard of the table: never across an await.
//!
//! The intent log is committed (which may wait for a txg) only after all of these are gone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use dataset::lock_order::{self, Held};
use dataset::range_lock::RangeLock;
use object::{Object, Zap};
use parking_lot::{Mutex, RwLock};
use tokio::sync::OwnedMutexGuard;
use zio::{Charge, Charged, Holder};

use crate::error::{FsError, Result};
use crate::listing::Listing;
use crate::rank::{Place, Rank};
use crate::znode::{Znode, is_of_xattr};

/// Extended attributes kept in the dnode: names and values in the order of their nvlist.
pub(crate) type SaXattrs = Arc<Vec<(Vec<u8>, Bytes)>>;

/// What is known of a file; newest, that is including changes not yet on disk.
pub(crate) struct State {
    pub(crate) znode: Znode,
    /// The access time here is newer than the stored one.
    pub(crate) atime_dirty: bool,
    /// Extended attributes in the dnode, when they have been read.
    sa_xattrs: Option<SaXattrs>,
    /// There are none in the dnode, and nothing has to be read to know that.
    lacks_sa_xattrs: bool,
    /// What the node takes in memory.
    charged: Charged,
}

impl State {
    /// Extended attributes in the dnode, if they have been read.
    pub(crate) fn sa_xattrs(&self) -> Option<&SaXattrs> {
        self.sa_xattrs.as_ref()
    }

    /// Whether there surely are no extended attributes in the dnode.
    pub(crate) fn lacks_sa_xattrs(&self) -> bool {
        self.lacks_sa_xattrs
    }

    /// Keeps what the extended attributes in the dnode are.
    pub(crate) fn keep_sa_xattrs(&mut self, list: SaXattrs) {
        let one = |(name, value): &(Vec<u8>, Bytes)| XATTR_BYTES + name.len() + value.len();
        let bytes = NODE_BYTES + list.iter().map(one).sum::<usize>();
        self.charged.resize(bytes as u64);
        self.lacks_sa_xattrs = list.is_empty();
        self.sa_xattrs = Some(list);
    }
}

/// What a node takes in memory, in bytes: beside itself what its locks, its handle on the object
/// and its place in the table have in allocations of their own. The allocator rounds up by an
/// eighth on average.
const NODE_BYTES: usize = (size_of::<Node>() + 384) / 8 * 9;
/// The same of an extended attribute, but for its name and value.
const XATTR_BYTES: usize = size_of::<(Vec<u8>, Bytes)>() + 64;

/// One file in memory.
pub(crate) struct Node {
    pub(crate) ino: u64,
    pub(crate) object: Object,
    /// The entries of a directory.
    pub(crate) zap: Option<Zap>,
    /// How far who lists a directory is read ahead of.
    pub(crate) listing: Option<Arc<Listing>>,
    rank: Rank,
    pub(crate) ranges: RangeLock,
    pub(crate) xattrs: tokio::sync::RwLock<()>,
    pub(crate) change: Arc<tokio::sync::Mutex<()>>,
    pub(crate) state: RwLock<State>,
    /// The object was freed: whoever still has this node must not touch it.
    pub(crate) is_gone: AtomicBool,
    /// Somebody looked for it since memory was asked back.
    used: AtomicBool,
}

impl Node {
    /// With `lacks_sa_xattrs` its dnode has no extended attributes.
    pub(crate) fn new(
        ino: u64,
        object: Object,
        zap: Option<Zap>,
        znode: Znode,
        lacks_sa_xattrs: bool,
    ) -> Arc<Self> {
        let rank = match (is_of_xattr(&znode), zap.is_some()) {
            (false, true) => Rank::Directory,
            (false, false) => Rank::File,
            (true, true) => Rank::XattrDirectory,
            (true, false) => Rank::XattrFile,
        };
        let charge = object.objset().pipeline().cache().charge();
        let charged = charge.take(NODE_BYTES as u64);
        Arc::new(Self {
            ino,
            object,
            listing: zap.is_some().then(Arc::default),
            zap,
            rank,
            ranges: RangeLock::default(),
            xattrs: tokio::sync::RwLock::default(),
            change: Arc::default(),
            state: RwLock::new(State {
                znode,
                atime_dirty: false,
                sa_xattrs: None,
                lacks_sa_xattrs,
                charged,
            }),
            is_gone: AtomicBool::new(false),
            used: AtomicBool::new(true),
        })
    }

    /// One that was just made, locked: whoever finds its name waits until this is dropped before he
    /// does anything with it that is logged.
    pub(crate) fn new_locked(ino: u64, object: Object, zap: Option<Zap>, znode: Znode) -> Locked {
        let node = Self::new(ino, object, zap, znode, true);
        let guard = Arc::clone(&node.change).try_lock_owned();
        Locked {
            _guard: guard.expect("nobody else has a node that was just made"),
            _held: lock_order::holds(node.place().as_lock()),
            node,
        }
    }

    /// Its place in the order in which nodes are locked.
    pub(crate) fn place(&self) -> Place {
        Place(self.rank, self.ino)
    }

    /// A copy of its attributes.
    pub(crate) fn znode(&self) -> Znode {
        self.state.read().znode
    }

    fn has_no_name(&self) -> bool {
        self.state.read().znode.links == 0
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
        lock_order::about_to_wait(self.place().as_lock());
        let guard = Arc::clone(&self.change).lock_owned().await;
        if self.is_gone.load(Ordering::Acquire) {
            return Err(FsError::Stale { ino: self.ino });
        }
        self.object.prepare_dnode().await?;
        Ok(Locked {
            _guard: guard,
            _held: lock_order::holds(self.place().as_lock()),
            node: Arc::clone(self),
        })
    }
}

/// A node that nobody else changes while this lives.
pub(crate) struct Locked {
    _guard: OwnedMutexGuard<()>,
    _held: Held,
    /// Given up last: a node that nobody has may leave the table, and nobody may then lock another
    /// one of the same file while this one is locked.
    pub(crate) node: Arc<Node>,
}

impl std::ops::Deref for Locked {
    type Target = Node;
    fn deref(&self) -> &Node {
        &self.node
    }
}

const SHARDS: usize = 64;
/// Room for so many entries in a map is kept though it has few.
const ROOM_MIN: usize = 64;

/// Who uses a file that may have left the table.
#[derive(Default)]
struct Users {
    /// Counted by `Filesystem::retain`: what the kernels of mounts know.
    known: u64,
    /// Counted by `Unlinked::hold`: requests.
    held: u64,
    /// It has no name, or it is not known whether it has: the last user has it looked at. The node
    /// cannot tell, as it may be gone from memory by then.
    may_be_unlinked: bool,
}

struct Shard {
    nodes: HashMap<u64, Arc<Node>>,
    users: HashMap<u64, Users>,
    /// What `users` takes.
    charged: Charged,
    /// Counts what left the table, so that a load that overlaps is done again.
    departures: u64,
}

impl Shard {
    /// The users of a file, to which one is added.
    fn users(&mut self, ino: u64) -> &mut Users {
        if self.users.len() == self.users.capacity() {
            self.users.reserve(1);
            self.charge_users();
        }
        let Self { nodes, users, .. } = self;
        users.entry(ino).or_insert_with(|| Users {
            may_be_unlinked: nodes.get(&ino).is_none_or(|node| node.has_no_name()),
            ..Users::default()
        })
    }

    /// Takes users of a file back. Whether none is left, and the file has no name or may have none.
    fn leave(&mut self, ino: u64, take: impl FnOnce(&mut Users)) -> bool {
        let Some(users) = self.users.get_mut(&ino) else {
            return false;
        };
        take(users);
        if users.known > 0 || users.held > 0 {
            return false;
        }
        let may_be_unlinked = users.may_be_unlinked;
        self.users.remove(&ino);
        if self.users.capacity() > ROOM_MIN.max(4 * self.users.len()) {
            self.users.shrink_to(2 * self.users.len());
            self.charge_users();
        }
        match self.nodes.get(&ino) {
            Some(node) => node.has_no_name(),
            None => may_be_unlinked,
        }
    }

    /// Lets go of nodes that nobody uses and that were not looked for since the last time. Nobody
    /// gets hold of one whose only reference is the table's while the shard is locked; who has a
    /// range of one locked, or a lock of one, has the node. Those with an access time to store
    /// stay. Changes that are not on disk yet are the object's, which stays in memory for them.
    fn evict(&mut self) {
        let before = self.nodes.len();
        self.nodes.retain(|_, node| {
            let is_used = node.used.swap(false, Ordering::Relaxed);
            let stays = |node: &mut Node| node.state.get_mut().atime_dirty;
            is_used || Arc::get_mut(node).is_none_or(stays)
        });
        self.departures += u64::from(self.nodes.len() != before);
        if self.nodes.capacity() > ROOM_MIN.max(4 * self.nodes.len()) {
            self.nodes.shrink_to(2 * self.nodes.len());
        }
    }

    fn charge_users(&mut self) {
        // A byte more for each place, and one in eight is empty at least.
        let bytes = self.users.capacity() * (size_of::<(u64, Users)>() + 1) / 7 * 8;
        self.charged.resize(bytes as u64);
    }
}

/// All files in memory. They are given back as the pool's cache has room for them, and whatever is
/// needed of one again is read again: nothing is known by a node alone but what is changed of it in
/// memory, and such a node stays ([`Shard::evict`]).
pub(crate) struct NodeTable {
    shards: Vec<Mutex<Shard>>,
    charge: Arc<Charge>,
    /// The shard of which memory is given back next.
    hand: AtomicUsize,
}

impl NodeTable {
    pub(crate) fn new(charge: &Arc<Charge>) -> Arc<Self> {
        let shard = || Shard {
            nodes: HashMap::new(),
            users: HashMap::new(),
            charged: charge.take(0),
            departures: 0,
        };
        let table = Arc::new(Self {
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
            charge: Arc::clone(charge),
            hand: AtomicUsize::new(0),
        });
        let holder: Weak<Self> = Arc::downgrade(&table);
        charge.add_holder(holder);
        table
    }

    fn shard(&self, ino: u64) -> &Mutex<Shard> {
        &self.shards[(ino % SHARDS as u64) as usize]
    }

    pub(crate) fn get(&self, ino: u64) -> Option<Arc<Node>> {
        let node = self.shard(ino).lock().nodes.get(&ino).cloned()?;
        // Written only where it changes: many threads look for the same directories.
        if !node.used.load(Ordering::Relaxed) {
            node.used.store(true, Ordering::Relaxed);
        }
        Some(node)
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
        shard.nodes.insert(node.ino, Arc::clone(&node));
        drop(shard);
        self.charge.settle();
        Ok(node)
    }

    /// Puts a node just created into the table.
    pub(crate) fn insert_new(&self, node: Arc<Node>) {
        let mut shard = self.shard(node.ino).lock();
        shard.departures += 1;
        shard.nodes.insert(node.ino, node);
        drop(shard);
        self.charge.settle();
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
            self.shard(ino).lock().users(ino).known += count;
        }
    }

    pub(crate) fn hold(&self, ino: u64) {
        self.shard(ino).lock().users(ino).held += 1;
    }

    /// Notes that a file has no name any more. Whether it has users.
    pub(crate) fn note_unlinked(&self, ino: u64) -> bool {
        match self.shard(ino).lock().users.get_mut(&ino) {
            Some(users) => {
                users.may_be_unlinked = true;
                true
            }
            None => false,
        }
    }

    /// Whether that was the last user of a file that has no name, or may have none: it is to be
    /// looked whether it can be freed.
    pub(crate) fn release(&self, ino: u64, count: u64) -> bool {
        let take = |users: &mut Users| users.known = users.known.saturating_sub(count);
        self.shard(ino).lock().leave(ino, take)
    }

    /// As [`Self::release`].
    pub(crate) fn let_go(&self, ino: u64) -> bool {
        let take = |users: &mut Users| users.held = users.held.saturating_sub(1);
        self.shard(ino).lock().leave(ino, take)
    }

    /// Whether the kernel of a mount knows it.
    pub(crate) fn is_known(&self, ino: u64) -> bool {
        let shard = self.shard(ino).lock();
        shard.users.get(&ino).is_some_and(|users| users.known > 0)
    }

    /// All that kernels know, and how often each.
    pub(crate) fn retained(&self) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let known = shard.users.iter().filter(|(_, users)| users.known > 0);
            found.extend(known.map(|(ino, users)| (*ino, users.known)));
        }
        found
    }

    /// Whether anybody uses it.
    pub(crate) fn is_retained(&self, ino: u64) -> bool {
        self.shard(ino).lock().users.contains_key(&ino)
    }

    /// Whether more is in memory than may be, in all filesystems of the pool.
    pub(crate) fn is_over_share(&self) -> bool {
        self.charge.used_bytes() > self.charge.share_bytes()
    }

    /// Has memory given back that was not to be given back before.
    pub(crate) fn settle_again(&self) {
        self.charge.settle_again();
    }

    /// Nodes whose access time is to be stored, in the order of their numbers.
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
        found.sort_unstable_by_key(|node| node.ino);
        found
    }
}

impl Holder for NodeTable {
    fn give_back(&self, is_enough: &dyn Fn() -> bool) {
        for _ in 0..SHARDS {
            if is_enough() {
                return;
            }
            let hand = self.hand.fetch_add(1, Ordering::Relaxed);
            self.shards[hand % SHARDS].lock().evict();
        }
    }
}
