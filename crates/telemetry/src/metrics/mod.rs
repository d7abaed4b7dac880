//! What programs that watch servers ask for: everything that counts, in the text format of
//! OpenMetrics 1.0, by `GET /metrics` (docs/metrics.md).
//!
//! | Module | What it is |
//! |---|---|
//! | [`families`] | everything that is told, by name |
//! | [`process`] | what the process takes |
//! | [`text`] | the format |
//!
//! It tells nothing that a viewer may not know: of shares how many clients they have, not which. It
//! is bounded: so many datasets, and what takes long is left out of an answer rather than waited
//! for. A pool that is suspended is not read.

mod families;
mod process;
mod text;

use std::collections::BTreeMap;
use std::time::Duration;

use api::{
    AlertListReply, IoReport, Job, JobState, PoolHealth, PoolStatusReport, Protocol, ScanState,
    ServerMemoryReply, ShareListReply, VdevClass, VdevReport,
};
use dataset::ListOptions;
use serde::Serialize;

use crate::memory;
use automation::Automation;
use automation::replicate::ReplicationFigures;
use automation::schedules::ScheduleFigures;
use service::pools::OpenPool;
use service::reports;
use serving::Serving;
pub use text::CONTENT_TYPE;
use text::Exposition;
#[cfg(any(test, feature = "testing"))]
pub use text::read;
use zio::BlockKind;

/// Datasets of which something is told, of all pools together.
const DATASETS_MAX: usize = 1000;
/// How long a part may take that reads a pool or asks another process.
const PART_MAX: Duration = Duration::from_secs(4);

const HEALTHS: [&str; 4] = ["online", "degraded", "faulted", "suspended"];
const STATES: [&str; 8] = [
    "online",
    "degraded",
    "faulted",
    "offline",
    "unavailable",
    "removed",
    "available",
    "in-use",
];
/// Histograms of OpenZFS have a bucket for each power of two of nanoseconds; what is told of them
/// are these, from 16 microseconds to 17 seconds, in steps of four.
const LATENCY_POWERS: [u32; 11] = [14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// The word of an enum of the API.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn ratio(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => (part as f64 / whole as f64).min(1.0),
    }
}

/// All of it, as text.
pub async fn text(serving: &Serving, alerts: &AlertListReply, automation: &Automation) -> String {
    let mut out = Exposition::default();
    let version = env!("CARGO_PKG_VERSION");
    out.add(&families::BUILD, &[("version", version)], true);
    process::add(&mut out);
    let pools = &serving.pools;
    add_memory(&mut out, &memory::report(serving.memory(), pools));
    out.add(&families::CACHE_LIMIT, &[], pools.cache().limit_bytes());
    out.add(&families::CACHE_LIMIT_MAX, &[], pools.cache_bytes());
    let mut left = DATASETS_MAX;
    for (name, _, _) in serving.pools.not_imported() {
        out.add(&families::POOL_ABSENT, &[("pool", &name)], true);
    }
    for open in serving.pools.all() {
        open.background.look(&open.pool);
        let mut report = reports::pool_status(&open.pool);
        reports::add_io(&mut report.tree, &open.pool);
        add_pool(&mut out, &report, open.pool.freeing_bytes());
        add_cache(&mut out, &open);
        add_scan(&mut out, &report);
        add_datasets(&mut out, &open, &mut left).await;
    }
    add_jobs(&mut out, &serving.jobs.list(None));
    if let Ok(shares) = tokio::time::timeout(PART_MAX, serving.share_list()).await {
        add_shares(&mut out, &shares);
    }
    add_alerts(&mut out, alerts);
    automation::replicate::add_metrics(automation, |replication| {
        add_replication(&mut out, replication)
    });
    automation::schedules::add_metrics(automation, |schedule| add_schedule(&mut out, schedule));
    out.text(families::ALL)
}

