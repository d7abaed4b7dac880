//! The layers hold: a crate names only crates below it in ARCHITECTURE.md's table, the table names
//! every crate, and unsafe code stays in the crates that are allowed it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
        .to_path_buf()
}

/// The crates in the order of ARCHITECTURE.md's table "Layers", lowest first.
fn layers() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let section = text.split("## Layers").nth(1).expect("a section 'Layers'");
    let section = section.split("\n## ").next().unwrap_or(section);
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|rest| rest.split('`').next())
        .map(str::to_owned)
        .collect()
}

fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo metadata");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON from cargo metadata")
}

#[test]
fn crates_depend_only_downward() {
    let order: HashMap<String, usize> = layers()
        .into_iter()
        .enumerate()
        .map(|(i, name)| (name, i))
        .collect();
    assert!(
        order.len() > 10,
        "the table in ARCHITECTURE.md was not found"
    );
    for package in metadata()["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("name");
        if name == "xtask" {
            continue;
        }
        let place = order
            .get(name)
            .unwrap_or_else(|| panic!("ARCHITECTURE.md's table does not list {name}"));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let below = dependency["name"].as_str().expect("name");
            if dependency["path"].is_null() {
                continue;
            }
            assert!(
                order.get(below).is_some_and(|under| under < place),
                "{name} reaches up or sideways to {below}; move the code or the layer"
            );
        }
    }
}

/// The crates that each crate uses in the product, by the manifests.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let named = |value: &serde_json::Value| value["name"].as_str().expect("a name").to_owned();
    let of = |package: &serde_json::Value| {
        let all = package["dependencies"].as_array().expect("dependencies");
        let used = all.iter().filter(|other| {
            // Those of tests have a kind.
            !other["path"].is_null() && other["kind"].is_null()
        });
        (named(package), used.map(named).collect())
    };
    packages.iter().map(of).collect()
}

/// All that a crate uses, through others too.
fn add_used(of: &str, uses: &BTreeMap<String, BTreeSet<String>>, out: &mut BTreeSet<String>) {
    for used in uses.get(of).into_iter().flatten() {
        if out.insert(used.clone()) {
            add_used(used, uses, out);
        }
    }
}

/// Goal: ARCHITECTURE.md's diagram has the arrows that there are, but for those that others imply.
#[test]
fn the_diagram_shows_the_manifests() {
    const FOR_TESTS: [&str; 5] = ["fuzzing", "oracles", "sim", "workspace-hack", "xtask"];
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let drawn: BTreeSet<String> = text
        .lines()
        .filter(|line| line.contains(" --> "))
        .map(|line| line.trim().to_owned())
        .collect();
    let uses = uses();
    let mut real = BTreeSet::new();
    for (name, direct) in uses
        .iter()
        .filter(|(name, _)| !FOR_TESTS.contains(&name.as_str()))
    {
        let mut implied = BTreeSet::new();
        for used in direct {
            add_used(used, &uses, &mut implied);
        }
        let shown = direct.difference(&implied);
        real.extend(shown.map(|used| format!("{name} --> {used}")));
    }
    let missing: Vec<_> = real.difference(&drawn).collect();
    let wrong: Vec<_> = drawn.difference(&real).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "the diagram in ARCHITECTURE.md lacks {missing:#?} and should not have {wrong:#?}"
    );
}

#[test]
fn unsafe_code_stays_where_it_is_allowed() {
    for crate_name in layers() {
        if ["codec", "device"].contains(&crate_name.as_str()) {
            continue;
        }
        let source = root().join("crates").join(&crate_name).join("src");
        let entry = ["lib.rs", "main.rs"]
            .map(|file| source.join(file))
            .into_iter()
            .find(|path| path.exists());
        let text = std::fs::read_to_string(entry.expect("an entry file")).expect("readable source");
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "{crate_name} does not forbid unsafe code"
        );
    }
}
