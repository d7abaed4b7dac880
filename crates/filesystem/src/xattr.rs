//! Extended attributes (module/os/linux/zfs/zpl_xattr.c, module/zfs/zfs_sa.c).
//!
//! They are kept in one of two places: in the dnode's system attribute DXATTR, an nvlist in XDR of
//! byte arrays (`xattr=sa`, the default); or as files of a hidden directory that the file's
//! attribute XATTR names (`xattr=dir`; also what is too big for the first: a value of 32 KiB, or
//! 64 KiB in all). Both are read whatever the property says. Names have their namespace
//! (`user.`, `trusted.`, ...); one without is a `user.` attribute that another system wrote.
//!
//! A file's attributes are changed under its lock of attributes ([`Node::xattrs`]), which comes
//! before all others. While a file of the directory is made or removed the file's own lock is held
//! as well, so that the record of that is not behind the one that takes the file's last name: a
//! replay would not find the directory.
//!
//! After a crash, and in a snapshot, an attribute has its old value or its new one, in either place
//! (with OpenZFS one in a directory may be empty or cut). The file of a new attribute is made and
//! filled in one transaction, the value of an old one is written over in one, and what the log says
//! of either is in one block of it ([`zil::Zil::record_together`]): `TX_CREATE` and `TX_WRITE`, or
//! `TX_WRITE` and `TX_TRUNCATE`, which OpenZFS replays one by one, and goes on where another crash
//! cuts that off. A file that is longer than Linux lets attributes be was made by another system:
//! another one takes its place (`TX_REMOVE`, `TX_CREATE`, `TX_WRITE`).

use std::sync::Arc;

use bytes::Bytes;
use dataset::DirtyEstimate;
use dataset::features::guid;
use format::{LogCreateKind, NvEncoding, NvList, NvValue, ObjectId};
use object::{Object, Sa, ZapCursor};
use zil::LogRecord;

use crate::attributes::set_locked;
use crate::content::{Place, free_space, join, read_node, write_node};
use crate::create::{Make, Replaced, Replayed, make_in_place, new_xattr_directory};
use crate::entries::{entry_node, find};
use crate::error::{FsError, Result};
use crate::files::Files;
use crate::locking::check_after;
use crate::log;
use crate::node::{Node, SaXattrs};
use crate::posix_acl::{self, PosixAcl};
use crate::quota::Quotas;
use crate::rank::Rank;
use crate::remove::remove_in;
use crate::types::{Caller, FileKind, SetAttributes, Via, XattrMode};
use crate::unlinked::Unlinked;
use crate::znode::{attr, is_of_xattr, pflags, touched};

/// Biggest value in the dnode (`DXATTR_MAX_ENTRY_SIZE`).
const SA_VALUE_BYTES_MAX: usize = 32768;
/// Biggest nvlist that may be added to (`DXATTR_MAX_SA_SIZE`).
const SA_LIST_BYTES_MAX: usize = 64 << 10;
/// Biggest system attribute (`SA_ATTR_MAX_LEN`): the length is a u16.
const SA_BYTES_MAX: usize = 65535;
/// Biggest value that Linux passes (`XATTR_SIZE_MAX`).
pub(crate) const VALUE_BYTES_MAX: usize = 64 << 10;
/// Longest name that Linux passes (`XATTR_NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// Most bytes of names to list for programs ([`Xattrs::names_within`]): four times what Linux
/// passes (`XATTR_LIST_MAX`), as some may not be for who asks.
pub const LISTED_BYTES_MAX: usize = 256 << 10;

const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

/// The name under which an attribute is looked for when it is not there under its own: without
/// `user.`, as other systems write them.
fn alternative(name: &[u8]) -> Option<&[u8]> {
    let bare = name.strip_prefix(b"user.")?;
    let taken = NAMESPACES.iter().any(|space| bare.starts_with(space));
    (!bare.is_empty() && !taken).then_some(bare)
}

/// A stored name as Linux shows it.
pub(crate) fn shown(stored: &[u8]) -> Vec<u8> {
    if NAMESPACES.iter().any(|space| stored.starts_with(space)) {
        return stored.to_vec();
    }
    [b"user.", stored].concat()
}

