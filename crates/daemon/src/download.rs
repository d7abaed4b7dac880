//! What a file holds, as the answer to a `GET` that a browser can save.

use std::collections::HashMap;
use std::sync::Arc;

use api::{FILE_DOWNLOAD_PATH, Failure, Role};
use axum::body::Body;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serving::Serving;
use verbs::files::Download;
use web::Audit;
use web::caller::Caller;
use web::message::refuse;

/// Gives a file, and puts on record that it was asked for.
pub(crate) async fn download(
    serving: Arc<Serving>,
    audit: Arc<Audit>,
    caller: Caller,
    query: HashMap<String, String>,
) -> Response {
    let text = |name: &str| query.get(name).cloned().unwrap_or_default();
    let (dataset, path) = (text("dataset"), text("path"));
    let answer = begin(&serving, &caller, &dataset, &path).await;
    let mut entry = caller.entry(FILE_DOWNLOAD_PATH, vec![dataset, path]);
    entry.failure = answer.as_ref().err().map(|failure| failure.kind);
    audit.record(entry).await;
    answer.unwrap_or_else(refuse)
}

/// A name as a header says it (RFC 8187).
fn quoted(name: &[u8]) -> String {
    let mut out = String::from("attachment; filename*=UTF-8''");
    for byte in String::from_utf8_lossy(name).bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

async fn begin(
    serving: &Arc<Serving>,
    caller: &Caller,
    dataset: &str,
    path: &str,
) -> Result<Response, Failure> {
    let doing = format!("cannot read '{path}' of '{dataset}'");
    caller.check_role(Some(Role::Operator))?;
    if !caller.may_change() {
        return Err(Failure::denied(&doing));
    }
    let place = caller.place().await;
    let found = Download::open(serving, &doing, dataset, path).await?;
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, found.size_bytes().to_string()),
        (CONTENT_DISPOSITION, quoted(found.name())),
    ];
    let reading = (found, caller.clone(), place);
    let stream = futures::stream::try_unfold(reading, move |(mut found, caller, place)| {
        let doing = doing.clone();
        async move {
            // A session may end, or its user may get another role, while the file is read.
            if !caller.is_current() {
                return Err(Failure::denied(&doing));
            }
            let piece = found.next().await?;
            Ok::<_, Failure>(piece.map(|piece| (piece, (found, caller, place))))
        }
    });
    Ok((headers, Body::from_stream(stream)).into_response())
}
