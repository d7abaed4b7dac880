//! Condensing: the mapping of a removed vdev is written anew without what is no longer in use, so
//! that it takes less memory and less of the pool.
//!
//! ```text
//!            a part of it is obsolete               all entries are looked at
//!  (none) ----------------------------> under way ----------------------------> (none)
//! ```
//!
//! What becomes obsolete is recorded in a space map of the vdev (crate `space`). The group that
//! begins to condense takes that space map away (another one begins with what becomes obsolete from
//! then on), makes an object for the new mapping, and says so in the object directory. A task then
//! counts what is obsolete of each entry: by the counts that the last condensing wrote, and by the
//! space map. Groups write entries into the new mapping, with their counts, but for those of which
//! nothing is in use. The last one puts the new mapping in the place of the old one, and frees that
//! and the space map. Where a vdev was copied, and in which groups, stays as it is.
//!
//! # What a crash leaves
//! is a state of some group, with the old mapping whole, and as much of the new one as that group
//! had. Whoever imports the pool (OpenZFS, or we what OpenZFS began) counts again, and goes on
//! behind the end of the new mapping. Should that be another one than the counts lead to, it begins
//! anew, from its first entry.
//!
//! # What is not taken on trust
//! An entry that goes is lost for good. So nothing is condensed where the records cannot be right:
//! a range that is not in the mapping or obsolete twice, counts greater than their entries. The old
//! mapping stays, in which all is found. So it is where something cannot be read: groups do without
//! condensing, and try again later. Where an import finds that the objects of what was begun cannot
//! be right, they are left alone, and no mapping of that pool is condensed.
//!
//! Readers go on by the old mapping or the new one: in what is in use they are the same. The last
//! group is no earlier than the third after the first, when no reader has a block any more that was
//! freed before.
//!
//! # The list of what is to become obsolete
//! OpenZFS has a list of places that snapshots alone referred to (`dp_obsolete_bpobj`), which it
//! works off in the background. Where an import finds one, it is worked off here; we make none.
//!
//! Lock: `state`, for a few instructions; nothing else is locked under it.
//!
//! Source: module/zfs/vdev_indirect.c (`spa_condense_indirect_start_sync`,
//! `spa_condense_indirect_thread`, `spa_condense_indirect_complete_sync`,
//! `vdev_indirect_should_condense`).

use std::sync::Arc;

use format::{
    CondensingIndirectPhys, IndirectMappingEntry, IndirectMappingPhys, ObjectId, ObjectType, Txg,
    VdevId,
};
use object::{Bpobj, ObjectError, ObjectSet, SpaceMapKind, SpaceMapObject, Zap, ZapValue};
use parking_lot::Mutex;
use scan::Scans;
use spa::{Pass, PoolError, Spa, damaged, directory};
use space::names::{CHECKPOINT_SPACE_MAP, OBSOLETE_COUNTS, OBSOLETE_SPACE_MAP, TOP_ZAP};
use vdev::{IndirectMap, RangeSet, Vdev, VdevTree, mapping_of};
use zio::pipeline::{may_fail, waits_for_devices};

use crate::evacuation::store::{self, COUNT_BYTES};
use crate::removed::{self, BIRTHS_OBJECT, MAPPING_OBJECT};

/// Groups after the first one in which the old mapping stays.
const KEPT_TXGS: u64 = 3;
/// Groups that pass before what could not be read is tried again: at first, and at last.
const RETRY_TXGS: (u64, u64) = (16, 1024);
/// Ranges that a record of what is obsolete may have: they are in memory while it is checked.
const RANGES_MAX: usize = 16 << 20;
/// Entries of a mapping that one group looks at, at most.
const LOOKS_MAX: usize = 4 << 20;
/// Entries of the list of what is to become obsolete that one group takes.
const LISTED_MAX: u64 = 100_000;
const WHAT: &str = "what is condensed of a removed vdev's mapping";

