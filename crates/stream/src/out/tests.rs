use std::pin::Pin;
use std::task::{Context, Poll};

use format::stream::{RECORD_BYTES, Write};
use futures::executor::block_on;

use super::*;

/// Keeps what is written, and how much of it each write brought.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    writes: Vec<usize>,
    /// The most that one write takes, in bytes.
    write_bytes_max: Option<usize>,
}

impl AsyncWrite for Kept {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        assert!(parts.len() <= PARTS_MAX);
        let mut left = self.write_bytes_max.unwrap_or(usize::MAX);
        let before = self.bytes.len();
        for part in parts {
            let some = &part[..part.len().min(left)];
            left -= some.len();
            self.bytes.extend_from_slice(some);
        }
        let written = self.bytes.len() - before;
        self.writes.push(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Lengths of payloads: none, short ones, those that are not copied, and a long one.
const LENGTHS: [usize; 7] = [0, 8, 512, 4096, 4104, 128 << 10, 3 << 20];

fn payload(length: usize) -> Bytes {
    let bytes = (0..length).map(|at| (at * 7 + length) as u8);
    bytes.collect::<Vec<u8>>().into()
}

fn write_of(number: u64, length: usize) -> Record {
    Record::Write(Box::new(Write {
        object: 1,
        offset_bytes: number,
        logical_bytes: length as u64,
        to_guid: 5,
        ..Write::default()
    }))
}

/// The stream as the definition has it: record by record, each byte summed in its turn.
fn by_definition(records: &[(Record, Bytes)]) -> Vec<u8> {
    let (mut out, mut sum) = (Vec::new(), Fletcher4::new(Endian::Little));
    for (record, payload) in records {
        let mut header = record.encode();
        sum.update(&header[..RECORD_CHECKSUM_OFFSET]);
        let words = sum.words().map(u64::to_le_bytes).concat();
        header[RECORD_CHECKSUM_OFFSET..].copy_from_slice(&words);
        sum.update(&header[RECORD_CHECKSUM_OFFSET..]);
        sum.update(payload);
        out.extend_from_slice(&header);
        out.extend_from_slice(payload);
    }
    let checksum = sum.words();
    let mut end = Record::End {
        checksum,
        to_guid: 5,
    }
    .encode();
    sum.update(&end[..RECORD_CHECKSUM_OFFSET]);
    let words = sum.words().map(u64::to_le_bytes).concat();
    end[RECORD_CHECKSUM_OFFSET..].copy_from_slice(&words);
    out.extend_from_slice(&end);
    out
}

/// Goal: whatever a write takes, the stream is the one of the definition, in its order.
#[test]
fn batches_are_the_same_stream() {
    let lengths = (0..5).flat_map(|_| LENGTHS);
    let records: Vec<(Record, Bytes)> = lengths
        .enumerate()
        .map(|(number, length)| (write_of(number as u64, length), payload(length)))
        .collect();
    let wanted = by_definition(&records);
    for write_bytes_max in [None, Some(4096), Some(100_003), Some(1 << 20)] {
        let mut kept = Kept {
            write_bytes_max,
            ..Kept::default()
        };
        let progress = Progress::default();
        let mut out = Out::new(&mut kept, 5, &progress);
        block_on(async {
            for (record, payload) in &records {
                out.record(record, Payload::new(payload.clone())).await?;
            }
            out.end().await
        })
        .expect("written");
        assert_eq!(progress.bytes(), wanted.len() as u64);
        assert!(kept.bytes == wanted, "writes of {write_bytes_max:?}");
    }
}

/// Goal: small records go together, a megabyte at a time; what waits goes when it is asked for.
#[test]
fn records_go_together() {
    let mut kept = Kept::default();
    let progress = Progress::default();
    let mut out = Out::new(&mut kept, 5, &progress);
    let (count, length) = (10_000, 512);
    let data = payload(length);
    block_on(async {
        out.record(&write_of(0, length), Payload::new(data.clone()))
            .await?;
        assert_eq!(progress.bytes(), 0);
        out.flush().await?;
        assert_eq!(progress.bytes(), (RECORD_BYTES + length) as u64);
        for number in 1..count {
            out.record(&write_of(number, length), Payload::new(data.clone()))
                .await?;
        }
        out.end().await
    })
    .expect("written");
    let (first, rest) = kept.writes.split_first().expect("writes");
    assert_eq!(*first, RECORD_BYTES + length);
    let (last, full) = rest.split_last().expect("writes");
    assert!(full.iter().all(|bytes| *bytes >= BATCH_BYTES));
    assert!(*last < BATCH_BYTES + RECORD_BYTES);
    assert_eq!(full.len(), 7);
}

/// Goal: a write that takes nothing is an error, not a loop.
#[test]
fn an_output_that_takes_nothing_is_an_error() {
    let mut kept = Kept {
        write_bytes_max: Some(0),
        ..Kept::default()
    };
    let progress = Progress::default();
    let mut out = Out::new(&mut kept, 5, &progress);
    let ended = block_on(out.end());
    assert!(matches!(ended, Err(StreamError::Io(_))), "{ended:?}");
}
