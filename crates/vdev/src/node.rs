//! A vdev of the tree: what all kinds have, and where I/O branches by kind.
//!
//! Devices and dRAID spares are read and written here, mirrors in module `mirror`, RAID-Z and dRAID
//! in `raidz`. Spare and replacing vdevs below a top-level vdev are mirrors to us.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use device::{BoxFuture, World};
use format::{Guid, NvList, VdevId};
use parking_lot::Mutex;

use crate::expansion::Expansion;
use crate::geometry::Geometry;
use crate::io::{IoContext, LeafError, ReadFailure, Unverified, Verify, WriteFailure};
use crate::kind::{DraidVdev, VdevKind};
use crate::leaf::Leaf;
use crate::meter::IoStats;
use crate::raidz::Striped;
use crate::repairs::Repairs;
use crate::state::{CounterValues, Counters, VdevAux, VdevState};
use crate::top_spec::AllocClass;

/// What only top-level vdevs have.
#[derive(Debug)]
pub struct Top {
    /// Index in the pool.
    pub id: VdevId,
    /// What it is used for.
    pub class: AllocClass,
    ashift: AtomicU32,
    asize: AtomicU64,
    metaslab_array: AtomicU64,
    metaslab_shift: AtomicU32,
}

impl Top {
    pub(super) fn new(id: VdevId, class: AllocClass, config: &NvList) -> Self {
        let number = |name| config.u64(name).unwrap_or(0);
        Top {
            id,
            class,
            ashift: AtomicU32::new(number("ashift").min(63) as u32),
            asize: AtomicU64::new(number("asize")),
            metaslab_array: AtomicU64::new(number("metaslab_array")),
            metaslab_shift: AtomicU32::new(number("metaslab_shift").min(63) as u32),
        }
    }

    /// The MOS object with the metaslabs' space maps; zero is none.
    pub fn metaslab_array(&self) -> u64 {
        self.metaslab_array.load(Ordering::Relaxed)
    }

    /// Sets ashift and asize of a new top-level vdev.
    pub fn set_size(&self, ashift: u32, asize_bytes: u64) {
        self.ashift.store(ashift, Ordering::Relaxed);
        self.asize.store(asize_bytes, Ordering::Relaxed);
    }

    /// Sets the metaslab size and array of a new top-level vdev.
    pub fn set_metaslabs(&self, array_object: u64, shift: u32) {
        self.metaslab_array.store(array_object, Ordering::Relaxed);
        self.metaslab_shift.store(shift, Ordering::Relaxed);
    }

    /// Bytes of whole metaslabs: every block lies below. A removed vdev has those that it had
    /// (`vdev_get_min_asize`, module/zfs/vdev.c).
    pub fn aligned_asize_bytes(&self) -> u64 {
        let asize_bytes = || self.asize.load(Ordering::Relaxed);
        match self.metaslab_shift.load(Ordering::Relaxed) {
            0 => asize_bytes(),
            shift => asize_bytes() >> shift << shift,
        }
    }

    pub(super) fn metaslab_count(&self) -> u64 {
        match self.metaslab_shift.load(Ordering::Relaxed) {
            0 => 0,
            shift => self.asize.load(Ordering::Relaxed) >> shift,
        }
    }
}

/// A vdev: a device, or children.
pub struct Vdev {
    pub(super) guid: Guid,
    pub(super) id: u64,
    pub(super) kind: VdevKind,
    pub(super) top: Option<Arc<Top>>,
    /// Its pairs in the configuration, without children.
    pub(super) config: Arc<Mutex<NvList>>,
    pub(super) world: World,
    /// Those of the tree.
    pub(super) repairs: Arc<Repairs>,
    /// Errors that were not put right below this vdev; a leaf shares them with its [`Leaf`].
    pub(super) counters: Arc<Counters>,
}

impl Vdev {
    /// Its guid.
    pub fn guid(&self) -> Guid {
        self.guid
    }

