//! What a package says of datasets that are here: which were destroyed, renamed or promoted where
//! it was sent, and which of their snapshots (`recv_incremental_replication`,
//! lib/libzfs/libzfs_sendrecv.c). Done with `-F` only, as what is destroyed here is not asked for.
//!
//! Datasets are known by the GUIDs of their snapshots, whatever their names. So temporary names
//! ([`super::moves`]) are seen through at any time: where a receive fails, or the server dies,
//! between a temporary name and the last one, the next receive of a package brings it right.
//!
//! It is done three times: before the first stream; after each stream that brings a new dataset,
//! while others wait to be below it; and after the last one, which then fails if something is left
//! that could not be done. Until then it is in nobody's way: streams find their datasets by any
//! name ([`found`]).
//!
//! A first package, of all there is, says nothing of what was here before: it destroys and promotes
//! nothing. Only what it brings by a temporary name gets its last one ([`top_comes_late`]).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};

use api::{Failure, FailureKind, ReceiveGuard, ZfsDestroy, ZfsPromote, ZfsRename};
use dataset::{DatasetError, DatasetInfo, DatasetKind, KeyRoot, ListOptions};
use device::BoxFuture;
use format::stream::Begin;
use stream::{Description, Package, PackageDataset, received_name};

use super::moves::{Fate, Here, Step, Tree, above};
use super::{Packed, Place, Run};
use crate::destroy::{add_clones, check_holds, in_order, put_away_and_destroy};
use crate::zfs::{everything, mode};
use service::error::{and_back, from_dataset};

/// When it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Before the first stream.
    Before,
    /// After the stream of a new dataset.
    Between,
    /// After the last stream.
    After,
}

/// A snapshot of the package.
struct Sent<'a> {
    dataset: &'a PackageDataset,
    /// After the `@`.
    name: &'a str,
}

/// Snapshots of the package by GUID. A dataset and a copy of it have the same ones.
type Index<'a> = HashMap<u64, Vec<Sent<'a>>>;

/// A dataset that is here, and what the package says of it.
struct Matched<'a> {
    name: String,
    guid: u64,
    referenced_bytes: u64,
    is_inconsistent: bool,
    /// The snapshot that it is a clone of.
    origin: Option<String>,
    /// Oldest first.
    snapshots: Vec<DatasetInfo>,
    sent: Option<&'a PackageDataset>,
    /// It has snapshots of the package, which another one is there.
    is_copy: bool,
}

impl Matched<'_> {
    fn is(&self, dataset: &PackageDataset) -> bool {
        self.sent.is_some_and(|sent| std::ptr::eq(sent, dataset))
    }
}

/// What could not be done, a sentence each.
type Problems = Vec<String>;

impl Run<'_> {
    /// Takes note of a package, and does at once what it says of what is here.
    pub(super) async fn begin_package(
        &mut self,
        begin: &Begin,
        list: Description,
    ) -> Result<(), Failure> {
        let (top, _) = dataset::name::split_snapshot(&begin.to_name);
        let package = Package::decode(&list);
        let is_difference = package.from.is_some() && !package.is_not_recursive;
        let mut packed = Packed {
            package,
            top: top.to_owned(),
            follows: false,
            destroys: is_difference,
            awaits: false,
            parted: Vec::new(),
            _room: list.into_room(),
        };
        if self.call.force && !self.call.dry_run {
            packed.follows = is_difference || top_comes_late(self, &packed).await;
        }
        self.package = Some(packed);
        follow(self, When::Before).await?;
        if is_difference && !self.call.dry_run {
            super::snapshots::receive_properties(self, &begin.to_name).await?;
        }
        Ok(())
    }
}

/// Whether a first package has a top that is a clone of what is below it there. That comes first,
/// by a temporary name beside the top's.
async fn top_comes_late(run: &Run<'_>, packed: &Packed) -> bool {
    let package = &packed.package;
    let Some(base) = name_here(run, packed, &packed.top) else {
        return false;
    };
    if package.from.is_some() || !may_leave(run) || above(&base).is_empty() {
        return false;
    }
    let is_top = |dataset: &&PackageDataset| dataset.name == packed.top;
    let top = package.datasets.iter().find(is_top);
    let Some(origin) = top.and_then(|top| top.origin) else {
        return false;
    };
    let mut others = package.datasets.iter().filter(|one| !is_top(one));
    let comes_first = others.any(|one| one.snapshots.iter().any(|(_, guid)| *guid == origin));
    let found = run.open.pool.dsl().directories().lookup(&base).await;
    comes_first
        && match found {
            Ok(info) => info.is_inconsistent,
            Err(DatasetError::NotFound { .. }) => true,
            Err(_) => false,
        }
}

