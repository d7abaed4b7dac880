//! Writing a closed txg: what the sync loop hands down, and how an object set is written.
//!
//! # Order
//! For every dirty object: its level-0 blocks, then the indirect blocks above them, bottom up
//! ([`crate::treesync`]). Then the accounting ZAPs, the blocks of dnodes and their indirect blocks,
//! and last the head, whose pointer is the result. Nothing refers to a block before it was written.
//!
//! # After each object
//! Its slot is cleared and its disk layer replaced in one critical section, so readers never miss a
//! version. An error ends the sync for good: the txg cannot become durable, and the pool must be
//! left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use device::{BoxFuture, World};
use format::{
    BlockPointer, DNODE_BLOCK_BYTES, DNODE_SLOT_BYTES, DNODES_PER_BLOCK, DnodeFlags, DnodePhys,
    Endian, OBJSET_FLAG_PROJECT_QUOTA, OBJSET_FLAG_USER_ACCOUNTING,
    OBJSET_FLAG_USER_OBJECT_ACCOUNTING, ObjectId, ObjectType, Txg,
};
use futures::StreamExt;
use zio::{Pipeline, Tx, TxgManager};

use crate::accounting::{AccountDeltas, AccountScope, AccountingIds, Recount};
use crate::byteswap::swap_dnodes;
use crate::dnode::{Dnode, Meta, Slot, SpillChange, Tree, parity};
use crate::error::{OfObject, Result};
use crate::objset::{HeadSlot, ObjectSet};
use crate::tree::{Block, NEWEST};
use crate::treesync::TreeSync;
use crate::zap::{Zap, ZapOptions};

/// Objects that are written at the same time.
const OBJECTS_IN_FLIGHT: usize = 64;
/// Blocks of dnodes that are read at the same time.
const DNODE_READS_IN_FLIGHT: usize = 32;

/// One pass of syncing one txg, as handed down by the sync loop.
#[derive(Clone)]
pub struct SyncContext {
    /// The txg that is written.
    pub txg: Txg,
    /// The pass, from 1 (`spa_sync_pass`). From pass 2 on, MOS blocks born in this txg are
    /// rewritten in place.
    pub pass: u32,
    /// Where blocks go.
    pub pipeline: Arc<Pipeline>,
    /// The world.
    pub world: World,
    /// Whose throttle hears of progress; `None` where there is none.
    pub txgs: Option<Arc<TxgManager>>,
}

/// Hears of every block that a sync writes or lets go. The dataset decides whether a dead block is
/// freed or goes to a deadlist. Holes are never reported, embedded blocks are (they count as
/// uncompressed data); a block rewritten in place is neither born nor dead. The object set's root
/// block is reported like any other.
pub trait BlockAccounting: Send + Sync {
    /// `block` was written in this txg.
    fn born(&self, block: &BlockPointer);
    /// `block` is not referenced any more.
    fn dead(&self, block: &BlockPointer);
}

/// One side of an object's change, for accounting.
#[derive(Debug, Clone, Copy)]
struct Owned {
    ids: AccountingIds,
    used_bytes: u64,
    flags: DnodeFlags,
}

/// An object that was written.
struct Written {
    dnode: Arc<Dnode>,
    /// Slots it took on disk before.
    old_slots: usize,
    /// What it is on disk now; a free slot when it was freed.
    phys: DnodePhys,
    before: Option<Owned>,
    after: Option<Owned>,
    /// What it counted as dirty itself, without its blocks.
    dirty_bytes: u64,
}

