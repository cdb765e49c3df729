//! The body of a reply that several requests read.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{FlightMember, flight::FlightEnd};

/// One reader's side of the shared reply.
pub struct SharedBody<B> {
    member: FlightMember<B>,
    on_end: Option<Box<dyn FnOnce(FlightEnd) + Send>>,
    sent: u64,
    over: bool,
}

impl<B> SharedBody<B> {
    pub(super) fn new(member: FlightMember<B>) -> Self {
        Self {
            member,
            on_end: None,
            sent: 0,
            over: false,
        }
    }

    /// Calls `on_end` once this reader has read the end, and never where it leaves before.
    #[must_use]
    pub fn on_end(mut self, on_end: impl FnOnce(FlightEnd) + Send + 'static) -> Self {
        self.on_end = Some(Box::new(on_end));
        self.see_end();
        self
    }

    /// Ends as soon as the last bytes are read: hyper does not poll a body of known length past
    /// its end.
    fn see_end(&mut self) {
        if !self.over && self.member.flight.is_drained(self.member.id) {
            self.end(FlightEnd::Clean);
        }
    }

    fn end(&mut self, end: FlightEnd) {
        self.over = true;
        if let Some(on_end) = self.on_end.take() {
            on_end(end);
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for SharedBody<B> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(None);
        }
        match ready!(this.member.flight.poll_chunk(this.member.id, cx)) {
            Ok(bytes) => {
                this.sent += bytes.len() as u64;
                this.see_end();
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Err(end) => {
                this.end(end);
                let broken = "the reply broke off, or ran ahead of this reader";
                Poll::Ready((end == FlightEnd::Broken).then(|| Err(io::Error::other(broken))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::default();
        if let Some(length) = self.member.flight.length() {
            hint.set_exact(length.saturating_sub(self.sent));
        }
        hint
    }
}

impl<B> std::fmt::Debug for SharedBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedBody")
            .field("sent", &self.sent)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}
