//! How the commands of `zfs` and `zpool` are used, in forms that programs look for to learn what a
//! release can (`get_usage`, cmd/zfs/zfs_main.c and cmd/zpool/zpool_main.c), and what is said where
//! words are missing.

/// How one command is used.
pub struct Form {
    /// The command.
    pub name: &'static str,
    /// What is said of missing words, by how many there are.
    pub missing: &'static [&'static str],
    /// The words behind the options; those that begin with an option take no others.
    pub words: &'static [&'static str],
}

const fn form(
    name: &'static str,
    missing: &'static [&'static str],
    words: &'static [&'static str],
) -> Form {
    Form {
        name,
        missing,
        words,
    }
}

/// The commands of `zfs`.
const ZFS: [Form; 38] = [
    form("version", &[], &[""]),
    form(
        "create",
        &["missing filesystem argument"],
        &["<filesystem>", "-V <size> <volume>"],
    ),
    form(
        "destroy",
        &["missing dataset argument"],
        &[
            "<filesystem|volume>",
            "<filesystem|volume>@<snap>[%<snap>][,...]",
            "<filesystem|volume>#<bookmark>",
        ],
    ),
    form(
        "snapshot",
        &["missing snapshot argument"],
        &["<filesystem|volume>@<snap> ..."],
    ),
    form("rollback", &["missing dataset argument"], &["<snapshot>"]),
    form(
        "clone",
        &[
            "missing source dataset argument",
            "missing target dataset argument",
        ],
        &["<snapshot> <filesystem|volume>"],
    ),
    form(
        "promote",
        &["missing clone filesystem argument"],
        &["<clone-filesystem>"],
    ),
    form(
        "rename",
        &[
            "missing source dataset argument",
            "missing target dataset argument",
        ],
        &[
            "<filesystem|volume|snapshot> <filesystem|volume|snapshot>",
            "-r <snapshot> <snapshot>",
        ],
    ),
    form(
        "bookmark",
        &["missing source argument", "missing bookmark argument"],
        &["<snapshot|bookmark> <newbookmark>"],
    ),
    form(
        "redact",
        &["too few arguments"; 3],
        &["<snapshot> <bookmark> <redaction_snapshot> ..."],
    ),
    form("list", &[], &["[filesystem|volume|snapshot] ..."]),
    form(
        "get",
        &["missing property argument"],
        &["<\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ..."],
    ),
    form(
        "set",
        &["missing arguments", "missing dataset name(s)"],
        &["<property=value> ... <filesystem|volume|snapshot> ..."],
    ),
    form(
        "inherit",
        &["missing property argument", "missing dataset argument"],
        &["<property> <filesystem|volume|snapshot> ..."],
    ),
    form("upgrade", &[], &["-v", "<-a | filesystem ...>"]),
    form(
        "userspace",
        &["missing dataset name"],
        &["<filesystem|snapshot|path>"],
    ),
    form(
        "groupspace",
        &["missing dataset name"],
        &["<filesystem|snapshot|path>"],
    ),
    form(
        "projectspace",
        &["missing dataset name"],
        &["<filesystem|snapshot|path>"],
    ),
    form(
        "project",
        &["missing file or directory target(s)"],
        &["<directory|file ...>"],
    ),
    form("mount", &[], &["", "<-a|-R filesystem|filesystem>"]),
    form(
        "unmount",
        &["missing filesystem argument"],
        &["<-a | filesystem|mountpoint>"],
    ),
    form(
        "share",
        &["missing filesystem argument (specify -a for all)"],
        &["<-a [nfs|smb] | filesystem>"],
    ),
    form(
        "unshare",
        &["missing filesystem argument"],
        &["<-a [nfs|smb] | filesystem|mountpoint>"],
    ),
    form(
        "send",
        &["missing snapshot argument"],
        &[
            "<snapshot>",
            "-i <snapshot|bookmark> <filesystem|volume|snapshot>",
            "--redact <bookmark> <snapshot>",
            "-t <receive_resume_token>",
        ],
    ),
    form(
        "receive",
        &["missing snapshot argument"],
        &[
            "<filesystem|volume|snapshot>",
            "[-d | -e] <filesystem>",
            "-A <filesystem|volume>",
        ],
    ),
    form(
        "allow",
        &["wrong number of parameters"],
        &[
            "<filesystem|volume>",
            "<\"everyone\"|user|group>[,...] <perm|@setname>[,...] <filesystem|volume>",
            "-e <perm|@setname>[,...] <filesystem|volume>",
            "-c <perm|@setname>[,...] <filesystem|volume>",
            "-s @setname <perm|@setname>[,...] <filesystem|volume>",
        ],
    ),
    form(
        "unallow",
        &["wrong number of parameters"],
        &[
            "<\"everyone\"|user|group>[,...] [<perm|@setname>[,...]] <filesystem|volume>",
            "-e [<perm|@setname>[,...]] <filesystem|volume>",
            "-c [<perm|@setname>[,...]] <filesystem|volume>",
            "-s @setname [<perm|@setname>[,...]] <filesystem|volume>",
        ],
    ),
    form("hold", &[], &["<tag> <snapshot> ..."]),
    form("holds", &[], &["<snapshot> ..."]),
    form("release", &[], &["<tag> <snapshot> ..."]),
    form(
        "diff",
        &["must provide at least one snapshot name"],
        &["<snapshot> [snapshot|filesystem]"],
    ),
    form(
        "program",
        &["invalid number of arguments"; 2],
        &["<pool> <program file> [lua args...]"],
    ),
    form(
        "load-key",
        &["Missing dataset argument or -a option"],
        &["[-L <keylocation>] <-a | filesystem|volume>"],
    ),
    form(
        "unload-key",
        &["Missing dataset argument or -a option"],
        &["<-a | filesystem|volume>"],
    ),
    form(
        "change-key",
        &["Missing dataset argument"],
        &[
            "[-o keyformat=<value>] [-o keylocation=<value>] [-o pbkdf2iters=<value>] \
             <filesystem|volume>",
            "-i <filesystem|volume>",
        ],
    ),
    form(
        "rewrite",
        &["missing file or directory target(s)"],
        &["<directory|file ...>"],
    ),
    form(
        "wait",
        &["missing 'filesystem' argument"],
        &["<filesystem>"],
    ),
    form("help", &[], &["[command]"]),
];

