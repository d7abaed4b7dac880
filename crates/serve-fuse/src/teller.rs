//! Telling the kernel of what others changed: NFS, a restore, another mount.
//!
//! The kernel keeps names, attributes, targets of links and pages. It changes them itself with what
//! it asks for; what anybody else changes ([`filesystem::Changes`]) it has to be told.
//!
//! # Order of events
//!
//! 1. The other one changes the filesystem. When a step of that can be seen, it is noted here,
//!    under the locks of the filesystem: nothing waits (`Teller::changed`).
//! 2. A thread that nobody waits for with a lock (the runtime's, for what may block) takes what is
//!    noted and notifies the kernel (`Teller::tell`).
//! 3. The other one has given back all locks of the filesystem and its transaction. It waits until
//!    2 is done (`Teller::told`), and only then answers its client.
//!
//! So from the answer on, whoever looks through the mount finds the change. Between 1 and 2 he may
//! find what was before, as if he had looked a moment sooner.
//!
//! # What may wait for what
//!
//! A notification waits in the kernel: that of a name for the directory's lock, which the kernel
//! has while it asks us for something in it; that of pages for those that are being read or
//! written, and dirty ones (of mappings: nothing else is written late) are written to us first. So
//! what the kernel has not written yet is not lost, and 2 may wait for answers of ours. These need
//! locks of the filesystem and the transaction, which nobody has who waits in 3. Requests of the
//! kernel are read and answered by other threads and tasks than 2's.
//!
//! Three things may yet keep 2 waiting, so 3 does not wait for ever:
//!
//! - Another state is to take the filesystem's place (`exchange`): requests of the mount wait until
//!   that is done, and it waits for those who are in 3. They are let go ([`Teller::pause`]); the
//!   exchange itself makes the kernel drop what it knows.
//! - A program has a directory's lock in the kernel and does not go on, as its memory is on a
//!   device that hangs, or of a server of its own. 3 waits for [`PATIENCE`] once, and not at all
//!   from then on until the kernel answers.
//! - The pool is suspended: then the other one's request waits as well.
//!
//! What is noted while 2 waits is bounded ([`NOTED_MAX`]). Beyond that, all pages and attributes
//! are dropped instead of some, and names of files are not told: where somebody else serves the
//! filesystem, the kernel keeps these for a second only (`handler`).
//!
//! # What is left
//!
//! An answer that the kernel got before a notification may be applied after it, when the process
//! that waited for it runs. The kernel takes care of that for pages, attributes, and names that it
//! looked up for the first time; but not for a name that it knew and asked for again. That too is
//! over after a second.
//!
//! Names on the way to another mount are not told: the kernel would take that mount away. Such a
//! directory keeps its old name beside the new one, until somebody looks for the new one.
//!
//! Source: fuse_reverse_inval_inode (fs/fuse/inode.c), fuse_reverse_inval_entry,
//! fuse_dentry_revalidate (fs/fuse/dir.c), d_invalidate (fs/dcache.c) of Linux.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use device::BoxFuture;
use filesystem::{Change, Filesystem, Former, Listener};
use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::inside::Inside;
use crate::mountinfo::{Anchor, MountTable};
use crate::nodes::{self, Nodes};

/// How long one who changed something waits for the kernel to be told of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Files, and names, that are noted at most.
const NOTED_MAX: usize = 4096;

/// Bytes of a file's content, from the first to behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
}

impl Range {
    /// Both, and what is between them; none is nothing.
    fn joined(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(Self {
                start: one.start.min(other.start),
                end: one.end.max(other.end),
            }),
            (one, other) => one.or(other),
        }
    }
}

/// What the kernel is to be told.
#[derive(Debug, Default)]
struct Noted {
    /// Files whose attributes changed, and what of their content.
    files: HashMap<u64, Option<Range>>,
    /// Names by directory, and what they led to.
    names: HashMap<(u64, Vec<u8>), Option<Former>>,
    /// All files that the kernel knows may have changed.
    all: bool,
}

impl Noted {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.names.is_empty() && !self.all
    }

    fn note(&mut self, change: Change<'_>) {
        match change {
            Change::Content {
                ino,
                offset_bytes: start,
                length_bytes,
            } => {
                let end = start.saturating_add(length_bytes);
                self.note_file(ino, Some(Range { start, end }));
            }
            Change::Attributes { ino } => self.note_file(ino, None),
            Change::Name {
                directory,
                name,
                before,
            } => {
                // A directory's name is kept for long by the kernel.
                let is_directory = before.is_some_and(|before| before.is_directory);
                if self.names.len() < NOTED_MAX || is_directory {
                    let names = self.names.entry((directory, name.to_vec()));
                    let known = names.or_default();
                    let directory = known.filter(|known| known.is_directory);
                    *known = directory.or(before).or(*known);
                }
            }
        }
    }

    fn note_file(&mut self, ino: u64, range: Option<Range>) {
        if let Some(there) = self.files.get_mut(&ino) {
            *there = Range::joined(*there, range);
        } else if self.files.len() < NOTED_MAX {
            self.files.insert(ino, range);
        } else {
            self.files.clear();
            self.all = true;
        }
    }
}

