//! Goal: what OpenZFS's own tests of channel programs ask (tests/functional/channel_program of its
//! suite) is answered as there. Method: its cases, told anew; and its scripts as they are, where
//! the suite is on the machine.

use std::fs::{read, read_to_string, remove_file, write};
use std::path::PathBuf;

use super::Bed;
use crate::harness::text_of;

/// Goal: scripts fail with status 1 and OpenZFS's words. Method: its lists of what has to fail.
#[test]
fn errors_are_told_as_by_openzfs() {
    let Some(bed) = Bed::new() else { return };
    for script in [
        "{]",
        "retrn 1",
        "abc = nil; abc.deref",
        "abc = nil; abc()",
        "assert(false)",
        "return function() return 1 end",
        "return {[{}]=true}",
        "return {[function() return 1 end]=0}",
        "return assert",
        "return 0, assert",
        "return true, {[{}]=0}",
        "return {val=true}, {val=false}",
        "return nil, true, 1, 'test', {}, {val=true}",
        "return {[false]=true, ['false']=false}",
        "return {[0]=true, ['0']=false}",
        "return {0,0,0,['2']=0}",
        "error(0, assert)",
        "error({[0]=true, ['0']=false})",
        "error(function() return 1 end)",
    ] {
        let said = bed.fails("-n", script);
        let head = "Channel program execution failed:\n";
        assert!(
            said.starts_with(head) && said.len() > head.len(),
            "{script}: {said}"
        );
    }
    for value in ["", "nil", "true", "0", "'test'", "{}", "{val=0}", "EINVAL"] {
        let said = bed.fails("-n", &format!("error({value})"));
        assert!(said.contains("execution failed"), "{value}: {said}");
        assert!(said.contains("in function 'error'"), "{value}: {said}");
        bed.ok("-n", &format!("return {value}"), &[]);
    }
    let nested = format!("{}{}", "if true then\n".repeat(243), "end\n".repeat(243));
    let said = bed.fails("-n", &nested);
    assert!(said.contains("too many C levels"), "{said}");
    bed.ok(
        "-n",
        &format!("{}{}", "if true then\n".repeat(19), "end\n".repeat(19)),
        &[],
    );
    let recursive = "local function f(x) if x == 0 then return x end return f(x - 1) + 1 end\n\
                     return f((...).argv[1] + 0)";
    let said = bed.ok("-n", recursive, &["10000"]);
    assert!(said.contains("    return: 10000\n"), "{said}");
    let large =
        "local t = {} for i = 1, 5000 do table.insert(t, string.rep('a', 100)) end return t";
    assert!(bed.ok("", large, &[]).lines().count() >= 5000);
    bed.fails("-m 10000", large);
    for limit in [1000, 10_000, 100_000, 2_000_000] {
        let said = bed.fails(
            &format!("-n -t {limit}"),
            "i = 1; while true do i = i + 1 end",
        );
        let run = said.split("chunk").nth(1).expect("where it was");
        let run: u64 = run
            .split_whitespace()
            .next()
            .expect("a number")
            .parse()
            .expect("a number");
        assert!(run.abs_diff(limit) <= 100, "{limit}: {said}");
    }
    for list in [
        "children",
        "snapshots",
        "bookmarks",
        "holds",
        "clones",
        "properties",
    ] {
        for name in ["tank/none", "none/a", "rpool", "tank/none@1", "tank/a#1"] {
            bed.fails("-n", &format!("zfs.list.{list}('{name}')"));
        }
    }
    for list in ["children", "snapshots", "bookmarks"] {
        bed.fails("-n", &format!("zfs.list.{list}('tank/a@1')"));
    }
    for list in ["clones", "holds"] {
        bed.fails("-n", &format!("zfs.list.{list}('tank/a')"));
    }
    bed.fails("-n", "zfs.get_prop('tank/a', 'notaprop')");
    bed.fails("-n", "zfs.get_prop('notadataset', 'type')");
}

