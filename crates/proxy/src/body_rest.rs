//! The rest of a client's body: it goes to a worker as it arrives, and is not kept.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};

use crate::body::RequestBody;

/// Why the rest of a body did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// It ended early or is not validly framed.
    Broken,
    /// It is longer than allowed.
    TooLong,
    /// The client sent nothing for too long.
    Stalled,
}

/// Limits of the rest of a body.
#[derive(Clone, Copy, Debug)]
pub struct RestLimits {
    /// Most bytes.
    pub most: u64,
    /// Longest wait for the client's next bytes, and for all of them as long as few have arrived.
    pub pause: Duration,
    /// Longest wait for all bytes. The time that the worker needs to read them does not count.
    pub total: Duration,
    /// Bytes after which the client may wait for a second longer.
    pub bytes_per_second: u64,
}

impl RestLimits {
    /// Returns how long the client may have kept the router waiting for `received` bytes.
    fn allowed(&self, received: u64) -> Duration {
        let by_bytes = Duration::from_secs(received / self.bytes_per_second.max(1));
        self.pause.saturating_add(by_bytes).min(self.total)
    }
}

/// The rest of a body, behind the part that is buffered. Clones share it.
///
/// **Invariant**: nothing of it is buffered here, so what one reader has taken is gone for others:
/// [`Self::is_started`] tells that the body cannot be sent again.
#[derive(Clone)]
pub struct BodyRest(Arc<Mutex<RestState>>);

struct RestState {
    body: RequestBody,
    limits: RestLimits,
    received: u64,
    /// The bytes that the client announced.
    announced: Option<u64>,
    /// Time spent on waiting for the client, without the present wait.
    waited: Duration,
    present: Option<ClientWait>,
    started: bool,
    ended: bool,
    fault: Option<BodyFault>,
}

/// A wait for the client's next bytes.
struct ClientWait {
    since: Instant,
    /// Fires when the client has kept the router waiting for too long.
    limit: Pin<Box<Sleep>>,
}

impl fmt::Debug for BodyRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyRest")
    }
}

impl BodyRest {
    /// Returns the rest of a body of which a part is read.
    pub fn new(body: RequestBody, limits: RestLimits) -> Self {
        Self(Arc::new(Mutex::new(RestState {
            announced: body.announced(),
            body,
            limits,
            received: 0,
            waited: Duration::ZERO,
            present: None,
            started: false,
            ended: false,
            fault: None,
        })))
    }

    /// Returns the number of bytes that are left, where the client announced the body's length.
    pub fn announced(&self) -> Option<u64> {
        self.0.lock().body.announced()
    }

    /// Returns whether a part of the body is already sent: it cannot be sent a second time.
    pub fn is_started(&self) -> bool {
        self.0.lock().started
    }

    /// Returns why the body did not arrive, if it failed.
    pub fn fault(&self) -> Option<BodyFault> {
        self.0.lock().fault
    }

    /// Takes the body if nothing of it is sent.
    pub fn take_unsent(&self) -> Option<RequestBody> {
        let mut state = self.0.lock();
        if std::mem::replace(&mut state.started, true) {
            return None;
        }
        state.ended = true;
        let empty = RequestBody::chunked([]);
        Some(std::mem::replace(&mut state.body, empty))
    }

    pub(crate) fn start(&self) {
        self.0.lock().started = true;
    }

    pub(crate) fn is_end(&self) -> bool {
        self.0.lock().ended
    }

    /// Polls for the next bytes; `None` at the end.
    pub(crate) fn poll_data(&self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let mut state = self.0.lock();
        state.started = true;
        state.poll_data(cx)
    }
}

