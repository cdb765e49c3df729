//! Replies of the request path, in this process.

use std::io;

use bytes::Bytes;
use gateway::GuardedBody;
use http::{HeaderMap, Response};
use http_body_util::BodyExt as _;

/// The longest error body that is read, in bytes.
const MOST_ERROR_BYTES: usize = 64 * 1024;

/// A reply. Dropping it cancels the request, as a client does that leaves.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its header fields.
    pub headers: HeaderMap,
    body: GuardedBody,
}

impl Reply {
    pub(super) fn new(response: Response<GuardedBody>) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        }
    }

    /// Returns the next bytes of the body; `None` at its end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The reply was interrupted.
    pub async fn next_chunk(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            match self.body.frame().await? {
                Err(error) => return Some(Err(error)),
                // Trailers are no part of the body.
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
            }
        }
    }

    /// Returns the beginning of the body of an error.
    pub(super) async fn error_body(mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < MOST_ERROR_BYTES
            && let Some(Ok(chunk)) = self.next_chunk().await
        {
            body.extend_from_slice(&chunk);
        }
        body.truncate(MOST_ERROR_BYTES);
        body
    }
}