/// Does what the package says.
///
/// # Errors
/// Of reading what is here; of what could not be done, after the last stream.
pub(super) async fn follow(run: &mut Run<'_>, when: When) -> Result<(), Failure> {
    let Some(mut packed) = run.package.take() else {
        return Ok(());
    };
    let outcome = match packed.follows {
        true => apply(run, &mut packed, when).await,
        false => Ok(()),
    };
    run.package = Some(packed);
    outcome
}

async fn apply(run: &Run<'_>, packed: &mut Packed, when: When) -> Result<(), Failure> {
    // With `-d` and `-e` that is below what was asked for, and nothing beside it is touched.
    let Some(base) = name_here(run, packed, &packed.top) else {
        return Ok(());
    };
    let mut problems = Problems::new();
    let package = std::mem::take(&mut packed.package);
    let sent = index(&package.datasets);
    let outcome = async {
        let mut all = matched(run, packed, &base, &sent).await?;
        if is_of_another(&all, &base) {
            return Ok(Problems::new());
        }
        if when != When::Between && packed.destroys && !all.is_empty() {
            // Their own names first: those of promoted ones would be in each other's way.
            let mut has_changed = false;
            for one in &all {
                has_changed |= change_snapshots(run, one, &sent, &mut Problems::new()).await?;
            }
            if has_changed {
                all = matched(run, packed, &base, &sent).await?;
            }
            all = promote_all(run, packed, &base, &sent, all, &mut problems).await?;
            for one in &all {
                change_snapshots(run, one, &sent, &mut problems).await?;
            }
        }
        move_all(run, packed, &base, &package.datasets, &all, &mut problems).await
    };
    let outcome = outcome.await;
    drop(sent);
    packed.package = package;
    let waits = outcome?;
    packed.awaits = !waits.is_empty();
    for problem in &problems {
        tracing::warn!(target = base, "{problem}");
    }
    if when != When::After {
        return Ok(());
    }
    show_parted(run, packed, &base).await;
    problems.extend(waits);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(
            FailureKind::Other,
            format!(
                "cannot receive into '{base}': all was received, but not all that was renamed, \
                 promoted or destroyed where it was sent could be followed:\n{}",
                problems.join("\n")
            ),
        )),
    }
}

/// The name here of a dataset of the package, at or below what is received into.
fn name_here(run: &Run<'_>, packed: &Packed, sent: &str) -> Option<String> {
    let naming = super::naming_of(run.call.naming);
    let name = |sent: &str| {
        let name = received_name(&run.call.target, naming, &packed.top, &format!("{sent}@"))?;
        Some(name.trim_end_matches('@').to_owned())
    };
    let base = name(&packed.top)?;
    name(sent).filter(|name| api::is_within(name, &base))
}

fn index(datasets: &[PackageDataset]) -> Index<'_> {
    let mut index = Index::new();
    for dataset in datasets {
        for (name, guid) in &dataset.snapshots {
            index.entry(*guid).or_default().push(Sent { dataset, name });
        }
    }
    index
}

fn cannot_receive(base: &str, error: &DatasetError) -> Failure {
    from_dataset(&format!("cannot receive into '{base}'"), error)
}

/// Whether the last part of a name is a temporary one.
fn is_temporary(last: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let rest = last.strip_prefix("recv-");
    let parts = rest.and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(process, number)| digits(process) && digits(number))
}

/// A temporary name that nobody had since the server started.
fn temporary() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("recv-{}-{number}", std::process::id())
}

/// A temporary name that is none of these.
fn temporary_beside(taken: &HashSet<String>) -> String {
    let mut names = std::iter::repeat_with(temporary);
    names.find(|name| !taken.contains(name)).unwrap_or_default()
}

/// A temporary name below what has this name, or (`-`) beside it.
async fn free_name(run: &Run<'_>, home: &str, separator: char) -> String {
    let directories = run.open.pool.dsl().directories();
    loop {
        let name = format!("{home}{separator}{}", temporary());
        if directories.lookup(&name).await.is_err() {
            return name;
        }
    }
}

/// Whether what is received into may be renamed itself, beside others of its parent.
fn may_leave(run: &Run<'_>) -> bool {
    matches!(run.call.guard, ReceiveGuard::None | ReceiveGuard::Operator)
}

