//! `millpond user`: who may log in by SMB.

use api::{SmbUserAdd, SmbUserList, SmbUserPassword, SmbUserRemove};
use clap::{Args, Subcommand};

use crate::client::Client;
use crate::columns::{self, Column};
use crate::prompt;

/// Who may log in by SMB.
#[derive(Debug, Args)]
pub struct User {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Let a user of the system log in; the password is asked for, or read from standard input
    Add {
        /// The user's name in the system
        name: String,
    },
    /// Change a password; it is asked for, or read from standard input
    Passwd { name: String },
    /// List users
    List,
    /// Let a user log in no more, and end what connections there are
    Remove { name: String },
}

impl User {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        match self.command {
            Command::Add { name } => {
                let password = prompt::chosen(&format!("Password for '{name}':"))?;
                client.call(&SmbUserAdd { name, password })?;
            }
            Command::Passwd { name } => {
                let password = prompt::chosen(&format!("New password for '{name}':"))?;
                client.call(&SmbUserPassword { name, password })?;
            }
            Command::List => list(client)?,
            Command::Remove { name } => {
                client.call(&SmbUserRemove { name })?;
            }
        }
        Ok(())
    }
}

fn list(client: &Client) -> anyhow::Result<()> {
    let columns = [Column::left("NAME"), Column::left("UID")];
    let users = client.call(&SmbUserList {})?.users.into_iter();
    let rows: Vec<Vec<String>> = users
        .map(|user| vec![user.name, user.uid.to_string()])
        .collect();
    print!("{}", columns::render(&columns, &rows, false));
    Ok(())
}
