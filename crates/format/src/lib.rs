//! Every on-disk structure of a ZFS pool as pure encode and decode: no I/O, no clock, no allocation
//! sized by input.
//!
//! This crate is the lowest layer and the one place where a layout is written down: each module's
//! head holds the tables of offsets and bits for the structures in it. Rules for all of it:
//!
//! - **Decoding** takes the byte order as a parameter ([`Endian`]) and never panics; what cannot be
//!   is a [`FormatError`] that names structure and field. Codes that we do not know are values.
//! - **Encoding** is little-endian (the order of every block that we write) and exact: what was
//!   decoded from a little-endian block encodes to the same bytes.
//! - **Sizes** are in bytes and named so; sectors do not leave this crate.
//! - **Checksums** are computed above (crate `codec`); here is only where they are stored.

#![forbid(unsafe_code)]

mod blkptr;
mod bytes;
mod dedup;
mod dnode;
mod dsl;
mod dva;
mod errlog;
mod error;
mod feature;
pub mod file_flags;
mod ids;
mod kinds;
mod l2arc;
mod label;
pub mod names;
mod nvlist;
mod objset;
mod redaction;
mod sa;
mod spacemap;
pub mod stream;
mod txgtimes;
mod uberblock;
mod vdev;
mod words;
mod zap;
mod zil;
mod zpl;

pub use blkptr::{
    BLOCK_POINTER_BYTES, BLOCK_POINTER_SHIFT, BlockPointer, CryptParams, DVAS_PER_POINTER,
    EMBEDDED_PAYLOAD_BYTES, EmbeddedKind, EmbeddedPointer, HolePointer, MAX_BLOCK_BYTES,
    OLD_MAX_BLOCK_BYTES, Pointer, RegularPointer, SECTOR_BYTES, SECTOR_SHIFT,
};
pub use bytes::Endian;
pub use dedup::{
    BrtVdevPhys, DdtClass, DdtKey, DdtLogHeader, DdtLogRecord, DdtPhys, DdtPlace, DdtStat,
    decode_ddt_value_head, encode_ddt_value_head,
};
pub use dnode::{
    DNODE_BLOCK_BYTES, DNODE_CORE_BYTES, DNODE_SHIFT, DNODE_SLOT_BYTES, DNODES_PER_BLOCK,
    DnodeFlags, DnodePhys, MAX_DNODE_POINTERS, MAX_INDIRECT_SHIFT, MAX_LEVELS, MIN_INDIRECT_SHIFT,
    OLD_MAX_BONUS_BYTES, max_bonus_bytes,
};
pub use dsl::{
    Bookmark, BpobjPhys, BpobjSizes, BpobjSublists, BptreeEntry, BptreePhys, DdtBookmark,
    DeadlistPhys, DslDatasetPhys, DslDirPhys, ErrorBookmark, ErrorScrubPhys, HistoryPhys,
    RedactBlock, ScanPhys, SnapshotBookmark, UsedBy, decode_history_record, encode_history_record,
};
pub use dva::Dva;
pub use error::{FormatError, Result};
pub use feature::{FEATURES, Feature, FeatureInfo};
pub use ids::{Guid, ObjectId, ObjsetId, Txg, VdevId};
pub use kinds::{ByteswapKind, Checksum, Compression, ObjectType};
pub use l2arc::{L2DeviceHeader, L2Entry, L2LogBlock, L2LogPointer};
pub use label::{
    BOOT_BYTES, BOOT_OFFSET, BootEnv, Eck, LABEL_BOOT_ENV_BYTES, LABEL_BOOT_ENV_OFFSET,
    LABEL_BYTES, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET, LABEL_COUNT, LABEL_END_BYTES,
    LABEL_START_BYTES, LABEL_UBERBLOCK_OFFSET, LABEL_UBERBLOCK_RING_BYTES, MIN_DEVICE_BYTES,
    decode_label_config, encode_label_config, label_offset, uberblock_shift, uberblock_slot,
    uberblock_slot_offset, uberblock_slots,
};
pub use nvlist::{NvEncoding, NvList, NvValue};
pub use objset::{
    OBJSET_BYTES_V1, OBJSET_BYTES_V2, OBJSET_BYTES_V3, OBJSET_FLAG_PROJECT_QUOTA,
    OBJSET_FLAG_USER_ACCOUNTING, OBJSET_FLAG_USER_OBJECT_ACCOUNTING, ObjsetKind, ObjsetPhys,
    ZilHeader,
};
pub use redaction::RedactionListPhys;
pub use sa::{
    SA_FIRST_LAYOUT, SaByteswap, SaFixedPlace, SaHeader, SaRegistration, encode_sa,
    sa_buffer_bytes, sa_header_bytes,
};
pub use spacemap::{
    SPACE_MAP_BUCKETS, SpaceMapEntry, SpaceMapKind, SpaceMapPhys, SpaceMapRange, SpaceMapReader,
    SpaceMapWriter,
};
pub use txgtimes::{TxgMoment, TxgRing, TxgTimes};
pub use uberblock::{Multihost, ReflowScratchState, Uberblock};
pub use vdev::{
    CondensingIndirectPhys, GANG_HEADER_BYTES, IndirectBirthEntry, IndirectBirthPhys,
    IndirectMappingEntry, IndirectMappingPhys, RebuildPhys, RemovingPhys, decode_gang_header,
    encode_gang_header, gang_pointers,
};
pub use zap::{
    FAT_ZAP_BLOCK_SHIFT, FatZapHeader, LeafEntry, LeafInsert, MicroEntry, MicroInsert, MicroZap,
    ZAP_MAX_LONG_NAME_BYTES, ZAP_MAX_NAME_BYTES, ZAP_MAX_VALUE_BYTES, ZapBlockKind, ZapFill,
    ZapFlags, ZapHasher, ZapKey, ZapKeyBuf, ZapKeyKind, ZapLeaf, ZapTable, ZapValue,
    double_pointers, fill_fat_zap, zap_hash_index,
};
pub use zil::{
    Log64Time, LogAcl, LogAttributes, LogBody, LogCloneBody, LogCreate, LogCreateKind, LogHeader,
    LogKind, LogObject, LogRecord, LogRecords, LogRename, LogSetAttributes, LogWhiteout, LogWrite,
    LogWriteBody, RenameKind, ZIL_MIN_BLOCK_BYTES, ZilLink, ZilSequence, decode_log_block,
    link_log_block, log_object, log_word,
};
pub use zpl::{
    Ace, AceWho, DirectoryEntry, ZPL_ATTRIBUTES, ZPL_ATTRIBUTES_2_3, ZPL_VERSION, ZnodeAcl,
    ZnodePhys, ZplAttribute, ZplAttributeInfo,
};

#[cfg(test)]
mod tests;
