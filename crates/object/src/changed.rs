//! Which objects of an object set may have changed since a snapshot of it (`dmu_diff`,
//! module/zfs/dmu_diff.c): those whose block of dnodes was written since, or is not there any more.
//!
//! Only indirect blocks of the meta-dnodes are read: a thousandth of a thirtieth of the objects.

use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use format::{BlockPointer, Bookmark, DNODE_SLOT_BYTES, ObjectId, ObjsetId, Txg};
use parking_lot::Mutex;
use zio::{ReadContext, ZioError};

use crate::objset::ObjectSet;
use crate::traverse::{Leads, Met, Traverse, Visitor, traverse};

/// Bytes of a block of dnodes (`DNODE_BLOCK_SHIFT`).
const DNODE_BLOCK_BYTES: u64 = 16 << 10;
/// Slots of such a block.
const SLOTS: u64 = DNODE_BLOCK_BYTES / DNODE_SLOT_BYTES as u64;

/// The blocks of dnodes that an object set has, with when each was born.
struct DnodeBlocks {
    set: Arc<ObjectSet>,
    found: Mutex<Vec<(u64, Txg)>>,
    error: Mutex<Option<ZioError>>,
}

impl Visitor for DnodeBlocks {
    fn meet(&self, met: &Met<'_>) -> bool {
        match met.leads {
            Leads::Root => true,
            Leads::Dnodes if met.bookmark.object != ObjectId::ZERO => false,
            Leads::Dnodes if met.bookmark.level == 0 => {
                let born = met.pointer.logical_birth();
                self.found.lock().push((met.bookmark.block_id, born));
                false
            }
            Leads::Dnodes => true,
            Leads::Indirect | Leads::Nowhere => false,
        }
    }

    fn read(
        self: Arc<Self>,
        pointer: BlockPointer,
        bookmark: Bookmark,
    ) -> BoxFuture<'static, Result<Bytes, ZioError>> {
        Box::pin(async move {
            // What leads to dnodes is in the clear.
            let cached = self.set.blocks.properties.read().cached;
            let context = ReadContext {
                without_key: true,
                cache: cached.on_read(pointer.object_type(), pointer.level()),
                ..ReadContext::new(bookmark)
            };
            self.set.pipeline().read(&pointer, &context).await
        })
    }

    fn entered(&self, _met: &Met<'_>, result: Result<(), &ZioError>) {
        if let Err(error) = result {
            self.error.lock().get_or_insert_with(|| error.clone());
        }
    }
}

async fn dnode_blocks(set: &Arc<ObjectSet>) -> Result<Vec<(u64, Txg)>, ZioError> {
    let visitor = Arc::new(DnodeBlocks {
        set: Arc::clone(set),
        found: Mutex::default(),
        error: Mutex::default(),
    });
    let what = Traverse {
        root: set.root(),
        objset: ObjsetId::from(set.options().dataset.get()),
        after: Txg::ZERO,
        from: None,
    };
    traverse(&what, set.pipeline().tasks(), &visitor).await;
    if let Some(error) = visitor.error.lock().take() {
        return Err(error);
    }
    let mut found = std::mem::take(&mut *visitor.found.lock());
    found.sort_unstable();
    Ok(found)
}

/// The numbers of objects that may differ between a snapshot and a later state of the same
/// dataset, which both have nothing unwritten: ranges, in rising order. `since` is the snapshot's
/// txg.
///
/// # Errors
/// Of reading.
pub async fn changed_objects(
    older: &Arc<ObjectSet>,
    newer: &Arc<ObjectSet>,
    since: Txg,
) -> Result<Vec<std::ops::Range<u64>>, ZioError> {
    let before = dnode_blocks(older).await?;
    let now = dnode_blocks(newer).await?;
    let mut there = now.iter().map(|(block, _)| *block).peekable();
    let mut changed: Vec<u64> = Vec::new();
    // Blocks that are gone.
    for (block, _) in before {
        while there.next_if(|other| *other < block).is_some() {}
        if there.peek() != Some(&block) {
            changed.push(block);
        }
    }
    let written = now.iter().filter(|(_, born)| *born > since);
    changed.extend(written.map(|(block, _)| *block));
    changed.sort_unstable();
    let numbers = |block: u64| block * SLOTS..(block + 1) * SLOTS;
    Ok(changed.into_iter().map(numbers).collect())
}
