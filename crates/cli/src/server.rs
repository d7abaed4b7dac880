//! `millpond up`, `millpond daemon`, `millpond down`, `millpond info`.

use std::path::PathBuf;

use api::{Protocol, ServerInfo, ServerStop};
use clap::Args;

use crate::client::Client;

/// Options of the server.
#[derive(Debug, Args)]
pub struct Daemon {
    /// Where iSCSI listens; several times for several portals of one portal group
    #[arg(long, default_value = "127.0.0.1:3260")]
    iscsi: Vec<std::net::SocketAddr>,
    /// Most sessions of iSCSI initiators (default: 4096)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    iscsi_sessions: Option<u16>,
    /// Most connections of one iSCSI session (default: 8)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    iscsi_connections: Option<u16>,
    /// Most memory for what iSCSI sessions have under way (default: a quarter of the cache's)
    #[arg(long)]
    iscsi_memory: Option<String>,
    /// Where NFS listens
    #[arg(long, default_value = "127.0.0.1:2049")]
    nfs: std::net::SocketAddr,
    /// Answer NFS clients on port 111 too, where they look for the lock manager
    #[arg(long)]
    portmapper: bool,
    /// Share with everybody on the network where millpond:iscsi names no secret, sharenfs nobody
    #[arg(long)]
    insecure: bool,
    /// Most memory for the cache, such as 2G (default: a quarter of the machine's)
    #[arg(long)]
    cache: Option<String>,
}

/// Options of `millpond up`.
#[derive(Debug, Args)]
pub struct Up {
    #[command(flatten)]
    daemon: Daemon,
    /// Size of the default pool's disks together, such as 100G (default: by the free space)
    #[arg(long)]
    size: Option<String>,
    /// Where the default pool's filesystem appears (default: STATE/mnt)
    #[arg(long)]
    mountpoint: Option<PathBuf>,
}

fn size(text: Option<&str>) -> anyhow::Result<Option<u64>> {
    text.map(|text| dataset::props::parse_size(text).map_err(anyhow::Error::msg))
        .transpose()
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
    fn options(&self, state: PathBuf) -> anyhow::Result<daemon::Options> {
        Ok(daemon::Options {
            state,
            iscsi_addresses: self.iscsi.clone(),
            iscsi_sessions: self.iscsi_sessions.map(usize::from),
            iscsi_connections: self.iscsi_connections,
            iscsi_memory_bytes: size(self.iscsi_memory.as_deref())?,
            iscsi_insecure: self.insecure,
            nfs_address: self.nfs,
            nfs_insecure: self.insecure,
            nfs_portmapper: self.portmapper,
            cache_bytes: size(self.cache.as_deref())?,
        })
    }

    /// Runs the server until it is told to stop.
    pub fn run(self, state: PathBuf) -> anyhow::Result<()> {
        log_to_stderr();
        daemon::run(self.options(state)?, None).map_err(complete)
    }
}

impl Up {
    /// Runs the server with the default pool until Ctrl-C.
    pub fn run(self, state: PathBuf) -> anyhow::Result<()> {
        log_to_stderr();
        let default_pool = daemon::DefaultPool {
            size_bytes: size(self.size.as_deref())?,
            mountpoint: self.mountpoint.map(std::path::absolute).transpose()?,
        };
        daemon::run(self.daemon.options(state)?, Some(default_pool)).map_err(complete)
    }
}

/// Stops the server, if one runs. Returns when its pools are exported.
pub fn down(client: &Client) -> anyhow::Result<()> {
    if client.call_if_running(&ServerStop {})?.is_none() {
        println!("no server runs");
    }
    Ok(())
}

/// What a protocol is called.
pub(crate) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Iscsi => "iscsi",
        Protocol::Nfs => "nfs",
    }
}

/// Prints what the server does.
pub fn info(client: &Client) -> anyhow::Result<()> {
    let Some(info) = client.call_if_running(&ServerInfo {})? else {
        println!("no server runs; 'millpond up' starts one");
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
        if share.protocol == Protocol::Nfs {
            println!(
                "nfs: {} at {} ({})",
                share.name, share.address, share.dataset
            );
            continue;
        }
        let who = match (&share.user, &share.mutual) {
            (Some(user), None) => format!("CHAP as {user}"),
            (Some(user), Some(mutual)) => format!("CHAP as {user}, mutual with secret {mutual}"),
            (None, _) => "no CHAP".into(),
        };
        let others: String = share
            .other_addresses
            .iter()
            .map(|address| format!(" and {address}"))
            .collect();
        println!(
            "{}: {} at {}{others} ({}), {who}",
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
    Ok(())
}
