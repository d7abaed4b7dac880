//! Who may ask what: each request of the API's own description, with a body that is understood, by
//! everybody who can come. A request that is new has no row here, and fails the test.
//!
//! "May" stands for any answer but that it may not be asked: there is no pool, and nothing of the
//! names that bodies have.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use super::*;

/// Who comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// Somebody over the network, without a session or a key.
    Nobody,
    Viewer,
    Operator,
    Admin,
    /// Who has the key of a replication into `tank/in`.
    Replica,
    /// A user of the system, by the socket, to whom nothing is allowed.
    User,
}

/// The letters of the table.
const LETTERS: [(char, Who); 6] = [
    ('n', Who::Nobody),
    ('v', Who::Viewer),
    ('o', Who::Operator),
    ('a', Who::Admin),
    ('r', Who::Replica),
    ('u', Who::User),
];

/// What is not asked of those who may: it stops the server, ends the session that asks, or never
/// ends.
const NOT_ASKED: [&str; 4] = [
    "/v1/server/stop",
    "/v1/session/logout",
    "/v1/session/password",
    "/v1/events",
];

/// Who may make each request. Those with permissions (`zfs allow`) are users like others here. The
/// results of jobs are for those who asked for them, and for operators.
const MAY: &str = "
/metrics voau
/v1/alerts/list voau
/v1/alerts/settings a
/v1/alerts/settings-set a
/v1/alerts/test oa
/v1/audit/list a
/v1/bench/compare voau
/v1/bench/get voau
/v1/bench/list voau
/v1/bench/look oa
/v1/bench/profiles voau
/v1/bench/progress voau
/v1/bench/remove oa
/v1/bench/run oa
/v1/cache/get voau
/v1/certificate/renew a
/v1/certificate/settings-set a
/v1/certificate/status a
/v1/console/link a
/v1/disks/lights-test oa
/v1/disks/list oa
/v1/disks/locate oa
/v1/disks/overview voau
/v1/disks/power a
/v1/disks/show voau
/v1/disks/test oa
/v1/events voau
/v1/events/history voau
/v1/files/access oa
/v1/files/access-set oa
/v1/files/download oa
/v1/files/list oa
/v1/files/restore oa
/v1/groups/add a
/v1/groups/change a
/v1/groups/remove a
/v1/host/buses voau
/v1/inject/add a
/v1/inject/cancel a
/v1/inject/list a
/v1/inject/tune a
/v1/iscsi/secret/list a
/v1/iscsi/secret/remove a
/v1/iscsi/secret/set a
/v1/jobs/cancel oa
/v1/jobs/get voaru
/v1/jobs/list voau
/v1/jobs/result voaru
/v1/keys/list a
/v1/keys/make a
/v1/keys/remove a
/v1/openapi.json voau
/v1/people/add a
/v1/people/list a
/v1/people/password a
/v1/people/remove a
/v1/plan/ask voau
/v1/plan/dedup oa
/v1/plan/log voau
/v1/replications/change a
/v1/replications/create a
/v1/replications/list oa
/v1/replications/pause oa
/v1/replications/remove a
/v1/replications/run oa
/v1/reports/get voau
/v1/reports/list voau
/v1/schedules/list voau
/v1/schedules/pause oa
/v1/schedules/remove oa
/v1/schedules/run oa
/v1/schedules/set oa
/v1/server/info voau
/v1/server/memory voau
/v1/server/stop a
/v1/session/info nvoa
/v1/session/login nvoa
/v1/session/logout voa
/v1/session/password voa
/v1/session/setup nvoa
/v1/shares/list oa
/v1/smb/user/add a
/v1/smb/user/list a
/v1/smb/user/password a
/v1/smb/user/remove a
/v1/ups/status voau
/v1/users/add a
/v1/users/change a
/v1/users/list a
/v1/users/remove a
/v1/zfs/allow a
/v1/zfs/allow-list voau
/v1/zfs/bookmark oa
/v1/zfs/change-key oa
/v1/zfs/clone oa
/v1/zfs/create oa
/v1/zfs/destroy oar
/v1/zfs/diff oa
/v1/zfs/hold oa
/v1/zfs/holds voaru
/v1/zfs/inherit oa
/v1/zfs/keys oa
/v1/zfs/list voaru
/v1/zfs/load-key oa
/v1/zfs/mount oa
/v1/zfs/mounts voau
/v1/zfs/program a
/v1/zfs/project oa
/v1/zfs/promote oa
/v1/zfs/receive oar
/v1/zfs/receive-abort oar
/v1/zfs/redact oa
/v1/zfs/release oa
/v1/zfs/rename oa
/v1/zfs/rewrite oa
/v1/zfs/rollback oa
/v1/zfs/send oa
/v1/zfs/send-plan oa
/v1/zfs/set oa
/v1/zfs/share oa
/v1/zfs/snapshot oa
/v1/zfs/space oa
/v1/zfs/unload-key oa
/v1/zfs/unmount oa
/v1/zfs/unshare oa
/v1/zfs/wait voau
/v1/zpool/add oa
/v1/zpool/attach oa
/v1/zpool/checkpoint oa
/v1/zpool/clear oa
/v1/zpool/create a
/v1/zpool/ddtprune oa
/v1/zpool/destroy a
/v1/zpool/detach oa
/v1/zpool/events oa
/v1/zpool/events/clear oa
/v1/zpool/export a
/v1/zpool/freeze a
/v1/zpool/history oa
/v1/zpool/import a
/v1/zpool/initialize oa
/v1/zpool/labelclear a
/v1/zpool/list voau
/v1/zpool/offline oa
/v1/zpool/online oa
/v1/zpool/prefetch oa
/v1/zpool/reguid oa
/v1/zpool/remove oa
/v1/zpool/reopen oa
/v1/zpool/resilver oa
/v1/zpool/scan-cost voau
/v1/zpool/scrub oa
/v1/zpool/set oa
/v1/zpool/split a
/v1/zpool/status voau
/v1/zpool/sync voau
/v1/zpool/trim oa
/v1/zpool/upgrade voau
";

