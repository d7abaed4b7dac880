//! Removed vdevs: their blocks lie on others now, as a mapping in the MOS tells
//! (module/zfs/vdev_indirect.c, vdev_indirect_mapping.c, vdev_indirect_births.c).
//!
//! A mapping is a list of segments, sorted by where they were. A block may span several of them,
//! which then lie in different places; a place may be on a vdev that was removed later, and so on.
//! Only disks and mirrors can be removed, and only onto such.
//!
//! A block in one piece is read as if it had always been there, with the txg of the copy as its
//! birth (devices may have missed that one). Of a block in several pieces only the whole has a
//! checksum: if what is read first is wrong, the copies of each piece are tried: those that each
//! device has (one of a mirror may be wrong in all pieces), then all combinations, up to a limit.
//!
//! What is freed on a removed vdev is freed where it is now, piece by piece; the range of the
//! mapping that led there is *obsolete* then, and so is what was passed on the way. That is
//! recorded (by the engine), so that mappings can be made smaller. Nothing new is ever written
//! to a removed vdev; copies that are repaired are.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use format::VdevId;
use futures::future::join_all;

use super::Topology;
use crate::error::VdevError;
use crate::indirect_map::{IndirectMap, Piece};
use crate::io::{IoContext, ReadFailure, Unverified, Verify, WriteFailure};
use crate::kind::VdevKind;
use crate::node::Vdev;
use crate::state::Counters;

/// Combinations of copies that are tried for one block
/// (`zfs_reconstruct_indirect_combinations_max`).
const COMBINATIONS_MAX: usize = 4096;
/// Pieces of one block; more is damage (a block has 16 MiB, a sector 512 bytes).
const PIECES_MAX: usize = (16 << 20) / 512;

/// Where a range of a removed vdev is now, and by which mappings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remapped {
    /// Places on vdevs that are there: vdev, offset, length in bytes.
    pub places: Vec<(VdevId, u64, u64)>,
    /// Ranges of removed vdevs that lead there, likewise.
    pub passed: Vec<(VdevId, u64, u64)>,
}

