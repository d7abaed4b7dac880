//! Arguments of the functions `zfs.*` (`zcp_parse_args`, module/zfs/zcp.c): in parentheses by
//! place, or in one table by place and by name.

use mlua::{MultiValue, Table, Value};

use crate::value::type_name;

/// How much of what is wrong is said, in bytes.
const WHAT_MAX_BYTES: usize = 256;

/// An argument that a function takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    /// What messages call it; in a table the name of one that is optional.
    pub name: &'static str,
    /// Its type, in Lua's words.
    pub kind: &'static str,
}

/// A text.
pub(crate) const fn text(name: &'static str) -> Parameter {
    Parameter {
        name,
        kind: "string",
    }
}

/// What a function takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signature {
    pub function: &'static str,
    /// Needed, by place.
    pub needed: &'static [Parameter],
    /// Optional, by name.
    pub optional: &'static [Parameter],
}

impl Signature {
    /// The needed arguments, and behind them the optional ones, or `nil` for each that is not
    /// there.
    pub(crate) fn parse(&self, given: MultiValue) -> mlua::Result<Vec<Value>> {
        let given = given.into_vec();
        match given.as_slice() {
            [Value::Table(table)] => self.parse_table(table),
            _ => self.parse_places(given),
        }
    }

    fn parse_places(&self, given: Vec<Value>) -> mlua::Result<Vec<Value>> {
        for (at, parameter) in self.needed.iter().enumerate() {
            match given.get(at) {
                None => return Err(self.error("too few arguments")),
                Some(value) => self.check(at, parameter, value)?,
            }
        }
        if given.len() > self.needed.len() {
            return Err(self.error("too many positional arguments"));
        }
        let mut parsed = given;
        parsed.resize(self.needed.len() + self.optional.len(), Value::Nil);
        Ok(parsed)
    }

    fn parse_table(&self, table: &Table) -> mlua::Result<Vec<Value>> {
        let mut parsed = Vec::new();
        for (at, parameter) in self.needed.iter().enumerate() {
            let value: Value = table.raw_get(at + 1)?;
            if value.is_nil() {
                return Err(self.error("too few arguments"));
            }
            self.check(at, parameter, &value)?;
            parsed.push(value);
        }
        for parameter in self.optional {
            let value: Value = table.raw_get(parameter.name)?;
            if !value.is_nil() && type_name(&value) != parameter.kind {
                return Err(self.error(&format!(
                    "kwarg '{}' wrong type (is '{}', expected '{}')",
                    parameter.name,
                    type_name(&value),
                    parameter.kind
                )));
            }
            parsed.push(value);
        }
        self.check_rest(table)?;
        Ok(parsed)
    }

    /// Refuses what is in a table and is no argument.
    fn check_rest(&self, table: &Table) -> mlua::Result<()> {
        for entry in table.pairs::<Value, Value>() {
            let (key, _) = entry?;
            match key {
                Value::Integer(place) => {
                    let known = 1..=self.needed.len() as i64;
                    if !known.contains(&place) {
                        return Err(self.error("too many positional arguments"));
                    }
                }
                Value::String(name) => {
                    let name = name.to_string_lossy();
                    if !self.optional.iter().any(|known| known.name == name) {
                        return Err(self.error(&format!("invalid kwarg '{name}'")));
                    }
                }
                _ => return Err(self.error("kwarg keys must be strings")),
            }
        }
        Ok(())
    }

    fn check(&self, at: usize, parameter: &Parameter, value: &Value) -> mlua::Result<()> {
        match type_name(value) == parameter.kind {
            true => Ok(()),
            false => Err(self.error(&format!(
                "arg {} wrong type (is '{}', expected '{}')",
                at + 1,
                type_name(value),
                parameter.kind
            ))),
        }
    }

    /// What is wrong, and how the function is called.
    fn error(&self, what: &str) -> mlua::Error {
        let needed = self.needed.iter();
        let needed = needed.map(|one| format!("<{}({})>", one.name, one.kind));
        let optional = self.optional.iter();
        let optional = optional.map(|one| format!("{}=({})", one.name, one.kind));
        let all: Vec<String> = needed.chain(optional).collect();
        let usage = format!("{}{{{}}}", self.function, all.join(", "));
        // A name that is none may be long.
        let what = &what[..what.floor_char_boundary(WHAT_MAX_BYTES)];
        mlua::Error::RuntimeError(format!("{what}: {usage}"))
    }
}
