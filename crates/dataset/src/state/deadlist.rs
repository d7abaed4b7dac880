//! Deadlists: the blocks that a dataset does not refer to any more, but a snapshot before it does
//! (module/zfs/dsl_deadlist.c).
//!
//! A deadlist is a ZAP (type `DEADLIST`) with totals in its bonus. It maps txgs to lists of blocks
//! ([`Bpobj`]): the list at key `t` has the blocks born after `t`, up to the next key. Keys are the
//! txgs of the snapshots before, so that destroying a snapshot moves whole lists. Empty lists are
//! one shared object where feature `empty_bpobj` is enabled.
//!
//! Pools before version 26 have one plain list instead (type `BPOBJ`). Those that were there before
//! an upgrade stay, until the next snapshot begins a map.
//!
//! Used in syncing context only. Once loaded, a head's map is kept in memory, and a snapshot's for
//! a while (module `recent`): some thirty bytes for each snapshot before.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use format::{BlockPointer, DeadlistPhys, Endian, ObjectId, ObjectType, Txg};
use object::{Bpobj, ObjectSet, SyncContext, Zap, ZapOptions, forget_zap_content};
use zio::Tx;
use zio::pipeline::waits_for_devices;

use super::lists::Lists;
use super::space::Space;
use crate::DatasetError;
use crate::features::guid;

/// Parts of a livelist that are looked at in a sync, for two that can become one.
const LOOKS: usize = 16;

/// An open deadlist.
pub(crate) struct Deadlist {
    object: ObjectId,
    kind: Kind,
    /// Of a livelist: the part at which the next look for short ones begins.
    looked_at: u64,
}

enum Kind {
    /// One list.
    Old(Bpobj),
    /// A list for each span of txgs.
    Modern {
        zap: Zap,
        lists: BTreeMap<u64, ObjectId>,
        space: Space,
    },
}

fn decode_space(bonus: &[u8]) -> Result<Space, DatasetError> {
    let phys = DeadlistPhys::decode(bonus, Endian::Little)?;
    Ok(Space {
        used: phys.used_bytes as i64,
        compressed: phys.compressed_bytes as i64,
        uncompressed: phys.uncompressed_bytes as i64,
    })
}

/// A new deadlist's ZAP.
fn new_map() -> ZapOptions {
    let options = ZapOptions::new(ObjectType::DEADLIST);
    options.with_bonus(ObjectType::DEADLIST_HDR, encode_space(Space::default()))
}

fn encode_space(space: Space) -> Bytes {
    let phys = DeadlistPhys {
        used_bytes: space.used.max(0) as u64,
        compressed_bytes: space.compressed.max(0) as u64,
        uncompressed_bytes: space.uncompressed.max(0) as u64,
    };
    Bytes::copy_from_slice(&phys.encode())
}

/// The key of the list that a block belongs to: the last one before its birth. A block older than
/// every key (which should not be) goes to the first. `None` when there are no keys.
fn key_of(lists: &BTreeMap<u64, ObjectId>, block: &BlockPointer) -> Option<u64> {
    let mut before = lists.range(..block.birth().get());
    let key = before.next_back().or_else(|| lists.iter().next());
    key.map(|(key, _)| *key)
}

