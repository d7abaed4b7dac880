//! From data to what is stored of it: compression, encryption, checksum (`zio_write_compress`,
//! `zio_checksum_generate`; module/zfs/zio.c). Pure computation, done on a CPU worker when it is
//! long.

use std::sync::Arc;

use bytes::Bytes;
use codec::checksum::{Salt, compute, fold_for_mac};
use codec::compress::compress;
use device::World;
use format::{
    Checksum, Compression, CryptParams, DVAS_PER_POINTER, EMBEDDED_PAYLOAD_BYTES, Endian,
    RegularPointer, Txg,
};
use vdev::AllocUnits;

use super::check::is_heavy;
use super::keys::{CRYPT_ON_TASK_BYTES, Lock};
use super::{BlockData, WritePolicy};
use crate::error::{ZioError, bug};

/// Blocks longer than this are compressed by a CPU worker.
const COMPRESS_ON_WORKER_BYTES: usize = 16 << 10;

/// A block after compression.
pub(super) enum Prepared {
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
    /// The block's pointer, but for its DVAs.
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

/// What it takes to prepare a block.
#[derive(Clone)]
pub(super) struct Preparation {
    pub(super) policy: WritePolicy,
    pub(super) units: AllocUnits,
    pub(super) salt: Arc<Salt>,
    pub(super) lock: Option<Lock>,
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

    /// The checksum of what is stored, with the MAC in its second half where there is one.
    fn checksum(&self, stored: &[u8], mac: Option<[u8; 16]>) -> Result<[u64; 4], ZioError> {
        let kind = self.policy.checksum;
        let checksum = compute(kind, Endian::Little, stored, Some(&self.salt)).map_err(bug)?;
        let Some(mac) = mac else {
            return Ok(checksum);
        };
        let [a, b] = fold_for_mac(kind, &checksum);
        let mut mac = Endian::Little.words(&mac);
        Ok([a, b, mac.next().unwrap_or(0), mac.next().unwrap_or(0)])
    }

    /// A compressed form in whole allocation units, zeros behind, as what we compress has them;
    /// `None` where that is no shorter than the data.
    fn in_units(&self, packed: Bytes, length: usize) -> Option<Bytes> {
        let rounded = self.units.round_up(packed.len());
        if rounded >= length {
            return None;
        }
        if rounded == packed.len() {
            return Some(packed);
        }
        let mut padded = packed.to_vec();
        padded.resize(rounded, 0);
        Some(padded.into())
    }

    fn run(&self, block: BlockData) -> Result<Prepared, ZioError> {
        let policy = &self.policy;
        let BlockData {
            bytes: data,
            packed,
        } = block;
        if let Some(raw) = policy.raw {
            return Ok(Prepared::Stored(Stored {
                checksum: self.checksum(&data, raw.mac)?,
                data,
                compression: raw.compression,
                crypt: raw.crypt,
            }));
        }
        let mut stored = data.clone();
        let mut compression = Compression::Off;
        if policy.compression != Compression::Off && is_zero(&data) {
            return Ok(Prepared::Hole);
        }
        let packed = packed.and_then(|(packed, kind)| {
            let packed = self.in_units(packed, data.len());
            packed.map(|packed| (packed, kind))
        });
        if let Some(packed) = packed {
            (stored, compression) = packed;
        } else if policy.compression != Compression::Off {
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
            let locked = lock.apply(policy.object_type, &data, stored).map_err(bug)?;
            (stored, crypt, mac) = (locked.stored, locked.params, locked.mac);
        }
        let checksum = self.checksum(&stored, mac)?;
        Ok(Prepared::Stored(Stored {
            data: stored,
            compression,
            checksum,
            crypt,
        }))
    }

    /// [`Self::run`], here or on a CPU worker.
    pub(super) async fn run_on(
        self,
        world: &World,
        block: BlockData,
    ) -> Result<Prepared, ZioError> {
        let length = block.bytes.len();
        // What comes compressed and does not fit is compressed all the same.
        let fits = |(packed, _): &(Bytes, Compression)| self.units.round_up(packed.len()) < length;
        let is_packed = block.packed.as_ref().is_some_and(fits);
        let compresses = self.policy.compression != Compression::Off && !is_packed;
        let heavy = (compresses && length > COMPRESS_ON_WORKER_BYTES)
            || self.lock.is_some() && length > CRYPT_ON_TASK_BYTES
            || is_heavy(self.policy.checksum, length);
        if heavy {
            world.compute(move || self.run(block)).await
        } else {
            self.run(block)
        }
    }
}

/// The policy with property values replaced by what they stand for.
pub(super) fn stored_kinds(policy: &WritePolicy) -> WritePolicy {
    let mut out = *policy;
    if matches!(out.checksum, Checksum::On | Checksum::Inherit) {
        out.checksum = Checksum::Fletcher4;
    }
    if matches!(out.compression, Compression::On | Compression::Inherit) {
        out.compression = Compression::Lz4;
    }
    if out.encrypted && out.level == 0 && out.object_type.is_encrypted() {
        // The third DVA's words hold salt and IV.
        out.copies = out.copies.min(2);
    }
    assert!(
        !out.checksum.is_embedded(),
        "{} is not a checksum of ordinary blocks",
        out.checksum
    );
    out
}
