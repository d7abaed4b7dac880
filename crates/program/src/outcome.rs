//! What is said of how a script failed, out of Lua's errors.

use crate::budget::Budget;
use crate::error::ProgramError;

/// What Lua ends with where no function of Lua's called the script.
const BELOW_MAIN: &str = "\n\t[C]: in ?";

/// What an error of Lua's says.
pub(crate) fn failure(error: &mlua::Error, budget: &Budget) -> ProgramError {
    if is_of_memory(error) {
        return ProgramError::Memory;
    }
    let text = text_of(error, "");
    let text = text.strip_suffix(BELOW_MAIN).unwrap_or(&text);
    // Ours have whole numbers only, and divide them with another sign than the script has.
    let text = ["n//0", "n%0", "n%%0"]
        .iter()
        .fold(text.to_owned(), |text, ours| {
            let ours = format!("attempt to perform '{ours}'");
            text.replace(&ours, "attempt to divide by zero")
        });
    budget
        .stopped_with(&text)
        .unwrap_or(ProgramError::Script(text))
}

/// Whether an error is one of memory, or comes from one.
fn is_of_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. }
        | mlua::Error::BadArgument { cause, .. }
        | mlua::Error::WithContext { cause, .. } => is_of_memory(cause),
        _ => false,
    }
}

/// The longest error that goes through a function of the library, in bytes.
const SHORT_MAX_BYTES: usize = 512;

/// An error of which only the words stay, as far as they are not long.
pub(crate) fn shortened(error: &mlua::Error) -> mlua::Error {
    if is_of_memory(error) {
        return mlua::Error::MemoryError("not enough memory".to_owned());
    }
    let mut text = caught(error);
    text.truncate(text.floor_char_boundary(SHORT_MAX_BYTES));
    mlua::Error::RuntimeError(text)
}

/// What an error has outside of Lua's memory, about.
pub(crate) fn bytes_of(error: &mlua::Error) -> usize {
    match error {
        mlua::Error::CallbackError { traceback, cause } => {
            traceback.len().saturating_add(bytes_of(cause))
        }
        mlua::Error::BadArgument { cause, .. } | mlua::Error::WithContext { cause, .. } => {
            bytes_of(cause)
        }
        mlua::Error::RuntimeError(text)
        | mlua::Error::MemoryError(text)
        | mlua::Error::GarbageCollectorError(text)
        | mlua::Error::SyntaxError { message: text, .. } => text.len(),
        _ => 0,
    }
}

/// What stands before a trace.
const TRACE: &str = "\nstack traceback:\n";
/// How places in the script are called, up to the line's number.
const PLACE: &str = "[string \"channel program\"]:";

/// The words of an error, and where it was raised: the trace that is nearest to that.
fn text_of(error: &mlua::Error, trace: &str) -> String {
    let text = match error {
        mlua::Error::CallbackError { traceback, cause } => {
            return text_of(cause, traceback);
        }
        mlua::Error::WithContext { cause, .. } => return text_of(cause, trace),
        mlua::Error::RuntimeError(text)
        | mlua::Error::GarbageCollectorError(text)
        | mlua::Error::SyntaxError { message: text, .. } => text.clone(),
        other => other.to_string(),
    };
    let text = match trace.is_empty() {
        true => without_handler(&text),
        false => text,
    };
    match trace.is_empty() || text.contains("stack traceback:") {
        true => text,
        // The words of a script's function that the library called have their place.
        false if text.starts_with(PLACE) => format!("{text}\n{trace}"),
        false => format!("{}{text}\n{trace}", place(trace)),
    }
}

/// Lua's words without the function that made the trace, which stands first in it.
fn without_handler(text: &str) -> String {
    let Some((what, trace)) = text.split_once(TRACE) else {
        return text.to_owned();
    };
    match trace.split_once('\n') {
        Some((first, rest)) if first.starts_with("\t[C]: in ") => format!("{what}{TRACE}{rest}"),
        _ => text.to_owned(),
    }
}

/// Where in the script a function was called that failed, by its trace.
fn place(trace: &str) -> &str {
    let from = trace.find(PLACE).map(|at| &trace[at..]);
    let line = from.and_then(|from| Some((from, from[PLACE.len()..].find(": ")?)));
    line.map_or("", |(from, digits)| &from[..PLACE.len() + digits + 2])
}

/// The words of an error that a script has caught, without a trace.
pub(crate) fn caught(error: &mlua::Error) -> String {
    let text = text_of(error, "");
    let end = text.find("\nstack traceback:").unwrap_or(text.len());
    text[..end].to_owned()
}
