//! Redaction lists in the MOS: reading them, making them with their bookmark, and appending to them
//! ([`format::RedactionListPhys`]; module/zfs/dsl_bookmark.c).
//!
//! A list is made together with the bookmark that names it, and freed with it. While it is in use
//! (`DslPool::lists_in_use`) its bookmark cannot be destroyed.

use std::sync::Arc;

use bytes::Bytes;
use device::BoxFuture;
use format::{
    Endian, Guid, ObjectId, ObjectType, RedactBlock, RedactionListPhys, SnapshotBookmark,
    max_bonus_bytes,
};
use object::{NewObject, Object, SyncContext};
use zio::Tx;

use crate::DatasetError;
use crate::bookmark::Bookmarks;
use crate::dsl::DslPool;
use crate::features::guid;
use crate::obstacle::RedactObstacle;
use crate::task::{SpaceCheck, SyncTask};

/// Blocks of a list's data (`SPA_OLD_MAXBLOCKSIZE`).
const BLOCK_BYTES: u32 = 128 << 10;
/// Most bytes of a head that is in a spill block.
const SPILL_BYTES: usize = 128 << 10;

pub(crate) fn refused<T>(name: &str, obstacle: RedactObstacle) -> Result<T, DatasetError> {
    Err(DatasetError::Redact {
        name: name.to_owned(),
        obstacle,
    })
}

/// A redaction list that is in use until this is dropped.
pub struct RedactionList {
    dsl: Arc<DslPool>,
    object: Object,
    phys: RedactionListPhys,
}

impl std::fmt::Debug for RedactionList {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "RedactionList({}, {:?})", self.object.id(), self.phys)
    }
}

impl Drop for RedactionList {
    fn drop(&mut self) {
        self.dsl.lists_in_use.end(self.object.id());
    }
}

impl RedactionList {
    /// Opens a list; `alone`: only if nobody else has it. The namespace is locked meanwhile.
    pub(super) async fn open(
        dsl: &Arc<DslPool>,
        id: ObjectId,
        alone: bool,
    ) -> Result<Option<Self>, DatasetError> {
        let object = dsl.mos().hold(id).await?;
        let phys = head(&object).await?;
        if !dsl.lists_in_use.begin(id, alone) {
            return Ok(None);
        }
        Ok(Some(Self {
            dsl: dsl.clone(),
            object,
            phys,
        }))
    }

    /// What is said of all of it, as of when it was opened.
    pub fn phys(&self) -> &RedactionListPhys {
        &self.phys
    }

    /// GUIDs of the snapshots that it was made with.
    pub fn snapshots(&self) -> Vec<u64> {
        self.phys.snapshots.iter().map(|guid| guid.get()).collect()
    }

    pub(super) fn id(&self) -> ObjectId {
        self.object.id()
    }

    /// Some entries from one on, in order; fewer than asked for at the end only.
    ///
    /// # Errors
    /// Of reading, and [`DatasetError::Corrupt`].
    pub async fn read(&self, first: u64, count: u64) -> Result<Vec<RedactBlock>, DatasetError> {
        let bytes = RedactBlock::BYTES as u64;
        let end = first.saturating_add(count).min(self.phys.entries);
        let count = end.saturating_sub(first);
        let offset = first.checked_mul(bytes);
        let (Some(offset), Ok(length)) = (offset, usize::try_from(count * bytes)) else {
            let what = "a redaction list that is too long";
            return Err(DatasetError::corrupt(self.id(), what));
        };
        let data = self.object.read_bytes(offset, length).await?;
        let entries = data.chunks_exact(RedactBlock::BYTES);
        let entries = entries.map(|raw| Ok(RedactBlock::decode(raw, Endian::Little)?));
        entries.collect()
    }
}

/// What is said of a whole list.
async fn head(object: &Object) -> Result<RedactionListPhys, DatasetError> {
    let data = match object.spill().await? {
        Some(spill) => spill,
        None => object.bonus(),
    };
    Ok(RedactionListPhys::decode(&data, Endian::Little)?)
}

fn put_head(object: &Object, tx: &Tx, phys: &RedactionListPhys) -> Result<(), DatasetError> {
    let data = Bytes::from(phys.encode());
    match object.info().has_spill {
        true => object.set_spill(tx, data)?,
        false => object.set_bonus(tx, data)?,
    }
    Ok(())
}

