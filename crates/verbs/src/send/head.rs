//! Sending what a filesystem or volume is now, without a snapshot (`dmu_send`,
//! module/zfs/dmu_send.c).
//!
//! The stream is of a snapshot that is taken for it and destroyed afterwards, as `zfs diff` has
//! one; a hold that ends with the import sees to that after a crash. What is mounted is refused, as
//! by OpenZFS: who leaves out the snapshot's name by mistake is to hear of it. In a pool that is
//! open read-only nothing changes, and no snapshot is needed.

use std::sync::atomic::{AtomicU64, Ordering};

use access::User;
use api::{Failure, FailureKind};
use dataset::SendSource;
use format::Guid;

use super::{Output, Plan, of_dataset, of_stream};
use crate::temporary::{Temporary, temporary};

/// What a stream of a head calls its snapshot (`create_begin_record`).
pub(super) const SNAPSHOT: &str = "--head--";
/// The hold on the snapshot.
const TAG: &str = ".millpond-send";

/// Tells those that are sent at the same time apart.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Sends a filesystem or volume, as the difference to `from` if there is one.
///
/// # Errors
/// Of taking the snapshot and of sending; where the head is not any more what was being sent.
pub(super) async fn send(
    plan: &Plan,
    name: &str,
    from: Option<&str>,
    output: &mut Output,
    progress: &stream::Progress,
) -> Result<(), Failure> {
    let dsl = plan.open.pool.dsl();
    let failed = |error| of_dataset(name, &error);
    let open = async |what: &str| match plan.options.raw {
        true => dsl.sends().raw_source(what, from).await,
        false => dsl.sends().source(what, from).await,
    };
    if plan.open.pool.is_read_only() {
        let source = open(name).await.map_err(failed)?;
        return send_as_head(plan, name, source, output, progress).await;
    }
    let users = plan.open.access.users(name).await;
    if users.is_ok_and(|users| users.iter().any(|user| matches!(user, User::Mount { .. }))) {
        // In the words of `zfs_send_one_cb_impl` (lib/libzfs/libzfs_sendrecv.c).
        let message = format!(
            "warning: cannot send '{name}': target is busy; if a filesystem, it must not be \
             mounted\nTake a snapshot, and send that, or unmount it first."
        );
        return Err(Failure::new(FailureKind::Busy, message));
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let snapshot = format!("{name}@{}", temporary(Temporary::Send, count));
    let names = [snapshot.clone()];
    dsl.holds().check_possible(&snapshot).map_err(failed)?;
    dsl.snapshots().take(&names, &[]).await.map_err(failed)?;
    let held = dsl.holds().hold_for_now(&snapshot, TAG).await;
    // Deferred: it goes with the hold.
    let destroyed = dsl.destroyer().destroy_snapshots(&names, true).await;
    held.and(destroyed).map_err(failed)?;
    let sent = async {
        let source = open(&snapshot).await.map_err(failed)?;
        send_as_head(plan, name, source, output, progress).await
    };
    let sent = sent.await;
    let released = dsl.holds().release(&names, TAG).await.map_err(failed);
    sent.and(released)
}

async fn send_as_head(
    plan: &Plan,
    name: &str,
    mut source: SendSource,
    output: &mut Output,
    progress: &stream::Progress,
) -> Result<(), Failure> {
    let info = plan.open.pool.dsl().directories().lookup(name).await;
    let info = info.map_err(|error| of_dataset(name, &error))?;
    let guid = guid(info.guid, &source);
    if plan.head_guid.is_some_and(|wanted| wanted != guid) {
        let message = format!(
            "cannot resume send: '{name}' was changed since the initial send; give up what was \
             received of it with 'zfs receive -A', and send it anew"
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    source.sent_as = Some((format!("{name}@{SNAPSHOT}"), guid));
    stream::send(&source, &plan.options, output, progress)
        .await
        .map_err(|error| of_stream(name, &error))
}

/// What a stream says as GUID: another one for each state of the head, so that nobody goes on with
/// the contents of one state behind those of another. (OpenZFS says the head's GUID, which stays.)
fn guid(head: Guid, source: &SendSource) -> Guid {
    let birth = source.snapshot.objset().root().birth().get();
    let mixed = head.get() ^ birth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Guid::new(mixed.max(1))
}
