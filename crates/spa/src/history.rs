//! The pool's command history: a ring of records in a MOS object.
//!
//! Object `history` of the object directory, type `DMU_OT_SPA_HISTORY`, 128 KiB blocks. Its bonus
//! (`spa_history_phys_t`) is five little-endian 64-bit integers:
//!
//! | Offset | Field | Meaning |
//! |---|---|---|
//! | 0 | `sh_pool_create_len` | end of the first command's record: kept forever |
//! | 8 | `sh_phys_max_off` | bytes of the object that are used, at most |
//! | 16 | `sh_bof` | logical offset of the oldest record in the ring |
//! | 24 | `sh_eof` | logical offset after the newest record |
//! | 32 | `sh_records_lost` | records overwritten |
//!
//! Logical offsets grow for ever; beyond the create record they wrap around in the object. A record
//! is its length as a little-endian 64-bit integer, then an nvlist in native encoding.
//! Written in syncing context only, so a crash leaves the ring of the last synced transaction
//! group.
//!
//! The pool works without its history. What cannot be read or written of it is told in the log of
//! the process, and nothing else comes to harm (`spa_history_log_sync` leaves errors alone too); a
//! ring whose oldest record cannot be read begins anew. Texts end at their first zero byte, where
//! a reader in C would see their end, and after [`TEXT_BYTES_MAX`].
//!
//! Source: module/zfs/spa_history.c.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use dataset::{DatasetError, DslHooks, HistoryEvent};
use device::{BoxFuture, World};
use format::{NvEncoding, NvList, ObjectId, ObjectType};
use object::{NewObject, Object, ObjectError, ObjectSet, SyncContext, Zap};
use parking_lot::Mutex;
use zio::Tx;
use zio::pipeline::may_fail;

use crate::events::{Events, Sysevent};
use crate::participant::{Participant, Pass, Turn};
use crate::{Spa, directory};

/// Longest record that is believed, in bytes.
const RECORD_BYTES_MAX: u64 = 4 << 20;
/// What was asked of an ioctl, and answered (`ZPOOL_HIST_INPUT_NVL`, `ZPOOL_HIST_OUTPUT_NVL`,
/// include/sys/fs/zfs.h).
const INPUT: &str = "in_nvl";
const OUTPUT: &str = "out_nvl";
/// What was asked is left out of a record beyond so many bytes: one request may be about all
/// snapshots of a pool.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// Longest text of a record, in bytes (`HIS_MAX_RECORD_LEN` without the closing zero,
/// include/sys/fs/zfs.h).
const TEXT_BYTES_MAX: usize = 8192;
/// Where commands and requests come from, as OpenZFS says on Linux (`spa_history_zone`,
/// module/os/linux/zfs/spa_misc_os.c).
const ZONE: &str = "linux";
/// Size of the ring: 0.1 % of the pool, in these limits.
const RING_BYTES_MIN: u64 = 128 << 10;
const RING_BYTES_MAX: u64 = 1 << 30;
const BLOCK_BYTES: u32 = 128 << 10;

/// What a history record tells.
#[derive(Debug, Clone, PartialEq)]
pub enum HistoryWhat {
    /// A command that a person gave.
    Command(String),
    /// Something the pool did: event name, its text, txg, and the dataset when it is about one.
    Internal {
        /// Event: `create`, `snapshot`, `set`, ...
        event: String,
        /// Details.
        text: String,
        /// Transaction group.
        txg: u64,
        /// Dataset and its object number.
        dataset: Option<(String, u64)>,
    },
    /// A request to the pool that was fulfilled, by the name of OpenZFS's ioctl.
    Ioctl {
        /// `snapshot`, `destroy_snaps`, ...
        name: String,
        /// What was asked.
        input: Option<NvList>,
        /// What was answered.
        output: Option<NvList>,
    },
}

/// One record.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryRecord {
    /// Seconds since the epoch.
    pub time_s: u64,
    /// What happened.
    pub what: HistoryWhat,
    /// User id.
    pub who: Option<u64>,
    /// Zone.
    pub zone: Option<String>,
    /// Host name.
    pub host: Option<String>,
}

/// Cuts a text to what a record holds.
fn cut(text: &mut String) {
    let end = text.find('\0').unwrap_or(text.len());
    text.truncate(text.floor_char_boundary(end.min(TEXT_BYTES_MAX)));
}

