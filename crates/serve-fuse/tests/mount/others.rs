//! What others change in a filesystem that is mounted: the mount shows it from when they have been
//! told that it does, whatever the kernel had kept, and nothing that is written there goes
//! elsewhere or is lost.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use device::BoxFuture;
use filesystem::{
    Caller, Change, Changes, FileKind, Listener, Origin, RenameMode, SetAttributes, XattrMode,
};
use rustix::mount::{MountFlags, UnmountFlags};

use super::*;

/// A filesystem that is mounted, and served by somebody else too.
struct Shared {
    mount: Mount,
    lease: Lease<Filesystem>,
    root: PathBuf,
    _sharing: filesystem::Sharing,
    rig: Rig,
}

impl Shared {
    async fn new() -> Self {
        let rig = Rig::new(&[("acltype", "posix")]).await;
        let lease = rig.filesystem("tank").await;
        let mount = rig.mount(&lease, MountOptions::new("tank")).await;
        let root = rig.mountpoint();
        let sharing = lease.changes().share();
        Self {
            mount,
            lease,
            root,
            _sharing: sharing,
            rig,
        }
    }

    fn fs(&self) -> Arc<Filesystem> {
        self.lease.get()
    }

    async fn told(&self) {
        self.lease.changes().told().await;
    }

    /// The number of a path's file, from the root.
    async fn ino(&self, path: &str) -> u64 {
        let fs = self.fs();
        let mut ino = fs.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            ino = fs.lookup(ino, name.as_bytes()).await.expect("there").ino;
        }
        ino
    }

    /// Somebody else writes.
    async fn write(&self, path: &str, offset: u64, data: &[u8]) {
        let (ino, data) = (self.ino(path).await, Bytes::copy_from_slice(data));
        let written = self
            .fs()
            .write(ino, offset, data, false, Caller::ROOT)
            .await;
        written.expect("written");
        self.told().await;
    }

    /// What the filesystem itself has.
    async fn content(&self, path: &str) -> Vec<u8> {
        let read = self.fs().read(self.ino(path).await, 0, 1 << 20).await;
        read.expect("read").concat()
    }

    /// Does something through the mount.
    async fn there<T: Send + 'static>(&self, work: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let root = self.root.clone();
        outside(move || work(&root)).await
    }

    async fn end(self) {
        unmount(&self.mount).await;
        drop(self.mount);
        drop(self._sharing);
        drop(self.lease);
        self.rig.export().await;
    }
}

fn read(root: &Path, name: &str) -> Vec<u8> {
    fs::read(root.join(name)).expect("read")
}

/// Goal: bytes, sizes and attributes that others change are seen at once, though the kernel had
/// pages and attributes of the file; an append goes behind what they appended.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn content_and_attributes_that_others_change_are_seen() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new().await;
    let before = pattern(1, 3 * 4096);
    let (written, expected) = (before.clone(), before.clone());
    let kept = shared.there(move |root| {
        fs::write(root.join("f"), &written).expect("write");
        assert!(read(root, "f") == expected);
        File::open(root.join("f")).expect("open")
    });
    let kept = kept.await;
    // The same size, in the middle of pages.
    let mut now = before;
    now[4000..4200].fill(7);
    shared.write("f", 4000, &[7; 200]).await;
    let expected = now.clone();
    shared
        .there(move |root| {
            assert!(read(root, "f") == expected);
            let mut bytes = [0; 200];
            kept.read_exact_at(&mut bytes, 4000).expect("read");
            assert_eq!(bytes, [7; 200]);
        })
        .await;
    // Longer; then the mount appends.
    let end = now.len() as u64;
    shared.write("f", end, b"behind").await;
    let expected = [&now[..], b"behind", b"last"].concat();
    let seen = expected.clone();
    shared
        .there(move |root| {
            let mut file = OpenOptions::new().append(true).open(root.join("f"));
            file.as_mut().expect("open").write_all(b"last").expect("w");
            assert!(read(root, "f") == seen);
        })
        .await;
    assert!(shared.content("f").await == expected);
    // Shorter, another mode and owner, attributes in lists.
    let ino = shared.ino("f").await;
    shared
        .there(|root| {
            fs::metadata(root.join("f")).expect("stat");
        })
        .await;
    let set = SetAttributes {
        size_bytes: Some(5000),
        mode: Some(0o600),
        uid: Some(7),
        ..SetAttributes::default()
    };
    let fs = shared.fs();
    fs.set_attributes(ino, &set, Caller::ROOT)
        .await
        .expect("set");
    let xattrs = fs.xattrs();
    xattrs
        .set(ino, b"user.a", b"1", XattrMode::Any, Caller::ROOT)
        .await
        .expect("set");
    shared.told().await;
    shared
        .there(move |root| {
            let found = fs::metadata(root.join("f")).expect("stat");
            assert_eq!(
                (found.len(), found.mode(), found.uid()),
                (5000, 0o100_600, 7)
            );
            assert!(read(root, "f") == expected[..5000]);
        })
        .await;
    // Longer again, with a hole where the kernel had bytes.
    shared.write("f", 9000, b"end").await;
    shared
        .there(|root| {
            let found = read(root, "f");
            assert!(found[5000..9000].iter().all(|byte| *byte == 0));
            assert_eq!(&found[9000..], b"end");
        })
        .await;
    shared.end().await;
}

