//! Entries of directories: finding them, and the files that they point to.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{FsError, Result};
use crate::files::Files;
use crate::names::NameRules;
use crate::node::Node;
use crate::znode::parse_dirent;

/// An entry's object and kind. The stored name may differ where names are normalised.
pub(crate) async fn find(
    rules: NameRules,
    directory: &Node,
    name: &[u8],
) -> Result<Option<(u64, Bytes)>> {
    let zap = directory.entries()?;
    if rules.is_plain() {
        let value = zap.lookup_u64(name).await?;
        return Ok(value.map(|value| (parse_dirent(value).0, Bytes::new())));
    }
    let found = zap
        .lookup_normalized(name, &move |name| rules.compared_form(name))
        .await?;
    let Some(entry) = found else { return Ok(None) };
    let value = entry.value.as_u64().ok_or(FsError::Corrupt {
        ino: directory.ino,
        what: "an entry is no number",
    })?;
    Ok(Some((parse_dirent(value).0, entry.name)))
}

/// Like [`find`], where the entry must be there. Returns the name as it is stored.
pub(crate) async fn find_existing(
    rules: NameRules,
    directory: &Node,
    name: &[u8],
) -> Result<(u64, Bytes)> {
    let (ino, stored) = find(rules, directory, name)
        .await?
        .ok_or(FsError::NotFound { ino: directory.ino })?;
    let stored = if stored.is_empty() {
        Bytes::copy_from_slice(name)
    } else {
        stored
    };
    Ok((ino, stored))
}

/// The file an entry points to.
pub(crate) async fn entry_node(files: &Files, directory: &Node, ino: u64) -> Result<Arc<Node>> {
    match files.node(ino).await {
        Err(FsError::Stale { .. }) => Err(FsError::Corrupt {
            ino: directory.ino,
            what: "an entry points to an object that is no file",
        }),
        other => other,
    }
}

/// The file that an entry of a directory points to, which others may change meanwhile; none where
/// there is no such entry.
pub(crate) async fn found_node(
    files: &Files,
    directory: &Node,
    name: &[u8],
) -> Result<Option<Arc<Node>>> {
    let mut gone = None;
    while let Some((ino, _)) = find(files.rules, directory, name).await? {
        if gone == Some(ino) {
            return entry_node(files, directory, ino).await.map(Some);
        }
        match files.node(ino).await {
            // Its last name was this one, and was removed since: it is not found again.
            Err(FsError::Stale { .. }) => gone = Some(ino),
            other => return other.map(Some),
        }
    }
    Ok(None)
}
