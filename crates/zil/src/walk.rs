//! Reading a log's chain from disk: claiming it after a crash, freeing it, replaying it
//! (`zil_parse`, `zil_claim`, `zil_destroy_sync`; module/zfs/zil.c).
//!
//! A chain ends at the first block that does not carry what its pointer says, which is normal: the
//! last pointer always leads to a block that was not written yet. Blocks that cannot be *read* (no
//! device answers, or only some that may lack the block) are no end: what is behind them may have
//! been promised to be durable. Nor is a block that was there when the log was claimed.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use format::{
    BlockPointer, Bookmark, Endian, LogCloneBody, LogHeader, LogKind, LogWriteBody, ObjectId,
    ObjsetId, Txg, ZilHeader, ZilSequence, decode_log_block, log_object, log_word,
};
use vdev::{ScanRead, VdevError};
use zio::{CacheUse, CloneKey, Pipeline, ReadContext, ZioError};

/// Level of bookmarks of log blocks (`ZB_ZIL_LEVEL`).
const LEVEL: i64 = Bookmark::ZIL_LEVEL;
/// How many transaction groups a block of a log may be newer than the pool's synced state. An
/// import waits until that group has passed (`spa_claim_max_txg`). OpenZFS closes an empty group
/// every five seconds and leaves no trace of it, so this is ten years of an idle pool; more is
/// nothing that a system has written, and would be waited for without end.
const AHEAD_TXGS_MAX: u64 = 1 << 26;

/// A record as it is in a block.
#[derive(Debug, Clone)]
pub(crate) struct RawRecord {
    pub kind: LogKind,
    pub case_insensitive: bool,
    pub txg: Txg,
    pub sequence: u64,
    pub endian: Endian,
    /// What follows the common header.
    pub body: Bytes,
}

impl RawRecord {
    /// A word of the body.
    pub fn word(&self, index: usize) -> Option<u64> {
        log_word(&self.body, index, self.endian)
    }

    /// An object number that is a word of the body.
    pub fn object(&self, index: usize) -> Option<u64> {
        log_object(&self.body, index, self.endian).map(ObjectId::get)
    }

    /// The blocks that a clone record shares: those that have a place. Empty for other records.
    pub fn cloned_blocks(&self) -> impl Iterator<Item = BlockPointer> + '_ {
        let is_clone = self.kind == LogKind::CloneRange;
        let pointers = is_clone.then(|| LogCloneBody::pointers(&self.body, self.endian));
        let pointers = pointers.into_iter().flatten();
        pointers.filter(|pointer| !pointer.is_hole() && !pointer.is_embedded())
    }

    /// The pointer of a write, and whether the data is there and not in the record.
    pub fn write_pointer(&self) -> Option<(BlockPointer, bool)> {
        let is_write = self.kind == LogKind::Write;
        is_write
            .then(|| LogWriteBody::pointer(&self.body, self.endian))
            .flatten()
    }
}

/// Takes the records of a block apart; says whether all of them are whole.
fn parse_records(records: &Bytes, endian: Endian) -> (Vec<RawRecord>, bool) {
    let mut out = Vec::new();
    let mut at = 0;
    while at < records.len() {
        let Ok(header) = LogHeader::decode(&records[at..], endian) else {
            return (out, false);
        };
        let body = records.slice(at + LogHeader::BYTES..at + header.length_bytes);
        if header.kind == LogKind::Write && body.len() < LogWriteBody::BYTES {
            return (out, false);
        }
        out.push(RawRecord {
            kind: header.kind,
            case_insensitive: header.case_insensitive,
            txg: header.txg,
            sequence: header.sequence,
            endian,
            body,
        });
        at += header.length_bytes;
    }
    (out, true)
}

const REST_IS_LOST: &str = "the space of the rest is lost until the pool is checked";

/// Why a chain ends.
#[derive(Debug)]
pub(crate) enum End {
    /// Where it should: at a block that was not written, or where it was claimed to.
    Normal,
    /// A block could not be read.
    Unreadable(ZioError),
}

/// A chain while it is read: [`Chain::pointer`], then [`Chain::read`], and again.
pub(crate) struct Chain<'a> {
    pipeline: &'a Pipeline,
    header: ZilHeader,
    next: BlockPointer,
    last_sequence: u64,
    last_record: u64,
    /// Whether records of an encrypted dataset are to be decrypted; their headers and pointers need
    /// not be.
    decrypts: bool,
}

