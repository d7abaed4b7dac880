//! Events: what happens in the server, as a stream of server-sent events
//! (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).
//!
//! `GET /v1/events` is answered with a stream of [`Event`]s. Each has a sequence number (`id`), a
//! class (`event`) and its JSON (`data`). Who gives the number of the last event that it knows, as
//! `?after=N` or in the header `Last-Event-ID`, gets those since, as far as the server has them
//! still; others get what happens from now on. The server keeps a bounded number of events: a
//! reader that is too slow, or comes too late, gets [`EventKind::Lagged`] in place of those that
//! are gone, and should ask for the state anew.
//!
//! Our classes have two words (`pool.imported`). Among them are those of OpenZFS
//! (`sysevent.fs.zfs.*`, `resource.fs.zfs.*`, `ereport.fs.zfs.*`; [`ZfsEvent`]), for those who may
//! change something; `?kind=zfs` asks for these alone, `?kind=own` for ours. Of each of both kinds
//! the server keeps a number of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, AlertRule, AlertSeverity, Call, Guid, Job, ZfsEvent};

/// Path of the stream.
pub const EVENTS_PATH: &str = "/v1/events";

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number, counted from 1 since the server started, without gaps.
    pub sequence: u64,
    /// When it happened, in nanoseconds since 1970, as a string of digits.
    #[serde(with = "crate::guid::decimal")]
    #[schemars(with = "crate::Guid")]
    pub time_ns: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// A pool that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventPool {
    /// Its name.
    pub pool: String,
    /// Its GUID.
    pub guid: Guid,
}

/// An alert that an event is about ([`crate::Alert`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventAlert {
    /// Which rule says so.
    pub rule: AlertRule,
    /// How bad it is.
    pub severity: AlertSeverity,
    /// The pool, where it is about one.
    pub pool: String,
    /// What is said of it, in a sentence.
    pub says: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "class")]
pub enum EventKind {
    /// The reader is connected: what happens from now on follows.
    #[serde(rename = "stream.opened")]
    Opened,
    /// Events are missing here, as they are not kept any more.
    #[serde(rename = "stream.lagged")]
    Lagged {
        /// How many; none where that is not known, as when the reader knows a server that ran
        /// before this one.
        missed: Option<u64>,
    },
    /// A pool was created or imported.
    #[serde(rename = "pool.imported")]
    PoolImported(EventPool),
    /// A pool was exported or destroyed.
    #[serde(rename = "pool.exported")]
    PoolExported(EventPool),
    /// A pool stopped after an I/O failure.
    #[serde(rename = "pool.suspended")]
    PoolSuspended(EventPool),
    /// A suspended pool goes on.
    #[serde(rename = "pool.resumed")]
    PoolResumed(EventPool),
    /// The vdevs, properties or features of a pool were changed.
    #[serde(rename = "pool.changed")]
    PoolChanged(EventPool),
    /// A scrub began, or went on after a pause.
    #[serde(rename = "scrub.started")]
    ScrubStarted(EventPool),
    /// A scrub was paused.
    #[serde(rename = "scrub.paused")]
    ScrubPaused(EventPool),
    /// A scrub was stopped before it was done.
    #[serde(rename = "scrub.canceled")]
    ScrubCanceled(EventPool),
    /// A scrub is done.
    #[serde(rename = "scrub.finished")]
    ScrubFinished(EventPool),
    /// Devices are being given what they missed.
    #[serde(rename = "resilver.started")]
    ResilverStarted(EventPool),
    /// Nothing is left to give them, or to be given.
    #[serde(rename = "resilver.finished")]
    ResilverFinished(EventPool),
    /// Datasets were created, snapshots among them.
    #[serde(rename = "dataset.created")]
    DatasetsCreated {
        /// Full names.
        names: Vec<String>,
    },
    /// Datasets were destroyed, snapshots among them.
    #[serde(rename = "dataset.destroyed")]
    DatasetsDestroyed {
        /// Full names.
        names: Vec<String>,
    },
    /// A job began.
    #[serde(rename = "job.started")]
    JobStarted {
        /// How it is now.
        job: Job,
    },
    /// A job is further than before, or its state is another one.
    #[serde(rename = "job.progress")]
    JobProgress {
        /// How it is now.
        job: Job,
    },
    /// A job ended.
    #[serde(rename = "job.finished")]
    JobFinished {
        /// How it is now.
        job: Job,
    },
    /// Something stands that somebody should know, or got worse.
    #[serde(rename = "alert.raised")]
    AlertRaised(EventAlert),
    /// It is over.
    #[serde(rename = "alert.over")]
    AlertOver(EventAlert),
    /// One of OpenZFS's.
    #[serde(untagged)]
    Zfs(ZfsEvent),
}

