//! Send streams (`zfs send`, `zfs receive`): what a snapshot holds, or what differs between two, as
//! a sequence of records that another pool can make the same snapshot of.
//!
//! | Module | ZFS's words | What it is |
//! |---|---|---|
//! | [`StreamReader`] | `receive_read_record` | records and their payloads, with their checksums verified |
//! | [`receive`] | `dmu_recv_stream` | writing what records say into a dataset |
//! | [`heal`] | `do_corrective_recv` | putting damaged blocks of a snapshot right with what records say |
//! | [`send`] | `dmu_send_impl` | a snapshot, or what differs between two, as records |
//! | [`Package`] | `send_iterate_fs` | what comes before several streams |
//!
//! Layouts are `format::stream`; which dataset contents go to, and how they become a snapshot, is
//! [`dataset::Receives`].
//!
//! A stream is not trusted: whatever is in it, the worst that comes of it is an error and a target
//! as it was.

#![forbid(unsafe_code)]

mod description;
mod error;
mod events;
mod heal;
mod load;
mod out;
mod overlay;
mod package;
mod progress;
mod reader;
mod receive;
mod send;
mod writer;

pub use description::{Description, Room};
pub use error::StreamError;
pub use heal::{Healed, heal};
pub use package::{Naming, Package, PackageDataset, received_name};
pub use progress::Progress;
pub use reader::{Piece, Start, StreamReader};
pub use receive::receive;
pub use send::{SendOptions, send, send_package, send_package_end, size};
pub use writer::Received;
