//! Filesystems and snapshots that are held for a moment at a time, so that nobody who wants to
//! unmount, destroy or export it waits for as long as a copy takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use access::Lease;
use api::{Failure, FailureKind};
use filesystem::{Attributes, Filesystem};
use format::ObjectId;

use super::failed;
use crate::owners::borrow_all;
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

/// What is held for a moment: leases, what they gave, and since when.
struct Moment<const N: usize> {
    leases: [Lease<Filesystem>; N],
    filesystems: [Arc<Filesystem>; N],
    since: Instant,
}

impl<const N: usize> Moment<N> {
    fn new(leases: [Lease<Filesystem>; N]) -> Self {
        Self {
            filesystems: leases.each_ref().map(Lease::get),
            leases,
            since: Instant::now(),
        }
    }
}

/// Filesystems or snapshots of one pool. All of them are let go of before any is taken again: who
/// wants one of them alone may have another (a rollback, and the snapshots that go with it).
pub(super) struct Held<const N: usize> {
    serving: Arc<Serving>,
    names: [String; N],
    doing: String,
    command: &'static str,
    objects: [ObjectId; N],
    moment: Option<Moment<N>>,
    /// They were let go of since files were last looked at by [`Self::check`].
    is_anew: bool,
}

impl<const N: usize> Held<N> {
    pub(super) async fn open(
        serving: &Arc<Serving>,
        names: [&str; N],
        doing: &str,
        command: &'static str,
    ) -> Result<Self, Failure> {
        let pool = names.first().copied().unwrap_or_default();
        let open = serving.pools.of_dataset(pool)?;
        let leases = borrow_all(&open, names, doing, command).await?;
        Ok(Self {
            serving: Arc::clone(serving),
            names: names.map(str::to_owned),
            doing: doing.to_owned(),
            command,
            objects: leases.each_ref().map(Lease::object),
            moment: Some(Moment::new(leases)),
            is_anew: false,
        })
    }

    /// What is open. It may be another state than before, where it was let go of in between; what
    /// was got before is of no use then.
    ///
    /// # Errors
    /// Where one is not there any more, or another one has its name.
    pub(super) async fn get(&mut self) -> Result<[Arc<Filesystem>; N], Failure> {
        if let Some(moment) = &self.moment
            && moment.since.elapsed() < LEASE
            && moment.leases.iter().all(Lease::is_good)
        {
            return Ok(moment.filesystems.clone());
        }
        self.rest();
        let names = self.names.each_ref().map(String::as_str);
        let pool = names.first().copied().unwrap_or_default();
        let open = self.serving.pools.of_dataset(pool)?;
        let leases = borrow_all(&open, names, &self.doing, self.command).await?;
        let objects = leases.each_ref().map(Lease::object);
        for (at, name) in self.names.iter().enumerate() {
            if objects[at] != self.objects[at] {
                return Err(self.changed(name));
            }
        }
        let moment = Moment::new(leases);
        let filesystems = moment.filesystems.clone();
        self.moment = Some(moment);
        Ok(filesystems)
    }

    /// Lets go of all until they are needed again.
    pub(super) fn rest(&mut self) {
        self.is_anew |= self.moment.take().is_some();
    }

    /// Looks whether these files are still the same in `filesystem`, the last of what
    /// [`Self::get`] gave, where they may not be.
    ///
    /// # Errors
    /// Where one of them is gone or another one has its number.
    pub(super) async fn check(
        &mut self,
        filesystem: &Filesystem,
        files: impl IntoIterator<Item = Same>,
    ) -> Result<(), Failure> {
        if !self.is_anew {
            return Ok(());
        }
        for file in files {
            let found = filesystem.attributes(file.ino).await;
            let found = found.map_err(|error| failed(&self.doing, &error))?;
            if Same::of(&found) != file {
                return Err(self.changed(self.names.last().map_or("", String::as_str)));
            }
        }
        self.is_anew = false;
        Ok(())
    }

    fn changed(&self, name: &str) -> Failure {
        let message = format!(
            "{}: '{name}' was rolled back, or another one has its name since this began; look at \
             what is there, then try again",
            self.doing
        );
        Failure::new(FailureKind::Busy, message)
    }
}
