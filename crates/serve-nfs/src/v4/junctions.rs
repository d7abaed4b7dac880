//! Junctions: directories of a share where the roots of other shares are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::exports::{parts, within};
use super::types::Status;
use crate::handle::Place;
use crate::object::File;
use crate::share::{Entered, Share, Shares};

/// Shares whose roots are entries of a directory of another share, by their names.
pub(super) async fn junctions(
    shares: &Shares,
    entered: &Entered,
    directory: &File,
) -> Result<BTreeMap<String, Arc<Share>>, Status> {
    let mut found = BTreeMap::new();
    if directory.snapshot.is_some() {
        return Ok(found);
    }
    let within = within(shares, &entered.share.names().path);
    if within.is_empty() {
        return Ok(found);
    }
    let path = directory.filesystem.path_of(directory.ino()).await?;
    let path = parts(&String::from_utf8_lossy(&path));
    for (mut other, share) in within {
        if let Some(name) = other.pop()
            && other == path
        {
            found.insert(name, share);
        }
    }
    Ok(found)
}

/// The share whose root has this name in a directory of another share.
pub(super) async fn junction(
    shares: &Shares,
    entered: &Entered,
    directory: &File,
    name: &[u8],
) -> Result<Option<Arc<Share>>, Status> {
    let is_any = may_have_junction(shares, entered, name);
    match std::str::from_utf8(name) {
        Ok(name) if is_any => Ok(junctions(shares, entered, directory).await?.remove(name)),
        _ => Ok(None),
    }
}

/// Whether a share of this name is anywhere within another one; most often there is none.
fn may_have_junction(shares: &Shares, entered: &Entered, name: &[u8]) -> bool {
    let path = entered.share.names().path;
    std::str::from_utf8(name).is_ok_and(|name| shares.has_below(&path, name))
}

/// The entry where another share begins stays, as a mount point does.
pub(super) async fn check_no_junction(
    shares: &Shares,
    entered: &Entered,
    place: Place,
    name: &[u8],
) -> Result<(), Status> {
    if !may_have_junction(shares, entered, name) {
        return Ok(());
    }
    let directory = entered.file(place).await?;
    match junction(shares, entered, &directory, name).await? {
        Some(_) => Err(Status::FILE_OPEN),
        None => Ok(()),
    }
}

/// Whether this name is one of these junctions.
pub(super) fn is_junction(junctions: &BTreeMap<String, Arc<Share>>, name: &[u8]) -> bool {
    !junctions.is_empty()
        && std::str::from_utf8(name).is_ok_and(|name| junctions.contains_key(name))
}
