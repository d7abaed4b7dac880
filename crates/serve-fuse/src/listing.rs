//! Listing directories, those of files and those that only exist here (`.zfs` and below).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use access::{ControlAttributes, ControlEntry, ControlNode, Snapshot};
use filesystem::FileKind;
use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use crate::convert::{self, errno};
use crate::handler::{Handler, SHORT_TTL};
use crate::nodes::{self, Nodes, Target};

/// Entries read from a directory at a time.
const ENTRIES: usize = 128;
/// The offset after `.zfs`, which is listed last.
const AFTER_ZFS: u64 = i64::MAX as u64 - 1;

/// Attributes of a directory that only exists here, under a node number.
pub(crate) fn control_attributes(node: u64, told: ControlAttributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: told.size_bytes,
        blocks: 0,
        atime: told.modified,
        mtime: told.modified,
        ctime: told.modified,
        crtime: told.modified,
        kind: FileType::Directory,
        perm: 0o777,
        nlink: told.links,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 512,
        flags: 0,
    }
}

/// Attributes of what is not known, or not there.
pub(crate) fn no_attributes(node: u64) -> FileAttr {
    let told = ControlAttributes {
        links: 0,
        size_bytes: 0,
        modified: UNIX_EPOCH,
    };
    control_attributes(node, told)
}

/// An entry of a control directory.
struct Listed {
    name: Vec<u8>,
    /// The node; of a snapshot that has none, its directory's.
    number: u64,
    snapshot: Option<Arc<Snapshot>>,
}

async fn control_entries(nodes: &Nodes, of: ControlNode) -> Result<Vec<Listed>, Errno> {
    let listed = |name: &str, number, snapshot| Listed {
        name: name.as_bytes().to_vec(),
        number,
        snapshot,
    };
    let above = match of {
        ControlNode::Zfs => nodes::ROOT,
        ControlNode::Snapshots | ControlNode::Shares | ControlNode::Shadow => nodes::ZFS,
    };
    let mut entries = vec![
        listed(".", nodes::control_node(of), None),
        listed("..", above, None),
    ];
    let found = nodes.control().entries(of).await;
    for (name, entry) in found.map_err(|error| errno(&error))? {
        entries.push(match entry {
            ControlEntry::Node(node) => listed(&name, nodes::control_node(node), None),
            ControlEntry::Snapshot(snapshot) => {
                let number = nodes.shown_snapshot(&snapshot);
                let number = number.unwrap_or(nodes::control_node(of));
                listed(&name, number, Some(snapshot))
            }
        });
    }
    Ok(entries)
}

async fn list_control(
    nodes: &Nodes,
    of: ControlNode,
    offset: u64,
    reply: &mut ReplyDirectory,
) -> Result<(), Errno> {
    for (index, entry) in (1..).zip(control_entries(nodes, of).await?) {
        let (number, name) = (INodeNo(entry.number), OsStr::from_bytes(&entry.name));
        if index > offset && reply.add(number, index, FileType::Directory, name) {
            break;
        }
    }
    Ok(())
}

async fn list_control_plus(
    nodes: &Nodes,
    of: ControlNode,
    offset: u64,
    reply: &mut ReplyDirectoryPlus,
) -> Result<(), Errno> {
    for (index, entry) in (1..).zip(control_entries(nodes, of).await?) {
        if index <= offset {
            continue;
        }
        // Good for no time: whoever wants the attributes asks, which opens the snapshot.
        let links = 2;
        let told = ControlAttributes {
            links,
            size_bytes: links.into(),
            modified: UNIX_EPOCH,
        };
        // The kernel counts a lookup for all but the dots, and for what has no node (0).
        let retained =
            (entry.snapshot.as_ref()).map(|snapshot| nodes.retain_shown(entry.number, snapshot));
        let node = match retained {
            Some(false) => 0,
            _ => entry.number,
        };
        let attributes = control_attributes(node, told);
        let (node, shown, none) = (
            INodeNo(node),
            OsStr::from_bytes(&entry.name),
            Duration::ZERO,
        );
        if reply.add(node, index, shown, &none, &attributes, Generation(0)) {
            if retained == Some(true) {
                nodes.release_snapshot(entry.number, 1);
            }
            break;
        }
    }
    Ok(())
}

pub(crate) async fn list(
    nodes: &Nodes,
    node: u64,
    mut offset: u64,
    visible: bool,
    reply: &mut ReplyDirectory,
) -> Result<(), Errno> {
    let file = match nodes.resolve(node).await? {
        Target::File(file) => file,
        Target::Control(of) => return list_control(nodes, of, offset, reply).await,
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
    if visible && node == nodes::ROOT {
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
    let file = match nodes.resolve(node).await? {
        Target::File(file) => file,
        Target::Control(of) => return list_control_plus(nodes, of, offset, reply).await,
    };
    if offset == AFTER_ZFS {
        return Ok(());
    }
    let ttl = Handler::entry_ttl(&file, FileKind::Regular).min(SHORT_TTL);
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
                    (
                        FileAttr {
                            kind,
                            size: 1,
                            nlink: 1,
                            perm: 0,
                            ..no_attributes(number)
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
    if visible && node == nodes::ROOT {
        let told = nodes.control().attributes(ControlNode::Zfs).await;
        let attributes = control_attributes(nodes::ZFS, told);
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
