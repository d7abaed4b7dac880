//! The functions that scripts look at the pool with, and change it: `zfs.exists`, `zfs.get_prop`,
//! `zfs.debug`, and those of `zfs.list`, `zfs.check` and `zfs.sync` (module/zfs/zcp_get.c,
//! zcp_iter.c, zcp_synctask.c).

use std::rc::Rc;
use std::time::Instant;

use mlua::{Function, IntoLua, Lua, MultiValue, Table, Value};

use crate::arguments::{Parameter, Signature, text};
use crate::budget::Budget;
use crate::host::{Answer, Change, Host, Listing, Refusal, Request};

/// The longest text that is asked with, in bytes; a name or value that is longer is refused anyhow.
const TEXT_MAX_BYTES: usize = 16 << 10;
/// The longest error, in bytes. A script may have many, outside of Lua's memory.
const ERROR_MAX_BYTES: usize = 512;
/// An iterator over a list that has so many values for each step.
const ITERATE: &str = "local unpack = table.unpack
return function(list, width)
  local at = 1 - width
  return function()
    at = at + width
    return unpack(list, at, at + width - 1)
  end
end";

/// What all functions share.
#[derive(Clone)]
struct Caller {
    budget: Rc<Budget>,
    host: Rc<dyn Host>,
}

impl Caller {
    /// Asks the host, as far as the script may go on: a coroutine that is short is looked at here.
    fn ask(&self, lua: &Lua, request: Request) -> mlua::Result<Result<Answer, Refusal>> {
        self.budget.check(lua)?;
        let is_change = matches!(request, Request::Change { apply: true, .. });
        let begun = Instant::now();
        let answer = self.host.ask(request);
        // Writing may wait for devices, and a script has only so many changes; to be refused one
        // again and again is its own time.
        if is_change && matches!(&answer, Ok(Answer::Changed(changed)) if changed.errno == 0) {
            self.budget.waited(begun.elapsed());
        }
        if answer == Err(Refusal::Gone) {
            self.budget.cancel();
        }
        Ok(answer)
    }
}

/// Puts them into the globals.
pub(crate) fn install(lua: &Lua, budget: &Rc<Budget>, host: &Rc<dyn Host>) -> mlua::Result<()> {
    let caller = Caller {
        budget: budget.clone(),
        host: host.clone(),
    };
    let zfs = lua.create_table()?;
    let of = caller.clone();
    zfs.raw_set(
        "exists",
        lua.create_function(move |lua, given| exists(lua, &of, given))?,
    )?;
    let of = caller.clone();
    let get = lua.create_function(move |lua, given| get_prop(lua, &of, given))?;
    zfs.raw_set("get_prop", get)?;
    let of = caller.clone();
    zfs.raw_set(
        "debug",
        lua.create_function(move |lua, given| debug(lua, &of, given))?,
    )?;
    let list = lua.create_table()?;
    let iterate: Function = lua.load(ITERATE).set_name("=[C]").eval()?;
    for entry in LISTS {
        let (of, iterate) = (caller.clone(), iterate.clone());
        let function =
            lua.create_function(move |lua, given| listed(lua, &of, &iterate, entry, given))?;
        list.raw_set(entry.signature.function, function)?;
    }
    zfs.raw_set("list", list)?;
    zfs.raw_set("check", changes(lua, &caller, false)?)?;
    zfs.raw_set("sync", changes(lua, &caller, true)?)?;
    lua.globals().raw_set("zfs", zfs)
}

fn changes(lua: &Lua, caller: &Caller, apply: bool) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for entry in CHANGES {
        let of = caller.clone();
        let function =
            lua.create_function(move |lua, given| changed(lua, &of, entry, apply, given))?;
        table.raw_set(entry.signature.function, function)?;
    }
    Ok(table)
}

fn error(what: impl Into<String>) -> mlua::Error {
    let mut what = what.into();
    what.truncate(what.floor_char_boundary(ERROR_MAX_BYTES));
    mlua::Error::RuntimeError(what)
}

fn bad_argument(function: &str, what: &str) -> mlua::Error {
    error(format!("bad argument #1 to '{function}' ({what})"))
}

/// An answer of the wrong kind; hosts give none.
fn unexpected() -> mlua::Error {
    error("unexpected answer")
}

/// An argument that was parsed as a text; empty for one that is not there.
fn string(values: &[Value], at: usize) -> String {
    match values.get(at) {
        Some(Value::String(text)) => {
            let bytes = text.as_bytes();
            let length = bytes.len().min(TEXT_MAX_BYTES);
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        }
        _ => String::new(),
    }
}

/// The same of a value that is kept: it is kept as it is, or not at all.
fn kept_string(values: &[Value], at: usize) -> mlua::Result<String> {
    if let Some(Value::String(text)) = values.get(at)
        && std::str::from_utf8(&text.as_bytes()).is_err()
    {
        return Err(error("the value is not UTF-8"));
    }
    Ok(string(values, at))
}

