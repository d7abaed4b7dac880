//! Writing records: checksums, and records that grow while what follows belongs to them
//! (`dump_record`, `dump_free`, `dump_freeobjects`; module/zfs/dmu_send.c).
//!
//! # In batches
//! Records wait until they are [`BATCH_BYTES`], and go in one write then: payloads from where they
//! are, records and what is short from a buffer. What waits is written at once where there is
//! nothing more to send for the moment ([`Out::flush`]), so that whoever reads is never kept from
//! what there is. Each byte is summed once: payloads by who loads them ([`Payload`]).

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use codec::checksum::{ChecksumWords, Fletcher4};
use format::Endian;
use format::stream::{RECORD_CHECKSUM_OFFSET, Range, Record};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::StreamError;
use crate::progress::Progress;

/// What goes in one write, in bytes: the record that reaches it is the last one.
const BATCH_BYTES: usize = 1 << 20;
/// Payloads of up to this many bytes are copied behind their records: a part of their own in a
/// write would cost more.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// Parts of a write, at most (`IOV_MAX` of Linux).
const PARTS_MAX: usize = 1024;

/// What comes behind a record, with its own checksum.
#[derive(Debug, Clone, Default)]
pub(crate) struct Payload {
    bytes: Bytes,
    sum: ChecksumWords,
}

impl Payload {
    /// Sums it, here: in a task that is not the one that writes, if it is long.
    pub(crate) fn new(bytes: Bytes) -> Self {
        let mut sum = Fletcher4::new(Endian::Little);
        sum.update(&bytes);
        Self {
            bytes,
            sum: sum.words(),
        }
    }

    /// Stands for so many bytes, whatever they are.
    pub(crate) fn of_length(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes].into(),
            sum: ChecksumWords::default(),
        }
    }

    /// Its length in bytes.
    pub(crate) fn length_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// Writes records to a stream.
pub(crate) struct Out<'a, W> {
    output: W,
    sum: Fletcher4,
    progress: &'a Progress,
    /// A record that may still grow.
    pending: Option<Record>,
    to_guid: u64,
    /// What waits to be written, before what is in `short`.
    parts: VecDeque<Bytes>,
    /// Records and short payloads, one behind the other.
    short: BytesMut,
    /// Of both, in bytes.
    waiting_bytes: usize,
}

impl<'a, W: AsyncWrite + Unpin + Send> Out<'a, W> {
    pub(crate) fn new(output: W, to_guid: u64, progress: &'a Progress) -> Self {
        Self {
            output,
            sum: Fletcher4::new(Endian::Little),
            progress,
            pending: None,
            to_guid,
            parts: VecDeque::new(),
            short: BytesMut::new(),
            waiting_bytes: 0,
        }
    }

    /// Writes a record and its payload, after the one that waits.
    pub(crate) async fn record(
        &mut self,
        record: &Record,
        payload: Payload,
    ) -> Result<(), StreamError> {
        if let Some(pending) = self.pending.take() {
            self.put(&pending, Payload::default()).await?;
        }
        self.put(record, payload).await
    }

