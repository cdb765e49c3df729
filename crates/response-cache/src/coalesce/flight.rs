//! One upstream reply, and all the requests that read it.
//!
//! The waiting readers drive it: the first one whose task runs polls the reply, and all of them
//! read the received bytes. So the reply continues as long as one reader is left, whichever came
//! first, and ends (with the worker's connection) when the last one leaves.
//!
//! The bytes are buffered while the reply is short enough to be joined. Of a longer one only its
//! tail is, and no request can join it any more; the leader never waits for another reader, and a
//! reader that falls behind the buffer is cut. Where all buffers together are too large, each reply
//! is treated as long.
//!
//! **Invariant**: a waker is registered before the driver's lock is tried, and all readers are
//! woken after progress and after a reader leaves: none sleeps while there are bytes to read or no
//! reader drives.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Response, StatusCode};
use http_body::Body;
use parking_lot::Mutex;

use super::wakers::Wakers;

/// Longest reply that can be joined or cached; of a longer one this much is buffered for slower
/// readers.
const MOST_BYTES: usize = 8 << 20;
/// Most bytes of all replies together, and of each one beyond that.
const MOST_TOGETHER: usize = 256 << 20;
const BUFFERED_BEYOND: usize = 64 << 10;
/// Shorter pieces are copied.
const SHORT: usize = 4 << 10;

/// A reply that equal requests share.
pub(super) struct Flight<B> {
    driver: Mutex<FlightDriver<B>>,
    shared: Mutex<FlightBuffer>,
    wakers: Arc<Wakers>,
    /// Whether the reply was whole and no error; set at its end.
    outcome: Arc<OnceLock<bool>>,
}

enum FlightDriver<B> {
    /// The leader has not sent its request yet.
    Empty,
    Head(BoxFuture<'static, Response<B>>),
    Body(B),
    /// An error reply, for the leader only.
    Own(Option<Response<B>>),
    Over,
}

struct FlightBuffer {
    head: Option<FlightHead>,
    /// Length of the whole body, where known.
    length: Option<u64>,
    chunks: VecDeque<Bytes>,
    /// Number of chunks dropped from the front.
    dropped_chunks: usize,
    buffered_bytes: usize,
    /// Buffered bytes of all replies, including this one.
    together: Arc<AtomicUsize>,
    /// Most buffered bytes of a long reply.
    window: usize,
    long: bool,
    end: Option<FlightEnd>,
    /// The readers, each with its next chunk.
    readers: Vec<(u64, usize)>,
}

/// The reply's head.
#[derive(Clone, Debug)]
pub(super) enum FlightHead {
    /// The head of a reply for all readers.
    Shared(HeaderMap),
    /// An error: the followers send their own requests.
    Own,
}

/// How a reply ends for one of its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlightEnd {
    /// The reader has all of it.
    Clean,
    /// It broke off, or ran ahead of the reader.
    Broken,
}

/// The leader's id.
pub(super) const FIRST: u64 = 0;

impl<B> Flight<B> {
    /// `together` counts the bytes of all flights.
    pub(super) fn new(together: Arc<AtomicUsize>) -> Self {
        Self {
            driver: Mutex::new(FlightDriver::Empty),
            shared: Mutex::new(FlightBuffer::new(together)),
            wakers: Arc::default(),
            outcome: Arc::default(),
        }
    }

    /// Returns the cell that the end of the reply sets.
    pub(super) fn outcome_slot(&self) -> Arc<OnceLock<bool>> {
        Arc::clone(&self.outcome)
    }

    pub(super) fn begin(&self, reply: BoxFuture<'static, Response<B>>) {
        *self.driver.lock() = FlightDriver::Head(reply);
        self.wakers.wake_all();
    }

    pub(super) fn enter(&self, id: u64) {
        self.shared.lock().readers.push((id, 0));
    }

    /// Removes a reader and wakes the others, since it may have been the driver.
    pub(super) fn leave(&self, id: u64) {
        {
            let mut shared = self.shared.lock();
            shared.readers.retain(|(known, _)| *known != id);
            // The other readers may have waited for this one.
            shared.trim();
        }
        self.wakers.forget(id);
        self.wakers.wake_all();
    }

    /// Drops a reply that no reader wants any more.
    pub(super) fn abandon(&self) {
        let driver = std::mem::replace(&mut *self.driver.lock(), FlightDriver::Over);
        drop(driver);
    }

    pub(super) fn length(&self) -> Option<u64> {
        self.shared.lock().length
    }

    /// Returns whether a new reader would get the reply from its start.
    pub(super) fn can_be_joined(&self) -> bool {
        let shared = self.shared.lock();
        !shared.long
            && shared.end != Some(FlightEnd::Broken)
            && !matches!(shared.head, Some(FlightHead::Own))
    }

