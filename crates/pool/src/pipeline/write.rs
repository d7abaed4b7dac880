//! Writing blocks (`zio_write_compress`, `zio_dva_allocate`, `zio_checksum_generate`;
//! module/zfs/zio.c).

use std::sync::Arc;

use bytes::Bytes;
use codec::checksum::{Salt, compute, fold_for_mac, seal, seal_beside_mac};
use codec::compress::{ZstdLevel, compress};
use format::{
    BlockPointer, Checksum, Compression, CryptParams, DVAS_PER_POINTER, Dva,
    EMBEDDED_PAYLOAD_BYTES, Endian, HolePointer, MAX_BLOCK_BYTES, ObjectType, ObjsetId,
    RegularPointer, SECTOR_BYTES, Txg,
};
use futures::future::join_all;

use super::check::is_heavy;
use super::crypt::{CRYPT_ON_TASK_BYTES, Lock};
use super::suspend::name_of;
use super::{AllocClass, Pipeline, Priority, WritePolicy};
use crate::alloc::Request;
use crate::cache::CacheKey;
use crate::error::PoolError;
use crate::vdev::{IoContext, WriteFailure};

/// Blocks longer than this are compressed by a CPU worker.
const COMPRESS_ON_WORKER_BYTES: usize = 16 << 10;

/// Bytes for a place.
pub(super) struct Piece {
    pub(super) dva: Dva,
    pub(super) data: Bytes,
}

/// A block after compression.
enum Prepared {
    Hole,
    Embedded {
        payload: Vec<u8>,
        compression: Compression,
    },
    Stored {
        data: Bytes,
        compression: Compression,
        checksum: [u64; 4],
        crypt: Option<CryptParams>,
    },
}

/// What compression needs to know.
#[derive(Clone)]
struct Preparation {
    policy: WritePolicy,
    min_alloc: usize,
    salt: Arc<Salt>,
    lock: Option<Lock>,
}

/// An error that only a mistake in this program can cause.
pub(super) fn bug(error: impl std::fmt::Display) -> PoolError {
    PoolError::Corrupt {
        block: "a block that is being written".to_owned(),
        what: error.to_string(),
    }
}

fn is_zero(data: &[u8]) -> bool {
    let (chunks, rest) = data.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}

impl Preparation {
    /// Longest compressed size that is worth it (`zio_get_compression_max_size`).
    fn compressed_max(&self, length: usize) -> usize {
        let most = length - (length >> 3);
        if self.policy.compression == Compression::Zle {
            return most;
        }
        let most = most - most % self.min_alloc;
        if most < self.min_alloc {
            EMBEDDED_PAYLOAD_BYTES
        } else {
            most
        }
    }

    fn run(&self, data: Bytes) -> Result<Prepared, PoolError> {
        let policy = &self.policy;
        let mut stored = data.clone();
        let mut compression = Compression::Off;
        if policy.compression != Compression::Off {
            if is_zero(&data) {
                return Ok(Prepared::Hole);
            }
            let level = u8::try_from(policy.compression_level)
                .ok()
                .and_then(ZstdLevel::from_code)
                .unwrap_or_default();
            let max = self.compressed_max(data.len());
            if let Some(mut compressed) = compress(policy.compression, level, &data, max)
                && compressed.len() < data.len()
            {
                let embeds = compressed.len() <= EMBEDDED_PAYLOAD_BYTES
                    && policy.allow_embedded
                    && self.lock.is_none()
                    && policy.level == 0
                    && !policy.object_type.has_fill();
                if embeds {
                    return Ok(Prepared::Embedded {
                        payload: compressed,
                        compression: policy.compression,
                    });
                }
                // Whole allocation units, zeros behind: what is charged is what is stored.
                let rounded = compressed.len().next_multiple_of(self.min_alloc);
                if rounded < data.len() {
                    compressed.resize(rounded, 0);
                    stored = compressed.into();
                    compression = policy.compression;
                }
            }
        }
        let mut crypt = None;
        let mut mac = None;
        if let Some(lock) = &self.lock {
            let locked = lock
                .apply(policy.object_type, policy.level, &data, stored)
                .map_err(bug)?;
            (stored, crypt, mac) = (locked.stored, locked.params, locked.mac);
        }
        let mut checksum =
            compute(policy.checksum, Endian::Little, &stored, Some(&self.salt)).map_err(bug)?;
        if let Some(mac) = mac {
            let [a, b] = fold_for_mac(policy.checksum, &checksum);
            let mut mac = Endian::Little.words(&mac);
            checksum = [a, b, mac.next().unwrap_or(0), mac.next().unwrap_or(0)];
        }
        Ok(Prepared::Stored {
            data: stored,
            compression,
            checksum,
            crypt,
        })
    }
}

