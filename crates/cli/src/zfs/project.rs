//! `zfs project` (zfs-project(8), cmd/zfs/zfs_project.c): the projects of files and directories.

use anyhow::{Context, bail};
use api::{ProjectChange, ZfsProject};
use clap::Args;

use crate::client::Client;

/// List, check, set or clear projects.
#[derive(Debug, Args)]
pub struct Project {
    /// The directory alone, not what is in it
    #[arg(short, overrides_with = "recursive")]
    directory_only: bool,
    /// All below directories, too
    #[arg(short, overrides_with = "directory_only")]
    recursive: bool,
    /// Set the project (with -c: compare with it)
    #[arg(short, value_name = "ID", conflicts_with = "clear")]
    project: Option<u32>,
    /// What is made in the directories is of their project
    #[arg(short, conflicts_with_all = ["clear", "check"])]
    set_inherit: bool,
    /// Clear the project and that it is inherited
    #[arg(short = 'C')]
    clear: bool,
    /// Keep the project when clearing
    #[arg(short, requires = "clear")]
    keep: bool,
    /// Tell what has another project than the directory, or does not pass it on
    #[arg(short, conflicts_with = "clear")]
    check: bool,
    /// With -c: names only, each ended by a zero byte
    #[arg(short = '0', requires = "check")]
    zero: bool,
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<String>,
}

impl Project {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let change = if self.clear {
            Some(ProjectChange::Clear {
                keep_project: self.keep,
            })
        } else if !self.check && (self.project.is_some() || self.set_inherit) {
            Some(ProjectChange::Set {
                project: self.project.map(u64::from),
                inherit: self.set_inherit,
            })
        } else {
            None
        };
        if self.keep && !self.clear {
            bail!("'-k' goes with '-C'");
        }
        if self.directory_only && change.is_some() {
            bail!("'-d' does not go with '-C', '-s', or '-p' without '-c'");
        }
        for given in &self.paths {
            let path = std::fs::canonicalize(given)
                .with_context(|| format!("failed to stat {given}"))?
                .to_string_lossy()
                .into_owned();
            let reply = client.call(&ZfsProject {
                paths: vec![path.clone()],
                change: change.clone(),
                recursive: self.recursive,
                directory_only: self.directory_only,
            })?;
            // Names are shown below what was given.
            let top = reply.files.first().map_or(0, |file| file.project);
            let wanted = self.project.map_or(top, u64::from);
            for file in &reply.files {
                let below = file.path.strip_prefix(&path).unwrap_or(&file.path);
                let name = format!("{}{below}", given.trim_end_matches('/'));
                if !self.check {
                    let inherits = if file.inherits { 'P' } else { '-' };
                    println!("{:>5} {inherits} {name}", file.project);
                    continue;
                }
                let differs = file.project != wanted;
                if self.zero && (differs || !file.inherits) {
                    print!("{name}\0");
                } else if !self.zero {
                    if differs {
                        println!(
                            "{name} - project ID is not set properly ({}/{wanted})",
                            file.project
                        );
                    }
                    if !file.inherits {
                        println!("{name} - project inherit flag is not set");
                    }
                }
            }
        }
        Ok(())
    }
}
