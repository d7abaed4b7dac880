//! Reading ahead of who lists a directory with all about its entries (`ls -l`).
//!
//! What is told of an entry is in its dnode, and dnodes of neighbours in a directory, whose order
//! is that of hashes, are anywhere. So blocks of dnodes are read side by side, of what was just
//! listed and of what is listed next; of directories the first block as well, without which nothing
//! is told of them.
//!
//! - Who asks for attributes with the entries is read ahead of by [`ENTRIES_AHEAD`], as soon as an
//!   entry was not in memory. Nothing is done for a directory whose files are in memory.
//! - Who asks for names alone may look at each of them next, or not: a directory is listed so for
//!   the first time, or somebody looked for a name in it since it was listed to its end
//!   (`z_zn_prefetch`, `zfs_readdir`, module/os/linux/zfs/zfs_vnops_os.c). Then the dnodes of what
//!   is listed are read.
//!
//! Nothing here is waited for. The pipeline bounds how much is read at a time.

use std::sync::Arc;

use format::ObjectId;
use object::{ObjectSet, read_dnodes_ahead};

use crate::files::Files;
use crate::listing::{ENTRIES_AHEAD, to_cookie, to_cursor};
use crate::node::Node;
use crate::types::{DirEntry, FileKind};
use crate::znode::parse_dirent;

/// Entries were listed without their attributes; none at the end.
pub(crate) fn names_listed(files: &Files, node: &Node, entries: &[DirEntry]) {
    let Some(listing) = &node.listing else { return };
    if entries.is_empty() {
        listing.is_at_end();
    } else if !listing.is_for_names() {
        let entries = entries.iter().map(|entry| (entry.ino, entry.kind));
        read_ahead(&files.objset, entries);
    }
}

/// Entries are listed, and their attributes are about to be read.
pub(crate) fn attributes_listed(files: &Files, node: &Arc<Node>, entries: &[DirEntry]) {
    let (Some(listing), Some(last)) = (&node.listing, entries.last()) else {
        return;
    };
    let is_cold = |entry: &DirEntry| files.nodes.get(entry.ino).is_none();
    if !entries.iter().any(is_cold) {
        return;
    }
    let these = entries.iter().map(|entry| (entry.ino, entry.kind));
    read_ahead(&files.objset, these);
    let Some(from) = listing.ahead.lock().begin(last.next_cookie) else {
        return;
    };
    let (node, listing) = (node.clone(), listing.clone());
    let tasks = files.objset.pipeline().tasks();
    tasks.spawn("list ahead", async move {
        let mut cookies = Vec::new();
        if let Some(zap) = node.zap.as_ref()
            && let Ok(found) = zap.entries(to_cursor(from), ENTRIES_AHEAD).await
        {
            cookies.extend(found.iter().map(|entry| to_cookie(entry.next)));
            let values = found.iter().filter_map(|entry| entry.value.as_u64());
            read_ahead(node.object.objset(), values.map(parse_dirent));
        }
        listing.ahead.lock().end(&cookies);
    });
}

/// Starts reading what attributes of these files are in.
fn read_ahead(objset: &Arc<ObjectSet>, entries: impl Iterator<Item = (u64, Option<FileKind>)>) {
    let objects = entries.map(|(ino, kind)| {
        let is_table = kind == Some(FileKind::Directory);
        (ObjectId::new(ino), is_table)
    });
    read_dnodes_ahead(objset, objects);
}
