//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).
//!
//! Cookies of files' directories are the filesystem's, which stay good whatever else comes and goes
//! (`filesystem::directory`); in `.zfs/snapshot` they are the numbers of snapshots' objects. So the
//! verifier is always zero, and a restart interrupts no listing.

use access::{ControlNode, MAY_READ};
use filesystem::{Attributes, DirEntry, FileKind, FsError};

use super::types::{ATTRIBUTES_BYTES, write_attributes};
use super::{after, succeeded};
use crate::handle::{Handle, Place};
use crate::object::{Error, File, Object, Told};
use crate::share::{Entered, snapshot_name};
use crate::xdr::Writer;

/// The cookie after `.zfs`, which is listed last. The filesystem has one beyond that for its end.
pub(crate) const AFTER_ZFS: u64 = i64::MAX as u64 - 1;
/// Highest cookie of the filesystem.
pub(crate) const COOKIE_MAX: u64 = i64::MAX as u64;
/// Cookies after `.` and `..` in directories of `.zfs`.
pub(crate) const AFTER_SELF: u64 = 1;
pub(crate) const AFTER_PARENT: u64 = 2;
/// Numbers that snapshots show in lists are this less their object (`ZFSCTL_INO_SNAPDIRS`,
/// include/os/linux/zfs/sys/zfs_ctldir.h).
pub(crate) const SNAPSHOTS_NUMBER: u64 = (1 << 48) - 4;

/// How much may be answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of names and what belongs to them.
    pub(super) names_bytes: usize,
    /// Bytes in all.
    pub(super) count_bytes: usize,
}

/// A list that is being written.
struct List {
    answer: Writer,
    limits: Limits,
    is_plus: bool,
    names_bytes: usize,
    count: usize,
}

impl List {
    /// Words that end a list: no more entries, and whether that is the end.
    const END_BYTES: usize = 8;

    /// Adds an entry; false if it does not fit.
    fn add(
        &mut self,
        number: u64,
        name: &[u8],
        cookie: u64,
        more: Option<(&Told, &Handle)>,
    ) -> bool {
        let before = self.answer.len();
        self.answer.bool(true);
        self.answer.u64(number);
        self.answer.opaque(name);
        self.answer.u64(cookie);
        let names_bytes = self.names_bytes + self.answer.len() - before;
        if self.is_plus {
            self.answer
                .optional(more, |writer, (told, _)| write_attributes(writer, told));
            self.answer
                .optional(more, |writer, (_, handle)| handle.write(writer));
        }
        if names_bytes > self.limits.names_bytes
            || self.answer.len() + Self::END_BYTES > self.limits.count_bytes
        {
            self.answer.truncate(before);
            return false;
        }
        self.names_bytes = names_bytes;
        self.count += 1;
        true
    }

    /// How many entries may still fit, at most.
    fn room(&self) -> usize {
        let entry = if self.is_plus {
            36 + ATTRIBUTES_BYTES + 48
        } else {
            36
        };
        let left = self.limits.count_bytes.saturating_sub(self.answer.len());
        (left / entry).clamp(8, 512)
    }

    fn end(mut self, is_end: bool) -> Result<Writer, Error> {
        if self.count == 0 && !is_end {
            return Err(Error::TooSmall);
        }
        self.answer.bool(false);
        self.answer.bool(is_end);
        Ok(self.answer)
    }
}

pub(super) async fn list(
    entered: &Entered,
    place: Place,
    cookie: u64,
    limits: Limits,
    is_plus: bool,
) -> Result<Writer, Error> {
    if cookie > COOKIE_MAX {
        return Err(Error::BadCookie);
    }
    let object = entered.resolve(place).await?;
    if let Object::File(file) = &object {
        if file.attributes.kind != FileKind::Directory {
            return Err(FsError::NotDirectory { ino: file.ino() }.into());
        }
        entered.check(&file.attributes, file, MAY_READ).await?;
    }
    let mut answer = succeeded();
    after(entered, &object, &mut answer).await;
    answer.u64(0);
    let list = List {
        answer,
        limits,
        is_plus,
        names_bytes: 0,
        count: 0,
    };
    match object {
        Object::File(file) => list_file(entered, &file, cookie, list).await,
        Object::Control(node) => list_control(entered, node, cookie, list).await,
    }
}

