//! The engine's answers in the API's types.

use std::collections::BTreeMap;

use api::{
    ActivityReport, CheckpointReport, DatasetKind as ApiKind, DedupReport, ExpansionReport,
    HistoryRecord as ApiRecord, IoReport, PoolReport, PoolStatusReport, Property, PropertyMap,
    RemovalReport, ScanReport, Source, VdevReport,
};
use dataset::{DatasetKind, PropertySetting, props};
use format::{Guid, NvList, NvValue};
use pool::{
    ActivityState, ActivityStatus, FeatureState, FeatureStatus, HistoryRecord, HistoryWhat,
    IoStats, Pool, PoolStatus, PropertySource, RemovalState, RemovalStatus, ScanStatus, VdevClass,
    VdevState, VdevStatus,
};

use crate::compatibility::{self, Compatibility};

/// The word for an allocation class, empty for the normal one.
pub(crate) fn class_word(class: VdevClass) -> &'static str {
    match class {
        VdevClass::Normal => "",
        VdevClass::Log => "log",
        VdevClass::Special => "special",
        VdevClass::Dedup => "dedup",
        VdevClass::Spare => "spare",
        VdevClass::Cache => "cache",
    }
}

/// A vdev with those below it.
pub(crate) fn vdev(status: &VdevStatus) -> VdevReport {
    VdevReport {
        name: status.name.clone(),
        kind: status.kind.clone(),
        guid: status.guid.get(),
        class: class_word(status.class).into(),
        path: status.path.clone(),
        state: match (status.class, status.state) {
            (VdevClass::Spare, VdevState::Online) if status.why.is_some() => "INUSE",
            (VdevClass::Spare, VdevState::Online) => "AVAIL",
            (_, state) => state.word(),
        }
        .into(),
        note: match (&status.why, &status.note) {
            (Some(why), Some(note)) => Some(format!("{why}  {note}")),
            (why, note) => why.clone().or_else(|| note.clone()),
        },
        is_stale: status.is_stale,
        size_bytes: status.size_bytes,
        allocated_bytes: status.allocated_bytes,
        physical_bytes: status.physical_bytes,
        asize_bytes: status.asize_bytes,
        expandable_bytes: status.expandable_bytes,
        checkpoint_bytes: 0,
        fragmentation_percent: status.fragmentation_percent.map(u64::from),
        read_errors: status.read_errors,
        write_errors: status.write_errors,
        checksum_errors: status.checksum_errors,
        slow_ios: status.slow_ios,
        initialize: activity(&status.initialize),
        trim: activity(&status.trim),
        cannot_trim: !status.can_trim,
        operations: [status.read_ops, status.write_ops],
        transferred_bytes: [status.read_bytes, status.write_bytes],
        trims: [status.trim_ops, status.trim_bytes, status.trim_errors],
        parity: status.parity,
        ashift: status.ashift,
        properties: status.properties.clone(),
        io: None,
        children: status.children.iter().map(vdev).collect(),
    }
}

fn activity(status: &ActivityStatus) -> ActivityReport {
    ActivityReport {
        state: match status.state {
            ActivityState::None => "",
            ActivityState::Active => "ACTIVE",
            ActivityState::Canceled => "CANCELED",
            ActivityState::Suspended => "SUSPENDED",
            ActivityState::Complete => "COMPLETE",
        }
        .into(),
        time_s: status.time_s,
        done_bytes: status.done_bytes,
        total_bytes: status.total_bytes,
    }
}

/// The whole tree: top-level vdevs, then caches and spares.
pub(crate) fn tree(status: &PoolStatus) -> VdevReport {
    let mut root = vdev(&status.root);
    root.name.clone_from(&status.name);
    root.state = status.health.word().into();
    root.children.retain(|child| child.kind != "hole");
    if let Some(checkpoint) = &status.checkpoint {
        for child in &mut root.children {
            let space = checkpoint.space_bytes.get(&Guid::new(child.guid));
            child.checkpoint_bytes = space.copied().unwrap_or(0);
        }
    }
    root.children
        .extend(status.caches.iter().chain(&status.spares).map(vdev));
    root
}

/// Devices that were not there at the import are shown by what they are, and by where they were
/// (`vdev_not_present`; `print_status_config`, cmd/zpool/zpool_main.c).
fn name_absent(vdev: &mut VdevReport) {
    if vdev.state == "UNAVAIL"
        && vdev.children.is_empty()
        && let Some(path) = vdev.path.clone()
    {
        vdev.name = vdev.guid.to_string();
        vdev.note = Some(format!("was {path}"));
    }
    vdev.children.iter_mut().for_each(name_absent);
}