impl<'a> Chain<'a> {
    pub fn new(pipeline: &'a Pipeline, header: &ZilHeader) -> Self {
        Chain {
            pipeline,
            header: *header,
            next: header.log,
            last_sequence: 0,
            last_record: 0,
            decrypts: false,
        }
    }

    /// The same with records decrypted, for replay. The key must be loaded.
    pub fn decrypting(pipeline: &'a Pipeline, header: &ZilHeader) -> Self {
        Chain {
            decrypts: true,
            ..Self::new(pipeline, header)
        }
    }

    fn is_claimed(&self) -> bool {
        !self.header.claim_txg.is_zero()
    }

    fn knows_claimed_record(&self) -> bool {
        self.is_claimed() && self.header.flags & ZilHeader::CLAIM_RECORD_SEQUENCE_VALID != 0
    }

    fn claimed_record(&self) -> u64 {
        match self.knows_claimed_record() {
            true => self.header.claim_record_sequence,
            false => u64::MAX,
        }
    }

    /// Whether records were claimed that are behind what was read.
    fn awaits_records(&self) -> bool {
        self.knows_claimed_record() && self.last_record < self.header.claim_record_sequence
    }

    /// The next block's pointer; `None` at the end of the claimed part. The block belongs to the
    /// log, but may not have been written.
    pub fn pointer(&self) -> Option<BlockPointer> {
        let sequence = ZilSequence::from_checksum(self.next.checksum()).sequence;
        let is_end = self.next.is_hole()
            || sequence <= self.last_sequence
            || self.is_claimed() && sequence > self.header.claim_block_sequence;
        (!is_end).then_some(self.next)
    }

    /// [`Self::read`] for those who go on without the rest of a log that cannot be read, which
    /// means `consequence`.
    async fn read_or_tell(&mut self, consequence: &str) -> Option<Vec<RawRecord>> {
        match self.read().await {
            Ok(records) => Some(records),
            Err(End::Normal) => None,
            Err(End::Unreadable(error)) => {
                tracing::warn!(%error, "an intent log cannot be read; {consequence}");
                None
            }
        }
    }

    /// Reads that block. `Err` is the end of the chain.
    pub async fn read(&mut self) -> Result<Vec<RawRecord>, End> {
        let pointer = self.next;
        let place = ZilSequence::from_checksum(pointer.checksum());
        self.last_sequence = place.sequence;
        if self.is_claimed()
            && place.sequence == self.header.claim_block_sequence
            && self.last_record == self.claimed_record()
        {
            return Err(End::Normal);
        }
        let context = ReadContext {
            bookmark: Bookmark {
                objset: place.objset,
                object: ObjectId::ZERO,
                level: LEVEL,
                block_id: place.sequence,
            },
            cache: CacheUse::Bypass,
            speculative: true,
            ..ReadContext::default()
        };
        // As stored: blocks of encrypted datasets have their links and headers in the clear.
        let data = match self.pipeline.reader().read_raw(&pointer, &context).await {
            Ok(data) => data,
            Err(error) => {
                return Err(match end_of(self.pipeline, &pointer, &error) {
                    // It was there when the log was claimed, and what it says was promised.
                    End::Normal
                        if self.awaits_records()
                            && !self.pipeline.log_blocks().gives_up_unreadable() =>
                    {
                        End::Unreadable(error)
                    }
                    end => end,
                });
            }
        };
        let data = if self.decrypts {
            // What has the right checksum but not the right MAC is no end of the log.
            self.pipeline
                .log_blocks()
                .open(&pointer, data)
                .map_err(End::Unreadable)?
        } else {
            data
        };
        let Ok((link, records)) = decode_log_block(&data, pointer.checksum_kind()) else {
            return Err(End::Normal);
        };
        let start = records.as_ptr() as usize - data.as_ptr() as usize;
        let records = data.slice(start..start + records.len());
        // A link that does not lead to the next number is not one of this log.
        if ZilSequence::from_checksum(link.next.checksum()) != place.next() {
            return Err(End::Normal);
        }
        self.next = link.next;
        let (mut records, whole) = parse_records(&records, link.eck.endian);
        let limit = self.claimed_record();
        let found = records.len();
        records.retain(|record| record.sequence <= limit);
        if !whole || records.len() < found {
            // Nothing behind this counts.
            self.next = BlockPointer::HOLE;
        }
        if let Some(last) = records.last() {
            self.last_record = last.sequence;
        }
        Ok(records)
    }
}

