//! The end of a run: those of our snapshots go that the rule does not keep.

use std::collections::{BTreeSet, HashSet};

use api::ReplicationNote;

use super::super::plan::{Point, newest_common};
use super::super::{names, unmarked};
use super::{Run, Side, Sides};
use crate::timetable::{destroy_snapshots, rule};
use service::pools::OpenPool;

impl Run {
    /// Destroys those of our snapshots that the rule does not keep: at the source, and at targets
    /// that have the newest one.
    pub(super) async fn prune(
        &mut self,
        open: &OpenPool,
        sides: Option<&Sides>,
        sent: &BTreeSet<String>,
        to: &str,
    ) {
        if self.what.keep.is_none() {
            return;
        }
        let sources = match self.sources(open).await {
            Ok(sources) => sources,
            Err(failure) => {
                tracing::warn!("{failure}");
                return;
            }
        };
        let unmarked = unmarked(&self.automation.replications);
        for source in &sources {
            let there = self.there(&source.name);
            let target = sides.and_then(|sides| sides.targets.get(&there));
            let newest = target.and_then(|target| newest_common(source, target));
            let mut common: HashSet<u64> = newest.iter().map(|point| point.guid).collect();
            let own_bookmarks = source
                .bookmarks
                .iter()
                .filter(|point| names::is_own_bookmark(&self.tag, &point.name));
            common.extend(own_bookmarks.map(|point| point.guid));
            common.extend(&unmarked);
            let mut snapshots = source.snapshots.clone();
            for point in &mut snapshots {
                let name = format!("{}@{}", source.name, point.name);
                let holds = open.pool.dsl().holds().list(&name).await;
                point.is_held = holds.map_or(true, |holds| !holds.is_empty());
            }
            let doomed = self.doomed(&snapshots, &common, to);
            let left = self.destroy_here(&source.name, &doomed).await;
            self.note_left(left, false);
            let Some(target) = target.filter(|_| sent.contains(&source.name)) else {
                continue;
            };
            let doomed = self.doomed(&target.snapshots, &common, to);
            if doomed.is_empty() {
                continue;
            }
            let destroyed = match &self.side {
                Side::Local => Ok(self.destroy_here(&there, &doomed).await),
                Side::Ssh(ssh) => self.or_stopped(ssh.destroy(&there, &doomed)).await,
                Side::Tls(tls) => {
                    let command = self.command();
                    let destroying = tls.destroy(&there, &doomed, &command);
                    self.or_stopped(destroying).await
                }
            };
            let left = match destroyed {
                Ok(left) => left,
                Err(failure) => {
                    self.failed(failure);
                    return;
                }
            };
            self.note_left(left, true);
        }
    }

    /// Those of our snapshots that go.
    fn doomed(&self, points: &[Point], common: &HashSet<u64>, to: &str) -> Vec<String> {
        let Some(keep) = &self.what.keep else {
            return Vec::new();
        };
        let own = |point: &Point| names::taken_at(&self.tag, &point.name);
        let taken: BTreeSet<u64> = points.iter().filter_map(own).collect();
        let kept = rule::kept(&taken, keep);
        let goes = points.iter().filter(|point| {
            own(point).is_some_and(|at_s| !kept.contains(&at_s))
                && point.name != to
                && !point.is_held
                && !common.contains(&point.guid)
        });
        goes.map(|point| point.name.clone()).collect()
    }

    async fn destroy_here(&self, dataset: &str, names: &[String]) -> Vec<(String, String)> {
        destroy_snapshots(
            &self.automation.serving,
            &self.work,
            &self.command(),
            dataset,
            names,
        )
        .await
    }

    fn note_left(&mut self, left: Vec<(String, String)>, is_of_target: bool) {
        let notes = left
            .into_iter()
            .map(|(snapshot, why)| ReplicationNote::NotPruned {
                snapshot,
                is_of_target,
                why,
            });
        self.result.notes.extend(notes);
    }
}
