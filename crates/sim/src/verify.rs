//! A whole pool against its own books: every block that anything refers to, once, and what the
//! pool says about it (what `zdb -bcc` does, and some more).
//!
//! From the uberblock's root it walks the MOS, every dataset and snapshot, and compares
//!
//! - the places of all blocks with the space maps (own and log): nothing used that is not
//!   allocated, nothing allocated that is not used, nothing used twice;
//! - the content of every copy with its checksum, and where keys are loaded with its MAC;
//! - in every dnode the space used, in every indirect block the fill counts;
//! - in every dataset what it refers to and what is unique, and the deadlist, with the blocks;
//! - in every directory the space of its children and of its head;
//! - the references in dedup tables with the pointers that there are (`verify_dedup`).
//!
//! The pool must be quiet: imported read-only, or idle after a sync. Memory is proportional to
//! the number of blocks: for simulated pools.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use device::BoxFuture;
use format::Bookmark;
use format::{
    BlockPointer, DeadlistPhys, DnodeFlags, DnodePhys, DslDatasetPhys, DslDirPhys, Endian,
    ObjectId, ObjectType, ObjsetId, ObjsetPhys, Txg, UsedBy, VdevId, ZilHeader,
};
use object::{Bpobj, BpobjSpace, Bptree, ObjectSet, SpaceMapKind, SpaceMapObject, Zap};
use pool::Pool;
use vdev::RangeSet;
use vdev::{VdevKind, metaslab_span};
use zio::pipeline::CacheUse;
use zio::{CloneKey, Pipeline, ReadContext};

use crate::verify_clones::Clones;
use crate::verify_dedup::Shared;

/// Why a pool cannot be verified at all.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// Distinct blocks with a place on disk.
    pub blocks: u64,
    /// Bytes that they take.
    pub allocated_bytes: u64,
    /// Datasets and snapshots.
    pub datasets: u64,
    /// Log space maps that were not flushed.
    pub log_space_maps: u64,
    /// Blocks of intent logs.
    pub log_blocks: u64,
    /// References that dedup tables count.
    pub shared_references: u64,
    /// Entries of dedup tables that logs have.
    pub logged_entries: u64,
    /// References that tables of cloned blocks count.
    pub cloned_references: u64,
    /// Blocks, also of intent logs, whose MACs were verified with their keys: those of datasets
    /// that were opened.
    pub macs: u64,
    /// What datasets and snapshots refer to, by their numbers in the MOS.
    pub sets: BTreeMap<ObjectId, SetReport>,
    /// What is wrong, in words.
    pub problems: Vec<String>,
}

/// Space of a dataset or snapshot, counted block by block.
#[derive(Debug, Default)]
pub struct SetReport {
    /// Bytes of blocks by their birth.
    pub born: BTreeMap<Txg, u64>,
    /// Bytes before compression (`logicalreferenced`).
    pub uncompressed_bytes: u64,
    /// Of a head: what its own snapshots refer to and it does not any more, leaving out what its
    /// origin has (`usedbysnapshots`).
    pub by_snapshots_bytes: u64,
}

impl SetReport {
    /// Bytes of blocks that were born after a transaction group.
    pub fn born_after(&self, txg: Txg) -> u64 {
        let later = self.born.iter().filter(|(birth, _)| **birth > txg);
        later.map(|(_, bytes)| bytes).sum()
    }
}

impl Report {
    /// Panics with all problems if there are any.
    ///
    /// # Panics
    /// See above; `what` is said first.
    pub fn expect_clean(&self, what: &str) {
        assert!(
            self.problems.is_empty(),
            "{what}: {} problems:\n{}",
            self.problems.len(),
            self.problems
                .iter()
                .take(40)
                .cloned()
                .collect::<Vec<_>>()
                .join("\n")
        );
    }
}

/// A block's identity: its first place and its birth.
type Key = (u64, u64, u64);

fn key(block: &BlockPointer) -> Key {
    let words = block.words();
    (words[0], words[1], block.birth().get())
}

/// What a block holds that leads on.
#[derive(Default)]
struct Content {
    /// Pointers in an indirect block; those of an object set's own dnodes come as dnodes.
    pointers: Vec<BlockPointer>,
    dnodes: Vec<DnodePhys>,
    log: Option<ZilHeader>,
}

/// What a subtree adds up to.
#[derive(Clone, Copy, Default)]
struct Sum {
    used_bytes: u64,
    fill: u64,
}

