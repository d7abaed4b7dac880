//! `zfs receive`: one stream after the other, each into the dataset that its name and the options
//! say, with properties, mounts and volumes (`zfs_receive_impl`, `zfs_receive_one`,
//! lib/libzfs/libzfs_sendrecv.c).
//!
//! What a package of streams says that is not a stream, such as which datasets were renamed or
//! destroyed where it was sent, is done before its first stream ([`differences`]).
//!
//! While contents come, nobody is kept from anything: the lock on administration is held only while
//! a receive begins and ends. A filesystem that is mounted, or a volume that is in use, goes on
//! with what was received.
//!
//! A receive whose source is silent can be given up, and one whose pool leaves is broken off
//! ([`service::receives`]): its input fails, and what came is kept as after any break.

mod corrective;
mod differences;
mod keeping;
mod mounting;
mod moves;
mod options;
mod roots;
mod snapshots;

use std::sync::Arc;
use std::time::Instant;

use access::AccessError;
use api::{
    Empty, EventKind, Failure, FailureKind, Progress, ReceiveGuard, ReceiveNaming, ReceiveObstacle,
    ReceivedReport, Refusal, Unit, ZfsReceive, ZfsReceiveAbort, ZfsReceiveReply,
};
use dataset::{
    DatasetError, DatasetInfo, DatasetKind, ListOptions, NewKey, PropertyChange, PropertyValue,
    ReceiveTarget, Receiving,
};
use device::BoxFuture;
use format::stream::{Begin, HeaderKind, StreamFeatures};
use format::{NvList, NvValue};
use stream::{
    Naming, Package, PackageDataset, Received, Start, StreamError, StreamReader, received_name,
};
use tokio::io::AsyncRead;

use crate::zfs::mode;
use differences::When;
use service::error::{and_back, from_access, from_dataset, name_fault};
use service::jobs::Work;
use service::pools::{OpenPool, Pools};
use service::receives::{Broken, BrokenOff, SILENT};
use serving::Serving;

/// Properties that wait for the contents, which they might keep out (`extract_delay_props`,
/// module/zfs/zfs_ioctl.c).
const LAST: [&str; 1] = ["refquota"];
/// Stored for `encryption=off` (`ZIO_CRYPT_OFF`, include/sys/zio_crypt.h).
const OFF: u64 = 2;
/// Properties of keys. How a key is to be had comes with a raw stream, and where from is set at the
/// end ([`roots`]); a stream that is not raw brings none.
const OF_KEYS: [&str; 5] = [
    "encryption",
    "keyformat",
    "keylocation",
    "pbkdf2iters",
    "pbkdf2salt",
];

/// That of them which can be set at any time.
const LOCATION: &str = "keylocation";

/// `zfs receive -A`.
pub fn zfs_receive_abort<'a>(
    pools: &'a Pools,
    call: &'a ZfsReceiveAbort,
) -> BoxFuture<'a, Result<Empty, Failure>> {
    Box::pin(async move {
        let open = pools.of_dataset(&call.name)?;
        let doing = format!("cannot abort the receive into '{}'", call.name);
        let busy = |why: String| Failure::new(FailureKind::Busy, format!("{doing}: {why}"));
        let was_under_way = match open.receives.give_up(&call.name).await {
            BrokenOff::None => false,
            BrokenOff::Ended => true,
            BrokenOff::Heard(silent_for) => {
                return Err(busy(format!(
                    "it is under way; stop what sends, or give it up once that has sent nothing \
                     for {} seconds ({} up to now)",
                    SILENT.as_secs(),
                    silent_for.as_secs()
                )));
            }
            BrokenOff::Stays => {
                let pool = open.pool.name();
                return Err(busy(format!(
                    "it is broken off and has not ended; see 'zpool status {pool}'"
                )));
            }
        };
        let _admin = open.admin.lock().await;
        match open.pool.dsl().receives().abort(&call.name).await {
            Ok(()) => {}
            // What no token could go on with went with it.
            Err(
                DatasetError::NotFound { .. }
                | DatasetError::Receive {
                    obstacle: dataset::ReceiveObstacle::NothingToResume,
                    ..
                },
            ) if was_under_way => {}
            Err(DatasetError::Receive {
                obstacle: dataset::ReceiveObstacle::NothingToResume,
                ..
            }) => {
                let name = &call.name;
                let message =
                    format!("'{name}' does not have any resumable receive state to abort");
                return Err(Failure::new(FailureKind::NotFound, message));
            }
            Err(error) => return Err(from_dataset(&doing, &error)),
        }
        crate::zpool::log_command(&open.pool, &call.command).await;
        Ok(Empty {})
    })
}

