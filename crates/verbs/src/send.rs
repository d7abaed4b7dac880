//! `zfs send`: which streams a request comes to, and writing them one after the other
//! (`zfs_send_cb_impl`, `gather_nvlist`, `dump_filesystems`; lib/libzfs/libzfs_sendrecv.c).
//!
//! A snapshot is held while its stream is made. Of several, those whose turn is still to come can
//! be destroyed; then the whole breaks off. A filesystem or volume itself is sent as what it is at
//! the moment ([`head`]).

mod head;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use api::{
    Failure, FailureKind, PlannedStream, Progress, Unit, ZfsSend, ZfsSendPlan, ZfsSendPlanReply,
    ZfsSendReply,
};
use dataset::{
    DatasetError, DatasetInfo, DatasetKind, ListOptions, PropertySource, PropertyValue,
    ResumeToken, SendSource,
};
use device::BoxFuture;
use format::stream::StreamFeatures;
use format::{Guid, NvValue, Txg};
use stream::{Package, PackageDataset, SendOptions, StreamError};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::order::behind_what_they_need;
use service::error::from_dataset;
use service::jobs::Work;
use service::pools::{OpenPool, Pools};

/// Size of a record in a stream, and of a block pointer on disk, for estimates.
const RECORD_BYTES: u64 = 312;
const POINTER_BYTES: u64 = 128;

/// Where streams are written to.
pub type Output = dyn AsyncWrite + Unpin + Send;

/// What a request comes to.
struct Plan {
    open: Arc<OpenPool>,
    /// Snapshots, each with what it is the difference to.
    streams: Vec<(String, Option<String>)>,
    /// What is said before several streams.
    package: Option<Package>,
    is_package: bool,
    options: SendOptions,
    /// What a stream of a filesystem or volume itself said as GUID that is gone on with.
    head_guid: Option<Guid>,
    /// The redaction bookmark's name after the `#`.
    redact: Option<String>,
    warnings: Vec<String>,
}

/// `zfs send -n`, and what `-v` tells.
pub fn zfs_send_plan<'a>(
    pools: &'a Pools,
    call: &'a ZfsSendPlan,
) -> BoxFuture<'a, Result<ZfsSendPlanReply, Failure>> {
    Box::pin(async move {
        let plan = plan(pools, &call.send).await?;
        let mut streams = Vec::new();
        for (name, from) in &plan.streams {
            let size_bytes = match counted(&plan, name, from.as_deref()).await? {
                Some(size_bytes) => size_bytes,
                None => estimate(&plan, name, from.as_deref()).await?,
            };
            streams.push(PlannedStream {
                name: name.clone(),
                from: from.clone(),
                size_bytes,
            });
        }
        Ok(ZfsSendPlanReply {
            streams,
            warnings: plan.warnings,
        })
    })
}

/// `zfs send`.
pub fn zfs_send<'a>(
    pools: &'a Pools,
    call: ZfsSend,
    mut output: impl AsyncWrite + Send + Unpin + 'static,
    work: &'a Arc<Work>,
) -> BoxFuture<'a, Result<ZfsSendReply, Failure>> {
    Box::pin(async move {
        let plan = plan(pools, &call).await?;
        let mut total = 0;
        for (name, from) in &plan.streams {
            total += estimate(&plan, name, from.as_deref()).await?;
        }
        let reporter = Arc::clone(work);
        let progress = stream::Progress::new(move |bytes| {
            reporter.progress(Progress {
                done: bytes,
                total: total.max(bytes),
                unit: Unit::Bytes,
            });
            reporter.is_canceled()
        });
        let sent = write(&plan, &call, &mut output, &progress).await;
        // Whoever reads sees the end either way.
        let closed = output.shutdown().await;
        sent?;
        closed.map_err(|error| of_stream(&call.snapshot, &StreamError::Io(error)))?;
        Ok(ZfsSendReply {
            bytes: progress.bytes(),
        })
    })
}

/// Writes the streams that a request asks for. The output is not closed.
pub fn send_to<'a>(
    pools: &'a Pools,
    call: &'a ZfsSend,
    output: &'a mut Output,
    progress: &'a stream::Progress,
) -> BoxFuture<'a, Result<(), Failure>> {
    Box::pin(async move {
        let plan = plan(pools, call).await?;
        write(&plan, call, output, progress).await
    })
}