#[derive(Debug, Default)]
struct State {
    noted: Noted,
    /// How many changes were noted.
    count: u64,
    /// A thread tells the kernel, or is about to.
    is_telling: bool,
    /// The kernel took longer than anybody waits.
    is_stuck: bool,
}

/// How far the kernel has been told.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    count: u64,
    /// Nobody is to wait for more.
    is_paused: bool,
}

/// Tells the kernel of one mount.
pub(crate) struct Teller {
    nodes: Arc<Nodes>,
    /// How, once it is mounted.
    kernel: OnceLock<(Notifier, Box<Anchor>)>,
    inside: Inside,
    runtime: Handle,
    /// Short; nothing else is locked under it.
    state: Mutex<State>,
    told: watch::Sender<Told>,
}

impl Teller {
    /// One for a mount that is about to be made. Call it within the runtime.
    pub(crate) fn new(nodes: &Arc<Nodes>) -> Arc<Self> {
        Arc::new(Self {
            nodes: Arc::clone(nodes),
            kernel: OnceLock::new(),
            inside: Inside::default(),
            runtime: Handle::current(),
            state: Mutex::default(),
            told: watch::Sender::new(Told::default()),
        })
    }

    /// It is mounted: the kernel is told what was noted meanwhile, and all that will be.
    pub(crate) fn begin(self: &Arc<Self>, notifier: Notifier, anchor: &Anchor) {
        let _ = self.kernel.set((notifier, Box::new(anchor.clone())));
        let identity = anchor.identity.as_ref();
        self.inside.begin(identity.map(|it| it.device.clone()));
        self.start();
    }

    /// Has the kernel drop all pages and attributes that it knows, and waits for that.
    pub(crate) async fn forget_all(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            state.noted.all = true;
            state.count += 1;
        }
        self.start();
        if let Some(told) = Arc::clone(self).told() {
            told.await;
        }
    }

    /// Lets those go who wait, and lets nobody wait until [`Self::resume`].
    pub(crate) fn pause(&self) {
        self.told.send_modify(|told| told.is_paused = true);
    }

    pub(crate) fn resume(&self) {
        self.told.send_modify(|told| told.is_paused = false);
    }

    /// Has the kernel told, if there is anything to tell and nobody does so.
    fn start(self: &Arc<Self>) {
        if self.kernel.get().is_none() {
            return;
        }
        {
            let mut state = self.state.lock();
            if state.is_telling || state.noted.is_empty() {
                return;
            }
            state.is_telling = true;
        }
        let me = Arc::clone(self);
        // The kernel may call back for what it drops: not on a thread that others need.
        self.runtime.spawn_blocking(move || me.tell());
    }

    fn tell(&self) {
        loop {
            let (noted, count) = {
                let mut state = self.state.lock();
                if state.noted.is_empty() {
                    state.is_telling = false;
                    return;
                }
                (std::mem::take(&mut state.noted), state.count)
            };
            self.tell_of(noted);
            self.state.lock().is_stuck = false;
            self.told.send_modify(|told| told.count = count);
        }
    }

    fn tell_of(&self, noted: Noted) {
        let Some((notifier, anchor)) = self.kernel.get() else {
            return;
        };
        let node = |ino| INodeNo(self.nodes.live_node(ino));
        let mut kept = None;
        for ((directory, name), before) in noted.names {
            let name = OsString::from_vec(name);
            if before.is_some_and(|before| before.is_directory) {
                let kept = kept.get_or_insert_with(|| {
                    let live = self.nodes.live();
                    self.runtime.block_on(on_the_way(&live, anchor))
                });
                if kept.contains(&(directory, name.clone())) {
                    continue;
                }
            }
            // What the kernel does not know need not be dropped.
            let parent = node(directory);
            let is_deleted = before.is_some_and(|before| {
                before.is_removed && notifier.delete(parent, node(before.ino), &name).is_ok()
            });
            if !is_deleted {
                let _ = notifier.inval_entry(parent, &name);
            }
        }
        for (ino, range) in noted.files {
            let _ = match range {
                Some(Range { start, end }) => {
                    // What is too long for the kernel's numbers goes to the end, which is 0.
                    let length = i64::try_from(end - start).unwrap_or(0);
                    let start = i64::try_from(start).unwrap_or(i64::MAX);
                    notifier.inval_inode(node(ino), start, length)
                }
                None => notifier.inval_inode(node(ino), -1, 0),
            };
        }
        if noted.all {
            let known = self.nodes.live().retained();
            for ino in known.into_iter().map(|(ino, _)| node(ino)) {
                let _ = notifier.inval_inode(ino, 0, 0);
            }
            let _ = notifier.inval_inode(INodeNo(nodes::ROOT), 0, 0);
        }
    }
}

