//! A connection that ends when the other end does not take what it is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How long the other end may take nothing at all.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// A stream of bytes of which writes fail that do not get on.
pub(super) struct Patient<S> {
    inner: S,
    /// When the write that waits fails.
    until: Pin<Box<Sleep>>,
    waits: bool,
}

impl<S> Patient<S> {
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            until: Box::pin(tokio::time::sleep(Duration::ZERO)),
            waits: false,
        }
    }

    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        if !self.waits {
            self.waits = true;
            self.until.as_mut().reset(Instant::now() + WRITE_MAX);
        }
        match self.until.as_mut().poll(context) {
            Poll::Ready(()) => {
                self.waits = false;
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.inner).poll_shutdown(context);
        self.bounded(context, ended)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_left_and_who_is_slow_is_not() {
        let (near, mut far) = tokio::io::duplex(1024);
        let mut near = Patient::new(near);
        let begun = Instant::now();
        let all = near.write_all(&[0; 4096]).await;
        assert_eq!(all.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= WRITE_MAX);
        let reads = tokio::spawn(async move {
            let mut taken = vec![0; 256];
            while let Ok(1..) = far.read(&mut taken).await {
                tokio::time::sleep(WRITE_MAX / 2).await;
            }
        });
        near.write_all(&[0; 4096]).await.unwrap();
        drop(near);
        reads.await.unwrap();
    }
}
