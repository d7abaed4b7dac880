//! Quotas of users, groups and projects (`zfs set userquota@NAME=...`), and projects of files
//! (`zfs project`).

use device::BoxFuture;
use std::path::{Path, PathBuf};

use access::{Lease, User};
use api::{
    Empty, Failure, FailureKind, ProjectChange, ProjectReport, SpaceOwner, ZfsProject,
    ZfsProjectReply,
};
use filesystem::{Caller, FileKind, Filesystem, FsError, QuotaKind, SetAttributes, pflags};

use host::accounts::id_of;
use service::error::{from_access, from_dataset};
use service::pools::{OpenPool, Pools};
use serving::mounts::Mounts;

/// What FS_IOC_FSSETXATTR changes of a file's flags; [`SetAttributes::flags`] leaves others alone.
const FLAGS: u64 = pflags::IMMUTABLE | pflags::APPENDONLY | pflags::NODUMP | pflags::PROJINHERIT;

/// Properties and values, as typed.
pub type Typed = Vec<(String, String)>;

/// A property like `userquota@joe=1G`, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedQuota {
    name: String,
    kind: QuotaKind,
    of_objects: bool,
    /// Whose; `None`: of all who have none (`defaultuserquota` and such).
    id: Option<u64>,
    /// Bytes or objects; 0 is none.
    amount: u64,
}

impl OwnedQuota {
    /// Whether a property is one of these, or one that only looks like them
    /// (`zfs_userquota_prop_prefixes`, module/zcommon/zfs_prop.c).
    fn parse_name(name: &str) -> Option<(SpaceOwner, &str, &str)> {
        let (prefix, whose) = name.split_once('@')?;
        [
            ("user", SpaceOwner::User),
            ("group", SpaceOwner::Group),
            ("project", SpaceOwner::Project),
        ]
        .into_iter()
        .find_map(|(word, owner)| {
            let what = prefix.strip_prefix(word)?;
            matches!(what, "quota" | "objquota" | "used" | "objused")
                .then_some((owner, what, whose))
        })
    }

    /// Takes the quotas of owners out of a list of properties.
    pub fn split(
        doing: &str,
        properties: &[(String, String)],
    ) -> Result<(Vec<Self>, Typed), Failure> {
        let mut quotas = Vec::new();
        let mut rest = Vec::new();
        for (name, typed) in properties {
            let invalid =
                |why: String| Failure::new(FailureKind::Invalid, format!("{doing}: {why}"));
            let amount = || match typed.as_str() {
                "none" => Ok(0),
                other => dataset::props::parse_size(other)
                    .map_err(|why| invalid(format!("{why}\n'{name}' is an amount or none"))),
            };
            if let Some((kind, of_objects)) = QuotaKind::of_default_property(name) {
                quotas.push(Self {
                    name: name.clone(),
                    kind,
                    of_objects,
                    id: None,
                    amount: amount()?,
                });
                continue;
            }
            if name.starts_with("written@") {
                return Err(invalid(format!("'{name}' is readonly")));
            }
            let Some((owner, what, whose)) = Self::parse_name(name) else {
                rest.push((name.clone(), typed.clone()));
                continue;
            };
            let of_objects = match what {
                "quota" => false,
                "objquota" => true,
                _ => return Err(invalid(format!("'{name}' is readonly"))),
            };
            let id = id_of(owner, whose).ok_or_else(|| {
                invalid(format!(
                    "'{name}' has an invalid user/group name\n\
                     unable to lookup '{whose}': nobody is called so here; give a name or a number"
                ))
            })?;
            quotas.push(Self {
                name: name.clone(),
                kind: match owner {
                    SpaceOwner::User => QuotaKind::User,
                    SpaceOwner::Group => QuotaKind::Group,
                    SpaceOwner::Project => QuotaKind::Project,
                },
                of_objects,
                id: Some(id),
                amount: amount()?,
            });
        }
        Ok((quotas, rest))
    }

    /// As a property and its value.
    pub fn as_typed(&self) -> (String, String) {
        (self.name.clone(), self.amount.to_string())
    }
}

/// A lease on a filesystem or snapshot by its name, mounted or not, for a command. Give it back
/// soon: who unmounts waits for it.
pub async fn borrow(
    open: &OpenPool,
    name: &str,
    doing: &str,
    command: &'static str,
) -> Result<Lease<Filesystem>, Failure> {
    let user = User::Command { name: command };
    let lease = open.access.filesystem(name, user).await;
    lease.map_err(|error| from_access(doing, &error))
}

