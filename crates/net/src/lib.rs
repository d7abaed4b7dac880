//! What all TCP servers share: listening on an address, accepting connections until the server
//! stops, and places, which keep one address from taking all connections; memory that requests are
//! received in, so that their content is stored where it is; turns, which keep one connection from
//! having a thread for itself; looking for what a client sends next, which spares waking a thread.
//!
//! Nothing here knows a protocol. A server gives [`accept`] a function that serves one connection,
//! and holds the connection's [`Place`] for as long as it lives.

#![forbid(unsafe_code)]

mod listen;
mod looking;
mod places;
mod room;
mod turn;

pub use listen::{accept, listen};
pub use looking::Looking;
pub use places::{Full, Place, PlaceLimits, Places, origin};
pub use room::{PLACED_BYTES_MIN, place, room_for};
pub use turn::Turn;
