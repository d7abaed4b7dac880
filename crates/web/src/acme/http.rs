//! How an authority is asked: by HTTPS, one request after the other, on threads that may wait.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use axum::http::Request;
use bytes::Bytes;
use http_body_util::BodyExt;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer: a chain of certificates has some thousand bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A client for authorities.
pub(super) struct Client {
    agent: Agent,
}

impl Client {
    /// One that trusts whom the system trusts, or who is in a file of certificates in PEM. Reads
    /// files.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(super) fn new(ca_file: Option<&Path>) -> Result<Self, String> {
        let roots = match ca_file {
            None => RootCerts::PlatformVerifier,
            Some(path) => {
                let failed = |why: String| {
                    format!(
                        "the certificates in {} are not used: {why}; give a file of certificates \
                         in PEM",
                        path.display()
                    )
                };
                let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
                let items: Result<Vec<PemItem<'_>>, _> = parse_pem(&text).collect();
                let items = items.map_err(|error| failed(error.to_string()))?;
                let certificates = items.into_iter().filter_map(|item| match item {
                    PemItem::Certificate(certificate) => Some(certificate),
                    _ => None,
                });
                let certificates: Vec<_> = certificates.collect();
                if certificates.is_empty() {
                    return Err(failed("there are none".to_owned()));
                }
                RootCerts::from(certificates)
            }
        };
        let agent = Agent::config_builder()
            .https_only(true)
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build();
        Ok(Self {
            agent: Agent::new_with_config(agent),
        })
    }
}

/// Asks, and waits for the answer.
fn ask(agent: &Agent, request: Request<Bytes>) -> Result<BytesResponse, ureq::Error> {
    let (parts, body) = request.into_parts();
    // What is sent with an empty body has none.
    let answer = match body.is_empty() {
        true => agent.run(Request::from_parts(parts, ()))?,
        false => agent.run(Request::from_parts(parts, body.to_vec()))?,
    };
    let (parts, mut body) = answer.into_parts();
    let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
    Ok(BytesResponse {
        parts,
        body: Box::new(Bytes::from(body)),
    })
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let agent = self.agent.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(never) => match never {},
            };
            let request = Request::from_parts(parts, body);
            let asked = tokio::task::spawn_blocking(move || ask(&agent, request)).await;
            let asked = asked.map_err(|error| Error::Other(error.into()))?;
            asked.map_err(|error| Error::Other(error.into()))
        })
    }
}
