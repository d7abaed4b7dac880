//! A tree of files as it may be after a crash.
//!
//! A crash may take back what nobody made durable, but only in order: changes of names are logged
//! in the order in which they were made, and any fsync makes all earlier ones durable. Changes of
//! one file are durable with an fsync of that file. So the model keeps all states of the tree since
//! the last fsync of anything, and all states of each file since the last one of that file.

use std::collections::hash_map::Entry::Vacant;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Most bytes in the value of an extended attribute.
pub const XATTR_BYTES_MAX: usize = 65536;

/// The name under which Linux has a file's POSIX list of access.
pub const ACCESS_LIST: &str = "system.posix_acl_access";

/// Tags of a list's entries (`include/uapi/linux/posix_acl.h`).
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// A list as the attribute has it (`posix_acl_xattr.h`): for a mode, with so many users.
pub fn access_list(mode: u32, users: u32, named: u16, group: u16) -> Vec<u8> {
    let of_mode = |shift: u32| (mode >> shift & 7) as u16;
    let mut entries = vec![(USER_OBJ, of_mode(6), u32::MAX)];
    entries.extend((0..users).map(|user| (USER, named, 1000 + user)));
    entries.push((GROUP_OBJ, group, u32::MAX));
    entries.push((MASK, of_mode(3), u32::MAX));
    entries.push((OTHER, of_mode(0), u32::MAX));
    let mut out = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(permissions.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// What one name leads to; files by a number of the model's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Directory,
    File(u64),
    Link(String),
}

/// All names, by their path below the root.
pub type Names = BTreeMap<String, Entry>;

/// What one file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    pub data: Vec<u8>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub mode: u32,
}

impl Content {
    /// After `chmod`: a list of access follows (`__posix_acl_chmod_masq`, fs/posix_acl.c).
    pub fn change_mode(&mut self, mode: u32) {
        self.mode = mode;
        let Some(list) = self.xattrs.get_mut(ACCESS_LIST) else {
            return;
        };
        for entry in list[4..].chunks_exact_mut(8) {
            let shift = match u16::from_le_bytes([entry[0], entry[1]]) {
                USER_OBJ => 6,
                MASK => 3,
                OTHER => 0,
                _ => continue,
            };
            entry[2] = (mode >> shift & 7) as u8;
        }
    }
}

/// The tree, with the states that a crash may bring back.
#[derive(Debug, Default)]
pub struct Tree {
    /// The last one is now. Never empty.
    names: Vec<Names>,
    /// Of each file the same.
    files: HashMap<u64, Vec<Content>>,
    next: u64,
}

impl Tree {
    pub fn new() -> Self {
        Self {
            names: vec![Names::new()],
            ..Self::default()
        }
    }

    /// The names as they are now.
    pub fn names(&self) -> &Names {
        self.names.last().expect("a state of the tree")
    }

    /// A file as it is now.
    pub fn file(&self, id: u64) -> &Content {
        let states = self.files.get(&id).expect("a file of the model");
        states.last().expect("a state of the file")
    }

    /// A number for a new file, which is empty.
    pub fn create(&mut self, mode: u32) -> u64 {
        self.next += 1;
        let content = Content {
            mode,
            ..Content::default()
        };
        self.files.insert(self.next, vec![content]);
        self.next
    }

    /// The names are about to become these.
    pub fn rename(&mut self, names: Names) {
        self.names.push(names);
    }

    /// The last change of names was refused.
    pub fn refuse_names(&mut self) {
        self.names.pop();
    }

    /// A file is about to become this.
    pub fn write(&mut self, id: u64, content: Content) {
        self.files
            .get_mut(&id)
            .expect("a file of the model")
            .push(content);
    }

    /// The last change of a file was refused.
    pub fn refuse_file(&mut self, id: u64) {
        self.files.get_mut(&id).expect("a file of the model").pop();
    }

    /// An fsync of a file succeeded.
    pub fn is_durable(&mut self, id: u64) {
        self.names.drain(..self.names.len() - 1);
        let states = self.files.get_mut(&id).expect("a file of the model");
        states.drain(..states.len() - 1);
    }

    /// Compares with what is below a directory, but for names that begin with `noise`. What is
    /// there is the model from then on. The error says what could not be.
    pub fn compare(&mut self, root: &Path) -> Result<(), String> {
        let found = Found::read(root)?;
        let mut why = String::new();
        // The last of the states that fit: two that were exchanged differ in their content alone.
        for names in self.names.iter().rev() {
            match self.fits(names, &found) {
                Ok(()) => {
                    let names = names.clone();
                    self.take(names, found);
                    return Ok(());
                }
                Err(error) => why.push_str(&format!("- {error}\n")),
            }
        }
        Err(format!(
            "none of {} states of the tree, newest first:\n{why}there is: {:?}",
            self.names.len(),
            found.names
        ))
    }

    fn fits(&self, names: &Names, found: &Found) -> Result<(), String> {
        let mut inodes: HashMap<u64, u64> = HashMap::new();
        let mut ids: HashMap<u64, u64> = HashMap::new();
        for (path, entry) in names {
            let there = found.names.get(path);
            match (entry, there) {
                (Entry::File(id), Some(Entry::File(inode))) => {
                    let known = *inodes.entry(*id).or_insert(*inode);
                    let other = *ids.entry(*inode).or_insert(*id);
                    if known != *inode || other != *id {
                        return Err(format!("{path}: file {id} is not one with its other names"));
                    }
                    let states = self.files.get(id).expect("a file of the model");
                    let content = found.files.get(inode).expect("a file that was read");
                    may_be(states, content).map_err(|why| format!("{path} (file {id}): {why}"))?;
                }
                (_, Some(there)) if entry == there => {}
                (_, there) => return Err(format!("{path}: {entry:?} expected, {there:?} found")),
            }
        }
        match found.names.keys().find(|path| !names.contains_key(*path)) {
            Some(path) => Err(format!("{path} is there and should not be")),
            None => Ok(()),
        }
    }

