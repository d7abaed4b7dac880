//! `zfs diff` (`zfs_do_diff`, cmd/zfs/zfs_main.c; lib/libzfs/libzfs_diff.c).

use std::io::Write;

use api::{DiffFile, DiffKind, DiffReport, ZfsDiff};
use clap::Args;
use serde_json::{Value, json};

use crate::client::Client;
use crate::json;

/// Tell what changed between snapshots, or since one.
#[derive(Debug, Args)]
pub struct Diff {
    /// Tell what each file is: B C / | F = @
    #[arg(short = 'F')]
    classify: bool,
    /// Tabs between fields, no arrows
    #[arg(short = 'H')]
    scripted: bool,
    /// Tell when each file changed
    #[arg(short = 't')]
    timestamps: bool,
    /// Paths as they are, without octal digits for unusual characters
    #[arg(short = 'h')]
    raw: bool,
    /// JSON (not in OpenZFS); paths as without -h
    #[arg(short = 'j', long = "json", conflicts_with = "raw")]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// FILESYSTEM@SNAPSHOT, or @SNAPSHOT
    from: String,
    /// FILESYSTEM@SNAPSHOT, @SNAPSHOT or FILESYSTEM; without it, what is there now
    to: Option<String>,
}

impl Diff {
    /// Asks the daemon and prints.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let (from, to) = names(&self.from, self.to.as_deref())?;
        let reply = client.call(&ZfsDiff { from, to })?;
        let mut out = Vec::new();
        if self.json {
            let mut document = json::document("zfs diff");
            document.insert(
                "changes".into(),
                reply.changes.iter().map(change_json).collect(),
            );
            out.extend_from_slice(format!("{}\n", Value::Object(document)).as_bytes());
        } else {
            for change in &reply.changes {
                self.line(change, &mut out);
            }
        }
        // Whoever reads may have gone.
        if let Err(error) = std::io::stdout().write_all(&out)
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            return Err(error.into());
        }
        for failure in &reply.failures {
            eprintln!("{failure}");
        }
        Ok(())
    }

    fn line(&self, change: &DiffReport, out: &mut Vec<u8>) {
        if self.timestamps {
            let (seconds, nanoseconds) = change.changed;
            out.extend_from_slice(format!("{seconds:>10}.{nanoseconds:09}\t").as_bytes());
        }
        out.extend_from_slice(letter(change.change).as_bytes());
        out.push(b'\t');
        if self.classify {
            out.extend_from_slice(sign(change.file).as_bytes());
            out.push(b'\t');
        }
        self.path(&change.path, out);
        if let Some(new_path) = &change.new_path {
            let between: &[u8] = if self.scripted { b"\t" } else { b" -> " };
            out.extend_from_slice(between);
            self.path(new_path, out);
        }
        if let Some(links) = change.links {
            out.extend_from_slice(format!("\t({links:+})").as_bytes());
        }
        out.push(b'\n');
    }

    fn path(&self, path: &str, out: &mut Vec<u8>) {
        match self.raw {
            true => out.extend(plain(path)),
            false => out.extend_from_slice(path.as_bytes()),
        }
    }
}

/// What became of a file.
fn letter(change: DiffKind) -> &'static str {
    match change {
        DiffKind::Added => "+",
        DiffKind::Removed => "-",
        DiffKind::Modified => "M",
        DiffKind::Renamed => "R",
    }
}

/// What a file is.
fn sign(file: DiffFile) -> &'static str {
    match file {
        DiffFile::BlockDevice => "B",
        DiffFile::CharDevice => "C",
        DiffFile::Directory => "/",
        DiffFile::Fifo => "|",
        DiffFile::Regular => "F",
        DiffFile::Socket => "=",
        DiffFile::Symlink => "@",
    }
}

