//! For tests of bad input: blocks that are changed after their checksums were verified, as a hostile
//! writer's would be, whose checksums are right. Only with the feature `hostile`; one hook for the process.

use std::sync::Arc;

use bytes::Bytes;
use format::BlockPointer;
use parking_lot::RwLock;

/// Gets each block that was read, verified and decompressed, and gives what readers get.
pub type BlockHook = Arc<dyn Fn(&BlockPointer, Bytes) -> Bytes + Send + Sync>;

static HOOK: RwLock<Option<BlockHook>> = RwLock::new(None);

/// From now on, blocks pass through `hook`.
pub fn set_block_hook(hook: BlockHook) {
    *HOOK.write() = Some(hook);
}

pub(crate) fn apply(pointer: &BlockPointer, data: Bytes) -> Bytes {
    let hook = HOOK.read().clone();
    match hook {
        Some(hook) => hook(pointer, data),
        None => data,
    }
}
