//! Goal: what a cache device was filled with here, OpenZFS finds again, and the other way round,
//! also of compressed and encrypted datasets; nothing on it is plaintext of the latter. Method: the
//! command lines, the real OpenZFS's counters, the bytes of the device.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Peer, Server, can_mount, run, zdb_is_clean};

/// What the files of the encrypted dataset are made of.
const SECRET: &str = "nobody reads this line from a cache device. ";
const FILE_BYTES: u64 = 24 << 20;

/// The report about the pool's cache device.
fn cache_of(server: &Server) -> Value {
    let told = server.ask("/v1/zpool/status", &json!({"names": ["tank"]}));
    let children = told["pools"][0]["tree"]["children"].as_array();
    let mut caches = children.into_iter().flatten();
    let cache = caches.find(|vdev| vdev["class"] == "cache");
    cache
        .unwrap_or_else(|| panic!("no cache device: {told}"))
        .clone()
}

fn hits(server: &Server) -> u64 {
    cache_of(server)["reads"]["count"]
        .as_u64()
        .expect("a number")
}

fn held_bytes(server: &Server) -> u64 {
    let cache = cache_of(server);
    cache["allocated_bytes"].as_u64().expect("a number")
}

/// Makes a file of pseudo-random words, half of which compresses, or of a text.
fn write(path: &Path, seed: u64, text: Option<&str>) {
    let mut out = Vec::with_capacity(FILE_BYTES as usize);
    let mut state = seed | 1;
    while (out.len() as u64) < FILE_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match text {
            // Incompressible words between, so that each block is stored in many sectors.
            Some(text) => {
                out.extend(text.as_bytes());
                (0..8).for_each(|n| out.extend(state.rotate_left(n * 7).to_le_bytes()));
            }
            None => {
                out.extend(state.to_le_bytes());
                out.extend([0; 8]);
            }
        }
    }
    out.truncate(FILE_BYTES as usize);
    std::fs::write(path, out).expect("written");
}

fn sum(path: &Path) -> String {
    let said = run("sha256sum", &[path.to_str().expect("UTF-8")]);
    said.split_whitespace().next().expect("a sum").to_owned()
}

/// Imports the pool, with nothing in memory.
fn import(server: &mut Server, disks: &[String]) {
    let search = server.attach_to_import(disks);
    server.ok(&format!("zpool import {search} -l tank"));
}

/// What `millpond cache` says of a pool that was read from its cache device.
fn look_at_caches(server: &Server) {
    let told = server.ok("cache tank --json");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("a number: {told}"));
    assert!(number(&told["limit_bytes"]) <= number(&told["limit_max_bytes"]));
    let pool = &told["pools"][0];
    assert_eq!(pool["pool"], "tank");
    let kinds = pool["kinds"].as_array().expect("kinds");
    let data = kinds.iter().find(|kind| kind["kind"] == "data");
    let data = data.expect("data");
    assert!(number(&data["misses"]) > 300 && number(&data["size_bytes"]) > 40 << 20);
    let second = &pool["second"];
    let blocks = number(&second["blocks"]);
    let index_bytes = number(&second["index_bytes"]);
    assert!(blocks >= 300, "{told}");
    // Each of its 64 parts has room for 64 blocks at least.
    let index_bytes_max = (blocks * 32).max(64 * 64 * 16);
    assert!(
        (blocks * 16..=index_bytes_max).contains(&index_bytes),
        "{told}"
    );
    assert!(number(&pool["charged_bytes"]) > index_bytes, "{told}");
    assert_eq!(second["left_out"], 0);
    let device = &second["devices"][0];
    assert_eq!(device["state"], "online");
    assert!(number(&device["hits"]) >= 300, "{told}");
    assert_eq!(device["used_bytes"], cache_of(server)["allocated_bytes"]);
    // The same for people, who name no pool, or one that is not here.
    let text = server.ok("cache");
    for part in ["tank: ", "all blocks", "cache devices: ", "twice as much"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        text.contains("ONLINE") || text.contains("REBUILDING"),
        "{text}"
    );
    assert!(server.fails("cache nobody").contains("no such pool"));
    look_at_commands(server, index_bytes);
    look_at_reports(server);
}

