//! Labels (`vdev_label_t`, include/sys/vdev_impl.h): where on a leaf device ZFS's own data lies.
//!
//! A leaf has four labels of 256 KiB: two at its front, two at its end (after rounding its size
//! down to a multiple of 256 KiB). Behind the front labels 3.5 MiB are left for boot loaders; DVA
//! offsets count from there, that is from byte 4 MiB.
//!
//! # A label
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 8 KiB | blank, for disk labels |
//! | 8 KiB | 8 KiB | boot environment: version, text or XDR list, [`Eck`] |
//! | 16 KiB | 112 KiB | configuration: XDR list, zeros, [`Eck`] in the last 40 bytes |
//! | 128 KiB | 128 KiB | ring of uberblock slots ([`crate::Uberblock`]) |
//!
//! A slot is `1 << ashift` bytes, at least 1 KiB and at most 8 KiB; the uberblock of a txg goes to
//! slot `txg % slots`, where with multihost the last slot is kept for its heartbeat.

use crate::bytes::{Endian, Put, exact};
use crate::error::{FormatError, Result, bad, does_not_fit};
use crate::ids::Txg;
use crate::nvlist::{NvEncoding, NvList};

/// Size of a label in bytes.
pub const LABEL_BYTES: u64 = 256 << 10;
/// Labels of a leaf (`VDEV_LABELS`).
pub const LABEL_COUNT: usize = 4;
/// Offset of the boot environment in a label.
pub const LABEL_BOOT_ENV_OFFSET: u64 = 8 << 10;
/// Size of the boot environment (`VDEV_PAD_SIZE`).
pub const LABEL_BOOT_ENV_BYTES: usize = 8 << 10;
/// Offset of the configuration in a label (`VDEV_SKIP_SIZE`).
pub const LABEL_CONFIG_OFFSET: u64 = 16 << 10;
/// Size of the configuration (`VDEV_PHYS_SIZE`).
pub const LABEL_CONFIG_BYTES: usize = 112 << 10;
/// Offset of the ring of uberblocks in a label.
pub const LABEL_UBERBLOCK_OFFSET: u64 = 128 << 10;
/// Size of the ring of uberblocks (`VDEV_UBERBLOCK_RING`).
pub const LABEL_UBERBLOCK_RING_BYTES: u64 = 128 << 10;
/// Offset of the space for boot loaders on a leaf (`VDEV_BOOT_OFFSET`).
pub const BOOT_OFFSET: u64 = 2 * LABEL_BYTES;
/// Size of the space for boot loaders (`VDEV_BOOT_SIZE`). Raid-Z expansion uses it as scratch.
pub const BOOT_BYTES: u64 = 7 << 19;
/// Bytes at a leaf's front that are not allocated (`VDEV_LABEL_START_SIZE`); DVA offsets start
/// here.
pub const LABEL_START_BYTES: u64 = BOOT_OFFSET + BOOT_BYTES;
/// Bytes at a leaf's end that are not allocated (`VDEV_LABEL_END_SIZE`).
pub const LABEL_END_BYTES: u64 = 2 * LABEL_BYTES;
/// Smallest leaf that a pool can be made of (`SPA_MINDEVSIZE`, 64 MiB).
pub const MIN_DEVICE_BYTES: u64 = 64 << 20;

/// Offset of a label on a leaf (`vdev_label_offset`, module/zfs/vdev_label.c). `device_bytes` is
/// rounded down to whole labels first. `None` for a label beyond the fourth, or when the device has
/// no room for four labels.
pub const fn label_offset(device_bytes: u64, label: usize) -> Option<u64> {
    let aligned = device_bytes & !(LABEL_BYTES - 1);
    if label >= LABEL_COUNT || aligned < LABEL_COUNT as u64 * LABEL_BYTES {
        return None;
    }
    let at = label as u64 * LABEL_BYTES;
    Some(if label < 2 {
        at
    } else {
        aligned - LABEL_COUNT as u64 * LABEL_BYTES + at
    })
}

