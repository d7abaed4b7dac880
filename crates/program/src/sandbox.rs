//! The globals of a script: what OpenZFS gives it (`zcp_eval`, module/zfs/zcp.c; `base_funcs`,
//! module/lua/lbaselib.c), and nothing else.

use std::rc::Rc;

use mlua::{Function, IntoLua, Lua, LuaOptions, LuaString, StdLib, Table, Value};

use crate::budget::Budget;
use crate::host::Host;
use crate::{calls, errnos, outcome, strings, tables};

/// Functions of the base library that scripts have; what is not named here is taken away.
const BASE: &[&str] = &[
    "assert",
    "error",
    "getmetatable",
    "ipairs",
    "next",
    "pairs",
    "rawequal",
    "rawget",
    "rawlen",
    "rawset",
    "select",
    "tonumber",
    "tostring",
    "type",
];
/// Other globals that stay.
const LIBRARIES: &[&str] = &["_G", "coroutine", "string", "table"];
/// Bytes of Lua's memory of which collecting it counts as a step.
const COLLECTED_BYTES_PER_STEP: u64 = 16;
/// In a metatable: a function that Lua calls when it frees the value, without counting its
/// instructions.
const FINALIZER: &str = "__gc";

/// Errors of functions that are not Lua's are objects; who catches one gets its words.
const RESUME: &str = "local resume, plain = ...
local function done(ok, ...)
  if ok then return ok, ... end
  return ok, plain((...))
end
return function(...) return done(resume(...)) end";

/// A state of Lua with a script's globals.
pub(crate) fn new(budget: &Rc<Budget>, host: &Rc<dyn Host>) -> mlua::Result<Lua> {
    let libraries = StdLib::COROUTINE | StdLib::STRING | StdLib::TABLE;
    let lua = Lua::new_with(libraries, LuaOptions::new())?;
    let globals = lua.globals();
    let mut foreign = Vec::new();
    for entry in globals.pairs::<LuaString, Value>() {
        let (name, _) = entry?;
        let known = name.to_string_lossy();
        if !BASE.contains(&known.as_str()) && !LIBRARIES.contains(&known.as_str()) {
            foreign.push(name);
        }
    }
    for name in foreign {
        globals.raw_set(name, Value::Nil)?;
    }
    // To have memory collected again and again takes long, so that counts.
    let of = budget.clone();
    let collect = lua.create_function(move |lua, wanted: Option<LuaString>| {
        let wanted = wanted.map(|wanted| wanted.to_string_lossy());
        match wanted.as_deref() {
            Some("count") => Ok(lua.used_memory() as i64 / 1024),
            None | Some("collect") => {
                of.step(lua, lua.used_memory() as u64 / COLLECTED_BYTES_PER_STEP)?;
                lua.gc_collect()?;
                Ok(0)
            }
            Some(_) => Ok(0),
        }
    })?;
    globals.raw_set("collectgarbage", collect)?;
    globals.raw_set("setmetatable", lua.create_function(set_metatable)?)?;
    let of = budget.clone();
    let plain = lua.create_function(move |lua, value: Value| match value {
        Value::Error(error) => {
            // That a script was stopped is not caught.
            of.check(lua)?;
            of.add_error(lua, &error)?;
            outcome::caught(&error).into_lua(lua)
        }
        value => Ok(value),
    })?;
    let coroutines: Table = globals.raw_get("coroutine")?;
    let resume: Value = coroutines.raw_get("resume")?;
    let wrap = lua.load(RESUME).set_name("=[C]").into_function()?;
    coroutines.raw_set("resume", wrap.call::<Value>((resume, plain))?)?;
    for name in ["create", "wrap"] {
        let make: Function = coroutines.raw_get(name)?;
        let of = budget.clone();
        let counted = lua.create_function(move |lua, body: Value| {
            if !matches!(body, Value::Function(_)) {
                let what = format!("bad argument #1 to '{name}' (function expected)");
                return Err(mlua::Error::RuntimeError(what));
            }
            of.coroutine(lua)?;
            make.call::<Value>(body)
        })?;
        coroutines.raw_set(name, counted)?;
    }
    strings::install(&lua, budget)?;
    tables::install(&lua, budget)?;
    for (name, code) in errnos::CODES {
        globals.raw_set(*name, *code)?;
    }
    calls::install(&lua, budget, host)?;
    Ok(lua)
}

/// `setmetatable`, but for finalizers.
fn set_metatable(_lua: &Lua, (table, metatable): (Table, Option<Table>)) -> mlua::Result<Table> {
    let refused = |what: &str| Err(mlua::Error::RuntimeError(what.to_owned()));
    if let Some(present) = table.metatable()
        && !present.raw_get::<Value>("__metatable")?.is_nil()
    {
        return refused("cannot change a protected metatable");
    }
    if let Some(metatable) = &metatable
        && !metatable.raw_get::<Value>(FINALIZER)?.is_nil()
    {
        return refused("finalizers ('__gc') are not supported in channel programs");
    }
    table.set_metatable(metatable)?;
    Ok(table)
}