    async fn put(&mut self, record: &Record, payload: Payload) -> Result<(), StreamError> {
        let mut header = record.encode();
        if let Record::End { .. } = record {
            let end = Record::End {
                checksum: self.sum.words(),
                to_guid: self.to_guid,
            };
            header = end.encode();
        }
        self.sum.update(&header[..RECORD_CHECKSUM_OFFSET]);
        if !matches!(record, Record::Begin(_)) {
            let words = self.sum.words();
            for (place, word) in header[RECORD_CHECKSUM_OFFSET..]
                .chunks_exact_mut(8)
                .zip(words)
            {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
        self.sum.update(&header[RECORD_CHECKSUM_OFFSET..]);
        let Payload { bytes, sum } = payload;
        self.sum.append(sum, (bytes.len() / 4) as u64);
        self.waiting_bytes += header.len() + bytes.len();
        self.short.extend_from_slice(&header);
        if bytes.len() <= COPIED_BYTES_MAX {
            self.short.extend_from_slice(&bytes);
        } else {
            self.parts.push_back(self.short.split().freeze());
            self.parts.push_back(bytes);
        }
        match self.waiting_bytes < BATCH_BYTES {
            true => Ok(()),
            false => self.flush().await,
        }
    }

    /// Writes what waits, but for a record that may still grow.
    pub(crate) async fn flush(&mut self) -> Result<(), StreamError> {
        if self.waiting_bytes == 0 {
            return Ok(());
        }
        if !self.short.is_empty() {
            self.parts.push_back(self.short.split().freeze());
        }
        while !self.parts.is_empty() {
            let parts = self.parts.iter().take(PARTS_MAX);
            let slices: Vec<IoSlice<'_>> = parts.map(|part| IoSlice::new(part)).collect();
            let written = self.output.write_vectored(&slices).await?;
            if written == 0 {
                return Err(StreamError::Io(ErrorKind::WriteZero.into()));
            }
            advance(&mut self.parts, written);
        }
        let written = std::mem::take(&mut self.waiting_bytes);
        self.progress.add(written as u64)
    }

    /// A range without data; ranges that meet become one.
    pub(crate) async fn free(
        &mut self,
        object: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), StreamError> {
        let to_end = offset_bytes.checked_add(length_bytes).is_none();
        if let Some(Record::Free(range)) = &mut self.pending
            && range.object == object
            && range.offset_bytes.checked_add(range.length_bytes) == Some(offset_bytes)
        {
            range.length_bytes = match to_end {
                true => u64::MAX,
                false => range.length_bytes.saturating_add(length_bytes),
            };
            return Ok(());
        }
        let range = Range {
            object,
            offset_bytes,
            length_bytes: if to_end { u64::MAX } else { length_bytes },
            to_guid: self.to_guid,
        };
        match length_bytes {
            u64::MAX => {
                let free = Record::Free(range);
                self.record(&free, Payload::default()).await
            }
            _ => self.wait(Record::Free(range)).await,
        }
    }

    /// A range that is left out; ranges that meet become one (`dump_redact`).
    pub(crate) async fn redact(
        &mut self,
        object: u64,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<(), StreamError> {
        if let Some(Record::Redact(range)) = &mut self.pending
            && range.object == object
            && range.offset_bytes.checked_add(range.length_bytes) == Some(offset_bytes)
        {
            range.length_bytes = range.length_bytes.saturating_add(length_bytes);
            return Ok(());
        }
        self.wait(Record::Redact(Range {
            object,
            offset_bytes,
            length_bytes,
            to_guid: self.to_guid,
        }))
        .await
    }

    /// Objects that do not exist; runs that meet become one.
    pub(crate) async fn free_objects(&mut self, from: u64, more: u64) -> Result<(), StreamError> {
        if more == 0 {
            return Ok(());
        }
        if let Some(Record::FreeObjects { first, count, .. }) = &mut self.pending
            && *first + *count == from
        {
            *count += more;
            return Ok(());
        }
        self.wait(Record::FreeObjects {
            first: from,
            count: more,
            to_guid: self.to_guid,
        })
        .await
    }

    async fn wait(&mut self, record: Record) -> Result<(), StreamError> {
        if let Some(pending) = self.pending.replace(record) {
            self.put(&pending, Payload::default()).await?;
        }
        Ok(())
    }

    /// Writes the end.
    pub(crate) async fn end(&mut self) -> Result<(), StreamError> {
        let end = Record::End {
            checksum: [0; 4],
            to_guid: self.to_guid,
        };
        self.record(&end, Payload::default()).await?;
        self.flush().await?;
        self.output.flush().await?;
        Ok(())
    }
}

/// Takes what was written off what waits.
fn advance(parts: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(first) = parts.front_mut() {
        if written < first.len() {
            first.advance(written);
            return;
        }
        written -= first.len();
        parts.pop_front();
    }
}

#[cfg(test)]
mod tests;
