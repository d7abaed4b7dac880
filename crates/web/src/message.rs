//! A request as it is read, and a refusal as it is answered, whichever way they come and go.

use std::collections::BTreeMap;
use std::time::Duration;

use api::{Call, Failure, FailureKind};
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::de::IgnoredAny;

/// How long a request may take to come.
const BODY_MAX: Duration = Duration::from_secs(30);

/// Reads a request of at most so many bytes.
///
/// # Errors
/// [`FailureKind::Invalid`] where it is longer, does not come, or is not understood.
pub async fn understand<C: Call>(body: Body, bytes_max: usize) -> Result<C, Failure> {
    let bad = |error: String| {
        let message = format!(
            "the request was not understood ({error}); \
             is the command of another version than the daemon?"
        );
        Failure::new(FailureKind::Invalid, message)
    };
    let body = tokio::time::timeout(BODY_MAX, to_bytes(body, bytes_max)).await;
    let body = body.map_err(|_| bad("it does not come to its end".to_owned()))?;
    let body = body.map_err(|error| bad(error.to_string()))?;
    serde_json::from_slice(&body).map_err(|error| match lacking::<C>(&body) {
        Some(fields) => bad(format!("{} is lacking", fields.join(", "))),
        None => bad(error.to_string()),
    })
}

/// The fields that a request has to have and has not, where that is what is wrong with it.
fn lacking<C: Call>(body: &[u8]) -> Option<Vec<String>> {
    // What the fields hold may be secret.
    let given: BTreeMap<String, IgnoredAny> = serde_json::from_slice(body).ok()?;
    let lacking = api::required_fields::<C>();
    let lacking: Vec<String> = lacking
        .into_iter()
        .filter(|name| !given.contains_key(name))
        .map(|name| format!("'{name}'"))
        .collect();
    (!lacking.is_empty()).then_some(lacking)
}

/// Has the connection end with this answer. Where a request held a secret, its bytes are in a
/// buffer that the connection has until it reads something else over it, or ends.
pub async fn end_after_secrets(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Of an answer: it is sent as it is ([`never_compress`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsItIs;

/// Has an answer sent as it is. How much shorter a secret gets beside what somebody else chose
/// tells of the secret (the attack BREACH).
pub async fn never_compress(mut answer: Response) -> Response {
    answer.extensions_mut().insert(AsItIs);
    answer
}

/// The answer that tells of a failure.
pub fn refuse(failure: Failure) -> Response {
    let status = StatusCode::from_u16(failure.kind.http_status())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(failure)).into_response()
}