fn add_memory(out: &mut Exposition, report: &ServerMemoryReply) {
    for one in &report.uses {
        let user = word(&one.user);
        out.add(&families::MEMORY, &[("user", &user)], one.bytes);
    }
    if let Some(bytes) = report.unexplained_bytes {
        out.add(&families::MEMORY_UNEXPLAINED, &[], bytes);
    }
}

fn add_pool(out: &mut Exposition, report: &PoolStatusReport, freeing_bytes: u64) {
    let (tree, labels) = (&report.tree, &[("pool", report.name.as_str())]);
    let health = match report.health {
        PoolHealth::Online => "online",
        PoolHealth::Degraded => "degraded",
        PoolHealth::Faulted => "faulted",
        PoolHealth::Suspended => "suspended",
    };
    out.add_states(&families::POOL_HEALTH, labels, &HEALTHS, health);
    out.add(&families::POOL_SIZE, labels, tree.size_bytes);
    out.add(&families::POOL_ALLOCATED, labels, tree.allocated_bytes);
    let free_bytes = tree.size_bytes.saturating_sub(tree.allocated_bytes);
    out.add(&families::POOL_FREE, labels, free_bytes);
    let capacity = ratio(tree.allocated_bytes, tree.size_bytes);
    out.add(&families::POOL_CAPACITY, labels, capacity);
    if let Some(percent) = tree.fragmentation_percent {
        let fragmentation = ratio(percent, 100);
        out.add(&families::POOL_FRAGMENTATION, labels, fragmentation);
    }
    out.add(&families::POOL_FREEING, labels, freeing_bytes);
    out.add(&families::POOL_EXPANDABLE, labels, tree.expandable_bytes);
    out.add(&families::POOL_ERRORS, labels, report.error_count);
    let own = (&families::POOL_OPERATIONS, &families::POOL_BYTES);
    add_operations(out, own, labels, tree);
    if let Some(io) = &tree.io {
        for (op, histogram) in [("read", &io.reads.total), ("write", &io.writes.total)] {
            let with_op = [labels[0], ("op", op)];
            add_latency(out, &families::POOL_LATENCY, &with_op, histogram);
        }
    }
    for top in &tree.children {
        // What stands by is no vdev that has data.
        if !matches!(top.class, VdevClass::Spare | VdevClass::Cache) {
            add_vdev(out, &report.name, top);
        }
        add_devices(out, &report.name, &top.name, top);
    }
}

fn add_operations(
    out: &mut Exposition,
    (operations, bytes): (&text::Family, &text::Family),
    labels: &text::Labels<'_>,
    vdev: &VdevReport,
) {
    let all = [
        ("read", vdev.reads),
        ("write", vdev.writes),
        ("trim", vdev.trims),
    ];
    for (op, done) in all {
        let with_op: Vec<(&str, &str)> = labels.iter().copied().chain([("op", op)]).collect();
        out.add(operations, &with_op, done.count);
        out.add(bytes, &with_op, done.bytes);
    }
}

fn add_errors(
    out: &mut Exposition,
    family: &text::Family,
    labels: &text::Labels<'_>,
    vdev: &VdevReport,
) {
    let all = [
        ("read", vdev.read_errors),
        ("write", vdev.write_errors),
        ("checksum", vdev.checksum_errors),
    ];
    for (kind, count) in all {
        let with_kind: Vec<(&str, &str)> = labels.iter().copied().chain([("type", kind)]).collect();
        out.add(family, &with_kind, count);
    }
}

fn add_vdev(out: &mut Exposition, pool: &str, vdev: &VdevReport) {
    let class = word(&vdev.class);
    let labels = &[
        ("pool", pool),
        ("vdev", vdev.name.as_str()),
        ("class", class.as_str()),
    ];
    out.add_states(&families::VDEV_STATE, labels, &STATES, &word(&vdev.state));
    out.add(&families::VDEV_SIZE, labels, vdev.size_bytes);
    out.add(&families::VDEV_ALLOCATED, labels, vdev.allocated_bytes);
    if let Some(percent) = vdev.fragmentation_percent {
        let fragmentation = ratio(percent, 100);
        out.add(&families::VDEV_FRAGMENTATION, labels, fragmentation);
    }
    let own = (&families::VDEV_OPERATIONS, &families::VDEV_BYTES);
    add_operations(out, own, labels, vdev);
    add_errors(out, &families::VDEV_ERRORS, labels, vdev);
}

