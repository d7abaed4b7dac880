//! `zpool add`, `remove`, `reguid`, `labelclear`, `upgrade`.

use anyhow::{Context, bail};
use api::{
    Guid, JobKind, PoolUpgrade, RemoveAction, ZpoolAdd, ZpoolLabelClear, ZpoolReguid, ZpoolRemove,
    ZpoolUpgrade, ZpoolUpgradeReply,
};
use clap::Args;

use super::create::parse_vdevs;
use super::vdevs::{Naming, planned_layout};
use crate::client::Client;
use crate::numbers;
use crate::refusals;
use crate::settings::{assignments, of_option};
use crate::usage::{MINUS_ONE, Status};

/// Give a pool more vdevs, spares or cache devices.
#[derive(Debug, Args)]
pub struct Add {
    /// Use devices that look in use, accept uneven redundancy and another ashift
    #[arg(short)]
    force: bool,
    /// Show the layout without changing the pool
    #[arg(short = 'n')]
    dry_run: bool,
    /// ashift=VALUE
    #[arg(short = 'o')]
    properties: Vec<String>,
    /// Use devices that look in use
    #[arg(long, conflicts_with = "force")]
    allow_in_use: bool,
    /// Accept uneven redundancy
    #[arg(long, conflicts_with = "force")]
    allow_replication_mismatch: bool,
    /// Accept another ashift than the pool's
    #[arg(long, conflicts_with = "force")]
    allow_ashift_mismatch: bool,
    /// How -n shows devices
    #[command(flatten)]
    naming: Naming,
    pool: String,
    /// [mirror|raidz[1-3]|draid[1-3][:DATAd][:CHILDRENc][:SPARESs]|log|special|dedup|cache|spare]
    /// DEVICE...
    #[arg(required = true)]
    vdevs: Vec<String>,
}

impl Add {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let ashift = ashift(&self.properties)?;
        let vdevs = parse_vdevs(&self.vdevs)?;
        let reply = client.call(&ZpoolAdd {
            name: self.pool.clone(),
            vdevs,
            ashift,
            allow_in_use: self.force || self.allow_in_use,
            allow_replication_mismatch: self.force || self.allow_replication_mismatch,
            allow_ashift_mismatch: self.force || self.allow_ashift_mismatch,
            dry_run: self.dry_run,
            command: typed,
        })?;
        for warning in &reply.warnings {
            eprintln!("{warning}");
        }
        if self.dry_run {
            println!(
                "would update '{}' to the following configuration:\n",
                self.pool
            );
            let tree = &reply.tree;
            print!(
                "{}",
                planned_layout(&tree.name, &tree.children, &reply.layout, self.naming)
            );
        }
        Ok(())
    }
}

/// The only property that can be given for new devices.
pub(super) fn ashift(properties: &[String]) -> anyhow::Result<Option<u8>> {
    let mut ashift = None;
    for (name, value) in assignments(properties).map_err(of_option)? {
        if name != "ashift" {
            bail_usage!(
                "property '{name}' is not a valid pool or vdev property\nonly ashift is set here"
            );
        }
        ashift = ashift_of(&value)?;
    }
    Ok(ashift)
}

/// Has what begins with these words end with -1, as OpenZFS's commands end.
pub(super) fn minus_one(begin: &'static str) -> impl FnOnce(anyhow::Error) -> anyhow::Error {
    move |error| {
        let text = format!("{error:#}");
        match text.starts_with(begin) {
            true => Status {
                code: MINUS_ONE,
                text,
            }
            .into(),
            false => error,
        }
    }
}

/// An ashift that is given; none where the devices' own is meant.
pub(super) fn ashift_of(word: &str) -> anyhow::Result<Option<u8>> {
    let number: u64 = (word.parse()).map_err(|_| anyhow::anyhow!("ashift must be a number."))?;
    match u8::try_from(number) {
        Ok(0) => Ok(None),
        Ok(number @ 9..=16) => Ok(Some(number)),
        _ => bail!(
            "invalid 'ashift={number}' property: only values between 9 and 16 are allowed.\n\
             0 stands for the devices' own size"
        ),
    }
}

/// Take top-level vdevs, spares and cache devices out of a pool.
#[derive(Debug, Args)]
pub struct Remove {
    /// Only tell how much memory the mappings of removed vdevs would take
    #[arg(short = 'n')]
    estimate: bool,
    /// With -n: exact numbers
    #[arg(short = 'p')]
    parsable: bool,
    /// Stop the removal that is under way
    #[arg(short = 's', conflicts_with = "wait")]
    stop: bool,
    /// Wait until it is done
    #[arg(short = 'w')]
    wait: bool,
    pool: String,
    devices: Vec<String>,
}

