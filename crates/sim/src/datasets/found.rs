//! What datasets of a pool are: read from the pool, and compared with the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::crypt::{WRAPPING_KEY_BYTES, WrappingKey};
use dataset::{DatasetError, DatasetKind, DslPool, ListOptions};
use device::World;
use filesystem::{FileKind, Filesystem};
use volume::Volume;

use super::model::{CONTENT, Files, PoolModel, USERS};
use crate::torture::POOL;
use crate::verify::{Failure, Report};

/// A snapshot that was found.
#[derive(Debug)]
pub(super) struct FoundSnap {
    pub(super) name: String,
    pub(super) guid: u64,
    files: Files,
    holds: BTreeSet<String>,
    is_doomed: bool,
}

/// A filesystem or volume that was found.
#[derive(Debug, Default)]
pub(super) struct FoundSet {
    is_volume: bool,
    files: Files,
    pub(super) snaps: Vec<FoundSnap>,
    pub(super) marks: BTreeMap<String, u64>,
    origin: Option<String>,
    /// Name of its encryption root.
    root: Option<String>,
}

/// What was found in a pool.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) sets: BTreeMap<String, FoundSet>,
    /// Tokens of interrupted receives, and whether all of the dataset is the rest of one.
    pub(super) rests: BTreeMap<String, (String, bool)>,
    /// Rests that nobody can go on with.
    pub(super) dead: Vec<String>,
    /// Which of the users' keys opens an encryption root.
    users: BTreeMap<String, u8>,
}

/// A user's key.
pub(super) fn wrapping(user: u8) -> WrappingKey {
    WrappingKey::new([user; WRAPPING_KEY_BYTES])
}

/// The user's key that opens an encryption root, which is loaded if none is.
async fn unlock(dsl: &Arc<DslPool>, root: &str) -> Result<u8, Failure> {
    let mut users = Vec::new();
    for user in 1..=USERS {
        match dsl.keys().load(root, wrapping(user), true).await {
            Ok(()) => users.push(user),
            Err(DatasetError::WrongKey { .. }) => {}
            Err(error) => return Err(format!("{root}: {error}").into()),
        }
    }
    let [user] = users[..] else {
        return Err(format!("{root} is opened by {users:?}").into());
    };
    match dsl.keys().load(root, wrapping(user), false).await {
        Ok(()) | Err(DatasetError::KeyLoaded { .. }) => Ok(user),
        Err(error) => Err(format!("{root}: {error}").into()),
    }
}

fn everything() -> ListOptions {
    ListOptions {
        snapshots: true,
        ..ListOptions::default()
    }
}

async fn files(
    dsl: &Arc<DslPool>,
    world: &World,
    name: &str,
    is_volume: bool,
) -> Result<Files, Failure> {
    let dataset = dsl.open_dataset(name).await?;
    if is_volume {
        let volume = Volume::open(dataset, world.clone()).await?;
        let read = volume.read(0, volume.size_bytes() as usize).await;
        volume.close().await?;
        let read = read.map_err(|error| format!("{name}: {error}"))?;
        return Ok([(CONTENT.to_owned(), Arc::new(read.concat()))].into());
    }
    let fs = Filesystem::open(dataset, world.clone()).await?;
    let read = read_files(&fs).await;
    fs.close().await?;
    read.map_err(|error| format!("{name}: {error}").into())
}

async fn read_files(fs: &Filesystem) -> Result<Files, Failure> {
    let mut out = Files::new();
    let mut cookie = 0;
    loop {
        let batch = fs.read_directory(fs.root(), cookie, 100).await?;
        let Some(last) = batch.last() else {
            return Ok(out);
        };
        cookie = last.next_cookie;
        for entry in batch {
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let seen = fs.attributes(entry.ino).await?;
            if seen.kind != FileKind::Regular {
                return Err(format!("{:?} is a {:?}", entry.name, seen.kind).into());
            }
            let data = fs.read(entry.ino, 0, seen.size_bytes as usize).await?;
            let data = data.concat();
            if data.len() as u64 != seen.size_bytes {
                return Err(format!("{} bytes of {}", data.len(), seen.size_bytes).into());
            }
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            out.insert(name, Arc::new(data));
        }
    }
}

