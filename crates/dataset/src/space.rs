//! How much space there is for whom: reservations, quotas, and the slop space that is kept back
//! (`dsl_dir_space_available`, `dsl_dir_tempreserve_impl`, module/zfs/dsl_dir.c).
//!
//! A transaction is granted what it may take at worst ([`Cost`]); when it ends, what it did not add
//! to its txg is given back ([`Grant::keep`], `dsl_dir_tempreserve_clear`), and the rest counts
//! until the txg is on disk. What is counted must cover what the txg takes: one that finds no room
//! stops the pool.

use std::sync::Arc;

use format::{DNODE_BLOCK_BYTES, Txg, UsedBy};
use object::WriteProperties;
use zio::{Added, Allocator};

use crate::dsl::DslPool;
use crate::state::{Dir, Ds, Space, accounted_delta, slot};
use crate::task::SpaceCheck;
use crate::{DatasetError, DirtyEstimate};

/// Answer to a writer that asks for space.
pub(crate) enum Room {
    /// Granted, and counted: from the writer's directory up.
    Granted(Grant),
    /// Maybe after the txgs that are under way are on disk; what is to be told if not.
    Later(DatasetError),
}

/// What writing into a dataset costs on disk, at worst, in bytes as users see them: every copy, and
/// the parity and padding of small blocks beyond what is counted off for big ones. Without it, what
/// is under way could outgrow the space that is kept back for the pool's own writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    copies: u64,
    /// Size of the blocks of data, and what one copy of such a block takes.
    block_bytes: u64,
    block_stored_bytes: u64,
    /// What one copy of [`METADATA_BLOCK_BYTES`] takes.
    metadata_stored_bytes: u64,
    /// What data takes cannot be told from its bytes: all that was granted for it stays counted.
    is_data_unknown: bool,
}

/// Size of most blocks of metadata.
const METADATA_BLOCK_BYTES: u64 = DNODE_BLOCK_BYTES as u64;
/// Most copies that a block can have.
const COPIES_MAX: u64 = 3;

impl Cost {
    /// Of a transaction in an object set with these properties.
    pub(crate) fn new(
        allocator: &Allocator,
        properties: &WriteProperties,
        estimate: DirtyEstimate,
    ) -> Self {
        let block_bytes = match estimate.block_bytes {
            0 => properties.record_bytes,
            bytes => bytes,
        };
        let block_bytes = u64::from(block_bytes).max(512);
        let stored = |bytes: u64| allocator.worst_deflated_bytes(bytes).max(bytes);
        Cost {
            copies: properties.copies.into(),
            block_bytes,
            block_stored_bytes: stored(block_bytes),
            metadata_stored_bytes: stored(METADATA_BLOCK_BYTES),
            // Small blocks may take many times their size, and each block's place in a dedup table
            // a block of that.
            is_data_unknown: estimate.block_bytes == 0 || properties.dedup.is_some(),
        }
    }

    /// Of an operation to come.
    pub(crate) fn of_estimate(&self, estimate: DirtyEstimate) -> u64 {
        // The share of metadata is generous as it is.
        let metadata = estimate.bytes.min(DirtyEstimate::METADATA_BYTES);
        metadata.saturating_add(self.of_data(estimate.bytes - metadata))
    }

    /// Of what an operation came to.
    pub(crate) fn of_added(&self, added: Added) -> u64 {
        if self.is_data_unknown && added.data_bytes > 0 {
            return u64::MAX;
        }
        let copies = (self.copies + 1).min(COPIES_MAX);
        let metadata = scaled(
            added.metadata_bytes,
            self.metadata_stored_bytes * copies,
            METADATA_BLOCK_BYTES,
        );
        metadata.saturating_add(self.of_data(added.data_bytes))
    }

    fn of_data(&self, bytes: u64) -> u64 {
        scaled(
            bytes,
            self.block_stored_bytes * self.copies,
            self.block_bytes,
        )
    }
}

/// `bytes * stored / of`, rounded up.
fn scaled(bytes: u64, stored: u64, of: u64) -> u64 {
    let scaled = (u128::from(bytes) * u128::from(stored)).div_ceil(u128::from(of));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Space counted for one transaction: by directory, in bytes on disk.
pub(crate) struct Grant {
    txg: Txg,
    dirs: Vec<(Arc<Dir>, u64)>,
}

impl Grant {
    /// Gives back all but `bytes` in every directory. The txg must still be held: what counts for
    /// it is forgotten once it is on disk.
    pub(crate) fn keep(self, bytes: u64) {
        for (dir, granted) in self.dirs {
            let unused = granted.saturating_sub(bytes);
            if unused > 0 {
                let mut state = dir.state();
                let to_write = &mut state.to_write[slot(self.txg)];
                *to_write = to_write.saturating_sub(unused);
            }
        }
    }
}

/// Quotas and reservations: [`DslPool::space`].
#[derive(Clone, Copy)]
pub(crate) struct SpaceLimits<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Quotas and reservations.
    pub(crate) fn space(self: &Arc<Self>) -> SpaceLimits<'_> {
        SpaceLimits { dsl: self }
    }
}

