//! `zpool status`: the condition of pools, laid out as OpenZFS does (`status_callback` and
//! `status_callback_json`, cmd/zpool/zpool_main.c).

use api::{
    ActivityReport, Failure, PoolStatusReport, ScanFunction, ScanState, VdevClass, VdevKind,
    VdevReport, ZpoolStatus,
};
use clap::Args;
use serde_json::{Map, Value, json};

use super::color::{self, Color, bold, paint};
use super::repeat::Repeat;
use super::scripts::{Scripts, Told};
use super::vdevs::{self, CLASSES, Columns, Naming, is_well, leaf_name, print_config};
use super::{condition, power, progress, rebuild, scan, words};
use crate::client::Client;
use crate::{json, numbers, refusals};

/// Tell the condition of pools and their devices.
#[derive(Debug, Args)]
pub struct Status {
    /// Name damaged files
    #[arg(short)]
    verbose: bool,
    /// Only pools that are not well
    #[arg(short = 'x')]
    exceptions: bool,
    /// Only vdevs that are not well
    #[arg(short = 'e')]
    unhealthy: bool,
    /// Exact numbers
    #[arg(short = 'p')]
    parseable: bool,
    /// State of initializing
    #[arg(short = 'i')]
    initialize: bool,
    /// State of trimming
    #[arg(short = 't')]
    trim: bool,
    /// Slow I/Os
    #[arg(short = 's')]
    slow: bool,
    /// Checks of direct I/O that failed
    #[arg(short = 'd')]
    direct: bool,
    /// Statistics of deduplication
    #[arg(short = 'D', action = clap::ArgAction::Count)]
    dedup: u8,
    /// Whether the bays of devices have power
    #[arg(long)]
    power: bool,
    #[command(flatten)]
    naming: Naming,
    #[command(flatten)]
    repeat: Repeat,
    #[command(flatten)]
    scripts: Scripts,
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// With -j, numbers as numbers
    #[arg(long, requires = "json")]
    json_int: bool,
    /// With -j, vdevs in one flat object
    #[arg(long, requires = "json")]
    json_flat_vdevs: bool,
    /// With -j, pools by GUID
    #[arg(long, requires = "json")]
    json_pool_key_guid: bool,
    /// [POOL]... [INTERVAL [COUNT]]
    pools: Vec<String>,
}