/// What is said of a dataset that cannot be looked at (`zcp_dataset_hold_error`).
fn dataset_error(function: &str, dataset: &str, refusal: Refusal) -> mlua::Error {
    match refusal {
        Refusal::NotFound => bad_argument(function, &format!("no such dataset '{dataset}'")),
        Refusal::OtherPool => {
            let what = format!("dataset '{dataset}' is not in the target pool");
            bad_argument(function, &what)
        }
        Refusal::Io => error(format!("I/O error while accessing dataset '{dataset}'")),
        Refusal::Gone => error("Channel program was canceled."),
        other => error(format!(
            "unexpected error {} while accessing dataset '{dataset}'",
            other.errno()
        )),
    }
}

const EXISTS: Signature = Signature {
    function: "exists",
    needed: &[text("dataset")],
    optional: &[],
};

fn exists(lua: &Lua, caller: &Caller, given: MultiValue) -> mlua::Result<bool> {
    let dataset = string(&EXISTS.parse(given)?, 0);
    match caller.ask(lua, Request::Exists(dataset.clone()))? {
        Ok(Answer::Exists(exists)) => Ok(exists),
        Ok(_) => Err(unexpected()),
        Err(Refusal::OtherPool) => Err(error(format!(
            "dataset '{dataset}' is not in the target pool"
        ))),
        Err(Refusal::Io) => Err(error(format!("I/O error opening dataset '{dataset}'"))),
        Err(other) => Err(error(format!("unexpected error {}", other.errno()))),
    }
}

const DEBUG: Signature = Signature {
    function: "debug",
    needed: &[text("debug string")],
    optional: &[],
};

fn debug(lua: &Lua, caller: &Caller, given: MultiValue) -> mlua::Result<()> {
    let text = string(&DEBUG.parse(given)?, 0);
    // Each of its bytes goes into the log.
    caller.budget.step(lua, text.len() as u64)?;
    match caller.ask(lua, Request::Debug(text))? {
        Ok(_) => Ok(()),
        Err(refusal) => Err(error(format!("unexpected error {}", refusal.errno()))),
    }
}

const GET_PROP: Signature = Signature {
    function: "get_prop",
    needed: &[text("dataset"), text("property")],
    optional: &[],
};

/// Value and source; nothing where the dataset does not have the property.
fn get_prop(
    lua: &Lua,
    caller: &Caller,
    given: MultiValue,
) -> mlua::Result<(Option<crate::value::Value>, Option<String>)> {
    let values = GET_PROP.parse(given)?;
    let (dataset, property) = (string(&values, 0), string(&values, 1));
    let request = Request::Property {
        dataset: dataset.clone(),
        property: property.clone(),
    };
    match caller.ask(lua, request)? {
        Ok(Answer::Property(found)) => {
            Ok(found.map_or((None, None), |(value, source)| (Some(value), source)))
        }
        Ok(_) => Err(unexpected()),
        Err(Refusal::Invalid) => Err(error(format!(
            "property '{property}' is not a valid property on dataset '{dataset}'"
        ))),
        Err(Refusal::Io) => Err(error(format!(
            "I/O error while retrieving property '{property}' on dataset '{dataset}'"
        ))),
        Err(other) => Err(dataset_error("get_prop", &dataset, other)),
    }
}

/// A function of `zfs.list`.
struct List {
    signature: Signature,
    listing: Listing,
    /// What is said of a dataset of the wrong kind, with `{}` for its name.
    wrong_kind: &'static str,
}

const fn list(
    function: &'static str,
    listing: Listing,
    needed: &'static [Parameter],
    wrong_kind: &'static str,
) -> List {
    List {
        signature: Signature {
            function,
            needed,
            optional: &[],
        },
        listing,
        wrong_kind,
    }
}

const NO_SNAPSHOT: &str = "argument {} cannot be a snapshot";
const SNAPSHOT: &str = "{} is not a snapshot";
const HEAD: &[Parameter] = &[text("filesystem | volume")];
const ANY: &[Parameter] = &[text("filesystem | snapshot | volume")];
const ONE_SNAPSHOT: &[Parameter] = &[text("snapshot")];
const DATASET: &[Parameter] = &[text("dataset")];

const LISTS: &[List] = &[
    list("children", Listing::Children, HEAD, NO_SNAPSHOT),
    list("snapshots", Listing::Snapshots, HEAD, NO_SNAPSHOT),
    list("bookmarks", Listing::Bookmarks, HEAD, NO_SNAPSHOT),
    list("clones", Listing::Clones, ONE_SNAPSHOT, SNAPSHOT),
    list("holds", Listing::Holds, ONE_SNAPSHOT, SNAPSHOT),
    list("user_properties", Listing::UserProperties, ANY, "{}"),
    // Its name in earlier releases.
    list("properties", Listing::UserProperties, ANY, "{}"),
    list(
        "system_properties",
        Listing::SystemProperties,
        DATASET,
        "{}",
    ),
];

