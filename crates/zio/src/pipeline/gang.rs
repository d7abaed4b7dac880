//! Gang blocks: one logical block in pieces, when no run of free space is long enough
//! (`zio_write_gang_block`, `zio_gang_tree_assemble`; module/zfs/zio.c).
//!
//! A gang block's pointer leads to a header of 512 bytes with three block pointers, whose blocks
//! follow each other to make up the stored block; each may be a gang block again. Header copies
//! are one more than the block's, for without it everything below is lost. The pointer's asize covers the whole tree,
//! copy by copy; its checksum is that of the whole stored block; the header carries its own, which also
//! names its place.
//!
//! The tree's space is allocated first, all or nothing, then everything is written. A crash leaves
//! pieces that nothing refers to.

use std::ops::Range;

use bytes::Bytes;
use codec::checksum::{compute, seal};
use device::BoxFuture;
use format::{
    BlockPointer, Checksum, Compression, DVAS_PER_POINTER, Dva, Endian, GANG_HEADER_BYTES,
    ObjectType, RegularPointer, Txg, decode_gang_header, encode_gang_header, gang_pointers,
};

use super::check::gang_words;
use super::read::{concat, io_context};
use super::scrub::ScrubOutcome;
use super::suspend::name_of;
use super::write::{Piece, bug};
use super::{Pipeline, ReadContext, WritePolicy};
use crate::alloc::Request;
use crate::error::ZioError;

/// Levels of gang headers: 3^16 pieces are more than any block has sectors.
const DEPTH_MAX: usize = 16;

type Places = [Option<Dva>; DVAS_PER_POINTER];

/// Where the pieces of a gang block go.
enum Plan {
    Data {
        places: Places,
        range: Range<usize>,
    },
    Header {
        places: Places,
        range: Range<usize>,
        children: Vec<Plan>,
    },
}

impl Plan {
    fn places(&self) -> &Places {
        match self {
            Plan::Data { places, .. } | Plan::Header { places, .. } => places,
        }
    }

    fn all(&self, out: &mut Vec<Dva>) {
        out.extend(self.places().iter().flatten());
        if let Plan::Header { children, .. } = self {
            children.iter().for_each(|child| child.all(out));
        }
    }
}

impl Pipeline {
    /// Allocates and describes a gang block for `data`: the pointer's places, and everything
    /// to be written.
    pub(super) async fn plan_gang(
        &self,
        txg: Txg,
        data: &Bytes,
        policy: &WritePolicy,
    ) -> Result<(Places, Vec<Piece>), ZioError> {
        let plan = self.plan(txg, 0..data.len(), policy, 0).await?;
        let mut pieces = Vec::new();
        match self.describe(txg, &plan, data, policy, &mut pieces) {
            Ok(bp) => {
                let places = [bp.dva(0), bp.dva(1), bp.dva(2)];
                Ok((places, pieces))
            }
            Err(error) => {
                self.unallocate_plan(txg, &plan);
                Err(error)
            }
        }
    }

