//! Disks as people see them: what the kernel knows, what they told, what pools have on them, and
//! what is lit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use api::{
    AlertSettings, DiskCondition, DiskLights, DiskMember, DiskOverviewReply, DiskShow,
    DiskShowReply, DiskState, Failure, FailureKind, Guid, SmartState, VdevReport, VdevState,
};
use drives::{Book, Disk, Lamp, Lamps, Light, Remembered, Smartctl};

use crate::Parts;
use crate::list::stable_paths;
use crate::replace::InBay;
use crate::{Drives, smart};
use service::reports;

/// A device of a pool.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) pool: Guid,
    pub(super) member: DiskMember,
}

impl Leaf {
    pub(super) fn works(&self) -> bool {
        matches!(
            self.member.state,
            VdevState::Online | VdevState::Degraded | VdevState::Available | VdevState::InUse
        )
    }

    /// Whether it is to be replaced. One that a person took offline is known to be away.
    pub(super) fn has_failed(&self) -> bool {
        matches!(
            self.member.state,
            VdevState::Faulted | VdevState::Removed | VdevState::Unavailable
        )
    }
}

/// A disk, or one that a pool lacks.
pub(super) struct Row {
    pub(super) state: DiskState,
    pub(super) disk: Option<Disk>,
    pub(super) lamp: Option<Lamp>,
}

/// The devices of all pools, and the pools.
pub(super) fn leaves(parts: &Parts) -> (Vec<Leaf>, Vec<Guid>) {
    fn walk(pool: (&str, Guid), vdev: &VdevReport, above: &str, out: &mut Vec<Leaf>) {
        for child in &vdev.children {
            walk(pool, child, &vdev.name, out);
        }
        if let (true, Some(path)) = (vdev.children.is_empty(), &vdev.path) {
            out.push(Leaf {
                pool: pool.1,
                member: DiskMember {
                    pool: pool.0.to_owned(),
                    guid: vdev.guid,
                    path: path.clone(),
                    vdev: above.to_owned(),
                    state: vdev.state,
                },
            });
        }
    }
    let (mut out, mut pools) = (Vec::new(), Vec::new());
    for open in parts.pools.all() {
        let status = reports::pool_status(&open.pool);
        pools.push(status.guid);
        walk(
            (&status.name, status.guid),
            &status.tree,
            &status.name,
            &mut out,
        );
    }
    // A spare that stands in for a device is there twice.
    let mut seen = BTreeSet::new();
    out.retain(|leaf| seen.insert((leaf.pool, leaf.member.guid)));
    (out, pools)
}

/// The whole disks that a pool's device is on, by the kernel's names. Only links below `/dev` are
/// followed, so nothing can hang.
pub(super) fn disks_of(drives: &Drives, path: &str) -> Vec<String> {
    if !path.starts_with("/dev/") {
        return Vec::new();
    }
    let real = Path::new(path).canonicalize().ok();
    let name = real.as_deref().and_then(Path::file_name);
    name.map_or_else(Vec::new, |name| {
        drives.sysfs.disks_of(&name.to_string_lossy())
    })
}

fn lights(book: Option<&Book>, lamp: &Lamp) -> DiskLights {
    let is_lit = |light| book.is_some_and(|book| book.is_lit(lamp, light));
    DiskLights {
        by: lamp.kind(),
        fault: is_lit(Light::Fault),
        locate: is_lit(Light::Locate),
    }
}

impl Drives {
    /// All disks, by name, then those that pools lack. Blocks, but never for a disk.
    fn rows(&self, leaves: &[Leaf], settings: &AlertSettings) -> Vec<Row> {
        let lamps = self.lamps();
        let book = self.book.lock().clone().ok();
        let stable = stable_paths(Path::new("/dev"));
        let mut members: BTreeMap<String, Vec<&Leaf>> = BTreeMap::new();
        let mut is_somewhere = BTreeSet::new();
        for leaf in leaves {
            for name in disks_of(self, &leaf.member.path) {
                is_somewhere.insert(leaf.member.guid);
                members.entry(name).or_default().push(leaf);
            }
        }
        let mut out = Vec::new();
        let disks = self.sysfs.disks();
        let ids: BTreeSet<String> = disks.iter().map(Disk::id).collect();
        for disk in disks.into_iter().filter(|disk| disk.is_hardware) {
            let on_it = members.get(&disk.name).map_or(&[][..], Vec::as_slice);
            let path = stable.get(&disk.name).cloned();
            let path = path.unwrap_or_else(|| format!("/dev/{}", disk.name));
            let lamp = lamps.of(&disk);
            out.push(self.row(disk, path, on_it, lamp, book.as_ref(), settings));
        }
        for leaf in leaves.iter().filter(|leaf| leaf.has_failed()) {
            let place = book
                .as_ref()
                .and_then(|book| book.place_of(leaf.member.guid));
            // The disk that is at its path now may be another one.
            let is_here = match place {
                Some(place) => ids.contains(&place.id),
                None => is_somewhere.contains(&leaf.member.guid),
            };
            if !is_here && leaf.member.path.starts_with("/dev/") {
                out.push(missing(leaf, place, book.as_ref()));
            }
        }
        out
    }

