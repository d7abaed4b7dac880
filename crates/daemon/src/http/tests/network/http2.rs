//! Many requests on one connection, as browsers make them (HTTP/2).

use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::TokioExecutor;

use super::*;

/// Streams of events: more than a browser has connections for, with HTTP/1.1.
const STREAMS: usize = 9;

struct Client {
    requests: SendRequest<Full<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
    authority: String,
}

impl Client {
    async fn new(server: &Server) -> Self {
        let stream = server.connect_by(&["h2", "http/1.1"]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (requests, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        Self {
            requests,
            connection: tokio::spawn(connection),
            authority: format!("localhost:{}", server.address.port()),
        }
    }

    /// Asks, with the session's headers; the answer may go on.
    async fn ask(
        &mut self,
        session: Option<&Session>,
        (method, path, body): (&str, &str, &str),
        more: &[(&str, &str)],
    ) -> hyper::Response<Incoming> {
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.authority));
        if let Some(Session { cookie, csrf }) = session {
            request = request
                .header("cookie", format!("__Host-millpond_session={cookie}"))
                .header("x-millpond-csrf", csrf);
        }
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned())));
        self.requests.ready().await.unwrap();
        self.requests.send_request(request.unwrap()).await.unwrap()
    }
}

/// Reads on until that was told.
async fn read_until(stream: &mut Incoming, told: &str) {
    let mut all = String::new();
    while !all.contains(told) {
        let frame = stream.frame().await.expect("it goes on").unwrap();
        all += &String::from_utf8_lossy(frame.data_ref().unwrap());
    }
}

async fn whole(answer: hyper::Response<Incoming>) -> Bytes {
    answer.into_body().collect().await.unwrap().to_bytes()
}

/// Goal: nine pages that look share a connection, each hears at once, and requests are answered
/// meanwhile; what is long comes compressed, streams and secrets do not. Method: a client by HTTP/2
/// that takes gzip for everything.
#[tokio::test(flavor = "multi_thread")]
async fn one_connection_carries_streams_and_requests() {
    let server = Server::with_users().await;
    let session = server.log_in("admin").await;
    let mut client = Client::new(&server).await;
    let gzip = [("accept-encoding", "gzip, br")];
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let events = ("GET", "/v1/events?kind=own", "");
        let answer = client.ask(Some(&session), events, &gzip).await;
        assert_eq!(answer.status(), 200);
        assert!(!answer.headers().contains_key("content-encoding"));
        let mut stream = answer.into_body();
        read_until(&mut stream, "stream.opened").await;
        streams.push(stream);
    }
    let names = vec!["tank/new".to_owned()];
    let created = api::EventKind::DatasetsCreated { names };
    server.service.serving.events.tell(created);
    for stream in &mut streams {
        read_until(stream, "tank/new").await;
    }
    let info = ("POST", "/v1/server/info", "{}");
    assert_eq!(client.ask(Some(&session), info, &[]).await.status(), 200);
    let long = ("GET", api::OPENAPI_PATH, "");
    let answer = client.ask(Some(&session), long, &gzip).await;
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    assert_eq!(answer.headers()["vary"], "accept-encoding");
    let small = whole(answer).await;
    let plain = whole(client.ask(Some(&session), long, &[]).await).await;
    assert!(small.starts_with(&[0x1f, 0x8b]) && small.len() * 4 < plain.len());
    let page = client.ask(None, ("GET", "/", ""), &gzip).await;
    let is_small = page.headers().get("content-encoding").is_some();
    assert_eq!(is_small, console::is_built());

    // Pages from elsewhere are refused as they are by HTTP/1.1, and who has no session.
    let foreign = [("origin", "https://evil.example")];
    let refused = client.ask(Some(&session), info, &foreign).await;
    assert_eq!(refused.status(), 403);
    let own = format!("https://{}", client.authority);
    let own = [("origin", own.as_str()), ("sec-fetch-site", "same-origin")];
    assert_eq!(client.ask(Some(&session), info, &own).await.status(), 200);
    assert_eq!(client.ask(None, info, &own).await.status(), 401);

    // A secret is the last thing that a connection brings: it ends, and streams end with it, whole.
    let login = json!({"user": "viewer", "password": PASSWORD}).to_string();
    let answer = client
        .ask(None, ("POST", "/v1/session/login", &login), &gzip)
        .await;
    assert_eq!(answer.status(), 200);
    let headers = answer.headers();
    assert!(!headers.contains_key("content-encoding") && !headers.contains_key("connection"));
    assert!(whole(answer).await.starts_with(b"{"));
    for stream in streams {
        stream.collect().await.expect("it ends, and is not cut off");
    }
    client.connection.await.unwrap().unwrap();
    server.stop().await;
}

/// Goal: who asks for nothing is left, whether they began or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_for_nothing_is_left() {
    let bounds = web::Bounds {
        handshake: Duration::from_secs(2),
        headers: Duration::from_secs(2),
    };
    let server = Server::start_within(bounds).await;
    let mut silent = server.connect_by(&["h2"]).await;
    let mut buffer = Vec::new();
    let _ = silent.read_to_end(&mut buffer).await;
    let mut client = Client::new(&server).await;
    let info = ("POST", "/v1/session/info", "{}");
    assert_eq!(client.ask(None, info, &[]).await.status(), 200);
    client.connection.await.unwrap().unwrap();
    server.stop().await;
}
