//! Feature flags: which are enabled, and how many things use each (module/zfs/zfeature.c).
//!
//! On disk these are four ZAPs in the MOS, found through the object directory:
//!
//! | entry | maps feature guid to |
//! |---|---|
//! | `features_for_read` | refcount; features without which the pool cannot be read |
//! | `features_for_write` | refcount; features without which it cannot be written |
//! | `feature_descriptions` | a sentence for people |
//! | `feature_enabled_txg` | the txg in which it was enabled (feature `enabled_txg`) |
//!
//! A refcount of zero means enabled, more means active. Guids that we do not know are kept.
//! Counts are cached in memory under one lock; they change in syncing context only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use format::{Checksum, Compression, Feature, FeatureInfo, ObjectId, ObjectType, Txg};
use object::{ObjectSet, SyncContext, Zap, ZapOptions, ZapValue};
use parking_lot::Mutex;
use zio::Tx;

use crate::DatasetError;

/// Guids of the features that this crate itself turns on and off.
pub mod guid {
    /// Background destroy.
    pub const ASYNC_DESTROY: &str = "com.delphix:async_destroy";
    /// One shared empty list of blocks.
    pub const EMPTY_BPOBJ: &str = "com.delphix:empty_bpobj";
    /// LZ4.
    pub const LZ4_COMPRESS: &str = "org.illumos:lz4_compress";
    /// Objects of datasets and directories that are ZAPs too.
    pub const EXTENSIBLE_DATASET: &str = "com.delphix:extensible_dataset";
    /// Holes know when they were made.
    pub const HOLE_BIRTH: &str = "com.delphix:hole_birth";
    /// Small blocks live in their pointers.
    pub const EMBEDDED_DATA: &str = "com.delphix:embedded_data";
    /// Txgs in which features were enabled.
    pub const ENABLED_TXG: &str = "com.delphix:enabled_txg";
    /// Bookmarks.
    pub const BOOKMARKS: &str = "com.delphix:bookmarks";
    /// Bookmarks that say which IVs their snapshot's blocks have.
    pub const BOOKMARK_V2: &str = "com.datto:bookmark_v2";
    /// Bookmarks that count what was written since.
    pub const BOOKMARK_WRITTEN: &str = "com.delphix:bookmark_written";
    /// Redaction bookmarks.
    pub const REDACTION_BOOKMARKS: &str = "com.delphix:redaction_bookmarks";
    /// Redaction lists with a spill block.
    pub const REDACTION_LIST_SPILL: &str = "com.delphix:redaction_list_spill";
    /// What nothing refers to on removed vdevs is counted.
    pub const OBSOLETE_COUNTS: &str = "com.delphix:obsolete_counts";
    /// Lists of what clones allocated.
    pub const LIVELIST: &str = "com.delphix:livelist";
    /// Limits on the number of filesystems and snapshots.
    pub const FILESYSTEM_LIMITS: &str = "com.joyent:filesystem_limits";
    /// Blocks of more than 128 KiB.
    pub const LARGE_BLOCKS: &str = "org.open-zfs:large_blocks";
    /// Dnodes of more than 512 bytes.
    pub const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
    /// Micro ZAPs of more than 128 KiB.
    pub const LARGE_MICROZAP: &str = "com.klarasystems:large_microzap";
    /// SHA-512/256.
    pub const SHA512: &str = "org.illumos:sha512";
    /// Skein.
    pub const SKEIN: &str = "org.illumos:skein";
    /// Edon-R.
    pub const EDONR: &str = "org.illumos:edonr";
    /// BLAKE3.
    pub const BLAKE3: &str = "org.openzfs:blake3";
    /// Zstandard.
    pub const ZSTD_COMPRESS: &str = "org.freebsd:zstd_compress";
    /// Objects counted per user and group.
    pub const USEROBJ_ACCOUNTING: &str = "org.zfsonlinux:userobj_accounting";
    /// Space and objects counted per project.
    pub const PROJECT_QUOTA: &str = "org.zfsonlinux:project_quota";
    /// Extended attributes in intent logs.
    pub const ZILSAXATTR: &str = "org.openzfs:zilsaxattr";
    /// Names of more than 255 bytes.
    pub const LONGNAME: &str = "org.zfsonlinux:longname";
    /// Encryption.
    pub const ENCRYPTION: &str = "com.datto:encryption";
    /// Redacted datasets.
    pub const REDACTED_DATASETS: &str = "com.delphix:redacted_datasets";
    /// Blocks shared by several files.
    pub const BLOCK_CLONING: &str = "com.fudosecurity:block_cloning";
    /// Blocks moved without changing what they hold.
    pub const PHYSICAL_REWRITE: &str = "com.truenas:physical_rewrite";
}