    fn row(
        &self,
        disk: Disk,
        path: String,
        leaves: &[&Leaf],
        lamp: Option<Lamp>,
        book: Option<&Book>,
        settings: &AlertSettings,
    ) -> Row {
        let id = disk.id();
        // A device whose disk was another one is not on this one.
        let is_on_it = |leaf: &&&Leaf| {
            let place = book.and_then(|book| book.place_of(leaf.member.guid));
            leaf.works() || place.is_none_or(|place| place.id == id)
        };
        let members: Vec<DiskMember> = leaves
            .iter()
            .filter(is_on_it)
            .map(|leaf| leaf.member.clone())
            .collect();
        let has_failed = leaves.iter().filter(is_on_it).any(|leaf| leaf.has_failed());
        let mut state = DiskState {
            name: disk.name.clone(),
            path,
            model: disk.model.clone(),
            serial: disk.serial.clone(),
            size_bytes: disk.size_bytes,
            is_rotational: disk.is_rotational,
            transport: disk.transport,
            enclosure: disk.enclosure.clone(),
            bay: disk.bay.clone(),
            members,
            lights: lamp.as_ref().map(|lamp| lights(book, lamp)),
            id,
            ..DiskState::default()
        };
        if let Some(told) = self.known.lock().get(&state.id) {
            state.smart_state = told.state.clone();
            if let Some(report) = &told.report {
                state.new_bad_sectors = told.history.new_bad_sectors(report);
                state.model = state.model.or_else(|| report.model.clone());
                state.serial = state.serial.or_else(|| report.serial.clone());
            }
            state.smart = told.report.clone();
        }
        state.condition = condition(&state, has_failed, settings);
        Row {
            state,
            disk: Some(disk),
            lamp,
        }
    }
}

/// A disk that a pool lacks.
fn missing(leaf: &Leaf, place: Option<&Remembered>, book: Option<&Book>) -> Row {
    let place = place.cloned().unwrap_or_default();
    let path = leaf.member.path.clone();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let state = DiskState {
        id: match place.id.is_empty() {
            true => name.clone(),
            false => place.id,
        },
        name,
        path,
        model: place.model,
        serial: place.serial,
        enclosure: place.enclosure,
        bay: place.bay,
        members: vec![leaf.member.clone()],
        condition: DiskCondition::Missing,
        lights: place.lamp.as_ref().map(|lamp| lights(book, lamp)),
        ..DiskState::default()
    };
    Row {
        state,
        disk: None,
        lamp: place.lamp,
    }
}

fn condition(state: &DiskState, has_failed: bool, settings: &AlertSettings) -> DiskCondition {
    let all = AlertSettings {
        off: BTreeSet::new(),
        ..settings.clone()
    };
    let found = ::alerts::found_in_disk(state, &all, |_| false);
    let is_failing = found
        .iter()
        .any(|alert| alert.rule == api::AlertRule::DiskHealth);
    let says_well = state.smart.as_ref().and_then(|report| report.passed) == Some(true);
    if has_failed || is_failing {
        DiskCondition::Failing
    } else if !found.is_empty() || state.smart_state == SmartState::NoAnswer {
        DiskCondition::Warning
    } else if says_well {
        DiskCondition::Good
    } else {
        DiskCondition::Unknown
    }
}

