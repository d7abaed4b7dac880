//! `zfs program`: a script runs within one transaction group (crate `program`), and what it asks
//! for is answered out of that group ([`dataset::ProgramPool`]).
//!
//! The script has a thread of its own. The sync loop answers it, one request after the other, until
//! the script has ended; who asked for it hears when the group is on disk. A crash leaves all that
//! the script did or nothing. When nobody waits any more, the script ends within a hundred
//! instructions, and what it did stays. One that neither ends nor asks is left alone after a while,
//! so that the pool goes on: a single instruction of Lua's can take hours (it collects tables with
//! weak keys, or fills one whose keys all have the same hash). Its thread ends once that does, and
//! can ask for nothing any more.
//!
//! A script changes datasets and nothing that is served of them: what is open, mounted or shared
//! cannot be destroyed, rolled back, promoted or renamed by it, as the checks of those tasks say
//! (EBUSY). Properties that mean something for what is mounted, shared or shown are not changed by
//! it (ENOTSUP).

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::{EventKind, Failure, FailureKind, ZfsProgram, ZfsProgramReply};
use dataset::props::{ValueKind, find, full_name, is_user_property};
use dataset::{
    DatasetError, ProgramPool, PropertyChange, PropertySetting, PropertySource, PropertyValue,
    SyncTask,
};
use device::BoxFuture;
use parking_lot::Mutex;
use program::{
    Answer, Change, Changed, Host, Listing, Program, ProgramError, Refusal, Request, Value,
};
use tokio::sync::{mpsc, oneshot};

use crate::properties::has_effects;
use service::error::from_dataset;
use service::events::Events;
use service::pools::{OpenPool, Pools};
use serving::nfs::Nfs;
use serving::volumes::Volumes;

/// Stack of a script's thread, in bytes: Lua's own functions call each other two hundred deep.
const STACK_BYTES: usize = 32 << 20;
/// The longest that a script may compute without a word, in all: it stops by itself after a minute
/// ([`program::COMPUTING_MAX`]), as far as it can.
const PATIENCE: Duration = program::COMPUTING_MAX.saturating_add(Duration::from_secs(5));
/// Scripts at the same time, of all pools, with those that were left alone.
const SCRIPTS_MAX: usize = 16;
/// Longest value of a user property, in bytes, its ending zero included (`ZAP_MAXVALUELEN`).
const VALUE_MAX_BYTES: usize = 8192;
/// Longest name of one, likewise (`ZAP_MAXNAMELEN`).
const NAME_MAX_BYTES: usize = 256;

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const E2BIG: i32 = 7;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EXDEV: i32 = 18;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const ENAMETOOLONG: i32 = 36;
const ENOTSUP: i32 = 95;
const EDQUOT: i32 = 122;

/// `zfs program`. `has_left` is set when who asked has left.
pub fn zfs_program<'a>(
    pools: &'a Pools,
    shown: Shown<'a>,
    call: ZfsProgram,
    has_left: Arc<AtomicBool>,
) -> BoxFuture<'a, Result<ZfsProgramReply, Failure>> {
    Box::pin(async move {
        let open = pools.get(&call.pool)?;
        let script = Program {
            script: script_bytes(&call)?,
            arguments: call.arguments,
            instructions_max: call.instructions_max.unwrap_or(program::INSTRUCTIONS),
            memory_bytes_max: call.memory_bytes_max.unwrap_or(program::MEMORY_BYTES),
            is_read_only: call.read_only,
        };
        script.check().map_err(|error| told(&error))?;
        let _admin = open.admin.lock().await;
        let place = Place::take().ok_or_else(|| {
            let message = format!(
                "cannot run a channel program on '{}': {SCRIPTS_MAX} of them run, or have not \
                 ended since they were stopped; try again later",
                call.pool
            );
            Failure::new(FailureKind::Busy, message)
        })?;
        // What nobody has open any more is not busy for its log.
        open.pool.dsl().logs().settle_unused().await;
        let run = Arc::new(Run {
            script: Mutex::new(Some((script, place))),
            pool: open.pool.name(),
            has_left: has_left.clone(),
            outcome: Mutex::default(),
            changed: Mutex::default(),
        });
        let guard = Leaving(has_left);
        let ran = open.pool.dsl().tasks().run_program(run.clone()).await;
        drop(guard);
        let doing = format!("cannot run a channel program on '{}'", call.pool);
        ran.map_err(|error| from_dataset(&doing, &error))?;
        let changed = std::mem::take(&mut *run.changed.lock());
        shown.follow(&open, changed).await;
        if !call.read_only {
            open.background.poke(&open.pool);
            crate::zpool::log_command(&open.pool, &call.command).await;
        }
        let outcome = run.outcome.lock().take();
        let Some(outcome) = outcome else {
            let message = format!("{doing}: the script's thread ended; see the server's log");
            return Err(Failure::new(FailureKind::Other, message));
        };
        let mut reply = ZfsProgramReply::default();
        if let Some(value) = outcome.map_err(|error| told(&error))? {
            reply.output.insert("return".to_owned(), json(value));
        }
        Ok(reply)
    })
}

