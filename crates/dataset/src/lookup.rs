//! Looking at properties: those that are stored or inherited, and those that are worked out.
//!
//! Public functions take the namespace's lock (`DslPool::config`) shared; those for this crate
//! expect that the caller holds it (or is a sync task), as taking it twice would deadlock with a
//! sync task that waits in between.

use device::BoxFuture;
use std::sync::Arc;

use format::{DslDatasetPhys, ObjectId, ObjsetKind, names};
use object::Zap;

use crate::info::{DatasetKind, kind_of};
use crate::props::{Kinds, PROPERTIES, find};
use crate::state::{Dir, Ds};
use crate::stored::Properties;
use crate::{DatasetError, PropertySetting, PropertySource, PropertyValue};

/// Compression ratio in hundredths.
fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    match compressed {
        0 => 100,
        compressed => (u128::from(uncompressed) * 100 / u128::from(compressed)) as u64,
    }
}

impl Properties<'_> {
    /// Every property of a dataset, native ones in the order of `zfs get all`, then user
    /// properties. What only a mount knows (`mounted`) is not here.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn all(&self, name: &str) -> Result<Vec<PropertySetting>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let dataset = self.dsl.directories().resolve(name).await?;
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

    /// Those of [`Self::properties`] that are among `names`, in their order; what a dataset has not
    /// is left out.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn named(
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
        let _config = self.dsl.config.read().await;
        let dataset = self.dsl.directories().resolve(name).await?;
        for name in names {
            out.extend(self.setting(&dataset, name).await?);
        }
        Ok(out)
    }

    /// What a receive brought, also where something else counts (`dsl_prop_get_received`).
    ///
    /// # Errors
    /// [`DatasetError::NotFound`].
    pub async fn received(&self, name: &str) -> Result<Vec<PropertySetting>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let dataset = self.dsl.directories().resolve(name).await?;
        let received = self.received_values(&dataset).await?.into_iter();
        Ok(received
            .map(|(name, value)| PropertySetting {
                name,
                value,
                source: PropertySource::Received,
            })
            .collect())
    }

    /// One property, native, `written@SNAPSHOT`, or a user property.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`], [`DatasetError::InvalidProperty`] when the dataset has no such
    /// property.
    pub async fn get(&self, name: &str, property: &str) -> Result<PropertySetting, DatasetError> {
        let _config = self.dsl.config.read().await;
        let dataset = self.dsl.directories().resolve(name).await?;
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
        let head = kind_of(self.dsl.directories().objset_kind(dataset).await?).kinds();
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
        if let Some(since) = name.strip_prefix("written")
            && since.starts_with(['@', '#'])
        {
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
        if let Some(value) = self.dsl.keys().property(dataset, name).await? {
            // Keys that are no passphrases have none.
            let source = match (name, &value) {
                ("pbkdf2iters", PropertyValue::Number(0)) => PropertySource::Default,
                _ => PropertySource::None,
            };
            return Ok(setting(name, value, source));
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

    /// Properties that are worked out: outer `None` when it is not one of them, inner `None` when
    /// this dataset does not have it.
    fn computed<'a>(
        &'a self,
        dataset: &'a Arc<Ds>,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Option<PropertyValue>>, DatasetError>> {
        Box::pin(async move {
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
                        kind_of(self.dsl.directories().objset_kind(dataset).await?)
                    };
                    text(Some(kind.name().to_owned()))
                }
                "name" => text(Some(self.dsl.directories().full_name(dataset).await?)),
                "creation" => number(phys.creation_time_seconds),
                "createtxg" => number(phys.creation_txg.get()),
                "guid" => number(phys.guid.get()),
                "objsetid" => number(dataset.object.get()),
                "unique" => number(phys.unique_bytes),
                "used" if is_snapshot => number(phys.unique_bytes),
                "used" => number(dir_phys.used_bytes),
                "available" => number(self.dsl.space().available_to(dataset)),
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
                    let previous = self
                        .dsl
                        .directories()
                        .dataset(phys.previous_snapshot)
                        .await?;
                    number(self.written_between(&previous, dataset).await?)
                }
                "origin" => text(self.dsl.directories().origin_name(&dir).await?),
                "prevsnap" => {
                    let prev = dataset.prev();
                    let is_own = prev
                        .as_ref()
                        .is_some_and(|prev| Arc::ptr_eq(&prev.dir(), &dir));
                    match prev {
                        Some(prev) if is_own => {
                            text(Some(self.dsl.directories().full_name(&prev).await?))
                        }
                        _ => Ok(Some(None)),
                    }
                }
                "clones" => {
                    let names = self.dsl.directories().clone_names(dataset).await?;
                    text(Some(names.join(",")))
                }
                "numclones" => number(phys.children.saturating_sub(1)),
                "userrefs" => number(dataset.state().user_holds),
                "defer_destroy" => number(u64::from(
                    phys.flags & DslDatasetPhys::FLAG_DEFER_DESTROY != 0,
                )),
                "inconsistent" => number(u64::from(
                    phys.flags & DslDatasetPhys::FLAG_INCONSISTENT != 0,
                )),
                "filesystem_count" => number(
                    self.counted(&dir, names::directory::FILESYSTEM_COUNT)
                        .await?,
                ),
                "snapshot_count" => {
                    number(self.counted(&dir, names::directory::SNAPSHOT_COUNT).await?)
                }
                "snapshots_changed" => self.snapshots_changed(&dir).await.map(Some),
                "receive_resume_token" if is_snapshot => Ok(Some(None)),
                "receive_resume_token" => {
                    let name = self.dsl.directories().full_name(dataset).await?;
                    text(self.dsl.receives().token(&name).await?)
                }
                "redact_snaps" => text(dataset.redacted_with().map(|guids| {
                    let guids = guids.iter().map(|guid| guid.to_string());
                    guids.collect::<Vec<_>>().join(",")
                })),
                "redacted" => number(u64::from(dataset.redacted_with().is_some())),
                "mounted" | "encryptionroot" | "useraccounting" | "keyguid" | "ivsetguid" => {
                    Ok(Some(None))
                }
                "keystatus" => Ok(Some(None)),
                "pbkdf2iters" => number(0),
                "volsize" | "volblocksize" => Ok(Some(self.volume_property(dataset, name).await?)),
                "version" | "utf8only" | "normalization" | "casesensitivity" => {
                    Ok(Some(self.filesystem_property(dataset, name).await?))
                }
                _ => Ok(None),
            }
        })
    }

    async fn counted(&self, dir: &Arc<Dir>, which: &str) -> Result<u64, DatasetError> {
        if !dir.state().is_zapified {
            return Ok(u64::MAX);
        }
        let zap = Zap::hold(self.dsl.mos(), dir.object).await?;
        Ok(zap.lookup_u64(which).await?.unwrap_or(u64::MAX))
    }

    async fn snapshots_changed(
        &self,
        dir: &Arc<Dir>,
    ) -> Result<Option<PropertyValue>, DatasetError> {
        if !dir.state().is_zapified {
            return Ok(None);
        }
        let zap = Zap::hold(self.dsl.mos(), dir.object).await?;
        let value = zap.lookup(names::directory::SNAPSHOTS_CHANGED).await?;
        Ok(value
            .and_then(|value| value.to_u64s().first().copied())
            .map(PropertyValue::Number))
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
                crate::state::Deadlist::space_of(self.dsl.mos(), phys.deadlist).await?
            } else {
                crate::state::Deadlist::open(self.dsl.mos(), phys.deadlist)
                    .await?
                    .space_range(&self.dsl.lists, format::Txg::ZERO, older_phys.creation_txg)
                    .await?
            };
            total += space.used;
            let Some(before) = self.dsl.directories().before(&at).await? else {
                return Err(DatasetError::WrongKind {
                    name: self.dsl.directories().full_name(older).await?,
                    reason: "it is not an earlier snapshot of the same dataset".into(),
                });
            };
            at = before;
        }
        Ok(total.max(0) as u64)
    }

    /// The same since the snapshot that a bookmark was made of
    /// (`dsl_dataset_space_written_bookmark`).
    async fn written_since_bookmark(
        &self,
        name: &str,
        dataset: &Arc<Ds>,
    ) -> Result<u64, DatasetError> {
        let bookmarks = self.dsl.bookmarks();
        let (of, entry) = bookmarks.entry(name).await?;
        let txg = entry.creation_txg();
        let newer = dataset.phys();
        let is_earlier = !newer.is_snapshot() || txg < newer.creation_txg;
        if !is_earlier || !bookmarks.is_before(&dataset.dir(), &of.dir(), txg).await? {
            return Err(DatasetError::NotAncestor {
                name: name.to_owned(),
            });
        }
        if !entry.counts_freed() {
            return Err(DatasetError::Unsupported {
                name: name.to_owned(),
                what: "what was written since a bookmark without feature bookmark_written".into(),
            });
        }
        let mut total = newer.referenced_bytes as i64 - entry.phys.referenced_bytes as i64
            + entry.phys.referenced_freed_before_next_bytes as i64;
        let mut at = Some(dataset.clone());
        while let Some(later) = at.filter(|at| at.phys().previous_snapshot_txg > txg) {
            let deadlist = later.phys().deadlist;
            total += crate::state::Deadlist::open(self.dsl.mos(), deadlist)
                .await?
                .space_range(&self.dsl.lists, format::Txg::ZERO, txg)
                .await?
                .used;
            at = self.dsl.directories().before(&later).await?;
        }
        Ok(total.max(0) as u64)
    }

    /// What was written since `@SNAPSHOT` or `#BOOKMARK`; a full name may stand behind either.
    async fn written_since(&self, dataset: &Arc<Ds>, since: &str) -> Result<u64, DatasetError> {
        let full_name = match since[1..].contains(['@', '#']) {
            true => since[1..].to_owned(),
            false => format!("{}{since}", dataset.dir().full_name(&self.dsl.pool_name())),
        };
        if full_name.contains('#') {
            return self.written_since_bookmark(&full_name, dataset).await;
        }
        let older = self.dsl.directories().resolve(&full_name).await?;
        self.written_between(&older, dataset).await
    }

    async fn volume_property(
        &self,
        dataset: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<PropertyValue>, DatasetError> {
        if self.dsl.directories().objset_kind(dataset).await? != ObjsetKind::Volume {
            return Ok(None);
        }
        let objset = self.dsl.datasets().peek_objset(dataset).await?;
        if name == "volsize" {
            let zap = Zap::hold(&objset, ObjectId::VOLUME_PROPERTIES).await?;
            return Ok(zap.lookup_u64("size").await?.map(PropertyValue::Number));
        }
        let data = objset.hold(ObjectId::VOLUME_DATA).await?;
        Ok(Some(PropertyValue::Number(u64::from(
            data.info().data_block_bytes,
        ))))
    }

    pub(crate) async fn filesystem_property(
        &self,
        dataset: &Arc<Ds>,
        name: &str,
    ) -> Result<Option<PropertyValue>, DatasetError> {
        if self.dsl.directories().objset_kind(dataset).await? != ObjsetKind::Filesystem {
            return Ok(None);
        }
        let objset = self.dsl.datasets().peek_objset(dataset).await?;
        let zap = Zap::hold(&objset, ObjectId::MASTER_NODE).await?;
        let stored = if name == "version" { "VERSION" } else { name };
        // Old filesystems keep only what differs from the default.
        let value = zap.lookup_u64(stored).await?.unwrap_or(0);
        Ok(Some(PropertyValue::Number(value)))
    }
}
