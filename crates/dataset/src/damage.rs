//! Which datasets have a damaged block (`process_error_block`, `check_filesystem` and
//! `find_top_affected_fs`, module/zfs/spa_errlog.c).
//!
//! A block is noted for the dataset that it was found in, and snapshots, clones and the live
//! dataset may have it as well. It is the same block where the object has a block of the same
//! number and birth. What cannot be told, as the key is not loaded or what leads to the block is
//! damaged too, counts as unknown.

use std::collections::BTreeSet;
use std::sync::Arc;

use format::{BlockPointer, Bookmark, ErrorBookmark, ObjectId, Txg};
use object::{ObjectError, ObjectSet, Zap};

use crate::state::Ds;
use crate::{Dataset, DatasetError, DslPool};

/// Datasets that are looked at for one block, at most.
const CANDIDATES_MAX: usize = 10_000;

/// Who has a damaged block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedIn {
    /// Datasets and snapshots that have it.
    pub datasets: Vec<ObjectId>,
    /// That no other has it is certain.
    pub is_certain: bool,
}

/// A block of an object, as of the last sync; `None` where there is none.
///
/// # Errors
/// When that cannot be told.
pub async fn block_of(
    objset: &Arc<ObjectSet>,
    block: &ErrorBookmark,
) -> Result<Option<BlockPointer>, DatasetError> {
    // Of dnodes, and above objects, there is no telling: what they lead to is not there to be
    // compared.
    let (Ok(level), false) = (u8::try_from(block.level), block.object.is_zero()) else {
        return Err(DatasetError::corrupt(block.object, "it is no object"));
    };
    let held = match objset.hold(block.object).await {
        Ok(held) => held,
        Err(ObjectError::NoSuchObject { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let pointer = if block.block_id == Bookmark::SPILL_BLOCK_ID {
        held.spill_pointer()
    } else {
        Some(held.pointer_at(level, block.block_id).await?)
    };
    Ok(pointer.filter(|pointer| !pointer.is_hole()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    Yes,
    No,
    Unknown,
}

/// What damaged blocks belong to: [`DslPool::damage`].
#[derive(Clone, Copy)]
pub struct Damage<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// What damaged blocks belong to.
    pub fn damage(self: &Arc<Self>) -> Damage<'_> {
        Damage { dsl: self }
    }
}

impl Damage<'_> {
    /// The live dataset of the directory that a dataset or snapshot is in.
    ///
    /// # Errors
    /// When there is no such dataset.
    pub async fn head_of(&self, object: ObjectId) -> Result<ObjectId, DatasetError> {
        let _config = self.dsl.config.read().await;
        self.head_of_syncing(object).await
    }

    /// [`Self::head_of`] in syncing context, where nothing changes datasets.
    ///
    /// # Errors
    /// When there is no such dataset.
    pub async fn head_of_syncing(&self, object: ObjectId) -> Result<ObjectId, DatasetError> {
        let dataset = self.dsl.directories().dataset(object).await?;
        let head = dataset.dir().state().phys.head_dataset;
        Ok(head)
    }

    /// Which of `head`, its snapshots, and what was cloned from those has a block, as of the last
    /// sync.
    ///
    /// # Errors
    /// When there is no such dataset, or what describes the datasets cannot be read.
    pub async fn damaged_in(
        &self,
        head: ObjectId,
        block: &ErrorBookmark,
    ) -> Result<DamagedIn, DatasetError> {
        let candidates = {
            let _config = self.dsl.config.read().await;
            self.candidates(head, block.birth).await?
        };
        let mut out = DamagedIn {
            datasets: Vec::new(),
            is_certain: candidates.len() < CANDIDATES_MAX,
        };
        for (object, name) in candidates {
            match self.has_block(&name, object, block).await {
                Has::Yes => out.datasets.push(object),
                Has::No => {}
                Has::Unknown => out.is_certain = false,
            }
        }
        Ok(out)
    }

    /// When a block of a dataset was written; `None` where it has none there.
    ///
    /// # Errors
    /// When that cannot be told.
    pub async fn birth_of(
        &self,
        object: ObjectId,
        block: &ErrorBookmark,
    ) -> Result<Option<Txg>, DatasetError> {
        let name = self.dsl.directories().name_of(object).await?;
        let dataset = self.dsl.open_dataset(&name).await?;
        self.birth_in(&dataset, block).await
    }

    /// A block of a dataset, as of the last sync; `None` where it has none there.
    ///
    /// # Errors
    /// When that cannot be told.
    pub async fn pointer_of(
        &self,
        object: ObjectId,
        block: &ErrorBookmark,
    ) -> Result<Option<BlockPointer>, DatasetError> {
        let name = self.dsl.directories().name_of(object).await?;
        let dataset = self.dsl.open_dataset(&name).await?;
        block_of(dataset.objset(), block).await
    }

    async fn birth_in(
        &self,
        dataset: &Dataset,
        block: &ErrorBookmark,
    ) -> Result<Option<Txg>, DatasetError> {
        let pointer = block_of(dataset.objset(), block).await?;
        Ok(pointer.map(|pointer| pointer.physical_birth()))
    }

    /// Datasets that can have a block of this birth, with their names.
    async fn candidates(
        &self,
        head: ObjectId,
        birth: Txg,
    ) -> Result<Vec<(ObjectId, String)>, DatasetError> {
        let mut oldest = self.dsl.directories().dataset(head).await?;
        while oldest.phys().previous_snapshot_txg >= birth {
            match self.dsl.directories().before(&oldest).await? {
                Some(before) => oldest = before,
                None => break,
            }
        }
        let top = oldest.dir().state().phys.head_dataset;
        let mut out = Vec::new();
        let mut known = BTreeSet::from([top]);
        let mut pending = vec![top];
        while let Some(object) = pending.pop() {
            if object.is_zero() || out.len() >= CANDIDATES_MAX {
                continue;
            }
            let dataset = self.dsl.directories().dataset(object).await?;
            out.push((object, self.dsl.directories().full_name(&dataset).await?));
            let mut at = dataset.clone();
            let mut own = BTreeSet::new();
            while birth <= at.phys().previous_snapshot_txg && out.len() < CANDIDATES_MAX {
                let before = self.dsl.directories().before(&at).await?;
                let is_own = |one: &Arc<Ds>| one.dir().state().phys.head_dataset == object;
                let Some(snapshot) = before.filter(is_own) else {
                    break;
                };
                let name = self.dsl.directories().full_name(&snapshot).await?;
                out.push((snapshot.object, name));
                own.insert(snapshot.object);
                at = snapshot;
            }
            let clones = dataset.dir().state().phys.clones;
            if own.is_empty() || clones.is_zero() {
                continue;
            }
            for entry in Zap::hold(self.dsl.mos(), clones).await?.all().await? {
                let clone = ObjectId::new(entry.value.as_u64().unwrap_or(0));
                let origin = self
                    .dsl
                    .directories()
                    .dataset(clone)
                    .await?
                    .dir()
                    .state()
                    .phys
                    .origin;
                if own.contains(&origin) && known.insert(clone) {
                    pending.push(clone);
                }
            }
        }
        Ok(out)
    }

    /// Whether a dataset has a block.
    async fn has_block(&self, name: &str, object: ObjectId, block: &ErrorBookmark) -> Has {
        let Ok(dataset) = self.dsl.open_dataset(name).await else {
            return Has::Unknown;
        };
        if dataset.object() != object {
            // Renamed meanwhile.
            return Has::Unknown;
        }
        match self.birth_in(&dataset, block).await {
            Ok(Some(birth)) if birth == block.birth => Has::Yes,
            Ok(_) => Has::No,
            Err(_) => Has::Unknown,
        }
    }
}
