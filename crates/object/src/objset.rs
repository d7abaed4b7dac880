//! Object sets: the table of objects in memory, object numbers, and the head (`objset_phys_t`).
//!
//! # State
//! | What | Guarded by |
//! |---|---|
//! | objects in memory | sharded table; an object stays while it is dirty or a handle exists, else until the table is full |
//! | lists of dirty objects, one per slot | one lock each; an object is put there when its slot becomes dirty |
//! | head: flags, intent log header, root | `head` |
//! | free object numbers | `ids`, an async lock: looking for a free number may read dnode blocks |
//! | numbers given out but not on disk | `pending` |
//!
//! # Free object numbers
//! The allocator goes through blocks of 32 dnodes, skipping full ones by the fill counts of
//! their pointers, and keeps a bit mask of the current block. Blocks in which dnodes were freed are
//! remembered and used first. So a number costs a bit operation, and a read per block.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use device::World;
use format::{
    BLOCK_POINTER_BYTES, BlockPointer, Checksum, Compression, DNODE_BLOCK_BYTES, DNODE_SLOT_BYTES,
    DNODES_PER_BLOCK, DnodePhys, Endian, MAX_BLOCK_BYTES, MAX_DNODE_POINTERS, MAX_INDIRECT_SHIFT,
    MIN_INDIRECT_SHIFT, OBJSET_FLAG_PROJECT_QUOTA, OBJSET_FLAG_USER_ACCOUNTING,
    OBJSET_FLAG_USER_OBJECT_ACCOUNTING, ObjectId, ObjectType, ObjsetId, ObjsetKind, ObjsetPhys,
    SECTOR_BYTES, Txg, ZilHeader, max_bonus_bytes,
};
use parking_lot::{Mutex, RwLock};
use pool::{Bookmark, Pipeline, ReadContext, Tx};

use crate::accounting::{AccountingKeys, ZplAccounting};
use crate::byteswap::swap_words;
use crate::dnode::{Dnode, Meta, parity, shl};
use crate::error::{ObjectError, OfObject, Result, damaged};
use crate::indirect::IndirectCache;
use crate::object::Object;
use crate::table::ObjectTable;
use crate::tree::{Block, NEWEST};

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

impl Default for WriteProperties {
    fn default() -> Self {
        WriteProperties {
            checksum: Checksum::Fletcher4,
            compression: Compression::Lz4,
            compression_level: 0,
            copies: 1,
            redundant_metadata: RedundantMetadata::All,
            special_small_blocks: 0,
            record_bytes: 128 << 10,
        }
    }
}

impl WriteProperties {
    /// Those of the MOS: as many copies as there can be.
    pub fn mos() -> Self {
        WriteProperties {
            copies: 3,
            ..WriteProperties::default()
        }
    }
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
    /// Fletcher-4, LZ4, one copy, records of 128 KiB, all features enabled.
    fn default() -> Self {
        ObjsetOptions {
            properties: WriteProperties::default(),
            hole_birth: true,
            embedded_data: true,
            lz4_metadata: true,
            read_only: false,
            object_cache_limit: 16 << 10,
            dataset: ObjectId::ZERO,
        }
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
        NewObject {
            object_type,
            data_block_bytes: 0,
            indirect_block_shift: 0,
            bonus_type: ObjectType::NONE,
            bonus: Bytes::new(),
            slots: 0,
        }
    }

    /// With a bonus.
    pub fn with_bonus(self, bonus_type: ObjectType, bonus: impl Into<Bytes>) -> Self {
        NewObject {
            bonus_type,
            bonus: bonus.into(),
            ..self
        }
    }

    /// With data blocks of this size.
    pub fn with_block_bytes(self, data_block_bytes: u32) -> Self {
        NewObject {
            data_block_bytes,
            ..self
        }
    }

    /// With a dnode of this many slots.
    pub fn with_slots(self, slots: u8) -> Self {
        NewObject { slots, ..self }
    }

