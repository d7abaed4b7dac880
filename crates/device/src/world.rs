//! The traits that stand for the world, and [`World`], the bundle that constructors pass down.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::Entry;
use crate::file::hold::Held;

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a device operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system refused or failed the operation.
    #[error(
        "{path}: {op} of {length_bytes} bytes at offset {offset_bytes} failed: {source}; check the \
         device and its cabling"
    )]
    Io {
        /// Path of the device.
        path: String,
        /// What was attempted: read, write, flush, discard.
        op: &'static str,
        /// First byte of the operation.
        offset_bytes: u64,
        /// Its length.
        length_bytes: u64,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The operation reaches past the end of the device.
    #[error(
        "{path}: {op} of {length_bytes} bytes at offset {offset_bytes} reaches past the device's \
         end at {size_bytes}; the device may have shrunk"
    )]
    OutOfRange {
        /// Path of the device.
        path: String,
        /// What was attempted.
        op: &'static str,
        /// First byte of the operation.
        offset_bytes: u64,
        /// Its length.
        length_bytes: u64,
        /// Size of the device.
        size_bytes: u64,
    },
    /// The device could not be opened.
    #[error(
        "{path}: cannot be opened: {source}; check that it exists and that this user may read and \
         write it"
    )]
    Open {
        /// Path of the device.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Another process (or another opening in this one) holds the device for writing.
    #[error(
        "{path}: the device is in use by another process; export its pool there, or stop that \
         process"
    )]
    InUse {
        /// Path of the device.
        path: String,
    },
    /// What other software has on the device cannot be found out.
    #[error(
        "{path}: whether it holds data of other software cannot be found out: {why}; mend that, or \
         use '-f' if nothing on it is needed"
    )]
    Unexamined {
        /// Path of the device.
        path: String,
        /// What is in the way.
        why: String,
    },
    /// The device took an operation and did not answer it for so long that nobody waits any more.
    /// It may still carry it out, at any time.
    #[error("{path}: the device does not answer; check it and its cabling")]
    Hung {
        /// Path of the device.
        path: String,
    },
    /// The device is gone or was taken offline; nothing more reaches it.
    #[error("{path}: the device is gone; reattach it and run 'zpool clear'")]
    Gone {
        /// Path of the device.
        path: String,
    },
}

/// What other software has on a device, with the name that it has for libblkid.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// A filesystem.
    Filesystem(String),
    /// A table of partitions.
    PartitionTable(String),
    /// A part of a volume group or an array.
    Member(String),
    /// An encrypted volume.
    Encrypted(String),
    /// Something else: swap space, say.
    Other(String),
    /// More than one of these.
    Several,
    /// What ZFS has there, or has left there.
    Zfs,
}

impl std::fmt::Display for Foreign {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Foreign::Filesystem(name) => write!(out, "a filesystem of type '{name}'"),
            Foreign::PartitionTable(name) => write!(out, "a partition table of type '{name}'"),
            Foreign::Member(name) => {
                write!(out, "a part of a volume group or array (type '{name}')")
            }
            Foreign::Encrypted(name) => write!(out, "an encrypted volume of type '{name}'"),
            Foreign::Other(name) => write!(out, "data of type '{name}'"),
            Foreign::Several => {
                out.write_str("more than one filesystem or partition table ('wipefs' lists them)")
            }
            Foreign::Zfs => out.write_str("something of ZFS"),
        }
    }
}

/// A device that others are kept off as long as this lives, or until it is lent
/// ([`Opener::lend`]). The default holds nothing.
#[derive(Debug, Clone, Default)]
pub struct Hold {
    _file: Option<Arc<Held>>,
}

impl Hold {
    pub(crate) fn new(file: Arc<Held>) -> Self {
        Self { _file: Some(file) }
    }
}

