//! Reading directories.

use crate::access_times::accessed;
use crate::error::{FsError, Result};
use crate::filesystem::Filesystem;
use crate::list_ahead;
use crate::listing::{END_COOKIE, to_cookie, to_cursor};
use crate::types::{Attributes, DirEntry, FileKind};
use crate::znode::parse_dirent;

impl Filesystem {
    /// Entries from `cookie` on (0: from the start, with `.` and `..`), at most `count_max`; none
    /// at the end.
    pub async fn read_directory(
        &self,
        ino: u64,
        cookie: u64,
        count_max: usize,
    ) -> Result<Vec<DirEntry>> {
        let found = self.peek_directory(ino, cookie, count_max).await?;
        let _entered = self.opening.enter().await?;
        let node = self.files.node(ino).await?;
        accessed(&self.opening, &node);
        list_ahead::names_listed(&self.files, &node, &found);
        Ok(found)
    }

    /// [`Self::read_directory`] for the server itself, which does not count as an access.
    ///
    /// # Errors
    /// As [`Self::read_directory`].
    pub async fn peek_directory(
        &self,
        ino: u64,
        cookie: u64,
        count_max: usize,
    ) -> Result<Vec<DirEntry>> {
        let _entered = self.opening.enter().await?;
        let node = self.files.node(ino).await?;
        let zap = node.entries()?;
        let znode = node.znode();
        let mut found = Vec::new();
        if znode.links == 0 {
            return Ok(found);
        }
        let dots = [(b".".to_vec(), ino), (b"..".to_vec(), znode.parent)];
        for (index, (name, ino)) in (1..).zip(dots) {
            if cookie < index && found.len() < count_max {
                found.push(DirEntry {
                    name,
                    ino,
                    kind: Some(FileKind::Directory),
                    next_cookie: index,
                });
            }
        }
        if cookie >= END_COOKIE || found.len() >= count_max {
            return Ok(found);
        }
        let cursor = to_cursor(cookie);
        for entry in zap.entries(cursor, count_max - found.len()).await? {
            let value = entry.value.as_u64().ok_or(FsError::Corrupt {
                ino,
                what: "an entry is no number",
            })?;
            let (child, kind) = parse_dirent(value);
            found.push(DirEntry {
                name: entry.name.to_vec(),
                ino: child,
                kind,
                next_cookie: to_cookie(entry.next),
            });
        }
        Ok(found)
    }

    /// Like [`Filesystem::read_directory`], with all about each entry. An entry whose file cannot
    /// be read comes without.
    pub async fn read_directory_with_attributes(
        &self,
        ino: u64,
        cookie: u64,
        count_max: usize,
    ) -> Result<Vec<(DirEntry, Option<Attributes>)>> {
        /// Dnodes read at the same time.
        const TOGETHER: usize = 32;
        use futures::StreamExt;
        let entries = self.peek_directory(ino, cookie, count_max).await?;
        let _entered = self.opening.enter().await?;
        let node = self.files.node(ino).await?;
        accessed(&self.opening, &node);
        list_ahead::attributes_listed(&self.files, &node, &entries);
        let with_attributes = futures::stream::iter(entries)
            .map(async |entry| {
                let attributes = match self.files.node(entry.ino).await {
                    Ok(node) => Some(self.files.attributes_of(&node)),
                    Err(error) => {
                        tracing::debug!(ino = entry.ino, %error, "an entry's file cannot be read");
                        None
                    }
                };
                (entry, attributes)
            })
            .buffered(TOGETHER);
        Ok(with_attributes.collect().await)
    }
}
