//! `millpond cache`: what is in memory and on cache devices, and what it is good for.

use api::{
    CacheDeviceReport, CacheGet, CacheGetReply, CacheKind, CacheLookups, PoolCacheReport,
    SecondLevelReport,
};
use clap::Args;

use crate::client::Client;
use crate::columns::{self, Column};
use crate::numbers::{duration, nice_bytes, nice_count};
use crate::zpool::words;

/// What caches hold, how often they help, and what more memory would gain.
#[derive(Debug, Args)]
pub struct Cache {
    /// Of these pools (default: of all)
    pools: Vec<String>,
    /// Print JSON, with exact numbers
    #[arg(short, long)]
    json: bool,
}

impl Cache {
    /// Prints it.
    pub fn run(self, client: &Client) -> anyhow::Result<()> {
        let call = CacheGet { pools: self.pools };
        let Some(reply) = client.call_if_running(&call)? else {
            crate::server::print_none_runs(client);
            return Ok(());
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&reply)?);
        } else {
            print!("{}", text(&reply));
        }
        Ok(())
    }
}

fn text(reply: &CacheGetReply) -> String {
    let mut out = format!("in memory: up to {}", nice_bytes(reply.limit_bytes));
    if reply.limit_bytes < reply.limit_max_bytes {
        let most = nice_bytes(reply.limit_max_bytes);
        out.push_str(&format!(
            " as memory is short or used beside it, {most} otherwise"
        ));
    }
    out.push_str(" for all pools\n");
    for pool in &reply.pools {
        out.push('\n');
        add_pool(&mut out, pool, reply.limit_bytes);
    }
    out
}

/// Of a hundred; nothing of nothing.
fn percent(part: u64, whole: u64) -> Option<u64> {
    let percent = (u128::from(part) * 100).checked_div(u128::from(whole))?;
    Some(percent.min(100) as u64)
}

fn rate(lookups: Option<CacheLookups>) -> String {
    let lookups = lookups.and_then(|told| percent(told.hits, told.hits + told.misses));
    lookups.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"))
}

