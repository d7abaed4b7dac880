//! Channel programs (`zfs program`): Lua scripts that look at a pool and change it, in a sandbox.
//!
//! This crate runs a script and knows no pool. What the script asks for goes to a [`Host`] as a
//! [`Request`], one after the other, on the thread that called [`run`]; the host answers out of the
//! transaction group that it holds. A script blocks that thread for as long as it runs, so it gets
//! a thread of its own.
//!
//! | Module | What it is |
//! |---|---|
//! | `syntax` | from the Lua of OpenZFS, whose numbers are whole, to the Lua that runs here |
//! | `sandbox` | the globals of a script |
//! | `strings`, `pattern`, `tables` | functions of Lua's library whose work has to be bounded |
//! | `calls`, `arguments` | the functions `zfs.*` |
//! | `script`, `budget` | a script, how much it may do, and what it has done |
//! | `value` | what goes into a script and comes out of it |
//! | `error`, `outcome` | how scripts fail, and what is said of it |
//! | `errnos` | the error codes that scripts know by name |
//!
//! # What a script cannot do
//! - Reach files, the network, the system, the time, or anything else that the host does not give
//!   it: only the library's parts that compute are loaded.
//! - Run on. Instructions are counted by Lua, and so is the work of those functions of the library
//!   that loop without running instructions: patterns, `table.sort`, `string.rep` and others are
//!   written anew here. Finalizers, which run uncounted, are refused (`setmetatable`). Besides, a
//!   script has a bound on the time that it computes, since a single instruction can be long; what
//!   it asks for and is refused is in that. Nothing stops an instruction in its middle, and one
//!   that collects garbage or fills a table can take hours where a script means it to: who answers
//!   scripts waits no longer than [`COMPUTING_MAX`] and a little more.
//! - Catch being stopped: there is no `pcall`. A coroutine's error is caught by who resumes it, and
//!   that one is stopped a hundred instructions later.
//! - Take memory: Lua's allocator has the script's limit, and what is put together outside of it
//!   (patterns, the value that is returned) is bounded by the same figure. Errors have their words
//!   outside of it: few at a time, and of those that go through many functions only the words.
//!
//! OpenZFS has Lua 5.2 with 64-bit integers for numbers (module/lua, `LUA_NUMBER`). Lua 5.3 is what
//! is nearest to that among those that are kept. What is left of the difference is in
//! docs/commands.md.

#![forbid(unsafe_code)]

mod arguments;
mod budget;
mod calls;
mod errnos;
mod error;
mod host;
mod outcome;
mod pattern;
mod sandbox;
mod script;
mod strings;
mod syntax;
mod tables;
#[cfg(test)]
mod tests;
mod value;

use std::rc::Rc;

pub use budget::COMPUTING_MAX;
pub use error::ProgramError;
pub use host::{Answer, Change, Changed, Host, Listing, Refusal, Request};
pub use script::{INSTRUCTIONS, INSTRUCTIONS_MAX, MEMORY_BYTES, MEMORY_BYTES_MAX, Program};
pub use value::Value;

use budget::Budget;
use value::{Room, returned};

/// Runs a script to its end on this thread, and returns what it returned: `None` if nothing.
///
/// What it has changed stays changed when it fails.
///
/// # Errors
/// [`ProgramError`]: what is wrong with the script, or which limit it reached.
pub fn run(program: &Program, host: Box<dyn Host>) -> Result<Option<Value>, ProgramError> {
    ran(program, host).map_err(ProgramError::shortened)
}

fn ran(program: &Program, host: Box<dyn Host>) -> Result<Option<Value>, ProgramError> {
    program.check()?;
    let host: Rc<dyn Host> = Rc::from(host);
    let budget = Rc::new(Budget::new(program, host.clone()));
    let script = syntax::translate(&program.script).map_err(ProgramError::Script)?;
    let failed = |error| outcome::failure(&error, &budget);
    let lua = sandbox::new(&budget, &host).map_err(failed)?;
    // What the library takes is not the script's, and what making it has left is nobody's.
    lua.gc_collect().map_err(failed)?;
    let most = lua.used_memory() as u64 + program.memory_bytes_max;
    lua.set_memory_limit(most as usize).map_err(failed)?;
    let returned_values = evaluate(&lua, &script, program, &budget).map_err(failed)?;
    if let Some(failed) = budget.failure() {
        return Err(failed);
    }
    let mut returned_values = returned_values.into_iter();
    let first = returned_values.next();
    if returned_values.next().is_some() {
        let what = "Multiple return values not supported";
        return Err(ProgramError::Script(what.to_owned()));
    }
    let mut room = Room::new(program.memory_bytes_max);
    first.map(|value| returned(&value, &mut room)).transpose()
}

fn evaluate(
    lua: &mlua::Lua,
    script: &[u8],
    program: &Program,
    budget: &Rc<Budget>,
) -> mlua::Result<mlua::MultiValue> {
    let arguments = lua.create_table()?;
    arguments.raw_set(
        "argv",
        lua.create_sequence_from(program.arguments.iter().map(String::as_str))?,
    )?;
    let chunk = lua.load(script).set_name("channel program");
    let chunk = chunk
        .set_mode(mlua::chunk::ChunkMode::Text)
        .into_function()?;
    budget.watch(lua)?;
    chunk.call(arguments)
}