/// What is here, with what the package says of it; nothing where it is to be made.
async fn matched<'a>(
    run: &Run<'_>,
    packed: &Packed,
    base: &str,
    sent: &Index<'a>,
) -> Result<Vec<Matched<'a>>, Failure> {
    let directories = run.open.pool.dsl().directories();
    let everything = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let mut listed = match directories.list(base, &everything).await {
        Ok(listed) => listed,
        Err(DatasetError::NotFound { .. }) => Vec::new(),
        Err(error) => return Err(cannot_receive(base, &error)),
    };
    // What was received into and has left its name to another ([`make_way`]).
    let parent = above(base);
    if may_leave(run) && !parent.is_empty() {
        let children = ListOptions {
            depth: Some(1),
            ..ListOptions::default()
        };
        let beside = directories
            .list(parent, &children)
            .await
            .unwrap_or_default();
        let names = beside.into_iter().map(|info| info.name);
        let is_of_it = |name: &String| {
            let rest = name.strip_prefix(base);
            let rest = rest.and_then(|rest| rest.strip_prefix('-'));
            rest.is_some_and(is_temporary)
        };
        for name in names.filter(is_of_it) {
            let below = directories.list(&name, &everything).await;
            let below = below.map_err(|error| cannot_receive(base, &error))?;
            let is_sent = |info: &DatasetInfo| {
                info.kind == DatasetKind::Snapshot && sent.contains_key(&info.guid.get())
            };
            if below.iter().any(is_sent) {
                listed.extend(below);
            }
        }
    }
    let mut all: Vec<Matched<'a>> = Vec::new();
    for info in listed {
        if info.kind == DatasetKind::Snapshot {
            if let Some(head) = all.last_mut() {
                head.snapshots.push(info);
            }
            continue;
        }
        all.push(Matched {
            name: info.name,
            guid: info.guid.get(),
            referenced_bytes: info.referenced_bytes,
            is_inconsistent: info.is_inconsistent,
            origin: info.origin,
            snapshots: Vec::new(),
            sent: None,
            is_copy: false,
        });
    }
    // Of copies, those that have their names are these.
    let mut taken: HashSet<&str> = HashSet::new();
    for by_name in [true, false] {
        for one in all.iter_mut().filter(|one| one.sent.is_none()) {
            one.snapshots.sort_by_key(|info| info.createtxg);
            // The last ones are its own also where it was a clone, or its origin was promoted.
            let mut newest_first = one.snapshots.iter().rev();
            let Some(owners) = newest_first.find_map(|own| sent.get(&own.guid.get())) else {
                continue;
            };
            let found = owners.iter().map(|owner| owner.dataset).find(|dataset| {
                !taken.contains(dataset.name.as_str())
                    && (!by_name
                        || name_here(run, packed, &dataset.name).as_ref() == Some(&one.name))
            });
            if let Some(dataset) = found {
                taken.insert(&dataset.name);
            }
            one.sent = found;
            one.is_copy = found.is_none();
        }
    }
    Ok(all)
}

/// Whether what is received into has nothing of the package: it is a replica of something else, or
/// is older than all that the source still has. Its streams are refused; nothing is done before.
fn is_of_another(all: &[Matched<'_>], base: &str) -> bool {
    let is_strange = |one: &Matched<'_>| {
        one.name == base && !one.snapshots.is_empty() && one.sent.is_none() && !one.is_copy
    };
    all.iter().all(|one| one.sent.is_none()) || all.iter().any(is_strange)
}

/// Promotes clones that are none any more, or are clones of later snapshots, until all are. A
/// promotion moves snapshots, and may be what another one waits for.
async fn promote_all<'a>(
    run: &Run<'_>,
    packed: &mut Packed,
    base: &str,
    sent: &Index<'a>,
    mut all: Vec<Matched<'a>>,
    problems: &mut Problems,
) -> Result<Vec<Matched<'a>>, Failure> {
    // Whatever a package says, this ends.
    for _ in 0..4 * all.len() + 4 {
        let outcome = if let Some(name) = promoted_there(&all, sent) {
            promote(run, &name).await
        } else if let Some(snapshot) = parted_there(&all, sent) {
            let parted = part(run, base, &snapshot).await;
            parted.map(|guid| packed.parted.extend(guid))
        } else {
            return Ok(all);
        };
        all = matched(run, packed, base, sent).await?;
        if let Err(failure) = outcome {
            problems.push(failure.message);
            return Ok(all);
        }
    }
    Ok(all)
}

