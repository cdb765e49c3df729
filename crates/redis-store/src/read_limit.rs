//! A byte stream that returns at most the allowed number of bytes.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that may still be read. The parser above buffers an answer until it is complete, whatever
/// length the server announces.
#[derive(Clone, Debug)]
pub(crate) struct ReadAllowance(Arc<AtomicUsize>);

impl ReadAllowance {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    pub(crate) fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// A stream that ends with an error one read after the allowance is used up.
#[derive(Debug)]
pub(crate) struct LimitedStream<S> {
    stream: S,
    allowance: ReadAllowance,
}

impl<S> LimitedStream<S> {
    pub(crate) fn new(stream: S, allowance: ReadAllowance) -> Self {
        Self { stream, allowance }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.allowance.0.load(Ordering::Relaxed);
        if left == 0 {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "an answer longer than it may be",
            )));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let count = buf.filled().len() - before;
        // Not a plain store: a new allowance may have been set meanwhile.
        self.allowance
            .0
            .fetch_sub(count.min(left), Ordering::Relaxed);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_read_beyond_the_limit_fails_and_the_limit_can_be_renewed() {
        let allowance = ReadAllowance::new(4);
        let mut stream = LimitedStream::new(written(b"abcdefgh"), allowance.clone());
        let mut four = [0; 4];
        stream.read_exact(&mut four).await.unwrap();
        assert_eq!(
            stream.read_exact(&mut four).await.unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        allowance.set(4);
        stream.read_exact(&mut four).await.unwrap();
        assert_eq!(&four, b"efgh");
    }

    /// Returns a stream whose writer is closed.
    fn written(bytes: &'static [u8]) -> tokio::io::DuplexStream {
        let (mut near, far) = tokio::io::duplex(64);
        tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut near, bytes).await });
        far
    }
}
