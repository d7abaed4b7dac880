//! Records that are not in the log yet: per txg, in order, with what belongs to one object only
//! kept apart until somebody asks for that object (`itxs_t`, `zil_itx_assign`,
//! `zil_async_to_sync`; module/zfs/zil.c).
//!
//! # Data of writes
//! A write's data is kept with its record from the moment it is made: whole blocks by reference
//! (they are the object's own dirty blocks), parts of blocks as copies. So what goes into the log
//! is what the operation wrote, whatever happened to the object since; a block that is written
//! in part again after that is copied by the object layer, not changed under us.
//!
//! # Bounds
//! An object with more than [`OBJECT_BYTES_MAX`] waiting in one txg, or a txg with more than
//! [`TXG_BYTES_MAX`], *overflows*: its records are dropped, and whoever wants them durable waits
//! for the txg. Logging so much would cost more than that: it would be written twice.
//!
//! Everything of a txg is forgotten when the txg is on disk.

use std::collections::BTreeMap;

use bytes::Bytes;
use format::{LogKind, ObjectId, Txg};
use tokio::sync::oneshot;
use zio::ZioError;

/// Bytes of one object that wait in one txg, at most.
pub(crate) const OBJECT_BYTES_MAX: u64 = 16 << 20;
/// Bytes that wait in one txg, at most.
pub(crate) const TXG_BYTES_MAX: u64 = 128 << 20;
/// Bytes that are written to the log at once, at most: more waits for the txg.
pub(crate) const BATCH_BYTES_MAX: u64 = 64 << 20;
/// What an entry takes besides its data.
const ENTRY_BYTES: u64 = 128;

/// A record that waits.
#[derive(Debug)]
pub(crate) struct Entry {
    pub kind: LogKind,
    pub txg: Txg,
    pub object: ObjectId,
    pub body: EntryBody,
}

/// What it says.
#[derive(Debug)]
pub(crate) enum EntryBody {
    /// As stored, after the common header.
    Encoded(Bytes),
    /// A write and its data.
    Write {
        offset_bytes: u64,
        length_bytes: u64,
        data: Vec<Bytes>,
    },
    /// Several of one txg, which a crash must not tear apart: a log block has all of them, and
    /// none of their writes is cut.
    Together(Vec<Entry>),
    /// Dropped: the txg has to be waited for.
    Overflow,
}

impl Entry {
    /// Memory that it takes, and roughly room in the log.
    pub fn bytes(&self) -> u64 {
        ENTRY_BYTES
            + match &self.body {
                EntryBody::Encoded(body) => body.len() as u64,
                EntryBody::Write { length_bytes, .. } => *length_bytes,
                EntryBody::Together(entries) => entries.iter().map(Entry::bytes).sum(),
                EntryBody::Overflow => 0,
            }
    }
}

/// Records of one object in one txg.
#[derive(Debug, Default)]
struct ObjectRecords {
    entries: Vec<Entry>,
    bytes: u64,
    overflown: bool,
}

/// Records of one txg.
#[derive(Debug, Default)]
struct TxgRecords {
    ordered: Vec<Entry>,
    objects: BTreeMap<u64, ObjectRecords>,
    bytes: u64,
    overflown: bool,
}

impl TxgRecords {
    /// Appends the records of an object to those in order: behind, so that the object's creation
    /// comes first.
    fn select(&mut self, txg: Txg, object: u64) {
        if let Some(records) = self.objects.remove(&object) {
            self.append(txg, object, records);
        }
    }

    fn append(&mut self, txg: Txg, object: u64, mut records: ObjectRecords) {
        if records.overflown {
            self.ordered.push(Entry {
                kind: LogKind::Commit,
                txg,
                object: ObjectId::new(object),
                body: EntryBody::Overflow,
            });
        } else {
            self.ordered.append(&mut records.entries);
        }
    }

    fn overflow(&mut self) {
        *self = TxgRecords {
            overflown: true,
            ..TxgRecords::default()
        };
    }
}

/// Somebody who waits for a commit.
pub(crate) type Ticket = oneshot::Sender<Result<(), ZioError>>;

