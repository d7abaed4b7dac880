//! `millpond replicate`: datasets whose snapshots are sent elsewhere, again and again.

use std::io::{IsTerminal, Write};

use anyhow::bail;
use api::{
    Job, JobState, ReplicationChange, ReplicationCreate, ReplicationList, ReplicationNote,
    ReplicationPause, ReplicationRemove, ReplicationReport, ReplicationResult, ReplicationRun,
    ReplicationRunReply, ReplicationSpec, ReplicationTarget, Secret,
};
use clap::Args;

use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::{local_minute, nice_bytes};
use crate::periods::{self, Rule};
use crate::{prompt, refusals};

/// Send the snapshots of a filesystem or volume to another pool, or to another host.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("action")
    .args(["list", "run", "change", "rekey", "remove", "pause", "resume"]))]
pub struct Replicate {
    /// Filesystem or volume
    #[arg(required_unless_present = "action", conflicts_with = "action")]
    source: Option<String>,
    /// [USER@HOST:]DATASET or https://HOST[:PORT]/DATASET, where it goes to
    #[arg(required_unless_present = "action")]
    target: Option<String>,
    /// Datasets below it, too
    #[arg(short)]
    recursive: bool,
    /// Run by itself, in this interval: 15m, 1h, 1d (default: only on request)
    #[arg(long, value_parser = periods::interval)]
    every: Option<u64>,
    /// Which of its snapshots stay, or 'all'
    #[arg(long, value_name = "RULE", default_value = "hourly=24,daily=7,weekly=4,monthly=12",
          value_parser = periods::rule)]
    keep: Rule,
    /// Most bytes in a second, such as 50M
    #[arg(long, value_parser = bytes)]
    limit: Option<u64>,
    /// What it is called (default: by the source)
    #[arg(long)]
    name: Option<String>,
    /// How zfs is called on the other host: a path, or several words
    #[arg(long, value_name = "COMMAND", default_value = "zfs")]
    remote_command: String,
    /// The certificate of the other Millpond, as 'millpond console' tells there
    #[arg(long, value_name = "SHA256")]
    fingerprint: Option<String>,
    /// List replications
    #[arg(long)]
    list: bool,
    /// As JSON
    #[arg(short, long, requires = "list")]
    json: bool,
    /// No header, and one tab between columns
    #[arg(short = 'H', requires = "list")]
    scripted: bool,
    /// Run one now, and wait for its end
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Have one do from now on what -r, --every, --keep and --limit say; source and target stay
    #[arg(long, value_name = "NAME")]
    change: Option<String>,
    /// Ask for another API key of the other Millpond; with none the key stays
    #[arg(long, value_name = "NAME")]
    rekey: Option<String>,
    /// Forget one; snapshots stay where they are
    #[arg(long, value_name = "NAME")]
    remove: Option<String>,
    /// Stop one, and have it run no more by itself
    #[arg(long, value_name = "NAME")]
    pause: Option<String>,
    /// Have one go on that was paused
    #[arg(long, value_name = "NAME")]
    resume: Option<String>,
}

fn bytes(text: &str) -> Result<u64, String> {
    dataset::props::parse_size(text).map_err(|error| error.to_string())
}

/// Where it goes to. Names of datasets may have a colon in them, but no `@`.
fn target(
    text: &str,
    command: &str,
    fingerprint: Option<String>,
) -> anyhow::Result<ReplicationTarget> {
    if let Some(rest) = text.strip_prefix("https://") {
        let Some((host, dataset)) = rest.split_once('/').filter(|(host, _)| !host.is_empty())
        else {
            bail_usage!("'{text}' names no dataset; write https://HOST/DATASET");
        };
        return Ok(ReplicationTarget::Tls {
            host: host.to_owned(),
            dataset: dataset.to_owned(),
            fingerprint,
        });
    }
    if fingerprint.is_some() {
        bail_usage!("only https://HOST/DATASET has a certificate, of which --fingerprint is");
    }
    let remote = text.split_once('@').and_then(|(user, rest)| {
        // An IPv6 address has colons, in brackets.
        let after = rest
            .find(']')
            .filter(|_| rest.starts_with('['))
            .unwrap_or(0);
        let colon = after + rest[after..].find(':')?;
        let (host, dataset) = (&rest[..colon], &rest[colon + 1..]);
        Some((format!("{user}@{host}"), dataset.to_owned()))
    });
    match remote {
        Some((host, dataset)) => Ok(ReplicationTarget::Ssh {
            host,
            dataset,
            command: command.to_owned(),
        }),
        None if text.contains('@') => {
            bail_usage!(
                "'{text}' is a snapshot; name a dataset, USER@HOST:DATASET, or \
                 https://HOST/DATASET"
            )
        }
        None => Ok(ReplicationTarget::Local {
            dataset: text.to_owned(),
        }),
    }
}

