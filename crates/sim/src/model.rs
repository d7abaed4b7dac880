//! What filesystems and volumes hold: the model's idea of it, and a look at the real thing, in a
//! form in which the two can be compared.
//!
//! States are kept for every step of a history, so everything big in them is shared (`Arc`).

use std::collections::BTreeMap;
use std::sync::Arc;

use dataset::{DslPool, ListOptions};
use device::World;
use filesystem::{FileKind, Filesystem};
use volume::Volume;

use crate::verify::Failure;

/// A file of the model, for as long as the run goes on; never used again for another.
pub type FileId = u64;

/// The root directory of every filesystem.
pub const ROOT: FileId = 0;

/// Unit in which volumes are written, in bytes.
pub const SECTOR: u64 = 4096;

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Kind.
    pub kind: FileKind,
    /// Content of a regular file, target of a symbolic link.
    pub data: Arc<Vec<u8>>,
    /// Permissions.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Extended attributes.
    pub xattrs: Arc<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Entries of a directory.
    pub entries: Arc<BTreeMap<Vec<u8>, FileId>>,
    /// Names of anything but a directory.
    pub links: u32,
}

impl File {
    /// Something new and empty.
    pub fn new(kind: FileKind, mode: u32) -> Self {
        File {
            kind,
            data: Arc::default(),
            mode,
            owner: (0, 0),
            xattrs: Arc::default(),
            entries: Arc::default(),
            links: 1,
        }
    }
}

/// A filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsModel {
    /// All that have a name.
    pub files: BTreeMap<FileId, Arc<File>>,
}

impl FsModel {
    /// Only the root directory.
    pub fn new() -> Self {
        let root = File::new(FileKind::Directory, 0o755);
        FsModel {
            files: BTreeMap::from([(ROOT, Arc::new(root))]),
        }
    }

    /// A file, to change it.
    ///
    /// # Panics
    /// When there is none: a bug in the model.
    pub fn file(&mut self, id: FileId) -> &mut File {
        Arc::make_mut(self.files.get_mut(&id).expect("a file of the model"))
    }

    /// Files of a kind.
    pub fn of_kind(&self, kind: FileKind) -> Vec<FileId> {
        let of_kind = |(_, file): &(&FileId, &Arc<File>)| file.kind == kind;
        self.files
            .iter()
            .filter(of_kind)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Whether `id` is `ancestor` or below it.
    pub fn is_within(&self, id: FileId, ancestor: FileId) -> bool {
        id == ancestor
            || self.files.get(&ancestor).is_some_and(|file| {
                file.entries.values().any(|child| {
                    let is_dir = |file: &Arc<File>| file.kind == FileKind::Directory;
                    self.files.get(child).is_some_and(is_dir) && self.is_within(id, *child)
                })
            })
    }

    /// Adds a name.
    pub fn link(&mut self, parent: FileId, name: &[u8], id: FileId) {
        Arc::make_mut(&mut self.file(parent).entries).insert(name.to_vec(), id);
    }

    /// Removes a name; the file goes with its last one.
    pub fn unlink(&mut self, parent: FileId, name: &[u8]) {
        let Some(id) = Arc::make_mut(&mut self.file(parent).entries).remove(name) else {
            return;
        };
        let file = self.file(id);
        file.links -= 1;
        if file.links == 0 {
            self.files.remove(&id);
        }
    }

    /// What can be seen from outside, by path.
    pub fn view(&self) -> BTreeMap<Vec<u8>, Seen> {
        let mut out = BTreeMap::new();
        let mut first = BTreeMap::new();
        self.view_into(ROOT, &mut Vec::new(), &mut first, &mut out);
        out
    }

    fn view_into(
        &self,
        id: FileId,
        path: &mut Vec<u8>,
        first: &mut BTreeMap<FileId, Vec<u8>>,
        out: &mut BTreeMap<Vec<u8>, Seen>,
    ) {
        let Some(file) = self.files.get(&id) else {
            return;
        };
        let same_as = first.entry(id).or_insert_with(|| path.clone()).clone();
        out.insert(
            path.clone(),
            Seen {
                id,
                file: file.clone(),
                same_as,
            },
        );
        for (name, child) in file.entries.iter() {
            let length = path.len();
            path.push(b'/');
            path.extend_from_slice(name);
            self.view_into(*child, path, first, out);
            path.truncate(length);
        }
    }
}

/// A file as seen at one path.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its number in the model that it was seen in.
    pub id: FileId,
    /// The file.
    pub file: Arc<File>,
    /// The first path of the same file, in order.
    pub same_as: Vec<u8>,
}