    /// Returns the reply's bytes if it is whole, correct, and short enough to answer later
    /// requests.
    pub(super) fn finished_bytes(&self) -> Option<usize> {
        let shared = self.shared.lock();
        let whole = shared.end == Some(FlightEnd::Clean)
            && !shared.long
            && self.outcome.get() == Some(&true);
        whole.then_some(shared.buffered_bytes)
    }

    pub(super) fn is_over(&self) -> bool {
        self.shared.lock().end.is_some()
    }

    /// Returns the leader's own error reply, if it is one.
    pub(super) fn take_own(&self) -> Option<Response<B>> {
        match &mut *self.driver.lock() {
            FlightDriver::Own(response) => response.take(),
            _ => None,
        }
    }

    /// Returns whether this reader has read everything.
    pub(super) fn is_drained(&self, id: u64) -> bool {
        let shared = self.shared.lock();
        let at = shared
            .readers
            .iter()
            .find(|(known, _)| *known == id)
            .map_or(0, |(_, at)| *at);
        shared.end == Some(FlightEnd::Clean) && at == shared.dropped_chunks + shared.chunks.len()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Flight<B> {
    /// Returns the head as soon as it arrives.
    pub(super) fn poll_head(&self, id: u64, cx: &mut Context<'_>) -> Poll<FlightHead> {
        loop {
            {
                let shared = self.shared.lock();
                if let Some(head) = &shared.head {
                    return Poll::Ready(head.clone());
                }
                self.wakers.register(id, cx.waker());
            }
            if !self.drive() {
                return Poll::Pending;
            }
        }
    }

    /// Returns the next bytes for this reader.
    pub(super) fn poll_chunk(
        &self,
        id: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Bytes, FlightEnd>> {
        loop {
            {
                let mut shared = self.shared.lock();
                match shared.next(id) {
                    Some(Ok(bytes)) => {
                        if shared.trim() {
                            self.wakers.wake_all();
                        }
                        return Poll::Ready(Ok(bytes));
                    }
                    Some(end) => return Poll::Ready(end),
                    None => {}
                }
                self.wakers.register(id, cx.waker());
                if shared.long && shared.buffered_bytes > shared.window {
                    return Poll::Pending; // somebody has to catch up first
                }
            }
            if !self.drive() {
                return Poll::Pending;
            }
        }
    }

    /// Polls the reply once, unless another reader is polling it. Returns whether there was
    /// progress; if not, all registered readers are woken when there may be.
    fn drive(&self) -> bool {
        let Some(mut driver) = self.driver.try_lock() else {
            return false;
        };
        let waker = Waker::from(Arc::clone(&self.wakers));
        let mut cx = Context::from_waker(&waker);
        let moved = match &mut *driver {
            FlightDriver::Empty => false,
            FlightDriver::Head(reply) => match reply.as_mut().poll(&mut cx) {
                Poll::Pending => false,
                Poll::Ready(response) => {
                    self.headed(&mut driver, response);
                    true
                }
            },
            FlightDriver::Body(body) => match Pin::new(&mut *body).poll_frame(&mut cx) {
                Poll::Pending => false,
                Poll::Ready(frame) => {
                    let end = match frame {
                        Some(Ok(frame)) => {
                            if let Ok(bytes) = frame.into_data() {
                                self.shared.lock().push(bytes);
                            }
                            body.is_end_stream().then_some(FlightEnd::Clean)
                        }
                        Some(Err(_)) => Some(FlightEnd::Broken),
                        None => Some(FlightEnd::Clean),
                    };
                    if let Some(end) = end {
                        // The guard of the reply is dropped before any reader sees its end.
                        *driver = FlightDriver::Over;
                        self.shared.lock().end = Some(end);
                    }
                    true
                }
            },
            FlightDriver::Own(_) | FlightDriver::Over => {
                let mut shared = self.shared.lock();
                // The last reader has dropped it.
                let news = shared.head.is_none()
                    || (shared.end.is_none() && !matches!(shared.head, Some(FlightHead::Own)));
                shared.head.get_or_insert(FlightHead::Own);
                if news {
                    shared.end = Some(FlightEnd::Broken);
                }
                news
            }
        };
        drop(driver);
        if moved {
            self.wakers.wake_all();
        }
        moved
    }

    fn headed(&self, driver: &mut FlightDriver<B>, response: Response<B>) {
        let mut shared = self.shared.lock();
        if response.status() != StatusCode::OK {
            // Errors are never shared.
            shared.head = Some(FlightHead::Own);
            *driver = FlightDriver::Own(Some(response));
            return;
        }
        let (parts, body) = response.into_parts();
        shared.head = Some(FlightHead::Shared(parts.headers));
        shared.length = body.size_hint().exact();
        let empty = body.is_end_stream();
        *driver = if empty {
            FlightDriver::Over
        } else {
            FlightDriver::Body(body)
        };
        if empty {
            shared.end = Some(FlightEnd::Clean);
        }
    }
}

impl<B> std::fmt::Debug for Flight<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flight").finish_non_exhaustive()
    }
}

impl FlightBuffer {
    fn new(together: Arc<AtomicUsize>) -> Self {
        Self {
            head: None,
            length: None,
            chunks: VecDeque::new(),
            dropped_chunks: 0,
            buffered_bytes: 0,
            together,
            window: MOST_BYTES,
            long: false,
            end: None,
            readers: Vec::new(),
        }
    }

