//! What a file holds, as the answer to a `GET` that a browser can save.

use std::collections::HashMap;
use std::sync::Arc;

use api::{FILE_DOWNLOAD_PATH, Failure, FailureKind, Role};
use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use filesystem::FileKind;

use super::held::{Held, Same};
use super::{failed, find, names};
use crate::service::Service;
use web::caller::Caller;
use web::message::refuse;

/// How much is read at once.
const CHUNK_BYTES: usize = 2 << 20;

/// Gives a file, and puts on record that it was asked for.
pub(crate) async fn download(
    service: Arc<Service>,
    caller: Caller,
    query: HashMap<String, String>,
) -> Response {
    let text = |name: &str| query.get(name).cloned().unwrap_or_default();
    let (dataset, path) = (text("dataset"), text("path"));
    let answer = begin(&service, &caller, &dataset, &path).await;
    let mut entry = caller.entry(FILE_DOWNLOAD_PATH, vec![dataset, path]);
    entry.failure = answer.as_ref().err().map(|failure| failure.kind);
    Arc::clone(&service.web.audit).record(entry).await;
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

struct Reading {
    held: Held,
    caller: Caller,
    doing: String,
    file: Same,
    at: u64,
    size_bytes: u64,
}

impl Reading {
    async fn next(&mut self) -> Result<Vec<Bytes>, Failure> {
        if !self.caller.is_current() {
            return Err(Failure::denied(&self.doing));
        }
        let filesystem = self.held.with([self.file]).await?;
        let rest = self.size_bytes - self.at;
        let length = usize::try_from(rest).map_or(CHUNK_BYTES, |rest| rest.min(CHUNK_BYTES));
        let read = filesystem.peek(self.file.ino, self.at, length).await;
        let parts = read.map_err(|error| failed(&self.doing, &error))?;
        // Whoever takes it may be slow.
        drop(filesystem);
        self.held.rest();
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        if bytes == 0 {
            let message = format!("{}: the file was cut meanwhile", self.doing);
            return Err(Failure::new(FailureKind::Other, message));
        }
        self.at += bytes as u64;
        Ok(parts)
    }
}

async fn begin(
    service: &Arc<Service>,
    caller: &Caller,
    dataset: &str,
    path: &str,
) -> Result<Response, Failure> {
    let doing = format!("cannot read '{path}' of '{dataset}'");
    caller.check_role(Some(Role::Operator))?;
    if !caller.may_change() {
        return Err(Failure::denied(&doing));
    }
    let names = names::path(&doing, path)?;
    let Some(name) = names.last().cloned() else {
        let message = format!("{doing}: name a dataset and the path of a file in it");
        return Err(Failure::new(FailureKind::Invalid, message));
    };
    let place = caller.place().await;
    let mut held = Held::open(service, dataset, &doing, "download").await?;
    let (filesystem, _) = held.get().await?;
    let found = find(&filesystem, &doing, &names).await?;
    drop(filesystem);
    held.rest();
    if found.kind != FileKind::Regular {
        let message = format!("{doing}: it is no regular file; restore it instead");
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let reading = Reading {
        held,
        caller: caller.clone(),
        doing,
        file: Same::of(&found),
        at: 0,
        size_bytes: found.size_bytes,
    };
    let stream = futures::stream::try_unfold((reading, place), |(mut reading, place)| async move {
        if reading.at >= reading.size_bytes {
            return Ok(None);
        }
        let parts = reading.next().await?;
        Ok::<_, Failure>(Some((Bytes::from(parts.concat()), (reading, place))))
    });
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, found.size_bytes.to_string()),
        (CONTENT_DISPOSITION, quoted(&name)),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}
