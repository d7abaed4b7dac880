//! Scripts without a pool: what they may do, and what stops them.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;

/// A host with one dataset, `tank`, that remembers what it was asked.
#[derive(Default)]
struct Asked {
    requests: Rc<RefCell<Vec<Request>>>,
    is_cancelled: bool,
}

impl Host for Asked {
    fn ask(&self, request: Request) -> Result<Answer, Refusal> {
        self.requests.borrow_mut().push(request.clone());
        let named = |name: &str| match name {
            "tank" | "tank@s" => Ok(()),
            name if name.starts_with("tank") => Err(Refusal::NotFound),
            _ => Err(Refusal::OtherPool),
        };
        match request {
            Request::Exists(name) => match named(&name) {
                Err(Refusal::NotFound) => Ok(Answer::Exists(false)),
                other => other.map(|()| Answer::Exists(true)),
            },
            Request::Property { dataset, property } => {
                named(&dataset)?;
                match property.as_str() {
                    "guid" => Ok(Answer::Property(Some((Value::number(u64::MAX), None)))),
                    "origin" => Ok(Answer::Property(None)),
                    _ => Err(Refusal::Invalid),
                }
            }
            Request::List(_, name) => {
                named(&name)?;
                let row = |name: &str| vec![Value::Text(format!("tank/{name}")), Value::Nil];
                Ok(Answer::List(vec![row("a"), row("b")]))
            }
            Request::Debug(_) => Ok(Answer::Done),
            Request::Change { change, .. } => Ok(Answer::Changed(match change {
                Change::Promote { .. } => Changed {
                    errno: 17,
                    details: Some(Value::List(vec![Value::Text("s".into())])),
                },
                _ => Changed::default(),
            })),
        }
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }
}

fn program(script: &str) -> Program {
    Program {
        script: script.as_bytes().to_vec(),
        arguments: vec!["one".into(), "two".into()],
        instructions_max: INSTRUCTIONS,
        memory_bytes_max: MEMORY_BYTES,
        is_read_only: false,
    }
}

fn run_script(script: &str) -> Result<Option<Value>, ProgramError> {
    run(&program(script), Box::new(Asked::default()))
}

fn error_of(script: &str) -> String {
    match run_script(script) {
        Err(ProgramError::Script(text)) => text,
        other => panic!("{script}: {other:?}"),
    }
}

/// Asserts in Lua that scripts are as they should be.
fn holds(script: &str) {
    if let Err(error) = run_script(script) {
        panic!("{script}: {error}");
    }
}

/// Goal: values come out as OpenZFS gives them back. Method: tables of all kinds of values and
/// keys; keys that are the same as texts, tables in themselves, and what is no value.
#[test]
fn values_are_returned_as_lists_of_names() {
    assert_eq!(run_script("").expect("nothing"), None);
    assert_eq!(run_script("return nil").expect("nil"), Some(Value::Nil));
    let mixed = run_script("return {1, x = {y = 'z'}, [true] = false}").expect("a table");
    let Some(Value::Table(mut entries)) = mixed else {
        panic!("{mixed:?}");
    };
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    let inner = Value::Table(vec![("y".into(), Value::Text("z".into()))]);
    let expected = [
        ("1".to_owned(), Value::Integer(1)),
        ("true".to_owned(), Value::Boolean(false)),
        ("x".to_owned(), inner),
    ];
    assert_eq!(entries, expected);
    assert!(error_of("return {[0] = 1, ['0'] = 2}").starts_with("Collision of key '0'"));
    assert!(error_of("local t = {}; t.t = t; return t").contains("Maximum table depth (20)"));
    assert!(error_of("return assert").contains("Invalid value type 'function'"));
    assert!(error_of("return {[{}] = 1}").contains("Invalid key type 'table'"));
    assert!(error_of("return 1, 2").contains("Multiple return values"));
    // The same table many times.
    let many = "local t = {'x'}; for i = 1, 15 do t = {t, t, t} end; return t";
    assert_eq!(run_script(many), Err(ProgramError::TooLarge));
}