/// What a failed read of a log's block means. A block that is not where its pointer leads was never
/// written, and ends the log, if that is certain: no device is missing, failing or known to lack it
/// that might have had it (OpenZFS looks for failing ones only: `zil_check_log_chain`,
/// module/zfs/zil.c; `vdev_mirror_worst_error`, module/zfs/vdev_mirror.c).
fn end_of(pipeline: &Pipeline, pointer: &BlockPointer, error: &ZioError) -> End {
    let is_unsure = match error {
        _ if pipeline.log_blocks().is_given_up(pointer) => false,
        ZioError::Unreadable { .. }
        | ZioError::Vdev(VdevError::VdevUnavailable { .. })
        | ZioError::Vdev(VdevError::Device(_)) => true,
        ZioError::Checksum { device_failed, .. } => {
            *device_failed || !pipeline.tree().topology().tells_of(pointer)
        }
        _ => false,
    };
    match is_unsure && !pipeline.log_blocks().gives_up_unreadable() {
        true => End::Unreadable(error.clone()),
        false => End::Normal,
    }
}

/// How the data of a write in a block of its own is read.
fn data_context(record: &RawRecord, pointer: &BlockPointer, objset: ObjsetId) -> ReadContext {
    ReadContext {
        bookmark: Bookmark {
            objset,
            object: ObjectId::new(record.word(0).unwrap_or(0)),
            level: LEVEL,
            block_id: record.word(1).unwrap_or(0) / pointer.lsize_bytes().max(1),
        },
        cache: CacheUse::Bypass,
        ..ReadContext::default()
    }
}

/// Reads the data of a write that is in a block of its own.
pub(crate) async fn read_data(
    pipeline: &Pipeline,
    record: &RawRecord,
    pointer: &BlockPointer,
    objset: ObjsetId,
) -> Result<Bytes, ZioError> {
    if pointer.is_hole() {
        // Zeros, as many as the block would have had (`zil_read_log_data`).
        let length = record.word(2).unwrap_or(0).max(pointer.lsize_bytes());
        let length = length.min(format::MAX_BLOCK_BYTES);
        return Ok(Bytes::from(vec![0; length as usize]));
    }
    let context = data_context(record, pointer, objset);
    pipeline.read(pointer, &context).await
}

/// Gives a block that was read, and counts as promised from now on, to all devices: some may not
/// have had it yet when the power went. A sequential rebuild copies from any of them, without
/// looking.
async fn repair(pipeline: &Pipeline, pointer: &BlockPointer) {
    let context = ReadContext {
        cache: CacheUse::Bypass,
        speculative: true,
        ..ReadContext::default()
    };
    let scanned = pipeline.reader().scan(pointer, &context, ScanRead::Scrub);
    if let Err(error) = scanned.await {
        tracing::warn!(%error, "copies of a block of an intent log are left as they are");
    }
}

/// Blocks seen, by the place of their first copy.
#[derive(Default)]
struct Seen(HashSet<[u64; 2]>);

impl Seen {
    fn is_new(&mut self, pointer: &BlockPointer) -> bool {
        pointer
            .dva(0)
            .is_some_and(|dva| self.0.insert(dva.to_words()))
    }
}

/// What a claim found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Claimed {
    /// Blocks of the chain, with the one that was not written yet.
    pub blocks: u64,
    /// Records.
    pub records: u64,
    /// Newest birth of what was claimed. Nothing else may be born before this txg is over.
    pub newest_birth: Txg,
}

