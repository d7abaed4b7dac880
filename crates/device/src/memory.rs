//! A device in memory, for tests: sparse, without latency or faults (see [`crate::sim`] for those).

use bytes::Bytes;
use parking_lot::RwLock;

use crate::sparse::Sparse;
use crate::{BoxFuture, Device, DeviceError};

/// A sparse device in memory; every write is durable at once.
pub struct MemoryDevice {
    path: String,
    size_bytes: u64,
    read_only: bool,
    bytes: RwLock<Sparse>,
}

impl MemoryDevice {
    /// A device of `size_bytes` zeros, called `path` in messages.
    pub fn new(path: impl Into<String>, size_bytes: u64) -> Self {
        MemoryDevice {
            path: path.into(),
            size_bytes,
            read_only: false,
            bytes: RwLock::new(Sparse::default()),
        }
    }

    /// A device that holds `image` and refuses writes when `read_only`.
    pub fn from_image(path: impl Into<String>, image: &[u8], read_only: bool) -> Self {
        let mut bytes = Sparse::default();
        bytes.write(0, image);
        MemoryDevice {
            path: path.into(),
            size_bytes: image.len() as u64,
            read_only,
            bytes: RwLock::new(bytes),
        }
    }

    /// Bytes of memory in use for the content.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes.read().resident_bytes()
    }

    fn writable(&self, op: &'static str, offset: u64, length: u64) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(read_only_error(&self.path, op, offset, length));
        }
        check_range(&self.path, op, offset, length, self.size_bytes)
    }
}

/// The error of a write to a device that was opened read-only.
pub(crate) fn read_only_error(
    path: &str,
    op: &'static str,
    offset_bytes: u64,
    length_bytes: u64,
) -> DeviceError {
    DeviceError::Io {
        path: path.to_owned(),
        op,
        offset_bytes,
        length_bytes,
        source: std::io::ErrorKind::ReadOnlyFilesystem.into(),
    }
}

/// Refuses what reaches past the end of a device, and offsets that overflow.
pub(crate) fn check_range(
    path: &str,
    op: &'static str,
    offset_bytes: u64,
    length_bytes: u64,
    size_bytes: u64,
) -> Result<(), DeviceError> {
    match offset_bytes.checked_add(length_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(DeviceError::OutOfRange {
            path: path.to_owned(),
            op,
            offset_bytes,
            length_bytes,
            size_bytes,
        }),
    }
}

impl Device for MemoryDevice {
    fn path(&self) -> &str {
        &self.path
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn sector_bytes(&self) -> u32 {
        512
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DeviceError>> {
        Box::pin(async move {
            check_range(&self.path, "read", offset, length as u64, self.size_bytes)?;
            let mut out = vec![0; length];
            self.bytes.read().read(offset, &mut out);
            Ok(out.into())
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.writable("write", offset, data.len() as u64)?;
            self.bytes.write().write(offset, &data);
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, offset: u64, length: u64) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.writable("discard", offset, length)?;
            self.bytes.write().clear(offset, length);
            Ok(())
        })
    }
}

impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MemoryDevice")
            .field("path", &self.path)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}