impl Deadlist {
    /// Makes a new one without keys (`dsl_deadlist_alloc`).
    pub(crate) async fn create(
        shared: &Lists,
        ctx: &SyncContext,
    ) -> Result<ObjectId, DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        if !shared.has_maps() {
            return Ok(Bpobj::create_plain(shared.mos(), &tx, 0).await?.id());
        }
        Ok(Zap::create(shared.mos(), &tx, new_map()).await?.id())
    }

    /// Opens one.
    pub(crate) async fn open(mos: &Arc<ObjectSet>, object: ObjectId) -> Result<Self, DatasetError> {
        let held = mos.hold(object).await?;
        if held.info().object_type == ObjectType::BPOBJ {
            return Ok(Deadlist {
                object,
                kind: Kind::Old(Bpobj::open(mos, object).await?),
                looked_at: 0,
            });
        }
        let space = decode_space(&held.bonus())?;
        let zap = Zap::open(held).await?;
        let entries = zap.all_ints().await?.into_iter();
        let lists = entries.map(|(key, list)| (key, list.into())).collect();
        Ok(Deadlist {
            object,
            kind: Kind::Modern { zap, lists, space },
            looked_at: 0,
        })
    }

    /// Totals only, without loading the map.
    pub(crate) async fn space_of(
        mos: &Arc<ObjectSet>,
        object: ObjectId,
    ) -> Result<Space, DatasetError> {
        let held = mos.hold(object).await?;
        if held.info().object_type == ObjectType::BPOBJ {
            return Ok(Bpobj::open(mos, object).await?.space().await?.into());
        }
        decode_space(&held.bonus())
    }

    pub(crate) fn object(&self) -> ObjectId {
        self.object
    }

    /// Bytes that it takes in memory, roughly: two words a list, in nodes of a tree that are half
    /// full, as keys come in rising order.
    pub(crate) fn memory_bytes(&self) -> u64 {
        const LIST_BYTES: usize = 32;
        let lists = match &self.kind {
            Kind::Old(_) => 0,
            Kind::Modern { lists, .. } => lists.len(),
        };
        (size_of::<Self>() + lists * LIST_BYTES) as u64
    }

    /// Lets go of what is in memory of its object, as nobody is going to ask for it soon: some
    /// hundred bytes for each snapshot before.
    pub(crate) async fn forget_content(&self) {
        if let Kind::Modern { zap, .. } = &self.kind {
            forget_zap_content(zap).await;
        }
    }

    pub(crate) fn is_old(&self) -> bool {
        matches!(self.kind, Kind::Old(_))
    }

    /// Space of all blocks.
    pub(crate) async fn space(&self) -> Result<Space, DatasetError> {
        match &self.kind {
            Kind::Old(list) => Ok(list.space().await?.into()),
            Kind::Modern { space, .. } => Ok(*space),
        }
    }

    /// Space of the blocks born in `(min, max]`; both are keys, or zero, or `u64::MAX`.
    pub(crate) async fn space_range(
        &self,
        shared: &Lists,
        min: Txg,
        max: Txg,
    ) -> Result<Space, DatasetError> {
        match &self.kind {
            Kind::Old(list) => Ok(list.space_range(min, max).await?.into()),
            Kind::Modern { lists, .. } => {
                let mut total = Space::default();
                if min >= max {
                    return Ok(total);
                }
                for (_, list) in lists.range(min.get()..max.get()) {
                    total.add(shared.list_space(*list).await?);
                }
                Ok(total)
            }
        }
    }

    async fn save_space(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        if let Kind::Modern { zap, space, .. } = &self.kind {
            zap.object()
                .set_bonus(&Tx::syncing(ctx.txg), encode_space(*space))?;
        }
        Ok(())
    }

    /// Adds blocks that died.
    pub(crate) async fn insert(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        blocks: &[BlockPointer],
    ) -> Result<(), DatasetError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let tx = Tx::syncing(ctx.txg);
        let mut by_key: BTreeMap<u64, Vec<BlockPointer>> = BTreeMap::new();
        match &mut self.kind {
            Kind::Old(list) => {
                list.append_all(&tx, blocks).await?;
                return Ok(());
            }
            Kind::Modern { lists, space, .. } => {
                let pipeline = shared.pipeline();
                for block in blocks {
                    space.add(Space::of(pipeline, block));
                    let key = key_of(lists, block).ok_or_else(|| {
                        DatasetError::corrupt(self.object, "a deadlist has no keys")
                    })?;
                    by_key.entry(key).or_default().push(*block);
                }
            }
        }
        for (key, blocks) in by_key {
            let list = self.own_list(shared, ctx, key, false).await?;
            Bpobj::open(shared.mos(), list)
                .await?
                .append_all(&tx, &blocks)
                .await?;
        }
        self.save_space(ctx).await
    }

    /// The list at a key, after making it one of its own if it was the shared empty one. The
    /// lists of a livelist (`is_live`) count what is freed.
    async fn own_list(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        key: u64,
        is_live: bool,
    ) -> Result<ObjectId, DatasetError> {
        let Kind::Modern { zap, lists, .. } = &mut self.kind else {
            unreachable!("only called for maps of lists");
        };
        let current = lists[&key];
        if current != shared.empty_list() {
            return Ok(current);
        }
        let tx = Tx::syncing(ctx.txg);
        let list = match is_live {
            true => Bpobj::create_livelist(shared.mos(), &tx).await?.id(),
            false => Bpobj::create(shared.mos(), &tx, 0).await?.id(),
        };
        // The map has the new list before the shared one loses a use: a livelist is given up where
        // this fails, with each use that its map still has.
        zap.update_int(&tx, key, list.get()).await?;
        lists.insert(key, list);
        shared.release_empty_list(ctx).await?;
        Ok(list)
    }

    /// Adds a key above all others (`dsl_deadlist_add_key`).
    pub(crate) async fn add_key(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        key: Txg,
    ) -> Result<(), DatasetError> {
        if matches!(self.kind, Kind::Modern { .. }) {
            let list = shared.new_empty_list(ctx).await?;
            self.put_list(ctx, key, list).await?;
        }
        Ok(())
    }

    /// Adds a key with its list.
    async fn put_list(
        &mut self,
        ctx: &SyncContext,
        key: Txg,
        list: ObjectId,
    ) -> Result<(), DatasetError> {
        if let Kind::Modern { zap, lists, .. } = &mut self.kind {
            zap.add_int(&Tx::syncing(ctx.txg), key.get(), list.get())
                .await?;
            lists.insert(key.get(), list);
        }
        Ok(())
    }

    /// Removes a key; its list joins that of the key before (`dsl_deadlist_remove_key`).
    pub(crate) async fn remove_key(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        key: Txg,
    ) -> Result<(), DatasetError> {
        let (list, before) = match &self.kind {
            Kind::Old(_) => return Ok(()),
            Kind::Modern { lists, .. } => {
                let Some(list) = lists.get(&key.get()).copied() else {
                    return Ok(());
                };
                let Some((before, _)) = lists.range(..key.get()).next_back() else {
                    return Err(DatasetError::corrupt(
                        self.object,
                        format!("deadlist key {key} has none before it"),
                    ));
                };
                (list, *before)
            }
        };
        self.include_list(shared, ctx, before, list).await?;
        if let Kind::Modern { zap, lists, .. } = &mut self.kind {
            lists.remove(&key.get());
            zap.remove_int(&Tx::syncing(ctx.txg), key.get()).await?;
        }
        Ok(())
    }

    /// Adds the blocks of another list, which is given away (`dle_enqueue_subobj`).
    async fn include_list(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        key: u64,
        list: ObjectId,
    ) -> Result<(), DatasetError> {
        if list == shared.empty_list() {
            return shared.release_empty_list(ctx).await;
        }
        let Kind::Modern { zap, lists, .. } = &mut self.kind else {
            unreachable!("only called for maps of lists");
        };
        let tx = Tx::syncing(ctx.txg);
        let current = lists[&key];
        if current == shared.empty_list() {
            zap.update_int(&tx, key, list.get()).await?;
            lists.insert(key, list);
            shared.release_empty_list(ctx).await?;
        } else {
            Bpobj::open(shared.mos(), current)
                .await?
                .include(&tx, list)
                .await?;
        }
        Ok(())
    }

    /// A new deadlist with the same keys below `max`, all empty (`dsl_deadlist_clone`). For an old
    /// deadlist, `snapshots` are the keys: the txgs before each snapshot of the chain.
    ///
    /// Each snapshot that is taken makes one, with a key for each snapshot before: it is written
    /// whole, and is in memory without being read. Before version 26 it is an empty list.
    pub(crate) async fn clone_keys(
        &self,
        shared: &Lists,
        ctx: &SyncContext,
        max: Txg,
        snapshots: &[Txg],
    ) -> Result<Self, DatasetError> {
        if !shared.has_maps() {
            let list = Bpobj::create_plain(shared.mos(), &Tx::syncing(ctx.txg), 0).await?;
            return Ok(Deadlist {
                object: list.id(),
                kind: Kind::Old(list),
                looked_at: 0,
            });
        }
        let keys: BTreeSet<u64> = match &self.kind {
            Kind::Old(_) => snapshots.iter().map(|txg| txg.get()).collect(),
            Kind::Modern { lists, .. } => lists.range(..max.get()).map(|(key, _)| *key).collect(),
        };
        let empty = shared.new_empty_lists(ctx, keys.len()).await?;
        let lists: BTreeMap<u64, ObjectId> = keys.into_iter().zip(empty).collect();
        let entries: Vec<(String, u64)> = lists
            .iter()
            .map(|(key, list)| (format!("{key:x}"), list.get()))
            .collect();
        let tx = Tx::syncing(ctx.txg);
        let zap = Zap::create_filled(shared.mos(), &tx, new_map(), &entries).await?;
        Ok(Deadlist {
            object: zap.id(),
            kind: Kind::Modern {
                zap,
                lists,
                space: Space::default(),
            },
            looked_at: 0,
        })
    }

    /// Takes over everything from another deadlist, whose object is freed (`dsl_deadlist_merge`).
    /// What it has not of its own costs nothing: its map goes as a whole.
    pub(crate) async fn absorb(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        from: Deadlist,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        if from.is_old() {
            self.insert_old(shared, ctx, &from).await?;
            free_list(shared.mos(), &tx, from.object).await;
            return Ok(());
        }
        let from_lists = match from.kind {
            Kind::Old(_) => BTreeMap::new(),
            Kind::Modern { lists, .. } => lists,
        };
        let empty_list = shared.empty_list();
        let mut empty = 0;
        for (key, list) in from_lists {
            if list == empty_list {
                empty += 1;
                continue;
            }
            let moved = shared.list_space(list).await?;
            let target = match &mut self.kind {
                Kind::Modern { lists, space, .. } => {
                    space.add(moved);
                    lists
                        .range(..=key)
                        .next_back()
                        .or_else(|| lists.iter().next())
                        .map(|(key, _)| *key)
                }
                Kind::Old(_) => None,
            }
            .ok_or_else(|| DatasetError::corrupt(self.object, "a deadlist has no keys"))?;
            self.include_list(shared, ctx, target, list).await?;
        }
        shared.release_empty_lists(ctx, empty).await?;
        free_map(shared.mos(), &tx, from.object).await;
        self.save_space(ctx).await
    }

    /// Adds all blocks of an old deadlist.
    async fn insert_old(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        from: &Deadlist,
    ) -> Result<(), DatasetError> {
        let mut moved = 0;
        loop {
            let blocks = from.old_blocks(moved).await?;
            if blocks.is_empty() {
                return Ok(());
            }
            moved += blocks.len() as u64;
            self.insert(shared, ctx, &blocks).await?;
        }
    }

    /// Moves the blocks born after `min` to a list (`dsl_deadlist_move_bpobj`).
    pub(crate) async fn move_to(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        target: &Bpobj,
        min: Txg,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let Kind::Modern { zap, lists, space } = &mut self.kind else {
            return Err(DatasetError::corrupt(
                self.object,
                "an old deadlist cannot be moved as a whole",
            ));
        };
        let mut empty = 0;
        for (key, list) in lists.split_off(&min.get()) {
            if list == shared.empty_list() {
                empty += 1;
            } else {
                space.add(shared.list_space(list).await?.negated());
                target.include(&tx, list).await?;
            }
            zap.remove_int(&tx, key).await?;
        }
        shared.release_empty_lists(ctx, empty).await?;
        self.save_space(ctx).await
    }

    /// Takes the blocks born after `min` out, with their lists.
    pub(crate) async fn take(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        min: Txg,
    ) -> Result<Vec<BlockPointer>, DatasetError> {
        let keys: Vec<(u64, ObjectId)> = match &self.kind {
            Kind::Old(_) => Vec::new(),
            Kind::Modern { lists, .. } => lists
                .range(min.get()..)
                .map(|(key, list)| (*key, *list))
                .collect(),
        };
        let mut blocks = Vec::new();
        for (key, list) in keys {
            if list != shared.empty_list() {
                Bpobj::open(shared.mos(), list)
                    .await?
                    .for_each(&mut |block, _| {
                        blocks.push(*block);
                        Ok(())
                    })
                    .await?;
            }
            self.remove_part(shared, ctx, Txg::new(key)).await?;
        }
        Ok(blocks)
    }

    /// The lists of blocks born in `(min, max]`, as [`Self::space_range`] counts them. Neighbours
    /// that share the empty list are told once.
    pub(crate) fn lists_in(&self, min: Txg, max: Txg) -> Vec<ObjectId> {
        match &self.kind {
            Kind::Modern { lists, .. } if min < max => distinct(lists.range(min.get()..max.get())),
            _ => Vec::new(),
        }
    }

    /// The lists that those of `other` join ([`Self::absorb`]).
    pub(crate) fn lists_that_take(&self, other: &Deadlist) -> Vec<ObjectId> {
        let (Kind::Modern { lists, .. }, Kind::Modern { lists: theirs, .. }) =
            (&self.kind, &other.kind)
        else {
            return Vec::new();
        };
        let taking = |key: &u64| lists.range(..=*key).next_back().or(lists.iter().next());
        distinct(theirs.keys().filter_map(taking))
    }

    /// The list at a key and the one before, which it joins when the key goes, with their keys.
    pub(crate) fn joined_at(&self, key: Txg) -> Vec<(u64, ObjectId)> {
        match &self.kind {
            Kind::Modern { lists, .. } => {
                let two = lists.range(..=key.get()).rev().take(2);
                two.map(|(key, list)| (*key, *list)).collect()
            }
            Kind::Old(_) => Vec::new(),
        }
    }

    /// The first list and its key.
    pub(crate) fn first(&self) -> Option<(Txg, ObjectId)> {
        match &self.kind {
            Kind::Old(_) => None,
            Kind::Modern { lists, .. } => lists
                .iter()
                .next()
                .map(|(key, list)| (Txg::new(*key), *list)),
        }
    }

    /// Removes a list with its key (`dsl_deadlist_remove_entry`).
    pub(crate) async fn remove_part(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        key: Txg,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let Kind::Modern { zap, lists, space } = &mut self.kind else {
            return Ok(());
        };
        let Some(list) = lists.remove(&key.get()) else {
            return Ok(());
        };
        zap.remove_int(&tx, key.get()).await?;
        if list == shared.empty_list() {
            shared.release_empty_list(ctx).await?;
        } else {
            match waits_for_devices(shared.list_space(list)).await {
                Ok(gone) => space.add(gone.negated()),
                Err(error) => tell_left(list, &error),
            }
            free_list(shared.mos(), &tx, list).await;
        }
        self.save_space(ctx).await
    }

    /// Adds blocks that a clone allocated and freed; a new part is begun where there is none, or
    /// the last one has more than so many living blocks (`dsl_flush_pending_livelist`).
    pub(crate) async fn add_live(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        pending: &Pending,
        blocks_max: u64,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let last = match &self.kind {
            Kind::Old(_) => return Ok(()),
            Kind::Modern { lists, .. } => lists.iter().next_back().map(|(key, list)| (*key, *list)),
        };
        // One that begins with this transaction group has room for all of it.
        let before = ctx.txg.get() - 1;
        let is_full = match last {
            None => true,
            Some((key, _)) if key >= before => false,
            Some((_, list)) if list == shared.empty_list() => false,
            Some((_, list)) => {
                let (count, freed) = Self::counts(shared, list).await?;
                count.saturating_sub(freed) > blocks_max
            }
        };
        if pending.allocated.is_empty() && pending.freed.is_empty() {
            return Ok(());
        }
        if is_full {
            let list = match shared.features().is_enabled(guid::EMPTY_BPOBJ) {
                true => shared.new_empty_list(ctx).await?,
                // Its own from the start, so it has to count what is freed.
                false => Bpobj::create_livelist(shared.mos(), &tx).await?.id(),
            };
            self.put_list(ctx, Txg::new(before), list).await?;
        }
        for (blocks, is_freed) in [(&pending.allocated, false), (&pending.freed, true)] {
            let mut by_key: BTreeMap<u64, Vec<BlockPointer>> = BTreeMap::new();
            let Kind::Modern { lists, space, .. } = &mut self.kind else {
                return Ok(());
            };
            for block in blocks {
                let one = Space::of(shared.pipeline(), block);
                space.add(if is_freed { one.negated() } else { one });
                let key = key_of(lists, block)
                    .ok_or_else(|| DatasetError::corrupt(self.object, "a livelist has no keys"))?;
                by_key.entry(key).or_default().push(*block);
            }
            for (key, blocks) in by_key {
                let list = self.own_list(shared, ctx, key, true).await?;
                Bpobj::open(shared.mos(), list)
                    .await?
                    .append_with(&tx, &blocks, is_freed)
                    .await?;
            }
        }
        self.save_space(ctx).await
    }

    /// Entries of a part, and how many of them say "freed".
    async fn counts(shared: &Lists, list: ObjectId) -> Result<(u64, u64), DatasetError> {
        if list == shared.empty_list() {
            return Ok((0, 0));
        }
        let phys = Bpobj::open(shared.mos(), list).await?.phys()?;
        Ok((phys.pointers, phys.freed.unwrap_or(0)))
    }

    /// Makes one part of two that follow each other and have few living blocks left; not of the
    /// last, which grows (`dsl_livelist_try_condense`, `spa_livelist_condense_sync`). Parts of more
    /// than `entries_max` entries are left alone. A few are looked at each time, all in turn.
    pub(crate) async fn condense(
        &mut self,
        shared: &Lists,
        ctx: &SyncContext,
        blocks_max: u64,
        entries_max: u64,
    ) -> Result<(), DatasetError> {
        let parts: Vec<(u64, ObjectId)> = match &self.kind {
            Kind::Old(_) => return Ok(()),
            Kind::Modern { lists, .. } => {
                let some = lists.range(self.looked_at..).take(LOOKS);
                some.map(|(key, list)| (*key, *list)).collect()
            }
        };
        // The last of these is looked at as the first of the next ones.
        self.looked_at = match parts.len() {
            LOOKS => parts[LOOKS - 2].0,
            _ => 0,
        };
        let mut found = None;
        for three in parts.windows(3) {
            let (one, next) = (three[0], three[1]);
            let (a, b) = (
                Self::counts(shared, one.1).await?,
                Self::counts(shared, next.1).await?,
            );
            let (entries, freed) = (a.0 + b.0, a.1 + b.1);
            if entries.saturating_sub(2 * freed) < blocks_max && entries <= entries_max {
                found = Some((one, next));
                break;
            }
        }
        let Some((one, next)) = found else {
            return Ok(());
        };
        let tx = Tx::syncing(ctx.txg);
        let empty = shared.empty_list();
        // All that is read comes first: nothing is half done where it fails.
        let mut old = Vec::new();
        let mut blocks = Vec::new();
        for (_, list) in [one, next] {
            if list != empty {
                let list = Bpobj::open(shared.mos(), list).await?;
                blocks.append(&mut living(&list).await?);
                old.push(list);
            }
        }
        let joined = Bpobj::create_livelist(shared.mos(), &tx).await?;
        joined.append_all(&tx, &blocks).await?;
        let Kind::Modern { zap, lists, .. } = &mut self.kind else {
            return Ok(());
        };
        // Where something fails, the livelist goes with all that it names: what it names still must
        // not be gone already, or what has the number by then would go instead.
        zap.update_int(&tx, one.0, joined.id().get()).await?;
        lists.insert(one.0, joined.id());
        zap.remove_int(&tx, next.0).await?;
        lists.remove(&next.0);
        let uses = (2 - old.len()) as i64;
        shared.release_empty_lists(ctx, uses).await?;
        for list in old {
            list.destroy(&tx).await?;
        }
        Ok(())
    }

    /// Blocks of an old deadlist from the `first`th on, as many as one read gives; none at its end,
    /// or of a map: so a long list is never in memory as a whole.
    pub(crate) async fn old_blocks(&self, first: u64) -> Result<Vec<BlockPointer>, DatasetError> {
        let Kind::Old(list) = &self.kind else {
            return Ok(Vec::new());
        };
        let sublists = list.phys()?.sublists.unwrap_or_default();
        if sublists.count == 0 {
            return Ok(list.own_blocks(first).await?);
        }
        // Lists of that time include no others: this is nobody's.
        let mut blocks = Vec::new();
        if first == 0 {
            list.for_each(&mut |block, _| {
                blocks.push(*block);
                Ok(())
            })
            .await?;
        }
        Ok(blocks)
    }

    /// Reads all of an old deadlist, and nothing of a map.
    pub(crate) async fn read_old(&self) -> Result<(), DatasetError> {
        let mut read = 0;
        loop {
            match self.old_blocks(read).await?.len() {
                0 => return Ok(()),
                more => read += more as u64,
            }
        }
    }

    /// Frees a deadlist's objects, not the blocks on it (`dsl_deadlist_free`). Those that cannot be
    /// read stay, and nobody refers to them any more: they take little, and the pool goes on.
    pub(crate) async fn destroy(
        shared: &Lists,
        ctx: &SyncContext,
        object: ObjectId,
    ) -> Result<(), DatasetError> {
        let tx = &Tx::syncing(ctx.txg);
        let mos = shared.mos();
        let lists = match waits_for_devices(Deadlist::open(mos, object))
            .await
            .map(|list| list.kind)
        {
            Ok(Kind::Old(_)) => {
                free_list(mos, tx, object).await;
                return Ok(());
            }
            Ok(Kind::Modern { lists, .. }) => lists,
            Err(error) => {
                tell_left(object, &error);
                return Ok(());
            }
        };
        let mut empty = 0;
        for list in lists.into_values() {
            if list == shared.empty_list() {
                empty += 1;
            } else {
                free_list(mos, tx, list).await;
            }
        }
        shared.release_empty_lists(ctx, empty).await?;
        free_map(mos, tx, object).await;
        Ok(())
    }
}

