//! Mounted filesystems: which datasets are mounted where, mounting by property, unmounting. Where
//! they belong is in module `place`.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use access::{Lease, Snapdir, TrafficCounts, User};
use api::{Failure, FailureKind, ZfsMountListReply, ZfsMounted};
use dataset::{DatasetKind, PropertySource};
use filesystem::{Filesystem, FsError, MountChoices};
use parking_lot::Mutex;
use serve_fuse::{Mount, MountError, MountOptions, MountTable, UnmountMode};

use crate::Serving;
use crate::place::{Place, place, wanted_mounts};
use service::error::{and_back, from_access, from_dataset, suspended};
use service::pools::OpenPool;

/// A mounted filesystem. Its lease keeps the dataset from being destroyed.
pub struct Mounted {
    mount: Mount,
    mountpoint: PathBuf,
    /// Grows from mount to mount.
    order: u64,
    /// The options that it was mounted with, for this time only (`zfs mount -o`).
    options: Mutex<Vec<String>>,
    /// Whether its name gave it the mount point, by default or below an ancestor's: nobody chose
    /// the directory.
    is_placed_by_name: bool,
}

impl Mounted {
    /// Where it was when `table` was read: directories above it may have been renamed.
    fn place(&self, table: Option<&MountTable>) -> PathBuf {
        let moved = self.mount.moved_to(table);
        moved.unwrap_or_else(|| self.mountpoint.clone())
    }

    /// Has the filesystem do what these options say.
    fn choose(&self, options: &[String]) {
        let filesystem = self.mount.lease().get();
        filesystem.choose_for_mount(choices(options));
    }
}

/// A mount that was taken away for a while, and how it was.
pub struct Taken {
    /// The dataset.
    pub name: String,
    mountpoint: PathBuf,
    options: Vec<String>,
    is_placed_by_name: bool,
}

impl Taken {
    /// The directory that it was mounted at, if its name alone chose it.
    pub fn own_directory(&self) -> Option<PathBuf> {
        self.is_placed_by_name.then(|| self.mountpoint.clone())
    }
}

/// How a filesystem is mounted, beside its options.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountWay {
    /// Also over a directory that is not empty.
    pub overlay: bool,
    /// Number of the user who asks for it and is not root: it is to be a directory of theirs.
    pub user: Option<u32>,
}

impl From<bool> for MountWay {
    fn from(overlay: bool) -> Self {
        Self {
            overlay,
            user: None,
        }
    }
}

/// What is mounted, by dataset.
#[derive(Default)]
pub struct Mounts {
    by_name: Mutex<BTreeMap<String, Arc<Mounted>>>,
    /// How many there have been.
    count: AtomicU64,
    /// What those did that are gone, until somebody asks.
    ended: Mutex<Vec<MountTraffic>>,
}

/// Most mounts whose traffic waits to be asked for when they are gone.
const ENDED_MAX: usize = 4096;

/// What was read and written through a mount.
#[derive(Clone, Debug)]
pub struct MountTraffic {
    /// The filesystem.
    pub dataset: String,
    /// Which of all mounts since the server started.
    pub number: u64,
    /// Whether it is still there.
    pub is_mounted: bool,
    /// Since it is mounted.
    pub counts: TrafficCounts,
}

impl Mounts {
    /// Where a dataset is mounted. One that somebody unmounted by hand counts as not mounted.
    pub fn mountpoint(&self, name: &str) -> Option<PathBuf> {
        self.by_name
            .lock()
            .get(name)
            .filter(|mounted| mounted.mount.is_mounted())
            .map(|mounted| mounted.mountpoint.clone())
    }

    /// Whether something else is mounted at this path of a mounted filesystem, or below it.
    pub fn is_over_mount(&self, name: &str, path: &Path) -> bool {
        let mounted = self.by_name.lock().get(name).cloned();
        mounted.is_some_and(|mounted| mounted.mount.is_over_mount(path))
    }

    /// What was read and written through each mount that there is, and through those that ended
    /// since this was asked before.
    pub fn take_traffic(&self) -> Vec<MountTraffic> {
        let by_name = self.by_name.lock();
        let mut all = std::mem::take(&mut *self.ended.lock());
        all.extend(by_name.iter().map(|(name, mounted)| MountTraffic {
            dataset: name.clone(),
            number: mounted.order,
            is_mounted: true,
            counts: mounted.mount.traffic(),
        }));
        all
    }

