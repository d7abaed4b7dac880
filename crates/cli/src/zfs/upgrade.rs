//! `zfs upgrade` and `zfs wait` (`zfs_do_upgrade`, `zfs_do_wait`, cmd/zfs/zfs_main.c).

use std::collections::BTreeMap;

use api::{DatasetKind, DatasetReport, ZfsList, ZfsListReply, ZfsSet, ZfsWait};
use clap::Args;

use super::list::dataset_of;
use super::set::warn;
use crate::client::Client;

/// The newest version of filesystems (`ZPL_VERSION`).
const NEWEST: u64 = 5;
/// What versions brought, from the first on.
const DESCRIPTIONS: [&str; NEWEST as usize] = [
    "Initial ZFS filesystem version",
    "Enhanced directory entries",
    "Case insensitive and filesystem user identifier (FUID)",
    "userquota, groupquota properties",
    "System attributes",
];
/// Versions of pools that filesystems need for them (`zfs_version_table`,
/// module/zcommon/zfs_comutil.c).
const POOL_VERSIONS: [u64; NEWEST as usize] = [1, 8, 9, 15, 24];

/// Raise the versions of filesystems, or list those of older ones.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// All filesystems
    #[arg(short)]
    all: bool,
    /// What is below the filesystems too
    #[arg(short)]
    recursive: bool,
    /// Tell which versions there are
    #[arg(short)]
    verbose: bool,
    /// To this version instead of the newest one
    #[arg(short = 'V')]
    version: Option<String>,
    filesystems: Vec<String>,
}

impl Upgrade {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let version = match self.version.as_deref() {
            None => None,
            Some("current") => Some(NEWEST),
            Some(word) => match word.parse() {
                Ok(version) if (1..=NEWEST).contains(&version) => Some(version),
                _ => bail_usage!("invalid version {word}"),
            },
        };
        let is_chosen = self.all || !self.filesystems.is_empty();
        let is_more = self.recursive || version.is_some();
        let goes_together = match (is_chosen, self.verbose) {
            (true, true) => false,
            (true, false) => !self.all || self.filesystems.is_empty(),
            (false, _) => !is_more,
        };
        if !goes_together {
            bail_usage!("");
        }
        if self.verbose {
            describe();
            return Ok(());
        }
        if !is_chosen {
            return list(client);
        }
        let mut is_failed = false;
        let mut refuse = |name: &str, why: &str| {
            eprintln!("cannot open '{name}': {why}");
            is_failed = true;
        };
        let mut names = Vec::new();
        for word in &self.filesystems {
            let name = dataset_of(word, client)?;
            match (name.contains('@'), name.contains('#')) {
                (true, _) => refuse(&name, "snapshot delimiter '@' is not expected here"),
                (_, true) => refuse(&name, "bookmark delimiter '#' is not expected here"),
                _ => names.push(name),
            }
        }
        let mut reply = match names.is_empty() && !self.all {
            true => ZfsListReply::default(),
            false => client.call(&ZfsList {
                names,
                depth: (!self.recursive && !self.all).then_some(0),
                kinds: vec![DatasetKind::Filesystem],
                properties: Some(vec!["version".into()]),
                received: false,
            })?,
        };
        reply.datasets.retain(|dataset| {
            let is_filesystem = dataset.kind == DatasetKind::Filesystem;
            if !is_filesystem {
                let why = "operation not applicable to datasets of this type";
                refuse(&dataset.name, why);
            }
            is_filesystem
        });
        is_failed |= !reply.failures.is_empty();
        for failure in &reply.failures {
            eprintln!("{failure}");
        }
        let target = version.unwrap_or(NEWEST);
        let raising = Raising {
            client,
            typed: &typed,
            target,
            pool_versions: pool_versions(client)?,
        };
        let (mut upgraded, mut already) = (0, 0);
        for dataset in &reply.datasets {
            match raising.one(dataset)? {
                Done::Upgraded => upgraded += 1,
                Done::Already => already += 1,
                Done::Failed => is_failed = true,
            }
        }
        println!("{upgraded} filesystems upgraded");
        if already > 0 {
            println!("{already} filesystems already at this version");
        }
        match is_failed {
            // What is wrong is told by now.
            true => bail_status!(1, ""),
            false => Ok(()),
        }
    }
}

enum Done {
    Upgraded,
    Already,
    Failed,
}

struct Raising<'a> {
    client: &'a Client,
    typed: &'a str,
    target: u64,
    pool_versions: BTreeMap<String, u64>,
}

