//! Faults of blocks that somebody asked for ([`vdev::Injector`]): what the pipeline asks of each
//! copy that it reads, and of each block. Without faults it asks nothing but whether there are any.
//!
//! A checksum that is made to fail is a wrong answer to "is this right?" below, so that errors are
//! counted, other copies and redundancy are tried, and damage is reported as if a device had lied.
//! What is right may be written anew for that; nothing else ever is.

use bytes::Bytes;
use device::BoxFuture;
use format::{BlockPointer, Compression};
use vdev::{FaultError, Injector, IoContext, Verify};

use super::ReadContext;
use super::check::BlockCheck;
use crate::error::{ZioError, name_of};

/// A copy of a block that is being read while there are faults.
pub(super) struct Struck<'a> {
    pub(super) check: &'a BlockCheck,
    pub(super) faults: &'a Injector,
    pub(super) bp: &'a BlockPointer,
    pub(super) io: &'a IoContext,
    /// Which copy it is.
    pub(super) copy: Option<usize>,
}

impl Struck<'_> {
    fn is(&self, error: FaultError) -> bool {
        let (bookmark, kind) = (&self.io.bookmark, self.bp.object_type());
        self.faults.strikes_block(error, bookmark, kind, self.copy)
    }

    /// The circumstances of reading it: devices fail where they are to.
    pub(super) fn context(&self) -> IoContext {
        IoContext {
            strike: self.is(FaultError::Io),
            ..*self.io
        }
    }
}

impl Verify for Struck<'_> {
    fn verify<'a>(&'a self, data: &'a Bytes) -> BoxFuture<'a, bool> {
        if self.is(FaultError::Checksum) {
            return Box::pin(std::future::ready(false));
        }
        self.check.verify(data)
    }

    fn covered_bytes(&self) -> Option<usize> {
        self.check.covered_bytes()
    }

    fn can_tell(&self) -> bool {
        self.check.can_tell()
    }
}

/// The error of opening a block that is made to fail: of what is compressed, or encrypted
/// (`zio_decompress`, `zio_decrypt`, module/zfs/zio.c).
pub(super) fn opening_fault(
    faults: &Injector,
    bp: &BlockPointer,
    context: &ReadContext,
) -> Option<ZioError> {
    let (bookmark, kind) = (&context.bookmark, bp.object_type());
    let strikes = |error| faults.strikes_block(error, bookmark, kind, None);
    if bp.uses_crypt() && strikes(FaultError::Decrypt) {
        return Some(ZioError::Authentication { block: name_of(bp) });
    }
    let is_compressed = bp.compression() != Compression::Off;
    (is_compressed && strikes(FaultError::Decompress)).then(|| ZioError::Corrupt {
        block: name_of(bp),
        what: "it does not decompress, as somebody asked for that".to_owned(),
    })
}
