//! What the API tells of what was.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use api::{
    Failure, FailureKind, Guid, PlanLog, PlanLogReply, Protocol, REPORT_SUBJECTS_MAX, Report,
    ReportFigure, ReportGet, ReportGetReply, ReportListReply, ReportSpan, ReportSubject,
    ReportValues, ReportedSubject,
};
use plan::sizes::{LOG_SECONDS, log_size};
use series::{Key, Known, Point, Shape, Span, quantile};

use super::reading::nanoseconds;
use super::{CACHE, CLIENT, DEVICE, Figures, MOUNT, POOL, PORTAL, SHARE, now_s, shape_of};

/// How a figure follows from points.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    /// A column that is counted: per second.
    Amount(usize),
    /// A column that is a level.
    Level(usize),
    /// So many of a hundred in a histogram.
    Percentile(usize, f64),
    /// One column divided by another one.
    Quotient(usize, usize),
    /// Some columns that are counted as a part of the first ones, 0 to 1.
    Part(&'static [usize], usize),
}

const TRAFFIC: [(ReportFigure, Source); 4] = [
    (ReportFigure::ReadBytes, Source::Amount(0)),
    (ReportFigure::WrittenBytes, Source::Amount(1)),
    (ReportFigure::Reads, Source::Amount(2)),
    (ReportFigure::Writes, Source::Amount(3)),
];
const TIMES: [(ReportFigure, Source); 6] = [
    (ReportFigure::ReadTimeP50, Source::Percentile(0, 50.0)),
    (ReportFigure::ReadTimeP90, Source::Percentile(0, 90.0)),
    (ReportFigure::ReadTimeP99, Source::Percentile(0, 99.0)),
    (ReportFigure::WriteTimeP50, Source::Percentile(1, 50.0)),
    (ReportFigure::WriteTimeP90, Source::Percentile(1, 90.0)),
    (ReportFigure::WriteTimeP99, Source::Percentile(1, 99.0)),
];
const POOLS: [(ReportFigure, Source); 4] = [
    (ReportFigure::CacheHits, Source::Amount(4)),
    (ReportFigure::CacheMisses, Source::Amount(5)),
    (ReportFigure::CacheBytes, Source::Level(6)),
    (ReportFigure::LogBytes, Source::Level(7)),
];
/// The first columns of a cache's shape: hits and misses of memory, by kind.
const LOOKUPS: usize = 6;
const CACHES: [(ReportFigure, Source); 13] = [
    (
        ReportFigure::CacheHitRate,
        Source::Part(&[0, 2, 4], LOOKUPS),
    ),
    (
        ReportFigure::CacheAnswerRate,
        Source::Part(&[0, 2, 4, 7], LOOKUPS),
    ),
    (ReportFigure::CacheDataHits, Source::Amount(0)),
    (ReportFigure::CacheDataMisses, Source::Amount(1)),
    (ReportFigure::CacheMetadataHits, Source::Amount(2)),
    (ReportFigure::CacheMetadataMisses, Source::Amount(3)),
    (ReportFigure::CacheDedupTableHits, Source::Amount(4)),
    (ReportFigure::CacheDedupTableMisses, Source::Amount(5)),
    (ReportFigure::CacheGhostHits, Source::Amount(6)),
    (ReportFigure::CacheDeviceHits, Source::Amount(7)),
    (ReportFigure::CacheDeviceMisses, Source::Amount(8)),
    (ReportFigure::CacheDeviceBytes, Source::Level(9)),
    (ReportFigure::CacheIndexBytes, Source::Level(10)),
];
const DEVICES: [(ReportFigure, Source); 1] = [(ReportFigure::Queue, Source::Level(4))];
const SHARES: [(ReportFigure, Source); 2] = [
    (ReportFigure::ReadTime, Source::Quotient(4, 2)),
    (ReportFigure::WriteTime, Source::Quotient(5, 3)),
];

/// The figures of a shape.
fn figures_of(shape: &str) -> Vec<(ReportFigure, Source)> {
    let more: &[&[(ReportFigure, Source)]] = match shape {
        POOL => &[&TIMES, &POOLS],
        CACHE => &[&CACHES],
        DEVICE => &[&TIMES, &DEVICES],
        MOUNT | SHARE => &[&SHARES],
        _ => &[],
    };
    let traffic: &[(ReportFigure, Source)] = if shape == CACHE { &[] } else { &TRAFFIC };
    let all = traffic.iter().chain(more.iter().copied().flatten());
    all.copied().collect()
}