/// After a crash: marks the blocks of a log as allocated in `txg`, adds references to the blocks
/// that clone records share (`zil_claim_clone_range`; [`free_chain`] gives them back), and notes in
/// its head how far it goes. Blocks and records from before `first_txg` are in the pool's state
/// already; references are added for those records too, as all are given back. Nothing may have
/// been allocated since the import. A log that was claimed before is left as it is.
///
/// `root` is the txg in which the dataset's root was written. A log block is allocated in a txg
/// that writes the root too (`zil_create` and `zil_lwb_write_issue` call `dsl_dataset_dirty`), so
/// one that is younger and yet from before `first_txg` was free when an import passed this log by,
/// as the root could not be read then. Its place may be somebody else's by now: the log ends there.
///
/// # Errors
/// When a block cannot be read: what is behind it may have been promised to be durable.
pub async fn claim(
    pipeline: &Arc<Pipeline>,
    txg: Txg,
    first_txg: Txg,
    root: Txg,
    header: &mut ZilHeader,
) -> Result<Claimed, ZioError> {
    let mut claimed = Claimed::default();
    if header.log.is_hole() || !header.claim_txg.is_zero() {
        return Ok(claimed);
    }
    let mut seen = Seen::default();
    let mut chain = Chain::new(pipeline, header);
    let objset = ZilSequence::from_checksum(header.log.checksum()).objset;
    let was_free = |pointer: &BlockPointer| {
        let is_passed_over = pointer.birth() > root && pointer.birth() < first_txg;
        if is_passed_over {
            tracing::warn!("an import passed an intent log over; the log ends there");
        }
        is_passed_over
    };
    let mut take = async |pointer: &BlockPointer, claimed: &mut Claimed| {
        if was_free(pointer) {
            return false;
        }
        // What was born before is in the space maps already.
        if pointer.birth() < first_txg || pointer.is_embedded() || !seen.is_new(pointer) {
            return true;
        }
        if is_far_ahead(pointer, first_txg) {
            tracing::warn!(
                birth = %pointer.birth(),
                "a block of an intent log is of a txg that cannot have been; the log ends there"
            );
            return false;
        }
        match pipeline.frees().claim(txg, pointer).await {
            Ok(()) => {
                claimed.newest_birth = claimed.newest_birth.max(pointer.birth());
                true
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "a block of an intent log cannot be claimed; the log ends there"
                );
                false
            }
        }
    };
    'chain: while let Some(pointer) = chain.pointer() {
        if !take(&pointer, &mut claimed).await {
            break;
        }
        claimed.blocks += 1;
        header.claim_block_sequence = ZilSequence::from_checksum(pointer.checksum()).sequence;
        let records = match chain.read().await {
            Ok(records) => records,
            Err(End::Normal) => break,
            Err(End::Unreadable(error)) => return Err(error),
        };
        repair(pipeline, &pointer).await;
        for record in records {
            if let Some((data, _)) = record.write_pointer()
                && was_free(&data)
            {
                break 'chain;
            }
            if let Some((data, _)) = record.write_pointer()
                && data.birth() >= first_txg
            {
                // Not there: then nobody was told that this is durable, nor what follows.
                let context = ReadContext {
                    speculative: true,
                    ..data_context(&record, &data, objset)
                };
                match pipeline.reader().read_raw(&data, &context).await {
                    Ok(_) => repair(pipeline, &data).await,
                    Err(error) => match end_of(pipeline, &data, &error) {
                        End::Normal => break 'chain,
                        End::Unreadable(error) => return Err(error),
                    },
                }
                if !take(&data, &mut claimed).await {
                    break 'chain;
                }
            }
            // Blocks from the future are not allocated: nobody was told that such a record is
            // durable.
            let dvas = pipeline.dvas();
            if record.cloned_blocks().any(|block| {
                block.physical_birth() >= first_txg
                    || CloneKey::of(&block).is_none()
                    || !dvas.has_place(&block)
            }) {
                tracing::warn!(
                    "a record of cloned blocks in an intent log leads nowhere; the log ends there"
                );
                break 'chain;
            }
            for block in record.cloned_blocks() {
                pipeline.clones().add(txg, &block);
            }
            claimed.records += 1;
            header.claim_record_sequence = record.sequence;
        }
    }
    header.claim_txg = first_txg;
    if claimed.records > 0 || claimed.blocks > 1 {
        header.flags |= ZilHeader::REPLAY_NEEDED;
    }
    header.flags |= ZilHeader::CLAIM_RECORD_SEQUENCE_VALID;
    Ok(claimed)
}

/// Whether a block of a log is of a transaction group that cannot have been when `first_txg`
/// follows the synced state.
pub fn is_far_ahead(pointer: &BlockPointer, first_txg: Txg) -> bool {
    pointer.birth().get().saturating_sub(first_txg.get()) > AHEAD_TXGS_MAX
}

/// Whether a log on disk holds records that are not in the pool's last synced state, which is of
/// `synced`. Reads the chain, writes nothing.
pub async fn awaits_replay(pipeline: &Pipeline, header: &ZilHeader, synced: Txg) -> bool {
    let claimed = !header.claim_txg.is_zero();
    if claimed && header.flags & ZilHeader::REPLAY_NEEDED == 0 {
        return false;
    }
    let mut chain = Chain::new(pipeline, header);
    while chain.pointer().is_some() {
        let Some(records) = chain.read_or_tell("it is taken for replayed").await else {
            return false;
        };
        if records.iter().any(|record| {
            record.sequence > header.replay_sequence
                && if claimed {
                    record.txg >= header.claim_txg
                } else {
                    record.txg > synced
                }
        }) {
            return true;
        }
    }
    false
}

