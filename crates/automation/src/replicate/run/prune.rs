//! Which of our snapshots go, and when: at the end of a run, and where there is no room.
//!
//! # At the end of a run
//! Those go that the rule does not keep: at the source, and at targets that have the newest one.
//! The newest stays, and what is held, and what both sides have in common: the most recent such
//! snapshot, as the target tells, and what there are bookmarks or notes of (module `bookmarks`).
//! Where the other side cannot be reached, bookmarks and notes say what both have.
//!
//! # Where there is no room
//! Where the source has no room for a snapshot, or the target none for a stream, nothing would ever
//! go at a run's end, and what is full would stay so. There, those go that would go once the new
//! one is taken, or received ([`rule::goes_before`]), and it is tried once more. This destroys
//! without anything new in its place, so it is narrower than the end of a run:
//!
//! - At the target, only in the dataset that a stream found no room for, never in others of the
//!   replication: they may lie below another quota, and may be well.
//! - The newest of a dataset stays, by its moment and by its place in the pool: at the target, what
//!   a difference begins with. So a backup always has its last copy, whatever becomes of the run.
//! - At the target, what both sides have in common is known, or nothing goes there. What a run has
//!   sent before it broke off is looked at anew first.
//! - At the source, what a dataset's target has is told by the target, a bookmark or a note; where
//!   none of them is to be had, nothing goes of that dataset. In a full pool there may be no room
//!   for a bookmark.
//! - A run that fails again and again takes one of each class of the rule in all, and no more.
//!
//! Where the notes of removed replications could not be read, nothing goes on either side, at the
//! end of a run or for room: any snapshot may be the last that another pair has in common.
//!
//! Held snapshots, and those of others, never go. A crash in between leaves less of what the rule
//! would not keep.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use api::{Failure, Keep, ReplicationNote};

use super::super::kept::{all_stay, may_need_any, unmarked};
use super::super::names;
use super::super::plan::{Point, SourceSet, TargetSet, newest_common};
use super::{Run, Side, Sides, lacks_room};
use crate::timetable::{destroy_snapshots, now_s, rule};
use service::pools::OpenPool;

