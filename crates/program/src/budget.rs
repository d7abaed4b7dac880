//! How much a script may do: instructions, work of the library, time, memory outside of Lua's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use mlua::{HookTriggers, Lua, VmState};

use crate::error::ProgramError;
use crate::host::Host;
use crate::outcome;
use crate::script::Program;

/// Instructions after which limits are looked at (`zfs_lua_check_instrlimit_interval`).
const INTERVAL: u32 = 100;
/// Steps of the library (a comparison, a byte that a pattern looks at) that count as an
/// instruction.
const STEPS_PER_INSTRUCTION: u64 = 16;
/// The longest that a script may compute and look, since the pool waits for it: an instruction that
/// compares or joins long strings takes milliseconds, and what it looks at may have to be read. A
/// hundred million common instructions take a few seconds. It is looked at between instructions:
/// who runs scripts leaves those alone whose next instruction does not end.
pub const COMPUTING_MAX: Duration = Duration::from_secs(60);
/// Steps that a coroutine costs who makes it: Lua counts the instructions of each by itself, and a
/// short one ends before they are looked at.
const COROUTINE_STEPS: u64 = STEPS_PER_INSTRUCTION * INTERVAL as u64;
/// Changes that a script may make: all of them are written with one transaction group.
const CHANGES_MAX: u32 = 10_000;
/// How long they may take together before the next one is refused: the pool waits for them.
const CHANGING_MAX: Duration = Duration::from_secs(60);
/// Errors that scripts go on after, and their bytes, after which Lua frees those that nobody has
/// any more: each has its text outside of Lua's memory.
const ERRORS_MAX: u32 = 256;
const ERROR_BYTES_MAX: usize = 1 << 20;
/// Longest text that tells where a script was stopped, in bytes.
const TOLD_MAX_BYTES: usize = 16 << 10;

/// Why a script was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    TimedOut,
    Cancelled,
}

/// What a script has used, and may.
pub(crate) struct Budget {
    host: Rc<dyn Host>,
    instructions_max: u64,
    instructions: Cell<u64>,
    steps: Cell<u64>,
    memory_bytes_max: u64,
    is_read_only: bool,
    /// Changes made.
    changes: Cell<u32>,
    /// How long they took.
    changing: Cell<Duration>,
    /// Since when it computes, without the time that changes took.
    since: Cell<Instant>,
    /// Bytes that the library has put together and not given to Lua yet.
    held_bytes: Cell<u64>,
    /// Errors that Lua may still have, and their bytes.
    errors: Cell<u32>,
    error_bytes: Cell<usize>,
    stop: Cell<Option<Stop>>,
    /// A text that cannot be told by an error, as who caught it goes on.
    told: RefCell<String>,
}

impl Budget {
    pub(crate) fn new(program: &Program, host: Rc<dyn Host>) -> Budget {
        Budget {
            host,
            instructions_max: program.instructions_max,
            instructions: Cell::new(0),
            steps: Cell::new(0),
            memory_bytes_max: program.memory_bytes_max,
            is_read_only: program.is_read_only,
            changes: Cell::new(0),
            changing: Cell::new(Duration::ZERO),
            since: Cell::new(Instant::now()),
            held_bytes: Cell::new(0),
            errors: Cell::new(0),
            error_bytes: Cell::new(0),
            stop: Cell::new(None),
            told: RefCell::default(),
        }
    }

    /// Has Lua count instructions, in this thread and in those that the script makes.
    pub(crate) fn watch(self: &Rc<Self>, lua: &Lua) -> mlua::Result<()> {
        let budget = self.clone();
        let triggers = HookTriggers::new().every_nth_instruction(INTERVAL);
        self.since.set(Instant::now());
        lua.set_global_hook(triggers, move |lua, _| {
            budget.add_instructions(u64::from(INTERVAL));
            budget.check(lua)?;
            Ok(VmState::Continue)
        })
    }

    fn add_instructions(&self, count: u64) {
        let sum = self.instructions.get().saturating_add(count);
        self.instructions.set(sum);
    }

    /// Fails once the script has to stop; from then on always, since an error of a coroutine may be
    /// caught.
    pub(crate) fn check(&self, lua: &Lua) -> mlua::Result<()> {
        let stop = self.stop.get().or_else(|| self.reached());
        self.stop.set(stop);
        let Some(stop) = stop else {
            return Ok(());
        };
        let what = match stop {
            Stop::TimedOut => "Channel program timed out.",
            Stop::Cancelled => "Channel program was canceled.",
        };
        let mut trace = lua.traceback(Some(what), 0)?.to_string_lossy();
        trace.truncate(trace.floor_char_boundary(TOLD_MAX_BYTES));
        let mut told = self.told.borrow_mut();
        if told.is_empty() {
            told.clone_from(&trace);
        }
        Err(mlua::Error::RuntimeError(trace))
    }

    fn reached(&self) -> Option<Stop> {
        if self.host.is_cancelled() {
            return Some(Stop::Cancelled);
        }
        let is_over = self.instructions.get() > self.instructions_max;
        let is_late = self.since.get().elapsed() > COMPUTING_MAX;
        (is_over || is_late).then_some(Stop::TimedOut)
    }

