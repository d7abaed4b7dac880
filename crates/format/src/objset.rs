//! Object sets (`objset_phys_t`, include/sys/dmu_objset.h): the head of a dataset's objects.
//!
//! # Layout (byte order of the block)
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 512 | meta-dnode |
//! | 512 | 192 | [`ZilHeader`] |
//! | 704 | 8 | kind of object set |
//! | 712 | 8 | flags |
//! | 720 | 32 | portable MAC |
//! | 752 | 32 | local MAC |
//! | 784 | 240 | zero |
//! | 1024 | 512 | dnode of the users' space (from 2 KiB on) |
//! | 1536 | 512 | dnode of the groups' space (from 2 KiB on) |
//! | 2048 | 512 | dnode of the projects' space (in 4 KiB) |
//! | 2560 | 1536 | zero (in 4 KiB) |

use crate::blkptr::{BlockPointer, read_pointer};
use crate::bytes::{Endian, Put, Reader, exact};
use crate::dnode::{DNODE_SLOT_BYTES, DnodePhys};
use crate::error::{FormatError, Result, does_not_fit};
use crate::ids::Txg;

/// Size of an object set without space accounting (`OBJSET_PHYS_SIZE_V1`).
pub const OBJSET_BYTES_V1: usize = 1024;
/// Size with users' and groups' accounting (`OBJSET_PHYS_SIZE_V2`).
pub const OBJSET_BYTES_V2: usize = 2048;
/// Size with projects' accounting too (`OBJSET_PHYS_SIZE_V3`).
pub const OBJSET_BYTES_V3: usize = 4096;

const OBJSET: &str = "objset_phys_t";

/// What an object set holds (`dmu_objset_type_t`, include/sys/fs/zfs.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjsetKind {
    /// Nothing.
    None,
    /// The pool's own objects (the MOS).
    Meta,
    /// A filesystem.
    Filesystem,
    /// A volume.
    Volume,
    /// Something else; for tests.
    Other,
    /// A code that this release does not know.
    Unknown(u64),
}

impl ObjsetKind {
    /// From the stored code.
    pub const fn from_code(code: u64) -> Self {
        match code {
            0 => Self::None,
            1 => Self::Meta,
            2 => Self::Filesystem,
            3 => Self::Volume,
            4 => Self::Other,
            other => Self::Unknown(other),
        }
    }

    /// The stored code.
    pub const fn code(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Meta => 1,
            Self::Filesystem => 2,
            Self::Volume => 3,
            Self::Other => 4,
            Self::Unknown(code) => code,
        }
    }
}

/// Flags of an object set: space of users and groups is counted.
pub const OBJSET_FLAG_USER_ACCOUNTING: u64 = 1;
/// Flags of an object set: objects of users and groups are counted.
pub const OBJSET_FLAG_USER_OBJECT_ACCOUNTING: u64 = 2;
/// Flags of an object set: space and objects of projects are counted.
pub const OBJSET_FLAG_PROJECT_QUOTA: u64 = 4;

/// Head of a dataset's intent log (`zil_header_t`, include/sys/zil.h): 192 bytes.
///
/// Words: claim txg, replayed sequence, block pointer of the chain (16 words), highest claimed
/// block, flags, highest claimed record, three zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZilHeader {
    /// Txg in which the log's blocks were claimed after a crash; zero when not claimed.
    pub claim_txg: Txg,
    /// Highest sequence number of a record that was replayed.
    pub replay_sequence: u64,
    /// First block of the chain; a hole when there is no log.
    pub log: BlockPointer,
    /// Highest sequence number of a claimed block.
    pub claim_block_sequence: u64,
    /// Bits: [`Self::REPLAY_NEEDED`], [`Self::CLAIM_RECORD_SEQUENCE_VALID`].
    pub flags: u64,
    /// Highest sequence number of a claimed record.
    pub claim_record_sequence: u64,
}

impl ZilHeader {
    /// Size in bytes.
    pub const BYTES: usize = 192;
    /// Replay is needed (`ZIL_REPLAY_NEEDED`).
    pub const REPLAY_NEEDED: u64 = 1;
    /// `claim_record_sequence` is set (`ZIL_CLAIM_LR_SEQ_VALID`).
    pub const CLAIM_RECORD_SEQUENCE_VALID: u64 = 2;

    /// Decodes 192 bytes.
    ///
    /// # Errors
    /// [`FormatError::TooShort`].
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self> {
        let mut r = Reader::new("zil_header_t", bytes, endian);
        let header = Self {
            claim_txg: r.u64()?.into(),
            replay_sequence: r.u64()?,
            log: read_pointer(&mut r, endian)?,
            claim_block_sequence: r.u64()?,
            flags: r.u64()?,
            claim_record_sequence: r.u64()?,
        };
        r.skip(24)?;
        Ok(header)
    }

    /// The 192 bytes, little-endian.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.put_u64(self.claim_txg.get());
        out.put_u64(self.replay_sequence);
        out.extend_from_slice(&self.log.encode());
        out.put_words(&[
            self.claim_block_sequence,
            self.flags,
            self.claim_record_sequence,
        ]);
        out.put_zeros(24);
        exact(&out)
    }
}

