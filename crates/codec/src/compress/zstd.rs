//! Zstandard as ZFS stores it (include/sys/zstd/zstd.h, module/zstd/zfs_zstd.c).
//!
//! | Bytes | Content |
//! |---|---|
//! | 0..4 | length of the frame, big-endian |
//! | 4 | level, as ZFS numbers them ([`ZstdLevel`]) |
//! | 5..8 | version of the library, big-endian |
//! | 8.. | one frame without magic, content size and checksum |
//!
//! (Pools written by big-endian machines may have level and version the other way round; neither
//! is needed to decompress.)

use std::cell::RefCell;

use format::Compression;
use zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective, get_error_name};

use super::CompressError;

const HEADER_BYTES: usize = 8;
/// What the library answers when the output does not fit (its codes are negative numbers).
const NO_ROOM: usize = (ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize).wrapping_neg();

/// A level of zstd, as ZFS numbers them (`enum zio_zstd_levels`, include/sys/zio_compress.h):
/// 1 to 19, and from 103 on the fast ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZstdLevel(u8);

/// ZFS's number of `zstd-fast-1`; the other fast levels follow in the order of [`FAST`].
const FAST_FIRST: u8 = 103;
/// What the fast levels stand for.
const FAST: [u16; 21] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000,
];
const LEVEL_MAX: u8 = 19;
const LEVEL_DEFAULT: u8 = 3;

impl ZstdLevel {
    /// The level `zstd` stands for: 3.
    pub const DEFAULT: ZstdLevel = ZstdLevel(LEVEL_DEFAULT);
    /// `zstd-1`.
    pub const LOWEST: ZstdLevel = ZstdLevel(1);

    /// Every level.
    pub fn all() -> impl Iterator<Item = Self> {
        let fast = (FAST_FIRST..).take(FAST.len());
        (1..=LEVEL_MAX).chain(fast).map(ZstdLevel)
    }

    /// From ZFS's number; 0 (inherit) and 255 (default) stand for the default.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 | u8::MAX => Some(Self::DEFAULT),
            1..=LEVEL_MAX => Some(ZstdLevel(code)),
            _ if code >= FAST_FIRST && usize::from(code - FAST_FIRST) < FAST.len() => {
                Some(ZstdLevel(code))
            }
            _ => None,
        }
    }

    /// The level called `zstd-LEVEL`.
    pub fn normal(level: u8) -> Option<Self> {
        (1..=LEVEL_MAX).contains(&level).then_some(ZstdLevel(level))
    }

    /// The level called `zstd-fast-LEVEL`.
    pub fn fast(level: u16) -> Option<Self> {
        let index = FAST.iter().position(|known| *known == level)?;
        Some(ZstdLevel(FAST_FIRST + index as u8))
    }

    /// ZFS's number, as headers and properties store it.
    pub fn code(self) -> u8 {
        self.0
    }

    /// Whether it is one of the `zstd-fast` levels.
    pub fn is_fast(self) -> bool {
        self.0 >= FAST_FIRST
    }

    /// The library's number: negative for the fast ones.
    fn library_level(self) -> i32 {
        match self.0.checked_sub(FAST_FIRST) {
            Some(index) => -i32::from(FAST[usize::from(index)]),
            None => i32::from(self.0),
        }
    }
}

impl Default for ZstdLevel {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl std::fmt::Display for ZstdLevel {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.checked_sub(FAST_FIRST) {
            Some(index) => write!(out, "zstd-fast-{}", FAST[usize::from(index)]),
            None => write!(out, "zstd-{}", self.0),
        }
    }
}

thread_local! {
    /// Contexts are some hundred kilobytes and slow to make: one of each per thread.
    static COMPRESSOR: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    static DECOMPRESSOR: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Compresses, or gives up (`None`) where the output would be longer than `output_bytes_max`.
///
/// # Errors
/// [`CompressError::Library`].
pub(super) fn compress(
    level: ZstdLevel,
    data: &[u8],
    output_bytes_max: usize,
) -> Result<Option<Vec<u8>>, CompressError> {
    let room = output_bytes_max.min(super::BLOCK_BYTES_MAX);
    let mut out = vec![0; room];
    let Some((header, frame)) = out.split_first_chunk_mut::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let compressed = COMPRESSOR.with_borrow_mut(|context| {
        // A frame that found no room is still open in the context, which takes no parameters
        // until it is reset.
        context.reset(ResetDirective::SessionOnly)?;
        for parameter in [
            CParameter::CompressionLevel(level.library_level()),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ChecksumFlag(false),
            CParameter::ContentSizeFlag(false),
        ] {
            context.set_parameter(parameter)?;
        }
        context.compress2(frame, data)
    });
    let length = match compressed {
        Ok(length) => length,
        Err(code) if code == NO_ROOM => return Ok(None),
        Err(code) => {
            return Err(CompressError::Library {
                kind: Compression::Zstd,
                input_bytes: data.len(),
                what: get_error_name(code),
            });
        }
    };
    let version = zstd_safe::version_number().to_be_bytes();
    let frame_bytes = u32::try_from(length).expect("no longer than a block");
    let [a, b, c, d] = frame_bytes.to_be_bytes();
    *header = [a, b, c, d, level.0, version[1], version[2], version[3]];
    out.truncate(HEADER_BYTES + length);
    Ok(Some(out))
}

/// Decompresses to exactly `output_bytes` bytes; what follows the frame is padding.
pub(super) fn decompress(data: &[u8], output_bytes: usize) -> Option<Vec<u8>> {
    let (header, rest) = data.split_first_chunk::<HEADER_BYTES>()?;
    let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let frame = rest.get(..length as usize)?;
    let mut out = vec![0; output_bytes];
    let written = DECOMPRESSOR.with_borrow_mut(|context| {
        // Whatever an earlier block left behind says nothing about this one.
        let format = DParameter::Format(FrameFormat::Magicless);
        (context.reset(ResetDirective::SessionOnly))
            .and_then(|_| context.set_parameter(format))
            .expect("a context without a frame takes its parameters");
        context.decompress(&mut out[..], frame).ok()
    })?;
    (written == output_bytes).then_some(out)
}

/// Level and library version from the header of a compressed block, if they make sense. Writing
/// a block again the way it was written (to L2ARC, or for nop-writes) wants the level.
pub fn header(data: &[u8]) -> Option<(ZstdLevel, u32)> {
    let raw = data.get(4..HEADER_BYTES)?;
    let version = |bytes: [u8; 3]| u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
    // The version's high byte is zero for every release there is; where it stands tells the layout.
    let (code, version) = if raw[1] == 0 {
        (raw[0], version([raw[1], raw[2], raw[3]]))
    } else if raw[0] == 0 {
        (raw[3], version([raw[0], raw[1], raw[2]]))
    } else {
        return None;
    };
    let level = ZstdLevel::from_code(code).filter(|level| level.0 == code)?;
    Some((level, version))
}