/// Paths of all devices.
pub(crate) fn device_paths(status: &PoolStatus) -> Vec<String> {
    fn walk(status: &VdevStatus, out: &mut Vec<String>) {
        out.extend(status.path.clone());
        for child in &status.children {
            walk(child, out);
        }
    }
    let mut paths = Vec::new();
    for top in std::iter::once(&status.root)
        .chain(&status.spares)
        .chain(&status.caches)
    {
        walk(top, &mut paths);
    }
    paths
}

/// A pool with all its properties.
pub(crate) fn pool(pool: &Pool) -> PoolReport {
    let status = pool.status();
    let properties = pool
        .props()
        .into_iter()
        .map(|property| {
            let source = match property.source {
                PropertySource::None => Source::None,
                PropertySource::Default => Source::Default,
                PropertySource::Local => Source::Local,
            };
            (
                property.name,
                Property {
                    value: property.value,
                    source,
                },
            )
        })
        .collect();
    let mut tree = tree(&status);
    name_absent(&mut tree);
    PoolReport {
        name: status.name.clone(),
        guid: status.guid.get(),
        txg: status.synced_txg.get(),
        uptime_ns: pool.uptime_ns(),
        properties,
        tree,
    }
}

/// Adds the dataset that property `bootfs` names.
pub(crate) fn set_bootfs(report: &mut PoolReport, dataset: String) {
    let property = Property {
        value: dataset,
        source: Source::Local,
    };
    report.properties.insert("bootfs".into(), property);
}

/// Adds latencies, sizes and queue depths to the vdevs of a pool.
pub(crate) fn add_io(tree: &mut VdevReport, pool: &Pool) {
    fn walk(vdev: &mut VdevReport, stats: &BTreeMap<Guid, IoStats>) {
        // Spares and caches do no I/O of their own.
        let nothing = IoStats::default();
        let own = stats.get(&Guid::new(vdev.guid)).unwrap_or(&nothing);
        vdev.io = Some(Box::new(io(own)));
        vdev.children
            .iter_mut()
            .for_each(|child| walk(child, stats));
    }
    walk(tree, &pool.io_stats());
}

fn io(stats: &IoStats) -> IoReport {
    fn vectors<const N: usize>(histograms: &[[u64; N]]) -> Vec<Vec<u64>> {
        histograms.iter().map(|buckets| buckets.to_vec()).collect()
    }
    IoReport {
        pending: stats.pending.to_vec(),
        active: stats.active.to_vec(),
        individual: vectors(&stats.individual),
        aggregated: vectors(&stats.aggregated),
        total: vectors(&stats.total),
        disk: vectors(&stats.disk),
        queued: vectors(&stats.queued),
    }
}

/// What `zpool status` says of a pool. The sentences are about the same conditions as those of
/// OpenZFS (zpool_get_status, lib/libzfs/libzfs_status.c).
pub(crate) fn pool_status(pool: &Pool) -> PoolStatusReport {
    let status = pool.status();
    let mut tree = tree(&status);
    let Condition {
        text,
        action,
        page,
        is_healthy,
    } = condition(pool, &status, &tree);
    name_absent(&mut tree);
    PoolStatusReport {
        name: status.name.clone(),
        guid: status.guid.get(),
        txg: status.synced_txg.get(),
        state: status.health.word().into(),
        status: text,
        is_healthy,
        action,
        see: page.map(|id| format!("https://openzfs.github.io/openzfs-docs/msg/{id}")),
        scan: status.scan.as_ref().map(scan),
        checkpoint: status.checkpoint.as_ref().map(|at| CheckpointReport {
            created_s: at.created_s,
            space_bytes: at.space_bytes.values().sum(),
        }),
        removal: status.removal.as_ref().map(removal),
        expansion: status.expansion.as_ref().map(|at| ExpansionReport {
            vdev: at.name.clone(),
            start_s: at.start_s,
            end_s: at.end_s,
            copied_bytes: at.copied_bytes,
            total_bytes: tree
                .children
                .iter()
                .find(|child| child.guid == at.vdev.get())
                .map_or(0, |child| child.allocated_bytes),
        }),
        dedup: dedup(&status),
        error_count: status.data_errors,
        damaged: Vec::new(),
        damaged_denied: false,
        tree,
    }
}

