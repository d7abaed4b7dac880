//! The documents hold: lines fit in 100 columns, links lead somewhere, and whatever the command
//! lines know (commands, properties, features) is found in `docs/` by its name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Widest line of a document, in characters.
const COLUMNS_MAX: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
        .to_path_buf()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Adds the files below a directory whose names end in one of these: not those of `fuzz`, which
/// stands outside, nor what was built, fetched or is hidden.
fn add_files(directory: &Path, ends: &[&str], out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let is_ours =
            !name.starts_with('.') && !["target", "fuzz", "node_modules"].contains(&&*name);
        if path.is_dir() && !path.is_symlink() && is_ours {
            add_files(&path, ends, out);
        } else if ends.iter().any(|end| name.ends_with(end)) {
            out.push(path);
        }
    }
}

/// The project's Markdown files.
fn documents() -> Vec<PathBuf> {
    let mut out = Vec::new();
    add_files(&root(), &[".md"], &mut out);
    out.sort();
    assert!(out.len() > 10, "the documents were not found: {out:?}");
    out
}

/// A document's lines with their numbers, without what stands between fences.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut out = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            out.push((index + 1, line));
        }
    }
    out
}

/// What `docs/` says, all pages together, with any white space as one space.
fn docs() -> String {
    let directory = root().join("docs");
    let mut pages = documents();
    pages.retain(|path| path.starts_with(&directory));
    let text: Vec<String> = pages.iter().map(|path| read(path)).collect();
    let words: Vec<&str> = text
        .iter()
        .flat_map(|page| page.split_whitespace())
        .collect();
    words.join(" ")
}

/// A source file from where `begin` stands to the next `end`.
fn section(path: &str, begin: &str, end: &str) -> String {
    let text = read(&root().join(path));
    let rest = text
        .split_once(begin)
        .unwrap_or_else(|| panic!("{path} has no '{begin}' any more: say here where it went"))
        .1;
    let inside = rest.split_once(end);
    inside
        .unwrap_or_else(|| panic!("{path}: '{begin}' has no end"))
        .0
        .to_owned()
}

/// Everything between double quotes. No name has an escape in it.
fn strings(text: &str) -> Vec<String> {
    text.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// The first string after each of these words that stands as a whole word.
fn firsts(text: &str, words: &[&str]) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for word in words {
        for (at, _) in text.match_indices(word) {
            let is_whole = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let rest = text[at + word.len()..].trim_start();
            if let Some(name) = rest.strip_prefix('"').filter(|_| is_whole) {
                let name = name.split('"').next().unwrap_or_default();
                out.insert(name.to_owned());
            }
        }
    }
    out
}

/// `LoadKey` as clap writes it: `load-key`.
fn kebab(name: &str) -> String {
    let mut out = String::new();
    for (index, c) in name.char_indices() {
        if c.is_ascii_uppercase() && index > 0 {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The names and aliases of the commands of a `Command` enumeration.
fn commands(path: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let mut given: Option<String> = None;
    for line in section(path, "\nenum Command {\n", "\n}\n").lines() {
        let line = line.trim();
        if line.starts_with("//") {
            continue;
        }
        if let Some(attribute) = line.strip_prefix("#[command(") {
            if let Some(name) = firsts(attribute, &["name = "]).pop_first() {
                given = Some(name);
            }
            out.extend(firsts(attribute, &["alias = "]));
            continue;
        }
        let is_variant = line.starts_with(|c: char| c.is_ascii_uppercase());
        let name = line.split(|c: char| !c.is_ascii_alphanumeric()).next();
        if let Some(name) = name.filter(|_| is_variant) {
            out.insert(given.take().unwrap_or_else(|| kebab(name)));
        }
    }
    out
}

/// Whether a text has these words, and not as the beginning of longer ones.
fn has_words(text: &str, words: &str) -> bool {
    text.match_indices(words).any(|(at, _)| {
        let next = text[at + words.len()..].chars().next();
        next.is_none_or(|c| !c.is_alphanumeric() && c != '-' && c != '_')
    })
}

/// The names that are nowhere in `docs` in the form that `written` gives them.
fn missing(docs: &str, names: &BTreeSet<String>, written: impl Fn(&str) -> String) -> Vec<String> {
    let forms = names.iter().map(|name| written(name));
    forms.filter(|form| !has_words(docs, form)).collect()
}

/// A heading's anchor, as it is made of its text: lower case, hyphens for spaces, nothing but
/// letters, digits, hyphens and underscores.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.collect()
}

/// Whether a document has a heading with this anchor.
fn has_anchor(text: &str, wanted: &str) -> bool {
    let headings = prose(text).into_iter().map(|(_, line)| line);
    let mut headings = headings.filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line.trim_start_matches('#')) == wanted)
}

