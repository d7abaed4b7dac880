//! Mounting what was received, and nothing else.
//!
//! A replica that keeps its mount points may belong where its source is mounted. It is mounted over
//! that, as by OpenZFS (`changelist_postfix`, lib/libzfs/libzfs_changelist.c); what it covers stays
//! where it is, and is told. What came with the same package and lies inside of it is mounted in
//! it.

use std::sync::Arc;

use api::Failure;
use serving::place::{Place, place};

use super::Run;

/// Mounts a filesystem that was received, if it is to be.
///
/// # Errors
/// Of mounting.
pub(super) async fn mount(run: &mut Run<'_>, head: &str) -> Result<(), Failure> {
    let (serving, open) = (run.serving, Arc::clone(&run.open));
    let mounted = match place(&open, head).await? {
        (Place::At(path), true) => {
            let mounted = serving.mount_over(&open, head, &path, run.first_mount);
            let mounted = mounted.await;
            if let Ok(Some(covered)) = &mounted {
                run.reply.warnings.push(format!(
                    "'{head}' is mounted at {}, over '{covered}', which is not seen there until \
                     '{head}' is unmounted; give it another mount point, or receive with -u",
                    path.display()
                ));
            }
            mounted.map(drop)
        }
        _ => Ok(()),
    };
    // The network share works without a mount.
    for warning in serving.follow_nfs(&open, head).await {
        tracing::warn!("{warning}");
    }
    mounted
}
