//! Blocks of intent logs: allocated before their txg is written, written at once, read at import.
//!
//! A log block does not go through compression or the cache. Its checksum is in the block, in the
//! header that chains it to the next one. A write of a log block that fails never suspends the
//! pool: whoever waits for it waits for the txg instead.
//!
//! `zpool import -m` gives up blocks that are on log vdevs that are missing, or that cannot be
//! read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use codec::checksum::{seal, seal_beside_mac};
use codec::crypt::BlockCrypt;
use device::{Random, WriteBuffer};
use format::{
    BlockPointer, Checksum, Compression, CryptParams, Dva, Endian, ObjectType, ObjsetId,
    RegularPointer, Txg, ZilLink, ZilSequence,
};
use vdev::{AllocClass, IoContext, Priority, VdevTree};

use super::LogPlaces;
use super::keys::Keys;
use super::suspension::Suspension;
use crate::alloc::{Allocator, Request};
use crate::error::{ZioError, bug, name_of};

/// Offset of the MAC in an intent log block: the last two words of its chain's checksum.
const LOG_MAC_OFFSET: usize = ZilLink::ECK_OFFSET + 8 + 16;

/// Allocates, writes and opens blocks of intent logs.
pub struct LogBlocks {
    pub(super) random: Arc<dyn Random>,
    pub(super) tree: Arc<VdevTree>,
    pub(super) allocator: Arc<Allocator>,
    pub(super) keys: Arc<Keys>,
    pub(super) suspension: Arc<Suspension>,
    /// What intent logs have on log vdevs that are missing counts as never written.
    pub(super) without_lost_logs: AtomicBool,
    /// What cannot be read of an intent log counts as never written.
    pub(super) without_unreadable_logs: AtomicBool,
    /// The pool is of a version in which we write no logs.
    pub(super) are_refused: AtomicBool,
}

impl LogBlocks {
    /// Makes intent logs end where they go on on a log vdev that is missing (`zpool import -m`).
    pub fn give_up_lost(&self) {
        self.without_lost_logs.store(true, Ordering::Relaxed);
    }

    /// Whether an intent log's block is given up: see [`Self::give_up_lost`].
    pub fn is_given_up(&self, block: &BlockPointer) -> bool {
        self.without_lost_logs.load(Ordering::Relaxed) && self.tree.topology().is_on_lost_log(block)
    }