fn change_json(change: &DiffReport) -> Value {
    let (seconds, nanoseconds) = change.changed;
    let mut entry = json!({
        "change": letter(change.change),
        "type": sign(change.file),
        "path": change.path,
        "time": format!("{seconds}.{nanoseconds:09}"),
    });
    if let Some(new_path) = &change.new_path {
        entry["new_path"] = json!(new_path);
    }
    if let Some(links) = change.links {
        entry["links"] = json!(links);
    }
    entry
}

/// Full names of both sides (`get_snapshot_names`).
fn names(from: &str, to: Option<&str>) -> anyhow::Result<(String, String)> {
    let Some(to) = to else {
        let head = from.split('@').next().unwrap_or("");
        if head.is_empty() {
            bail_usage!("");
        }
        if head.contains('#') {
            anyhow::bail!("cannot open '{head}': bookmark delimiter '#' is not expected here");
        }
        let fault = match (from.contains('@'), dataset::name::check_name(from)) {
            (false, _) => Some("missing '@' delimiter in snapshot name".to_owned()),
            (true, Err(dataset::DatasetError::InvalidName { reason, .. })) => Some(reason),
            (true, _) => None,
        };
        if let Some(fault) = fault {
            anyhow::bail!("Badly formed snapshot name {from}: {fault}");
        }
        return Ok((from.to_owned(), head.to_owned()));
    };
    let split = |name: &str| match name.find('@') {
        Some(at) => (name[..at].to_owned(), name[at..].to_owned()),
        None => (name.to_owned(), String::new()),
    };
    let ((from_head, from_snapshot), (to_head, to_snapshot)) = (split(from), split(to));
    let is_named = !from_head.is_empty() || !to_head.is_empty();
    if from_snapshot.len() <= 1 || to_snapshot.len() == 1 || !is_named {
        anyhow::bail!("Unable to determine which snapshots to compare: invalid name");
    }
    let or = |head: String, other: &str| match head.is_empty() {
        true => other.to_owned(),
        false => head,
    };
    let from_head = or(from_head, &to_head);
    let to_head = or(to_head, &from_head);
    Ok((
        format!("{from_head}{from_snapshot}"),
        format!("{to_head}{to_snapshot}"),
    ))
}

/// A path's bytes.
fn plain(path: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let digits = rest.get(at + 1..at + 5).unwrap_or("");
        match u8::from_str_radix(digits, 8) {
            Ok(byte) => bytes.push(byte),
            Err(_) => bytes.extend_from_slice(digits.as_bytes()),
        }
        rest = rest.get(at + 5..).unwrap_or("");
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_back() {
        assert_eq!(plain("/a\\0040b\\0134\\0303\\0244"), b"/a b\\\xc3\xa4");
    }

    #[test]
    fn changes_in_json_have_both_paths() {
        let renamed = DiffReport {
            change: DiffKind::Renamed,
            file: DiffFile::Directory,
            path: "/a".to_owned(),
            new_path: Some("/b".to_owned()),
            links: None,
            changed: (7, 5),
        };
        let expected = json!({
            "change": "R", "type": "/", "path": "/a", "new_path": "/b", "time": "7.000000005",
        });
        assert_eq!(change_json(&renamed), expected);
    }

    #[test]
    fn one_name_may_lack_the_filesystem() {
        let full =
            |from: &str, to: Option<&str>| names(from, to).map_err(|error| error.to_string());
        let ok = |from: &str, to: &str| Ok((from.to_owned(), to.to_owned()));
        assert_eq!(full("t/a@1", None), ok("t/a@1", "t/a"));
        assert_eq!(full("t/a@1", Some("@2")), ok("t/a@1", "t/a@2"));
        assert_eq!(full("@1", Some("t/a@2")), ok("t/a@1", "t/a@2"));
        assert_eq!(full("@1", Some("t/a")), ok("t/a@1", "t/a"));
        assert!(full("t/a", Some("t/a@2")).is_err());
        assert!(full("@1", Some("@2")).is_err());
    }
}
