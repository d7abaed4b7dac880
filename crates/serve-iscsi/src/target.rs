//! Targets: names, logical units, who may log in, and the sessions that have.

use crate::lun::LogicalUnit;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest iSCSI name (RFC 7143 section 4.2.7.2), in bytes.
pub const ISCSI_NAME_BYTES_MAX: usize = 223;
/// Highest logical unit number that a target takes (flat space addressing, SAM-5 4.7.4).
pub const LUN_MAX: u16 = 16383;

/// A name and a secret for CHAP (RFC 1994, RFC 7143 section 12.1.3).
#[derive(Clone, PartialEq, Eq)]
pub struct ChapCredentials {
    /// The CHAP name.
    pub user: String,
    /// The secret; RFC 7143 asks for at least 96 random bits (12 bytes).
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for ChapCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChapCredentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// How initiators prove who they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Authentication {
    /// They need not (`AuthMethod=None`).
    #[default]
    None,
    /// They must answer a CHAP challenge.
    Chap {
        /// What the initiator must know.
        initiator: ChapCredentials,
        /// What we answer with when the initiator challenges us; `None` refuses mutual CHAP.
        target: Option<ChapCredentials>,
    },
}

/// What may be set for a target besides its units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetOptions {
    /// Human-readable name (`TargetAlias`), at most 255 bytes.
    pub alias: Option<String>,
    /// How initiators prove who they are.
    pub authentication: Authentication,
    /// Initiator names that may log in; a `*` at the end matches any rest. Empty: all may.
    pub allowed_initiators: Vec<String>,
    /// Refuse all writes, whatever the units say.
    pub is_read_only: bool,
}

/// A target: a name and its logical units.
#[derive(Clone)]
pub struct Target {
    /// iSCSI qualified name (`iqn.`, `eui.` or `naa.`).
    pub iqn: String,
    /// Units by logical unit number.
    pub luns: BTreeMap<u16, Arc<dyn LogicalUnit>>,
    /// The rest.
    pub options: TargetOptions,
}

/// A session, for people to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The target; `None` for a discovery session.
    pub iqn: Option<String>,
    /// The initiator's name.
    pub initiator: String,
    /// Where it comes from.
    pub peer: std::net::SocketAddr,
    /// Target session identifying handle.
    pub tsih: u16,
}

/// All targets of a server, and the sessions on them; shared by servers and whoever configures.
#[derive(Default)]
pub struct TargetSet {}

impl TargetSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// How initiators prove who they are in discovery sessions (default: they need not).
    pub fn set_discovery_authentication(&self, _authentication: Authentication) {
        todo!()
    }

    /// Adds a target; initiators can log in from now on.
    pub fn add(&self, _target: Target) -> Result<(), crate::TargetError> {
        todo!()
    }

    /// Removes a target: asks its sessions to log out, closes those that do not, and returns when
    /// no request is in flight and no unit of it is held any more.
    pub async fn remove(&self, _iqn: &str) -> Result<(), crate::TargetError> {
        todo!()
    }

    /// Adds a logical unit to a target; sessions get a unit attention (reported LUNs changed).
    pub fn add_lun(
        &self,
        _iqn: &str,
        _lun: u16,
        _unit: Arc<dyn LogicalUnit>,
    ) -> Result<(), crate::TargetError> {
        todo!()
    }

    /// Removes a logical unit; returns when no request to it is in flight any more.
    pub async fn remove_lun(&self, _iqn: &str, _lun: u16) -> Result<(), crate::TargetError> {
        todo!()
    }

    /// Replaces a target's options; they hold for logins from now on, read-only at once.
    pub fn set_options(
        &self,
        _iqn: &str,
        _options: TargetOptions,
    ) -> Result<(), crate::TargetError> {
        todo!()
    }

    /// Names of all targets, in order.
    pub fn names(&self) -> Vec<String> {
        todo!()
    }

    /// All sessions.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        todo!()
    }
}
