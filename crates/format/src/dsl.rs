//! Datasets in the MOS (`dsl_*`): directories, datasets, lists of blocks, bookmarks.
//!
//! All structures are 64-bit words in the order of their fields, in the byte order of the block.
//! Which ZAPs hang off them, and the names in those, are in [`crate::names`].

use crate::blkptr::BlockPointer;
use crate::bytes::{Endian, Put, Reader};
use crate::error::Result;
use crate::ids::{Guid, ObjectId, ObjsetId, Txg};
use crate::words::{Field, disk_struct};

/// Place of a block in the pool (`zbookmark_phys_t`, include/sys/zio.h). The MOS is object set 0,
/// the meta-dnode object 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bookmark {
    /// Dataset; zero is the MOS.
    pub objset: ObjsetId,
    /// Object; zero is the meta-dnode.
    pub object: ObjectId,
    /// Level; zero is data. [`Self::ROOT_LEVEL`] and below are special.
    pub level: i64,
    /// Number of the block on its level.
    pub block_id: u64,
}

impl Bookmark {
    /// Size in bytes.
    pub const BYTES: usize = 32;
    /// Level of an object set's own block (`ZB_ROOT_LEVEL`).
    pub const ROOT_LEVEL: i64 = -1;
    /// Level of intent log blocks (`ZB_ZIL_LEVEL`).
    pub const ZIL_LEVEL: i64 = -2;
    /// Level of a dnode itself (`ZB_DNODE_LEVEL`).
    pub const DNODE_LEVEL: i64 = -3;
    /// Block number of a spill block (`DMU_SPILL_BLKID`).
    pub const SPILL_BLOCK_ID: u64 = u64::MAX - 1;
    /// Block number of a bonus (`DMU_BONUS_BLKID`).
    pub const BONUS_BLOCK_ID: u64 = u64::MAX;

    /// A block of an object.
    pub const fn new(objset: ObjsetId, object: ObjectId, level: i64, block_id: u64) -> Self {
        Self {
            objset,
            object,
            level,
            block_id,
        }
    }

    /// Decodes 32 bytes.
    ///
    /// # Errors
    /// [`crate::FormatError::TooShort`].
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self> {
        Self::read(&mut Reader::new("zbookmark_phys_t", bytes, endian), endian)
    }

    /// The four words.
    pub const fn to_words(&self) -> [u64; 4] {
        [
            self.objset.get(),
            self.object.get(),
            self.level as u64,
            self.block_id,
        ]
    }
}

impl std::fmt::Display for Bookmark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "<{}, {}, {}, {}>",
            self.objset, self.object, self.level, self.block_id
        )
    }
}

impl Field for Bookmark {
    const BYTES: usize = 32;

    fn read(reader: &mut Reader<'_>, _: Endian) -> Result<Self> {
        let [objset, object, level, block_id] = reader.words()?;
        Ok(Self::new(
            objset.into(),
            object.into(),
            level as i64,
            block_id,
        ))
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_words(&self.to_words());
    }
}

disk_struct! {
    /// Place of a damaged block in a dataset's error log, with the feature `head_errlog`
    /// (`zbookmark_err_phys_t`).
    ErrorBookmark, "zbookmark_err_phys_t", 32 {
        /// Object.
        object: ObjectId,
        /// Level.
        level: i64,
        /// Number of the block on its level.
        block_id: u64,
        /// When the block was born.
        birth: Txg,
    }
}

disk_struct! {
    /// A directory: what a filesystem or volume and its snapshots have in common
    /// (`dsl_dir_phys_t`, include/sys/dsl_dir.h); the bonus of its object.
    DslDirPhys, "dsl_dir_phys_t", 256 {
        /// Seconds since 1970.
        creation_time_seconds: u64,
        /// The dataset that is live.
        head_dataset: ObjectId,
        /// The directory above; zero at the root.
        parent: ObjectId,
        /// The snapshot that this is a clone of; zero when it is none.
        origin: ObjectId,
        /// ZAP from names to directories below.
        child_directories: ObjectId,
        /// Space of this directory and all below.
        used_bytes: u64,
        /// The same, compressed size before parity.
        compressed_bytes: u64,
        /// The same, before compression.
        uncompressed_bytes: u64,
        /// Limit; zero is none.
        quota_bytes: u64,
        /// Space kept for it.
        reserved_bytes: u64,
        /// ZAP of local properties.
        properties: ObjectId,
        /// ZAP of permissions given to users.
        delegation: ObjectId,
        /// Bits: [`Self::FLAG_USED_BREAKDOWN`].
        flags: u64,
        /// Parts of the space used, by [`UsedBy`].
        used_breakdown: [u64; 5],
        /// ZAP of clones' directories.
        clones: ObjectId,
    }
}

