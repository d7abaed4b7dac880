//! `zfs set` and `zfs inherit` (`zfs_do_set`, `zfs_do_inherit`, cmd/zfs/zfs_main.c).

use anyhow::bail;
use api::{ZfsChanged, ZfsInherit, ZfsSet};
use clap::Args;
use dataset::props::{find, is_user_property};

use super::values;
use crate::client::Client;
use crate::settings::assignments;
use crate::usage::{MINUS_ONE, Status};

/// Set properties.
#[derive(Debug, Args)]
pub struct Set {
    /// Leave mounts and shares as they are
    #[arg(short = 'u')]
    no_mount: bool,
    /// PROPERTY=VALUE... DATASET...
    #[arg(required = true, num_args = 2..)]
    words: Vec<String>,
}

impl Set {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        let count = self
            .words
            .iter()
            .take_while(|word| word.contains('='))
            .count();
        let (assigned, names) = self.words.split_at(count);
        if names.iter().any(|name| name.contains('=')) {
            bail_usage!("invalid argument order");
        }
        if names.is_empty() {
            bail_usage!("missing dataset name(s)");
        }
        if assigned.is_empty() {
            bail_usage!("missing property=value argument(s)");
        }
        let properties = assignments(assigned).map_err(|error| Status {
            code: MINUS_ONE,
            text: format!("{error:#}"),
        })?;
        let changed = client.call(&ZfsSet {
            names: names.to_vec(),
            properties,
            no_mount: self.no_mount,
            command: typed,
        });
        let changed = changed.map_err(|error| {
            let text = format!("{error:#}");
            // One that is not there is not opened; what else goes wrong is -1.
            let begins = ["cannot set property for ", "cannot unmount "];
            let is_refused = |line: &str| begins.iter().any(|begin| line.starts_with(begin));
            match text.lines().any(is_refused) {
                true => Status {
                    code: MINUS_ONE,
                    text,
                }
                .into(),
                false => error,
            }
        })?;
        warn(&changed);
        Ok(())
    }
}

/// Let a property be inherited again.
#[derive(Debug, Args)]
pub struct Inherit {
    /// Children too
    #[arg(short)]
    recursive: bool,
    /// Return to the received value where there is one
    #[arg(short = 'S')]
    received: bool,
    property: String,
    #[arg(required = true)]
    datasets: Vec<String>,
}

impl Inherit {
    /// Asks the daemon.
    pub fn run(self, client: &Client, typed: String) -> anyhow::Result<()> {
        check_inherit(&self.property, self.received)?;
        let changed = client.call(&ZfsInherit {
            names: self.datasets,
            property: self.property,
            recursive: self.recursive,
            received: self.received,
            command: typed,
        })?;
        warn(&changed);
        Ok(())
    }
}

/// Tells what the daemon warns of after a change.
pub fn warn(changed: &ZfsChanged) {
    for warning in &changed.warnings {
        eprintln!("{warning}");
    }
}

/// Refuses properties that no dataset inherits (`zfs_do_inherit`, cmd/zfs/zfs_main.c).
fn check_inherit(name: &str, received: bool) -> anyhow::Result<()> {
    let Some(property) = find(name) else {
        if values::is_default_quota(name) {
            bail!("'{name}' property cannot be inherited");
        }
        if !is_user_property(name) {
            bail_usage!("invalid property '{name}'");
        }
        return Ok(());
    };
    if property.is_read_only() {
        bail!("{name} property is read-only");
    }
    if received && matches!(property.name, "volsize" | "version") {
        bail!("'{name}' property cannot be reverted to a received value");
    }
    if received || property.is_inheritable() {
        return Ok(());
    }
    let is_size = matches!(
        property.name,
        "quota" | "reservation" | "refquota" | "refreservation"
    );
    let instead = match is_size {
        true => format!(
            "\nuse 'zfs set {name}=none' to clear\nuse 'zfs inherit -S {name}' to revert to \
             received value"
        ),
        false => String::new(),
    };
    bail!("'{name}' property cannot be inherited{instead}")
}