    /// The dnode that this becomes (`dnode_allocate`, module/zfs/dnode.c).
    fn meta(&self, id: ObjectId) -> Result<Meta> {
        let slots = self.slots.max(1);
        let too_big = |what: String| ObjectError::TooBig { object: id, what };
        if usize::from(slots) * DNODE_SLOT_BYTES > DNODE_BLOCK_BYTES {
            return Err(too_big(format!("a dnode of {slots} slots")));
        }
        let room = max_bonus_bytes(slots);
        if self.bonus.len() > room {
            return Err(too_big(format!(
                "a bonus of {} bytes, where {room} fit",
                self.bonus.len()
            )));
        }
        let block_bytes = match self.data_block_bytes {
            0 => SECTOR_BYTES as u32,
            bytes if u64::from(bytes) > MAX_BLOCK_BYTES => {
                return Err(too_big(format!("a block size of {bytes} bytes")));
            }
            bytes => bytes.next_multiple_of(SECTOR_BYTES as u32),
        };
        let pointers = if self.bonus_type == ObjectType::SA {
            1
        } else {
            MAX_DNODE_POINTERS.min(1 + (room - self.bonus.len()) / BLOCK_POINTER_BYTES)
        };
        Ok(Meta {
            exists: true,
            object_type: self.object_type,
            bonus_type: self.bonus_type,
            bonus: self.bonus.clone(),
            block_bytes,
            indirect_shift: match self.indirect_block_shift {
                0 => MAX_INDIRECT_SHIFT,
                shift => shift.clamp(MIN_INDIRECT_SHIFT, MAX_INDIRECT_SHIFT),
            },
            pointers: pointers as u8,
            slots,
            ..Meta::free()
        })
    }
}

/// The head's changes of one txg.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadSlot {
    pub dirty: bool,
    pub txg: Txg,
    pub zil: Option<ZilHeader>,
    pub flags: Option<u64>,
}

pub(crate) struct Head {
    /// The block last written or opened; a hole before the first sync.
    pub root: BlockPointer,
    /// As on disk; its dnodes are stale, the live ones are in the object set.
    pub phys: ObjsetPhys,
    pub slots: [HeadSlot; 2],
}

impl Head {
    fn newest<T>(&self, get: impl Fn(&HeadSlot) -> Option<T>) -> Option<T> {
        let [a, b] = &self.slots;
        let (new, old) = if a.txg > b.txg { (a, b) } else { (b, a) };
        [new, old]
            .into_iter()
            .filter(|slot| slot.dirty)
            .find_map(get)
    }
}

/// Where free object numbers come from.
pub(crate) struct IdAllocator {
    /// The current block of dnodes.
    block: u64,
    /// Its free slots.
    free: u32,
    /// Where the search for another block goes on.
    scan: u64,
    /// A block with this many dnodes or more is taken to be full (less than 32 with large dnodes).
    full_fill: u64,
    /// Blocks in which dnodes were freed.
    pub hints: BTreeSet<u64>,
}

/// Object numbers given out in a txg that is not on disk yet: by block, slots taken and first slots.
#[derive(Debug, Default)]
pub(crate) struct PendingIds(BTreeMap<u64, (u32, u32)>);

