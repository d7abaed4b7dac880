//! What is mounted where: the kernel's list, read as a tree.
//!
//! A path leads to the mount that was put there last; one below it, or below a mount of a directory
//! above, is covered: it lives on, but no path leads to it. Who unmounts by path must know, else
//! somebody else's mount goes.
//!
//! A mount goes along when a directory above it is renamed, or when somebody moves it. So what was
//! mounted is looked for by what it is ([`Identity`]), in the whole list, and where it was put says
//! nothing of where it is (`libzfs_mnttab_find`, lib/libzfs/libzfs_dataset.c, looks for the
//! dataset's name).
//!
//! Source: proc(5), /proc/pid/mountinfo.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// One mount, as a line of the list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostMount {
    id: u64,
    /// The mount that it is mounted on.
    parent: u64,
    /// Number of its filesystem's device, `major:minor`: no other mounted filesystem has the same.
    pub(crate) device: String,
    /// Which directory of its filesystem is mounted: another than `/` where somebody bound one.
    root: PathBuf,
    pub(crate) path: PathBuf,
    /// Type of filesystem.
    pub(crate) kind: String,
    /// What is mounted.
    pub(crate) source: String,
}

impl HostMount {
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ');
        let mut after = after.split(' ');
        Some(Self {
            id: before.next()?.parse().ok()?,
            parent: before.next()?.parse().ok()?,
            device: before.next()?.to_owned(),
            root: unescape(before.next()?).into(),
            path: unescape(before.next()?).into(),
            kind: after.next()?.to_owned(),
            source: unescape(after.next()?).to_string_lossy().into_owned(),
        })
    }

    /// Whether FUSE serves it.
    pub(crate) fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }
}

/// Undoes the octal escapes of the list (space, tab, newline, backslash).
fn unescape(field: &str) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        if *byte == b'\\'
            && let Some(digits) = after.first_chunk::<3>()
            && digits.iter().all(|digit| (b'0'..=b'7').contains(digit))
        {
            let value = digits
                .iter()
                .fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            out.push(value as u8);
            rest = &after[3..];
        } else {
            out.push(*byte);
            rest = after;
        }
    }
    OsString::from_vec(out)
}

/// What a mount is told from others by, wherever they are or come to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The kernel's number of the mount. It is bound elsewhere under another number, and moves with
    /// its own.
    id: u64,
    /// The device of its filesystem: nobody has the same while it is mounted anywhere, another may
    /// have it later, and often with the number of the mount.
    pub(crate) device: String,
    source: String,
}

impl Identity {
    /// Of what was just mounted at `path` from `source` through FUSE. Where a directory above was
    /// renamed meanwhile it is the last one from there.
    pub(crate) fn of_last_at(path: &Path, source: &str) -> Option<Self> {
        let table = MountTable::read().ok()?;
        let is_like = |mount: &HostMount| mount.is_fuse() && mount.source == source;
        let there = table.last_at(path).filter(|mount| is_like(mount));
        let mount = there.or_else(|| table.0.iter().rev().find(|mount| is_like(mount)))?;
        Some(Self {
            id: mount.id,
            device: mount.device.clone(),
            source: mount.source.clone(),
        })
    }

    /// Whether a mount is of this filesystem.
    fn is_of(&self, mount: &HostMount) -> bool {
        mount.is_fuse() && mount.device == self.device && mount.source == self.source
    }
}

/// Where something was mounted, and what it is known by, where that could be found.
#[derive(Debug, Clone)]
pub(crate) struct Anchor {
    /// Where it was put; it may have moved since.
    pub(crate) path: PathBuf,
    pub(crate) identity: Option<Identity>,
}

/// How a mount stands in the host's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// This path leads to it.
    Reached(PathBuf),
    /// Another mount is over it.
    Covered(HostMount),
    /// It is nowhere any more.
    Gone,
}

/// All that is mounted, as this process sees it.
#[derive(Debug)]
pub struct MountTable(Vec<HostMount>);

impl MountTable {
    /// What is mounted now, if that can be told. The kernel lists all mounts for it: who asks of
    /// many asks one table.
    pub fn now() -> Option<Self> {
        Self::read()
            .inspect_err(|error| tracing::warn!(%error, "what is mounted cannot be told"))
            .ok()
    }

