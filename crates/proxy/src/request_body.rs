//! The body of a client's request.

use std::{collections::VecDeque, fmt};

use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// A client's body, read frame by frame.
#[derive(Debug)]
pub struct RequestBody(Source);

#[derive(Debug)]
enum Source {
    Connection(Incoming),
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
            Source::Connection(body) => body.size_hint().exact(),
            Source::Frames(_, length) => *length,
        }
    }

    /// Returns whether the body is read to its end.
    pub fn is_end(&self) -> bool {
        match &self.0 {
            Source::Connection(body) => body.is_end_stream(),
            Source::Frames(frames, _) => frames.is_empty(),
        }
    }

    /// Returns the next bytes; `None` at the end. Cancel-safe.
    ///
    /// # Errors
    /// The body ended early or is not validly framed.
    pub async fn next_data(&mut self) -> Option<Result<Bytes, FramingError>> {
        match &mut self.0 {
            Source::Connection(body) => loop {
                match body.frame().await? {
                    Ok(frame) => {
                        if let Ok(data) = frame.into_data() {
                            return Some(Ok(data));
                        }
                    }
                    Err(_) => return Some(Err(FramingError)),
                }
            },
            Source::Frames(frames, _) => frames.pop_front().map(Ok),
        }
    }
}

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        Self(Source::Connection(body))
    }
}
