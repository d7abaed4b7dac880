//! Where the suite runs: mounts and processes of its own, a private `/etc`, a directory for
//! everything that it makes.
//!
//! Tests make accounts, mount at `/testpool`, kill programs by their names and end in the middle.
//! So they have a mount namespace (what is mounted in it goes with it) and a PID namespace: they
//! see no process but their own, and when the first of them ends the kernel ends all others. A
//! network namespace lets the server answer on a portmapper's port whatever the machine's does.
//! `/etc` and the suite itself are overlays, so what tests write to them goes away too. Only loop
//! devices are the machine's: those of the sandbox are made and detached outside of it. A lock lets
//! one run at a time use the names that the suite gives pools and directories.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::INSIDE;

/// How many disks tests have, and how big each is (sparse).
const DISKS: usize = 3;
const DISK_BYTES: u64 = 4 << 30;

/// An account for tests that run as an ordinary user; only in the private `/etc`.
pub const USER: &str = "zts";

/// What the outside tells the inside, in variables of these names.
const WORK: &str = "MILLPOND_ZTS_WORK";
const LOGS: &str = "MILLPOND_ZTS_LOGS";
const BINARY: &str = "MILLPOND_ZTS_BINARY";
const DEVICES: &str = "MILLPOND_ZTS_DISKS";

/// The first process of the sandbox: mounts, then waits for the program that it is given. It stays,
/// as somebody has to wait for orphans. Mounts of FUSE that came along would keep filesystems of
/// others from being unmounted.
const FIRST: &str = r#"
set -e
work=$1 share=$2 user=$3; shift 3
mount -t proc proc /proc
ip link set lo up || true
awk '$3 ~ /^fuse/ && $3 != "fusectl" { print $2 }' /proc/self/mounts | sort -r |
  while read -r at; do umount -l "$at" || true; done
overlay() {
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$work/$3.upper,workdir=$work/$3.work" "$2"
}
overlay /etc /etc etc
overlay "$share" "$work/share" share
# Tests choose ids of hosts themselves.
rm -f /etc/hostid
useradd -m -d "$work/home" "$user"
"$@" || exit $?
exit 0
"#;

/// Who has spares stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spares {
    /// The server, as zed would.
    Auto,
    /// Tests.
    Manual,
}

/// The sandbox, seen from inside.
pub struct Sandbox {
    /// The directory that holds all that is made.
    pub work: PathBuf,
    /// What tests print, test by test; stays.
    pub logs: PathBuf,
    /// The suite, which may be changed here.
    pub suite: PathBuf,
    /// The binary under test.
    pub binary: PathBuf,
    /// Names of the loop devices in `/dev`.
    pub disks: Vec<String>,
}

impl Sandbox {
    /// The sandbox that this process is in.
    pub fn here() -> anyhow::Result<Self> {
        let variable = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).with_context(|| {
                format!("{INSIDE} is for `cargo xtask zts` only ({name} is missing)")
            })
        };
        let work = variable(WORK)?;
        let disks = std::env::var(DEVICES).context("the disks")?;
        Ok(Self {
            suite: work.join("share/zfs-tests"),
            logs: variable(LOGS)?,
            binary: variable(BINARY)?,
            disks: disks.split(' ').map(str::to_owned).collect(),
            work,
        })
    }

    /// The state directory of the server.
    pub fn state(&self) -> PathBuf {
        self.work.join("state")
    }

    /// Says how servers are started that commands start: tests inject faults, ask who is served by
    /// NFS, and have spares stand in themselves unless `spares` says that the server does.
    pub fn set_options(&self, spares: Spares) -> anyhow::Result<()> {
        let file = self.state().join("millpond.toml");
        let spares = match spares {
            Spares::Auto => "auto",
            Spares::Manual => "manual",
        };
        let text = format!("inject = true\nportmapper = true\nspares = \"{spares}\"\n");
        fs::write(&file, text).with_context(|| file.display().to_string())
    }

    /// The only directory in tests' `PATH`.
    pub fn path(&self) -> PathBuf {
        self.work.join("path")
    }

    /// Where tests make their files.
    pub fn files(&self) -> PathBuf {
        self.work.join("files")
    }
}

/// Loop devices, detached when dropped.
struct Disks(Vec<String>);

