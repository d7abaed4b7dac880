//! `millpond reports`: what was read and written, over an hour to a year.

use api::{
    REPORT_SUBJECTS_MAX, Report, ReportFigure, ReportGet, ReportGetReply, ReportList, ReportSpan,
    ReportSubject, ReportValues, ReportedSubject,
};
use clap::{Args, ValueEnum};

use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::{local_history, nice_bytes, nice_count, nice_time};
use crate::server::protocol;

/// What was read and written, and how long it took, over an hour to a year.
#[derive(Debug, Args)]
pub struct Reports {
    /// Of these: pools, paths of devices, datasets, shares or clients (default: of everything)
    names: Vec<String>,
    /// How far back
    #[arg(long, value_enum, default_value_t = Last::Hour, value_name = "SPAN")]
    last: Last,
    /// All points in time, not only what they come to
    #[arg(long)]
    points: bool,
    /// Exact numbers: bytes, operations, nanoseconds
    #[arg(short)]
    parseable: bool,
    /// No header, and one tab between columns
    #[arg(short = 'H')]
    scripted: bool,
    /// As JSON, with all points
    #[arg(short, long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Last {
    /// A point for each 10 seconds
    Hour,
    /// A point for each 2 minutes
    Day,
    /// A point for each 10 minutes
    Week,
    /// A point for each hour
    Month,
    /// A point for each 12 hours
    Year,
}

impl Last {
    fn span(self) -> ReportSpan {
        match self {
            Self::Hour => ReportSpan::Hour,
            Self::Day => ReportSpan::Day,
            Self::Week => ReportSpan::Week,
            Self::Month => ReportSpan::Month,
            Self::Year => ReportSpan::Year,
        }
    }
}

/// What a subject is, and the names that it goes by.
fn words(subject: &ReportSubject, label: Option<&str>) -> (&'static str, Vec<String>) {
    let text =
        |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    match subject {
        ReportSubject::Pool { pool } => ("pool", text(&[pool])),
        ReportSubject::Cache { pool } => ("cache", text(&[pool])),
        ReportSubject::Device { pool, guid } => {
            let guid = guid.to_string();
            ("device", text(&[pool, label.unwrap_or(&guid), &guid]))
        }
        ReportSubject::Mount { dataset } => ("mount", text(&[dataset])),
        ReportSubject::Portal { address } => ("portal", text(&[address])),
        ReportSubject::Share { dataset, share, .. } => ("share", text(&[dataset, share])),
        ReportSubject::Client {
            dataset,
            share,
            client,
            ..
        } => ("client", text(&[dataset, share, client])),
    }
}

/// What a subject is called in a row.
fn name(subject: &ReportSubject, label: Option<&str>) -> String {
    match subject {
        ReportSubject::Pool { pool } | ReportSubject::Cache { pool } => pool.clone(),
        ReportSubject::Device { guid, .. } => label.map_or_else(|| guid.to_string(), str::to_owned),
        ReportSubject::Mount { dataset } => dataset.clone(),
        ReportSubject::Portal { address } => address.clone(),
        ReportSubject::Share {
            protocol: by,
            dataset,
            ..
        } => format!("{dataset} ({})", protocol(*by)),
        ReportSubject::Client {
            protocol: by,
            dataset,
            client,
            ..
        } => format!("{dataset} ({}) {client}", protocol(*by)),
    }
}

fn is_named(one: &ReportedSubject, names: &[String]) -> bool {
    let (_, own) = words(&one.subject, one.label.as_deref());
    names.is_empty() || names.iter().any(|name| own.contains(name))
}

impl Reports {
    /// Prints them.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let Some(list) = client.call_if_running(&ReportList {})? else {
            crate::server::print_none_runs(client);
            return Ok(());
        };
        let named = list
            .subjects
            .iter()
            .filter(|one| is_named(one, &self.names));
        let subjects: Vec<ReportSubject> = named.map(|one| one.subject.clone()).collect();
        if let Some(unknown) = self.names.iter().find(|name| {
            let only = std::slice::from_ref(*name);
            !list.subjects.iter().any(|one| is_named(one, only))
        }) {
            bail_usage!("there is no report of '{unknown}'; 'millpond reports' lists what there is")
        }
        let mut all: Option<ReportGetReply> = None;
        let chunks: Vec<&[ReportSubject]> = match subjects.is_empty() {
            true => vec![&[]],
            false => subjects.chunks(REPORT_SUBJECTS_MAX).collect(),
        };
        for subjects in chunks {
            let call = ReportGet {
                subjects: subjects.to_vec(),
                span: self.last.span(),
                figures: Vec::new(),
            };
            let reply = client.call(&call)?;
            match &mut all {
                Some(all) => all.reports.extend(reply.reports),
                None => all = Some(reply),
            }
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&all)?);
            return Ok(());
        }
        let reports = all.map(|all| all.reports).unwrap_or_default();
        let names = ["WHAT", "NAME"].map(Column::left);
        let shown = Shown(self.parseable);
        if self.points {
            let columns = names.into_iter().chain([Column::left("TIME")]);
            let numbers = RATES.into_iter().chain(KINDS).map(Column::right);
            let columns: Vec<_> = columns.chain(numbers).collect();
            let rows: Vec<_> = reports.iter().flat_map(|one| shown.points(one)).collect();
            print!("{}", columns::render(&columns, &rows, self.scripted));
            return Ok(());
        }
        let numbers = SUMS.into_iter().chain(KINDS).map(Column::right);
        let columns: Vec<_> = names.into_iter().chain(numbers).collect();
        let rows: Vec<_> = reports.iter().map(|one| shown.sums(one)).collect();
        print!("{}", columns::render(&columns, &rows, self.scripted));
        if list.left_out > 0 {
            eprintln!(
                "nothing is kept of {} more: the space for reports is used up",
                list.left_out
            );
        }
        Ok(())
    }
}

