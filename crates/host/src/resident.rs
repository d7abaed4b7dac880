//! What the kernel says that this process has in memory (proc_pid_status(5)).

/// What is resident of this process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentMemory {
    /// All of it.
    pub total_bytes: u64,
    /// Of it, the program and files that are mapped.
    pub mapped_bytes: u64,
}

impl ResidentMemory {
    /// As it is now; `None` where the kernel does not tell.
    pub fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/self/status").ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kilobytes = line.trim().strip_suffix(" kB")?.trim();
            kilobytes.parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Self {
            total_bytes: bytes("VmRSS:")?,
            // Before Linux 4.5 they are not told apart.
            mapped_bytes: bytes("RssFile:").unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_resident_is_told_with_what_of_it_is_mapped() {
        let status = "Name:\ta\nVmRSS:\t   400 kB\nRssAnon:\t 300 kB\nRssFile:\t  100 kB\n";
        let told = |total_bytes, mapped_bytes| {
            Some(ResidentMemory {
                total_bytes,
                mapped_bytes,
            })
        };
        assert_eq!(ResidentMemory::parse(status), told(400 << 10, 100 << 10));
        assert_eq!(ResidentMemory::parse("VmRSS:\t 4 kB\n"), told(4 << 10, 0));
        for nothing in ["", "VmRSS: 4", "VmRSS: x kB", "VmRSS: 99999999999999999 kB"] {
            assert_eq!(ResidentMemory::parse(nothing), None);
        }
    }
}
