//! What is to be received, and whether it fits what is there.

use std::sync::Arc;

use format::stream::{Begin, StreamFeatures};
use format::{Guid, NvList};

use crate::dsl::DslPool;
use crate::new_key::NewKey;
use crate::obstacle::ReceiveObstacle;
use crate::raw::KeyData;
use crate::state::Ds;
use crate::{DatasetError, PropertyValue};

/// Most snapshots that a dataset may be redacted with: a ZAP's value has to hold their GUIDs
/// (`ZAP_MAXVALUELEN`).
const REDACTION_GUIDS_MAX: usize = 1024;

/// What is to be received, and where.
#[derive(Debug, Clone)]
pub struct ReceiveTarget {
    /// The filesystem or volume.
    pub name: String,
    /// The snapshot that it gets, after the `@`.
    pub snapshot: String,
    /// The stream's first record.
    pub begin: Begin,
    /// The snapshot that a new dataset is to be a clone of.
    pub origin: Option<String>,
    /// Changes and snapshots since the one that the stream is the difference to are given up.
    pub force: bool,
    /// After a break one can go on.
    pub resumable: bool,
    /// Of a new dataset whose stream is not raw: `encryption`, and what goes with it, as they were
    /// given ([`crate::encryption_properties`]).
    pub properties: Vec<(String, PropertyValue)>,
    /// The key that makes it an encryption root. Loaded then.
    pub new_key: Option<NewKey>,
    /// What a raw stream's description says of the key (`crypt_keydata`).
    pub key_data: Option<NvList>,
    /// What the stream's description says of what it leaves out.
    pub redaction: Redaction,
}

/// What a stream's description says of redaction: GUIDs of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redaction {
    /// Those that it is redacted with (`redact_snaps`).
    pub with: Option<Vec<u64>>,
    /// Those that what it follows was redacted with (`redact_from_snaps`).
    pub from: Option<Vec<u64>>,
}

impl Redaction {
    /// From a stream's description.
    pub fn of(list: &NvList) -> Self {
        let guids = |name| list.u64s(name).map(<[u64]>::to_vec);
        Self {
            with: guids("redact_snaps"),
            from: guids("redact_from_snaps"),
        }
    }

    /// Whether it says what a redacted stream has to say, and no more than can be stored of it.
    pub(super) fn is_sound(&self) -> bool {
        let fits = |guids: &Vec<u64>| guids.len() <= REDACTION_GUIDS_MAX;
        let with = self.with.as_ref();
        with.is_some_and(|with| !with.is_empty() && fits(with))
            && self.from.as_ref().is_none_or(fits)
    }
}

impl ReceiveTarget {
    pub(super) fn has(&self, feature: StreamFeatures) -> bool {
        self.begin.features.contains(feature)
    }

    pub(super) fn is_raw(&self) -> bool {
        self.has(StreamFeatures::RAW)
    }

    /// The key of a raw stream.
    pub(super) fn key(&self) -> Result<Option<KeyData>, DatasetError> {
        if !self.is_raw() {
            return Ok(None);
        }
        let Some(list) = &self.key_data else {
            return self.refuse(ReceiveObstacle::BadStream);
        };
        match KeyData::decode(list) {
            Ok(key) => Ok(Some(key)),
            Err(obstacle) => self.refuse(obstacle),
        }
    }

    /// Refuses a raw stream that does not fit what it is the difference to (`None`: nothing).
    pub(super) async fn check_key(
        &self,
        dsl: &Arc<DslPool>,
        source: Option<&Arc<Ds>>,
    ) -> Result<(), DatasetError> {
        let Some(key) = self.key()? else {
            return Ok(());
        };
        match dsl.keys().check_raw(&key, source).await? {
            Ok(()) => Ok(()),
            Err(obstacle) => self.refuse(obstacle),
        }
    }

    /// Refuses a stream that takes blocks for granted which the snapshot that it follows lacks
    /// (`redact_check`, module/zfs/dmu_recv.c).
    pub(super) fn check_redaction(&self, source: &Arc<Ds>) -> Result<(), DatasetError> {
        if self.begin.from_guid.get() == 0 {
            return Ok(());
        }
        let Some(lacks) = source.redacted_with() else {
            return Ok(());
        };
        let has = |guid: &u64| lacks.contains(&Guid::new(*guid));
        // With fewer snapshots more is left out: what was, is so still.
        let is_part = |guids: &[u64]| guids.len() <= lacks.len() && guids.iter().all(has);
        let fits = match (&self.redaction.from, &self.redaction.with) {
            (Some(from), _) => is_part(from),
            (None, Some(with)) if self.has(StreamFeatures::REDACTED) => is_part(with),
            (None, _) => has(&self.begin.to_guid.get()),
        };
        match fits {
            true => Ok(()),
            false => self.refuse(ReceiveObstacle::Redaction),
        }
    }

    pub(super) fn refuse<T>(&self, obstacle: ReceiveObstacle) -> Result<T, DatasetError> {
        Err(DatasetError::Receive {
            name: self.name.clone(),
            obstacle,
        })
    }
}
