//! Goal: `zfs program` runs scripts as OpenZFS does: what they print, what they are told of the
//! pool, what is refused, and that their changes are there. Method: scripts on a pool with
//! snapshots, a clone, a bookmark and a hold, with what OpenZFS's own tests of channel programs
//! ask; zdb, and with `MILLPOND_LONG` the real OpenZFS.

mod suite;

use std::fs::write;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Peer, Server, can_mount, is_long, text_of, zdb_is_clean};

struct Bed {
    server: Server,
    disks: Vec<String>,
}

impl Bed {
    fn new() -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let mut server = Server::prepare();
        let log = ("MILLPOND_LOG", "info".to_owned());
        server.environment.push(log);
        server.launch(&["daemon"]);
        let disks = server.disks(1, 256 << 20);
        let device = match is_long() {
            true => server.attach(&disks).remove(0),
            false => disks[0].clone(),
        };
        let at = server.text("mnt");
        server.ok(&format!("zpool create -O mountpoint={at} tank {device}"));
        for words in [
            "zfs create tank/a",
            "zfs create -u tank/u",
            "zfs snapshot tank/a@1",
            "zfs snapshot tank/u@1",
            "zfs clone tank/a@1 tank/c",
            "zfs bookmark tank/a@1 tank/a#1",
            "zfs hold keep tank/u@1",
            "zfs set org.example:p=v tank/a",
            "zfs create -V 8M -s tank/v",
        ] {
            server.ok(words);
        }
        Some(Bed { server, disks })
    }

    fn run(&self, flags: &str, script: &str, arguments: &[&str]) -> Output {
        let file = self.server.path("script");
        write(&file, script).expect("a script");
        let file = file.to_string_lossy().into_owned();
        let mut words = vec!["zfs", "program"];
        words.extend(flags.split_whitespace());
        words.extend(["tank", &file]);
        words.extend(arguments);
        self.server.command(&words)
    }

    fn ok(&self, flags: &str, script: &str, arguments: &[&str]) -> String {
        let output = self.run(flags, script, arguments);
        let text = text_of(&output);
        assert!(
            output.status.success(),
            "{script}: {text}\n{}",
            self.server.log()
        );
        String::from_utf8(output.stdout).expect("text")
    }

    fn fails(&self, flags: &str, script: &str) -> String {
        let output = self.run(flags, script, &[]);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{script}: {}",
            text_of(&output)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Exports the pool: zdb finds nothing wrong with it, and in long runs the real OpenZFS, which
    /// tells of every dataset what is told here.
    fn leave(mut self) {
        let lists = [
            "zfs list -Hp -o name,referenced,usedbysnapshots,usedbydataset -t all -r tank",
            "zfs list -Hp -o name,used -t snapshot -r tank",
        ];
        self.server.ok("zfs unmount -a");
        self.server.ok("zpool sync tank");
        let told = lists.map(|list| self.server.ok(list)).concat();
        self.server.ok("zpool export tank");
        self.server.detach();
        zdb_is_clean(&self.server.path("disks"), "tank");
        if !is_long() {
            return;
        }
        let Some(peer) = Peer::find() else { return };
        let lists = lists.join("\n");
        let script = format!(
            "zpool import -d /dev/disk/peer -N tank 2>&1\nzpool scrub -w tank\n\
             zpool status tank | grep errors:\n{lists}\nzpool export tank; echo PEER-DONE\n"
        );
        let text = peer.run(&self.disks, &script).replace('\r', "");
        let is_done = text.contains("PEER-DONE");
        let is_clean = text.contains("errors: No known data errors");
        assert!(is_done && is_clean, "{text}");
        for line in told.lines() {
            let is_same = text.lines().any(|theirs| theirs == line);
            assert!(is_same, "{line}, and with OpenZFS:\n{text}");
        }
    }

    fn names(&self) -> String {
        self.server.ok("zfs list -H -o name -t all -r tank")
    }
}