    /// Its index in its parent.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its kind.
    pub fn kind(&self) -> &VdevKind {
        &self.kind
    }

    /// Its children.
    pub fn children(&self) -> &[Arc<Vdev>] {
        self.kind.children()
    }

    /// The device, if this is a leaf.
    pub fn leaf(&self) -> Option<&Arc<Leaf>> {
        match &self.kind {
            VdevKind::Leaf(vdev) => Some(&vdev.leaf),
            _ => None,
        }
    }

    /// What only a top-level vdev has.
    pub fn top(&self) -> Option<&Top> {
        self.top.as_deref()
    }

    /// Closes all devices below, of a vdev that is no part of the tree (any more).
    pub fn close(self: &Arc<Self>) {
        for vdev in self.leaves() {
            if let Some(leaf) = vdev.leaf() {
                leaf.set_state(VdevState::Closed, VdevAux::None);
                leaf.set_device(None);
            }
        }
    }

    /// Index in the pool, of a top-level vdev (zero of others).
    pub fn vdev_id(&self) -> VdevId {
        self.top.as_ref().map_or(VdevId::ZERO, |top| top.id)
    }

    /// Path in the configuration, of a leaf.
    pub fn path(&self) -> Option<String> {
        self.config.lock().string("path").map(str::to_owned)
    }

    /// Whether it is a top-level vdev for intent logs.
    pub fn is_log(&self) -> bool {
        self.top().is_some_and(|top| top.class == AllocClass::Log)
    }

    /// One of its pairs in the configuration.
    pub fn config_u64(&self, name: &str) -> Option<u64> {
        self.config.lock().u64(name)
    }

    /// Whether its configuration has a pair of this name.
    pub fn has_config(&self, name: &str) -> bool {
        self.config.lock().contains(name)
    }

    /// Sets a pair of its configuration (zap objects, DTL, ...).
    pub fn set_config(&self, name: &str, value: impl Into<format::NvValue>) {
        self.config.lock().set(name, value);
    }

    /// Removes a pair of its configuration.
    pub fn remove_config(&self, name: &str) {
        self.config.lock().remove(name);
    }

    /// What a person calls it: its path, or type and number ("raidz1-0").
    pub fn display_name(&self) -> String {
        match &self.kind {
            VdevKind::Raidz(raidz) => format!("raidz{}-{}", raidz.parity, self.id),
            VdevKind::Draid(draid) => {
                let layout = &draid.layout;
                format!(
                    "draid{}:{}d:{}c:{}s-{}",
                    layout.parity, layout.data, layout.children, layout.spares, self.id
                )
            }
            VdevKind::Leaf(_) => self.path().unwrap_or_else(|| self.guid.to_string()),
            kind => {
                let name = || format!("{}-{}", kind.name(), self.id);
                match kind {
                    VdevKind::DraidSpare(_) => self.path().unwrap_or_else(name),
                    _ => name(),
                }
            }
        }
    }

    /// Counters: operations and bytes of all leaves below, errors of its own.
    pub fn counters(&self) -> CounterValues {
        let mut out = self.counters.values();
        for child in self.children() {
            let below = child.counters();
            out.read_ops += below.read_ops;
            out.read_bytes += below.read_bytes;
            out.write_ops += below.write_ops;
            out.write_bytes += below.write_bytes;
            out.trim_ops += below.trim_ops;
            out.trim_bytes += below.trim_bytes;
        }
        out
    }

    /// How long the I/O of all leaves below takes, how large it is, and how much waits.
    pub fn io_stats(&self) -> IoStats {
        let mut out = self
            .leaf()
            .map_or_else(IoStats::default, |leaf| leaf.io_stats());
        for child in self.children() {
            out.add(&child.io_stats());
        }
        out
    }

    /// Zeroes the error counters here and below.
    pub fn clear_errors(&self) {
        self.counters.clear_errors();
        if let Some(leaf) = self.leaf() {
            leaf.clear_errors();
        }
        self.children()
            .iter()
            .for_each(|child| child.clear_errors());
    }

