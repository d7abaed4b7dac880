//! `zpool import`: what is there to import, and importing it. The sentences are OpenZFS's
//! (`show_import` and `do_import`, cmd/zpool/zpool_main.c; `zpool_import_props`,
//! lib/libzfs/libzfs_pool.c), since scripts and people look for them.

use std::sync::Arc;

use api::{Failure, FailureKind, FoundPoolReport, VdevReport, ZpoolImport, ZpoolImportReply};
use format::Txg;
use pool::{
    FoundPool, FoundState, ImportSpec, MissingLogs, Pool, PoolError, Probe, Rewind, ScanSpec,
    Unusable, VdevState,
};

use crate::error::from_engine;
use crate::reports;
use crate::service::{OpenPool, Service};
use crate::zpool::{not_at_the_next_start, take_altroot};

/// Where `zpool import` looks when not told.
const DEFAULT_SEARCH: [&str; 2] = ["/dev/disk/by-id", "/dev"];

/// What was asked for is here already.
fn already_imported(wanted: &str) -> Failure {
    let message = format!(
        "cannot import '{wanted}': a pool with that name is already created/imported,\nand no additional pools with that name were found"
    );
    Failure::new(FailureKind::Exists, message)
}

fn none_available(wanted: &str) -> Failure {
    let message = format!("cannot import '{wanted}': no such pool available");
    Failure::new(FailureKind::NotFound, message)
}

