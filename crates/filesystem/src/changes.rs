//! What is told of changes to whoever keeps copies of what a filesystem has: mounts, whose kernels
//! keep names, attributes and pages.
//!
//! # Who hears what
//!
//! A change is told to each [`Listener`] but the one that asked for it: what runs within
//! [`By`] is done for the listener of that number, whose kernel knows already. A listener that has
//! nothing of the file or the directory is not told either; mounts count what their kernels know
//! ([`Filesystem::retain`](crate::Filesystem::retain)), and the root directory is known always.
//! Where nobody listens, or only who makes all the changes, a change costs a look at one or two
//! numbers.
//!
//! # When
//!
//! Each step tells of what it did when others can see it, before its locks and its transaction are
//! given back. So whoever drops a copy when told, and then asks again, gets nothing older, and an
//! operation that fails half-way has told of the half. Telling never waits: a listener notes the
//! change, and acts on it elsewhere. Whoever is to answer a client waits for that with
//! [`Changes::told`], when it has no lock of the filesystem any more.
//!
//! Moved access times are not told: they are no change (`atime`), and attributes are kept for a
//! moment only.

use std::cell::Cell;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};

use device::BoxFuture;
use parking_lot::RwLock;

/// A change of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Bytes of a file, also that they are there at all, and its attributes.
    Content {
        /// The file.
        ino: u64,
        /// The first byte.
        offset_bytes: u64,
        /// How many; `u64::MAX` for all that follow.
        length_bytes: u64,
    },
    /// Attributes of a file, lists of access among them.
    Attributes {
        /// The file.
        ino: u64,
    },
    /// A name leads elsewhere, to something for the first time, or to nothing.
    Name {
        /// The directory.
        directory: u64,
        /// The name.
        name: &'a [u8],
        /// What it led to.
        before: Option<Former>,
    },
}

impl Change<'_> {
    /// The object of which a listener has to know something, or it need not know of the change.
    pub(crate) fn object(&self) -> u64 {
        match self {
            Self::Content { ino, .. } | Self::Attributes { ino } => *ino,
            Self::Name { directory, .. } => *directory,
        }
    }
}

/// What a name led to before it was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Former {
    /// The file.
    pub ino: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether it has no name any more.
    pub is_removed: bool,
}

/// Who keeps copies of what a filesystem has.
pub trait Listener: Send + Sync + 'static {
    /// Takes note of a change. It is called with locks held: it neither waits nor asks the
    /// filesystem for anything.
    fn changed(self: Arc<Self>, change: Change<'_>);

    /// Completes when no copy is older than the changes that it was told of so far; none where that
    /// is so now, or is not to be waited for.
    fn told(self: Arc<Self>) -> Option<BoxFuture<'static, ()>>;

    /// Paths from the filesystem's root at which the listener's kernel has something else mounted:
    /// all (`of_directories`), or those that are at files which are no directories. None where
    /// there are none.
    fn mounted_inside(
        self: Arc<Self>,
        of_directories: bool,
    ) -> Option<BoxFuture<'static, Vec<PathBuf>>> {
        let _ = of_directories;
        None
    }
}

/// The number of a listener, by which its own changes are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin(u64);

impl Origin {
    /// What no listener asked for.
    pub const NONE: Self = Self(0);
    /// Stands for several.
    const SEVERAL: u64 = u64::MAX;

    /// A number that no other has.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The one for whom this thread works now.
    fn current() -> Self {
        ORIGIN.get()
    }
}

thread_local! {
    static ORIGIN: Cell<Origin> = const { Cell::new(Origin::NONE) };
}

/// Work for a listener, whose own changes are not told to it.
pub struct By<F> {
    origin: Origin,
    work: Pin<Box<F>>,
}

impl<F: Future> By<F> {
    /// `work`, done for `origin`.
    pub fn new(origin: Origin, work: F) -> Self {
        let work = Box::pin(work);
        Self { origin, work }
    }
}