impl Replicate {
    /// Does it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        if self.list {
            return list(client, self.json, self.scripted);
        }
        if let Some(name) = self.run {
            let begun = client.call(&ReplicationRun { name })?;
            return wait(client, &begun);
        }
        if let Some(name) = self.change {
            client.call(&ReplicationChange {
                name,
                recursive: self.recursive,
                every_s: self.every,
                keep: self.keep.0,
                limit_bytes: self.limit,
                key: None,
                fingerprint: self.fingerprint,
            })?;
            return Ok(());
        }
        if let Some(name) = self.rekey {
            return rekey(client, name, self.fingerprint);
        }
        if let Some(name) = self.remove {
            client.call(&ReplicationRemove { name })?;
            return Ok(());
        }
        let paused = self.pause.map(|name| (name, true));
        if let Some((name, is_paused)) = paused.or(self.resume.map(|name| (name, false))) {
            client.call(&ReplicationPause { name, is_paused })?;
            return Ok(());
        }
        let (source, to) = (
            self.source.unwrap_or_default(),
            self.target.unwrap_or_default(),
        );
        let to = target(&to, &self.remote_command, self.fingerprint)?;
        let key = match &to {
            ReplicationTarget::Tls { host, .. } => Some(key_of(host)?),
            _ => None,
        };
        let spec = ReplicationSpec {
            name: self.name,
            target: to,
            source,
            recursive: self.recursive,
            every_s: self.every,
            keep: self.keep.0,
            limit_bytes: self.limit,
            key,
        };
        let begun = client.call(&ReplicationCreate { spec })?;
        match self.every {
            None => {
                let waited = wait(client, &begun);
                if waited.is_err() {
                    let name = &begun.name;
                    eprintln!(
                        "replication '{name}' is there, and its first run failed: 'millpond \
                         replicate --run {name}' tries again, '--remove {name}' forgets it"
                    );
                }
                waited
            }
            Some(every_s) => {
                println!(
                    "replication '{}' runs every {}; its first run has begun",
                    begun.name,
                    periods::every(every_s)
                );
                Ok(())
            }
        }
    }
}

/// Asks for the API key that another Millpond takes, or reads it where standard input is no
/// terminal.
fn key_of(host: &str) -> anyhow::Result<Secret> {
    let key = prompt::once(&format!("API key of {host}:"))?;
    Ok(Secret(key.0.trim().to_owned()))
}

/// Another key, or another certificate; what the replication does stays.
fn rekey(client: &Client, name: String, fingerprint: Option<String>) -> anyhow::Result<()> {
    let replications = client.call(&ReplicationList {})?.replications;
    let found = replications.into_iter().find(|found| found.name == name);
    let Some(ReplicationReport { what, .. }) = found else {
        bail!("there is no replication '{name}'; see 'millpond replicate --list'");
    };
    let ReplicationTarget::Tls { host, .. } = &what.target else {
        bail!("replication '{name}' does not go to another Millpond by TLS, so it has no key");
    };
    let key = key_of(host)?;
    client.call(&ReplicationChange {
        name,
        recursive: what.recursive,
        every_s: what.every_s,
        keep: what.keep,
        limit_bytes: what.limit_bytes,
        key: Some(key).filter(|key| !key.0.is_empty()),
        fingerprint,
    })?;
    Ok(())
}