/// An object set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjsetPhys {
    /// The object that holds all dnodes.
    pub meta_dnode: DnodePhys,
    /// Head of the intent log.
    pub zil_header: ZilHeader,
    /// What it holds.
    pub kind: ObjsetKind,
    /// Bits `OBJSET_FLAG_*`.
    pub flags: u64,
    /// MAC that survives a raw send.
    pub portable_mac: [u8; 32],
    /// MAC of what a raw send leaves behind.
    pub local_mac: [u8; 32],
    /// Space used per user and per group; `None` in a 1 KiB object set.
    pub user_group_used: Option<Box<[DnodePhys; 2]>>,
    /// Space used per project; `None` in object sets below 4 KiB.
    pub project_used: Option<Box<DnodePhys>>,
}

impl ObjsetPhys {
    /// Where the intent log's head ([`ZilHeader`]) is in the block (`os_zil_header`).
    pub const ZIL_HEADER_OFFSET: usize = 512;

    /// An empty object set of the full size (4 KiB).
    pub fn new(kind: ObjsetKind, meta_dnode: DnodePhys) -> Self {
        Self {
            meta_dnode,
            zil_header: ZilHeader::default(),
            kind,
            flags: 0,
            portable_mac: [0; 32],
            local_mac: [0; 32],
            user_group_used: Some(Box::new([DnodePhys::free(), DnodePhys::free()])),
            project_used: Some(Box::new(DnodePhys::free())),
        }
    }

    /// Size of the encoded object set in bytes.
    pub fn encoded_bytes(&self) -> usize {
        match (&self.user_group_used, &self.project_used) {
            (_, Some(_)) => OBJSET_BYTES_V3,
            (Some(_), None) => OBJSET_BYTES_V2,
            (None, None) => OBJSET_BYTES_V1,
        }
    }

    /// Decodes an object set of 1, 2 or 4 KiB.
    ///
    /// # Errors
    /// [`FormatError`] when a size or one of the dnodes is impossible.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self> {
        let dnode = |at: usize| -> Result<DnodePhys> {
            let slot = bytes
                .get(at..at + DNODE_SLOT_BYTES)
                .ok_or(FormatError::TooShort {
                    structure: OBJSET,
                    needed_bytes: (at + DNODE_SLOT_BYTES) as u64,
                    found_bytes: bytes.len() as u64,
                })?;
            DnodePhys::decode(slot, endian)
        };
        if bytes.len() < OBJSET_BYTES_V1 {
            return Err(FormatError::TooShort {
                structure: OBJSET,
                needed_bytes: OBJSET_BYTES_V1 as u64,
                found_bytes: bytes.len() as u64,
            });
        }
        let mut r = Reader::new(OBJSET, &bytes[DNODE_SLOT_BYTES..], endian);
        let zil_header = ZilHeader::decode(r.take(ZilHeader::BYTES)?, endian)?;
        let kind = ObjsetKind::from_code(r.u64()?);
        let flags = r.u64()?;
        let portable_mac = r.array()?;
        let local_mac = r.array()?;
        Ok(Self {
            meta_dnode: dnode(0)?,
            zil_header,
            kind,
            flags,
            portable_mac,
            local_mac,
            user_group_used: if bytes.len() >= OBJSET_BYTES_V2 {
                Some(Box::new([dnode(1024)?, dnode(1536)?]))
            } else {
                None
            },
            project_used: if bytes.len() >= OBJSET_BYTES_V3 {
                Some(Box::new(dnode(2048)?))
            } else {
                None
            },
        })
    }

    /// The object set's bytes, little-endian.
    ///
    /// # Errors
    /// [`FormatError::DoesNotFit`] when one of the dnodes takes more than one slot or cannot be
    /// encoded.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = vec![0; self.encoded_bytes()];
        let mut put = |at: usize, dnode: &DnodePhys| -> Result<()> {
            let bytes = dnode.encode()?;
            if bytes.len() != DNODE_SLOT_BYTES {
                let found = bytes.len() as u64;
                return Err(does_not_fit(
                    OBJSET,
                    "os_meta_dnode",
                    found,
                    "dnodes of one slot",
                ));
            }
            out[at..at + DNODE_SLOT_BYTES].copy_from_slice(&bytes);
            Ok(())
        };
        put(0, &self.meta_dnode)?;
        if let Some(used) = &self.user_group_used {
            put(1024, &used[0])?;
            put(1536, &used[1])?;
        }
        if let Some(used) = &self.project_used {
            put(2048, used)?;
        }
        let mut head = Vec::with_capacity(272);
        head.extend_from_slice(&self.zil_header.encode());
        head.put_u64(self.kind.code());
        head.put_u64(self.flags);
        head.extend_from_slice(&self.portable_mac);
        head.extend_from_slice(&self.local_mac);
        out[DNODE_SLOT_BYTES..DNODE_SLOT_BYTES + head.len()].copy_from_slice(&head);
        Ok(out)
    }
}