    /// Has the kernel ask again for all that it knows of files that are mounted.
    pub async fn forget_pages(&self) {
        let all: Vec<Arc<Mounted>> = self.by_name.lock().values().cloned().collect();
        for mounted in all {
            mounted.mount.forget_pages().await;
        }
    }

    /// Puts another mount in the place of the one that a dataset had, or none.
    fn put(&self, name: &str, mounted: Option<Arc<Mounted>>) {
        let mut by_name = self.by_name.lock();
        let before = match mounted {
            Some(mounted) => by_name.insert(name.to_owned(), mounted),
            None => by_name.remove(name),
        };
        let mut ended = self.ended.lock();
        if let Some(before) = before.filter(|_| ended.len() < ENDED_MAX) {
            ended.push(MountTraffic {
                dataset: name.to_owned(),
                number: before.order,
                is_mounted: false,
                counts: before.mount.traffic(),
            });
        }
    }

    /// Which mount of a dataset there is, and what completes when it is gone, whoever took it away.
    pub fn end_of(&self, name: &str) -> Option<(u64, impl Future<Output = ()> + use<>)> {
        let mounted = self.by_name.lock().get(name).cloned()?;
        Some((mounted.order, async move { mounted.mount.ended().await }))
    }

    /// Whether a dataset was mounted when `table` was read.
    pub fn is_mounted_in(&self, table: Option<&MountTable>, name: &str) -> bool {
        let by_name = self.by_name.lock();
        let mounted = by_name.get(name);
        mounted.is_some_and(|mounted| mounted.mount.is_mounted_in(table))
    }

