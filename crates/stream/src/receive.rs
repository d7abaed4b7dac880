//! Receiving: reading records and writing what they say, side by side (`dmu_recv_stream`,
//! module/zfs/dmu_recv.c).
//!
//! A task of its own reads and verifies, ahead of writing by [`AHEAD_BYTES`], so that neither end
//! of the pipe waits for what the other one does in a moment. Long blocks that come compressed are
//! decompressed by CPU workers meanwhile ([`Unpacking`]); records are written in the order in which
//! they come, whichever of them is ready first.
//!
//! The task knows nothing of the pool: it ends with the receive, and one that panics breaks that
//! off, no more.

use std::pin::pin;
use std::sync::Arc;

use dataset::Receiving;
use device::{Tasks, World};
use format::stream::{Record, StreamFeatures};
use format::{Endian, MAX_BLOCK_BYTES, NvList};
use tokio::io::AsyncRead;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::progress::Progress;
use crate::writer::{OTHER_ORDER, Received, Unpacking, Writer, decompressed};
use crate::{Piece, StreamError, StreamReader};

/// What is read ahead of being written, in bytes. More than the longest payload.
const AHEAD_BYTES: usize = 64 << 20;
/// The same, in records.
const AHEAD_RECORDS: usize = 4096;
/// Blocks of more than this many bytes are decompressed by CPU workers: less is not worth the trip.
const UNPACK_AHEAD_BYTES: u64 = 16 << 10;

/// A record that waits to be written.
struct Next {
    piece: Piece,
    unpacking: Option<Unpacking>,
    _room: OwnedSemaphorePermit,
}

/// Reads ahead.
struct Ahead {
    world: World,
    /// Blocks may come compressed, and are to be decompressed.
    unpacks: bool,
    room: Arc<Semaphore>,
    queue: mpsc::Sender<Next>,
}

impl Ahead {
    /// Reads up to the end, or until nobody wants more.
    async fn read<R: AsyncRead + Unpin + Send>(
        self,
        reader: &mut StreamReader<R>,
    ) -> Result<(), StreamError> {
        loop {
            let piece = reader.next().await?;
            let unpacked_bytes = self.unpacked_bytes(&piece.record);
            let bytes = piece.payload.len() + unpacked_bytes.unwrap_or(0);
            let bytes = bytes.clamp(1, AHEAD_BYTES) as u32;
            let room = self.room.clone().acquire_many_owned(bytes).await;
            let Ok(room) = room else {
                return Ok(());
            };
            let is_end = matches!(piece.record, Record::End { .. });
            let unpacking = unpacked_bytes.and_then(|bytes| self.unpack(&piece, bytes));
            let next = Next {
                piece,
                unpacking,
                _room: room,
            };
            // Whoever writes has failed.
            if self.queue.send(next).await.is_err() || is_end {
                return Ok(());
            }
        }
    }

    /// What a block will be, in bytes, that is to be decompressed ahead. Lengths that no block has
    /// are left to who refuses them.
    fn unpacked_bytes(&self, record: &Record) -> Option<usize> {
        let Record::Write(write) = record else {
            return None;
        };
        let is_long = (UNPACK_AHEAD_BYTES + 1..=MAX_BLOCK_BYTES).contains(&write.logical_bytes);
        (self.unpacks && write.compression != 0 && is_long).then_some(write.logical_bytes as usize)
    }

    fn unpack(&self, piece: &Piece, bytes: usize) -> Option<Unpacking> {
        let Record::Write(write) = &piece.record else {
            return None;
        };
        let (code, payload) = (write.compression, piece.payload.clone());
        let (done, unpacking) = oneshot::channel();
        self.world.cpu.run(Box::new(move || {
            // Nobody waits for it any more where the receive has failed.
            let _ = done.send(decompressed(code, &payload, bytes));
        }));
        Some(unpacking)
    }
}

