//! What `zpool status` says of removals, checkpoints, RAID-Z expansions and dedup tables
//! (`print_checkpoint_status`, `print_raidz_expand_status` and `print_dedup_stats`,
//! cmd/zpool/zpool_main.c; `zpool_dump_ddt`, lib/libzutil/zutil_pool.c).

use api::{
    CheckpointReport, DedupCounts, DedupReport, ExpansionReport, RemovalReport, RemovalState,
    ScanReport, ScanState,
};

use crate::numbers;

/// Longer than this no time is told, in seconds.
const ESTIMATE_MAX_S: u64 = 30 * 24 * 3600;

/// The line after `checkpoint:`.
pub fn checkpoint(report: &CheckpointReport) -> String {
    let space = numbers::nice_count(report.space_bytes);
    match report.created_s {
        Some(at) => format!("created {}, consumes {space}", numbers::local_ctime(at)),
        None => format!("discarding, {space} remaining."),
    }
}

/// That a scrub leaves out what only the checkpoint has, if it does or did
/// (`print_checkpoint_scan_warning`).
pub fn scan_warning(
    scan: &ScanReport,
    checkpoint: Option<&CheckpointReport>,
) -> Option<&'static str> {
    let created = checkpoint?.created_s?;
    match scan.state {
        ScanState::Finished | ScanState::Canceled if scan.end_time_s < created => None,
        ScanState::Finished | ScanState::Canceled => {
            Some("skipped blocks that are only referenced by the checkpoint.")
        }
        ScanState::Scanning => Some("skipping blocks that are only referenced by the checkpoint."),
    }
}

/// The lines after `remove:` (`print_removal_status`).
pub fn removal(report: &RemovalReport) -> String {
    let copied = numbers::nice_count(report.copied_bytes);
    let clock = |minutes: u64| format!("{}h{}m", minutes / 60, minutes % 60);
    let mut text = match report.state {
        RemovalState::Finished => format!(
            "Removal of vdev {} copied {copied} in {}, completed on {}",
            report.vdev,
            clock(report.end_s.saturating_sub(report.start_s) / 60),
            numbers::local_ctime(report.end_s)
        ),
        RemovalState::Canceled => format!(
            "Removal of {} canceled on {}",
            report.name,
            numbers::local_ctime(report.end_s)
        ),
        RemovalState::Running => {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs());
            let elapsed = now.saturating_sub(report.start_s).max(1);
            let copied_bytes = report.copied_bytes.max(1);
            let rate = (copied_bytes / elapsed).max(1);
            let minutes = report.total_bytes.saturating_sub(copied_bytes) / rate / 60;
            let done = 100.0 * copied_bytes as f64 / report.total_bytes.max(1) as f64;
            let estimate = match &report.waits_for {
                Some(why) => format!("paused: {why}"),
                None if minutes < ESTIMATE_MAX_S / 60 => format!("{} to go", clock(minutes)),
                None => "(copy is slow, no estimated time)".to_owned(),
            };
            format!(
                "Evacuation of {} in progress since {}\n\
                 \t{copied} copied out of {} at {}/s, {done:.2}% done, {estimate}",
                report.name,
                numbers::local_ctime(report.start_s),
                numbers::nice_count(report.total_bytes),
                numbers::nice_count(rate)
            )
        }
    };
    if report.mapping_bytes > 0 {
        let memory = numbers::nice_count(report.mapping_bytes);
        text.push_str(&format!(
            "\n\t{memory} memory used for removed device mappings"
        ));
    }
    text
}

