//! The API and the console over the network: HTTPS, for who has a session or a key.
//!
//! Both doors are here: the Unix socket, where the kernel says who asks ([`caller`]), and HTTPS.
//! What is answered is made elsewhere, by a router that [`listen`] gets; this is the gate before
//! it. A request over the network comes from a page of ours or from a program, not from a page of
//! somebody else's ([`gate`]); it has a session ([`sessions`]) or an API key ([`people`]), and
//! their role has to suffice ([`api::Call::ROLE`]). Whoever has neither may log in ([`login`]) and
//! get the console's files, and nothing else.
//!
//! Nobody is trusted before that, so each connection has bounds: how many there are, and of one
//! address, how long it takes to begin, to say what it wants and to take what it is answered
//! ([`patience`], and [`http2`] for connections by HTTP/2). A stream that is received has a bound
//! on its silence.
//!
//! Requests hold passwords and keys. What a connection has in memory for them, decrypted and as it
//! was sent, is overwritten when it is freed ([`device::wipe_freed`]); a connection that brought
//! something secret is not kept for the next request ([`message::end_after_secrets`]).

#![forbid(unsafe_code)]

mod acme;
mod audit;
pub mod caller;
mod compress;
mod files;
mod gate;
mod http2;
mod limits;
mod login;
pub mod message;
mod patience;
mod people;
mod sessions;
mod tls;
mod tokens;
mod totp;
mod users;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use api::{
    AcmeSettings, AuditVia, CertificateRenewReply, CertificateStatusReply, ConsoleLinkReply, Empty,
    Failure, FailureKind, Replica, Role, Secret,
};
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use device::Random;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

pub use audit::{Audit, Room, about};
pub use login::routes as session_routes;
pub use patience::Bounded;
pub use people::now_s;
pub use tokens::fingerprint;

use caller::Door;
use host::table_file::FileProblem;
use limits::Limits;
use patience::Patient;
use people::People;
use sessions::Sessions;
use tokens::Hash;

/// Connections of all together.
const CONNECTIONS_MAX: usize = 1024;
/// Connections of one address.
const ADDRESS_CONNECTIONS_MAX: usize = 64;
/// Requests of one user, or one key, that are worked at; others wait.
const REQUESTS_MAX: usize = 32;
/// Most bytes of a request's headers.
const HEADERS_BYTES_MAX: usize = 64 << 10;
/// How long connections have for their last answers when the server leaves.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// How many ports are tried where the usual one is taken.
const PORTS_TRIED: u16 = 100;
/// The file with the link that makes the first user, in the state directory.
const LINK_FILE: &str = "setup-link";

/// Who may use the server over the network, and what they did.
pub struct Web {
    people: People,
    sessions: Sessions,
    limits: Limits,
    /// The record of changes.
    pub audit: Arc<Audit>,
    random: Arc<dyn Random>,
    hostname: String,
    /// What makes the first user, while there is none.
    setup: Mutex<Option<String>>,
    /// Where the link with that is, for who owns the state directory.
    link_file: PathBuf,
    /// Where the console is.
    listening: Mutex<Option<SocketAddr>>,
    /// What connections are answered with, while it is there.
    certificate: Mutex<Option<Arc<tls::Certificate>>>,
    acme: Arc<acme::Acme>,
    /// Requests of a user or key that are worked at.
    requests: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// Where the API and the console are offered over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Https {
    /// Nowhere.
    Off,
    /// At this address.
    At(SocketAddr),
    /// At this address, or another port where that one is taken.
    Near(SocketAddr),
}

/// How the API and the console are offered over the network.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Where.
    pub https: Https,
    /// The state directory, which has the server's own certificate.
    pub directory: PathBuf,
    /// Files of another certificate and of its key, in PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// How long clients may take.
    pub bounds: Bounds,
}

