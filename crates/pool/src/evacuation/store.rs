//! What a removal keeps in the MOS: its state in the object directory, the mapping, and the births
//! of what was copied (module/zfs/vdev_removal.c: `spa_sync_removing_state`,
//! `vdev_remove_initiate_sync`; vdev_indirect_mapping.c; vdev_indirect_births.c). A mapping that is
//! condensed is written by the same functions (module `condensing`).
//!
//! All is written in syncing context, with the group whose copies it tells of.

use std::sync::Arc;

use dataset::DatasetError;
use format::names::top_vdev;
use format::{
    IndirectBirthEntry, IndirectBirthPhys, IndirectMappingEntry, IndirectMappingPhys, ObjectId,
    ObjectType, RemovingPhys,
};
use object::{NewObject, ObjectError, ObjectSet, SpaceMapObject, Zap, ZapValue};
use spa::directory;
use space::SpaceSync;
use space::names::{OBSOLETE_COUNTS, OBSOLETE_SPACE_MAP};
use vdev::Vdev;
use zio::Tx;

/// Block size of mappings, their counts and births (`SPA_OLD_MAXBLOCKSIZE`), in bytes.
const BLOCK_BYTES: u32 = 128 << 10;
/// Bytes of a count of what is obsolete of an entry.
pub(crate) const COUNT_BYTES: u64 = 4;
const METADATA: ObjectType = ObjectType::OTN_UINT64_METADATA;

/// The objects of the removal that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Objects {
    pub(super) mapping: ObjectId,
    pub(super) births: ObjectId,
    pub(super) head: IndirectMappingPhys,
}

impl Objects {
    /// Makes them, without entries. With the feature `obsolete_counts`, what becomes obsolete is
    /// counted exactly from the begin on.
    pub(super) async fn create(
        sync: &SpaceSync<'_>,
        mos: &Arc<ObjectSet>,
        top_zap: ObjectId,
    ) -> Result<Self, DatasetError> {
        if sync.features.is_enabled(OBSOLETE_COUNTS) {
            Zap::hold(mos, top_zap)
                .await?
                .add_u64(sync.tx, top_vdev::OBSOLETE_COUNTS_ARE_PRECISE, 1)
                .await?;
            sync.features.increment(sync.ctx, OBSOLETE_COUNTS).await?;
        }
        let (mapping, head) = create_mapping(sync, mos).await?;
        let births = IndirectBirthPhys::default().encode().to_vec();
        let births = array(METADATA).with_bonus(METADATA, births);
        Ok(Objects {
            mapping,
            births: mos.allocate(sync.tx, births).await?.id(),
            head,
        })
    }

    /// Adds what was copied next; `birth` is the last of the births, and where it is among them.
    pub(super) async fn append(
        &mut self,
        tx: &Tx,
        mos: &Arc<ObjectSet>,
        entries: &[IndirectMappingEntry],
        birth: (u64, IndirectBirthEntry),
    ) -> Result<(), ObjectError> {
        let all: Vec<(IndirectMappingEntry, u32)> =
            entries.iter().map(|entry| (*entry, 0)).collect();
        append_entries(tx, mos, self.mapping, &mut self.head, &all).await?;
        let (index, birth) = birth;
        let births = mos.hold(self.births).await?;
        let at = index * IndirectBirthEntry::BYTES as u64;
        let packed = birth.encode().to_vec();
        births.write(tx, at, packed.into()).await?;
        let entries = index + 1;
        births.set_bonus(tx, IndirectBirthPhys { entries }.encode().to_vec())
    }

    /// Frees them, and what is recorded of obsolete ranges, when a removal is given up
    /// (`spa_vdev_remove_cancel_sync`).
    pub(super) async fn free(
        self,
        sync: &SpaceSync<'_>,
        mos: &Arc<ObjectSet>,
        top: &Vdev,
        top_zap: ObjectId,
    ) -> Result<(), DatasetError> {
        let zap = Zap::hold(mos, top_zap).await?;
        let precise = top_vdev::OBSOLETE_COUNTS_ARE_PRECISE;
        if zap.lookup_u64(precise).await?.is_some() {
            zap.remove(sync.tx, precise).await?;
            uncount(sync).await?;
        }
        let obsolete = zap.lookup_u64(OBSOLETE_SPACE_MAP).await?;
        if let Some(id) = obsolete.filter(|id| *id != 0) {
            let id = ObjectId::new(id);
            let map = SpaceMapObject::open(mos, id, 0, top.asize_bytes(), 0).await?;
            space::free_map(sync, map).await?;
            zap.remove(sync.tx, OBSOLETE_SPACE_MAP).await?;
            uncount(sync).await?;
        }
        free_mapping(sync, mos, self.mapping, &self.head).await?;
        mos.free(sync.tx, self.births).await?;
        Ok(())
    }
}

