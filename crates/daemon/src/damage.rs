//! Names of damaged files, for `zpool status -v` (`zpool_obj_to_path`, lib/libzfs/libzfs_pool.c).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use filesystem::Filesystem;
use format::{ObjectId, ObjsetId};

use crate::service::{OpenPool, Service};

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
        for bookmark in open.pool.damaged().await {
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
            let Ok(name) = open
                .pool
                .dsl()
                .directories()
                .name_of(ObjectId::new(objset.get()))
                .await
            else {
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
        if let Ok(dataset) = open.pool.dsl().open_dataset(&name).await {
            filesystem = Filesystem::open_to_look(dataset, self.world.clone())
                .await
                .ok();
        }
        Named {
            prefix: format!("{name}:"),
            name,
            filesystem,
            is_ours: true,
        }
    }
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
