//! The API as a client meets it: a server with a pool on a file, spoken to over its socket in plain
//! HTTP and JSON, without the types of `api`.

use std::path::PathBuf;

use api::EventKind;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;

use super::*;
use crate::Options;
use host::State;

mod files;
mod network;
mod people;
mod trees;

struct Server {
    service: Arc<Service>,
    listening: Listening,
    directory: tempfile::TempDir,
}

impl Server {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            state: directory.path().join("state"),
            iscsi_addresses: vec!["127.0.0.1:0".parse().unwrap()],
            iscsi_sessions: None,
            iscsi_connections: None,
            iscsi_memory_bytes: None,
            insecure: false,
            nfs_address: ([127, 0, 0, 1], 0).into(),
            nfs_portmapper: false,
            smb: crate::SmbListen::Off,
            https: crate::Https::Off,
            certificate: None,
            operator_mounts: None,
            cache_bytes: Some(64 << 20),
            cache_wear_percent: Some(100),
            cache_trim_ahead_percent: 0,
            spares_by_hand: false,
            inject: false,
            ups: None,
            settings: Vec::new(),
            file: None,
        };
        let state = State::open(&options.state).unwrap();
        let service = Service::new(&options, state).await.unwrap();
        let listening = listen(Arc::clone(&service), None).await.unwrap();
        Self {
            service,
            listening,
            directory,
        }
    }

    fn disk(&self) -> PathBuf {
        self.directory.path().join("disk")
    }

    /// A server with pool `tank`, of which nothing is mounted.
    async fn with_pool() -> Self {
        let server = Self::start().await;
        let disk = std::fs::File::create(server.disk()).unwrap();
        disk.set_len(256 << 20).unwrap();
        let create = json!({
            "name": "tank",
            "vdevs": [{"layout": {"device": {"path": server.disk()}}}],
            "properties": {},
            "filesystem_properties": {"mountpoint": "none"},
            "force": false, "dry_run": false, "no_features": false,
            "altroot": null, "command": "zpool create tank",
        });
        server.ok("/v1/zpool/create", create).await;
        server
    }

    /// Sends a request with these headers; gives status and JSON of the answer.
    async fn send(&self, head: &str, body: &str) -> (u16, Value) {
        let mut stream = UnixStream::connect(&self.listening.path).await.unwrap();
        let length = body.len();
        let request =
            format!("{head}host: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let head = format!("POST {path} HTTP/1.1\r\n");
        self.send(&head, &body.to_string()).await
    }

    /// The same as a job, at once.
    async fn post_async(&self, path: &str, body: Value) -> (u16, Value) {
        let head = format!("POST {path} HTTP/1.1\r\nprefer: respond-async\r\n");
        self.send(&head, &body.to_string()).await
    }

    async fn ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    async fn events(&self, query: &str) -> Events {
        let mut stream = UnixStream::connect(&self.listening.path).await.unwrap();
        let request = format!("GET /v1/events{query} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        let status = lines.next_line().await.unwrap().unwrap();
        assert!(status.contains(" 200 "), "{status}");
        Events { lines }
    }

    async fn create(&self, name: &str) {
        let call = json!({
            "name": name, "properties": {}, "volume_size_bytes": null, "sparse": false,
            "parents": false, "no_mount": true, "command": "zfs create",
        });
        self.ok("/v1/zfs/create", call).await;
    }

    fn destroy_all(name: &str) -> Value {
        json!({
            "target": name, "recursive": true, "dependents": false, "force": false,
            "dry_run": false, "command": "zfs destroy",
        })
    }

    async fn stop(self) {
        self.service.shut_down().await;
        self.listening.stop().await;
    }
}

/// A stream of events as text.
struct Events {
    lines: Lines<BufReader<UnixStream>>,
}

impl Events {
    /// The next event; what the stream says of it is what its JSON says.
    async fn next(&mut self) -> Value {
        let (mut id, mut class) = (None, None);
        loop {
            let line = self.lines.next_line().await.unwrap().expect("a line");
            if let Some(value) = line.strip_prefix("id: ") {
                id = Some(value.to_owned());
            } else if let Some(value) = line.strip_prefix("event: ") {
                class = Some(value.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                let event: Value = serde_json::from_str(data).unwrap();
                assert_eq!(Some(event["sequence"].to_string()), id, "{event}");
                assert_eq!(event["class"].as_str(), class.as_deref(), "{event}");
                return event;
            }
        }
    }

    /// Reads until there is one of that class, and gives all of them.
    async fn until(&mut self, class: &str) -> Vec<Value> {
        let mut out = Vec::new();
        loop {
            let event = self.next().await;
            let is_last = event["class"] == class;
            out.push(event);
            if is_last {
                return out;
            }
        }
    }
}

/// Every value in JSON that is called so.
fn all<'a>(json: &'a Value, name: &str, out: &mut Vec<&'a Value>) {
    match json {
        Value::Object(map) => {
            out.extend(map.get(name));
            map.values().for_each(|value| all(value, name, out));
        }
        Value::Array(list) => list.iter().for_each(|value| all(value, name, out)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guids_are_strings_and_states_are_known_words() {
    let server = Server::with_pool().await;
    // One that a double cannot hold.
    let guid = "18446744073709551557";
    let reguid = |guid: Value| json!({"name": "tank", "guid": guid, "command": "zpool reguid"});
    let number: Value = serde_json::from_str(guid).unwrap();
    let (status, failure) = server.post("/v1/zpool/reguid", reguid(number)).await;
    assert_eq!((status, &failure["kind"]), (400, &json!("invalid")));
    server.ok("/v1/zpool/reguid", reguid(json!(guid))).await;
    let listed = server
        .ok("/v1/zpool/list", json!({"names": [], "io": true}))
        .await;
    let status = server.ok("/v1/zpool/status", json!({"names": []})).await;
    for answer in [&listed, &status] {
        assert_eq!(answer["pools"][0]["guid"], guid);
        let mut guids = Vec::new();
        all(answer, "guid", &mut guids);
        assert!(guids.len() >= 3, "{answer}");
        assert!(!guids.iter().any(|guid| guid.is_number()), "{guids:?}");
        let tree = &answer["pools"][0]["tree"];
        assert_eq!(tree["kind"], "root");
        assert_eq!(tree["children"][0]["kind"], "file");
        assert_eq!(tree["children"][0]["state"], "online");
        assert_eq!(tree["children"][0]["class"], "normal");
        assert_eq!(answer["pools"][0]["health"], "online");
    }
    assert_eq!(status["pools"][0]["condition"], Value::Null);
    let io = &listed["pools"][0]["tree"]["io"]["classes"];
    assert_eq!(io[1]["class"], "sync-write");
    let event = server.events("?after=0").await.until("pool.changed").await;
    assert_eq!(event.last().unwrap()["guid"], guid);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_in_json() {
    let server = Server::start().await;
    for (path, body, says) in [
        (
            "/v1/zpool/list",
            r#"{"names": [], "nmaes": []}"#,
            "unknown field `nmaes`",
        ),
        ("/v1/zpool/list", r#"{"names": 1}"#, "invalid type"),
        ("/v1/zpool/list", "{", "EOF"),
        (
            "/v1/zpool/scrub",
            r#"{"names": [], "all": true, "action": "run"}"#,
            "unknown variant",
        ),
        ("/v1/jobs/get", r#"{}"#, "'id' is lacking"),
    ] {
        let head = format!("POST {path} HTTP/1.1\r\n");
        let (status, failure) = server.send(&head, body).await;
        assert_eq!((status, &failure["kind"]), (400, &json!("invalid")));
        let message = failure["message"].as_str().unwrap();
        assert!(message.contains(says), "{message}");
    }
    for head in [
        "POST /v1/zpool/nonesuch HTTP/1.1\r\n",
        "GET /v1/zpool/list HTTP/1.1\r\n",
        "POST /v1/events HTTP/1.1\r\n",
    ] {
        let (status, failure) = server.send(head, "{}").await;
        assert_eq!((status, &failure["kind"]), (422, &json!("unsupported")));
    }
    let (status, failure) = server.post("/v1/jobs/get", json!({"id": 1})).await;
    assert_eq!((status, &failure["kind"]), (404, &json!("not-found")));
    server.stop().await;
}

/// What was in the way of a request comes with its data, not only in words.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_their_data() {
    let server = Server::with_pool().await;
    server.create("tank/a").await;
    server.create("tank/a/b").await;
    let mut call = Server::destroy_all("tank/a");
    call["recursive"] = json!(false);
    let (status, failure) = server.post("/v1/zfs/destroy", call).await;
    assert_eq!(status, 409);
    assert_eq!(
        failure["refusal"]["dependents"],
        json!({
            "target": "tank/a", "kind": "filesystem", "dependence": "children",
            "names": ["tank/a/b"],
        })
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_becomes_a_job_that_is_followed_canceled_and_asked_for_its_result() {
    let server = Server::with_pool().await;
    for number in 0..40 {
        server.create(&format!("tank/{number}")).await;
    }
    let (status, job) = server
        .post_async("/v1/zfs/destroy", Server::destroy_all("tank"))
        .await;
    assert_eq!(status, 202, "{job}");
    assert_eq!(
        (&job["kind"], &job["pool"]),
        (&json!("destroy"), &json!("tank"))
    );
    assert_eq!(
        (&job["state"], &job["can_cancel"]),
        (&json!("running"), &json!(true))
    );
    let id = json!({"id": job["id"]});
    // Whoever begins with the number in the answer misses nothing.
    let mut events = server.events(&format!("?after={}", job["sequence"])).await;
    events.until("dataset.destroyed").await;
    server.ok("/v1/jobs/cancel", id.clone()).await;
    // What was destroyed by then may be freed first, which is a job as well.
    let ended = loop {
        let ended = events.until("job.finished").await.pop().unwrap();
        if ended["job"]["id"] == job["id"] {
            break ended;
        }
    };
    assert_eq!(ended["job"]["state"], "canceled");
    assert_eq!(ended["job"]["progress"]["unit"], "datasets");
    let (status, failure) = server.post("/v1/jobs/result", id.clone()).await;
    assert_eq!((status, &failure["kind"]), (409, &json!("canceled")));
    assert_eq!(ended["job"]["failure"], failure);
    // What it had not come to is there.
    let list = json!({"names": ["tank"], "depth": null, "kinds": [], "properties": []});
    let left = server.ok("/v1/zfs/list", list.clone()).await;
    assert!(left["datasets"].as_array().unwrap().len() > 1, "{left}");
    let (status, _) = server.post("/v1/jobs/cancel", id).await;
    assert_eq!(status, 400);

    let (_, job) = server
        .post_async("/v1/zfs/destroy", Server::destroy_all("tank"))
        .await;
    let mut events = server.events(&format!("?after={}", job["sequence"])).await;
    // What was destroyed before may just have been freed.
    let ended = loop {
        let ended = events.until("job.finished").await.pop().unwrap();
        if ended["job"]["id"] == job["id"] {
            break ended;
        }
    };
    assert_eq!(ended["job"]["state"], "finished");
    let reply = server.ok("/v1/jobs/result", json!({"id": job["id"]})).await;
    assert!(!reply["names"].as_array().unwrap().is_empty());
    let left = server.ok("/v1/zfs/list", list).await;
    assert_eq!(left["datasets"].as_array().unwrap().len(), 1);
    let listed = server.ok("/v1/jobs/list", json!({"pool": "tank"})).await;
    let mut states = Vec::new();
    all(&listed, "state", &mut states);
    assert!(states.contains(&&json!("canceled")) && states.contains(&&json!("finished")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_is_a_job_of_its_pool() {
    let server = Server::with_pool().await;
    let export = json!({"names": ["tank"], "all": false, "force": false});
    server.ok("/v1/zpool/export", export).await;
    let import = json!({
        "search": [server.disk()], "pool": "tank", "all": false, "new_name": null,
        "destroyed": false, "force": false, "no_mount": true, "altroot": null,
        "properties": {"readonly": "on"}, "command": "zpool import tank",
    });
    let reply = server.ok("/v1/zpool/import", import).await;
    assert_eq!(reply["imported"][0]["name"], "tank");
    let before = server.service.serving.events.last();
    let scrub = json!({"names": ["tank"], "all": false, "action": "start"});
    server.ok("/v1/zpool/scrub", scrub).await;
    let mut events = server.events(&format!("?kind=own&after={before}")).await;
    let told = events.until("job.finished").await;
    let classes: Vec<&str> = told
        .iter()
        .map(|event| event["class"].as_str().unwrap())
        .filter(|class| *class != "job.progress")
        .collect();
    assert_eq!(
        classes,
        [
            "stream.opened",
            "scrub.started",
            "job.started",
            "scrub.finished",
            "job.finished"
        ]
    );
    let job = &told.last().unwrap()["job"];
    assert_eq!(
        (&job["kind"], &job["state"]),
        (&json!("scrub"), &json!("finished"))
    );
    let progress = &job["progress"];
    assert_eq!(progress["done"], progress["total"]);
    server.stop().await;
}

/// A short scrub may be over before its command is known to be done.
#[tokio::test(flavor = "multi_thread")]
async fn each_scrub_is_told_of_once() {
    const SCRUBS: usize = 30;
    let server = Server::with_pool().await;
    let open = server.service.serving.pools.get("tank").unwrap();
    let before = server.service.serving.events.last();
    let is_done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (looked_at, stops) = (Arc::clone(&open), Arc::clone(&is_done));
    let looks = std::thread::spawn(move || {
        while !stops.load(std::sync::atomic::Ordering::Relaxed) {
            looked_at.background.look(&looked_at.pool);
            std::thread::yield_now();
        }
    });
    let scrub = json!({"names": ["tank"], "all": false, "action": "start"});
    for _ in 0..SCRUBS {
        server.ok("/v1/zpool/scrub", scrub.clone()).await;
        open.pool.scans().wait_for_scrub(false).await;
    }
    is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    looks.join().unwrap();
    let export = json!({"names": ["tank"], "all": false, "force": false});
    open.background.look(&open.pool);
    drop(open);
    server.ok("/v1/zpool/export", export).await;
    let mut events = server.events(&format!("?kind=own&after={before}")).await;
    let told = events.until("pool.exported").await;
    for class in ["scrub.started", "scrub.finished"] {
        let times = told.iter().filter(|event| event["class"] == class).count();
        assert_eq!(times, SCRUBS, "{class}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_in_order_and_who_is_late_is_told_what_is_missing() {
    let server = Server::with_pool().await;
    let mut events = server.events("?kind=own").await;
    assert_eq!(events.next().await["class"], "stream.opened");
    for number in 0..10 {
        server.create(&format!("tank/{number}")).await;
    }
    let told = {
        let mut told = Vec::new();
        while told.len() < 10 {
            told.push(events.next().await);
        }
        told
    };
    for (number, pair) in told.windows(2).enumerate() {
        let sequence = |event: &Value| event["sequence"].as_u64().unwrap();
        assert!(sequence(&pair[1]) > sequence(&pair[0]));
        assert_eq!(pair[0]["class"], "dataset.created");
        assert_eq!(pair[0]["names"], json!([format!("tank/{number}")]));
    }
    let mut from_begin = server.events("?after=0").await;
    let all = from_begin.until("dataset.created").await;
    let find = |class: &str| all.iter().find(|event| event["class"] == class).unwrap();
    assert_eq!(find("pool.imported")["pool"], "tank");
    // OpenZFS's are among them, and numbers have no gaps.
    let made = find("sysevent.fs.zfs.pool_create");
    let pool = json!({"name": "pool", "type": "string", "value": "tank"});
    assert!(made["pairs"].as_array().unwrap().contains(&pool), "{made}");
    for (number, event) in all.iter().enumerate() {
        assert_eq!(event["sequence"], number);
    }
    // More than are kept.
    for _ in 0..3000 {
        server
            .service
            .serving
            .events
            .tell(EventKind::DatasetsCreated {
                names: vec!["tank/x".into()],
            });
    }
    let mut late = server.events("?kind=own&after=0").await;
    assert_eq!(late.next().await["class"], "stream.opened");
    let lagged = late.next().await;
    assert_eq!(lagged["class"], "stream.lagged");
    let missed = lagged["missed"].as_u64().unwrap();
    assert!(missed > 1000, "{lagged}");
    let next = lagged["sequence"].as_u64().unwrap() + 1;
    assert_eq!(late.next().await["sequence"], next);
    let (status, _) = server.send("GET /v1/events?after=x HTTP/1.1\r\n", "").await;
    assert_eq!(status, 400);
    server.stop().await;
}

/// A request says what it wants, and no more: what it leaves out is as it is without an option.
/// What it has to say is named, all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_says_what_it_wants_and_no_more() {
    let server = Server::with_pool().await;
    let body = json!({"name": "tank/a", "no_mount": true});
    server.ok("/v1/zfs/create", body).await;
    let names = json!({"names": ["tank/a@s"]});
    server.ok("/v1/zfs/snapshot", names).await;
    let target = json!({"target": "tank/a@s"});
    server.ok("/v1/zfs/destroy", target).await;
    let (status, failure) = server.post("/v1/zfs/rename", json!({})).await;
    assert_eq!((status, &failure["kind"]), (400, &json!("invalid")));
    let message = failure["message"].as_str().unwrap();
    for field in ["'from'", "'to'"] {
        assert!(message.contains(field), "{message}");
    }
    let (_, failure) = server.post("/v1/zfs/rename", json!({"from": 1})).await;
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.contains("'to'") && !message.contains("'from'"),
        "{message}"
    );
    server.stop().await;
}

/// Where the record of changes cannot be written, nothing is changed; looking, and stopping the
/// server, go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_cannot_be_put_on_record_is_not_made() {
    let server = Server::start().await;
    let record = server.directory.path().join("state/audit.jsonl");
    std::fs::create_dir(&record).unwrap();
    let secret = json!({"name": "web", "user": null, "secret": null});
    let (status, failure) = server.post("/v1/iscsi/secret/set", secret.clone()).await;
    let message = failure["message"].as_str().unwrap();
    assert!(
        status >= 500 && message.contains("nothing is changed"),
        "{status} {message}"
    );
    let list = server.ok("/v1/iscsi/secret/list", json!({})).await;
    assert_eq!(list["secrets"], json!([]));
    std::fs::remove_dir(&record).unwrap();
    server.ok("/v1/iscsi/secret/set", secret).await;
    server.stop().await;
}
