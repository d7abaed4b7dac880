//! A share in an open dataset.

use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use filesystem::{Changes, Filesystem};
use format::ObjectId;
use volume::{Extent, Volume, VolumeError};

use crate::error::Result;
use crate::opened::{Manner, Served};
use crate::slot::{Cell, Entry, Place, Resident};
use crate::user::User;

/// A share in a dataset's filesystem or volume, which stays open as long as somebody has one.
/// Dropping the last one closes it, in a task of the registry; [`Lease::close`] waits for that.
pub struct Lease<T> {
    place: Place,
    cell: Cell,
    kind: PhantomData<fn() -> T>,
}

impl<T: Served> Lease<T> {
    pub(crate) fn new(place: Place, cell: Cell) -> Self {
        Self {
            place,
            cell,
            kind: PhantomData,
        }
    }

    /// What is open now. After a rollback that is another one: keep the lease, not this. It is
    /// closed where the lease was given back or cut off.
    pub fn get(&self) -> Arc<T> {
        T::of(&self.cell.read()).expect("a slot is of one kind")
    }

    /// The dataset's object, which stays the same when the dataset is renamed.
    pub fn object(&self) -> ObjectId {
        self.place.slot.object
    }

    /// Whether it was neither given back nor cut off.
    pub fn is_good(&self) -> bool {
        self.place.is_good()
    }

    /// Whether anything is open for it. Nothing is any more where a rollback could not open the
    /// dataset again ([`crate::AccessError::NotReopened`]): then another lease is asked for, and
    /// this one given back.
    pub fn is_open(&self) -> bool {
        self.is_good() && self.place.is_open(&self.cell)
    }

    /// Another lease of the same dataset, for another user.
    ///
    /// # Errors
    /// As those of [`crate::Access::filesystem`], where the dataset has to be opened anew.
    pub async fn share(&self, user: User) -> Result<Self> {
        let joined = self.place.slot.join(entry::<T>(user), Manner::Serve);
        let (place, cell) = joined.await?;
        Ok(Self::new(place, cell))
    }

    /// Has `resident` told before and after another state takes the place of what is open. Where
    /// nobody is told, a filesystem that is in use stays as it is.
    pub fn set_resident(&self, resident: Weak<dyn Resident>) {
        self.place.set_resident(resident);
    }

    /// Gives the lease back. Waits for others who are done in a moment; if nobody else uses it
    /// then, it is closed when this is done. It may be given up without harm: closing goes on.
    ///
    /// # Errors
    /// As [`Filesystem::close`] and [`Volume::close`], where this lease was the last.
    pub async fn close(&self) -> Result<()> {
        self.place.close().await
    }
}

impl Lease<Filesystem> {
    /// Who is told of what changes in the filesystem. They stay when a rollback brings another
    /// state of it, of which mounts are told otherwise ([`Resident`]).
    pub fn changes(&self) -> &Arc<Changes> {
        &self.place.slot.changes
    }
}

pub(crate) fn entry<T: Served>(user: User) -> Entry {
    Entry {
        user,
        goes_along: T::GOES_ALONG,
        resident: None,
    }
}

impl std::fmt::Debug for Lease<Filesystem> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "lease of filesystem {}", self.object())
    }
}

impl std::fmt::Debug for Lease<Volume> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "lease of volume {}", self.object())
    }
}

/// Asks the volume, and where a rollback closed it before it began, the one that came after.
macro_rules! on_volume {
    ($lease:ident, |$volume:ident| $work:expr) => {{
        let mut $volume = $lease.get();
        loop {
            match $work.await {
                // It does nothing when it fails so.
                Err(error @ VolumeError::Closed { .. }) => match $lease.after(&$volume).await {
                    Some(next) => $volume = next,
                    None => return Err(error),
                },
                outcome => return outcome,
            }
        }
    }};
}

/// What a volume does, through rollbacks: requests wait while there is one.
impl Lease<Volume> {
    /// What took the place of `before`, if anything did.
    async fn after(&self, before: &Arc<Volume>) -> Option<Arc<Volume>> {
        self.place.slot.exchanged().await;
        let now = self.get();
        (!Arc::ptr_eq(before, &now)).then_some(now)
    }

    /// As [`Volume::try_read`].
    pub fn try_read(&self, offset_bytes: u64, length_bytes: usize) -> Option<Vec<Bytes>> {
        self.get().try_read(offset_bytes, length_bytes)
    }

    /// As [`Volume::read`].
    ///
    /// # Errors
    /// As there.
    pub async fn read(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> Result<Vec<Bytes>, VolumeError> {
        on_volume!(self, |volume| volume.read(offset_bytes, length_bytes))
    }

    /// As [`Volume::write`].
    ///
    /// # Errors
    /// As there.
    pub async fn write(
        &self,
        offset_bytes: u64,
        data: Bytes,
        durable: bool,
    ) -> Result<(), VolumeError> {
        on_volume!(self, |volume| {
            volume.write(offset_bytes, data.clone(), durable)
        })
    }

    /// As [`Volume::flush`].
    ///
    /// # Errors
    /// As there.
    pub async fn flush(&self) -> Result<(), VolumeError> {
        on_volume!(self, |volume| volume.flush())
    }

    /// As [`Volume::unmap`].
    ///
    /// # Errors
    /// As there.
    pub async fn unmap(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), VolumeError> {
        on_volume!(self, |volume| volume.unmap(offset_bytes, length_bytes))
    }

    /// As [`Volume::write_zeroes`].
    ///
    /// # Errors
    /// As there.
    pub async fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        durable: bool,
    ) -> Result<(), VolumeError> {
        on_volume!(self, |volume| volume.write_zeroes(
            offset_bytes,
            length_bytes,
            durable
        ))
    }

    /// As [`Volume::extent_at`].
    ///
    /// # Errors
    /// As there.
    pub async fn extent_at(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<Extent, VolumeError> {
        on_volume!(self, |volume| volume.extent_at(offset_bytes, length_bytes))
    }

    /// As [`Volume::clone_range`].
    ///
    /// # Errors
    /// As there.
    pub async fn clone_range(
        &self,
        source: &Self,
        source_bytes: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<u64, VolumeError> {
        on_volume!(self, |volume| {
            let volume = &volume;
            async move {
                let source = source.get();
                let cloned = volume.clone_range(&source, source_bytes, offset_bytes, length_bytes);
                match cloned.await {
                    // It is rolled back at this moment: reading waits for that, and sees the rest.
                    Err(VolumeError::Closed { .. }) if !source.is_open() => Ok(0),
                    outcome => outcome,
                }
            }
        })
    }
}
