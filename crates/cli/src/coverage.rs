//! Goal: no option of OpenZFS's commands is missing here without a reason. Method: tables of the
//! options that `zpool` and `zfs` of OpenZFS 2.4.4 take, beside what the parsers here take, and of
//! why some are not taken, or do nothing. `docs/options.md` is written from these tables:
//! `MILLPOND_OPTIONS=write cargo test -p cli coverage` does it.
//!
//! Source: `command_table` and the calls of getopt(3), cmd/zpool/zpool_main.c and
//! cmd/zfs/zfs_main.c; zpool(8), zfs(8). Where commands share a call, those options of it are left
//! out that do nothing for one of them; `-h` is help.

use std::path::Path;

use clap::CommandFactory;

use crate::documents::has;
use crate::{zfs, zpool};

/// What OpenZFS 2.4 takes, command by command.
const OPENZFS: [(&str, &str); 76] = [
    (
        "zpool add",
        "-f -g -L -n -o -P --allow-in-use --allow-replication-mismatch --allow-ashift-mismatch",
    ),
    ("zpool attach", "-f -o -s -w"),
    ("zpool checkpoint", "-d --discard -w --wait"),
    ("zpool clear", "-F -n -X --power"),
    ("zpool create", "-f -n -d -R -m -o -O -t"),
    ("zpool ddtprune", "-d -p"),
    ("zpool destroy", "-f"),
    ("zpool detach", ""),
    ("zpool events", "-v -H -f -c"),
    ("zpool export", "-a -f -F"),
    (
        "zpool get",
        "-j --json --json-int --json-pool-key-guid -H -p -o",
    ),
    ("zpool history", "-l -i"),
    (
        "zpool import",
        "-a -C -c -d -D -E -f -F -l -m -n -N -o -R -s -t -T -V -X --rewind-to-checkpoint",
    ),
    (
        "zpool initialize",
        "-a --all -c --cancel -s --suspend -u --uninit -w --wait",
    ),
    ("zpool iostat", "-c -g -L -P -T -v -y -l -p -q -r -w -n -H"),
    ("zpool labelclear", "-f"),
    (
        "zpool list",
        "-g -j --json --json-int --json-pool-key-guid -H -L -o -p -P -T -v",
    ),
    ("zpool offline", "-f -t --power"),
    ("zpool online", "-e --power"),
    ("zpool prefetch", "-t"),
    ("zpool reguid", "-g"),
    ("zpool remove", "-n -p -s -w"),
    ("zpool reopen", "-n"),
    ("zpool replace", "-f -o -s -w"),
    ("zpool resilver", ""),
    ("zpool scrub", "-a -s -p -w -e -C -E -S"),
    ("zpool set", ""),
    ("zpool split", "-g -L -R -l -n -o -P"),
    (
        "zpool status",
        "-c -j --json --json-int --json-flat-vdevs --json-pool-key-guid -d -D -e -g -i -L -p -P \
         -s -t -T -v -x --power",
    ),
    ("zpool sync", "-f"),
    (
        "zpool trim",
        "-a --all -c --cancel -d --secure -r --rate -s --suspend -w --wait",
    ),
    ("zpool upgrade", "-a -v -V"),
    ("zpool version", "-j --json"),
    ("zpool wait", "-H -p -T -t"),
    ("zfs allow", "-l -d -u -g -e -c -s"),
    ("zfs bookmark", ""),
    ("zfs change-key", "-l -i -o"),
    ("zfs clone", "-o -p -u"),
    ("zfs create", "-P -V -b -n -s -o -p -u -v"),
    ("zfs destroy", "-v -p -n -d -f -r -R"),
    ("zfs diff", "-F -H -t -h"),
    ("zfs get", "-d -o -s -j --json --json-int -r -t -H -p"),
    ("zfs groupspace", "-n -H -p -o -s -S -t -i"),
    ("zfs hold", "-r -t"),
    ("zfs holds", "-r -H -p"),
    ("zfs inherit", "-r -S"),
    ("zfs jail", ""),
    ("zfs list", "-j --json --json-int -H -S -d -o -p -r -s -t"),
    ("zfs load-key", "-a -n -r -L"),
    ("zfs mount", "-a -j --json -R -l -v -o -O -f"),
    ("zfs program", "-n -t -m -j --json"),
    ("zfs project", "-0 -C -c -d -k -p -r -s"),
    ("zfs projectspace", "-H -p -o -s -S"),
    ("zfs promote", ""),
    ("zfs receive", "-o -x -d -e -h -M -n -u -v -F -s -A -c"),
    ("zfs redact", ""),
    ("zfs release", "-r"),
    ("zfs rename", "-p -r -u -f"),
    ("zfs rewrite", "-P -l -o -r -v -x"),
    ("zfs rollback", "-r -R -f"),
    (
        "zfs send",
        "-i -I -R --replicate -s --skip-missing -D --dedup -p --props -V --proctitle -v --verbose \
         -n --dryrun -P --parsable -L --large-block -e --embed -h --holds -t --resume \
         -c --compressed -w --raw -b --backup -d --redact -S --saved -X --exclude",
    ),
    ("zfs set", "-u"),
    ("zfs share", "-a -l"),
    ("zfs snapshot", "-r -o"),
    ("zfs unallow", "-l -d -u -g -e -c -s -r"),
    ("zfs unjail", ""),
    ("zfs unload-key", "-a -r"),
    ("zfs unmount", "-a -f -u"),
    ("zfs unshare", "-a"),
    ("zfs unzone", ""),
    ("zfs upgrade", "-r -v -V -a"),
    ("zfs userspace", "-n -H -p -o -s -S -t -i"),
    ("zfs version", "-j --json"),
    ("zfs wait", "-t"),
    ("zfs zone", ""),
    ("zpool help", ""),
];

