//! A limit on bytes in a second.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep, sleep_until};

/// What may go at once, in time at the limit's rate: more makes bursts, less many small writes.
const BURST: Duration = Duration::from_millis(50);
/// Least bytes of a write.
const WRITE_BYTES_MIN: usize = 512;

/// How much may go, and when. Several writers share one: together they keep to it.
#[derive(Debug)]
pub(super) struct Limit {
    bytes_per_s: u64,
    /// When what went before is paid for.
    paid: Mutex<Instant>,
}

impl Limit {
    pub(super) fn new(bytes_per_s: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_per_s: bytes_per_s.max(1),
            paid: Mutex::new(Instant::now()),
        })
    }

    fn write_bytes_max(&self) -> usize {
        let bytes = u128::from(self.bytes_per_s) * BURST.as_millis() / 1000;
        usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .max(WRITE_BYTES_MIN)
    }

    /// Takes what went into account; says when something may go again. Time in which nothing went
    /// is not made up for, but for [`BURST`].
    fn pay(&self, bytes: usize) -> Instant {
        let ns = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_s);
        let cost = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        let mut paid = self.paid.lock();
        let earliest = Instant::now().checked_sub(BURST);
        *paid = earliest.map_or(*paid, |earliest| earliest.max(*paid)) + cost;
        *paid
    }
}

/// Writes no faster than a limit lets it.
pub(super) struct Limited<W> {
    output: W,
    limit: Option<Arc<Limit>>,
    waits: Pin<Box<Sleep>>,
    is_broken: bool,
}

impl<W> Limited<W> {
    pub(super) fn new(output: W, limit: Option<Arc<Limit>>) -> Self {
        Self {
            output,
            limit,
            waits: Box::pin(sleep_until(Instant::now())),
            is_broken: false,
        }
    }

    /// Whether a write failed, so that who reads is to be asked why.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }
}

impl<W: AsyncWrite + Unpin> Limited<W> {
    fn poll_output(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.output).poll_write(context, bytes));
        self.is_broken |= written.is_err();
        Poll::Ready(written)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Limited<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some(limit) = self.limit.clone() else {
            return self.poll_output(context, bytes);
        };
        ready!(self.waits.as_mut().poll(context));
        let some = &bytes[..bytes.len().min(limit.write_bytes_max())];
        let written = ready!(self.poll_output(context, some))?;
        let until = limit.pay(written);
        self.waits.as_mut().reset(until);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.limit.is_some() {
            let first = parts.iter().find(|part| !part.is_empty());
            let first: &[u8] = first.map_or(&[], |part| part.as_ref());
            return self.poll_write(context, first);
        }
        let written = ready!(Pin::new(&mut self.output).poll_write_vectored(context, parts));
        self.is_broken |= written.is_err();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.limit.is_none() && self.output.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// How long it takes to write so many bytes in pieces, with a pause in the middle.
    async fn takes(limit: u64, pieces: &[usize], pause: Duration) -> Duration {
        let (output, mut input) = tokio::io::duplex(64 << 10);
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            input.read_to_end(&mut all).await.map(|_| all.len())
        });
        let mut writer = Limited::new(output, Some(Limit::new(limit)));
        let begin = Instant::now();
        for (number, length) in pieces.iter().enumerate() {
            if number == pieces.len() / 2 {
                tokio::time::sleep(pause).await;
            }
            writer.write_all(&vec![7; *length]).await.unwrap();
        }
        writer.shutdown().await.unwrap();
        let took = begin.elapsed();
        drop(writer);
        let wanted: usize = pieces.iter().sum();
        assert_eq!(reading.await.unwrap().unwrap(), wanted);
        took
    }

    /// Goal: exact to two percent, whatever the pieces are, from a kilobyte to a gigabyte a second.
    #[tokio::test(start_paused = true)]
    async fn what_goes_keeps_to_the_limit() {
        for (limit, piece, count) in [
            (1 << 10, 300, 100),
            (1 << 20, 312, 60_000),
            (50 << 20, 1 << 20, 200),
            (50 << 20, 100_001, 2000),
            (1 << 30, 16 << 20, 100),
        ] {
            let pieces = vec![piece; count];
            let took = takes(limit, &pieces, Duration::ZERO).await.as_secs_f64();
            let wanted = (piece * count) as f64 / limit as f64;
            let off = (took - wanted) / wanted;
            assert!(off.abs() < 0.02, "{limit}: {took} s instead of {wanted} s");
        }
    }

    /// Time that passed without data is lost: nothing comes in a rush after it.
    #[tokio::test(start_paused = true)]
    async fn pauses_are_not_made_up_for() {
        let pieces = vec![100_000; 100];
        let pause = Duration::from_secs(30);
        let took = takes(1_000_000, &pieces, pause).await.as_secs_f64();
        assert!((took - 40.0).abs() < 0.3, "{took} s");
    }
}
