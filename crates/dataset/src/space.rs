//! How much space there is for whom: reservations, quotas, and the slop space that is kept back
//! (`dsl_dir_space_available`, `dsl_dir_tempreserve_impl`, module/zfs/dsl_dir.c).

use std::sync::Arc;

use format::Txg;

use crate::DatasetError;
use crate::dsl::{DslPool, slot};
use crate::state::{Dir, Ds, accounted_delta};
use crate::task::SpaceCheck;

/// Answer to a writer that asks for space.
pub(crate) enum Room {
    /// Granted, and counted.
    Granted,
    /// Maybe after the txgs that are under way are on disk.
    Later,
}

impl DslPool {
    /// The pool's size, without what is kept back (`dsl_pool_adjustedsize`).
    fn adjusted_size(&self, check: SpaceCheck) -> u64 {
        let totals = self.env().pipeline.space();
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
        let deferred = self.env().pipeline.space().deferred_deflated_bytes;
        self.adjusted_size(check).saturating_sub(deferred)
    }

    /// Space available to a directory (`dsl_dir_space_available`). `change` supposes that an
    /// ancestor uses so much less (a negative number).
    pub(crate) fn space_available(
        &self,
        dir: &Arc<Dir>,
        change: Option<(&Arc<Dir>, i64)>,
        on_disk_only: bool,
    ) -> u64 {
        let parent = dir.parent();
        let mut from_parent = match &parent {
            Some(parent) => self.space_available(parent, change, on_disk_only),
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
    pub(crate) fn dataset_available(&self, head: &Arc<Ds>) -> u64 {
        let dir = head.dir();
        let mut available = self.space_available(&dir, None, true);
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

    /// Asks for room for a transaction in `txg` that takes at most `bytes` on disk; what is granted counts until the txg is on disk.
    pub(crate) fn reserve(
        &self,
        head: &Arc<Ds>,
        txg: Txg,
        bytes: u64,
        frees_space: bool,
    ) -> Result<Room, DatasetError> {
        let mut granted: Vec<(Arc<Dir>, u64)> = Vec::new();
        let result = self.reserve_up(head, txg, bytes, frees_space, &mut granted);
        if !matches!(result, Ok(Room::Granted)) {
            for (dir, bytes) in granted {
                let mut state = dir.state();
                let to_write = &mut state.to_write[slot(txg)];
                *to_write = to_write.saturating_sub(bytes);
            }
        }
        result
    }

    fn reserve_up(
        &self,
        head: &Arc<Ds>,
        txg: Txg,
        mut bytes: u64,
        frees_space: bool,
        granted: &mut Vec<(Arc<Dir>, u64)>,
    ) -> Result<Room, DatasetError> {
        let mut dir = head.dir();
        let mut is_first = true;
        let mut ignore_quota = false;
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
            let quota_exceeded = || DatasetError::QuotaExceeded {
                name: dir.full_name_unlocked(&self.pool_name(), &state.name, &parent),
            };
            if is_first {
                if reserved > unique {
                    used = used.saturating_sub(reserved - unique);
                    let delta =
                        accounted_delta(unique, reserved, bytes.saturating_add(in_flight) as i64);
                    from_refreservation = bytes - bytes.min(delta.max(0) as u64);
                }
                if !frees_space && refquota != 0 && referenced.saturating_add(in_flight) >= refquota
                {
                    if in_flight > 0 || referenced < refquota {
                        return Ok(Room::Later);
                    }
                    return Err(quota_exceeded());
                }
            }
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
                }
            }
            // A quota may be overshot by what is under way. The pool's limit may not: what is kept back beyond it
            // is what deletes and the pool's own writes live on, and a txg that finds no room stops the pool.
            let extra = match quota {
                u64::MAX => 0,
                _ if is_pool_limit => 0,
                quota => quota >> 5,
            };
            if used >= quota {
                if is_pool_limit {
                    let deferred = self.env().pipeline.space().deferred_deflated_bytes;
                    if used - quota < deferred {
                        return Ok(Room::Later);
                    }
                    drop(state);
                    return Err(DatasetError::NoSpace {
                        name: head.dir().full_name(&self.pool_name()),
                    });
                }
                return Err(quota_exceeded());
            }
            if used.saturating_add(in_flight) >= quota.saturating_add(extra) {
                return Ok(Room::Later);
            }
            let for_parent = accounted_delta(
                used.saturating_add(in_flight),
                state.phys.reserved_bytes,
                bytes as i64 - from_refreservation as i64,
            );
            state.to_write[slot(txg)] += bytes;
            drop(state);
            granted.push((dir.clone(), bytes));
            let Some(parent) = parent else {
                return Ok(Room::Granted);
            };
            if for_parent <= 0 {
                return Ok(Room::Granted);
            }
            bytes = for_parent as u64;
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
