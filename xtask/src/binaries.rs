//! Test binaries, all of a workspace, two at a time: `cargo test` runs one after the other, so a core is idle while
//! tests wait for the one machine with the real OpenZFS.
//!
//! All are built first. What a binary prints goes to a file and is shown whole when it has ended, so nothing is mixed;
//! all run, also after one failed. What meets bad input and faults runs once more as users have it,
//! built for release (meanwhile), where optimizations differ and `debug_assert` checks nothing. At
//! the end it says how many tests passed, failed and were left out, and why.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

/// How many run at the same time.
const AT_ONCE: usize = 2;

/// Name of the file in which tests say that they were left out.
const LEFT_OUT: &str = "left-out";

/// The longest; it begins first.
const LONGEST: &str = "cli e2e";

/// What is built for release: a name, and cargo's arguments. They begin after the longest, which
/// leaves a core idle while it waits for disks.
const RELEASE: [(&str, &[&str]); 2] = [
    ("release: sim", &["-p", "sim", "--tests"]),
    (
        "release: filesystem",
        &["-p", "filesystem", "--test", "flips", "--test", "hostile"],
    ),
];

/// How many tests of a binary run at the same time at least, also on fewer cores: they wait for the machine and for disks.
const THREADS_MIN: usize = 4;

/// A program that runs tests.
struct Binary {
    /// Package and target, `engine crash`; the package alone for the tests in its sources.
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    /// Where it runs: the directory of its package.
    directory: PathBuf,
    environment: Vec<(&'static str, PathBuf)>,
}

/// Builds the tests of the workspace and runs them. Fails if any of them does, once all have run.
pub fn run() -> anyhow::Result<()> {
    let begin = Instant::now();
    // Before the build, which may put another one in this program's place.
    let own = std::env::current_exe().context("where this program is")?;
    println!("== tests: build");
    let (mut binaries, millpond) = build()?;
    println!("== tests: built in {} s", begin.elapsed().as_secs());
    binaries.sort_by_key(|binary| (binary.name != LONGEST, binary.name.clone()));
    for (name, arguments) in RELEASE {
        let at = binaries.len().min(1);
        binaries.insert(at, Binary::of_cargo(name, &["--release"], arguments));
    }
    binaries.push(Binary::of_cargo(
        "documentation",
        &["--workspace"],
        &["--doc"],
    ));
    // It takes minutes too, so it begins beside the longest.
    let suite = Binary {
        name: "OpenZFS's test suite".to_owned(),
        program: own,
        arguments: vec!["zts".to_owned()],
        directory: ".".into(),
        environment: vec![(crate::zts::BINARY, millpond)],
    };
    binaries.insert(1, suite);
    let count = binaries.len();
    let queue = Mutex::new(VecDeque::from(binaries));
    let failed = Mutex::new(Vec::new());
    let counts = Mutex::new(Counts::default());
    let output = tempfile::tempdir().context("a directory for what tests print")?;
    std::thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            let left_out = output.path().join(LEFT_OUT);
            let output = output.path().join(worker.to_string());
            let (queue, failed, counts) = (&queue, &failed, &counts);
            scope.spawn(move || {
                // Not in a `while let`: that holds the lock.
                let next = || {
                    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                    queue.pop_front()
                };
                while let Some(binary) = next() {
                    let (count, result) = binary.run(&output, &left_out);
                    *counts.lock().unwrap_or_else(PoisonError::into_inner) += count;
                    if let Err(error) = result {
                        println!("== {}: FAILED: {error:#}", binary.name);
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.push(binary.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let counts = counts.into_inner().unwrap_or_else(PoisonError::into_inner);
    let left_out = left_out(&output.path().join(LEFT_OUT));
    for (why, count) in &left_out {
        println!("== left out, {count} times: {why}");
    }
    println!(
        "{} passed, {} failed, {} skipped",
        counts.passed,
        counts.failed,
        counts.ignored + left_out.values().sum::<u64>()
    );
    if !failed.is_empty() {
        bail!("tests failed: {}", failed.join(", "));
    }
    println!(
        "== tests: {count} binaries passed in {} s",
        begin.elapsed().as_secs()
    );
    Ok(())
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
    /// The sums of all lines `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn of(text: &str) -> Self {
        let mut out = Self::default();
        for line in text
            .lines()
            .filter(|line| line.starts_with("test result: "))
        {
            let words: Vec<&str> = line
                .split([' ', ';'])
                .filter(|word| !word.is_empty())
                .collect();
            for pair in words.windows(2) {
                let Ok(number) = pair[0].parse::<u64>() else {
                    continue;
                };
                match pair[1] {
                    "passed" => out.passed += number,
                    "failed" => out.failed += number,
                    "ignored" => out.ignored += number,
                    _ => {}
                }
            }
        }
        out
    }
}

/// Why tests that passed did not test anything, and how many of them: the file to which they say so (crate `oracles`).
fn left_out(path: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut out = BTreeMap::new();
    for line in text.lines() {
        *out.entry(line.to_owned()).or_default() += 1;
    }
    out
}

/// Builds all test binaries and says where they are, and where the product's binary is.
fn build() -> anyhow::Result<(Vec<Binary>, PathBuf)> {
    let output = Command::new("cargo")
        // Lints have seen the examples; nothing runs them here.
        .args(["test", "--workspace", "--tests", "--locked", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cargo could not be started; is it installed?")?;
    if !output.status.success() {
        bail!("the tests do not build ({})", output.status);
    }
    let mut binaries = Vec::new();
    let mut millpond = None;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).context("cargo's messages")?;
        binaries.extend(test_binary(&message)?);
        millpond = millpond.or_else(|| product(&message));
    }
    if binaries.is_empty() {
        bail!("cargo built no tests");
    }
    let millpond = millpond.context("cargo did not build the product's binary")?;
    Ok((binaries, millpond))
}

/// The product's binary, which tests of its package run, if a message of cargo is about it.
fn product(message: &Value) -> Option<PathBuf> {
    let is_product = message["target"]["name"] == "millpond"
        && message["target"]["kind"][0] == "bin"
        && message["profile"]["test"] == false;
    let program = message["executable"].as_str().filter(|_| is_product);
    program.map(PathBuf::from)
}

/// The test binary that a message of cargo is about, if it is about one.
fn test_binary(message: &Value) -> anyhow::Result<Option<Binary>> {
    let (Some(program), Some(true)) = (
        message["executable"].as_str(),
        message["profile"]["test"].as_bool(),
    ) else {
        return Ok(None);
    };
    let manifest = message["manifest_path"].as_str().context("a manifest")?;
    let directory = Path::new(manifest).parent().context("its directory")?;
    let package = directory.file_name().context("its name")?.to_string_lossy();
    let name = match message["target"]["kind"][0].as_str() {
        Some("test") => format!(
            "{package} {}",
            message["target"]["name"].as_str().unwrap_or_default()
        ),
        _ => package.into_owned(),
    };
    Ok(Some(Binary {
        name,
        program: program.into(),
        arguments: Vec::new(),
        directory: directory.to_owned(),
        environment: Vec::new(),
    }))
}

impl Binary {
    /// Tests that cargo builds and runs itself.
    fn of_cargo(name: &str, first: &[&str], arguments: &[&str]) -> Self {
        let words = ["test", "--locked"].iter().chain(first).chain(arguments);
        Self {
            name: name.to_owned(),
            program: "cargo".into(),
            arguments: words.map(|word| (*word).to_owned()).collect(),
            directory: ".".into(),
            environment: Vec::new(),
        }
    }

    /// Runs it and shows what it printed, which is kept in file `output` meanwhile.
    fn run(&self, output: &Path, left_out: &Path) -> (Counts, anyhow::Result<()>) {
        println!("== {}: begins", self.name);
        let begin = Instant::now();
        let status = self.run_into(output, left_out);
        let mut text = Vec::new();
        let read = File::open(output).and_then(|mut file| file.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        println!(
            "== {}: {} s\n{}",
            self.name,
            begin.elapsed().as_secs(),
            text.trim_end()
        );
        let result = status.and_then(|status| {
            read.context("what it printed")?;
            match status.success() {
                true => Ok(()),
                false => bail!("{status}"),
            }
        });
        (Counts::of(&text), result)
    }

    fn run_into(&self, output: &Path, left_out: &Path) -> anyhow::Result<ExitStatus> {
        let output = File::create(output).context("a file for what it prints")?;
        let mut command = Command::new(&self.program);
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env("RUST_TEST_THREADS", cores.max(THREADS_MIN).to_string());
        }
        command
            .args(&self.arguments)
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .env("MILLPOND_LEFT_OUT", left_out)
            .envs(self.environment.iter().map(|(name, path)| (name, path)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .status()
            .with_context(|| format!("{} could not be started", self.program.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed_up() {
        let text = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s\n\
            what a test prints: 7 passed\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n";
        let sum = Counts {
            passed: 4,
            failed: 2,
            ignored: 1,
        };
        assert_eq!(Counts::of(text), sum);
    }

    #[test]
    fn the_product_is_told_from_its_tests() {
        let message = |kind: &str, name: &str, test: bool| {
            serde_json::json!({
                "executable": "/target/millpond",
                "target": { "name": name, "kind": [kind] },
                "profile": { "test": test },
            })
        };
        let found = product(&message("bin", "millpond", false));
        assert_eq!(found, Some(PathBuf::from("/target/millpond")));
        for other in [
            message("bin", "millpond", true),
            message("test", "e2e", true),
            message("bin", "xtask", false),
            serde_json::json!({ "reason": "build-finished" }),
        ] {
            assert_eq!(product(&other), None, "{other}");
        }
    }
}
