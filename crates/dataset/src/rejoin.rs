//! Datasets that raw streams parted from their encryption root, and how they get back below it.
//!
//! A sender's `zfs change-key` wraps all keys of an encryption root anew at once. Their raw streams
//! come one by one, so in between some are wrapped with the key that was and some with the new
//! one: each receive parts what the root's key does not open (`raw.rs`), and notes that in its key
//! object. It inherits again as soon as a key that is loaded has opened both: when the other one's
//! key comes, or when the key of one of them is loaded. What was never parted, or was made a root
//! by a user since, is left alone.
//!
//! Each return is in one transaction group, with the receive that it follows from; a crash leaves
//! a root of its own, which its key opens.

use std::collections::HashSet;
use std::sync::Arc;

use codec::crypt::WrappingKey;
use device::BoxFuture;
use format::{ObjectId, names};
use object::{SyncContext, Zap};
use zio::Tx;

use crate::DatasetError;
use crate::change_key::Keyed;
use crate::crypto::{Keys, PARTED, StoredKey};
use crate::dsl::DslPool;
use crate::state::Dir;
use crate::task::{SpaceCheck, SyncTask};

impl Keys<'_> {
    /// Whether it is sure that one user's key wraps a key and that of an encryption root.
    fn is_opened_as(&self, stored: &StoredKey, root: &StoredKey) -> bool {
        let opens = |wrapping: &WrappingKey, key: &StoredKey| {
            let wrapped = key.wrapped(&String::new);
            wrapped.is_ok_and(|wrapped| wrapped.unwrap_key(wrapping).is_ok())
        };
        // Equal salts prove nothing: a stream says what its maker likes.
        let loaded = [root, stored].map(|key| self.dsl.keys.root(key.root));
        let wrapping = loaded.iter().flatten().next();
        wrapping.is_some_and(|wrapping| opens(wrapping, stored) && opens(wrapping, root))
    }

    /// The encryption root that a directory goes back below, and whose keys go along; none: it
    /// stays as it is.
    async fn rejoining(
        &self,
        dir: &Arc<Dir>,
    ) -> Result<Option<(ObjectId, Vec<Keyed>)>, DatasetError> {
        let Some(parent) = dir.parent() else {
            return Ok(None);
        };
        if !self.is_parted(dir).await? {
            return Ok(None);
        }
        let Some(above) = self.stored(&parent).await? else {
            return Ok(None);
        };
        let root = self.dsl.directories().dir(above.root).await?;
        let Some(root) = self.stored(&root).await? else {
            return Ok(None);
        };
        if root.root != above.root || root.root == dir.object {
            return Ok(None);
        }
        let all = self.of_root(dir.object, dir).await?;
        let fit = all.iter().all(|(_, key)| self.is_opened_as(key, &root));
        Ok(fit.then_some((root.root, all)))
    }

    async fn is_parted(&self, dir: &Arc<Dir>) -> Result<bool, DatasetError> {
        let stored = self.stored(dir).await?;
        let is_clone = !dir.state().origin_txg.is_zero();
        Ok(stored.is_some_and(|key| key.is_parted && key.root == dir.object && !is_clone))
    }

    /// A directory, and those below it and its clones, that were parted from what is above them;
    /// each after those above.
    async fn parted(&self, top: &Arc<Dir>) -> Result<Vec<Arc<Dir>>, DatasetError> {
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        let root = self.stored(top).await?.map(|key| key.root);
        let mut roots: HashSet<_> = root.into_iter().collect();
        let mut pending = vec![top.clone()];
        while let Some(dir) = pending.pop() {
            if !seen.insert(dir.object) {
                continue;
            }
            if self.is_parted(&dir).await? {
                roots.insert(dir.object);
                found.push(dir.clone());
            }
            let root = self.stored(&dir).await?.map(|key| key.root);
            if root.is_none_or(|root| !roots.contains(&root)) {
                continue;
            }
            pending.extend(self.clones_of(&dir).await?);
            pending.extend(self.dsl.directories().children(&dir).await?);
        }
        Ok(found)
    }

    /// Makes sure that [`Self::rejoin`] can read what it needs.
    pub(crate) async fn check_rejoin(&self, top: &Arc<Dir>) -> Result<(), DatasetError> {
        let readable = self.dsl.readable();
        let mut parted = self.parted(top).await?;
        // It may be one when its key has come.
        parted.push(top.clone());
        for dir in parted {
            if let Some(parent) = dir.parent()
                && let Some(above) = self.stored(&parent).await?
            {
                let root = self.dsl.directories().dir(above.root).await?;
                self.stored(&root).await?;
            }
            let head = self.dsl.directories().head(&dir).await?;
            readable.properties(&head).await?;
            for (_, stored) in self.of_root(dir.object, &dir).await? {
                readable.whole(stored.object).await?;
            }
        }
        Ok(())
    }

    /// Has a directory, and what is below it, inherit from above again if they were parted from
    /// that and are wrapped with the same user's key now. In syncing context.
    pub(crate) async fn rejoin(
        &self,
        ctx: &SyncContext,
        top: &Arc<Dir>,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        for dir in self.parted(top).await? {
            let Some((root, all)) = self.rejoining(&dir).await? else {
                continue;
            };
            for (_, stored) in &all {
                let zap = Zap::hold(self.dsl.mos(), stored.object).await?;
                zap.update_u64(&tx, names::crypto_key::ROOT_DDOBJ, root.get())
                    .await?;
                if stored.is_parted {
                    zap.remove(&tx, PARTED).await?;
                }
            }
            let objects: Vec<_> = all.iter().map(|(_, stored)| stored.object).collect();
            self.dsl.keys.move_to_root(&objects, root);
            // What is open stays so: the key that was loaded here opens the root, too.
            if let Some(wrapping) = self.dsl.keys.take_root(dir.object)
                && !self.dsl.keys.is_loaded(root)
            {
                self.dsl.keys.load_root(root, wrapping);
            }
            let head = self.dsl.directories().head(&dir).await?;
            self.dsl
                .properties()
                .change_property_from(ctx, &head, "keylocation", None, true)
                .await?;
        }
        Ok(())
    }

    /// Does so after a directory's key was loaded, which may tell more than was known when the
    /// streams came.
    pub(crate) async fn rejoin_loaded(&self, top: &Arc<Dir>) -> Result<(), DatasetError> {
        let mut is_needed = false;
        {
            let _config = self.dsl.config.read().await;
            for dir in self.parted(top).await? {
                is_needed |= self.rejoining(&dir).await?.is_some();
            }
        }
        if !is_needed {
            return Ok(());
        }
        let task = RejoinTask {
            dsl: self.dsl.clone(),
            top: top.object,
        };
        self.dsl.tasks().run(Arc::new(task)).await
    }
}

struct RejoinTask {
    dsl: Arc<DslPool>,
    top: ObjectId,
}

impl SyncTask for RejoinTask {
    fn name(&self) -> &'static str {
        "inherit the encryption root again"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::ExtraReserved
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let top = self.dsl.directories().dir(self.top).await?;
            self.dsl.keys().check_rejoin(&top).await
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            let top = self.dsl.directories().dir(self.top).await?;
            self.dsl.keys().rejoin(ctx, &top).await
        })
    }
}
