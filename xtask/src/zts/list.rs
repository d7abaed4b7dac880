//! Which tests run, and how each is expected to end.
//!
//! A list has lines `GROUP/TEST`, or `GROUP/TEST CLASS WHY`; `#` begins a comment.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use super::runfiles::Group;

/// What CI runs.
const QUICK: &str = include_str!("../../zts/quick");

/// All tests of the suite.
const ALL: &str = include_str!("../../zts/all");

/// The word that asks for all tests instead of the quick list; groups may follow.
pub const ALL_WORD: &str = "--all";

/// How a test is expected to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    Pass,
    /// It does not pass, for this reason: we do something else, on purpose.
    Deviates(String),
    /// It does not pass yet: this is missing.
    Waits(String),
    /// It cannot pass here: it asks for this, which only a kernel module or a machine of its own
    /// has.
    Harness(String),
    /// Nobody said.
    Any,
}

/// A test that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    pub name: String,
    pub expected: Expected,
}

/// The tests of a group that run, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    pub name: String,
    pub tests: Vec<Test>,
}

impl Selected {
    /// Whether it is of a list, which says how each test is expected to end.
    pub fn is_listed(&self) -> bool {
        self.tests.iter().all(|test| test.expected != Expected::Any)
    }
}

/// The groups and tests that words ask for, `GROUP` or `GROUP:TEST,TEST`; without words the quick
/// list, with `--all` the list of all, or what that has of some groups.
pub fn select(words: &[String], groups: &BTreeMap<String, Group>) -> anyhow::Result<Vec<Selected>> {
    let selected = match words {
        [] => parse(QUICK)?,
        [first, wanted @ ..] if first == ALL_WORD => complete(all()?, wanted, groups)?,
        words => words
            .iter()
            .map(|word| asked_for(word, groups))
            .collect::<anyhow::Result<_>>()?,
    };
    for Selected { name, tests } in &selected {
        let group = groups
            .get(name)
            .with_context(|| format!("the suite has no group '{name}'"))?;
        for test in tests {
            if !group.tests.contains(&test.name) {
                bail!("group '{name}' has no test '{}'", test.name);
            }
        }
    }
    Ok(selected)
}

/// The list of all tests.
pub fn all() -> anyhow::Result<Vec<Selected>> {
    parse(ALL)
}

/// What `list` has of the groups that are wanted, or of all; it must have every test of theirs.
fn complete(
    list: Vec<Selected>,
    wanted: &[String],
    groups: &BTreeMap<String, Group>,
) -> anyhow::Result<Vec<Selected>> {
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    if let Some(unknown) = wanted.iter().find(|word| !groups.contains_key(*word)) {
        bail!("the suite has no group '{unknown}'");
    }
    let missing: Vec<String> = groups
        .iter()
        .filter(|(name, _)| is_wanted(name))
        .flat_map(|(name, group)| group.tests.iter().map(move |test| (name, test)))
        .filter(|(name, test)| {
            let in_list = list.iter().find(|listed| listed.name == **name);
            !in_list.is_some_and(|listed| listed.tests.iter().any(|known| known.name == **test))
        })
        .map(|(name, test)| format!("{name}/{test}"))
        .collect();
    if !missing.is_empty() {
        bail!("not in the list of all tests: {}", missing.join(", "));
    }
    Ok(list
        .into_iter()
        .filter(|group| is_wanted(&group.name))
        .collect())
}

fn asked_for(word: &str, groups: &BTreeMap<String, Group>) -> anyhow::Result<Selected> {
    let (name, tests) = match word.split_once(':') {
        Some((name, tests)) => (name, tests.split(',').map(str::to_owned).collect()),
        None => {
            let group = groups
                .get(word)
                .with_context(|| format!("the suite has no group '{word}'"))?;
            (word, group.tests.clone())
        }
    };
    let tests = tests.into_iter().map(|name| Test {
        name,
        expected: Expected::Any,
    });
    Ok(Selected {
        name: name.to_owned(),
        tests: tests.collect(),
    })
}