    /// Describes a new version of the gang block `old`, of the same length and born in the same txg, in `old`'s
    /// places (`zio_rewrite_gang`). Without it a MOS whose blocks are in pieces would move, and so change its own
    /// space maps, in every pass of a sync: it would never converge.
    pub(super) async fn plan_gang_rewrite(
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
                Err(error) => self.wait_for_devices(old, &context, error).await?,
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
            for member in self.read_gang_header(bp, context).await? {
                let end = at + member.psize_bytes() as usize;
                children.push(self.plan_of(&member, at..end, context, depth + 1).await?);
                at = end;
            }
            Ok(Plan::Header {
                places,
                range,
                children,
            })
        })
    }

    fn unallocate_plan(&self, txg: Txg, plan: &Plan) {
        let mut places = Vec::new();
        plan.all(&mut places);
        for dva in &places {
            self.allocator.unallocate(txg, dva);
        }
    }

    /// Allocates a header and what is below it.
    fn plan<'a>(
        &'a self,
        txg: Txg,
        range: Range<usize>,
        policy: &'a WritePolicy,
        depth: usize,
    ) -> BoxFuture<'a, Result<Plan, ZioError>> {
        Box::pin(async move {
            let length = range.len();
            let units = self.tree.alloc_units();
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
            let mut plan = Plan::Header {
                places,
                range: range.clone(),
                children: Vec::new(),
            };
            let count = gang_pointers(GANG_HEADER_BYTES);
            let mut at = range.start;
            for index in 0..count {
                if at == range.end {
                    break;
                }
                let share = (range.end - at).div_ceil(count - index);
                let end = (at + units.round_up(share)).min(range.end);
                match self.plan_member(txg, at..end, policy, depth).await {
                    Ok(child) => {
                        if let Plan::Header { children, .. } = &mut plan {
                            children.push(child);
                        }
                    }
                    Err(error) => {
                        self.unallocate_plan(txg, &plan);
                        return Err(error);
                    }
                }
                at = end;
            }
            Ok(plan)
        })
    }

    async fn plan_member(
        &self,
        txg: Txg,
        range: Range<usize>,
        policy: &WritePolicy,
        depth: usize,
    ) -> Result<Plan, ZioError> {
        let request = Request {
            txg,
            psize_bytes: range.len() as u64,
            copies: usize::from(policy.copies.clamp(1, 3)),
            class: policy.class,
            fallback: true,
            gang: false,
        };
        match self.allocator.allocate(&request).await {
            Ok(places) => Ok(Plan::Data { places, range }),
            Err(ZioError::NoSpace { .. }) => self.plan(txg, range, policy, depth + 1).await,
            Err(error) => Err(error),
        }
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
        let (mut places, range) = match plan {
            Plan::Data { places, range } | Plan::Header { places, range, .. } => {
                (*places, range.clone())
            }
        };
        let own = places;
        let part = data.slice(range);
        let mut header = None;
        if let Plan::Header { children, .. } = plan {
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
            header = Some(encode_gang_header(&pointers, GANG_HEADER_BYTES)?);
        }
        let sum =
            compute(policy.checksum, Endian::Little, &part, Some(&self.salt())).map_err(bug)?;
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
                seal(
                    Checksum::GangHeader,
                    Endian::Little,
                    &gang_words(&bp),
                    &mut bytes,
                )
                .map_err(bug)?;
                Bytes::from(bytes)
            }
        };
        pieces.extend(own.into_iter().flatten().map(|dva| Piece {
            dva,
            data: content.clone(),
        }));
        Ok(bp)
    }

    /// A gang header's pointers, without holes. They must make up the block's length.
    pub async fn read_gang_header(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Vec<BlockPointer>, ZioError> {
        let io = io_context(bp, context);
        let (bytes, _) = self.read_copies(bp, GANG_HEADER_BYTES, &io).await?;
        // Its magic tells the byte order; the check accepted one of both.
        let endian = match format::Eck::decode_tail(&bytes) {
            Ok(eck) => eck.endian,
            Err(_) => bp.endian(),
        };
        let pointers: Vec<_> = decode_gang_header(&bytes, endian)?
            .into_iter()
            .filter(|pointer| !pointer.is_hole())
            .collect();
        let total: u64 = pointers.iter().map(BlockPointer::psize_bytes).sum();
        let sound = pointers
            .iter()
            .all(|pointer| !pointer.is_embedded() && pointer.validate().is_ok());
        if !sound || total != bp.psize_bytes() {
            return Err(ZioError::Corrupt {
                block: name_of(bp),
                what: format!("its gang header has {total} bytes of {}", bp.psize_bytes()),
            });
        }
        Ok(pointers)
    }

    /// The stored bytes of a gang block.
    pub(super) async fn read_gang(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        let mut pieces = Vec::new();
        self.read_gang_level(bp, context, 0, &mut pieces).await?;
        Ok(concat(pieces, bp.psize_bytes() as usize))
    }

    fn read_gang_level<'a>(
        &'a self,
        bp: &'a BlockPointer,
        context: &'a ReadContext,
        depth: usize,
        out: &'a mut Vec<Bytes>,
    ) -> BoxFuture<'a, Result<(), ZioError>> {
        Box::pin(async move {
            too_deep(bp, depth)?;
            for member in self.read_gang_header(bp, context).await? {
                if member.is_gang() {
                    self.read_gang_level(&member, context, depth + 1, out)
                        .await?;
                } else {
                    let io = io_context(&member, context);
                    let length = member.psize_bytes() as usize;
                    out.push(self.read_copies(&member, length, &io).await?.0);
                }
            }
            Ok(())
        })
    }

    /// Every pointer of a gang block's tree, itself included.
    fn gang_members<'a>(
        &'a self,
        bp: &'a BlockPointer,
        context: &'a ReadContext,
        depth: usize,
        out: &'a mut Vec<BlockPointer>,
    ) -> BoxFuture<'a, Result<(), ZioError>> {
        Box::pin(async move {
            too_deep(bp, depth)?;
            out.push(*bp);
            for member in self.read_gang_header(bp, context).await? {
                if member.is_gang() {
                    self.gang_members(&member, context, depth + 1, out).await?;
                } else {
                    out.push(member);
                }
            }
            Ok(())
        })
    }

    pub(super) async fn scrub_gang(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<ScrubOutcome, ZioError> {
        let mut members = Vec::new();
        self.gang_members(bp, context, 0, &mut members).await?;
        let mut total = ScrubOutcome::default();
        let mut failure = None;
        for member in &members {
            let mut io = io_context(member, context);
            io.scrub = true;
            let length = if member.is_gang() {
                GANG_HEADER_BYTES
            } else {
                member.psize_bytes() as usize
            };
            // The others are verified even when one is lost.
            match self.read_copies(member, length, &io).await {
                Ok((_, outcome)) => {
                    total.copies += outcome.copies;
                    total.bad_copies += outcome.bad_copies;
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(total), Err)
    }

    /// Frees a gang block and all that is below it.
    pub(super) async fn free_gang(&self, txg: Txg, bp: &BlockPointer) {
        let mut members = Vec::new();
        let context = ReadContext::default();
        let result = loop {
            members.clear();
            match self.gang_members(bp, &context, 0, &mut members).await {
                Err(error) => match self.wait_for_devices(bp, &context, error).await {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                },
                Ok(()) => break Ok(()),
            }
        };
        if let Err(error) = result {
            tracing::error!(%error, block = %bp, "a gang block's members cannot be freed; their space is lost until the pool is checked");
        }
        for member in &members {
            for dva in member.dvas() {
                if let Err(error) = self.free_dva(txg, member, &dva) {
                    tracing::error!(%error, block = %bp, "a member of a gang block cannot be freed");
                }
            }
        }
    }

    pub(super) async fn claim_gang(&self, txg: Txg, bp: &BlockPointer) -> Result<(), ZioError> {
        let mut members = Vec::new();
        self.gang_members(bp, &ReadContext::default(), 0, &mut members)
            .await?;
        for dva in members.iter().flat_map(BlockPointer::dvas) {
            self.claim_place(txg, &dva).await?;
        }
        Ok(())
    }
}

/// Most copies of a gang header: the third place of an encrypted block's pointer holds salt and IV.
fn header_copies_max(policy: &WritePolicy) -> usize {
    let encrypted = policy.encrypted && policy.level == 0 && policy.object_type.is_encrypted();
    DVAS_PER_POINTER - usize::from(encrypted)
}

fn too_deep(bp: &BlockPointer, depth: usize) -> Result<(), ZioError> {
    if depth < DEPTH_MAX {
        return Ok(());
    }
    Err(ZioError::Corrupt {
        block: name_of(bp),
        what: format!("gang headers are nested more than {DEPTH_MAX} deep"),
    })
}