/// When mappings are condensed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CondenseLimits {
    /// Whether they are (`zfs_condense_indirect_vdevs_enable`).
    pub enabled: bool,
    /// Percent of what is mapped that is obsolete (`zfs_condense_indirect_obsolete_pct`).
    pub obsolete_percent: u64,
    /// Mappings that take no more memory stay (`zfs_condense_min_mapping_bytes`).
    pub mapping_bytes_min: u64,
    /// From this size on, a record of what is obsolete is reason enough
    /// (`zfs_condense_max_obsolete_bytes`).
    pub record_bytes_max: u64,
    /// Entries that a transaction group writes, at most.
    pub turn_entries: usize,
}

impl Default for CondenseLimits {
    fn default() -> Self {
        CondenseLimits {
            enabled: true,
            obsolete_percent: 25,
            mapping_bytes_min: 128 << 10,
            record_bytes_max: 1 << 30,
            turn_entries: 64 << 10,
        }
    }
}

/// What an import found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    phys: Option<CondensingIndirectPhys>,
    list: Option<ObjectId>,
    /// What was begun cannot be right.
    is_left_alone: bool,
}

impl Found {
    /// Reads what the object directory says, with the mappings loaded. Of a pool that is not
    /// written nobody needs to know.
    pub(crate) async fn load(mos: &Arc<ObjectSet>, tree: &VdevTree) -> Result<Self, PoolError> {
        if tree.is_read_only() {
            return Ok(Found::default());
        }
        let zap = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        let list = zap.lookup_u64(directory::OBSOLETE_LIST).await?;
        let list = list.filter(|id| *id != 0).map(ObjectId::new);
        let mut found = Found {
            list,
            ..Found::default()
        };
        if let Some(value) = zap.lookup(directory::CONDENSING).await? {
            match checked(mos, tree, &value.to_u64s()).await {
                Ok(phys) => found.phys = Some(phys),
                Err(error) => {
                    tracing::warn!(%error, "no mapping of a removed vdev is condensed");
                    found.is_left_alone = true;
                }
            }
        }
        Ok(found)
    }
}

/// What an import found, if that can be: what would be written and freed by it is what it must be,
/// and nobody else's.
async fn checked(
    mos: &Arc<ObjectSet>,
    tree: &VdevTree,
    words: &[u64],
) -> Result<CondensingIndirectPhys, PoolError> {
    let phys = CondensingIndirectPhys::from_words(words)?;
    let (next, record) = (phys.next_mapping, phys.previous_obsolete_space_map);
    let has_objects = !next.is_zero() && !record.is_zero();
    let meant = removed_top(tree, &phys).filter(|_| has_objects);
    let (meant, _) = meant.ok_or_else(|| wrong("its vdev is none that can be"))?;
    let info = mos.hold(next).await?.info();
    let kind = ObjectType::OTN_UINT64_METADATA;
    let lengths = [IndirectMappingPhys::BYTES_V0, IndirectMappingPhys::BYTES];
    if (info.object_type, info.bonus_type) != (kind, kind) || !lengths.contains(&info.bonus_bytes) {
        return Err(wrong("what is to be the new mapping is none"));
    }
    SpaceMapObject::open(mos, record, 0, meant.asize_bytes(), 0).await?;
    let mut own = vec![next.get(), record.get()];
    if let Some(counts) = removed::head_of(mos, next).await?.counts {
        let info = mos.hold(counts).await?.info();
        if info.object_type != ObjectType::OTN_UINT32_METADATA {
            return Err(wrong("what is to be its counts is none"));
        }
        own.push(counts.get());
    }
    for top in tree.tops() {
        let pairs = [MAPPING_OBJECT, BIRTHS_OBJECT].map(|name| top.config_u64(name).unwrap_or(0));
        let mut used = pairs.to_vec();
        if pairs[0] != 0 {
            let head = removed::head_of(mos, ObjectId::new(pairs[0])).await?;
            used.extend(head.counts.map(ObjectId::get));
        }
        if let Some(zap) = top.config_u64(TOP_ZAP).filter(|id| *id != 0) {
            let zap = Zap::hold(mos, ObjectId::new(zap)).await?;
            for name in [OBSOLETE_SPACE_MAP, CHECKPOINT_SPACE_MAP] {
                used.extend(zap.lookup_u64(name).await?);
            }
        }
        if own.iter().any(|id| used.contains(id)) {
            return Err(wrong("an object of it is in use elsewhere"));
        }
    }
    Ok(phys)
}

