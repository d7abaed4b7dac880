//! The server over the network, as browsers and programs meet it: HTTPS and JSON, without the types
//! of `api`.

use std::net::SocketAddr;
use std::path::PathBuf;

use api::{Role, Secret};
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::super::*;
use crate::{Https, Options};
use host::State;

mod http2;
mod who_may;

const PASSWORD: &str = "correct horse battery";

struct Server {
    service: Arc<Service>,
    listening: web::Listening,
    directory: tempfile::TempDir,
    address: SocketAddr,
}

/// An answer: status, headers as text, body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}\n{}", self.head, self.body))
    }

    fn kind(&self) -> Value {
        self.json()["kind"].clone()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    /// The session's cookie that it sets.
    fn cookie(&self) -> Option<String> {
        let set = self.header("set-cookie")?;
        let value = set
            .strip_prefix("__Host-millpond_session=")?
            .split(';')
            .next()?;
        (!value.is_empty()).then(|| value.to_owned())
    }
}

/// Somebody's session.
#[derive(Clone)]
struct Session {
    cookie: String,
    csrf: String,
}

impl Session {
    fn headers(&self) -> String {
        format!(
            "cookie: a=b; __Host-millpond_session={}\r\nx-millpond-csrf: {}\r\n",
            self.cookie, self.csrf
        )
    }
}

fn options(state: PathBuf) -> Options {
    Options {
        state,
        iscsi_addresses: vec!["127.0.0.1:0".parse().unwrap()],
        iscsi_sessions: None,
        iscsi_connections: None,
        iscsi_memory_bytes: None,
        insecure: false,
        nfs_address: ([127, 0, 0, 1], 0).into(),
        nfs_portmapper: false,
        smb: crate::SmbListen::Off,
        https: Https::At(([127, 0, 0, 1], 0).into()),
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
    }
}

impl Server {
    async fn start() -> Self {
        Self::start_within(web::Bounds::default()).await
    }