impl PendingIds {
    fn add(&mut self, id: u64, slots: u8) {
        let entry = self.0.entry(id / DNODES_PER_BLOCK).or_default();
        let first = (id % DNODES_PER_BLOCK) as u32;
        entry.0 |= slot_mask(first, slots);
        entry.1 |= 1 << first;
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Slots `first..first+slots` of a block as bits.
fn slot_mask(first: u32, slots: u8) -> u32 {
    let run = if slots >= 32 {
        u32::MAX
    } else {
        (1 << slots) - 1
    };
    run << first
}

/// Which slots of a block of dnodes are taken, and which are the first of a dnode.
fn used_slots(block: &[u8]) -> (u32, u32) {
    let (mut used, mut first) = (0u32, 0u32);
    let mut slot = 0u32;
    for _ in 0..DNODES_PER_BLOCK {
        let at = slot as usize * DNODE_SLOT_BYTES;
        // Type and extra slots are single bytes: the byte order does not matter.
        let (Some(kind), Some(extra)) = (block.get(at), block.get(at + 12)) else {
            break;
        };
        if *kind != 0 {
            let slots = extra.saturating_add(1);
            used |= slot_mask(slot, slots.min(32));
            first |= 1 << slot;
            slot += u32::from(slots);
        } else {
            slot += 1;
        }
        if u64::from(slot) >= DNODES_PER_BLOCK {
            break;
        }
    }
    (used, first)
}

/// All objects of one dataset, or of the pool (the MOS).
pub struct ObjectSet {
    pipeline: Arc<Pipeline>,
    world: World,
    options: ObjsetOptions,
    kind: ObjsetKind,
    properties: RwLock<WriteProperties>,
    accounting: RwLock<Option<Arc<dyn AccountingKeys>>>,
    hook: RwLock<Option<Arc<dyn Fn(Txg) + Send + Sync>>>,
    pub(crate) head: Mutex<Head>,
    /// The object of dnodes.
    pub(crate) meta_dnode: Arc<Dnode>,
    /// Users', groups' and projects' space.
    pub(crate) accounts: [Arc<Dnode>; 3],
    pub(crate) table: ObjectTable,
    /// Objects whose slot is dirty.
    pub(crate) dirty: [Mutex<BTreeMap<u64, Arc<Dnode>>>; 2],
    /// The txg for which the hook was called last.
    noted: [AtomicU64; 2],
    pub(crate) ids: tokio::sync::Mutex<IdAllocator>,
    pub(crate) pending: Mutex<[PendingIds; 2]>,
    pub(crate) indirects: IndirectCache,
    generation: AtomicU64,
    large_dnodes: AtomicBool,
}

impl std::fmt::Debug for ObjectSet {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "ObjectSet({:?} of dataset {})",
            self.kind, self.options.dataset
        )
    }
}

impl ObjectSet {
    /// Opens the object set that `root` points to.
    ///
    /// # Errors
    /// When its root block cannot be read or is damaged.
    pub async fn open(
        pipeline: Arc<Pipeline>,
        world: World,
        root: BlockPointer,
        options: ObjsetOptions,
    ) -> Result<Arc<Self>> {
        let bookmark = Bookmark {
            objset: ObjsetId::new(options.dataset.get()),
            object: ObjectId::ZERO,
            level: -1,
            block: 0,
        };
        if root.is_hole() {
            return Err(damaged(
                ObjectId::ZERO,
                "objset_phys_t",
                "its block pointer is a hole",
            ));
        }
        let data = pipeline.read(&root, &ReadContext::new(bookmark)).await?;
        let phys = ObjsetPhys::decode(&data, root.endian()).of(ObjectId::ZERO)?;
        Ok(Self::build(
            pipeline,
            world,
            root,
            phys,
            root.endian(),
            options,
        ))
    }

