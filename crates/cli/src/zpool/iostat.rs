//! `zpool iostat`: how much pools and vdevs read and write, and how long it takes, laid out as
//! OpenZFS does (`print_iostat`, `print_vdev_stats`, `print_iostat_histos`,
//! cmd/zpool/zpool_main.c). The first report is of the time since the import, later ones are of the
//! interval.
//!
//! What the classes of I/O in `-l`, `-q`, `-r` and `-w` are here is told by the counters (`pool`,
//! `vdev/meter.rs`): there is no queue per class, trims do not wait in one, and rebuilds count as
//! scrubs.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::bail;
use api::{
    CacheCounts, CacheKind, Guid, IoReport, Operations, PoolReport, VdevClass, VdevKind,
    VdevReport, ZpoolList,
};
use clap::Args;

use super::repeat::Repeat;
use super::scripts::{Scripts, Told};
use super::vdevs::{CLASSES, Naming, class_heading, leaf_name};
use crate::client::Client;
use crate::numbers;

/// Names are given at least and at most so much room (`get_namewidth_iostat`).
const NAME_WIDTHS: (usize, usize) = (10, 42);
const NS_PER_SECOND: f64 = 1e9;
/// No request is smaller than 2 to this (`print_iostat_histo`).
const FIRST_SIZE: usize = 9;

/// Tell how much pools and their devices read and write.
#[derive(Debug, Args)]
pub struct Iostat {
    /// Every vdev
    #[arg(short)]
    verbose: bool,
    /// Average latencies
    #[arg(short = 'l')]
    latencies: bool,
    /// Queue depths
    #[arg(short = 'q')]
    queues: bool,
    /// Reads that the cache answered, and that it did not: data, metadata, dedup tables, and on
    /// cache devices (not in OpenZFS)
    #[arg(long)]
    cache: bool,
    /// Histograms of request sizes
    #[arg(short = 'r')]
    sizes: bool,
    /// Histograms of latencies
    #[arg(short = 'w')]
    times: bool,
    /// No headings, tabs between fields
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    parseable: bool,
    /// With an interval, leave the report since the import out
    #[arg(short = 'y')]
    omit_first: bool,
    /// Headings only once
    #[arg(short = 'n')]
    head_once: bool,
    #[command(flatten)]
    naming: Naming,
    #[command(flatten)]
    repeat: Repeat,
    #[command(flatten)]
    scripts: Scripts,
    /// JSON, a line for each report (not in OpenZFS)
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long, requires = "json")]
    json_int: bool,
    /// [POOL]... | [POOL] VDEV... [INTERVAL [COUNT]]
    words: Vec<String>,
}

/// Some columns (`iostat_top_labels`, `iostat_bottom_labels`).
struct Group {
    /// Labels over so many columns each.
    top: &'static [(&'static str, usize)],
    bottom: &'static [&'static str],
    /// Width of a column of exact numbers (`default_column_width`).
    exact_width: usize,
}

const CAPACITY: Group = Group {
    top: &[("capacity", 2), ("operations", 2), ("bandwidth", 2)],
    bottom: &["alloc", "free", "read", "write", "read", "write"],
    exact_width: 15,
};
const LATENCIES: Group = Group {
    top: &[
        ("total_wait", 2),
        ("disk_wait", 2),
        ("syncq_wait", 2),
        ("asyncq_wait", 2),
        ("scrub", 1),
        ("trim", 1),
        ("rebuild", 1),
    ],
    bottom: &[
        "read", "write", "read", "write", "read", "write", "read", "write", "wait", "wait", "wait",
    ],
    exact_width: 10,
};
const QUEUES: Group = Group {
    top: &[
        ("syncq_read", 2),
        ("syncq_write", 2),
        ("asyncq_read", 2),
        ("asyncq_write", 2),
        ("scrubq_read", 2),
        ("trimq_write", 2),
        ("rebuildq_write", 2),
    ],
    bottom: &[
        "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ",
        "pend", "activ", "pend", "activ",
    ],
    exact_width: 6,
};
const CACHE: Group = Group {
    top: &[
        ("data", 2),
        ("metadata", 2),
        ("dedup_table", 2),
        ("l2cache", 2),
    ],
    bottom: &["hit", "miss", "hit", "miss", "hit", "miss", "hit", "miss"],
    exact_width: 10,
};
const TIMES: Group = Group {
    top: &[
        ("total_wait", 2),
        ("disk_wait", 2),
        ("syncq_wait", 2),
        ("asyncq_wait", 2),
    ],
    bottom: &[
        "read", "write", "read", "write", "read", "write", "read", "write", "scrub", "trim",
        "rebuild",
    ],
    exact_width: 10,
};
const SIZES: Group = Group {
    top: &[
        ("sync_read", 2),
        ("sync_write", 2),
        ("async_read", 2),
        ("async_write", 2),
        ("scrub", 2),
        ("trim", 2),
        ("rebuild", 2),
    ],
    bottom: &[
        "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind",
        "agg",
    ],
    exact_width: 6,
};

