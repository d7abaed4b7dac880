//! Replay (`zil_replay`, module/zfs/zil.c): does again what a log says that was claimed.
//!
//! The head's replay sequence says how far it is. Changes of names fail or do something else when done
//! twice, so the txg of their (last) transaction notes them. Everything else may take several
//! transactions and may be done twice: it is noted when it is done.
//!
//! A record that fails is tried once more when all objects without a name are freed and a txg is over
//! ([`ReplayTarget::settle`]). For an object number may be given again as soon as the dataset is written in which it
//! became free, and be logged before the uberblock is: a crash between them leaves a log that makes an object which the
//! last txg still has, with its name or in the delete queue. Then replay ends with an error and the log stays as it is,
//! from that record on.

use format::ZilSequence;

use super::blocks::TX_WRITE;
use super::walk::{Chain, End, RawRecord, read_data};
use super::{Inherited, ReplayRecord, ReplayTarget, Replaying, Shared, Zil};
use crate::DatasetError;

/// Types that say what was done to one object and are not in order with changes of names
/// (`TX_OOO`): WRITE, TRUNCATE, SETATTR, ACL_V0, ACL, WRITE2, SETSAXATTR, CLONE_RANGE.
const OUT_OF_ORDER: [u64; 8] = [9, 10, 11, 12, 13, 20, 21, 24];
/// The first type that is none (`TX_MAX_TYPE`).
const KINDS_END: u64 = 25;

/// Ends the replaying state however replay ends.
struct Replay<'a>(&'a Shared);

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        *self.0.replaying.lock() = Replaying::No;
    }
}

impl Zil {
    /// Replays such a log and lets go of it. Returns how many records were replayed. Until it is done
    /// nothing but the target may change the dataset.
    ///
    /// # Errors
    /// [`DatasetError::Log`] when a record cannot be replayed or read: the log stays, and what was
    /// replayed before it is kept. [`DatasetError::Pool`] when the pool fails.
    pub async fn replay(&self, target: &dyn ReplayTarget) -> Result<u64, DatasetError> {
        let shared = &self.shared;
        if !self.needs_replay() {
            return Ok(0);
        }
        // What was freed before must be free (`zil_replay`).
        shared.txgs.sync().await?;
        let replay = Replay(shared);
        let count = shared.replay_records(target).await?;
        // Still replaying, so that nothing is logged while the chain goes away.
        shared.destroy_inherited().await?;
        drop(replay);
        Ok(count)
    }

    /// Lets go of a log that waits to be replayed, without replaying it: what it promised is lost.
    ///
    /// # Errors
    /// As [`Self::close`].
    pub async fn discard(&self) -> Result<(), DatasetError> {
        if self.needs_replay() {
            tracing::warn!(
                dataset = (self.shared.name)(),
                "the intent log is discarded without being replayed"
            );
            self.shared.destroy_inherited().await?;
        }
        Ok(())
    }
}

impl Shared {
    fn log_error(&self, reason: String) -> DatasetError {
        DatasetError::Log {
            name: (self.name)(),
            reason,
        }
    }

    async fn replay_records(&self, target: &dyn ReplayTarget) -> Result<u64, DatasetError> {
        let pipeline = self.objset.pipeline().clone();
        let header = self.objset.zil_header();
        let mut chain = Chain::decrypting(&pipeline, &header);
        let mut count = 0;
        while chain.pointer().is_some() {
            let records = match chain.read().await {
                Ok(records) => records,
                Err(End::Normal) => break,
                Err(End::Unreadable(error)) => {
                    let reason = format!("it cannot be read to its end: {error}");
                    return Err(self.log_error(reason));
                }
            };
            for record in records {
                if record.sequence <= header.replay_sequence || record.txg < header.claim_txg {
                    continue;
                }
                if self.replay_record(target, &record).await? {
                    count += 1;
                }
            }
        }
        debug_assert_eq!(self.chain.lock().inherited, Inherited::Unreplayed);
        Ok(count)
    }

    /// Replays one record; says whether there was anything to do.
    async fn replay_record(
        &self,
        target: &dyn ReplayTarget,
        record: &RawRecord,
    ) -> Result<bool, DatasetError> {
        let failed = |what: &dyn std::fmt::Display| {
            self.log_error(format!(
                "record {} of kind {} cannot be replayed: {what}",
                record.sequence, record.kind
            ))
        };
        if record.kind == 0 || record.kind >= KINDS_END {
            return Err(failed(&"a newer release wrote it"));
        }
        let repeatable = OUT_OF_ORDER.contains(&record.kind);
        let object = record.word(0).unwrap_or(0) & (format::ObjectId::LIMIT - 1);
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
        if record.kind == TX_WRITE
            && let Some((pointer, true)) = record.write_pointer()
        {
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
            tracing::debug!(dataset = (self.name)(), sequence, %error, "a record is replayed again after a txg");
            target.settle().await.map_err(|error| failed(&error))?;
            self.txgs.sync().await?;
            if repeatable && is_gone().await? {
                return Ok(false);
            }
            target
                .replay(record)
                .await
                .map_err(|error| failed(&error))?;
        }
        if repeatable {
            // All its transactions are of this txg or of those before.
            let txg = self.txgs.open_txg();
            self.chain.lock().replayed.insert(txg, sequence);
        }
        Ok(true)
    }
}
