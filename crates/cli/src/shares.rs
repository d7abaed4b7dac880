//! `millpond shares`: what is shared on the network, who uses it and how much.

use api::{ShareClient, ShareList, ShareListReply, ShareReport, ShareTraffic};
use clap::Args;

use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::{nice_bytes, nice_count, nice_time};
use crate::server::protocol;

/// Headings of what is counted.
const NUMBERS: [&str; 8] = [
    "OPS", "READS", "READ", "WAIT", "WRITES", "WRITTEN", "WAIT", "FAILED",
];

/// Shares, their clients, and what these have read and written.
#[derive(Debug, Args)]
pub struct Shares {
    /// Exact numbers: bytes, operations, nanoseconds
    #[arg(short)]
    parseable: bool,
    /// No header, and one tab between columns
    #[arg(short = 'H')]
    scripted: bool,
    /// As JSON
    #[arg(short, long)]
    json: bool,
}

impl Shares {
    /// Prints them.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let Some(reply) = client.call_if_running(&ShareList {})? else {
            crate::server::print_none_runs(client);
            return Ok(());
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&reply)?);
            return Ok(());
        }
        let names = ["DATASET", "BY", "NAME", "CLIENT"];
        let columns: Vec<Column> = names
            .into_iter()
            .map(Column::left)
            .chain(NUMBERS.into_iter().map(Column::right))
            .collect();
        let rows = rows(&reply, self.parseable);
        print!("{}", columns::render(&columns, &rows, self.scripted));
        for refused in &reply.not_shared {
            eprintln!(
                "not shared by {}: {}: {}",
                protocol(refused.protocol),
                refused.dataset,
                refused.why
            );
        }
        Ok(())
    }
}

/// A row for each share, with all that was ever done, and below it one for each client.
fn rows(reply: &ShareListReply, is_exact: bool) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for ShareReport {
        share,
        traffic,
        clients,
    } in &reply.shares
    {
        let row = |name: &str, client: String, traffic: Option<&ShareTraffic>| {
            let start = [&share.dataset, protocol(share.protocol), name];
            let mut row: Vec<String> = start.into_iter().map(str::to_owned).collect();
            row.push(client);
            match traffic {
                Some(traffic) => row.extend(numbers(traffic, is_exact)),
                None => row.extend(NUMBERS.map(|_| "-".to_owned())),
            }
            row
        };
        rows.push(row(&share.name, all_clients(clients), traffic.as_ref()));
        for client in clients {
            let name = client.name.as_deref().unwrap_or("-");
            rows.push(row(name, place_of(client), client.traffic.as_ref()));
        }
    }
    rows
}

/// How many clients a share has now.
fn all_clients(clients: &[ShareClient]) -> String {
    let connected = clients.iter().filter(|client| client.is_connected).count();
    format!("{connected} connected")
}

fn place_of(client: &ShareClient) -> String {
    match client.is_connected {
        true => client.address.clone(),
        false => format!("{} (gone)", client.address),
    }
}

fn numbers(traffic: &ShareTraffic, is_exact: bool) -> [String; 8] {
    let mean = |total_ns: u64, count: u64| total_ns.checked_div(count).unwrap_or(0);
    let exact = |number: u64| number.to_string();
    let shown = |nice: fn(u64) -> String| if is_exact { exact } else { nice };
    let (count, bytes, time) = (shown(nice_count), shown(nice_bytes), shown(nice_time));
    [
        count(traffic.operations()),
        count(traffic.reads),
        bytes(traffic.read_bytes),
        time(mean(traffic.read_ns, traffic.reads)),
        count(traffic.writes),
        bytes(traffic.written_bytes),
        time(mean(traffic.write_ns, traffic.writes)),
        count(traffic.failures),
    ]
}