/// Lists without those that are the same as the one before.
fn distinct<'a>(lists: impl Iterator<Item = (&'a u64, &'a ObjectId)>) -> Vec<ObjectId> {
    let mut out: Vec<ObjectId> = lists.map(|(_, list)| *list).collect();
    out.dedup();
    out
}

/// Frees a deadlist's ZAP, and leaves it where it cannot be read.
async fn free_map(mos: &Arc<ObjectSet>, tx: &Tx, object: ObjectId) {
    if let Err(error) = waits_for_devices(mos.free(tx, object)).await {
        tell_left(object, &error.into());
    }
}

/// Frees a list's object, and leaves it where it cannot be read.
async fn free_list(mos: &Arc<ObjectSet>, tx: &Tx, list: ObjectId) {
    let freed = waits_for_devices(async { Bpobj::open(mos, list).await?.destroy(tx).await });
    if let Err(error) = freed.await {
        tell_left(list, &error.into());
    }
}

fn tell_left(object: ObjectId, error: &DatasetError) {
    tracing::error!(%object, %error, "an object of a list of blocks stays, though nobody needs it");
}

/// Blocks that a head allocated and freed in a sync.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub allocated: Vec<BlockPointer>,
    pub freed: Vec<BlockPointer>,
}

/// Blocks of a part that were not freed, each as often as it is referred to: of one that is
/// deduplicated or cloned there are several (`dsl_livelist_iterate`).
pub(crate) async fn living(list: &Bpobj) -> Result<Vec<BlockPointer>, DatasetError> {
    let mut found: HashMap<([u64; 2], Txg), (i64, BlockPointer)> = HashMap::new();
    list.for_each(&mut |block, freed| {
        if let Some(dva) = block.dva(0) {
            let key = (dva.to_words(), block.birth());
            found.entry(key).or_insert((0, *block)).0 += if freed { -1 } else { 1 };
        }
        Ok(())
    })
    .await?;
    let mut out = Vec::new();
    for (count, mut block) in found.into_values() {
        block.set_livelist_free(false);
        out.extend((0..count).map(|_| block));
    }
    Ok(out)
}