/// What one dataset refers to.
#[derive(Default)]
struct Referenced {
    /// Whose key is used.
    objset: ObjsetId,
    space: BpobjSpace,
    /// Blocks, and how often: deduplicated ones may be referred to several times.
    blocks: Counted,
    /// Pointers born later are not in the snapshot before.
    born_after: Txg,
}

type Counted = HashMap<Key, (BlockPointer, u64)>;

fn space_of<'b>(
    pipeline: &Pipeline,
    blocks: impl Iterator<Item = &'b (BlockPointer, u64)>,
    born_after: Txg,
) -> u64 {
    blocks
        .filter(|(block, _)| block.birth() > born_after)
        .map(|(block, count)| pipeline.dsize_bytes(block) * count)
        .sum()
}

pub(crate) struct Walk<'a> {
    pub(crate) pool: &'a Arc<Pipeline>,
    pub(crate) report: Report,
    contents: HashMap<Key, Arc<Content>>,
    pub(crate) shared: Shared,
    pub(crate) clones: Clones,
    pub(crate) claimed: BTreeMap<VdevId, RangeSet>,
    /// Perhaps allocated: blocks of logs, and of trees that are being freed.
    pub(crate) uncertain: BTreeMap<VdevId, RangeSet>,
}

/// Verifies a quiet pool.
///
/// # Errors
/// When something is unreadable that everything depends on; what is wrong but can be passed by is
/// in the report.
pub async fn verify_pool(pool: &Pool) -> Result<Report, Failure> {
    let dsl = pool.dsl();
    let mos = dsl.mos();
    let mut walk = Walk {
        pool: pool.pipeline(),
        report: Report::default(),
        contents: HashMap::new(),
        shared: Shared::default(),
        clones: Clones::default(),
        claimed: BTreeMap::new(),
        uncertain: BTreeMap::new(),
    };
    let root = dsl.root_bp();
    let mut all = Referenced::default();
    walk.visit(&root, &mut all, "MOS").await?;
    walk.datasets(mos).await?;
    walk.waiting_frees(mos).await?;
    walk.dedup_tables(mos).await?;
    walk.clone_tables(pool, mos).await?;
    walk.follow_mappings();
    let allocated = walk.space_maps(pool, mos).await?;
    walk.compare_space(pool, &allocated);
    if dsl.root_bp() != root {
        return Err("the pool changed while it was verified".into());
    }
    Ok(walk.report)
}