/// A clone that was promoted where it was sent: what it is a clone of here, is its own snapshot
/// there. Where that one is destroyed, what it is a clone of there tells (`created_before`).
fn promoted_there(all: &[Matched<'_>], sent: &Index<'_>) -> Option<String> {
    let snapshots = || all.iter().flat_map(|one| &one.snapshots);
    let by_name: HashMap<&str, &DatasetInfo> =
        snapshots().map(|info| (info.name.as_str(), info)).collect();
    let origin_of = |one: &Matched<'_>| by_name.get(one.origin.as_deref()?).copied();
    let is_promoted = |one: &&Matched<'_>| {
        let (Some(dataset), Some(here)) = (one.sent, origin_of(one)) else {
            return false;
        };
        match (sent.get(&here.guid.get()), dataset.origin) {
            (Some(owners), _) => owners.iter().any(|owner| one.is(owner.dataset)),
            (None, None) => true,
            (None, Some(guid)) => snapshots()
                .find(|info| info.guid.get() == guid)
                .is_some_and(|there| there.createtxg > here.createtxg),
        }
    };
    // Of several clones of one dataset the oldest takes the fewest snapshots: the others' are not
    // to come to it first.
    let promoted = all.iter().filter(is_promoted);
    let first = promoted.min_by_key(|one| origin_of(one).map(|origin| origin.createtxg));
    first.map(|one| one.name.clone())
}