impl SpaceLimits<'_> {
    /// The pool's size, without what is kept back (`dsl_pool_adjustedsize`).
    pub(crate) fn adjusted_size(&self, check: SpaceCheck) -> u64 {
        let totals = self.dsl.env().pipeline.space();
        let kept = match check {
            SpaceCheck::Normal => totals.slop_bytes,
            SpaceCheck::Reserved => totals.slop_bytes / 2,
            SpaceCheck::ExtraReserved => totals.slop_bytes / 4,
            SpaceCheck::None => 0,
        };
        totals.usable_deflated_bytes.saturating_sub(kept)
    }

    /// The same, without freed space that cannot be used yet (`dsl_pool_unreserved_space`).
    pub(crate) fn unreserved_space(&self, check: SpaceCheck) -> u64 {
        let deferred = self.dsl.env().pipeline.space().deferred_deflated_bytes;
        self.adjusted_size(check).saturating_sub(deferred)
    }

    /// Space available to a directory (`dsl_dir_space_available`). `change` supposes that an
    /// ancestor uses so much less (a negative number).
    pub(crate) fn available(
        &self,
        dir: &Arc<Dir>,
        change: Option<(&Arc<Dir>, i64)>,
        on_disk_only: bool,
    ) -> u64 {
        let parent = dir.parent();
        let mut from_parent = match &parent {
            Some(parent) => self.available(parent, change, on_disk_only),
            None => u64::MAX,
        };
        let state = dir.state();
        let phys = &state.phys;
        let mut quota = match phys.quota_bytes {
            0 => u64::MAX,
            quota => quota,
        };
        if parent.is_none() {
            quota = quota.min(self.adjusted_size(SpaceCheck::Normal));
        }
        let mut used = phys.used_bytes;
        if !on_disk_only {
            used = used.saturating_add(state.to_write[0] + state.to_write[1]);
        }
        if phys.reserved_bytes > used && from_parent != u64::MAX {
            from_parent = from_parent.saturating_add(phys.reserved_bytes - used);
        }
        if let Some((ancestor, delta)) = change
            && Arc::ptr_eq(ancestor, dir)
        {
            used = used.saturating_add_signed(delta);
            if from_parent != u64::MAX {
                from_parent = from_parent.saturating_add_signed(-delta);
            }
        }
        from_parent.min(quota.saturating_sub(used))
    }

    /// What users see as available to a head dataset (`dsl_dataset_space`).
    pub(crate) fn available_to(&self, head: &Arc<Ds>) -> u64 {
        let dir = head.dir();
        let mut available = self.available(&dir, None, true);
        let state = head.state();
        available =
            available.saturating_add(state.reserved_bytes.saturating_sub(state.phys.unique_bytes));
        if state.refquota_bytes != 0 {
            available = available.min(
                state
                    .refquota_bytes
                    .saturating_sub(state.phys.referenced_bytes),
            );
        }
        available
    }

    /// Whether an intent log may take `bytes` more (as users see them) among the data. All that is
    /// under way must find room beside it, and most of what is kept back for the pool's own writes:
    /// a txg that finds none stops the pool.
    pub(crate) fn has_log_room(&self, bytes: u64) -> bool {
        let totals = self.dsl.env().pipeline.space();
        let kept = totals.slop_bytes / 4 * 3;
        let state = self.dsl.directories().root_dir().state();
        let taken = state
            .phys
            .used_bytes
            .saturating_add(state.to_write[0] + state.to_write[1])
            .saturating_add(totals.deferred_deflated_bytes)
            .saturating_add(self.dsl.env().pipeline.allocator().log_held_bytes())
            .saturating_add(kept);
        taken.saturating_add(bytes) <= totals.usable_deflated_bytes
    }

    /// Asks for room for a transaction in `txg` that takes at most `bytes` on disk; what is granted
    /// counts until the txg is on disk, or [`Grant::keep`] gives it back.
    pub(crate) fn reserve(
        &self,
        head: &Arc<Ds>,
        txg: Txg,
        bytes: u64,
        frees_space: bool,
    ) -> Result<Room, DatasetError> {
        let dirs = Vec::with_capacity(4);
        let mut grant = Grant { txg, dirs };
        match self.reserve_up(head, bytes, frees_space, &mut grant) {
            Ok(None) => Ok(Room::Granted(grant)),
            Ok(Some(why)) => {
                grant.keep(0);
                Ok(Room::Later(why))
            }
            Err(error) => {
                grant.keep(0);
                Err(error)
            }
        }
    }

    /// Fills `grant` from the head's directory up; the limit that is reached, as an error, when
    /// there may be room later.
    fn reserve_up(
        &self,
        head: &Arc<Ds>,
        mut bytes: u64,
        frees_space: bool,
        grant: &mut Grant,
    ) -> Result<Option<DatasetError>, DatasetError> {
        let mut dir = head.dir();
        let mut is_first = true;
        let mut ignore_quota = false;
        // What of `bytes` would not be covered by reservations if nothing were under way: it counts
        // at worst, and a reservation is to be used to its end. Where that is nothing, a refusal is
        // only one until the txg is on disk.
        let mut settled = bytes;
        loop {
            let parent = dir.parent();
            let (unique, referenced, reserved, refquota) = if is_first {
                let state = head.state();
                (
                    state.phys.unique_bytes,
                    state.phys.referenced_bytes,
                    state.reserved_bytes,
                    state.refquota_bytes,
                )
            } else {
                (0, 0, 0, 0)
            };
            let mut state = dir.state();
            let in_flight = state.to_write[0] + state.to_write[1];
            let mut used = state.phys.used_bytes;
            let mut from_refreservation = 0;
            let mut settled_from_refreservation = 0;
            let quota_exceeded = || DatasetError::QuotaExceeded {
                name: dir.full_name_unlocked(&self.dsl.pool_name(), &state.name, &parent),
            };
            if is_first {
                if reserved > unique {
                    used = used.saturating_sub(reserved - unique);
                    let covered = |bytes: u64, in_flight: u64| {
                        let added = bytes.saturating_add(in_flight) as i64;
                        let delta = accounted_delta(unique, reserved, added);
                        bytes - bytes.min(delta.max(0) as u64)
                    };
                    from_refreservation = covered(bytes, in_flight);
                    settled_from_refreservation = covered(settled, 0);
                }
                if !frees_space && refquota != 0 && referenced.saturating_add(in_flight) >= refquota
                {
                    if in_flight > 0 || referenced < refquota {
                        return Ok(Some(quota_exceeded()));
                    }
                    return Err(quota_exceeded());
                }
            }
            // What intent logs hold comes free once the txgs of their records are on disk.
            let mut log_held = 0;
            let mut quota = if ignore_quota || frees_space || state.phys.quota_bytes == 0 {
                u64::MAX
            } else {
                state.phys.quota_bytes
            };
            let mut is_pool_limit = false;
            if parent.is_none() {
                let room = self.unreserved_space(if frees_space {
                    SpaceCheck::Reserved
                } else {
                    SpaceCheck::Normal
                });
                if room < quota {
                    quota = room;
                    is_pool_limit = true;
                    log_held = self.dsl.env().pipeline.allocator().log_held_bytes();
                }
            }
            // A quota may be overshot by what is under way. The pool's limit may not: what is kept
            // back beyond it is what deletes and the pool's own writes live on, and a txg that
            // finds no room stops the pool.
            let extra = match quota {
                u64::MAX => 0,
                _ if is_pool_limit => 0,
                quota => quota >> 5,
            };
            // With nothing under way logs keep what they hold.
            let held = match in_flight {
                0 => used.saturating_add(log_held),
                _ => used,
            };
            let taken = used.saturating_add(in_flight).saturating_add(log_held);
            if held >= quota || taken >= quota.saturating_add(extra) {
                let deferred = match is_pool_limit {
                    true => self.dsl.env().pipeline.space().deferred_deflated_bytes,
                    false => 0,
                };
                let comes_free = held < quota || settled == 0 || held - quota < deferred;
                let why = match is_pool_limit {
                    true => {
                        drop(state);
                        let name = head.dir().full_name(&self.dsl.pool_name());
                        DatasetError::NoSpace { name }
                    }
                    false => quota_exceeded(),
                };
                return match comes_free {
                    true => Ok(Some(why)),
                    false => Err(why),
                };
            }
            let for_parent = accounted_delta(
                used.saturating_add(in_flight),
                state.phys.reserved_bytes,
                bytes as i64 - from_refreservation as i64,
            );
            let settled_for_parent = accounted_delta(
                used,
                state.phys.reserved_bytes,
                settled as i64 - settled_from_refreservation as i64,
            );
            let granted = &self.dsl.sync_state.granted;
            granted.grant(&dir, &mut state, grant.txg, bytes);
            drop(state);
            grant.dirs.push((dir.clone(), bytes));
            let Some(parent) = parent else {
                return Ok(None);
            };
            if for_parent <= 0 {
                return Ok(None);
            }
            bytes = for_parent as u64;
            settled = settled_for_parent.max(0) as u64;
            ignore_quota = parent.state().phys.head_dataset.is_zero();
            is_first = false;
            dir = parent;
        }
    }
}

