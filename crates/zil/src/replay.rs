//! Replay (`zil_replay`, module/zfs/zil.c): does again what a claimed log says.
//!
//! The head's replay sequence says how far it is. Changes of names fail or do something else when
//! they are done twice, so the transaction group of their (last) transaction notes them. Everything
//! else may take several transactions and may be done twice: it is noted once it is done.
//!
//! A record that fails is tried once more when all objects without a name are freed and a
//! transaction group is over ([`ReplayTarget::settle`]). An object number may be given again as
//! soon as the dataset is written in which it became free, and be logged before the uberblock is: a
//! crash between them leaves a log that makes an object which the last group still has, with its
//! name or in the delete queue. If the record fails again, replay ends with an error, the owner of
//! the log is told, and the log stays as it is, from that record on. Until it is replayed nothing
//! may change the dataset ([`Zil::forbids_changes`]). An administrator may have such records left
//! out ([`Zil::leave_out_unreplayable`]).
//!
//! # Damage
//! A record whose object cannot be changed, because a block that the change needs is damaged for
//! good, is left out with a message, and replay goes on: it would fail at each import, and nothing
//! but what is lost already is lost with it (`zil_replay_error` has OpenZFS drop all records behind
//! it as well). The block is in the pool's error log by then, as every block is that cannot be
//! read. While a device is missing, damage is not for good, and the log stays.
//!
//! Records behind a change of names that was left out may rely on it: a name may still belong to
//! what was to be renamed, a number to what was to be removed. So records about its directories, or
//! about the object that it was to make, are left out too.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use device::BoxFuture;
use format::{Endian, FormatError, LogBody, LogKind, Txg, ZilSequence};
use object::ObjectError;
use vdev::VdevError;
use zio::ZioError;

use crate::ZilError;
use crate::log::{Inherited, Replaying, Shared, Zil};
use crate::walk::{Chain, End, RawRecord, read_data};

/// A record to be replayed.
#[derive(Debug, Clone)]
pub struct ReplayRecord {
    /// What kind of change it is about.
    pub kind: LogKind,
    /// Whether names are compared without regard to case.
    pub case_insensitive: bool,
    /// Transaction group of the change.
    pub txg: Txg,
    /// Number of the record.
    pub sequence: u64,
    /// Byte order of `body`.
    pub endian: Endian,
    /// The record after its common header; see [`Self::decoded`].
    pub body: Bytes,
    /// The data of a write that is elsewhere on disk (`lr_blkptr`).
    pub data: Option<Bytes>,
}

impl ReplayRecord {
    /// What the record says.
    ///
    /// # Errors
    /// [`FormatError`] when it is damaged or cut off.
    pub fn decoded(&self) -> Result<LogBody<'_>, FormatError> {
        LogBody::decode(&self.body, self.kind, self.endian)
    }
}

/// Error of a [`ReplayTarget`].
pub type ReplayError = Box<dyn std::error::Error + Send + Sync>;

/// Does again what a log record says: a filesystem or a volume. It works as for a user's request,
/// up to calling [`Zil::record`] in its transaction, which then notes what was replayed instead of
/// logging it.
pub trait ReplayTarget: Send + Sync {
    /// Does what the record says.
    fn replay<'a>(&'a self, record: ReplayRecord) -> BoxFuture<'a, Result<(), ReplayError>>;

    /// Frees at once what has no name any more, also what earlier records took the last name from:
    /// a record that failed is done again once that is synced, since it may give the same object
    /// numbers again. Does nothing where things are freed as soon as that is asked for.
    fn settle(&self) -> BoxFuture<'_, Result<(), ReplayError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Why a record was not replayed.
enum Failure {
    /// A block that it needs is damaged for good: replay goes on without it.
    Damage(ZilError),
    /// Anything else: replay ends.
    Other(ZilError),
}

/// What records that were left out would have changed.
#[derive(Default)]
struct LeftOut {
    objects: BTreeSet<u64>,
    records: u64,
}

impl LeftOut {
    /// Whether a record relies on one that was left out.
    fn concerns(&self, record: &RawRecord) -> bool {
        concerned(record).any(|object| self.objects.contains(&object))
    }

    fn add(&mut self, record: &RawRecord) {
        self.records += 1;
        if !record.kind.is_out_of_order() {
            self.objects.extend(concerned(record));
            self.objects.extend(made(record));
        }
    }
}

