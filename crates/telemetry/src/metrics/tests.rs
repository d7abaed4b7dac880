use std::collections::BTreeSet;
use std::path::Path;

use api::{ClassIo, IoClass, Latencies, ShareClient, ShareInfo, ShareReport, ShareTraffic};

use super::text::read::{Sample, samples};
use super::text::{Family, Kind};
use super::*;

fn read_file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// The name that samples of a family have.
fn told_as(family: &Family) -> String {
    format!("{}{}", family.name, family.kind.suffix())
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Names of metrics in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c| !is_of_name(c));
    let ours = words.filter(|word| word.starts_with("millpond_") || word.starts_with("process_"));
    ours.map(str::to_owned).collect()
}

fn sample_of<'a>(all: &'a [Sample], name: &str, labels: &[(&str, &str)]) -> Option<&'a Sample> {
    all.iter().find(|sample| {
        let has = |(label, value): &(&str, &str)| {
            sample.labels.get(*label).map(String::as_str) == Some(*value)
        };
        sample.name == name && labels.iter().all(has)
    })
}

/// The value of a sample.
fn value(all: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    sample_of(all, name, labels)
        .unwrap_or_else(|| panic!("no {name} {labels:?}"))
        .value
}

#[test]
fn families_are_named_as_the_format_wants() {
    let mut names = BTreeSet::new();
    for family in families::ALL {
        let name = family.name;
        assert!(names.insert(name), "{name} is there twice");
        assert!(
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{name}"
        );
        assert!(family.help.ends_with('.'), "{name}");
        match family.unit {
            "" => {
                let units = ["_bytes", "_seconds", "_ratio"];
                assert!(!units.iter().any(|unit| name.ends_with(unit)), "{name}");
            }
            unit => assert!(name.ends_with(&format!("_{unit}")), "{name}"),
        }
        for reserved in ["_total", "_info", "_bucket", "_count", "_sum", "_created"] {
            assert!(!name.ends_with(reserved), "{name}");
        }
        assert!(
            family.kind != Kind::Info || family.unit.is_empty(),
            "{name}"
        );
    }
}

/// Goal: the document has each metric, with what it is, and no other.
#[test]
fn all_metrics_are_documented() {
    let document = read_file("docs/metrics.md");
    let known: BTreeSet<String> = families::ALL.iter().map(told_as).collect();
    for family in families::ALL {
        let row = format!("| `{}` | ", told_as(family));
        let line = document.lines().find(|line| line.starts_with(&row));
        let line = line.unwrap_or_else(|| panic!("no row of {}", told_as(family)));
        assert!(line.ends_with(&format!("| {} |", family.help)), "{line}");
    }
    let others: Vec<String> = names_in(&document).difference(&known).cloned().collect();
    assert!(others.is_empty(), "not metrics: {others:?}");
}

/// Goal: the dashboard shows what there is. Method: each metric in it is one of ours, each label
/// that it asks for is one that the document gives that metric, and panels do not overlap.
#[test]
fn the_dashboard_shows_what_there_is() {
    let text = read_file("contrib/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let document = read_file("docs/metrics.md");
    let known: BTreeSet<String> = families::ALL.iter().map(told_as).collect();
    // Grafana 10.
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 38);
    let mut seen = BTreeSet::new();
    let mut ids = BTreeSet::new();
    let mut places = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let place = |of: &str| panel["gridPos"][of].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            assert!(x < 24, "{title} is too wide");
            for y in place("y")..place("y") + place("h") {
                assert!(places.insert((x, y)), "{title} is over another one");
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let named = names_in(query);
            assert!(!named.is_empty(), "{title}: {query}");
            for name in named {
                assert!(known.contains(&name), "{title}: no {name}");
                seen.insert(name);
            }
            let mut rest = query;
            while let Some(at) = rest.find('{') {
                let name = rest[..at].rsplit(|c| !is_of_name(c)).next().unwrap();
                let end = rest[at..].find('}').unwrap() + at;
                let row = document
                    .lines()
                    .find(|line| line.starts_with(&format!("| `{name}` ")));
                let labels = row.unwrap().split('|').nth(2).unwrap();
                let labels: Vec<&str> = labels.split(',').map(str::trim).collect();
                for asked in rest[at + 1..end].split(',') {
                    let label = asked.split(|c| !is_of_name(c)).next().unwrap();
                    let is_there = ["job", "instance"].contains(&label) || labels.contains(&label);
                    assert!(is_there, "{title}: {name} has no label {label}");
                }
                rest = &rest[end..];
            }
        }
    }
    assert!(seen.len() > 20, "{seen:?}");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        for name in names_in(&variable["definition"].to_string()) {
            assert!(known.contains(&name), "no {name}");
        }
    }
}

fn device(path: &str, guid: u64, state: api::VdevState) -> VdevReport {
    VdevReport {
        name: path.into(),
        path: Some(path.into()),
        guid: api::Guid(guid),
        state,
        checksum_errors: 3,
        reads: api::Operations {
            count: 5,
            bytes: 4096,
        },
        ..VdevReport::default()
    }
}