/// Whether a log leads to a block on a log vdev that is missing.
pub async fn is_cut_off(pipeline: &Pipeline, header: &ZilHeader) -> bool {
    let mut chain = Chain::new(pipeline, header);
    while let Some(pointer) = chain.pointer() {
        if pipeline.tree().topology().is_on_lost_log(&pointer) {
            return true;
        }
        if chain.read_or_tell("it is taken for whole").await.is_none() {
            return false;
        }
    }
    false
}

/// Tells `visit` of every block of a log on disk that belongs to the pool's last synced state, with
/// its bookmark: those of the chain that are claimed (or, of a log that was not, were born before
/// `first_txg`, the first group after that state), and the data blocks of claimed records. The last
/// block of a chain need not have been written: nothing is wrong when it does not verify. Reads the
/// chain, writes nothing (`dsl_scan_zil`, module/zfs/dsl_scan.c; `traverse_zil`,
/// module/zfs/dmu_traverse.c).
pub async fn visit_log(
    pipeline: &Pipeline,
    objset: ObjsetId,
    first_txg: Txg,
    header: &ZilHeader,
    visit: &mut (dyn FnMut(BlockPointer, Bookmark) + Send),
) {
    let mut seen = Seen::default();
    let mut chain = Chain::new(pipeline, header);
    let claimed = !header.claim_txg.is_zero();
    while let Some(pointer) = chain.pointer() {
        if !claimed && pointer.birth() >= first_txg {
            return;
        }
        if seen.is_new(&pointer) {
            let bookmark = Bookmark {
                objset,
                object: ObjectId::ZERO,
                level: LEVEL,
                block_id: ZilSequence::from_checksum(pointer.checksum()).sequence,
            };
            visit(pointer, bookmark);
        }
        // Whoever is told of that block finds out that it is damaged, not what it led to.
        let Some(records) = chain.read_or_tell("the rest is not looked at").await else {
            return;
        };
        for record in records {
            if let Some((data, _)) = record.write_pointer()
                && claimed
                && !data.is_hole()
                && data.birth() >= header.claim_txg
                && (data.is_embedded() || seen.is_new(&data))
            {
                visit(data, data_context(&record, &data, objset).bookmark);
            }
        }
    }
}

/// Frees the blocks of a log that was never claimed, as far as they were allocated before
/// `first_txg`, and by `root`, the txg in which the dataset's root was written: see [`claim`].
pub async fn free_until(
    pipeline: &Arc<Pipeline>,
    txg: Txg,
    first_txg: Txg,
    root: Txg,
    header: &ZilHeader,
) {
    let mut chain = Chain::new(pipeline, header);
    while let Some(pointer) = chain.pointer() {
        if pointer.birth() >= first_txg || pointer.birth() > root {
            break;
        }
        pipeline.free(txg, &pointer);
        if chain.read_or_tell(REST_IS_LOST).await.is_none() {
            break;
        }
    }
}

/// Frees the blocks of a log that nobody has open, in syncing context (`zil_destroy_sync`): those
/// of the chain, and of its records that were claimed the data blocks and the references of cloned
/// blocks. Of a log that was never claimed `root` tells which blocks were allocated: see [`claim`].
pub async fn free_chain(pipeline: &Arc<Pipeline>, txg: Txg, root: Txg, header: &ZilHeader) {
    let mut seen = Seen::default();
    let mut chain = Chain::new(pipeline, header);
    let mut free = |pointer: &BlockPointer| {
        if pointer.birth() <= txg && !pointer.is_embedded() && seen.is_new(pointer) {
            pipeline.free(txg, pointer);
        }
    };
    while let Some(pointer) = chain.pointer() {
        if header.claim_txg.is_zero() && pointer.birth() > root {
            break;
        }
        free(&pointer);
        let Some(records) = chain.read_or_tell(REST_IS_LOST).await else {
            break;
        };
        if header.claim_txg.is_zero() {
            continue;
        }
        for record in records {
            if let Some((data, _)) = record.write_pointer()
                && !data.is_hole()
                && data.birth() >= header.claim_txg
            {
                free(&data);
            }
            // Each record has a reference of its own.
            for block in record.cloned_blocks() {
                pipeline.free(txg, &block);
            }
        }
    }
}
