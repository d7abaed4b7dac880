//! Listing directories, those of files and those that only exist here (`.zfs` and below).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use crate::convert::{self, errno};
use crate::handler::{Handler, SHORT_TTL};
use crate::nodes::{self, Nodes, Target};

/// Entries read from a directory at a time.
const ENTRIES: usize = 128;
/// The offset after `.zfs`, which is listed last.
const AFTER_ZFS: u64 = i64::MAX as u64 - 1;

/// The number that a directory which only exists here shows (`ZFSCTL_INO_*`,
/// include/os/linux/zfs/sys/zfs_ctldir.h). A snapshot's directory has its node's.
pub(crate) fn control_number(node: u64) -> u64 {
    const ZFSCTL_INO_ROOT: u64 = (1 << 48) - 1;
    match node {
        nodes::ZFS => ZFSCTL_INO_ROOT,
        nodes::SHARES => ZFSCTL_INO_ROOT - 1,
        nodes::SNAPSHOTS => ZFSCTL_INO_ROOT - 2,
        other => other,
    }
}

/// Attributes of a directory that only exists here, with its node's number (`zpl_root_getattr` and
/// others, module/os/linux/zfs/zpl_ctldir.c).
pub(crate) fn control_attributes(node: u64, links: u32, modified: SystemTime) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: if node == nodes::ZFS {
            0
        } else {
            u64::from(links)
        },
        blocks: 0,
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: FileType::Directory,
        perm: 0o777,
        nlink: links,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 512,
        flags: 0,
    }
}

/// Entries of a control directory.
async fn control_entries(
    nodes: &Nodes,
    target: &Target,
    node: u64,
) -> Result<Vec<(Vec<u8>, u64)>, Errno> {
    let mut entries = vec![(b".".to_vec(), node)];
    match target {
        Target::Zfs => {
            entries.push((b"..".to_vec(), nodes::ROOT));
            entries.push((b"shares".to_vec(), nodes::SHARES));
            entries.push((b"snapshot".to_vec(), nodes::SNAPSHOTS));
        }
        Target::Snapshots => {
            entries.push((b"..".to_vec(), nodes::ZFS));
            if let Some(provider) = nodes.provider() {
                let list = provider.list().await.map_err(|error| errno(&error))?;
                entries.extend(list.into_iter().map(|snapshot| {
                    let node = nodes.snapshot_node(&snapshot.name);
                    (snapshot.name.into_bytes(), node)
                }));
            }
        }
        Target::Shares => entries.push((b"..".to_vec(), nodes::ZFS)),
        Target::File(_) => {}
    }
    Ok(entries)
}

pub(crate) async fn list(
    nodes: &Nodes,
    node: u64,
    mut offset: u64,
    visible: bool,
    reply: &mut ReplyDirectory,
) -> Result<(), Errno> {
    let target = nodes.resolve(node).await?;
    let Target::File(file) = &target else {
        for (index, (name, entry)) in (1..).zip(control_entries(nodes, &target, node).await?) {
            let name = OsStr::from_bytes(&name);
            if index > offset && reply.add(INodeNo(entry), index, FileType::Directory, name) {
                break;
            }
        }
        return Ok(());
    };
    if offset == AFTER_ZFS {
        return Ok(());
    }
    loop {
        let entries = file
            .filesystem
            .read_directory(file.ino, offset, ENTRIES)
            .await
            .map_err(|error| errno(&error))?;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            let kind = entry.kind.map_or(FileType::RegularFile, convert::kind);
            let node = INodeNo(file.shown(entry.ino));
            if reply.add(
                node,
                entry.next_cookie,
                kind,
                OsStr::from_bytes(&entry.name),
            ) {
                return Ok(());
            }
            offset = entry.next_cookie;
        }
    }
    if visible && node == nodes::ROOT && nodes.provider().is_some() {
        let _ = reply.add(INodeNo(nodes::ZFS), AFTER_ZFS, FileType::Directory, ".zfs");
    }
    Ok(())
}

pub(crate) async fn list_plus(
    nodes: &Nodes,
    node: u64,
    mut offset: u64,
    visible: bool,
    reply: &mut ReplyDirectoryPlus,
) -> Result<(), Errno> {
    let target = nodes.resolve(node).await?;
    let Target::File(file) = &target else {
        for (index, (name, entry)) in (1..).zip(control_entries(nodes, &target, node).await?) {
            // Good for no time: whoever wants the attributes asks, which opens the snapshot.
            let attributes = control_attributes(entry, 2, UNIX_EPOCH);
            let shown = OsStr::from_bytes(&name);
            if index <= offset {
                continue;
            }
            let none = Duration::ZERO;
            if reply.add(
                INodeNo(entry),
                index,
                shown,
                &none,
                &attributes,
                Generation(0),
            ) {
                break;
            }
            // The kernel counts a lookup for all but the dots.
            if matches!(target, Target::Snapshots) && !matches!(&name[..], b"." | b"..") {
                nodes.retain_snapshot(entry);
            }
        }
        return Ok(());
    };
    if offset == AFTER_ZFS {
        return Ok(());
    }
    let ttl = Handler::entry_ttl(file).min(SHORT_TTL);
    loop {
        let entries = file
            .filesystem
            .read_directory_with_attributes(file.ino, offset, ENTRIES)
            .await
            .map_err(|error| errno(&error))?;
        if entries.is_empty() {
            break;
        }
        for (entry, found) in entries {
            let name = OsStr::from_bytes(&entry.name);
            let number = file.node(entry.ino);
            let (attributes, generation, ttl) = match &found {
                Some(found) if file.has_own_number(entry.ino) => {
                    (convert::attributes(number, found), found.generation, ttl)
                }
                Some(found) => (
                    convert::attributes(number, found),
                    found.generation,
                    Duration::ZERO,
                ),
                // It cannot be read; whoever asks for it hears why.
                None => {
                    let kind = entry.kind.map_or(FileType::RegularFile, convert::kind);
                    let unknown = control_attributes(number, 1, UNIX_EPOCH);
                    (
                        FileAttr {
                            kind,
                            perm: 0,
                            ..unknown
                        },
                        0,
                        Duration::ZERO,
                    )
                }
            };
            let next = entry.next_cookie;
            let generation = Generation(generation);
            let full = reply.add(INodeNo(number), next, name, &ttl, &attributes, generation);
            // The kernel counts a lookup for all but the dots.
            if !full && !matches!(&entry.name[..], b"." | b"..") {
                file.retain(entry.ino);
            }
            if full {
                return Ok(());
            }
            offset = entry.next_cookie;
        }
    }
    if visible && node == nodes::ROOT && nodes.provider().is_some() {
        let attributes = control_attributes(nodes::ZFS, 1, nodes.since());
        let _ = reply.add(
            INodeNo(nodes::ZFS),
            AFTER_ZFS,
            ".zfs",
            &Duration::ZERO,
            &attributes,
            Generation(0),
        );
    }
    Ok(())
}