impl Walk<'_> {
    pub(crate) fn problem(&mut self, text: String) {
        self.report.problems.push(text);
    }

    /// For what leads on, which is in the clear.
    pub(crate) fn context() -> ReadContext {
        ReadContext {
            cache: CacheUse::Bypass,
            without_key: true,
            ..ReadContext::new(Bookmark::default())
        }
    }

    /// The MAC of a block, if its key is loaded. (Those of indirect blocks need none.)
    async fn mac(&mut self, block: &BlockPointer, objset: ObjsetId, what: &str) {
        if block.level() > 0 || !block.uses_crypt() || self.pool.keys().get(objset).is_none() {
            return;
        }
        let context = ReadContext {
            cache: CacheUse::Bypass,
            ..ReadContext::new(Bookmark {
                objset,
                ..Bookmark::default()
            })
        };
        self.report.macs += 1;
        if let Err(error) = self.pool.read(block, &context).await {
            self.problem(format!("{what}: {error} ({block:?})"));
        }
    }

    /// Takes the places of a block.
    pub(crate) fn claim<'b>(
        &'b mut self,
        block: &'b BlockPointer,
        certain: bool,
    ) -> BoxFuture<'b, Result<(), Failure>> {
        Box::pin(async move {
            for dva in block.dvas() {
                let size = if dva.is_gang() {
                    // A header's place; the members have their own.
                    self.pool
                        .allocator()
                        .asize(dva.vdev(), format::GANG_HEADER_BYTES as u64)
                        .ok_or("a gang block on no vdev")?
                } else {
                    dva.asize_bytes()
                };
                if certain {
                    let set = self.claimed.entry(dva.vdev()).or_default();
                    if set.add(dva.offset_bytes(), size) != size {
                        self.problem(format!("used twice: {dva:?}, {size} bytes, of {block:?}"));
                    }
                } else {
                    let set = self.uncertain.entry(dva.vdev()).or_default();
                    set.add(dva.offset_bytes(), size);
                }
            }
            if block.is_gang() {
                let members = self
                    .pool
                    .reader()
                    .read_gang_header(block, &Self::context())
                    .await?;
                for member in members {
                    self.claim(&member, certain).await?;
                }
            }
            Ok(())
        })
    }

    /// Reads a block that is seen for the first time, all copies, and takes it apart.
    async fn content(
        &mut self,
        block: &BlockPointer,
        objset: ObjsetId,
        what: &str,
    ) -> Result<Arc<Content>, Failure> {
        if let Some(known) = self.contents.get(&key(block)) {
            return Ok(known.clone());
        }
        if !block.is_dedup() {
            if self.clones.is_first(block) {
                self.claim(block, true).await?;
            }
        } else if !self.shared.is_first(block) {
            return Ok(Arc::default());
        }
        self.report.blocks += 1;
        let context = Self::context();
        match self.pool.reader().scrub(block, &context).await {
            Ok(outcome) => {
                if outcome.bad_copies > 0 {
                    self.problem(format!("{what}: {outcome:?} in {block:?}"));
                }
            }
            Err(error) => self.problem(format!("{what}: {error} ({block:?})")),
        }
        self.mac(block, objset, what).await;
        let mut content = Content::default();
        let leads_on = block.level() > 0
            || matches!(block.object_type(), ObjectType::DNODE | ObjectType::OBJSET);
        if leads_on {
            match self.pool.read(block, &context).await {
                Ok(bytes) => {
                    if let Err(error) = take_apart(block, &bytes, &mut content) {
                        self.problem(format!("{what}: {error} in {block:?}"));
                    }
                }
                Err(error) => self.problem(format!("{what}: {error}")),
            }
        }
        let content = Arc::new(content);
        self.contents.insert(key(block), content.clone());
        Ok(content)
    }

    /// Visits a block and all below it.
    fn visit<'b>(
        &'b mut self,
        block: &'b BlockPointer,
        into: &'b mut Referenced,
        what: &'b str,
    ) -> BoxFuture<'b, Result<Sum, Failure>> {
        Box::pin(async move {
            if block.is_hole() {
                return Ok(Sum::default());
            }
            into.space = into.space.plus(BpobjSpace::of_block(self.pool, block));
            if block.is_embedded() {
                return Ok(Sum {
                    used_bytes: 0,
                    fill: 1,
                });
            }
            into.blocks.entry(key(block)).or_insert((*block, 0)).1 += 1;
            if block.is_dedup() && block.birth() > into.born_after {
                self.shared.refer(block);
            }
            if block.birth() > into.born_after {
                self.clones.refer(block);
            }
            let content = self.content(block, into.objset, what).await?;
            let mut sum = Sum::default();
            for pointer in &content.pointers {
                let below = self.visit(pointer, into, what).await?;
                sum.used_bytes += below.used_bytes;
                sum.fill += below.fill;
                if !pointer.is_hole() && pointer.level() + 1 != block.level() {
                    self.problem(format!("{what}: level {} below {block:?}", pointer.level()));
                }
                if pointer.birth() > block.birth() {
                    self.problem(format!("{what}: {pointer:?} is younger than {block:?}"));
                }
            }
            for (index, dnode) in content.dnodes.iter().enumerate() {
                let below = self.dnode(dnode, into, what).await?;
                if block.object_type() == ObjectType::OBJSET {
                    // The meta dnode comes first: it counts.
                    if index == 0 {
                        sum.fill = below.fill;
                    }
                } else {
                    sum.fill += 1;
                }
            }
            let is_leaf = block.level() == 0
                && !matches!(block.object_type(), ObjectType::DNODE | ObjectType::OBJSET);
            if is_leaf {
                sum.fill = 1;
            }
            if sum.fill != block.fill() {
                self.problem(format!(
                    "{what}: fill is {}, counted {}: {block:?}",
                    block.fill(),
                    sum.fill
                ));
            }
            sum.used_bytes += self.pool.dsize_bytes(block);
            Ok(sum)
        })
    }

    async fn dnode(
        &mut self,
        dnode: &DnodePhys,
        into: &mut Referenced,
        what: &str,
    ) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        for pointer in dnode.pointers.iter().chain(&dnode.spill) {
            let below = self.visit(pointer, into, what).await?;
            sum.used_bytes += below.used_bytes;
            sum.fill += below.fill;
        }
        // The space of the meta dnode is not counted by those who made older pools.
        let counts_bytes = dnode.flags.contains(DnodeFlags::USED_BYTES);
        if counts_bytes && dnode.used_bytes != sum.used_bytes {
            self.problem(format!(
                "{what}: a dnode of type {:?} says {} bytes used, counted {}",
                dnode.object_type, dnode.used_bytes, sum.used_bytes
            ));
        }
        Ok(sum)
    }

    async fn datasets(&mut self, mos: &Arc<ObjectSet>) -> Result<(), Failure> {
        let mut datasets = BTreeMap::new();
        let mut dirs = BTreeMap::new();
        let mut at = None;
        while let Some(id) = mos.next_object(at).await? {
            at = Some(id);
            let object = mos.hold(id).await?;
            let info = object.info();
            if info.bonus_type == ObjectType::DSL_DATASET {
                let phys = DslDatasetPhys::decode(&object.bonus(), Endian::Little)?;
                datasets.insert(id, phys);
            } else if info.bonus_type == ObjectType::DSL_DIR {
                let phys = DslDirPhys::decode(&object.bonus(), Endian::Little)?;
                dirs.insert(id, phys);
            }
        }
        let mut referenced: BTreeMap<ObjectId, Referenced> = BTreeMap::new();
        for (id, phys) in &datasets {
            self.report.datasets += 1;
            let what = format!("dataset {id}");
            let mut found = Referenced {
                objset: ObjsetId::new(id.get()),
                born_after: phys.previous_snapshot_txg,
                ..Referenced::default()
            };
            self.visit(&phys.block, &mut found, &what).await?;
            if !phys.block.is_hole() {
                let content = self.content(&phys.block, found.objset, &what).await?;
                if let Some(log) = content.log
                    && !phys.is_snapshot()
                {
                    self.log_chain(&log, &what).await;
                }
            }
            let says = (
                phys.referenced_bytes,
                phys.compressed_bytes,
                phys.uncompressed_bytes,
            );
            let counted = (
                found.space.used_bytes,
                found.space.compressed_bytes,
                found.space.uncompressed_bytes,
            );
            if says != counted {
                self.problem(format!("{what} refers to {says:?}, counted {counted:?}"));
            }
            referenced.insert(*id, found);
        }
        self.deadlists(mos, &datasets, &referenced).await?;
        self.directories(&datasets, &dirs, &referenced);
        self.count_sets(&datasets, &dirs, &referenced);
        Ok(())
    }

    fn count_sets(
        &mut self,
        datasets: &BTreeMap<ObjectId, DslDatasetPhys>,
        dirs: &BTreeMap<ObjectId, DslDirPhys>,
        referenced: &BTreeMap<ObjectId, Referenced>,
    ) {
        for (id, phys) in datasets {
            let own = &referenced[id];
            let mut report = SetReport {
                uncompressed_bytes: own.space.uncompressed_bytes,
                ..SetReport::default()
            };
            for (block, count) in own.blocks.values() {
                let bytes = self.pool.dsize_bytes(block) * count;
                *report.born.entry(block.birth()).or_default() += bytes;
            }
            if !phys.is_snapshot() {
                report.by_snapshots_bytes = self.by_snapshots(*id, datasets, dirs, referenced);
            }
            self.report.sets.insert(*id, report);
        }
    }

    /// What went missing from each snapshot of a head to the next, and in the end to the head.
    fn by_snapshots(
        &self,
        head: ObjectId,
        datasets: &BTreeMap<ObjectId, DslDatasetPhys>,
        dirs: &BTreeMap<ObjectId, DslDirPhys>,
        referenced: &BTreeMap<ObjectId, Referenced>,
    ) -> u64 {
        let origin = dirs.get(&datasets[&head].directory);
        let origin = origin.map_or(ObjectId::ZERO, |dir| dir.origin);
        let after = datasets
            .get(&origin)
            .map_or(Txg::ZERO, |origin| origin.creation_txg);
        let (mut at, mut total) = (head, 0);
        loop {
            let before = datasets[&at].previous_snapshot;
            let Some(earlier) = referenced.get(&before).filter(|_| before != origin) else {
                return total;
            };
            let now = &referenced[&at].blocks;
            for (key, (block, count)) in &earlier.blocks {
                let left = now.get(key).map_or(0, |(_, count)| *count);
                if block.birth() > after {
                    total += self.pool.dsize_bytes(block) * count.saturating_sub(left);
                }
            }
            at = before;
        }
    }

    /// A deadlist holds what the snapshot before refers to and the dataset does not.
    async fn deadlists(
        &mut self,
        mos: &Arc<ObjectSet>,
        datasets: &BTreeMap<ObjectId, DslDatasetPhys>,
        referenced: &BTreeMap<ObjectId, Referenced>,
    ) -> Result<(), Failure> {
        let nothing = Referenced::default();
        for (id, phys) in datasets {
            if phys.deadlist.is_zero() {
                continue;
            }
            let own = &referenced[id];
            let before = referenced.get(&phys.previous_snapshot).unwrap_or(&nothing);
            let (listed, space, embedded) = read_deadlist(self.pool, mos, phys.deadlist).await?;
            let times =
                |blocks: &Counted, key: &Key| blocks.get(key).map_or(0, |(_, count)| *count);
            for (key, (block, count)) in &before.blocks {
                let wanted = count.saturating_sub(times(&own.blocks, key));
                let found = times(&listed, key);
                if found < wanted {
                    self.problem(format!("dataset {id}: not on its deadlist: {block:?}"));
                } else if found > wanted {
                    self.problem(format!("dataset {id}: wrongly on its deadlist: {block:?}"));
                }
            }
            for (key, (block, _)) in &listed {
                if !before.blocks.contains_key(key) {
                    self.problem(format!("dataset {id}: wrongly on its deadlist: {block:?}"));
                }
            }
            let held = mos.hold(phys.deadlist).await?;
            if held.info().bonus_type == ObjectType::DEADLIST_HDR {
                let head = DeadlistPhys::decode(&held.bonus(), Endian::Little)?;
                let says = (
                    head.used_bytes,
                    head.compressed_bytes,
                    head.uncompressed_bytes,
                );
                let counted = (
                    space.used_bytes,
                    space.compressed_bytes,
                    space.uncompressed_bytes,
                );
                if says != counted {
                    self.problem(format!(
                        "dataset {id}: its deadlist says {says:?}, counted {counted:?} ({embedded} \
                         embedded)"
                    ));
                }
            }
            // What nothing else refers to.
            let unique = if phys.is_snapshot() {
                let Some(next) = datasets.get(&phys.next_snapshot) else {
                    self.problem(format!("dataset {id} has no next one"));
                    continue;
                };
                let (dead, _, _) = read_deadlist(self.pool, mos, next.deadlist).await?;
                space_of(self.pool, dead.values(), phys.previous_snapshot_txg)
            } else {
                space_of(self.pool, own.blocks.values(), phys.previous_snapshot_txg)
            };
            let accurate = phys.flags & DslDatasetPhys::FLAG_UNIQUE_ACCURATE != 0;
            if accurate && unique != phys.unique_bytes {
                self.problem(format!(
                    "dataset {id} says {} bytes unique, counted {unique}",
                    phys.unique_bytes
                ));
            }
        }
        Ok(())
    }

    fn directories(
        &mut self,
        datasets: &BTreeMap<ObjectId, DslDatasetPhys>,
        dirs: &BTreeMap<ObjectId, DslDirPhys>,
        referenced: &BTreeMap<ObjectId, Referenced>,
    ) {
        for (id, dir) in dirs {
            if dir.flags & DslDirPhys::FLAG_USED_BREAKDOWN == 0 {
                continue;
            }
            let parts: u64 = dir.used_breakdown.iter().sum();
            if parts != dir.used_bytes {
                self.problem(format!(
                    "directory {id} uses {} bytes, its parts {:?}",
                    dir.used_bytes, dir.used_breakdown
                ));
            }
            let children: u64 = dirs
                .values()
                .filter(|child| child.parent == *id)
                .map(|child| child.used_bytes.max(child.reserved_bytes))
                .sum();
            let counted = dir.used_breakdown[UsedBy::Children as usize]
                + dir.used_breakdown[UsedBy::ChildrenReservation as usize];
            if children != counted {
                self.problem(format!(
                    "directory {id} says {counted} bytes used by children, counted {children}"
                ));
            }
            // What the head refers to and its origin does not.
            let origin_txg = datasets
                .get(&dir.origin)
                .map_or(Txg::ZERO, |origin| origin.creation_txg);
            if let Some(head) = referenced.get(&dir.head_dataset) {
                let own = space_of(self.pool, head.blocks.values(), origin_txg);
                let says = dir.used_breakdown[UsedBy::Head as usize];
                if own != says {
                    self.problem(format!(
                        "directory {id} says {says} bytes used by its dataset {}, counted {own}",
                        dir.head_dataset
                    ));
                }
            }
        }
    }

    /// What waits to be freed is still allocated.
    async fn waiting_frees(&mut self, mos: &Arc<ObjectSet>) -> Result<(), Failure> {
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        for name in ["free_bpobj", "sync_bplist"] {
            let Some(id) = directory.lookup_u64(name).await? else {
                continue;
            };
            for block in list_blocks(mos, ObjectId::new(id)).await? {
                if block.is_dedup() && !block.is_embedded() {
                    self.shared.refer(&block);
                } else if CloneKey::of(&block).is_some() {
                    self.clones.refer(&block);
                    if self.clones.is_first(&block) {
                        self.claim(&block, true).await?;
                    }
                } else if self.contents.contains_key(&key(&block)) {
                    self.problem(format!("to be freed and in use: {block:?}"));
                } else {
                    self.claim(&block, true).await?;
                }
            }
        }
        if let Some(id) = directory.lookup_u64("bptree_obj").await? {
            let tree = Bptree::open(mos, ObjectId::new(id)).await?;
            for (_, entry) in tree.entries().await? {
                self.doomed(&entry.root, entry.birth_txg).await;
            }
        }
        Ok(())
    }

    /// A tree that is being freed: some of it is free already, and may be anything by now.
    fn doomed<'b>(&'b mut self, block: &'b BlockPointer, born_after: Txg) -> BoxFuture<'b, ()> {
        Box::pin(async move {
            let gone = block.is_hole() || block.is_embedded() || block.birth() <= born_after;
            if !gone && block.is_dedup() {
                self.shared.refer_perhaps(block);
                return;
            }
            if !gone && CloneKey::of(block).is_some() {
                self.clones.refer_perhaps(block);
                let _ = self.claim(block, false).await;
                return;
            }
            if gone || self.contents.contains_key(&key(block)) {
                return;
            }
            let _ = self.claim(block, false).await;
            let mut content = Content::default();
            let leads_on = block.level() > 0
                || matches!(block.object_type(), ObjectType::DNODE | ObjectType::OBJSET);
            let context = ReadContext {
                speculative: true,
                ..Self::context()
            };
            if leads_on
                && let Ok(bytes) = self.pool.read(block, &context).await
                && take_apart(block, &bytes, &mut content).is_ok()
            {
                let mut pointers = content.pointers;
                for dnode in content.dnodes {
                    pointers.extend(dnode.pointers);
                    pointers.extend(dnode.spill);
                }
                for pointer in pointers {
                    self.doomed(&pointer, born_after).await;
                }
            }
        })
    }

    /// What the space maps and the logs of space maps say is allocated, by vdev.
    async fn space_maps(
        &mut self,
        pool: &Pool,
        mos: &Arc<ObjectSet>,
    ) -> Result<BTreeMap<VdevId, RangeSet>, Failure> {
        let mut allocated: BTreeMap<VdevId, RangeSet> = BTreeMap::new();
        let mut flushed: BTreeMap<(VdevId, u64), u64> = BTreeMap::new();
        let mut shifts = BTreeMap::new();
        for top in pool.pipeline().tree().tops() {
            if top.top().is_none() {
                continue;
            }
            let vdev = top.vdev_id();
            let shift = top.metaslab_shift();
            let array = top.top().map_or(0, vdev::Top::metaslab_array);
            if array == 0 {
                continue;
            }
            let stripe_bytes = match top.kind() {
                VdevKind::Draid(draid) => (draid.layout.data + draid.layout.parity) << top.ashift(),
                _ => 0,
            };
            shifts.insert(vdev, (shift, stripe_bytes));
            let count = top.metaslab_count();
            let maps = words(mos, ObjectId::new(array), count).await?;
            let set = allocated.entry(vdev).or_default();
            let mut wrong = Vec::new();
            for (index, id) in maps.iter().enumerate().filter(|(_, id)| **id != 0) {
                let span = metaslab_span(index as u64, shift, stripe_bytes);
                let map = SpaceMapObject::open(
                    mos,
                    ObjectId::new(*id),
                    span.start,
                    span.end - span.start,
                    top.ashift() as u8,
                )
                .await?;
                let before = set.space();
                map.for_each(map.length_bytes(), &mut |entry| {
                    let inside = entry.offset_bytes >= span.start
                        && entry.offset_bytes + entry.length_bytes <= span.end;
                    if !inside || !apply(set, entry.kind, entry.offset_bytes, entry.length_bytes) {
                        wrong.push(format!(
                            "vdev {vdev} metaslab {index}: {entry:?} makes no sense"
                        ));
                    }
                    Ok(())
                })
                .await?;
                let sum = set.space() as i64 - before as i64;
                if sum != map.allocated_bytes() {
                    wrong.push(format!(
                        "vdev {vdev} metaslab {index}: {} bytes allocated, counted {sum}",
                        map.allocated_bytes()
                    ));
                }
            }
            wrong.into_iter().for_each(|text| self.problem(text));
            if let Some(zap) = top.config_u64("com.delphix:vdev_zap_top")
                && let Some(id) = Zap::hold(mos, ObjectId::new(zap))
                    .await?
                    .lookup_u64("com.delphix:ms_unflushed_phys_txgs")
                    .await?
            {
                let txgs = words(mos, ObjectId::new(id), count).await?;
                for (index, txg) in txgs.iter().enumerate() {
                    flushed.insert((vdev, index as u64), *txg);
                }
            }
        }
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        let Some(logs) = directory.lookup_u64("com.delphix:log_spacemap_zap").await? else {
            return Ok(allocated);
        };
        let mut by_txg = BTreeMap::new();
        for entry in Zap::hold(mos, ObjectId::new(logs)).await?.all().await? {
            let txg = u64::from_str_radix(&entry.name_str(), 16)?;
            let id = entry.value.as_u64().ok_or("a log that is no number")?;
            by_txg.insert(txg, ObjectId::new(id));
        }
        for (txg, id) in by_txg {
            self.report.log_space_maps += 1;
            let map = SpaceMapObject::open(mos, id, 0, u64::MAX, 9).await?;
            let mut wrong = Vec::new();
            map.for_each(map.length_bytes(), &mut |entry| {
                let vdev = entry.vdev.unwrap_or(VdevId::ZERO);
                let Some((shift, stripe_bytes)) = shifts.get(&vdev) else {
                    let top = pool.pipeline().tree().top(vdev);
                    // What was said of a vdev before it was removed is nobody's any more.
                    if !top.is_some_and(|top| top.kind().is_indirect()) {
                        wrong.push(format!("the log of txg {txg} names vdev {vdev}"));
                    }
                    return Ok(());
                };
                let end = entry.offset_bytes + entry.length_bytes;
                // What is left between the whole stripes of two metaslabs of a dRAID is nobody's.
                let metaslab = entry.offset_bytes >> shift;
                let span = metaslab_span(metaslab, *shift, *stripe_bytes);
                if entry.offset_bytes < span.start || end > span.end {
                    wrong.push(format!("the log of txg {txg}: {entry:?} crosses metaslabs"));
                }
                match flushed.get(&(vdev, metaslab)) {
                    None | Some(0) => {
                        wrong.push(format!(
                            "the log of txg {txg}: metaslab {metaslab} of vdev {vdev} has no flush \
                             txg"
                        ));
                    }
                    // Its own map has this.
                    Some(since) if *since > txg => return Ok(()),
                    Some(_) => {}
                }
                let set = allocated.entry(vdev).or_default();
                if !apply(set, entry.kind, entry.offset_bytes, entry.length_bytes) {
                    wrong.push(format!("the log of txg {txg}: {entry:?} makes no sense"));
                }
                Ok(())
            })
            .await?;
            wrong.into_iter().for_each(|text| self.problem(text));
        }
        Ok(allocated)
    }

    fn compare_space(&mut self, pool: &Pool, allocated: &BTreeMap<VdevId, RangeSet>) {
        let none = RangeSet::default();
        let mut problems = Vec::new();
        for (vdev, claimed) in &self.claimed {
            self.report.allocated_bytes += claimed.space();
            let mut lacking = claimed.clone();
            lacking.remove_all(allocated.get(vdev).unwrap_or(&none));
            for (start, length) in lacking.iter() {
                problems.push(format!(
                    "in use but free in the space map: vdev {vdev} {start:#x}+{length:#x}"
                ));
            }
        }
        let mut uncertain_used = 0;
        for (vdev, allocated) in allocated {
            let mut leaked = allocated.clone();
            leaked.remove_all(self.claimed.get(vdev).unwrap_or(&none));
            let before = leaked.space();
            leaked.remove_all(self.uncertain.get(vdev).unwrap_or(&none));
            uncertain_used += before - leaked.space();
            for (start, length) in leaked.iter() {
                problems.push(format!("leaked: vdev {vdev} {start:#x}+{length:#x}"));
            }
        }
        // A pool that changes may have allocated for the next transaction groups.
        for top in pool.pipeline().allocator().top_spaces() {
            let mapped = allocated.get(&top.vdev).unwrap_or(&none).space();
            if pool.is_read_only() && top.allocated_bytes != mapped {
                problems.push(format!(
                    "vdev {} says {} bytes allocated, its space maps {mapped} ({uncertain_used} of \
                     logs and frees in all)",
                    top.vdev, top.allocated_bytes
                ));
            }
        }
        problems.into_iter().for_each(|text| self.problem(text));
    }
}