impl Source {
    /// What it says of one point.
    fn value(self, point: &Point) -> Option<f64> {
        let column = |index: usize| point.figures.get(index).map(|figure| figure.value);
        match self {
            Self::Amount(index) => {
                let seconds = point.covered_s();
                column(index).filter(|_| seconds > 0.0).map(|v| v / seconds)
            }
            Self::Level(index) => column(index),
            Self::Percentile(index, percent) => {
                quantile(point.histograms.get(index)?, percent / 100.0).map(nanoseconds)
            }
            Self::Quotient(index, by) => {
                let by = column(by).filter(|by| *by > 0.0)?;
                Some(column(index)? / by)
            }
            Self::Part(parts, whole) => {
                let whole: f64 = (0..whole).filter_map(column).sum();
                let part: f64 = parts.iter().copied().filter_map(column).sum();
                (whole > 0.0).then(|| (part / whole).min(1.0))
            }
        }
    }

    /// The highest in a point.
    fn most(self, point: &Point) -> Option<f64> {
        match self {
            Self::Amount(index) | Self::Level(index) => {
                point.figures.get(index).map(|figure| figure.most)
            }
            Self::Percentile(..) | Self::Quotient(..) | Self::Part(..) => None,
        }
    }

    fn values(self, shape: &Shape, figure: ReportFigure, points: &[Point]) -> ReportValues {
        let all = Point::all(shape, points);
        let total = match self {
            Self::Amount(index) => all.as_ref().and_then(|all| all.figures.get(index)),
            _ => None,
        };
        ReportValues {
            figure,
            values: points.iter().map(|point| self.value(point)).collect(),
            highest: points.iter().filter_map(|point| self.most(point)).collect(),
            value: all.as_ref().and_then(|all| self.value(all)),
            most: all.as_ref().and_then(|all| self.most(all)),
            total: total.map(|total| total.value.round()),
        }
    }
}

fn span_of(span: ReportSpan) -> Span {
    match span {
        ReportSpan::Hour => Span::Hour,
        ReportSpan::Day => Span::Day,
        ReportSpan::Week => Span::Week,
        ReportSpan::Month => Span::Month,
        ReportSpan::Year => Span::Year,
    }
}

fn protocol_word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Iscsi => "iscsi",
        Protocol::Nfs => "nfs",
        Protocol::Smb => "smb",
    }
}

fn protocol_of(word: &str) -> Option<Protocol> {
    let mut all = [Protocol::Iscsi, Protocol::Nfs, Protocol::Smb].into_iter();
    all.find(|protocol| protocol_word(*protocol) == word)
}

/// What the figures of a subject are kept under.
fn key_of(subject: &ReportSubject) -> Key {
    let (shape, names) = match subject {
        ReportSubject::Pool { pool } => (POOL, vec![pool.clone()]),
        ReportSubject::Cache { pool } => (CACHE, vec![pool.clone()]),
        ReportSubject::Device { pool, guid } => (DEVICE, vec![pool.clone(), guid.to_string()]),
        ReportSubject::Mount { dataset } => (MOUNT, vec![dataset.clone()]),
        ReportSubject::Portal { address } => (PORTAL, vec![address.clone()]),
        ReportSubject::Share {
            protocol,
            dataset,
            share,
        } => (SHARE, of_share(*protocol, dataset, share)),
        ReportSubject::Client {
            protocol,
            dataset,
            share,
            client,
        } => {
            let mut names = of_share(*protocol, dataset, share);
            names.push(client.clone());
            (CLIENT, names)
        }
    };
    Key { shape, names }
}

fn of_share(protocol: Protocol, dataset: &str, share: &str) -> Vec<String> {
    let names = [protocol_word(protocol), dataset, share];
    names.into_iter().map(str::to_owned).collect()
}

/// The subject that figures are kept of; none where it cannot be told.
fn subject_of(key: &Key) -> Option<ReportSubject> {
    let text = String::clone;
    Some(match (key.shape, &key.names[..]) {
        (POOL, [pool]) => ReportSubject::Pool { pool: text(pool) },
        (CACHE, [pool]) => ReportSubject::Cache { pool: text(pool) },
        (DEVICE, [pool, guid]) => ReportSubject::Device {
            pool: text(pool),
            guid: Guid(guid.parse().ok()?),
        },
        (MOUNT, [dataset]) => ReportSubject::Mount {
            dataset: text(dataset),
        },
        (PORTAL, [address]) => ReportSubject::Portal {
            address: text(address),
        },
        (SHARE, [protocol, dataset, share]) => ReportSubject::Share {
            protocol: protocol_of(protocol)?,
            dataset: text(dataset),
            share: text(share),
        },
        (CLIENT, [protocol, dataset, share, client]) => ReportSubject::Client {
            protocol: protocol_of(protocol)?,
            dataset: text(dataset),
            share: text(share),
            client: text(client),
        },
        _ => return None,
    })
}