/// Goal: numbers are those of OpenZFS, 64 bits without a point. Method: what its tests say, and
/// slashes where they divide nothing.
#[test]
fn numbers_are_whole_and_wrap_around() {
    holds("assert(7 / 2 == 3 and 18446744073709551615 + 1 == (-18446744073709551616))");
    holds("assert(0x10 == 16 and '1/2' == [[1/2]] and #'//' == 2) -- a / comment // with both");
    holds("--[==[ / ]] ]==] local a = {1} ; assert(a[1]/1 == 1 and a[a[1]] == 1)");
    holds("local t = setmetatable({}, {__div = function() return 'x' end}); assert(t / 2 == 'x')");
    holds("local c = 'x'; assert(c..5 == 'x5' and 'a'..1 ..c == 'a1x' and (...)['argv'][1]..2)");
    holds("local function f(...) return ... end assert(f(1)..2 ..f(...)['argv'][1] == '12one')");
    for number in ["1.0", "-1.5", "1e3", ".5", "0x1.8", "0x", "3..4"] {
        let script = format!("\n\nreturn {number}");
        let text = error_of(&script);
        assert!(text.contains(":3: malformed number near"), "{text}");
    }
    for operator in ["1 // 2", "1 & 2", "1 | 2", "~1", "1 << 2", "1 >> 2"] {
        let text = error_of(&format!("return {operator}"));
        assert!(text.contains("unexpected symbol"), "{operator}: {text}");
    }
    for division in ["1 / 0", "1 % 0"] {
        let text = error_of(&format!("return {division}"));
        let place = "[string \"channel program\"]:1: attempt to divide by zero\nstack traceback:\n";
        assert!(text.starts_with(place), "{text}");
        assert!(text.ends_with("in main chunk"), "{text}");
    }
    holds("assert(zfs.get_prop('tank', 'guid') == -1)");
}

/// Goal: nothing of the host is in reach. Method: all that a global may be, and what has been taken
/// out of the libraries.
#[test]
fn scripts_reach_nothing_outside() {
    let names = "io os package require load loadfile dofile loadstring pcall xpcall print debug \
                 utf8 math module rawstring _VERSION string.dump string.pack string.unpack \
                 table.move";
    for name in names.split_whitespace() {
        holds(&format!("assert({name} == nil, '{name}')"));
    }
    let globals = "local n = 0; for k, v in pairs(_G) do if type(v) == 'function' then n = n + 1 \
                   end end; return n";
    assert_eq!(
        run_script(globals).expect("a number"),
        Some(Value::Integer(16))
    );
    let bytecode = run_script("\u{1b}Lua");
    assert!(
        matches!(bytecode, Err(ProgramError::Script(_))),
        "{bytecode:?}"
    );
    assert!(error_of("setmetatable({}, {__gc = function() end})").contains("finalizers"));
    holds("local t = setmetatable({}, {__metatable = 1}); assert(getmetatable(t) == 1)");
    assert!(
        error_of("setmetatable(setmetatable({}, {__metatable = 1}), nil)").contains("protected")
    );
}