/// Why the API and the console cannot be offered over the network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The network's address for the console and the API cannot be had.
    #[error(
        "the console cannot listen at {address}: {source}; choose another address with --https \
         ADDRESS:PORT, or --https off"
    )]
    Https {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// There is no certificate.
    #[error("{why}; give another one with --certificate and --key, or choose --https off")]
    Certificate {
        /// Why.
        why: String,
    },
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Until its connection is encrypted.
    pub handshake: Duration,
    /// Then until it is known what it asks for.
    pub headers: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(20),
        }
    }
}

/// How a user has shown who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// With a session, of which this is the hash.
    Session(Hash),
    /// With the API key of this number.
    Key(String),
}

/// Somebody at the other end of a connection over the network, who has shown who they are.
pub struct Remote {
    /// The name.
    pub user: String,
    /// What they may do.
    pub role: Role,
    /// They have the key of a replication, which is for this and nothing else.
    pub replica: Option<Replica>,
    /// Where they are.
    pub address: IpAddr,
    by: By,
    requests: Arc<Semaphore>,
    web: Arc<Web>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("Remote");
        let out = out.field("user", &self.user).field("role", &self.role);
        out.field("address", &self.address).finish_non_exhaustive()
    }
}

impl Remote {
    /// Whether they still may do what they might when they asked.
    pub fn is_current(&self) -> bool {
        let role = match &self.by {
            By::Session(key) if !self.web.sessions.goes_on(key) => None,
            By::Session(_) => self.web.people.role_of(&self.user),
            By::Key(id) => self.web.people.role_of_key(id),
        };
        role == Some(self.role)
    }

    /// How they came.
    pub fn via(&self) -> AuditVia {
        match self.by {
            By::Session(_) => AuditVia::Session,
            By::Key(_) => AuditVia::Key,
        }
    }

    /// The key that shows who they are, by its ID.
    pub fn key(&self) -> Option<&str> {
        match &self.by {
            By::Session(_) => None,
            By::Key(id) => Some(id),
        }
    }

    /// Waits until a request may be worked at.
    pub async fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.requests).acquire_owned().await.ok()
    }
}

impl Web {
    /// Reads what the state directory has.
    pub fn new(directory: &Path, random: Arc<dyn Random>, hostname: &str) -> Arc<Self> {
        let link_file = directory.join(LINK_FILE);
        // One of an earlier process is good for nothing.
        remove_link(&link_file);
        Arc::new(Self {
            people: People::load(directory, Arc::clone(&random)),
            sessions: Sessions::new(Arc::clone(&random)),
            limits: Limits::default(),
            audit: Arc::new(Audit::new(directory)),
            random,
            hostname: hostname.to_owned(),
            setup: Mutex::new(None),
            link_file,
            listening: Mutex::new(None),
            certificate: Mutex::new(None),
            acme: Arc::new(acme::Acme::load(directory)),
            requests: Mutex::default(),
        })
    }

    /// Somebody who has shown who they are.
    fn remote(self: &Arc<Self>, user: String, role: Role, address: IpAddr, by: By) -> Remote {
        let whose = match &by {
            By::Session(_) => format!("user {user}"),
            By::Key(id) => format!("key {id}"),
        };
        let mut all = self.requests.lock();
        let requests = all.get(&whose).and_then(Weak::upgrade).unwrap_or_else(|| {
            all.retain(|_, requests| requests.strong_count() > 0);
            let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
            all.insert(whose, Arc::downgrade(&requests));
            requests
        });
        Remote {
            user,
            role,
            replica: None,
            address,
            by,
            requests,
            web: Arc::clone(self),
        }
    }

    /// What makes the first user, while there is none: the same until it was used.
    fn setup_token(&self) -> Option<String> {
        let mut setup = self.setup.lock();
        if !self.people.is_empty() {
            if setup.take().is_some() {
                remove_link(&self.link_file);
            }
            return None;
        }
        let token = setup.get_or_insert_with(|| tokens::token(&*self.random));
        Some(token.clone())
    }

    /// The file with the link that makes the first user, while there is none: only the server's
    /// user reads it.
    pub fn link_file(&self) -> Option<PathBuf> {
        let link = self.link();
        let (url, token) = (link.url?, link.setup_token?);
        let text = format!("{url}#setup={}\n", token.0);
        match device::private::write(&self.link_file, text.as_bytes()) {
            Ok(()) => Some(self.link_file.clone()),
            Err(error) => {
                let file = self.link_file.display();
                tracing::warn!("{file} cannot be written: {error}; see 'millpond console'");
                None
            }
        }
    }