/// The commands of `zpool`.
const ZPOOL: [Form; 35] = [
    form("version", &[], &[""]),
    form(
        "create",
        &["missing pool name argument", "missing vdev specification"],
        &["<pool> <vdev> ..."],
    ),
    form("destroy", &["missing pool argument"], &["<pool>"]),
    form(
        "add",
        &["missing pool name argument", "missing vdev specification"],
        &["<pool> <vdev> ..."],
    ),
    form(
        "remove",
        &["missing pool name argument", "missing device"],
        &["<pool> <device> ..."],
    ),
    form("labelclear", &["missing vdev name"], &["<vdev>"]),
    form("checkpoint", &["missing pool argument"], &["<pool>"]),
    form("prefetch", &["missing pool name argument"], &["<pool>"]),
    form("list", &[], &["[pool] ... [interval [count]]"]),
    form(
        "iostat",
        &[],
        &["[[pool ...]|[pool vdev ...]|[vdev ...]] [[-n] interval [count]]"],
    ),
    form("status", &[], &["[pool] ... [interval [count]]"]),
    form(
        "online",
        &["missing pool name", "missing device name"],
        &["<pool> <device> ..."],
    ),
    form(
        "offline",
        &["missing pool name", "missing device name"],
        &["<pool> <device> ..."],
    ),
    form("clear", &["missing pool name"], &["<pool> [device]"]),
    form(
        "attach",
        &[
            "missing pool name argument",
            "missing <device> specification",
            "missing <new_device> specification",
        ],
        &["<pool> <vdev> <new-device>"],
    ),
    form(
        "detach",
        &[
            "missing pool name argument",
            "missing <device> specification",
        ],
        &["<pool> <device>"],
    ),
    form(
        "replace",
        &[
            "missing pool name argument",
            "missing <device> specification",
        ],
        &["<pool> <device> [new-device]"],
    ),
    form(
        "split",
        &["Missing pool name", "Missing new pool name"],
        &["<pool> <newpool> [<device> ...]"],
    ),
    form(
        "initialize",
        &["missing pool name argument"],
        &["<-a | <pool> [<device> ...]>"],
    ),
    form("resilver", &["missing pool name argument"], &["<pool> ..."]),
    form(
        "scrub",
        &["missing pool name argument"],
        &["<-a | <pool> [<pool> ...]>"],
    ),
    form(
        "trim",
        &["missing pool name argument"],
        &["<-a | <pool> [<device> ...]>"],
    ),
    form("import", &[], &["", "-a", "<pool | id> [newpool]"]),
    form("export", &["missing pool argument"], &["<pool> ...", "-a"]),
    form("upgrade", &[], &["", "-v", "<-a | pool ...>"]),
    form("reguid", &["missing pool name"], &["<pool>"]),
    form("reopen", &[], &["[pool] ..."]),
    form("events", &[], &["[pool]", "-c"]),
    form("history", &[], &["[<pool>] ..."]),
    form(
        "get",
        &["missing property argument"],
        &["<\"all\" | property[,...]> <pool> ..."],
    ),
    form(
        "set",
        &["missing property=value argument", "missing pool name"],
        &[
            "<property=value> <pool>",
            "<vdev_property=value> <pool> <vdev>",
        ],
    ),
    form("sync", &[], &["[pool] ..."]),
    form("wait", &["missing 'pool' argument"], &["<pool> [interval]"]),
    form(
        "ddtprune",
        &[
            "missing amount option (-d|-p <value>)",
            "missing pool argument",
        ],
        &["<pool>"],
    ),
    form("help", &[], &["[command]"]),
];