/// Goal: a script that does not end is ended, however it hides. Method: loops, coroutines that
/// catch their end, and functions of the library that loop by themselves, with a small limit.
#[test]
fn scripts_that_do_not_end_are_stopped() {
    let scripts = [
        "while true do end",
        "local function f() while true do end end\n\
         while true do coroutine.resume(coroutine.create(f)) end",
        "local function f() local c = coroutine.create(f); coroutine.resume(c) while true do end \
         end f()",
        // Each ends before its own instructions are looked at.
        "local function f(n) if n == 0 then return end\n\
         for i = 1, 3 do coroutine.resume(coroutine.create(f), n - 1) end end f(60)",
        "local function f() end while true do coroutine.wrap(f)() end",
        "string.gsub(string.rep('a', 4000), '', string.rep('%0', 100000))",
        "string.find(string.rep('a', 60), string.rep('a?', 60) .. string.rep('a', 60))",
        "string.find(string.rep('a', 40), string.rep('.-', 12) .. 'b')",
        "string.gsub(string.rep('x', 4000), string.rep('x*', 9) .. 'y', '')",
        "string.match(string.rep('(', 9000), '%b()%b()')",
        "for w in string.gmatch(string.rep('a', 4000), 'a-b') do end",
        "table.insert(setmetatable({}, {__len = function() return 4611686018427387904 end}), 1, 0)",
        "table.remove(setmetatable({}, {__len = function() return 4611686018427387904 end}), 1)",
        "local t = setmetatable({}, {__len = function() return 9223372036854775806 end})\n\
         table.sort(t, function() return false end)",
        "string.rep('', 4611686018427387904) while true do end",
        "while true do collectgarbage() end",
    ];
    for script in scripts {
        let mut small = program(script);
        small.instructions_max = 100_000;
        let ended = run(&small, Box::new(Asked::default()));
        let Err(ProgramError::TimedOut { text, instructions }) = ended else {
            panic!("{script}: {ended:?}");
        };
        // Each coroutine that waits for another one takes a hundred more to end.
        assert!(
            (100_001..130_000).contains(&instructions),
            "{script}: {instructions}"
        );
        assert!(
            text.contains("Channel program timed out."),
            "{script}: {text}"
        );
    }
    let mut exact = program("i = 1\nwhile true do i = i + 1 end");
    exact.instructions_max = 2000;
    let ended = run(&exact, Box::new(Asked::default())).expect_err("no end");
    let said = ended.to_string();
    assert!(
        said.ends_with("in main chunk\n2100 Lua instructions"),
        "{said}"
    );
    let cancelled = Asked {
        is_cancelled: true,
        ..Asked::default()
    };
    let ended = run(&program("while true do end"), Box::new(cancelled));
    assert!(
        matches!(ended, Err(ProgramError::Cancelled(_))),
        "{ended:?}"
    );
}

/// Goal: memory is bounded, Lua's and ours. Method: what takes more than the limit, in Lua, by
/// functions of ours, and in recursion; a small script with little.
#[test]
fn memory_is_bounded() {
    let scripts = [
        "local a = {} while true do a[#a + 1] = 'x' .. #a end",
        "return string.rep('x', 100000000)",
        "local s = 'x' while true do s = s .. s end",
        "local s = string.rep('x', 1000000); return (s:gsub('x', s))",
        "local t = {}; for i = 1, 100 do t[i] = string.rep('x', 1000000) end return t",
        "local s = string.rep('x', 4000000); return table.concat({s, s, s, s})",
        "string.gsub(string.rep('a', 4000000), '.*', string.rep('%0', 2000000))",
        "string.gsub(string.rep('a', 4000000), '(.*)', string.rep('%1', 2000000))",
        "local s = string.rep('a', 4000000)\n\
         return (string.gsub('aaaa', 'a', function() return s end))",
        "local function f(n) return f(n - 1) + 1 end return f(10000000)",
        // Each has a part outside of Lua's memory while it waits for the next.
        "local s = string.rep('x', 3000000)\n\
         local function f(n) string.gsub('ab', '.', function(c)\n\
           if c == 'a' then return s end if n > 0 then f(n - 1) end return ''\n\
         end) end f(10)",
    ];
    for script in scripts {
        let ended = run_script(script);
        assert_eq!(ended, Err(ProgramError::Memory), "{script}");
    }
    holds("local function f(n) if n == 0 then return 0 end return f(n - 1) + 1 end f(10000)");
    let mut small = program("local s = 'teststring'; s = s .. s .. s .. s; return s");
    small.memory_bytes_max = 100_000;
    assert!(run(&small, Box::new(Asked::default())).is_ok());
    small.memory_bytes_max = 1;
    let ended = run(&small, Box::new(Asked::default()));
    assert_eq!(ended, Err(ProgramError::Memory));
    for (instructions, memory) in [(0, 1), (1, 0), (INSTRUCTIONS_MAX + 1, 1), (1, u64::MAX)] {
        small.instructions_max = instructions;
        small.memory_bytes_max = memory;
        let ended = run(&small, Box::new(Asked::default()));
        assert_eq!(ended, Err(ProgramError::Limits));
    }
}

