//! Another Millpond: its API over HTTPS, with a key for replications into the target there.
//!
//! Who answers there is known by an authority that this host trusts, or by the fingerprint of its
//! certificate ([`Verifier`]); the key is sent to nobody else. Nothing is asked of a connection
//! twice: each request has one of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::{
    Call, DatasetKind, Failure, FailureKind, JobGet, JobResult, STREAM_JOB_HEADER, STREAM_PROTOCOL,
    Secret, ZfsDestroy, ZfsList, ZfsReceive, ZfsReceiveAbort,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::plan::{Point, TargetSet};
use web::fingerprint;

/// Port of the other side where none is named: the console's.
const PORT: u16 = 8443;
/// Longest answer that is taken, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// How long it may take until a connection is encrypted.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// How long a request may take that is not a stream.
const REQUEST_MAX: Duration = Duration::from_secs(600);
/// How long the other side may take for what it was sent, once that is all.
const LAST_WORDS: Duration = Duration::from_secs(600);
/// How often it is asked whether it is done.
const ASKS: Duration = Duration::from_millis(200);
/// How long the other side may confirm nothing of what it is sent, in milliseconds.
const UNCONFIRMED_MAX_MS: u32 = 300_000;
/// What is asked of datasets.
const PROPERTIES: [&str; 3] = ["guid", "userrefs", "receive_resume_token"];

/// A server, and the key that it takes.
pub(super) struct Tls {
    /// As messages call it.
    host: String,
    address: (String, u16),
    name: ServerName<'static>,
    key: Secret,
    config: Arc<ClientConfig>,
    verifier: Arc<Verifier>,
}

/// A stream that the other side receives.
pub(super) struct Receiving {
    tls: Arc<Tls>,
    answers: ReadHalf<TokioIo<Upgraded>>,
    job: u64,
}

/// What a stream is written to.
pub(super) type Input = WriteHalf<TokioIo<Upgraded>>;

/// Who may answer: who has the certificate of this fingerprint, or else who has one of an
/// authority that this host trusts.
#[derive(Debug)]
struct Verifier {
    pinned: Option<String>,
    trusted: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
    /// The fingerprint of the certificate that was not good enough.
    refused: Mutex<Option<String>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = fingerprint(end_entity);
        let verified = match (&self.pinned, &self.trusted) {
            (Some(pinned), _) if *pinned == found => Ok(ServerCertVerified::assertion()),
            (None, Some(trusted)) => trusted.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            ),
            _ => Err(CertificateError::ApplicationVerificationFailure.into()),
        };
        if verified.is_err() {
            *self.refused.lock() = Some(found);
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

/// Name or address, and port, of `HOST[:PORT]`; an IPv6 address is in brackets.
fn address_of(host: &str) -> Option<(String, u16)> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']')?;
            (
                name,
                port.strip_prefix(':').or(port.is_empty().then_some("")),
            )
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port).filter(|port| !port.is_empty())),
            None => (host, Some("")),
        },
    };
    let port = match port? {
        "" => PORT,
        port => port.parse().ok().filter(|port| *port != 0)?,
    };
    ServerName::try_from(name).ok()?;
    Some((name.to_owned(), port))
}

/// A fingerprint as it is compared; none where it is none. Colons, capitals and `sha256:` before
/// it are understood.
pub(super) fn as_fingerprint(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.strip_prefix("sha256:").unwrap_or(&text);
    let digits = digits.replace(':', "");
    let is_one = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_one.then_some(digits)
}

/// The certificates of authorities that this host trusts.
fn authorities() -> RootCertStore {
    let mut store = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    store.add_parsable_certificates(found.certs);
    store
}

