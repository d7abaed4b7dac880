//! How much memory this process may have: the machine's, or less where its control group, or one
//! above that, has a limit (`MemoryMax=` of its unit or slice, a container's).

use std::path::{Component, Path, PathBuf};

/// Where the kernel shows control groups.
pub(crate) const GROUPS: &str = "/sys/fs/cgroup";

/// What this process may have at most, in bytes.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram as u64 * u64::from(info.mem_unit.max(1));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit(&own, Path::new(GROUPS)).map_or(machine, |limit| limit.min(machine))
}

/// The lowest limit of the groups that `/proc/self/cgroup` names and of those above them, in bytes
/// (cgroups(7), "/proc/PID/cgroup"; Documentation/admin-guide/cgroup-v2.rst, "memory.max";
/// cgroup-v1/memory.rst, "memory.limit_in_bytes").
fn limit(own: &str, groups: &Path) -> Option<u64> {
    let limits = own.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
            return Vec::new();
        };
        let group = below_root(group);
        let (root, file) = match controllers {
            "" => (groups.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (groups.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let read = |group: &Path| {
            let text = std::fs::read_to_string(root.join(group).join(file)).ok()?;
            // `max` is none.
            text.trim().parse::<u64>().ok()
        };
        group.ancestors().filter_map(read).collect()
    });
    limits.min()
}

/// A group's path below where groups are mounted. Seen from a namespace that it is not in, it
/// begins with `..`: what is mounted is all that can be seen of it then.
pub(crate) fn below_root(group: &str) -> PathBuf {
    Path::new(group)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_above_a_process_holds() {
        let directory = tempfile::tempdir().expect("a directory");
        let groups = directory.path();
        let set = |group: &str, file: &str, text: &str| {
            let group = groups.join(group);
            std::fs::create_dir_all(&group).expect("a group");
            std::fs::write(group.join(file), text).expect("a limit");
        };
        let own = "0::/system.slice/millpond.service\n";
        assert_eq!(limit(own, groups), None);
        assert_eq!(limit("", groups), None);
        set("system.slice/millpond.service", "memory.max", "max\n");
        assert_eq!(limit(own, groups), None);
        set("system.slice", "memory.max", "3000\n");
        assert_eq!(limit(own, groups), Some(3000));
        set("system.slice/millpond.service", "memory.max", "2000\n");
        assert_eq!(limit(own, groups), Some(2000));
        // Another one's.
        set("user.slice", "memory.max", "10\n");
        assert_eq!(limit(own, groups), Some(2000));
        // In a container, the root has the limit.
        set("", "memory.max", "1000\n");
        assert_eq!(limit("0::/\n", groups), Some(1000));
        assert_eq!(limit("0::/../../elsewhere\n", groups), Some(1000));
        // Version 1, and both side by side.
        set("memory/a/b", "memory.limit_in_bytes", "500\n");
        let old = "5:cpu:/a\n4:memory:/a/b\n0::/none\n";
        assert_eq!(limit(old, groups), Some(500));
    }
}
