//! OpenZFS's own test suite (ZTS), driven against our `zpool` and `zfs`: `cargo xtask zts
//! [GROUP[:TEST,...]]...`.
//!
//! Without words it runs the quick list (`xtask/zts/quick`), as CI does: about 150 tests over many
//! groups. A line names a test that must pass, or one that does not and why; a test of the list
//! that fails fails the run and shows its log, and one that passes against expectation is told.
//! A server that panics fails the run, whatever is expected.
//! With words it runs whole groups, or tests of them, and tells how they end. `--all [GROUP]...`
//! runs the list of all tests (`xtask/zts/all`), or some groups of it, and ends with how many pass;
//! `--table` prints what that list expects, and runs nothing.
//!
//! The suite comes from Debian's package `zfs-test`, which `scripts/install test` unpacks; nothing
//! of it is kept here. It runs in a sandbox ([`sandbox`]) with an environment that answers for what
//! only a kernel module has ([`tools`]).

mod counts;
mod list;
mod runfiles;
mod sandbox;
mod session;
mod tools;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use counts::Counts;
use list::Expected;
use session::{Outcome, Session};

/// Where the binary under test is, when somebody has built it already.
pub const BINARY: &str = "MILLPOND";

/// The word that asks for the counts of the list of all tests.
const TABLE: &str = "--table";

/// The word by which the program calls itself inside the sandbox.
pub const INSIDE: &str = "zts-inside";

/// Builds the binary, makes the sandbox, and runs [`inside`] in it. Answers whether all was as
/// expected.
pub fn run(words: &[String]) -> anyhow::Result<()> {
    if words == [TABLE] {
        print!("{}", counts::table(&list::all()?));
        return Ok(());
    }
    let Some(suite) = wanted() else {
        // Left out; who runs the tests was told why.
        println!("test result: ok. 0 passed; 0 failed; 1 ignored;");
        return Ok(());
    };
    let binary = binary()?;
    // Wrong words are told before anything is made.
    list::select(words, &runfiles::load(&suite)?)?;
    sandbox::enter(&suite, &binary, words)
}

/// The suite, if it and all that it stands on is here.
fn wanted() -> Option<PathBuf> {
    let suite = oracles::zfs_test_suite()?;
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt;
        own.uid() == 0
    });
    let has_overlay = std::fs::read_to_string("/proc/filesystems")
        .is_ok_and(|list| list.lines().any(|line| line.ends_with("\toverlay")));
    let conditions = [
        ("root with /dev/fuse", is_root && is_there("/dev/fuse")),
        ("loop devices", is_there("/dev/loop-control")),
        ("overlayfs", has_overlay),
        ("ksh", tools::find("ksh").is_some()),
        ("zdb", tools::find("zdb").is_some()),
    ];
    let mut conditions = conditions.into_iter();
    conditions
        .all(|(what, holds)| oracles::need(what, holds))
        .then_some(suite)
}

fn is_there(path: &str) -> bool {
    Path::new(path).exists()
}

/// The binary under test, built if nobody has.
fn binary() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY) {
        return Ok(std::path::absolute(path)?);
    }
    crate::step(
        "build",
        "cargo",
        &[
            "build",
            "--locked",
            "--profile",
            "ci",
            "-p",
            "cli",
            "--bin",
            "millpond",
        ],
    )?;
    let own = std::env::current_exe().context("where this program is")?;
    let binary = own.with_file_name("millpond");
    if !binary.exists() {
        bail!("{} was not built; name it with {BINARY}", binary.display());
    }
    Ok(binary)
}

/// Runs the tests; this process is in the sandbox.
pub fn inside(words: &[String]) -> anyhow::Result<()> {
    let sandbox = sandbox::Sandbox::here()?;
    let groups = runfiles::load(&sandbox.suite)?;
    let selected = list::select(words, &groups)?;
    tools::install(&sandbox)?;
    let session = Session::new(&sandbox)?;
    let shows_logs = words.first().is_none_or(|word| word != list::ALL_WORD);
    let mut counts = Counts::default();
    let (mut wrong, mut better) = (Vec::new(), Vec::new());
    for group in &selected {
        session.group(group, &groups[&group.name], |test, outcome, seconds| {
            let name = format!("{}/{}", group.name, test.name);
            println!("{name}: {} ({seconds} s)", outcome.word());
            counts.ended(&test.expected, outcome == Outcome::Pass);
            match (&test.expected, outcome) {
                (Expected::Pass, Outcome::Pass) | (Expected::Any, _) => {}
                (
                    Expected::Deviates(why) | Expected::Waits(why) | Expected::Harness(why),
                    Outcome::Pass,
                ) => better.push(format!("{name}: {why}")),
                (Expected::Pass, _) => {
                    if shows_logs {
                        println!("{}", session.log_of(group, test));
                    }
                    wrong.push(name);
                }
                _ => {}
            }
        });
    }
    session.end();
    // Nobody expects that, however the test ends.
    for log in session.panics() {
        wrong.push(format!("{} (the server panicked)", log.display()));
    }
    for line in &better {
        println!("passes, though the list says otherwise: {line}");
    }
    // Of what was named nobody said how it ends.
    if selected.iter().all(|group| group.is_listed()) {
        println!("{counts}");
    }
    // The form in which `cargo xtask ci` counts.
    println!(
        "test result: {}. {} passed; {} failed; {} ignored;",
        if wrong.is_empty() { "ok" } else { "FAILED" },
        counts.pass,
        wrong.len(),
        counts.deviates + counts.waits + counts.harness,
    );
    if !wrong.is_empty() {
        bail!("should pass and do not: {}", wrong.join(", "));
    }
    Ok(())
}