    /// What a crash has left is durable: it was on disk, or the log was replayed into a group that
    /// was on disk before anybody could see it.
    fn take(&mut self, names: Names, mut found: Found) {
        let mut files = HashMap::new();
        for (path, entry) in &names {
            if let (Entry::File(id), Some(Entry::File(inode))) = (entry, found.names.get(path))
                && let Some(content) = found.files.remove(inode)
            {
                files.insert(*id, vec![content]);
            }
        }
        self.files = files;
        self.names = vec![names];
    }
}

/// Whether bytes may be these: as many as one of the states has, or between, and each one as in one
/// of the states.
pub fn bytes_may_be<'a>(
    states: impl Iterator<Item = &'a [u8]> + Clone,
    found: &[u8],
) -> Result<(), String> {
    let lengths = states.clone().map(<[u8]>::len);
    let (least, most) = (lengths.clone().min(), lengths.max());
    let length = found.len();
    if Some(length) < least || Some(length) > most {
        return Err(format!("{length} bytes, not {least:?} to {most:?}"));
    }
    if states.clone().any(|state| state == found) {
        return Ok(());
    }
    let byte = |state: &[u8], at: usize| state.get(at).copied().unwrap_or(0);
    for (at, &is) in found.iter().enumerate() {
        if !states.clone().any(|state| byte(state, at) == is) {
            let last = states.clone().last().map(|state| byte(state, at));
            return Err(format!(
                "byte {at} of {length} is {is:#x}, last written {last:x?}, {} states",
                states.count()
            ));
        }
    }
    Ok(())
}

/// Whether a file may have this content, when it went through these states and none after the first
/// is known to be durable: each byte, attribute and the mode are those of one of the states.
fn may_be(states: &[Content], found: &Content) -> Result<(), String> {
    bytes_may_be(
        states.iter().map(|state| state.data.as_slice()),
        &found.data,
    )?;
    if !states.iter().any(|state| state.mode == found.mode) {
        return Err(format!("its mode is {:o}", found.mode));
    }
    let mut names: Vec<&String> = found.xattrs.keys().collect();
    names.extend(states.iter().flat_map(|state| state.xattrs.keys()));
    for name in names {
        let is = found.xattrs.get(name);
        if !states.iter().any(|state| state.xattrs.get(name) == is) {
            return Err(format!(
                "attribute {name} has {:?} bytes, or others than it had",
                is.map(Vec::len)
            ));
        }
    }
    Ok(())
}

/// What is below a directory; files by the numbers of their inodes.
#[derive(Debug, Default)]
struct Found {
    names: Names,
    files: HashMap<u64, Content>,
}

impl Found {
    fn read(root: &Path) -> Result<Self, String> {
        let mut out = Self::default();
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            let at = root.join(&directory);
            let error = |error: std::io::Error| format!("{}: {error}", at.display());
            for entry in fs::read_dir(&at).map_err(error)? {
                let name = entry.map_err(error)?.file_name();
                let name = String::from_utf8(name.into_vec()).map_err(|_| "a name".to_owned())?;
                if directory.is_empty() && name.starts_with("noise") {
                    continue;
                }
                let path = match directory.as_str() {
                    "" => name,
                    _ => format!("{directory}/{name}"),
                };
                let entry = out.entry(&root.join(&path));
                let entry = entry.map_err(|error| format!("{path}: {error}"))?;
                if entry == Entry::Directory {
                    directories.push(path.clone());
                }
                out.names.insert(path, entry);
            }
        }
        Ok(out)
    }

    fn entry(&mut self, path: &Path) -> std::io::Result<Entry> {
        let metadata = fs::symlink_metadata(path)?;
        if metadata.is_dir() {
            return Ok(Entry::Directory);
        }
        if metadata.is_symlink() {
            let target = fs::read_link(path)?;
            return Ok(Entry::Link(target.to_string_lossy().into_owned()));
        }
        let inode = metadata.ino();
        if let Vacant(place) = self.files.entry(inode) {
            place.insert(Content {
                data: fs::read(path)?,
                xattrs: attributes(path)?,
                mode: metadata.permissions().mode() & 0o777,
            });
        }
        Ok(Entry::File(inode))
    }
}

/// The extended attributes of users that a file has, and its list of access.
fn attributes(path: &Path) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let mut list = vec![0; XATTR_BYTES_MAX];
    let length = rustix::fs::llistxattr(path, &mut list[..])?;
    let mut out = BTreeMap::new();
    for name in list[..length].split(|byte| *byte == 0) {
        let name = String::from_utf8_lossy(name).into_owned();
        if !name.starts_with("user.") && name != ACCESS_LIST {
            continue;
        }
        let mut value = vec![0; XATTR_BYTES_MAX];
        let length = rustix::fs::lgetxattr(path, name.as_str(), &mut value[..])?;
        value.truncate(length);
        out.insert(name, value);
    }
    Ok(out)
}