impl<F: Future> Future for By<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        /// Also when the work panics.
        struct Before(Origin);
        impl Drop for Before {
            fn drop(&mut self) {
                ORIGIN.set(self.0);
            }
        }
        let _before = Before(ORIGIN.replace(self.origin));
        self.work.as_mut().poll(context)
    }
}

/// Who is told of the changes of a dataset's filesystem, whichever state of it is open.
#[derive(Default)]
pub struct Changes {
    listeners: RwLock<Vec<(Origin, Weak<dyn Listener>)>>,
    /// The only listener's number, 0 without any.
    heard_by: AtomicU64,
    /// How many serve it otherwise than listeners do.
    others: AtomicUsize,
}

/// A listener is told, until this is dropped.
#[must_use = "nothing is told any more when this is dropped"]
pub struct Listening {
    changes: Arc<Changes>,
    origin: Origin,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut listeners = self.changes.listeners.write();
        listeners.retain(|(origin, _)| *origin != self.origin);
        self.changes.count(&listeners);
    }
}

/// Somebody else than listeners may change the filesystem, until this is dropped.
#[must_use = "listeners take themselves for alone when this is dropped"]
pub struct Sharing(Arc<Changes>);

impl Drop for Sharing {
    fn drop(&mut self) {
        self.0.others.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Changes {
    fn count(&self, listeners: &[(Origin, Weak<dyn Listener>)]) {
        let heard_by = match listeners {
            [] => 0,
            [(origin, _)] => origin.0,
            _ => Origin::SEVERAL,
        };
        self.heard_by.store(heard_by, Ordering::Release);
    }

    /// Tells `listener` of changes that are not made within [`By`] its number.
    pub fn listen(self: &Arc<Self>, origin: Origin, listener: Weak<dyn Listener>) -> Listening {
        let mut listeners = self.listeners.write();
        listeners.push((origin, listener));
        self.count(&listeners);
        Listening {
            changes: Arc::clone(self),
            origin,
        }
    }

    /// Notes that somebody else than the listeners serves the filesystem.
    pub fn share(self: &Arc<Self>) -> Sharing {
        self.others.fetch_add(1, Ordering::AcqRel);
        Sharing(Arc::clone(self))
    }

    /// Whether more than one listener, or somebody else, may change the filesystem.
    pub fn is_shared(&self) -> bool {
        self.heard_by.load(Ordering::Acquire) == Origin::SEVERAL
            || self.others.load(Ordering::Acquire) > 0
    }

    /// Whether somebody is to be told of what is changed now.
    fn is_heard(&self) -> bool {
        let heard_by = self.heard_by.load(Ordering::Acquire);
        heard_by != 0 && heard_by != Origin::current().0
    }

    fn heard_by(&self) -> Vec<Arc<dyn Listener>> {
        let current = Origin::current();
        let listeners = self.listeners.read();
        let others = listeners.iter().filter(|(origin, _)| *origin != current);
        others
            .filter_map(|(_, listener)| listener.upgrade())
            .collect()
    }

    /// Where something else is mounted inside of the filesystem, as paths from its root, by what
    /// all listeners say ([`Listener::mounted_inside`]). A kernel keeps such names itself from
    /// whoever asks it; others who take them away must look.
    pub async fn mounted_inside(&self, of_directories: bool) -> Vec<PathBuf> {
        let mut places = Vec::new();
        if self.heard_by.load(Ordering::Acquire) != 0 {
            for listener in self.heard_by() {
                if let Some(found) = listener.mounted_inside(of_directories) {
                    places.extend(found.await);
                }
            }
        }
        places
    }

    /// Completes when no listener but the one for whom this is done has anything older than what
    /// was changed so far, as far as listeners can see to that. Call without locks.
    pub async fn told(&self) {
        if !self.is_heard() {
            return;
        }
        for listener in self.heard_by() {
            if let Some(told) = listener.told() {
                told.await;
            }
        }
    }
}

/// Where a filesystem tells of its changes; nowhere until it is opened for others.
#[derive(Default)]
pub(crate) struct Outlet(OnceLock<Arc<Changes>>);

impl Outlet {
    pub(crate) fn set(&self, changes: &Arc<Changes>) {
        // A filesystem is of one dataset for as long as it is open.
        let _ = self.0.set(Arc::clone(changes));
    }

    pub(crate) fn get(&self) -> Option<&Arc<Changes>> {
        self.0.get()
    }

    /// Tells of a change, if anybody is to hear of it who knows the object (`is_known`).
    pub(crate) fn tell(&self, change: Change<'_>, is_known: impl Fn(u64) -> bool) {
        let Some(changes) = self.0.get() else { return };
        if changes.is_heard() && is_known(change.object()) {
            for listener in changes.heard_by() {
                listener.changed(change);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Default)]
    struct Heard {
        objects: Mutex<Vec<u64>>,
        is_waiting: AtomicBool,
    }

    impl Listener for Heard {
        fn changed(self: Arc<Self>, change: Change<'_>) {
            self.objects.lock().push(change.object());
        }

        fn told(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
            let is_waiting = self.is_waiting.load(Ordering::Relaxed);
            is_waiting.then(|| Box::pin(std::future::pending()) as _)
        }
    }

    fn listens(changes: &Arc<Changes>) -> (Arc<Heard>, Origin, Listening) {
        let (heard, origin) = (Arc::<Heard>::default(), Origin::unique());
        let listener: Arc<dyn Listener> = Arc::<Heard>::clone(&heard);
        let listening = changes.listen(origin, Arc::downgrade(&listener));
        (heard, origin, listening)
    }

    fn heard(listener: &Heard) -> Vec<u64> {
        std::mem::take(&mut *listener.objects.lock())
    }

    /// Goal: all hear of a change but who asked for it, of what kernels know alone, and as long as
    /// they listen.
    #[tokio::test]
    async fn changes_are_told_to_all_but_their_own() {
        let (changes, outlet) = (Arc::<Changes>::default(), Arc::new(Outlet::default()));
        let tell = {
            let outlet = Arc::clone(&outlet);
            move |ino| outlet.tell(Change::Attributes { ino }, |known| known < 10)
        };
        tell(1);
        outlet.set(&changes);
        let (one, origin, listening) = listens(&changes);
        tell(2);
        tell(11);
        By::new(origin, std::future::ready(())).await;
        let own = tell.clone();
        By::new(origin, async move {
            own(3);
            // The thread does not stay its own while it waits.
            tokio::task::yield_now().await;
            own(4);
        })
        .await;
        tell(5);
        assert_eq!(heard(&one), [2, 5]);
        assert!(!changes.is_shared());
        let (other, _, also) = listens(&changes);
        assert!(changes.is_shared());
        let own = tell.clone();
        By::new(origin, async move { own(6) }).await;
        tell(7);
        assert_eq!((heard(&one), heard(&other)), (vec![7], vec![6, 7]));
        drop(listening);
        tell(8);
        assert_eq!((heard(&one), heard(&other)), (vec![], vec![8]));
        drop(also);
        tell(9);
        assert_eq!(heard(&other), [0; 0]);
        let sharing = changes.share();
        assert!(changes.is_shared());
        drop(sharing);
        assert!(!changes.is_shared());
    }

    /// Goal: who made a change waits for the others, never for itself.
    #[tokio::test]
    async fn nobody_waits_for_itself() {
        let changes = Arc::<Changes>::default();
        let (one, origin, _listening) = listens(&changes);
        one.is_waiting.store(true, Ordering::Relaxed);
        let own = Arc::clone(&changes);
        By::new(origin, async move { own.told().await }).await;
        let told = tokio::time::timeout(std::time::Duration::ZERO, changes.told());
        assert!(told.await.is_err());
        one.is_waiting.store(false, Ordering::Relaxed);
        changes.told().await;
    }
}
