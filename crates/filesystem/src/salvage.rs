//! What is left of a damaged filesystem.
//!
//! [`SalvagedFilesystem`] reads a filesystem's files one by one, by the same layouts and rules as
//! [`crate::Filesystem`], but none of them depends on another: where the master node is damaged,
//! what it points to is found by the objects' types; a damaged directory gives the entries of those
//! of its blocks that can be read; files that no directory has any more are found by their dnodes.
//!
//! For object sets that nothing is written to. Who reads the objects holds no locks.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use format::{ObjectId, ObjectType};
use object::{DnodeRun, Object, ObjectError, ObjectSet, Sa, salvage_zap};

use crate::content::join;
use crate::describe::describe;
use crate::error::{FsError, Result};
use crate::namespace::link_target;
use crate::types::{Attributes, FileKind};
use crate::xattr::{VALUE_BYTES_MAX, shown, xattrs_in_dnode};
use crate::znode::{OLD_ZNODE_BYTES, TABLE, Znode, parse_dirent, pflags};

/// Block size that is shown for what has none, in bytes.
const RECORD_BYTES: u32 = 128 << 10;
/// Attributes of one file that are looked at.
const XATTRS_MAX: usize = 100_000;

/// A filesystem of which parts may be damaged.
pub struct SalvagedFilesystem {
    objset: Arc<ObjectSet>,
    sa: Arc<Sa>,
    root: Option<u64>,
    /// Files that were removed while somebody had them open.
    unlinked: HashSet<u64>,
    problems: Vec<String>,
}

/// A file.
#[derive(Debug, Clone)]
pub struct SalvagedFile {
    object: Object,
    znode: Znode,
}

/// What is left of a directory.
#[derive(Debug, Clone, Default)]
pub struct SalvagedDirectory {
    /// Names with object number and kind.
    pub entries: Vec<(Vec<u8>, u64, Option<FileKind>)>,
    /// What of it cannot be read.
    pub losses: Vec<String>,
}

/// What is left of a file's extended attributes.
#[derive(Debug, Clone, Default)]
pub struct SalvagedXattrs {
    /// Names as Linux shows them, with values.
    pub list: Vec<(Vec<u8>, Bytes)>,
    /// What of them cannot be read.
    pub losses: Vec<String>,
}

/// What the master node says, or else the objects' types.
#[derive(Default)]
struct Places {
    root: Option<u64>,
    attributes: Option<u64>,
    unlinked: Option<u64>,
}

impl SalvagedFilesystem {
    /// Opens what is left.
    ///
    /// # Errors
    /// When the layouts of the files' attributes cannot be read: without them no file can be told
    /// from another.
    pub async fn open(objset: Arc<ObjectSet>) -> Result<Self> {
        let mut problems = Vec::new();
        let mut places = Places::default();
        match objset.hold(ObjectId::MASTER_NODE).await {
            Ok(object) => {
                let master = salvage_zap(&object).await;
                for error in &master.losses {
                    problems.push(format!("the master node: {error}"));
                }
                places = Places {
                    root: master.number("ROOT"),
                    attributes: master.number("SA_ATTRS"),
                    unlinked: master.number("DELETE_QUEUE"),
                };
            }
            Err(error) => problems.push(format!("the master node: {error}")),
        }
        if !problems.is_empty() || places.root.is_none() {
            by_types(&objset, &mut places).await;
        }
        let master = ObjectId::new(places.attributes.unwrap_or(0));
        let sa = Sa::setup(&objset, master, &TABLE).await?;
        let mut unlinked = HashSet::new();
        if let Some(id) = places.unlinked {
            match objset.hold(ObjectId::new(id)).await {
                Ok(object) => {
                    let queue = salvage_zap(&object).await;
                    unlinked.extend(queue.entries.iter().filter_map(|entry| entry.1.as_u64()));
                    for error in queue.losses {
                        problems.push(format!("the delete queue: {error}"));
                    }
                }
                Err(error) => problems.push(format!("the delete queue: {error}")),
            }
        }
        let mut filesystem = Self {
            objset,
            sa,
            root: places.root,
            unlinked,
            problems,
        };
        if filesystem.root.is_none() {
            filesystem.root = filesystem.find_root().await;
        }
        Ok(filesystem)
    }

    /// The directory that is its own parent.
    async fn find_root(&self) -> Option<u64> {
        let mut from = Some(0);
        while let Some(at) = from {
            let run = self.objset.dnode_run(at).await;
            from = run.next;
            for id in run.objects {
                if let Ok(file) = self.file(id.get()).await
                    && file.znode.is_directory()
                    && file.znode.parent == id.get()
                    && file.znode.flags & pflags::XATTR == 0
                {
                    return Some(id.get());
                }
            }
        }
        None
    }

    /// What could not be read of the filesystem's own structures.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Number of the root directory, if it is known.
    pub fn root(&self) -> Option<u64> {
        self.root
    }

    /// Whether the file waits to be freed: it has no name on purpose.
    pub fn is_unlinked(&self, ino: u64) -> bool {
        self.unlinked.contains(&ino)
    }

    /// The numbers of objects in the first block of dnodes at or after number `from`. Not all of
    /// them are files.
    pub async fn dnode_run(&self, from: u64) -> DnodeRun {
        self.objset.dnode_run(from).await
    }

