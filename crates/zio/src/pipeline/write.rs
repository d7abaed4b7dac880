//! Writing blocks: see the table in [`super`] for what is done where.

use std::sync::Arc;

use bytes::Bytes;
use device::{BoxFuture, World};
use format::{BlockPointer, HolePointer, MAX_BLOCK_BYTES, RegularPointer, SECTOR_BYTES, Txg};
use tokio::sync::Semaphore;
use vdev::VdevTree;

use super::check::PoolSalt;
use super::dedup_write::DedupWriter;
use super::keys::Keys;
use super::placement::Placement;
use super::prepare::{Preparation, Prepared, stored_kinds};
use super::suspension::Suspension;
use super::turns::Turn;
use super::{BlockData, WritePolicy};
use crate::cache::{Cache, CacheKey};
use crate::error::ZioError;

/// What a block that is written has to do with the one it replaces.
#[derive(Clone, Copy)]
enum Version<'a> {
    /// Nothing.
    New,
    /// It may take its place.
    InPlaceOf(&'a BlockPointer),
    /// It holds the same data.
    Same(&'a BlockPointer),
    /// It may turn out to hold the same data, and be written for nothing.
    Over(&'a BlockPointer),
}

/// Writes blocks.
pub struct Writer {
    pub(super) world: World,
    pub(super) tree: Arc<VdevTree>,
    pub(super) cache: Arc<Cache>,
    pub(super) salt: Arc<PoolSalt>,
    pub(super) keys: Arc<Keys>,
    pub(super) suspension: Arc<Suspension>,
    pub(super) placement: Arc<Placement>,
    pub(super) dedup: DedupWriter,
    /// Bounds the blocks that are written at the same time.
    pub(super) in_flight: Semaphore,
}

impl Writer {
    /// Writes a block: compresses, allocates, checksums; returns its pointer. All zeros become a
    /// hole (unless compression is off). While the pool is suspended this waits.
    ///
    /// # Errors
    /// [`ZioError::NoSpace`]; [`ZioError::ReadOnly`]; what [`Suspension::abandon`] said.
    ///
    /// # Panics
    /// When `data` is not of 512 bytes to 16 MiB in whole sectors, or the policy names a checksum
    /// that is not stored in pointers: bugs in the caller.
    pub async fn write(
        &self,
        txg: Txg,
        data: Bytes,
        policy: &WritePolicy,
    ) -> Result<BlockPointer, ZioError> {
        self.write_in_turn(txg, data.into(), policy, None).await
    }

    /// [`Self::write`], but it gets its place in its turn.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn write_in_turn(
        &self,
        txg: Txg,
        data: BlockData,
        policy: &WritePolicy,
        turn: Option<Turn>,
    ) -> Result<BlockPointer, ZioError> {
        self.write_version(txg, Version::New, data, policy, turn)
            .await
    }

    /// Writes a new version of `old`: in its place when it was born in this txg and has the same
    /// stored size, else elsewhere. Never frees `old`: when the first place of what is returned
    /// differs from `old`'s, that is the caller's to do.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn rewrite(
        &self,
        txg: Txg,
        old: &BlockPointer,
        data: Bytes,
        policy: &WritePolicy,
    ) -> Result<BlockPointer, ZioError> {
        self.write_version(txg, Version::InPlaceOf(old), data.into(), policy, None)
            .await
    }

    /// Writes what `old` holds to another place, as the policy says now. The pointer is as old as
    /// `old`, and its physical birth says when it was moved (feature `physical_rewrite`). It is an
    /// ordinary new pointer where it is embedded or a gang block, or shares what a dedup table has;
    /// it is `old` itself where that is what the table has. Never frees `old`.
    ///
    /// Source: module/zfs/zio.c (`zio_dva_allocate`, `zio_ddt_write`).
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn relocate(
        &self,
        txg: Txg,
        old: &BlockPointer,
        data: Bytes,
        policy: &WritePolicy,
        turn: Option<Turn>,
    ) -> Result<BlockPointer, ZioError> {
        self.write_version(txg, Version::Same(old), data.into(), policy, turn)
            .await
    }

    /// Writes what takes the place of `old`, which is given back where it holds the same, stored in
    /// the same way: nothing is allocated or written then.
    ///
    /// Source: module/zfs/zio.c (`zio_nop_write`).
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn overwrite(
        &self,
        txg: Txg,
        old: &BlockPointer,
        data: BlockData,
        policy: &WritePolicy,
        turn: Option<Turn>,
    ) -> Result<BlockPointer, ZioError> {
        self.write_version(txg, Version::Over(old), data, policy, turn)
            .await
    }

    /// Whether a block that is about to be written is stored already.
    fn is_stored(&self, old: &BlockPointer, new: &RegularPointer, copies: u8) -> bool {
        if old.is_hole() || old.is_embedded() || old.uses_crypt() || new.uses_crypt {
            return false;
        }
        let stored_alike = old.checksum_kind() == new.checksum_kind
            && old.compression() == new.compression
            && !old.is_dedup()
            && old.copies() == usize::from(copies)
            && old.lsize_bytes() == new.lsize_bytes
            && old.psize_bytes() == new.psize_bytes
            && old.object_type() == new.object_type
            && old.level() == new.level
            && old.endian() == new.endian;
        // Blocks of removed vdevs are better somewhere else.
        let is_removed = |vdev| {
            let top = self.tree.top(vdev);
            top.is_none_or(|top| top.kind().is_indirect())
        };
        new.checksum_kind.tells_blocks_apart()
            && stored_alike
            && old.checksum() == new.checksum
            && !old.dvas().any(|dva| is_removed(dva.vdev()))
    }

    fn write_version<'a>(
        &'a self,
        txg: Txg,
        version: Version<'a>,
        data: BlockData,
        policy: &'a WritePolicy,
        turn: Option<Turn>,
    ) -> BoxFuture<'a, Result<BlockPointer, ZioError>> {
        Box::pin(async move {
            let bytes = data.bytes.len() as u64;
            let lsize = policy.raw.map_or(bytes, |raw| raw.logical_bytes);
            for bytes in [bytes, lsize] {
                assert!(
                    bytes.is_multiple_of(SECTOR_BYTES)
                        && (SECTOR_BYTES..=MAX_BLOCK_BYTES).contains(&bytes),
                    "a block of {bytes} bytes cannot be stored"
                );
            }
            let policy = stored_kinds(policy);
            self.suspension.check_writable()?;
            let lock = match policy.raw {
                Some(_) => None,
                None => self.keys.lock_for(&policy)?,
            };
            let _place = self
                .in_flight
                .acquire()
                .await
                .map_err(|_| ZioError::Closing)?;
            self.suspension.wait_resumed().await?;
            let preparation = Preparation {
                policy,
                units: self.tree.topology().alloc_units(),
                salt: self.salt.get(),
                lock,
            };
            match preparation.run_on(&self.world, data.clone()).await? {
                Prepared::Hole => {
                    let birth = if policy.hole_birth { txg } else { Txg::ZERO };
                    Ok(BlockPointer::hole(&HolePointer {
                        birth,
                        object_type: policy.object_type,
                        level: policy.level,
                        lsize_bytes: lsize,
                    })?)
                }
                Prepared::Embedded {
                    payload,
                    compression,
                } => Ok(BlockPointer::embedded(
                    &payload,
                    lsize,
                    compression,
                    policy.object_type,
                    policy.level,
                    txg,
                )?),
                Prepared::Stored(stored) => {
                    let same = match version {
                        Version::Same(old) if !old.is_hole() => Some(old),
                        _ => None,
                    };
                    // What tables have needs no place of its own, and nobody is to wait for them.
                    let turn = turn.filter(|_| policy.dedup.is_none());
                    if let Some(dedup) = policy.dedup {
                        let bytes = &data.bytes;
                        let shared = self.dedup.write(txg, bytes, &stored, &policy, dedup, same);
                        if let Some(bp) = shared.await? {
                            return Ok(bp);
                        }
                    }
                    if let Version::Over(old) = version
                        && self.is_stored(old, &stored.pointer(txg, lsize, &policy), policy.copies)
                    {
                        return Ok(*old);
                    }
                    let old = match version {
                        Version::InPlaceOf(old) => Some(old),
                        Version::New | Version::Same(_) | Version::Over(_) => None,
                    };
                    let dvas = self
                        .placement
                        .write(txg, old, &stored.data, &policy, true, turn)
                        .await?;
                    let mut bp = BlockPointer::regular(&RegularPointer {
                        dvas,
                        ..stored.pointer(txg, lsize, &policy)
                    })?;
                    if let Some(old) = same
                        && !bp.is_gang()
                    {
                        bp.set_birth(old.logical_birth(), txg);
                        bp.set_rewritten(true);
                    }
                    // The cache holds what is decrypted.
                    if let Some(key) = CacheKey::of(&bp)
                        && policy.cache
                        && policy.raw.is_none()
                    {
                        self.cache.insert(key, data.bytes);
                    }
                    Ok(bp)
                }
            }
        })
    }
}
