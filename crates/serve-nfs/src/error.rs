//! What can go wrong when the server starts.

use std::net::SocketAddr;

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Somebody else has the address.
    #[error(
        "NFS cannot listen on {address}: another program does; stop that one (such as the kernel's \
         nfs-server), or choose another address with --nfs"
    )]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The port is one for root.
    #[error("NFS may not listen on {address}; run as root, or choose a port above 1023")]
    NotAllowed {
        /// The address.
        address: SocketAddr,
    },
    /// The machine has no such address.
    #[error("NFS cannot listen on {address}: this machine has no such address; choose another one")]
    NoSuchAddress {
        /// The address.
        address: SocketAddr,
    },
    /// Something else.
    #[error("NFS cannot listen on {address}: {source}; choose another address with --nfs")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl ServerError {
    pub(crate) fn bind(address: SocketAddr, source: std::io::Error) -> Self {
        use std::io::ErrorKind;
        match source.kind() {
            ErrorKind::AddrInUse => Self::AddressInUse { address },
            ErrorKind::PermissionDenied => Self::NotAllowed { address },
            ErrorKind::AddrNotAvailable => Self::NoSuchAddress { address },
            _ => Self::Bind { address, source },
        }
    }
}
