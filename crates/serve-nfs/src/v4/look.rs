//! Operations that change nothing: ACCESS, GETATTR, VERIFY, LOOKUP, SECINFO, READ, READLINK, SEEK.

use std::sync::Arc;

use access::MAY_EXECUTE;
use bytes::Bytes;
use filesystem::{FileKind, FsError, SeekTo};

use super::attributes::{self, Compared, Facts, wants_statistics};
use super::compound::{Done, Running, check_name};
use super::exports;
use super::junctions::junction;
use super::opens::READ;
use super::types::{Bits, StateId, Status};
use super::xattrs;
use crate::handle::{Handle, Place};
use crate::object::{Error, File, Object};
use crate::rpc::AUTH_SYS;
use crate::share::Entered;
use crate::v3::look::{self, granted, unpinned};
use crate::xdr::Writer;

/// Bits of ACCESS (section 18.1.4), as those of version 3.
const ALL_ACCESS: u32 = 0x3f;
/// Those of extended attributes, in minor version 2.
const XATTR_ACCESS: u32 = xattrs::READS | xattrs::WRITES | xattrs::LISTS;

/// A file that holds content.
pub(super) fn check_regular(file: &File) -> Result<(), Status> {
    match file.attributes.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Status::ISDIR),
        FileKind::Symlink => Err(Status::SYMLINK),
        _ => Err(Status::WRONG_TYPE),
    }
}

/// The same for operations on content that name links no other way.
pub(super) fn check_content(file: &File) -> Result<(), Status> {
    check_regular(file).map_err(|status| match status {
        Status::SYMLINK => Status::WRONG_TYPE,
        status => status,
    })
}

