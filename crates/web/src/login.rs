//! Sessions as the console asks for them: setting up the first user, logging in and out.

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use api::{
    AuditEntry, AuditVia, Call, Empty, Failure, FailureKind, Role, SESSION_COOKIE, SessionInfo,
    SessionInfoReply, SessionLogin, SessionLogout, SessionPassword, SessionReply, SessionSetup,
    may_hold_secrets,
};
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::SET_COOKIE;
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::gate::Visitor;
use super::limits::place;
use super::sessions::{AGE_MAX, Begun};
use super::tokens::hash;
use super::{By, Web, about, now_s, people};
use crate::message::{end_after_secrets, refuse, understand};

/// Largest request of somebody who has not logged in, in bytes.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Requests of one address that are read at once; others wait.
const ADDRESS_REQUESTS_MAX: usize = 8;

/// Those who have requests that are read.
type Reading = Mutex<HashMap<IpAddr, Weak<Semaphore>>>;

/// Whether a request needs no session.
pub(super) fn is_open(path: &str) -> bool {
    [SessionLogin::PATH, SessionSetup::PATH, SessionInfo::PATH].contains(&path)
}

/// What a request does to the browser's cookie.
enum Cookie {
    Keep,
    Set(String),
    Remove,
}

impl Cookie {
    fn header(&self) -> Option<HeaderValue> {
        let rest = "HttpOnly; Secure; SameSite=Strict; Path=/";
        let text = match self {
            Self::Keep => return None,
            Self::Set(value) => {
                format!(
                    "{SESSION_COOKIE}={value}; Max-Age={}; {rest}",
                    AGE_MAX.as_secs()
                )
            }
            Self::Remove => format!("{SESSION_COOKIE}=; Max-Age=0; {rest}"),
        };
        HeaderValue::from_str(&text).ok()
    }
}

/// What came of a request of this kind.
type Outcome<R> = Result<(R, Cookie), Failure>;

/// The requests about sessions, which the socket has not.
pub fn routes(web: &Arc<Web>) -> Router {
    let reading: Arc<Reading> = Arc::default();
    let router = Router::new();
    let router = on(router, web, &reading, log_in);
    let router = on(router, web, &reading, set_up);
    let router = on(router, web, &reading, info);
    let router = on(router, web, &reading, log_out);
    on(router, web, &reading, change_password)
}

/// The places of an address, which slow ones keep from nobody else.
fn places(reading: &Reading, address: IpAddr) -> Arc<Semaphore> {
    let address = place(address);
    let mut all = reading.lock();
    all.get(&address)
        .and_then(Weak::upgrade)
        .unwrap_or_else(|| {
            all.retain(|_, places| places.strong_count() > 0);
            let places = Arc::new(Semaphore::new(ADDRESS_REQUESTS_MAX));
            all.insert(address, Arc::downgrade(&places));
            places
        })
}

fn on<C, F, Fut>(router: Router, web: &Arc<Web>, reading: &Arc<Reading>, handler: F) -> Router
where
    C: Call,
    F: Fn(Arc<Web>, Visitor, C) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Outcome<C::Reply>> + Send + 'static,
{
    let (web, reading) = (Arc::clone(web), Arc::clone(reading));
    let answer = move |Extension(visitor): Extension<Visitor>, body: Body| async move {
        let place = places(&reading, visitor.address).acquire_owned().await;
        let understood = understand(body, REQUEST_BYTES_MAX).await;
        drop(place);
        let call: C = match understood {
            Ok(call) => call,
            Err(failure) => return refuse(failure),
        };
        let entry = call.changes().then(|| entry(&visitor, &call));
        // A client that goes away stops nothing half-way.
        let work = tokio::spawn(async move {
            // Who cannot be let in, or out, because the disk is full would be helped by nobody.
            let _room = match [SessionSetup::PATH, SessionPassword::PATH].contains(&C::PATH) {
                true => Some(Arc::clone(&web.audit).make_room().await?),
                false => None,
            };
            let outcome = handler(Arc::clone(&web), visitor, call).await;
            if let Some(mut entry) = entry {
                entry.failure = outcome.as_ref().err().map(|failure| failure.kind);
                Arc::clone(&web.audit).record(entry).await;
            }
            outcome
        });
        match work.await {
            Ok(outcome) => answered(outcome),
            Err(error) => refuse(Failure::new(FailureKind::Other, error.to_string())),
        }
    };
    let mut answer = post(answer);
    if may_hold_secrets::<C>() {
        answer = answer.layer(map_response(end_after_secrets));
    }
    router.route(C::PATH, answer)
}