fn is_client(subject: &ReportSubject) -> bool {
    matches!(subject, ReportSubject::Client { .. })
}

/// What there are reports of, for somebody who sees clients or does not.
fn subjects(known: Vec<Known>, sees_clients: bool) -> Vec<ReportedSubject> {
    let subjects = known.into_iter().filter_map(|known| {
        let subject = subject_of(&known.key)?;
        Some(ReportedSubject {
            subject,
            label: (!known.label.is_empty()).then_some(known.label),
            seen_s: known.seen_s,
        })
    });
    let mut subjects: Vec<ReportedSubject> = subjects
        .filter(|one| sees_clients || !is_client(&one.subject))
        .collect();
    subjects.sort_by(|one, other| one.subject.cmp(&other.subject));
    subjects
}

/// What there are reports of.
pub fn list(figures: &Figures, sees_clients: bool) -> ReportListReply {
    ReportListReply {
        subjects: subjects(figures.store.list(), sees_clients),
        stored_bytes: figures.store.size_bytes(),
        limit_bytes: figures.store.limit_bytes(),
        left_out: figures.left_out.load(Ordering::Relaxed) as u64,
    }
}

/// What was.
pub async fn get(
    figures: &Arc<Figures>,
    call: ReportGet,
    sees_clients: bool,
) -> Result<ReportGetReply, Failure> {
    if call.subjects.len() > REPORT_SUBJECTS_MAX {
        let message = format!(
            "reports of {} subjects are too many at once; ask for {REPORT_SUBJECTS_MAX} at most",
            call.subjects.len()
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    if !sees_clients && call.subjects.iter().any(is_client) {
        return Err(Failure::denied("cannot tell what clients did"));
    }
    let figures = Arc::clone(figures);
    let reading = tokio::task::spawn_blocking(move || read(&figures, &call));
    let failed = |error: tokio::task::JoinError| {
        let message = format!("the report could not be read: {error}");
        Failure::new(FailureKind::Other, message)
    };
    reading.await.map_err(failed)
}

/// How big a log device of a pool need be: by the most that its intent logs held within a year, and
/// by the network.
///
/// # Errors
/// A time that cannot be.
pub async fn plan_log(figures: &Arc<Figures>, call: PlanLog) -> Result<PlanLogReply, Failure> {
    let seconds = call.seconds.unwrap_or(LOG_SECONDS);
    if !(1.0..=3600.0).contains(&seconds) {
        let message = format!(
            "cannot plan a log device: {seconds} seconds are not 1 to 3,600; it is the time until \
             a write is on the pool's other devices"
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let subject = ReportSubject::Pool { pool: call.pool };
    let year = ReportGet {
        subjects: vec![subject],
        span: ReportSpan::Year,
        figures: vec![ReportFigure::LogBytes],
    };
    let told = get(figures, year, false).await?;
    let seen_bytes = most(&told);
    Ok(PlanLogReply {
        seen_bytes,
        seconds,
        size: log_size(call.network_rate, seconds, seen_bytes),
    })
}

/// The highest value of the only figure of a report, if there was any.
fn most(told: &ReportGetReply) -> Option<u64> {
    let mut figures = told.reports.iter().flat_map(|report| &report.figures);
    let most = figures.next()?.most?;
    (most >= 1.0).then_some(most as u64)
}

fn read(figures: &Figures, call: &ReportGet) -> ReportGetReply {
    let (span, now_s) = (span_of(call.span), now_s());
    let known = figures.store.list();
    let reports = call.subjects.iter().map(|subject| {
        let key = key_of(subject);
        let points = figures.store.read(&key, span, now_s).unwrap_or_default();
        let known = known.iter().find(|known| known.key == key);
        let label = known.map(|known| known.label.clone());
        let wanted = figures_of(key.shape).into_iter();
        let wanted =
            wanted.filter(|(figure, _)| call.figures.is_empty() || call.figures.contains(figure));
        let values = shape_of(key.shape).map(|shape| {
            wanted
                .map(|(figure, source)| source.values(shape, figure, &points))
                .collect()
        });
        Report {
            subject: subject.clone(),
            label: label.filter(|label| !label.is_empty()),
            times_s: points.iter().map(|point| point.start_s(span)).collect(),
            figures: values.unwrap_or_default(),
        }
    });
    ReportGetReply {
        now_s,
        step_s: span.step_s(),
        points: span.points(),
        reports: reports.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use series::{BUCKETS, Sample, Store};

    #[test]
    fn subjects_are_found_by_what_they_are_kept_under() {
        let share = |client: Option<&str>| {
            let (protocol, dataset) = (Protocol::Nfs, "tank/a".to_owned());
            let share = "/tank/a".to_owned();
            match client {
                None => ReportSubject::Share {
                    protocol,
                    dataset,
                    share,
                },
                Some(client) => ReportSubject::Client {
                    protocol,
                    dataset,
                    share,
                    client: client.to_owned(),
                },
            }
        };
        let all = [
            ReportSubject::Pool {
                pool: "tank".into(),
            },
            ReportSubject::Cache {
                pool: "tank".into(),
            },
            ReportSubject::Device {
                pool: "tank".into(),
                guid: Guid(u64::MAX),
            },
            ReportSubject::Mount {
                dataset: "tank/a".into(),
            },
            ReportSubject::Portal {
                address: "10.0.0.1:3260".into(),
            },
            share(None),
            share(Some("10.0.0.1")),
        ];
        let known: Vec<Known> = all
            .iter()
            .map(|subject| Known {
                key: key_of(subject),
                label: String::new(),
                seen_s: 7,
            })
            .collect();
        let told = |sees_clients| {
            let told = subjects(known.clone(), sees_clients).into_iter();
            told.map(|one| one.subject).collect::<Vec<_>>()
        };
        assert_eq!(told(true), all);
        assert_eq!(told(false), all[..6]);
        for subject in all {
            let key = key_of(&subject);
            assert_eq!(subject_of(&key), Some(subject));
            // Each figure comes from a column or histogram that there is.
            let shape = shape_of(key.shape).expect("a shape");
            for (figure, source) in figures_of(key.shape) {
                let is_there = match source {
                    Source::Amount(index) => shape.columns[index] == series::Column::Amount,
                    Source::Level(index) => shape.columns[index] == series::Column::Level,
                    Source::Percentile(index, _) => index < shape.histograms,
                    Source::Quotient(index, by) => index.max(by) < shape.columns.len(),
                    Source::Part(parts, whole) => {
                        let all = parts.iter().copied().chain(0..whole);
                        let mut columns = all.map(|index| shape.columns[index]);
                        columns.all(|column| column == series::Column::Amount)
                    }
                };
                assert!(is_there, "{figure:?} of {}", shape.name);
            }
        }
    }

    #[test]
    fn figures_follow_from_points() {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, _) = Store::open(directory.path(), &super::super::SHAPES, 10_000_000);
        let subject = ReportSubject::Pool {
            pool: "tank".into(),
        };
        let key = key_of(&subject);
        for (time_s, bytes, count) in [(1_000_000_000, 1000.0, 4), (1_000_000_010, 3000.0, 0)] {
            let mut histogram = [0; BUCKETS];
            histogram[10] = count;
            let sample = Sample {
                covered_ms: 10_000,
                columns: vec![bytes, 0.0, 10.0, 0.0, 0.0, 0.0, 512.0, 64.0],
                peaks: [vec![None; 7], vec![Some(4096.0)]].concat(),
                histograms: vec![histogram, [0; BUCKETS]],
            };
            store.take(time_s, &[(key.clone(), String::new(), sample)]);
        }
        let points = store.read(&key, Span::Hour, 1_000_000_010).expect("points");
        let shape = shape_of(POOL).expect("a shape");
        let all = figures_of(POOL).into_iter();
        let told = |wanted: ReportFigure| {
            let mut all = all.clone();
            let (figure, source) = all.find(|(figure, _)| *figure == wanted).expect("one");
            source.values(shape, figure, &points)
        };
        let bytes = told(ReportFigure::ReadBytes);
        assert_eq!(bytes.values, [Some(100.0), Some(300.0)]);
        assert_eq!((bytes.value, bytes.most), (Some(200.0), Some(300.0)));
        assert_eq!(bytes.total, Some(4000.0));
        let log = told(ReportFigure::LogBytes);
        assert_eq!((log.value, log.most), (Some(64.0), Some(4096.0)));
        let times = told(ReportFigure::ReadTimeP50);
        let half = times.values[0].expect("a time");
        assert!(times.values[1].is_none() && times.highest.is_empty());
        assert!(half > f64::from(1 << 20) && half < f64::from(1 << 21));
        assert_eq!(told(ReportFigure::WriteTimeP99).value, None);
    }

    #[test]
    fn parts_of_lookups_follow_from_hits_and_misses() {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, _) = Store::open(directory.path(), &super::super::SHAPES, 10_000_000);
        let key = key_of(&ReportSubject::Cache {
            pool: "tank".into(),
        });
        // Cold, then warm: of 100 lookups memory has 20 and devices 30, then memory has 60.
        let samples = [
            (1_000_000_000, [10.0, 70.0, 6.0, 9.0, 4.0, 1.0, 5.0, 30.0]),
            (1_000_000_010, [50.0, 40.0, 6.0, 0.0, 4.0, 0.0, 5.0, 0.0]),
            (1_000_000_020, [0.0; 8]),
        ];
        for (time_s, amounts) in samples {
            let sample = Sample {
                covered_ms: 10_000,
                columns: [&amounts[..], &[7.0, 4096.0, 512.0]].concat(),
                peaks: vec![None; 11],
                histograms: Vec::new(),
            };
            store.take(time_s, &[(key.clone(), String::new(), sample)]);
        }
        let points = store.read(&key, Span::Hour, 1_000_000_020).expect("points");
        let shape = shape_of(CACHE).expect("a shape");
        let told = |wanted: ReportFigure| {
            let all = figures_of(CACHE).into_iter();
            let mut found = all.filter(|(figure, _)| *figure == wanted);
            let (figure, source) = found.next().expect("one");
            source.values(shape, figure, &points)
        };
        let rate = told(ReportFigure::CacheHitRate);
        assert_eq!(rate.values, [Some(0.2), Some(0.6), None]);
        assert_eq!((rate.value, rate.total), (Some(0.4), None));
        assert!(rate.highest.is_empty() && rate.most.is_none());
        let answered = told(ReportFigure::CacheAnswerRate);
        assert_eq!(answered.values, [Some(0.5), Some(0.6), None]);
        assert_eq!(told(ReportFigure::CacheMetadataHits).total, Some(12.0));
        assert_eq!(told(ReportFigure::CacheDeviceBytes).value, Some(4096.0));
        assert_eq!(told(ReportFigure::CacheIndexBytes).value, Some(512.0));
        // What memory and devices have is known of no pool, and traffic of no cache.
        let has = |shape, wanted| {
            figures_of(shape)
                .iter()
                .any(|(figure, _)| *figure == wanted)
        };
        assert!(!has(CACHE, ReportFigure::Reads) && !has(POOL, ReportFigure::CacheHitRate));
    }

    /// Goal: what a pool's intent logs held at most counts for the size of a log device, and the
    /// network where nothing was seen. Method: a sample with a peak, a pool without, bad times.
    #[tokio::test]
    async fn a_log_device_is_planned_by_the_highest_of_a_year() {
        let directory = tempfile::tempdir().expect("a directory");
        let figures = Figures::load(directory.path());
        let subject = ReportSubject::Pool {
            pool: "tank".into(),
        };
        let sample = Sample {
            covered_ms: 10_000,
            columns: vec![0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 512.0, 64.0],
            peaks: [vec![None; 7], vec![Some(1_510_000_000.0)]].concat(),
            histograms: vec![[0; BUCKETS]; 2],
        };
        let samples = [(key_of(&subject), String::new(), sample)];
        figures.store.take(now_s(), &samples);
        let ask = async |pool: &str, network_rate, seconds| {
            let call = PlanLog {
                pool: pool.into(),
                network_rate,
                seconds,
            };
            plan_log(&figures, call).await
        };
        let told = ask("tank", Some(125_000_000), None).await.expect("a size");
        assert_eq!((told.seen_bytes, told.seconds), (Some(1_510_000_000), 8.0));
        let size = told.size.expect("a size");
        assert_eq!(size.by_network_bytes, Some(2_000_000_000));
        assert_eq!(size.bytes, 2_265_000_000);
        let told = ask("other", Some(125_000_000), Some(4.0)).await;
        let told = told.expect("a size");
        assert_eq!(told.seen_bytes, None);
        assert_eq!(told.size.expect("a size").bytes, 1_000_000_000);
        let told = ask("other", None, None).await.expect("an answer");
        assert!(told.size.is_none());
        for seconds in [0.0, 4000.0, -1.0] {
            let refused = ask("tank", None, Some(seconds)).await;
            assert_eq!(
                refused.expect_err("no such time").kind,
                FailureKind::Invalid
            );
        }
    }
}
