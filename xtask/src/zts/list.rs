//! Which tests run, and how each is expected to end.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use super::runfiles::Group;

/// What CI runs: lines `GROUP/TEST`, or `GROUP/TEST deviates WHY`; `#` begins a comment.
const QUICK: &str = include_str!("../../zts/quick");

/// How a test is expected to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    Pass,
    /// It does not pass, for this reason.
    Deviates(String),
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

/// The groups and tests that words ask for, `GROUP` or `GROUP:TEST,TEST`; without words the quick
/// list.
pub fn select(words: &[String], groups: &BTreeMap<String, Group>) -> anyhow::Result<Vec<Selected>> {
    let selected = match words {
        [] => quick(QUICK)?,
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
fn quick(text: &str) -> anyhow::Result<Vec<Selected>> {
    let mut out: Vec<Selected> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (path, rest) = line.split_once(' ').unwrap_or((line, ""));
        let expected = match rest.trim() {
            "" => Expected::Pass,
            rest => match rest.strip_prefix("deviates ") {
                Some(why) => Expected::Deviates(why.trim().to_owned()),
                None => bail!("'{line}': after a test only 'deviates WHY' may follow"),
            },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_how_tests_end() {
        let text = "# first\na/b/one\na/b/two   deviates no such thing here\n\nc/three # quick\n";
        let list = quick(text).unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(list[0].name, "a/b");
        assert_eq!(list[0].tests[0].expected, Expected::Pass);
        let why = Expected::Deviates("no such thing here".into());
        assert_eq!(list[0].tests[1].expected, why);
        assert_eq!(list[1].tests[0].name, "three");
        for wrong in ["three", "a/b fails", "a/x\nb/y\na/z"] {
            assert!(quick(wrong).is_err(), "{wrong}");
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
        let list = quick(QUICK).unwrap();
        let tests: usize = list.iter().map(|group| group.tests.len()).sum();
        assert!((120..=250).contains(&tests), "{tests}");
    }
}
