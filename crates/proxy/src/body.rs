//! Bodies: that of a client's request, frame by frame, and one that is collected.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use hyper::body::Incoming;

/// A client's body, read frame by frame.
#[derive(Debug)]
pub struct RequestBody(Source);

#[derive(Debug)]
enum Source {
    /// The body, and whether its end was read: it knows that itself only where a length was announced.
    Connection(Incoming, bool),
    /// The frames that are left, and the announced length.
    Frames(VecDeque<Bytes>, Option<u64>),
}

/// The body ended early or is not validly framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramingError;

impl fmt::Display for FramingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body ended early or is not validly framed")
    }
}

impl std::error::Error for FramingError {}

impl RequestBody {
    /// Returns a body of these frames with an announced length.
    pub fn of_length(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let length = bytes.len() as u64;
        Self(Source::Frames(VecDeque::from([bytes]), Some(length)))
    }

    /// Returns a chunked body of these frames.
    pub fn chunked(frames: impl IntoIterator<Item = Bytes>) -> Self {
        Self(Source::Frames(frames.into_iter().collect(), None))
    }

    /// Returns the announced length, in bytes; `None`: the body is chunked.
    pub fn announced(&self) -> Option<u64> {
        match &self.0 {
            Source::Connection(body, _) => body.size_hint().exact(),
            Source::Frames(frames, length) => {
                length.map(|_| frames.iter().map(|frame| frame.len() as u64).sum())
            }
        }
    }

    /// Returns whether the body is read to its end.
    pub fn is_end(&self) -> bool {
        match &self.0 {
            Source::Connection(body, ended) => *ended || body.is_end_stream(),
            Source::Frames(frames, _) => frames.is_empty(),
        }
    }

    /// Returns the next bytes; `None` at the end. Cancel-safe.
    ///
    /// # Errors
    /// The body ended early or is not validly framed.
    pub async fn next_data(&mut self) -> Option<Result<Bytes, FramingError>> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Polls for the next bytes, as [`Self::next_data`] returns them.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, FramingError>>> {
        match &mut self.0 {
            Source::Connection(body, ended) => loop {
                match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                    None => {
                        *ended = true;
                        return Poll::Ready(None);
                    }
                    Some(Err(_)) => return Poll::Ready(Some(Err(FramingError))),
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data() {
                            return Poll::Ready(Some(Ok(data)));
                        }
                    }
                }
            },
            Source::Frames(frames, _) => Poll::Ready(frames.pop_front().map(Ok)),
        }
    }
}

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        Self(Source::Connection(body, false))
    }
}

/// A body under construction: a single frame stays as it is, several are joined.
#[derive(Debug, Default)]
pub struct BodyBuffer {
    first: Bytes,
    /// At most [`GROWTH`] times the bytes so far.
    joined: BytesMut,
    announced: Option<u64>,
}

/// How far the room of a body may exceed its bytes so far: a client that announces much and sends
/// little gets little room, and a body is moved only a few times while it grows.
const GROWTH: usize = 4;

impl BodyBuffer {
    /// Returns an empty buffer for a body of this announced length.
    pub fn of_length(announced: Option<u64>) -> Self {
        Self {
            announced,
            ..Self::default()
        }
    }

    /// Returns the number of bytes so far.
    pub fn len(&self) -> usize {
        if self.joined.is_empty() {
            self.first.len()
        } else {
            self.joined.len()
        }
    }