    /// A new, empty object set; it exists on disk when it was synced first. Dirties it in `tx`.
    pub fn create(
        pipeline: Arc<Pipeline>,
        world: World,
        kind: ObjsetKind,
        options: ObjsetOptions,
        tx: &Tx,
    ) -> Arc<Self> {
        let mut meta_dnode = DnodePhys::new(
            ObjectType::DNODE,
            DNODE_BLOCK_BYTES as u32,
            MAX_INDIRECT_SHIFT,
            MAX_DNODE_POINTERS,
        );
        if kind != ObjsetKind::Meta {
            // As many levels as all object numbers need, from the start
            // (`dmu_objset_create_impl_dnstats`): snapshots and raw streams compare trees.
            while shl(
                MAX_DNODE_POINTERS as u64,
                5 + u32::from(meta_dnode.levels - 1) * (u32::from(MAX_INDIRECT_SHIFT) - 7),
            ) < ObjectId::LIMIT
            {
                meta_dnode.levels += 1;
            }
        }
        let mut phys = ObjsetPhys::new(kind, meta_dnode);
        if kind == ObjsetKind::Filesystem {
            phys.flags = OBJSET_FLAG_USER_ACCOUNTING
                | OBJSET_FLAG_USER_OBJECT_ACCOUNTING
                | OBJSET_FLAG_PROJECT_QUOTA;
        }
        let set = Self::build(
            pipeline,
            world,
            BlockPointer::HOLE,
            phys,
            Endian::Little,
            options,
        );
        set.dirty_head(tx, |_| ());
        set
    }

    fn build(
        pipeline: Arc<Pipeline>,
        world: World,
        root: BlockPointer,
        phys: ObjsetPhys,
        endian: Endian,
        options: ObjsetOptions,
    ) -> Arc<Self> {
        let special = |id: ObjectId, phys: &DnodePhys| {
            let bonus = swap_bonus(phys, endian);
            Dnode::from_phys(id, phys.clone(), bonus)
        };
        let free = DnodePhys::free();
        let used = phys.user_group_used.as_deref();
        let accounts = [
            special(ObjectId::USER_USED, used.map_or(&free, |used| &used[0])),
            special(ObjectId::GROUP_USED, used.map_or(&free, |used| &used[1])),
            special(
                ObjectId::PROJECT_USED,
                phys.project_used.as_deref().unwrap_or(&free),
            ),
        ];
        let kind = phys.kind;
        let accounting: Option<Arc<dyn AccountingKeys>> = match kind {
            ObjsetKind::Filesystem => Some(Arc::new(ZplAccounting)),
            _ => None,
        };
        Arc::new(ObjectSet {
            kind,
            properties: RwLock::new(options.properties),
            accounting: RwLock::new(accounting),
            hook: RwLock::new(None),
            meta_dnode: special(ObjectId::META_DNODE, &phys.meta_dnode),
            accounts,
            head: Mutex::new(Head {
                root,
                phys,
                slots: Default::default(),
            }),
            table: ObjectTable::new(options.object_cache_limit),
            dirty: Default::default(),
            noted: Default::default(),
            ids: tokio::sync::Mutex::new(IdAllocator {
                block: 0,
                free: 0,
                scan: 0,
                full_fill: DNODES_PER_BLOCK,
                hints: BTreeSet::new(),
            }),
            pending: Default::default(),
            indirects: IndirectCache::new(64),
            generation: AtomicU64::new(1),
            large_dnodes: AtomicBool::new(false),
            pipeline,
            world,
            options,
        })
    }

    /// What it holds.
    pub fn kind(&self) -> ObjsetKind {
        self.kind
    }

    /// Bits `format::OBJSET_FLAG_*`, newest. A filesystem is created with all of them.
    pub fn flags(&self) -> u64 {
        let head = self.head.lock();
        head.newest(|slot| slot.flags).unwrap_or(head.phys.flags)
    }

    /// Sets the flags in `tx`.
    pub fn set_flags(&self, tx: &Tx, flags: u64) {
        self.dirty_head(tx, |slot| slot.flags = Some(flags));
    }

    /// Whether an object with more than one slot was allocated since this was opened (feature
    /// `large_dnode`).
    pub fn used_large_dnodes(&self) -> bool {
        self.large_dnodes.load(Ordering::Relaxed)
    }

    /// The block that the last sync wrote (or that it was opened from); a hole before the first sync.
    pub fn root(&self) -> BlockPointer {
        self.head.lock().root
    }

    /// Its pipeline.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    /// Its world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The options it was opened with.
    pub fn options(&self) -> &ObjsetOptions {
        &self.options
    }