/// What is said of an option whose argument is missing.
pub enum Lacks {
    /// That its argument is missing.
    Argument,
    /// That there is no such option: where the options' text has no colon first (getopt(3)).
    Option,
    /// That a size is missing, whichever option it is.
    Size,
}

/// The commands of `zfs` that take an option without its argument for none.
const OPTION_ZFS: [&str; 13] = [
    "change-key",
    "clone",
    "groupspace",
    "list",
    "load-key",
    "program",
    "project",
    "projectspace",
    "rewrite",
    "snapshot",
    "upgrade",
    "userspace",
    "wait",
];
/// The same of `zpool`.
const OPTION_ZPOOL: [&str; 11] = [
    "add", "attach", "ddtprune", "iostat", "prefetch", "reguid", "replace", "scrub", "status",
    "trim", "wait",
];

/// What a command says of an option whose argument is missing.
pub fn lacks(program: &str, command: &str) -> Lacks {
    match program {
        "zfs" if command == "create" => Lacks::Size,
        "zfs" if OPTION_ZFS.contains(&command) => Lacks::Option,
        "zpool" if OPTION_ZPOOL.contains(&command) => Lacks::Option,
        _ => Lacks::Argument,
    }
}

/// How the commands of a program are used; nothing of other programs.
pub fn of(program: &str) -> &'static [Form] {
    match program {
        "zfs" => &ZFS,
        "zpool" => &ZPOOL,
        _ => &[],
    }
}

