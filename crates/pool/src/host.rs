//! Who has a pool open, once that is another one.

use crate::{HostIdentity, Pool};

/// The host has another id, or name, than when the pool was opened: labels tell that from the next
/// transaction group on (`spa_get_hostid`, module/zfs/spa_misc.c). One without an id changes
/// nothing.
pub fn set_host(pool: &Pool, host: HostIdentity) {
    let core = &pool.core;
    if host.hostid == 0 || core.read_only || *core.host.lock() == host {
        return;
    }
    *core.host.lock() = host;
    core.identity.mark_dirty();
}
