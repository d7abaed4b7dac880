//! `millpond plan`: what disks will do as a pool, before they are bought.

use ::plan::amount::show_bytes;
use ::plan::choose::Purpose;
use ::plan::full::{Limit, Load};
use ::plan::{Answer, Bus, Disks, Layout, Model, Note, PlanError, Planned, Question};
use anyhow::bail;
use api::{PlanAsk, PlanDedup, PlanDedupReply, PlanLog, PlanLogReply};
use clap::{Args, Subcommand, ValueEnum};

use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::nice_bytes;
use crate::zpool::progress;

/// Tells what disks will do as a pool, layout by layout.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Plan {
    #[command(subcommand)]
    what: Option<What>,
    /// Disks: 16x500GB, 2x400GB:ssd, 16x500GB:hdd:90seeks:72MB/s:price=55 (default: the host's)
    #[arg(long = "disks", value_name = "DISKS", value_parser = word::<Disks>)]
    disks: Vec<Disks>,
    /// So many of the disks are spares
    #[arg(long, default_value_t = 0)]
    spares: u64,
    /// Layouts: mirror:7x2, raidz2:2x6, draid2:4d:11c:1s (default: all that make sense)
    #[arg(long = "layout", value_name = "LAYOUT", value_parser = word::<Layout>)]
    layouts: Vec<Layout>,
    /// What the pool is for; rates are of the first (default: random)
    #[arg(long = "use", value_name = "USE")]
    purposes: Vec<Use>,
    /// Multiples of one disk, or seeks, queues, buses and the network
    #[arg(long, value_enum, default_value_t = Way::Full)]
    model: Way,
    /// Size of a block that is read or written
    #[arg(long, value_parser = size)]
    block: Option<u64>,
    /// Blocks that are asked for at the same time
    #[arg(long)]
    depth: Option<u64>,
    /// Buses of the disks: pcix133, pcie3x8, 520MB/350MB; with :8 for eight disks on it
    #[arg(long = "bus", value_name = "BUS", value_parser = word::<Bus>)]
    buses: Vec<Bus>,
    /// What the network carries: 1Gbit, 125MB
    #[arg(long, value_name = "RATE", value_parser = rate)]
    network: Option<u64>,
    /// Memory of the server
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// The most that intent logs held, where that was seen: 1.51GB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    log_seen: Option<u64>,
    /// log2 of a sector's size
    #[arg(long, default_value_t = 12)]
    ashift: u32,
    /// Print JSON, with exact numbers
    #[arg(short, long)]
    json: bool,
}

/// What else can be planned.
#[derive(Debug, Subcommand)]
enum What {
    /// Tell how big a log device of a pool need be
    Log(Log),
    /// Foretell what dedup tables of a pool would hold, and what deduplication would save
    Dedup(Dedup),
}

/// Foretells what dedup tables would hold if all that a pool has were deduplicated.
#[derive(Debug, Args)]
struct Dedup {
    pool: String,
    /// So many different blocks are remembered; of more, they are a sample (default: 1048576)
    #[arg(long, value_name = "BLOCKS")]
    sample: Option<u64>,
    /// Print JSON, with exact numbers
    #[arg(short, long)]
    json: bool,
}

/// Tells how big a log device need be, by what the pool's intent logs held and by the network.
#[derive(Debug, Args)]
struct Log {
    pool: String,
    /// What the network carries: 1Gbit, 125MB
    #[arg(long, value_name = "RATE", value_parser = rate)]
    network: Option<u64>,
    /// Until writes are on the pool's other devices (default: 8)
    #[arg(long, value_name = "SECONDS")]
    interval: Option<f64>,
    /// Print JSON, with exact numbers
    #[arg(short, long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Use {
    Random,
    Stream,
    Vm,
    Backup,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    Simple,
    Full,
}

/// Reads a word as the planner does, with its sentence when it is wrong.
pub fn word<T: std::str::FromStr<Err = PlanError>>(word: &str) -> Result<T, String> {
    word.parse().map_err(|error: PlanError| error.to_string())
}

