//! Receiving: reading records and writing what they say, side by side (`dmu_recv_stream`,
//! module/zfs/dmu_recv.c).
//!
//! Reading and verifying go ahead of writing by [`AHEAD_BYTES`], so that neither end of the pipe
//! waits for what the other one does in a moment.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dataset::Receiving;
use format::stream::{Record, StreamFeatures};
use format::{Endian, NvList};
use tokio::io::AsyncRead;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::writer::{OTHER_ORDER, Received, Writer};
use crate::{Piece, StreamError, StreamReader};

/// What is read ahead of being written, in bytes. More than the longest payload.
const AHEAD_BYTES: usize = 64 << 20;
/// The same, in records.
const AHEAD_RECORDS: usize = 4096;

/// How often it is asked whether to stop while nothing comes.
const LOOK: Duration = Duration::from_millis(500);

/// Is told how many bytes are done; says whether to stop.
type Report = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// How far streams are; may be looked at by others.
#[derive(Default)]
pub struct Progress {
    bytes: AtomicU64,
    report: Option<Report>,
}

impl Progress {
    /// Tells somebody, who may have it stop.
    pub fn new(report: impl Fn(u64) -> bool + Send + Sync + 'static) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            report: Some(Box::new(report)),
        }
    }

    /// Bytes of streams that are done.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits for what a stream has to say, unless it is stopped: whoever sends may be silent.
    ///
    /// # Errors
    /// [`StreamError::Interrupted`], and those of `work`.
    pub async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, StreamError>>,
    ) -> Result<T, StreamError> {
        let stopped = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if let Err(error) = self.add(0) {
                    return error;
                }
            }
        };
        tokio::select! {
            done = work => done,
            error = stopped => Err(error),
        }
    }

    pub(crate) fn add(&self, bytes: u64) -> Result<(), StreamError> {
        let done = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match &self.report {
            Some(report) if report(done) => Err(StreamError::Interrupted),
            _ => Ok(()),
        }
    }
}

/// Receives what is left of a stream that has begun into a dataset; `list` is the description in
/// its first record.
///
/// # Errors
/// Those of the stream and of writing. What was written then is for the caller to give up
/// ([`dataset::Receives::give_up`]).
pub async fn receive<R: AsyncRead + Unpin + Send>(
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
    let is_raw = receiving
        .target()
        .begin
        .features
        .contains(StreamFeatures::RAW);
    if is_raw && reader.endian() == Endian::Big {
        return Err(OTHER_ORDER);
    }
    let mut writer = Writer::new(receiving, reader.endian());
    let room = Arc::new(Semaphore::new(AHEAD_BYTES));
    let (send, mut pieces) = mpsc::channel::<(Piece, OwnedSemaphorePermit)>(AHEAD_RECORDS);
    let reading = async move {
        loop {
            let piece = reader.next().await?;
            let bytes = piece.payload.len().clamp(1, AHEAD_BYTES) as u32;
            let place = room.clone().acquire_many_owned(bytes).await;
            let Ok(place) = place else {
                return Ok(());
            };
            let is_end = matches!(piece.record, Record::End { .. });
            // Whoever writes has failed.
            if send.send((piece, place)).await.is_err() || is_end {
                return Ok(());
            }
        }
    };
    let reading = progress.unless_stopped(reading);
    let writing = async {
        let mut before = 0;
        while let Some((piece, _place)) = pieces.recv().await {
            let end = piece.end_bytes;
            let is_end = matches!(piece.record, Record::End { .. });
            let written = writer.write(piece).await;
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
        loop {
            tokio::select! {
                biased;
                written = &mut writing => break written?,
                done = &mut reading, if read.is_none() => read = Some(done),
            }
        }
    };
    match read {
        Some(Err(error)) => return Err(error),
        _ if !written => return Err(StreamError::CutShort),
        _ => {}
    }
    writer.finish().await
}