impl Bookmarks<'_> {
    /// What is said of a bookmark's redaction list, if it has one.
    ///
    /// # Errors
    /// Of reading.
    pub async fn redaction(
        &self,
        bookmark: &SnapshotBookmark,
    ) -> Result<Option<RedactionListPhys>, DatasetError> {
        if bookmark.redaction_list.is_zero() {
            return Ok(None);
        }
        let object = self.dsl.mos().hold(bookmark.redaction_list).await?;
        Ok(Some(head(&object).await?))
    }

    /// Refuses a list of more snapshots than there is room for
    /// (`dsl_bookmark_create_redacted_check`).
    pub(crate) fn check_list(&self, name: &str, snapshots: usize) -> Result<(), DatasetError> {
        let features = self.dsl.features();
        if !features.is_enabled(guid::REDACTION_BOOKMARKS) {
            return Err(DatasetError::Unsupported {
                name: self.dsl.pool_name(),
                what: "redaction bookmarks feature not enabled: it".into(),
            });
        }
        let most = match features.is_enabled(guid::REDACTION_LIST_SPILL) {
            true => SPILL_BYTES,
            false => max_bonus_bytes(1),
        };
        match RedactionListPhys::bytes_with(snapshots) > most {
            true => refused(name, RedactObstacle::TooManySnapshots),
            false => Ok(()),
        }
    }

    /// Makes a list, in syncing context (`dsl_bookmark_create_sync_impl_snap`).
    pub(crate) async fn create_list(
        &self,
        ctx: &SyncContext,
        phys: &RedactionListPhys,
    ) -> Result<ObjectId, DatasetError> {
        let (tx, features) = (Tx::syncing(ctx.txg), self.dsl.features());
        let data = Bytes::from(phys.encode());
        let spills = data.len() > max_bonus_bytes(1);
        // Beside a pointer to a spill block there is room for one other.
        let bonus = match spills {
            true => Bytes::from(vec![0; max_bonus_bytes(1)]),
            false => data.clone(),
        };
        let kind = ObjectType::OTN_UINT64_METADATA;
        let new = NewObject::new(kind)
            .with_block_bytes(BLOCK_BYTES)
            .with_bonus(kind, bonus);
        let object = self.dsl.mos().allocate(&tx, new).await?;
        features.increment(ctx, guid::REDACTION_BOOKMARKS).await?;
        if spills {
            object.set_bonus_and_spill(&tx, Bytes::new(), Some(data))?;
            features.increment(ctx, guid::REDACTION_LIST_SPILL).await?;
        }
        Ok(object.id())
    }

    /// Appends to a list, and waits until that is on disk.
    pub(super) async fn append(
        &self,
        list: ObjectId,
        entries: Vec<RedactBlock>,
        reached: (u64, u64),
    ) -> Result<(), DatasetError> {
        let task = AppendTask {
            dsl: self.dsl.clone(),
            list,
            entries,
            reached,
        };
        self.dsl.tasks().run(Arc::new(task)).await
    }
}

/// Appends entries to a list (`redaction_list_update_sync`, module/zfs/dmu_redact.c).
struct AppendTask {
    dsl: Arc<DslPool>,
    list: ObjectId,
    entries: Vec<RedactBlock>,
    reached: (u64, u64),
}

impl AppendTask {
    async fn do_apply(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let object = self.dsl.mos().hold(self.list).await?;
        let mut phys = head(&object).await?;
        if !self.entries.is_empty() {
            let bytes = self.entries.iter().flat_map(|entry| entry.encode());
            let offset = phys.entries.saturating_mul(RedactBlock::BYTES as u64);
            object.write(&tx, offset, bytes.collect()).await?;
            phys.entries += self.entries.len() as u64;
        }
        phys.reached = self.reached;
        put_head(&object, &tx, &phys)
    }
}

impl SyncTask for AppendTask {
    fn name(&self) -> &'static str {
        "redact"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Normal
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            // Who appends has it in use, so that it is there.
            let object = self.dsl.mos().hold(self.list).await?;
            let phys = head(&object).await?;
            let offset = phys.entries.saturating_mul(RedactBlock::BYTES as u64);
            object.prepare_write(offset, 1).await?;
            if let Some(last) = offset.checked_sub(1) {
                object.read_bytes(last, 1).await?;
            }
            Ok(())
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(self.do_apply(ctx))
    }
}

/// Whether two lists of snapshots have the same ones, in any order (`redact_snaps_equal`,
/// lib/libzfs/libzfs_sendrecv.c).
pub fn are_same_snapshots(one: &[u64], other: &[Guid]) -> bool {
    one.len() == other.len() && one.iter().all(|guid| other.contains(&Guid::new(*guid)))
}