/// `zpool list` tells how much memory the index takes, to people and to who asks for it;
/// `zpool iostat` tells what caches answered. Without that, both say what OpenZFS says.
fn look_at_commands(server: &Server, index_bytes: u64) {
    let listed = server.ok("zpool list -v tank");
    let mut lines = listed.lines();
    let line = lines.find(|line| line.starts_with("cache"));
    let line = line.unwrap_or_else(|| panic!("a heading: {listed}"));
    assert!(line.ends_with("K of memory for their index"), "{listed}");
    let column = server.ok("zpool list -v -o name,cacheindex tank");
    assert!(!column.contains("of memory"), "{column}");
    let exact = server.ok("zpool list -Hp -o cacheindex,name tank");
    assert_eq!(exact, format!("{index_bytes}\ttank\n"));
    let json = server.ok("zpool list -j --json-int -o name,cacheindex tank");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let told = &json["pools"]["tank"]["properties"]["cacheindex"]["value"];
    assert_eq!(told.as_u64(), Some(index_bytes), "{json}");
    // Programs see none of it that do not ask.
    let scripted = server.ok("zpool list -vHp tank");
    assert!(!scripted.contains("memory"), "{scripted}");
    let rows = scripted.lines();
    let columns: Vec<usize> = rows.map(|row| row.split('\t').count()).collect();
    assert_eq!(columns, [11, 11, 1, 11], "{scripted}");
    assert!(!server.ok("zpool get all tank").contains("cacheindex"));
    let plain = server.ok("zpool iostat -vHp tank");
    let columns = |text: &str| -> Vec<usize> {
        let rows = text.lines();
        rows.map(|row| row.split('\t').count()).collect()
    };
    assert_eq!(columns(&plain), [7; 3], "{plain}");
    let hits = server.ok("zpool iostat -vHp --cache tank");
    assert_eq!(columns(&hits), [15; 3], "{hits}");
    let devices = hits.lines().skip(1);
    assert!(
        devices
            .clone()
            .all(|row| row.ends_with("\t-\t-\t-\t-\t-\t-\t-\t-")),
        "{hits}"
    );
    let refused = server.fails("zpool iostat -r --cache tank");
    assert!(refused.contains("--cache"), "{refused}");
}

/// Reports have the same over time, by kind, and how it got warm.
fn look_at_reports(server: &Server) {
    let of_cache = |figure: &str, what: &str| -> Option<f64> {
        // Until a pool was looked at for the first time there is no report of it.
        let told = server.command(&["reports", "tank", "--json"]);
        let told: Value = serde_json::from_slice(&told.stdout).ok()?;
        let reports = told["reports"].as_array()?.iter();
        let mut caches = reports.filter(|report| report["subject"]["of"] == "cache");
        let mut figures = caches.next()?["figures"].as_array()?.iter();
        let found = figures.find(|one| one["figure"] == figure)?;
        found[what].as_f64()
    };
    server.wait_until("the hits of the cache device are in the report", || {
        of_cache("cache-device-hits", "total").is_some_and(|hits| hits >= 300.0)
    });
    assert!(of_cache("cache-metadata-hits", "total").is_some_and(|hits| hits > 0.0));
    let memory = of_cache("cache-hit-rate", "value").expect("a rate");
    let both = of_cache("cache-answer-rate", "value").expect("a rate");
    assert!(
        0.0 < memory && memory < both && both <= 1.0,
        "{memory} {both}"
    );
    let held = of_cache("cache-device-bytes", "most").expect("bytes");
    assert!(held > f64::from(30 << 20), "{held}");
    assert!(of_cache("cache-index-bytes", "most").is_some_and(|bytes| bytes > 0.0));
    let listed = server.ok("reports tank -H");
    assert!(listed.contains("cache\ttank\t-\t"), "{listed}");
}