/// What is served of pools, as far as scripts change it.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    /// Who hears of what was made and destroyed.
    pub events: &'a Events,
    /// Snapshots of volumes, as files.
    pub volumes: &'a Volumes,
    /// Shares of filesystems.
    pub nfs: &'a Nfs,
}

/// Whoever waits for a script sets this when they leave, and it ends.
struct Leaving(Arc<AtomicBool>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn script_bytes(call: &ZfsProgram) -> Result<Vec<u8>, Failure> {
    if !call.is_bytes {
        return Ok(call.script.as_bytes().to_vec());
    }
    let bytes = call.script.chars().map(|char| u8::try_from(char).ok());
    bytes.collect::<Option<Vec<u8>>>().ok_or_else(|| {
        let message = "'script' has characters that stand for no byte";
        Failure::new(FailureKind::Invalid, message)
    })
}

/// Why a script failed, in the words of `zfs program` (`zfs_do_channel_program`,
/// cmd/zfs/zfs_main.c).
fn told(error: &ProgramError) -> Failure {
    let kind = match error {
        ProgramError::Cancelled(_) => FailureKind::Canceled,
        _ => FailureKind::Invalid,
    };
    Failure::new(kind, format!("Channel program execution failed:\n{error}"))
}

fn json(value: Value) -> serde_json::Value {
    match value {
        Value::Nil => serde_json::Value::Null,
        Value::Boolean(boolean) => boolean.into(),
        Value::Integer(number) => number.into(),
        Value::Text(text) => text.into(),
        Value::List(values) => values.into_iter().map(json).collect(),
        Value::Table(entries) => {
            let entries = entries.into_iter();
            let entries = entries.map(|(name, value)| (name, json(value)));
            serde_json::Value::Object(entries.collect())
        }
    }
}

/// What a script has changed that others hear of.
#[derive(Default)]
struct Done {
    created: Vec<String>,
    destroyed: Vec<String>,
    /// Filesystems and volumes whose snapshots are other ones now.
    heads: Vec<String>,
}

impl Shown<'_> {
    /// Tells of what a script changed, and shows it where snapshots are shown.
    async fn follow(&self, open: &OpenPool, changed: Done) {
        let Done {
            created,
            destroyed,
            mut heads,
        } = changed;
        let of = |name: &String| name.split('@').next().unwrap_or(name).to_owned();
        let snapshots = created.iter().chain(&destroyed);
        heads.extend(snapshots.filter(|name| name.contains('@')).map(of));
        heads.sort_unstable();
        heads.dedup();
        let gone = destroyed.iter().filter(|name| !name.contains('@'));
        let gone: Vec<String> = gone.cloned().collect();
        if !created.is_empty() {
            let names = created;
            self.events.tell(EventKind::DatasetsCreated { names });
        }
        if !destroyed.is_empty() {
            let names = destroyed;
            self.events.tell(EventKind::DatasetsDestroyed { names });
        }
        for name in &gone {
            // Nobody had it open; that it was to be shared is forgotten.
            self.nfs.shares().remove(name).await;
        }
        if !gone.is_empty() {
            let states = &self.volumes.unit_states;
            let pool = open.pool.name();
            states.forget_destroyed(open.pool.dsl(), &pool).await;
        }
        heads.retain(|head| !gone.contains(head));
        for head in &heads {
            if let Err(failure) = self.volumes.show_volume_snapshots(open, head).await {
                tracing::warn!("{failure}");
            }
        }
    }
}

/// What a script asks, and where the answer goes.
struct Question {
    request: Request,
    answer: oneshot::Sender<Result<Answer, Refusal>>,
}

/// The pool, for the script's thread.
struct Asking {
    questions: mpsc::UnboundedSender<Question>,
    has_left: Arc<AtomicBool>,
}