/// Properties that have other values than in most pools are left out.
const PROPERTIES: &str = r#"
    local off, on = {'off', 'default'}, {'on', 'default'}
    local it = {true}
    local set = {true, 'default'}
    -- Of a filesystem, its snapshot, and a volume: a value (or true for any) and where it is set.
    local wanted = {
        redundant_metadata = {{'all', 'default'}, {}, {'all', 'default'}},
        sync = {{'standard', 'default'}, {}, {'standard', 'default'}},
        checksum = {on, {}, on},
        dedup = {off, {}, off},
        snapdir = {{'hidden', 'default'}, {}, {}},
        acltype = {off, off, {}},
        aclinherit = {{'restricted', 'default'}, {}, {}},
        copies = {{'1', 'default'}, {}, {'1', 'default'}},
        primarycache = {{'all', 'default'}, {'all', 'default'}, {'all', 'default'}},
        logbias = {{'latency', 'default'}, {}, {'latency', 'default'}},
        devices = {on, on, {}},
        exec = {on, on, {}},
        setuid = {on, on, {}},
        readonly = {off, {}, off},
        zoned = {off, {}, {}},
        vscan = {off, {}, {}},
        nbmand = {off, off, {}},
        version = {{'5'}, {'5'}, {}},
        canmount = {on, {}, {}},
        mounted = {{}, {}, {}},
        defer_destroy = {{}, {'off'}, {}},
        normalization = {{'none'}, {'none'}, {}},
        casesensitivity = {{'sensitive'}, {'sensitive'}, {}},
        utf8only = {{'off'}, {'off'}, {}},
        dnodesize = {{'legacy', 'default'}, {}, {}},
        used = {it, it, it},
        available = {it, {}, it},
        referenced = {it, it, it},
        compressratio = {it, it, it},
        refcompressratio = {it, it, it},
        volblocksize = {{}, {}, it},
        usedbysnapshots = {it, {}, it},
        usedbydataset = {it, {}, it},
        usedbychildren = {it, {}, it},
        usedbyrefreservation = {it, {}, it},
        userrefs = {{}, it, {}},
        written = {it, it, it},
        logicalused = {it, {}, it},
        logicalreferenced = {it, it, it},
        quota = {set, {}, {}},
        reservation = {set, {}, set},
        refquota = {set, {}, {}},
        refreservation = {set, {}, {true, 'tank/w'}},
        filesystem_limit = {{10, 'tank/a'}, {}, {}},
        snapshot_limit = {{10, 'tank/a'}, {}, {10, 'tank/w'}},
        filesystem_count = {it, {}, {}},
        snapshot_count = {it, {}, it},
        recordsize = {set, {}, {}},
        creation = {it, it, it},
        createtxg = {it, it, it},
        numclones = {{}, it, {}},
        guid = {it, it, it},
        useraccounting = {it, it, it},
        unique = {it, it, it},
        objsetid = {it, it, it},
        inconsistent = {it, it, it},
        origin = {{}, {}, {}},
        sharenfs = {off, {}, {}},
        sharesmb = {off, {}, {}},
        mlslabel = {{'none', 'default'}, {'none', 'default'}, {'none', 'default'}},
        receive_resume_token = {{}, {}, {}},
        name = {{'tank/a'}, {'tank/a@1'}, {'tank/w'}},
        type = {{'filesystem'}, {'snapshot'}, {'volume'}},
        iscsioptions = {{}, {}, {}},
        prevsnap = {{'tank/a@1'}, {}, {}},
    }
    local wrong = {}
    for property, of in pairs(wanted) do
        for i, name in ipairs({'tank/a', 'tank/a@1', 'tank/w'}) do
            local value, source = zfs.get_prop(name, property)
            local is_right = value == of[i][1] or of[i][1] == true and value ~= nil
            if not is_right or source ~= of[i][2] then
                wrong[property .. ' of ' .. name] = tostring(value) .. ' ' .. tostring(source)
            end
        end
    end
    return wrong
"#;