    /// How blocks are written now.
    pub fn properties(&self) -> WriteProperties {
        *self.properties.read()
    }

    /// Changes how blocks are written from now on.
    pub fn set_properties(&self, properties: WriteProperties) {
        *self.properties.write() = properties;
    }

    /// Replaces who tells whose space an object is. A filesystem has [`ZplAccounting`] from the start.
    pub fn set_accounting(&self, keys: Arc<dyn AccountingKeys>) {
        *self.accounting.write() = Some(keys);
    }

    pub(crate) fn accounting(&self) -> Option<Arc<dyn AccountingKeys>> {
        self.accounting.read().clone()
    }

    /// Is called when the object set first becomes dirty in a txg, and again when that happens
    /// after a sync of the same txg. Called with no lock of this crate held.
    pub fn set_dirty_hook(&self, hook: Arc<dyn Fn(Txg) + Send + Sync>) {
        *self.hook.write() = Some(hook);
    }

    /// Head of the intent log, newest.
    pub fn zil_header(&self) -> ZilHeader {
        let head = self.head.lock();
        head.newest(|slot| slot.zil).unwrap_or(head.phys.zil_header)
    }

    /// Changes the head of the intent log in `tx`.
    pub fn set_zil_header(&self, tx: &Tx, header: ZilHeader) {
        self.dirty_head(tx, |slot| slot.zil = Some(header));
    }

    /// Has the root block written in this txg though no object is dirty.
    pub fn dirty_root(&self, tx: &Tx) {
        self.dirty_head(tx, |_| ());
    }

    fn dirty_head(&self, tx: &Tx, change: impl FnOnce(&mut HeadSlot)) {
        self.note_dirty(tx.txg());
        let mut head = self.head.lock();
        let slot = &mut head.slots[parity(tx.txg())];
        if !slot.dirty {
            *slot = HeadSlot {
                dirty: true,
                txg: tx.txg(),
                ..HeadSlot::default()
            };
        }
        assert_eq!(
            slot.txg,
            tx.txg(),
            "a txg must be synced before the next but one is open"
        );
        change(slot);
    }

