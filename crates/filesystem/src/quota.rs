//! Quotas and space of users, groups and projects (module/zfs/zfs_quota.c).
//!
//! A quota is an entry of a ZAP that the master node names (`userquota@`, ...): the id in
//! hexadecimal to bytes or objects. What is used is counted by the object set at each sync, so a
//! quota can be overrun by what was written since, as with OpenZFS.
//!
//! Who has no such entry has the default quota of its kind (OpenZFS 2.4), if there is one: a number
//! in the master node itself (`zfs_set_default_quota`, module/os/linux/zfs/zfs_vfsops.c).

use std::sync::Arc;

use dataset::Dataset;
use format::{ObjectId, ObjectType, ObjsetKind};
use object::{Zap, ZapCursor, ZapOptions};
use parking_lot::RwLock;

use crate::error::{FsError, Result};
use crate::files::Files;
use crate::znode::{ZPL_VERSION_USERSPACE, Znode};

/// Whose quota or space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaKind {
    /// A user's.
    User,
    /// A group's.
    Group,
    /// A project's.
    Project,
}

const KINDS: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

impl QuotaKind {
    fn used_object(self) -> ObjectId {
        match self {
            Self::User => ObjectId::USER_USED,
            Self::Group => ObjectId::GROUP_USED,
            Self::Project => ObjectId::PROJECT_USED,
        }
    }

    fn entry(self, of_objects: bool) -> &'static str {
        match (self, of_objects) {
            (Self::User, false) => "userquota@",
            (Self::User, true) => "userobjquota@",
            (Self::Group, false) => "groupquota@",
            (Self::Group, true) => "groupobjquota@",
            (Self::Project, false) => "projectquota@",
            (Self::Project, true) => "projectobjquota@",
        }
    }

    /// The property, and the master node's entry, of the quota of those that have none.
    pub const fn default_property(self, of_objects: bool) -> &'static str {
        match (self, of_objects) {
            (Self::User, false) => "defaultuserquota",
            (Self::User, true) => "defaultuserobjquota",
            (Self::Group, false) => "defaultgroupquota",
            (Self::Group, true) => "defaultgroupobjquota",
            (Self::Project, false) => "defaultprojectquota",
            (Self::Project, true) => "defaultprojectobjquota",
        }
    }

    /// The default quotas of a filesystem or a snapshot of one as its master node has them, zero
    /// where there is none: names of properties in the order of `zfs get all`. It need not be
    /// open as a filesystem, and nothing is written. None of a volume.
    ///
    /// Source: module/zfs/zfs_ioctl.c (`nvl_add_zplprop`), module/os/linux/zfs/zfs_vfsops.c
    /// (`zfs_get_zplprop`).
    ///
    /// # Errors
    /// When the master node cannot be read: also without the key of an encrypted one.
    pub async fn defaults_of(dataset: &Dataset) -> Result<Vec<(&'static str, u64)>> {
        let objset = dataset.objset();
        if objset.kind() != ObjsetKind::Filesystem {
            return Ok(Vec::new());
        }
        let master = Zap::hold(objset, ObjectId::MASTER_NODE).await?;
        let mut out = Vec::new();
        for of_objects in [false, true] {
            for kind in KINDS {
                let name = kind.default_property(of_objects);
                out.push((name, master.lookup_u64(name).await?.unwrap_or(0)));
            }
        }
        Ok(out)
    }

    /// Whose default quota a property is, and whether of objects.
    pub fn of_default_property(property: &str) -> Option<(Self, bool)> {
        let all = KINDS
            .into_iter()
            .flat_map(|kind| [(kind, false), (kind, true)]);
        let mut all = all.filter(|(kind, of)| kind.default_property(*of) == property);
        all.next()
    }

    fn index(self, of_objects: bool) -> usize {
        self as usize * 2 + usize::from(of_objects)
    }
}

/// What somebody uses, and may use (0: no limit), as of the last sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceUse {
    /// User, group or project.
    pub id: u64,
    /// Bytes used.
    pub used_bytes: u64,
    /// Most bytes.
    pub quota_bytes: u64,
    /// Objects used.
    pub used_objects: u64,
    /// Most objects.
    pub quota_objects: u64,
}

/// The quotas of a filesystem.
pub struct Quotas {
    files: Arc<Files>,
    master: Zap,
    /// Changes of the master node, and of what it names, come one at a time; they are rare.
    master_lock: tokio::sync::Mutex<()>,
    /// The ZAPs that exist.
    zaps: RwLock<[Option<Zap>; 6]>,
    /// Default quotas; zero where there is none.
    defaults: RwLock<[u64; 6]>,
}