/// Features that a dataset carries markers of (`ZFEATURE_FLAG_PER_DATASET`).
pub(crate) const PER_DATASET: &[&str] = &[
    guid::LARGE_BLOCKS,
    guid::EDONR,
    guid::SHA512,
    guid::SKEIN,
    guid::LARGE_DNODE,
    guid::USEROBJ_ACCOUNTING,
    guid::ENCRYPTION,
    guid::PROJECT_QUOTA,
    guid::REDACTED_DATASETS,
    guid::ZSTD_COMPRESS,
    guid::BLAKE3,
    guid::ZILSAXATTR,
    guid::LARGE_MICROZAP,
    guid::LONGNAME,
    guid::PHYSICAL_REWRITE,
];

/// Names in the object directory.
const FOR_READ: &str = "features_for_read";
const FOR_WRITE: &str = "features_for_write";
const DESCRIPTIONS: &str = "feature_descriptions";
const ENABLED_TXG: &str = "feature_enabled_txg";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    refcount: u64,
    for_read: bool,
    enabled_txg: Option<Txg>,
}

/// The feature flags of one pool.
pub struct Features {
    directory: Zap,
    /// Set once: a pool of an old version has none before it is upgraded.
    zaps: OnceLock<Zaps>,
    enabled_txg_zap: Mutex<Option<Zap>>,
    /// It is there and cannot be read: txgs are not recorded any more.
    enabled_txg_lost: bool,
    entries: Mutex<BTreeMap<String, Entry>>,
    label_changed: AtomicBool,
}

struct Zaps {
    for_read: Zap,
    for_write: Zap,
    /// None where it cannot be read: for people only.
    descriptions: Option<Zap>,
}

impl Zaps {
    async fn create(mos: &Arc<ObjectSet>, directory: &Zap, tx: &Tx) -> Result<Self, DatasetError> {
        let make = |name: &'static str| async move {
            let zap = Zap::create(mos, tx, ZapOptions::new(ObjectType::OTN_ZAP_METADATA)).await?;
            directory.add_u64(tx, name, zap.id().get()).await?;
            Ok::<Zap, DatasetError>(zap)
        };
        Ok(Zaps {
            for_read: make(FOR_READ).await?,
            for_write: make(FOR_WRITE).await?,
            descriptions: Some(make(DESCRIPTIONS).await?),
        })
    }
}

/// A ZAP that is only informative; none where it cannot be read, for which no pool stays away.
async fn optional(mos: &Arc<ObjectSet>, object: ObjectId, what: &str) -> Option<Zap> {
    let read = async {
        let zap = Zap::hold(mos, object).await?;
        // As a whole: nothing is found missing when it is changed.
        zap.all().await?;
        Ok::<_, object::ObjectError>(zap)
    };
    let read = read.await;
    if let Err(error) = &read {
        tracing::warn!(what, %error, "cannot be read; the pool does without");
    }
    read.ok()
}

/// The feature that a checksum needs.
pub(crate) fn of_checksum(checksum: Checksum) -> Option<&'static str> {
    match checksum {
        Checksum::Sha512 => Some(guid::SHA512),
        Checksum::Skein => Some(guid::SKEIN),
        Checksum::EdonR => Some(guid::EDONR),
        Checksum::Blake3 => Some(guid::BLAKE3),
        _ => None,
    }
}

