//! `millpond apikey`: keys for programs that use the API over the network.

use std::time::{Duration, SystemTime};

use api::{ApiKeyList, ApiKeyMake, ApiKeyRemove, Replica};
use clap::{Args, Subcommand};

use crate::client::Client;
use crate::columns::{self, Column};
use crate::user::{self, Role};

/// For how many days what comes with the key of a replication is not destroyed with it, where
/// nothing else is said: whoever notices within a week that its source was taken over has it all.
const KEEP_DAYS: u32 = 7;

/// Keys for programs that use the API over the network.
#[derive(Debug, Args)]
pub struct Apikey {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a key and print it, this only time
    Make {
        /// What it is for
        name: String,
        /// What may be done with it
        #[arg(long, default_value = "viewer")]
        role: Role,
        /// For replications alone, into this filesystem or volume and below it, whatever is there
        #[arg(long, value_name = "DATASET", conflicts_with = "role")]
        replica: Option<String>,
        /// What comes with it is not destroyed with it for so many days
        #[arg(long, value_name = "DAYS", requires = "replica", default_value_t = KEEP_DAYS)]
        keep_days: u32,
        /// After so many days it is not taken any more (default: never)
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..))]
        days: Option<u32>,
    },
    /// List keys
    List,
    /// Remove a key, by its ID
    Remove { id: String },
}

impl Apikey {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        match self.command {
            Command::Make {
                name,
                role,
                replica,
                keep_days,
                days,
            } => {
                let expires_s = days.map(|days| {
                    let time = SystemTime::now() + Duration::from_secs(u64::from(days) * 86_400);
                    let since = time.duration_since(SystemTime::UNIX_EPOCH);
                    since.map_or(0, |since| since.as_secs())
                });
                let role = role.into();
                let call = ApiKeyMake {
                    name,
                    role,
                    replica: replica.map(|dataset| Replica { dataset, keep_days }),
                    expires_s,
                };
                println!("{}", client.call(&call)?.key.0);
            }
            Command::List => list(client)?,
            Command::Remove { id } => {
                client.call(&ApiKeyRemove { id })?;
            }
        }
        Ok(())
    }
}

fn list(client: &Client) -> anyhow::Result<()> {
    let columns = ["ID", "NAME", "ROLE", "MADE BY", "EXPIRES", "LAST USED"].map(Column::left);
    let keys = client.call(&ApiKeyList {})?.keys.into_iter();
    let rows: Vec<Vec<String>> = keys
        .map(|key| {
            vec![
                key.id,
                key.name,
                match &key.replica {
                    Some(replica) => format!("replica {}", replica.dataset),
                    None => user::role_word(key.role).into(),
                },
                key.made_by.unwrap_or_else(|| "-".into()),
                user::day(key.expires_s),
                user::day(key.last_used_s),
            ]
        })
        .collect();
    print!("{}", columns::render(&columns, &rows, false));
    Ok(())
}
