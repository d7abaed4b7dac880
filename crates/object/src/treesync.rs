//! Writing one object's tree, bottom up, and freeing parts of it.
//!
//! Only indirect blocks on the way to something that changed are touched. A subtree that is freed
//! whole is walked to tell its blocks dead, without reading level-0 blocks. An indirect block whose
//! pointers are all holes becomes a hole.
//!
//! Blocks are written side by side and get their places in the order of the object ([`Turn`]): what
//! was written at a time lies in sequence on disk. Subtrees are worked on side by side as well, but
//! the blocks of one begin when those of the one before it have begun.
//!
//! # Births of holes (feature `hole_birth`)
//! A block that becomes a hole leaves a pointer that remembers the txg; so do the pointers of an
//! indirect block that is made where such a hole was. A pointer that never was anything else than
//! sixteen zero words stays so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use device::BoxFuture;
use format::Bookmark;
use format::{
    BLOCK_POINTER_BYTES, BlockPointer, Checksum, Compression, CryptParams, DNODE_SLOT_BYTES,
    HolePointer, ObjectId, ObjectType, ObjsetKind, Txg,
};
use futures::StreamExt;
use vdev::AllocClass;
use vdev::Priority;
use zio::pipeline::{DedupPolicy, Turn, Turns};
use zio::{BlockData, RawBlock, WritePolicy, ZioError};

use crate::dnode::{Meta, RawData, Slot, Tree, shl, shr};
use crate::error::Result;
use crate::indirect::child;
use crate::objset::ObjectSet;
use crate::options::{RedundantMetadata, WriteProperties};
use crate::rangeset::RangeSet;
use crate::sync::{BlockAccounting, SyncContext};
use crate::tree::short_indirect;

/// Level-0 blocks of one indirect block that are written at the same time.
const BLOCKS_IN_FLIGHT: usize = 128;
/// Indirect blocks of one parent that are worked on at the same time.
const SUBTREES_IN_FLIGHT: usize = 8;
/// From this pass on blocks are rewritten in place (`zfs_sync_pass_rewrite`).
const PASS_REWRITE: u32 = 2;
/// From this pass on nothing is compressed (`zfs_sync_pass_dont_compress`).
const PASS_DONT_COMPRESS: u32 = 8;

/// What kind of block a pointer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Tree,
    Spill,
    Root,
}

pub(crate) struct TreeSync<'a> {
    set: &'a ObjectSet,
    ctx: &'a SyncContext,
    acct: &'a dyn BlockAccounting,
    properties: WriteProperties,
    object: ObjectId,
    meta: &'a Meta,
    /// No block is beyond this number, before or after.
    end_block: u64,
    blocks: &'a BTreeMap<u64, Bytes>,
    cloned: &'a BTreeMap<u64, BlockPointer>,
    raw: &'a BTreeMap<u64, RawData>,
    packed: &'a BTreeMap<u64, BlockData>,
    freed: &'a RangeSet,
    /// Of `blocks`, those that hold what they held before.
    moved: &'a RangeSet,
    /// Those that are to be written whatever they held before.
    again: &'a RangeSet,
    /// Those that the cache does not keep.
    passing: &'a RangeSet,
    /// Its blocks go where dedup tables are.
    pub(crate) in_dedup_class: bool,
    used: AtomicI64,
}

/// The old top of a tree that gets more levels.
#[derive(Clone, Copy)]
struct Grown<'t> {
    levels: u8,
    pointers: &'t [BlockPointer],
}

impl<'a> TreeSync<'a> {
    pub(crate) fn new(
        set: &'a ObjectSet,
        ctx: &'a SyncContext,
        acct: &'a dyn BlockAccounting,
        object: ObjectId,
        old: &Meta,
        meta: &'a Meta,
        changes: &'a Slot,
    ) -> Self {
        TreeSync {
            set,
            ctx,
            acct,
            properties: set.properties(),
            object,
            meta,
            end_block: old.max_block.max(meta.max_block).saturating_add(1),
            blocks: &changes.blocks,
            cloned: &changes.cloned,
            raw: &changes.raw,
            packed: &changes.packed,
            freed: &changes.freed,
            moved: &changes.moved,
            again: &changes.again,
            passing: &changes.passing,
            in_dedup_class: false,
            used: AtomicI64::new(0),
        }
    }

