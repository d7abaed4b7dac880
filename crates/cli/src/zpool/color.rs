//! Colours of `zpool status`, for people who set `ZFS_COLOR` and look at a terminal.
//!
//! Source: lib/libzfs/libzfs_util.c (`use_color`, `printf_color`), cmd/zpool/zpool_main.c
//! (`health_str_to_color`).

use std::io::IsTerminal;
use std::sync::OnceLock;

/// How text stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    Bold,
    Red,
    Yellow,
    Blue,
}

impl Color {
    const fn sequence(self) -> &'static str {
        match self {
            Color::Bold => "\x1b[1m",
            Color::Red => "\x1b[0;31m",
            Color::Yellow => "\x1b[0;33m",
            Color::Blue => "\x1b[0;34m",
        }
    }
}

/// Whether somebody wants colours, and sees them (`libzfs_envvar_is_set`: numbers but 0, and the
/// words `YES` and `ON`).
fn is_wanted(variable: impl Fn(&str) -> Option<String>, is_terminal: bool) -> bool {
    let is_set = |name: &str| {
        variable(name).is_some_and(|value| {
            let is_word = |word: &str| value.eq_ignore_ascii_case(word);
            let is_number = || value.parse::<u64>().is_ok_and(|number| number != 0);
            is_word("yes") || is_word("on") || is_number()
        })
    };
    let term = variable("TERM");
    let shows = term.is_some_and(|term| term != "dumb" && term != "unknown");
    is_set("ZFS_COLOR") && !is_set("NO_COLOR") && is_terminal && shows
}

fn is_on() -> bool {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    *IS_ON.get_or_init(|| {
        let variable = |name: &str| std::env::var(name).ok();
        is_wanted(variable, std::io::stdout().is_terminal())
    })
}

/// The text in a colour, if it has one.
pub fn paint(color: Option<Color>, text: &str) -> String {
    match color.filter(|_| is_on()) {
        Some(color) => format!("{}{text}\x1b[0m", color.sequence()),
        None => text.to_owned(),
    }
}

/// The text in bold.
pub fn bold(text: &str) -> String {
    paint(Some(Color::Bold), text)
}

/// The colour of a state.
pub fn of_state(state: &str) -> Option<Color> {
    match state {
        "FAULTED" | "SUSPENDED" | "UNAVAIL" => Some(Color::Red),
        "OFFLINE" | "DEGRADED" | "REMOVED" => Some(Color::Yellow),
        _ => None,
    }
}

/// The colour of a number of errors.
pub fn of_errors(count: u64) -> Option<Color> {
    (count != 0).then_some(Color::Red)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_those_who_want_and_see_them() {
        let wanted = |set: &[(&str, &str)], is_terminal| {
            let variable = |name: &str| {
                let mut set = set.iter();
                let found = set.find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            is_wanted(variable, is_terminal)
        };
        let xterm = ("TERM", "xterm");
        assert!(wanted(&[("ZFS_COLOR", "1"), xterm], true));
        assert!(wanted(
            &[("ZFS_COLOR", "yes"), xterm, ("NO_COLOR", "0")],
            true
        ));
        assert!(!wanted(&[("ZFS_COLOR", "1"), xterm], false));
        assert!(!wanted(&[("ZFS_COLOR", "0"), xterm], true));
        assert!(!wanted(&[("ZFS_COLOR", "1"), ("TERM", "dumb")], true));
        assert!(!wanted(&[("ZFS_COLOR", "1")], true));
        assert!(!wanted(
            &[("ZFS_COLOR", "1"), xterm, ("NO_COLOR", "1")],
            true
        ));
        assert!(!wanted(&[xterm], true));
        // Tests write to no terminal that wants any.
        assert_eq!(paint(of_state("ONLINE"), "ONLINE"), "ONLINE");
    }
}