/// Waits for a run's end, showing on a terminal how far it is, and tells what it came to. Whoever
/// is interrupted leaves it running.
fn wait(client: &Client, begun: &ReplicationRunReply) -> anyhow::Result<()> {
    let is_shown = std::io::stderr().is_terminal();
    let result = client.result_of(&begun.job, |job| {
        if is_shown && let Some(text) = progress(job) {
            let _ = write!(std::io::stderr(), "\r{text}\x1b[K");
        }
    });
    if is_shown {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let result: ReplicationResult = serde_json::from_value(result?)?;
    println!(
        "{}: {} of {} sent{}",
        begun.name,
        nice_bytes(result.bytes),
        result.snapshot.as_deref().unwrap_or("nothing"),
        match result.is_resumed {
            true => ", from where it had been interrupted",
            false => "",
        }
    );
    for note in &result.notes {
        eprintln!("{}", noted(note));
    }
    Ok(())
}

fn progress(job: &Job) -> Option<String> {
    let progress = job.progress?;
    let percent = progress.done * 100 / progress.total.max(1);
    Some(format!("{percent} % of {}", nice_bytes(progress.total)))
}

fn noted(note: &ReplicationNote) -> String {
    match note {
        ReplicationNote::Gone { target } => {
            format!("'{target}' stays, though the source has nothing of that name any more")
        }
        ReplicationNote::NotPruned {
            snapshot,
            is_of_target,
            why,
        } => {
            let whose = if *is_of_target {
                "target's"
            } else {
                "source's"
            };
            format!("the {whose} snapshot '{snapshot}' stays: {why}")
        }
    }
}

fn list(client: &Client, is_json: bool, is_scripted: bool) -> anyhow::Result<()> {
    let reply = client.call(&ReplicationList {})?;
    if is_json {
        println!("{}", serde_json::to_string_pretty(&reply)?);
        return Ok(());
    }
    let columns = [
        Column::left("NAME"),
        Column::left("SOURCE"),
        Column::left("TARGET"),
        Column::left("EVERY"),
        Column::left("STATE"),
        Column::left("LAST"),
        Column::right("SENT"),
        Column::left("NEXT"),
    ];
    let rows: Vec<Vec<String>> = reply.replications.iter().map(row).collect();
    print!("{}", columns::render(&columns, &rows, is_scripted));
    if is_scripted {
        return Ok(());
    }
    for replication in &reply.replications {
        let Some(last) = &replication.last else {
            continue;
        };
        if let Some(failure) = &last.failure {
            let more = match last.failed {
                0 | 1 => String::new(),
                failed => format!(" (and {} datasets more)", failed - 1),
            };
            println!("\n{}: {}{more}", replication.name, refusals::words(failure));
        }
        for note in &last.notes {
            println!("\n{}: {}", replication.name, noted(note));
        }
    }
    Ok(())
}

fn row(replication: &ReplicationReport) -> Vec<String> {
    let what = &replication.what;
    let to = match &what.target {
        ReplicationTarget::Local { dataset } => dataset.clone(),
        ReplicationTarget::Ssh { host, dataset, .. } => format!("{host}:{dataset}"),
        ReplicationTarget::Tls { host, dataset, .. } => format!("https://{host}/{dataset}"),
    };
    let last = replication.last.as_ref();
    let state = match (&replication.job, last.map(|last| last.state)) {
        (Some(job), _) => match progress(job) {
            Some(far) => format!("running, {far}"),
            None => "running".to_owned(),
        },
        (None, _) if replication.is_paused => "paused".to_owned(),
        (None, Some(JobState::Failed)) => "failed".to_owned(),
        (None, Some(JobState::Canceled)) => "stopped".to_owned(),
        (None, Some(_)) => "done".to_owned(),
        (None, None) => "new".to_owned(),
    };
    let dash = || "-".to_owned();
    vec![
        replication.name.clone(),
        match what.recursive {
            true => format!("{} -r", what.source),
            false => what.source.clone(),
        },
        to,
        what.every_s.map_or_else(dash, periods::every),
        state,
        last.map_or_else(dash, |last| local_minute(last.end_s)),
        last.map_or_else(dash, |last| nice_bytes(last.bytes)),
        replication.next_s.map_or_else(dash, local_minute),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_from_datasets() {
        let of = |text: &str| match target(text, "zfs", None) {
            Ok(ReplicationTarget::Local { dataset }) => format!("here {dataset}"),
            Ok(ReplicationTarget::Ssh { host, dataset, .. }) => format!("{host} {dataset}"),
            Ok(ReplicationTarget::Tls { host, dataset, .. }) => format!("tls {host} {dataset}"),
            Err(error) => format!("{error:#}"),
        };
        assert_eq!(of("backup/a:b"), "here backup/a:b");
        assert_eq!(of("root@h:backup/a"), "root@h backup/a");
        assert_eq!(of("root@h:backup/a:b"), "root@h backup/a:b");
        assert_eq!(of("root@[::1]:backup"), "root@[::1] backup");
        assert!(of("tank/a@b").contains("is a snapshot"));
        assert_eq!(of("https://h:443/backup/a:b"), "tls h:443 backup/a:b");
        assert_eq!(of("https://[::1]/backup"), "tls [::1] backup");
        assert!(of("https://h").contains("names no dataset"));
        let odd = target("backup/a", "zfs", Some("00".into()));
        assert!(format!("{:#}", odd.unwrap_err()).contains("--fingerprint"));
    }
}
