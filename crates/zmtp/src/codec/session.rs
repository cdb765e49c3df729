//! One side of one connection.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use super::{
    command::{self, Command},
    frame::{self, FrameKind, Header},
    greeting, ready,
};
use crate::Limits;

/// Longest accepted command: a READY with many properties, or a SUBSCRIBE with a long topic.
const MAX_COMMAND: u64 = 8 * 1024;

/// The supported socket types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketType {
    /// Receives what it subscribed to.
    Sub,
    /// Sends to subscribers.
    Pub,
    /// Sends and receives whole messages.
    Dealer,
    /// Like `Dealer`, with many peers.
    Router,
}

/// An event of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// The handshake is done.
    Ready {
        /// The peer's routing id; empty if it has none.
        identity: Bytes,
    },
    /// A whole message, never without frames.
    Message(Vec<Bytes>),
    /// The peer subscribes to topics with this prefix.
    Subscribe(Bytes),
    /// The peer cancels its subscription to this prefix.
    Cancel(Bytes),
}

/// The protocol error that ends a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Another protocol.
    #[error(
        "the peer does not speak zmtp 3: check that the endpoint is a zeromq socket and not, say, an http port"
    )]
    NotZmtp,
    /// An older ZeroMQ version.
    #[error("the peer speaks zmtp {major}: version 3 is needed, which zeromq has had since 4.0")]
    Version {
        /// Its major version.
        major: u8,
    },
    /// An unsupported security mechanism.
    #[error(
        "the peer asks for the security mechanism {name}: only NULL is supported, switch it off at the publisher"
    )]
    Mechanism {
        /// Its name.
        name: String,
    },
    /// A socket type incompatible with ours.
    #[error(
        "the peer is a {peer:?} socket: our {ours} talks to {expected}, check that the endpoints are not swapped"
    )]
    Socket {
        /// Its type.
        peer: String,
        /// Our type.
        ours: &'static str,
        /// Compatible types.
        expected: &'static str,
    },
    /// The peer refused the handshake.
    #[error("the peer refused the connection: {reason:?}")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// Invalid flags.
    #[error("frame flags {flags:#04x} are not valid")]
    Flags {
        /// The byte.
        flags: u8,
    },
    /// A message longer than allowed, according to its header.
    #[error("message of at least {announced} bytes: at most {limit} are accepted")]
    MessageTooLong {
        /// Its announced length so far.
        announced: u64,
        /// The limit.
        limit: usize,
    },
    /// A message with more frames than allowed.
    #[error("message of more than {limit} frames")]
    TooManyFrames {
        /// The limit.
        limit: usize,
    },
    /// A command longer than any valid one.
    #[error("command of {announced} bytes: at most {MAX_COMMAND} are accepted")]
    CommandTooLong {
        /// Its announced length.
        announced: u64,
    },
    /// A malformed command, or one at a position where none is allowed.
    #[error("command is malformed or out of place")]
    Command,
    /// Data before the end of the handshake.
    #[error("message before the end of the handshake")]
    Early,
}

/// The protocol's state on one connection.
#[derive(Debug)]
pub struct ZmtpSession {
    socket: SocketType,
    identity: Bytes,
    phase: SessionPhase,
    max_message: usize,
    max_frames: usize,
    /// Frames of an incomplete message, and their bytes.
    parts: Vec<Bytes>,
    parts_bytes: u64,
    peer_minor: u8,
    peer_ttl: Option<Duration>,
    outgoing: BytesMut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionPhase {
    Greeting,
    Handshake,
    Open,
}

impl ZmtpSession {
    /// Creates the session of a new connection: the greeting is ready in [`ZmtpSession::outgoing`].
    /// Only a dealer's `identity` is sent.
    pub fn new(socket: SocketType, identity: &[u8], limits: &Limits) -> Self {
        Self {
            socket,
            identity: Bytes::copy_from_slice(identity),
            phase: SessionPhase::Greeting,
            max_message: limits.max_message,
            max_frames: limits.max_frames,
            parts: Vec::new(),
            parts_bytes: 0,
            peer_minor: 0,
            peer_ttl: None,
            outgoing: BytesMut::from(&greeting::ours()[..]),
        }
    }

    /// Takes the next event out of `bytes`; `None`: more bytes are needed. After an error the
    /// connection is unusable.
    pub fn receive(&mut self, bytes: &mut BytesMut) -> Result<Option<Incoming>, ProtocolError> {
        if self.phase == SessionPhase::Greeting {
            let Some(minor) = greeting::read(bytes)? else {
                return Ok(None);
            };
            bytes.advance(greeting::LENGTH);
            self.peer_minor = minor;
            self.phase = SessionPhase::Handshake;
            // Not before the peer's greeting: libzmq stalls on some peers that send ahead of it.
            frame::encode_command(
                "READY",
                &ready::ours(self.socket, &self.identity),
                &mut self.outgoing,
            );
        }
        while let Some(header) = frame::header(bytes)? {
            let body = self.admit(header)?;
            if bytes.len() - header.length < body {
                return Ok(None);
            }
            bytes.advance(header.length);
            let body = bytes.split_to(body).freeze();
            let incoming = match header.kind {
                FrameKind::Command => self.command(&body)?,
                FrameKind::Part => {
                    self.parts_bytes += header.body;
                    self.parts.push(body);
                    None
                }
                FrameKind::Last => {
                    self.parts_bytes = 0;
                    let mut frames = std::mem::take(&mut self.parts);
                    frames.push(body);
                    self.message(frames)
                }
            };
            if incoming.is_some() {
                return Ok(incoming);
            }
        }
        Ok(None)
    }