    /// Whether anything waits to be written in `txg`.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        let head_dirty = {
            let head = self.head.lock();
            let slot = &head.slots[parity(txg)];
            slot.dirty && slot.txg == txg
        };
        head_dirty || !self.dirty[parity(txg)].lock().is_empty()
    }

    /// Tells the hook when this is the first change in `txg`. Called before every change.
    pub(crate) fn note_dirty(&self, txg: Txg) {
        let noted = &self.noted[parity(txg)];
        if noted.load(Ordering::Relaxed) == txg.get() {
            return;
        }
        if noted.swap(txg.get(), Ordering::Relaxed) != txg.get() {
            let hook = self.hook.read().clone();
            if let Some(hook) = hook {
                hook(txg);
            }
        }
    }

    /// Lets the next change of `txg` call the hook again.
    pub(crate) fn forget_noted(&self, txg: Txg) {
        self.noted[parity(txg)].store(0, Ordering::Relaxed);
    }

    pub(crate) fn add_dirty(&self, dnode: &Arc<Dnode>, txg: Txg) {
        self.dirty[parity(txg)]
            .lock()
            .insert(dnode.id.get(), dnode.clone());
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    /// The object, if it exists.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`] and errors of reading.
    pub async fn hold(self: &Arc<Self>, id: ObjectId) -> Result<Object> {
        let dnode = self.dnode(id).await?;
        if !dnode.lock().meta().exists {
            return Err(ObjectError::NoSuchObject { object: id });
        }
        Ok(Object::new(self.clone(), dnode))
    }

    /// The object when it is in memory already: never awaits.
    pub fn try_hold(self: &Arc<Self>, id: ObjectId) -> Option<Object> {
        let dnode = self.find_dnode(id)?;
        let exists = dnode.lock().meta().exists;
        exists.then(|| Object::new(self.clone(), dnode))
    }

    fn find_dnode(&self, id: ObjectId) -> Option<Arc<Dnode>> {
        match id {
            ObjectId::META_DNODE => Some(self.meta_dnode.clone()),
            ObjectId::USER_USED => Some(self.accounts[0].clone()),
            ObjectId::GROUP_USED => Some(self.accounts[1].clone()),
            ObjectId::PROJECT_USED => Some(self.accounts[2].clone()),
            _ => self.table.get(id.get()),
        }
    }

    async fn dnode(&self, id: ObjectId) -> Result<Arc<Dnode>> {
        let missing = || ObjectError::NoSuchObject { object: id };
        if id.get() >= ObjectId::LIMIT && id.get() < ObjectId::PROJECT_USED.get() {
            return Err(missing());
        }
        loop {
            if let Some(dnode) = self.find_dnode(id) {
                dnode.touch();
                return Ok(dnode);
            }
            let generation = self.meta_dnode.lock().tree.generation;
            let block = id.get() / DNODES_PER_BLOCK;
            let Block::Data(data, endian) = self.dnode_block(block).await? else {
                return Err(missing());
            };
            let slot = (id.get() % DNODES_PER_BLOCK) as u32;
            if used_slots(&data).1 & (1 << slot) == 0 {
                return Err(missing());
            }
            let bytes = &data[slot as usize * DNODE_SLOT_BYTES..];
            let phys = DnodePhys::decode(bytes, endian).of(id)?;
            let bonus = swap_bonus(&phys, endian);
            let dnode = Dnode::from_phys(id, phys, bonus);
            dnode.lock().tree.generation = self.next_generation();
            // What was read may be older than a sync that ended meanwhile, after which the
            // object may even have been dropped from memory.
            let current = || self.meta_dnode.lock().tree.generation == generation;
            if let Some(dnode) = self.table.insert_if(id.get(), dnode, current) {
                return Ok(dnode);
            }
        }
    }

    /// A block of dnodes, as the last sync left it (or is just about to).
    async fn dnode_block(&self, block: u64) -> Result<Block> {
        self.block_at(&self.meta_dnode, block, NEWEST).await
    }

    /// Allocates a free object number.
    ///
    /// # Errors
    /// [`ObjectError::TooBig`], [`ObjectError::OutOfObjects`], errors of reading.
    pub async fn allocate(self: &Arc<Self>, tx: &Tx, new: NewObject) -> Result<Object> {
        let meta = new.meta(ObjectId::ZERO)?;
        let mut ids = self.ids.lock().await;
        let id = loop {
            if let Some(slot) = take_run(&mut ids.free, meta.slots) {
                break ObjectId::new(ids.block * DNODES_PER_BLOCK + u64::from(slot));
            }
            self.next_id_block(&mut ids).await?;
        };
        Ok(self.install_new(tx, id, meta))
    }

    /// Allocates this very object number (log replay, receive, well-known objects).
    ///
    /// # Errors
    /// [`ObjectError::ObjectExists`], also when the object was freed in a txg that is not synced
    /// yet: then it works once that txg is.
    pub async fn claim(self: &Arc<Self>, tx: &Tx, id: ObjectId, new: NewObject) -> Result<Object> {
        let meta = new.meta(id)?;
        if let Some(dnode) = self.accounts.iter().find(|dnode| dnode.id == id) {
            if dnode.lock().meta().exists {
                return Err(ObjectError::ObjectExists { object: id });
            }
            self.note_dirty(tx.txg());
            self.allocate_in(dnode, tx, meta);
            return Ok(Object::new(self.clone(), dnode.clone()));
        }
        let slot = (id.get() % DNODES_PER_BLOCK) as u32;
        let out_of_range = id.is_zero()
            || id.get() >= ObjectId::LIMIT
            || u64::from(slot) + u64::from(meta.slots) > DNODES_PER_BLOCK;
        if out_of_range {
            return Err(ObjectError::TooBig {
                object: id,
                what: format!("an object number of {id} with {} slots", meta.slots),
            });
        }
        let mut ids = self.ids.lock().await;
        let block = id.get() / DNODES_PER_BLOCK;
        let wanted = slot_mask(slot, meta.slots);
        if self.used_mask(block).await? & wanted != 0 {
            return Err(ObjectError::ObjectExists { object: id });
        }
        if ids.block == block {
            ids.free &= !wanted;
        }
        Ok(self.install_new(tx, id, meta))
    }

    /// Puts a new object into table, pending numbers and slot. The lock of the numbers is held.
    fn install_new(self: &Arc<Self>, tx: &Tx, id: ObjectId, meta: Meta) -> Object {
        self.note_dirty(tx.txg());
        if meta.slots > 1 {
            self.large_dnodes.store(true, Ordering::Relaxed);
        }
        self.pending.lock()[parity(tx.txg())].add(id.get(), meta.slots);
        let dnode = Dnode::free(id);
        dnode.lock().tree.generation = self.next_generation();
        self.allocate_in(&dnode, tx, meta);
        self.table.replace(id.get(), dnode.clone());
        Object::new(self.clone(), dnode)
    }

    fn allocate_in(&self, dnode: &Arc<Dnode>, tx: &Tx, meta: Meta) {
        let mut state = dnode.lock();
        self.slot_mut(dnode, &mut state, tx.txg()).meta = Some(meta);
        tx.dirtied(DNODE_SLOT_BYTES as u64);
    }

    /// Slots of a block of dnodes that are taken on disk or given out.
    async fn used_mask(&self, block: u64) -> Result<u32> {
        let on_disk = match self.dnode_block(block).await? {
            Block::Data(data, _) => used_slots(&data).0,
            Block::Zeros => 0,
        };
        let reserved = u32::from(block == 0);
        let pending = self.pending.lock();
        let given_out = pending
            .iter()
            .filter_map(|ids| ids.0.get(&block))
            .fold(0, |mask, (used, _)| mask | used);
        Ok(on_disk | given_out | reserved)
    }

    /// Makes another block with free slots the current one.
    async fn next_id_block(&self, ids: &mut IdAllocator) -> Result<()> {
        loop {
            let block = match ids.hints.pop_first() {
                Some(block) => block,
                None => {
                    let (tree, full) = (self.meta_dnode.lock().tree.clone(), ids.full_fill);
                    let spans: Vec<u32> = (0..tree.levels)
                        .map(|level| tree.span_shift(level))
                        .collect();
                    let has_room = move |level: u8, pointer: &BlockPointer| {
                        pointer.is_hole() || pointer.fill() < shl(full, spans[usize::from(level)])
                    };
                    let found = self
                        .next_in_tree(ObjectId::META_DNODE, &tree, ids.scan, &has_room)
                        .await?;
                    let block = found.unwrap_or_else(|| {
                        let beyond = shl(
                            u64::from(tree.pointer_count),
                            tree.span_shift(tree.levels - 1),
                        );
                        ids.scan.max(beyond)
                    });
                    if block >= ObjectId::LIMIT / DNODES_PER_BLOCK {
                        return Err(ObjectError::OutOfObjects);
                    }
                    ids.scan = block + 1;
                    block
                }
            };
            let free = !self.used_mask(block).await?;
            if free == 0 {
                if let Block::Data(data, _) = self.dnode_block(block).await? {
                    let dnodes = u64::from(used_slots(&data).1.count_ones());
                    ids.full_fill = ids.full_fill.min(dnodes.max(1));
                }
                continue;
            }
            ids.block = block;
            ids.free = free;
            return Ok(());
        }
    }

    /// Frees an object with all its blocks.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`] and errors of reading.
    pub async fn free(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<()> {
        let dnode = self.dnode(id).await?;
        self.note_dirty(tx.txg());
        let mut state = dnode.lock();
        if !state.meta().exists || id == ObjectId::META_DNODE {
            return Err(ObjectError::NoSuchObject { object: id });
        }
        let slots = state.meta().slots;
        let slot = self.slot_mut(&dnode, &mut state, tx.txg());
        slot.blocks = Arc::default();
        slot.freed = Default::default();
        slot.spill = Default::default();
        slot.meta = Some(Meta {
            slots,
            ..Meta::free()
        });
        tx.dirtied(DNODE_SLOT_BYTES as u64);
        Ok(())
    }

    /// The first existing object with a number above `after` (`None`: from the start), unwritten
    /// changes included.
    ///
    /// # Errors
    /// Errors of reading.
    pub async fn next_object(
        self: &Arc<Self>,
        after: Option<ObjectId>,
    ) -> Result<Option<ObjectId>> {
        let mut from = after.map_or(1, |id| id.get().saturating_add(1)).max(1);
        let not_hole = |_: u8, pointer: &BlockPointer| !pointer.is_hole();
        loop {
            if from >= ObjectId::LIMIT {
                return Ok(None);
            }
            let start = from / DNODES_PER_BLOCK;
            let tree = self.meta_dnode.lock().tree.clone();
            let on_disk = self
                .next_in_tree(ObjectId::META_DNODE, &tree, start, &not_hole)
                .await?;
            let pending = {
                let pending = self.pending.lock();
                pending
                    .iter()
                    .filter_map(|ids| ids.0.range(start..).next().map(|(block, _)| *block))
                    .min()
            };
            let Some(block) = on_disk.into_iter().chain(pending).min() else {
                return Ok(None);
            };
            let mut first = match self.dnode_block(block).await? {
                Block::Data(data, _) => used_slots(&data).1,
                Block::Zeros => 0,
            };
            for ids in self.pending.lock().iter() {
                first |= ids.0.get(&block).map_or(0, |(_, first)| *first);
            }
            for slot in 0..DNODES_PER_BLOCK {
                let id = block * DNODES_PER_BLOCK + slot;
                if id < from || first & (1 << slot) == 0 {
                    continue;
                }
                let gone = self
                    .table
                    .get(id)
                    .is_some_and(|dnode| !dnode.lock().meta().exists);
                if !gone {
                    return Ok(Some(ObjectId::new(id)));
                }
            }
            from = (block + 1) * DNODES_PER_BLOCK;
        }
    }

    /// Objects that exist, by the fill count of the last sync.
    pub fn object_count(&self) -> u64 {
        self.head.lock().root.fill()
    }

    /// Drops every clean object and block index from memory (memory pressure, tests).
    pub fn trim(&self) {
        self.table.trim();
        self.indirects.clear();
    }
}

/// The bonus in our byte order.
fn swap_bonus(phys: &DnodePhys, endian: Endian) -> Bytes {
    let mut bonus = phys.bonus.clone();
    if endian == Endian::Big {
        swap_words(phys.bonus_type, &mut bonus);
    }
    Bytes::from(bonus)
}

/// Takes the first run of `slots` free bits.
fn take_run(free: &mut u32, slots: u8) -> Option<u32> {
    let slots = slots.clamp(1, 32);
    let run = slot_mask(0, slots);
    for first in 0..=(32 - u32::from(slots)) {
        let mask = run << first;
        if *free & mask == mask {
            *free &= !mask;
            return Some(first);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_slots_are_taken_within_a_block() {
        let mut free = 0b1111_0110u32;
        assert_eq!(take_run(&mut free, 2), Some(1));
        assert_eq!(free, 0b1111_0000);
        assert_eq!(take_run(&mut free, 4), Some(4));
        assert_eq!(take_run(&mut free, 1), None);
        let mut all = u32::MAX;
        assert_eq!(take_run(&mut all, 32), Some(0));
        assert_eq!(all, 0);
    }
}
