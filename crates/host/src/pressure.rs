//! How short memory is for this process, as the kernel tells it: who waits for memory (PSI), and
//! how full control groups are that have a limit above which the kernel takes memory back by force.

use std::path::Path;
use std::time::Duration;

use crate::memory::{GROUPS, below_root};

/// How short memory is. What cannot be read counts as none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MemoryPressure {
    /// How long some task of this process's control group, or of one below it, has waited for
    /// memory, since there is that group. `None` where the kernel does not tell.
    pub group_stalled: Option<Duration>,
    /// How long some task of the machine has, since it runs.
    pub machine_stalled: Option<Duration>,
    /// How much of the machine's memory can still be had without swapping, 0 to 1.
    pub machine_available: f64,
    /// How much of its `memory.high` is in use by what the kernel cannot simply drop: of the
    /// fullest among the group and those above it, 0 where none has such a limit.
    pub group_fullness: f64,
}

impl MemoryPressure {
    /// As it is now.
    pub fn read() -> Self {
        Self::read_from(Path::new("/proc"), Path::new(GROUPS))
    }

    fn read_from(proc: &Path, groups: &Path) -> Self {
        let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let own = text(&proc.join("self/cgroup"));
        // cgroups(7): groups of version 2, which alone tell any of it, are the line with number 0.
        let group = own.lines().find_map(|line| line.strip_prefix("0::"));
        let group = group.map(|group| groups.join(below_root(group)));
        let stalled = |path: &Path| stalled(&text(path));
        let above = group.iter().flat_map(|group| group.ancestors());
        let above = above.take_while(|group| group.starts_with(groups));
        Self {
            group_stalled: group
                .as_ref()
                .and_then(|group| stalled(&group.join("memory.pressure"))),
            machine_stalled: stalled(&proc.join("pressure/memory")),
            machine_available: available(&text(&proc.join("meminfo"))),
            group_fullness: above
                .map(|group| {
                    let file = |name: &str| text(&group.join(name));
                    fullness(
                        &file("memory.high"),
                        &file("memory.current"),
                        &file("memory.stat"),
                    )
                })
                .fold(0.0, f64::max),
        }
    }
}

/// For how long some task waited (Documentation/accounting/psi.rst: the line `some`, whose `total`
/// is in microseconds).
fn stalled(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split(' ').find_map(|word| word.strip_prefix("total="));
    total?.parse().ok().map(Duration::from_micros)
}

/// The number that a line `name NUMBER` or `name: NUMBER kB` gives.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How much of the machine's memory can be had (proc_meminfo(5)); all of it where nothing is told.
fn available(text: &str) -> f64 {
    match (number(text, "MemAvailable:"), number(text, "MemTotal:")) {
        (Some(available), Some(total)) if total > 0 => available as f64 / total as f64,
        _ => 1.0,
    }
}

/// How full a group is (Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files"): what it
/// has without the page cache of files, of which only what is shared memory has to stay.
fn fullness(high: &str, current: &str, stat: &str) -> f64 {
    let (Ok(high), Ok(current)) = (high.trim().parse::<u64>(), current.trim().parse::<u64>())
    else {
        // `max` is no limit.
        return 0.0;
    };
    let files = number(stat, "file ").unwrap_or(0);
    let shared = number(stat, "shmem ").unwrap_or(0);
    let used = current.saturating_sub(files.saturating_sub(shared));
    used as f64 / high.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read_of_the_own_group_those_above_and_the_machine() {
        let directory = tempfile::tempdir().expect("a directory");
        let (proc, groups) = (
            directory.path().join("proc"),
            directory.path().join("groups"),
        );
        let set = |path: &Path, text: &str| {
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let read = || MemoryPressure::read_from(&proc, &groups);
        let nothing = MemoryPressure {
            machine_available: 1.0,
            ..MemoryPressure::default()
        };
        assert_eq!(read(), nothing);
        let psi = |some: u64| {
            format!(
                "some avg10=0.22 avg60=0.17 avg300=1.11 total={some}\n\
                 full avg10=0.22 avg60=0.16 avg300=1.08 total=58464525\n"
            )
        };
        set(&proc.join("pressure/memory"), &psi(61_000_000));
        let meminfo = "MemTotal:       16384000 kB\nMemFree:          100000 kB\n\
                       MemAvailable:    4096000 kB\nBuffers:           10000 kB\n";
        set(&proc.join("meminfo"), meminfo);
        set(
            &proc.join("self/cgroup"),
            "4:memory:/old\n0::/server/millpond\n",
        );
        let machine = MemoryPressure {
            machine_stalled: Some(Duration::from_secs(61)),
            machine_available: 0.25,
            ..nothing
        };
        assert_eq!(read(), machine);
        let own = groups.join("server/millpond");
        set(&own.join("memory.pressure"), &psi(1500));
        set(&groups.join("other/memory.pressure"), &psi(9_999_999));
        let both = MemoryPressure {
            group_stalled: Some(Duration::from_micros(1500)),
            ..machine
        };
        assert_eq!(read(), both);
        // Files that are cached do not count, what is in tmpfs does.
        set(&own.join("memory.high"), "max\n");
        set(&own.join("memory.current"), "1000\n");
        set(
            &own.join("memory.stat"),
            "anon 300\nfile 700\nfile_mapped 9\nshmem 200\n",
        );
        assert_eq!(read(), both);
        set(&own.join("memory.high"), "2000\n");
        assert_eq!(read().group_fullness, 0.25);
        set(&groups.join("server/memory.high"), "4000\n");
        set(&groups.join("server/memory.current"), "3000\n");
        set(
            &groups.join("server/memory.stat"),
            "anon 3000\nfile 0\nshmem 0\n",
        );
        assert_eq!(read().group_fullness, 0.75);
        // Nobody's above where groups are mounted.
        set(&directory.path().join("memory.high"), "1\n");
        set(&directory.path().join("memory.current"), "1\n");
        assert_eq!(read().group_fullness, 0.75);
    }

    #[test]
    fn nonsense_is_nothing() {
        for text in [
            "",
            "some",
            "some total=",
            "some total=-1",
            "full total=5",
            "\0",
        ] {
            assert_eq!(stalled(text), None);
        }
        assert_eq!(available("MemTotal: 0 kB\nMemAvailable: 5 kB\n"), 1.0);
        assert_eq!(fullness("0", "5", ""), 5.0);
        assert_eq!(fullness("10", "5", "file 100\n"), 0.0);
        assert_eq!(fullness("x", "5", ""), 0.0);
    }
}