impl EventKind {
    /// Its class.
    pub fn class(&self) -> &str {
        match self {
            Self::Opened => "stream.opened",
            Self::Lagged { .. } => "stream.lagged",
            Self::PoolImported(_) => "pool.imported",
            Self::PoolExported(_) => "pool.exported",
            Self::PoolSuspended(_) => "pool.suspended",
            Self::PoolResumed(_) => "pool.resumed",
            Self::PoolChanged(_) => "pool.changed",
            Self::ScrubStarted(_) => "scrub.started",
            Self::ScrubPaused(_) => "scrub.paused",
            Self::ScrubCanceled(_) => "scrub.canceled",
            Self::ScrubFinished(_) => "scrub.finished",
            Self::ResilverStarted(_) => "resilver.started",
            Self::ResilverFinished(_) => "resilver.finished",
            Self::DatasetsCreated { .. } => "dataset.created",
            Self::DatasetsDestroyed { .. } => "dataset.destroyed",
            Self::JobStarted { .. } => "job.started",
            Self::JobProgress { .. } => "job.progress",
            Self::JobFinished { .. } => "job.finished",
            Self::AlertRaised(_) => "alert.raised",
            Self::AlertOver(_) => "alert.over",
            Self::Zfs(event) => &event.class,
        }
    }

    /// The job that it is about.
    pub fn job(&self) -> Option<&Job> {
        match self {
            Self::JobStarted { job } | Self::JobProgress { job } | Self::JobFinished { job } => {
                Some(job)
            }
            _ => None,
        }
    }

    /// The same for somebody who may only look.
    #[must_use]
    pub fn for_looking(mut self) -> Self {
        if let Self::JobStarted { job } | Self::JobProgress { job } | Self::JobFinished { job } =
            &mut self
        {
            job.failure = None;
        }
        self
    }
}

/// Something that happened, maybe before the server started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEvent {
    /// Its number, which goes on over restarts.
    pub number: u64,
    /// What it was. Its own number is of the server that ran then, and so are numbers of jobs.
    pub event: Event,
}

/// Asks for what has happened: our events without those of progress, and of each job the end alone.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventHistory {
    /// How many at most, the last ones.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// What has happened.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct EventHistoryReply {
    /// The newest first.
    pub events: Vec<HistoryEvent>,
}

impl Call for EventHistory {
    const PATH: &'static str = "/v1/events/history";
    const ACCESS: Access<Self> = Access::Read;
    type Reply = EventHistoryReply;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, FailureKind, JobKind, JobState};

    fn job() -> Job {
        Job {
            id: 7,
            kind: JobKind::Scrub,
            pool: Some("tank".into()),
            guid: Some(Guid(u64::MAX)),
            start_s: 1,
            end_s: None,
            state: JobState::Running,
            progress: None,
            can_cancel: true,
            failure: None,
            sequence: 3,
        }
    }

    /// The class in an event's JSON is the one in the stream, and everything is read as it was.
    #[test]
    fn events_say_their_class() {
        let pool = || EventPool {
            pool: "tank".into(),
            guid: Guid(u64::MAX),
        };
        let names = vec!["tank/a".to_owned()];
        let alert = || EventAlert {
            rule: AlertRule::Space,
            severity: AlertSeverity::Warning,
            pool: "tank".into(),
            says: "pool tank is 81% full".into(),
        };
        for kind in [
            EventKind::Opened,
            EventKind::Lagged { missed: Some(3) },
            EventKind::PoolImported(pool()),
            EventKind::PoolExported(pool()),
            EventKind::PoolSuspended(pool()),
            EventKind::PoolResumed(pool()),
            EventKind::PoolChanged(pool()),
            EventKind::ScrubStarted(pool()),
            EventKind::ScrubPaused(pool()),
            EventKind::ScrubCanceled(pool()),
            EventKind::ScrubFinished(pool()),
            EventKind::ResilverStarted(pool()),
            EventKind::ResilverFinished(pool()),
            EventKind::DatasetsCreated {
                names: names.clone(),
            },
            EventKind::DatasetsDestroyed { names },
            EventKind::JobStarted { job: job() },
            EventKind::JobProgress { job: job() },
            EventKind::JobFinished { job: job() },
            EventKind::AlertRaised(alert()),
            EventKind::AlertOver(alert()),
        ] {
            let event = Event {
                sequence: 1,
                time_ns: u64::MAX,
                kind,
            };
            let json = serde_json::to_value(&event).unwrap();
            assert_eq!(json["class"], event.kind.class());
            assert_eq!(json["time_ns"], u64::MAX.to_string());
            let back: Event = serde_json::from_value(json).unwrap();
            assert_eq!(back, event);
        }
    }
    /// Who may only look is not told why something failed, which may name what is not theirs.
    #[test]
    fn failures_are_for_those_who_may_change_something() {
        let failure = Failure::new(FailureKind::Io, "cannot import 'tank': /root/disk failed");
        let failed = Job {
            state: JobState::Failed,
            failure: Some(failure),
            ..job()
        };
        let kind = EventKind::JobFinished { job: failed };
        let told = serde_json::to_string(&kind.for_looking()).unwrap();
        assert!(told.contains("failed") && !told.contains("disk"), "{told}");
    }
}
