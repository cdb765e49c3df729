//! A reply's body that contains its own panics.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::reply_body::ReplyBody;
use crate::metrics::Metrics;

/// A body whose panic ends its reply uncleanly and counts as a panic of a request.
///
/// **Invariant**: after a panic the body is dropped, which settles its request, and never polled
/// again.
#[derive(Debug)]
pub(crate) struct GuardedBody {
    /// `None` after a panic.
    body: Option<ReplyBody>,
    metrics: Arc<Metrics>,
}

impl GuardedBody {
    pub(crate) fn new(body: ReplyBody, metrics: Arc<Metrics>) -> Self {
        Self {
            body: Some(body),
            metrics,
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
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let polled = catch_unwind(AssertUnwindSafe(|| {
            supervision::panic_point("reply_body");
            Pin::new(body).poll_frame(cx)
        }));
        polled.unwrap_or_else(|_| {
            this.metrics.panics.inc();
            this.body = None;
            Poll::Ready(Some(Err(io::Error::other(
                "the router failed on this reply; see its log",
            ))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}
