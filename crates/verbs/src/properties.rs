//! `zfs set` and `zfs inherit`: properties, and what they mean for mounts and volumes that are
//! open.
//!
//! A list of changes is looked through as a whole before anything is done, so that one that is
//! refused changes nothing. What the dataset keeps as properties is then stored at once, all or
//! none; a volume gets its new size last, as what is cut off is gone.

use api::{Failure, FailureKind, Protocol, ZfsChanged, ZfsInherit, ZfsSet};
use dataset::props::{find, full_name};
use dataset::{DatasetError, DatasetKind, ListOptions, PropertyChange, PropertySource};
use device::BoxFuture;
use filesystem::FsError;
use serve_fuse::UnmountMode;

use crate::create::{check_shares, volume_reservation};
use crate::owners::OwnedQuota;
use service::error::{all_done, and_back, from_access, from_dataset};
use service::opened::{Takes, check_name};
use service::pools::{OpenPool, Pools};
use serving::Serving;
use serving::iscsi::ISCSI_PROPERTY;
use serving::mounts::{Mounts, Taken, is_at_or_below, remove_directories};
use serving::nfs::{NFS_PROPERTY, SHARE_PROPERTIES};
use serving::place::{Place, place};
use serving::smb::SMB_PROPERTY;
use serving::volumes::{Volumes, shows_snapshots};

/// Properties that the kernel's mount has a part in.
const ON_MOUNTS: [&str; 6] = [
    "readonly", "devices", "exec", "setuid", "snapdir", "acltype",
];
/// Properties that a mount may have otherwise without the kernel.
const OURS_ON_MOUNTS: [&str; 2] = ["atime", "relatime"];

/// Others that mean something for mounts, shares and what is shown of volumes.
const ON_OTHERS: [&str; 7] = [
    ISCSI_PROPERTY,
    NFS_PROPERTY,
    SMB_PROPERTY,
    "mountpoint",
    "canmount",
    "snapdev",
    "volmode",
];

/// Whether a change of a property comes to more than what is stored of it: what
/// [`change_properties`] does besides.
pub(crate) fn has_effects(property: &str) -> bool {
    let property = full_name(property);
    ON_MOUNTS.contains(&property)
        || OURS_ON_MOUNTS.contains(&property)
        || ON_OTHERS.contains(&property)
}

/// What is to be reserved as the size of a volume changes.
#[derive(Debug, Default)]
struct VolumeChange {
    reserve_before: Option<u64>,
    reserve_after: Option<u64>,
}

/// What changes come to, for one dataset.
#[derive(Debug, Default)]
struct Plan {
    /// What is stored as properties.
    settings: Vec<(String, PropertyChange)>,
    /// The version that a filesystem gets.
    new_version: Option<u64>,
    /// The size that a volume gets then.
    new_size_bytes: Option<u64>,
    /// What a volume that is smaller then reserves.
    reserve_after: Option<u64>,
}

fn reservation(bytes: u64) -> (String, PropertyChange) {
    let change = PropertyChange::Set(bytes.to_string());
    ("refreservation".into(), change)
}

/// Properties by their full names, as they are stored: `compress` stands for `compression`.
pub fn by_full_names(mut properties: Vec<(String, String)>) -> Vec<(String, String)> {
    for (name, _) in &mut properties {
        *name = full_name(name).to_owned();
    }
    properties
}

