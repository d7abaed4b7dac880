//! Putting a damaged block right with what it held, from elsewhere (`do_corrective_recv`,
//! module/zfs/dmu_recv.c).
//!
//! Whoever has the content has it as data, or as it was stored. It is compressed, encrypted and
//! padded as the block's pointer says that it was, and written to the block's places only if that
//! has the checksum in the pointer: nothing but what was there before can come to be there. A block
//! that can be read is left alone.
//!
//! # What a crash leaves
//! A block that was being written may still be damaged, as it was.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use codec::compress::{ZstdLevel, compress, decompress};
use format::{BlockPointer, Compression};

use super::ReadContext;
use super::check::BlockCheck;
use super::copies::io_context;
use super::keys::BlockKey;
use super::read::{Reader, validate};
use crate::cache::CacheKey;
use crate::error::{ZioError, name_of};

/// What a block held.
#[derive(Debug, Clone)]
pub enum Replacement {
    /// Its data, in the byte order in which it was written.
    Data(Bytes),
    /// Its data, compressed; perhaps as it was stored, but not encrypted.
    Compressed {
        /// What it decompresses from; zeros may be missing at the end.
        stored: Bytes,
        /// How it is compressed; a stored kind, not `Off`.
        compression: Compression,
    },
    /// All that was stored: compressed, encrypted and padded.
    Raw(Bytes),
}

/// What became of a block that was to be put right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Healing {
    /// It can be read: nothing was done.
    Sound,
    /// It was damaged and can be read now.
    Healed,
    /// It is damaged, and what was given does not make up what was stored.
    Unlike,
}

impl Reader {
    /// Reads a block from the disks, and writes it anew in its place where no copy of it is right.
    /// `level` is the level of zstd that is tried first. The block must not be freed meanwhile.
    ///
    /// # Errors
    /// As [`Self::read`], for what is not about its checksum; [`ZioError::ReadOnly`];
    /// [`ZioError::KeyNotLoaded`] of an encrypted block, unless all that was stored is given.
    pub async fn heal(
        &self,
        bp: &BlockPointer,
        context: &ReadContext,
        replacement: Replacement,
        level: ZstdLevel,
    ) -> Result<Healing, ZioError> {
        if CacheKey::of(bp).is_none() {
            return Ok(Healing::Sound);
        }
        validate(bp)?;
        match self.read_stored(bp, context).await {
            Ok(_) => return Ok(Healing::Sound),
            Err(ZioError::Checksum { .. }) => {}
            Err(error) => return Err(error),
        }
        self.copies.suspension.check_writable()?;
        let is_locked = bp.uses_crypt() && bp.object_type().is_encrypted();
        let key = match replacement {
            Replacement::Raw(_) => None,
            _ if !is_locked => None,
            _ => Some((self.keys).require(context.bookmark.objset, || name_of(bp))?),
        };
        let restoring = Restoring {
            bp: *bp,
            key,
            check: BlockCheck::of_content(bp, &self.world, self.copies.salt.get()),
            level,
        };
        let stored = self
            .world
            .compute(move || restoring.run(&replacement))
            .await;
        let Some(stored) = stored else {
            return Ok(Healing::Unlike);
        };
        if bp.is_gang() {
            self.gangs.heal(bp, context, stored).await?;
        } else {
            let io = io_context(bp, context);
            self.copies.put_right(bp, stored, &io).await?;
        }
        self.read_stored(bp, context).await?;
        self.copies.report_healed(bp, context.bookmark);
        Ok(Healing::Healed)
    }
}

/// From what a block held to what was stored of it.
struct Restoring {
    bp: BlockPointer,
    key: Option<Arc<BlockKey>>,
    check: BlockCheck,
    level: ZstdLevel,
}

impl Restoring {
    fn run(&self, replacement: &Replacement) -> Option<Bytes> {
        match replacement {
            Replacement::Raw(stored) => Some(stored.clone()).filter(|it| self.is_it(it)),
            Replacement::Data(data) => self.of_data(data),
            Replacement::Compressed {
                stored,
                compression,
            } => {
                if *compression == self.bp.compression()
                    && let Some(found) = self.sealed(stored)
                {
                    return Some(found);
                }
                let length = self.bp.lsize_bytes() as usize;
                let data = decompress(*compression, stored, length).ok()?;
                self.of_data(&data.into())
            }
        }
    }

    /// Compresses data in the ways in which it may have been compressed.
    fn of_data(&self, data: &Bytes) -> Option<Bytes> {
        let compression = self.bp.compression();
        if data.len() as u64 != self.bp.lsize_bytes() {
            return None;
        }
        if compression == Compression::Off {
            return self.sealed(data);
        }
        let most = self.bp.psize_bytes() as usize;
        let with = |level| {
            let smaller = compress(compression, level, data, most).ok().flatten()?;
            self.sealed(&smaller.into())
        };
        let found = with(self.level);
        if found.is_some() || compression != Compression::Zstd {
            return found;
        }
        // The property may have had another level when the block was written.
        ZstdLevel::all()
            .filter(|level| *level != self.level)
            .find_map(with)
    }

    /// Pads what is compressed, and encrypts it as the pointer says that it was; if that is what
    /// was stored.
    fn sealed(&self, compressed: &Bytes) -> Option<Bytes> {
        let length = self.bp.psize_bytes() as usize;
        if compressed.len() > length {
            return None;
        }
        let mut block = BytesMut::from(&compressed[..]);
        block.resize(length, 0);
        if let Some(key) = &self.key {
            let (salt, iv) = self.bp.crypt()?.to_bytes(self.bp.endian());
            let mut stored = Vec::from(block);
            let (kind, endian) = (self.bp.object_type(), self.bp.endian());
            let mac = (key.data())
                .encrypt(kind, endian, &salt, &iv, &mut stored)
                .ok()?;
            return (mac == self.bp.mac())
                .then(|| Bytes::from(stored))
                .filter(|stored| self.is_it(stored));
        }
        Some(block.freeze()).filter(|block| self.is_it(block))
    }

    fn is_it(&self, stored: &Bytes) -> bool {
        stored.len() as u64 == self.bp.psize_bytes() && self.check.holds(stored)
    }
}
