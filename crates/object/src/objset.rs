//! Object sets: the table of objects in memory, object numbers, and the head (`objset_phys_t`).
//!
//! # State
//! | What | Guarded by |
//! |---|---|
//! | objects in memory | sharded table; an object stays while it is dirty or a handle exists, else until the table is full or its memory is asked back ([`zio::Charge`]) |
//! | lists of dirty objects, one per slot (`dirty`) | one lock each; an object is put there when its slot becomes dirty |
//! | head: flags, intent log header, root | `head` |
//! | free object numbers | `ids`, an async lock: looking for a free number may read dnode blocks |
//! | numbers given out but not on disk | `pending` |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use device::World;
use format::Bookmark;
use format::{
    BlockPointer, DNODE_BLOCK_BYTES, DNODE_SLOT_BYTES, DNODES_PER_BLOCK, DnodePhys, Endian,
    MAX_DNODE_POINTERS, MAX_INDIRECT_SHIFT, OBJSET_FLAG_PROJECT_QUOTA, OBJSET_FLAG_USER_ACCOUNTING,
    OBJSET_FLAG_USER_OBJECT_ACCOUNTING, ObjectId, ObjectType, ObjsetId, ObjsetKind, ObjsetPhys,
    Txg, ZilHeader,
};
use parking_lot::{Mutex, RwLock};
use zio::{Charge, Pipeline, ReadContext, Tx};

use crate::accounting::{AccountingKeys, Recount, ZplAccounting};
use crate::byteswap::swap_words;
use crate::dirty::Dirty;
use crate::dnode::{Dnode, Meta, parity, shl};
use crate::error::{ObjectError, OfObject, Result, damaged};
use crate::numbers::{IdAllocator, PendingIds, used_slots};
use crate::object::Object;
use crate::options::{ObjsetOptions, WriteProperties};
use crate::raw::RawRoot;
use crate::table::ObjectTable;
use crate::tree::{Block, Blocks, NEWEST};

/// The head's changes of one txg.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadSlot {
    pub dirty: bool,
    pub txg: Txg,
    pub zil: Option<ZilHeader>,
    pub flags: Option<u64>,
    pub raw: Option<RawRoot>,
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

/// All objects of one dataset, or of the pool (the MOS).
pub struct ObjectSet {
    /// How it is read.
    pub(crate) blocks: Blocks,
    world: World,
    kind: ObjsetKind,
    accounting: RwLock<Option<Arc<dyn AccountingKeys>>>,
    pub(crate) head: Mutex<Head>,
    /// The object of dnodes.
    pub(crate) meta_dnode: Arc<Dnode>,
    /// Users', groups' and projects' space.
    pub(crate) accounts: [Arc<Dnode>; 3],
    pub(crate) table: Arc<ObjectTable>,
    pub(crate) dirty: Dirty,
    pub(crate) ids: tokio::sync::Mutex<IdAllocator>,
    pub(crate) pending: Mutex<[PendingIds; 2]>,
    generation: AtomicU64,
    pub(crate) large_dnodes: AtomicBool,
    /// Bits of [`Self::flags`] that stand for what is counted, though not of all objects yet.
    counting: AtomicU64,
    pub(crate) long_names: AtomicBool,
    /// Where everything is counted anew.
    pub(crate) recount: Mutex<Option<Recount>>,
}

