//! The suite's run files (`runfiles/*.run`): which tests a group has, what runs before and after
//! them, and as whom.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;

/// The files that make a whole run on Linux.
const FILES: [&str; 2] = ["common.run", "linux.run"];

/// A directory of tests.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Group {
    pub tests: Vec<String>,
    /// Names of the scripts before the first and after the last test, without `.ksh`.
    pub setup: Option<String>,
    pub cleanup: Option<String>,
    /// Not as root, but as an ordinary user.
    pub as_user: bool,
    /// Tests before which the group is set up anew: each section of the files is a run of its own.
    pub anew: Vec<String>,
}

/// Groups by their directory below `tests/functional`. `suite` is `.../zfs-tests`; the run files
/// are beside it.
pub fn load(suite: &Path) -> anyhow::Result<BTreeMap<String, Group>> {
    let mut groups = BTreeMap::new();
    for file in FILES {
        let path = suite.with_file_name("runfiles").join(file);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        parse(&text, &mut groups);
    }
    Ok(groups)
}

/// Adds the groups of a file: sections with `KEY = VALUE`, in which lists are Python's, over
/// several lines that are indented. `[DEFAULT]` holds for all of the file; a group may come in
/// several sections (`[DIRECTORY:Linux]`).
fn parse(text: &str, groups: &mut BTreeMap<String, Group>) {
    let mut section = String::new();
    let mut defaults = BTreeMap::new();
    let mut own: BTreeMap<String, String> = BTreeMap::new();
    let mut key = String::new();
    let end = "[END]";
    for line in text.lines().chain([end]) {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.split(']').next())
        {
            match section.as_str() {
                "" => {}
                "DEFAULT" => defaults = own,
                directory => add(directory, &defaults, &own, groups),
            }
            (section, own) = (name.to_owned(), BTreeMap::new());
        } else if line.starts_with([' ', '\t']) {
            own.entry(key.clone()).or_default().push_str(line);
        } else if let Some((name, value)) = line.split_once('=').filter(|_| !line.starts_with('#'))
        {
            name.trim().clone_into(&mut key);
            own.insert(key.clone(), value.trim().to_owned());
        }
    }
}

fn add(
    section: &str,
    defaults: &BTreeMap<String, String>,
    own: &BTreeMap<String, String>,
    groups: &mut BTreeMap<String, Group>,
) {
    let directory = section.split(':').next().unwrap_or(section);
    let Some(name) = directory.strip_prefix("tests/functional/") else {
        return;
    };
    let value = |key: &str| own.get(key).or_else(|| defaults.get(key)).cloned();
    let group = groups.entry(name.to_owned()).or_insert_with(|| Group {
        setup: value("pre").filter(|script| !script.is_empty()),
        cleanup: value("post").filter(|script| !script.is_empty()),
        as_user: value("user").is_some_and(|user| user != "root"),
        tests: Vec::new(),
        anew: Vec::new(),
    });
    let mut begins_later = !group.tests.is_empty();
    for test in value("tests")
        .unwrap_or_default()
        .split('\'')
        .skip(1)
        .step_by(2)
    {
        if !group.tests.iter().any(|known| known == test) {
            group.tests.push(test.to_owned());
            if std::mem::take(&mut begins_later) {
                group.anew.push(test.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_tests_of_all_their_sections() {
        let text = "# a comment = no key\n[DEFAULT]\npre = setup\nuser = root\npost = cleanup\n\n\
            [tests/functional/acl/off]\ntests = ['dosmode', 'posixmode']\ntags = ['functional']\n\n\
            [tests/functional/cli_user/misc:Linux]\ntests = ['a',\n    'b',\n    'c']\n\
            user =\npre =\n\n\
            [tests/functional/acl/off:Linux]\ntests = ['posixmode', 'more']\n";
        let mut groups = BTreeMap::new();
        parse(text, &mut groups);
        let acl = &groups["acl/off"];
        assert_eq!(acl.tests, ["dosmode", "posixmode", "more"]);
        assert_eq!(acl.anew, ["more"]);
        assert_eq!(acl.setup.as_deref(), Some("setup"));
        assert!(!acl.as_user);
        let misc = &groups["cli_user/misc"];
        assert_eq!(misc.tests, ["a", "b", "c"]);
        assert!(misc.as_user && misc.setup.is_none());
        assert_eq!(misc.cleanup.as_deref(), Some("cleanup"));
        assert_eq!(groups.len(), 2);
    }
}
