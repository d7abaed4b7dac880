//! Fetching a key by HTTPS or HTTP (`get_key_material_https`, lib/libzfs/libzfs_crypto.c, which
//! has libcurl do it).
//!
//! Environment, with the names of fetch(3) as there: `SSL_CA_CERT_FILE` and `SSL_CA_CERT_PATH` have
//! the certificates that servers are trusted by, instead of the system's; `SSL_CLIENT_CERT_FILE`
//! and `SSL_CLIENT_KEY_FILE` are shown to servers that ask who wants the key.
//!
//! A server whose own certificate is in `SSL_CA_CERT_FILE` is trusted as well, as libcurl with
//! OpenSSL does it: one that was signed by itself, and maybe says its name in the way of old alone.
//! From HTTPS no redirection leads to HTTP: a key would be readable on its way.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{HOST, LOCATION, USER_AGENT};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};
use zeroize::Zeroizing;

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest passphrase, and an end of line.
const BYTES_MAX: usize = 514;
/// How many redirections are followed.
const REDIRECTIONS_MAX: usize = 30;

/// What is at a URL, `https://...` or `http://...`, if that is no longer than a key may be.
///
/// # Errors
/// Of the URL, of getting there, and of what the server answers; they say which URL it is about.
pub fn get(url: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let followed = tokio::time::timeout(PATIENCE, follow(url));
        followed.await.unwrap_or_else(|_| {
            let seconds = PATIENCE.as_secs();
            Err(anyhow!(
                "Failed to connect to {url}: no answer in {seconds} s"
            ))
        })
    })
}

/// What a server says.
enum Answer {
    Body(Zeroizing<Vec<u8>>),
    Elsewhere(Uri),
}

async fn follow(url: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut at: Uri = url.parse().with_context(|| format!("Invalid URI {url}"))?;
    for _ in 0..=REDIRECTIONS_MAX {
        match ask(&at).await? {
            Answer::Body(body) => return Ok(body),
            Answer::Elsewhere(next) => at = next,
        }
    }
    bail!("Couldn't GET {url}: it leads from one place to the next without end")
}

async fn ask(at: &Uri) -> anyhow::Result<Answer> {
    let is_https = at.scheme_str() == Some("https");
    let host = at.host().unwrap_or_default();
    if host.is_empty() || !(is_https || at.scheme_str() == Some("http")) {
        bail!("Invalid URI {at}; give https://HOST/PATH");
    }
    let failed = || format!("Failed to connect to {at}");
    let port = at.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let connection = TcpStream::connect((name, port)).await;
    let connection = connection.with_context(failed)?;
    if !is_https {
        return speak(connection, at).await;
    }
    let server = ServerName::try_from(name.trim_end_matches('.').to_owned());
    let server = server.with_context(failed)?;
    let connector = TlsConnector::from(Arc::new(configuration()?));
    let connection = connector.connect(server, connection).await;
    speak(connection.with_context(failed)?, at).await
}

async fn speak<S>(connection: S, at: &Uri) -> anyhow::Result<Answer>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = || format!("Failed to connect to {at}");
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(connection));
    let (mut sender, connection) = handshake.await.with_context(failed)?;
    // It ends with the sender and the answer.
    tokio::spawn(connection);
    let host = match at.port_u16() {
        Some(port) => format!("{}:{port}", at.host().unwrap_or_default()),
        None => at.host().unwrap_or_default().to_owned(),
    };
    let request = Request::get(at.path_and_query().map_or("/", PathAndQuery::as_str))
        .header(HOST, host)
        .header(USER_AGENT, concat!("millpond/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await.with_context(failed)?;
    let status = answer.status();
    let location = answer.headers().get(LOCATION);
    if let (true, Some(location)) = (status.is_redirection(), location) {
        let location = String::from_utf8_lossy(location.as_bytes());
        return Ok(Answer::Elsewhere(redirected(at, &location)?));
    }
    if !status.is_success() {
        bail!("Couldn't GET {at}: {}", status.as_u16());
    }
    let body = Limited::new(answer.into_body(), BYTES_MAX).collect().await;
    let body = body.map_err(|error| anyhow!("Couldn't GET {at}: {error}; is it a key?"))?;
    Ok(Answer::Body(Zeroizing::new(body.to_bytes().to_vec())))
}

/// Where a redirection leads (RFC 3986, section 5.2, without dots in paths).
fn redirected(from: &Uri, location: &str) -> anyhow::Result<Uri> {
    let (scheme, authority) = (
        from.scheme_str().unwrap_or_default(),
        from.authority().map_or("", |authority| authority.as_str()),
    );
    let text = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let above = from.path().rsplit_once('/').map_or("", |(above, _)| above);
        format!("{scheme}://{authority}{above}/{location}")
    };
    let to: Uri = text
        .parse()
        .with_context(|| format!("Invalid URI {text}"))?;
    if scheme == "https" && to.scheme_str() != Some("https") {
        bail!("Couldn't GET {from}: it leads to {to}, where a key can be read on its way");
    }
    Ok(to)
}

