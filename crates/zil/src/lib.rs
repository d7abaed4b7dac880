//! The intent log (ZIL): what makes synchronous writes durable before their transaction group is.
//!
//! # What it is for
//! A transaction group takes seconds; an fsync must not. So every change is also noted as a record,
//! in memory (`pending`). A commit writes the records that matter to it into the dataset's log on
//! disk, a chain of blocks, and returns. After a crash, import *claims* the chain's blocks
//! ([`claim`]), and opening the dataset *replays* the records ([`Zil::replay`]). What a transaction
//! group has made durable is dropped from the log without ever having been read.
//!
//! # Layout
//! Blocks and records are described in [`format`]'s `zil`. The head ([`format::ZilHeader`]) is in
//! the object set's root block and says where the chain starts. Each block has the pointer of the
//! next one, which is allocated beforehand, so that a commit needs one durable write; where a
//! pointer leads to anything but the next block, the log ends.
//!
//! # Group commit
//! ```text
//!   commit -> ticket -+                      +-> one block, durably ----------> answers
//!   commit -> ticket -+-> writer: one batch -+-> blocks, in parallel -> flush -> answers
//!   commit -> ticket -+   (meanwhile the next batch gathers)
//! ```
//! One batch is written at a time, by a task that lives as long as somebody waits. Commits that
//! arrive while it writes form the next batch. A ticket is answered once every record made before
//! it is durable. Dropping a commit's future changes nothing for the others.
//!
//! A batch of one block makes that block durable and nothing else ([`vdev::IoContext::durable`]):
//! the blocks before it are so already, what its records say is in it, and blocks that it tells of
//! (clones) are of groups that are on disk. Records are copied once, into the memory that the block
//! is written from; link, encryption and checksum are made there.
//!
//! # Writes
//! Data goes into the log's blocks (`WR_COPIED`), cut into records where blocks end, whatever its
//! size. A log ends between two blocks, so what a crash must not tear apart, as the records of an
//! extended attribute, is in one block ([`Zil::record_together`]). There are no indirect writes
//! (`WR_INDIRECT`, `dmu_sync`): they would need blocks that are written before their transaction
//! group, which the object layer cannot take over. What they are good for, not writing much data
//! twice, is done otherwise: where more than 16 MiB of an object, or 64 MiB in all, would have to
//! be logged, the commit waits for the transaction group. Logs of OpenZFS that have indirect writes
//! are replayed.
//!
//! # Room
//! Blocks go to log devices, or among the data. There a log takes one only if everything under way
//! still finds room beside it, together with most of what is kept back for the pool's own writes
//! ([`LogOwner::has_room`]); otherwise the commit waits for the transaction group. What logs hold
//! counts against writers, and a replay may use what deletes may, so that what fitted before a
//! crash fits after it.
//!
//! # The life of a chain
//! It is created by the first commit, which waits for its transaction group anyway (so that the
//! head is on disk before anybody relies on the chain). Blocks whose records' groups are all on
//! disk are freed in the sync of a group, and the head moves on ([`Zil::sync`]). The chain is given
//! up, by freeing all of it in one group, on close, after a replay, and whenever a block could not
//! be allocated or written: then the commit waits for that group, and a later commit starts a new
//! chain with new guids. So nothing is ever acknowledged behind a block that may be bad.
//!
//! # Devices that miss a part of it
//! Where a log block should be and is not, the log ends. So a device that missed a block must not
//! be asked alone: a commit counts only when all devices of the block's vdev have it, except those
//! that the pool's state on disk says lack its group ([`vdev::Topology::tells_of`]). A device that
//! fails is on record with the next group, for which the commit waits. Import refuses a log whose
//! end only such devices show, or that other devices show while one cannot be read.
//!
//! # What a crash leaves
//! * In a batch: nothing of it was acknowledged; the chain may have a prefix of it.
//! * A block is allocated in a group and linked from the block before it, whose write ends before
//!   that group does (`sync` waits for it). So the blocks that the last group has as allocated and
//!   those that can be reached are the same; those allocated later are claimed.
//! * During replay: the head says how far it is, in the group of the replayed record itself where
//!   doing it again would fail (changes of names), and after it where doing it again is harmless.
//!
//! # Locks
//! `pending` and `chain` are held for a few instructions each, never both. `writer` is an async
//! lock, held by whoever changes the chain (a batch, close, replay) across its waits, for
//! transaction groups too. The sync loop takes only the first two, and waits only for device writes
//! that were issued; so nobody who holds `writer` waits for it in a circle. A commit must not be
//! awaited while a `Tx` is held.

#![forbid(unsafe_code)]

mod blocks;
mod error;
mod log;
mod pending;
mod record;
mod replay;
#[cfg(test)]
mod tests;
mod walk;
mod writer;

pub use error::ZilError;
pub use log::{ChainChange, LogOwner, LogSettings, LogStats, SyncMode, Zil};
pub use record::{LogContent, LogRecord};
pub use replay::{ReplayError, ReplayRecord, ReplayTarget};
pub use walk::{
    Claimed, awaits_replay, claim, free_chain, free_until, is_cut_off, is_far_ahead, visit_log,
};