fn removal(status: &RemovalStatus) -> RemovalReport {
    RemovalReport {
        state: match status.state {
            RemovalState::Running => "running",
            RemovalState::Finished => "finished",
            RemovalState::Canceled => "canceled",
        }
        .into(),
        vdev: status.vdev,
        name: status.name.clone(),
        start_s: status.start_s,
        end_s: status.end_s,
        copied_bytes: status.copied_bytes,
        total_bytes: status.to_copy_bytes,
        mapping_bytes: status.mapping_bytes,
    }
}

fn dedup(status: &PoolStatus) -> Option<DedupReport> {
    let dedup = &status.dedup;
    (dedup.entries > 0).then(|| DedupReport {
        entries: dedup.entries,
        disk_bytes: dedup.table_bytes,
        core_bytes: dedup.core_bytes,
        histogram: (0..)
            .zip(&dedup.histogram)
            .filter(|(_, stat)| stat.blocks > 0)
            .map(|(log2, stat)| {
                let row = [
                    stat.blocks,
                    stat.lsize_bytes,
                    stat.psize_bytes,
                    stat.dsize_bytes,
                    stat.referenced_blocks,
                    stat.referenced_lsize_bytes,
                    stat.referenced_psize_bytes,
                    stat.referenced_dsize_bytes,
                ];
                (log2, row)
            })
            .collect(),
    })
}

/// What is to be said of a pool.
#[derive(Default)]
struct Condition {
    text: Option<String>,
    action: Option<String>,
    /// The page about it (`zfs_msgid_table`, lib/libzfs/libzfs_status.c).
    page: Option<&'static str>,
    /// Not told by `zpool status -x`.
    is_healthy: bool,
}

impl Condition {
    fn with_page(mut self, id: &'static str) -> Self {
        self.page = Some(id);
        self
    }

    fn healthy(mut self) -> Self {
        self.is_healthy = true;
        self
    }
}

fn say(text: &str, action: &str) -> Condition {
    Condition {
        text: Some(text.to_owned()),
        action: Some(action.to_owned()),
        ..Condition::default()
    }
}

fn condition(pool: &Pool, status: &PoolStatus, tree: &VdevReport) -> Condition {
    let value = |name| pool.prop(name).map_or_else(String::new, |prop| prop.value);
    if let Some(why) = &status.suspended_why {
        // What happened is told as well, which OpenZFS leaves to its event log.
        return say(
            &format!("One or more devices are faulted in response to IO failures.\n({why})"),
            "Make sure the affected devices are connected, then run 'zpool clear'.",
        )
        .with_page(match value("failmode").as_str() {
            "wait" => "ZFS-8000-HC",
            _ => "ZFS-8000-JQ",
        });
    }
    let unavailable = any(tree, &|vdev| {
        vdev.state == "UNAVAIL"
            && vdev.children.is_empty()
            && vdev.note.as_deref() == Some("cannot open")
    });
    let unlabelled = any(tree, &|vdev| {
        vdev.state == "UNAVAIL" && vdev.children.is_empty()
    });
    let in_state = |word: &str| any(tree, &|vdev| vdev.children.is_empty() && vdev.state == word);
    if status.data_errors > 0 {
        return say(
            "One or more devices has experienced an error resulting in data\ncorruption.  Applications may be affected.",
            "Restore the file in question if possible.  Otherwise restore the\nentire pool from backup.",
        )
        .with_page("ZFS-8000-8A");
    }
    if in_state("FAULTED") {
        return say(
            "One or more devices are faulted in response to persistent errors.\nSufficient replicas exist for the pool to continue functioning in a\ndegraded state.",
            "Replace the faulted device, or use 'zpool clear' to mark the device\nrepaired.",
        );
    }
    if unavailable {
        return say(
            "One or more devices could not be opened.  Sufficient replicas exist for\nthe pool to continue functioning in a degraded state.",
            "Attach the missing device and online it using 'zpool online'.",
        )
        .with_page("ZFS-8000-2Q");
    }
    if unlabelled {
        return say(
            "One or more devices could not be used because the label is missing or\ninvalid.  Sufficient replicas exist for the pool to continue\nfunctioning in a degraded state.",
            "Replace the device using 'zpool replace'.",
        )
        .with_page("ZFS-8000-4J");
    }
    // OpenZFS resilvers at once; what it had begun goes on when it has the pool again.
    let is_resilver = |scan: &ScanStatus| scan.function == "resilver" && scan.state == "scanning";
    if any(tree, &|vdev| vdev.is_stale) || status.scan.as_ref().is_some_and(is_resilver) {
        return say(
            "One or more devices lack data that was written while they were away.\nThe pool will continue to function, but redundancy is reduced until\nthey are resilvered, which this release does not do.",
            "Export the pool and import it with OpenZFS: it resilvers the devices.\nUntil then the pool may not survive the loss of another device.",
        );
    }
    if any(tree, &|vdev| {
        vdev.read_errors + vdev.write_errors + vdev.checksum_errors > 0
    }) {
        return say(
            "One or more devices has experienced an unrecoverable error.  An\nattempt was made to correct the error.  Applications are unaffected.",
            "Determine if the device needs to be replaced, and clear the errors\nusing 'zpool clear' or replace the device with 'zpool replace'.",
        )
        .with_page("ZFS-8000-9P");
    }
    if in_state("OFFLINE") {
        return say(
            "One or more devices has been taken offline by the administrator.\nSufficient replicas exist for the pool to continue functioning in a\ndegraded state.",
            "Online the device using 'zpool online' or replace the device with\n'zpool replace'.",
        );
    }
    if in_state("REMOVED") {
        return say(
            "One or more devices have been removed.\nSufficient replicas exist for the pool to continue functioning in a\ndegraded state.",
            "Online the device using zpool online' or replace the device with\n'zpool replace'.",
        );
    }
    if status.errata != 0 {
        let (what, action) = errata(status.errata);
        return say(
            &format!("Errata #{} detected.\n{what}", status.errata),
            action,
        )
        .with_page("ZFS-8000-ER");
    }
    let compatibility = value("compatibility");
    if status.version >= 5000 {
        return condition_of_features(pool, &compatibility).healthy();
    }
    if compatibility == "legacy" {
        return Condition::default().healthy();
    }
    say(
        "The pool is formatted using a legacy on-disk format.  The pool can\nstill be used, but some features are unavailable.",
        "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\npool will no longer be accessible on software that does not support\nfeature flags.",
    )
    .healthy()
}