/// What is not taken, and why. Where no option is named, it is the whole command.
const NOT_HERE: [(&str, &str, &str); 9] = [
    (
        "zpool export",
        "-F",
        "in no manual: it is for tests of OpenZFS, and leaves a pool as a crash does",
    ),
    ("zpool import", "-C -E", "in no manual, and they do nothing"),
    (
        "zpool import",
        "-V",
        "in no manual: it believes a cache file instead of looking at devices, which is always \
         done here",
    ),
    ("zfs hold", "-t", "in no manual, and it does nothing"),
    (
        "zfs send",
        "-S --saved",
        "what a broken receive has left is not sent on; go on with the receive, or send again",
    ),
    ("zfs jail", "", "of FreeBSD alone"),
    ("zfs unjail", "", "of FreeBSD alone"),
    (
        "zfs zone",
        "",
        "nobody in a namespace speaks to a kernel here, but to the server: bind a mount into the \
         container, and let its user do more by permissions",
    ),
    ("zfs unzone", "", "as zone"),
];

/// What is taken and does less than there, and why.
const LESS: [(&str, &str, &str); 9] = [
    (
        "zpool ddtprune",
        "-d -p",
        "refused: nothing is removed from dedup tables yet",
    ),
    (
        "zpool clear",
        "-F -n -X",
        "a pool that is imported can be read: there is nothing to go back from",
    ),
    ("zpool import", "-s", "devices are always looked at"),
    (
        "zpool status",
        "-d",
        "no write goes past the cache, so that none can fail such a check",
    ),
    (
        "zpool trim",
        "-d --secure",
        "refused, as of devices that cannot erase for good",
    ),
    ("zfs mount", "-v", "mounting is quick, and not told of"),
    ("zfs send", "-D --dedup", "without effect in OpenZFS, too"),
    ("zfs userspace", "-i", "there are no SMB identities"),
    ("zfs groupspace", "-i", "there are no SMB identities"),
];

/// Options that a table has for a command, with the reasons.
fn of<'a>(
    table: &'a [(&'a str, &'a str, &'a str)],
    command: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let rows = table.iter().filter(move |(name, ..)| *name == command);
    rows.map(|(_, options, why)| (*options, *why))
}

#[test]
fn every_option_of_openzfs_is_taken_or_has_a_reason() {
    let programs = [zpool::Zpool::command(), zfs::Zfs::command()];
    let mut wrong = Vec::new();
    for (name, options) in OPENZFS {
        let (program, word) = name.split_once(' ').expect("two words");
        let program = programs.iter().find(|one| one.get_name() == program);
        let command = program.expect("a program").find_subcommand(word);
        let is_refused = of(&NOT_HERE, name).any(|(options, _)| options.is_empty());
        let Some(command) = command else {
            if word != "help" && !is_refused {
                wrong.push(format!("{name}: it is not there, and nobody says why"));
            }
            continue;
        };
        if is_refused {
            wrong.push(format!(
                "{name}: it is there, and the reason is out of date"
            ));
        }
        for option in options.split_whitespace() {
            let has_reason = of(&NOT_HERE, name)
                .any(|(options, _)| options.split_whitespace().any(|one| one == option));
            match (has(command, option), has_reason) {
                (false, false) => {
                    wrong.push(format!("{name} {option}: not taken, and nobody says why"));
                }
                (true, true) => {
                    wrong.push(format!("{name} {option}: taken, the reason is out of date"));
                }
                _ => {}
            }
        }
    }
    // Reasons are about options that there are.
    for (name, options, _) in NOT_HERE.iter().chain(&LESS) {
        let known = OPENZFS.into_iter().find(|(known, _)| known == name);
        let known = known.map_or("", |(_, options)| options);
        for option in options.split_whitespace() {
            if !known.split_whitespace().any(|one| one == option) {
                wrong.push(format!("{name} {option}: OpenZFS has no such option"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The table as it stands in the document.
fn table() -> String {
    let mut rows = OPENZFS.to_vec();
    rows.sort_unstable_by_key(|(name, _)| (name.starts_with("zfs"), *name));
    let mut out = "| command | options of OpenZFS 2.4 | what is different here |\n".to_owned();
    out.push_str("|---|---|---|\n");
    for (name, options) in rows {
        let mut notes = Vec::new();
        for (options, why) in of(&NOT_HERE, name) {
            notes.push(match options.is_empty() {
                true => format!("not here: {why}"),
                false => format!("no {options}: {why}"),
            });
        }
        for (options, why) in of(&LESS, name) {
            notes.push(format!("{options}: {why}"));
        }
        out.push_str(&format!("| {name} | {options} | {} |\n", notes.join("; ")));
    }
    out
}

#[test]
fn the_document_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let text = std::fs::read_to_string(&path).expect("the document");
    let at = text.find("| command |").expect("the table");
    let before = &text[..at];
    let rest = &text[at..];
    let after = rest.find("\n\n").map_or("", |end| &rest[end + 1..]);
    let wanted = format!("{before}{}{after}", table());
    if std::env::var_os("MILLPOND_OPTIONS").is_some_and(|word| word == "write") {
        std::fs::write(path, wanted).expect("the document");
        return;
    }
    assert!(
        text == wanted,
        "docs/options.md is out of date; MILLPOND_OPTIONS=write writes it. It is to be:\n{wanted}"
    );
}