/// Reads a size.
pub fn size(word: &str) -> Result<u64, String> {
    ::plan::amount::parse_bytes(word).map_err(|error| error.to_string())
}

/// Reads bytes a second.
pub fn rate(word: &str) -> Result<u64, String> {
    ::plan::amount::parse_rate(word).map_err(|error| error.to_string())
}

impl Plan {
    /// Prints it. `client` is asked for only where the host's disks or a pool are meant.
    pub fn run(self, client: impl FnOnce() -> anyhow::Result<Client>) -> anyhow::Result<()> {
        match &self.what {
            Some(What::Log(log)) => return log.run(&client()?),
            Some(What::Dedup(dedup)) => return dedup.run(&client()?),
            None => {}
        }
        let (json, way) = (self.json, self.model);
        let question = self.question();
        let answer = match question.disks.is_empty() {
            true => client()?.call(&PlanAsk { question })?.answer,
            false => ::plan::answer(&question)?,
        };
        match (json, way) {
            (true, _) => println!("{}", serde_json::to_string_pretty(&answer)?),
            (false, Way::Simple) => print!("{}", simple(&answer)),
            (false, Way::Full) => print!("{}", full(&answer)),
        }
        Ok(())
    }

    fn question(self) -> Question {
        let purposes: Vec<Purpose> = match self.purposes.is_empty() {
            true => vec![Purpose::Random],
            false => self
                .purposes
                .iter()
                .map(|purpose| (*purpose).into())
                .collect(),
        };
        let usual = purposes[0].usual_load();
        let is_changed = self.block.is_some() || self.depth.is_some();
        let load = is_changed.then(|| Load {
            block_bytes: self.block.unwrap_or(usual.block_bytes),
            depth: self.depth.unwrap_or(usual.depth),
            ..usual
        });
        Question {
            disks: self.disks,
            spares: self.spares,
            layouts: self.layouts,
            purposes,
            load,
            model: match self.model {
                Way::Simple => Model::Simple,
                Way::Full => Model::Full,
            },
            ashift: self.ashift,
            buses: self.buses,
            network_rate: self.network,
            memory_bytes: self.memory,
            log_seen_bytes: self.log_seen,
            assumed: None,
        }
    }
}

impl From<Use> for Purpose {
    fn from(purpose: Use) -> Self {
        match purpose {
            Use::Random => Purpose::Random,
            Use::Stream => Purpose::Stream,
            Use::Vm => Purpose::Vm,
            Use::Backup => Purpose::Backup,
        }
    }
}

impl Log {
    fn run(&self, client: &Client) -> anyhow::Result<()> {
        let reply = client.call(&PlanLog {
            pool: self.pool.clone(),
            network_rate: self.network,
            seconds: self.interval,
        })?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&reply)?);
            return Ok(());
        }
        if reply.size.is_none() {
            bail!(
                "nothing is known by which to plan a log device of '{}': no report has seen its \
                 intent logs in use. Say what the network carries, as in --network 1Gbit",
                self.pool
            );
        }
        print!("{}", self.told(&reply));
        Ok(())
    }

    fn told(&self, reply: &PlanLogReply) -> String {
        let Some(size) = reply.size else {
            return String::new();
        };
        let mut out = String::new();
        if let (Some(rate), Some(bytes)) = (self.network, size.by_network_bytes) {
            out.push_str(&format!(
                "{}/s for {} seconds, and as much again while that is written: {}.\n",
                show_bytes(rate),
                reply.seconds,
                show_bytes(bytes)
            ));
        }
        if let (Some(seen), Some(bytes)) = (reply.seen_bytes, size.by_use_bytes) {
            out.push_str(&format!(
                "The intent logs of '{}' held {} at most within a year, and with half as much \
                 again: {}.\n",
                self.pool,
                show_bytes(seen),
                show_bytes(bytes)
            ));
        }
        out.push_str(&format!("{}\n", Note::Log { bytes: size.bytes }.sentence()));
        out
    }
}

