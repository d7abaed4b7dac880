//! MACs of indirect blocks and of object sets' roots.

use format::{BlockPointer, Endian, OBJSET_FLAG_USER_ACCOUNTING, ObjectType};
use sha2::{Digest, Sha512};

use super::layout::{DnodeFields, pointer_identity};
use super::{CryptError, DataKey, MAC_BYTES};

/// Versions of [`DataKey`]s, newest first.
const VERSIONS: [u64; 2] = [1, 0];

fn sum_of_macs(block: &[u8], endian: Endian, version: u64) -> [u8; MAC_BYTES] {
    let mut sum = Sha512::new();
    for pointer in BlockPointer::decode_all(block, endian) {
        sum.update(pointer_identity(&pointer, version));
    }
    let digest: [u8; 64] = sum.finalize().into();
    *digest.first_chunk().expect("64 bytes start with 16")
}

/// The sum of the MACs in an indirect block, which its pointer keeps in the place of a MAC:
/// SHA-512, first 16 bytes, over each pointer's portable properties and MAC
/// (`zio_crypt_do_indirect_mac_checksum`).
pub fn mac_of_macs(block: &[u8], endian: Endian) -> [u8; MAC_BYTES] {
    sum_of_macs(block, endian, VERSIONS[0])
}

/// Whether that is `expected`, also as the first version of the format had it: no key tells which
/// it is.
pub fn mac_of_macs_holds(block: &[u8], endian: Endian, expected: &[u8; MAC_BYTES]) -> bool {
    VERSIONS
        .iter()
        .any(|version| sum_of_macs(block, endian, *version) == *expected)
}

/// The MACs in an object set's root block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjsetMacs {
    /// Of the object of dnodes: raw sends keep it.
    pub portable: [u8; 32],
    /// Of the objects of users', groups' and projects' space; zeros when there are none.
    pub local: [u8; 32],
}

impl ObjsetMacs {
    /// Where they are in the block (`os_portable_mac` and `os_local_mac` of `objset_phys_t`).
    pub const OFFSET: usize = 512 + 192 + 16;

    /// Those that the block holds.
    pub fn stored(block: &[u8]) -> Option<Self> {
        let (portable, rest) = block.get(Self::OFFSET..)?.split_first_chunk()?;
        Some(ObjsetMacs {
            portable: *portable,
            local: *rest.first_chunk()?,
        })
    }

    /// Puts them into the block.
    ///
    /// # Panics
    /// When it is too short, in which case there were no MACs to compute.
    pub fn store(&self, block: &mut [u8]) {
        block[Self::OFFSET..Self::OFFSET + 32].copy_from_slice(&self.portable);
        block[Self::OFFSET + 32..Self::OFFSET + 64].copy_from_slice(&self.local);
    }

    /// Whether a block that holds `stored` is right when these were computed. A missing local MAC
    /// where one is stored is let pass, as OpenZFS does (`spa_do_crypt_objset_mac_abd`,
    /// module/zfs/dsl_crypt.c).
    pub fn accept(&self, stored: &ObjsetMacs) -> bool {
        self.portable == stored.portable && (self.local == stored.local || self.local == [0; 32])
    }
}

/// What an object set's flags and dnodes give (`zio_crypt_do_objset_hmacs`): over words of one
/// order whatever the block's, because blocks may be written anew, without the key, by a machine of
/// another order.
pub(super) fn objset_macs(
    key: &DataKey,
    block: &[u8],
    endian: Endian,
) -> Result<ObjsetMacs, CryptError> {
    let bad = CryptError::Layout {
        what: "root of an object set",
        length_bytes: block.len(),
    };
    let word = |at: usize| {
        let raw = block.get(at..).and_then(|rest| rest.first_chunk::<8>());
        raw.map(|raw| endian.u64(*raw)).ok_or(bad)
    };
    let kind = word(704)?;
    let flags = word(712)?;
    ObjsetMacs::stored(block).ok_or(bad)?;
    // A dnode that is not there adds nothing.
    let dnode = |at: usize| -> Result<Option<Vec<u8>>, CryptError> {
        let Some(bytes) = block.get(at..at + 512) else {
            return Ok(None);
        };
        let dnode = DnodeFields::new(bytes).ok_or(bad)?;
        if dnode.object_type() == ObjectType::NONE {
            return Ok(None);
        }
        let mut out = dnode.portable_core(endian == Endian::Big);
        for pointer in dnode.block_pointers(endian) {
            out.extend_from_slice(&pointer_identity(&pointer, key.version()));
        }
        Ok(Some(out))
    };
    let first_half = |digest: [u8; 64]| *digest.first_chunk().expect("64 bytes start with 32");
    let little = |word: u64| Endian::Little.u64_bytes(word);

    // The kind alone goes in big-endian. No flag is portable (`OBJSET_CRYPT_PORTABLE_FLAGS_MASK`).
    let meta = dnode(0)?.unwrap_or_default();
    let portable = first_half(key.hmac(&[&Endian::Big.u64_bytes(kind), &little(0), &meta]));

    let used = [dnode(1024)?, dnode(1536)?, dnode(2048)?];
    let counts = flags & OBJSET_FLAG_USER_ACCOUNTING != 0;
    // Projects' space alone does not count.
    let local = if counts && (used[0].is_some() || used[1].is_some()) {
        let parts = [
            little(flags).to_vec(),
            used[0].clone().unwrap_or_default(),
            used[1].clone().unwrap_or_default(),
            used[2].clone().unwrap_or_default(),
        ];
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        first_half(key.hmac(&parts))
    } else {
        [0; 32]
    };
    Ok(ObjsetMacs { portable, local })
}
