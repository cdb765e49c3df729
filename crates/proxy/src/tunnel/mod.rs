//! A tunnel: the bytes of a client and a worker in both directions, after both have left HTTP.
//!
//! Nothing is changed, and no more is buffered than one read in each direction: who does not read
//! is not read for. A side that ends its bytes ends them for the other side too, which may go on.
//!
//! **Invariant**: a tunnel ends; at the latest by its limits or by the end of the drain time.

mod close_frame;

use std::{
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes},
    time::{Instant, sleep_until},
};

use self::close_frame::CloseFrameFinder;
use crate::{AbortSignal, ClientUpgrade, WorkerUpgrade};

/// Bytes that are buffered in each direction.
const BUFFER: usize = 16 * 1024;
/// Longest wait for one side after the other has ended its bytes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limits of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct TunnelLimits {
    /// Longest time without a byte in either direction.
    pub idle: Duration,
    /// Longest duration.
    pub total: Duration,
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEnd {
    /// The worker said by a close frame that it is the end.
    Closed,
    /// The client ended or lost its connection before that.
    ClientGone,
    /// The worker did.
    Broken,
    /// No byte came for too long.
    Idle,
    /// It ran longer than allowed.
    TooLong,
    /// The drain time is up.
    Aborted,
}

/// The connections of a client and a worker that have agreed on another protocol.
#[derive(Debug)]
pub struct Tunnel {
    /// The client's.
    pub client: ClientUpgrade,
    /// The worker's.
    pub worker: WorkerUpgrade,
    /// The time limits.
    pub limits: TunnelLimits,
}

impl Tunnel {
    /// Carries the bytes of a WebSocket conversation until it ends or `abort` resolves.
    pub async fn run(self, abort: AbortSignal) -> TunnelEnd {
        let Ok(client) = self.client.stream().await else {
            return TunnelEnd::ClientGone;
        };
        let worker = self.worker.stream();
        tokio::select! {
            end = carry(client, worker, self.limits) => end,
            () = abort => TunnelEnd::Aborted,
        }
    }
}

async fn carry(
    client: impl AsyncRead + AsyncWrite + Unpin,
    worker: impl AsyncRead + AsyncWrite + Unpin,
    limits: TunnelLimits,
) -> TunnelEnd {
    let progress = Arc::new(Mutex::new(Progress::begin()));
    let mut client = TunnelSide::new(client, Side::Client, &progress);
    let mut worker = TunnelSide::new(worker, Side::Worker, &progress);
    let mut copying = pin!(copy_bidirectional_with_sizes(
        &mut client,
        &mut worker,
        BUFFER,
        BUFFER
    ));
    let mut timer = pin!(sleep_until(Instant::now()));
    std::future::poll_fn(|cx| {
        // An error is noted at the side where it occurs.
        if copying.as_mut().poll(cx).is_ready() {
            return Poll::Ready(progress.lock().end());
        }
        loop {
            let until = match progress.lock().next_limit(limits) {
                Ok(until) => until,
                Err(end) => return Poll::Ready(end),
            };
            timer.as_mut().reset(until);
            ready!(timer.as_mut().poll(cx));
        }
    })
    .await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Worker,
}

/// What is known of a tunnel's bytes.
#[derive(Debug)]
struct Progress {
    started: Instant,
    last_byte: Instant,
    /// The side that ended or failed first.
    ended: Option<Side>,
    /// The worker's frames.
    frames: CloseFrameFinder,
}

impl Progress {
    fn begin() -> Self {
        let now = Instant::now();
        Self {
            started: now,
            last_byte: now,
            ended: None,
            frames: CloseFrameFinder::default(),
        }
    }

    /// Returns the end of a tunnel whose sides have ended.
    fn end(&self) -> TunnelEnd {
        match self.ended {
            _ if self.frames.is_found() => TunnelEnd::Closed,
            Some(Side::Worker) => TunnelEnd::Broken,
            Some(Side::Client) | None => TunnelEnd::ClientGone,
        }
    }

    /// Returns when the next limit expires, or the end if one has.
    fn next_limit(&self, limits: TunnelLimits) -> Result<Instant, TunnelEnd> {
        let idle = match self.ended {
            Some(_) => limits.idle.min(CLOSE_TIMEOUT),
            None => limits.idle,
        };
        let (idle, total) = (self.last_byte + idle, self.started + limits.total);
        let next = idle.min(total);
        if next > Instant::now() {
            return Ok(next);
        }
        Err(match self.ended {
            Some(_) => self.end(),
            None if total <= idle => TunnelEnd::TooLong,
            None => TunnelEnd::Idle,
        })
    }

    fn record_end(&mut self, side: Side) {
        self.last_byte = Instant::now();
        self.ended.get_or_insert(side);
    }
}

/// One side's bytes, noted as they pass.
struct TunnelSide<S> {
    stream: S,
    side: Side,
    progress: Arc<Mutex<Progress>>,
}

impl<S> TunnelSide<S> {
    fn new(stream: S, side: Side, progress: &Arc<Mutex<Progress>>) -> Self {
        let progress = Arc::clone(progress);
        Self {
            stream,
            side,
            progress,
        }
    }

    /// Notes that the side failed.
    fn noted<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(_)) = &result {
            self.progress.lock().record_end(self.side);
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TunnelSide<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buf);
        ready!(this.noted(result))?;
        let mut progress = this.progress.lock();
        match buf.filled().get(before..) {
            None | Some([]) => progress.record_end(this.side),
            Some(bytes) => {
                progress.last_byte = Instant::now();
                if this.side == Side::Worker {
                    progress.frames.push(bytes);
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TunnelSide<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.noted(result)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_flush(cx);
        this.noted(result)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.noted(result)
    }
}

#[cfg(test)]
mod tests;