impl Status {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        if self.scripts.check("status")? {
            return Ok(());
        }
        let mut absent = Vec::new();
        self.repeat.run(self.pools.clone(), |names, time| {
            absent = self.report(client, names, time)?;
            Ok(())
        })?;
        refusals::all_found(&absent)
    }

    /// Returns why pools of these names are not here.
    fn report(
        &self,
        client: &Client,
        names: &[String],
        time: Option<String>,
    ) -> anyhow::Result<Vec<Failure>> {
        let call = ZpoolStatus {
            names: names.to_vec(),
            verbose: self.verbose,
        };
        let reply = client.call(&call)?;
        let absent = refusals::tell_absent(names, reply.absent);
        let mut pools = reply.pools;
        let found: Vec<String> = pools.iter().map(|pool| pool.name.clone()).collect();
        if self.exceptions {
            pools.retain(|pool| !pool.is_healthy);
        }
        let trees = pools.iter().map(|pool| (pool.name.as_str(), &pool.tree));
        let mut told = self.scripts.run(trees, &|_| true);
        let trees = pools.iter().map(|pool| &pool.tree);
        told.power = self.power.then(|| power::states(client, trees));
        if self.json {
            self.print_json(&pools, &told, time)?;
            return Ok(absent);
        }
        if let Some(time) = time {
            println!("{time}");
        }
        if found.is_empty() && names.is_empty() {
            eprintln!("no pools available");
        } else if pools.is_empty() && names.is_empty() {
            println!("all pools are healthy");
        } else if self.exceptions && !names.is_empty() {
            for name in found {
                if !pools.iter().any(|pool| pool.name == name) {
                    println!("pool '{name}' is healthy");
                }
            }
        }
        for (index, pool) in pools.iter().enumerate() {
            if index > 0 {
                println!();
            }
            self.print(pool, &told);
        }
        Ok(absent)
    }

    fn columns(&self, pool: &PoolStatusReport) -> Columns {
        Columns {
            counters: true,
            parseable: self.parseable,
            slow: self.slow,
            direct: self.direct,
            initialize: self.initialize,
            trim: self.trim,
            unhealthy: self.unhealthy,
            scanning: (pool.scan.as_ref())
                .filter(|scan| scan.state == ScanState::Scanning)
                .map(|scan| scan.function)
                .or(rebuild::is_active(pool).then_some(ScanFunction::Resilver)),
        }
    }

    fn print(&self, pool: &PoolStatusReport, told: &Told) {
        println!("  {} {}", bold("pool:"), pool.name);
        let health = words::health(pool.health);
        println!(
            " {}{}",
            bold("state: "),
            paint(color::of_state(health), health)
        );
        let said = condition::of_pool(pool.condition.as_ref());
        print_lines("status", said.status.as_deref());
        print_lines("action", said.action.as_deref());
        if let Some(see) = said.see() {
            println!("   {} {see}", bold("see:"));
        }
        if let Some(scrub) = pool.error_scrub.filter(|_| rebuild::is_of_errors(pool)) {
            println!(" scrub: {}", scan::error_lines(&scrub).join("\n\t"));
        }
        for lines in rebuild::scans(pool) {
            println!("  {} {}", bold("scan:"), lines.join("\n\t"));
        }
        if let Some(scan) = &pool.scan
            && let Some(warning) = progress::scan_warning(scan, pool.checkpoint.as_ref())
        {
            println!("    scan warning: {warning}");
        }
        if let Some(removal) = &pool.removal {
            println!("{}{}", bold("remove: "), progress::removal(removal));
        }
        if let Some(checkpoint) = &pool.checkpoint {
            println!("checkpoint: {}", progress::checkpoint(checkpoint));
        }
        if let Some(expansion) = &pool.expansion {
            println!("{}{}", bold("expand: "), progress::expansion(expansion));
        }
        println!("{}\n", bold("config:"));
        print_config(&pool.tree, self.naming, self.columns(pool), told);
        println!();
        match pool.error_count {
            0 => println!("errors: No known data errors"),
            count if !self.verbose => {
                let text = format!("errors: {count} data errors, use '-v' for a list");
                println!("{}", paint(color::of_errors(count), &text));
            }
            _ if pool.damaged_denied => {
                println!("errors: List of errors unavailable: permission denied");
            }
            _ => {
                println!("errors: Permanent errors have been detected in the following files:\n");
                for file in &pool.damaged {
                    println!("        {file}");
                }
            }
        }
        if self.dedup > 0 {
            print!("\n{}", progress::dedup(pool.dedup.as_ref(), self.parseable));
        }
    }

    fn number(&self, value: u64) -> Value {
        json::value(&value.to_string(), self.json_int)
    }

    /// A size, exact or for people.
    fn size(&self, value: u64) -> Value {
        if self.json_int || self.parseable {
            self.number(value)
        } else {
            json!(numbers::nice_bytes(value))
        }
    }

    fn count(&self, value: u64) -> Value {
        if self.json_int || self.parseable {
            self.number(value)
        } else {
            json!(numbers::nice_count(value))
        }
    }

    fn print_json(
        &self,
        pools: &[PoolStatusReport],
        told: &Told,
        time: Option<String>,
    ) -> anyhow::Result<()> {
        let mut by_key = Map::new();
        for pool in pools {
            let key = if self.json_pool_key_guid {
                pool.guid.to_string()
            } else {
                pool.name.clone()
            };
            by_key.insert(key, Value::Object(self.json_pool(pool, told)));
        }
        let mut document = json::document("zpool status");
        document.insert("pools".into(), Value::Object(by_key));
        if let Some(time) = time {
            document.insert("time".into(), json::value(&time, self.json_int));
        }
        json::print(document)
    }

    fn json_pool(&self, pool: &PoolStatusReport, told: &Told) -> Map<String, Value> {
        let mut report = json::pool(
            &pool.name,
            words::health(pool.health),
            pool.guid,
            pool.txg,
            None,
            self.json_int,
        );
        let said = condition::of_pool(pool.condition.as_ref());
        for (key, text) in [("status", &said.status), ("action", &said.action)] {
            if let Some(text) = text {
                // Later lines are indented there, and the last one ends.
                report.insert(
                    key.into(),
                    json!(format!("{}\n", text.replace('\n', "\n\t"))),
                );
            }
        }
        if let Some(see) = said.see() {
            report.insert("msgid".into(), json!(said.page));
            report.insert("moreinfo".into(), json!(see));
        }
        let exact = self.json_int || self.parseable;
        let number = |value| self.number(value);
        let mut scans = match &pool.scan {
            Some(found) => scan::json(found, exact, &number),
            None => Map::new(),
        };
        if let Some(scrub) = pool.error_scrub.filter(|_| rebuild::is_of_errors(pool)) {
            scan::add_errors(&mut scans, &scrub, exact, &number);
        }
        if let Some(rebuilds) = rebuild::json(pool, exact, self.json_int, &number) {
            scans.insert("rebuild_stats".into(), rebuilds);
        }
        if !scans.is_empty() {
            report.insert("scan_stats".into(), Value::Object(scans));
        }
        let mut root = Map::new();
        self.json_vdev(&pool.tree, told, None, VdevClass::Normal, &mut root);
        let mut groups = Vec::new();
        for (class, key) in CLASSES {
            let mut group = Map::new();
            for child in pool
                .tree
                .children
                .iter()
                .filter(|child| child.class == class)
            {
                if !(self.unhealthy && is_well(child)) {
                    self.json_vdev(child, told, None, VdevClass::Normal, &mut group);
                }
            }
            groups.push((key, group));
        }
        if self.json_flat_vdevs {
            root.extend(groups.into_iter().flat_map(|(_, group)| group));
            report.insert("vdevs".into(), Value::Object(root));
        } else {
            report.insert("vdevs".into(), Value::Object(root));
            for (key, group) in groups.into_iter().filter(|(_, group)| !group.is_empty()) {
                report.insert(key.into(), Value::Object(group));
            }
        }
        report.insert("error_count".into(), self.count(pool.error_count));
        if pool.error_count > 0 && self.verbose {
            report.insert("errlist".into(), json!(pool.damaged));
        }
        report
    }

    /// Adds a vdev and those below it: in one another, or with `--json-flat-vdevs` side by side.
    fn json_vdev(
        &self,
        vdev: &VdevReport,
        told: &Told,
        parent: Option<&str>,
        above: VdevClass,
        out: &mut Map<String, Value>,
    ) {
        let name = leaf_name(vdev, self.naming);
        let is_leaf = vdev.children.is_empty();
        let mut entry = vdevs::info(vdev, &name, above, self.json_int);
        if let Some(parent) = parent.filter(|_| self.json_flat_vdevs) {
            entry.insert("parent".into(), json!(parent));
        }
        if vdev.class != VdevClass::Spare {
            for (key, bytes) in [
                ("alloc_space", vdev.allocated_bytes),
                ("total_space", vdev.size_bytes),
                ("phys_space", vdev.physical_bytes),
            ] {
                if bytes > 0 {
                    entry.insert(key.into(), self.size(bytes));
                }
            }
            for (key, errors) in [
                ("read_errors", vdev.read_errors),
                ("write_errors", vdev.write_errors),
                ("checksum_errors", vdev.checksum_errors),
            ] {
                entry.insert(key.into(), self.count(errors));
            }
            if is_leaf {
                entry.insert("slow_ios".into(), self.count(vdev.slow_ios));
            }
        }
        if let Some(power) = told.power(vdev) {
            entry.insert("power_state".into(), json!(power));
        }
        if vdev.scan_repaired_bytes > 0 {
            let bytes = self.size(vdev.scan_repaired_bytes);
            entry.insert("scan_processed".into(), bytes);
        }
        if vdev.is_deferred {
            entry.insert("resilver_deferred".into(), self.number(1));
        }
        if self.direct {
            entry.insert("dio_verify_errors".into(), self.count(0));
        }
        if let Some(aux) = vdev.aux {
            entry.insert("aux".into(), json!(words::aux(aux)));
        }
        for (column, value) in told.json(vdev) {
            // What is told here stays so.
            entry.entry(column).or_insert(json!(value));
        }
        if is_leaf && self.initialize {
            let keys = [
                "init_state",
                "initialized",
                "to_initialize",
                "init_time",
                "init_errors",
            ];
            self.json_activity(vdev.initialize.as_ref(), keys, "UNINITIALIZED", &mut entry);
        }
        if is_leaf && self.trim {
            if !vdev.cannot_trim {
                let keys = [
                    "trim_state",
                    "trimmed",
                    "to_trim",
                    "trim_time",
                    "trim_errors",
                ];
                self.json_activity(vdev.trim.as_ref(), keys, "UNTRIMMED", &mut entry);
            }
            let cannot = self.number(u64::from(vdev.cannot_trim));
            entry.insert("trim_notsup".into(), cannot);
        }
        let is_root = vdev.kind == VdevKind::Root;
        let members: Vec<&VdevReport> = vdev
            .children
            .iter()
            .filter(|child| !is_root || child.class == VdevClass::Normal)
            .filter(|child| !(self.unhealthy && is_well(child)))
            .collect();
        let mut children = Map::new();
        for child in members {
            // The flat object has those below it as well, and they keep their own.
            if self.json_flat_vdevs {
                self.json_vdev(child, told, Some(&name), vdev.class, out);
            }
            self.json_vdev(child, told, Some(&name), vdev.class, &mut children);
        }
        if !children.is_empty() {
            entry.insert("vdevs".into(), Value::Object(children));
        }
        out.insert(name, Value::Object(entry));
    }
}

impl Status {
    /// How far a leaf was initialized or trimmed.
    fn json_activity(
        &self,
        report: Option<&ActivityReport>,
        [state, done, total, time, errors]: [&str; 5],
        never: &str,
        entry: &mut Map<String, Value>,
    ) {
        let Some(report) = report else {
            entry.insert(state.into(), json!(never));
            return;
        };
        let exact = self.json_int || self.parseable;
        let when = match exact {
            true => self.number(report.time_s),
            false => json!(numbers::local_ctime(report.time_s)),
        };
        entry.insert(state.into(), json!(words::activity(report.state)));
        entry.insert(done.into(), self.size(report.done_bytes));
        entry.insert(total.into(), self.size(report.total_bytes));
        entry.insert(time.into(), when);
        // What failed is not on disk.
        entry.insert(errors.into(), self.count(0));
    }
}

/// Prints a labelled paragraph, later lines indented by a tab.
fn print_lines(label: &str, text: Option<&str>) {
    if let Some(text) = text {
        let label = bold(&format!("{label:>6}: "));
        println!(
            "{label}{}",
            paint(Some(Color::Yellow), &text.replace('\n', "\n\t"))
        );
    }
}
