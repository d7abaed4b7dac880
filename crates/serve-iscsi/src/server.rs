//! The TCP layer.

use crate::{ServerError, TargetSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// The iSCSI port (RFC 7143 section 4.2.7.1).
pub const ISCSI_PORT: u16 = 3260;

/// A listening iSCSI server.
pub struct Server {}

impl Server {
    /// Listens on `address` and serves `targets` until [`shutdown`](Self::shutdown).
    pub async fn bind(
        _address: SocketAddr,
        _targets: Arc<TargetSet>,
    ) -> Result<Server, ServerError> {
        todo!()
    }

    /// The address that is listened on (with the real port where 0 was asked for).
    pub fn local_address(&self) -> SocketAddr {
        todo!()
    }

    /// Stops listening, asks all sessions to log out, waits for their requests in flight, closes.
    pub async fn shutdown(self) {
        todo!()
    }
}