/// An iterator; of system properties a table of names. What it goes over is in Lua's memory.
fn listed(
    lua: &Lua,
    caller: &Caller,
    iterate: &Function,
    entry: &List,
    given: MultiValue,
) -> mlua::Result<Value> {
    let dataset = string(&entry.signature.parse(given)?, 0);
    let function = entry.signature.function;
    let request = Request::List(entry.listing, dataset.clone());
    let rows = match caller.ask(lua, request)? {
        Ok(Answer::List(rows)) => rows,
        Ok(_) => return Err(unexpected()),
        Err(Refusal::Invalid) => {
            let what = entry.wrong_kind.replace("{}", &dataset);
            return Err(bad_argument(function, &what));
        }
        Err(other) => return Err(dataset_error(function, &dataset, other)),
    };
    let width = rows.first().map_or(1, Vec::len);
    let list = lua.create_sequence_from(rows.into_iter().flatten())?;
    match entry.listing {
        Listing::SystemProperties => list.into_lua(lua),
        _ => iterate.call((list, width)),
    }
}

/// A function of `zfs.sync` and `zfs.check`.
struct Changing {
    signature: Signature,
    /// The change that arguments ask for.
    change: fn(&[Value]) -> mlua::Result<Change>,
}

const fn changing(
    function: &'static str,
    needed: &'static [Parameter],
    change: fn(&[Value]) -> mlua::Result<Change>,
) -> Changing {
    Changing {
        signature: Signature {
            function,
            needed,
            optional: &[],
        },
        change,
    }
}

const CLONE: &[Parameter] = &[text("clone")];
const FILESYSTEM: &[Parameter] = &[text("filesystem")];
const NEW_SNAPSHOT: &[Parameter] = &[text("filesystem@snapname | volume@snapname")];
const PROPERTY: &[Parameter] = &[text("dataset"), text("property")];
const SETTING: &[Parameter] = &[text("dataset"), text("property"), text("value")];
const BOOKMARK: &[Parameter] = &[text("snapshot | bookmark"), text("bookmark")];
const NAMES: &[Parameter] = &[
    text("filesystem | volume"),
    text("oldsnapname"),
    text("newsnapname"),
];

const CHANGES: &[Changing] = &[
    Changing {
        signature: Signature {
            function: "destroy",
            needed: &[text("filesystem | snapshot")],
            optional: &[Parameter {
                name: "defer",
                kind: "boolean",
            }],
        },
        change: destroy,
    },
    changing("promote", CLONE, |values| {
        Ok(Change::Promote {
            clone: string(values, 0),
        })
    }),
    changing("rollback", FILESYSTEM, |values| {
        Ok(Change::Rollback {
            name: string(values, 0),
        })
    }),
    changing("snapshot", NEW_SNAPSHOT, |values| {
        Ok(Change::Snapshot {
            name: string(values, 0),
        })
    }),
    changing("inherit", PROPERTY, |values| {
        Ok(Change::Inherit {
            dataset: string(values, 0),
            property: string(values, 1),
        })
    }),
    changing("set_prop", SETTING, |values| {
        Ok(Change::Set {
            dataset: string(values, 0),
            property: string(values, 1),
            value: kept_string(values, 2)?,
        })
    }),
    changing("bookmark", BOOKMARK, |values| {
        Ok(Change::Bookmark {
            source: string(values, 0),
            name: string(values, 1),
        })
    }),
    changing("rename_snapshot", NAMES, |values| {
        Ok(Change::RenameSnapshot {
            dataset: string(values, 0),
            old: string(values, 1),
            new: string(values, 2),
        })
    }),
];

fn destroy(values: &[Value]) -> mlua::Result<Change> {
    let name = string(values, 0);
    let defer = values.get(1).and_then(Value::as_boolean);
    if defer.is_some() && !name.contains('@') {
        return Err(error(format!(
            "'deferred' kwarg only supported for snapshots: {name}"
        )));
    }
    Ok(Change::Destroy {
        name,
        defer: defer.unwrap_or(false),
    })
}

/// The code of the error, zero where there is none, and more about it if there is.
fn changed(
    lua: &Lua,
    caller: &Caller,
    entry: &Changing,
    apply: bool,
    given: MultiValue,
) -> mlua::Result<(i32, Option<crate::value::Value>)> {
    let change = (entry.change)(&entry.signature.parse(given)?)?;
    let dataset = change.dataset().to_owned();
    let apply_now = apply && !caller.budget.is_read_only();
    let request = Request::Change {
        change,
        apply: apply_now,
    };
    if apply_now {
        caller.budget.allow_change()?;
    }
    let answer = caller.ask(lua, request)?;
    if apply && !apply_now && answer != Err(Refusal::Gone) {
        return Err(error(
            "running functions from the zfs.sync submodule requires passing sync=TRUE to \
             lzc_channel_program() (i.e. do not specify the \"-n\" command line argument)",
        ));
    }
    match answer {
        Ok(Answer::Changed(changed)) => {
            if apply_now && changed.errno == 0 {
                caller.budget.add_change();
            }
            Ok((changed.errno, changed.details))
        }
        Ok(_) => Err(unexpected()),
        Err(Refusal::Io) if !apply => Ok((Refusal::Io.errno(), None)),
        Err(refusal) => Err(dataset_error(entry.signature.function, &dataset, refusal)),
    }
}
