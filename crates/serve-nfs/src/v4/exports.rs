//! The pseudo filesystem above the shares (RFC 8881 section 7.3): directories that lead to them by
//! their paths, which nobody can change.
//!
//! Where a path is a share's, the share's root is there, also within another share. A share that
//! does not let a client in is passed through on the way to others.

use std::collections::BTreeMap;
use std::sync::Arc;

use filesystem::{Attributes, FileKind};

use super::attributes::Facts;
use super::compound::Running;
use super::types::Status;
use crate::handle::{Handle, Place};
use crate::object::Told;
use crate::share::{Share, Shares};

/// The number of the filesystem that these directories are of.
const FSID: u64 = u64::from_be_bytes(*b"millpond");

/// A path, in parts.
pub(super) type Path = Vec<String>;

pub(super) fn parts(path: &str) -> Path {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// The number of the directory of a path: FNV-1a. Never one of a file's.
pub(super) fn number_of(path: &[String]) -> u64 {
    let bytes = path.iter().flat_map(|part| part.bytes().chain([b'/']));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash | 1 << 63
}

pub(super) fn handle_of(path: &[String]) -> Handle {
    Handle {
        dataset: 0,
        place: Place::Export {
            node: number_of(path),
        },
    }
}

/// All shares with their paths.
fn shares(shares: &Shares) -> Vec<(Path, Arc<Share>)> {
    let all = shares.all().into_iter();
    all.map(|share| (parts(&share.names().path), share))
        .collect()
}

/// The path of a directory, while there is a share that it leads to.
pub(super) fn path_of(all: &Shares, node: u64) -> Result<Path, Status> {
    let find = || {
        shares(all).into_iter().find_map(|(path, _)| {
            let found = (0..=path.len()).find(|length| number_of(&path[..*length]) == node);
            found.map(|length| path[..length].to_vec())
        })
    };
    if let Some(path) = find() {
        return Ok(path);
    }
    // The root is there without shares, too.
    if node == number_of(&[]) {
        return Ok(Vec::new());
    }
    if all.is_expecting() {
        return Err(Status::DELAY);
    }
    // The last one may have come before it ceased to be expected.
    find().ok_or(Status::STALE)
}

/// What is below a directory: names, and the shares that are there.
pub(super) fn children(all: &Shares, path: &[String]) -> BTreeMap<String, Option<Arc<Share>>> {
    let mut children = BTreeMap::new();
    for (of_share, share) in shares(all) {
        if of_share.len() > path.len() && of_share.starts_with(path) {
            let name = of_share[path.len()].clone();
            let is_there = of_share.len() == path.len() + 1;
            let child = children.entry(name).or_insert(None);
            if is_there {
                *child = Some(share);
            }
        }
    }
    children
}

/// Shares that are within the share `path`, by their paths below it.
pub(super) fn within(all: &Shares, path: &str) -> Vec<(Path, Arc<Share>)> {
    let path = parts(path);
    let mut found = shares(all);
    found.retain(|(other, _)| other.len() > path.len() && other.starts_with(&path));
    for (other, _) in &mut found {
        other.drain(..path.len());
    }
    found
}

impl Running<'_> {
    /// What is at a path: the handle of a share's root, or of a directory on the way to one.
    pub(super) async fn at(&mut self, path: &[String]) -> Result<Handle, Status> {
        let found = shares(self.shares);
        let here = found.iter().find(|(other, _)| other == path);
        let leads_on = found
            .iter()
            .any(|(other, _)| other.len() > path.len() && other.starts_with(path));
        match here {
            Some((_, share)) => match self.enter_share(Arc::clone(share)).await {
                Ok(entered) => Ok(entered.share.root(&entered.filesystem).await?),
                Err(Status::ACCESS) if leads_on => Ok(handle_of(path)),
                Err(status) => Err(status),
            },
            None if leads_on || path.is_empty() => Ok(handle_of(path)),
            None => Err(Status::NOENT),
        }
    }

    /// What is known of a directory.
    pub(super) fn export_facts(&self, node: u64) -> Result<Facts, Status> {
        let path = path_of(self.shares, node)?;
        let names = children(self.shares, &path).into_keys();
        let names: Vec<String> = names.collect();
        let mut time = self.nfs.began;
        // Another one whenever shares come or go, so that clients look again.
        time.nanoseconds = (number_of(&names) % 1_000_000_000) as u32;
        let attributes = Attributes {
            ino: node,
            generation: 0,
            kind: FileKind::Directory,
            mode: 0o555,
            uid: 0,
            gid: 0,
            // No more than there are shares.
            nlink: names.len() as u32 + 2,
            size_bytes: names.len() as u64 + 2,
            allocated_bytes: 0,
            block_bytes: 512,
            rdev: (0, 0),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            flags: 0,
            project: None,
            parent: node,
            is_dirty: false,
        };
        Ok(Facts {
            told: Told {
                attributes,
                fsid: FSID,
            },
            handle: handle_of(&path).encode(),
            mounted_on: None,
            statistics: None,
            is_case_exact: true,
            has_xattrs: false,
            minor: self.minor,
        })
    }
}
