//! Snapshots that commands take for themselves: of what is there now, for as long as they run.

/// What a command calls such a snapshot. OpenZFS's `zfs diff` has one, too (`ZDIFF_PREFIX`,
/// lib/libzfs/libzfs_diff.c).
pub(crate) fn temporary(command: Temporary, number: u64) -> String {
    format!("{}{}-{number}", command.prefix(), std::process::id())
}

/// Which command needs a snapshot for as long as it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Temporary {
    Send,
    Diff,
}

impl Temporary {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Send => "zfs-send-",
            Self::Diff => "zfs-diff-",
        }
    }
}

/// Whether a snapshot, by its name after the `@`, goes with the end of some command.
pub fn is_temporary(snapshot: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    [Temporary::Send, Temporary::Diff]
        .into_iter()
        .any(|command| {
            let rest = snapshot.strip_prefix(command.prefix());
            rest.is_some_and(|rest| rest.splitn(2, '-').all(is_number))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_needs_for_itself_is_known_by_its_name() {
        for command in [Temporary::Send, Temporary::Diff] {
            assert!(is_temporary(&temporary(command, 7)));
        }
        assert!(is_temporary("zfs-diff-4711"));
        for other in [
            "zfs-send-monday",
            "zfs-send-",
            "zfs-diff-1-",
            "zfs-send-1-2-3",
            "a",
        ] {
            assert!(!is_temporary(other), "{other}");
        }
    }
}
