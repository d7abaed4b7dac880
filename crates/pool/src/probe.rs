//! Looking at a pool without importing it: what `zpool import` lists.
//!
//! The pool is opened read-only as an import would, so that what is told is what an import would
//! meet: states of the devices, features, version. Nothing is written, and everything is closed
//! again.
//!
//! Source: module/zfs/spa.c (`spa_tryimport`), lib/libzfs/libzfs_status.c (`zpool_import_status`).

use std::collections::BTreeMap;

use device::World;
use format::Uberblock;
use spa::features;

use crate::status::vdev_status;
use crate::{
    FoundPool, HostIdentity, ImportSpec, MissingLogs, PoolError, VdevClass, VdevState, VdevStatus,
    open, removed, rewind,
};

/// Why a pool cannot be imported.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unusable {
    /// Top-level vdevs of which no device was found (`VDEV_AUX_BAD_GUID_SUM`).
    MissingTops,
    /// Too many devices of some vdev are missing or damaged.
    NoReplicas,
    /// Its version is not supported.
    Version,
    /// Features without which it cannot be read, by their guids.
    FeaturesForRead(Vec<String>),
    /// Features without which it cannot be written, by their guids; it can be read.
    FeaturesForWrite(Vec<String>),
    /// Its metadata cannot be read.
    Damaged(String),
}

/// What an import of a pool would meet.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The vdevs with their states.
    pub tops: Vec<VdevStatus>,
    /// Spares.
    pub spares: Vec<VdevStatus>,
    /// Cache devices.
    pub caches: Vec<VdevStatus>,
    /// State of the whole pool.
    pub state: VdevState,
    /// Why it cannot be imported, when it cannot.
    pub unusable: Option<Unusable>,
    /// When log devices are missing or damaged, so that it is imported with `-m` only: the datasets
    /// whose intent logs are on them.
    pub lost_logs: Option<Vec<String>>,
    /// Whether another process of this host has it, so that it cannot be imported now.
    pub is_in_use: bool,
    /// Whether a resilver was under way.
    pub is_resilvering: bool,
    /// Whether its version is older than feature flags.
    pub old_version: bool,
    /// Whether features that this release supports are disabled.
    pub features_disabled: bool,
    /// Errata number stored in the configuration.
    pub errata: u64,
    /// Comment.
    pub comment: Option<String>,
}

/// Tells what an import of this pool would meet. Does not mind whose it is or whether it was
/// destroyed.
///
/// # Errors
/// When the labels' configuration makes no sense at all.
pub async fn probe(world: &World, found: &FoundPool) -> Result<Probe, PoolError> {
    let spec = ImportSpec {
        read_only: true,
        force: true,
        destroyed: true,
        unwatched: true,
        only_looked_at: true,
        // Everything else can be told without the logs (`spa_tryimport`).
        missing_logs: MissingLogs::Accepted,
        ..ImportSpec::new(found.clone(), HostIdentity::default())
    };
    // What is read of it may change at any moment, and make no sense; this is why it cannot be
    // imported all the same.
    let is_in_use = rewind::held(world, found).await.is_some();
    match open::import(world, &spec, None).await {
        Ok(core) => {
            let status = crate::status::pool_status(&core);
            let all = core.dsl.features().all();
            let is_disabled = |guid: &String| !core.dsl.features().is_enabled(guid);
            let features_disabled = features::defaults().iter().any(is_disabled);
            let version = core.identity.lock().version;
            let comment = core.identity.lock().comment.clone();
            let lost_logs = match open::lost_logs(&core.tree).is_empty() {
                true => None,
                false => Some(core.dsl.logs().with_lost_devices().await),
            };
            let under_way = removed::under_way(&core.tree);
            core.close();
            let mut lost_logs = lost_logs.transpose()?;
            lost_logs.iter_mut().for_each(|names| names.sort());
            let mut blocked = features::blocked(&all);
            blocked.1.extend(under_way);
            let unusable = (!blocked.1.is_empty()).then_some(Unusable::FeaturesForWrite(blocked.1));
            Ok(Probe {
                tops: status.root.children,
                spares: status.spares,
                caches: status.caches,
                state: if unusable.is_some() {
                    VdevState::CantOpen
                } else {
                    status.root.state
                },
                unusable,
                lost_logs,
                is_in_use,
                is_resilvering: status.scan.is_some_and(|scan| scan.is_resilvering()),
                old_version: version != Uberblock::VERSION_FEATURES,
                features_disabled: version == Uberblock::VERSION_FEATURES && features_disabled,
                errata: status.errata,
                comment,
            })
        }
        Err(error) => Ok(Probe {
            is_in_use,
            ..failed(world, &spec, error).await?
        }),
    }
}

async fn failed(world: &World, spec: &ImportSpec, error: PoolError) -> Result<Probe, PoolError> {
    let found = &spec.found;
    let ground = rewind::untrusted(world, spec).await?;
    let nothing = BTreeMap::new();
    let tops: Vec<VdevStatus> = ground
        .tree
        .tops()
        .iter()
        .map(|top| {
            let class = match top.is_log() {
                true => VdevClass::Log,
                false => VdevClass::Normal,
            };
            vdev_status(top, class, &nothing)
        })
        .collect();
    ground.tree.close();
    let unusable = match error {
        PoolError::UnsupportedFeatures { features, .. } => Unusable::FeaturesForRead(features),
        PoolError::UnsupportedForWrite { features, .. } => Unusable::FeaturesForWrite(features),
        PoolError::UnsupportedVersion { .. } => Unusable::Version,
        _ if tops.iter().any(|top| top.kind == "missing") => Unusable::MissingTops,
        PoolError::MissingDevices { .. } => Unusable::NoReplicas,
        error => Unusable::Damaged(error.to_string()),
    };
    Ok(Probe {
        tops,
        spares: Vec::new(),
        caches: Vec::new(),
        state: VdevState::CantOpen,
        unusable: Some(unusable),
        lost_logs: None,
        is_in_use: false,
        is_resilvering: false,
        old_version: false,
        features_disabled: false,
        errata: 0,
        comment: found.comment.clone(),
    })
}
