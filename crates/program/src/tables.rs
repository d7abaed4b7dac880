//! Functions of the library of tables that loop: a table may say that it is longer than anything.
//! As in Lua 5.2 they take what is in the table itself.

use std::rc::Rc;

use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};

use crate::budget::{Budget, Held};

/// Steps that an element of a table counts as.
const ELEMENT_STEPS: u64 = 4;

/// Puts them into the library, and takes away what OpenZFS has not.
pub(crate) fn install(lua: &Lua, budget: &Rc<Budget>) -> mlua::Result<()> {
    let library: Table = lua.globals().raw_get("table")?;
    library.raw_set("move", Value::Nil)?;
    let of = budget.clone();
    library.raw_set(
        "insert",
        lua.create_function(move |lua, arguments| insert(lua, &of, arguments))?,
    )?;
    let of = budget.clone();
    library.raw_set(
        "remove",
        lua.create_function(move |lua, (table, at): (Table, Option<i64>)| {
            remove(lua, &of, &table, at)
        })?,
    )?;
    let of = budget.clone();
    library.raw_set(
        "concat",
        lua.create_function(move |lua, arguments| concat(lua, &of, arguments))?,
    )?;
    // Compares any two values that can be compared, with their metatables.
    let less = lua
        .load("local one, other = ... return one < other")
        .set_name("=[C]");
    let less = less.into_function()?;
    let of = budget.clone();
    library.raw_set(
        "sort",
        lua.create_function(move |lua, (table, by): (Table, Option<Function>)| {
            let last = length_of(lua, &of, &table)?;
            let sorter = Sorter {
                lua,
                budget: &of,
                table,
                by: by.unwrap_or_else(|| less.clone()),
            };
            sorter.sort(1, last)
        })?,
    )
}

/// The length that a table says it has, by a function of the script's where there is one.
fn length_of(lua: &Lua, budget: &Budget, table: &Table) -> mlua::Result<i64> {
    budget.called(lua, table.len())
}

fn out_of_bounds(function: &str) -> mlua::Error {
    let what = format!("bad argument #2 to '{function}' (position out of bounds)");
    mlua::Error::RuntimeError(what)
}

fn insert(lua: &Lua, budget: &Budget, arguments: MultiValue) -> mlua::Result<()> {
    let mut arguments = arguments.into_iter();
    let table: Table = lua.unpack(arguments.next().unwrap_or_default())?;
    let rest: Vec<Value> = arguments.collect();
    let Some(end) = length_of(lua, budget, &table)?.checked_add(1) else {
        let what = "wrong size of the table that 'insert' is for (it is full)";
        return Err(mlua::Error::RuntimeError(what.to_owned()));
    };
    match <[Value; 1]>::try_from(rest) {
        Ok([value]) => table.raw_set(end, value),
        Err(rest) => {
            let Ok([at, value]) = <[Value; 2]>::try_from(rest) else {
                let what = "wrong number of arguments to 'insert'";
                return Err(mlua::Error::RuntimeError(what.to_owned()));
            };
            let at: i64 = lua.unpack(at)?;
            if at < 1 || at > end {
                return Err(out_of_bounds("insert"));
            }
            // Not from `at + 1`, which may be more than there is.
            for index in (at..end).rev() {
                budget.step(lua, ELEMENT_STEPS)?;
                table.raw_set(index + 1, table.raw_get::<Value>(index)?)?;
            }
            table.raw_set(at, value)
        }
    }
}

fn remove(lua: &Lua, budget: &Budget, table: &Table, at: Option<i64>) -> mlua::Result<Value> {
    let length = length_of(lua, budget, table)?;
    let at = at.unwrap_or(length);
    if at != length && !(1..=length.wrapping_add(1)).contains(&at) {
        return Err(out_of_bounds("remove"));
    }
    let removed: Value = table.raw_get(at)?;
    for index in at..length {
        budget.step(lua, ELEMENT_STEPS)?;
        table.raw_set(index, table.raw_get::<Value>(index + 1)?)?;
    }
    table.raw_set(at.max(length), Value::Nil)?;
    Ok(removed)
}