impl DslDirPhys {
    /// `used_breakdown` is valid (`DD_FLAG_USED_BREAKDOWN`).
    pub const FLAG_USED_BREAKDOWN: u64 = 1;
}

/// What space is used by: index into [`DslDirPhys::used_breakdown`] (`dd_used_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum UsedBy {
    /// The dataset itself.
    Head = 0,
    /// Its snapshots.
    Snapshots = 1,
    /// Directories below.
    Children = 2,
    /// Reservations of directories below that are not used up.
    ChildrenReservation = 3,
    /// Its own reservation that is not used up.
    RefReservation = 4,
}

disk_struct! {
    /// A dataset: a live filesystem or volume, or a snapshot (`dsl_dataset_phys_t`,
    /// include/sys/dsl_dataset.h); the bonus of its object.
    DslDatasetPhys, "dsl_dataset_phys_t", 320 {
        /// Its directory.
        directory: ObjectId,
        /// The snapshot before it.
        previous_snapshot: ObjectId,
        /// Txg of that.
        previous_snapshot_txg: Txg,
        /// Of a snapshot, the one after it or the live dataset.
        next_snapshot: ObjectId,
        /// ZAP from names to snapshots; zero in snapshots.
        snapshot_names: ObjectId,
        /// Of a snapshot, how many datasets have it as their previous one.
        children: u64,
        /// Seconds since 1970.
        creation_time_seconds: u64,
        /// Txg in which it was made.
        creation_txg: Txg,
        /// Blocks that the previous snapshot refers to and this dataset does not.
        deadlist: ObjectId,
        /// Space that it refers to.
        referenced_bytes: u64,
        /// The same, compressed size before parity.
        compressed_bytes: u64,
        /// The same, before compression.
        uncompressed_bytes: u64,
        /// Of a snapshot, space that nothing else refers to.
        unique_bytes: u64,
        /// 56-bit identity for NFS; may change when it collides.
        fsid_guid: u64,
        /// Identity that never changes.
        guid: Guid,
        /// Bits `FLAG_*`.
        flags: u64,
        /// Its object set.
        block: BlockPointer,
        /// ZAP of clones' datasets.
        next_clones: ObjectId,
        /// Of a snapshot, ZAP of local properties.
        properties: ObjectId,
        /// ZAP of holds.
        user_references: ObjectId,
    }
}

impl DslDatasetPhys {
    /// It is being received or destroyed and cannot be used (`DS_FLAG_INCONSISTENT`).
    pub const FLAG_INCONSISTENT: u64 = 1;
    /// Its clones cannot be promoted (`DS_FLAG_NOPROMOTE`).
    pub const FLAG_NO_PROMOTE: u64 = 2;
    /// `unique_bytes` is right (`DS_FLAG_UNIQUE_ACCURATE`).
    pub const FLAG_UNIQUE_ACCURATE: u64 = 4;
    /// To be destroyed once no hold or clone is left (`DS_FLAG_DEFER_DESTROY`).
    pub const FLAG_DEFER_DESTROY: u64 = 8;
    /// Names are looked up without regard to case (`DS_FLAG_CI_DATASET`).
    pub const FLAG_CASE_INSENSITIVE: u64 = 1 << 16;

    /// Whether it is a snapshot (`dsl_dataset_is_snapshot`).
    pub const fn is_snapshot(&self) -> bool {
        self.children != 0
    }
}

disk_struct! {
    /// Head of a deadlist or livelist (`dsl_deadlist_phys_t`, include/sys/dsl_deadlist.h): the
    /// bonus of a ZAP from txgs (16 hexadecimal digits) to block lists.
    DeadlistPhys, "dsl_deadlist_phys_t", 320 {
        /// Space of the blocks.
        used_bytes: u64,
        /// The same, compressed size before parity.
        compressed_bytes: u64,
        /// The same, before compression.
        uncompressed_bytes: u64,
    }
}

