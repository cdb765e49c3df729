//! The body of a reply.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::record::RequestGuard;

/// A body that produces its bytes over time: a relayed, shared or copied reply.
pub(crate) trait LiveBody:
    Body<Data = Bytes, Error = io::Error> + fmt::Debug + Send
{
}

impl<T: Body<Data = Bytes, Error = io::Error> + fmt::Debug + Send> LiveBody for T {}

/// The body of a reply.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// Bytes of the router, or a worker's whole reply with the request's guard, which is settled
    /// after the last byte.
    Whole(Option<Bytes>, Option<Box<RequestGuard>>),
    Live(Pin<Box<dyn LiveBody>>),
}

impl ReplyBody {
    pub(crate) fn empty() -> Self {
        Self::Whole(None, None)
    }

    /// Returns a body of the router's own.
    pub(crate) fn own(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()), None)
    }

    /// Returns a worker's whole reply.
    pub(crate) fn whole(bytes: Bytes, mut settle: RequestGuard) -> Self {
        if bytes.is_empty() {
            // hyper never polls an empty body.
            settle.complete();
            return Self::empty();
        }
        Self::Whole(Some(bytes), Some(Box::new(settle)))
    }

    pub(crate) fn live(body: impl LiveBody + 'static) -> Self {
        Self::Live(Box::pin(body))
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
            Self::Whole(bytes, settle) => {
                if let Some(mut settle) = settle.take() {
                    settle.complete();
                }
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Live(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes, _) => bytes.is_none(),
            Self::Live(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes, _) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Self::Live(body) => body.size_hint(),
        }
    }
}
