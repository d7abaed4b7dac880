//! The filesystem as a whole, and its operations by object number.
#![allow(clippy::todo, unused_variables, clippy::unused_async, missing_docs)]

use bytes::Bytes;

use crate::error::Result;
use crate::types::*;

/// How to open a filesystem. The defaults are those of the properties' defaults.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Refuse every change (`readonly=on`, snapshots).
    pub read_only: bool,
    /// Update access times (`atime`).
    pub atime: bool,
    /// Update them only where older than the last change, or than a day (`relatime`).
    pub relatime: bool,
    /// Keep new extended attributes in the dnode's system attributes (`xattr=sa`) rather than in a
    /// hidden directory (`xattr=dir`); `None`: none at all (`xattr=off`).
    pub xattr_in_sa: Option<bool>,
    /// Offer POSIX ACLs (`acltype=posix`).
    pub posix_acl: bool,
    /// Names up to 1023 bytes (`longname=on`).
    pub long_names: bool,
    /// Largest block of a file, in bytes (`recordsize`).
    pub record_bytes: u32,
}

/// A filesystem, open.
pub struct Filesystem {
    _private: (),
}

impl Filesystem {
    /// Object number of the root directory.
    pub fn root(&self) -> u64 {
        todo!()
    }
    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        todo!()
    }
    /// Changes what can be changed while open (a property was set).
    pub fn set_options(&self, options: OpenOptions) {
        todo!()
    }
    /// Counts one more user of the object (a kernel's lookup, an open file): while there are any,
    /// an unlinked file keeps its content.
    pub fn retain(&self, ino: u64, count: u64) {
        todo!()
    }
    /// Takes back [`Filesystem::retain`]; the last one frees an unlinked file, in the background.
    pub fn release(&self, ino: u64, count: u64) {
        todo!()
    }
    /// The entry called `name`.
    pub async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Attributes> {
        todo!()
    }
    /// All about an object.
    pub async fn attributes(&self, ino: u64) -> Result<Attributes> {
        todo!()
    }
    /// Changes attributes, all in one transaction where no block has to be freed.
    pub async fn set_attributes(
        &self,
        ino: u64,
        set: &SetAttributes,
        caller: Caller,
    ) -> Result<Attributes> {
        todo!()
    }
    /// Makes a regular file; fails if the name exists.
    pub async fn create(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        caller: Caller,
    ) -> Result<Attributes> {
        todo!()
    }
    /// Makes a directory.
    pub async fn make_directory(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        caller: Caller,
    ) -> Result<Attributes> {
        todo!()
    }
    /// Makes a fifo, socket, device or regular file; `rdev` is (major, minor).
    pub async fn make_node(
        &self,
        parent: u64,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: (u32, u32),
        caller: Caller,
    ) -> Result<Attributes> {
        todo!()
    }
    /// Makes a symbolic link.
    pub async fn symlink(
        &self,
        parent: u64,
        name: &[u8],
        target: &[u8],
        caller: Caller,
    ) -> Result<Attributes> {
        todo!()
    }
    /// Where a symbolic link points.
    pub async fn read_link(&self, ino: u64) -> Result<Bytes> {
        todo!()
    }
    /// Gives a file another name.
    pub async fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attributes> {
        todo!()
    }
    /// Removes a name that is not a directory's.
    pub async fn unlink(&self, parent: u64, name: &[u8]) -> Result<()> {
        todo!()
    }
    /// Removes an empty directory.
    pub async fn remove_directory(&self, parent: u64, name: &[u8]) -> Result<()> {
        todo!()
    }
    /// Renames.
    pub async fn rename(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        mode: RenameMode,
        caller: Caller,
    ) -> Result<()> {
        todo!()
    }
    /// A read without waiting, if all of it is in memory.
    pub fn try_read(&self, ino: u64, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        todo!()
    }
    /// Reads; less than asked for at the end of the file.
    pub async fn read(
        &self,
        ino: u64,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> Result<Vec<Bytes>> {
        todo!()
    }
    /// Writes all of `data`; with `sync` it is on stable storage when this returns.
    pub async fn write(
        &self,
        ino: u64,
        offset_bytes: u64,
        data: Bytes,
        sync: bool,
        caller: Caller,
    ) -> Result<()> {
        todo!()
    }
    /// Writes at the end of the file; where it went.
    pub async fn append(&self, ino: u64, data: Bytes, sync: bool, caller: Caller) -> Result<u64> {
        todo!()
    }
    /// Reserves, punches or zeroes a range.
    pub async fn allocate(
        &self,
        ino: u64,
        how: Allocate,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<()> {
        todo!()
    }
    /// Copies a range between files; how many bytes were copied.
    pub async fn copy_range(
        &self,
        from: u64,
        from_offset_bytes: u64,
        to: u64,
        to_offset_bytes: u64,
        length_bytes: u64,
        caller: Caller,
    ) -> Result<u64> {
        todo!()
    }
    /// Finds data or holes.
    pub async fn seek(&self, ino: u64, offset_bytes: u64, to: SeekTo) -> Result<u64> {
        todo!()
    }
    /// Entries from `cookie` on (0: from the start, with `.` and `..`), at most `count_max`.
    pub async fn read_directory(
        &self,
        ino: u64,
        cookie: u64,
        count_max: usize,
    ) -> Result<Vec<DirEntry>> {
        todo!()
    }
    /// The value of an extended attribute, named as Linux shows it (`user.mime_type`).
    pub async fn xattr(&self, ino: u64, name: &[u8]) -> Result<Bytes> {
        todo!()
    }
    /// Names of extended attributes.
    pub async fn xattr_names(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
    /// Sets an extended attribute.
    pub async fn set_xattr(
        &self,
        ino: u64,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        caller: Caller,
    ) -> Result<()> {
        todo!()
    }
    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, ino: u64, name: &[u8], caller: Caller) -> Result<()> {
        todo!()
    }
    /// Puts all changes of the object on stable storage.
    pub async fn sync_file(&self, ino: u64) -> Result<()> {
        todo!()
    }
    /// Puts all changes on stable storage.
    pub async fn sync_all(&self) -> Result<()> {
        todo!()
    }
    /// Space and objects.
    pub async fn statistics(&self) -> Result<FsStatistics> {
        todo!()
    }
    /// Takes no more requests, waits for those that are under way, and puts everything on stable
    /// storage.
    pub async fn close(&self) -> Result<()> {
        todo!()
    }
}
