//! The body of a worker's reply, read from its connection.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use kv_blocks::WorkerId;

use super::{
    connection::UpstreamConnection,
    failure::BodyError,
    pool::ConnectionPools,
    reply_decoder::{BodyPieces, FramingFault, ReplyDecoder},
    request_writer::RequestWriter,
};
use crate::upgrade::WorkerUpgrade;

/// A reply that is being read. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct ConnectionBody {
    pub(super) decoder: ReplyDecoder,
    /// Whether the worker keeps the connection open after the reply.
    pub(super) keeps_alive: bool,
    /// Bytes that came with the head and are not decoded yet.
    pub(super) received: Bytes,
    /// The fault behind the bytes that were passed on.
    pub(super) fault: Option<FramingFault>,
    /// The request, if its end is not sent yet.
    pub(super) writer: Option<Box<RequestWriter>>,
    /// `None`: closed or released.
    pub(super) connection: Option<UpstreamConnection>,
    /// The pool that the connection returns to; `None`: it is not reused.
    pub(super) pool_entry: Option<(ConnectionPools, WorkerId)>,
    /// Whether other bytes than those of HTTP follow the reply.
    pub(super) switches_protocol: bool,
}

impl ConnectionBody {
    /// Polls for the next bytes: all that have arrived, up to the length of one read.
    pub(super) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            if let Some(fault) = self.fault.take() {
                self.connection = None;
                return Poll::Ready(Some(Err(BodyError(fault.0.to_owned()))));
            }
            if self.decoder.is_end() {
                return Poll::Ready(None);
            }
            let body = if self.received.is_empty() {
                match ready!(self.poll_read(cx)) {
                    Ok(body) => body,
                    Err(error) => {
                        self.connection = None;
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            } else {
                let received = std::mem::take(&mut self.received);
                self.decode(&received)
            };
            if !body.is_empty() {
                return Poll::Ready(Some(Ok(body)));
            }
        }
    }

    /// Sends more of the request and reads more of the reply; returns the body's part of it.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, BodyError>> {
        let broken = |error: std::io::Error| BodyError(error.to_string());
        let Some(mut connection) = self.connection.take() else {
            return Poll::Ready(Err(BodyError("the connection is closed".to_owned())));
        };
        if let Some(writer) = &mut self.writer
            && let Poll::Ready(sent) = connection.poll_write(cx, writer)
        {
            // A worker that has answered may close before it has read the whole request; its reply
            // is still there.
            self.keeps_alive &= sent.is_ok();
            self.writer = None;
        }
        let read = connection.poll_read(cx, |data| self.decode(data));
        self.connection = Some(connection);
        read.map_err(broken)
    }

    /// Decodes bytes of the connection; none are its end.
    fn decode(&mut self, data: &[u8]) -> Bytes {
        if data.is_empty() {
            self.fault = self.decoder.close().err();
            return Bytes::new();
        }
        let mut body = BodyPieces::of_at_most(data.len());
        match self.decoder.decode(data, &mut body) {
            // Bytes behind the reply: the next reply on this connection would begin with them.
            Ok(taken) => self.keeps_alive &= taken == data.len(),
            Err(fault) => self.fault = Some(fault),
        }
        body.into_bytes()
    }

    /// Returns the connection, if it leaves HTTP with this reply.
    pub(super) fn into_upgrade(self) -> Option<WorkerUpgrade> {
        let connection = self.connection.filter(|_| self.switches_protocol)?;
        Some(WorkerUpgrade::new(connection.into_stream(), self.received))
    }

    /// Keeps the connection for another request, if the worker does and both messages are complete.
    pub(super) fn release(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        if let Some((pools, worker)) = &self.pool_entry
            && self.keeps_alive
            && self.writer.is_none()
            && self.received.is_empty()
            && self.decoder.is_end()
        {
            pools.release(*worker, connection);
        }
    }
}
