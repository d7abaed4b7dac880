//! What every request over the network goes through: whether it comes from a page of ours, who
//! asks, and what browsers are told of the answer.

use std::net::IpAddr;
use std::sync::Arc;

use api::{CSRF_HEADER, Call, Failure, FailureKind, Replica, SESSION_COOKIE, SessionInfo};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, HeaderValue,
    ORIGIN, REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method, Request, StatusCode, Uri};
use axum::response::Response;
use hyper::body::Incoming;
use tower_service::Service as _;

use super::tokens::hash;
use super::{By, Remote, Web, compress, files, limits, login};
use crate::caller::Caller;
use crate::compress::Coding;
use crate::message::refuse;

/// What pages of ours may do: get what they consist of from here, and nothing from elsewhere; be
/// in no frame.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; object-src 'none'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
/// What no page of ours uses.
const FEATURES: &str = "camera=(), geolocation=(), microphone=(), payment=(), usb=()";

/// Who asks, for the requests that need no session.
#[derive(Clone)]
pub(super) struct Visitor {
    pub(super) address: IpAddr,
    pub(super) remote: Option<Arc<Remote>>,
    /// What the session's header has.
    pub(super) csrf: Option<String>,
}

/// Answers a request.
pub(super) async fn answer(
    web: Arc<Web>,
    router: Router,
    address: IpAddr,
    request: Request<Incoming>,
) -> Response {
    let request = request.map(Body::new);
    let path = request.uri().path();
    let is_api = path == "/v1" || path.starts_with("/v1/") || path == "/metrics";
    let may_compress =
        !path.starts_with("/v1/session/") && compress::takes(request.headers(), Coding::Gzip);
    let mut answer = match is_api {
        true => match admit(&web, address, request) {
            Ok(request) => match check_replica(&web, &request).await {
                Ok(()) if may_compress => compress::answer(ask(router, request).await).await,
                Ok(()) => ask(router, request).await,
                Err(failure) => refuse(failure),
            },
            Err(failure) => refuse(failure),
        },
        false => files::answer(&request),
    };
    let status = answer.status();
    let headers = answer.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(X_FRAME_OPTIONS, "DENY");
    set(REFERRER_POLICY, "no-referrer");
    set(HeaderName::from_static("permissions-policy"), FEATURES);
    let of_us = "cross-origin-resource-policy";
    set(HeaderName::from_static(of_us), "same-origin");
    let of_us = "cross-origin-opener-policy";
    set(HeaderName::from_static(of_us), "same-origin");
    if is_api {
        set(CACHE_CONTROL, "no-store");
    }
    match status {
        StatusCode::UNAUTHORIZED => set(WWW_AUTHENTICATE, "Bearer"),
        StatusCode::TOO_MANY_REQUESTS => {
            headers.insert(RETRY_AFTER, limits::RETRY_AFTER_S.into());
        }
        _ => {}
    }
    answer
}

/// Refuses what is asked with the key of a replication and is no part of one, and puts that on
/// record: here, so that no request is forgotten.
fn check_replica<'a>(
    web: &'a Web,
    request: &Request<Body>,
) -> impl Future<Output = Result<(), Failure>> + Send + use<'a> {
    let asks = request.extensions().get::<ConnectInfo<Caller>>();
    let path = request.uri().path();
    let denied = asks.and_then(|ConnectInfo(caller)| {
        let replica = caller
            .replica()
            .filter(|_| !Replica::PATHS.contains(&path))?;
        let mut entry = caller.entry(path, Vec::new());
        entry.failure = Some(FailureKind::Denied);
        Some((entry, replica.denied("a request that is no replication's")))
    });
    async move {
        let Some((entry, message)) = denied else {
            return Ok(());
        };
        Arc::clone(&web.audit).record(entry).await;
        Err(Failure::new(FailureKind::Denied, message))
    }
}

