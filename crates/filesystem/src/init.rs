//! Filling a new dataset with an empty filesystem (`zfs_create_fs`,
//! module/os/linux/zfs/zfs_znode_os.c): the master node (object 1) that names all else, the
//! registry of system attributes, the delete queue, and the root directory.

use std::sync::Arc;

use bytes::Bytes;
use dataset::{ObjsetInit, PropertyValue};
use device::BoxFuture;
use format::{OBJSET_FLAG_PROJECT_QUOTA, ObjectId, ObjectType, ObjsetKind};
use object::{ObjectSet, Sa, Zap, ZapOptions};
use zio::Tx;

use crate::acl::Acl;
use crate::error::Result;
use crate::names::NameRules;
use crate::types::Time;
use crate::znode::{
    self, TABLE, ZPL_VERSION, ZPL_VERSION_FUID, ZPL_VERSION_SA, Znode, joined, pflags,
};

/// Makes an empty filesystem in a new dataset.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZplInit {
    uid: u32,
    gid: u32,
}

/// Properties that live in the master node.
const OWN_PROPERTIES: &[&str] = &["version", "normalization", "utf8only", "casesensitivity"];

impl ZplInit {
    /// One for all datasets, whose root directories belong to root: what else differs comes from
    /// their properties.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, but root directories belong to this user and group: who makes a filesystem can use
    /// it (`zfs_create_fs` takes the caller's).
    pub fn owned_by(uid: u32, gid: u32) -> Self {
        Self { uid, gid }
    }

    async fn fill(
        self,
        objset: &Arc<ObjectSet>,
        properties: &[(String, PropertyValue)],
        tx: &Tx,
    ) -> Result<()> {
        let number = |name: &str| {
            properties
                .iter()
                .find(|(there, _)| there == name)
                .and_then(|(_, value)| value.number())
        };
        let version = number("version")
            .unwrap_or(ZPL_VERSION)
            .clamp(1, ZPL_VERSION);
        let normalization = number("normalization").unwrap_or(0);
        let case = number("casesensitivity").unwrap_or(0);
        // Names can be normalised only where they are known to be UTF-8.
        let utf8_only = number("utf8only").unwrap_or(0) != 0 || normalization != 0;
        let rules = NameRules::new(normalization, case, utf8_only);

        let mut options = ZapOptions::new(ObjectType::MASTER_NODE);
        options.claim = Some(ObjectId::MASTER_NODE);
        let master = Zap::create(objset, tx, options).await?;
        master
            .update_u64(tx, "normalization", normalization)
            .await?;
        master
            .update_u64(tx, "utf8only", u64::from(utf8_only))
            .await?;
        master.update_u64(tx, "casesensitivity", case).await?;
        master.update_u64(tx, "VERSION", version).await?;
        let sa_master = if version >= ZPL_VERSION_SA {
            let id = Sa::create_master(objset, tx).await?;
            master.add_u64(tx, "SA_ATTRS", id.get()).await?;
            id
        } else {
            ObjectId::ZERO
        };
        let queue = Zap::create(objset, tx, ZapOptions::new(ObjectType::UNLINKED_SET)).await?;
        master.add_u64(tx, "DELETE_QUEUE", queue.id().get()).await?;

        let sa = Sa::setup(objset, sa_master, &TABLE).await?;
        let is_old = version < ZPL_VERSION_SA;
        let mut options = ZapOptions::new(ObjectType::DIRECTORY_CONTENTS);
        options.normalization = rules.norm_flags;
        if is_old {
            options.bonus_type = ObjectType::ZNODE;
            options.bonus = Bytes::from_static(&[0; znode::OLD_ZNODE_BYTES]);
        } else {
            options.bonus_type = ObjectType::SA;
        }
        let directory = Zap::create(objset, tx, options).await?;
        let root = directory.id().get();
        master.add_u64(tx, "ROOT", root).await?;

        let acl = Acl::trivial(0o755, true);
        let now = Time::from_ns(objset.world().clock.wall_ns());
        let has_projects = !is_old && objset.flags() & OBJSET_FLAG_PROJECT_QUOTA != 0;
        let mut flags = pflags::ACL_TRIVIAL | pflags::ACL_AUTO_INHERIT | pflags::NO_EXECS_DENIED;
        if version >= ZPL_VERSION_FUID {
            flags |= pflags::ARCHIVE | pflags::AV_MODIFIED;
        }
        if has_projects {
            flags |= pflags::PROJID;
        }
        let znode = Znode {
            mode: 0o40_755,
            size: 2,
            generation: tx.txg().get(),
            uid: u64::from(self.uid),
            gid: u64::from(self.gid),
            parent: root,
            flags,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links: 2,
            rdev: 0,
            xattr: 0,
            project: has_projects.then_some(0),
            is_old,
        };
        let template = znode.template(&acl, version, None);
        if is_old {
            directory.object().set_bonus(tx, joined(&template))?;
        } else {
            sa.replace_all(directory.object(), tx, &template).await?;
        }
        Ok(())
    }
}

impl ObjsetInit for ZplInit {
    fn kind(&self) -> ObjsetKind {
        ObjsetKind::Filesystem
    }

    fn init<'a>(
        &'a self,
        objset: &'a Arc<ObjectSet>,
        properties: &'a [(String, PropertyValue)],
        tx: &'a Tx,
    ) -> BoxFuture<'a, std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>> {
        Box::pin(async move { Ok(self.fill(objset, properties, tx).await?) })
    }

    fn own_properties(&self) -> &'static [&'static str] {
        OWN_PROPERTIES
    }
}