impl std::fmt::Debug for ObjectSet {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "ObjectSet({:?} of dataset {})",
            self.kind, self.blocks.options.dataset
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
            block_id: 0,
        };
        if root.is_hole() {
            return Err(damaged(
                ObjectId::ZERO,
                "objset_phys_t",
                "its block pointer is a hole",
            ));
        }
        let context = ReadContext {
            without_key: options.without_key,
            cache: options.properties.cached.on_read(ObjectType::OBJSET, 0),
            ..ReadContext::new(bookmark)
        };
        let data = pipeline.read(&root, &context).await?;
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
        let mut phys = ObjsetPhys::new(kind, Self::new_dnodes(kind));
        if kind == ObjsetKind::Filesystem && !options.raw && options.accounts {
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

    /// The object of dnodes of a new object set.
    pub fn new_dnodes(kind: ObjsetKind) -> DnodePhys {
        let mut dnodes = DnodePhys::new(
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
                5 + u32::from(dnodes.levels - 1) * (u32::from(MAX_INDIRECT_SHIFT) - 7),
            ) < ObjectId::LIMIT
            {
                dnodes.levels += 1;
            }
        }
        dnodes
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
            Dnode::from_phys(id, phys.clone(), bonus, pipeline.cache().charge())
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
            accounting: RwLock::new(accounting),
            meta_dnode: special(ObjectId::META_DNODE, &phys.meta_dnode),
            accounts,
            head: Mutex::new(Head {
                root,
                phys,
                slots: Default::default(),
            }),
            table: ObjectTable::new(options.object_cache_limit, pipeline.cache().charge()),
            dirty: Dirty::default(),
            ids: Default::default(),
            pending: Default::default(),
            generation: AtomicU64::new(1),
            large_dnodes: AtomicBool::new(false),
            counting: AtomicU64::new(0),
            long_names: AtomicBool::new(false),
            recount: Mutex::new(None),
            blocks: Blocks::new(pipeline, options),
            world,
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

    /// Bits `format::OBJSET_FLAG_*` of what is counted when an object is written.
    pub fn counted(&self) -> u64 {
        self.flags() | self.counting.load(Ordering::Acquire)
    }

    /// From now on counts more, of each object as soon as it is written. When all were, the bits
    /// belong into [`Self::flags`].
    pub fn count_also(&self, flags: u64) {
        self.counting.fetch_or(flags, Ordering::AcqRel);
    }

    /// Counts everything anew, of each object as soon as it is written; what the object set says
    /// of that so far does not count. Does nothing where that has begun.
    pub fn recount(&self) {
        self.recount.lock().get_or_insert_default();
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

    /// Whether a ZAP got a name of more than 255 bytes since this was opened (feature `longname`).
    pub fn used_long_names(&self) -> bool {
        self.long_names.load(Ordering::Relaxed)
    }

    /// The block that the last sync wrote (or that it was opened from); a hole before the first
    /// sync.
    pub fn root(&self) -> BlockPointer {
        self.head.lock().root
    }

    /// Its pipeline.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.blocks.pipeline
    }

    /// Its world.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The options it was opened with.
    pub fn options(&self) -> &ObjsetOptions {
        &self.blocks.options
    }

    /// How blocks are written now.
    pub fn properties(&self) -> WriteProperties {
        *self.blocks.properties.read()
    }

    /// Changes how blocks are written from now on.
    pub fn set_properties(&self, properties: WriteProperties) {
        *self.blocks.properties.write() = properties;
    }

    /// Replaces who tells whose space an object is. A filesystem has [`ZplAccounting`] from the
    /// start.
    pub fn set_accounting(&self, keys: Arc<dyn AccountingKeys>) {
        *self.accounting.write() = Some(keys);
    }

    pub(crate) fn accounting(&self) -> Option<Arc<dyn AccountingKeys>> {
        self.accounting.read().clone()
    }

    /// Is called when the object set first becomes dirty in a txg, and again when that happens
    /// after a sync of the same txg. Called with no lock of this crate held.
    pub fn set_dirty_hook(&self, hook: Arc<dyn Fn(Txg) + Send + Sync>) {
        *self.dirty.hook.write() = Some(hook);
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

    pub(crate) fn dirty_head(&self, tx: &Tx, change: impl FnOnce(&mut HeadSlot)) {
        self.dirty.note(tx.txg());
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
        head_dirty || !self.dirty.objects[parity(txg)].lock().is_empty()
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
            let mut phys = DnodePhys::decode(bytes, endian).of(id)?;
            if !self.blocks.options.raw {
                phys.bonus_tail = Vec::new();
            }
            let bonus = swap_bonus(&phys, endian);
            let dnode = Dnode::from_phys(id, phys, bonus, self.charge());
            dnode.lock().tree.generation = self.next_generation();
            // What was read may be older than a sync that ended meanwhile, after which the
            // object may even have been dropped from memory.
            let current = || self.meta_dnode.lock().tree.generation == generation;
            if let Some(dnode) = self.table.insert_if(id.get(), dnode, current) {
                self.charge().settle();
                return Ok(dnode);
            }
        }
    }

    /// A block of dnodes, as the last sync left it (or is just about to).
    pub(crate) async fn dnode_block(&self, block: u64) -> Result<Block> {
        self.blocks.block_at(&self.meta_dnode, block, NEWEST).await
    }

    /// Frees an object with all its blocks.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchObject`] and errors of reading.
    pub async fn free(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<()> {
        let dnode = self.dnode(id).await?;
        free_dnode(self, tx, &dnode)
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
                .blocks
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

    /// Where its objects in memory count.
    pub(crate) fn charge(&self) -> &Arc<Charge> {
        self.blocks.pipeline.cache().charge()
    }
}

/// Frees an object that is in memory.
pub(crate) fn free_dnode(set: &ObjectSet, tx: &Tx, dnode: &Arc<Dnode>) -> Result<()> {
    set.dirty.note(tx.txg());
    let mut state = dnode.lock();
    if !state.meta().exists || dnode.id == ObjectId::META_DNODE {
        return Err(dnode.missing());
    }
    let slots = state.meta().slots;
    let slot = set.dirty.slot_mut(dnode, &mut state, tx);
    slot.blocks = Default::default();
    slot.cloned = Default::default();
    slot.raw = Default::default();
    slot.packed = Default::default();
    slot.freed = Default::default();
    slot.moved = Default::default();
    slot.again = Default::default();
    slot.passing = Default::default();
    slot.spill = Default::default();
    slot.meta = Some(Meta {
        slots,
        ..Meta::free()
    });
    Ok(())
}

/// The bonus in our byte order.
fn swap_bonus(phys: &DnodePhys, endian: Endian) -> Bytes {
    let mut bonus = phys.bonus.clone();
    if endian == Endian::Big {
        swap_words(phys.bonus_type, &mut bonus);
    }
    Bytes::from(bonus)
}