pub(super) async fn rows(parts: &Parts) -> Vec<Row> {
    let (leaves, _) = leaves(parts);
    let settings = (parts.settings)();
    let drives = Arc::clone(&parts.drives);
    let look = move || drives.rows(&leaves, &settings);
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

/// All disks, as they are known.
pub async fn states(parts: &Parts) -> Vec<DiskState> {
    rows(parts).await.into_iter().map(|row| row.state).collect()
}

/// The same for who looks what is in the bays.
pub(super) async fn in_bays(parts: &Parts) -> Vec<InBay> {
    let rows = rows(parts).await.into_iter();
    let in_bay = |row: Row| InBay {
        // A disk with partitions has more numbers.
        is_blank: (row.disk.as_ref())
            .is_some_and(|disk| disk.numbers.len() == 1 && disk.holders.is_empty()),
        state: row.state,
    };
    rows.map(in_bay).collect()
}

/// `millpond disks`.
pub async fn overview(parts: &Parts) -> DiskOverviewReply {
    DiskOverviewReply {
        disks: states(parts).await,
        problem: Smartctl::find().problem(),
    }
}

fn is_meant(row: &Row, word: &str) -> bool {
    let state = &row.state;
    let own = [&state.id, &state.name, &state.path];
    let also = [&state.serial, &state.bay];
    own.iter().any(|text| text.as_str() == word)
        || also.iter().any(|text| text.as_deref() == Some(word))
        || word.strip_prefix("/dev/") == Some(&*state.name)
        || state
            .members
            .iter()
            .any(|member| member.path == word || member.guid.to_string() == word)
}

/// The disk that somebody means.
pub(super) async fn resolve(parts: &Parts, word: &str) -> Result<Row, Failure> {
    let mut rows = rows(parts).await;
    let named = |rows: &[Row], word: &str| -> Vec<usize> {
        let all = rows.iter().enumerate();
        all.filter(|(_, row)| is_meant(row, word))
            .map(|(index, _)| index)
            .collect()
    };
    let mut found = named(&rows, word);
    if found.is_empty() {
        // Another of its links, or a partition.
        let names = disks_of(&parts.drives, word);
        found = names.iter().flat_map(|name| named(&rows, name)).collect();
    }
    // Paths of a multipath device lead to one disk.
    if let Some(first) = found.first().copied()
        && found
            .iter()
            .all(|index| rows[*index].state.id == rows[first].state.id)
    {
        found.truncate(1);
    }
    match found[..] {
        [index] => Ok(rows.swap_remove(index)),
        [] => {
            let message = format!("there is no disk '{word}'; 'millpond disks' lists them");
            Err(Failure::new(FailureKind::NotFound, message))
        }
        _ => {
            let names = found.iter().map(|index| rows[*index].state.path.clone());
            let names: Vec<String> = names.collect();
            let message = format!(
                "'{word}' may be several disks: {}; name one by its path",
                names.join(", ")
            );
            Err(Failure::new(FailureKind::Invalid, message))
        }
    }
}

/// `millpond disks show`.
pub async fn show(parts: &Parts, call: &DiskShow, may_ask: bool) -> Result<DiskShowReply, Failure> {
    let mut row = resolve(parts, &call.disk).await?;
    if let (true, Some(disk)) = (call.fresh && may_ask, row.disk.clone()) {
        let id = disk.id();
        smart::ask(Arc::clone(&parts.drives), disk).await;
        let mut again = rows(parts).await.into_iter();
        row = again.find(|row| row.state.id == id).unwrap_or(row);
    }
    let known = parts.drives.known.lock();
    let told = known.get(&row.state.id);
    Ok(DiskShowReply {
        history: told.map_or_else(Vec::new, |told| told.history.samples().to_vec()),
        tests: told.map_or_else(Vec::new, |told| told.history.tests().to_vec()),
        disk: row.state,
    })
}

/// The disks that are there and that a pool has something on; all disks for no pool.
pub(super) async fn disks_with(parts: &Parts, pool: &str) -> Vec<(Disk, DiskState)> {
    let rows = rows(parts).await.into_iter();
    let is_meant = |state: &DiskState| {
        let mut members = state.members.iter();
        pool.is_empty() || members.any(|member| member.pool == pool)
    };
    let mut ids = BTreeSet::new();
    let found = rows.filter(|row| is_meant(&row.state));
    // Paths of a multipath device lead to one disk.
    let found = found.filter_map(|row| Some((row.disk?, row.state)));
    found.filter(|(disk, _)| ids.insert(disk.id())).collect()
}

/// What is to be remembered of where a device is that works.
pub(super) fn place_of(leaf: &Leaf, disk: &Disk, lamps: &Lamps, now_s: u64) -> Remembered {
    Remembered {
        id: disk.id(),
        path: leaf.member.path.clone(),
        model: disk.model.clone(),
        serial: disk.serial.clone(),
        enclosure: disk.enclosure.clone(),
        bay: disk.bay.clone(),
        lamp: lamps.of(disk),
        pool: leaf.pool,
        seen_s: now_s,
    }
}