async fn list_file(
    entered: &Entered,
    file: &File,
    mut cookie: u64,
    mut list: List,
) -> Result<Writer, Error> {
    if cookie == AFTER_ZFS {
        return list.end(true);
    }
    loop {
        let entries = read(file, cookie, list.room(), list.is_plus).await?;
        if entries.is_empty() {
            break;
        }
        for (entry, attributes) in entries {
            // What lies above the root of a snapshot is not in it.
            let is_above = entry.name == b".." && file.snapshot.is_some();
            let more = attributes.filter(|_| !is_above).map(|attributes| {
                let handle = entered.handle_of(file.snapshot, &attributes);
                (entered.told(file.snapshot, attributes), handle)
            });
            let more = more.as_ref().map(|(told, handle)| (told, handle));
            if !list.add(entry.ino, &entry.name, entry.next_cookie, more) {
                return list.end(false);
            }
            cookie = entry.next_cookie;
        }
    }
    if entered.lists_control(file) {
        let node = ControlNode::Zfs;
        let told = entered.tell_control(node).await?;
        let handle = entered.control_handle(node);
        if !list.add(node.number(), b".zfs", AFTER_ZFS, Some((&told, &handle))) {
            return list.end(false);
        }
    }
    list.end(true)
}

async fn read(
    file: &File,
    cookie: u64,
    count: usize,
    is_plus: bool,
) -> Result<Vec<(DirEntry, Option<Attributes>)>, Error> {
    let (filesystem, ino) = (&file.filesystem, file.ino());
    if is_plus {
        return Ok(filesystem
            .read_directory_with_attributes(ino, cookie, count)
            .await?);
    }
    let entries = filesystem.read_directory(ino, cookie, count).await?;
    Ok(entries.into_iter().map(|entry| (entry, None)).collect())
}

async fn list_control(
    entered: &Entered,
    node: ControlNode,
    cookie: u64,
    mut list: List,
) -> Result<Writer, Error> {
    let entries = control_entries(entered, node).await?;
    for (number, name, next) in entries {
        if next <= cookie {
            continue;
        }
        // Handles of snapshots are asked for by name, which opens them.
        if !list.add(number, name.as_bytes(), next, None) {
            return list.end(false);
        }
    }
    list.end(true)
}

/// Entries of a directory of `.zfs`, with their numbers, and cookies after each.
pub(crate) async fn control_entries(
    entered: &Entered,
    node: ControlNode,
) -> Result<Vec<(u64, String, u64)>, Error> {
    let above = match node {
        ControlNode::Zfs => entered.filesystem.root(),
        ControlNode::Snapshots | ControlNode::Shares | ControlNode::Shadow => {
            ControlNode::Zfs.number()
        }
    };
    let mut entries: Vec<(u64, String, u64)> = vec![
        (node.number(), ".".into(), AFTER_SELF),
        (above, "..".into(), AFTER_PARENT),
    ];
    match node {
        ControlNode::Zfs => {
            let below = [
                ("shares", ControlNode::Shares),
                ("snapshot", ControlNode::Snapshots),
            ];
            for (index, (name, node)) in (AFTER_PARENT + 1..).zip(below) {
                entries.push((node.number(), name.into(), index));
            }
        }
        ControlNode::Shares | ControlNode::Shadow => {}
        ControlNode::Snapshots => {
            for info in entered.share.snapshots_listed().await? {
                let object = info.object.get();
                let number = SNAPSHOTS_NUMBER.wrapping_sub(object);
                if let Some(name) = snapshot_name(&info) {
                    // Objects of datasets come after those of the pool itself.
                    entries.push((number, name.to_owned(), object.saturating_add(AFTER_PARENT)));
                }
            }
        }
    }
    Ok(entries)
}
