//! The ratchet: figures of how well the sources are cut may fall and never rise.
//!
//! Today's values are in `ratchet.txt` beside this file, which says what each of them counts. A
//! figure that rose fails the test. One that fell fails it too, until it is written down, so that
//! it cannot rise again:
//!
//! - `MILLPOND_RATCHET=show cargo test -p xtask --test ratchet -- --nocapture` shows the figures,
//!   the files of the circles with the names for which they use each other, the functions that take
//!   a context whole, and the lines that are too long.
//! - `MILLPOND_RATCHET=write cargo test -p xtask --test ratchet` writes down the figures that fell.
//!   It refuses while any rose. One that has to rise is changed by hand, and the commit says why.

mod source;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use source::{Arrow, Sources};

/// Largest circle of a crate that is not noted yet.
const NEW_CIRCLE_MAX: usize = 12;
/// How many of the largest types are noted.
const TYPES: usize = 10;
/// Widest line, in characters.
const COLUMNS_MAX: usize = 100;

/// Whether `MILLPOND_RATCHET` asks for this.
fn is_asked_to(word: &str) -> bool {
    std::env::var("MILLPOND_RATCHET").is_ok_and(|asked| asked == word)
}

fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("a workspace").to_path_buf()
}

/// What is measured, as `ratchet.txt` has it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Figures {
    /// Files of the largest circle, per crate. A file alone is a circle of one.
    circles: BTreeMap<String, usize>,
    /// Functions of the inherent `impl` blocks, per type.
    methods: BTreeMap<String, usize>,
    /// Functions with a parameter in which the type stands, per type.
    contexts: BTreeMap<String, usize>,
    /// Lines that are too long, in all sources.
    wide: usize,
}

impl Figures {
    /// Reads what [`Self::text`] writes.
    fn parse(text: &str) -> Self {
        let mut out = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("no number: {line}"));
            match words[..] {
                [] => {}
                ["circle", name, files] => {
                    out.circles.insert(name.to_owned(), number(files));
                }
                ["methods", name, count] => {
                    out.methods.insert(name.to_owned(), number(count));
                }
                ["context", name, count] => {
                    out.contexts.insert(name.to_owned(), number(count));
                }
                ["wide", lines] => out.wide = number(lines),
                _ => panic!("ratchet.txt has a line that nobody understands: {line}"),
            }
        }
        out
    }

    /// The lines of the data file, without its comments.
    fn text(&self) -> String {
        let mut out = String::new();
        for (word, figures) in [
            ("circle", &self.circles),
            ("methods", &self.methods),
            ("context", &self.contexts),
        ] {
            let mut figures: Vec<_> = figures.iter().collect();
            figures.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
            for (name, count) in figures {
                writeln!(out, "{word} {name} {count}").expect("a string takes all");
            }
        }
        writeln!(out, "wide {}", self.wide).expect("a string takes all");
        out
    }

    /// Without all types but the largest.
    fn with_largest_types(mut self) -> Self {
        let mut types: Vec<_> = self.methods.into_iter().collect();
        types.sort_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.cmp(b)));
        types.truncate(TYPES);
        self.methods = types.into_iter().collect();
        self
    }

    /// Which of these figures are above what was noted, and what to do about each.
    fn rises(&self, noted: &Self) -> Vec<String> {
        let mut out = Vec::new();
        for (name, files) in &self.circles {
            let limit = noted.circles.get(name).copied().unwrap_or(NEW_CIRCLE_MAX);
            if *files > limit {
                out.push(format!(
                    "crate {name}: {files} files use each other in a circle, not {limit} as \
                     before. Let the lower file not use the higher one."
                ));
            }
        }
        let least = noted.methods.values().min().copied().unwrap_or_default();
        for (name, count) in &self.methods {
            let limit = noted.methods.get(name).copied();
            let limit = limit.or_else(|| noted.methods_elsewhere(name, self));
            let limit = limit.unwrap_or(least);
            if *count > limit {
                out.push(format!(
                    "{name}: {count} functions in its impl blocks, at most {limit} are allowed. \
                     Give them to the parts that they use, or make them functions of a module."
                ));
            }
        }
        for (name, count) in &self.contexts {
            let limit = noted.contexts.get(name).copied().unwrap_or_default();
            if *count > limit {
                out.push(format!(
                    "{name}: {count} functions take it whole, not {limit} as before. \
                     Let the new ones take the parts that they use."
                ));
            }
        }
        if self.wide > noted.wide {
            out.push(format!(
                "{} lines are wider than {COLUMNS_MAX} columns, not {} as before. Fold the new \
                 ones.",
                self.wide, noted.wide
            ));
        }
        out
    }

    /// The figure of a type that now stands in another crate under the same name.
    fn methods_elsewhere(&self, name: &str, now: &Self) -> Option<usize> {
        let own = |name: &str| name.rsplit("::").next().map(str::to_owned);
        let mut moved = self.methods.iter().filter(|(other, _)| {
            own(other.as_str()) == own(name) && !now.methods.contains_key(other.as_str())
        });
        moved.next().map(|(_, count)| *count)
    }
}

