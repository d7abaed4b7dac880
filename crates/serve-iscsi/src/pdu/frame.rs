//! Cutting the byte stream into PDUs, with digests checked (RFC 7143 sections 11.2.3 and 13.1).

use super::{BHS_BYTES, Header};
use bytes::{Buf, Bytes, BytesMut};

/// How PDUs are cut now; changes when login is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Framing {
    /// A CRC32C follows the headers.
    pub(crate) has_header_digest: bool,
    /// A CRC32C follows a data segment that is not empty.
    pub(crate) has_data_digest: bool,
    /// Longest data segment taken, in bytes.
    pub(crate) data_bytes_max: usize,
}

impl Framing {
    /// Where the data segment of a PDU with this header begins, in bytes.
    pub(crate) fn data_at(&self, header: &Header) -> usize {
        let digest_bytes = if self.has_header_digest {
            DIGEST_BYTES
        } else {
            0
        };
        BHS_BYTES + header.ahs_bytes() + digest_bytes
    }
}

/// One PDU as it came.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    /// The data segment without padding. (Additional header segments are dropped: the commands
    /// that need them, with long CDBs or bidirectional, are not supported.)
    pub(crate) data: Bytes,
    /// False if the data digest did not match; `data` is then empty.
    pub(crate) is_data_intact: bool,
}

/// Why the stream cannot be followed any longer. The connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("header digest {found:#010x} is not the computed {computed:#010x}")]
    HeaderDigest { found: u32, computed: u32 },
    #[error("data segment of {length_bytes} bytes is longer than the {max_bytes} agreed")]
    DataTooLong {
        length_bytes: usize,
        max_bytes: usize,
    },
}

const DIGEST_BYTES: usize = 4;

fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// Cuts the next PDU off `input`. `Ok(Err(n))` asks for input until it holds `n` bytes.
///
/// `n` is at most `BHS + 1020 + digests + data_bytes_max + padding`, so a caller that reserves it
/// is safe from hostile lengths.
pub(crate) fn next_frame(
    input: &mut BytesMut,
    framing: Framing,
) -> Result<Result<Frame, usize>, FrameError> {
    let Some(head) = input.first_chunk::<BHS_BYTES>() else {
        return Ok(Err(BHS_BYTES));
    };
    let header = Header(*head);
    let data_bytes = header.data_bytes();
    let headers_bytes = BHS_BYTES + header.ahs_bytes();
    if framing.has_header_digest {
        // Lengths are not to be believed before the digest has been seen.
        let needed = headers_bytes + DIGEST_BYTES;
        if input.len() < needed {
            return Ok(Err(needed));
        }
        let computed = crc32c::crc32c(&input[..headers_bytes]);
        // The digest travels as the bytes of the reflected CRC, lowest first (RFC 3385).
        let found = (&input[headers_bytes..needed]).get_u32_le();
        if found != computed {
            return Err(FrameError::HeaderDigest { found, computed });
        }
    }
    if data_bytes > framing.data_bytes_max {
        return Err(FrameError::DataTooLong {
            length_bytes: data_bytes,
            max_bytes: framing.data_bytes_max,
        });
    }
    let has_data_digest = framing.has_data_digest && data_bytes > 0;
    let data_at = framing.data_at(&header);
    let data_digest_at = data_at + padded(data_bytes);
    let total = data_digest_at + if has_data_digest { DIGEST_BYTES } else { 0 };
    if input.len() < total {
        return Ok(Err(total));
    }
    let is_data_intact = !has_data_digest
        || crc32c::crc32c(&input[data_at..data_digest_at])
            == (&input[data_digest_at..total]).get_u32_le();
    if data_bytes == 0 {
        input.advance(total);
        return Ok(Ok(Frame {
            header,
            data: Bytes::new(),
            is_data_intact,
        }));
    }
    let whole = input.split_to(total).freeze();
    Ok(Ok(Frame {
        header,
        data: if is_data_intact {
            whole.slice(data_at..data_at + data_bytes)
        } else {
            Bytes::new()
        },
        is_data_intact,
    }))
}
