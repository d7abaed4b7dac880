//! Destroying bookmarks (module/zfs/dsl_bookmark.c).

use std::sync::Arc;

use device::BoxFuture;
use format::ObjectId;
use object::{SyncContext, Zap};
use zio::Tx;

use crate::DatasetError;
use crate::bookmark::Bookmarks;
use crate::dsl::DslPool;
use crate::state::Ds;
use crate::task::{BLOCKS_MIN, SpaceCheck, SyncTask};

impl Bookmarks<'_> {
    /// Destroys bookmarks, all of them or none. One that is not there is not missed
    /// (`dsl_bookmark_destroy_check`), its dataset is.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::InvalidName`] for what is no bookmark's name.
    pub async fn destroy(&self, names: &[String]) -> Result<(), DatasetError> {
        let split = |name: &String| match name.split_once('#') {
            Some((head, bookmark)) => Ok((head.to_owned(), bookmark.to_owned())),
            None => Err(DatasetError::InvalidName {
                name: name.clone(),
                reason: "missing '#' delimiter in bookmark name".into(),
            }),
        };
        let bookmarks = names.iter().map(split).collect::<Result<_, _>>()?;
        let dsl = self.dsl.clone();
        self.dsl
            .tasks()
            .run(Arc::new(DestroyBookmarksTask { dsl, bookmarks }))
            .await?;
        self.dsl.fulfilled_each("destroy_bookmarks", names);
        Ok(())
    }

    /// Destroys one, in syncing context (`dsl_bookmark_destroy_sync_impl`).
    async fn destroy_now(
        &self,
        ctx: &SyncContext,
        head: &Arc<Ds>,
        name: &str,
    ) -> Result<(), DatasetError> {
        let (zap, gone, shares_key) = {
            let mut state = head.state();
            let bookmarks = &mut state.bookmarks;
            let Some(at) = bookmarks.entries.iter().position(|one| one.name == name) else {
                return Ok(());
            };
            let gone = bookmarks.entries.remove(at);
            let shares_key = bookmarks
                .entries
                .iter()
                .any(|other| other.counts_freed() && other.creation_txg() == gone.creation_txg());
            (bookmarks.zap, gone, shares_key)
        };
        let key = gone.creation_txg();
        let has_key = gone.counts_freed() && key < head.phys().previous_snapshot_txg;
        // Nothing else stands at this txg any more: what died around it needs no telling apart.
        if has_key && !gone.snapshot_exists() && !shares_key {
            self.dsl
                .deadlists()
                .remove_clones_key(ctx, &head.dir(), key)
                .await?;
            let mut list = self.dsl.deadlists().of(head).await?;
            list.remove_key(&self.dsl.lists, ctx, key).await?;
        }
        self.release_bookmark(ctx, &gone).await?;
        let tx = Tx::syncing(ctx.txg);
        Zap::hold(self.dsl.mos(), zap)
            .await?
            .remove(&tx, name)
            .await?;
        self.forget_empty(ctx, head).await?;
        let full_name = self.dsl.directories().full_name(head).await?;
        let text = format!("name={name}");
        self.dsl
            .history(ctx, "remove bookmark", full_name, head.object, text)
            .await
    }
}

struct DestroyBookmarksTask {
    dsl: Arc<DslPool>,
    /// Datasets, and names of their bookmarks.
    bookmarks: Vec<(String, String)>,
}

impl SyncTask for DestroyBookmarksTask {
    fn name(&self) -> &'static str {
        "destroy bookmarks"
    }
    fn space_check(&self) -> SpaceCheck {
        SpaceCheck::Reserved
    }
    fn blocks(&self) -> u64 {
        BLOCKS_MIN.max(self.bookmarks.len() as u64)
    }
    fn check<'a>(&'a self, _ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            for (head, bookmark) in &self.bookmarks {
                let head = self.dsl.directories().resolve(head).await?;
                let list = head.state().bookmarks.find(bookmark);
                let list = list.map_or(ObjectId::ZERO, |entry| entry.phys.redaction_list);
                self.dsl
                    .readable()
                    .destroyed_bookmark(&head, bookmark)
                    .await?;
                if self.dsl.lists_in_use.is_used(list) {
                    let head = self.dsl.directories().full_name(&head).await?;
                    return Err(DatasetError::Busy {
                        name: format!("{head}#{bookmark}"),
                        reason: "it is being made, or sent with".into(),
                    });
                }
            }
            Ok(())
        })
    }
    fn apply<'a>(&'a self, ctx: &'a SyncContext) -> BoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async {
            for (head, bookmark) in &self.bookmarks {
                let head = self.dsl.directories().resolve(head).await?;
                self.dsl
                    .bookmarks()
                    .destroy_now(ctx, &head, bookmark)
                    .await?;
            }
            Ok(())
        })
    }
}