impl Pipeline {
    /// Writes a block: compresses, allocates, checksums; returns its pointer. All zeros become a hole
    /// (unless compression is off). While the pool is suspended this waits.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`]; [`PoolError::ReadOnly`]; what [`Self::abandon`] said.
    ///
    /// # Panics
    /// When `data` is not of 512 bytes to 16 MiB in whole sectors, or the policy names a checksum that is
    /// not stored in pointers: bugs in the caller.
    pub async fn write(
        &self,
        txg: Txg,
        data: Bytes,
        policy: &WritePolicy,
    ) -> Result<BlockPointer, PoolError> {
        self.write_or_rewrite(txg, None, data, policy).await
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
    ) -> Result<BlockPointer, PoolError> {
        self.write_or_rewrite(txg, Some(old), data, policy).await
    }

    async fn write_or_rewrite(
        &self,
        txg: Txg,
        old: Option<&BlockPointer>,
        data: Bytes,
        policy: &WritePolicy,
    ) -> Result<BlockPointer, PoolError> {
        let lsize = data.len() as u64;
        assert!(
            lsize.is_multiple_of(SECTOR_BYTES) && (SECTOR_BYTES..=MAX_BLOCK_BYTES).contains(&lsize),
            "a block of {lsize} bytes cannot be stored"
        );
        let policy = stored_kinds(policy);
        self.check_writable()?;
        let lock = self.lock_for(&policy)?;
        let uses_crypt = lock.is_some();
        let _place = self
            .writes
            .acquire()
            .await
            .map_err(|_| PoolError::Closing)?;
        self.wait_resumed().await?;
        match self.prepare(data.clone(), &policy, lock).await? {
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
            Prepared::Stored {
                data: stored,
                compression,
                checksum,
                crypt,
            } => {
                let (places, pieces) = self.places(txg, old, &stored, &policy).await?;
                let bp = BlockPointer::regular(&RegularPointer {
                    dvas: places,
                    lsize_bytes: lsize,
                    psize_bytes: stored.len() as u64,
                    compression,
                    checksum_kind: policy.checksum,
                    object_type: policy.object_type,
                    level: policy.level,
                    dedup: false,
                    uses_crypt,
                    rewritten: false,
                    endian: Endian::Little,
                    fill: policy.fill,
                    logical_birth: txg,
                    physical_birth: txg,
                    checksum,
                    crypt,
                })?;
                self.write_pieces(pieces, txg, &policy).await?;
                if let Some(key) = CacheKey::of(&bp)
                    && policy.cache
                {
                    self.cache.insert(key, data);
                }
                Ok(bp)
            }
        }
    }

    async fn prepare(
        &self,
        data: Bytes,
        policy: &WritePolicy,
        lock: Option<Lock>,
    ) -> Result<Prepared, PoolError> {
        let protected = lock.is_some();
        let preparation = Preparation {
            policy: *policy,
            min_alloc: self.tree.min_alloc_bytes() as usize,
            salt: self.salt(),
            lock,
        };
        let compresses = policy.compression != Compression::Off;
        let heavy = (compresses && data.len() > COMPRESS_ON_WORKER_BYTES)
            || protected && data.len() > CRYPT_ON_TASK_BYTES
            || is_heavy(policy.checksum, data.len());
        if heavy {
            self.world.compute(move || preparation.run(data)).await
        } else {
            preparation.run(data)
        }
    }