/// How long what was destroyed may take to come free, in the background.
const FREED_WITHIN: Duration = Duration::from_secs(10);

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
        for source in &sources {
            let there = self.there(&source.name);
            let target = sides.and_then(|sides| sides.targets.get(&there));
            let common = self.common(source, target);
            let snapshots = with_holds(open, source).await;
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
            let destroyed = self.destroy_there(&there, &doomed).await;
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

    /// Makes room at the source for a snapshot that found none; whether something went.
    pub(super) async fn make_room(&mut self, open: &OpenPool) -> bool {
        if self.what.keep.is_none() {
            return false;
        }
        let Ok(sources) = self.sources(open).await else {
            return false;
        };
        let top = self.what.target.dataset();
        let targets = self.targets(top, self.what.recursive).await.ok();
        let mut is_some_gone = false;
        for source in &sources {
            if self.work.is_canceled() {
                break;
            }
            let there = self.there(&source.name);
            let target = targets.as_ref().and_then(|targets| targets.get(&there));
            let replications = &self.automation.replications;
            let named = source.bookmarks.iter().map(|point| point.name.as_str());
            let named: Vec<&str> = named.collect();
            // A target that seems not to be there may only be away with its pool.
            if target.is_none() && may_need_any(replications, &source.name, &named) {
                continue;
            }
            let common = self.common(source, target);
            let snapshots = with_holds(open, source).await;
            let doomed = self.doomed_before(&snapshots, &common, now_s());
            let left = self.destroy_here(&source.name, &doomed).await;
            is_some_gone |= left.len() < doomed.len();
            self.note_left(left, false);
        }
        is_some_gone && self.until_freed().await
    }

    /// Makes room at the target for snapshot `to` of a dataset, if it was found out that there is
    /// none; whether something went.
    pub(super) async fn makes_room(
        &mut self,
        sides: &mut Sides,
        at: usize,
        to: &str,
        received: &Result<(), Failure>,
    ) -> bool {
        if !lacks_room(received) || self.what.keep.is_none() {
            return false;
        }
        let source = &sides.sources[at];
        let there = self.there(&source.name);
        let Some(coming_s) = names::taken_at(&self.tag, to) else {
            return false;
        };
        // A part of what was sent may be there by now.
        let Ok(mut found) = self.targets(&there, false).await else {
            return false;
        };
        let Some(target) = found.remove(&there) else {
            return false;
        };
        let doomed = match newest_common(source, &target) {
            None => Vec::new(),
            Some(_) => {
                let common = self.common(source, Some(&target));
                self.doomed_before(&target.snapshots, &common, coming_s)
            }
        };
        if doomed.is_empty() {
            return false;
        }
        let Ok(left) = self.destroy_there(&there, &doomed).await else {
            return false;
        };
        let is_some_gone = left.len() < doomed.len();
        self.note_left(left, true);
        sides.targets.insert(there, target);
        is_some_gone && self.until_freed().await
    }

    /// Gives what was destroyed the time to come free; false where the run was stopped meanwhile.
    async fn until_freed(&self) -> bool {
        let pause = async {
            tokio::time::sleep(FREED_WITHIN).await;
            Ok(())
        };
        self.or_stopped(pause).await.is_ok()
    }

    /// Snapshots that both sides need, by their GUIDs: the most recent that both have, as far as it
    /// is known, and those of which there is a bookmark or a note.
    fn common(&self, source: &SourceSet, target: Option<&TargetSet>) -> HashSet<u64> {
        let newest = target.and_then(|target| newest_common(source, target));
        let mut common = unmarked(&self.automation.replications);
        common.extend(self.automation.left.guids());
        common.extend(newest.map(|point| point.guid));
        let bookmarks = source.bookmarks.iter();
        let own = bookmarks.filter(|point| names::is_own_bookmark(&self.tag, &point.name));
        common.extend(own.map(|point| point.guid));
        common
    }

    /// Those of our snapshots that go before one of `coming_s` is taken or received.
    fn doomed_before(&self, points: &[Point], common: &HashSet<u64>, coming_s: u64) -> Vec<String> {
        match &self.what.keep {
            Some(keep) => doomed_before(&self.tag, points, keep, common, coming_s),
            None => Vec::new(),
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

    /// Destroys snapshots of a dataset of the target; gives those that could not be, and why.
    async fn destroy_there(
        &self,
        there: &str,
        doomed: &[String],
    ) -> Result<Vec<(String, String)>, Failure> {
        if let Some(left) = self.all_stay(there, doomed) {
            return Ok(left);
        }
        match &self.side {
            Side::Local => Ok(self.destroy_here(there, doomed).await),
            Side::Ssh(ssh) => self.or_stopped(ssh.destroy(there, doomed)).await,
            Side::Tls(tls) => {
                let command = self.command();
                let destroying = tls.destroy(there, doomed, &command);
                self.or_stopped(destroying).await
            }
        }
    }

    /// All of them, and why, where nobody knows which are needed.
    fn all_stay(&self, dataset: &str, names: &[String]) -> Option<Vec<(String, String)>> {
        let (replications, left) = (&self.automation.replications, &self.automation.left);
        all_stay(replications, left, dataset, names)
    }

    async fn destroy_here(&self, dataset: &str, names: &[String]) -> Vec<(String, String)> {
        if let Some(left) = self.all_stay(dataset, names) {
            return left;
        }
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

/// Snapshots of a dataset of the source, with whether somebody holds them.
async fn with_holds(open: &OpenPool, source: &SourceSet) -> Vec<Point> {
    let mut snapshots = source.snapshots.clone();
    for point in &mut snapshots {
        let name = format!("{}@{}", source.name, point.name);
        let holds = open.pool.dsl().holds().list(&name).await;
        point.is_held = holds.map_or(true, |holds| !holds.is_empty());
    }
    snapshots
}

/// Those of a replication's snapshots (`tag`) that go to make room for one of `coming_s`. `points`
/// are in the order of the pool.
fn doomed_before(
    tag: &str,
    points: &[Point],
    keep: &Keep,
    common: &HashSet<u64>,
    coming_s: u64,
) -> Vec<String> {
    let taken_at = |point: &Point| names::taken_at(tag, &point.name);
    let taken: BTreeSet<u64> = points.iter().filter_map(taken_at).collect();
    let goes = rule::goes_before(&taken, keep, coming_s);
    let Some((newest, older)) = points.split_last() else {
        return Vec::new();
    };
    let last_own = points.iter().rev().find(|point| taken_at(point).is_some());
    let stays = |point: &Point| {
        let is_newest = [Some(newest), last_own].into_iter().flatten();
        let is_newest = is_newest
            .map(|newest| newest.guid)
            .any(|guid| guid == point.guid);
        is_newest || point.is_held || common.contains(&point.guid)
    };
    let gone = older
        .iter()
        .filter(|point| taken_at(point).is_some_and(|at_s| goes.contains(&at_s)) && !stays(point));
    gone.map(|point| point.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: room is made of our own old snapshots alone; the newest stays, and what is common.
    #[test]
    fn what_makes_room_is_old_and_ours() {
        let hourly = |hourly| Keep {
            hourly,
            daily: 0,
            weekly: 0,
            monthly: 0,
        };
        let own = |hour: u64| names::snapshot_name("r", hour * 3600);
        let point = |name: String, guid: u64| Point {
            name,
            guid,
            txg: guid,
            is_held: false,
        };
        let mut points = vec![
            point("auto-x-2026-01-01-0000".into(), 1),
            point(own(1), 2),
            point(names::snapshot_name("other", 2 * 3600), 3),
            point(own(2), 4),
            point(own(3), 5),
            point(own(4), 6),
        ];
        let none = HashSet::new();
        let gone = |points: &[Point], keep, common: &HashSet<u64>| {
            doomed_before("r", points, &hourly(keep), common, 5 * 3600)
        };
        assert_eq!(gone(&points, 9, &none), Vec::<String>::new());
        assert_eq!(gone(&points, 4, &none), [own(1)]);
        assert_eq!(gone(&points, 0, &none), [own(1), own(2), own(3)]);
        assert_eq!(gone(&points, 0, &HashSet::from([4])), [own(1), own(3)]);
        points[1].is_held = true;
        assert_eq!(gone(&points, 0, &none), [own(2), own(3)]);
        // What somebody took since is no copy of ours.
        points.push(point("mine".into(), 7));
        assert_eq!(gone(&points, 0, &none), [own(2), own(3)]);
        // A clock was ahead: the last one has an older name.
        points.push(point(own(0), 8));
        assert_eq!(gone(&points, 0, &none), [own(2), own(3)]);
        assert_eq!(gone(&[], 0, &none), Vec::<String>::new());
    }
}
