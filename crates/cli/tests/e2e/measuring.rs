//! Goal: the server measures below a dataset as it is asked to: it says before what it will do,
//! keeps the reports, and leaves nothing behind, neither when all is done, nor when it is stopped,
//! nor after a crash; and nothing that belongs to others goes. Method: loads of a second on a small
//! pool of files; no figure is compared, only that there are some.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Server, can_mount, finds, need, zdb_is_clean};

/// What names of a measurement's datasets begin with, in the pool.
const PREFIX: &str = "millpond-bench-";

/// A server with a pool `tank` and the filesystem `tank/a`.
fn start() -> Option<Server> {
    if !can_mount() || !need("fio", finds("fio")) {
        return None;
    }
    let server = Server::start();
    let disks = server.disks(2, 512 << 20);
    let root = server.text("mnt");
    server.ok(&format!(
        "zpool create -m {root} tank mirror {}",
        disks.join(" ")
    ));
    server.ok("zfs create tank/a");
    Some(server)
}

/// What is wanted, on 16 MiB, for a second each.
fn wanted(profile: &str, more: &Value) -> Value {
    let mut all = json!({
        "dataset": "tank/a", "profile": profile, "size_bytes": 16 << 20,
        "seconds": 1, "warm_up_seconds": 0,
    });
    for (name, value) in more.as_object().expect("fields") {
        all[name] = value.clone();
    }
    all
}

/// Begins to measure; the job's number.
fn begin(server: &Server, wanted: &Value) -> u64 {
    let job = server.ask("/v1/bench/run", &json!({ "wanted": wanted }));
    job["id"].as_u64().unwrap_or_else(|| panic!("a job: {job}"))
}

fn state_of(server: &Server, job: u64) -> String {
    let told = server.ask("/v1/jobs/get", &json!({ "id": job }));
    told["state"].as_str().expect("a state").to_owned()
}

/// Measures to the end; what the request was answered.
fn measure(server: &Server, wanted: &Value) -> Value {
    let told = server.ask("/v1/bench/run", &json!({ "wanted": wanted }));
    // What is refused may be so at once.
    if !told["state"].is_string() {
        return told;
    }
    let job = told["id"].as_u64().expect("a number");
    server.wait_until("all is measured", || state_of(server, job) != "running");
    server.ask("/v1/jobs/result", &json!({ "id": job }))
}

/// Waits until a load runs.
fn wait_until_loaded(server: &Server) {
    server.wait_until("a load runs", || {
        let told = server.ask("/v1/bench/progress", &json!({}));
        told["running"]["step"]["step"] == "load"
    });
}

/// Datasets of measurements.
fn sets(server: &Server) -> Vec<String> {
    let all = server.ok("zfs list -H -o name -r -t all tank");
    let ours = all.lines().filter(|name| name.contains(PREFIX));
    ours.map(str::to_owned).collect()
}

/// Whether a program runs in the directory of job files.
fn fio_runs(server: &Server) -> bool {
    let ours = server.state().join("bench/run");
    let all = std::fs::read_dir("/proc").expect("processes");
    let mut directories =
        all.filter_map(|entry| std::fs::read_link(entry.ok()?.path().join("cwd")).ok());
    directories.any(|directory| directory.starts_with(&ours))
}

/// Nothing is left of measurements.
fn is_clean(server: &Server) {
    assert_eq!(sets(server), Vec::<String>::new());
    assert!(!fio_runs(server));
    assert!(!server.state().join("bench/run").exists());
    let text = std::fs::read_to_string(server.state().join("bench/sets.json")).expect("a list");
    assert_eq!(
        serde_json::from_str::<Value>(&text).expect("JSON"),
        json!([])
    );
}

