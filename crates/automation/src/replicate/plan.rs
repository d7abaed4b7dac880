//! What is to be sent next of one dataset, from what both sides have. Nothing here looks at a pool.
//!
//! A target takes a difference to a snapshot that it has, if it is the same since. So the source
//! must have that one, or a bookmark of it. Where it has none, or the target was changed, the two
//! have gone different ways, and nobody but their owner can say which of them is right.

pub(super) use answers::zfs_list::{Point, TargetSet};
use dataset::ResumeToken;
use verbs::temporary::is_temporary;

use super::names;

/// A dataset at the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceSet {
    /// Full name.
    pub(super) name: String,
    pub(super) is_volume: bool,
    pub(super) is_encrypted: bool,
    /// Full name and GUID of the snapshot that it is a clone of.
    pub(super) origin: Option<(String, u64)>,
    /// Oldest first.
    pub(super) snapshots: Vec<Point>,
    pub(super) bookmarks: Vec<Point>,
}

impl SourceSet {
    /// Whether it has a snapshot with that GUID, or a bookmark of it.
    fn knows(&self, guid: u64) -> bool {
        let mut all = self.snapshots.iter().chain(&self.bookmarks);
        all.any(|point| point.guid == guid)
    }
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The target has it all.
    Nothing,
    /// What an interrupted receive left is gone on with.
    Resume {
        token: String,
        /// The snapshot that comes of it, after the `@`.
        to: String,
    },
    /// What an interrupted receive left is of no use: the source has not what it was of any more.
    /// It is known to be ours.
    GiveUp,
    /// A stream, or several of the same dataset.
    Send(Series),
}

/// Streams of snapshots that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Series {
    /// Full name of what the target has, a snapshot or bookmark; nothing where it has nothing.
    pub(super) from: Option<String>,
    /// Where they are in [`SourceSet::snapshots`]; one at least.
    pub(super) first: usize,
    pub(super) last: usize,
    /// Whether the dataset is made by it.
    pub(super) is_new: bool,
}

/// Why nothing is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The target is there, and has no snapshot.
    Occupied,
    /// None of the target's snapshots is of the source.
    Diverged {
        /// The most recent one, after the `@`.
        newest: String,
    },
    /// The target holds the rest of a receive of something else.
    OtherReceive,
}

/// What is to be sent next, so that the target has snapshot `to` (after the `@`) of `source` in the
/// end. `has` says whether the target has a snapshot with that GUID in another of its datasets.
pub(super) fn next(
    replication: &str,
    source: &SourceSet,
    target: Option<&TargetSet>,
    to: &str,
    has: impl Fn(u64) -> bool,
) -> Result<Step, Obstacle> {
    if let Some((target, token)) = target.and_then(|set| Some((set, set.token.as_ref()?))) {
        return resumed(replication, source, target, token);
    }
    let Some(end) = source.snapshots.iter().position(|own| own.name == to) else {
        // It was made since.
        return Ok(Step::Nothing);
    };
    let own = &source.snapshots[..=end];
    let is_wanted = |point: &Point| {
        let is_own = names::taken_at(replication, &point.name).is_some();
        let is_others = names::is_taken_by_any(&point.name) || is_temporary(&point.name);
        is_own || !is_others
    };
    let Some(target) = target else {
        let origin = source.origin.as_ref().filter(|(name, guid)| {
            // A snapshot of the same name would be taken for it.
            let short = name.split('@').next_back();
            has(*guid) && !own.iter().any(|point| Some(point.name.as_str()) == short)
        });
        let from = origin.map(|(name, _)| name.clone());
        return Ok(series(own, 0, from, true, is_wanted));
    };
    let Some(newest) = target.snapshots.last() else {
        return Err(Obstacle::Occupied);
    };
    // Later snapshots that somebody took of the target are in nobody's way as long as its files are
    // the same, which whoever receives looks at.
    for there in target.snapshots.iter().rev() {
        let is_there = |point: &&Point| point.guid == there.guid;
        if let Some(base) = source.snapshots.iter().position(|own| is_there(&own)) {
            if base >= end {
                return Ok(Step::Nothing);
            }
            let from = format!("{}@{}", source.name, own[base].name);
            return Ok(series(own, base + 1, Some(from), false, is_wanted));
        }
        if let Some(base) = source.bookmarks.iter().find(is_there) {
            let first = own.iter().position(|point| point.txg > base.txg);
            let from = format!("{}#{}", source.name, base.name);
            let first = first.unwrap_or(own.len());
            let step = series(own, first, Some(from), false, is_wanted);
            // Bookmarks go with single streams only.
            return Ok(match step {
                Step::Send(series) => Step::Send(Series {
                    last: series.first,
                    ..series
                }),
                step => step,
            });
        }
    }
    Err(Obstacle::Diverged {
        newest: newest.name.clone(),
    })
}