/// The removed vdev that is meant, with its mapping.
fn removed_top(
    tree: &VdevTree,
    phys: &CondensingIndirectPhys,
) -> Option<(Arc<Vdev>, Arc<IndirectMap>)> {
    let id = u32::try_from(phys.vdev).ok()?;
    let top = tree.top(VdevId::new(id))?;
    let map = mapping_of(&top)?;
    Some((top, map))
}

/// What is known of a mapping while it is written anew.
#[derive(Debug)]
struct Work {
    map: Arc<IndirectMap>,
    /// Bytes that are obsolete of each of its entries.
    counts: Vec<u32>,
    /// The first of its entries that was not looked at.
    next: usize,
    /// The new mapping: its head as it is on disk, and its entries.
    head: IndirectMappingPhys,
    entries: Vec<IndirectMappingEntry>,
}

impl Work {
    /// Reads how far it is.
    async fn read(
        mos: &Arc<ObjectSet>,
        tree: &VdevTree,
        phys: &CondensingIndirectPhys,
    ) -> Result<Self, PoolError> {
        let (top, map) = removed_top(tree, phys).ok_or_else(|| wrong("its vdev is gone"))?;
        let [mapping, _] = removed::objects_of(&top)?;
        let count = map.entries().len() as u64;
        let mut counts = match removed::head_of(mos, mapping).await?.counts {
            Some(counts) => {
                let decode = |bytes: &[u8]| {
                    let count = bytes.first_chunk().copied().unwrap_or_default();
                    Ok(u32::from_le_bytes(count))
                };
                removed::read_array(mos, counts, count, COUNT_BYTES as usize, decode).await?
            }
            None => Vec::new(),
        };
        // What was never written is zero.
        counts.resize(map.entries().len(), 0);
        let mut known = map.entries().iter().zip(&counts);
        if known.any(|(entry, of)| u64::from(*of) > size_of(entry)) {
            return Err(wrong("its counts are greater than its entries"));
        }
        let id = phys.previous_obsolete_space_map;
        let record = SpaceMapObject::open(mos, id, 0, top.asize_bytes(), 0).await?;
        let mut seen = RangeSet::new();
        let mut visit = |entry: object::SpaceMapEntry| {
            let (offset, length) = (entry.offset_bytes, entry.length_bytes);
            let is_new = entry.kind == SpaceMapKind::Allocate && seen.add(offset, length) == length;
            let counted = map.count_obsolete(&mut counts, offset, length);
            let detail = match is_new && counted.is_ok() {
                true if seen.segments() <= RANGES_MAX => return Ok(()),
                true => "it has too much to check".to_owned(),
                false => format!("{length} bytes at {offset:#x} cannot be obsolete"),
            };
            Err(ObjectError::Damaged {
                object: id,
                structure: "space_map_t",
                detail,
            })
        };
        record.for_each(u64::MAX, &mut visit).await?;
        let (mut head, mut entries) = removed::read_entries(mos, phys.next_mapping).await?;
        let mut next = map.first_behind(head.max_offset_bytes);
        let is_in_use =
            |(entry, count): &(&IndirectMappingEntry, &u32)| u64::from(**count) < size_of(entry);
        let until_there = map.entries()[..next].iter().zip(&counts);
        let wanted = until_there.filter(is_in_use).map(|(entry, _)| entry);
        if !wanted.eq(&entries) {
            tracing::warn!(
                vdev = phys.vdev,
                "what is condensed of a mapping is not what it must be: it begins anew"
            );
            (next, entries) = (0, Vec::new());
            head = IndirectMappingPhys {
                counts: head.counts,
                ..IndirectMappingPhys::default()
            };
        }
        Ok(Work {
            map,
            counts,
            next,
            head,
            entries,
        })
    }