/// What `refreservation=auto` and a new size mean for what a volume reserves: one that reserved
/// all of its size goes on doing so (`zfs_fix_auto_resv`, `zfs_add_synthetic_resv`,
/// lib/libzfs/libzfs_dataset.c).
async fn plan_volume_change(
    open: &OpenPool,
    name: &str,
    new_size_bytes: Option<u64>,
    wants_auto: bool,
    others: &[(String, PropertyChange)],
) -> Result<VolumeChange, Failure> {
    let mut change = VolumeChange::default();
    if new_size_bytes.is_none() && !wants_auto {
        return Ok(change);
    }
    let doing = format!("cannot set property for '{name}'");
    let dsl = open.pool.dsl();
    let kind = dsl
        .directories()
        .lookup(name)
        .await
        .map_err(|error| from_dataset(&doing, &error))?
        .kind;
    if kind != DatasetKind::Volume {
        let message = match wants_auto {
            true => format!("{doing}: 'refreservation=auto' only allowed on volumes"),
            false => format!("{doing}: 'volsize' does not apply to datasets of this type"),
        };
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let mut numbers = [0; 4];
    let asked = ["volsize", "volblocksize", "copies", "refreservation"];
    for (number, property) in numbers.iter_mut().zip(asked) {
        let setting = dsl.properties().get(name, property).await;
        let setting = setting.map_err(|error| from_dataset(&doing, &error))?;
        *number = setting.value.number().unwrap_or(0);
    }
    let [old_bytes, block_bytes, copies, reserved] = numbers;
    let block_bytes = block_bytes.max(512);
    let new_bytes = new_size_bytes.unwrap_or(old_bytes);
    let set_otherwise = others.iter().any(|(other, _)| other == "refreservation");
    let was_full = reserved == volume_reservation(open, old_bytes, block_bytes, copies.max(1));
    if wants_auto || was_full && !set_otherwise {
        let bytes = volume_reservation(open, new_bytes, block_bytes, copies.max(1));
        if new_bytes >= old_bytes {
            change.reserve_before = Some(bytes);
        } else {
            change.reserve_after = Some(bytes);
        }
    }
    Ok(change)
}

/// A filesystem of the newest version counts all that its pool can count
/// (`zfs_ioc_id_quota_upgrade`, module/zfs/zfs_ioctl.c).
async fn count_owners(open: &OpenPool, name: &str) -> Result<(), Failure> {
    let doing = format!("cannot count what owners use of '{name}'");
    let failed = |error: FsError| Failure::new(FailureKind::Io, format!("{doing}: {error}"));
    let borrowed = crate::owners::borrow(open, name, &doing, "set").await?;
    let counted = borrowed.get().counting().count_owners().await;
    let closed = borrowed.close().await;
    closed.map_err(|error| from_access(&doing, &error))?;
    match counted {
        Err(FsError::ReadOnly) => Ok(()),
        counted => counted.map_err(failed),
    }
}

/// `zfs set`.
pub fn zfs_set<'a>(
    serving: &'a Serving,
    call: ZfsSet,
) -> BoxFuture<'a, Result<ZfsChanged, Failure>> {
    Box::pin(async move {
        let properties = by_full_names(call.properties.into_iter().collect());
        let first = call.names.first().map_or("", String::as_str);
        let doing = format!("cannot set property for '{first}'");
        check_shares(serving, &doing, &properties)?;
        // As `nfs_validate_shareopts` (lib/libshare) has it, "off" is said where nothing is shared.
        let is_share = |name: &str| name == NFS_PROPERTY || name == SMB_PROPERTY;
        if let Some((name, _)) =
            (properties.iter()).find(|(name, value)| is_share(name) && value.is_empty())
        {
            let message = format!("{doing}: '{name}' cannot be set to invalid options");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let (quotas, properties) = OwnedQuota::split(&doing, &properties)?;
        let changes: Vec<(String, PropertyChange)> = properties
            .into_iter()
            .map(|(name, value)| (name, PropertyChange::Set(value)))
            .collect();
        let mut changed = ZfsChanged::default();
        let mut failures = Vec::new();
        for name in &call.names {
            let done = async {
                check_name(name, Takes::Datasets)?;
                if !quotas.is_empty() {
                    crate::owners::check_owned_quotas(&serving.pools, name, &quotas).await?;
                }
                if !changes.is_empty() || quotas.is_empty() {
                    let warnings =
                        change_properties(serving, name, &changes, call.no_mount, &call.command)
                            .await?;
                    changed.warnings.extend(warnings);
                }
                if !quotas.is_empty() {
                    crate::owners::set_quotas_of(&serving.pools, name, &quotas).await?;
                    if changes.is_empty() {
                        let open = serving.pools.of_dataset(name)?;
                        crate::zpool::log_command(&open.pool, &call.command).await;
                    }
                }
                Ok(())
            };
            failures.extend(done.await.err());
        }
        all_done(&failures).map(|_| changed)
    })
}