/// Head of a block list (`bpobj_phys_t`, include/sys/bpobj.h): the bonus of an object that is an
/// array of block pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BpobjPhys {
    /// Block pointers in the object.
    pub pointers: u64,
    /// Space of them and of all lists below.
    pub used_bytes: u64,
    /// Compressed and uncompressed size; `None` in lists of version 0.
    pub sizes: Option<BpobjSizes>,
    /// Lists below; `None` in lists of versions 0 and 1.
    pub sublists: Option<BpobjSublists>,
    /// Pointers that say "freed", in livelists; `None` before version 3.
    pub freed: Option<u64>,
}

/// Sizes in a [`BpobjPhys`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BpobjSizes {
    /// Compressed size before parity.
    pub compressed_bytes: u64,
    /// Size before compression.
    pub uncompressed_bytes: u64,
}

/// Lists below, in a [`BpobjPhys`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BpobjSublists {
    /// Object that is an array of the lists' object numbers; zero when there is none.
    pub object: ObjectId,
    /// How many there are.
    pub count: u64,
}

impl BpobjPhys {
    /// Size in bytes of version 0: words are pointers, used.
    pub const BYTES_V0: usize = 16;
    /// Size in bytes of version 1: compressed, uncompressed follow.
    pub const BYTES_V1: usize = 32;
    /// Size in bytes of version 2: object of lists, their number follow.
    pub const BYTES_V2: usize = 48;
    /// Size in bytes of version 3: freed pointers follow.
    pub const BYTES: usize = 56;

    /// An empty list of the newest version.
    pub fn new() -> Self {
        Self {
            sizes: Some(BpobjSizes::default()),
            sublists: Some(BpobjSublists::default()),
            freed: Some(0),
            ..Self::default()
        }
    }

    /// Decodes a bonus, whose length tells the version.
    ///
    /// # Errors
    /// [`crate::FormatError::TooShort`].
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self> {
        let mut r = Reader::new("bpobj_phys_t", bonus, endian);
        let [pointers, used_bytes] = r.words()?;
        let mut out = Self {
            pointers,
            used_bytes,
            ..Self::default()
        };
        if bonus.len() >= Self::BYTES_V1 {
            let [compressed_bytes, uncompressed_bytes] = r.words()?;
            out.sizes = Some(BpobjSizes {
                compressed_bytes,
                uncompressed_bytes,
            });
        }
        if bonus.len() >= Self::BYTES_V2 {
            let [object, count] = r.words()?;
            out.sublists = Some(BpobjSublists {
                object: object.into(),
                count,
            });
        }
        if bonus.len() >= Self::BYTES {
            out.freed = Some(r.u64()?);
        }
        Ok(out)
    }

    /// The bonus, little-endian, as long as its version.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_words(&[self.pointers, self.used_bytes]);
        let Some(sizes) = &self.sizes else { return out };
        out.put_words(&[sizes.compressed_bytes, sizes.uncompressed_bytes]);
        let Some(sublists) = &self.sublists else {
            return out;
        };
        out.put_words(&[sublists.object.get(), sublists.count]);
        if let Some(freed) = self.freed {
            out.put_u64(freed);
        }
        out
    }
}

disk_struct! {
    /// Head of the list of datasets that are being destroyed (`bptree_phys_t`,
    /// include/sys/bptree.h): the bonus of an array of [`BptreeEntry`].
    BptreePhys, "bptree_phys_t", 40 {
        /// First entry that is still to do.
        begin: u64,
        /// Number of entries.
        end: u64,
        /// Space to be freed.
        used_bytes: u64,
        /// The same, compressed size before parity.
        compressed_bytes: u64,
        /// The same, before compression.
        uncompressed_bytes: u64,
    }
}

disk_struct! {
    /// A dataset that is being destroyed (`bptree_entry_phys_t`).
    BptreeEntry, "bptree_entry_phys_t", 168 {
        /// Its object set.
        block: BlockPointer,
        /// Only blocks born after this txg are freed.
        birth: Txg,
        /// Where to go on.
        bookmark: Bookmark,
    }
}