/// Adds the leaves of a vdev. Of two that a replacement has at the same path, GUIDs tell.
fn add_devices(out: &mut Exposition, pool: &str, top: &str, vdev: &VdevReport) {
    for child in &vdev.children {
        add_devices(out, pool, top, child);
    }
    if !vdev.children.is_empty() {
        return;
    }
    let guid = vdev.guid.0.to_string();
    let device = vdev.path.as_deref().unwrap_or(&vdev.name);
    let labels = &[
        ("pool", pool),
        ("vdev", top),
        ("device", device),
        ("guid", guid.as_str()),
    ];
    out.add_states(&families::DEVICE_STATE, labels, &STATES, &word(&vdev.state));
    let own = (&families::DEVICE_OPERATIONS, &families::DEVICE_BYTES);
    add_operations(out, own, labels, vdev);
    add_errors(out, &families::DEVICE_ERRORS, labels, vdev);
    out.add(&families::DEVICE_SLOW, labels, vdev.slow_ios);
    if let Some(io) = &vdev.io {
        add_queues(out, labels, io);
    }
}

fn add_queues(out: &mut Exposition, labels: &[(&str, &str); 4], io: &IoReport) {
    let [pool, vdev, device, guid] = *labels;
    for class in &io.classes {
        let word = word(&class.class);
        let with_class = [pool, vdev, device, guid, ("class", word.as_str())];
        out.add(&families::DEVICE_PENDING, &with_class, class.pending);
        out.add(&families::DEVICE_ACTIVE, &with_class, class.active);
    }
    for (op, histogram) in [("read", &io.reads.disk), ("write", &io.writes.disk)] {
        let with_op = [pool, vdev, device, guid, ("op", op)];
        add_latency(out, &families::DEVICE_LATENCY, &with_op, histogram);
    }
}

/// Adds a histogram of nanoseconds, whose bucket *n* has what is not below 2^n and below 2^(n+1).
fn add_latency(
    out: &mut Exposition,
    family: &text::Family,
    labels: &text::Labels<'_>,
    histogram: &[u64],
) {
    let mut from = 0;
    let between = |from: usize, to: usize| {
        let part = histogram.iter().take(to).skip(from);
        part.sum::<u64>()
    };
    let buckets: Vec<(f64, u64)> = LATENCY_POWERS
        .iter()
        .map(|power| {
            let to = *power as usize;
            let count = between(from, to);
            from = to;
            (seconds(1 << power), count)
        })
        .collect();
    let more = between(from, histogram.len());
    out.add_histogram(family, labels, &buckets, more);
}

fn add_cache(out: &mut Exposition, open: &OpenPool) {
    let (stats, name) = (open.pool.pipeline().cache().stats(), open.pool.name());
    let pool = ("pool", name.as_str());
    out.add(&families::CACHE_CHARGED, &[pool], stats.charged_bytes);
    for kind in BlockKind::ALL {
        let word = match kind {
            BlockKind::Data => "data",
            BlockKind::Metadata => "metadata",
            BlockKind::DedupTable => "dedup-table",
        };
        let (counts, labels) = (stats.of(kind), &[pool, ("kind", word)]);
        out.add(&families::CACHE_SIZE, labels, counts.size_bytes);
        out.add(&families::CACHE_BLOCKS, labels, counts.blocks);
        out.add(&families::CACHE_HITS, labels, counts.hits);
        out.add(&families::CACHE_MISSES, labels, counts.misses);
        out.add(&families::CACHE_GHOST_HITS, labels, counts.ghost_hits);
    }
    let level = open.pool.pipeline().second_level();
    if level.is_empty() {
        return;
    }
    out.add(&families::CACHE_INDEX, &[pool], level.index_bytes());
    out.add(&families::CACHE_LEFT_OUT, &[pool], level.left_out());
    out.add(&families::CACHE_DEVICES_MISSES, &[pool], level.misses());
    for device in level.figures() {
        let guid = device.device.get().to_string();
        let labels = &[pool, ("guid", guid.as_str())];
        out.add(&families::CACHE_DEVICE_SIZE, labels, device.size_bytes);
        out.add(&families::CACHE_DEVICE_USED, labels, device.used_bytes);
    }
}