/// The objects that a record is about and relies on.
fn concerned(record: &RawRecord) -> impl Iterator<Item = u64> {
    let second = record.kind.is_about_two().then_some(1);
    let words = [Some(0), second].into_iter().flatten();
    words.filter_map(|word| record.object(word))
}

/// The object that a record makes.
fn made(record: &RawRecord) -> Option<u64> {
    let makes = record.kind.makes_object();
    makes.then(|| record.object(1)).flatten()
}

/// Whether an error is that of a block of which no good copy is left, devices that are missing
/// aside.
fn is_damage(error: &(dyn Error + 'static)) -> bool {
    let of_pool = |error: &ZioError| {
        matches!(
            error,
            ZioError::Checksum { .. }
                | ZioError::Unreadable { .. }
                | ZioError::Corrupt { .. }
                | ZioError::Authentication { .. }
                | ZioError::BadPointer { .. }
                | ZioError::Vdev(VdevError::Format(_))
        )
    };
    let of_object = |error: &ObjectError| match error {
        ObjectError::Zio(error) => of_pool(error),
        ObjectError::Format { .. } | ObjectError::Damaged { .. } => true,
        _ => false,
    };
    let mut next = Some(error);
    while let Some(error) = next {
        let found = error.downcast_ref().is_some_and(of_pool)
            || error.downcast_ref().is_some_and(of_object);
        if found {
            return true;
        }
        next = error.source();
    }
    false
}

/// Ends the replaying state however replay ends.
struct Replay<'a>(&'a Shared);

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        *self.0.replaying.lock() = Replaying::No;
    }
}

impl Zil {
    /// Replays such a log and lets go of it. Returns how many records were replayed. Until it is
    /// done nothing but the target may change the dataset.
    ///
    /// # Errors
    /// [`ZilError::Record`] when a record cannot be replayed, [`ZilError::Log`] when one cannot be
    /// read: the log stays, and what was replayed before it is kept. [`ZilError::Zio`] when the
    /// pool fails.
    pub async fn replay(&self, target: &dyn ReplayTarget) -> Result<u64, ZilError> {
        let shared = &self.shared;
        if !self.needs_replay() {
            return Ok(0);
        }
        // What was freed before must be free (`zil_replay`).
        shared.txgs.sync().await?;
        let replay = Replay(shared);
        let count = match shared.replay_records(target).await {
            Ok(count) => count,
            Err(error) => {
                if matches!(error, ZilError::Record { .. } | ZilError::Log { .. }) {
                    shared.owner.not_replayed(&error);
                }
                return Err(error);
            }
        };
        // Still replaying, so that nothing is logged while the chain goes away.
        shared.destroy_inherited().await?;
        drop(replay);
        Ok(count)
    }

    /// Lets go of a log that an import passed over, without replaying it: what it promised is lost.
    /// Of its blocks those are freed that the dataset's root is sure to have. Does nothing to other
    /// logs.
    ///
    /// # Errors
    /// As [`Self::close`].
    pub async fn discard_unclaimed(&self) -> Result<(), ZilError> {
        if self.is_unclaimed() {
            tracing::error!(
                dataset = self.shared.owner.name(),
                "an intent log that an import passed over is discarded without being replayed"
            );
            self.shared.destroy_inherited().await?;
        }
        Ok(())
    }
}

impl Shared {
    fn log_error(&self, reason: String) -> ZilError {
        ZilError::Log {
            name: self.owner.name(),
            reason,
        }
    }