/// `zfs inherit`.
pub fn zfs_inherit<'a>(
    serving: &'a Serving,
    call: ZfsInherit,
) -> BoxFuture<'a, Result<ZfsChanged, Failure>> {
    Box::pin(async move {
        let change = match call.received {
            true => PropertyChange::Received,
            false => PropertyChange::Inherit,
        };
        let property = full_name(&call.property);
        let changes = [(property.to_owned(), change)];
        let mut changed = ZfsChanged::default();
        let mut failures = Vec::new();
        for name in &call.names {
            if let Err(failure) = check_name(name, Takes::Datasets) {
                failures.push(failure);
                continue;
            }
            let names = match call.recursive {
                true => having(&serving.pools, property, name).await,
                false => Ok(vec![name.clone()]),
            };
            match names {
                Ok(names) => {
                    for name in names {
                        let done = async {
                            check_has(&serving.pools, property, &name).await?;
                            change_properties(serving, &name, &changes, false, &call.command).await
                        };
                        match done.await {
                            Ok(warnings) => changed.warnings.extend(warnings),
                            Err(failure) => failures.push(failure),
                        }
                    }
                }
                Err(failure) => failures.push(failure),
            }
        }
        all_done(&failures).map(|_| changed)
    })
}

/// Refuses to have a dataset inherit what its kind does not have (`zfs_prop_inherit`,
/// lib/libzfs/libzfs_dataset.c). A dataset that is not there is told of by the change itself.
async fn check_has(pools: &Pools, property: &str, name: &str) -> Result<(), Failure> {
    let Some(native) = find(property) else {
        return Ok(());
    };
    let open = pools.of_dataset(name)?;
    match open.pool.dsl().directories().lookup(name).await {
        Ok(found) if !native.kinds.meets(found.kind.kinds()) => {
            let message = format!(
                "cannot inherit {property} for '{name}': property doesn't apply to datasets of \
                 this type"
            );
            Err(Failure::new(FailureKind::Invalid, message))
        }
        _ => Ok(()),
    }
}

/// Datasets at and below `top` of the kinds that have a property (`inherit_recurse_cb`,
/// cmd/zfs/zfs_main.c).
async fn having(pools: &Pools, property: &str, top: &str) -> Result<Vec<String>, Failure> {
    let open = pools.of_dataset(top)?;
    let doing = format!("cannot open '{top}'");
    let failed = |error| from_dataset(&doing, &error);
    let dsl = open.pool.dsl();
    let listed = match top.contains('@') {
        true => vec![dsl.directories().lookup(top).await.map_err(failed)?],
        false => {
            let of_users = find(property).is_none();
            let options = ListOptions {
                snapshots: of_users,
                ..ListOptions::default()
            };
            dsl.directories()
                .list(top, &options)
                .await
                .map_err(failed)?
        }
    };
    let has = |kind: DatasetKind| {
        find(property).is_none_or(|property| property.kinds.meets(kind.kinds()))
    };
    let mut names = Vec::new();
    for info in listed.into_iter().filter(|info| has(info.kind)) {
        if info.kind == DatasetKind::Snapshot {
            // Most have none of their own, and each change takes its time.
            let setting = dsl.properties().get(&info.name, property).await;
            let source = setting.map(|setting| setting.source);
            if !matches!(source, Ok(PropertySource::Local | PropertySource::Received)) {
                continue;
            }
        }
        names.push(info.name);
    }
    Ok(names)
}

async fn names_below(pools: &Pools, top: &str) -> Result<Vec<String>, Failure> {
    let open = pools.of_dataset(top)?;
    let listed = open
        .pool
        .dsl()
        .directories()
        .list(top, &ListOptions::default())
        .await;
    let listed = listed.map_err(|error| from_dataset(&format!("cannot open '{top}'"), &error))?;
    Ok(listed.into_iter().map(|info| info.name).collect())
}

/// Looks through changes, and refuses what cannot be done.
async fn plan_changes(
    volumes: &Volumes,
    open: &OpenPool,
    name: &str,
    changes: &[(String, PropertyChange)],
) -> Result<Plan, Failure> {
    let doing = format!("cannot set property for '{name}'");
    let invalid =
        |why: &dyn std::fmt::Display| Failure::new(FailureKind::Invalid, format!("{doing}: {why}"));
    let mut plan = Plan::default();
    let mut wants_auto = false;
    for (property, change) in changes {
        match (property.as_str(), change) {
            ("volsize", PropertyChange::Set(text)) => {
                let size = dataset::props::parse_size(text);
                plan.new_size_bytes = Some(size.map_err(|error| invalid(&error))?);
            }
            ("refreservation", PropertyChange::Set(text)) if text == "auto" => {
                wants_auto = true;
            }
            ("version", PropertyChange::Set(text)) => {
                plan.new_version = crate::upgrade::new_version(open, name, text, &doing).await?;
            }
            _ => plan.settings.push((property.clone(), change.clone())),
        }
    }
    let of_volume =
        plan_volume_change(open, name, plan.new_size_bytes, wants_auto, &plan.settings).await?;
    // What a bigger volume needs is reserved before it is bigger; of a smaller one it is let go
    // after.
    plan.settings
        .extend(of_volume.reserve_before.map(reservation));
    plan.reserve_after = of_volume.reserve_after;
    if let Some(size_bytes) = plan.new_size_bytes {
        let volume = volumes.get(name);
        let volume = volume.ok_or_else(|| invalid(&format!("'{name}' is not an open volume")))?;
        volume
            .check_size(size_bytes)
            .map_err(|error| invalid(&error))?;
    }
    let checked = open
        .pool
        .dsl()
        .properties()
        .check(name, &plan.settings)
        .await;
    checked.map_err(|error| from_dataset(&doing, &error))?;
    Ok(plan)
}