    /// State and reason; of interior vdevs derived from their children (`vdev_propagate_state`).
    pub fn state(&self) -> (VdevState, VdevAux) {
        match &self.kind {
            VdevKind::Leaf(vdev) => return vdev.leaf.state(),
            VdevKind::Hole | VdevKind::Indirect(_) => {
                return (VdevState::Healthy, VdevAux::None);
            }
            VdevKind::DraidSpare(spare) if spare.top.get().is_some() => {
                return (VdevState::Healthy, VdevAux::None);
            }
            VdevKind::DraidSpare(_) => return (VdevState::CantOpen, VdevAux::BadLabel),
            VdevKind::Missing => return (VdevState::CantOpen, VdevAux::OpenFailed),
            VdevKind::Other(_) => return (VdevState::CantOpen, VdevAux::BadLabel),
            VdevKind::Mirror(_) | VdevKind::Raidz(_) | VdevKind::Draid(_) => {}
        }
        let bad = |child: &&Arc<Vdev>| !child.state().0.is_usable();
        let missing = self.children().iter().filter(bad).count();
        let allowed = self.redundancy();
        if missing > allowed {
            (VdevState::CantOpen, VdevAux::NoReplicas)
        } else if self
            .children()
            .iter()
            .any(|child| child.state().0 != VdevState::Healthy)
        {
            (VdevState::Degraded, VdevAux::None)
        } else {
            (VdevState::Healthy, VdevAux::None)
        }
    }

    /// How many children may fail.
    pub fn redundancy(&self) -> usize {
        match &self.kind {
            VdevKind::Mirror(mirror) => mirror.children.len().saturating_sub(1),
            kind => kind.parity() as usize,
        }
    }

    /// All leaves, in order.
    pub fn leaves(self: &Arc<Self>) -> Vec<Arc<Vdev>> {
        if self.kind.is_leaf() {
            return vec![self.clone()];
        }
        self.children().iter().flat_map(Vdev::leaves).collect()
    }

    /// All dRAID spares that stand in for a device here.
    pub fn draid_spares(self: &Arc<Self>) -> Vec<Arc<Vdev>> {
        if matches!(self.kind, VdevKind::DraidSpare(_)) {
            return vec![self.clone()];
        }
        self.children()
            .iter()
            .flat_map(Vdev::draid_spares)
            .collect()
    }

    /// Bytes of memory that the mapping of a removed vdev takes; `None` for others.
    pub fn indirect_bytes(&self) -> Option<u64> {
        match &self.kind {
            VdevKind::Indirect(indirect) => {
                let map = indirect.map.read();
                map.as_ref().map(|map| map.memory_bytes())
            }
            _ => None,
        }
    }

    /// The vdev with this guid, here or below.
    pub fn find(self: &Arc<Self>, guid: Guid) -> Option<Arc<Vdev>> {
        if self.guid == guid {
            return Some(self.clone());
        }
        self.children().iter().find_map(|child| child.find(guid))
    }

    /// Sum of the guids here and below, wrapping (`vdev_guid_sum`).
    pub fn guid_sum(&self) -> u64 {
        let own = if self.kind.is_hole() {
            0
        } else {
            self.guid.get()
        };
        self.children()
            .iter()
            .fold(own, |sum, child| sum.wrapping_add(child.guid_sum()))
    }

    /// log2 of the sector size (of a top-level vdev).
    pub fn ashift(&self) -> u32 {
        self.top
            .as_ref()
            .map_or(9, |top| top.ashift.load(Ordering::Relaxed))
    }

    /// Allocatable bytes (of a top-level vdev).
    pub fn asize_bytes(&self) -> u64 {
        self.top
            .as_ref()
            .map_or(0, |top| top.asize.load(Ordering::Relaxed))
    }

