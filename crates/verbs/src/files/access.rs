//! Whose a directory is, and who may do what in it: what `chown` and `chmod` do through a mount,
//! for who has none.

use device::BoxFuture;

use ::access::User;
use api::{Failure, FailureKind, FileAccess, FileAccessReply, FileAccessSet};
use filesystem::{Attributes, Caller, Changes, FileKind, Filesystem, SetAttributes};

use super::{failed, find, names};
use service::error::from_access;
use service::pools::Pools;
use serving::people::People;

/// Bits of the mode that are set here: permissions, and those that mean something for a directory.
const MODE: u32 = 0o3777;
/// The attribute with a list of access.
const LIST: &[u8] = b"system.posix_acl_access";

async fn report(filesystem: &Filesystem, people: &People, at: &Attributes) -> FileAccessReply {
    let names = filesystem.xattrs().names(at.ino).await.unwrap_or_default();
    FileAccessReply {
        uid: at.uid,
        owner: people.user_name(at.uid),
        gid: at.gid,
        group: people.group_name(at.gid),
        mode: at.mode,
        has_list: names.iter().any(|name| name == LIST),
    }
}

/// The directory at a path of a filesystem.
async fn directory(
    filesystem: &Filesystem,
    doing: &str,
    path: &str,
) -> Result<Attributes, Failure> {
    let at = find(filesystem, doing, &names::path(doing, path)?).await?;
    if at.kind == FileKind::Directory {
        return Ok(at);
    }
    let message = format!("{doing}: '{path}' is no directory; name the one that it is in");
    Err(Failure::new(FailureKind::Invalid, message))
}

/// Tells whose a directory is.
pub fn access<'a>(
    pools: &'a Pools,
    people: &'a People,
    call: &'a FileAccess,
) -> BoxFuture<'a, Result<FileAccessReply, Failure>> {
    Box::pin(async move {
        let doing = format!("cannot look at access to '{}'", call.dataset);
        let open = pools.of_dataset(&call.dataset)?;
        let user = User::Command { name: "access" };
        let lease = open.access.filesystem_to_read(&call.dataset, user).await;
        let lease = lease.map_err(|error| from_access(&doing, &error))?;
        let filesystem = lease.get();
        let at = directory(&filesystem, &doing, &call.path).await?;
        Ok(report(&filesystem, people, &at).await)
    })
}

/// What is to be set.
fn wanted(doing: &str, people: &People, call: &FileAccessSet) -> Result<SetAttributes, Failure> {
    let unknown = |what: &str, name: &str| {
        let message =
            format!("{doing}: there is no {what} '{name}'; make it first, or give a number");
        Failure::new(FailureKind::NotFound, message)
    };
    // The last number is nobody (chown(2) leaves an owner with it).
    let known = |id: &u32| *id != u32::MAX;
    let uid = match &call.owner {
        None => None,
        Some(name) => {
            let uid = people.uid_of(name).filter(known);
            Some(uid.ok_or_else(|| unknown("user", name))?)
        }
    };
    let gid = match &call.group {
        None => None,
        Some(name) => {
            let gid = people.gid_of(name).filter(known);
            Some(gid.ok_or_else(|| unknown("group", name))?)
        }
    };
    if call.mode.is_some_and(|mode| mode & !MODE != 0) {
        let message = format!(
            "{doing}: a mode is permissions, the set-group-id bit and the sticky bit; set no others"
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    Ok(SetAttributes {
        uid,
        gid,
        mode: call.mode,
        ..SetAttributes::default()
    })
}

/// Says whose a directory is.
pub fn set_access<'a>(
    pools: &'a Pools,
    people: &'a People,
    call: &'a FileAccessSet,
) -> BoxFuture<'a, Result<FileAccessReply, Failure>> {
    Box::pin(async move {
        let doing = format!("cannot set access to '{}'", call.dataset);
        if call.dataset.contains('@') {
            let message = format!("{doing}: a snapshot stays as it is; name the filesystem");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let wanted = wanted(&doing, people, call)?;
        let open = pools.of_dataset(&call.dataset)?;
        let user = User::Command { name: "access" };
        let lease = open.access.filesystem(&call.dataset, user).await;
        let lease = lease.map_err(|error| from_access(&doing, &error))?;
        let filesystem = lease.get();
        let at = directory(&filesystem, &doing, &call.path).await?;
        let set = filesystem
            .set_attributes(at.ino, &wanted, Caller::ROOT)
            .await;
        let at = set.map_err(|error| failed(&doing, &error))?;
        if let Some(changes) = Changes::of(&filesystem) {
            changes.told().await;
        }
        let synced = filesystem.sync_all().await;
        synced.map_err(|error| failed(&doing, &error))?;
        Ok(report(&filesystem, people, &at).await)
    })
}