impl Tls {
    /// # Errors
    /// A host, fingerprint or key that cannot be one.
    pub(super) fn new(
        host: &str,
        fingerprint: Option<&str>,
        key: Option<&Secret>,
    ) -> Result<Arc<Self>, Failure> {
        let invalid = |why: String| Failure::new(FailureKind::Invalid, why);
        let unusable = || invalid(format!("'{host}' is no HOST or HOST:PORT"));
        let address = address_of(host).ok_or_else(unusable)?;
        let name = ServerName::try_from(address.0.clone()).map_err(|_| unusable())?;
        let key = key.filter(|key| !key.0.is_empty()).ok_or_else(|| {
            invalid(format!(
                "{host}: there is no key for it; make one there with 'millpond apikey make NAME \
                 --replica DATASET', and give it here with 'millpond replicate --rekey'"
            ))
        })?;
        let is_header = |byte: u8| byte.is_ascii_graphic();
        if !key.0.bytes().all(is_header) {
            return Err(invalid(format!(
                "{host}: the key has characters that no key has; it is one line that begins with \
                 'mpk_'"
            )));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trusted = match fingerprint {
            Some(_) => None,
            None => {
                let built = WebPkiServerVerifier::builder_with_provider(
                    Arc::new(authorities()),
                    Arc::clone(&provider),
                );
                built.build().ok()
            }
        };
        let verifier = Arc::new(Verifier {
            pinned: fingerprint.map(str::to_owned),
            trusted,
            provider: Arc::clone(&provider),
            refused: Mutex::new(None),
        });
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(format!("TLS cannot be used: {error}")))?;
        let config = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::<Verifier>::clone(&verifier))
            .with_no_client_auth();
        Ok(Arc::new(Self {
            host: host.to_owned(),
            address,
            name,
            key: key.clone(),
            config: Arc::new(config),
            verifier,
        }))
    }

    fn lost(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::new(FailureKind::Io, format!("{}: {why}", self.host))
    }

    /// What the other side says failed. That it can be reached is known by then.
    fn told(&self, failure: Failure) -> Failure {
        let host = &self.host;
        let message = match failure.kind {
            FailureKind::Unauthenticated => format!(
                "{host}: the key is not known there; make one with 'millpond apikey make NAME \
                 --replica DATASET', and give it here with 'millpond replicate --rekey'"
            ),
            _ => format!("{host}: {}", failure.message),
        };
        // What was stopped there, perhaps with the server, was not stopped here: it is tried again.
        let kind = match failure.kind {
            FailureKind::Io | FailureKind::Canceled => FailureKind::Other,
            kind => kind,
        };
        Failure {
            kind,
            message,
            ..failure
        }
    }

    /// A connection to who may answer.
    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let connecting = async {
            let (name, port) = &self.address;
            let socket = TcpStream::connect((name.as_str(), *port)).await;
            let socket = socket.map_err(|error| {
                let why = format!("port {port} cannot be reached: {error}; is Millpond up there?");
                self.lost(&why)
            })?;
            device::watch_over(&socket).map_err(|error| self.lost(&error))?;
            rustix::net::sockopt::set_tcp_user_timeout(&socket, UNCONFIRMED_MAX_MS)
                .map_err(|error| self.lost(&error))?;
            let connector = TlsConnector::from(Arc::clone(&self.config));
            let stream = connector.connect(self.name.clone(), socket).await;
            stream.map_err(|error| self.untrusted(&error))
        };
        let stream = tokio::time::timeout(CONNECT_MAX, connecting).await;
        let stream = stream.map_err(|_| self.lost(&"it does not answer"))??;
        let shaken = handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| self.lost(&error))?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    /// Why no encrypted connection came to be.
    fn untrusted(&self, error: &std::io::Error) -> Failure {
        let Some(found) = self.verifier.refused.lock().clone() else {
            return self.lost(error);
        };
        let why = match &self.verifier.pinned {
            Some(_) => format!(
                "its certificate is another one than was given: sha256:{found}; if 'millpond \
                 console' there says the same, give it with 'millpond replicate --rekey NAME \
                 --fingerprint'"
            ),
            None => format!(
                "its certificate is none that this host trusts ({error}): sha256:{found}; if \
                 'millpond console' there says the same, give it with '--fingerprint'"
            ),
        };
        self.lost(&why)
    }

    /// Sends a request; gives the head of the answer, and what came behind it.
    async fn send<C: Call>(
        &self,
        call: &C,
        is_switch: bool,
    ) -> Result<hyper::Response<hyper::body::Incoming>, Failure> {
        let (name, port) = &self.address;
        let host = match name.contains(':') {
            true => format!("[{name}]:{port}"),
            false => format!("{name}:{port}"),
        };
        let mut request = Request::post(C::PATH)
            .header(HOST, host)
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, format!("Bearer {}", self.key.0));
        if is_switch {
            request = request
                .header(CONNECTION, "upgrade")
                .header(UPGRADE, STREAM_PROTOCOL);
        }
        let body = serde_json::to_vec(call).map_err(|error| self.lost(&error))?;
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| self.lost(&error))?;
        let mut sender = self.connect().await?;
        let answer = sender.send_request(request).await;
        answer.map_err(|error| self.lost(&error))
    }

    /// What an answer says, whole.
    async fn body(&self, answer: hyper::Response<hyper::body::Incoming>) -> Result<Bytes, Failure> {
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect();
        let body = body.await.map_err(|error| self.lost(&error))?;
        Ok(body.to_bytes())
    }

    /// What an answer that is no success says.
    async fn refusal(&self, answer: hyper::Response<hyper::body::Incoming>) -> Failure {
        let status = answer.status();
        let body = match self.body(answer).await {
            Ok(body) => body,
            Err(lost) => return lost,
        };
        match serde_json::from_slice(&body) {
            Ok(failure) => self.told(failure),
            Err(_) => {
                let why = format!("it answers with status {status}; is Millpond there?");
                Failure::new(FailureKind::Other, format!("{}: {why}", self.host))
            }
        }
    }

    async fn call<C: Call>(&self, call: &C) -> Result<C::Reply, Failure> {
        let asking = async {
            let answer = self.send(call, false).await?;
            if answer.status() != StatusCode::OK {
                return Err(self.refusal(answer).await);
            }
            let body = self.body(answer).await?;
            serde_json::from_slice(&body).map_err(|_| self.not_understood())
        };
        let asked = tokio::time::timeout(REQUEST_MAX, asking).await;
        asked.unwrap_or_else(|_| Err(self.lost(&format!("{} has no answer", C::PATH))))
    }

    fn not_understood(&self) -> Failure {
        let message = format!(
            "{}: its answer is not understood; have the same version of Millpond on both sides",
            self.host
        );
        Failure::new(FailureKind::Other, message)
    }

    /// What is at and below a dataset, or at it alone.
    pub(super) async fn list(
        &self,
        dataset: &str,
        is_recursive: bool,
    ) -> Result<BTreeMap<String, TargetSet>, Failure> {
        let call = ZfsList {
            names: vec![dataset.to_owned()],
            depth: (!is_recursive).then_some(1),
            kinds: vec![
                DatasetKind::Filesystem,
                DatasetKind::Volume,
                DatasetKind::Snapshot,
            ],
            properties: Some(PROPERTIES.map(str::to_owned).to_vec()),
            received: false,
        };
        let reply = match self.call(&call).await {
            Ok(reply) => reply,
            Err(failure) if failure.kind == FailureKind::NotFound => return Ok(BTreeMap::new()),
            Err(failure) => return Err(failure),
        };
        if let Some(failure) = reply.failures.into_iter().next() {
            return match failure.kind {
                FailureKind::NotFound => Ok(BTreeMap::new()),
                _ => Err(self.told(failure)),
            };
        }
        let mut found = listed(&reply.datasets).ok_or_else(|| self.not_understood())?;
        if !is_recursive {
            found.retain(|name, _| name == dataset);
        }
        Ok(found)
    }

    /// Begins to receive; what is written to what this gives is the stream.
    pub(super) async fn receive(
        self: &Arc<Self>,
        call: &ZfsReceive,
    ) -> Result<(Receiving, Input), Failure> {
        let beginning = async {
            let answer = self.send(call, true).await?;
            if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                return Err(self.refusal(answer).await);
            }
            let job = answer.headers().get(STREAM_JOB_HEADER);
            let job = job.and_then(|job| job.to_str().ok()?.parse().ok());
            let job = job.ok_or_else(|| self.not_understood())?;
            let switched = hyper::upgrade::on(answer).await;
            let stream = switched.map_err(|error| self.lost(&error))?;
            Ok((job, stream))
        };
        let begun = tokio::time::timeout(REQUEST_MAX, beginning).await;
        let (job, stream) = begun.map_err(|_| self.lost(&"it does not begin to receive"))??;
        let (answers, input) = tokio::io::split(TokioIo::new(stream));
        let receiving = Receiving {
            tls: Arc::clone(self),
            answers,
            job,
        };
        Ok((receiving, input))
    }

    /// Gives up what an interrupted receive left.
    pub(super) async fn abort(&self, call: &ZfsReceiveAbort) -> Result<(), Failure> {
        self.call(call).await.map(drop)
    }

    /// Destroys snapshots of a dataset; gives those that could not be, and why.
    pub(super) async fn destroy(
        &self,
        dataset: &str,
        names: &[String],
        command: &str,
    ) -> Result<Vec<(String, String)>, Failure> {
        let one = |target: String| ZfsDestroy {
            target,
            recursive: false,
            dependents: false,
            force: false,
            dry_run: false,
            defer: false,
            command: command.to_owned(),
        };
        match self
            .call(&one(format!("{dataset}@{}", names.join(","))))
            .await
        {
            Ok(_) => return Ok(Vec::new()),
            Err(lost) if lost.kind == FailureKind::Io => return Err(lost),
            Err(_) => {}
        }
        // One that is in the way keeps the others.
        let mut left = Vec::new();
        for name in names {
            let target = format!("{dataset}@{name}");
            match self.call(&one(target.clone())).await {
                Ok(_) => {}
                Err(gone) if gone.kind == FailureKind::NotFound => {}
                Err(lost) if lost.kind == FailureKind::Io => return Err(lost),
                Err(failure) => left.push((target, failure.message)),
            }
        }
        Ok(left)
    }
}