/// Bytes at offsets: a file, a disk, memory, or a simulated disk.
///
/// Operations may be in flight together and complete in any order; a write is durable only after
/// a later [`Device::flush`] that began after the write completed, but for a
/// [`Device::write_durable`].
///
/// Whoever drops the future of an operation does not wait for it any more. That does not take the
/// operation back: it happens, at some time, and its memory lives until it has.
pub trait Device: Send + Sync + Debug {
    /// Path or name, as a person would recognise it.
    fn path(&self) -> &str;
    /// Size in bytes.
    fn size_bytes(&self) -> u64;
    /// Smallest I/O the device does without read-modify-write, as a power of two in bytes.
    fn sector_bytes(&self) -> u32;
    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Nobody else gets the device for writing as long as this one is open, where the system can
    /// arrange that (of a device that was opened for writing that is true anyway). Fails with
    /// [`DeviceError::InUse`] when somebody has it for writing already.
    fn keep_writers_out(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async { Ok(()) })
    }
    /// Looks whether the device is still what its path names, and how big it is by now:
    /// [`Device::size_bytes`] tells that from then on. Fails when the path names nothing, or
    /// something else; opening it again is then worth a try.
    fn look_again(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async { Ok(()) })
    }
    /// Reads exactly `length_bytes` at `offset_bytes`.
    fn read(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> BoxFuture<'_, Result<Bytes, DeviceError>>;
    /// Writes all of `data` at `offset_bytes`.
    fn write(&self, offset_bytes: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>>;
    /// Writes the concatenation of `parts` at `offset_bytes`, as one operation where the device
    /// can. The default copies the parts together; real devices hand them over as they are.
    fn write_vectored(
        &self,
        offset_bytes: u64,
        parts: Vec<Bytes>,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let data = match <[Bytes; 1]>::try_from(parts) {
                Ok([single]) => single,
                Err(parts) => Bytes::from(parts.concat()),
            };
            self.write(offset_bytes, data).await
        })
    }
    /// How many operations that were begun are not answered yet, with those that nobody waits for
    /// any more: as long as there are any, what is on the device may still change.
    fn outstanding(&self) -> usize {
        0
    }
    /// Makes every completed write durable. Where it fails, whatever was not durable may be lost,
    /// and it alone is told so: others that flush or write durably, meanwhile or later, may
    /// succeed.
    fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>>;
    /// Writes all of `data` at `offset_bytes`, and is durable when it is done, in one go where the
    /// device can. It alone: nothing that was written before need be durable by that, and what is
    /// not waits for a [`Device::flush`] as before.
    ///
    /// Where it fails, nobody knows whether the write did, or a flush that was needed for it: the
    /// device may have lost anything that it had taken before and that was not durable, and say at
    /// the next flush that all is well. The default writes, and flushes.
    fn write_durable(
        &self,
        offset_bytes: u64,
        data: Bytes,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.write(offset_bytes, data).await?;
            self.flush().await
        })
    }
    /// Whether [`Device::discard`] reaches the medium.
    fn supports_discard(&self) -> bool {
        true
    }
    /// Tells the device that the range holds nothing of interest (its content becomes undefined).
    fn discard(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'_, Result<(), DeviceError>>;
}

/// Time, real or virtual.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the Unix epoch.
    fn wall_ns(&self) -> u64;
    /// Nanoseconds since some fixed moment; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Randomness: the system's, or a seeded generator.
pub trait Random: Send + Sync {
    /// Fills `out`.
    fn fill(&self, out: &mut [u8]);
    /// A uniformly distributed number.
    fn next_u64(&self) -> u64 {
        let mut raw = [0u8; 8];
        self.fill(&mut raw);
        u64::from_le_bytes(raw)
    }
}

/// Starts tasks that live on their own.
pub trait Spawn: Send + Sync {
    /// Runs `task` to its end, concurrently with the caller.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// The same for a task that has little to do when the device has answered for which it waits:
    /// it may go on on the device's thread, and must not block. The caller polls it here.
    fn spawn_near(&self, task: BoxFuture<'static, ()>) {
        self.spawn(task);
    }
}

/// Runs work that needs a CPU for long (compression, checksums of big blocks, parity).
pub trait Cpu: Send + Sync {
    /// Runs `work` away from the caller's task; in simulation, right here.
    fn run(&self, work: Box<dyn FnOnce() + Send>);
    /// How many pieces of work run at the same time.
    fn parallelism(&self) -> usize;
}

/// Finds and opens devices by path.
pub trait Opener: Send + Sync {
    /// Opens the file, block device or simulated disk called `path`.
    fn open<'a>(
        &'a self,
        path: &'a str,
        read_only: bool,
    ) -> BoxFuture<'a, Result<Arc<dyn Device>, DeviceError>>;

    /// What is in a directory; nothing where the path is none, or where there are only devices that
    /// belong to this process alone.
    fn entries<'a>(
        &'a self,
        _path: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<Entry>>, DeviceError>> {
        Box::pin(async { Ok(None) })
    }

    /// Whether another process holds the device for writing, so that what is read of it may change
    /// at any time. Never where devices belong to this process alone.
    fn is_held<'a>(&'a self, _path: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async { false })
    }

    /// What other software has on the device, or a pool: who is about to overwrite it asks. Nothing
    /// where devices belong to this process alone. Fails with [`DeviceError::Unexamined`] when that
    /// cannot be found out.
    fn foreign<'a>(
        &'a self,
        _path: &'a str,
    ) -> BoxFuture<'a, Result<Option<Foreign>, DeviceError>> {
        Box::pin(async { Ok(None) })
    }

    /// Keeps others off a device that is not used for now, where the system can arrange that. Fails
    /// with [`DeviceError::InUse`] when another process has it.
    fn hold<'a>(&'a self, _path: &'a str) -> BoxFuture<'a, Result<Hold, DeviceError>> {
        Box::pin(async { Ok(Hold::default()) })
    }

    /// Lets this process open a device for writing although it holds it: several pools may hold a
    /// spare, one of which is to use it now. Whoever asks next to hold it keeps others off again.
    fn lend<'a>(&'a self, _path: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// The world, as handed to every constructor that needs it. Cheap to clone.
#[derive(Clone)]
pub struct World {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Tasks.
    pub spawn: Arc<dyn Spawn>,
    /// CPU workers.
    pub cpu: Arc<dyn Cpu>,
    /// Devices.
    pub opener: Arc<dyn Opener>,
}

impl World {
    /// Runs `work` on a CPU worker and waits for its result. Dropping the future lets the work
    /// finish and discards its result.
    pub async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.cpu.run(Box::new(move || {
            let _ = send.send(work());
        }));
        receive
            .await
            .expect("a CPU worker never drops work it accepted")
    }
}
