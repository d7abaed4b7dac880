//! Of which groups a caller is. FUSE tells the first alone; the others are in `/proc/TASK/status`
//! (proc_pid_status(5)).
//!
//! The task waits for its answer, so that its number is not another's meanwhile; should it have
//! been killed, its ids tell. Whatever is not certain counts as no: a set-group-id bit goes that
//! could have stayed.

use std::sync::OnceLock;

use filesystem::Caller;

/// Whether the caller is of a group. Reads a file that the kernel makes up, which does not wait for
/// the task.
pub(crate) fn is_of(caller: &Caller, group: u32) -> bool {
    // The numbers in requests are those of this process's namespace; so must those below /proc be.
    static OURS: OnceLock<bool> = OnceLock::new();
    let is_ours = *OURS.get_or_init(|| {
        std::fs::read_to_string("/proc/self/status")
            .is_ok_and(|status| numbers(&status, "NSpid:") == Some(vec![std::process::id()]))
    });
    // Zero: a task that this namespace does not see.
    if !is_ours || caller.task == 0 {
        return false;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", caller.task));
    status.is_ok_and(|status| says(&status, caller, group))
}

/// All groups of the caller, as far as they are certain: the first alone otherwise.
pub(crate) fn all_of(caller: &Caller) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", caller.task));
    let more = status.ok().and_then(|status| numbers(&status, "Groups:"));
    let more = more.unwrap_or_default().into_iter();
    std::iter::once(caller.gid)
        .chain(more.filter(|group| is_of(caller, *group)))
        .collect()
}

/// Whether a task's status says that it is the caller, in the same namespace, and of the group.
fn says(status: &str, caller: &Caller, group: u32) -> bool {
    // The fourth is the one that files are used with.
    let fs_id = |name| numbers(status, name).and_then(|ids| ids.get(3).copied());
    numbers(status, "NSpid:") == Some(vec![caller.task])
        && fs_id("Uid:") == Some(caller.uid)
        && fs_id("Gid:") == Some(caller.gid)
        && numbers(status, "Groups:").is_some_and(|groups| groups.contains(&group))
}

/// The numbers in the line of that name; `None` without such a line, or with anything else in it.
fn numbers(status: &str, name: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let words = line.split_whitespace();
    words.map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certain_makes_a_member() {
        let good = "Name:\tsh\nUid:\t1\t2\t3\t1000\nGid:\t1\t2\t3\t1001\n\
                    Groups:\t4 24 1001 \nNSpid:\t77\n";
        let caller = Caller {
            task: 77,
            ..Caller::new(1000, 1001)
        };
        for group in [4, 24, 1001] {
            assert!(says(good, &caller, group));
        }
        assert!(!says(good, &caller, 5) && !says(good, &caller, 2));
        for (from, to) in [
            ("1000\n", "0\n"),
            ("1001\nGroups", "1002\nGroups"),
            ("NSpid:\t77", "NSpid:\t77\t1"),
            ("NSpid:\t77", "NSpid:\t78"),
            ("NSpid:\t77\n", ""),
            ("Groups:\t4", "Groups:\tx 4"),
            ("Groups:", "Sets:"),
        ] {
            let other = good.replace(from, to);
            assert!(other != good && !says(&other, &caller, 4), "{from} {to}");
        }
        assert!(!says("", &caller, 4));
        assert!(!is_of(&Caller { task: 0, ..caller }, 4));
    }
}
