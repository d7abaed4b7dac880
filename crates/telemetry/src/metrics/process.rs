//! What the process takes, as the kernel tells it (`/proc/self`, proc(5)), by the names that
//! Prometheus's own clients use.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::families;
use super::text::Exposition;

/// Ticks of a second in what the kernel tells processes (`USER_HZ`), on all machines that this is
/// built for.
const TICKS: f64 = 100.0;

/// What is told of a process.
#[derive(Clone, Debug, Default, PartialEq)]
struct Process {
    cpu_seconds: f64,
    /// Since the machine started.
    start_seconds: f64,
    threads: u64,
    resident_bytes: u64,
    virtual_bytes: u64,
}

/// Reads `stat` and `status` of a process.
fn parse(stat: &str, status: &str) -> Option<Process> {
    // The name of the program, in parentheses, may have anything in it.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // The first of these is field 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes = line.trim().strip_suffix(" kB")?.trim();
        kilobytes.parse::<u64>().ok().map(|count| count * 1024)
    };
    Some(Process {
        cpu_seconds: (field(14)? + field(15)?) as f64 / TICKS,
        threads: field(20)?,
        start_seconds: field(22)? as f64 / TICKS,
        resident_bytes: bytes("VmRSS:")?,
        virtual_bytes: bytes("VmSize:")?,
    })
}

/// When the machine started, in seconds since 1970.
fn boot_seconds(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

/// Adds what is known of this process.
pub(super) fn add(out: &mut Exposition) {
    let read = |name: &str| std::fs::read_to_string(Path::new("/proc").join(name)).ok();
    let own = || parse(&read("self/stat")?, &read("self/status")?);
    if let Some(process) = own() {
        out.add(&families::CPU, &[], process.cpu_seconds);
        out.add(&families::RESIDENT, &[], process.resident_bytes);
        out.add(&families::VIRTUAL, &[], process.virtual_bytes);
        out.add(&families::THREADS, &[], process.threads);
        if let Some(boot_seconds) = read("stat").as_deref().and_then(boot_seconds) {
            let start_seconds = boot_seconds + process.start_seconds;
            out.add(&families::PROCESS_START, &[], start_seconds);
        }
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        out.add(&families::OPEN_FDS, &[], entries.count());
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        out.add(&families::MAX_FDS, &[], most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_it_is_called() {
        let stat = "4242 (a) b (c) S 1 4242 4242 0 -1 4194560 1000 0 7 0 150 50 0 0 20 0 9 0 12345 \
                    999 10 18446744073709551615 1 1 0";
        let status = "Name:\ta\nVmSize:\t  2048 kB\nVmRSS:\t    16 kB\nThreads:\t9\n";
        let wanted = Process {
            cpu_seconds: 2.0,
            start_seconds: 123.45,
            threads: 9,
            resident_bytes: 16 << 10,
            virtual_bytes: 2 << 20,
        };
        assert_eq!(parse(stat, status), Some(wanted));
        assert_eq!(parse("1 (a) S 1", status), None);
        assert_eq!(parse(stat, "Name:\ta\n"), None);
        assert_eq!(boot_seconds("cpu 1\nbtime 1700000000\n"), Some(1.7e9));
    }
}