fn add_scan(out: &mut Exposition, report: &PoolStatusReport) {
    let Some(scan) = &report.scan else { return };
    let function = word(&scan.function);
    let labels = &[
        ("pool", report.name.as_str()),
        ("function", function.as_str()),
    ];
    let is_scanning = scan.state == ScanState::Scanning;
    let is_running = is_scanning && scan.pause_time_s == 0;
    out.add(&families::SCAN_RUNNING, labels, is_running);
    let progress = match scan.state {
        ScanState::Finished => 1.0,
        _ => ratio(scan.issued_bytes, scan.to_examine_bytes),
    };
    out.add(&families::SCAN_PROGRESS, labels, progress);
    out.add(&families::SCAN_EXAMINE, labels, scan.to_examine_bytes);
    out.add(&families::SCAN_ISSUED, labels, scan.issued_bytes);
    out.add(&families::SCAN_REPAIRED, labels, scan.repaired_bytes);
    out.add(&families::SCAN_ERRORS, labels, scan.errors);
    out.add(&families::SCAN_START, labels, scan.start_time_s);
    if !is_scanning {
        out.add(&families::SCAN_END, labels, scan.end_time_s);
    }
}

/// Adds datasets of a pool, no more than are `left`.
async fn add_datasets(out: &mut Exposition, open: &OpenPool, left: &mut usize) {
    if open.pool.suspended().is_some() {
        return;
    }
    let (pool, options) = (open.pool.name(), ListOptions::default());
    let directories = open.pool.dsl().directories();
    let listing = directories.list(&pool, &options);
    let listed = match tokio::time::timeout(PART_MAX, listing).await {
        Ok(Ok(listed)) => listed,
        Ok(Err(error)) => return tracing::debug!("'{pool}' has no metrics of datasets: {error}"),
        Err(_) => return tracing::debug!("'{pool}' has no metrics of datasets: it takes long"),
    };
    let labels = &[("pool", pool.as_str())];
    out.add(&families::DATASETS, labels, listed.len());
    let left_out = listed.len().saturating_sub(*left);
    out.add(&families::DATASETS_LEFT_OUT, labels, left_out);
    for info in listed.iter().take(*left) {
        let labels = &[("pool", pool.as_str()), ("dataset", info.name.as_str())];
        out.add(&families::DATASET_USED, labels, info.used_bytes);
        out.add(&families::DATASET_AVAILABLE, labels, info.available_bytes);
        out.add(&families::DATASET_REFERENCED, labels, info.referenced_bytes);
    }
    *left = left.saturating_sub(listed.len());
}

fn add_jobs(out: &mut Exposition, jobs: &[Job]) {
    let mut counts: BTreeMap<(String, &str), u64> = BTreeMap::new();
    for job in jobs.iter().filter(|job| !job.state.is_ended()) {
        let kind = word(&job.kind);
        if let Some(progress) = job.progress {
            let id = job.id.to_string();
            let labels = &[
                ("job", id.as_str()),
                ("kind", kind.as_str()),
                ("pool", job.pool.as_deref().unwrap_or_default()),
            ];
            let far = ratio(progress.done, progress.total);
            out.add(&families::JOB_PROGRESS, labels, far);
        }
        let state = match job.state {
            JobState::Paused => "paused",
            _ => "running",
        };
        *counts.entry((kind, state)).or_default() += 1;
    }
    for ((kind, state), count) in &counts {
        let labels = &[("kind", kind.as_str()), ("state", *state)];
        out.add(&families::JOBS, labels, *count);
    }
}

