//! `zfs destroy`.

use device::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};

use access::{AccessError, Exclusive};
use api::{
    Dependence, EventKind, Failure, FailureKind, Progress, Refusal, Unit, ZfsDestroy,
    ZfsDestroyReply,
};
use dataset::{DatasetError, DatasetInfo, DatasetKind};
use serve_fuse::UnmountMode;

use crate::zfs::{everything, mode};
use service::error::{and_back, from_access, from_dataset};
use service::jobs::Work;
use service::pools::OpenPool;
use service::reports;
use serving::Serving;
use serving::exclusion;
use serving::mounts::{Taken, is_at_or_below, remove_directories};

/// Snapshots of a dataset that is destroyed with all below it go by so many: what one txg frees
/// waits in memory.
const SNAPSHOTS_AT_ONCE: usize = 1000;

/// `zfs destroy`.
pub fn zfs_destroy<'a>(
    serving: &'a Serving,
    call: ZfsDestroy,
    work: &'a Work,
) -> BoxFuture<'a, Result<ZfsDestroyReply, Failure>> {
    Box::pin(async move {
        // Snapshots are looked for in their filesystem or volume, which is opened first.
        let opened = call.target.split('@').next().unwrap_or(&call.target);
        let open = match serving.pools.of_dataset(opened) {
            Err(failure) if failure.kind == FailureKind::NotFound && opened.contains('#') => {
                return Err(no_bookmark(opened));
            }
            Err(failure) => return Err(failure),
            Ok(open) => open,
        };
        let _admin = open.admin.lock().await;
        let reply = match call.target.split_once('@') {
            Some((head, words)) => {
                destroy_snapshots(serving, &open, &call, head, words, work).await?
            }
            None if call.target.contains('#') => destroy_bookmark(&open, &call).await?,
            None => destroy_datasets(serving, &open, &call, work).await?,
        };
        open.background.poke(&open.pool);
        if !call.dry_run {
            crate::zpool::log_command(&open.pool, &call.command).await;
        }
        Ok(reply)
    })
}

fn no_bookmark(name: &str) -> Failure {
    let message = format!("bookmark '{name}' does not exist.");
    Failure::new(FailureKind::NotFound, message)
}