    /// log2 of the metaslab size (of a top-level vdev).
    pub fn metaslab_shift(&self) -> u32 {
        self.top
            .as_ref()
            .map_or(0, |top| top.metaslab_shift.load(Ordering::Relaxed))
    }

    /// Number of metaslabs (of a top-level vdev).
    pub fn metaslab_count(&self) -> u64 {
        self.top.as_deref().map_or(0, Top::metaslab_count)
    }

    /// Whether it is a RAID-Z vdev whose sectors are being moved to make it wider.
    pub fn is_expanding(&self) -> bool {
        self.kind.expansion().is_some_and(Expansion::is_running)
    }

    /// How blocks written today lie on it; `None` when it cannot hold any.
    pub fn geometry(&self) -> Option<Geometry> {
        match &self.kind {
            VdevKind::Leaf(_) | VdevKind::Mirror(_) => Some(Geometry::plain(self.ashift())),
            VdevKind::Raidz(raidz) => Geometry::raidz(self.ashift(), raidz.width(), raidz.parity),
            VdevKind::Draid(DraidVdev { layout, .. }) => {
                Some(Geometry::draid(self.ashift(), layout.data, layout.parity))
            }
            _ => None,
        }
    }

    /// Whether writes at this offset reach some device.
    pub(crate) fn is_writeable(&self, offset: u64) -> bool {
        match &self.kind {
            VdevKind::Leaf(vdev) => vdev.leaf.is_writeable(),
            VdevKind::DraidSpare(spare) => spare
                .child(offset)
                .is_some_and(|child| child.is_writeable(offset)),
            kind => kind
                .children()
                .iter()
                .any(|child| child.is_writeable(offset)),
        }
    }

    /// Whether what is on it can be read.
    pub fn is_readable(&self) -> bool {
        match self.leaf() {
            Some(leaf) => leaf.is_readable(),
            None => self.state().0.is_usable(),
        }
    }

    pub(crate) fn reads_in_flight(&self) -> usize {
        match self.leaf() {
            Some(leaf) => leaf.reads_in_flight(),
            None => self
                .children()
                .iter()
                .map(|child| child.reads_in_flight())
                .min()
                .unwrap_or(0),
        }
    }

    pub(crate) fn note_checksum_error(&self, offset: u64, length: usize, context: &IoContext) {
        match self.leaf() {
            Some(leaf) => leaf.note_checksum_error(offset, length, context),
            None => match self.children().iter().find(|child| child.is_readable()) {
                Some(child) => child.note_checksum_error(offset, length, context),
                None => Counters::add(&self.counters.checksum_errors, 1),
            },
        }
    }

