//! Access times: reads move them on in memory, and they are stored later.

use dataset::DirtyEstimate;

use crate::error::{FsError, Result};
use crate::files::Files;
use crate::node::Node;
use crate::opening::Opening;
use crate::znode::attr;

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// Moves the access time on, as `atime` and `relatime` say. It is stored with the next change
/// of the file, or by [`store_access_times`].
pub(crate) fn accessed(opening: &Opening, node: &Node) {
    let settings = opening.settings();
    if !settings.atime || settings.read_only {
        return;
    }
    let now = opening.now();
    {
        let znode = &node.state.read().znode;
        let fresh = znode.atime > znode.mtime
            && znode.atime > znode.ctime
            && now.seconds - znode.atime.seconds < DAY_SECONDS;
        if settings.relatime && fresh {
            return;
        }
    }
    let mut state = node.state.write();
    state.znode.atime = now;
    state.atime_dirty = true;
}

/// Stores access times that reads have moved on. What cannot be stored stays for later, unless
/// files in memory take more than they may: then it is given up, as it would keep them there for
/// good. Where there is no room for one, there is none for the others.
pub(crate) async fn store_access_times(files: &Files) {
    let (mut is_full, mut is_given_up) = (false, false);
    for node in files.nodes.with_dirty_atime() {
        if !is_full {
            let Err(error) = store_access_time(files, node.ino).await else {
                continue;
            };
            tracing::debug!(ino = node.ino, %error, "the access time could not be stored");
            is_full = matches!(error, FsError::NoSpace | FsError::QuotaExceeded);
        }
        if files.nodes.is_over_share() {
            node.state.write().atime_dirty = false;
            is_given_up = true;
        }
    }
    if is_given_up {
        files.nodes.settle_again();
    }
}

/// Stores a file's access time if reads have moved it on.
async fn store_access_time(files: &Files, ino: u64) -> Result<()> {
    let Some(node) = files.nodes.get(ino) else {
        return Ok(());
    };
    if !node.state.read().atime_dirty {
        return Ok(());
    }
    let _entered = files.opening.enter_to_change().await?;
    let node = node.lock().await?;
    let tx = files.assign(DirtyEstimate::metadata()).await?;
    files
        .store(&tx, &node, node.znode(), &[attr::ATIME], [])
        .await
}