impl Dedup {
    fn run(&self, client: &Client) -> anyhow::Result<()> {
        let reply = client.call_until_interrupted(&PlanDedup {
            pool: self.pool.clone(),
            sample: self.sample,
        })?;
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&reply)?),
            false => print!("{}", Self::told(&reply)),
        }
        Ok(())
    }

    /// As `zdb -S` and `zpool status -D` have it, then the ratio.
    fn told(reply: &PlanDedupReply) -> String {
        let report = (reply.table.entries > 0).then_some(&reply.table);
        let mut out = progress::dedup(report, false);
        out.push_str(&format!("dedup = {:.2}", reply.ratio));
        if reply.sampled < 1.0 {
            out.push_str(&format!(
                " ± {:.2} (by {:.3} % of the blocks)",
                reply.ratio_error,
                reply.sampled * 100.0
            ));
        }
        out.push('\n');
        if reply.unreadable > 0 {
            out.push_str(&format!(
                "{} blocks of pointers could not be read; scrub the pool\n",
                reply.unreadable
            ));
        }
        out
    }
}

/// Multiples as people write them in tables: `12y`, `3.5z`.
fn multiple(value: f64, unit: char) -> String {
    match value.fract() == 0.0 {
        true => format!("{value:.0}{unit}"),
        false => format!("{value:.1}{unit}"),
    }
}

fn simple(answer: &Answer) -> String {
    let columns = [
        Column::left("LAYOUT"),
        Column::right("IOPS READ"),
        Column::right("WRITE"),
        Column::right("RATE READ"),
        Column::right("WRITE"),
        Column::right("DATA"),
        Column::right("USABLE"),
    ];
    let row = |planned: &Planned| {
        let simple = planned.simple?;
        Some(vec![
            planned.layout.to_string(),
            multiple(simple.iops_read, 'y'),
            multiple(simple.iops_write, 'y'),
            multiple(simple.rate_read, 'z'),
            multiple(simple.rate_write, 'z'),
            show_bytes(simple.data_bytes),
            show_bytes(planned.usable_bytes),
        ])
    };
    let rows: Vec<Vec<String>> = answer.layouts.iter().filter_map(row).collect();
    let mut out = columns::render(&columns, &rows, false);
    let disks = &answer.disks;
    out.push_str(&format!(
        "\ny is what one disk does at random, {:.0} a second; z its rate, {}/s.\n",
        disks.accesses_per_second,
        show_bytes(disks.rate)
    ));
    out
}

fn limit(limit: &Limit) -> String {
    match limit {
        Limit::Seeks => "seeks".into(),
        Limit::Disks => "disks".into(),
        Limit::Queue => "queue".into(),
        Limit::Network => "network".into(),
        Limit::Bus(name) => name.clone(),
        Limit::Parity(name) => format!("{name}, parity"),
    }
}

fn percent(chance: f64) -> String {
    match chance * 100.0 {
        percent if percent >= 0.01 => format!("{percent:.2}%"),
        percent if percent > 0.0 => format!("{percent:.0e}%"),
        _ => "0".into(),
    }
}

fn hours(seconds: f64) -> String {
    match seconds / 3600.0 {
        hours if hours >= 48.0 => format!("{:.1} d", hours / 24.0),
        hours if hours >= 1.0 => format!("{hours:.1} h"),
        hours => format!("{:.0} min", hours * 60.0),
    }
}