/// Goal: what others change of a file that is not on disk yet is seen at once, though the kernel
/// goes by its attributes for a moment. Method: it is asked for them right before and right after,
/// many times: writes, shortening, clones, modes.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn changes_of_what_is_not_on_disk_are_seen_at_once() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new().await;
    shared
        .there(|root| {
            fs::write(root.join("f"), "12345678").expect("write");
            fs::write(root.join("from"), pattern(3, 5000)).expect("write");
        })
        .await;
    let (ino, from) = (shared.ino("f").await, shared.ino("from").await);
    let fs = shared.fs();
    let seen = || {
        shared.there(|root| {
            let found = fs::metadata(root.join("f")).expect("stat");
            (found.len(), found.mode() & 0o777)
        })
    };
    for round in 0..200u32 {
        let (size, mode) = seen().await;
        let expected = match round % 4 {
            0 => {
                shared.write("f", size, b"more").await;
                (size + 4, mode)
            }
            1 => {
                let set = SetAttributes {
                    size_bytes: Some(size / 2),
                    ..SetAttributes::default()
                };
                let set = fs.set_attributes(ino, &set, Caller::ROOT);
                set.await.expect("set");
                (size / 2, mode)
            }
            2 => {
                let copying = fs.copy_range(from, 0, ino, size, 5000, Caller::ROOT);
                assert_eq!(copying.await.expect("copied"), 5000);
                (size + 5000, mode)
            }
            _ => {
                let mode = 0o600 + round % 64;
                let set = SetAttributes {
                    mode: Some(mode),
                    ..SetAttributes::default()
                };
                let set = fs.set_attributes(ino, &set, Caller::ROOT);
                set.await.expect("set");
                (size, mode)
            }
        };
        shared.told().await;
        assert_eq!(seen().await, expected, "{round}");
    }
    drop(fs);
    shared.end().await;
}

/// Goal: names that others make, remove, replace and move are seen at once, and what is written by
/// them goes where the name leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn names_that_others_change_are_seen() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new().await;
    let fs = shared.fs();
    let root_ino = fs.root();
    shared
        .there(|root| {
            fs::create_dir(root.join("d")).expect("mkdir");
            for name in ["old", "d/new", "gone", "linked"] {
                fs::write(root.join(name), name).expect("write");
                fs::metadata(root.join(name)).expect("stat");
            }
            assert!(!root.join("absent").exists());
            assert_eq!(names(root).len(), 4);
        })
        .await;
    let directory = shared.ino("d").await;
    let linked = shared.ino("linked").await;
    // A rename over a file that the mount knows.
    let mode = RenameMode::Replace;
    fs.rename(directory, b"new", root_ino, b"old", mode)
        .await
        .expect("renamed");
    fs.unlink(root_ino, b"gone").await.expect("unlinked");
    fs.create(root_ino, b"absent", 0o644, Caller::ROOT)
        .await
        .expect("made");
    fs.link(linked, directory, b"link").await.expect("linked");
    shared.told().await;
    shared
        .there(|root| {
            assert_eq!(read(root, "old"), b"d/new");
            let file = OpenOptions::new().write(true).open(root.join("old"));
            let mut file = file.expect("open");
            file.write_all(b"local").expect("write");
            file.sync_all().expect("fsync");
            assert!(!root.join("gone").exists() && !root.join("d/new").exists());
            fs::write(root.join("absent"), "here").expect("write");
            assert_eq!(fs::metadata(root.join("linked")).expect("stat").nlink(), 2);
            assert_eq!(read(root, "d/link"), b"linked");
            assert_eq!(names(&root.join("d")), BTreeSet::from(["link".to_owned()]));
        })
        .await;
    assert_eq!(shared.content("old").await, b"local");
    assert_eq!(shared.content("absent").await, b"here");
    // Directories: moved, removed and made anew while somebody is in one.
    let kept = shared.there(|root| {
        fs::create_dir_all(root.join("a/b")).expect("mkdir");
        fs::metadata(root.join("a/b")).expect("stat");
        File::open(root.join("a/b")).expect("open")
    });
    let kept = kept.await;
    let a = shared.ino("a").await;
    fs.remove_directory(a, b"b").await.expect("removed");
    fs.rename(root_ino, b"a", directory, b"moved", mode)
        .await
        .expect("renamed");
    fs.make_directory(root_ino, b"a", 0o755, Caller::ROOT)
        .await
        .expect("made");
    shared.told().await;
    shared
        .there(move |root| {
            assert!(names(&root.join("a")).is_empty());
            assert!(names(&root.join("d/moved")).is_empty());
            fs::write(root.join("a/f"), "new").expect("write");
            let made = rustix::fs::openat(
                &kept,
                "f",
                rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
                0o644.into(),
            );
            assert!(made.is_err(), "a directory that is gone takes no files");
        })
        .await;
    assert_eq!(shared.content("a/f").await, b"new");
    // In exchange.
    let exchange = RenameMode::Exchange;
    fs.rename(root_ino, b"old", root_ino, b"absent", exchange)
        .await
        .expect("exchanged");
    shared.told().await;
    shared
        .there(|root| {
            assert_eq!(read(root, "old"), b"here");
            assert_eq!(read(root, "absent"), b"local");
        })
        .await;
    drop(fs);
    shared.end().await;
}