/// Reads all that there is.
pub(super) async fn observe(dsl: &Arc<DslPool>, world: &World) -> Result<Found, Failure> {
    let mut out = Found::default();
    for info in dsl.directories().list(POOL, &everything()).await? {
        let Some((head, short)) = info.name.split_once('@') else {
            if info.name == POOL {
                continue;
            }
            let property = "receive_resume_token";
            let token = dsl.properties().get(&info.name, property).await;
            let token = token.ok().and_then(|token| match token.value {
                dataset::PropertyValue::Text(text) if text.starts_with("1-") => Some(text),
                _ => None,
            });
            match (token, info.is_inconsistent) {
                (Some(token), is_new) => {
                    out.rests.insert(info.name.clone(), (token, is_new));
                }
                (None, true) => out.dead.push(info.name.clone()),
                (None, false) => {}
            }
            if info.is_inconsistent {
                continue;
            }
            let key = dsl.keys().info(&info.name).await?;
            if let Some(key) = &key
                && !out.users.contains_key(&key.root)
            {
                let user = unlock(dsl, &key.root).await?;
                out.users.insert(key.root.clone(), user);
            }
            let marks = dsl.bookmarks().list(&info.name).await?;
            let is_volume = info.kind == DatasetKind::Volume;
            let set = FoundSet {
                is_volume,
                files: files(dsl, world, &info.name, is_volume).await?,
                snaps: Vec::new(),
                marks: marks
                    .iter()
                    .filter_map(|mark| {
                        let (_, short) = mark.name.split_once('#')?;
                        Some((short.to_owned(), mark.phys.guid.get()))
                    })
                    .collect(),
                origin: info.origin,
                root: key.map(|key| key.root),
            };
            out.sets.insert(info.name, set);
            continue;
        };
        let holds = dsl.holds().list(&info.name).await?;
        let doomed = dsl.properties().get(&info.name, "defer_destroy").await?;
        let set = out.sets.get_mut(head);
        let set = set.ok_or("a snapshot before its dataset")?;
        let snap = FoundSnap {
            name: short.to_owned(),
            guid: info.guid.get(),
            files: files(dsl, world, &info.name, set.is_volume).await?,
            holds: holds.into_iter().map(|(tag, _)| tag).collect(),
            is_doomed: doomed.value.number() == Some(1),
        };
        set.snaps.push(snap);
    }
    Ok(out)
}

/// What is not as the model has it, in words. `guids`: of snapshots, as far as they are known.
pub(super) fn difference(
    model: &PoolModel,
    found: &Found,
    guids: &BTreeMap<u64, u64>,
) -> Option<String> {
    let names: Vec<_> = model.sets.keys().collect();
    let others: Vec<_> = found.sets.keys().collect();
    if names != others {
        return Some(format!("filesystems are {others:?}, not {names:?}"));
    }
    let is_other = |id: u64, guid: u64| guids.get(&id).is_some_and(|known| *known != guid);
    for (name, set) in &model.sets {
        let there = &found.sets[name];
        if set.is_volume != there.is_volume {
            return Some(format!("{name} is of another kind"));
        }
        let root = model.key(name).map(|key| {
            let name = model.root_name(key.root).unwrap_or("nothing");
            (name, key.user)
        });
        let there_root = there.root.as_ref().map(|root| {
            let user = found.users.get(root).copied();
            (root.as_str(), user.unwrap_or(0))
        });
        if root != there_root {
            return Some(format!("{name} has the key {there_root:?}, not {root:?}"));
        }
        let wanted: Vec<_> = set.snaps.iter().map(|snap| &snap.name).collect();
        let snaps: Vec<_> = there.snaps.iter().map(|snap| &snap.name).collect();
        if wanted != snaps {
            return Some(format!("snapshots of {name} are {snaps:?}, not {wanted:?}"));
        }
        if let Some(what) = files_difference(&set.files, &there.files) {
            return Some(format!("{name}: {what}"));
        }
        for (snap, other) in set.snaps.iter().zip(&there.snaps) {
            let name = format!("{name}@{}", snap.name);
            if let Some(what) = files_difference(&snap.files, &other.files) {
                return Some(format!("{name}: {what}"));
            }
            if snap.holds != other.holds || snap.is_doomed != other.is_doomed {
                return Some(format!(
                    "{name}: holds {:?}, doomed {}, not {:?}, {}",
                    other.holds, other.is_doomed, snap.holds, snap.is_doomed
                ));
            }
            if is_other(snap.id, other.guid) {
                return Some(format!("{name} has another GUID"));
            }
        }
        let wanted: Vec<_> = set.marks.keys().collect();
        let marks: Vec<_> = there.marks.keys().collect();
        if wanted != marks {
            return Some(format!("bookmarks of {name} are {marks:?}, not {wanted:?}"));
        }
        for (short, mark) in &set.marks {
            if is_other(mark.id, there.marks[short]) {
                return Some(format!("{name}#{short} has another GUID"));
            }
        }
        let origin = set.origin.map(|origin| model.full_name(origin));
        let origin = origin.map(|name| name.unwrap_or_else(|| "nothing".into()));
        if origin != there.origin {
            return Some(format!(
                "{name} is a clone of {:?}, not {origin:?}",
                there.origin
            ));
        }
    }
    None
}

