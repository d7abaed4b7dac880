//! `millpond user`: who may log in, to the console and by SMB.
//!
//! To people a user is one thing, who may have a role, or be let in by SMB, or both. The server
//! keeps them apart: Samba has hashes of its own, and its users are those of the system.

use anyhow::bail;
use api::{
    Failure, FailureKind, SmbUserAdd, SmbUserList, SmbUserPassword, SmbUserRemove, UserAdd,
    UserChange, UserList, UserRemove,
};
use chrono::{DateTime, Local};
use clap::{Args, Subcommand, ValueEnum};

use crate::client::Client;
use crate::columns::{self, Column};
use crate::prompt;

/// Who may log in: to the console, and by SMB.
#[derive(Debug, Args)]
pub struct User {
    #[command(subcommand)]
    command: Command,
}

/// What somebody may do over the network.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Role {
    /// Looks
    Viewer,
    /// Everything but users, keys, secrets, which pools there are, and stopping the server
    Operator,
    /// Everything
    Admin,
}

impl From<Role> for api::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Viewer => Self::Viewer,
            Role::Operator => Self::Operator,
            Role::Admin => Self::Admin,
        }
    }
}

/// What a role is called.
pub fn role_word(role: api::Role) -> &'static str {
    match role {
        api::Role::Viewer => "viewer",
        api::Role::Operator => "operator",
        api::Role::Admin => "admin",
    }
}

/// A day, as tables have it.
pub fn day(seconds: Option<u64>) -> String {
    let time = seconds.and_then(|seconds| DateTime::from_timestamp(seconds.try_into().ok()?, 0));
    time.map_or_else(
        || "-".into(),
        |time| time.with_timezone(&Local).format("%Y-%m-%d").to_string(),
    )
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Let a user log in by SMB, or with --role to the console; the password is asked for, or read
    /// from standard input
    Add {
        /// The user's name; for SMB, that in the system
        name: String,
        /// Let them log in to the console, and do so much there
        #[arg(long)]
        role: Option<Role>,
        /// Let them log in by SMB, which is so without --role anyway
        #[arg(long)]
        smb: bool,
    },
    /// Change a password; it is asked for, or read from standard input
    Passwd { name: String },
    /// Change what a user of the console may do
    Role { name: String, role: Role },
    /// Have logging in to the console take the six digits of an authenticator app as well; prints
    /// what that is given, this only time
    Totp {
        name: String,
        /// No more
        #[arg(long)]
        off: bool,
    },
    /// List users
    List,
    /// Let a user log in no more, and end what connections and sessions there are
    Remove { name: String },
}

impl User {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        match self.command {
            Command::Add { name, role, smb } => {
                let password = prompt::chosen(&format!("Password for '{name}':"))?;
                if let Some(role) = role {
                    let (name, password) = (name.clone(), password.clone());
                    client.call(&UserAdd {
                        name,
                        role: role.into(),
                        password,
                    })?;
                }
                if smb || role.is_none() {
                    client.call(&SmbUserAdd { name, password })?;
                }
            }
            Command::Passwd { name } => {
                let (has_role, has_smb) = kinds(client, &name)?;
                let password = prompt::chosen(&format!("New password for '{name}':"))?;
                if has_role {
                    client.call(&UserChange {
                        name: name.clone(),
                        password: Some(password.clone()),
                        ..UserChange::default()
                    })?;
                }
                if has_smb {
                    client.call(&SmbUserPassword { name, password })?;
                }
            }
            Command::Role { name, role } => {
                client.call(&UserChange {
                    name,
                    role: Some(role.into()),
                    ..UserChange::default()
                })?;
            }
            Command::Totp { name, off } => {
                let changed = client.call(&UserChange {
                    name,
                    totp: Some(!off),
                    ..UserChange::default()
                })?;
                if let Some(uri) = changed.totp_uri {
                    println!("{}", uri.0);
                }
            }
            Command::List => list(client)?,
            Command::Remove { name } => {
                let (has_role, has_smb) = kinds(client, &name)?;
                if has_smb {
                    client.call(&SmbUserRemove { name: name.clone() })?;
                }
                if has_role {
                    client.call(&UserRemove { name })?;
                }
            }
        }
        Ok(())
    }
}

/// The users of SMB with their numbers in the system; none where there is no SMB.
fn smb_users(client: &Client) -> anyhow::Result<Option<Vec<(String, u32)>>> {
    match client.call(&SmbUserList {}) {
        Ok(reply) => Ok(Some(
            reply
                .users
                .into_iter()
                .map(|user| (user.name, user.uid))
                .collect(),
        )),
        Err(error) => match error.downcast_ref::<Failure>() {
            Some(failure) if failure.kind == FailureKind::Unsupported => Ok(None),
            _ => Err(error),
        },
    }
}

/// Whether a user has a role, and whether SMB lets it in.
fn kinds(client: &Client, name: &str) -> anyhow::Result<(bool, bool)> {
    let roles = client.call(&UserList {})?.users;
    let has_role = roles.iter().any(|user| user.name == name);
    let has_smb = match smb_users(client) {
        Ok(users) => users.is_some_and(|users| users.iter().any(|user| user.0 == name)),
        Err(error) if has_role => {
            eprintln!("{error}");
            false
        }
        Err(error) => return Err(error),
    };
    if !has_role && !has_smb {
        bail!("there is no user '{name}'; 'millpond user add {name}' makes one");
    }
    Ok((has_role, has_smb))
}

fn list(client: &Client) -> anyhow::Result<()> {
    let columns = ["NAME", "UID", "SMB", "ROLE", "TOTP", "LAST LOGIN"].map(Column::left);
    let roles = client.call(&UserList {})?.users;
    let smb = smb_users(client)?.unwrap_or_default();
    let uid_of = |name: &str| smb.iter().find(|user| user.0 == name).map(|user| user.1);
    let yes_or = |is: bool| if is { "yes" } else { "-" }.to_owned();
    let mut rows: Vec<Vec<String>> = roles
        .iter()
        .map(|user| {
            let uid = uid_of(&user.name);
            vec![
                user.name.clone(),
                uid.map_or_else(|| "-".into(), |uid| uid.to_string()),
                yes_or(uid.is_some()),
                role_word(user.role).into(),
                yes_or(user.totp),
                day(user.last_login_s),
            ]
        })
        .collect();
    for (name, uid) in &smb {
        if !roles.iter().any(|user| user.name == *name) {
            let dash = || "-".to_owned();
            rows.push(vec![
                name.clone(),
                uid.to_string(),
                "yes".into(),
                dash(),
                dash(),
                dash(),
            ]);
        }
    }
    rows.sort();
    print!("{}", columns::render(&columns, &rows, false));
    Ok(())
}