/// Goal: a pool with a mirror, of which a device is replaced by one at the same path, and a spare.
#[test]
fn pools_vdevs_and_devices_are_told_apart() {
    let mut histogram = vec![0; 37];
    (histogram[3], histogram[14], histogram[36]) = (1, 2, 4);
    let mut old = device("/d/a", 11, api::VdevState::Unavailable);
    old.io = Some(Box::new(IoReport {
        classes: vec![ClassIo {
            class: IoClass::SyncRead,
            pending: 6,
            active: 2,
            individual: Vec::new(),
            aggregated: Vec::new(),
            queued: Vec::new(),
        }],
        reads: Latencies {
            total: Vec::new(),
            disk: histogram,
        },
        writes: Latencies::default(),
    }));
    let replacing = VdevReport {
        name: "replacing-0".into(),
        children: vec![old, device("/d/a", 12, api::VdevState::Online)],
        ..VdevReport::default()
    };
    let mirror = VdevReport {
        name: "mirror-0".into(),
        state: api::VdevState::Degraded,
        children: vec![replacing, device("/d/b", 13, api::VdevState::Online)],
        size_bytes: 100,
        allocated_bytes: 25,
        ..VdevReport::default()
    };
    let mut spare = device("/d/s", 14, api::VdevState::Available);
    spare.class = VdevClass::Spare;
    let report = PoolStatusReport {
        name: "tank".into(),
        health: PoolHealth::Degraded,
        error_count: 9,
        tree: VdevReport {
            size_bytes: 100,
            allocated_bytes: 25,
            fragmentation_percent: Some(7),
            children: vec![mirror, spare],
            ..VdevReport::default()
        },
        ..PoolStatusReport::default()
    };
    let mut out = Exposition::default();
    add_pool(&mut out, &report, 77);
    let all = samples(&out.text(families::ALL)).unwrap();
    let tank = ("pool", "tank");
    for (name, labels, wanted) in [
        (
            "millpond_pool_health",
            vec![tank, ("state", "degraded")],
            1.0,
        ),
        ("millpond_pool_health", vec![tank, ("state", "online")], 0.0),
        ("millpond_pool_free_bytes", vec![tank], 75.0),
        ("millpond_pool_capacity_ratio", vec![tank], 0.25),
        ("millpond_pool_fragmentation_ratio", vec![tank], 0.07),
        ("millpond_pool_freeing_bytes", vec![tank], 77.0),
        ("millpond_pool_data_errors", vec![tank], 9.0),
        (
            "millpond_vdev_state",
            vec![("vdev", "mirror-0"), ("state", "degraded")],
            1.0,
        ),
        (
            "millpond_device_state",
            vec![("guid", "11"), ("state", "unavailable")],
            1.0,
        ),
        (
            "millpond_device_state",
            vec![("guid", "12"), ("state", "online")],
            1.0,
        ),
        (
            "millpond_device_state",
            vec![("guid", "14"), ("state", "available")],
            1.0,
        ),
        (
            "millpond_device_bytes_total",
            vec![("device", "/d/b"), ("vdev", "mirror-0"), ("op", "read")],
            4096.0,
        ),
        (
            "millpond_device_errors_total",
            vec![("guid", "12"), ("type", "checksum")],
            3.0,
        ),
        (
            "millpond_device_pending_operations",
            vec![("guid", "11"), ("class", "sync-read")],
            6.0,
        ),
        (
            "millpond_device_latency_seconds_bucket",
            vec![("op", "read"), ("le", "0.000016384")],
            1.0,
        ),
        (
            "millpond_device_latency_seconds_bucket",
            vec![("op", "read"), ("le", "0.000065536")],
            3.0,
        ),
        (
            "millpond_device_latency_seconds_bucket",
            vec![("op", "read"), ("le", "+Inf")],
            7.0,
        ),
    ] {
        assert_eq!(value(&all, name, &labels), wanted, "{name} {labels:?}");
    }
    // A spare that stands by holds nothing.
    assert_eq!(
        sample_of(&all, "millpond_vdev_size_bytes", &[("vdev", "/d/s")]),
        None
    );
}

#[test]
fn clients_of_shares_are_counted_and_not_named() {
    let client = |name: &str, is_connected| ShareClient {
        name: Some(name.into()),
        address: "192.0.2.1:1000".into(),
        is_connected,
        idle_seconds: None,
        traffic: None,
    };
    let share = |protocol, traffic| ShareReport {
        share: ShareInfo {
            protocol,
            dataset: "tank/a".into(),
            name: "a \"share\"".into(),
            address: "0.0.0.0:1".into(),
            other_addresses: Vec::new(),
            user: Some("who".into()),
            secret: None,
            mutual: None,
            only: Vec::new(),
            is_open: false,
        },
        traffic,
        clients: vec![client("iqn.secret", true), client("b", false)],
    };
    let traffic = ShareTraffic {
        reads: 4,
        read_bytes: 1000,
        read_ns: 500_000_000,
        failures: 2,
        ..ShareTraffic::default()
    };
    let mut out = Exposition::default();
    add_shares(
        &mut out,
        &ShareListReply {
            shares: vec![
                share(Protocol::Iscsi, Some(traffic)),
                share(Protocol::Smb, None),
            ],
            not_shared: Vec::new(),
        },
    );
    let text = out.text(families::ALL);
    let all = samples(&text).unwrap();
    let iscsi = ("protocol", "iscsi");
    let of = |name: &str, op| value(&all, name, &[iscsi, ("share", "a \"share\""), ("op", op)]);
    assert_eq!(value(&all, "millpond_share_clients", &[iscsi]), 1.0);
    assert_eq!(of("millpond_share_bytes_total", "read"), 1000.0);
    assert_eq!(of("millpond_share_operation_seconds_total", "read"), 0.5);
    assert_eq!(of("millpond_share_operations_total", "failed"), 2.0);
    let smb = [("protocol", "smb")];
    assert_eq!(value(&all, "millpond_share_clients", &smb), 1.0);
    assert_eq!(sample_of(&all, "millpond_share_bytes_total", &smb), None);
    for secret in ["iqn.secret", "192.0.2.1", "who"] {
        assert!(!text.contains(secret), "{text}");
    }
}