/// Goal: memory is collected when a script wants it, as OpenZFS's tests do. Method: weak tables of
/// each kind, and coroutines in them.
#[test]
fn memory_is_collected() {
    holds(
        "for _, mode in ipairs({'k', 'v', 'kv'}) do
           local t = setmetatable({}, {__mode = mode})
           t[1] = {} t[{}] = 1
           collectgarbage()
           assert((t[1] == nil) == (mode ~= 'k'), mode)
           t[1] = nil
           assert((next(t) == nil) == (mode ~= 'v'), mode)
         end
         local c = setmetatable({}, {__mode = 'kv'})
         c[1] = coroutine.wrap(function() coroutine.yield(function() end) end)
         c[1]() collectgarbage('collect')
         assert(c[1] == nil and collectgarbage('count') > 0 and collectgarbage('step') == 0)",
    );
}

/// Goal: what nests deep ends in an error, and not in the end of the process.
#[test]
fn what_nests_deep_fails() {
    error_of("function f(s) return string.gsub(s, '.', f) end return f('foo')");
    error_of(&format!("return {}1{}", "(".repeat(9000), ")".repeat(9000)));
    error_of(&format!("return {}{}", "{".repeat(9000), "}".repeat(9000)));
    error_of("local function f() return coroutine.wrap(f)() end return f()");
    error_of("local t = setmetatable({}, {}); getmetatable(t).__index = t; return t.x");
    error_of("return string.find(string.rep('a', 300), string.rep('a-', 300) .. 'b')");
}

/// Goal: patterns are Lua's. Method: what its manual says of each kind of item.
#[test]
fn patterns_are_those_of_lua() {
    holds(
        "local f, m, g = string.find, string.match, string.gsub
         assert(f('alo', '') == 1 and f('alo', 'o', -1) == 3 and not f('alo', 'x'))
         local a, b, c = f('alo123', '(%a+)'); assert(a == 1 and b == 3 and c == 'alo')
         assert(f('a.b', '.', 2, true) == 2 and f('a+b', 'a+b', 1, true) == 1)
         assert(f('', '', 10) == nil and f('abc', '^b') == nil and f('abc', 'c$') == 3)
         assert(m('aaab', '.*b') == 'aaab' and m('aaa', '^.*$') == 'aaa' and m('aaa', 'b*') == '')
         assert(m('aaab', '.-b') == 'aaab' and m('ab', 'a?a?b') == 'ab')
         assert(m('key = value', '(%w+)%s*=%s*(%w+)') == 'key')
         assert(m('2024-05', '^(%d+)-(%d+)$') == '2024' and m('hello', '()ll()') == 3)
         assert(m(' [x]', '[%]]') == ']' and m('a-b', '[a%-]+') == 'a-' and m('^', '[%^]') == '^')
         assert(m('x]', '[]]') == ']' and m('x]', '[^]]') == 'x')
         assert(m('09af', '[0-9a-f]+') == '09af')
         assert(m('f(a(b)c)d', '%b()') == '(a(b)c)' and m('THE (quick) fox', '%f[%a]%a+') == 'THE')
         assert(m('=\"x\"', '([\"\\'])(.-)%1') == '\"')
         assert(g('hello', 'l', 'L') == 'heLLo' and select(2, g('hello', 'l', 'L')) == 2)
         assert(g('abc', '%w', '%0%0') == 'aabbcc' and g('abc', '(a)(b)', '%2%1') == 'bac')
         assert(g('abc', '', '-') == '-a-b-c-' and g('abc', '%w', {a = 'x', b = 1}) == 'x1c')
         assert(g('abc', '%w', function(x) return x == 'b' and 'B' end) == 'aBc')
         assert(g('hello world', 'o', 'x', 1) == 'hellx world' and g('aaa', '^a', 'b') == 'baa')
         local t = {} for k, v in ('a=1, b=2'):gmatch('(%w+)=(%w+)') do t[k] = v end
         assert(t.a == '1' and t.b == '2')
         local n = 0 for w in ('xuxx'):gmatch('()') do n = n + 1 end assert(n == 5)
         assert(('x'):rep(3, ',') == 'x,x,x' and ('x'):rep(0) == '' and ('x'):rep(-1) == '')",
    );
    for (pattern, what) in [
        ("(", "unfinished capture"),
        (")", "invalid pattern capture"),
        ("%", "ends with"),
        ("[a", "missing"),
        ("%1", "invalid capture index"),
        ("%b", "missing arguments"),
        ("%f", "missing '['"),
    ] {
        let text = error_of(&format!("return string.match('a', '{pattern}')"));
        assert!(text.contains(what), "{pattern}: {text}");
    }
}