    /// What is wrong with the file of users and keys.
    pub fn people_problem(&self) -> Option<FileProblem> {
        self.people.problem()
    }

    /// What is wrong with the file that says how the certificate is got.
    pub fn certificate_problem(&self) -> Option<FileProblem> {
        self.acme.file_problem()
    }

    /// The alert that the certificate is reason for, if any.
    pub fn certificate_alert(&self) -> Option<api::Alert> {
        let certificate = self.certificate.lock().clone()?;
        let problem = self.acme.problem();
        let of_acme = || self.acme.alert().filter(|_| !certificate.is_given());
        certificate.alert(now_s(), problem).or_else(of_acme)
    }

    /// `millpond certificate`.
    ///
    /// # Errors
    /// When the settings are not understood.
    pub fn certificate_status(&self) -> Result<CertificateStatusReply, Failure> {
        let certificate = self.certificate.lock().clone();
        Ok(CertificateStatusReply {
            certificate: certificate.as_ref().and_then(|one| one.report()),
            acme: self.acme.settings()?,
            progress: self.acme.progress(),
            is_given: certificate.is_some_and(|one| one.is_given()),
        })
    }

    /// `millpond certificate acme`, `millpond certificate own`.
    ///
    /// # Errors
    /// When the settings make no sense or cannot be stored, or the certificate is somebody's.
    pub fn set_certificate(&self, acme: Option<AcmeSettings>) -> Result<Empty, Failure> {
        let certificate = self.certificate.lock().clone();
        if acme.is_some() && certificate.is_some_and(|one| one.is_given()) {
            let message = "cannot change the certificate: the server was started with another one; \
                           leave its options --certificate and --key out";
            return Err(Failure::new(FailureKind::Busy, message));
        }
        self.acme.set(acme)?;
        Ok(Empty {})
    }

    /// `millpond certificate renew`.
    ///
    /// # Errors
    /// When none is to be got.
    pub async fn renew_certificate(
        &self,
        only_if_due: bool,
    ) -> Result<CertificateRenewReply, Failure> {
        let failed = |kind, why: String| {
            Err(Failure::new(
                kind,
                format!("cannot renew the certificate: {why}"),
            ))
        };
        let certificate = self.certificate.lock().clone();
        let Some(certificate) = certificate else {
            let why = "the console is not offered; start the server with --https".to_owned();
            return failed(FailureKind::NotFound, why);
        };
        if certificate.is_given() {
            let why = "the server was started with one; put another one into its file".to_owned();
            return failed(FailureKind::Busy, why);
        }
        if self.acme.settings()?.is_none() {
            let why = "none is got; 'millpond certificate acme NAME' says for what".to_owned();
            return failed(FailureKind::NotFound, why);
        }
        let got = self.acme.get(&certificate, only_if_due).await;
        Ok(CertificateRenewReply { problem: got.err() })
    }

    /// Where the console is.
    pub fn link(&self) -> ConsoleLinkReply {
        let listening = *self.listening.lock();
        let certificate = self.certificate.lock().clone();
        ConsoleLinkReply {
            fingerprint: certificate.and_then(|certificate| certificate.fingerprint()),
            url: listening.map(|address| {
                let port = address.port();
                match address.ip() {
                    ip if ip.is_unspecified() => format!("https://{}:{port}/", self.hostname),
                    _ => format!("https://{address}/"),
                }
            }),
            setup_token: listening.and_then(|_| self.setup_token()).map(Secret),
        }
    }
}

/// The listener, while the server runs.
pub struct Listening {
    task: JoinHandle<()>,
    follows: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    address: SocketAddr,
}

