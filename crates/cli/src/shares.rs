//! `millpond shares`: what is shared on the network, and who uses it.

use api::{ShareClient, ShareList, ShareTraffic};
use clap::Args;

use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::{nice_bytes, nice_count};
use crate::server::protocol;

/// Options of `millpond shares`.
#[derive(Debug, Args)]
pub struct Shares {
    /// No header, and one tab between columns
    #[arg(short = 'H', action = clap::ArgAction::Count)]
    scripted: u8,
    /// Exact numbers
    #[arg(short = 'p', action = clap::ArgAction::Count)]
    parseable: u8,
}

impl Shares {
    /// Prints a line for each share, and below it one for each of its clients.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let Some(reply) = client.call_if_running(&ShareList {})? else {
            println!("no server runs; 'millpond up' starts one");
            return Ok(());
        };
        let headings = ["SHARE", "BY", "DATASET", "CLIENT"];
        let numbers = ["OPS", "READS", "READ", "WRITES", "WRITTEN"];
        let columns: Vec<Column> = headings
            .into_iter()
            .map(Column::left)
            .chain(numbers.into_iter().map(Column::right))
            .collect();
        let mut rows = Vec::new();
        for share in &reply.shares {
            let row = |client: String, traffic: Option<&ShareTraffic>| {
                let mut row = vec![
                    share.name.clone(),
                    protocol(share.protocol).to_owned(),
                    share.dataset.clone(),
                    client,
                ];
                row.extend(self.numbers(traffic));
                row
            };
            rows.push(row(all_clients(&share.clients), share.traffic.as_ref()));
            for client in &share.clients {
                rows.push(row(name_of(client), Some(&client.traffic)));
            }
        }
        print!("{}", columns::render(&columns, &rows, self.scripted > 0));
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

    fn numbers(&self, traffic: Option<&ShareTraffic>) -> Vec<String> {
        let Some(traffic) = traffic else {
            return vec!["-".to_owned(); 5];
        };
        let count = |number: u64| match self.parseable {
            0 => nice_count(number),
            _ => number.to_string(),
        };
        let bytes = |number: u64| match self.parseable {
            0 => nice_bytes(number),
            _ => number.to_string(),
        };
        vec![
            count(traffic.operations),
            count(traffic.reads),
            bytes(traffic.read_bytes),
            count(traffic.writes),
            bytes(traffic.written_bytes),
        ]
    }
}

/// How many clients a share has now.
fn all_clients(clients: &[ShareClient]) -> String {
    let connected = clients.iter().filter(|client| client.is_connected).count();
    format!("{connected} connected")
}

fn name_of(client: &ShareClient) -> String {
    match client.is_connected {
        true => client.address.clone(),
        false => format!("{} (gone)", client.address),
    }
}