fn array(kind: ObjectType) -> NewObject {
    NewObject::new(kind).with_block_bytes(BLOCK_BYTES)
}

/// Makes a mapping without entries, with counts of what is obsolete if the pool has the feature
/// (`vdev_indirect_mapping_alloc`).
pub(crate) async fn create_mapping(
    sync: &SpaceSync<'_>,
    mos: &Arc<ObjectSet>,
) -> Result<(ObjectId, IndirectMappingPhys), DatasetError> {
    let mut head = IndirectMappingPhys::default();
    if sync.features.is_enabled(OBSOLETE_COUNTS) {
        let counts = array(ObjectType::OTN_UINT32_METADATA);
        head.counts = Some(mos.allocate(sync.tx, counts).await?.id());
        sync.features.increment(sync.ctx, OBSOLETE_COUNTS).await?;
    }
    let mapping = array(METADATA).with_bonus(METADATA, head.encode());
    Ok((mos.allocate(sync.tx, mapping).await?.id(), head))
}

/// Adds entries to a mapping, behind those that it has, each with how many of its bytes are
/// obsolete (`vdev_indirect_mapping_add_entries`).
pub(crate) async fn append_entries(
    tx: &Tx,
    mos: &Arc<ObjectSet>,
    mapping: ObjectId,
    head: &mut IndirectMappingPhys,
    entries: &[(IndirectMappingEntry, u32)],
) -> Result<(), ObjectError> {
    let Some((last, _)) = entries.last() else {
        return Ok(());
    };
    let mapping = mos.hold(mapping).await?;
    let packed: Vec<u8> = entries
        .iter()
        .flat_map(|(entry, _)| entry.encode())
        .collect();
    let at = head.entries * IndirectMappingEntry::BYTES as u64;
    mapping.write(tx, at, packed.into()).await?;
    if let Some(counts) = head.counts {
        let packed: Vec<u8> = entries
            .iter()
            .flat_map(|(_, count)| count.to_le_bytes())
            .collect();
        let at = head.entries * COUNT_BYTES;
        let counts = mos.hold(counts).await?;
        counts.write(tx, at, packed.into()).await?;
    }
    let lengths = entries
        .iter()
        .map(|(entry, _)| entry.destination.asize_bytes());
    let mut grown = *head;
    grown.entries += entries.len() as u64;
    grown.mapped_bytes = head.mapped_bytes.saturating_add(lengths.sum());
    let last_bytes = last.destination.asize_bytes();
    grown.max_offset_bytes = last.source_offset_bytes.saturating_add(last_bytes);
    mapping.set_bonus(tx, grown.encode())?;
    *head = grown;
    Ok(())
}

/// Frees a mapping and its counts (`vdev_indirect_mapping_free`).
pub(crate) async fn free_mapping(
    sync: &SpaceSync<'_>,
    mos: &Arc<ObjectSet>,
    mapping: ObjectId,
    head: &IndirectMappingPhys,
) -> Result<(), DatasetError> {
    if let Some(counts) = head.counts {
        mos.free(sync.tx, counts).await?;
        uncount(sync).await?;
    }
    mos.free(sync.tx, mapping).await?;
    Ok(())
}

/// Something that counted as use of the feature `obsolete_counts` is gone. What a pool wrongly did
/// not count fails no group.
pub(crate) async fn uncount(sync: &SpaceSync<'_>) -> Result<(), DatasetError> {
    match sync.features.is_active(OBSOLETE_COUNTS) {
        true => sync.features.decrement(sync.ctx, OBSOLETE_COUNTS).await,
        false => Ok(()),
    }
}

/// Stores how far the removal is.
pub(super) async fn store_state(
    tx: &Tx,
    mos: &Arc<ObjectSet>,
    phys: &RemovingPhys,
) -> Result<(), ObjectError> {
    let value = ZapValue::from_u64s(&phys.to_words());
    let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
    directory.update(tx, directory::REMOVING, value).await
}

/// Has all of the object directory written anew: it is read before the mapping is known, so no
/// block of it may stay on the vdev. The configuration, which is too, is written in any case.
pub(super) async fn move_directory(tx: &Tx, mos: &Arc<ObjectSet>) -> Result<(), ObjectError> {
    let directory = mos.hold(ObjectId::POOL_DIRECTORY).await?;
    let info = directory.info();
    let block_bytes = u64::from(info.data_block_bytes);
    for block in 0..=info.max_block_id {
        let at = block * block_bytes;
        let content = directory.read_bytes(at, block_bytes as usize).await?;
        directory.write(tx, at, content).await?;
    }
    Ok(())
}