impl Host for Asking {
    fn ask(&self, request: Request) -> Result<Answer, Refusal> {
        let (answer, answered) = oneshot::channel();
        let question = Question { request, answer };
        // Who answers is gone when the pool is left meanwhile.
        self.questions.send(question).map_err(|_| Refusal::Gone)?;
        answered.blocking_recv().unwrap_or(Err(Refusal::Gone))
    }

    fn is_cancelled(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }
}

/// Scripts whose thread has not ended.
static SCRIPTS: AtomicUsize = AtomicUsize::new(0);

/// A place among the scripts that may run, until its thread has ended.
struct Place;

impl Place {
    fn take() -> Option<Place> {
        let taken = SCRIPTS.fetch_add(1, Ordering::Relaxed);
        let place = Place;
        (taken < SCRIPTS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        SCRIPTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a script ended.
type Outcome = Result<Option<Value>, ProgramError>;

/// Answers a script's questions until it ends. Who computes for longer than `patience`, in all, is
/// left alone: whatever it asks then has no answer. `None` where its thread broke off.
async fn served<F>(
    mut asked: mpsc::UnboundedReceiver<Question>,
    mut outcome: oneshot::Receiver<Outcome>,
    patience: Duration,
    mut answer: impl FnMut(Request) -> F,
) -> Option<Outcome>
where
    F: Future<Output = Result<Answer, Refusal>>,
{
    let mut left = patience;
    loop {
        let begun = Instant::now();
        tokio::select! {
            outcome = &mut outcome => return outcome.ok(),
            Some(Question { request, answer: to }) = asked.recv() => {
                left = left.saturating_sub(begun.elapsed());
                let _ = to.send(answer(request).await);
            }
            () = tokio::time::sleep(left) => return Some(Err(ProgramError::Stalled)),
        }
    }
}

/// One run of a script.
struct Run {
    script: Mutex<Option<(Program, Place)>>,
    pool: String,
    has_left: Arc<AtomicBool>,
    outcome: Mutex<Option<Outcome>>,
    changed: Mutex<Done>,
}

impl dataset::Program for Run {
    fn run<'a>(&'a self, pool: &'a ProgramPool<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some((script, place)) = self.script.lock().take() else {
                return;
            };
            let (questions, asked) = mpsc::unbounded_channel();
            let (ended, outcome) = oneshot::channel();
            let has_left = self.has_left.clone();
            let thread = std::thread::Builder::new().name("program".to_owned());
            let thread = thread.stack_size(STACK_BYTES).spawn(move || {
                let asking = Asking {
                    questions,
                    has_left,
                };
                let outcome = program::run(&script, Box::new(asking));
                drop(place);
                let _ = ended.send(outcome);
            });
            if let Err(error) = thread {
                tracing::error!(%error, "no thread for a channel program");
                return;
            }
            let answer = |request| self.answer(pool, request);
            *self.outcome.lock() = served(asked, outcome, PATIENCE, answer).await;
        })
    }
}

impl Run {
    async fn answer(&self, pool: &ProgramPool<'_>, request: Request) -> Result<Answer, Refusal> {
        match request {
            Request::Debug(text) => {
                tracing::info!(pool = self.pool, text, "said by a channel program");
                Ok(Answer::Done)
            }
            Request::Exists(name) => {
                self.check_pool(&name)?;
                pool.exists(&name)
                    .await
                    .map(Answer::Exists)
                    .map_err(refusal)
            }
            Request::Property { dataset, property } => {
                self.check_pool(&dataset)?;
                let found = self.property(pool, &dataset, &property).await?;
                Ok(Answer::Property(found))
            }
            Request::List(listing, name) => {
                self.check_pool(&name)?;
                list(pool, listing, &name)
                    .await
                    .map(Answer::List)
                    .map_err(refusal)
            }
            Request::Change { change, apply } => {
                self.change(pool, &change, apply).await.map(Answer::Changed)
            }
        }
    }

    /// A script is for one pool.
    fn check_pool(&self, name: &str) -> Result<(), Refusal> {
        match name.split(['/', '@', '#']).next() == Some(self.pool.as_str()) {
            true => Ok(()),
            false => Err(Refusal::OtherPool),
        }
    }