    /// The entries that are looked at next and have something that is in use, at most `most`, each
    /// with its count.
    fn take(&mut self, most: usize) -> Vec<(IndirectMappingEntry, u32)> {
        let mut out = Vec::new();
        let until = self
            .map
            .entries()
            .len()
            .min(self.next.saturating_add(LOOKS_MAX));
        while self.next < until && out.len() < most {
            let (entry, count) = (self.map.entries()[self.next], self.counts[self.next]);
            if u64::from(count) < size_of(&entry) {
                out.push((entry, count));
            }
            self.next += 1;
        }
        out
    }

    fn is_whole(&self) -> bool {
        self.next == self.map.entries().len()
    }
}

fn size_of(entry: &IndirectMappingEntry) -> u64 {
    entry.destination.asize_bytes()
}

fn wrong(why: &str) -> PoolError {
    damaged("the pool", WHAT, why.to_owned())
}

#[derive(Debug)]
struct UnderWay {
    phys: CondensingIndirectPhys,
    /// The first group that may end it.
    ends_from: Txg,
    is_being_read: bool,
    work: Option<Work>,
}

impl UnderWay {
    fn new(phys: CondensingIndirectPhys, ends_from: Txg) -> Self {
        UnderWay {
            phys,
            ends_from,
            is_being_read: false,
            work: None,
        }
    }
}

/// Where something could not be read, nothing is done for some groups, each time longer.
#[derive(Debug, Default)]
struct Rest {
    until: Txg,
    txgs: u64,
}

impl Rest {
    fn begin(&mut self, txg: Txg) {
        self.txgs = (self.txgs * 2).clamp(RETRY_TXGS.0, RETRY_TXGS.1);
        self.until = Txg::new(txg.get().saturating_add(self.txgs));
    }
}

#[derive(Debug, Default)]
struct State {
    limits: CondenseLimits,
    under_way: Option<UnderWay>,
    /// Places that are to become obsolete.
    list: Option<ObjectId>,
    /// No mapping is condensed: what was begun cannot be right.
    is_left_alone: bool,
    rest: Rest,
    list_rest: Rest,
    /// The last turn came further.
    has_moved: bool,
    /// How many mappings were condensed since the pool was opened.
    ended: u64,
}

/// What a turn finds.
enum Next {
    Begin,
    Read(CondensingIndirectPhys),
    Wait,
    Write(CondensingIndirectPhys, Work),
}

/// Condensing of a pool's mappings.
pub struct Condensing {
    spa: Arc<Spa>,
    scans: Arc<Scans>,
    state: Mutex<State>,
}

impl Condensing {
    /// Of a pool that was just opened: goes on with what was found.
    pub(crate) fn new(scans: &Arc<Scans>, found: Found) -> Arc<Self> {
        let state = State {
            under_way: found.phys.map(|phys| UnderWay::new(phys, Txg::ZERO)),
            list: found.list,
            is_left_alone: found.is_left_alone,
            ..State::default()
        };
        Arc::new(Condensing {
            spa: scans.spa.clone(),
            scans: scans.clone(),
            state: Mutex::new(state),
        })
    }

    /// Whether a mapping is being condensed.
    pub fn is_active(&self) -> bool {
        self.state.lock().under_way.is_some()
    }

    /// How many mappings were condensed since the pool was opened.
    pub fn ended(&self) -> u64 {
        self.state.lock().ended
    }

    /// Says when mappings are condensed; for tests.
    pub fn set_limits(&self, limits: CondenseLimits) {
        self.state.lock().limits = limits;
    }

    /// Whether nothing is done at present.
    fn rests(&self) -> bool {
        self.scans.scan.rests() || self.spa.suspended().is_some()
    }

    /// Whether it needs a transaction group although nobody asked for one.
    pub(crate) fn has_work(&self) -> bool {
        let txg = self.spa.txgs.open_txg();
        let is_waiting = {
            let state = self.state.lock();
            let under_way = state.under_way.as_ref();
            let is_waiting = under_way.is_some_and(|under_way| !under_way.is_being_read);
            state.list.is_some() && txg >= state.list_rest.until
                || is_waiting && txg >= state.rest.until
        };
        is_waiting && !self.spa.read_only && !self.rests()
    }