    /// The number that the next mount gets.
    pub fn number_of_next(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether a dataset's mount has this number or a later one.
    fn is_since(&self, name: &str, number: u64) -> bool {
        let by_name = self.by_name.lock();
        by_name
            .get(name)
            .is_some_and(|mounted| mounted.order >= number)
    }

    /// A dataset of any pool that is mounted at a path or inside of it, if there is one.
    fn first_below(&self, path: &Path) -> Option<String> {
        let by_name = self.by_name.lock();
        let table = LazyCell::new(MountTable::now);
        let mut below = by_name.iter().filter(|(_, mounted)| {
            mounted.mountpoint.starts_with(path) && mounted.mount.is_mounted_in(table.as_ref())
        });
        below.next().map(|(name, _)| name.clone())
    }

    /// Names of a pool's datasets that are mounted inside a path (not at it), what was mounted last
    /// first.
    pub fn inside(&self, path: &Path, pool: &str) -> Vec<String> {
        let by_name = self.by_name.lock();
        let table = LazyCell::new(MountTable::now);
        let mut inside: Vec<_> = by_name
            .iter()
            .filter(|(name, mounted)| {
                let at = &mounted.mountpoint;
                at != path
                    && at.starts_with(path)
                    && is_at_or_below(name, pool)
                    && mounted.mount.is_mounted_in(table.as_ref())
            })
            .map(|(name, mounted)| (mounted.order, name.clone()))
            .collect();
        inside.sort_unstable();
        inside.into_iter().rev().map(|(_, name)| name).collect()
    }

    /// Names of mounted datasets, `top` and those below it, and of what else of the pool is mounted
    /// inside of those, in the order in which they can be unmounted.
    pub fn with_inside(&self, top: &str, pool: &str) -> Vec<String> {
        let by_name = self.by_name.lock();
        let own = by_name.iter().filter(|(name, _)| is_at_or_below(name, top));
        let of_mount = |mounted: &Arc<Mounted>| (mounted.mountpoint.clone(), mounted.order);
        let mut places: Vec<_> = own.map(|(_, mounted)| of_mount(mounted)).collect();
        // What lies in another follows it, so the last before a path is the only one that it can
        // lie in; with the order of the first that was mounted there.
        places.sort_unstable();
        places.dedup_by(|one, before| {
            let is_inside = one.0.starts_with(&before.0);
            if is_inside {
                before.1 = before.1.min(one.1);
            }
            is_inside
        });
        // What was mounted before is not inside, but covered.
        let is_inside = |mounted: &Mounted| {
            let path = mounted.mountpoint.as_path();
            let after = places.partition_point(|(place, _)| place.as_path() <= path);
            let place = after.checked_sub(1).map(|at| &places[at]);
            place.is_some_and(|(place, first)| path.starts_with(place) && mounted.order > *first)
        };
        let mut found: Vec<_> = by_name
            .iter()
            .filter(|(name, mounted)| {
                is_at_or_below(name, top) || is_at_or_below(name, pool) && is_inside(mounted)
            })
            .map(|(name, mounted)| (mounted.order, name.clone()))
            .collect();
        found.sort_unstable();
        found.into_iter().rev().map(|(_, name)| name).collect()
    }

    /// What options for this time make of the properties of a filesystem that is mounted.
    pub fn temporary(&self, name: &str) -> BTreeMap<&'static str, &'static str> {
        let by_name = self.by_name.lock();
        let Some(mounted) = by_name.get(name) else {
            return BTreeMap::new();
        };
        let options = mounted.options.lock();
        options
            .iter()
            .filter_map(|word| property_of(word))
            .collect()
    }

    /// Lets a property that was set win over what options for this time made of it.
    pub fn forget_temporary(&self, name: &str, property: &str) {
        if let Some(mounted) = self.by_name.lock().get(name) {
            let mut options = mounted.options.lock();
            options.retain(|word| property_of(word).is_none_or(|(changed, _)| changed != property));
            mounted.choose(&options);
        }
    }

    /// Directories that these are mounted at, in this order, where their names alone chose them.
    pub fn own_directories(&self, names: &[String]) -> Vec<PathBuf> {
        let by_name = self.by_name.lock();
        let table = LazyCell::new(MountTable::now);
        let mounted = names.iter().filter_map(|name| by_name.get(name));
        mounted
            .filter(|mounted| {
                mounted.is_placed_by_name && mounted.mount.is_mounted_in(table.as_ref())
            })
            .map(|mounted| mounted.mountpoint.clone())
            .collect()
    }

    /// Names of mounted datasets, `top` itself and those below it, in the order in which they were
    /// mounted: what is mounted inside of another, or over it, comes later, whatever its name.
    pub fn below(&self, top: &str) -> Vec<String> {
        let by_name = self.by_name.lock();
        let mut below: Vec<_> = by_name
            .iter()
            .filter(|(name, _)| is_at_or_below(name, top))
            .map(|(name, mounted)| (mounted.order, name.clone()))
            .collect();
        below.sort_unstable();
        below.into_iter().map(|(_, name)| name).collect()
    }

    /// Lets mounted filesystems at and below a dataset that was renamed follow it where they are.
    pub fn renamed(&self, from: &str, to: &str) {
        let mut by_name = self.by_name.lock();
        let names: Vec<String> = by_name
            .keys()
            .filter(|name| is_at_or_below(name, from))
            .cloned()
            .collect();
        for name in names {
            if let Some(mounted) = by_name.remove(&name) {
                let now = format!("{to}{}", &name[from.len()..]);
                by_name.insert(now, mounted);
            }
        }
    }

    /// Names of all mounted datasets, in the order in which they can be unmounted.
    pub fn all_last_first(&self) -> Vec<String> {
        let by_name = self.by_name.lock();
        let mut all: Vec<_> = by_name
            .iter()
            .map(|(name, mounted)| (mounted.order, name.clone()))
            .collect();
        all.sort_unstable();
        all.into_iter().rev().map(|(_, name)| name).collect()
    }

    /// [`Self::below`] in the order in which they can be unmounted.
    pub fn last_first(&self, top: &str) -> Vec<String> {
        let mut names = self.below(top);
        names.reverse();
        names
    }

    /// What is mounted.
    pub fn list(&self) -> ZfsMountListReply {
        let by_name = self.by_name.lock();
        let table = MountTable::now();
        let mounts = by_name
            .iter()
            .filter(|(_, mounted)| mounted.mount.is_mounted_in(table.as_ref()))
            .map(|(name, mounted)| ZfsMounted {
                name: name.clone(),
                mountpoint: mounted.place(table.as_ref()).display().to_string(),
            })
            .collect();
        ZfsMountListReply { mounts }
    }

    /// A lease on the mounted filesystem that an absolute path leads into, for a command, and the
    /// rest of the path in it.
    pub async fn mounted_above(
        &self,
        path: &Path,
        command: &'static str,
    ) -> Option<(Lease<Filesystem>, PathBuf)> {
        let (mounted, below) = self.mount_above(path)?;
        let user = User::Command { name: command };
        let lease = mounted.mount.lease().share(user).await.ok()?;
        Some((lease, below))
    }

    fn mount_above(&self, path: &Path) -> Option<(Arc<Mounted>, PathBuf)> {
        let by_name = self.by_name.lock();
        let table = MountTable::now();
        by_name
            .values()
            .filter(|mounted| mounted.mount.is_mounted_in(table.as_ref()))
            .filter_map(|mounted| {
                let moved = mounted.mount.moved_to(table.as_ref());
                let at = moved.unwrap_or_else(|| mounted.mount.mountpoint().to_owned());
                let below = path.strip_prefix(&at).ok()?.to_owned();
                Some((at, mounted, below))
            })
            .max_by_key(|(at, ..)| at.components().count())
            .map(|(_, mounted, below)| (Arc::clone(mounted), below))
    }

    /// The dataset that is mounted at a path; of several the uppermost.
    pub fn dataset_at(&self, path: &str) -> Option<String> {
        let by_name = self.by_name.lock();
        let table = LazyCell::new(MountTable::now);
        by_name
            .iter()
            .filter(|(_, mounted)| mounted.mount.is_mounted_in(table.as_ref()))
            .filter(|(_, mounted)| mounted.place(table.as_ref()) == Path::new(path))
            .max_by_key(|(_, mounted)| mounted.order)
            .map(|(name, _)| name.clone())
    }
}

/// Whether `name` is `top` or a dataset below it.
pub fn is_at_or_below(name: &str, top: &str) -> bool {
    name.strip_prefix(top)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Serving {
    /// Mounts every filesystem of a pool that wants to be, parents first, with these options for
    /// this time. Answers what failed.
    pub async fn mount_all(&self, open: &OpenPool, options: &[String]) -> Vec<String> {
        let (mut wanted, mut failures) = wanted_mounts(open).await;
        wanted.sort();
        // In this order they cover none of each other.
        let covers_none = self.mounts.below(&open.pool.name()).is_empty();
        for (path, name) in wanted {
            let mounted = self.mount_wanted(open, &name, &path, covers_none, options);
            let mounted = mounted.await;
            failures.extend(mounted.err().map(|failure| failure.message));
        }
        failures
    }

    /// [`Self::mount_all`] of all pools, in one order: what a pool has may go inside of what
    /// another has.
    pub async fn mount_everything(&self) -> Vec<String> {
        let (mut wanted, mut failures) = (Vec::new(), Vec::new());
        for open in self.pools.all() {
            let _admin = open.admin.lock().await;
            let (of_pool, failed) = wanted_mounts(&open).await;
            failures.extend(failed);
            let covers_none = self.mounts.below(&open.pool.name()).is_empty();
            let with_pool = |(path, name)| (path, name, Arc::clone(&open), covers_none);
            wanted.extend(of_pool.into_iter().map(with_pool));
        }
        wanted.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
        for (path, name, open, covers_none) in wanted {
            let _admin = open.admin.lock().await;
            let mounted = self.mount_wanted(&open, &name, &path, covers_none, &[]);
            let mounted = mounted.await;
            failures.extend(mounted.err().map(|failure| failure.message));
        }
        failures
    }

    /// Mounts a filesystem, unless it is.
    async fn mount_wanted(
        &self,
        open: &OpenPool,
        name: &str,
        path: &Path,
        covers_none: bool,
        options: &[String],
    ) -> Result<(), Failure> {
        if self.mounts.mountpoint(name).is_some() {
            return Ok(());
        }
        match covers_none {
            true => self.attach(open, name, path, false.into(), options).await,
            false => self.mount_at(open, name, path, false, options).await,
        }
    }

    /// Mounts one filesystem; over a directory that is not empty if `overlay` or its property says
    /// so. What of the pool is mounted inside of that directory is mounted anew, in the filesystem:
    /// under it, it could neither be reached nor unmounted.
    pub async fn mount_at(
        &self,
        open: &OpenPool,
        name: &str,
        path: &Path,
        way: impl Into<MountWay>,
        options: &[String],
    ) -> Result<(), Failure> {
        let way = way.into();
        let doing = format!("cannot mount '{name}'");
        if open.pool.suspended().is_some() {
            return Err(suspended(&doing));
        }
        if self.mounts.mountpoint(name).is_some() {
            let message = format!("{doing}: filesystem already mounted");
            return Err(Failure::new(FailureKind::Busy, message));
        }
        let inside = self.mounts.inside(path, &open.pool.name());
        let taken = self.take_away(open, inside, UnmountMode::Clean).await;
        let taken = taken.map_err(|failure| {
            let message = format!("{doing}: it would cover what is mounted inside: {failure}");
            Failure::new(failure.kind, message)
        })?;
        let outcome = self.attach(open, name, path, way, options).await;
        let back = self.bring_back(open, taken).await;
        // Who mounted it finds it shared.
        self.smb.settle().await;
        and_back(outcome, back)
    }

    /// Mounts one filesystem over whatever is there, which stays where it is, but for mounts from
    /// `since` on ([`Mounts::next`]): those that lie inside are mounted anew in it. What it covers.
    pub async fn mount_over(
        &self,
        open: &OpenPool,
        name: &str,
        path: &Path,
        since: u64,
    ) -> Result<Option<String>, Failure> {
        let mut inside = self.mounts.inside(path, &open.pool.name());
        inside.retain(|one| self.mounts.is_since(one, since));
        let taken = self.take_away(open, inside, UnmountMode::Clean).await?;
        let covered = self.mounts.first_below(path);
        let outcome = self.attach(open, name, path, false.into(), &[]).await;
        let back = self.bring_back(open, taken).await;
        self.smb.settle().await;
        and_back(outcome, back).map(|()| covered)
    }

    /// [`Self::mount_at`] whatever it covers.
    async fn attach(
        &self,
        open: &OpenPool,
        name: &str,
        path: &Path,
        way: MountWay,
        options: &[String],
    ) -> Result<(), Failure> {
        let doing = format!("cannot mount '{name}'");
        if open.pool.suspended().is_some() {
            return Err(suspended(&doing));
        }
        let before = self.mounts.by_name.lock().get(name).cloned();
        if let Some(before) = before {
            // What it still has to write, two of the same filesystem must not.
            let detached = before.mount.detach(UnmountMode::Clean).await;
            detached.map_err(|error| from_mount(&doing, &error))?;
            let closed = before.mount.lease().close().await;
            closed.map_err(|error| {
                // It is gone from there; the next one mounts what the pool has.
                self.mounts.put(name, None);
                Failure::new(
                    FailureKind::Io,
                    format!(
                        "{doing}: it was mounted before, and its last changes could not be \
                         written: {error}; mount it again for what there is"
                    ),
                )
            })?;
        }
        let found = open.pool.dsl().directories().lookup(name).await;
        let info = found.map_err(|error| from_dataset(&doing, &error))?;
        if info.kind != DatasetKind::Filesystem {
            return Err(Failure::new(
                FailureKind::Invalid,
                format!("{doing}: it is not a filesystem"),
            ));
        }
        let setting = open.pool.dsl().properties().get(name, "mountpoint").await;
        let setting = setting.map_err(|error| from_dataset(&doing, &error))?;
        let is_placed_by_name = matches!(
            setting.source,
            PropertySource::Default | PropertySource::Inherited(_)
        );
        let user = User::Mount {
            path: path.to_owned(),
        };
        let leased = open.access.filesystem_to_read(name, user).await;
        let lease = leased.map_err(|error| from_access(&doing, &error))?;
        let dataset = lease.get().dataset();
        let settings = dataset.map_err(|error| failed(&doing, &error))?.settings();
        let mut mount_options = MountOptions::new(name);
        mount_options.read_only = settings.read_only;
        mount_options.devices = settings.devices;
        mount_options.setuid = settings.setuid;
        mount_options.exec = settings.exec;
        mount_options.user = way.user;
        mount_options.overlay = way.overlay || {
            let property = open.pool.dsl().properties().get(name, "overlay").await;
            let setting = property.map_err(|error| from_dataset(&doing, &error))?;
            setting.value.number() != Some(0)
        };
        mount_options.snapdir = Snapdir::of(settings.snapdir);
        mount_options.allow_other = rustix::process::geteuid().is_root();
        for option in options {
            apply_option(&mut mount_options, option, settings.read_only)
                .map_err(|()| unknown_option(&doing, option))?;
        }
        if !mount_options.read_only {
            filesystem::begin_upkeep(&lease.get());
        }
        let mount = Mount::new(&open.access, lease, path, mount_options).await;
        let mount = mount.map_err(|error| from_mount(&doing, &error))?;
        let mounted = Mounted {
            mount,
            mountpoint: path.to_owned(),
            order: self.mounts.count.fetch_add(1, Ordering::Relaxed),
            options: Mutex::new(options.to_vec()),
            is_placed_by_name,
        };
        mounted.choose(options);
        self.mounts.put(name, Some(Arc::new(mounted)));
        self.share_by_smb(open, name).await;
        Ok(())
    }

    /// Gives a mounted filesystem other options for this time (`zfs mount -o remount,...`).
    pub async fn remount(
        &self,
        open: &OpenPool,
        name: &str,
        options: &[String],
    ) -> Result<(), Failure> {
        check_options(&format!("cannot mount '{name}'"), options)?;
        if let Some(mounted) = self.mounts.by_name.lock().get(name) {
            // Later words win over those from before.
            mounted.options.lock().extend_from_slice(options);
        }
        self.refresh_mounts(open, name, false).await
    }

    /// Does to what is mounted at and below a dataset what its properties say now. With `anew` they
    /// are mounted anew, which those that are in use cannot be.
    pub async fn refresh_mounts(
        &self,
        open: &OpenPool,
        top: &str,
        anew: bool,
    ) -> Result<(), Failure> {
        for name in self.mounts.below(top) {
            let Some(mounted) = self.mounts.by_name.lock().get(&name).cloned() else {
                continue;
            };
            if !mounted.mount.is_mounted() {
                continue;
            }
            let doing = format!("property set, but cannot remount '{name}'");
            let filesystem = mounted.mount.lease().get();
            let dataset = filesystem.dataset();
            let settings = dataset.map_err(|error| failed(&doing, &error))?.settings();
            if anew && filesystem.has_posix_acls() != mounted.mount.has_posix_acls() {
                let (path, options) = (mounted.mountpoint.clone(), mounted.options.lock().clone());
                drop((filesystem, mounted));
                let later = |failure: Failure| {
                    let message = format!(
                        "property set, but it takes effect when '{name}' is mounted again: \
                         {failure}"
                    );
                    Failure::new(failure.kind, message)
                };
                self.unmount(&name, UnmountMode::Clean)
                    .await
                    .map_err(later)?;
                self.mount_at(open, &name, &path, true, &options).await?;
                continue;
            }
            let mut options = MountOptions::new(&name);
            options.read_only = settings.read_only;
            options.devices = settings.devices;
            options.setuid = settings.setuid;
            options.exec = settings.exec;
            let chosen = mounted.options.lock().clone();
            for option in &chosen {
                let _ = apply_option(&mut options, option, settings.read_only);
            }
            mounted.choose(&chosen);
            mounted
                .mount
                .set_snapdir(Snapdir::of(settings.snapdir))
                .await;
            mounted
                .mount
                .remount(&options)
                .await
                .map_err(|error| from_mount(&doing, &error))?;
            if !options.read_only {
                filesystem::begin_upkeep(&filesystem);
            }
        }
        Ok(())
    }

    /// Unmounts one filesystem; nothing happens where it is not mounted.
    pub async fn unmount(&self, name: &str, mode: UnmountMode) -> Result<(), Failure> {
        let Some(mounted) = self.mounts.by_name.lock().get(name).cloned() else {
            return Ok(());
        };
        let doing = format!("cannot unmount '{name}'");
        // Processes that share it are in it.
        self.smb.withdraw(&[name.to_owned()]).await;
        // One that somebody unmounted by hand may be in use elsewhere.
        let detached = mounted.mount.detach(mode).await;
        if detached.is_err()
            && let Ok(open) = self.pools.of_dataset(name)
        {
            self.share_by_smb(&open, name).await;
        }
        detached.map_err(|error| from_mount(&doing, &error))?;
        // While the pool is suspended it stays listed, and is closed before it is mounted again.
        let closing = mounted.mount.lease().close();
        let Some(closed) = self.pools.unless_suspended(name, closing).await else {
            return Ok(());
        };
        self.mounts.put(name, None);
        closed.map_err(|error| {
            Failure::new(
                FailureKind::Io,
                format!(
                    "'{name}' is unmounted, but its last changes could not be written: {error}"
                ),
            )
        })
    }

    /// Unmounts filesystems for a while, in this order; those that are not mounted are left out.
    /// When one cannot be unmounted, all are where they were.
    pub async fn take_away(
        &self,
        open: &OpenPool,
        names: Vec<String>,
        mode: UnmountMode,
    ) -> Result<Vec<Taken>, Failure> {
        let mut taken = Vec::new();
        self.smb.withdraw(&names).await;
        for name in names.clone() {
            let Some(mounted) = self.mounts.by_name.lock().get(&name).cloned() else {
                continue;
            };
            let one = Taken {
                name,
                mountpoint: mounted.mountpoint.clone(),
                options: mounted.options.lock().clone(),
                is_placed_by_name: mounted.is_placed_by_name,
            };
            let was_mounted = mounted.mount.is_mounted();
            drop(mounted);
            let outcome = self.unmount(&one.name, mode).await;
            if was_mounted && self.mounts.mountpoint(&one.name).is_none() {
                taken.push(one);
            }
            if let Err(failure) = outcome {
                // What stands in the way of one does not keep the others away.
                let back = self.bring_back(open, taken).await;
                for name in &names {
                    self.share_by_smb(open, name).await;
                }
                return and_back(Err(failure), back);
            }
        }
        Ok(taken)
    }

    /// Mounts a filesystem that was mounted before where it belongs now, if anywhere;
    /// `canmount=noauto` does not keep it away.
    pub async fn mount_again(&self, open: &OpenPool, name: &str) -> Result<(), Failure> {
        match place(open, name).await? {
            (Place::At(path), _) => self.mount_at(open, name, &path, false, &[]).await,
            (Place::Nowhere(_), _) => Ok(()),
        }
    }

    /// Mounts again what was taken away. Tries all, and answers all that failed.
    pub async fn bring_back(&self, open: &OpenPool, taken: Vec<Taken>) -> Result<(), Failure> {
        let mut failed: Option<Failure> = None;
        for one in taken.into_iter().rev() {
            let done = self.attach(open, &one.name, &one.mountpoint, true.into(), &one.options);
            if let Err(failure) = done.await {
                failed = Some(match failed {
                    Some(others) => Failure::new(failure.kind, format!("{others}\n{failure}")),
                    None => failure,
                });
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Closes snapshots that are open through `.zfs/snapshot`, so that they can be destroyed.
    pub async fn release_snapshots(&self, names: &[String]) {
        for name in names {
            let Some((head, snapshot)) = name.split_once('@') else {
                continue;
            };
            let mounted = self.mounts.by_name.lock().get(head).cloned();
            if let Some(mounted) = mounted {
                mounted.mount.release_snapshots(Some(snapshot)).await;
            }
            self.nfs.shares().release_snapshot(head, snapshot).await;
            // One of a volume whose file is open stays so, and cannot be destroyed.
            if let Err(failure) = self.volumes.close_volume(name, UnmountMode::Clean).await {
                tracing::debug!("{failure}");
            }
        }
    }

    /// Closes those of them that are open through `.zfs/snapshot`, unless somebody uses one.
    pub async fn release_unused_snapshots(&self, names: &[String]) -> Result<(), Failure> {
        for name in names {
            let Some((head, snapshot)) = name.split_once('@') else {
                continue;
            };
            let mounted = self.mounts.by_name.lock().get(head).cloned();
            if let Some(mounted) = mounted {
                let released = mounted.mount.release_unused_snapshot(snapshot).await;
                released.map_err(|error| {
                    // In the words of `zfs_destroy_snaps_nvl` (lib/libzfs/libzfs_dataset.c), which
                    // scripts know.
                    let why = from_mount(&format!("'{name}'"), &error);
                    let message = format!("cannot destroy snapshot {name}: dataset is busy\n{why}");
                    Failure::new(why.kind, message)
                })?;
            }
            // Whoever looks at it through NFS opens it again, if it is still there.
            self.nfs.shares().release_snapshot(head, snapshot).await;
        }
        Ok(())
    }
}

/// Removes directories that filesystems were mounted at, as far as they are there and empty
/// (`remove_mountpoint`, lib/libzfs/libzfs_mount.c). What cannot be removed stays: another
/// filesystem may be mounted there by now.
pub async fn remove_directories(directories: Vec<PathBuf>) {
    // They may be in a filesystem that this process serves.
    let remove = move || {
        for directory in directories {
            if let Err(error) = serve_fuse::remove_mountpoint(&directory) {
                tracing::debug!(path = %directory.display(), %error, "a mount point stays");
            }
        }
    };
    serve_fuse::aside(remove).await;
}

/// Turns an error of mounting into an answer.
pub(crate) fn from_mount(doing: &str, error: &MountError) -> Failure {
    let kind = match error {
        MountError::NotEmpty { .. }
        | MountError::AlreadyMounted { .. }
        | MountError::Covered { .. }
        | MountError::Inside { .. }
        | MountError::Elsewhere { .. }
        | MountError::SnapshotBusy { .. }
        | MountError::Busy { .. } => FailureKind::Busy,
        MountError::BadMountpoint { .. } => FailureKind::Invalid,
        MountError::NotOwned { .. } => FailureKind::Denied,
        _ => FailureKind::Io,
    };
    Failure::new(kind, mount_words(doing, error))
}

/// OpenZFS's words where it has some (`zfs_mount_at`, `unmount_one`, lib/libzfs/libzfs_mount.c),
/// and ours below them.
fn mount_words(doing: &str, error: &MountError) -> String {
    let unmounts = doing.starts_with("cannot unmount ");
    match error {
        MountError::Busy { path }
        | MountError::Inside { path, .. }
        | MountError::Covered { path, .. }
        | MountError::Elsewhere { path }
            if unmounts =>
        {
            let path = path.display();
            format!("cannot unmount '{path}': pool or dataset is busy\n{error}")
        }
        MountError::NotEmpty { path } if doing.starts_with("cannot mount ") => {
            let path = path.display();
            format!("cannot mount '{path}': directory is not empty\n{error}")
        }
        MountError::BadMountpoint { source, .. }
            if source.to_string().eq_ignore_ascii_case("not a directory") =>
        {
            format!("{doing}: Not a directory\n{error}")
        }
        _ => format!("{doing}: {error}"),
    }
}

fn failed(doing: &str, error: &FsError) -> Failure {
    Failure::new(FailureKind::Io, format!("{doing}: {error}"))
}

/// The property that an option of `zfs mount -o` stands for, and its value.
fn property_of(option: &str) -> Option<(&'static str, &'static str)> {
    Some(match option {
        "ro" => ("readonly", "on"),
        "rw" => ("readonly", "off"),
        "dev" => ("devices", "on"),
        "nodev" => ("devices", "off"),
        "suid" => ("setuid", "on"),
        "nosuid" => ("setuid", "off"),
        "exec" => ("exec", "on"),
        "noexec" => ("exec", "off"),
        "atime" => ("atime", "on"),
        "noatime" => ("atime", "off"),
        "relatime" => ("relatime", "on"),
        "norelatime" => ("relatime", "off"),
        "xattr" | "saxattr" => ("xattr", "sa"),
        "dirxattr" => ("xattr", "dir"),
        "noxattr" => ("xattr", "off"),
        _ => return None,
    })
}

/// Refuses what is no option of a mount, before anything is done.
///
/// # Errors
/// One of the words is none.
pub fn check_options(doing: &str, options: &[String]) -> Result<(), Failure> {
    let mut scratch = MountOptions::new("");
    for option in options {
        apply_option(&mut scratch, option, false).map_err(|()| unknown_option(doing, option))?;
    }
    Ok(())
}

fn unknown_option(doing: &str, option: &str) -> Failure {
    let message = format!(
        "{doing}: mount option '{option}' is not supported; supported are ro, rw, dev, nodev, \
         suid, nosuid, exec, noexec, atime, noatime, relatime, norelatime, xattr, saxattr, \
         dirxattr, noxattr, remount"
    );
    Failure::new(FailureKind::Invalid, message)
}

/// What an option of `zfs mount -o` changes; an error where it is none.
fn apply_option(options: &mut MountOptions, word: &str, read_only: bool) -> Result<(), ()> {
    match word {
        "ro" => options.read_only = true,
        "rw" => options.read_only = read_only,
        "nodev" => options.devices = false,
        "nosuid" => options.setuid = false,
        "noexec" => options.exec = false,
        "dev" => options.devices = true,
        "suid" => options.setuid = true,
        "exec" => options.exec = true,
        // Not the kernel's: `choices`.
        "atime" | "noatime" | "relatime" | "norelatime" => {}
        "xattr" | "saxattr" | "dirxattr" | "noxattr" => {}
        "remount" | "defaults" => {}
        _ => return Err(()),
    }
    Ok(())
}

/// What options of `zfs mount -o` make of properties that the filesystem itself obeys
/// (`zfs_register_callbacks`, module/os/linux/zfs/zfs_vfsops.c); the later of two words counts.
/// What is mounted for reading only moves no access times.
fn choices(words: &[String]) -> MountChoices {
    let mut choices = MountChoices::default();
    let mut read_only = false;
    for (property, value) in words.iter().filter_map(|word| property_of(word)) {
        match property {
            "atime" => choices.atime = Some(value == "on"),
            "relatime" => choices.relatime = Some(value == "on"),
            "readonly" => read_only = value == "on",
            // As stored (`ZFS_XATTR_*`, include/sys/fs/zfs.h).
            "xattr" => {
                choices.xattr = Some(match value {
                    "off" => 0,
                    "dir" => 1,
                    _ => 2,
                });
            }
            _ => {}
        }
    }
    if read_only {
        choices.atime = Some(false);
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_below_a_dataset_are_told_from_names_that_begin_alike() {
        assert!(is_at_or_below("tank/a", "tank/a"));
        assert!(is_at_or_below("tank/a/b", "tank/a"));
        assert!(!is_at_or_below("tank/ab", "tank/a"));
    }
}
