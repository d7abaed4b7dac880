//! Writing blocks (`zio_write_compress`, `zio_dva_allocate`, `zio_checksum_generate`;
//! module/zfs/zio.c).

use std::sync::Arc;

use bytes::Bytes;
use codec::checksum::{Salt, compute, fold_for_mac, seal, seal_beside_mac};
use codec::compress::compress;
use format::{
    BlockPointer, Checksum, Compression, CryptParams, DVAS_PER_POINTER, Dva,
    EMBEDDED_PAYLOAD_BYTES, Endian, HolePointer, MAX_BLOCK_BYTES, ObjectType, ObjsetId,
    RegularPointer, SECTOR_BYTES, Txg,
};
use futures::future::join_all;

use super::check::is_heavy;
use super::crypt::{CRYPT_ON_TASK_BYTES, Lock};
use super::suspend::name_of;
use super::{LogPlaces, Pipeline, WritePolicy};
use crate::alloc::Request;
use crate::cache::CacheKey;
use crate::error::ZioError;
use vdev::{AllocClass, AllocUnits, IoContext, Priority, WriteFailure};

/// Blocks longer than this are compressed by a CPU worker.
const COMPRESS_ON_WORKER_BYTES: usize = 16 << 10;

/// How often a block that cannot be written goes elsewhere before the pool is suspended.
const ELSEWHERE_MAX: usize = 2;

/// Bytes for a place.
pub(super) struct Piece {
    pub(super) dva: Dva,
    pub(super) data: Bytes,
}

/// Where a block goes.
struct Choice {
    places: [Option<Dva>; DVAS_PER_POINTER],
    /// What is still to be written.
    pieces: Vec<Piece>,
    /// What was.
    written: Vec<Dva>,
    /// It was allocated for this, and nobody else knows of it.
    is_new: bool,
}

impl Choice {
    /// Whether the devices work to which something could not be written.
    fn is_on_usable(&self, pipeline: &Pipeline) -> bool {
        self.pieces.iter().all(|piece| {
            let top = pipeline.tree.top(piece.dva.vdev());
            top.is_some_and(|top| top.state().0.is_usable())
        })
    }

    /// Frees what was allocated.
    fn give_back(self, pipeline: &Pipeline, txg: Txg) {
        if self.is_new {
            let pieces = self.pieces.iter().map(|piece| piece.dva);
            for dva in pieces.chain(self.written) {
                pipeline.allocator.unallocate(txg, &dva);
            }
        }
    }
}

/// A block after compression.
enum Prepared {
    Hole,
    Embedded {
        payload: Vec<u8>,
        compression: Compression,
    },
    Stored(Stored),
}

/// What is stored of a block.
pub(super) struct Stored {
    pub(super) data: Bytes,
    compression: Compression,
    checksum: [u64; 4],
    pub(super) crypt: Option<CryptParams>,
}

impl Stored {
    /// The block's pointer, but for its places.
    pub(super) fn pointer(
        &self,
        txg: Txg,
        lsize_bytes: u64,
        policy: &WritePolicy,
    ) -> RegularPointer {
        RegularPointer {
            dvas: [None; DVAS_PER_POINTER],
            lsize_bytes,
            psize_bytes: self.data.len() as u64,
            compression: self.compression,
            checksum_kind: policy.checksum,
            object_type: policy.object_type,
            level: policy.level,
            dedup: false,
            uses_crypt: policy.encrypted,
            rewritten: false,
            endian: Endian::Little,
            fill: policy.fill,
            logical_birth: txg,
            physical_birth: txg,
            checksum: self.checksum,
            crypt: self.crypt,
        }
    }
}

/// What compression needs to know.
#[derive(Clone)]
struct Preparation {
    policy: WritePolicy,
    units: AllocUnits,
    salt: Arc<Salt>,
    lock: Option<Lock>,
}