    /// The turn in each pass of a transaction group, before space is recorded.
    pub(crate) async fn turn(self: &Arc<Self>, pass: &Pass<'_>) -> Result<(), PoolError> {
        if !pass.is_first() {
            return Ok(());
        }
        let (list_rests, rests) = {
            let (mut state, txg) = (self.state.lock(), pass.ctx.txg);
            state.has_moved = false;
            (txg < state.list_rest.until, txg < state.rest.until)
        };
        if self.rests() {
            return Ok(());
        }
        if !list_rests {
            self.mark_listed(pass).await?;
        }
        if rests {
            return Ok(());
        }
        match self.next_step() {
            Next::Begin => self.begin(pass).await,
            Next::Read(phys) => {
                self.read(phys);
                Ok(())
            }
            Next::Wait => Ok(()),
            Next::Write(phys, work) => self.write(pass, phys, work).await,
        }
    }

    fn next_step(&self) -> Next {
        let mut state = self.state.lock();
        let Some(under_way) = &mut state.under_way else {
            return Next::Begin;
        };
        if under_way.is_being_read {
            return Next::Wait;
        }
        match under_way.work.take() {
            Some(work) => Next::Write(under_way.phys, work),
            None => {
                under_way.is_being_read = true;
                Next::Read(under_way.phys)
            }
        }
    }

    /// The transaction group is on disk.
    pub(crate) fn done(&self) {
        if self.state.lock().has_moved && self.has_work() {
            self.spa.txgs.go_on();
        }
    }

    fn rest(&self, error: &PoolError) {
        tracing::warn!(%error, "the mapping of a removed vdev stays as long as it is");
        let txg = self.spa.txgs.open_txg();
        self.state.lock().rest.begin(txg);
    }

    /// The same of the list.
    fn rest_list(&self, error: &ObjectError) {
        tracing::warn!(%error, "what is to become obsolete of a removed vdev stays on its list");
        let txg = self.spa.txgs.open_txg();
        self.state.lock().list_rest.begin(txg);
    }

    /// The vdev whose mapping is to be condensed, if there is one: with its ZAP, and the record of
    /// what is obsolete (`vdev_indirect_should_condense`).
    async fn due(
        &self,
        limits: &CondenseLimits,
    ) -> Result<Option<(Arc<Vdev>, Zap, ObjectId)>, PoolError> {
        let mos = self.spa.dsl.mos();
        for top in self.spa.tree.tops() {
            let Some(map) = mapping_of(&top).filter(|map| !map.entries().is_empty()) else {
                continue;
            };
            let Some(zap) = top.config_u64(TOP_ZAP).filter(|id| *id != 0) else {
                continue;
            };
            let zap = Zap::hold(mos, ObjectId::new(zap)).await?;
            let record = zap.lookup_u64(OBSOLETE_SPACE_MAP).await?;
            let Some(id) = record.filter(|id| *id != 0).map(ObjectId::new) else {
                continue;
            };
            let [mapping, _] = removed::objects_of(&top)?;
            let mapped_bytes = removed::head_of(mos, mapping).await?.mapped_bytes;
            let record = SpaceMapObject::open(mos, id, 0, top.asize_bytes(), 0).await?;
            let obsolete_bytes = u64::try_from(record.allocated_bytes()).unwrap_or(0);
            let is_obsolete = u128::from(obsolete_bytes) * 100
                >= u128::from(mapped_bytes) * u128::from(limits.obsolete_percent);
            let is_big = map.memory_bytes() > limits.mapping_bytes_min;
            if is_obsolete && is_big || record.length_bytes() >= limits.record_bytes_max {
                return Ok(Some((top, zap, id)));
            }
        }
        Ok(None)
    }