/// Whether a target can be one of a new replication, of which no snapshot has been taken.
pub(super) fn check_new(
    replication: &str,
    source: &SourceSet,
    target: &TargetSet,
) -> Result<(), Obstacle> {
    if let Some(token) = &target.token {
        return resumed(replication, source, target, token).map(drop);
    }
    match (target.snapshots.last(), newest_common(source, target)) {
        (_, Some(_)) => Ok(()),
        (None, None) => Err(Obstacle::Occupied),
        (Some(newest), None) => Err(Obstacle::Diverged {
            newest: newest.name.clone(),
        }),
    }
}

/// The first snapshots from `start` on that are wanted, up to one that is not.
fn series(
    own: &[Point],
    start: usize,
    from: Option<String>,
    is_new: bool,
    is_wanted: impl Fn(&Point) -> bool,
) -> Step {
    let Some(first) = (start..own.len()).find(|at| is_wanted(&own[*at])) else {
        return Step::Nothing;
    };
    // A series begins behind what the target has; what follows something that is left out is a
    // difference by itself.
    let last = match first == start {
        true => (first..own.len())
            .take_while(|at| is_wanted(&own[*at]))
            .last()
            .unwrap_or(first),
        false => first,
    };
    Step::Send(Series {
        from,
        first,
        last,
        is_new,
    })
}

/// The most recent snapshot of the target that the source has, or a bookmark of.
pub(super) fn newest_common<'a>(source: &SourceSet, target: &'a TargetSet) -> Option<&'a Point> {
    let mut there = target.snapshots.iter().rev();
    there.find(|point| source.knows(point.guid))
}

fn resumed(
    replication: &str,
    source: &SourceSet,
    target: &TargetSet,
    token: &str,
) -> Result<Step, Obstacle> {
    let Some(read) = ResumeToken::decode(token) else {
        return Err(Obstacle::OtherReceive);
    };
    let head = read.to_name.split('@').next();
    let is_redacted = read.redacted_with.is_some() || read.redact_snaps.is_some();
    if head != Some(source.name.as_str()) || is_redacted {
        return Err(Obstacle::OtherReceive);
    }
    let (guid, from) = (read.to_guid.get(), read.from_guid.map(|from| from.get()));
    let to = source.snapshots.iter().find(|point| point.guid == guid);
    let has_from = from.is_none_or(|from| {
        let of_origin = source.origin.as_ref().map(|(_, guid)| *guid);
        of_origin == Some(from) || source.knows(from)
    });
    // A dataset of another host may have the same name.
    let is_own = |name: &str| {
        let short = name.split('@').nth(1);
        short.is_some_and(|short| names::taken_at(replication, short).is_some())
    };
    let is_ours =
        newest_common(source, target).is_some() || is_own(&read.to_name) && source.knows(guid);
    Ok(match to {
        // It goes on by the name that it was sent with.
        Some(to) if has_from && read.to_name.ends_with(&format!("@{}", to.name)) => Step::Resume {
            token: token.to_owned(),
            to: to.name.clone(),
        },
        _ if is_ours => Step::GiveUp,
        _ => return Err(Obstacle::OtherReceive),
    })
}

#[cfg(test)]
mod tests {
    use format::Guid;

    use super::*;

    const OWN: &str = "millpond-r-20260101T000000Z";
    const OWN_LATER: &str = "millpond-r-20260102T000000Z";
    const OTHERS: &str = "millpond-other-20260101T120000Z";

