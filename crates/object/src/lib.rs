//! Object sets: dnodes, block trees, dirty data, ZAP, and the small structures built from them.
//!
//! | Module | ZFS's words | What it is |
//! |---|---|---|
//! | [`ObjectSet`] | objset | all objects of one dataset, or of the MOS; allocation, sync |
//! | [`Object`] | dnode, dbuf | one object: blocks of data, a bonus, a spill block |
//! | [`Zap`] | ZAP | names (or arrays of integers) to arrays of integers |
//! | [`Bpobj`], [`Bptree`] | bpobj, bptree | lists of block pointers, trees to be freed |
//! | [`SpaceMapObject`] | space map | a log of allocated and freed ranges |
//! | [`Sa`] | system attributes | attributes packed into bonus and spill block |
//! | [`RawData`] | | blocks that are stored as a raw stream brings them |
//! | [`traverse`] | traverse_dataset | every block of an object set in order, from any place on |
//! | [`Changes`] | | objects, blocks and holes since a txg, in order: for streams and redaction |
//! | `salvage` | | reading on past damage: blocks, dnodes and ZAP leaves one by one |
//!
//! # Two slots
//! Every object keeps its unwritten changes in two slots, chosen by the parity of the txg: the slot
//! of the open txg takes changes while the slot of the syncing txg, which nobody can change any
//! more, is written. Users see open slot over syncing slot over disk.
//!
//! # Locks
//! In this order, none of them held across an await except where said: the object set's table of
//! objects (sharded), one object's state, the cache of indirect blocks. Across awaits may be held:
//! a ZAP's reader/writer lock, and the lock of the allocator of object numbers.
//!
//! # Dropped futures
//! One operation on an object or a ZAP is done whole or not at all, also when its future is dropped
//! (a write of several blocks may stop between blocks). What several operations do together is for
//! the caller to protect: the txg keeps whatever was done.
//!
//! # What a crash leaves
//! Nothing here is on disk before the uberblock that points to it: a crash leaves the last synced
//! txg's tree, whole.

#![forbid(unsafe_code)]

mod accounting;
mod added;
mod bpobj;
mod bptree;
mod byteswap;
mod changed;
mod changes;
mod dirty;
mod dnode;
mod error;
mod indirect;
mod numbers;
mod object;
mod objset;
mod options;
mod parts;
mod rangeset;
mod raw;
mod reach;
mod readahead;
mod reclaim;
mod rewrite;
mod sa;
mod salvage;
mod share;
mod spacemap;
mod sync;
mod table;
mod traverse;
mod tree;
mod treesync;
mod zap;

pub use accounting::{AccountingIds, AccountingKeys, ZplAccounting};
pub use bpobj::{Bpobj, BpobjSpace, Drained};
pub use bptree::{Bptree, BptreeEntry};
pub use byteswap::{bonus_to_native, to_native};
pub use changed::changed_objects;
pub use changes::{Change, ChangeBatch, ChangeLimits, Changes, ChangesError, Geometry};
pub use dnode::RawData;
pub use error::{ObjectError, Result};
pub use object::{Object, ObjectInfo, free_object, store_with_dedup_tables};
pub use objset::ObjectSet;
pub use options::{
    Cached, DedupProperty, NewObject, ObjsetOptions, RedundantMetadata, WriteProperties,
};
pub use raw::{RawObject, RawRoot};
pub use readahead::read_dnodes_ahead;
pub use sa::{AttributeId, Sa, SaAttribute, SaFixed, SaRegistration};
pub use salvage::{DnodeRun, Piece, SalvagedZap, Written, salvage_zap};
pub use spacemap::{SpaceMapEntry, SpaceMapKind, SpaceMapObject};
pub use sync::{BlockAccounting, SyncContext};
pub use traverse::{Leads, Met, Traverse, Traversed, Visitor, traverse};
pub use tree::reads_ahead;
pub use zap::{
    NORMALIZE_UPPERCASE, Normalizer, Zap, ZapCursor, ZapEntry, ZapOptions, ZapValue,
    forget_zap_content,
};
