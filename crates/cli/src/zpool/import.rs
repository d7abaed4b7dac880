//! `zpool import`: what can be imported, and importing it.

use anyhow::{Context, bail};
use api::{FoundPoolReport, ZpoolImport};
use clap::Args;

use super::create::assignments;
use super::status::{Naming, print_config, print_wrapped};
use crate::client::Client;

/// List pools that can be imported, or import them.
#[derive(Debug, Args)]
pub struct Import {
    /// Import every pool found
    #[arg(short)]
    all: bool,
    /// Directory or device to look at (default: /dev)
    #[arg(short = 'd')]
    search: Vec<String>,
    /// Show or import destroyed pools
    #[arg(short = 'D')]
    destroyed: bool,
    /// Import what seems to be in use elsewhere
    #[arg(short)]
    force: bool,
    /// Mount nothing
    #[arg(short = 'N')]
    no_mount: bool,
    /// Pool or mount property, PROPERTY=VALUE
    #[arg(short = 'o')]
    properties: Vec<String>,
    /// Directory below which everything is mounted
    #[arg(short = 'R')]
    altroot: Option<String>,
    /// Name or GUID
    #[arg(conflicts_with = "all")]
    pool: Option<String>,
    /// New name
    new_name: Option<String>,
}

impl Import {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let importing = self.all || self.pool.is_some();
        let mut properties = Vec::new();
        for word in &self.properties {
            // Mount options stand without a value (`-o ro`), pool properties with one.
            match word.as_str() {
                "ro" => properties.push(("readonly".to_owned(), "on".to_owned())),
                word => properties.extend(assignments(&[word.to_owned()])?),
            }
        }
        let call = ZpoolImport {
            search: self
                .search
                .iter()
                .map(|path| absolute(path))
                .collect::<anyhow::Result<_>>()?,
            pool: self.pool.clone(),
            all: self.all,
            new_name: self.new_name,
            destroyed: self.destroyed,
            force: self.force,
            no_mount: self.no_mount,
            altroot: self.altroot,
            properties,
            command: typed,
        };
        let reply = client.call(&call)?;
        for warning in &reply.warnings {
            eprintln!("{warning}");
        }
        if importing {
            return Ok(());
        }
        if reply.found.is_empty() {
            bail!("no pools available to import");
        }
        for (index, pool) in reply.found.iter().enumerate() {
            if index > 0 {
                println!();
            }
            print_found(pool);
        }
        Ok(())
    }
}

fn print_found(pool: &FoundPoolReport) {
    println!("  pool: {}", pool.name);
    println!("    id: {}", pool.guid);
    println!(" state: {}", pool.state);
    print_wrapped("status", pool.status.as_deref());
    print_wrapped("action", Some(&pool.action));
    if let Some(comment) = &pool.comment {
        println!("comment: {comment}");
    }
    println!("config:\n");
    print_config(
        &pool.tree,
        Naming {
            full_paths: false,
            guids: false,
        },
        false,
        false,
    );
}

fn absolute(path: &str) -> anyhow::Result<String> {
    let path = std::path::absolute(path)
        .with_context(|| format!("'{path}' cannot be made an absolute path"))?;
    Ok(path.to_string_lossy().into_owned())
}