async fn write(
    plan: &Plan,
    call: &ZfsSend,
    output: &mut Output,
    progress: &stream::Progress,
) -> Result<(), Failure> {
    if plan.is_package {
        let mut features = StreamFeatures::SA_SPILL;
        if call.holds {
            features = features.with(StreamFeatures::HOLDS);
        }
        stream::send_package(
            plan.package.as_ref(),
            &call.snapshot,
            features,
            &mut *output,
            progress,
        )
        .await
        .map_err(|error| of_stream(&call.snapshot, &error))?;
    }
    for (name, from) in &plan.streams {
        if !name.contains('@') {
            head::send(plan, name, from.as_deref(), output, progress).await?;
            continue;
        }
        let source = source_of(plan, name, from.as_deref()).await?;
        stream::send(&source, &plan.options, &mut *output, progress)
            .await
            .map_err(|error| of_stream(name, &error))?;
    }
    if plan.is_package {
        stream::send_package_end(&mut *output, progress)
            .await
            .map_err(|error| of_stream(&call.snapshot, &error))?;
    }
    Ok(())
}

/// What a stream of a snapshot is made of.
async fn source_of(plan: &Plan, name: &str, from: Option<&str>) -> Result<SendSource, Failure> {
    let sends = plan.open.pool.dsl().sends();
    let source = match &plan.redact {
        Some(bookmark) => sends.redacted_source(name, from, bookmark).await,
        None if plan.options.raw => sends.raw_source(name, from).await,
        None => sends.source(name, from).await,
    };
    source.map_err(|error| of_dataset(name, &error))
}

fn of_dataset(name: &str, error: &DatasetError) -> Failure {
    match error {
        // In the words of `zfs_send_one_cb_impl` (lib/libzfs/libzfs_sendrecv.c).
        DatasetError::WrongKind { reason, .. } if reason.starts_with(NOT_EARLIER) => {
            let message =
                format!("warning: cannot send '{name}': not an earlier snapshot from the same fs");
            Failure::new(FailureKind::Invalid, message)
        }
        DatasetError::KeyNotLoaded { root, .. } => {
            let message = format!(
                "warning: cannot send '{name}': dataset key must be loaded\n\
                 it is loaded by 'zfs load-key {root}'"
            );
            Failure::new(FailureKind::Busy, message)
        }
        DatasetError::NotFound { name: missing } if missing.contains('#') => {
            from_dataset(&format!("cannot open '{missing}'"), error)
        }
        _ => from_dataset(&format!("cannot send '{name}'"), error),
    }
}

fn of_stream(name: &str, error: &StreamError) -> Failure {
    let kind = match error {
        StreamError::Dataset(error) => return of_dataset(name, error),
        StreamError::Interrupted => FailureKind::Canceled,
        StreamError::Unsupported { .. } => FailureKind::Unsupported,
        _ => FailureKind::Io,
    };
    Failure::new(kind, format!("cannot send '{name}': {error}"))
}

fn invalid(name: &str, why: &str) -> Failure {
    Failure::new(FailureKind::Invalid, format!("cannot send '{name}': {why}"))
}

/// How datasets say that a snapshot is no earlier one of what is sent.
const NOT_EARLIER: &str = "it is not an earlier snapshot";

/// The short name of a snapshot.
fn short(name: &str) -> &str {
    name.split_once('@').map_or(name, |(_, short)| short)
}