async fn destroy_bookmark(open: &OpenPool, call: &ZfsDestroy) -> Result<ZfsDestroyReply, Failure> {
    let name = &call.target;
    let doing = format!("cannot destroy bookmark '{name}'");
    let failed = |error: DatasetError| from_dataset(&doing, &error);
    if call.dry_run || call.defer || call.recursive || call.dependents {
        let message = format!("{doing}: it takes no options");
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let head = name.split('#').next().unwrap_or(name);
    let dsl = open.pool.dsl();
    let known = match dsl.bookmarks().list(head).await {
        Err(DatasetError::NotFound { .. }) => Vec::new(),
        known => known.map_err(failed)?,
    };
    if !known.iter().any(|bookmark| bookmark.name == *name) {
        return Err(no_bookmark(name));
    }
    let destroyed = dsl.bookmarks().destroy(std::slice::from_ref(name)).await;
    destroyed.map_err(failed)?;
    Ok(ZfsDestroyReply {
        names: vec![name.clone()],
        ..ZfsDestroyReply::default()
    })
}

async fn destroy_snapshots(
    serving: &Serving,
    open: &OpenPool,
    call: &ZfsDestroy,
    head: &str,
    words: &str,
    work: &Work,
) -> Result<ZfsDestroyReply, Failure> {
    let doing = format!("cannot destroy '{}'", call.target);
    let failed = |error: DatasetError| from_dataset(&doing, &error);
    // What depends on them are those of the datasets below, too.
    let goes_below = call.recursive || call.dependents;
    let depth = if goes_below { None } else { Some(1) };
    let dsl = open.pool.dsl();
    let listed = dsl
        .directories()
        .list(head, &everything(depth))
        .await
        .map_err(|error| from_dataset(&format!("cannot open '{head}'"), &error))?;
    let mut names = Vec::new();
    for word in words.split(',') {
        let mut heads: Vec<&str> = listed
            .iter()
            .filter(|info| info.kind != DatasetKind::Snapshot)
            .map(|info| info.name.as_str())
            .collect();
        if !goes_below {
            heads.retain(|name| *name == head);
        }
        for head in heads {
            let of_head: Vec<&DatasetInfo> = listed
                .iter()
                .filter(|info| info.name.split_once('@').is_some_and(|(of, _)| of == head))
                .collect();
            names.extend(
                snapshot_range(&of_head, word)
                    .into_iter()
                    .map(str::to_owned),
            );
        }
    }
    // Some of the words may name none.
    if names.is_empty() {
        let message = format!(
            "could not find any snapshots to destroy; check snapshot names.\n'{}' does not exist",
            call.target
        );
        return Err(Failure::new(FailureKind::NotFound, message));
    }
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    // Without -d, clones are in the way; with -R they go first, with all below them.
    let mut doomed: Vec<DatasetInfo> = listed
        .iter()
        .filter(|info| names.contains(&info.name))
        .cloned()
        .collect();
    if !call.defer {
        add_clones(open, call, &mut doomed).await?;
        if let Err(failure) = check_holds(&doing, &doomed) {
            return Err(told_of_each(open, &names, false, failure).await);
        }
    }
    // All that is not a snapshot is a clone, or below one.
    let heads = doomed
        .iter()
        .filter(|info| info.kind != DatasetKind::Snapshot);
    let heads: BTreeSet<&str> = heads.map(|info| info.name.as_str()).collect();
    let clone_names = of_heads(in_order(&doomed), &heads);
    let reclaimed = freed_by(open, &listed, &names).await.map_err(failed)?;
    let mut rest = names.clone();
    rest.retain(|name| !clone_names.contains(name));
    if !call.dry_run {
        // All of them or none: nothing has happened yet.
        serving.release_unused_snapshots(&names).await?;
        if !clone_names.is_empty() {
            serving.release_snapshots(&names).await;
            // In use, they would refuse when their clones are gone. They are not kept alone: what
            // puts the clones back may open them.
            drop(alone(open, &names, mode(call.force)).await?);
            let (mode, work) = (mode(call.force), Some(work));
            put_away_and_destroy(serving, open, &clone_names, mode, false, work).await?;
        }
        serving.release_snapshots(&rest).await;
        // Those that are in use go later, where that was asked for.
        let _nobody = match call.defer {
            true => None,
            false => Some(alone(open, &rest, mode(call.force)).await?),
        };
        let destroyer = open.pool.dsl().destroyer();
        if let Err(error) = destroyer.destroy_snapshots(&rest, call.defer).await {
            let failure = failed(error);
            return Err(told_of_each(open, &rest, call.defer, failure).await);
        }
        serving.events.tell(EventKind::DatasetsDestroyed {
            names: rest.clone(),
        });
    }
    let mut all = clone_names;
    all.extend(rest);
    Ok(ZfsDestroyReply {
        names: all,
        reclaimed_bytes: Some(reclaimed),
        refused: Vec::new(),
    })
}

/// What was in the way of the first of several snapshots, as a line for each that is open or held,
/// where more than one is: programs leave those out, and destroy the others
/// (`zfs_destroy_snaps_nvl`, lib/libzfs/libzfs_dataset.c).
async fn told_of_each(open: &OpenPool, names: &[String], defer: bool, failure: Failure) -> Failure {
    let needed = open.pool.dsl().destroyer().needed(names, defer).await;
    let needed = needed.unwrap_or_default();
    if needed.len() < 2 {
        return failure;
    }
    let each = needed.iter().map(|error| {
        let told = from_dataset("cannot destroy", error).message;
        told.lines().next().unwrap_or_default().to_owned()
    });
    let each: BTreeSet<String> = each.collect();
    let each: Vec<String> = each.into_iter().collect();
    Failure::new(failure.kind, each.join("\n"))
}

/// Those that are one of these datasets or a snapshot of one. Snapshots of a clone go before it,
/// also those that were asked for by name.
fn of_heads(mut names: Vec<String>, heads: &BTreeSet<&str>) -> Vec<String> {
    names.retain(|name| heads.contains(name.split('@').next().unwrap_or(name)));
    names
}

/// Space that comes free with these snapshots, each run of neighbours together
/// (`destroy_print_snapshots`, cmd/zfs/zfs_main.c).
async fn freed_by(
    open: &OpenPool,
    listed: &[DatasetInfo],
    names: &[String],
) -> Result<u64, DatasetError> {
    let mut snapshots: Vec<&DatasetInfo> = listed
        .iter()
        .filter(|info| info.kind == DatasetKind::Snapshot)
        .collect();
    let head = |info: &DatasetInfo| info.name.split('@').next().unwrap_or("").to_owned();
    snapshots.sort_by_key(|info| (head(info), info.createtxg, info.object));
    let mut total = 0u64;
    let mut runs: Vec<(&DatasetInfo, &DatasetInfo)> = Vec::new();
    let mut before: Option<&DatasetInfo> = None;
    for info in snapshots {
        let is_doomed = names.contains(&info.name);
        let continues = before.is_some_and(|before| head(before) == head(info));
        match runs.last_mut() {
            Some(run) if is_doomed && continues => run.1 = info,
            _ if is_doomed => runs.push((info, info)),
            _ => {}
        }
        before = is_doomed.then_some(info);
    }
    for (first, last) in runs {
        total += open
            .pool
            .dsl()
            .destroyer()
            .space_freed_with(&first.name, &last.name)
            .await?;
    }
    Ok(total)
}

async fn destroy_datasets(
    serving: &Serving,
    open: &OpenPool,
    call: &ZfsDestroy,
    work: &Work,
) -> Result<ZfsDestroyReply, Failure> {
    let doing = format!("cannot destroy '{}'", call.target);
    let failed = |error: DatasetError| from_dataset(&doing, &error);
    let dsl = open.pool.dsl();
    if call.defer {
        let message = format!(
            "cannot open '{}': missing '@' delimiter in snapshot name\n\
             only snapshots can be destroyed later ('-d')",
            call.target
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    if !call.target.contains('/') && !call.recursive && !call.dependents {
        let pool = call.target.clone();
        let message = format!("{doing}: it goes only with its pool");
        return Err(Failure::new(FailureKind::Invalid, message)
            .with_refusal(Refusal::RootFilesystem { pool }));
    }
    let mut doomed = dsl
        .directories()
        .list(&call.target, &everything(None))
        .await
        .map_err(failed)?;
    if !call.recursive && !call.dependents && doomed.len() > 1 {
        let message = format!("{doing}: it has children; they go too with '-r'");
        return Err(
            Failure::new(FailureKind::Busy, message).with_refusal(Refusal::Dependents {
                target: call.target.clone(),
                kind: reports::kind(doomed[0].kind),
                dependence: Dependence::Children,
                names: doomed[1..].iter().map(|info| info.name.clone()).collect(),
            }),
        );
    }
    add_clones(open, call, &mut doomed).await?;
    let mut names = in_order(&doomed);
    if !call.target.contains('/') {
        names.retain(|name| name != &call.target);
    }
    if call.dry_run {
        let kept = kept_by_holds(&names, &doomed);
        let goes = names
            .iter()
            .filter(|name| kept.goes.contains(name.as_str()));
        let refused = kept.refused.iter().map(ToString::to_string);
        return Ok(ZfsDestroyReply {
            names: goes.cloned().collect(),
            refused: refused.collect(),
            ..ZfsDestroyReply::default()
        });
    }
    let goes_on = call.recursive || call.dependents;
    let work = Some(work);
    put_away_and_destroy(serving, open, &names, mode(call.force), goes_on, work).await?;
    Ok(ZfsDestroyReply {
        names,
        ..ZfsDestroyReply::default()
    })
}

/// Refuses to destroy all of these where one is held.
///
/// # Errors
/// [`FailureKind::Busy`].
pub(crate) fn check_holds(doing: &str, doomed: &[DatasetInfo]) -> Result<(), Failure> {
    let held = doomed.iter().find(|info| info.user_holds > 0);
    match held {
        None => Ok(()),
        Some(info) => {
            let name = info.name.clone();
            Err(from_dataset(doing, &DatasetError::Held { name }))
        }
    }
}

/// What `-r` and `-R` would do where snapshots are held.
struct Kept<'a> {
    /// What would be destroyed.
    goes: BTreeSet<&'a str>,
    /// Why the rest would not be, a failure for each that all the others come of.
    refused: Vec<Failure>,
}

/// What [`Destroying`] does with `names`, in this order, as far as it is up to holds: snapshots
/// that are destroyed together stay together, a dataset stays with what is below it or of it, and
/// an origin with its clones.
fn kept_by_holds<'a>(names: &'a [String], doomed: &[DatasetInfo]) -> Kept<'a> {
    let held: BTreeSet<&str> = (doomed.iter())
        .filter(|info| info.user_holds > 0)
        .map(|info| info.name.as_str())
        .collect();
    let clones: Vec<(&str, &str)> = (doomed.iter())
        .filter_map(|info| Some((info.origin.as_deref()?, info.name.as_str())))
        .collect();
    kept_by(names, &held, &clones)
}