impl Raising<'_> {
    fn one(&self, dataset: &DatasetReport) -> anyhow::Result<Done> {
        let (name, version) = (&dataset.name, version_of(dataset));
        let needed = POOL_VERSIONS[self.target as usize - 1];
        let pool = name.split('/').next().unwrap_or(name);
        // Without a number it has feature flags, which came after all of these.
        if (self.pool_versions.get(pool)).is_some_and(|version| *version < needed) {
            println!(
                "{name}: can not be upgraded; the pool version needs to first be upgraded\nto \
                 version {needed}\n"
            );
            return Ok(Done::Failed);
        }
        if version > self.target {
            println!("{name}: can not be downgraded; it is already at version {version}");
            return Ok(Done::Failed);
        }
        if version == self.target {
            return Ok(Done::Already);
        }
        let set = self.client.call(&ZfsSet {
            names: vec![name.clone()],
            properties: [("version".to_owned(), self.target.to_string())].into(),
            no_mount: false,
            command: self.typed.to_owned(),
        });
        match set {
            Ok(changed) => {
                warn(&changed);
                Ok(Done::Upgraded)
            }
            Err(error) => {
                eprintln!("{error:#}");
                Ok(Done::Failed)
            }
        }
    }
}

fn version_of(dataset: &DatasetReport) -> u64 {
    let property = dataset.properties.get("version");
    property
        .and_then(|property| property.value.parse().ok())
        .unwrap_or(NEWEST)
}

/// Versions of the pools that have a number.
fn pool_versions(client: &Client) -> anyhow::Result<BTreeMap<String, u64>> {
    let pools = client.call(&api::ZpoolList::default())?.pools;
    let versions = pools.into_iter().filter_map(|pool| {
        let version = pool.properties.get("version")?.value.parse().ok()?;
        Some((pool.name, version))
    });
    Ok(versions.collect())
}

fn describe() {
    println!("The following filesystem versions are supported:\n");
    println!("VER  DESCRIPTION");
    println!("---  --------------------------------------------------------");
    for (version, description) in (1..).zip(DESCRIPTIONS) {
        println!("{version:2}   {description}");
    }
    println!("\nFor more information on a particular version, including supported releases,");
    println!("see the ZFS Administration Guide.\n");
}

fn list(client: &Client) -> anyhow::Result<()> {
    println!("This system is currently running ZFS filesystem version {NEWEST}.\n");
    let reply = client.call(&ZfsList {
        kinds: vec![DatasetKind::Filesystem],
        properties: Some(vec!["version".into()]),
        ..ZfsList::default()
    })?;
    let of_version = |wanted: fn(&u64) -> bool| -> Vec<(u64, &str)> {
        let all = reply.datasets.iter();
        all.map(|dataset| (version_of(dataset), dataset.name.as_str()))
            .filter(|(version, _)| wanted(version))
            .collect()
    };
    let (older, newer) = (
        of_version(|version| *version < NEWEST),
        of_version(|version| *version > NEWEST),
    );
    for (what, found) in [
        (
            "The following filesystems are out of date, and can be upgraded.  After being\n\
             upgraded, these filesystems (and any 'zfs send' streams generated from\n\
             subsequent snapshots) will no longer be accessible by older software versions.\n\n",
            &older,
        ),
        (
            "The following filesystems are formatted using a newer software version and\n\
             cannot be accessed on the current system.\n\n",
            &newer,
        ),
    ] {
        if found.is_empty() {
            continue;
        }
        println!("{what}VER  FILESYSTEM\n---  ------------");
        for (version, name) in found {
            println!("{version:2}   {name}");
        }
    }
    if older.is_empty() && newer.is_empty() {
        println!("All filesystems are formatted with the current version.");
    }
    Ok(())
}

/// Wait until a filesystem has freed what was removed from it.
#[derive(Debug, Args)]
pub struct Wait {
    /// What to wait for: deleteq
    #[arg(short = 't')]
    activities: Option<String>,
    filesystem: String,
}

impl Wait {
    /// Asks the daemon, which answers when it is so.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let activities = self.activities.as_deref().unwrap_or("deleteq");
        if let Some(unknown) = activities.split(',').find(|word| *word != "deleteq") {
            bail_usage!("invalid activity '{unknown}'");
        }
        client.call(&ZfsWait {
            name: self.filesystem,
        })?;
        Ok(())
    }
}