    /// A file by its number.
    ///
    /// # Errors
    /// [`FsError::Stale`] when the object is no file; errors of reading.
    pub async fn file(&self, ino: u64) -> Result<SalvagedFile> {
        if ino == 0 || ino >= ObjectId::LIMIT {
            return Err(FsError::Stale { ino });
        }
        let object = match self.objset.hold(ObjectId::new(ino)).await {
            Err(ObjectError::NoSuchObject { .. }) => return Err(FsError::Stale { ino }),
            other => other?,
        };
        let info = object.info();
        let is_file = info.bonus_type == ObjectType::SA
            || info.bonus_type == ObjectType::ZNODE && info.bonus_bytes >= OLD_ZNODE_BYTES;
        if !is_file {
            return Err(FsError::Stale { ino });
        }
        let attributes = self.sa.get_all(&object).await?;
        let znode = Znode::parse(ino, info.bonus_type, &attributes)?;
        Ok(SalvagedFile { object, znode })
    }

    /// A directory's entries, without `.` and `..`.
    pub async fn entries(&self, directory: &SalvagedFile) -> SalvagedDirectory {
        let zap = salvage_zap(&directory.object).await;
        let mut losses: Vec<String> = zap.losses.iter().map(ToString::to_string).collect();
        // Reading leaf by leaf meets the failure that made it necessary again.
        losses.dedup();
        let mut entries = Vec::with_capacity(zap.entries.len());
        for (name, value) in zap.entries {
            // A name that could leave the directory, or is none, is damage.
            let is_name = !name.is_empty()
                && !name.contains(&b'/')
                && !name.contains(&0)
                && *name != *b"."
                && *name != *b"..";
            match value.as_u64() {
                Some(value) if is_name => {
                    let (ino, kind) = parse_dirent(value);
                    entries.push((name.to_vec(), ino, kind));
                }
                _ => losses.push(format!(
                    "an entry makes no sense: {:?}",
                    String::from_utf8_lossy(&name)
                )),
            }
        }
        entries.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        SalvagedDirectory { entries, losses }
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// Of reading.
    pub async fn link_target(&self, link: &SalvagedFile) -> Result<Bytes> {
        link_target(&self.sa, &link.object, &link.znode).await
    }

    /// A file's extended attributes, those of all namespaces that are stored.
    pub async fn xattrs(&self, file: &SalvagedFile) -> SalvagedXattrs {
        let mut out = SalvagedXattrs::default();
        if !file.znode.is_old {
            match xattrs_in_dnode(&self.sa, &file.object).await {
                Ok(list) => {
                    let shown = list.into_iter().map(|(name, value)| (shown(&name), value));
                    out.list.extend(shown);
                }
                Err(error) => out.losses.push(error.to_string()),
            }
        }
        if file.znode.xattr != 0 {
            match self.file(file.znode.xattr).await {
                Ok(directory) => self.xattrs_in(&directory, &mut out).await,
                Err(error) => out.losses.push(error.to_string()),
            }
        }
        out
    }

    async fn xattrs_in(&self, directory: &SalvagedFile, out: &mut SalvagedXattrs) {
        let found = self.entries(directory).await;
        out.losses.extend(found.losses);
        for (name, ino, _) in found.entries.into_iter().take(XATTRS_MAX) {
            let name = shown(&name);
            if out.list.iter().any(|(known, _)| *known == name) {
                continue;
            }
            let value = async {
                let file = self.file(ino).await?;
                let size = usize::try_from(file.znode.size)
                    .unwrap_or(usize::MAX)
                    .min(VALUE_BYTES_MAX);
                Ok::<_, FsError>(join(file.object.read(0, size).await?))
            };
            match value.await {
                Ok(value) => out.list.push((name, value)),
                Err(error) => out
                    .losses
                    .push(format!("{}: {error}", String::from_utf8_lossy(&name))),
            }
        }
    }
}

/// Fills in what is not known yet by the types of objects.
async fn by_types(objset: &Arc<ObjectSet>, places: &mut Places) {
    let mut from = Some(0);
    while let Some(at) = from {
        let run = objset.dnode_run(at).await;
        from = run.next;
        for id in run.objects {
            let Ok(object) = objset.hold(id).await else {
                continue;
            };
            match object.info().object_type {
                ObjectType::SA_MASTER_NODE => {
                    places.attributes.get_or_insert(id.get());
                }
                ObjectType::UNLINKED_SET => {
                    places.unlinked.get_or_insert(id.get());
                }
                _ => {}
            }
        }
    }
}

impl SalvagedFile {
    /// Its attributes.
    pub fn attributes(&self) -> Attributes {
        describe(
            self.object.id().get(),
            &self.znode,
            &self.object.info(),
            0,
            RECORD_BYTES,
        )
    }

    /// Whether it is (in) a directory of extended attributes.
    pub fn is_xattr(&self) -> bool {
        self.znode.flags & pflags::XATTR != 0
    }

    /// The object that holds its content.
    pub fn content(&self) -> &Object {
        &self.object
    }

    /// Its size as far as a file may be long: what is beyond cannot have been written.
    pub fn content_range(&self) -> Range<u64> {
        0..self.znode.size.min(i64::MAX as u64)
    }
}