impl ObjectSet {
    /// Writes everything that is dirty in `ctx.txg` and returns the new root block. May be called
    /// several times for a txg; each call writes only what was dirtied since. Returns the old root
    /// when nothing is dirty.
    ///
    /// # Errors
    /// Errors of the pool. They are final: part of the txg may be written, and trying again would
    /// report blocks twice.
    pub fn sync<'a>(
        self: &'a Arc<Self>,
        ctx: &'a SyncContext,
        acct: &'a dyn BlockAccounting,
    ) -> BoxFuture<'a, Result<BlockPointer>> {
        Box::pin(async move {
            let txg = ctx.txg;
            if !self.is_dirty(txg) {
                return Ok(self.root());
            }
            self.begin_raw(txg);
            let mut written = Vec::new();
            let dirty: Vec<_> = {
                let mut list = self.dirty.objects[parity(txg)].lock();
                // The accounting objects, at the end of the numbers, wait for the others.
                let special = list.split_off(&ObjectId::PROJECT_USED.get());
                std::mem::replace(&mut *list, special)
                    .into_values()
                    .collect()
            };
            let mut running = futures::stream::iter(dirty)
                .map(|dnode| self.sync_dnode(dnode, ctx, acct))
                .buffer_unordered(OBJECTS_IN_FLIGHT);
            while let Some(done) = running.next().await {
                written.push(done?);
            }
            drop(running);
            self.account(ctx, &written).await?;
            let special = std::mem::take(&mut *self.dirty.objects[parity(txg)].lock());
            for dnode in special.into_values() {
                self.sync_dnode(dnode, ctx, acct).await?;
            }
            if !written.is_empty() {
                self.sync_dnode_blocks(ctx, acct, &written).await?;
            }
            let root = self.sync_head(ctx, acct).await?;
            self.forget_synced(txg, &written).await;
            let written_bytes = written.iter().map(|object| object.dirty_bytes).sum();
            drop(written);
            if let Some(txgs) = &ctx.txgs {
                txgs.sync_progress(txg, written_bytes);
            }
            self.charge().settle();
            Ok(root)
        })
    }

    /// Writes one object's blocks and makes the result its disk layer.
    async fn sync_dnode(
        &self,
        dnode: Arc<Dnode>,
        ctx: &SyncContext,
        acct: &dyn BlockAccounting,
    ) -> Result<Written> {
        let txg = ctx.txg;
        let (meta, old, tree, old_spill, old_used, old_flags, changes) = {
            let mut state = dnode.lock();
            let meta = state.meta_at(txg).clone();
            let (tree, old) = (state.tree.clone(), state.disk.clone());
            let (old_spill, used, flags) = (state.spill, state.used_bytes, state.flags);
            let slot = state
                .slot(txg)
                .expect("an object on the list of dirty ones has a dirty slot");
            (meta, old, tree, old_spill, used, flags, slot.clone())
        };
        let mut work = TreeSync::new(self, ctx, acct, dnode.id, &old, &meta, &changes);
        work.in_dedup_class = dnode.in_dedup_class.load(Ordering::Relaxed);
        let (mut new_tree, new_spill) = if meta.exists {
            let new_spill = match &changes.spill {
                SpillChange::Keep => old_spill,
                SpillChange::Remove => {
                    work.kill(old_spill.as_ref());
                    None
                }
                SpillChange::WriteRaw(raw) => {
                    let old = old_spill.unwrap_or(BlockPointer::HOLE);
                    Some(work.write_raw_spill(&old, raw).await?)
                }
                SpillChange::Write(data) => {
                    let old = old_spill.unwrap_or(BlockPointer::HOLE);
                    Some(work.write_spill(&old, data.clone()).await?)
                }
            };
            (work.sync_tree(&tree).await?, new_spill)
        } else {
            work.kill(old_spill.as_ref());
            work.free_all(&tree).await?;
            (Tree::empty(), None)
        };
        let used_bytes = if meta.exists {
            old_used.saturating_add_signed(work.used_delta())
        } else {
            0
        };
        let special = dnode.id.is_zero() || dnode.id >= ObjectId::PROJECT_USED;
        let mut flags = if meta.exists && old.exists {
            old_flags
        } else {
            DnodeFlags::default()
        };
        if self.options().raw {
            // What it was counted for is not known: its bonus is encrypted.
            flags = flags
                .without(DnodeFlags::USER_USED_ACCOUNTED)
                .without(DnodeFlags::USER_OBJECTS_ACCOUNTED);
        }
        flags = flags.with(DnodeFlags::USED_BYTES);
        let scope = self.account_scope().filter(|_| !special);
        if let Some(scope) = scope {
            flags = flags.with(DnodeFlags::USER_USED_ACCOUNTED);
            if scope.objects {
                flags = flags.with(DnodeFlags::USER_OBJECTS_ACCOUNTED);
            }
        }
        let keys = self.accounting().filter(|_| scope.is_some());
        let owned = |meta: &Meta, used_bytes, flags| {
            let ids = keys
                .as_ref()
                .filter(|_| meta.exists)?
                .ids(meta.bonus_type, &meta.bonus)?;
            Some(Owned {
                ids,
                used_bytes,
                flags,
            })
        };
        let flags_before = match scope {
            Some(_) => self.flags_counted(dnode.id, old_flags),
            None => old_flags,
        };
        let before = owned(&old, old_used, flags_before);
        let after = owned(&meta, used_bytes, flags);
        new_tree.generation = self.next_generation();
        let phys = {
            let mut state = dnode.lock();
            let phys = if meta.exists {
                encode_dnode(
                    state.base.as_deref(),
                    &meta,
                    &new_tree,
                    new_spill,
                    used_bytes,
                    flags,
                )
            } else {
                DnodePhys::free()
            };
            let mut base = phys.clone();
            base.bonus = Vec::new();
            state.base = meta.exists.then(|| Box::new(base));
            state.disk = Meta {
                has_spill: new_spill.is_some(),
                ..meta
            };
            state.tree = new_tree;
            state.spill = new_spill;
            state.used_bytes = used_bytes;
            state.flags = flags;
            state.slots[parity(txg)] = None;
            phys
        };
        Ok(Written {
            dnode,
            old_slots: if old.exists {
                usize::from(old.slots)
            } else {
                0
            },
            phys,
            before,
            after,
            dirty_bytes: changes.dirty_bytes,
        })
    }

    /// The flags of an object that is about to be counted, without what they say of a count that is
    /// made anew.
    fn flags_counted(&self, id: ObjectId, flags: DnodeFlags) -> DnodeFlags {
        let mut recount = self.recount.lock();
        let Some(recount) = recount.as_mut() else {
            return flags;
        };
        let is_counted = recount.counted.contains(id.get());
        recount.counted.add(id.get(), id.get() + 1);
        match is_counted {
            true => flags,
            false => flags
                .without(DnodeFlags::USER_USED_ACCOUNTED)
                .without(DnodeFlags::USER_OBJECTS_ACCOUNTED),
        }
    }

    /// Forgets all counts, if they are made anew and that has not been done.
    async fn clear_accounts(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        let is_due =
            |recount: &Option<Recount>| recount.as_ref().is_some_and(|recount| !recount.is_cleared);
        if !is_due(&self.recount.lock()) {
            return Ok(());
        }
        for id in [
            ObjectId::USER_USED,
            ObjectId::GROUP_USED,
            ObjectId::PROJECT_USED,
        ] {
            if !self.has_account(id).await? {
                continue;
            }
            let zap = Zap::open(self.hold(id).await?).await?;
            for entry in zap.all().await? {
                zap.remove(tx, entry.name).await?;
            }
        }
        if let Some(recount) = self.recount.lock().as_mut() {
            recount.is_cleared = true;
        }
        Ok(())
    }

    /// What is counted per user and project, if anything.
    fn account_scope(&self) -> Option<AccountScope> {
        let flags = self.counted();
        let counts = flags & OBJSET_FLAG_USER_ACCOUNTING != 0 && !self.options().raw;
        (counts && self.accounting().is_some()).then_some(AccountScope {
            objects: flags & OBJSET_FLAG_USER_OBJECT_ACCOUNTING != 0,
            projects: flags & OBJSET_FLAG_PROJECT_QUOTA != 0,
        })
    }

    /// Brings the space per user, group and project up to date (`dmu_objset_sync_done`).
    async fn account(self: &Arc<Self>, ctx: &SyncContext, written: &[Written]) -> Result<()> {
        let Some(scope) = self.account_scope() else {
            return Ok(());
        };
        let tx = Tx::syncing(ctx.txg);
        self.clear_accounts(&tx).await?;
        let mut deltas = AccountDeltas::default();
        for object in written {
            for (side, sign) in [(object.before, -1), (object.after, 1)] {
                if let Some(owned) = side {
                    let space = owned.flags.contains(DnodeFlags::USER_USED_ACCOUNTED);
                    let counted = owned.flags.contains(DnodeFlags::USER_OBJECTS_ACCOUNTED);
                    deltas.count(owned.ids, owned.used_bytes, space, counted, scope, sign);
                }
            }
        }
        if scope.projects && !self.has_account(ObjectId::PROJECT_USED).await? {
            // What was there before projects are counted is of none, which is project 0.
            for (name, used) in self.used_by_all_users().await? {
                *deltas.projects.entry(name).or_default() += used;
            }
        }
        for (id, table) in [
            (ObjectId::USER_USED, deltas.users),
            (ObjectId::GROUP_USED, deltas.groups),
            (ObjectId::PROJECT_USED, deltas.projects),
        ] {
            if table.values().all(|delta| *delta == 0) {
                continue;
            }
            let zap = match self.hold(id).await {
                Ok(object) => Zap::open(object).await?,
                Err(error) if error.is_not_found() => {
                    let mut options = ZapOptions::new(ObjectType::USERGROUP_USED);
                    options.claim = Some(id);
                    Zap::create(self, &tx, options).await?
                }
                Err(error) => return Err(error),
            };
            for (name, delta) in table {
                if delta != 0 {
                    zap.increment(&tx, &name, delta).await?;
                }
            }
        }
        Ok(())
    }

    async fn has_account(self: &Arc<Self>, id: ObjectId) -> Result<bool> {
        match self.hold(id).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Space and objects of all users together, as entries of project 0.
    async fn used_by_all_users(self: &Arc<Self>) -> Result<[(String, i64); 2]> {
        let (mut bytes, mut objects) = (0i64, 0i64);
        if self.has_account(ObjectId::USER_USED).await? {
            let users = Zap::open(self.hold(ObjectId::USER_USED).await?).await?;
            for entry in users.all().await? {
                let used = entry.value.as_u64().unwrap_or(0).cast_signed();
                match entry.name.starts_with(b"obj-") {
                    true => objects = objects.saturating_add(used),
                    false => bytes = bytes.saturating_add(used),
                }
            }
        }
        Ok([("0".to_owned(), bytes), ("obj-0".to_owned(), objects)])
    }

    /// Puts the written dnodes into their blocks, and writes those.
    async fn sync_dnode_blocks(
        &self,
        ctx: &SyncContext,
        acct: &dyn BlockAccounting,
        written: &[Written],
    ) -> Result<()> {
        let mut by_block: BTreeMap<u64, Vec<&Written>> = BTreeMap::new();
        for object in written {
            let block = object.dnode.id.get() / DNODES_PER_BLOCK;
            by_block.entry(block).or_default().push(object);
        }
        // Only numbers go through the stream: with references in it the future would not be `Send`.
        let numbers: Vec<u64> = by_block.keys().copied().collect();
        let mut bases = futures::stream::iter(numbers)
            .map(|block| async move {
                let base = self
                    .blocks
                    .block_at(&self.meta_dnode, block, NEWEST)
                    .await?;
                Ok::<_, crate::ObjectError>((block, base))
            })
            .buffer_unordered(DNODE_READS_IN_FLIGHT);
        let mut blocks = BTreeMap::new();
        while let Some(next) = bases.next().await {
            let (block, base) = next?;
            let mut objects = by_block.remove(&block).unwrap_or_default();
            let mut bytes = match base {
                Block::Zeros => Vec::new(),
                Block::Data(data, Endian::Little) => data.to_vec(),
                Block::Data(data, Endian::Big) => swap_dnodes(&data).of(ObjectId::META_DNODE)?,
            };
            bytes.resize(DNODE_BLOCK_BYTES, 0);
            // What was freed first: its slots may have been given to another object.
            objects.sort_by_key(|object| !object.phys.is_free());
            for object in objects {
                let slot = (object.dnode.id.get() % DNODES_PER_BLOCK) as usize;
                let at = slot * DNODE_SLOT_BYTES;
                bytes[at..at + object.old_slots * DNODE_SLOT_BYTES].fill(0);
                if !object.phys.is_free() {
                    let encoded = object.phys.encode().of(object.dnode.id)?;
                    bytes[at..at + encoded.len()].copy_from_slice(&encoded);
                }
            }
            blocks.insert(block, Bytes::from(bytes));
        }
        drop(bases);
        {
            let mut state = self.meta_dnode.lock();
            let mut meta = state.disk.clone();
            let last = blocks.keys().next_back().copied().unwrap_or(0);
            meta.max_block = meta.max_block.max(last);
            let mut slot = Slot {
                txg: ctx.txg,
                meta: Some(meta),
                ..Slot::default()
            };
            match self.options().raw {
                true => self.blocks.raw_dnodes.put(blocks, &mut slot),
                false => slot.blocks = blocks.into(),
            }
            state.slots[parity(ctx.txg)] = Some(Box::new(slot));
        }
        self.sync_dnode(self.meta_dnode.clone(), ctx, acct).await?;
        Ok(())
    }

    /// Writes the head.
    async fn sync_head(
        &self,
        ctx: &SyncContext,
        acct: &dyn BlockAccounting,
    ) -> Result<BlockPointer> {
        let (old, mut phys, slot) = {
            let head = self.head.lock();
            let slot = head.slots[parity(ctx.txg)].clone();
            (head.root, head.phys.clone(), slot)
        };
        if let Some(zil) = slot.zil {
            phys.zil_header = zil;
        }
        if let Some(flags) = slot.flags {
            phys.flags = flags;
        }
        if let Some(raw) = &slot.raw {
            raw.apply(&mut phys);
        }
        let live = |dnode: &Dnode| {
            let state = dnode.lock();
            match (&state.base, state.disk.exists) {
                (Some(base), true) => {
                    let mut phys = (**base).clone();
                    phys.bonus = state.disk.bonus.to_vec();
                    phys
                }
                _ => DnodePhys::free(),
            }
        };
        phys.meta_dnode = live(&self.meta_dnode);
        let [user, group, project] = &self.accounts;
        let has_accounts = self.options().accounts;
        phys.user_group_used = has_accounts.then(|| Box::new([live(user), live(group)]));
        phys.project_used = has_accounts.then(|| Box::new(live(project)));
        let fill = phys
            .meta_dnode
            .pointers
            .iter()
            .map(|pointer| pointer.fill())
            .sum();
        let data = Bytes::from(phys.encode().of(ObjectId::META_DNODE)?);
        let root = TreeSync::write_root(self, ctx, acct, &old, data, fill).await?;
        let mut head = self.head.lock();
        head.root = root;
        head.phys = phys;
        head.slots[parity(ctx.txg)] = HeadSlot::default();
        Ok(root)
    }

    /// After a txg's objects are in their blocks: numbers given out are on disk, freed ones are
    /// free.
    async fn forget_synced(&self, txg: Txg, written: &[Written]) {
        let mut ids = self.ids.lock().await;
        for object in written {
            if object.phys.is_free() {
                ids.hints.insert(object.dnode.id.get() / DNODES_PER_BLOCK);
                self.table.remove(&object.dnode);
            }
        }
        self.pending.lock()[parity(txg)].clear();
        self.dirty.forget_noted(txg);
    }
}

/// A dnode as it is to be on disk.
fn encode_dnode(
    base: Option<&DnodePhys>,
    meta: &Meta,
    tree: &Tree,
    spill: Option<BlockPointer>,
    used_bytes: u64,
    flags: DnodeFlags,
) -> DnodePhys {
    let mut phys = base.cloned().unwrap_or_else(DnodePhys::free);
    phys.bonus_tail = meta.bonus_tail.to_vec();
    phys.object_type = meta.object_type;
    phys.indirect_block_shift = meta.indirect_shift;
    phys.levels = tree.levels;
    phys.bonus_type = meta.bonus_type;
    phys.checksum = meta.checksum;
    phys.compression = meta.compression;
    phys.flags = flags;
    phys.data_block_bytes = meta.block_bytes;
    phys.extra_slots = meta.slots - 1;
    phys.max_block_id = meta.max_block;
    phys.used_bytes = used_bytes;
    phys.pointers = tree.pointers[..usize::from(tree.pointer_count)].to_vec();
    phys.bonus = meta.bonus.to_vec();
    phys.spill = spill;
    phys
}
