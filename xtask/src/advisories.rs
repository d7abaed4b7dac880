//! Advisories about dependencies: `cargo deny` looks them up in a database that is in the
//! repository (`advisories/rustsec.txt`, renewed by `scripts/advisories`), so that CI needs no
//! network for it and the same commit always has the same answer.
//!
//! The file has a line `=== PATH` before each advisory, which is a file of that path in the
//! database's own repository. `cargo deny` reads a clone of that: a directory that it names by the
//! database's address (`url_to_db_path` of cargo-deny, src/advisories/helpers/db.rs), in which
//! `.git/FETCH_HEAD` is as old as the last look at that address (`get_fetch_time`, src/git.rs).

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};

const FILE: &str = "advisories/rustsec.txt";
const MARK: &str = "=== ";
/// What `cargo deny` calls <https://github.com/RustSec/advisory-db>.
const DIRECTORY: &str = "advisory-db-3157b0e258782691";

/// Unpacks the database into a directory, which is made anew; gives the configuration with which
/// `cargo deny` finds it. `root` is that of the workspace.
///
/// # Errors
/// The database cannot be read, or is none; and of writing.
pub fn unpack(root: &Path, to: &Path) -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string(root.join(FILE));
    let text = text.with_context(|| format!("{FILE} cannot be read"))?;
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let database = to.join(DIRECTORY);
    fs::create_dir_all(database.join(".git"))?;
    fs::write(database.join(".git/FETCH_HEAD"), "")?;
    let mut count = 0;
    for part in text.split(&format!("\n{MARK}")).skip(1) {
        let (path, advisory) = part.split_once('\n').context("an advisory is cut short")?;
        let path = Path::new(path);
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if !path.components().all(is_plain) || !path.starts_with("crates") {
            bail!("{FILE}: {} is no path of an advisory", path.display());
        }
        let path = database.join(path);
        fs::create_dir_all(path.parent().context("it is in a directory")?)?;
        fs::write(path, advisory)?;
        count += 1;
    }
    if count == 0 {
        bail!("{FILE} has no advisory; 'scripts/advisories' renews it");
    }
    let rules = fs::read_to_string(root.join("deny.toml")).context("deny.toml cannot be read")?;
    let section = "[advisories]\n";
    if !rules.contains(section) {
        bail!("deny.toml has no section {section}");
    }
    let place = format!("{section}db-path = {to:?}\n");
    let configuration = to.join("deny.toml");
    fs::write(&configuration, rules.replacen(section, &place, 1))?;
    Ok(configuration)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Goal: dependencies are looked up in what is unpacked: an advisory about one of them is told.
    #[test]
    fn an_advisory_about_a_dependency_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        let root = root.expect("the root of the workspace");
        let directory = tempfile::tempdir().expect("a directory");
        let to = directory.path().join("database");
        let configuration = unpack(root, &to).expect("unpacked");
        let look = || {
            let mut look = Command::new("cargo");
            look.current_dir(root);
            look.args(["deny", "--locked", "--offline", "--config"]);
            look.arg(&configuration).args(["check", "advisories"]);
            let output = look.output().expect("cargo starts");
            (
                output.status.success(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        };
        let (is_well, said) = look();
        if said.contains("no such command") {
            let what = "cargo-deny (cargo install cargo-deny)";
            assert!(!oracles::need(what, false));
            return;
        }
        assert!(is_well, "{said}");
        let advisory = "```toml\n[advisory]\nid = \"RUSTSEC-2099-0001\"\npackage = \"bytes\"\n\
                        date = \"2099-01-01\"\n\n[versions]\npatched = []\n```\n\n# Made up\n";
        let place = to.join(DIRECTORY).join("crates/bytes");
        fs::create_dir_all(&place).expect("a directory");
        fs::write(place.join("RUSTSEC-2099-0001.md"), advisory).expect("written");
        let (is_well, said) = look();
        assert!(!is_well && said.contains("RUSTSEC-2099-0001"), "{said}");
    }
}