/// The files of a crate's largest circle, in order. Nothing, where no file uses another one that
/// uses it.
fn largest_circle(arrows: &[Arrow]) -> BTreeSet<usize> {
    let mut next: HashMap<usize, HashSet<usize>> = HashMap::new();
    for arrow in arrows {
        next.entry(arrow.from).or_default().insert(arrow.to);
    }
    let reached = |from: usize| {
        let mut seen = HashSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            for to in next.get(&file).into_iter().flatten() {
                if seen.insert(*to) {
                    open.push(*to);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<usize, HashSet<usize>> =
        next.keys().map(|file| (*file, reached(*file))).collect();
    let mut largest = BTreeSet::new();
    for (file, seen) in &reach {
        let back = |other: &usize| reach.get(other).is_some_and(|seen| seen.contains(file));
        let circle: BTreeSet<usize> = seen.iter().copied().filter(back).collect();
        if circle.len() > largest.len() {
            largest = circle;
        }
    }
    largest
}

/// The files of a circle, each with those of the circle that it uses, and by which names.
fn describe(sources: &Sources, circle: &BTreeSet<usize>, arrows: &[Arrow], out: &mut Vec<String>) {
    for file in circle {
        out.push(format!("  {}", sources.file(*file)));
        let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for arrow in arrows {
            if arrow.from == *file && circle.contains(&arrow.to) {
                let of = uses.entry(sources.file(arrow.to)).or_default();
                of.insert(&arrow.name);
            }
        }
        for (other, names) in uses {
            let names: Vec<&str> = names.into_iter().collect();
            out.push(format!("    uses {other}: {}", names.join(", ")));
        }
    }
}

/// Measures the sources. What the figures are made of is added to `parts`, line by line.
fn measure(sources: &Sources, contexts: &BTreeSet<String>, parts: &mut Vec<String>) -> Figures {
    let mut out = Figures::default();
    let packages: BTreeSet<&str> = sources.packages().collect();
    for package in packages {
        let arrows = sources.arrows(package);
        let circle = largest_circle(&arrows);
        if !circle.is_empty() {
            parts.push(format!("circle of {} files in {package}:", circle.len()));
            describe(sources, &circle, &arrows, parts);
        }
        let files = circle.len().max(1);
        out.circles.insert(package.to_owned(), files);
    }
    for (item, count) in sources.methods() {
        let most = out.methods.entry(sources.full_name(&item)).or_default();
        *most = count.max(*most);
    }
    out.contexts = contexts.iter().map(|name| (name.clone(), 0)).collect();
    for (file, function, takes) in sources.functions() {
        let takes: BTreeSet<String> = takes.iter().map(|item| sources.full_name(item)).collect();
        for name in takes {
            if let Some(count) = out.contexts.get_mut(&name) {
                *count += 1;
                parts.push(format!("{name} is taken whole: {file}, {function}"));
            }
        }
    }
    out
}

/// Adds the Rust files below a directory, without what was built.
fn add_files(directory: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("an entry").path();
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        if path.is_dir() && !path.is_symlink() && !path.ends_with("target") {
            add_files(&path, out);
        } else if is_rust {
            out.push(path);
        }
    }
}

/// How many lines of the project's Rust sources are too long. Rows of tables in comments, and
/// lines of one long word, cannot be folded.
fn wide_lines(root: &Path, parts: &mut Vec<String>) -> usize {
    let mut files = Vec::new();
    add_files(&root.join("crates"), &mut files);
    add_files(&root.join("xtask"), &mut files);
    assert!(files.len() > 300, "the sources were not found");
    files.sort();
    let mut count = 0;
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a readable source");
        for (index, line) in text.lines().enumerate() {
            let text = line.trim().trim_start_matches(['/', '!']).trim();
            let is_let_be = text.starts_with('|') || !text.contains(' ');
            if line.chars().count() > COLUMNS_MAX && !is_let_be {
                parts.push(format!("too wide: {}:{}", path.display(), index + 1));
                count += 1;
            }
        }
    }
    count
}

/// Goal: what stands in each other's way is less after each change, and never more.
#[test]
fn figures_fall_and_never_rise() {
    let root = root();
    let file = root.join("xtask/tests/ratchet/ratchet.txt");
    let text = std::fs::read_to_string(&file).expect("ratchet.txt");
    let noted = Figures::parse(&text);

    let sources = Sources::read(&root);
    let mut parts = Vec::new();
    let contexts = noted.contexts.keys().cloned().collect();
    let mut measured = measure(&sources, &contexts, &mut parts);
    measured.wide = wide_lines(&root, &mut parts);
    let rises = measured.rises(&noted);
    let measured = measured.with_largest_types();
    if is_asked_to("show") {
        println!("{}\n{}", parts.join("\n"), measured.text());
    }

    assert!(
        rises.is_empty(),
        "{}\nIf it has to be, change the line in xtask/tests/ratchet/ratchet.txt by hand and say \
         in the commit why. This shows all parts of the figures:\n\
         MILLPOND_RATCHET=show cargo test -p xtask --test ratchet -- --nocapture",
        rises.join("\n")
    );
    if measured == noted {
        return;
    }
    if is_asked_to("write") {
        let comments = text.lines().filter(|line| line.starts_with('#'));
        let comments: String = comments.map(|line| format!("{line}\n")).collect();
        let written = comments + &measured.text();
        std::fs::write(&file, written).expect("ratchet.txt can be written");
        return;
    }
    let (old, new) = (noted.text(), measured.text());
    let gone = old.lines().filter(|line| !new.lines().any(|l| l == *line));
    let come = new.lines().filter(|line| !old.lines().any(|l| l == *line));
    let changes: Vec<String> = gone
        .map(|line| format!("- {line}"))
        .chain(come.map(|line| format!("+ {line}")))
        .collect();
    panic!(
        "figures fell or are new: they have to be written down in \
         xtask/tests/ratchet/ratchet.txt.\n{}\n\
         Run: MILLPOND_RATCHET=write cargo test -p xtask --test ratchet",
        changes.join("\n")
    );
}

/// A crate of these files, the first of which is its root.
fn sources(files: &[(&str, &str)]) -> Sources {
    let mut out = Sources::default();
    let root = Path::new("/src");
    out.add_package("one", root, &root.join(files[0].0), &|path| {
        let mut files = files.iter();
        let found = files.find(|(name, _)| root.join(name) == path)?;
        Some(found.1.to_owned())
    });
    out
}

fn circle(files: &[(&str, &str)]) -> Vec<String> {
    let sources = sources(files);
    let circle = largest_circle(&sources.arrows("one"));
    let names = circle.iter().map(|file| sources.file(*file).to_owned());
    names.collect()
}

/// Goal: names lead to the file that declares them, past those that hand them on.
#[test]
fn arrows_lead_to_declarations() {
    let root = (
        "lib.rs",
        "mod a; mod b; mod c; pub use a::A; pub use c::deep::D;",
    );
    let deep = ("c/deep.rs", "pub struct D;");
    let c = ("c/mod.rs", "pub(crate) mod deep;");
    // Both name the root, which declares nothing.
    let a = ("a.rs", "use crate::D; pub struct A(D);");
    let b = ("b.rs", "use super::A; pub fn b(a: A) {}");
    assert_eq!(
        circle(&[root, a, b, c, deep]),
        Vec::<String>::new(),
        "no circle"
    );
    let deep = (
        "c/deep.rs",
        "pub struct D; fn d() { assert!(matches!(crate::b::b(A), _)) }",
    );
    assert_eq!(
        circle(&[root, a, b, c, deep]),
        ["a.rs", "b.rs", "c/deep.rs"],
        "by a path inside of macros"
    );
    let deep = (
        "c/deep.rs",
        "pub struct D; #[cfg(test)] mod tests { use crate::A; }",
    );
    assert!(circle(&[root, a, b, c, deep]).is_empty(), "for tests only");
    let a = ("a.rs", "use super::*; pub struct A(D, b::B);");
    let b = ("b.rs", "use super::*; pub struct B(Box<A>);");
    assert_eq!(
        circle(&[root, a, b, c, deep]),
        ["a.rs", "b.rs"],
        "through globs"
    );
}

/// Goal: methods count for the type wherever its blocks are, parameters wherever the type stands
/// in them.
#[test]
fn blocks_and_parameters_are_counted() {
    let sources = sources(&[
        (
            "lib.rs",
            "mod a; mod b; pub struct Core; impl Core { fn one(&self) {} fn two() {} }
             impl Drop for Core { fn drop(&mut self) {} }",
        ),
        (
            "a.rs",
            "use crate::Core as All; impl All { fn three(&self, other: &All) {} }",
        ),
        (
            "b.rs",
            "use std::sync::Arc; fn four(core: Option<&Arc<super::Core>>) {}
             struct Core; fn five(core: Core) {}",
        ),
    ]);
    let contexts = BTreeSet::from(["one::Core".to_owned()]);
    let figures = measure(&sources, &contexts, &mut Vec::new());
    assert_eq!(figures.methods["one::Core"], 3);
    // The one in b.rs has the same name.
    assert_eq!(figures.contexts["one::Core"], 3);
}

/// Goal: a rise is told from a fall, also where a type moved to another crate.
#[test]
fn rises_are_told_from_falls() {
    let noted = Figures::parse(
        "# comment\n\ncircle a 9\nmethods a::Big 90\nmethods a::Less 50\ncontext a::Core 7\n\
         wide 3\n",
    );
    assert_eq!(Figures::parse(&noted.text()), noted);
    assert!(noted.rises(&noted).is_empty());
    let lower = Figures::parse(
        "circle a 2\ncircle new 12\nmethods b::Big 90\nmethods a::Other 50\n\
         context a::Core 0\nwide 0\n",
    );
    assert!(lower.rises(&noted).is_empty());
    for higher in [
        "circle a 10",
        "circle new 13",
        "methods a::Big 91",
        "methods b::Big 91",
        "methods a::Big 90\nmethods b::Big 51",
        "methods a::Other 51",
        "context a::Core 8",
        "wide 4",
    ] {
        let rises = Figures::parse(higher).rises(&noted);
        assert_eq!(rises.len(), 1, "{higher}: {rises:?}");
    }
}
