//! Section `workers[].kv_events`.

use std::path::PathBuf;

use settings::{CheckedValue, Setting, ValueKind, kinds::AUTO, word};

/// Schemes of all kinds of streams.
pub(crate) const SCHEMES: &[&str] = &["tcp", "ipc", "http", "https", "ws", "wss", "nats", "tls"];

settings::section! {
    /// Section `workers[].kv_events`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WorkerKvEvents {
        /// Which kind of stream. `auto` = as `endpoint` says, else ZMQ; `sse` and `ws` = standard
        /// events (RFC 1527) over HTTP or a WebSocket; `poll` = TensorRT-LLM's list, which may have
        /// one asker only; `nats` = what `warmroute events relay` publishes; `none` = its cache is
        /// predicted from our own decisions.
        source: EventSource = "auto", live;
        /// Where the stream is: `tcp://`, `ipc://` (ZMQ), `http(s)://`, `ws(s)://`, or
        /// `nats://HOST:PORT/SUBJECT` (`tls://` if encrypted; each of several ranks has a subject
        /// of its own, `SUBJECT.RANK`). `auto` = asked of the engine, else its host at
        /// `kv_events.default_port`.
        endpoint: Option<String> = "auto"
            in ValueKind::WordOr(AUTO, &ValueKind::Stream(SCHEMES)), live;
        /// Where missed events can be asked for.
        replay_endpoint: ReplayEndpoint = "auto", live;
        /// Only messages whose topic starts with this; empty = `kv_events.topic_filter`.
        topic: String = "", live;
        /// Listen at `endpoint`, for each further rank at the next port, and let the engine
        /// connect. Workers may share an endpoint: a message belongs to the one whose `topic` it
        /// begins with, or which it names as `kv@NAME@MODEL` or `kv@HOST:PORT@MODEL`.
        bind: bool = "false", live;
        /// File with what the stream's sender wants to see: a bearer token (`sse`, `ws`), or NATS
        /// credentials or a token (`nats`).
        token_file: Option<PathBuf> = "~", live;
    }
}

settings::words! {
    /// `workers[].kv_events.source`; `auto` is resolved if the endpoint determines the kind.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EventSource {
        /// A ZMQ publisher, if the engine announces one or one is found.
        Auto = "auto",
        /// A ZMQ publisher.
        Zmq = "zmq",
        /// No stream: its cache is predicted from our own decisions.
        None = "none",
        /// Standard events, server-sent. Has an endpoint.
        Sse = "sse",
        /// Standard events in a WebSocket. Has an endpoint.
        Ws = "ws",
        /// TensorRT-LLM's list.
        Poll = "poll",
        /// A NATS subject. Has an endpoint.
        Nats = "nats",
    }
}

/// `workers[].kv_events.replay_endpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayEndpoint {
    /// The endpoint that the engine announces.
    Auto,
    /// None: a gap is accepted.
    None,
    /// This one.
    At(String),
}

impl Setting for ReplayEndpoint {
    const KIND: ValueKind = ValueKind::WordOr(&[word("auto"), word("none")], &ValueKind::Endpoint);

    fn read(value: &CheckedValue) -> Option<Self> {
        Some(match (value.text(), value.word()) {
            (Some(endpoint), _) => Self::At(endpoint.to_owned()),
            (None, Some("none")) => Self::None,
            (None, _) => Self::Auto,
        })
    }
}
