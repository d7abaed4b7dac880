//! Names and paths of files as the API writes them ([`api::FileList`]).

use api::{Failure, FailureKind};

/// Longest path in bytes, as it is written.
const PATH_BYTES_MAX: usize = 64 << 10;

/// A name as it is written: a backslash is doubled, and what is no UTF-8 is `\xff`.
pub(super) fn written(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        out.push_str(&chunk.valid().replace('\\', r"\\"));
        for byte in chunk.invalid() {
            out.push_str(&format!(r"\x{byte:02x}"));
        }
    }
    out
}

/// A name from how it is written; nothing where that makes no sense.
fn read(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.extend_from_slice(before.as_bytes());
        rest = match after.strip_prefix('\\') {
            Some(rest) => {
                out.push(b'\\');
                rest
            }
            None => {
                let digits = after.strip_prefix('x')?.get(..2)?;
                if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return None;
                }
                out.push(u8::from_str_radix(digits, 16).ok()?);
                &after[3..]
            }
        };
    }
    out.extend_from_slice(rest.as_bytes());
    Some(out)
}

/// The names of a path; none of the root directory.
///
/// # Errors
/// [`FailureKind::Invalid`] for what leads anywhere else than down.
pub(super) fn path(doing: &str, path: &str) -> Result<Vec<Vec<u8>>, Failure> {
    let invalid = || {
        let message = format!(
            "{doing}: a path is names with a slash between them, without '.' and '..' and without \
             a slash at its ends"
        );
        Failure::new(FailureKind::Invalid, message)
    };
    if path.is_empty() {
        return Ok(Vec::new());
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(invalid());
    }
    let names = path.split('/').map(|text| {
        let name = read(text)?;
        let is_good = !matches!(&name[..], b"" | b"." | b"..")
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
        is_good.then_some(name)
    });
    names.collect::<Option<_>>().ok_or_else(invalid)
}

/// A path of these names, as it is written.
pub(super) fn path_of<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> String {
    let names: Vec<String> = names.into_iter().map(written).collect();
    names.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name there may be comes back as it was.
    #[test]
    fn names_are_written_and_read() {
        let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        for name in [&all[..], b"a", br"\x41", br"\\", "a\u{fc}\n".as_bytes()] {
            assert_eq!(read(&written(name)).unwrap(), name);
            assert_eq!(path("", &written(name)).unwrap(), [name]);
        }
        assert_eq!(written(b"a\xffb\\"), r"a\xffb\\");
        for text in [r"\", r"\x", r"\x4", r"\xg0", r"\x+1", r"\n", "\\x\u{e9}"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    /// No path leads out of the filesystem.
    #[test]
    fn paths_lead_down_only() {
        assert_eq!(path("", "").unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(path("", "a/...").unwrap(), [&b"a"[..], b"..."]);
        let long = "a/".repeat(PATH_BYTES_MAX) + "a";
        for text in [
            "/",
            "/etc",
            "a/",
            "a//b",
            ".",
            "..",
            "a/../b",
            "a/.",
            r"\x2e\x2e",
            r"a\x2fb",
            r"a\x00",
            "a\0",
            &long,
        ] {
            let failure = path("cannot", text).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Invalid, "{text}");
        }
    }
}