    /// What is mounted now.
    pub(crate) fn read() -> io::Result<Self> {
        let text = fs::read("/proc/self/mountinfo")?;
        Ok(Self::parse(&String::from_utf8_lossy(&text)))
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(HostMount::parse).collect())
    }

    /// What was mounted last at exactly `path`.
    pub(crate) fn last_at(&self, path: &Path) -> Option<&HostMount> {
        self.0.iter().rev().find(|mount| mount.path == path)
    }

    /// A mount of the filesystem of a device.
    pub(crate) fn of_device(&self, device: &str) -> Option<&HostMount> {
        self.0.iter().find(|mount| mount.device == device)
    }

    /// The mount itself, or else what is left of its filesystem: where it was put, or where
    /// somebody bound it.
    fn find(&self, path: &Path, identity: &Identity) -> Option<&HostMount> {
        let of_it = || self.0.iter().rev().filter(|mount| identity.is_of(mount));
        of_it()
            .find(|mount| mount.id == identity.id)
            .or_else(|| of_it().find(|mount| mount.path == path))
            .or_else(|| of_it().next())
    }

    /// Whether what a path leads to is the filesystem that was mounted there.
    pub(crate) fn is_last_at_its_path(&self, path: &Path, identity: &Identity) -> bool {
        self.last_at(path).is_some_and(|last| identity.is_of(last))
    }

    /// Where something that was mounted is now; none where it is not mounted any more.
    pub(crate) fn place_of<'a>(&'a self, anchor: &'a Anchor) -> Option<&'a Path> {
        match &anchor.identity {
            Some(identity) => Some(&*self.find(&anchor.path, identity)?.path),
            // It cannot be told from others.
            None => Some(&*self.last_at(&anchor.path)?.path),
        }
    }

    /// What is mounted inside of a filesystem that was mounted at `path`, if something is.
    pub(crate) fn inside(&self, path: &Path, identity: &Identity) -> Option<&HostMount> {
        let ours = self.find(path, identity)?;
        self.0
            .iter()
            .find(|mount| mount.parent == ours.id && mount.id != ours.id)
    }

    /// Where others are mounted in a filesystem: paths in it, wherever it is itself.
    pub(crate) fn places_inside(&self, anchor: &Anchor) -> Vec<PathBuf> {
        match &anchor.identity {
            Some(identity) => self.places_on(&identity.device),
            // It cannot be told from others.
            None => match self.last_at(&anchor.path) {
                Some(mount) => self.places_on(&mount.device),
                None => Vec::new(),
            },
        }
    }

    /// Where others are mounted on the filesystem of a device, wherever that is mounted itself: as
    /// paths from its root.
    pub(crate) fn places_on(&self, device: &str) -> Vec<PathBuf> {
        let own = |mount: &&HostMount| mount.device == device;
        let own: HashMap<u64, &HostMount> = self
            .0
            .iter()
            .filter(own)
            .map(|mount| (mount.id, mount))
            .collect();
        let others = self.0.iter().filter_map(|mount| {
            let on = own.get(&mount.parent).filter(|on| on.id != mount.id)?;
            let below = mount.path.strip_prefix(&on.path).ok()?;
            let root = on.root.strip_prefix("/").ok()?;
            Some(root.join(below))
        });
        let mut places: Vec<PathBuf> = others
            .map(|place| place.components().collect())
            .filter(|place| *place != PathBuf::new())
            .collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// How a filesystem that was mounted at `path` stands.
    pub(crate) fn standing(&self, path: &Path, identity: &Identity) -> Standing {
        let Some(ours) = self.find(path, identity) else {
            return Standing::Gone;
        };
        let path = &ours.path;
        // Each mount of the way, and the path at which it is left for the next.
        let mut way = vec![(ours.id, path)];
        let is_on = |way: &[(u64, &PathBuf)], id: u64| way.iter().any(|(on, _)| *on == id);
        let mut at = ours;
        // The parent of the uppermost is not listed, or itself.
        while let Some(parent) = self.0.iter().find(|mount| mount.id == at.parent)
            && !is_on(&way, parent.id)
        {
            way.push((parent.id, &at.path));
            at = parent;
        }
        // Whoever walks along the path leaves it where something else was mounted on it, on our
        // way: not behind the place at which that leads into the next mount.
        let cover = self.0.iter().find(|mount| {
            let on = way.iter().find(|(id, _)| *id == mount.parent);
            on.is_some_and(|(_, left)| left.starts_with(&mount.path)) && !is_on(&way, mount.id)
        });
        match cover {
            Some(cover) => Standing::Covered(cover.clone()),
            None => Standing::Reached(path.clone()),
        }
    }
}