impl Receiving {
    /// Waits for the end, after the stream's.
    pub(super) async fn end(mut self) -> Result<(), Failure> {
        let tls = Arc::clone(&self.tls);
        let ended = tokio::time::timeout(LAST_WORDS, self.outcome()).await;
        ended.unwrap_or_else(|_| Err(tls.lost(&"it does not end to receive")))
    }

    async fn outcome(&mut self) -> Result<(), Failure> {
        // It says nothing, and leaves when it is done. What is wrong with the connection is of no
        // interest: the job knows what was received.
        let mut nothing = [0; 512];
        while let Ok(1..) = self.answers.read(&mut nothing).await {}
        while !self
            .tls
            .call(&JobGet { id: self.job })
            .await?
            .state
            .is_ended()
        {
            tokio::time::sleep(ASKS).await;
        }
        self.tls.call(&JobResult { id: self.job }).await.map(drop)
    }
}

/// What a list of datasets says.
fn listed(datasets: &[api::DatasetReport]) -> Option<BTreeMap<String, TargetSet>> {
    let mut out: BTreeMap<String, TargetSet> = BTreeMap::new();
    for report in datasets {
        let value = |name: &str| {
            report
                .properties
                .get(name)
                .map(|found| found.value.as_str())
        };
        let Some((head, short)) = report.name.split_once('@') else {
            let set = out.entry(report.name.clone()).or_default();
            let token = value("receive_resume_token");
            set.token = token
                .filter(|token| token.starts_with("1-"))
                .map(str::to_owned);
            continue;
        };
        let point = Point {
            name: short.to_owned(),
            guid: value("guid")?.parse().ok()?,
            txg: report.create_txg,
            is_held: value("userrefs").is_some_and(|holds| holds != "0" && holds != "-"),
        };
        let set = out.entry(head.to_owned()).or_default();
        set.snapshots.push(point);
    }
    for set in out.values_mut() {
        set.snapshots.sort_by_key(|point| point.txg);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_a_port_or_the_usual_one() {
        let at = |host: &str| address_of(host).map(|(name, port)| format!("{name} {port}"));
        assert_eq!(at("nas").as_deref(), Some("nas 8443"));
        assert_eq!(at("nas.lan:443").as_deref(), Some("nas.lan 443"));
        assert_eq!(at("192.0.2.1").as_deref(), Some("192.0.2.1 8443"));
        assert_eq!(at("[2001:db8::1]").as_deref(), Some("2001:db8::1 8443"));
        assert_eq!(at("[2001:db8::1]:1").as_deref(), Some("2001:db8::1 1"));
        for bad in [
            "",
            "a b",
            "nas:",
            "nas:0",
            "nas:x",
            "nas:70000",
            "[::1",
            "[::1]x",
            "me@nas",
        ] {
            assert_eq!(at(bad), None, "{bad}");
        }
    }

    #[test]
    fn fingerprints_are_understood_as_programs_print_them() {
        let digits = "0123456789abcdef".repeat(4);
        let colons: Vec<String> = digits
            .to_uppercase()
            .as_bytes()
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).into_owned())
            .collect();
        for text in [
            digits.clone(),
            format!("sha256:{digits}"),
            format!(" {}\n", colons.join(":")),
            format!("SHA256:{}", colons.join(":")),
        ] {
            assert_eq!(as_fingerprint(&text).as_ref(), Some(&digits), "{text}");
        }
        for bad in ["", "sha256:", &digits[1..], &format!("{}g", &digits[1..])] {
            assert_eq!(as_fingerprint(bad), None, "{bad}");
        }
    }

    /// A run is lost with the connection, and stopped by who is here; neither by what the other
    /// side says of its own work.
    #[test]
    fn what_is_stopped_there_is_tried_again() {
        let key = Secret("mpk_a".into());
        let tls = Tls::new("nas", None, Some(&key)).expect("it may be one");
        for kind in [FailureKind::Canceled, FailureKind::Io] {
            let told = tls.told(Failure::new(kind, "why"));
            assert_eq!(
                (told.kind, &*told.message),
                (FailureKind::Other, "nas: why")
            );
        }
        assert_eq!(tls.lost(&"gone").kind, FailureKind::Io);
    }

    #[test]
    fn keys_are_neither_missing_nor_told() {
        let refused = Tls::new("nas", None, None).err().expect("no key");
        assert!(refused.message.contains("apikey make"), "{refused}");
        let odd = Secret("mpk_a\r\nX: y".into());
        let refused = Tls::new("nas", None, Some(&odd)).err().expect("no key");
        assert!(!refused.message.contains("mpk_a"), "{refused}");
    }
}
