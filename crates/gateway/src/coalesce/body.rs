//! The body of a reply that several requests read.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use dialect::ErrorCode;
use http_body::{Body, Frame, SizeHint};

use super::FlightMember;
use crate::request::record::RequestGuard;

/// One reader's side of the shared reply.
pub(crate) struct SharedBody {
    member: FlightMember,
    /// The guard of a follower; the leader's is with the reply itself.
    guard: Option<Box<RequestGuard>>,
    sent: u64,
    over: bool,
}

impl SharedBody {
    pub(super) fn new(seat: FlightMember) -> Self {
        Self {
            member: seat,
            guard: None,
            sent: 0,
            over: false,
        }
    }

    /// Adds the guard that this body's end settles.
    pub(crate) fn settling(mut self, settle: RequestGuard) -> Self {
        self.guard = Some(Box::new(settle));
        self.see_end();
        self
    }

    /// Settles as soon as the end is read: hyper does not poll a body of known length behind its
    /// end.
    fn see_end(&mut self) {
        if !self.over && self.member.flight.is_drained(self.member.id) {
            self.over = true;
            if let Some(mut settle) = self.guard.take() {
                settle.complete();
            }
        }
    }
}

impl Body for SharedBody {
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
            Some(Ok(bytes)) => {
                this.sent += bytes.len() as u64;
                this.see_end();
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            None => {
                this.see_end();
                this.over = true;
                Poll::Ready(None)
            }
            Some(Err(_)) => {
                this.over = true;
                if let Some(mut settle) = this.guard.take() {
                    settle.record_cut(ErrorCode::StreamInterrupted, None);
                }
                Poll::Ready(Some(Err(io::Error::other(
                    "the reply broke off, or ran ahead of this reader",
                ))))
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

impl std::fmt::Debug for SharedBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedBody")
            .field("sent", &self.sent)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}