/// Goal: a directory that others move or remove does not take mounts along that are in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn mounts_inside_stay_where_others_rename() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new().await;
    shared
        .there(|root| {
            fs::create_dir_all(root.join("a/inner")).expect("mkdir");
            let (place, none) = (root.join("a/inner"), MountFlags::empty());
            rustix::mount::mount("none", &place, "tmpfs", none, None).expect("mounted");
            fs::write(place.join("f"), "inside").expect("write");
        })
        .await;
    let (fs, mode) = (shared.fs(), RenameMode::Replace);
    let root_ino = fs.root();
    fs.rename(root_ino, b"a", root_ino, b"b", mode)
        .await
        .expect("renamed");
    shared.told().await;
    shared
        .there(|root| {
            assert_eq!(read(root, "b/inner/f"), b"inside");
            rustix::mount::unmount(root.join("b/inner"), UnmountFlags::empty()).expect("unmounted");
            assert!(names(&root.join("b/inner")).is_empty());
        })
        .await;
    drop(fs);
    shared.end().await;
}

/// Maps a file, changes a byte of its second page, says so, and waits until it is let go.
const MAP: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
data = mmap.mmap(fd, 8192)
data[4196] = 77
print('changed', flush=True)
sys.stdin.readline()
";

/// Goal: what a program has written into a mapping is not lost where others change the page.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_is_written_in_mappings_is_kept() {
    if !can_mount() || !oracles::need("python3", Path::new("/usr/bin/python3").exists()) {
        return;
    }
    let shared = Shared::new().await;
    let child = shared.there(|root| {
        fs::write(root.join("f"), [1; 8192]).expect("write");
        let mut child = Command::new("python3");
        child.args(["-c", MAP]).arg(root.join("f"));
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("python");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "changed\n");
        child
    });
    let mut child = child.await;
    shared.write("f", 4000, &[2; 100]).await;
    let found = shared.content("f").await;
    assert_eq!((found[4000], found[4196]), (2, 77));
    drop(child.stdin.take());
    assert!(child.wait().expect("its end").success());
    shared.end().await;
}

/// Hears of all changes.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Listener for Counter {
    fn changed(self: Arc<Self>, _: Change<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn told(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// Goal: a mount's own changes are told to others, but do not make its kernel drop what it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn own_changes_leave_the_kernels_pages() {
    if !can_mount() {
        return;
    }
    let shared = Shared::new().await;
    let other = Arc::new(Counter::default());
    let listener: Arc<dyn Listener> = Arc::<Counter>::clone(&other);
    let changes: &Arc<Changes> = shared.lease.changes();
    let listening = changes.listen(Origin::unique(), Arc::downgrade(&listener));
    shared
        .there(|root| {
            let mut file = File::create_new(root.join("f")).expect("create");
            for seed in 0..8 {
                file.write_all(&pattern(seed, 8192)).expect("write");
            }
            fs::rename(root.join("f"), root.join("g")).expect("rename");
            fs::set_permissions(root.join("g"), PermissionsExt::from_mode(0o600)).expect("chmod");
        })
        .await;
    assert!(other.0.load(Ordering::Relaxed) > 8);
    shared.told().await;
    let read_before = shared.mount.traffic().read_bytes;
    let length = shared.there(|root| read(root, "g").len()).await;
    assert_eq!(length, 8 * 8192);
    assert_eq!(shared.mount.traffic().read_bytes, read_before);
    drop(listening);
    let kind = shared.fs().attributes(shared.ino("g").await).await;
    assert_eq!(kind.expect("there").kind, FileKind::Regular);
    shared.end().await;
}
