//! What pools and datasets are, in the API's types.

use std::collections::{BTreeMap, HashSet};

use api::{
    ActivityReport, CacheCounts, CacheKind, CacheKindReport, CheckpointReport, ClassIo,
    DatasetKind as ApiKind, DedupBucket, DedupCounts, DedupReport, ExpansionReport,
    HistoryRecord as ApiRecord, IoClass, IoReport, Latencies, Operations, PoolReport,
    PoolStatusReport, Property, PropertyMap, RebuildReport, RemovalReport, ScanReport, Source,
    VdevAux, VdevKind, VdevReport,
};
use dataset::{DatasetKind, PropertySetting, props};
use format::{DdtStat, Guid, NvList, NvValue};
use pool::{
    ActivityState, ActivityStatus, HistoryRecord, HistoryWhat, IoStats, Pool, PoolHealth,
    PoolStatus, PropertySource, RemovalState, RemovalStatus, ScanStatus, VdevClass, VdevState,
    VdevStatus,
};
use zio::{BlockKind, Cache};

use crate::condition;

/// A GUID in the API's type.
pub fn guid(guid: Guid) -> api::Guid {
    api::Guid(guid.get())
}

fn class(class: VdevClass) -> api::VdevClass {
    match class {
        VdevClass::Normal => api::VdevClass::Normal,
        VdevClass::Log => api::VdevClass::Log,
        VdevClass::Special => api::VdevClass::Special,
        VdevClass::Dedup => api::VdevClass::Dedup,
        VdevClass::Spare => api::VdevClass::Spare,
        VdevClass::Cache => api::VdevClass::Cache,
    }
}

/// A vdev's state in the API's type.
pub fn state(state: VdevState) -> api::VdevState {
    match state {
        VdevState::Closed | VdevState::CantOpen => api::VdevState::Unavailable,
        VdevState::Offline => api::VdevState::Offline,
        VdevState::Removed => api::VdevState::Removed,
        VdevState::Faulted => api::VdevState::Faulted,
        VdevState::Degraded => api::VdevState::Degraded,
        VdevState::Online => api::VdevState::Online,
    }
}

fn health(health: PoolHealth) -> api::PoolHealth {
    match health {
        PoolHealth::Online => api::PoolHealth::Online,
        PoolHealth::Degraded => api::PoolHealth::Degraded,
        PoolHealth::Faulted => api::PoolHealth::Faulted,
        PoolHealth::Suspended => api::PoolHealth::Suspended,
    }
}

/// What a vdev is, by its type in the pool's configuration (`VDEV_TYPE_*`, include/sys/fs/zfs.h).
fn kind_of(word: &str) -> VdevKind {
    match word {
        "root" => VdevKind::Root,
        "disk" => VdevKind::Disk,
        "file" => VdevKind::File,
        "mirror" => VdevKind::Mirror,
        "raidz" => VdevKind::Raidz,
        "draid" => VdevKind::Draid,
        "dspare" => VdevKind::DraidSpare,
        "replacing" => VdevKind::Replacing,
        "spare" => VdevKind::Spare,
        "hole" => VdevKind::Hole,
        "indirect" => VdevKind::Indirect,
        "missing" => VdevKind::Missing,
        other => VdevKind::Other(other.to_owned()),
    }
}

fn aux(aux: pool::VdevAux) -> Option<VdevAux> {
    Some(match aux {
        pool::VdevAux::None => return None,
        pool::VdevAux::OpenFailed => VdevAux::OpenFailed,
        pool::VdevAux::CorruptData => VdevAux::CorruptData,
        pool::VdevAux::NoReplicas => VdevAux::NoReplicas,
        pool::VdevAux::TooSmall => VdevAux::TooSmall,
        pool::VdevAux::BadLabel => VdevAux::BadLabel,
        pool::VdevAux::Spared => VdevAux::Spared,
        pool::VdevAux::ErrorsExceeded => VdevAux::ErrorsExceeded,
        pool::VdevAux::External => VdevAux::External,
        pool::VdevAux::SplitPool => VdevAux::SplitPool,
    })
}