impl Features {
    /// Opens those of a pool, through the object directory of its MOS. A pool of an old version
    /// has none.
    pub async fn open(mos: &Arc<ObjectSet>) -> Result<Arc<Self>, DatasetError> {
        let directory = Zap::hold(mos, ObjectId::POOL_DIRECTORY).await?;
        let mut entries = BTreeMap::new();
        let zaps = OnceLock::new();
        let mut enabled_txg_zap = None;
        let mut enabled_txg_lost = false;
        if let Some(for_read) = directory.lookup_u64(FOR_READ).await? {
            let required = |name: &'static str| {
                let directory = &directory;
                async move {
                    directory.lookup_u64(name).await?.ok_or_else(|| {
                        DatasetError::corrupt(
                            ObjectId::POOL_DIRECTORY,
                            format!("the object directory has no entry '{name}'"),
                        )
                    })
                }
            };
            let for_read = Zap::hold(mos, for_read.into()).await?;
            let for_write = Zap::hold(mos, required(FOR_WRITE).await?.into()).await?;
            let descriptions =
                optional(mos, required(DESCRIPTIONS).await?.into(), DESCRIPTIONS).await;
            for (zap, is_for_read) in [(&for_read, true), (&for_write, false)] {
                for entry in zap.all().await? {
                    let guid = String::from_utf8_lossy(&entry.name).into_owned();
                    // Taken for 0 it would open a pool that has the feature active.
                    let refcount = entry.value.as_u64().ok_or_else(|| {
                        DatasetError::corrupt(
                            zap.id(),
                            format!("the reference count of feature '{guid}' is no number"),
                        )
                    })?;
                    entries.insert(
                        guid,
                        Entry {
                            refcount,
                            for_read: is_for_read,
                            enabled_txg: None,
                        },
                    );
                }
            }
            if let Some(object) = directory.lookup_u64(ENABLED_TXG).await? {
                let zap = optional(mos, object.into(), ENABLED_TXG).await;
                let recorded = match &zap {
                    Some(zap) => zap.all().await.unwrap_or_default(),
                    None => Vec::new(),
                };
                for entry in recorded {
                    let guid = String::from_utf8_lossy(&entry.name).into_owned();
                    if let (Some(feature), Some(txg)) =
                        (entries.get_mut(&guid), entry.value.as_u64())
                    {
                        feature.enabled_txg = Some(txg.into());
                    }
                }
                enabled_txg_lost = zap.is_none();
                enabled_txg_zap = zap;
            }
            let _ = zaps.set(Zaps {
                for_read,
                for_write,
                descriptions,
            });
        }
        Ok(Arc::new(Features {
            directory,
            zaps,
            enabled_txg_zap: Mutex::new(enabled_txg_zap),
            enabled_txg_lost,
            entries: Mutex::new(entries),
            label_changed: AtomicBool::new(false),
        }))
    }

    /// Makes the ZAPs of a new pool (`spa_feature_create_zap_objects`); nothing is enabled yet.
    pub(crate) async fn create(
        mos: &Arc<ObjectSet>,
        directory: &Zap,
        tx: &Tx,
    ) -> Result<Arc<Self>, DatasetError> {
        let zaps = Zaps::create(mos, directory, tx).await?;
        Ok(Arc::new(Features {
            directory: directory.clone(),
            zaps: OnceLock::from(zaps),
            enabled_txg_zap: Mutex::new(None),
            enabled_txg_lost: false,
            entries: Mutex::new(BTreeMap::new()),
            label_changed: AtomicBool::new(false),
        }))
    }

    /// Makes the ZAPs of a pool that is upgraded from a version without features, in syncing
    /// context (`spa_sync_upgrades`). The uberblock of the same txg has to say
    /// [`Uberblock::VERSION_FEATURES`].
    ///
    /// [`Uberblock::VERSION_FEATURES`]: format::Uberblock::VERSION_FEATURES
    ///
    /// # Errors
    /// When the MOS cannot be read or written.
    pub async fn upgrade(&self, ctx: &SyncContext) -> Result<(), DatasetError> {
        if self.zaps.get().is_none() {
            let mos = self.directory.object().objset();
            let zaps = Zaps::create(mos, &self.directory, &Tx::syncing(ctx.txg)).await?;
            // Nobody else is in syncing context.
            let _ = self.zaps.set(zaps);
        }
        Ok(())
    }

    /// How many things use the feature: `None` when it is not enabled.
    pub fn refcount(&self, guid: &str) -> Option<u64> {
        self.entries.lock().get(guid).map(|entry| entry.refcount)
    }

    /// Whether blocks of a checksum and a compression may be written: each is known to all, or its
    /// feature is enabled.
    pub fn may_write(&self, checksum: Checksum, compression: Compression) -> bool {
        let of_compression = match compression {
            Compression::Lz4 => Some(guid::LZ4_COMPRESS),
            Compression::Zstd => Some(guid::ZSTD_COMPRESS),
            _ => None,
        };
        let needs = [of_checksum(checksum), of_compression];
        needs
            .into_iter()
            .flatten()
            .all(|needs| self.is_enabled(needs))
    }

    /// Whether it is enabled.
    pub fn is_enabled(&self, guid: &str) -> bool {
        self.refcount(guid).is_some()
    }

    /// Whether something uses it.
    pub fn is_active(&self, guid: &str) -> bool {
        self.refcount(guid).is_some_and(|count| count > 0)
    }

    /// Txg in which it was enabled, if that was recorded.
    pub fn enabled_txg(&self, guid: &str) -> Option<Txg> {
        self.entries.lock().get(guid)?.enabled_txg
    }

    /// Every feature of the pool, known to us or not: guid, refcount, whether it is needed to read.
    pub fn all(&self) -> Vec<(String, u64, bool)> {
        self.entries
            .lock()
            .iter()
            .map(|(guid, entry)| (guid.clone(), entry.refcount, entry.for_read))
            .collect()
    }

    /// Enables a feature and those that it depends on, in syncing context. One that is enabled
    /// already is left alone. A guid outside of the table of features is refused.
    ///
    /// # Errors
    /// [`DatasetError::Unsupported`] for a feature that this release does not know, or a pool of
    /// an old version.
    pub async fn enable(&self, ctx: &SyncContext, guid: &str) -> Result<(), DatasetError> {
        let mut pending = vec![guid.to_owned()];
        // Dependencies first; the table has no cycles, and each round adds only what is missing.
        while let Some(guid) = pending.last().cloned() {
            if self.is_enabled(&guid) {
                pending.pop();
                continue;
            }
            let facts = facts(&guid).ok_or_else(|| DatasetError::Unsupported {
                name: guid.clone(),
                what: "this feature".into(),
            })?;
            let missing: Vec<String> = facts
                .depends
                .iter()
                .map(|needed| needed.guid())
                .filter(|needed| !self.is_enabled(needed))
                .map(str::to_owned)
                .collect();
            if missing.is_empty() {
                self.enable_one(ctx, facts).await?;
                pending.pop();
            } else {
                pending.extend(missing);
            }
        }
        Ok(())
    }

    /// Enables a feature as if before [`guid::ENABLED_TXG`]: without its txg on record, as those of
    /// a new pool are that come before that one in the table.
    ///
    /// # Errors
    /// As [`Self::enable`].
    pub(crate) async fn enable_unrecorded(
        &self,
        ctx: &SyncContext,
        guid: &str,
    ) -> Result<(), DatasetError> {
        let facts = facts(guid).ok_or_else(|| DatasetError::Unsupported {
            name: guid.to_owned(),
            what: "this feature".into(),
        })?;
        self.add(ctx, facts).await
    }

    async fn enable_one(
        &self,
        ctx: &SyncContext,
        facts: &'static FeatureInfo,
    ) -> Result<(), DatasetError> {
        self.add(ctx, facts).await?;
        let tx = Tx::syncing(ctx.txg);
        if self.is_enabled(guid::ENABLED_TXG) && !self.enabled_txg_lost {
            let existing = self.enabled_txg_zap.lock().clone();
            let zap = match existing {
                Some(zap) => zap,
                None => {
                    let mos = self.directory.object().objset().clone();
                    let zap = Zap::create(&mos, &tx, ZapOptions::new(ObjectType::OTN_ZAP_METADATA))
                        .await?;
                    self.directory
                        .add_u64(&tx, ENABLED_TXG, zap.id().get())
                        .await?;
                    *self.enabled_txg_zap.lock() = Some(zap.clone());
                    zap
                }
            };
            self.increment(ctx, guid::ENABLED_TXG).await?;
            zap.update_u64(&tx, facts.guid, ctx.txg.get()).await?;
            if let Some(entry) = self.entries.lock().get_mut(facts.guid) {
                entry.enabled_txg = Some(ctx.txg);
            }
        }
        Ok(())
    }

    async fn add(
        &self,
        ctx: &SyncContext,
        facts: &'static FeatureInfo,
    ) -> Result<(), DatasetError> {
        let tx = Tx::syncing(ctx.txg);
        let zaps = self.zaps.get().ok_or_else(|| DatasetError::Unsupported {
            name: facts.guid.to_owned(),
            what: "a feature on a pool of a version without features".into(),
        })?;
        if let Some(descriptions) = &zaps.descriptions {
            let description = ZapValue::from_str_z(facts.description);
            descriptions.update(&tx, facts.guid, description).await?;
        }
        self.entries.lock().insert(
            facts.guid.to_owned(),
            Entry {
                refcount: 0,
                for_read: !facts.read_only_compatible,
                enabled_txg: None,
            },
        );
        self.store(ctx, facts.guid, u64::from(facts.activate_on_enable))
            .await
    }

    /// One more thing uses the feature, in syncing context.
    ///
    /// # Errors
    /// [`DatasetError::Unsupported`] when it is not enabled.
    pub async fn increment(&self, ctx: &SyncContext, guid: &str) -> Result<(), DatasetError> {
        self.adjust(ctx, guid, 1).await
    }

    /// One thing less uses the feature, in syncing context.
    ///
    /// # Errors
    /// [`DatasetError::Unsupported`] when it is not enabled, [`DatasetError::Corrupt`] when nothing
    /// used it.
    pub async fn decrement(&self, ctx: &SyncContext, guid: &str) -> Result<(), DatasetError> {
        self.adjust(ctx, guid, -1).await
    }

    /// So many things more (or less) use the feature, in syncing context.
    ///
    /// # Errors
    /// As [`Self::decrement`].
    pub async fn adjust(
        &self,
        ctx: &SyncContext,
        guid: &str,
        delta: i64,
    ) -> Result<(), DatasetError> {
        if delta == 0 {
            return Ok(());
        }
        let count = self.enabled_count(guid)?;
        let count = count.checked_add_signed(delta).ok_or_else(|| {
            DatasetError::corrupt(
                self.for_read_object(),
                format!("the refcount of feature '{guid}' would be below zero"),
            )
        })?;
        self.store(ctx, guid, count).await
    }

    fn enabled_count(&self, guid: &str) -> Result<u64, DatasetError> {
        self.refcount(guid)
            .ok_or_else(|| DatasetError::Unsupported {
                name: guid.to_owned(),
                what: "this feature, which is not enabled,".into(),
            })
    }

    async fn store(
        &self,
        ctx: &SyncContext,
        guid: &str,
        refcount: u64,
    ) -> Result<(), DatasetError> {
        let zaps = self
            .zaps
            .get()
            .expect("only a pool with feature ZAPs has features enabled");
        let for_read = {
            let mut entries = self.entries.lock();
            let entry = entries
                .get_mut(guid)
                .expect("callers have found or made the entry");
            if (entry.refcount == 0) != (refcount == 0)
                && facts(guid).is_some_and(|facts| facts.in_label)
            {
                self.label_changed.store(true, Ordering::Release);
            }
            entry.refcount = refcount;
            entry.for_read
        };
        let zap = if for_read {
            &zaps.for_read
        } else {
            &zaps.for_write
        };
        zap.update_u64(&Tx::syncing(ctx.txg), guid, refcount)
            .await?;
        Ok(())
    }

    /// Whether a feature that labels name went active, or stopped being so, since the last call.
    pub fn take_label_change(&self) -> bool {
        self.label_changed.swap(false, Ordering::AcqRel)
    }

    /// MOS object of `features_for_read`; zero in a pool of an old version.
    pub fn for_read_object(&self) -> ObjectId {
        self.zaps
            .get()
            .map_or(ObjectId::ZERO, |zaps| zaps.for_read.id())
    }

    /// Guids of the active features that labels name.
    pub fn in_labels(&self) -> Vec<String> {
        self.entries
            .lock()
            .iter()
            .filter(|(guid, entry)| {
                entry.refcount > 0 && facts(guid).is_some_and(|facts| facts.in_label)
            })
            .map(|(guid, _)| guid.clone())
            .collect()
    }
}

/// These features with all that they depend on: what is enabled where these are
/// ([`Features::enable`]).
pub(crate) fn with_dependencies(guids: &[String]) -> BTreeSet<&str> {
    let mut all = BTreeSet::new();
    let mut pending: Vec<&str> = guids.iter().map(String::as_str).collect();
    while let Some(guid) = pending.pop() {
        if all.insert(guid) {
            let depends = facts(guid).map_or(&[][..], |facts| facts.depends);
            pending.extend(depends.iter().map(|needed| needed.guid()));
        }
    }
    all
}

fn facts(guid: &str) -> Option<&'static FeatureInfo> {
    Feature::from_guid(guid).map(Feature::info)
}
