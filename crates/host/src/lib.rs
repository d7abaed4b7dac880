//! What the daemon has of its host, and leaves there: the state directory with its lock and its
//! tables, the service manager, the names of local users.
//!
//! Nothing here knows of pools or requests. [`State`] is the state directory, held by one process
//! at a time; [`is_stopped`] and [`stay_stopped`] tell commands whether they may start a server for
//! it. A [`table_file::TableFile`] is a table that is read at the start and replaced whole with
//! each change. [`supervisor`] speaks with the service manager, [`accounts`] reads the names of
//! users and groups, [`making`] makes some, [`memory_bytes`] tells how much memory the process may
//! have, [`MemoryPressure`] how short it is, and [`ResidentMemory`] how much the process has.

#![forbid(unsafe_code)]

pub mod accounts;
mod directory;
pub mod making;
mod memory;
mod pressure;
mod resident;
mod stopped;
pub mod supervisor;
pub mod table_file;

pub use directory::{State, StateError};
pub use memory::memory_bytes;
pub use pressure::MemoryPressure;
pub use resident::ResidentMemory;
pub use stopped::{is_stopped, stay_stopped};
