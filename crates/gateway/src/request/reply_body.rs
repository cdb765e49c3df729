//! The body of a reply, and the guard that contains its panics.

use std::{
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body::{Body, Frame, SizeHint};

use super::{conversation::Conversation, record::RequestGuard};
use crate::metrics::Metrics;

/// A body that produces its bytes over time: a relayed, shared or copied reply.
pub(crate) trait LiveBody:
    Body<Data = Bytes, Error = io::Error> + fmt::Debug + Send
{
}

impl<T: Body<Data = Bytes, Error = io::Error> + fmt::Debug + Send> LiveBody for T {}

/// The body of a reply.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// Bytes of the router, or a worker's whole reply with the request's guard, which is completed
    /// after the last byte.
    Whole(Option<Bytes>, Option<Box<RequestGuard>>),
    Live(Pin<Box<dyn LiveBody>>),
    /// None: after the reply's head, the connection carries a conversation.
    Conversation(Box<Conversation>),
}

/// An empty body.
impl Default for ReplyBody {
    fn default() -> Self {
        Self::Whole(None, None)
    }
}

impl ReplyBody {
    /// Returns a body of the router's own.
    pub(crate) fn own(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()), None)
    }

    /// Returns a worker's whole reply.
    pub(crate) fn whole(bytes: Bytes, mut guard: Box<RequestGuard>) -> Self {
        if bytes.is_empty() {
            // hyper never polls an empty body.
            guard.complete();
            return Self::default();
        }
        Self::Whole(Some(bytes), Some(guard))
    }

    pub(crate) fn live(body: impl LiveBody + 'static) -> Self {
        Self::Live(Box::pin(body))
    }

    pub(crate) fn conversation(conversation: Conversation) -> Self {
        Self::Conversation(Box::new(conversation))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes, guard) => {
                if let Some(mut guard) = guard.take() {
                    guard.complete();
                }
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Live(body) => body.as_mut().poll_frame(cx),
            Self::Conversation(_) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes, _) => bytes.is_none(),
            Self::Live(body) => body.is_end_stream(),
            Self::Conversation(_) => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes, _) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Self::Live(body) => body.size_hint(),
            Self::Conversation(_) => SizeHint::with_exact(0),
        }
    }
}

/// A body whose panic ends its reply uncleanly and counts as a panic of a request.
///
/// **Invariant**: a body that panicked is dropped at once, which ends its request.
#[derive(Debug)]
pub struct GuardedBody {
    /// Empty after a panic.
    body: ReplyBody,
    metrics: Arc<Metrics>,
}

impl GuardedBody {
    pub(crate) fn new(body: ReplyBody, metrics: Arc<Metrics>) -> Self {
        Self { body, metrics }
    }

    /// Takes the conversation that follows the reply, if there is one. Dropping it ends the request.
    pub(crate) fn take_conversation(&mut self) -> Option<GuardedConversation> {
        let body = std::mem::take(&mut self.body);
        let ReplyBody::Conversation(conversation) = body else {
            self.body = body;
            return None;
        };
        Some(GuardedConversation {
            conversation,
            metrics: Arc::clone(&self.metrics),
        })
    }
}

/// A conversation whose panic ends it and counts as a panic of a request.
#[derive(Debug)]
pub(crate) struct GuardedConversation {
    conversation: Box<Conversation>,
    metrics: Arc<Metrics>,
}

impl GuardedConversation {
    /// Carries the conversation to its end.
    pub(crate) async fn run(self) {
        let Self {
            conversation,
            metrics,
        } = self;
        if AssertUnwindSafe(conversation.run())
            .catch_unwind()
            .await
            .is_err()
        {
            metrics.requests.panics.inc();
        }
    }
}

impl Body for GuardedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            supervision::panic_point("reply_body");
            Pin::new(&mut this.body).poll_frame(cx)
        }));
        polled.unwrap_or_else(|_| {
            this.metrics.requests.panics.inc();
            this.body = ReplyBody::default();
            Poll::Ready(Some(Err(io::Error::other(
                "the router failed on this reply; see its log",
            ))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::request::test_gateway::TestGateway;

    /// A body that panics when it is polled.
    #[derive(Debug)]
    struct PanickingBody;

    impl Body for PanickingBody {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            panic!("a fault of the body");
        }
    }

    fn poll(body: &mut GuardedBody) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_panic_of_a_body_ends_its_reply_uncleanly_and_is_counted_once() {
        let metrics = Arc::new(Metrics::new(&mut Registry::default()));
        let body = ReplyBody::live(PanickingBody);
        let mut body = GuardedBody::new(body, Arc::clone(&metrics));
        assert!(!body.is_end_stream());
        assert!(matches!(poll(&mut body), Poll::Ready(Some(Err(_)))));
        assert!(matches!(poll(&mut body), Poll::Ready(None)));
        assert!(body.is_end_stream());
        assert_eq!(metrics.requests.panics.get(), 1);
    }

    #[tokio::test]
    async fn a_whole_reply_is_complete_with_its_last_byte_and_not_before() {
        for polled in [false, true] {
            let test = TestGateway::new();
            let guard = test.guard();
            let body = ReplyBody::whole(Bytes::from_static(b"reply"), guard);
            let metrics = Arc::clone(&test.gateway.recorder.metrics);
            let mut body = GuardedBody::new(body, metrics);
            assert_eq!(body.size_hint().exact(), Some(5));
            if polled {
                assert!(matches!(poll(&mut body), Poll::Ready(Some(Ok(_)))));
                assert!(body.is_end_stream());
            }
            drop(body);
            for (outcome, counted) in [("ok", polled), ("client_gone", !polled)] {
                let line = format!(
                    "warmroute_requests_total{{route=\"/v1/chat/completions\",outcome=\"{outcome}\"}} {}",
                    u32::from(counted)
                );
                assert!(test.has_metric(&line), "{line}");
            }
        }
    }
}
