//! The body of a worker's reply.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::{
    connection_body::ConnectionBody,
    failure::{BodyError, ReadError},
    fake::ScriptedBody,
};
use crate::{body::BodyBuffer, upgrade::WorkerUpgrade};

/// The rest of a worker's reply, with the connection that carries it. Dropping it closes the
/// connection.
#[derive(Debug)]
pub struct UpstreamBody(Source);

#[derive(Debug)]
enum Source {
    Connection(ConnectionBody),
    Script(ScriptedBody),
}

impl UpstreamBody {
    pub(super) fn of_connection(body: ConnectionBody) -> Self {
        Self(Source::Connection(body))
    }

    pub(super) fn scripted(script: ScriptedBody) -> Self {
        Self(Source::Script(script))
    }

    /// Polls for the next bytes, which are never empty; `None` at the end. Trailers are skipped.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        match &mut self.0 {
            Source::Script(script) => script.poll_data(cx),
            Source::Connection(body) => body.poll_data(cx),
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

    /// Reads what is before `mark`, at most `most` bytes, and returns whether the mark was found;
    /// without one, reads the rest and releases the connection. Behind a mark nothing is read, and
    /// the connection is closed with the body.
    ///
    /// # Errors
    /// The reply broke off or is longer; its connection is closed with the body.
    pub async fn read_until(
        &mut self,
        mark: &[u8],
        most: usize,
    ) -> Result<(Bytes, bool), ReadError> {
        let mut read = Vec::new();
        while let Some(data) = self.next_data().await {
            // The mark may have begun in the data before.
            let from = (read.len() + 1).saturating_sub(mark.len());
            read.extend_from_slice(&data.map_err(|_| ReadError::Broken)?);
            let mut parts = read[from..].windows(mark.len().max(1));
            let found = parts.position(|part| part == mark).map(|at| from + at);
            if found.unwrap_or(read.len()) > most {
                return Err(ReadError::TooLong);
            }
            if let Some(at) = found {
                read.truncate(at);
                return Ok((read.into(), true));
            }
        }
        self.release();
        Ok((read.into(), false))
    }

    /// Returns whether the end is reached; known only where the reply announces its length.
    pub fn is_end(&self) -> bool {
        match &self.0 {
            Source::Connection(body) => body.decoder.is_end(),
            Source::Script(script) => script.is_end(),
        }
    }

    /// Returns the number of bytes that are left, where the reply announces its length.
    pub fn announced(&self) -> Option<u64> {
        match &self.0 {
            Source::Connection(body) => body.decoder.announced(),
            Source::Script(script) => script.announced(),
        }
    }

    /// Keeps the connection for another request: the reply was read to its end.
    pub fn release(&mut self) {
        match &mut self.0 {
            Source::Connection(body) => body.release(),
            Source::Script(script) => script.release(),
        }
    }

    /// Returns the connection behind a reply that changes the protocol; `None`: this one does not.
    pub fn into_upgrade(self) -> Option<WorkerUpgrade> {
        match self.0 {
            Source::Connection(body) => body.into_upgrade(),
            Source::Script(_) => None,
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
