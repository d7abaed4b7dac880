use api::{CacheKindReport, ClassIo, IoClass, Latencies};

use super::*;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    iostat: Iostat,
}

fn iostat(words: &[&str]) -> Iostat {
    use clap::Parser;
    Line::parse_from(std::iter::once("iostat").chain(words.iter().copied())).iostat
}

fn pool(factor: u64) -> PoolReport {
    let leaf = |name: &str, guid| VdevReport {
        name: format!("/dev/{name}"),
        path: Some(format!("/dev/{name}")),
        kind: VdevKind::Disk,
        guid: Guid(guid),
        reads: Operations {
            count: 10 * factor,
            bytes: 10_240 * factor,
        },
        writes: Operations {
            count: 20 * factor,
            bytes: 2_097_152 * factor,
        },
        ..VdevReport::default()
    };
    let log = VdevReport {
        class: VdevClass::Log,
        size_bytes: 1 << 30,
        ..leaf("sdc", 5)
    };
    PoolReport {
        name: "tank".into(),
        guid: Guid(1),
        health: Default::default(),
        txg: 1,
        uptime_ns: 10_000_000_000 * factor,
        properties: Default::default(),
        cache: cache(factor),
        tree: VdevReport {
            name: "tank".into(),
            kind: VdevKind::Root,
            guid: Guid(1),
            size_bytes: 2 << 30,
            allocated_bytes: 1 << 20,
            reads: Operations {
                count: 20 * factor,
                bytes: 20_480 * factor,
            },
            writes: Operations {
                count: 40 * factor,
                bytes: 4_194_304 * factor,
            },
            children: vec![leaf("sda", 3), leaf("sdb", 4), log],
            ..VdevReport::default()
        },
    }
}

fn cache(factor: u64) -> CacheCounts {
    let kind = |kind, hits, misses| CacheKindReport {
        kind,
        size_bytes: 0,
        blocks: 0,
        hits: hits * factor,
        misses: misses * factor,
        ghost_hits: 0,
    };
    CacheCounts {
        kinds: vec![
            kind(CacheKind::Data, 30_000, 100),
            kind(CacheKind::Metadata, 500, 0),
            kind(CacheKind::DedupTable, 10, 20),
        ],
        device_hits: 90 * factor,
        device_misses: 40 * factor,
        index_bytes: 0,
    }
}

/// One request in each of some buckets, `factor` times; sizes of 4K, put together of 64K.
fn io(factor: u64) -> Box<IoReport> {
    let buckets = |count: usize, places: &[usize]| {
        let mut out = vec![0; count];
        places.iter().for_each(|place| out[*place] = factor);
        out
    };
    let time = |place: usize| buckets(37, &[place]);
    Box::new(IoReport {
        classes: IoClass::ALL
            .into_iter()
            .zip([factor, 0, 0, 7, 0, 0, 0])
            .zip([0, 2048, 0, 10, 0, 0, 0])
            .map(|((class, pending), active)| ClassIo {
                class,
                pending,
                active,
                individual: buckets(25, &[12]),
                aggregated: buckets(25, &[16]),
                queued: buckets(
                    37,
                    if class <= IoClass::AsyncWrite {
                        &[10]
                    } else {
                        &[]
                    },
                ),
            })
            .collect(),
        reads: Latencies {
            total: time(20),
            disk: time(19),
        },
        writes: Latencies {
            total: buckets(37, &[20, 22]),
            disk: time(21),
        },
    })
}

fn pool_with_io(factor: u64) -> PoolReport {
    let mut pool = pool(factor);
    pool.tree.io = Some(io(factor));
    for child in &mut pool.tree.children {
        child.io = Some(io(factor));
    }
    pool
}

