//! Trees of files, as manifests of golden pools tell of them.

use std::collections::BTreeMap;

use filesystem::{Attributes, FileKind, Filesystem};
use serde_json::Value;
use sha2::{Digest, Sha256};

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

pub fn bytes_of(entry: &Value, plain: &str, in_hex: &str) -> Option<Vec<u8>> {
    match entry[in_hex].as_str() {
        Some(text) => Some(unhex(text)),
        None => entry[plain].as_str().map(|text| text.as_bytes().to_vec()),
    }
}

pub fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Fifo => "fifo",
        FileKind::CharDevice => "char",
        FileKind::Directory => "dir",
        FileKind::BlockDevice => "block",
        FileKind::Regular => "file",
        FileKind::Symlink => "symlink",
        FileKind::Socket => "socket",
    }
}

pub async fn hash(filesystem: &Filesystem, ino: u64, size: u64) -> String {
    let mut hasher = Sha256::new();
    let mut offset = 0;
    while offset < size {
        let pieces = filesystem.read(ino, offset, 4 << 20).await.expect("read");
        for piece in &pieces {
            hasher.update(piece);
            offset += piece.len() as u64;
        }
        assert!(
            !pieces.is_empty(),
            "object {ino} ends at {offset} of {size}"
        );
    }
    hex(&hasher.finalize())
}

/// All paths of a filesystem.
pub async fn walk(filesystem: &Filesystem) -> BTreeMap<Vec<u8>, Attributes> {
    let root = filesystem
        .attributes(filesystem.root())
        .await
        .expect("root");
    let mut found = BTreeMap::from([(b"/".to_vec(), root)]);
    let mut left = vec![(Vec::new(), filesystem.root())];
    while let Some((path, ino)) = left.pop() {
        let mut cookie = 0;
        loop {
            // Few at a time, so that cookies are used.
            let entries = filesystem
                .read_directory_with_attributes(ino, cookie, 50)
                .await
                .expect("list");
            let Some((last, _)) = entries.last() else {
                break;
            };
            cookie = last.next_cookie;
            for (entry, attributes) in entries {
                if matches!(&entry.name[..], b"." | b"..") {
                    continue;
                }
                let attributes = attributes.expect("a readable file");
                // Very old filesystems do not say it in the entry.
                assert!(
                    entry.kind.is_none_or(|kind| kind == attributes.kind),
                    "{:?}",
                    entry.name
                );
                let path = [&path[..], b"/", &entry.name].concat();
                if attributes.kind == FileKind::Directory {
                    left.push((path.clone(), entry.ino));
                }
                let again = found.insert(path, attributes);
                assert!(again.is_none(), "an entry is listed twice");
            }
        }
    }
    found
}
