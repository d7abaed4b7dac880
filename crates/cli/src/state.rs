//! The state directory: where a server keeps what it knows, and where its socket is.

use std::path::PathBuf;

/// State directory of root's server.
pub const OF_ROOT: &str = "/var/lib/millpond";

/// `MILLPOND_STATE`, or `/var/lib/millpond` for root, or the XDG state directory; and where root's
/// server is found by those who have none.
pub fn directory() -> (PathBuf, Option<PathBuf>) {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(state) = set("MILLPOND_STATE") {
        return (std::path::absolute(&state).unwrap_or(state), None);
    }
    if rustix::process::geteuid().is_root() {
        return (PathBuf::from(OF_ROOT), None);
    }
    let of_user = set("XDG_STATE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(|| PathBuf::from("."))
        .join("millpond");
    (of_user, Some(PathBuf::from(OF_ROOT)))
}
