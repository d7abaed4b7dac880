//! Goal: programs see a POSIX filesystem at the mountpoint, snapshots below `.zfs`, volumes as
//! files; and mounting and unmounting say clearly what stands in their way.
//! Method: real mounts of pools on image files, used through the host's own system calls. Needs
//! root and /dev/fuse; left out (but in CI failed) without.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use access::{Access, Exclusion, Lease, Snapdir, User};
use device::World;
use filesystem::{Filesystem, ZplInit};
use pool::{
    CreateSpec, FeatureChoice, HostIdentity, LeafSpec, Pool, VdevClass, VdevLayout, VdevSpec,
};
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use serve_fuse::{Mount, MountError, MountOptions, UnmountMode, mounted_at};

use crate::set_id::as_member;

mod killed;
mod others;
mod set_id;
mod volumes;

/// Whether mounting can work here.
fn can_mount() -> bool {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let is_root = rustix::process::geteuid().is_root();
    oracles::need("root with /dev/fuse", is_root && fuse.is_ok())
}

struct Rig {
    // Dropped last.
    dir: tempfile::TempDir,
    pool: Arc<Pool>,
    access: Arc<Access>,
}

impl Rig {
    async fn new(properties: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World::system(2);
        let path = dir.path().join("d0.img");
        File::create(&path)
            .expect("image")
            .set_len(512 << 20)
            .expect("size");
        let leaf = LeafSpec {
            path: path.to_str().expect("UTF-8").to_owned(),
            is_file: true,
        };
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let spec = CreateSpec {
            name: "tank".into(),
            vdevs: vec![VdevSpec {
                layout: VdevLayout::Leaf(leaf),
                class: VdevClass::Normal,
            }],
            properties: Vec::new(),
            features: FeatureChoice::All,
            root_properties: properties.iter().map(own).collect(),
            root_init: Arc::new(ZplInit::new()),
            altroot: None,
            force: false,
            host: HostIdentity {
                hostid: 0,
                hostname: "test".into(),
            },
            events: None,
            cache: None,
        };
        let pool = Pool::create(&world, spec).await.expect("create");
        let access = Arc::new(Access::new(Arc::clone(pool.dsl()), world));
        Self { dir, pool, access }
    }

    fn user(&self) -> User {
        let path = self.mountpoint();
        User::Mount { path }
    }

    async fn filesystem(&self, name: &str) -> Lease<Filesystem> {
        let lease = self.access.filesystem(name, self.user()).await;
        lease.expect("open the filesystem")
    }

    /// Leaves the pool, whoever has a lease still.
    async fn export(&self) {
        let nobody = self.access.leave(Exclusion::Forced).await;
        self.pool.export(false).await.expect("export");
        drop(nobody.expect("by force"));
    }

