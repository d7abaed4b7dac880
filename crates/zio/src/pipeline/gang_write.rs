//! Planning gang blocks: one logical block in pieces, when no run of free space is long enough
//! (`zio_write_gang_block`, module/zfs/zio.c).
//!
//! A gang block's pointer leads to a header of 512 bytes with three block pointers, whose blocks
//! follow each other to make up the stored block; each may be a gang block again. While the feature
//! `dynamic_gang_header` is active, a header is as long as the least that is allocated on its
//! vdevs, with as many pointers as that holds; headers from before stay as they are. The header has
//! one copy more than the block, for everything below is lost without it. The pointer's asize
//! covers the whole tree, copy by copy; its checksum is that of the whole stored block. The header
//! carries a checksum of its own, which also names its DVA.
//!
//! The tree's space is allocated first, all or nothing, then everything is written. A crash leaves
//! pieces that nothing refers to.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use codec::checksum::{compute, seal, seal_beside_mac};
use device::BoxFuture;
use format::{
    BlockPointer, Checksum, Compression, DVAS_PER_POINTER, Dva, Endian, GANG_HEADER_BYTES,
    ObjectType, RegularPointer, Txg, encode_gang_header, gang_pointers,
};
use vdev::VdevTree;

use super::check::{PoolSalt, gang_words, has_half_sum};
use super::gang_read::{DEPTH_MAX, GangReader, too_deep};
use super::{ReadContext, WritePolicy};
use crate::alloc::{Allocator, Request};
use crate::error::{ZioError, bug};

/// Bytes for one DVA.
pub(super) struct Piece {
    pub(super) dva: Dva,
    pub(super) data: Bytes,
}

pub(super) type Places = [Option<Dva>; DVAS_PER_POINTER];

/// Where the pieces of a gang block go.
enum Plan {
    Data {
        places: Places,
        range: Range<usize>,
    },
    Header {
        places: Places,
        range: Range<usize>,
        /// Its length.
        bytes: usize,
        children: Vec<Plan>,
    },
}

impl Plan {
    fn places(&self) -> &Places {
        match self {
            Plan::Data { places, .. } | Plan::Header { places, .. } => places,
        }
    }

    fn range(&self) -> &Range<usize> {
        match self {
            Plan::Data { range, .. } | Plan::Header { range, .. } => range,
        }
    }

    fn all(&self, out: &mut Vec<Dva>) {
        out.extend(self.places().iter().flatten());
        if let Plan::Header { children, .. } = self {
            children.iter().for_each(|child| child.all(out));
        }
    }
}

/// Whether gang headers are written that are longer than 512 bytes: the pool's feature
/// `dynamic_gang_header`, which whoever opens the pool tells, and the sync loop makes active.
#[derive(Debug, Default)]
pub struct WideGangs {
    are_written: AtomicBool,
    are_wanted: AtomicBool,
}

impl WideGangs {
    /// They are, from now on: the feature is active as of the txg that is syncing.
    pub fn write(&self) {
        self.are_written.store(true, Ordering::Release);
    }

    /// Whether a block had to be cut into more pieces than a short header holds, while a longer one
    /// had had room in the same place (`zio_write_gang_block`).
    pub fn are_wanted(&self) -> bool {
        self.are_wanted.load(Ordering::Acquire)
    }

    fn are_written(&self) -> bool {
        self.are_written.load(Ordering::Acquire)
    }

    fn want(&self) {
        self.are_wanted.store(true, Ordering::Release);
    }
}

/// Allocates and describes gang blocks.
pub(super) struct GangPlanner {
    pub(super) tree: Arc<VdevTree>,
    pub(super) allocator: Arc<Allocator>,
    pub(super) salt: Arc<PoolSalt>,
    pub(super) gangs: Arc<GangReader>,
    pub(super) wide: Arc<WideGangs>,
}

impl GangPlanner {
    /// Allocates and describes a gang block for `data`: the pointer's places, and everything
    /// to be written.
    pub(super) async fn plan(
        &self,
        txg: Txg,
        data: &Bytes,
        policy: &WritePolicy,
    ) -> Result<(Places, Vec<Piece>), ZioError> {
        let plan = self.allocate(txg, 0..data.len(), policy, 0).await?;
        let mut pieces = Vec::new();
        match self.describe(txg, &plan, data, policy, &mut pieces) {
            Ok(bp) => {
                let places = [bp.dva(0), bp.dva(1), bp.dva(2)];
                Ok((places, pieces))
            }
            Err(error) => {
                self.unallocate(txg, &plan);
                Err(error)
            }
        }
    }