/// The task that reads, which ends with who has it.
struct Reading(Tasks);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Receives what is left of a stream that has begun into a dataset; `list` is the description in
/// its first record. After an error the reader may have nothing more to read.
///
/// # Errors
/// Those of the stream and of writing. What was written then is for the caller to give up
/// ([`dataset::Receives::give_up`]).
pub async fn receive<R: AsyncRead + Unpin + Send + 'static>(
    reader: &mut StreamReader<R>,
    list: &NvList,
    receiving: &Receiving,
    progress: &Progress,
) -> Result<Received, StreamError> {
    if let Some(point) = receiving.resumed_at() {
        let begin = &receiving.target().begin;
        let is_there = list.u64("resume_object") == Some(point.object)
            && list.u64("resume_offset") == Some(point.offset_bytes);
        if begin.features.contains(StreamFeatures::RESUMING) && !is_there {
            return Err(StreamError::WrongPlace);
        }
    }
    let features = receiving.target().begin.features;
    let is_raw = features.contains(StreamFeatures::RAW);
    if is_raw && reader.endian() == Endian::Big {
        return Err(OTHER_ORDER);
    }
    let mut writer = Writer::new(receiving, reader.endian());
    let world = receiving.dataset().objset().pipeline().world().clone();
    let (queue, mut pieces) = mpsc::channel::<Next>(AHEAD_RECORDS);
    let task = Reading(Tasks::new(&world, |_| ()));
    let ahead = Ahead {
        world,
        unpacks: !is_raw && features.contains(StreamFeatures::COMPRESSED),
        room: Arc::new(Semaphore::new(AHEAD_BYTES)),
        queue,
    };
    let mut lent = reader.lend();
    let (give_back, given_back) = oneshot::channel();
    task.0.spawn("stream that is received", async move {
        let read = ahead.read(&mut lent).await;
        // Nobody is there any more where writing failed.
        let _ = give_back.send((lent, read));
    });
    let reading = async {
        let gone = |_| StreamError::Interrupted;
        let ended = async { given_back.await.map_err(gone) };
        match progress.unless_stopped(ended).await {
            Ok((lent, read)) => {
                *reader = lent;
                read
            }
            Err(error) => {
                task.0.cancel();
                Err(error)
            }
        }
    };
    let writing = async {
        let mut before = 0;
        while let Some(next) = pieces.recv().await {
            let Next {
                piece, unpacking, ..
            } = next;
            let end = piece.end_bytes;
            let is_end = matches!(piece.record, Record::End { .. });
            let written = writer.write(piece, unpacking).await;
            let told = written.and_then(|()| progress.add(end - before));
            if let Err(error) = told {
                pieces.close();
                return Err(error);
            }
            before = end;
            if is_end {
                return Ok(true);
            }
        }
        Ok(false)
    };
    // What was read is written also where the stream ends too early, so that it can be resumed from
    // there; what comes after something that cannot be written is not waited for.
    let mut read = None;
    let written = {
        let (mut reading, mut writing) = (pin!(reading), pin!(writing));
        let written = loop {
            tokio::select! {
                biased;
                written = &mut writing => break written?,
                done = &mut reading, if read.is_none() => read = Some(done),
            }
        };
        // The task has ended, and gives the reader back, or says why the stream is cut.
        if read.is_none() {
            read = Some(reading.await);
        }
        written
    };
    match read {
        Some(Err(error)) => return Err(error),
        _ if !written => return Err(StreamError::CutShort),
        _ => {}
    }
    writer.finish().await
}

#[cfg(test)]
mod tests {
    use codec::compress::{ZstdLevel, compress};
    use format::Compression;
    use format::stream::Write;
    use futures::executor::block_on;

    use super::*;
    use crate::out::{Out, Payload};

    const COUNT: u64 = 200;

    /// How long a block is: every third is short, some are not compressed.
    fn length(number: u64) -> usize {
        match number % 3 {
            0 => 4 << 10,
            _ => (32 << 10) << (number % 4),
        }
    }

    fn is_compressed(number: u64) -> bool {
        !number.is_multiple_of(5)
    }

    /// Blocks that are numbered by their offsets, each of one letter.
    fn stream() -> Vec<u8> {
        let mut bytes = Vec::new();
        let progress = Progress::default();
        let mut out = Out::new(&mut bytes, 5, &progress);
        block_on(async {
            for number in 0..COUNT {
                let mut payload = vec![number as u8; length(number)];
                let mut write = Write {
                    object: 1,
                    offset_bytes: number,
                    logical_bytes: payload.len() as u64,
                    ..Write::default()
                };
                if is_compressed(number) {
                    let (kind, most) = (Compression::Lz4, payload.len() / 2);
                    let packed = compress(kind, ZstdLevel::default(), &payload, most);
                    payload = packed.expect("lz4 is there").expect("it becomes shorter");
                    payload.resize(payload.len().next_multiple_of(512), 0);
                    write.compression = kind.code();
                    write.compressed_bytes = payload.len() as u64;
                }
                let record = Record::Write(Box::new(write));
                out.record(&record, Payload::new(payload.into())).await?;
            }
            out.end().await
        })
        .expect("written");
        bytes
    }

    /// Goal: blocks come in their order and as what they are, though several workers decompress
    /// those that are long; nothing else is left to workers.
    #[tokio::test(flavor = "multi_thread")]
    async fn blocks_are_decompressed_ahead_and_stay_in_order() {
        for unpacks in [true, false] {
            let (queue, mut pieces) = mpsc::channel(8);
            let ahead = Ahead {
                world: World::system(4),
                unpacks,
                room: Arc::new(Semaphore::new(AHEAD_BYTES)),
                queue,
            };
            let mut reader = StreamReader::new(std::io::Cursor::new(stream()));
            let reading = tokio::spawn(async move { ahead.read(&mut reader).await });
            for number in 0..COUNT {
                let next = pieces.recv().await.expect("a record");
                let Record::Write(write) = &next.piece.record else {
                    panic!("another record");
                };
                assert_eq!(write.offset_bytes, number);
                let is_long = length(number) as u64 > UNPACK_AHEAD_BYTES;
                let is_ahead = unpacks && is_compressed(number) && is_long;
                assert_eq!(next.unpacking.is_some(), is_ahead, "block {number}");
                let payload = &next.piece.payload;
                let data = match (next.unpacking, write.compression) {
                    (Some(unpacking), _) => unpacking.await.expect("a worker").expect("data"),
                    (None, 0) => payload.clone(),
                    (None, code) => decompressed(code, payload, length(number)).expect("data"),
                };
                assert!(data == vec![number as u8; length(number)], "block {number}");
            }
            let end = pieces.recv().await.expect("the end");
            assert!(matches!(end.piece.record, Record::End { .. }));
            reading.await.expect("it ends").expect("read");
            assert!(pieces.recv().await.is_none());
        }
    }
}
