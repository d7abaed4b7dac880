//! Object sets.

use std::sync::Arc;

use bytes::Bytes;
use device::World;
use format::{
    BlockPointer, Checksum, Compression, ObjectId, ObjectType, ObjsetKind, Txg, ZilHeader,
};
use pool::{Pipeline, Tx};

use crate::accounting::AccountingKeys;
use crate::error::Result;
use crate::object::Object;
use crate::sync::{BlockAccounting, SyncContext};

/// How many more copies metadata gets than data (property `redundant_metadata`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RedundantMetadata {
    /// All metadata.
    #[default]
    All,
    /// Indirect blocks of two levels and more, and the metadata of files.
    Most,
    /// Only what many files depend on.
    Some,
    /// None.
    None,
}

/// How an object set's blocks are written: the dataset's properties, resolved. May change at any
/// time; what is written later follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteProperties {
    /// Checksum of data, never `Inherit` or `On`.
    pub checksum: Checksum,
    /// Compression of data, never `Inherit` or `On`.
    pub compression: Compression,
    /// Level of the compression where it has one (zstd; 0 is the default).
    pub compression_level: i32,
    /// Copies of data, 1 to 3. The MOS has 3.
    pub copies: u8,
    /// Copies of metadata.
    pub redundant_metadata: RedundantMetadata,
    /// Blocks up to this size go to the special class.
    pub special_small_blocks: u32,
    /// Default data block size for new objects that do not say, in bytes.
    pub record_bytes: u32,
}

/// What an object set needs to know of the pool's enabled features, and its limits.
#[derive(Clone)]
pub struct ObjsetOptions {
    /// How blocks are written.
    pub properties: WriteProperties,
    /// Feature `hole_birth`: holes remember when they were made.
    pub hole_birth: bool,
    /// Feature `embedded_data`.
    pub embedded_data: bool,
    /// Feature `lz4_compress`: metadata is compressed with LZ4, else LZJB.
    pub lz4_metadata: bool,
    /// Nothing will be written.
    pub read_only: bool,
    /// Idle clean objects that stay in memory.
    pub object_cache_limit: usize,
    /// Dataset's object number in the MOS, 0 for the MOS; for messages and bookmarks.
    pub dataset: ObjectId,
}

impl Default for ObjsetOptions {
    fn default() -> Self {
        todo!()
    }
}

/// What a new object is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// Its type.
    pub object_type: ObjectType,
    /// Size of its data blocks in bytes; 0 for the default (one 512-byte sector, growing while single).
    pub data_block_bytes: u32,
    /// log2 of the size of its indirect blocks; 0 for the default (17).
    pub indirect_block_shift: u8,
    /// Type of its bonus; [`ObjectType::NONE`] without bonus.
    pub bonus_type: ObjectType,
    /// Content of the bonus; its length is the bonus's length.
    pub bonus: Bytes,
    /// Slots of 512 bytes the dnode takes (property `dnodesize`); 0 for one.
    pub slots: u8,
}

impl NewObject {
    /// An object of this type without bonus, everything else by default.
    pub fn new(object_type: ObjectType) -> Self {
        let _ = object_type;
        todo!()
    }
    /// With a bonus.
    pub fn with_bonus(self, bonus_type: ObjectType, bonus: impl Into<Bytes>) -> Self {
        let _ = (bonus_type, bonus.into());
        todo!()
    }
    /// With data blocks of this size.
    pub fn with_block_bytes(self, data_block_bytes: u32) -> Self {
        let _ = data_block_bytes;
        todo!()
    }
    /// With a dnode of this many slots.
    pub fn with_slots(self, slots: u8) -> Self {
        let _ = slots;
        todo!()
    }
}

/// All objects of one dataset, or of the pool (the MOS).
pub struct ObjectSet {}