impl Disks {
    fn attach(directory: &Path) -> anyhow::Result<Self> {
        let mut out = Self(Vec::new());
        for index in 0..DISKS {
            let path = directory.join(format!("disk{index}"));
            File::create(&path)?.set_len(DISK_BYTES)?;
            let output = Command::new("losetup")
                .args(["-P", "-f", "--show"])
                .arg(&path)
                .output()
                .context("losetup")?;
            if !output.status.success() {
                bail!("losetup: {}", String::from_utf8_lossy(&output.stderr));
            }
            out.0
                .push(String::from_utf8(output.stdout)?.trim().to_owned());
        }
        Ok(out)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for disk in &self.0 {
            let _ = Command::new("losetup").args(["-d", disk]).status();
        }
    }
}

/// The directory at or above `path` that only its owner may enter, if there is one.
fn closed_to_users(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    for above in path.ancestors() {
        let mode = fs::metadata(above)
            .with_context(|| above.display().to_string())?
            .permissions()
            .mode();
        if mode & 0o001 == 0 {
            return Ok(Some(above.to_owned()));
        }
    }
    Ok(None)
}

/// Makes the sandbox, runs this program in it, and takes it away again.
pub fn enter(suite: &Path, binary: &Path, words: &[String]) -> anyhow::Result<()> {
    let lock = File::options()
        .create(true)
        .append(true)
        .open(std::env::temp_dir().join("millpond-zts.lock"))?;
    lock.lock().context("the turn of this run")?;

    let base = std::env::var_os("MILLPOND_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let base = std::path::absolute(base)?;
    if let Some(closed) = closed_to_users(&base)? {
        bail!(
            "{} is closed to the ordinary users that tests make; name a directory that they may \
             enter with MILLPOND_TEST_DIR",
            closed.display()
        );
    }
    let directory = tempfile::Builder::new()
        .prefix("millpond-zts-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(base)
        .context("a directory for the suite")?;
    let work = directory.path();
    let overlays = [
        "dev.upper",
        "dev.work",
        "etc.upper",
        "etc.work",
        "share.upper",
        "share.work",
        "share",
    ];
    for name in ["state", "path", "files", "disks"]
        .into_iter()
        .chain(overlays)
    {
        fs::create_dir(work.join(name))?;
    }
    fs::set_permissions(work.join("files"), fs::Permissions::from_mode(0o1777))?;
    // Ordinary users run it too, who may not enter the directory in which it was built.
    let copy = work.join("millpond");
    fs::copy(binary, &copy).with_context(|| format!("a copy of {}", binary.display()))?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    let disks = Disks::attach(&work.join("disks"))?;
    let names: Vec<&str> = disks
        .0
        .iter()
        .filter_map(|disk| disk.strip_prefix("/dev/"))
        .collect();

    let own = std::env::current_exe().context("where this program is")?;
    let logs = own.with_file_name("zts");
    fs::create_dir_all(&logs)?;
    println!("== zts: logs are kept in {}", logs.display());
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .args(["--net", "--pid", "--fork", "--kill-child"])
        .args(["bash", "-c", FIRST, "zts"])
        .arg(work)
        .arg(suite.parent().context("the suite's directory")?)
        .arg(USER)
        .arg(own)
        .arg(INSIDE)
        .args(words)
        .env(WORK, work)
        .env(LOGS, &logs)
        .env(BINARY, &copy)
        .env(DEVICES, names.join(" "))
        .stdin(Stdio::null())
        .status()
        .context("unshare")?;
    if !status.success() {
        bail!("OpenZFS's test suite failed ({status})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_may_not_enter_is_named() {
        let top = tempfile::tempdir().unwrap();
        let (open, closed) = (top.path().join("open"), top.path().join("closed"));
        for (path, mode) in [(&open, 0o755), (&closed, 0o700)] {
            fs::create_dir(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let below = closed.join("below");
        fs::create_dir(&below).unwrap();
        assert_eq!(closed_to_users(&below).unwrap(), Some(closed));
        // What is above the test's own directory may be closed as well.
        let found = closed_to_users(&open).unwrap();
        assert!(found.is_none_or(|found| !found.starts_with(top.path())));
        assert!(closed_to_users(&top.path().join("none")).is_err());
    }
}
