//! Another state of a filesystem in the place of the mounted one, while it is in use: rollback.
//!
//! The registry of open datasets ([`access::Access::exchange`]) tells before: from then on requests
//! wait, and those under way are let end. Then nobody uses the filesystem: it is closed, its
//! dataset changed and opened again, and the registry tells so. A file that is in both states (by
//! object and generation) goes on for whoever has it open, as with OpenZFS; others are stale. What
//! the kernel holds is made true: pages and attributes of all files that it knows are dropped, and
//! names that lead elsewhere now.
//!
//! A name that was not there is good for a second in the kernel, which is waited for. A name on the
//! way to another mount stays what it is, since dropping it would take that mount away.
//!
//! Source: zfs_suspend_fs, zfs_resume_fs, zfs_rezget (module/os/linux/zfs);
//! fuse_reverse_inval_inode, fuse_reverse_inval_entry, d_invalidate (fs/fuse, fs/dcache.c of
//! Linux).

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::Instant;

use access::{Paused, Resident};
use device::BoxFuture;
use filesystem::{FileKind, Filesystem};
use fuser::INodeNo;

use crate::handler::SHORT_TTL;
use crate::mount::Inner;
use crate::nodes;
use crate::teller::on_the_way;

/// Entries read from a directory at a time.
const ENTRIES: usize = 1024;

/// A name that the kernel may know.
struct Name {
    directory: u64,
    name: OsString,
    ino: u64,
}

impl Resident for Inner {
    fn pause(self: Arc<Self>) -> BoxFuture<'static, Option<Box<dyn Paused>>> {
        Box::pin(async move {
            // What is open of snapshots would keep them from being destroyed.
            self.release_snapshots(None).await;
            let exchange = Exchange::begin(self).await?;
            Some(Box::new(exchange) as _)
        })
    }
}

impl Paused for Exchange {
    fn adopt(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.take_over())
    }

    fn resume(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(self.end())
    }
}

/// A mounted filesystem that nobody gets at. Dropping it lets them again, at what is mounted then.
struct Exchange {
    mount: Arc<Inner>,
    /// Generations of the files that the kernel knows; none of what cannot be read.
    known: HashMap<u64, Option<u64>>,
    /// What the kernel may have as names of those, in directories that it knows.
    names: Vec<Name>,
    since: Instant,
    taken_over: Option<TakenOver>,
    /// Requests are let in again: another exchange may have begun since.
    is_over: bool,
}

/// What is mounted now.
struct TakenOver {
    filesystem: Arc<Filesystem>,
    /// Those of the known files that are in it.
    survivors: HashSet<u64>,
    /// The nodes by which the kernel knows the files of the state before.
    before: Vec<u64>,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.let_in();
    }
}

impl Exchange {
    /// Keeps requests out; none where those that are under way do not end.
    async fn begin(mount: Arc<Inner>) -> Option<Self> {
        // What was written through mappings is of the state before.
        let known = mount.nodes.live().retained();
        let inos = known.iter().map(|(ino, _)| mount.nodes.live_node(*ino));
        drop_pages(&mount, inos.collect()).await;
        let mut exchange = Self {
            mount,
            known: HashMap::new(),
            names: Vec::new(),
            since: Instant::now(),
            taken_over: None,
            is_over: false,
        };
        // Who waits for the kernel to be told of something would wait for requests that wait for
        // this, which may wait for him.
        exchange.mount.teller.pause();
        if !exchange.mount.nodes.pause().await {
            return None;
        }
        exchange.since = Instant::now();
        // Boxed: what reads directories is a deep future.
        let learning: BoxFuture<'_, ()> = Box::pin(exchange.learn());
        learning.await;
        Some(exchange)
    }

    fn let_in(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.mount.nodes.resume();
            self.mount.teller.resume();
        }
    }

    /// Finds out what the kernel knows.
    async fn learn(&mut self) {
        let live = self.mount.nodes.live();
        let mut directories = vec![live.root()];
        for (ino, _) in live.retained() {
            let found = live.attributes(ino).await.ok();
            if found
                .as_ref()
                .is_some_and(|found| found.kind == FileKind::Directory)
            {
                directories.push(ino);
            }
            self.known.insert(ino, found.map(|found| found.generation));
        }
        let kept = on_the_way(&live, self.mount.served.anchor()).await;
        for directory in directories {
            let mut cookie = 0;
            while let Ok(entries) = live.peek_directory(directory, cookie, ENTRIES).await {
                let Some(last) = entries.last() else { break };
                cookie = last.next_cookie;
                for entry in entries {
                    let is_dot = matches!(&entry.name[..], b"." | b"..");
                    let name = OsString::from_vec(entry.name.to_vec());
                    let ino = entry.ino;
                    if !is_dot
                        && self.known.contains_key(&ino)
                        && !kept.contains(&(directory, name.clone()))
                    {
                        self.names.push(Name {
                            directory,
                            name,
                            ino,
                        });
                    }
                }
            }
        }
    }

    /// Hands the files that the kernel has open over to what is open now.
    async fn take_over(&mut self) {
        let filesystem = self.mount.lease.get();
        let mut survivors = HashSet::new();
        for (ino, generation) in &self.known {
            if let Ok(found) = filesystem.attributes(*ino).await
                && Some(found.generation) == *generation
            {
                survivors.insert(*ino);
            }
        }
        let nodes = &self.mount.nodes;
        let before: Vec<u64> = self.known.keys().map(|ino| nodes.live_node(*ino)).collect();
        nodes.replace(Arc::clone(&filesystem), |ino| survivors.contains(&ino));
        self.taken_over = Some(TakenOver {
            filesystem,
            survivors,
            before,
        });
    }

    /// Lets requests in again, to what is open now; returns when nothing that the kernel holds is
    /// older.
    async fn end(mut self: Box<Self>) {
        self.let_in();
        let nodes = &self.mount.nodes;
        let Some(taken_over) = self.taken_over.take() else {
            return;
        };
        let TakenOver {
            filesystem,
            survivors,
            before,
        } = taken_over;
        let root = filesystem.root();
        let is_there = |ino: u64| ino == root || survivors.contains(&ino);
        let mut gone = Vec::new();
        for name in std::mem::take(&mut self.names) {
            // Whoever cannot find the directory cannot find the name.
            if !is_there(name.directory) {
                continue;
            }
            let now = filesystem
                .lookup(name.directory, name.name.as_bytes())
                .await;
            if !survivors.contains(&name.ino) || now.ok().map(|now| now.ino) != Some(name.ino) {
                gone.push((nodes.live_node(name.directory), name.name));
            }
        }
        let notifier = self.mount.served.notifier().clone();
        // The kernel may call back for what it drops: not on a thread of the runtime.
        let forget = move || {
            for (directory, name) in gone {
                let _ = notifier.inval_entry(INodeNo(directory), OsStr::new(&name));
            }
        };
        let _ = tokio::task::spawn_blocking(forget).await;
        drop_pages(&self.mount, before).await;
        let lasting = SHORT_TTL.saturating_sub(self.since.elapsed());
        tokio::time::sleep(lasting).await;
    }
}

/// Has the kernel write what it has of these files, and drop it with their attributes.
async fn drop_pages(mount: &Inner, files: Vec<u64>) {
    let notifier = mount.served.notifier().clone();
    let forget = move || {
        for node in files.into_iter().chain([nodes::ROOT]) {
            let _ = notifier.inval_inode(INodeNo(node), 0, 0);
        }
    };
    let _ = tokio::task::spawn_blocking(forget).await;
}
