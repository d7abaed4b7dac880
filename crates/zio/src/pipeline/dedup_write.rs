//! Writing blocks that may be shared (`zio_ddt_write`, module/zfs/zio.c).
//!
//! A write looks its checksum up in the dedup table. An entry with enough copies gives its DVAs to
//! the new pointer and counts one more reference; one with too few (flat tables) gets the missing
//! copies written; without an entry the block is written and becomes the entry's first. Whoever
//! writes an entry holds its lock until the data is written, so a second writer of the same data
//! waits for the first. What cannot be shared (no room in one piece, table over its quota, table
//! unreadable, data that differs) is written as an ordinary block.

use std::sync::Arc;

use bytes::Bytes;
use format::{BlockPointer, CryptParams, DVAS_PER_POINTER, DdtKey, DdtPhys, RegularPointer, Txg};

use super::dedup::{Dedup, DedupName, DedupPolicy, LiveEntry, is_damage};
use super::placement::Placement;
use super::prepare::Stored;
use super::read::Reader;
use super::sharing::Sharing;
use super::{CacheUse, ReadContext, WritePolicy, waits_for_devices};
use crate::cache::{Cache, CacheKey};
use crate::error::ZioError;

/// Writes blocks by way of the dedup tables.
pub(super) struct DedupWriter {
    pub(super) dedup: Arc<Dedup>,
    pub(super) placement: Arc<Placement>,
    pub(super) reader: Arc<Reader>,
    pub(super) cache: Arc<Cache>,
    pub(super) sharing: Arc<Sharing>,
}

impl DedupWriter {
    /// Writes a block by way of its table; `None` when it is to be written as an ordinary one. Of
    /// the block `same`, which holds the same, there is a reference already: it is given back as it
    /// is where the entry has its places.
    pub(super) async fn write(
        &self,
        txg: Txg,
        data: &Bytes,
        stored: &Stored,
        policy: &WritePolicy,
        dedup: DedupPolicy,
        same: Option<&BlockPointer>,
    ) -> Result<Option<BlockPointer>, ZioError> {
        let Some(tables) = self.dedup.tables() else {
            return Ok(None);
        };
        let uses_crypt = stored.crypt.is_some();
        // Of encrypted datasets only what is encrypted is shared: tables know no object types.
        if policy.level > 0 || policy.encrypted && !uses_crypt {
            return Ok(None);
        }
        let template = RegularPointer {
            dvas: [None; DVAS_PER_POINTER],
            dedup: true,
            ..stored.pointer(txg, data.len() as u64, policy)
        };
        let key = DdtKey::new(
            template.checksum,
            template.lsize_bytes,
            template.psize_bytes,
            template.compression,
            uses_crypt,
        )?;
        let name = DedupName {
            checksum: policy.checksum,
            key,
        };
        let slot = self.dedup.slot(&name);
        let mut guard = slot.lock().await;
        if guard.is_none() {
            // A block can do without its entry, so it does not wait for a bad sector.
            let found = match waits_for_devices(tables.lookup(&name, true)).await {
                Err(error) if is_damage(&error) || matches!(error, ZioError::Unreadable { .. }) => {
                    tracing::warn!(
                        %error, "a dedup table cannot be read; a block is written without it"
                    );
                    return Ok(None);
                }
                found => found?,
            };
            *guard = match (found, tables.new_entries_are_flat(name.checksum)) {
                (Some(stored), _) => Some(LiveEntry {
                    value: stored.value.clone(),
                    stored: Some(stored),
                }),
                (None, Some(flat)) => Some(LiveEntry {
                    stored: None,
                    value: DdtPhys::empty(flat),
                }),
                (None, None) => None,
            };
        }
        let Some(entry) = guard.as_mut() else {
            return Ok(None);
        };
        let verify = dedup.verify || !name.checksum.is_dedup();
        if verify && !self.is_same(data, &template, &entry.value, policy).await {
            return Ok(None);
        }
        let copies = usize::from(policy.copies.clamp(1, 3));
        let variant = match &entry.value {
            DdtPhys::Flat { .. } => 0,
            DdtPhys::Traditional(_) => copies,
        };
        let place = &mut entry.value.places_mut()[variant];
        let have = place.dvas(uses_crypt).count();
        if have < copies {
            if place.dva(0, false).is_some_and(|dva| dva.is_gang()) {
                return Ok(None);
            }
            let more = WritePolicy {
                copies: (copies - have) as u8,
                ..*policy
            };
            let written = self
                .placement
                .write(txg, None, &stored.data, &more, false, None);
            let dvas = match written.await {
                Ok(dvas) => dvas,
                Err(ZioError::NoSpace { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            for (to, dva) in place.words.iter_mut().skip(have).zip(dvas.iter().flatten()) {
                *to = dva.to_words();
            }
            if let Some(crypt) = stored.crypt {
                place.words[2] = [crypt.salt, crypt.iv1];
            }
            if !place.is_used() {
                place.physical_birth = txg;
            }
        }
        let bp = BlockPointer::regular(&RegularPointer {
            dvas: [0, 1, 2].map(|index| place.dva(index, uses_crypt)),
            physical_birth: place.physical_birth,
            ..template
        })?;
        if let Some(same) = same
            && have >= copies
        {
            let mut as_old = bp;
            as_old.set_birth(same.logical_birth(), place.physical_birth);
            if as_old.same_block(same) {
                return Ok(Some(*same));
            }
        }
        place.references += 1;
        drop(guard);
        self.sharing.note(policy.bookmark.objset, &bp);
        if let Some(key) = CacheKey::of(&bp)
            && policy.cache
        {
            self.cache.insert(key, data.clone());
        }
        Ok(Some(bp))
    }

    /// Whether the block that an entry has is the same as `data`; also when it has none
    /// (`zio_ddt_collision`).
    async fn is_same(
        &self,
        data: &Bytes,
        template: &RegularPointer,
        value: &DdtPhys,
        policy: &WritePolicy,
    ) -> bool {
        let Some(place) = value.places().iter().find(|place| place.is_used()) else {
            return true;
        };
        let encrypted = template.uses_crypt;
        let bp = BlockPointer::regular(&RegularPointer {
            dvas: [0, 1, 2].map(|index| place.dva(index, encrypted)),
            logical_birth: place.physical_birth,
            physical_birth: place.physical_birth,
            crypt: template.crypt.map(|crypt| CryptParams {
                salt: place.words[2][0],
                iv1: place.words[2][1],
                ..crypt
            }),
            ..*template
        });
        let Ok(bp) = bp else { return false };
        let context = ReadContext {
            // What is in the pool counts: a copy of a cache would vouch for a block that has rotted
            // meanwhile, and the new data be lost with it.
            cache: CacheUse::Bypass,
            speculative: true,
            ..ReadContext::new(policy.bookmark)
        };
        match self.reader.read(&bp, &context).await {
            Ok(there) => there == *data,
            Err(error) => {
                tracing::debug!(%error, "a block that is to be compared cannot be read");
                false
            }
        }
    }
}