    fn points(all: &[(&str, u64)]) -> Vec<Point> {
        let point = |(name, guid): &(&str, u64)| Point {
            name: (*name).to_owned(),
            guid: *guid,
            txg: *guid,
            is_held: false,
        };
        all.iter().map(point).collect()
    }

    fn source(snapshots: &[(&str, u64)], bookmarks: &[(&str, u64)]) -> SourceSet {
        SourceSet {
            name: "tank/a".into(),
            is_volume: false,
            is_encrypted: false,
            origin: None,
            snapshots: points(snapshots),
            bookmarks: points(bookmarks),
        }
    }

    fn target(snapshots: &[(&str, u64)]) -> TargetSet {
        TargetSet {
            snapshots: points(snapshots),
            token: None,
        }
    }

    fn planned(source: &SourceSet, target: Option<&TargetSet>, to: &str) -> Step {
        next("r", source, target, to, |guid| guid == 1000).expect("a step")
    }

    fn sent(from: Option<&str>, first: usize, last: usize, is_new: bool) -> Step {
        Step::Send(Series {
            from: from.map(str::to_owned),
            first,
            last,
            is_new,
        })
    }

    #[test]
    fn all_snapshots_go_in_order_but_those_of_other_replications() {
        let a = source(
            &[
                ("x", 1),
                ("y", 2),
                (OTHERS, 3),
                (OWN, 4),
                ("z", 5),
                (OWN_LATER, 6),
            ],
            &[],
        );
        assert_eq!(planned(&a, None, OWN_LATER), sent(None, 0, 1, true));
        let steps = [
            (2, sent(Some("tank/a@y"), 3, 3, false)),
            (
                4,
                sent(Some("tank/a@millpond-r-20260101T000000Z"), 4, 5, false),
            ),
            (6, Step::Nothing),
        ];
        for (guid, step) in steps {
            let there = target(&[("x", 1), ("by another name", guid)]);
            assert_eq!(planned(&a, Some(&there), OWN_LATER), step);
        }
        // No further than asked for, and never back.
        let there = target(&[("x", 1)]);
        let step = planned(&a, Some(&there), "y");
        assert_eq!(step, sent(Some("tank/a@x"), 1, 1, false));
        assert_eq!(planned(&a, Some(&target(&[("z", 5)])), OWN), Step::Nothing);
        // Made after the snapshot was taken.
        assert_eq!(
            planned(&a, None, "millpond-r-20270101T000000Z"),
            Step::Nothing
        );
        // Nothing but what others took comes first.
        let b = source(&[(OTHERS, 3), (OWN, 4), ("z", 5), (OWN_LATER, 6)], &[]);
        assert_eq!(planned(&b, None, OWN_LATER), sent(None, 1, 1, true));
    }

    /// What `zfs send` or `zfs diff` takes for itself is gone before it is sent, or in the middle.
    #[test]
    fn what_commands_take_for_themselves_is_not_sent() {
        let a = source(
            &[
                ("x", 1),
                ("zfs-send-12-0", 2),
                ("zfs-diff-12-77", 3),
                ("zfs-send-me", 4),
                (OWN, 5),
            ],
            &[],
        );
        assert_eq!(planned(&a, None, OWN), sent(None, 0, 0, true));
        let there = target(&[("x", 1)]);
        assert_eq!(
            planned(&a, Some(&there), OWN),
            sent(Some("tank/a@x"), 3, 3, false)
        );
    }

    #[test]
    fn a_bookmark_stands_in_for_a_snapshot_that_is_gone() {
        let a = source(&[(OTHERS, 3), ("y", 5), (OWN, 6)], &[("b", 2), ("late", 7)]);
        let there = target(&[("x", 2)]);
        let step = planned(&a, Some(&there), OWN);
        assert_eq!(step, sent(Some("tank/a#b"), 1, 1, false));
        let there = target(&[("x", 2), ("late", 7)]);
        assert_eq!(planned(&a, Some(&there), OWN), Step::Nothing);
    }

