//! `zpool import`: what is there to import, and importing it.

use std::sync::Arc;

use api::{
    Failure, FailureKind, FoundPoolReport, ImportObstacle, ImportRefusal, ImportedPool,
    InjectCommand, Refusal, RewindReport, ZpoolImport, ZpoolImportReply,
};
use device::{BoxFuture, DeviceError};
use format::Txg;
use futures::future::join_all;
use pool::{
    FoundPool, FoundState, ImportSpec, MissingLogs, Pool, PoolError, Probe, Rewind, ScanSpec,
};
use tokio::sync::oneshot;

use crate::zpool::{check_cache_file, not_at_the_next_start, take_altroot, typed};
use service::condition;
use service::error::from_pool;
use service::pools::{Arrival, OpenPool};
use service::reports;
use serving::Serving;

/// Where `zpool import` looks when not told.
const DEFAULT_SEARCH: [&str; 2] = ["/dev/disk/by-id", "/dev"];

/// Which pool is to be imported, for what is said when it cannot be.
struct Wanted<'a> {
    pool: &'a str,
    new_name: Option<&'a str>,
}

impl Wanted<'_> {
    fn doing(&self) -> String {
        match self.new_name {
            Some(new) => format!("cannot import '{}' as '{new}'", self.pool),
            None => format!("cannot import '{}'", self.pool),
        }
    }

    fn refuse(&self, kind: FailureKind, why: &str, obstacle: ImportObstacle) -> Failure {
        let failure = Failure::new(kind, format!("{}: {why}", self.doing()));
        self.because(failure, obstacle)
    }

    fn because(&self, failure: Failure, obstacle: ImportObstacle) -> Failure {
        failure.with_refusal(Refusal::Import(ImportRefusal {
            pool: self.pool.to_owned(),
            new_name: self.new_name.map(str::to_owned),
            obstacle,
        }))
    }

    /// What was asked for is here already.
    fn already_imported(&self) -> Failure {
        self.refuse(
            FailureKind::Exists,
            "it is imported already, and no other pool of that name was found",
            ImportObstacle::AlreadyImported,
        )
    }

    fn not_found(&self) -> Failure {
        self.refuse(
            FailureKind::NotFound,
            "no such pool was found; look in its devices' directory with '-d'",
            ImportObstacle::NotFound,
        )
    }

    /// What the engine refused.
    fn refused(&self, error: &PoolError, rewind: Rewind, accessed_s: u64) -> Failure {
        let failure = from_pool(&self.doing(), error);
        let obstacle = match error {
            PoolError::ForeignHost {
                hostname, hostid, ..
            } => ImportObstacle::ForeignHost {
                hostname: hostname.clone(),
                hostid: *hostid,
                accessed_s,
            },
            PoolError::RemoteActive {
                hostname, hostid, ..
            } => ImportObstacle::ActiveElsewhere {
                hostname: hostname.clone(),
                hostid: *hostid,
            },
            PoolError::NoHostid { .. } => ImportObstacle::NoHostid,
            PoolError::UnsupportedForWrite { features, .. } => ImportObstacle::ReadOnlyFeatures {
                features: features.clone(),
            },
            PoolError::UnsupportedFeatures { features, .. } => {
                ImportObstacle::UnsupportedFeatures {
                    features: features.clone(),
                }
            }
            PoolError::MissingLog {
                devices, datasets, ..
            } => ImportObstacle::MissingLogs {
                devices: devices.clone(),
                datasets: datasets.clone(),
            },
            _ if error.is_damage() && rewind == Rewind::No => ImportObstacle::Damaged,
            _ => return failure,
        };
        self.because(failure, obstacle)
    }
}

