//! Operations that change something: SETATTR, WRITE, COMMIT, CREATE, REMOVE, RENAME, LINK, and of
//! minor version 2 ALLOCATE, DEALLOCATE, CLONE, COPY.
//!
//! They do what those of version 3 do, and leave the same after a crash.

use std::sync::Arc;

use bytes::Bytes;
use filesystem::{Allocate, FsError};

use super::attributes::Set;
use super::compound::{Done, Failed, Running, check_name};
use super::junctions::check_no_junction;
use super::look::check_content;
use super::opens::WRITE;
use super::request::Kind;
use super::types::{Bits, StateId, Status, write_change};
use crate::handle::{Handle, Place};
use crate::object::{Error, File};
use crate::share::Entered;
use crate::v3::change::{
    Changing, Made, link_in, make_in, remove_in, rename_in, settle_done, settle_made,
};
use crate::v3::request::Stable;
use crate::xdr::Writer;

/// Most bytes that one COPY copies; clients ask for the rest.
const COPY_BYTES_MAX: u64 = 64 << 20;

impl Running<'_> {
    /// A file's content is to be changed, under a state id.
    pub(super) async fn check_to_write(
        &mut self,
        entered: &Arc<Entered>,
        file: &File,
        handle: &Handle,
        state: &StateId,
    ) -> Result<(), Status> {
        check_content(file)?;
        let state = self.state_of(state)?;
        if state.is_special() {
            if self.nfs.state.lock().opens.is_denied(handle, WRITE) {
                return Err(Status::LOCKED);
            }
            return Ok(entered.check_write(file).await?);
        }
        let client = self.client()?;
        let granted = self
            .nfs
            .state
            .lock()
            .opens
            .granted(client, &state, handle)?;
        match granted.access & WRITE {
            0 => Err(Status::OPENMODE),
            _ => Ok(()),
        }
    }

    pub(super) async fn write(
        &mut self,
        state: &StateId,
        offset_bytes: u64,
        stable: Stable,
        data: Bytes,
    ) -> Done {
        let handle = self.handle()?;
        let entered = self.enter().await?;
        let file = entered.file_to_change(handle.place).await?;
        self.check_to_write(&entered, &file, &handle, state).await?;
        // No more than a request holds.
        let length = data.len() as u32;
        let sync = stable != Stable::Unstable;
        let (ino, caller) = (file.ino(), entered.caller());
        file.filesystem
            .write(ino, offset_bytes, data, sync, caller)
            .await?;
        entered.counted.written(length.into());
        let committed = match stable {
            Stable::Unstable => Stable::Unstable,
            Stable::DataSync | Stable::FileSync => Stable::FileSync,
        };
        let mut told = Writer::new();
        told.u32(length);
        told.u32(committed as u32);
        told.fixed(&entered.share.verifier);
        Ok(told)
    }

    pub(super) async fn commit(&mut self) -> Done {
        let handle = self.handle()?;
        let entered = self.enter().await?;
        let file = entered.file_to_change(handle.place).await?;
        check_content(&file)?;
        file.filesystem.sync_file(file.ino()).await?;
        let mut told = Writer::new();
        told.fixed(&entered.share.verifier);
        Ok(told)
    }

    pub(super) async fn set_attributes(
        &mut self,
        state: &StateId,
        set: Result<Set, Status>,
    ) -> Done {
        // What was set is told also where nothing was.
        let nothing = |status: Status| {
            let mut told = Writer::new();
            Bits::default().write(&mut told);
            Failed { status, told }
        };
        let set = set.map_err(nothing)?;
        self.set(state, set).await.map_err(nothing)?;
        let mut told = Writer::new();
        set.which.write(&mut told);
        Ok(told)
    }

    async fn set(&mut self, state: &StateId, wanted: Set) -> Result<(), Status> {
        let handle = self.handle()?;
        let entered = self.enter().await?;
        let changing = Changing::begin(&entered, handle.place).await?;
        let file = &changing.directory;
        let mut set = wanted.set;
        let state = self.state_of(state)?;
        if let Some(size_bytes) = set.size_bytes {
            check_content(file)?;
            if !state.is_special() {
                // Whoever opened it may, whatever its mode has become.
                self.check_to_write(&entered, file, &handle, &state).await?;
                set.size_bytes = None;
                entered.check_set(file, &mut set).await?;
                set.size_bytes = Some(size_bytes);
            } else if self.nfs.state.lock().opens.is_denied(&handle, WRITE) {
                return Err(Status::LOCKED);
            } else {
                entered.check_set(file, &mut set).await?;
            }
        } else {
            entered.check_set(file, &mut set).await?;
        }
        let outcome = file
            .filesystem
            .set_attributes(file.ino(), &set, entered.caller())
            .await;
        let outcome = outcome.map(drop).map_err(Error::from);
        let (_, file) = changing.end().await;
        Ok(settle_done(outcome, &file).await?)
    }

    pub(super) async fn create(
        &mut self,
        kind: Kind,
        name: &[u8],
        set: Result<Set, Status>,
    ) -> Done {
        check_name(name)?;
        let what = match kind {
            Kind::Directory => Made::Directory,
            Kind::Symlink(target) if target.is_empty() => return Err(Status::INVAL.into()),
            Kind::Symlink(target) => Made::Symlink { target },
            Kind::Node(kind, rdev) => Made::Node {
                kind: Some(kind),
                rdev,
            },
            Kind::Other => return Err(Status::BADTYPE.into()),
        };
        let set = set?;
        let handle = self.handle()?;
        let entered = self.enter().await?;
        let changing = Changing::begin(&entered, handle.place).await?;
        let outcome = make_in(&entered, &changing.directory, name, what, set.set).await;
        let (change, directory) = changing.end().await;
        let made = settle_made(outcome, &directory).await?;
        self.current = Some(entered.handle_of(None, &made));
        self.current_state = None;
        let mut told = Writer::new();
        write_change(&mut told, &change);
        set.which.write(&mut told);
        Ok(told)
    }

    pub(super) async fn remove(&mut self, name: &[u8]) -> Done {
        check_name(name)?;
        let handle = self.handle()?;
        let entered = self.enter().await?;
        check_no_junction(self.shares, &entered, handle.place, name).await?;
        let changing = Changing::begin(&entered, handle.place).await?;
        let outcome = remove_in(self.shares, &entered, &changing.directory, name, None).await;
        let (change, directory) = changing.end().await;
        settle_done(outcome, &directory).await?;
        let mut told = Writer::new();
        write_change(&mut told, &change);
        Ok(told)
    }

    /// The saved handle, which must be in the share of the current one.
    fn saved_with(&self, handle: &Handle) -> Result<Place, Status> {
        let saved = self.saved.ok_or(Status::NOFILEHANDLE)?;
        match saved.dataset == handle.dataset {
            true => Ok(saved.place),
            false => Err(Status::XDEV),
        }
    }

    pub(super) async fn rename(&mut self, from: &[u8], to: &[u8]) -> Done {
        check_name(from)?;
        check_name(to)?;
        let handle = self.handle()?;
        let source = self.saved_with(&handle)?;
        let entered = self.enter().await?;
        check_no_junction(self.shares, &entered, source, from).await?;
        check_no_junction(self.shares, &entered, handle.place, to).await?;
        let (outcome, change, change_of_target) =
            rename_in(self.shares, &entered, (source, from), (handle.place, to)).await?;
        outcome?;
        let mut told = Writer::new();
        write_change(&mut told, &change);
        write_change(&mut told, &change_of_target);
        Ok(told)
    }

    pub(super) async fn link(&mut self, name: &[u8]) -> Done {
        check_name(name)?;
        let handle = self.handle()?;
        let saved = self.saved_with(&handle)?;
        let entered = self.enter().await?;
        let file = entered.file_to_change(saved).await?;
        if file.attributes.kind == filesystem::FileKind::Directory {
            return Err(Status::ISDIR.into());
        }
        let (outcome, change) = link_in(&entered, &file, handle.place, name).await?;
        outcome?;
        let mut told = Writer::new();
        write_change(&mut told, &change);
        Ok(told)
    }

    /// ALLOCATE and DEALLOCATE.
    pub(super) async fn allocate(
        &mut self,
        is_hole: bool,
        state: &StateId,
        offset: u64,
        length: u64,
    ) -> Done {
        let handle = self.handle()?;
        let entered = self.enter().await?;
        let file = entered.file_to_change(handle.place).await?;
        self.check_to_write(&entered, &file, &handle, state).await?;
        let how = match is_hole {
            true => Allocate::PunchHole,
            false => Allocate::Reserve { keep_size: false },
        };
        let (filesystem, ino) = (&file.filesystem, file.ino());
        filesystem
            .allocate(ino, how, offset, length, entered.caller())
            .await?;
        filesystem.sync_file(ino).await?;
        Ok(Writer::new())
    }

    /// CLONE and COPY, from the saved file to the current one: blocks are shared where they can.
    pub(super) async fn copy(
        &mut self,
        is_clone: bool,
        (from_state, to_state): (&StateId, &StateId),
        from: u64,
        to: u64,
        length: u64,
    ) -> Done {
        let handle = self.handle()?;
        let source = self.saved_with(&handle)?;
        let entered = self.enter().await?;
        let target = entered.file_to_change(handle.place).await?;
        let source_handle = Handle {
            place: source,
            ..handle
        };
        let source = entered.file(source).await?;
        if source.snapshot.is_some() {
            return Err(Status::XDEV.into());
        }
        self.check_to_read(&entered, &source, &source_handle, from_state)
            .await?;
        self.check_to_write(&entered, &target, &handle, to_state)
            .await?;
        let alone = self.nfs.copies.acquire().await;
        let _alone = alone.map_err(|_| Status::SERVERFAULT)?;
        let size = source.now().await?.size_bytes;
        let available = size.checked_sub(from);
        let length = match (length, is_clone) {
            (0, _) => available.ok_or(Status::INVAL)?,
            (length, true) if available.is_none_or(|available| length > available) => {
                return Err(Status::INVAL.into());
            }
            (length, _) => length,
        };
        let length = match is_clone {
            true => length,
            false => length.min(COPY_BYTES_MAX),
        };
        let copied = target
            .filesystem
            .copy_range(
                source.ino(),
                from,
                target.ino(),
                to,
                length,
                entered.caller(),
            )
            .await?;
        entered.counted.written(copied);
        let mut told = Writer::new();
        if is_clone {
            if copied < length {
                let error = FsError::Invalid {
                    what: "the source became shorter",
                };
                return Err(Status::from(error).into());
            }
            target.filesystem.sync_file(target.ino()).await?;
            return Ok(told);
        }
        // It is done, and nobody is told later.
        told.u32(0);
        told.u64(copied);
        told.u32(Stable::Unstable as u32);
        told.fixed(&entered.share.verifier);
        // In order, and at once.
        told.bool(true);
        told.bool(true);
        Ok(told)
    }
}
