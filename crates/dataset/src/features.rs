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

use std::sync::Arc;

use format::{ObjectId, Txg};
use object::{ObjectSet, SyncContext};

use crate::DatasetError;

/// The feature flags of one pool.
pub struct Features {}

impl Features {
    /// Opens those of a pool, through the object directory of its MOS. A pool of an old version
    /// has none.
    pub async fn open(mos: &Arc<ObjectSet>) -> Result<Arc<Self>, DatasetError> {
        let _ = mos;
        todo!()
    }

    /// How many things use the feature: `None` when it is not enabled.
    pub fn refcount(&self, guid: &str) -> Option<u64> {
        let _ = guid;
        todo!()
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
        let _ = guid;
        todo!()
    }

    /// Every feature of the pool, known to us or not: guid, refcount, whether it is needed to read.
    pub fn all(&self) -> Vec<(String, u64, bool)> {
        todo!()
    }

    /// Enables a feature and those that it depends on, in syncing context.
    pub async fn enable(&self, ctx: &SyncContext, guid: &str) -> Result<(), DatasetError> {
        let _ = (ctx, guid);
        todo!()
    }

    /// One more thing uses the feature, in syncing context.
    pub async fn increment(&self, ctx: &SyncContext, guid: &str) -> Result<(), DatasetError> {
        let _ = (ctx, guid);
        todo!()
    }

    /// One thing less uses the feature, in syncing context.
    pub async fn decrement(&self, ctx: &SyncContext, guid: &str) -> Result<(), DatasetError> {
        let _ = (ctx, guid);
        todo!()
    }

    /// Whether a feature that labels name went active since the last call.
    pub fn take_label_change(&self) -> bool {
        todo!()
    }

    /// MOS object of `features_for_read`, zero without.
    pub fn for_read_object(&self) -> ObjectId {
        todo!()
    }
}