/// Goal: the table is OpenZFS's. Method: one compared with what OpenZFS 2.3 prints for such
/// numbers.
#[test]
fn reports_look_like_those_of_openzfs() {
    let none = BTreeMap::new();
    assert_eq!(
        iostat(&[]).report(&[pool(1)], &[], &none, &Told::default(), true),
        "              capacity     operations     bandwidth \n\
             pool        alloc   free   read  write   read  write\n\
             ----------  -----  -----  -----  -----  -----  -----\n\
             tank           1M  2.00G      2      4     2K   410K\n"
    );
    let before = BTreeMap::from([(Guid(1), Before::of(&pool(1)))]);
    assert_eq!(
        iostat(&["-H", "-p"]).report(&[pool(3)], &[], &before, &Told::default(), false),
        "tank\t1048576\t2146435072\t2\t4\t2048\t419430\n"
    );
    let verbose = iostat(&["-v"]).report(&[pool(1)], &[], &none, &Told::default(), true);
    for line in [
        "  sda           -      -      1      2     1K   205K\n",
        "logs            -      -      -      -      -      -\n",
        "  sdc           0     1G      1      2     1K   205K\n",
    ] {
        assert!(verbose.contains(line), "{line}{verbose}");
    }
}

/// Goal: the same with latencies and queues. Method: headings as OpenZFS 2.3 printed them, and
/// numbers by hand.
#[test]
fn latencies_and_queues_look_like_those_of_openzfs() {
    let none = BTreeMap::new();
    let text = iostat(&["-lq"]).report(&[pool_with_io(1)], &[], &none, &Told::default(), true);
    let expected = concat!(
        "              capacity     operations     bandwidth    total_wait     disk_wait    \
             syncq_wait    asyncq_wait  scrub   trim  rebuild   syncq_read    syncq_write   \
             asyncq_read  asyncq_write   scrubq_read   trimq_write  rebuildq_write\n",
        "pool        alloc   free   read  write   read  write   read  write   read  write   \
             read  write   read  write   wait   wait   wait   pend  activ   pend  activ   pend  \
             activ   pend  activ   pend  activ   pend  activ   pend  activ\n",
        "----------  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  \
             -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  \
             -----  -----  -----  -----  -----  -----  -----  -----  -----\n",
        "tank           1M  2.00G      2      4     2K   410K    1ms    3ms  786us    3ms    \
             1us    1us    1us    1us      -      -      -      1      0      0     2K      0      \
             0      7     10      0      0      0      0      0      0\n",
    );
    assert_eq!(text, expected);
    let exact = iostat(&["-lp"]).report(&[pool_with_io(1)], &[], &none, &Told::default(), true);
    assert!(
        exact.starts_with(
            "                        capacity                         \
             operations                         bandwidth                   \
             total_wait               disk_wait              syncq_wait              \
             asyncq_wait            scrub        trim     rebuild\n"
        ),
        "{exact}"
    );
    assert!(
        exact.ends_with(
            "     1572864     3932160      786432     3145728        1536        1536        \
                 1536        1536           -           -           -\n"
        ),
        "{exact}"
    );
    // Latencies are those of the interval, depths those of the moment.
    let before = BTreeMap::from([(Guid(1), Before::of(&pool_with_io(3)))]);
    let mut still = pool_with_io(3);
    still.uptime_ns += 1_000_000_000;
    let text = iostat(&["-lqH"]).report(&[still], &[], &before, &Told::default(), false);
    assert_eq!(
        text,
        "tank\t1M\t2.00G\t0\t0\t0\t0\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\t3\t0\t0\t2K\t0\t0\t\
             7\t10\t0\t0\t0\t0\t0\t0\n"
    );
}