/// The attributes that are kept in the dnode.
pub(crate) async fn xattrs_in_dnode(sa: &Sa, object: &Object) -> Result<Vec<(Vec<u8>, Bytes)>> {
    let mut list = Vec::new();
    if let Some(packed) = sa.get(object, attr::DXATTR).await? {
        let Ok(decoded) = NvList::decode(&packed) else {
            return Err(FsError::Corrupt {
                ino: object.id().get(),
                what: "its extended attributes are damaged",
            });
        };
        for (name, value) in decoded.iter_bytes() {
            let NvValue::ByteArray(value) = value else {
                continue;
            };
            list.push((name.to_vec(), Bytes::copy_from_slice(value)));
        }
    }
    Ok(list)
}

/// The extended attributes of a filesystem's files, lists of access among them.
pub struct Xattrs {
    files: Arc<Files>,
    quotas: Arc<Quotas>,
    unlinked: Arc<Unlinked>,
}

impl Xattrs {
    pub(crate) fn new(files: &Arc<Files>, quotas: &Arc<Quotas>, unlinked: &Arc<Unlinked>) -> Self {
        Self {
            files: Arc::clone(files),
            quotas: Arc::clone(quotas),
            unlinked: Arc::clone(unlinked),
        }
    }

    /// Fails for names that cannot be attributes here.
    fn check_xattr_name(&self, name: &[u8]) -> Result<()> {
        let settings = self.files.opening.settings();
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong {
                length_bytes: name.len(),
                limit_bytes: NAME_BYTES_MAX,
            });
        }
        if name.starts_with(b"system.") {
            let is_acl = name == posix_acl::ACCESS || name == posix_acl::DEFAULT;
            if !is_acl || !self.files.opening.has_posix_acls() {
                return Err(FsError::Unsupported {
                    what: "this system attribute (acltype)",
                });
            }
            return Ok(());
        }
        if NAMESPACES.contains(&name) {
            return Err(FsError::Invalid {
                what: "an attribute has a name behind its namespace",
            });
        }
        if !NAMESPACES.iter().any(|space| name.starts_with(space)) || name.contains(&0) {
            return Err(FsError::Unsupported {
                what: "an attribute of this namespace",
            });
        }
        if name.starts_with(b"user.") && settings.xattr == 0 {
            return Err(FsError::Unsupported {
                what: "a user attribute (xattr=off)",
            });
        }
        Ok(())
    }

    /// Whether a file surely lacks an attribute that it could have, as most have none; known
    /// without reading.
    pub fn lacks(&self, ino: u64, name: &[u8]) -> bool {
        self.has_no_xattrs(ino) && self.check_xattr_name(name).is_ok()
    }

    /// The attributes in the dnode.
    pub(crate) async fn sa_xattrs(&self, node: &Node) -> Result<SaXattrs> {
        {
            let state = node.state.read();
            if let Some(list) = state.sa_xattrs() {
                return Ok(Arc::clone(list));
            }
            if state.lacks_sa_xattrs() {
                return Ok(SaXattrs::default());
            }
        }
        let list = xattrs_in_dnode(&self.files.sa, &node.object).await?;
        let list = Arc::new(list);
        node.state.write().keep_sa_xattrs(Arc::clone(&list));
        Ok(list)
    }

    /// The directory of a file's attributes, if it has one.
    pub(crate) async fn xattr_directory(&self, node: &Node) -> Result<Option<Arc<Node>>> {
        match node.znode().xattr {
            0 => Ok(None),
            ino => match self.files.node(ino).await {
                Ok(directory) if directory.place().0 == Rank::XattrDirectory => Ok(Some(directory)),
                // Some releases of OpenZFS removed it and left its number (openzfs/zfs#4083), which
                // another file may have by now; like OpenZFS, say that there are no attributes.
                Ok(_) => Ok(None),
                Err(FsError::Stale { .. }) => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    /// The file that holds an attribute.
    async fn xattr_file(&self, node: &Node, name: &[u8]) -> Result<Option<Arc<Node>>> {
        let Some(directory) = self.xattr_directory(node).await? else {
            return Ok(None);
        };
        match find(self.files.rules, &directory, name).await? {
            Some((ino, _)) => Ok(Some(self.files.node(ino).await?)),
            None => Ok(None),
        }
    }

    /// A stored value, by its stored name.
    async fn stored_xattr(&self, node: &Node, name: &[u8]) -> Result<Option<Bytes>> {
        if !node.znode().is_old {
            let list = self.sa_xattrs(node).await?;
            if let Some((_, value)) = list.iter().find(|(there, _)| there == name) {
                return Ok(Some(value.clone()));
            }
        }
        let Some(file) = self.xattr_file(node, name).await? else {
            return Ok(None);
        };
        let size = usize::try_from(file.znode().size)
            .unwrap_or(usize::MAX)
            .min(VALUE_BYTES_MAX);
        Ok(Some(join(read_node(&file, 0, size, false).await?)))
    }

    /// Whether a file certainly has no extended attributes at all: never waits.
    fn has_no_xattrs(&self, ino: u64) -> bool {
        let Some(node) = self.files.nodes.get(ino) else {
            return false;
        };
        let state = node.state.read();
        state.znode.xattr == 0 && (state.znode.is_old || state.lacks_sa_xattrs())
    }

    /// The value of an extended attribute, named as Linux shows it (`user.mime_type`).
    pub async fn get(&self, ino: u64, name: &[u8]) -> Result<Bytes> {
        let _entered = self.files.opening.enter().await?;
        self.check_xattr_name(name)?;
        let node = self.files.node(ino).await?;
        let _lock = node.xattrs.read().await;
        if let Some(value) = self.stored_xattr(&node, name).await? {
            return Ok(value);
        }
        if let Some(name) = alternative(name)
            && let Some(value) = self.stored_xattr(&node, name).await?
        {
            return Ok(value);
        }
        Err(FsError::NoAttribute { ino })
    }

    /// Names of extended attributes.
    pub async fn names(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        self.names_within(ino, usize::MAX).await
    }

    /// The same where they are no more than so many bytes, with one behind each: who may set
    /// attributes may set any number.
    ///
    /// # Errors
    /// [`FsError::AttributeTooBig`] where they are more.
    pub async fn names_within(&self, ino: u64, limit_bytes: usize) -> Result<Vec<Vec<u8>>> {
        let _entered = self.files.opening.enter().await?;
        let node = self.files.node(ino).await?;
        let _lock = node.xattrs.read().await;
        let mut names: Vec<Vec<u8>> = Vec::new();
        if !node.znode().is_old {
            names.extend(
                self.sa_xattrs(&node)
                    .await?
                    .iter()
                    .map(|(name, _)| shown(name)),
            );
        }
        names.retain(|name| self.check_xattr_name(name).is_ok());
        let mut bytes: usize = names.iter().map(|name| name.len() + 1).sum();
        if let Some(directory) = self.xattr_directory(&node).await? {
            let mut cursor = ZapCursor::START;
            while bytes <= limit_bytes {
                let entries = directory.entries()?.entries(cursor, 256).await?;
                let Some(last) = entries.last() else { break };
                cursor = last.next;
                for entry in &entries {
                    let name = shown(&entry.name);
                    if self.check_xattr_name(&name).is_ok() {
                        bytes += name.len() + 1;
                        names.push(name);
                    }
                }
            }
        }
        match bytes <= limit_bytes {
            true => Ok(names),
            false => Err(FsError::AttributeTooBig),
        }
    }

    /// Sets an extended attribute. A list of access (`system.posix_acl_access`) changes the mode
    /// too, and takes set-group-id away where the caller is not of the file's group
    /// (`posix_acl_update_mode`, fs/posix_acl.c of Linux).
    pub async fn set(
        &self,
        ino: u64,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        caller: Caller,
    ) -> Result<()> {
        let _entered = self.files.opening.enter_to_change().await?;
        self.check_xattr_name(name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(FsError::AttributeTooBig);
        }
        let node = self.files.node(ino).await?;
        {
            let _lock = node.xattrs.write().await;
            may_change_xattrs(&node)?;
            if name.starts_with(b"system.") {
                self.set_posix_acl(&node, name, value, caller).await?;
            } else {
                self.replace_xattr(&node, name, value, mode).await?;
            }
        }
        self.files.finish(ino).await
    }

    /// Removes an extended attribute. An ACL may as well not be there, as on other filesystems.
    pub async fn remove(&self, ino: u64, name: &[u8]) -> Result<()> {
        let _entered = self.files.opening.enter_to_change().await?;
        self.check_xattr_name(name)?;
        let node = self.files.node(ino).await?;
        {
            let _lock = node.xattrs.write().await;
            may_change_xattrs(&node)?;
            let mut found = self.drop_xattr(&node, name).await?;
            if !found && let Some(name) = alternative(name) {
                found = self.drop_xattr(&node, name).await?;
            }
            if !found && !name.starts_with(b"system.") {
                return Err(FsError::NoAttribute { ino });
            }
        }
        self.files.finish(ino).await
    }

    /// Takes the capabilities of a program (`security.capability`) away from a file whose content
    /// or owner is about to change, whoever changes it: also root, as on Linux
    /// (`cap_inode_need_killpriv`, security/commoncap.c). A crash before the change leaves the file
    /// without them. What is immutable is not going to change; and a log that is replayed tells of
    /// this itself.
    ///
    /// Without locks of the file, by who has entered to change it.
    pub(crate) async fn drop_capability(&self, node: &Arc<Node>) -> Result<()> {
        const CAPABILITY: &[u8] = b"security.capability";
        let stays = self.files.opening.replaying() || node.znode().flags & pflags::IMMUTABLE != 0;
        if stays || self.has_no_xattrs(node.ino) {
            return Ok(());
        }
        {
            let _lock = node.xattrs.read().await;
            if self.stored_xattr(node, CAPABILITY).await?.is_none() {
                return Ok(());
            }
        }
        let _lock = node.xattrs.write().await;
        self.drop_xattr(node, CAPABILITY).await.map(|_| ())
    }

    async fn replace_xattr(
        &self,
        node: &Arc<Node>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let exists = self.stored_xattr(node, name).await?.is_some();
        let other = alternative(name);
        let other_exists = match other {
            Some(other) => self.stored_xattr(node, other).await?.is_some(),
            None => false,
        };
        match mode {
            XattrMode::Create if exists || other_exists => {
                return Err(FsError::Exists { ino: node.ino });
            }
            XattrMode::Replace if !exists && !other_exists => {
                return Err(FsError::NoAttribute { ino: node.ino });
            }
            _ => {}
        }
        self.put_xattr(node, name, value).await?;
        if other_exists && let Some(other) = other {
            self.drop_xattr(node, other).await?;
        }
        Ok(())
    }

    /// Puts an attribute where it belongs, and out of the other place.
    async fn put_xattr(&self, node: &Arc<Node>, name: &[u8], value: &[u8]) -> Result<()> {
        /// `xattr=sa` (`ZFS_XATTR_SA`).
        const IN_SA: u64 = 2;
        // An empty value goes into the directory: the log's record of one in the dnode would say
        // that it was removed (`zfs_log_setsaxattr`), so it would not outlive a crash.
        if self.files.opening.settings().xattr == IN_SA && !value.is_empty() && !node.znode().is_old
        {
            let before = self.xattr_directory(node).await?;
            let there = match before {
                Some(directory) if find(self.files.rules, &directory, name).await?.is_some() => {
                    Some(directory)
                }
                _ => None,
            };
            // Where both are after a crash, the one in the dnode counts.
            if self
                .put_sa_xattr(node, name, Some(value), there.is_some())
                .await?
            {
                if let Some(directory) = there {
                    self.remove_file(node, &directory, name).await?;
                }
                return Ok(());
            }
        }
        self.put_xattr_file(node, name, value).await
    }

    /// Puts an attribute into the directory, and out of the dnode.
    pub(crate) async fn put_xattr_file(
        &self,
        node: &Arc<Node>,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let directory = self.make_xattr_directory(node, None).await?;
        let there = match find(self.files.rules, &directory, name).await? {
            Some((ino, stored)) => Some((entry_node(&self.files, &directory, ino).await?, stored)),
            None => None,
        };
        match &there {
            Some((file, _)) if file.znode().size <= VALUE_BYTES_MAX as u64 => {
                self.rewrite(file, value).await?;
            }
            _ => {
                let there = there.as_ref().map(|(file, stored)| (file, &stored[..]));
                self.make_file(node, &directory, name, value, there).await?;
            }
        }
        if !node.znode().is_old {
            let in_sa = self
                .sa_xattrs(node)
                .await?
                .iter()
                .any(|(there, _)| there == name);
            if in_sa {
                self.put_sa_xattr(node, name, None, true).await?;
                return Ok(());
            }
        }
        self.touch(node).await
    }

    /// Makes the file of an attribute, in place of one that is there under this name, as it is
    /// stored, if there is one: in one transaction, with its value. So there is the value that was,
    /// or none, or the new one after a crash, and in a snapshot.
    async fn make_file(
        &self,
        of: &Arc<Node>,
        directory: &Arc<Node>,
        name: &[u8],
        value: &[u8],
        there: Option<(&Arc<Node>, &[u8])>,
    ) -> Result<()> {
        let owner = of.znode();
        let owner = Caller::new(owner.uid as u32, owner.gid as u32);
        let make = Make {
            content: Bytes::copy_from_slice(value),
            ..Make::new(FileKind::Regular, 0o644, owner)
        };
        let stored = there.map_or(name, |(_, stored)| match stored {
            [] => name,
            stored => stored,
        });
        let replaced = there.map(|(file, _)| Replaced {
            unlinked: &self.unlinked,
            file,
        });
        check_after(of, directory)?;
        let _owner = of.lock().await?;
        let (files, quotas) = (&self.files, &self.quotas);
        make_in_place(files, quotas, directory, stored, &make, replaced).await?;
        if let Some((file, _)) = there
            && !self.files.nodes.is_retained(file.ino)
        {
            self.unlinked.spawn_reap(file.ino);
        }
        Ok(())
    }

    /// Gives a file in the directory of attributes another content, in one transaction: the one or
    /// the other is there after a crash, and the old one where there is no room (OpenZFS cuts the
    /// file first, `zpl_xattr_set_dir`). Neither may be longer than Linux lets attributes be.
    async fn rewrite(&self, file: &Arc<Node>, value: &[u8]) -> Result<()> {
        let before = file.znode().size;
        // What is beyond its end must be zero.
        let mut content = value.to_vec();
        content.resize(value.len().max(before as usize), 0);
        let size = Some(value.len() as u64);
        write_node(
            &self.files,
            &self.quotas,
            file,
            Place::At(0),
            content.into(),
            Via::Cache,
            Caller::ROOT,
            size,
        )
        .await?;
        if (value.len() as u64) < before && before > u64::from(file.object.info().data_block_bytes)
        {
            // Whole blocks of zeros may stay.
            match free_space(&self.files, file, value.len() as u64, 0).await {
                Err(FsError::NoSpace | FsError::QuotaExceeded) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Removes an attribute's file.
    async fn remove_file(&self, of: &Arc<Node>, directory: &Arc<Node>, name: &[u8]) -> Result<()> {
        check_after(of, directory)?;
        let _owner = of.lock().await?;
        remove_in(&self.files, &self.unlinked, directory, name, false)
            .await
            .map(|_| ())
    }

    /// Removes an attribute from wherever it is; whether it was there.
    pub(crate) async fn drop_xattr(&self, node: &Arc<Node>, name: &[u8]) -> Result<bool> {
        let mut found = false;
        if !node.znode().is_old
            && self
                .sa_xattrs(node)
                .await?
                .iter()
                .any(|(there, _)| there == name)
        {
            self.put_sa_xattr(node, name, None, false).await?;
            found = true;
        }
        if let Some(directory) = self.xattr_directory(node).await?
            && find(self.files.rules, &directory, name).await?.is_some()
        {
            self.remove_file(node, &directory, name).await?;
            self.touch(node).await?;
            found = true;
        }
        Ok(found)
    }

    /// Notes that the file's attributes changed. That is done by now: without room for more, the
    /// time stays as it was (`zpl_xattr_set_dir` goes on likewise).
    async fn touch(&self, node: &Arc<Node>) -> Result<()> {
        let node = node.lock().await?;
        let tx = match self.files.assign(DirtyEstimate::metadata()).await {
            Err(FsError::NoSpace | FsError::QuotaExceeded) => return Ok(()),
            other => other?,
        };
        let changed = touched(node.znode(), self.files.opening.now(), false);
        self.files
            .store(&tx, &node, changed, &[attr::CTIME], [])
            .await
    }

    /// Sets or removes an attribute in the dnode, which `moves` from or to the directory. Returns
    /// `false` if it does not fit there.
    pub(crate) async fn put_sa_xattr(
        &self,
        node: &Arc<Node>,
        name: &[u8],
        value: Option<&[u8]>,
        moves: bool,
    ) -> Result<bool> {
        let mut list = self.sa_xattrs(node).await?.to_vec();
        if let Some(value) = value
            && (value.len() > SA_VALUE_BYTES_MAX || pack(&list)?.len() > SA_LIST_BYTES_MAX)
        {
            return Ok(false);
        }
        list.retain(|(there, _)| there != name);
        if let Some(value) = value {
            list.push((name.to_vec(), Bytes::copy_from_slice(value)));
        }
        let packed = pack(&list)?;
        if packed.len() > SA_BYTES_MAX {
            return Ok(false);
        }
        let node = node.lock().await?;
        let estimate = match value {
            Some(_) => DirtyEstimate::metadata(),
            None => DirtyEstimate::free(),
        };
        let tx = self.files.assign(estimate).await?;
        let changed = touched(node.znode(), self.files.opening.now(), false);
        let more = [(attr::DXATTR, Bytes::from(packed))];
        self.files
            .store(&tx, &node, changed, &[attr::CTIME], more)
            .await?;
        node.state.write().keep_sa_xattrs(Arc::new(list));
        if changed.links > 0 {
            let record = match self.logs_sa_xattrs() {
                true => log::sa_xattr_set(node.ino, name, value, moves),
                false => LogRecord::unlogged(ObjectId::new(node.ino), moves),
            };
            self.files.record(&tx, record);
        }
        Ok(true)
    }

    /// Whether the pool lets the log speak of attributes in the dnode (feature `zilsaxattr`).
    fn logs_sa_xattrs(&self) -> bool {
        self.files
            .opening
            .dataset()
            .is_ok_and(|dataset| dataset.dsl().features().is_enabled(guid::ZILSAXATTR))
    }

    /// The directory of a file's attributes, made if there is none.
    pub(crate) async fn make_xattr_directory(
        &self,
        owner: &Arc<Node>,
        replayed: Option<Replayed>,
    ) -> Result<Arc<Node>> {
        if let Some(directory) = self.xattr_directory(owner).await? {
            return Ok(directory);
        }
        if is_of_xattr(&owner.znode()) {
            return Err(FsError::Invalid {
                what: "extended attributes have none themselves",
            });
        }
        let owner = owner.lock().await?;
        let tx = self.files.assign(DirtyEstimate::metadata()).await?;
        let directory = new_xattr_directory(&self.files, &tx, &owner, replayed).await?;
        let mut changed = owner.znode();
        changed.xattr = directory.ino;
        self.files
            .store(&tx, &owner, changed, &[attr::XATTR], [])
            .await?;
        if changed.links > 0 {
            let slots = directory.object.info().slots;
            let znode = directory.znode();
            let record = log::created(
                LogCreateKind::XattrDirectory,
                owner.ino,
                directory.ino,
                slots,
                &znode,
                b"",
                b"",
            );
            self.files.record(&tx, record);
        }
        Ok(directory)
    }

    /// Sets a POSIX list of access, or the default of a directory. An empty one removes it.
    async fn set_posix_acl(
        &self,
        node: &Arc<Node>,
        name: &[u8],
        value: &[u8],
        caller: Caller,
    ) -> Result<()> {
        let acl = PosixAcl::decode(value).ok_or(FsError::Invalid {
            what: "the access control list is not valid",
        })?;
        if name == posix_acl::DEFAULT {
            if node.zap.is_none() {
                return match acl {
                    Some(_) => Err(FsError::NotPermitted {
                        ino: node.ino,
                        what: "only directories have a default list; set it on one",
                    }),
                    None => Ok(()),
                };
            }
            return match acl {
                Some(acl) => self.put_xattr(node, name, &acl.encode()).await,
                None => self.drop_xattr(node, name).await.map(|_| ()),
            };
        }
        let Some(acl) = acl else {
            return self.drop_xattr(node, name).await.map(|_| ());
        };
        let (permissions, says_all) = acl.mode();
        let before = node.znode();
        let kept = match before.mode & 0o2000 {
            0o2000 if !caller.may_keep_set_group_id(before.gid) => 0o5000,
            _ => 0o7000,
        };
        let mode = before.mode & kept | permissions;
        if mode != node.znode().mode & 0o7777 {
            let set = SetAttributes {
                mode: Some(mode),
                ..Default::default()
            };
            let node = node.lock().await?;
            set_locked(&self.files, &self.quotas, &node, &set, caller).await?;
        }
        if says_all {
            self.drop_xattr(node, name).await.map(|_| ())
        } else {
            self.put_xattr(node, name, &acl.encode()).await
        }
    }

    /// After `chmod`: the list of access follows.
    pub(crate) async fn posix_acl_follows_mode(&self, node: &Arc<Node>) -> Result<()> {
        if !self.files.opening.has_posix_acls() || node.znode().kind() == FileKind::Symlink {
            return Ok(());
        }
        let _lock = node.xattrs.write().await;
        let Some(value) = self.stored_xattr(node, posix_acl::ACCESS).await? else {
            return Ok(());
        };
        let Some(Some(acl)) = PosixAcl::decode(&value) else {
            return Ok(());
        };
        let changed = acl.clone().with_mode(node.znode().mode & 0o777);
        if changed != acl {
            self.put_xattr(node, posix_acl::ACCESS, &changed.encode())
                .await?;
        }
        Ok(())
    }

    /// What a new file in `directory` inherits: its mode, and the lists (access, default) to be
    /// given to it. Without a default list the caller's umask applies.
    pub(crate) async fn inherited_lists(
        &self,
        directory: &Node,
        kind: FileKind,
        mode: u32,
        umask: u32,
    ) -> Result<(u32, Option<Bytes>, Option<Bytes>)> {
        if kind == FileKind::Symlink {
            return Ok((mode, None, None));
        }
        let default = if self.files.opening.has_posix_acls()
            && directory.znode().flags & pflags::XATTR == 0
        {
            self.stored_xattr(directory, posix_acl::DEFAULT).await?
        } else {
            None
        };
        let Some(Some(acl)) = default.as_deref().and_then(PosixAcl::decode) else {
            return Ok((mode & !umask, None, None));
        };
        let passed_on = (kind == FileKind::Directory).then(|| Bytes::from(acl.encode()));
        let (list, permissions) = acl.inherited(mode & 0o777);
        let access = list.map(|list| Bytes::from(list.encode()));
        Ok((mode & 0o7000 | permissions, access, passed_on))
    }

    /// Gives a new file the lists that it inherits.
    pub(crate) async fn give_lists(
        &self,
        node: &Arc<Node>,
        access: Option<Bytes>,
        default: Option<Bytes>,
    ) -> Result<()> {
        if access.is_none() && default.is_none() {
            return Ok(());
        }
        let _lock = node.xattrs.write().await;
        if let Some(list) = default {
            self.put_xattr(node, posix_acl::DEFAULT, &list).await?;
        }
        if let Some(list) = access {
            self.put_xattr(node, posix_acl::ACCESS, &list).await?;
        }
        Ok(())
    }
}

/// Whether a user may change a file's attributes, lists of access among them (`xattr_permission`,
/// fs/xattr.c). What the filesystem does by itself need not ask.
fn may_change_xattrs(node: &Node) -> Result<()> {
    if node.znode().flags & (pflags::IMMUTABLE | pflags::APPENDONLY) != 0 {
        return Err(FsError::NotPermitted {
            ino: node.ino,
            what: "it is immutable or append-only; change that with chattr",
        });
    }
    Ok(())
}

/// The nvlist as it is stored (`zfs_sa_set_xattr`).
fn pack(list: &[(Vec<u8>, Bytes)]) -> Result<Vec<u8>> {
    let mut packed = NvList::new();
    for (name, value) in list {
        packed.push_bytes(name, NvValue::ByteArray(value.to_vec()));
    }
    packed
        .encode(NvEncoding::Xdr)
        .map_err(|error| FsError::Object {
            source: Box::new(error),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bytes() {
        const NAME: &[u8] = b"user.caf\xe9";
        let packed = pack(&[(NAME.to_vec(), Bytes::from_static(b"x"))]).expect("packed");
        assert!(packed.windows(NAME.len()).any(|bytes| bytes == NAME));
        let list = NvList::decode(&packed).expect("a list");
        assert_eq!(list.iter_bytes().next().map(|(name, _)| name), Some(NAME));
    }

    #[test]
    fn names_of_other_systems_are_user_attributes() {
        assert_eq!(shown(b"mime_type"), b"user.mime_type");
        assert_eq!(shown(b"user.mime_type"), b"user.mime_type");
        assert_eq!(shown(b"trusted.x"), b"trusted.x");
        assert_eq!(alternative(b"user.mime_type"), Some(&b"mime_type"[..]));
        assert_eq!(alternative(b"user.trusted.x"), None);
        assert_eq!(alternative(b"user."), None);
        assert_eq!(alternative(b"trusted.x"), None);
    }
}