#[test]
fn profiles_are_measured_and_their_reports_are_kept() {
    let Some(mut server) = start() else { return };
    let profiles = server.ask("/v1/bench/profiles", &json!({}));
    assert!(profiles["fio"].is_string(), "{profiles}");
    assert_eq!(profiles["profiles"].as_array().expect("profiles").len(), 6);

    let depths = json!({"depths": [2], "block_bytes": 16384, "compression": "off"});
    let first = measure(&server, &wanted("iometer", &depths));
    assert_eq!(first, json!({"id": 1, "warnings": []}));
    is_clean(&server);
    let volume = json!({"depths": [2], "is_volume": true, "block_bytes": 4096});
    let second = measure(&server, &wanted("iometer", &volume));
    assert_eq!(second["id"], 2, "{second}");
    is_clean(&server);
    for id in [1, 2] {
        let told = server.ask("/v1/bench/get", &json!({ "id": id }));
        let tests = told["report"]["tests"].as_array().expect("loads").clone();
        assert_eq!(tests.len(), 8, "{told}");
        for test in tests {
            assert!(test["iops"].as_f64().expect("a figure") > 0.0, "{test}");
            assert!(test["server_cpu_per_gb"].is_number(), "{test}");
        }
        assert_eq!(told["report"]["target"], "tank/a");
    }
    let compared = server.ask("/v1/bench/compare", &json!({"before": 1, "after": 2}));
    assert_eq!(compared["tests"].as_array().expect("loads").len(), 8);

    let rate = json!({"stream_rate": 1_000_000});
    let third = measure(&server, &wanted("streams", &rate));
    assert_eq!(third["id"], 3, "{third}");
    let parts = json!({"total_seconds": 5});
    let fourth = measure(&server, &wanted("warm-up", &parts));
    assert_eq!(fourth["id"], 4, "{fourth}");
    let told = server.ask("/v1/bench/get", &json!({"id": 4}));
    let parts = told["report"]["warm_up"]["parts"]
        .as_array()
        .expect("parts");
    assert!(parts.len() >= 2, "{told}");
    is_clean(&server);

    // The list survives a restart, and what is forgotten is gone.
    server.ask("/v1/bench/remove", &json!({"id": 2}));
    server.stop();
    server.launch(&["daemon"]);
    let told = server.ask("/v1/bench/list", &json!({}));
    let reports = told["reports"].as_array().expect("reports").iter();
    let ids: Vec<u64> = reports
        .map(|one| one["id"].as_u64().expect("a number"))
        .collect();
    assert_eq!(ids, [4, 3, 1]);
    let gone = server.ask("/v1/bench/get", &json!({"id": 2}));
    assert_eq!(gone["kind"], "not-found", "{gone}");
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

/// What it will do is told before, and what does not fit or cannot be is refused before anything is
/// made.
#[test]
fn what_a_measurement_does_is_told_and_bounded() {
    let Some(server) = start() else { return };
    server.ok("zfs set quota=80M tank/a");
    server.ok("zfs create -V 16M tank/volume");
    let look = |wanted: Value| server.ask("/v1/bench/look", &json!({ "wanted": wanted }));
    let usual = look(json!({"dataset": "tank/a", "profile": "iometer"}));
    let figure = |name: &str| usual[name].as_u64().expect("a figure");
    assert_eq!(usual["quota"]["dataset"], "tank/a", "{usual}");
    assert!(figure("available_bytes") <= 80 << 20, "{usual}");
    assert!(
        figure("space_bytes") <= figure("available_bytes") / 4,
        "{usual}"
    );
    assert!(figure("pool_available_bytes") > 200 << 20, "{usual}");
    assert!(figure("seconds_max") > 16 * 90, "{usual}");
    assert_eq!(usual["tests"].as_array().expect("loads").len(), 16);

    for (wanted, kind, says) in [
        (
            wanted("sio", &json!({"size_bytes": 60 << 20})),
            "no-space",
            "half of them is the most",
        ),
        (
            wanted("sio", &json!({"dataset": "tank/no"})),
            "not-found",
            "does not exist",
        ),
        (
            wanted("sio", &json!({"dataset": "other"})),
            "not-found",
            "no pool 'other'",
        ),
        (
            wanted("sio", &json!({"dataset": "tank/volume"})),
            "invalid",
            "name a filesystem",
        ),
        (
            wanted("sio", &json!({"depths": [0]})),
            "invalid",
            "depths are 1 to 1,024",
        ),
    ] {
        for told in [look(wanted.clone()), measure(&server, &wanted)] {
            assert_eq!(told["kind"], kind, "{wanted}: {told}");
            let message = told["message"].as_str().expect("a message");
            assert!(message.contains(says), "{wanted}: {message}");
        }
    }
    // What the dataset itself cannot have is told when it is made.
    let told = measure(
        &server,
        &wanted("sio", &json!({"compression": "none-such"})),
    );
    assert_eq!(told["kind"], "invalid", "{told}");
    is_clean(&server);
    server.ok("zpool export tank");
    server.ok(&format!(
        "zpool import -o readonly=on -d {} tank",
        server.text("disks")
    ));
    let told = look(wanted("sio", &json!({})));
    assert!(
        told["message"]
            .as_str()
            .is_some_and(|text| text.contains("read-only")),
        "{told}"
    );
}

/// While it runs others are kept out, of its dataset and of a second measurement; canceled, fio and
/// the dataset are gone, with snapshots that somebody took of it.
#[test]
fn a_measurement_stops_when_it_is_canceled() {
    let Some(server) = start() else { return };
    for is_volume in [false, true] {
        let long = json!({"seconds": 3600, "is_volume": is_volume});
        let job = begin(&server, &wanted("sio", &long));
        wait_until_loaded(&server);
        let all = sets(&server);
        let [set] = &all[..] else {
            panic!("{all:?}");
        };
        assert!(set.starts_with("tank/a/"), "{set}");
        if !is_volume {
            let told = server.ok(&format!(
                "zfs get -H -o value sharenfs,sharesmb,canmount {set}"
            ));
            assert_eq!(told, "off\noff\nnoauto\n");
            let mounted = server.ok("zfs mount");
            let at = server.text("state/bench/mnt");
            assert!(mounted.lines().any(|line| line.contains(&at)), "{mounted}");
            let private = std::fs::metadata(server.state().join("bench")).expect("a directory");
            let mode = std::os::unix::fs::PermissionsExt::mode(&private.permissions());
            assert_eq!(mode & 0o077, 0, "{mode:o}");
        }
        assert!(fio_runs(&server));
        let other = measure(&server, &wanted("sio", &json!({})));
        assert_eq!(other["kind"], "busy", "{other}");
        server.ok(&format!("zfs snapshot {set}@somebody"));
        server.ask("/v1/jobs/cancel", &json!({ "id": job }));
        server.wait_until("it stops", || state_of(&server, job) != "running");
        assert_eq!(state_of(&server, job), "canceled");
        is_clean(&server);
    }
    let told = server.ask("/v1/bench/list", &json!({}));
    assert_eq!(told["reports"], json!([]));
    // A server that leaves does not wait for it.
    begin(&server, &wanted("sio", &json!({"seconds": 3600})));
    wait_until_loaded(&server);
    server.ok("down");
    let disks = server.path("disks");
    zdb_is_clean(&disks, "tank");
    assert!(!fio_runs(&server));
}

/// What a crash left goes with the next start, and nothing that is only called so, or is only on
/// the list.
#[test]
fn what_a_crash_left_is_taken_away_and_nothing_else() {
    let Some(mut server) = start() else { return };
    let list = server.state().join("bench/sets.json");
    for is_volume in [false, true] {
        let long = json!({"seconds": 3600, "is_volume": is_volume});
        begin(&server, &wanted("sio", &long));
        wait_until_loaded(&server);
        server.ok("zpool sync tank");
        server.kill();
        // fio cannot go on without its file.
        server.wait_until("fio has ended", || !fio_runs(&server));
        let mut names = names_of(&list);
        assert_eq!(names.len(), 1, "{names:?}");
        if is_volume {
            // As if the filesystem above had been called otherwise.
            names[0].0 = names[0].0.replacen("tank/a/", "tank/was/", 1);
        }
        names.push(("tank/a".to_owned(), "0123456789abcdef".to_owned()));
        names.push(("tank/never".to_owned(), "0123456789abcdef".to_owned()));
        std::fs::write(&list, json!(names).to_string()).expect("a list");
        server.launch(&["daemon"]);
        server.wait_until("it is gone", || sets(&server).is_empty());
        server.wait_until("the list is empty", || names_of(&list).is_empty());
        server.ok("zfs list tank/a");
    }
    // Called as if it were one, and with the word of nobody.
    server.ok(&format!("zfs create tank/{PREFIX}mine"));
    let told = measure(&server, &wanted("sio", &json!({})));
    assert_eq!(told["id"], 1, "{told}");
    assert_eq!(sets(&server), [format!("tank/{PREFIX}mine")]);
    server.ok("zpool export tank");
    zdb_is_clean(&server.path("disks"), "tank");
}

fn names_of(list: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(list).expect("a list");
    serde_json::from_str(&text).expect("JSON")
}
