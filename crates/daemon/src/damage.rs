//! Names of damaged files, for `zpool status -v` (`zpool_obj_to_path`, lib/libzfs/libzfs_pool.c).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dataset::{Dataset, ListOptions};
use filesystem::Filesystem;
use format::{BlockPointer, ObjectId, ObjsetId};
use pool::Bookmark;

use crate::service::{OpenPool, Service};

/// Damaged blocks that are looked for in other datasets, at most.
const SHARED_MAX: usize = 1000;
/// Datasets that are looked through for them, at most.
const DATASETS_MAX: usize = 1000;
/// Block number of a spill block in bookmarks (`DMU_SPILL_BLKID`).
const SPILL_BLOCK: u64 = u64::MAX;

/// Where the files of a dataset are named from.
struct Named {
    /// What stands before a path: `pool/dataset:`, or the directory where it is mounted.
    prefix: String,
    /// The dataset's name.
    name: String,
    filesystem: Option<Arc<Filesystem>>,
    /// Opened for this only.
    is_ours: bool,
}

impl Service {
    /// The files that the pool's damaged blocks belong to, each once.
    pub(crate) async fn damaged_names(&self, open: &OpenPool) -> Vec<String> {
        let mut objects: BTreeMap<ObjsetId, BTreeSet<ObjectId>> = BTreeMap::new();
        let damaged = open.pool.damaged();
        for bookmark in damaged.iter().chain(&sharers(open, &damaged).await) {
            let set = objects.entry(bookmark.objset).or_default();
            set.insert(bookmark.object);
        }
        let mut out = Vec::new();
        for (objset, objects) in objects {
            if objset.is_zero() {
                let names = objects
                    .iter()
                    .map(|object| format!("<metadata>:<{:#x}>", object.get()));
                out.extend(names);
                continue;
            }
            let Ok(name) = open.pool.dsl().name_of(ObjectId::new(objset.get())).await else {
                let names = objects
                    .iter()
                    .map(|object| format!("<{:#x}>:<{:#x}>", objset.get(), object.get()));
                out.extend(names);
                continue;
            };
            let named = self.named(open, name).await;
            for object in objects {
                out.push(named.name_of(object).await);
            }
            if let Some(filesystem) = named.filesystem.filter(|_| named.is_ours)
                && let Err(error) = filesystem.close().await
            {
                tracing::debug!(%error, "a filesystem that was opened for its names did not close");
            }
        }
        out
    }

    async fn named(&self, open: &OpenPool, name: String) -> Named {
        if let Some((filesystem, mountpoint)) = self.mounts.filesystem(&name) {
            let mountpoint = mountpoint.to_string_lossy();
            return Named {
                prefix: mountpoint.trim_end_matches('/').to_owned(),
                name,
                filesystem: Some(filesystem),
                is_ours: false,
            };
        }
        let mut filesystem = None;
        // Opening one that can be written would replay its log, which is not for a report to do.
        if let Ok(dataset) = open.pool.dsl().open_dataset(&name).await
            && dataset.is_read_only()
        {
            filesystem = Filesystem::open(dataset, self.world.clone()).await.ok();
        }
        Named {
            prefix: format!("{name}:"),
            name,
            filesystem,
            is_ours: true,
        }
    }
}

/// A block is found, and noted as damaged, in the oldest snapshot that has it. These are the same blocks, as
/// younger snapshots, clones and the live dataset have them (`process_error_block`, module/zfs/spa_errlog.c).
async fn sharers(open: &OpenPool, damaged: &[Bookmark]) -> Vec<Bookmark> {
    let dsl = open.pool.dsl();
    let mut lost: Vec<(Bookmark, BlockPointer)> = Vec::new();
    for bookmark in damaged.iter().filter(|bookmark| bookmark.level == 0) {
        if lost.len() >= SHARED_MAX {
            break;
        }
        let Ok(name) = dsl.name_of(ObjectId::new(bookmark.objset.get())).await else {
            continue;
        };
        // What a live dataset has of its own, no other has.
        if name.contains('@')
            && let Ok(dataset) = dsl.open_dataset(&name).await
            && let Some(pointer) = pointer(&dataset, bookmark).await
        {
            lost.push((*bookmark, pointer));
        }
    }
    if lost.is_empty() {
        return Vec::new();
    }
    let everything = ListOptions {
        snapshots: true,
        ..ListOptions::default()
    };
    let listed = dsl.list(&open.pool.name(), &everything).await;
    let mut out = Vec::new();
    for info in listed.unwrap_or_default().into_iter().take(DATASETS_MAX) {
        let Ok(dataset) = dsl.open_dataset(&info.name).await else {
            continue;
        };
        let objset = ObjsetId::new(info.object.get());
        for (bookmark, lost) in lost.iter().filter(|(lost, _)| lost.objset != objset) {
            let found = pointer(&dataset, bookmark).await;
            if found.is_some_and(|found| found.same_block(lost)) {
                out.push(Bookmark {
                    objset,
                    ..*bookmark
                });
            }
        }
    }
    out
}

/// The pointer of a block of data, if it can be read and there is one.
async fn pointer(dataset: &Dataset, bookmark: &Bookmark) -> Option<BlockPointer> {
    let object = dataset.objset().hold(bookmark.object).await.ok()?;
    let pointer = if bookmark.block == SPILL_BLOCK {
        object.spill_pointer()?
    } else {
        object.block_pointer(bookmark.block).await.ok()?
    };
    (!pointer.is_hole()).then_some(pointer)
}

impl Named {
    async fn name_of(&self, object: ObjectId) -> String {
        let path = match &self.filesystem {
            Some(filesystem) => filesystem.path_of(object.get()).await.ok(),
            None => None,
        };
        match path {
            Some(path) => format!("{}{}", self.prefix, String::from_utf8_lossy(&path)),
            None => format!("{}:<{:#x}>", self.name, object.get()),
        }
    }
}