impl Service {
    /// `zpool import`, both forms.
    pub(crate) async fn zpool_import(
        &self,
        call: ZpoolImport,
    ) -> Result<ZpoolImportReply, Failure> {
        if (call.extreme || call.dry_run) && !call.rewind {
            return Err(Failure::new(
                FailureKind::Invalid,
                "-n or -X only meaningful with -F".to_owned(),
            ));
        }
        let paths = if call.search.is_empty() {
            DEFAULT_SEARCH.map(str::to_owned).to_vec()
        } else {
            call.search.clone()
        };
        if let Some(missing) = call
            .search
            .iter()
            .find(|path| !std::path::Path::new(path).exists())
        {
            return Err(Failure::new(
                FailureKind::NotFound,
                format!("cannot search '{missing}': no such file or directory"),
            ));
        }
        let scan = ScanSpec {
            paths,
            guid: None,
            name: None,
        };
        let mut found = self.importable(&scan, &call).await?;
        let Some(wanted) = &call.pool else {
            let mut reply = ZpoolImportReply::default();
            for pool in found {
                if !call.all {
                    let probe = pool::probe(&self.world, &pool)
                        .await
                        .map_err(|error| from_engine("cannot look at a pool", &error))?;
                    let foreign = pool.state == FoundState::Active
                        && pool.hostid != 0
                        && pool.hostid != self.host.hostid;
                    reply.found.push(report(&pool, &probe, foreign));
                    continue;
                }
                let name = pool.name.clone();
                match self
                    .import_found(pool, scan.clone(), &call, &mut reply.notes)
                    .await
                {
                    Ok(warnings) => {
                        reply.imported.push(name);
                        reply.warnings.extend(warnings);
                    }
                    Err(failure) => reply.failures.push(failure.message),
                }
            }
            return Ok(reply);
        };
        let guid = wanted.parse::<u64>().ok();
        let is_wanted = |pool: &FoundPool| &pool.name == wanted || guid == Some(pool.guid.get());
        let is_open = || {
            let has_guid = |open: &Arc<OpenPool>| guid == Some(open.pool.guid().get());
            self.pool(wanted).is_ok() || self.pools().iter().any(has_guid)
        };
        if !found.iter().any(is_wanted) && !is_open() {
            // Nobody finds what another one is just opening.
            let doing = format!("cannot import '{wanted}'");
            if self.claim(&doing, wanted, None).await?.waited && !is_open() {
                found = self.importable(&scan, &call).await?;
            }
        }
        let mut matching = found.into_iter().filter(is_wanted);
        let Some(pool) = matching.next() else {
            return Err(if is_open() {
                already_imported(wanted)
            } else {
                none_available(wanted)
            });
        };
        if matching.next().is_some() {
            let message = format!(
                "cannot import '{wanted}': more than one matching pool\nimport by numeric ID instead"
            );
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let mut reply = ZpoolImportReply::default();
        reply.warnings = self
            .import_found(pool, scan.clone(), &call, &mut reply.notes)
            .await?;
        reply.imported.push(wanted.clone());
        Ok(reply)
    }

    /// The pools that a scan finds and that are not imported: the destroyed ones if the call is about those, otherwise the others.
    async fn importable(
        &self,
        scan: &ScanSpec,
        call: &ZpoolImport,
    ) -> Result<Vec<FoundPool>, Failure> {
        let mut found = pool::scan(&self.world, scan)
            .await
            .map_err(|error| from_engine("cannot search for pools", &error))?;
        let open_guids: Vec<_> = self.pools().iter().map(|open| open.pool.guid()).collect();
        found.retain(|pool| {
            !open_guids.contains(&pool.guid)
                && (pool.state == FoundState::Destroyed) == call.destroyed
        });
        Ok(found)
    }

    /// Imports what `scan` found.
    async fn import_found(
        &self,
        mut found: FoundPool,
        mut scan: ScanSpec,
        call: &ZpoolImport,
        notes: &mut Vec<String>,
    ) -> Result<Vec<String>, Failure> {
        let name = call.new_name.clone().unwrap_or_else(|| found.name.clone());
        let doing = match &call.new_name {
            Some(new) => format!("cannot import '{}' as '{new}'", found.name),
            None => format!("cannot import '{}'", found.name),
        };
        let guid = found.guid;
        let claim = self.claim(&doing, &name, Some(guid)).await?;
        if self.pools().iter().any(|open| open.pool.guid() == guid) {
            return Err(already_imported(&found.name));
        }
        if claim.waited {
            // Whoever had it may have changed it.
            scan.guid = Some(guid);
            let again = self.importable(&scan, call).await?.into_iter().next();
            found = again.ok_or_else(|| none_available(&found.name))?;
        }
        if self.pool(&name).is_ok() {
            let message = format!(
                "{doing}: a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name"
            );
            return Err(Failure::new(FailureKind::Exists, message));
        }
        let (altroot, mut properties) =
            take_altroot(&doing, call.altroot.clone(), call.properties.clone())?;
        if call.temporary_name {
            not_at_the_next_start(&mut properties);
        }
        let read_only = properties
            .iter()
            .any(|(name, value)| name == "readonly" && value == "on");
        properties.retain(|(name, _)| name != "readonly");
        let accessed_s = found.timestamp_s;
        let old_name = found.name.clone();
        let mut spec = ImportSpec::new(found, self.host.clone());
        spec.new_name.clone_from(&call.new_name);
        spec.temporary_name = call.temporary_name;
        spec.read_only = read_only || call.dry_run;
        spec.force = call.force;
        spec.destroyed = call.destroyed;
        if call.missing_log {
            spec.missing_logs = MissingLogs::Accepted;
        }
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
        let pool = Pool::import(&self.world, spec)
            .await
            .map_err(|error| refusal(&doing, &error, rewind, accessed_s))?;
        if let Some(rewound) = pool.rewound().filter(|_| !call.checkpoint) {
            let when = local_time(rewound.timestamp_s);
            notes.push(if call.dry_run {
                format!("Would be able to return {old_name} to its state as of {when}.")
            } else {
                format!("Pool {old_name} returned to its state as of {when}.")
            });
            let verb = if call.dry_run {
                "Would discard"
            } else {
                "Discarded"
            };
            match rewound.lost_s {
                0 => {}
                lost @ 1..=120 => notes.push(format!(
                    "{verb} approximately {lost} seconds of transactions."
                )),
                lost => notes.push(format!(
                    "{verb} approximately {} minutes of transactions.",
                    (lost + 30) / 60
                )),
            }
        }
        if pool.is_read_only() && !call.dry_run {
            let waiting = pool.dsl().logs().awaiting_replay().await;
            let waiting = waiting.unwrap_or_default();
            if !waiting.is_empty() {
                notes.push(format!(
                    "The intent logs of {} were not replayed: what was written just before the pool was lost does not show.\nImport the pool without '-o readonly=on' to have it.",
                    waiting.join(", ")
                ));
            }
        }
        if call.dry_run {
            pool.export(false)
                .await
                .map_err(|error| from_engine(&doing, &error))?;
            return Ok(Vec::new());
        }
        self.log_command(&pool, &call.command).await;
        Ok(self.adopt(pool, !call.no_mount).await)
    }
}

/// `ctime(3)` without the line's end.
fn local_time(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0))
        .map_or_else(
            || seconds.to_string(),
            |time| {
                time.with_timezone(&chrono::Local)
                    .format("%a %b %e %H:%M:%S %Y")
                    .to_string()
            },
        )
}

