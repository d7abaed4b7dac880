//! `millpond iscsi secret`: the secrets that initiators and targets prove who they are with;
//! `millpond iscsi check`: what the paths to a target carry.

mod advice;
mod check;
mod mtu;

use api::{IscsiSecretList, IscsiSecretRemove, IscsiSecretSet};
use clap::{Args, Subcommand};

use crate::client::Client;
use crate::columns::{self, Column};
use crate::prompt;

/// Who may log in to volumes shared by iSCSI, and what the paths to a target carry.
#[derive(Debug, Args)]
pub struct Iscsi {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Secrets for CHAP, which millpond:iscsi=on,chap=NAME shares a volume with
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Look at the paths from this host to an iSCSI target: packets, latency, rate
    Check(check::Check),
}

#[derive(Debug, Subcommand)]
enum SecretCommand {
    /// Make a secret, or replace it; it is asked for, or read from standard input
    Set {
        name: String,
        /// The CHAP user name that goes with it (default: its own name)
        #[arg(long)]
        user: Option<String>,
        /// Have a secret made up, and print it, once
        #[arg(long)]
        generate: bool,
    },
    /// List names and users, never secrets
    List,
    /// Remove a secret
    Remove {
        name: String,
        /// Also where volumes are shared with it; they are not any more then
        #[arg(short, long)]
        force: bool,
    },
}

impl Iscsi {
    /// Does it.
    pub fn run(self, client: impl FnOnce() -> anyhow::Result<Client>) -> anyhow::Result<()> {
        let command = match self.command {
            Command::Secret(command) => command,
            Command::Check(check) => return check.run(),
        };
        let client = &client()?;
        match command {
            SecretCommand::Set {
                name,
                user,
                generate,
            } => set(client, name, user, generate),
            SecretCommand::List => list(client),
            SecretCommand::Remove { name, force } => {
                client.call(&IscsiSecretRemove { name, force })?;
                Ok(())
            }
        }
    }
}

fn set(client: &Client, name: String, user: Option<String>, generate: bool) -> anyhow::Result<()> {
    let secret = match generate {
        true => None,
        false => Some(prompt::chosen(&format!("Secret for '{name}':"))?),
    };
    let reply = client.call(&IscsiSecretSet { name, user, secret })?;
    if let Some(warning) = reply.warning {
        eprintln!("warning: {warning}");
    }
    if let Some(secret) = reply.generated {
        println!("{}", secret.0);
    }
    Ok(())
}

fn list(client: &Client) -> anyhow::Result<()> {
    let columns = [
        Column::left("NAME"),
        Column::left("USER"),
        Column::left("USED BY"),
    ];
    let secrets = client.call(&IscsiSecretList {})?.secrets.into_iter();
    let rows: Vec<Vec<String>> = secrets
        .map(|secret| {
            let used_by = match secret.used_by.is_empty() {
                true => "-".into(),
                false => secret.used_by.join(","),
            };
            vec![secret.name, secret.user, used_by]
        })
        .collect();
    print!("{}", columns::render(&columns, &rows, false));
    Ok(())
}
