//! What a stream that is to be sent is made of: a snapshot, and what the receiver has already
//! (`dmu_send`, module/zfs/dmu_send.c). Making the stream is crate `stream`'s business.

use std::sync::Arc;

use format::{Guid, NvList, Txg};

use crate::dsl::DslPool;
use crate::features::guid;
use crate::obstacle::RedactObstacle;
use crate::redact::{RedactionList, refused};
use crate::{Dataset, DatasetError};

/// Where a difference begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendFrom {
    /// The snapshot, or the one that a bookmark was made of.
    pub guid: Guid,
    /// When it was taken.
    pub txg: Txg,
    /// It is of another dataset, which what is sent is a clone of.
    pub is_origin: bool,
    /// Its set of IVs, where it is encrypted; else zero.
    pub iv_set: u64,
}

/// A snapshot that is to be sent.
pub struct SendSource {
    /// The snapshot.
    pub snapshot: Dataset,
    /// What the receiver has.
    pub from: Option<SendFrom>,
    /// What a raw stream says of the key (`crypt_keydata`), where the snapshot is encrypted and
    /// was opened to be sent raw.
    pub key_data: Option<NvList>,
    /// Name and GUID that the stream says, where it is to say others than the snapshot's own.
    pub sent_as: Option<(String, Guid)>,
    /// What is left out of it, and of what the receiver has.
    pub redactions: Redactions,
}

/// Redaction lists that a stream is made with.
#[derive(Debug, Default)]
pub struct Redactions {
    /// What is left out (`--redact`).
    pub of_stream: Option<RedactionList>,
    /// What the receiver lacks of the snapshot that the difference begins with, as that was sent
    /// with this list.
    pub of_receiver: Option<RedactionList>,
    /// GUIDs of the snapshots that the snapshot which the difference begins with was redacted with,
    /// as it is here: the receiver's may lack as much.
    pub of_source: Option<Vec<u64>>,
}

/// Sending: [`DslPool::sends`].
#[derive(Clone, Copy)]
pub struct Sends<'a> {
    pub(crate) dsl: &'a Arc<DslPool>,
}

impl DslPool {
    /// Sending streams.
    pub fn sends(self: &Arc<Self>) -> Sends<'_> {
        Sends { dsl: self }
    }
}