/// A path that the environment names.
fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.with_context(|| format!("certificates in {} cannot be read", path.display()))
}

/// The certificates that servers are trusted by.
fn trusted() -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let (file, directory) = (named("SSL_CA_CERT_FILE"), named("SSL_CA_CERT_PATH"));
    if file.is_none() && directory.is_none() {
        return Ok(rustls_native_certs::load_native_certs().certs);
    }
    let mut all = match &file {
        Some(file) => certificates(file)?,
        None => Vec::new(),
    };
    let entries = directory.map(std::fs::read_dir).transpose();
    for entry in entries.context("SSL_CA_CERT_PATH")?.into_iter().flatten() {
        // Beside certificates there may be anything.
        all.extend(certificates(&entry?.path()).unwrap_or_default());
    }
    Ok(all)
}

fn configuration() -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Verifier::new(trusted()?, &provider)?);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some(certificate) = named("SSL_CLIENT_CERT_FILE") else {
        return Ok(builder.with_no_client_auth());
    };
    let key = named("SSL_CLIENT_KEY_FILE").unwrap_or_else(|| certificate.clone());
    let key = PrivateKeyDer::from_pem_file(&key)
        .with_context(|| format!("the key in {} cannot be read", key.display()))?;
    Ok(builder.with_client_auth_cert(certificates(&certificate)?, key)?)
}

/// Says whether a server's certificate is trusted.
#[derive(Debug)]
struct Verifier {
    roots: Vec<CertificateDer<'static>>,
    /// By chains; none where there is nothing that one could end with.
    chains: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(
        roots: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> anyhow::Result<Self> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.iter().cloned());
        let chains = match store.is_empty() {
            true => None,
            false => {
                let provider = Arc::clone(provider);
                Some(
                    WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider)
                        .build()?,
                )
            }
        };
        Ok(Self {
            roots,
            chains,
            provider: Arc::clone(provider),
        })
    }
}

/// Whether a certificate that is trusted itself is of this server, and good now. Names are those
/// of RFC 6125; only where it has none of them, its common name counts.
fn is_of(
    certificate: &CertificateDer<'_>,
    server: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), CertificateError> {
    let bad = CertificateError::BadEncoding;
    let parsed = X509Certificate::from_der(certificate);
    let Ok((_, parsed)) = parsed else {
        return Err(bad);
    };
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let Ok(time) = ASN1Time::from_timestamp(seconds) else {
        return Err(bad);
    };
    if time < parsed.validity().not_before {
        return Err(CertificateError::NotValidYet);
    }
    if time > parsed.validity().not_after {
        return Err(CertificateError::Expired);
    }
    match parsed.subject_alternative_name() {
        Ok(None) => {}
        Ok(Some(_)) => {
            let Ok(end) = ParsedCertificate::try_from(certificate) else {
                return Err(bad);
            };
            let named = rustls::client::verify_server_name(&end, server);
            return named.map_err(|_| CertificateError::NotValidForName);
        }
        Err(_) => return Err(bad),
    }
    let server = server.to_str();
    let mut names = parsed.subject().iter_common_name();
    let is_named = names.any(|name| {
        let name = name.as_str();
        name.is_ok_and(|name| name.eq_ignore_ascii_case(&server))
    });
    match is_named {
        true => Ok(()),
        false => Err(CertificateError::NotValidForName),
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.roots.iter().any(|root| root == end) {
            is_of(end, server, now).map_err(rustls::Error::InvalidCertificate)?;
            return Ok(ServerCertVerified::assertion());
        }
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let chains = self.chains.as_ref().ok_or(unknown)?;
        chains.verify_server_cert(end, intermediates, server, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_lead_on_but_not_out_of_https() {
        let from: Uri = "https://keys.example:8443/of/tank".parse().unwrap();
        let to = |location: &str| redirected(&from, location).map(|to| to.to_string());
        let ok = |location: &str| to(location).unwrap();
        assert_eq!(ok("/new"), "https://keys.example:8443/new");
        assert_eq!(ok("new?a=b"), "https://keys.example:8443/of/new?a=b");
        assert_eq!(ok("//other/x"), "https://other/x");
        assert_eq!(ok("https://other/x"), "https://other/x");
        assert!(to("http://other/x").is_err());
        let from: Uri = "http://keys.example/a".parse().unwrap();
        let to = redirected(&from, "https://other/x").unwrap();
        assert_eq!(to.to_string(), "https://other/x");
    }

    #[test]
    fn other_urls_are_refused_at_once() {
        for url in ["ftp://host/x", "https:///x", "https://", "/x"] {
            assert!(get(url).is_err(), "{url}");
        }
    }
}