    /// Begins with a mapping of which enough is obsolete.
    async fn begin(&self, pass: &Pass<'_>) -> Result<(), PoolError> {
        let (spa, mos) = (&self.spa, self.spa.dsl.mos());
        let (limits, is_left_alone) = {
            let state = self.state.lock();
            (state.limits, state.is_left_alone)
        };
        if !limits.enabled || is_left_alone || !spa.dsl.features().is_active(OBSOLETE_COUNTS) {
            return Ok(());
        }
        let (top, zap, record) = match may_fail(self.due(&limits)).await {
            Ok(Some(due)) => due,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.rest(&error);
                return Ok(());
            }
        };
        let (next_mapping, _) = store::create_mapping(&pass.space(), mos).await?;
        zap.remove(pass.tx, OBSOLETE_SPACE_MAP).await?;
        let phys = CondensingIndirectPhys {
            vdev: u64::from(top.vdev_id().get()),
            previous_obsolete_space_map: record,
            next_mapping,
        };
        let value = ZapValue::from_u64s(&phys.to_words());
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        directory.add(pass.tx, directory::CONDENSING, value).await?;
        tracing::info!(
            vdev = phys.vdev,
            "the mapping of a removed vdev is condensed"
        );
        let ends_from = Txg::new(pass.ctx.txg.get() + KEPT_TXGS);
        let mut state = self.state.lock();
        state.under_way = Some(UnderWay::new(phys, ends_from));
        state.has_moved = true;
        Ok(())
    }

    /// Has what it goes by read: none of that changes any more.
    fn read(self: &Arc<Self>, phys: CondensingIndirectPhys) {
        let condensing = self.clone();
        let tasks = self.spa.pipeline.tasks();
        tasks.spawn("read what a mapping is condensed by", async move {
            let spa = &condensing.spa;
            let read = Work::read(spa.dsl.mos(), &spa.tree, &phys).await;
            if let Err(error) = &read {
                condensing.rest(error);
            }
            if let Some(under_way) = &mut condensing.state.lock().under_way {
                under_way.is_being_read = false;
                under_way.work = read.ok();
            }
            if condensing.has_work() {
                condensing.spa.txgs.go_on();
            }
        });
    }

    /// Writes what a group may, and ends it behind the last entry.
    async fn write(
        &self,
        pass: &Pass<'_>,
        phys: CondensingIndirectPhys,
        mut work: Work,
    ) -> Result<(), PoolError> {
        let (most, before) = (self.state.lock().limits.turn_entries, work.next);
        let entries = work.take(most);
        let (mos, head) = (self.spa.dsl.mos(), &mut work.head);
        let appended = store::append_entries(pass.tx, mos, phys.next_mapping, head, &entries);
        if let Err(error) = waits_for_devices(appended).await {
            // What is there of it is looked at again.
            self.rest(&error.into());
            return Ok(());
        }
        work.entries.extend(entries.iter().map(|(entry, _)| *entry));
        let ends_from = {
            let mut state = self.state.lock();
            state.has_moved = work.is_whole() || work.next > before;
            state
                .under_way
                .as_ref()
                .map(|under_way| under_way.ends_from)
        };
        if work.is_whole() && ends_from.is_some_and(|from| pass.ctx.txg >= from) {
            return self.end(pass, &phys, work).await;
        }
        if let Some(under_way) = &mut self.state.lock().under_way {
            under_way.work = Some(work);
        }
        Ok(())
    }

    /// Puts the new mapping in the place of the old one. What is needed for that is read before
    /// anything is changed; what is held then is freed without another read.
    async fn end(
        &self,
        pass: &Pass<'_>,
        phys: &CondensingIndirectPhys,
        work: Work,
    ) -> Result<(), PoolError> {
        let (spa, mos, sync) = (&self.spa, self.spa.dsl.mos(), pass.space());
        let counts = (work.map.entries().len(), work.entries.len());
        let new_head = work.head.encode();
        let map = work.map.condensed(work.entries);
        let read = may_fail(async {
            let map = map?;
            let (top, _) = removed_top(&spa.tree, phys).ok_or_else(|| wrong("its vdev is gone"))?;
            let [before, _] = removed::objects_of(&top)?;
            let head = removed::head_of(mos, before).await?;
            let mut held = vec![mos.hold(before).await?];
            if let Some(counts) = head.counts {
                held.push(mos.hold(counts).await?);
            }
            let id = phys.previous_obsolete_space_map;
            let record = SpaceMapObject::open(mos, id, 0, top.asize_bytes(), 0).await?;
            let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
            directory.lookup(directory::CONDENSING).await?;
            // One that began anew, and has no entries, has the old head.
            let next = mos.hold(phys.next_mapping).await?;
            next.set_bonus(pass.tx, new_head)?;
            Ok::<_, PoolError>((map, top, (before, head), held, record, directory))
        });
        let (map, top, (before, head), _held, record, directory) = match read.await {
            Ok(read) => read,
            Err(error) => {
                // All is read again then.
                self.rest(&error);
                return Ok(());
            }
        };
        store::free_mapping(&sync, mos, before, &head).await?;
        space::free_map(&sync, record).await?;
        store::uncount(&sync).await?;
        directory.remove(pass.tx, directory::CONDENSING).await?;
        top.set_config(MAPPING_OBJECT, phys.next_mapping.get());
        spa.tree.topology().set_indirect_map(top.vdev_id(), map)?;
        spa.identity.mark_dirty();
        tracing::info!(
            vdev = phys.vdev,
            before = counts.0,
            after = counts.1,
            "the mapping of a removed vdev was condensed"
        );
        let mut state = self.state.lock();
        state.under_way = None;
        state.rest = Rest::default();
        state.ended += 1;
        Ok(())
    }

    /// Takes places off the list of what is to become obsolete (`dsl_scan_obsolete_block_cb`,
    /// module/zfs/dsl_scan.c), and frees it when it is empty (`dsl_pool_destroy_obsolete_bpobj`).
    async fn mark_listed(&self, pass: &Pass<'_>) -> Result<(), PoolError> {
        let (spa, mos) = (&self.spa, self.spa.dsl.mos());
        let Some(id) = self.state.lock().list else {
            return Ok(());
        };
        let opened = may_fail(async {
            let list = Bpobj::open(mos, id).await?;
            let is_empty = list.is_empty().await?;
            let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
            directory.lookup(directory::OBSOLETE_LIST).await?;
            Ok::<_, ObjectError>((list, is_empty, directory))
        });
        let (list, is_empty, directory) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                self.rest_list(&error);
                return Ok(());
            }
        };
        if !is_empty {
            let dvas = spa.pipeline.dvas();
            let mut visit = |block: &format::BlockPointer| {
                let Some(dva) = block.dva(0) else {
                    return Ok(());
                };
                let place = (dva.vdev(), dva.offset_bytes(), dva.asize_bytes());
                match spa.tree.topology().remap(place.0, place.1, place.2) {
                    Ok(Some(_)) => dvas.mark_obsolete(pass.ctx.txg, place.0, place.1, place.2),
                    _ => tracing::error!(?place, "what is no place cannot become obsolete"),
                }
                Ok(())
            };
            let drained = waits_for_devices(list.drain(pass.tx, LISTED_MAX, &mut visit)).await;
            if let Some(error) = drained.failed {
                self.rest_list(&error);
            } else {
                self.state.lock().has_moved = true;
            }
            return Ok(());
        }
        // Of an empty list nothing is freed where this fails.
        if let Err(error) = may_fail(list.destroy(pass.tx)).await {
            self.rest_list(&error);
            return Ok(());
        }
        directory.remove(pass.tx, directory::OBSOLETE_LIST).await?;
        store::uncount(&pass.space()).await?;
        self.state.lock().list = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_get_longer_up_to_a_limit() {
        let mut rest = Rest::default();
        let mut lengths = Vec::new();
        for _ in 0..8 {
            rest.begin(Txg::new(100));
            lengths.push(rest.until.get() - 100);
        }
        assert_eq!(lengths, [16, 32, 64, 128, 256, 512, 1024, 1024]);
    }
}