type Joined = (Table, Option<LuaString>, Option<i64>, Option<i64>);

fn concat(
    lua: &Lua,
    budget: &Budget,
    (table, between, from, to): Joined,
) -> mlua::Result<LuaString> {
    let to = match to {
        Some(to) => to,
        None => length_of(lua, budget, &table)?,
    };
    let from = from.unwrap_or(1);
    let mut out = Held::new(budget);
    for index in from..=to {
        budget.step(lua, ELEMENT_STEPS)?;
        let value: Value = table.raw_get(index)?;
        let of = crate::value::type_name(&value);
        let text = match value {
            Value::String(_) | Value::Integer(_) | Value::Number(_) => lua.coerce_string(value)?,
            _ => None,
        };
        let Some(text) = text else {
            let what = format!("invalid value (a {of}) at index {index} in table for 'concat'");
            return Err(mlua::Error::RuntimeError(what));
        };
        if index > from
            && let Some(between) = &between
        {
            out.add(&between.as_bytes())?;
        }
        out.add(&text.as_bytes())?;
    }
    lua.create_string(out.bytes())
}

/// Sorts a table by parts that are small and big against one of its elements. An order that
/// contradicts itself is noticed where it leads out of a part.
struct Sorter<'a> {
    lua: &'a Lua,
    budget: &'a Budget,
    table: Table,
    by: Function,
}

impl Sorter<'_> {
    fn get(&self, index: i64) -> mlua::Result<Value> {
        self.table.raw_get(index)
    }

    fn is_less(&self, one: &Value, other: &Value) -> mlua::Result<bool> {
        self.budget.step(self.lua, ELEMENT_STEPS)?;
        self.budget.called(self.lua, self.by.call((one, other)))
    }

    fn swap(&self, one: i64, other: i64) -> mlua::Result<()> {
        let (at_one, at_other) = (self.get(one)?, self.get(other)?);
        self.table.raw_set(one, at_other)?;
        self.table.raw_set(other, at_one)
    }

    /// Puts two elements into order.
    fn order(&self, low: i64, high: i64) -> mlua::Result<()> {
        match self.is_less(&self.get(high)?, &self.get(low)?)? {
            true => self.swap(low, high),
            false => Ok(()),
        }
    }

    fn sort(&self, mut low: i64, mut high: i64) -> mlua::Result<()> {
        // The longer part is left to the loop, so that few calls wait for others.
        while low < high {
            self.order(low, high)?;
            let middle = low + (high - low) / 2;
            self.order(low, middle)?;
            self.order(middle, high)?;
            if high - low < 3 {
                return Ok(());
            }
            let split = self.partition(low, middle, high)?;
            if split - low < high - split {
                self.sort(low, split - 1)?;
                low = split + 1;
            } else {
                self.sort(split + 1, high)?;
                high = split - 1;
            }
        }
        Ok(())
    }

    /// Moves what is smaller than the element at `middle` before it, and what is bigger behind it;
    /// returns where it is then. The first and the last one are in order with it.
    fn partition(&self, low: i64, middle: i64, high: i64) -> mlua::Result<i64> {
        let invalid = || {
            let what = "invalid order function for sorting";
            mlua::Error::RuntimeError(what.to_owned())
        };
        let pivot = self.get(middle)?;
        self.swap(middle, high - 1)?;
        let (mut up, mut down) = (low, high - 1);
        loop {
            up += 1;
            while self.is_less(&self.get(up)?, &pivot)? {
                if up >= high {
                    return Err(invalid());
                }
                up += 1;
            }
            down -= 1;
            while self.is_less(&pivot, &self.get(down)?)? {
                if down <= low {
                    return Err(invalid());
                }
                down -= 1;
            }
            if down < up {
                break;
            }
            self.swap(up, down)?;
        }
        self.swap(high - 1, up)?;
        Ok(up)
    }
}