/// A vdev with those below it.
pub fn vdev(status: &VdevStatus) -> VdevReport {
    let operations = |count, bytes| Operations { count, bytes };
    VdevReport {
        name: status.name.clone(),
        kind: kind_of(&status.kind),
        guid: guid(status.guid),
        class: class(status.class),
        path: status.path.clone(),
        state: match (status.class, status.state) {
            (VdevClass::Spare, VdevState::Online) if status.aux == pool::VdevAux::Spared => {
                api::VdevState::InUse
            }
            (VdevClass::Spare, VdevState::Online) => api::VdevState::Available,
            (_, other) => state(other),
        },
        aux: aux(status.aux),
        used_by: status.used_by.clone(),
        is_absent: false,
        is_removing: status.is_removing,
        is_non_allocating: status.is_non_allocating,
        is_stale: status.is_stale,
        is_deferred: status.is_deferred,
        is_expanding: status.is_expanding,
        scan_repaired_bytes: status.scan_repaired_bytes,
        rebuild: status.rebuild.as_ref().map(rebuild),
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
        reads: operations(status.read_ops, status.read_bytes),
        writes: operations(status.write_ops, status.write_bytes),
        trims: operations(status.trim_ops, status.trim_bytes),
        trim_errors: status.trim_errors,
        parity: status.parity,
        ashift: status.ashift,
        small_sectors: status.small_sectors.map(|sectors| api::SmallSectors {
            configured_bytes: sectors.configured_bytes,
            native_bytes: sectors.native_bytes,
        }),
        properties: status.properties.iter().cloned().collect(),
        io: None,
        children: status.children.iter().map(vdev).collect(),
    }
}

fn activity(status: &ActivityStatus) -> Option<ActivityReport> {
    Some(ActivityReport {
        state: match status.state {
            ActivityState::None => return None,
            ActivityState::Active => api::ActivityState::Active,
            ActivityState::Canceled => api::ActivityState::Canceled,
            ActivityState::Suspended => api::ActivityState::Suspended,
            ActivityState::Complete => api::ActivityState::Complete,
        },
        time_s: status.time_s,
        done_bytes: status.done_bytes,
        total_bytes: status.total_bytes,
    })
}

/// The whole tree: top-level vdevs, then caches and spares.
pub fn tree(status: &PoolStatus) -> VdevReport {
    let mut root = vdev(&status.root);
    root.name.clone_from(&status.name);
    root.state = match status.health {
        PoolHealth::Online => api::VdevState::Online,
        PoolHealth::Degraded => api::VdevState::Degraded,
        PoolHealth::Faulted => api::VdevState::Faulted,
        PoolHealth::Suspended => api::VdevState::Suspended,
    };
    root.children.retain(|child| child.kind != VdevKind::Hole);
    if let Some(checkpoint) = &status.checkpoint {
        for child in &mut root.children {
            let space = checkpoint.space_bytes.get(&Guid::new(child.guid.0));
            child.checkpoint_bytes = space.copied().unwrap_or(0);
        }
    }
    root.children
        .extend(status.caches.iter().chain(&status.spares).map(vdev));
    mark_absent(&mut root, Some(&status.root));
    root
}

/// Devices that were not there at the import (`vdev_not_present`).
fn mark_absent(vdev: &mut VdevReport, status: Option<&VdevStatus>) {
    vdev.is_absent = vdev.state == api::VdevState::Unavailable
        && vdev.children.is_empty()
        && vdev.path.is_some()
        && !status.is_some_and(|status| status.is_out);
    for child in &mut vdev.children {
        let mut all = status.iter().flat_map(|status| &status.children);
        let own = all.find(|status| guid(status.guid) == child.guid);
        mark_absent(child, own);
    }
}

/// Paths of all devices.
pub fn device_paths(status: &PoolStatus) -> Vec<String> {
    let mut paths = tree_paths(status);
    let lists = status.spares.iter().chain(&status.caches);
    paths.extend(lists.filter_map(|vdev| vdev.path.clone()));
    paths
}

/// Guids of all devices, and of the vdevs that they are part of.
pub fn device_guids(status: &PoolStatus) -> HashSet<Guid> {
    fn walk(status: &VdevStatus, out: &mut HashSet<Guid>) {
        out.insert(status.guid);
        for child in &status.children {
            walk(child, out);
        }
    }
    let mut guids = HashSet::new();
    let lists = status.spares.iter().chain(&status.caches);
    for vdev in lists.chain([&status.root]) {
        walk(vdev, &mut guids);
    }
    guids
}

/// Paths of all devices that are part of vdevs.
pub fn tree_paths(status: &PoolStatus) -> Vec<String> {
    fn walk(status: &VdevStatus, out: &mut Vec<String>) {
        out.extend(status.path.clone());
        for child in &status.children {
            walk(child, out);
        }
    }
    let mut paths = Vec::new();
    walk(&status.root, &mut paths);
    paths
}