impl Topology {
    /// Says where the blocks of a removed vdev are: nothing can be read from it before. Whoever
    /// goes by another map that it had goes on with that one.
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`] when there is no removed vdev with this id.
    pub fn set_indirect_map(&self, id: VdevId, map: IndirectMap) -> Result<(), VdevError> {
        let top = self.get(id).ok_or(VdevError::NoSuchVdev { vdev: id })?;
        match top.kind() {
            VdevKind::Indirect(indirect) => {
                *indirect.map.write() = Some(Arc::new(map));
                Ok(())
            }
            _ => Err(VdevError::NoSuchVdev { vdev: id }),
        }
    }

    /// Where a range of a vdev is now, if that one was removed; `None` if it was not.
    ///
    /// # Errors
    /// [`VdevError::VdevUnavailable`] when the mappings do not have the range,
    /// [`VdevError::NoSuchVdev`].
    pub fn remap(
        &self,
        id: VdevId,
        offset: u64,
        length: u64,
    ) -> Result<Option<Remapped>, VdevError> {
        let Some(top) = self.get(id).filter(|top| top.kind().is_indirect()) else {
            return Ok(None);
        };
        let mut passed = vec![(id, offset, length)];
        let pieces = self.concrete(&top, offset, length, &mut passed)?;
        let places = pieces
            .iter()
            .map(|piece| (piece.vdev, piece.offset, piece.length))
            .collect();
        Ok(Some(Remapped { places, passed }))
    }

    /// The pieces of a range on vdevs that are there. Tells which other removed vdevs they were on
    /// (`passed`).
    fn concrete(
        &self,
        top: &Vdev,
        offset: u64,
        length: u64,
        passed: &mut Vec<(VdevId, u64, u64)>,
    ) -> Result<Vec<Piece>, VdevError> {
        let gone = |cause: &str| VdevError::VdevUnavailable {
            vdev: top.display_name(),
            cause: cause.to_owned(),
        };
        let map = mapping_of(top).ok_or_else(|| gone("its mapping is not loaded"))?;
        let mut done = Vec::new();
        let mut open = map
            .pieces(offset, length)
            .ok_or_else(|| gone("its mapping does not have this range"))?;
        open.reverse();
        let mut steps = 0;
        while let Some(piece) = open.pop() {
            steps += 1;
            if steps > PIECES_MAX {
                return Err(gone("its mapping goes in circles"));
            }
            let on = self
                .get(piece.vdev)
                .ok_or(VdevError::NoSuchVdev { vdev: piece.vdev })?;
            if !on.kind().is_indirect() {
                done.push(piece);
                continue;
            }
            passed.push((piece.vdev, piece.offset, piece.length));
            let mut next = mapping_of(&on)
                .and_then(|map| map.pieces(piece.offset, piece.length))
                .ok_or_else(|| gone("what its mapping points to is not mapped"))?;
            next.reverse();
            open.append(&mut next);
        }
        Ok(done)
    }

    /// Reads a block of a removed vdev.
    pub(crate) async fn read_indirect(
        &self,
        top: &Arc<Vdev>,
        offset: u64,
        psize: usize,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        let failed = |error: VdevError| ReadFailure {
            checksum: false,
            device: false,
            slow: false,
            cause: error.to_string(),
        };
        let sector = 1u64 << top.ashift().clamp(9, 16);
        let length = (psize as u64).next_multiple_of(sector);
        let pieces = self
            .concrete(top, offset, length, &mut Vec::new())
            .map_err(failed)?;
        let mut places = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let on = self
                .check_range(piece.vdev, piece.offset, piece.length)
                .map_err(failed)?;
            // Nothing is removed from pools with dRAID, whose places are none on its devices.
            if matches!(on.kind(), VdevKind::Draid(_)) {
                return Err(failed(VdevError::BadAddress {
                    place: format!("{}:{:#x}", piece.vdev, piece.offset),
                    what: format!("blocks of a removed vdev are not on {}", on.display_name()),
                }));
            }
            places.push((on, *piece));
        }
        if let [(on, piece)] = &places[..] {
            let context = IoContext {
                birth: piece.birth,
                ..*context
            };
            return on.read_block(piece.offset, psize, &context, verify).await;
        }
        if !context.scan.is_scan() {
            let reads = places.iter().map(|(on, piece)| async move {
                let context = IoContext {
                    birth: piece.birth,
                    ..*context
                };
                on.read_block(piece.offset, piece.length as usize, &context, &Unverified)
                    .await
            });
            let parts: Result<Vec<Bytes>, ReadFailure> =
                join_all(reads).await.into_iter().collect();
            if let Ok(parts) = parts {
                let block = join(&parts, psize);
                if verify.verify(&block).await {
                    return Ok(block);
                }
            }
        }
        self.combine(top, &places, psize, context, verify).await
    }

    /// Writes a copy of a block of a removed vdev that was found to be wrong.
    pub(crate) async fn repair_indirect(
        &self,
        top: &Arc<Vdev>,
        offset: u64,
        data: Bytes,
        context: &IoContext,
    ) -> Result<(), WriteFailure> {
        let failed = |error: VdevError| WriteFailure::new(error.to_string());
        let sector = 1usize << top.ashift().clamp(9, 16);
        let length = data.len().next_multiple_of(sector);
        let mut padded = BytesMut::from(&data[..]);
        padded.resize(length, 0);
        let mut rest = padded.freeze();
        let pieces = self
            .concrete(top, offset, length as u64, &mut Vec::new())
            .map_err(failed)?;
        for piece in pieces {
            let on = self
                .check_range(piece.vdev, piece.offset, piece.length)
                .map_err(failed)?;
            let context = IoContext {
                birth: piece.birth,
                ..*context
            };
            let part = rest.split_to(piece.length as usize);
            on.write_block(piece.offset, part, &context).await?;
        }
        Ok(())
    }

    /// Reads all copies of all pieces, and finds those that make up the block.
    async fn combine(
        &self,
        top: &Arc<Vdev>,
        places: &[(Arc<Vdev>, Piece)],
        psize: usize,
        context: &IoContext,
        verify: &dyn Verify,
    ) -> Result<Bytes, ReadFailure> {
        // Of each piece: every copy, and who has it.
        let mut copies: Vec<Vec<(Arc<Vdev>, Bytes)>> = Vec::with_capacity(places.len());
        let mut cause = "no device is there".to_owned();
        let mut device = false;
        for (on, piece) in places {
            let mut sources = Vec::new();
            sources_of(on, &mut sources);
            let mut found = Vec::new();
            for source in sources {
                match source
                    .read_part(piece.offset, piece.length as usize, context)
                    .await
                {
                    Ok(data) => found.push((source, data)),
                    Err(error) => {
                        device |= error.device;
                        cause = error.cause;
                    }
                }
            }
            if found.is_empty() {
                Counters::add(&top.counters.read_errors, u64::from(!context.speculative));
                return Err(ReadFailure {
                    checksum: false,
                    device,
                    slow: false,
                    cause: format!("{}: {cause}", top.display_name()),
                });
            }
            copies.push(found);
        }
        let different: Vec<Vec<Bytes>> = copies.iter().map(|found| distinct(found)).collect();
        // First what the devices have, one after the other.
        let straight = copies.iter().map(Vec::len).max().unwrap_or(0);
        let mut choice = vec![0usize; different.len()];
        for attempt in 0..straight + COMBINATIONS_MAX {
            let parts: Vec<Bytes> = match attempt < straight {
                true => copies
                    .iter()
                    .map(|found| found[attempt.min(found.len() - 1)].1.clone())
                    .collect(),
                false => choice
                    .iter()
                    .zip(&different)
                    .map(|(index, versions)| versions[*index].clone())
                    .collect(),
            };
            let block = join(&parts, psize);
            if verify.verify(&block).await {
                for ((found, right), (_, piece)) in copies.iter().zip(&parts).zip(places) {
                    let context = IoContext {
                        birth: piece.birth,
                        ..*context
                    };
                    for (source, data) in found.iter().filter(|(_, data)| data != right) {
                        // What lacks it has something else in its place, which is no error.
                        if !source.is_missing(piece.offset, piece.birth) {
                            source.note_checksum_error(piece.offset, data.len(), &context);
                        }
                        source.repair(piece.offset, right.clone(), &context).await;
                    }
                }
                return Ok(block);
            }
            if attempt >= straight && !next_choice(&mut choice, &different) {
                break;
            }
        }
        if !context.speculative {
            Counters::add(&top.counters.checksum_errors, 1);
        }
        Err(ReadFailure {
            checksum: true,
            device,
            slow: false,
            cause: format!(
                "{}: wrong checksum, and no combination of the copies of its {} pieces is right",
                top.display_name(),
                places.len()
            ),
        })
    }
}

/// The mapping of a removed vdev, once it is known; `None` of others.
pub fn mapping_of(vdev: &Vdev) -> Option<Arc<IndirectMap>> {
    match vdev.kind() {
        VdevKind::Indirect(indirect) => indirect.map.read().clone(),
        _ => None,
    }
}

/// The devices that each hold a whole copy.
fn sources_of(vdev: &Arc<Vdev>, out: &mut Vec<Arc<Vdev>>) {
    if vdev.children().is_empty() || matches!(vdev.kind(), VdevKind::Raidz(_)) {
        if vdev.is_readable() {
            out.push(vdev.clone());
        }
        return;
    }
    for child in vdev.children() {
        sources_of(child, out);
    }
}

fn distinct(found: &[(Arc<Vdev>, Bytes)]) -> Vec<Bytes> {
    let mut out: Vec<Bytes> = Vec::new();
    for (_, data) in found {
        if !out.contains(data) {
            out.push(data.clone());
        }
    }
    out
}

/// Counts up; whether there was another combination.
fn next_choice(choice: &mut [usize], different: &[Vec<Bytes>]) -> bool {
    for (index, versions) in choice.iter_mut().zip(different) {
        *index += 1;
        if *index < versions.len() {
            return true;
        }
        *index = 0;
    }
    false
}

fn join(parts: &[Bytes], length: usize) -> Bytes {
    let mut out = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    for part in parts {
        out.extend_from_slice(part);
    }
    out.truncate(length);
    out.freeze()
}
