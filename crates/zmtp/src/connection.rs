//! A [`ZmtpSession`] on a socket.

use std::{io, net::IpAddr, pin::Pin, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use net::{Stream, server::ConnectionSlot};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    time::{Instant, Sleep},
};

use crate::{
    EndpointError, Limits,
    accept::Peer,
    codec::{Incoming, ProtocolError, SocketType, ZmtpSession},
    receive_budget::ReceiveAccount,
};

/// Bytes requested in one read.
const READ: usize = 64 * 1024;
/// Limit of unwritten bytes: above it, no more is read or queued until the peer has taken the
/// answers that it caused.
const WRITE_AHEAD: usize = 64 * 1024;
/// Length of a message above which its read buffer is not reused.
const LONG_MESSAGE: usize = 1024 * 1024;
/// Minimum interval between updates of the time of a peer's last message.
const ACTIVITY_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why a connection ended or was never made.
#[derive(Debug, thiserror::Error)]
pub enum Disconnect {
    /// The endpoint is no address to connect to.
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
    /// The peer did not even answer a PING.
    #[error("nothing was heard from the peer for {0:?}")]
    Silent(Duration),
    /// The peer limit was reached, and this peer had been silent longest.
    #[error("the place was given to a new peer: this one had sent nothing for the longest time")]
    Displaced,
    /// A bound socket expects no publisher at this address.
    #[error(
        "a peer at {0} was refused: if it is an engine, add kv_events: {{allowed_peers: [\"{0}\"]}}"
    )]
    Refused(IpAddr),
    /// Incomplete messages of all peers exceed the budget, and this peer has most of them.
    #[error("incomplete messages of all peers have too many bytes, and this peer has most of them")]
    ReceiveBudget,
}

/// State that the connections of a bound socket share.
#[derive(Debug)]
struct Inbound {
    slot: ConnectionSlot,
    account: ReceiveAccount,
    /// Time of the peer's last update of its place by a message.
    last_active: Instant,
}

impl Inbound {
    /// Resolves when the connection must close.
    async fn closing_reason(&self) -> Disconnect {
        tokio::select! {
            () = self.slot.must_close() => Disconnect::Displaced,
            () = self.account.revoked() => Disconnect::ReceiveBudget,
        }
    }

    /// Records that a whole message arrived: the peer is alive.
    fn record_message(&mut self) {
        if self.last_active.elapsed() >= ACTIVITY_INTERVAL {
            self.last_active = Instant::now();
            self.slot.set_idle();
        }
    }
}