/// A pool with all its properties.
pub fn pool(pool: &Pool) -> PoolReport {
    let status = pool.status();
    let properties = pool
        .properties()
        .all()
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
    let tree = tree(&status);
    PoolReport {
        name: status.name.clone(),
        guid: guid(status.guid),
        health: health(status.health),
        txg: status.synced_txg.get(),
        uptime_ns: pool.uptime_ns(),
        properties,
        cache: cache(pool, &tree),
        tree,
    }
}

/// What the cache of a pool did.
fn cache(pool: &Pool, tree: &VdevReport) -> CacheCounts {
    let pipeline = pool.pipeline();
    let level = pipeline.second_level();
    let devices = tree.children.iter();
    let devices = devices.filter(|vdev| vdev.class == api::VdevClass::Cache);
    CacheCounts {
        kinds: cache_kinds(pipeline.cache()),
        device_hits: devices.map(|vdev| vdev.reads.count).sum(),
        device_misses: level.misses(),
        index_bytes: level.index_bytes(),
    }
}

/// Blocks in memory, each kind.
pub fn cache_kinds(cache: &Cache) -> Vec<CacheKindReport> {
    let stats = cache.stats();
    let kinds = BlockKind::ALL.into_iter().map(|kind| {
        let counts = stats.of(kind);
        CacheKindReport {
            kind: match kind {
                BlockKind::Data => CacheKind::Data,
                BlockKind::Metadata => CacheKind::Metadata,
                BlockKind::DedupTable => CacheKind::DedupTable,
            },
            size_bytes: counts.size_bytes,
            blocks: counts.blocks,
            hits: counts.hits,
            misses: counts.misses,
            ghost_hits: counts.ghost_hits,
        }
    });
    kinds.collect()
}

/// Adds the dataset that property `bootfs` names.
pub fn set_bootfs(report: &mut PoolReport, dataset: String) {
    let property = Property {
        value: dataset,
        source: Source::Local,
    };
    report.properties.insert("bootfs".into(), property);
}

/// Adds latencies, sizes and queue depths to the vdevs of a pool.
pub fn add_io(tree: &mut VdevReport, pool: &Pool) {
    fn walk(vdev: &mut VdevReport, stats: &BTreeMap<Guid, IoStats>) {
        // Spares and caches do no I/O of their own.
        let nothing = IoStats::default();
        let own = stats.get(&Guid::new(vdev.guid.0)).unwrap_or(&nothing);
        vdev.io = Some(Box::new(io(own)));
        vdev.children
            .iter_mut()
            .for_each(|child| walk(child, stats));
    }
    walk(tree, &pool.io_stats());
}

fn io(stats: &IoStats) -> IoReport {
    let classes = IoClass::ALL.into_iter().enumerate();
    let latencies = |way: usize| Latencies {
        total: stats.total[way].to_vec(),
        disk: stats.disk[way].to_vec(),
    };
    IoReport {
        classes: classes
            .map(|(index, class)| ClassIo {
                class,
                pending: stats.pending[index],
                active: stats.active[index],
                individual: stats.individual[index].to_vec(),
                aggregated: stats.aggregated[index].to_vec(),
                queued: stats.queued[index].to_vec(),
            })
            .collect(),
        reads: latencies(0),
        writes: latencies(1),
    }
}

/// What `zpool status` is about.
pub fn pool_status(pool: &Pool) -> PoolStatusReport {
    let status = pool.status();
    let tree = tree(&status);
    let condition = condition::of_pool(pool, &status, &tree);
    PoolStatusReport {
        name: status.name.clone(),
        guid: guid(status.guid),
        txg: status.synced_txg.get(),
        health: health(status.health),
        is_healthy: condition
            .as_ref()
            .is_none_or(api::PoolCondition::is_healthy),
        condition,
        scan: status.scan.as_ref().map(scan),
        error_scrub: status.error_scrub.as_ref().map(error_scrub),
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
            waits_for: at.waits_for.clone(),
            total_bytes: tree
                .children
                .iter()
                .find(|child| child.guid == guid(at.vdev))
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
            RemovalState::Running => api::RemovalState::Running,
            RemovalState::Finished => api::RemovalState::Finished,
            RemovalState::Canceled => api::RemovalState::Canceled,
        },
        vdev: status.vdev,
        name: status.name.clone(),
        start_s: status.start_s,
        end_s: status.end_s,
        copied_bytes: status.copied_bytes,
        total_bytes: status.to_copy_bytes,
        mapping_bytes: status.mapping_bytes,
        waits_for: status.waits_for.clone(),
    }
}