impl ObjectSet {
    /// Opens the object set that `root` points to.
    pub async fn open(
        pipeline: Arc<Pipeline>,
        world: World,
        root: BlockPointer,
        options: ObjsetOptions,
    ) -> Result<Arc<Self>> {
        let _ = (pipeline, world, root, options);
        todo!()
    }
    /// A new, empty object set; it exists on disk when it was synced first. Dirties it in `tx`.
    pub fn create(
        pipeline: Arc<Pipeline>,
        world: World,
        kind: ObjsetKind,
        options: ObjsetOptions,
        tx: &Tx,
    ) -> Arc<Self> {
        let _ = (pipeline, world, kind, options, tx);
        todo!()
    }
    /// What it holds.
    pub fn kind(&self) -> ObjsetKind {
        todo!()
    }
    /// Bits `format::OBJSET_FLAG_*`.
    pub fn flags(&self) -> u64 {
        todo!()
    }
    /// Sets the flags in `tx`.
    pub fn set_flags(&self, tx: &Tx, flags: u64) { let _ = (tx, flags); todo!() }
    /// Whether an object with more than one slot was allocated since this was opened (feature `large_dnode`).
    pub fn used_large_dnodes(&self) -> bool { todo!() }
    /// The block that the last sync wrote (or that it was opened from).
    pub fn root(&self) -> BlockPointer {
        todo!()
    }
    /// Its pipeline.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        todo!()
    }
    /// Its world.
    pub fn world(&self) -> &World {
        todo!()
    }
    /// The options it was opened with.
    pub fn options(&self) -> &ObjsetOptions {
        todo!()
    }
    /// How blocks are written now.
    pub fn properties(&self) -> WriteProperties {
        todo!()
    }
    /// Changes how blocks are written from now on.
    pub fn set_properties(&self, properties: WriteProperties) {
        let _ = properties;
        todo!()
    }
    /// Counts space per user, group and project from now on, with owners from `keys`.
    pub fn set_accounting(&self, keys: Arc<dyn AccountingKeys>) {
        let _ = keys;
        todo!()
    }
    /// Is called (once per txg) when the object set first becomes dirty in a txg.
    pub fn set_dirty_hook(&self, hook: Arc<dyn Fn(Txg) + Send + Sync>) {
        let _ = hook;
        todo!()
    }
    /// Head of the intent log, newest.
    pub fn zil_header(&self) -> ZilHeader {
        todo!()
    }
    /// Changes the head of the intent log in `tx`.
    pub fn set_zil_header(&self, tx: &Tx, header: ZilHeader) {
        let _ = (tx, header);
        todo!()
    }
    /// Whether anything waits to be written in `txg`.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        let _ = txg;
        todo!()
    }
    /// The object, if it exists.
    ///
    /// # Errors
    /// [`crate::ObjectError::NoSuchObject`] and errors of reading.
    pub async fn hold(self: &Arc<Self>, id: ObjectId) -> Result<Object> {
        let _ = id;
        todo!()
    }
    /// The object when it is in memory already: never awaits.
    pub fn try_hold(self: &Arc<Self>, id: ObjectId) -> Option<Object> {
        let _ = id;
        todo!()
    }
    /// Allocates a free object number.
    pub async fn allocate(self: &Arc<Self>, tx: &Tx, new: NewObject) -> Result<Object> {
        let _ = (tx, new);
        todo!()
    }
    /// Allocates this very object number (log replay, receive, well-known objects).
    pub async fn claim(self: &Arc<Self>, tx: &Tx, id: ObjectId, new: NewObject) -> Result<Object> {
        let _ = (tx, id, new);
        todo!()
    }
    /// Frees an object with all its blocks.
    pub async fn free(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<()> {
        let _ = (tx, id);
        todo!()
    }
    /// The first existing object with a number above `after` (`None`: from the start).
    pub async fn next_object(
        self: &Arc<Self>,
        after: Option<ObjectId>,
    ) -> Result<Option<ObjectId>> {
        let _ = after;
        todo!()
    }
    /// Objects that exist, by the fill count of the last sync.
    pub fn object_count(&self) -> u64 {
        todo!()
    }
    /// Writes everything that is dirty in `ctx.txg` and returns the new root block. May be called
    /// several times for a txg; each call writes only what was dirtied since. Returns the old root when nothing is dirty.
    pub async fn sync(
        self: &Arc<Self>,
        ctx: &SyncContext,
        acct: &dyn BlockAccounting,
    ) -> Result<BlockPointer> {
        let _ = (ctx, acct);
        todo!()
    }
    /// Reports every block of the object set, root included, as dead (destroying a dataset or snapshot that shares nothing).
    pub async fn visit_blocks(
        self: &Arc<Self>,
        visit: &(dyn Fn(&BlockPointer) + Send + Sync),
    ) -> Result<()> {
        let _ = visit;
        todo!()
    }
}