impl Remove {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let action = match (self.stop, self.estimate) {
            (true, true) => {
                eprintln!("stop request ignored");
                return Ok(());
            }
            (true, false) => RemoveAction::Stop,
            (false, true) => RemoveAction::Estimate,
            (false, false) => RemoveAction::Remove,
        };
        match (self.stop, self.devices.is_empty()) {
            (true, false) => bail_usage!("too many arguments"),
            (false, true) => bail_usage!("missing device"),
            _ => {}
        }
        let reply = client.call(&ZpoolRemove {
            name: self.pool.clone(),
            devices: self.devices.clone(),
            action,
            command: typed,
        })?;
        for (device, bytes) in self.devices.iter().zip(reply.mapping_bytes) {
            match self.parsable {
                true => println!("{device} {bytes}"),
                false => println!(
                    "Memory that will be used after removing {device}: {}",
                    numbers::nice_count(bytes)
                ),
            }
        }
        match self.wait && action == RemoveAction::Remove {
            true => client.wait_for_jobs(&self.pool, &[JobKind::Remove], &[]),
            false => Ok(()),
        }
    }
}

/// Give a pool another GUID.
#[derive(Debug, Args)]
pub struct Reguid {
    /// The GUID instead of a random one
    #[arg(short = 'g', value_parser = pool_guid, allow_hyphen_values = true)]
    guid: Option<u64>,
    pool: String,
}

impl Reguid {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let given = client.call(&ZpoolReguid {
            name: self.pool,
            guid: self.guid.map(Guid),
            command: typed,
        });
        given.map(drop).map_err(minus_one("cannot reguid "))
    }
}

/// A GUID as strtoull(3) reads it, which OpenZFS's command has do it: a negative one counts from
/// 2^64 down.
fn pool_guid(text: &str) -> Result<u64, String> {
    let digits = text.trim_start();
    let (is_negative, digits) = match digits.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, digits.strip_prefix('+').unwrap_or(digits)),
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse::<u64>() {
        Ok(number) if is_number && is_negative => Ok(number.wrapping_neg()),
        Ok(number) if is_number => Ok(number),
        _ => Err(format!("invalid GUID: {text}")),
    }
}

/// Remove ZFS labels from a device.
#[derive(Debug, Args)]
pub struct LabelClear {
    /// Also those of a pool that was exported or may be in use elsewhere
    #[arg(short)]
    force: bool,
    device: String,
}

impl LabelClear {
    /// Asks the daemon.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let in_dev = std::path::Path::new("/dev").join(&self.device);
        let is_short = !self.device.contains('/');
        if is_short && !in_dev.exists() && !std::path::Path::new(&self.device).exists() {
            bail!(
                "failed to find device {}, try specifying absolute path instead",
                self.device
            );
        }
        let device = if is_short && in_dev.exists() {
            in_dev
        } else {
            std::path::absolute(&self.device)
                .with_context(|| format!("'{}' cannot be made an absolute path", self.device))?
        };
        client.call(&ZpoolLabelClear {
            device: device.to_string_lossy().into_owned(),
            force: self.force,
        })?;
        Ok(())
    }
}

/// Show which features pools lack, or enable them.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// Show what is supported
    #[arg(short = 'v', conflicts_with_all = ["all", "pools"])]
    versions: bool,
    /// Every pool
    #[arg(short = 'a', conflicts_with = "pools")]
    all: bool,
    /// To this version, without features if it is one of before them (28 at most)
    #[arg(
        short = 'V',
        value_name = "VERSION",
        value_parser = pool_version,
        allow_hyphen_values = true
    )]
    version: Option<u64>,
    pools: Vec<String>,
}

/// Version of pools that have features instead of versions (`SPA_VERSION_FEATURES`,
/// include/sys/fs/zfs.h), and the last one before (`SPA_VERSION_BEFORE_FEATURES`).
const VERSION_FEATURES: u64 = 5000;
const VERSION_LEGACY_MAX: u64 = 28;

