//! Writing records: checksums, and records that grow while what follows belongs to them
//! (`dump_record`, `dump_free`, `dump_freeobjects`; module/zfs/dmu_send.c).

use bytes::Bytes;
use codec::checksum::Fletcher4;
use format::Endian;
use format::stream::{RECORD_CHECKSUM_OFFSET, Range, Record};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::StreamError;
use crate::receive::Progress;

/// Writes records to a stream.
pub(crate) struct Out<'a, W> {
    output: W,
    sum: Fletcher4,
    progress: &'a Progress,
    /// A record that may still grow.
    pending: Option<Record>,
    to_guid: u64,
}

impl<'a, W: AsyncWrite + Unpin + Send> Out<'a, W> {
    pub(crate) fn new(output: W, to_guid: u64, progress: &'a Progress) -> Self {
        Self {
            output,
            sum: Fletcher4::new(Endian::Little),
            progress,
            pending: None,
            to_guid,
        }
    }

    /// Writes a record and its payload, after the one that waits.
    pub(crate) async fn record(
        &mut self,
        record: &Record,
        payload: &[Bytes],
    ) -> Result<(), StreamError> {
        if let Some(pending) = self.pending.take() {
            self.put(&pending, &[]).await?;
        }
        self.put(record, payload).await
    }

    async fn put(&mut self, record: &Record, payload: &[Bytes]) -> Result<(), StreamError> {
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
        self.output.write_all(&header).await?;
        let mut length = header.len() as u64;
        for piece in payload {
            self.sum.update(piece);
            self.output.write_all(piece).await?;
            length += piece.len() as u64;
        }
        self.progress.add(length)
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
            u64::MAX => self.record(&Record::Free(range), &[]).await,
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
            self.put(&pending, &[]).await?;
        }
        Ok(())
    }

    /// Writes the end.
    pub(crate) async fn end(&mut self) -> Result<(), StreamError> {
        let end = Record::End {
            checksum: [0; 4],
            to_guid: self.to_guid,
        };
        self.record(&end, &[]).await?;
        self.output.flush().await?;
        Ok(())
    }
}
