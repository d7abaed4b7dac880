//! Names and numbers of this host's users and groups, from `/etc/passwd` and `/etc/group`.

use std::collections::BTreeMap;

use api::SpaceOwner;

/// Names by number from `/etc/passwd` or `/etc/group`, which have the number in the third field
/// (passwd(5), group(5)).
pub fn names_in(path: &str) -> BTreeMap<u64, String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        let (name, id) = (fields.next(), fields.nth(1));
        if let (Some(name), Some(Ok(id))) = (name, id.map(str::parse)) {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

/// Names of this host's users and of its groups.
pub fn user_and_group_names() -> (BTreeMap<u64, String>, BTreeMap<u64, String>) {
    (names_in("/etc/passwd"), names_in("/etc/group"))
}

/// Groups that a user is a member of by `/etc/group`, whose fourth field has the members.
pub fn groups_of(uid: u32) -> Vec<u64> {
    let Some(name) = names_in("/etc/passwd").remove(&u64::from(uid)) else {
        return Vec::new();
    };
    let text = std::fs::read_to_string("/etc/group").unwrap_or_default();
    groups_with(&text, &name)
}

fn groups_with(text: &str, name: &str) -> Vec<u64> {
    let group = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let (id, members) = (fields.next()?, fields.next()?);
        let is_member = members.split(',').any(|member| member == name);
        is_member.then(|| id.parse().ok()).flatten()
    };
    text.lines().filter_map(group).collect()
}

/// Members of a group of this host, by name, in order; nobody of one that there is not.
pub fn members_of(group: &str) -> Vec<String> {
    let text = std::fs::read_to_string("/etc/group").unwrap_or_default();
    members_in(&text, group)
}

fn members_in(text: &str, group: &str) -> Vec<String> {
    let mut lines = text.lines().map(|line| line.split(':'));
    let found = lines.find_map(|mut fields| (fields.next() == Some(group)).then(|| fields.nth(2)));
    let names = found.flatten().unwrap_or_default().split(',');
    let mut names: Vec<String> = names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

/// The number of a user, group or project that is given by number or name (projects have none).
pub fn id_of(owner: SpaceOwner, whose: &str) -> Option<u64> {
    if let Ok(id) = whose.parse::<u32>() {
        return Some(id.into());
    }
    let file = match owner {
        SpaceOwner::User => "/etc/passwd",
        SpaceOwner::Group => "/etc/group",
        SpaceOwner::Project => return None,
    };
    let mut names = names_in(file).into_iter();
    names.find(|(_, known)| known == whose).map(|(id, _)| id)
}

/// The user that a user number was given to for namespaces, by `/etc/subuid` (subuid(5)): who may
/// take it in addition to their own. None of a number that is nobody's to take.
pub fn owner_of_subordinate(uid: u32) -> Option<u32> {
    let text = std::fs::read_to_string("/etc/subuid").ok()?;
    let id_of = |name: &str| u32::try_from(id_of(SpaceOwner::User, name)?).ok();
    owner_in(&text, uid, id_of)
}

fn owner_in(text: &str, uid: u32, id_of: impl Fn(&str) -> Option<u32>) -> Option<u32> {
    let mut ranges = text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        let first: u32 = fields.next()?.trim().parse().ok()?;
        let count: u32 = fields.next()?.trim().parse().ok()?;
        let is_within = uid.checked_sub(first).is_some_and(|at| at < count);
        is_within.then_some(owner)
    });
    ranges.find_map(id_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_namespaces_are_whose_range_they_are_in() {
        let text = "u:100000:65536\n# no\nbroken:1\n8:165536:2\nnobody:165536:3\n";
        let id_of = |name: &str| match name {
            "u" => Some(1000),
            name => name.parse().ok(),
        };
        let owners = [99_999, 100_000, 165_535, 165_536, 165_538].map(|uid| {
            let owner = owner_in(text, uid, id_of);
            owner.unwrap_or(0)
        });
        assert_eq!(owners, [0, 1000, 1000, 8, 0]);
    }

    #[test]
    fn members_are_in_the_fourth_field() {
        let text = "a:x:1:u,v\nb:x:2:\nbroken\nc:x:3:v\nd:x:x:v\n";
        assert_eq!(groups_with(text, "v"), [1, 3]);
        assert!(groups_with(text, "w").is_empty());
        assert_eq!(members_in("a:x:1:v,u\nb:x:2:\n", "a"), ["u", "v"]);
        assert!(members_in("a:x:1:v,u\nb:x:2:\n", "b").is_empty());
        assert!(members_in("ab:x:1:v\n", "a").is_empty());
    }

    #[test]
    fn names_come_from_the_third_field() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("passwd");
        std::fs::write(
            &file,
            "root:x:0:0:root:/root:/bin/sh\n# no\nbroken\nu:x:7:7::/:\nv:x:7:7::/:\n",
        )
        .unwrap();
        let names = names_in(&file.to_string_lossy());
        assert_eq!(names, BTreeMap::from([(0, "root".into()), (7, "u".into())]));
    }
}
