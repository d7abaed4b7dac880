//! `zfs project` (zfs-project(8), cmd/zfs/zfs_project.c): the projects of files and directories.

use api::{ProjectChange, ZfsProject};
use clap::Args;

use crate::client::Client;
use crate::usage::MINUS_ONE;

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
    #[arg(short, value_name = "ID", value_parser = project_id)]
    project: Option<u32>,
    /// What is made in the directories is of their project
    #[arg(short)]
    set_inherit: bool,
    /// Clear the project and that it is inherited
    #[arg(short = 'C')]
    clear: bool,
    /// Keep the project when clearing
    #[arg(short)]
    keep: bool,
    /// Tell what has another project than the directory, or does not pass it on
    #[arg(short)]
    check: bool,
    /// With -c: names only, each ended by a zero byte
    #[arg(short = '0')]
    zero: bool,
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<String>,
}

/// A project's number.
fn project_id(word: &str) -> Result<u32, String> {
    match word.parse() {
        Ok(id) if id < u32::MAX => Ok(id),
        _ => Err(format!("project ID must be less than {}", u32::MAX)),
    }
}

impl Project {
    /// Refuses options that do not go together.
    fn check_options(&self) -> anyhow::Result<()> {
        let kinds = [self.clear, self.check, self.set_inherit];
        let sets = !self.check && (self.set_inherit || self.project.is_some());
        let fault = if kinds.into_iter().filter(|given| *given).count() > 1 {
            "cannot specify '-C' '-c' '-s' together"
        } else if self.keep && !self.clear {
            "'-k' is only valid together with '-C'"
        } else if self.zero && !self.check {
            "'-0' is only valid together with '-c'"
        } else if self.directory_only && self.clear {
            "'-d' is useless together with '-C'"
        } else if self.project.is_some() && self.clear {
            "'-p' is useless together with '-C'"
        } else if self.directory_only && sets {
            "'-d' is useless for set project ID and/or inherit flag"
        } else {
            return Ok(());
        };
        bail_usage!("{fault}")
    }

    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        self.check_options()?;
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
        for given in &self.paths {
            let path = match std::fs::canonicalize(given) {
                Ok(path) => path.to_string_lossy().into_owned(),
                Err(error) => bail_status!(MINUS_ONE, "failed to stat {given}: {error}"),
            };
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        project: Project,
    }

    #[test]
    fn options_that_make_no_sense_together_are_refused() {
        let check = |line: &str| {
            let words = ["project"].into_iter().chain(line.split(' '));
            let parsed =
                Words::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            parsed.project.check_options()
        };
        for line in [
            "-c -k", "-c -C", "-c -s", "-C -d", "-C -p 1", "-C -s", "-C -r -0", "-s -d", "-s -k",
            "-0", "-k", "-p 1 -0", "-p 1 -d",
        ] {
            assert!(check(&format!("{line} f")).is_err(), "{line}");
        }
        for line in [
            "-c -d -r",
            "-c -r -0 -p 5",
            "-C -k -r",
            "-s -r",
            "-s -p 7",
            "-d",
            "-r",
        ] {
            check(&format!("{line} f")).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
