//! The proof that names are this host's: what an authority looks for at port 80 of each of them
//! (`http-01`, RFC 8555, section 8.3). It is there while a certificate is being got, and anybody
//! may ask: there is nothing but these proofs, which are no secrets.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Where authorities ask.
const PORT: u16 = 80;
/// What the path of a question begins with.
const PATH: &str = "/.well-known/acme-challenge/";
/// Connections at the same time.
const CONNECTIONS_MAX: usize = 64;
/// How long one may last.
const PATIENCE: Duration = Duration::from_secs(10);

/// By what is asked for.
type Proofs = Arc<Mutex<HashMap<String, String>>>;

/// The proofs, to be asked for while this is kept.
#[derive(Debug)]
pub(super) struct Answers {
    proofs: Proofs,
    task: JoinHandle<()>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn bind(address: Option<SocketAddr>) -> io::Result<TcpListener> {
    if let Some(address) = address {
        return TcpListener::bind(address).await;
    }
    // This one hears both versions, where there is version 6.
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await
        }
        bound => bound,
    }
}

impl Answers {
    /// Listens, at port 80 of every address where none is given.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub(super) async fn listen(address: Option<SocketAddr>) -> Result<Self, String> {
        let listener = bind(address).await.map_err(|error| {
            let place = address.map_or_else(|| "port 80".to_owned(), |at| at.to_string());
            format!(
                "the authority cannot be answered at {place}: {error}; choose another address with \
                 'millpond certificate acme --listen', to which port 80 of the names leads"
            )
        })?;
        let proofs = Proofs::default();
        let task = tokio::spawn(serve(listener, Arc::clone(&proofs)));
        Ok(Self { proofs, task })
    }

    /// Has a proof there.
    pub(super) fn add(&self, token: &str, proof: &str) {
        let mut proofs = self.proofs.lock();
        proofs.insert(token.to_owned(), proof.to_owned());
    }
}

async fn serve(listener: TcpListener, proofs: Proofs) {
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS_MAX {
            let _ = connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let attended = attend(stream, Arc::clone(&proofs));
                connections.spawn(tokio::time::timeout(PATIENCE, attended));
            }
            // Most likely there are no descriptors left; connections that end give some back.
            Err(error) => {
                tracing::warn!("the authority's question is not taken: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn attend(stream: TcpStream, proofs: Proofs) {
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let answer = answer(request.method(), request.uri().path(), &proofs);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a question about a name ended");
    }
}

fn answer(method: &Method, path: &str, proofs: &Proofs) -> Response<Full<Bytes>> {
    let token = path.strip_prefix(PATH).filter(|_| method == Method::GET);
    let proof = token.and_then(|token| proofs.lock().get(token).cloned());
    let status = match &proof {
        Some(_) => StatusCode::OK,
        None => StatusCode::NOT_FOUND,
    };
    let mut answer = Response::new(Full::from(proof.unwrap_or_default()));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("application/octet-stream");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_proof_is_told_to_who_asks_for_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let refused = Answers::listen(Some(address)).await.unwrap_err();
        assert!(refused.contains("--listen"), "{refused}");
        drop(listener);
        let answers = Answers::listen(Some(address)).await.unwrap();
        answers.add("a-token", "a-token.thumb");
        let asked = async |line: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("{line} HTTP/1.1\r\nHost: nas.example\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        let told = asked("GET /.well-known/acme-challenge/a-token").await;
        assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
        assert!(told.ends_with("\r\n\r\na-token.thumb"), "{told}");
        for other in [
            "GET /.well-known/acme-challenge/other",
            "GET /.well-known/acme-challenge/",
            "GET /",
            "POST /.well-known/acme-challenge/a-token",
        ] {
            let told = asked(other).await;
            assert!(told.starts_with("HTTP/1.1 404 "), "{other}: {told}");
        }
    }
}