impl HistoryWhat {
    /// Cuts what persons and other layers said to what a record holds.
    fn cut(&mut self) {
        match self {
            Self::Command(command) => cut(command),
            Self::Internal {
                event,
                text,
                dataset,
                ..
            } => {
                cut(event);
                cut(text);
                if let Some((name, _)) = dataset {
                    cut(name);
                }
            }
            Self::Ioctl {
                name,
                input,
                output,
            } => {
                cut(name);
                for list in [input, output] {
                    let packed = list.as_ref().map(|list| list.encode(NvEncoding::Native));
                    if !matches!(packed, Some(Ok(packed)) if packed.len() <= INPUT_BYTES_MAX) {
                        *list = None;
                    }
                }
            }
        }
    }
}

impl HistoryRecord {
    /// Pairs of an event about it (`ZFS_EV_HIST_*`, include/sys/fs/zfs.h).
    fn to_event(&self) -> NvList {
        let mut pairs = NvList::new();
        let text = |pairs: &mut NvList, name: &str, value: Option<&str>| {
            if let Some(value) = value {
                pairs.push(name, value);
            }
        };
        text(&mut pairs, "history_zone", self.zone.as_deref());
        text(&mut pairs, "history_hostname", self.host.as_deref());
        if let HistoryWhat::Internal {
            event,
            text: details,
            txg,
            dataset,
        } = &self.what
        {
            let name = dataset.as_ref().map(|(name, _)| name.as_str());
            text(&mut pairs, "history_dsname", name);
            text(&mut pairs, "history_internal_str", Some(details));
            text(&mut pairs, "history_internal_name", Some(event));
            if let Some((_, id)) = dataset {
                pairs.push("history_dsid", *id);
            }
            pairs.push("history_txg", *txg);
        }
        pairs.push("history_time", self.time_s);
        if let Some(who) = self.who {
            pairs.push("history_who", who);
        }
        pairs
    }

    fn to_nvlist(&self) -> NvList {
        let mut list = NvList::new();
        match &self.what {
            HistoryWhat::Command(command) => {
                list.set("history command", command.as_str());
            }
            HistoryWhat::Internal {
                event,
                text,
                txg,
                dataset,
            } => {
                if let Some((name, id)) = dataset {
                    list.set("dsname", name.as_str());
                    list.set("dsid", *id);
                }
                list.set("history internal str", text.as_str());
                list.set("internal_name", event.as_str());
                list.set("history txg", *txg);
            }
            HistoryWhat::Ioctl {
                name,
                input,
                output,
            } => {
                list.set("ioctl", name.as_str());
                for (key, value) in [(INPUT, input), (OUTPUT, output)] {
                    if let Some(value) = value {
                        list.set(key, value.clone());
                    }
                }
            }
        }
        if let Some(zone) = &self.zone {
            list.set("history zone", zone.as_str());
        }
        if let Some(who) = self.who {
            list.set("history who", who);
        }
        list.set("history time", self.time_s);
        if let Some(host) = &self.host {
            list.set("history hostname", host.as_str());
        }
        list
    }

    fn from_nvlist(list: &NvList) -> Self {
        let text = |name: &str| {
            list.string_bytes(name)
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let number = |name: &str| list.u64(name);
        let what = if let Some(command) = text("history command") {
            HistoryWhat::Command(command)
        } else if let Some(name) = text("ioctl") {
            HistoryWhat::Ioctl {
                name,
                input: list.list(INPUT).cloned(),
                output: list.list(OUTPUT).cloned(),
            }
        } else {
            HistoryWhat::Internal {
                // Old releases wrote a number instead of a name.
                event: text("internal_name")
                    .or_else(|| Some(format!("event {}", number("history internal event")?)))
                    .unwrap_or_default(),
                text: text("history internal str").unwrap_or_default(),
                txg: number("history txg").unwrap_or(0),
                dataset: text("dsname").map(|name| (name, number("dsid").unwrap_or(0))),
            }
        };
        Self {
            time_s: number("history time").unwrap_or(0),
            what,
            who: number("history who"),
            zone: text("history zone"),
            host: text("history hostname"),
        }
    }
}

/// `spa_history_phys_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ring {
    create_len: u64,
    max_off: u64,
    bof: u64,
    eof: u64,
    lost: u64,
}

impl Ring {
    const BYTES: usize = 40;

    fn decode(raw: &[u8]) -> Option<Self> {
        let field = |index: usize| {
            raw.get(index * 8..index * 8 + 8)
                .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
        };
        let ring = Self {
            create_len: field(0)?,
            max_off: field(1)?,
            bof: field(2)?,
            eof: field(3)?,
            lost: field(4)?,
        };
        let sound = ring.create_len < ring.max_off
            && ring.bof <= ring.eof
            && ring.create_len <= ring.bof
            && ring.eof - ring.bof <= ring.max_off;
        sound.then_some(ring)
    }

