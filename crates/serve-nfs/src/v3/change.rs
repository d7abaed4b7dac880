//! Procedures that change something: SETATTR, WRITE, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR,
//! RENAME, LINK, COMMIT.

use bytes::Bytes;
use filesystem::{Attributes, FileKind, FsError, RenameMode, SetAttributes, SetTime, Time};
use tokio::sync::MutexGuard;

use super::request::{CreateHow, Stable};
use super::types::{Change, as_told, write_after};
use super::{changed, failed, succeeded};
use crate::handle::Place;
use crate::mounted::check_not_mounted;
use crate::object::{Error, File};
use crate::share::{Entered, Shares};
use crate::xdr::Writer;

/// Permissions of what is made where the client does not say.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// What is made by name, but for regular files.
pub(crate) enum Made {
    Directory,
    Symlink {
        target: Bytes,
    },
    Node {
        kind: Option<FileKind>,
        rdev: (u32, u32),
    },
}

/// A directory whose entries are being changed.
pub(crate) struct Changing<'a> {
    entered: &'a Entered,
    pub(crate) directory: File,
    pub(crate) before: Attributes,
    _turn: Option<MutexGuard<'a, ()>>,
}

impl<'a> Changing<'a> {
    pub(crate) async fn begin(entered: &'a Entered, place: Place) -> Result<Self, Error> {
        let directory = entered.file_to_change(place).await?;
        let turn = entered.turn(directory.ino()).await;
        Self::within(entered, directory, Some(turn)).await
    }

    async fn within(
        entered: &'a Entered,
        directory: File,
        turn: Option<MutexGuard<'a, ()>>,
    ) -> Result<Self, Error> {
        let before = directory.now().await?;
        Ok(Self {
            entered,
            directory,
            before,
            _turn: turn,
        })
    }

    /// What has become of the directory. Whoever waits for it has its turn.
    pub(crate) async fn end(self) -> (Change, File) {
        let after = self.directory.now().await.ok();
        let change = Change {
            before: Some(self.before),
            after: after.map(|after| self.entered.told(None, after)),
        };
        (change, self.directory)
    }
}

/// Puts a change of names on stable storage, and what was done to the file `ino` with it: changes
/// of attributes go there with their file alone.
pub(crate) async fn settle(directory: &File, ino: u64) -> Result<(), Error> {
    Ok(directory.filesystem.sync_file(ino).await?)
}

/// The same where it was made.
pub(crate) async fn settle_done(outcome: Result<(), Error>, directory: &File) -> Result<(), Error> {
    outcome?;
    settle(directory, directory.ino()).await
}

/// The same of a file that was made.
pub(crate) async fn settle_made(
    outcome: Result<Attributes, Error>,
    directory: &File,
) -> Result<Attributes, Error> {
    let made = outcome?;
    settle(directory, made.ino).await?;
    Ok(made)
}

/// What is told of a file that was made.
fn write_made<'a>(
    entered: &'a Entered,
    made: Attributes,
) -> impl FnOnce(&mut Writer, &Change) + 'a {
    move |answer, change| {
        let handle = entered.handle_of(None, &made);
        answer.optional(Some(handle), |answer, handle| handle.write(answer));
        write_after(answer, Some(&entered.told(None, made)));
        change.write(answer);
    }
}

pub(super) async fn set_attributes(
    entered: &Entered,
    place: Place,
    mut set: SetAttributes,
    guard: Option<Time>,
) -> Result<Writer, Error> {
    let changing = Changing::begin(entered, place).await?;
    let outcome = async {
        let file = &changing.directory;
        if guard.is_some_and(|guard| guard != as_told(changing.before.ctime)) {
            return Err(Error::NotSynchronized);
        }
        entered.check_set(file, &mut set).await?;
        let set = file
            .filesystem
            .set_attributes(file.ino(), &set, entered.caller());
        set.await?;
        Ok(())
    };
    let outcome = outcome.await;
    let (change, file) = changing.end().await;
    let outcome = settle_done(outcome, &file).await;
    Ok(changed(
        outcome.map(|()| |answer: &mut Writer, change: &Change| change.write(answer)),
        &change,
    ))
}

