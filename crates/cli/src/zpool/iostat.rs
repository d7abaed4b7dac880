//! `zpool iostat`: how much pools and vdevs read and write, laid out as OpenZFS does (`print_iostat`,
//! `print_vdev_stats`, cmd/zpool/zpool_main.c). The first report is the mean since the import, later ones are of
//! the interval.

use std::collections::BTreeMap;
use std::fmt::Write;

use api::{PoolReport, VdevReport, ZpoolList};
use clap::Args;

use super::repeat::Repeat;
use super::vdevs::{CLASSES, Naming, leaf_name};
use crate::client::Client;
use crate::numbers;

/// Names are given at least and at most so much room (`get_namewidth_iostat`).
const NAME_WIDTHS: (usize, usize) = (10, 42);
const NS_PER_SECOND: f64 = 1e9;

/// Tell how much pools and their devices read and write.
#[derive(Debug, Args)]
pub struct Iostat {
    /// Every vdev
    #[arg(short)]
    verbose: bool,
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
    /// [POOL]... [INTERVAL [COUNT]]
    pools: Vec<String>,
}

/// Operations and bytes, each read and written.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    operations: [u64; 2],
    bytes: [u64; 2],
}

/// What was seen of a pool before: its uptime, and counters by vdev.
#[derive(Debug, Default)]
struct Before {
    uptime_ns: u64,
    vdevs: BTreeMap<u64, Counters>,
}

impl Before {
    fn of(pool: &PoolReport) -> Self {
        fn walk(vdev: &VdevReport, out: &mut BTreeMap<u64, Counters>) {
            let counters = Counters {
                operations: vdev.operations,
                bytes: vdev.transferred_bytes,
            };
            out.insert(vdev.guid, counters);
            vdev.children.iter().for_each(|child| walk(child, out));
        }
        let mut vdevs = BTreeMap::new();
        walk(&pool.tree, &mut vdevs);
        Self {
            uptime_ns: pool.uptime_ns,
            vdevs,
        }
    }
}