impl Listening {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, and sends the answers that are due.
    pub async fn stop(self) {
        for follows in &self.follows {
            follows.abort();
        }
        self.stop.send_replace(true);
        let all_gone = async {
            let _ = self.task.await;
            self.stop.closed().await;
        };
        if tokio::time::timeout(LAST_ANSWERS, all_gone).await.is_err() {
            tracing::debug!("connections are left that did not end");
        }
    }
}

/// Listens, at this address or near it.
async fn bind(https: Https) -> Result<Option<TcpListener>, ListenError> {
    let (first, others) = match https {
        Https::Off => return Ok(None),
        Https::At(address) => (address, 0),
        Https::Near(address) => (address, PORTS_TRIED),
    };
    let failed = |source| ListenError::Https {
        address: first,
        source,
    };
    let mut ports = (0..=others).map(|more| first.port().saturating_add(more));
    loop {
        let Some(port) = ports.next() else {
            // Any other one will do: whoever asks is told.
            let address = SocketAddr::new(first.ip(), 0);
            return TcpListener::bind(address).await.map(Some).map_err(failed);
        };
        match TcpListener::bind(SocketAddr::new(first.ip(), port)).await {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && others > 0 => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

fn remove_link(file: &Path) {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!("{} cannot be removed: {error}", file.display());
        }
        _ => {}
    }
}

/// Starts to serve over the network, if that is wanted: `router` answers, behind the gate.
///
/// # Errors
/// [`ListenError`].
pub async fn listen(
    web: &Arc<Web>,
    offer: Offer,
    router: Router,
) -> Result<Option<Listening>, ListenError> {
    let Some(listener) = bind(offer.https).await? else {
        return Ok(None);
    };
    let web = Arc::clone(web);
    let address = listener.local_addr().map_err(|source| ListenError::Https {
        address: SocketAddr::from(([0; 4], 0)),
        source,
    })?;
    let hostname = web.hostname.clone();
    let (directory, given, bounds) = (offer.directory, offer.certificate, offer.bounds);
    let loaded = tokio::task::spawn_blocking(move || {
        tls::Certificate::load(&directory, given.as_ref(), &hostname, address.ip())
    });
    let loaded = loaded.await.unwrap_or_else(|error| Err(error.to_string()));
    let failed = |why| ListenError::Certificate { why };
    let certificate = loaded.map_err(failed)?;
    let mut follows = vec![tokio::spawn(Arc::clone(&certificate).follow())];
    if !certificate.is_given() {
        web.acme.show(&certificate);
        let acme = Arc::clone(&web.acme);
        follows.push(tokio::spawn(acme.follow(Arc::clone(&certificate))));
    }
    *web.certificate.lock() = Some(Arc::clone(&certificate));
    let configuration = tls::configuration(certificate).map_err(failed)?;
    let acceptor = TlsAcceptor::from(Arc::new(configuration));
    *web.listening.lock() = Some(address);
    let kept = Arc::clone(&web);
    let _kept = tokio::task::spawn_blocking(move || kept.link_file()).await;
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(serve(listener, acceptor, router, web, bounds, stopped));
    Ok(Some(Listening {
        task,
        follows,
        stop,
        address,
    }))
}

/// Connections of all, and of each address.
struct Connections {
    of_all: Arc<Semaphore>,
    of_address: HashMap<IpAddr, Weak<Semaphore>>,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            of_all: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            of_address: HashMap::new(),
        }
    }
}

impl Connections {
    fn one_more(&mut self, address: IpAddr) -> Option<[OwnedSemaphorePermit; 2]> {
        let place = limits::place(address);
        let of_address = match self.of_address.get(&place).and_then(Weak::upgrade) {
            Some(of_address) => of_address,
            None => {
                self.of_address.retain(|_, one| one.strong_count() > 0);
                let of_address = Arc::new(Semaphore::new(ADDRESS_CONNECTIONS_MAX));
                self.of_address.insert(place, Arc::downgrade(&of_address));
                of_address
            }
        };
        let of_address = of_address.try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.of_all).try_acquire_owned().ok()?;
        Some([of_all, of_address])
    }
}