    /// Reads a part of a block: from a device, or from any child that has it.
    pub(crate) fn read_part<'a>(
        &'a self,
        offset: u64,
        length: usize,
        context: &'a IoContext,
    ) -> BoxFuture<'a, Result<Bytes, ReadFailure>> {
        Box::pin(async move { self.read_plain(offset, length, context, &Unverified).await })
    }

    /// Reads what can be told to be right here; boxed, as a vdev may be below one of its kind.
    pub(crate) fn read_verified<'a>(
        &'a self,
        offset: u64,
        length: usize,
        context: &'a IoContext,
        verify: &'a dyn Verify,
    ) -> BoxFuture<'a, Result<Bytes, ReadFailure>> {
        Box::pin(self.read_plain(offset, length, context, verify))
    }

    /// Reads and verifies whole sectors, of all kinds that hold a block in one piece.
    pub(crate) async fn read_plain(
        &self,
        offset: u64,
        length: usize,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        match &self.kind {
            VdevKind::Leaf(vdev) => {
                let data = vdev
                    .leaf
                    .read(offset, length, context)
                    .await
                    .map_err(|error| ReadFailure {
                        checksum: false,
                        device: matches!(error, LeafError::Device(_)),
                        slow: matches!(error, LeafError::Slow),
                        cause: error.to_string(),
                    })?;
                if verify.verify(&data).await {
                    return Ok(data);
                }
                vdev.leaf.note_checksum_error(offset, length, context);
                Err(wrong_checksum(self))
            }
            VdevKind::Mirror(mirror) => mirror.read(self, offset, length, context, verify).await,
            VdevKind::DraidSpare(spare) => {
                let child = spare.child(offset).ok_or_else(|| not_readable(self))?;
                // Another spare may stand in for that one in turn, but no two for each other:
                // those of one vdev differ (see `link_spares`), so each stands on a column of its
                // own.
                let data = child.read_part(offset, length, context).await?;
                if verify.verify(&data).await {
                    return Ok(data);
                }
                child.note_checksum_error(offset, length, context);
                Err(wrong_checksum(self))
            }
            _ => Err(not_readable(self)),
        }
    }

    /// Writes what is right where something wrong was read. Failing that is no error of the
    /// reader's.
    pub(crate) async fn repair(self: &Arc<Self>, offset: u64, good: Bytes, context: &IoContext) {
        // A scan reads everything that there is, so that it is not for this read alone.
        let is_wanted = !context.speculative || context.scan.is_scan();
        if !is_wanted || !self.is_writeable(offset) {
            return;
        }
        let since = context.since.filter(|_| !context.scan.is_scan());
        let Some(turn) = self.repairs.begin(since) else {
            tracing::debug!("a repair comes too late");
            return;
        };
        let (vdev, context) = (self.clone(), context.for_repair());
        let written = async move { vdev.write_part(offset, good, &context).await };
        if let Some(Err(failure)) = turn.run(&self.world, written).await {
            tracing::debug!(cause = failure.cause, "a repair failed");
        }
    }

    /// Writes a part of a block: to a device, or to all children.
    pub(crate) fn write_part<'a>(
        &'a self,
        offset: u64,
        data: Bytes,
        context: &'a IoContext,
    ) -> BoxFuture<'a, Result<(), WriteFailure>> {
        Box::pin(async move { self.write_plain(offset, data, context).await })
    }

    /// Writes whole sectors, to all kinds that hold a block in one piece.
    pub(crate) async fn write_plain(
        &self,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        match &self.kind {
            VdevKind::Leaf(vdev) => {
                let written = vdev.leaf.write(offset, data, context).await;
                written.map_err(|error| {
                    // What was not flushed is kept, with its txg.
                    let is_kept = matches!(error, LeafError::Flush(_) | LeafError::Unflushed(_));
                    if !is_kept && !matches!(error, LeafError::Halted) {
                        vdev.leaf.dirty_times().note_lost_write(context.birth);
                    }
                    WriteFailure {
                        halted: matches!(error, LeafError::Halted),
                        cause: format!("{}: {error}", self.display_name()),
                    }
                })
            }
            VdevKind::Mirror(mirror) => mirror.write(self, offset, data, context).await,
            VdevKind::DraidSpare(spare) => {
                let child = spare.child(offset);
                let written = match &child {
                    Some(child) => child.write_part(offset, data, context).await,
                    None => Err(WriteFailure::new(format!(
                        "{}: it is not there",
                        self.display_name()
                    ))),
                };
                // A device that is away lacks this itself, and where it is asked the spare is not
                // (`vdev_draid_spare_child_done`, module/zfs/vdev_draid.c). If the spare lacked it
                // as well, a second failure would count as two.
                let is_away = child.is_some_and(|child| !child.is_writeable(offset));
                let lacks = written.as_ref().is_err_and(|failure| !failure.halted);
                if lacks && !is_away && !context.birth.is_zero() {
                    spare.missing.lock().add(context.birth.get(), 1);
                }
                written
            }
            _ => Err(WriteFailure::new(format!(
                "{}: not writeable",
                self.display_name()
            ))),
        }
    }

    /// Counts a write that too few children took.
    pub(super) fn note_write_failure(&self, failure: &WriteFailure) {
        Counters::add(&self.counters.write_errors, u64::from(!failure.halted));
    }

    /// A place whose content does not matter, next to others that are written.
    pub(crate) fn write_optional(&self, offset: u64, length: usize) {
        match self.leaf() {
            Some(leaf) => leaf.write_optional(offset, length),
            None => self
                .children()
                .iter()
                .for_each(|child| child.write_optional(offset, length)),
        }
    }

    /// Reads a block of this top-level vdev: `psize` bytes at `offset`.
    pub fn read_block<'a>(
        &'a self,
        offset: u64,
        psize: usize,
        context: &'a IoContext,
        verify: &'a dyn Verify,
    ) -> BoxFuture<'a, Result<Bytes, ReadFailure>> {
        Box::pin(async move {
            let sector = 1usize << self.ashift();
            let length = psize.next_multiple_of(sector);
            if length == psize {
                return read_sectors(self, offset, length, context, verify).await;
            }
            // Smaller than this vdev's sectors: what follows in the last one is not the block's.
            let prefix = Prefix { verify, psize };
            let data = read_sectors(self, offset, length, context, &prefix).await?;
            Ok(data.slice(..psize))
        })
    }

    /// Writes a block of this top-level vdev.
    pub fn write_block<'a>(
        &'a self,
        offset: u64,
        data: Bytes,
        context: &'a IoContext,
    ) -> BoxFuture<'a, Result<(), WriteFailure>> {
        Box::pin(async move {
            let sector = 1usize << self.ashift();
            let length = data.len().next_multiple_of(sector);
            let data = if length == data.len() {
                data
            } else {
                let mut padded = BytesMut::with_capacity(length);
                padded.extend_from_slice(&data);
                padded.resize(length, 0);
                padded.freeze()
            };
            match Striped::of(self) {
                Some(striped) => striped.write(offset, data, context).await,
                None => self.write_plain(offset, data, context).await,
            }
        })
    }
}

