//! What a run keeps at the source of what the target has: bookmarks, or notes where there can be
//! none.

use std::collections::{BTreeMap, BTreeSet};

use super::super::kept::note_unmarked;
use super::super::names;
use super::super::plan::{Point, Series, SourceSet, newest_common};
use super::{Run, Sides};
use service::pools::OpenPool;

impl Run {
    /// Makes bookmarks of all snapshots of a series: where it breaks off, the last one that came
    /// through is what both sides have, and the next one is what a receive waits for.
    pub(super) async fn bookmark_ahead(
        &self,
        open: &OpenPool,
        source: &mut SourceSet,
        series: &Series,
    ) {
        let mut made: Vec<Point> = Vec::new();
        for snapshot in &source.snapshots[series.first..=series.last] {
            let name = names::bookmark_name(&self.tag, snapshot.guid);
            if !source.bookmarks.iter().any(|own| own.name == name) {
                made.push(Point {
                    name,
                    ..snapshot.clone()
                });
            }
        }
        let of = |own: &Point| source.snapshots.iter().find(|point| point.guid == own.guid);
        let pairs: Vec<(String, String)> = made
            .iter()
            .filter_map(|own| {
                let of = format!("{}@{}", source.name, of(own)?.name);
                Some((format!("{}#{}", source.name, own.name), of))
            })
            .collect();
        if pairs.is_empty() {
            return;
        }
        let _admin = open.admin.lock().await;
        match open.pool.dsl().bookmarks().create(&pairs).await {
            Ok(()) => source.bookmarks.extend(made),
            Err(error) => {
                let name = &source.name;
                tracing::warn!("bookmarks of '{name}' could not be made: {error}");
                let guids = made.iter().map(|own| own.guid);
                self.note_unmarked(|noted| noted.entry(name.clone()).or_default().extend(guids));
            }
        }
    }

    fn note_unmarked(&self, change: impl FnOnce(&mut BTreeMap<String, BTreeSet<u64>>)) {
        note_unmarked(&self.automation.replications, &self.name, change);
    }

    /// Keeps which snapshot is the most recent one that both sides have, as a bookmark.
    pub(super) async fn bookmark(&self, open: &OpenPool, sides: &mut Sides, at: usize) {
        let there = self.there(&sides.sources[at].name);
        let target = sides.targets.get(&there);
        let source = &sides.sources[at];
        let Some(newest) = target.and_then(|target| newest_common(source, target)) else {
            return;
        };
        let guid = newest.guid;
        let source = &mut sides.sources[at];
        let name = names::bookmark_name(&self.tag, guid);
        let bookmarks = open.pool.dsl().bookmarks();
        let _admin = open.admin.lock().await;
        if !source.bookmarks.iter().any(|own| own.name == name) {
            let Some(snapshot) = source.snapshots.iter().find(|own| own.guid == guid) else {
                return;
            };
            let full_name = format!("{}#{name}", source.name);
            let of = format!("{}@{}", source.name, snapshot.name);
            if let Err(error) = bookmarks.create(&[(full_name.clone(), of)]).await {
                // It is a second way to what the snapshot is the first one to, which stays.
                tracing::warn!("bookmark '{full_name}' could not be made: {error}");
                let name = source.name.clone();
                self.note_unmarked(|noted| {
                    noted.insert(name, BTreeSet::from([guid]));
                });
                return;
            }
            source.bookmarks.push(Point {
                name: name.clone(),
                ..snapshot.clone()
            });
        }
        self.note_unmarked(|noted| {
            noted.remove(&source.name);
        });
        let is_old = |own: &Point| own.name != name && names::is_own_bookmark(&self.tag, &own.name);
        let old: Vec<String> = source
            .bookmarks
            .iter()
            .filter(|own| is_old(own))
            .map(|own| format!("{}#{}", source.name, own.name))
            .collect();
        if old.is_empty() {
            return;
        }
        match bookmarks.destroy(&old).await {
            Ok(()) => source.bookmarks.retain(|own| !is_old(own)),
            Err(error) => {
                let old = old.join(", ");
                tracing::warn!("bookmarks could not be destroyed: {old}: {error}");
            }
        }
    }
}
