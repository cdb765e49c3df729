//! A [`Session`] on a socket.

use std::{io, pin::Pin, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use net::Stream;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    time::{Instant, Sleep},
};

use crate::{
    EndpointError, Limits,
    codec::{Incoming, ProtocolError, Session, SocketType},
};

/// Bytes asked for in one read.
const READ: usize = 64 * 1024;
/// With this much waiting to be written nothing more is read or queued: the peer must take what it caused first.
const WRITE_AHEAD: usize = 64 * 1024;

/// Why a connection is over or was never made.
#[derive(Debug, thiserror::Error)]
pub enum Disconnect {
    /// The endpoint names no place to connect to.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer broke the protocol or a limit.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The handshake did not end in time.
    #[error("no zmtp handshake within {0:?}: check that the endpoint is a zeromq socket")]
    HandshakeTimeout(Duration),
    /// Not even an answer to a PING.
    #[error("nothing was heard from the peer for {0:?}")]
    Silent(Duration),
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub(crate) struct Connection {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    session: Session,
    incoming: BytesMut,
    heartbeat: Duration,
    heard: Instant,
    /// Kept from call to call: a sleep that is made anew with each cancelled call would never end.
    alarm: Pin<Box<Sleep>>,
}

impl Connection {
    /// Shakes hands; the peer's routing id comes with the connection.
    pub(crate) async fn open(
        stream: Stream,
        socket: SocketType,
        identity: &[u8],
        limits: &Limits,
    ) -> Result<(Self, Bytes), Disconnect> {
        let (reader, writer) = tokio::io::split(stream);
        let mut connection = Self {
            reader,
            writer,
            session: Session::new(socket, identity, limits),
            incoming: BytesMut::new(),
            heartbeat: limits.heartbeat,
            heard: Instant::now(),
            alarm: Box::pin(tokio::time::sleep(limits.heartbeat)),
        };
        let shake = async {
            loop {
                if let Some(Incoming::Ready { identity }) = connection.turn().await? {
                    return Ok::<_, Disconnect>(identity);
                }
            }
        };
        let identity = tokio::time::timeout(limits.handshake_timeout, shake)
            .await
            .map_err(|_| Disconnect::HandshakeTimeout(limits.handshake_timeout))??;
        Ok((connection, identity))
    }

    /// One step: something came in, or (`None`) something went out. May be cancelled without losing anything.
    pub(crate) async fn turn(&mut self) -> Result<Option<Incoming>, Disconnect> {
        loop {
            if let Some(incoming) = self.session.receive(&mut self.incoming)? {
                return Ok(Some(incoming));
            }
            let waiting = self.session.outgoing().len();
            if self.incoming.capacity() - self.incoming.len() < READ / 8 {
                self.incoming.reserve(READ);
            }
            tokio::select! {
                read = self.reader.read_buf(&mut self.incoming), if waiting < WRITE_AHEAD => {
                    if read? == 0 {
                        return Err(Disconnect::Closed);
                    }
                    self.heard = Instant::now();
                }
                written = self.writer.write_buf(self.session.outgoing()), if waiting > 0 => {
                    if written? == 0 {
                        return Err(Disconnect::Closed);
                    }
                    return Ok(None);
                }
                () = self.alarm.as_mut() => self.check_life()?,
            }
        }
    }

    /// The next event, writing meanwhile what is to be written.
    pub(crate) async fn next(&mut self) -> Result<Incoming, Disconnect> {
        loop {
            if let Some(incoming) = self.turn().await? {
                return Ok(incoming);
            }
        }
    }

    /// Whether more may be queued.
    pub(crate) fn has_room(&mut self) -> bool {
        self.session.outgoing().len() < WRITE_AHEAD
    }

    /// Queues encoded messages; [`Connection::turn`] writes them.
    pub(crate) fn queue(&mut self, encoded: &[u8]) {
        self.session.outgoing().extend_from_slice(encoded);
    }

    pub(crate) fn subscribe(&mut self, topic: &[u8]) {
        self.session.subscribe(topic);
    }

    /// Writes everything queued. Reads nothing meanwhile.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while self.session.outgoing().has_remaining() {
            if self.writer.write_buf(self.session.outgoing()).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.writer.flush().await
    }

    /// The alarm rang: a quiet peer is asked for a sign of life, a dead one given up.
    fn check_life(&mut self) -> Result<(), Disconnect> {
        let quiet = self.heard.elapsed();
        let ours = self.session.can_ping().then_some(self.heartbeat * 3);
        let limit = [ours, self.session.peer_ttl()].into_iter().flatten().min();
        if let Some(limit) = limit
            && quiet >= limit
        {
            return Err(Disconnect::Silent(limit));
        }
        if quiet >= self.heartbeat && self.session.outgoing().is_empty() {
            self.session.ping();
        }
        let next = limit.map_or(self.heartbeat, |limit| limit.saturating_sub(quiet).min(self.heartbeat));
        self.alarm.as_mut().reset(Instant::now() + next.max(Duration::from_millis(10)));
        Ok(())
    }
}
