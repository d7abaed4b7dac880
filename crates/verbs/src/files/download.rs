//! What a file holds, read piece by piece.

use std::sync::Arc;

use api::{Failure, FailureKind};
use bytes::Bytes;
use filesystem::FileKind;
use serving::Serving;

use super::held::{Held, Same};
use super::{failed, find, names};

/// How much is read at once.
const CHUNK_BYTES: usize = 2 << 20;

/// A file that is being read.
pub struct Download {
    held: Held<1>,
    doing: String,
    file: Same,
    name: Vec<u8>,
    at: u64,
    size_bytes: u64,
}

impl Download {
    /// Finds a file by its path in a dataset; `doing` says what fails.
    ///
    /// # Errors
    /// Where there is none, or it is no regular file.
    pub async fn open(
        serving: &Arc<Serving>,
        doing: &str,
        dataset: &str,
        path: &str,
    ) -> Result<Self, Failure> {
        let names = names::path(doing, path)?;
        let Some(name) = names.last().cloned() else {
            let message = format!("{doing}: name a dataset and the path of a file in it");
            return Err(Failure::new(FailureKind::Invalid, message));
        };
        let mut held = Held::open(serving, [dataset], doing, "download").await?;
        let [filesystem] = held.get().await?;
        let found = find(&filesystem, doing, &names).await?;
        drop(filesystem);
        held.rest();
        if found.kind != FileKind::Regular {
            let message = format!("{doing}: it is no regular file; restore it instead");
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        Ok(Self {
            held,
            doing: doing.to_owned(),
            file: Same::of(&found),
            name: name.to_vec(),
            at: 0,
            size_bytes: found.size_bytes,
        })
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its name in its directory.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The next piece; none at the end.
    ///
    /// # Errors
    /// Where it cannot be read, is gone, or was cut meanwhile.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.at >= self.size_bytes {
            return Ok(None);
        }
        let [filesystem] = self.held.get().await?;
        self.held.check(&filesystem, [self.file]).await?;
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
        Ok(Some(Bytes::from(parts.concat())))
    }
}