/// Goal: properties have OpenZFS's values and sources. Method: its tables; limits and counts;
/// quotas and space of users and groups; what was written.
#[test]
fn properties_are_those_of_openzfs() {
    let Some(bed) = Bed::new() else { return };
    bed.server.ok("zfs create -V 8M tank/w");
    let count = "assert(zfs.get_prop('tank/a', 'filesystem_count') == nil)";
    bed.ok("-n", count, &[]);
    bed.server
        .ok("zfs set snapshot_limit=10 filesystem_limit=10 tank/a");
    bed.server.ok("zfs set snapshot_limit=10 tank/w");
    bed.server.ok("zfs create tank/a/b");
    let said = bed.ok("-j", PROPERTIES, &[]);
    assert_eq!(said, "{\"return\":{}}\n");
    bed.ok(
        "-n",
        "local n, s = zfs.get_prop('tank/a', 'filesystem_count') assert(n == 1 and s == nil, n)
         n, s = zfs.get_prop('tank/a', 'snapshot_count') assert(n == 1 and s == nil, n)
         n, s = zfs.get_prop('tank/u', 'written@1') assert(n == 0 and s == nil, n)",
        &[],
    );
    bed.server
        .ok("zfs create -o userquota@123=10M -o groupquota@456=20M tank/q");
    bed.ok(
        "",
        "local function prop(name, property, value, source)
             local v, s = zfs.get_prop(name, property)
             assert(v == value and s == source, property .. ' ' .. tostring(v) .. tostring(s))
         end
         prop('tank/q', 'userquota@123', 10485760, 'tank/q')
         prop('tank/q', 'userused@123', 0, 'tank/q')
         prop('tank/q', 'groupquota@456', 20971520, 'tank/q')
         prop('tank/q', 'groupobjused@456', 0, 'tank/q')
         prop('tank/u', 'userquota@123', nil, nil)
         prop('tank/u', 'projectused@7', 0, 'tank/u')
         assert(zfs.get_prop('tank/a', 'userobjused@0') > 0)",
        &[],
    );
    for property in ["userquota@x", "userquota@", "usersomething@1", "other@1"] {
        let said = bed.fails("-n", &format!("zfs.get_prop('tank/a', '{property}')"));
        assert!(said.contains("is not a valid property"), "{said}");
    }
    bed.fails("-n", "zfs.get_prop('tank/v', 'userused@0')");
    let mount = bed.server.path("mnt/a");
    std::fs::create_dir(mount.join("d")).expect("a directory");
    bed.server.ok("zpool sync tank");
    bed.ok("", "assert(zfs.get_prop('tank/a', 'written@1') > 0)", &[]);
}

