//! DEALER: one connection, whole messages both ways.
//!
//! It does not reconnect: a request whose answer is interrupted has failed, and only the caller
//! knows whether to repeat it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::{
    Disconnect, Endpoint, Limits,
    codec::{Incoming, SocketType, encode_message},
    connection::ZmtpConnection,
};

/// A connected DEALER. Dropping it closes the connection.
#[derive(Debug)]
pub struct Dealer {
    connection: ZmtpConnection,
}

impl Dealer {
    /// Connects within `timeout` and makes the handshake within the limits' time.
    pub async fn connect(
        endpoint: &Endpoint,
        limits: Limits,
        timeout: Duration,
    ) -> Result<Self, Disconnect> {
        let stream = limits
            .destinations
            .connect(&endpoint.to_address()?, timeout)
            .await?;
        let connection = ZmtpConnection::open(stream, SocketType::Dealer, &limits).await?;
        Ok(Self { connection })
    }

    /// Sends one message; returns when the system has accepted it.
    pub async fn send<F: AsRef<[u8]>>(&mut self, frames: &[F]) -> Result<(), Disconnect> {
        let mut encoded = BytesMut::new();
        encode_message(frames, &mut encoded);
        self.connection.queue(&encoded);
        Ok(self.connection.flush().await?)
    }

    /// Returns the next message. There is no queue: a caller that does not read slows the sender
    /// through TCP. May be cancelled without losing anything.
    pub async fn recv(&mut self) -> Result<Vec<Bytes>, Disconnect> {
        loop {
            if let Incoming::Message(frames) = self.connection.next().await? {
                return Ok(frames);
            }
        }
    }
}