pub(super) async fn write(
    entered: &Entered,
    place: Place,
    offset_bytes: u64,
    stable: Stable,
    data: Bytes,
) -> Result<Writer, Error> {
    let file = entered.file_to_change(place).await?;
    let length = data.len();
    let outcome = async {
        entered.check_write(&file).await?;
        let sync = stable != Stable::Unstable;
        let (ino, caller) = (file.ino(), entered.caller());
        file.filesystem
            .write(ino, offset_bytes, data, sync, caller)
            .await?;
        Ok::<(), Error>(())
    };
    let outcome = outcome.await;
    let change = Change {
        // Others write at the same time.
        before: None,
        after: file.now().await.ok().map(|after| entered.told(None, after)),
    };
    if outcome.is_ok() {
        entered.counted.written(length as u64);
    }
    let committed = match stable {
        Stable::Unstable => Stable::Unstable,
        Stable::DataSync | Stable::FileSync => Stable::FileSync,
    };
    let outcome = outcome.map(|()| {
        |answer: &mut Writer, change: &Change| {
            change.write(answer);
            // No more than a request holds.
            answer.u32(length as u32);
            answer.u32(committed as u32);
            answer.fixed(&entered.share.verifier);
        }
    });
    Ok(changed(outcome, &change))
}

pub(super) async fn commit(entered: &Entered, place: Place) -> Result<Writer, Error> {
    let file = entered.file_to_change(place).await?;
    let outcome = file.filesystem.sync_file(file.ino()).await;
    let change = Change {
        before: None,
        after: file.now().await.ok().map(|after| entered.told(None, after)),
    };
    let outcome = outcome.map_err(Error::from).map(|()| {
        |answer: &mut Writer, change: &Change| {
            change.write(answer);
            answer.fixed(&entered.share.verifier);
        }
    });
    Ok(changed(outcome, &change))
}

/// Times that keep the verifier of an exclusive CREATE, without the highest bits, as 32 bits of
/// seconds would be negative for others (`nfsd3_create_file`, fs/nfsd/nfs3proc.c).
pub(crate) fn exclusive_times(verifier: [u8; 8]) -> (Time, Time) {
    let [a, b, c, d, e, f, g, h] = verifier;
    let time = |bytes| Time {
        seconds: i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff),
        nanoseconds: 0,
    };
    (time([a, b, c, d]), time([e, f, g, h]))
}

/// The attributes that a file gets after it was made with its mode: only root gives it away.
async fn set_made(
    entered: &Entered,
    directory: &File,
    made: Attributes,
    set: SetAttributes,
) -> Result<Attributes, Error> {
    let mut set = SetAttributes { mode: None, ..set };
    if !entered.who.is_root() {
        (set.uid, set.gid) = (None, None);
    }
    if set.size_bytes == Some(0) || made.kind != FileKind::Regular {
        set.size_bytes = None;
    }
    if set == SetAttributes::default() {
        return Ok(made);
    }
    let filesystem = &directory.filesystem;
    Ok(filesystem
        .set_attributes(made.ino, &set, entered.caller())
        .await?)
}

/// A mode that a new file may have: set-group-id only of a group that the caller is of.
fn mode_of(entered: &Entered, directory: &File, set: &SetAttributes, default: u32) -> u32 {
    let mode = set.mode.unwrap_or(default);
    let parent = &directory.attributes;
    let gid = if parent.mode & 0o2000 != 0 {
        parent.gid
    } else {
        entered.who.gid
    };
    if entered.who.is_root() || entered.who.is_in_group(gid) {
        mode
    } else {
        mode & !0o2000
    }
}

pub(super) async fn create(
    entered: &Entered,
    place: Place,
    name: &[u8],
    how: CreateHow,
) -> Result<Writer, Error> {
    let changing = Changing::begin(entered, place).await?;
    let outcome = create_in(entered, &changing.directory, name, how).await;
    let (change, directory) = changing.end().await;
    let outcome = settle_made(outcome, &directory).await;
    Ok(changed(
        outcome.map(|made| write_made(entered, made)),
        &change,
    ))
}

