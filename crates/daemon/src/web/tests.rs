//! The server over the network, as browsers and programs meet it: HTTPS and JSON, without the types
//! of `api`.

use std::path::PathBuf;

use api::Role;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::state::State;

const PASSWORD: &str = "correct horse battery";

struct Server {
    service: Arc<Service>,
    listening: Listening,
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
        let value = set.strip_prefix("millpond_session=")?.split(';').next()?;
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
            "cookie: a=b; millpond_session={}\r\nx-millpond-csrf: {}\r\n",
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
        iscsi_insecure: false,
        nfs_address: ([127, 0, 0, 1], 0).into(),
        nfs_insecure: false,
        nfs_portmapper: false,
        smb: crate::SmbListen::Off,
        https: Https::At(([127, 0, 0, 1], 0).into()),
        certificate: None,
        cache_bytes: Some(64 << 20),
    }
}

impl Server {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path().join("state"));
        let state = State::open(&options.state).unwrap();
        let service = Service::new(&options, state).await.unwrap();
        let listening = listen(&service, &options).await.unwrap().unwrap();
        let address = service.web.listening.lock().unwrap();
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
            let added = server
                .service
                .web
                .people
                .add(name, role, Secret(PASSWORD.into()), false);
            added.await.unwrap();
        }
        server
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// A connection whose certificate is checked.
    async fn connect(&self) -> TlsStream<TcpStream> {
        let certificate = CertificateDer::from_pem_file(self.state().join("https-certificate.pem"));
        let mut roots = RootCertStore::empty();
        roots.add(certificate.unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let configuration = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
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
    let token = link.setup_token.unwrap().0;
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
    let cookie = format!("cookie: millpond_session={}\r\n", viewer.cookie);
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
            .starts_with("millpond_session=; Max-Age=0")
    );
    assert_eq!(info(viewer.headers()).await.status, 401);
    assert_eq!(info(other.headers()).await.status, 200);
    server.stop().await;
}