    fn encode(&self) -> Vec<u8> {
        [self.create_len, self.max_off, self.bof, self.eof, self.lost]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    /// Where a logical offset lies in the object (`spa_history_log_to_phys`).
    fn physical(&self, logical: u64) -> u64 {
        let ring = self.max_off - self.create_len;
        let offset = logical.saturating_sub(self.create_len) % ring;
        if logical < self.create_len {
            logical
        } else {
            self.create_len + offset
        }
    }

    fn room(&self) -> u64 {
        self.max_off - self.create_len - (self.eof - self.bof)
    }

    /// The pieces of the object that `length` bytes at `logical` take.
    fn pieces(&self, logical: u64, length: u64) -> Vec<(u64, u64)> {
        let start = self.physical(logical);
        let first = length.min(self.max_off - start);
        let mut pieces = vec![(start, first)];
        if first < length {
            pieces.push((self.create_len, length - first));
        }
        pieces
    }
}

/// Decodes bytes as a ring's bonus: for fuzzers.
#[doc(hidden)]
pub fn decode_for_fuzzing(data: &[u8]) {
    if let Some(ring) = Ring::decode(data) {
        assert_eq!(ring.encode(), data[..ring.encode().len()]);
    }
}

fn damaged(object: ObjectId, detail: &str) -> ObjectError {
    ObjectError::Damaged {
        object,
        structure: "spa_history_phys_t",
        detail: detail.to_owned(),
    }
}

/// The history object.
pub struct History {
    object: Object,
}

impl History {
    /// Opens the history of a pool that has one.
    pub async fn open(mos: &Arc<ObjectSet>, id: ObjectId) -> Result<Self, ObjectError> {
        Ok(Self {
            object: mos.hold(id).await?,
        })
    }

    /// Creates an empty history for a pool of `pool_bytes`.
    pub async fn create(
        mos: &Arc<ObjectSet>,
        tx: &Tx,
        pool_bytes: u64,
    ) -> Result<Self, ObjectError> {
        let ring = Ring {
            create_len: 0,
            max_off: (pool_bytes / 1000).clamp(RING_BYTES_MIN, RING_BYTES_MAX),
            bof: 0,
            eof: 0,
            lost: 0,
        };
        let new = NewObject::new(ObjectType::SPA_HISTORY)
            .with_block_bytes(BLOCK_BYTES)
            .with_bonus(ObjectType::SPA_HISTORY_OFFSETS, ring.encode());
        let object = mos.allocate(tx, new).await?;
        let zap = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        zap.add_u64(tx, directory::HISTORY, object.id().get())
            .await?;
        Ok(Self { object })
    }

    fn ring(&self) -> Result<Ring, ObjectError> {
        let bonus = self.object.bonus();
        if bonus.len() < Ring::BYTES {
            return Err(damaged(self.object.id(), "the bonus is too short"));
        }
        Ring::decode(&bonus)
            .ok_or_else(|| damaged(self.object.id(), "offsets contradict each other"))
    }

    async fn read(&self, ring: &Ring, logical: u64, length: u64) -> Result<Vec<u8>, ObjectError> {
        let mut out = Vec::with_capacity(length as usize);
        for (start, piece) in ring.pieces(logical, length) {
            out.extend_from_slice(&self.object.read_bytes(start, piece as usize).await?);
        }
        Ok(out)
    }

    async fn record_len(&self, ring: &Ring, logical: u64) -> Result<u64, ObjectError> {
        let raw = self.read(ring, logical, 8).await?;
        Ok(u64::from_le_bytes(
            raw.try_into().expect("eight bytes were read"),
        ))
    }

    /// Appends a record. Syncing context only.
    pub async fn append(&self, tx: &Tx, record: &HistoryRecord) -> Result<(), ObjectError> {
        let mut ring = self.ring()?;
        let body = record
            .to_nvlist()
            .encode(NvEncoding::Native)
            .map_err(|source| ObjectError::Format {
                object: self.object.id(),
                source,
            })?;
        let mut data = (body.len() as u64).to_le_bytes().to_vec();
        data.extend_from_slice(&body);
        let length = data.len() as u64;
        if length >= ring.max_off - ring.create_len {
            return Err(ObjectError::TooBig {
                object: self.object.id(),
                what: format!("a history record of {length} bytes"),
            });
        }
        while ring.room() <= length {
            // Where the next record begins is known from the oldest one only.
            let next = match self.record_len(&ring, ring.bof).await {
                Ok(oldest) => (ring.bof + 8).checked_add(oldest),
                Err(error) => {
                    tracing::warn!(%error, "the pool's history cannot be read; it begins anew");
                    None
                }
            };
            ring.bof = next.filter(|next| *next <= ring.eof).unwrap_or(ring.eof);
            ring.lost += 1;
        }
        let data = Bytes::from(data);
        let mut done = 0usize;
        for (start, piece) in ring.pieces(ring.eof, length) {
            let piece = piece as usize;
            self.object
                .write(tx, start, data.slice(done..done + piece))
                .await?;
            done += piece;
        }
        ring.eof += length;
        if ring.create_len == 0 && matches!(record.what, HistoryWhat::Command(_)) {
            ring.create_len = ring.eof;
            ring.bof = ring.eof;
        }
        self.object.set_bonus(tx, ring.encode())
    }