    /// Returns the bytes to send; the caller removes the written part from the front.
    pub fn outgoing(&mut self) -> &mut BytesMut {
        &mut self.outgoing
    }

    /// Subscribes to topics that start with `topic`, in the form that this peer understands.
    pub fn subscribe(&mut self, topic: &[u8]) {
        if self.peer_minor >= 1 {
            frame::encode_command("SUBSCRIBE", topic, &mut self.outgoing);
        } else {
            frame::encode_message(&[[&[1], topic].concat()], &mut self.outgoing);
        }
    }

    /// Returns the bytes of the frames of an incomplete message.
    pub fn incomplete_bytes(&self) -> usize {
        usize::try_from(self.parts_bytes).unwrap_or(usize::MAX)
    }

    /// Queues a PING, if the peer can answer one.
    pub fn ping(&mut self) {
        if self.peer_minor >= 1 {
            frame::encode_command("PING", &[0, 0], &mut self.outgoing);
        }
    }

    /// Returns whether the peer answers a PING.
    pub fn can_ping(&self) -> bool {
        self.peer_minor >= 1
    }

    /// Returns the time without a byte after which the peer considers the connection dead.
    pub fn peer_ttl(&self) -> Option<Duration> {
        self.peer_ttl
    }

    /// Checks a header against the limits, before any byte of the body is stored.
    fn admit(&self, header: Header) -> Result<usize, ProtocolError> {
        if header.kind == FrameKind::Command {
            if header.body > MAX_COMMAND {
                return Err(ProtocolError::CommandTooLong {
                    announced: header.body,
                });
            }
            if !self.parts.is_empty() {
                return Err(ProtocolError::Command);
            }
        } else {
            if self.phase != SessionPhase::Open {
                return Err(ProtocolError::Early);
            }
            if self.parts.len() >= self.max_frames {
                return Err(ProtocolError::TooManyFrames {
                    limit: self.max_frames,
                });
            }
            let announced = self.parts_bytes.saturating_add(header.body);
            if announced > self.max_message as u64 {
                return Err(ProtocolError::MessageTooLong {
                    announced,
                    limit: self.max_message,
                });
            }
        }
        Ok(usize::try_from(header.body).expect("checked against a limit that is a usize"))
    }

    fn command(&mut self, body: &[u8]) -> Result<Option<Incoming>, ProtocolError> {
        let command = command::read(body)?;
        if let Command::Error(reason) = command {
            let reason = String::from_utf8_lossy(reason).into_owned();
            return Err(ProtocolError::Refused { reason });
        }
        if self.phase == SessionPhase::Handshake {
            let Command::Ready(data) = command else {
                return Err(ProtocolError::Early);
            };
            let ready = ready::read(data, self.socket)?;
            self.phase = SessionPhase::Open;
            return Ok(Some(Incoming::Ready {
                identity: ready.identity,
            }));
        }
        Ok(match command {
            Command::Ready(_) | Command::Error(_) => return Err(ProtocolError::Command),
            // Topics are copied: a slice would keep the whole read buffer alive for as long as the
            // subscription.
            Command::Subscribe(topic) => self.publishing(Incoming::Subscribe, topic),
            Command::Cancel(topic) => self.publishing(Incoming::Cancel, topic),
            Command::Ping {
                time_to_live,
                context,
            } => {
                self.peer_ttl = time_to_live;
                frame::encode_command("PONG", context, &mut self.outgoing);
                None
            }
            Command::Pong | Command::Unknown => None,
        })
    }

    fn message(&self, frames: Vec<Bytes>) -> Option<Incoming> {
        if self.socket != SocketType::Pub {
            return Some(Incoming::Message(frames));
        }
        // The older form of a subscription. Any other message of a subscriber is ignored.
        match frames.as_slice() {
            [only] if only.len() as u64 <= MAX_COMMAND => match only.split_first() {
                Some((1, topic)) => self.publishing(Incoming::Subscribe, topic),
                Some((0, topic)) => self.publishing(Incoming::Cancel, topic),
                _ => None,
            },
            _ => None,
        }
    }

    fn publishing(&self, incoming: fn(Bytes) -> Incoming, topic: &[u8]) -> Option<Incoming> {
        (self.socket == SocketType::Pub).then(|| incoming(Bytes::copy_from_slice(topic)))
    }
}

impl SocketType {
    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Pub => "PUB",
            Self::Dealer => "DEALER",
            Self::Router => "ROUTER",
        }
    }

    pub(super) fn talks_to(self, peer: &[u8]) -> bool {
        self.partners()
            .split(" or ")
            .any(|partner| partner.as_bytes() == peer)
    }

    pub(super) fn partners(self) -> &'static str {
        match self {
            Self::Sub => "PUB or XPUB",
            Self::Pub => "SUB or XSUB",
            Self::Dealer => "ROUTER or DEALER or REP",
            Self::Router => "DEALER or REQ or ROUTER",
        }
    }
}
