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
    /// Another one for other contents.
    pub hash: String,
    /// The name has a hash of what is in it, so what is there under it never changes.
    pub is_hashed: bool,
    /// What is in it.
    pub bytes: &'static [u8],
    /// The same, compressed with Brotli (RFC 7932), where it is smaller so.
    pub brotli: Option<&'static [u8]>,
    /// The same, compressed with gzip (RFC 1952), where it is smaller so.
    pub gzip: Option<&'static [u8]>,
}

static FILES: LazyLock<HashMap<&'static str, File>> = LazyLock::new(|| {
    let all: HashMap<&str, &[u8]> = EMBEDDED.iter().copied().collect();
    let is_smaller = |path: &str| {
        let of = COMPRESSED.iter().find_map(|end| path.strip_suffix(end));
        of.is_some_and(|of| all.contains_key(of))
    };
    let files = EMBEDDED.iter().filter(|(path, _)| !is_smaller(path));
    let files = files.map(|(path, bytes)| {
        let [brotli, gzip] = COMPRESSED.map(|end| all.get(&*format!("{path}{end}")).copied());
        let file = File {
            brotli,
            gzip,
            ..describe(path, bytes)
        };
        (*path, file)
    });
    files.collect()
});

/// What `npm run build` appends to the names of files that it compressed.
const COMPRESSED: [&str; 2] = [".br", ".gz"];

fn describe(path: &str, bytes: &'static [u8]) -> File {
    use std::fmt::Write;
    let hash = Sha256::digest(bytes);
    let hash = hash[..16].iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    });
    File {
        content_type: content_type(path),
        hash,
        // Vite puts what it names so there.
        is_hashed: path.starts_with("assets/"),
        bytes,
        brotli: None,
        gzip: None,
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
        for (path, file) in FILES.iter() {
            assert!(!COMPRESSED.iter().any(|end| path.ends_with(end)), "{path}");
            let mut smaller = [file.brotli, file.gzip].into_iter().flatten();
            assert!(smaller.all(|bytes| bytes.len() < file.bytes.len()));
        }
        let one = describe("assets/index-4f3a.js", b"one");
        assert!(one.is_hashed && one.content_type.starts_with("text/javascript"));
        assert_ne!(one.hash, describe("assets/index-4f3a.js", b"other").hash);
        assert!(!describe("index.html", b"").is_hashed);
    }
}