/// `zpool import`, both forms.
pub fn zpool_import<'a>(
    serving: &'a Arc<Serving>,
    call: ZpoolImport,
) -> BoxFuture<'a, Result<ZpoolImportReply, Failure>> {
    Box::pin(async move {
        if (call.extreme || call.dry_run) && !call.rewind {
            return Err(Failure::new(
                FailureKind::Invalid,
                "-n or -X only meaningful with -F".to_owned(),
            ));
        }
        serving::mounts::check_options("cannot import", &call.mount_options)?;
        let paths = if call.search.is_empty() {
            DEFAULT_SEARCH.map(str::to_owned).to_vec()
        } else {
            call.search.clone()
        };
        for path in &call.search {
            match serving.world.look_at(path).await {
                Ok(_) => {}
                Err(DeviceError::Open { source, .. }) => {
                    // Nothing is found where nothing is, as OpenZFS has it.
                    if source.kind() != std::io::ErrorKind::NotFound {
                        let message = format!("cannot resolve path '{path}': {source}");
                        return Err(Failure::new(FailureKind::NotFound, message));
                    }
                }
                Err(error) => {
                    let message = format!("cannot search '{path}': {error}");
                    return Err(Failure::new(FailureKind::NotFound, message));
                }
            }
        }
        let scan = ScanSpec {
            paths,
            guid: None,
            name: None,
        };
        let mut found = importable(serving, &scan, &call).await?;
        let Some(wanted) = &call.pool else {
            let mut reply = ZpoolImportReply::default();
            if call.all {
                // They are opened side by side (`import_pools`, cmd/zpool/zpool_main.c), and
                // mounted and shared in their order, which is that of their names. Who waits has
                // the name of its own pool, and waits for pools of names before it alone: no two
                // callers wait for each other. A pool of the name that the one before it has waits
                // for that one before it has anything.
                let (scan, call) = (&scan, &call);
                let mut last: Option<Before> = None;
                let mut last_name: Option<String> = None;
                let imports = found.into_iter().map(|pool| {
                    let (done, after) = oneshot::channel();
                    let mut before = last.replace(after);
                    let name_before = last_name.replace(pool.name.clone());
                    let is_same = name_before.as_ref() == Some(&pool.name);
                    let waits_first = is_same || call.new_name.is_some();
                    async move {
                        let scan = scan.clone();
                        if waits_first {
                            wait_for(&mut before).await;
                        }
                        let outcome = import_found(serving, pool, scan, call, &mut before).await;
                        wait_for(&mut before).await;
                        drop(done);
                        outcome
                    }
                });
                let imports: Vec<_> = imports.collect();
                for outcome in join_all(imports).await {
                    match outcome {
                        Ok(imported) => reply.imported.push(imported),
                        Err(failure) => reply.failures.push(failure),
                    }
                }
                return Ok(reply);
            }
            for pool in found {
                let probe = pool::probe(&serving.world, &pool)
                    .await
                    .map_err(|error| from_pool("cannot look at a pool", &error))?;
                let foreign = pool.state == FoundState::Active
                    && pool.hostid != 0
                    && pool.hostid != (serving.host)().hostid;
                reply.found.push(report(&pool, &probe, foreign));
            }
            return Ok(reply);
        };
        let name = Wanted {
            pool: wanted,
            new_name: None,
        };
        let guid = wanted.parse::<u64>().ok();
        let is_wanted = |pool: &FoundPool| &pool.name == wanted || guid == Some(pool.guid.get());
        let is_open = || {
            let has_guid = |open: &Arc<OpenPool>| guid == Some(open.pool.guid().get());
            serving.pools.get(wanted).is_ok() || serving.pools.all().iter().any(has_guid)
        };
        if !found.iter().any(is_wanted) && !is_open() {
            // Nobody finds what another one is just opening.
            if serving
                .pools
                .claim(&name.doing(), wanted, None)
                .await?
                .waited
                && !is_open()
            {
                found = importable(serving, &scan, &call).await?;
            }
        }
        let mut matching = found.into_iter().filter(is_wanted);
        let Some(pool) = matching.next() else {
            return Err(if is_open() {
                let new_name = call.new_name.as_deref();
                Wanted { new_name, ..name }.already_imported()
            } else {
                name.not_found()
            });
        };
        if matching.next().is_some() {
            return Err(name.refuse(
                FailureKind::Invalid,
                "several pools have that name; import it by its GUID",
                ImportObstacle::Ambiguous,
            ));
        }
        let imported = import_found(serving, pool, scan.clone(), &call, &mut None).await?;
        Ok(ZpoolImportReply {
            imported: vec![imported],
            ..ZpoolImportReply::default()
        })
    })
}

/// The pools that a scan finds and that are not imported: the destroyed ones if the call is
/// about those, otherwise the others.
async fn importable(
    serving: &Serving,
    scan: &ScanSpec,
    call: &ZpoolImport,
) -> Result<Vec<FoundPool>, Failure> {
    let mut found = pool::scan(&serving.world, scan)
        .await
        .map_err(|error| from_pool("cannot search for pools", &error))?;
    let open_guids: Vec<_> = serving
        .pools
        .all()
        .iter()
        .map(|open| open.pool.guid())
        .collect();
    found.retain(|pool| {
        let is_meant = call.guids.is_empty() || call.guids.contains(&reports::guid(pool.guid));
        let is_wanted = (pool.state == FoundState::Destroyed) == call.destroyed;
        is_meant && is_wanted && !open_guids.contains(&pool.guid)
    });
    Ok(found)
}

/// Ends when the pool before this one is mounted and shared, or will not be.
type Before = oneshot::Receiver<()>;

async fn wait_for(before: &mut Option<Before>) {
    if let Some(before) = before.take() {
        // Nothing is ever sent: it ends when the other end is dropped.
        let _ = before.await;
    }
}