    /// By how much the object's space changed, in bytes.
    pub(crate) fn used_delta(&self) -> i64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Reports a block as gone.
    pub(crate) fn kill(&self, pointer: Option<&BlockPointer>) {
        if let Some(pointer) = pointer.filter(|pointer| !pointer.is_hole()) {
            let bytes = self.ctx.pipeline.dsize_bytes(pointer) as i64;
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            self.acct.dead(pointer);
        }
    }

    fn bear(&self, pointer: &BlockPointer) {
        if !pointer.is_hole() {
            let bytes = self.ctx.pipeline.dsize_bytes(pointer) as i64;
            self.used.fetch_add(bytes, Ordering::Relaxed);
            self.acct.born(pointer);
        }
    }

    fn hole(&self, level: u8, birth: Txg) -> BlockPointer {
        if !self.set.options().hole_birth {
            return BlockPointer::HOLE;
        }
        let lsize_bytes = if level == 0 {
            self.meta.block_bytes.into()
        } else {
            1 << self.meta.indirect_shift
        };
        BlockPointer::hole(&HolePointer {
            birth,
            object_type: self.meta.object_type,
            level,
            lsize_bytes,
        })
        .unwrap_or(BlockPointer::HOLE)
    }

    /// Has a block shared that another pointer leads to, in the place of `old` (`dmu_brt_clone`,
    /// module/zfs/dmu.c): it is born anew in this txg, its bytes are as old as they are.
    fn share(&self, old: &BlockPointer, shared: &BlockPointer) -> BlockPointer {
        let txg = self.ctx.txg;
        let mut new = *shared;
        new.set_birth(txg, shared.physical_birth());
        // Of one that was rewritten the flag stays behind: this dataset has had it since now.
        new.set_rewritten(false);
        self.ctx.pipeline.clones().add(txg, &new);
        let objset = self.set.blocks.bookmark(self.object, 0, 0).objset;
        self.ctx.pipeline.sharing().note(objset, &new);
        self.kill(Some(old));
        self.bear(&new);
        new
    }

    /// Writes what changed in the tree; returns the new one (its generation is the old one's).
    pub(crate) async fn sync_tree(&self, old: &Tree) -> Result<Tree> {
        let levels = old.levels.max(self.meta.levels_needed());
        let pointer_count = self.meta.pointers;
        let mut tree = Tree {
            pointers: old.pointers,
            pointer_count,
            levels,
            indirect_shift: self.meta.indirect_shift,
            generation: old.generation,
        };
        let old_pointers = &old.pointers[..usize::from(old.pointer_count)];
        let ever_used = old_pointers
            .iter()
            .any(|pointer| *pointer != BlockPointer::HOLE);
        let grown = (levels > old.levels && ever_used).then_some(Grown {
            levels: old.levels,
            pointers: old_pointers,
        });
        for index in 0..usize::from(pointer_count) {
            let before = if levels > old.levels {
                BlockPointer::HOLE
            } else {
                old.pointers[index]
            };
            tree.pointers[index] = self
                .sync_child(levels - 1, index as u64, before, grown, None)
                .await?;
        }
        Ok(tree)
    }

