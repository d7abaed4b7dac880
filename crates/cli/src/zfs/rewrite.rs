//! `zfs rewrite` (zfs-rewrite(8), `zfs_do_rewrite` in cmd/zfs/zfs_main.c).

use api::ZfsRewrite;
use clap::Args;

use crate::client::Client;

/// Write files again as they are.
#[derive(Debug, Args)]
pub struct Rewrite {
    /// Leave blocks as old as they are (needs feature physical_rewrite)
    #[arg(short = 'P')]
    physical: bool,
    /// All below directories, too
    #[arg(short)]
    recursive: bool,
    /// Print the names of the files that were rewritten
    #[arg(short)]
    verbose: bool,
    /// Not what is mounted below the directories
    #[arg(short = 'x')]
    one_filesystem: bool,
    /// At most so many bytes of each file
    #[arg(short, value_name = "LENGTH", value_parser = bytes, default_value = "0")]
    length: u64,
    /// From this byte of each file on
    #[arg(short, value_name = "OFFSET", value_parser = bytes, default_value = "0")]
    offset: u64,
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<String>,
}

/// A number of bytes: decimal, or as C writes numbers of other bases.
fn bytes(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(&text[1..], 8),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is not a number of bytes"))
}

impl Rewrite {
    /// Asks the daemon and prints. What cannot be rewritten does not keep it from the rest.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let mut paths = Vec::new();
        let mut status = 0;
        for given in &self.paths {
            let found = std::fs::symlink_metadata(given);
            match found.and_then(|_| std::fs::canonicalize(given)) {
                Ok(path) => paths.push((given, path.to_string_lossy().into_owned())),
                Err(error) => {
                    status = error.raw_os_error().unwrap_or(1);
                    let why = api::for_people(error.to_string());
                    eprintln!("failed to stat {given}: {why}");
                }
            }
        }
        for (given, path) in paths {
            // A link is neither a file nor a directory.
            if std::fs::symlink_metadata(given).is_ok_and(|found| found.is_symlink()) {
                continue;
            }
            let reply = client.call_until_interrupted(&ZfsRewrite {
                paths: vec![path.clone()],
                recursive: self.recursive,
                one_filesystem: self.one_filesystem,
                offset_bytes: self.offset,
                length_bytes: self.length,
                physical: self.physical,
                list: self.verbose,
            })?;
            // Names are shown below what was given.
            let shown = |found: &str| match found.strip_prefix(&path) {
                Some("") | None => given.clone(),
                Some(below) => format!("{}{below}", given.trim_end_matches('/')),
            };
            for file in &reply.files {
                println!("{}", shown(file));
            }
            for not in &reply.failed {
                let why = api::for_people(not.why.clone());
                eprintln!("failed to rewrite {}: {why}", shown(&not.path));
                status = 1;
            }
        }
        if status != 0 {
            // Everything is told already.
            std::process::exit(status);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn numbers_are_read_as_strtoll_reads_them() {
        assert_eq!(bytes("131072"), Ok(131_072));
        assert_eq!(bytes("0x20000"), Ok(131_072));
        assert_eq!(bytes("0400000"), Ok(131_072));
        assert_eq!(bytes("0"), Ok(0));
        assert!(bytes("1M").is_err() && bytes("-1").is_err() && bytes("").is_err());
    }
}