async fn carry_out(
    volumes: &Volumes,
    open: &OpenPool,
    name: &str,
    plan: &Plan,
) -> Result<(), Failure> {
    let doing = format!("cannot set property for '{name}'");
    let failed = |error: DatasetError| from_dataset(&doing, &error);
    let dsl = open.pool.dsl();
    if !plan.settings.is_empty() {
        let set = dsl.properties().set(name, &plan.settings).await;
        set.map_err(failed)?;
    }
    if let Some(version) = plan.new_version {
        crate::upgrade::raise(open, name, version).await?;
    }
    if let Some(size_bytes) = plan.new_size_bytes {
        let volume = volumes.get(name).ok_or_else(|| {
            let message = format!("{doing}: '{name}' is not an open volume");
            Failure::new(FailureKind::Invalid, message)
        })?;
        let resized = volume.resize(size_bytes).await;
        resized.map_err(|error| Failure::new(FailureKind::Invalid, format!("{doing}: {error}")))?;
        // What is written beyond the old end, and flushed, must find room there after a crash too
        // (`zvol_update_volsize` waits likewise).
        let synced = open.pool.sync().await;
        synced.map_err(|error| Failure::new(FailureKind::Io, format!("{doing}: {error}")))?;
        volumes.show_new_size(name).await;
    }
    if let Some(bytes) = plan.reserve_after {
        let set = dsl.properties().set(name, &[reservation(bytes)]).await;
        set.map_err(failed)?;
    }
    Ok(())
}

/// Changes properties, then does what they mean for mounts and shares. Answers what could not
/// be mounted.
async fn change_properties(
    serving: &Serving,
    name: &str,
    changes: &[(String, PropertyChange)],
    no_mount: bool,
    command: &str,
) -> Result<Vec<String>, Failure> {
    let open = serving.pools.of_dataset(name)?;
    let _admin = open.admin.lock().await;
    let doing = format!("cannot set property for '{name}'");
    let found = open.pool.dsl().directories().lookup(name).await;
    let kind = found.map_err(|error| from_dataset(&doing, &error))?.kind;
    let is_filesystem = kind == DatasetKind::Filesystem;
    let plan = plan_changes(&serving.volumes, &open, name, changes).await?;
    let refused = |failure: Failure| Failure::new(failure.kind, format!("{doing}: {failure}"));
    let hides = hides_snapshots(&open, name, changes).await?;
    if hides && let Err(failure) = hide_following_snapshots(&serving.volumes, &open, name).await {
        let back = serving.volumes.show_snapshots_below(&open, name).await;
        return and_back(Err(refused(failure)), back);
    }
    let mut taken = Vec::new();
    let moves = is_filesystem && !no_mount && changes.iter().any(is_move);
    let names = match (moves, is_filesystem) {
        (true, _) => serving.mounts.with_inside(name, &open.pool.name()),
        (false, true) => mounted_anew(&serving.mounts, &open, name, changes).await?,
        (false, false) => Vec::new(),
    };
    let mounts_anew = !names.is_empty();
    if mounts_anew {
        match serving.take_away(&open, names, UnmountMode::Clean).await {
            Ok(unmounted) => taken = unmounted,
            Err(failure) if hides => {
                let back = serving.volumes.show_snapshots_below(&open, name).await;
                return and_back(Err(failure), back);
            }
            Err(failure) => return Err(failure),
        }
    }
    if let Err(failure) = carry_out(&serving.volumes, &open, name, &plan).await {
        let mut outcome = and_back(Err(failure), serving.bring_back(&open, taken).await);
        if hides {
            let back = serving.volumes.show_snapshots_below(&open, name).await;
            outcome = and_back(outcome, back);
        }
        return outcome;
    }
    if is_filesystem && changes.iter().any(|(changed, _)| changed == "version") {
        count_owners(&open, name).await?;
    }
    crate::zpool::log_command(&open.pool, command).await;
    let mut warnings = Vec::new();
    if mounts_anew && !moves {
        if let Err(failure) = serving.bring_back(&open, taken).await {
            warnings.push(format!("property set, but {failure}"));
        }
        serving.smb.settle().await;
    } else if moves {
        let has_new_place = changes.iter().any(|(changed, _)| changed == "mountpoint");
        warnings = put_where_it_belongs(serving, &open, name, taken, has_new_place).await;
    }
    follow_properties(serving, &open, name, is_filesystem, changes).await?;
    let has = |name: &str| changes.iter().any(|(changed, _)| changed == name);
    if has(NFS_PROPERTY) {
        let again = serving.share_again(&open, name, Some(Protocol::Nfs));
        warnings.extend(again.await);
    } else if is_filesystem && SHARE_PROPERTIES.into_iter().any(has) {
        warnings.extend(serving.follow_nfs(&open, name).await);
    }
    if is_filesystem && has(SMB_PROPERTY) {
        let again = serving.share_again(&open, name, Some(Protocol::Smb));
        warnings.extend(again.await);
    }
    Ok(warnings)
}