/// Allocates or frees; whether all of it was free or allocated before.
fn apply(set: &mut RangeSet, kind: SpaceMapKind, start: u64, length: u64) -> bool {
    match kind {
        SpaceMapKind::Allocate => set.add(start, length) == length,
        SpaceMapKind::Free => set.remove(start, length) == length,
    }
}

fn take_apart(
    block: &BlockPointer,
    bytes: &[u8],
    content: &mut Content,
) -> Result<(), format::FormatError> {
    let endian = block.endian();
    if block.level() > 0 {
        content.pointers = BlockPointer::decode_all(bytes, endian).collect();
        return Ok(());
    }
    if block.object_type() == ObjectType::OBJSET {
        let objset = ObjsetPhys::decode(bytes, endian)?;
        content.log = Some(objset.zil_header);
        content.dnodes.push(objset.meta_dnode);
        let accounts = objset.user_group_used.map(|pair| pair.to_vec());
        content.dnodes.extend(accounts.into_iter().flatten());
        content
            .dnodes
            .extend(objset.project_used.map(|dnode| *dnode));
        return Ok(());
    }
    let mut at = 0;
    while at < bytes.len() {
        let dnode = DnodePhys::decode(&bytes[at..], endian)?;
        at += dnode.encoded_bytes();
        if !dnode.is_free() {
            content.dnodes.push(dnode);
        }
    }
    Ok(())
}