fn add_shares(out: &mut Exposition, shares: &ShareListReply) {
    for report in &shares.shares {
        let protocol = word(&report.share.protocol);
        let labels = [
            ("protocol", protocol.as_str()),
            ("dataset", report.share.dataset.as_str()),
            ("share", report.share.name.as_str()),
        ];
        let connected = report.clients.iter().filter(|client| client.is_connected);
        out.add(&families::SHARE_CLIENTS, &labels, connected.count());
        let Some(traffic) = report.traffic else {
            continue;
        };
        let with_op = |op| [labels[0], labels[1], labels[2], ("op", op)];
        for (op, count) in [
            ("read", traffic.reads),
            ("write", traffic.writes),
            ("other", traffic.others),
            ("failed", traffic.failures),
        ] {
            out.add(&families::SHARE_OPERATIONS, &with_op(op), count);
        }
        for (op, bytes, nanoseconds) in [
            ("read", traffic.read_bytes, traffic.read_ns),
            ("write", traffic.written_bytes, traffic.write_ns),
        ] {
            out.add(&families::SHARE_BYTES, &with_op(op), bytes);
            out.add(&families::SHARE_SECONDS, &with_op(op), seconds(nanoseconds));
        }
    }
    for protocol in [Protocol::Iscsi, Protocol::Nfs, Protocol::Smb] {
        let refused = shares.not_shared.iter();
        let count = refused.filter(|one| one.protocol == protocol).count();
        let word = word(&protocol);
        out.add(&families::NOT_SHARED, &[("protocol", &word)], count);
    }
}

fn add_alerts(out: &mut Exposition, list: &AlertListReply) {
    let mut counts: BTreeMap<(&str, String), u64> = BTreeMap::new();
    for standing in &list.alerts {
        let alert = &standing.alert;
        let key = (alert.rule.name(), word(&alert.severity));
        *counts.entry(key).or_default() += 1;
    }
    for ((rule, severity), count) in &counts {
        let labels = &[("rule", *rule), ("severity", severity.as_str())];
        out.add(&families::ALERTS, labels, *count);
    }
    out.add(&families::MESSAGES, &[], list.waiting.len());
}

fn add_replication(out: &mut Exposition, replication: ReplicationFigures<'_>) {
    let labels = &[
        ("replication", replication.name),
        ("source", replication.source),
    ];
    if let Some(success_s) = replication.success_s {
        out.add(&families::REPLICATION_SUCCESS, labels, success_s);
    }
    out.add(
        &families::REPLICATION_FAILURES,
        labels,
        replication.failures,
    );
    out.add(
        &families::REPLICATION_RUNNING,
        labels,
        replication.is_running,
    );
    out.add(&families::REPLICATION_PAUSED, labels, replication.is_paused);
    if let Some(bytes) = replication.last_bytes {
        out.add(&families::REPLICATION_BYTES, labels, bytes);
    }
}

fn add_schedule(out: &mut Exposition, schedule: ScheduleFigures<'_>) {
    let task = word(&schedule.task);
    let labels = &[
        ("schedule", schedule.name),
        ("task", task.as_str()),
        ("target", schedule.target),
    ];
    if let Some(success_s) = schedule.success_s {
        out.add(&families::SCHEDULE_SUCCESS, labels, success_s);
    }
    if let Some(next_s) = schedule.next_s {
        out.add(&families::SCHEDULE_NEXT, labels, next_s);
    }
    out.add(&families::SCHEDULE_FAILURES, labels, schedule.failures);
    out.add(&families::SCHEDULE_PAUSED, labels, schedule.is_paused);
}

#[cfg(test)]
mod tests;
