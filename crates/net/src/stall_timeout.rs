//! Closes a connection whose other side takes nothing for a while.
//!
//! The HTTP layer does not poll a reply while it cannot write, so a reply that never ends would
//! stay for ever.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// The connection.
#[derive(Debug)]
pub struct StallTimeout<S> {
    inner: S,
    timeout: Duration,
    /// Runs while no write makes progress.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Runs while a flush makes no progress: an encrypted stream takes in more than it can send.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S> StallTimeout<S> {
    /// Wraps `inner`. A write that makes no progress for `patience` fails with `TimedOut`.
    pub fn new(inner: S, patience: Duration) -> Self {
        Self {
            inner,
            timeout: patience,
            stalled: None,
            stuck: None,
        }
    }

    fn unless_stalled<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        in_time(&mut self.stalled, self.timeout, cx, result)
    }
}

/// Returns the result, or an error after `patience` without one; `timer` runs meanwhile.
fn in_time<T>(
    timer: &mut Option<Pin<Box<Sleep>>>,
    patience: Duration,
    cx: &mut Context<'_>,
    result: Poll<io::Result<T>>,
) -> Poll<io::Result<T>> {
    if result.is_ready() {
        *timer = None;
        return result;
    }
    ready!(
        timer
            .get_or_insert_with(|| Box::pin(sleep(patience)))
            .as_mut()
            .poll(cx)
    );
    Poll::Ready(Err(io::Error::new(
        io::ErrorKind::TimedOut,
        "the reader takes nothing of its reply",
    )))
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimeout<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimeout<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let result = Pin::new(&mut stream.inner).poll_write(cx, bytes);
        stream.unless_stalled(cx, result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let result = Pin::new(&mut stream.inner).poll_write_vectored(cx, slices);
        stream.unless_stalled(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let result = Pin::new(&mut stream.inner).poll_flush(cx);
        in_time(&mut stream.stuck, stream.timeout, cx, result)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_reads_nothing_times_out() {
        let (ours, _theirs) = duplex(64);
        let error = StallTimeout::new(ours, PATIENCE)
            .write_all(&[0; 65])
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_does_not_time_out() {
        let (ours, mut theirs) = duplex(64);
        let reading = tokio::spawn(async move {
            for _ in 0..10 {
                sleep(PATIENCE / 2).await;
                theirs.read_exact(&mut [0; 64]).await.unwrap();
            }
        });
        StallTimeout::new(ours, PATIENCE)
            .write_all(&[0; 640])
            .await
            .unwrap();
        reading.await.unwrap();
    }
}