/// What each version before features brought, from 1 on (`SPA_VERSION_*`, include/sys/fs/zfs.h).
const VERSIONS: [&str; VERSION_LEGACY_MAX as usize] = [
    "The first version",
    "Several copies of metadata (ditto blocks)",
    "Hot spares, RAID-Z with double parity",
    "History of commands",
    "Compression gzip",
    "Property bootfs",
    "Separate log devices",
    "Delegated administration",
    "Properties refquota and refreservation",
    "Cache devices",
    "Faster scrubs",
    "Properties of snapshots",
    "Properties that divide the used space",
    "aclinherit=passthrough-x",
    "Space used by users and groups",
    "Properties of SCSI targets (stmf)",
    "RAID-Z with triple parity",
    "Holds of snapshots",
    "Removal of log devices",
    "Compression zle",
    "Deduplication",
    "Received properties",
    "Slim intent log blocks",
    "System attributes",
    "Statistics of scrubs",
    "Faster removal of snapshots",
    "Faster creation of snapshots",
    "Several replacements of one vdev",
];

fn legacy_versions() -> String {
    let mut out = String::from(
        "\nThe following legacy versions are also supported: 11 to 28 are read and\n\
         written, others are read.\n\n\
         VER  DESCRIPTION\n\
         ---  --------------------------------------------------------\n",
    );
    for (version, text) in (1..).zip(VERSIONS) {
        out.push_str(&format!(" {version:<3} {text}\n"));
    }
    out.push('\n');
    out
}

fn pool_version(text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|version| {
            (1..=VERSION_LEGACY_MAX).contains(version) || *version == VERSION_FEATURES
        })
        .ok_or_else(|| {
            format!(
                "invalid version '{text}'\nthere are 1 to {VERSION_LEGACY_MAX} and \
             {VERSION_FEATURES}"
            )
        })
}

impl Upgrade {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let upgrades = self.all || !self.pools.is_empty();
        if !upgrades && self.version.is_some() {
            bail_usage!("-V option is incompatible with other arguments\nsay which pool, or -a");
        }
        let legacy = self.version.filter(|version| *version != VERSION_FEATURES);
        let reply = client.call(&ZpoolUpgrade {
            names: self.pools.clone(),
            dry_run: !upgrades,
            version: legacy,
            command: typed,
        })?;
        println!("This system supports ZFS pool feature flags.\n");
        if self.versions {
            println!("The following features are supported:\n");
            println!("FEAT\n{}", "-".repeat(61));
            for feature in &reply.supported {
                let name = &feature.name;
                let note = if feature.is_read_only_compatible {
                    " (read-only compatible)"
                } else {
                    ""
                };
                println!("{name:<37}{note}");
            }
            print!("{}", legacy_versions());
        } else if let Some(version) = legacy {
            print!("{}", raised(&reply.pools, version));
        } else if upgrades {
            print!("{}", upgraded(&reply.pools, self.all));
        } else {
            print!("{}", listed(&reply));
        }
        refusals::all_found(&refusals::tell_absent(&self.pools, reply.absent))
    }
}

/// What is said of pools that were to be of a version without features: they are now, were before,
/// or have a later one.
fn raised(pools: &[PoolUpgrade], wanted: u64) -> String {
    let mut out = String::new();
    for pool in pools {
        let (name, version) = (&pool.name, pool.version);
        if let Some(before) = pool.upgraded_from {
            out.push_str(&format!(
                "Successfully upgraded '{name}' from version {before} to version {version}.\n\n"
            ));
            continue;
        }
        let which = match version == wanted {
            true => format!("version {version}"),
            false => format!("more current version '{version}'"),
        };
        out.push_str(&format!(
            "Pool '{name}' is already formatted using {which}.\n\n"
        ));
    }
    out
}

fn upgraded(pools: &[PoolUpgrade], all: bool) -> String {
    let mut out = String::new();
    let is_changed =
        |pool: &&PoolUpgrade| pool.upgraded_from.is_some() || !pool.features.is_empty();
    for pool in pools.iter().filter(is_changed) {
        if let Some(version) = pool.upgraded_from {
            out.push_str(&format!(
                "Successfully upgraded '{}' from version {version} to feature flags.\n",
                pool.name
            ));
        }
        if pool.features.is_empty() {
            out.push('\n');
            continue;
        }
        out.push_str(&format!(
            "Enabled the following features on '{}':\n",
            pool.name
        ));
        for feature in &pool.features {
            out.push_str(&format!("  {feature}\n"));
        }
        out.push('\n');
    }
    if all && out.is_empty() {
        out.push_str(
            "All pools are already formatted using feature flags.\n\
             \n\
             Every feature flags pool already has all supported and requested features enabled.\n",
        );
    } else if !all {
        for pool in pools.iter().filter(|pool| !is_changed(pool)) {
            out.push_str(&format!(
                "Pool '{}' already has all supported and requested features enabled.\n",
                pool.name
            ));
        }
    }
    out
}