    /// All records, oldest first.
    pub async fn read_all(&self) -> Result<Vec<HistoryRecord>, ObjectError> {
        let ring = self.ring()?;
        let mut records = Vec::new();
        // The create record lies before the ring and never moves.
        let mut at = 0;
        let mut end = ring.create_len;
        for part in 0..2 {
            if part == 1 {
                at = ring.bof;
                end = ring.eof;
            }
            while at + 8 <= end {
                let length = self.record_len(&ring, at).await?;
                if length == 0 || length > RECORD_BYTES_MAX || length > end - at - 8 {
                    return Err(damaged(self.object.id(), "a record's length is wrong"));
                }
                let body = self.read(&ring, at + 8, length).await?;
                let list = NvList::decode(&body).map_err(|source| ObjectError::Format {
                    object: self.object.id(),
                    source,
                })?;
                records.push(HistoryRecord::from_nvlist(&list));
                at += 8 + length;
            }
        }
        Ok(records)
    }
}

/// The history of an open pool, with records that wait for the next transaction group.
pub struct HistoryLog {
    world: World,
    host: String,
    events: Arc<Events>,
    history: OnceLock<History>,
    pending: Mutex<Vec<HistoryRecord>>,
}

impl HistoryLog {
    /// Without an object yet.
    pub fn new(world: World, host: &str, events: &Arc<Events>) -> Arc<Self> {
        Arc::new(Self {
            world,
            host: host.to_owned(),
            events: events.clone(),
            history: OnceLock::new(),
            pending: Mutex::default(),
        })
    }

    /// From now on, records go here.
    pub fn set(&self, history: History) {
        let _ = self.history.set(history);
    }

    fn record(&self, mut what: HistoryWhat) -> HistoryRecord {
        what.cut();
        let is_asked = !matches!(what, HistoryWhat::Internal { .. });
        let who = is_asked.then(own_uid).flatten();
        HistoryRecord {
            time_s: self.world.clock.wall_ns() / 1_000_000_000,
            what,
            who,
            zone: is_asked.then(|| ZONE.to_owned()),
            host: Some(self.host.clone()),
        }
    }

    /// Queues a record for the next transaction group.
    pub fn queue(&self, what: HistoryWhat) {
        self.queue_of(what, None);
    }

    /// The same of what the user `who` asked for, or who this process runs as.
    pub fn queue_of(&self, what: HistoryWhat, who: Option<u32>) {
        let mut record = self.record(what);
        if let Some(uid) = who {
            record.who = Some(uid.into());
        }
        self.pending.lock().push(record);
    }

    /// Whether records wait.
    pub fn has_pending(&self) -> bool {
        !self.pending.lock().is_empty()
    }

    /// Writes a record, or leaves it out. What the pool did is told as an event, and not which
    /// command had it do so (`spa_history_log_notify`).
    async fn append(&self, history: &History, tx: &Tx, record: &HistoryRecord) {
        if let Err(error) = may_fail(history.append(tx, record)).await {
            tracing::warn!(%error, "the pool's history lacks a record");
        }
        if matches!(record.what, HistoryWhat::Internal { .. }) {
            let more = record.to_event();
            self.events.tell_about(Sysevent::HistoryEvent, None, more);
        }
    }

    /// Writes what waits. Syncing context only.
    async fn flush(&self, tx: &Tx) {
        let pending = std::mem::take(&mut *self.pending.lock());
        if let Some(history) = self.history.get() {
            for mut record in pending {
                // Queued before its txg was known.
                if let HistoryWhat::Internal { txg, .. } = &mut record.what {
                    *txg = tx.txg().get();
                }
                self.append(history, tx, &record).await;
            }
        }
    }

