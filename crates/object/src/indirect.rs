//! The cache of level-1 indirect blocks: a direct-mapped table, so that finding the pointer of a
//! block that was read lately costs one look.
//!
//! The blocks' bytes are shared with the pool's cache; the table only keeps them reachable under
//! (object, number) without walking down the tree. An entry is good for the generation of the
//! object's tree that it was read under, and no other.

use bytes::Bytes;
use format::{BLOCK_POINTER_BYTES, BlockPointer, Endian};
use parking_lot::Mutex;

struct Entry {
    object: u64,
    number: u64,
    generation: u64,
    endian: Endian,
    data: Bytes,
}

pub(crate) struct IndirectCache {
    entries: Vec<Mutex<Option<Entry>>>,
}

impl IndirectCache {
    pub(crate) fn new(entries: usize) -> Self {
        IndirectCache {
            entries: (0..entries.max(1)).map(|_| Mutex::new(None)).collect(),
        }
    }

    fn place(&self, object: u64, number: u64) -> &Mutex<Option<Entry>> {
        let mix = (object ^ number.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mix >> 32) as usize % self.entries.len();
        &self.entries[index]
    }

    /// Pointer `index` of the level-1 block `number`.
    pub(crate) fn get(
        &self,
        object: u64,
        number: u64,
        generation: u64,
        index: usize,
    ) -> Option<BlockPointer> {
        let entry = self.place(object, number).lock();
        let entry = entry.as_ref()?;
        if entry.object != object || entry.number != number || entry.generation != generation {
            return None;
        }
        child(&entry.data, entry.endian, index)
    }

    pub(crate) fn put(
        &self,
        object: u64,
        number: u64,
        generation: u64,
        endian: Endian,
        data: Bytes,
    ) {
        *self.place(object, number).lock() = Some(Entry {
            object,
            number,
            generation,
            endian,
            data,
        });
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        for entry in &self.entries {
            *entry.lock() = None;
        }
    }
}

/// Pointer `index` of an indirect block.
pub(crate) fn child(data: &[u8], endian: Endian, index: usize) -> Option<BlockPointer> {
    let start = index.checked_mul(BLOCK_POINTER_BYTES)?;
    let bytes = data.get(start..start + BLOCK_POINTER_BYTES)?;
    BlockPointer::decode_slice(bytes, endian).ok()
}
