//! Files by number: those in memory, how their attributes are loaded and stored, and the changes of
//! them in transactions and in the intent log.
//!
//! All that is done with files is above: content, names, extended attributes, quotas.

use std::sync::Arc;

use dataset::DirtyEstimate;
use format::{OBJSET_FLAG_PROJECT_QUOTA, ObjectId, ObjectType};
use object::{ObjectSet, Sa, SaAttribute, Zap};
use zil::{LogRecord, SyncMode, Zil};
use zio::Tx;

use crate::changes::{Change, Outlet};
use crate::counting::Counting;
use crate::describe::describe;
use crate::error::{FsError, Result};
use crate::names::NameRules;
use crate::node::{Locked, Node, NodeTable};
use crate::opening::Opening;
use crate::types::Attributes;
use crate::znode::{self, Attribute, ZPL_VERSION_FUID, ZPL_VERSION_SA, Znode, attr, is_of_xattr};

/// The files of a filesystem.
pub(crate) struct Files {
    pub(crate) opening: Arc<Opening>,
    pub(crate) counting: Arc<Counting>,
    /// What is synchronous goes here; none where the filesystem is only looked at.
    pub(crate) log: Option<Arc<Zil>>,
    pub(crate) objset: Arc<ObjectSet>,
    pub(crate) sa: Arc<Sa>,
    pub(crate) version: u64,
    pub(crate) rules: NameRules,
    /// Number of the root directory.
    pub(crate) root: u64,
    pub(crate) nodes: Arc<NodeTable>,
    pub(crate) outlet: Outlet,
}

impl Files {
    pub(crate) fn uses_fuids(&self) -> bool {
        self.version >= ZPL_VERSION_FUID
    }

    /// Whether new files have a project, and what projects use is counted.
    pub(crate) fn has_projects(&self) -> bool {
        self.version >= ZPL_VERSION_SA && self.objset.counted() & OBJSET_FLAG_PROJECT_QUOTA != 0
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
        let has_xattrs = attributes.iter().any(|(id, _)| *id == attr::DXATTR);
        Ok(Node::new(ino, object, zap, znode, !has_xattrs))
    }

    /// The form by which directories hash names.
    fn normalizer(&self) -> object::Normalizer {
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
        self.counting.assign(estimate).await
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
        drop(state);
        if *changed != [attr::ATIME] {
            self.tell(Change::Attributes { ino: node.ino });
        }
        Ok(())
    }

    /// Tells whoever keeps copies of a change that is to be seen by now.
    pub(crate) fn tell(&self, change: Change<'_>) {
        let is_known = |ino| ino == self.root || self.nodes.is_known(ino);
        self.outlet.tell(change, is_known);
    }

    /// Notes a change in the intent log.
    pub(crate) fn record(&self, tx: &Tx, record: LogRecord) {
        if let Some(log) = &self.log {
            log.record(tx, record);
        }
    }

    /// Logs several changes, of which a crash leaves all or none.
    pub(crate) fn record_together(&self, tx: &Tx, records: impl IntoIterator<Item = LogRecord>) {
        if let Some(log) = &self.log {
            log.record_together(tx, records);
        }
    }

    /// Puts what was done to a file (0: to any) on stable storage. Call without locks and
    /// transaction. A filesystem that is read-only now was not when the change was made:
    /// `readonly` says so before its own txg, let alone that of the change, is on disk.
    pub(crate) async fn commit(&self, ino: u64) -> Result<()> {
        if self.opening.replaying() {
            return Ok(());
        }
        Ok(self.opening.dataset()?.commit(ObjectId::new(ino)).await?)
    }

    /// Ends an operation that changed something: waits for the log where `sync=always` asks for
    /// it. Call without locks and transaction.
    pub(crate) async fn finish(&self, ino: u64) -> Result<()> {
        if self.opening.settings().sync == SyncMode::Always {
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
        let lists_control = node.ino == self.root && self.opening.settings().snapdir == 1;
        let described = describe(
            node.ino,
            &znode,
            &info,
            u64::from(lists_control),
            self.opening.settings().record_bytes,
        );
        Attributes {
            is_dirty,
            ..described
        }
    }

    /// Whether a file is there after a crash now: one that has no name is not, nor are the extended
    /// attributes of one. What is done to it is not logged, since a replay would not find it
    /// (`zfs_xattr_owner_unlinked`, module/zfs/zfs_log.c). Ask before the transaction.
    pub(crate) async fn outlives_crash(&self, node: &Node) -> Result<bool> {
        let mut znode = node.znode();
        // A file of attributes, their directory, whose they are.
        for _ in 0..2 {
            if znode.links == 0 || !is_of_xattr(&znode) {
                break;
            }
            znode = match self.node(znode.parent).await {
                Ok(above) => above.znode(),
                Err(FsError::Stale { .. }) => return Ok(false),
                Err(error) => return Err(error),
            };
        }
        Ok(znode.links > 0)
    }
}