/// [`kept_by_holds`] of held snapshots and pairs of an origin and its clone.
fn kept_by<'a>(names: &'a [String], held: &BTreeSet<&str>, clones: &[(&str, &str)]) -> Kept<'a> {
    let (mut goes, mut stays) = (BTreeSet::new(), BTreeSet::new());
    let mut refused = Vec::new();
    for run in runs(names) {
        if has_to_stay(&stays, &run[0]) {
            continue;
        }
        let why = run.iter().find_map(|name| {
            let has_clone =
                |(origin, clone): &(&str, &str)| origin == name && !goes.contains(clone);
            let of = name.clone();
            if held.contains(name.as_str()) {
                return Some(DatasetError::Held { name: of });
            }
            let has_clones = clones.iter().any(has_clone);
            has_clones.then_some(DatasetError::HasClones { name: of })
        });
        match why {
            None => goes.extend(run.iter().map(String::as_str)),
            Some(error) => {
                let doing = format!("cannot destroy '{}'", run[0]);
                refused.push(from_dataset(&doing, &error));
                stays.extend(run.iter().cloned());
            }
        }
    }
    Kept { goes, refused }
}

/// Whether a dataset, or something below it or of it, is among those that stay.
fn has_to_stay(stays: &BTreeSet<String>, name: &str) -> bool {
    let is_of = |stays: &String| {
        let rest = stays.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    };
    stays.iter().any(is_of)
}

