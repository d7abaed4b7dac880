//! `zfs destroy`.

use std::collections::BTreeSet;

use api::{Failure, FailureKind, ZfsDestroy, ZfsDestroyReply};
use dataset::{DatasetError, DatasetInfo, DatasetKind};
use serve_fuse::UnmountMode;

use crate::error::from_dataset;
use crate::mounts::is_at_or_below;
use crate::service::{OpenPool, Service};
use crate::zfs::{everything, mode};

/// Snapshots of a dataset that is destroyed with all below it go by so many: what one txg frees waits in memory.
const SNAPSHOTS_AT_ONCE: usize = 1000;

impl Service {
    /// `zfs destroy`.
    pub(crate) async fn zfs_destroy(&self, call: ZfsDestroy) -> Result<ZfsDestroyReply, Failure> {
        let open = self.pool_of(&call.target)?;
        let _admin = open.admin.lock().await;
        let reply = match call.target.split_once('@') {
            Some((head, words)) => self.destroy_snapshots(&open, &call, head, words).await?,
            None if call.target.contains('#') => self.destroy_bookmark(&open, &call).await?,
            None => self.destroy_datasets(&open, &call).await?,
        };
        if !call.dry_run {
            self.log_command(&open.pool, &call.command).await;
        }
        Ok(reply)
    }