/// The number of a user to whom nothing is allowed.
const USER: u32 = 4321;

/// A value that a schema of the description allows, as small as it can be.
fn sample(schema: &Value, all: &Value) -> Value {
    if let Some(path) = schema["$ref"].as_str() {
        let name = path.rsplit('/').next().unwrap();
        return sample(&all["components"]["schemas"][name], all);
    }
    for several in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[several].as_array() {
            return sample(&choices[0], all);
        }
    }
    if let Some(parts) = schema["allOf"].as_array() {
        return sample(&parts[0], all);
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    if let Some(values) = schema["enum"].as_array() {
        return values[0].clone();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) if kinds.contains(&json!("null")) => "null",
        Value::Array(kinds) => kinds[0].as_str().unwrap(),
        kind => kind.as_str().unwrap_or("null"),
    };
    match kind {
        "string" if schema["pattern"].is_string() => json!("1"),
        "string" => json!("none"),
        "integer" | "number" => schema.get("minimum").cloned().unwrap_or(json!(1)),
        "boolean" => json!(false),
        "array" => json!([]),
        "object" => {
            let required = schema["required"].as_array();
            let required = required.map(Vec::as_slice).unwrap_or_default();
            let fields = required.iter().map(|name| {
                let name = name.as_str().unwrap();
                (name.to_owned(), sample(&schema["properties"][name], all))
            });
            Value::Object(fields.collect())
        }
        _ => Value::Null,
    }
}

/// The body of a request: of a replication's key what it is for, of others anything.
fn body_of(path: &str, operation: &Value, all: &Value, who: Who) -> String {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    if schema.is_null() {
        return String::new();
    }
    let mut body = sample(schema, all);
    if who == Who::Replica {
        let (field, value) = match path {
            "/v1/zfs/list" => ("names", json!(["tank/in/a"])),
            "/v1/zfs/holds" => ("names", json!(["tank/in@a"])),
            "/v1/zfs/receive" => ("target", json!("tank/in/a")),
            "/v1/zfs/receive-abort" => ("name", json!("tank/in")),
            "/v1/zfs/destroy" => ("target", json!("tank/in@millpond-a")),
            _ => ("", Value::Null),
        };
        if !field.is_empty() {
            body[field] = value;
        }
        if path == "/v1/zfs/receive" {
            body["naming"] = json!("exact");
        }
    }
    body.to_string()
}

