//! `zpool split` (`zpool_do_split`, cmd/zpool/zpool_main.c).

use anyhow::bail;
use api::{VdevReport, ZpoolImport, ZpoolSplit, ZpoolStatus};
use clap::Args;

use super::import::settings_and_options;
use super::vdevs::{Naming, planned_layout};
use crate::client::Client;
use crate::settings::assignments;

/// Make a new pool of one device of each mirror.
#[derive(Debug, Args)]
pub struct Split {
    #[command(flatten)]
    naming: Naming,
    /// Only show what it would be made of
    #[arg(short = 'n')]
    dry_run: bool,
    /// Load its keys, with -R
    #[arg(short = 'l')]
    load_keys: bool,
    /// Import it, everything mounted below this directory
    #[arg(short = 'R')]
    altroot: Option<String>,
    /// PROPERTY=VALUE of the new pool, or with -R options of its mounts
    #[arg(short = 'o')]
    properties: Vec<String>,
    pool: String,
    new_pool: String,
    /// At most one of each mirror; of others the last one goes
    devices: Vec<String>,
}

impl Split {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let (properties, options): (Vec<String>, Vec<String>) = self
            .properties
            .into_iter()
            .partition(|word| word.contains('='));
        let mut settings = assignments(&properties)?;
        let altroot = settings.shift_remove("altroot").or(self.altroot);
        if altroot.is_none() && !options.is_empty() {
            bail_usage!("setting mntopts is only valid when importing the pool");
        }
        if altroot.is_none() && self.load_keys {
            bail_usage!("loading keys is only valid when importing the pool");
        }
        // As `zpool import` takes them.
        let (of_import, mount_options) = settings_and_options(&options)?;
        if settings.contains_key("readonly") {
            bail!("property readonly can only be set at import time");
        }
        if altroot.as_ref().is_some_and(|root| !root.starts_with('/')) {
            bail!("'altroot' must be an absolute path");
        }
        let before = client.call(&ZpoolStatus {
            names: vec![self.pool.clone()],
            verbose: false,
        })?;
        let reply = client.call(&ZpoolSplit {
            name: self.pool,
            new_name: self.new_pool.clone(),
            devices: self.devices,
            dry_run: self.dry_run,
            properties: settings,
            mount_options: mount_options.clone(),
            command: typed.clone(),
        })?;
        let root = before.pools.into_iter().next().map(|pool| pool.tree);
        let mut parts = Vec::new();
        for top in root.into_iter().flat_map(|root| root.children) {
            let class = top.class;
            let mut children = top.children.into_iter();
            if let Some(child) = children.find(|child| reply.devices.contains(&child.guid)) {
                parts.push(VdevReport { class, ..child });
            }
        }
        if self.dry_run {
            println!(
                "would create '{}' with the following layout:\n",
                self.new_pool
            );
            print!(
                "{}",
                planned_layout(&self.new_pool, &parts, &[], self.naming)
            );
            return Ok(());
        }
        let Some(altroot) = altroot else {
            return Ok(());
        };
        client.call(&ZpoolImport {
            search: parts.iter().filter_map(|part| part.path.clone()).collect(),
            pool: Some(self.new_pool.clone()),
            altroot: Some(altroot),
            properties: of_import,
            mount_options,
            command: typed,
            ..ZpoolImport::default()
        })?;
        match self.load_keys {
            true => crate::zfs::keys::load_all(client, Some(self.new_pool), true),
            false => Ok(()),
        }
    }
}