async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    router: Router,
    web: Arc<Web>,
    bounds: Bounds,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = Connections::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely there are no descriptors left; connections that end give some back.
                tracing::warn!("no connection is taken: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(places) = connections.one_more(address.ip()) else {
            tracing::debug!(%address, "there are too many connections; one is closed");
            continue;
        };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        let (web, stopped) = (Arc::clone(&web), stopped.clone());
        tokio::spawn(device::wipe_freed(async move {
            let _places = places;
            attend(stream, address, &acceptor, router, web, bounds, stopped).await;
        }));
    }
}

/// Serves what comes through the Unix socket until it is told to stop, and those who are there then
/// until they have their answers.
pub async fn serve_socket(door: Door, router: Router, stop: impl Future<Output = ()>) {
    let (leave, stopped) = watch::channel(false);
    let mut stop = std::pin::pin!(stop);
    loop {
        let (stream, caller) = tokio::select! {
            accepted = door.accept() => accepted,
            () = stop.as_mut() => break,
        };
        let (router, stopped) = (router.clone(), stopped.clone());
        tokio::spawn(device::wipe_freed(async move {
            let answer = move |request: Request<Incoming>| {
                let (mut router, mut request) = (router.clone(), request.map(Body::new));
                request.extensions_mut().insert(ConnectInfo(caller.clone()));
                async move {
                    // A router is always ready.
                    match router.call(request).await {
                        Ok(answer) => answer,
                        Err(never) => match never {},
                    }
                }
            };
            if let Err(error) = converse(&http1::Builder::new(), stream, answer, stopped).await {
                tracing::debug!(%error, "a connection to the API's socket ended");
            }
        }));
    }
    drop((door, stopped));
    leave.send_replace(true);
    leave.closed().await;
}

/// Answers the requests of one connection until it ends; of one that is told to stop, the one that
/// has come.
async fn converse<I, F, A>(
    http: &http1::Builder,
    stream: I,
    answer: F,
    mut stopped: watch::Receiver<bool>,
) -> hyper::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Response>,
{
    let service = hyper::service::service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection.with_upgrades());
    tokio::select! {
        served = connection.as_mut() => return served,
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// Serves one connection by TLS to its end.
async fn attend(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: &TlsAcceptor,
    router: Router,
    web: Arc<Web>,
    bounds: Bounds,
    stopped: watch::Receiver<bool>,
) {
    // A replication's source that is gone for good gives back what it sends to.
    if let Err(error) = device::watch_over(&stream) {
        return tracing::debug!(%address, %error, "a connection ended");
    }
    let encrypted = tokio::time::timeout(bounds.handshake, acceptor.accept(stream)).await;
    let stream = match encrypted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%address, %error, "no connection by TLS"),
        Err(_) => return tracing::debug!(%address, "a connection does not begin; it is closed"),
    };
    let (ip, idle_max) = (address.ip(), bounds.headers);
    let served = match stream.get_ref().1.alpn_protocol() {
        Some(tls::HTTP2) => http2::converse(stream, web, router, ip, idle_max, stopped).await,
        _ => {
            let answer = move |request| gate::answer(Arc::clone(&web), router.clone(), ip, request);
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(bounds.headers)
                .max_buf_size(HEADERS_BYTES_MAX);
            converse(&http, Patient::new(stream), answer, stopped).await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%address, %error, "a connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_address_does_not_take_all_connections() {
        let mut connections = Connections::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut all = Vec::new();
        for number in 0..ADDRESS_CONNECTIONS_MAX {
            let one = address(&format!("2001:db8::{number:x}"));
            all.push(connections.one_more(one).unwrap());
        }
        assert!(connections.one_more(address("2001:db8::ffff")).is_none());
        all.push(connections.one_more(address("2001:db8:0:1::1")).unwrap());
        drop(all.remove(0));
        all.push(connections.one_more(address("2001:db8::ffff")).unwrap());
        for number in all.len()..CONNECTIONS_MAX {
            let one = IpAddr::from([10, 0, (number >> 8) as u8, number as u8]);
            all.push(connections.one_more(one).unwrap());
        }
        assert!(connections.one_more(address("192.0.2.1")).is_none());
    }
}
