//! `millpond up`, `millpond daemon`, `millpond start`, `millpond down`, `millpond info`.

use std::path::PathBuf;

use api::{OptionSource, Protocol, ServerInfo, ServerOption};
use clap::Args;

use crate::client::Client;
use crate::memory;
use crate::options::{self, OptionFile, ServerOptions};

/// Options of `millpond daemon`.
#[derive(Debug, Args)]
pub struct Daemon {
    #[command(flatten)]
    options: ServerOptions,
}

/// Options of `millpond up`.
#[derive(Debug, Args)]
pub struct Up {
    #[command(flatten)]
    options: ServerOptions,
    /// Size of the default pool's disks together, such as 100G (default: by the free space)
    #[arg(long)]
    size: Option<String>,
    /// Where the default pool's filesystem appears (default: STATE/mnt)
    #[arg(long)]
    mountpoint: Option<PathBuf>,
}

/// Options of `millpond info`.
#[derive(Debug, Args)]
pub struct Info {
    /// Tell who has how much of the server's memory, and no more
    #[arg(long)]
    memory: bool,
    /// Print JSON, with exact numbers
    #[arg(short, long, requires = "memory")]
    json: bool,
}

/// The daemon's errors say their causes themselves.
fn complete(error: daemon::DaemonError) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}

/// Prints what the server has to say to stderr: warnings and errors, or what `MILLPOND_LOG` asks
/// for (`info`, `pool=debug`, ...).
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MILLPOND_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,fuser=error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}

impl Daemon {
    /// Runs the server until it is told to stop.
    pub fn run(self, state: PathBuf) -> anyhow::Result<()> {
        log_to_stderr();
        daemon::run(self.options.for_server(state, false)?, None).map_err(complete)
    }
}

impl Up {
    /// Runs the server with the default pool until Ctrl-C.
    pub fn run(self, state: PathBuf) -> anyhow::Result<()> {
        log_to_stderr();
        let default_pool = daemon::DefaultPool {
            size_bytes: options::size(self.size.as_deref())?,
            mountpoint: self.mountpoint.map(std::path::absolute).transpose()?,
        };
        let options = self.options.for_server(state, true)?;
        daemon::run(options, Some(default_pool)).map_err(complete)
    }
}

impl Info {
    /// Prints it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        if !self.memory {
            return info(client);
        }
        if !memory::print(client, self.json)? {
            print_none_runs(client);
        }
        Ok(())
    }
}

/// Stops the server, if one runs. Returns when its pools are exported. No command starts it again
/// by itself.
pub fn down(client: &Client) -> anyhow::Result<()> {
    let waits = || println!("the server still imports its pools; it is stopped as soon as it has");
    if !client.stop_server(waits)? {
        client.stay_stopped()?;
        println!("no server runs");
    }
    Ok(())
}

/// Says that there is no server that could be asked.
pub(crate) fn print_none_runs(client: &Client) {
    match client.is_starting() {
        true => println!("the server does not answer yet: it imports its pools"),
        false => println!("no server runs; 'millpond up' starts one"),
    }
}

/// What a protocol is called.
pub(crate) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Iscsi => "iscsi",
        Protocol::Nfs => "nfs",
        Protocol::Smb => "smb",
    }
}

/// Prints what the server does.
fn info(client: &Client) -> anyhow::Result<()> {
    let Some(info) = client.call_if_running(&ServerInfo {})? else {
        print_none_runs(client);
        if !client.is_starting() {
            let file = OptionFile::read(&client.state().join(options::FILE));
            match file.and_then(|file| file.settings()) {
                Ok(settings) => print_options(&settings),
                Err(error) => eprintln!("{error}"),
            }
        }
        return Ok(());
    };
    println!(
        "millpond {} runs as process {}",
        info.version, info.process_id
    );
    println!(
        "pools: {}",
        if info.pools.is_empty() {
            "none".into()
        } else {
            info.pools.join(", ")
        }
    );
    for share in &info.shares {
        let who = match share.protocol {
            Protocol::Iscsi => match (&share.user, &share.mutual) {
                (Some(user), None) => ", CHAP as ".to_owned() + user,
                (Some(user), Some(mutual)) => {
                    format!(", CHAP as {user}, mutual with secret {mutual}")
                }
                (None, _) => ", no CHAP".into(),
            },
            // Who is let in is told in the words of sharenfs.
            Protocol::Nfs => String::new(),
            Protocol::Smb if share.is_open => ", everybody".into(),
            Protocol::Smb if share.only.is_empty() => ", all users".into(),
            Protocol::Smb => format!(", only {}", share.only.join(", ")),
        };
        let others: String = share
            .other_addresses
            .iter()
            .map(|address| format!(" and {address}"))
            .collect();
        println!(
            "{}: {} at {}{others} ({}){who}",
            protocol(share.protocol),
            share.name,
            share.address,
            share.dataset
        );
    }
    for refused in &info.not_shared {
        println!(
            "not shared by {}: {}: {}",
            protocol(refused.protocol),
            refused.dataset,
            refused.why
        );
    }
    print_options(&info.options);
    Ok(())
}

/// Prints options of the server, and who says them.
fn print_options(options: &[ServerOption]) {
    for option in options {
        let who = match option.source {
            OptionSource::CommandLine => "command line",
            OptionSource::File => options::FILE,
            OptionSource::Default => "default",
        };
        println!("option {}: {} ({who})", option.name, option.value);
    }
}