impl Listener for Teller {
    fn changed(self: Arc<Self>, change: Change<'_>) {
        {
            let mut state = self.state.lock();
            state.noted.note(change);
            state.count += 1;
        }
        self.start();
    }

    fn told(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        let until = {
            let state = self.state.lock();
            let told = *self.told.borrow();
            let is_over = told.is_paused || told.count >= state.count || state.is_stuck;
            if is_over || self.kernel.get().is_none() {
                return None;
            }
            state.count
        };
        Some(Box::pin(async move {
            let mut told = self.told.subscribe();
            let done = told.wait_for(|told| told.is_paused || told.count >= until);
            if tokio::time::timeout(PATIENCE, done).await.is_err() {
                let mut state = self.state.lock();
                if !std::mem::replace(&mut state.is_stuck, true) {
                    tracing::warn!(
                        mountpoint = ?self.kernel.get().map(|(_, anchor)| &anchor.path),
                        "the kernel does not take notice of changes: a program holds up a \
                         directory or a file; until it goes on, the mount may show what was before"
                    );
                }
            }
        }))
    }

    fn mounted_inside(
        self: Arc<Self>,
        of_directories: bool,
    ) -> Option<BoxFuture<'static, Vec<PathBuf>>> {
        let places = self.inside.clone().places(&self.nodes, of_directories)?;
        Some(Box::pin(places))
    }
}

/// Names that lead to other mounts inside of a filesystem, each with its directory. Taking one from
/// the kernel would take that mount away.
pub(crate) async fn on_the_way(live: &Filesystem, anchor: &Anchor) -> HashSet<(u64, OsString)> {
    let mut kept = HashSet::new();
    let Some(table) = MountTable::now() else {
        return kept;
    };
    for place in table.places_inside(anchor) {
        let mut directory = live.root();
        for part in &place {
            kept.insert((directory, part.to_owned()));
            match live.lookup(directory, OsStr::as_bytes(part)).await {
                Ok(found) => directory = found.ino,
                Err(_) => break,
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(ino: u64, offset_bytes: u64, length_bytes: u64) -> Change<'static> {
        Change::Content {
            ino,
            offset_bytes,
            length_bytes,
        }
    }

    /// Goal: what is noted twice is told once, and covers both.
    #[test]
    fn changes_of_one_file_are_joined() {
        let mut noted = Noted::default();
        noted.note(content(5, 100, 50));
        noted.note(Change::Attributes { ino: 5 });
        noted.note(content(5, 10, 20));
        noted.note(Change::Attributes { ino: 6 });
        let whole = Range {
            start: 10,
            end: 150,
        };
        assert_eq!(noted.files, HashMap::from([(5, Some(whole)), (6, None)]));
        noted.note(content(5, 120, u64::MAX));
        assert_eq!(noted.files[&5].map(|range| range.end), Some(u64::MAX));
        let former = Former {
            ino: 7,
            is_directory: true,
            is_removed: false,
        };
        for before in [None, Some(former), None] {
            let (directory, name) = (2, &b"name"[..]);
            noted.note(Change::Name {
                directory,
                name,
                before,
            });
        }
        let names = HashMap::from([((2, b"name".to_vec()), Some(former))]);
        assert_eq!(noted.names, names);
    }

    /// Goal: what is noted is bounded, and what is left out is made up for.
    #[test]
    fn what_is_noted_is_bounded() {
        let mut noted = Noted::default();
        for ino in 0..3 * NOTED_MAX as u64 {
            noted.note(content(ino, 0, 1));
            let name = ino.to_be_bytes();
            noted.note(Change::Name {
                directory: 2,
                name: &name,
                before: None,
            });
        }
        assert!(noted.all && noted.files.len() <= NOTED_MAX);
        assert_eq!(noted.names.len(), NOTED_MAX);
        let before = Some(Former {
            ino: 7,
            is_directory: true,
            is_removed: false,
        });
        let (directory, name) = (2, &b"directory"[..]);
        noted.note(Change::Name {
            directory,
            name,
            before,
        });
        assert_eq!(noted.names.len(), NOTED_MAX + 1);
    }
}