fn full(answer: &Answer) -> String {
    let mut columns = vec![
        Column::left("LAYOUT"),
        Column::right("USABLE"),
        Column::right("LOSS/YEAR"),
        Column::right("READS/S"),
        Column::right("WRITES/S"),
        Column::right("READ/S"),
        Column::right("WRITE/S"),
        Column::right("SCRUB"),
        Column::right("REBUILD"),
        Column::left("LIMITED BY"),
    ];
    let has_prices = answer.layouts.iter().any(|planned| planned.cost.is_some());
    if has_prices {
        columns.insert(9, Column::right("PER TB"));
        columns.insert(10, Column::right("PER IOPS"));
    }
    let row = |planned: &Planned| {
        let by = &planned.limited_by;
        let mut row = vec![
            planned.layout.to_string(),
            show_bytes(planned.usable_bytes),
            percent(planned.loss_per_year),
            format!("{:.0}", planned.read_iops),
            format!("{:.0}", planned.write_iops),
            nice_bytes(planned.read_rate as u64),
            nice_bytes(planned.write_rate as u64),
            hours(planned.scrub_seconds),
            planned.rebuild_seconds.map_or_else(|| "-".into(), hours),
        ];
        if has_prices {
            let cost = |cost: Option<f64>| cost.map_or_else(|| "-".into(), |it| format!("{it:.2}"));
            row.push(cost(planned.cost.map(|cost| cost.per_terabyte)));
            row.push(cost(planned.cost.map(|cost| cost.per_read_iops)));
        }
        let limits = [&by.read_iops, &by.write_iops, &by.read_rate, &by.write_rate];
        row.push(limits.map(limit).join(" "));
        row
    };
    let rows: Vec<Vec<String>> = answer.layouts.iter().map(row).collect();
    let mut out = columns::render(&columns, &rows, false);
    let load = &answer.load;
    out.push_str(&format!(
        "\nRandom reads and writes of {}, {} at a time. LIMITED BY: of the four rates, in order.\n",
        nice_bytes(load.block_bytes),
        load.depth
    ));
    for note in &answer.notes {
        out.push_str(&format!("{}\n", note.sentence()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::plan::sizes::log_size;

    /// The two figures of the story: 125 MB/s for 8 seconds, and 1.51 GB that were seen.
    #[test]
    fn a_log_device_is_planned_by_the_network_and_by_what_was_seen() {
        let told = |network: Option<u64>, seen_bytes| {
            let log = Log {
                pool: "tank".into(),
                network,
                interval: None,
                json: false,
            };
            log.told(&PlanLogReply {
                seen_bytes,
                seconds: 8.0,
                size: log_size(network, 8.0, seen_bytes),
            })
        };
        let by_network = told(Some(125_000_000), None);
        assert!(
            by_network.starts_with("125 MB/s for 8 seconds"),
            "{by_network}"
        );
        assert!(by_network.contains("bigger than 2.00 GB"), "{by_network}");
        let both = told(Some(125_000_000), Some(1_510_000_000));
        assert!(both.contains("held 1.51 GB at most"), "{both}");
        // What was seen counts.
        assert!(both.contains("bigger than 2.26 GB") || both.contains("bigger than 2.27 GB"));
        assert_eq!(told(None, None), "");
    }

    #[test]
    fn a_forecast_of_dedup_tells_its_error_only_where_there_is_one() {
        let mut reply = PlanDedupReply {
            sampled: 1.0,
            ratio: 1.5,
            ..PlanDedupReply::default()
        };
        let told = Dedup::told(&reply);
        assert!(told.ends_with("\ndedup = 1.50\n"), "{told}");
        (reply.sampled, reply.ratio_error, reply.unreadable) = (0.125, 0.04, 2);
        reply.table.entries = 7;
        let told = Dedup::told(&reply);
        assert!(told.contains("DDT entries 7"), "{told}");
        let end = "dedup = 1.50 ± 0.04 (by 12.500 % of the blocks)\n2 blocks of pointers could \
                   not be read; scrub the pool\n";
        assert!(told.ends_with(end), "{told}");
    }

    #[test]
    fn multiples_and_chances_are_short() {
        assert_eq!(multiple(12.0, 'y'), "12y");
        assert_eq!(multiple(3.25, 'z'), "3.2z");
        assert_eq!(percent(0.0234), "2.34%");
        assert_eq!(percent(0.000_000_5), "5e-5%");
        assert_eq!(hours(7200.0), "2.0 h");
        assert_eq!(hours(300_000.0), "3.5 d");
    }
}
