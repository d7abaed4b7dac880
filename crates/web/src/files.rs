//! The console's files ([`console`]), for whoever asks: there is nothing secret in them.

use axum::body::Body;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap,
    HeaderValue, IF_NONE_MATCH, VARY,
};
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::compress::{Coding, takes};

/// What is shown where the binary has no console.
const NOT_BUILT: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
    <title>Millpond</title>\n<h1>This binary has no console</h1>\n\
    <p>The server runs, and its API is here; the console was not built when the server was. \
    Build it with <code>npm ci &amp;&amp; npm run build</code> in the directory \
    <code>console</code> of the sources, and then the server.</p>\n</html>\n";

/// How long a browser may keep a file whose name has a hash of what is in it.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// Whether the browser has this one.
fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let known = headers.get_all(IF_NONE_MATCH).iter();
    let known = known.filter_map(|value| value.to_str().ok());
    known
        .flat_map(|value| value.split(','))
        .any(|known| known.trim() == "*" || known.trim().trim_start_matches("W/") == etag)
}

/// Answers a request for a file. A path that is none is one of the console's own, which its first
/// page knows.
pub(super) fn answer(request: &Request<Body>) -> Response {
    let is_head = request.method() == Method::HEAD;
    if request.method() != Method::GET && !is_head {
        return (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD")]).into_response();
    }
    let path = request.uri().path().trim_start_matches('/');
    let file = match console::file(path) {
        None if path.starts_with("assets/") => return StatusCode::NOT_FOUND.into_response(),
        None => console::file("index.html"),
        file => file,
    };
    let Some(file) = file else {
        let headers = [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CACHE_CONTROL, "no-store"),
        ];
        return (StatusCode::SERVICE_UNAVAILABLE, headers, NOT_BUILT).into_response();
    };
    let caching = if file.is_hashed { FOR_EVER } else { "no-cache" };
    let smaller = [(Coding::Brotli, file.brotli), (Coding::Gzip, file.gzip)];
    let smaller = smaller.into_iter().find_map(|(coding, bytes)| {
        let bytes = bytes.filter(|_| takes(request.headers(), coding))?;
        Some((coding, bytes))
    });
    // Another one for other bytes, though they stand for the same.
    let (bytes, etag) = match smaller {
        Some((coding, bytes)) => (bytes, format!("\"{}-{}\"", file.hash, coding.name())),
        None => (file.bytes, format!("\"{}\"", file.hash)),
    };
    let mut answer = match is_known(request.headers(), &etag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => {
            let body = if is_head {
                Body::empty()
            } else {
                Body::from(bytes)
            };
            let mut answer = body.into_response();
            let headers = answer.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type));
            headers.insert(CONTENT_LENGTH, bytes.len().into());
            if let Some((coding, _)) = smaller {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
            }
            answer
        }
    };
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, etag);
    }
    answer
}