/// Destroys filesystems, volumes and snapshots, in this order. Without `goes_on`, none is destroyed
/// where one is in use. What is left when one of them cannot be destroyed is where it was: what
/// comes behind it, or, with `goes_on`, what it is below or of. All else goes then, whatever is in
/// use (`destroy_callback`, cmd/zfs/zfs_main.c).
pub(crate) async fn put_away_and_destroy(
    serving: &Serving,
    open: &OpenPool,
    names: &[String],
    mode: UnmountMode,
    goes_on: bool,
    work: Option<&Work>,
) -> Result<(), Failure> {
    let mut mounted = serving.mounts.last_first(&open.pool.name());
    let doomed: BTreeSet<&String> = names.iter().collect();
    mounted.retain(|name| doomed.contains(name));
    let mut destroying = Destroying {
        serving,
        open,
        mode,
        work,
        goes_on,
        total: names.len(),
        destroyed: BTreeSet::new(),
        stays: BTreeSet::new(),
        failures: Vec::new(),
    };
    let mut taken = Vec::new();
    if goes_on {
        for name in mounted {
            if destroying.has_to_stay(&name) {
                continue;
            }
            match serving.take_away(open, vec![name.clone()], mode).await {
                Ok(more) => taken.extend(more),
                Err(failure) => destroying.failed(&name, failure)?,
            }
        }
    } else {
        taken = serving.take_away(open, mounted, mode).await?;
    }
    let outcome = destroying.all(names).await;
    let Destroying {
        destroyed,
        failures,
        ..
    } = destroying;
    let (gone, back): (Vec<_>, Vec<_>) =
        (taken.into_iter()).partition(|one| destroyed.contains(&one.name));
    let directories = gone.iter().filter_map(Taken::own_directory).collect();
    remove_directories(directories).await;
    let states = &serving.volumes.unit_states;
    states
        .forget_destroyed(open.pool.dsl(), &open.pool.name())
        .await;
    let mut outcome = outcome.and_then(|()| all_of(failures));
    if outcome.is_err() {
        outcome = and_back(outcome, serving.bring_back(open, back).await);
        for warning in serving.volumes.open_volumes(open).await {
            tracing::warn!("{warning}");
        }
        for warning in serving.follow_nfs(open, &open.pool.name()).await {
            tracing::warn!("{warning}");
        }
    }
    outcome
}