/// What a script is told of the pool, without a change.
const LOOK: &str = r#"
    local argv = (...).argv
    assert(#argv == 2 and argv[1] == '-x' and argv[2] == 'y')
    assert(zfs.exists('tank/a') and zfs.exists('tank/a@1') and not zfs.exists('tank/none'))
    local function prop(name, property, value, source)
        local v, s = zfs.get_prop(name, property)
        assert(v == value, property .. ' ' .. tostring(v))
        assert(s == source, property .. ' from ' .. tostring(s))
    end
    prop('tank/a', 'type', 'filesystem', nil)
    prop('tank/v', 'type', 'volume', nil)
    prop('tank/a@1', 'type', 'snapshot', nil)
    prop('tank/a', 'org.example:p', 'v', 'tank/a')
    prop('tank/a@1', 'org.example:p', 'v', 'tank/a')
    prop('tank/a', 'atime', 'on', 'default')
    prop('tank/a', 'copies', '1', 'default')
    prop('tank/a', 'quota', 0, 'default')
    prop('tank/a', 'version', '5', nil)
    prop('tank/v', 'volsize', 8388608, 'tank/v')
    prop('tank/a', 'snapshot_limit', -1, 'default')
    prop('tank/a', 'snapshot_count', nil, nil)
    prop('tank/c', 'origin', 'tank/a@1', nil)
    prop('tank/a', 'origin', nil, nil)
    prop('tank/a', 'mounted', nil, nil)
    prop('tank/u@1', 'userrefs', 1, nil)
    assert(zfs.get_prop('tank/a', 'written@1') >= 0)
    assert(zfs.get_prop('tank/a@1', 'clones')[1] == 'tank/c')
    assert(zfs.get_prop('tank/a', 'guid') ~= 0 and zfs.get_prop('tank/a', 'used') > 0)
    local function all(list)
        local out = {}
        for name in list do table.insert(out, name) end
        table.sort(out)
        return table.concat(out, ' ')
    end
    assert(all(zfs.list.children('tank')) == 'tank/a tank/c tank/u tank/v')
    assert(all(zfs.list.snapshots('tank/a')) == 'tank/a@1')
    assert(all(zfs.list.clones('tank/a@1')) == 'tank/c')
    assert(all(zfs.list.bookmarks('tank/a')) == 'tank/a#1')
    assert(all(zfs.list.holds('tank/u@1')) == 'keep')
    for p, v, s in zfs.list.user_properties('tank/a') do
        assert(p == 'org.example:p' and v == 'v' and s == 'tank/a')
    end
    local names = {}
    for _, name in ipairs(zfs.list.system_properties('tank/v')) do names[name] = true end
    assert(names.volsize and names.type and not names.atime)
    assert(zfs.check.snapshot('tank/a@2') == 0)
    assert(zfs.check.snapshot('tank/a@1') == EEXIST)
    assert(zfs.check.snapshot('tank/a') == EINVAL)
    assert(zfs.check.snapshot('rpool/a@1') == EXDEV)
    assert(zfs.check.snapshot('tank/a@' .. string.rep('x', 300)) == ENAMETOOLONG)
    assert(zfs.check.destroy('tank/a@1') == EEXIST and zfs.check.destroy('tank/none') == ENOENT)
    assert(zfs.check.destroy('tank/u@1') == EBUSY and zfs.check.destroy('tank/c') == EBUSY)
    assert(zfs.check.rollback('tank/a') == EBUSY)
    assert(zfs.check.set_prop('tank/a', 'copies', '2') == EINVAL)
    assert(zfs.check.set_prop('tank/a', 'a:b', string.rep('x', 8192)) == E2BIG)
    zfs.debug('a word for the log')
    return {foo = 'bar', baz = {1, true}}
"#;

/// Changes, several of the same datasets.
const CHANGE: &str = r#"
    assert(zfs.sync.snapshot('tank/a@2') == 0)
    assert(zfs.sync.snapshot('tank/a@3') == EAGAIN)
    assert(zfs.sync.rename_snapshot('tank/a', '2', 'two') == 0)
    assert(zfs.sync.bookmark('tank/a@two', 'tank/a#two') == 0)
    assert(zfs.sync.bookmark('tank/a#two', 'tank/a#three') == 0)
    assert(zfs.sync.set_prop('tank/a', 'org.example:p', 'w') == 0)
    assert(zfs.get_prop('tank/a', 'org.example:p') == 'w')
    assert(zfs.sync.inherit('tank/a', 'org.example:p') == 0)
    assert(zfs.get_prop('tank/a', 'org.example:p') == nil)
    assert(zfs.sync.inherit('tank/a', 'compression') == 0)
    assert(zfs.sync.inherit('tank/a', 'mountpoint') == ENOTSUP)
    assert(zfs.sync.set_prop('tank/v', 'millpond:iscsi', 'on') == ENOTSUP)
    assert(zfs.sync.snapshot('tank/v@s') == 0 and zfs.sync.destroy('tank/v@s') == 0)
    assert(zfs.sync.rollback('tank/u') == 0)
    assert(zfs.sync.destroy{'tank/u@1', defer=true} == 0)
    assert(zfs.exists('tank/u@1'))
    assert(zfs.sync.destroy('tank/a') == EBUSY)
    assert(zfs.sync.promote('tank/c') == 0)
    assert(zfs.exists('tank/c@1') and not zfs.exists('tank/a@1'))
    for s in zfs.list.snapshots('tank/a') do assert(s == 'tank/a@two') end
"#;

#[test]
fn scripts_look_at_a_pool_and_change_it() {
    let Some(bed) = Bed::new() else { return };
    let before = bed.names();
    for flags in ["-n", ""] {
        let said = bed.ok(flags, LOOK, &["-x", "y"]);
        let head = "Channel program fully executed and produced output:\n    return:\n";
        assert!(said.starts_with(head), "{said}");
        assert!(said.contains("\n        foo: 'bar'\n"), "{said}");
        assert!(
            said.contains("\n            1: 1\n            2: true\n"),
            "{said}"
        );
    }
    assert!(bed.server.log().contains("a word for the log"));
    let said = bed.ok("-j", "return {a = {b = -1}, c = nil}", &[]);
    assert_eq!(said, "{\"return\":{\"a\":{\"b\":-1}}}\n");
    assert_eq!(bed.ok("-j", "", &[]), "{}\n");
    let said = bed.ok("", "local x = 1", &[]);
    assert_eq!(
        said,
        "Channel program fully executed and did not produce output.\n"
    );

    let said = bed.fails("-n", CHANGE);
    assert!(said.contains("requires passing sync=TRUE"), "{said}");
    assert_eq!(
        bed.names(),
        before,
        "a script that may only look changed something"
    );
    let said = bed.ok("-t 0x100000 -m 1000000", CHANGE, &[]);
    assert_eq!(
        said,
        "Channel program fully executed and did not produce output.\n"
    );
    let after = bed.names();
    for name in [
        "tank/a@two",
        "tank/a#two",
        "tank/a#three",
        "tank/c@1",
        "tank/c#1",
        "tank/u@1",
    ] {
        assert!(after.lines().any(|line| line == name), "{name}: {after}");
    }
    assert!(
        !after.contains("tank/v@s") && !after.contains("tank/a@1\n"),
        "{after}"
    );
    bed.server.ok("zfs release keep tank/u@1");
    assert!(
        !bed.names().contains("tank/u@1"),
        "it was to go with its hold"
    );
    assert!(bed.server.ok("zpool history tank").contains("zfs program"));

    // What a script did before it failed stays.
    let said = bed.fails("", "zfs.sync.snapshot('tank/a@kept') error({1})");
    assert!(
        said.starts_with("Channel program execution failed:\n"),
        "{said}"
    );
    assert!(bed.names().contains("tank/a@kept"));
    for (flags, script, told) in [
        ("", "return 1 / 0", ":1: attempt to divide by zero"),
        ("-t 1000", "while true do end", "Channel program timed out."),
        ("-t 1000", "while true do end", "\n1100 Lua instructions"),
        ("-m 1", "return 1", "Memory limit exhausted."),
        (
            "-m 200000000",
            "return 1",
            "Invalid instruction or memory limit.",
        ),
        (
            "-m 9223372036854775808",
            "return 1",
            "Return value too large.",
        ),
        ("", "zfs.exists('rpool')", "not in the target pool"),
        (
            "",
            "zfs.list.snapshots('tank/a@two')",
            "cannot be a snapshot",
        ),
        ("", "return 1.5", "malformed number"),
        ("", "retrn 1", "execution failed"),
    ] {
        let said = bed.fails(flags, script);
        assert!(said.contains(told), "{flags} {script}: {said}");
    }

    bed.leave();
}

/// Goal: a script ends when who asked for it leaves, and what it did is there. Method: a script
/// that would run for long, whose command is killed once it has begun.
#[test]
fn a_script_ends_with_its_command() {
    let Some(bed) = Bed::new() else { return };
    let file = bed.server.path("long");
    let script = "zfs.debug('it has begun') zfs.sync.snapshot('tank/a@begun')\n\
                  while true do zfs.check.snapshot('tank/a@x') end";
    write(&file, script).expect("a script");
    let file = file.to_string_lossy().into_owned();
    let mut command = bed
        .server
        .begin(&["zfs", "program", "-t", "100000000", "tank", &file]);
    bed.server.wait_until("the script runs", || {
        bed.server.log().contains("it has begun")
    });
    command.kill().expect("killed");
    command.wait().expect("ended");
    assert!(bed.names().contains("tank/a@begun"));
    bed.server.wait_until("it is on record as canceled", || {
        let record = bed.server.ask("/v1/audit/list", &json!({}));
        let mut entries = record["entries"].as_array().expect("a list").iter();
        entries.any(|entry| entry["path"] == "/v1/zfs/program" && entry["failure"] == "canceled")
    });
}

/// Lua goes through all of these tables for each one or two of which it finds out that they stay.
const ENDLESS: &str = "
    local n, weak = 300000, {__mode = 'k'}
    local keys, order, tables = {}, {}, {}
    for i = 1, n + 1 do keys[i], order[i] = {}, i end
    local x = 1
    for i = n, 2, -1 do
        x = (x * 1103515245 + 12345) % 2147483648
        local j = x % i + 1
        order[i], order[j] = order[j], order[i]
    end
    for i = 1, n do
        local at = order[i]
        tables[i] = setmetatable({[keys[at]] = keys[at + 1]}, weak)
    end
    first = keys[1]
    keys = nil
    collectgarbage()";

/// Goal: a script that nothing can stop keeps its pool waiting for little more than a minute.
/// Method: tables with weak keys, of which each keeps the next one (in long runs only).
#[test]
fn a_script_that_cannot_be_stopped_is_left_alone() {
    if !is_long() {
        return;
    }
    let Some(bed) = Bed::new() else { return };
    let begun = Instant::now();
    let said = bed.fails("-t 100000000 -m 104857600", ENDLESS);
    let took = begun.elapsed();
    assert!(
        said.contains("One of its instructions did not end."),
        "{said}"
    );
    assert!(took < Duration::from_secs(90), "{took:?}");
    bed.server.ok("zfs snapshot tank/a@after");
    bed.ok("", "assert(zfs.exists('tank/a@after'))", &[]);
}
