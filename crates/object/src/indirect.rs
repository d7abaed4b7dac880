//! The cache of level-1 indirect blocks: a direct-mapped table, so that finding the pointer of a
//! block that was read lately costs one look.
//!
//! The blocks' bytes are shared with the pool's cache; the table only keeps them reachable under
//! (object, number) without walking down the tree. An entry is good for the generation of the
//! object's tree that it was read under, and no other. What it keeps is charged, as the cache may
//! have let go of it, and given back when it is asked for ([`Holder`]).

use std::sync::{Arc, Weak};

use bytes::Bytes;
use format::{BLOCK_POINTER_BYTES, BlockPointer, Endian};
use parking_lot::Mutex;
use zio::{Charge, Charged, Holder};

struct Entry {
    object: u64,
    number: u64,
    generation: u64,
    endian: Endian,
    data: Bytes,
    /// Used since memory was asked back.
    used: bool,
    _charged: Charged,
}

pub(crate) struct IndirectCache {
    charge: Arc<Charge>,
    entries: Vec<Mutex<Option<Entry>>>,
}

impl IndirectCache {
    pub(crate) fn new(entries: usize, charge: &Arc<Charge>) -> Arc<Self> {
        let cache = Arc::new(IndirectCache {
            charge: Arc::clone(charge),
            entries: (0..entries.max(1)).map(|_| Mutex::new(None)).collect(),
        });
        let holder: Weak<Self> = Arc::downgrade(&cache);
        charge.add_holder(holder);
        cache
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
        let mut entry = self.place(object, number).lock();
        let entry = entry.as_mut()?;
        if entry.object != object || entry.number != number || entry.generation != generation {
            return None;
        }
        entry.used = true;
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
            used: true,
            _charged: self.charge.take(data.len() as u64),
            data,
        });
    }
}

impl Holder for IndirectCache {
    fn give_back(&self, is_enough: &dyn Fn() -> bool) {
        for entry in &self.entries {
            if is_enough() {
                return;
            }
            let mut entry = entry.lock();
            let is_used = |entry: &mut Entry| std::mem::replace(&mut entry.used, false);
            if !entry.as_mut().is_some_and(is_used) {
                *entry = None;
            }
        }
    }
}

/// Pointer `index` of an indirect block.
pub(crate) fn child(data: &[u8], endian: Endian, index: usize) -> Option<BlockPointer> {
    let start = index.checked_mul(BLOCK_POINTER_BYTES)?;
    let bytes = data.get(start..start + BLOCK_POINTER_BYTES)?;
    BlockPointer::decode_slice(bytes, endian).ok()
}