/// What was in the way of several, as one failure.
fn all_of(failures: Vec<Failure>) -> Result<(), Failure> {
    let mut failures = failures.into_iter();
    let Some(mut first) = failures.next() else {
        return Ok(());
    };
    for failure in failures {
        first = Failure::new(first.kind, format!("{first}\n{failure}"));
    }
    Err(first)
}

/// Datasets that are being destroyed.
struct Destroying<'a> {
    serving: &'a Serving,
    open: &'a OpenPool,
    mode: UnmountMode,
    work: Option<&'a Work>,
    goes_on: bool,
    total: usize,
    destroyed: BTreeSet<String>,
    /// What could not be destroyed, and why.
    stays: BTreeSet<String>,
    failures: Vec<Failure>,
}

impl Destroying<'_> {
    /// Something cannot be destroyed: an error, unless the others go in spite of it.
    fn failed(&mut self, name: &str, failure: Failure) -> Result<(), Failure> {
        if !self.goes_on {
            return Err(failure);
        }
        self.stays.insert(name.to_owned());
        self.failures.push(failure);
        Ok(())
    }

    /// Whether it, or something below it or of it, could not be destroyed.
    fn has_to_stay(&self, name: &str) -> bool {
        has_to_stay(&self.stays, name)
    }

    async fn all(&mut self, names: &[String]) -> Result<(), Failure> {
        let (serving, open) = (self.serving, self.open);
        let mut going = names.to_vec();
        going.retain(|name| name.contains('@') || !self.has_to_stay(name));
        serving.end_nfs(&going).await;
        for name in going.iter().filter(|name| !name.contains('@')) {
            if let Err(failure) = serving.volumes.close_volume(name, self.mode).await {
                self.failed(name, failure)?;
            }
        }
        serving.release_snapshots(names).await;
        for name in going.iter().filter(|name| !name.contains('@')) {
            let given_up = open.pool.dsl().receives().abort_clone(name).await;
            if let Err(error) = given_up {
                let failure = from_dataset(&format!("cannot destroy '{name}'"), &error);
                self.failed(name, failure)?;
            }
        }
        let _nobody = match self.goes_on {
            true => None,
            false => Some(alone(open, &going, self.mode).await?),
        };
        for run in runs(&going) {
            let Err(failure) = self.run(run).await else {
                continue;
            };
            if failure.kind == FailureKind::Canceled {
                return Err(failure);
            }
            // Of snapshots that go together all or none.
            self.stays.extend(run.iter().cloned());
            self.failed(&run[0], failure)?;
        }
        Ok(())
    }

    /// Destroys snapshots, or one dataset unless it has to stay.
    async fn run(&mut self, run: &[String]) -> Result<(), Failure> {
        let name = &run[0];
        if self.has_to_stay(name) {
            return Ok(());
        }
        let done = self.destroyed.len();
        if let Some(work) = self.work {
            work.progress(Progress {
                done: done as u64,
                total: self.total as u64,
                unit: Unit::Datasets,
            });
        }
        if self.work.is_some_and(Work::is_canceled) {
            let total = self.total;
            let message =
                format!("cannot destroy '{name}': canceled; {done} of {total} are destroyed");
            return Err(Failure::new(FailureKind::Canceled, message));
        }
        let destroyer = self.open.pool.dsl().destroyer();
        // Without `goes_on` all of them are alone already.
        let _nobody = match self.goes_on {
            true => Some(alone(self.open, run, self.mode).await?),
            false => None,
        };
        let destroyed = match name.contains('@') {
            true => destroyer.destroy_snapshots(run, false).await,
            false => destroyer.destroy(name).await,
        };
        if let Err(error) = destroyed {
            let failure = from_dataset(&format!("cannot destroy '{name}'"), &error);
            return Err(match name.contains('@') {
                true => told_of_each(self.open, run, false, failure).await,
                false => failure,
            });
        }
        self.destroyed.extend(run.iter().cloned());
        self.serving.events.tell(EventKind::DatasetsDestroyed {
            names: run.to_vec(),
        });
        Ok(())
    }
}

