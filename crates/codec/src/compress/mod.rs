//! Block compression (`zio_compress_table`, module/zfs/zio_compress.c).
//!
//! On disk a compressed block is padded with zeros to whole sectors, so what [`decompress`] gets
//! may be longer than what [`compress`] gave: lz4 and zstd blocks start with their exact length,
//! the others know their end from the output's length.
//!
//! A block is stored compressed only when that saves an eighth ([`worthwhile_bytes`]).
//!
//! Input may be hostile: a wrong length, offset or header is an error, output is never longer
//! than asked for, and what is asked for is bounded by [`BLOCK_BYTES_MAX`].

mod lz4_runs;
mod lzjb;
#[cfg(test)]
mod tests;
mod zle;
mod zstd;

use std::cell::RefCell;
use std::io::Write;

use flate2::{Decompress, FlushDecompress, Status};
use format::Compression;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

pub use self::zstd::{ZstdLevel, header as zstd_header};

/// Longest block there is (`SPA_MAXBLOCKSIZE`): no output is longer.
pub const BLOCK_BYTES_MAX: usize = 16 << 20;

/// Why a block could not be compressed although it might shrink. It can be stored as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressError {
    /// The library failed, most likely for want of memory.
    #[error(
        "{kind} could not compress a block of {input_bytes} bytes ({what}); it is stored as it is, \
         give the server more memory"
    )]
    Library {
        /// Which compression.
        kind: Compression,
        /// Length of the block.
        input_bytes: usize,
        /// What the library says.
        what: &'static str,
    },
}

/// Why a block could not be decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecompressError {
    /// The data is no block of this kind that has this length.
    #[error(
        "{input_bytes} bytes do not decompress with {kind} to {output_bytes} bytes; the block is \
         damaged, read another copy or restore it"
    )]
    Corrupt {
        /// Which compression.
        kind: Compression,
        /// Length of the compressed data.
        input_bytes: usize,
        /// Length that the block pointer promises.
        output_bytes: usize,
    },
    /// The output would be longer than any block.
    #[error(
        "a block of {output_bytes} bytes is longer than any ({BLOCK_BYTES_MAX}); the block pointer \
         is damaged, scrub the pool"
    )]
    TooLong {
        /// Length that the block pointer promises.
        output_bytes: usize,
    },
    /// The code names no compression that is ever stored.
    #[error(
        "{kind} is not a compression that blocks have; upgrade Millpond, or the block pointer is \
         damaged"
    )]
    Unsupported {
        /// Which compression.
        kind: Compression,
    },
}

/// Longest that `length_bytes` may be compressed to for it to be worth it: seven eighths
/// (`zio_get_compression_max_size`, module/zfs/zio.c). The caller rounds the result of compression
/// up to sectors, and compares again.
pub const fn worthwhile_bytes(length_bytes: usize) -> usize {
    length_bytes - (length_bytes >> 3)
}

/// Compresses `data` to at most `output_bytes_max` bytes (use [`worthwhile_bytes`]), or tells that
/// it does not fit (`None`): such a block is stored as it is.
///
/// `level` matters to zstd only. Kinds that do not compress (`Off`, `Empty`, property values
/// and unknown codes) give `None`.
///
/// # Errors
/// [`CompressError`], which is no property of the block: whoever stores it uncompressed says why.
pub fn compress(
    kind: Compression,
    level: ZstdLevel,
    data: &[u8],
    output_bytes_max: usize,
) -> Result<Option<Vec<u8>>, CompressError> {
    if data.is_empty() || data.len() > BLOCK_BYTES_MAX {
        return Ok(None);
    }
    let compressed = match kind {
        Compression::Lz4 => lz4_compress(data, output_bytes_max),
        Compression::Zstd if !zstd_is_worth_trying(level, data, output_bytes_max)? => None,
        Compression::Zstd => zstd::compress(level, data, output_bytes_max)?,
        Compression::Gzip(level) => gzip_compress(level, data, output_bytes_max)?,
        Compression::Zle => zle::compress(data, output_bytes_max),
        Compression::Lzjb => lzjb::compress(data, output_bytes_max),
        Compression::Inherit
        | Compression::On
        | Compression::Off
        | Compression::Empty
        | Compression::Unknown(_) => None,
    };
    Ok(compressed.filter(|compressed| compressed.len() <= output_bytes_max))
}

/// Decompresses `data`, a block with or without its padding, to exactly `output_bytes` bytes.
///
/// # Errors
///
/// [`DecompressError`]; never a panic, whatever the input.
pub fn decompress(
    kind: Compression,
    data: &[u8],
    output_bytes: usize,
) -> Result<Vec<u8>, DecompressError> {
    if output_bytes > BLOCK_BYTES_MAX {
        return Err(DecompressError::TooLong { output_bytes });
    }
    let decompressed = match kind {
        Compression::Lz4 => lz4_decompress(data, output_bytes),
        Compression::Zstd => zstd::decompress(data, output_bytes),
        Compression::Gzip(_) => gzip_decompress(data, output_bytes),
        Compression::Zle => zle::decompress(data, output_bytes),
        Compression::Lzjb => lzjb::decompress(data, output_bytes),
        Compression::Off => data.get(..output_bytes).map(<[u8]>::to_vec),
        Compression::Empty => Some(vec![0; output_bytes]),
        Compression::Inherit | Compression::On | Compression::Unknown(_) => {
            return Err(DecompressError::Unsupported { kind });
        }
    };
    decompressed.ok_or(DecompressError::Corrupt {
        kind,
        input_bytes: data.len(),
        output_bytes,
    })
}