/// Goal: changes of one group follow each other as in OpenZFS's tests, and what was on stable
/// storage is in what a script keeps. Method: those tests; files that are written, made durable and
/// looked at afterwards; an encrypted filesystem with its key and without; zdb.
#[test]
fn changes_are_those_of_openzfs() {
    let Some(bed) = Bed::new() else { return };
    let top = bed.server.path("mnt");
    // Two rollbacks of one group, right after the filesystem was in use.
    for (name, script) in [
        ("one", "assert(zfs.sync.rollback('tank/one') == 0)"),
        (
            "two",
            "assert(zfs.sync.rollback('tank/two') == 0)
             assert(zfs.sync.destroy('tank/two@2') == 0)
             assert(zfs.sync.rollback('tank/two') == 0)",
        ),
    ] {
        bed.server.ok(&format!("zfs create tank/{name}"));
        let file = top.join(name).join("file");
        write(&file, b"content").expect("written");
        bed.server.ok(&format!("zfs snapshot tank/{name}@1"));
        remove_file(&file).expect("removed");
        if name == "two" {
            bed.server.ok("zfs snapshot tank/two@2");
        }
        let busy = format!("assert(zfs.sync.rollback('tank/{name}') == EBUSY)");
        bed.ok("", &busy, &[]);
        let new = std::fs::File::create(top.join(name).join("new")).expect("made");
        new.sync_all().expect("durable");
        drop(new);
        bed.server.ok(&format!("zfs unmount tank/{name}"));
        bed.ok("", script, &[]);
        bed.server.ok(&format!("zfs mount tank/{name}"));
        assert_eq!(read(&file).expect("it is back"), b"content");
    }
    assert!(!bed.names().contains("tank/two@2"));

    // What was acknowledged is in a snapshot that a script takes.
    let content: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 5) as u8).collect();
    let file = top.join("one/durable");
    write(&file, &content).expect("written");
    std::fs::File::open(&file)
        .and_then(|file| file.sync_all())
        .expect("durable");
    write(top.join("one/late"), b"late").expect("written");
    bed.ok("", "assert(zfs.sync.snapshot('tank/one@kept') == 0)", &[]);
    write(&file, b"other").expect("written");
    let kept = top.join("one/.zfs/snapshot/kept");
    assert!(read(kept.join("durable")).expect("kept") == content);
    assert_eq!(read(kept.join("late")).expect("kept"), b"late");

    // Promotions.
    for words in [
        "zfs create tank/f",
        "zfs snapshot tank/f@s",
        "zfs clone tank/f@s tank/f1",
        "zfs snapshot tank/f1@s1",
        "zfs clone tank/f1@s1 tank/f2",
        "zfs unmount tank/f1",
        "zfs create tank/g",
        "zfs snapshot tank/g@both",
        "zfs snapshot tank/g@more",
        "zfs clone tank/g@more tank/g1",
        "zfs snapshot tank/g@later",
        "zfs snapshot tank/g1@both",
        "zfs snapshot tank/g1@own",
        "zfs snapshot tank/g1@more",
        "zfs snapshot tank/g1@later",
    ] {
        bed.server.ok(words);
    }
    bed.ok(
        "",
        "local e, names = zfs.sync.promote('tank/g1')
         assert(e == EEXIST and table.concat(names, ' ') == 'both more')
         assert(zfs.sync.promote('tank/f') == EINVAL)
         assert(zfs.sync.promote('tank/f2') == 0)
         assert(zfs.sync.promote('tank/f2') == 0)
         assert(zfs.sync.destroy('tank/f1') == 0)",
        &[],
    );

    // A whole tree, names that are none, and snapshots that come and go.
    bed.server.ok("zfs create -p tank/root/a/b");
    bed.server.ok("zfs create tank/root/c");
    bed.ok(
        "",
        "local function all(root)
             assert(zfs.sync.snapshot(root .. '@all') == 0)
             for child in zfs.list.children(root) do all(child) end
         end
         all('tank/root')
         assert(zfs.sync.destroy('tank/root/c@all') == 0)
         for s in zfs.list.snapshots('tank/root/c') do assert(false, s) end
         assert(zfs.sync.snapshot('ceci_nest_pas_une_dataset') == EINVAL)
         assert(zfs.sync.snapshot('tank/root') == EINVAL)
         assert(zfs.sync.snapshot('tank/root@' .. string.rep('a', 512)) == ENAMETOOLONG)
         assert(zfs.sync.snapshot('tank/root@more') == EAGAIN)
         assert(zfs.sync.set_prop('tank/root', 'notaproperty', 'x') == EINVAL)
         assert(zfs.sync.set_prop('tank/root', 'a:' .. string.rep('a', 256), 'x') == ENAMETOOLONG)
         for _, name in ipairs({'mountpoint', 'copies', 'guid'}) do
             assert(zfs.sync.set_prop('tank/root', name, '2') ~= 0)
         end
         assert(zfs.sync.destroy('tank/v') == EBUSY)
         assert(zfs.sync.destroy('tank') ~= 0)
         assert(zfs.sync.destroy('tank/root') ~= 0)",
        &[],
    );
    for name in ["tank/root@all", "tank/root/a@all", "tank/root/a/b@all"] {
        assert!(bed.names().lines().any(|line| line == name), "{name}");
    }

    // Encrypted, with its key and without.
    let key = bed.server.path("key");
    write(&key, [7; 32]).expect("a key");
    let location = format!("keylocation=file://{}", key.display());
    bed.server.ok(&format!(
        "zfs create -o encryption=on -o keyformat=raw -o {location} tank/e"
    ));
    write(top.join("e/file"), b"secret").expect("written");
    bed.ok("", "assert(zfs.sync.snapshot('tank/e@1') == 0)", &[]);
    bed.server.ok("zfs unmount tank/e");
    bed.server.ok("zfs unload-key tank/e");
    bed.ok(
        "",
        "assert(zfs.sync.snapshot('tank/e@2') == 0)
         assert(zfs.sync.rename_snapshot('tank/e', '2', 'two') == 0)
         assert(zfs.sync.bookmark('tank/e@two', 'tank/e#two') == 0)
         assert(zfs.sync.set_prop('tank/e', 'a:b', 'c') == 0)
         for _, name in ipairs(zfs.list.system_properties('tank/e')) do
             zfs.get_prop('tank/e', name)
         end
         for _, name in ipairs(zfs.list.system_properties('tank/e@two')) do
             zfs.get_prop('tank/e@two', name)
         end
         assert(zfs.sync.rollback('tank/e') == EAGAIN)",
        &[],
    );
    bed.ok("", "assert(zfs.sync.rollback('tank/e') == 0)", &[]);
    bed.server.ok("zfs load-key tank/e");
    bed.server.ok("zfs mount tank/e");
    assert_eq!(read(top.join("e/file")).expect("it is there"), b"secret");
    bed.leave();
}