impl Quotas {
    /// Finds the quotas of a filesystem by its master node.
    pub(crate) async fn load(files: &Arc<Files>, master: &Zap) -> Result<Self> {
        let mut zaps = [const { None }; 6];
        let mut defaults = [0; 6];
        for kind in KINDS {
            for of_objects in [false, true] {
                if let Some(id) = master.lookup_u64(kind.entry(of_objects)).await? {
                    zaps[kind.index(of_objects)] =
                        Some(Zap::hold(&files.objset, ObjectId::new(id)).await?);
                }
                let default = master.lookup_u64(kind.default_property(of_objects)).await?;
                defaults[kind.index(of_objects)] = default.unwrap_or(0);
            }
        }
        Ok(Self {
            files: Arc::clone(files),
            master: master.clone(),
            master_lock: tokio::sync::Mutex::default(),
            zaps: RwLock::new(zaps),
            defaults: RwLock::new(defaults),
        })
    }

    /// Keeps others from changing the master node. Taken before a transaction.
    pub(crate) async fn master_lock(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.master_lock.lock().await
    }

    /// The default quota of bytes or objects of a kind; zero where there is none.
    pub fn default(&self, kind: QuotaKind, of_objects: bool) -> u64 {
        self.defaults.read()[kind.index(of_objects)]
    }

    /// The quota of somebody: of his own, or the default one.
    async fn of(&self, kind: QuotaKind, of_objects: bool, id: u64) -> Result<Option<u64>> {
        let own = match self.zap(kind, of_objects) {
            Some(zap) => zap.lookup_u64(format!("{id:x}")).await?,
            None => None,
        };
        let default = self.default(kind, of_objects);
        Ok(own.or((default > 0).then_some(default)))
    }

    /// Whether nobody has a quota.
    fn are_none(&self) -> bool {
        self.zaps.read().iter().all(Option::is_none)
            && self.defaults.read().iter().all(|quota| *quota == 0)
    }

    fn zap(&self, kind: QuotaKind, of_objects: bool) -> Option<Zap> {
        self.zaps.read()[kind.index(of_objects)].clone()
    }

    /// Fails if a quota of space is reached of those whose the file is.
    pub(crate) async fn check_file(&self, znode: &Znode) -> Result<()> {
        let project = znode.project.unwrap_or(0);
        let ids = [Some(znode.uid), Some(znode.gid), Some(project)];
        self.check(ids, false).await
    }

    /// Fails if a quota of space or objects is reached of somebody to whom a file is given
    /// (`zfs_setattr`, `zfs_id_overquota`).
    pub(crate) async fn check_owners(&self, ids: [Option<u64>; 3]) -> Result<()> {
        self.check(ids, false).await?;
        self.check(ids, true).await
    }

    /// Fails if a quota of objects or space is reached (`zfs_acl_ids_overquota`).
    pub(crate) async fn check_objects(&self, uid: u64, gid: u64, project: u64) -> Result<()> {
        let ids = [Some(uid), Some(gid), Some(project)];
        self.check(ids, false).await?;
        self.check(ids, true).await
    }

    async fn check(&self, ids: [Option<u64>; 3], of_objects: bool) -> Result<()> {
        if self.are_none() || self.files.opening.replaying() {
            return Ok(());
        }
        for (kind, id) in KINDS.into_iter().zip(ids) {
            let Some(id) = id.filter(|id| kind != QuotaKind::Project || *id != 0) else {
                continue;
            };
            let Some(quota) = self.of(kind, of_objects, id).await? else {
                continue;
            };
            let Some(used) = self.used_zap(kind).await? else {
                continue;
            };
            let name = if of_objects {
                format!("obj-{id:x}")
            } else {
                format!("{id:x}")
            };
            if used.lookup_u64(name).await?.unwrap_or(0) >= quota {
                return Err(FsError::QuotaExceeded);
            }
        }
        Ok(())
    }

