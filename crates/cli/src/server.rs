//! `millpond up`, `millpond daemon`, `millpond start`, `millpond down`, `millpond info`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use api::{Protocol, ServerInfo};
use clap::Args;

use crate::client::Client;

/// Options of the server.
#[derive(Debug, Args)]
pub struct Daemon {
    /// Where iSCSI listens; several times for several portals of one portal group
    #[arg(long, default_value = "127.0.0.1:3260")]
    iscsi: Vec<SocketAddr>,
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
    nfs: SocketAddr,
    /// Answer NFS clients on port 111 too, where they look for the lock manager
    #[arg(long)]
    portmapper: bool,
    /// Share with everybody on the network where millpond:iscsi names no secret, sharenfs nobody
    #[arg(long)]
    insecure: bool,
    /// Where SMB listens while something is shared by it, or 'off' (default: port 445 of every
    /// address; with 'up' of 127.0.0.1, or another one that is free)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = smb)]
    smb: Option<daemon::SmbListen>,
    /// Where the console and the API are offered over the network, or 'off' (default:
    /// 127.0.0.1:8443, or another port that is free)
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = https)]
    https: Option<daemon::Https>,
    /// File with the certificate for that, and those above it, in PEM (default: one that the
    /// server makes); it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// File with the certificate's key, in PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// The UPS that the power comes from, as NUT's server tells of it: pools are exported before
    /// its battery is empty (default host: localhost, port 3493)
    #[arg(long, value_name = "NAME[@HOST[:PORT]]")]
    ups: Option<daemon::UpsAddress>,
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

/// Where SMB listens by default.
const SMB_EVERYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 445);
const SMB_HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 445);

fn smb(text: &str) -> Result<daemon::SmbListen, String> {
    match text {
        "off" => Ok(daemon::SmbListen::Off),
        address => match address.parse() {
            Ok(address) => Ok(daemon::SmbListen::At(address)),
            Err(_) => Err("write an address and a port, such as 192.0.2.1:445, or 'off'".into()),
        },
    }
}

/// Where the console is by default.
const HTTPS_HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8443);

fn https(text: &str) -> Result<daemon::Https, String> {
    match text {
        "off" => Ok(daemon::Https::Off),
        address => match address.parse() {
            Ok(address) => Ok(daemon::Https::At(address)),
            Err(_) => Err("write an address and a port, such as 192.0.2.1:8443, or 'off'".into()),
        },
    }
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
    fn options(&self, state: PathBuf, smb: daemon::SmbListen) -> anyhow::Result<daemon::Options> {
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
            smb: self.smb.unwrap_or(smb),
            https: self.https.unwrap_or(daemon::Https::Near(HTTPS_HERE)),
            certificate: self.certificate.clone().zip(self.key.clone()),
            cache_bytes: size(self.cache.as_deref())?,
            ups: self.ups.clone(),
        })
    }

    /// Runs the server until it is told to stop.
    pub fn run(self, state: PathBuf) -> anyhow::Result<()> {
        log_to_stderr();
        let smb = daemon::SmbListen::At(SMB_EVERYWHERE);
        daemon::run(self.options(state, smb)?, None).map_err(complete)
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
        let smb = daemon::SmbListen::Near(SMB_HERE);
        daemon::run(self.daemon.options(state, smb)?, Some(default_pool)).map_err(complete)
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
pub fn info(client: &Client) -> anyhow::Result<()> {
    let Some(info) = client.call_if_running(&ServerInfo {})? else {
        print_none_runs(client);
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
    Ok(())
}
