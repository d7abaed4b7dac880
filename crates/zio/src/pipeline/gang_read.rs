//! Reading gang blocks (`zio_gang_tree_assemble`, module/zfs/zio.c): see `gang_write` for what they
//! are made of.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use device::BoxFuture;
use format::{BlockPointer, Dva, GANG_HEADER_BYTES, decode_gang_header};
use vdev::ScanRead;

use super::ReadContext;
use super::check::gang_header;
use super::copies::{Copies, ScrubOutcome, io_context};
use crate::error::{ZioError, name_of};

/// Levels of gang headers: 3^16 pieces are more than any block has sectors.
pub(super) const DEPTH_MAX: usize = 16;

/// What a gang header has.
pub(super) struct Header {
    /// Its length: 512, or what is allocated for it ([`GangReader::header_room`]).
    pub(super) bytes: usize,
    /// Its pointers, without holes. They make up the block's length.
    pub(super) members: Vec<BlockPointer>,
}

/// Reads gang blocks.
pub(super) struct GangReader {
    pub(super) copies: Arc<Copies>,
}

impl GangReader {
    /// Bytes that a gang header at all of these places may have: the least that is allocated on any
    /// of their vdevs (`zio_gang_tree_assemble`; `vdev_gang_header_psize`, include/sys/vdev.h).
    pub(super) fn header_room(&self, places: impl Iterator<Item = Dva>) -> usize {
        let room = |dva: Dva| {
            let top = self.copies.tree.top(dva.vdev())?;
            let sector = 1 << top.ashift().clamp(9, 16);
            Some(top.geometry().map_or(sector, |of| of.alloc_unit_bytes()))
        };
        let least = places.filter_map(room).min();
        least.map_or(GANG_HEADER_BYTES, |bytes| bytes as usize)
    }

    /// A gang block's header. Its pointers must make up the block's length.
    pub(super) async fn header(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Header, ZioError> {
        let io = io_context(bp, context);
        let room = self.header_room(bp.dvas());
        let (read, _) = self.copies.read(bp, room, &io).await?;
        // It was found to be right just now.
        let bytes = gang_header(bp, &read).unwrap_or(&read);
        // Its magic tells the byte order; the check accepted one of both.
        let endian = match format::Eck::decode_tail(bytes) {
            Ok(eck) => eck.endian,
            Err(_) => bp.endian(),
        };
        let members: Vec<_> = decode_gang_header(bytes, endian)?
            .into_iter()
            .filter(|pointer| !pointer.is_hole())
            .collect();
        let total: u64 = members.iter().map(BlockPointer::psize_bytes).sum();
        let sound = members
            .iter()
            .all(|pointer| !pointer.is_embedded() && pointer.validate().is_ok());
        if !sound || total != bp.psize_bytes() {
            return Err(ZioError::Corrupt {
                block: name_of(bp),
                what: format!("its gang header has {total} bytes of {}", bp.psize_bytes()),
            });
        }
        Ok(Header {
            bytes: bytes.len(),
            members,
        })
    }

    /// The stored bytes of a gang block.
    pub(super) async fn read(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
    ) -> Result<Bytes, ZioError> {
        let mut pieces = Vec::new();
        self.read_level(bp, context, 0, &mut pieces).await?;
        Ok(concat(pieces, bp.psize_bytes() as usize))
    }

    fn read_level<'a>(
        &'a self,
        bp: &'a BlockPointer,
        context: &'a ReadContext,
        depth: usize,
        out: &'a mut Vec<Bytes>,
    ) -> BoxFuture<'a, Result<(), ZioError>> {
        Box::pin(async move {
            too_deep(bp, depth)?;
            for member in self.header(bp, context).await?.members {
                if member.is_gang() {
                    self.read_level(&member, context, depth + 1, out).await?;
                } else {
                    let io = io_context(&member, context);
                    let length = member.psize_bytes() as usize;
                    out.push(self.copies.read(&member, length, &io).await?.0);
                }
            }
            Ok(())
        })
    }

    /// Writes those pieces of a gang block anew that cannot be read; `stored` is all of the block.
    /// Its headers must be right.
    pub(super) async fn heal(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
        mut stored: Bytes,
    ) -> Result<(), ZioError> {
        let mut members = Vec::new();
        self.members(bp, context, 0, &mut members).await?;
        for member in members.iter().filter(|member| !member.is_gang()) {
            let length = member.psize_bytes() as usize;
            if length > stored.len() {
                break;
            }
            let piece = stored.split_to(length);
            let io = io_context(member, context);
            match self.copies.read(member, length, &io).await {
                Ok(_) => {}
                Err(ZioError::Checksum { .. }) => self.copies.put_right(member, piece, &io).await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Every pointer of a gang block's tree, itself included, in the order of what they hold.
    pub(super) fn members<'a>(
        &'a self,
        bp: &'a BlockPointer,
        context: &'a ReadContext,
        depth: usize,
        out: &'a mut Vec<BlockPointer>,
    ) -> BoxFuture<'a, Result<(), ZioError>> {
        Box::pin(async move {
            too_deep(bp, depth)?;
            out.push(*bp);
            for member in self.header(bp, context).await?.members {
                if member.is_gang() {
                    self.members(&member, context, depth + 1, out).await?;
                } else {
                    out.push(member);
                }
            }
            Ok(())
        })
    }

    /// Reads every member as a scan does.
    pub(super) async fn scan(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
        scan: ScanRead,
    ) -> Result<ScrubOutcome, ZioError> {
        let mut members = Vec::new();
        self.members(bp, context, 0, &mut members).await?;
        let mut total = ScrubOutcome::default();
        let mut failure = None;
        for member in &members {
            let mut io = io_context(member, context);
            io.scan = scan;
            let length = if member.is_gang() {
                self.header_room(member.dvas())
            } else {
                member.psize_bytes() as usize
            };
            // The others are verified even when one is lost.
            match self.copies.read(member, length, &io).await {
                Ok((_, outcome)) => {
                    total.copies += outcome.copies;
                    total.bad_copies += outcome.bad_copies;
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(total), Err)
    }

    /// Every pointer of a gang block's tree, itself included, when they are to be freed: waits for
    /// devices that may come back. What was found before a failure is kept.
    pub(super) async fn members_to_free(
        &self,
        bp: &BlockPointer,
    ) -> (Vec<BlockPointer>, Result<(), ZioError>) {
        let mut members = Vec::new();
        let context = ReadContext::default();
        let result = loop {
            members.clear();
            match self.members(bp, &context, 0, &mut members).await {
                Err(error) => match self.copies.wait_for_devices(bp, &context, error).await {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                },
                Ok(()) => break Ok(()),
            }
        };
        (members, result)
    }
}

pub(super) fn too_deep(bp: &BlockPointer, depth: usize) -> Result<(), ZioError> {
    if depth < DEPTH_MAX {
        return Ok(());
    }
    Err(ZioError::Corrupt {
        block: name_of(bp),
        what: format!("gang headers are nested more than {DEPTH_MAX} deep"),
    })
}

/// Puts pieces together.
fn concat(pieces: Vec<Bytes>, length: usize) -> Bytes {
    let mut out = BytesMut::with_capacity(length);
    for piece in pieces {
        out.extend_from_slice(&piece);
    }
    out.freeze()
}