/// Asks through the socket as a user of the system.
fn ask_as_user(socket: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n\
         {body}",
        body.len()
    );
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            // Of this thread alone; whose it is when it connects is what the kernel tells.
            let uid = rustix::process::Uid::from_raw(USER);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answer = asking.join().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    })
}

/// Whether an answer says that it may be asked.
fn is_let_in(status: u16, body: &str, what: &str) -> bool {
    assert!(!body.contains("was not understood"), "{what}: {body}");
    assert!(!body.contains("no such request"), "{what}: {body}");
    let says = |words: &str| body.contains(words);
    match status {
        401 => !says("log in, or give an API key"),
        403 if says("cannot get the result of job") => true,
        // What is wrong with a session's password or setup is nobody's right.
        403 => !(says("permission denied") || says("it takes the role")),
        _ => true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_has_those_who_may_ask_it() {
    let server = Server::with_users().await;
    for path in [server.directory.path().to_owned(), server.state()] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o711)).unwrap();
    }
    let listening = listen(Arc::clone(&server.service), None).await.unwrap();
    let admin = server.log_in("admin").await.headers();
    let key = |role: &str, replica: Value| {
        let body = json!({"name": "key", "role": role, "replica": replica});
        let (server, admin) = (&server, &admin);
        async move {
            let made = server.post("/v1/keys/make", admin, body).await;
            assert_eq!(made.status, 200, "{}", made.body);
            let key = made.json()["key"].as_str().unwrap().to_owned();
            format!("authorization: Bearer {key}\r\n")
        }
    };
    let replica = json!({"dataset": "tank/in", "keep_days": 7});
    let keys = [
        (Who::Nobody, String::new()),
        (Who::Viewer, key("viewer", Value::Null).await),
        (Who::Operator, key("operator", Value::Null).await),
        (Who::Admin, key("admin", Value::Null).await),
        (Who::Replica, key("viewer", replica).await),
    ];
    let described = server.send("GET", "/v1/openapi.json", &keys[3].1, "").await;
    let described = described.json();
    let rows: HashMap<&str, &str> = MAY
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .map(|(path, who)| (path, who.trim()))
        .collect();
    let is_root = rustix::process::geteuid().is_root();
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for (path, operations) in described["paths"].as_object().unwrap() {
        let (method, operation) = operations.as_object().unwrap().iter().next().unwrap();
        let method = method.to_uppercase();
        let expected = rows.get(&**path).copied();
        let mut letters = String::new();
        for (letter, who) in LETTERS {
            let is_expected = expected.is_some_and(|expected| expected.contains(letter));
            // Sessions are of the network alone.
            let has_none = who == Who::User && path.starts_with("/v1/session/");
            let is_skipped = has_none || who == Who::User && !is_root;
            if is_skipped || is_expected && NOT_ASKED.contains(&&**path) {
                letters.extend(is_expected.then_some(letter));
                continue;
            }
            let body = body_of(path, operation, &described, who);
            let what = format!("{path} by {who:?} with {body}");
            let (status, answer) = match keys.iter().find(|(of, _)| *of == who) {
                Some((_, headers)) => {
                    let answer = server.send(&method, path, headers, &body).await;
                    (answer.status, answer.body)
                }
                None => {
                    let socket = listening.path().to_owned();
                    let (method, path) = (method.clone(), path.clone());
                    let ask = move || ask_as_user(&socket, &method, &path, &body);
                    tokio::task::spawn_blocking(ask).await.unwrap()
                }
            };
            if is_let_in(status, &answer, &what) {
                letters.push(letter);
            } else if status == 403 && who == Who::Replica {
                let words = ["tank/in", "and for nothing else"];
                assert!(
                    words.iter().all(|words| answer.contains(words)),
                    "{what}: {answer}"
                );
            }
        }
        if expected != Some(&*letters) {
            wrong.push(format!("{path}: {letters}, and not {expected:?}"));
        }
        found.push(format!("{path} {letters}"));
    }
    assert!(
        wrong.is_empty(),
        "{}\nall:\n{}",
        wrong.join("\n"),
        found.join("\n")
    );
    assert_eq!(found.len(), rows.len(), "a row is of no request");
    listening.stop().await;
    server.stop().await;
}