    /// The class that a block of `stored_bytes` prefers (`spa_preferred_class`, module/zfs/spa_misc.c): small
    /// ones the special class, of which they leave a part to metadata.
    fn class_of(&self, stored_bytes: usize, policy: &WritePolicy) -> AllocClass {
        let small = policy.class == AllocClass::Normal
            && policy.special_small_bytes > 0
            && stored_bytes <= policy.special_small_bytes as usize;
        if small && self.allocator.has_special_room() {
            AllocClass::Special
        } else {
            policy.class
        }
    }

    /// Where a block goes: `old`'s places if they suit, else new ones, in pieces if need be.
    async fn places(
        &self,
        txg: Txg,
        old: Option<&BlockPointer>,
        stored: &Bytes,
        policy: &WritePolicy,
    ) -> Result<([Option<Dva>; DVAS_PER_POINTER], Vec<Piece>), PoolError> {
        let copies = usize::from(policy.copies.clamp(1, 3));
        let in_place = old.filter(|old| {
            !old.is_hole()
                && !old.is_embedded()
                && old.logical_birth() == txg
                && old.physical_birth() == txg
                && old.psize_bytes() == stored.len() as u64
                && (old.is_gang() || old.copies() == copies)
        });
        if let Some(old) = in_place.filter(|old| old.is_gang()) {
            return self.plan_gang_rewrite(txg, old, stored, policy).await;
        }
        let places = match in_place {
            Some(old) => [old.dva(0), old.dva(1), old.dva(2)],
            None => {
                let request = Request {
                    txg,
                    psize_bytes: stored.len() as u64,
                    copies,
                    class: self.class_of(stored.len(), policy),
                    fallback: true,
                    gang: false,
                };
                match self.allocator.allocate(&request).await {
                    Ok(places) => places,
                    Err(PoolError::NoSpace { .. }) => {
                        return self.plan_gang(txg, stored, policy).await;
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let pieces = places
            .iter()
            .flatten()
            .map(|dva| Piece {
                dva: *dva,
                data: stored.clone(),
            })
            .collect();
        Ok((places, pieces))
    }

    /// Writes all pieces; those that fail suspend the pool and are tried again when it resumes.
    async fn write_pieces(
        &self,
        pieces: Vec<Piece>,
        txg: Txg,
        policy: &WritePolicy,
    ) -> Result<(), PoolError> {
        let io = IoContext {
            bookmark: policy.bookmark,
            priority: policy.priority,
            birth: txg,
            ..IoContext::default()
        };
        let mut left = pieces;
        loop {
            let results = join_all(left.iter().map(|piece| self.write_piece(piece, &io))).await;
            let mut failed = Vec::new();
            let mut cause = None;
            for (piece, result) in left.into_iter().zip(results) {
                if let Err(error) = result {
                    cause = Some(format!("{}: {}", piece.dva, error.cause));
                    failed.push(piece);
                }
            }
            let Some(reason) = cause else { return Ok(()) };
            left = failed;
            self.suspend(PoolError::Suspended { reason });
            self.wait_resumed().await?;
        }
    }

    async fn write_piece(&self, piece: &Piece, io: &IoContext) -> Result<(), WriteFailure> {
        let dva = &piece.dva;
        self.tree
            .write_block(dva.vdev(), dva.offset_bytes(), piece.data.clone(), io)
            .await
    }

    /// Allocates an intent log block of exactly `size_bytes` (`zio_alloc_zil`), on log vdevs if there is room and `on_log_devices`
    /// says so (`logbias`). Its checksum
    /// words are zero: the caller sets them to the log's nonce and sequence
    /// ([`BlockPointer::set_checksum`]) before writing. When the key of `objset` is loaded, the block will be encrypted.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`]: then wait for the txg instead. [`PoolError::Suspended`] while the pool is suspended.
    pub async fn allocate_log_block(
        &self,
        txg: Txg,
        size_bytes: u64,
        objset: ObjsetId,
        on_log_devices: bool,
    ) -> Result<BlockPointer, PoolError> {
        self.check_writable()?;
        if let Some(error) = self.suspended() {
            return Err(error);
        }
        let request = Request {
            txg,
            psize_bytes: size_bytes,
            copies: 1,
            class: match on_log_devices {
                true => AllocClass::Log,
                false => AllocClass::Normal,
            },
            fallback: true,
            gang: false,
        };
        let dvas = self.allocator.allocate(&request).await?;
        let crypt = self.prepare_log_pointer(objset);
        Ok(BlockPointer::regular(&RegularPointer {
            dvas,
            lsize_bytes: size_bytes,
            psize_bytes: size_bytes,
            compression: Compression::Off,
            checksum_kind: Checksum::Zilog2,
            object_type: ObjectType::INTENT_LOG,
            level: 0,
            dedup: false,
            uses_crypt: crypt.is_some(),
            rewritten: false,
            endian: Endian::Little,
            fill: 0,
            logical_birth: txg,
            physical_birth: txg,
            checksum: [0; 4],
            crypt,
        })?)
    }

    /// Writes an intent log block: sets the checksum in its chain header (`zc_eck`; `zc_nused` must be
    /// set) and writes it. `data` may be shorter than the block when the rest is not used; whole 4 KiB.
    /// Durable with `flush`, else after [`Self::flush_for`] or [`Self::flush`].
    ///
    /// # Errors
    /// [`PoolError::VdevUnavailable`] when it could not be written, [`PoolError::Suspended`]: then wait for the txg instead.
    pub async fn write_log_block(
        &self,
        bp: &BlockPointer,
        mut data: Vec<u8>,
        flush: bool,
    ) -> Result<(), PoolError> {
        self.check_writable()?;
        if let Some(error) = self.suspended() {
            return Err(error);
        }
        self.lock_log_block(bp, &mut data)?;
        let seal = if bp.is_encrypted() {
            seal_beside_mac
        } else {
            seal
        };
        seal(
            bp.checksum_kind(),
            Endian::Little,
            &bp.checksum(),
            &mut data,
        )
        .map_err(bug)?;
        let io = IoContext {
            priority: Priority::Sync,
            birth: bp.physical_birth(),
            flush,
            ..IoContext::default()
        };
        let psize = bp.psize_bytes() as usize;
        let unavailable = |cause: String| PoolError::VdevUnavailable {
            vdev: name_of(bp),
            cause,
        };
        for dva in bp.dvas() {
            let striped = self
                .tree
                .top(dva.vdev())
                .and_then(|top| top.geometry())
                .is_none_or(|geometry| geometry.parity() > 0);
            let mut data = data.clone();
            if striped || data.len() > psize {
                // RAID-Z's columns depend on the length: it is read back whole.
                data.resize(psize, 0);
            }
            self.tree
                .write_block(dva.vdev(), dva.offset_bytes(), data.into(), &io)
                .await
                .map_err(|error| unavailable(error.cause))
                .and_then(|()| match flush {
                    true => self.tree.settle_written(dva.vdev()),
                    false => Ok(()),
                })
                .inspect_err(|_| self.leave_failed_logs())?;
        }
        Ok(())
    }
}

/// The policy with property values replaced by what they stand for.
fn stored_kinds(policy: &WritePolicy) -> WritePolicy {
    let mut out = *policy;
    if matches!(out.checksum, Checksum::On | Checksum::Inherit) {
        out.checksum = Checksum::Fletcher4;
    }
    if matches!(out.compression, Compression::On | Compression::Inherit) {
        out.compression = Compression::Lz4;
    }
    if out.encrypted && out.level == 0 && out.object_type.is_encrypted() {
        // The third place is taken by salt and IV.
        out.copies = out.copies.min(2);
    }
    assert!(
        !out.checksum.is_embedded(),
        "{} is not a checksum of ordinary blocks",
        out.checksum
    );
    out
}