async fn plan(pools: &Pools, call: &ZfsSend) -> Result<Plan, Failure> {
    if let Some(token) = &call.token {
        return plan_of_token(pools, call, token).await;
    }
    let name = &call.snapshot;
    let open = pools.of_dataset(name)?;
    if call.redact.is_some() {
        if !name.contains('@') {
            return Err(invalid(
                name,
                "only a snapshot can be sent redacted; give FILESYSTEM@SNAPSHOT",
            ));
        }
        if call.raw {
            return Err(invalid(name, "raw sends may not be redacted"));
        }
        if call.replicate || call.all_between {
            return Err(invalid(name, "multiple snapshots cannot be sent redacted"));
        }
    }
    let redact = call.redact.as_deref();
    let redact = redact.map(|name| name.rsplit('#').next().unwrap_or(name).to_owned());
    let mut plan = Plan {
        redact,
        options: SendOptions {
            large_blocks: call.large_blocks || call.raw,
            embedded: call.embedded || call.raw,
            compressed: call.compressed || call.raw,
            raw: call.raw,
            resume_at: None,
        },
        is_package: call.replicate
            || call.all_between
            || call.properties
            || call.holds
            || call.backup,
        open,
        streams: Vec::new(),
        package: None,
        head_guid: None,
        warnings: Vec::new(),
    };
    if name.contains('#') {
        let message = format!(
            "cannot open '{name}': bookmark delimiter '#' is not expected here\n\
             a bookmark has no contents; give a snapshot"
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let directories = plan.open.pool.dsl().directories();
    // What does not exist is told before anything is sent.
    let whole = match call.replicate {
        true => name.split('@').next().unwrap_or(name),
        false => name.as_str(),
    };
    let mut moved = None;
    for wanted in [Some(whole), call.from.as_deref()].into_iter().flatten() {
        if let Some((head, _)) = wanted.split_once('#') {
            let known = plan.open.pool.dsl().bookmarks().list(head).await;
            let known = known.map_err(|error| of_dataset(name, &error))?;
            let is_known = known.iter().any(|bookmark| bookmark.name == wanted);
            if !plan.is_package && !is_known {
                let message = format!(
                    "warning: cannot send '{name}': incremental source ({wanted}) does not exist"
                );
                return Err(Failure::new(FailureKind::NotFound, message));
            }
            continue;
        }
        match directories.lookup(wanted).await {
            Ok(_) => {}
            Err(error @ DatasetError::NotFound { .. }) if call.replicate && wanted != whole => {
                moved = Some((wanted, of_dataset(wanted, &error)));
            }
            Err(error) => return Err(of_dataset(wanted, &error)),
        }
    }
    let is_bookmark = call.from.as_ref().is_some_and(|from| from.contains('#'));
    if plan.is_package && is_bookmark {
        return Err(invalid(
            name,
            "bookmarks go with neither -R, -I, -p, -b nor -h",
        ));
    }
    let Some((head, to)) = name.split_once('@') else {
        if plan.is_package {
            let why = "only what is in it goes, so neither with -R, -I, -p, -b nor -h; send a \
                       snapshot";
            return Err(invalid(name, why));
        }
        plan.streams = vec![(name.clone(), call.from.clone())];
        return Ok(plan);
    };
    let (heads, origins) = match call.replicate {
        true => tree(&plan.open, head).await?,
        false => (vec![head.to_owned()], HashSet::new()),
    };
    let is_moved = moved.is_some();
    if let Some((wanted, failure)) = moved {
        // A clone in the tree was promoted, and has it now.
        let is_own = wanted.starts_with(&format!("{head}@"));
        let mut is_there = false;
        for one in heads.iter().filter(|_| is_own) {
            let there = format!("{one}@{}", short(wanted));
            is_there |= directories.lookup(&there).await.is_ok();
        }
        if !is_there {
            return Err(failure);
        }
    }
    // A snapshot of another dataset says nothing of those here that have the same short name.
    let given = call.from.as_deref().and_then(|from| from.split_once('@'));
    let from = given.filter(|(of, _)| *of == head).map(|(_, short)| short);
    let mut package = Package {
        from: from.map(str::to_owned),
        to: Some(to.to_owned()),
        is_not_recursive: !call.replicate,
        is_raw: call.raw,
        datasets: Vec::new(),
    };
    let mut left_out: Vec<String> = Vec::new();
    // GUID of the snapshot of each dataset that a receiver has before its children come.
    let mut parents: BTreeMap<String, u64> = BTreeMap::new();
    if call.exclude.iter().any(|one| one == head) {
        return Err(invalid(name, "it cannot be left out of its own stream"));
    }
    left_out.extend(call.exclude.iter().cloned());
    for one in heads {
        if left_out.contains(&one)
            || left_out
                .iter()
                .any(|above| one.starts_with(&format!("{above}/")))
        {
            continue;
        }
        let snapshots = snapshots_of(&plan.open, &one).await?;
        let Some(last) = snapshots.iter().position(|info| short(&info.name) == to) else {
            let missing = format!("snapshot {one}@{to} does not exist");
            if !call.skip_missing || one == head {
                let how = if call.replicate { " recursively" } else { "" };
                let message = format!("cannot send {name}{how}: {missing}");
                return Err(Failure::new(FailureKind::NotFound, message));
            }
            plan.warnings.push(format!(
                "skipping dataset {one} and its children: {missing}"
            ));
            left_out.push(one);
            continue;
        };
        let has_given = one == head && !is_moved;
        let snapshots = &snapshots[..=last];
        let streams =
            streams_of(&plan.open, call, &one, snapshots, from, has_given, &origins).await?;
        plan.streams.extend(streams);
        if call.replicate || call.properties || call.holds || call.backup {
            let described = describe(&plan.open, call, &one, snapshots, from, &parents).await?;
            let known = from.and_then(|from| {
                let mut all = described.snapshots.iter();
                all.find(|(short, _)| short == from).map(|(_, guid)| *guid)
            });
            let newest = described.snapshots.iter().find(|(short, _)| short == to);
            let guid = known.or(newest.map(|(_, guid)| *guid));
            if call.no_preserve_encryption && !call.raw && is_encrypted(&plan.open, &one).await? {
                plan.warnings.push(format!(
                    "no-preserve-encryption flag set, sending dataset {one} without encryption"
                ));
            }
            parents.insert(one, guid.unwrap_or(0));
            package.datasets.push(described);
        }
    }
    in_order(&mut plan.streams);
    if !package.datasets.is_empty() {
        plan.package = Some(package);
    }
    Ok(plan)
}

/// A dataset and all below it, parents first, and the snapshots that they are clones of.
async fn tree(open: &OpenPool, head: &str) -> Result<(Vec<String>, HashSet<String>), Failure> {
    let directories = open.pool.dsl().directories();
    let listed = directories.list(head, &ListOptions::default()).await;
    let listed = listed.map_err(|error| of_dataset(head, &error))?;
    let origins = listed.iter().filter_map(|info| info.origin.clone());
    let origins = origins.collect();
    Ok((listed.into_iter().map(|info| info.name).collect(), origins))
}

/// Snapshots of a dataset, oldest first.
async fn snapshots_of(open: &OpenPool, head: &str) -> Result<Vec<DatasetInfo>, Failure> {
    let only = ListOptions {
        filesystems: false,
        volumes: false,
        snapshots: true,
        depth: Some(1),
    };
    let listed = open.pool.dsl().directories().list(head, &only).await;
    let listed = listed.map_err(|error| of_dataset(head, &error))?;
    let is_own = |info: &DatasetInfo| {
        let rest = info.name.strip_prefix(head);
        info.kind == DatasetKind::Snapshot && rest.is_some_and(|rest| rest.starts_with('@'))
    };
    Ok(listed.into_iter().filter(is_own).collect())
}

/// The streams of one dataset; `snapshots` end with the one that is sent. `from` is the short name
/// of the snapshot to begin with; `has_given`: this dataset is the one that it was named of.
/// `origins` are sent even where those between are not.
async fn streams_of(
    open: &OpenPool,
    call: &ZfsSend,
    head: &str,
    snapshots: &[DatasetInfo],
    from: Option<&str>,
    has_given: bool,
    origins: &HashSet<String>,
) -> Result<Vec<(String, Option<String>)>, Failure> {
    let Some((last, earlier)) = snapshots.split_last() else {
        return Ok(Vec::new());
    };
    let start = from.and_then(|from| {
        let mut all = snapshots.iter();
        all.position(|info| short(&info.name) == from)
    });
    if call.replicate && start == Some(earlier.len()) {
        // In the words of `dump_filesystem` (lib/libzfs/libzfs_sendrecv.c).
        let message = format!(
            "WARNING: could not send {}:\nincremental source ({}) is not earlier than it",
            last.name, last.name
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let given = call.from.clone().filter(|_| has_given);
    // Where a dataset below has not the snapshot that the others begin with, all of it is sent.
    let is_whole = call.replicate && start.is_none();
    let mut before = match (start, &given) {
        (Some(start), _) => Some(snapshots[start].name.clone()),
        (None, Some(given)) => Some(given.clone()),
        (None, None) => None,
    };
    if is_whole && given.is_none() {
        let info = open.pool.dsl().directories().lookup(head).await;
        before = info.map_err(|error| of_dataset(head, &error))?.origin;
    }
    let sends_all = call.all_between || call.replicate && (call.from.is_none() || is_whole);
    let first = start.map_or(0, |start| start + 1);
    let mut out = Vec::new();
    if !sends_all {
        // A clone in the package comes behind what it was made of.
        let between = earlier.iter().skip(first);
        for info in between.filter(|info| origins.contains(&info.name)) {
            out.push((info.name.clone(), before.replace(info.name.clone())));
        }
        out.push((last.name.clone(), before));
        return Ok(out);
    }
    for info in &snapshots[first..] {
        out.push((info.name.clone(), before.replace(info.name.clone())));
    }
    Ok(out)
}

/// Puts streams behind those that they need: a stream of a clone behind that of its origin, one of
/// a dataset behind those of it that come before, its first behind that of what it is below. A
/// dataset may have been moved below a clone of itself: then the last of that does not count.
fn in_order(streams: &mut Vec<(String, Option<String>)>) {
    let place: HashMap<&str, usize> = streams
        .iter()
        .enumerate()
        .map(|(at, (name, _))| (name.as_str(), at))
        .collect();
    // The first stream of each dataset, and the last that was seen.
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (at, (name, _)) in streams.iter().enumerate() {
        let (head, _) = dataset::name::split_snapshot(name);
        first.entry(head).or_insert(at);
    }
    let mut last: HashMap<&str, usize> = HashMap::new();
    let mut parents: Vec<(usize, usize)> = Vec::new();
    let mut needs: Vec<Vec<usize>> = streams
        .iter()
        .enumerate()
        .map(|(at, (name, from))| {
            let (head, _) = dataset::name::split_snapshot(name);
            let origin = from.as_ref().and_then(|from| place.get(from.as_str()));
            let before = last.insert(head, at);
            if let (None, Some(parent)) = (before, dataset::name::split_parent(head).0)
                && let Some(parent) = first.get(parent)
            {
                parents.push((at, *parent));
            }
            [origin.copied(), before].into_iter().flatten().collect()
        })
        .collect();
    let mut all = needs.clone();
    for (at, parent) in &parents {
        all[*at].push(*parent);
    }
    let mut order = behind_what_they_need(&all);
    let mut places = vec![0; order.len()];
    for (place, at) in order.iter().enumerate() {
        places[*at] = place;
    }
    let is_behind = |at: usize| all[at].iter().all(|need| places[*need] < places[at]);
    if !(0..all.len()).all(is_behind) {
        for (at, parent) in parents {
            if !is_needed_by(&needs, at, parent) {
                needs[at].push(parent);
            }
        }
        order = behind_what_they_need(&needs);
    }
    let mut taken: Vec<_> = std::mem::take(streams).into_iter().map(Some).collect();
    streams.extend(order.into_iter().filter_map(|at| taken[at].take()));
}

/// Whether one needs the other, or what needs it.
fn is_needed_by(needs: &[Vec<usize>], other: usize, one: usize) -> bool {
    let mut seen = HashSet::from([one]);
    let mut pending = vec![one];
    while let Some(at) = pending.pop() {
        if at == other {
            return true;
        }
        pending.extend(needs[at].iter().copied().filter(|need| seen.insert(*need)));
    }
    false
}

/// What a package says of a dataset.
async fn describe(
    open: &OpenPool,
    call: &ZfsSend,
    head: &str,
    snapshots: &[DatasetInfo],
    from: Option<&str>,
    parents: &BTreeMap<String, u64>,
) -> Result<PackageDataset, Failure> {
    let dsl = open.pool.dsl();
    let failed = |error: DatasetError| of_dataset(head, &error);
    let info = dsl.directories().lookup(head).await.map_err(failed)?;
    let key = dsl.keys().info(head).await.map_err(failed)?;
    if key.is_some() && !call.raw && !call.no_preserve_encryption {
        // `send_iterate_fs`, lib/libzfs/libzfs_sendrecv.c.
        let message = format!(
            "cannot send {}: encrypted dataset {head} may not be sent with properties without the \
             raw flag\nsend it as it is ('-w'), or in the clear ('-U')",
            call.snapshot
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let origin = match &info.origin {
        Some(origin) => Some(dsl.directories().lookup(origin).await.map_err(failed)?),
        None => None,
    };
    let parent = head
        .rsplit_once('/')
        .and_then(|(parent, _)| parents.get(parent));
    let mut out = PackageDataset {
        guid: info.guid.get(),
        name: head.to_owned(),
        origin: origin.map(|origin| origin.guid.get()),
        parent_from: parent.copied().unwrap_or(0),
        is_encryption_root: call.raw && key.is_some_and(|key| key.is_root),
        ..PackageDataset::default()
    };
    if call.replicate || call.properties || call.backup {
        out.has_properties = true;
        out.properties = own_properties(open, head, call.backup).await?;
        if !call.raw {
            // What arrives in the clear has no key (`-U`).
            out.properties.retain(|(name, _)| name != "keylocation");
        }
    }
    let last = snapshots.last().map(|info| info.name.clone());
    let mut has_begun = from.is_none();
    for snapshot in snapshots {
        let name = short(&snapshot.name).to_owned();
        let is_last = Some(&snapshot.name) == last.as_ref();
        let is_listed = call.replicate || call.all_between || is_last;
        if is_listed {
            out.snapshots.push((name.clone(), snapshot.guid.get()));
        }
        if is_listed && (has_begun || call.replicate || is_last) {
            let properties = own_properties(open, &snapshot.name, call.backup).await?;
            out.snapshot_properties.push((name.clone(), properties));
            let held = dsl.holds().list(&snapshot.name).await.map_err(failed)?;
            if call.holds && !held.is_empty() {
                let tags = held.into_iter().map(|(tag, _)| tag).collect();
                out.holds.push((name.clone(), tags));
            }
        }
        has_begun |= from == Some(name.as_str());
    }
    Ok(out)
}

async fn is_encrypted(open: &OpenPool, head: &str) -> Result<bool, Failure> {
    let info = open.pool.dsl().keys().info(head).await;
    Ok(info.map_err(|error| of_dataset(head, &error))?.is_some())
}

/// Properties that are a dataset's own (`send_iterate_prop`).
async fn own_properties(
    open: &OpenPool,
    name: &str,
    only_received: bool,
) -> Result<Vec<(String, NvValue)>, Failure> {
    let properties = open.pool.dsl().properties();
    // Of those that were received also what counts for nothing here (`zfs_get_recvd_props`).
    let all = match only_received {
        true => properties.received(name).await,
        false => properties.all(name).await,
    };
    let all = all.map_err(|error| of_dataset(name, &error))?;
    let mut out = Vec::new();
    for setting in all {
        let is_own = matches!(
            setting.source,
            PropertySource::Local | PropertySource::Received
        );
        let can_be_set = match dataset::props::find(&setting.name) {
            Some(property) => !property.is_read_only() && setting.name != "volsize",
            None => true,
        };
        if is_own && can_be_set {
            let value = match setting.value {
                PropertyValue::Number(number) => NvValue::UInt64(number),
                PropertyValue::Text(text) => NvValue::String(text),
            };
            out.push((setting.name, value));
        }
    }
    Ok(out)
}

/// What goes on where a receive was interrupted (`zfs_send_resume`).
async fn plan_of_token(pools: &Pools, call: &ZfsSend, token: &str) -> Result<Plan, Failure> {
    let Some(token) = ResumeToken::decode(token) else {
        let why = corrupt(token);
        let message = format!(
            "cannot resume send: resume token is corrupt ({why})\n\
             copy it whole from the other side"
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    };
    let name = &token.to_name;
    let open = pools.of_dataset(name)?;
    let gone = |what: &str| {
        let message = format!("cannot resume send: {what} no longer exists");
        Failure::new(FailureKind::NotFound, message)
    };
    let directories = open.pool.dsl().directories();
    let found = directories.lookup(name).await.ok();
    let mut sent = name.as_str();
    if found.is_none_or(|found| found.guid != token.to_guid) {
        // Its head may be what was being sent; whether it is still that, shows where it is sent.
        let head = name.strip_suffix(head::SNAPSHOT);
        sent = match head.and_then(|head| head.strip_suffix('@')) {
            Some(head) if directories.lookup(head).await.is_ok() => head,
            _ => return Err(gone(&format!("'{name}' used in the initial send"))),
        };
    }
    let head_guid = (!sent.contains('@')).then_some(token.to_guid);
    let from = match token.from_guid {
        None => None,
        Some(guid) => {
            let (head, _) = dataset::name::split_snapshot(name);
            let with = token.redacted_with.as_deref();
            let found = with_guid(&open, head, guid.get(), with).await?;
            Some(found.ok_or_else(|| gone(&format!("incremental source {:#x}", guid.get())))?)
        }
    };
    let redact = match &token.redact_snaps {
        None => None,
        Some(with) => Some(redaction_of(&open, name, token.to_guid, with).await?),
    };
    Ok(Plan {
        redact,
        streams: vec![(sent.to_owned(), from)],
        package: None,
        is_package: false,
        head_guid,
        options: SendOptions {
            large_blocks: token.large_blocks || call.large_blocks,
            embedded: token.embedded || call.embedded,
            compressed: token.compressed || call.compressed,
            raw: token.raw || call.raw,
            resume_at: Some((token.object, token.offset_bytes)),
        },
        warnings: Vec::new(),
        open,
    })
}

/// What is wrong with a token that cannot be read (`zfs_send_resume_token_to_nvlist`,
/// lib/libzfs/libzfs_sendrecv.c).
fn corrupt(token: &str) -> String {
    let parts: Vec<&str> = token.splitn(4, '-').collect();
    let [version, checksum, length, packed] = parts[..] else {
        return "invalid format".to_owned();
    };
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let are_numbers = [checksum, length]
        .iter()
        .all(|text| !text.is_empty() && is_hex(text));
    match version.parse::<u32>() {
        Ok(1) if are_numbers && !is_hex(packed) => "payload is not hex-encoded".to_owned(),
        Ok(1) if are_numbers => "incorrect checksum".to_owned(),
        Ok(version) if are_numbers => format!("invalid version {version}"),
        _ => "invalid format".to_owned(),
    }
}

/// The redaction bookmark that a stream was made with: its name after the `#`.
async fn redaction_of(
    open: &OpenPool,
    name: &str,
    guid: Guid,
    with: &[u64],
) -> Result<String, Failure> {
    let (head, _) = dataset::name::split_snapshot(name);
    let found = crate::redact::bookmark_with(open, head, guid, with).await;
    let refused = |why: &str| {
        let message = format!("cannot resume send: {why} provided");
        Failure::new(FailureKind::NotFound, message)
    };
    match found.map_err(|error| of_dataset(name, &error))? {
        Some((bookmark, true)) => {
            let short = bookmark.rsplit('#').next().unwrap_or_default();
            Ok(short.to_owned())
        }
        Some((_, false)) => Err(refused("incomplete redaction bookmark")),
        None => Err(refused("nonexistent redaction bookmark")),
    }
}

/// The snapshot or bookmark that has a GUID: of a dataset, or of what it was cloned from, as it was
/// then or earlier, and so on. `redacted_with`: only a redaction bookmark that was made with these.
async fn with_guid(
    open: &OpenPool,
    head: &str,
    guid: u64,
    redacted_with: Option<&[u64]>,
) -> Result<Option<String>, Failure> {
    let dsl = open.pool.dsl();
    let failed = |error: DatasetError| of_dataset(head, &error);
    let mut at = head.to_owned();
    let mut until = None;
    loop {
        let is_it = |found: Guid, txg: Txg| {
            found.get() == guid && until.is_none_or(|until: Txg| txg <= until)
        };
        if let Some(with) = redacted_with {
            let found = crate::redact::bookmark_with(open, &at, Guid::new(guid), with).await;
            if let Some((name, _)) = found.map_err(failed)? {
                return Ok(Some(name));
            }
            // Or a snapshot that was itself received so.
            let mut all = snapshots_of(open, &at).await?.into_iter();
            let is_source =
                |info: &DatasetInfo| info.is_redacted && is_it(info.guid, info.createtxg);
            if let Some(found) = all.find(is_source) {
                return Ok(Some(found.name));
            }
        } else {
            let snapshots = snapshots_of(open, &at).await?;
            let mut all = snapshots.into_iter();
            if let Some(found) = all.find(|info| is_it(info.guid, info.createtxg)) {
                return Ok(Some(found.name));
            }
            let bookmarks = dsl.bookmarks().list(&at).await.map_err(failed)?;
            let mut all = bookmarks.into_iter();
            if let Some(found) = all.find(|found| is_it(found.phys.guid, found.phys.creation_txg)) {
                return Ok(Some(found.name));
            }
        }
        let info = dsl.directories().lookup(&at).await.map_err(failed)?;
        let Some(origin) = info.origin else {
            return Ok(None);
        };
        let info = dsl.directories().lookup(&origin).await.map_err(failed)?;
        until = Some(info.createtxg);
        at = dataset::name::split_snapshot(&origin).0.to_owned();
    }
}

/// How much a stream comes to that redaction lists have a say in, which nothing else tells
/// (`zfs_ioc_send_space`, module/zfs/zfs_ioctl.c); none for any other.
async fn counted(plan: &Plan, name: &str, from: Option<&str>) -> Result<Option<u64>, Failure> {
    let may_be = plan.redact.is_some() || from.is_some_and(|from| from.contains('#'));
    if !may_be || !name.contains('@') {
        return Ok(None);
    }
    let source = source_of(plan, name, from).await?;
    let redactions = &source.redactions;
    if redactions.of_stream.is_none() && redactions.of_receiver.is_none() {
        return Ok(None);
    }
    let size = stream::size(&source, &plan.options).await;
    size.map(Some).map_err(|error| of_stream(name, &error))
}

/// About how long a stream is (`dmu_send_estimate_fast`, module/zfs/dmu_send.c): data as it is
/// stored or as it is, less the indirect blocks, and a record for each block.
async fn estimate(plan: &Plan, name: &str, from: Option<&str>) -> Result<u64, Failure> {
    let properties = plan.open.pool.dsl().properties();
    let number = async |property: &str| {
        let setting = properties.get(name, property).await;
        let setting = setting.map_err(|error| of_dataset(name, &error))?;
        Ok::<_, Failure>(setting.value.number().unwrap_or(0))
    };
    let (stored, logical) = (
        number("referenced").await?,
        number("logicalreferenced").await?,
    );
    let (stored, logical) = match from {
        // Without what a bookmark can tell, it is all.
        Some(from) => {
            let mark = if from.contains('#') { '#' } else { '@' };
            let written = number(&format!("written{mark}{from}")).await;
            let written = written.unwrap_or(stored);
            let share = u128::from(written) * u128::from(logical) / u128::from(stored.max(1));
            (written, share as u64)
        }
        None => (stored, logical),
    };
    let (head, _) = dataset::name::split_snapshot(name);
    let record = async |property: &str| {
        let setting = properties.get(head, property).await.ok()?;
        setting.value.number().filter(|bytes| *bytes > 0)
    };
    let block_bytes = match record("recordsize").await {
        Some(bytes) => bytes,
        None => record("volblocksize").await.unwrap_or(128 << 10),
    };
    let records = logical / block_bytes;
    let data = match plan.options.compressed {
        true => stored,
        false => logical,
    };
    Ok(data
        .saturating_sub(records * POINTER_BYTES)
        .saturating_add((records + 2) * RECORD_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(streams: &[(&str, Option<&str>)]) -> Vec<String> {
        let own =
            |(name, from): &(&str, Option<&str>)| ((*name).to_owned(), from.map(str::to_owned));
        let mut streams: Vec<_> = streams.iter().map(own).collect();
        in_order(&mut streams);
        streams.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn clones_come_behind_their_origins_and_children_behind_their_parents() {
        // A clone of a clone, with a child, listed before what they were cloned from; and the
        // origin is below a dataset that is listed late.
        let streams = [
            ("t@1", None),
            ("t/a@1", Some("t/b@1")),
            ("t/a@2", Some("t/a@1")),
            ("t/a/child@1", None),
            ("t/b@1", Some("t/z/deep@1")),
            ("t/c@1", Some("elsewhere@1")),
            ("t/z@1", None),
            ("t/z/deep@1", None),
        ];
        let wanted = [
            "t@1",
            "t/c@1",
            "t/z@1",
            "t/z/deep@1",
            "t/b@1",
            "t/a@1",
            "t/a@2",
            "t/a/child@1",
        ];
        assert_eq!(ordered(&streams), wanted);
    }

    #[test]
    fn what_is_below_a_clone_of_itself_comes_before_it() {
        let streams = [
            ("t@2", Some("t@1")),
            ("t/c@1", Some("t/c/x@1")),
            ("t/c/x@1", None),
            ("t/c/x@2", Some("t/c/x@1")),
            ("t/c/x/y@1", None),
        ];
        let wanted = ["t@2", "t/c/x@1", "t/c@1", "t/c/x@2", "t/c/x/y@1"];
        assert_eq!(ordered(&streams), wanted);
    }

    /// As long as anybody has; it took time by the square of that once.
    #[test]
    fn ten_thousand_snapshots_stay_in_their_order() {
        let name = |at: u32| format!("t/{}@{at}", at % 7);
        let mut streams: Vec<(String, Option<String>)> = (0..10_000)
            .map(|at| (name(at), at.checked_sub(7).map(name)))
            .collect();
        let before = streams.clone();
        in_order(&mut streams);
        assert_eq!(streams, before);
    }
}