async fn ask(mut router: Router, request: Request<Body>) -> Response {
    // A router is always ready.
    match router.call(request).await {
        Ok(answer) => answer,
        Err(never) => match never {},
    }
}

/// Finds out who asks, and refuses what comes from elsewhere, or from nobody.
fn admit(
    web: &Arc<Web>,
    address: IpAddr,
    mut request: Request<Body>,
) -> Result<Request<Body>, Failure> {
    let headers = request.headers();
    let may_change = request.method() != Method::GET && request.method() != Method::HEAD;
    if may_change {
        check_origin(request.uri(), headers)?;
    }
    let path = request.uri().path();
    let (remote, csrf) = match who(web, address, headers)? {
        Some((remote, csrf)) => (Some(remote), csrf),
        None => (None, None),
    };
    // Asking whose session it is changes nothing, and is how a page learns the header; what begins
    // a session has none.
    let is_free = path == SessionInfo::PATH || login::is_open(path);
    if let Some(csrf) = &csrf
        && may_change
        && !is_free
        && !has(headers, CSRF_HEADER, csrf)
    {
        let message = format!("the request has not the session's header {CSRF_HEADER}");
        return Err(Failure::new(FailureKind::Denied, message));
    }
    if remote.is_none() && !login::is_open(path) {
        let message = "log in, or give an API key";
        return Err(Failure::new(FailureKind::Unauthenticated, message));
    }
    let remote = remote.map(Arc::new);
    let extensions = request.extensions_mut();
    if let Some(remote) = &remote {
        extensions.insert(ConnectInfo(Caller::remote(Arc::clone(remote))));
    }
    extensions.insert(Visitor {
        address,
        remote,
        csrf,
    });
    Ok(request)
}

/// Whether a header has this value; how long it takes tells nothing of it.
fn has(headers: &HeaderMap, name: &str, value: &str) -> bool {
    let given = headers.get(name).and_then(|given| given.to_str().ok());
    given.is_some_and(|given| hash(given) == hash(value))
}

/// Refuses what a page from elsewhere sends. Browsers say where a page is from; programs do not.
fn check_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
    let denied = |message: &str| Err(Failure::new(FailureKind::Denied, message));
    let text = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    // HTTP/2 says it in the address (RFC 9113, section 8.3.1).
    let authority = uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let Some(host) = text(HOST).or(authority) else {
        return denied("the request has no host");
    };
    if let Some(origin) = text(ORIGIN)
        && origin.strip_prefix(b"https://") != Some(host)
    {
        return denied("the request comes from a page of another origin");
    }
    match text(HeaderName::from_static("sec-fetch-site")) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => denied("the request comes from a page of another site"),
    }
}

/// Who asks, by key or by session; of a session also what its header has.
#[allow(clippy::type_complexity)]
fn who(
    web: &Arc<Web>,
    address: IpAddr,
    headers: &HeaderMap,
) -> Result<Option<(Remote, Option<String>)>, Failure> {
    if let Some(given) = headers.get(AUTHORIZATION) {
        let key = given.to_str().ok().and_then(|given| {
            let (scheme, key) = given.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let Some(key) = key.and_then(|key| web.people.key(key)) else {
            let message = "the API key is not known, or has expired";
            return Err(Failure::new(FailureKind::Unauthenticated, message));
        };
        let mut remote = web.remote(key.name, key.role, address, By::Key(key.id));
        remote.replica = key.replica;
        return Ok(Some((remote, None)));
    }
    let session = cookie(headers).and_then(|cookie| web.sessions.used(cookie));
    let Some((key, user, csrf)) = session else {
        return Ok(None);
    };
    let Some(role) = web.people.role_of(&user) else {
        return Ok(None);
    };
    let remote = web.remote(user, role, address, By::Session(key));
    Ok(Some((remote, Some(csrf))))
}

/// The value of the session's cookie.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(COOKIE).iter();
    let mut pairs = all
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    pairs.find_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == SESSION_COOKIE).then_some(value)
    })
}
