//! The programs that tests find: their `PATH` is one directory, as `zfs-tests.sh` has it, with the
//! suite's own programs, links to the system's, our `zpool`, `zfs` and `zinject`, the real `zdb`,
//! and stand-ins for what only a kernel module has.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::sandbox::{Sandbox, USER};

/// Libraries of the suite, and what is appended to each.
const OVERRIDES: [(&str, &str); 2] = [
    ("libtest.shlib", include_str!("../../zts/overrides.shlib")),
    (
        "kstat.shlib",
        include_str!("../../zts/kstat-overrides.shlib"),
    ),
];

/// Programs that need the module, or would change the machine.
const ABSENT: [&str; 7] = [
    "zed",
    "ztest",
    "swapon",
    "swapoff",
    "modprobe",
    "exportfs",
    "cryptsetup",
];

/// Servers of FUSE are not told of sync(2), so pools are synced as well. The machine's other
/// filesystems are not written: tests of others run there.
const SYNC: &str = r#"[ $# -gt 0 ] && { exec /bin/sync "$@"; }
awk '$3 ~ /^fuse/ && $3 != "fusectl" || $1 ~ /^.dev.loop/ { print $2 }' /proc/self/mounts |
  while read -r at; do /bin/sync -f "$at"; done
zpool sync >/dev/null 2>&1
exit 0
"#;

/// zdb does not know our pools from a cache file: it is given the devices of a pool that is
/// imported.
const ZDB: &str = r#"devices=() knows=
for word in "$@"; do case $word in -[a-zA-Z]*e*|-e|-l*|-U|-[RAE]) knows=1 ;; esac; done
if [ -z "$knows" ]; then
  pools=" $(zpool list -H -o name 2>/dev/null | tr '\n' ' ') "
  for word in "$@"; do
    pool=${word%%[/@#]*}
    if [[ $word != -* && $word != /* && $pools == *" $pool "* ]]; then
      devices=(-e)
      for device in $(zpool list -vHPL "$pool" 2>/dev/null | awk '$1 ~ "^/" { print $1 }'); do
        devices+=(-p "$device")
      done
      zpool sync "$pool" >/dev/null 2>&1
      break
    fi
  done
fi
PATH=/usr/bin:/bin exec "$REAL_ZDB" "${devices[@]}" "$@"
"#;

/// A program of the system, wherever it is.
pub fn find(name: &str) -> Option<PathBuf> {
    const DIRECTORIES: [&str; 7] = [
        "/usr/local/bin",
        "/usr/local/sbin",
        "/usr/bin",
        "/usr/sbin",
        "/bin",
        "/sbin",
        "/usr/lib/zfs-linux",
    ];
    let mut candidates = DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(name));
    candidates.find(|path| path.is_file())
}

/// Fills the directory of programs, and changes the libraries of the suite.
pub fn install(sandbox: &Sandbox) -> anyhow::Result<()> {
    sandbox.set_options()?;
    let include = sandbox.suite.join("include");
    for (library, text) in OVERRIDES {
        let mut file = File::options()
            .append(true)
            .open(include.join(library))
            .with_context(|| format!("the suite has no {library}"))?;
        write!(file, "\n{text}")?;
    }
    let path = sandbox.path();
    for name in system_programs(&include)? {
        if let Some(program) = find(&name) {
            link(&program, &path.join(name))?;
        }
    }
    for entry in fs::read_dir(sandbox.suite.join("bin"))? {
        let program = entry?.path();
        link(&program, &path.join(program.file_name().context("a name")?))?;
    }
    let others = [
        ("fsck", "fsck.ext4"),
        ("newfs", "mkfs.ext4"),
        ("compress", "gzip"),
        ("uncompress", "gunzip"),
    ];
    for (name, program) in others {
        if let Some(program) = find(program) {
            link(&program, &path.join(name))?;
        }
    }
    for name in ["zpool", "zfs", "millpond", "zinject"] {
        link(&sandbox.binary, &path.join(name))?;
        // `add_user` puts its users into the group that owns `zfs`; this must not be root's.
        let owner = Command::new("chown")
            .args(["-h", &format!("{USER}:{USER}")])
            .arg(path.join(name))
            .status();
        anyhow::ensure!(owner?.success(), "the owner of {name} cannot be set");
    }
    write_program(&path.join("sync"), SYNC)?;
    write_program(
        &path.join("zdb"),
        &ZDB.replace("$REAL_ZDB", &real_zdb().to_string_lossy()),
    )?;
    // OpenZFS's own asks its kernel module before it reads a token.
    if let Some(theirs) = find("zstream") {
        let (ours, theirs) = (path.join("millpond"), theirs.to_string_lossy());
        let ours = ours.to_string_lossy();
        let body =
            format!("[ \"$1\" = token ] && exec {ours} stream \"$@\"\nexec {theirs} \"$@\"\n");
        write_program(&path.join("zstream"), &body)?;
    }
    write_program(&path.join("udevadm"), "exit 0\n")?;
    for name in ABSENT {
        write_program(&path.join(name), &absent(name))?;
    }
    Ok(())
}

/// The programs that the suite says it needs of the system.
fn system_programs(include: &Path) -> anyhow::Result<Vec<String>> {
    let output = Command::new("sh")
        .args([
            "-c",
            ". ./commands.cfg; echo $SYSTEM_FILES_COMMON $SYSTEM_FILES_LINUX $ZFS_FILES",
        ])
        .current_dir(include)
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "commands.cfg of the suite cannot be read"
    );
    let words = String::from_utf8(output.stdout)?;
    Ok(words.split_whitespace().map(str::to_owned).collect())
}

/// The wrapper that lets zdb end sooner; it finds the real one itself.
fn real_zdb() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/zdb")
}

fn absent(name: &str) -> String {
    format!("echo \"harness: {name} is not here\" >&2\nexit 1\n")
}

/// Makes a link; what a name already means gives way.
fn link(target: &Path, at: &Path) -> anyhow::Result<()> {
    let _ = fs::remove_file(at);
    symlink(target, at).with_context(|| format!("{} cannot be made", at.display()))
}

fn write_program(at: &Path, body: &str) -> anyhow::Result<()> {
    let _ = fs::remove_file(at);
    fs::write(at, format!("#!/bin/bash\n{body}"))?;
    Ok(fs::set_permissions(at, fs::Permissions::from_mode(0o755))?)
}