/// Reads a list. Tests of one group stand together, as its setup takes longer than most of them.
fn parse(text: &str) -> anyhow::Result<Vec<Selected>> {
    let mut out: Vec<Selected> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (path, rest) = line.split_once(' ').unwrap_or((line, ""));
        let expected = match rest.trim() {
            "" => Expected::Pass,
            rest => expected(rest).with_context(|| {
                format!(
                    "'{line}': after a test may follow 'deviates', 'waits' or 'harness', and why"
                )
            })?,
        };
        let (group, name) = path
            .rsplit_once('/')
            .with_context(|| format!("'{path}' is not GROUP/TEST"))?;
        let test = Test {
            name: name.to_owned(),
            expected,
        };
        if out.last().is_none_or(|last| last.name != group) {
            if out.iter().any(|earlier| earlier.name == group) {
                bail!("the tests of '{group}' do not stand together");
            }
            out.push(Selected {
                name: group.to_owned(),
                tests: Vec::new(),
            });
        }
        if let Some(last) = out.last_mut() {
            last.tests.push(test);
        }
    }
    Ok(out)
}

/// The class that a line names, and why.
fn expected(words: &str) -> Option<Expected> {
    let (class, why) = words.split_once(' ')?;
    let why = why.trim().to_owned();
    match class {
        "deviates" => Some(Expected::Deviates(why)),
        "waits" => Some(Expected::Waits(why)),
        "harness" => Some(Expected::Harness(why)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_how_tests_end() {
        let text = "# first\na/b/one\na/b/two   deviates no such thing here\n\nc/three # quick\n";
        let list = parse(text).unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(list[0].name, "a/b");
        assert_eq!(list[0].tests[0].expected, Expected::Pass);
        let why = Expected::Deviates("no such thing here".into());
        assert_eq!(list[0].tests[1].expected, why);
        assert_eq!(list[1].tests[0].name, "three");
        let classes = "a/x waits for more\na/y harness zed\n";
        let classes = parse(classes).unwrap().remove(0).tests;
        assert_eq!(classes[0].expected, Expected::Waits("for more".into()));
        assert_eq!(classes[1].expected, Expected::Harness("zed".into()));
        for wrong in [
            "three",
            "a/b fails",
            "a/b waits",
            "a/b fails so",
            "a/x\nb/y\na/z",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_choose_groups_and_tests() {
        let group = Group {
            tests: vec!["x".into(), "y".into()],
            ..Group::default()
        };
        let groups = BTreeMap::from([("g/h".to_owned(), group)]);
        let names = |word: &str| {
            let selected = select(&[word.to_owned()], &groups)?;
            let tests = selected[0].tests.iter().map(|test| test.name.clone());
            anyhow::Ok(tests.collect::<Vec<_>>())
        };
        assert_eq!(names("g/h").unwrap(), ["x", "y"]);
        assert_eq!(names("g/h:y").unwrap(), ["y"]);
        for wrong in ["g", "g:x", "g/h:z"] {
            assert!(names(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_quick_list_is_well_formed_and_as_long_as_it_should_be() {
        let list = parse(QUICK).unwrap();
        let tests: usize = list.iter().map(|group| group.tests.len()).sum();
        assert!((120..=260).contains(&tests), "{tests}");
    }

    #[test]
    fn all_tests_are_listed_once_and_in_the_class_that_the_quick_list_has() {
        use std::mem::discriminant;

        let list = all().unwrap();
        let mut known = BTreeMap::new();
        for group in &list {
            for test in &group.tests {
                let path = format!("{}/{}", group.name, test.name);
                assert_eq!(known.insert(path.clone(), &test.expected), None, "{path}");
                // What others do at the same time, or how slow it is, excuses nothing for good.
                if let Expected::Harness(why) = &test.expected {
                    for excuse in ["longer than", "lane", "run of", "while other"] {
                        assert!(!why.contains(excuse), "{path}: {why}");
                    }
                }
            }
        }
        for group in parse(QUICK).unwrap() {
            for test in group.tests {
                let path = format!("{}/{}", group.name, test.name);
                let class = known.get(&path).map(|expected| discriminant(*expected));
                assert_eq!(class, Some(discriminant(&test.expected)), "{path}");
            }
        }
    }

    #[test]
    fn a_list_of_all_has_every_test_of_the_groups_that_are_wanted() {
        let group = |tests: &[&str]| Group {
            tests: tests.iter().map(|test| (*test).to_owned()).collect(),
            ..Group::default()
        };
        let groups = BTreeMap::from([
            ("a".to_owned(), group(&["x", "y"])),
            ("b/c".to_owned(), group(&["z"])),
        ]);
        let list = || parse("a/x\na/y waits for it\n").unwrap();
        let wanted = ["a".to_owned()];
        assert_eq!(complete(list(), &wanted, &groups).unwrap(), list());
        let error = complete(list(), &[], &groups).unwrap_err();
        assert!(error.to_string().contains("b/c/z"), "{error}");
        assert!(complete(list(), &["d".to_owned()], &groups).is_err());
    }
}