/// The lines after `expand:`.
pub fn expansion(report: &ExpansionReport) -> String {
    let copied = numbers::nice_count(report.copied_bytes);
    let vdev = &report.vdev;
    if let Some(end) = report.end_s {
        return format!(
            "expanded {vdev} copied {copied} in {}, on {}",
            numbers::clock(end.saturating_sub(report.start_s)),
            numbers::local_ctime(end)
        );
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let elapsed = now.saturating_sub(report.start_s).max(1);
    let rate = (report.copied_bytes / elapsed).max(1);
    let left = report.total_bytes.saturating_sub(report.copied_bytes) / rate;
    let done = 100.0 * report.copied_bytes.max(1) as f64 / report.total_bytes.max(1) as f64;
    let estimate = match &report.waits_for {
        Some(_) => "paused for resilver or clear".to_owned(),
        None if left < ESTIMATE_MAX_S => format!("{} to go", numbers::clock(left)),
        None => "(copy is slow, no estimated time)".to_owned(),
    };
    format!(
        "expansion of {vdev} in progress since {}\n\
         \t{copied} / {} copied at {}/s, {done:.2}% done, {estimate}",
        numbers::local_ctime(report.start_s),
        numbers::nice_count(report.total_bytes),
        numbers::nice_count(rate)
    )
}

fn add(sum: &mut DedupCounts, more: &DedupCounts) {
    sum.blocks = sum.blocks.saturating_add(more.blocks);
    sum.lsize_bytes = sum.lsize_bytes.saturating_add(more.lsize_bytes);
    sum.psize_bytes = sum.psize_bytes.saturating_add(more.psize_bytes);
    sum.dsize_bytes = sum.dsize_bytes.saturating_add(more.dsize_bytes);
}

/// What `zpool status -D` prints at the end.
pub fn dedup(report: Option<&DedupReport>, parseable: bool) -> String {
    let Some(report) = report else {
        return " dedup: no DDT entries\n".to_owned();
    };
    let count = |value: u64| match parseable {
        true => value.to_string(),
        false => numbers::nice_count(value),
    };
    let size = |value: u64| match parseable {
        true => value.to_string(),
        false => numbers::nice_bytes(value),
    };
    let mut out = format!(
        " dedup: DDT entries {}, size {} on disk, {} in core\n\n",
        report.entries,
        count(report.disk_bytes),
        count(report.core_bytes)
    );
    out.push_str(
        "bucket              allocated                       referenced          \n\
         ______   ______________________________   ______________________________\n\
         refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE\n\
         ------   ------   -----   -----   -----   ------   -----   -----   -----\n",
    );
    let mut line = |name: String, allocated: &DedupCounts, referenced: &DedupCounts| {
        out.push_str(&format!(
            "{name:>6}   {:>6}   {:>5}   {:>5}   {:>5}   {:>6}   {:>5}   {:>5}   {:>5}\n",
            count(allocated.blocks),
            size(allocated.lsize_bytes),
            size(allocated.psize_bytes),
            size(allocated.dsize_bytes),
            count(referenced.blocks),
            size(referenced.lsize_bytes),
            size(referenced.psize_bytes),
            size(referenced.dsize_bytes)
        ));
    };
    let (mut allocated, mut referenced) = (DedupCounts::default(), DedupCounts::default());
    for bucket in &report.histogram {
        let references = 1u64.checked_shl(bucket.references_log2).unwrap_or(0);
        line(count(references), &bucket.allocated, &bucket.referenced);
        add(&mut allocated, &bucket.allocated);
        add(&mut referenced, &bucket.referenced);
    }
    line("Total".to_owned(), &allocated, &referenced);
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use api::DedupBucket;

    use super::*;

    #[test]
    fn removals_that_run_and_are_done() {
        let mut report = RemovalReport {
            state: RemovalState::Finished,
            vdev: 2,
            name: "mirror".into(),
            start_s: 1_795_202_857,
            end_s: 1_795_202_857 + 3 * 3600 + 125,
            copied_bytes: 45_568,
            total_bytes: 455_680,
            mapping_bytes: 1008,
            waits_for: None,
        };
        let text = removal(&report);
        assert!(
            text.starts_with("Removal of vdev 2 copied 44.5K in 3h2m, completed on "),
            "{text}"
        );
        assert!(text.ends_with("\n\t1008 memory used for removed device mappings"));
        report.state = RemovalState::Running;
        report.mapping_bytes = 0;
        let text = removal(&report);
        assert!(text.starts_with("Evacuation of mirror in progress since "));
        assert!(
            text.contains("\n\t44.5K copied out of 445K at ") && text.contains("/s, 10.00% done, "),
            "{text}"
        );
        report.waits_for = Some("waits until mirror-0 can be used and lacks nothing".into());
        let text = removal(&report);
        assert!(
            text.ends_with(", paused: waits until mirror-0 can be used and lacks nothing"),
            "{text}"
        );
    }

    #[test]
    fn an_expansion_that_runs_and_one_that_is_done() {
        let mut report = ExpansionReport {
            vdev: "raidz1-0".into(),
            start_s: 1_795_202_857,
            end_s: Some(1_795_202_858),
            copied_bytes: 338_000,
            total_bytes: 4_000_000,
            waits_for: None,
        };
        let text = expansion(&report);
        assert!(text.starts_with("expanded raidz1-0 copied 330K in 00:00:01, on "));
        report.end_s = None;
        let text = expansion(&report);
        assert!(text.starts_with("expansion of raidz1-0 in progress since "));
        assert!(text.contains("\n\t330K / 3.81M copied at "), "{text}");
        assert!(text.contains("/s, 8.45% done, "), "{text}");
        assert!(!text.contains("paused"), "{text}");
        report.waits_for = Some("a device is away".into());
        let text = expansion(&report);
        assert!(text.ends_with(", paused for resilver or clear"), "{text}");
    }

    #[test]
    fn a_dedup_table_adds_up() {
        let counts = |blocks, lsize_bytes, psize_bytes, dsize_bytes| DedupCounts {
            blocks,
            lsize_bytes,
            psize_bytes,
            dsize_bytes,
        };
        let report = DedupReport {
            entries: 188,
            disk_bytes: 96_768,
            core_bytes: 262_144,
            histogram: vec![
                DedupBucket {
                    references_log2: 0,
                    allocated: counts(9, 147_456, 86_528, 86_528),
                    referenced: counts(9, 147_456, 86_528, 86_528),
                },
                DedupBucket {
                    references_log2: 1,
                    allocated: counts(123, 1, 2, 3),
                    referenced: counts(246, 2, 4, 6),
                },
            ],
        };
        let text = dedup(Some(&report), false);
        assert!(text.starts_with(" dedup: DDT entries 188, size 94.5K on disk, 256K in core\n"));
        assert!(text.contains(
            "     1        9    144K   84.5K   84.5K        9    144K   84.5K   84.5K\n"
        ));
        assert!(text.contains("\n Total      132 "), "{text}");
        assert!(dedup(None, false).contains("no DDT entries"));
    }
}