/// A number that changes whenever something is mounted, unmounted or moved to another place, in
/// this process's namespace; none where that cannot be told. Directories that are renamed above a
/// mount do not change it.
pub(crate) fn version() -> Option<u64> {
    struct Watch {
        table: File,
        version: u64,
    }
    const NOW: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    static WATCH: Mutex<Option<Watch>> = Mutex::new(None);
    let mut watch = WATCH.lock();
    let watch = match &mut *watch {
        Some(watch) => watch,
        none => none.insert(Watch {
            table: File::open("/proc/self/mountinfo").ok()?,
            version: 0,
        }),
    };
    let mut tables = [PollFd::new(&watch.table, PollFlags::PRI)];
    // Each change is told once.
    if poll(&mut tables, Some(&NOW)).ok()? > 0 {
        watch.version += 1;
    }
    Some(watch.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &[&str]) -> MountTable {
        MountTable::parse(&lines.join("\n"))
    }

    #[test]
    fn the_uppermost_mount_of_a_path_is_found() {
        let table = table(&[
            "22 28 0:20 / /sys rw - sysfs sysfs rw",
            "30 28 0:50 / /tank/a\\040b rw,nosuid shared:1 - fuse.millpond tank/a\\040b rw",
            "31 28 0:51 / /tank rw - fuse.millpond old rw",
            "32 28 0:52 / /tank rw - ext4 /dev/sda1 rw",
        ]);
        let found = table.last_at(Path::new("/tank")).expect("mounted");
        assert_eq!(
            (&*found.source, &*found.kind, &*found.device),
            ("/dev/sda1", "ext4", "0:52")
        );
        assert!(!found.is_fuse());
        let found = table.last_at(Path::new("/tank/a b")).expect("mounted");
        assert_eq!((&*found.source, found.is_fuse()), ("tank/a b", true));
        assert_eq!(table.last_at(Path::new("/tank/a")), None);
    }

    #[test]
    fn what_is_mounted_on_a_filesystem_is_found_wherever_that_is() {
        let table = table(&[
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
            "30 1 0:50 / /tank rw - fuse.millpond tank rw",
            "31 30 0:51 / /tank/a/b rw - fuse.millpond tank/a/b rw",
            // On what is on it, over it, and beside it.
            "32 31 0:52 / /tank/a/b/c rw - tmpfs deeper rw",
            "33 30 0:53 / /tank rw - tmpfs over rw",
            "34 1 0:54 / /tanks rw - tmpfs beside rw",
            // A directory of it elsewhere, and what is mounted there.
            "35 1 0:50 /d\\040e /srv/x rw - fuse.millpond tank rw",
            "36 35 0:55 / /srv/x/f rw - tmpfs inside rw",
            "37 35 0:56 / /srv/x rw - tmpfs on rw",
        ]);
        let places = ["a/b", "d e", "d e/f"].map(PathBuf::from);
        assert_eq!(table.places_on("0:50"), places);
        assert!(table.places_on("0:52").is_empty());
    }

    fn identity(id: u64, device: &str, source: &str) -> Identity {
        let (device, source) = (device.to_owned(), source.to_owned());
        Identity { id, device, source }
    }

    #[test]
    fn covered_is_what_no_path_leads_to() {
        let root = "1 0 8:1 / / rw - ext4 /dev/sda1 rw";
        let tank = "30 1 0:50 / /tank rw - fuse.millpond tank rw";
        let inside = "31 30 0:51 / /tank/a/b rw - fuse.millpond tank/a/b rw";
        let place = Path::new("/tank/a/b");
        let ours = identity(31, "0:51", "tank/a/b");
        let covered_by = |lines: &[&str]| match table(lines).standing(place, &ours) {
            Standing::Covered(cover) => Some(cover.source),
            standing => {
                assert_eq!(standing, Standing::Reached(place.into()), "{lines:?}");
                None
            }
        };
        assert_eq!(covered_by(&[root, tank, inside]), None);
        // Something at the same place, above it, beside it, inside of it.
        let over = "40 31 0:60 / /tank/a/b rw - tmpfs over rw";
        assert_eq!(covered_by(&[root, tank, inside, over]), Some("over".into()));
        let above = "40 30 0:60 / /tank/a rw - tmpfs above rw";
        assert_eq!(
            covered_by(&[root, tank, inside, above]),
            Some("above".into())
        );
        let top = "40 30 0:60 / /tank rw - tmpfs top rw";
        assert_eq!(covered_by(&[root, tank, inside, top]), Some("top".into()));
        let beside = "40 30 0:60 / /tank/a/bb rw - tmpfs beside rw";
        assert_eq!(covered_by(&[root, tank, inside, beside]), None);
        let deeper = "40 31 0:60 / /tank/a/b/c rw - tmpfs deeper rw";
        let table_of_both = table(&[root, tank, inside, deeper]);
        assert_eq!(covered_by(&[root, tank, inside, deeper]), None);
        let inner = table_of_both
            .inside(place, &ours)
            .map(|inner| &*inner.source);
        assert_eq!(inner, Some("deeper"));
        assert_eq!(
            table(&[root, tank, inside, beside]).inside(place, &ours),
            None
        );
        // It is on top of what covers another.
        let later = "31 40 0:51 / /tank/a/b rw - fuse.millpond tank/a/b rw";
        assert_eq!(covered_by(&[root, tank, above, later]), None);
        // A filesystem over the one that it is on, and one in that which has its path.
        let all = "32 30 0:52 / /tank rw - fuse.millpond all rw";
        let of_all = "33 32 0:53 / /tank/a/b rw - fuse.millpond all/b rw";
        let both = [root, tank, inside, all, of_all];
        assert_eq!(covered_by(&both), Some("all".into()));
        let upper = identity(33, "0:53", "all/b");
        let standing = table(&both).standing(place, &upper);
        assert_eq!(standing, Standing::Reached(place.into()));
        // It was unmounted by hand, whatever is there now.
        for line in [
            "41 30 0:61 / /tank/a/b rw - tmpfs other rw",
            // Numbers of devices are used again.
            "41 30 0:51 / /tank/a/b rw - tmpfs other rw",
            "41 30 0:51 / /tank/a/b rw - fuse.other tank rw",
            "31 30 0:52 / /tank/a/b rw - fuse.millpond tank/a/b rw",
        ] {
            let other = table(&[root, tank, line]);
            assert_eq!(other.standing(place, &ours), Standing::Gone, "{line}");
        }
    }

    #[test]
    fn mounts_are_found_wherever_they_are() {
        let root = "1 0 8:1 / / rw - ext4 /dev/sda1 rw";
        let place = Path::new("/tank/a/b");
        let ours = identity(31, "0:51", "tank/a/b");
        let moved = "31 1 0:51 / /tank/c/b rw - fuse.millpond tank/a/b rw";
        let other = "41 1 0:60 / /tank/a/b rw - tmpfs other rw";
        let bound = "42 1 0:51 / /srv rw - fuse.millpond tank/a/b rw";
        let reached = |path: &str| Standing::Reached(path.into());
        let standing = |lines: &[&str]| table(lines).standing(place, &ours);
        assert_eq!(standing(&[root, moved, other, bound]), reached("/tank/c/b"));
        assert_eq!(standing(&[root, bound, moved]), reached("/tank/c/b"));
        // Bound to elsewhere it is what is left.
        assert_eq!(standing(&[root, other, bound]), reached("/srv"));
        // What covers it where it is now.
        let cover = "43 1 0:61 / /tank/c rw - tmpfs cover rw";
        let covered = standing(&[root, moved, cover]);
        assert!(matches!(covered, Standing::Covered(by) if by.source == "cover"));
    }

    /// Goal: a mount of another process that got the numbers of one of ours is not taken for it
    /// when ours has ended.
    #[test]
    fn numbers_of_one_that_has_ended_are_not_looked_for_elsewhere() {
        let root = "1 0 8:1 / / rw - ext4 /dev/sda1 rw";
        let ours = identity(31, "0:51", "tank");
        let place = Path::new("/tmp/one/mp");
        let is_there = |lines: &[&str]| table(lines).is_last_at_its_path(place, &ours);
        let own = "31 1 0:51 / /tmp/one/mp rw - fuse.millpond tank rw";
        let others = "31 1 0:51 / /tmp/two/mp rw - fuse.millpond tank rw";
        let over = "32 31 0:52 / /tmp/one/mp rw - fuse.millpond tank rw";
        assert!(is_there(&[root, own]));
        for lines in [&[root, others][..], &[root, own, over], &[root]] {
            assert!(!is_there(lines), "{lines:?}");
        }
    }

    #[test]
    fn what_is_mounted_inside_is_told_by_paths_in_the_filesystem() {
        let anchor = Anchor {
            path: "/tank".into(),
            identity: Some(identity(31, "0:51", "tank")),
        };
        let table = table(&[
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
            "31 1 0:51 / /moved rw - fuse.millpond tank rw",
            "32 31 0:60 / /moved/a/b rw - tmpfs inner rw",
            "33 32 0:61 / /moved/a/b rw - tmpfs over rw",
            "34 31 0:62 / /moved rw - tmpfs cover rw",
            "35 1 0:51 /sub /bound rw - fuse.millpond tank rw",
            "36 35 0:63 / /bound/c rw - tmpfs deeper rw",
            "37 1 0:64 / /tank/d rw - tmpfs elsewhere rw",
        ]);
        let places = table.places_inside(&anchor);
        assert_eq!(places, ["a/b", "sub/c"].map(PathBuf::from));
        assert_eq!(table.place_of(&anchor), Some(Path::new("/moved")));
    }
}
