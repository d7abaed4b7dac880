//! Looking: names, lists, numbers and properties of datasets.
//!
//! Functions that are public take the configuration's lock for reading; those for this crate
//! expect that the caller holds it (or is a sync task), as taking it twice would deadlock with a
//! sync task that waits in between.

use std::sync::Arc;

use format::{DslDatasetPhys, ObjectId, ObjsetKind, ObjsetPhys};
use object::Zap;
use zio::ReadContext;

use crate::create::{FILESYSTEM_COUNT, SNAPSHOT_COUNT, kind_of};
use crate::dsl::DslPool;
use crate::info::{DatasetInfo, DatasetKind, ListOptions};
use crate::name::split_snapshot;
use crate::props::{Kinds, PROPERTIES, find};
use crate::state::{Dir, Ds};
use crate::{DatasetError, PropertySetting, PropertySource, PropertyValue};

/// Object of a volume's properties (`ZVOL_ZAP_OBJ`), and of its data (`ZVOL_OBJ`).
const VOLUME_PROPERTIES: ObjectId = ObjectId::new(2);
const VOLUME_DATA: ObjectId = ObjectId::new(1);

/// Compression ratio in hundredths.
fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    match compressed {
        0 => 100,
        compressed => (u128::from(uncompressed) * 100 / u128::from(compressed)) as u64,
    }
}

impl DslPool {
    /// The directory called `name`.
    pub(crate) async fn resolve_dir(&self, name: &str) -> Result<Arc<Dir>, DatasetError> {
        let mut parts = name.split('/');
        if parts.next() != Some(self.pool_name().as_str()) {
            return Err(DatasetError::not_found(name));
        }
        let mut dir = self.root_dir().clone();
        for part in parts {
            dir = self
                .child_dir(&dir, part)
                .await?
                .ok_or_else(|| DatasetError::not_found(name))?;
        }
        Ok(dir)
    }

    /// The dataset or snapshot called `name`.
    pub(crate) async fn resolve(&self, name: &str) -> Result<Arc<Ds>, DatasetError> {
        let (head_name, snapshot) = split_snapshot(name);
        let dir = self.resolve_dir(head_name).await?;
        let head = self.head(&dir).await?;
        match snapshot {
            None => Ok(head),
            Some(snapshot) => self
                .snapshot_of(&head, snapshot)
                .await?
                .ok_or_else(|| DatasetError::not_found(name)),
        }
    }

    /// The snapshot of `head` called `name`, if there is one.
    pub(crate) async fn snapshot_of(
        &self,
        head: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<Arc<Ds>>, DatasetError> {
        let names = head.phys().snapshot_names;
        let Some(object) = Zap::hold(self.mos(), names).await?.lookup_u64(name).await? else {
            return Ok(None);
        };
        let snapshot = self.dataset(object.into()).await?;
        snapshot
            .state()
            .snapshot_name
            .get_or_insert_with(|| name.to_owned());
        Ok(Some(snapshot))
    }

    /// Name of a snapshot, after the `@`.
    pub(crate) async fn snapshot_name(&self, snapshot: &Arc<Ds>) -> Result<String, DatasetError> {
        if let Some(name) = &snapshot.state().snapshot_name {
            return Ok(name.clone());
        }
        let head = self.head(&snapshot.dir()).await?;
        let names = head.phys().snapshot_names;
        let name = Zap::hold(self.mos(), names)
            .await?
            .value_search(snapshot.object.get(), u64::MAX)
            .await?
            .ok_or_else(|| {
                DatasetError::corrupt(
                    snapshot.object,
                    "its dataset does not have it as a snapshot",
                )
            })?;
        let name = String::from_utf8_lossy(&name).into_owned();
        snapshot.state().snapshot_name = Some(name.clone());
        Ok(name)
    }

    /// Full name of a dataset or snapshot.
    pub(crate) async fn full_name(&self, dataset: &Arc<Ds>) -> Result<String, DatasetError> {
        let head = dataset.dir().full_name(&self.pool_name());
        if !dataset.is_snapshot() {
            return Ok(head);
        }
        Ok(format!("{head}@{}", self.snapshot_name(dataset).await?))
    }

    /// Directories below a directory, hidden ones left out, sorted by name.
    pub(crate) async fn children(&self, dir: &Arc<Dir>) -> Result<Vec<Arc<Dir>>, DatasetError> {
        let children = dir.state().phys.child_directories;
        let mut out = Vec::new();
        for entry in Zap::hold(self.mos(), children).await?.all().await? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if name.starts_with(['$', '%']) {
                continue;
            }
            if let Some(child) = self.child_dir(dir, &name).await? {
                out.push((name, child));
            }
        }
        out.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(out.into_iter().map(|(_, dir)| dir).collect())
    }