/// Headings of a row of what points come to: in all, then the most in a second, then the time that
/// 99 of 100 took at most (of shares and mounts the mean), then hits of caches.
const SUMS: [&str; 9] = [
    "READ", "WRITTEN", "READS", "WRITES", "READ/S", "WRITE/S", "RTIME", "WTIME", "HITS%",
];
/// Headings of a row of one point.
const RATES: [&str; 10] = [
    "READ/S", "WRITE/S", "READS/S", "WRITES/S", "RTIME", "WTIME", "CACHE", "HITS%", "LOG", "QUEUE",
];
/// Headings of the rest of both: hits of caches by kind of block, and of cache devices.
const KINDS: [&str; 4] = ["DATA%", "META%", "DEDUP%", "L2%"];

/// Figures that are hits, and those that are misses.
type Lookups = (&'static [ReportFigure], &'static [ReportFigure]);

/// All of memory: a pool tells them together, its cache by kind.
const HITS: Lookups = (
    &[
        ReportFigure::CacheHits,
        ReportFigure::CacheDataHits,
        ReportFigure::CacheMetadataHits,
        ReportFigure::CacheDedupTableHits,
    ],
    &[
        ReportFigure::CacheMisses,
        ReportFigure::CacheDataMisses,
        ReportFigure::CacheMetadataMisses,
        ReportFigure::CacheDedupTableMisses,
    ],
);
/// As [`KINDS`] has them.
const BY_KIND: [Lookups; KINDS.len()] = [
    (
        &[ReportFigure::CacheDataHits],
        &[ReportFigure::CacheDataMisses],
    ),
    (
        &[ReportFigure::CacheMetadataHits],
        &[ReportFigure::CacheMetadataMisses],
    ),
    (
        &[ReportFigure::CacheDedupTableHits],
        &[ReportFigure::CacheDedupTableMisses],
    ),
    (
        &[ReportFigure::CacheDeviceHits],
        &[ReportFigure::CacheDeviceMisses],
    ),
];

/// How numbers are shown: exactly, or for people.
struct Shown(bool);

fn find(report: &Report, figure: ReportFigure) -> Option<&ReportValues> {
    let mut figures = report.figures.iter();
    figures.find(|values| values.figure == figure)
}

impl Shown {
    fn number(&self, nice: fn(u64) -> String, value: Option<f64>) -> String {
        match value.map(|value| value.max(0.0).round() as u64) {
            None => "-".to_owned(),
            Some(value) if self.0 => value.to_string(),
            Some(value) => nice(value),
        }
    }

    fn start(report: &Report) -> Vec<String> {
        let label = report.label.as_deref();
        let (kind, _) = words(&report.subject, label);
        vec![kind.to_owned(), name(&report.subject, label)]
    }

    /// The row of what all points come to.
    fn sums(&self, report: &Report) -> Vec<String> {
        use ReportFigure::{ReadBytes, Reads, WriteTimeP99, Writes, WrittenBytes};
        let total = |figure| find(report, figure).and_then(|values| values.total);
        let most = |figure| find(report, figure).and_then(|values| values.most);
        let time = |figure, or| {
            let values = find(report, figure).or_else(|| find(report, or));
            values.and_then(|values| values.value)
        };
        let read_time = time(ReportFigure::ReadTimeP99, ReportFigure::ReadTime);
        let write_time = time(WriteTimeP99, ReportFigure::WriteTime);
        let mut row = Self::start(report);
        row.extend([
            self.number(nice_bytes, total(ReadBytes)),
            self.number(nice_bytes, total(WrittenBytes)),
            self.number(nice_count, total(Reads)),
            self.number(nice_count, total(Writes)),
            self.number(nice_bytes, most(ReadBytes)),
            self.number(nice_bytes, most(WrittenBytes)),
            self.number(nice_time, read_time),
            self.number(nice_time, write_time),
            self.share(HITS, total),
        ]);
        row.extend(BY_KIND.map(|of| self.share(of, total)));
        row
    }