    /// The library does so many steps.
    ///
    /// # Errors
    /// That the script has to stop.
    pub(crate) fn step(&self, lua: &Lua, steps: u64) -> mlua::Result<()> {
        let sum = self.steps.get().saturating_add(steps);
        let interval = STEPS_PER_INSTRUCTION * u64::from(INTERVAL);
        if sum < interval {
            self.steps.set(sum);
            return Ok(());
        }
        self.steps.set(0);
        self.add_instructions(sum / STEPS_PER_INSTRUCTION);
        self.check(lua)
    }

    /// The script makes a coroutine.
    ///
    /// # Errors
    /// That the script has to stop.
    pub(crate) fn coroutine(&self, lua: &Lua) -> mlua::Result<()> {
        self.step(lua, COROUTINE_STEPS)
    }

    /// The script has waited so long for a change, which is not its own time.
    pub(crate) fn waited(&self, time: Duration) {
        self.since.set(self.since.get() + time);
        self.changing.set(self.changing.get().saturating_add(time));
    }

    /// What came of a function of the script that the library called. Of an error the words stay:
    /// who called adds where that was, and so does who called that one, all of it outside of Lua's
    /// memory.
    pub(crate) fn called<T>(&self, lua: &Lua, done: mlua::Result<T>) -> mlua::Result<T> {
        done.or_else(|error| {
            self.add_error(lua, &error)?;
            Err(outcome::shortened(&error))
        })
    }

    /// An error has ended its way in Lua.
    ///
    /// # Errors
    /// Of Lua's, when it frees what nobody has any more.
    pub(crate) fn add_error(&self, lua: &Lua, error: &mlua::Error) -> mlua::Result<()> {
        let count = self.errors.get() + 1;
        let bytes = self
            .error_bytes
            .get()
            .saturating_add(outcome::bytes_of(error));
        let is_full = count >= ERRORS_MAX || bytes >= ERROR_BYTES_MAX;
        self.errors.set(if is_full { 0 } else { count });
        self.error_bytes.set(if is_full { 0 } else { bytes });
        match is_full {
            true => lua.gc_collect(),
            false => Ok(()),
        }
    }

    /// Whether the script may make another change.
    ///
    /// # Errors
    /// That it has made as many as it may, or that they took too long.
    pub(crate) fn allow_change(&self) -> mlua::Result<()> {
        let what = if self.changes.get() >= CHANGES_MAX {
            format!("a channel program makes {CHANGES_MAX} changes at most")
        } else if self.changing.get() > CHANGING_MAX {
            let seconds = CHANGING_MAX.as_secs();
            format!("the changes of this channel program took more than {seconds} seconds")
        } else {
            return Ok(());
        };
        let what = format!("{what}; run another one for the rest");
        Err(mlua::Error::RuntimeError(what))
    }

    /// The script has made a change.
    pub(crate) fn add_change(&self) {
        self.changes.set(self.changes.get().saturating_add(1));
    }

    /// Whether the script may change nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// The script cannot go on: the pool is left.
    pub(crate) fn cancel(&self) {
        self.stop.set(Some(Stop::Cancelled));
    }

    /// What a script fails with that was stopped, and ended with this text.
    pub(crate) fn stopped_with(&self, text: &str) -> Option<ProgramError> {
        let text = text.to_owned();
        Some(match self.stop.get()? {
            Stop::TimedOut => ProgramError::TimedOut {
                text,
                instructions: self.instructions.get(),
            },
            Stop::Cancelled => ProgramError::Cancelled(text),
        })
    }

    /// The same where it ended as if it had not been stopped, right after that was caught.
    pub(crate) fn failure(&self) -> Option<ProgramError> {
        let told = self.told.borrow();
        self.stopped_with(&told)
    }
}

/// A text that is put together outside of Lua: all that are at the same time have the memory that
/// the script may take.
pub(crate) struct Held<'a> {
    budget: &'a Budget,
    bytes: Vec<u8>,
    /// How many are counted, of which some may come yet.
    counted_bytes: u64,
}

impl<'a> Held<'a> {
    pub(crate) fn new(budget: &'a Budget) -> Held<'a> {
        Held {
            budget,
            bytes: Vec::new(),
            counted_bytes: 0,
        }
    }

    /// Makes room for a text of this length, in all.
    ///
    /// # Errors
    /// That there is none.
    pub(crate) fn reserve(&mut self, length: usize) -> mlua::Result<()> {
        let more = (length as u64).saturating_sub(self.counted_bytes);
        let sum = self.budget.held_bytes.get().saturating_add(more);
        if sum > self.budget.memory_bytes_max {
            return Err(mlua::Error::MemoryError("not enough memory".to_owned()));
        }
        self.budget.held_bytes.set(sum);
        self.counted_bytes += more;
        Ok(())
    }

    /// Appends a part.
    ///
    /// # Errors
    /// That there is no room for it.
    pub(crate) fn add(&mut self, part: &[u8]) -> mlua::Result<()> {
        self.reserve(self.bytes.len().saturating_add(part.len()))?;
        self.bytes.extend_from_slice(part);
        Ok(())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let held = self.budget.held_bytes.get();
        let rest = held.saturating_sub(self.counted_bytes);
        self.budget.held_bytes.set(rest);
    }
}