    /// Snapshots of a head with their names, oldest first.
    pub(crate) async fn snapshots(
        &self,
        head: &Arc<Ds>,
    ) -> Result<Vec<(String, Arc<Ds>)>, DatasetError> {
        let names = head.phys().snapshot_names;
        let mut out = Vec::new();
        for entry in Zap::hold(self.mos(), names).await?.all().await? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let snapshot = self
                .dataset(entry.value.as_u64().unwrap_or(0).into())
                .await?;
            let (txg, number) = {
                let mut state = snapshot.state();
                state.snapshot_name.get_or_insert_with(|| name.clone());
                (state.phys.creation_txg, snapshot.object)
            };
            out.push((txg, number, name, snapshot));
        }
        out.sort_by_key(|(txg, number, ..)| (*txg, *number));
        Ok(out
            .into_iter()
            .map(|(_, _, name, snapshot)| (name, snapshot))
            .collect())
    }

    /// What a dataset's object set holds.
    pub(crate) async fn objset_kind(&self, dataset: &Arc<Ds>) -> Result<ObjsetKind, DatasetError> {
        if let Some(kind) = dataset.state().kind {
            return Ok(kind);
        }
        if let Some(objset) = dataset.open_objset() {
            let kind = objset.kind();
            dataset.state().kind = Some(kind);
            return Ok(kind);
        }
        let root = dataset.phys().block;
        let kind = if root.is_hole() {
            ObjsetKind::None
        } else {
            // Of an encrypted dataset this is in the clear, and shown without its key.
            let context = ReadContext {
                without_key: true,
                ..ReadContext::new(format::Bookmark {
                    objset: dataset.object.get().into(),
                    level: -1,
                    ..format::Bookmark::default()
                })
            };
            let data = self.env().pipeline.read(&root, &context).await?;
            ObjsetPhys::decode(&data, root.endian())?.kind
        };
        dataset.state().kind = Some(kind);
        Ok(kind)
    }

    /// A dataset in numbers.
    pub(crate) async fn info(&self, dataset: &Arc<Ds>) -> Result<DatasetInfo, DatasetError> {
        let name = self.full_name(dataset).await?;
        let head_kind = kind_of(self.objset_kind(dataset).await?);
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
                self.dataset_available(dataset)
            },
            referenced_bytes: phys.referenced_bytes,
            origin,
            is_inconsistent: phys.flags & DslDatasetPhys::FLAG_INCONSISTENT != 0,
        })
    }

    async fn origin_name(&self, dir: &Arc<Dir>) -> Result<Option<String>, DatasetError> {
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
        let _config = self.config.read().await;
        let dataset = self.resolve(name).await?;
        self.info(&dataset).await
    }

    /// The dataset `name` and what is below it: each dataset, its snapshots in the order of their
    /// creation, then its children by name.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn list(
        &self,
        name: &str,
        options: &ListOptions,
    ) -> Result<Vec<DatasetInfo>, DatasetError> {
        let _config = self.config.read().await;
        let mut out = Vec::new();
        let top = self.resolve(name).await?;
        if top.is_snapshot() {
            if options.snapshots {
                out.push(self.info(&top).await?);
            }
            return Ok(out);
        }
        let mut pending = vec![(top.dir(), 0usize)];
        while let Some((dir, depth)) = pending.pop() {
            let head = self.head(&dir).await?;
            let goes_deeper = options.depth.is_none_or(|most| depth < most);
            let info = self.info(&head).await?;
            let wanted = match info.kind {
                DatasetKind::Volume => options.volumes,
                _ => options.filesystems,
            };
            if wanted {
                out.push(info);
            }
            if !goes_deeper {
                continue;
            }
            if options.snapshots {
                for (_, snapshot) in self.snapshots(&head).await? {
                    out.push(self.info(&snapshot).await?);
                }
            }
            let children = self.children(&dir).await?;
            pending.extend(children.into_iter().rev().map(|child| (child, depth + 1)));
        }
        Ok(out)
    }

    /// Full name of the dataset that has this object number.
    ///
    /// # Errors
    /// [`DatasetError::Object`] when there is none.
    pub async fn name_of(&self, object: ObjectId) -> Result<String, DatasetError> {
        let _config = self.config.read().await;
        let dataset = self.dataset(object).await?;
        self.full_name(&dataset).await
    }

    /// Every property of a dataset, native ones in the order of `zfs get all`, then user
    /// properties. What only a mount knows (`mounted`) is not here.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn properties(&self, name: &str) -> Result<Vec<PropertySetting>, DatasetError> {
        let _config = self.config.read().await;
        let dataset = self.resolve(name).await?;
        let mut out = Vec::new();
        for property in PROPERTIES.iter().filter(|property| property.visible) {
            if let Some(setting) = self.setting(&dataset, property.name).await? {
                out.push(setting);
            }
        }
        for (name, value, source) in self.user_properties(&dataset).await? {
            out.push(PropertySetting {
                name,
                value,
                source,
            });
        }
        Ok(out)
    }

    /// Those of [`Self::properties`] that are among `names`, in their order; what a dataset has not is left out.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn properties_named(
        &self,
        name: &str,
        names: &[String],
    ) -> Result<Vec<PropertySetting>, DatasetError> {
        let is_told = |name: &str| match find(name) {
            Some(property) => property.visible,
            None => name.contains(':'),
        };
        let names: Vec<&String> = names.iter().filter(|name| is_told(name)).collect();
        let mut out = Vec::new();
        if names.is_empty() {
            return Ok(out);
        }
        let _config = self.config.read().await;
        let dataset = self.resolve(name).await?;
        for name in names {
            out.extend(self.setting(&dataset, name).await?);
        }
        Ok(out)
    }

    /// One property, native, `written@SNAPSHOT`, or a user property.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::InvalidProperty`] when the dataset has no such
    /// property.
    pub async fn property(
        &self,
        name: &str,
        property: &str,
    ) -> Result<PropertySetting, DatasetError> {
        let _config = self.config.read().await;
        let dataset = self.resolve(name).await?;
        self.setting(&dataset, property)
            .await?
            .ok_or_else(|| DatasetError::InvalidProperty {
                property: property.to_owned(),
                reason: format!("'{name}' has no property '{property}'"),
            })
    }

    /// The kinds that a property must meet to exist on a dataset: for a snapshot also the kind of
    /// what it is a snapshot of (`zprop_valid_for_type` with `headcheck`).
    async fn has_property(&self, dataset: &Arc<Ds>, kinds: Kinds) -> Result<bool, DatasetError> {
        let head = kind_of(self.objset_kind(dataset).await?).kinds();
        Ok(if dataset.is_snapshot() {
            kinds.meets(Kinds::SNAPSHOT)
                && (kinds.meets(head) || !kinds.meets(Kinds::FILESYSTEM.or(Kinds::VOLUME)))
        } else {
            kinds.meets(head)
        })
    }

    /// One property, as far as the dataset has it.
    pub(crate) async fn setting(
        &self,
        dataset: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<PropertySetting>, DatasetError> {
        let setting = |name: &str, value, source| {
            Some(PropertySetting {
                name: name.to_owned(),
                value,
                source,
            })
        };
        if let Some(since) = name.strip_prefix("written@") {
            let bytes = self.written_since(dataset, since).await?;
            return Ok(setting(
                name,
                PropertyValue::Number(bytes),
                PropertySource::None,
            ));
        }
        let Some(property) = find(name) else {
            return Ok(self
                .effective(dataset, name)
                .await?
                .and_then(|(value, source)| setting(name, value, source)));
        };
        let name = property.name;
        if !self.has_property(dataset, property.kinds).await? {
            return Ok(None);
        }
        if let Some(value) = self.key_property(dataset, name).await? {
            return Ok(setting(name, value, PropertySource::None));
        }
        if let Some(value) = self.computed(dataset, name).await? {
            let source = match (name, &value) {
                // What `zfs get` says of properties that are kept elsewhere.
                ("volsize", _) => PropertySource::Local,
                ("filesystem_count" | "snapshot_count", Some(PropertyValue::Number(u64::MAX)))
                | ("volblocksize" | "pbkdf2iters", _) => PropertySource::Default,
                ("filesystem_count" | "snapshot_count", _) => PropertySource::Local,
                _ => PropertySource::None,
            };
            return Ok(value.and_then(|value| setting(name, value, source)));
        }
        Ok(self
            .effective(dataset, name)
            .await?
            .and_then(|(value, source)| {
                // What is set once and never stored counts as no setting, but for inheritance.
                setting(name, value, source)
            }))
    }

    /// Properties that are worked out: outer `None` when it is not one of them, inner `None` when this
    /// dataset does not have it.
    async fn computed(
        &self,
        dataset: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<Option<PropertyValue>>, DatasetError> {
        let (phys, dir) = {
            let state = dataset.state();
            (state.phys, state.dir.clone())
        };
        let dir_phys = dir.state().phys;
        let is_snapshot = phys.is_snapshot();
        let number = |value: u64| Ok(Some(Some(PropertyValue::Number(value))));
        let text = |value: Option<String>| Ok(Some(value.map(PropertyValue::Text)));
        match name {
            "type" => {
                let kind = if is_snapshot {
                    DatasetKind::Snapshot
                } else {
                    kind_of(self.objset_kind(dataset).await?)
                };
                text(Some(kind.name().to_owned()))
            }
            "name" => text(Some(self.full_name(dataset).await?)),
            "creation" => number(phys.creation_time_seconds),
            "createtxg" => number(phys.creation_txg.get()),
            "guid" => number(phys.guid.get()),
            "objsetid" => number(dataset.object.get()),
            "unique" => number(phys.unique_bytes),
            "used" if is_snapshot => number(phys.unique_bytes),
            "used" => number(dir_phys.used_bytes),
            "available" => number(self.dataset_available(dataset)),
            "referenced" => number(phys.referenced_bytes),
            "logicalreferenced" => number(phys.uncompressed_bytes),
            "logicalused" => number(dir_phys.uncompressed_bytes),
            "refcompressratio" => number(ratio(phys.uncompressed_bytes, phys.compressed_bytes)),
            "compressratio" if is_snapshot => {
                number(ratio(phys.uncompressed_bytes, phys.compressed_bytes))
            }
            "compressratio" => number(ratio(
                dir_phys.uncompressed_bytes,
                dir_phys.compressed_bytes,
            )),
            "usedbydataset" => number(dir_phys.used_breakdown[0]),
            "usedbysnapshots" => number(dir_phys.used_breakdown[1]),
            "usedbychildren" => number(dir_phys.used_breakdown[2] + dir_phys.used_breakdown[3]),
            "usedbyrefreservation" => number(dir_phys.used_breakdown[4]),
            "written" => {
                if phys.previous_snapshot.is_zero() {
                    return Ok(Some(None));
                }
                let previous = self.dataset(phys.previous_snapshot).await?;
                number(self.written_between(&previous, dataset).await?)
            }
            "origin" => text(self.origin_name(&dir).await?),
            "prevsnap" => {
                let prev = dataset.prev();
                let is_own = prev
                    .as_ref()
                    .is_some_and(|prev| Arc::ptr_eq(&prev.dir(), &dir));
                match prev {
                    Some(prev) if is_own => text(Some(self.full_name(&prev).await?)),
                    _ => Ok(Some(None)),
                }
            }
            "clones" => text(Some(self.clone_names(&phys).await?.join(","))),
            "numclones" => number(phys.children.saturating_sub(1)),
            "userrefs" => number(dataset.state().user_holds),
            "defer_destroy" => number(u64::from(
                phys.flags & DslDatasetPhys::FLAG_DEFER_DESTROY != 0,
            )),
            "inconsistent" => number(u64::from(
                phys.flags & DslDatasetPhys::FLAG_INCONSISTENT != 0,
            )),
            "filesystem_count" => number(self.counted(&dir, FILESYSTEM_COUNT).await?),
            "snapshot_count" => number(self.counted(&dir, SNAPSHOT_COUNT).await?),
            "snapshots_changed" => self.snapshots_changed(&dir).await.map(Some),
            "mounted"
            | "receive_resume_token"
            | "redact_snaps"
            | "encryptionroot"
            | "useraccounting"
            | "keyguid"
            | "ivsetguid"
            | "redacted" => Ok(Some(None)),
            "keystatus" => Ok(Some(None)),
            "pbkdf2iters" => number(0),
            "volsize" | "volblocksize" => Ok(Some(self.volume_property(dataset, name).await?)),
            "version" | "utf8only" | "normalization" | "casesensitivity" => {
                Ok(Some(self.filesystem_property(dataset, name).await?))
            }
            _ => Ok(None),
        }
    }

    async fn counted(&self, dir: &Arc<Dir>, which: &str) -> Result<u64, DatasetError> {
        if !dir.state().is_zapified {
            return Ok(u64::MAX);
        }
        let zap = Zap::hold(self.mos(), dir.object).await?;
        Ok(zap.lookup_u64(which).await?.unwrap_or(u64::MAX))
    }

    async fn snapshots_changed(
        &self,
        dir: &Arc<Dir>,
    ) -> Result<Option<PropertyValue>, DatasetError> {
        if !dir.state().is_zapified {
            return Ok(None);
        }
        let zap = Zap::hold(self.mos(), dir.object).await?;
        let value = zap.lookup("com.ixsystems:snapshots_changed").await?;
        Ok(value
            .and_then(|value| value.to_u64s().first().copied())
            .map(PropertyValue::Number))
    }

    /// Full names of a snapshot's clones.
    async fn clone_names(&self, phys: &DslDatasetPhys) -> Result<Vec<String>, DatasetError> {
        let mut out = Vec::new();
        if !phys.next_clones.is_zero() {
            for entry in Zap::hold(self.mos(), phys.next_clones).await?.all().await? {
                let clone = self
                    .dataset(entry.value.as_u64().unwrap_or(0).into())
                    .await?;
                out.push(clone.dir().full_name(&self.pool_name()));
            }
        }
        out.sort();
        Ok(out)
    }

    /// Space referenced by `newer` that was written since `older`, which is in its chain
    /// (`dsl_dataset_space_written`).
    async fn written_between(&self, older: &Arc<Ds>, newer: &Arc<Ds>) -> Result<u64, DatasetError> {
        let older_phys = older.phys();
        let mut total = newer.phys().referenced_bytes as i64 - older_phys.referenced_bytes as i64;
        let mut at = newer.clone();
        while at.object != older.object {
            let phys = at.phys();
            // What died since, of what the older one has.
            let space = if phys.previous_snapshot == older.object {
                crate::deadlist::Deadlist::space_of(self.mos(), phys.deadlist).await?
            } else {
                crate::deadlist::Deadlist::open(self.mos(), phys.deadlist)
                    .await?
                    .space_range(self, format::Txg::ZERO, older_phys.creation_txg)
                    .await?
            };
            total += space.used;
            if phys.previous_snapshot.is_zero() {
                return Err(DatasetError::WrongKind {
                    name: self.full_name(older).await?,
                    reason: "it is not an earlier snapshot of the same dataset".into(),
                });
            }
            at = self.dataset(phys.previous_snapshot).await?;
        }
        Ok(total.max(0) as u64)
    }

    /// Space that would come free if the snapshots from `first` to `last` of one dataset were
    /// destroyed: what was born after the snapshot before them and died before the one after them
    /// (`dsl_dataset_space_wouldfree`).
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; [`DatasetError::WrongKind`] where they are no such range.
    pub async fn space_freed_with(&self, first: &str, last: &str) -> Result<u64, DatasetError> {
        let _config = self.config.read().await;
        let (first_ds, last_ds) = (self.resolve(first).await?, self.resolve(last).await?);
        let no_range = || DatasetError::WrongKind {
            name: first.to_owned(),
            reason: format!("it is not an earlier snapshot of the dataset of {last}"),
        };
        if !first_ds.is_snapshot()
            || !last_ds.is_snapshot()
            || !Arc::ptr_eq(&first_ds.dir(), &last_ds.dir())
        {
            return Err(no_range());
        }
        let since = first_ds.phys().previous_snapshot_txg;
        let mut total = 0i64;
        let mut at = last_ds.phys().next_snapshot;
        while at != first_ds.object {
            if at.is_zero() {
                return Err(no_range());
            }
            let phys = self.dataset(at).await?.phys();
            total += crate::deadlist::Deadlist::open(self.mos(), phys.deadlist)
                .await?
                .space_range(self, since, format::Txg::new(u64::MAX))
                .await?
                .used;
            at = phys.previous_snapshot;
        }
        Ok(total.max(0) as u64)
    }

    async fn written_since(&self, dataset: &Arc<Ds>, since: &str) -> Result<u64, DatasetError> {
        let older = if since.contains('@') {
            self.resolve(since).await?
        } else {
            let head = dataset.dir().full_name(&self.pool_name());
            self.resolve(&format!("{head}@{since}")).await?
        };
        self.written_between(&older, dataset).await
    }

    async fn volume_property(
        &self,
        dataset: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<PropertyValue>, DatasetError> {
        if self.objset_kind(dataset).await? != ObjsetKind::Volume {
            return Ok(None);
        }
        let objset = self.peek_objset(dataset).await?;
        if name == "volsize" {
            let zap = Zap::hold(&objset, VOLUME_PROPERTIES).await?;
            return Ok(zap.lookup_u64("size").await?.map(PropertyValue::Number));
        }
        let data = objset.hold(VOLUME_DATA).await?;
        Ok(Some(PropertyValue::Number(u64::from(
            data.info().data_block_bytes,
        ))))
    }

    pub(crate) async fn filesystem_property(
        &self,
        dataset: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<PropertyValue>, DatasetError> {
        if self.objset_kind(dataset).await? != ObjsetKind::Filesystem {
            return Ok(None);
        }
        let objset = self.peek_objset(dataset).await?;
        let zap = Zap::hold(&objset, ObjectId::MASTER_NODE).await?;
        let stored = if name == "version" { "VERSION" } else { name };
        // Old filesystems keep only what differs from the default.
        let value = zap.lookup_u64(stored).await?.unwrap_or(0);
        Ok(Some(PropertyValue::Number(value)))
    }
}