/// Has datasets that are to be destroyed alone.
pub async fn alone(
    open: &OpenPool,
    names: &[String],
    mode: UnmountMode,
) -> Result<Exclusive, Failure> {
    let alone = open.access.exclusive(names, exclusion(mode)).await;
    alone.map_err(|error| {
        let doing = match (&error, names) {
            (AccessError::InUse { name, .. }, _) if name.contains('@') => {
                format!("cannot destroy snapshot {name}")
            }
            (_, [name]) => format!("cannot destroy '{name}'"),
            (_, [first, ..]) if !first.contains('@') => format!("cannot destroy '{first}'"),
            _ => "cannot destroy snapshots".to_owned(),
        };
        from_access(&doing, &error)
    })
}

/// Adds clones of the doomed snapshots that lie elsewhere, with all below them (`-R`), or refuses.
/// Refuses, too, what can be destroyed in no order: a clone that was moved above its origin.
///
/// # Errors
/// Of reading a dataset; [`FailureKind::Busy`].
pub async fn add_clones(
    open: &OpenPool,
    call: &ZfsDestroy,
    doomed: &mut Vec<DatasetInfo>,
) -> Result<(), Failure> {
    let doing = format!("cannot destroy '{}'", call.target);
    let failed = |error: DatasetError| from_dataset(&doing, &error);
    let directories = open.pool.dsl().directories();
    let mut known: BTreeSet<String> = doomed.iter().map(|info| info.name.clone()).collect();
    // Snapshot by snapshot: who destroys one does not pay for all that the pool has.
    let mut at = 0;
    while let Some(info) = doomed.get(at) {
        at += 1;
        if info.kind != DatasetKind::Snapshot {
            continue;
        }
        let snapshot = info.name.clone();
        let clones = directories.clones(&snapshot).await.map_err(failed)?;
        for clone in clones {
            if known.contains(&clone) {
                continue;
            }
            if !call.dependents {
                let message = format!("{doing}: it has dependent clones; they go too with '-R'");
                return Err(Failure::new(FailureKind::Busy, message).with_refusal(
                    Refusal::Dependents {
                        // Of several snapshots, the one that has it.
                        target: match call.target.contains('@') {
                            true => snapshot,
                            false => call.target.clone(),
                        },
                        kind: match call.target.contains('@') {
                            true => api::DatasetKind::Snapshot,
                            false => api::DatasetKind::Filesystem,
                        },
                        dependence: Dependence::Clones,
                        names: vec![clone],
                    },
                ));
            }
            let below = directories.list(&clone, &everything(None)).await;
            for info in below.map_err(failed)? {
                if known.insert(info.name.clone()) {
                    doomed.push(info);
                }
            }
        }
    }
    let named: Vec<(&str, Option<&str>)> = (doomed.iter())
        .map(|info| (info.name.as_str(), info.origin.as_deref()))
        .collect();
    match circle(&named) {
        None => Ok(()),
        Some((clone, origin)) => {
            let message = format!(
                "{doing}: '{clone}' is a clone of '{origin}', and neither can go before the other, \
                 as datasets lie one below the other; 'zfs promote {clone}' first"
            );
            Err(Failure::new(FailureKind::Busy, message))
        }
    }
}

