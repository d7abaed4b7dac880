//! From file handles to files, and what callers may do to them: what all versions of NFS share.
//!
//! The rules of who may do what are those of Linux for its own users (`may_create`, `may_delete`,
//! fs/namei.c; `setattr_prepare`, fs/attr.c), and as its server has them where that differs
//! (`nfsd_permission`, fs/nfsd/vfs.c): an owner may read and write whatever the mode says, as a
//! client opened the file long before, and who may execute a file may read it.

use std::sync::Arc;

use access::{ControlEntry, ControlNode, MAY_EXECUTE, MAY_READ, MAY_WRITE, Snapdir, permits};
use device::BoxFuture;
use filesystem::{
    Attributes, Caller, FileKind, Filesystem, FsError, SetAttributes, SetTime, pflags,
};

use crate::handle::{Handle, Place};
use crate::share::Entered;

/// The directory of snapshots.
const ZFS_NAME: &[u8] = b".zfs";
const STICKY: u32 = 0o1000;
const SET_GROUP_ID: u32 = 0o2000;

/// Why a request cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The filesystem says so.
    #[error(transparent)]
    Filesystem(#[from] FsError),
    /// The file's permissions do not let the caller do it.
    #[error("the file's permissions do not let this caller do it; change them with chmod")]
    Access,
    /// Only the owner, or root, may do it.
    #[error("only the file's owner may do this; ask them")]
    NotOwner,
    /// Something else is mounted there, or below.
    #[error("another filesystem is mounted there, or below; unmount it on the server first")]
    MountedOn,
    /// The share, or the part of it, takes no changes.
    #[error("the share is read-only; write through another one")]
    ReadOnly,
    /// The handle is none of ours.
    #[error("the file handle is not one of this server; mount again")]
    BadHandle,
    /// What it led to is gone.
    #[error("the file is gone; look its name up again")]
    Stale,
    /// The file changed since the client looked.
    #[error("the file changed in between; look again")]
    NotSynchronized,
    /// The cookie of a directory is none of ours.
    #[error("the place in the directory is not known; list it from the start")]
    BadCookie,
    /// What was asked for does not fit into the answer.
    #[error("the answer does not fit; ask for more bytes")]
    TooSmall,
    /// This kind of file cannot be made.
    #[error("this kind of file cannot be made; use another one")]
    BadType,
}

/// Short for results.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// A file that a request is about. While this lives, its number is of no other file.
pub(crate) struct File {
    pub(crate) filesystem: Arc<Filesystem>,
    /// The snapshot that it is in, by guid.
    pub(crate) snapshot: Option<u64>,
    /// As it was when the request came to it.
    pub(crate) attributes: Attributes,
}

impl Drop for File {
    fn drop(&mut self) {
        if self.snapshot.is_none() {
            self.filesystem.unlinked().let_go(self.attributes.ino);
        }
    }
}

/// What a handle leads to.
pub(crate) enum Object {
    /// A file.
    File(File),
    /// A directory of `.zfs`.
    Control(ControlNode),
}

/// Attributes as versions of NFS tell them, and which filesystem they are of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) attributes: Attributes,
    pub(crate) fsid: u64,
}

fn control_node(number: u64) -> Option<ControlNode> {
    Some(match number {
        0 => ControlNode::Zfs,
        1 => ControlNode::Snapshots,
        2 => ControlNode::Shares,
        _ => return None,
    })
}

fn control_number(node: ControlNode) -> u64 {
    match node {
        ControlNode::Zfs => 0,
        ControlNode::Snapshots => 1,
        ControlNode::Shares => 2,
        // Never told to anybody.
        ControlNode::Shadow => 3,
    }
}

/// The filesystem's number in attributes. Each snapshot is one of its own, as file numbers repeat.
fn fsid(dataset: u64, snapshot: Option<u64>) -> u64 {
    dataset ^ snapshot.unwrap_or(0).rotate_left(17)
}

impl File {
    async fn open(filesystem: Arc<Filesystem>, snapshot: Option<u64>, ino: u64) -> Result<Self> {
        if snapshot.is_none() {
            filesystem.unlinked().hold(ino);
        }
        let known = filesystem.try_attributes(ino);
        let attributes = match known {
            Some(attributes) => Ok(attributes),
            None => filesystem.attributes(ino).await,
        };
        match attributes {
            Ok(attributes) => Ok(Self {
                filesystem,
                snapshot,
                attributes,
            }),
            Err(error) => {
                if snapshot.is_none() {
                    filesystem.unlinked().let_go(ino);
                }
                Err(error.into())
            }
        }
    }

    pub(crate) fn ino(&self) -> u64 {
        self.attributes.ino
    }