    fn mountpoint(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    async fn try_mount(
        &self,
        filesystem: &Lease<Filesystem>,
        path: &Path,
        options: MountOptions,
    ) -> Result<Mount, MountError> {
        let lease = filesystem.share(self.user()).await.expect("a lease");
        Mount::new(&self.access, lease, path, options).await
    }

    async fn mount(&self, filesystem: &Lease<Filesystem>, options: MountOptions) -> Mount {
        let mounted = self
            .try_mount(filesystem, &self.mountpoint(), options)
            .await;
        mounted.expect("mount")
    }
}

/// Unmounts. Programs that another test starts have all open files of this process until their
/// `exec`, and a namespace of mounts that it makes has this mount as well until it lets go of it:
/// for a moment the mount may be busy, or in use elsewhere.
async fn unmount(mount: &Mount) {
    for _ in 0..200 {
        match mount.unmount(UnmountMode::Clean).await {
            Err(MountError::Busy { .. } | MountError::Elsewhere { .. }) => {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            done => return done.expect("unmount"),
        }
    }
    panic!("the mount stays busy");
}

/// Runs what uses the mount on a thread that serves nobody.
async fn outside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

fn names(path: &Path) -> BTreeSet<String> {
    fs::read_dir(path)
        .expect("list")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect()
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// What programs do, one after the other.
fn use_it(root: &Path) {
    // Content: small, big, with holes, appended, written at places.
    let big = pattern(1, 5_000_000);
    fs::write(root.join("big"), &big).expect("write");
    assert!(fs::read(root.join("big")).expect("read") == big);
    let mut file = OpenOptions::new()
        .append(true)
        .open(root.join("big"))
        .expect("open");
    file.write_all(b"tail").expect("append");
    file.sync_all().expect("fsync");
    let at = fs::metadata(root.join("big")).expect("stat");
    assert_eq!((at.len(), at.nlink(), at.mode()), (5_000_004, 1, 0o100_644));
    assert_eq!((at.uid(), at.gid()), (0, 0));
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(root.join("holes"))
        .unwrap();
    file.write_all_at(b"end", 10_000_000).expect("write far");
    assert_eq!(file.metadata().unwrap().len(), 10_000_003);
    let mut start = [1; 4096];
    file.read_exact_at(&mut start, 4096).expect("read a hole");
    assert_eq!(start, [0; 4096]);
    file.write_all_at(&big[..1_000_000], 0).expect("fill");
    rustix::fs::fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        131_072,
        262_144,
    )
    .expect("punch");
    let mut hole = vec![1; 262_144];
    file.read_exact_at(&mut hole, 131_072).expect("read");
    assert!(hole.iter().all(|byte| *byte == 0));
    file.set_len(500_000).expect("cut");
    file.set_len(600_000).expect("grow");
    let mut tail = vec![1; 100_000];
    file.read_exact_at(&mut tail, 500_000).expect("read");
    assert!(tail.iter().all(|byte| *byte == 0));
    file.sync_all().expect("fsync");
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).expect("seek");
    assert_eq!(hole, 131_072);
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(hole)).expect("seek");
    assert_eq!(data, 131_072 + 262_144);
    drop(file);
    fs::copy(root.join("big"), root.join("copy")).expect("copy");
    assert!(fs::read(root.join("copy")).unwrap() == fs::read(root.join("big")).unwrap());

    // Names.
    fs::create_dir_all(root.join("a/b/c")).expect("directories");
    fs::hard_link(root.join("big"), root.join("a/link")).expect("link");
    assert_eq!(fs::metadata(root.join("big")).unwrap().nlink(), 2);
    let same = fs::metadata(root.join("a/link")).unwrap().ino();
    assert_eq!(fs::metadata(root.join("big")).unwrap().ino(), same);
    symlink("../big", root.join("a/symbolic")).expect("symlink");
    assert_eq!(
        fs::read_link(root.join("a/symbolic")).unwrap(),
        Path::new("../big")
    );
    assert_eq!(
        fs::metadata(root.join("a/symbolic")).unwrap().len(),
        5_000_004
    );
    fs::rename(root.join("a/b"), root.join("moved")).expect("rename");
    assert!(root.join("moved/c").is_dir());
    assert!(fs::rename(root.join("moved"), root.join("moved/c/d")).is_err());
    assert_eq!(
        fs::remove_dir(root.join("moved")).unwrap_err().kind(),
        ErrorKind::DirectoryNotEmpty
    );
    let dir = File::open(root).expect("open the root");
    let noreplace = rustix::fs::renameat_with(&dir, "copy", &dir, "big", RenameFlags::NOREPLACE);
    assert_eq!(noreplace, Err(rustix::io::Errno::EXIST));
    rustix::fs::renameat_with(&dir, "copy", &dir, "moved", RenameFlags::EXCHANGE).expect("swap");
    assert!(root.join("copy/c").is_dir() && root.join("moved").is_file());
    fs::remove_file(root.join("moved")).expect("unlink");
    fs::remove_dir_all(root.join("copy")).expect("remove a tree");
    assert!(!root.join("moved").exists());