/// A clone and its origin that no order destroys: the clone cannot go before what is below it, that
/// not before its snapshots, and those not before the clone (`zfs_iter_dependents`,
/// lib/libzfs/libzfs_iter.c, calls that a recursive dependency).
fn circle<'a>(doomed: &[(&'a str, Option<&'a str>)]) -> Option<(&'a str, &'a str)> {
    let order = order_of(doomed);
    let named = order.iter().enumerate();
    let place: BTreeMap<&str, usize> = named.map(|(at, name)| (name.as_str(), at)).collect();
    let goes_late = |name: &str, before: &str| {
        place
            .get(before)
            .is_some_and(|before| place.get(name) > Some(before))
    };
    let is_wrong = doomed.iter().any(|&(name, origin)| {
        let above = name.rsplit_once(['/', '@']).map(|(above, _)| above);
        above
            .into_iter()
            .chain(origin)
            .any(|before| goes_late(name, before))
    });
    let clones = doomed.iter().filter(|_| is_wrong);
    let mut clones = clones.filter_map(|&(name, origin)| Some((name, origin?)));
    let is_above = |&(clone, origin): &(&str, &str)| {
        let (head, _) = dataset::name::split_snapshot(origin);
        is_at_or_below(head, clone)
    };
    // Where two are each above the other's origin, either is named.
    let all: Vec<(&str, &str)> = clones.by_ref().collect();
    all.iter().copied().find(is_above).or(all.first().copied())
}

/// The order in which datasets can be destroyed: children before parents, snapshots before what
/// they are of, clones before their origins (`zfs_iter_dependents`, lib/libzfs/libzfs_iter.c).
pub fn in_order(doomed: &[DatasetInfo]) -> Vec<String> {
    let named = (doomed.iter()).map(|info| (info.name.as_str(), info.origin.as_deref()));
    order_of(&named.collect::<Vec<_>>())
}

/// [`in_order`] of datasets by name, with what each is a clone of.
fn order_of(doomed: &[(&str, Option<&str>)]) -> Vec<String> {
    let mut before: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for &(name, origin) in doomed.iter().rev() {
        if let Some((above, _)) = name.rsplit_once(['/', '@']) {
            before.entry(above).or_default().push(name);
        }
        if let Some(origin) = origin {
            before.entry(origin).or_default().push(name);
        }
    }
    let there: BTreeSet<&str> = doomed.iter().map(|(name, _)| *name).collect();
    let mut begun = BTreeSet::new();
    let mut order = Vec::with_capacity(doomed.len());
    // Depth first, with a stack of our own: chains of clones may be long.
    let mut stack: Vec<(&str, bool)> = doomed.iter().map(|(name, _)| (*name, false)).collect();
    while let Some((name, is_free)) = stack.pop() {
        if is_free {
            order.push(name.to_owned());
        } else if there.contains(name) && begun.insert(name) {
            stack.push((name, true));
            let first = before.get(name).into_iter().flatten().rev();
            stack.extend(first.map(|name| (*name, false)));
        }
    }
    order
}

/// What is destroyed in one go: snapshots that follow each other, or one dataset.
fn runs(names: &[String]) -> Vec<&[String]> {
    let are_snapshots = |one: &String, next: &String| one.contains('@') && next.contains('@');
    names
        .chunk_by(are_snapshots)
        .flat_map(|run| run.chunks(SNAPSHOTS_AT_ONCE))
        .collect()
}

