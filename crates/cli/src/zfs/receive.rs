//! `zfs receive` (zfs-receive(8), `zfs_do_receive` in cmd/zfs/zfs_main.c).

use anyhow::bail;
use api::{ReceiveNaming, ReceivedReport, ZfsReceive, ZfsReceiveAbort};
use clap::Args;

use crate::client::Client;
use crate::numbers;
use crate::settings::assignments;
use crate::usage::{self, Usage};

/// Make snapshots of streams.
#[derive(Debug, Args)]
pub struct Receive {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Give up what was changed since the snapshot that the stream follows
    #[arg(short = 'F')]
    force: bool,
    /// Take all of the sent name but the pool's
    #[arg(short = 'd', conflicts_with = "last_only")]
    without_pool: bool,
    /// Take the last component of the sent name
    #[arg(short = 'e')]
    last_only: bool,
    /// Leave holds out
    #[arg(short = 'h')]
    skip_holds: bool,
    /// Put damaged blocks of a snapshot right that is there already
    #[arg(
        short = 'c',
        conflicts_with_all = [
            "force", "without_pool", "last_only", "skip_holds", "resumable", "no_mount", "abort",
            "set", "exclude",
        ]
    )]
    corrective: bool,
    /// Unmount what is in use
    #[arg(short = 'M')]
    force_unmount: bool,
    /// Only say what would be received
    #[arg(short = 'n')]
    dry_run: bool,
    /// Keep what came before a break, to go on with
    #[arg(short = 's')]
    resumable: bool,
    /// Do not mount
    #[arg(short = 'u')]
    no_mount: bool,
    /// Say what is received
    #[arg(short)]
    verbose: bool,
    /// Give up what an interrupted receive left
    #[arg(short = 'A', conflicts_with_all = ["force", "dry_run", "resumable"])]
    abort: bool,
    /// PROPERTY=VALUE, or origin=SNAPSHOT
    #[arg(short = 'o')]
    set: Vec<String>,
    /// PROPERTY
    #[arg(short = 'x')]
    exclude: Vec<String>,
    /// Filesystem, volume or snapshot
    target: String,
}

impl Receive {
    /// Hands the stream at standard input to the daemon, and prints.
    pub fn run(self, client: &Client, command: String) -> anyhow::Result<()> {
        if self.abort {
            if self.target.contains('@') {
                let why = "snapshot delimiter '@' is not expected here";
                bail_usage!("cannot open '{}': {why}", self.target);
            }
            let aborted = client.call(&ZfsReceiveAbort {
                name: self.target,
                command,
            });
            return aborted.map(drop).map_err(usage::of_absent);
        }
        if rustix::termios::isatty(std::io::stdin()) {
            bail!(
                "Error: Backup stream can not be read from a terminal.\n\
                 You must redirect standard input."
            );
        }
        let mut set = assignments(&self.set).map_err(|error| Usage(format!("{error:#}")))?;
        let origin = set.shift_remove("origin");
        // `parsepropname`: `-x` takes a name alone, and each property goes with one option.
        for (at, name) in self.exclude.iter().enumerate() {
            if name.contains('=') {
                bail_usage!(
                    "invalid character '=' in property argument\n'{name}': -x takes a name"
                );
            }
            if set.contains_key(name) || self.exclude[..at].contains(name) {
                bail_usage!("property '{name}' specified multiple times");
            }
        }
        for (given, letter) in [(self.without_pool, 'd'), (self.last_only, 'e')] {
            if given && self.target.contains('@') {
                bail!(
                    "cannot receive: invalid argument - snapshot not allowed with -{letter}\n\
                     give a filesystem or volume"
                );
            }
        }
        let naming = match (self.without_pool, self.last_only) {
            (true, _) => ReceiveNaming::WithoutPool,
            (_, true) => ReceiveNaming::LastOnly,
            _ => ReceiveNaming::Exact,
        };
        let parent = self.target.split('@').next().unwrap_or_default();
        let parent = parent.rsplit_once('/').map(|(above, _)| above);
        let is_typed = set.get("keylocation").is_none_or(|at| at == "prompt");
        let has_format = set.get("keyformat").is_some_and(|format| format != "none");
        if has_format && is_typed {
            bail!(
                "a new key cannot be typed in: the stream comes from standard input; give \
                 -o keylocation=file:///PATH or https://URL"
            );
        }
        let key = super::keys::of_new(client, parent, &mut set)?;
        let reply = client.send_stream(&ZfsReceive {
            target: self.target,
            naming,
            force: self.force,
            resumable: self.resumable,
            no_mount: self.no_mount,
            dry_run: self.dry_run,
            force_unmount: self.force_unmount,
            skip_holds: self.skip_holds,
            corrective: self.corrective,
            origin,
            set,
            exclude: self.exclude,
            key,
            command,
            guard: api::ReceiveGuard::None,
        })?;
        if self.verbose {
            for received in &reply.received {
                print!("{}", told(received, self.dry_run));
            }
        }
        for warning in &reply.warnings {
            eprintln!("warning: {warning}");
        }
        Ok(())
    }
}

/// What is said of a stream.
fn told(received: &ReceivedReport, is_dry: bool) -> String {
    let kind = match received.is_full {
        true => "full",
        false => "incremental",
    };
    let doing = match is_dry {
        true => "would receive",
        false => "receiving",
    };
    if received.is_skipped {
        return format!("snap {} already exists; ignoring\n", received.name);
    }
    let corrective = match received.healed_blocks {
        Some(_) => "corrective ",
        None => "",
    };
    let mut text = format!(
        "{doing} {corrective}{kind} stream of {} into {}\n",
        received.sent, received.name
    );
    if !is_dry {
        let seconds = (received.duration_ms as f64 / 1000.0).max(0.01);
        let rate = (received.bytes as f64 / seconds) as u64;
        text.push_str(&format!(
            "received {} stream in {seconds:.2} seconds ({}/sec)\n",
            numbers::nice_bytes(received.bytes),
            numbers::nice_bytes(rate)
        ));
        if let Some(blocks) = received.healed_blocks {
            text.push_str(&format!("healed {blocks} damaged blocks\n"));
        }
    }
    text
}