/// What is wrong with a pool of an errata number, and what to do (`zpool_errata_t`,
/// include/sys/fs/zfs.h).
pub(crate) fn errata(number: u64) -> (&'static str, &'static str) {
    match number {
        1 => (
            "A scrub or resilver left a record of a wrong size.",
            "Import the pool with OpenZFS and run 'zpool scrub'.",
        ),
        2 => (
            "A filesystem that was being destroyed left a record of another format.",
            "Import the pool with the release that made it, and let it finish.",
        ),
        3 => (
            "Existing encrypted datasets contain an on-disk incompatibility.",
            "Copy them to new encrypted datasets and destroy the old ones.  They can\n\
             be mounted with 'zfs mount -o ro'.",
        ),
        4 => (
            "Existing encrypted snapshots and bookmarks contain an on-disk\n\
             incompatibility.  It may cause on-disk corruption if they are used with\n\
             'zfs recv'.",
            "Enable the feature bookmark_v2.  No more is needed without encrypted\n\
             snapshots and bookmarks; where they have to be kept, copy them with a\n\
             send that is not raw, and destroy the old ones.",
        ),
        _ => (
            "A later release of OpenZFS found it.",
            "See what that release says.",
        ),
    }
}

/// What is to be said of the features of a pool, with that value of the property `compatibility`.
fn condition_of_features(pool: &Pool, compatibility: &str) -> Condition {
    let directories = compatibility::DIRECTORIES.join(" or ");
    let Ok(requested) = Compatibility::load(compatibility) else {
        return say(
            "This pool has a compatibility list specified, but it could not be\nread/parsed at this time. The pool can still be used, but this\nshould be investigated.",
            &format!(
                "Check the value of the 'compatibility' property against the\nappropriate file in {directories}."
            ),
        );
    };
    let disabled = pool.disabled_features();
    if disabled.iter().any(|feature| requested.allows(feature)) {
        return say(
            "Some supported and requested features are not enabled on the pool.\nThe pool can still be used, but some features are unavailable.",
            "Enable all features using 'zpool upgrade'. Once this is done,\nthe pool may no longer be accessible by software that does not support\nthe features. See zpool-features(7) for details.",
        );
    }
    let is_superfluous = |feature: &FeatureStatus| {
        feature.supported
            && feature.state != FeatureState::Disabled
            && !requested.allows(&feature.name)
    };
    if pool.features().iter().any(is_superfluous) {
        return say(
            "One or more features are enabled on the pool despite not being\nrequested by the 'compatibility' property.",
            &format!(
                "Consider setting 'compatibility' to an appropriate value, or\nadding needed features to the relevant file in\n{directories}."
            ),
        );
    }
    Condition::default()
}