/// Snapshots that a word after `@` means: one, or `first%last` in the order of creation, either end
/// open.
fn snapshot_range<'a>(of_head: &[&'a DatasetInfo], word: &str) -> Vec<&'a str> {
    let short = |info: &'a DatasetInfo| info.name.split_once('@').map_or("", |(_, name)| name);
    let Some((first, last)) = word.split_once('%') else {
        return of_head
            .iter()
            .filter(|info| short(info) == word)
            .map(|info| info.name.as_str())
            .collect();
    };
    let mut ordered: Vec<&'a DatasetInfo> = of_head.to_vec();
    ordered.sort_by_key(|info| (info.createtxg, info.object));
    let begin = if first.is_empty() {
        Some(0)
    } else {
        ordered.iter().position(|info| short(info) == first)
    };
    let end = if last.is_empty() {
        ordered.len().checked_sub(1)
    } else {
        ordered.iter().position(|info| short(info) == last)
    };
    match (begin, end) {
        (Some(begin), Some(end)) if begin <= end => ordered[begin..=end]
            .iter()
            .map(|info| info.name.as_str())
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nothing is destroyed before what depends on it, whatever is a clone of what.
    #[test]
    fn what_depends_goes_first() {
        let doomed = [
            ("t/a", None),
            ("t/a@s", None),
            ("t/a/b", None),
            ("t/a/b@s", None),
            ("t/a/of_a", Some("t/a@s")),
            ("t/a/of_b", Some("t/a/b@s")),
            ("t/a/of_b@x", None),
            ("t/a/b/of_a", Some("t/a@s")),
            ("t/z", Some("t/a/of_b@x")),
        ];
        let order = order_of(&doomed);
        let at = |name: &str| order.iter().position(|other| other == name).unwrap();
        assert_eq!(order.len(), doomed.len());
        for (name, origin) in doomed {
            if let Some(origin) = origin {
                assert!(at(name) < at(origin), "{order:?}");
            }
            if let Some((above, _)) = name.rsplit_once(['/', '@'])
                && above != "t"
            {
                assert!(at(name) < at(above), "{order:?}");
            }
        }
    }

    /// Goal: `zfs destroy -R t@a,b` takes a clone's own `@b` with the clone, and before it.
    #[test]
    fn snapshots_of_a_clone_go_with_it() {
        let doomed = [
            ("t@a", None),
            ("t@b", None),
            ("t/c@b", None),
            ("t/c", Some("t@a")),
            ("t/c@own", None),
        ];
        let gone = of_heads(order_of(&doomed), &BTreeSet::from(["t/c"]));
        let (last, snapshots) = gone.split_last().unwrap();
        let snapshots: BTreeSet<&str> = snapshots.iter().map(String::as_str).collect();
        assert_eq!(last, "t/c");
        assert_eq!(snapshots, BTreeSet::from(["t/c@b", "t/c@own"]));
    }

    /// Goal: what can be destroyed in no order is found before anything is destroyed.
    #[test]
    fn a_clone_above_its_origin_is_a_circle() {
        let a = ("t/c/a", None);
        let (one, two) = (("t/c/a@1", None), ("t/c/a@2", None));
        let above = ("t/c", Some("t/c/a@2"));
        let found = Some(("t/c", "t/c/a@2"));
        assert_eq!(circle(&[a, one, two, above]), found);
        assert_eq!(circle(&[above, two, one, a]), found);
        let beside = ("t/d", Some("t/c/a@2"));
        assert_eq!(circle(&[a, one, two, beside]), None);
        assert_eq!(circle(&[("t/c", None), a, two, beside]), None);
        // Each is above the other's origin.
        let both = [
            ("t/x", Some("t/y/b@s")),
            ("t/x/a", None),
            ("t/x/a@s", None),
            ("t/y", Some("t/x/a@s")),
            ("t/y/b", None),
            ("t/y/b@s", None),
        ];
        assert!(circle(&both).is_some());
    }

    /// Goal: a dry run says what the real run leaves for a hold: all snapshots that go together,
    /// what they are of and what that is below, and what a clone that stays comes from.
    #[test]
    fn what_is_held_keeps_what_depends_on_it() {
        let names = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let clones = [("t/o@s", "t/c"), ("t/o@t", "t/d")];
        let order = names("t/c@1 t/c@2 t/c t/d t/o@t t/o@s t/o t/p/q t/p/r@1 t/p/r t/p t");
        let told = |held: &[&str]| {
            let kept = kept_by(&order, &held.iter().copied().collect(), &clones);
            let goes: Vec<&String> = (order.iter())
                .filter(|name| kept.goes.contains(name.as_str()))
                .collect();
            let goes = goes
                .into_iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(" ");
            let refused = kept.refused.iter().map(ToString::to_string);
            (goes, refused.collect::<Vec<_>>())
        };
        assert_eq!(told(&[]), (order.join(" "), Vec::new()));
        let (goes, refused) = told(&["t/c@2"]);
        assert_eq!(goes, "t/d t/p/q t/p/r@1 t/p/r t/p");
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(refused[0].contains("cannot destroy snapshot t/c@2: it's being held."));
        assert!(refused[1].contains("cannot destroy 't/o@t'") && refused[1].contains("'t/o@s'"));
        let (goes, refused) = told(&["t/p/r@1"]);
        assert_eq!(goes, "t/c@1 t/c@2 t/c t/d t/o@t t/o@s t/o t/p/q");
        assert_eq!(refused.len(), 1, "{refused:?}");
    }
}
