//! Datasets as they are listed: what is told of each, and of all below one.

use std::sync::Arc;

use device::BoxFuture;
use format::{DslDatasetPhys, ObjectId, ObjsetKind};
use object::Zap;

use crate::DatasetError;
use crate::directories::{Directories, several_at_once};
use crate::info::{DatasetInfo, DatasetKind, ListOptions, Lost, kind_of, none_lost};
use crate::state::{Dir, Ds};

/// Snapshots of a chain that are asked what a dataset is whose root cannot be read.
const NEARBY_MAX: usize = 8;

impl Directories<'_> {
    /// A dataset in numbers. One whose root cannot be read is what its snapshots are; without any
    /// it is shown as a filesystem, so that it can be seen and destroyed.
    pub(crate) async fn info(&self, dataset: &Arc<Ds>) -> Result<DatasetInfo, DatasetError> {
        let name = self.full_name(dataset).await?;
        let kind = match self.objset_kind(dataset).await {
            Ok(kind) => kind,
            Err(error) => {
                tracing::debug!(name, %error, "whether it is a filesystem or a volume is guessed");
                self.kind_nearby(dataset).await
            }
        };
        let head_kind = kind_of(kind);
        let (phys, dir) = {
            let state = dataset.state();
            (state.phys, state.dir.clone())
        };
        let is_snapshot = phys.is_snapshot();
        let origin = if is_snapshot {
            None
        } else {
            self.origin_name(&dir).await?
        };
        Ok(DatasetInfo {
            name,
            kind: if is_snapshot {
                DatasetKind::Snapshot
            } else {
                head_kind
            },
            head_kind,
            object: dataset.object,
            guid: phys.guid,
            creation_seconds: phys.creation_time_seconds,
            createtxg: phys.creation_txg,
            used_bytes: if is_snapshot {
                phys.unique_bytes
            } else {
                dir.state().phys.used_bytes
            },
            available_bytes: if is_snapshot {
                0
            } else {
                self.dsl.space().available_to(dataset)
            },
            referenced_bytes: phys.referenced_bytes,
            origin,
            is_inconsistent: phys.flags & DslDatasetPhys::FLAG_INCONSISTENT != 0,
            is_redacted: dataset.redacted_with().is_some(),
            user_holds: dataset.state().user_holds,
        })
    }

    /// Whether a dataset whose own root cannot be read is a filesystem or a volume, as the nearest
    /// snapshots of its chain say: those before it, and of a snapshot those after it.
    async fn kind_nearby(&self, dataset: &Arc<Ds>) -> ObjsetKind {
        let before: fn(&DslDatasetPhys) -> ObjectId = |phys| phys.previous_snapshot;
        for next in [before, |phys| phys.next_snapshot] {
            let mut at = dataset.phys();
            for _ in 0..NEARBY_MAX {
                let id = next(&at);
                if id.is_zero() {
                    break;
                }
                let Ok(other) = self.dataset(id).await else {
                    break;
                };
                match self.objset_kind(&other).await {
                    // The empty snapshot before all.
                    Ok(ObjsetKind::None) => break,
                    Ok(kind) => return kind,
                    Err(_) => at = other.phys(),
                }
            }
        }
        ObjsetKind::None
    }

    pub(crate) async fn origin_name(&self, dir: &Arc<Dir>) -> Result<Option<String>, DatasetError> {
        let (origin, is_clone) = {
            let state = dir.state();
            (state.phys.origin, !state.origin_txg.is_zero())
        };
        if !is_clone {
            return Ok(None);
        }
        let origin = self.dataset(origin).await?;
        Ok(Some(self.full_name(&origin).await?))
    }

    /// A dataset or snapshot in numbers.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn lookup(&self, name: &str) -> Result<DatasetInfo, DatasetError> {
        let _config = self.dsl.config.read().await;
        let dataset = self.resolve(name).await?;
        self.info(&dataset).await
    }

    /// The dataset `name` and what is below it: each dataset, its snapshots in the order of their
    /// creation, then its children by name.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; errors of reading anything of that.
    pub async fn list(
        &self,
        name: &str,
        options: &ListOptions,
    ) -> Result<Vec<DatasetInfo>, DatasetError> {
        let (listed, lost) = self.list_readable(name, options).await?;
        none_lost(listed, lost)
    }

    /// The same of what can be read, and what cannot, with the reason: a dataset by its name,
    /// `NAME/...` for what is below one, `NAME@...` for its snapshots.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; errors of reading `name`.
    pub fn list_readable<'s>(
        &'s self,
        name: &'s str,
        options: &'s ListOptions,
    ) -> BoxFuture<'s, Result<(Vec<DatasetInfo>, Lost), DatasetError>> {
        Box::pin(async move {
            let _config = self.dsl.config.read().await;
            let (mut out, mut lost) = (Vec::new(), Lost::new());
            let top = self.resolve(name).await?;
            if top.is_snapshot() {
                if options.snapshots {
                    out.push(self.info(&top).await?);
                }
                return Ok((out, lost));
            }
            let mut pending = vec![(top.dir(), 0usize)];
            while let Some((dir, depth)) = pending.pop() {
                let name = dir.full_name(&self.dsl.pool_name());
                let goes_deeper = options.depth.is_none_or(|most| depth < most);
                let read = async {
                    let head = self.head(&dir).await?;
                    let info = self.info(&head).await?;
                    Ok::<_, DatasetError>((head, info))
                };
                match read.await {
                    Err(error) => lost.push((name, error)),
                    Ok((head, info)) => {
                        let wanted = match info.kind {
                            DatasetKind::Volume => options.volumes,
                            _ => options.filesystems,
                        };
                        if wanted {
                            out.push(info);
                        }
                        if goes_deeper && options.snapshots {
                            match self.snapshot_infos(&head).await {
                                Ok(infos) => out.extend(infos),
                                Err(error) => lost.push((format!("{name}@..."), error)),
                            }
                        }
                    }
                }
                if goes_deeper {
                    let children = self.children_and_lost(&dir, &mut lost).await;
                    let mut unknown = children.clone();
                    unknown.retain(|child| !self.has_head(child));
                    several_at_once(unknown, |child| self.read_head(child)).await;
                    pending.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
                }
            }
            Ok((out, lost))
        })
    }

    async fn snapshot_infos(&self, head: &Arc<Ds>) -> Result<Vec<DatasetInfo>, DatasetError> {
        let snapshots = self.snapshots(head).await?;
        let mut unknown: Vec<Arc<Ds>> = Vec::new();
        for (_, snapshot) in &snapshots {
            if snapshot.state().kind.is_none() {
                unknown.push(snapshot.clone());
            }
        }
        several_at_once(unknown, |snapshot| self.read_kind(snapshot)).await;
        let mut infos = Vec::with_capacity(snapshots.len());
        for (_, snapshot) in snapshots {
            infos.push(self.info(&snapshot).await?);
        }
        Ok(infos)
    }

    /// Whether the head of a directory is in memory.
    fn has_head(&self, dir: &Arc<Dir>) -> bool {
        let head = dir.state().phys.head_dataset;
        self.dsl.registry.dataset(head).is_some()
    }

    /// Reads what will be told of a directory. Where that fails, so it does again, and is told.
    async fn read_head(&self, dir: Arc<Dir>) {
        if let Ok(head) = self.head(&dir).await {
            self.read_kind(head).await;
        }
    }

    /// The same of a dataset.
    async fn read_kind(&self, dataset: Arc<Ds>) {
        if let Err(error) = self.objset_kind(&dataset).await {
            tracing::debug!(dataset = %dataset.object, %error, "what it holds cannot be read");
        }
    }

    /// Full names of a snapshot's clones, hidden ones left out: none for what is no snapshot. This
    /// costs by the clones, unless the snapshot's list of them is incomplete.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; errors of reading a clone.
    pub async fn clones(&self, name: &str) -> Result<Vec<String>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let snapshot = self.resolve(name).await?;
        if !snapshot.is_snapshot() {
            return Ok(Vec::new());
        }
        let mut names = self.clone_names(&snapshot).await?;
        names.retain(|name| !name.contains("/%"));
        Ok(names)
    }

    /// Full names of a snapshot's clones, hidden ones too. A list that does not have as many as the
    /// snapshot counts, as those of pools that were upgraded long ago, is not believed
    /// (`get_clones_stat_impl`, module/zfs/dsl_dataset.c): all datasets are asked.
    pub(crate) async fn clone_names(
        &self,
        snapshot: &Arc<Ds>,
    ) -> Result<Vec<String>, DatasetError> {
        let phys = snapshot.phys();
        let count = phys.children.saturating_sub(1);
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut clones = Vec::new();
        match self.listed_clones(&phys).await? {
            listed if listed.len() as u64 == count => {
                for clone in listed {
                    clones.push(self.dataset(clone).await?.dir());
                }
            }
            _ => {
                let all = self.heads().await.into_iter().map(|head| head.dir());
                clones.extend(all.filter(|dir| dir.state().phys.origin == snapshot.object));
            }
        }
        let pool = self.dsl.pool_name();
        let mut out: Vec<String> = clones.iter().map(|dir| dir.full_name(&pool)).collect();
        out.sort();
        Ok(out)
    }

    /// What a snapshot's list of clones says: a dataset of each.
    async fn listed_clones(&self, phys: &DslDatasetPhys) -> Result<Vec<ObjectId>, DatasetError> {
        if phys.next_clones.is_zero() {
            return Ok(Vec::new());
        }
        let list = Zap::hold(self.dsl.mos(), phys.next_clones).await?;
        let entries = list.all().await?;
        let clones = entries.iter().map(|entry| entry.value.as_u64());
        Ok(clones
            .map(|clone| ObjectId::new(clone.unwrap_or(0)))
            .collect())
    }

    /// Full name of the dataset that has this object number.
    ///
    /// # Errors
    /// [`DatasetError::Object`] when there is none.
    pub async fn name_of(&self, object: ObjectId) -> Result<String, DatasetError> {
        let _config = self.dsl.config.read().await;
        let dataset = self.dataset(object).await?;
        self.full_name(&dataset).await
    }
}
