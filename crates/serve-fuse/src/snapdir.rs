//! `mkdir`, `rmdir` and `rename` in `.zfs/snapshot`: snapshots are made, destroyed and renamed by
//! them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use access::ControlNode;
use fuser::{Errno, INodeNo, RenameFlags, ReplyEmpty, ReplyEntry, Request};
use rustix::process::geteuid;

use crate::convert::errno;
use crate::handler::Handler;
use crate::nodes::SNAPSHOTS;
use crate::task::run;

/// Whether a node is `.zfs/snapshot`.
pub(crate) fn is_snapdir(node: INodeNo) -> bool {
    node.0 == SNAPSHOTS
}

/// Who may change snapshots so: root, and who runs the server.
fn check(request: &Request) -> Result<(), Errno> {
    let uid = request.uid();
    match uid == 0 || uid == geteuid().as_raw() {
        true => Ok(()),
        false => Err(Errno::EPERM),
    }
}

impl Handler {
    pub(crate) fn make_snapshot(&self, request: &Request, name: &OsStr, reply: ReplyEntry) {
        if let Err(error) = check(request) {
            return reply.error(error);
        }
        let (nodes, name) = (Arc::clone(&self.nodes), name.to_owned());
        run(&self.runtime, async move {
            match nodes.control().make_snapshot(name.as_bytes()).await {
                Ok(()) => {
                    Self::reply_control(&nodes, ControlNode::Snapshots, &name, reply).await;
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    pub(crate) fn remove_snapshot(&self, request: &Request, name: &OsStr, reply: ReplyEmpty) {
        if let Err(error) = check(request) {
            return reply.error(error);
        }
        let (nodes, name) = (Arc::clone(&self.nodes), name.to_owned());
        run(&self.runtime, async move {
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
        if let Err(error) = check(request) {
            return reply.error(error);
        }
        let (new_parent, new_name) = to;
        if !is_snapdir(new_parent) || flags.contains(RenameFlags::RENAME_EXCHANGE) {
            return reply.error(Errno::EINVAL);
        }
        let nodes = Arc::clone(&self.nodes);
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        run(&self.runtime, async move {
            let control = nodes.control();
            let renamed = control.rename_snapshot(name.as_bytes(), new_name.as_bytes());
            match renamed.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}