    async fn destroy_bookmark(
        &self,
        open: &OpenPool,
        call: &ZfsDestroy,
    ) -> Result<ZfsDestroyReply, Failure> {
        let name = &call.target;
        let doing = format!("cannot destroy bookmark '{name}'");
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        if call.dry_run || call.defer || call.recursive || call.dependents {
            let message = format!("{doing}: it takes no options");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let head = name.split('#').next().unwrap_or(name);
        let dsl = open.pool.dsl();
        let known = dsl.bookmarks().list(head).await.map_err(failed)?;
        if !known.iter().any(|bookmark| bookmark.name == *name) {
            let message = format!("bookmark '{name}' does not exist.");
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        let destroyed = dsl.bookmarks().destroy(std::slice::from_ref(name)).await;
        destroyed.map_err(failed)?;
        Ok(ZfsDestroyReply {
            names: vec![name.clone()],
            reclaimed_bytes: None,
        })
    }

    async fn destroy_snapshots(
        &self,
        open: &OpenPool,
        call: &ZfsDestroy,
        head: &str,
        words: &str,
    ) -> Result<ZfsDestroyReply, Failure> {
        let doing = format!("cannot destroy '{}'", call.target);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        // What depends on them are those of the datasets below, too.
        let goes_below = call.recursive || call.dependents;
        let depth = if goes_below { None } else { Some(1) };
        let dsl = open.pool.dsl();
        let listed = dsl
            .directories()
            .list(head, &everything(depth))
            .await
            .map_err(failed)?;
        let mut names = Vec::new();
        for word in words.split(',') {
            let mut heads: Vec<&str> = listed
                .iter()
                .filter(|info| info.kind != DatasetKind::Snapshot)
                .map(|info| info.name.as_str())
                .collect();
            if !goes_below {
                heads.retain(|name| *name == head);
            }
            for head in heads {
                let of_head: Vec<&DatasetInfo> = listed
                    .iter()
                    .filter(|info| info.name.split_once('@').is_some_and(|(of, _)| of == head))
                    .collect();
                names.extend(
                    snapshot_range(&of_head, word)
                        .into_iter()
                        .map(str::to_owned),
                );
            }
        }
        // Some of the words may name none.
        if names.is_empty() {
            let message = format!(
                "could not find any snapshots to destroy; check snapshot names: '{}' does not exist",
                call.target
            );
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        // Without -d, clones are in the way; with -R they go first, with all below them.
        let mut doomed: Vec<DatasetInfo> = listed
            .iter()
            .filter(|info| names.contains(&info.name))
            .cloned()
            .collect();
        if !call.defer {
            self.add_clones(open, call, &mut doomed).await?;
        }
        let clones: Vec<&DatasetInfo> = doomed
            .iter()
            .rev()
            .filter(|info| !names.contains(&info.name))
            .collect();
        let reclaimed = self.freed_by(open, &listed, &names).await.map_err(failed)?;
        if !call.dry_run {
            // All of them or none: nothing has happened yet.
            self.release_unused_snapshots(&names).await?;
            let clone_names: Vec<String> = clones.iter().map(|info| info.name.clone()).collect();
            self.put_away_and_destroy(open, &clone_names, mode(call.force))
                .await?;
            self.release_snapshots(&names).await;
            open.pool
                .dsl()
                .destroyer()
                .destroy_snapshots(&names, call.defer)
                .await
                .map_err(failed)?;
        }
        let mut all: Vec<String> = clones.iter().map(|info| info.name.clone()).collect();
        all.extend(names);
        Ok(ZfsDestroyReply {
            names: all,
            reclaimed_bytes: Some(reclaimed),
        })
    }

    /// Space that comes free with these snapshots, each run of neighbours together
    /// (`destroy_print_snapshots`, cmd/zfs/zfs_main.c).
    async fn freed_by(
        &self,
        open: &OpenPool,
        listed: &[DatasetInfo],
        names: &[String],
    ) -> Result<u64, DatasetError> {
        let mut snapshots: Vec<&DatasetInfo> = listed
            .iter()
            .filter(|info| info.kind == DatasetKind::Snapshot)
            .collect();
        let head = |info: &DatasetInfo| info.name.split('@').next().unwrap_or("").to_owned();
        snapshots.sort_by_key(|info| (head(info), info.createtxg, info.object));
        let mut total = 0u64;
        let mut runs: Vec<(&DatasetInfo, &DatasetInfo)> = Vec::new();
        let mut before: Option<&DatasetInfo> = None;
        for info in snapshots {
            let is_doomed = names.contains(&info.name);
            let continues = before.is_some_and(|before| head(before) == head(info));
            match runs.last_mut() {
                Some(run) if is_doomed && continues => run.1 = info,
                _ if is_doomed => runs.push((info, info)),
                _ => {}
            }
            before = is_doomed.then_some(info);
        }
        for (first, last) in runs {
            total += open
                .pool
                .dsl()
                .destroyer()
                .space_freed_with(&first.name, &last.name)
                .await?;
        }
        Ok(total)
    }

    async fn destroy_datasets(
        &self,
        open: &OpenPool,
        call: &ZfsDestroy,
    ) -> Result<ZfsDestroyReply, Failure> {
        let doing = format!("cannot destroy '{}'", call.target);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let dsl = open.pool.dsl();
        if call.defer {
            let message = format!("{doing}: only snapshots can be destroyed later ('-d')");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        if !call.target.contains('/') {
            let message = format!(
                "{doing}: operation does not apply to pools\nuse 'zfs destroy -r {0}' to destroy all datasets in the pool\nuse 'zpool destroy {0}' to destroy the pool itself",
                call.target
            );
            if !call.recursive && !call.dependents {
                return Err(Failure::new(FailureKind::Invalid, message));
            }
        }
        let mut doomed = dsl
            .directories()
            .list(&call.target, &everything(None))
            .await
            .map_err(failed)?;
        if !call.recursive && !call.dependents && doomed.len() > 1 {
            let children = doomed[1..]
                .iter()
                .map(|info| info.name.as_str())
                .collect::<Vec<_>>()
                .join("\n");
            let kind = doomed[0].kind.name();
            let message = format!(
                "{doing}: {kind} has children\nuse '-r' to destroy the following datasets:\n{children}"
            );
            return Err(Failure::new(FailureKind::Busy, message));
        }
        self.add_clones(open, call, &mut doomed).await?;
        // Children before parents, snapshots before what they are of, clones before their origins.
        let mut names: Vec<String> = doomed.iter().rev().map(|info| info.name.clone()).collect();
        if !call.target.contains('/') {
            names.retain(|name| name != &call.target);
        }
        if call.dry_run {
            return Ok(ZfsDestroyReply {
                names,
                reclaimed_bytes: None,
            });
        }
        self.put_away_and_destroy(open, &names, mode(call.force))
            .await?;
        Ok(ZfsDestroyReply {
            names,
            reclaimed_bytes: None,
        })
    }

    /// Destroys filesystems, volumes and snapshots, in this order. What is left when one of them cannot be is where it was.
    async fn put_away_and_destroy(
        &self,
        open: &OpenPool,
        names: &[String],
        mode: UnmountMode,
    ) -> Result<(), Failure> {
        let dsl = open.pool.dsl();
        let directories = self.mounts.own_directories(names);
        let doomed: BTreeSet<&String> = names.iter().collect();
        let mut mounted = self.mounts.last_first(&open.pool.name());
        mounted.retain(|name| doomed.contains(name));
        let mut taken = self.take_away(open, mounted, mode).await?;
        let mut done = 0;
        let work = async {
            for name in names.iter().filter(|name| !name.contains('@')) {
                self.close_volume(name, mode).await?;
            }
            self.release_snapshots(names).await;
            for run in runs(names) {
                let name = &run[0];
                let destroyed = match name.contains('@') {
                    true => dsl.destroyer().destroy_snapshots(run, false).await,
                    false => dsl.destroyer().destroy(name).await,
                };
                destroyed
                    .map_err(|error| from_dataset(&format!("cannot destroy '{name}'"), &error))?;
                done += run.len();
            }
            Ok(())
        };
        let outcome: Result<(), Failure> = work.await;
        if outcome.is_err() {
            taken.retain(|one| !names[..done].contains(&one.name));
            if let Err(failure) = self.bring_back(open, taken).await {
                tracing::warn!("{failure}");
            }
            for warning in self.open_volumes(open).await {
                tracing::warn!("{warning}");
            }
            return outcome;
        }
        self.remove_directories(directories).await;
        Ok(())
    }

    /// Adds clones of the doomed snapshots that lie elsewhere, with all below them (`-R`), or refuses.
    pub(crate) async fn add_clones(
        &self,
        open: &OpenPool,
        call: &ZfsDestroy,
        doomed: &mut Vec<DatasetInfo>,
    ) -> Result<(), Failure> {
        let doing = format!("cannot destroy '{}'", call.target);
        let failed = |error: DatasetError| from_dataset(&doing, &error);
        let all = open
            .pool
            .dsl()
            .directories()
            .list(&open.pool.name(), &everything(None))
            .await
            .map_err(failed)?;
        loop {
            let names: BTreeSet<&str> = doomed.iter().map(|info| info.name.as_str()).collect();
            let clone = all.iter().find(|info| {
                !names.contains(info.name.as_str())
                    && info
                        .origin
                        .as_deref()
                        .is_some_and(|origin| names.contains(origin))
            });
            let Some(clone) = clone else { break };
            if !call.dependents {
                let message = format!(
                    "{doing}: {} has dependent clones\nuse '-R' to destroy the following datasets:\n{}",
                    match call.target.contains('@') {
                        true => "snapshot",
                        false => "filesystem",
                    },
                    clone.name
                );
                return Err(Failure::new(FailureKind::Busy, message));
            }
            let more: Vec<DatasetInfo> = all
                .iter()
                .filter(|info| {
                    is_at_or_below(
                        info.name.split('@').next().unwrap_or(&info.name),
                        &clone.name,
                    ) && !names.contains(info.name.as_str())
                })
                .cloned()
                .collect();
            doomed.extend(more);
        }
        Ok(())
    }
}

/// What is destroyed in one go: snapshots that follow each other, or one dataset.
fn runs(names: &[String]) -> Vec<&[String]> {
    let are_snapshots = |one: &String, next: &String| one.contains('@') && next.contains('@');
    names
        .chunk_by(are_snapshots)
        .flat_map(|run| run.chunks(SNAPSHOTS_AT_ONCE))
        .collect()
}

/// Snapshots that a word after `@` means: one, or `first%last` in the order of creation, either end open.
fn snapshot_range<'a>(of_head: &[&'a DatasetInfo], word: &str) -> Vec<&'a str> {
    let short = |info: &'a DatasetInfo| info.name.split_once('@').map_or("", |(_, name)| name);
    let Some((first, last)) = word.split_once('%') else {
        return of_head
            .iter()
            .filter(|info| short(info) == word)
            .map(|info| info.name.as_str())
            .collect();
    };
    let mut ordered: Vec<&'a DatasetInfo> = of_head.to_vec();
    ordered.sort_by_key(|info| (info.createtxg, info.object));
    let begin = if first.is_empty() {
        Some(0)
    } else {
        ordered.iter().position(|info| short(info) == first)
    };
    let end = if last.is_empty() {
        ordered.len().checked_sub(1)
    } else {
        ordered.iter().position(|info| short(info) == last)
    };
    match (begin, end) {
        (Some(begin), Some(end)) if begin <= end => ordered[begin..=end]
            .iter()
            .map(|info| info.name.as_str())
            .collect(),
        _ => Vec::new(),
    }
}