    /// Writes something that the pool itself did. Syncing context only; nothing while the pool is
    /// being created and has no history yet.
    pub async fn internal(&self, tx: &Tx, event: &str, text: String) {
        let record = self.record(HistoryWhat::Internal {
            event: event.to_owned(),
            text,
            txg: tx.txg().get(),
            dataset: None,
        });
        if let Some(history) = self.history.get() {
            self.append(history, tx, &record).await;
        }
    }

    /// All records, oldest first.
    pub async fn read_all(&self) -> Result<Vec<HistoryRecord>, ObjectError> {
        match self.history.get() {
            Some(history) => history.read_all().await,
            None => Ok(Vec::new()),
        }
    }
}

impl DslHooks for HistoryLog {
    fn history<'a>(
        &'a self,
        ctx: &'a SyncContext,
        event: HistoryEvent,
    ) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let Some(history) = self.history.get() else {
                return Ok(());
            };
            let record = self.record(HistoryWhat::Internal {
                event: event.event.to_owned(),
                text: event.text,
                txg: ctx.txg.get(),
                dataset: Some((event.dataset, event.dataset_object)),
            });
            let tx = Tx::syncing(ctx.txg);
            self.append(history, &tx, &record).await;
            Ok(())
        })
    }
}

/// The user that this process runs as, where the system tells.
fn own_uid() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self")
        .ok()
        .map(|meta| u64::from(meta.uid()))
}

impl Participant for HistoryLog {
    fn has_work(&self, _spa: &Spa) -> bool {
        self.has_pending()
    }

    fn early<'a>(&'a self, pass: &'a Pass<'a>) -> Turn<'a> {
        Box::pin(async move {
            self.flush(pass.tx).await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_wrap_behind_the_create_record() {
        let ring = Ring {
            create_len: 100,
            max_off: 1100,
            bof: 100,
            eof: 1080,
            lost: 0,
        };
        assert_eq!(ring.physical(50), 50);
        assert_eq!(ring.physical(1099), 1099);
        assert_eq!(ring.physical(1100), 100);
        assert_eq!(ring.physical(2150), 150);
        assert_eq!(ring.room(), 20);
        assert_eq!(ring.pieces(1080, 50), vec![(1080, 20), (100, 30)]);
        assert_eq!(ring.pieces(90, 10), vec![(90, 10)]);
    }

    #[test]
    fn a_ring_that_cannot_be_is_refused() {
        let good = Ring {
            create_len: 100,
            max_off: 1100,
            bof: 100,
            eof: 1080,
            lost: 3,
        };
        assert_eq!(Ring::decode(&good.encode()), Some(good));
        for bad in [
            Ring {
                create_len: 1100,
                ..good
            },
            Ring { bof: 2000, ..good },
            Ring { bof: 50, ..good },
            Ring { eof: 5000, ..good },
        ] {
            assert_eq!(Ring::decode(&bad.encode()), None, "{bad:?}");
        }
        assert_eq!(Ring::decode(&[0; 39]), None);
    }

    #[test]
    fn requests_tell_who_asked_for_what_unless_it_is_too_much() {
        let world = device::sim::SimWorld::new(1).world();
        let log = HistoryLog::new(world.clone(), "host", &Events::new(&world));
        let ask = |count: usize| {
            let mut input = NvList::new();
            for index in 0..count {
                input.push(format!("tank@{index:0>100}"), true);
            }
            let name = "snapshot".to_owned();
            log.record(HistoryWhat::Ioctl {
                name,
                input: Some(input),
                output: None,
            })
        };
        let record = ask(1);
        assert_eq!(record.zone.as_deref(), Some("linux"));
        assert!(record.who.is_some());
        let has_input = |record: &HistoryRecord| match &record.what {
            HistoryWhat::Ioctl { input, .. } => input.is_some(),
            _ => false,
        };
        assert!(has_input(&record) && !has_input(&ask(1000)));
    }

    #[test]
    fn records_survive_their_nvlist() {
        for what in [
            HistoryWhat::Command("zpool create tank a b".into()),
            HistoryWhat::Internal {
                event: "snapshot".into(),
                text: " ".into(),
                txg: 17,
                dataset: Some(("tank@a".into(), 99)),
            },
            HistoryWhat::Ioctl {
                name: "create".into(),
                input: Some(NvList::new()),
                output: None,
            },
        ] {
            let record = HistoryRecord {
                time_s: 1_795_201_183,
                what,
                who: Some(1000),
                zone: None,
                host: Some("host".into()),
            };
            let packed = record.to_nvlist().encode(NvEncoding::Native).unwrap();
            let list = NvList::decode(&packed).unwrap();
            assert_eq!(HistoryRecord::from_nvlist(&list), record);
        }
    }
}