impl Dir {
    /// Full name, while this directory's state is locked by the caller.
    fn full_name_unlocked(&self, pool_name: &str, name: &str, parent: &Option<Arc<Dir>>) -> String {
        match parent {
            None => pool_name.to_owned(),
            Some(parent) => format!("{}/{name}", parent.full_name(pool_name)),
        }
    }
}

impl SpaceLimits<'_> {
    /// Whether space can change from one directory to another (`dsl_dir_transfer_possible`).
    pub(crate) fn check_transfer(
        &self,
        from: &Arc<Dir>,
        to: &Arc<Dir>,
        bytes: u64,
        name: &str,
    ) -> Result<(), DatasetError> {
        let ancestor = self.dsl.directories().common_ancestor(from, to);
        let mut delta = -(bytes as i64);
        let mut at = from.clone();
        while !Arc::ptr_eq(&at, &ancestor) {
            let state = at.state();
            delta = accounted_delta(state.phys.used_bytes, state.phys.reserved_bytes, delta);
            let Some(parent) = state.parent.clone() else {
                break;
            };
            drop(state);
            at = parent;
        }
        if self.available(to, Some((&ancestor, delta)), false) < bytes {
            return Err(DatasetError::NoSpace {
                name: name.to_owned(),
            });
        }
        Ok(())
    }

    /// Changes what is kept for a head's unique blocks
    /// (`dsl_dataset_set_refreservation_sync_impl`).
    pub(crate) fn set_refreservation(&self, head: &Arc<Ds>, bytes: u64) {
        let (delta, dir) = head.change(|state| {
            let unique = state.phys.unique_bytes;
            let delta = bytes.saturating_sub(unique) as i64
                - state.reserved_bytes.saturating_sub(unique) as i64;
            state.reserved_bytes = bytes;
            (delta, state.dir.clone())
        });
        dir.did_use(
            UsedBy::RefReservation,
            Space {
                used: delta,
                ..Space::default()
            },
        );
    }

    /// Whether a property may be set so now, as far as space goes (`dsl_dir_set_quota_check` and
    /// its like).
    pub(crate) fn check_space_property(
        &self,
        head: &Arc<Ds>,
        name: &str,
        number: u64,
    ) -> Result<(), DatasetError> {
        let dir = head.dir();
        let no_room = |what: &str| DatasetError::InvalidProperty {
            property: name.to_owned(),
            reason: what.to_owned(),
        };
        match name {
            "quota" if number != 0 => {
                let state = dir.state();
                if number < state.phys.reserved_bytes || number < state.phys.used_bytes {
                    return Err(no_room("size is less than current used or reserved space"));
                }
            }
            "reservation" => {
                let (used, reserved, quota, parent) = {
                    let state = dir.state();
                    (
                        state.phys.used_bytes,
                        state.phys.reserved_bytes,
                        state.phys.quota_bytes,
                        state.parent.clone(),
                    )
                };
                let available = match &parent {
                    Some(parent) => self.available(parent, None, false),
                    None => self.available(&dir, None, false),
                };
                let delta = used.max(number).saturating_sub(used.max(reserved));
                if delta > 0 && (delta > available || (quota > 0 && number > quota)) {
                    return Err(no_room("size is greater than available space"));
                }
            }
            "refquota" if number != 0 => {
                let state = head.state();
                if number < state.phys.referenced_bytes || number < state.reserved_bytes {
                    return Err(no_room("size is less than current used or reserved space"));
                }
            }
            "refreservation" => {
                let (unique, reserved, refquota) = {
                    let state = head.state();
                    (
                        state.phys.unique_bytes,
                        state.reserved_bytes,
                        state.refquota_bytes,
                    )
                };
                let delta = unique.max(number).saturating_sub(unique.max(reserved));
                if delta > 0
                    && (delta > self.available(&dir, None, true)
                        || (refquota > 0 && number > refquota))
                {
                    return Err(no_room("size is greater than available space"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