/// Filesystems that a change of `acltype` mounts anew, with those that are mounted inside them, in
/// the order in which they are unmounted: the kernel asks for lists of access by what it was told
/// when it mounted. One that is in use refuses the change.
async fn mounted_anew(
    mounts: &Mounts,
    open: &OpenPool,
    name: &str,
    changes: &[(String, PropertyChange)],
) -> Result<Vec<String>, Failure> {
    const ACL_TYPE: &str = "acltype";
    let Some((_, change)) = changes.iter().find(|(changed, _)| changed == ACL_TYPE) else {
        return Ok(Vec::new());
    };
    let properties = open.pool.dsl().properties();
    let value = async |dataset: &str| {
        let setting = properties.get(dataset, ACL_TYPE).await;
        let setting = setting.map_err(|error| from_dataset("cannot look at acltype", &error))?;
        Ok::<_, Failure>(setting.value.number())
    };
    let now = value(name).await?;
    let then = match change {
        PropertyChange::Set(word) => match word.as_str() {
            "off" | "noacl" => Some(0),
            "posix" | "posixacl" => Some(1),
            _ => None,
        },
        PropertyChange::Inherit => match dataset::name::split_parent(name) {
            (Some(parent), _) => value(parent).await?,
            (None, _) => Some(0),
        },
        PropertyChange::Received => None,
    };
    if then.is_some() && then == now {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for mounted in mounts.below(name) {
        if follows(open, ACL_TYPE, name, &mounted).await? {
            for inside in mounts.with_inside(&mounted, &open.pool.name()) {
                if !names.contains(&inside) {
                    names.push(inside);
                }
            }
        }
    }
    let all = mounts.with_inside(name, &open.pool.name());
    Ok(all.into_iter().filter(|one| names.contains(one)).collect())
}

/// Whether changes hide the snapshots of volumes that are shown as files.
async fn hides_snapshots(
    open: &OpenPool,
    name: &str,
    changes: &[(String, PropertyChange)],
) -> Result<bool, Failure> {
    let change = changes.iter().find(|(changed, _)| changed == "snapdev");
    match change.map(|(_, change)| change) {
        None | Some(PropertyChange::Received) => Ok(false),
        Some(PropertyChange::Set(word)) => Ok(word != "visible"),
        Some(PropertyChange::Inherit) => match dataset::name::split_parent(name) {
            (Some(parent), _) => shows_snapshots(open, parent).await.map(|shows| !shows),
            (None, _) => Ok(true),
        },
    }
}

/// Hides the snapshots of the volumes whose `snapdev` is what a dataset's is.
async fn hide_following_snapshots(
    volumes: &Volumes,
    open: &OpenPool,
    name: &str,
) -> Result<(), Failure> {
    for volume in volumes.below(name) {
        if !volume.contains('@') && follows(open, "snapdev", name, &volume).await? {
            volumes
                .hide_volume_snapshots(&volume, UnmountMode::Clean)
                .await?;
        }
    }
    Ok(())
}

/// Whether a property of `below`, which is `name` or below it, changes with that of `name`.
async fn follows(
    open: &OpenPool,
    property: &str,
    name: &str,
    below: &str,
) -> Result<bool, Failure> {
    if below == name {
        return Ok(true);
    }
    let setting = open.pool.dsl().properties().get(below, property).await;
    let setting =
        setting.map_err(|error| from_dataset(&format!("cannot open '{below}'"), &error))?;
    Ok(match setting.source {
        PropertySource::Default => true,
        PropertySource::Inherited(from) => is_at_or_below(name, &from),
        _ => false,
    })
}

/// Mounts again what was unmounted, where it belongs now. With a new mount point, all that
/// inherit it and want to be mounted are. What cannot be mounted is answered: the property is
/// set all the same (`changelist_postfix`, lib/libzfs/libzfs_changelist.c).
async fn put_where_it_belongs(
    serving: &Serving,
    open: &OpenPool,
    name: &str,
    taken: Vec<Taken>,
    has_new_place: bool,
) -> Vec<String> {
    remove_directories(taken.iter().filter_map(Taken::own_directory).collect()).await;
    let mut names: Vec<String> = taken.into_iter().map(|one| one.name).collect();
    let mut warnings = Vec::new();
    if has_new_place {
        // What was mounted before is mounted again, whatever cannot be found out about others.
        match names_that_follow(&serving.pools, open, name).await {
            Ok(more) => names.extend(more),
            Err(failure) => warnings.push(format!("property set, but {failure}")),
        }
    }
    names.sort();
    names.dedup();
    for one in names {
        if let Err(failure) = serving.mount_again(open, &one).await {
            warnings.push(format!("property set, but {failure}"));
        }
    }
    warnings
}

/// Filesystems at and below a dataset that inherit its mount point and want to be mounted.
async fn names_that_follow(
    pools: &Pools,
    open: &OpenPool,
    name: &str,
) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for below in names_below(pools, name).await? {
        let is_wanted = matches!(place(open, &below).await, Ok((Place::At(_), true)))
            && follows(open, "mountpoint", name, &below).await?
            && !open.is_locked(&below).await;
        if is_wanted {
            names.push(below);
        }
    }
    Ok(names)
}