/// log2 of an uberblock slot's size on a top-level vdev of this ashift (`VDEV_UBERBLOCK_SHIFT`).
pub const fn uberblock_shift(ashift: u32) -> u32 {
    if ashift < 10 {
        10
    } else if ashift > 13 {
        13
    } else {
        ashift
    }
}

/// Slots in the ring (`VDEV_UBERBLOCK_COUNT`).
pub const fn uberblock_slots(ashift: u32) -> u64 {
    LABEL_UBERBLOCK_RING_BYTES >> uberblock_shift(ashift)
}

/// Offset of a slot in its label (`VDEV_UBERBLOCK_OFFSET`).
pub const fn uberblock_slot_offset(ashift: u32, slot: u64) -> u64 {
    LABEL_UBERBLOCK_OFFSET + ((slot % uberblock_slots(ashift)) << uberblock_shift(ashift))
}

/// The slot that a txg's uberblock goes to (`vdev_uberblock_sync`, module/zfs/vdev_label.c). With
/// multihost the last slot is not used for txgs.
pub const fn uberblock_slot(ashift: u32, txg: Txg, multihost: bool) -> u64 {
    txg.get() % (uberblock_slots(ashift) - multihost as u64)
}

/// A checksum at the end (intent log: in the head) of the block that it covers (`zio_eck_t`,
/// include/sys/zio.h): magic, then four words, all in the writer's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Eck {
    /// Byte order of the writer, as the magic tells.
    pub endian: Endian,
    /// The checksum's words.
    pub checksum: [u64; 4],
}

impl Eck {
    /// Size in bytes.
    pub const BYTES: usize = 40;
    /// The magic (`ZEC_MAGIC`).
    pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;

    /// One of ours.
    pub const fn new(checksum: [u64; 4]) -> Self {
        Self {
            endian: Endian::Little,
            checksum,
        }
    }

    /// Decodes 40 bytes; the magic tells the byte order.
    ///
    /// # Errors
    /// [`FormatError::BadField`] when the magic is not there in either order.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let mut words = Endian::Little.words(bytes);
        let magic = words.next().unwrap_or_default();
        let endian = match magic {
            Self::MAGIC => Endian::Little,
            other if other.swap_bytes() == Self::MAGIC => Endian::Big,
            other => return Err(bad("zio_eck_t", "zec_magic", other, "0x210da7ab10c7a11")),
        };
        let mut checksum = [0; 4];
        for (word, value) in checksum.iter_mut().zip(endian.words(&bytes[8..])) {
            *word = value;
        }
        Ok(Self { endian, checksum })
    }

    /// Decodes the last 40 bytes of a block.
    ///
    /// # Errors
    /// [`FormatError::TooShort`] or [`FormatError::BadField`].
    pub fn decode_tail(block: &[u8]) -> Result<Self> {
        let tail = block.last_chunk().ok_or(FormatError::TooShort {
            structure: "zio_eck_t",
            needed_bytes: Self::BYTES as u64,
            found_bytes: block.len() as u64,
        })?;
        Self::decode(tail)
    }

    /// The 40 bytes, in [`Self::endian`].
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let words = std::iter::once(Self::MAGIC).chain(self.checksum);
        for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = self.endian.u64_bytes(word);
        }
        out
    }

    /// Writes it over the last 40 bytes of a block.
    ///
    /// # Errors
    /// [`FormatError::TooShort`].
    pub fn put_tail(&self, block: &mut [u8]) -> Result<()> {
        let found_bytes = block.len() as u64;
        let tail = block
            .last_chunk_mut::<{ Self::BYTES }>()
            .ok_or(FormatError::TooShort {
                structure: "zio_eck_t",
                needed_bytes: Self::BYTES as u64,
                found_bytes,
            })?;
        *tail = self.encode();
        Ok(())
    }
}