#[test]
fn cache_devices_go_to_openzfs_and_back_warm() {
    if !can_mount() {
        return;
    }
    let mut server = Server::start();
    let mut disks = server.disks(1, 512 << 20);
    let ssd = server.path("disks").join("ssd");
    let file = std::fs::File::create(&ssd).expect("an image");
    file.set_len(1200 << 20).expect("its size");
    disks.push(ssd.to_str().expect("UTF-8").to_owned());
    let d = server.attach(&disks);
    let key = server.path("key");
    std::fs::write(&key, "correct horse battery staple").expect("a key");
    let mountpoint = server.path("mnt");
    server.ok(&format!(
        "zpool create -o ashift=12 -O compression=lz4 -m {} tank {} cache {}",
        mountpoint.display(),
        d[0],
        d[1]
    ));
    server.ok(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{} tank/secret",
        key.display()
    ));
    let (plain, secret) = (mountpoint.join("plain"), mountpoint.join("secret/secret"));
    write(&plain, 1, None);
    write(&secret, 2, Some(SECRET));
    let sums = [sum(&plain), sum(&secret)];
    server.ok("zpool export tank");
    server.detach();

    // Read once from the pool, then warm over an export.
    import(&mut server, &disks);
    assert_eq!([sum(&plain), sum(&secret)], sums);
    server.wait_until("the cache device is filled", || {
        held_bytes(&server) > 30 << 20
    });
    server.ok("zpool export tank");
    server.detach();
    import(&mut server, &disks);
    server.wait_until("what it holds is found", || held_bytes(&server) > 30 << 20);
    assert_eq!([sum(&plain), sum(&secret)], sums);
    let found = hits(&server);
    assert!(found >= 300, "{found} hits");
    assert_eq!(cache_of(&server)["checksum_errors"], 0);
    let listed = server.ok("zpool list -v -Hp -o name,size,alloc tank");
    assert!(listed.contains("cache"), "{listed}");
    look_at_caches(&server);
    server.ok("zpool export tank");
    server.detach();
    let stored = std::fs::read(&ssd).expect("the cache device");
    let needle = &SECRET.as_bytes()[..24];
    let is_there = stored.windows(needle.len()).any(|part| part == needle);
    assert!(!is_there, "plaintext is on the cache device");
    drop(stored);
    zdb_is_clean(&server.path("disks"), "tank");

    let Some(peer) = Peer::find() else { return };
    let script = "set -e\n\
         params=/sys/module/zfs/parameters\n\
         echo 0 > $params/l2arc_noprefetch\n\
         echo 0 > $params/l2arc_headroom\n\
         echo 67108864 > $params/l2arc_write_max\n\
         zpool import -N -d /dev/disk/peer -R /mnt tank\n\
         stat() { awk -v name=$1 '$1 == name { print $3 }' /proc/spl/kstat/zfs/arcstats; }\n\
         for i in $(seq 100); do [ $(stat l2_rebuild_bufs) -ge 300 ] && break; sleep 0.2; done\n\
         grep l2_ /proc/spl/kstat/zfs/arcstats\n\
         echo 'correct horse battery staple' > /key\n\
         zfs load-key -L file:///key tank/secret\n\
         zfs mount tank && zfs mount tank/secret\n\
         at=$(zfs get -H -o value mountpoint tank)\n\
         before=$(stat l2_hits)\n\
         echo \"SUMS $(sha256sum < $at/plain) $(sha256sum < $at/secret/secret)\"\n\
         echo \"HITS $(($(stat l2_hits) - before)) BAD $(stat l2_cksum_bad)\"\n\
         head -c 30000000 /dev/urandom > $at/theirs\n\
         head -c 15000000 /dev/urandom > $at/secret/theirs\n\
         echo \"THEIRS $(sha256sum < $at/theirs) $(sha256sum < $at/secret/theirs)\"\n\
         zpool sync\n\
         held=$(stat l2_size)\n\
         zpool export tank\n\
         zpool import -N -d /dev/disk/peer -R /mnt tank\n\
         zfs load-key -L file:///key tank/secret\n\
         zfs mount tank && zfs mount tank/secret\n\
         for i in $(seq 100); do\n\
           cat $at/theirs $at/secret/theirs > /dev/null\n\
           [ $(stat l2_size) -ge $((held + 40000000)) ] && break; sleep 0.2\n\
         done\n\
         grep l2_ /proc/spl/kstat/zfs/arcstats\n\
         zpool export tank\n";
    let text = peer.run(&disks, script);
    let line = |word: &str| -> Vec<String> {
        let mut lines = text.lines();
        let found = lines.find(|line| line.starts_with(word));
        let found = found.unwrap_or_else(|| panic!("no {word}: {text}"));
        found.split_whitespace().map(str::to_owned).collect()
    };
    // sha256sum says "-" for its input behind each sum.
    let theirs = line("SUMS");
    assert_eq!([&theirs[1], &theirs[3]], [&sums[0], &sums[1]], "{text}");
    let seen = line("HITS");
    let hits_there: u64 = seen[1].parse().expect("a number");
    assert!(hits_there >= 300, "{text}");
    assert_eq!(seen[3], "0", "{text}");

    import(&mut server, &disks);
    server.wait_until("what OpenZFS wrote is found", || {
        held_bytes(&server) > 60 << 20
    });
    let before = hits(&server);
    let theirs = line("THEIRS");
    let read = [
        sum(&mountpoint.join("theirs")),
        sum(&mountpoint.join("secret/theirs")),
    ];
    assert_eq!([&theirs[1], &theirs[3]], [&read[0], &read[1]]);
    let found = hits(&server) - before;
    // What it named in its last log block, which was not full, is lost.
    assert!(found >= 150, "{found} hits of {}", cache_of(&server));
    assert_eq!(cache_of(&server)["checksum_errors"], 0);
    server.ok("zpool export tank");
    server.detach();
    zdb_is_clean(&server.path("disks"), "tank");
    server.stop();
}