fn not_readable(vdev: &Vdev) -> ReadFailure {
    ReadFailure {
        checksum: false,
        device: false,
        slow: false,
        cause: format!("{}: not readable", vdev.display_name()),
    }
}

fn wrong_checksum(vdev: &Vdev) -> ReadFailure {
    ReadFailure {
        checksum: true,
        device: false,
        slow: false,
        cause: format!("{}: wrong checksum", vdev.display_name()),
    }
}

/// Reads whole sectors; without devices that lag, where that can be done.
async fn read_sectors(
    vdev: &Vdev,
    offset: u64,
    length: usize,
    context: &IoContext,
    verify: &dyn Verify,
) -> Result<Bytes, ReadFailure> {
    let is_hasty = vdev.redundancy() > 0 && !context.scan.is_scan();
    let hasty = IoContext {
        hasty: is_hasty,
        ..*context
    };
    let read = match Striped::of(vdev) {
        Some(striped) => striped.read(offset, length, &hasty, verify).await,
        None => vdev.read_plain(offset, length, &hasty, verify).await,
    };
    match read {
        // Without the devices that lag it cannot be done.
        Err(failure) if failure.slow => {
            Box::pin(async {
                match Striped::of(vdev) {
                    Some(striped) => striped.read(offset, length, context, verify).await,
                    None => vdev.read_plain(offset, length, context, verify).await,
                }
            })
            .await
        }
        read => read,
    }
}

/// Verifies the first bytes of what was read.
struct Prefix<'a> {
    verify: &'a dyn Verify,
    psize: usize,
}

impl Verify for Prefix<'_> {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        let part = data.slice(..self.psize);
        Box::pin(async move { self.verify.verify(&part).await })
    }

    fn covered_bytes(&self) -> Option<usize> {
        Some(self.psize)
    }

    fn can_tell(&self) -> bool {
        self.verify.can_tell()
    }
}

impl std::fmt::Debug for Vdev {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Vdev")
            .field("name", &self.display_name())
            .field("guid", &self.guid)
            .field("state", &self.state())
            .field("children", &self.children())
            .finish_non_exhaustive()
    }
}
