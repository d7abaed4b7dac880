//! Reading records off a stream, with their checksums verified (`receive_read_record`,
//! module/zfs/dmu_recv.c).

use bytes::{Bytes, BytesMut};
use codec::checksum::Fletcher4;
use format::stream::{Begin, RECORD_BYTES, RECORD_CHECKSUM_OFFSET, Record, stream_endian};
use format::{Endian, FormatError, NvList};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::StreamError;

/// A payload is read in pieces of this, so that a length that is a lie sizes no allocation.
const PIECE_BYTES: usize = 1 << 20;

/// A record with its payload.
#[derive(Debug, Clone)]
pub struct Piece {
    /// The record.
    pub record: Record,
    /// What came behind it.
    pub payload: Bytes,
    /// Bytes of the stream from behind its first record up to the end of this one.
    pub end_bytes: u64,
}

/// How a stream goes on where one may begin.
#[derive(Debug, Clone)]
pub enum Start {
    /// One begins: with what it is, and its description.
    Begin(Box<Begin>, NvList),
    /// The end of a package.
    End,
    /// Nothing is left.
    Nothing,
}

/// Reads records.
pub struct StreamReader<R> {
    input: R,
    endian: Endian,
    sum: Fletcher4,
    /// Since the last BEGIN.
    read_bytes: u64,
    /// Of the whole input.
    total_bytes: u64,
}

impl<R: AsyncRead + Unpin + Send> StreamReader<R> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        Self {
            input,
            endian: Endian::Little,
            sum: Fletcher4::new(Endian::Little),
            read_bytes: 0,
            total_bytes: 0,
        }
    }

    /// Byte order of the stream that began.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Bytes read so far.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Reads the record that begins a stream, or ends a package of streams.
    ///
    /// # Errors
    /// [`StreamError::NoStream`], [`StreamError::CutShort`], ...
    pub async fn start(&mut self) -> Result<Start, StreamError> {
        let mut header = [0; RECORD_BYTES];
        let mut got = 0;
        while got < RECORD_BYTES {
            match self.input.read(&mut header[got..]).await? {
                0 if got == 0 => return Ok(Start::Nothing),
                0 => return Err(StreamError::CutShort),
                more => got += more,
            }
        }
        self.total_bytes += RECORD_BYTES as u64;
        let kind = [header[0], header[1], header[2], header[3]];
        if self.total_bytes > RECORD_BYTES as u64 && self.endian.u32(kind) == 5 {
            return Ok(Start::End);
        }
        self.endian = stream_endian(&header).map_err(|_| StreamError::NoStream)?;
        self.sum = Fletcher4::new(self.endian);
        self.sum.update(&header);
        // As OpenZFS counts: the first record was read by who asked for the rest.
        self.read_bytes = 0;
        let Record::Begin(begin) = Record::decode(&header, self.endian)? else {
            return Err(StreamError::NoStream);
        };
        let length = begin.payload_bytes as usize;
        let payload = self.payload(length).await?;
        let list = match payload.is_empty() {
            true => NvList::new(),
            false => NvList::decode(&payload)?,
        };
        Ok(Start::Begin(begin, list))
    }

    /// Reads the next record with its payload.
    ///
    /// # Errors
    /// [`StreamError::CutShort`], [`StreamError::Checksum`], [`StreamError::BadRecord`].
    pub async fn next(&mut self) -> Result<Piece, StreamError> {
        let mut header = [0; RECORD_BYTES];
        self.input.read_exact(&mut header).await?;
        self.read_bytes += RECORD_BYTES as u64;
        self.total_bytes += RECORD_BYTES as u64;
        let before = self.sum.words();
        self.sum.update(&header[..RECORD_CHECKSUM_OFFSET]);
        if let Some(stored) = Record::checksum(&header, self.endian)
            && stored != self.sum.words()
        {
            return Err(StreamError::Checksum);
        }
        self.sum.update(&header[RECORD_CHECKSUM_OFFSET..]);
        let record = Record::decode(&header, self.endian)?;
        match &record {
            Record::Begin(_) => return Err(StreamError::bad("a second beginning")),
            Record::End { checksum, .. } if *checksum != before => {
                return Err(StreamError::Checksum);
            }
            _ => {}
        }
        let payload = self.payload(record.payload_bytes()?).await?;
        Ok(Piece {
            record,
            payload,
            end_bytes: self.read_bytes,
        })
    }

    /// Reads up to the END of what has begun.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn skip(&mut self) -> Result<(), StreamError> {
        while !matches!(self.next().await?.record, Record::End { .. }) {}
        Ok(())
    }

    async fn payload(&mut self, length: usize) -> Result<Bytes, StreamError> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        if !length.is_multiple_of(4) {
            return Err(FormatError::BadField {
                structure: "dmu_replay_record_t",
                field: "drr_payloadlen",
                found: length as u64,
                expected: "whole words",
            }
            .into());
        }
        let mut out = BytesMut::with_capacity(length.min(PIECE_BYTES));
        while out.len() < length {
            let more = (length - out.len()).min(PIECE_BYTES);
            out.reserve(more);
            let mut limited = (&mut self.input).take(more as u64);
            while limited.limit() > 0 {
                if limited.read_buf(&mut out).await? == 0 {
                    return Err(StreamError::CutShort);
                }
            }
        }
        self.sum.update(&out);
        self.read_bytes += length as u64;
        self.total_bytes += length as u64;
        Ok(out.freeze())
    }
}
