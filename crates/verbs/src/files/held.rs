//! A filesystem or snapshot that is held for a moment at a time, so that nobody who wants to
//! unmount, destroy or export it waits for as long as a copy takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use access::Lease;
use api::{Failure, FailureKind};
use filesystem::{Attributes, Filesystem};
use format::ObjectId;

use super::failed;
use crate::owners::borrow;
use serving::Serving;

/// How long a lease is kept: who wants the dataset for itself waits no longer.
const LEASE: Duration = Duration::from_secs(1);

/// A file by what tells it from others that had or get its object number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Same {
    pub(super) ino: u64,
    pub(super) generation: u64,
}

impl Same {
    pub(super) fn of(attributes: &Attributes) -> Self {
        Self {
            ino: attributes.ino,
            generation: attributes.generation,
        }
    }
}

fn held(lease: Lease<Filesystem>) -> (Lease<Filesystem>, Arc<Filesystem>, Instant) {
    let filesystem = lease.get();
    (lease, filesystem, Instant::now())
}

/// A filesystem or snapshot.
pub(super) struct Held {
    serving: Arc<Serving>,
    name: String,
    doing: String,
    command: &'static str,
    object: ObjectId,
    lease: Option<(Lease<Filesystem>, Arc<Filesystem>, Instant)>,
}

impl Held {
    pub(super) async fn open(
        serving: &Arc<Serving>,
        name: &str,
        doing: &str,
        command: &'static str,
    ) -> Result<Self, Failure> {
        let open = serving.pools.of_dataset(name)?;
        let lease = borrow(&open, name, doing, command).await?;
        Ok(Self {
            serving: Arc::clone(serving),
            name: name.to_owned(),
            doing: doing.to_owned(),
            command,
            object: lease.object(),
            lease: Some(held(lease)),
        })
    }

    /// What is open; and whether it was let go of in between, so that anybody may have put another
    /// state in its place.
    ///
    /// # Errors
    /// Where it is not there any more, or another one has its name.
    pub(super) async fn get(&mut self) -> Result<(Arc<Filesystem>, bool), Failure> {
        if let Some((lease, filesystem, since)) = &self.lease
            && since.elapsed() < LEASE
            && lease.is_good()
        {
            return Ok((Arc::clone(filesystem), false));
        }
        self.rest();
        let open = self.serving.pools.of_dataset(&self.name)?;
        let lease = borrow(&open, &self.name, &self.doing, self.command).await?;
        if lease.object() != self.object {
            return Err(self.changed());
        }
        let held = held(lease);
        let filesystem = Arc::clone(&held.1);
        self.lease = Some(held);
        Ok((filesystem, true))
    }

    /// Lets go of it until it is needed again.
    pub(super) fn rest(&mut self) {
        self.lease = None;
    }

    /// What is open, where these files in it are still the same.
    ///
    /// # Errors
    /// As [`Self::get`], and where one of them is gone or another one has its number.
    pub(super) async fn with(
        &mut self,
        files: impl IntoIterator<Item = Same>,
    ) -> Result<Arc<Filesystem>, Failure> {
        let (filesystem, is_anew) = self.get().await?;
        if is_anew {
            for file in files {
                let found = filesystem.attributes(file.ino).await;
                let found = found.map_err(|error| failed(&self.doing, &error))?;
                if Same::of(&found) != file {
                    return Err(self.changed());
                }
            }
        }
        Ok(filesystem)
    }

    fn changed(&self) -> Failure {
        let message = format!(
            "{}: '{}' was rolled back, or another one has its name since this began; look at what \
             is there, then try again",
            self.doing, self.name
        );
        Failure::new(FailureKind::Busy, message)
    }
}
