//! Ends the replies of a multiplexed connection whose client takes nothing of them.
//!
//! A client closes the window of one stream while it reads others, so that the connection's own
//! time limit never fires; and the HTTP layer does not poll a reply while it cannot send, so that
//! no timer in the reply does either.

use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// The replies of one connection. Its length is bounded by the streams that a connection may have,
/// twice over: ended ones are removed when they are as many.
pub struct ReplyWatch {
    start: Instant,
    timeout: Duration,
    replies: Mutex<Vec<Weak<dyn EndIfStalled>>>,
}

trait EndIfStalled: Send + Sync {
    /// Drops the reply's source if its last frame was passed on before `limit`, in ms after the
    /// connection's start, and nothing was asked for since.
    fn end_if_stalled(&self, limit: u64);
}

/// What a reply shares with the watch.
struct WatchedReply<B> {
    /// `None`: ended by the watch.
    body: Mutex<Option<Pin<Box<B>>>>,
    /// When the last frame was passed on, in ms after the connection's start; 0 while the client
    /// waits for the next one.
    passed_on: AtomicU64,
}

/// A reply that ends with an error if its client takes nothing of it for a while.
pub struct WatchedBody<B> {
    start: Instant,
    reply: Arc<WatchedReply<B>>,
}

impl ReplyWatch {
    /// Watches replies for clients that take nothing for `timeout`.
    pub fn new(timeout: Duration) -> Self {
        Self {
            start: Instant::now(),
            timeout,
            replies: Mutex::default(),
        }
    }

    /// Returns the body under watch.
    pub fn watch<B>(&self, body: B) -> WatchedBody<B>
    where
        B: Body + Send + 'static,
    {
        let reply = Arc::new(WatchedReply {
            body: Mutex::new(Some(Box::pin(body))),
            passed_on: AtomicU64::new(0),
        });
        let mut replies = self.replies.lock();
        if replies.len() == replies.capacity() {
            replies.retain(|reply| reply.strong_count() > 0);
        }
        let watched: Weak<WatchedReply<B>> = Arc::downgrade(&reply);
        replies.push(watched);
        WatchedBody {
            start: self.start,
            reply,
        }
    }

    /// Ends stalled replies; never returns.
    pub async fn run(&self) {
        loop {
            sleep(self.timeout / 8).await;
            let limit = self.start.elapsed().saturating_sub(self.timeout);
            let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            let replies: Vec<_> = self
                .replies
                .lock()
                .iter()
                .filter_map(Weak::upgrade)
                .collect();
            for reply in replies {
                reply.end_if_stalled(limit);
            }
        }
    }
}

impl<B: Send> EndIfStalled for WatchedReply<B> {
    fn end_if_stalled(&self, limit: u64) {
        let passed_on = self.passed_on.load(Ordering::Acquire);
        if passed_on != 0 && passed_on < limit {
            let ended = self.body.lock().take();
            // Outside the lock: it closes the worker's connection and completes the receipt.
            drop(ended);
        }
    }
}

impl<B: Body<Error = io::Error>> Body for WatchedBody<B> {
    type Data = B::Data;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<B::Data>>>> {
        let mut body = self.reply.body.lock();
        self.reply.passed_on.store(0, Ordering::Release);
        let Some(open) = body.as_mut() else {
            let stalled = io::Error::new(
                io::ErrorKind::TimedOut,
                "the client takes nothing of its reply",
            );
            return Poll::Ready(Some(Err(stalled)));
        };
        let frame = ready!(open.as_mut().poll_frame(cx));
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.reply.passed_on.store(now.max(1), Ordering::Release);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.reply
            .body
            .lock()
            .as_ref()
            .is_some_and(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.reply
            .body
            .lock()
            .as_ref()
            .map_or_else(SizeHint::default, |body| body.size_hint())
    }
}

impl fmt::Debug for ReplyWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyWatch")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for WatchedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedBody").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use bytes::Bytes;
    use contract_id::contract;
    use http_body_util::BodyExt as _;

    use super::*;

    /// Frames, then silence.
    struct Frames {
        left: VecDeque<Bytes>,
        /// Dropped with them.
        _held: Arc<()>,
    }

    impl Body for Frames {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
            match self.left.pop_front() {
                Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                None => Poll::Pending,
            }
        }
    }

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    #[contract("S32")]
    async fn a_reply_ends_when_its_client_takes_nothing_and_not_while_the_worker_is_silent() {
        let watch = ReplyWatch::new(TIMEOUT);
        let held = [Arc::new(()), Arc::new(())];
        let frames = |held: &Arc<()>| {
            watch.watch(Frames {
                left: [Bytes::from_static(b"one"), Bytes::from_static(b"two")].into(),
                _held: Arc::clone(held),
            })
        };
        let (mut stalled, mut waiting) = (frames(&held[0]), frames(&held[1]));
        stalled.frame().await.unwrap().unwrap();
        let beside = async {
            waiting.frame().await.unwrap().unwrap();
            waiting.frame().await.unwrap().unwrap();
            // It has read all there is, and waits.
            waiting.frame().await
        };
        tokio::select! {
            () = watch.run() => unreachable!("it never returns"),
            frame = beside => panic!("the worker is silent: {frame:?}"),
            () = sleep(TIMEOUT * 2) => {}
        }
        assert_eq!(Arc::strong_count(&held[0]), 1, "its source is dropped");
        assert_eq!(Arc::strong_count(&held[1]), 2);
        assert!(stalled.frame().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn ended_replies_take_no_place() {
        let watch = ReplyWatch::new(TIMEOUT);
        for _ in 0..10_000 {
            drop(watch.watch(Frames {
                left: VecDeque::new(),
                _held: Arc::default(),
            }));
        }
        assert!(watch.replies.lock().capacity() <= 8);
    }
}
