//! Extended attributes, of minor version 2: GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR (RFC 8276
//! section 8.4).
//!
//! They are those of the namespace `user.`, which their names leave out on the way. Who may read
//! and change them is as on Linux (`xattr_permission`, fs/xattr.c): who may read and write the
//! content, of regular files and directories alone; in a directory with the sticky bit its owner.

use access::{MAY_READ, MAY_WRITE};
use filesystem::{FileKind, Filesystem, LISTED_BYTES_MAX};

use super::attributes::XATTR_SUPPORT;
use super::compound::{Done, Running};
use super::exports;
use super::request::Xattr;
use super::types::{Bits, Status, write_change};
use crate::handle::Place;
use crate::object::{File, Object};
use crate::share::Entered;
use crate::v3::change::{Changing, settle_done};
use crate::xdr::Writer;

/// What names leave out.
const NAMESPACE: &[u8] = b"user.";
const STICKY: u32 = 0o1000;

/// Bits of ACCESS (RFC 8276 section 8.5): to read, to change and to list them.
pub(super) const READS: u32 = 0x40;
pub(super) const WRITES: u32 = 0x80;
pub(super) const LISTS: u32 = 0x100;

/// Whether files of a filesystem have such attributes (`xattr=off`), where that is asked for.
pub(super) fn are_there(filesystem: &Filesystem, wanted: Bits) -> Result<bool, Status> {
    Ok(wanted.has(XATTR_SUPPORT) && filesystem.dataset()?.settings().xattr != 0)
}

fn is_of_kind(file: &File) -> bool {
    let kind = file.attributes.kind;
    matches!(kind, FileKind::Regular | FileKind::Directory)
}

/// Whether a directory's attributes are its owner's to change, and the caller is not that.
fn is_anothers(entered: &Entered, file: &File) -> bool {
    let attributes = &file.attributes;
    attributes.kind == FileKind::Directory
        && attributes.mode & STICKY != 0
        && !entered.owns(attributes)
}

async fn check_read(entered: &Entered, file: &File) -> Result<(), Status> {
    if !is_of_kind(file) {
        return Err(Status::NOXATTR);
    }
    Ok(entered.check(&file.attributes, file, MAY_READ).await?)
}

async fn check_write(entered: &Entered, file: &File) -> Result<(), Status> {
    if !is_of_kind(file) || is_anothers(entered, file) {
        return Err(Status::PERM);
    }
    Ok(entered.check(&file.attributes, file, MAY_WRITE).await?)
}

/// The bits of ACCESS that a caller has.
pub(super) async fn granted(entered: &Entered, file: &File) -> Result<u32, Status> {
    let attributes = &file.attributes;
    let mut granted = 0;
    if !is_of_kind(file) {
        return Ok(granted);
    }
    if entered.may(attributes, file, MAY_READ).await? {
        granted |= READS | LISTS;
    }
    let takes_changes = entered.check_writable(file).is_ok() && !is_anothers(entered, file);
    if takes_changes && entered.may(attributes, file, MAY_WRITE).await? {
        granted |= WRITES;
    }
    Ok(granted)
}

/// An attribute's name as Linux shows it.
fn full(name: &[u8]) -> Result<Vec<u8>, Status> {
    match name.is_empty() || name.contains(&0) {
        true => Err(Status::INVAL),
        false => Ok([NAMESPACE, name].concat()),
    }
}

/// `LISTXATTRS4resok` of at most `limit_bytes`, from the name on that the cookie counts to.
fn listed(names: &[&[u8]], cookie: u64, limit_bytes: usize) -> Done {
    /// The next cookie, how many names there are, and whether that is the end.
    const HEAD_BYTES: usize = 16;
    let first = usize::try_from(cookie).ok();
    let first = first.filter(|first| *first <= names.len());
    let first = first.ok_or(Status::BAD_COOKIE)?;
    let mut length = HEAD_BYTES;
    let fitting = names[first..].iter().take_while(|name| {
        length += 4 + name.len().next_multiple_of(4);
        length <= limit_bytes
    });
    let end = first + fitting.count();
    if limit_bytes < HEAD_BYTES || end == first && first < names.len() {
        return Err(Status::TOOSMALL.into());
    }
    let mut told = Writer::new();
    told.u64(end as u64);
    // No more than fit into an answer.
    told.u32((end - first) as u32);
    names[first..end].iter().for_each(|name| told.opaque(name));
    told.bool(end == names.len());
    Ok(told)
}