fn answered<R: serde::Serialize>(outcome: Outcome<R>) -> Response {
    match outcome {
        Ok((reply, cookie)) => {
            let mut answer = Json(reply).into_response();
            if let Some(header) = cookie.header() {
                answer.headers_mut().insert(SET_COOKIE, header);
            }
            answer
        }
        Err(failure) => refuse(failure),
    }
}

fn entry<C: Call>(visitor: &Visitor, call: &C) -> AuditEntry {
    AuditEntry {
        time_s: now_s(),
        via: match &visitor.remote {
            Some(remote) => remote.via(),
            None => AuditVia::Nobody,
        },
        user: visitor.remote.as_ref().map(|remote| remote.user.clone()),
        uid: None,
        address: Some(visitor.address.to_canonical().to_string()),
        path: C::PATH.to_owned(),
        about: about(call),
        failure: None,
    }
}

fn begun(web: &Web, visitor: &Visitor, user: String, role: Role) -> (SessionReply, Cookie) {
    // The browser's session from before, if it has one, ends: two are never mixed up.
    if let Some(remote) = &visitor.remote
        && let By::Session(key) = &remote.by
    {
        web.sessions.end(key);
    }
    let Begun { cookie, csrf } = web.sessions.begin(&user);
    (SessionReply { csrf, user, role }, Cookie::Set(cookie))
}

async fn log_in(web: Arc<Web>, visitor: Visitor, call: SessionLogin) -> Outcome<SessionReply> {
    let user = call.user;
    web.limits.try_once(visitor.address, Some(&user))?;
    let logged_in = web
        .people
        .log_in(&user, call.password, call.totp.as_ref())
        .await;
    let role = logged_in?;
    web.limits.was_right(visitor.address, Some(&user));
    Ok(begun(&web, &visitor, user, role))
}

async fn set_up(web: Arc<Web>, visitor: Visitor, call: SessionSetup) -> Outcome<SessionReply> {
    web.limits.try_once(visitor.address, None)?;
    let token = web.setup_token().ok_or_else(|| {
        let message = "there is a user already; log in";
        Failure::new(FailureKind::Exists, message)
    })?;
    if hash(&token) != hash(&call.token.0) {
        let message = "the link is not the right one any more; 'millpond console' prints it";
        return Err(Failure::new(FailureKind::Unauthenticated, message));
    }
    web.limits.was_right(visitor.address, None);
    let role = Role::Admin;
    web.people
        .add(&call.user, role, call.password, true)
        .await?;
    // There is a user now, so this forgets the token.
    let _ = web.setup_token();
    Ok(begun(&web, &visitor, call.user, role))
}

async fn info(web: Arc<Web>, visitor: Visitor, _: SessionInfo) -> Outcome<SessionInfoReply> {
    let reply = SessionInfoReply {
        user: visitor.remote.as_ref().map(|remote| remote.user.clone()),
        role: visitor.remote.as_ref().map(|remote| remote.role),
        csrf: visitor.csrf,
        setup_needed: web.people.is_empty(),
    };
    Ok((reply, Cookie::Keep))
}

async fn log_out(web: Arc<Web>, visitor: Visitor, _: SessionLogout) -> Outcome<Empty> {
    if let Some(remote) = &visitor.remote
        && let By::Session(key) = &remote.by
    {
        web.sessions.end(key);
    }
    Ok((Empty {}, Cookie::Remove))
}

async fn change_password(web: Arc<Web>, visitor: Visitor, call: SessionPassword) -> Outcome<Empty> {
    let session = visitor.remote.as_ref().and_then(|remote| match &remote.by {
        By::Session(key) => Some((remote.user.clone(), *key)),
        By::Key(_) => None,
    });
    let Some((user, key)) = session else {
        let message = "a key has no password; log in";
        return Err(Failure::new(FailureKind::Denied, message));
    };
    web.limits.try_once(visitor.address, Some(&user))?;
    if !web.people.is_password(&user, call.password).await? {
        return Err(people::wrong_password());
    }
    web.limits.was_right(visitor.address, Some(&user));
    let new = Some(call.new_password);
    web.people.change_user(&user, None, new, None).await?;
    web.sessions.end_of(&user, Some(&key));
    Ok((Empty {}, Cookie::Keep))
}
