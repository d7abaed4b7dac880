//! Connections that end when the other end stands still: one that does not take what it is sent
//! ([`Patient`]), and a stream of which nothing comes any more ([`Bounded`]). Its kernel may
//! say all the while that it is well.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How long the other end may take nothing at all.
pub(super) const WRITE_MAX: Duration = Duration::from_secs(30);

/// How long a stream that comes over the network may be silent: longer than a source that goes
/// through what has not changed, or waits for slow disks.
const SILENT_MAX: Duration = Duration::from_secs(30 * 60);

/// A stream of bytes of which writes fail that do not get on.
pub(super) struct Patient<S> {
    inner: S,
    /// When the write that waits fails.
    until: Pin<Box<Sleep>>,
    waits: bool,
    written: Written,
}

/// When the other end took something last.
#[derive(Clone)]
pub(super) struct Written(Arc<Mutex<Instant>>);

impl Written {
    /// For how long it has taken nothing.
    pub(super) fn silent(&self) -> Duration {
        self.0.lock().elapsed()
    }
}

impl<S> Patient<S> {
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            until: Box::pin(tokio::time::sleep(Duration::ZERO)),
            waits: false,
            written: Written(Arc::new(Mutex::new(Instant::now()))),
        }
    }

    /// When the other end takes something.
    pub(super) fn written(&self) -> Written {
        self.written.clone()
    }

    fn note(&self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(1..))) {
            *self.written.0.lock() = Instant::now();
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
        self.note(&written);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.note(&written);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
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

/// What a connection brings that has become a stream. Over the network, a read fails that gets
/// nothing for [`SILENT_MAX`]. At the other end of a local one there may be a person who thinks:
/// that one has all the time there is.
pub struct Bounded<S> {
    inner: S,
    is_local: bool,
    /// When the read that waits fails.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Bounded<S> {
    /// A stream over the network, or a local one.
    pub fn new(inner: S, is_local: bool) -> Self {
        Self {
            inner,
            is_local,
            until: None,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if read.is_ready() || self.is_local {
            self.until = None;
            return read;
        }
        let until = self
            .until
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(SILENT_MAX)));
        match until.as_mut().poll(context) {
            Poll::Ready(()) => {
                self.until = None;
                let why = format!("nothing came for {} minutes", SILENT_MAX.as_secs() / 60);
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
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

    /// Goal: parts go in one write, as they do without what is around the connection.
    #[tokio::test]
    async fn parts_go_in_one_write() {
        let (near, mut far) = tokio::net::UnixStream::pair().unwrap();
        let mut near = Bounded::new(Patient::new(near), true);
        assert!(near.is_write_vectored());
        let parts = [IoSlice::new(b"one, "), IoSlice::new(b"two")];
        assert_eq!(near.write_vectored(&parts).await.unwrap(), 8);
        let mut taken = [0; 8];
        far.read_exact(&mut taken).await.unwrap();
        assert_eq!(&taken, b"one, two");
    }

    /// Goal: a source that is silent ends the stream, one that is slow does not, nor one on this
    /// host.
    #[tokio::test(start_paused = true)]
    async fn a_silent_source_is_left_but_not_a_local_one() {
        let pause = SILENT_MAX - Duration::from_secs(1);
        let (near, mut far) = tokio::io::duplex(1024);
        let mut near = Bounded::new(near, false);
        let sends = async {
            for byte in 0..3 {
                tokio::time::sleep(pause).await;
                far.write_all(&[byte]).await.unwrap();
            }
        };
        let reads = async {
            let begun = Instant::now();
            let mut all = Vec::new();
            let error = near.read_to_end(&mut all).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(all, [0, 1, 2]);
            assert!(begun.elapsed() >= pause * 3 + SILENT_MAX);
        };
        tokio::join!(sends, reads);

        let (near, mut far) = tokio::io::duplex(1024);
        let sends = async {
            tokio::time::sleep(SILENT_MAX * 10).await;
            far.write_all(b"x").await.unwrap();
        };
        let mut near = Bounded::new(near, true);
        let (byte, ()) = tokio::join!(near.read_u8(), sends);
        assert_eq!(byte.unwrap(), b'x');
    }
}
