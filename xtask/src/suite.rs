//! The tests of CI, in two lanes, so that no core is idle while tests wait for servers, clients and
//! the machine with the real OpenZFS. In one, OpenZFS's test suite, and after it those that use
//! loop devices: the suite imports and destroys pools that it finds on any device of the machine.
//! In the other what uses none: the simulator's, the examples in documentation, and all other
//! tests. `cargo nextest` runs them (`.config/nextest.toml` says in which order).
//!
//! With `MILLPOND_LONG=1` what meets bad input and faults runs once more as users have it: release
//! builds differ by what optimizations change, and since `debug_assert` checks nothing there.
//!
//! All run, also after one failed. What all but the workspace's tests print is kept and shown whole
//! when each has ended, so that nothing is mixed. At the end it says how many tests passed, failed
//! and were left out, and why.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

/// Name of the file in which tests say that they were left out.
const LEFT_OUT: &str = "left-out";

/// How what is not built for release is built.
const PROFILE: &str = "ci";

/// What is built of each package. Examples have no tests, and clippy sees that they are right.
const TARGETS: [&str; 3] = ["--lib", "--bins", "--tests"];

/// The packages whose tests compute all the time.
const SIMULATOR: &str = "package(sim) + package(trial)";

/// The packages whose tests use loop devices, for `cargo nextest`.
const WITH_DEVICES: &str = "package(cli) + package(device)";

/// What is built and run for release, with `MILLPOND_LONG=1`: a name, and cargo's arguments.
const RELEASE: [(&str, &[&str]); 2] = [
    ("release: sim and trial", &["-p", "sim", "-p", "trial"]),
    (
        "release: filesystem",
        &[
            "-p",
            "filesystem",
            "--test",
            "all",
            "-E",
            "test(/^(flips|hostile)::/)",
        ],
    ),
];

/// A program that runs tests.
struct Run {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, PathBuf)>,
}

