//! What all TCP servers share: listening on an address, accepting connections until the server
//! stops, and places, which keep one address from taking all connections.
//!
//! Nothing here knows a protocol. A server gives [`accept`] a function that serves one connection,
//! and holds the connection's [`Place`] for as long as it lives.

#![forbid(unsafe_code)]

mod listen;
mod places;

pub use listen::{accept, listen};
pub use places::{Full, Place, PlaceLimits, Places, origin};