/// `zfs receive`.
pub fn zfs_receive<'a>(
    serving: &'a Serving,
    call: ZfsReceive,
    input: impl AsyncRead + Send + Unpin + 'static,
    work: &'a Arc<Work>,
) -> BoxFuture<'a, Result<ZfsReceiveReply, Failure>> {
    Box::pin(async move {
        let reporter = Arc::clone(work);
        let progress = stream::Progress::new(move |bytes| {
            reporter.progress(Progress {
                done: bytes,
                total: bytes,
                unit: Unit::Bytes,
            });
            reporter.is_canceled()
        });
        receive_from(serving, call, Box::new(input), work, progress).await
    })
}

/// Receives what is read.
pub fn receive_from<'a>(
    serving: &'a Serving,
    call: ZfsReceive,
    input: Input,
    work: &'a Work,
    progress: stream::Progress,
) -> BoxFuture<'a, Result<ZfsReceiveReply, Failure>> {
    Box::pin(async move {
        corrective::check(&call)?;
        let call = options::checked(call)?;
        let open = target_pool(&serving.pools, &call).await?;
        // Nobody exports it meanwhile but by force.
        let under_way = open.receives.begin();
        let input: Input = Box::new(under_way.watched(input));
        let mut run = Run {
            serving,
            work,
            call: &call,
            open: Arc::clone(&open),
            progress,
            under_way,
            package: None,
            first_mount: serving.mounts.number_of_next(),
            reply: ZfsReceiveReply::default(),
        };
        let mut reader = StreamReader::new(input);
        let outcome = run.all(&mut reader).await;
        if !call.dry_run && !run.reply.received.is_empty() {
            crate::zpool::log_command(&open.pool, &call.command).await;
        }
        outcome.map(|()| run.reply)
    })
}

/// The pool that is received into, where that can be: the name is one, and the filesystem is there
/// that names are to come below (`zfs_receive_one`, lib/libzfs/libzfs_sendrecv.c).
async fn target_pool(pools: &Pools, call: &ZfsReceive) -> Result<Arc<OpenPool>, Failure> {
    let target = &call.target;
    let is_bookmark = || {
        target
            .contains('#')
            .then(|| "a bookmark is no target".to_owned())
    };
    if let Some(fault) = name_fault(target).or_else(is_bookmark) {
        let message = format!("cannot receive: invalid name\n'{target}': {fault}");
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let is_below = call.naming != ReceiveNaming::Exact && !target.contains('@');
    let missing = || {
        let message = format!("cannot receive: specified fs ({target}) does not exist");
        Failure::new(FailureKind::NotFound, message)
    };
    let pool = target.split(['/', '@']).next().unwrap_or(target);
    let open = match pools.of_dataset(pool) {
        Err(_) if is_below => return Err(missing()),
        found => found?,
    };
    if is_below {
        let found = open.pool.dsl().directories().lookup(target).await;
        if let Err(DatasetError::NotFound { .. }) = found {
            return Err(missing());
        }
    }
    Ok(open)
}

/// A package that is being received.
struct Packed {
    package: Package,
    /// The filesystem that was sent, by its name there.
    top: String,
    /// What was renamed there is so here.
    follows: bool,
    /// What was destroyed and promoted there is so here, too: it is a difference.
    destroys: bool,
    /// Datasets have not the names yet that they are to have.
    awaits: bool,
    /// GUIDs of datasets that were made of snapshots of others.
    parted: Vec<u64>,
    /// The memory that all this takes.
    _room: stream::Room,
}

struct Run<'a> {
    serving: &'a Serving,
    work: &'a Work,
    call: &'a ZfsReceive,
    open: Arc<OpenPool>,
    progress: stream::Progress,
    /// How it is known to who may break it off.
    under_way: service::receives::Receiving,
    package: Option<Packed>,
    /// The number of the first mount that it may have made.
    first_mount: u64,
    reply: ZfsReceiveReply,
}

/// Where a stream goes.
struct Place {
    /// Filesystem or volume.
    head: String,
    /// The snapshot, after the `@`.
    snapshot: String,
    /// What is there.
    existing: Option<DatasetInfo>,
    origin: Option<String>,
    /// It is not where its name says.
    is_elsewhere: bool,
    /// What is there is to leave its name to it.
    must_make_way: bool,
    /// The name of what has left it its name.
    made_way: Option<String>,
    /// What options change of its properties.
    changes: Vec<(String, PropertyChange)>,
}

impl Place {
    /// Whether the dataset becomes usable with this stream.
    fn is_new(&self) -> bool {
        let mut existing = self.existing.iter();
        existing.all(|existing| existing.is_inconsistent)
    }

    fn full_name(&self) -> String {
        format!("{}@{}", self.head, self.snapshot)
    }
}

fn naming_of(naming: ReceiveNaming) -> Naming {
    match naming {
        ReceiveNaming::Exact => Naming::Exact,
        ReceiveNaming::WithoutPool => Naming::WithoutPool,
        ReceiveNaming::LastOnly => Naming::LastOnly,
    }
}

