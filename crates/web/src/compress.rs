//! Answers of the API, compressed for whoever takes them so.
//!
//! Lists and descriptions shrink to a tenth. Streams go as they are, for what is compressed waits
//! for more; so do files, of which nobody knows whether they shrink, and answers with something
//! secret ([`crate::message::never_compress`]).

use std::io::Write;

use axum::body::{Body, to_bytes};
use axum::http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap,
    HeaderValue, VARY,
};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Body as _;

use crate::message::AsItIs;

/// Bytes that an answer has at least that is compressed: a short one gets no shorter.
const BYTES_MIN: u64 = 1024;
/// Bytes of an answer that are compressed in between; more are another thread's.
const BYTES_AT_ONCE: usize = 64 << 10;

/// How something is compressed (RFC 9110, section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Brotli,
}

impl Coding {
    pub(super) fn name(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Brotli => "br",
        }
    }
}

/// Whether somebody takes answers that are compressed so (RFC 9110, section 12.5.3).
pub(super) fn takes(headers: &HeaderMap, coding: Coding) -> bool {
    let lines = headers.get_all(ACCEPT_ENCODING).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let mut codings = lines.flat_map(|line| line.split(','));
    codings.any(|one| {
        let mut parts = one.split(';').map(str::trim);
        let is_it = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case(coding.name()));
        // One that is not understood refuses.
        let weight = parts.find_map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let is_weight = name.trim().eq_ignore_ascii_case("q");
            is_weight.then(|| value.trim().parse::<f32>().unwrap_or(0.0))
        });
        is_it && weight.is_none_or(|weight| weight > 0.0)
    })
}

fn is_worth_it(answer: &Response) -> bool {
    let headers = answer.headers();
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_text = kind.is_some_and(|kind| {
        kind.starts_with(b"application/json") || kind.starts_with(b"text/plain")
    });
    let is_long = answer
        .body()
        .size_hint()
        .exact()
        .is_some_and(|bytes| bytes >= BYTES_MIN);
    let is_free = !headers.contains_key(CONNECTION) && !headers.contains_key(CONTENT_ENCODING);
    is_text && is_long && is_free && answer.extensions().get::<AsItIs>().is_none()
}

fn compressed(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    out.write_all(bytes)?;
    out.finish()
}

/// The same answer, compressed where that is worth it.
pub(super) async fn answer(answer: Response) -> Response {
    if answer.status() != StatusCode::OK || !is_worth_it(&answer) {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let made = match bytes.len() {
        ..=BYTES_AT_ONCE => compressed(&bytes),
        _ => {
            let bytes = bytes.clone();
            let working = tokio::task::spawn_blocking(move || compressed(&bytes));
            working.await.unwrap_or_else(|error| Err(error.into()))
        }
    };
    let body = match made {
        Ok(made) => {
            let mut set = |name: HeaderName, value: &'static str| {
                head.headers.insert(name, HeaderValue::from_static(value));
            };
            set(CONTENT_ENCODING, Coding::Gzip.name());
            set(VARY, "accept-encoding");
            head.headers.remove(CONTENT_LENGTH);
            Body::from(made)
        }
        Err(_) => Body::from(bytes),
    };
    Response::from_parts(head, body)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use axum::Json;
    use flate2::read::GzDecoder;

    use super::*;
    use crate::message::{end_after_secrets, never_compress};

    fn headers(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))])
    }

    #[test]
    fn who_says_so_takes_it() {
        for (value, gzip, brotli) in [
            ("gzip, deflate, br, zstd", true, true),
            ("br;q=0, GZIP ; q=0.5", true, false),
            ("gzip;q=0.0", false, false),
            ("gzip;Q=0, br;q =0", false, false),
            ("gzip;q=none, br ; Q = 1", false, true),
            ("identity", false, false),
            ("", false, false),
        ] {
            let headers = headers(value);
            let both = [Coding::Gzip, Coding::Brotli].map(|coding| takes(&headers, coding));
            assert_eq!(both, [gzip, brotli], "{value}");
        }
    }

    #[tokio::test]
    async fn long_text_is_compressed_and_nothing_else() {
        let long = |length: usize| Json(vec!["the same"; length]).into_response();
        for length in [200, 20_000] {
            let made = answer(long(length)).await;
            assert_eq!(made.headers()[CONTENT_ENCODING], "gzip");
            let bytes = to_bytes(made.into_body(), usize::MAX).await.unwrap();
            let mut whole = Vec::new();
            GzDecoder::new(&*bytes).read_to_end(&mut whole).unwrap();
            let expected = to_bytes(long(length).into_body(), usize::MAX)
                .await
                .unwrap();
            assert_eq!(whole, expected);
            assert!(bytes.len() * 4 < whole.len());
        }
        let file = ([(CONTENT_TYPE, "application/octet-stream")], vec![0; 4096]);
        for other in [
            long(3),
            file.into_response(),
            (StatusCode::BAD_REQUEST, long(200)).into_response(),
            never_compress(long(200)).await,
            end_after_secrets(long(200)).await,
        ] {
            let made = answer(other).await;
            assert!(!made.headers().contains_key(CONTENT_ENCODING));
        }
    }
}
