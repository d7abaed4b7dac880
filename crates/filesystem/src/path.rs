//! From an object back to the path of the file that it is (`zfs_obj_to_path_impl`,
//! module/zfs/zfs_znode.c): what names damaged files.

use crate::error::{FsError, Result};
use crate::filesystem::Filesystem;

/// Bits of a directory entry that are the object's number (`ZFS_DIRENT_OBJ`).
const ENTRY_OBJECT_MASK: u64 = (1 << 48) - 1;
/// Deeper than any path; ends loops in damaged trees.
const DEPTH_MAX: usize = 1 << 16;
/// A directory of extended attributes in a path.
const XATTR_DIRECTORY: &[u8] = b"<xattrdir>";

impl Filesystem {
    /// A path of a file below the filesystem's root, beginning with a slash; of several links the
    /// one that its attributes lead to.
    ///
    /// # Errors
    /// [`FsError::Stale`] where the object is no file, or a file without a name; errors of reading.
    pub async fn path_of(&self, ino: u64) -> Result<Vec<u8>> {
        let _entered = self.opening.enter().await?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut node = self.files.node(ino).await?;
        while node.ino != self.files.root {
            if names.len() >= DEPTH_MAX {
                return Err(FsError::Corrupt {
                    ino,
                    what: "its parents go in a circle",
                });
            }
            let above = self.files.node(node.znode().parent).await?;
            let name = if above.znode().xattr == node.ino {
                XATTR_DIRECTORY.to_vec()
            } else {
                let found = above
                    .entries()?
                    .value_search(node.ino, ENTRY_OBJECT_MASK)
                    .await?;
                found.ok_or(FsError::Stale { ino })?.to_vec()
            };
            names.push(name);
            node = above;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }
}