fn listed(reply: &ZpoolUpgradeReply) -> String {
    let pools = &reply.pools;
    let is_left_out = |name: &str| {
        let mut supported = reply.supported.iter();
        supported.any(|feature| feature.name == name && feature.is_left_out_of_upgrades)
    };
    let mut out = String::new();
    let old: Vec<_> = pools
        .iter()
        .filter(|pool| pool.version < VERSION_FEATURES)
        .collect();
    if old.is_empty() {
        out.push_str("All pools are formatted using feature flags.\n\n");
    } else {
        out.push_str(
            "The following pools are formatted with legacy version numbers and can\n\
             be upgraded to use feature flags.  After being upgraded, these pools\n\
             will no longer be accessible by software that does not support feature\n\
             flags.  Versions before 11 are only read by this release.\n\
             \n\
             VER  POOL\n\
             ---  ------------\n",
        );
        for pool in old {
            out.push_str(&format!("{:2}   {}\n", pool.version, pool.name));
        }
        out.push('\n');
    }
    let lacking: Vec<_> = pools
        .iter()
        .filter(|pool| pool.version >= VERSION_FEATURES && !pool.features.is_empty())
        .collect();
    if lacking.is_empty() {
        out.push_str(
            "Every feature flags pool has all supported and requested features enabled.\n",
        );
        return out;
    }
    out.push_str(
        "Some supported features are not enabled on the following pools. Systems that \
         do\n\
         not know a feature may be unable to use a pool once it is enabled: see\n\
         zpool-features(7). The property 'compatibility' keeps features from being enabled.\n\
         An upgrade enables those marked (*) only when they are set by name:\n\
         'zpool set feature@NAME=enabled POOL'.\n\
         \n\
         POOL  FEATURE\n\
         ---------------\n",
    );
    for pool in lacking {
        out.push_str(&format!("{}\n", pool.name));
        for feature in &pool.features {
            let mark = if is_left_out(feature) { "(*)" } else { "" };
            out.push_str(&format!("      {feature}{mark}\n"));
        }
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use api::SupportedFeature;

    use super::*;

    fn pool(name: &str, features: &[&str]) -> PoolUpgrade {
        PoolUpgrade {
            name: name.into(),
            version: VERSION_FEATURES,
            upgraded_from: None,
            features: features.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn a_version_without_features_is_said_to_be_there_or_new() {
        let of = |version| PoolUpgrade {
            version,
            ..pool("p", &[])
        };
        let raised_now = PoolUpgrade {
            upgraded_from: Some(15),
            ..of(28)
        };
        let text = raised(&[of(28), of(5000), raised_now], 28);
        assert_eq!(
            text,
            "Pool 'p' is already formatted using version 28.\n\
             \n\
             Pool 'p' is already formatted using more current version '5000'.\n\
             \n\
             Successfully upgraded 'p' from version 15 to version 28.\n\
             \n"
        );
        for wrong in ["0", "29", "5001", "x"] {
            assert!(pool_version(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn guids_are_read_as_strtoull_reads_them() {
        assert_eq!(pool_guid("314"), Ok(314));
        assert_eq!(pool_guid("0123"), Ok(123));
        assert_eq!(pool_guid("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(pool_guid("-1"), Ok(u64::MAX));
        for wrong in ["", "-", "--1", "+-1", "1x", "0x10", "18446744073709551616"] {
            assert!(pool_guid(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_version_before_features_is_listed() {
        let text = legacy_versions();
        for version in 1..=VERSION_LEGACY_MAX {
            let mut lines = text.lines();
            let line = lines.find(|line| line.starts_with(&format!(" {version} ")));
            assert!(line.is_some_and(|line| line.len() > 6), "{version}");
        }
    }

    #[test]
    fn what_was_enabled_is_told_by_pool() {
        let pools = [pool("a", &["x", "y"]), pool("b", &[])];
        assert_eq!(
            upgraded(&pools, true),
            "Enabled the following features on 'a':\n  x\n  y\n\n"
        );
        assert!(upgraded(&pools[1..], true).starts_with("All pools are already formatted"));
        assert!(upgraded(&pools[1..], false).starts_with("Pool 'b' already has"));
        let supported = ["x", "y"].map(|name| SupportedFeature {
            name: name.to_owned(),
            is_read_only_compatible: true,
            is_left_out_of_upgrades: name == "y",
        });
        let reply = ZpoolUpgradeReply {
            pools: pools.to_vec(),
            supported: supported.to_vec(),
            absent: Vec::new(),
        };
        assert!(listed(&reply).ends_with("a\n      x\n      y(*)\n\n"));
    }
}