/// Where streams are read from.
pub type Input = Box<dyn AsyncRead + Unpin + Send>;

type Reader = StreamReader<Input>;

/// What a new dataset is to have of properties of keys, and the key that makes it an encryption
/// root.
type Encryption = (Vec<(String, PropertyValue)>, Option<NewKey>);

impl Run<'_> {
    async fn all(&mut self, reader: &mut Reader) -> Result<(), Failure> {
        let mut count = 0;
        loop {
            let start = self.progress.unless_stopped(reader.start()).await;
            match start.map_err(|error| self.of_stream(&error))? {
                Start::Nothing if count == 0 => {
                    // In the words of `recv_read`.
                    let message = "cannot receive: failed to read from stream\nit is empty";
                    return Err(Failure::new(FailureKind::Invalid, message));
                }
                Start::Nothing if self.package.is_some() => {
                    return Err(self.refused(None, false, ReceiveObstacle::CutShort));
                }
                Start::Nothing | Start::End if self.call.corrective => return Ok(()),
                Start::Nothing | Start::End => {
                    let followed = differences::follow(self, When::After).await;
                    return and_back(followed, roots::restore(self).await);
                }
                Start::Begin(begin, list) if begin.header == HeaderKind::Compound => {
                    if self.package.is_some() {
                        return Err(self.refused(None, false, ReceiveObstacle::NoStream));
                    }
                    let ended = self.progress.unless_stopped(reader.skip()).await;
                    ended.map_err(|error| self.of_stream(&error))?;
                    self.begin_package(&begin, list).await?;
                }
                Start::Begin(begin, list) => {
                    self.one(reader, *begin, &list).await?;
                    if self.package.is_none() {
                        return Ok(());
                    }
                }
            }
            count += 1;
        }
    }

    /// A refusal in words of its own.
    fn refused(&self, is_full: Option<bool>, is_new: bool, why: ReceiveObstacle) -> Failure {
        self.refused_at(&self.call.target, is_full, is_new, why)
    }

    fn refused_at(
        &self,
        target: &str,
        is_full: Option<bool>,
        is_new: bool,
        why: ReceiveObstacle,
    ) -> Failure {
        let kind = match why {
            ReceiveObstacle::Exists
            | ReceiveObstacle::SnapshotExists
            | ReceiveObstacle::HasSnapshots => FailureKind::Exists,
            ReceiveObstacle::NoSource
            | ReceiveObstacle::NoTarget
            | ReceiveObstacle::NoOrigin
            | ReceiveObstacle::NothingToHeal
            | ReceiveObstacle::NothingToResume => FailureKind::NotFound,
            ReceiveObstacle::Modified
            | ReceiveObstacle::Interrupted
            | ReceiveObstacle::UnderWay => FailureKind::Busy,
            _ => FailureKind::Invalid,
        };
        let message = format!("cannot receive into '{target}': {}", why.words());
        Failure {
            refusal: Some(Box::new(Refusal::Receive {
                target: target.to_owned(),
                is_full,
                is_new,
                why,
                resume_token: None,
            })),
            ..Failure::new(kind, message)
        }
    }

    fn of_stream(&self, error: &StreamError) -> Failure {
        if let (StreamError::Io(_), Some(why)) = (error, self.under_way.broken()) {
            return self.broken_off(why);
        }
        let why = match error {
            StreamError::CutShort => ReceiveObstacle::CutShort,
            StreamError::Checksum => ReceiveObstacle::Checksum,
            StreamError::NoStream => ReceiveObstacle::NoStream,
            StreamError::Interrupted => {
                return Failure::new(FailureKind::Canceled, "the receive was canceled");
            }
            other => {
                let message = format!("cannot receive: {other}");
                return Failure::new(FailureKind::Invalid, message);
            }
        };
        self.refused(None, false, why)
    }

    fn broken_off(&self, why: Broken) -> Failure {
        let message = format!("cannot receive into '{}': {why}", self.call.target);
        Failure::new(FailureKind::Io, message)
    }

    /// The lock on administration. Who breaks the receive off may have it.
    async fn admin(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Failure> {
        tokio::select! {
            biased;
            why = self.under_way.until_broken() => Err(self.broken_off(why)),
            admin = self.open.admin.lock() => Ok(admin),
        }
    }

    /// Where a stream goes.
    async fn place(&self, begin: &Begin) -> Result<Place, Failure> {
        let naming = naming_of(self.call.naming);
        let (sent_head, _) = dataset::name::split_snapshot(&begin.to_name);
        let top = match &self.package {
            Some(packed) => &packed.top,
            None => sent_head,
        };
        let name = received_name(&self.call.target, naming, top, &begin.to_name);
        let is_full = Some(begin.from_guid.get() == 0);
        let not_allowed = || self.refused(is_full, false, ReceiveObstacle::SnapshotNotAllowed);
        let name = name.ok_or_else(not_allowed)?;
        let (head, snapshot) = name.split_once('@').ok_or_else(not_allowed)?;
        let elsewhere = differences::found(self, begin, head).await?;
        let head = elsewhere.as_deref().unwrap_or(head);
        let mut place = Place {
            head: head.to_owned(),
            snapshot: snapshot.to_owned(),
            existing: None,
            origin: self.call.origin.clone(),
            is_elsewhere: elsewhere.is_some(),
            must_make_way: false,
            made_way: None,
            changes: Vec::new(),
        };
        let directories = self.open.pool.dsl().directories();
        match directories.lookup(head).await {
            Ok(info) => place.existing = Some(info),
            Err(DatasetError::NotFound { .. }) => {}
            Err(error) => return Err(self.of_dataset(&place, begin, &error)),
        }
        if place.existing.is_some() && differences::must_make_way(self, begin, head).await? {
            place.must_make_way = true;
            place.existing = None;
        }
        let is_clone = begin.flags & Begin::FLAG_CLONE != 0;
        if is_clone && place.origin.is_none() && place.existing.is_none() {
            let found = self.snapshot_with(begin.from_guid.get()).await?;
            if found.is_none() && self.call.guard == ReceiveGuard::User {
                let message = format!(
                    "cannot receive into '{head}': the origin of the clone is not in '{}'; one \
                     that is elsewhere is named with '-o origin=', for which the permission \
                     'clone' on it is needed",
                    self.call.target
                );
                return Err(Failure::new(FailureKind::Denied, message));
            }
            let missing = || self.refused_at(&name, is_full, true, ReceiveObstacle::NoOrigin);
            place.origin = Some(found.ok_or_else(missing)?);
        }
        Ok(place)
    }

    /// The snapshot of this pool that has a GUID, among those that may be the origin of a clone.
    /// Copies in the same pool have one GUID.
    async fn snapshot_with(&self, guid: u64) -> Result<Option<String>, Failure> {
        let everything = ListOptions {
            snapshots: true,
            ..ListOptions::default()
        };
        let directories = self.open.pool.dsl().directories();
        let all = directories.list(&self.open.pool.name(), &everything).await;
        let all = all.map_err(|error| from_dataset("cannot receive", &error))?;
        let (guard, target) = (&self.call.guard, &self.call.target);
        let found = all.into_iter().filter(|info| {
            info.kind == DatasetKind::Snapshot
                && info.guid.get() == guid
                && guard.takes_origin(&info.name, target)
        });
        // Another replica may be in the same pool.
        let nearest = found.min_by_key(|info| !api::is_within(&info.name, target));
        Ok(nearest.map(|info| info.name))
    }

    async fn snapshots_of(&self, head: &str) -> Result<Vec<DatasetInfo>, Failure> {
        let only = ListOptions {
            filesystems: false,
            volumes: false,
            snapshots: true,
            depth: Some(1),
        };
        let directories = self.open.pool.dsl().directories();
        let listed = directories.list(head, &only).await;
        let listed = listed.map_err(|error| from_dataset("cannot receive", &error))?;
        let of_head = |info: &DatasetInfo| {
            let name = info.name.strip_prefix(head);
            name.is_some_and(|rest| rest.starts_with('@'))
        };
        Ok(listed.into_iter().filter(of_head).collect())
    }

    /// Receives one stream.
    async fn one(
        &mut self,
        reader: &mut Reader,
        begin: Begin,
        list: &NvList,
    ) -> Result<(), Failure> {
        let started = Instant::now();
        let before = reader.total_bytes();
        let mut place = self.place(&begin).await?;
        let is_full = begin.from_guid.get() == 0;
        let mut report = ReceivedReport {
            sent: begin.to_name.clone(),
            name: place.full_name(),
            is_full,
            is_skipped: false,
            healed_blocks: self.call.corrective.then_some(0),
            bytes: 0,
            duration_ms: 0,
        };
        if self.call.corrective {
            self.check_corrective(&begin, &place).await?;
        }
        let is_resuming = begin.features.contains(StreamFeatures::RESUMING);
        if let Some(existing) = &place.existing
            && !existing.is_inconsistent
            && !self.call.corrective
        {
            let snapshots = self.snapshots_of(&place.head).await?;
            let same = snapshots.iter().find(|info| info.name == report.name);
            report.is_skipped =
                self.package.is_some() && same.is_some_and(|same| same.guid == begin.to_guid);
            let replaces = is_full && !report.is_skipped && !is_resuming;
            if replaces && !self.call.force {
                let why = ReceiveObstacle::Exists;
                return Err(self.refused_at(&place.head, Some(true), false, why));
            }
            if replaces && !snapshots.is_empty() {
                let first = snapshots[0].name.clone();
                let why = ReceiveObstacle::HasSnapshots;
                return Err(self.refused_at(&first, Some(true), false, why));
            }
            // Where differences are followed, what has no snapshots is the receiver's own.
            let follows = self.package.as_ref().is_some_and(|packed| packed.follows);
            if replaces && follows && !self.is_top(&begin) {
                let message = format!(
                    "cannot receive into '{}': it is there, has no snapshots, and is not \
                     overwritten; rename or destroy it",
                    place.head
                );
                return Err(Failure::new(FailureKind::Exists, message));
            }
        }
        if !report.is_skipped {
            place.changes = options::changes(self, &begin, &place).await?;
        }
        if report.is_skipped || self.call.dry_run {
            let skipped = self.progress.unless_stopped(reader.skip()).await;
            skipped.map_err(|error| self.of_stream(&error))?;
        } else if self.call.corrective {
            let healed = self.correct(reader, &begin, list, &place).await?;
            report.healed_blocks = Some(healed);
        } else {
            if place.must_make_way {
                differences::make_way(self, &mut place).await?;
            }
            self.under_way.set_target(Some(&place.head));
            let contents = self.contents(reader, begin.clone(), list, &place).await;
            self.under_way.set_target(None);
            if contents.is_err() {
                differences::give_back(self, &place).await;
            }
            let set = contents?;
            self.settle(&begin, &place, set).await?;
            if matches!(self.call.guard, ReceiveGuard::Replica(_)) {
                let noted = crate::replica::note_received(&self.open, &report.name).await;
                self.reply
                    .warnings
                    .extend(noted.err().map(|failure| failure.message));
            }
            let awaits = self.package.as_ref().is_some_and(|packed| packed.awaits);
            if place.existing.is_none() && (awaits || place.is_elsewhere) {
                differences::follow(self, When::Between).await?;
            }
        }
        report.bytes = reader.total_bytes() - before;
        report.duration_ms = started.elapsed().as_millis() as u64;
        self.reply.received.push(report);
        Ok(())
    }

    /// Receives the contents of a stream, and makes the snapshot. Says whether properties are set:
    /// a new dataset's count for what is written.
    async fn contents(
        &mut self,
        reader: &mut Reader,
        begin: Begin,
        list: &NvList,
        place: &Place,
    ) -> Result<bool, Failure> {
        let open = Arc::clone(&self.open);
        let dsl = open.pool.dsl();
        let (properties, new_key) = self.encryption(&begin, place)?;
        if place.existing.is_none() && (begin.from_guid.get() == 0 || place.origin.is_some()) {
            self.make_parents(place).await?;
        }
        let target = ReceiveTarget {
            name: place.head.clone(),
            snapshot: place.snapshot.clone(),
            begin: begin.clone(),
            origin: place.origin.clone(),
            force: self.call.force,
            resumable: self.call.resumable,
            properties,
            new_key,
            key_data: list.list("crypt_keydata").cloned(),
            redaction: dataset::Redaction::of(list),
        };
        let receiving = {
            let _admin = self.admin().await?;
            let begun = dsl.receives().begin(target).await;
            begun.map_err(|error| self.of_dataset(place, &begin, &error))?
        };
        let sets = receiving.is_new();
        if sets {
            self.set_properties(&begin, place, true).await;
        }
        let received = stream::receive(reader, list, &receiving, &self.progress).await;
        let ended = match received {
            Ok(received) => {
                self.warn_of(&begin, received);
                self.finish(&receiving, place, &begin).await
            }
            Err(error) => {
                let failure = match &error {
                    StreamError::Dataset(error) => self.of_dataset(place, &begin, error),
                    error => self.of_stream(error),
                };
                return Err(self.give_up(receiving, place, &begin, failure).await);
            }
        };
        if let Err(failure) = ended {
            // All of it is there; what was in the way may be gone when it is resumed.
            return Err(self.give_up(receiving, place, &begin, failure).await);
        }
        Ok(sets)
    }

    /// Says what is odd about a stream that is here as a whole.
    fn warn_of(&mut self, begin: &Begin, received: Received) {
        let blocks = received.long_embedded_blocks;
        if blocks > 0 {
            self.reply.warnings.push(format!(
                "the stream of '{}' has {blocks} embedded blocks of more than 128 KiB without \
                 saying so: they were received, but OpenZFS takes no such stream; keep one that \
                 was sent anew instead of it",
                begin.to_name
            ));
        }
    }

    /// How a dataset is to be encrypted: as the options say, where it is the one that was asked
    /// for; `-x encryption`, and what is below it, as the parent. A stream with properties that is
    /// not raw is of a dataset in the clear, and that is a property, too (`zfs_receive_one`,
    /// lib/libzfs/libzfs_sendrecv.c).
    fn encryption(&self, begin: &Begin, place: &Place) -> Result<Encryption, Failure> {
        let (set, exclude) = (&self.call.set, &self.call.exclude);
        let doing = format!("cannot receive into '{}'", place.head);
        // Where a key is can be said of any.
        let is_of_key = |name: &&String| OF_KEYS[..].contains(&name.as_str()) && *name != LOCATION;
        let is_raw = begin.features.contains(StreamFeatures::RAW);
        let is_whole = begin.from_guid.get() == 0;
        let is_tree = |packed: &Packed| !packed.package.is_not_recursive;
        let (named, why) = if is_raw {
            let named = set.keys().chain(exclude).find(is_of_key);
            (named, "a raw stream brings what it says")
        } else if !place.is_new() && is_whole {
            let named = set.keys().chain(exclude).find(is_of_key);
            (named, "the dataset is there already; see 'zfs change-key'")
        } else if !place.is_new() && !self.package.as_ref().is_some_and(is_tree) {
            // What is left out changes nothing: it is encrypted as it is.
            let named = set.keys().find(is_of_key);
            (named, "the dataset is there already; see 'zfs change-key'")
        } else if place.origin.is_some() && self.is_top(begin) {
            let named = set.keys().find(is_of_key);
            (named, "a clone is encrypted as its origin")
        } else {
            (None, "")
        };
        if let Some(name) = named {
            let message = format!("{doing}: '{name}' cannot be given: {why}");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let is_resumed = begin.features.contains(StreamFeatures::RESUMING);
        if is_raw || is_resumed || place.existing.is_some() || place.origin.is_some() {
            return Ok((Vec::new(), None));
        }
        let is_top = self.is_top(begin);
        let typed: Vec<(String, String)> = match is_top {
            true => (set.iter())
                .map(|(name, typed)| (name.clone(), typed.clone()))
                .collect(),
            false => Vec::new(),
        };
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let mut properties = dataset::encryption_properties(&typed).map_err(failed)?;
        let is_chosen = ["encryption", "keyformat"]
            .iter()
            .any(|name| set.contains_key(*name) || exclude.iter().any(|other| other == name));
        let has_properties = self.package.as_ref().is_some_and(is_tree)
            || self
                .sent(begin)
                .is_some_and(|(sent, _)| sent.has_properties);
        if !is_chosen && has_properties {
            properties.push(("encryption".into(), PropertyValue::Number(OFF)));
        }
        if !is_top && set.get("encryption").is_some_and(|word| word == "off") {
            properties.push(("encryption".into(), PropertyValue::Number(OFF)));
        }
        let given = self.call.key.as_ref().filter(|_| is_top);
        let key = crate::keys::new_key(&doing, given, &typed, None)?;
        Ok((properties, key))
    }

    /// Whether a stream is of the dataset that was asked for, not of one below it.
    fn is_top(&self, begin: &Begin) -> bool {
        let (sent, _) = dataset::name::split_snapshot(&begin.to_name);
        let packed = self.package.as_ref();
        packed.is_none_or(|packed| sent == packed.top)
    }

    /// Makes what is missing between the target and a new dataset (`-d`). The target itself must be
    /// there (`create_parents`, lib/libzfs/libzfs_dataset.c), even where nothing of the sent name
    /// is left and it would be the new dataset.
    async fn make_parents(&self, place: &Place) -> Result<(), Failure> {
        if self.call.naming != ReceiveNaming::WithoutPool {
            return Ok(());
        }
        let target = &self.call.target;
        let directories = self.open.pool.dsl().directories();
        if let Err(DatasetError::NotFound { .. }) = directories.lookup(target).await {
            let why = ReceiveObstacle::NoTarget;
            return Err(self.refused_at(target, Some(true), true, why));
        }
        let doing = format!("cannot receive into '{}'", place.head);
        let _admin = self.admin().await?;
        crate::create::make_parents(self.serving, &self.open, &place.head, &doing, false).await
    }

    async fn finish(
        &self,
        receiving: &Receiving,
        place: &Place,
        begin: &Begin,
    ) -> Result<(), Failure> {
        let (serving, open) = (self.serving, &self.open);
        let dsl = open.pool.dsl();
        let _admin = self.admin().await?;
        if receiving.is_new() {
            let finished = dsl.receives().finish(receiving).await;
            return finished.map_err(|error| self.of_dataset(place, begin, &error));
        }
        // Whoever uses the target goes on with what was received.
        let exchange = async || {
            let (dsl, access) = (Arc::clone(dsl), Arc::clone(&open.access));
            let finish = receiving.finisher();
            let work = async move { finish.run(&dsl).await };
            access.exchange(&place.head, work).await
        };
        let mut outcome = exchange().await;
        let mut taken = Vec::new();
        if let Err(AccessError::InUse { .. }) = &outcome {
            let force = mode(self.call.force_unmount);
            taken = serving
                .take_away(open, vec![place.head.clone()], force)
                .await?;
            outcome = exchange().await;
        }
        let back = serving.bring_back(open, taken).await;
        if let Err(AccessError::NotReopened { .. }) = &outcome {
            serving.share_anew(open, &place.head).await;
        }
        match outcome {
            Ok(Ok(())) => back,
            Ok(Err(error)) | Err(AccessError::Dataset(error)) => {
                and_back(Err(self.of_dataset(place, begin, &error)), back)
            }
            Err(error) => {
                let doing = format!("cannot receive into '{}'", place.head);
                and_back(Err(from_access(&doing, &error)), back)
            }
        }
    }

    /// After the contents: properties, holds, mounts and volumes.
    async fn settle(&mut self, begin: &Begin, place: &Place, are_set: bool) -> Result<(), Failure> {
        let (serving, open) = (self.serving, Arc::clone(&self.open));
        let is_new = place.is_new();
        let _admin = open.admin.lock().await;
        let names = vec![match is_new {
            true => place.head.clone(),
            false => place.full_name(),
        }];
        serving.events.tell(EventKind::DatasetsCreated { names });
        if !are_set {
            self.set_properties(begin, place, false).await;
        }
        self.set_last(begin, place).await;
        let kind = begin.kind();
        let key = open
            .pool
            .dsl()
            .keys()
            .info(&place.head)
            .await
            .ok()
            .flatten();
        if begin.features.contains(StreamFeatures::REDACTED) && !is_new {
            // It was whole before (`zfs_ioc_recv_impl`, module/zfs/zfs_ioctl.c).
            let force = mode(self.call.force_unmount);
            if let Err(failure) = serving.unmount(&place.head, force).await {
                self.reply.warnings.push(failure.message);
            }
        }
        let outcome = if key.is_some_and(|key| !key.is_loaded) {
            // Of use as soon as it is, as any other.
            Ok(())
        } else if kind == Some(format::ObjsetKind::Volume) {
            match is_new {
                true => serving.volumes.open_volume(&open, &place.head).await,
                false => {
                    serving
                        .volumes
                        .show_volume_snapshots(&open, &place.head)
                        .await
                }
            }
        } else if is_new && !self.call.no_mount {
            mounting::mount(self, &place.head).await
        } else {
            Ok(())
        };
        if let Err(failure) = outcome {
            self.reply.warnings.push(failure.message);
        }
        Ok(())
    }

    /// Sets the properties that the package and the options say. What cannot be set is a warning;
    /// `are_first`: contents are still to come, so limits are left out.
    async fn set_properties(&mut self, begin: &Begin, place: &Place, are_first: bool) {
        let open = Arc::clone(&self.open);
        let dsl = open.pool.dsl();
        let is_left_out = |name: &str| {
            are_first && LAST.contains(&name) || OF_KEYS.contains(&name) || self.leaves_out(name)
        };
        let mut outcomes = Vec::new();
        if let Some((sent, _)) = self.sent(begin) {
            let doing = format!("cannot set the received properties of '{}'", place.head);
            let values = values(&sent.properties, is_left_out);
            let set = dsl.properties().receive(&place.head, &values).await;
            outcomes.push((doing, set.map(|_| ())));
        }
        let changes = place.changes.iter();
        let changes: Vec<_> = changes
            .filter(|(name, _)| !(are_first && LAST.contains(&name.as_str())))
            .cloned()
            .collect();
        if !changes.is_empty() {
            let doing = format!("cannot set property for '{}'", place.head);
            let set = dsl.properties().set(&place.head, &changes).await;
            outcomes.push((doing, set));
        }
        self.warn(outcomes);
    }

    /// Sets what waits for the contents: limits on them, and what is the snapshot's.
    async fn set_last(&mut self, begin: &Begin, place: &Place) {
        let open = Arc::clone(&self.open);
        let dsl = open.pool.dsl();
        let mut outcomes = Vec::new();
        let is_left_out = |name: &str| OF_KEYS.contains(&name) || self.leaves_out(name);
        let doing = format!("cannot set the received properties of '{}'", place.head);
        if let Some((sent, snapshot)) = self.sent(begin) {
            if sent
                .properties
                .iter()
                .any(|(name, _)| LAST.contains(&name.as_str()))
            {
                let values = values(&sent.properties, is_left_out);
                let set = dsl.properties().receive(&place.head, &values).await;
                outcomes.push((doing.clone(), set.map(|_| ())));
            }
            let mut of_snapshots = sent.snapshot_properties.iter();
            if let Some((_, properties)) = of_snapshots.find(|(name, _)| name == snapshot) {
                let values = snapshots::values_of(self, properties);
                if !values.is_empty() {
                    let set = dsl.properties().receive(&place.full_name(), &values).await;
                    outcomes.push((doing, set.map(|_| ())));
                }
            }
            let mut holds = sent.holds.iter().filter(|_| !self.call.skip_holds);
            if let Some((_, tags)) = holds.find(|(name, _)| name == snapshot) {
                for tag in tags {
                    let held = dsl.holds().hold(&[place.full_name()], tag).await;
                    let doing = format!("cannot hold '{}'", place.full_name());
                    outcomes.push((doing, held));
                }
            }
        }
        let last = place.changes.iter();
        let last: Vec<_> = last
            .filter(|(name, _)| LAST.contains(&name.as_str()))
            .cloned()
            .collect();
        if !last.is_empty() {
            let doing = format!("cannot set property for '{}'", place.head);
            let set = dsl.properties().set(&place.head, &last).await;
            outcomes.push((doing, set));
        }
        self.warn(outcomes);
    }

    fn warn(&mut self, outcomes: Vec<(String, Result<(), DatasetError>)>) {
        for (doing, outcome) in outcomes {
            match outcome {
                Ok(()) | Err(DatasetError::Exists { .. }) => {}
                Err(error) => {
                    let failure = from_dataset(&doing, &error);
                    self.reply.warnings.push(failure.message);
                }
            }
        }
    }

    /// What the package says of the dataset of a stream, and its snapshot.
    fn sent(&self, begin: &Begin) -> Option<(&PackageDataset, &str)> {
        let packed = self.package.as_ref()?;
        packed.package.find(begin.to_guid.get())
    }

    /// An error of datasets, as what it means for a receive.
    fn of_dataset(&self, place: &Place, begin: &Begin, error: &DatasetError) -> Failure {
        use dataset::ReceiveObstacle as Why;
        let is_full = Some(begin.from_guid.get() == 0);
        let is_new = place.is_new();
        let at = |target: &str, why| self.refused_at(target, is_full, is_new, why);
        match error {
            DatasetError::Receive { obstacle, .. } => match obstacle {
                Why::NoSource => at(&place.head, ReceiveObstacle::NoSource),
                Why::NoTarget => at(&place.head, ReceiveObstacle::NoTarget),
                Why::Modified => at(&place.head, ReceiveObstacle::Modified),
                Why::Exists => at(&place.head, ReceiveObstacle::Exists),
                Why::Interrupted => at(&place.head, ReceiveObstacle::Interrupted),
                Why::NothingToResume => at(&place.head, ReceiveObstacle::NothingToResume),
                Why::UnderWay => at(&place.head, ReceiveObstacle::UnderWay),
                Why::NothingToHeal => at(&place.full_name(), ReceiveObstacle::NothingToHeal),
                Why::OtherSnapshot => at(&place.full_name(), ReceiveObstacle::OtherSnapshot),
                Why::NeedsKey => at(&place.head, ReceiveObstacle::NeedsKey),
                Why::Encrypted if is_full == Some(true) && !is_new => {
                    at(&place.head, ReceiveObstacle::OverwritesEncrypted)
                }
                _ => from_dataset(&self.doing(is_full, is_new), error),
            },
            DatasetError::Exists { name } if name.contains('@') => {
                at(name, ReceiveObstacle::SnapshotExists)
            }
            // In the words of `zfs_receive_one` and `zfs_receive_impl`.
            DatasetError::NotFound { name } => {
                let is_of_origin = |origin: &&String| origin.starts_with(name.as_str());
                let message = match place.origin.as_ref().filter(is_of_origin) {
                    Some(origin) => {
                        format!("cannot receive: specified origin fs ({origin}) does not exist")
                    }
                    None => {
                        let opening = from_dataset(&format!("cannot open '{name}'"), error);
                        let doing = self.doing(is_full, is_new);
                        format!("{opening}\n{doing}: unable to restore to destination")
                    }
                };
                Failure::new(FailureKind::NotFound, message)
            }
            DatasetError::WrongKind { name, reason } if reason == "parent is not a filesystem" => {
                let doing = self.doing(is_full, is_new);
                let message = format!("{doing}: parent '{name}' is not a filesystem");
                Failure::new(FailureKind::Invalid, message)
            }
            _ => from_dataset(&self.doing(is_full, is_new), error),
        }
    }

    fn doing(&self, is_full: Option<bool>, is_new: bool) -> String {
        match (is_full, is_new) {
            (Some(false), _) => "cannot receive incremental stream".to_owned(),
            (_, true) => "cannot receive new filesystem stream".to_owned(),
            _ => "cannot receive".to_owned(),
        }
    }
}

fn values(
    properties: &[(String, NvValue)],
    is_left_out: impl Fn(&str) -> bool,
) -> Vec<(String, PropertyValue)> {
    let kept = properties.iter().filter(|(name, _)| !is_left_out(name));
    kept.filter_map(|(name, value)| {
        let value = match value {
            NvValue::UInt64(number) => PropertyValue::Number(*number),
            NvValue::String(text) => PropertyValue::Text(text.clone()),
            _ => return None,
        };
        Some((name.clone(), value))
    })
    .collect()
}