/// Goal: OpenZFS's scripts run here. Method: those of its suite that need nothing but a pool, where
/// the suite is on the machine (`scripts/zts` puts it there).
#[test]
fn scripts_of_the_suite_run() {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let suite = "zfs-test/usr/share/zfs/zfs-tests/tests/functional/channel_program";
    let suite = home.join(".cache/millpond").join(suite);
    if !suite.is_dir() {
        eprintln!("OpenZFS's suite is not here");
        return;
    }
    let Some(bed) = Bed::new() else { return };
    bed.server.ok("zfs create tank/n");
    bed.server.ok("zfs create tank/s");
    bed.server.ok("zfs snapshot tank/s@snap1");
    bed.server.ok("zfs create tank/p");
    bed.server.ok("zfs create tank/r");
    for (flags, script, arguments, is_right) in [
        ("-n", "lua_core/tst.args_to_lua.zcp", "foo bar", true),
        ("-n", "lua_core/tst.divide_by_zero.zcp", "", false),
        (
            "-n",
            "lua_core/tst.exists.zcp",
            "tank tank/a tank/a@1 tank/c",
            true,
        ),
        ("-n", "lua_core/tst.large_prog.zcp", "", true),
        ("-n", "lua_core/tst.lib_coroutine.lua", "", true),
        ("-n -m 40000000", "lua_core/tst.lib_table.lua", "", true),
        ("-n", "lua_core/tst.nested_neg.zcp", "", false),
        ("-n", "lua_core/tst.nested_pos.zcp", "", true),
        ("-n", "lua_core/tst.recursive.zcp", "10000", true),
        ("-n", "lua_core/tst.recursive.zcp", "10000000", false),
        ("-n", "lua_core/tst.return_large.zcp", "", true),
        ("-n", "lua_core/tst.return_recursive_table.zcp", "", false),
        ("-n", "lua_core/tst.stack_gsub.zcp", "", false),
        ("-n", "lua_core/tst.timeout.zcp", "", false),
        ("", "synctask_core/tst.set_props.zcp", "tank/p", true),
        ("", "synctask_core/tst.snapshot_destroy.zcp", "tank/n", true),
        (
            "",
            "synctask_core/tst.snapshot_simple.zcp",
            "tank/n x",
            true,
        ),
        (
            "",
            "synctask_core/tst.bookmark.create.zcp",
            "tank/n x b",
            true,
        ),
        (
            "",
            "synctask_core/tst.bookmark.copy.zcp",
            "tank/n b c",
            true,
        ),
        (
            "",
            "synctask_core/tst.snapshot_neg.zcp",
            "tank/s tank/p",
            true,
        ),
        (
            "",
            "synctask_core/tst.snapshot_rename.zcp",
            "tank/r 2 3",
            true,
        ),
    ] {
        // One has a name in another encoding.
        let text = read(suite.join(script)).expect("a script of the suite");
        let text = String::from_utf8_lossy(&text);
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let output = bed.run(flags, &text, &arguments);
        let said = text_of(&output);
        let status = output.status.code();
        assert_eq!(status, Some(i32::from(!is_right)), "{script}: {said}");
        let mut told = suite.join(script);
        told.set_extension("err");
        if !is_right && !script.contains("gsub") && told.is_file() {
            // The scripts have got a line more since.
            let wanted = read_to_string(&told).expect("what it says");
            let wanted = wanted.replace(":16:", ":17:");
            assert_eq!(said.trim_end(), wanted.trim_end(), "{script}");
        }
        if script.contains("set_props") {
            let lines: Vec<&str> = said.lines().skip(1).map(str::trim).collect();
            assert_eq!(lines, ["return:", "1:", "2:"], "{said}");
        }
    }
}
