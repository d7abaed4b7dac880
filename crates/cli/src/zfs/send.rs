//! `zfs send` (zfs-send(8), `zfs_do_send` in cmd/zfs/zfs_main.c).

use std::io::Write;

use anyhow::bail;
use api::{Job, ZfsList, ZfsSend, ZfsSendPlan, ZfsSendPlanReply};
use clap::Args;
use serde_json::{Value, json};

use crate::client::Client;
use crate::numbers;
use crate::usage::{MINUS_ONE, Status};

/// Make streams of snapshots, or of what filesystems and volumes are now.
#[derive(Debug, Args)]
pub struct Send {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Blocks of more than 128 KiB stay whole
    #[arg(short = 'L', long = "large-block")]
    large_blocks: bool,
    /// Blocks that are in their pointers stay there
    #[arg(short, long = "embed")]
    embedded: bool,
    /// Blocks stay compressed
    #[arg(short, long = "compressed")]
    compressed: bool,
    /// Blocks stay as they are stored
    #[arg(short = 'w', long = "raw")]
    raw: bool,
    /// Properties as they were received
    #[arg(short, long)]
    backup: bool,
    /// Holds, too
    #[arg(short = 'h', long)]
    holds: bool,
    /// Encrypted datasets may be sent with properties in the clear
    #[arg(short = 'U', long)]
    no_preserve_encryption: bool,
    /// Datasets below it, too, with properties
    #[arg(short = 'R', long)]
    replicate: bool,
    /// Leave out datasets that lack the snapshot
    #[arg(short, long)]
    skip_missing: bool,
    /// Leave out these datasets, and all below them; separated by commas
    #[arg(short = 'X', long, value_name = "DATASET", value_delimiter = ',')]
    exclude: Vec<String>,
    /// Without effect: streams are not deduplicated
    #[arg(short = 'D', long = "dedup", hide = true)]
    dedup: bool,
    /// Properties, too
    #[arg(short, long = "props")]
    properties: bool,
    /// Only say what would be sent
    #[arg(short = 'n', long = "dryrun", alias = "dry-run")]
    dry_run: bool,
    /// Say what is sent, and how far it is each second
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The same, parseable
    #[arg(short = 'P', long)]
    parsable: bool,
    /// What is said is said in JSON, a line for each (not in OpenZFS)
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// Show how far it is as the name of the process
    #[arg(short = 'V', long)]
    proctitle: bool,
    /// The difference to this snapshot or bookmark
    #[arg(short, value_name = "SNAPSHOT", conflicts_with = "all_from",
          action = clap::ArgAction::Append)]
    incremental: Vec<String>,
    /// All snapshots since this one
    #[arg(short = 'I', value_name = "SNAPSHOT", action = clap::ArgAction::Append)]
    all_from: Vec<String>,
    /// Without what this redaction bookmark of the snapshot lists
    #[arg(short = 'd', long, value_name = "BOOKMARK")]
    redact: Option<String>,
    /// Go on where a receive was interrupted
    #[arg(short, long = "resume", value_name = "TOKEN")]
    token: Option<String>,
    /// FILESYSTEM@SNAPSHOT or VOLUME@SNAPSHOT; a filesystem or volume itself, as it is now
    #[arg(required_unless_present = "token")]
    snapshot: Option<String>,
}

