//! The list of properties that `zfs get`, `set`, `inherit` and `list` end with where their words
//! make no sense (`usage`, `usage_prop_cb`, cmd/zfs/zfs_main.c): scripts read it.

use dataset::props::PROPERTIES;

/// Commands that have the list.
const COMMANDS: [&str; 4] = ["get", "inherit", "list", "set"];

/// Properties of many names: whether each can be set, and what values it takes.
const FAMILIES: [(&str, bool, &str); 14] = [
    ("userused@...", false, "<size>"),
    ("groupused@...", false, "<size>"),
    ("projectused@...", false, "<size>"),
    ("userobjused@...", false, "<size>"),
    ("groupobjused@...", false, "<size>"),
    ("projectobjused@...", false, "<size>"),
    ("userquota@...", true, "<size> | none"),
    ("groupquota@...", true, "<size> | none"),
    ("projectquota@...", true, "<size> | none"),
    ("userobjquota@...", true, "<size> | none"),
    ("groupobjquota@...", true, "<size> | none"),
    ("projectobjquota@...", true, "<size> | none"),
    ("written@<snap>", false, "<size>"),
    ("written#<bookmark>", false, "<size>"),
];

/// The list, if `command` of `zfs` has it.
pub fn properties(command: &str) -> Option<String> {
    if !COMMANDS.contains(&command) {
        return None;
    }
    let line = |name: &str, is_set: bool, is_inherited: bool, values: &str| {
        let word = |is: bool| if is { "YES" } else { "NO" };
        let (set, inherited) = (word(is_set), word(is_inherited));
        format!("\t{name:<21} {set:>4} {inherited:>8}   {values}\n")
    };
    let mut text = format!(
        "\nThe following properties are supported:\n\n\t{:<21} EDIT  INHERIT   VALUES\n\n",
        "PROPERTY"
    );
    let mut native: Vec<_> = PROPERTIES.iter().filter(|one| one.visible).collect();
    native.sort_by_key(|one| one.name);
    for one in native {
        let is_inherited = one.is_inheritable();
        text += &line(one.name, !one.is_read_only(), is_inherited, one.values);
    }
    for (name, is_set, values) in FAMILIES {
        text += &line(name, is_set, false, values);
    }
    text += "\nSizes are in bytes, with letters such as K, M or G for more.\n";
    text += "Properties of users have a colon (:) in their names.\n";
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_find_names_and_what_can_be_done_in_columns() {
        let text = properties("inherit").unwrap();
        let columns = |name: &str| {
            let line = text
                .lines()
                .find(|line| line.trim_start().starts_with(name));
            let mut words = line.unwrap().split_whitespace();
            (
                words.nth(1).unwrap().to_owned(),
                words.next().unwrap().to_owned(),
            )
        };
        let are = |edit: &str, inherit: &str| (edit.to_owned(), inherit.to_owned());
        assert_eq!(columns("atime "), are("YES", "YES"));
        assert_eq!(columns("quota "), are("YES", "NO"));
        assert_eq!(columns("used "), are("NO", "NO"));
        assert_eq!(columns("userquota@"), are("YES", "NO"));
        assert!(properties("create").is_none());
    }
}
