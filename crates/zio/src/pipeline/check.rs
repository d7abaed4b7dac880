//! Whether bytes read from disk are those of the block that was asked for.

use std::sync::Arc;

use bytes::Bytes;
use codec::checksum::{
    self, Salt, fold_for_mac, gang_verifier, verify_embedded, verify_embedded_beside_mac,
};
use device::{BoxFuture, World};
use format::{BlockPointer, Checksum, Endian, GANG_HEADER_BYTES, ObjectType};
use parking_lot::RwLock;
use vdev::Verify;

/// Blocks longer than this are verified by a CPU worker when the checksum is a fast one.
const FAST_ON_WORKER_BYTES: usize = 256 << 10;
/// The same, for cryptographic checksums.
const SLOW_ON_WORKER_BYTES: usize = 32 << 10;

/// Whether computing this checksum of so much data is better left to a CPU worker.
pub(super) fn is_heavy(kind: Checksum, length: usize) -> bool {
    let limit = match kind {
        Checksum::Off
        | Checksum::NoParity
        | Checksum::Fletcher2
        | Checksum::Fletcher4
        | Checksum::Zilog
        | Checksum::Zilog2 => FAST_ON_WORKER_BYTES,
        _ => SLOW_ON_WORKER_BYTES,
    };
    length > limit
}

/// The pool's key of salted checksums, which is known only after the MOS was read.
pub(super) struct PoolSalt(RwLock<Arc<Salt>>);

impl PoolSalt {
    pub(super) fn new(salt: [u8; 32]) -> Arc<Self> {
        Arc::new(PoolSalt(RwLock::new(Arc::new(Salt::new(salt)))))
    }

    pub(super) fn set(&self, salt: [u8; 32]) {
        *self.0.write() = Arc::new(Salt::new(salt));
    }

    pub(super) fn get(&self) -> Arc<Salt> {
        self.0.read().clone()
    }
}

#[derive(Clone)]
enum Expected {
    /// In the pointer.
    Pointer([u64; 4]),
    /// Only half of it is in the pointer, beside a MAC.
    Half([u64; 2]),
    /// In the block, with this verifier.
    Embedded([u64; 4]),
    /// The same, in a gang header, where half of it is left out if the block is encrypted.
    GangHeader { words: [u64; 4], beside_mac: bool },
    /// The same, and half of it is a MAC (encrypted intent logs).
    EmbeddedHalf([u64; 4]),
}

/// The check of one block.
#[derive(Clone)]
pub(super) struct BlockCheck {
    world: World,
    kind: Checksum,
    endian: Endian,
    expected: Expected,
    salt: Arc<Salt>,
}

impl BlockCheck {
    /// Of the block that `bp` points to, or of the gang header if it is one.
    pub(super) fn new(bp: &BlockPointer, world: &World, salt: Arc<Salt>) -> Self {
        if !bp.is_gang() {
            return Self::of_content(bp, world, salt);
        }
        BlockCheck {
            world: world.clone(),
            kind: Checksum::GangHeader,
            endian: bp.endian(),
            expected: Expected::GangHeader {
                words: gang_words(bp),
                beside_mac: has_half_sum(bp.uses_crypt(), bp.object_type()),
            },
            salt,
        }
    }

    /// Of all that is stored of a block, also where that is in pieces.
    pub(super) fn of_content(bp: &BlockPointer, world: &World, salt: Arc<Salt>) -> Self {
        let kind = bp.checksum_kind();
        let expected = if kind.is_embedded() && bp.uses_crypt() {
            Expected::EmbeddedHalf(bp.checksum())
        } else if kind.is_embedded() {
            Expected::Embedded(bp.checksum())
        } else if bp.uses_crypt() && bp.object_type() != ObjectType::OBJSET {
            let sum = bp.checksum();
            Expected::Half([sum[0], sum[1]])
        } else {
            Expected::Pointer(bp.checksum())
        };
        BlockCheck {
            world: world.clone(),
            kind,
            endian: bp.endian(),
            expected,
            salt,
        }
    }

    pub(super) fn holds(&self, data: &[u8]) -> bool {
        match &self.expected {
            _ if matches!(self.kind, Checksum::Off | Checksum::NoParity) => true,
            Expected::Pointer(sum) => {
                checksum::verify(self.kind, self.endian, data, Some(&self.salt), sum).is_ok()
            }
            Expected::Half(half) => {
                checksum::compute(self.kind, self.endian, data, Some(&self.salt))
                    .is_ok_and(|sum| fold_for_mac(self.kind, &sum) == *half)
            }
            Expected::GangHeader { words, beside_mac } => {
                gang_header_in(words, *beside_mac, data).is_some()
            }
            Expected::Embedded(verifier) => verify_embedded(self.kind, verifier, data).is_ok(),
            Expected::EmbeddedHalf(verifier) => {
                verify_embedded_beside_mac(self.kind, verifier, data).is_ok()
            }
        }
    }
}

/// The gang header in what was read of its place, which may be longer: the whole of it, or its
/// first 512 bytes, as of headers from before `dynamic_gang_header` was active
/// (`zio_checksum_error`, module/zfs/zio_checksum.c). `None` when neither is right.
pub(super) fn gang_header<'a>(bp: &BlockPointer, data: &'a [u8]) -> Option<&'a [u8]> {
    let beside_mac = has_half_sum(bp.uses_crypt(), bp.object_type());
    gang_header_in(&gang_words(bp), beside_mac, data)
}

fn gang_header_in<'a>(words: &[u64; 4], beside_mac: bool, data: &'a [u8]) -> Option<&'a [u8]> {
    let kind = Checksum::GangHeader;
    // Before they knew better, releases of Millpond stored the whole sum.
    let is_right = |part: &&[u8]| {
        verify_embedded(kind, words, part).is_ok()
            || beside_mac && verify_embedded_beside_mac(kind, words, part).is_ok()
    };
    let narrow = || data.get(..GANG_HEADER_BYTES).filter(is_right);
    Some(data).filter(is_right).or_else(narrow)
}

/// Whether the header that an encrypted block's pointer leads to has half of its sum, as if the
/// other half were a MAC (`zio_checksum_compute`). Headers further down are not of that kind.
pub(super) fn has_half_sum(uses_crypt: bool, object_type: ObjectType) -> bool {
    uses_crypt && object_type != ObjectType::OBJSET
}

/// What a gang header's checksum starts from.
pub(super) fn gang_words(bp: &BlockPointer) -> [u64; 4] {
    let dva = bp.dva(0);
    let vdev = dva.map_or(0, |dva| u64::from(dva.vdev().get()));
    let offset = dva.map_or(0, |dva| dva.offset_bytes());
    gang_verifier(vdev, offset, bp.physical_birth().get())
}

impl Verify for BlockCheck {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        if is_heavy(self.kind, data.len()) {
            let (check, data) = (self.clone(), data.clone());
            return Box::pin(async move {
                let world = check.world.clone();
                world.compute(move || check.holds(&data)).await
            });
        }
        Box::pin(std::future::ready(self.holds(data)))
    }

    fn can_tell(&self) -> bool {
        !matches!(self.kind, Checksum::Off | Checksum::NoParity)
    }
}