impl Running<'_> {
    /// Reads, lists or changes extended attributes of the current object.
    pub(super) async fn xattr(&mut self, asked: Xattr) -> Done {
        let handle = self.handle()?;
        let found = if let Place::Export { node } = handle.place {
            exports::path_of(self.shares, node)?;
            None
        } else {
            let entered = self.enter().await?;
            match entered.resolve(handle.place).await? {
                Object::File(file) => Some((entered, file)),
                Object::Control(_) => None,
            }
        };
        // What the answer has besides.
        let room = self.room_bytes.saturating_sub(64);
        let Some((entered, file)) = found else {
            return match asked {
                Xattr::Get { .. } => Err(Status::NOXATTR.into()),
                Xattr::List {
                    cookie,
                    count_bytes,
                } => listed(&[], cookie, count_bytes.min(room) as usize),
                Xattr::Set { .. } | Xattr::Remove { .. } => Err(Status::ROFS.into()),
            };
        };
        let name = match asked {
            Xattr::Get { name } => {
                let name = full(&name)?;
                check_read(&entered, &file).await?;
                let value = file.filesystem.xattrs().get(file.ino(), &name).await?;
                let mut told = Writer::new();
                told.opaque(&value);
                return Ok(told);
            }
            Xattr::List {
                cookie,
                count_bytes,
            } => {
                entered.check(&file.attributes, &file, MAY_READ).await?;
                let xattrs = file.filesystem.xattrs();
                let names = match is_of_kind(&file) {
                    true => xattrs.names_within(file.ino(), LISTED_BYTES_MAX).await?,
                    false => Vec::new(),
                };
                let names = names.iter().filter_map(|name| name.strip_prefix(NAMESPACE));
                let names: Vec<&[u8]> = names.collect();
                return listed(&names, cookie, count_bytes.min(room) as usize);
            }
            Xattr::Set { ref name, .. } | Xattr::Remove { ref name } => full(name)?,
        };
        drop(file);
        let changing = Changing::begin(&entered, handle.place).await?;
        let file = &changing.directory;
        check_write(&entered, file).await?;
        let (xattrs, ino) = (file.filesystem.xattrs(), file.ino());
        let outcome = match asked {
            Xattr::Set { mode, value, .. } => {
                let caller = entered.caller();
                xattrs.set(ino, &name, &value, mode, caller).await
            }
            _ => xattrs.remove(ino, &name).await,
        };
        let (change, file) = changing.end().await;
        settle_done(outcome.map_err(Into::into), &file).await?;
        let mut told = Writer::new();
        write_change(&mut told, &change);
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_as_far_as_they_fit() {
        let names: [&[u8]; 3] = [b"a", b"longer", b"c"];
        for (cookie, limit, length) in [(0, 1000, 44), (0, 44, 44), (0, 43, 36), (2, 24, 24)] {
            let told = listed(&names, cookie, limit).expect("names");
            assert_eq!(told.len(), length, "{cookie} {limit}");
        }
        for (cookie, limit, status) in [
            (0, 23, Status::TOOSMALL),
            (3, 15, Status::TOOSMALL),
            (4, 1000, Status::BAD_COOKIE),
            (u64::MAX, 1000, Status::BAD_COOKIE),
        ] {
            let failed = listed(&names, cookie, limit).expect_err("none");
            assert_eq!(failed.status, status, "{cookie} {limit}");
        }
        assert_eq!(listed(&names, 3, 16).expect("the end").len(), 16);
        assert_eq!(listed(&[], 0, 16).expect("none").len(), 16);
    }

    #[test]
    fn names_are_of_users_attributes() {
        assert_eq!(full(b"a").expect("a name"), b"user.a");
        assert_eq!(full(b"user.a").expect("a name"), b"user.user.a");
        assert_eq!(full(b"").expect_err("none"), Status::INVAL);
        assert_eq!(full(b"a\0b").expect_err("none"), Status::INVAL);
    }
}