impl Iostat {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let mut before: BTreeMap<u64, Before> = BTreeMap::new();
        let mut round = 0;
        let more = u64::from(self.omit_first);
        self.repeat
            .run_more(self.pools.clone(), more, |names, time| {
                let call = ZpoolList {
                    names: names.to_vec(),
                };
                let pools = client.call(&call)?.pools;
                if pools.is_empty() && names.is_empty() {
                    eprintln!("no pools available");
                }
                round += 1;
                if !(self.omit_first && round == 1) {
                    if let Some(time) = time {
                        println!("{time}");
                    }
                    let is_first = round == 1 + more;
                    print!("{}", self.report(&pools, &before, is_first));
                }
                before = pools
                    .iter()
                    .map(|pool| (pool.guid, Before::of(pool)))
                    .collect();
                Ok(())
            })
    }

    fn report(
        &self,
        pools: &[PoolReport],
        before: &BTreeMap<u64, Before>,
        is_first: bool,
    ) -> String {
        let mut out = String::new();
        let width = pools
            .iter()
            .map(|pool| self.name_width(&pool.tree, 0))
            .max()
            .unwrap_or(0)
            .clamp(NAME_WIDTHS.0, NAME_WIDTHS.1);
        let shows_head = is_first || self.verbose && !self.head_once;
        if shows_head && !self.scripted && !pools.is_empty() {
            self.head(&mut out, width);
        }
        let nothing = Before::default();
        for pool in pools {
            let before = before.get(&pool.guid).unwrap_or(&nothing);
            let passed_ns = pool.uptime_ns.saturating_sub(before.uptime_ns);
            let scale = match passed_ns {
                0 => 1.0,
                passed => NS_PER_SECOND / passed as f64,
            };
            self.vdev(&mut out, &pool.tree, &before.vdevs, scale, width, 0);
            if self.verbose && !self.scripted {
                self.separator(&mut out, width);
            }
        }
        if pools.len() > 1 && !self.verbose && !self.scripted {
            self.separator(&mut out, width);
        }
        out
    }

    fn column_width(&self) -> usize {
        if self.parseable { 15 } else { 5 }
    }

    fn name_width(&self, vdev: &VdevReport, depth: usize) -> usize {
        let own = depth + self.name(vdev).chars().count();
        if !self.verbose {
            return own;
        }
        let below = vdev.children.iter();
        below
            .map(|child| self.name_width(child, depth + 2))
            .fold(own, usize::max)
    }

    fn name(&self, vdev: &VdevReport) -> String {
        if vdev.kind == "root" {
            return vdev.name.clone();
        }
        leaf_name(vdev, self.naming)
    }

    fn head(&self, out: &mut String, width: usize) {
        let column = self.column_width();
        let _ = write!(out, "{:width$}", "");
        for label in ["capacity", "operations", "bandwidth"] {
            let room = column * 2 + 2;
            let start = (room / 2).saturating_sub(label.len() / 2);
            let text = format!("{:start$}{label}", "");
            let _ = write!(out, "  {text:room$}");
        }
        let _ = write!(out, "\n{:width$}", "pool");
        for label in ["alloc", "free", "read", "write", "read", "write"] {
            let _ = write!(out, "  {label:>column$}");
        }
        out.push('\n');
        self.separator(out, width);
    }

    fn separator(&self, out: &mut String, width: usize) {
        let _ = write!(out, "{:-<width$}", "");
        for _ in 0..6 {
            let _ = write!(out, "  {:-<1$}", "", self.column_width());
        }
        out.push('\n');
    }

    fn vdev(
        &self,
        out: &mut String,
        vdev: &VdevReport,
        before: &BTreeMap<u64, Counters>,
        scale: f64,
        width: usize,
        depth: usize,
    ) {
        if vdev.kind == "indirect" {
            return;
        }
        let number = |value: u64| {
            if self.parseable {
                value.to_string()
            } else {
                numbers::nice_count(value)
            }
        };
        let old = before.get(&vdev.guid).copied().unwrap_or_default();
        let rate = |new: u64, old: u64| number((new.saturating_sub(old) as f64 * scale) as u64);
        let mut fields = match (vdev.size_bytes, self.parseable) {
            (0, false) => vec!["-".to_owned(), "-".to_owned()],
            (size, _) => vec![
                number(vdev.allocated_bytes),
                number(size.saturating_sub(vdev.allocated_bytes)),
            ],
        };
        fields.extend((0..2).map(|way| rate(vdev.operations[way], old.operations[way])));
        fields.extend((0..2).map(|way| rate(vdev.transferred_bytes[way], old.bytes[way])));
        let name = self.name(vdev);
        if self.scripted {
            let _ = writeln!(out, "{name}\t{}", fields.join("\t"));
        } else {
            let _ = write!(out, "{:width$}", format!("{:depth$}{name}", ""));
            for field in fields {
                let _ = write!(out, "  {field:>0$}", self.column_width());
            }
            out.push('\n');
        }
        if !self.verbose {
            return;
        }
        let is_root = vdev.kind == "root";
        for child in &vdev.children {
            if !is_root || child.class.is_empty() {
                self.vdev(out, child, before, scale, width, depth + 2);
            }
        }
        if !is_root {
            return;
        }
        // Spares do nothing until they stand in for something.
        for (class, _) in CLASSES.iter().filter(|(class, _)| *class != "spare") {
            let mut members = vdev
                .children
                .iter()
                .filter(|child| child.class == *class)
                .peekable();
            if members.peek().is_none() {
                continue;
            }
            if !self.scripted {
                let heading = if *class == "log" { "logs" } else { *class };
                let _ = write!(out, "{heading:width$}");
                for _ in 0..6 {
                    let _ = write!(out, "  {:>1$}", "-", self.column_width());
                }
                out.push('\n');
            }
            for member in members {
                self.vdev(out, member, before, scale, width, depth + 2);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        iostat: Iostat,
    }

    fn iostat(words: &[&str]) -> Iostat {
        use clap::Parser;
        Line::parse_from(std::iter::once("iostat").chain(words.iter().copied())).iostat
    }

    fn pool(factor: u64) -> PoolReport {
        let leaf = |name: &str, guid| VdevReport {
            name: format!("/dev/{name}"),
            path: Some(format!("/dev/{name}")),
            kind: "disk".into(),
            guid,
            operations: [10 * factor, 20 * factor],
            transferred_bytes: [10_240 * factor, 2_097_152 * factor],
            ..VdevReport::default()
        };
        let log = VdevReport {
            class: "log".into(),
            size_bytes: 1 << 30,
            ..leaf("sdc", 5)
        };
        PoolReport {
            name: "tank".into(),
            guid: 1,
            txg: 1,
            uptime_ns: 10_000_000_000 * factor,
            properties: Default::default(),
            tree: VdevReport {
                name: "tank".into(),
                kind: "root".into(),
                guid: 1,
                size_bytes: 2 << 30,
                allocated_bytes: 1 << 20,
                operations: [20 * factor, 40 * factor],
                transferred_bytes: [20_480 * factor, 4_194_304 * factor],
                children: vec![leaf("sda", 3), leaf("sdb", 4), log],
                ..VdevReport::default()
            },
        }
    }

    /// Goal: the table is OpenZFS's. Method: one compared with what OpenZFS 2.3 prints for such numbers.
    #[test]
    fn reports_look_like_those_of_openzfs() {
        let none = BTreeMap::new();
        assert_eq!(
            iostat(&[]).report(&[pool(1)], &none, true),
            "              capacity     operations     bandwidth \n\
             pool        alloc   free   read  write   read  write\n\
             ----------  -----  -----  -----  -----  -----  -----\n\
             tank           1M  2.00G      2      4     2K   410K\n"
        );
        let before = BTreeMap::from([(1, Before::of(&pool(1)))]);
        assert_eq!(
            iostat(&["-H", "-p"]).report(&[pool(3)], &before, false),
            "tank\t1048576\t2146435072\t2\t4\t2048\t419430\n"
        );
        let verbose = iostat(&["-v"]).report(&[pool(1)], &none, true);
        for line in [
            "  sda           -      -      1      2     1K   205K\n",
            "logs            -      -      -      -      -      -\n",
            "  sdc           0     1G      1      2     1K   205K\n",
        ] {
            assert!(verbose.contains(line), "{line}{verbose}");
        }
    }
}
