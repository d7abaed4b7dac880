//! What can go wrong when targets are set up or the server starts.

use std::net::SocketAddr;

/// Why a target could not be added, changed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The name is not an iSCSI name.
    #[error(
        "`{iqn}` is not an iSCSI name ({problem}); use a name like iqn.2025-01.org.example:volume"
    )]
    BadName {
        /// The name as given.
        iqn: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There is such a target already.
    #[error("target {iqn} exists already; remove it first or choose another name")]
    Exists {
        /// Its name.
        iqn: String,
    },
    /// There is no such target.
    #[error("there is no target {iqn}; `millpond` lists the targets that are shared")]
    NotFound {
        /// The name asked for.
        iqn: String,
    },
    /// There is such a logical unit already.
    #[error("target {iqn} has a logical unit {lun} already; choose another number")]
    LunExists {
        /// The target's name.
        iqn: String,
        /// The number.
        lun: u16,
    },
    /// There is no such logical unit.
    #[error("target {iqn} has no logical unit {lun}; check the number")]
    LunNotFound {
        /// The target's name.
        iqn: String,
        /// The number.
        lun: u16,
    },
    /// A logical unit cannot be offered.
    #[error(
        "logical unit {lun} of target {iqn} cannot be offered ({problem}); fix the volume or \
         choose another number"
    )]
    BadLun {
        /// The target's name.
        iqn: String,
        /// The number.
        lun: u16,
        /// What is wrong.
        problem: &'static str,
    },
    /// An option is not usable.
    #[error("option {option} of target {iqn} is not usable ({problem}); correct it and try again")]
    BadOption {
        /// The target's name.
        iqn: String,
        /// The option.
        option: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address is taken.
    #[error(
        "cannot listen on {address}: another program has the port; stop it (`ss -ltnp` names it) \
         or choose another port"
    )]
    AddressInUse {
        /// The address asked for.
        address: SocketAddr,
    },
    /// We may not.
    #[error(
        "cannot listen on {address}: not allowed; use a port above 1023 or run with the capability \
         CAP_NET_BIND_SERVICE"
    )]
    NotAllowed {
        /// The address asked for.
        address: SocketAddr,
    },
    /// This machine has no such address.
    #[error(
        "cannot listen on {address}: this machine has no such address; use one that `ip address` \
         lists, or 0.0.0.0"
    )]
    NoSuchAddress {
        /// The address asked for.
        address: SocketAddr,
    },
    /// Something else.
    #[error("cannot listen on {address}: {source}; check the address and the system's limits")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}