/// Goal: documents can be read in any terminal and compared line by line. Rows of tables cannot be
/// wrapped, and neither can a word that is longer than a line.
#[test]
fn lines_fit_in_a_hundred_columns() {
    let mut long = Vec::new();
    for path in documents() {
        for (index, line) in read(&path).lines().enumerate() {
            let is_table = line.trim_start().starts_with('|');
            let is_one_word = !line.trim().contains(' ');
            if line.chars().count() > COLUMNS_MAX && !is_table && !is_one_word {
                long.push(format!("{}:{}", path.display(), index + 1));
            }
        }
    }
    assert!(long.is_empty(), "wider than {COLUMNS_MAX}: {long:#?}");
}

/// Benchmarks, scripts that run in the peer, and the manifest that a tool writes.
const WIDE: [&str; 5] = [
    "bench",
    "crates/cli/tests/e2e/matrix.sh",
    "crates/oracles/golden-2.4",
    "crates/workspace-hack",
    "scripts/oracles",
];

/// Goal: as for documents, for scripts and manifests. Long words are let be here too. The test
/// `ratchet` counts the long lines of Rust.
#[test]
fn scripts_and_manifests_fit_in_a_hundred_columns() {
    let mut sources = Vec::new();
    add_files(&root(), &[".sh", ".toml"], &mut sources);
    assert!(sources.len() > 30, "the sources were not found");
    let mut long = Vec::new();
    for path in sources {
        let own = path.strip_prefix(root()).expect("below the root");
        if WIDE.iter().any(|place| own.starts_with(place)) {
            continue;
        }
        for (index, line) in read(&path).lines().enumerate() {
            let is_let_be = !line.trim().contains(' ');
            if line.chars().count() > COLUMNS_MAX && !is_let_be {
                long.push(format!("{}:{}", own.display(), index + 1));
            }
        }
    }
    assert!(long.is_empty(), "wider than {COLUMNS_MAX}: {long:#?}");
}