impl Send {
    /// Asks the daemon for the stream, and writes it to standard output.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        self.check_words(client)?;
        let is_resumed = self.token.is_some();
        self.stream(client).map_err(|error| match is_resumed {
            // As `zfs_send_resume` of OpenZFS ends.
            true => {
                let text = format!("{error:#}");
                let code = MINUS_ONE;
                Status { code, text }.into()
            }
            false => error,
        })
    }

    /// What does not go together, in the order of `zfs_do_send` (cmd/zfs/zfs_main.c).
    fn check_words(&self, client: &Client) -> anyhow::Result<()> {
        let from = self.incremental.first().or(self.all_from.first());
        if !self.exclude.is_empty() && !self.replicate {
            bail!("Cannot specify dataset exclusion (-X) on a non-recursive send.");
        }
        if self.token.is_some() {
            let has_more = self.replicate || self.properties || self.backup || self.holds;
            if from.is_some() || has_more || self.redact.is_some() {
                bail_usage!("invalid flags combined with -t");
            }
            if self.snapshot.is_some() {
                bail_usage!("too many arguments");
            }
            return Ok(());
        }
        if self.raw && self.redact.is_some() {
            bail!("Error: raw sends may not be redacted.");
        }
        if self.skip_missing && !self.replicate {
            bail_usage!("skip-missing flag can only be used in conjunction with replicate");
        }
        if !self.replicate && self.all_from.is_empty() {
            if from.is_some_and(|from| !from.contains(['@', '#'])) {
                eprintln!(
                    "Warning: incremental source didn't specify type, assuming snapshot. Use '@' \
                     or '#' prefix to avoid ambiguity."
                );
            }
            return Ok(());
        }
        if from.is_some_and(|from| from.contains('#')) {
            bail!("Error: multiple snapshots cannot be sent from a bookmark.");
        }
        if self.redact.is_some() {
            bail!("Error: multiple snapshots cannot be sent redacted.");
        }
        let Some((head, _)) = self
            .snapshot
            .as_deref()
            .and_then(|name| name.split_once('@'))
        else {
            bail!("Error: Unsupported flag with filesystem or bookmark.\nsend a snapshot");
        };
        let other = from.filter(|from| {
            from.split_once('@')
                .is_some_and(|(of, _)| !of.is_empty() && of != head)
        });
        if let Some(other) = other {
            let listed = client.call(&ZfsList {
                names: vec![head.to_owned()],
                depth: Some(0),
                properties: Some(vec!["origin".into()]),
                ..ZfsList::default()
            })?;
            let mut origins = listed.datasets.iter().filter_map(|one| {
                let origin = one.properties.get("origin")?;
                Some(origin.value.as_str())
            });
            if !origins.any(|origin| origin == other) {
                bail_usage!("incremental source must be in same filesystem");
            }
        }
        Ok(())
    }

    fn stream(self, client: &Client) -> anyhow::Result<()> {
        let is_verbose = self.verbose > 0 || self.parsable;
        if !self.dry_run && rustix::termios::isatty(std::io::stdout()) {
            bail!(
                "Error: Stream can not be written to a terminal.\n\
                 You must redirect standard output."
            );
        }
        let snapshot = self.snapshot.unwrap_or_default();
        let head = snapshot.split('@').next().unwrap_or_default();
        if self.incremental.len() + self.all_from.len() > 1 {
            bail!("a stream begins with one snapshot: give -i or -I once");
        }
        if self.dedup {
            eprintln!(
                "WARNING: deduplicated send is no longer supported.  A regular,\n\
                 non-deduplicated stream will be generated.\n"
            );
        }
        let from = self.incremental.first().or(self.all_from.first());
        let from = from.map(|from| match from.starts_with(['@', '#']) {
            true => format!("{head}{from}"),
            false if from.contains(['@', '#']) => from.clone(),
            false => format!("{head}@{from}"),
        });
        let send = ZfsSend {
            snapshot,
            from,
            all_between: !self.all_from.is_empty(),
            replicate: self.replicate,
            properties: self.properties,
            backup: self.backup,
            holds: self.holds,
            no_preserve_encryption: self.no_preserve_encryption,
            skip_missing: self.skip_missing,
            exclude: self.exclude,
            large_blocks: self.large_blocks,
            embedded: self.embedded,
            compressed: self.compressed,
            raw: self.raw,
            redact: self.redact,
            token: self.token,
        };
        if is_verbose
            && !self.json
            && let Some(token) = &send.token
        {
            // Also where it cannot be gone on with.
            let text = token_words(token);
            match self.dry_run {
                true => print!("{text}"),
                false => eprint!("{text}"),
            }
        }
        let may_warn = self.skip_missing || self.no_preserve_encryption;
        if self.dry_run || is_verbose || may_warn {
            let plan = client.call(&ZfsSendPlan { send: send.clone() })?;
            for warning in &plan.warnings {
                eprintln!("WARNING: {warning}");
            }
            if is_verbose {
                let text = match self.json {
                    true => format!("{}\n", planned_json(&plan)),
                    false => planned(&plan, self.parsable),
                };
                match self.dry_run {
                    true => print!("{text}"),
                    false => eprint!("{text}"),
                }
            }
            if self.dry_run {
                return Ok(());
            }
        }
        let name = send.snapshot.clone();
        let (is_told, is_parsable, is_title) = (self.verbose > 0, self.parsable, self.proctitle);
        let is_json = self.json;
        if is_told && !is_parsable && !is_json {
            eprintln!("TIME       {:>5}   SNAPSHOT {name}", "SENT");
        }
        client.receive_stream(&send, |job| {
            let text = match is_json {
                true => progress_json(job, &name).to_string(),
                false => progress(job, &name, is_parsable),
            };
            if is_told {
                let _ = writeln!(std::io::stderr(), "{text}");
            }
            if is_title {
                title(job);
            }
        })?;
        Ok(())
    }
}

