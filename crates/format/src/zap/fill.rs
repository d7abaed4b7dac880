//! A fat ZAP whose entries are all known before it is made.
//!
//! Entries that are added one by one split leaves on their way, and each is hashed, looked for and
//! moved. Here they come sorted by their hashes: a leaf gets all that have one prefix, and the
//! prefix is as short as the leaf's room allows. What comes of it is what splitting ends with, so
//! that the ZAP can be changed like any other.
//!
//! Blocks: the header, the leaves by rising hash, then the pointer table if the header has no room
//! for it.

use super::leaf::{ARRAY_BYTES, ZapLeaf};
use super::{
    FatZapHeader, ZapFlags, ZapKeyKind, ZapTable, check_name, check_shift, embedded_table_shift,
    zap_hash_index,
};
use crate::error::{Result, does_not_fit};

/// Bits that a leaf's prefix may have: a table of a million pointers (8 MiB). More are needed only
/// where hashes are not spread.
const PREFIX_BITS_MAX: u32 = 20;

/// An entry of a ZAP that is filled: a name, and one 64-bit integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapFill<'a> {
    /// Hash of the name.
    pub hash: u64,
    /// The name, without its zero byte.
    pub name: &'a [u8],
    /// The value.
    pub value: u64,
}

impl ZapFill<'_> {
    /// Chunks of a leaf that it takes: itself, its name with a zero byte, and its value.
    fn chunks(&self) -> usize {
        1 + (self.name.len() + 1).div_ceil(ARRAY_BYTES) + 1
    }
}

/// All blocks of a fat ZAP that has these entries, which are sorted by hash, each name once.
///
/// # Errors
/// [`crate::FormatError::DoesNotFit`] when a name is none that ZAPs hold, the block size is none
/// that they have, the entries are not sorted, or too many have nearly the same hash.
pub fn fill_fat_zap(
    block_shift: u32,
    salt: u64,
    normalization: u64,
    entries: &[ZapFill<'_>],
) -> Result<Vec<Vec<u8>>> {
    check_shift(block_shift)?;
    if !entries.is_sorted_by_key(|entry| entry.hash) {
        let found = entries.len() as u64;
        return Err(does_not_fit("zap", "le_hash", found, "hashes that rise"));
    }
    let mut filler = Filler {
        block_shift,
        is_sorted: normalization != 0,
        leaves: Vec::new(),
    };
    filler.add(entries, 0, 0)?;
    let leaves = filler.leaves;

    let bits = leaves.iter().map(ZapLeaf::prefix_bits).max().unwrap_or(0);
    let mut table = ZapTable {
        shift: bits.max(embedded_table_shift(block_shift)),
        ..ZapTable::default()
    };
    let pointers = pointer_table(&leaves, table.shift);
    let block_bytes = 1usize << block_shift;
    let first_free = 1 + leaves.len() as u64;
    let is_embedded = pointers.len() < block_bytes;
    if !is_embedded {
        table.first_block = first_free;
        table.blocks = (pointers.len() / block_bytes) as u64;
    }
    let header = FatZapHeader {
        table,
        free_block: first_free + table.blocks,
        leaves: leaves.len() as u64,
        entries: entries.len() as u64,
        salt,
        normalization,
        flags: ZapFlags::NONE,
    };
    let mut head = vec![0; block_bytes];
    header.encode_into(&mut head)?;
    if is_embedded {
        head[block_bytes / 2..].copy_from_slice(&pointers);
    }
    let mut blocks = vec![head];
    blocks.extend(leaves.into_iter().map(ZapLeaf::into_bytes));
    if !is_embedded {
        blocks.extend(pointers.chunks(block_bytes).map(<[u8]>::to_vec));
    }
    Ok(blocks)
}

/// A table of `1 << shift` pointers: each leaf, from block 1 on, as often as its prefix is short.
fn pointer_table(leaves: &[ZapLeaf<Vec<u8>>], shift: u32) -> Vec<u8> {
    let mut pointers = Vec::with_capacity(8 << shift);
    for (block, leaf) in (1u64..).zip(leaves) {
        for _ in 0..1u64 << (shift - leaf.prefix_bits()) {
            pointers.extend_from_slice(&block.to_le_bytes());
        }
    }
    pointers
}

struct Filler {
    block_shift: u32,
    /// Whether chains in leaves are sorted, as they are in ZAPs that normalize names.
    is_sorted: bool,
    leaves: Vec<ZapLeaf<Vec<u8>>>,
}

impl Filler {
    /// Adds the leaves of the entries whose hashes begin with a prefix of so many bits.
    fn add(&mut self, entries: &[ZapFill<'_>], prefix: u64, bits: u32) -> Result<()> {
        let mut leaf = ZapLeaf::new(self.block_shift, self.is_sorted, ZapKeyKind::Name)?;
        let chunks: usize = entries.iter().map(ZapFill::chunks).sum();
        if chunks > leaf.chunk_count() {
            if bits == PREFIX_BITS_MAX {
                let found = entries.len() as u64;
                return Err(does_not_fit("zap", "le_hash", found, "hashes that differ"));
            }
            let bits = bits + 1;
            let middle = entries.partition_point(|entry| zap_hash_index(entry.hash, bits) & 1 == 0);
            let (low, high) = entries.split_at(middle);
            self.add(low, prefix << 1, bits)?;
            return self.add(high, (prefix << 1) | 1, bits);
        }
        leaf.set_prefix(prefix, bits as u16);
        let mut key = Vec::new();
        let mut before = None;
        for entry in entries {
            check_name(entry.name)?;
            let cd = match before {
                Some((hash, cd)) if hash == entry.hash => cd + 1,
                _ => 0,
            };
            before = Some((entry.hash, cd));
            key.clear();
            key.extend_from_slice(entry.name);
            key.push(0);
            let value = entry.value.to_be_bytes();
            let length = key.len() as u16;
            leaf.put_entry(entry.hash, cd, (&key, length), (&value, 1, 8))?;
        }
        self.leaves.push(leaf);
        Ok(())
    }
}