    async fn replay_records(&self, target: &dyn ReplayTarget) -> Result<u64, ZilError> {
        let pipeline = self.objset.pipeline().clone();
        let header = self.objset.zil_header();
        let mut chain = Chain::decrypting(&pipeline, &header);
        let mut count = 0;
        let mut left_out = LeftOut::default();
        let leaves_out = self.leaves_out.load(Ordering::Acquire);
        while chain.pointer().is_some() {
            let records = match chain.read().await {
                Ok(records) => records,
                Err(End::Normal) => break,
                Err(End::Unreadable(error)) if leaves_out => {
                    tracing::error!(
                        dataset = self.owner.name(),
                        %error,
                        "the rest of the intent log is left out: it cannot be read"
                    );
                    break;
                }
                Err(End::Unreadable(error)) => {
                    let reason = format!("it cannot be read to its end: {error}");
                    return Err(self.log_error(reason));
                }
            };
            for record in records {
                if record.sequence <= header.replay_sequence || record.txg < header.claim_txg {
                    continue;
                }
                let name = || self.owner.name();
                let (sequence, kind) = (record.sequence, record.kind.code());
                if left_out.concerns(&record) {
                    tracing::error!(
                        dataset = name(),
                        sequence,
                        kind,
                        "a record of the intent log is left out: it follows one that was"
                    );
                    left_out.add(&record);
                    continue;
                }
                match self.replay_record(target, &record).await {
                    Ok(done) => {
                        count += u64::from(done);
                        if let Some(made) = made(&record) {
                            left_out.objects.remove(&made);
                        }
                    }
                    Err(Failure::Damage(error)) => {
                        tracing::error!(
                            dataset = name(),
                            sequence,
                            kind,
                            %error,
                            "a record of the intent log is left out: what it changes is damaged"
                        );
                        left_out.add(&record);
                    }
                    Err(Failure::Other(error))
                        if leaves_out && matches!(error, ZilError::Record { .. }) =>
                    {
                        tracing::error!(%error, "the record is left out, as it was asked for");
                        left_out.add(&record);
                    }
                    Err(Failure::Other(error)) => return Err(error),
                }
            }
        }
        if left_out.records > 0 {
            tracing::error!(
                dataset = self.owner.name(),
                records = left_out.records,
                "not all synchronous writes could be replayed; see 'zpool status -v' for damaged \
                 blocks"
            );
        }
        debug_assert_eq!(self.chain.lock().inherited, Inherited::Unreplayed);
        Ok(count)
    }

    /// Replays one record; says whether there was anything to do.
    async fn replay_record(
        &self,
        target: &dyn ReplayTarget,
        record: &RawRecord,
    ) -> Result<bool, Failure> {
        let told = |what: &dyn std::fmt::Display| ZilError::Record {
            name: self.owner.name(),
            sequence: record.sequence,
            kind: record.kind,
            reason: what.to_string(),
        };
        let failed = |error: &(dyn Error + 'static)| {
            let is_lasting = || {
                let leaves = self.objset.pipeline().tree().leaves();
                leaves
                    .iter()
                    .all(|vdev| vdev.leaf().is_some_and(|leaf| leaf.is_readable()))
            };
            match is_damage(error) && is_lasting() {
                true => Failure::Damage(told(&error)),
                false => Failure::Other(told(&error)),
            }
        };
        if matches!(record.kind, LogKind::Commit | LogKind::Unknown(_)) {
            return Err(Failure::Other(told(&"a newer release wrote it")));
        }
        let repeatable = record.kind.is_out_of_order();
        let object = record.object(0).unwrap_or(0);
        // It may be gone since: that is in order.
        let is_gone = async || match self.objset.hold(object.into()).await {
            Ok(_) => Ok(false),
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(failed(&error)),
        };
        if repeatable && is_gone().await? {
            return Ok(false);
        }
        let mut data = None;
        if let Some((pointer, true)) = record.write_pointer() {
            let place = ZilSequence::from_checksum(self.objset.zil_header().log.checksum());
            let read = read_data(self.objset.pipeline(), record, &pointer, place.objset);
            data = Some(read.await.map_err(|error| failed(&error))?);
        }
        let record = ReplayRecord {
            kind: record.kind,
            case_insensitive: record.case_insensitive,
            txg: record.txg,
            sequence: record.sequence,
            endian: record.endian,
            body: record.body.clone(),
            data,
        };
        *self.replaying.lock() = if repeatable {
            Replaying::Repeatable
        } else {
            Replaying::Named(record.sequence)
        };
        let sequence = record.sequence;
        if let Err(error) = target.replay(record.clone()).await {
            let dataset = self.owner.name();
            tracing::debug!(dataset, sequence, %error, "a record is replayed again after a txg");
            if let Err(error) = target.settle().await {
                match failed(&*error) {
                    Failure::Damage(error) => tracing::warn!(%error, "not all is freed"),
                    other => return Err(other),
                }
            }
            let synced = self.txgs.sync().await;
            synced.map_err(|error| Failure::Other(error.into()))?;
            if repeatable && is_gone().await? {
                return Ok(false);
            }
            target
                .replay(record)
                .await
                .map_err(|error| failed(&*error))?;
        }
        if repeatable {
            // All its transactions are of this txg or of those before.
            let txg = self.txgs.open_txg();
            self.chain.lock().replayed.insert(txg, sequence);
        }
        Ok(true)
    }
}