/// [`borrow`] for several at once, in the order of the names. Whoever needs two never takes the
/// second while he has the first: who wants one of them alone may have the other.
pub async fn borrow_all<const N: usize>(
    open: &OpenPool,
    names: [&str; N],
    doing: &str,
    command: &'static str,
) -> Result<[Lease<Filesystem>; N], Failure> {
    let user = User::Command { name: command };
    let leases = open.access.filesystems(names, user).await;
    leases.map_err(|error| from_access(doing, &error))
}

/// Refuses quotas of owners where there are no files.
pub async fn check_owned_quotas(
    pools: &Pools,
    name: &str,
    quotas: &[OwnedQuota],
) -> Result<(), Failure> {
    let open = pools.of_dataset(name)?;
    let doing = format!("cannot set property for '{name}'");
    let found = open.pool.dsl().directories().lookup(name).await;
    let info = found.map_err(|error| from_dataset(&doing, &error))?;
    match quotas.first() {
        Some(first) if info.kind != dataset::DatasetKind::Filesystem => {
            // The kernel's EINVAL in OpenZFS; the defaults are checked before it.
            let message = match first.id {
                None => format!(
                    "{doing}: '{}' does not apply to datasets of this type",
                    first.name
                ),
                Some(_) => format!(
                    "{doing}: invalid property value\n'{}' is of filesystems",
                    first.name
                ),
            };
            Err(Failure::new(FailureKind::Invalid, message))
        }
        _ => Ok(()),
    }
}

/// Sets quotas of owners of one filesystem.
pub async fn set_owned_quotas(
    pools: &Pools,
    open: &OpenPool,
    name: &str,
    quotas: &[OwnedQuota],
) -> Result<(), Failure> {
    if quotas.is_empty() {
        return Ok(());
    }
    check_owned_quotas(pools, name, quotas).await?;
    let doing = format!("cannot set property for '{name}'");
    let borrowed = borrow(open, name, &doing, "set").await?;
    let mut outcome = Ok(());
    for quota in quotas {
        let filesystem = borrowed.get();
        let (kind, of_objects, amount) = (quota.kind, quota.of_objects, quota.amount);
        outcome = match quota.id {
            Some(id) => filesystem.quotas().set(kind, id, of_objects, amount).await,
            None => {
                filesystem
                    .quotas()
                    .set_default(kind, of_objects, amount)
                    .await
            }
        };
        if outcome.is_err() {
            break;
        }
    }
    let closed = borrowed.close().await;
    outcome.map_err(|error| {
        let kind = match error {
            FsError::ReadOnly => FailureKind::Invalid,
            FsError::Unsupported { .. } => FailureKind::Unsupported,
            _ => FailureKind::Io,
        };
        Failure::new(kind, format!("{doing}: {error}"))
    })?;
    closed.map_err(|error| from_access(&doing, &error))
}

/// `zfs project`: what it lists, or changes.
pub fn zfs_project<'a>(
    mounts: &'a Mounts,
    call: ZfsProject,
) -> BoxFuture<'a, Result<ZfsProjectReply, Failure>> {
    Box::pin(async move {
        let mut reply = ZfsProjectReply::default();
        for shown in &call.paths {
            project_of(mounts, &call, shown, &mut reply).await?;
        }
        Ok(reply)
    })
}