/// Imports what `scan` found.
async fn import_found(
    serving: &Arc<Serving>,
    mut found: FoundPool,
    mut scan: ScanSpec,
    call: &ZpoolImport,
    before: &mut Option<Before>,
) -> Result<ImportedPool, Failure> {
    let name = call.new_name.clone().unwrap_or_else(|| found.name.clone());
    let old_name = found.name.clone();
    let wanted = Wanted {
        pool: &old_name,
        new_name: call.new_name.as_deref(),
    };
    let doing = wanted.doing();
    let guid = found.guid;
    check_cache_file(&doing, &typed(&call.properties)).await?;
    let claim = serving.pools.claim(&doing, &name, Some(guid)).await?;
    if serving
        .pools
        .all()
        .iter()
        .any(|open| open.pool.guid() == guid)
    {
        return Err(Wanted {
            new_name: None,
            ..wanted
        }
        .already_imported());
    }
    if claim.waited {
        // Whoever had it may have changed it.
        scan.guid = Some(guid);
        let again = importable(serving, &scan, call).await?.into_iter().next();
        found = again.ok_or_else(|| {
            Wanted {
                new_name: None,
                ..wanted
            }
            .not_found()
        })?;
    }
    if serving.pools.get(&name).is_ok() {
        return Err(wanted.refuse(
            FailureKind::Exists,
            "another pool has that name; give it a new one",
            ImportObstacle::NameTaken,
        ));
    }
    let (altroot, mut properties) =
        take_altroot(&doing, call.altroot.clone(), typed(&call.properties))?;
    for (property, value) in &properties {
        let checked = serving::identity::check_property(property, value);
        checked.map_err(|failure| {
            Failure::new(failure.kind, format!("{doing}: {}", failure.message))
        })?;
    }
    // What is imported to be rescued is not to keep the next start waiting for what is missing.
    if call.temporary_name || call.missing_data {
        not_at_the_next_start(&mut properties);
    }
    let read_only = properties
        .iter()
        .any(|(name, value)| name == "readonly" && value == "on");
    properties.retain(|(name, _)| name != "readonly");
    let accessed_s = found.timestamp_s;
    let mut spec = ImportSpec::new(found, (serving.host)());
    spec.cache = Some(Arc::clone(serving.pools.cache()));
    spec.spares_by_hand = serving.pools.spares_by_hand;
    if !call.dry_run {
        spec.events = Some(serving.events.clone());
    }
    spec.new_name.clone_from(&call.new_name);
    spec.temporary_name = call.temporary_name;
    spec.read_only = read_only || call.dry_run;
    spec.force = call.force;
    spec.destroyed = call.destroyed;
    if call.missing_log {
        spec.missing_logs = MissingLogs::Accepted;
    }
    spec.missing_data = call.missing_data;
    spec.rewind = match (call.txg, call.checkpoint, call.rewind, call.extreme) {
        (Some(txg), ..) => Rewind::To(Txg::new(txg)),
        (None, true, ..) => Rewind::Checkpoint,
        (None, false, true, true) => Rewind::Extreme,
        (None, false, true, false) => Rewind::Recent,
        _ => Rewind::No,
    };
    let rewind = spec.rewind;
    spec.altroot = altroot;
    spec.properties = if call.dry_run { Vec::new() } else { properties };
    let begun_ns = serving.world.clock.monotonic_ns();
    let pool = Pool::import(&serving.world, spec)
        .await
        .map_err(|error| wanted.refused(&error, rewind, accessed_s))?;
    let rewound = pool.rewound().filter(|_| !call.checkpoint);
    let mut imported = ImportedPool {
        rewound: rewound.map(|rewound| RewindReport {
            timestamp_s: rewound.timestamp_s,
            lost_s: rewound.lost_s,
        }),
        ..ImportedPool::default()
    };
    if pool.is_read_only() && !call.dry_run {
        let waiting = pool.dsl().logs().awaiting_replay().await;
        imported.awaiting_replay = waiting.unwrap_or_default();
        imported.missing_data = pool::missing_data(&pool);
    }
    if call.dry_run {
        pool.export(false)
            .await
            .map_err(|error| from_pool(&doing, &error))?;
    } else {
        let clock = &*serving.world.clock;
        let injections = &serving.pools.injections;
        let what = InjectCommand::Import;
        injections.take_long(clock, &name, what, begun_ns).await;
        crate::zpool::log_command(&pool, &call.command).await;
        wait_for(before).await;
        let mount = (!call.no_mount).then(|| call.mount_options.clone());
        imported.warnings = serving.adopt(pool, Arrival::Imported, mount).await;
    }
    imported.name = old_name;
    Ok(imported)
}

/// What `zpool import` tells of a pool.
fn report(found: &FoundPool, probe: &Probe, is_foreign: bool) -> FoundPoolReport {
    let tree = condition::found_tree(found, probe);
    FoundPoolReport {
        name: found.name.clone(),
        guid: reports::guid(found.guid),
        state: tree.state,
        is_destroyed: found.state == FoundState::Destroyed,
        is_importable: probe.unusable.is_none() && !probe.is_in_use,
        condition: condition::of_found(probe, &tree, is_foreign),
        lost_logs: probe.lost_logs.clone(),
        comment: probe.comment.clone(),
        tree,
    }
}