/// A volume: what each sector holds, by the seed of its content; absent ones are zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeModel {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Seeds by sector.
    pub sectors: Arc<BTreeMap<u64, u64>>,
}

/// Content of a sector from its seed.
pub fn sector(seed: u64) -> Vec<u8> {
    crate::rng::Rng::new(seed).content_of_sector()
}

impl crate::rng::Rng {
    fn content_of_sector(&mut self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SECTOR as usize);
        while out.len() < SECTOR as usize {
            out.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        out
    }
}

/// What a dataset or snapshot holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A filesystem's files.
    Files(FsModel),
    /// A volume's sectors.
    Sectors(VolumeModel),
}

/// A dataset with its snapshots.
#[derive(Debug, Clone)]
pub struct DatasetModel {
    /// What it holds.
    pub content: Arc<Content>,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<(String, Arc<Content>)>,
    /// The snapshot that it is a clone of.
    pub origin: Option<String>,
    /// Properties that were set, as they read.
    pub properties: BTreeMap<String, String>,
    /// Property `sync`, where it was set: whether it is `disabled`.
    pub sync_disabled: Option<bool>,
}

/// Datasets by name.
pub type State = BTreeMap<String, DatasetModel>;

/// What differs between two contents, in words; `None` if nothing.
pub fn difference(wanted: &Content, found: &Content) -> Option<String> {
    match (wanted, found) {
        (Content::Files(wanted), Content::Files(found)) => {
            files_difference(&wanted.view(), &found.view())
        }
        (Content::Sectors(wanted), Content::Sectors(found)) => {
            if wanted.size_bytes != found.size_bytes {
                return Some(format!(
                    "{} bytes, not {}",
                    found.size_bytes, wanted.size_bytes
                ));
            }
            let sectors: std::collections::BTreeSet<_> =
                wanted.sectors.keys().chain(found.sectors.keys()).collect();
            sectors
                .into_iter()
                .find(|sector| wanted.sectors.get(sector) != found.sectors.get(sector))
                .map(|at| {
                    format!(
                        "sector {at} holds {:?}, not {:?}",
                        found.sectors.get(at),
                        wanted.sectors.get(at)
                    )
                })
        }
        _ => Some("another kind".into()),
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn files_difference(
    wanted: &BTreeMap<Vec<u8>, Seen>,
    found: &BTreeMap<Vec<u8>, Seen>,
) -> Option<String> {
    for (path, seen) in wanted {
        let Some(other) = found.get(path) else {
            return Some(format!("{} is missing", text(path)));
        };
        if seen.same_as != other.same_as {
            return Some(format!(
                "{} is a link to {}, not {}",
                text(path),
                text(&other.same_as),
                text(&seen.same_as)
            ));
        }
        if let Some(what) = file_difference(&seen.file, &other.file) {
            return Some(format!("{}: {what}", text(path)));
        }
    }
    let extra = found.keys().find(|path| !wanted.contains_key(*path))?;
    Some(format!("{} should not be there", text(extra)))
}

/// What differs between two files, names aside.
pub fn file_difference(wanted: &File, found: &File) -> Option<String> {
    if wanted.kind != found.kind {
        return Some(format!("a {:?}, not a {:?}", found.kind, wanted.kind));
    }
    if wanted.data != found.data {
        let at = wanted.data.iter().zip(found.data.iter());
        let at = at.take_while(|(one, other)| one == other).count();
        return Some(format!(
            "{} bytes, not {}; different from byte {at} on",
            found.data.len(),
            wanted.data.len()
        ));
    }
    if (wanted.mode, wanted.owner, wanted.links) != (found.mode, found.owner, found.links) {
        return Some(format!(
            "mode {:o} owner {:?} links {}, not {:o} {:?} {}",
            found.mode, found.owner, found.links, wanted.mode, wanted.owner, wanted.links
        ));
    }
    (wanted.xattrs != found.xattrs).then(|| {
        let names = |file: &File| -> Vec<String> {
            let entry =
                |(name, value): (&Vec<u8>, &Vec<u8>)| format!("{} ({})", text(name), value.len());
            file.xattrs.iter().map(entry).collect()
        };
        format!("attributes {:?}, not {:?}", names(found), names(wanted))
    })
}

/// Numbers of files, and which object each is. A file keeps its number, and object, in snapshots
/// and clones of the filesystem where the model saw it.
#[derive(Debug, Clone)]
pub struct Ids {
    next: FileId,
    inos: BTreeMap<FileId, u64>,
}

impl Default for Ids {
    fn default() -> Self {
        Ids {
            next: ROOT + 1,
            inos: BTreeMap::new(),
        }
    }
}

impl Ids {
    /// A number that was never used.
    pub fn fresh(&mut self) -> FileId {
        self.next += 1;
        self.next - 1
    }

    /// Notes a file's object.
    pub fn set(&mut self, id: FileId, ino: u64) {
        self.inos.insert(id, ino);
    }

    /// A file's object.
    ///
    /// # Panics
    /// When it is not known: a bug in the model.
    pub fn ino(&self, fs: &Filesystem, id: FileId) -> u64 {
        if id == ROOT {
            return fs.root();
        }
        *self.inos.get(&id).expect("a file that was seen")
    }
}

/// Reads a whole filesystem.
///
/// # Errors
/// Whatever could not be read, and what contradicts itself.
pub async fn observe_files(fs: &Filesystem, ids: &mut Ids) -> Result<FsModel, Failure> {
    let mut model = FsModel::default();
    let mut by_ino: BTreeMap<u64, FileId> = BTreeMap::from([(fs.root(), ROOT)]);
    let mut todo = vec![fs.root()];
    let mut links = BTreeMap::new();
    while let Some(ino) = todo.pop() {
        let seen = fs.attributes(ino).await?;
        let id = by_ino[&ino];
        let mut file = File::new(seen.kind, seen.mode);
        file.owner = (seen.uid, seen.gid);
        match seen.kind {
            FileKind::Regular => {
                let pieces = fs.read(ino, 0, seen.size_bytes as usize).await?;
                let data = pieces.concat();
                if data.len() as u64 != seen.size_bytes {
                    return Err(format!("{} bytes of {}", data.len(), seen.size_bytes).into());
                }
                file.data = Arc::new(data);
            }
            FileKind::Symlink => file.data = Arc::new(fs.read_link(ino).await?.to_vec()),
            FileKind::Directory => {
                let mut entries = BTreeMap::new();
                let mut cookie = 0;
                loop {
                    let batch = fs.read_directory(ino, cookie, 100).await?;
                    let Some(last) = batch.last() else { break };
                    cookie = last.next_cookie;
                    for entry in batch {
                        if entry.name == b"." || entry.name == b".." {
                            continue;
                        }
                        let child = *by_ino.entry(entry.ino).or_insert_with(|| {
                            todo.push(entry.ino);
                            ids.fresh()
                        });
                        ids.set(child, entry.ino);
                        let found = fs.lookup(ino, &entry.name).await?;
                        if found.ino != entry.ino {
                            return Err(format!(
                                "{} is {} in the list and {} when looked up",
                                text(&entry.name),
                                entry.ino,
                                found.ino
                            )
                            .into());
                        }
                        *links.entry(child).or_insert(0u32) += 1;
                        if entries.insert(entry.name.clone(), child).is_some() {
                            return Err(format!("{} is there twice", text(&entry.name)).into());
                        }
                    }
                }
                if seen.size_bytes != entries.len() as u64 + 2 {
                    return Err(format!(
                        "directory {ino} says {} entries and has {}",
                        seen.size_bytes,
                        entries.len() + 2
                    )
                    .into());
                }
                file.entries = Arc::new(entries);
            }
            _ => {}
        }
        let mut xattrs = BTreeMap::new();
        for name in fs.xattrs().names(ino).await? {
            let value = fs.xattrs().get(ino, &name).await?.to_vec();
            xattrs.insert(name, value);
        }
        file.xattrs = Arc::new(xattrs);
        if seen.kind != FileKind::Directory {
            file.links = seen.nlink;
        }
        model.files.insert(id, Arc::new(file));
    }
    for (id, names) in links {
        let file = &model.files[&id];
        if file.kind != FileKind::Directory && file.links != names {
            return Err(format!("file {id} says {} links and has {names}", file.links).into());
        }
    }
    Ok(model)
}

/// Reads a whole volume. What no known seed makes shows as a seed of its own.
///
/// # Errors
/// Whatever could not be read.
pub async fn observe_volume(volume: &Volume, seeds: &Seeds) -> Result<VolumeModel, Failure> {
    let size_bytes = volume.size_bytes();
    let mut sectors = BTreeMap::new();
    for at in 0..size_bytes / SECTOR {
        let data = volume.read(at * SECTOR, SECTOR as usize).await?.concat();
        if data.iter().any(|byte| *byte != 0) {
            sectors.insert(at, seeds.of(&data));
        }
    }
    Ok(VolumeModel {
        size_bytes,
        sectors: Arc::new(sectors),
    })
}

/// Seeds of sectors by their first bytes.
#[derive(Debug, Clone, Default)]
pub struct Seeds(BTreeMap<[u8; 16], u64>);

impl Seeds {
    /// Notes a seed.
    pub fn add(&mut self, seed: u64) {
        let start = sector(seed)[..16].try_into().expect("sixteen bytes");
        self.0.insert(start, seed);
    }

    /// The seed that made a sector, or a number for what none did.
    pub fn of(&self, data: &[u8]) -> u64 {
        let known = data.first_chunk().and_then(|start| self.0.get(start));
        match known {
            Some(seed) if sector(*seed) == data => *seed,
            _ => u64::MAX,
        }
    }
}

/// Names of datasets and of their snapshots, oldest first, below (and with) `top`.
///
/// # Errors
/// Of listing.
pub async fn list(dsl: &Arc<DslPool>, top: &str) -> Result<BTreeMap<String, Vec<String>>, Failure> {
    let options = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let mut out: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
    for info in dsl.directories().list(top, &options).await? {
        match dataset::name::split_snapshot(&info.name) {
            (head, Some(snapshot)) => {
                let created = (info.createtxg.get(), snapshot.to_owned());
                out.entry(head.to_owned()).or_default().push(created);
            }
            (head, None) => {
                out.entry(head.to_owned()).or_default();
            }
        }
    }
    let names = out.into_iter().map(|(head, mut snapshots)| {
        snapshots.sort();
        (head, snapshots.into_iter().map(|(_, name)| name).collect())
    });
    Ok(names.collect())
}

/// Opens a dataset or snapshot and reads all of it.
///
/// # Errors
/// Whatever could not be opened or read.
pub async fn observe(
    dsl: &Arc<DslPool>,
    world: &World,
    name: &str,
    seeds: &Seeds,
    ids: &mut Ids,
) -> Result<Content, Failure> {
    let dataset = dsl.open_dataset(name).await?;
    if dataset.objset_kind() == format::ObjsetKind::Volume {
        let volume = Volume::open(dataset, world.clone()).await?;
        let seen = observe_volume(&volume, seeds).await?;
        volume.close().await?;
        return Ok(Content::Sectors(seen));
    }
    let fs = Filesystem::open(dataset, world.clone()).await?;
    let seen = observe_files(&fs, ids).await?;
    fs.close().await?;
    Ok(Content::Files(seen))
}