async fn project_of(
    mounts: &Mounts,
    call: &ZfsProject,
    path: &str,
    reply: &mut ZfsProjectReply,
) -> Result<(), Failure> {
    let doing = format!("cannot tell or change the project of '{path}'");
    let failed = |error: FsError| {
        let kind = match error {
            FsError::NotFound { .. } => FailureKind::NotFound,
            FsError::Unsupported { .. } => FailureKind::Unsupported,
            FsError::ReadOnly => FailureKind::Invalid,
            _ => FailureKind::Io,
        };
        Failure::new(kind, format!("{doing}: {error}"))
    };
    let invalid = |why: &str| Failure::new(FailureKind::Invalid, format!("{doing}: {why}"));
    let (lease, below) = mounts
        .mounted_above(Path::new(path), "project")
        .await
        .ok_or_else(|| invalid("it is in no filesystem that is mounted here"))?;
    let filesystem = lease.get();
    let mut at = filesystem
        .attributes(filesystem.root())
        .await
        .map_err(failed)?;
    for part in below.components() {
        use std::os::unix::ffi::OsStrExt;
        let name = part.as_os_str().as_bytes();
        at = filesystem.lookup(at.ino, name).await.map_err(failed)?;
    }
    let is_directory = at.kind == FileKind::Directory;
    if !is_directory && at.kind != FileKind::Regular {
        return Err(invalid("only regular files and directories have projects"));
    }
    if !is_directory && (call.recursive || call.directory_only) {
        return Err(invalid("'-r' and '-d' are for directories"));
    }
    // Where none is given it is the project of what is named.
    let top_project = at.project.unwrap_or(0);
    let descends =
        is_directory && !call.directory_only && (call.recursive || call.change.is_none());
    let mut pending = vec![(at, PathBuf::from(path), descends)];
    while let Some((found, path, descends)) = pending.pop() {
        let change = call.change.as_ref();
        let was = found.project.unwrap_or(0);
        let (project, flags) = match change {
            None => (was, found.flags),
            Some(ProjectChange::Set { project, inherit }) => (
                project.unwrap_or(top_project),
                found.flags | if *inherit { pflags::PROJINHERIT } else { 0 },
            ),
            Some(ProjectChange::Clear { keep_project }) => (
                if *keep_project { was } else { 0 },
                found.flags & !pflags::PROJINHERIT,
            ),
        };
        if (project, flags) != (was, found.flags) {
            let set = SetAttributes {
                flags: Some(flags & FLAGS),
                project: (project != was).then_some(project),
                ..SetAttributes::default()
            };
            filesystem
                .set_attributes(found.ino, &set, Caller::ROOT)
                .await
                .map_err(failed)?;
        }
        if change.is_none() {
            reply.files.push(ProjectReport {
                path: path.to_string_lossy().into_owned(),
                project: was,
                inherits: found.flags & pflags::PROJINHERIT != 0,
            });
        }
        if !descends {
            continue;
        }
        let mut cookie = 0;
        loop {
            let entries = filesystem
                .read_directory_with_attributes(found.ino, cookie, 512)
                .await
                .map_err(failed)?;
            let Some((last, _)) = entries.last() else {
                break;
            };
            cookie = last.next_cookie;
            for (entry, attributes) in entries {
                use std::os::unix::ffi::OsStrExt;
                let Some(attributes) = attributes else {
                    continue;
                };
                let name = std::ffi::OsStr::from_bytes(&entry.name);
                if matches!(attributes.kind, FileKind::Regular | FileKind::Directory)
                    && name != "."
                    && name != ".."
                {
                    let deeper = call.recursive && attributes.kind == FileKind::Directory;
                    pending.push((attributes, path.join(name), deeper));
                }
            }
        }
    }
    Ok(())
}

/// Sets quotas; the part of `zfs set` that is about them.
pub async fn set_quotas_of(
    pools: &Pools,
    name: &str,
    quotas: &[OwnedQuota],
) -> Result<Empty, Failure> {
    let open = pools.of_dataset(name)?;
    let _admin = open.admin.lock().await;
    set_owned_quotas(pools, &open, name, quotas).await?;
    Ok(Empty {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_owners_are_told_from_other_properties() {
        let list: Vec<(String, String)> = [
            ("userquota@0", "1G"),
            ("com.example:userquota@x", "y"),
            ("projectobjquota@77", "none"),
            ("quota", "2G"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
        let (quotas, rest) = OwnedQuota::split("x", &list).unwrap();
        assert_eq!(rest.len(), 2);
        assert_eq!((quotas[0].kind, quotas[0].id), (QuotaKind::User, Some(0)));
        assert_eq!(quotas[0].amount, 1 << 30);
        assert!(quotas[1].of_objects);
        assert_eq!((quotas[1].id, quotas[1].amount), (Some(77), 0));
        for (name, value) in [
            ("userused@0", "1"),
            ("groupquota@no such group", "1"),
            ("projectquota@name", "1"),
            ("userquota@0", "much"),
        ] {
            let list = [(name.to_owned(), value.to_owned())];
            assert!(OwnedQuota::split("x", &list).is_err(), "{name}={value}");
        }
    }
}