disk_struct! {
    /// A bookmark of a snapshot (`zfs_bookmark_phys_t`, include/sys/dsl_bookmark.h): a ZAP's value.
    /// Without the feature `bookmark_v2` only the first three words are stored.
    SnapshotBookmark, "zfs_bookmark_phys_t", 96 {
        /// Identity of the snapshot.
        guid: Guid,
        /// Txg in which it was made.
        creation_txg: Txg,
        /// When, in seconds since 1970.
        creation_time_seconds: u64,
        /// List of redacted blocks; zero is none.
        redaction_list: ObjectId,
        /// Bits: [`Self::FLAG_HAS_FREED_BEFORE_NEXT`], [`Self::FLAG_SNAPSHOT_EXISTS`].
        flags: u64,
        /// Space that the snapshot referred to.
        referenced_bytes: u64,
        /// The same, compressed size before parity.
        compressed_bytes: u64,
        /// The same, before compression.
        uncompressed_bytes: u64,
        /// Of that, what was freed before the next snapshot.
        referenced_freed_before_next_bytes: u64,
        /// The same, compressed size before parity.
        compressed_freed_before_next_bytes: u64,
        /// The same, before compression.
        uncompressed_freed_before_next_bytes: u64,
        /// Identity of the set of IVs, for raw sends.
        ivset_guid: u64,
    }
}

impl SnapshotBookmark {
    /// Words that are stored without the feature `bookmark_v2`.
    pub const WORDS_V1: usize = 3;
    /// The fields on what was freed are valid (`ZBM_FLAG_HAS_FBN`).
    pub const FLAG_HAS_FREED_BEFORE_NEXT: u64 = 1;
    /// The snapshot is still there (`ZBM_FLAG_SNAPSHOT_EXISTS`).
    pub const FLAG_SNAPSHOT_EXISTS: u64 = 2;

    /// From a ZAP's value of either length.
    ///
    /// # Errors
    /// [`crate::FormatError::TooShort`] when even the first three words are not there.
    pub fn from_value(words: &[u64]) -> Result<Self> {
        if words.len() >= Self::WORDS_V1 && words.len() < Self::BYTES / 8 {
            let mut all = words.to_vec();
            all.resize(Self::BYTES / 8, 0);
            return Self::from_words(&all);
        }
        Self::from_words(words)
    }
}

disk_struct! {
    /// Blocks that a redaction list names (`redact_block_phys_t`).
    RedactBlock, "redact_block_phys_t", 32 {
        /// Object.
        object: ObjectId,
        /// First block.
        block_id: u64,
        /// Bits 48..64: size of the blocks in sectors; 0..48: how many.
        size_and_count: u64,
    }
}

disk_struct! {
    /// State of a scrub or resilver (`dsl_scan_phys_t`, include/sys/dsl_scan.h): the value `scan`
    /// in the MOS's directory.
    ScanPhys, "dsl_scan_phys_t", 192 {
        /// What is done: [`Self::FUNCTION_SCRUB`], [`Self::FUNCTION_RESILVER`].
        function: u64,
        /// [`Self::STATE_SCANNING`] and so on.
        state: u64,
        /// ZAP of datasets to visit.
        queue: ObjectId,
        /// Blocks born after this txg are visited.
        min_txg: Txg,
        /// Blocks born up to this txg are visited.
        max_txg: Txg,
        /// The same of the dataset being visited.
        current_min_txg: Txg,
        /// The same of the dataset being visited.
        current_max_txg: Txg,
        /// When it began, in seconds since 1970.
        start_time_seconds: u64,
        /// When it ended.
        end_time_seconds: u64,
        /// All there is to visit.
        to_examine_bytes: u64,
        /// Visited so far.
        examined_bytes: u64,
        /// Skipped so far.
        skipped_bytes: u64,
        /// Repaired or rebuilt so far.
        processed_bytes: u64,
        /// Errors that could not be repaired.
        errors: u64,
        /// Highest class of dedup tables to visit.
        ddt_class_max: u64,
        /// Where in the dedup tables to go on.
        ddt_bookmark: DdtBookmark,
        /// Where in the dataset to go on.
        bookmark: Bookmark,
        /// Bits `FLAG_*`.
        flags: u64,
    }
}