/// A refused import in OpenZFS's words.
fn refusal(doing: &str, error: &PoolError, rewind: Rewind, accessed_s: u64) -> Failure {
    let message = match error {
        PoolError::ForeignHost {
            hostname, hostid, ..
        } => format!(
            "{doing}: pool was previously in use from another system.\nLast accessed by {hostname} (hostid={hostid:x}) at {}\nThe pool can be imported, use 'zpool import -f' to import the pool.",
            local_time(accessed_s)
        ),
        PoolError::UnsupportedForWrite { features, .. } => format!(
            "This pool uses the following feature(s) not supported by this system:\n{}All unsupported features are only required for writing to the pool.\nThe pool can be imported using '-o readonly=on'.\n{doing}: unsupported version or feature",
            feature_lines(features)
        ),
        PoolError::UnsupportedFeatures { features, .. } => format!(
            "This pool uses the following feature(s) not supported by this system:\n{}{doing}: unsupported version or feature",
            feature_lines(features)
        ),
        PoolError::MissingLog { .. } => error.to_string(),
        _ if error.is_damage() && rewind == Rewind::No => format!(
            "{}\nAn older state may be whole: 'zpool import -F' goes back a little, and with '-n' says what that would lose.",
            from_engine(doing, error)
        ),
        _ => return from_engine(doing, error),
    };
    Failure::new(from_engine(doing, error).kind, message)
}

fn feature_lines(features: &[String]) -> String {
    features
        .iter()
        .map(|feature| format!("\t{feature}\n"))
        .collect()
}

/// The page about a condition (`zfs_msgid_table`, lib/libzfs/libzfs_status.c).
fn page(id: &str) -> Option<String> {
    Some(format!("https://openzfs.github.io/openzfs-docs/msg/{id}"))
}

fn any(vdev: &VdevReport, test: &impl Fn(&VdevReport) -> bool) -> bool {
    // Spares that are not there are no problem of the pool (`find_vdev_problem`).
    let mut counted = vdev.children.iter().filter(|child| child.class != "spare");
    vdev.children.is_empty() && test(vdev) || counted.any(|child| any(child, test))
}