    /// Makes intent logs end where they cannot be read, whatever was in them (`zpool import -m`).
    pub fn give_up_unreadable(&self) {
        self.without_unreadable_logs.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::give_up_unreadable`] was said.
    pub fn gives_up_unreadable(&self) -> bool {
        self.without_unreadable_logs.load(Ordering::Relaxed)
    }

    /// Whether there are to be new blocks; where not, whoever wants one waits for the txg.
    pub fn allow(&self, are_allowed: bool) {
        self.are_refused.store(!are_allowed, Ordering::Release);
    }

    /// Counts a block that is allocated as space that an intent log holds, if it is one of a log's
    /// chain.
    pub fn note_held(&self, bp: &BlockPointer) {
        if bp.object_type() == ObjectType::INTENT_LOG {
            bp.dvas().for_each(|dva| self.allocator.note_log_held(&dva));
        }
    }

    /// Allocates an intent log block of exactly `size_bytes` (`zio_alloc_zil`, as of 2.4): on log
    /// vdevs if `places` says so and there is room, else among the data if that is allowed, there
    /// on special vdevs while they have more room than what is kept for metadata. Its checksum
    /// words are zero: the caller sets them to the log's nonce and sequence
    /// ([`BlockPointer::set_checksum`]) before writing. `encrypted` is the object set whose key the
    /// block will be encrypted with; none for a log whose dataset is not encrypted, whatever keys
    /// are loaded.
    ///
    /// # Errors
    /// [`ZioError::NoSpace`], [`ZioError::KeyNotLoaded`]: then wait for the txg instead.
    /// [`ZioError::Suspended`] while the pool is suspended.
    pub async fn allocate(
        &self,
        txg: Txg,
        size_bytes: u64,
        encrypted: Option<ObjsetId>,
        places: LogPlaces,
    ) -> Result<BlockPointer, ZioError> {
        self.suspension.check_writable()?;
        if let Some(error) = self.suspension.error() {
            return Err(error);
        }
        if self.are_refused.load(Ordering::Acquire) {
            return Err(ZioError::NoSpace { size_bytes, txg });
        }
        // Before there is anything to give back.
        let crypt = match encrypted {
            Some(objset) => Some(self.crypt_params(objset)?),
            None => None,
        };
        let classes = [
            (places.on_log_devices, AllocClass::Log),
            // They are as quick, and what they hold is lost with them in any case.
            (
                places.on_log_devices && places.among_data && self.allocator.has_special_room(),
                AllocClass::Special,
            ),
            (places.among_data, AllocClass::Normal),
        ];
        let mut found = Err(ZioError::NoSpace { size_bytes, txg });
        for (is_allowed, class) in classes {
            if !is_allowed || found.is_ok() {
                continue;
            }
            let request = Request {
                txg,
                psize_bytes: size_bytes,
                copies: 1,
                class,
                fallback: false,
                gang: false,
            };
            found = self.allocator.allocate(&request).await;
        }
        let dvas = found?;
        for dva in dvas.iter().flatten() {
            self.allocator.note_log_held(dva);
        }
        Ok(BlockPointer::regular(&RegularPointer {
            dvas,
            lsize_bytes: size_bytes,
            psize_bytes: size_bytes,
            compression: Compression::Off,
            checksum_kind: Checksum::Zilog2,
            object_type: ObjectType::INTENT_LOG,
            level: 0,
            dedup: false,
            uses_crypt: crypt.is_some(),
            rewritten: false,
            endian: Endian::Little,
            fill: 0,
            logical_birth: txg,
            physical_birth: txg,
            checksum: [0; 4],
            crypt,
        })?)
    }

    /// Writes an intent log block: encrypts it and sets the checksum in its chain header (`zc_eck`;
    /// `zc_nused` must be set), where it is, and writes it from there. It may be shorter than the
    /// pointer says when the rest is not used; whole 4 KiB. Durable on return, it alone, if that is
    /// asked for; else after [`Self::flush`] or [`super::Pipeline::flush`].
    ///
    /// # Errors
    /// [`vdev::VdevError::VdevUnavailable`] when it could not be written, or a device did not take
    /// it that a crash would let be trusted, [`ZioError::Suspended`]: then wait for the txg
    /// instead.
    pub async fn write(
        &self,
        bp: &BlockPointer,
        mut block: WriteBuffer,
        durable: bool,
    ) -> Result<(), ZioError> {
        self.suspension.check_writable()?;
        if let Some(error) = self.suspension.error() {
            return Err(error);
        }
        self.encrypt(bp, block.as_mut())?;
        let seal = if bp.is_encrypted() {
            seal_beside_mac
        } else {
            seal
        };
        seal(
            bp.checksum_kind(),
            Endian::Little,
            &bp.checksum(),
            block.as_mut(),
        )
        .map_err(bug)?;
        let io = IoContext {
            priority: Priority::Sync,
            birth: bp.physical_birth(),
            durable,
            ..IoContext::default()
        };
        let psize = bp.psize_bytes() as usize;
        let unavailable = |cause: String| {
            ZioError::Vdev(vdev::VdevError::VdevUnavailable {
                vdev: name_of(bp),
                cause,
            })
        };
        let is_striped = |dva: Dva| {
            let top = self.tree.top(dva.vdev());
            top.and_then(|top| top.geometry())
                .is_none_or(|geometry| geometry.parity() > 0)
        };
        if block.len() > psize || bp.dvas().any(is_striped) {
            // RAID-Z's columns depend on the length: it is read back whole.
            block.resize(psize);
        }
        let data = block.into_bytes();
        for dva in bp.dvas() {
            self.tree
                .write_log_block(dva.vdev(), dva.offset_bytes(), data.clone(), &io)
                .await
                .map_err(|error| unavailable(error.cause))
                .and_then(|()| match durable {
                    true => Ok(self.tree.settle_written(dva.vdev())?),
                    false => Ok(()),
                })
                .inspect_err(|_| self.leave_failed_logs())?;
        }
        if durable {
            self.tree.topology().check_recorded(bp)?;
        }
        Ok(())
    }

    /// Makes the completed writes of these blocks durable: flushes the vdevs that they are on. A
    /// failure does not suspend the pool: the blocks of a log are not needed once their txg is on
    /// disk.
    ///
    /// # Errors
    /// [`ZioError::Suspended`], or [`vdev::VdevError::VdevUnavailable`] when a device did not take
    /// them that a crash would let be trusted: then wait for the txg instead.
    pub async fn flush(&self, blocks: &[BlockPointer]) -> Result<(), ZioError> {
        self.suspension.check_writable()?;
        let mut ids: Vec<_> = blocks
            .iter()
            .flat_map(|bp| bp.dvas())
            .map(|dva| dva.vdev())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let tops: Vec<_> = ids.into_iter().filter_map(|id| self.tree.top(id)).collect();
        self.tree
            .flush_tops(&tops)
            .await
            .inspect_err(|_| self.leave_failed_logs())?;
        Ok(blocks
            .iter()
            .try_for_each(|bp| self.tree.topology().check_recorded(bp))?)
    }

    /// Decrypts a block of an intent log, given as it is stored; one that is not encrypted is given
    /// back.
    ///
    /// # Errors
    /// [`ZioError::KeyNotLoaded`], [`ZioError::Authentication`].
    pub fn open(&self, bp: &BlockPointer, stored: Bytes) -> Result<Bytes, ZioError> {
        let Some(params) = bp.crypt() else {
            return Ok(stored);
        };
        let objset = ZilSequence::from_checksum(bp.checksum()).objset;
        let key = self.keys.require(objset, || name_of(bp))?;
        let mut block = stored.to_vec();
        let short = || ZioError::Authentication { block: name_of(bp) };
        let mac = *block
            .get(LOG_MAC_OFFSET..)
            .and_then(|rest| rest.first_chunk::<16>())
            .ok_or_else(short)?;
        // The log's pointer keeps the byte order of who wrote it, as the block does.
        let (salt, iv) = params.to_bytes(bp.endian());
        let crypt = BlockCrypt { salt, iv, mac };
        key.data()
            .decrypt(bp.object_type(), bp.endian(), &crypt, &mut block)
            .map_err(|_| short())?;
        Ok(block.into())
    }

    /// Salt and IV for the pointer of a new intent log block of an encrypted dataset
    /// (`zio_alloc_zil`).
    fn crypt_params(&self, objset: ObjsetId) -> Result<CryptParams, ZioError> {
        let key = self
            .keys
            .require(objset, || "a new intent log block".to_owned())?;
        let (salt, iv) = key.fresh(&*self.random);
        Ok(CryptParams::from_bytes(salt, iv))
    }

    /// Encrypts an intent log block that is about to be written: everything but its checksum is
    /// set.
    fn encrypt(&self, bp: &BlockPointer, block: &mut [u8]) -> Result<(), ZioError> {
        let Some(params) = bp.crypt() else {
            return Ok(());
        };
        let objset = ZilSequence::from_checksum(bp.checksum()).objset;
        let key = self.keys.require(objset, || name_of(bp))?;
        let (salt, iv) = params.to_bytes(Endian::Little);
        let mac = key
            .data()
            .encrypt(bp.object_type(), Endian::Little, &salt, &iv, block)
            .map_err(bug)?;
        block[LOG_MAC_OFFSET..LOG_MAC_OFFSET + mac.len()].copy_from_slice(&mac);
        Ok(())
    }

    /// Log vdevs that cannot be written get no blocks any more: intent logs go to the main vdevs.
    /// They get none when they are back either, before somebody says so to the allocator.
    pub fn leave_failed_logs(&self) {
        for top in self.tree.tops() {
            let is_log = top.is_log();
            if is_log && !top.state().0.is_usable() {
                self.allocator.set_allocatable(top.vdev_id(), false);
            }
        }
    }
}