async fn words(mos: &Arc<ObjectSet>, id: ObjectId, count: u64) -> Result<Vec<u64>, Failure> {
    let object = mos.hold(id).await?;
    let bytes = object.read_bytes(0, (count * 8) as usize).await?;
    let word = |chunk: &[u8]| Endian::Little.u64(chunk.try_into().expect("eight bytes"));
    Ok(bytes.chunks_exact(8).map(word).collect())
}

async fn list_blocks(mos: &Arc<ObjectSet>, id: ObjectId) -> Result<Vec<BlockPointer>, Failure> {
    let list = Bpobj::open(mos, id).await?;
    let mut out = Vec::new();
    list.for_each(&mut |block, _| {
        out.push(*block);
        Ok(())
    })
    .await?;
    Ok(out)
}

/// A deadlist's blocks, the space of all, and how many are embedded.
async fn read_deadlist(
    pipeline: &Arc<Pipeline>,
    mos: &Arc<ObjectSet>,
    id: ObjectId,
) -> Result<(Counted, BpobjSpace, u64), Failure> {
    let held = mos.hold(id).await?;
    let mut blocks = Vec::new();
    if held.info().object_type == ObjectType::BPOBJ {
        blocks = list_blocks(mos, id).await?;
    } else {
        for entry in Zap::hold(mos, id).await?.all().await? {
            let list = entry
                .value
                .as_u64()
                .ok_or("a deadlist's entry is no list")?;
            blocks.extend(list_blocks(mos, ObjectId::new(list)).await?);
        }
    }
    let mut space = BpobjSpace::default();
    let mut out = Counted::new();
    let mut embedded = 0;
    for block in blocks {
        space = space.plus(BpobjSpace::of_block(pipeline, &block));
        if block.is_embedded() {
            embedded += 1;
        } else {
            let (_, count) = out.entry(key(&block)).or_insert((block, 0));
            *count += 1;
            // A file may have got clones of one block twice in one txg: they are the same to the
            // last bit.
            let may_repeat = block.is_dedup() || block.birth() != block.physical_birth();
            if *count > 1 && !may_repeat {
                return Err(format!("twice on deadlist {id}: {block:?}").into());
            }
        }
    }
    Ok((out, space, embedded))
}
