//! What went wrong with devices and blocks while the pool is open.
//!
//! The pipeline reports here. Errors are counted per vdev by the vdev tree itself; this keeps
//! the blocks of which no good copy is left, for `zpool status`. In a pool that is written they
//! wait here only until the next txg, which puts them into the logs on disk ([`crate::errlog`]); of
//! one that is only read they are forgotten with the import, and what the logs said at the import
//! is kept beside them.
//!
//! As in OpenZFS there are two lists: what is found while a scrub runs goes into the second, which
//! replaces the first when the scrub ends (`spa_errlog_rotate`, module/zfs/spa_errlog.c): what a
//! whole scrub did not find any more is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use format::Bookmark;
use format::{ErrorBookmark, Guid, ObjectId, Txg};
use parking_lot::Mutex;
use vdev::ErrorReport;

/// Damaged blocks that are remembered per list, at most.
pub const DAMAGED_MAX: usize = 100_000;

/// Errors of a device that are each told in the server's log.
const LOGGED_FIRST: u64 = 16;

/// Blocks by their place, with the txg in which they were written; zero where that is not known.
pub type Lost = BTreeMap<Bookmark, Txg>;

/// Blocks that are lost.
#[derive(Debug, Default)]
pub struct ErrorLog {
    lists: Mutex<Lists>,
    /// Errors of each device since the pool was opened, for the server's log only.
    logged: Mutex<BTreeMap<Guid, u64>>,
}

#[derive(Debug, Default)]
struct Lists {
    /// Not written to disk, but kept here until the pool is closed.
    read_only: bool,
    /// Of a pool that is only read: what its logs say.
    stored: Lost,
    /// Of a pool that is written: its logs.
    logs: Logs,
    scrubbing: bool,
    /// Not all that the scrub under way found was remembered.
    is_short: bool,
    pending: Pending,
    /// What the logs say in the form of feature `head_errlog`, which is about to be enabled.
    upgraded: Vec<(ObjectId, ErrorBookmark)>,
}

/// Logs on disk.
#[derive(Debug, Default, Clone, Copy)]
pub struct Logs {
    /// What was found before the last scrub, and since it ended.
    pub last: ObjectId,
    /// What the scrub under way found.
    pub scrub: ObjectId,
    /// Entries of both.
    pub count: u64,
    /// They cannot be read or written: nothing is done about them.
    pub is_broken: bool,
}

/// What is not in the logs on disk yet.
#[derive(Debug, Default)]
pub struct Pending {
    /// For the log of what is known since the last scrub.
    pub last: Lost,
    /// For the log of the scrub under way.
    pub scrub: Lost,
    /// A scrub ended: what it found is all there is.
    pub rotate: bool,
    /// Entries of blocks that nobody has any more, by dataset.
    pub gone: BTreeSet<(ObjectId, String)>,
    /// Blocks that were damaged and are right again.
    pub healed: BTreeSet<(Bookmark, Txg)>,
    /// What happened to datasets, in order.
    pub changes: Vec<Change>,
}

impl Pending {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
            && self.scrub.is_empty()
            && !self.rotate
            && self.gone.is_empty()
            && self.healed.is_empty()
            && self.changes.is_empty()
    }
}

/// What the logs, which are kept per live dataset, have to follow.
#[derive(Debug, Clone)]
pub enum Change {
    /// A live dataset is gone.
    Destroyed(ObjectId),
    /// A clone changed places with the filesystem that it was made from.
    Promoted {
        /// The promoted clone.
        new_head: ObjectId,
        /// The dataset that was live before.
        old_head: ObjectId,
        /// Transaction group of the snapshot that they have in common.
        origin_txg: Txg,
    },
    /// Feature `head_errlog` was enabled: the logs' form changes, with what is known of the blocks
    /// in them.
    Upgraded(Vec<(ObjectId, ErrorBookmark)>),
}

impl ErrorLog {
    /// How many damaged blocks are known; one that is in a log and was found again may count twice
    /// (`spa_approx_errlog_size`).
    pub fn count(&self) -> u64 {
        let lists = self.lists.lock();
        let Lists { pending, logs, .. } = &*lists;
        let stored = if pending.rotate { 0 } else { logs.count };
        stored + lists.known().len() as u64
    }

    /// The blocks that only this knows of, with what the logs of a pool that is only read say.
    pub fn known(&self) -> Lost {
        self.lists.lock().known()
    }

    /// Whether a scrub found everything anew, so that the first log says nothing any more.
    pub fn is_rotating(&self) -> bool {
        self.lists.lock().pending.rotate
    }

    /// Remembers a block.
    pub fn add(&self, bookmark: Bookmark, birth: Txg) {
        let mut lists = self.lists.lock();
        let pending = &lists.pending;
        let list = if lists.scrubbing || pending.rotate {
            &mut lists.pending.scrub
        } else {
            &mut lists.pending.last
        };
        if list.len() >= DAMAGED_MAX {
            lists.is_short = true;
            return;
        }
        let known = list.entry(bookmark).or_default();
        if !birth.is_zero() {
            *known = birth;
        }
    }

    /// Forgets what is in no log on disk yet (`zpool clear`): reads fail also while devices are
    /// away.
    pub fn clear(&self) {
        let mut lists = self.lists.lock();
        lists.pending.last.clear();
        lists.pending.scrub.clear();
    }

    /// A scrub begins.
    pub fn begin_scrub(&self) {
        let mut lists = self.lists.lock();
        lists.scrubbing = true;
        lists.is_short = false;
    }