pub(crate) async fn create_in(
    entered: &Entered,
    directory: &File,
    name: &[u8],
    how: CreateHow,
) -> Result<Attributes, Error> {
    let filesystem = &directory.filesystem;
    let set = match &how {
        CreateHow::Unchecked(set) | CreateHow::Guarded(set) => *set,
        CreateHow::Exclusive(verifier, set) => {
            let (atime, mtime) = exclusive_times(*verifier);
            SetAttributes {
                atime: Some(SetTime::At(atime)),
                mtime: Some(SetTime::At(mtime)),
                ..*set
            }
        }
    };
    // What is there already needs no right to make it, only to be found.
    let there = match entered.check_make(directory, name).await {
        Ok(()) => {
            let mode = mode_of(entered, directory, &set, FILE_MODE);
            let made = filesystem.create(directory.ino(), name, mode, entered.caller());
            match made.await {
                Ok(made) => return set_made(entered, directory, made, set).await,
                Err(FsError::Exists { .. }) => filesystem.lookup(directory.ino(), name).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Access) => {
            entered
                .check(&directory.attributes, directory, access::MAY_EXECUTE)
                .await?;
            match filesystem.lookup(directory.ino(), name).await {
                Err(FsError::NotFound { .. }) => return Err(Error::Access),
                found => found?,
            }
        }
        Err(error) => return Err(error),
    };
    let exists = || {
        Error::from(FsError::Exists {
            ino: directory.ino(),
        })
    };
    match how {
        CreateHow::Guarded(_) => Err(exists()),
        // Asked for a second time, by a client that missed the first answer.
        CreateHow::Exclusive(verifier, _) => {
            let times = (there.atime, there.mtime);
            let is_same = there.kind == FileKind::Regular
                && there.size_bytes == 0
                && times == exclusive_times(verifier);
            is_same.then_some(there).ok_or_else(exists)
        }
        CreateHow::Unchecked(set) => {
            let (Some(size_bytes), FileKind::Regular) = (set.size_bytes, there.kind) else {
                return Ok(there);
            };
            let place = entered.handle_of(None, &there).place;
            let file = entered.file_to_change(place).await?;
            let mut set = SetAttributes {
                size_bytes: Some(size_bytes),
                ..SetAttributes::default()
            };
            entered.check_set(&file, &mut set).await?;
            let set = filesystem.set_attributes(there.ino, &set, entered.caller());
            Ok(set.await?)
        }
    }
}

pub(super) async fn make(
    entered: &Entered,
    place: Place,
    name: &[u8],
    what: Made,
    set: SetAttributes,
) -> Result<Writer, Error> {
    let changing = Changing::begin(entered, place).await?;
    let outcome = make_in(entered, &changing.directory, name, what, set).await;
    let (change, directory) = changing.end().await;
    let outcome = settle_made(outcome, &directory).await;
    Ok(changed(
        outcome.map(|made| write_made(entered, made)),
        &change,
    ))
}

pub(crate) async fn make_in(
    entered: &Entered,
    directory: &File,
    name: &[u8],
    what: Made,
    set: SetAttributes,
) -> Result<Attributes, Error> {
    entered.check_make(directory, name).await?;
    let (filesystem, parent) = (&directory.filesystem, directory.ino());
    let caller = entered.caller();
    let made = match what {
        Made::Directory => {
            let mode = mode_of(entered, directory, &set, DIRECTORY_MODE);
            filesystem
                .make_directory(parent, name, mode, caller)
                .await?
        }
        Made::Symlink { target } => filesystem.symlink(parent, name, &target, caller).await?,
        Made::Node { kind: None, .. } => return Err(Error::BadType),
        Made::Node {
            kind: Some(kind),
            rdev,
        } => {
            if kind.is_device() && !entered.who.is_root() {
                return Err(Error::NotOwner);
            }
            let mode = mode_of(entered, directory, &set, FILE_MODE);
            let made = filesystem.make_node(parent, name, kind, mode, rdev, caller);
            made.await?
        }
    };
    set_made(entered, directory, made, set).await
}

/// Removes an entry: of a directory, of anything else, or (`None`) of whatever it is.
pub(crate) async fn remove_in(
    shares: &Shares,
    entered: &Entered,
    directory: &File,
    name: &[u8],
    is_directory: Option<bool>,
) -> Result<(), Error> {
    entered.check_remove(directory, name).await?;
    let (filesystem, parent) = (&directory.filesystem, directory.ino());
    let found = filesystem.lookup(parent, name).await?;
    check_not_mounted(shares, entered, directory, (name, &found)).await?;
    let is_directory = is_directory.unwrap_or(found.kind == FileKind::Directory);
    match is_directory {
        true => filesystem.remove_directory(parent, name).await?,
        false => filesystem.unlink(parent, name).await?,
    }
    Ok(())
}

pub(super) async fn remove(
    shares: &Shares,
    entered: &Entered,
    place: Place,
    name: &[u8],
    is_directory: bool,
) -> Result<Writer, Error> {
    let changing = Changing::begin(entered, place).await?;
    let outcome = remove_in(
        shares,
        entered,
        &changing.directory,
        name,
        Some(is_directory),
    );
    let outcome = outcome.await;
    let (change, directory) = changing.end().await;
    let outcome = settle_done(outcome, &directory).await;
    Ok(changed(
        outcome.map(|()| |answer: &mut Writer, change: &Change| change.write(answer)),
        &change,
    ))
}

/// Renames; how that ended, and what has become of both directories.
pub(crate) async fn rename_in(
    shares: &Shares,
    entered: &Entered,
    from: (Place, &[u8]),
    to: (Place, &[u8]),
) -> Result<(Result<(), Error>, Change, Change), Error> {
    let source = entered.file_to_change(from.0).await?;
    let target = entered.file_to_change(to.0).await?;
    let [first, second] = entered.turns(source.ino(), target.ino()).await;
    let source = Changing::within(entered, source, first).await?;
    let target = Changing::within(entered, target, second).await?;
    let outcome = async {
        let (one, other) = (&source.directory, &target.directory);
        entered.check_remove(one, from.1).await?;
        // What has the new name is removed.
        entered.check_remove(other, to.1).await?;
        let moving = one.filesystem.lookup(one.ino(), from.1).await?;
        if moving.kind == FileKind::Directory && one.ino() != other.ino() {
            // Its entry `..` changes.
            entered.check(&moving, one, access::MAY_WRITE).await?;
        }
        check_not_mounted(shares, entered, one, (from.1, &moving)).await?;
        match other.filesystem.lookup(other.ino(), to.1).await {
            Ok(there) => check_not_mounted(shares, entered, other, (to.1, &there)).await?,
            Err(FsError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let mode = RenameMode::Replace;
        one.filesystem
            .rename(one.ino(), from.1, other.ino(), to.1, mode)
            .await?;
        Ok(())
    };
    let outcome = outcome.await;
    let (change, directory) = source.end().await;
    let (change_of_target, _) = target.end().await;
    let outcome = settle_done(outcome, &directory).await;
    Ok((outcome, change, change_of_target))
}

pub(super) async fn rename(
    shares: &Shares,
    entered: &Entered,
    from: (Place, &[u8]),
    to: (Place, &[u8]),
) -> Result<Writer, Error> {
    let (outcome, change, change_of_target) = rename_in(shares, entered, from, to).await?;
    let tell = |answer: &mut Writer| {
        change.write(answer);
        change_of_target.write(answer);
    };
    match outcome {
        Ok(()) => {
            let mut answer = succeeded();
            tell(&mut answer);
            Ok(answer)
        }
        Err(error) => Ok(failed((&error).into(), tell)),
    }
}

/// Links a file; how that ended, and what has become of the directory.
pub(crate) async fn link_in(
    entered: &Entered,
    file: &File,
    place: Place,
    name: &[u8],
) -> Result<(Result<(), Error>, Change), Error> {
    let changing = Changing::begin(entered, place).await?;
    let outcome = async {
        let directory = &changing.directory;
        entered.check_make(directory, name).await?;
        directory
            .filesystem
            .link(file.ino(), directory.ino(), name)
            .await?;
        Ok(())
    };
    let outcome = outcome.await;
    let (change, directory) = changing.end().await;
    let outcome = settle_done(outcome, &directory).await;
    Ok((outcome, change))
}

pub(super) async fn link(
    entered: &Entered,
    file: Place,
    place: Place,
    name: &[u8],
) -> Result<Writer, Error> {
    let file = entered.file_to_change(file).await?;
    let (outcome, change) = link_in(entered, &file, place, name).await?;
    let of_file = file.now().await.ok().map(|now| entered.told(None, now));
    let tell = |answer: &mut Writer| {
        write_after(answer, of_file.as_ref());
        change.write(answer);
    };
    match outcome {
        Ok(()) => {
            let mut answer = succeeded();
            tell(&mut answer);
            Ok(answer)
        }
        Err(error) => Ok(failed((&error).into(), tell)),
    }
}