    fn push(&mut self, bytes: Bytes) {
        self.buffered_bytes += bytes.len();
        let together = self.together.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        // A slice of a short piece would keep the whole socket read buffer alive.
        self.chunks.push_back(if bytes.len() < SHORT {
            Bytes::copy_from_slice(&bytes)
        } else {
            bytes
        });
        if together > MOST_TOGETHER {
            self.window = BUFFERED_BEYOND;
        }
        self.long |= self.buffered_bytes > self.window;
        self.trim();
    }

    /// Returns the next bytes for this reader, or the end; `None` where none has arrived.
    fn next(&mut self, id: u64) -> Option<Result<Bytes, FlightEnd>> {
        let Some((_, at)) = self.readers.iter_mut().find(|(known, _)| *known == id) else {
            return Some(Err(FlightEnd::Broken));
        };
        let Some(ahead) = at.checked_sub(self.dropped_chunks) else {
            return Some(Err(FlightEnd::Broken));
        };
        match self.chunks.get(ahead) {
            Some(bytes) => {
                *at += 1;
                Some(Ok(bytes.clone()))
            }
            None => self.end.map(Err),
        }
    }

    /// Drops chunks of a long reply that the leader has read or, if it has left, all readers.
    /// Returns whether it dropped any.
    fn trim(&mut self) -> bool {
        if !self.long {
            return false;
        }
        let first = self
            .readers
            .iter()
            .find(|(id, _)| *id == FIRST)
            .map(|(_, at)| *at);
        let read = first
            .or_else(|| self.readers.iter().map(|(_, at)| *at).min())
            .unwrap_or(0);
        let before = self.dropped_chunks;
        while self.dropped_chunks < read
            && self.buffered_bytes > self.window
            && let Some(bytes) = self.chunks.pop_front()
        {
            self.buffered_bytes -= bytes.len();
            self.together.fetch_sub(bytes.len(), Ordering::Relaxed);
            self.dropped_chunks += 1;
        }
        before != self.dropped_chunks
    }
}

impl Drop for FlightBuffer {
    fn drop(&mut self) {
        self.together
            .fetch_sub(self.buffered_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(shared: &mut FlightBuffer, id: u64) -> Result<usize, FlightEnd> {
        let mut bytes = 0;
        loop {
            match shared.next(id) {
                Some(Ok(chunk)) => bytes += chunk.len(),
                Some(Err(FlightEnd::Broken)) => return Err(FlightEnd::Broken),
                Some(Err(FlightEnd::Clean)) | None => return Ok(bytes),
            }
            shared.trim();
        }
    }

    #[test]
    fn a_long_reply_keeps_only_its_tail_and_a_slower_follower_is_cut() {
        let mut shared = FlightBuffer::new(Arc::default());
        shared.readers = vec![(FIRST, 0), (1, 0), (2, 0)];
        let megabyte = Bytes::from(vec![0; 1 << 20]);
        for _ in 0..8 {
            shared.push(megabyte.clone());
        }
        assert!(!shared.long);
        assert_eq!(read_all(&mut shared, 1), Ok(8 << 20));
        // The leader has read nothing: it loses nothing, however much arrives.
        shared.push(megabyte.clone());
        assert!(shared.long && shared.buffered_bytes > shared.window);
        assert_eq!(read_all(&mut shared, FIRST), Ok(9 << 20));
        // A reader slightly behind continues, one that has not begun cannot.
        assert_eq!(read_all(&mut shared, 1), Ok(1 << 20));
        assert_eq!(read_all(&mut shared, 2), Err(FlightEnd::Broken));
        assert!(shared.buffered_bytes <= MOST_BYTES);
    }

    #[test]
    fn all_flights_together_are_bounded_and_release_their_bytes() {
        let together = Arc::new(AtomicUsize::new(MOST_TOGETHER));
        let mut shared = FlightBuffer::new(Arc::clone(&together));
        shared.readers = vec![(FIRST, 0)];
        for _ in 0..100 {
            shared.push(Bytes::from(vec![0; 10_000]));
            assert_eq!(read_all(&mut shared, FIRST), Ok(10_000));
        }
        assert!(shared.long && shared.buffered_bytes <= BUFFERED_BEYOND);
        drop(shared);
        assert_eq!(together.load(Ordering::Relaxed), MOST_TOGETHER);
    }
}
