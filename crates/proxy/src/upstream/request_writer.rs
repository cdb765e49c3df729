//! Writes a request: its head, and its body as it arrives.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write as _},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use http::{HeaderValue, Method, Request, header};
use http_body::Body as _;
use tokio::io::AsyncWrite as _;

use super::outgoing_body::OutgoingBody;

/// Most pieces that are written at once: a head, and a frame of a body with its framing.
const MAX_PIECES: usize = 4;

/// A request that is being written.
///
/// **Invariant**: of the body, at most one frame is held here.
#[derive(Debug)]
pub(super) struct RequestWriter {
    /// The pieces to write now. Bounded: another frame is polled only when the last one is gone.
    pieces: VecDeque<Bytes>,
    body: OutgoingBody,
    framing: BodyFraming,
    progress: WriteProgress,
    body_ended: bool,
}

/// How the body's end is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyFraming {
    /// By its announced length: the bytes that are still to be sent.
    Length(u64),
    Chunked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteProgress {
    /// No byte is written.
    Unsent,
    Begun,
    Done,
    /// The body or the connection failed: nothing more is sent.
    Failed,
}

impl RequestWriter {
    /// Takes the body of a request, and encodes the head.
    pub(super) fn new(request: &mut Request<OutgoingBody>) -> Self {
        let framing = announce_body(request);
        let body = std::mem::take(request.body_mut());
        let mut writer = Self {
            pieces: VecDeque::with_capacity(MAX_PIECES),
            body_ended: body.is_end_stream(),
            body,
            framing,
            progress: WriteProgress::Unsent,
        };
        writer.pieces.push_back(encode_head(request));
        writer
    }

    /// Returns whether the whole request is sent.
    pub(super) fn is_done(&self) -> bool {
        self.progress == WriteProgress::Done
    }

    /// Returns the body if no byte of the request was sent.
    pub(super) fn into_unsent(mut self) -> Option<OutgoingBody> {
        if self.progress != WriteProgress::Unsent {
            return None;
        }
        // The head is followed by at most one frame, which `first` can hold if nothing frames it.
        let frame = self.pieces.pop_back().filter(|_| !self.pieces.is_empty());
        Some(self.body.with_first(frame.unwrap_or_default()))
    }

    /// Writes what can be written now; ready when the whole request is sent.
    ///
    /// # Errors
    /// The connection broke, or the body did, or it is not as long as announced: the worker would
    /// take what follows on the connection for its rest. Once failed, it fails again.
    pub(super) fn poll_write(
        &mut self,
        stream: &mut net::Stream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.progress == WriteProgress::Failed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = self.poll_pieces(stream, cx);
        // A request of which nothing is sent may be sent on another connection.
        if matches!(written, Poll::Ready(Err(_))) && self.progress != WriteProgress::Unsent {
            self.progress = WriteProgress::Failed;
        }
        written
    }

    fn poll_pieces(
        &mut self,
        stream: &mut net::Stream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            // The first frame leaves together with the head.
            if self.pieces.len() <= usize::from(self.progress == WriteProgress::Unsent)
                && let Err(error) = self.poll_body(cx)
            {
                // On another connection the body would fail too.
                self.progress = WriteProgress::Failed;
                return Poll::Ready(Err(error));
            }
            if self.pieces.is_empty() {
                if !self.body_ended {
                    return Poll::Pending;
                }
                if matches!(self.framing, BodyFraming::Length(1..)) {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the body ended before its announced length",
                    )));
                }
                ready!(Pin::new(stream).poll_flush(cx))?;
                self.progress = WriteProgress::Done;
                return Poll::Ready(Ok(()));
            }
            let mut slices = [IoSlice::new(&[]); MAX_PIECES];
            let mut filled = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(piece);
                filled += 1;
            }
            let written =
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..filled]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.progress = WriteProgress::Begun;
            self.advance(written);
        }
    }

    /// Takes the next frame of the body, if there is one now.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.body_ended {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                break;
            };
            let data = frame.transpose()?.and_then(|frame| frame.into_data().ok());
            let has_data = data.as_ref().is_some_and(|data| !data.is_empty());
            self.body_ended = data.is_none() || self.body.is_end_stream();
            if let Some(data) = data.filter(|data| !data.is_empty()) {
                match &mut self.framing {
                    BodyFraming::Chunked => {
                        let size = format!("{:x}\r\n", data.len());
                        self.pieces.push_back(size.into());
                    }
                    BodyFraming::Length(left) => {
                        *left = left.checked_sub(data.len() as u64).ok_or_else(|| {
                            io::Error::new(
                                io::ErrorKind::InvalidData,
                                "the body is longer than announced",
                            )
                        })?;
                    }
                }
                self.pieces.push_back(data);
            }
            if self.framing == BodyFraming::Chunked && (has_data || self.body_ended) {
                let end: &[u8] = match (has_data, self.body_ended) {
                    (true, true) => b"\r\n0\r\n\r\n",
                    (true, false) => b"\r\n",
                    (false, _) => b"0\r\n\r\n",
                };
                self.pieces.push_back(Bytes::from_static(end));
            }
            if has_data {
                break;
            }
        }
        Ok(())
    }

    /// Drops the pieces that are written.
    fn advance(&mut self, mut written: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            if piece.len() > written {
                piece.advance(written);
                return;
            }
            written -= piece.len();
            self.pieces.pop_front();
        }
    }
}

/// Adds the header field that frames the body, where the request has none.
fn announce_body(request: &mut Request<OutgoingBody>) -> BodyFraming {
    let (is_empty, length) = {
        let body = request.body();
        (body.is_end_stream(), body.size_hint().exact())
    };
    // A body without an announced length belongs to no such request.
    let takes_none = matches!(*request.method(), Method::GET | Method::HEAD);
    let fields = request.headers_mut();
    if let Some(announced) = fields.get(header::CONTENT_LENGTH) {
        let announced = announced.to_str().ok().and_then(|text| text.parse().ok());
        return BodyFraming::Length(announced.or(length).unwrap_or(0));
    }
    if is_empty {
        return BodyFraming::Length(0);
    }
    match length {
        Some(length) => {
            fields.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            return BodyFraming::Length(length);
        }
        None if takes_none => {
            *request.body_mut() = OutgoingBody::default();
        }
        None => {
            let chunked = HeaderValue::from_static("chunked");
            fields.insert(header::TRANSFER_ENCODING, chunked);
            return BodyFraming::Chunked;
        }
    }
    BodyFraming::Length(0)
}

/// Encodes the request line and the header fields.
fn encode_head(request: &Request<OutgoingBody>) -> Bytes {
    let mut head = Vec::with_capacity(64 + 48 * request.headers().len());
    // Writing to memory does not fail.
    let _ = write!(head, "{} {} HTTP/1.1\r\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head.extend_from_slice(b"\r\n");
    head.into()
}