fn files_difference(wanted: &Files, found: &Files) -> Option<String> {
    for (name, data) in wanted {
        let Some(other) = found.get(name) else {
            return Some(format!("{name} is missing"));
        };
        if data != other {
            let at = data.iter().zip(other.iter());
            let at = at.take_while(|(one, other)| one == other).count();
            return Some(format!(
                "{name} has {} bytes, not {}; different from byte {at} on",
                other.len(),
                data.len()
            ));
        }
    }
    let extra = found.keys().find(|name| !wanted.contains_key(*name))?;
    Some(format!("{extra} should not be there"))
}

/// Compares figures with blocks that were counted one by one, and with each other.
///
/// # Errors
/// What is not right.
pub(super) async fn check_figures(dsl: &Arc<DslPool>, report: &Report) -> Result<u64, Failure> {
    let all = dsl.directories().list(POOL, &everything()).await?;
    let number = async |name: &str, property: &str| -> Result<u64, Failure> {
        let found = dsl.properties().get(name, property).await;
        let found = found.map_err(|error| format!("{property} of {name}: {error}"))?;
        let value = found.value.number();
        value.ok_or_else(|| format!("{property} of {name} is no number").into())
    };
    let mut checked = 0;
    for info in &all {
        let (name, counted) = (&info.name, &report.sets[&info.object]);
        let mut same = async |property: &str, wanted: u64| -> Result<(), Failure> {
            let says = number(name, property).await?;
            checked += 1;
            match says == wanted {
                true => Ok(()),
                false => Err(format!("{name}: {property} says {says}, counted {wanted}").into()),
            }
        };
        same("referenced", counted.born_after(format::Txg::ZERO)).await?;
        same("logicalreferenced", counted.uncompressed_bytes).await?;
        if info.kind == DatasetKind::Snapshot {
            continue;
        }
        same("usedbysnapshots", counted.by_snapshots_bytes).await?;
        let origin = info.origin.as_ref();
        let origin = origin.and_then(|origin| all.iter().find(|other| other.name == *origin));
        let since = origin.map_or(format::Txg::ZERO, |origin| origin.createtxg);
        same("usedbydataset", counted.born_after(since)).await?;
        let own = format!("{name}@");
        let mut newest = since;
        for snapshot in all.iter().filter(|other| other.name.starts_with(&own)) {
            let property = format!("written@{}", &snapshot.name[own.len()..]);
            same(&property, counted.born_after(snapshot.createtxg)).await?;
            newest = newest.max(snapshot.createtxg);
        }
        if name != POOL {
            same("written", counted.born_after(newest)).await?;
        }
        let mut parts = 0;
        for part in ["usedbydataset", "usedbysnapshots", "usedbychildren"] {
            parts += number(name, part).await?;
        }
        same("used", parts).await?;
        if name == POOL {
            // What is hidden in the pool counts there.
            continue;
        }
        let below = format!("{name}/");
        let mut children = 0;
        for child in &all {
            let rest = child.name.strip_prefix(&below);
            if rest.is_some_and(|rest| !rest.contains(['/', '@'])) {
                children += number(&child.name, "used").await?;
            }
        }
        let has_rest = dsl.properties().get(name, "receive_resume_token").await;
        let has_rest = has_rest.is_ok_and(|token| match token.value {
            dataset::PropertyValue::Text(text) => text.starts_with("1-"),
            dataset::PropertyValue::Number(_) => false,
        });
        if !has_rest {
            same("usedbychildren", children).await?;
        }
    }
    Ok(checked)
}

/// Figures of datasets by name and property, as `zfs get -p` gives them.
pub type Figures = BTreeMap<(String, String), u64>;

/// Of filesystems; those of the pool's own also count what the pool keeps for itself.
const OF_HEADS: [&str; 9] = [
    "used",
    "referenced",
    "usedbydataset",
    "usedbysnapshots",
    "usedbychildren",
    "usedbyrefreservation",
    "written",
    "logicalused",
    "logicalreferenced",
];
const OF_SNAPSHOTS: [&str; 5] = [
    "used",
    "referenced",
    "written",
    "logicalreferenced",
    "userrefs",
];

/// What a pool says of its datasets.
pub(super) async fn figures(dsl: &Arc<DslPool>) -> Result<Figures, Failure> {
    let mut out = Figures::new();
    for info in dsl.directories().list(POOL, &everything()).await? {
        if info.name == POOL {
            continue;
        }
        let asked = match info.kind {
            DatasetKind::Snapshot => &OF_SNAPSHOTS[..],
            _ => &OF_HEADS,
        };
        for property in asked {
            let found = dsl.properties().get(&info.name, property).await?;
            if let Some(number) = found.value.number() {
                out.insert((info.name.clone(), (*property).to_owned()), number);
            }
        }
    }
    Ok(out)
}
