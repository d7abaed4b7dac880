//! Who hears of pointers to blocks that were there before.
//!
//! A block is met by whoever walks the object sets at one of its pointers. While it gains a pointer
//! where the walk has been, and loses the one that the walk has not come to, it is met nowhere: so
//! who walks is told of each that is added. A clone adds one (`dmu_brt_clone`, module/zfs/dmu.c),
//! and so does a write of what a dedup table has (`zio_ddt_write`, module/zfs/zio.c). All else that
//! is written is a new block.

use std::sync::OnceLock;

use format::{BlockPointer, ObjsetId};

/// Is told of a pointer that is written into an object set, in syncing context, and leads to a
/// block of an earlier transaction group. Called from any task: quick, never blocks.
pub type SharedHook = Box<dyn Fn(ObjsetId, &BlockPointer) + Send + Sync>;

/// Tells who wants to hear of it.
#[derive(Default)]
pub struct Sharing {
    hook: OnceLock<SharedHook>,
}

impl Sharing {
    /// Only the first call counts.
    pub fn set_hook(&self, hook: SharedHook) {
        let _ = self.hook.set(hook);
    }

    /// A pointer to a block that may be older than its transaction group is written.
    pub fn note(&self, objset: ObjsetId, pointer: &BlockPointer) {
        if pointer.physical_birth() < pointer.logical_birth()
            && let Some(hook) = self.hook.get()
        {
            hook(objset, pointer);
        }
    }
}