/// What LZ4 needs besides input and output, kept per thread.
struct Lz4Scratch {
    /// For inputs shorter than 64 KiB and for others: each size always uses the same one, so that
    /// the same block always compresses to the same bytes (dedup and nop-writes compare them).
    small: CompressTable,
    large: CompressTable,
    out: Vec<u8>,
}

thread_local! {
    static LZ4_SCRATCH: RefCell<Lz4Scratch> = RefCell::new(Lz4Scratch {
        small: CompressTable::small(),
        large: CompressTable::large(),
        out: Vec::new(),
    });
}

/// LZ4: the compressed length as a big-endian u32, then one LZ4 block (`zfs_lz4_compress_buf`,
/// module/zfs/lz4_zfs.c).
fn lz4_compress(data: &[u8], output_bytes_max: usize) -> Option<Vec<u8>> {
    const SMALL_BYTES_MAX: usize = u16::MAX as usize - 1;
    LZ4_SCRATCH.with_borrow_mut(|Lz4Scratch { small, large, out }| {
        let bound = get_maximum_output_size(data.len());
        if out.len() < bound {
            out.resize(bound, 0);
        }
        let table = if data.len() <= SMALL_BYTES_MAX {
            small
        } else {
            large
        };
        let length = compress_into_with_table(data, out, table).expect("there is room for any");
        let header = u32::try_from(length)
            .expect("no longer than a block")
            .to_be_bytes();
        (header.len() + length <= output_bytes_max).then(|| [&header, &out[..length]].concat())
    })
}

fn lz4_decompress(data: &[u8], output_bytes: usize) -> Option<Vec<u8>> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    let block = rest.get(..u32::from_be_bytes(*length) as usize)?;
    let mut out = vec![0; output_bytes];
    let written = if block.len() <= output_bytes / lz4_runs::RATIO_MIN {
        lz4_runs::decompress(block, &mut out)?
    } else {
        lz4_flex::block::decompress_into(block, &mut out).ok()?
    };
    (written == output_bytes).then_some(out)
}

/// Whether zstd may shrink `data` enough: for big blocks at level 3 and above, whose attempts are
/// dear, only if lz4 or zstd-1 can (the heuristic of `zfs_zstd_compress_buf`).
fn zstd_is_worth_trying(
    level: ZstdLevel,
    data: &[u8],
    output_bytes_max: usize,
) -> Result<bool, CompressError> {
    const BIG_BYTES: usize = 128 << 10;
    const DEAR_LEVEL: u8 = 3;
    Ok(level.is_fast()
        || level.code() < DEAR_LEVEL
        || data.len() < BIG_BYTES
        || lz4_compress(data, output_bytes_max).is_some()
        || zstd::compress(ZstdLevel::LOWEST, data, output_bytes_max)?.is_some())
}

/// Gzip: a zlib stream (RFC 1950), not a gzip file (`zfs_gzip_compress_buf`, module/zfs/gzip.c).
fn gzip_compress(
    level: u8,
    data: &[u8],
    output_bytes_max: usize,
) -> Result<Option<Vec<u8>>, CompressError> {
    let deflate = flate2::Compression::new(u32::from(level.clamp(1, 9)));
    let mut encoder = flate2::write::ZlibEncoder::new(Bounded::new(output_bytes_max), deflate);
    let written = encoder.write_all(data).and_then(|()| encoder.finish());
    match written {
        Ok(out) => Ok(Some(out.bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => Ok(None),
        Err(_) => Err(CompressError::Library {
            kind: Compression::Gzip(level),
            input_bytes: data.len(),
            what: "zlib cannot make a stream of it",
        }),
    }
}

fn gzip_decompress(data: &[u8], output_bytes: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(output_bytes);
    let mut stream = Decompress::new(true);
    loop {
        let before = (stream.total_in(), stream.total_out());
        let rest = data.get(usize::try_from(stream.total_in()).ok()?..)?;
        let status = stream
            .decompress_vec(rest, &mut out, FlushDecompress::Finish)
            .ok()?;
        if status == Status::StreamEnd {
            return (out.len() == output_bytes).then_some(out);
        }
        // Full, or out of input, before the stream's end.
        if (stream.total_in(), stream.total_out()) == before {
            return None;
        }
    }
}

/// A buffer that refuses to grow past its limit, so that hopeless compression stops early.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Bounded {
    fn new(limit: usize) -> Self {
        Bounded {
            bytes: Vec::with_capacity(limit.min(BLOCK_BYTES_MAX)),
            limit,
        }
    }
}

impl Write for Bounded {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        if data.len() > self.limit - self.bytes.len() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