    // Special files.
    rustix::fs::mknodat(&dir, "fifo", rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("fifo");
    assert!(
        fs::metadata(root.join("fifo"))
            .unwrap()
            .file_type()
            .is_fifo()
    );
    let rdev = rustix::fs::makedev(7, 200);
    rustix::fs::mknodat(
        &dir,
        "dev",
        rustix::fs::FileType::BlockDevice,
        0o600.into(),
        rdev,
    )
    .expect("device");
    let at = fs::symlink_metadata(root.join("dev")).unwrap();
    assert!(at.file_type().is_block_device() && at.rdev() == rdev);

    // Attributes.
    fs::set_permissions(root.join("big"), PermissionsExt::from_mode(0o4751)).expect("chmod");
    std::os::unix::fs::chown(root.join("big"), Some(1000), Some(1001)).expect("chown");
    let at = fs::metadata(root.join("big")).unwrap();
    assert_eq!((at.uid(), at.gid()), (1000, 1001));
    let name = root.join("big");
    rustix::fs::setxattr(&name, "user.color", b"blue", XattrFlags::empty()).expect("setxattr");
    rustix::fs::setxattr(
        &name,
        "trusted.secret",
        &pattern(3, 5000),
        XattrFlags::empty(),
    )
    .unwrap();
    let again = rustix::fs::setxattr(&name, "user.color", b"red", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    let mut value = [0; 100];
    let length = rustix::fs::getxattr(&name, "user.color", &mut value[..]).expect("getxattr");
    assert_eq!(&value[..length], b"blue");
    let none = rustix::fs::getxattr(&name, "user.none", &mut value[..]);
    assert_eq!(none, Err(rustix::io::Errno::NODATA));
    let mut list = [0; 200];
    let length = rustix::fs::listxattr(&name, &mut list[..]).expect("listxattr");
    assert_eq!(&list[..length], b"user.color\0trusted.secret\0");
    rustix::fs::removexattr(&name, "trusted.secret").expect("removexattr");
    let before = std::time::SystemTime::UNIX_EPOCH - std::time::Duration::from_millis(1500);
    let times = fs::FileTimes::new()
        .set_modified(before)
        .set_accessed(before);
    File::options()
        .write(true)
        .open(&name)
        .unwrap()
        .set_times(times)
        .expect("utimens");
    let at = fs::metadata(&name).unwrap();
    assert_eq!((at.mtime(), at.mtime_nsec()), (-2, 500_000_000));

    // Unlinked, still open.
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(root.join("gone"))
        .unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(root.join("gone")).expect("unlink");
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);

    // Many names.
    fs::create_dir(root.join("many")).unwrap();
    for n in 0..1500 {
        File::create(root.join(format!("many/a rather long name, number {n}"))).expect("create");
    }
    assert_eq!(names(&root.join("many")).len(), 1500);
    for n in (0..1500).step_by(2) {
        fs::remove_file(root.join(format!("many/a rather long name, number {n}"))).expect("unlink");
    }
    assert_eq!(names(&root.join("many")).len(), 750);
    assert_eq!(fs::metadata(root.join("many")).unwrap().size(), 752);

    // Synchronous writes, and space.
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .custom_flags(0o4_010_000)
        .open(root.join("sync"))
        .unwrap();
    file.write_all(b"durable").expect("write");
    let space = rustix::fs::statvfs(root).expect("statvfs");
    assert!(space.f_blocks > 0 && space.f_bavail <= space.f_bfree);
    assert_eq!(space.f_namemax, 255);
}

/// What [`use_it`] leaves.
fn check_it(root: &Path) {
    let big = fs::read(root.join("big")).expect("read");
    assert!(big[..5_000_000] == pattern(1, 5_000_000)[..] && big[5_000_000..] == *b"tail");
    let wanted = ["a", "big", "dev", "fifo", "holes", "many", "sync"];
    assert_eq!(names(root), wanted.into_iter().map(str::to_owned).collect());
    assert_eq!(names(&root.join("many")).len(), 750);
    let mut value = [0; 100];
    let length = rustix::fs::getxattr(root.join("big"), "user.color", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"blue");
    let at = fs::metadata(root.join("big")).unwrap();
    assert_eq!((at.uid(), at.gid(), at.nlink()), (1000, 1001, 2));
    assert_eq!(at.mtime(), -2);
    assert!(
        at.blocks() * 512 > 4_000_000,
        "space shows once it is on disk"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_filesystem_is_used_and_mounted_again() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[]).await;
    let filesystem = rig.filesystem("tank").await;
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    assert!(mount.is_mounted());
    let found = mounted_at(mount.mountpoint())
        .expect("mountinfo")
        .expect("a mount");
    assert_eq!(found.0, "tank");
    assert!(found.1.starts_with("fuse"), "{}", found.1);
    let root = rig.mountpoint();
    let place = root.clone();
    outside(move || use_it(&place)).await;
    unmount(&mount).await;
    assert!(!mount.is_mounted());
    assert_eq!(mounted_at(&root).expect("mountinfo"), None);
    filesystem.close().await.expect("close");
    drop(mount);

    let filesystem = rig.filesystem("tank").await;
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let place = root.clone();
    outside(move || check_it(&place)).await;
    unmount(&mount).await;
    filesystem.close().await.expect("close");
    rig.export().await;
    let zdb = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/zdb"))
        .args(["-e", "-p"])
        .arg(rig.dir.path())
        .args(["-bcc", "tank"])
        .output();
    let text = String::from_utf8_lossy(&zdb.expect("zdb").stdout).into_owned();
    assert!(text.contains("No leaks"), "{text}");
}

/// Mounts an empty tmpfs over `path`, or takes it away.
fn cover(path: &Path, on: bool) {
    let name = path.as_os_str();
    let outcome = if on {
        Command::new("mount")
            .args(["-t", "tmpfs", "cover"])
            .arg(name)
            .status()
    } else {
        Command::new("umount").arg(name).status()
    };
    assert!(outcome.expect("mount and umount").success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_others_mounted_over_it_is_left_alone() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[]).await;
    let filesystem = rig.filesystem("tank").await;
    let root = rig.mountpoint();
    let source = || {
        mounted_at(&root)
            .expect("mountinfo")
            .map(|(source, _)| source)
    };
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    cover(&root, true);
    assert!(mount.is_mounted(), "be it covered");
    let covered = mount.unmount(UnmountMode::Clean).await;
    assert!(
        matches!(covered, Err(MountError::Covered { .. })),
        "{covered:?}"
    );
    let covered = mount.remount(&MountOptions::new("tank")).await;
    assert!(
        matches!(covered, Err(MountError::Covered { .. })),
        "{covered:?}"
    );
    assert_eq!(source().as_deref(), Some("cover"));
    cover(&root, false);
    assert_eq!(source().as_deref(), Some("tank"));
    unmount(&mount).await;
    assert_eq!(source(), None);

    // What is there after somebody unmounted it by hand is not ours.
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let place = root.clone();
    outside(move || cover(&place, false)).await;
    cover(&root, true);
    assert!(!mount.is_mounted());
    unmount(&mount).await;
    assert_eq!(source().as_deref(), Some("cover"));
    cover(&root, false);

    // By force it is cut off where it is.
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    cover(&root, true);
    mount.unmount(UnmountMode::Force).await.expect("by force");
    assert!(!mount.is_mounted());
    assert_eq!(source().as_deref(), Some("cover"));
    cover(&root, false);
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let place = root.clone();
    outside(move || use_it(&place)).await;
    unmount(&mount).await;
    filesystem.close().await.expect("close");
}

/// Goal: who uses a filesystem at another place than where it was mounted, or what is mounted
/// inside, is not cut off but by force.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_is_in_use_elsewhere_is_busy() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[]).await;
    let filesystem = rig.filesystem("tank").await;
    let root = rig.mountpoint();
    let elsewhere = rig.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let (from, to) = (root.clone(), elsewhere.clone());
    outside(move || {
        fs::create_dir(from.join("inner")).expect("a directory");
        cover(&from.join("inner"), true);
        let bound = Command::new("mount")
            .arg("--bind")
            .args([&from, &to])
            .status();
        assert!(bound.expect("mount").success());
    })
    .await;
    for mode in [UnmountMode::Clean, UnmountMode::Force] {
        let refused = mount.unmount(mode).await;
        assert!(
            matches!(refused, Err(MountError::Inside { .. })),
            "{refused:?}"
        );
    }
    let place = root.clone();
    outside(move || {
        cover(&place.join("inner"), false);
        cover(&place, false);
    })
    .await;
    // What is left of it is where somebody bound it.
    assert!(mount.is_mounted());
    unmount(&mount).await;
    assert_eq!(mounted_at(&elsewhere).expect("mountinfo"), None);

    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let (from, to) = (root.clone(), elsewhere.clone());
    outside(move || {
        let bound = Command::new("mount")
            .arg("--bind")
            .args([&from, &to])
            .status();
        assert!(bound.expect("mount").success());
    })
    .await;
    let refused = mount.unmount(UnmountMode::Clean).await;
    assert!(
        matches!(refused, Err(MountError::Elsewhere { .. })),
        "{refused:?}"
    );
    let place = elsewhere.clone();
    outside(move || {
        fs::write(place.join("file"), "still there").expect("it works on");
        cover(&place, false);
    })
    .await;
    unmount(&mount).await;

    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let (from, to) = (root.clone(), elsewhere.clone());
    outside(move || {
        let moved = Command::new("mount")
            .arg("--move")
            .args([&from, &to])
            .status();
        assert!(moved.expect("mount").success());
    })
    .await;
    // Moved, it is unmounted where it is.
    assert!(mount.is_mounted());
    assert_eq!(mounted_at(&root).expect("mountinfo"), None);
    mount.unmount(UnmountMode::Force).await.expect("by force");
    assert_eq!(mounted_at(&elsewhere).expect("mountinfo"), None);
    filesystem.close().await.expect("close");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn unmounting_while_files_are_open() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[]).await;
    let filesystem = rig.filesystem("tank").await;
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let path = rig.mountpoint().join("file");
    let file = outside(move || File::create(path).expect("create")).await;
    let busy = mount.unmount(UnmountMode::Clean).await;
    assert!(matches!(busy, Err(MountError::Busy { .. })), "{busy:?}");
    assert!(mount.is_mounted());
    mount.unmount(UnmountMode::Force).await.expect("by force");
    assert!(!mount.is_mounted());
    let refused = outside(move || file.write_at(b"late", 0)).await;
    assert!(refused.is_err(), "what was open is cut off");

    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let path = rig.mountpoint().join("file");
    let file = outside(move || File::options().write(true).open(path).expect("open")).await;
    mount.unmount(UnmountMode::Lazy).await.expect("lazily");
    assert_eq!(mounted_at(&rig.mountpoint()).expect("mountinfo"), None);
    outside(move || {
        file.write_all_at(b"late", 0)
            .expect("an open file still works");
        drop(file);
    })
    .await;
    mount.ended().await;
    filesystem.close().await.expect("close");
    rig.export().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_stands_in_the_way_of_mounting() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[]).await;
    let filesystem = rig.filesystem("tank").await;
    let root = rig.mountpoint();
    fs::create_dir(&root).unwrap();
    fs::write(root.join("hidden"), "x").unwrap();
    let options = MountOptions {
        overlay: false,
        ..MountOptions::new("tank")
    };
    let again = |options: MountOptions| rig.try_mount(&filesystem, &root, options);
    assert!(matches!(
        again(options.clone()).await,
        Err(MountError::NotEmpty { .. })
    ));
    let mount = again(MountOptions::new("tank")).await.expect("over files");
    let place = root.clone();
    let shown = outside(move || names(&place)).await;
    assert!(shown.is_empty(), "{shown:?}");
    assert!(matches!(
        again(options).await,
        Err(MountError::AlreadyMounted { .. })
    ));
    unmount(&mount).await;
    assert!(root.join("hidden").exists());
    let file = root.join("hidden");
    let onto = rig
        .try_mount(&filesystem, &file, MountOptions::new("tank"))
        .await;
    assert!(matches!(onto, Err(MountError::BadMountpoint { .. })));

    let read_only = MountOptions {
        read_only: true,
        ..MountOptions::new("tank")
    };
    let mount = again(read_only).await.expect("read-only");
    let place = root.clone();
    outside(move || {
        let refused = File::create(place.join("x")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    })
    .await;
    drop(mount);
    filesystem.close().await.expect("close");
    rig.export().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn snapshots_are_below_dot_zfs() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[]).await;
    let filesystem = rig.filesystem("tank").await;
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let root = rig.mountpoint();
    let place = root.clone();
    outside(move || {
        fs::create_dir(place.join("d")).unwrap();
        fs::write(place.join("d/file"), "old").unwrap();
    })
    .await;
    rig.pool
        .dsl()
        .snapshots()
        .take(&["tank@one".to_owned()], &[])
        .await
        .expect("snapshot");
    let place = root.clone();
    outside(move || {
        fs::write(place.join("d/file"), "new content").unwrap();
        fs::write(place.join("d/more"), "x").unwrap();
        assert_eq!(names(&place), BTreeSet::from(["d".to_owned()]));
        let snapshots = place.join(".zfs/snapshot");
        assert_eq!(names(&snapshots), BTreeSet::from(["one".to_owned()]));
        // It came to be when the filesystem was mounted.
        let since = fs::metadata(place.join(".zfs")).and_then(|found| found.modified());
        let age = since.unwrap().elapsed().expect("a moment ago");
        assert!(age < Duration::from_secs(3600), "{age:?}");
        let old = snapshots.join("one/d");
        assert_eq!(fs::read_to_string(old.join("file")).unwrap(), "old");
        assert_eq!(names(&old), BTreeSet::from(["file".to_owned()]));
        assert_eq!(
            fs::read_to_string(place.join("d/file")).unwrap(),
            "new content"
        );
        let refused = fs::write(old.join("file"), "x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        assert_eq!(
            fs::metadata(snapshots.join("two")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert!(fs::hard_link(old.join("file"), place.join("x")).is_err());
    })
    .await;
    mount.set_snapdir(Snapdir::Visible).await;
    let place = root.clone();
    // Once it was looked up a listing may come from the kernel's cache for a moment.
    let shown = outside(move || {
        fs::write(place.join("another"), "").unwrap();
        names(&place)
    })
    .await;
    assert!(shown.contains(".zfs"), "{shown:?}");
    let place = root.join(".zfs/snapshot/one/d/file");
    let open = outside(move || File::open(place).unwrap()).await;
    let busy = mount.release_unused_snapshot("one").await;
    assert!(
        matches!(busy, Err(MountError::SnapshotBusy { .. })),
        "{busy:?}"
    );
    outside(move || assert_eq!(std::io::read_to_string(open).unwrap(), "old")).await;
    let released = mount.release_unused_snapshot("one").await;
    released.expect("nobody uses it any more");
    let destroyed = rig
        .pool
        .dsl()
        .destroyer()
        .destroy_snapshots(&["tank@one".to_owned()], false)
        .await;
    destroyed.expect("a snapshot that nobody uses can be destroyed");
    let place = root.clone();
    outside(move || {
        let gone = fs::read_to_string(place.join(".zfs/snapshot/one/d/file"));
        assert!(gone.is_err());
    })
    .await;
    unmount(&mount).await;
    filesystem.close().await.expect("close");
    rig.export().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn permissions_and_lists_of_access() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[("acltype", "posix")]).await;
    fs::set_permissions(rig.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let filesystem = rig.filesystem("tank").await;
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let root = rig.mountpoint();
    let place = root.clone();
    outside(move || {
        let as_user = |uid: u32, script: &str| {
            use std::os::unix::process::CommandExt;
            let status = Command::new("sh")
                .args(["-c", script])
                .current_dir(&place)
                .uid(uid)
                .gid(uid)
                .stderr(std::process::Stdio::null())
                .status();
            status.expect("sh").success()
        };
        fs::write(place.join("private"), "secret").unwrap();
        fs::set_permissions(place.join("private"), PermissionsExt::from_mode(0o600)).unwrap();
        assert!(!as_user(1000, "cat private >/dev/null"));
        assert!(!as_user(1000, "echo x > mine"));
        fs::create_dir(place.join("shared")).unwrap();
        fs::set_permissions(place.join("shared"), PermissionsExt::from_mode(0o3777)).unwrap();
        assert!(as_user(
            1000,
            "umask 027; echo x > shared/mine; mkdir shared/dir"
        ));
        let mine = fs::metadata(place.join("shared/mine")).unwrap();
        assert_eq!(
            (mine.uid(), mine.gid(), mine.mode() & 0o7777),
            (1000, 0, 0o640)
        );
        let dir = fs::metadata(place.join("shared/dir")).unwrap();
        assert_eq!((dir.gid(), dir.mode() & 0o7777), (0, 0o2750));
        assert!(!as_user(1001, "rm -f shared/mine"), "sticky");
        // A program loses its set-id bit when somebody else than root writes it.
        fs::write(place.join("shared/program"), "x").unwrap();
        std::os::unix::fs::chown(place.join("shared/program"), Some(1000), Some(1000)).unwrap();
        fs::set_permissions(
            place.join("shared/program"),
            PermissionsExt::from_mode(0o4755),
        )
        .unwrap();
        assert!(as_user(1000, "echo y >> shared/program"));
        assert_eq!(
            fs::metadata(place.join("shared/program")).unwrap().mode() & 0o7777,
            0o755
        );

        // user:: rw-, user:1000 r--, group:: ---, mask r--, other ---
        let entry = |tag: u16, bits: u16, id: u32| {
            [
                &tag.to_le_bytes()[..],
                &bits.to_le_bytes(),
                &id.to_le_bytes(),
            ]
            .concat()
        };
        let none = u32::MAX;
        let list = |mask| {
            let entries = [
                entry(1, 6, none),
                entry(2, 4, 1000),
                entry(4, 0, none),
                entry(0x10, mask, none),
                entry(0x20, 0, none),
            ];
            [2u32.to_le_bytes().to_vec(), entries.concat()].concat()
        };
        let private = place.join("private");
        let access = "system.posix_acl_access";
        rustix::fs::removexattr(&private, access).expect("a list may as well not be there");
        let refused = rustix::fs::getxattr(&private, "colour.red", &mut [0u8; 8]);
        assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
        rustix::fs::setxattr(&private, access, &list(4), XattrFlags::empty()).expect("set a list");
        assert_eq!(
            fs::metadata(&private).unwrap().mode() & 0o777,
            0o640,
            "the mask shows"
        );
        assert!(as_user(1000, "cat private >/dev/null"));
        assert!(!as_user(1001, "cat private >/dev/null"));
        fs::set_permissions(&private, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(
            !as_user(1000, "cat private >/dev/null"),
            "chmod changes the mask"
        );
        let mut value = [0; 100];
        let length = rustix::fs::getxattr(&private, access, &mut value[..]).expect("get the list");
        assert_eq!(value[..length], list(0));
        // Whoever is not of a program's group sets no list on it that would leave its set-group-id
        // bit.
        let hex: String = list(4).iter().map(|byte| format!("{byte:02x}")).collect();
        let set = format!("setfattr -n {access} -v 0x{hex} grouped");
        let grouped = place.join("grouped");
        for (groups, left) in [("1002", 0o2640), ("1003", 0o640)] {
            fs::write(&grouped, "x").unwrap();
            std::os::unix::fs::chown(&grouped, Some(1000), Some(1002)).unwrap();
            fs::set_permissions(&grouped, PermissionsExt::from_mode(0o2754)).unwrap();
            as_member(&place, 1000, groups, &set).expect("set");
            let found = fs::metadata(&grouped).unwrap().mode() & 0o7777;
            assert_eq!(found, left, "{groups}: {found:o}");
        }
        let default = "system.posix_acl_default";
        rustix::fs::setxattr(place.join("shared"), default, &list(4), XattrFlags::empty()).unwrap();
        assert!(as_user(
            1001,
            "umask 0; echo x > shared/inherits; mkdir shared/sub"
        ));
        assert_eq!(
            fs::metadata(place.join("shared/inherits")).unwrap().mode() & 0o777,
            0o640
        );
        let length = rustix::fs::getxattr(place.join("shared/sub"), default, &mut value[..])
            .expect("default");
        assert_eq!(value[..length], list(4));
    })
    .await;
    unmount(&mount).await;
    filesystem.close().await.expect("close");
    rig.export().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn another_state_takes_the_place_of_the_mounted_one() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new(&[]).await;
    let filesystem = rig.filesystem("tank").await;
    let mount = rig.mount(&filesystem, MountOptions::new("tank")).await;
    let root = rig.mountpoint();
    let place = root.clone();
    outside(move || {
        fs::write(place.join("file"), "old").unwrap();
        fs::create_dir(place.join("d")).unwrap();
        fs::write(place.join("d/a"), "a").unwrap();
        fs::write(place.join("d/b"), "b").unwrap();
    })
    .await;
    rig.pool
        .dsl()
        .snapshots()
        .take(&["tank@one".to_owned()], &[])
        .await
        .expect("snapshot");
    let place = root.clone();
    let mut open = outside(move || {
        fs::write(place.join("file"), "newer").unwrap();
        fs::write(place.join("more"), "x").unwrap();
        // Names that lead elsewhere in the state before: another directory, another file.
        fs::rename(place.join("d/b"), place.join("d/c")).unwrap();
        fs::rename(place.join("d/a"), place.join("d/b")).unwrap();
        let names = ["file", "more", "d", "d/b", "d/c"];
        names.map(|name| File::open(place.join(name)).unwrap())
    })
    .await
    .into_iter();
    // The mount alone has a lease now: one that is told of nothing would stand in the way.
    filesystem.close().await.expect("give back");
    let (waits, waiting) = std::sync::mpsc::channel();
    let (dsl, place) = (Arc::clone(rig.pool.dsl()), root.clone());
    let exchanged = rig.access.exchange("tank", async move {
        let read = move || fs::read_to_string(place.join("d/a")).unwrap();
        waits.send(std::thread::spawn(read)).unwrap();
        dsl.snapshots().rollback("tank", Some("tank@one")).await
    });
    let rolled_back = exchanged.await.expect("exchange");
    rolled_back.expect("rollback");
    let waits = waiting.recv().unwrap();
    let place = root.clone();
    outside(move || {
        use std::os::unix::fs::FileExt;
        let read = |file: &File| {
            let mut content = [0; 9];
            let length = file.read_at(&mut content, 0)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&content[..length]).into_owned())
        };
        assert_eq!(waits.join().unwrap(), "a");
        let mut next = || open.next().unwrap();
        let (file, more, directory, was_a, was_b) = (next(), next(), next(), next(), next());
        assert_eq!(read(&file).unwrap(), "old", "what is in both goes on");
        assert_eq!(file.metadata().unwrap().len(), 3);
        assert_eq!(read(&more).unwrap_err().raw_os_error(), Some(116), "ESTALE");
        assert!(more.metadata().is_err() && !place.join("more").exists());
        assert!(directory.metadata().is_ok());
        assert_eq!(
            (read(&was_a).unwrap(), read(&was_b).unwrap()),
            ("a".into(), "b".into())
        );
        let named = |name: &str| fs::read_to_string(place.join(name));
        assert_eq!(
            (named("d/a").unwrap(), named("d/b").unwrap()),
            ("a".into(), "b".into())
        );
        assert!(named("d/c").is_err());
        // The number of what is stale is used again, and shows neither here nor there.
        let made: Vec<_> = (0..8)
            .map(|number| {
                let name = place.join(format!("new{number}"));
                fs::write(&name, "new").unwrap();
                fs::metadata(&name).unwrap().ino()
            })
            .collect();
        assert!(more.metadata().is_err(), "{made:?}");
        drop(more);
        fs::write(place.join("file"), "and on").unwrap();
        assert_eq!(read(&file).unwrap(), "and on");
    })
    .await;
    unmount(&mount).await;
    filesystem.close().await.expect("close");
    rig.export().await;
}