    /// Describes a new version of the gang block `old`, of the same length and born in the same
    /// txg, in `old`'s places (`zio_rewrite_gang`). Without it a MOS whose blocks are in pieces
    /// would move, and so change its own space maps, in every pass of a sync: it would never
    /// converge.
    pub(super) async fn plan_rewrite(
        &self,
        txg: Txg,
        old: &BlockPointer,
        data: &Bytes,
        policy: &WritePolicy,
    ) -> Result<(Places, Vec<Piece>), ZioError> {
        let context = ReadContext {
            bookmark: policy.bookmark,
            priority: policy.priority,
            ..ReadContext::default()
        };
        let plan = loop {
            match self.plan_of(old, 0..data.len(), &context, 0).await {
                Err(error) => {
                    self.gangs
                        .copies
                        .wait_for_devices(old, &context, error)
                        .await?
                }
                Ok(plan) => break plan,
            }
        };
        let mut pieces = Vec::new();
        let bp = self.describe(txg, &plan, data, policy, &mut pieces)?;
        Ok(([bp.dva(0), bp.dva(1), bp.dva(2)], pieces))
    }

    /// Where the pieces of a gang block are, which holds `range` of the whole.
    fn plan_of<'a>(
        &'a self,
        bp: &'a BlockPointer,
        range: Range<usize>,
        context: &'a ReadContext,
        depth: usize,
    ) -> BoxFuture<'a, Result<Plan, ZioError>> {
        Box::pin(async move {
            let mut places = [bp.dva(0), bp.dva(1), bp.dva(2)];
            if !bp.is_gang() {
                return Ok(Plan::Data { places, range });
            }
            too_deep(bp, depth)?;
            // The pointer's asize covers the tree; the header's own is that of its sector.
            for place in &mut places {
                if let Some(dva) = *place {
                    let asize = self
                        .allocator
                        .asize(dva.vdev(), GANG_HEADER_BYTES as u64)
                        .unwrap_or(GANG_HEADER_BYTES as u64);
                    *place = Some(Dva::new(dva.vdev(), dva.offset_bytes(), asize, true)?);
                }
            }
            let mut children = Vec::new();
            let mut at = range.start;
            let header = self.gangs.header(bp, context).await?;
            for member in header.members {
                let end = at + member.psize_bytes() as usize;
                children.push(self.plan_of(&member, at..end, context, depth + 1).await?);
                at = end;
            }
            Ok(Plan::Header {
                places,
                range,
                bytes: header.bytes,
                children,
            })
        })
    }

    fn unallocate(&self, txg: Txg, plan: &Plan) {
        let mut places = Vec::new();
        plan.all(&mut places);
        for dva in &places {
            self.allocator.unallocate(txg, dva);
        }
    }

    /// Allocates a header and what is below it.
    fn allocate<'a>(
        &'a self,
        txg: Txg,
        range: Range<usize>,
        policy: &'a WritePolicy,
        depth: usize,
    ) -> BoxFuture<'a, Result<Plan, ZioError>> {
        Box::pin(async move {
            let length = range.len();
            let units = self.tree.topology().alloc_units();
            let no_space = ZioError::NoSpace {
                size_bytes: length as u64,
                txg,
            };
            if depth >= DEPTH_MAX || length as u64 <= units.min_bytes {
                return Err(no_space);
            }
            let header = Request {
                txg,
                psize_bytes: GANG_HEADER_BYTES as u64,
                copies: usize::from(policy.copies.clamp(1, 3) + 1).min(header_copies_max(policy)),
                class: policy.class,
                fallback: true,
                gang: true,
            };
            let places = match self.allocator.allocate(&header).await {
                Ok(places) => places,
                // With hardly any space left one header is better than none.
                Err(_) => {
                    let single = Request {
                        copies: usize::from(policy.copies.clamp(1, 3)),
                        ..header
                    };
                    self.allocator.allocate(&single).await?
                }
            };
            let room = self.gangs.header_room(places.iter().flatten().copied());
            let bytes = match self.wide.are_written() {
                true => room,
                false => GANG_HEADER_BYTES,
            };
            let mut plan = Plan::Header {
                places,
                range: range.clone(),
                bytes,
                children: Vec::new(),
            };
            let count = gang_pointers(bytes);
            let mut at = range.start;
            for index in 0..count {
                if at == range.end {
                    break;
                }
                // As much as is left for each pointer; more where there is a longer run, so that
                // a long header does not cut a block finer than it must be.
                let least = units.round_up((range.end - at).div_ceil(count - index));
                let mut share = match count > gang_pointers(GANG_HEADER_BYTES) {
                    true => units.round_up(length.div_ceil(2)).max(least),
                    false => least,
                };
                let child = loop {
                    let part = at..(at + share).min(range.end);
                    match self.allocate_data(txg, part.clone(), policy).await {
                        Err(ZioError::NoSpace { .. }) if share > least => {
                            share = units.round_up(share / 2).max(least);
                        }
                        Err(ZioError::NoSpace { .. }) => {
                            if room > bytes {
                                self.wide.want();
                            }
                            break self.allocate(txg, part, policy, depth + 1).await;
                        }
                        done => break done,
                    }
                };
                let child = match child {
                    Ok(child) => child,
                    Err(error) => {
                        self.unallocate(txg, &plan);
                        return Err(error);
                    }
                };
                at = child.range().end;
                if let Plan::Header { children, .. } = &mut plan {
                    children.push(child);
                }
            }
            Ok(plan)
        })
    }

    /// Allocates one run for a member.
    async fn allocate_data(
        &self,
        txg: Txg,
        range: Range<usize>,
        policy: &WritePolicy,
    ) -> Result<Plan, ZioError> {
        let request = Request {
            txg,
            psize_bytes: range.len() as u64,
            copies: usize::from(policy.copies.clamp(1, 3)),
            class: policy.class,
            fallback: true,
            gang: false,
        };
        let places = self.allocator.allocate(&request).await?;
        Ok(Plan::Data { places, range })
    }

    /// The pointer of a planned piece; adds what must be written for it.
    fn describe(
        &self,
        txg: Txg,
        plan: &Plan,
        data: &Bytes,
        policy: &WritePolicy,
        pieces: &mut Vec<Piece>,
    ) -> Result<BlockPointer, ZioError> {
        let (mut places, range) = (*plan.places(), plan.range().clone());
        let own = places;
        let part = data.slice(range.clone());
        let mut header = None;
        if let Plan::Header {
            children, bytes, ..
        } = plan
        {
            let mut pointers = Vec::new();
            for child in children {
                let pointer = self.describe(txg, child, data, policy, pieces)?;
                // The header's asize covers its members (zio_write_gang_member_ready).
                for (index, place) in places.iter_mut().enumerate() {
                    if let (Some(dva), Some(below)) = (*place, pointer.dva(index)) {
                        let asize = dva.asize_bytes() + below.asize_bytes();
                        *place = Some(Dva::new(dva.vdev(), dva.offset_bytes(), asize, true)?);
                    }
                }
                pointers.push(pointer);
            }
            header = Some(encode_gang_header(&pointers, *bytes)?);
        }
        let sum = compute(
            policy.checksum,
            Endian::Little,
            &part,
            Some(&self.salt.get()),
        )
        .map_err(bug)?;
        let bp = BlockPointer::regular(&RegularPointer {
            dvas: places,
            lsize_bytes: part.len() as u64,
            psize_bytes: part.len() as u64,
            compression: Compression::Off,
            checksum_kind: policy.checksum,
            object_type: ObjectType::NONE,
            level: 0,
            dedup: false,
            uses_crypt: false,
            rewritten: false,
            endian: Endian::Little,
            fill: 0,
            logical_birth: txg,
            physical_birth: txg,
            checksum: sum,
            crypt: None,
        })?;
        let content = match header {
            None => part,
            Some(mut bytes) => {
                let is_top = range.len() == data.len();
                let seal = match is_top && has_half_sum(policy.encrypted, policy.object_type) {
                    true => seal_beside_mac,
                    false => seal,
                };
                let kind = Checksum::GangHeader;
                seal(kind, Endian::Little, &gang_words(&bp), &mut bytes).map_err(bug)?;
                Bytes::from(bytes)
            }
        };
        pieces.extend(own.into_iter().flatten().map(|dva| Piece {
            dva,
            data: content.clone(),
        }));
        Ok(bp)
    }
}

/// Most copies of a gang header: the third place of an encrypted block's pointer holds salt and IV.
fn header_copies_max(policy: &WritePolicy) -> usize {
    let encrypted = policy.encrypted && policy.level == 0 && policy.object_type.is_encrypted();
    DVAS_PER_POINTER - usize::from(encrypted)
}