/// Reads the configuration of a label: `bytes` is its 112 KiB (`vdev_phys_t`). The checksum in the
/// tail must have been verified before.
///
/// # Errors
/// [`FormatError`] when there is no configuration.
pub fn decode_label_config(bytes: &[u8]) -> Result<NvList> {
    let list = bytes
        .get(..LABEL_CONFIG_BYTES - Eck::BYTES)
        .ok_or(FormatError::TooShort {
            structure: "vdev_phys_t",
            needed_bytes: LABEL_CONFIG_BYTES as u64,
            found_bytes: bytes.len() as u64,
        })?;
    NvList::decode(list)
}

/// The 112 KiB of a label's configuration, with magic and zero checksum in the tail: the checksum
/// is to be filled in once the label's place is known, for it covers that too.
///
/// # Errors
/// [`FormatError::DoesNotFit`] when the list is too long.
pub fn encode_label_config(config: &NvList) -> Result<Vec<u8>> {
    let mut out = config.encode(NvEncoding::Xdr)?;
    if out.len() > LABEL_CONFIG_BYTES - Eck::BYTES {
        let found = out.len() as u64;
        return Err(does_not_fit(
            "vdev_phys_t",
            "vp_nvlist",
            found,
            "at most 114648 bytes",
        ));
    }
    out.resize(LABEL_CONFIG_BYTES, 0);
    Eck::new([0; 4]).put_tail(&mut out)?;
    Ok(out)
}

/// A label's boot environment (`vdev_boot_envblock_t`).
#[derive(Debug, Clone, PartialEq)]
pub enum BootEnv {
    /// Text for GRUB, up to a zero byte (`VB_RAW`). An empty one was never set.
    Raw(Vec<u8>),
    /// A list (`VB_NVLIST`).
    List(NvList),
    /// A version that this release does not know.
    Unknown(u64),
}

impl BootEnv {
    /// Bytes that the text or list may take.
    pub const MAX_BYTES: usize = LABEL_BOOT_ENV_BYTES - 8 - Eck::BYTES;

    /// Decodes 8 KiB, whose checksum must have been verified. The version is big-endian by
    /// definition (`vdev_label_read_bootenv`, module/zfs/vdev_label.c).
    ///
    /// # Errors
    /// [`FormatError`] when it is short or holds no list where it says so.
    pub fn decode(bytes: &[u8; LABEL_BOOT_ENV_BYTES]) -> Result<Self> {
        let version = Endian::Big.u64(exact(&bytes[..8]));
        let body = &bytes[8..8 + Self::MAX_BYTES];
        match version {
            0 => {
                let length = body
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap_or(body.len());
                Ok(Self::Raw(body[..length].to_vec()))
            }
            1 => NvList::decode(body).map(Self::List),
            other => Ok(Self::Unknown(other)),
        }
    }

    /// The 8 KiB, with magic and zero checksum in the tail.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when it is too long or of an unknown version.
    pub fn encode(&self) -> Result<[u8; LABEL_BOOT_ENV_BYTES]> {
        let (version, body) = match self {
            Self::Raw(text) => (0u64, text.clone()),
            Self::List(list) => (1, list.encode(NvEncoding::Xdr)?),
            Self::Unknown(version) => {
                let expected = "a known version";
                return Err(does_not_fit(
                    "vdev_boot_envblock_t",
                    "vbe_version",
                    *version,
                    expected,
                ));
            }
        };
        if body.len() > Self::MAX_BYTES {
            let found = body.len() as u64;
            return Err(does_not_fit(
                "vdev_boot_envblock_t",
                "vbe_bootenv",
                found,
                "8144 bytes",
            ));
        }
        let mut out = version.to_be_bytes().to_vec();
        out.extend_from_slice(&body);
        out.put_zeros(LABEL_BOOT_ENV_BYTES - out.len());
        Eck::new([0; 4]).put_tail(&mut out)?;
        Ok(exact(&out))
    }
}