    /// What hits are of hits and misses, in percent.
    fn share(
        &self,
        (hits, misses): Lookups,
        amount: impl Fn(ReportFigure) -> Option<f64>,
    ) -> String {
        let sum = |figures: &[ReportFigure]| -> f64 {
            figures.iter().filter_map(|figure| amount(*figure)).sum()
        };
        let (hits, misses) = (sum(hits), sum(misses));
        let share = (hits + misses > 0.0).then(|| 100.0 * hits / (hits + misses));
        self.number(nice_count, share)
    }

    /// A row for each point.
    fn points(&self, report: &Report) -> Vec<Vec<String>> {
        let value = |at: usize, figure: ReportFigure| {
            find(report, figure).and_then(|values| *values.values.get(at)?)
        };
        let row = |(at, time_s): (usize, &u64)| {
            let value = |figure| value(at, figure);
            let or = |one: ReportFigure, other| value(one).or_else(|| value(other));
            let mut row = Self::start(report);
            row.push(match self.0 {
                true => time_s.to_string(),
                false => local_history(*time_s),
            });
            row.extend([
                self.number(nice_bytes, value(ReportFigure::ReadBytes)),
                self.number(nice_bytes, value(ReportFigure::WrittenBytes)),
                self.number(nice_count, value(ReportFigure::Reads)),
                self.number(nice_count, value(ReportFigure::Writes)),
                self.number(
                    nice_time,
                    or(ReportFigure::ReadTimeP99, ReportFigure::ReadTime),
                ),
                self.number(
                    nice_time,
                    or(ReportFigure::WriteTimeP99, ReportFigure::WriteTime),
                ),
                self.number(nice_bytes, value(ReportFigure::CacheBytes)),
                self.share(HITS, value),
                self.number(nice_bytes, value(ReportFigure::LogBytes)),
                self.number(nice_count, value(ReportFigure::Queue)),
            ]);
            row.extend(BY_KIND.map(|of| self.share(of, value)));
            row
        };
        report.times_s.iter().enumerate().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Guid;

    fn values(figure: ReportFigure, all: &[f64]) -> ReportValues {
        ReportValues {
            figure,
            values: all.iter().copied().map(Some).collect(),
            highest: all.to_vec(),
            value: Some(all.iter().sum::<f64>() / all.len() as f64),
            most: all.iter().copied().reduce(f64::max),
            total: Some(10.0 * all.iter().sum::<f64>()),
        }
    }

    #[test]
    fn rows_tell_what_is_known_and_nothing_else() {
        let report = Report {
            subject: ReportSubject::Device {
                pool: "tank".into(),
                guid: Guid(7),
            },
            label: Some("/dev/sda".into()),
            times_s: vec![100, 110],
            figures: vec![
                values(ReportFigure::ReadBytes, &[1024.0, 2048.0]),
                values(ReportFigure::Queue, &[3.0, 4.0]),
            ],
        };
        let sums = Shown(true).sums(&report);
        let wanted = "device /dev/sda 30720 - - - 2048 - - - - - - - -";
        assert_eq!(sums.join(" "), wanted);
        let points = Shown(true).points(&report);
        let wanted = "device /dev/sda 110 2048 - - - - - - - - 4 - - - -";
        assert_eq!((points.len(), points[1].join(" ").as_str()), (2, wanted));
        assert_eq!(Shown(false).points(&report)[0][3], "1K");
        let subject = ReportedSubject {
            subject: report.subject,
            label: report.label,
            seen_s: 0,
        };
        let cache = Report {
            subject: ReportSubject::Cache {
                pool: "tank".into(),
            },
            label: None,
            times_s: vec![100],
            figures: vec![
                values(ReportFigure::CacheDataHits, &[1.0]),
                values(ReportFigure::CacheDataMisses, &[3.0]),
                values(ReportFigure::CacheMetadataHits, &[4.0]),
                values(ReportFigure::CacheMetadataMisses, &[0.0]),
                values(ReportFigure::CacheDeviceHits, &[2.0]),
                values(ReportFigure::CacheDeviceMisses, &[1.0]),
            ],
        };
        let sums = Shown(true).sums(&cache);
        assert_eq!(sums.join(" "), "cache tank - - - - - - - - 63 25 100 - 67");
        let points = Shown(true).points(&cache);
        let wanted = "cache tank 100 - - - - - - - 63 - - 25 100 - 67";
        assert_eq!(points[0].join(" "), wanted);
        for (name, is) in [
            ("tank", true),
            ("/dev/sda", true),
            ("7", true),
            ("a", false),
        ] {
            assert_eq!(is_named(&subject, &[name.to_owned()]), is, "{name}");
        }
    }
}