    async fn property(
        &self,
        pool: &ProgramPool<'_>,
        dataset: &str,
        property: &str,
    ) -> Result<Option<(Value, Option<String>)>, Refusal> {
        // What a mount knows, and what nobody has.
        if ["mounted", "iscsioptions"].contains(&property) {
            return Ok(None);
        }
        let owned = ["user", "group", "project"]
            .iter()
            .any(|owner| property.starts_with(owner) && property.contains('@'));
        if owned {
            let found = pool.owned(dataset, property).await.map_err(refusal)?;
            return Ok(found.map(|number| (Value::number(number), Some(dataset.to_owned()))));
        }
        let found = pool.property(dataset, property).await.map_err(refusal)?;
        if property == "useraccounting" {
            // Every dataset has it, and nobody ever sets it.
            return Ok(Some((Value::Integer(0), None)));
        }
        Ok(found.and_then(|setting| shown(dataset, setting)))
    }

    async fn change(
        &self,
        pool: &ProgramPool<'_>,
        change: &Change,
        apply: bool,
    ) -> Result<Changed, Refusal> {
        let failed = |errno| {
            Ok(Changed {
                errno,
                details: None,
            })
        };
        let task = match self.task(pool, change).await {
            Ok(task) => task,
            Err(Refused::Code(errno)) => return failed(errno),
            Err(Refused::Error(error)) => return self.refused(pool, change, &error).await,
        };
        match pool.change(&*task, apply).await {
            Ok(()) => {
                // One that is put off is there still.
                let is_put_off = match change {
                    Change::Destroy { name, defer: true } => {
                        pool.exists(name).await.unwrap_or(true)
                    }
                    _ => false,
                };
                if apply && !is_put_off {
                    self.note(change);
                }
                failed(0)
            }
            Err(error) => self.refused(pool, change, &error).await,
        }
    }

    /// The code of a refused change. What could not be read ends the script.
    async fn refused(
        &self,
        pool: &ProgramPool<'_>,
        change: &Change,
        error: &DatasetError,
    ) -> Result<Changed, Refusal> {
        let errno = match errno(error) {
            None => return Err(Refusal::Gone),
            Some(EIO) => return Err(Refusal::Io),
            Some(errno) => errno,
        };
        let details = match (change, error) {
            (Change::Promote { clone }, DatasetError::Exists { name }) => {
                let mut names = conflicts(pool, clone).await.unwrap_or_default();
                if names.is_empty() {
                    // A bookmark that both have.
                    let short = name.split(['@', '#']).next_back().unwrap_or(name);
                    names.push(short.to_owned());
                }
                Some(Value::List(names.into_iter().map(Value::Text).collect()))
            }
            _ => None,
        };
        Ok(Changed { errno, details })
    }

    fn note(&self, change: &Change) {
        let mut changed = self.changed.lock();
        match change {
            Change::Snapshot { name } => changed.created.push(name.clone()),
            Change::Destroy { name, .. } => changed.destroyed.push(name.clone()),
            Change::Promote { clone } => changed.heads.push(clone.clone()),
            Change::RenameSnapshot { dataset, .. } => changed.heads.push(dataset.clone()),
            Change::Rollback { .. }
            | Change::Inherit { .. }
            | Change::Set { .. }
            | Change::Bookmark { .. } => {}
        }
    }

    /// The task that makes a change.
    async fn task(
        &self,
        pool: &ProgramPool<'_>,
        change: &Change,
    ) -> Result<Arc<dyn SyncTask>, Refused> {
        // What is hidden is the pool's own, or a receive's (`zfs_validate_name`).
        if change.dataset().contains(['%', '$']) {
            return Err(Refused::Code(EINVAL));
        }
        let dsl = pool.dsl();
        let task = match change {
            Change::Destroy { name, defer } => Ok(dsl.destroyer().destroy_task(name, *defer)),
            Change::Promote { clone } => Ok(dsl.snapshots().promote_task(clone)),
            Change::Rollback { name } => Ok(dsl.snapshots().rollback_task(name)),
            Change::Snapshot { name } => dsl.snapshots().take_task(name),
            Change::Bookmark { source, name } => dsl.bookmarks().create_task(name, source),
            Change::RenameSnapshot { dataset, old, new } => {
                dsl.snapshots().rename_task(dataset, old, new)
            }
            Change::Inherit { dataset, property } => {
                self.check_pool(dataset).map_err(|_| Refused::Code(EXDEV))?;
                let property = full_name(property);
                if has_effects(property) {
                    return Err(Refused::Code(ENOTSUP));
                }
                let change = PropertyChange::Inherit;
                pool.set_task(dataset, property, change).await
            }
            Change::Set {
                dataset,
                property,
                value,
            } => {
                self.check_pool(dataset).map_err(|_| Refused::Code(EXDEV))?;
                // As OpenZFS's, scripts set user properties only.
                if property.len() >= NAME_MAX_BYTES {
                    return Err(Refused::Code(ENAMETOOLONG));
                }
                if !is_user_property(property) {
                    return Err(Refused::Code(EINVAL));
                }
                if value.len() >= VALUE_MAX_BYTES {
                    return Err(Refused::Code(E2BIG));
                }
                if has_effects(property) {
                    return Err(Refused::Code(ENOTSUP));
                }
                let change = PropertyChange::Set(value.clone());
                pool.set_task(dataset, property, change).await
            }
        };
        let task = task.map_err(Refused::Error)?;
        self.check_pool(change.dataset())
            .map_err(|_| Refused::Code(EXDEV))?;
        Ok(task)
    }
}