    fn sync_child<'s>(
        &'s self,
        level: u8,
        number: u64,
        old: BlockPointer,
        grown: Option<Grown<'s>>,
        turn: Option<Turn>,
    ) -> BoxFuture<'s, Result<BlockPointer>> {
        Box::pin(async move {
            if level > 0 {
                return self.sync_indirect(level, number, old, grown, turn).await;
            }
            if let Some(data) = self.blocks.get(&number) {
                return self.write_leaf(number, &old, data.clone(), turn).await;
            }
            if let Some(raw) = self.raw.get(&number) {
                return self.write_raw(Role::Tree, number, &old, raw, turn).await;
            }
            if let Some(shared) = self.cloned.get(&number) {
                return Ok(self.share(&old, shared));
            }
            if self.freed.contains(number) && !old.is_hole() {
                self.kill(Some(&old));
                return Ok(self.hole(0, self.ctx.txg));
            }
            Ok(old)
        })
    }

    async fn sync_indirect(
        &self,
        level: u8,
        number: u64,
        old: BlockPointer,
        grown: Option<Grown<'_>>,
        mut turn: Option<Turn>,
    ) -> Result<BlockPointer> {
        let shift = self.meta.pointers_shift();
        let span = shift * u32::from(level);
        let start = shl(number, span);
        let end = shl(number.saturating_add(1), span).min(self.end_block);
        let grown_here = grown.filter(|grown| number == 0 && level >= grown.levels);
        let has_blocks = start < end
            && (self.blocks.range(start..end).next().is_some()
                || self.cloned.range(start..end).next().is_some()
                || self.raw.range(start..end).next().is_some());
        if grown_here.is_none() && !has_blocks {
            if start >= end || old.is_hole() {
                return Ok(old);
            }
            if self.freed.covers(start, end) {
                self.free_subtree(level, number, old).await?;
                return Ok(self.hole(level, self.ctx.txg));
            }
            if self.freed.within(start, end).next().is_none() {
                return Ok(old);
            }
        }
        let fanout = 1usize << shift;
        let top_of_old = grown_here.filter(|grown| grown.levels == level);
        let mut children = match top_of_old {
            Some(grown) => {
                let mut children = vec![BlockPointer::HOLE; fanout];
                children[..grown.pointers.len()].copy_from_slice(grown.pointers);
                children
            }
            None => self.children(level, number, &old, fanout).await?,
        };
        let mut touched = self.touched_children(level, start, end);
        if grown_here.is_some_and(|grown| grown.levels < level) {
            touched.insert(0);
        }
        let base = shl(number, shift);
        let limit = if level == 1 {
            BLOCKS_IN_FLIGHT
        } else {
            SUBTREES_IN_FLIGHT
        };
        let befores: Vec<(u64, BlockPointer)> = touched
            .into_iter()
            .filter_map(|child| {
                let before = *children.get((child - base) as usize)?;
                Some((child, before))
            })
            .collect();
        let mut changed = grown_here.is_some();
        if let Some(turn) = &mut turn {
            turn.come().await;
        }
        let mut turns = Turns::default();
        let mut left = befores.len();
        let mut running = futures::stream::iter(befores)
            .map(|(child, before)| {
                let of_child = turns.next_turn();
                left -= 1;
                if left == 0 {
                    turn = None;
                }
                async move {
                    let below = level - 1;
                    let after = self.sync_child(below, child, before, grown, Some(of_child));
                    (child, before, after.await)
                }
            })
            .buffer_unordered(limit);
        while let Some((child, before, after)) = running.next().await {
            let after = after?;
            if after != before {
                changed = true;
                children[(child - base) as usize] = after;
            }
        }
        drop(running);
        if !changed {
            return Ok(old);
        }
        if children.iter().all(BlockPointer::is_hole) {
            let never = old == BlockPointer::HOLE
                && children.iter().all(|child| *child == BlockPointer::HOLE);
            self.kill(Some(&old));
            return Ok(if never {
                BlockPointer::HOLE
            } else {
                self.hole(level, self.ctx.txg)
            });
        }
        let mut data = Vec::with_capacity(children.len() * BLOCK_POINTER_BYTES);
        let mut fill = 0u64;
        for child in &children {
            data.extend_from_slice(&child.encode());
            fill = fill.saturating_add(if child.is_hole() { 0 } else { child.fill() });
        }
        let data = Bytes::from(data).into();
        self.write(Role::Tree, level, number, &old, data, fill, None)
            .await
    }

    /// Numbers of the children at `level - 1` under which something changes.
    fn touched_children(&self, level: u8, start: u64, end: u64) -> BTreeSet<u64> {
        let span = self.meta.pointers_shift() * u32::from(level - 1);
        let mut out = BTreeSet::new();
        let mut at = start;
        while at < end {
            let written = self.blocks.range(at..end).next().map(|(block, _)| *block);
            let shared = self.cloned.range(at..end).next().map(|(block, _)| *block);
            let raw = self.raw.range(at..end).next().map(|(block, _)| *block);
            let Some(block) = written.into_iter().chain(shared).chain(raw).min() else {
                break;
            };
            let child = shr(block, span);
            out.insert(child);
            at = shl(child + 1, span);
        }
        for (from, to) in self.freed.within(start, end) {
            if from < to {
                out.extend(shr(from, span)..=shr(to - 1, span));
            }
        }
        out
    }

    /// The pointers in an indirect block; in one that is made anew, holes as old as the one it
    /// replaces.
    async fn children(
        &self,
        level: u8,
        number: u64,
        old: &BlockPointer,
        fanout: usize,
    ) -> Result<Vec<BlockPointer>> {
        if old.is_hole() {
            let birth = old.logical_birth();
            let hole = if birth.is_zero() {
                BlockPointer::HOLE
            } else {
                self.hole(level - 1, birth)
            };
            return Ok(vec![hole; fanout]);
        }
        let data = self
            .set
            .blocks
            .read_indirect(self.object, level, number, old)
            .await?;
        let mut children: Vec<_> = BlockPointer::decode_all(&data, old.endian()).collect();
        if children.len() != fanout {
            return Err(short_indirect(self.object, level, number));
        }
        children.truncate(fanout);
        Ok(children)
    }

    /// Tells every block of a tree dead.
    pub(crate) async fn free_all(&self, tree: &Tree) -> Result<()> {
        for (number, pointer) in tree.pointers[..usize::from(tree.pointer_count)]
            .iter()
            .enumerate()
        {
            self.free_subtree(tree.levels - 1, number as u64, *pointer)
                .await?;
        }
        Ok(())
    }

    /// Tells a block and everything under it dead. An indirect block that is damaged is told dead
    /// without what is under it: that space leaks, but freeing goes on
    /// (as with `zfs_free_leak_on_eio`).
    fn free_subtree(
        &self,
        level: u8,
        number: u64,
        pointer: BlockPointer,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if pointer.is_hole() {
                return Ok(());
            }
            if level > 0 {
                let read = self
                    .set
                    .blocks
                    .read_indirect(self.object, level, number, &pointer)
                    .await;
                match read {
                    Ok(data) => self.free_children(level, number, &pointer, data).await?,
                    Err(
                        error @ crate::ObjectError::Zio(
                            ZioError::Checksum { .. }
                            | ZioError::Corrupt { .. }
                            | ZioError::Vdev(vdev::VdevError::Format(_))
                            | ZioError::BadPointer { .. },
                        ),
                    ) => tracing::error!(
                        object = self.object.get(),
                        level,
                        number,
                        %error,
                        "an indirect block that is to be freed is damaged: the space under it leaks"
                    ),
                    Err(error) => return Err(error),
                }
            }
            self.kill(Some(&pointer));
            Ok(())
        })
    }

    async fn free_children(
        &self,
        level: u8,
        number: u64,
        pointer: &BlockPointer,
        data: Bytes,
    ) -> Result<()> {
        let base = shl(number, self.meta_shift(data.len()));
        let count = data.len() / BLOCK_POINTER_BYTES;
        let children: Vec<(u64, BlockPointer)> = (0..count)
            .filter_map(|index| {
                let next = child(&data, pointer.endian(), index)?;
                (!next.is_hole()).then_some((base.saturating_add(index as u64), next))
            })
            .collect();
        if level == 1 {
            for (_, next) in &children {
                self.kill(Some(next));
            }
            return Ok(());
        }
        let mut running = futures::stream::iter(children)
            .map(|(number, next)| self.free_subtree(level - 1, number, next))
            .buffer_unordered(SUBTREES_IN_FLIGHT);
        while let Some(done) = running.next().await {
            done?;
        }
        Ok(())
    }

    /// log2 of the pointers in an indirect block of this size: a freed object's meta does not know.
    fn meta_shift(&self, bytes: usize) -> u32 {
        (bytes / BLOCK_POINTER_BYTES).max(1).trailing_zeros()
    }

    async fn write_leaf(
        &self,
        number: u64,
        old: &BlockPointer,
        data: Bytes,
        turn: Option<Turn>,
    ) -> Result<BlockPointer> {
        let fill = if self.meta.object_type == ObjectType::DNODE {
            count_dnodes(&data)
        } else {
            1
        };
        let bytes = data.len() as u64;
        let packed = self.packed.get(&number);
        let packed = packed.filter(|packed| packed.is_of(&data));
        let packed_bytes = packed.map_or(0, BlockData::packed_bytes);
        // One that became shorter or longer meanwhile holds something else.
        let is_same = self.moved.contains(number) && !old.is_hole() && old.lsize_bytes() == bytes;
        let new = match is_same {
            true => self.relocate(number, old, data, fill, turn).await?,
            false => {
                let data = packed.cloned().unwrap_or_else(|| data.into());
                let write = self.write(Role::Tree, 0, number, old, data, fill, turn);
                write.await?
            }
        };
        if let Some(txgs) = &self.ctx.txgs {
            txgs.sync_progress(self.ctx.txg, bytes + packed_bytes);
        }
        Ok(new)
    }

    pub(crate) async fn write_spill(
        &self,
        old: &BlockPointer,
        data: Bytes,
    ) -> Result<BlockPointer> {
        let number = format::Bookmark::SPILL_BLOCK_ID;
        self.write(Role::Spill, 0, number, old, data.into(), 1, None)
            .await
    }

    pub(crate) async fn write_raw_spill(
        &self,
        old: &BlockPointer,
        raw: &RawData,
    ) -> Result<BlockPointer> {
        let number = format::Bookmark::SPILL_BLOCK_ID;
        self.write_raw(Role::Spill, number, old, raw, None).await
    }

    /// Writes a level-0 block as it was sent. A block of dnodes that says nothing of its MAC keeps
    /// that of the one it replaces (`dbuf_prepare_encrypted_dnode_leaf`, module/zfs/dbuf.c).
    async fn write_raw(
        &self,
        role: Role,
        number: u64,
        old: &BlockPointer,
        raw: &RawData,
        turn: Option<Turn>,
    ) -> Result<BlockPointer> {
        let mut policy = self.policy(role, 0, number);
        let mut block = raw.block;
        if block.mac.is_none() {
            // Where there was none, a stream has left out what it must say: nobody will be able to
            // decrypt the block, but that is no reason to stop the pool.
            let nothing = CryptParams::from_bytes([0; 8], [0; 12]);
            (block.crypt, block.mac) = match old.is_hole() {
                true => (Some(nothing), Some([0; 16])),
                false => (old.crypt(), Some(old.mac())),
            };
        }
        policy.raw = Some(block);
        policy.dedup = None;
        policy.fill = match policy.object_type {
            ObjectType::DNODE => count_dnodes(&raw.stored),
            _ => 1,
        };
        let txg = self.ctx.txg;
        let stored = raw.stored.clone();
        let pipeline = &self.ctx.pipeline;
        let written = pipeline.write_in_turn(txg, stored.into(), &policy, turn);
        let new = written.await?;
        self.kill(Some(old));
        self.bear(&new);
        if let Some(txgs) = &self.ctx.txgs {
            txgs.sync_progress(txg, raw.stored.len() as u64);
        }
        Ok(new)
    }

    /// Writes an object set's head.
    pub(crate) async fn write_root(
        set: &ObjectSet,
        ctx: &SyncContext,
        acct: &dyn BlockAccounting,
        old: &BlockPointer,
        data: Bytes,
        fill: u64,
    ) -> Result<BlockPointer> {
        let (meta, nothing) = (Meta::free(), Slot::default());
        let object = ObjectId::META_DNODE;
        let work = TreeSync::new(set, ctx, acct, object, &meta, &meta, &nothing);
        work.write(Role::Root, 0, 0, old, data.into(), fill, None)
            .await
    }

    async fn write(
        &self,
        role: Role,
        level: u8,
        number: u64,
        old: &BlockPointer,
        data: BlockData,
        fill: u64,
        turn: Option<Turn>,
    ) -> Result<BlockPointer> {
        let mut policy = self.policy(role, level, number);
        policy.hole_birth = self.set.options().hole_birth && *old != BlockPointer::HOLE;
        policy.fill = fill;
        if role == Role::Root && self.set.options().raw {
            // Its MACs are in it.
            policy.raw = Some(RawBlock {
                logical_bytes: data.bytes().len() as u64,
                compression: Compression::Off,
                crypt: None,
                mac: None,
            });
        }
        let txg = self.ctx.txg;
        let in_place = self.ctx.pass >= PASS_REWRITE
            && self.set.kind() == ObjsetKind::Meta
            && !old.is_hole()
            && !old.is_embedded()
            && old.birth() == txg;
        let pipeline = &self.ctx.pipeline;
        let mut new = if in_place {
            // It has its place.
            drop(turn);
            let data = data.bytes().clone();
            pipeline.rewrite(txg, old, data, &policy).await?
        } else if role == Role::Tree && self.may_be_stored(number, old, &policy) {
            let new = pipeline.overwrite(txg, old, data, &policy, turn).await?;
            if new == *old {
                return Ok(new);
            }
            new
        } else {
            pipeline.write_in_turn(txg, data, &policy, turn).await?
        };
        if !new.is_hole() && !new.is_embedded() {
            new.set_fill(fill);
        }
        let same_place = in_place && new.dva(0).is_some() && new.dva(0) == old.dva(0);
        if !same_place {
            self.kill(Some(old));
            self.bear(&new);
        }
        Ok(new)
    }

    /// Whether a block need not be written where the one that it replaces holds the same
    /// (`dmu_write_policy`, module/zfs/dmu.c): of data, by a checksum that tells. What is to be
    /// somewhere else is written.
    fn may_be_stored(&self, number: u64, old: &BlockPointer, policy: &WritePolicy) -> bool {
        policy.level == 0
            && !old.is_hole()
            && !policy.object_type.is_metadata()
            && policy.dedup.is_none()
            && !policy.encrypted
            && policy.checksum.tells_blocks_apart()
            && policy.compression != Compression::Off
            && !self.again.contains(number)
    }

    /// Writes a level-0 block that holds the same as `old` to another place (`zp_rewrite`,
    /// module/zfs/dbuf.c).
    async fn relocate(
        &self,
        number: u64,
        old: &BlockPointer,
        data: Bytes,
        fill: u64,
        turn: Option<Turn>,
    ) -> Result<BlockPointer> {
        let mut policy = self.policy(Role::Tree, 0, number);
        policy.hole_birth = self.set.options().hole_birth;
        policy.fill = fill;
        let pipeline = &self.ctx.pipeline;
        let txg = self.ctx.txg;
        let new = pipeline.relocate(txg, old, data, &policy, turn).await?;
        if new != *old {
            self.kill(Some(old));
            self.bear(&new);
        }
        Ok(new)
    }

    /// How a block is written (`dmu_write_policy`, module/zfs/dmu.c).
    fn policy(&self, role: Role, level: u8, number: u64) -> WritePolicy {
        let properties = &self.properties;
        let options = self.set.options();
        let object_type = match role {
            Role::Tree => self.meta.object_type,
            Role::Spill => self.meta.bonus_type,
            Role::Root => ObjectType::OBJSET,
        };
        let tree_type = match role {
            Role::Root => ObjectType::OBJSET,
            _ => self.meta.object_type,
        };
        let metadata = level > 0 || tree_type.is_metadata() || role == Role::Spill;
        let legacy = if options.lz4_metadata {
            Compression::Lz4
        } else {
            Compression::Lzjb
        };
        let stored_compression = |kind: Compression, parent: Compression| match kind {
            Compression::Inherit => parent,
            kind => kind,
        };
        let mut compression = if metadata {
            legacy
        } else {
            stored_compression(self.meta.compression, properties.compression)
        };
        if matches!(compression, Compression::On | Compression::Inherit) {
            compression = legacy;
        }
        if self.ctx.pass >= PASS_DONT_COMPRESS {
            compression = Compression::Off;
        }
        // Blocks of which parts stay in the clear are stored as they are.
        let in_parts = [ObjectType::DNODE, ObjectType::OBJSET].contains(&object_type);
        if options.encrypted && level == 0 && in_parts {
            compression = Compression::Empty;
        }
        let checksum = if metadata {
            if properties.checksum.is_strong_enough_for_metadata()
                && !properties.checksum.is_embedded()
            {
                properties.checksum
            } else {
                Checksum::Fletcher4
            }
        } else {
            match self.meta.checksum {
                Checksum::Inherit => properties.checksum,
                kind => kind,
            }
        };
        let checksum = match checksum {
            Checksum::On | Checksum::Inherit => Checksum::Fletcher4,
            kind => kind,
        };
        // Blocks of zeros are holes rather than many references to one of them.
        let dedup = properties.dedup.filter(|_| !metadata);
        if dedup.is_some() && compression == Compression::Off {
            compression = Compression::Empty;
        }
        let checksum = dedup.map_or(checksum, |dedup| dedup.checksum);
        let extra = metadata
            && match properties.redundant_metadata {
                RedundantMetadata::All => true,
                RedundantMetadata::Most => {
                    level >= 2 || tree_type.is_metadata() || role == Role::Spill
                }
                RedundantMetadata::Some => is_critical(tree_type, level),
                RedundantMetadata::None => false,
            };
        let copies = (properties.copies + u8::from(extra)).clamp(1, 3);
        let class = match object_type {
            ObjectType::DDT_ZAP | ObjectType::DDT_STATS => AllocClass::Dedup,
            _ if self.in_dedup_class => AllocClass::Dedup,
            _ if metadata => AllocClass::Special,
            _ => AllocClass::Normal,
        };
        let block_level = match role {
            Role::Root => -1,
            _ => i64::from(level),
        };
        let is_passing = role == Role::Tree && level == 0 && self.passing.contains(number);
        WritePolicy {
            object_type,
            level,
            checksum,
            compression,
            zstd_level: properties.zstd_level,
            copies,
            allow_embedded: options.embedded_data && role != Role::Root && !options.encrypted,
            encrypted: options.encrypted,
            raw: None,
            dedup: dedup.map(|dedup| DedupPolicy {
                verify: dedup.verify,
            }),
            hole_birth: options.hole_birth,
            class,
            special_small_bytes: properties.special_small_blocks,
            fill: 1,
            cache: properties.cached.has(object_type, level) && !is_passing,
            priority: Priority::Async,
            bookmark: Bookmark {
                level: block_level,
                ..self.set.blocks.bookmark(self.object, level, number)
            },
        }
    }
}

/// What `redundant_metadata=some` still doubles (`DMU_OT_IS_CRITICAL`, include/sys/dmu.h).
fn is_critical(object_type: ObjectType, level: u8) -> bool {
    object_type.is_metadata()
        && (object_type != ObjectType::DNODE || level > 0)
        && object_type != ObjectType::DIRECTORY_CONTENTS
        && object_type != ObjectType::SA
}

/// Dnodes in a block of them: its pointer's fill count (`dbuf_write_ready`).
fn count_dnodes(block: &[u8]) -> u64 {
    let (mut at, mut count) = (0, 0);
    while let (Some(kind), Some(extra)) = (block.get(at), block.get(at + 12)) {
        at += DNODE_SLOT_BYTES;
        if *kind != 0 {
            count += 1;
            at += usize::from(*extra) * DNODE_SLOT_BYTES;
        }
    }
    count
}