/// An error that only a mistake in this program can cause.
pub(super) fn bug(error: impl std::fmt::Display) -> ZioError {
    ZioError::Corrupt {
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
        let most = most - most % self.units.step_bytes as usize;
        if most < self.units.min_bytes as usize {
            EMBEDDED_PAYLOAD_BYTES
        } else {
            most
        }
    }

    fn run(&self, data: Bytes) -> Result<Prepared, ZioError> {
        let policy = &self.policy;
        let mut stored = data.clone();
        let mut compression = Compression::Off;
        if policy.compression != Compression::Off {
            if is_zero(&data) {
                return Ok(Prepared::Hole);
            }
            let max = self.compressed_max(data.len());
            let compressed = compress(policy.compression, policy.zstd_level, &data, max)
                .unwrap_or_else(|error| {
                    tracing::warn!(%error, "a block is stored uncompressed");
                    None
                });
            if let Some(mut compressed) = compressed
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
                let rounded = self.units.round_up(compressed.len());
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
            let lock = match policy.dedup {
                Some(_) => lock.for_dedup(&stored),
                None => lock.clone(),
            };
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
        Ok(Prepared::Stored(Stored {
            data: stored,
            compression,
            checksum,
            crypt,
        }))
    }
}

impl Pipeline {
    /// Writes a block: compresses, allocates, checksums; returns its pointer. All zeros become a hole
    /// (unless compression is off). While the pool is suspended this waits.
    ///
    /// # Errors
    /// [`ZioError::NoSpace`]; [`ZioError::ReadOnly`]; what [`Self::abandon`] said.
    ///
    /// # Panics
    /// When `data` is not of 512 bytes to 16 MiB in whole sectors, or the policy names a checksum that is
    /// not stored in pointers: bugs in the caller.
    pub async fn write(
        &self,
        txg: Txg,
        data: Bytes,
        policy: &WritePolicy,
    ) -> Result<BlockPointer, ZioError> {
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
    ) -> Result<BlockPointer, ZioError> {
        self.write_or_rewrite(txg, Some(old), data, policy).await
    }

    async fn write_or_rewrite(
        &self,
        txg: Txg,
        old: Option<&BlockPointer>,
        data: Bytes,
        policy: &WritePolicy,
    ) -> Result<BlockPointer, ZioError> {
        let lsize = data.len() as u64;
        assert!(
            lsize.is_multiple_of(SECTOR_BYTES) && (SECTOR_BYTES..=MAX_BLOCK_BYTES).contains(&lsize),
            "a block of {lsize} bytes cannot be stored"
        );
        let policy = stored_kinds(policy);
        self.check_writable()?;
        let lock = self.lock_for(&policy)?;
        let _place = self.writes.acquire().await.map_err(|_| ZioError::Closing)?;
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
            Prepared::Stored(stored) => {
                if let Some(dedup) = policy.dedup {
                    let shared = self.write_deduplicated(txg, &data, &stored, &policy, dedup);
                    if let Some(bp) = shared.await? {
                        return Ok(bp);
                    }
                }
                let dvas = self
                    .write_somewhere(txg, old, &stored.data, &policy, true)
                    .await?;
                let bp = BlockPointer::regular(&RegularPointer {
                    dvas,
                    ..stored.pointer(txg, lsize, &policy)
                })?;
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
    ) -> Result<Prepared, ZioError> {
        let protected = lock.is_some();
        let preparation = Preparation {
            policy: *policy,
            units: self.tree.alloc_units(),
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
    pub(super) fn class_of(&self, stored_bytes: usize, policy: &WritePolicy) -> AllocClass {
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
    async fn choose(
        &self,
        txg: Txg,
        old: Option<&BlockPointer>,
        stored: &Bytes,
        policy: &WritePolicy,
        gang: bool,
    ) -> Result<Choice, ZioError> {
        let copies = usize::from(policy.copies.clamp(1, 3));
        let in_place = old.filter(|old| {
            !old.is_hole()
                && !old.is_embedded()
                && old.logical_birth() == txg
                && old.physical_birth() == txg
                && !old.is_dedup()
                && old.psize_bytes() == stored.len() as u64
                && (old.is_gang() || old.copies() == copies)
        });
        if let Some(old) = in_place.filter(|old| old.is_gang()) {
            let (places, pieces) = self.plan_gang_rewrite(txg, old, stored, policy).await?;
            return Ok(Choice {
                places,
                pieces,
                written: Vec::new(),
                is_new: false,
            });
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
                    Err(ZioError::NoSpace { .. }) if gang => {
                        let (places, pieces) = self.plan_gang(txg, stored, policy).await?;
                        return Ok(Choice {
                            places,
                            pieces,
                            written: Vec::new(),
                            is_new: true,
                        });
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
        Ok(Choice {
            places,
            pieces,
            written: Vec::new(),
            is_new: in_place.is_none(),
        })
    }

    /// Writes a block where it should go. Where that fails though its device works it goes elsewhere; then the pool is
    /// suspended, and what is left is written when it resumes (`zio_done`: `ZIO_REEXECUTE_NOW`). In pieces only with `gang`.
    pub(super) async fn write_somewhere(
        &self,
        txg: Txg,
        old: Option<&BlockPointer>,
        stored: &Bytes,
        policy: &WritePolicy,
        gang: bool,
    ) -> Result<[Option<Dva>; DVAS_PER_POINTER], ZioError> {
        let io = IoContext {
            bookmark: policy.bookmark,
            priority: policy.priority,
            birth: txg,
            ..IoContext::default()
        };
        let mut choice = loop {
            match self.choose(txg, old, stored, policy, gang).await {
                // There may be space on what does not work, such as a device that was cleared too soon.
                Err(ZioError::NoSpace { .. }) if self.tree.lacks_tops() => {
                    let reason = "devices that new blocks need do not work".to_owned();
                    self.suspend_and_wait(ZioError::Suspended { reason })
                        .await?;
                }
                chosen => break chosen?,
            }
        };
        // Places that were given up stay taken meanwhile, so that none is chosen again.
        let mut bad = Vec::new();
        let result = loop {
            let Err(failure) = self.write_pieces(&mut choice, &io).await else {
                break Ok(choice.places);
            };
            if failure.halted {
                match self.wait_resumed().await {
                    Ok(()) => continue,
                    Err(error) => break Err(error),
                }
            }
            let reason = failure.cause;
            if bad.len() < ELSEWHERE_MAX && choice.is_on_usable(self) {
                match self.choose(txg, None, stored, policy, gang).await {
                    Ok(other) => {
                        tracing::warn!(
                            reason,
                            "a block cannot be written there; it goes elsewhere"
                        );
                        bad.push(std::mem::replace(&mut choice, other));
                        continue;
                    }
                    // Nowhere else.
                    Err(ZioError::NoSpace { .. }) => {}
                    Err(error) => break Err(error),
                }
            }
            bad.drain(..).for_each(|choice| choice.give_back(self, txg));
            self.suspend(ZioError::Suspended { reason });
            if let Err(error) = self.wait_resumed().await {
                break Err(error);
            }
        };
        bad.drain(..).for_each(|choice| choice.give_back(self, txg));
        result
    }

    /// Writes all pieces that are left. Tells why, if some fail.
    async fn write_pieces(&self, choice: &mut Choice, io: &IoContext) -> Result<(), WriteFailure> {
        let pieces = std::mem::take(&mut choice.pieces);
        let results = join_all(pieces.iter().map(|piece| self.write_piece(piece, io))).await;
        let mut failure: Option<WriteFailure> = None;
        for (piece, result) in pieces.into_iter().zip(results) {
            match result {
                Ok(()) => choice.written.push(piece.dva),
                Err(error) => {
                    failure = Some(WriteFailure {
                        halted: error.halted || failure.is_some_and(|failure| failure.halted),
                        cause: format!("{}: {}", piece.dva, error.cause),
                    });
                    choice.pieces.push(piece);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn write_piece(&self, piece: &Piece, io: &IoContext) -> Result<(), WriteFailure> {
        let dva = &piece.dva;
        self.tree
            .write_block(dva.vdev(), dva.offset_bytes(), piece.data.clone(), io)
            .await
    }

    /// Allocates an intent log block of exactly `size_bytes` (`zio_alloc_zil`): on log vdevs if `places` says so and there is
    /// room, else among the data if that is allowed. Its checksum
    /// words are zero: the caller sets them to the log's nonce and sequence
    /// ([`BlockPointer::set_checksum`]) before writing. When the key of `objset` is loaded, the block will be encrypted.
    ///
    /// # Errors
    /// [`ZioError::NoSpace`]: then wait for the txg instead. [`ZioError::Suspended`] while the pool is suspended.
    pub async fn allocate_log_block(
        &self,
        txg: Txg,
        size_bytes: u64,
        objset: ObjsetId,
        places: LogPlaces,
    ) -> Result<BlockPointer, ZioError> {
        self.check_writable()?;
        if let Some(error) = self.suspended() {
            return Err(error);
        }
        let classes = [
            (places.on_log_devices, AllocClass::Log),
            (places.among_data, AllocClass::Normal),
        ];
        let mut found = Err(ZioError::NoSpace { size_bytes, txg });
        for (is_allowed, class) in classes {
            if !is_allowed || found.is_ok() {
                continue;
            }
            let request = Request {
                txg,
                psize_bytes: size_bytes,
                copies: 1,
                class,
                fallback: false,
                gang: false,
            };
            found = self.allocator.allocate(&request).await;
        }
        let dvas = found?;
        for dva in dvas.iter().flatten() {
            self.allocator.note_log_held(dva);
        }
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
    /// [`vdev::VdevError::VdevUnavailable`] when it could not be written, or a device did not take it that a crash would let be
    /// trusted, [`ZioError::Suspended`]: then wait for the txg instead.
    pub async fn write_log_block(
        &self,
        bp: &BlockPointer,
        mut data: Vec<u8>,
        flush: bool,
    ) -> Result<(), ZioError> {
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
        let unavailable = |cause: String| {
            ZioError::Vdev(vdev::VdevError::VdevUnavailable {
                vdev: name_of(bp),
                cause,
            })
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
                    true => Ok(self.tree.settle_written(dva.vdev())?),
                    false => Ok(()),
                })
                .inspect_err(|_| self.leave_failed_logs())?;
        }
        if flush {
            self.tree.check_recorded(bp)?;
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