    async fn start_within(bounds: web::Bounds) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path().join("state"));
        let state = State::open(&options.state).unwrap();
        let service = Service::new(&options, state).await.unwrap();
        let listening = crate::listen_over_network(&service, &options, bounds).await;
        let listening = listening.unwrap().unwrap();
        let address = listening.address();
        Self {
            service,
            listening,
            directory,
            address,
        }
    }

    /// A server with a user of each role, named as it.
    async fn with_users() -> Self {
        let server = Self::start().await;
        for (name, role) in [
            ("admin", Role::Admin),
            ("operator", Role::Operator),
            ("viewer", Role::Viewer),
        ] {
            let user = api::UserAdd {
                name: name.to_owned(),
                role,
                password: Secret(PASSWORD.into()),
            };
            server.service.web.user_add(user).await.unwrap();
        }
        server
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// A connection whose certificate is checked.
    async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_by(&[]).await
    }

    /// One of a client that speaks these protocols.
    async fn connect_by(&self, protocols: &[&str]) -> TlsStream<TcpStream> {
        let certificate = CertificateDer::from_pem_file(self.state().join("https-certificate.pem"));
        let mut roots = RootCertStore::empty();
        roots.add(certificate.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut configuration = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let protocols = protocols.iter().map(|one| one.as_bytes().to_vec());
        configuration.alpn_protocols = protocols.collect();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(configuration));
        connector.connect(name, stream).await.unwrap()
    }

    /// Sends a request as it is.
    async fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect().await;
        // The server may have answered and left before all was sent.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Answer {
            status: status.unwrap_or_else(|| panic!("no answer: {answer:?}")),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost:{}\r\nconnection: close\r\n{headers}\
             content-length: {}\r\n\r\n{body}",
            self.address.port(),
            body.len()
        );
        self.raw(request.as_bytes()).await
    }

    async fn post(&self, path: &str, headers: &str, body: Value) -> Answer {
        self.send("POST", path, headers, &body.to_string()).await
    }

    async fn log_in(&self, user: &str) -> Session {
        let body = json!({"user": user, "password": PASSWORD});
        let answer = self.post("/v1/session/login", "", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let reply = answer.json();
        assert_eq!(
            (&reply["user"], &reply["role"]),
            (&json!(user), &json!(user))
        );
        Session {
            cookie: answer.cookie().unwrap(),
            csrf: reply["csrf"].as_str().unwrap().to_owned(),
        }
    }

    async fn stop(self) {
        self.service.shut_down().await;
        self.listening.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_user_is_made_with_the_link_and_only_once() {
    let server = Server::start().await;
    let info = server.post("/v1/session/info", "", json!({})).await;
    let nobody = json!({"user": null, "role": null, "csrf": null, "setup_needed": true});
    assert_eq!((info.status, info.json()), (200, nobody));
    let link = server.service.web.link();
    assert_eq!(link.url.unwrap(), format!("https://{}/", server.address));
    let token = link.setup_token.unwrap().0.clone();
    let kept = server.service.state().directory().join("setup-link");
    let text = std::fs::read_to_string(&kept).unwrap();
    assert_eq!(text, format!("https://{}/#setup={token}\n", server.address));
    let mode = std::os::unix::fs::PermissionsExt::mode(&kept.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let setup =
        |token: &str, user: &str| json!({"token": token, "user": user, "password": PASSWORD});
    let refused = server
        .post("/v1/session/setup", "", setup("wrong", "ann"))
        .await;
    assert_eq!(
        (refused.status, refused.kind()),
        (401, json!("unauthenticated"))
    );
    let short = json!({"token": token, "user": "ann", "password": "short"});
    let refused = server.post("/v1/session/setup", "", short).await;
    assert_eq!((refused.status, refused.kind()), (400, json!("invalid")));
    // The token is good until a user is there.
    let made = server
        .post("/v1/session/setup", "", setup(&token, "ann"))
        .await;
    assert_eq!(made.status, 200, "{}", made.body);
    assert_eq!(
        (&made.json()["user"], &made.json()["role"]),
        (&json!("ann"), &json!("admin"))
    );
    let session = Session {
        cookie: made.cookie().unwrap(),
        csrf: made.json()["csrf"].as_str().unwrap().to_owned(),
    };
    let info = server
        .post("/v1/session/info", &session.headers(), json!({}))
        .await;
    let ann = json!({
        "user": "ann", "role": "admin", "csrf": session.csrf, "setup_needed": false,
    });
    assert_eq!(info.json(), ann);
    let again = server
        .post("/v1/session/setup", "", setup(&token, "bob"))
        .await;
    assert_eq!((again.status, again.kind()), (409, json!("exists")));
    assert!(server.service.web.link().setup_token.is_none());
    assert!(!kept.exists());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_logs_in_may_ask_and_who_logs_out_may_not() {
    let server = Server::with_users().await;
    let info = |headers: String| {
        let server = &server;
        async move { server.post("/v1/server/info", &headers, json!({})).await }
    };
    let refused = info(String::new()).await;
    assert_eq!(
        (refused.status, refused.kind()),
        (401, json!("unauthenticated"))
    );
    let viewer = server.log_in("viewer").await;
    let answer = info(viewer.headers()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.json()["version"].is_string());
    // Without the header a page from elsewhere could ask.
    let cookie = format!("cookie: __Host-millpond_session={}\r\n", viewer.cookie);
    let refused = info(cookie.clone()).await;
    assert_eq!((refused.status, refused.kind()), (403, json!("denied")));
    let refused = info(format!("{cookie}x-millpond-csrf: {}x\r\n", viewer.csrf)).await;
    assert_eq!(refused.status, 403);
    let other = server.log_in("viewer").await;
    let refused = info(format!("{cookie}x-millpond-csrf: {}\r\n", other.csrf)).await;
    assert_eq!(refused.status, 403);
    let answer = server
        .post("/v1/session/logout", &viewer.headers(), json!({}))
        .await;
    assert_eq!(answer.status, 200);
    assert!(
        answer
            .header("set-cookie")
            .unwrap()
            .starts_with("__Host-millpond_session=; Max-Age=0")
    );
    assert_eq!(info(viewer.headers()).await.status, 401);
    assert_eq!(info(other.headers()).await.status, 200);
    server.stop().await;
}

/// Reports are for everybody, but what a client did is told only to those who see shares in use.
#[tokio::test(flavor = "multi_thread")]
async fn who_only_looks_is_not_told_what_clients_did() {
    let server = Server::with_users().await;
    let of_client = json!({
        "of": "client", "protocol": "nfs", "dataset": "tank/a", "share": "/tank/a",
        "client": "10.0.0.1",
    });
    let of_pool = json!({"of": "pool", "pool": "tank"});
    for (user, sees_clients) in [("viewer", false), ("operator", true), ("admin", true)] {
        let headers = server.log_in(user).await.headers();
        let get = |subjects: Value| {
            let body = json!({"subjects": subjects});
            server.post("/v1/reports/get", &headers, body)
        };
        let told = get(json!([of_pool])).await;
        assert_eq!(told.status, 200, "{user}: {}", told.body);
        let told = get(json!([of_pool, of_client])).await;
        match sees_clients {
            true => assert_eq!(told.json()["reports"][1]["subject"], of_client),
            false => assert_eq!((told.status, told.kind()), (403, json!("denied"))),
        }
        let listed = server.post("/v1/reports/list", &headers, json!({})).await;
        assert_eq!(listed.status, 200, "{user}: {}", listed.body);
    }
    server.stop().await;
}

/// Each request, for each role, as the description says.
#[tokio::test(flavor = "multi_thread")]
async fn roles_may_ask_what_the_description_says() {
    let server = Server::with_users().await;
    let names = ["viewer", "operator", "admin"];
    let mut sessions = Vec::new();
    for name in names {
        sessions.push(server.log_in(name).await);
    }
    let nobody = server.send("GET", "/v1/openapi.json", "", "").await;
    assert_eq!(nobody.status, 401);
    let described = server
        .send("GET", "/v1/openapi.json", &sessions[0].headers(), "")
        .await;
    let described = described.json();
    assert_eq!(described, api::openapi(env!("CARGO_PKG_VERSION")));
    let mut denied = [0; 3];
    for (path, operations) in described["paths"].as_object().unwrap() {
        let (method, operation) = operations.as_object().unwrap().iter().next().unwrap();
        let method = method.to_uppercase();
        let body = if method == "POST" { "{}" } else { "" };
        let role = operation["x-role"].as_str();
        let answer = server.send(&method, path, "", body).await;
        match role {
            Some(_) => {
                assert_eq!(
                    (answer.status, answer.kind()),
                    (401, json!("unauthenticated"))
                );
            }
            None => assert_ne!(answer.kind(), "unsupported", "{path}"),
        }
        let Some(role) = role else { continue };
        let needed = names.iter().position(|name| *name == role).unwrap();
        for (number, session) in sessions.iter().enumerate() {
            let suffices = number >= needed;
            // These would end what is tested, or never end.
            let ends = ["/v1/server/stop", "/v1/session/logout", "/v1/events"];
            if suffices && ends.contains(&path.as_str()) {
                continue;
            }
            let answer = server.send(&method, path, &session.headers(), body).await;
            let what = format!(
                "{path} by {}: {} {}",
                names[number], answer.status, answer.body
            );
            match suffices {
                true => {
                    // Stands for any answer but that it may not be asked, or is not there.
                    assert!(![401, 403].contains(&answer.status), "{what}");
                    assert!(!answer.body.contains("there is no such request"), "{what}");
                }
                false => {
                    assert_eq!(
                        (answer.status, answer.kind()),
                        (403, json!("denied")),
                        "{what}"
                    );
                    denied[number] += 1;
                }
            }
        }
    }
    assert!(
        denied[0] > 40 && denied[1] > 15 && denied[2] == 0,
        "{denied:?}"
    );
    // The others are all refused, also to who may do everything.
    for path in ["/v1/nonesuch", "/v1/", "/v1", "/metrics/x/../.."] {
        let answer = server
            .send("POST", path, &sessions[2].headers(), "{}")
            .await;
        assert!(
            [405, 422].contains(&answer.status),
            "{path}: {}",
            answer.status
        );
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_begins_with_a_value_that_nobody_chose() {
    let server = Server::with_users().await;
    let chosen = "cookie: __Host-millpond_session=chosen\r\n";
    let body = json!({"user": "viewer", "password": PASSWORD});
    let answer = server.post("/v1/session/login", chosen, body.clone()).await;
    let first = answer.cookie().unwrap();
    assert!(first.len() > 40 && first != "chosen");
    let set = answer.header("set-cookie").unwrap();
    for attribute in ["HttpOnly", "Secure", "SameSite=Strict", "Path=/"] {
        assert!(set.contains(attribute), "{set}");
    }
    // Logging in anew ends the session that the browser had.
    let had = format!("cookie: __Host-millpond_session={first}\r\n");
    let second = server
        .post("/v1/session/login", &had, body)
        .await
        .cookie()
        .unwrap();
    assert_ne!(first, second);
    let info = server.post("/v1/session/info", &had, json!({})).await;
    assert_eq!(info.json()["user"], Value::Null);
    let had = format!("cookie: __Host-millpond_session={second}\r\n");
    let info = server.post("/v1/session/info", &had, json!({})).await;
    assert_eq!(info.json()["user"], "viewer");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_from_elsewhere_may_ask_nothing() {
    let server = Server::with_users().await;
    let session = server.log_in("admin").await;
    let login = json!({"user": "viewer", "password": PASSWORD});
    for foreign in [
        "origin: https://evil.example\r\n",
        "origin: http://localhost\r\n",
        "origin: null\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
    ] {
        let headers = format!("{foreign}{}", session.headers());
        let refused = server.post("/v1/server/info", &headers, json!({})).await;
        assert_eq!(
            (refused.status, refused.kind()),
            (403, json!("denied")),
            "{foreign}"
        );
        let refused = server
            .post("/v1/session/login", foreign, login.clone())
            .await;
        assert_eq!(refused.status, 403, "{foreign}");
        assert!(refused.cookie().is_none());
    }
    let port = server.address.port();
    let own = format!("origin: https://localhost:{port}\r\nsec-fetch-site: same-origin\r\n");
    let answer = server.post("/v1/session/login", &own, login).await;
    assert_eq!(answer.status, 200);
    // Nor may they show a page of ours, or do anything with it.
    for answer in [
        server.send("GET", "/", "", "").await,
        server.send("POST", "/v1/server/info", "", "{}").await,
    ] {
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'self'"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_much_and_nonsense_is_refused() {
    let server = Server::with_users().await;
    let session = server.log_in("viewer").await.headers();
    let much = "x".repeat(300 << 10);
    for (path, headers, body) in [
        ("/v1/zfs/list", session.as_str(), much.as_str()),
        ("/v1/zfs/list", session.as_str(), "{"),
        ("/v1/zfs/list", session.as_str(), "[1, 2"),
        ("/v1/zfs/list", session.as_str(), ""),
        ("/v1/zfs/list", session.as_str(), "\0\u{1}"),
        ("/v1/session/login", "", much.as_str()),
        ("/v1/session/login", "", "{\"user\": 1}"),
        ("/v1/session/login", "", "null"),
        ("/v1/session/setup", "", "{}"),
    ] {
        let answer = server.send("POST", path, headers, body).await;
        let start: String = body.chars().take(20).collect();
        assert_eq!(
            (answer.status, answer.kind()),
            (400, json!("invalid")),
            "{path} {start}"
        );
    }
    let long = format!("a: {}\r\n", "x".repeat(128 << 10));
    let answer = server.send("POST", "/v1/session/info", &long, "{}").await;
    assert_eq!(answer.status, 431);
    let answer = server.raw(b"\x00\x01 nonsense\r\n\r\n").await;
    assert_eq!(answer.status, 400);
    let without =
        b"POST /v1/session/info HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    let answer = server.raw(without).await;
    assert_eq!(answer.status, 403, "{}", answer.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_the_consoles_and_no_others() {
    let server = Server::with_users().await;
    for path in [
        "/../people.json",
        "/../../../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/assets/../../people.json",
        "/assets/none.js",
        "//etc/passwd",
        "/\\..\\people.json",
        "/v1/../people.json",
    ] {
        let answer = server.send("GET", path, "", "").await;
        let is_page = answer.header("content-type") == Some("text/html; charset=utf-8");
        let is_refused = [400, 401, 404].contains(&answer.status);
        assert!(
            is_page || is_refused,
            "{path}: {} {}",
            answer.head,
            answer.body
        );
        assert!(
            !answer.body.contains("argon2") && !answer.body.contains("root:"),
            "{path}"
        );
    }
    let page = server.send("GET", "/pools/tank", "", "").await;
    match console::is_built() {
        true => {
            assert_eq!(
                (page.status, page.header("cache-control")),
                (200, Some("no-cache"))
            );
            let known = format!("if-none-match: {}\r\n", page.header("etag").unwrap());
            assert_eq!(server.send("GET", "/", &known, "").await.status, 304);
            let head = server.send("HEAD", "/", "", "").await;
            assert_eq!((head.status, head.body.as_str()), (200, ""));
        }
        false => {
            assert_eq!(page.status, 503);
            assert!(page.body.contains("no console"), "{}", page.body);
        }
    }
    assert_eq!(server.send("POST", "/", "", "{}").await.status, 405);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_guesses_is_shut_out() {
    let server = Server::with_users().await;
    let guess = || json!({"user": "admin", "password": "a wrong password"});
    let mut refused = 0;
    loop {
        let answer = server.post("/v1/session/login", "", guess()).await;
        if answer.status == 429 {
            assert_eq!(answer.kind(), "too-many");
            assert!(
                answer
                    .header("retry-after")
                    .unwrap()
                    .parse::<u64>()
                    .unwrap()
                    > 0
            );
            break;
        }
        assert_eq!(
            (answer.status, answer.kind()),
            (401, json!("unauthenticated"))
        );
        refused += 1;
        assert!(refused <= 20);
    }
    // The right one is not taken either now.
    let right = json!({"user": "admin", "password": PASSWORD});
    assert_eq!(
        server.post("/v1/session/login", "", right).await.status,
        429
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_for_programs_and_secrets_are_told_once() {
    let server = Server::with_users().await;
    let admin = server.log_in("admin").await.headers();
    let ok = |path: &'static str, headers: String, body: Value| {
        let server = &server;
        async move {
            let answer = server.post(path, &headers, body).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            answer.json()
        }
    };
    let make = json!({"name": "backup", "role": "admin"});
    let made = ok("/v1/keys/make", admin.clone(), make).await;
    let key = made["key"].as_str().unwrap().to_owned();
    let bearer = format!("authorization: Bearer {key}\r\n");
    ok("/v1/server/info", bearer.clone(), json!({})).await;
    // One that a key made would outlive it.
    let more = json!({"name": "more", "role": "viewer", "expires_s": null});
    let refused = server.post("/v1/keys/make", &bearer, more).await;
    assert_eq!((refused.status, refused.kind()), (403, json!("denied")));
    let other = json!({"name": "eve@example.org", "role": "admin", "password": "another password"});
    ok("/v1/users/add", bearer.clone(), other).await;
    // What a key may do is no more than what who made it may do.
    let change = json!({"name": "admin", "role": "viewer"});
    ok("/v1/users/change", bearer.clone(), change).await;
    assert_eq!(
        server
            .post("/v1/users/list", &bearer, json!({}))
            .await
            .status,
        403
    );
    // And the sessions of who has another role have ended.
    assert_eq!(
        server
            .post("/v1/server/info", &admin, json!({}))
            .await
            .status,
        401
    );
    let change = api::UserChange {
        name: "admin".to_owned(),
        role: Some(Role::Admin),
        password: None,
        totp: None,
    };
    server.service.web.user_change(change).await.unwrap();
    let totp = json!({"name": "viewer", "totp": true});
    let uri = ok("/v1/users/change", bearer.clone(), totp).await;
    let uri = uri["totp_uri"].as_str().unwrap().to_owned();
    let secret = uri
        .split("secret=")
        .nth(1)
        .unwrap()
        .split('&')
        .next()
        .unwrap()
        .to_owned();
    let users = ok("/v1/users/list", bearer.clone(), json!({})).await;
    let keys = ok("/v1/keys/list", bearer.clone(), json!({})).await;
    assert_eq!(keys["keys"][0]["made_by"], "admin");
    let record = ok("/v1/audit/list", bearer.clone(), json!({})).await;
    let entries = record["entries"].as_array().unwrap();
    let find = |path: &str| entries.iter().find(|entry| entry["path"] == path).unwrap();
    let added = find("/v1/users/add");
    assert_eq!(
        (&added["via"], &added["user"]),
        (&json!("key"), &json!("backup"))
    );
    assert_eq!(added["about"], json!(["eve@example.org"]));
    assert_eq!(
        (&added["address"], &added["failure"]),
        (&json!("127.0.0.1"), &Value::Null)
    );
    assert_eq!(find("/v1/users/list")["failure"], "denied");
    assert_eq!(find("/v1/session/login")["via"], "nobody");
    let file = std::fs::read_to_string(server.state().join("audit.jsonl")).unwrap();
    for text in [
        users.to_string(),
        keys.to_string(),
        record.to_string(),
        file,
    ] {
        for secret in [PASSWORD, "another password", "argon2", &key, &secret] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    let id = json!({"id": made["id"]});
    ok("/v1/keys/remove", bearer.clone(), id).await;
    let refused = server.post("/v1/server/info", &bearer, json!({})).await;
    assert_eq!(
        (refused.status, refused.kind()),
        (401, json!("unauthenticated"))
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_changes_and_other_sessions_end() {
    let server = Server::with_users().await;
    let (one, other) = (server.log_in("viewer").await, server.log_in("viewer").await);
    let change = |old: &str, new: &str| json!({"password": old, "new_password": new});
    let path = "/v1/session/password";
    let refused = server
        .post(path, &one.headers(), change("no", "a new password"))
        .await;
    assert_eq!((refused.status, refused.kind()), (403, json!("denied")));
    let refused = server
        .post(path, &one.headers(), change(PASSWORD, "short"))
        .await;
    assert_eq!(refused.status, 400);
    let changed = server
        .post(path, &one.headers(), change(PASSWORD, "a new password"))
        .await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    let status = |session: Session| {
        let server = &server;
        async move {
            let headers = session.headers();
            server
                .post("/v1/server/info", &headers, json!({}))
                .await
                .status
        }
    };
    assert_eq!((status(one).await, status(other).await), (200, 401));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_events_ends_with_its_session() {
    let server = Server::with_users().await;
    let session = server.log_in("viewer").await;
    let mut stream = server.connect().await;
    let request = format!(
        "GET /v1/events HTTP/1.1\r\nhost: localhost\r\n{}\r\n",
        session.headers()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut told = Vec::new();
    while !String::from_utf8_lossy(&told).contains("stream.opened") {
        assert!(stream.read_buf(&mut told).await.unwrap() > 0);
    }
    let names = vec!["tank/secret".to_owned()];
    let tell = || {
        server
            .service
            .serving
            .events
            .tell(api::EventKind::DatasetsCreated {
                names: names.clone(),
            })
    };
    tell();
    while !String::from_utf8_lossy(&told).contains("tank/secret") {
        assert!(stream.read_buf(&mut told).await.unwrap() > 0);
    }
    assert_eq!(
        server
            .post("/v1/session/logout", &session.headers(), json!({}))
            .await
            .status,
        200
    );
    told.clear();
    tell();
    // The last chunk of a body that ended (RFC 9112, section 7.1).
    while !told.ends_with(b"0\r\n\r\n") {
        assert!(
            stream.read_buf(&mut told).await.unwrap() > 0,
            "it was cut off"
        );
    }
    assert!(!String::from_utf8_lossy(&told).contains("tank/secret"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_slow_is_left() {
    let bounds = web::Bounds {
        handshake: Duration::from_secs(2),
        headers: Duration::from_secs(2),
    };
    let server = Server::start_within(bounds).await;
    let mut buffer = Vec::new();
    // No TLS at all; half a request; a connection that is kept for nothing.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(silent.read_to_end(&mut buffer).await.unwrap(), 0);
    for begin in ["POST /v1/session/info HTTP/1.1\r\nhost: x\r\n", ""] {
        let mut half = server.connect().await;
        half.write_all(begin.as_bytes()).await.unwrap();
        buffer.clear();
        let _ = half.read_to_end(&mut buffer).await;
        assert!(!String::from_utf8_lossy(&buffer).contains("200 OK"));
    }
    server.stop().await;
}

/// Goal: a program with a key that may only look gets metrics that agree with what is there.
#[tokio::test(flavor = "multi_thread")]
async fn programs_that_watch_get_metrics_with_a_key() {
    use telemetry::metrics::read::samples;

    let server = Server::with_users().await;
    let admin = server.log_in("admin").await.headers();
    let disk = server.directory.path().join("disk");
    let file = std::fs::File::create(&disk).unwrap();
    file.set_len(256 << 20).unwrap();
    let create = json!({
        "name": "tank",
        "vdevs": [{"layout": {"device": {"path": disk}}}],
        "properties": {}, "filesystem_properties": {"mountpoint": "none"},
        "force": false, "dry_run": false, "no_features": false,
        "altroot": null, "command": "zpool create tank",
    });
    let made = server.post("/v1/zpool/create", &admin, create).await;
    assert_eq!(made.status, 200, "{}", made.body);
    let make = json!({"name": "prometheus", "role": "viewer"});
    let made = server.post("/v1/keys/make", &admin, make).await;
    let key = made.json()["key"].as_str().unwrap().to_owned();
    let bearer = format!("authorization: Bearer {key}\r\n");
    let answer = server.send("GET", "/metrics", &bearer, "").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(
        answer.header("content-type"),
        Some(telemetry::metrics::CONTENT_TYPE)
    );
    let all = samples(&answer.body).unwrap();
    let value = |name: &str, label: &str, of: &str| {
        let mut all = all.iter();
        let found = all.find(|sample| {
            let has = sample.labels.get(label);
            sample.name == name && (label.is_empty() || has.is_some_and(|has| has == of))
        });
        found.unwrap_or_else(|| panic!("no {name}")).value
    };
    let listed = server
        .post("/v1/zpool/list", &bearer, json!({"names": []}))
        .await
        .json();
    let size = listed["pools"][0]["tree"]["size_bytes"].as_f64().unwrap();
    assert_eq!(value("millpond_pool_size_bytes", "pool", "tank"), size);
    assert!(value("millpond_dataset_used_bytes", "dataset", "tank") > 0.0);
    let limit = value("millpond_cache_limit_bytes", "", "");
    assert!(limit > 0.0 && limit <= value("millpond_cache_limit_max_bytes", "", ""));
    let metadata = value("millpond_cache_size_bytes", "kind", "metadata");
    assert!(metadata > 0.0 && metadata < limit);
    assert_eq!(
        value("millpond_cache_hits_total", "kind", "dedup-table"),
        0.0
    );
    assert!(value("millpond_device_bytes_total", "op", "write") > 0.0);
    assert!(value("process_resident_memory_bytes", "", "") > 1e6);
    assert!(value("process_start_time_seconds", "", "") <= web::now_s() as f64 + 1.0);
    assert_eq!(value("millpond_datasets", "pool", "tank"), 1.0);
    let path = disk.to_str().unwrap();
    assert_eq!(
        value("millpond_device_slow_operations_total", "device", path),
        0.0
    );
    server.stop().await;
}