    /// What it is like now.
    pub(crate) async fn now(&self) -> Result<Attributes> {
        match self.filesystem.try_attributes(self.ino()) {
            Some(attributes) => Ok(attributes),
            None => Ok(self.filesystem.attributes(self.ino()).await?),
        }
    }
}

impl Entered {
    /// What a handle leads to.
    pub(crate) async fn resolve(&self, place: Place) -> Result<Object> {
        // Without `.zfs` nothing leads into it, handles from before neither: with OpenZFS they do
        // so by a path in it (`zfsctl_snapdir_vget`, module/os/linux/zfs/zfs_ctldir.c).
        let is_within = matches!(place, Place::Snapshot { .. } | Place::Control { .. });
        if is_within && self.share.control.snapdir() == Snapdir::Disabled {
            return Err(Error::Stale);
        }
        let (snapshot, ino, generation) = match place {
            Place::File { ino, generation } => (None, ino, generation),
            Place::Snapshot {
                snapshot,
                ino,
                generation,
            } => (Some(snapshot), ino, generation),
            Place::Control { node } => {
                return control_node(node)
                    .map(Object::Control)
                    .ok_or(Error::BadHandle);
            }
            Place::Export { .. } => return Err(Error::BadHandle),
        };
        let filesystem = match snapshot {
            None => Arc::clone(&self.filesystem),
            Some(guid) => {
                let opening: BoxFuture<'_, _> = Box::pin(self.share.snapshot(guid));
                opening.await?
            }
        };
        let file = File::open(filesystem, snapshot, ino).await?;
        if file.attributes.generation != generation || file.attributes.nlink == 0 {
            return Err(Error::Stale);
        }
        // Extended attributes are files too, in directories that anybody may write: a file's own
        // permissions guard them in a mount. No handle of ours leads there, and handles that
        // clients put together themselves do not either.
        if file.attributes.flags & pflags::XATTR != 0 {
            return Err(Error::Stale);
        }
        Ok(Object::File(file))
    }

    /// A file that a handle leads to; directories of `.zfs` do not do.
    pub(crate) async fn file(&self, place: Place) -> Result<File> {
        match self.resolve(place).await? {
            Object::File(file) => Ok(file),
            Object::Control(_) => Err(Error::Filesystem(FsError::IsDirectory { ino: 0 })),
        }
    }

    /// A file that is to be changed.
    pub(crate) async fn file_to_change(&self, place: Place) -> Result<File> {
        let object = self.resolve(place).await?;
        match object {
            Object::File(file) => {
                self.check_writable(&file)?;
                self.note_change();
                Ok(file)
            }
            Object::Control(_) => Err(Error::ReadOnly),
        }
    }

