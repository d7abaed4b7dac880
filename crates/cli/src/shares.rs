//! `millpond shares`: what is shared on the network, who uses it and how much.

use api::{ShareList, ShareListReply, ShareTraffic};
use clap::Args;

use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::{nice_bytes, nice_count, nice_time};
use crate::server::protocol;

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
            println!("no server runs; 'millpond up' starts one");
            return Ok(());
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&reply)?);
            return Ok(());
        }
        let columns = [
            Column::left("SHARE"),
            Column::left("BY"),
            Column::left("CLIENT"),
            Column::left("ADDRESS"),
            Column::right("READS"),
            Column::right("READ"),
            Column::right("WAIT"),
            Column::right("WRITES"),
            Column::right("WRITTEN"),
            Column::right("WAIT"),
            Column::right("FAILED"),
        ];
        let rows = rows(&reply, self.parseable);
        print!("{}", columns::render(&columns, &rows, self.scripted));
        Ok(())
    }
}

/// A row for each share, with all that was ever done, and below it one for each client.
fn rows(reply: &ShareListReply, is_exact: bool) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for share in &reply.shares {
        let by = protocol(share.protocol);
        let row = |client: &str, address: &str, traffic: &ShareTraffic| {
            let start = [share.dataset.as_str(), by, client, address];
            let mut row: Vec<String> = start.into_iter().map(str::to_owned).collect();
            row.extend(numbers(traffic, is_exact));
            row
        };
        rows.push(row("-", "-", &share.traffic));
        for client in &share.clients {
            rows.push(row(&client.name, &client.address, &client.traffic));
        }
    }
    rows
}

fn numbers(traffic: &ShareTraffic, is_exact: bool) -> [String; 7] {
    let mean = |total_ns: u64, count: u64| total_ns.checked_div(count).unwrap_or(0);
    let exact = |number: u64| number.to_string();
    let shown = |nice: fn(u64) -> String| if is_exact { exact } else { nice };
    let (count, bytes, time) = (shown(nice_count), shown(nice_bytes), shown(nice_time));
    [
        count(traffic.reads),
        bytes(traffic.read_bytes),
        time(mean(traffic.read_ns, traffic.reads)),
        count(traffic.writes),
        bytes(traffic.written_bytes),
        time(mean(traffic.write_ns, traffic.writes)),
        count(traffic.failures),
    ]
}