/// What a token says (`zfs_send_resume_impl_cb_impl`, lib/libzfs/libzfs_sendrecv.c).
fn token_words(token: &str) -> String {
    let Some(token) = dataset::ResumeToken::decode(token) else {
        return String::new();
    };
    format!(
        "resume token contents:\n{}",
        crate::streams::token_lines(&token)
    )
}

/// What would be sent (`send_print_verbose`, lib/libzfs/libzfs_sendrecv.c).
fn planned(plan: &ZfsSendPlanReply, is_parsable: bool) -> String {
    let mut text = String::new();
    let mut total = 0;
    for stream in &plan.streams {
        total += stream.size_bytes;
        let size = numbers::nice_bytes(stream.size_bytes);
        let line = match (&stream.from, is_parsable) {
            (Some(from), true) => {
                format!(
                    "incremental\t{from}\t{}\t{}\n",
                    stream.name, stream.size_bytes
                )
            }
            (None, true) => format!("full\t{}\t{}\n", stream.name, stream.size_bytes),
            (Some(from), false) => {
                // A snapshot of the same dataset is shown without it.
                let head = stream.name.split('@').next().unwrap_or_default();
                let from = from.strip_prefix(head).filter(|from| from.starts_with('@'));
                let full = stream.from.as_deref().unwrap_or_default();
                let from = from.unwrap_or(full);
                format!(
                    "send from {from} to {} estimated size is {size}\n",
                    stream.name
                )
            }
            (None, false) => format!("full send of {} estimated size is {size}\n", stream.name),
        };
        text.push_str(&line);
    }
    match is_parsable {
        true => text.push_str(&format!("size\t{total}\n")),
        false => {
            let total = numbers::nice_bytes(total);
            text.push_str(&format!("total estimated size is {total}\n"));
        }
    }
    text
}

/// The same in JSON; sizes are numbers of bytes.
fn planned_json(plan: &ZfsSendPlanReply) -> Value {
    let streams = plan.streams.iter().map(
        |stream| json!({"from": stream.from, "snapshot": stream.name, "size": stream.size_bytes}),
    );
    let total: u64 = plan.streams.iter().map(|stream| stream.size_bytes).sum();
    json!({"streams": streams.collect::<Vec<_>>(), "size": total})
}

/// How far a stream is, with the time in seconds since the epoch.
fn progress_json(job: &Job, name: &str) -> Value {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let time = now.map_or(0, |now| now.as_secs());
    json!({"time": time, "sent": sent_bytes(job), "snapshot": name})
}

fn sent_bytes(job: &Job) -> u64 {
    job.progress.map_or(0, |progress| progress.done)
}

/// How far a stream is.
fn progress(job: &Job, name: &str, is_parsable: bool) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let clock = numbers::clock(now.map_or(0, |now| now.as_secs()));
    let sent = sent_bytes(job);
    match is_parsable {
        true => format!("{clock}\t{sent}\t{name}"),
        false => format!("{clock}   {:>5}   {name}", numbers::nice_bytes(sent)),
    }
}

/// Shows how far it is as the name of the process.
fn title(job: &Job) {
    let text = format!("send {}", numbers::nice_bytes(sent_bytes(job)));
    if let Ok(text) = std::ffi::CString::new(text) {
        // Nothing depends on it.
        let _ = rustix::thread::set_name(&text);
    }
}
