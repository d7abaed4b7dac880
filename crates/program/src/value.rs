//! Values that go into a script and come out of it.

use std::collections::HashSet;

use mlua::{IntoLua, Lua};

use crate::error::ProgramError;

/// Tables in tables, and so on, that may be returned (`ZCP_NVLIST_MAX_DEPTH`).
const DEPTH_MAX: usize = 20;
/// Bytes that an entry takes beside its name and text.
const ENTRY_BYTES: u64 = 32;

/// A value outside of Lua, as OpenZFS's nvlists hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `nil`.
    Nil,
    /// A truth value.
    Boolean(bool),
    /// A number.
    Integer(i64),
    /// A text; what is not UTF-8 in it is replaced when it is returned.
    Text(String),
    /// A table whose keys are 1, 2 and so on, for scripts.
    List(Vec<Value>),
    /// A table with names for keys.
    Table(Vec<(String, Value)>),
}

impl Value {
    /// A number of a pool. Scripts have signed ones: what is too big wraps around, as with OpenZFS.
    pub fn number(number: u64) -> Value {
        Value::Integer(number.cast_signed())
    }
}

impl IntoLua for Value {
    fn into_lua(self, lua: &Lua) -> mlua::Result<mlua::Value> {
        match self {
            Value::Nil => Ok(mlua::Value::Nil),
            Value::Boolean(boolean) => boolean.into_lua(lua),
            Value::Integer(number) => number.into_lua(lua),
            Value::Text(text) => text.into_lua(lua),
            Value::List(values) => lua.create_sequence_from(values)?.into_lua(lua),
            Value::Table(entries) => lua.create_table_from(entries)?.into_lua(lua),
        }
    }
}

/// Bytes that are left for the value that is returned. A table can be in others many times, and
/// comes out once for each.
pub(crate) struct Room {
    bytes: u64,
}

impl Room {
    pub(crate) fn new(bytes: u64) -> Room {
        Room { bytes }
    }

    fn take(&mut self, text_bytes: usize) -> Result<(), ProgramError> {
        let wanted = ENTRY_BYTES + text_bytes as u64;
        self.bytes = self
            .bytes
            .checked_sub(wanted)
            .ok_or(ProgramError::TooLarge)?;
        Ok(())
    }
}

/// What a script returns, as a value (`zcp_lua_to_nvlist_impl`).
///
/// # Errors
/// [`ProgramError::Script`] where it is nothing that can be returned, [`ProgramError::TooLarge`].
pub(crate) fn returned(value: &mlua::Value, room: &mut Room) -> Result<Value, ProgramError> {
    convert(value, "return", 0, room)
}

fn convert(
    value: &mlua::Value,
    key: &str,
    depth: usize,
    room: &mut Room,
) -> Result<Value, ProgramError> {
    match value {
        mlua::Value::Nil => room.take(0).map(|()| Value::Nil),
        mlua::Value::Boolean(boolean) => room.take(0).map(|()| Value::Boolean(*boolean)),
        mlua::Value::Integer(number) => room.take(0).map(|()| Value::Integer(*number)),
        mlua::Value::Number(number) => match whole(*number) {
            Some(number) => room.take(0).map(|()| Value::Integer(number)),
            None => Err(ProgramError::Script(format!(
                "Invalid value {number} for key '{key}': not a whole number"
            ))),
        },
        mlua::Value::String(text) => {
            room.take(text.as_bytes().len())?;
            Ok(Value::Text(text.to_string_lossy()))
        }
        mlua::Value::Table(table) => entries(table, depth, room),
        other => Err(ProgramError::Script(format!(
            "Invalid value type '{}' for key '{key}'",
            type_name(other)
        ))),
    }
}

fn entries(table: &mlua::Table, depth: usize, room: &mut Room) -> Result<Value, ProgramError> {
    room.take(0)?;
    let (mut found, mut names) = (Vec::new(), HashSet::new());
    for entry in table.pairs::<mlua::Value, mlua::Value>() {
        let (key, value) = entry.map_err(|error| ProgramError::Script(error.to_string()))?;
        let name = match &key {
            mlua::Value::String(text) => text.to_string_lossy(),
            mlua::Value::Boolean(boolean) => boolean.to_string(),
            mlua::Value::Integer(number) => number.to_string(),
            mlua::Value::Number(number) if whole(*number).is_some() => {
                whole(*number).unwrap_or_default().to_string()
            }
            other => {
                return Err(ProgramError::Script(format!(
                    "Invalid key type '{}' in table",
                    type_name(other)
                )));
            }
        };
        if !names.insert(name.clone()) {
            let what = format!("Collision of key '{name}' in table");
            return Err(ProgramError::Script(what));
        }
        if depth >= DEPTH_MAX {
            let what = format!("Maximum table depth ({DEPTH_MAX}) exceeded for table");
            return Err(ProgramError::Script(what));
        }
        // Twice: here, and among the names of this table.
        room.take(2 * name.len())?;
        let value = convert(&value, &name, depth + 1, room)?;
        found.push((name, value));
    }
    Ok(Value::Table(found))
}

/// A number without a part behind the point, as far as 64 bits hold it.
pub(crate) fn whole(number: f64) -> Option<i64> {
    let is_within = number >= -(2f64.powi(63)) && number < 2f64.powi(63);
    (number.fract() == 0.0 && is_within).then_some(number as i64)
}

/// The type of a value, in Lua's words.
pub(crate) fn type_name(value: &mlua::Value) -> &'static str {
    match value {
        mlua::Value::Integer(_) | mlua::Value::Number(_) => "number",
        mlua::Value::LightUserData(_) | mlua::Value::Error(_) | mlua::Value::Other(_) => "userdata",
        other => other.type_name(),
    }
}
