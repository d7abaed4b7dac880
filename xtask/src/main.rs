//! What CI and developers run: `cargo xtask ci` is every check in order, `cargo xtask bench` the
//! benchmarks, `cargo xtask zts` OpenZFS's own test suite.
//!
//! Steps stop at the first failure. `ci` is what `scripts/test` and so `.ci/run` call; there is no
//! other list of checks anywhere.

mod advisories;
mod suite;
mod zts;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, bail};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.first().map(String::as_str) {
        Some("ci") => ci(),
        Some("bench") => bench(&words[1..]),
        Some("zts") => zts::run(&words[1..]),
        Some(zts::INSIDE) => zts::inside(&words[1..]),
        _ => {
            eprintln!(
                "usage: cargo xtask ci | bench [NAME...] | zts [GROUP[:TEST,...]]... |\n       \
                 zts --all [GROUP]... | zts --table"
            );
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that must pass before a change lands.
fn ci() -> anyhow::Result<()> {
    step("formatting", "cargo", &["fmt", "--all", "--check"])?;
    step(
        "licences and sources of dependencies",
        "cargo",
        &["deny", "--locked", "check", "licenses", "bans", "sources"],
    )?;
    let directory = tempfile::tempdir()?;
    let configuration = advisories::unpack(Path::new("."), &directory.path().join("advisories"))?;
    let configuration = configuration.to_str().context("a path that is text")?;
    let deny = ["deny", "--locked", "--offline", "--config", configuration];
    step(
        "advisories about dependencies",
        "cargo",
        &[&deny[..], &["check", "advisories"]].concat(),
    )?;
    step(
        "lints",
        "cargo",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--profile",
            "ci",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    suite::run()
}

/// Builds for release and runs the scripts in `bench/`, all of them or those named.
fn bench(names: &[String]) -> anyhow::Result<()> {
    step(
        "release build",
        "cargo",
        &[
            "build",
            "--release",
            "--locked",
            "--workspace",
            "--examples",
            "--bins",
        ],
    )?;
    let mut scripts: Vec<_> = std::fs::read_dir("bench")
        .context("bench/ is read from the root of the workspace")?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            path.extension().is_some_and(|extension| extension == "sh") && !path.ends_with("lib.sh")
        })
        .filter(|path| {
            names.is_empty()
                || path
                    .file_stem()
                    .is_some_and(|stem| names.iter().any(|name| *name == *stem.to_string_lossy()))
        })
        .collect();
    scripts.sort();
    if scripts.is_empty() {
        bail!("no benchmark of that name; see bench/");
    }
    for script in scripts {
        let script = script.to_string_lossy().into_owned();
        step(&script, "bash", &[&script])?;
    }
    Ok(())
}

fn step(name: &str, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    println!("== {name}: {program} {}", arguments.join(" "));
    let begin = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .status()
        .with_context(|| format!("{program} could not be started; is it installed?"))?;
    if !status.success() {
        bail!("{name} failed ({status})");
    }
    println!("== {name}: passed in {} s", begin.elapsed().as_secs());
    Ok(())
}