    /// A scrub ended; when it was `whole`, what it found is all there is, unless that was too much
    /// to be remembered.
    pub fn end_scrub(&self, whole: bool) {
        let mut lists = self.lists.lock();
        lists.scrubbing = false;
        if !whole || std::mem::take(&mut lists.is_short) {
            return;
        }
        if lists.read_only {
            lists.stored.clear();
            lists.pending.last = std::mem::take(&mut lists.pending.scrub);
        } else {
            lists.pending.rotate = true;
        }
    }

    /// What the logs of a pool that is only read say.
    pub fn set_stored(&self, stored: Lost) {
        let mut lists = self.lists.lock();
        lists.read_only = true;
        lists.stored = stored;
    }

    /// The logs on disk are these now.
    pub fn set_logs(&self, logs: Logs) {
        self.lists.lock().logs = logs;
    }

    /// The logs on disk.
    pub fn logs(&self) -> Logs {
        self.lists.lock().logs
    }

    /// A log has entries of a block that nobody has any more.
    pub fn forget(&self, head: ObjectId, key: String) {
        let mut lists = self.lists.lock();
        if !lists.read_only && lists.pending.gone.len() < DAMAGED_MAX {
            lists.pending.gone.insert((head, key));
        }
    }

    /// A block that was damaged is right again, in every dataset that has it
    /// (`spa_remove_error`, module/zfs/spa_errlog.c).
    fn healed(&self, bookmark: Bookmark, birth: Txg) {
        let mut lists = self.lists.lock();
        let is_it = |other: &Bookmark, other_birth: Txg| {
            let there = |of: &Bookmark| (of.object, of.level, of.block_id);
            there(other) == there(&bookmark)
                && match other_birth.is_zero() {
                    true => other.objset == bookmark.objset,
                    false => other_birth == birth,
                }
        };
        let pending = &mut lists.pending;
        for list in [&mut pending.last, &mut pending.scrub] {
            list.retain(|other, other_birth| !is_it(other, *other_birth));
        }
        if !lists.read_only && lists.pending.healed.len() < DAMAGED_MAX {
            lists.pending.healed.insert((bookmark, birth));
        }
    }

    /// Something happened to a dataset in the txg that is being written.
    pub fn note(&self, change: Change) {
        let mut lists = self.lists.lock();
        // Without logs there is nothing to follow.
        if !(lists.logs.last.is_zero() && lists.logs.scrub.is_zero()) {
            lists.pending.changes.push(change);
        }
    }

    /// Feature `head_errlog` may be enabled soon: what the logs say in its form.
    pub fn prepare_upgrade(&self, entries: Vec<(ObjectId, ErrorBookmark)>) {
        self.lists.lock().upgraded = entries;
    }

    /// The feature was enabled in the txg that is being written.
    pub fn upgrade(&self) {
        let entries = std::mem::take(&mut self.lists.lock().upgraded);
        self.note(Change::Upgraded(entries));
    }

    /// Whether something waits to be written.
    pub fn has_pending(&self) -> bool {
        let lists = self.lists.lock();
        !(lists.read_only || lists.logs.is_broken || lists.pending.is_empty())
    }

    /// Takes what waits to be written.
    pub fn take(&self) -> Pending {
        std::mem::take(&mut self.lists.lock().pending)
    }

    /// The logs cannot be written: what was to be stays known until the pool is closed.
    pub fn give_up(&self, taken: Pending) {
        let mut lists = self.lists.lock();
        lists.logs.is_broken = true;
        lists.pending.last.extend(taken.last);
        lists.pending.scrub.extend(taken.scrub);
    }
}

impl Lists {
    fn known(&self) -> Lost {
        let mut out = if self.pending.rotate {
            Lost::new()
        } else {
            self.stored.clone()
        };
        for list in [&self.pending.last, &self.pending.scrub] {
            for (bookmark, birth) in list {
                let known = out.entry(*bookmark).or_default();
                if !birth.is_zero() {
                    *known = *birth;
                }
            }
        }
        out
    }
}

impl ErrorLog {
    /// Counts an error of a device for the server's log. A disk full of wrong data would fill that
    /// with a line per block: the first few are told, then each time that the number has doubled.
    fn worth_logging(&self, leaf: Guid) -> Option<u64> {
        let mut logged = self.logged.lock();
        let so_far = logged.entry(leaf).or_default();
        *so_far += 1;
        (*so_far <= LOGGED_FIRST || so_far.is_power_of_two()).then_some(*so_far)
    }

    /// Takes note of what went wrong.
    pub fn note_report(&self, report: &ErrorReport) {
        match report {
            ErrorReport::Data {
                bookmark,
                vdev,
                offset_bytes,
                birth,
            } => {
                tracing::error!(
                    ?bookmark, %vdev, offset_bytes, %birth, "no good copy of a block is left"
                );
                self.add(*bookmark, *birth);
            }
            ErrorReport::Healed { bookmark, birth } => {
                tracing::info!(?bookmark, %birth, "a damaged block was put right");
                self.healed(*bookmark, *birth);
            }
            ErrorReport::Checksum { leaf, io } => {
                if let Some(so_far) = self.worth_logging(*leaf) {
                    tracing::warn!(%leaf, so_far, ?io, "a device returned wrong data");
                }
            }
            ErrorReport::Device {
                leaf, io, message, ..
            } => {
                if let Some(so_far) = self.worth_logging(*leaf) {
                    tracing::warn!(%leaf, so_far, message, ?io, "a device failed");
                }
            }
            ErrorReport::Slow { leaf, io } => {
                if let Some(so_far) = self.worth_logging(*leaf) {
                    tracing::warn!(%leaf, so_far, ?io, "a device took long");
                }
            }
            ErrorReport::Deadman { leaf, io } => {
                tracing::error!(%leaf, ?io, "a device does not answer");
            }
            ErrorReport::State { leaf, from, to, .. } => {
                tracing::warn!(%leaf, %from, %to, "the state of a device changed");
            }
            _ => {}
        }
    }
}