/// Names behind `@` of snapshots that a clone and what it would be given both have
/// (`dsl_dataset_promote_check`, module/zfs/dsl_dataset.c).
async fn conflicts(pool: &ProgramPool<'_>, clone: &str) -> Result<Vec<String>, DatasetError> {
    let origin = pool.property(clone, "origin").await?;
    let origin = origin.as_ref().and_then(|origin| origin.value.text());
    let (head, last) = origin.and_then(|it| it.split_once('@')).unwrap_or_default();
    let short = |name: &String| name.split('@').next_back().unwrap_or(name).to_owned();
    let own: HashSet<String> = pool.snapshots(clone).await?.iter().map(short).collect();
    let mut given: Vec<String> = pool.snapshots(head).await?.iter().map(short).collect();
    if let Some(at) = given.iter().position(|name| name == last) {
        given.truncate(at + 1);
    }
    given.retain(|name| own.contains(name));
    Ok(given)
}

/// Why there is no task for a change.
enum Refused {
    Code(i32),
    Error(DatasetError),
}

/// A property as scripts get it (`zcp_get_system_prop`, module/zfs/zcp_get.c), with where it was
/// set: `default`, or a dataset; nothing of what is no setting.
fn shown(dataset: &str, setting: PropertySetting) -> Option<(Value, Option<String>)> {
    let PropertySetting {
        name,
        value,
        source,
    } = setting;
    let property = find(&name);
    let is_count = ["filesystem_count", "snapshot_count"].contains(&name.as_str());
    if is_count && value.number() == Some(u64::MAX) {
        return None;
    }
    let value = match (property.map(|property| property.kind), value) {
        (_, PropertyValue::Text(text)) if name == "clones" || name == "redact_snaps" => {
            let names = text.split(',').filter(|name| !name.is_empty());
            Value::List(names.map(|name| Value::Text(name.to_owned())).collect())
        }
        (_, PropertyValue::Text(text)) => Value::Text(text),
        (Some(ValueKind::Index(_)), PropertyValue::Number(number)) => {
            let word = property.and_then(|property| property.word(number));
            Value::Text(word.map_or_else(|| number.to_string(), str::to_owned))
        }
        (_, PropertyValue::Number(number)) => Value::number(number),
    };
    let is_statistic =
        is_count || name == "version" || property.is_some_and(|property| property.is_read_only());
    let source = match source {
        _ if is_statistic => None,
        PropertySource::Local | PropertySource::Received => Some(dataset.to_owned()),
        PropertySource::Inherited(from) => Some(from),
        PropertySource::Default => Some("default".to_owned()),
        PropertySource::Temporary => Some("temporary".to_owned()),
        _ => None,
    };
    Some((value, source))
}

/// What there is of a kind at a dataset.
async fn list(
    pool: &ProgramPool<'_>,
    listing: Listing,
    name: &str,
) -> Result<Vec<Vec<Value>>, DatasetError> {
    let names = match listing {
        Listing::Children => pool.children(name).await?,
        Listing::Snapshots => pool.snapshots(name).await?,
        Listing::Clones => pool.clones(name).await?,
        Listing::Bookmarks => pool.bookmarks(name).await?,
        Listing::SystemProperties => pool.native_properties(name).await?,
        Listing::Holds => {
            let holds = pool.holds(name).await?.into_iter();
            return Ok(holds
                .map(|(tag, seconds)| vec![Value::Text(tag), Value::number(seconds)])
                .collect());
        }
        Listing::UserProperties => {
            let settings = pool.user_properties(name).await?.into_iter();
            let row = |setting: PropertySetting| {
                let property = setting.name.clone();
                let (value, source) = shown(name, setting)?;
                let source = source.map_or(Value::Nil, Value::Text);
                Some(vec![Value::Text(property), value, source])
            };
            return Ok(settings.filter_map(row).collect());
        }
    };
    Ok(names
        .into_iter()
        .map(|name| vec![Value::Text(name)])
        .collect())
}

