//! `zfs version` and `zpool version` (`zfs_version_print`, lib/libzfs/libzfs_util.c): what the
//! command is, and what the daemon is that stands in the place of the kernel module.

use clap::Args;
use serde_json::json;

use crate::json;

/// Print the version.
#[derive(Debug, Args)]
pub struct Version {
    /// JSON
    #[arg(short = 'j', long = "json")]
    json: bool,
}

impl Version {
    /// Prints it.
    pub fn run(self, command: &str) -> anyhow::Result<()> {
        let version = format!("millpond-{}", env!("CARGO_PKG_VERSION"));
        let formats = "OpenZFS 2.3 (pool version 5000, filesystem version 5)";
        if self.json {
            let mut document = json::document(&format!("{command} version"));
            document.insert(
                "zfs_version".into(),
                json!({"userland": version, "kernel": version, "format": formats}),
            );
            return json::print(document);
        }
        println!("{version}");
        println!("on-disk format: {formats}");
        Ok(())
    }
}