/// Adds the labels of a group over columns of one width, centred over what they are about.
fn labels(out: &mut String, labels: impl Iterator<Item = (&'static str, usize)>, column: usize) {
    for (label, columns) in labels {
        let room = column * columns + 2 * (columns - 1);
        let start = (room / columns).saturating_sub(label.len() / columns);
        let text = format!("{:start$}{label}", "");
        let _ = write!(out, "  {text:room$}");
    }
}

/// What was counted of a vdev.
#[derive(Clone, Debug, Default)]
struct Seen {
    reads: Operations,
    writes: Operations,
    io: IoReport,
}

/// What was seen of a pool before: its uptime, and its vdevs by GUID.
#[derive(Debug, Default)]
struct Before {
    uptime_ns: u64,
    vdevs: BTreeMap<Guid, Seen>,
    cache: CacheCounts,
}

impl Before {
    fn of(pool: &PoolReport) -> Self {
        fn walk(vdev: &VdevReport, out: &mut BTreeMap<Guid, Seen>) {
            let seen = Seen {
                reads: vdev.reads,
                writes: vdev.writes,
                io: vdev.io.as_deref().cloned().unwrap_or_default(),
            };
            out.insert(vdev.guid, seen);
            vdev.children.iter().for_each(|child| walk(child, out));
        }
        let mut vdevs = BTreeMap::new();
        walk(&pool.tree, &mut vdevs);
        Self {
            uptime_ns: pool.uptime_ns,
            vdevs,
            cache: pool.cache.clone(),
        }
    }
}

/// Hits and misses of the cache, in the order of their columns.
fn lookups(cache: &CacheCounts) -> Vec<u64> {
    let kinds = [CacheKind::Data, CacheKind::Metadata, CacheKind::DedupTable];
    let in_memory = kinds.into_iter().flat_map(|kind| {
        let mut known = cache.kinds.iter();
        let counts = known.find(|counts| counts.kind == kind);
        counts.map_or([0; 2], |counts| [counts.hits, counts.misses])
    });
    let on_devices = [cache.device_hits, cache.device_misses];
    in_memory.chain(on_devices).collect()
}

/// The histograms of latencies, in the order of their columns.
fn times(io: &IoReport) -> Vec<&[u64]> {
    let (reads, writes) = (&io.reads, &io.writes);
    let all = [&reads.total, &writes.total, &reads.disk, &writes.disk];
    let queued = io.classes.iter().map(|class| &class.queued);
    all.into_iter().chain(queued).map(Vec::as_slice).collect()
}

/// The histograms of sizes, in the order of their columns.
fn sizes(io: &IoReport) -> Vec<&[u64]> {
    let pairs = io.classes.iter();
    pairs
        .flat_map(|class| [class.individual.as_slice(), class.aggregated.as_slice()])
        .collect()
}

/// What is new in histograms since the older ones, which may not be there.
fn since(new: &[&[u64]], old: &[&[u64]]) -> Vec<Vec<u64>> {
    let newer = |(column, buckets): (usize, &&[u64])| {
        let old = old.get(column).copied().unwrap_or_default();
        let before = |bucket| old.get(bucket).copied().unwrap_or(0);
        let counts = buckets.iter().enumerate();
        counts
            .map(|(bucket, count)| count.saturating_sub(before(bucket)))
            .collect()
    };
    new.iter().enumerate().map(newer).collect()
}

/// The mean of a histogram, taking what is in a bucket for its middle (`single_histo_average`).
fn mean(histogram: &[u64]) -> u64 {
    let middle = |bucket: usize| (1u128 << bucket) + (1u128 << bucket) / 2;
    let buckets = histogram.iter().enumerate();
    let (total, count) = buckets.fold((0, 0), |(total, count), (bucket, &here)| {
        let here = u128::from(here);
        (total + here * middle(bucket.min(63)), count + here)
    });
    u64::try_from(total.checked_div(count).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// What the words are about: the GUIDs of pools (all if there are none), and names of vdevs in
/// them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Choice {
    pools: Vec<Guid>,
    vdevs: Vec<String>,
}

/// How one pool is printed.
struct Round<'a> {
    cache: &'a CacheCounts,
    before: Option<&'a Before>,
    scale: f64,
    width: usize,
    vdevs: &'a [String],
    told: &'a Told,
}

impl Iostat {
    /// Asks the daemon and prints.
    pub fn run(mut self, client: &Client) -> anyhow::Result<()> {
        if self.scripts.check("iostat")? {
            return Ok(());
        }
        let has_scripts = self.scripts.are_asked_for();
        self.verbose |= has_scripts;
        if (self.sizes || self.times) && (self.latencies || self.queues || has_scripts) {
            bail_usage!("[-r|-w] isn't allowed with [-c|-l|-q]");
        }
        if (self.sizes || self.times) && self.cache {
            bail_usage!("[-r|-w] isn't allowed with --cache");
        }
        if (self.sizes || self.times) && self.json {
            bail_usage!("[-r|-w] isn't allowed with -j");
        }
        // What is a number is an exact one.
        self.parseable |= self.json_int;
        if self.sizes && self.times {
            bail_usage!("Only one of [-r|-w] can be passed at a time");
        }
        let call = ZpoolList {
            names: Vec::new(),
            io: self.latencies || self.queues || self.sizes || self.times,
        };
        // A GUID is no interval (`get_interval_count_filter_guids`).
        let known = match self.naming.guids {
            true => client.call(&call)?.pools,
            false => Vec::new(),
        };
        let is_name = |word: &str| known.iter().any(|pool| self.has_vdev(pool, word));
        let mut before: BTreeMap<Guid, Before> = BTreeMap::new();
        let mut choice = None;
        let mut round = 0;
        let more = u64::from(self.omit_first);
        let words = self.words.clone();
        self.repeat.run_more(words, more, &is_name, |words, time| {
            let mut pools = client.call(&call)?.pools;
            let choice = match &choice {
                Some(choice) => choice,
                None => choice.insert(self.choose(words, &pools)?),
            };
            pools.retain(|pool| choice.pools.is_empty() || choice.pools.contains(&pool.guid));
            if pools.is_empty() {
                eprintln!("no pools available");
            }
            round += 1;
            if !(self.omit_first && round == 1) {
                let is_first = round == 1 + more;
                let trees = pools.iter().map(|pool| (pool.name.as_str(), &pool.tree));
                let told = self.scripts.run(trees, &|vdev| {
                    let mut chosen = choice.vdevs.iter();
                    choice.vdevs.is_empty() || chosen.any(|word| self.is_called(vdev, word))
                });
                if self.json {
                    let document = self.json(&pools, &choice.vdevs, &before, &told, time);
                    crate::json::print(document)?;
                } else {
                    if let Some(time) = time {
                        println!("{time}");
                    }
                    let text = self.report(&pools, &choice.vdevs, &before, &told, is_first);
                    print!("{text}");
                }
            }
            before = pools
                .iter()
                .map(|pool| (pool.guid, Before::of(pool)))
                .collect();
            Ok(())
        })
    }

    /// Tells pools from vdevs among the words (`zpool_do_iostat`).
    fn choose(&self, words: &[String], pools: &[PoolReport]) -> anyhow::Result<Choice> {
        let pool = |word: &String| pools.iter().find(|pool| pool.name == *word);
        if let Some(all) = words.iter().map(pool).collect::<Option<Vec<_>>>() {
            let pools = all.iter().map(|pool| pool.guid).collect();
            return Ok(Choice {
                pools,
                ..Choice::default()
            });
        }
        let anywhere = |word: &str| pools.iter().any(|pool| self.has_vdev(pool, word));
        if words.iter().all(|word| anywhere(word)) {
            return Ok(Choice {
                vdevs: words.to_vec(),
                ..Choice::default()
            });
        }
        let Some((first, vdevs)) = words.split_first() else {
            return Ok(Choice::default());
        };
        let Some(first) = pool(first) else {
            bail!(
                "Unable to parse pools/vdevs list.\n'{first}' is no pool, and not all of the words \
                 are vdevs.\nNames of pools are shown by 'zpool list', those of vdevs by 'zpool \
                 status'"
            );
        };
        if vdevs.iter().all(|word| self.has_vdev(first, word)) {
            return Ok(Choice {
                pools: vec![first.guid],
                vdevs: vdevs.to_vec(),
            });
        }
        let what = |word: &String| match word {
            word if pool(word).is_some() => "pool",
            word if self.has_vdev(first, word) => "vdev in this pool",
            word if anywhere(word) => "vdev in another pool",
            _ => "unknown",
        };
        let got: String = vdevs
            .iter()
            .map(|word| format!("\n\t{word} ({})", what(word)))
            .collect();
        bail_usage!(
            "Expected either a list of pools, or list of vdevs in \"{}\", but got:{got}",
            first.name
        );
    }

    fn has_vdev(&self, pool: &PoolReport, word: &str) -> bool {
        fn any(vdev: &VdevReport, test: &impl Fn(&VdevReport) -> bool) -> bool {
            test(vdev) || vdev.children.iter().any(|child| any(child, test))
        }
        let mut below = pool.tree.children.iter();
        below.any(|child| any(child, &|vdev| self.is_called(vdev, word)))
    }

    /// Whether a word means this vdev: its name as it is shown, its GUID, its path or the last part
    /// of that.
    fn is_called(&self, vdev: &VdevReport, word: &str) -> bool {
        let by_path = vdev
            .path
            .as_deref()
            .is_some_and(|path| path == word || path.rsplit('/').next() == Some(word));
        vdev.kind != VdevKind::Root
            && (by_path || self.name(vdev) == word || vdev.guid.to_string() == word)
    }

    /// The histogram that is printed, if it is one, with its title.
    fn histogram(&self) -> Option<(&'static Group, &'static str)> {
        match (self.times, self.sizes) {
            (true, _) => Some((&TIMES, "latency")),
            (false, true) => Some((&SIZES, "req_size")),
            (false, false) => None,
        }
    }

    /// The groups of columns that are printed otherwise, each with the width of its columns.
    fn groups(&self) -> Vec<(&'static Group, usize)> {
        let mut groups = vec![&CAPACITY];
        groups.extend(self.latencies.then_some(&LATENCIES));
        groups.extend(self.queues.then_some(&QUEUES));
        groups.extend(self.cache.then_some(&CACHE));
        let width = |group: &Group| if self.parseable { group.exact_width } else { 5 };
        groups
            .into_iter()
            .map(|group| (group, width(group)))
            .collect()
    }

    fn report(
        &self,
        pools: &[PoolReport],
        vdevs: &[String],
        before: &BTreeMap<Guid, Before>,
        told: &Told,
        is_first: bool,
    ) -> String {
        let mut out = String::new();
        let width = pools
            .iter()
            .map(|pool| self.name_width(&pool.tree, 0, self.verbose || !vdevs.is_empty()))
            .max()
            .unwrap_or(0)
            .clamp(NAME_WIDTHS.0, NAME_WIDTHS.1);
        // Histograms have a heading each, and no lines between.
        let is_table = self.histogram().is_none() && !self.scripted;
        let shows_head = is_first || self.verbose && !self.head_once;
        if shows_head && is_table && !pools.is_empty() {
            let title = if vdevs.is_empty() { "pool" } else { "vdev" };
            self.head(&mut out, width, title, told);
        }
        for pool in pools {
            let before = before.get(&pool.guid);
            let scale = self.scale(pool, before);
            let round = Round {
                cache: &pool.cache,
                before,
                scale,
                width,
                vdevs,
                told,
            };
            self.vdev(&mut out, &pool.tree, &round, 0);
            if self.verbose && vdevs.is_empty() && is_table {
                self.separator(&mut out, width, told);
            }
        }
        if (pools.len() > 1 && !self.verbose || !vdevs.is_empty()) && is_table {
            self.separator(&mut out, width, told);
        }
        out
    }

    /// What counts since the last report are multiplied by to be a second's.
    fn scale(&self, pool: &PoolReport, before: Option<&Before>) -> f64 {
        let since_ns = before.map_or(0, |before| before.uptime_ns);
        match pool.uptime_ns.saturating_sub(since_ns) {
            0 => 1.0,
            // Those since the import are told in full.
            _ if before.is_none() && self.histogram().is_some() => 1.0,
            passed => NS_PER_SECOND / passed as f64,
        }
    }

    fn name_width(&self, vdev: &VdevReport, depth: usize, verbose: bool) -> usize {
        let own = depth + self.name(vdev).chars().count();
        if !verbose {
            return own;
        }
        let below = vdev.children.iter();
        below
            .map(|child| self.name_width(child, depth + 2, verbose))
            .fold(own, usize::max)
    }

    fn name(&self, vdev: &VdevReport) -> String {
        if vdev.kind == VdevKind::Root {
            return vdev.name.clone();
        }
        leaf_name(vdev, self.naming)
    }

    fn head(&self, out: &mut String, width: usize, title: &str, told: &Told) {
        let _ = write!(out, "{:width$}", "");
        for (group, column) in self.groups() {
            labels(out, group.top.iter().copied(), column);
        }
        let _ = write!(out, "\n{title:width$}");
        for (group, column) in self.groups() {
            labels(out, group.bottom.iter().map(|label| (*label, 1)), column);
        }
        out.push_str(&told.heading());
        out.push('\n');
        self.separator(out, width, told);
    }

    fn separator(&self, out: &mut String, width: usize, told: &Told) {
        let _ = write!(out, "{:-<width$}", "");
        for (group, column) in self.groups() {
            for _ in group.bottom {
                let _ = write!(out, "  {:-<column$}", "");
            }
        }
        out.push_str(&told.dashes());
        out.push('\n');
    }

    fn number(&self, value: u64) -> String {
        if self.parseable {
            value.to_string()
        } else {
            numbers::nice_count(value)
        }
    }

    fn time(&self, ns: u64) -> String {
        match (self.parseable, ns) {
            (true, 1..) => ns.to_string(),
            _ => numbers::nice_time(ns),
        }
    }

    /// The fields of a vdev's line, by groups.
    fn fields(&self, vdev: &VdevReport, old: &Seen, round: &Round) -> Vec<Vec<String>> {
        let rate =
            |new: u64, old: u64| self.number((new.saturating_sub(old) as f64 * round.scale) as u64);
        let mut capacity = match (vdev.size_bytes, self.parseable) {
            (0, false) => vec!["-".to_owned(), "-".to_owned()],
            (size, _) => vec![
                self.number(vdev.allocated_bytes),
                self.number(size.saturating_sub(vdev.allocated_bytes)),
            ],
        };
        capacity.extend([
            rate(vdev.reads.count, old.reads.count),
            rate(vdev.writes.count, old.writes.count),
            rate(vdev.reads.bytes, old.reads.bytes),
            rate(vdev.writes.bytes, old.writes.bytes),
        ]);
        let mut groups = vec![capacity];
        let nothing = IoReport::default();
        let io = vdev.io.as_deref().unwrap_or(&nothing);
        if self.latencies {
            let passed = since(&times(io), &times(&old.io));
            let means = passed.iter().map(|histogram| self.time(mean(histogram)));
            groups.push(means.collect());
        }
        if self.queues {
            let classes = io.classes.iter();
            let depths = classes.flat_map(|class| [class.pending, class.active]);
            groups.push(depths.map(|depth| self.number(depth)).collect());
        }
        if self.cache {
            let new = lookups(round.cache);
            // It is the pool's, none of its vdevs'.
            let fields = match (vdev.kind == VdevKind::Root, round.before) {
                (false, _) => vec!["-".to_owned(); new.len()],
                (true, None) => new.into_iter().map(|now| rate(now, 0)).collect(),
                (true, Some(before)) => {
                    let both = new.into_iter().zip(lookups(&before.cache));
                    both.map(|(now, then)| rate(now, then)).collect()
                }
            };
            groups.push(fields);
        }
        groups
    }

    fn line(&self, out: &mut String, vdev: &VdevReport, old: &Seen, round: &Round, depth: usize) {
        let name = self.name(vdev);
        let groups = self.fields(vdev, old, round);
        if self.scripted {
            let cells = round.told.cells(vdev);
            let _ = writeln!(out, "{name}\t{}{cells}", groups.concat().join("\t"));
            return;
        }
        let width = round.width;
        let _ = write!(out, "{:width$}", format!("{:depth$}{name}", ""));
        for (fields, (_, column)) in groups.iter().zip(self.groups()) {
            for field in fields {
                let _ = write!(out, "  {field:>column$}");
            }
        }
        out.push_str(&round.told.cells(vdev));
        out.push('\n');
    }

    /// The histograms of a vdev below a heading of their own (`print_iostat_histos`).
    fn histograms(
        &self,
        out: &mut String,
        (group, title): (&Group, &str),
        vdev: &VdevReport,
        old: &Seen,
        round: &Round,
    ) {
        let nothing = IoReport::default();
        let io = vdev.io.as_deref().unwrap_or(&nothing);
        let columns = match self.times {
            true => since(&times(io), &times(&old.io)),
            false => since(&sizes(io), &sizes(&old.io)),
        };
        let largest = columns.iter().flatten().max().copied().unwrap_or(0);
        let column = match self.parseable {
            true => largest.to_string().len().max(5),
            false => 5,
        };
        let name = self.name(vdev);
        let width = round.width.max(title.len());
        out.push('\n');
        if self.scripted {
            let _ = writeln!(out, "{name}");
        } else {
            let wide = width.max(name.chars().count());
            let _ = write!(out, "{name:wide$}");
            labels(out, group.top.iter().copied(), column);
            let _ = write!(out, "\n{title:wide$}");
            labels(out, group.bottom.iter().map(|label| (*label, 1)), column);
            let _ = write!(out, "\n{:-<width$}", "");
            for _ in group.bottom {
                let _ = write!(out, "  {:-<column$}", "");
            }
            out.push('\n');
        }
        let buckets = columns.iter().map(Vec::len).min().unwrap_or(0).min(63);
        for bucket in (if self.times { 0 } else { FIRST_SIZE })..buckets {
            // The longest time, but the smallest size.
            let (value, label) = match self.times {
                true => {
                    let longest = (1u64 << (bucket + 1)) - 1;
                    (longest, numbers::nice_time(longest))
                }
                false => (1 << bucket, numbers::nice_count(1 << bucket)),
            };
            let _ = match self.scripted {
                true => write!(out, "{value}"),
                false => write!(out, "{label:width$}"),
            };
            for counts in &columns {
                let count = self.number((counts[bucket] as f64 * round.scale) as u64);
                let _ = match self.scripted {
                    true => write!(out, "\t{count}"),
                    false => write!(out, "  {count:>column$}"),
                };
            }
            out.push('\n');
        }
        if !self.scripted {
            let whole = width + (column + 2) * group.bottom.len();
            let _ = writeln!(out, "{:-<whole$}", "");
        }
    }

    fn vdev(&self, out: &mut String, vdev: &VdevReport, round: &Round, depth: usize) {
        if vdev.kind == VdevKind::Indirect {
            return;
        }
        let is_wanted = |word: &String| self.is_called(vdev, word);
        let is_chosen = round.vdevs.iter().any(is_wanted);
        if is_chosen || round.vdevs.is_empty() {
            let nothing = Seen::default();
            let old = round
                .before
                .and_then(|before| before.vdevs.get(&vdev.guid))
                .unwrap_or(&nothing);
            match self.histogram() {
                Some(histogram) => self.histograms(out, histogram, vdev, old, round),
                None => self.line(out, vdev, old, round, if is_chosen { 0 } else { depth }),
            }
        }
        if !self.verbose && round.vdevs.is_empty() {
            return;
        }
        let is_root = vdev.kind == VdevKind::Root;
        for child in &vdev.children {
            if !is_root || child.class == VdevClass::Normal {
                self.vdev(out, child, round, depth + 2);
            }
        }
        if !is_root {
            return;
        }
        // Spares do nothing until they stand in for something.
        for (class, _) in CLASSES
            .iter()
            .filter(|(class, _)| *class != VdevClass::Spare)
        {
            let mut members = vdev
                .children
                .iter()
                .filter(|child| child.class == *class)
                .peekable();
            if members.peek().is_none() {
                continue;
            }
            if round.vdevs.is_empty() {
                self.class_line(out, *class, round.width);
            }
            for member in members {
                self.vdev(out, member, round, depth + 2);
            }
        }
    }

    fn class_line(&self, out: &mut String, class: VdevClass, width: usize) {
        if self.histogram().is_some() {
            out.push('\n');
        } else if !self.scripted {
            let heading = class_heading(class);
            let _ = write!(out, "{heading:width$}");
            for (group, column) in self.groups() {
                for _ in group.bottom {
                    let _ = write!(out, "  {:>column$}", "-");
                }
            }
            out.push('\n');
        }
    }
}

mod json;

#[cfg(test)]
mod tests;
