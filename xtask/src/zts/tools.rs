//! The programs that tests find: their `PATH` is one directory, as `zfs-tests.sh` has it, with the
//! suite's own programs, links to the system's, our `zpool`, `zfs` and `zinject`, the real `zdb`,
//! and stand-ins for what only a kernel module has.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::sandbox::{Sandbox, Spares, USER};

/// Libraries of the suite, and what is appended to each.
const OVERRIDES: [(&str, &str); 2] = [
    ("libtest.shlib", include_str!("../../zts/overrides.shlib")),
    (
        "kstat.shlib",
        include_str!("../../zts/kstat-overrides.shlib"),
    ),
];

/// Programs that need the module, or would change the machine.
const ABSENT: [&str; 6] = [
    "zed",
    "ztest",
    "swapon",
    "swapoff",
    "modprobe",
    "cryptsetup",
];

/// What setups do for a few tests of their group and cannot be done here: else the whole group is
/// lost. A file, its line, and what stands there instead.
const EDITS: [(&str, &str, &str); 1] = [(
    // Pools of versions before 11 are read only.
    "cli_user/misc/setup.ksh",
    "log_must zpool import -d $TEST_BASE_DIR/ v1-pool",
    "log_must zpool import -o readonly=on -d $TEST_BASE_DIR/ v1-pool",
)];

/// Before it writes to a pool, zhack asks the module by `/dev/zfs` whether it has that pool. A file
/// that answers no request says no. It is there for zhack alone: whether there is such a file tells
/// tests what they run on.
const ZHACK: &str = r#"PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
exec unshare --mount --propagation private bash -c '
over=$1 program=$2; shift 2
mount -t overlay overlay -o "lowerdir=/dev,upperdir=$over.upper,workdir=$over.work" /dev || exit
: >/dev/zfs
exec "$program" "$@"' zhack "$OVER" "$PROGRAM" "$@"
"#;

/// Which directories the server serves by NFS, as it tells clients itself, with the options that
/// their filesystems have. Nothing else is served.
const EXPORTFS: &str = r#"case $1 in
-r) exit 0 ;;
-s|-v) ;;
*) echo "harness: exportfs $* is not here" >&2; exit 1 ;;
esac
PATH=$PATH:/usr/sbin:/sbin
showmount -e --no-headers 127.0.0.1 2>/dev/null | while read -r line; do
  at=${line% *}
  options=$(zfs list -H -o mountpoint,sharenfs 2>/dev/null |
    awk -F'\t' -v at="$at" '$1 == at && $2 != "off" { print $2; exit }')
  echo "$at  ${line##* }(${options:-on})"
done
exit 0
"#;

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
for word in "$@"; do case $word in -[a-zA-Z]*e*|-e|-l*|-U|-E) knows=1 ;; esac; done
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
# It looks there for short names of devices as well.
unset ZPOOL_IMPORT_PATH
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
    sandbox.set_options(Spares::Manual)?;
    let include = sandbox.suite.join("include");
    for (library, text) in OVERRIDES {
        let mut file = File::options()
            .append(true)
            .open(include.join(library))
            .with_context(|| format!("the suite has no {library}"))?;
        write!(file, "\n{text}")?;
    }
    for (file, line, instead) in EDITS {
        edit(
            &sandbox.suite.join("tests/functional").join(file),
            line,
            instead,
        )?;
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
    // Where it was built, ordinary users may not enter.
    let zdb = sandbox.work.join("zdb");
    fs::copy(real_zdb(), &zdb).context("the wrapper of zdb")?;
    write_program(
        &path.join("zdb"),
        &ZDB.replace("$REAL_ZDB", &zdb.to_string_lossy()),
    )?;
    // OpenZFS's own asks its kernel module before it reads a token.
    if let Some(theirs) = find("zstream") {
        let (ours, theirs) = (path.join("millpond"), theirs.to_string_lossy());
        let ours = ours.to_string_lossy();
        let body =
            format!("[ \"$1\" = token ] && exec {ours} stream \"$@\"\nexec {theirs} \"$@\"\n");
        write_program(&path.join("zstream"), &body)?;
    }
    write_program(&path.join("exportfs"), EXPORTFS)?;
    if let Some(zhack) = find("zhack") {
        let body = ZHACK
            .replace("$OVER", &sandbox.work.join("dev").to_string_lossy())
            .replace("$PROGRAM", &zhack.to_string_lossy());
        write_program(&path.join("zhack"), &body)?;
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

/// Replaces a line of a script.
fn edit(script: &Path, line: &str, instead: &str) -> anyhow::Result<()> {
    let text = fs::read_to_string(script)
        .with_context(|| format!("the suite has no {}", script.display()))?;
    anyhow::ensure!(
        text.contains(line),
        "{} has no line '{line}' any more",
        script.display()
    );
    Ok(fs::write(script, text.replacen(line, instead, 1))?)
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