impl Sends<'_> {
    /// Opens a snapshot to be sent, as the difference to `from` (a full name of a snapshot or
    /// bookmark), if there is one. In a pool that is open read-only it may be a filesystem or
    /// volume, which is as good as a snapshot there.
    ///
    /// # Errors
    /// [`DatasetError::NotFound`]; [`DatasetError::WrongKind`] where it is no snapshot, or `from`
    /// is no earlier one; [`DatasetError::KeyNotLoaded`]; [`DatasetError::Unsupported`] of a
    /// redacted dataset.
    pub async fn source(&self, name: &str, from: Option<&str>) -> Result<SendSource, DatasetError> {
        let found = self.from(name, from).await?;
        let snapshot = self.dsl.open_dataset(name).await?;
        let mut source = self.checked(name, snapshot, found, None)?;
        match from {
            Some(from) if from.contains('#') => {
                source.redactions.of_receiver = self.list_of(from).await?;
            }
            Some(from) => source.redactions.of_source = self.redacted_with(from).await?,
            None => {}
        }
        Ok(source)
    }

    /// The same without what a redaction bookmark of the snapshot lists (`zfs send --redact`).
    /// `bookmark` is its name after the `#`.
    ///
    /// # Errors
    /// As [`Self::source`]; [`DatasetError::Redact`] where it is no redaction bookmark of this
    /// snapshot, or is not whole.
    pub async fn redacted_source(
        &self,
        name: &str,
        from: Option<&str>,
        bookmark: &str,
    ) -> Result<SendSource, DatasetError> {
        let mut source = self.source(name, from).await?;
        let (head, _) = crate::name::split_snapshot(name);
        let full_name = format!("{head}#{bookmark}");
        let _config = self.dsl.config.read().await;
        let (_, entry) = self.dsl.bookmarks().entry(&full_name).await?;
        let list = entry.phys.redaction_list;
        if !list.is_zero() && entry.phys.guid != source.snapshot.guid() {
            return refused(&full_name, RedactObstacle::OtherSource);
        }
        let list = self.dsl.bookmarks().open_list(&full_name, list).await?;
        source.redactions.of_stream = Some(list);
        Ok(source)
    }

    /// The redaction list of a bookmark, if it has one.
    async fn list_of(&self, bookmark: &str) -> Result<Option<RedactionList>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let bookmarks = self.dsl.bookmarks();
        let (_, entry) = bookmarks.entry(bookmark).await?;
        let list = entry.phys.redaction_list;
        match list.is_zero() {
            true => Ok(None),
            false => Ok(Some(bookmarks.open_list(bookmark, list).await?)),
        }
    }

    /// GUIDs of the snapshots that a snapshot is redacted with, if it is.
    async fn redacted_with(&self, snapshot: &str) -> Result<Option<Vec<u64>>, DatasetError> {
        let _config = self.dsl.config.read().await;
        let found = self.dsl.directories().resolve(snapshot).await?;
        let guids = found.redacted_with();
        Ok(guids.map(|guids| guids.iter().map(|guid| guid.get()).collect()))
    }

    /// The same to send it raw: of what is encrypted no key is needed; nothing else is raw.
    ///
    /// # Errors
    /// As [`Self::source`]; [`DatasetError::Unsupported`] of what the first version of encryption
    /// wrote.
    pub async fn raw_source(
        &self,
        name: &str,
        from: Option<&str>,
    ) -> Result<SendSource, DatasetError> {
        let found = self.from(name, from).await?;
        let key_data = {
            let _config = self.dsl.config.read().await;
            let snapshot = self.dsl.directories().resolve(name).await?;
            let iv_set = found.map_or(0, |from| from.iv_set);
            match snapshot.is_snapshot() {
                true => self.dsl.keys().key_data(&snapshot, iv_set).await?,
                // Its set of IVs is a snapshot's.
                false if snapshot.is_encrypted() => {
                    return Err(DatasetError::Unsupported {
                        name: name.to_owned(),
                        what: "sending raw what is no snapshot".into(),
                    });
                }
                false => None,
            }
        };
        if key_data.is_none() {
            return self.source(name, from).await;
        }
        if let Some(from) = from.filter(|from| from.contains('#'))
            && self.list_of(from).await?.is_some()
        {
            return Err(DatasetError::Unsupported {
                name: name.to_owned(),
                what: "sending it raw from a redaction bookmark".into(),
            });
        }
        let snapshot = self.dsl.open_raw_snapshot(name).await?;
        let mut source = self.checked(name, snapshot, found, key_data)?;
        if let Some(from) = from.filter(|from| from.contains('@')) {
            source.redactions.of_source = self.redacted_with(from).await?;
        }
        Ok(source)
    }

    async fn from(&self, name: &str, from: Option<&str>) -> Result<Option<SendFrom>, DatasetError> {
        Ok(match from {
            Some(from) if from.contains('#') => Some(self.bookmark_before(name, from).await?),
            Some(from) => Some(self.snapshot_before(name, from).await?),
            None => None,
        })
    }

    fn checked(
        &self,
        name: &str,
        snapshot: Dataset,
        from: Option<SendFrom>,
        key_data: Option<NvList>,
    ) -> Result<SendSource, DatasetError> {
        if !snapshot.is_snapshot() && !self.dsl.env().read_only {
            return Err(DatasetError::WrongKind {
                name: name.to_owned(),
                reason: "it is not a snapshot".into(),
            });
        }
        if snapshot.uses_feature(guid::REDACTED_DATASETS) {
            return Err(DatasetError::Unsupported {
                name: name.to_owned(),
                what: "sending a redacted dataset".into(),
            });
        }
        Ok(SendSource {
            snapshot,
            from,
            key_data,
            sent_as: None,
            redactions: Redactions::default(),
        })
    }

    async fn snapshot_before(&self, name: &str, from: &str) -> Result<SendFrom, DatasetError> {
        let _config = self.dsl.config.read().await;
        let directories = self.dsl.directories();
        let (to, earlier) = (
            directories.resolve(name).await?,
            directories.resolve(from).await?,
        );
        let mut at = to.clone();
        while at.phys().previous_snapshot != earlier.object {
            let before = directories.before(&at).await?;
            at = before.ok_or_else(|| not_earlier(from, name))?;
        }
        let phys = earlier.phys();
        Ok(SendFrom {
            guid: phys.guid,
            txg: phys.creation_txg,
            is_origin: !Arc::ptr_eq(&to.dir(), &earlier.dir()),
            iv_set: self.dsl.keys().iv_set(&earlier).await?,
        })
    }

    async fn bookmark_before(&self, name: &str, from: &str) -> Result<SendFrom, DatasetError> {
        let _config = self.dsl.config.read().await;
        let to = self.dsl.directories().resolve(name).await?;
        let bookmarks = self.dsl.bookmarks();
        let (of, entry) = bookmarks.entry(from).await?;
        let txg = entry.creation_txg();
        // What a redacted stream of the same snapshot left out can follow it.
        let fills_in = !entry.phys.redaction_list.is_zero() && entry.phys.guid == to.phys().guid;
        // One of the filesystem that this was cloned from, but later than the clone, is of contents
        // that the clone never had.
        let is_before = bookmarks.is_before(&to.dir(), &of.dir(), txg).await?;
        if !is_before || txg >= to.phys().creation_txg && !fills_in {
            return Err(not_earlier(from, name));
        }
        Ok(SendFrom {
            guid: entry.phys.guid,
            txg,
            is_origin: !Arc::ptr_eq(&to.dir(), &of.dir()),
            iv_set: entry.phys.ivset_guid,
        })
    }
}

fn not_earlier(from: &str, to: &str) -> DatasetError {
    DatasetError::WrongKind {
        name: from.to_owned(),
        reason: format!("it is not an earlier snapshot of what '{to}' is one of"),
    }
}
