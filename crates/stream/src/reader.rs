//! Reading records off a stream, with their checksums verified (`receive_read_record`,
//! module/zfs/dmu_recv.c).

use bytes::{Bytes, BytesMut};
use codec::checksum::Fletcher4;
use format::stream::{Begin, RECORD_BYTES, RECORD_CHECKSUM_OFFSET, Record, stream_endian};
use format::{Endian, FormatError, NvList};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};

use crate::StreamError;
use crate::description::{Description, Room};

/// A payload is read in pieces of this, so that a length that is a lie sizes no allocation.
const PIECE_BYTES: usize = 1 << 20;
/// What is read at least, in bytes, where there is so much: short records come many at a time.
/// Long payloads go past this to where they stay.
const READ_BYTES: usize = 32 << 10;

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
#[derive(Debug)]
pub enum Start {
    /// One begins: with what it is, and its description.
    Begin(Box<Begin>, Description),
    /// The end of a package.
    End,
    /// Nothing is left.
    Nothing,
}

/// Reads records.
pub struct StreamReader<R> {
    /// Away while a task of its own reads ([`Self::lend`]).
    input: Option<BufReader<R>>,
    endian: Endian,
    sum: Fletcher4,
    /// Since the last BEGIN.
    read_bytes: u64,
    /// Of the whole input.
    total_bytes: u64,
    /// The head of the next record, which was read to verify what is before it.
    next: Option<[u8; RECORD_BYTES]>,
}

impl<R: AsyncRead + Unpin + Send> StreamReader<R> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        Self {
            input: Some(BufReader::with_capacity(READ_BYTES, input)),
            endian: Endian::Little,
            sum: Fletcher4::new(Endian::Little),
            read_bytes: 0,
            total_bytes: 0,
            next: None,
        }
    }

    /// The reader for a task of its own, to be put in the place of what is left of it when that
    /// has ended. One that is not given back reads nothing any more.
    pub(crate) fn lend(&mut self) -> Self {
        Self {
            input: self.input.take(),
            ..*self
        }
    }

    fn input(&mut self) -> Result<&mut BufReader<R>, StreamError> {
        self.input.as_mut().ok_or(StreamError::Interrupted)
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
            match self.input()?.read(&mut header[got..]).await? {
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
        let mut room = Room::of(begin.header);
        let payload = self
            .payload(length, &mut |bytes| room.payload(bytes))
            .await?;
        let mut list = NvList::new();
        if !payload.is_empty() {
            // The checksum of what began is in the next record: nothing is made of a description
            // before.
            let mut header = [0; RECORD_BYTES];
            self.input()?.read_exact(&mut header).await?;
            let mut sum = self.sum;
            sum.update(&header[..RECORD_CHECKSUM_OFFSET]);
            if Record::checksum(&header, self.endian).is_some_and(|stored| stored != sum.words()) {
                return Err(StreamError::Checksum);
            }
            self.next = Some(header);
            (list, _) = NvList::decode_within(&payload, &mut |bytes| room.take(bytes)).map_err(
                |error| match error {
                    FormatError::NoRoom { .. } => room.refusal(),
                    error => error.into(),
                },
            )?;
        }
        Ok(Start::Begin(begin, Description::new(list, room)))
    }

    /// Reads the next record with its payload.
    ///
    /// # Errors
    /// [`StreamError::CutShort`], [`StreamError::Checksum`], [`StreamError::BadRecord`].
    pub async fn next(&mut self) -> Result<Piece, StreamError> {
        let header = match self.next.take() {
            Some(header) => header,
            None => {
                let mut header = [0; RECORD_BYTES];
                self.input()?.read_exact(&mut header).await?;
                header
            }
        };
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
        // Whoever reads bounds how many records he has.
        let payload = self
            .payload(record.payload_bytes()?, &mut |_| Ok(()))
            .await?;
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

    /// Reads a payload; `take` is asked for room, in bytes, before memory is taken.
    async fn payload(
        &mut self,
        length: usize,
        take: &mut (dyn FnMut(usize) -> Result<(), StreamError> + Send),
    ) -> Result<Bytes, StreamError> {
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
            take(more)?;
            out.reserve(more);
            let mut limited = self.input()?.take(more as u64);
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

#[cfg(test)]
mod tests {
    use format::stream::HeaderKind;
    use format::{Guid, NvEncoding, NvValue};
    use futures::executor::block_on;

    use super::*;

    /// A stream of nothing, whose description has this many pairs.
    fn stream(header: HeaderKind, pairs: usize) -> Vec<u8> {
        let mut list = NvList::new();
        for _ in 0..pairs {
            list.push("a", NvValue::Boolean);
        }
        let payload = list.encode(NvEncoding::Xdr).expect("encoded");
        let begin = Record::Begin(Box::new(Begin {
            header,
            features: format::stream::StreamFeatures::default(),
            creation_time_seconds: 0,
            objset_kind: 2,
            flags: 0,
            to_guid: Guid::new(1),
            from_guid: Guid::new(0),
            to_name: "tank@s".into(),
            payload_bytes: payload.len() as u32,
        }));
        let mut out = begin.encode().to_vec();
        let mut sum = Fletcher4::new(Endian::Little);
        sum.update(&out);
        sum.update(&payload);
        out.extend_from_slice(&payload);
        let end = Record::End {
            checksum: sum.words(),
            to_guid: 1,
        };
        let mut end = end.encode();
        sum.update(&end[..RECORD_CHECKSUM_OFFSET]);
        let words = sum.words().map(u64::to_le_bytes).concat();
        end[RECORD_CHECKSUM_OFFSET..].copy_from_slice(&words);
        out.extend_from_slice(&end);
        out
    }

    #[test]
    fn a_description_is_verified_before_it_is_decoded() {
        let whole = stream(HeaderKind::Compound, 100);
        let mut reader = StreamReader::new(&whole[..]);
        let Ok(Start::Begin(_, list)) = block_on(reader.start()) else {
            panic!("it begins");
        };
        assert_eq!(list.len(), 100);
        block_on(reader.skip()).expect("its end");
        assert_eq!(reader.total_bytes(), whole.len() as u64);
        assert!(matches!(block_on(reader.start()), Ok(Start::Nothing)));
        // In the middle of a pair, which would be no list.
        let mut damaged = whole.clone();
        damaged[RECORD_BYTES + 40] ^= 0xff;
        let began = block_on(StreamReader::new(&damaged[..]).start());
        assert!(matches!(began, Err(StreamError::Checksum)), "{began:?}");
        let cut = &whole[..whole.len() - RECORD_BYTES / 2];
        let began = block_on(StreamReader::new(cut).start());
        assert!(matches!(began, Err(StreamError::CutShort)), "{began:?}");
    }

    #[test]
    fn descriptions_of_single_streams_are_short() {
        // 2.4 MB of tiny pairs take some 14 MB when they are decoded.
        for (header, is_read) in [(HeaderKind::Snapshot, false), (HeaderKind::Compound, true)] {
            let bytes = stream(header, 100_000);
            let began = block_on(StreamReader::new(&bytes[..]).start());
            assert_eq!(began.is_ok(), is_read, "{header:?}");
        }
    }
}
