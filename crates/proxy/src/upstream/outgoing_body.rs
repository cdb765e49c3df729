//! The body of a request to a worker.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::body_rest::BodyRest;

/// Bytes, and the rest of a client's body behind them, if there is one.
#[derive(Debug, Default)]
pub(super) struct OutgoingBody {
    first: Bytes,
    rest: Option<BodyRest>,
}

impl OutgoingBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self::new(bytes, None)
    }

    pub(super) fn new(first: Bytes, rest: Option<BodyRest>) -> Self {
        Self { first, rest }
    }

    /// Puts back the first bytes, which were not sent.
    pub(super) fn with_first(self, first: Bytes) -> Self {
        Self { first, ..self }
    }
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let body = self.get_mut();
        if !body.first.is_empty() {
            if let Some(rest) = &body.rest {
                rest.start();
            }
            let first = std::mem::take(&mut body.first);
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match &body.rest {
            None => Poll::Ready(None),
            Some(rest) => rest
                .poll_data(cx)
                .map(|data| data.map(|data| data.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.as_ref().is_none_or(BodyRest::is_end)
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.len() as u64;
        match &self.rest {
            None => SizeHint::with_exact(first),
            Some(rest) => rest
                .announced()
                .map_or_else(SizeHint::default, |left| SizeHint::with_exact(first + left)),
        }
    }
}