    async fn used_zap(&self, kind: QuotaKind) -> Result<Option<Zap>> {
        match Zap::hold(&self.files.objset, kind.used_object()).await {
            Ok(zap) => Ok(Some(zap)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What everybody uses and may use, by id (`zfs userspace`).
    pub async fn space_by(&self, kind: QuotaKind) -> Result<Vec<SpaceUse>> {
        let _entered = self.files.opening.enter().await?;
        let mut found = std::collections::BTreeMap::<u64, SpaceUse>::new();
        let sources = [
            (self.used_zap(kind).await?, None),
            (self.zap(kind, false), Some(false)),
            (self.zap(kind, true), Some(true)),
        ];
        for (zap, quota) in sources {
            let Some(zap) = zap else { continue };
            let mut cursor = ZapCursor::START;
            loop {
                let entries = zap.entries(cursor, 256).await?;
                let Some(last) = entries.last() else { break };
                cursor = last.next;
                for entry in &entries {
                    let name = String::from_utf8_lossy(&entry.name);
                    let (digits, of_objects) = match name.strip_prefix("obj-") {
                        Some(digits) => (digits, true),
                        None => (&*name, false),
                    };
                    let Ok(id) = u64::from_str_radix(digits, 16) else {
                        continue;
                    };
                    let Some(value) = entry.value.as_u64() else {
                        continue;
                    };
                    let space = found.entry(id).or_insert(SpaceUse {
                        id,
                        ..Default::default()
                    });
                    *match (quota, of_objects) {
                        (None, false) => &mut space.used_bytes,
                        (None, true) => &mut space.used_objects,
                        (Some(false), _) => &mut space.quota_bytes,
                        (Some(true), _) => &mut space.quota_objects,
                    } = value;
                }
            }
        }
        let default = |of_objects| self.default(kind, of_objects);
        let or_default = |own: u64, default| if own == 0 { default } else { own };
        let with_defaults = found.into_values().map(|space| SpaceUse {
            quota_bytes: or_default(space.quota_bytes, default(false)),
            quota_objects: or_default(space.quota_objects, default(true)),
            ..space
        });
        Ok(with_defaults.collect())
    }

    /// A project's quota of bytes or objects, if it has one, and what it uses.
    pub(crate) async fn of_project(
        &self,
        project: u64,
        of_objects: bool,
    ) -> Result<Option<(u64, u64)>> {
        let _entered = self.files.opening.enter().await?;
        let quota = self.of(QuotaKind::Project, of_objects, project);
        let Some(quota) = quota.await? else {
            return Ok(None);
        };
        let name = match of_objects {
            true => format!("obj-{project:x}"),
            false => format!("{project:x}"),
        };
        let used = match self.used_zap(QuotaKind::Project).await? {
            Some(zap) => zap.lookup_u64(name).await?.unwrap_or(0),
            None => 0,
        };
        Ok(Some((quota, used)))
    }

    /// Filesystems of older versions have no quotas. Those that were made before the pool counted
    /// who uses what get none either, as nothing is known there of what is used; what OpenZFS set
    /// there can be removed.
    fn check_version(&self, quota: u64) -> Result<()> {
        if self.files.version < ZPL_VERSION_USERSPACE {
            return Err(FsError::Unsupported {
                what: "a quota of a user, group or project in a filesystem of a version before 4",
            });
        }
        if quota != 0 && !self.files.opening.dataset()?.counts_owners() {
            return Err(FsError::Unsupported {
                what: "a quota in a filesystem from before space was counted by user",
            });
        }
        Ok(())
    }

    /// Sets the default quota of a kind; 0 removes it (`zfs_set_default_quota`).
    ///
    /// # Errors
    /// When the filesystem cannot be changed, or is of a version before 4.
    pub async fn set_default(&self, kind: QuotaKind, of_objects: bool, quota: u64) -> Result<()> {
        self.check_version(quota)?;
        let _entered = self.files.opening.enter_to_change().await?;
        let _lock = self.master_lock().await;
        let name = kind.default_property(of_objects);
        let tx = self
            .files
            .assign(dataset::DirtyEstimate::metadata())
            .await?;
        if quota != 0 {
            self.master.update_u64(&tx, name, quota).await?;
        } else if self.master.lookup_u64(name).await?.is_some() {
            self.master.remove(&tx, name).await?;
        }
        self.defaults.write()[kind.index(of_objects)] = quota;
        Ok(())
    }

    /// Sets a quota of bytes or objects; 0 removes it (`zfs_set_userquota`).
    ///
    /// # Errors
    /// As [`Self::set_default`].
    pub async fn set(&self, kind: QuotaKind, id: u64, of_objects: bool, quota: u64) -> Result<()> {
        self.check_version(quota)?;
        let _entered = self.files.opening.enter_to_change().await?;
        let _lock = self.master_lock().await;
        let existing = self.zap(kind, of_objects);
        let name = format!("{id:x}");
        let tx = self
            .files
            .assign(dataset::DirtyEstimate::metadata())
            .await?;
        let zap = match existing {
            Some(zap) => zap,
            None if quota == 0 => return Ok(()),
            None => {
                let options = ZapOptions::new(ObjectType::USERGROUP_QUOTA);
                let zap = Zap::create(&self.files.objset, &tx, options).await?;
                self.master
                    .add_u64(&tx, kind.entry(of_objects), zap.id().get())
                    .await?;
                self.zaps.write()[kind.index(of_objects)] = Some(zap.clone());
                zap
            }
        };
        if quota == 0 {
            match zap.remove(&tx, name).await {
                Err(error) if error.is_not_found() => {}
                other => other?,
            }
        } else {
            zap.update_u64(&tx, name, quota).await?;
        }
        Ok(())
    }
}