/// Why something cannot be looked at.
fn refusal(error: DatasetError) -> Refusal {
    match errno(&error) {
        None => Refusal::Gone,
        Some(ENOENT) => Refusal::NotFound,
        Some(EINVAL) => Refusal::Invalid,
        Some(EIO) => Refusal::Io,
        Some(other) => Refusal::Other(other),
    }
}

/// The code that OpenZFS has for an error; `None` where the pool is left.
fn errno(error: &DatasetError) -> Option<i32> {
    Some(match error {
        DatasetError::Closed => return None,
        DatasetError::NotFound { .. } => ENOENT,
        DatasetError::Exists { .. }
        | DatasetError::HasChildren { .. }
        | DatasetError::HasClones { .. }
        | DatasetError::NewerSnapshots { .. } => EEXIST,
        DatasetError::InvalidName { name, .. } if name.len() >= NAME_MAX_BYTES => ENAMETOOLONG,
        DatasetError::InvalidName { .. }
        | DatasetError::InvalidProperty { .. }
        | DatasetError::WrongKind { .. }
        | DatasetError::NotAncestor { .. } => EINVAL,
        DatasetError::Busy { .. }
        | DatasetError::HasSnapshots { .. }
        | DatasetError::Held { .. }
        | DatasetError::LogWaits { .. }
        | DatasetError::LogPassedOver { .. } => EBUSY,
        DatasetError::NoSpace { .. } => ENOSPC,
        DatasetError::QuotaExceeded { .. } | DatasetError::LimitReached { .. } => EDQUOT,
        DatasetError::ReadOnly { .. } => EROFS,
        DatasetError::KeyNotLoaded { .. } | DatasetError::WrongKey { .. } => EACCES,
        DatasetError::OtherKey { .. } => EPERM,
        DatasetError::Unsupported { .. } => ENOTSUP,
        DatasetError::Again { .. } => EAGAIN,
        _ => EIO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Program {
        Program {
            script: text.as_bytes().to_vec(),
            arguments: Vec::new(),
            instructions_max: program::INSTRUCTIONS_MAX,
            memory_bytes_max: program::MEMORY_BYTES,
            is_read_only: false,
        }
    }

    /// Goal: a script that neither ends nor asks keeps nobody waiting, and changes nothing once it
    /// is left alone. Method: one that computes for longer than the patience, and asks before that
    /// and after it.
    #[tokio::test]
    async fn a_script_that_says_nothing_is_left_alone() {
        let (questions, asked) = mpsc::unbounded_channel();
        let (ended, outcome) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let asking = Asking {
                questions,
                has_left: Arc::default(),
            };
            let text = "zfs.exists('tank') for i = 1, 30000000 do end zfs.sync.snapshot('tank@x')";
            let outcome = program::run(&script(text), Box::new(asking));
            let _ = ended.send(outcome.clone());
            outcome
        });
        let mut requests = Vec::new();
        let answer = |request| {
            requests.push(request);
            std::future::ready(Ok(Answer::Exists(true)))
        };
        let patience = Duration::from_millis(1);
        let told = served(asked, outcome, patience, answer).await;
        assert_eq!(told, Some(Err(ProgramError::Stalled)));
        let ended = tokio::task::spawn_blocking(move || thread.join());
        let ended = ended.await.expect("joined").expect("it has ended");
        assert!(
            matches!(ended, Err(ProgramError::Cancelled(_))),
            "{ended:?}"
        );
        assert!(requests.len() <= 1, "{requests:?}");
    }

    /// Goal: only so many scripts run at a time, with those that were left alone. Method: places
    /// are taken until there is none, and given back.
    #[test]
    fn scripts_have_places() {
        let mut places: Vec<Place> = std::iter::from_fn(Place::take).collect();
        assert_eq!(places.len(), SCRIPTS_MAX);
        assert!(Place::take().is_none());
        places.pop();
        assert!(Place::take().is_some());
    }
}
