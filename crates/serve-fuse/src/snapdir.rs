//! `mkdir`, `rmdir` and `rename` in `.zfs/snapshot`: snapshots are made, destroyed and renamed by
//! them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use access::{ControlNode, SnapshotChange};
use dataset::Credentials;
use filesystem::Caller;
use fuser::{Errno, INodeNo, RenameFlags, ReplyEmpty, ReplyEntry, Request};
use rustix::process::geteuid;

use crate::convert::{caller, errno};
use crate::groups;
use crate::handler::Handler;
use crate::nodes::{Nodes, SNAPSHOTS};
use crate::task::run;

/// Whether a node is `.zfs/snapshot`.
pub(crate) fn is_snapdir(node: INodeNo) -> bool {
    node.0 == SNAPSHOTS
}

/// Refuses who may not change snapshots so: root and who runs the server may, and whom permissions
/// let.
async fn check(nodes: &Nodes, caller: Caller, change: SnapshotChange<'_>) -> Result<(), Errno> {
    if caller.uid == 0 || caller.uid == geteuid().as_raw() {
        return Ok(());
    }
    let gids = groups::all_of(&caller).into_iter().map(u64::from).collect();
    let who = Credentials {
        uid: caller.uid.into(),
        gids,
    };
    match nodes.control().allows(change, &who).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Errno::EPERM),
        Err(error) => Err(errno(&error)),
    }
}

impl Handler {
    pub(crate) fn make_snapshot(&self, request: &Request, name: &OsStr, reply: ReplyEntry) {
        let (nodes, name) = (Arc::clone(&self.nodes), name.to_owned());
        let caller = caller(request, 0);
        run(&self.runtime, async move {
            if let Err(error) = check(&nodes, caller, SnapshotChange::Make).await {
                return reply.error(error);
            }
            match nodes.control().make_snapshot(name.as_bytes()).await {
                Ok(()) => {
                    Self::reply_control(&nodes, ControlNode::Snapshots, &name, reply).await;
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    pub(crate) fn remove_snapshot(&self, request: &Request, name: &OsStr, reply: ReplyEmpty) {
        let (nodes, name) = (Arc::clone(&self.nodes), name.to_owned());
        let caller = caller(request, 0);
        run(&self.runtime, async move {
            let change = SnapshotChange::Remove(name.as_bytes());
            if let Err(error) = check(&nodes, caller, change).await {
                return reply.error(error);
            }
            match nodes.control().remove_snapshot(name.as_bytes()).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    pub(crate) fn rename_snapshot(
        &self,
        request: &Request,
        name: &OsStr,
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (new_parent, new_name) = to;
        if !is_snapdir(new_parent) || flags.contains(RenameFlags::RENAME_EXCHANGE) {
            return reply.error(Errno::EINVAL);
        }
        let nodes = Arc::clone(&self.nodes);
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let caller = caller(request, 0);
        run(&self.runtime, async move {
            let change = SnapshotChange::Rename(name.as_bytes());
            if let Err(error) = check(&nodes, caller, change).await {
                return reply.error(error);
            }
            let control = nodes.control();
            let renamed = control.rename_snapshot(name.as_bytes(), new_name.as_bytes());
            match renamed.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}