/// Builds the tests of the workspace and runs them. Fails if any of them does, once all have run.
pub fn run() -> anyhow::Result<()> {
    let begin = Instant::now();
    // Before the build, which may put another one in this program's place.
    let own = std::env::current_exe().context("where this program is")?;
    println!("== tests: build");
    let millpond = build()?;
    println!("== tests: built in {} s", begin.elapsed().as_secs());
    // Both are of the whole workspace: a part may have other features, and be built anew.
    let all = [&["--workspace", "--cargo-profile", PROFILE], &TARGETS[..]].concat();
    let of = |name, which: &str, threads: &str| {
        let which = ["-E", which, "--test-threads", threads];
        Run::nextest(name, &[&all[..], &which].concat())
    };
    let commands = of("commands and devices", WITH_DEVICES, "6");
    let suite = Run {
        name: "OpenZFS's test suite",
        program: own,
        arguments: vec!["zts".into()],
        environment: vec![(crate::zts::BINARY, millpond)],
    };
    // It computes: with more threads than cores its tests would only be longer.
    let mut beside = vec![of("simulator", SIMULATOR, "2")];
    if is_long() {
        for (name, arguments) in RELEASE {
            beside.push(Run::nextest(name, &[&["--release"], arguments].concat()));
        }
    }
    let documentation = [
        "test",
        "--workspace",
        "--locked",
        "--doc",
        "--profile",
        PROFILE,
    ];
    beside.push(Run::cargo("documentation", &documentation));
    let others = format!("all() - ({SIMULATOR} + {WITH_DEVICES})");
    beside.push(of("all others", &others, "3"));

    let directory = tempfile::tempdir().context("a directory for what is left out")?;
    let left_out = directory.path().join(LEFT_OUT);
    let ends = std::thread::scope(|scope| {
        let lane = scope.spawn(|| {
            let ends = beside.iter().map(|run| (run.name, run.kept(&left_out)));
            ends.collect::<Vec<_>>()
        });
        let mut ends = vec![(suite.name, suite.kept(&left_out))];
        ends.push((commands.name, commands.shown(&left_out)));
        ends.extend(
            lane.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        );
        ends
    });

    let mut counts = Counts::default();
    let mut failed = Vec::new();
    for (name, (count, result)) in ends {
        counts += count;
        if let Err(error) = result {
            println!("== {name}: FAILED: {error:#}");
            failed.push(name);
        }
    }
    let left_out = reasons(&left_out);
    for (why, count) in &left_out {
        println!("== left out, {count} times: {why}");
    }
    println!("== tests: {} s", begin.elapsed().as_secs());
    println!(
        "{} passed, {} failed, {} skipped",
        counts.passed,
        counts.failed,
        counts.ignored + left_out.values().sum::<u64>()
    );
    if !failed.is_empty() {
        bail!("tests failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Whether tests run at full length.
fn is_long() -> bool {
    std::env::var_os("MILLPOND_LONG").is_some_and(|value| value == "1")
}

/// Builds all tests and says where the product's binary is.
fn build() -> anyhow::Result<PathBuf> {
    let output = Command::new("cargo")
        .args(["nextest", "list", "--workspace", "--locked"])
        .args(["--cargo-profile", PROFILE])
        .args(TARGETS)
        .args(["--list-type", "binaries-only", "--message-format", "json"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo could not be started; is it installed?")?;
    if !output.status.success() {
        bail!("the tests do not build ({})", output.status);
    }
    let list = serde_json::from_slice(&output.stdout).context("what nextest has built")?;
    product(&list).context("nextest did not build the product's binary")
}

/// The product's binary, in nextest's list of binaries.
fn product(list: &Value) -> Option<PathBuf> {
    let built = &list["rust-build-meta"];
    let programs = built["non-test-binaries"].as_object()?;
    let mut programs = programs.values().filter_map(Value::as_array).flatten();
    let product = programs.find(|program| program["name"] == "millpond")?;
    Some(Path::new(built["target-directory"].as_str()?).join(product["path"].as_str()?))
}

/// How tests ended.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl Counts {
    /// What a line that sums up says: cargo's `test result: ok. 3 passed; 0 failed; 1 ignored; ...`
    /// or nextest's `Summary [ 2.5s] 3 tests run: 2 passed (1 slow), 1 timed out, 7 skipped`. What
    /// nextest calls skipped was not asked for.
    fn of(line: &str) -> Self {
        let line = line.trim_start();
        let mut out = Self::default();
        if !line.starts_with("test result: ") && !line.starts_with("Summary [") {
            return out;
        }
        let words: Vec<&str> = line
            .split([' ', ';', ',', '('])
            .filter(|word| !word.is_empty())
            .collect();
        for (index, word) in words.iter().enumerate() {
            let Ok(number) = word.parse::<u64>() else {
                continue;
            };
            match words[index + 1..] {
                ["passed", ..] => out.passed += number,
                ["failed" | "timed", ..] | ["exec", "failed", ..] => out.failed += number,
                ["ignored", ..] => out.ignored += number,
                _ => {}
            }
        }
        out
    }
}

/// Why tests that passed did not test anything, and how many of them: the file to which they say so
/// (crate `oracles`).
fn reasons(path: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut out = BTreeMap::new();
    for line in text.lines() {
        *out.entry(line.to_owned()).or_default() += 1;
    }
    out
}

impl Run {
    fn cargo(name: &'static str, arguments: &[&str]) -> Self {
        Self {
            name,
            program: "cargo".into(),
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: Vec::new(),
        }
    }

    fn nextest(name: &'static str, arguments: &[&str]) -> Self {
        let first = ["nextest", "run", "--locked"];
        // The long versions of tests may take hours; nobody gives up on them.
        let profile: &[&str] = if is_long() { &[] } else { &["--profile", "ci"] };
        Self::cargo(name, &[&first, profile, arguments].concat())
    }

    /// Runs it and shows what it prints as it comes.
    fn shown(&self, left_out: &Path) -> (Counts, anyhow::Result<()>) {
        self.run(left_out, &mut std::io::stdout())
    }

    /// Runs it and shows what it printed when it has ended.
    fn kept(&self, left_out: &Path) -> (Counts, anyhow::Result<()>) {
        let mut text = Vec::new();
        let begin = Instant::now();
        println!("== {}: begins", self.name);
        let end = self.run(left_out, &mut text);
        let text = String::from_utf8_lossy(&text);
        println!(
            "== {}: {} s\n{}",
            self.name,
            begin.elapsed().as_secs(),
            text.trim_end()
        );
        end
    }

    fn run(&self, left_out: &Path, output: &mut impl Write) -> (Counts, anyhow::Result<()>) {
        let mut counts = Counts::default();
        let result = self.try_run(left_out, output, &mut counts);
        (counts, result)
    }

    fn try_run(
        &self,
        left_out: &Path,
        output: &mut impl Write,
        counts: &mut Counts,
    ) -> anyhow::Result<()> {
        let (reader, writer) = std::io::pipe().context("a pipe for what it prints")?;
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .env("MILLPOND_LEFT_OUT", left_out)
            .envs(self.environment.iter().map(|(name, path)| (name, path)))
            .stdin(Stdio::null())
            .stdout(writer.try_clone().context("a pipe for what it prints")?)
            .stderr(writer)
            .spawn()
            .with_context(|| format!("{} could not be started", self.program.display()))?;
        let mut lines = BufReader::new(reader);
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = lines.read_until(b'\n', &mut line);
            if length.context("what it prints")? == 0 {
                break;
            }
            *counts += Counts::of(&String::from_utf8_lossy(&line));
            output.write_all(&line).context("what it prints, shown")?;
        }
        let status = child.wait().context("how it ended")?;
        if !status.success() {
            bail!("{status}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed_up() {
        let text = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out\n\
            what a test prints: 7 passed\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n\
            \x20    Summary [  12.345s] 9 tests run: 6 passed (1 slow, 1 leaky), 1 failed, \
            1 exec failed, 1 timed out, 5 skipped\n";
        let mut sum = Counts::default();
        text.lines().for_each(|line| sum += Counts::of(line));
        let expected = Counts {
            passed: 10,
            failed: 5,
            ignored: 1,
        };
        assert_eq!(sum, expected);
    }

    #[test]
    fn the_product_is_found_among_what_was_built() {
        let list = serde_json::json!({
            "rust-build-meta": {
                "target-directory": "/target",
                "non-test-binaries": {
                    "xtask 0.1.0": [{ "name": "xtask", "path": "debug/xtask" }],
                    "cli 0.1.0": [{ "name": "millpond", "path": "debug/millpond" }],
                },
            },
        });
        assert_eq!(product(&list), Some("/target/debug/millpond".into()));
        assert_eq!(product(&serde_json::json!({})), None);
    }
}
