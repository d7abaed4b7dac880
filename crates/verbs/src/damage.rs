//! Names of damaged files, for `zpool status -v` (`zpool_obj_to_path`, lib/libzfs/libzfs_pool.c).

use std::collections::{BTreeMap, BTreeSet};

use access::{Lease, User};
use filesystem::Filesystem;
use format::{ObjectId, ObjsetId};

use service::pools::OpenPool;
use serving::Serving;
use serving::mounts::Mounts;

/// Where the files of a dataset are named from.
struct Named {
    /// What stands before a path: `pool/dataset:`, or the directory where it is mounted.
    prefix: String,
    /// The dataset's name.
    name: String,
    lease: Option<Lease<Filesystem>>,
}

/// The files that the pool's damaged blocks belong to, each once.
pub async fn damaged_names(serving: &Serving, open: &OpenPool) -> Vec<String> {
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
        let named = named(&serving.mounts, open, name).await;
        for object in objects {
            out.push(named.name_of(object).await);
        }
        if let Some(lease) = named.lease
            && let Err(error) = lease.close().await
        {
            tracing::debug!(%error, "a filesystem that was opened for its names did not close");
        }
    }
    out
}

async fn named(mounts: &Mounts, open: &OpenPool, name: String) -> Named {
    let user = User::Command { name: "status" };
    // Nobody waits for a suspended pool to tell its state.
    let lease = tokio::select! {
        biased;
        lease = open.access.look(&name, user) => lease.ok(),
        () = open.pool.until_suspended() => None,
    };
    let prefix = match mounts.mountpoint(&name) {
        Some(path) => path.to_string_lossy().trim_end_matches('/').to_owned(),
        None => format!("{name}:"),
    };
    Named {
        prefix,
        name,
        lease,
    }
}

impl Named {
    async fn name_of(&self, object: ObjectId) -> String {
        let path = match &self.lease {
            Some(lease) => lease.get().path_of(object.get()).await.ok(),
            None => None,
        };
        match path {
            Some(path) => format!("{}{}", self.prefix, String::from_utf8_lossy(&path)),
            None => format!("{}:<{:#x}>", self.name, object.get()),
        }
    }
}