/// Goal: hits of the cache come after OpenZFS's columns, of pools alone, and only where they were
/// asked for. Method: numbers by hand.
#[test]
fn hits_are_told_by_kind() {
    let none = BTreeMap::new();
    let text = iostat(&["-v", "--cache"]).report(&[pool(1)], &[], &none, &Told::default(), true);
    let expected = concat!(
        "              capacity     operations     bandwidth       data        metadata     \
         dedup_table     l2cache  \n",
        "pool        alloc   free   read  write   read  write    hit   miss    hit   miss    hit   \
         miss    hit   miss\n",
        "----------  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  \
         -----  -----  -----\n",
        "tank           1M  2.00G      2      4     2K   410K  2.93K     10     50      0      \
         1      2      9      4\n",
        "  sda           -      -      1      2     1K   205K      -      -      -      -      \
         -      -      -      -\n",
    );
    assert!(text.starts_with(expected), "{text}");
    // Of an interval, after all that OpenZFS has.
    let before = BTreeMap::from([(Guid(1), Before::of(&pool(1)))]);
    let asked =
        iostat(&["-H", "-p", "--cache"]).report(&[pool(3)], &[], &before, &Told::default(), false);
    let plain = iostat(&["-H", "-p"]).report(&[pool(3)], &[], &before, &Told::default(), false);
    let added = asked
        .strip_prefix(plain.trim_end())
        .expect("the same columns");
    assert_eq!(added, "\t3000\t10\t50\t0\t1\t2\t9\t4\n");
    // A device that left takes its hits with it: that is no rate below zero.
    let mut less = pool(3);
    less.cache.device_hits = 0;
    let asked =
        iostat(&["-H", "-p", "--cache"]).report(&[less], &[], &before, &Told::default(), false);
    assert!(asked.ends_with("\t0\t4\n"), "{asked}");
}

/// Goal: the same of histograms.
#[test]
fn histograms_look_like_those_of_openzfs() {
    let none = BTreeMap::new();
    let sizes = iostat(&["-r"]).report(&[pool_with_io(1)], &[], &none, &Told::default(), true);
    let head = concat!(
        "\n",
        "tank          sync_read    sync_write    async_read    async_write      scrub         \
             trim         rebuild  \n",
        "req_size      ind    agg    ind    agg    ind    agg    ind    agg    ind    agg    \
             ind    agg    ind    agg\n",
        "----------  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  \
             -----  -----  -----  -----\n",
        "512             0      0      0      0      0      0      0      0      0      0      \
             0      0      0      0\n",
    );
    assert!(sizes.starts_with(head), "{sizes}");
    assert!(
        sizes.contains("\n4K              1      0      1      0"),
        "{sizes}"
    );
    assert!(
        sizes.contains("\n64K             0      1      0      1"),
        "{sizes}"
    );
    let end = format!("\n{}\n", "-".repeat(108));
    assert!(sizes.ends_with(&end), "{sizes}");
    // 512 to 16M, three lines of heading, and lines above and below.
    assert_eq!(sizes.lines().count(), 16 + 5);

    let times = iostat(&["-w"]).report(&[pool_with_io(1)], &[], &none, &Told::default(), true);
    let head = concat!(
        "\n",
        "tank         total_wait     disk_wait    syncq_wait    asyncq_wait\n",
        "latency      read  write   read  write   read  write   read  write  scrub   trim  \
             rebuild\n",
        "----------  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  \
             -----\n",
        "1ns             0      0      0      0      0      0      0      0      0      0      \
             0\n",
    );
    assert!(times.starts_with(head), "{times}");
    for line in [
        "2us             0      0      0      0      1      1      1      1      0      0      \
             0\n",
        "1ms             0      0      1      0      0      0      0      0      0      0      \
             0\n",
        "2ms             1      1      0      0      0      0      0      0      0      0      \
             0\n",
        "8ms             0      1      0      0      0      0      0      0      0      0      \
             0\n",
        "137s            0      0      0      0      0      0      0      0      0      0      \
             0\n\
             -------------------------------------------\
             --------------------------------------------\n",
    ] {
        assert!(times.contains(line), "{line}{times}");
    }
    // In an interval: so many a second.
    let before = BTreeMap::from([(Guid(1), Before::of(&pool_with_io(1)))]);
    let times = iostat(&["-wH"]).report(&[pool_with_io(31)], &[], &before, &Told::default(), false);
    assert!(times.starts_with("\ntank\n1\t0\t"), "{times}");
    assert!(times.contains("\n2097151\t0\t0\t0\t0"), "{times}");
    let mut busy = pool_with_io(6001);
    busy.uptime_ns = pool(31).uptime_ns;
    let times = iostat(&["-wH"]).report(&[busy], &[], &before, &Told::default(), false);
    assert!(times.contains("\n2097151\t20\t20\t0\t0"), "{times}");
    // Every vdev has its own; exact numbers make columns wide.
    let verbose = iostat(&["-rvp"]).report(
        &[pool_with_io(1_000_000)],
        &[],
        &none,
        &Told::default(),
        true,
    );
    assert_eq!(verbose.matches("req_size  ").count(), 4);
    assert!(verbose.contains("  -------  -------"), "{verbose}");
    assert!(verbose.contains("\n\n\nsdc  "), "{verbose}");
}