impl Running<'_> {
    pub(super) async fn put_root(&mut self) -> Done {
        self.current = Some(self.at(&[]).await?);
        self.current_state = None;
        Ok(Writer::new())
    }

    /// What is known of an object of a share.
    pub(super) async fn facts(
        &self,
        entered: &Entered,
        object: &Object,
        wanted: Bits,
    ) -> Result<Facts, Status> {
        let told = entered.tell(object).await?;
        let (filesystem, ino) = look::filesystem_of(entered, object);
        let statistics = match wants_statistics(wanted) {
            true => Some(filesystem.statistics_at(ino).await?),
            false => None,
        };
        let is_root = match object {
            Object::File(file) => file.snapshot.is_none() && file.ino() == filesystem.root(),
            Object::Control(_) => false,
        };
        let mounted_on =
            is_root.then(|| exports::number_of(&exports::parts(&entered.share.names().path)));
        Ok(Facts {
            told,
            handle: entered.handle(object).encode(),
            mounted_on,
            statistics,
            is_case_exact: filesystem.compares_names_exactly(),
            has_xattrs: xattrs::are_there(&filesystem, wanted)?,
            minor: self.minor,
        })
    }

    /// What is known of the current object.
    async fn current_facts(&mut self, wanted: Bits) -> Result<Facts, Status> {
        let handle = self.handle()?;
        if let Place::Export { node } = handle.place {
            return self.export_facts(node);
        }
        let entered = self.enter().await?;
        let object = entered.resolve(handle.place).await?;
        self.facts(&entered, &object, wanted).await
    }

    pub(super) async fn get_attributes(&mut self, wanted: Bits) -> Done {
        let facts = self.current_facts(wanted).await?;
        let mut told = Writer::new();
        attributes::write(&mut told, wanted, &facts);
        Ok(told)
    }

    pub(super) async fn verify(&mut self, wants_same: bool, compared: &Compared) -> Done {
        let facts = self.current_facts(compared.wanted()).await?;
        match (compared.is_same(&facts)?, wants_same) {
            (true, false) => Err(Status::SAME.into()),
            (false, true) => Err(Status::NOT_SAME.into()),
            _ => Ok(Writer::new()),
        }
    }

    pub(super) async fn access(&mut self, wanted: u32) -> Done {
        const LOOK: u32 = look::READ | look::LOOKUP | look::EXECUTE;
        let handle = self.handle()?;
        let may = if let Place::Export { node } = handle.place {
            exports::path_of(self.shares, node)?;
            LOOK
        } else {
            let entered = self.enter().await?;
            let object = entered.resolve(handle.place).await?;
            match &object {
                Object::Control(_) => LOOK,
                Object::File(file) if wanted & XATTR_ACCESS == 0 || self.minor < 2 => {
                    granted(&entered, file).await?
                }
                Object::File(file) => {
                    granted(&entered, file).await? | xattrs::granted(&entered, file).await?
                }
            }
        };
        let mut told = Writer::new();
        let known = match self.minor {
            0..2 => ALL_ACCESS,
            _ => ALL_ACCESS | XATTR_ACCESS,
        };
        told.u32(wanted & known);
        told.u32(may & wanted & known);
        Ok(told)
    }

    /// What has a name in the current directory.
    async fn find(&mut self, name: &[u8]) -> Result<Handle, Status> {
        check_name(name)?;
        let handle = self.handle()?;
        if let Place::Export { node } = handle.place {
            let mut path = exports::path_of(self.shares, node)?;
            let name = std::str::from_utf8(name).map_err(|_| Status::NOENT)?;
            path.push(name.to_owned());
            return self.at(&path).await;
        }
        let entered = self.enter().await?;
        let directory = entered.resolve(handle.place).await?;
        if let Object::File(file) = &directory {
            match file.attributes.kind {
                FileKind::Directory => {}
                FileKind::Symlink => return Err(Status::SYMLINK),
                _ => return Err(Status::NOTDIR),
            }
            if let Some(share) = junction(self.shares, &entered, file, name).await? {
                entered.check(&file.attributes, file, MAY_EXECUTE).await?;
                drop(directory);
                drop(entered);
                let path = exports::parts(&share.names().path);
                return self.at(&path).await;
            }
        }
        let found = entered.lookup(&directory, name).await?;
        Ok(entered.handle(&found))
    }

    pub(super) async fn lookup(&mut self, name: &[u8]) -> Done {
        self.current = Some(self.find(name).await?);
        self.current_state = None;
        Ok(Writer::new())
    }

    /// The directory that the current one is in.
    async fn parent(&mut self) -> Result<Handle, Status> {
        let handle = self.handle()?;
        let path = if let Place::Export { node } = handle.place {
            exports::path_of(self.shares, node)?
        } else {
            let entered = self.enter().await?;
            let directory = entered.resolve(handle.place).await?;
            match &directory {
                Object::File(file) if file.attributes.kind == FileKind::Symlink => {
                    return Err(Status::SYMLINK);
                }
                Object::File(file) if file.attributes.kind != FileKind::Directory => {
                    return Err(Status::NOTDIR);
                }
                Object::File(file)
                    if file.snapshot.is_none() && file.ino() == entered.filesystem.root() =>
                {
                    exports::parts(&entered.share.names().path)
                }
                directory => {
                    let found = entered.lookup(directory, b"..").await?;
                    return Ok(entered.handle(&found));
                }
            }
        };
        let Some((_, above)) = path.split_last() else {
            return Err(Status::NOENT);
        };
        // From the top, as it may be in a share that this one is within.
        let mut found = self.at(&[]).await?;
        for name in above {
            self.current = Some(found);
            found = Box::pin(self.find(name.as_bytes())).await?;
        }
        Ok(found)
    }

    pub(super) async fn lookup_parent(&mut self) -> Done {
        self.current = Some(self.parent().await?);
        self.current_state = None;
        Ok(Writer::new())
    }

    /// SECINFO, and (`Err`) SECINFO_NO_NAME of the current object or of its parent.
    pub(super) async fn security(&mut self, name: Result<Bytes, bool>) -> Done {
        match name {
            Ok(name) => {
                self.find(&name).await?;
            }
            Err(true) => {
                self.parent().await?;
            }
            Err(false) => {
                self.handle()?;
            }
        }
        // The current handle is used up (section 2.6.3.1.1.8).
        self.current = None;
        self.current_state = None;
        let mut told = Writer::new();
        told.u32(1);
        told.u32(AUTH_SYS);
        Ok(told)
    }

    /// A file's content is to be read, under a state id. Whoever opened it to read may, whatever
    /// its mode has become.
    pub(super) async fn check_to_read(
        &mut self,
        entered: &Arc<Entered>,
        file: &File,
        handle: &Handle,
        state: &StateId,
    ) -> Result<(), Status> {
        check_content(file)?;
        let state = self.state_of(state)?;
        if state.is_special() {
            let is_denied = self.nfs.state.lock().opens.is_denied(handle, READ);
            if is_denied && state != StateId::BYPASS {
                return Err(Status::LOCKED);
            }
            return Ok(entered.check_read(file).await?);
        }
        let client = self.client()?;
        let granted = self
            .nfs
            .state
            .lock()
            .opens
            .granted(client, &state, handle)?;
        if granted.access & READ != 0 {
            return Ok(());
        }
        // Whoever writes may read what is around it, but for what keeps others from reading
        // (section 18.22.3).
        if granted.others_deny & READ != 0 {
            return Err(Status::LOCKED);
        }
        Ok(entered.check_read(file).await?)
    }

    pub(super) async fn read(
        &mut self,
        state: &StateId,
        offset_bytes: u64,
        count_bytes: u32,
    ) -> Done {
        let handle = self.handle()?;
        let entered = self.enter().await?;
        let file = entered.file(handle.place).await?;
        self.check_to_read(&entered, &file, &handle, state).await?;
        // What the answer has besides, and a GETATTR after it.
        let room = self.room_bytes.saturating_sub(256);
        let (ino, count) = (file.ino(), count_bytes.min(room) as usize);
        let pieces = match file.filesystem.try_read(ino, offset_bytes, count) {
            Some(pieces) => pieces,
            None => file.filesystem.read(ino, offset_bytes, count).await?,
        };
        let pieces = unpinned(pieces, file.attributes.block_bytes);
        let length: usize = pieces.iter().map(Bytes::len).sum();
        let size_bytes = file.now().await?.size_bytes;
        entered.counted.read(length as u64);
        let mut told = Writer::new();
        told.bool(offset_bytes.saturating_add(length as u64) >= size_bytes);
        told.pieces(pieces);
        Ok(told)
    }

    pub(super) async fn read_link(&mut self) -> Done {
        let handle = self.handle()?;
        let entered = self.enter().await?;
        let file = entered.file(handle.place).await;
        let file = file.map_err(|error| match error {
            // A directory of `.zfs`.
            Error::Filesystem(FsError::IsDirectory { .. }) => Status::WRONG_TYPE,
            error => error.into(),
        })?;
        if file.attributes.kind != FileKind::Symlink {
            return Err(Status::WRONG_TYPE.into());
        }
        let target = file.filesystem.read_link(file.ino()).await?;
        if target.len() + 16 > self.room_bytes as usize {
            return Err(self.too_big.into());
        }
        let mut told = Writer::new();
        told.opaque(&target);
        Ok(told)
    }

    pub(super) async fn seek(&mut self, state: &StateId, offset: u64, wants_hole: bool) -> Done {
        let handle = self.handle()?;
        let entered = self.enter().await?;
        let file = entered.file(handle.place).await?;
        self.check_to_read(&entered, &file, &handle, state).await?;
        let to = match wants_hole {
            true => SeekTo::Hole,
            false => SeekTo::Data,
        };
        let found = file.filesystem.seek(file.ino(), offset, to).await?;
        let mut told = Writer::new();
        told.bool(found >= file.now().await?.size_bytes);
        told.u64(found);
        Ok(told)
    }
}