    #[test]
    fn clones_are_differences_to_their_origins_where_the_target_has_these() {
        let mut a = source(&[("y", 5), (OWN, 6)], &[]);
        a.origin = Some(("tank/b@x".into(), 1000));
        assert_eq!(planned(&a, None, OWN), sent(Some("tank/b@x"), 0, 1, true));
        a.origin = Some(("tank/b@x".into(), 1001));
        assert_eq!(planned(&a, None, OWN), sent(None, 0, 1, true));
        a.origin = Some(("tank/b@y".into(), 1000));
        assert_eq!(planned(&a, None, OWN), sent(None, 0, 1, true));
    }

    #[test]
    fn what_somebody_took_of_the_target_is_not_common() {
        let a = source(&[("x", 1), (OWN, 4)], &[("b", 2)]);
        let common =
            |there: &[(&str, u64)]| newest_common(&a, &target(there)).map(|point| point.guid);
        assert_eq!(common(&[("x", 1), ("y", 2), ("mine", 77)]), Some(2));
        assert_eq!(common(&[("x", 1), ("mine", 77)]), Some(1));
        assert_eq!(common(&[("mine", 77)]), None);
    }

    #[test]
    fn what_went_another_way_is_left_alone() {
        let a = source(&[("x", 1), ("y", 2), (OWN, 4)], &[]);
        let refused =
            |there: &TargetSet| next("r", &a, Some(there), OWN, |_| true).expect_err("an obstacle");
        assert_eq!(refused(&target(&[])), Obstacle::Occupied);
        let diverged = Obstacle::Diverged { newest: "x".into() };
        // The same name says nothing.
        assert_eq!(refused(&target(&[("x", 77)])), diverged);
        // So it is before the first snapshot is taken.
        let new = |there: &TargetSet| check_new("r", &a, there);
        assert_eq!(new(&target(&[])), Err(Obstacle::Occupied));
        assert_eq!(new(&target(&[("x", 77)])), Err(diverged));
        assert_eq!(new(&target(&[("x", 1), ("mine", 77)])), Ok(()));
        // A snapshot that somebody took of the target later says nothing either.
        let there = target(&[("x", 1), ("mine", 77)]);
        let step = planned(&a, Some(&there), OWN);
        assert_eq!(step, sent(Some("tank/a@x"), 1, 2, false));
    }

    #[test]
    fn interrupted_receives_go_on_or_are_given_up_if_they_are_ours() {
        let token = |name: &str, from: Option<u64>, to: u64| TargetSet {
            snapshots: Vec::new(),
            token: Some(
                ResumeToken {
                    from_guid: from.map(Guid::new),
                    to_guid: Guid::new(to),
                    to_name: name.into(),
                    ..ResumeToken::default()
                }
                .encode(),
            ),
        };
        let common = |there: TargetSet| TargetSet {
            snapshots: points(&[("x", 1), ("mine", 77)]),
            ..there
        };
        let a = source(&[("x", 1), ("y", 2)], &[("b", 9)]);
        for from in [None, Some(1), Some(9)] {
            let there = token("tank/a@y", from, 2);
            let step = planned(&a, Some(&there), OWN);
            let token = there.token.clone().expect("a token");
            assert_eq!(
                step,
                Step::Resume {
                    token,
                    to: "y".into()
                }
            );
        }
        let stale = || {
            [
                token("tank/a@gone", None, 3),
                token("tank/a@y", Some(8), 2),
                token("tank/a@renamed", None, 2),
            ]
        };
        let own = format!("tank/a@{OWN}");
        let ours = stale().map(common).into_iter();
        // A bookmark knows what is gone.
        for there in ours.chain([token(&own, None, 9)]) {
            assert_eq!(planned(&a, Some(&there), OWN), Step::GiveUp);
        }
        // It may be of a dataset of another host.
        let others = format!("tank/a@{OTHERS}");
        let unknown = [token(&own, None, 3), token(&others, None, 9)];
        for there in stale().into_iter().chain(unknown) {
            let refused = next("r", &a, Some(&there), OWN, |_| true);
            assert_eq!(refused, Err(Obstacle::OtherReceive));
        }
        let no_token = TargetSet {
            token: Some("1-2-3-4".into()),
            ..TargetSet::default()
        };
        for there in [token("tank/b@y", None, 2), no_token] {
            let refused = next("r", &a, Some(&there), OWN, |_| true);
            assert_eq!(refused, Err(Obstacle::OtherReceive));
        }
    }
}