/// Goal: tables are sorted, joined and changed as Lua's library does.
#[test]
fn tables_are_sorted_and_joined() {
    holds(
        "local t = {} for i = 1, 500 do t[i] = (i * 7919) % 1009 end
         table.sort(t) for i = 2, #t do assert(t[i - 1] <= t[i]) end
         table.sort(t, function(a, b) return a > b end)
         for i = 2, #t do assert(t[i - 1] >= t[i]) end
         local words = {'b', 'a', 'c'} table.sort(words)
         assert(table.concat(words, ',') == 'a,b,c' and table.concat({1, 2, 3}, '', 2, 3) == '23')
         local l = {10, 20} table.insert(l, 1, 5) table.insert(l, 30)
         assert(table.concat(l, ' ') == '5 10 20 30' and table.remove(l, 1) == 5)
         assert(table.remove(l) == 30 and #l == 2 and table.unpack({1, 2}, 2) == 2)
         assert(table.remove({}) == nil and table.pack(1, nil).n == 2)
         local v = setmetatable({}, {__lt = function() return false end})
         table.sort({v, v, v, v})",
    );
    let text = error_of("table.sort({1, 2, 3, 4}, function() return true end)");
    assert!(text.contains("invalid order function"), "{text}");
    assert!(error_of("table.concat({{}})").contains("invalid value (a table) at index 1"));
    assert!(error_of("table.insert({}, 3, 1)").contains("position out of bounds"));
    assert!(error_of("table.sort({1, 'x'})").contains("attempt to compare"));
    // Where places end.
    holds(
        "local t = setmetatable({}, {__len = function() return 9223372036854775806 end})
         table.insert(t, 9223372036854775807, 'x') assert(rawget(t, 9223372036854775807) == 'x')",
    );
    for arguments in ["1", "9223372036854775807, 1"] {
        let text = error_of(&format!(
            "table.insert(setmetatable({{}}, {{__len = function() return 9223372036854775807 \
             end}}), {arguments})"
        ));
        assert!(text.contains("it is full"), "{text}");
    }
    holds(
        "local c = coroutine.create(function() table.sort({1, 2, 3, 4, 5}, error) end)
         local ok, e = coroutine.resume(c) assert(not ok and type(e) ~= 'userdata')
         c = coroutine.create(function() string.rep() end)
         ok, e = coroutine.resume(c) assert(not ok and type(e) == 'string', type(e))",
    );
}

/// Goal: arguments are refused with OpenZFS's words. Method: those of its test of
/// `zfs.sync.destroy`, and others.
#[test]
fn arguments_are_checked() {
    for call in [
        "destroy('foo', 'bar')",
        "destroy('foo', 12345)",
        "destroy(12345)",
        "destroy()",
        "destroy{'foo', bar=true}",
        "destroy{'foo', defer=12345}",
        "destroy{'foo', defer=true, 12345}",
        "destroy{'foo', defer=true, bar=12345}",
        "destroy{defer=true}",
        "destroy{12345, defer=true}",
    ] {
        let text = error_of(&format!("zfs.sync.{call}"));
        let usage = ": destroy{<filesystem | snapshot(string)>, defer=(boolean)}";
        assert!(text.contains(usage), "{call}: {text}");
        assert!(
            text.starts_with("[string \"channel program\"]:1: "),
            "{call}: {text}"
        );
    }
    holds("assert(zfs.sync.destroy{'tank@s', defer=true} == 0)");
    assert!(error_of("zfs.sync.destroy{'tank', defer=true}").contains("only supported for"));
    let text = error_of("zfs.sync.set_prop('tank', 'a:b', '\\255')");
    assert!(text.contains("the value is not UTF-8"), "{text}");
    holds("assert(zfs.exists('tank') and not zfs.exists('tank/none'))");
    assert!(error_of("zfs.exists('rpool')").contains("not in the target pool"));
    assert!(error_of("zfs.get_prop('tank', 'nothing')").contains("is not a valid property"));
    assert!(error_of("zfs.get_prop('tank/none', 'guid')").contains("no such dataset"));
    holds("assert(zfs.get_prop('tank', 'origin') == nil)");
    holds("local n = ''; for s in zfs.list.children('tank') do n = n .. s end assert(#n == 12)");
    assert!(error_of("zfs.list.children('tank/none')").contains("to 'children' (no such dataset"));
    holds("local e, d = zfs.check.promote('tank'); assert(e == EEXIST and d[1] == 's')");
    holds("local a = (...).argv; assert(#a == 2 and a[2] == 'two')");
    holds("zfs.debug('text')");
}

/// Goal: a script that may only look asks for no change, and hears what OpenZFS says.
#[test]
fn scripts_that_look_change_nothing() {
    let asked = Asked::default();
    let requests = asked.requests.clone();
    let script = "assert(zfs.check.snapshot('tank@x') == 0); zfs.sync.snapshot('tank@x')";
    let mut look = program(script);
    look.is_read_only = true;
    let Err(ProgramError::Script(text)) = run(&look, Box::new(asked)) else {
        panic!("it changed something");
    };
    assert!(text.contains("requires passing sync=TRUE"), "{text}");
    let requests = requests.borrow();
    assert_eq!(requests.len(), 2);
    let applied = |request: &Request| matches!(request, Request::Change { apply: true, .. });
    assert!(!requests.iter().any(applied));
}

/// Goal: one transaction group has no more changes than it can take. Method: as many as a script
/// may make, and one more; tries and what is refused do not count.
#[test]
fn changes_of_a_script_are_counted() {
    let make = |count: u32| {
        format!(
            "for i = 1, {count} do
               assert(zfs.check.snapshot('tank@x') == 0 and zfs.sync.promote('tank') == EEXIST)
               assert(zfs.sync.snapshot('tank@x') == 0)
             end"
        )
    };
    holds(&make(10_000));
    let text = error_of(&make(10_001));
    assert!(text.contains("makes 10000 changes at most"), "{text}");
}

/// Goal: errors are short, whatever scripts make of them, and go through many functions as they
/// are. Method: long ones by strings, by names of functions and by keys; nested calls of the
/// library; a script that goes on after hundreds of them.
#[test]
fn errors_are_short_and_keep_their_place() {
    let long = "x".repeat(300_000);
    for script in [
        "error(string.rep('x', 1000000))".to_owned(),
        "local t = {} t[string.rep('x', 1000000)] = error return t".to_owned(),
        format!("local function {long}() zfs.exists(1) end {long}() return 1"),
        format!("_G['{long}'] = function() zfs.exists(1) end _G['{long}']() return 1"),
        "zfs.exists(string.rep('x', 1000000))".to_owned(),
    ] {
        let text = error_of(&script);
        assert!(text.len() <= 16 << 10, "{}", text.len());
    }
    let nested = "local function f(n) return string.gsub('a', 'a', function()\n\
                  if n == 0 then error('so it is') end\n\
                  return f(n - 1) end) end f(20)";
    let text = error_of(nested);
    let wanted = "[string \"channel program\"]:2: so it is\nstack traceback:\n";
    assert!(text.starts_with(wanted), "{text}");
    holds(
        "local e = string.rep('x', 1000000)
         local function f() string.gsub('a', 'a', function() error(e) end) end
         for i = 1, 300 do
           local ok, text = coroutine.resume(coroutine.create(f))
           assert(not ok and #text <= 512, #text)
         end",
    );
    let memory = "string.gsub('a', 'a', function() return string.rep('x', 100000000) end)";
    assert_eq!(run_script(memory), Err(ProgramError::Memory));
    let sorted = "table.sort({1, 2}, function() error('not these') end)";
    assert!(error_of(sorted).contains(":1: not these"));
    assert!(error_of("table.insert(setmetatable({}, {__len = error}), 1)").contains("traceback"));
}