fn add_pool(out: &mut String, pool: &PoolCacheReport, limit_bytes: u64) {
    let blocks_bytes: u64 = pool.kinds.iter().map(|kind| kind.size_bytes).sum();
    let bytes = blocks_bytes + pool.charged_bytes;
    out.push_str(&format!("{}: {}", pool.pool, nice_bytes(bytes)));
    if let Some(percent) = percent(bytes, limit_bytes) {
        out.push_str(&format!(", {percent}% of what may be in memory"));
    }
    let (now, hour) = (rate(pool.minute), rate(pool.hour));
    let (day, week) = (rate(pool.day), rate(pool.week));
    out.push_str(&format!(
        "\nhits: {now} in the last minute, {hour} hour, {day} day, {week} week\n"
    ));
    let row = |name: &str, [size, blocks, hits, misses]: [u64; 4]| {
        let hit_rate = rate(Some(CacheLookups { hits, misses }));
        let numbers = [nice_bytes(size), nice_count(blocks), nice_count(hits)];
        let row = [name.to_owned()].into_iter().chain(numbers);
        row.chain([nice_count(misses), hit_rate]).collect()
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut all = [0; 4];
    for kind in &pool.kinds {
        let name = match kind.kind {
            CacheKind::Data => "data",
            CacheKind::Metadata => "metadata",
            CacheKind::DedupTable => "dedup tables",
        };
        let counts = [kind.size_bytes, kind.blocks, kind.hits, kind.misses];
        all = std::array::from_fn(|at| all[at] + counts[at]);
        rows.push(row(name, counts));
    }
    rows.push(row("all blocks", all));
    let none = ["-"; 4].map(str::to_owned);
    let charged = ["other".to_owned(), nice_bytes(pool.charged_bytes)];
    rows.push(charged.into_iter().chain(none).collect());
    let numbers = ["SIZE", "BLOCKS", "HITS", "MISSES", "HITS%"].map(Column::right);
    let columns: Vec<Column> = [Column::left("KIND")].into_iter().chain(numbers).collect();
    out.push_str(&columns::render(&columns, &rows, false));
    out.push_str(&gain(pool));
    if let Some(second) = &pool.second {
        add_second_level(out, second);
    }
}

/// What twice as much memory would have been good for.
fn gain(pool: &PoolCacheReport) -> String {
    let sum = |of: fn(&api::CacheKindReport) -> u64| pool.kinds.iter().map(of).sum::<u64>();
    let (hits, ghosts) = (sum(|kind| kind.hits), sum(|kind| kind.ghost_hits));
    let lookups = hits + sum(|kind| kind.misses);
    let (Some(now), Some(then)) = (percent(hits, lookups), percent(hits + ghosts, lookups)) else {
        return "nothing was looked up yet\n".to_owned();
    };
    match now == then {
        true => format!("twice as much memory would gain nothing: {now}% hits\n"),
        false => format!("with twice as much memory: about {then}% hits instead of {now}%\n"),
    }
}

fn add_second_level(out: &mut String, second: &SecondLevelReport) {
    let (blocks, index) = (nice_count(second.blocks), nice_bytes(second.index_bytes));
    let hits: u64 = second.devices.iter().map(|device| device.hits).sum();
    let misses = second.misses;
    let hit_rate = rate(Some(CacheLookups { hits, misses }));
    out.push_str(&format!(
        "cache devices: {blocks} blocks, {index} of memory for their index, \
         {hit_rate} of what memory had not\n"
    ));
    if second.left_out > 0 {
        let left_out = nice_count(second.left_out);
        out.push_str(&format!(
            "{left_out} blocks were not kept, as there is no memory for them in the index\n"
        ));
    }
    let numbers = [
        "SIZE", "USED", "HITS", "READ", "WRITTEN", "FILL/S", "FULL IN", "DAY", "WEAR", "ERRORS",
    ];
    let names = ["DEVICE", "STATE"].map(Column::left);
    let numbers = numbers.map(Column::right);
    let columns: Vec<Column> = names.into_iter().chain(numbers).collect();
    let rows: Vec<Vec<String>> = second.devices.iter().map(device_row).collect();
    out.push_str(&columns::render(&columns, &rows, false));
}

fn device_row(device: &CacheDeviceReport) -> Vec<String> {
    let or_none = |told: Option<String>| told.unwrap_or_else(|| "-".to_owned());
    let state = match device.is_rebuilding {
        true => "REBUILDING",
        false => words::state(device.state),
    };
    let full_in = match device.is_filled {
        true => Some("full".to_owned()),
        false => device.full_in_s.map(duration),
    };
    let wear = device
        .day_written_bytes
        .filter(|_| device.size_bytes > 0)
        .map(|bytes| format!("{:.2}", bytes as f64 / device.size_bytes as f64));
    let errors = device.read_errors + device.write_errors + device.checksum_errors;
    vec![
        device.name.clone(),
        state.to_owned(),
        nice_bytes(device.size_bytes),
        nice_bytes(device.used_bytes),
        nice_count(device.hits),
        nice_bytes(device.read_bytes),
        nice_bytes(device.written_bytes),
        or_none(device.fill_bytes_per_s.map(nice_bytes)),
        or_none(full_in),
        or_none(device.day_written_bytes.map(nice_bytes)),
        or_none(wear),
        nice_count(errors),
    ]
}

#[cfg(test)]
mod tests {
    use api::{CacheKindReport, Guid, VdevState};

    use super::*;

    fn reply() -> CacheGetReply {
        let kind = |kind, hits, misses, ghost_hits| CacheKindReport {
            kind,
            size_bytes: 1 << 30,
            blocks: 1000,
            hits,
            misses,
            ghost_hits,
        };
        let lookups = |hits, misses| Some(CacheLookups { hits, misses });
        let device = CacheDeviceReport {
            guid: Guid(1),
            name: "/dev/ssd".into(),
            state: VdevState::Online,
            is_rebuilding: false,
            is_filled: false,
            size_bytes: 100 << 30,
            used_bytes: 50 << 30,
            hits: 300,
            read_bytes: 1 << 20,
            written_bytes: 60 << 30,
            read_errors: 1,
            write_errors: 0,
            checksum_errors: 2,
            fill_bytes_per_s: Some(100 << 20),
            full_in_s: Some(512),
            day_written_bytes: Some(25 << 30),
        };
        CacheGetReply {
            limit_bytes: 8 << 30,
            limit_max_bytes: 16 << 30,
            pools: vec![PoolCacheReport {
                pool: "tank".into(),
                charged_bytes: 1 << 30,
                kinds: vec![
                    kind(CacheKind::Data, 500, 400, 100),
                    kind(CacheKind::Metadata, 100, 0, 0),
                    kind(CacheKind::DedupTable, 0, 0, 0),
                ],
                minute: lookups(9, 1),
                hour: lookups(1, 1),
                day: lookups(0, 0),
                week: None,
                second: Some(SecondLevelReport {
                    blocks: 2000,
                    index_bytes: 48_000,
                    left_out: 7,
                    misses: 100,
                    devices: vec![device],
                }),
            }],
        }
    }

    #[test]
    fn it_is_told_in_words() {
        let told = text(&reply());
        let expected = "\
in memory: up to 8G as memory is short or used beside it, 16G otherwise for all pools

tank: 4G, 50% of what may be in memory
hits: 90% in the last minute, 50% hour, - day, - week
KIND           SIZE  BLOCKS   HITS  MISSES  HITS%
data             1G   1000    500     400    55%
metadata         1G   1000    100       0   100%
dedup tables     1G   1000      0       0      -
all blocks       3G  2.93K    600     400    60%
other            1G      -      -       -      -
with twice as much memory: about 70% hits instead of 60%
cache devices: 1.95K blocks, 46.9K of memory for their index, 75% of what memory had not
7 blocks were not kept, as there is no memory for them in the index
";
        let devices = ["/dev/ssd", "ONLINE", "50G", "100M", "00:08:32", "0.25", "3"];
        let squeezed = |text: &str| {
            let lines = text.lines().map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.join(" ")
            });
            lines.collect::<Vec<_>>()
        };
        let (told_lines, expected) = (squeezed(&told), squeezed(expected));
        assert_eq!(told_lines[..expected.len()], expected, "{told}");
        let last = told_lines.last().expect("a device");
        for word in devices {
            let mut words = last.split(' ');
            assert!(words.any(|told| told == word), "{word}: {last}");
        }
    }

    #[test]
    fn nothing_is_gained_where_nothing_comes_back() {
        let mut reply = reply();
        reply.pools[0].kinds[0].ghost_hits = 0;
        let told = gain(&reply.pools[0]);
        assert_eq!(told, "twice as much memory would gain nothing: 60% hits\n");
        reply.pools[0].kinds.clear();
        assert_eq!(gain(&reply.pools[0]), "nothing was looked up yet\n");
    }
}
