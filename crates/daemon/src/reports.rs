//! The engine's answers in the API's types.

use api::{
    DatasetKind as ApiKind, HistoryRecord as ApiRecord, PoolReport, PoolStatusReport, Property,
    PropertyMap, ScanReport, Source, VdevReport,
};
use dataset::{DatasetKind, PropertySetting, props};
use engine::{
    HistoryRecord, HistoryWhat, Pool, PoolStatus, PropertySource, ScanStatus, VdevClass, VdevState,
    VdevStatus,
};

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
            (VdevClass::Spare, VdevState::Online) => "AVAIL",
            (_, state) => state.word(),
        }
        .into(),
        note: status.why.clone(),
        size_bytes: status.size_bytes,
        allocated_bytes: status.allocated_bytes,
        physical_bytes: status.physical_bytes,
        fragmentation_percent: status.fragmentation_percent.map(u64::from),
        read_errors: status.read_errors,
        write_errors: status.write_errors,
        checksum_errors: status.checksum_errors,
        operations: [status.read_ops, status.write_ops],
        transferred_bytes: [status.read_bytes, status.write_bytes],
        parity: status.parity,
        ashift: status.ashift,
        children: status.children.iter().map(vdev).collect(),
    }
}

/// The whole tree: top-level vdevs, then caches and spares.
pub(crate) fn tree(status: &PoolStatus) -> VdevReport {
    let mut root = vdev(&status.root);
    root.name.clone_from(&status.name);
    root.state = status.health.word().into();
    root.children.retain(|child| child.kind != "hole");
    root.children
        .extend(status.caches.iter().chain(&status.spares).map(vdev));
    root
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
    PoolReport {
        name: status.name.clone(),
        guid: status.guid.get(),
        txg: status.synced_txg.get(),
        properties,
        tree: tree(&status),
    }
}

/// What `zpool status` says of a pool. The sentences are about the same conditions as those of
/// OpenZFS (zpool_get_status, lib/libzfs/libzfs_status.c).
pub(crate) fn pool_status(pool: &Pool) -> PoolStatusReport {
    let status = pool.status();
    let tree = tree(&status);
    let Condition {
        text,
        action,
        page,
        is_healthy,
    } = condition(&status, &tree);
    let numbers = status.scan.as_ref().map(|scan| {
        [
            ("start_time", scan.start_time_s),
            ("end_time", scan.end_time_s),
            ("to_examine", scan.to_examine_bytes),
            ("examined", scan.examined_bytes),
            ("processed", scan.repaired_bytes),
            ("errors", scan.errors),
        ]
    });
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
        scan_numbers: numbers
            .into_iter()
            .flatten()
            .map(|(name, number)| (name.to_owned(), number))
            .collect(),
        scan_words: status
            .scan
            .as_ref()
            .map(|scan| (scan.function.to_uppercase(), scan.state.to_uppercase())),
        error_count: status.data_errors,
        damaged: Vec::new(),
        tree,
    }
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

fn condition(status: &PoolStatus, tree: &VdevReport) -> Condition {
    let say = |text: &str, action: &str| Condition {
        text: Some(text.to_owned()),
        action: Some(action.to_owned()),
        ..Condition::default()
    };
    if let Some(why) = &status.suspended_why {
        return say(
            &format!("The pool is suspended after an I/O failure: {why}."),
            &format!(
                "Make the failed devices available again, then run 'zpool clear {}'.",
                status.name
            ),
        );
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
    if status.version < 5000 {
        return say(
            "The pool is formatted using a legacy on-disk format.  The pool can\nstill be used, but some features are unavailable.",
            "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\npool will no longer be accessible on software that does not support\nfeature flags.",
        )
        .healthy();
    }
    if status.features_disabled {
        return say(
            "Some supported and requested features are not enabled on the pool.\nThe pool can still be used, but some features are unavailable.",
            "Enable all features using 'zpool upgrade'. Once this is done,\nthe pool may no longer be accessible by software that does not support\nthe features. See zpool-features(7) for details.",
        )
        .healthy();
    }
    Condition::default().healthy()
}

fn any(vdev: &VdevReport, test: &impl Fn(&VdevReport) -> bool) -> bool {
    test(vdev) || vdev.children.iter().any(|child| any(child, test))
}

fn scan(status: &ScanStatus) -> ScanReport {
    let line = match status.state.as_str() {
        "finished" => format!(
            "{} finished with {} errors, {} bytes repaired",
            status.function, status.errors, status.repaired_bytes
        ),
        state => format!(
            "{} {state}: {} of {} bytes examined",
            status.function, status.examined_bytes, status.to_examine_bytes
        ),
    };
    ScanReport { lines: vec![line] }
}

/// A record of the history.
pub(crate) fn history(record: HistoryRecord) -> ApiRecord {
    let mut out = ApiRecord {
        time_s: record.time_s,
        user: record.who,
        host: record.host,
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
        HistoryWhat::Ioctl(name) => out.internal = Some(format!("ioctl {name}")),
    }
    out
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