/// What a round of the writer is about.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// In the order in which they must be in the log.
    pub entries: Vec<Entry>,
    /// This txg has to be waited for: records of it (and of those before) are not here.
    pub wait: Option<Txg>,
    /// Who waits.
    pub tickets: Vec<Ticket>,
}

impl Batch {
    /// Drops what is on disk anyway.
    pub fn forget(&mut self, synced: Txg) {
        self.entries.retain(|entry| entry.txg > synced);
    }
}

/// All that waits.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    txgs: BTreeMap<Txg, TxgRecords>,
    pub tickets: Vec<Ticket>,
    /// A writer is at work, or about to be.
    pub writing: bool,
    /// Records up to this txg were lost on their way to the log, or never kept: nobody is told
    /// that they are durable before this txg is on disk.
    pub barrier: Txg,
}

impl Pending {
    /// Adds a record, after all that is recorded of its object so far if it `pulls`.
    pub fn admit(&mut self, entry: Entry, ordered: bool, pulls: bool) {
        if pulls {
            self.select(entry.object);
        }
        self.add(entry, ordered);
    }

    /// Adds a record.
    pub fn add(&mut self, entry: Entry, ordered: bool) {
        let txg = entry.txg;
        let object = entry.object.get();
        let records = self.txgs.entry(txg).or_default();
        if records.overflown {
            return;
        }
        let bytes = entry.bytes();
        if ordered {
            records.ordered.push(entry);
            records.bytes += bytes;
        } else {
            let list = records.objects.entry(object).or_default();
            if list.overflown {
                return;
            }
            if matches!(entry.body, EntryBody::Overflow) || list.bytes + bytes > OBJECT_BYTES_MAX {
                records.bytes -= list.bytes;
                *list = ObjectRecords {
                    overflown: true,
                    ..ObjectRecords::default()
                };
                return;
            }
            list.entries.push(entry);
            list.bytes += bytes;
            records.bytes += bytes;
        }
        if records.bytes > TXG_BYTES_MAX {
            records.overflow();
        }
    }

    /// What is recorded of an object (zero: of all) will be written with the next batch.
    pub fn select(&mut self, object: ObjectId) {
        for (txg, records) in &mut self.txgs {
            if !object.is_zero() {
                records.select(*txg, object.get());
            } else {
                for (object, list) in std::mem::take(&mut records.objects) {
                    records.append(*txg, object, list);
                }
            }
        }
    }

    /// Whether anything is to be written with the next batch.
    pub fn has_selected(&self) -> bool {
        self.txgs
            .values()
            .any(|records| records.overflown || !records.ordered.is_empty())
    }

    /// Whether nothing is recorded at all.
    pub fn is_empty(&self) -> bool {
        self.txgs.is_empty()
    }

    /// Takes what is to be written, and who waits for it.
    pub fn take(&mut self) -> Batch {
        let mut batch = Batch {
            tickets: std::mem::take(&mut self.tickets),
            ..Batch::default()
        };
        let mut bytes = 0;
        for (txg, records) in &mut self.txgs {
            if records.overflown {
                // Stays so: what is recorded in this txg from now on must wait for it as well.
                batch.wait = Some(*txg);
                continue;
            }
            for entry in records.ordered.drain(..) {
                records.bytes = records.bytes.saturating_sub(entry.bytes());
                if matches!(entry.body, EntryBody::Overflow) {
                    batch.wait = Some(*txg);
                } else {
                    bytes += entry.bytes();
                    batch.entries.push(entry);
                }
            }
        }
        if bytes > BATCH_BYTES_MAX {
            batch.wait = batch.entries.last().map(|entry| entry.txg).max(batch.wait);
        }
        if let Some(wait) = batch.wait {
            batch.forget(wait);
        }
        batch
    }

    /// The txg is on disk: forgets everything up to it.
    pub fn clean(&mut self, synced: Txg) {
        self.txgs = self.txgs.split_off(&synced.next());
    }

    /// Memory that the records take.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.txgs.values().map(|records| records.bytes).sum()
    }
}
