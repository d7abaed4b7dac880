//! Who asks, to whom permissions are delegated or not.

/// A user with all groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u64,
    /// Groups.
    pub gids: Vec<u64>,
}