fn any(vdev: &VdevReport, test: &impl Fn(&VdevReport) -> bool) -> bool {
    // Spares that are not there are no problem of the pool (`find_vdev_problem`).
    let mut counted = vdev.children.iter().filter(|child| child.class != "spare");
    test(vdev) || counted.any(|child| any(child, test))
}

fn scan(status: &ScanStatus) -> ScanReport {
    // One that another system began did nothing here.
    let here = |bytes: u64| if status.verify_only { bytes } else { 0 };
    ScanReport {
        function: status.function.clone(),
        state: status.state.clone(),
        start_time_s: status.start_time_s,
        end_time_s: status.end_time_s,
        pause_time_s: status.pause_time_s,
        elapsed_s: status.elapsed_s,
        to_examine_bytes: status.to_examine_bytes,
        examined_bytes: status.examined_bytes,
        issued_bytes: status.issued_bytes,
        pass_examined_bytes: here(status.examined_bytes),
        pass_issued_bytes: here(status.issued_bytes),
        repaired_bytes: status.repaired_bytes,
        errors: status.errors,
        verify_only: status.verify_only,
    }
}

/// A record of the history.
pub(crate) fn history(record: HistoryRecord) -> ApiRecord {
    let mut out = ApiRecord {
        time_s: record.time_s,
        user: record.who,
        host: record.host,
        zone: record.zone,
        ..ApiRecord::default()
    };
    match record.what {
        HistoryWhat::Command(command) => out.command = Some(command),
        HistoryWhat::Internal {
            event,
            text,
            txg,
            dataset,
        } => {
            let about =
                dataset.map_or_else(String::new, |(name, object)| format!("{name} ({object}) "));
            out.internal = Some(
                format!("[txg:{txg}] {event} {about}{text}")
                    .trim_end()
                    .to_owned(),
            );
        }
        HistoryWhat::Ioctl {
            name,
            input,
            output,
        } => {
            let mut text = format!("ioctl {name}\n");
            for (heading, list) in [("input", input), ("output", output)] {
                if let Some(list) = list {
                    text.push_str(&format!("    {heading}:\n"));
                    dump(&list, 8, &mut text);
                }
            }
            out.internal = Some(text);
        }
    }
    out
}

/// A list as `dump_nvlist` (lib/libnvpair/libnvpair.c) shows it.
fn dump(list: &NvList, indent: usize, out: &mut String) {
    for (name, value) in list.iter() {
        let shown = match value {
            NvValue::Boolean => String::new(),
            NvValue::BooleanValue(value) => format!(": {value}"),
            NvValue::String(text) => format!(": '{text}'"),
            NvValue::UInt64(number) => format!(": {number}"),
            NvValue::Int64(number) => format!(": {number}"),
            NvValue::UInt32(number) => format!(": {number}"),
            NvValue::Int32(number) => format!(": {number}"),
            NvValue::List(_) => ":".to_owned(),
            other => format!(": (type {})", other.type_code()),
        };
        out.push_str(&format!("{:indent$}{name}{shown}\n", ""));
        if let NvValue::List(inner) = value {
            dump(inner, indent + 4, out);
        }
    }
}

/// A dataset's kind.
pub(crate) fn kind(kind: DatasetKind) -> ApiKind {
    match kind {
        DatasetKind::Filesystem => ApiKind::Filesystem,
        DatasetKind::Volume => ApiKind::Volume,
        DatasetKind::Snapshot => ApiKind::Snapshot,
    }
}

/// Puts properties in the order of `zfs get all`: native ones as in the table, then those of users.
pub(crate) fn put_in_order(properties: &mut PropertyMap) {
    let place = |name: &str| {
        let mut table = props::PROPERTIES.iter();
        table
            .position(|property| property.name == name)
            .unwrap_or(usize::MAX)
    };
    properties.sort_by_cached_key(|name, _| place(name));
}

/// A dataset's properties, exact.
pub(crate) fn properties(settings: Vec<PropertySetting>) -> PropertyMap {
    settings
        .into_iter()
        .map(|setting| {
            let value = props::show_value(props::find(&setting.name), &setting.value, true);
            let source = match setting.source {
                dataset::PropertySource::Local => Source::Local,
                dataset::PropertySource::Default => Source::Default,
                dataset::PropertySource::Inherited(from) => Source::Inherited(from),
                dataset::PropertySource::Received => Source::Received,
                dataset::PropertySource::Temporary => Source::Temporary,
                _ => Source::None,
            };
            (setting.name, Property { value, source })
        })
        .collect()
}