    /// Returns whether there are no bytes yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a frame.
    pub fn push(&mut self, data: Bytes) {
        if self.is_empty() {
            self.first = data;
            return;
        }
        let length = self.len() + data.len();
        if self.joined.capacity() < length {
            let room = self.room(length);
            self.joined.reserve(room - self.joined.len());
        }
        if self.joined.is_empty() {
            self.joined.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
        self.joined.extend_from_slice(&data);
    }

    /// Returns the room for `length` bytes and some of those that follow.
    fn room(&self, length: usize) -> usize {
        let announced = self.announced.and_then(|all| usize::try_from(all).ok());
        let room = announced.unwrap_or(2 * length).min(GROWTH * length);
        room.max(length)
    }

    /// Returns the body.
    pub fn into_bytes(self) -> Bytes {
        if self.joined.is_empty() {
            self.first
        } else {
            self.joined.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use hyper::{server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// The announced length of a body and its bytes, or the error, as read from these bytes of a
    /// client that then closes its side.
    async fn read(request: &str) -> (Option<u64>, Result<Vec<u8>, FramingError>) {
        let (mut client, server) = tokio::io::duplex(4096);
        client.write_all(request.as_bytes()).await.expect("room");
        client.shutdown().await.expect("open");
        let (sender, mut results) = tokio::sync::mpsc::unbounded_channel();
        let service = service_fn(move |request: Request<Incoming>| {
            let sender = sender.clone();
            async move {
                let mut body = RequestBody::from(request.into_body());
                let announced = body.announced();
                let mut bytes = Vec::new();
                let read = loop {
                    match body.next_data().await {
                        Some(Ok(data)) => bytes.extend_from_slice(&data),
                        Some(Err(error)) => break Err(error),
                        None => break Ok(bytes),
                    }
                };
                sender.send((announced, read)).expect("the test listens");
                Ok::<_, FramingError>(Response::new(String::new()))
            }
        });
        let connection = http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(server), service);
        // A broken body ends the connection with an error, too.
        let _ = connection.await;
        results.recv().await.expect("a request came")
    }

    #[tokio::test]
    async fn a_body_is_read_to_its_end_with_or_without_an_announced_length() {
        let whole = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(read(whole).await, (Some(5), Ok(b"hello".to_vec())));
        let chunked = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
                       2\r\nhe\r\n3\r\nllo\r\n0\r\nx-trailer: 1\r\n\r\n";
        assert_eq!(read(chunked).await, (None, Ok(b"hello".to_vec())));
    }

    #[tokio::test]
    async fn a_body_that_is_cut_or_malformed_is_an_error_and_not_an_end() {
        for broken in [
            "content-length: 10\r\n\r\nhello",
            "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "transfer-encoding: chunked\r\n\r\n2\r\nhe\r\nzz\r\nllo\r\n0\r\n\r\n",
        ] {
            let request = format!("POST / HTTP/1.1\r\nhost: a\r\n{broken}");
            assert_eq!(read(&request).await.1, Err(FramingError), "{broken}");
        }
    }

    #[tokio::test]
    async fn a_body_of_frames_ends_after_its_last_frame() {
        let frames = ["a", "b"].map(|frame| Bytes::from_static(frame.as_bytes()));
        let mut body = RequestBody::chunked(frames);
        assert_eq!((body.announced(), body.is_end()), (None, false));
        assert_eq!(body.next_data().await, Some(Ok("a".into())));
        assert_eq!(body.next_data().await, Some(Ok("b".into())));
        assert!(body.is_end());
        assert_eq!(body.next_data().await, None);
        assert_eq!(RequestBody::of_length("abc").announced(), Some(3));
    }

    #[test]
    fn a_body_in_one_frame_is_not_copied_and_several_are_joined() {
        let frame = Bytes::from(vec![7; 10]);
        let mut several = BodyBuffer::default();
        several.push(frame.clone());
        assert_eq!(several.len(), 10);
        several.push(frame.clone());
        assert_eq!(several.into_bytes(), [7; 20].as_slice());
        let mut one = BodyBuffer::default();
        one.push(frame.clone());
        assert_eq!(one.into_bytes().as_ptr(), frame.as_ptr());
    }

    #[test]
    fn an_announced_body_gets_its_room_as_it_arrives() {
        let mut buffer = BodyBuffer::of_length(Some(1_000_000));
        let mut moves = 0;
        let mut at = std::ptr::null();
        for _ in 0..100 {
            buffer.push(Bytes::from(vec![7; 10_000]));
            assert!(buffer.joined.capacity() <= GROWTH * buffer.len());
            moves += u32::from(at != buffer.joined.as_ptr());
            at = buffer.joined.as_ptr();
        }
        assert!(moves <= 5, "{moves}");
        assert!(buffer.joined.capacity() < 1_100_000);
        assert_eq!(buffer.into_bytes().len(), 1_000_000);
        // More than announced is no error here.
        let mut longer = BodyBuffer::of_length(Some(1));
        longer.push(Bytes::from_static(b"ab"));
        longer.push(Bytes::from_static(b"cd"));
        assert_eq!(longer.into_bytes(), "abcd");
    }

    #[test]
    fn empty_frames_change_nothing() {
        let mut buffer = BodyBuffer::default();
        buffer.push(Bytes::new());
        assert!(buffer.is_empty());
        for frame in ["", "a", "", "bc", ""] {
            buffer.push(Bytes::from_static(frame.as_bytes()));
        }
        assert_eq!(buffer.len(), 3);
        assert_eq!(buffer.into_bytes(), "abc");
        assert_eq!(BodyBuffer::default().into_bytes(), "");
    }
}
