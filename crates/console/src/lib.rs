//! The browser console inside the binary: what `npm run build` made in `console/dist` when the
//! binary was built. Without that there is none, and whoever serves it says so.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::LazyLock;

use sha2::{Digest, Sha256};

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// A file of the console.
#[derive(Debug)]
pub struct File {
    /// What it is, as HTTP says it.
    pub content_type: &'static str,
    /// Another one for other contents (RFC 9110, section 8.8.3), with its quotes.
    pub etag: String,
    /// The name has a hash of what is in it, so what is there under it never changes.
    pub is_hashed: bool,
    /// What is in it.
    pub bytes: &'static [u8],
}

static FILES: LazyLock<HashMap<&'static str, File>> = LazyLock::new(|| {
    let files = EMBEDDED
        .iter()
        .map(|(path, bytes)| (*path, describe(path, bytes)));
    files.collect()
});

fn describe(path: &str, bytes: &'static [u8]) -> File {
    use std::fmt::Write;
    let hash = Sha256::digest(bytes);
    let etag = hash[..16].iter().fold(String::from("\""), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    });
    File {
        content_type: content_type(path),
        etag: etag + "\"",
        // Vite puts what it names so there.
        is_hashed: path.starts_with("assets/"),
        bytes,
    }
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, end)| end) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "webp" => "image/webp",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        "wasm" => "application/wasm",
        _ => "application/octet-stream",
    }
}

/// The file of this path: `index.html`, `assets/index-4f3a.js`.
pub fn file(path: &str) -> Option<&'static File> {
    FILES.get(path)
}

/// Whether the console was built when the binary was.
pub fn is_built() -> bool {
    !EMBEDDED.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_their_whole_path_alone() {
        assert_eq!(is_built(), file("index.html").is_some());
        for path in [
            "",
            "/",
            "..",
            "../Cargo.toml",
            "/etc/passwd",
            "assets/../index.html",
        ] {
            assert!(file(path).is_none(), "{path}");
        }
        let one = describe("assets/index-4f3a.js", b"one");
        assert!(one.is_hashed && one.content_type.starts_with("text/javascript"));
        assert_ne!(one.etag, describe("assets/index-4f3a.js", b"other").etag);
        assert!(!describe("index.html", b"").is_hashed);
    }
}