/// As [`Inbound::closing_reason`]; an outgoing connection never has to close.
async fn closing_reason(inbound: &Option<Inbound>) -> Disconnect {
    match inbound {
        Some(inbound) => inbound.closing_reason().await,
        None => std::future::pending().await,
    }
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub(crate) struct ZmtpConnection {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    session: ZmtpSession,
    incoming: BytesMut,
    inbound: Option<Inbound>,
    heartbeat: Duration,
    last_received: Instant,
    /// Stored across calls: a timer created again by each cancelled call would never fire.
    timer: Pin<Box<Sleep>>,
}

impl ZmtpConnection {
    /// Makes the handshake on an outgoing connection.
    pub(crate) async fn open(
        stream: Stream,
        socket: SocketType,
        limits: &Limits,
    ) -> Result<Self, Disconnect> {
        Ok(Self::shake_hands(stream, None, socket, limits).await?.0)
    }

    /// Makes the handshake with a peer of a bound socket; returns its routing id with the
    /// connection.
    pub(crate) async fn accept(
        peer: Peer,
        socket: SocketType,
        limits: &Limits,
    ) -> Result<(Self, Bytes), Disconnect> {
        let account = limits.receive_budget.account(limits.max_message);
        let inbound = Inbound {
            slot: peer.slot,
            account,
            last_active: Instant::now(),
        };
        Self::shake_hands(peer.stream, Some(inbound), socket, limits).await
    }

    async fn shake_hands(
        stream: Stream,
        inbound: Option<Inbound>,
        socket: SocketType,
        limits: &Limits,
    ) -> Result<(Self, Bytes), Disconnect> {
        let (reader, writer) = tokio::io::split(stream);
        let mut connection = Self {
            reader,
            writer,
            session: ZmtpSession::new(socket, &[], limits),
            incoming: BytesMut::new(),
            inbound,
            heartbeat: limits.heartbeat,
            last_received: Instant::now(),
            timer: Box::pin(tokio::time::sleep(limits.heartbeat)),
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

    /// Makes one step: an incoming event, or (`None`) outgoing bytes. May be cancelled without
    /// losing anything.
    pub(crate) async fn turn(&mut self) -> Result<Option<Incoming>, Disconnect> {
        loop {
            if let Some(incoming) = self.session.receive(&mut self.incoming)? {
                self.record_incoming(&incoming);
                return Ok(Some(incoming));
            }
            self.count_bytes()?;
            let waiting = self.session.outgoing().len();
            if self.incoming.capacity() - self.incoming.len() < READ / 8 {
                self.incoming.reserve(READ);
            }
            tokio::select! {
                read = self.reader.read_buf(&mut self.incoming), if waiting < WRITE_AHEAD => {
                    if read? == 0 {
                        return Err(Disconnect::Closed);
                    }
                    self.last_received = Instant::now();
                }
                written = self.writer.write_buf(self.session.outgoing()), if waiting > 0 => {
                    if written? == 0 {
                        return Err(Disconnect::Closed);
                    }
                    return Ok(None);
                }
                () = self.timer.as_mut() => self.check_liveness()?,
                reason = closing_reason(&self.inbound) => return Err(reason),
            }
        }
    }

    /// Counts the bytes of incomplete messages together with those of all other peers of bound
    /// sockets.
    fn count_bytes(&mut self) -> Result<(), Disconnect> {
        let bytes = self
            .incoming
            .len()
            .saturating_add(self.session.incomplete_bytes());
        let fits = self
            .inbound
            .as_mut()
            .is_none_or(|inbound| inbound.account.set(bytes));
        if fits {
            Ok(())
        } else {
            Err(Disconnect::ReceiveBudget)
        }
    }

    fn record_incoming(&mut self, incoming: &Incoming) {
        let Incoming::Message(frames) = incoming else {
            return;
        };
        if let Some(inbound) = &mut self.inbound {
            inbound.record_message();
        }
        if frames.iter().map(Bytes::len).sum::<usize>() >= LONG_MESSAGE {
            // Otherwise the remaining bytes would keep the memory of the whole message, for as long
            // as the connection lasts.
            self.incoming = BytesMut::from(&self.incoming[..]);
        }
    }

    /// Marks the peer as active, so that it keeps its place, whether or not it sends anything.
    pub(crate) fn keep_active(&self) {
        if let Some(inbound) = &self.inbound {
            inbound.slot.set_busy();
        }
    }

    /// Waits for `done`, unless the connection must close before.
    pub(crate) async fn unless_closing<T>(
        &self,
        done: impl Future<Output = T>,
    ) -> Result<T, Disconnect> {
        tokio::select! {
            done = done => Ok(done),
            reason = closing_reason(&self.inbound) => Err(reason),
        }
    }

    /// Returns the next event, and writes queued bytes meanwhile.
    pub(crate) async fn next(&mut self) -> Result<Incoming, Disconnect> {
        loop {
            if let Some(incoming) = self.turn().await? {
                return Ok(incoming);
            }
        }
    }

    /// Returns whether more may be queued.
    pub(crate) fn has_capacity(&mut self) -> bool {
        self.session.outgoing().len() < WRITE_AHEAD
    }

    /// Queues encoded messages; [`ZmtpConnection::turn`] writes them.
    pub(crate) fn queue(&mut self, encoded: &[u8]) {
        self.session.outgoing().extend_from_slice(encoded);
    }

    pub(crate) fn subscribe(&mut self, topic: &[u8]) {
        self.session.subscribe(topic);
    }

    /// Writes all queued bytes. Reads nothing meanwhile.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while self.session.outgoing().has_remaining() {
            if self.writer.write_buf(self.session.outgoing()).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.writer.flush().await
    }

    /// Handles the alarm: sends a PING to a silent peer, and drops a dead one.
    fn check_liveness(&mut self) -> Result<(), Disconnect> {
        let quiet = self.last_received.elapsed();
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
        let next = limit.map_or(self.heartbeat, |limit| {
            limit.saturating_sub(quiet).min(self.heartbeat)
        });
        self.timer
            .as_mut()
            .reset(Instant::now() + next.max(Duration::from_millis(10)));
        Ok(())
    }
}
