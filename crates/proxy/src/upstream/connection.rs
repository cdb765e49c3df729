//! An open connection to a worker, and one HTTP/1.1 exchange on it, up to the reply's head.
//!
//! No task drives a connection: the future or body that waits for a reply reads the socket itself,
//! so an event takes one wake-up, and all bytes that have arrived leave as one piece. A connection
//! that waits holds no buffer.
//!
//! **Invariant**: dropping a connection closes its socket at once, in any state: this is how the
//! engine notices a client that hung up. Only [`super::UpstreamBody::release`] keeps one alive.

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http::{Method, Request};
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    task::coop::unconstrained,
};

use super::{
    outgoing_body::OutgoingBody,
    reply_head::{self, InvalidReply, ReplyHead},
    request_writer::RequestWriter,
};

/// Most bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;
/// Longest head of a reply, with the interim replies before it, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// An open connection.
#[derive(Debug)]
pub(super) struct UpstreamConnection {
    stream: net::Stream,
}

/// A reply whose head has arrived.
#[derive(Debug)]
pub(super) struct BegunReply {
    pub(super) head: ReplyHead,
    /// The bytes that came with the head.
    pub(super) first: Bytes,
    /// The request, if its end is not sent yet.
    pub(super) writer: Option<Box<RequestWriter>>,
}

/// An exchange without a reply head.
#[derive(Debug)]
pub(super) enum ExchangeFailure {
    /// No byte of the request was sent.
    Unsent(OutgoingBody),
    /// The connection broke.
    Broken(io::Error),
    /// The answer is not HTTP.
    Invalid(InvalidReply),
}

impl UpstreamConnection {
    pub(super) fn new(stream: net::Stream) -> Self {
        Self { stream }
    }

    /// Returns the socket.
    pub(super) fn into_stream(self) -> net::Stream {
        self.stream
    }

    /// Returns whether a request can be sent: the worker neither closed the idle connection nor
    /// sent anything on it.
    pub(super) fn is_open(&mut self) -> bool {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        // The answer must not depend on how long the task has already run.
        let read = unconstrained(poll_fn(|cx| {
            Pin::new(&mut self.stream).poll_read(cx, &mut buffer)
        }));
        pin!(read)
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    }

    /// Sends a request, of which it takes the body, and waits for the head of the reply.
    pub(super) async fn exchange(
        &mut self,
        request: &mut Request<OutgoingBody>,
    ) -> Result<BegunReply, ExchangeFailure> {
        let method = request.method().clone();
        let mut writer = Box::new(RequestWriter::new(request));
        let mut received = Vec::new();
        let head = poll_fn(|cx| {
            let written = if writer.is_done() {
                Poll::Pending
            } else {
                writer.poll_write(&mut self.stream, cx)
            };
            match (self.poll_head(cx, &method, &mut received), written) {
                // A worker may answer and close before it has read the whole request.
                (Poll::Ready(Ok((mut head, first))), written) => {
                    head.keeps_alive &= !matches!(written, Poll::Ready(Err(_)));
                    Poll::Ready(Ok((head, first)))
                }
                (_, Poll::Ready(Err(error))) => Poll::Ready(Err(ExchangeFailure::Broken(error))),
                (head, _) => head,
            }
        });
        match head.await {
            Ok((head, first)) => Ok(BegunReply {
                head,
                first,
                writer: Some(writer).filter(|writer| !writer.is_done()),
            }),
            Err(failure) => Err(match (failure, writer.into_unsent()) {
                (ExchangeFailure::Broken(_), Some(body)) => ExchangeFailure::Unsent(body),
                (failure, _) => failure,
            }),
        }
    }

    /// Polls for the head of the reply; returns it with the bytes that follow it. `received` has
    /// the beginning of a head that arrives in parts.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: &Method,
        received: &mut Vec<u8>,
    ) -> Poll<Result<(ReplyHead, Bytes), ExchangeFailure>> {
        loop {
            let read = self.poll_read(cx, |data| {
                let is_first = received.is_empty();
                received.extend_from_slice(data);
                // A head ends with a line, so it is parsed at most once for each of its lines.
                (!data.is_empty()).then(|| is_first || data.contains(&b'\n'))
            });
            match ready!(read) {
                Err(error) => return Poll::Ready(Err(ExchangeFailure::Broken(error))),
                Ok(None) => {
                    let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return Poll::Ready(Err(ExchangeFailure::Broken(ended)));
                }
                Ok(Some(false)) => {}
                Ok(Some(true)) => {
                    let bytes = Bytes::from(std::mem::take(received));
                    match reply_head::parse(bytes.clone(), method) {
                        Err(invalid) => {
                            return Poll::Ready(Err(ExchangeFailure::Invalid(invalid)));
                        }
                        Ok(Some(parsed)) => return Poll::Ready(Ok(parsed)),
                        Ok(None) => *received = bytes.into(),
                    }
                }
            }
            if received.len() >= MAX_HEAD_BYTES {
                return Poll::Ready(Err(ExchangeFailure::Invalid(InvalidReply::TooLong)));
            }
        }
    }

    /// Sends more of a request; ready when all of it is sent.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut RequestWriter,
    ) -> Poll<io::Result<()>> {
        writer.poll_write(&mut self.stream, cx)
    }

    /// Polls for bytes and passes them on; an empty slice is the end. The buffer lives no longer
    /// than this call, so a stream that waits for its next event holds none.
    pub(super) fn poll_read<T>(
        &mut self,
        cx: &mut Context<'_>,
        on_data: impl FnOnce(&[u8]) -> T,
    ) -> Poll<io::Result<T>> {
        let mut bytes = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(on_data(buffer.filled())))
    }
}