    pub(crate) fn check_writable(&self, file: &File) -> Result<()> {
        if self.is_read_only || file.snapshot.is_some() || file.filesystem.is_read_only() {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }

    /// Handle of a file in the same filesystem or snapshot as `near`.
    pub(crate) fn handle_of(&self, snapshot: Option<u64>, attributes: &Attributes) -> Handle {
        let (ino, generation) = (attributes.ino, attributes.generation);
        let place = match snapshot {
            None => Place::File { ino, generation },
            Some(snapshot) => Place::Snapshot {
                snapshot,
                ino,
                generation,
            },
        };
        Handle {
            dataset: self.share.identity,
            place,
        }
    }

    pub(crate) fn control_handle(&self, node: ControlNode) -> Handle {
        Handle {
            dataset: self.share.identity,
            place: Place::Control {
                node: control_number(node),
            },
        }
    }

    /// A handle of an object that was resolved.
    pub(crate) fn handle(&self, object: &Object) -> Handle {
        match object {
            Object::File(file) => self.handle_of(file.snapshot, &file.attributes),
            Object::Control(node) => self.control_handle(*node),
        }
    }

    pub(crate) fn told(&self, snapshot: Option<u64>, attributes: Attributes) -> Told {
        Told {
            attributes,
            fsid: fsid(self.share.identity, snapshot),
        }
    }

    /// Attributes of an object now.
    pub(crate) async fn tell(&self, object: &Object) -> Result<Told> {
        match object {
            Object::File(file) => Ok(self.told(file.snapshot, file.now().await?)),
            Object::Control(node) => self.tell_control(*node).await,
        }
    }

    pub(crate) async fn tell_control(&self, node: ControlNode) -> Result<Told> {
        let told = self.share.control.attributes(node).await;
        let since = told.modified.duration_since(std::time::UNIX_EPOCH);
        let since = since.unwrap_or_default();
        let time = filesystem::Time {
            seconds: i64::try_from(since.as_secs()).unwrap_or(0),
            nanoseconds: since.subsec_nanos(),
        };
        // What is not told here is as the root has it.
        let root = self.filesystem.attributes(self.filesystem.root()).await?;
        let attributes = Attributes {
            ino: node.number(),
            generation: 0,
            kind: FileKind::Directory,
            mode: 0o555,
            uid: 0,
            gid: 0,
            nlink: told.links.max(2),
            size_bytes: told.size_bytes,
            allocated_bytes: 0,
            rdev: (0, 0),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            flags: 0,
            project: None,
            ..root
        };
        Ok(self.told(None, attributes))
    }

    /// Whether `.zfs` is listed in the root.
    pub(crate) fn lists_control(&self, file: &File) -> bool {
        file.snapshot.is_none()
            && file.ino() == self.filesystem.root()
            && self.share.control.snapdir() == Snapdir::Visible
    }

    /// What has a name in a directory. The caller must be let into the directory.
    pub(crate) async fn lookup(&self, directory: &Object, name: &[u8]) -> Result<Object> {
        match directory {
            Object::Control(node) => self.lookup_control(*node, name).await,
            Object::File(directory) => {
                if directory.attributes.kind != FileKind::Directory {
                    let ino = directory.ino();
                    return Err(FsError::NotDirectory { ino }.into());
                }
                self.check(&directory.attributes, directory, MAY_EXECUTE)
                    .await?;
                let is_root = directory.ino() == directory.filesystem.root();
                match (directory.snapshot, name) {
                    (Some(_), b"..") if is_root => Ok(Object::Control(ControlNode::Snapshots)),
                    (None, ZFS_NAME) if is_root => match self.share.control.snapdir() {
                        // Hidden, it is found by its name, as in a mount.
                        Snapdir::Visible | Snapdir::Hidden => Ok(Object::Control(ControlNode::Zfs)),
                        Snapdir::Disabled => self.lookup_file(directory, name).await,
                    },
                    _ => self.lookup_file(directory, name).await,
                }
            }
        }
    }

    async fn lookup_file(&self, directory: &File, name: &[u8]) -> Result<Object> {
        loop {
            let found = directory.filesystem.lookup(directory.ino(), name).await?;
            let filesystem = Arc::clone(&directory.filesystem);
            let file = File::open(filesystem, directory.snapshot, found.ino).await?;
            // Until it is open, it may be removed, and its number given to another file.
            if file.attributes.generation == found.generation {
                return Ok(Object::File(file));
            }
        }
    }

    fn lookup_control<'a>(
        &'a self,
        node: ControlNode,
        name: &'a [u8],
    ) -> BoxFuture<'a, Result<Object>> {
        // Boxed: opening a snapshot is deep, and rare.
        Box::pin(self.find_control(node, name))
    }

    async fn find_control(&self, node: ControlNode, name: &[u8]) -> Result<Object> {
        match (node, name) {
            (_, b".") => return Ok(Object::Control(node)),
            (ControlNode::Zfs, b"..") => {
                let root = self.filesystem.root();
                let file = File::open(Arc::clone(&self.filesystem), None, root).await?;
                return Ok(Object::File(file));
            }
            (_, b"..") => return Ok(Object::Control(ControlNode::Zfs)),
            _ => {}
        }
        match self.share.control.lookup(node, name).await? {
            // The same snapshots once more, for Samba.
            ControlEntry::Node(node @ ControlNode::Shadow) => {
                Err(FsError::NotFound { ino: node.number() }.into())
            }
            ControlEntry::Node(node) => Ok(Object::Control(node)),
            ControlEntry::Snapshot(snapshot) => {
                let filesystem = self.share.opened(&snapshot).await?;
                let guid = filesystem.dataset()?.guid().get();
                self.share
                    .remember_snapshot(guid, snapshot.name().to_owned());
                let root = filesystem.root();
                let file = File::open(filesystem, Some(guid), root).await?;
                Ok(Object::File(file))
            }
        }
    }

    /// Whether the caller may do all of `wanted` to a file.
    pub(crate) async fn may(
        &self,
        attributes: &Attributes,
        near: &File,
        wanted: u32,
    ) -> Result<bool> {
        Ok(permits(&near.filesystem, attributes, &self.who, wanted).await?)
    }

    pub(crate) async fn check(
        &self,
        attributes: &Attributes,
        near: &File,
        wanted: u32,
    ) -> Result<()> {
        match self.may(attributes, near, wanted).await? {
            true => Ok(()),
            false => Err(Error::Access),
        }
    }

    pub(crate) fn owns(&self, attributes: &Attributes) -> bool {
        self.who.is_root() || self.who.uid == attributes.uid
    }

    /// Whether the caller may read a file's content.
    pub(crate) async fn check_read(&self, file: &File) -> Result<()> {
        let attributes = &file.attributes;
        if self.owns(attributes) || self.may(attributes, file, MAY_READ).await? {
            return Ok(());
        }
        self.check(attributes, file, MAY_EXECUTE).await
    }

    /// Whether the caller may change a file's content.
    pub(crate) async fn check_write(&self, file: &File) -> Result<()> {
        if self.owns(&file.attributes) {
            return Ok(());
        }
        self.check(&file.attributes, file, MAY_WRITE).await
    }

    /// Whether a name in a directory is that of `.zfs`, which is there whatever is stored.
    fn is_control(&self, directory: &File, name: &[u8]) -> bool {
        name == ZFS_NAME
            && directory.ino() == directory.filesystem.root()
            && self.share.control.snapdir() != Snapdir::Disabled
    }

    /// Whether the caller may make the entry `name` in a directory.
    pub(crate) async fn check_make(&self, directory: &File, name: &[u8]) -> Result<()> {
        self.check_entries(directory).await?;
        if self.is_control(directory, name) {
            let ino = directory.ino();
            return Err(FsError::Exists { ino }.into());
        }
        Ok(())
    }

    /// Whether the caller may change entries of a directory.
    async fn check_entries(&self, directory: &File) -> Result<()> {
        if directory.attributes.kind != FileKind::Directory {
            let ino = directory.ino();
            return Err(FsError::NotDirectory { ino }.into());
        }
        let wanted = MAY_WRITE | MAY_EXECUTE;
        self.check(&directory.attributes, directory, wanted).await
    }

    /// Whether the caller may take the entry `name` out of a directory.
    pub(crate) async fn check_remove(&self, directory: &File, name: &[u8]) -> Result<()> {
        self.check_entries(directory).await?;
        if self.is_control(directory, name) {
            return Err(Error::NotOwner);
        }
        let of_directory = &directory.attributes;
        if of_directory.mode & STICKY == 0 || self.owns(of_directory) {
            return Ok(());
        }
        match directory.filesystem.lookup(directory.ino(), name).await {
            Ok(found) if self.owns(&found) => Ok(()),
            Ok(_) => Err(Error::NotOwner),
            // Whoever removes it hears that.
            Err(_) => Ok(()),
        }
    }

    /// Checks a change of attributes, and makes it what the caller may do.
    pub(crate) async fn check_set(&self, file: &File, set: &mut SetAttributes) -> Result<()> {
        let before = &file.attributes;
        let who = &self.who;
        if set.size_bytes.is_some() {
            self.check_write(file).await?;
        }
        if who.is_root() {
            return Ok(());
        }
        let owns = self.owns(before);
        if set.uid.is_some_and(|uid| !owns || uid != before.uid) {
            return Err(Error::NotOwner);
        }
        let gives = |gid| !owns || gid != before.gid && !who.is_in_group(gid);
        if set.gid.is_some_and(gives) {
            return Err(Error::NotOwner);
        }
        if let Some(mode) = &mut set.mode {
            if !owns {
                return Err(Error::NotOwner);
            }
            // Nobody makes a program that runs as a group that is not theirs.
            if !who.is_in_group(set.gid.unwrap_or(before.gid)) {
                *mode &= !SET_GROUP_ID;
            }
        }
        let times = [set.atime, set.mtime];
        if !owns
            && times
                .iter()
                .any(|time| matches!(time, Some(SetTime::At(_))))
        {
            return Err(Error::NotOwner);
        }
        if !owns && times.iter().any(Option::is_some) {
            self.check(before, file, MAY_WRITE).await?;
        }
        Ok(())
    }

    /// The caller, as the filesystem wants it.
    pub(crate) fn caller(&self) -> Caller {
        Caller::new(self.who.uid, self.who.gid)
    }

    /// Waits for the turn to change a directory.
    pub(crate) async fn turn(&self, ino: u64) -> tokio::sync::MutexGuard<'_, ()> {
        let turns = &self.share.turns;
        turns[(ino % turns.len() as u64) as usize].lock().await
    }

    /// Waits for the turn to change two directories.
    pub(crate) async fn turns(
        &self,
        one: u64,
        other: u64,
    ) -> [Option<tokio::sync::MutexGuard<'_, ()>>; 2] {
        let turns = self.share.turns.len() as u64;
        let (one, other) = (one % turns, other % turns);
        if one == other {
            return [Some(self.turn(one).await), None];
        }
        // All take them in the same order.
        let first = self.turn(one.min(other)).await;
        let second = self.turn(one.max(other)).await;
        [Some(first), Some(second)]
    }
}