/// A snapshot at which a dataset is two where it was sent: it and those before it are of a clone
/// that was made and promoted there meanwhile.
fn parted_there(all: &[Matched<'_>], sent: &Index<'_>) -> Option<String> {
    all.iter().find_map(|one| {
        let dataset = one.sent?;
        let mut newest_first = one.snapshots.iter().rev();
        let (own, owners) = newest_first.find_map(|own| {
            let owners = sent.get(&own.guid.get())?;
            let is_its = owners.iter().any(|owner| one.is(owner.dataset));
            (!is_its).then_some((own, owners))
        })?;
        let is_here = |owner: &Sent<'_>| all.iter().any(|one| one.is(owner.dataset));
        let is_parted = dataset.origin == Some(own.guid.get()) && !owners.iter().any(is_here);
        is_parted.then(|| own.name.clone())
    })
}

/// Promotes a clone. Where it would leave its encryption root so, what it is a clone of in the end
/// becomes one first (`recv_promote`).
async fn promote(run: &Run<'_>, name: &str) -> Result<(), Failure> {
    let again = || ZfsPromote {
        name: name.to_owned(),
        command: String::new(),
    };
    let Err(failure) = crate::snapshots::zfs_promote(run.serving, again()).await else {
        return Ok(());
    };
    if !become_root(run, name).await {
        return Err(failure);
    }
    crate::snapshots::zfs_promote(run.serving, again()).await?;
    Ok(())
}

/// Makes an encryption root of what a dataset is a clone of in the end, or of itself
/// (`recv_open_grand_origin`). Says whether it is one now.
/// Who may do no more than receive changes nothing that is not within the target.
async fn become_root(run: &Run<'_>, name: &str) -> bool {
    let dsl = run.open.pool.dsl();
    let mut at = name.to_owned();
    while let Ok(info) = dsl.directories().lookup(&at).await
        && let Some(origin) = info.origin
    {
        at = origin.split('@').next().unwrap_or_default().to_owned();
    }
    if !may_leave(run) && !api::is_within(&at, &run.call.target) {
        return false;
    }
    let _admin = run.open.admin.lock().await;
    let key = dsl.keys().info(&at).await.ok().flatten();
    key.is_some_and(|key| !key.is_root) && dsl.keys().set_root(&at, KeyRoot::Own).await.is_ok()
}

/// Has a snapshot and those before it belong to a dataset of their own, of which the one that had
/// them becomes a clone. Gives the new one's GUID, where it can be had.
async fn part(run: &Run<'_>, base: &str, snapshot: &str) -> Result<Option<u64>, Failure> {
    let dsl = run.open.pool.dsl();
    let name = free_name(run, base, '/').await;
    {
        let _admin = run.admin().await?;
        let made = dsl.datasets().clone_snapshot(snapshot, &name, &[]).await;
        made.map_err(|error| cannot_receive(base, &error))?;
    }
    if let Err(failure) = promote(run, &name).await {
        let _admin = run.open.admin.lock().await;
        if let Err(error) = dsl.destroyer().destroy(&name).await {
            tracing::warn!(name, %error, "a clone stays that was made to be promoted");
        }
        return Err(failure);
    }
    let info = dsl.directories().lookup(&name).await;
    Ok(info.ok().map(|info| info.guid.get()))
}

/// Mounts or opens what was parted, as it would have been had it come as a stream.
async fn show_parted(run: &Run<'_>, packed: &mut Packed, base: &str) {
    let parted = std::mem::take(&mut packed.parted);
    if parted.is_empty() {
        return;
    }
    let directories = run.open.pool.dsl().directories();
    let listed = directories.list(base, &ListOptions::default()).await;
    let _admin = run.open.admin.lock().await;
    for info in listed.unwrap_or_default() {
        if !parted.contains(&info.guid.get()) {
            continue;
        }
        let shown = match info.kind {
            DatasetKind::Volume => {
                let volumes = &run.serving.volumes;
                volumes.open_volume(&run.open, &info.name).await
            }
            _ if run.call.no_mount => Ok(()),
            _ => crate::zfs::mount_created(run.serving, &run.open, &info.name).await,
        };
        if let Err(failure) = shown {
            tracing::warn!("{failure}");
        }
    }
}

/// Destroys snapshots that the package has nowhere, and renames those that it has by other names.
/// Says whether there were any.
async fn change_snapshots(
    run: &Run<'_>,
    one: &Matched<'_>,
    sent: &Index<'_>,
    problems: &mut Problems,
) -> Result<bool, Failure> {
    let Some(dataset) = one.sent else {
        return Ok(false);
    };
    let dsl = run.open.pool.dsl();
    let short = |name: &str| name.rsplit('@').next().unwrap_or(name).to_owned();
    let mut doomed = Vec::new();
    // Names that they have, and are to have.
    let mut renamed: Vec<(String, String)> = Vec::new();
    let mut taken: HashSet<String> = HashSet::new();
    let mut here: HashSet<u64> = HashSet::new();
    for own in &one.snapshots {
        let now = short(&own.name);
        taken.insert(now.clone());
        here.insert(own.guid.get());
        let Some(owners) = sent.get(&own.guid.get()) else {
            doomed.push(own.name.clone());
            continue;
        };
        let own = owners.iter().find(|owner| one.is(owner.dataset));
        if let Some(owner) = own.or(owners.first())
            && owner.name != now
        {
            renamed.push((now, owner.name.to_owned()));
        }
    }
    if doomed.is_empty() && renamed.is_empty() {
        return Ok(false);
    }
    let mut touched = doomed.clone();
    let both = renamed.iter().flat_map(|(from, to)| [from, to]);
    touched.extend(both.map(|name| format!("{}@{name}", one.name)));
    let _admin = run.admin().await?;
    // Who has one of them open has it by its old name.
    let (volumes, force) = (&run.serving.volumes, mode(run.call.force_unmount));
    let hidden = volumes.hide_volume_snapshots(&one.name, force).await;
    if hidden.is_err() {
        let shown = volumes.show_volume_snapshots(&run.open, &one.name).await;
        problems.extend(and_back(hidden, shown).err().map(|failure| failure.message));
        return Ok(false);
    }
    run.serving.release_snapshots(&touched).await;
    let mut done = Ok(true);
    let mut stays = Vec::new();
    let all_at_once = match doomed.is_empty() {
        true => Ok(()),
        false => dsl.destroyer().destroy_snapshots(&doomed, false).await,
    };
    for name in doomed {
        if let Some(why) = run.under_way.broken() {
            done = Err(run.broken_off(why));
            break;
        }
        let outcome = match all_at_once {
            Ok(()) => Ok(()),
            Err(_) => {
                let alone = std::slice::from_ref(&name);
                dsl.destroyer().destroy_snapshots(alone, false).await
            }
        };
        match outcome {
            Ok(()) => {
                taken.remove(&short(&name));
            }
            Err(error) => {
                let doing = format!("cannot destroy '{name}'");
                problems.push(from_dataset(&doing, &error).message);
                stays.push(short(&name));
            }
        }
    }
    // What could not go leaves its name to those that are to have it, or come with it.
    let to_come = dataset.snapshots.iter();
    let to_come = to_come.filter(|(_, guid)| !here.contains(guid));
    let mut needed: HashSet<&str> = to_come.map(|(name, _)| name.as_str()).collect();
    needed.extend(renamed.iter().map(|(_, to)| to.as_str()));
    for name in stays.iter().filter(|name| needed.contains(name.as_str())) {
        let aside = temporary_beside(&taken);
        match rename_snapshot(run, &one.name, name, &aside).await {
            Ok(()) => {
                touched.push(format!("{}@{aside}", one.name));
                taken.remove(name);
                taken.insert(aside);
            }
            Err(problem) => problems.push(problem),
        }
    }
    let mut left = renamed;
    while !left.is_empty() {
        if let Some(why) = run.under_way.broken() {
            done = Err(run.broken_off(why));
            break;
        }
        let free = left.iter().position(|(_, to)| !taken.contains(to));
        let in_the_way = || {
            let needed: HashSet<&String> = left.iter().map(|(_, to)| to).collect();
            left.iter().position(|(from, _)| needed.contains(from))
        };
        // Names that were swapped: one of them goes by another one for a moment.
        let (at, to) = match free.or_else(in_the_way) {
            Some(at) if free.is_some() => (at, left[at].1.clone()),
            Some(at) => (at, temporary_beside(&taken)),
            None => {
                for (from, to) in &left {
                    problems.push(format!("cannot rename '{}@{from}' to '@{to}'", one.name));
                }
                break;
            }
        };
        let (from, wanted) = left.remove(at);
        match rename_snapshot(run, &one.name, &from, &to).await {
            Ok(()) => {
                taken.remove(&from);
                taken.insert(to.clone());
                if to != wanted {
                    touched.push(format!("{}@{to}", one.name));
                    left.push((to, wanted));
                }
            }
            Err(problem) => problems.push(problem),
        }
    }
    run.serving.release_snapshots(&touched).await;
    if let Err(failure) = volumes.show_volume_snapshots(&run.open, &one.name).await {
        tracing::warn!("{failure}");
    }
    done
}

async fn rename_snapshot(run: &Run<'_>, of: &str, from: &str, to: &str) -> Result<(), String> {
    let (from, to) = (format!("{of}@{from}"), format!("{of}@{to}"));
    let done = run.open.pool.dsl().directories().rename(&from, &to).await;
    done.map_err(|error| from_dataset(&format!("cannot rename '{from}'"), &error).message)
}

/// What becomes of each dataset that is here. Destroyed is what was received before and is not sent
/// any more, where the package is a difference; what has something below it that stays, stays as
/// well.
fn fates(run: &Run<'_>, packed: &Packed, base: &str, all: &[Matched<'_>]) -> Vec<Fate> {
    let by_name: HashMap<&str, &Matched<'_>> =
        all.iter().map(|one| (one.name.as_str(), one)).collect();
    // A clone that was made to be promoted, by a receive that ended there, or a part of a stream.
    let is_leftover = |one: &Matched<'_>| {
        let last = one.name.rsplit('/').next().unwrap_or_default();
        let origin = one.origin.as_deref().and_then(|origin| {
            let head = by_name.get(origin.split('@').next()?)?;
            head.snapshots.iter().find(|info| info.name == origin)
        });
        is_temporary(last)
            && (one.is_inconsistent
                || origin.is_some_and(|origin| origin.referenced_bytes == one.referenced_bytes))
    };
    let mut fates: Vec<Fate> = all
        .iter()
        .map(|one| match one.sent {
            Some(dataset) => match name_here(run, packed, &dataset.name) {
                Some(name) => Fate::Named(name),
                None => Fate::Kept,
            },
            None if one.is_copy || above(&one.name) == above(base) => Fate::Kept,
            None if !packed.destroys => Fate::Kept,
            None if one.snapshots.is_empty() && !is_leftover(one) => Fate::Kept,
            None => Fate::Gone,
        })
        .collect();
    let mut keeps: HashSet<&str> = HashSet::new();
    for (one, fate) in all.iter().zip(&fates) {
        if *fate == Fate::Kept {
            let mut at = above(&one.name);
            while !at.is_empty() && keeps.insert(at) {
                at = above(at);
            }
        }
    }
    for (one, fate) in all.iter().zip(&mut fates) {
        if *fate == Fate::Gone && keeps.contains(one.name.as_str()) {
            *fate = Fate::Kept;
        }
    }
    fates
}

