//! The body of a worker's reply.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;
use kv_blocks::WorkerId;

use super::{ConnectionPools, UpstreamConnection, fake::ScriptedBody};
use crate::BodyBuffer;

/// The rest of a worker's reply, with the connection that carries it. Dropping it closes the
/// connection.
#[derive(Debug)]
pub struct UpstreamBody(Source);

#[derive(Debug)]
enum Source {
    Connection(ConnectionBody),
    Script(ScriptedBody),
}

#[derive(Debug)]
struct ConnectionBody {
    incoming: Incoming,
    /// `None`: closed or released.
    connection: Option<UpstreamConnection>,
    /// The pool that the connection returns to; `None`: it is not reused.
    pool_entry: Option<(ConnectionPools, WorkerId)>,
}

/// A reply that broke off, or that is not valid HTTP.
#[derive(Debug)]
pub struct BodyError(pub(super) String);

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BodyError {}

/// The reason why a reply could not be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// It broke off.
    Broken,
    /// It is longer than allowed.
    TooLong,
}

impl UpstreamBody {
    pub(super) fn of_connection(
        incoming: Incoming,
        connection: UpstreamConnection,
        pool_entry: Option<(ConnectionPools, WorkerId)>,
    ) -> Self {
        Self(Source::Connection(ConnectionBody {
            incoming,
            connection: Some(connection),
            pool_entry,
        }))
    }

    pub(super) fn scripted(script: ScriptedBody) -> Self {
        Self(Source::Script(script))
    }

    /// Polls for the next bytes, which are never empty; `None` at the end. Trailers are skipped.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        match &mut self.0 {
            Source::Script(script) => script.poll_data(cx),
            Source::Connection(body) => loop {
                match ready!(Pin::new(&mut body.incoming).poll_frame(cx)) {
                    None => return Poll::Ready(None),
                    Some(Err(error)) => {
                        return Poll::Ready(Some(Err(BodyError(error.to_string()))));
                    }
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data()
                            && !data.is_empty()
                        {
                            return Poll::Ready(Some(Ok(data)));
                        }
                    }
                }
            },
        }
    }

    /// Returns the next bytes, as [`Self::poll_data`] does. Cancel-safe.
    pub async fn next_data(&mut self) -> Option<Result<Bytes, BodyError>> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Reads the rest, at most `most` bytes of it, and releases the connection.
    ///
    /// # Errors
    /// The reply broke off or is longer; its connection is closed with the body.
    pub async fn read_to_end(&mut self, most: usize) -> Result<Bytes, ReadError> {
        let mut buffer = BodyBuffer::default();
        while let Some(data) = self.next_data().await {
            buffer.push(data.map_err(|_| ReadError::Broken)?);
            if buffer.len() > most {
                return Err(ReadError::TooLong);
            }
        }
        self.release();
        Ok(buffer.into_bytes())
    }

    /// Returns whether the end is reached; known only where the reply announces its length.
    pub fn is_end(&self) -> bool {
        match &self.0 {
            Source::Connection(body) => body.incoming.is_end_stream(),
            Source::Script(script) => script.is_end(),
        }
    }

    /// Returns the number of bytes that are left, where the reply announces its length.
    pub fn announced(&self) -> Option<u64> {
        match &self.0 {
            Source::Connection(body) => body.incoming.size_hint().exact(),
            Source::Script(script) => script.announced(),
        }
    }

    /// Keeps the connection for another request: the reply was read to its end.
    pub fn release(&mut self) {
        match &mut self.0 {
            Source::Connection(body) => {
                if let (Some(connection), Some((pools, worker))) =
                    (body.connection.take(), &body.pool_entry)
                {
                    pools.release(*worker, connection);
                }
            }
            Source::Script(script) => script.release(),
        }
    }

    /// Closes the connection, so that the worker stops computing. Later calls do nothing.
    pub fn close(&mut self) {
        match &mut self.0 {
            Source::Connection(body) => body.connection = None,
            Source::Script(script) => script.close(),
        }
    }
}