/// Goal: whoever follows a link inside the project finds the file, and the heading in it.
#[test]
fn links_lead_to_files() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = read(&path);
        for (number, line) in prose(&text) {
            let targets = line
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next());
            for target in targets {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let led_to = match file {
                    "" => path.clone(),
                    file => path.parent().expect("a directory").join(file),
                };
                let is_there =
                    led_to.exists() && (heading.is_empty() || has_anchor(&read(&led_to), heading));
                if !is_there {
                    broken.push(format!("{}:{number}: {target}", path.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "links lead nowhere: {broken:#?}");
}

/// Goal: what ARCHITECTURE.md tells step by step is done by functions that there are: each name of
/// the form `crate::...::name` is that of something that the crate declares.
#[test]
fn the_paths_in_architecture_lead_through_the_code() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let (_, paths) = text.split_once("### The path of one read").expect("paths");
    let (paths, _) = paths.split_once("### Who has").expect("the paths' end");
    let mut checked = 0;
    let mut absent = Vec::new();
    for name in paths.split('`').skip(1).step_by(2) {
        let Some((library, rest)) = name.split_once("::") else {
            continue;
        };
        let directory = root().join("crates").join(library.replace('_', "-"));
        let mut files = Vec::new();
        add_files(&directory.join("src"), &[".rs"], &mut files);
        let source: String = files.iter().map(|path| read(path)).collect();
        let last = rest.rsplit("::").next().unwrap_or(rest);
        let is_there = ["fn", "struct", "trait"]
            .iter()
            .any(|word| has_words(&source, &format!("{word} {last}")));
        if !is_there {
            absent.push(name);
        }
        checked += 1;
    }
    assert!(checked > 20, "only {checked} names were found");
    assert!(absent.is_empty(), "not in the code: {absent:?}");
}

/// Goal: `docs/` has each command under the words that one types.
#[test]
fn every_command_is_documented() {
    let docs = docs();
    let mut absent = Vec::new();
    for (path, program) in [
        ("crates/cli/src/zpool/mod.rs", "zpool"),
        ("crates/cli/src/zfs/mod.rs", "zfs"),
        ("crates/cli/src/main.rs", "millpond"),
    ] {
        let names = commands(path);
        assert!(names.len() > 5, "{path}: only {names:?} were found");
        absent.extend(missing(&docs, &names, |name| format!("{program} {name}")));
    }
    assert!(absent.is_empty(), "not in docs/: {absent:#?}");
}

/// Goal: `docs/` has each property of datasets, pools and vdevs, and each feature, by its name in
/// backticks.
#[test]
fn every_property_and_feature_is_documented() {
    let docs = docs();
    let datasets = section(
        "crates/dataset/src/props/table.rs",
        "pub static PROPERTIES",
        "\n];",
    );
    let datasets = firsts(&datasets, &["text(", "number(", "index(", "boolean("]);
    let pools = section("crates/spa/src/props.rs", "const TABLE: &[Row]", "\n];");
    let pools = firsts(&pools, &["row("]);
    let vdevs = "crates/spa/src/vdevprops.rs";
    let settable = section(vdevs, "const TABLE: &[(&str, Kind)]", "\n];");
    let computed = section(vdevs, "const READ_ONLY: &[&str]", "\n];");
    let vdevs: BTreeSet<String> = strings(&settable)
        .into_iter()
        .chain(strings(&computed))
        .collect();
    let features = section("crates/format/src/feature.rs", "\nfeatures! {", "\n}");
    // A row names a feature by its GUID, `com.delphix:bookmarks`, by its name, and describes it.
    let features: BTreeSet<String> = strings(&features)
        .into_iter()
        .filter(|name| !name.contains([':', ' ', '.', '\\']))
        .collect();
    let mut absent = Vec::new();
    for (names, least) in [(datasets, 80), (pools, 30), (vdevs, 40), (features, 40)] {
        assert!(names.len() >= least, "too few were found: {names:?}");
        absent.extend(missing(&docs, &names, |name| format!("`{name}`")));
    }
    assert!(absent.is_empty(), "not in docs/: {absent:#?}");
}

/// Goal: names are taken out of sources as they stand there.
#[test]
fn names_are_found_in_sources() {
    assert_eq!(kebab("LoadKey"), "load-key");
    let found = firsts(
        "text(\n  \"type\", context(\"no\") hidden(text(\"name\"",
        &["text("],
    );
    let names: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(names, ["name", "type"]);
    assert_eq!(strings("(\"a\", B), (\"c\", D)"), ["a", "c"]);
    assert!(has_words("see `zfs project`.", "zfs project"));
    assert!(!has_words(
        "zfs projectspace, zfs project-id",
        "zfs project"
    ));
    assert_eq!(anchor(" millpond:iscsi"), "millpondiscsi");
    assert_eq!(
        anchor("Going back to an older state"),
        "going-back-to-an-older-state"
    );
}