fn dedup(status: &PoolStatus) -> Option<DedupReport> {
    let dedup = &status.dedup;
    (dedup.entries > 0).then(|| DedupReport {
        entries: dedup.entries,
        disk_bytes: dedup.table_bytes,
        core_bytes: dedup.core_bytes,
        histogram: dedup_histogram(&dedup.histogram),
    })
}

/// Sums over blocks by powers of two of their references, where there are any.
pub fn dedup_histogram(stats: &[DdtStat]) -> Vec<DedupBucket> {
    let all = (0..).zip(stats).filter(|(_, stat)| stat.blocks > 0);
    let buckets = all.map(|(references_log2, stat)| DedupBucket {
        references_log2,
        allocated: DedupCounts {
            blocks: stat.blocks,
            lsize_bytes: stat.lsize_bytes,
            psize_bytes: stat.psize_bytes,
            dsize_bytes: stat.dsize_bytes,
        },
        referenced: DedupCounts {
            blocks: stat.referenced_blocks,
            lsize_bytes: stat.referenced_lsize_bytes,
            psize_bytes: stat.referenced_psize_bytes,
            dsize_bytes: stat.referenced_dsize_bytes,
        },
    });
    buckets.collect()
}

fn rebuild(status: &pool::RebuildStatus) -> RebuildReport {
    RebuildReport {
        state: match status.state {
            pool::RebuildState::Active => api::RebuildState::Active,
            pool::RebuildState::Canceled => api::RebuildState::Canceled,
            pool::RebuildState::Complete => api::RebuildState::Complete,
        },
        start_time_s: status.start_time_s,
        end_time_s: status.end_time_s,
        scan_time_ms: status.scan_time_ms,
        scanned_bytes: status.scanned_bytes,
        issued_bytes: status.issued_bytes,
        rebuilt_bytes: status.rebuilt_bytes,
        estimated_bytes: status.estimated_bytes,
        errors: status.errors,
        pass_time_ms: status.pass_time_ms,
        pass_scanned_bytes: status.pass_scanned_bytes,
        pass_issued_bytes: status.pass_issued_bytes,
        pass_skipped_bytes: status.pass_skipped_bytes,
    }
}

fn scan_state(state: pool::ScanState) -> api::ScanState {
    match state {
        pool::ScanState::Scanning => api::ScanState::Scanning,
        pool::ScanState::Finished => api::ScanState::Finished,
        pool::ScanState::Canceled => api::ScanState::Canceled,
    }
}

fn error_scrub(status: &pool::ErrorScrubStatus) -> api::ErrorScrubReport {
    api::ErrorScrubReport {
        state: scan_state(status.state),
        start_time_s: status.start_time_s,
        end_time_s: status.end_time_s,
        pause_time_s: status.pause_time_s,
        examined: status.examined,
        to_examine: status.to_examine,
        errors: status.errors,
    }
}

fn scan(status: &ScanStatus) -> ScanReport {
    // One that another system began did nothing here.
    let here = |bytes: u64| if status.verify_only { bytes } else { 0 };
    ScanReport {
        function: match status.function {
            pool::ScanFunction::Scrub => api::ScanFunction::Scrub,
            pool::ScanFunction::Resilver => api::ScanFunction::Resilver,
        },
        state: scan_state(status.state),
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
pub fn history(record: HistoryRecord) -> ApiRecord {
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
pub fn kind(kind: DatasetKind) -> ApiKind {
    match kind {
        DatasetKind::Filesystem => ApiKind::Filesystem,
        DatasetKind::Volume => ApiKind::Volume,
        DatasetKind::Snapshot => ApiKind::Snapshot,
    }
}

/// Puts properties in the order of `zfs get all`: native ones as in the table, then those of users.
pub fn put_in_order(properties: &mut PropertyMap) {
    let place = |name: &str| {
        let mut table = props::PROPERTIES.iter();
        table
            .position(|property| property.name == name)
            .unwrap_or(usize::MAX)
    };
    properties.sort_by_cached_key(|name, _| place(name));
}

/// Adds native properties behind those of the table.
pub fn put_before_users(properties: &mut PropertyMap, more: Vec<(&'static str, Property)>) {
    let of_users = properties.keys().position(|name| name.contains(':'));
    let end = of_users.unwrap_or(properties.len());
    for (at, (name, property)) in (end..).zip(more) {
        properties.shift_insert(at, name.to_owned(), property);
    }
}

/// A dataset's properties, exact.
pub fn properties(settings: Vec<PropertySetting>) -> PropertyMap {
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