/// Destroys what is not sent any more, and gives the others the names that they are to have. Says
/// of those that have to wait, or could not be renamed, which they are.
async fn move_all(
    run: &Run<'_>,
    packed: &Packed,
    base: &str,
    datasets: &[PackageDataset],
    all: &[Matched<'_>],
    problems: &mut Problems,
) -> Result<Problems, Failure> {
    let places: HashMap<&str, usize> = all
        .iter()
        .enumerate()
        .map(|(at, one)| (one.name.as_str(), at))
        .collect();
    let fates = fates(run, packed, base, all);
    let here = all.iter().zip(fates).map(|(one, fate)| Here {
        name: one.name.clone(),
        fate,
        clone_of: one.origin.as_deref().and_then(|origin| {
            let head = origin.split('@').next()?;
            places.get(head).copied()
        }),
        stays: false,
        is_fast: false,
        was_aside: false,
    });
    let is_coming = |dataset: &&PackageDataset| !all.iter().any(|one| one.is(dataset));
    let coming = datasets.iter().filter(is_coming);
    let coming = coming.filter_map(|dataset| name_here(run, packed, &dataset.name));
    let mut tree = Tree {
        base: base.to_owned(),
        all: here.collect(),
        coming: coming.collect(),
    };
    // By what they are destroyed: names change.
    let mut guids: Vec<u64> = all.iter().map(|one| one.guid).collect();
    while let Some(step) = tree.next() {
        if let Some(why) = run.under_way.broken() {
            return Err(run.broken_off(why));
        }
        if run.work.is_canceled() {
            return Err(Failure::new(FailureKind::Canceled, "it was canceled"));
        }
        match step {
            Step::Destroy(at) => {
                let name = tree.all[at].name.clone();
                match destroy(run, &name, guids[at]).await {
                    Ok(()) => {
                        tree.destroyed(at);
                        guids.remove(at);
                    }
                    Err(failure) => {
                        problems.push(failure.message);
                        tree.all[at].stays = true;
                    }
                }
            }
            Step::Rename(at, to) => {
                let from = tree.all[at].name.clone();
                match rename(run, &from, &to).await {
                    Ok(()) => tree.renamed(&from, &to),
                    Err(failure) => {
                        problems.push(failure.message);
                        tree.all[at].is_fast = true;
                    }
                }
            }
            Step::Aside(at) => {
                let from = tree.all[at].name.clone();
                let to = free_name(run, tree.aside_of(at), '/').await;
                tree.all[at].was_aside = true;
                match rename(run, &from, &to).await {
                    Ok(()) => tree.renamed(&from, &to),
                    Err(failure) => problems.push(failure.message),
                }
            }
        }
    }
    let astray = tree.astray().into_iter().map(|at| &tree.all[at]);
    let waits = astray.map(|one| match &one.fate {
        Fate::Named(wanted) if *wanted != one.name => {
            format!("'{}' is not named '{wanted}' yet", one.name)
        }
        _ => format!("'{}' is not below what it was sent below", one.name),
    });
    Ok(waits.collect())
}

/// Destroys a dataset with its snapshots, if it is the one that was looked at, and nothing has come
/// to be below it: all of it or nothing, since without its snapshots nobody would know it again.
async fn destroy(run: &Run<'_>, name: &str, guid: u64) -> Result<(), Failure> {
    let _admin = run.admin().await?;
    let directories = run.open.pool.dsl().directories();
    let listed = directories.list(name, &everything(None)).await;
    let doing = format!("cannot destroy '{name}'");
    let mut doomed = listed.map_err(|error| from_dataset(&doing, &error))?;
    let is_it = doomed.first().is_some_and(|head| head.guid.get() == guid);
    let mut others = doomed.iter().skip(1);
    if !is_it || !others.all(|info| info.name.split_once('@').is_some_and(|(of, _)| of == name)) {
        let message = format!("{doing}: it was changed meanwhile");
        return Err(Failure::new(FailureKind::Busy, message));
    }
    let call = ZfsDestroy {
        target: name.to_owned(),
        ..ZfsDestroy::default()
    };
    check_holds(&doing, &doomed)?;
    add_clones(&run.open, &call, &mut doomed).await?;
    let (open, names, clean) = (&run.open, in_order(&doomed), mode(false));
    // It is not canceled half-way.
    let going = put_away_and_destroy(run.serving, open, &names, clean, false, None);
    let going: BoxFuture<'_, Result<(), Failure>> = Box::pin(going);
    going.await?;
    open.background.poke(&open.pool);
    Ok(())
}

/// Renames a dataset. Where it would leave its encryption root so, it becomes one itself first
/// (`recv_rename_impl`).
async fn rename(run: &Run<'_>, from: &str, to: &str) -> Result<(), Failure> {
    let Err(failure) = try_rename(run, from, to).await else {
        return Ok(());
    };
    let keys = run.open.pool.dsl().keys();
    let own = keys.info(from).await.ok().flatten();
    let theirs = keys.info(above(to)).await.ok().flatten();
    let leaves =
        own.is_some_and(|own| !own.is_root && theirs.is_none_or(|theirs| theirs.root != own.root));
    if !leaves || !become_root(run, from).await {
        return Err(failure);
    }
    try_rename(run, from, to).await
}

/// Renames a dataset. That it could not be mounted or shared anew is no failure.
async fn try_rename(run: &Run<'_>, from: &str, to: &str) -> Result<(), Failure> {
    let directories = run.open.pool.dsl().directories();
    let call = ZfsRename {
        from: from.to_owned(),
        to: to.to_owned(),
        force: run.call.force_unmount,
        ..ZfsRename::default()
    };
    let Err(failure) = crate::zfs::zfs_rename(run.serving, call).await else {
        return Ok(());
    };
    let old = directories.lookup(from).await;
    let is_gone = matches!(old, Err(DatasetError::NotFound { .. }));
    if !is_gone || directories.lookup(to).await.is_err() {
        return Err(failure);
    }
    tracing::warn!("'{from}' is '{to}' now: {failure}");
    Ok(())
}

/// Where the stream of a dataset goes that has not the name yet that it is to have, or is to be
/// below one that has not. `None`: where its name says.
pub(super) async fn found(
    run: &Run<'_>,
    begin: &Begin,
    head: &str,
) -> Result<Option<String>, Failure> {
    let packed = run.package.as_ref();
    let Some(packed) = packed.filter(|packed| packed.follows) else {
        return Ok(None);
    };
    let directories = run.open.pool.dsl().directories();
    if !packed.awaits && directories.lookup(above(head)).await.is_ok() {
        return Ok(None);
    }
    let Some(base) = name_here(run, packed, &packed.top) else {
        return Ok(None);
    };
    let sent = index(&packed.package.datasets);
    let all = matched(run, packed, &base, &sent).await?;
    let (sent_head, _) = dataset::name::split_snapshot(&begin.to_name);
    let mut datasets = packed.package.datasets.iter();
    let Some(dataset) = datasets.find(|dataset| dataset.name == sent_head) else {
        return Ok(None);
    };
    if let Some(one) = all.iter().find(|one| one.is(dataset)) {
        return Ok((one.name != head).then(|| one.name.clone()));
    }
    let exists = |name: &str| all.iter().any(|one| one.name == name);
    if head == base || exists(head) || exists(above(head)) {
        return Ok(None);
    }
    // What it is to be below has another name, or is still to come, as a clone of this.
    let mut datasets = packed.package.datasets.iter();
    let Some(parent) = datasets.find(|dataset| dataset.name == above(sent_head)) else {
        return Ok(None);
    };
    if let Some(parent) = all.iter().find(|one| one.is(parent)) {
        let last = head.rsplit('/').next().unwrap_or(head);
        return Ok(Some(format!("{}/{last}", parent.name)));
    }
    let home = match (exists(&base), all.first()) {
        (true, _) => &base,
        (false, Some(first)) => &first.name,
        (false, None) if packed.package.from.is_none() => {
            return Ok(Some(free_name(run, &base, '-').await));
        }
        (false, None) => return Ok(None),
    };
    Ok(Some(free_name(run, home, '/').await))
}

/// Whether a stream brings a new dataset of the name of what is received into, which is another one
/// where it was sent: a clone of it was made and promoted there.
pub(super) async fn must_make_way(
    run: &Run<'_>,
    begin: &Begin,
    head: &str,
) -> Result<bool, Failure> {
    let packed = run.package.as_ref();
    let Some(packed) = packed.filter(|packed| packed.follows && packed.awaits) else {
        return Ok(false);
    };
    let is_top = name_here(run, packed, &packed.top).is_some_and(|base| base == head);
    let is_clone = begin.flags & Begin::FLAG_CLONE != 0;
    if !is_top || !is_clone || !may_leave(run) || above(head).is_empty() {
        return Ok(false);
    }
    let sent = index(&packed.package.datasets);
    let all = matched(run, packed, head, &sent).await?;
    let here = all.iter().find(|one| one.name == head);
    Ok(here.and_then(|one| one.sent).is_some_and(|dataset| {
        let mut guids = dataset.snapshots.iter().map(|(_, guid)| *guid);
        dataset.name != packed.top && guids.any(|guid| guid == begin.from_guid.get())
    }))
}

/// Gives what is received into another name beside it, so that a new dataset can have its own.
/// Gets its last name behind the stream, or its old one back ([`give_back`]).
pub(super) async fn make_way(run: &Run<'_>, place: &mut Place) -> Result<(), Failure> {
    let aside = free_name(run, &place.head, '-').await;
    rename(run, &place.head, &aside).await?;
    if let Some(origin) = &mut place.origin
        && api::is_within(origin, &place.head)
    {
        *origin = format!("{aside}{}", &origin[place.head.len()..]);
    }
    place.made_way = Some(aside);
    Ok(())
}

/// After a stream that failed: what made way for it has its name again, unless a part is there that
/// can be gone on with.
pub(super) async fn give_back(run: &Run<'_>, place: &Place) {
    let Some(aside) = &place.made_way else {
        return;
    };
    let directories = run.open.pool.dsl().directories();
    if let Err(DatasetError::NotFound { .. }) = directories.lookup(&place.head).await
        && let Err(failure) = rename(run, aside, &place.head).await
    {
        tracing::warn!("what was '{}' stays '{aside}': {failure}", place.head);
    }
}