/// What is said of two options, or an option and a word, that do not go together: program, command,
/// one, the other (whatever it is where there is none), and the words.
const CONFLICTS: [[&str; 5]; 28] = [
    [
        "zpool",
        "ddtprune",
        "-d",
        "-p",
        "-p cannot be combined with -d option",
    ],
    ["zfs", "mount", "-j", "", "too many arguments"],
    ["zfs", "mount", "-a", "", "too many arguments"],
    ["zfs", "unmount", "-a", "", "too many arguments"],
    [
        "zfs",
        "rename",
        "-p",
        "-r",
        "-p and -r options are mutually exclusive",
    ],
    [
        "zfs",
        "rename",
        "-u",
        "-p",
        "-u and -p options are mutually exclusive",
    ],
    [
        "zfs",
        "receive",
        "-d",
        "-e",
        "invalid option combination: -d and -e are mutually exclusive",
    ],
    ["zfs", "receive", "-A", "", "invalid option"],
    [
        "zfs",
        "load-key",
        "-a",
        "",
        "Cannot specify dataset with -a option",
    ],
    [
        "zfs",
        "unload-key",
        "-a",
        "",
        "Cannot specify dataset with -a option",
    ],
    [
        "zfs",
        "create",
        "-u",
        "-V",
        "'-u' can only be used when creating a filesystem",
    ],
    ["zpool", "export", "-a", "", "too many arguments"],
    ["zpool", "import", "-c", "-d", "-c is incompatible with -d"],
    ["zpool", "import", "-c", "-s", "-c is incompatible with -s"],
    ["zpool", "import", "-l", "-N", "-l is incompatible with -N"],
    ["zpool", "import", "-a", "", "too many arguments"],
    [
        "zpool",
        "remove",
        "-s",
        "-w",
        "invalid option combination: -w cannot be used with -s",
    ],
    [
        "zpool",
        "scrub",
        "-s",
        "-p",
        "invalid option combination: -s and -p are mutually exclusive",
    ],
    [
        "zpool",
        "scrub",
        "-e",
        "-p",
        "invalid option combination: -e and -p are mutually exclusive",
    ],
    [
        "zpool",
        "scrub",
        "-e",
        "-s",
        "invalid option combination: -e and -s are mutually exclusive",
    ],
    [
        "zpool",
        "scrub",
        "-e",
        "-C",
        "invalid option combination: -e and -C are mutually exclusive",
    ],
    [
        "zpool",
        "scrub",
        "-p",
        "-C",
        "invalid option combination: -p and -C are mutually exclusive",
    ],
    [
        "zpool",
        "scrub",
        "-s",
        "-C",
        "invalid option combination: -s and -C are mutually exclusive",
    ],
    [
        "zpool",
        "scrub",
        "-w",
        "",
        "invalid option combination: -w cannot be used with -p or -s",
    ],
    [
        "zpool",
        "upgrade",
        "-v",
        "",
        "-v option is incompatible with other arguments",
    ],
    [
        "zpool",
        "upgrade",
        "-a",
        "",
        "-a option should not be used along with a pool name",
    ],
    [
        "zpool",
        "initialize",
        "-a",
        "",
        "-a cannot be combined with individual pools or vdevs",
    ],
    [
        "zpool",
        "trim",
        "-a",
        "",
        "-a cannot be combined with individual zpools or vdevs",
    ],
];

/// The same of options that are missing, where what is given needs them.
const NEEDED: [[&str; 5]; 5] = [
    [
        "zpool",
        "checkpoint",
        "-d",
        "",
        "--wait only valid when --discard also specified",
    ],
    [
        "zpool",
        "checkpoint",
        "--discard",
        "",
        "--wait only valid when --discard also specified",
    ],
    [
        "zfs",
        "list",
        "-j",
        "",
        "'--json-int' only works with '-j' option",
    ],
    [
        "zfs",
        "get",
        "-j",
        "",
        "'--json-int' only works with '-j' option",
    ],
    [
        "zfs",
        "create",
        "-V",
        "",
        "'-s' and '-b' can only be used when creating a volume",
    ],
];

/// What is said where `given` do not go together, or are missing, if OpenZFS has words for that.
pub fn conflict(
    program: &str,
    command: &str,
    given: &[&str],
    are_missing: bool,
) -> Option<&'static str> {
    let known: &[[&str; 5]] = match are_missing {
        true => &NEEDED,
        false => &CONFLICTS,
    };
    let found = known.iter().find(|[of, name, one, other, _]| {
        *of == program
            && *name == command
            && given.contains(one)
            && (other.is_empty() || given.contains(other))
    });
    found.map(|[.., words]| *words)
}
