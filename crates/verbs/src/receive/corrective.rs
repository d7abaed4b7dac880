//! `zfs receive -c`: streams of snapshots that are here put damaged blocks of those right. Nothing
//! else of them, and nothing of their datasets, changes (`zfs_receive_one`,
//! lib/libzfs/libzfs_sendrecv.c).

use std::sync::Arc;

use api::{Failure, FailureKind, ReceiveNaming, ReceiveObstacle, ZfsReceive};
use dataset::ReceiveTarget;
use format::NvList;
use format::stream::Begin;
use stream::{Healed, StreamError};

use super::{Place, Reader, Run};

/// Refuses options that say how a dataset is made or changed.
pub(super) fn check(call: &ZfsReceive) -> Result<(), Failure> {
    let is_plain = call.naming == ReceiveNaming::Exact
        && !(call.force || call.resumable || call.no_mount || call.skip_holds)
        && call.origin.is_none()
        && call.key.is_none()
        && call.set.is_empty()
        && call.exclude.is_empty();
    match !call.corrective || is_plain {
        true => Ok(()),
        false => Err(Failure::new(
            FailureKind::Invalid,
            "cannot receive: corrective recv can not be used when combined with this flag; only \
             -n, -v and -M go with -c",
        )),
    }
}

impl Run<'_> {
    /// Refuses a stream that is of no snapshot that is here.
    pub(super) async fn check_corrective(
        &self,
        begin: &Begin,
        place: &Place,
    ) -> Result<(), Failure> {
        let name = place.full_name();
        let directories = self.open.pool.dsl().directories();
        let is_full = Some(begin.from_guid.get() == 0);
        let refused = |why| Err(self.refused_at(&name, is_full, false, why));
        match directories.lookup(&name).await {
            Ok(info) if info.guid == begin.to_guid => Ok(()),
            Ok(_) => refused(ReceiveObstacle::OtherSnapshot),
            Err(dataset::DatasetError::NotFound { .. }) => refused(ReceiveObstacle::NothingToHeal),
            Err(error) => Err(self.of_dataset(place, begin, &error)),
        }
    }

    /// Puts right what is damaged of a snapshot, as far as a stream has it. How many blocks that
    /// was.
    pub(super) async fn correct(
        &mut self,
        reader: &mut Reader,
        begin: &Begin,
        list: &NvList,
        place: &Place,
    ) -> Result<u64, Failure> {
        let open = Arc::clone(&self.open);
        let receives = open.pool.dsl().receives();
        let target = ReceiveTarget {
            name: place.head.clone(),
            snapshot: place.snapshot.clone(),
            begin: begin.clone(),
            origin: None,
            force: false,
            resumable: false,
            properties: Vec::new(),
            new_key: None,
            key_data: list.list("crypt_keydata").cloned(),
            redaction: dataset::Redaction::of(list),
        };
        let failed =
            |run: &Self, error: &dataset::DatasetError| run.of_dataset(place, begin, error);
        let corrective = {
            let _admin = open.admin.lock().await;
            let begun = receives.begin_corrective(target).await;
            begun.map_err(|error| failed(self, &error))?
        };
        let mut healed = Healed::default();
        let outcome = stream::heal(reader, &corrective, &self.progress, &mut healed).await;
        // What was put right is on disk, and out of the error log, also where others are not.
        let ended = receives.end_corrective(corrective).await;
        if let Err(error) = outcome {
            return Err(self.of_healing(&error, &healed));
        }
        ended.map_err(|error| failed(self, &error))?;
        Ok(healed.blocks)
    }

    fn of_healing(&self, error: &StreamError, healed: &Healed) -> Failure {
        let failure = match error {
            StreamError::CutShort | StreamError::Checksum => Failure::new(
                FailureKind::Invalid,
                format!(
                    "cannot receive: corrective receive was not able to reconstruct the data \
                     needed for healing: {error}"
                ),
            ),
            error => self.of_stream(error),
        };
        let what = match healed.blocks {
            0 => "no block was healed".to_owned(),
            1 => "1 block was healed".to_owned(),
            more => format!("{more} blocks were healed"),
        };
        Failure {
            message: format!("{}\n{what} before", failure.message),
            ..failure
        }
    }
}