/// What `zpool import` prints of a pool; see `check_status` (lib/libzfs/libzfs_status.c) for the
/// order of the conditions.
fn report(found: &FoundPool, probe: &Probe, foreign: bool) -> FoundPoolReport {
    let tree = tree(found, probe);
    let leaf = |word: &str| any(&tree, &|vdev| vdev.state == word);
    let missing = any(&tree, &|vdev| {
        vdev.state == "UNAVAIL" && vdev.note.as_deref() == Some("cannot open")
    });
    let broken = leaf("UNAVAIL");
    let usable = matches!(probe.state, VdevState::Online | VdevState::Degraded);
    let some = |text: &str| Some(text.to_owned());
    let devices_missing = "One or more devices are missing from the system.";
    let devices_corrupt = "One or more devices contains corrupted data.";
    let (status, see, action): (Option<String>, Option<String>, &str) = if probe.is_in_use {
        (
            some("The pool is in use by another process of this system."),
            None,
            "The pool must be exported there before it can be imported here.",
        )
    } else if probe.is_resilvering && probe.unusable.is_none() {
        (
            some("One or more devices were being resilvered."),
            None,
            "The pool can be imported using its name or numeric identifier.",
        )
    } else if foreign {
        (
            some("The pool was last accessed by another system."),
            page("ZFS-8000-EY"),
            "The pool can be imported using its name or numeric identifier and\nthe '-f' flag.",
        )
    } else {
        match &probe.unusable {
            Some(Unusable::Version) => (
                some("The pool is formatted using an incompatible version."),
                page("ZFS-8000-A5"),
                "The pool cannot be imported.  Access the pool on a system running newer\nsoftware, or recreate the pool from backup.",
            ),
            Some(Unusable::FeaturesForRead(features)) => (
                Some(format!(
                    "The pool uses the following feature(s) not supported on this system:\n{}",
                    features.join("\n")
                )),
                None,
                "The pool cannot be imported. Access the pool on a system that supports\nthe required feature(s), or recreate the pool from backup.",
            ),
            Some(Unusable::FeaturesForWrite(features)) => (
                Some(format!(
                    "The pool can only be accessed in read-only mode on this system. It\ncannot be accessed in read-write mode because it uses the following\nfeature(s) not supported on this system:\n{}",
                    features.join("\n")
                )),
                None,
                "The pool cannot be imported in read-write mode. Import the pool with\n'-o readonly=on', access the pool on a system that supports the\nrequired feature(s), or recreate the pool from backup.",
            ),
            Some(Unusable::MissingTops) => (
                some(devices_missing),
                page("ZFS-8000-6X"),
                "The pool cannot be imported. Attach the missing\ndevices and try again.",
            ),
            Some(_) if leaf("FAULTED") => (
                some("One or more devices are faulted."),
                None,
                "The pool cannot be imported due to damaged devices or data.",
            ),
            Some(_) if missing => (
                some(devices_missing),
                page("ZFS-8000-3C"),
                "The pool cannot be imported. Attach the missing\ndevices and try again.",
            ),
            Some(_) if broken => (
                some(devices_corrupt),
                page("ZFS-8000-5E"),
                "The pool cannot be imported due to damaged devices or data.",
            ),
            Some(_) => (
                some("The pool metadata is incomplete or corrupted."),
                page("ZFS-8000-72"),
                "The pool cannot be imported due to missing or damaged devices.  Ensure\nall devices are present and not in use by another subsystem.",
            ),
            None => {
                let whole = "The pool can be imported using its name or numeric identifier.";
                let old = "The pool can be imported using its name or numeric identifier, though\nsome features will not be available without an explicit 'zpool upgrade'.";
                if leaf("FAULTED") {
                    (some("One or more devices are faulted."), None, whole)
                } else if missing {
                    (some(devices_missing), page("ZFS-8000-2Q"), whole)
                } else if broken {
                    (some(devices_corrupt), page("ZFS-8000-4J"), whole)
                } else if leaf("OFFLINE") {
                    (some("One or more devices are offlined."), None, whole)
                } else if probe.errata != 0 {
                    (
                        Some(format!(
                            "Errata #{} detected.\n{}",
                            probe.errata,
                            reports::errata(probe.errata).0
                        )),
                        page("ZFS-8000-ER"),
                        whole,
                    )
                } else if probe.old_version {
                    (
                        some("The pool is formatted using a legacy on-disk version."),
                        None,
                        old,
                    )
                } else if probe.features_disabled {
                    (
                        some(
                            "Some supported features are not enabled on the pool.\n(Note that they may be intentionally disabled if the\n'compatibility' property is set.)",
                        ),
                        None,
                        old,
                    )
                } else {
                    (None, None, whole)
                }
            }
        }
    };
    let action = if usable && probe.state == VdevState::Degraded && !probe.is_in_use {
        "The pool can be imported despite missing or damaged devices.  The\nfault tolerance of the pool may be compromised if imported."
    } else {
        action
    };
    let destroyed = found.state == FoundState::Destroyed;
    FoundPoolReport {
        name: found.name.clone(),
        guid: found.guid.get(),
        state: format!(
            "{}{}",
            tree.state,
            if destroyed { " (DESTROYED)" } else { "" }
        ),
        status,
        action: action.into(),
        see,
        footer: match (&probe.unusable, &probe.lost_logs) {
            (Some(Unusable::MissingTops), _) => some(
                "Additional devices are known to be part of this pool, though their\nexact configuration cannot be determined.",
            ),
            (_, Some(datasets)) => Some(without_logs(datasets)),
            _ => None,
        },
        comment: probe.comment.clone(),
        tree,
    }
}

/// OpenZFS tells only when the import is refused that it takes `-m`.
fn without_logs(datasets: &[String]) -> String {
    let lost = if datasets.is_empty() {
        "No intent log is on them: nothing is lost without them.".to_owned()
    } else {
        format!(
            "What was written synchronously in the last seconds of use may be lost in:\n{}",
            datasets.join("\n")
        )
    };
    format!(
        "Devices of the intent log are missing or damaged: attach them, or use '-m'\nto import the pool without them.\n{lost}"
    )
}

fn tree(found: &FoundPool, probe: &Probe) -> VdevReport {
    let note = match &probe.unusable {
        None => None,
        Some(Unusable::MissingTops) => Some("missing device"),
        Some(Unusable::NoReplicas) => Some("insufficient replicas"),
        Some(Unusable::Version) => Some("newer version"),
        Some(Unusable::FeaturesForRead(_) | Unusable::FeaturesForWrite(_)) => {
            Some("unsupported feature(s)")
        }
        Some(_) => Some("corrupted data"),
    };
    let corrupt = note == Some("corrupted data");
    VdevReport {
        name: found.name.clone(),
        kind: "root".into(),
        // `zpool_state_to_name`: what cannot be opened for its data counts as faulted.
        state: if corrupt {
            "FAULTED"
        } else {
            probe.state.word()
        }
        .into(),
        note: note.map(str::to_owned),
        children: probe
            .tops
            .iter()
            .chain(&probe.caches)
            .chain(&probe.spares)
            .map(reports::vdev)
            .filter(|vdev| !matches!(vdev.kind.as_str(), "hole" | "missing" | "indirect"))
            .collect(),
        ..VdevReport::default()
    }
}