impl ScanPhys {
    /// The first version of pools whose software has them (`SPA_VERSION_SCAN`).
    pub const FIRST_VERSION: u64 = 25;
    /// Nothing (`POOL_SCAN_NONE`).
    pub const FUNCTION_NONE: u64 = 0;
    /// Scrub (`POOL_SCAN_SCRUB`).
    pub const FUNCTION_SCRUB: u64 = 1;
    /// Resilver (`POOL_SCAN_RESILVER`).
    pub const FUNCTION_RESILVER: u64 = 2;
    /// Never ran (`DSS_NONE`).
    pub const STATE_NONE: u64 = 0;
    /// Running (`DSS_SCANNING`).
    pub const STATE_SCANNING: u64 = 1;
    /// Done (`DSS_FINISHED`).
    pub const STATE_FINISHED: u64 = 2;
    /// Stopped (`DSS_CANCELED`).
    pub const STATE_CANCELED: u64 = 3;
    /// The dataset being visited must be visited again (`DSF_VISIT_DS_AGAIN`).
    pub const FLAG_VISIT_AGAIN: u64 = 1;
    /// Paused (`DSF_SCRUB_PAUSED`).
    pub const FLAG_PAUSED: u64 = 2;
    /// From the start, not only what is new (`DSF_SCRUB_THOROUGH`).
    pub const FLAG_THOROUGH: u64 = 4;
}

disk_struct! {
    /// A place in the dedup tables (`ddt_bookmark_t`).
    DdtBookmark, "ddt_bookmark_t", 32 {
        /// Class.
        class: u64,
        /// Type.
        kind: u64,
        /// Checksum.
        checksum: u64,
        /// Cursor into the ZAP.
        cursor: u64,
    }
}

disk_struct! {
    /// State of a scrub of known errors (`dsl_errorscrub_phys_t`).
    ErrorScrubPhys, "dsl_errorscrub_phys_t", 72 {
        /// What is done.
        function: u64,
        /// State as in [`ScanPhys`].
        state: u64,
        /// Cursor into the error log.
        cursor: u64,
        /// When it began, in seconds since 1970.
        start_time_seconds: u64,
        /// When it ended.
        end_time_seconds: u64,
        /// Blocks to visit.
        to_examine: u64,
        /// Blocks visited.
        examined: u64,
        /// Errors that are still there.
        errors: u64,
        /// Whether it is paused.
        paused: u64,
    }
}

disk_struct! {
    /// Head of the pool's history (`spa_history_phys_t`, include/sys/spa_impl.h): the bonus of a
    /// ring of records. Offsets are logical: the part behind the first record wraps around.
    HistoryPhys, "spa_history_phys_t", 40 {
        /// Where the record of the pool's creation ends; it is never overwritten.
        create_end_bytes: u64,
        /// Size of the ring's object.
        physical_max_bytes: u64,
        /// Logical offset of the oldest record.
        begin_bytes: u64,
        /// Logical offset behind the newest record.
        end_bytes: u64,
        /// Records overwritten.
        records_lost: u64,
    }
}

impl HistoryPhys {
    /// Where in the object a logical offset is (`spa_history_log_to_phys`); `None` when the
    /// head is damaged or the offset is within the first record.
    pub fn physical(&self, offset_bytes: u64) -> Option<u64> {
        let ring = self.physical_max_bytes.checked_sub(self.create_end_bytes)?;
        let offset = offset_bytes.checked_sub(self.create_end_bytes)?;
        Some(offset.checked_rem(ring)? + self.create_end_bytes)
    }
}

/// Longest history record that is believed when it is read.
const MAX_HISTORY_RECORD_BYTES: u64 = 16 << 20;

/// A history record with its length before it: eight bytes, always little-endian, then the
/// packed list (OpenZFS packs it natively).
///
/// # Errors
/// [`crate::FormatError`] when the list cannot be packed.
pub fn encode_history_record(record: &crate::nvlist::NvList) -> Result<Vec<u8>> {
    let list = record.encode(crate::nvlist::NvEncoding::Native)?;
    let mut out = Vec::with_capacity(list.len() + 8);
    out.put_u64(list.len() as u64);
    out.extend_from_slice(&list);
    Ok(out)
}

/// The history record at the start of `bytes`, and how many bytes it took; `None` when the bytes
/// end before the record does.
///
/// # Errors
/// [`crate::FormatError`] when it is damaged.
pub fn decode_history_record(bytes: &[u8]) -> Result<Option<(crate::nvlist::NvList, usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Ok(None);
    };
    let length = u64::from_le_bytes(*length);
    if length == 0 || length > MAX_HISTORY_RECORD_BYTES {
        let expected = "1 byte to 16 MiB";
        return Err(crate::error::bad(
            "spa_history",
            "record length",
            length,
            expected,
        ));
    }
    let Some(record) = rest.get(..length as usize) else {
        return Ok(None);
    };
    Ok(Some((
        crate::nvlist::NvList::decode(record)?,
        length as usize + 8,
    )))
}