/// Goal: words are pools, or vdevs, or a pool and its vdevs; nothing else.
#[test]
fn words_are_pools_or_vdevs() {
    let mut other = pool(1);
    (other.name, other.guid) = ("other".into(), Guid(2));
    other.tree.children.truncate(1);
    other.tree.children[0] = VdevReport {
        name: "/dev/vda".into(),
        path: Some("/dev/vda".into()),
        kind: VdevKind::Disk,
        guid: Guid(77),
        ..VdevReport::default()
    };
    let pools = [pool(1), other];
    let choose = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        iostat(&[]).choose(&words, &pools)
    };
    let choice = |pools: &[u64], vdevs: &[&str]| Choice {
        pools: pools.iter().copied().map(Guid).collect(),
        vdevs: vdevs.iter().map(|vdev| (*vdev).to_owned()).collect(),
    };
    for (words, expected) in [
        (&[] as &[&str], choice(&[], &[])),
        (&["other", "tank"], choice(&[2, 1], &[])),
        (
            &["sda", "/dev/vda", "5"],
            choice(&[], &["sda", "/dev/vda", "5"]),
        ),
        (&["tank", "sda", "sdc"], choice(&[1], &["sda", "sdc"])),
    ] {
        assert_eq!(choose(words).expect("known"), expected, "{words:?}");
    }
    let error = choose(&["tank", "vda", "tank", "x"]).expect_err("not in tank");
    assert_eq!(
        error.to_string(),
        "Expected either a list of pools, or list of vdevs in \"tank\", but got:\n\tvda (vdev \
             in another pool)\n\ttank (pool)\n\tx (unknown)"
    );
    let error = choose(&["nosuch"]).expect_err("unknown").to_string();
    assert!(
        error.starts_with("Unable to parse pools/vdevs list"),
        "{error}"
    );

    let only = ["sda".to_owned(), "sdc".to_owned()];
    assert_eq!(
        iostat(&[]).report(&[pool(1)], &only, &BTreeMap::new(), &Told::default(), true),
        "              capacity     operations     bandwidth \n\
             vdev        alloc   free   read  write   read  write\n\
             ----------  -----  -----  -----  -----  -----  -----\n\
             sda             -      -      1      2     1K   205K\n\
             sdc             0     1G      1      2     1K   205K\n\
             ----------  -----  -----  -----  -----  -----  -----\n"
    );
}

#[test]
fn json_has_the_columns_of_the_table() {
    let none = BTreeMap::new();
    let mut asked = iostat(&["-vj", "--json-int"]);
    asked.parseable = true;
    let document = asked.json(&[pool(1)], &[], &none, &Told::default(), None);
    let tank = &document["pools"]["tank"];
    assert_eq!(tank["name"], "tank");
    for (label, below) in [
        ("capacity", ["alloc", "free"]),
        ("operations", ["read", "write"]),
        ("bandwidth", ["read", "write"]),
    ] {
        for name in below {
            assert!(tank[label][name].is_u64(), "{label} {name}: {tank}");
        }
    }
    assert!(tank["vdevs"].is_object(), "{tank}");
    let few = iostat(&["-j"]).json(&[pool(1)], &[], &none, &Told::default(), Some("7".into()));
    assert!(few["pools"]["tank"]["vdevs"].is_null());
    assert_eq!(few["time"], "7");
}