impl RestState {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if let Some(fault) = self.fault {
            // Whoever asks again must not take the fault for the end.
            return self.fail(fault);
        }
        if self.ended {
            return Poll::Ready(None);
        }
        match self.body.poll_data(cx) {
            Poll::Ready(Some(Ok(data))) => {
                let wait = self.present.take();
                self.waited += wait.map_or(Duration::ZERO, |wait| wait.since.elapsed());
                self.received = self.received.saturating_add(data.len() as u64);
                if self.received > self.limits.most {
                    return self.fail(BodyFault::TooLong);
                }
                Poll::Ready(Some(Ok(data)))
            }
            Poll::Ready(Some(Err(_))) => self.fail(BodyFault::Broken),
            // An HTTP/2 client may end its stream without an error.
            Poll::Ready(None) if self.announced.is_some_and(|all| self.received < all) => {
                self.fail(BodyFault::Broken)
            }
            Poll::Ready(None) => {
                self.ended = true;
                Poll::Ready(None)
            }
            Poll::Pending => {
                let left = self
                    .limits
                    .allowed(self.received)
                    .saturating_sub(self.waited);
                let limit = left.min(self.limits.pause);
                let wait = self.present.get_or_insert_with(|| ClientWait {
                    since: Instant::now(),
                    limit: Box::pin(sleep(limit)),
                });
                if wait.limit.as_mut().poll(cx).is_ready() {
                    return self.fail(BodyFault::Stalled);
                }
                Poll::Pending
            }
        }
    }

    fn fail(&mut self, fault: BodyFault) -> Poll<Option<io::Result<Bytes>>> {
        self.fault = Some(fault);
        self.ended = true;
        Poll::Ready(Some(Err(io::Error::other("the client's body failed"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(frames: &[&'static str], most: u64) -> BodyRest {
        let bytes = |text: &&'static str| Bytes::from_static(text.as_bytes());
        let limits = RestLimits {
            most,
            pause: Duration::from_secs(10),
            total: Duration::from_secs(60),
            bytes_per_second: 1024,
        };
        BodyRest::new(RequestBody::chunked(frames.iter().map(bytes)), limits)
    }

    async fn next(rest: &BodyRest) -> Option<io::Result<Bytes>> {
        std::future::poll_fn(|cx| rest.poll_data(cx)).await
    }

    #[tokio::test]
    async fn the_rest_is_read_once_and_its_first_reader_is_noticed() {
        let rest = rest(&["ab", "c"], 3);
        assert!(!rest.is_started());
        assert_eq!(next(&rest).await.expect("data").expect("good"), "ab");
        assert!(rest.is_started() && rest.take_unsent().is_none());
        assert_eq!(next(&rest).await.expect("data").expect("good"), "c");
        assert!(next(&rest).await.is_none() && rest.is_end());
        assert_eq!(rest.fault(), None);
    }

    #[tokio::test]
    async fn a_rest_that_is_too_long_ends_with_its_fault() {
        let rest = rest(&["ab", "c"], 2);
        assert!(next(&rest).await.expect("data").is_ok());
        for _ in 0..2 {
            let again = next(&rest).await.expect("never an end");
            assert!(again.is_err(), "a fault is not taken for the end later");
        }
        assert_eq!(rest.fault(), Some(BodyFault::TooLong));
    }

    #[tokio::test]
    async fn a_rest_that_ends_before_its_announced_length_is_broken() {
        let rest = rest(&["ab"], 9);
        rest.0.lock().announced = Some(3);
        assert!(next(&rest).await.expect("data").is_ok());
        assert!(next(&rest).await.expect("an error").is_err());
        assert_eq!(rest.fault(), Some(BodyFault::Broken));
    }

    #[test]
    fn a_client_may_keep_the_router_waiting_for_longer_the_more_it_has_sent() {
        let limits = RestLimits {
            most: 1 << 30,
            pause: Duration::from_secs(10),
            total: Duration::from_secs(60),
            bytes_per_second: 1024,
        };
        for (received, seconds) in [(0, 10), (1023, 10), (4096, 14), (1 << 20, 60)] {
            assert_eq!(
                limits.allowed(received),
                Duration::from_secs(seconds),
                "{received}"
            );
        }
    }

    #[tokio::test]
    async fn an_unsent_rest_can_be_taken_once() {
        let rest = rest(&["ab"], 2);
        let mut body = rest.take_unsent().expect("it is not sent");
        assert_eq!(body.next_data().await, Some(Ok("ab".into())));
        assert!(rest.take_unsent().is_none() && next(&rest).await.is_none());
    }
}