/// Does what properties that were changed mean for what is mounted, shared and shown.
async fn follow_properties(
    serving: &Serving,
    open: &OpenPool,
    name: &str,
    is_filesystem: bool,
    changes: &[(String, PropertyChange)],
) -> Result<(), Failure> {
    let changes_any = |names: &[&str]| {
        changes
            .iter()
            .any(|(changed, _)| names.contains(&changed.as_str()))
    };
    if changes_any(&[ISCSI_PROPERTY]) {
        let options = ListOptions {
            filesystems: false,
            ..ListOptions::default()
        };
        let listed = open.pool.dsl().directories().list(name, &options).await;
        let doing = format!("cannot set property for '{name}'");
        for info in listed.map_err(|error| from_dataset(&doing, &error))? {
            serving.volumes.share_volume(open, &info.name).await?;
        }
    }
    if is_filesystem && (changes_any(&ON_MOUNTS) || changes_any(&OURS_ON_MOUNTS)) {
        // What was asked for one mount only, as it was mounted, gives way.
        for mounted in serving.mounts.below(name) {
            for (changed, _) in changes {
                if follows(open, changed, name, &mounted).await? {
                    serving.mounts.forget_temporary(&mounted, changed);
                }
            }
        }
    }
    if is_filesystem && changes_any(&ON_MOUNTS) {
        serving
            .refresh_mounts(open, name, changes_any(&["acltype"]))
            .await?;
    }
    if changes_any(&["volmode"]) {
        serving.volumes.show_volumes_below(open, name).await?;
    }
    if changes_any(&["snapdev"]) {
        let shown = serving.volumes.show_snapshots_below(open, name).await;
        shown.map_err(|failure| {
            Failure::new(failure.kind, format!("property set, but {failure}"))
        })?;
    }
    Ok(())
}

/// Whether a change takes mounts away. Of `canmount` only `off` does (`zfs_prop_set_list_flags`,
/// lib/libzfs/libzfs_dataset.c).
fn is_move((property, change): &(String, PropertyChange)) -> bool {
    match (property.as_str(), change) {
        ("mountpoint", _) => true,
        ("canmount", PropertyChange::Set(word)) => word == "off",
        _ => false,
    }
}
